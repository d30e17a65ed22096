//! A walk through a program by its counts.

use super::Random;
use super::graph::{Callee, CodeGraph};
use super::trace::{Kind, OUTSIDE, Segment, Trace};

/// Most calls that wait for their return.
const MAX_DEPTH: usize = 1 << 12;
/// A seed: any will do, and it is always the same.
pub(super) const SEED: u64 = 0x706f_7374_6c69_6e6b;

/// How long a walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkSize {
    /// Stretches that begin anew.
    pub stretches: u32,
    /// Steps of each; a step is a block, or a part of one up to a call.
    pub steps: u32,
}

impl Default for WalkSize {
    fn default() -> Self {
        WalkSize {
            stretches: 128,
            steps: 8192,
        }
    }
}

/// A call whose callee was entered.
#[derive(Clone, Copy, Debug)]
struct Caller {
    block: u32,
    site: u32,
    count: u64,
}

/// What draws the next step.
struct Walker<'g> {
    graph: &'g CodeGraph,
    random: Random,
    /// By function: the calls of it.
    callers: Vec<Vec<Caller>>,
    /// Functions that were entered by no call of the graph, with sums of how often.
    from_outside: Vec<(u32, u64)>,
    /// Calls that wait: the block, and the site after which it continues.
    stack: Vec<(u32, u32)>,
}

impl<'g> Walker<'g> {
    fn new(graph: &'g CodeGraph) -> Self {
        let mut callers: Vec<Vec<Caller>> = vec![Vec::new(); graph.functions.len()];
        for block in 0..graph.blocks.len() as u32 {
            for site in graph.sites_of(block) {
                for (callee, count) in graph.callees_of(site) {
                    let Callee::Function(f) = callee else {
                        continue;
                    };
                    if let Some(list) = callers.get_mut(*f as usize) {
                        list.push(Caller {
                            block,
                            site,
                            count: *count,
                        });
                    }
                }
            }
        }
        let (mut from_outside, mut sum) = (Vec::new(), 0u64);
        for ((f, function), callers) in (0u32..).zip(&graph.functions).zip(&callers) {
            let inside = callers.iter().fold(0u64, |n, c| n.saturating_add(c.count));
            let own = function.entries.saturating_sub(inside);
            if own > 0 {
                sum = sum.saturating_add(own);
                from_outside.push((f, sum));
            }
        }
        Walker {
            graph,
            random: Random(SEED),
            callers,
            from_outside,
            stack: Vec::new(),
        }
    }

    /// Which of a list, by counts; `None` with what is left of `all`.
    fn draw<T>(&mut self, list: &[T], count: impl Fn(&T) -> u64, all: u64) -> Option<usize> {
        let mut at = self.random.below(all);
        for (i, item) in list.iter().enumerate() {
            let count = count(item);
            if at < count {
                return Some(i);
            }
            at -= count;
        }
        None
    }

    /// Where a function that was entered from outside of the graph begins.
    fn enter(&mut self) -> Option<(u32, u32)> {
        let all = self.from_outside.last()?.1;
        let at = self.random.below(all);
        let i = self.from_outside.partition_point(|(_, sum)| *sum <= at);
        let (function, _) = self.from_outside.get(i)?;
        self.begin(self.graph.functions[*function as usize].first)
    }

    fn begin(&self, block: u32) -> Option<(u32, u32)> {
        Some((block, self.graph.sites_of(block).start))
    }

    /// Where control goes when the function of a block returns.
    fn return_from(&mut self, mut block: u32) -> Option<(u32, u32)> {
        if let Some(waiting) = self.stack.pop() {
            return Some(waiting);
        }
        // A jump to a function returns where the one that jumped does. Jumps may go round: not for ever.
        for _ in 0..MAX_DEPTH {
            let function = self.graph.blocks[block as usize].function as usize;
            let list = std::mem::take(&mut self.callers[function]);
            let inside = list.iter().fold(0u64, |n, c| n.saturating_add(c.count));
            let all = inside.max(self.graph.functions[function].entries);
            let drawn = self.draw(&list, |c| c.count, all).map(|i| list[i]);
            self.callers[function] = list;
            let Some(caller) = drawn else {
                break;
            };
            if !self.graph.sites[caller.site as usize].tail {
                return Some((caller.block, caller.site + 1));
            }
            block = caller.block;
        }
        self.enter()
    }

