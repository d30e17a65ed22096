//! All references to functions' starts: those that can be changed so that they lead to a counter first, and those
//! that cannot.

use postlink_elf::elf::{DynReloc, SymbolTable};
use postlink_isa::coverage::Covers;
use postlink_isa::{FixupKind, Flow, Insn};
use rayon::prelude::*;

use crate::discover::{Piece, Program, Refs};

/// Something that refers to a function and can be changed: a direct branch or call, from another function or
/// from itself, or an address in an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    /// Index of the function.
    pub function: u32,
    /// Address of the field.
    pub place: u64,
    /// How the address is stored there.
    pub kind: FixupKind,
    /// It makes a pointer.
    pub pointer: bool,
}

/// All references to functions' starts.
pub(super) struct References {
    /// By function.
    pub list: Vec<Reference>,
    /// Pointers in data: (function, index in [`Refs::pointers`]), ascending.
    pub data: Vec<(u32, u32)>,
    /// Functions with references that are not known or cannot be changed, ascending.
    pub unknown: Vec<u32>,
    /// Functions in the dynamic symbol table, ascending.
    pub exported: Vec<u32>,
}

impl References {
    pub fn of(&self, function: u32) -> &[Reference] {
        let from = self.list.partition_point(|r| r.function < function);
        let to = self.list.partition_point(|r| r.function <= function);
        &self.list[from..to]
    }

    pub fn in_data(&self, function: u32) -> &[(u32, u32)] {
        let from = self.data.partition_point(|r| r.0 < function);
        let to = self.data.partition_point(|r| r.0 <= function);
        &self.data[from..to]
    }
}

/// What can be done with a reference.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    Change,
    /// A loop of its own.
    Keep,
    Unknown,
}

/// Functions by their addresses.
struct Finder<'a, 'd> {
    program: &'a Program<'d>,
    /// (first address, function), ascending.
    starts: Vec<(u64, u32)>,
    /// (one past the last address, function), ascending.
    ends: Vec<(u64, u32)>,
}

/// Finds all references.
pub(super) fn references<I: Covers>(program: &Program<'_>) -> References {
    let mut starts: Vec<(u64, u32)> = (0..program.functions.len())
        .map(|f| (program.start(f), f as u32))
        .collect();
    starts.par_sort_unstable();
    let mut ends: Vec<(u64, u32)> = program.pieces.iter().map(|p| (p.end, p.function)).collect();
    ends.par_sort_unstable();
    let finder = Finder {
        program,
        starts,
        ends,
    };
    let mut found: Vec<(Reference, Use)> =
        postlink_parallel::flat_map(&program.pieces, |p| finder.in_code::<I>(p));
    found.par_sort_unstable_by_key(|r| (r.0.function, r.0.place));
    let mut places: Vec<u64> = found.iter().map(|r| r.0.place).collect();
    places.par_sort_unstable();
    let mut unknown: Vec<u32> =
        postlink_parallel::filter_map(&relocated::<I>(program), |(place, target)| {
            let is_known = places.binary_search(place).is_ok();
            (!is_known).then(|| finder.function_at(*target))?
        });
    let unclear = found.iter().filter(|r| r.1 == Use::Unknown);
    unknown.extend(unclear.map(|r| r.0.function));
    let formed = program.refs.formed.iter();
    unknown.extend(formed.filter_map(|f| finder.function_at(f.1)));
    finder.known_elsewhere(&mut unknown);
    let mut data = Vec::new();
    for (index, p) in (0u32..).zip(&program.refs.pointers) {
        unknown.extend(finder.ending_at(p.target));
        if let Some(function) = finder.function_at(p.target) {
            data.push((function, index));
        }
    }
    data.par_sort_unstable();
    unknown.par_sort_unstable();
    unknown.dedup();
    let changed = found.into_iter().filter(|r| r.1 == Use::Change);
    References {
        list: changed.map(|r| r.0).collect(),
        data,
        unknown,
        exported: finder.exported(),
    }
}

