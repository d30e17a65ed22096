//! Judging layouts by one measure, whatever tool made them.
//!
//! Every tool has an account of its own of what it gained: over the functions that it could work on, with the
//! counts that it understood. To compare two tools both outputs are read in the same way here. Where a block
//! went is given by address translation tables ([`crate::link::bat`], or llvm-bolt's with `--enable-bat`); how
//! often it ran, where control went from it and how large it is are the input's, so the same for all. From
//! that follow dyno-stats ([`crate::report::stats`]) and the ext-TSP score, the original's included.
//!
//! | a part of a function | its blocks are |
//! |---|---|
//! | its symbol is where it was, and no table begins there | where they were |
//! | its symbol is elsewhere, and no table begins there | as they were, in another place |
//! | a table begins at its symbol | where that table and those of the parts split off say |
//! | the table says that a block was deleted | nowhere: ways to it lead on to where it led, and it is worth a fall-through; so if that was out of the function |
//!
//! A part is found by its symbol: the n-th of that name in either file, as names of local functions repeat.
//! Tables have entries for fewer blocks than the input has here ([`crate::analyse::bolt_blocks`] says which).
//! One without an entry is where a branch or call in it is said to be; else it is after the block before it,
//! or if it was a jump alone (the second way of a conditional branch), it is gone.
//!
//! Blocks are in a row as far as no other code is between them; jumps from row to row score nothing.
//!
//! A function is left out for all, the original included, if for some output it does not fit what was found
//! in the input.

use std::collections::BTreeMap;

use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{Bat, Entry};
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_isa::{Isa, with_isa};
use postlink_layout::ext_tsp;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::stats::DynoStats;
use crate::attach::{self, Counted, Source};
use crate::cfg::{BlockId, Term};
use crate::discover::{NonlocalExits, Program, check_input};
use crate::error::Error;
use crate::passes::Changes;

/// What a layout is worth.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Worth {
    /// ext-TSP score: fall-throughs and short jumps, weighted.
    pub score: f64,
    /// What is executed.
    pub dyno_stats: DynoStats,
}

/// A function in all layouts.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Its name.
    pub name: String,
    /// Its entry in the input.
    pub address: u64,
    /// In the input, then in each output.
    pub worth: Vec<Worth>,
}

/// A function that could not be judged.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// For which output, by its number.
    pub output: usize,
    /// Why.
    pub why: &'static str,
    /// How many blocks were executed in it, all together.
    pub runs: u64,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    /// Sums over [`Judgement::functions`]: of the input, then of each output.
    pub worth: Vec<Worth>,
    /// By output: functions with a table.
    pub moved: Vec<usize>,
    /// Functions that ran.
    pub functions: Vec<Judged>,
    /// Functions that ran and could not be judged.
    pub left_out: Vec<LeftOut>,
}

/// Judges outputs made of `elf` by a profile of it. An output without tables is taken for one in which nothing moved.
///
/// Errors: files that cannot be read, tables that are broken, a profile of something else.
pub fn judge<'p>(
    elf: &Elf<'_>,
    profile: impl Into<Source<'p>>,
    outputs: &[Elf<'_>],
) -> Result<Judgement, Error> {
    judge_by_source(elf, profile.into(), outputs)
}

