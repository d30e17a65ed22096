//! References: every place of the file that is known to hold an address of code.
//!
//! Three sources are merged here. Relocations that the linker kept say where addresses were written at link
//! time; dynamic relocations say which words the loader will fill; the words of `.got` in a file at a fixed
//! address have neither and are recognised by value. Each list is sorted, so that a function finds what
//! concerns it by binary search. Fields *inside instructions* are not listed (the decoder sees them), but for
//! absolute ones, which look like plain numbers to it.

use postlink_elf::FormatError;
use postlink_elf::elf::{Elf, Section, Segment, SymbolTable};
use postlink_elf::raw::{self, PF_W, PF_X, PT_GNU_RELRO, PT_LOAD};
use postlink_isa::FixupKind;
use rayon::prelude::*;
use serde::Serialize;

use super::directory::Directory;
use super::file::EM_AARCH64;
use super::kept;

/// Memory is protected in pages of so many bytes at least.
const PAGE: u64 = 4096;

/// How a pointer to code is stored, and so how it is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// An 8-byte word in place (fixed-address files, RELR).
    Word,
    /// A 4-byte word in place.
    Word32,
    /// The addend of a RELATIVE or IRELATIVE relocation, at this address; the word in place may repeat it.
    Addend(u64),
}

/// A pointer in data whose value is in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Address of the pointer.
    pub place: u64,
    /// Where it points.
    pub target: u64,
    /// How it is stored.
    pub stored: Stored,
}

/// What it is that tells of pointers to code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Relocations that the linker kept: all references are known.
    Kept,
    /// Relocations for the dynamic loader: all pointers in data are known.
    Dynamic,
    /// Nothing: a program at a fixed address whose relocations were not kept.
    None,
}

/// All references; see the module.
#[derive(Debug, Default)]
pub struct Refs {
    /// Pointers in data to code, ascending by place.
    pub pointers: Vec<Pointer>,
    /// Places in data of 4-byte values that the linker computed relative to themselves (entries of
    /// position-independent jump tables among them), ascending.
    pub relative32: Vec<u64>,
    /// Where they are: every address that code forms is looked up among them.
    directory32: Directory,
    /// The same for 8-byte values (jump tables of gcc's large code model among them), ascending.
    pub relative64: Vec<u64>,
    /// Absolute address fields inside code, ascending.
    pub absolute_fields: Vec<(u64, FixupKind)>,
    /// Call instructions of TLS descriptors: their callee preserves every register.
    pub tls_descriptor_calls: Vec<u64>,
    /// Fields in code that hold distances between two places (large code model): the code adds them to an
    /// address of its own.
    pub distances: Vec<u64>,
    /// What such distances lead to, as far as it is code: the program makes the old address of it, which
    /// nothing can change. Ascending.
    pub distant: Vec<u64>,
    /// Slots that hold the address of an imported function: (slot, dynamic symbol index), ascending.
    pub import_slots: Vec<(u64, u32)>,
    /// Those that are words of data, as pointers that the program initialises are, ascending.
    variables: Vec<u64>,
    /// Instructions that form an address together with others (AArch64 `adrp` and `add`), with the whole
    /// address: those of code and of self-relative values, ascending by place.
    pub formed: Vec<(u64, u64)>,
    /// The same for instructions whose relocations have lost their symbol; only while collecting.
    pub(super) lost: Vec<(u64, u64)>,
    /// The unwind table, if start-up code hands its address to the unwinder because no program header tells
    /// it (static programs of some toolchains): then instructions that form an address in it are among
    /// `formed`, and must form the new table's. Only if the linker kept relocations.
    pub registered_frames: Option<(u64, u64)>,
    /// Where the list of entries begins that start-up code registers although program headers tell of the
    /// table: see [`doubled_frames`].
    pub doubled_frames: Option<u64>,
    /// Whether the linker kept relocations of code.
    pub kept: bool,
    /// The file is linked for a fixed address.
    pub fixed: bool,
    /// Slots of TLS descriptors, ascending.
    pub tls_descriptors: Vec<u64>,
    /// Memory that nothing changes once the loader is done with it.
    pub constant: Vec<(u64, u64)>,
    /// Words that get what a resolver returns, ascending.
    pub resolved: Vec<u64>,
    /// Places of dynamic relocations in code, exception tables and unwind tables, ascending: the loader writes up
    /// to eight bytes there.
    pub loaded: Vec<u64>,
    /// Places of all dynamic relocations, ascending, with the address that the loader makes there, if it makes one of
    /// the file's; for [`Refs::lasting_address`] alone.
    words: Vec<(u64, Option<u64>)>,
    /// Segments that can be executed and written.
    pub writable: Vec<(u64, u64)>,
}

