//! The blocks of a function, and where control goes from each.
//!
//! A block begins at the function's start, at a label that can be reached
//! ([`Label::begins_block`](crate::reader::Label::begins_block)), and after a branch; branches in a row, with
//! no label between, belong to one block. Calls do not end blocks; but a callee may not return, so a
//! block with a call in it may be left before its end, unless it is known to come back
//! ([`returns`](crate::returns)). The same goes for inline assembly.
//!
//! Where control comes from cannot always be seen: a landing pad is entered by the unwinder, a label may be
//! jumped to from the function's cold part, or through a pointer. Such blocks are *roots*. A jump through a
//! table may go to any label of the function whose address is taken. Other jumps to where a register points
//! may, and may be the last call of the function too: only where the table is named in the jump, or its entry
//! was just added to its place, it is certain.
//!
//! The same numbering of blocks gives the signature of the graph: successors in the order fall-through, target.

use rustc_hash::FxHashMap;

use crate::flow::{self, Flow};
use crate::lexer::{self, Kind, Statement};
use crate::reader::{self, Function, Unit};
use crate::report::Reason;
use crate::returns::Returning;
use crate::sequences;
use crate::target::{Arch, Target};

/// Edges of jumps through tables that are kept one by one.
const MOST_INDIRECT: usize = 1 << 16;

/// Branches that end one block.
const MOST_IN_A_ROW: usize = 64;

/// A block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Where in the text its counter goes.
    pub position: u32,
    /// Blocks that may follow.
    pub successors: Vec<u32>,
    /// Whether it may be left before its end, or to outside of the function.
    pub may_leave: bool,
    /// Whether it calls anything, or has inline assembly in it.
    pub calls: bool,
    /// Whether it may be entered from outside.
    pub is_root: bool,
    /// Whether a jump with unknown targets may leave the function.
    pub leaves_unseen: bool,
    /// Where a counter may go so that only what falls through from the block before passes it: in front of
    /// the block's labels. 0 if nowhere.
    pub before_labels: u32,
    /// Whether control may continue to the block after it without a jump.
    pub falls: bool,
    /// Whether the block after it may also be entered by a jump.
    pub jumps_to_next: bool,
    /// How many instructions of the function are in front of its end.
    pub instructions: u32,
    /// A block after it that its last branch must reach within 126 bytes: `cbz` in Thumb code.
    pub near: Option<u32>,
}

/// What the last instruction of a block does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Falls,
    /// A branch, or several: to labels, or on.
    Branches,
    /// To labels only.
    Jumps,
    Indirect,
    Leaves,
}

/// The blocks of a function in the order of the text, or why they are left alone. `returning` tells which
/// calls come back; without it all do.
pub fn graph(
    unit: &Unit<'_>,
    function: &Function<'_>,
    target: Target,
    returning: Option<&Returning<'_>>,
) -> Result<Vec<Block>, Reason> {
    if function.opaque {
        return Err(Reason::OpaqueBlocks);
    }
    let mut cutter = Cutter::new(unit, target, returning);
    for index in function.statements().skip(1) {
        cutter.statement(index)?;
    }
    cutter.check_reach()?;
    cutter.name_near();
    cutter.connect();
    Ok(cutter.blocks)
}