    /// Does what comes after the part of a block in front of a site or the block's end. `out` gets calls out of the
    /// program.
    fn next(&mut self, block: u32, site: u32, out: &mut Vec<u32>) -> Option<(u32, u32)> {
        let graph = self.graph;
        if site < graph.sites_of(block).end {
            let calls = graph.sites[site as usize];
            let runs = graph.blocks[block as usize].count.max(calls.total);
            let Some(called) = self.draw(graph.callees_of(site), |c| c.1, runs) else {
                return Some((block, site + 1));
            };
            let (first, outside) = match graph.callees_of(site)[called].0 {
                Callee::Function(f) => (graph.functions.get(f as usize).map(|f| f.first), 0),
                Callee::Outside(code) => (None, code),
            };
            match (first, calls.tail) {
                (None, tail) => {
                    out.push(OUTSIDE | outside);
                    return if tail {
                        self.return_from(block)
                    } else {
                        Some((block, site + 1))
                    };
                }
                (Some(_), true) => {}
                (Some(_), false) => {
                    if self.stack.len() >= MAX_DEPTH {
                        self.stack.clear();
                    }
                    self.stack.push((block, site + 1));
                }
            }
            return first.and_then(|first| self.begin(first));
        }
        let ways = graph.ways_of(block);
        let all = ways.iter().fold(0u64, |n, way| n.saturating_add(way.count));
        match self.draw(ways, |way| way.count, all) {
            Some(way) => self.begin(ways[way].to),
            None => self.return_from(block),
        }
    }
}

impl Trace {
    /// Walks through a program.
    pub fn walk(graph: &CodeGraph, size: WalkSize) -> Trace {
        let ran = |b: &u32| graph.blocks[*b as usize].count > 0;
        let ran: Vec<u32> = (0..graph.blocks.len() as u32).filter(ran).collect();
        let mut sums: Vec<u64> = Vec::with_capacity(ran.len());
        for b in &ran {
            let sum = sums.last().copied().unwrap_or(0);
            sums.push(sum.saturating_add(graph.blocks[*b as usize].count));
        }
        let all = sums.last().copied().unwrap_or(0);
        let mut numbers: Vec<u32> = vec![u32::MAX; graph.blocks.len() + graph.sites.len()];
        let mut trace = Trace {
            segments: Vec::new(),
            steps: Vec::with_capacity(size.stretches as usize * size.steps as usize),
            ends: Vec::with_capacity(size.stretches as usize),
            kind: Kind::Walked,
            scale: 0.0,
            ran,
        };
        if all == 0 {
            return trace;
        }
        let mut walker = Walker::new(graph);
        let mut blocks = 0u64;
        for stretch in 0..size.stretches {
            // Evenly through all runs of blocks, so that what takes a share of the run has that share of the stretches.
            let share = u128::from(stretch) << 32 | u128::from(walker.random.next() >> 32);
            let at = ((share * u128::from(all)) / (u128::from(size.stretches) << 32)) as u64;
            let start = trace.ran[sums
                .partition_point(|sum| *sum <= at)
                .min(trace.ran.len() - 1)];
            walker.stack.clear();
            let mut next = walker.begin(start);
            let end = (stretch as usize + 1) * size.steps.max(1) as usize;
            while trace.steps.len() < end {
                let Some((block, site)) = next.or_else(|| walker.begin(start)) else {
                    break;
                };
                let sites = graph.sites_of(block);
                blocks += u64::from(site == sites.start);
                let number = &mut numbers[block as usize + site as usize];
                if *number == u32::MAX {
                    *number = trace.segments.len() as u32;
                    let offset = |site: u32| graph.sites[site as usize].offset;
                    trace.segments.push(Segment {
                        block,
                        from: if site == sites.start {
                            0
                        } else {
                            offset(site - 1)
                        },
                        to: if site < sites.end {
                            offset(site)
                        } else {
                            u32::MAX
                        },
                    });
                }
                trace.steps.push(*number);
                next = walker.next(block, site, &mut trace.steps);
            }
            trace.steps.truncate(end);
            trace.ends.push(trace.steps.len());
        }
        trace.scale = all as f64 / blocks.max(1) as f64;
        trace
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Estimate, Place, Site, Way};
    use super::*;