/// Sections whose bytes are copied: code, and the tables that describe it.
fn is_copied(section: &Section<'_>) -> bool {
    section.is_code()
        || section.is_alloc()
            && (section.name == ".eh_frame" || section.name.starts_with(".gcc_except_table"))
}

/// The list of unwind entries that a static program registers, where program headers tell of the whole table
/// too (clang with lld: gcc's start-up code for static programs registers its list whether there is a header
/// or not).
///
/// What is registered is searched first, and holds nothing about new code: every step of unwinding there
/// would search twice. A list that begins with a zero, the end of a list, is never registered, nor taken
/// back; then the unwinder asks the program headers at once, which it can if the program has one of the
/// functions that tell of them.
fn doubled_frames(elf: &Elf<'_>) -> Option<u64> {
    use postlink_elf::raw::PT_INTERP;
    if elf.etype != 2 || elf.segments.iter().any(|s| s.kind == PT_INTERP) {
        return None;
    }
    let (section, frames) = elf.section(".eh_frame")?;
    let symbols = elf.symbols(SymbolTable::Static);
    let (mut named, mut asks) = (Vec::new(), false);
    for s in symbols.iter().filter(|s| s.section != 0) {
        match s.name {
            b"__EH_FRAME_BEGIN__" => named.push(s.value),
            b"_dl_find_object" | b"dl_iterate_phdr" => asks = true,
            _ => {}
        }
    }
    if named.is_empty() || !asks {
        return None;
    }
    // GNU ld gives the symbol a wrong value when it drops entries, and relocations of code the right one; lld
    // does it the other way round.
    let mut lists: Vec<u64> = elf
        .kept_sections()
        .filter(|(_, about)| about.is_code())
        .flat_map(|(s, _)| raw::relas(elf.relocation_records(s)))
        .filter_map(|r| {
            let symbol = symbols.get(r.r_sym as usize)?;
            let inside = symbol.section as usize == section;
            inside.then(|| symbol.value.wrapping_add_signed(r.r_addend))
        })
        .collect();
    if lists.is_empty() {
        lists = named;
    }
    lists.dedup();
    let [list] = lists[..] else { return None };
    // Entries are one after the other, each with its length in front; none of them is the end yet.
    let mut at = frames.addr;
    loop {
        let length = u32::from_le_bytes(elf.bytes_at(at, 4)?.try_into().ok()?);
        if at >= frames.end() || matches!(length, 0 | u32::MAX) {
            return None;
        }
        if at == list {
            return Some(list);
        }
        at = at.checked_add(4 + u64::from(length))?;
    }
}

