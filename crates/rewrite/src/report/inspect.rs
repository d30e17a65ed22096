//! What a file is, and what can be done with it.

use postlink_elf::elf::Elf;
use postlink_isa::{Isa, Machine, with_isa};
use serde::Serialize;

use crate::analyse::{Analysed, FunctionCounters, Scratch, count_pins, prepare};
use crate::cfg::{self, Cfg, ExplainedJump, OwnTable, Term};
use crate::discover::{
    Basis, NonlocalExits, Program, check_input, check_program, is_program, runtimes,
};
use crate::error::Error;
use crate::phases::{self, Phases};
use crate::pin::Pin;

/// A function that stays.
#[derive(Clone, Debug, Serialize)]
pub struct PinnedFunction {
    /// Name.
    pub name: String,
    /// Address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Reason.
    pub reason: Pin,
}

/// An indirect jump that keeps its function where it is, or may continue in old code.
#[derive(Clone, Debug, Serialize)]
pub struct JumpOfFunction {
    /// Name of the function.
    pub function: String,
    /// The jump, what comes of it, and why.
    #[serde(flatten)]
    pub jump: ExplainedJump,
}

/// The answer of `postlink inspect`.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// "executable", "position-independent executable", "static …", "shared library".
    pub kind: String,
    /// Machine.
    pub machine: &'static str,
    /// Build-id in hexadecimal.
    pub build_id: Option<String>,
    /// File size.
    pub size: u64,
    /// Bytes of code in sections.
    pub text: u64,
    /// Functions found.
    pub functions: usize,
    /// Functions that can be moved.
    pub movable: usize,
    /// Bytes of code in movable functions.
    pub movable_bytes: u64,
    /// Bytes of code in all functions.
    pub function_bytes: u64,
    /// Reasons and counts.
    pub pinned: Vec<(Pin, usize)>,
    /// Functions that stay.
    pub pinned_functions: Vec<PinnedFunction>,
    /// Whether the linker kept relocations.
    pub relocations_kept: bool,
    /// What tells of pointers to code.
    pub basis: Basis,
    /// Movable functions whose old entries stay as they are, since something may lead into a jump there.
    pub led: usize,
    /// Movable functions with jumps that may continue in old code, and the number of these jumps.
    pub falls_back: (usize, usize),
    /// Indirect jumps of movable functions that are tail calls: in the caller's frame, and not by an entry of a table.
    /// They enter other functions, at old entries.
    pub tail_calls: usize,
    /// Indirect jumps that keep their functions where they are, or may continue in old code; no tail calls.
    pub indirect_jumps: Vec<JumpOfFunction>,
    /// Table jumps of movable functions that have tables of their own: with an index that is bounded by what the
    /// program compares, and with a guard.
    pub own_tables: (usize, usize),
    /// Those of them that have an entry which leads to an instruction of the function's old code.
    pub tables_to_old_code: usize,
    /// Pointers to code in data.
    pub code_pointers: usize,
    /// Dynamic relocations.
    pub dynamic_relocations: usize,
    /// Symbols in `.symtab`.
    pub symbols: usize,
    /// Symbols in `.dynsym`.
    pub dynamic_symbols: usize,
    /// Unwind entries.
    pub unwind_entries: usize,
    /// Functions with an exception table.
    pub exception_tables: usize,
    /// Counters that instrumenting would place.
    pub counters: u64,
    /// Indirect calls and tail jumps.
    pub sites: u64,
    /// Basic blocks in movable functions.
    pub blocks: u64,
    /// Whether frames can be left other than by returning.
    pub can_unwind: bool,
    /// Why the file is not rewritten at all, if so.
    pub refused: Option<String>,
    /// Why pointers to functions keep their values when functions move, if all of them do.
    pub pointers_stay: Option<String>,
}

