//! The blocks of one function, cut as BOLT cuts them.
//!
//! A fall-through is written as the last instruction of a block and the first of the next, so both sides must
//! agree on what a block is:
//!
//! * one begins at the function's start, at its other entries, at targets of branches and of jump tables, at
//!   landing pads, where data refers to (as far as relocations tell), and after what ends one;
//! * branches, returns and `ud2` end one. Calls do not;
//! * a jump after a conditional branch, to which nothing else leads, stays in the branch's block: it ends
//!   with both. Not so if one of the two leaves the function;
//! * a branch just after the function's end (code that the compiler knows cannot be reached) is no branch.
//!
//! A block *continues* to the next one if it has an edge to it: it ends in no branch, in a conditional one, in
//! one to the next block, or in a jump table that names it.
//!
//! BOLT has no blocks of functions that have parts elsewhere, and of these parts, unless the linker kept the
//! relocations, nor of functions that it cannot decode. The same is said here, in [`Blocks::explained`]. (Up to
//! release 19, nor of functions with other entries or with indirect jumps that it could not explain.)
//!
//! The steps, in the order in which [`blocks`] takes them:
//!
//! | step | gives |
//! |---|---|
//! | `decode` | instructions, targets of branches, addresses that the code forms |
//! | `entries`, `landing_pads` | where control comes from outside |
//! | `jumps` | targets of indirect jumps: jump tables, or all places that data refers to ([`References`]) |
//! | `cut` | blocks, between labels |
//! | `connect` | edges, and which blocks have one to the next |

mod jumps;
mod references;

use postlink_bolt_symbols::{Function, Functions};
use postlink_elf::elf::Elf;
use postlink_elf::raw;
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_elf::unwind::lsda::Lsda;
use postlink_isa::{Flow, Insn, Isa};

use jumps::Jumps;
pub use references::References;

/// The prefix `lock` of x86-64.
const LOCK: u8 = 0xf0;

/// A block. Offsets count from the function's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First instruction.
    pub start: u32,
    /// Last instruction.
    pub last: u32,
    /// Instructions.
    pub instructions: u32,
    /// The function is entered here.
    pub entry: bool,
    /// Exceptions arrive here.
    pub landing_pad: bool,
    /// Its last instruction is a call, or leaves the function by a condition.
    pub calls: bool,
    /// It has an edge to the next block.
    pub goes_on: bool,
    /// It ends in a jump through a table.
    pub dispatches: bool,
    /// Its edges in [`Blocks::successors`].
    edges: (u32, u32),
}

impl Block {
    /// Without instructions and edges.
    fn starting_at(start: u32) -> Block {
        Block {
            start,
            last: start,
            instructions: 0,
            entry: false,
            landing_pad: false,
            calls: false,
            goes_on: false,
            dispatches: false,
            edges: (0, 0),
        }
    }
}

/// How control came to the start of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// From code that is not in the function.
    pub foreign: bool,
    /// By a return.
    pub returned: bool,
}

/// The blocks of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    list: Vec<Block>,
    edges: Vec<u32>,
    /// Bytes of the function.
    size: u32,
    /// Every instruction was decoded, and the function is one of which BOLT has blocks.
    pub explained: bool,
    /// Call and jump instructions: offset, whether it can leave the function.
    pub transfers: Vec<u32>,
}

impl Blocks {
    /// All blocks, in the order of the code.
    pub fn list(&self) -> &[Block] {
        &self.list
    }

    /// The block that an offset is in.
    pub fn containing(&self, offset: u64) -> Option<usize> {
        let offset = u32::try_from(offset).ok().filter(|&o| o < self.size)?;
        self.list
            .partition_point(|block| block.start <= offset)
            .checked_sub(1)
    }

    /// The block that starts at an offset.
    pub fn starting(&self, offset: u64) -> Option<usize> {
        let offset = u32::try_from(offset).ok()?;
        self.list
            .binary_search_by_key(&offset, |block| block.start)
            .ok()
    }

    /// Blocks that follow a block: of a conditional branch first the taken edge.
    pub fn successors(&self, block: usize) -> &[u32] {
        self.list.get(block).map_or(&[], |b| {
            self.edges
                .get(b.edges.0 as usize..b.edges.1 as usize)
                .unwrap_or_default()
        })
    }

