//! What every part of the proof looks things up in: both files, the moved functions, and which function owns an
//! address.

use crate::addr::{Address, InputAddr, OutputAddr, Pair};
use crate::arch::{Arch, AsksForHugePages, Dispatch, FieldKind, Flow, Insn};
use crate::consulted;
use crate::files::bytes::u64_in;
use crate::files::claim::{Moved, OwnTable, Range};
use crate::files::elf::{
    ET_EXEC, Elf, PT_GNU_EH_FRAME, PT_GNU_RELRO, PT_INTERP, PT_LOAD, SHT_SYMTAB,
};
use crate::files::personality::Asked;
use crate::files::unwind::Table;
use crate::maps::Maps;
use crate::report::{Failure, Options};
use rayon::slice::ParallelSliceMut;
use rustc_hash::{FxHashMap, FxHashSet};

/// Index of a moved function.
pub(crate) type FuncId = u32;

/// Ranges with owners, sorted; a table of where to look among them answers most questions with one or two of them.
#[derive(Debug, Default)]
pub(crate) struct Index<Addr> {
    ranges: Vec<(Range<Addr>, FuncId)>,
    base: Addr,
    /// By grain of addresses from the base on: how many ranges begin in front of the grain. One more at the end.
    before: Vec<u32>,
    /// Bytes of a grain, as a power of two.
    grain: u32,
}

/// Of code that belongs to no function so many bytes are looked at from one place.
const REACH: u64 = 64;

/// The least bytes of a grain, as a power of two, and the most grains.
const GRAIN: u32 = 6;
const GRAINS: u64 = 1 << 22;

impl<Addr: Address> Index<Addr> {
    pub(crate) fn new(mut ranges: Vec<(Range<Addr>, FuncId)>) -> Self {
        ranges.sort_unstable();
        let base = ranges.first().map_or_else(Addr::default, |r| r.0.start);
        let end = ranges.iter().map(|r| r.0.end).max().unwrap_or(base);
        // As many grains as ranges, or some more: what is between two ranges costs nothing then.
        let most = (ranges.len() as u64 * 4).clamp(64, GRAINS);
        let mut grain = GRAIN;
        while (end - base) >> grain >= most {
            grain += 1;
        }
        let count = ((end - base) >> grain) + 1;
        let mut at = 0;
        let before = (0..=count).map(|number| {
            let start = base.number().saturating_add(number << grain);
            while ranges.get(at).is_some_and(|r| r.0.start.number() < start) {
                at += 1;
            }
            u32::try_from(at).unwrap_or(u32::MAX)
        });
        let before = before.collect();
        Index {
            ranges,
            base,
            before,
            grain,
        }
    }

    /// How many ranges begin at an address or in front of it.
    #[inline]
    fn begun(&self, addr: Addr) -> usize {
        let Some(offset) = addr.number().checked_sub(self.base.number()) else {
            return 0;
        };
        let grain = usize::try_from(offset >> self.grain).unwrap_or(usize::MAX);
        let Some(&[from, to]) = self.before.get(grain..).and_then(<[u32]>::first_chunk) else {
            return self.ranges.len();
        };
        let near = self.ranges.get(from as usize..to as usize).unwrap_or(&[]);
        from as usize + near.partition_point(|r| r.0.start <= addr)
    }

    /// All ranges with their owners, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<Addr>, FuncId)> + '_ {
        self.ranges.iter().copied()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The owners of ranges that have bytes in common with one, and the first such bytes.
    pub(crate) fn within(&self, start: Addr, end: Addr) -> impl Iterator<Item = (Addr, FuncId)> {
        let i = self.ranges.partition_point(|r| r.0.end <= start);
        let ranges = self.ranges.get(i..).unwrap_or(&[]).iter();
        let inside = ranges.take_while(move |r| r.0.start < end);
        inside.map(move |r| {
            consulted::function(r.1);
            (r.0.start.max(start), r.1)
        })
    }

    /// Whether none of these addresses has an owner.
    pub(crate) fn is_free(&self, start: Addr, end: Addr) -> bool {
        let i = self.ranges.partition_point(|r| r.0.end <= start);
        self.ranges.get(i).is_none_or(|r| r.0.start >= end)
    }

    /// Whose address this is.
    #[inline]
    pub(crate) fn owner(&self, addr: Addr) -> Option<FuncId> {
        let last = self.ranges.get(self.begun(addr).checked_sub(1)?)?;
        let owner = (addr < last.0.end).then_some(last.1);
        if let Some(id) = owner {
            consulted::function(id);
        }
        owner
    }

