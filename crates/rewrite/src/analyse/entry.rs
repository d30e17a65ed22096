//! Old entries: where a jump to the new code fits.

use std::cell::OnceCell;

use postlink_elf::InputAddr;
use postlink_isa::{Code, FixupKind, Isa, Place, Reach};
use smallvec::SmallVec;

use crate::cfg::{BlockId, Cfg, Field, Term, Use};
use crate::discover::{Piece, Program};

/// An old entry that gets a jump to the new code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPatch {
    /// Where control enters.
    pub entry: InputAddr,
    /// Where in the old body the jump goes: after a landing pad, if there is one.
    pub at: InputAddr,
}

/// An entry beside the first. Functions have some where hand-written code says so, and where compilers let
/// several share a part: they are one to us then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondaryEntry {
    /// Its address, and where its jump goes.
    pub patch: EntryPatch,
    /// The block that begins there.
    pub block: BlockId,
}

/// Entries of a function beside its first where a jump to the new code fits, and labels at which control comes back
/// from old code. Pointers to them are not followed; where there is no jump, control that enters through one runs the
/// old body up to its next table or call, as it always was.
pub fn secondary_entries<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    function: usize,
    targets: &OnceCell<Vec<u64>>,
) -> Vec<SecondaryEntry> {
    let f = &program.functions[function];
    let start = program.start(function);
    let jump = |entry: &u64| {
        let entry = *entry;
        let led = |list: &[(u64, BlockId)]| list.iter().any(|m| m.0 == entry);
        if entry == start || led(&cfg.anchored_targets) || program.is_far::<I>(entry) {
            return None;
        }
        let at = cfg
            .address_taken
            .binary_search_by_key(&entry, |m| m.0)
            .ok()?;
        Some(SecondaryEntry {
            patch: entry_patch::<I>(program, cfg, entry, targets)?,
            block: cfg.address_taken[at].1,
        })
    };
    let labels = f.labels.iter().filter(|_| !program.refs.kept);
    f.entries.iter().chain(labels).filter_map(jump).collect()
}

/// Whether a jump to the new place fits at an entry: five bytes that nothing else jumps into, after a landing
/// pad if there is one. `targets`: room for [`table_targets`], which are the same for all entries of the function.
pub fn entry_patch<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    entry: u64,
    targets: &OnceCell<Vec<u64>>,
) -> Option<EntryPatch> {
    let (piece, at, end) = place_of_jump::<I>(program, entry)?;
    if !program.refs.kept
        && (!program.entry_proof.allows(at, end)
            || may_table_lead_into::<I>(program, cfg, (at, end), targets))
    {
        return None;
    }
    // Whatever begins inside must be reached by running into it from the entry only.
    for (b, block) in cfg
        .blocks
        .iter()
        .enumerate()
        .filter(|(_, b)| b.start > entry && b.start < end)
    {
        let marked = block.landing_pad
            || block.returns_twice
            || cfg.address_taken.iter().any(|m| m.0 == block.start);
        let fallen_into = |p: usize| {
            let before = &cfg.blocks[p];
            let way = match before.term {
                Term::Fall => 0,
                Term::Cond { .. } | Term::ShortCond => 1,
                Term::CondOut { .. } | Term::ShortCondOut { .. } => 0,
                _ => return false,
            };
            let succs = cfg.succs(p as BlockId);
            before.end == block.start
                && before.start >= entry
                && succs
                    .iter()
                    .enumerate()
                    .all(|(k, s)| (*s as usize == b) == (k == way))
        };
        let reached = (0..cfg.blocks.len())
            .filter(|p| cfg.succs(*p as BlockId).contains(&(b as BlockId)))
            .all(fallen_into);
        if marked || !reached {
            return None;
        }
    }
    if !has_room::<I>(program, piece, end) {
        return None;
    }
    Some(EntryPatch {
        entry: InputAddr::new(entry),
        at: InputAddr::new(at),
    })
}

/// Whether a jump to the new place fits at an entry, as far as that can be said without the function's graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JumpAt {
    Fits,
    DoesNot,
    /// Blocks begin inside: their ways in have to be looked at.
    OverBlocks,
}

/// Says that of a function that the linker kept relocations for. Its second block begins `second` bytes behind its
/// entry at the least.
pub(crate) fn jump_at<I: Isa>(program: &Program<'_>, entry: u64, second: u64) -> JumpAt {
    match place_of_jump::<I>(program, entry) {
        None => JumpAt::DoesNot,
        Some((_, _, end)) if end > entry + second => JumpAt::OverBlocks,
        Some((piece, _, end)) if has_room::<I>(program, piece, end) => JumpAt::Fits,
        Some(_) => JumpAt::DoesNot,
    }
}

/// Where at an entry the jump goes: the entry's piece, the jump's first address, and one past its last.
fn place_of_jump<'p, I: Isa>(
    program: &'p Program<'_>,
    entry: u64,
) -> Option<(&'p Piece, u64, u64)> {
    let piece = program.piece_at(entry)?;
    let first = I::decode(
        program.elf.bytes_at(entry, (piece.end - entry).min(16))?,
        entry,
    )?;
    let at = if first.traits.landing_pad {
        first.end()
    } else {
        entry
    };
    let mut jump: Code<()> = Code::default();
    put_entry::<I, ()>(
        program,
        &mut jump,
        entry,
        program.elf.bytes_at(at, (piece.end - at).min(16))?,
        (),
    );
    if program.is_far::<I>(entry) && program.guarded && !first.traits.landing_pad {
        return None;
    }
    let end = at + jump.bytes.len() as u64;
    Some((piece, at, end))
}

