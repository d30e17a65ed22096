//! Exception tables of the input.

use postlink_elf::unwind::lsda::{Lsda, PadBase, Personality, personality_of};
use rustc_hash::{FxHashMap, FxHashSet};

use super::program::Program;
use crate::pin::Pin;

/// Of an encoding of a pointer: it leads to a word with the address (`DW_EH_PE_indirect`).
const INDIRECT: u8 = 0x80;

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
/// of the data word that points to it (`DW.ref.…`), or of the dynamic relocation that fills that word. Of one without
/// any name, in a stripped static program, the least is taken for known that its tables show ([`without_name`]).
pub fn personalities(program: &Program<'_>) -> Vec<Option<Personality>> {
    use postlink_elf::elf::SymbolTable;
    let wanted: Vec<u64> = program
        .eh
        .cies
        .iter()
        .filter_map(|c| c.personality.map(|p| p.1))
        .collect();
    let pointers = &program.refs.pointers;
    // The routine's address, or that of a word with its address: `at`, and what is pointed to there.
    let pointed = |encoding: u8, at: u64| {
        let found = pointers.binary_search_by_key(&at, |p| p.place).ok();
        let word = || {
            let indirect = program.refs.fixed && encoding & INDIRECT != 0;
            indirect.then(|| program.elf.u64_at(at))?
        };
        found.map(|p| pointers[p].target).or_else(word)
    };
    let mut asked: FxHashSet<u64> = FxHashSet::default();
    for (encoding, at) in program.eh.cies.iter().filter_map(|c| c.personality) {
        asked.insert(at);
        asked.extend(pointed(encoding, at));
    }
    let mut names: FxHashMap<u64, Personality> = FxHashMap::default();
    let mut others: FxHashSet<u64> = FxHashSet::default();
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        if wanted.is_empty() {
            break;
        }
        let symbols = program.elf.symbols(table);
        for (_, s) in symbols.iter_where(|s| s.section != 0 && asked.contains(&s.value)) {
            let name = s.name.strip_prefix(b"DW.ref.").unwrap_or(s.name);
            if let Some(known) = personality_of(name) {
                names.insert(s.value, known);
            } else {
                others.insert(s.value);
            }
        }
    }
    let mut guessed: FxHashMap<(u8, u64), Option<Personality>> = FxHashMap::default();
    program
        .eh
        .cies
        .iter()
        .map(|c| {
            let (encoding, at) = c.personality?;
            let pointed = pointed(encoding, at);
            let imported = || {
                let i = program.refs.import_at(at)?;
                let symbols = program.elf.symbols(SymbolTable::Dynamic);
                Some(symbols.get(i as usize)?.name)
            };
            let imported = imported().or_else(|| program.import_name(at));
            let known = names
                .get(&at)
                .copied()
                .or_else(|| names.get(&pointed?).copied())
                .or_else(|| personality_of(imported?));
            let mut places = [Some(at), pointed].into_iter().flatten();
            let named = imported.is_some() || places.any(|a| others.contains(&a));
            let routine = (encoding, at);
            let guess = || {
                let known = guessed.entry(routine);
                *known.or_insert_with(|| without_name(program, routine))
            };
            known.or_else(|| (!named).then(guess)?)
        })
        .collect()
}

/// What is taken for known of a personality routine that has no name: it reads its tables as those of C, C++, Rust and
/// Ada do, in which all of them have a meaning (the checker counts that as an assumption). It may be asked about any
/// instruction, and count landing pads from the function's start alone: those of C and of D do.
fn without_name(program: &Program<'_>, routine: (u8, u64)) -> Option<Personality> {
    let cies = &program.eh.cies;
    let own = program.eh.fdes.iter().filter(|fde| {
        let of = cies.get(fde.cie).and_then(|cie| cie.personality);
        of == Some(routine)
    });
    for fde in own {
        let Some(addr) = fde.lsda.filter(|addr| *addr != 0) else {
            continue;
        };
        let lsda = Lsda::parse(program.elf, addr, fde.start).ok()?;
        let inside = |pad: u64| {
            program
                .elf
                .section_at(pad)
                .is_some_and(|(_, s)| s.is_code())
        };
        let mut pads = lsda.call_sites.iter().filter_map(|c| c.landing_pad);
        if !pads.all(inside) {
            return None;
        }
    }
    Some(Personality {
        pad_base: PadBase::FunctionStart,
        faults: true,
    })
}