    /// The same, and up to where the answer holds.
    pub(crate) fn owner_from(&self, addr: Addr) -> (Option<FuncId>, Addr) {
        let i = self.begun(addr);
        let last = i.checked_sub(1).and_then(|i| self.ranges.get(i));
        match last.filter(|r| addr < r.0.end) {
            Some(r) => {
                consulted::function(r.1);
                (Some(r.1), r.0.end)
            }
            None => {
                let last = || Addr::from_number(u64::MAX);
                (None, self.ranges.get(i).map_or_else(last, |r| r.0.start))
            }
        }
    }
}

/// A relocation of code by a distance: place, type, symbol, addend.
pub(crate) type Distance = (u64, u32, u32, u64);

/// What an instrumented output has beside its code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Where counters are: new writable memory without bytes in the file.
    pub areas: Vec<Range>,
    /// How much of it may be at a thread's own base.
    pub own: u64,
    /// New executable memory.
    pub code: Vec<Range>,
}

/// Shared by all parts of the proof, and read-only once built.
pub(crate) struct Context<'a> {
    pub input: &'a Elf<'a>,
    pub output: &'a Elf<'a>,
    pub functions: &'a [Moved],
    pub options: &'a Options,
    /// Of the files.
    pub maps: &'a Maps<'a>,
    pub old: Index<InputAddr>,
    pub new: Index<OutputAddr>,
    /// The bytes of jumps that were written over old entries.
    pub patches: Index<InputAddr>,
    /// Overwritten bytes that are not an instruction's start any more.
    pub interiors: Index<InputAddr>,
    /// Other instructions of old bodies that were overwritten, where no kept relocations were used: jumps to new code
    /// are there, to which jumps through tables lead.
    pub arrivals: Index<InputAddr>,
    /// New code in the space of old bodies, with the function whose body it was.
    pub reused: Index<OutputAddr>,
    /// By moved function: whether other code is in its old body, so that nothing may come there any more.
    pub buried: Vec<bool>,
    /// Code of the input: executable sections, or executable segments in a file without section headers.
    pub code: Vec<Range>,
    pub old_unwind: Table<'a>,
    pub new_unwind: Table<'a>,
    /// By CIE of the input: what its personality routine may be asked about.
    pub asked: Vec<Asked>,
    /// Bytes of the old image whose contents went elsewhere: nothing may refer to them any more.
    pub abandoned: Vec<Range>,
    /// Indirect branches may end at landing pads alone.
    pub guarded: bool,
    /// If it counts.
    pub counts: Option<Counts>,
    /// Files with debug information of the input and the output, where it is not in those themselves.
    pub debug_files: Option<(&'a Elf<'a>, &'a Elf<'a>)>,
    /// Files with units that the programs have only skeletons of.
    pub split: crate::SplitUnits<'a>,
    /// The output says which bytes correspond to which, and its debug information is to be compared by that.
    pub has_debug_info: bool,
    /// Ends of moved functions that are the address of nothing else.
    pub ends: FxHashMap<InputAddr, FuncId>,
    /// Relocations of code by distances, where kept ones were used.
    pub distances: Vec<Distance>,
    /// Moved functions that calculate with distances, see [`crate::proof::distances`].
    pub calculating: FxHashSet<FuncId>,
    /// Data hold distances to places, see [`crate::proof::described`].
    pub described: bool,
    /// The output claims that no kept relocations were used: values stay ([`crate::proof::bare`]).
    pub bare: bool,
    /// Where the dynamic loader writes, ascending ([`crate::proof::writes`]).
    pub loaded: Vec<u64>,
    /// By place: addresses that the dynamic loader makes there, of files with tables of labels of new code's own that
    /// are not at a fixed address.
    pub words: FxHashMap<u64, u64>,
    /// Slots that hold functions once the loader is done with them, so that a jump through one leaves; of
    /// files without kept relocations.
    pub slots: FxHashSet<u64>,
    /// Slots and addresses of functions that are declared not to return ([`crate::proof::no_return`]); of files without
    /// kept relocations.
    pub without_return: FxHashSet<u64>,
    /// Places of dynamic relocations in segments of the input that are not writable, ascending: usually none.
    pub relocated_constants: Vec<u64>,
    /// Reads a start-up routine ([`Arch::asks_for_huge_pages`]).
    pub startup: fn(&[u8], u64) -> Option<AsksForHugePages>,
}

/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;
/// Memory is protected in pages of so many bytes at least.
pub(crate) const PAGE: u64 = 4096;

impl<'a> Context<'a> {
    pub(crate) fn function(&self, id: FuncId) -> Option<&Moved> {
        self.functions.get(id as usize)
    }