    /// Calls `each` with the fall-throughs of a run from one offset to another: last instruction, next block.
    /// False if no such run is possible.
    pub fn run(
        &self,
        from: u64,
        to: u64,
        arrival: Arrival,
        mut each: impl FnMut(u32, u32),
    ) -> bool {
        if !self.explained || from > to {
            return false;
        }
        let (Some(mut at), Some(end)) = (self.containing(from), self.containing(to)) else {
            return false;
        };
        // After a call: it is the call's return, and the block with the call continues. What is no return may have
        // been a jump to where others come in, or an exception.
        let returns_here = |first: &Block| {
            arrival.foreign
                && from == u64::from(first.start)
                && (arrival.returned || !first.entry && !first.landing_pad)
        };
        if self.list.get(at).is_some_and(returns_here)
            && let Some(before) = at.checked_sub(1).and_then(|before| self.list.get(before))
            && before.goes_on
            && before.calls
        {
            at -= 1;
        }
        let Some(run) = self.list.get(at..end) else {
            return end < at;
        };
        if !run.iter().all(|block| block.goes_on) {
            return false;
        }
        for (block, next) in run.iter().zip(self.list.iter().skip(at + 1)) {
            each(block.last, next.start);
        }
        true
    }
}

/// What is known of the binary beyond the function.
#[derive(Clone, Copy)]
pub struct Surroundings<'a, 'd> {
    /// The file.
    pub elf: &'a Elf<'d>,
    /// Its functions.
    pub functions: &'a Functions<'d>,
    /// Its unwind entries.
    pub unwind: &'a EhFrame<'d>,
    /// Addresses in code that other functions jump to, ascending.
    pub crossings: &'a [u64],
    /// What the relocations say that the linker kept.
    pub references: &'a References,
}

/// What an instruction does to the division into blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Call,
    Return,
    /// `ud2`
    Trap,
    /// To an offset in the function.
    Jump(u32),
    Branch(u32),
    /// Leaves the function.
    TailJump,
    TailBranch,
    Indirect,
}

/// An instruction: its offset, and what it does to the division.
struct Item {
    at: u32,
    kind: Kind,
}

/// The code of a function that is cut.
#[derive(Clone, Copy)]
struct Code<'a, 'd> {
    around: &'a Surroundings<'a, 'd>,
    function: Function,
    bytes: &'d [u8],
}

impl<'a, 'd> Code<'a, 'd> {
    /// Of a function by its index. `None` for stubs and what has no code in the file.
    fn of(around: &'a Surroundings<'a, 'd>, index: usize) -> Option<Code<'a, 'd>> {
        let function = *around.functions.list().get(index)?;
        if function.stub || function.size == 0 || u32::try_from(function.size).is_err() {
            return None;
        }
        Some(Code {
            around,
            function,
            bytes: around.elf.bytes_at(function.start, function.size)?,
        })
    }

    /// The offset of an address that is in the function.
    fn offset(&self, address: u64) -> u32 {
        (address - self.function.start) as u32
    }

    fn contains(&self, address: u64) -> bool {
        self.function.contains(address)
    }

    /// Whether all bytes from an address on are zeros: padding after the last instruction.
    fn is_padding(&self, address: u64) -> bool {
        self.bytes
            .get(self.offset(address) as usize..)
            .is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
    }
}

/// What one pass over the instructions of a function finds.
#[derive(Default)]
struct Decoded {
    items: Vec<Item>,
    insns: Vec<Insn>,
    /// Targets of branches and calls in the function.
    targets: Vec<u32>,
    /// Places in the function whose address the code forms: anything may jump there.
    formed: Vec<u32>,
    /// Addresses outside of the function that the code forms, ascending: maybe tables.
    bases: Vec<u64>,
    /// There are indirect jumps.
    indirect: bool,
    /// Where there is no valid instruction.
    stopped: Option<u64>,
}

/// Calls `each` with the addresses outside of the function that its instructions jump to, call or form.
pub fn outside<I: Isa>(around: &Surroundings<'_, '_>, function: usize, mut each: impl FnMut(u64)) {
    let Some(f) = around.functions.list().get(function).copied() else {
        return;
    };
    let Some(bytes) = around.elf.bytes_at(f.start, f.size) else {
        return;
    };
    I::sweep(bytes, f.start, |insn| {
        let target = match insn.flow {
            Flow::Jump { target }
            | Flow::CondJump { target, .. }
            | Flow::ShortCond { target }
            | Flow::Call { target } => Some(target),
            _ => insn
                .field
                .filter(|_| insn.traits.forms_address)
                .map(|field| field.target),
        };
        if let Some(target) = target.filter(|&target| !f.contains(target)) {
            each(target);
        }
        true
    });
}

