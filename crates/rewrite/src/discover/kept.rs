//! Relocations that the linker kept (`--emit-relocs`): where addresses were written at link time.
//!
//! Of those of data, pointers to code are kept and values relative to their own place; of those of code,
//! fields that look like plain numbers to a decoder, addresses that several instructions form together, and
//! distances. Most of a large file's relocations are of code and of no interest, so each list is filtered in
//! parallel.

use postlink_elf::elf::{Elf, Section, SymbolTable, Symbols};
use postlink_elf::raw::{self, Rela, STT_FUNC};
use postlink_isa::aarch64::AArch64;
use postlink_isa::{Decode, FixupKind};

use super::refs::{Pointer, Refs, Stored};

/// Relocation types that matter here, by machine.
pub(super) struct Kinds {
    /// An 8-byte address.
    pub word: u32,
    /// A 4-byte address, zero-extended or either way.
    pub word32: u32,
    /// The same, sign-extended (0 where there is none).
    pub word32s: u32,
    /// 4 bytes, relative to their place.
    pub relative32: u32,
    /// 8 bytes, relative to their place.
    pub relative64: u32,
    /// Distances that code adds to an address of its own.
    pub distances: &'static [u32],
    /// The call of a TLS descriptor.
    pub tls_descriptor_call: u32,
    /// Dynamic: a TLS descriptor.
    pub tls_descriptor: u32,
    /// Dynamic: an import's address.
    pub imports: [u32; 3],
    /// Dynamic: the load bias is added, or a resolver is called.
    pub relative: [u32; 2],
    /// Instructions that form an address, or the page or the lowest 12 bits of it.
    pub forms: &'static [u32],
    /// Instructions that load from an address in the global offset table, which linkers turn into such.
    pub forms_through_got: &'static [u32],
    /// Loads and stores at an address.
    pub accesses: &'static [u32],
}

pub(super) const X86_64: Kinds = Kinds {
    word: raw::R_X86_64_64,
    word32: raw::R_X86_64_32,
    word32s: raw::R_X86_64_32S,
    relative32: raw::R_X86_64_PC32,
    relative64: raw::R_X86_64_PC64,
    distances: &[
        raw::R_X86_64_GOTOFF64,
        raw::R_X86_64_GOTPC64,
        raw::R_X86_64_PLTOFF64,
        raw::R_X86_64_PC64,
    ],
    tls_descriptor_call: raw::R_X86_64_TLSDESC_CALL,
    tls_descriptor: raw::R_X86_64_TLSDESC,
    imports: [
        raw::R_X86_64_GLOB_DAT,
        raw::R_X86_64_JUMP_SLOT,
        raw::R_X86_64_64,
    ],
    relative: [raw::R_X86_64_RELATIVE, raw::R_X86_64_IRELATIVE],
    forms: &[],
    forms_through_got: &[],
    accesses: &[],
};

pub(super) const AARCH64: Kinds = Kinds {
    word: raw::R_AARCH64_ABS64,
    word32: raw::R_AARCH64_ABS32,
    word32s: 0,
    relative32: raw::R_AARCH64_PREL32,
    relative64: raw::R_AARCH64_PREL64,
    // An address in parts, or a distance.
    distances: &[
        raw::R_AARCH64_MOVW_UABS_G0,
        raw::R_AARCH64_MOVW_UABS_G0_NC,
        raw::R_AARCH64_MOVW_UABS_G1,
        raw::R_AARCH64_MOVW_UABS_G1_NC,
        raw::R_AARCH64_MOVW_UABS_G2,
        raw::R_AARCH64_MOVW_UABS_G2_NC,
        raw::R_AARCH64_MOVW_UABS_G3,
        raw::R_AARCH64_MOVW_SABS_G0,
        raw::R_AARCH64_MOVW_SABS_G1,
        raw::R_AARCH64_MOVW_SABS_G2,
        raw::R_AARCH64_MOVW_PREL_G0,
        raw::R_AARCH64_MOVW_PREL_G0_NC,
        raw::R_AARCH64_MOVW_PREL_G1,
        raw::R_AARCH64_MOVW_PREL_G1_NC,
        raw::R_AARCH64_MOVW_PREL_G2,
        raw::R_AARCH64_MOVW_PREL_G2_NC,
        raw::R_AARCH64_MOVW_PREL_G3,
    ],
    tls_descriptor_call: raw::R_AARCH64_TLSDESC_CALL,
    tls_descriptor: raw::R_AARCH64_TLSDESC,
    imports: [
        raw::R_AARCH64_GLOB_DAT,
        raw::R_AARCH64_JUMP_SLOT,
        raw::R_AARCH64_ABS64,
    ],
    relative: [raw::R_AARCH64_RELATIVE, raw::R_AARCH64_IRELATIVE],
    forms: &[
        raw::R_AARCH64_ADR_PREL_PG_HI21,
        raw::R_AARCH64_ADR_PREL_PG_HI21_NC,
        raw::R_AARCH64_ADD_ABS_LO12_NC,
    ],
    forms_through_got: &[raw::R_AARCH64_ADR_GOT_PAGE, raw::R_AARCH64_LD64_GOT_LO12_NC],
    accesses: &[
        raw::R_AARCH64_LDST8_ABS_LO12_NC,
        raw::R_AARCH64_LDST16_ABS_LO12_NC,
        raw::R_AARCH64_LDST32_ABS_LO12_NC,
        raw::R_AARCH64_LDST64_ABS_LO12_NC,
        raw::R_AARCH64_LDST128_ABS_LO12_NC,
    ],
};