/// Not generic: compiled here once.
fn judge_by_source(
    elf: &Elf<'_>,
    source: Source<'_>,
    outputs: &[Elf<'_>],
) -> Result<Judgement, Error> {
    with_isa!(check_input(elf)?, I => judge_with::<I>(elf, source, outputs))
}

fn judge_with<I: Isa>(
    elf: &Elf<'_>,
    source: Source<'_>,
    outputs: &[Elf<'_>],
) -> Result<Judgement, Error> {
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    let (attached, _) = attach::attach_any::<I>(&program, &nonlocal_exits, source)?;
    let outputs = outputs
        .iter()
        .map(Output::read)
        .collect::<Result<Vec<_>, _>>()?;
    let names = nth_names(elf);
    let all: Vec<Result<Judged, LeftOut>> = postlink_parallel::map_owned(attached.counted, |c| {
        judge_function::<I>(&program, &names, c, &outputs)
    });
    let mut judgement = Judgement {
        worth: vec![Worth::default(); outputs.len() + 1],
        moved: outputs.iter().map(|o| o.tables.len()).collect(),
        functions: Vec::new(),
        left_out: Vec::new(),
    };
    for result in all {
        match result {
            Ok(judged) => {
                for (sum, worth) in judgement.worth.iter_mut().zip(&judged.worth) {
                    sum.score += worth.score;
                    sum.dyno_stats.merge(&worth.dyno_stats);
                }
                judgement.functions.push(judged);
            }
            Err(left_out) => judgement.left_out.push(left_out),
        }
    }
    Ok(judgement)
}

/// A symbol's name, and how many of that name come before it.
type Nth<'d> = (&'d [u8], u32);

/// Symbols that have a place, by their index.
fn nth_names<'d>(elf: &Elf<'d>) -> BTreeMap<u32, Nth<'d>> {
    use postlink_elf::raw::{STT_FILE, STT_SECTION};
    let mut seen: FxHashMap<&[u8], u32> = FxHashMap::default();
    let mut out = BTreeMap::new();
    for (i, s) in (0u32..).zip(elf.symbols(SymbolTable::Static).iter()) {
        if s.section == 0 || s.name.is_empty() || matches!(s.kind, STT_SECTION | STT_FILE) {
            continue;
        }
        let n = seen.entry(s.name).or_default();
        out.insert(i, (s.name, *n));
        *n += 1;
    }
    out
}

/// A stretch of an output that has a table.
struct Table {
    start: u64,
    /// As its symbol says; 0 if no symbol does.
    size: u64,
    cold: bool,
    entries: Vec<Entry>,
}

/// What is known of an output.
struct Output<'d> {
    /// Values of symbols.
    symbols: FxHashMap<Nth<'d>, u64>,
    /// By the start of a function's main part: all of its tables.
    tables: FxHashMap<u64, Vec<Table>>,
}

impl<'d> Output<'d> {
    fn read(elf: &Elf<'d>) -> Result<Output<'d>, Error> {
        let list = elf.symbols(SymbolTable::Static);
        let mut symbols = FxHashMap::default();
        let mut sizes: FxHashMap<u64, u64> = FxHashMap::default();
        for (i, nth) in nth_names(elf) {
            if let Some(s) = list.get(i as usize) {
                symbols.insert(nth, s.value);
                let size = sizes.entry(s.value).or_default();
                *size = s.size.max(*size);
            }
        }
        let mut tables: FxHashMap<u64, Vec<Table>> = FxHashMap::default();
        if let Some(bat) = Bat::read(elf)? {
            let parents = Parents::with_symbols(&bat, elf);
            let table = |start: u64, cold: bool, entries: &[Entry]| Table {
                start,
                size: sizes.get(&start).copied().unwrap_or(0),
                cold,
                entries: entries.to_vec(),
            };
            for hot in bat.hot() {
                let own = table(hot.start, false, bat.hot_entries(hot));
                tables.entry(hot.start).or_default().push(own);
            }
            for (i, cold) in bat.cold().iter().enumerate() {
                let parent = parents.of(i).and_then(|p| bat.hot().get(p as usize));
                if let Some(parent) = parent {
                    let own = table(cold.start, true, bat.cold_entries(cold));
                    tables.entry(parent.start).or_default().push(own);
                }
            }
        }
        Ok(Output { symbols, tables })
    }
}

/// Where a block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Deleted,
    /// Address; then, for empty ones, the place among the entries.
    At(u64, u32),
}

/// A function under an output's layout.
#[derive(Debug, Default)]
struct Layout {
    /// Blocks that are in a row.
    rows: Vec<Vec<BlockId>>,
    deleted: Vec<BlockId>,
}

