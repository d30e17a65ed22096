//! Per-thread counters: where they may be used, and what functions need for them.
//!
//! Each thread counts in an area of its own, relative to a segment base that programs leave alone
//! (`isa::x86_64::threads`, `runtime::shards`). That is as fast as counters without locks and as exact as
//! those with. It rests on three things, and where one is missing counters are atomic:
//!
//! * the base is free: no code of the program uses it, in functions or elsewhere ([`uncovered`]);
//! * every thread and every forked process is noticed before it counts. Threads come in through pointers to functions,
//!   so through old entries, which lead to a check in front of the new body (for entries beside the first, to one that
//!   is elsewhere and continues there). Forked processes come back from calls of known functions, after which is
//!   another check. A function that leaves by a jump to one of these is one of them itself, where nothing in the file
//!   points to it, so that all calls of it are seen (`follow_tail_calls`);
//! * threads have an identity, which a dynamic loader gives them before any code of the program runs.
//!
//! It is also the choice for programs without threads: it costs them next to nothing, and two processes that
//! count in one file lose nothing.

use postlink_isa::{Effects, Flow, Forks, Insn, Isa, RegSet};
use rayon::slice::ParallelSliceMut;
use smallvec::SmallVec;

use super::uncovered;
use crate::cfg::{BlockId, Cfg};
use crate::discover::{NonlocalExits, Piece, Program, is_program};

/// Library functions that make threads with their parent's identity, or set the base.
const UNNOTICED: &[&[u8]] = &[b"clone", b"__clone", b"clone3", b"arch_prctl"];

/// Why a program cannot have per-thread counters: a sentence. `None` if it can, as far as its code shows: then it is
/// noted which of its functions are called as if they forked themselves (`follow_tail_calls`).
pub fn obstacle<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &mut NonlocalExits,
) -> Option<String> {
    if I::PER_THREAD.is_none() {
        return Some(format!(
            "there are no such counters in {} programs",
            I::NAME
        ));
    }
    if !is_program(program.elf) {
        return Some("a shared library does not know the threads of its host".into());
    }
    if program.elf.interpreter().is_none() {
        return Some(
            "a static program has no thread identities before its own start-up code makes them"
                .into(),
        );
    }
    if let Some(name) = program.imported(|name| UNNOTICED.contains(&name)) {
        return Some(format!("it uses the function {}", name.escape_ascii()));
    }
    let survey = Survey::new(program, nonlocal_exits);
    follow_tail_calls::<I>(program, nonlocal_exits, &survey);
    let known = &*nonlocal_exits;
    let of_function = |f: usize| {
        let suspect = survey.suspects[f] || survey.jumps_of(f).any(|to| known.may_fork(to));
        suspect.then(|| of_function::<I>(program, known, f, false))?
    };
    postlink_parallel::find_first(program.functions.len(), of_function).or_else(|| {
        let at = uncovered::uses_segment::<I>(program)?;
        Some(format!(
            "the program uses the segment of per-thread counters itself, at {at:#x}"
        ))
    })
}

/// What the sweep over all code has noted, by function.
struct Survey {
    /// By function: it is looked at instruction by instruction, as something in it may be an obstacle, or as it jumps
    /// to what is known to fork.
    suspects: Vec<bool>,
    /// Functions, and what they jump to other than their insides, by function.
    jumps: Vec<(u32, u64)>,
}

impl Survey {
    fn new(program: &Program<'_>, known: &NonlocalExits) -> Survey {
        let Some(survey) = &program.survey else {
            // Then all functions are looked at.
            return Survey {
                suspects: vec![true; program.functions.len()],
                jumps: Vec::new(),
            };
        };
        let mut suspects = vec![false; program.functions.len()];
        let mut suspect = |piece: &Piece| suspects[piece.function as usize] = true;
        for piece in &survey.suspects {
            suspect(&program.pieces[*piece as usize]);
        }
        // Jumps of stubs mean nothing here, so they are not noted.
        program
            .pieces
            .iter()
            .filter(|p| is_stub(program, p))
            .for_each(&mut suspect);
        // What jumps to its own inside is not noted.
        let inside = known
            .all_forking()
            .filter_map(|at| Some((program.piece_at(at)?, at)));
        inside
            .filter(|(piece, at)| piece.start < *at)
            .for_each(|(piece, _)| suspect(piece));
        let may_be_any = known.known(None).forks != Forks::Never;
        let mut jumps = Vec::with_capacity(survey.jumps.len());
        for (piece, to) in &survey.jumps {
            let piece = &program.pieces[*piece as usize];
            match to {
                Some(to) if !is_stub(program, piece) => jumps.push((piece.function, *to)),
                None if may_be_any => suspect(piece),
                _ => {}
            }
        }
        jumps.par_sort_unstable();
        Survey { suspects, jumps }
    }

    /// What a function jumps to.
    fn jumps_of(&self, function: usize) -> impl Iterator<Item = u64> + '_ {
        let first = self.jumps.partition_point(|j| (j.0 as usize) < function);
        let own = self.jumps[first..].iter();
        own.take_while(move |j| j.0 as usize == function)
            .map(|j| j.1)
    }
}

