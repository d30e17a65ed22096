//! Puts counters into assembly.
//!
//! The text stays as it is; lines are put in between. What goes where is gathered as a list of positions and
//! texts, and written in one go.
//!
//! # Where the entry is
//!
//! After the function's label and those labels that only unwinding and debug information name, so that
//! breakpoints and line numbers stay where they were; but before any label that something can jump to, since
//! then it would be counted more than once, and before what data names, since a table of places to patch
//! points there. An instruction that must come first (`endbr64`, `bti`) comes first.

use crate::blocks::Block;
use crate::lexer::{self, Kind};
use crate::options::{Mode, Options};
use crate::probes::{self, Plan, Which};
use crate::reader::{self, Function, Unit};
use crate::report::{Reason, Report};
use crate::returns::Returning;
use crate::sequences::Scratch;
use crate::target::{Arch, Format, Target};
use crate::{blocks, sections, sequences};

/// Assembly with counters, and what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instrumented {
    /// The text. If nothing was instrumented, it is that which was given.
    pub text: Vec<u8>,
    /// What was done.
    pub report: Report,
}

/// Puts counters into assembly. Whatever the text is, there is an answer: what cannot be instrumented stays as it is.
pub fn instrument(source: &[u8], target: Target, options: &Options) -> Instrumented {
    let mut report = Report::default();
    let unit = match reader::read(source, target, &mut report) {
        Ok(unit) => unit,
        Err(reason) => {
            report.leave(reason);
            return Instrumented {
                text: source.to_vec(),
                report,
            };
        }
    };
    let mut insertions = Insertions::default();
    let mut tail = String::new();
    let returning = if options.blocks {
        Returning::of(&unit, target)
    } else {
        Returning::default()
    };
    for function in &unit.functions {
        if let Err(reason) = instrument_function(
            &unit,
            function,
            target,
            options,
            &returning,
            &mut insertions,
            &mut tail,
            &mut report,
        ) {
            report.leave(reason);
        }
    }
    let text = if report.functions == 0 {
        source.to_vec()
    } else {
        let head = sections::headers(target, options);
        insertions.write(source, &head, &tail)
    };
    Instrumented { text, report }
}

/// What is put in where.
#[derive(Default)]
struct Insertions {
    /// Position, text. Several at one position stay in the order in which they came.
    list: Vec<(u32, String)>,
}

impl Insertions {
    fn add(&mut self, position: u32, text: String) {
        self.list.push((position, text));
    }

    fn write(mut self, source: &[u8], head: &str, tail: &str) -> Vec<u8> {
        self.list.sort_by_key(|(position, _)| *position);
        let inserted: usize = self.list.iter().map(|(_, text)| text.len() + 2).sum();
        let mut out = Vec::with_capacity(source.len() + head.len() + tail.len() + inserted + 1);
        out.extend_from_slice(head.as_bytes());
        let mut from = 0;
        for (position, text) in &self.list {
            let position = *position as usize; // inside the text: ends and starts of statements
            let line_start = source[..position]
                .iter()
                .rposition(|byte| !matches!(byte, b' ' | b'\t'))
                .is_none_or(|before| source[before] == b'\n');
            out.extend_from_slice(&source[from..position]);
            if !line_start {
                out.push(b'\n');
            }
            out.extend_from_slice(text.as_bytes());
            from = position;
        }
        out.extend_from_slice(&source[from..]);
        if out.last() != Some(&b'\n') {
            out.push(b'\n');
        }
        out.extend_from_slice(tail.as_bytes());
        out
    }
}