impl Finder<'_, '_> {
    fn function_at(&self, addr: u64) -> Option<u32> {
        let at = self.starts.binary_search_by_key(&addr, |s| s.0).ok()?;
        Some(self.starts[at].1)
    }

    /// The function that ends where no other begins: code that knows its end compares addresses with it.
    fn ending_at(&self, addr: u64) -> Option<u32> {
        let at = self.ends.binary_search_by_key(&addr, |e| e.0).ok()?;
        match self.function_at(addr) {
            None => Some(self.ends[at].1),
            Some(_) => None,
        }
    }

    /// References in the code of a piece.
    fn in_code<I: Covers>(&self, p: &Piece) -> Vec<(Reference, Use)> {
        let (refs, elf) = (&self.program.refs, self.program.elf);
        let mut out = Vec::new();
        let Some(bytes) = elf.bytes_at(p.start, p.end - p.start) else {
            return out;
        };
        // Code of the large model adds distances to addresses.
        let calculates = refs.has_distance_in(p.start, p.end);
        I::sweep(bytes, p.start, |i| {
            out.extend(self.in_instruction::<I>(p, i, calculates));
            true
        });
        for &(place, kind) in refs.absolute_fields_in(p.start, p.end) {
            let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
            let bytes = elf.bytes_at(place, width);
            let target = bytes.and_then(|b| I::read_field(kind, b, place));
            if let Some(function) = target.and_then(|target| self.function_at(target)) {
                let reference = Reference {
                    function,
                    place,
                    kind,
                    pointer: true,
                };
                out.push((reference, Use::Change));
            }
        }
        out
    }

    /// The reference in an instruction. `calculates`: the code adds distances to addresses.
    fn in_instruction<I: Covers>(
        &self,
        p: &Piece,
        i: &Insn,
        calculates: bool,
    ) -> Option<(Reference, Use)> {
        // Of a page nothing follows: whole addresses are known.
        let field = i.field.filter(|f| f.kind != FixupKind::Page)?;
        let reference = |function: u32, pointer: bool| Reference {
            function,
            place: i.addr + u64::from(field.at),
            kind: field.kind,
            pointer,
        };
        let Some(function) = self.function_at(field.target) else {
            let function = self.ending_at(field.target)?;
            return Some((reference(function, true), Use::Unknown));
        };
        let branch = matches!(
            i.flow,
            Flow::Jump { .. } | Flow::CondJump { .. } | Flow::ShortCond { .. }
        );
        let pointer = i.traits.forms_address && i.flow == Flow::Next;
        let what = match i.flow {
            _ if branch && function == p.function => Use::Keep,
            // Conditional branches do not reach far there.
            _ if !I::CHANGES_POINTERS && field.kind != FixupKind::Branch26 => Use::Unknown,
            Flow::Call { .. } => Use::Change,
            _ if branch || pointer && !calculates => Use::Change,
            _ => Use::Unknown,
        };
        Some((reference(function, pointer), what))
    }

    /// Functions that other files and the loader know, or that something refers to by a distance.
    fn known_elsewhere(&self, unknown: &mut Vec<u32>) {
        use postlink_elf::raw::{DT_FINI, DT_INIT, DT_INIT_ARRAY, STT_GNU_IFUNC};
        let (refs, elf) = (&self.program.refs, self.program.elf);
        let dynamic = elf.symbols(SymbolTable::Dynamic);
        let fixed = elf.symbols(SymbolTable::Static);
        let resolvers = dynamic
            .iter()
            .chain(fixed.iter())
            .filter(|s| s.kind == STT_GNU_IFUNC)
            .map(|s| s.value);
        // The loader adds something to the symbol's value.
        let inside = |d: &DynReloc| d.symbol != 0 && d.addend != 0;
        let relocs = elf.dyn_relocs().unwrap_or_default();
        let counted_from = relocs
            .iter()
            .filter(|d| inside(d))
            .filter_map(|d| dynamic.get(d.symbol as usize))
            .map(|s| s.value);
        let tags = [DT_INIT, DT_FINI].into_iter();
        let tags = tags.filter_map(|t| elf.dynamic_value(t));
        // The start-up routine may take the place of the first initialiser.
        let array = elf.dynamic_value(DT_INIT_ARRAY);
        let mut pointers = refs.pointers.iter();
        let first = pointers.find(|p| Some(p.place) == array).map(|p| p.target);
        let known = resolvers
            .chain(counted_from)
            .chain(tags)
            .chain(first)
            .chain([elf.entry]);
        unknown.extend(known.filter_map(|a| self.function_at(a)));
        unknown.extend(refs.relative().filter_map(|(place, width)| {
            self.function_at(place.wrapping_add(Refs::relative_value(elf, place, width)?))
        }));
        // Also by distances that are counted from somewhere else.
        unknown.extend(refs.distant.iter().filter_map(|a| self.function_at(*a)));
    }