    /// Whether an address is in the output's counters.
    pub(crate) fn is_counter(&self, addr: u64) -> bool {
        let mut areas = self.counts.iter().flat_map(|c| &c.areas);
        areas.any(|area| area.contains(addr))
    }

    /// Whether there are counters in so many bytes from an address on.
    pub(crate) fn has_counters(&self, addr: u64, len: u64) -> bool {
        let mut areas = self.counts.iter().flat_map(|c| &c.areas);
        areas.any(|area| area.start < addr.saturating_add(len) && addr < area.end)
    }

    /// Whether an indirect jump may continue in old code: its target is no function for certain.
    pub(crate) fn falls_back(&self, insn: &Insn) -> bool {
        let slot = insn.field.filter(|f| f.kind == FieldKind::Accesses);
        let leaves = slot.is_some_and(|f| self.slots.contains(&f.target));
        self.bare && matches!(insn.flow, Flow::IndirectJump { .. }) && !leaves
    }

    /// Whether some indirect jump of a moved function continues in old code.
    pub(crate) fn has_fall_back(&self, id: FuncId) -> bool {
        self.function(id).is_some_and(|f| !f.falls_back.is_empty())
    }

    /// Whether entries of a jump table of a moved function's own count from there.
    pub(crate) fn is_base(&self, id: FuncId, addr: InputAddr) -> bool {
        let counts = |t: &OwnTable| !t.wide && t.base == addr.get();
        self.function(id)
            .is_some_and(|f| f.tables.iter().any(counts))
    }

    /// The address in a word, if nothing writes to it once the loader is done: one that the loader makes, or, in a file
    /// at a fixed address, what is in the file.
    pub(crate) fn word(&self, place: u64) -> Option<u64> {
        let end = place.checked_add(8).filter(|_| self.lasts(place))?;
        let first = self
            .loaded
            .partition_point(|p| p.saturating_add(8) <= place);
        let mut all = self.loaded.get(first..)?.iter().take_while(|p| **p < end);
        match (all.next(), all.next()) {
            (None, _) if self.fixed() => self.input.u64_at(place),
            (Some(at), None) if *at == place => self.words.get(at).copied(),
            _ => None,
        }
    }

    /// Whether nobody writes to a word once the loader is done. Of what is protected then, the last page is not if that
    /// ends within it.
    pub(crate) fn lasts(&self, place: u64) -> bool {
        let Some(end) = place.checked_add(8) else {
            return false;
        };
        self.input.segments.iter().any(|s| {
            let lasts = match s.kind {
                PT_GNU_RELRO => s.end() & !(PAGE - 1),
                PT_LOAD if !s.is_writable() => s.end(),
                _ => return false,
            };
            s.addr <= place && end <= lasts
        })
    }

    /// Whether a moved function has tables of labels of its own, of which the old ones stay: addresses inside of it are
    /// labels, as where a jump continues in old code. That they are is shown where it is walked.
    pub(crate) fn has_labels<A: Arch>(&self, id: FuncId) -> bool {
        // Of x86-64 programs at a fixed address loads of labels need another displacement alone.
        let becomes_code = |t: &OwnTable| A::STEP > 1 || !t.wide;
        let is_of_labels = |t: &OwnTable| becomes_code(t) && t.is_of_labels();
        let f = self.function(id);
        f.is_some_and(|f| f.tables.iter().any(is_of_labels))
    }

    /// Where the dynamic loader writes into `[from, to)`, if it does. A relocation changes eight bytes at most in code
    /// and tables; one that copies an object changes more, in memory that has no bytes in the file.
    pub(crate) fn loads_into(&self, from: u64, to: u64) -> Option<u64> {
        let first = self.loaded.partition_point(|p| p.saturating_add(8) <= from);
        self.loaded.get(first).copied().filter(|p| *p < to)
    }

    /// Whether the program or the dynamic loader may write into `[from, to)`.
    pub(crate) fn may_be_written(&self, from: u64, to: u64) -> bool {
        let segments = self.input.loads().iter();
        let mut writable = segments.filter(|s| s.is_writable());
        writable.any(|s| s.addr < to && from < s.end()) || self.loads_into(from, to).is_some()
    }

    /// Fixed addresses: absolute addresses may be in code.
    pub(crate) fn fixed(&self) -> bool {
        self.input.etype == ET_EXEC
    }

    pub(crate) fn is_code(&self, addr: u64) -> bool {
        self.code_at(addr).is_some()
    }

    /// The range of code that an address is in.
    pub(crate) fn code_at(&self, addr: u64) -> Option<Range> {
        let next = self.code.partition_point(|r| r.start <= addr);
        let last = self.code.get(next.checked_sub(1)?).copied();
        last.filter(|r| addr < r.end)
    }