fn judge_function<I: Isa>(
    program: &Program<'_>,
    names: &BTreeMap<u32, Nth<'_>>,
    mut c: Counted<'_>,
    outputs: &[Output<'_>],
) -> Result<Judged, LeftOut> {
    let pieces = program.functions[c.function as usize].pieces.len();
    let mut rows = vec![Vec::new(); pieces];
    for (b, block) in (0..).zip(&c.analysed.cfg.blocks) {
        rows[usize::from(block.piece)].push(b);
    }
    let original = Layout {
        rows,
        deleted: Vec::new(),
    };
    let mut worth = vec![worth_of::<I>(program, &mut c, &original)];
    for (k, output) in outputs.iter().enumerate() {
        let layout = layout_of(program, names, &c, output).map_err(|why| LeftOut {
            name: program.name(c.function as usize),
            output: k,
            why,
            runs: c
                .counts
                .blocks
                .iter()
                .fold(0, |sum, n| n.saturating_add(sum)),
        })?;
        worth.push(worth_of::<I>(program, &mut c, &layout));
    }
    Ok(Judged {
        name: program.name(c.function as usize),
        address: program.start(c.function as usize),
        worth,
    })
}

fn layout_of(
    program: &Program<'_>,
    names: &BTreeMap<u32, Nth<'_>>,
    c: &Counted<'_>,
    output: &Output<'_>,
) -> Result<Layout, &'static str> {
    let cfg = &c.analysed.cfg;
    let mut layout = Layout::default();
    let mut placed: Vec<(Place, BlockId)> = Vec::with_capacity(cfg.blocks.len());
    // Stretches of the output, start and end, without code of others inside.
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for (number, p) in program.functions[c.function as usize]
        .pieces
        .iter()
        .enumerate()
    {
        let piece = &program.pieces[*p as usize];
        let own = (0..cfg.blocks.len() as BlockId)
            .filter(|b| usize::from(cfg.blocks[*b as usize].piece) == number);
        let from = program.symbols.partition_point(|s| s.0 < piece.start);
        let at = program.symbols[from..]
            .iter()
            .take_while(|s| s.0 == piece.start)
            .filter_map(|s| output.symbols.get(names.get(&s.1)?).copied())
            .reduce(|best, at| {
                if output.tables.contains_key(&best) {
                    best
                } else {
                    at
                }
            })
            .unwrap_or(piece.start);
        let Some(tables) = output.tables.get(&at) else {
            stretches.push((at, at.saturating_add(piece.end - piece.start)));
            placed.extend(own.map(|b| {
                let offset = cfg.blocks[b as usize].start - piece.start;
                (Place::At(at.wrapping_add(offset), b), b)
            }));
            continue;
        };
        // What the tables say, by input offset. What is in its old place as well as in a new one runs in the
        // new one, which goes first.
        let mut blocks: Vec<(u64, bool, Place)> = Vec::new();
        let mut branches: Vec<(u64, bool, Place)> = Vec::new();
        let mut rank = 0;
        for table in tables {
            stretches.push((table.start, table.start.saturating_add(table.size)));
            for e in &table.entries {
                let (out, input) = (u64::from(e.output), u64::from(e.input));
                let at = table.start.wrapping_add(out);
                let gone = !table.cold && table.size > 0 && out >= table.size;
                let place = if gone {
                    Place::Deleted
                } else {
                    Place::At(at, rank)
                };
                rank += 1;
                let list = if e.is_branch() {
                    &mut branches
                } else {
                    &mut blocks
                };
                list.push((input, at == piece.start.wrapping_add(input), place));
            }
        }
        blocks.sort_unstable();
        branches.sort_unstable();
        let mut before = None;
        let mut found = 0;
        for b in own {
            let block = &cfg.blocks[b as usize];
            let (start, end) = (block.start - piece.start, block.end - piece.start);
            let first = blocks.partition_point(|x| x.0 < start);
            let last = blocks.partition_point(|x| x.0 <= start);
            let own = &blocks[first..last];
            let from = branches.partition_point(|x| x.0 < start);
            let inside = branches[from..].iter().take_while(|x| x.0 < end);
            let branch = inside.map(|x| x.2).reduce(|best, p| best.min(p));
            // Several: parts of a whole block that are apart have its entry each. The one that belongs to
            // this part is before its branch.
            let new = own.iter().filter(|x| Some(x.1) == own.first().map(|x| x.1));
            let before_branch = branch.and_then(|branch| {
                let address = |p: Place| match p {
                    Place::Deleted => None,
                    Place::At(at, _) => Some(at),
                };
                let near = new.clone().map(|x| x.2);
                near.filter(|p| address(*p).is_some() && address(*p) <= address(branch))
                    .max()
            });
            let listed = before_branch.or_else(|| {
                let some = new.clone().map(|x| x.2);
                some.clone().find(|p| *p != Place::Deleted).or(some.min())
            });
            found += last - first;
            let jump = block.start == block.term_at && block.term == Term::Jump;
            before = match (listed, branch) {
                (Some(place), _) | (None, Some(place)) => Some(place),
                (None, None) if jump => {
                    placed.push((Place::Deleted, b));
                    continue;
                }
                (None, None) => before,
            };
            placed.push((before.ok_or("its first block is nowhere")?, b));
        }
        let unknown = |offset: u64| {
            let at = piece.start.wrapping_add(offset);
            let b = cfg
                .blocks
                .partition_point(|b| (usize::from(b.piece), b.start) <= (number, at));
            b.checked_sub(1)
                .is_some_and(|b| cfg.blocks[b].start != at && c.counts.blocks[b] > 0)
        };
        if found < blocks.len() && blocks.iter().any(|x| unknown(x.0)) {
            return Err("it has blocks that begin where none was found");
        }
    }
    placed.sort();
    stretches.sort_unstable();
    let mut row: Option<u64> = None;
    for (place, b) in placed {
        let Place::At(at, _) = place else {
            layout.deleted.push(b);
            continue;
        };
        // The start of the row of stretches that it is in.
        let mut k = stretches.partition_point(|s| s.0 <= at);
        while k >= 2 && stretches[k - 2].1 >= stretches[k - 1].0 {
            k -= 1;
        }
        let start = k.checked_sub(1).map(|k| stretches[k].0);
        if layout.rows.is_empty() || start != row {
            layout.rows.push(Vec::new());
            row = start;
        }
        if let Some(last) = layout.rows.last_mut() {
            last.push(b);
        }
    }
    // The others count as ahead of the one with the entry, wherever they are.
    layout.rows.sort_by_key(|row| !row.contains(&0));
    Ok(layout)
}

