//! Which function each cold part belongs to.
//!
//! A cold table says the number of its parent among the hot tables. BOLT 19 gets it wrong: it writes the
//! parent's position among *all* tables by address, which is larger by the number of cold parts that are
//! below the parent. Ordinarily there are none; there are with `--hot-functions-at-end`. Nothing in the
//! section says which tool wrote it, so both readings are tried. What decides is that a function's blocks are
//! numbered without gaps: they are spread over its hot table, its cold ones and its deleted blocks, so under
//! the right reading each number up to the hot table's number of blocks occurs once, and under a wrong one
//! hardly ever.
//!
//! If the program still has its symbols, they are a third reading, which wins unless fewer functions are
//! whole under it: BOLT calls the parts of `f` `f.cold.0`, `f.cold.1` (`f.warm`, `f.cold` when it splits
//! three ways).
//!
//! A block may occur twice if both entries say the same of it: postlink has a table for the old body of a
//! function that it moved.

use rustc_hash::FxHashMap;

use super::{Bat, Entry, EntryKind};
use crate::elf::{Elf, SymbolTable};

/// The parents of all cold tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parents {
    of: Vec<Option<u32>>,
    /// Cold tables whose parent is not the one that the section says.
    pub corrected: usize,
    /// Cold tables without any parent.
    pub unknown: usize,
}

impl Parents {
    /// By the tables alone.
    pub fn new(bat: &Bat) -> Parents {
        let stored: Vec<Option<u32>> = bat
            .cold
            .iter()
            .map(|c| {
                u32::try_from(c.parent)
                    .ok()
                    .filter(|p| (*p as usize) < bat.hot.len())
            })
            .collect();
        let mut of = stored.clone();
        let low = bat.cold.first().map_or(u64::MAX, |c| c.start);
        if bat.hot.last().is_some_and(|h| h.start > low) {
            let whole = whole_functions(bat, &stored);
            if whole < bat.hot.len() {
                let other = among_all(bat);
                if whole_functions(bat, &other) > whole {
                    of = other;
                }
            }
        }
        Parents::counted(bat, of)
    }

    /// By the tables and the program's symbols.
    pub fn with_symbols(bat: &Bat, elf: &Elf<'_>) -> Parents {
        let mut parents = Parents::new(bat);
        // Names of hot tables; one that several have decides nothing.
        let hot: FxHashMap<u64, u32> = (0u32..).zip(&bat.hot).map(|(i, h)| (h.start, i)).collect();
        let cold: FxHashMap<u64, usize> = bat
            .cold
            .iter()
            .enumerate()
            .map(|(i, c)| (c.start, i))
            .collect();
        let mut named: FxHashMap<&[u8], Option<u32>> = FxHashMap::default();
        let mut claims: Vec<(usize, &[u8])> = Vec::new();
        for s in elf.symbols(SymbolTable::Static).iter() {
            use crate::raw::STT_FUNC;
            if s.kind != STT_FUNC || s.section == 0 {
                continue;
            }
            if let Some(number) = hot.get(&s.value) {
                named
                    .entry(s.name)
                    .and_modify(|n| *n = n.filter(|n| n == number))
                    .or_insert(Some(*number));
            } else {
                // Some other function may have the name too.
                named.insert(s.name, None);
            }
            if let Some(number) = cold.get(&s.value)
                && let Some(parent) = parent_name(s.name)
            {
                claims.push((*number, parent));
            }
        }
        let mut other = parents.of.clone();
        for (cold, name) in claims {
            if let Some(Some(parent)) = named.get(name) {
                other[cold] = Some(*parent);
            }
        }
        if other != parents.of && whole_functions(bat, &other) >= whole_functions(bat, &parents.of)
        {
            parents.of = other;
        }
        Parents::counted(bat, parents.of)
    }

    fn counted(bat: &Bat, of: Vec<Option<u32>>) -> Parents {
        Parents {
            corrected: of
                .iter()
                .zip(&bat.cold)
                .filter(|(p, c)| p.is_some_and(|p| u64::from(p) != c.parent))
                .count(),
            unknown: of.iter().filter(|p| p.is_none()).count(),
            of,
        }
    }

    /// The number of a cold table's parent among the hot tables.
    pub fn of(&self, cold: usize) -> Option<u32> {
        self.of.get(cold).copied().flatten()
    }
}

/// `f` for `f.cold`, `f.cold.7`, `f.warm`.
fn parent_name(name: &[u8]) -> Option<&[u8]> {
    let mut rest = name;
    if let Some(dot) = name.iter().rposition(|b| *b == b'.')
        && dot + 1 < name.len()
        && name[dot + 1..].iter().all(u8::is_ascii_digit)
    {
        rest = &name[..dot];
    }
    rest.strip_suffix(b".cold")
        .or_else(|| rest.strip_suffix(b".warm"))
}

