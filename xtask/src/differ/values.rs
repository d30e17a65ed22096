//! Why two values differ: the classes, and the rules by which a pair of values falls into one.
//!
//! A rule needs both values. The new one must be what the old one became, so `entry of f` against
//! `entry of g` is not explained by both being entries. Rules that know no more than a distance (what a jump
//! table's entry left in a register) come last.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;

use super::places::{Image, Meaning, Module, Place};
use super::regions::{Regions, What};

/// A kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The address after a call in new code.
    Return,
    /// The same with a pointer authentication code in its upper bits.
    SignedReturn,
    /// The new entry of a moved function; whether its low four bits are the old one's.
    Entry {
        /// Bits 0 to 3 as in the input.
        low_bits_kept: bool,
    },
    /// A label: computed goto, jump tables, landing pads.
    Label,
    /// A pointer to a function after an exclusive-or, in a register: compared with a number for equality.
    Compared,
    /// Where a part of a function begins or ends, by its unwind entry: code outside has looked that up.
    Bounds,
    /// An address in the same moved function, of which no more is known.
    Inside,
    /// An address of code that libc has mixed with its pointer guard.
    Mangled,
    /// Upper bytes of an address, of code or of what the allocator gave, left under a shorter value: padding, mostly
    /// of a `long double`, or a register of which a part was written.
    Remains,
    /// The page of an address of code that an instruction has still to complete.
    Page,
    /// The distance that a jump table's entry says.
    TableEntry,
    /// Constants that are others in the output: jump tables, read by who reads over the end of what is before them.
    Constants,
    /// A section that was moved, at the same offset.
    MovedSection,
    /// Something that both runs have, at another address.
    Shifted,
    /// What counts in front of a function, where pointers to the function lead there.
    Stub {
        /// Bits 0 to 3 as in the input.
        low_bits_kept: bool,
    },
    /// An inserted routine that leads to the function: start-up routine, recorder, veneer.
    Detour,
    /// Numbers by which the system knows a process.
    Process,
    /// The program headers: where, how many.
    Headers,
    /// What the system says of the process's mappings (`/proc/self/maps`): the output has more of them.
    Mappings,
    /// No address of the module, in a register of a program with several threads: it may depend on the others.
    Threads,
    /// A register that veneers or recorders may use, where none is carried.
    Scratch,
    /// A register that no convention carries, as code outside the module (or the unwinder) left it.
    LeftOutside,
    /// What is behind a string, of which a function that looks for its end has loaded more.
    BehindString,
    /// A counter was written.
    Counter,
    /// Inserted routines (start-up, recorders) wrote to memory of their own.
    Routine,
    /// Inserted code wrote below the stack pointer.
    BelowStack,
    /// The program reads stack that it has not written since inserted code, or code outside the module, used it:
    /// padding of structures, mostly.
    Uninitialised,
    /// Inserted code wrote where the program can see it.
    Intruder,
    /// Two new addresses for one old one, or the other way round.
    Contradiction,
    /// The program read code, at different addresses.
    ReadsCode {
        /// And found the same there.
        same: bool,
    },
    /// None of these.
    Unknown,
}

impl Class {
    /// Whether the difference is meant to be there.
    pub fn is_explained(self) -> bool {
        !matches!(
            self,
            Class::Unknown
                | Class::Inside
                | Class::Contradiction
                | Class::Intruder
                | Class::ReadsCode { same: false }
        )
    }

    /// Whether it is an address of code, and which is known.
    fn is_known_code(self) -> bool {
        self.is_visible() && self.is_explained()
    }