    const SMALL: WalkSize = WalkSize {
        stretches: 4,
        steps: 1000,
    };

    /// A loop of blocks that ran 1,000 times each.
    fn ring(blocks: u32) -> CodeGraph {
        let counts = vec![1000; blocks as usize];
        let ways: Vec<[Way; 1]> = (0..blocks)
            .map(|b| {
                [Way {
                    to: (b + 1) % blocks,
                    count: 1000,
                }]
            })
            .collect();
        let mut graph = CodeGraph::default();
        graph.push(1, &counts, |b| &ways[b as usize], &[]);
        graph
    }

    fn places(blocks: u64, distance: u64) -> Vec<Place> {
        let place = |b| Place {
            start: b * distance,
            len: 64,
        };
        (0..blocks).map(place).collect()
    }

    #[test]
    fn nine_lines_of_a_set_that_take_turns_miss_each_time() {
        let nine = Trace::walk(&ring(9), SMALL);
        let apart = nine.judge(&places(9, 4096));
        assert_eq!(apart.misses, 9000.0, "each of the 9,000 blocks that ran");
        assert_eq!(apart.lines, 9);
        let close = nine.judge(&places(9, 64));
        assert_eq!((close.misses, close.lines), (0.0, 9));
        let eight = Trace::walk(&ring(8), SMALL).judge(&places(8, 4096));
        assert_eq!((eight.misses, eight.lines), (0.0, 8));
    }

    #[test]
    fn a_block_is_in_all_lines_that_it_begins_or_ends_in() {
        let one = Trace::walk(&ring(1), SMALL);
        let lines = |start, len| one.judge(&[Place { start, len }]).lines;
        assert_eq!(lines(0, 64), 1);
        assert_eq!(lines(63, 2), 2);
        assert_eq!(lines(60, 64 * 3), 4);
        assert_eq!(lines(64, 0), 0);
    }

    #[test]
    fn pages_of_one_set_that_take_turns_miss_the_translation_buffer() {
        // Five pages that are 16 apart, in sets of four.
        let five = Trace::walk(&ring(5), SMALL);
        let estimate = five.judge(&places(5, 16 * 4096 + 64));
        assert_eq!(
            (estimate.misses, estimate.translation_misses),
            (0.0, 5000.0)
        );
    }

    /// Function 0 calls function 2 nine times, function 1 once. Each is one block; calls are at offset 8.
    fn two_callers() -> CodeGraph {
        let call = |count| Site {
            block: 0,
            offset: 8,
            tail: false,
            callees: vec![(Callee::Function(2), count)],
        };
        let mut graph = CodeGraph::default();
        graph.push(9, &[9], |_| &[], &[call(9)]);
        graph.push(1, &[1], |_| &[], &[call(1)]);
        graph.push(10, &[10], |_| &[], &[]);
        graph
    }

    /// The walk as blocks and offsets.
    fn steps(trace: &Trace) -> Vec<(u32, u32)> {
        let segment = |step: &u32| trace.segments[*step as usize];
        let known = trace.steps.iter().filter(|step| **step & OUTSIDE == 0);
        known.map(segment).map(|s| (s.block, s.from)).collect()
    }

    #[test]
    fn a_call_goes_to_the_callee_and_comes_back_behind_the_call() {
        let steps = steps(&Trace::walk(&two_callers(), SMALL));
        for stretch in steps.chunks(SMALL.steps as usize) {
            // It may begin inside of function 2, whose caller is drawn then.
            for calls in stretch.windows(3).filter(|w| w[0].0 < 2 && w[0].1 == 0) {
                assert_eq!(calls[1..], [(2, 0), (calls[0].0, 8)]);
            }
            let returns = stretch.windows(2).filter(|w| w[0] == (2, 0));
            returns.for_each(|w| assert_eq!(w[1].1, 8));
        }
        let of = |block| steps.iter().filter(|s| **s == (block, 0)).count() as f64;
        assert!(
            (7.0..11.5).contains(&(of(0) / of(1))),
            "{} {}",
            of(0),
            of(1)
        );
    }