/// Whether what is behind a piece may be overwritten up to `end`: padding.
fn has_room<I: Isa>(program: &Program<'_>, piece: &Piece, end: u64) -> bool {
    if end > piece.end {
        let i = program.pieces.partition_point(|p| p.start <= piece.start);
        let limit = program
            .pieces
            .get(i)
            .map_or(u64::MAX, |p| p.start)
            .min(program.elf.sections[piece.section as usize].end());
        if end > limit {
            return false;
        }
        let Some(padding) = program.elf.bytes_at(piece.end, end - piece.end) else {
            return false;
        };
        if !padding.iter().all(|b| matches!(b, 0 | 0x90 | 0xcc)) {
            let len = limit.min(piece.end + 32) - piece.end;
            let Some(whole) = program.elf.bytes_at(piece.end, len) else {
                return false;
            };
            let mut reach = piece.end;
            I::sweep(whole, piece.end, |i| {
                if i.traits.nop {
                    reach = i.end();
                }
                i.traits.nop
            });
            if reach < end {
                return false;
            }
        }
    }
    true
}

/// Whether a jump of the function may lead through a table to an instruction that a jump at an old entry overwrites
/// after its first byte, `at`, up to `end`.
fn may_table_lead_into<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    (at, end): (u64, u64),
    targets: &OnceCell<Vec<u64>>,
) -> bool {
    let second = (at + 1).next_multiple_of(I::INSTRUCTION_ALIGNMENT);
    if cfg.falls_back.is_empty() && cfg.own_tables.is_empty() || second >= end {
        return false;
    }
    let targets = targets.get_or_init(|| table_targets::<I>(program, cfg));
    let next = targets.partition_point(|to| *to <= at);
    targets.get(next).is_some_and(|to| *to < end)
}

/// Where in the function a jump of it may lead through a table, ascending: whichever of the addresses that the function
/// forms is the table, and whichever its entries are added to.
fn table_targets<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> Vec<u64> {
    /// More entries than this no table has.
    const ENTRIES: u64 = 4096;
    let function = cfg.blocks.first().and_then(|b| program.piece_at(b.start));
    let function = function.map(|p| &program.functions[p.function as usize]);
    let pieces = function.iter().flat_map(|f| &f.pieces);
    let ranges: SmallVec<[(u64, u64); 2]> = pieces
        .map(|p| &program.pieces[*p as usize])
        .map(|p| (p.start, p.end))
        .collect();
    let formed = formed::<I>(program, cfg);
    let is_code = |a: &u64| {
        let section = program.elf.section_at(*a);
        section.is_some_and(|(_, s)| s.is_code())
    };
    let bases: Vec<u64> = formed.iter().copied().filter(is_code).collect();
    // A table is in one section.
    let limit = |table: u64| {
        let section = program.elf.section_at(table);
        section.map_or(u64::MAX, |(_, s)| s.end())
    };
    let mut targets = Vec::new();
    let mut of_table = |table: u64, width: u64, shift: u32| {
        let room = (limit(table) - table) / width;
        let entries = (0..ENTRIES.min(room))
            .map_while(|i| program.elf.bytes_at(table.wrapping_add(width * i), width));
        for value in entries.flat_map(values) {
            for base in std::iter::once(&table).chain(&bases) {
                let target = base.wrapping_add(value << shift);
                if ranges.iter().any(|r| r.0 <= target && target < r.1) {
                    targets.push(target);
                }
            }
        }
    };
    // Instructions, read as entries of one byte, lead anywhere; tables of such entries are in data.
    let is_table = |a: &&u64| I::INSTRUCTION_ALIGNMENT == 1 || !is_code(a);
    for &table in formed.iter().filter(is_table) {
        for &(width, shift) in I::TABLE_ENTRIES {
            of_table(table, width, shift);
        }
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// What an entry of a table may mean: with its sign, and without.
fn values(entry: &[u8]) -> [u64; 2] {
    let mut wide = [0; 8];
    wide[..entry.len()].copy_from_slice(entry);
    let unsigned = u64::from_le_bytes(wide);
    let unused = 64 - 8 * entry.len() as u32;
    [((unsigned << unused) as i64 >> unused) as u64, unsigned]
}

/// Addresses that a function forms, by one instruction or by several; ascending.
fn formed<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> Vec<u64> {
    let is_formed = |f: &&Field| f.role == Use::Address || f.kind == FixupKind::Adr;
    let fields = cfg.fields.iter().filter(is_formed);
    let mut formed: Vec<u64> = fields.map(|f| f.target).collect();
    let function = cfg.blocks.first().and_then(|b| program.piece_at(b.start));
    let function = function.map(|p| &program.functions[p.function as usize]);
    for piece in function.iter().flat_map(|f| &f.pieces) {
        let piece = &program.pieces[*piece as usize];
        let bytes = program.elf.bytes_at(piece.start, piece.end - piece.start);
        I::in_parts(
            bytes.unwrap_or_default(),
            piece.start,
            &|_| true,
            &mut |place, to| {
                if place == Place::Formed {
                    formed.push(to);
                }
            },
        );
    }
    formed.sort_unstable();
    formed.dedup();
    formed
}

/// Appends what takes the place of an old entry. Where pages are not guarded, no landing pad is needed, and nothing but
/// the first instruction is overwritten; with relocations outputs stay as they were.
pub fn put_entry<I: Isa, T: Copy>(
    program: &Program<'_>,
    out: &mut Code<T>,
    entry: u64,
    original: &[u8],
    target: T,
) {
    if program.is_far::<I>(entry) {
        I::put_far_entry(out, original, target);
    } else if program.refs.kept || program.guarded {
        I::put_entry(out, original, target);
    } else {
        I::put_jump(out, Reach::Long, target);
    }
}
