//! Made-up samples: a random walk through the code of a program.
//!
//! Tests and measurements need branch stacks and call chains of programs that are built on the spot, on
//! machines that cannot record any. Nothing needs to run for that: from the instructions alone it is known
//! where control may go. The walk calls and returns as a processor would, takes conditional branches at
//! random, goes to any function through pointers, and treats calls into other files as a branch out and one
//! back in. What it records of its path is consistent, which is all that tools can see of samples.
//!
//! The same number to start from gives the same walk.

#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use std::collections::VecDeque;
use std::io::{self, Write};

use postlink_isa::Flow;
use rustc_hash::FxHashMap;

use crate::program::Program;
use crate::stack::Branch;

/// Branches in a stack.
const STACK: usize = 32;
/// Calls inside of each other.
const DEEPEST: usize = 40;
/// An address outside of any program.
const ELSEWHERE: u64 = 0x7fff_0000_1000;

/// A walk through a program.
pub struct Walk<'p, 'd> {
    program: &'p Program<'d>,
    random: u64,
    at: u64,
    /// Where the calls return to, outermost first.
    returns: Vec<u64>,
    branches: VecDeque<Branch>,
    entries: Vec<u64>,
    decoded: FxHashMap<u64, Option<(Flow, u64)>>,
}

impl<'p, 'd> Walk<'p, 'd> {
    /// Starts at a function chosen by `seed`. `None` if the program has no functions.
    pub fn new(program: &'p Program<'d>, seed: u64) -> Option<Walk<'p, 'd>> {
        let starts = program.ranges().iter().map(|range| range.start);
        let entries: Vec<u64> = starts.filter(|&start| program.is_code(start)).collect();
        let mut walk = Walk {
            program,
            random: seed ^ 0x9e37_79b9_7f4a_7c15,
            at: *entries.first()?,
            returns: Vec::new(),
            branches: VecDeque::new(),
            entries,
            decoded: FxHashMap::default(),
        };
        walk.restart();
        Some(walk)
    }

    fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }

    fn any_entry(&mut self) -> u64 {
        let number = self.below(self.entries.len());
        self.entries[number]
    }

    fn restart(&mut self) {
        self.returns.clear();
        self.branches.clear();
        self.at = self.any_entry();
    }

    fn branch(&mut self, to: u64) {
        self.jump(self.at, to);
        self.at = to;
    }

    fn jump(&mut self, from: u64, to: u64) {
        self.branches.push_front(Branch { from, to });
        self.branches.truncate(STACK);
    }

    fn call(&mut self, to: u64, next: u64) {
        if !self.program.is_code(to) || self.returns.len() >= DEEPEST {
            self.jump(self.at, ELSEWHERE);
            self.jump(ELSEWHERE + 0x10, next);
            self.at = next;
            return;
        }
        self.returns.push(next);
        self.branch(to);
    }

    /// One instruction further.
    fn step(&mut self) {
        let program = self.program;
        let found = *self
            .decoded
            .entry(self.at)
            .or_insert_with_key(|&at| Some((program.flow(at)?, at + program.len_at(at))));
        let Some((flow, next)) = found else {
            return self.restart();
        };
        match flow {
            Flow::Next => self.at = next,
            Flow::Stop | Flow::Trap => self.restart(),
            Flow::CondJump { target, .. } | Flow::ShortCond { target } => {
                if program.is_code(target) && self.below(2) == 0 {
                    self.branch(target)
                } else {
                    self.at = next
                }
            }
            Flow::Jump { target } if program.is_code(target) => self.branch(target),
            Flow::Jump { .. } => self.restart(),
            Flow::Call { target } => self.call(target, next),
            Flow::IndirectCall => {
                let target = self.any_entry();
                self.call(target, next);
            }
            Flow::IndirectJump => {
                let target = self.any_entry();
                self.branch(target);
            }
            Flow::Return => match self.returns.pop() {
                Some(caller) => self.branch(caller),
                None => self.restart(),
            },
        }
        if !program.is_code(self.at) {
            self.restart();
        }
    }

    /// Goes on for some instructions and until there is a full stack of branches.
    pub fn advance(&mut self, instructions: usize) {
        for number in 0.. {
            // A program without branches never fills a stack.
            let enough = self.branches.len() >= STACK || number > instructions + 1_000_000;
            if number >= instructions && enough {
                return;
            }
            self.step();
        }
    }

    /// Writes a sample as `perf script` would, with its call chain or without. `bias` is added to addresses.
    pub fn write(&self, chain: bool, bias: u64, out: &mut impl Write) -> io::Result<()> {
        if chain {
            writeln!(out, "\t{:16x}", self.at.wrapping_add(bias))?;
            for address in self.returns.iter().rev() {
                writeln!(out, "\t{:16x}", address.wrapping_add(bias))?;
            }
        } else {
            write!(out, "{:17x}", self.at.wrapping_add(bias))?;
        }
        for branch in &self.branches {
            let [from, to] = [branch.from, branch.to].map(|address| match address {
                ELSEWHERE.. => address,
                _ => address.wrapping_add(bias),
            });
            write!(out, " 0x{from:x}/0x{to:x}/P/-/-/0 ")?;
        }
        writeln!(out)?;
        if chain {
            writeln!(out)?;
        }
        Ok(())
    }

    /// The line with which `perf script` says where the program is mapped.
    pub fn write_mapping(&self, name: &str, bias: u64, out: &mut impl Write) -> io::Result<()> {
        for segment in &self.program.segments {
            writeln!(
                out,
                "PERF_RECORD_MMAP2 4242/4242: [{:#x}({:#x}) @ {:#x} 08:01 1234 1]: r-xp /usr/bin/{name}",
                segment.address.wrapping_add(bias),
                segment.len.next_multiple_of(0x1000),
                segment.offset
            )?;
        }
        Ok(())
    }
}
