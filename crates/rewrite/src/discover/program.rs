//! Which functions there are, and what refers to their insides.
//!
//! A *piece* is a contiguous range of code that symbols or unwind entries give. Overlapping ranges are one piece with
//! several entries. Pieces that branch into each other's middle are one *function*: compilers split cold parts off
//! (`f.cold`), which jump back into the middle of `f`. All code is swept once, in parallel, and only what crosses
//! from piece to piece is kept; the body of a function is decoded again when it is worked on.
//!
//! Invariants: pieces are sorted and disjoint; every piece belongs to exactly one function; a function's
//! pieces are ascending but for the first, which is the one that is called.

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw::PF_X;
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_elf::unwind::lsda::Personality;
use postlink_elf::unwind::rows::Row;
use postlink_isa::{Flow, Insn, Isa};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::entry_proof::EntryProof;
use super::libc::{base_name, never_returns};
use super::refs::Refs;
use super::shapes::{self, Shapes};
use super::survey::Survey;
use super::visible::Visible;
use crate::pin::Pin;

/// A contiguous range of code.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Index of its section.
    pub section: u32,
    /// The function that it is a part of.
    pub function: u32,
    /// Index of its unwind entry in [`EhFrame::fdes`].
    pub fde: Option<u32>,
}

/// A function: one or more pieces.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Indexes of its pieces; the first holds the entry.
    pub pieces: SmallVec<[u32; 1]>,
    /// Addresses inside that are called or exported, other than the first piece's start; ascending.
    pub entries: SmallVec<[u64; 1]>,
    /// Addresses inside that pointers in data or instructions refer to; ascending.
    pub labels: Vec<u64>,
    /// A pointer to its entry exists: in data, in an instruction, or in the dynamic symbol table.
    pub address_taken: bool,
    /// One exists in the file's own data or instructions.
    pub pointed_at: bool,
    /// Why it stays.
    pub pin: Option<Pin>,
}

/// What is known of a file's code before any function is worked on.
pub struct Program<'d> {
    /// The file.
    pub elf: &'d Elf<'d>,
    /// References.
    pub refs: Refs,
    /// Unwind entries.
    pub eh: EhFrame<'d>,
    /// Sorted by start.
    pub pieces: Vec<Piece>,
    /// Sorted by start of the first piece.
    pub functions: Vec<Function>,
    /// Starts of position-independent jump tables: places of self-relative values whose address some code
    /// forms; ascending.
    pub table_bases: Vec<u64>,
    /// Functions of a C library that is linked in, and stubs to them, calls of which come back (only filled
    /// in if the program can unwind).
    pub library: FxHashSet<u64>,
    /// Procedure linkage table stubs and import slots by address: the dynamic symbol's index.
    pub imports: FxHashMap<u64, u32>,
    /// By CIE: what holds at the first instruction of its functions, if its instructions can be read.
    pub initial_rows: Vec<Option<Row<'d>>>,
    /// By CIE: its personality routine, if that is known.
    pub personalities: Vec<Option<Personality>>,
    /// The program has some means of leaving frames other than returning.
    pub can_unwind: bool,
    /// By piece: it may reach something that unwinds or calls back (only filled in if the program can unwind).
    pub unsafe_pieces: Vec<bool>,
    /// Starts of pieces that nothing comes back from, ascending.
    pub no_return: Vec<u64>,
    /// Indexes of pieces in which an instruction forms an address where code is, ascending.
    pub forms_code: Vec<u32>,
    /// Function symbols by value: (value, index in `.symtab`), ascending.
    pub symbols: Vec<(u64, u32)>,
    /// Exported functions by value: (value, index in `.dynsym`), ascending.
    pub exported: Vec<(u64, u32)>,
    /// Indirect branches must land at landing pads: the program asks for such pages.
    pub guarded: bool,
    /// Where new code ends at the latest.
    pub new_end: u64,
    /// Which pointers may follow functions that move.
    pub visible: Visible,
    /// Where jumps may overwrite old entries; only filled in if the linker kept no relocations.
    pub entry_proof: EntryProof,
    /// What the number of functions' counters follows from, if it was asked for and is still needed.
    pub(crate) shapes: Option<Shapes>,
    /// What decides on counters per thread, if it was asked for and is still needed.
    pub(crate) survey: Option<Survey>,
    /// Starts of functions for which the new code of others stands: pointers to them keep their values.
    pub folded: FxHashSet<u64>,
}

