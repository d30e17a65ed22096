//! References: every place of the file that is known to hold an address of code.
//!
//! Three sources are merged here. Relocations that the linker kept say where addresses were written at link time;
//! dynamic relocations say which words the loader will fill; the words of `.got` in a file at a fixed address have neither and
//! are recognised by value. Each list is sorted, so that a function finds what concerns it by binary search.
//! Fields *inside instructions* are not listed (the decoder sees them), but for absolute ones, which look like
//! plain numbers to it.

use postlink_image::FormatError;
use postlink_image::elf::Elf;
use postlink_isa::FixupKind;
use rayon::prelude::*;

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

/// How a pointer to code is stored, and so how it is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// An 8-byte word in place (fixed-address files, RELR).
    Word,
    /// A 4-byte word in place.
    Word32,
    /// The addend of a RELATIVE or IRELATIVE relocation, at this address; the word in place may repeat it.
    Addend(u64),
    /// 4 bytes, relative to their own address.
    Relative32,
    /// 8 bytes, relative to their own address.
    Relative64,
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
    /// Absolute address fields inside code, ascending.
    pub absolute_fields: Vec<(u64, FixupKind)>,
    /// Call instructions of TLS descriptors: their callee preserves every register.
    pub tls_descriptor_calls: Vec<u64>,
    /// Fields in code that hold distances between two places (large code model): the code adds them to an address of its own.
    pub distances: Vec<u64>,
    /// Slots that hold the address of an imported function: (slot, dynamic symbol index), ascending.
    pub import_slots: Vec<(u64, u32)>,
    /// Whether the linker kept relocations of code.
    pub kept: bool,
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
        refs.kept_relocs(elf, fixed, &in_code);
        for d in elf.dyn_relocs()? {
            match d.kind {
                r::RELATIVE | r::IRELATIVE => {
                    let target = d.addend as u64;
                    if in_code(target) {
                        let stored = d.addend_at.map_or(Stored::Word, Stored::Addend);
                        refs.pointers.push(Pointer {
                            place: d.addr,
                            target,
                            stored,
                        });
                    }
                }
                r::GLOB_DAT | r::JUMP_SLOT | r::R_64 if d.symbol != 0 => {
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
        refs.absolute_fields.par_sort_unstable_by_key(|f| f.0);
        refs.tls_descriptor_calls.sort_unstable();
        refs.distances.sort_unstable();
        refs.import_slots.sort_unstable();
        refs.import_slots.dedup_by_key(|s| s.0);
        Ok(refs)
    }

    fn kept_relocs(&mut self, elf: &Elf<'_>, fixed: bool, in_code: &(impl Fn(u64) -> bool + Sync)) {
        const SHT_RELA: u32 = 4;
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
                        let wanted = if is_code {
                            matches!(
                                kind,
                                r::R_64 | r::R_32 | r::R_32S | r::TLSDESC_CALL | r::GOTOFF64 | r::GOTPC64 | r::PLTOFF64 | r::PC64
                            )
                        } else {
                            matches!(kind, r::PC32 | r::PC64)
                                || fixed && matches!(kind, r::R_64 | r::R_32 | r::R_32S)
                        };
                        (wanted && addr >= about.addr && addr < about.end()).then_some((addr, kind))
                    })
                })
                .collect();
            for (addr, kind) in found {
                if is_code {
                    match kind {
                        r::R_64 => self.absolute_fields.push((addr, FixupKind::Abs64)),
                        r::R_32 => self.absolute_fields.push((addr, FixupKind::Abs32)),
                        r::R_32S => self.absolute_fields.push((addr, FixupKind::Abs32S)),
                        r::TLSDESC_CALL => self.tls_descriptor_calls.push(addr),
                        _ => self.distances.push(addr),
                    }
                    continue;
                }
                let word32 = || {
                    elf.bytes_at(addr, 4)
                        .map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
                };
                let (target, stored) = match kind {
                    r::PC32 => {
                        self.relative32.push(addr);
                        (
                            word32().map(|w| addr.wrapping_add(w as i32 as u64)),
                            Stored::Relative32,
                        )
                    }
                    r::PC64 => (
                        elf.u64_at(addr).map(|w| addr.wrapping_add(w)),
                        Stored::Relative64,
                    ),
                    r::R_64 => (elf.u64_at(addr), Stored::Word),
                    r::R_32S => (word32().map(|w| w as i32 as u64), Stored::Word32),
                    _ => (word32().map(u64::from), Stored::Word32),
                };
                // A jump table's entries are relative to the table, not to themselves: they are found through the code
                // that reads the table, and only the first entry's value means anything here.
                if let Some(target) = target
                    && stored != Stored::Relative32
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

    /// Whether code in `[start, end)` has a field that holds a distance.
    pub fn has_distance_in(&self, start: u64, end: u64) -> bool {
        let i = self.distances.partition_point(|d| *d < start);
        self.distances.get(i).is_some_and(|d| *d < end)
    }

    /// Whether a self-relative 4-byte value was written at `place` by the linker.
    pub fn is_relative32(&self, place: u64) -> bool {
        self.relative32.binary_search(&place).is_ok()
    }

    /// Absolute fields in `[start, end)`.
    pub fn absolute_fields_in(&self, start: u64, end: u64) -> &[(u64, FixupKind)] {
        let a = self.absolute_fields.partition_point(|f| f.0 < start);
        let b = a + self.absolute_fields[a..].partition_point(|f| f.0 < end);
        &self.absolute_fields[a..b]
    }

    /// The imported symbol that a slot holds, as dynamic symbol index.
    pub fn import_at(&self, slot: u64) -> Option<u32> {
        self.import_slots
            .binary_search_by_key(&slot, |s| s.0)
            .ok()
            .map(|i| self.import_slots[i].1)
    }
}