fn worth_of<I: Isa>(program: &Program<'_>, c: &mut Counted<'_>, layout: &Layout) -> Worth {
    let succs = c.analysed.cfg.succs.clone();
    for way in 0..succs.len() {
        let mut to = succs[way];
        // What was deleted and held at most a jump: its ways in go where it went. (No longer than there are
        // blocks: jumps can go round.)
        for _ in 0..layout.deleted.len() {
            let cfg = &c.analysed.cfg;
            let block = &cfg.blocks[to as usize];
            let jump = matches!(block.term, Term::Fall | Term::Jump) && block.nsucc == 1;
            if !jump || layout.deleted.binary_search(&to).is_err() {
                break;
            }
            to = succs[block.succ as usize];
        }
        c.analysed.cfg.succs[way] = to;
    }
    let mut worth = Worth::default();
    let nothing = Changes::default();
    worth
        .dyno_stats
        .add::<I>(program, c, &layout.rows, &nothing);
    let cfg = &c.analysed.cfg;
    let blocks: Vec<ext_tsp::Block> = (cfg.blocks.iter().zip(&c.counts.blocks))
        .map(|(block, count)| ext_tsp::Block {
            size: ((block.end - block.start) as u32).max(1),
            count: *count,
        })
        .collect();
    let mut jumps = Vec::with_capacity(cfg.succs.len());
    for (b, block) in (0..).zip(&cfg.blocks) {
        // A table's targets cannot be fallen into.
        if matches!(block.term, Term::Dispatch { .. }) || layout.deleted.binary_search(&b).is_ok() {
            continue;
        }
        for (way, to) in (block.succ as usize..).zip(cfg.succs(b)) {
            let count = c.counts.succs[way];
            jumps.push(ext_tsp::Jump {
                from: b,
                to: *to,
                count,
            });
        }
    }
    let problem = ext_tsp::Problem::new(&blocks, &jumps);
    worth.score = layout.rows.iter().map(|row| problem.score(row)).sum();
    // What was deleted is passed without a jump, on to another block or, by the branch that led there, out of
    // the function.
    for b in &layout.deleted {
        let block = &cfg.blocks[*b as usize];
        if matches!(block.term, Term::Fall | Term::Jump) && block.nsucc == 1 {
            let count = c.counts.succs[block.succ as usize];
            worth.score += ext_tsp::FALL_UNCONDITIONAL * count as f64;
        }
    }
    let out = jumps
        .iter()
        .filter(|j| layout.deleted.binary_search(&j.to).is_ok());
    worth.score += out
        .map(|j| ext_tsp::FALL_CONDITIONAL * j.count as f64)
        .sum::<f64>();
    c.analysed.cfg.succs = succs;
    worth
}