    /// Whether it is an address of code that the program can see and calculate with.
    pub fn is_visible(self) -> bool {
        matches!(
            self,
            Class::Return
                | Class::SignedReturn
                | Class::Entry { .. }
                | Class::Stub { .. }
                | Class::Label
                | Class::Bounds
                | Class::Compared
                | Class::Remains
                | Class::Page
                | Class::ReadsCode { .. }
                | Class::Inside
                | Class::Mangled
        )
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Return => "return address that new code passes",
            Class::SignedReturn => "the same, signed",
            Class::Entry {
                low_bits_kept: true,
            } => "pointer to a moved function's new entry, low 4 bits kept",
            Class::Entry {
                low_bits_kept: false,
            } => "pointer to a moved function's new entry, low 4 bits CHANGED",
            Class::Label => "label (jump table, computed goto, landing pad)",
            Class::Compared => "pointer to a function, compared with an odd number (exclusive or)",
            Class::Bounds => "bounds of a function, by its unwind entry",
            Class::Inside => "ADDRESS INSIDE A MOVED FUNCTION, PLACE NOT KNOWN",
            Class::Mangled => "address of code after the pointer guard",
            Class::Remains => "upper bytes of an address, above a shorter value",
            Class::Page => "page of an address of code (adrp)",
            Class::TableEntry => "distance from a jump table",
            Class::Constants => "constants that the output has changed (jump tables)",
            Class::MovedSection => "section that was moved",
            Class::Shifted => "loaded or mapped at another address",
            Class::Stub {
                low_bits_kept: true,
            } => "pointer to what counts in front of a function, low 4 bits kept",
            Class::Stub {
                low_bits_kept: false,
            } => "pointer to what counts in front of a function, low 4 bits CHANGED",
            Class::Detour => "inserted routine in place of a function",
            Class::Process => "process number",
            Class::Headers => "program headers",
            Class::Mappings => "list of the process's mappings",
            Class::Threads => "number in a program with threads",
            Class::Scratch => "register of veneers and recorders",
            Class::LeftOutside => "scratch register left by code outside the module",
            Class::BehindString => "memory behind a string, loaded with its end",
            Class::Counter => "counter",
            Class::Routine => "memory of inserted routines",
            Class::BelowStack => "inserted code below the stack pointer",
            Class::Uninitialised => {
                "uninitialised stack that inserted code or code outside has used"
            }
            Class::Intruder => "INSERTED CODE WRITES TO THE PROGRAM'S MEMORY",
            Class::Contradiction => "TWO PLACES FOR ONE",
            Class::ReadsCode { same: true } => {
                "the program reads code at a new address, where it is the same"
            }
            Class::ReadsCode { same: false } => {
                "THE PROGRAM READS CODE AT A NEW ADDRESS, WHERE IT IS ANOTHER"
            }
            Class::Unknown => "NOT EXPLAINED",
        })
    }
}

/// What is known of both runs that values can be compared by.
#[derive(Debug, Default)]
pub struct Values {
    /// The module.
    pub module: Module,
    /// Memory.
    pub regions: Regions,
    /// Run-time minus link-time address of the module, in the first run and the second, once it is loaded.
    pub bases: Option<(u64, u64)>,
    /// libc's pointer guard of both runs; it follows from the random bytes that the system gives.
    pub guards: (u64, u64),
    /// Pairs that are known to mean the same without being addresses.
    pub numbers: HashSet<(u64, u64)>,
    /// Functions of the first run, and inserted routines by which the second came to them.
    pub detours: HashSet<(u64, u64)>,
    /// Return addresses of calls that a stub makes in place of the instructions that a jump at an entry overwrote.
    pub stub_returns: HashSet<(u64, u64)>,
    /// Pairs of pointers to functions that were there.
    pointers: HashSet<(u64, u64)>,
    /// Counters in front of functions, and of which.
    stubs: HashMap<u64, u64>,
    /// Bounds of functions that code outside has given back.
    pub bounds: HashSet<(u64, u64)>,
    /// How long lists of the process's mappings were.
    pub lengths: HashSet<(u64, u64)>,
    /// The same of program headers.
    pub headers: HashSet<(u64, u64)>,
    /// The program headers of both runs: start, end.
    pub tables: ((u64, u64), (u64, u64)),
    /// AArch64, or else x86-64.
    pub aarch64: bool,
    /// Pairs that were addresses of code, or of what the allocator gave, less their lowest byte or two, whole and of
    /// the lower halves: (bytes less, old, new).
    uppers: HashSet<(u32, u64, u64)>,
    /// The same of what code outside left in scratch registers.
    left: HashSet<(u32, u64, u64)>,
    /// Targets of the last indirect jumps.
    last_jumps: VecDeque<(u64, u64)>,
    /// How far the targets of the last indirect jumps moved.
    deltas: VecDeque<u64>,
    /// All of them, for what was left long ago.
    all_deltas: BTreeSet<u64>,
}

