//! Exception tables of the input.

use postlink_elf::unwind::lsda::{Lsda, Personality, personality_of};

use super::program::Program;
use crate::pin::Pin;

/// The exception table of a piece.
pub fn lsda_of<'d>(program: &Program<'d>, piece: usize) -> Result<Option<Lsda<'d>>, Pin> {
    let p = &program.pieces[piece];
    let Some(fde) = p.fde.map(|f| &program.eh.fdes[f as usize]) else {
        return Ok(None);
    };
    match fde.lsda {
        None | Some(0) => Ok(None),
        Some(addr) if is_changed_by_loader(program, addr) => Err(Pin::ChangedByLoader),
        Some(addr) => Lsda::parse(program.elf, addr, fde.start)
            .map(Some)
            .map_err(|_| Pin::ExceptionTable),
    }
}

/// Whether the dynamic loader writes into the exception table at `addr`, which ends where the next begins at the
/// latest.
fn is_changed_by_loader(program: &Program<'_>, addr: u64) -> bool {
    if program.refs.loaded.is_empty() {
        return false;
    }
    let section = program
        .elf
        .sections
        .iter()
        .find(|s| s.is_alloc() && s.addr <= addr && addr < s.end());
    let tables = program.eh.fdes.iter().filter_map(|fde| fde.lsda);
    let next = tables.filter(|other| *other > addr).min();
    let end = section
        .map_or(u64::MAX, |s| s.end())
        .min(next.unwrap_or(u64::MAX));
    program.refs.loaded_in(addr, end).is_some()
}

/// The personality routine of a piece, if it is known.
pub fn personality(program: &Program<'_>, piece: usize) -> Option<Personality> {
    let fde = &program.eh.fdes[program.pieces[piece].fde? as usize];
    *program.personalities.get(fde.cie)?
}

/// By CIE: its personality routine; `None` for an unknown one. It is known by its symbol's name: that of the routine,
/// of the data word that points to it (`DW.ref.…`), or of the dynamic relocation that fills that word.
pub fn personalities(program: &Program<'_>) -> Vec<Option<Personality>> {
    use postlink_elf::elf::SymbolTable;
    let wanted: Vec<u64> = program
        .eh
        .cies
        .iter()
        .filter_map(|c| c.personality.map(|p| p.1))
        .collect();
    let mut names: rustc_hash::FxHashMap<u64, Personality> = rustc_hash::FxHashMap::default();
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        if wanted.is_empty() {
            break;
        }
        for s in program.elf.symbols(table).iter() {
            let name = s.name.strip_prefix(b"DW.ref.").unwrap_or(s.name);
            if s.section != 0
                && let Some(known) = personality_of(name)
            {
                names.insert(s.value, known);
            }
        }
    }
    program
        .eh
        .cies
        .iter()
        .map(|c| {
            let (_, at) = c.personality?;
            let pointed = || {
                let p = program
                    .refs
                    .pointers
                    .binary_search_by_key(&at, |p| p.place)
                    .ok()?;
                names.get(&program.refs.pointers[p].target).copied()
            };
            let imported = || {
                let i = program.refs.import_at(at)?;
                personality_of(
                    program
                        .elf
                        .symbols(SymbolTable::Dynamic)
                        .get(i as usize)?
                        .name,
                )
            };
            names
                .get(&at)
                .copied()
                .or_else(pointed)
                .or_else(imported)
                .or_else(|| personality_of(program.import_name(at)?))
        })
        .collect()
}