    pub(crate) fn is_abandoned(&self, addr: u64) -> bool {
        self.abandoned.iter().any(|r| r.contains(addr))
    }

    /// The moved function that ends at an address that is the address of nothing else.
    pub(crate) fn end_of(&self, addr: InputAddr) -> Option<FuncId> {
        let id = self.ends.get(&addr).copied();
        if let Some(id) = id {
            consulted::function(id);
        }
        id
    }

    /// Whether `addr` is in the input's unwind table, and the program tells the run-time of that table
    /// itself. Static programs of some toolchains have no search table: their start-up code forms the address
    /// of `.eh_frame` and registers it. Without kept relocations what is registered stays as it is; see
    /// [`crate::proof::headers`].
    pub(crate) fn is_registered(&self, addr: u64) -> bool {
        let table = &self.old_unwind;
        !self.bare
            && self.input.segment(PT_GNU_EH_FRAME).is_none()
            && self.new_unwind.addr != table.addr
            && addr
                .checked_sub(table.addr)
                .is_some_and(|offset| offset < table.bytes.len() as u64)
    }

    /// Whether an unwind entry begins at `addr`, of the input's that begin at `from`. `None`: one cannot be read, or is
    /// the end of a list.
    fn begins_entry(&self, from: u64, addr: u64) -> Option<bool> {
        let mut at = from;
        while at < addr {
            match self.input.u32_at(at) {
                None | Some(0 | u32::MAX) => return None,
                Some(length) => at += 4 + u64::from(length),
            }
        }
        Some(at == addr)
    }

    /// Whether `addr` is the beginning of the list of unwind entries that a static program's start-up code
    /// registers, while both files have program headers for all of their tables, and functions that tell the
    /// unwinder of them. Such a list may become empty: nothing is registered or taken back then, and what is
    /// found is found by the header, whose table is compared.
    pub(crate) fn may_be_empty_list(&self, addr: u64) -> bool {
        let headers = [self.input, self.output].map(|elf| elf.segment(PT_GNU_EH_FRAME));
        let table = &self.old_unwind;
        let Some(section) = self.input.section(b".eh_frame") else {
            return false;
        };
        if headers.contains(&None)
            || !self.is_static()
            || table.addr == self.new_unwind.addr
            || addr < section.addr
            || addr >= section.end()
        {
            return false;
        }
        if self.begins_entry(section.addr, addr) != Some(true) {
            return false;
        }
        let symbols: Vec<_> = self.input.symbols(SHT_SYMTAB).collect();
        let named = |name: &[u8]| {
            let defined = symbols.iter().filter(move |s| s.section != 0);
            defined
                .filter(|s| s.name == name)
                .map(|s| s.value)
                .collect::<Vec<u64>>()
        };
        let asks = [&b"_dl_find_object"[..], b"dl_iterate_phdr"];
        if asks.iter().all(|name| named(name).is_empty()) {
            return false;
        }
        // What code forms, or, where the linker has not kept that, what start-up code calls its list.
        let kept = self.input.sections.iter().filter(|s| {
            let about = self.input.sections.get(s.info as usize);
            s.is_kept_relocations() && about.is_some_and(|about| self.is_code(about.addr))
        });
        let mut lists: Vec<u64> = kept
            .flat_map(|s| self.input.relocation_records(s).chunks_exact(24))
            .filter_map(|entry| {
                let info = u64_in(entry, 8)?;
                let symbol = symbols.get((info >> 32) as usize)?;
                let about = self.input.sections.get(usize::from(symbol.section))?;
                let target = symbol.value.wrapping_add(u64_in(entry, 16)?);
                (symbol.section != 0 && about.name == b".eh_frame").then_some(target)
            })
            .collect();
        if lists.is_empty() {
            lists = named(b"__EH_FRAME_BEGIN__");
        }
        !lists.is_empty() && lists.iter().all(|list| *list == addr)
    }

    /// Whether `addr` is in the input's unwind table, while new code is in the space of old bodies. What
    /// start-up code registers is searched before what program headers tell of: it would find the entries of
    /// the old bodies for the new code. (The address of the table's very start may be the end of what is
    /// before it, unless the program is static and so holds the routine that registers.)
    pub(crate) fn hides_rooms(&self, addr: u64) -> bool {
        if self.reused.is_empty() {
            return false;
        }
        let table = &self.old_unwind;
        let least = u64::from(!self.is_static());
        addr >= table.addr + least
            && addr - table.addr < table.bytes.len() as u64
            && self.new_unwind.addr != table.addr
            && self
                .input
                .section(b".eh_frame")
                .is_some_and(|section| addr - table.addr < section.size)
            // Code that is passed a list reads entries from there on. Anything else is a number.
            && self.begins_entry(table.addr, addr) != Some(false)
    }