/// What can be left of an address: lowest bits that are others, and bits that are kept at all.
const REMAINS: [(u32, u64); 4] = [
    (8, u64::MAX),
    (8, 0xffff_ffff),
    (16, u64::MAX),
    (16, 0xffff_ffff),
];

/// A register can hold what so many jumps ago was left there.
const JUMPS: usize = 16;

/// So many distances of jumps are kept: few enough that an unrelated difference hardly ever is one of them.
const DELTAS: usize = 4096;

impl Values {
    /// Link-time addresses of a pair of run-time ones.
    pub fn link(&self, old: u64, new: u64) -> Option<(u64, u64)> {
        let (a, b) = self.bases?;
        Some((old.wrapping_sub(a), new.wrapping_sub(b)))
    }

    /// Both runs came to these places by an indirect jump.
    pub fn jumped(&mut self, old: u64, new: u64, by_jump: bool) {
        if by_jump {
            if self.last_jumps.len() >= JUMPS {
                self.last_jumps.pop_front();
            }
            self.last_jumps.push_back((old, new));
        }
        let delta = new.wrapping_sub(old);
        if delta != 0 && self.all_deltas.insert(delta) {
            self.deltas.push_back(delta);
            if self.deltas.len() > DELTAS
                && let Some(oldest) = self.deltas.pop_front()
            {
                self.all_deltas.remove(&oldest);
            }
        }
    }

    /// Whether it is the same place in memory, of the module or not.
    pub fn same_place(&self, old: u64, new: u64) -> bool {
        if let Some((o, n)) = self.link(old, new)
            && self.module.old.section(o).is_some()
        {
            return o == n;
        }
        match self.regions.translate(old) {
            Some((_, there)) => there == new,
            None => old == new,
        }
    }

    /// Whether a value is an address in the module.
    pub fn is_of_module(&self, value: u64, second: bool) -> bool {
        self.bases.is_some_and(|(a, b)| {
            let (base, image) = if second {
                (b, &self.module.new)
            } else {
                (a, &self.module.old)
            };
            (image.low..image.high).contains(&value.wrapping_sub(base))
        })
    }

    /// Whether both are in code, at different places of it.
    pub fn is_code(&self, old: u64, new: u64) -> bool {
        let Some((a, b)) = self.link(old, new) else {
            return false;
        };
        a != b
            && self
                .module
                .old
                .section(a)
                .is_some_and(|section| section.code)
            && self
                .module
                .new
                .section(b)
                .is_some_and(|section| section.code)
    }

    /// Whether both are the same place of a section that was moved.
    pub fn is_moved_section(&self, old: u64, new: u64) -> bool {
        self.address(old, new) == Class::MovedSection
    }

    /// Whether an address of the first run is in the header of the module's file.
    pub fn is_file_header(&self, old: u64) -> bool {
        const SIZE: u64 = 64;
        self.bases.is_some_and(|(base, _)| {
            let start = base.wrapping_add(self.module.old.low);
            old.wrapping_sub(start) < SIZE
        })
    }

    /// Whether both files have these values as constants at an address.
    pub fn are_constants(&self, address: (u64, u64), old: u64, new: u64, size: u8) -> bool {
        let module = &self.module;
        self.link(address.0, address.1).is_some_and(|(o, n)| {
            module.old.constant(o, size) == Some(old) && module.new.constant(n, size) == Some(new)
        })
    }

    /// Whether both are a pointer to one function, which was there before, after an exclusive-or with one odd
    /// number. Compilers compare pointers to member functions so: an odd one stands for a virtual function, the
    /// number is its place in the table.
    pub fn is_compared(&self, old: u64, new: u64) -> bool {
        const LARGEST: u64 = 0xff;
        (1..=LARGEST)
            .step_by(2)
            .any(|number| self.pointers.contains(&(old ^ number, new ^ number)))
    }

