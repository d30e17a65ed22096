//! What relocations say of code and data, where a jump does not name its table: those that the linker kept and,
//! of a position-independent file, those of the loader.

use postlink_elf::raw::{
    ET_DYN, R_AARCH64_ABS64, R_AARCH64_RELATIVE, R_X86_64_64, R_X86_64_PC32, R_X86_64_RELATIVE,
};
use std::sync::OnceLock;

use postlink_elf::elf::{Elf, KeptReloc, SymbolTable};
use rayon::prelude::*;

/// What relocations say of code and data; read when first asked for.
#[derive(Debug, Default)]
pub struct References {
    kept: bool,
    found: OnceLock<Found>,
    /// Of a position-independent file: [`References::data_refers_to`].
    relative: OnceLock<Vec<u64>>,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    /// Addresses in code that data refers to, ascending.
    pub(super) into_code: Vec<u64>,
    /// Addresses of data that code forms, ascending: each may begin a table, and ends the one before.
    pub(super) bases: Vec<u64>,
}

impl References {
    /// Of a file.
    pub fn new(elf: &Elf<'_>) -> References {
        References {
            kept: elf.has_kept_relocs(),
            found: OnceLock::new(),
            relative: OnceLock::new(),
        }
    }

    /// Whether the linker kept relocations.
    pub(super) fn kept(&self) -> bool {
        self.kept
    }

    /// Addresses in code that data refers to, ascending, as far as that is known: the loader has to change them all in
    /// a position-independent file, and of another the kept relocations tell.
    pub(super) fn data_refers_to(&self, elf: &Elf<'_>) -> &[u64] {
        if elf.etype == ET_DYN {
            self.relative.get_or_init(|| relative(elf))
        } else {
            self.found(elf).map_or(&[], |found| &found.into_code)
        }
    }

    /// What they say; `None` if there are none.
    pub(super) fn found(&self, elf: &Elf<'_>) -> Option<&Found> {
        self.kept
            .then(|| self.found.get_or_init(|| Found::read(elf)))
    }
}

/// Addresses in code that data holds and the loader changes, ascending. None of a file whose relocations are not as
/// they should be.
fn relative(elf: &Elf<'_>) -> Vec<u64> {
    let is_code = |address: u64| elf.section_at(address).is_some_and(|(_, s)| s.is_code());
    let relocs = elf.dyn_relocs().unwrap_or_default();
    let found = postlink_parallel::filter_map(&relocs, |reloc| {
        let is_relative = matches!(reloc.kind, R_X86_64_RELATIVE | R_AARCH64_RELATIVE);
        let target = reloc.addend as u64;
        (is_relative && is_code(target) && !is_code(reloc.addr)).then_some(target)
    });
    sorted(found)
}

fn sorted(mut list: Vec<u64>) -> Vec<u64> {
    list.par_sort_unstable();
    list.dedup();
    list
}

impl Found {
    fn read(elf: &Elf<'_>) -> Found {
        let symbols = elf.symbols(SymbolTable::Static);
        let is_code = |address: u64| elf.section_at(address).is_some_and(|(_, s)| s.is_code());
        let Ok(relocs) = elf.kept_relocs() else {
            return Found::default();
        };
        let value = |reloc: &KeptReloc| {
            let symbol = symbols.get(reloc.symbol as usize)?;
            Some(symbol.value.wrapping_add_signed(reloc.addend))
        };
        let into_code = postlink_parallel::filter_map(&relocs, |reloc| {
            let is_word = matches!(reloc.kind, R_X86_64_64 | R_AARCH64_ABS64);
            let target = (is_word && !is_code(reloc.addr)).then(|| value(reloc))??;
            is_code(target).then_some(target)
        });
        // The field is the last part of the instruction: the address counts from its end.
        let bases = postlink_parallel::filter_map(&relocs, |reloc| {
            let is_field = reloc.kind == R_X86_64_PC32 && is_code(reloc.addr);
            let base = is_field.then(|| value(reloc))??.wrapping_add(4);
            (!is_code(base)).then_some(base)
        });
        Found {
            into_code: sorted(into_code),
            bases: sorted(bases),
        }
    }
}
