//! References: every place of the file that is known to hold an address of code.
//!
//! Three sources are merged here. Relocations that the linker kept say where addresses were written at link time;
//! dynamic relocations say which words the loader will fill; the words of `.got` in a file at a fixed address have neither and
//! are recognised by value. Each list is sorted, so that a function finds what concerns it by binary search.
//! Fields *inside instructions* are not listed (the decoder sees them), but for absolute ones, which look like
//! plain numbers to it.

use postlink_image::FormatError;
use postlink_image::elf::{Elf, SymbolTable};
use postlink_image::raw::{PF_W, PT_GNU_RELRO, PT_LOAD};
use postlink_isa::aarch64::AArch64;
use postlink_isa::{FixupKind, Isa};
use rayon::prelude::*;

/// Relocation types that matter here, by machine.
struct Kinds {
    /// An 8-byte address.
    word: u32,
    /// A 4-byte address, zero-extended or either way.
    word32: u32,
    /// The same, sign-extended (0 where there is none).
    word32s: u32,
    /// 4 bytes, relative to their place.
    relative32: u32,
    /// 8 bytes, relative to their place.
    relative64: u32,
    /// Distances that code adds to an address of its own.
    distances: &'static [u32],
    /// The call of a TLS descriptor.
    tls_descriptor_call: u32,
    /// Dynamic: an import's address.
    imports: [u32; 3],
    /// Dynamic: the load bias is added, or a resolver is called.
    relative: [u32; 2],
    /// Instructions that form an address, or the page or the lowest 12 bits of it.
    forms: &'static [u32],
    /// Instructions that load from an address in the global offset table, which linkers turn into such.
    forms_through_got: &'static [u32],
    /// Loads and stores at an address.
    accesses: &'static [u32],
}

const X86_64: Kinds = Kinds {
    word: r::R_64,
    word32: r::R_32,
    word32s: r::R_32S,
    relative32: r::PC32,
    relative64: r::PC64,
    distances: &[r::GOTOFF64, r::GOTPC64, r::PLTOFF64, r::PC64],
    tls_descriptor_call: r::TLSDESC_CALL,
    imports: [r::GLOB_DAT, r::JUMP_SLOT, r::R_64],
    relative: [r::RELATIVE, r::IRELATIVE],
    forms: &[],
    forms_through_got: &[],
    accesses: &[],
};

const AARCH64: Kinds = Kinds {
    word: 257,
    word32: 258,
    word32s: 0,
    relative32: 261,
    relative64: 260,
    // R_AARCH64_MOVW_UABS_G0 … G3, MOVW_SABS_G0 … G2, MOVW_PREL_G0 … G3: an address in parts, or a distance.
    distances: &[
        263, 264, 265, 266, 267, 268, 269, 270, 271, 272, 287, 288, 289, 290, 291, 292, 293,
    ],
    tls_descriptor_call: 569,
    imports: [1025, 1026, 257],
    relative: [1027, 1032],
    // ADR_PREL_PG_HI21, its unchecked form, ADD_ABS_LO12_NC.
    forms: &[275, 276, 277],
    // ADR_GOT_PAGE, LD64_GOT_LO12_NC.
    forms_through_got: &[311, 312],
    // LDST8 … LDST128_ABS_LO12_NC.
    accesses: &[278, 284, 285, 286, 299],
};

/// Relocation types of the x86-64 psABI that matter here.
mod r {
    pub const R_64: u32 = 1;
    pub const PC32: u32 = 2;
    pub const GLOB_DAT: u32 = 6;
    pub const JUMP_SLOT: u32 = 7;
    pub const RELATIVE: u32 = 8;
    pub const R_32: u32 = 10;
    pub const R_32S: u32 = 11;
    pub const PC64: u32 = 24;
    pub const GOTOFF64: u32 = 25;
    pub const GOTPC64: u32 = 29;
    pub const PLTOFF64: u32 = 31;
    pub const TLSDESC_CALL: u32 = 35;
    pub const IRELATIVE: u32 = 37;
}

/// `e_machine` of AArch64.
const EM_AARCH64: u16 = 183;

/// What an AArch64 relocation of a part of an address says, once the bytes agree with it.
enum Part {
    /// The instruction at this place forms a part of this address.
    Forms(u64, u64),
    /// The instruction at this place reads code as data, in a way that would have to be followed.
    Reads(u64),
    /// The instruction at this place forms a part of an address of which the relocation has lost the symbol.
    Lost(u64, u32),
}

