//! All that can be told of a program with a profile, whatever its kind: every function, and of those that ran
//! every block, also the cold ones.
//!
//! [`super::counts`] has what ran and nothing else, for exact counters. A picture of a program needs the rest
//! too: how large the functions are that did not run, why some stay, what is beside the hot blocks.

use postlink_elf::elf::Elf;
use postlink_isa::{Isa, with_isa};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::counts::instruction_at;
use crate::analyse::{CounterMap, Scratch, prepare};
use crate::attach::{self, Counted, Source};
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::{NonlocalExits, Program, check_input};
use crate::error::Error;
use crate::phases::{self, Phases};
use crate::pin::Pin;

/// Blocks that are no longer and run on lose the padding that they end with.
const PADDED: u64 = 256;

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Runs into the next block.
    Falls,
    /// A jump to another block.
    Jumps,
    /// A conditional branch: the first edge is the branch taken, the second the fall-through. With one edge, the
    /// way on, the branch leads out of the function.
    Branches,
    /// An indirect jump to one of its edges.
    Switches,
    /// A jump out of the function: a tail call.
    Leaves,
    /// A return.
    Returns,
    /// A trap, or a call that does not come back.
    Stops,
}

/// An edge to another block of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of the block that it leads to.
    pub to: u32,
    /// How often it was taken.
    pub count: u64,
    /// Which of several jumps led there was not counted; this is a share of what they did together.
    pub estimated: bool,
}

/// A basic block of a function that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// First address in the input.
    pub start: u64,
    /// One past its last address.
    pub end: u64,
    /// Where what is copied into a new layout ends: in front of the branch that may be encoded otherwise, or
    /// of padding.
    pub branch: u64,
    /// How often it ran.
    pub count: u64,
    /// Instructions in it.
    pub instructions: u32,
    /// Control may come from outside the function.
    pub entry: bool,
    /// A landing pad of exceptions.
    pub landing_pad: bool,
    /// How it ends.
    pub ending: Ending,
    /// Of a conditional branch out of the function: how often it was taken.
    pub out: u64,
    /// Where it leads.
    pub edges: Vec<Edge>,
}

/// What a profile says of a function that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// How often it was entered, at any of its entries.
    pub entries: u64,
    /// Instructions executed in it, without those of functions that it called.
    pub instructions: u64,
    /// All of its blocks, those that did not run included, parts one after the other.
    pub blocks: Vec<Block>,
    /// Words in data that lead to blocks, one of each block: entries of relative tables.
    pub tables: Vec<TableEntry>,
    /// Places in the old code where there is a jump to a block's new place, with the block.
    pub anchored_targets: Vec<(u64, u32)>,
}

/// A word of a table of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Its address.
    pub place: u64,
    /// What the distance counts from.
    pub base: u64,
    /// Its bytes: 4 or 8.
    pub width: u64,
    /// Index of the block that it leads to.
    pub block: u32,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Symbol name.
    pub name: String,
    /// Its parts in the input, start and end; the first one holds the entry.
    pub parts: Vec<(u64, u64)>,
    /// Why it stays where it is, if it has to.
    pub pin: Option<Pin>,
    /// Number of basic blocks, 0 where they could not be told.
    pub blocks: u32,
    /// Addresses of the conditional branches at the ends of blocks.
    pub branches: Vec<u64>,
    /// What it did, if it ran.
    pub ran: Option<Ran>,
}

impl Function {
    /// Its entry in the input.
    pub fn start(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.0)
    }

    /// Bytes of all parts.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.1 - part.0).sum()
    }
}

/// A call or tail call that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Index of the calling function.
    pub caller: u32,
    /// Index of its block.
    pub block: u32,
    /// Address of the instruction in the input.
    pub at: u64,
    /// Index of the called function.
    pub callee: u32,
    /// How often.
    pub count: u64,
    /// Through a register or memory.
    pub indirect: bool,
}

