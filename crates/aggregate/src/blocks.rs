//! The blocks of one function, cut as BOLT cuts them.
//!
//! A fall-through is written as the last instruction of a block and the first of the next, so both sides must
//! agree on what a block is:
//!
//! * one begins at the function's start, at its other entries, at targets of branches and of jump tables, at
//!   landing pads, and after what ends one;
//! * branches, returns and `ud2` end one. Calls do not;
//! * a jump after a conditional branch, to which nothing else leads, stays in the branch's block: it ends
//!   with both. Not so if one of the two leaves the function;
//! * a branch just after the function's end (code that the compiler knows cannot be reached) is no branch.
//!
//! A block *goes on* to the next one if it has an edge to it: it ends in no branch, in a conditional one, in
//! one to the next block, or in a jump table that names it.
//!
//! Indirect jumps. BOLT does not believe in traces of functions with a jump it cannot explain, unless the
//! linker kept the relocations, which tell every possible target. The same is said here, in
//! [`Blocks::explained`].

use std::sync::OnceLock;

use postlink_image::elf::{Elf, KeptReloc, SymbolTable};
use postlink_image::raw;
use postlink_image::unwind::eh_frame::EhFrame;
use postlink_image::unwind::lsda::Lsda;
use postlink_isa::{Flow, Insn, Isa, JumpShape};
use rayon::prelude::*;

use postlink_bolt_symbols::Functions;

/// No table is longer.
const MAX_TABLE: usize = 1 << 16;
/// Instructions before an indirect jump that are looked at.
const PATH: usize = 64;

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

