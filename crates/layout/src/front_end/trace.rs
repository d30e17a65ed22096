//! What was executed in which order, and what a layout makes of it.

use rustc_hash::FxHashMap;

use super::Random;
use super::caches::{InstructionCache, TranslationBuffer};
use super::walk::SEED;

/// Bytes of a line of the cache.
const LINE: u64 = 64;
/// Lines of a page.
const PAGE_LINES: u32 = 64;
/// Lines that a call out of the program touches.
const OUTSIDE_LINES: u32 = 1;
/// One part in so many of a stretch of a walk is not counted.
const WARM: usize = 8;
/// Rounds in which weights of stretches are found.
const ROUNDS: usize = 100;
/// Marks a step out of the graph; the rest says which.
pub(super) const OUTSIDE: u32 = 1 << 31;

/// Where a block is: its first address, and its length in bytes, 0 if it is nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u32,
}

/// What a layout is expected to cost in the run that the counts are of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Misses of the instruction cache.
    pub misses: f64,
    /// The same by stretch of the trace: how sure the sum is.
    pub by_stretch: Vec<f64>,
    /// Lines with code that ran: each misses once at least.
    pub lines: u64,
    /// Misses of the translation buffer.
    pub translation_misses: f64,
}

impl Estimate {
    /// One number to compare layouts by, in misses of the instruction cache.
    ///
    /// A miss of the translation buffer costs about as much as one of the cache that the second level answers, and
    /// what is modelled here has no second level after it: it decides between layouts that are otherwise alike.
    pub fn cost(&self) -> f64 {
        self.misses + self.lines as f64 + 0.25 * self.translation_misses
    }

    /// How far the difference of misses to another layout's may be chance, as a standard error: stretches are few of
    /// many that the run has, and where all of the difference is in one or two of them, others would show another.
    /// Both must be of the same trace.
    pub fn error_of_difference(&self, other: &Estimate) -> f64 {
        let pairs = self.by_stretch.iter().zip(&other.by_stretch);
        let differences: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
        let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
        let squares = differences.iter().map(|d| (d - mean) * (d - mean));
        squares.sum::<f64>().sqrt()
    }
}

/// A part of a block between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Segment {
    pub(super) block: u32,
    /// Offset of its first byte.
    pub(super) from: u32,
    /// One past its last; `u32::MAX` for the block's end.
    pub(super) to: u32,
}

/// Where a trace comes from.
pub(super) enum Kind {
    /// A walk by chance: where code out of the graph is, is not known.
    Walked,
    /// A run.
    Recorded {
        /// By the number in a step out of the graph: the line.
        lines: Vec<u32>,
        /// By stretch: how often the run had what is in it.
        weights: Vec<f64>,
    },
}

/// Stretches of a run: real ones, or such as counts let expect.
pub struct Trace {
    pub(super) segments: Vec<Segment>,
    /// Numbers of segments, or [`OUTSIDE`].
    pub(super) steps: Vec<u32>,
    /// Where each stretch ends in `steps`.
    pub(super) ends: Vec<usize>,
    pub(super) kind: Kind,
    /// How many steps of the run one of the trace represents.
    pub(super) scale: f64,
    /// Blocks that ran.
    pub(super) ran: Vec<u32>,
}

/// Makes a trace of what was recorded of a run.
#[derive(Default)]
pub struct Recorder {
    segments: Vec<Segment>,
    numbers: FxHashMap<Segment, u32>,
    lines: Vec<u32>,
    of_line: FxHashMap<u32, u32>,
    steps: Vec<u32>,
    ends: Vec<usize>,
    blocks: u64,
}

impl Recorder {
    /// A block was executed, from one offset of it to another; `u32::MAX` is its end. Blocks are numbered as places
    /// are in [`Trace::judge`].
    pub fn block(&mut self, block: u32, from: u32, to: u32) {
        let segment = Segment { block, from, to };
        let next = self.segments.len() as u32;
        let number = *self.numbers.entry(segment).or_insert(next);
        if number == next {
            self.segments.push(segment);
        }
        self.blocks += u64::from(from == 0);
        self.steps.push(number & !OUTSIDE);
    }