/// An indirect call that was executed, for what its table could not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Index of the calling function.
    pub caller: u32,
    /// Address of the instruction in the input.
    pub at: u64,
    /// Calls in all.
    pub total: u64,
    /// Of these, calls out of the file.
    pub external: u64,
    /// Of these, calls to targets that found no space in the site's table.
    pub overflow: u64,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Instruction set.
    pub machine: &'static str,
    /// Counts are those of counters, not estimates from samples or an older build.
    pub exact: bool,
    /// Functions in ascending order of their entries.
    pub functions: Vec<Function>,
    /// Calls between them.
    pub calls: Vec<Call>,
    /// Indirect calls; only counters tell of them.
    pub sites: Vec<Site>,
}

/// Tells everything about a program and a profile of it.
///
/// Phases: `discover`, `counters` (of exact counts alone), `attach`, `functions`.
///
/// Errors: a file that cannot be read; a profile of another file, or one without counts.
pub fn facts<'p>(
    elf: &Elf<'_>,
    profile: impl Into<Source<'p>>,
    phases: &mut Phases,
) -> Result<Facts, Error> {
    facts_by_source(elf, profile.into(), phases)
}

/// Not generic: compiled here once.
fn facts_by_source(elf: &Elf<'_>, source: Source<'_>, phases: &mut Phases) -> Result<Facts, Error> {
    with_isa!(check_input(elf)?, I => facts_with::<I>(elf, source, phases))
}

fn facts_with<I: Isa>(
    elf: &Elf<'_>,
    source: Source<'_>,
    phases: &mut Phases,
) -> Result<Facts, Error> {
    phases.begin("discover");
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    let mut sites = Vec::new();
    let (counted, calls, pins) = match source {
        // Done here and not by `attach_any`, which does not give the map of sites away.
        Source::Exact(profile) => {
            phases.begin("counters");
            phases::expect(program.functions.len());
            let map = CounterMap::build::<I>(&program, &nonlocal_exits);
            attach::check(&map, profile)?;
            phases.begin("attach");
            phases::expect(program.functions.len());
            let counted = attach::attach::<I>(&program, &nonlocal_exits, &map, profile);
            let calls = attach::calls(&program, &map, profile, &counted);
            for c in &counted {
                for (k, site) in c.analysed.cfg.recorded().enumerate() {
                    if let Some(s) = profile.site(map.bases[c.function as usize].1 + k as u64) {
                        sites.push(Site {
                            caller: c.function,
                            at: site.at,
                            total: s.total(),
                            external: s.external,
                            overflow: s.overflow,
                        });
                    }
                }
            }
            (counted, calls, Vec::new())
        }
        other => {
            phases.begin("attach");
            let (attached, _) = attach::attach_any::<I>(&program, &nonlocal_exits, other)?;
            (attached.counted, attached.calls, attached.pins)
        }
    };
    let of: FxHashMap<u32, &Counted<'_>> = counted.iter().map(|c| (c.function, c)).collect();
    let calls = calls_of::<I>(&program, &of, &calls);
    let pins: FxHashMap<u32, Pin> = pins.into_iter().collect();
    phases.begin("functions");
    phases::expect(program.functions.len());
    let functions = postlink_parallel::map_range_with(
        program.functions.len(),
        Scratch::default,
        |scratch, f| {
            phases::did();
            let parts = program.functions[f].pieces.iter().map(|p| {
                let piece = &program.pieces[*p as usize];
                (piece.start, piece.end)
            });
            let mut function = Function {
                name: program.name(f),
                parts: parts.collect(),
                pin: pins.get(&(f as u32)).copied(),
                blocks: 0,
                branches: Vec::new(),
                ran: None,
            };
            let shape = |cfg: &Cfg, function: &mut Function| {
                function.blocks = cfg.blocks.len() as u32;
                let branches = cfg
                    .blocks
                    .iter()
                    .filter(|b| ending(b.term) == Ending::Branches);
                function.branches = branches.map(|b| b.term_at).collect();
            };
            match of.get(&(f as u32)) {
                Some(c) => {
                    shape(&c.analysed.cfg, &mut function);
                    function.ran = Some(ran::<I>(&program, c));
                }
                None => match prepare::analyse::<I>(&program, &nonlocal_exits, f, scratch) {
                    Ok(analysed) => shape(&analysed.cfg, &mut function),
                    Err(pin) => function.pin = Some(pin),
                },
            }
            function
        },
    );
    phases.end();
    Ok(Facts {
        machine: I::NAME,
        exact: matches!(source, Source::Exact(_)),
        functions,
        calls,
        sites,
    })
}

