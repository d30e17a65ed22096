//! Dyno-stats: what a profile says the processor will execute under a given layout, as llvm-bolt defines them.
//!
//! Counted over functions with a profile; blocks that never ran contribute nothing.

use postlink_isa::{Flow, Isa};
use serde::Serialize;

use crate::attach::Counted;
use crate::cfg::{BlockId, Term};
use crate::discover::Program;
use crate::passes::{Change, Changes};

/// Sums over all functions; saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DynoStats {
    /// Conditional branches whose target is at a higher address.
    pub executed_forward_branches: u64,
    /// Of these, taken.
    pub taken_forward_branches: u64,
    /// Conditional branches whose target is at a lower address.
    pub executed_backward_branches: u64,
    /// Of these, taken.
    pub taken_backward_branches: u64,
    /// Plain jumps.
    pub executed_unconditional_branches: u64,
    /// Calls of all kinds.
    pub all_function_calls: u64,
    /// Indirect calls.
    pub indirect_calls: u64,
    /// Calls through the procedure linkage table.
    pub plt_calls: u64,
    /// Instructions.
    pub executed_instructions: u64,
    /// Instructions that read memory.
    pub executed_loads: u64,
    /// Instructions that write it.
    pub executed_stores: u64,
    /// Jumps through jump tables.
    pub taken_jump_table_branches: u64,
    /// Other indirect jumps.
    pub taken_unknown_indirect_branches: u64,
}