    /// Code of the program was executed that no layout moves, at this address.
    pub fn fixed(&mut self, address: u64) {
        self.line((address / LINE) as u32 & !OUTSIDE);
    }

    /// Code outside of the program was executed, in this line. Of its number only the lower bits are kept, which say
    /// the set of the cache.
    pub fn elsewhere(&mut self, line: u64) {
        self.line(line as u32 | OUTSIDE);
    }

    fn line(&mut self, line: u32) {
        let next = self.lines.len() as u32;
        let number = *self.of_line.entry(line).or_insert(next);
        if number == next {
            self.lines.push(line);
        }
        self.steps.push(number | OUTSIDE);
    }

    /// What comes next is another stretch of the run.
    pub fn end(&mut self) {
        self.ends.push(self.steps.len());
    }

    /// The trace. `counts` are how often the blocks ran in the run that layouts are wanted for. `None` if no block
    /// was recorded.
    pub fn finish(mut self, counts: impl Iterator<Item = u64>) -> Option<Trace> {
        if self.blocks == 0 {
            return None;
        }
        if self.ends.last() != Some(&self.steps.len()) {
            self.end();
        }
        let counts: Vec<u64> = counts.collect();
        let ran = (0u32..).zip(&counts).filter(|(_, count)| **count > 0);
        Some(Trace {
            ran: ran.map(|(block, _)| block).collect(),
            kind: Kind::Recorded {
                weights: self.weights(&counts),
                lines: self.lines,
            },
            segments: self.segments,
            steps: self.steps,
            ends: self.ends,
            scale: 1.0,
        })
    }

    /// How often the run had what is in each stretch.
    ///
    /// Stretches are few, and some things that a program does once, as starting up, are in one of them. But how often
    /// each block ran is known: weights are sought with which the stretches together have these counts, as well
    /// as they can. It is the likeliest mixture of the stretches if counts are Poisson distributed, by Richardson's and
    /// Lucy's iteration (1972, 1974). Blocks that are in no stretch say nothing.
    fn weights(&self, counts: &[u64]) -> Vec<f64> {
        let mut from = 0;
        // By stretch: blocks that began in it, and how often.
        let began: Vec<Vec<(u32, f64)>> = self
            .ends
            .iter()
            .map(|end| {
                let steps = &self.steps[from..*end];
                from = *end;
                let known = steps.iter().filter(|step| **step & OUTSIDE == 0);
                let segments = known.map(|step| self.segments[*step as usize]);
                let mut began: FxHashMap<u32, f64> = FxHashMap::default();
                for segment in segments.filter(|segment| segment.from == 0) {
                    *began.entry(segment.block).or_default() += 1.0;
                }
                let mut began: Vec<(u32, f64)> = began.into_iter().collect();
                began.sort_unstable_by_key(|entry| entry.0);
                began
            })
            .collect();
        let count = |block: u32| counts.get(block as usize).copied().unwrap_or(0) as f64;
        let total: f64 = counts.iter().map(|count| *count as f64).sum();
        let mut weights = vec![total / self.blocks as f64; began.len()];
        let mut expected = vec![0.0; counts.len()];
        for _ in 0..ROUNDS {
            expected.fill(0.0);
            for (blocks, weight) in began.iter().zip(&weights) {
                for (block, n) in blocks {
                    if let Some(sum) = expected.get_mut(*block as usize) {
                        *sum += n * weight;
                    }
                }
            }
            for (blocks, weight) in began.iter().zip(&mut weights) {
                let all: f64 = blocks.iter().map(|(_, n)| n).sum();
                let ratio = |block: u32| match expected.get(block as usize) {
                    Some(sum) if *sum > 0.0 => count(block) / sum,
                    _ => 0.0,
                };
                let better: f64 = blocks.iter().map(|(block, n)| n * ratio(*block)).sum();
                if all > 0.0 {
                    *weight *= better / all;
                }
            }
        }
        weights
    }
}