/// Names of functions that have no calling convention.
fn is_thunk(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"_").unwrap_or(name);
    [
        &b"OUTLINED_FUNCTION_"[..],
        b"_x86_indirect_thunk",
        b"_x86_return_thunk",
        b"_llvm_retpoline",
        b"_llvm_lvi_thunk",
        b"_llvm_slsblr_thunk",
        b"_call_indirect_",
        b"_llvm_mip_",
        b"_x86.get_pc_thunk",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// Whether a name is that of a function's cold part: `foo.cold`, `foo.cold.1`, `foo.__part.2`.
fn is_fragment(unit: &Unit<'_>, name: &[u8]) -> bool {
    let called = || unit.labels.get(name).is_some_and(|label| label.called);
    let stem = match name.iter().rposition(|&byte| byte == b'.') {
        Some(dot) if name[dot + 1..].iter().all(u8::is_ascii_digit) => &name[..dot],
        _ => name,
    };
    (stem.ends_with(b".cold") || stem.ends_with(b".__part") || stem.ends_with(b".cold.split"))
        && !called()
}

#[allow(clippy::too_many_arguments)] // one call; a struct would only rename them
fn instrument_function(
    unit: &Unit<'_>,
    function: &Function<'_>,
    target: Target,
    options: &Options,
    returning: &Returning<'_>,
    insertions: &mut Insertions,
    tail: &mut String,
    report: &mut Report,
) -> Result<(), Reason> {
    if is_thunk(function.name) {
        return Err(Reason::Thunk);
    }
    // The cold part of a function is entered with anything in registers and flags, and belongs to a function
    // that is counted already.
    let with_fragments =
        options.blocks && options.mode == Mode::FunctionCoverage && target.arch == Arch::X86_64;
    if !with_fragments && is_fragment(unit, function.name) {
        return Err(Reason::Fragment);
    }
    if options.groups > 1
        && postlink_mip::hash::function_group(function.name, options.groups) != options.group
    {
        return Err(Reason::OtherGroup);
    }
    let instructions = function
        .statements()
        .filter(|&i| unit.statements[i].kind == Kind::Instruction)
        .count();
    if instructions == 0 {
        return Err(Reason::Empty);
    }
    if instructions < options.min_instructions as usize {
        return Err(Reason::Small);
    }
    let Some(end) = function.end else {
        return Err(Reason::NoEnd);
    };
    let number = report.functions;
    let local = target.local_prefix();
    let entry = entry_position(unit, function, target).ok_or(Reason::Empty)?;
    let (graph, plan) = plan_blocks(unit, function, target, options, returning, report);

    insertions.add(
        label_end(unit, function),
        format!("{local}mip_f{number}:\n"),
    );
    if !plan.infers_entry() {
        insertions.add(
            entry,
            sequences::entry(target, options, number, function.thumb),
        );
    }
    insert_blocks(
        unit, function, target, options, number, &graph, &plan, insertions,
    );
    report.blocks += plan.counters.len();
    report.inferred += plan.inferred.len() - usize::from(plan.infers_entry());
    let end = unit
        .statements
        .get(end)
        .map_or(unit.source.len() as u32, |statement| statement.start);
    insertions.add(end, format!("{local}mip_e{number}:\n"));
    let comdat = unit.sections[function.section].comdat;
    tail.push_str(&sections::function(
        target, options, number, function, comdat, &plan,
    ));
    report.functions += 1;
    Ok(())
}

/// The blocks of a function and their counters. Without block coverage there are none, but the graph has its
/// signature all the same.
fn plan_blocks(
    unit: &Unit<'_>,
    function: &Function<'_>,
    target: Target,
    options: &Options,
    returning: &Returning<'_>,
    report: &mut Report,
) -> (Vec<Block>, Plan) {
    let graph = match blocks::graph(unit, function, target, Some(returning)) {
        Ok(graph) => graph,
        Err(reason) => {
            if options.blocks {
                report.leave(reason);
            }
            return (vec![], Plan::default());
        }
    };
    if !options.blocks {
        let plan = Plan {
            signature: probes::signature(&graph),
            ..Plan::default()
        };
        return (vec![], plan);
    }
    let which = match (options.all_blocks, options.mode) {
        (true, _) => Which::All,
        (false, Mode::FunctionCoverage) => Which::Needed,
        (false, Mode::CallGraph) => Which::NeededAndEntry,
    };
    let plan = probes::plan(&graph, which);
    if !blocks::stay_near(&graph, &plan.counters) {
        report.leave(Reason::NarrowBlocks);
        let plan = Plan {
            signature: plan.signature,
            ..Plan::default()
        };
        return (vec![], plan);
    }
    if target.arch == Arch::AArch64
        && target.format == Format::MachO
        && free_registers(unit, function) == Scratch::Save
    {
        // What is below the stack pointer may be in use there, so nothing can be saved.
        report.leave(Reason::NoRegister);
        let plan = Plan {
            signature: plan.signature,
            ..Plan::default()
        };
        return (vec![], plan);
    }
    (graph, plan)
}

#[allow(clippy::too_many_arguments)] // one call; a struct would only rename them
fn insert_blocks(
    unit: &Unit<'_>,
    function: &Function<'_>,
    target: Target,
    options: &Options,
    number: usize,
    graph: &[Block],
    plan: &Plan,
    insertions: &mut Insertions,
) {
    let local = target.local_prefix();
    let scratch = if target.arch == Arch::AArch64 && !plan.counters.is_empty() {
        free_registers(unit, function)
    } else {
        Scratch::Save
    };
    for (index, &block) in plan.counters.iter().enumerate() {
        let label = format!("{local}mip_b{number}_{block}:\n");
        let offset = options.entry_size() + index;
        let store = sequences::block(target, options, number, offset, scratch, function.thumb);
        let at = &graph[block]; // plans are made of graphs
        if plan.hoisted.binary_search(&block).is_ok() {
            insertions.add(at.before_labels, store);
            insertions.add(at.position, label);
        } else {
            insertions.add(at.position, label + &store);
        }
    }
    for (block, _) in plan.inferred.iter().filter(|(block, _)| *block != 0) {
        insertions.add(
            graph[*block].position,
            format!("{local}mip_b{number}_{block}:\n"),
        );
    }
}

/// Two of the registers that calls may change and that no argument comes in, which nothing in the function
/// names: so nothing can be in them.
fn free_registers(unit: &Unit<'_>, function: &Function<'_>) -> Scratch {
    let mut used = [false; 32];
    for index in function.statements().skip(1) {
        let statement = unit.statements[index];
        if statement.kind != Kind::Instruction {
            continue;
        }
        lexer::names(statement.text(unit.source), |name| {
            if let [b'x' | b'w' | b'X' | b'W', digits @ ..] = name {
                let number = std::str::from_utf8(digits)
                    .ok()
                    .and_then(|digits| digits.parse::<usize>().ok());
                if let Some(used) = number.and_then(|number| used.get_mut(number)) {
                    *used = true;
                }
            }
        });
    }
    let mut free = (9u8..=17)
        .rev()
        .filter(|&number| !used[usize::from(number)]);
    match (free.next(), free.next()) {
        (Some(address), Some(value)) => Scratch::Free(address, value),
        _ => Scratch::Save,
    }
}

/// Position after the colon of the function's label.
fn label_end(unit: &Unit<'_>, function: &Function<'_>) -> u32 {
    let Some(first) = function.statements().next() else {
        return 0;
    };
    let end = unit.statements[first].end;
    let colon = unit.source[end as usize..]
        .iter()
        .position(|&byte| byte == b':')
        .unwrap_or(0);
    end + colon as u32 + 1
}

/// Where the entry's instructions go. `None` if the function has no instruction.
fn entry_position(unit: &Unit<'_>, function: &Function<'_>, target: Target) -> Option<u32> {
    for index in function.statements().skip(1) {
        let statement = unit.statements[index];
        let text = statement.text(unit.source);
        match statement.kind {
            Kind::Label => {
                let local = target.is_local(text)
                    || (target.format == Format::MachO && text.starts_with(b"ltmp"));
                let watched = unit
                    .labels
                    .get(text)
                    .is_some_and(|label| label.begins_block());
                if local && watched {
                    return Some(statement.start);
                }
            }
            Kind::Directive => {
                let (directive, _) = lexer::word(text);
                let data = matches!(
                    directive,
                    b".long"
                        | b".quad"
                        | b".byte"
                        | b".word"
                        | b".inst"
                        | b".nops"
                        | b".fill"
                        | b".zero"
                );
                if data {
                    return Some(statement.start);
                }
            }
            Kind::Instruction if reader::must_be_first(target.arch, text) => {}
            Kind::Instruction | Kind::AppStart | Kind::Assignment => return Some(statement.start),
            Kind::AppEnd => {}
        }
    }
    None
}