impl DynoStats {
    /// Adds up.
    pub fn merge(&mut self, other: &DynoStats) {
        let sum = |a: u64, b: u64| a.saturating_add(b);
        *self = DynoStats {
            executed_forward_branches: sum(
                self.executed_forward_branches,
                other.executed_forward_branches,
            ),
            taken_forward_branches: sum(self.taken_forward_branches, other.taken_forward_branches),
            executed_backward_branches: sum(
                self.executed_backward_branches,
                other.executed_backward_branches,
            ),
            taken_backward_branches: sum(
                self.taken_backward_branches,
                other.taken_backward_branches,
            ),
            executed_unconditional_branches: sum(
                self.executed_unconditional_branches,
                other.executed_unconditional_branches,
            ),
            all_function_calls: sum(self.all_function_calls, other.all_function_calls),
            indirect_calls: sum(self.indirect_calls, other.indirect_calls),
            plt_calls: sum(self.plt_calls, other.plt_calls),
            executed_instructions: sum(self.executed_instructions, other.executed_instructions),
            executed_loads: sum(self.executed_loads, other.executed_loads),
            executed_stores: sum(self.executed_stores, other.executed_stores),
            taken_jump_table_branches: sum(
                self.taken_jump_table_branches,
                other.taken_jump_table_branches,
            ),
            taken_unknown_indirect_branches: sum(
                self.taken_unknown_indirect_branches,
                other.taken_unknown_indirect_branches,
            ),
        };
    }
    /// All branches: conditional and unconditional.
    pub fn total_branches(&self) -> u64 {
        self.executed_forward_branches
            .saturating_add(self.executed_backward_branches)
            .saturating_add(self.executed_unconditional_branches)
    }
    /// Branches that were taken.
    pub fn taken_branches(&self) -> u64 {
        self.taken_conditional_branches()
            .saturating_add(self.executed_unconditional_branches)
    }
    /// Conditional branches that were taken.
    pub fn taken_conditional_branches(&self) -> u64 {
        self.taken_forward_branches
            .saturating_add(self.taken_backward_branches)
    }
    /// Conditional branches that were not taken.
    pub fn non_taken_conditional_branches(&self) -> u64 {
        self.all_conditional_branches()
            .saturating_sub(self.taken_conditional_branches())
    }
    /// Conditional branches.
    pub fn all_conditional_branches(&self) -> u64 {
        self.executed_forward_branches
            .saturating_add(self.executed_backward_branches)
    }
    /// Names and values, in llvm-bolt's order and words.
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("executed forward branches", self.executed_forward_branches),
            ("taken forward branches", self.taken_forward_branches),
            (
                "executed backward branches",
                self.executed_backward_branches,
            ),
            ("taken backward branches", self.taken_backward_branches),
            (
                "executed unconditional branches",
                self.executed_unconditional_branches,
            ),
            ("all function calls", self.all_function_calls),
            ("indirect calls", self.indirect_calls),
            ("PLT calls", self.plt_calls),
            ("executed instructions", self.executed_instructions),
            ("executed load instructions", self.executed_loads),
            ("executed store instructions", self.executed_stores),
            ("taken jump table branches", self.taken_jump_table_branches),
            (
                "taken unknown indirect branches",
                self.taken_unknown_indirect_branches,
            ),
            ("total branches", self.total_branches()),
            ("taken branches", self.taken_branches()),
            (
                "non-taken conditional branches",
                self.non_taken_conditional_branches(),
            ),
            (
                "taken conditional branches",
                self.taken_conditional_branches(),
            ),
            ("all conditional branches", self.all_conditional_branches()),
        ]
    }

    /// Adds a function under a layout: its blocks row by row, as hot ones and then cold ones, which are ahead
    /// of every hot one. Blocks in no row count nothing. `changes` are instructions that others replace.
    pub(crate) fn add<I: Isa>(
        &mut self,
        program: &Program<'_>,
        c: &Counted<'_>,
        layout: &[Vec<BlockId>],
        changes: &Changes,
    ) {
        let cfg = &c.analysed.cfg;
        let mut position = vec![u32::MAX; cfg.blocks.len()];
        for (k, b) in layout.iter().flatten().enumerate() {
            position[*b as usize] = k as u32;
        }
        let plus = |x: &mut u64, n: u64| *x = x.saturating_add(n);
        for fragment in layout {
            for (k, b) in fragment.iter().enumerate() {
                let n = c.counts.blocks[*b as usize];
                if n == 0 {
                    continue;
                }
                let block = &cfg.blocks[*b as usize];
                let next = fragment.get(k + 1);
                let succs = cfg.succs(*b);
                let edge = |way: u32| c.counts.succs[(block.succ + way) as usize];
                let ahead = |t: BlockId| position[t as usize] > position[*b as usize];
                let mut instructions = self.body::<I>(program, cfg, (*b, changes.of(*b)), n);
                let jump = |count: u64, this: &mut DynoStats| {
                    plus(&mut this.executed_unconditional_branches, count);
                    plus(&mut this.executed_instructions, count);
                };
                let conditional = |this: &mut DynoStats, forward: bool, taken: u64| {
                    let (e, t) = if forward {
                        (
                            &mut this.executed_forward_branches,
                            &mut this.taken_forward_branches,
                        )
                    } else {
                        (
                            &mut this.executed_backward_branches,
                            &mut this.taken_backward_branches,
                        )
                    };
                    plus(e, n);
                    plus(t, taken);
                };
                match block.term {
                    Term::Fall | Term::Jump => {
                        if succs.first().is_some_and(|s| Some(s) != next) {
                            jump(if block.nonlocal_exits { edge(0) } else { n }, self);
                        }
                    }
                    Term::Cond { .. } | Term::ShortCond => {
                        instructions += 1;
                        // A block that is nowhere was a jump out of the function: then that is what the branch does.
                        let gone = |t: BlockId| position[t as usize] == u32::MAX;
                        let turned =
                            (Some(&succs[0]) == next || gone(succs[1])) && Some(&succs[1]) != next;
                        let (taken, on) = if turned { (1, 0) } else { (0, 1) };
                        conditional(self, ahead(succs[taken]), edge(taken as u32));
                        if Some(&succs[on]) != next {
                            jump(edge(on as u32), self);
                        }
                    }
                    Term::CondOut { .. } | Term::ShortCondOut { .. } => {
                        instructions += 1;
                        let out = c.counts.out.get(b).copied().unwrap_or(0);
                        conditional(self, true, out);
                        plus(&mut self.all_function_calls, out);
                        if succs.first().is_some_and(|s| Some(s) != next) {
                            jump(edge(0), self);
                        }
                    }
                    Term::JumpOut { .. } => {
                        instructions += 1;
                        plus(&mut self.executed_unconditional_branches, n);
                        plus(&mut self.all_function_calls, n);
                    }
                    Term::Dispatch { .. } => plus(&mut self.taken_jump_table_branches, n),
                    Term::IndirectOut | Term::FallBack => {
                        plus(&mut self.taken_unknown_indirect_branches, n)
                    }
                    Term::Return | Term::Stop => {}
                }
                plus(
                    &mut self.executed_instructions,
                    n.saturating_mul(instructions),
                );
            }
        }
    }

    /// Calls in a block's body; returns its instructions without the terminator that is re-encoded.
    fn body<I: Isa>(
        &mut self,
        program: &Program<'_>,
        cfg: &crate::cfg::Cfg,
        (b, changes): (BlockId, &[Change]),
        n: u64,
    ) -> u64 {
        let block = &cfg.blocks[b as usize];
        let mut instructions = 0;
        let (mut calls, mut indirect, mut plt) = (0u64, 0u64, 0u64);
        let (mut loads, mut stores) = (0u64, 0u64);
        if let Some(bytes) = program
            .elf
            .bytes_at(block.start, block.term_at - block.start)
        {
            I::sweep(bytes, block.start, |i| {
                instructions += u64::from(!i.traits.nop);
                let memory = I::memory(
                    bytes.get((i.addr - block.start) as usize..).unwrap_or(&[]),
                    i,
                );
                let changed = changes.iter().any(|change| change.at == i.addr);
                loads += u64::from(memory.loads && !(changed && i.flow == Flow::Next));
                stores += u64::from(memory.stores);
                match i.flow {
                    Flow::Call { target } => {
                        calls += 1;
                        if program.imports.contains_key(&target) {
                            // Through the slot or through the stub.
                            indirect += u64::from(changed);
                            loads += u64::from(changed);
                            plt += u64::from(!changed);
                        }
                    }
                    Flow::IndirectCall => {
                        calls += 1;
                        indirect += 1;
                    }
                    _ => {}
                }
                true
            });
        }
        let plus = |sum: &mut u64, each: u64| *sum = sum.saturating_add(n.saturating_mul(each));
        // A stub loads its target.
        plus(&mut self.executed_loads, loads + plt);
        plus(&mut self.executed_stores, stores);
        // A call to a stub executes the stub's jump as well.
        self.all_function_calls = self
            .all_function_calls
            .saturating_add(n.saturating_mul(calls + plt));
        self.indirect_calls = self
            .indirect_calls
            .saturating_add(n.saturating_mul(indirect + plt));
        self.plt_calls = self.plt_calls.saturating_add(n.saturating_mul(plt));
        instructions + plt
    }
}