    /// Whether the input has a fixed address and no interpreter.
    pub(crate) fn is_static(&self) -> bool {
        self.fixed() && self.input.segment(PT_INTERP).is_none()
    }

    /// Whether code that forms `old` in the input and `new` in the output registers the output's whole unwind
    /// table. (The input may leave out the entries before `old`, those of objects that are linked first;
    /// finding more of them is harmless.)
    pub(crate) fn registers_anew(&self, old: InputAddr, new: OutputAddr) -> bool {
        self.is_registered(old.get()) && new.get() == self.new_unwind.addr
    }

    /// The moved function whose overwritten bytes an access of a few bytes at `addr` would read.
    pub(crate) fn overwritten(&self, addr: InputAddr) -> Option<FuncId> {
        [addr, addr.saturating_add(7)].into_iter().find_map(|a| {
            let id = self.old.owner(a)?;
            // Where the other function begins in which the access ends, if there are two.
            let len = self
                .function(id)?
                .old
                .iter()
                .find(|r| r.contains(a))
                .map_or(8, |r| r.end - addr)
                .min(8);
            let addr = addr.get();
            (self.input.bytes(addr, len) != self.output.bytes(addr, len)).then_some(id)
        })
    }

    /// New code that belongs to no function: recorders, routines, the start-up code of an instrumented program.
    pub(crate) fn unowned(&self, addr: OutputAddr) -> Option<&'a [u8]> {
        let counts = self.counts.as_ref()?;
        let whose = self.new.owner(addr);
        (whose.is_none() && counts.code.iter().any(|r| r.contains(addr.get())))
            .then(|| self.output.bytes_near(addr.get(), REACH))?
    }

    /// Whether at `new` is a start-up routine that asks for huge pages for new code, does nothing else, and continues
    /// at `old`, or returns if that is 0. It belongs to no function.
    fn asks_for_huge_pages(&self, old: InputAddr, new: OutputAddr) -> bool {
        let is_new_code = |start: u64, len: u64| {
            let end = start.checked_add(len);
            let segment = self
                .output
                .load_at(start)
                .filter(|s| s.is_exec() && !s.is_writable());
            let inside = segment.zip(end).is_some_and(|(s, end)| end <= s.end());
            inside && start >= self.input.extent().1
        };
        let asks = || (self.startup)(self.output.bytes_from(new.get())?, new.get());
        self.counts.is_none()
            && self.new.owner(new).is_none()
            && is_new_code(new.get(), 1)
            && asks().is_some_and(|asks| {
                asks.next.unwrap_or(0) == old.get()
                    && asks.start.is_multiple_of(HUGE_PAGE)
                    && asks.len.is_multiple_of(HUGE_PAGE)
                    && is_new_code(asks.start, asks.len)
            })
    }

    /// Whether other code is in the old body of a moved function.
    pub(crate) fn is_buried(&self, id: FuncId) -> bool {
        self.buried.get(id as usize) == Some(&true)
    }

    /// The moved function whose entry this is.
    pub(crate) fn entry_of(&self, addr: InputAddr) -> Option<FuncId> {
        let id = self.old.owner(addr)?;
        (self.function(id)?.old_entry == addr).then_some(id)
    }

    /// The moved function inside of which (not at whose entry) this address is.
    pub(crate) fn inside_of(&self, addr: InputAddr) -> Option<FuncId> {
        let id = self.old.owner(addr)?;
        (self.function(id)?.old_entry != addr).then_some(id)
    }

    /// Where control comes to that goes to `addr`, if veneers are there; each must lead where a veneer may.
    /// Only code outside of moved functions is taken for a veneer.
    pub(crate) fn behind_veneer<A: Arch>(&self, elf: &Elf<'_>, addr: u64) -> u64 {
        let mut at = addr;
        for _ in 0..4 {
            let near = |at| elf.bytes_near(at, REACH);
            let Some((target, len)) = near(at).and_then(|b| A::veneer(b, at)) else {
                break;
            };
            // A jump of one instruction is direct.
            if self.guarded && len > 4 && !near(target).is_some_and(A::lets_calls_in) {
                break;
            }
            at = target;
            let (old, new) = (InputAddr::new(at), OutputAddr::new(at));
            if self.old.owner(old).is_some() || self.new.owner(new).is_some() {
                break;
            }
        }
        at
    }

    /// Whether new code of a moved function is at an address of its own old body: what leads there leads to
    /// new code, though it is what it was.
    pub(crate) fn lies_in_itself(&self, addr: InputAddr) -> bool {
        self.pair_owner(addr, addr.kept()).is_some()
    }

    /// The moved function whose old and new entries these are. Of one that was folded into another the new entry is
    /// the other's: control may go there, but no pointer may lead there ([`Context::pair_owner`] says nothing of it),
    /// so that the two keep different addresses.
    pub(crate) fn entered_at(&self, old: InputAddr, new: OutputAddr) -> Option<FuncId> {
        let id = self.entry_of(old)?;
        (self.function(id)?.new_entry() == new).then_some(id)
    }

    /// The moved function for which (old, new) could be a pair: the one that has both addresses.
    pub(crate) fn pair_owner(&self, old: InputAddr, new: OutputAddr) -> Option<FuncId> {
        let id = self.new.owner(new)?;
        self.function(id)?.in_old(old).then_some(id)
    }
}

