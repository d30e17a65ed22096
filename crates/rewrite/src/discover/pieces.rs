//! Pieces of code, from symbols and unwind entries, and the functions that they are parts of.

use std::ops::Range;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use postlink_elf::unwind::eh_frame::EhFrame;
use rayon::prelude::*;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::directory::Directory;
use super::program::{Function, Piece};

/// What symbols and unwind entries say of code.
#[derive(Default)]
pub(super) struct Named {
    /// Function symbols: (value, index in `.symtab`), ascending.
    pub symbols: Vec<(u64, u32)>,
    /// The same of `.dynsym`.
    pub exported: Vec<(u64, u32)>,
    /// (start, end) of what is named, ascending; both are equal where the size is not known.
    ranges: Vec<(u64, u64)>,
    /// Starts of parts that compilers split off.
    pub cold: FxHashSet<u64>,
    /// Where data is among instructions, by mapping symbols; ascending.
    pub data: Vec<u64>,
}

impl Named {
    /// Reads all symbols and unwind entries.
    pub fn read(elf: &Elf<'_>, eh: &EhFrame<'_>) -> Named {
        let mut named = Named::default();
        for table in [SymbolTable::Static, SymbolTable::Dynamic] {
            named.read_table(elf, table);
        }
        named.symbols.par_sort_unstable();
        named.exported.par_sort_unstable();
        named.data.sort_unstable();
        for f in &eh.fdes {
            if f.len > 0 && elf.section_at(f.start).is_some_and(|(_, s)| s.is_code()) {
                named.ranges.push((f.start, f.start.saturating_add(f.len)));
            }
        }
        named.ranges.par_sort_unstable();
        named
    }

    /// Reads a table, whose names are long: a part of it at a time.
    fn read_table(&mut self, elf: &Elf<'_>, table: SymbolTable) {
        const PART: usize = 1 << 13;
        let symbols = elf.symbols(table);
        let parts = postlink_parallel::map_parts(symbols.len(), PART, |range| {
            let mut named = Named::default();
            named.read_symbols(elf, table, range);
            named
        });
        for part in parts {
            self.symbols.extend(part.symbols);
            self.exported.extend(part.exported);
            self.ranges.extend(part.ranges);
            self.cold.extend(part.cold);
            self.data.extend(part.data);
        }
    }

    fn read_symbols(&mut self, elf: &Elf<'_>, table: SymbolTable, range: Range<usize>) {
        let symbols = elf.symbols(table);
        for (i, s) in range.filter_map(|i| Some((i, symbols.get_nameless(i)?))) {
            if !matches!(s.kind, STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE) || s.section == 0 {
                continue;
            }
            let Some(section) = elf.sections.get(s.section as usize) else {
                continue;
            };
            if !section.is_code() || s.value < section.addr || s.value >= section.end() {
                continue;
            }
            let name = || symbols.get(i).map(|s| s.name).unwrap_or_default();
            // Mapping symbols: where data is among instructions.
            if s.kind == STT_NOTYPE && (name() == b"$d" || name().starts_with(b"$d.")) {
                self.data.push(s.value);
            }
            if s.kind == STT_NOTYPE && (s.size == 0 || s.binding == 0) {
                continue;
            }
            if table == SymbolTable::Static {
                self.symbols.push((s.value, i as u32));
                if is_cold_name(name()) {
                    self.cold.insert(s.value);
                }
            } else {
                self.exported.push((s.value, i as u32));
            }
            self.ranges
                .push((s.value, s.value.saturating_add(s.size).min(section.end())));
        }
    }
}

/// All pieces.
pub(super) struct Pieces {
    /// Ascending.
    pub list: Vec<Piece>,
    /// First address of each.
    pub starts: Vec<u64>,
    directory: Directory,
    /// Named addresses inside of pieces.
    pub entries: Vec<u64>,
    /// Starts of those whose size is not known.
    pub without_size: FxHashSet<u64>,
}

impl Pieces {
    /// Merges what is named, and finds the unwind entry of each piece.
    pub fn new(elf: &Elf<'_>, named: &Named, eh: &EhFrame<'_>) -> Pieces {
        let (mut list, entries, without_size) = merge_ranges(elf, &named.ranges);
        postlink_parallel::map_mut(&mut list, |_, p| {
            // An empty function in front of another one (`__builtin_unreachable()`) has an entry for the same
            // start, and no code.
            let first = eh.fdes.partition_point(|f| f.start < p.start);
            p.fde = eh.fdes[first..]
                .iter()
                .take_while(|f| f.start == p.start)
                .position(|f| f.len > 0)
                .map(|i| (first + i) as u32);
        });
        let starts: Vec<u64> = list.iter().map(|p| p.start).collect();
        Pieces {
            directory: Directory::new(&starts),
            starts,
            list,
            entries,
            without_size,
        }
    }