    /// Whether both are one value, but for the bits of a jump's targets that were or-ed to it above its
    /// lowest byte: compilers calculate with the lowest bytes of registers, whatever is above.
    fn is_blend(&self, old: u64, new: u64) -> bool {
        let upper = |value: u64| value & 0xffff_ff00;
        let Some((a, b)) = self.bases else {
            return false;
        };
        let is_it = |(from, to): &(u64, u64)| {
            let (from, to) = (upper(from.wrapping_add(a)), upper(to.wrapping_add(b)));
            let common = (upper(old) & !from) | (upper(new) & !to);
            common | from == upper(old) && common | to == upper(new)
        };
        old >> 32 == new >> 32 && old & 0xff == new & 0xff && self.last_jumps.iter().any(is_it)
    }

    /// Remembers what code outside left in a scratch register.
    pub fn left(&mut self, old: u64, new: u64) {
        for (low, mask) in REMAINS {
            let upper = |value: u64| (value & mask) >> low;
            // Where what is left is the same, it explains nothing: any two small numbers have nothing above.
            if upper(old) != upper(new) {
                self.left.insert((low, upper(old), upper(new)));
            }
        }
    }

    /// Whether it is that, but for a part of the register that was written since.
    pub fn is_left(&self, old: u64, new: u64) -> bool {
        REMAINS
            .iter()
            .any(|(low, _)| self.left.contains(&(*low, old >> low, new >> low)))
    }

    /// The class of a pair of values that differ, of so many bytes.
    pub fn explain(&mut self, old: u64, new: u64, size: u8) -> Class {
        let class = self.address(old, new);
        if matches!(class, Class::Entry { .. }) {
            self.pointers.insert((old, new));
        }
        let is_heap = || matches!(self.regions.same(old, new), Some(What::Heap));
        let is_code = class.is_visible() && class.is_explained();
        if (is_code || class == Class::Shifted && is_heap()) && size == 8 {
            for (low, mask) in REMAINS {
                let upper = |value: u64| (value & mask) >> low;
                self.uppers.insert((low, upper(old), upper(new)));
            }
        }
        match class {
            Class::Unknown | Class::Inside if self.bounds.contains(&(old, new)) => {
                return Class::Bounds;
            }
            Class::Unknown | Class::Inside if self.is_remains(old, new) => return Class::Remains,
            Class::Unknown => (),
            _ => return class,
        }
        if self.is_stub(old, new) {
            for (low, mask) in REMAINS {
                let upper = |value: u64| (value & mask) >> low;
                self.uppers.insert((low, upper(old), upper(new)));
            }
            self.pointers.insert((old, new));
            return Class::Stub {
                low_bits_kept: old & 15 == new & 15,
            };
        }
        if self.stub_returns.contains(&(old, new)) {
            return Class::Return;
        }
        if self.detours.contains(&(old, new)) {
            return Class::Detour;
        }
        if self.numbers.contains(&(old, new)) {
            return Class::Process;
        }
        if self.lengths.contains(&(old, new)) {
            return Class::Mappings;
        }
        let within = |table: (u64, u64), value| (table.0..=table.1).contains(&value);
        if self.headers.contains(&(old, new))
            || within(self.tables.0, old) && within(self.tables.1, new)
            || self.link(old, new).is_some_and(|(o, n)| {
                let (from, to) = (&self.module.old, &self.module.new);
                let in_table = |image: &Image, at: u64| {
                    let (start, bytes) = image.table;
                    bytes > 0 && at.wrapping_sub(start) <= bytes
                };
                // Where segments are, by the headers, or which header it is.
                from.segments.contains(&o) && to.segments.contains(&n)
                    || in_table(from, o) && in_table(to, n)
            })
        {
            return Class::Headers;
        }
        if size == 8 {
            let (o, n) = self.guards;
            if self.aarch64 {
                // Bits 48 and up hold the authentication code; bit 55 tells the halves of the address space apart.
                let strip = |value: u64| value & 0xffff_ffff_ffff;
                if (strip(old), strip(new)) != (old, new)
                    && strip(old) != strip(new)
                    && self.address(strip(old), strip(new)).is_known_code()
                {
                    return Class::SignedReturn;
                }
                if self.is_code_address(old ^ o, new ^ n) {
                    return Class::Mangled;
                }
            } else {
                let (old, new) = (old.rotate_right(17) ^ o, new.rotate_right(17) ^ n);
                if old != new && self.is_code_address(old, new) {
                    return Class::Mangled;
                }
            }
        }
        if self.is_blend(old, new) {
            return Class::Remains;
        }
        if size == 8 && self.regions.is_less_block(old, new) {
            return Class::Shifted;
        }
        // A distance is sign-extended or not, and on AArch64 may count instructions.
        let delta = new.wrapping_sub(old);
        let has = |delta: u64| self.all_deltas.contains(&delta);
        let narrow = delta as u32 as i32 as i64 as u64;
        if has(delta) || (old >> 32 == new >> 32 && has(narrow)) {
            return Class::TableEntry;
        }
        if self.aarch64 && (has(delta << 2) || (old >> 32 == new >> 32 && has(narrow << 2))) {
            return Class::TableEntry;
        }
        Class::Unknown
    }