/// Executable sections of a file in ascending order, or its executable segments.
pub(crate) fn code_ranges(elf: &Elf<'_>) -> Vec<Range> {
    let mut ranges: Vec<Range> = elf
        .sections
        .iter()
        .filter(|s| s.is_code() && s.size > 0 && elf.bytes(s.addr, s.size).is_some())
        .map(|s| Range {
            start: s.addr,
            end: s.end(),
        })
        .collect();
    if ranges.is_empty() {
        let segments = elf
            .loads()
            .iter()
            .filter(|s| s.is_exec() && s.file_size > 0);
        ranges = segments
            .map(|s| Range {
                start: s.addr,
                end: s.file_end(),
            })
            .collect();
    }
    ranges.sort_unstable();
    ranges
}

/// What the parts of the proof find before the lock step: obligations, and facts about moved functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Pairs (old address, new address) that must hold.
    pub pairs: Vec<Pair>,
    /// Failures of the whole file.
    pub file: Vec<Failure>,
    /// Instructions of routines and recorders that were unwound from.
    pub routine_rows: u64,
    /// Failures charged to a function.
    pub functions: Vec<(FuncId, Failure)>,
    /// Function, and whether its new address (true) or its old one is known to the program.
    pub addresses: Vec<(FuncId, bool)>,
    /// Functions into whose old body something still leads.
    pub entrances: Vec<FuncId>,
    /// Pointers in data to the inside of a moved function, or to its end, that are what they were.
    pub inside: Vec<(FuncId, InputAddr)>,
    /// Pointers to labels that lead to new code: the function, and the label's old address.
    pub labels: Vec<(FuncId, InputAddr)>,
    /// Functions whose new code has a sequence that a processor gets wrong ([`crate::proof::erratum`]).
    pub erratum: Vec<FuncId>,
    /// Whether other new code has.
    pub erratum_elsewhere: bool,
    /// Functions with an indirect jump.
    pub dispatching: Vec<FuncId>,
    /// Functions whose old body branches into the bytes that the entry jump overwrote.
    pub interior_branches: Vec<FuncId>,
    /// What looks like code that stays and leads into the bytes that an entry jump overwrote: function,
    /// address, target.
    pub into_jumps: Vec<(FuncId, u64, u64)>,
    /// Four-byte differences in data: (address, old, new).
    pub words: Vec<(u64, u32, u32)>,
    /// Places that look like the start of a table of relative addresses, the moved function whose code names
    /// them, and whether it does so by a number, which may be no address.
    pub bases: Vec<(u64, Option<FuncId>, bool)>,
    /// Addresses of data that hold distances to code, and the instructions that form them.
    pub formed: Vec<(u64, u64)>,
    /// Jumps through tables with a base and a width of their own, and the moved function whose code has them.
    pub dispatches: Vec<(Dispatch, Option<FuncId>)>,
    pub retargeted: u64,
    pub pointers: u64,
    /// Functions whose pointers lead to new code.
    pub following: u64,
    /// What runs before the program does, in its place: old and new address.
    pub hooks: Vec<Pair>,
    /// What may be instructions of the input that use the segment of per-thread counters.
    pub uses_own: Vec<u64>,
    /// Instructions that register the new unwind table in place of the old one.
    pub registers: u64,
}

impl Findings {
    pub(crate) fn append(&mut self, mut other: Findings) {
        self.pairs.append(&mut other.pairs);
        self.file.append(&mut other.file);
        self.functions.append(&mut other.functions);
        self.addresses.append(&mut other.addresses);
        self.entrances.append(&mut other.entrances);
        self.inside.append(&mut other.inside);
        self.labels.append(&mut other.labels);
        self.erratum.append(&mut other.erratum);
        self.erratum_elsewhere |= other.erratum_elsewhere;
        self.dispatching.append(&mut other.dispatching);
        self.interior_branches.append(&mut other.interior_branches);
        self.into_jumps.append(&mut other.into_jumps);
        self.words.append(&mut other.words);
        self.bases.append(&mut other.bases);
        self.formed.append(&mut other.formed);
        self.dispatches.append(&mut other.dispatches);
        self.retargeted += other.retargeted;
        self.pointers += other.pointers;
        self.hooks.append(&mut other.hooks);
        self.uses_own.append(&mut other.uses_own);
        self.registers += other.registers;
    }