/// Cuts a function into blocks. Empty for stubs and what has no code in the file.
pub fn blocks<I: Isa>(around: &Surroundings<'_, '_>, function: usize) -> Blocks {
    let Some(code) = Code::of(around, function) else {
        return Blocks::default();
    };
    let decoded = decode::<I>(&code);
    if decoded.items.is_empty() {
        return Blocks::default();
    }
    let entries = entries(&code, function, &decoded);
    let pads = landing_pads(&code);
    let referred = referred_to(&code);
    let mut labels = sorted([&decoded.targets[..], &entries, &pads, &referred].concat());
    let jumps = Jumps::new(code, &decoded);
    let targets = jumps.targets::<I>(&mut labels);
    let mut list = cut(&decoded.items, &labels);
    let explained = is_explained(&code, &decoded);
    let edges = connect(&mut list, &decoded.items, &targets);
    for block in &mut list {
        block.entry = entries.binary_search(&block.start).is_ok();
        block.landing_pad = pads.binary_search(&block.start).is_ok();
    }
    Blocks {
        list,
        edges,
        size: code.function.size as u32, // `Code::of` has seen that it fits
        explained,
        transfers: transfers(&decoded.items),
    }
}

/// Decodes the function's instructions from its start to its end, or to the first that is not valid.
fn decode<I: Isa>(code: &Code<'_, '_>) -> Decoded {
    let mut found = Decoded::default();
    found.stopped = I::sweep(code.bytes, code.function.start, |insn| {
        let kind = kind_of(code, insn);
        match (kind, insn.flow) {
            (Kind::Jump(target) | Kind::Branch(target), _) => found.targets.push(target),
            (Kind::Call, Flow::Call { target })
                if code.contains(target) && target != code.function.start =>
            {
                found.targets.push(code.offset(target));
            }
            _ => {}
        }
        found.indirect |= kind == Kind::Indirect;
        if let Some(field) = insn.field.filter(|_| insn.traits.forms_address) {
            if !code.contains(field.target) {
                found.bases.push(field.target);
            } else if field.target != code.function.start {
                found.formed.push(code.offset(field.target));
            }
        }
        let mut at = code.offset(insn.addr);
        // LLVM decodes a leading lock prefix as an instruction of its own. The C library jumps behind it where there is
        // one thread.
        let is_x86 = code.around.elf.machine == raw::EM_X86_64;
        if is_x86 && insn.len > 1 && code.bytes.get(at as usize) == Some(&LOCK) {
            let kind = Kind::Plain;
            found.items.push(Item { at, kind });
            found.insns.push(*insn);
            at += 1;
        }
        found.items.push(Item { at, kind });
        found.insns.push(*insn);
        true
    });
    found.bases.sort_unstable();
    found.bases.dedup();
    found
}

/// What an instruction does to the division. A branch just after the function's end is none.
fn kind_of(code: &Code<'_, '_>, insn: &Insn) -> Kind {
    let f = &code.function;
    let past_end = |target: u64| target == f.start + f.size && f.size < f.reach;
    match insn.flow {
        Flow::Next | Flow::Trap => Kind::Plain,
        Flow::Call { .. } | Flow::IndirectCall => Kind::Call,
        Flow::Return => Kind::Return,
        Flow::Stop if is_trap(code.bytes, code.offset(insn.addr)) => Kind::Trap,
        Flow::Stop => Kind::Plain,
        Flow::Jump { target } | Flow::CondJump { target, .. } | Flow::ShortCond { target }
            if past_end(target) =>
        {
            Kind::Plain
        }
        Flow::Jump { target } if code.contains(target) => Kind::Jump(code.offset(target)),
        Flow::Jump { .. } => Kind::TailJump,
        Flow::CondJump { target, .. } | Flow::ShortCond { target } if code.contains(target) => {
            Kind::Branch(code.offset(target))
        }
        Flow::CondJump { .. } | Flow::ShortCond { .. } => Kind::TailBranch,
        Flow::IndirectJump => Kind::Indirect,
    }
}

/// Where the function is entered, ascending: its start, its other symbols, what other functions jump to, and
/// places whose address it forms itself.
fn entries(code: &Code<'_, '_>, index: usize, decoded: &Decoded) -> Vec<u32> {
    let mut entries = vec![0];
    entries.extend(&decoded.formed);
    let named = code.around.functions.entries_of(index).iter();
    entries.extend(named.map(|&at| code.offset(at)));
    let crossings = code.around.crossings;
    let from = crossings.partition_point(|&at| at <= code.function.start);
    let crossing = crossings.get(from..).unwrap_or_default().iter();
    entries.extend(
        crossing
            .take_while(|&&at| code.contains(at))
            .map(|&at| code.offset(at)),
    );
    sorted(entries)
}