/// Finds functions that leave by a jump to one that forks. In a forked process they return to whoever called them:
/// calls are followed by checks. Other files may call them, too: there the program's own code is entered anew by an
/// old entry.
fn follow_tail_calls<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &mut NonlocalExits,
    survey: &Survey,
) {
    // Any number may be a pointer there.
    if program.refs.fixed && !program.refs.kept {
        return;
    }
    loop {
        let known = &*nonlocal_exits;
        let found: Vec<u64> = postlink_parallel::flat_map_range(program.functions.len(), |f| {
            let function = &program.functions[f];
            let start = program.start(f);
            let callable = !function.pointed_at && function.entries.is_empty();
            let candidate = callable && function.labels.is_empty() && !known.is_forking(start);
            let jumps = || {
                survey.jumps_of(f).any(|to| known.may_fork(to))
                    || survey.suspects[f] && jumps_to_fork::<I>(program, known, f)
            };
            (candidate && jumps()).then_some(start)
        });
        if found.is_empty() {
            return;
        }
        for start in found {
            nonlocal_exits.forks_at_its_end(start);
        }
    }
}

fn jumps_to_fork<I: Isa>(program: &Program<'_>, known: &NonlocalExits, function: usize) -> bool {
    program.functions[function].pieces.iter().any(|piece| {
        let piece = &program.pieces[*piece as usize];
        let bytes = program.elf.bytes_at(piece.start, piece.end - piece.start);
        let mut jumps = false;
        if !is_stub(program, piece) {
            I::sweep(bytes.unwrap_or_default(), piece.start, |insn| {
                jumps = is_jump(insn) && known.call(program, insn).forks != Forks::Never;
                !jumps
            });
        }
        jumps
    })
}

fn is_jump(insn: &Insn) -> bool {
    matches!(insn.flow, Flow::Jump { .. } | Flow::IndirectJump)
}

/// Whether a piece is stubs of the linker, which jump to every import.
fn is_stub(program: &Program<'_>, piece: &Piece) -> bool {
    let section = &program.elf.sections[piece.section as usize];
    section.name.starts_with(".plt")
}

/// Why a function that is not moved keeps its program from per-thread counters.
pub fn staying_obstacle<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    moved: &[bool],
) -> Option<String> {
    postlink_parallel::find_first(program.functions.len(), |f| {
        (!moved[f]).then(|| of_function::<I>(program, nonlocal_exits, f, true))?
    })
}

fn of_function<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    stays: bool,
) -> Option<String> {
    let pieces = &program.functions[function].pieces;
    pieces.iter().find_map(|piece| {
        let piece = &program.pieces[*piece as usize];
        let bytes = program.elf.bytes_at(piece.start, piece.end - piece.start)?;
        let stub = is_stub(program, piece);
        let followed = nonlocal_exits.is_forking(program.start(function));
        let forks = |insn: &Insn| {
            if stub || followed && is_jump(insn) {
                Forks::Never
            } else {
                nonlocal_exits.call(program, insn).forks
            }
        };
        let (at, why) = I::per_thread_obstacle(bytes, piece.start, stays, forks)?;
        Some(format!("{} {why}, at {at:#x}", program.name(function)))
    })
}

/// Whether the check at a function's entry must save what it uses: hand-written code may be given something
/// there, and so may code that reads it before it writes it. `of_block`: a block's instructions, and what they do.
pub fn must_save<'i, I: Isa, B>(
    program: &Program<'_>,
    cfg: &Cfg,
    of_block: impl Fn(BlockId) -> B,
) -> bool
where
    B: Iterator<Item = (&'i Insn, &'i Effects)>,
{
    // More blocks than this are not looked at.
    const ENOUGH: usize = 512;
    let Some(first) = cfg.blocks.first() else {
        return true;
    };
    let has_entry = program
        .piece_at(first.start)
        .is_some_and(|piece| piece.fde.is_some());
    // Parts that a compiler split off are not known without relocations.
    if !has_entry || !program.refs.kept {
        return true;
    }
    // What may still hold something of the time before the entry, by block.
    let mut seen: SmallVec<[(BlockId, RegSet); 8]> = SmallVec::new();
    let mut work: Vec<(BlockId, RegSet)> = vec![(0, I::ENTRY_SCRATCH)];
    let mut instructions = 0;
    while let Some((b, open)) = work.pop() {
        let place = seen.iter().position(|s| s.0 == b).unwrap_or(seen.len());
        if place == seen.len() {
            seen.push((b, RegSet::EMPTY));
        }
        let known = &mut seen[place].1;
        if open.minus(*known) == RegSet::EMPTY {
            continue;
        }
        *known = known.or(open);
        let mut open = *known;
        if seen.len() > ENOUGH {
            return true;
        }
        let (mut read, mut ended) = (false, false);
        for (insn, effects) in of_block(b) {
            instructions += 1;
            match insn.flow {
                Flow::Call { .. } | Flow::IndirectCall | Flow::Return | Flow::Stop => ended = true,
                // What continues at once may be handed on.
                Flow::IndirectJump => {
                    read = instructions <= 3;
                    ended = true;
                }
                _ => {
                    read = effects.reads.meets(open);
                    open = open.minus(effects.kills);
                }
            }
            if read || ended || open == RegSet::EMPTY {
                break;
            }
        }
        if read {
            return true;
        }
        if !ended && open != RegSet::EMPTY {
            work.extend(cfg.succs(b).iter().map(|s| (*s, open)));
        }
    }
    false
}