    #[test]
    fn ways_are_taken_as_often_as_they_were() {
        let ways = [
            vec![Way { to: 1, count: 75 }, Way { to: 2, count: 25 }],
            vec![Way { to: 0, count: 75 }],
            vec![Way { to: 0, count: 25 }],
        ];
        let mut graph = CodeGraph::default();
        graph.push(1, &[100, 75, 25], |b| &ways[b as usize], &[]);
        let steps = steps(&Trace::walk(&graph, SMALL));
        let share = |b| steps.iter().filter(|s| s.0 == b).count() as f64 / steps.len() as f64;
        assert!((share(1) - 0.375).abs() < 0.03, "{}", share(1));
        assert!((share(2) - 0.125).abs() < 0.03, "{}", share(2));
    }

    #[test]
    fn a_jump_to_another_function_does_not_come_back() {
        let tail = Site {
            block: 0,
            offset: 8,
            tail: true,
            callees: vec![(Callee::Function(1), 10)],
        };
        let mut graph = CodeGraph::default();
        graph.push(10, &[10], |_| &[], &[tail]);
        graph.push(10, &[10], |_| &[], &[]);
        let steps = steps(&Trace::walk(&graph, SMALL));
        assert!(
            steps.iter().all(|step| step.1 == 0),
            "nothing behind the jump"
        );
    }

    #[test]
    fn calls_out_of_the_program_take_room_in_the_cache() {
        let outside = Site {
            block: 0,
            offset: 8,
            tail: false,
            callees: vec![(Callee::Outside(0), 1000)],
        };
        let around = [Way { to: 0, count: 1000 }];
        let mut graph = CodeGraph::default();
        graph.push(1, &[1000], |_| &around, &[outside]);
        let trace = Trace::walk(&graph, SMALL);
        let calls = trace.steps.iter().filter(|step| **step & OUTSIDE != 0);
        let share = calls.count() as f64 / trace.steps.len() as f64;
        assert!((share - 1.0 / 3.0).abs() < 0.01, "{share}");
        let estimate = trace.judge(&[Place { start: 0, len: 64 }]);
        assert_eq!((estimate.misses, estimate.lines), (0.0, 1));
    }

    #[test]
    fn nothing_that_ran_costs_nothing() {
        let mut graph = CodeGraph::default();
        graph.push(0, &[0, 0], |_| &[], &[]);
        let trace = Trace::walk(&graph, SMALL);
        let place = Place { start: 0, len: 64 };
        assert_eq!(trace.judge(&[place, place]), Estimate::default());
        assert_eq!(
            Trace::walk(&CodeGraph::default(), SMALL).judge(&[]),
            Estimate::default()
        );
    }

    #[test]
    fn counts_of_any_size_and_calls_of_nothing_do_not_matter() {
        let all = u64::MAX;
        let site = |callee| Site {
            block: 0,
            offset: u32::MAX,
            tail: true,
            callees: vec![(callee, all), (Callee::Outside(0), all)],
        };
        let ways = [Way { to: 0, count: all }, Way { to: 9, count: all }];
        let mut graph = CodeGraph::default();
        let sites = [site(Callee::Function(0)), site(Callee::Function(7))];
        graph.push(all, &[all, all], |_| &ways, &sites);
        let trace = Trace::walk(&graph, SMALL);
        let estimate = trace.judge(&[Place { start: 0, len: 9 }; 2]);
        assert_eq!(estimate.lines, 1);
    }

    #[test]
    fn the_same_walk_is_made_each_time() {
        let first = Trace::walk(&two_callers(), SMALL);
        let second = Trace::walk(&two_callers(), SMALL);
        assert_eq!(first.steps, second.steps);
    }
}