/// The blocks of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    list: Vec<Block>,
    edges: Vec<u32>,
    /// Bytes of the function.
    size: u32,
    /// Every instruction was decoded, and every jump is understood as far as needed.
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
    /// `foreign`: control came from another function. False if no such run is possible.
    pub fn run(&self, from: u64, to: u64, foreign: bool, mut each: impl FnMut(u32, u32)) -> bool {
        if !self.explained || from > to {
            return false;
        }
        let (Some(mut at), Some(end)) = (self.containing(from), self.containing(to)) else {
            return false;
        };
        // After a call: it is the call's return, and the block with the call goes on.
        let first = self.list[at];
        if foreign && from == u64::from(first.start) && !first.entry && !first.landing_pad && at > 0
        {
            let before = self.list[at - 1];
            if before.goes_on && before.calls {
                at -= 1;
            }
        }
        let Some(run) = self.list.get(at..end) else {
            return end < at;
        };
        if !run.iter().all(|block| block.goes_on) {
            return false;
        }
        for pair in self.list[at..=end].windows(2) {
            each(pair[0].last, pair[1].start);
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

/// What relocations say of code and data; read when first asked for.
#[derive(Debug, Default)]
pub struct References {
    kept: bool,
    found: OnceLock<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// Addresses in code that data refers to, ascending.
    into_code: Vec<u64>,
    /// Addresses of data that code forms, ascending: each may begin a table, and ends the one before.
    bases: Vec<u64>,
}

impl References {
    /// Of a file.
    pub fn new(elf: &Elf<'_>) -> References {
        References {
            kept: elf.has_kept_relocs(),
            found: OnceLock::new(),
        }
    }

    fn found(&self, elf: &Elf<'_>) -> Option<&Found> {
        self.kept
            .then(|| self.found.get_or_init(|| Found::read(elf)))
    }
}

impl Found {
    fn read(elf: &Elf<'_>) -> Found {
        let symbols = elf.symbols(SymbolTable::Static);
        let is_code = |address: u64| elf.section_at(address).is_some_and(|(_, s)| s.is_code());
        let Ok(relocs) = elf.kept_relocs() else {
            return Found::default();
        };
        let value = |reloc: &KeptReloc| {
            let symbol = symbols.get(reloc.symbol as usize)?;
            Some(symbol.value.wrapping_add_signed(reloc.addend))
        };
        let sorted = |mut list: Vec<u64>| {
            list.par_sort_unstable();
            list.dedup();
            list
        };
        let into_code = relocs
            .par_iter()
            .filter(|reloc| matches!(reloc.kind, R_X86_64_64 | R_AARCH64_ABS64))
            .filter(|reloc| !is_code(reloc.addr))
            .filter_map(value)
            .filter(|&address| is_code(address))
            .collect();
        // The field is the last part of the instruction: the address counts from its end.
        let bases = relocs
            .par_iter()
            .filter(|reloc| reloc.kind == R_X86_64_PC32 && is_code(reloc.addr))
            .filter_map(value)
            .map(|address| address.wrapping_add(4))
            .filter(|&address| !is_code(address))
            .collect();
        Found {
            into_code: sorted(into_code),
            bases: sorted(bases),
        }
    }
}

const R_X86_64_64: u32 = 1;
const R_X86_64_PC32: u32 = 2;
const R_AARCH64_ABS64: u32 = 257;

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

struct Item {
    at: u32,
    kind: Kind,
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
    let empty = Blocks::default();
    let Some(f) = around.functions.list().get(function).copied() else {
        return empty;
    };
    let Some(bytes) = around
        .elf
        .bytes_at(f.start, f.size)
        .filter(|_| !f.stub && u32::try_from(f.size).is_ok() && f.size > 0)
    else {
        return empty;
    };
    let offset = |address: u64| (address - f.start) as u32;
    let inside = |address: u64| f.contains(address);
    let mut items: Vec<Item> = Vec::new();
    let mut labels: Vec<u32> = vec![0];
    let mut entries: Vec<u32> = vec![0];
    let mut insns: Vec<Insn> = Vec::new();
    let mut indirect = false;
    // Addresses of places in the function.
    let mut labels_formed = false;
    // Addresses of data that the code forms: maybe tables.
    let mut bases: Vec<u64> = Vec::new();
    let stopped = I::sweep(bytes, f.start, |insn| {
        let past_end = |target: u64| target == f.start + f.size && f.size < f.reach;
        let kind = match insn.flow {
            Flow::Next => Kind::Plain,
            Flow::Call { target } => {
                if inside(target) && target != f.start {
                    labels.push(offset(target));
                }
                Kind::Call
            }
            Flow::IndirectCall => Kind::Call,
            Flow::Return => Kind::Return,
            Flow::Stop if is_trap(bytes, offset(insn.addr)) => Kind::Trap,
            Flow::Stop => Kind::Plain,
            Flow::Jump { target } | Flow::CondJump { target, .. } | Flow::ShortCond { target }
                if past_end(target) =>
            {
                Kind::Plain
            }
            Flow::Jump { target } if inside(target) => {
                labels.push(offset(target));
                Kind::Jump(offset(target))
            }
            Flow::Jump { .. } => Kind::TailJump,
            Flow::CondJump { target, .. } | Flow::ShortCond { target } if inside(target) => {
                labels.push(offset(target));
                Kind::Branch(offset(target))
            }
            Flow::CondJump { .. } | Flow::ShortCond { .. } => Kind::TailBranch,
            Flow::IndirectJump => {
                indirect = true;
                Kind::Indirect
            }
        };
        if let Some(field) = insn.field.filter(|_| insn.traits.forms_address) {
            if inside(field.target) && field.target != f.start {
                // The address may be jumped to by anybody.
                entries.push(offset(field.target));
                labels_formed = true;
            } else if !inside(field.target) {
                bases.push(field.target);
            }
        }
        items.push(Item {
            at: offset(insn.addr),
            kind,
        });
        insns.push(*insn);
        true
    });
    if items.is_empty() {
        return empty;
    }
    let named = around.functions.entries_of(function).iter();
    entries.extend(named.map(|&at| offset(at)));
    let from = around.crossings.partition_point(|&at| at <= f.start);
    let crossing = around.crossings.get(from..).unwrap_or_default().iter();
    entries.extend(crossing.take_while(|&&at| inside(at)).map(|&at| offset(at)));
    entries.sort_unstable();
    entries.dedup();
    let mut pads: Vec<u32> = Vec::new();
    if let Some(fde) = around.unwind.fde_at(f.start)
        && let Some(lsda) = fde.lsda
        && let Ok(lsda) = Lsda::parse(around.elf, lsda, fde.start)
    {
        let pad = lsda.call_sites.iter().filter_map(|site| site.landing_pad);
        pads.extend(pad.filter(|&at| inside(at)).map(offset));
        pads.sort_unstable();
        pads.dedup();
    }
    labels.extend(&entries);
    labels.extend(&pads);
    labels.sort_unstable();
    labels.dedup();
    // Zeros after the last instruction are padding.
    let padding = |address: u64| {
        bytes
            .get(offset(address) as usize..)
            .is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
    };
    let mut explained = !f.doubtful && stopped.is_none_or(padding);
    // On AArch64 jump tables count from a label in the function, and BOLT knows nothing of them: it leaves a
    // function alone that forms such an address.
    explained &= !labels_formed || around.elf.machine != raw::EM_AARCH64;
    let mut targets: Vec<(u32, Vec<u32>)> = Vec::new();
    if indirect {
        bases.sort_unstable();
        bases.dedup();
        let found = around.references.found(around.elf);
        let is_insn = |at: u32| items.binary_search_by_key(&at, |item| item.at).is_ok();
        let tables = Tables {
            around,
            start: f.start,
            size: f.size,
            is_insn: &is_insn,
            bases: &bases,
            ends: found.map_or(&bases, |found| &found.bases),
        };
        for index in 0..items.len() {
            if items[index].kind != Kind::Indirect {
                continue;
            }
            let mut list = tables.of_jump::<I>(&insns, index, bytes);
            if list.is_empty()
                && let Some(Found { into_code, .. }) = found
                && leaves_unknown(&insns, index, bytes, &labels, f.start)
            {
                // Every place that data refers to is possible.
                let from = into_code.partition_point(|&at| at < f.start);
                let inside = into_code.get(from..).unwrap_or_default().iter();
                list.extend(
                    inside
                        .take_while(|&&at| f.contains(at))
                        .map(|&at| offset(at)),
                );
            }
            list.sort_unstable();
            list.dedup();
            labels.extend(&list);
            targets.push((items[index].at, list));
        }
        labels.sort_unstable();
        labels.dedup();
    }
    let mut cut = Cut::default();
    cut.blocks(&items, &labels);
    let Cut { mut list, .. } = cut;
    // A function of one block that ends in an indirect jump leaves by it.
    let kept = around.references.kept;
    if indirect && !kept && list.len() > 1 {
        let unexplained = targets.iter().any(|(at, targets)| {
            let block = list.partition_point(|block| block.start <= *at) - 1;
            !is_seen_through::<I>(&insns, &list[block], *at, targets, bytes, f.start)
        });
        explained &= !unexplained;
    }
    // BOLT leaves functions with second entries and with parts elsewhere alone if it cannot see who uses them.
    explained &= kept || entries.len() == 1 && !f.fragment && !f.split;
    let edges = connect(&mut list, &items, &targets);
    for block in &mut list {
        block.entry = entries.binary_search(&block.start).is_ok();
        block.landing_pad = pads.binary_search(&block.start).is_ok();
    }
    let transfers = items
        .iter()
        .filter(|item| {
            matches!(
                item.kind,
                Kind::Call | Kind::TailJump | Kind::TailBranch | Kind::Indirect
            )
        })
        .map(|item| item.at)
        .collect();
    Blocks {
        list,
        edges,
        size: f.size as u32,
        explained,
        transfers,
    }
}

/// Whether the instruction is one of those that are there to trap (`ud1`, `ud2`; on AArch64 `udf`).
fn is_trap(bytes: &[u8], at: u32) -> bool {
    matches!(
        bytes.get(at as usize..),
        Some([0x0f, 0x0b | 0xb9, ..] | [0x67, 0x0f, 0xb9, ..])
    )
}

/// Blocks while they are cut.
#[derive(Default)]
struct Cut {
    list: Vec<Block>,
    /// The instruction that ended the last block, if it is the one before.
    ended: Option<Kind>,
}

impl Cut {
    fn blocks(&mut self, items: &[Item], labels: &[u32]) {
        let mut open = false;
        let mut last = Kind::Plain;
        for item in items {
            let labelled = labels.binary_search(&item.at).is_ok();
            let joins = !labelled
                && !open
                && matches!(item.kind, Kind::Jump(_))
                && self.ended.is_some_and(|before| {
                    !matches!(
                        before,
                        Kind::Indirect | Kind::Jump(_) | Kind::TailBranch | Kind::Return
                    )
                });
            if labelled || !open && !joins {
                self.list.push(Block {
                    start: item.at,
                    last: item.at,
                    instructions: 0,
                    entry: false,
                    landing_pad: false,
                    calls: false,
                    goes_on: false,
                    dispatches: false,
                    edges: (0, 0),
                });
            }
            if let Some(block) = self.list.last_mut() {
                block.last = item.at;
                block.instructions += 1;
                block.calls = matches!(item.kind, Kind::Call | Kind::TailBranch);
            }
            last = item.kind;
            open = !matches!(
                item.kind,
                Kind::Return
                    | Kind::Trap
                    | Kind::Jump(_)
                    | Kind::Branch(_)
                    | Kind::TailJump
                    | Kind::TailBranch
                    | Kind::Indirect
            );
            self.ended = (!open).then_some(last);
        }
        let _ = last;
    }
}

/// Finds the edges between blocks; says of each whether it goes on to the next.
fn connect(list: &mut [Block], items: &[Item], targets: &[(u32, Vec<u32>)]) -> Vec<u32> {
    let starts: Vec<u32> = list.iter().map(|block| block.start).collect();
    let block_at = |offset: u32| starts.binary_search(&offset).ok().map(|at| at as u32);
    let mut edges = Vec::new();
    let mut at = 0;
    for index in 0..list.len() {
        let end = starts.get(index + 1).copied().unwrap_or(u32::MAX);
        let from = at;
        while items.get(at).is_some_and(|item| item.at < end) {
            at += 1;
        }
        let first = edges.len();
        let mut add = |to: Option<u32>| {
            if let Some(to) = to.filter(|to| !edges[first..].contains(to)) {
                edges.push(to);
            }
        };
        let mut last = Kind::Plain;
        for item in &items[from..at] {
            last = item.kind;
            match item.kind {
                Kind::Jump(to) | Kind::Branch(to) => add(block_at(to)),
                Kind::Indirect => {
                    let known = targets.binary_search_by_key(&item.at, |target| target.0);
                    for &to in known.map_or(&[][..], |at| &targets[at].1) {
                        add(block_at(to));
                        list[index].dispatches = true;
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
        let next = (index + 1 < list.len()).then_some(index as u32 + 1);
        if let Some(next) = next.filter(|_| falls)
            && !edges[first..].contains(&next)
        {
            edges.push(next);
        }
        let block = &mut list[index];
        block.goes_on = next.is_some_and(|next| edges[first..].contains(&next));
        block.edges = (first as u32, edges.len() as u32);
    }
    edges
}

/// The straight-line code that ends with an indirect jump.
fn path(insns: &[Insn], index: usize) -> &[Insn] {
    let from = (index.saturating_sub(PATH)..index)
        .rev()
        .find(|&at| {
            matches!(
                insns[at].flow,
                Flow::Jump { .. } | Flow::IndirectJump | Flow::Return | Flow::Stop
            )
        })
        .map_or(index.saturating_sub(PATH), |at| at + 1);
    &insns[from..=index]
}

fn bytes_of<'c>(bytes: &'c [u8], start: u64, insn: &Insn) -> &'c [u8] {
    let at = (insn.addr - start) as usize;
    bytes
        .get(at..at + usize::from(insn.len))
        .unwrap_or_default()
}

/// Whether an indirect jump without a table may go to places in its function.
fn leaves_unknown(insns: &[Insn], index: usize, bytes: &[u8], labels: &[u32], start: u64) -> bool {
    // Through memory at a fixed place: a slot that is filled at run time.
    let jump = &insns[index];
    if jump.field.is_some() {
        return false;
    }
    let from = (jump.addr - start) as u32;
    let block = labels.partition_point(|&label| label <= from);
    let block = block.checked_sub(1).map_or(0, |at| labels[at]);
    let epilogue = path(insns, index).iter().any(|insn| {
        insn.addr - start >= u64::from(block) && is_epilogue(bytes_of(bytes, start, insn))
    });
    !epilogue
}

/// Whether an indirect jump's own block tells what it is: its table is formed there, its target is loaded
/// from a fixed place, or the stack frame is taken down, which makes it a tail call.
fn is_seen_through<I: Isa>(
    insns: &[Insn],
    block: &Block,
    at: u32,
    targets: &[u32],
    bytes: &[u8],
    start: u64,
) -> bool {
    let address = start + u64::from(at);
    let Ok(index) = insns.binary_search_by_key(&address, |insn| insn.addr) else {
        return false;
    };
    let first = start + u64::from(block.start);
    let begin = insns.partition_point(|insn| insn.addr < first);
    let run = &insns[begin..=index];
    let code = |insn: &Insn| bytes_of(bytes, start, insn);
    match I::jump_shape(run, code) {
        JumpShape::Absolute { table: Some(_) } => true,
        JumpShape::Relative { table: Some(_), .. } => !targets.is_empty(),
        _ => run.iter().any(|insn| is_epilogue(code(insn))),
    }
}

/// `pop` or `leave`.
fn is_epilogue(insn: &[u8]) -> bool {
    matches!(
        insn,
        [0x58..=0x5f] | [0x40..=0x4f, 0x58..=0x5f] | [0xc9] | [0x8f, ..]
    )
}

/// Reads jump tables of one function.
struct Tables<'a, 'd> {
    around: &'a Surroundings<'a, 'd>,
    start: u64,
    size: u64,
    is_insn: &'a dyn Fn(u32) -> bool,
    /// Addresses of data that the function forms.
    bases: &'a [u64],
    /// Where tables begin: no table goes on there.
    ends: &'a [u64],
}

impl Tables<'_, '_> {
    /// Targets of an indirect jump; empty if its table cannot be found.
    fn of_jump<I: Isa>(&self, insns: &[Insn], index: usize, bytes: &[u8]) -> Vec<u32> {
        let shape = I::jump_shape(path(insns, index), |insn| bytes_of(bytes, self.start, insn));
        match shape {
            JumpShape::Relative {
                table: Some(table),
                width,
            } => self.relative(table, u64::from(width)),
            JumpShape::Absolute { table: Some(table) } => self.absolute(table),
            // The table's address was formed elsewhere: it is one of those that the function forms.
            JumpShape::Relative { table: None, .. } | JumpShape::Unknown
                if insns[index].field.is_none() =>
            {
                let from = insns[index].flow == Flow::IndirectJump;
                let mut all = Vec::new();
                if from {
                    self.bases
                        .iter()
                        .for_each(|&base| all.append(&mut self.relative(base, 4)));
                }
                all
            }
            _ => Vec::new(),
        }
    }

    fn target(&self, address: u64) -> Option<Option<u32>> {
        let offset = address.checked_sub(self.start)?;
        if offset == self.size {
            return Some(None); // cannot be reached
        }
        let offset = u32::try_from(offset)
            .ok()
            .filter(|&o| u64::from(o) < self.size)?;
        (self.is_insn)(offset).then_some(Some(offset))
    }

    fn entries(&self, read: impl Fn(u64) -> Option<(u64, u64)>) -> Vec<u32> {
        let (mut list, mut special) = (Vec::new(), 0);
        let mut real = 0;
        for index in 0..MAX_TABLE as u64 {
            let Some((place, address)) = read(index) else {
                break;
            };
            // The next table begins.
            if index > 0 && self.ends.binary_search(&place).is_ok() {
                break;
            }
            match self.target(address) {
                Some(Some(0)) => {
                    special = 1;
                    list.push(0);
                }
                Some(Some(offset)) => {
                    real += 1;
                    list.push(offset);
                }
                Some(None) => special = 1,
                None => break,
            }
        }
        if real + special < 2 {
            list.clear();
        }
        list
    }

    fn relative(&self, table: u64, width: u64) -> Vec<u32> {
        let elf = self.around.elf;
        let data = elf
            .section_at(table)
            .is_some_and(|(_, s)| s.flags & raw::SHF_WRITE == 0 && s.has_contents());
        if !data {
            return Vec::new();
        }
        self.entries(|index| {
            let place = table.checked_add(width * index)?;
            let value = match elf.bytes_at(place, width)? {
                bytes if width == 8 => u64::from_le_bytes(bytes.try_into().ok()?),
                bytes => i32::from_le_bytes(bytes.try_into().ok()?) as u64,
            };
            Some((place, table.wrapping_add(value)))
        })
    }

    fn absolute(&self, table: u64) -> Vec<u32> {
        self.entries(|index| {
            let place = table.checked_add(8 * index)?;
            Some((place, self.around.elf.u64_at(place)?))
        })
    }
}