/// Places in the function that data refers to.
fn referred_to(code: &Code<'_, '_>) -> Vec<u32> {
    let all = code.around.references.data_refers_to(code.around.elf);
    let from = all.partition_point(|&at| at <= code.function.start);
    let rest = all.get(from..).unwrap_or_default().iter();
    rest.take_while(|&&at| code.contains(at))
        .map(|&at| code.offset(at))
        .collect()
}

/// Landing pads of the function's exception table, ascending.
fn landing_pads(code: &Code<'_, '_>) -> Vec<u32> {
    let fde = code.around.unwind.fde_at(code.function.start);
    let table = fde.and_then(|fde| Lsda::parse(code.around.elf, fde.lsda?, fde.start).ok());
    let Some(table) = table else {
        return vec![];
    };
    let pads = table.call_sites.iter().filter_map(|site| site.landing_pad);
    sorted(
        pads.filter(|&at| code.contains(at))
            .map(|at| code.offset(at))
            .collect(),
    )
}

/// Whether the function's code is understood as far as BOLT wants it.
fn is_explained(code: &Code<'_, '_>, decoded: &Decoded) -> bool {
    let f = &code.function;
    // On AArch64 jump tables count from a label in the function, and BOLT knows nothing of them: it leaves a
    // function alone that forms such an address.
    let has_labels = code.around.elf.machine == raw::EM_AARCH64 && !decoded.formed.is_empty();
    // BOLT leaves functions with parts elsewhere alone if it cannot see what uses them.
    let uses_known = code.around.references.kept() || !f.fragment && !f.split;
    let decoded = decoded.stopped.is_none_or(|at| code.is_padding(at));
    !f.doubtful && decoded && !has_labels && uses_known
}

/// Call and jump instructions that can leave the function.
fn transfers(items: &[Item]) -> Vec<u32> {
    let leaves = |kind| {
        matches!(
            kind,
            Kind::Call | Kind::TailJump | Kind::TailBranch | Kind::Indirect
        )
    };
    let leaving = items.iter().filter(|item| leaves(item.kind));
    leaving.map(|item| item.at).collect()
}

fn sorted(mut list: Vec<u32>) -> Vec<u32> {
    list.sort_unstable();
    list.dedup();
    list
}

/// Whether the instruction is one of those that are there to trap (`ud1`, `ud2`; on AArch64 `udf`).
fn is_trap(bytes: &[u8], at: u32) -> bool {
    matches!(
        bytes.get(at as usize..),
        Some([0x0f, 0x0b | 0xb9, ..] | [0x67, 0x0f, 0xb9, ..])
    )
}

/// Cuts instructions into blocks: at labels, and after what ends a block. A jump to which no label leads joins
/// the block that the instruction before it has ended, unless that is another jump, a return, or a conditional
/// branch out of the function.
fn cut(items: &[Item], labels: &[u32]) -> Vec<Block> {
    let mut list: Vec<Block> = vec![];
    // The instruction before, if it has ended its block.
    let mut ended: Option<Kind> = None;
    let mut open = false;
    for item in items {
        let labelled = labels.binary_search(&item.at).is_ok();
        let joins = matches!(item.kind, Kind::Jump(_))
            && ended.is_some_and(|before| {
                !matches!(
                    before,
                    Kind::Indirect | Kind::Jump(_) | Kind::TailBranch | Kind::Return
                )
            });
        if labelled || !open && !joins {
            list.push(Block::starting_at(item.at));
        }
        if let Some(block) = list.last_mut() {
            block.last = item.at;
            block.instructions += 1;
            block.calls = matches!(item.kind, Kind::Call | Kind::TailBranch);
        }
        open = matches!(item.kind, Kind::Plain | Kind::Call);
        ended = (!open).then_some(item.kind);
    }
    list
}