/// Addresses that instructions form whose relocations have lost their symbol, as lld's do that were relative to an unwind table (it merges
/// them): by the bytes alone. `lost` is ascending; each `adrp` belongs to the next `add` of its register.
fn found_again(lost: &[(u64, u32)]) -> Vec<(u64, u64)> {
    const NEAR: u64 = 64;
    let mut found = Vec::new();
    for (i, &(place, word)) in lost.iter().enumerate() {
        let register = word & 31;
        let bytes = word.to_le_bytes();
        if word & 0x9f00_0000 == 0x1000_0000 {
            found.extend(
                AArch64::read_field(FixupKind::Adr, &bytes, place).map(|target| (place, target)),
            );
        }
        if word & 0x9f00_0000 != 0x9000_0000 {
            continue;
        }
        let sum = lost[i + 1..]
            .iter()
            .take_while(|l| l.0 - place <= NEAR)
            .find(|l| l.1 & 0xffc0_0000 == 0x9100_0000 && l.1 >> 5 & 31 == register);
        if let (Some(sum), Some(page)) = (sum, AArch64::read_field(FixupKind::Page, &bytes, place))
        {
            let target = page.wrapping_add(u64::from(sum.1 >> 10 & 0xfff));
            found.extend([(place, target), (sum.0, target)]);
        }
    }
    found
}

/// Linkers relax: the bytes are the truth, and the relocation only tells what the whole address is if they agree with it.
fn part(word: u32, place: u64, target: u64, forms: bool, target_is_code: bool) -> Option<Part> {
    if !forms {
        return target_is_code.then_some(Part::Reads(place));
    }
    let is_adrp = word & 0x9f00_0000 == 0x9000_0000;
    let is_add = word & 0xffc0_0000 == 0x9100_0000;
    if is_adrp {
        let page = AArch64::read_field(FixupKind::Page, &word.to_le_bytes(), place)?;
        return (page == target & !0xfff).then_some(Part::Forms(place, target));
    }
    (is_add && u64::from(word >> 10 & 0xfff) == target & 0xfff)
        .then_some(Part::Forms(place, target))
}

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

/// A pointer in data whose value lies in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Address of the pointer.
    pub place: u64,
    /// Where it points.
    pub target: u64,
    /// How it is stored.
    pub stored: Stored,
}

/// All references; see the module.
#[derive(Debug, Default)]
pub struct Refs {
    /// Pointers in data to code, ascending by place.
    pub pointers: Vec<Pointer>,
    /// Places in data of 4-byte values that the linker computed relative to themselves (entries of position-independent jump tables
    /// among them), ascending.
    pub relative32: Vec<u64>,
    /// The same for 8-byte values (jump tables of gcc's large code model among them), ascending.
    pub relative64: Vec<u64>,
    /// Absolute address fields inside code, ascending.
    pub absolute_fields: Vec<(u64, FixupKind)>,
    /// Call instructions of TLS descriptors: their callee preserves every register.
    pub tls_descriptor_calls: Vec<u64>,
    /// Fields in code that hold distances between two places (large code model): the code adds them to an address of its own.
    pub distances: Vec<u64>,
    /// What such distances lead to, as far as it is code: the program makes the old address of it, which nothing can change. Ascending.
    pub distant: Vec<u64>,
    /// Slots that hold the address of an imported function: (slot, dynamic symbol index), ascending.
    pub import_slots: Vec<(u64, u32)>,
    /// Instructions that form an address together with others (AArch64 `adrp` and `add`), with the whole address: those of code and of
    /// self-relative values, ascending by place.
    pub formed: Vec<(u64, u64)>,
    /// The same for instructions whose relocations have lost their symbol; only while collecting.
    lost: Vec<(u64, u64)>,
    /// The unwind table, if start-up code hands its address to the unwinder because no program header tells it (static programs of some
    /// toolchains): then instructions that form an address in it are among `formed`, and must form the new table's.
    pub registered_frames: Option<(u64, u64)>,
    /// Where the list of entries begins that start-up code registers although program headers tell of the table: see [`doubled_frames`].
    pub doubled_frames: Option<u64>,
    /// Whether the linker kept relocations of code.
    pub kept: bool,
    /// Memory that nothing changes once the loader is done with it.
    pub constant: Vec<(u64, u64)>,
    /// Words that get what a resolver returns, ascending.
    pub resolved: Vec<u64>,
}