/// Inspects a file.
///
/// Phases: `discover`, `functions`.
pub fn inspect(elf: &Elf<'_>, phases: &mut Phases) -> Result<Inspection, Error> {
    // What is refused for another reason than its machine is inspected all the same.
    let machine = match Machine::of_elf(elf.machine) {
        Some(machine) => machine,
        None => check_input(elf)?,
    };
    with_isa!(machine, I => inspect_with::<I>(elf, phases))
}

/// How many of the jumps that might continue in old code are tail calls: where they jump, the frame is the caller's.
pub(crate) fn tail_calls(program: &Program<'_>, function: usize, a: &Analysed<'_>) -> usize {
    tail_call_jumps(program, function, a).len()
}

/// Whether an entry of a table of new code's own leads to an instruction of the function's old code. Words behind the
/// end of the old table, which a bound of the index may include, lead anywhere else.
fn leads_to_old_code<I: Isa>(program: &Program<'_>, cfg: &Cfg, table: &OwnTable) -> bool {
    let is_instruction = |target: u64| {
        let blocks = &cfg.blocks;
        let Some(block) = blocks.iter().find(|b| b.start <= target && target < b.end) else {
            return false;
        };
        let Some(code) = program.elf.bytes_at(block.start, block.end - block.start) else {
            return false;
        };
        let mut at = block.start;
        while at < target {
            let rest = code.get((at - block.start) as usize..);
            match rest.and_then(|rest| I::decode(rest, at)) {
                Some(insn) => at = insn.end(),
                None => return false,
            }
        }
        at == target
    };
    let mut old = table
        .entries
        .iter()
        .filter(|e| e.block.is_none() && !e.behind);
    old.any(|e| is_instruction(e.target))
}

/// Addresses of the jumps of [`tail_calls`].
fn tail_call_jumps(program: &Program<'_>, function: usize, a: &Analysed<'_>) -> Vec<u64> {
    let Some(unwind) = &a.unwind else {
        return Vec::new();
    };
    // Where the function jumps to labels that it has stored, a frame like the caller's says nothing.
    if !program.refs.kept && a.cfg.is_entered_at(&program.functions[function].labels) {
        return Vec::new();
    }
    let entry = (program.start(function), 0);
    let piece_of = |at: u64| {
        let block = a.cfg.blocks.iter().find(|b| b.start <= at && at < b.end);
        block.filter(|b| b.term == Term::FallBack).map(|b| b.piece)
    };
    let jumps = a.cfg.plain_jumps.iter();
    let jumps = jumps.filter_map(|at| Some((*at, piece_of(*at)?)));
    jumps
        .filter(|jump| unwind.has_same_frame(program, entry, *jump))
        .map(|jump| jump.0)
        .collect()
}

