//! Old entries: where a jump to the new code fits.

use std::cell::OnceCell;

use postlink_elf::InputAddr;
use postlink_isa::{Code, FixupKind, Isa, Place, Reach};
use smallvec::SmallVec;

use crate::cfg::{BlockId, Cfg, Field, Term, Use};
use crate::discover::{Piece, Program};

/// An old entry that gets a jump to the new code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPatch {
    /// Where control enters.
    pub entry: InputAddr,
    /// Where in the old body the jump goes: after a landing pad, if there is one.
    pub at: InputAddr,
}

/// An entry beside the first. Functions have some where hand-written code says so, and where compilers let
/// several share a part: they are one to us then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondaryEntry {
    /// Its address, and where its jump goes.
    pub patch: EntryPatch,
    /// The block that begins there.
    pub block: BlockId,
}

/// Entries of a function beside its first where a jump to the new code fits, and labels at which control comes back
/// from old code. Pointers to them are not followed; where there is no jump, control that enters through one runs the
/// old body up to its next table or call, as it always was.
pub fn secondary_entries<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    function: usize,
    targets: &OnceCell<Vec<u64>>,
) -> Vec<SecondaryEntry> {
    let f = &program.functions[function];
    let start = program.start(function);
    let jump = |entry: &u64| {
        let entry = *entry;
        let led = |list: &[(u64, BlockId)]| list.iter().any(|m| m.0 == entry);
        if entry == start || led(&cfg.anchored_targets) || program.is_far::<I>(entry) {
            return None;
        }
        let at = cfg
            .address_taken
            .binary_search_by_key(&entry, |m| m.0)
            .ok()?;
        Some(SecondaryEntry {
            patch: entry_patch::<I>(program, cfg, entry, targets)?,
            block: cfg.address_taken[at].1,
        })
    };
    let labels = f.labels.iter().filter(|_| !program.refs.kept);
    f.entries.iter().chain(labels).filter_map(jump).collect()
}

/// Whether a jump to the new place fits at an entry: five bytes that nothing else jumps into, after a landing
/// pad if there is one. `targets`: room for [`table_targets`], which are the same for all entries of the function.
pub fn entry_patch<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    entry: u64,
    targets: &OnceCell<Vec<u64>>,
) -> Option<EntryPatch> {
    let (piece, at, end) = place_of_jump::<I>(program, entry)?;
    if !program.refs.kept
        && (!program.entry_proof.allows(at, end)
            || may_table_lead_into::<I>(program, cfg, (at, end), targets))
    {
        return None;
    }
    // Whatever begins inside must be reached by running into it from the entry only.
    for (b, block) in cfg
        .blocks
        .iter()
        .enumerate()
        .filter(|(_, b)| b.start > entry && b.start < end)
    {
        let marked = block.landing_pad
            || block.returns_twice
            || cfg.address_taken.iter().any(|m| m.0 == block.start);
        let fallen_into = |p: usize| {
            let before = &cfg.blocks[p];
            let way = match before.term {
                Term::Fall => 0,
                Term::Cond { .. } | Term::ShortCond => 1,
                Term::CondOut { .. } | Term::ShortCondOut { .. } => 0,
                _ => return false,
            };
            let succs = cfg.succs(p as BlockId);
            before.end == block.start
                && before.start >= entry
                && succs
                    .iter()
                    .enumerate()
                    .all(|(k, s)| (*s as usize == b) == (k == way))
        };
        let reached = (0..cfg.blocks.len())
            .filter(|p| cfg.succs(*p as BlockId).contains(&(b as BlockId)))
            .all(fallen_into);
        if marked || !reached {
            return None;
        }
    }
    if !has_room::<I>(program, piece, end) {
        return None;
    }
    Some(EntryPatch {
        entry: InputAddr::new(entry),
        at: InputAddr::new(at),
    })
}