impl Refs {
    /// Collects all references of a file.
    pub fn collect(elf: &Elf<'_>) -> Result<Refs, FormatError> {
        let mut refs = Refs {
            fixed: elf.etype == postlink_elf::raw::ET_EXEC,
            ..Refs::default()
        };
        let code: Vec<(u64, u64)> = {
            let mut v: Vec<_> = elf
                .sections
                .iter()
                .filter(|s| s.is_code())
                .map(|s| (s.addr, s.end()))
                .collect();
            v.sort_unstable();
            v
        };
        let in_code = |a: u64| {
            let i = code.partition_point(|c| c.0 <= a);
            i > 0 && a < code[i - 1].1
        };
        let fixed = elf.etype == postlink_elf::raw::ET_EXEC;
        let kinds = if elf.machine == EM_AARCH64 {
            &kept::AARCH64
        } else {
            &kept::X86_64
        };
        kept::collect(&mut refs, elf, kinds, &in_code);
        let copied: Vec<(u64, u64)> = {
            let all = elf.sections.iter().filter(|s| is_copied(s));
            all.map(|s| (s.addr, s.end())).collect()
        };
        for d in elf.dyn_relocs()? {
            if !refs.kept && d.kind != 0 {
                let relative = d.kind == kinds.relative[0];
                refs.words
                    .push((d.addr, relative.then_some(d.addend as u64)));
            }
            let writes = copied
                .iter()
                .any(|(from, to)| d.addr < *to && d.addr.saturating_add(8) > *from);
            if d.kind != 0 && writes {
                refs.loaded.push(d.addr);
            }
            match d.kind {
                kind if kinds.relative.contains(&kind) => {
                    let target = d.addend as u64;
                    if in_code(target) {
                        let stored = d.addend_at.map_or(Stored::Word, Stored::Addend);
                        refs.pointers.push(Pointer {
                            place: d.addr,
                            target,
                            stored,
                        });
                        if kind == kinds.relative[1] {
                            refs.resolved.push(d.addr);
                        }
                    }
                }
                kind if kinds.imports.contains(&kind) && d.symbol != 0 => {
                    refs.import_slots.push((d.addr, d.symbol));
                    if kind == kinds.imports[2] {
                        refs.variables.push(d.addr);
                    }
                }
                kind if kind == kinds.tls_descriptor => refs.tls_descriptors.push(d.addr),
                _ => {}
            }
        }
        if fixed {
            for name in [".got", ".got.plt"] {
                let Some((_, s)) = elf.section(name) else {
                    continue;
                };
                for (i, w) in elf.section_data(s).chunks_exact(8).enumerate() {
                    let target = u64::from_le_bytes(w.try_into().unwrap_or_default());
                    if in_code(target) {
                        refs.pointers.push(Pointer {
                            place: s.addr + 8 * i as u64,
                            target,
                            stored: Stored::Word,
                        });
                    }
                }
            }
        }
        // One place, one pointer. The addend of a dynamic relocation is the truth over the word in place.
        refs.pointers
            .par_sort_unstable_by_key(|p| (p.place, matches!(p.stored, Stored::Word)));
        refs.pointers.dedup_by_key(|p| p.place);
        refs.relative32.par_sort_unstable();
        refs.directory32 = Directory::new(&refs.relative32);
        refs.relative64.par_sort_unstable();
        refs.absolute_fields.par_sort_unstable_by_key(|f| f.0);
        refs.tls_descriptor_calls.sort_unstable();
        refs.tls_descriptors.sort_unstable();
        refs.distances.sort_unstable();
        refs.distant.sort_unstable();
        refs.distant.dedup();
        use postlink_elf::raw::PT_GNU_EH_FRAME;
        if !refs.kept {
            // What is registered stays so: a new program header tells of what is new.
        } else if !elf.segments.iter().any(|s| s.kind == PT_GNU_EH_FRAME) {
            refs.registered_frames = elf.section(".eh_frame").map(|(_, s)| (s.addr, s.end()));
        } else {
            refs.doubled_frames = doubled_frames(elf);
        }
        let frames = refs.registered_frames.unwrap_or_default();
        let lost = std::mem::take(&mut refs.lost);
        let in_frames = |f: &(u64, u64)| f.1 >= frames.0 && f.1 < frames.1;
        refs.formed.extend(lost.into_iter().filter(in_frames));
        let mut formed = std::mem::take(&mut refs.formed);
        formed.retain(|f| in_code(f.1) || in_frames(f) || refs.relative_width(f.1).is_some());
        refs.formed = formed;
        refs.formed.par_sort_unstable();
        refs.formed.dedup_by_key(|f| f.0);
        refs.import_slots.sort_unstable();
        refs.variables.sort_unstable();
        refs.import_slots.dedup_by_key(|s| s.0);
        refs.resolved.sort_unstable();
        refs.loaded.sort_unstable();
        refs.words.sort_unstable();
        refs.writable = elf
            .segments
            .iter()
            .filter(|s| s.kind == PT_LOAD && s.flags & PF_W != 0 && s.flags & PF_X != 0)
            .map(|s| (s.addr, s.addr.saturating_add(s.mem_size)))
            .collect();
        // Of what is protected once the loader is done, the last page is not if that ends within it.
        let lasts = |s: &Segment| match s.kind {
            PT_GNU_RELRO => Some((s.addr, s.addr.saturating_add(s.mem_size) & !(PAGE - 1))),
            PT_LOAD if s.flags & PF_W == 0 => Some((s.addr, s.addr.saturating_add(s.mem_size))),
            _ => None,
        };
        refs.constant = elf.segments.iter().filter_map(lasts).collect();
        Ok(refs)
    }

    /// Where the dynamic loader writes into `[from, to)`, if it does.
    pub fn loaded_in(&self, from: u64, to: u64) -> Option<u64> {
        let first = self.loaded.partition_point(|p| p.saturating_add(8) <= from);
        self.loaded.get(first).copied().filter(|p| *p < to)
    }