/// What is wanted of the records of a section, in their order.
pub(super) fn relas<R: Send>(records: &[u8], wanted: impl Fn(Rela) -> Option<R> + Sync) -> Vec<R> {
    postlink_parallel::flat_map_chunks(records, raw::Rela::LEN * 4096, |part| {
        raw::relas(part).filter_map(&wanted)
    })
}

/// What `f` makes of records that follow each other, all of which are in one part.
fn parts_of<R: Send>(records: &[u8], f: impl Fn(&[u8]) -> R + Sync) -> Vec<R> {
    const PART: usize = 1 << 14;
    let count = records.len() / raw::Rela::LEN;
    postlink_parallel::map_parts(count, PART, |part| {
        f(&records[part.start * raw::Rela::LEN..part.end * raw::Rela::LEN])
    })
}

/// Whether an address is in a section.
fn is_in(section: &Section<'_>, addr: u64) -> bool {
    section.addr <= addr && addr < section.end()
}

/// Reads all relocations that the linker kept of sections that are loaded.
pub(super) fn collect(
    refs: &mut Refs,
    elf: &Elf<'_>,
    kinds: &Kinds,
    in_code: &(impl Fn(u64) -> bool + Sync),
) {
    let kept = Kept {
        elf,
        kinds,
        in_code,
        symbols: elf.symbols(SymbolTable::Static),
        fixed: elf.etype == postlink_elf::raw::ET_EXEC,
    };
    for (s, about) in elf.kept_sections() {
        if matches!(about.name, ".eh_frame" | ".gcc_except_table") {
            continue;
        }
        let records = elf.relocation_records(s);
        if about.is_code() {
            refs.kept = true;
            kept.of_code(refs, records, about);
        } else {
            kept.of_data(refs, records, about);
        }
    }
}

/// What all sections have in common.
struct Kept<'a, 'd, F> {
    elf: &'a Elf<'d>,
    kinds: &'a Kinds,
    in_code: &'a F,
    symbols: Symbols<'d>,
    /// The file is linked for a fixed address: words in place are pointers.
    fixed: bool,
}

impl<F: Fn(u64) -> bool + Sync> Kept<'_, '_, F> {
    fn is_absolute(&self, kind: u32) -> bool {
        let kinds = [self.kinds.word, self.kinds.word32, self.kinds.word32s];
        kind != 0 && kinds.contains(&kind)
    }

    /// Relocations of a section of code.
    fn of_code(&self, refs: &mut Refs, records: &[u8], about: &Section<'_>) {
        let kinds = self.kinds;
        if !kinds.forms.is_empty() {
            self.formed(refs, records);
        }
        let found = parts_of(records, |part| {
            let (mut fields, mut distant) = (Vec::new(), Vec::new());
            for r in raw::relas(part) {
                let kind = r.r_type;
                let wanted = self.is_absolute(kind)
                    || kind == kinds.tls_descriptor_call
                    || kinds.distances.contains(&kind);
                if wanted && is_in(about, r.r_offset) {
                    fields.push((r.r_offset, kind));
                }
                let targets = self.distant(&r).into_iter().flatten();
                distant.extend(targets.filter(|target| (self.in_code)(*target)));
            }
            (fields, distant)
        });
        let (fields, distant): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        refs.distant.extend(distant.into_iter().flatten());
        // Where no instruction has such a field it is a word of a literal pool.
        let pools = !kinds.forms.is_empty() && self.fixed;
        for (place, kind) in fields.into_iter().flatten() {
            if pools && kind == kinds.word {
                self.pointer(refs, place, self.elf.u64_at(place), Stored::Word);
            }
            match kind {
                _ if kind == kinds.word => refs.absolute_fields.push((place, FixupKind::Abs64)),
                _ if kind == kinds.word32 => refs.absolute_fields.push((place, FixupKind::Abs32)),
                _ if kind == kinds.word32s => refs.absolute_fields.push((place, FixupKind::Abs32S)),
                _ if kind == kinds.tls_descriptor_call => refs.tls_descriptor_calls.push(place),
                _ => refs.distances.push(place),
            }
        }
    }