    /// Functions in the dynamic symbol table.
    fn exported(&self) -> Vec<u32> {
        let dynamic = self.program.elf.symbols(SymbolTable::Dynamic);
        let mut exported: Vec<u32> = dynamic
            .iter()
            .filter(|s| s.section != 0)
            .filter_map(|s| self.function_at(s.value))
            .collect();
        exported.sort_unstable();
        exported.dedup();
        exported
    }
}

/// Relocations of code that lead to code: (place, target), as if those relative to the instruction were at its end.
fn relocated<I: Covers>(program: &Program<'_>) -> Vec<(u64, u64)> {
    use postlink_elf::raw::{self, R_X86_64_PC32, R_X86_64_PLT32, STT_TLS};
    /// Absolute addresses, and distances of the large code model.
    const OTHERS: [u32; 6] = [
        raw::R_X86_64_64,
        raw::R_X86_64_32,
        raw::R_X86_64_32S,
        raw::R_X86_64_PC64,
        raw::R_X86_64_GOTOFF64,
        raw::R_X86_64_PLTOFF64,
    ];
    /// Of a slot in the global offset table, unless the linker has put the address itself there.
    const SLOTS: [u32; 3] = [
        raw::R_X86_64_GOTPCREL,
        raw::R_X86_64_GOTPCRELX,
        raw::R_X86_64_REX_GOTPCRELX,
    ];
    let elf = program.elf;
    let symbols = elf.symbols(SymbolTable::Static);
    let mut all = Vec::new();
    for s in elf
        .sections
        .iter()
        .filter(|s| !s.is_alloc() && !elf.relocation_records(s).is_empty())
    {
        if elf
            .sections
            .get(s.info as usize)
            .is_none_or(|about| s.info == 0 || !about.is_code())
        {
            continue;
        }
        let records = elf.relocation_records(s);
        let found = postlink_parallel::flat_map_chunks(records, raw::Rela::LEN * 4096, |part| {
            raw::relas(part)
                .filter_map(|r| {
                    let (place, kind) = (r.r_offset, r.r_type);
                    let symbol = symbols.get_nameless(r.r_sym as usize)?;
                    if I::CHANGES_POINTERS && SLOTS.contains(&kind) {
                        let word = u32::from_le_bytes(elf.bytes_at(place, 4)?.try_into().ok()?);
                        return (u64::from(word) == symbol.value).then_some((place, symbol.value));
                    }
                    let target = symbol.value.wrapping_add_signed(r.r_addend);
                    if !I::CHANGES_POINTERS {
                        // Whatever it is, but not an offset in thread-local memory.
                        let wanted = symbol.kind != STT_TLS && symbol.section != 0;
                        return wanted.then_some((place, target));
                    }
                    if OTHERS.contains(&kind) {
                        return Some((place, target));
                    }
                    let wanted =
                        matches!(kind, R_X86_64_PC32 | R_X86_64_PLT32) && symbol.section != 0;
                    wanted.then(|| (place, target.wrapping_add(4)))
                })
                .collect::<Vec<_>>()
        });
        all.extend(found);
    }
    all
}
