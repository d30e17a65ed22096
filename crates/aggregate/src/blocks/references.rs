//! What the relocations that the linker kept say of code and data, where a jump does not name its table.

use postlink_elf::raw::{R_AARCH64_ABS64, R_X86_64_64, R_X86_64_PC32};
use std::sync::OnceLock;

use postlink_elf::elf::{Elf, KeptReloc, SymbolTable};
use rayon::prelude::*;

/// What relocations say of code and data; read when first asked for.
#[derive(Debug, Default)]
pub struct References {
    kept: bool,
    found: OnceLock<Found>,
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
        }
    }

    /// Whether the linker kept relocations.
    pub(super) fn kept(&self) -> bool {
        self.kept
    }

    /// What they say; `None` if there are none.
    pub(super) fn found(&self, elf: &Elf<'_>) -> Option<&Found> {
        self.kept
            .then(|| self.found.get_or_init(|| Found::read(elf)))
    }
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
        let sorted = |mut list: Vec<u64>| {
            list.par_sort_unstable();
            list.dedup();
            list
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