fn calls_of<I: Isa>(
    program: &Program<'_>,
    of: &FxHashMap<u32, &Counted<'_>>,
    calls: &[attach::Call],
) -> Vec<Call> {
    let indirect: FxHashSet<u64> = of
        .values()
        .flat_map(|c| c.analysed.cfg.sites.iter().map(|s| s.at))
        .collect();
    let mut out: Vec<Call> = postlink_parallel::map(calls, |c| Call {
        caller: c.caller,
        block: c.block,
        at: of.get(&c.caller).map_or(c.at, |counted| {
            instruction_at::<I>(program, counted, c.block, c.at)
        }),
        callee: c.callee,
        count: c.count,
        indirect: indirect.contains(&c.at),
    });
    out.par_sort_unstable_by_key(|c| (c.caller, c.at, c.callee));
    out
}

fn ending(term: Term) -> Ending {
    match term {
        Term::Fall => Ending::Falls,
        Term::Jump => Ending::Jumps,
        Term::Cond { .. } | Term::ShortCond | Term::CondOut { .. } | Term::ShortCondOut { .. } => {
            Ending::Branches
        }
        Term::JumpOut { .. } | Term::IndirectOut | Term::FallBack => Ending::Leaves,
        Term::Dispatch { .. } => Ending::Switches,
        Term::Return => Ending::Returns,
        Term::Stop => Ending::Stops,
    }
}

fn ran<I: Isa>(program: &Program<'_>, c: &Counted<'_>) -> Ran {
    let cfg = &c.analysed.cfg;
    let shared = cfg.shared_dispatches();
    let mut instructions = 0u64;
    let mut blocks = Vec::with_capacity(cfg.blocks.len());
    for (b, block) in cfg.blocks.iter().enumerate() {
        let (mut length, mut without_padding) = (0, block.start);
        if let Some(bytes) = program.elf.bytes_at(block.start, block.end - block.start) {
            I::sweep(bytes, block.start, |insn| {
                length += 1;
                if !insn.traits.nop {
                    without_padding = insn.end();
                }
                true
            });
        }
        // As what emits code has it.
        let padded = block.term == Term::Fall && block.end - block.start <= PADDED;
        let count = c.counts.blocks[b];
        instructions = instructions.saturating_add(count.saturating_mul(u64::from(length)));
        let estimated =
            matches!(block.term, Term::Dispatch { dispatch, .. } if shared[dispatch as usize]);
        let ways = cfg.succs(b as BlockId).iter();
        let edges = ways
            .zip(&c.counts.succs[block.succ as usize..])
            .map(|(to, count)| Edge {
                to: *to,
                count: *count,
                estimated,
            });
        blocks.push(Block {
            start: block.start,
            end: block.end,
            branch: if padded {
                without_padding
            } else {
                block.term_at
            },
            count,
            instructions: length,
            entry: block.entry,
            landing_pad: block.landing_pad,
            ending: ending(block.term),
            out: c.counts.out.get(&(b as BlockId)).copied().unwrap_or(0),
            edges: edges.collect(),
        });
    }
    let mut tables: Vec<TableEntry> = cfg
        .table_entries
        .iter()
        .filter_map(|t| {
            Some(TableEntry {
                place: t.place,
                base: t.base?,
                width: t.width,
                block: t.block,
            })
        })
        .collect();
    tables.sort_unstable_by_key(|t| (t.block, t.place));
    tables.dedup_by_key(|t| t.block);
    Ran {
        entries: c.entries,
        instructions,
        blocks,
        tables,
        anchored_targets: cfg.anchored_targets.clone(),
    }
}