/// Whether a jump to the new place fits at an entry, as far as that can be said without the function's graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JumpAt {
    Fits,
    DoesNot,
    /// Blocks begin inside: their ways in have to be looked at.
    OverBlocks,
}

/// Says that of a function that the linker kept relocations for. Its second block begins `second` bytes behind its
/// entry at the least.
pub(crate) fn jump_at<I: Isa>(program: &Program<'_>, entry: u64, second: u64) -> JumpAt {
    match place_of_jump::<I>(program, entry) {
        None => JumpAt::DoesNot,
        Some((_, _, end)) if end > entry + second => JumpAt::OverBlocks,
        Some((piece, _, end)) if has_room::<I>(program, piece, end) => JumpAt::Fits,
        Some(_) => JumpAt::DoesNot,
    }
}

/// Where at an entry the jump goes: the entry's piece, the jump's first address, and one past its last.
fn place_of_jump<'p, I: Isa>(
    program: &'p Program<'_>,
    entry: u64,
) -> Option<(&'p Piece, u64, u64)> {
    let piece = program.piece_at(entry)?;
    let first = I::decode(
        program.elf.bytes_at(entry, (piece.end - entry).min(16))?,
        entry,
    )?;
    let at = if first.traits.landing_pad {
        first.end()
    } else {
        entry
    };
    let mut jump: Code<()> = Code::default();
    put_entry::<I, ()>(
        program,
        &mut jump,
        entry,
        program.elf.bytes_at(at, (piece.end - at).min(16))?,
        (),
    );
    if program.is_far::<I>(entry) && program.guarded && !first.traits.landing_pad {
        return None;
    }
    let end = at + jump.bytes.len() as u64;
    Some((piece, at, end))
}

/// Whether what is behind a piece may be overwritten up to `end`: padding.
fn has_room<I: Isa>(program: &Program<'_>, piece: &Piece, end: u64) -> bool {
    if end > piece.end {
        let i = program.pieces.partition_point(|p| p.start <= piece.start);
        let limit = program
            .pieces
            .get(i)
            .map_or(u64::MAX, |p| p.start)
            .min(program.elf.sections[piece.section as usize].end());
        if end > limit {
            return false;
        }
        let Some(padding) = program.elf.bytes_at(piece.end, end - piece.end) else {
            return false;
        };
        if !padding.iter().all(|b| matches!(b, 0 | 0x90 | 0xcc)) {
            let len = limit.min(piece.end + 32) - piece.end;
            let Some(whole) = program.elf.bytes_at(piece.end, len) else {
                return false;
            };
            let mut reach = piece.end;
            I::sweep(whole, piece.end, |i| {
                if i.traits.nop {
                    reach = i.end();
                }
                i.traits.nop
            });
            if reach < end {
                return false;
            }
        }
    }
    true
}

/// Whether a jump of the function may lead through a table to an instruction that a jump at an old entry overwrites
/// after its first byte, `at`, up to `end`.
fn may_table_lead_into<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    (at, end): (u64, u64),
    targets: &OnceCell<Vec<u64>>,
) -> bool {
    let second = (at + 1).next_multiple_of(I::INSTRUCTION_ALIGNMENT);
    if cfg.falls_back.is_empty() && cfg.own_tables.is_empty() || second >= end {
        return false;
    }
    let targets = targets.get_or_init(|| table_targets::<I>(program, cfg));
    let next = targets.partition_point(|to| *to <= at);
    targets.get(next).is_some_and(|to| *to < end)
}