/// More bytes than a landing pad and a jump at an entry take, the rest of the last instruction included.
const OVERWRITTEN: u64 = 24;

impl<'d> Program<'d> {
    /// Whether new code may be out of reach of a direct jump at an address of the old.
    pub fn is_far<I: Isa>(&self, addr: u64) -> bool {
        self.new_end.saturating_sub(addr) >= I::BRANCH_REACH
    }

    /// Whether new code may be out of reach of a direct jump at some address of the old.
    pub fn has_far_code<I: Isa>(&self) -> bool {
        let code = self.elf.loads().filter(|s| s.flags & PF_X != 0);
        code.map(|s| s.addr).any(|addr| self.is_far::<I>(addr))
    }

    /// Whether instructions that fault may raise exceptions, in any function of the program: its personality routine is
    /// known for that, or is not known.
    pub fn faults(&self) -> bool {
        let routines = self.eh.cies.iter().zip(&self.personalities);
        let mut asked = routines.filter(|(cie, _)| cie.personality.is_some_and(|p| p.1 != 0));
        asked.any(|(_, known)| known.is_none_or(|p| p.faults))
    }

    /// Whether pointers to the function that begins at an address may follow it when it moves: nothing can
    /// tell by what it sees ([`crate::discover::visible`]), and no code knows the address by a distance.
    pub fn may_follow(&self, start: u64) -> bool {
        self.visible.may_follow(start)
            && self.refs.may_follow(start)
            && !self.folded.contains(&start)
    }