fn inspect_with<I: Isa>(elf: &Elf<'_>, phases: &mut Phases) -> Result<Inspection, Error> {
    use postlink_elf::elf::SymbolTable;
    phases.begin("discover");
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    phases.begin("functions");
    phases::expect(program.functions.len());
    let shares: Vec<(FunctionCounters, [usize; 7], Vec<ExplainedJump>)> =
        postlink_parallel::map_range_with(
            program.functions.len(),
            Scratch::default,
            |scratch, f| {
                phases::did();
                let a = prepare::analyse::<I>(&program, &nonlocal_exits, f, scratch);
                let numbers = a.as_ref().map_or([0; 7], |a| {
                    let led = usize::from(a.entry_patch.is_none());
                    let tables = &a.cfg.own_tables;
                    let guarded = tables.iter().filter(|t| t.guarded).count();
                    let blocks = a.cfg.blocks.len();
                    let to_old = a.cfg.blocks.iter().filter(|b| b.term == Term::FallBack);
                    let tail_calls = tail_calls(&program, f, a);
                    let to_old = to_old.count() - tail_calls;
                    let proved = tables.len() - guarded;
                    let leave = tables
                        .iter()
                        .filter(|t| leads_to_old_code::<I>(&program, &a.cfg, t));
                    let leave = leave.count();
                    [blocks, led, to_old, proved, guarded, tail_calls, leave]
                });
                let jumps = match &a {
                    Ok(a) => {
                        let tail_calls = tail_call_jumps(&program, f, a);
                        let mut jumps = cfg::fall_backs::<I>(&program, f, &a.cfg, &mut scratch.cfg);
                        jumps.retain(|jump| !tail_calls.contains(&jump.address));
                        jumps
                    }
                    Err(Pin::UnknownIndirectJump) => {
                        let jump = cfg::keeps::<I>(&program, f, &mut scratch.cfg);
                        jump.into_iter().collect()
                    }
                    Err(_) => Vec::new(),
                };
                (FunctionCounters::of(&a), numbers, jumps)
            },
        );
    let sum = |k: usize| shares.iter().map(|s| s.1[k]).sum::<usize>();
    let (blocks, led) = (sum(0) as u64, sum(1));
    let falls_back = (shares.iter().filter(|s| s.1[2] > 0).count(), sum(2));
    let own_tables = (sum(3), sum(4));
    let (sum_of_tail_calls, sum_of_leaving) = (sum(5), sum(6));
    let jumps = shares.iter().enumerate();
    let indirect_jumps = jumps.flat_map(|(f, share)| {
        let function = program.name(f);
        share.2.iter().map(move |jump| JumpOfFunction {
            function: function.clone(),
            jump: *jump,
        })
    });
    let indirect_jumps = indirect_jumps.collect();
    let shares: Vec<FunctionCounters> = shares.into_iter().map(|s| s.0).collect();
    let movable: Vec<usize> = (0..shares.len())
        .filter(|f| shares[*f].pin.is_none())
        .collect();
    let linked = match (elf.etype, is_program(elf), elf.interpreter().is_some()) {
        (2, _, true) => "executable",
        (2, _, false) => "static executable",
        (_, true, true) => "position-independent executable",
        (_, true, false) => "static position-independent executable",
        _ => "shared library",
    };
    Ok(Inspection {
        kind: linked.to_owned(),
        machine: I::NAME,
        build_id: elf.build_id.map(postlink_elf::hex),
        size: elf.data.len() as u64,
        text: elf
            .sections
            .iter()
            .filter(|s| s.is_code())
            .map(|s| s.size)
            .sum(),
        functions: program.functions.len(),
        movable: movable.len(),
        movable_bytes: movable.iter().map(|f| program.size(*f)).sum(),
        function_bytes: (0..program.functions.len()).map(|f| program.size(f)).sum(),
        pinned: count_pins(&shares),
        pinned_functions: (0..shares.len())
            .filter_map(|f| {
                shares[f].pin.map(|reason| PinnedFunction {
                    name: program.name(f),
                    address: program.start(f),
                    size: program.size(f),
                    reason,
                })
            })
            .collect(),
        relocations_kept: program.refs.kept,
        basis: program.refs.basis(),
        led,
        falls_back,
        tail_calls: sum_of_tail_calls,
        indirect_jumps,
        own_tables,
        tables_to_old_code: sum_of_leaving,
        code_pointers: program.refs.pointers.len(),
        dynamic_relocations: elf.dyn_relocs()?.len(),
        symbols: elf.symbols(SymbolTable::Static).len(),
        dynamic_symbols: elf.symbols(SymbolTable::Dynamic).len(),
        unwind_entries: program.eh.fdes.len(),
        exception_tables: program
            .eh
            .fdes
            .iter()
            .filter(|f| f.lsda.is_some_and(|l| l != 0))
            .count(),
        counters: shares.iter().map(|s| u64::from(s.counters)).sum(),
        sites: shares.iter().map(|s| u64::from(s.sites)).sum(),
        blocks,
        can_unwind: program.can_unwind,
        refused: runtimes::refusal(elf).or_else(|| {
            let refused = check_program(&program).err();
            refused.map(|why| why.to_string())
        }),
        pointers_stay: program.visible.stays.as_ref().map(ToString::to_string),
    })
}