    /// Number of the piece that covers an address.
    pub fn at(&self, addr: u64) -> Option<usize> {
        let i = self.directory.up_to(&self.starts, addr).checked_sub(1)?;
        (addr < self.list[i].end).then_some(i)
    }

    /// Number of the piece that begins at an address.
    pub fn starting_at(&self, addr: u64) -> Option<usize> {
        let i = self.directory.up_to(&self.starts, addr).checked_sub(1)?;
        (self.starts[i] == addr).then_some(i)
    }
}

/// `f.cold`, `f.cold.3`: parts that GCC and LLVM split off.
fn is_cold_name(name: &[u8]) -> bool {
    let digits = name.iter().rev().take_while(|c| c.is_ascii_digit());
    let numbered = name[..name.len() - digits.count()].strip_suffix(b".");
    name.ends_with(b".cold") || numbered.is_some_and(|name| name.ends_with(b".cold"))
}

/// Sections whose contents are not functions.
pub fn is_special(name: &str) -> bool {
    name == ".init" || name == ".fini" || name.starts_with(".plt") || name.starts_with(".iplt")
}

/// Turns sorted (start, end) ranges into disjoint pieces; returns also starts inside of pieces, and pieces
/// without known size.
fn merge_ranges(elf: &Elf<'_>, found: &[(u64, u64)]) -> (Vec<Piece>, Vec<u64>, FxHashSet<u64>) {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut entries = Vec::new();
    let mut unsized_ = FxHashSet::default();
    for (i, &(start, end)) in found.iter().enumerate() {
        if let Some(last) = pieces.last_mut() {
            if start < last.end {
                if start != last.start {
                    entries.push(start);
                }
                last.end = last.end.max(end);
                continue;
            }
            if start == last.start {
                // The one before had no size.
                if end > start {
                    unsized_.remove(&start);
                    last.end = end;
                }
                continue;
            }
        }
        let Some((section, s)) = elf.section_at(start) else {
            continue;
        };
        let known = end > start
            || found[i + 1..]
                .iter()
                .take_while(|f| f.0 == start)
                .any(|f| f.1 > start);
        if !known {
            unsized_.insert(start);
            let next = found[i + 1..]
                .iter()
                .map(|f| f.0)
                .find(|a| *a > start)
                .unwrap_or(u64::MAX);
            pieces.push(Piece {
                start,
                end: next.min(s.end()),
                section: section as u32,
                function: 0,
                fde: None,
            });
        } else {
            pieces.push(Piece {
                start,
                end: end.min(s.end()),
                section: section as u32,
                function: 0,
                fde: None,
            });
        }
    }
    pieces.retain(|p| p.end > p.start);
    (pieces, entries, unsized_)
}

/// Disjoint sets of pieces.
pub(super) struct Sets {
    parent: Vec<u32>,
}

impl Sets {
    pub fn new(n: usize) -> Self {
        Sets {
            parent: (0..n as u32).collect(),
        }
    }
    fn find(&mut self, mut i: usize) -> usize {
        while self.parent[i] as usize != i {
            self.parent[i] = self.parent[self.parent[i] as usize];
            i = self.parent[i] as usize;
        }
        i
    }
    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        let (low, high) = (a.min(b), a.max(b));
        self.parent[high] = low as u32;
    }
    /// One function per set. Its first piece is the one of the lowest rank, and of those the lowest.
    pub fn functions(mut self, pieces: &mut [Piece], rank: impl Fn(u32) -> u8) -> Vec<Function> {
        // A set is known by its lowest piece, which comes first.
        let mut lists: Vec<SmallVec<[u32; 1]>> = Vec::with_capacity(pieces.len());
        let mut of_root: Vec<u32> = vec![0; pieces.len()];
        for i in 0..pieces.len() {
            let root = self.find(i);
            if root == i {
                of_root[root] = lists.len() as u32;
                lists.push(SmallVec::new());
            }
            lists[of_root[root] as usize].push(i as u32);
        }
        let mut functions: Vec<Function> = lists
            .into_iter()
            .map(|mut list| {
                let first = (0..list.len()).min_by_key(|i| rank(list[*i])).unwrap_or(0);
                list[..=first].rotate_right(1);
                Function {
                    pieces: list,
                    ..Function::default()
                }
            })
            .collect();
        functions.sort_unstable_by_key(|f| f.pieces[0]);
        for (i, f) in functions.iter().enumerate() {
            for p in &f.pieces {
                pieces[*p as usize].function = i as u32;
            }
        }
        functions
    }
}
