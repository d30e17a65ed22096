//! Faults in headers, pointers, tables, symbols and the claim.

use super::{Edit, Faults, Kind};
use crate::addr::{InputAddr, OutputAddr};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::Claim;
use crate::files::elf::{self, PF_W, PF_X, SHT_DYNSYM, SHT_RELA, SHT_SYMTAB, SYM_SIZE};

const PT_GNU_RELRO: u32 = 0x6474_e552;

impl Faults<'_> {
    pub(super) fn file_edits(&self, kind: Kind) -> Vec<Edit> {
        match kind {
            Kind::JumpTableSwapped | Kind::JumpTableOff => self.jump_tables(kind),
            Kind::RelocAddendOff | Kind::RelocPlaceOff => self.relocations(kind),
            Kind::PointerOff | Kind::PointerToWrongFunction => self.pointers(kind),
            Kind::EntryPoint => vec![Edit::new(
                "e_entry",
                24,
                &(self.output.entry + 1).to_le_bytes(),
            )],
            Kind::DtInit => self.dynamic(|tag| tag == 12, 4),
            // Sizes and counts: DT_STRSZ, DT_RELASZ, DT_INIT_ARRAYSZ, DT_RELACOUNT.
            Kind::DynamicTag => self.dynamic(|tag| matches!(tag, 10 | 8 | 27 | 0x6fff_fff9), 8),
            Kind::DynamicSymbol => self.symbols(SHT_DYNSYM),
            Kind::StaticSymbol => self.symbols(SHT_SYMTAB),
            Kind::OverlappingClaim | Kind::ClaimedEntryOff => self.claims(kind),
            Kind::WritableCode => {
                self.segments(|s| s.kind == elf::PT_LOAD && s.is_exec(), |f| f | PF_W)
            }
            Kind::ExecutableData => {
                self.segments(|s| s.kind == elf::PT_LOAD && s.is_writable(), |f| f | PF_X)
            }
            Kind::RelroShort => self.relro(),
            Kind::ChangedData => {
                self.sections(&[b".rodata", b".data", b".gcc_except_table", b".tdata"], 1)
            }
            Kind::GotSlot => self.sections(&[b".got", b".got.plt"], 8),
            Kind::InitOrder => self.init_order(),
            Kind::Interpreter => self.sections(&[b".interp"], 1),
            _ => Vec::new(),
        }
    }

    /// Four-byte words of constants that differ between input and output: entries of jump tables.
    fn jump_tables(&self, kind: Kind) -> Vec<Edit> {
        if self.arm {
            return self.jump_tables_a64(kind);
        }
        let mut places = Vec::new();
        for s in self
            .input
            .sections
            .iter()
            .filter(|s| s.is_alloc() && s.name.starts_with(b".rodata"))
        {
            let (Some(old), Some(new), Some(at)) = (
                self.input.bytes(s.addr, s.size),
                self.output.bytes(s.addr, s.size),
                self.offset(s.addr),
            ) else {
                continue;
            };
            for i in (0..old.len() / 4).map(|i| 4 * i) {
                if u32_in(old, i) != u32_in(new, i) {
                    places.push((at + i, u32_in(new, i).unwrap_or(0)));
                }
            }
        }
        if kind == Kind::JumpTableOff {
            return places
                .iter()
                .map(|&(at, v)| Edit::new(format!("at offset {at:#x}"), at, &(v + 1).to_le_bytes()))
                .collect();
        }
        let neighbours = places.windows(2).filter_map(|w| {
            if let [a, b] = w {
                (a.0 + 4 == b.0 && a.1 != b.1).then_some((a, b))
            } else {
                None
            }
        });
        neighbours
            .map(|(a, b)| Edit {
                what: format!("at offset {:#x}", a.0),
                changes: vec![
                    (a.0, b.1.to_le_bytes().to_vec()),
                    (b.0, a.1.to_le_bytes().to_vec()),
                ],
            })
            .collect()
    }

    /// Entries of the tables that new code jumps through.
    fn jump_tables_a64(&self, kind: Kind) -> Vec<Edit> {
        let mut edits = Vec::new();
        for (at, width, count) in self.narrow_tables() {
            for i in 0..count.min(500) as usize {
                let here = at + i * width;
                let (entry, next) = (self.file(here, width), self.file(here + width, width));
                let what = format!("entry {i} at offset {here:#x}");
                if kind == Kind::JumpTableOff {
                    let mut changed = entry.to_vec();
                    if let Some(low) = changed.first_mut() {
                        *low = low.wrapping_add(1);
                    }
                    edits.push(Edit::new(what, here, &changed));
                } else if i + 1 < count as usize && entry != next {
                    edits.push(Edit::new(what, here, &[next, entry].concat()));
                }
            }
        }
        edits
    }

    /// File offset, place and addend of each RELATIVE relocation.
    pub(super) fn relative(&self) -> Vec<(usize, u64, u64)> {
        let mut list = Vec::new();
        for s in self
            .output
            .sections
            .iter()
            .filter(|s| s.is_alloc() && s.kind == SHT_RELA)
        {
            for (i, e) in self.output.section_data(s).chunks_exact(24).enumerate() {
                if let (Some(place), Some(info), Some(addend)) =
                    (u64_in(e, 0), u64_in(e, 8), u64_in(e, 16))
                    && info == if self.arm { 1027 } else { 8 }
                {
                    list.push((s.offset as usize + 24 * i, place, addend));
                }
            }
        }
        list
    }

    fn relocations(&self, kind: Kind) -> Vec<Edit> {
        let edit = |(at, place, addend): (usize, u64, u64)| {
            let what = format!("for {place:#x}");
            if kind == Kind::RelocAddendOff {
                Edit::new(what, at + 16, &(addend + 1).to_le_bytes())
            } else {
                Edit::new(what, at, &(place + 8).to_le_bytes())
            }
        };
        self.relative().into_iter().map(edit).collect()
    }

    /// Words of data that became pointers to new code, and addends that did: file offset and value.
    pub(super) fn changed_pointers(&self) -> Vec<(usize, u64)> {
        let is_new = |v: u64| {
            self.claim
                .functions
                .iter()
                .any(|f| f.in_new(OutputAddr::new(v)))
        };
        let mut list: Vec<(usize, u64)> = self
            .relative()
            .into_iter()
            .filter(|r| is_new(r.2))
            .map(|r| (r.0 + 16, r.2))
            .collect();
        for s in self.input.sections.iter().filter(|s| {
            s.is_alloc()
                && s.kind != elf::SHT_NOBITS
                && s.kind != SHT_RELA
                && s.flags & elf::SHF_EXECINSTR == 0
                && s.kind != SHT_DYNSYM
        }) {
            let (Some(old), Some(new), Some(at)) = (
                self.input.bytes(s.addr, s.size),
                self.output.bytes(s.addr, s.size),
                self.offset(s.addr),
            ) else {
                continue;
            };
            for (i, (a, b)) in old.chunks_exact(8).zip(new.chunks_exact(8)).enumerate() {
                if let Some(value) = u64_in(b, 0).filter(|_| a != b).filter(|v| is_new(*v)) {
                    list.push((at + 8 * i, value));
                }
            }
        }
        list
    }

    fn pointers(&self, kind: Kind) -> Vec<Edit> {
        let other = |v: u64| {
            self.claim
                .functions
                .iter()
                .map(crate::files::claim::Moved::new_entry)
                .find(|e| *e != OutputAddr::new(v))
        };
        self.changed_pointers()
            .into_iter()
            .filter_map(|(at, v)| {
                let to = if kind == Kind::PointerOff {
                    v + 1
                } else {
                    (other(v)?).get()
                };
                Some(Edit::new(
                    format!("{v:#x} is {to:#x} at offset {at:#x}"),
                    at,
                    &to.to_le_bytes(),
                ))
            })
            .collect()
    }

    fn dynamic(&self, wanted: impl Fn(u64) -> bool, by: u64) -> Vec<Edit> {
        let Some(s) = self.output.segment(elf::PT_DYNAMIC) else {
            return Vec::new();
        };
        let entries = self
            .output
            .dynamic
            .iter()
            .enumerate()
            .filter(|(_, d)| wanted(d.tag));
        entries
            .map(|(i, d)| {
                Edit::new(
                    format!("tag {:#x}", d.tag),
                    s.offset as usize + 16 * i + 8,
                    &d.value.wrapping_add(by).to_le_bytes(),
                )
            })
            .collect()
    }

    /// Symbols of moved functions.
    fn symbols(&self, kind: u32) -> Vec<Edit> {
        let Some(s) = self.output.sections.iter().find(|s| s.kind == kind) else {
            return Vec::new();
        };
        let entry = |v: u64| {
            self.claim
                .functions
                .iter()
                .any(|f| f.old_entry == InputAddr::new(v) || f.new_entry() == OutputAddr::new(v))
        };
        self.output
            .symbols(kind)
            .enumerate()
            .filter(|(_, symbol)| {
                symbol.is_function() && symbol.section != 0 && entry(symbol.value)
            })
            .map(|(i, symbol)| {
                Edit::new(
                    String::from_utf8_lossy(symbol.name),
                    s.offset as usize + SYM_SIZE * i + 8,
                    &(symbol.value + 1).to_le_bytes(),
                )
            })
            .collect()
    }

    /// The note, rewritten after the file's end.
    fn claims(&self, kind: Kind) -> Vec<Edit> {
        let spoil = |claim: &mut Claim<'_>, i: usize| {
            let next = (i + 1) % claim.functions.len();
            let next = claim.functions.get(next)?.new.first().copied()?;
            let first = claim.functions.get_mut(i)?.new.first_mut()?;
            if kind == Kind::ClaimedEntryOff {
                first.start += u64::from(first.len() > 1);
            } else if next.start > first.start {
                first.end = next.start + 1;
            }
            Some(())
        };
        self.spoilt_claims(&spoil)
    }

    /// Claims in which something was changed that has to do with the function of a number.
    pub(super) fn spoilt_claims(
        &self,
        spoil: &dyn Fn(&mut Claim<'_>, usize) -> Option<()>,
    ) -> Vec<Edit> {
        let mut edits = Vec::new();
        for i in 0..self.claim.functions.len().min(50) {
            let mut claim: Claim<'_> = self.claim.clone();
            if spoil(&mut claim, i).is_none() || claim == self.claim {
                continue;
            }
            edits.extend(self.claiming(&claim, format!("function {i}")));
        }
        edits
    }

    /// Another claim in the place of the one that is there.
    pub(super) fn claiming(&self, claim: &Claim<'_>, what: String) -> Option<Edit> {
        let index = self.output.sections.iter().position(|s| {
            s.name == b".note.postlink"
                || s.kind == elf::SHT_NOTE
                    && elf::find_note(self.output.section_data(s), |name, kind| {
                        name == b"postlink" && kind == 1
                    })
                    .is_some()
        })?;
        let desc = claim.encode();
        let mut note = Vec::new();
        note.extend(9u32.to_le_bytes());
        note.extend((desc.len() as u32).to_le_bytes());
        note.extend(1u32.to_le_bytes());
        note.extend(b"postlink\0\0\0\0");
        note.extend(desc);
        note.resize(note.len().next_multiple_of(4), 0);
        let at = self.output.data.len();
        let header = u64_in(self.output.data, 40).unwrap_or(0) as usize + 64 * index;
        let mut place = (at as u64).to_le_bytes().to_vec();
        place.extend((note.len() as u64).to_le_bytes());
        Some(Edit {
            what,
            changes: vec![(at, note), (header + 24, place)],
        })
    }

    fn headers(&self) -> impl Iterator<Item = (usize, elf::Segment)> + '_ {
        let kinds = (0..self.output.phnum as usize)
            .map(|i| self.output.phoff as usize + 56 * i)
            .filter(|&at| u32_in(self.output.data, at).is_some_and(|k| k != elf::PT_NULL));
        kinds.zip(self.output.segments.iter().copied())
    }

    fn segments(
        &self,
        wanted: impl Fn(&elf::Segment) -> bool,
        change: impl Fn(u32) -> u32,
    ) -> Vec<Edit> {
        self.headers()
            .filter(|(_, s)| wanted(s))
            .map(|(at, s)| {
                Edit::new(
                    format!("the segment at {:#x}", s.addr),
                    at + 4,
                    &change(s.flags).to_le_bytes(),
                )
            })
            .collect()
    }

    fn relro(&self) -> Vec<Edit> {
        let relro = self
            .headers()
            .filter(|(_, s)| s.kind == PT_GNU_RELRO && s.mem_size > 0x10);
        relro
            .map(|(at, s)| Edit::new("its size", at + 40, &(s.mem_size - 8).to_le_bytes()))
            .collect()
    }

    /// A bit of each eighth byte (or word) in some sections.
    fn sections(&self, names: &[&[u8]], step: usize) -> Vec<Edit> {
        let mut edits = Vec::new();
        for s in self
            .output
            .sections
            .iter()
            .filter(|s| names.contains(&s.name) && s.kind != elf::SHT_NOBITS)
        {
            let bytes = self.output.section_data(s);
            for i in (0..bytes.len()).step_by(step.max(bytes.len() / 200 / step * step).max(1)) {
                edits.push(Edit::new(
                    format!(
                        "{} at {:#x}",
                        String::from_utf8_lossy(s.name),
                        s.addr + i as u64
                    ),
                    s.offset as usize + i,
                    &[bytes.get(i).copied().unwrap_or(0) ^ 0x10],
                ));
            }
        }
        edits
    }

    fn init_order(&self) -> Vec<Edit> {
        let Some(s) = self.output.section(b".init_array") else {
            return Vec::new();
        };
        let mut slots: Vec<(usize, u64)> = self
            .relative()
            .into_iter()
            .filter(|r| s.addr <= r.1 && r.1 < s.end())
            .map(|r| (r.0 + 16, r.2))
            .collect();
        if slots.is_empty() {
            slots = self
                .output
                .section_data(s)
                .chunks_exact(8)
                .enumerate()
                .map(|(i, w)| (s.offset as usize + 8 * i, u64_in(w, 0).unwrap_or(0)))
                .collect();
        }
        let pairs = slots.windows(2).filter_map(|w| {
            if let [a, b] = w {
                (a.1 != b.1).then_some((a, b))
            } else {
                None
            }
        });
        pairs
            .map(|(a, b)| Edit {
                what: format!("{:#x} and {:#x}", a.1, b.1),
                changes: vec![
                    (a.0, b.1.to_le_bytes().to_vec()),
                    (b.0, a.1.to_le_bytes().to_vec()),
                ],
            })
            .collect()
    }
}