    /// Charges a failure to the function that has the new or the old address, or to the file.
    pub(crate) fn charge(
        &mut self,
        cx: &Context<'_>,
        old: InputAddr,
        new: OutputAddr,
        failure: Failure,
    ) {
        match cx.new.owner(new).or_else(|| cx.old.owner(old)) {
            Some(id) => self.functions.push((id, failure)),
            None => self.file.push(failure),
        }
    }

    /// In an instrumented program, or one that asks for huge pages, one pointer that is run through at the start
    /// leads to the start-up code, which continues with what it was.
    pub(crate) fn hook(&mut self, cx: &Context<'_>, old: InputAddr, new: OutputAddr) -> bool {
        let starts_up = || cx.unowned(new).is_some() || cx.asks_for_huge_pages(old, new);
        let hooks = old.kept() != new && starts_up();
        if hooks {
            self.hooks.push((old, new));
        }
        hooks
    }

    /// The same for the first pointer of the initialisers (`DT_INIT_ARRAY`).
    pub(crate) fn first_initialiser(
        &mut self,
        cx: &Context<'_>,
        place: u64,
        old: InputAddr,
        new: OutputAddr,
    ) -> bool {
        cx.input.dynamic_value(25) == Some(place)
            && !self.hooks.contains(&(old, new))
            && self.hook(cx, old, new)
    }

    /// A pointer to code was `old` and is `new`: an obligation, or, if it is unchanged, perhaps a way into an old body.
    /// `identity`: the pointer can be seen by the program and compared.
    pub(crate) fn pointer(
        &mut self,
        cx: &Context<'_>,
        old: InputAddr,
        new: OutputAddr,
        identity: bool,
    ) -> bool {
        if cx.bare && old.kept() != new {
            return false;
        }
        if old.kept() == new && !cx.lies_in_itself(old) {
            if let Some(id) = cx.old.owner(old) {
                match cx.entry_of(old) {
                    Some(id) if identity => self.addresses.push((id, false)),
                    Some(_) => {}
                    None => {
                        self.entrances.push(id);
                        self.inside.push((id, old));
                    }
                }
            } else if let Some(id) = cx.end_of(old) {
                self.inside.push((id, old));
            }
            return true;
        }
        let Some(id) = cx.pair_owner(old, new) else {
            return false;
        };
        self.pairs.push((old, new));
        if cx.entry_of(old) != Some(id) {
            self.labels.push((id, old));
        } else if identity {
            self.addresses.push((id, true));
        }
        true
    }
}

/// By number of a function in the first claim: its number in the second, if it is still there.
pub(crate) struct Numbers(Vec<Option<FuncId>>);

impl Numbers {
    /// `None`: the second claim has something that the first had not.
    pub(crate) fn new(before: &[Moved], now: &[Moved]) -> Option<Self> {
        let mut rest = (0..).zip(now).peekable();
        let numbers = before
            .iter()
            .map(|f| rest.next_if(|(_, g)| *g == f).map(|(id, _)| id))
            .collect();
        rest.next().is_none().then_some(Numbers(numbers))
    }

    /// The number now; `None` if the function is gone.
    pub(crate) fn of(&self, id: FuncId) -> Option<FuncId> {
        self.0.get(id as usize).copied().flatten()
    }
}

/// A list with functions' new numbers; false: one of them is gone.
pub(crate) fn renumber<'l>(
    list: impl IntoIterator<Item = &'l mut FuncId>,
    numbers: &Numbers,
) -> bool {
    list.into_iter().all(|id| match numbers.of(*id) {
        Some(now) => {
            *id = now;
            true
        }
        None => false,
    })
}