    /// Whether both are an address of code but for the lowest bytes, which are others, and perhaps the upper half.
    fn is_remains(&self, old: u64, new: u64) -> bool {
        REMAINS.iter().any(|(low, _)| {
            let lower = |value: u64| value & ((1 << low) - 1);
            lower(old) == lower(new) && self.uppers.contains(&(*low, old >> low, new >> low))
        })
    }

    /// Whether the new one is, where nothing moved, what counts in front of the function at the old one. The
    /// first pair is believed, and must hold ever after.
    pub fn is_stub(&mut self, old: u64, new: u64) -> bool {
        let Some((o, n)) = self.link(old, new) else {
            return false;
        };
        let module = &self.module;
        let is_start = module.old.function(o).is_some_and(|(start, _)| start == o)
            || module.old.starts.contains(&o);
        // The padding in front of a function may have space for it.
        const FRONT: u64 = 64;
        let is_front = n < o && o - n <= FRONT && !module.old.is_covered(n);
        module.functions.is_empty()
            && is_start
            && (module.place(n) == Place::Inserted || is_front)
            && *self.stubs.entry(n).or_insert(o) == o
    }

    /// Whether the difference of two values that a register held before a routine is intended: after
    /// a routine that was put in, a register may hold that routine's address, and of a pointer the upper bytes.
    pub fn is_known(&self, old: u64, new: u64) -> bool {
        let pair = (old, new);
        self.detours.contains(&pair)
            || self.pointers.contains(&pair)
            || self.is_remains(old, new)
            || self.address(old, new).is_known_code()
    }

    /// Whether both are the same address of code: of a function, a label, what counts in front of a function.
    fn is_code_address(&mut self, old: u64, new: u64) -> bool {
        self.address(old, new).is_known_code() || self.is_stub(old, new)
    }

    /// Whether both are return addresses, the new one of a call in a stub, where nothing moved.
    pub fn is_return_to_stub(&self, old: u64, new: u64) -> bool {
        let module = &self.module;
        module.functions.is_empty()
            && self.link(old, new).is_some_and(|(o, n)| {
                module.old.is_behind_call(o, self.aarch64)
                    && module.place(n) == Place::Inserted
                    && module.new.is_behind_call(n, self.aarch64)
                    && !module.new.is_behind_note(n)
            })
    }

    fn address(&self, old: u64, new: u64) -> Class {
        if let Some((o, n)) = self.link(old, new) {
            let module = &self.module;
            let inside = (module.old.low..=module.old.high).contains(&o);
            if inside && (module.new.low..=module.new.high).contains(&n) {
                let class = self.of_module(o, n);
                if class != Class::Unknown {
                    return class;
                }
            }
        }
        match self.regions.same(old, new) {
            Some(_) if old != new => Class::Shifted,
            _ => Class::Unknown,
        }
    }

