//! What a profile says of a program, in the program's terms: functions, blocks, edges and calls with their counts.

use postlink_elf::elf::Elf;
use postlink_isa::{Isa, with_isa};
use postlink_profile::Profile;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::analyse::CounterMap;
use crate::attach::{self, Counted};
use crate::cfg::{BlockId, Term};
use crate::discover::{NonlocalExits, Program, check_input};
use crate::error::Error;
use crate::phases::{self, Phases};

/// An edge from a block to another of its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EdgeCounts {
    /// Address of the block that it leads to.
    pub to: u64,
    /// How often it was taken.
    pub count: u64,
    /// No branch: the block ends only because a call does, and the next one has no other way in. Who does not
    /// end blocks at calls sees one block here.
    pub joins: bool,
    /// A share of what several indirect jumps to the same targets did together: the blocks' counts are exact,
    /// which jump led where is not counted.
    pub estimated: bool,
}

/// A block that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockCounts {
    /// Address in the input.
    pub address: u64,
    /// Address of its last instruction.
    pub last: u64,
    /// Bytes.
    pub size: u64,
    /// How often it ran.
    pub count: u64,
    /// Its edges within the function.
    pub edges: Vec<EdgeCounts>,
}

/// A function that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionCounts {
    /// Symbol name.
    pub name: String,
    /// Entry in the input.
    pub address: u64,
    /// Bytes, all parts together.
    pub size: u64,
    /// How often it was entered, at any of its entries.
    pub entries: u64,
    /// Instructions executed in it, without those of functions that it called.
    pub instructions: u64,
    /// Blocks that ran, in the order of the input.
    pub blocks: Vec<BlockCounts>,
}

/// A call or tail call between functions of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallCounts {
    /// Symbol name of the calling function.
    pub caller: String,
    /// Entry of the calling function in the input.
    pub from: u64,
    /// The call instruction's address in the input.
    pub at: u64,
    /// Symbol name of the called function.
    pub callee: String,
    /// Entry of the called function in the input.
    pub to: u64,
    /// How often.
    pub count: u64,
}

/// An indirect call, for what its table could not name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteCounts {
    /// Symbol name of the calling function.
    pub caller: String,
    /// Where, in the input.
    pub at: u64,
    /// Calls in all.
    pub total: u64,
    /// Of these, calls out of the file.
    pub external: u64,
    /// Of these, calls to targets that found no space in the site's table.
    pub overflow: u64,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Functions that ran, by address.
    pub functions: Vec<FunctionCounts>,
    /// Calls with a count whose target is a function of the file, direct and indirect.
    pub calls: Vec<CallCounts>,
    /// Indirect calls that were executed.
    pub sites: Vec<SiteCounts>,
}

/// Tells what a profile says of the file it was taken of.
///
/// Errors: a file that cannot be read; a profile of another file, or one without counts.
pub fn counts(elf: &Elf<'_>, profile: &Profile, phases: &mut Phases) -> Result<Counts, Error> {
    with_isa!(check_input(elf)?, I => counts_with::<I>(elf, profile, phases))
}

fn counts_with<I: Isa>(
    elf: &Elf<'_>,
    profile: &Profile,
    phases: &mut Phases,
) -> Result<Counts, Error> {
    phases.begin("discover");
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    phases.begin("counters");
    phases::expect(program.functions.len());
    let map = CounterMap::build::<I>(&program, &nonlocal_exits);
    attach::check(&map, profile)?;
    phases.begin("attach");
    phases::expect(program.functions.len());
    let counted = attach::attach::<I>(&program, &nonlocal_exits, &map, profile);
    let name = |f: u32| program.name(f as usize);
    let of: FxHashMap<u32, &Counted<'_>> = counted.iter().map(|c| (c.function, c)).collect();
    let calls = attach::calls(&program, &map, profile, &counted)
        .into_iter()
        .map(|c| CallCounts {
            caller: name(c.caller),
            from: program.start(c.caller as usize),
            at: of.get(&c.caller).map_or(c.at, |counted| {
                instruction_at::<I>(&program, counted, c.block, c.at)
            }),
            callee: name(c.callee),
            to: program.start(c.callee as usize),
            count: c.count,
        })
        .collect();
    let mut sites = Vec::new();
    for c in &counted {
        for (k, site) in c.analysed.cfg.recorded().enumerate() {
            if let Some(s) = profile.site(map.bases[c.function as usize].1 + k as u64) {
                sites.push(SiteCounts {
                    caller: name(c.function),
                    at: site.at,
                    total: s.total(),
                    external: s.external,
                    overflow: s.overflow,
                });
            }
        }
    }
    phases.begin("functions");
    phases::expect(counted.len());
    let functions = postlink_parallel::map(&counted, |c| {
        phases::did();
        of_function::<I>(&program, c)
    });
    phases.end();
    Ok(Counts {
        functions,
        calls,
        sites,
    })
}

/// Start of the instruction in a block that covers an address: of direct calls, the address field's is known.
pub(super) fn instruction_at<I: Isa>(
    program: &Program<'_>,
    c: &Counted<'_>,
    block: BlockId,
    at: u64,
) -> u64 {
    let block = &c.analysed.cfg.blocks[block as usize];
    let mut start = at;
    if let Some(bytes) = program.elf.bytes_at(block.start, block.end - block.start) {
        I::sweep(bytes, block.start, |insn| {
            if insn.addr <= at {
                start = insn.addr;
            }
            insn.addr < at
        });
    }
    start
}

fn of_function<I: Isa>(program: &Program<'_>, c: &Counted<'_>) -> FunctionCounts {
    let cfg = &c.analysed.cfg;
    let mut instructions = 0u64;
    let mut blocks = Vec::new();
    let shared = cfg.shared_dispatches();
    let mut ways_in = vec![0u32; cfg.blocks.len()];
    for to in &cfg.succs {
        ways_in[*to as usize] += 1;
    }
    for (b, block) in cfg.blocks.iter().enumerate() {
        let count = c.counts.blocks[b];
        if count == 0 {
            continue;
        }
        let (mut length, mut last) = (0u64, block.start);
        if let Some(bytes) = program.elf.bytes_at(block.start, block.end - block.start) {
            I::sweep(bytes, block.start, |insn| {
                length += 1;
                last = insn.addr;
                true
            });
        }
        instructions = instructions.saturating_add(count.saturating_mul(length));
        let edges = cfg
            .succs(b as BlockId)
            .iter()
            .zip(&c.counts.succs[block.succ as usize..])
            .map(|(to, count)| {
                let next = &cfg.blocks[*to as usize];
                let joins = block.term == Term::Fall
                    && ways_in[*to as usize] == 1
                    && !next.entry
                    && !next.landing_pad;
                EdgeCounts {
                    to: next.start,
                    count: *count,
                    joins,
                    estimated: matches!(block.term, Term::Dispatch { dispatch, .. } if shared[dispatch as usize]),
                }
            })
            .collect();
        blocks.push(BlockCounts {
            address: block.start,
            last,
            size: block.end - block.start,
            count,
            edges,
        });
    }
    let f = c.function as usize;
    FunctionCounts {
        name: program.name(f),
        address: program.start(f),
        size: program.size(f),
        entries: c.entries,
        instructions,
        blocks,
    }
}