/// The blocks of a function while its statements are read one after the other.
struct Cutter<'a, 's> {
    unit: &'a Unit<'s>,
    target: Target,
    returning: Option<&'a Returning<'a>>,
    blocks: Vec<Block>,
    ends: Vec<End>,
    /// Blocks, and the labels that their branches name.
    branches: Vec<(u32, &'s [u8])>,
    /// Where the branches of the last block begin in `branches`.
    row: usize,
    /// Branches that reach 126 bytes only.
    nears: Vec<(u32, &'s [u8])>,
    /// How far the constants are that instructions load by their labels may be away.
    literals: Option<usize>,
    at_label: FxHashMap<&'s [u8], u32>,
    /// How many branches of the function name a label.
    own_branches: FxHashMap<&'s [u8], u32>,
    /// Labels of the block that begins with the next instruction.
    waiting: Vec<&'s [u8]>,
    /// The next instruction begins a block.
    begins: bool,
    /// Nothing falls into the next instruction.
    dead: bool,
    /// In inline assembly.
    in_app: bool,
    any_app: bool,
    any_indirect: bool,
    /// There are branches that reach 32 KiB only.
    short: bool,
    instructions: usize,
    /// The instruction before, and where it ends.
    last: (&'s [u8], u32),
}

impl<'a, 's> Cutter<'a, 's> {
    fn new(unit: &'a Unit<'s>, target: Target, returning: Option<&'a Returning<'a>>) -> Self {
        Cutter {
            unit,
            target,
            returning,
            blocks: vec![],
            ends: vec![],
            branches: vec![],
            row: 0,
            nears: vec![],
            literals: None,
            at_label: FxHashMap::default(),
            own_branches: FxHashMap::default(),
            waiting: vec![],
            begins: true,
            dead: false,
            in_app: false,
            any_app: false,
            any_indirect: false,
            short: false,
            instructions: 0,
            last: (b"", 0),
        }
    }

    /// Reads a statement by its index.
    fn statement(&mut self, index: usize) -> Result<(), Reason> {
        let statement = self.unit.statements[index];
        let text = statement.text(self.unit.source);
        let is_code = match statement.kind {
            Kind::Label => return self.label(index, text),
            Kind::Directive => self.is_prefix(text),
            Kind::AppEnd => {
                self.in_app = false;
                false
            }
            Kind::Assignment => false,
            Kind::AppStart => {
                (self.in_app, self.any_app) = (true, true);
                true
            }
            Kind::Instruction => {
                self.instructions += 1;
                true
            }
        };
        if is_code && !self.dead {
            self.code(statement, text)?;
        }
        Ok(())
    }

    /// Reads a label, which may begin a block.
    fn label(&mut self, index: usize, text: &'s [u8]) -> Result<(), Reason> {
        let unit = self.unit;
        let label = unit.labels.get(text).copied().unwrap_or_default();
        if label.narrow {
            return Err(Reason::NarrowBlocks);
        }
        let measured = self.target.arch == Arch::Arm
            && unit.statements.get(index + 1).is_some_and(|next| {
                next.kind == Kind::Instruction && reads_pc(next.text(unit.source))
            });
        if measured && label.address_taken {
            // Data holds the distance to the instruction after it: nothing can come between.
            let falls_in = self.begins && !self.dead && !self.blocks.is_empty();
            if label.branches > 0 || label.called || falls_in {
                return Err(Reason::OpaqueBlocks);
            }
            return Ok(());
        }
        if !self.in_app && label.begins_block() {
            self.begins = true;
            self.dead = false;
            self.waiting.push(text);
        }
        Ok(())
    }

    /// Reads a directive: whether it makes prefixes of the next instruction, as in calls for thread-local
    /// variables. Other data is no code, and nothing falls into it.
    fn is_prefix(&mut self, text: &[u8]) -> bool {
        let (directive, _) = lexer::word(text);
        let small = matches!(
            directive,
            b".byte" | b".word" | b".hword" | b".short" | b".value" | b".2byte"
        );
        if small && self.target.arch == Arch::X86_64 {
            return true;
        }
        if small || matches!(directive, b".long" | b".quad" | b".zero") {
            self.waiting.clear();
            (self.begins, self.dead) = (true, true);
        }
        false
    }

    /// Reads what is in the function's code: an instruction, its prefixes, or inline assembly.
    fn code(&mut self, statement: Statement, text: &'s [u8]) -> Result<(), Reason> {
        let flow = if statement.kind == Kind::Instruction {
            flow::flow(self.target.arch, text)
        } else {
            Flow::Next
        };
        // Branches in a row belong to one block, as they do in compilers.
        let goes_on = self.begins
            && self.waiting.is_empty()
            && self.ends.last() == Some(&End::Branches)
            && flow.target().is_some()
            && self.branches.len() < self.row + MOST_IN_A_ROW;
        if self.begins && !goes_on {
            self.begin_block(statement, text);
        }
        let Some(block) = self.blocks.last_mut() else {
            return Ok(());
        };
        if self.in_app {
            (block.may_leave, block.calls) = (true, true);
            self.last = (b"", 0);
            return Ok(());
        }
        if statement.kind == Kind::Directive {
            self.last = (b"", statement.end);
            return Ok(());
        }
        block.instructions = self.instructions as u32; // fewer than bytes of the text
        if let Some(label) = flow.target() {
            self.branch(label, text);
        }
        if self.target.arch == Arch::Arm && flow == Flow::Next {
            let reach = literal_reach(text);
            self.literals = self.literals.min(reach).or(reach).or(self.literals);
        }
        self.transfer(flow, text)?;
        self.last = (text, statement.end);
        Ok(())
    }

    /// Begins a block with an instruction.
    fn begin_block(&mut self, statement: Statement, text: &[u8]) {
        self.row = self.branches.len();
        let number = self.blocks.len() as u32; // fewer than bytes of the text
        for label in self.waiting.drain(..) {
            self.at_label.insert(label, number);
        }
        let first =
            statement.kind == Kind::Instruction && reader::must_be_first(self.target.arch, text);
        self.blocks.push(Block {
            position: if first {
                statement.end
            } else {
                statement.start
            },
            before_labels: self.last.1,
            ..Block::default()
        });
        self.ends.push(End::Falls);
        self.begins = false;
    }

    /// Notes a branch of the last block, and how far it reaches.
    fn branch(&mut self, label: &'s [u8], text: &[u8]) {
        let number = self.blocks.len().saturating_sub(1) as u32; // fewer than bytes of the text
        self.branches.push((number, label));
        *self.own_branches.entry(label).or_default() += 1;
        let mnemonic = lexer::word(text).0;
        self.short |= matches!(mnemonic, b"tbz" | b"tbnz");
        if matches!(mnemonic, b"cbz" | b"cbnz") && self.target.arch == Arch::Arm {
            self.nears.push((number, label));
        }
    }

    /// What an instruction's flow of control says of the last block, and whether it ends it.
    fn transfer(&mut self, flow: Flow<'_>, text: &[u8]) -> Result<(), Reason> {
        let (Some(block), Some(end)) = (self.blocks.last_mut(), self.ends.last_mut()) else {
            return Ok(());
        };
        block.calls |= matches!(flow, Flow::Call(_));
        *end = match flow {
            Flow::Next => return Ok(()),
            Flow::Call(name) => {
                let returns = |known: &Returning<'_>| name.is_some_and(|n| known.call(n, text));
                block.may_leave |= self.returning.is_some_and(|known| !returns(known));
                return Ok(());
            }
            Flow::Perhaps => {
                block.may_leave = true;
                return Ok(());
            }
            Flow::Into => return Err(Reason::OpaqueBlocks),
            Flow::Branch(_) => End::Branches,
            Flow::Jump(_) => End::Jumps,
            Flow::Indirect => {
                self.any_indirect = true;
                block.leaves_unseen = !is_through_table(self.target.arch, text, self.last.0);
                End::Indirect
            }
            _ => End::Leaves,
        };
        self.begins = true;
        self.dead = flow.ends();
        Ok(())
    }

    /// Whether branches and loads of constants still reach when each block has a counter.
    fn check_reach(&self) -> Result<(), Reason> {
        // Each counter is up to five instructions. 32 KiB is as far as these branches reach.
        let grown = self.instructions + 5 * self.blocks.len();
        if self.target.arch == Arch::AArch64 && self.short && grown > 8000 {
            return Err(Reason::NarrowBlocks);
        }
        let bytes = 4 * self.instructions + sequences::ARM_BLOCK * (self.blocks.len() + 1);
        if self.literals.is_some_and(|reach| bytes > reach) {
            return Err(Reason::NarrowBlocks);
        }
        Ok(())
    }

    /// Names the blocks that branches of little reach lead to.
    fn name_near(&mut self) {
        for (from, label) in &self.nears {
            if let (Some(&to), Some(block)) = (
                self.at_label.get(label),
                self.blocks.get_mut(*from as usize),
            ) {
                block.near = block.near.max(Some(to));
            }
        }
    }

    /// Marks the roots that labels show, and gives the blocks to which indirect jumps may lead, ascending.
    fn mark_roots(&mut self) -> Vec<u32> {
        let mut indirect: Vec<u32> = vec![];
        for (name, &number) in &self.at_label {
            let label = self.unit.labels.get(name).copied().unwrap_or_default();
            if label.address_taken {
                indirect.push(number);
            }
            let own = self.own_branches.get(name).copied().unwrap_or(0);
            let by_pointer = label.address_taken && (self.any_app || !self.any_indirect);
            if label.branches > own || by_pointer || label.called || label.is_landing_pad() {
                self.blocks[number as usize].is_root = true; // numbers of blocks
            }
        }
        if let Some(entry) = self.blocks.first_mut() {
            entry.is_root = true;
        }
        indirect.sort_unstable();
        indirect.dedup();
        indirect
    }

    /// Finds the edges between blocks.
    fn connect(&mut self) {
        let mut indirect = self.mark_roots();
        let jumps = self.ends.iter().filter(|end| **end == End::Indirect);
        if jumps.count().saturating_mul(indirect.len()) > MOST_INDIRECT {
            // Too many edges: whatever may be jumped to is entered from somewhere.
            for block in std::mem::take(&mut indirect) {
                self.blocks[block as usize].is_root = true; // numbers of blocks
            }
        }
        let count = self.blocks.len();
        let mut branches = self.branches.iter().peekable();
        for (index, (block, end)) in self.blocks.iter_mut().zip(&self.ends).enumerate() {
            while let Some((_, label)) = branches.next_if(|(from, _)| *from as usize == index) {
                match self.at_label.get(label) {
                    Some(&target) => {
                        block.successors.push(target);
                        block.jumps_to_next |= target as usize == index + 1;
                    }
                    None => block.may_leave = true,
                }
            }
            if *end == End::Indirect {
                block.successors.clone_from(&indirect);
                block.leaves_unseen |= indirect.is_empty();
                block.may_leave |= block.leaves_unseen;
                continue;
            }
            let falls = matches!(end, End::Falls | End::Branches);
            block.falls = falls && index + 1 < count;
            block.may_leave |= *end == End::Leaves || falls && !block.falls;
            if block.falls {
                block.successors.insert(0, index as u32 + 1);
            }
            remove_repeated(&mut block.successors);
        }
    }
}

/// Whether an Arm instruction computes with its own address.
fn reads_pc(text: &[u8]) -> bool {
    let (_, rest) = lexer::word(text);
    lexer::operands(rest)
        .skip(1)
        .any(|operand| operand == b"pc" || operand.starts_with(b"[pc"))
        || lexer::operands(rest)
            .next()
            .is_some_and(|o| o.starts_with(b"[pc"))
}

/// How far a constant that an Arm instruction loads may be away, if it loads one by its label.
fn literal_reach(text: &[u8]) -> Option<usize> {
    let (mnemonic, rest) = lexer::word(text);
    let named = lexer::operands(rest).last()?.starts_with(b".L");
    match mnemonic {
        _ if !named => None,
        b"ldr" | b"ldrb" | b"ldrh" | b"ldrsb" | b"ldrsh" => Some(4000),
        // vldr, ldrd, adr, …
        _ => Some(1000),
    }
}

/// Whether branches that must stay short do so with these counters.
pub fn stay_near(blocks: &[Block], counters: &[usize]) -> bool {
    blocks.iter().enumerate().all(|(index, block)| {
        let Some(to) = block.near.map(|to| to as usize) else {
            return true;
        };
        let more = counters
            .iter()
            .filter(|&&counter| (index + 1..=to).contains(&counter))
            .count();
        let end = to.checked_sub(1).and_then(|last| blocks.get(last));
        let between = end.map_or(0, |end| end.instructions.saturating_sub(block.instructions));
        4 * between as usize + sequences::ARM_BLOCK * more <= 120
    })
}

/// Whether a jump with unknown targets goes to a label of its function: it reads a table that it names, or
/// the instruction before has added an entry of a table to an address.
fn is_through_table(arch: Arch, jump: &[u8], before: &[u8]) -> bool {
    let (mnemonic, rest) = lexer::word(jump);
    if arch == Arch::Arm {
        // Other ways to jump through a register are a call's end.
        return [&b"tb"[..], b"add", b"ldr"]
            .iter()
            .any(|start| mnemonic.starts_with(start));
    }
    let operand = match lexer::word(rest) {
        (b"*", more) => more,
        (b"jmp" | b"jmpq", more) => more, // after notrack
        _ => rest,
    };
    let operand = operand.strip_prefix(b"*").unwrap_or(operand);
    if operand.starts_with(b".L") || operand.starts_with(b"L") {
        return true;
    }
    let (mnemonic, operands) = lexer::word(before);
    let register = operand.strip_prefix(b"%").unwrap_or(operand);
    let named = |operand: Option<&[u8]>| {
        operand.is_some_and(|o| o.strip_prefix(b"%").unwrap_or(o) == register)
    };
    match mnemonic {
        b"addq" | b"add" if arch == Arch::X86_64 => named(lexer::operands(operands).last()),
        b"add" => named(lexer::operands(operands).next()),
        _ => false,
    }
}

/// Whether a way out of the function leads from every block.
pub fn all_end(blocks: &[Block]) -> bool {
    let mut before: Vec<Vec<usize>> = vec![vec![]; blocks.len()];
    let mut ends = vec![false; blocks.len()];
    let mut open = vec![];
    for (index, block) in blocks.iter().enumerate() {
        for &successor in &block.successors {
            before[successor as usize].push(index); // numbers of blocks
        }
        if block.may_leave {
            ends[index] = true;
            open.push(index);
        }
    }
    while let Some(block) = open.pop() {
        for &from in &before[block] {
            if !std::mem::replace(&mut ends[from], true) {
                open.push(from);
            }
        }
    }
    ends.iter().all(|&ends| ends)
}

/// Keeps the first of equal successors.
fn remove_repeated(successors: &mut Vec<u32>) {
    let mut seen: Vec<u32> = vec![];
    successors.retain(|&successor| {
        let new = !seen.contains(&successor);
        seen.push(successor);
        new
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn blocks_of(source: &str) -> Vec<Block> {
        let target = Target::of_triple("x86_64-linux-gnu").unwrap();
        let text = format!("\t.text\n\t.type\tf, @function\nf:\n{source}\t.size\tf, .-f\n");
        let unit = reader::read(text.as_bytes(), target, &mut Report::default()).unwrap();
        graph(&unit, &unit.functions[0], target, None).unwrap()
    }

    #[test]
    fn branches_in_a_row_end_one_block() {
        let blocks = blocks_of(
            "\tucomiss %xmm0, %xmm1\n\tjne .L1\n\tjp .L1\n\tjmp .L2\n.L1:\n\tnop\n.L2:\n\tret\n",
        );
        assert_eq!(blocks.len(), 3);
        assert_eq!(blocks[0].successors, [1, 2]);
        assert!(!blocks[0].falls && blocks[0].jumps_to_next);
        // With a label between, the second is a block of its own.
        let blocks = blocks_of("\tje .L1\n.L0:\n\tjp .L1\n\tnop\n.L1:\n\tjs .L0\n\tret\n");
        let successors: Vec<&[u32]> = blocks.iter().map(|b| &b.successors[..]).collect();
        assert_eq!(
            successors,
            [&[1, 3][..], &[2, 3], &[3], &[4, 1], &[]],
            "{blocks:?}"
        );
        assert!(blocks[0].falls && !blocks[0].jumps_to_next);
    }

    #[test]
    fn a_jump_through_a_table_leads_to_all_its_targets_however_many_there_are() {
        let switch = |targets: usize, jumps: usize| {
            let jump: String = (1..=jumps)
                .map(|n| format!("\tje .Lj{n}\n\tjmp *.Ltable(,%rax,8)\n.Lj{n}:\n"))
                .collect();
            let bodies: String = (0..targets)
                .map(|n| format!(".Lcase{n}:\n\tincl %eax\n\tjmp .Ljoin\n"))
                .collect();
            let table: String = (0..targets)
                .map(|n| format!("\t.quad .Lcase{n}\n"))
                .collect();
            blocks_of(&format!(
                "{jump}{bodies}.Ljoin:\n\tret\n\t.section .rodata\n.Ltable:\n{table}\t.text\n"
            ))
        };
        let blocks = switch(100, 1);
        assert_eq!(blocks[1].successors.len(), 100);
        assert!(blocks[1..].iter().all(|block| !block.is_root));
        // With too many edges, they may come from anywhere.
        let blocks = switch(1000, 100);
        assert!(blocks.iter().filter(|block| block.is_root).count() > 1000);
    }
}