    /// Whether nothing writes to a word once the loader is done.
    pub fn lasts(&self, place: u64) -> bool {
        let end = place.checked_add(8);
        let lasts = |s: &(u64, u64)| s.0 <= place && end.is_some_and(|end| end <= s.1);
        self.constant.iter().any(lasts)
    }

    /// The address in a word, where nothing writes to it once the loader is done: one that the loader makes, or, in a
    /// file at a fixed address, the linker. Told where the linker kept no relocations.
    pub fn lasting_address(&self, elf: &Elf<'_>, place: u64) -> Option<u64> {
        let end = place.checked_add(8)?;
        if !self.lasts(place) {
            return None;
        }
        let first = self
            .words
            .partition_point(|w| w.0.saturating_add(8) <= place);
        let mut all = self.words[first..].iter().take_while(|w| w.0 < end);
        match (all.next(), all.next()) {
            (None, _) if self.fixed => {
                let bytes = elf.bytes_at(place, 8)?.try_into().ok()?;
                Some(u64::from_le_bytes(bytes))
            }
            (Some(&(at, target)), None) if at == place && !self.fixed => target,
            _ => None,
        }
    }

    /// Whether the program may write to code in `[from, to)`.
    pub fn is_writable(&self, from: u64, to: u64) -> bool {
        self.writable.iter().any(|s| s.0 < to && from < s.1)
    }

    /// What tells of pointers to code.
    pub fn basis(&self) -> Basis {
        match (self.kept, self.fixed) {
            (true, _) => Basis::Kept,
            (false, false) => Basis::Dynamic,
            (false, true) => Basis::None,
        }
    }

    /// Whether code refers to the unwind table: start-up code of static programs registers it, as some
    /// toolchains build it. What is registered is searched before what program headers tell of, so entries of
    /// old bodies stay in force where that code stays as it is.
    ///
    /// lld forgets the relocation: a fixed-address program without an interpreter that holds the routine
    /// counts as one that calls it.
    pub fn registers_frames(elf: &Elf<'_>) -> bool {
        use postlink_elf::raw::PT_INTERP;
        let Some((frames, _)) = elf.section(".eh_frame") else {
            return false;
        };
        let symbols = elf.symbols(SymbolTable::Static);
        let alone = elf.etype == postlink_elf::raw::ET_EXEC
            && !elf.segments.iter().any(|s| s.kind == PT_INTERP);
        if alone
            && symbols
                .iter()
                .any(|s| s.section != 0 && s.name.starts_with(b"__register_frame"))
        {
            return true;
        }
        let inside: Vec<bool> = symbols
            .iter()
            .map(|s| s.section as usize == frames)
            .collect();
        elf.kept_sections()
            .filter(|(_, about)| about.is_code())
            .any(|(s, _)| {
                let records = elf.relocation_records(s).chunks(raw::Rela::LEN * 4096);
                let records: Vec<&[u8]> = records.collect();
                postlink_parallel::any(records.len(), |part| {
                    raw::relas(records[part]).any(|r| inside.get(r.r_sym as usize) == Some(&true))
                })
            })
    }

    /// Instructions in `[start, end)` that form an address together with others.
    pub fn formed_in(&self, start: u64, end: u64) -> &[(u64, u64)] {
        let a = self.formed.partition_point(|f| f.0 < start);
        let b = a + self.formed[a..].partition_point(|f| f.0 < end);
        &self.formed[a..b]
    }

    /// The whole address that the instruction at `place` forms a part of.
    pub fn formed_at(&self, place: u64) -> Option<u64> {
        self.formed
            .binary_search_by_key(&place, |f| f.0)
            .ok()
            .map(|i| self.formed[i].1)
    }

    /// Whether what start-up code registers becomes the new unwind table: the code that forms its address is
    /// known and can be changed. Then the program needs no other way to it.
    pub fn registration_follows(&self) -> bool {
        self.formed.iter().any(|f| self.is_registered_frame(f.1))
    }

    /// Whether an address is in an unwind table that start-up code registers.
    pub fn is_registered_frame(&self, addr: u64) -> bool {
        self.registered_frames
            .is_some_and(|f| addr >= f.0 && addr < f.1)
    }