/// Where in the function a jump of it may lead through a table, ascending: whichever of the addresses that the function
/// forms is the table, and whichever its entries are added to.
fn table_targets<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> Vec<u64> {
    /// More entries than this no table has.
    const ENTRIES: u64 = 4096;
    let function = cfg.blocks.first().and_then(|b| program.piece_at(b.start));
    let function = function.map(|p| &program.functions[p.function as usize]);
    let pieces = function.iter().flat_map(|f| &f.pieces);
    let ranges: SmallVec<[(u64, u64); 2]> = pieces
        .map(|p| &program.pieces[*p as usize])
        .map(|p| (p.start, p.end))
        .collect();
    let formed = formed::<I>(program, cfg);
    let is_code = |a: &u64| {
        let section = program.elf.section_at(*a);
        section.is_some_and(|(_, s)| s.is_code())
    };
    let bases: Vec<u64> = formed.iter().copied().filter(is_code).collect();
    let starts = ranges.iter().map(|r| r.0).min();
    let ends = ranges.iter().map(|r| r.1).max();
    let hull = (starts.unwrap_or(0), ends.unwrap_or(0));
    // A table is in one section.
    let limit = |table: u64| {
        let section = program.elf.section_at(table);
        section.map_or(u64::MAX, |(_, s)| s.end())
    };
    let mut targets = Vec::new();
    let mut of_table = |table: u64, width: u64, shift: u32| {
        let room = (limit(table) - table) / width;
        let whole = program.elf.bytes_at(table, width * ENTRIES.min(room));
        let may_lead =
            |base: u64| whole.is_none_or(|whole| leads_into(whole, width, shift, base, hull));
        let of_itself = may_lead(table);
        let bases: SmallVec<[u64; FEW_BASES]> = if bases.len() < FEW_BASES {
            bases
                .iter()
                .copied()
                .filter(|base| may_lead(*base))
                .collect()
        } else {
            SmallVec::from_slice(&bases)
        };
        if !of_itself && bases.is_empty() {
            return;
        }
        let entries = (0..ENTRIES.min(room))
            .map_while(|i| program.elf.bytes_at(table.wrapping_add(width * i), width));
        for value in entries.flat_map(values).map(|value| value << shift) {
            let itself = of_itself.then_some(&table).into_iter();
            for base in itself.chain(leading_into(&bases, hull, value)) {
                let target = base.wrapping_add(value);
                if ranges.iter().any(|r| r.0 <= target && target < r.1) {
                    targets.push(target);
                }
            }
        }
    };
    // Instructions, read as entries of one byte, lead anywhere; tables of such entries are in data.
    let is_table = |a: &&u64| I::INSTRUCTION_ALIGNMENT == 1 || !is_code(a);
    for &table in formed.iter().filter(is_table) {
        for &(width, shift) in I::TABLE_ENTRIES {
            of_table(table, width, shift);
        }
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Functions that form fewer addresses of code than that are asked for each of them by [`leads_into`].
const FEW_BASES: usize = 32;

/// Whether an entry of a table leads from a base into a range. Nearly all that may be tables have none, so this is what
/// nearly all time is spent on: a loop that ends early for nothing, which compilers make vector instructions of.
fn leads_into(table: &[u8], width: u64, shift: u32, base: u64, (start, end): (u64, u64)) -> bool {
    let first = start.wrapping_sub(base);
    let is_in = |number: u64| (number << shift).wrapping_sub(first) < end - start;
    let any = |found: bool, [signed, unsigned]: [u64; 2]| found | is_in(signed) | is_in(unsigned);
    if width == 4 {
        let words = table.as_chunks::<4>().0.iter();
        let words = words.map(|word| u32::from_le_bytes(*word));
        return words
            .map(|word| [i64::from(word as i32) as u64, u64::from(word)])
            .fold(false, any);
    }
    table
        .chunks_exact(width as usize)
        .map(values)
        .fold(false, any)
}

/// Those of ascending addresses to which a number has to be added to come into a range. A function may form hundreds of
/// addresses of code, of which hardly any is near enough.
fn leading_into(
    bases: &[u64],
    (start, end): (u64, u64),
    number: u64,
) -> impl Iterator<Item = &u64> {
    let below = |address: u64| bases.partition_point(|base| *base < address);
    let (from, to) = (
        below(start.wrapping_sub(number)),
        below(end.wrapping_sub(number)),
    );
    // The range may go over the end of all addresses.
    let goes_over = start.wrapping_sub(number) > end.wrapping_sub(number);
    let (low, high) = if goes_over {
        (&bases[..to], &bases[from..])
    } else {
        (&bases[from..to], &bases[..0])
    };
    low.iter().chain(high)
}

/// What an entry of a table may mean: with its sign, and without.
fn values(entry: &[u8]) -> [u64; 2] {
    let mut wide = [0; 8];
    wide[..entry.len()].copy_from_slice(entry);
    let unsigned = u64::from_le_bytes(wide);
    let unused = 64 - 8 * entry.len() as u32;
    [((unsigned << unused) as i64 >> unused) as u64, unsigned]
}

/// Addresses that a function forms, by one instruction or by several; ascending.
fn formed<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> Vec<u64> {
    let is_formed = |f: &&Field| f.role == Use::Address || f.kind == FixupKind::Adr;
    let fields = cfg.fields.iter().filter(is_formed);
    let mut formed: Vec<u64> = fields.map(|f| f.target).collect();
    let function = cfg.blocks.first().and_then(|b| program.piece_at(b.start));
    let function = function.map(|p| &program.functions[p.function as usize]);
    for piece in function.iter().flat_map(|f| &f.pieces) {
        let piece = &program.pieces[*piece as usize];
        let bytes = program.elf.bytes_at(piece.start, piece.end - piece.start);
        I::in_parts(
            bytes.unwrap_or_default(),
            piece.start,
            &|_| true,
            &mut |place, to| {
                if place == Place::Formed {
                    formed.push(to);
                }
            },
        );
    }
    formed.sort_unstable();
    formed.dedup();
    formed
}

/// Appends what takes the place of an old entry. Where pages are not guarded, no landing pad is needed, and nothing but
/// the first instruction is overwritten; with relocations outputs stay as they were.
pub fn put_entry<I: Isa, T: Copy>(
    program: &Program<'_>,
    out: &mut Code<T>,
    entry: u64,
    original: &[u8],
    target: T,
) {
    if program.is_far::<I>(entry) {
        I::put_far_entry(out, original, target);
    } else if program.refs.kept || program.guarded {
        I::put_entry(out, original, target);
    } else {
        I::put_jump(out, Reach::Long, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_lead_from_a_base_into_a_range_with_a_sign_or_without() {
        let words = [7u32, 0x10, u32::MAX - 0xfff, 0x8000_0000];
        let table: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for width in [1, 2, 4, 8] {
            for shift in [0, 2] {
                for base in [
                    0u64,
                    0x1000,
                    0x5000,
                    u64::MAX,
                    0u64.wrapping_sub(0x8000_0000),
                ] {
                    for range in [(0x4000u64, 0x4001), (0x1010, 0x1040), (0, 1), (9, 9)] {
                        let numbers = table.chunks_exact(width).flat_map(values);
                        let expected = numbers
                            .map(|number| base.wrapping_add(number << shift))
                            .any(|to| (range.0..range.1).contains(&to));
                        let found = leads_into(&table, width as u64, shift, base, range);
                        assert_eq!(found, expected, "{width} {shift} {base:#x} {range:x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn bases_are_found_by_where_they_lead() {
        let bases = [0, 8, 0x1000, 0x1ffc, 0x2000, 0x2004, u64::MAX - 3, u64::MAX];
        let numbers = [0, 4, 0x1000, 0x2000, u64::MAX, u64::MAX - 0x1000, 1 << 63];
        for (start, end) in [(0x2000, 0x2004), (0x1000, 0x3000), (0, 0), (2, 9)] {
            for number in numbers {
                let leads = |base: &&u64| (start..end).contains(&base.wrapping_add(number));
                let mut found: Vec<&u64> = leading_into(&bases, (start, end), number).collect();
                found.sort_unstable();
                let expected: Vec<&u64> = bases.iter().filter(leads).collect();
                assert_eq!(found, expected, "{start:#x}..{end:#x}, {number:#x}");
            }
        }
    }
}