/// Parents under the reading that counts all tables by address.
fn among_all(bat: &Bat) -> Vec<Option<u32>> {
    let mut all: Vec<(u64, Option<u32>)> = (0u32..)
        .zip(&bat.hot)
        .map(|(i, h)| (h.start, Some(i)))
        .chain(bat.cold.iter().map(|c| (c.start, None)))
        .collect();
    all.sort_unstable();
    bat.cold
        .iter()
        .map(|c| all.get(usize::try_from(c.parent).ok()?)?.1)
        .collect()
}

/// How many functions have each of their blocks once.
fn whole_functions(bat: &Bat, parents: &[Option<u32>]) -> usize {
    let mut parts: Vec<(u32, &[Entry])> = (0u32..)
        .zip(&bat.hot)
        .map(|(i, h)| (i, bat.hot_entries(h)))
        .collect();
    let cold = bat.cold.iter().zip(parents);
    parts.extend(cold.filter_map(|(c, p)| Some(((*p)?, bat.cold_entries(c)))));
    parts.sort_by_key(|p| p.0);
    let mut seen: Vec<Option<(u32, u64)>> = Vec::new();
    parts
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|parts| {
            // The number is from the list of hot tables.
            let blocks = bat.hot[parts[0].0 as usize].blocks;
            let entries: usize = parts.iter().map(|p| p.1.len()).sum();
            let Some(blocks) = usize::try_from(blocks).ok().filter(|b| *b <= entries) else {
                return false;
            };
            seen.clear();
            seen.resize(blocks, None);
            let once = parts.iter().flat_map(|p| p.1).all(|e| match e.kind {
                EntryKind::Block { index, hash } => {
                    let block = (e.input, hash);
                    seen.get_mut(index as usize)
                        .is_some_and(|known| *known.get_or_insert(block) == block)
                }
                EntryKind::Branch => true,
            });
            once && seen.iter().all(Option::is_some)
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(output: u32, input: u32, index: u32) -> Entry {
        Entry {
            output,
            input,
            kind: EntryKind::Block { index, hash: 1 },
        }
    }

    /// Two functions with a cold part each, all cold parts below all hot ones.
    fn cold_below_hot(parents: [u32; 2]) -> Bat {
        let mut bat = Bat::default();
        bat.push_hot(0x2000, 1, 2, [block(0, 0, 0)], &[]).unwrap();
        bat.push_hot(0x3000, 2, 3, [block(0, 0, 0), block(4, 4, 1)], &[])
            .unwrap();
        bat.push_cold(0x1000, parents[0], [block(0, 8, 2)]).unwrap();
        bat.push_cold(0x1100, parents[1], [block(0, 8, 1)]).unwrap();
        bat
    }

    #[test]
    fn parents_numbered_among_all_tables_are_put_right() {
        // 0x1000 belongs to 0x3000 (number 1), 0x1100 to 0x2000 (number 0).
        let right = Parents::new(&cold_below_hot([1, 0]));
        assert_eq!(
            (right.of(0), right.of(1), right.corrected),
            (Some(1), Some(0), 0)
        );
        let wrong = Parents::new(&cold_below_hot([3, 2]));
        assert_eq!(
            (wrong.of(0), wrong.of(1), wrong.corrected),
            (Some(1), Some(0), 2)
        );
    }

    #[test]
    fn a_table_that_repeats_blocks_as_they_are_disturbs_nothing() {
        let mut bat = cold_below_hot([1, 0]);
        // What postlink writes for old bodies: the first block once more, below everything.
        let mut with_old = Bat::default();
        for h in bat.hot() {
            let entries = bat.hot_entries(h).to_vec();
            with_old
                .push_hot(h.start, h.hash, h.blocks, entries, &[])
                .unwrap();
        }
        with_old.push_cold(0x100, 0, [block(0, 0, 0)]).unwrap();
        for c in bat.cold() {
            let entries = bat.cold_entries(c).to_vec();
            with_old
                .push_cold(c.start, c.parent as u32, entries)
                .unwrap();
        }
        bat = with_old;
        let parents = Parents::new(&bat);
        assert_eq!(
            (parents.of(0), parents.of(1), parents.of(2)),
            (Some(0), Some(1), Some(0))
        );
        assert_eq!(parents.corrected, 0);
    }

    #[test]
    fn a_parent_that_does_not_exist_is_counted() {
        let mut bat = Bat::default();
        bat.push_hot(0x1000, 1, 1, [block(0, 0, 0)], &[]).unwrap();
        bat.push_cold(0x2000, 9, [block(0, 8, 1)]).unwrap();
        let parents = Parents::new(&bat);
        assert_eq!((parents.of(0), parents.unknown), (None, 1));
    }

    #[test]
    fn names_of_parts_have_their_function_in_them() {
        assert_eq!(parent_name(b"f.cold.0"), Some(&b"f"[..]));
        assert_eq!(parent_name(b"f.cold.cold.12"), Some(&b"f.cold"[..]));
        assert_eq!(parent_name(b"f.warm"), Some(&b"f"[..]));
        assert_eq!(parent_name(b"f.part.0"), None);
        assert_eq!(parent_name(b"cold"), None);
    }
}