/// The list of unwind entries that a static program registers, where program headers tell of the whole table too (clang with lld: gcc's
/// start-up code for static programs registers its list whether there is a header or not).
///
/// What is registered is searched first, and holds nothing about new code: every step of unwinding there would search twice. A list
/// that begins with a zero, the end of a list, is never registered, nor taken back; then the unwinder asks the program headers at once,
/// which it can if the program has one of the functions that tell of them.
fn doubled_frames(elf: &Elf<'_>) -> Option<u64> {
    const SHT_RELA: u32 = 4;
    const PT_INTERP: u32 = 3;
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
    // GNU ld gives the symbol a wrong value when it drops entries, and relocations of code the right one; lld does it the other way round.
    let mut lists: Vec<u64> = elf
        .sections
        .iter()
        .filter(|s| s.kind == SHT_RELA && !s.is_alloc())
        .filter(|s| {
            let about = elf.sections.get(s.info as usize);
            about.is_some_and(|about| about.is_code())
        })
        .flat_map(|s| elf.section_data(s).chunks_exact(24))
        .filter_map(|e| {
            let symbol = symbols.get(u32::from_le_bytes(e[12..16].try_into().ok()?) as usize)?;
            let addend = i64::from_le_bytes(e[16..24].try_into().ok()?);
            let inside = symbol.section as usize == section;
            inside.then(|| symbol.value.wrapping_add_signed(addend))
        })
        .collect();
    if lists.is_empty() {
        lists = named;
    }
    lists.dedup();
    let [list] = lists[..] else { return None };
    // Entries lie one behind the other, each with its length in front; none of them is the end yet.
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
        let mut refs = Refs::default();
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
        let fixed = elf.etype == 2;
        let kinds = if elf.machine == EM_AARCH64 {
            &AARCH64
        } else {
            &X86_64
        };
        refs.kept_relocs(elf, kinds, fixed, &in_code);
        for d in elf.dyn_relocs()? {
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
                    refs.import_slots.push((d.addr, d.symbol))
                }
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
        refs.relative64.par_sort_unstable();
        refs.absolute_fields.par_sort_unstable_by_key(|f| f.0);
        refs.tls_descriptor_calls.sort_unstable();
        refs.distances.sort_unstable();
        refs.distant.sort_unstable();
        refs.distant.dedup();
        const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
        if !elf.segments.iter().any(|s| s.kind == PT_GNU_EH_FRAME) {
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
        refs.import_slots.dedup_by_key(|s| s.0);
        refs.resolved.sort_unstable();
        refs.constant = elf
            .segments
            .iter()
            .filter(|s| s.kind == PT_GNU_RELRO || s.kind == PT_LOAD && s.flags & PF_W == 0)
            .map(|s| (s.addr, s.addr.saturating_add(s.mem_size)))
            .collect();
        Ok(refs)
    }

    /// Whether code refers to the unwind table: start-up code of static programs registers it, as some toolchains build it. What is
    /// registered is searched before what program headers tell of, so entries of old bodies stay in force where that code stays as it is.
    ///
    /// lld forgets the relocation: a fixed-address program without an interpreter that holds the routine counts as one that calls it.
    pub fn registers_frames(elf: &Elf<'_>) -> bool {
        const SHT_RELA: u32 = 4;
        const PT_INTERP: u32 = 3;
        let Some((frames, _)) = elf.section(".eh_frame") else {
            return false;
        };
        let symbols = elf.symbols(SymbolTable::Static);
        let alone = elf.etype == 2 && !elf.segments.iter().any(|s| s.kind == PT_INTERP);
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
        elf.sections
            .iter()
            .filter(|s| s.kind == SHT_RELA && !s.is_alloc())
            .filter(|s| {
                elf.sections
                    .get(s.info as usize)
                    .is_some_and(|s| s.is_code())
            })
            .any(|s| {
                elf.section_data(s).par_chunks_exact(24).any(|e| {
                    let symbol = e[12..16].try_into().map_or(0, u32::from_le_bytes);
                    inside.get(symbol as usize) == Some(&true)
                })
            })
    }

    fn kept_relocs(
        &mut self,
        elf: &Elf<'_>,
        kinds: &Kinds,
        fixed: bool,
        in_code: &(impl Fn(u64) -> bool + Sync),
    ) {
        const SHT_RELA: u32 = 4;
        let symbols = elf.symbols(SymbolTable::Static);
        for s in &elf.sections {
            if s.kind != SHT_RELA || s.is_alloc() {
                continue;
            }
            let Some(about) = elf.sections.get(s.info as usize) else {
                continue;
            };
            if s.info == 0
                || !about.is_alloc()
                || matches!(about.name, ".eh_frame" | ".gcc_except_table")
            {
                continue;
            }
            let is_code = about.is_code();
            self.kept |= is_code;
            // Most of a large file's relocations are of code and of no interest: filter in parallel, keep little.
            let found: Vec<(u64, u32)> = elf
                .section_data(s)
                .par_chunks(24 * 4096)
                .flat_map_iter(|chunk| {
                    chunk.chunks_exact(24).filter_map(|e| {
                        let addr = u64::from_le_bytes(e[0..8].try_into().ok()?);
                        let kind = u32::from_le_bytes(e[8..12].try_into().ok()?);
                        let absolute =
                            kind != 0 && [kinds.word, kinds.word32, kinds.word32s].contains(&kind);
                        let wanted = if is_code {
                            absolute
                                || kind == kinds.tls_descriptor_call
                                || kinds.distances.contains(&kind)
                        } else {
                            kind == kinds.relative32
                                || kind == kinds.relative64
                                || fixed && absolute
                        };
                        (wanted && addr >= about.addr && addr < about.end()).then_some((addr, kind))
                    })
                })
                .collect();
            if is_code {
                let led_to = |e: &[u8]| {
                    let kind = u32::from_le_bytes(e[8..12].try_into().ok()?);
                    let symbol = u32::from_le_bytes(e[12..16].try_into().ok()?);
                    let addend = i64::from_le_bytes(e[16..24].try_into().ok()?);
                    let leads = kind == kinds.relative64 || kinds.distances.contains(&kind);
                    if !leads || symbol == 0 {
                        return None;
                    }
                    let value = symbols.get(symbol as usize)?.value;
                    // The addend of a distance from the field itself also says where the code counts from.
                    let from_field = kind == kinds.relative64;
                    Some([
                        value.wrapping_add_signed(addend),
                        if from_field { value } else { 0 },
                    ])
                };
                let all: Vec<u64> = elf
                    .section_data(s)
                    .par_chunks(24 * 4096)
                    .flat_map_iter(|chunk| chunk.chunks_exact(24).filter_map(led_to).flatten())
                    .filter(|target| in_code(*target))
                    .collect();
                self.distant.extend(all);
            }
            if is_code && !kinds.forms.is_empty() {
                let parts: Vec<Part> = elf
                    .section_data(s)
                    .par_chunks(24 * 4096)
                    .flat_map_iter(|chunk| {
                        chunk.chunks_exact(24).filter_map(|e| {
                            let place = u64::from_le_bytes(e[0..8].try_into().ok()?);
                            let kind = u32::from_le_bytes(e[8..12].try_into().ok()?);
                            let symbol = u32::from_le_bytes(e[12..16].try_into().ok()?);
                            let addend = i64::from_le_bytes(e[16..24].try_into().ok()?);
                            let forms = kinds.forms.contains(&kind)
                                || kinds.forms_through_got.contains(&kind);
                            if !forms && !kinds.accesses.contains(&kind) {
                                return None;
                            }
                            let word = u32::from_le_bytes(elf.bytes_at(place, 4)?.try_into().ok()?);
                            if symbol == 0 {
                                return forms.then_some(Part::Lost(place, word));
                            }
                            let target = symbols
                                .get(symbol as usize)?
                                .value
                                .wrapping_add_signed(addend);
                            part(word, place, target, forms, in_code(target))
                        })
                    })
                    .collect();
                let mut lost = Vec::new();
                for part in parts {
                    match part {
                        Part::Forms(place, target) => self.formed.push((place, target)),
                        Part::Reads(place) => self.distances.push(place),
                        Part::Lost(place, word) => lost.push((place, word)),
                    }
                }
                lost.sort_unstable();
                self.lost.extend(found_again(&lost));
            }
            // Where no instruction has such a field it is a word of a literal pool.
            let pools = !kinds.forms.is_empty() && fixed;
            for (addr, kind) in found {
                if is_code {
                    if pools && kind == kinds.word {
                        let target = elf.u64_at(addr).filter(|target| in_code(*target));
                        self.pointers.extend(target.map(|target| Pointer {
                            place: addr,
                            target,
                            stored: Stored::Word,
                        }));
                    }
                    match kind {
                        _ if kind == kinds.word => {
                            self.absolute_fields.push((addr, FixupKind::Abs64))
                        }
                        _ if kind == kinds.word32 => {
                            self.absolute_fields.push((addr, FixupKind::Abs32))
                        }
                        _ if kind == kinds.word32s => {
                            self.absolute_fields.push((addr, FixupKind::Abs32S))
                        }
                        _ if kind == kinds.tls_descriptor_call => {
                            self.tls_descriptor_calls.push(addr)
                        }
                        _ => self.distances.push(addr),
                    }
                    continue;
                }
                let word32 = || {
                    elf.bytes_at(addr, 4)
                        .map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
                };
                // A jump table's entries are relative to the table, not to themselves, whatever their relocations say: they are found
                // through the code that reads the table. So none of these values is known to be a pointer, and none follows what moves.
                if kind == kinds.relative32 {
                    self.relative32.push(addr);
                    continue;
                }
                if kind == kinds.relative64 {
                    self.relative64.push(addr);
                    continue;
                }
                let (target, stored) = match kind {
                    _ if kind == kinds.word => (elf.u64_at(addr), Stored::Word),
                    _ if kind == kinds.word32s => {
                        (word32().map(|w| w as i32 as u64), Stored::Word32)
                    }
                    _ => (word32().map(u64::from), Stored::Word32),
                };
                if let Some(target) = target
                    && in_code(target)
                {
                    self.pointers.push(Pointer {
                        place: addr,
                        target,
                        stored,
                    });
                }
            }
        }
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

    /// Whether what start-up code registers becomes the new unwind table: the code that forms its address is known and can be changed. Then the
    /// program needs no other way to it.
    pub fn registration_follows(&self) -> bool {
        self.formed.iter().any(|f| self.is_registered_frame(f.1))
    }

    /// Whether an address lies in an unwind table that start-up code registers.
    pub fn is_registered_frame(&self, addr: u64) -> bool {
        self.registered_frames
            .is_some_and(|f| addr >= f.0 && addr < f.1)
    }

    /// Whether pointers to the function at `start` may follow it: not if code makes its old address of a distance. All pointers to a function
    /// are the same.
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
        if self.relative32.binary_search(&place).is_ok() {
            Some(4)
        } else {
            self.relative64.binary_search(&place).is_ok().then_some(8)
        }
    }

    /// All values that the linker computed relative to their places, each with its width: those of 4 bytes, then those of 8.
    pub fn relative(&self) -> impl Iterator<Item = (u64, u64)> {
        let short = self.relative32.iter().map(|p| (*p, 4));
        short.chain(self.relative64.iter().map(|p| (*p, 8)))
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

    /// The code that a word leads to whenever the program runs: the linker wrote its address there (or the loader adds the load bias to it),
    /// and nothing writes to such memory afterwards. Compilers call through such words of the global offset table where a function might
    /// have come from another library but did not (`-fno-plt`, and always in Rust).
    pub fn constant_slot(&self, place: u64) -> Option<u64> {
        let within =
            |r: &(u64, u64)| place >= r.0 && r.1.checked_sub(8).is_some_and(|last| place <= last);
        if !self.constant.iter().any(within)
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

    /// The routine that chooses what a word holds when the program starts.
    pub fn resolver_of(&self, place: u64) -> Option<u64> {
        self.resolved.binary_search(&place).ok()?;
        let found = self.pointers.binary_search_by_key(&place, |p| p.place);
        found.ok().map(|i| self.pointers[i].target)
    }

    /// The imported symbol that a slot holds, as dynamic symbol index.
    pub fn import_at(&self, slot: u64) -> Option<u32> {
        self.import_slots
            .binary_search_by_key(&slot, |s| s.0)
            .ok()
            .map(|i| self.import_slots[i].1)
    }
}