/// Finds the edges between blocks; says of each whether it continues to the next.
fn connect(list: &mut [Block], items: &[Item], targets: &[(u32, Vec<u32>)]) -> Vec<u32> {
    let starts: Vec<u32> = list.iter().map(|block| block.start).collect();
    let block_at = |offset: u32| starts.binary_search(&offset).ok().map(|at| at as u32);
    let mut edges = Vec::new();
    let mut at = 0;
    let count = list.len();
    for (index, block) in list.iter_mut().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(u32::MAX);
        let from = at;
        while items.get(at).is_some_and(|item| item.at < end) {
            at += 1;
        }
        let first = edges.len();
        let add = |edges: &mut Vec<u32>, to: Option<u32>| {
            if let Some(to) = to.filter(|to| !edges.iter().skip(first).any(|known| known == to)) {
                edges.push(to);
            }
        };
        let mut last = Kind::Plain;
        for item in items.get(from..at).unwrap_or_default() {
            last = item.kind;
            match item.kind {
                Kind::Jump(to) | Kind::Branch(to) => add(&mut edges, block_at(to)),
                Kind::Indirect => {
                    let known = targets.binary_search_by_key(&item.at, |target| target.0);
                    let known = known.ok().and_then(|at| targets.get(at));
                    for &to in known.map_or(&[][..], |known| &known.1) {
                        add(&mut edges, block_at(to));
                        block.dispatches = true;
                    }
                }
                _ => {}
            }
        }
        let falls = match edges.len() - first {
            0 => matches!(last, Kind::Plain | Kind::Call | Kind::TailBranch),
            1 => matches!(last, Kind::Branch(_)),
            _ => false,
        };
        let next = (index + 1 < count).then_some(index as u32 + 1);
        if falls {
            add(&mut edges, next);
        }
        let is_next = |edge: &u32| Some(*edge) == next;
        block.goes_on = edges.iter().skip(first).any(is_next);
        block.edges = (first as u32, edges.len() as u32);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three blocks of 4 bytes, each of which continues.
    fn three() -> Blocks {
        let items: Vec<Item> = (0..3)
            .map(|n| Item {
                at: n * 4,
                kind: Kind::Plain,
            })
            .collect();
        let mut list = cut(&items, &[0, 4, 8]);
        let edges = connect(&mut list, &items, &[(4, vec![8])]);
        Blocks {
            list,
            edges,
            size: 12,
            explained: true,
            transfers: Vec::new(),
        }
    }

    #[test]
    fn runs_from_samples_that_are_no_places_of_the_function_are_refused() {
        let blocks = three();
        let run = |from, to| {
            let mut crossed = Vec::new();
            let arrival = Arrival {
                foreign: true,
                returned: false,
            };
            let possible = blocks.run(from, to, arrival, |last, next| crossed.push((last, next)));
            (possible, crossed)
        };
        assert_eq!(run(0, 11), (true, vec![(0, 4), (4, 8)]));
        assert_eq!(run(5, 6), (true, vec![]));
        for (from, to) in [
            (6, 5),
            (0, 12),
            (12, 12),
            (0, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(run(from, to), (false, vec![]), "{from:#x} to {to:#x}");
        }
        assert!(!Blocks::default().run(0, 0, Arrival::default(), |_, _| {}));
    }

    #[test]
    fn a_return_to_an_entry_or_a_landing_pad_comes_from_the_call_before_it_and_a_jump_does_not() {
        let run = |blocks: &Blocks, from, foreign, returned| {
            let mut crossed = Vec::new();
            let arrival = Arrival { foreign, returned };
            assert!(blocks.run(from, 9, arrival, |last, next| crossed.push((last, next))));
            crossed
        };
        let mut blocks = three();
        blocks.list[0].calls = true;
        let after_call = [(0, 4), (4, 8)];
        assert_eq!(run(&blocks, 4, true, false), after_call);
        assert_eq!(run(&blocks, 4, true, true), after_call);
        assert_eq!(run(&blocks, 4, false, true), [(4, 8)]);
        for mark in [
            |block: &mut Block| block.entry = true,
            |block: &mut Block| block.landing_pad = true,
        ] {
            let mut blocks = blocks.clone();
            mark(&mut blocks.list[1]);
            assert_eq!(run(&blocks, 4, true, false), [(4, 8)]);
            assert_eq!(run(&blocks, 4, true, true), after_call);
        }
        // Nothing is before the first block.
        blocks.list[0].entry = true;
        assert_eq!(run(&blocks, 0, true, true), after_call);
    }

    #[test]
    fn blocks_that_a_profile_names_and_the_function_lacks_have_no_successors() {
        let blocks = three();
        assert_eq!(blocks.successors(0), [1]);
        assert_eq!(blocks.successors(2), [0u32; 0]);
        assert_eq!(blocks.successors(usize::MAX), [0u32; 0]);
    }
}