    /// Whether pointers to the function at `start` may follow it: not if code makes its old address of a
    /// distance. All pointers to a function are the same.
    pub fn may_follow(&self, start: u64) -> bool {
        self.distant.binary_search(&start).is_err()
    }

    /// Whether code in `[start, end)` has a field that holds a distance.
    pub fn has_distance_in(&self, start: u64, end: u64) -> bool {
        let i = self.distances.partition_point(|d| *d < start);
        self.distances.get(i).is_some_and(|d| *d < end)
    }

    /// How many bytes the self-relative value has that the linker wrote at `place`, if it wrote one there: 4 or 8.
    pub fn relative_width(&self, place: u64) -> Option<u64> {
        let up_to = self.directory32.up_to(&self.relative32, place);
        if up_to > 0 && self.relative32[up_to - 1] == place {
            Some(4)
        } else {
            self.relative64.binary_search(&place).is_ok().then_some(8)
        }
    }

    /// All values that the linker computed relative to their places, each with its width: those of 4 bytes,
    /// then those of 8.
    pub fn relative(&self) -> impl Iterator<Item = (u64, u64)> {
        let short = self.relative32.iter().map(|p| (*p, 4));
        short.chain(self.relative64.iter().map(|p| (*p, 8)))
    }

    /// How many there are.
    pub(super) fn relative_count(&self) -> usize {
        self.relative32.len() + self.relative64.len()
    }

    /// One of them, by number.
    pub(super) fn relative_value_at(&self, number: usize) -> (u64, u64) {
        match number.checked_sub(self.relative32.len()) {
            None => (self.relative32[number], 4),
            Some(number) => (self.relative64[number], 8),
        }
    }

    /// The value of such a place, sign-extended: what is added to an address.
    pub fn relative_value(elf: &Elf<'_>, place: u64, width: u64) -> Option<u64> {
        match elf.bytes_at(place, width)? {
            bytes if width == 8 => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
            bytes => Some(i32::from_le_bytes(bytes.try_into().ok()?) as u64),
        }
    }

    /// Absolute fields in `[start, end)`.
    pub fn absolute_fields_in(&self, start: u64, end: u64) -> &[(u64, FixupKind)] {
        let a = self.absolute_fields.partition_point(|f| f.0 < start);
        let b = a + self.absolute_fields[a..].partition_point(|f| f.0 < end);
        &self.absolute_fields[a..b]
    }

    /// The code that a word leads to whenever the program runs: the linker wrote its address there (or the
    /// loader adds the load bias to it), and nothing writes to such memory afterwards. Compilers call through
    /// such words of the global offset table where a function might have come from another library but did
    /// not (`-fno-plt`, and always in Rust).
    pub fn constant_slot(&self, place: u64) -> Option<u64> {
        if !self.lasts(place)
            || self.resolved.binary_search(&place).is_ok()
            || self.import_at(place).is_some()
        {
            return None;
        }
        let i = self
            .pointers
            .binary_search_by_key(&place, |p| p.place)
            .ok()?;
        let p = &self.pointers[i];
        matches!(p.stored, Stored::Word | Stored::Addend(_)).then_some(p.target)
    }

    /// The routine that chooses the function that a word holds whenever the program runs.
    pub fn lasting_resolver_of(&self, place: u64) -> Option<u64> {
        self.resolver_of(place).filter(|_| self.lasts(place))
    }

    /// The routine that chooses what a word holds when the program starts.
    pub fn resolver_of(&self, place: u64) -> Option<u64> {
        self.resolved.binary_search(&place).ok()?;
        let found = self.pointers.binary_search_by_key(&place, |p| p.place);
        found.ok().map(|i| self.pointers[i].target)
    }

    /// The imported symbol that a slot holds whenever code runs, as dynamic symbol index. A pointer in memory that the
    /// program writes to may hold something else.
    pub fn lasting_import_at(&self, slot: u64) -> Option<u32> {
        let within = |r: &(u64, u64)| slot >= r.0 && slot < r.1;
        let lasts =
            self.variables.binary_search(&slot).is_err() || self.constant.iter().any(within);
        self.import_at(slot).filter(|_| lasts)
    }

    /// The imported symbol that the loader puts into a slot, as dynamic symbol index.
    pub fn import_at(&self, slot: u64) -> Option<u32> {
        self.import_slots
            .binary_search_by_key(&slot, |s| s.0)
            .ok()
            .map(|i| self.import_slots[i].1)
    }
}