    /// Where a distance leads, and where code counts from, which need not be code.
    fn distant(&self, r: &Rela) -> Option<[u64; 2]> {
        let kinds = self.kinds;
        let leads = r.r_type == kinds.relative64 || kinds.distances.contains(&r.r_type);
        if !leads || r.r_sym == 0 {
            return None;
        }
        let value = self.symbols.get_nameless(r.r_sym as usize)?.value;
        // The addend of a distance from the field itself also says where the code counts from.
        let from = if r.r_type == kinds.relative64 {
            value
        } else {
            0
        };
        Some([value.wrapping_add_signed(r.r_addend), from])
    }

    /// Addresses that several instructions form together (AArch64).
    fn formed(&self, refs: &mut Refs, records: &[u8]) {
        let part = |r: Rela| {
            let kinds = self.kinds;
            let forms =
                kinds.forms.contains(&r.r_type) || kinds.forms_through_got.contains(&r.r_type);
            if !forms && !kinds.accesses.contains(&r.r_type) {
                return None;
            }
            let word = self.elf.bytes_at(r.r_offset, 4)?;
            let word = u32::from_le_bytes(word.try_into().ok()?);
            if r.r_sym == 0 {
                return forms.then_some(Part::Lost(r.r_offset, word));
            }
            let value = self.symbols.get_nameless(r.r_sym as usize)?.value;
            let target = value.wrapping_add_signed(r.r_addend);
            part(word, r.r_offset, target, forms, (self.in_code)(target))
        };
        let parts: Vec<Part> = relas(records, part);
        let mut lost = Vec::new();
        for part in parts {
            match part {
                Part::Forms(place, target) => refs.formed.push((place, target)),
                Part::Reads(place) => refs.distances.push(place),
                Part::Lost(place, word) => lost.push((place, word)),
            }
        }
        lost.sort_unstable();
        refs.lost.extend(found_again(&lost));
    }

    /// Relocations of a section of data.
    fn of_data(&self, refs: &mut Refs, records: &[u8], about: &Section<'_>) {
        let kinds = self.kinds;
        let found = parts_of(records, |part| {
            let (mut data, mut distant) = (Refs::default(), Vec::new());
            for r in raw::relas(part) {
                let kind = r.r_type;
                let relative = kind == kinds.relative32 || kind == kinds.relative64;
                let wanted = relative || self.fixed && self.is_absolute(kind);
                if !wanted {
                    continue;
                }
                if relative {
                    distant.extend(self.named(&r));
                }
                if is_in(about, r.r_offset) {
                    self.datum(&mut data, r.r_offset, kind);
                }
            }
            (data, distant)
        });
        for (data, distant) in found {
            refs.distant.extend(distant);
            refs.relative32.extend(data.relative32);
            refs.relative64.extend(data.relative64);
            refs.pointers.extend(data.pointers);
        }
    }

    /// Whatever a distance is counted from, who has it with the name of a function can make the function's address of
    /// it: the address.
    fn named(&self, r: &Rela) -> Option<u64> {
        let symbol = self.symbols.get_nameless(r.r_sym as usize)?;
        (symbol.kind == STT_FUNC && (self.in_code)(symbol.value)).then_some(symbol.value)
    }

    /// Notes what a relocation of data says.
    fn datum(&self, refs: &mut Refs, place: u64, kind: u32) {
        let kinds = self.kinds;
        let word32 = || {
            let bytes = self.elf.bytes_at(place, 4)?;
            Some(u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
        };
        match kind {
            // A jump table's entries are relative to the table, not to themselves, whatever their
            // relocations say: they are found through the code that reads the table. So none of these
            // values is known to be a pointer, and none follows what moves.
            _ if kind == kinds.relative32 => refs.relative32.push(place),
            _ if kind == kinds.relative64 => refs.relative64.push(place),
            _ if kind == kinds.word => {
                self.pointer(refs, place, self.elf.u64_at(place), Stored::Word);
            }
            _ if kind == kinds.word32s => {
                let value = word32().map(|w| w as i32 as u64);
                self.pointer(refs, place, value, Stored::Word32);
            }
            _ => self.pointer(refs, place, word32().map(u64::from), Stored::Word32),
        }
    }

    /// Notes a pointer, if it is one to code.
    fn pointer(&self, refs: &mut Refs, place: u64, target: Option<u64>, stored: Stored) {
        refs.pointers
            .extend(target.filter(|t| (self.in_code)(*t)).map(|target| Pointer {
                place,
                target,
                stored,
            }));
    }
}

/// What an AArch64 relocation of a part of an address says, once the bytes agree with it.
enum Part {
    /// The instruction at this place forms a part of this address.
    Forms(u64, u64),
    /// The instruction at this place reads code as data, in a way that would have to be followed.
    Reads(u64),
    /// The instruction at this place forms a part of an address of which the relocation has lost the symbol.
    Lost(u64, u32),
}

/// Addresses that instructions form whose relocations have lost their symbol, as lld's do that were relative
/// to an unwind table (it merges them): by the bytes alone. `lost` is ascending; each `adrp` belongs to the
/// next `add` of its register.
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

/// Linkers relax: the bytes are the truth, and the relocation only tells what the whole address is if they
/// agree with it.
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
