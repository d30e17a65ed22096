//! Functions ready to be placed.

use postlink_elf::InputAddr;
use postlink_isa::{Code, Isa};

use crate::analyse::{Analysed, FunctionUnwind, Probes, SecondaryEntry, Target};
use crate::cfg::{BlockId, OwnBase, OwnTable, TableEntry};
use crate::discover::Program;
use crate::emit::{self, Emitted, FragmentUnwind, Plan, Stack, carry};
use crate::pin::Pin;

/// A function ready to be placed. There are many, and lists of them are made of lists: so they are not moved
/// themselves.
pub type Ready = Box<ReadyFunction>;

/// The same.
pub struct ReadyFunction {
    /// Index of the function.
    pub function: u32,
    /// Its code.
    pub code: Emitted,
    /// Unwind information by fragment, if it has any.
    pub unwind: Option<[FragmentUnwind; 2]>,
    /// Entries of its tables.
    pub table_entries: Vec<TableEntry>,
    /// Places in the old body that get a jump to a block, see [`Cfg::anchored_targets`].
    pub anchored_targets: Vec<(InputAddr, BlockId)>,
    /// Entries beside the first whose old places get a jump.
    pub secondary_entries: Vec<SecondaryEntry>,
    /// Its jump tables of its own.
    pub own_tables: Vec<OwnTable>,
    /// Additions that form the addresses of some of them.
    pub own_bases: Vec<OwnBase>,
    /// Jumps that continue in old code, by address.
    pub falls_back: Vec<InputAddr>,
    /// Its labels.
    pub address_taken: Vec<(InputAddr, BlockId)>,
    /// Recorders of its sites, one after the other, and the offset of each.
    pub recorders: Code<Target>,
    /// Offsets of recorders by site.
    pub recorder_offsets: Vec<u32>,
    /// Places in its fragments at which another unwind entry and another symbol begin, in order.
    pub splits: Vec<Split>,
    /// Number of its first counter in the program.
    pub counter_base: u64,
    /// Number of its first site.
    pub site_base: u64,
    /// Whether the checker refused it. Then it stays where it was, and its place in new code is left empty: so
    /// everything else keeps its address, and the checker sees that it need not look at it again.
    pub taken_back: bool,
}

/// Functions of a list that move, with their positions.
pub fn moving(ready: &[Ready]) -> impl Iterator<Item = (usize, &Ready)> {
    let all = ready.iter().enumerate();
    all.filter(|(_, r)| !r.taken_back)
}

/// Positions of functions of a list that move and of which something holds. They are all over memory: one thread that
/// goes through them waits for it most of the time.
pub fn moving_with(ready: &[Ready], holds: impl Fn(&Ready) -> bool + Sync) -> Vec<usize> {
    postlink_parallel::flat_map_range(ready.len(), |i| {
        let r = &ready[i];
        (!r.taken_back && holds(r)).then_some(i)
    })
}

/// By function: its position in a list, if it moves.
pub fn by_function(program: &Program<'_>, ready: &[Ready]) -> Vec<Option<u32>> {
    let functions = postlink_parallel::map(ready, |r| (!r.taken_back).then_some(r.function));
    let mut positions = vec![None; program.functions.len()];
    for (i, function) in (0..).zip(functions) {
        if let Some(function) = function {
            positions[function as usize] = Some(i);
        }
    }
    positions
}

/// Places of the old body with the blocks that begin there, as the graph has them.
pub fn places(list: &[(u64, BlockId)]) -> Vec<(InputAddr, BlockId)> {
    list.iter()
        .map(|(at, block)| (InputAddr::new(*at), *block))
        .collect()
}

/// Addresses in the old body, as the graph has them.
pub fn addresses(list: &[u64]) -> Vec<InputAddr> {
    list.iter().copied().map(InputAddr::new).collect()
}

/// A place in a fragment from which on the code has an unwind entry and a symbol of its own ([`crate::link::bat`]).
pub struct Split {
    /// The fragment.
    pub fragment: usize,
    /// Offset in it.
    pub start: u32,
    /// Unwind information of what follows, if the function has any.
    pub unwind: Option<FragmentUnwind>,
}

/// A function with probes, its blocks in the order of the input. The parts that the compiler split off stay apart.
/// `keeps_spans`: whether something is made of what its code corresponds to, beside unwind tables.
pub fn emit_in_place<'d, I: Isa>(
    program: &Program<'d>,
    function: usize,
    a: &Analysed<'d>,
    probes: Probes,
    keeps_spans: bool,
) -> Result<Ready, Pin> {
    let mut fragments = [Vec::with_capacity(a.cfg.blocks.len()), Vec::new()];
    let one = a.unwind.as_ref().is_some_and(FunctionUnwind::one_fragment);
    for (b, block) in a.cfg.blocks.iter().enumerate() {
        fragments[usize::from(block.piece > 0 && !one)].push(b as u32);
    }
    let plan = Plan {
        fragments,
        probes,
        move_addresses: false,
        drop_padding: false,
        lends_spans: !keeps_spans,
        ..Plan::default()
    };
    let mut code = emit::emit::<I>(program, &a.cfg, &plan)?;
    let unwind = carry(program, &a.cfg, a.unwind.as_ref(), &code, Stack::of::<I>())?;
    if !keeps_spans {
        code.forget_spans();
    }
    Ok(Box::new(ReadyFunction {
        function: function as u32,
        code,
        unwind,
        table_entries: a.cfg.table_entries.clone(),
        anchored_targets: places(&a.cfg.anchored_targets),
        secondary_entries: a.secondary_entries.clone(),
        own_tables: a.cfg.own_tables.clone(),
        own_bases: a.cfg.own_bases.clone(),
        falls_back: addresses(&a.cfg.falls_back),
        address_taken: places(&a.cfg.labels(program, function)),
        recorders: Code::default(),
        recorder_offsets: Vec::new(),
        splits: Vec::new(),
        counter_base: 0,
        site_base: 0,
        taken_back: false,
    }))
}