    /// What unwind entries of a CIE begin with.
    ///
    /// # Errors
    ///
    /// Instructions of the CIE that cannot be read.
    pub fn initial_row(&self, cie: usize) -> Result<&Row<'d>, Pin> {
        let row = self.initial_rows.get(cie).and_then(Option::as_ref);
        row.ok_or(Pin::UnwindTable)
    }

    /// The piece that covers an address.
    pub fn piece_at(&self, addr: u64) -> Option<&Piece> {
        self.piece_index_at(addr).map(|i| &self.pieces[i])
    }

    /// Its index.
    pub fn piece_index_at(&self, addr: u64) -> Option<usize> {
        let i = self
            .pieces
            .partition_point(|p| p.start <= addr)
            .checked_sub(1)?;
        (addr < self.pieces[i].end).then_some(i)
    }

    /// Whether an address is behind an entry or a label and so near to it that what leads to new code may overwrite it:
    /// padding behind a short function, too.
    pub fn may_be_overwritten(&self, addr: u64) -> bool {
        let behind = self.pieces.partition_point(|p| p.start <= addr);
        let Some(piece) = behind.checked_sub(1).and_then(|i| self.pieces.get(i)) else {
            return false;
        };
        let function = &self.functions[piece.function as usize];
        let entries = function.entries.iter().chain([&piece.start]);
        let labels = &function.labels;
        let label = labels.partition_point(|label| *label < addr).checked_sub(1);
        let mut entries = entries.chain(label.map(|at| &labels[at]));
        entries.any(|entry| *entry < addr && addr - entry < OVERWRITTEN)
    }

    /// Start of a function's first piece.
    pub fn start(&self, function: usize) -> u64 {
        self.pieces[self.functions[function].pieces[0] as usize].start
    }

    /// Bytes of code in a function.
    pub fn size(&self, function: usize) -> u64 {
        self.functions[function]
            .pieces
            .iter()
            .map(|p| self.pieces[*p as usize].end - self.pieces[*p as usize].start)
            .sum()
    }

    /// Name of a function: the first global symbol at its start, else the first of any kind, else its address.
    pub fn name(&self, function: usize) -> String {
        self.name_at(self.start(function))
    }

    /// Name of the symbol at an address: of several one with a size, then a global one, then the first. Exported names
    /// are looked at where the file was stripped of others. A stub to an imported function is named after it,
    /// `NAME@plt`. A name from a debug file is taken where there is no other ([`Elf::with_names`]).
    pub fn name_at(&self, start: u64) -> String {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if let Some(name) = self.best_name(start, SymbolTable::Static, &self.symbols) {
            return text(name);
        }
        if let Some(name) = self.best_name(start, SymbolTable::Dynamic, &self.exported) {
            return text(base_name(name));
        }
        match self.import_name(start) {
            Some(import) => format!("{}@plt", text(import)),
            None => match self.elf.given_name(start) {
                Some(name) => text(name),
                None => format!("fun_{start:x}"),
            },
        }
    }

    fn best_name(&self, start: u64, table: SymbolTable, of: &[(u64, u32)]) -> Option<&'d [u8]> {
        let table = self.elf.symbols(table);
        let mut best: Option<postlink_elf::elf::Symbol<'_>> = None;
        let from = of.partition_point(|s| s.0 < start);
        for (_, i) in of[from..].iter().take_while(|s| s.0 == start) {
            let rank = |s: &postlink_elf::elf::Symbol<'_>| (s.size > 0, s.binding != 0);
            if let Some(s) = table.get(*i as usize)
                && best.is_none_or(|b| rank(&b) < rank(&s))
            {
                best = Some(s);
            }
        }
        best.map(|s| s.name)
    }

    /// Whether a function with an unwind entry of its own has neither a return nor a jump to other code.
    fn is_known_not_to_return(&self, start: u64) -> bool {
        let piece = || self.piece_at(start).filter(|p| p.start == start);
        let is_whole = |p: &Piece| {
            let fde = p.fde.and_then(|i| self.eh.fdes.get(i as usize));
            fde.is_some_and(|fde| (fde.start, fde.start + fde.len) == (p.start, p.end))
        };
        self.no_return.binary_search(&start).is_ok() && piece().is_some_and(is_whole)
    }

    /// Whether a call leads to a function that does not return: by its own code, or as libraries declare it so and
    /// `.dynsym` names it (by way of a stub, through its slot, or at once in the library itself).
    pub fn calls_no_return<I: Isa>(&self, insn: &Insn) -> bool {
        let slot = match insn.flow {
            Flow::Call { target } => {
                if self.is_known_not_to_return(target) {
                    return true;
                }
                if let Some(name) = self.best_name(target, SymbolTable::Dynamic, &self.exported) {
                    return never_returns(name);
                }
                self.elf.section_at(target).and_then(|(_, section)| {
                    let from = usize::try_from(target - section.addr).ok()?;
                    let stub = self.elf.section_data(section).get(from..)?;
                    I::stub_slot(stub, target)
                })
            }
            Flow::IndirectCall => insn.slot(),
            _ => None,
        };
        slot.and_then(|slot| self.import_name(slot))
            .is_some_and(never_returns)
    }

    /// The first imported symbol whose name, without its version, is wanted.
    pub fn imported(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<&'d [u8]> {
        let table = self.elf.symbols(SymbolTable::Dynamic);
        let mut names = table
            .iter()
            .filter(|s| s.section == 0)
            .map(|s| base_name(s.name));
        names.find(|name| wanted(name))
    }

    /// Whether a slot leads out of the file, whatever the loader finds.
    pub fn leaves(&self, slot: u64) -> bool {
        shapes::leaves(self.elf, &self.refs, slot)
    }

    /// Name of an imported function by its stub's or slot's address.
    pub fn import_name(&self, addr: u64) -> Option<&'d [u8]> {
        let i = *self.imports.get(&addr)?;
        self.elf
            .symbols(SymbolTable::Dynamic)
            .get(i as usize)
            .map(|s| s.name)
    }
}

/// Entries of a position-independent jump table: (place, target), up to the next table or the end of what the
/// linker marked. Whether a target makes sense is for the caller to judge.
pub fn table_entries<'a>(
    elf: &'a Elf<'_>,
    refs: &'a Refs,
    bases: &[u64],
    base: u64,
) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let limit = bases
        .get(bases.partition_point(|b| *b <= base))
        .copied()
        .unwrap_or(u64::MAX);
    let width = refs.relative_width(base).unwrap_or(4);
    let places = match width {
        8 => &refs.relative64,
        _ => &refs.relative32,
    };
    let from = places.partition_point(|p| *p < base);
    places[from..]
        .iter()
        .enumerate()
        .map_while(move |(i, place)| {
            if *place != base + width * i as u64 || *place >= limit {
                return None;
            }
            let value = Refs::relative_value(elf, *place, width)?;
            Some((*place, base.wrapping_add(value)))
        })
}