impl Trace {
    /// What a layout costs. `places` has the place of each block, numbered as in the graph.
    pub fn judge(&self, places: &[Place]) -> Estimate {
        let lines = |place: Place, from: u32, to: u32| {
            let end = place.start + u64::from(to.min(place.len));
            let start = place.start + u64::from(from.min(place.len));
            // The first line, and one past the last.
            let last = if end > start {
                (end - 1) / LINE + 1
            } else {
                start / LINE
            };
            ((start / LINE) as u32, last as u32)
        };
        let of_segment: Vec<(u32, u32)> = self
            .segments
            .iter()
            .map(|s| lines(places[s.block as usize], s.from, s.to))
            .collect();
        let mut cache = InstructionCache::new();
        let mut pages = TranslationBuffer::new();
        let mut by_stretch = vec![0.0; self.ends.len()];
        let (mut translation_misses, mut page) = (0.0, u32::MAX);
        let (mut counted, mut from) = (0, 0);
        for (number, end) in (0u64..).zip(&self.ends) {
            let shift = Random(SEED ^ number).next();
            let stretch = &self.steps[from..*end];
            from = *end;
            let (first, counts) = match &self.kind {
                // The first steps of a stretch find in the cache what the one before left there.
                Kind::Walked => stretch.split_at(stretch.len() / WARM),
                // What is longer than a window in the run is as if the window came again.
                Kind::Recorded { .. } => (stretch, stretch),
            };
            counted += counts.len();
            let weight = match &self.kind {
                Kind::Walked => 1.0,
                Kind::Recorded { weights, .. } => weights[number as usize],
            };
            for (part, weight) in [(first, 0.0), (counts, weight)] {
                let before = (cache.misses, pages.misses);
                for step in part {
                    if step & OUTSIDE != 0 {
                        self.touch_outside(*step, shift, &mut cache);
                        continue;
                    }
                    let (first, end) = of_segment[*step as usize];
                    for line in first..end {
                        cache.touch(line);
                        if line / PAGE_LINES != page {
                            page = line / PAGE_LINES;
                            pages.touch(page);
                        }
                    }
                }
                by_stretch[number as usize] += weight * (cache.misses - before.0) as f64;
                translation_misses += weight * (pages.misses - before.1) as f64;
            }
        }
        let scale = self.scale * self.steps.len() as f64 / counted.max(1) as f64;
        by_stretch.iter_mut().for_each(|misses| *misses *= scale);
        Estimate {
            misses: by_stretch.iter().sum(),
            by_stretch,
            lines: self.lines(places),
            translation_misses: translation_misses * scale,
        }
    }

    /// Code out of the graph: the line that it was in, or one by chance, another in each stretch.
    fn touch_outside(&self, step: u32, shift: u64, cache: &mut InstructionCache) {
        match &self.kind {
            Kind::Recorded { lines, .. } => cache.touch(lines[(step & !OUTSIDE) as usize]),
            Kind::Walked => {
                let mut lines = Random(shift ^ u64::from(step));
                for _ in 0..OUTSIDE_LINES {
                    cache.touch(lines.next() as u32 | OUTSIDE);
                }
            }
        }
    }

