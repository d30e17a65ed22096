//! Faults in what the program may see of a code address: everything leads to the right code, and one value is
//! not what it may be.

use super::{Edit, Faults, Kind};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::FieldKind;
use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::context::code_ranges;
use crate::files::bytes::u64_in;
use crate::files::elf::{self, SHT_DYNSYM, SHT_RELA, SHT_SYMTAB, SYM_SIZE};
use crate::files::unwind::Table;
use crate::proof::visible::{self, Extents, keeps_low_bits};

impl Faults<'_> {
    pub(super) fn visible_edits(&self, kind: Kind) -> Vec<Edit> {
        match kind {
            Kind::LabelLeftBehind => self.labels_left(),
            _ => self.following(kind),
        }
    }

    /// Functions whose pointers are what they were: all of them lead to the new entry.
    fn following(&self, kind: Kind) -> Vec<Edit> {
        let Ok(unwind) = Table::read(&self.input) else {
            return Vec::new();
        };
        let code = code_ranges(&self.input);
        let mut starts: Vec<u64> = self
            .input
            .symbols(SHT_SYMTAB)
            .filter(|s| s.is_function() && s.section != 0)
            .map(|s| s.value)
            .chain(unwind.fdes.iter().map(|f| f.start))
            .chain(code.iter().map(|r| r.start))
            .collect();
        starts.sort_unstable();
        starts.dedup();
        let extents = Extents::new(visible::named(&self.input), &unwind, &starts, &code);
        let bare = |start| {
            if self.arm {
                extents.is_bare_in_front::<AArch64>(&self.input, start)
            } else {
                extents.is_bare_in_front::<X86_64>(&self.input, start)
            }
        };
        let one = |f: &crate::files::claim::Moved| {
            let (old, new) = (f.old_entry, f.new_entry());
            let seen = match kind {
                Kind::FewerZeroBits => !keeps_low_bits(old.get(), new.get()),
                _ => !bare(old.get()) && keeps_low_bits(old.get(), new.get()),
            };
            let changes = seen.then(|| self.all_pointers(old.get(), new.get()))?;
            (!changes.is_empty()).then(|| Edit {
                what: format!("{} pointers to {old:#x} are {new:#x}", changes.len()),
                changes,
            })
        };
        self.claim.functions.iter().filter_map(one).collect()
    }

    /// Everything that holds the old address of a function, and what it becomes: file offset and bytes.
    fn all_pointers(&self, old: u64, new: u64) -> Vec<(usize, Vec<u8>)> {
        let bytes = new.to_le_bytes().to_vec();
        let mut changes: Vec<(usize, Vec<u8>)> = Vec::new();
        let addends = self.relative().into_iter().filter(|r| r.2 == old);
        changes.extend(addends.map(|r| (r.0 + 16, bytes.clone())));
        for s in &self.output.sections {
            let code = s.flags & elf::SHF_EXECINSTR != 0;
            let held = s.is_alloc() && s.kind != elf::SHT_NOBITS && !code;
            if held && !matches!(s.kind, SHT_RELA | SHT_DYNSYM) {
                for (i, word) in self.output.section_data(s).chunks_exact(8).enumerate() {
                    if u64_in(word, 0) == Some(old) {
                        changes.push((s.offset as usize + 8 * i, bytes.clone()));
                    }
                }
            }
            if s.kind == SHT_DYNSYM {
                for (i, symbol) in self.output.symbols(SHT_DYNSYM).enumerate() {
                    if symbol.section != 0 && symbol.value == old {
                        changes.push((s.offset as usize + SYM_SIZE * i + 8, bytes.clone()));
                    }
                }
            }
        }
        let forms = |s: &&super::Site| {
            let field = s.insn.field;
            field.is_some_and(|f| f.kind == FieldKind::Forms && f.target == old)
        };
        let by = new.wrapping_sub(old) as i64;
        for site in self.sites.iter().filter(forms) {
            let edit = if self.arm {
                self.shift_a64(site, by)
            } else {
                self.shift(site, by)
            };
            changes.extend(edit.into_iter().flat_map(|e| e.changes));
        }
        changes
    }

    /// Pointers to labels that follow their blocks: one is what it was, as an entry of a table is that finds
    /// frames by return address.
    fn labels_left(&self) -> Vec<Edit> {
        let is_entry = |v: u64| {
            self.claim
                .functions
                .iter()
                .any(|f| f.new_entry() == OutputAddr::new(v))
        };
        // What the loader overwrites may be anything.
        let overwritten: Vec<u64> = self.relative().iter().map(|r| r.1).collect();
        let labels = self.changed_pointers().into_iter();
        labels
            .filter(|(_, value)| !is_entry(*value))
            .filter_map(|(at, value)| {
                // The file may have grown in front of it.
                let holds = |l: &&elf::Segment| {
                    l.offset <= at as u64 && (at as u64) < l.offset + l.file_size
                };
                let load = self.output.loads().iter().find(holds)?;
                let addr = load.addr + (at as u64 - load.offset);
                let old = self
                    .input
                    .u64_at(addr)
                    .filter(|_| !overwritten.contains(&addr))?;
                let inside = self
                    .claim
                    .functions
                    .iter()
                    .any(|f| f.in_old(InputAddr::new(old)));
                let what = format!("{value:#x} is {old:#x} at offset {at:#x}");
                inside.then(|| Edit::new(what, at, &old.to_le_bytes()))
            })
            .collect()
    }
}
