//! Random control-flow graphs that look like those of compiled programs.
//!
//! For unit tests, integration tests and examples alike: the module above brings `Random`, `Block`
//! and `Jump`.

#![allow(dead_code, reason = "each test and example uses its own part")]

use super::{Block, Jump, Random};

/// A function under construction.
struct Builder<'a> {
    random: &'a mut Random,
    sizes: Vec<u32>,
    flow: Vec<f64>,
    edges: Vec<(u32, u32, f64)>,
}

impl Builder<'_> {
    fn block(&mut self, flow: f64) -> u32 {
        // Blocks are short, with a long tail.
        let size = 4.0 + 16.0 * -self.random.unit().max(1e-9).ln();
        self.sizes.push(size as u32);
        self.flow.push(flow);
        self.sizes.len() as u32 - 1
    }

    /// The probability of the likely side of a branch: most are strongly biased.
    fn bias(&mut self) -> f64 {
        match self.random.below(10) {
            0..=2 => 1.0,
            3..=5 => 0.99,
            6..=7 => 0.8 + 0.19 * self.random.unit(),
            _ => self.random.unit(),
        }
    }

    /// Appends a statement of about `budget` blocks that `from` enters; the block where control
    /// comes out.
    fn statement(&mut self, from: u32, budget: usize, end: u32) -> u32 {
        let flow = self.flow[from as usize];
        if budget == 0 {
            return from;
        }
        match self.random.below(12) {
            // Two statements.
            0..=3 if budget > 1 => {
                let first = self.random.below(budget);
                let middle = self.statement(from, first, end);
                self.statement(middle, budget - first, end)
            }
            // if (c) { a } or if (c) { a } else { b }
            0..=7 => {
                let mut share = self.bias();
                if self.random.below(2) == 0 {
                    share = 1.0 - share;
                }
                let both = budget > 3 && self.random.below(2) == 0;
                let inside = (budget - 1) / if both { 2 } else { 1 };
                let then = self.block(flow * share);
                self.edges.push((from, then, flow * share));
                let then_end = self.statement(then, inside, end);
                let other_end = if both {
                    let other = self.block(flow * (1.0 - share));
                    self.edges.push((from, other, flow * (1.0 - share)));
                    self.statement(other, inside, end)
                } else {
                    from
                };
                let join_flow = if both {
                    self.flow[then_end as usize] + self.flow[other_end as usize]
                } else {
                    self.flow[then_end as usize] + flow * (1.0 - share)
                };
                let join = self.block(join_flow);
                self.edges
                    .push((then_end, join, self.flow[then_end as usize]));
                let skipped = if both {
                    self.flow[other_end as usize]
                } else {
                    flow * (1.0 - share)
                };
                self.edges.push((other_end, join, skipped));
                join
            }
            // while (c) { a }
            8 | 9 => {
                let rounds = 1.0 + 30.0 * self.random.unit().powi(3);
                let head = self.block(flow * (rounds + 1.0));
                self.edges.push((from, head, flow));
                let body = self.block(flow * rounds);
                self.edges.push((head, body, flow * rounds));
                let latch = self.statement(body, budget - 1, end);
                // What left the loop in the body does not come back.
                let back = self.flow[latch as usize];
                self.edges.push((latch, head, back));
                let lost = flow * rounds - back;
                self.flow[head as usize] -= lost;
                let after = self.block((self.flow[head as usize] - flow * rounds).max(0.0));
                self.edges.push((head, after, self.flow[after as usize]));
                after
            }
            // switch
            10 if budget > 3 => {
                let cases = 2 + self.random.below(budget.min(12));
                let mut left = flow;
                let mut ends = Vec::new();
                for case in 0..cases {
                    let share = if case + 1 == cases {
                        left
                    } else {
                        left * self.random.unit()
                    };
                    left -= share;
                    let start = self.block(share);
                    self.edges.push((from, start, share));
                    ends.push(self.statement(start, (budget - 1) / (2 * cases), end));
                }
                let join = self.block(ends.iter().map(|&block| self.flow[block as usize]).sum());
                for block in ends {
                    self.edges.push((block, join, self.flow[block as usize]));
                }
                join
            }
            // if (c) return, rarely taken
            _ => {
                let share = [0.0, 0.0, 0.001, 0.01][self.random.below(4)];
                let leave = self.block(flow * share);
                self.edges.push((from, leave, flow * share));
                self.edges.push((leave, end, flow * share));
                let stay = self.block(flow * (1.0 - share));
                self.edges.push((from, stay, flow * (1.0 - share)));
                stay
            }
        }
    }
}