    /// Lines with code that ran.
    fn lines(&self, places: &[Place]) -> u64 {
        let executed = self.ran.iter().map(|b| places[*b as usize]);
        let mut ranges: Vec<(u64, u64)> = executed
            .filter(|place| place.len > 0)
            .map(|p| (p.start / LINE, (p.start + u64::from(p.len) - 1) / LINE + 1))
            .collect();
        ranges.sort_unstable();
        let (mut lines, mut done) = (0, 0);
        for (first, end) in ranges {
            lines += end.saturating_sub(first.max(done));
            done = done.max(end);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(blocks: u64, distance: u64) -> Vec<Place> {
        let place = |b| Place {
            start: b * distance,
            len: 64,
        };
        (0..blocks).map(place).collect()
    }

    /// Each of the blocks ten times in turn, in one window.
    fn turns(blocks: u32) -> Recorder {
        let mut recorder = Recorder::default();
        for _ in 0..10 {
            (0..blocks).for_each(|b| recorder.block(b, 0, u32::MAX));
        }
        recorder.end();
        recorder
    }

    #[test]
    fn what_competes_in_a_window_misses_as_often_as_it_ran() {
        let trace = turns(9).finish([1000; 9].into_iter()).unwrap();
        let apart = trace.judge(&places(9, 4096));
        assert_eq!((apart.misses.round(), apart.lines), (9000.0, 9));
        let close = trace.judge(&places(9, 64));
        assert_eq!((close.misses, close.lines), (0.0, 9));
    }

    #[test]
    fn code_that_no_layout_moves_takes_room_where_it_is() {
        // Eight blocks of one set, and a line elsewhere or in the program, of that set and of another one.
        let with = |add: fn(&mut Recorder)| {
            let mut recorder = Recorder::default();
            for _ in 0..10 {
                (0..8).for_each(|b| recorder.block(b, 0, u32::MAX));
                add(&mut recorder);
            }
            let trace = recorder.finish([10; 8].into_iter()).unwrap();
            trace.judge(&places(8, 4096)).misses.round()
        };
        assert_eq!(with(|_| {}), 0.0);
        assert_eq!(with(|r| r.elsewhere(0x7fff_0000_0000 / 64)), 90.0);
        assert_eq!(with(|r| r.elsewhere(0x7fff_0000_0040 / 64)), 0.0);
        assert_eq!(with(|r| r.fixed(0x40_0000)), 90.0);
        assert_eq!(with(|r| r.fixed(0x40_0040)), 0.0);
    }

    #[test]
    fn a_difference_in_one_stretch_of_many_may_be_chance() {
        let of = |by_stretch: &[f64]| Estimate {
            misses: by_stretch.iter().sum(),
            by_stretch: by_stretch.to_vec(),
            ..Estimate::default()
        };
        let usual = of(&[10.0; 16]);
        // The same sum, from one stretch or from all.
        let mut one = [10.0; 16];
        one[3] += 160.0;
        let (one, all) = (of(&one), of(&[20.0; 16]));
        assert_eq!(all.error_of_difference(&usual), 0.0);
        assert!((one.error_of_difference(&usual) - 154.9).abs() < 0.1);
        assert_eq!(Estimate::default().error_of_difference(&usual), 0.0);
    }

    #[test]
    fn only_the_part_of_a_block_that_was_executed_is_touched() {
        let mut recorder = Recorder::default();
        recorder.block(0, 0, 60);
        recorder.block(0, 130, u32::MAX);
        let trace = recorder.finish([1].into_iter()).unwrap();
        let place = Place { start: 0, len: 192 };
        let lines: Vec<(u32, u32)> = trace.segments.iter().map(|s| (s.from, s.to)).collect();
        assert_eq!(lines, [(0, 60), (130, u32::MAX)]);
        assert_eq!(
            trace.judge(&[place]).lines,
            3,
            "all of a block that ran is fetched once"
        );
    }

    #[test]
    fn what_ran_once_weighs_less_than_what_ran_often_however_many_windows_show_it() {
        // Nine blocks that start up, in two windows; nine others of the work, in one; each set of blocks competes.
        let mut recorder = Recorder::default();
        for blocks in [0..9, 0..9, 9..18] {
            for _ in 0..10 {
                blocks.clone().for_each(|b| recorder.block(b, 0, u32::MAX));
            }
            recorder.end();
        }
        let counts = [[20; 9], [100_000; 9]].concat();
        let trace = recorder.finish(counts.into_iter()).unwrap();
        let estimate = |starting: u64, working: u64| {
            let mut all = places(9, starting);
            all.extend(places(9, working));
            trace.judge(&all).misses.round()
        };
        assert_eq!(estimate(4096, 64), 180.0);
        assert_eq!(estimate(64, 4096), 900_000.0);
    }

    #[test]
    fn a_trace_without_the_program_is_none() {
        let mut recorder = Recorder::default();
        recorder.elsewhere(7);
        recorder.fixed(64);
        recorder.end();
        assert!(recorder.finish([1].into_iter()).is_none());
        // Blocks that nothing counted do not matter.
        let trace = turns(2).finish([0, 0].into_iter()).unwrap();
        let estimate = trace.judge(&places(2, 64));
        assert_eq!((estimate.cost(), estimate.lines), (0.0, 0));
    }
}