    /// Of a pair of link-time addresses in the module.
    fn of_module(&self, o: u64, n: u64) -> Class {
        let module = &self.module;
        match module.meaning(o, n) {
            Some(Meaning::Return) => return Class::Return,
            Some(Meaning::Label) => return Class::Label,
            Some(Meaning::Entry) => {
                return Class::Entry {
                    low_bits_kept: o & 15 == n & 15,
                };
            }
            None => (),
        }
        match module.place(n) {
            // Who looks up a return address takes one off, to be inside the call.
            Place::Moved(_) if module.meaning(o + 1, n + 1) == Some(Meaning::Return) => {
                return Class::Return;
            }
            // Of a call in what is not looked into, on the stack since.
            Place::Moved(_)
                if module.same_function(o, n)
                    && module.old.is_behind_call(o, self.aarch64)
                    && module.new.is_behind_call(n, self.aarch64) =>
            {
                return Class::Return;
            }
            Place::Moved(_) if module.same_function(o, n) => return Class::Inside,
            _ if self.aarch64 && module.is_page(o, n) => return Class::Page,
            Place::Moved(_) | Place::Inserted => return Class::Unknown,
            Place::Old if o == n => return Class::Shifted,
            Place::Old | Place::Added | Place::Outside => (),
        }
        // What moved as a whole keeps its name, or gives it to what replaces it.
        let (Some(from), Some(to)) = (module.old.section(o), module.new.section(n)) else {
            return Class::Unknown;
        };
        let name = from.name.trim_end_matches(".old");
        let same = !from.code && to.name.trim_end_matches(".old") == name;
        match name {
            // Grows and is sorted anew, so that the offsets differ.
            ".eh_frame" | ".eh_frame_hdr" | ".gcc_except_table" if same => Class::MovedSection,
            ".gcc_except_table" if to.name == ".gcc_except_table.hot" => Class::MovedSection,
            _ if same && o - from.start == n - to.start => Class::MovedSection,
            _ => Class::Unknown,
        }
    }