impl Findings {
    /// With functions' new numbers; false: one of them is gone.
    pub(crate) fn renumber(&mut self, numbers: &Numbers) -> bool {
        let Findings {
            pairs: _,
            file: _,
            routine_rows: _,
            functions,
            addresses,
            entrances,
            inside,
            labels,
            erratum,
            erratum_elsewhere: _,
            dispatching,
            interior_branches,
            into_jumps,
            words: _,
            bases,
            formed: _,
            dispatches,
            retargeted: _,
            pointers: _,
            following: _,
            hooks: _,
            uses_own: _,
            registers: _,
        } = self;
        let functions = functions.iter_mut().map(|f| &mut f.0);
        let addresses = addresses.iter_mut().map(|a| &mut a.0);
        let inside = inside.iter_mut().chain(labels).map(|i| &mut i.0);
        let jumps = into_jumps.iter_mut().map(|j| &mut j.0);
        let bases = bases.iter_mut().filter_map(|b| b.1.as_mut());
        let dispatches = dispatches.iter_mut().filter_map(|d| d.1.as_mut());
        let lists = [entrances, erratum, dispatching, interior_branches];
        let named = functions.chain(addresses).chain(inside).chain(jumps);
        let all = named.chain(bases).chain(dispatches);
        renumber(all.chain(lists.into_iter().flatten()), numbers)
    }
}

/// Pairs by the function that has the new address: in one list, as there are few of most of hundreds of thousands.
#[derive(Clone, Default)]
pub(crate) struct PairsByFunction {
    /// By function: where its pairs begin. One more at the end.
    first: Vec<usize>,
    /// Of each function ascending.
    pairs: Vec<Pair>,
}

impl PairsByFunction {
    /// Sorts the pairs, too.
    pub(crate) fn new(cx: &Context<'_>, pairs: &mut Vec<Pair>) -> Self {
        pairs.par_sort_unstable();
        pairs.dedup();
        let owners = postlink_parallel::map(pairs, |pair| cx.new.owner(pair.1));
        let mut first = vec![0; cx.functions.len() + 1];
        for id in owners.iter().flatten() {
            if let Some(count) = first.get_mut(*id as usize) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for count in &mut first {
            sum += std::mem::replace(count, sum);
        }
        let mut next = first.clone();
        let mut by_function = vec![Pair::default(); sum];
        for (pair, id) in pairs.iter().zip(&owners) {
            let Some(next) = id.and_then(|id| next.get_mut(id as usize)) else {
                continue;
            };
            if let Some(place) = by_function.get_mut(*next) {
                *place = *pair;
            }
            *next += 1;
        }
        PairsByFunction {
            first,
            pairs: by_function,
        }
    }

    /// A function's, ascending.
    pub(crate) fn of(&self, id: FuncId) -> &[Pair] {
        let bounds = self.first.get(id as usize..);
        let bounds = bounds.and_then(<[usize]>::first_chunk::<2>);
        bounds
            .and_then(|[from, to]| self.pairs.get(*from..*to))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_finds_what_a_search_finds() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for far in [4, 100, 1 << 20, 1 << 40] {
            let mut at = random(1 << 40);
            let ranges: Vec<(Range<InputAddr>, FuncId)> = (0..300)
                .map(|id| {
                    let start = at + random(far);
                    at = start + 1 + random(far.min(200));
                    (Range { start, end: at }.of(), id)
                })
                .collect();
            let index = Index::new(ranges.clone());
            for (range, _) in &ranges {
                for addr in [range.start, range.end] {
                    for addr in [addr.get() - 1, addr.get(), addr.get() + 1 + random(far)] {
                        let addr = InputAddr::new(addr);
                        let owner = ranges.iter().find(|r| r.0.contains(addr));
                        assert_eq!(index.owner(addr), owner.map(|r| r.1));
                        let next = ranges.iter().find(|r| r.0.start > addr);
                        let next = next.map_or(InputAddr::new(u64::MAX), |r| r.0.start);
                        let until = owner.map_or(next, |r| r.0.end);
                        assert_eq!(index.owner_from(addr), (owner.map(|r| r.1), until));
                    }
                }
            }
        }
    }

    #[test]
    fn the_index_finds_owners_at_both_ends_and_nobody_between() {
        let r = |start, end| Range { start, end }.of::<InputAddr>();
        let index = Index::new(vec![(r(0x2000, 0x2001), 1), (r(0x1000, 0x1010), 0)]);
        assert_eq!(index.owner(InputAddr::new(0xfff)), None);
        assert_eq!(index.owner(InputAddr::new(0x1000)), Some(0));
        assert_eq!(index.owner(InputAddr::new(0x100f)), Some(0));
        assert_eq!(index.owner(InputAddr::new(0x1010)), None);
        assert_eq!(index.owner(InputAddr::new(0x2000)), Some(1));
        assert_eq!(index.owner(InputAddr::new(0x2001)), None);
        assert_eq!(index.owner(InputAddr::new(u64::MAX)), None);
        assert_eq!(
            Index::<OutputAddr>::new(Vec::new()).owner(OutputAddr::new(0)),
            None
        );
    }
}