/// A function of roughly `size` blocks, in the order in which a simple compiler would lay it out.
pub fn function(random: &mut Random, size: usize) -> (Vec<Block>, Vec<Jump>) {
    let mut builder = Builder {
        random,
        sizes: Vec::new(),
        flow: Vec::new(),
        edges: Vec::new(),
    };
    let calls = 10f64.powf(1.0 + 4.0 * builder.random.unit());
    let entry = builder.block(calls);
    let end = builder.block(calls);
    let mut last = entry;
    while builder.sizes.len() < size {
        let rest = size - builder.sizes.len();
        last = builder.statement(last, rest.min(60), end);
    }
    builder.edges.push((last, end, builder.flow[last as usize]));
    // The exit was made first but is laid out last.
    let number = builder.sizes.len() as u32;
    let place = |block: u32| match block {
        0 => 0,
        1 => number - 1,
        _ => block - 1,
    };
    let mut blocks = vec![Block::default(); number as usize];
    for block in 0..number {
        let (size, flow) = (builder.sizes[block as usize], builder.flow[block as usize]);
        blocks[place(block) as usize] = Block {
            size,
            count: flow.max(0.0) as u64,
        };
    }
    let jumps = builder
        .edges
        .iter()
        .map(|&(from, to, flow)| Jump {
            from: place(from),
            to: place(to),
            count: flow.max(0.0) as u64,
        })
        .collect();
    (blocks, jumps)
}

/// The dispatch loop of an interpreter: one block with `handlers` successors that all come back to
/// it.
pub fn interpreter(random: &mut Random, handlers: u32) -> (Vec<Block>, Vec<Jump>) {
    let mut blocks = vec![Block { size: 20, count: 0 }, Block { size: 12, count: 0 }];
    let mut jumps = Vec::new();
    let mut total = 0;
    for handler in 0..handlers {
        let count = (1e6 * random.unit().powi(6)) as u64;
        let (block, slow) = (2 + 2 * handler, 3 + 2 * handler);
        blocks.push(Block {
            size: 10 + random.below(60) as u32,
            count,
        });
        blocks.push(Block {
            size: 30,
            count: count / 50,
        });
        jumps.push(Jump {
            from: 1,
            to: block,
            count,
        });
        jumps.push(Jump {
            from: block,
            to: slow,
            count: count / 50,
        });
        jumps.push(Jump {
            from: block,
            to: 1,
            count: count - count / 50,
        });
        jumps.push(Jump {
            from: slow,
            to: 1,
            count: count / 50,
        });
        total += count;
    }
    jumps.push(Jump {
        from: 0,
        to: 1,
        count: 1,
    });
    blocks[0].count = 1;
    blocks[1].count = total + 1;
    (blocks, jumps)
}

/// A graph without any structure: random jumps with random counts.
pub fn tangle(random: &mut Random, size: usize, degree: usize) -> (Vec<Block>, Vec<Jump>) {
    let mut blocks: Vec<Block> = (0..size)
        .map(|_| Block {
            size: 1 + random.below(80) as u32,
            count: 0,
        })
        .collect();
    let mut jumps = Vec::new();
    for (from, block) in blocks.iter_mut().enumerate() {
        for _ in 0..random.below(2 * degree + 1) {
            let to = random.below(size);
            let count = (1000.0 * random.unit().powi(4)) as u64;
            block.count += count;
            jumps.push(Jump {
                from: from as u32,
                to: to as u32,
                count,
            });
        }
    }
    (blocks, jumps)
}