    /// What a value of one of the runs is, in words.
    pub fn describe(&self, value: u64, second: bool) -> String {
        let module = &self.module;
        let image = if second { &module.new } else { &module.old };
        if let Some((a, b)) = self.bases {
            let link = value.wrapping_sub(if second { b } else { a });
            if (image.low..image.high).contains(&link) {
                let name = if second {
                    module.new_name(link)
                } else {
                    module.old.name(link)
                };
                return name;
            }
        }
        match self.regions.what(value, second) {
            Some((What::Stack, _)) => "stack".to_owned(),
            Some((what, offset)) => format!("{what}+{offset:#x}"),
            None => "unknown".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::module;
    use super::*;

    fn values() -> Values {
        let mut values = Values {
            module: module(false),
            bases: Some((0x10_0000, 0x20_0000)),
            guards: (0x1234_5678_9abc_def0, 0x1234_5678_9abc_def0),
            ..Values::default()
        };
        values.regions.add_mapping(0x4000_0000, 0x4000_8000, 0x1000);
        values
    }

    #[test]
    fn a_pair_is_explained_by_what_both_are() {
        let mut values = values();
        let class = |v: &mut Values, old, new| v.explain(old, new, 8);
        let entry = class(&mut values, 0x10_1000, 0x20_3000);
        assert_eq!(
            entry,
            Class::Entry {
                low_bits_kept: true
            }
        );
        // The entry of another function.
        assert_eq!(class(&mut values, 0x10_1100, 0x20_3000), Class::Unknown);
        assert_eq!(class(&mut values, 0x10_1040, 0x20_3020), Class::Label);
        assert_eq!(class(&mut values, 0x10_1050, 0x20_3030), Class::Inside);
        assert!(values.module.learn(0x1050, 0x3030, Meaning::Return));
        assert_eq!(class(&mut values, 0x10_1050, 0x20_3030), Class::Return);
        assert_eq!(class(&mut values, 0x10_104f, 0x20_302f), Class::Return);
        assert_eq!(class(&mut values, 0x10_2010, 0x20_2010), Class::Shifted);
        assert_eq!(class(&mut values, 0x10_2010, 0x20_2018), Class::Unknown);
        assert_eq!(class(&mut values, 0x4000_0010, 0x4000_8010), Class::Shifted);
        assert_eq!(class(&mut values, 5, 6), Class::Unknown);
    }

    #[test]
    fn what_libc_mangles_is_seen_through() {
        let mut values = values();
        let mangle = |value: u64| (value ^ values.guards.0).rotate_left(17);
        let (old, new) = (mangle(0x10_1000), mangle(0x20_3000));
        assert_eq!(values.explain(old, new, 8), Class::Mangled);
        assert_eq!(values.explain(old, new ^ 1 << 20, 8), Class::Unknown);
        values.aarch64 = true;
        let mangle = |value: u64| value ^ values.guards.0;
        let (old, new) = (mangle(0x10_1000), mangle(0x20_3000));
        assert_eq!(values.explain(old, new, 8), Class::Mangled);
    }

    #[test]
    fn a_signed_return_address_is_one_without_its_upper_bits() {
        let mut values = values();
        values.aarch64 = true;
        let (old, new) = (0x0012_0000_0010_1040, 0x0077_0000_0020_3020);
        assert_eq!(values.explain(old, new, 8), Class::SignedReturn);
    }

    #[test]
    fn a_distance_is_explained_by_a_jump_over_it_alone() {
        let mut values = values();
        assert_eq!(values.explain(0x40, 0x2020, 4), Class::Unknown);
        values.jumped(0x10_1040, 0x10_3020, true);
        assert_eq!(values.explain(0x40, 0x2020, 4), Class::TableEntry);
        assert_eq!(values.explain(0xffff_f040, 0x1020, 4), Class::TableEntry);
        assert_eq!(values.explain(0x40, 0x2021, 4), Class::Unknown);
    }

    #[test]
    fn a_jumps_target_may_be_mixed_with_a_value_above_its_lowest_byte() {
        let mut values = values();
        values.jumped(0x1040, 0x3020, true);
        let mix = |target: u64| (0x294_de00 | target) & !0xff | 1;
        assert!(values.is_blend(mix(0x10_1040), mix(0x20_3020)));
        assert!(!values.is_blend(mix(0x10_1040), mix(0x20_4020)));
        assert!(!values.is_blend(mix(0x10_1040), mix(0x20_3020) + 1));
    }

    #[test]
    fn upper_bytes_of_an_address_that_was_there_are_remains() {
        let mut values = values();
        assert_eq!(values.explain(0x10_4001, 0x20_4001, 8), Class::Unknown);
        assert!(values.explain(0x10_1000, 0x20_3000, 8).is_visible());
        assert_eq!(values.explain(0x10_4001, 0x20_4001, 8), Class::Remains);
        assert!(values.is_known(0x10_4001, 0x20_4001) && !values.is_known(0x10_4001, 0x20_4002));
        assert_eq!(values.explain(0x10_4001, 0x20_4002, 8), Class::Unknown);
    }

    #[test]
    fn upper_bytes_of_what_the_allocator_gave_are_remains() {
        let mut values = values();
        values.regions.add_allocation(0x5a_0000, 0x59_c400, 0x40);
        assert_eq!(values.explain(0x5a_0001, 0x59_c401, 8), Class::Shifted);
        assert_eq!(values.explain(0x5a_00ff, 0x59_c4ff, 8), Class::Remains);
        assert_eq!(values.explain(0x5a_00ff, 0x59_c4fe, 8), Class::Unknown);
        assert_eq!(values.explain(0x5a_01ff, 0x59_c5ff, 8), Class::Unknown);
    }

    /// Compilers keep such a number in a register for a loop, in `std::sort`'s.
    #[test]
    fn a_number_less_the_address_of_a_block_differs_by_as_much_as_the_address() {
        let mut values = values();
        let less = |number: u64, block: u64| number.wrapping_sub(block);
        let pair = (less(8, 0x5a_0000), less(8, 0x59_c750));
        assert_eq!(values.explain(pair.0, pair.1, 8), Class::Unknown);
        values.regions.add_allocation(0x5a_0000, 0x59_c750, 0x40);
        assert_eq!(values.explain(pair.0, pair.1, 8), Class::Shifted);
        assert_eq!(values.explain(pair.0, pair.1 + 1, 8), Class::Unknown);
        assert_eq!(values.explain(pair.1, pair.0, 8), Class::Unknown);
    }

    /// Of pointers to virtual functions, which are odd, compilers take equality that way.
    #[test]
    fn a_pointer_is_compared_by_an_exclusive_or_with_an_odd_number() {
        let mut values = values();
        assert!(!values.is_compared(0x10_1019, 0x20_3019));
        values.explain(0x10_1000, 0x20_3000, 8);
        assert!(values.is_compared(0x10_1019, 0x20_3019));
        // An even number, another number in each run, too large a one, another function.
        assert!(!values.is_compared(0x10_1018, 0x20_3018));
        assert!(!values.is_compared(0x10_1019, 0x20_3011));
        assert!(!values.is_compared(0x10_1101, 0x20_3101));
        assert!(!values.is_compared(0x10_1119, 0x20_3019));
    }

    #[test]
    fn an_address_in_the_table_of_headers_is_one_in_the_other_table() {
        let mut values = values();
        (values.module.old.table, values.module.new.table) = ((0x1040, 0x70), (0x1040, 0xa8));
        assert_eq!(values.explain(0x10_10b0, 0x20_10e8, 8), Class::Headers);
        assert_eq!(values.explain(0x10_10b8, 0x20_10e8, 8), Class::Unknown);
    }

    #[test]
    fn exception_tables_of_functions_that_moved_are_in_a_section_of_their_own() {
        let mut values = values();
        let section = |start, name: &str| super::super::places::Section {
            start,
            end: start + 0x100,
            name: name.to_owned(),
            code: false,
        };
        values.module.old.sections[1] = section(0x2000, ".gcc_except_table");
        values
            .module
            .new
            .sections
            .push(section(0x5000, ".gcc_except_table.hot"));
        values.module.new.sections.push(section(0x5100, ".rodata"));
        values.module.new.high = 0x5200;
        assert!(values.is_moved_section(0x10_2010, 0x20_5030));
        assert!(!values.is_moved_section(0x10_2010, 0x20_5130));
    }

    /// Its return address may be where the program's call has its own, further down in the stub.
    #[test]
    fn a_call_of_the_routine_that_notes_first_calls_is_none_of_the_program() {
        let mut values = values();
        values.module = Module::new(
            values.module.old.clone(),
            values.module.new.clone(),
            vec![],
            true,
        );
        let call = |distance: i32| {
            let mut code = vec![0x90; 0x40];
            code[0x10] = 0xe8;
            code[0x11..0x15].copy_from_slice(&distance.to_le_bytes());
            code
        };
        values.module.old.code = vec![(0x1000, call(0x100))];
        let slow = values.module.new.sections.len() - 1;
        let section = &mut values.module.new.sections[slow];
        (section.start, section.end, section.name) = (0x3300, 0x3400, ".text.slow".to_owned());
        values.module.new.code = vec![(0x3000, call(0x100))];
        assert!(values.is_return_to_stub(0x10_1015, 0x20_3015));
        assert!(!values.is_return_to_stub(0x10_1016, 0x20_3015));
        values.module.new.code = vec![(0x3000, call(0x3300 - 0x3015))];
        assert!(!values.is_return_to_stub(0x10_1015, 0x20_3015));
    }

    #[test]
    fn what_is_not_explained_is_a_failure() {
        assert!(!Class::Unknown.is_explained());
        assert!(!Class::Intruder.is_explained());
        assert!(Class::Return.is_explained() && Class::Return.is_visible());
        assert!(Class::Counter.is_explained() && !Class::Counter.is_visible());
    }
}
