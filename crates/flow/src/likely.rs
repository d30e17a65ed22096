//! The likeliest counts of a control-flow graph, by what branches mostly do and by samples that are biased.
//!
//! # The problem
//!
//! A clock's samples are proportional to time. An instruction that the processor waits for, or the one after it,
//! collects ten times what its neighbours do; a block of three instructions that retire together with those before
//! it collects none. Such errors do not become smaller with more samples, and no sum of differences tells them from
//! what the program does: a block with ten times the samples of the blocks before and after it is a stall, not a
//! loop.
//!
//! # The idea
//!
//! A function's counts follow from the shares of each block's ways out, and from how often it is entered. So the
//! unknowns are the shares, and conservation of flow holds by itself. Sought are those with the largest posterior
//! probability (Bayes):
//!
//! * The logarithm of a way's share is normally distributed around what is expected of it ([`Way::share`]): a static
//!   prediction of branches (Ball and Larus, "Branch Prediction for Free", 1993; Wu and Larus, "Static Branch Frequency
//!   and Program Profile Analysis", 1994).
//! * Of an instruction of a block that runs `c` times, `s c g` samples are expected, where `s` is the same for all of
//!   the function and `g` is how long this instruction takes. Nothing is known of `g` but how it is distributed: as the
//!   quotient of two variables with gamma distributions, of shapes `r` and `q` ([`Observed::short`],
//!   [`Observed::long`]). How many samples there are then is Poisson's.
//!
//! With `n` samples where `e = s c` are expected of an average instruction, the derivative of the logarithm of the
//! likelihood by the logarithm of `e` is taken for `(n - e) / (1 + e / r + n / q)`. That is exact where `q` is infinite
//! (the negative binomial distribution), where numbers are large (the beta prime distribution, of such a scale that it
//! is 0 where `n = e`), and where both shapes are infinite (Poisson's).
//!
//! So an instruction says at most `q` for its block having run more often, however long it waits, and at most `r` for
//! less often: a block with a thousand samples at one instruction and none at nine is not a hot one. What many
//! instructions say together counts more than what one says alone; and a branch without samples on either side does
//! what branches like it do.
//!
//! A function's samples also say how often its callers run the blocks that call it ([`Called`]). Of a function that is
//! entered `t` times by its own samples, and that others call `o` times, `w` instructions would have `t` samples each
//! where `e + o` are expected, `e` being how often this block runs; they have two shapes as well. The derivative by the
//! logarithm of `e` is that of one instruction, times `w e / (e + o)`. So a block that calls a function without samples
//! hardly runs, whatever is at its neighbours; one that alone calls a hot function is hot; and one of many callers is
//! asked for its part of what the others do not explain. As functions differ in how long their instructions take, `s`
//! is a product then: of how often the function is entered, in the unit of all of the program, and of its pace, whose
//! logarithm is normally distributed around 0 ([`PACE`]).
//!
//! From shares to counts leads a system of linear equations, one for each block, which is eliminated in the order of
//! least fill ([`Elimination`]; Markowitz, "The elimination form of the inverse and its application to linear
//! programming", 1957): without pivoting, as it is diagonally dominant. The transposed system gives the derivatives by
//! all shares at once. The maximum is climbed by signs of derivatives, each unknown with a step of its own (Riedmiller
//! and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm", 1993).
//!
//! # Invariants
//!
//! * Same input, same output, on every machine: addition, multiplication, division and roots, in a fixed order, and
//!   logarithms and exponentials made of these.
//! * Flow is conserved up to rounding: who needs whole numbers that conserve it gives them to [`crate::infer`].

use std::collections::{BTreeMap, BTreeSet};

use crate::logarithm::{exp, ln};

/// The end of a way that enters or leaves the function.
pub const OUTSIDE: u32 = u32::MAX;

/// What samples say of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Samples of each of its instructions.
    pub samples: Vec<f64>,
    /// How much an instruction can say at most for the block having run less often: the shape of the distribution of
    /// short times.
    pub short: f64,
    /// The same for more often: the shape of the distribution of long times.
    pub long: f64,
}

impl Observed {
    /// The derivative of the logarithm of the likelihood by that of the number of samples that are expected of each
    /// instruction.
    fn pull(&self, expected: f64) -> f64 {
        let pull = |n: &f64| (n - expected) / (1.0 + expected / self.short + n / self.long);
        self.samples.iter().map(pull).sum()
    }

    fn sum(&self) -> f64 {
        self.samples.iter().sum()
    }
}

/// What is known of a function that a block calls, by the function's own samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Called {
    /// The block that calls it.
    pub block: u32,
    /// How often it is entered, in the unit of [`Counts`].
    pub entered: f64,
    /// How often other blocks call it, in the same unit.
    pub others: f64,
    /// As how many instructions it counts.
    pub weight: f64,
    /// How much one of these can say at most for the block having run less often.
    pub short: f64,
    /// The same for more often.
    pub long: f64,
}

impl Called {
    /// The derivative of the logarithm of the likelihood by that of how often the block runs.
    fn pull(&self, own: f64) -> f64 {
        let all = (own + self.others).max(f64::MIN_POSITIVE);
        let pull = (self.entered - all) / (1.0 + all / self.short + self.entered / self.long);
        self.weight * pull * own / all
    }
}

/// A way from block to block, or in or out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The block that it leaves, or [`OUTSIDE`].
    pub from: u32,
    /// The block that it enters, or [`OUTSIDE`].
    pub to: u32,
    /// Which share of the times that `from` runs it is expected to be taken, in any unit: those of a block are scaled
    /// to 1. Of ways from outside: how often the function is entered there, likewise.
    pub share: f64,
    /// The standard deviation of the logarithm of that.
    pub doubt: f64,
}

/// Likely counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// By block.
    pub blocks: Vec<f64>,
    /// By way.
    pub ways: Vec<f64>,
}

/// Steps at most.
const STEPS: usize = 120;
/// The standard deviation of the logarithm of how long a function's instructions take beside those of the program.
const PACE: f64 = 0.3;
/// Share of each block's flow that vanishes: no loop runs for ever.
const LEAK: f64 = 1e-6;
/// Work that eliminating one graph may take; larger graphs are left alone.
const MOST_WORK: usize = 8_000_000;

/// The order in which the blocks of one graph are eliminated, and what that takes, for any shares.
#[derive(Debug, Default)]
struct Elimination {
    /// Nodes in the order of elimination.
    order: Vec<u32>,
    /// By place in the order: where its part of `right` and `left` begins.
    first: Vec<(u32, u32)>,
    /// Columns of each pivot's row, eliminated later: (node, slot).
    right: Vec<(u32, u32)>,
    /// Rows of each pivot's column, eliminated later: (node, slot).
    left: Vec<(u32, u32)>,
    /// Slots of what the products of `left` and `right` are subtracted from, in their order.
    products: Vec<u32>,
    /// Slots of the diagonal by node.
    diagonal: Vec<u32>,
    /// By way: its slot.
    ways: Vec<u32>,
    values: Vec<f64>,
}

impl Elimination {
    /// Finds an order; `None` if it would take too much work.
    fn new(nodes: usize, ways: &[(u32, u32)]) -> Option<Elimination> {
        let mut slots: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut out = Elimination::default();
        let mut rows: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); nodes];
        let mut columns: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); nodes];
        for n in 0..nodes as u32 {
            slots.insert((n, n), n);
            out.diagonal.push(n);
        }
        for &(from, to) in ways {
            let next = slots.len() as u32;
            out.ways.push(*slots.entry((from, to)).or_insert(next));
            if from != to {
                rows[from as usize].insert(to);
                columns[to as usize].insert(from);
            }
        }
        let work = |rows: &[BTreeSet<u32>], columns: &[BTreeSet<u32>], n: u32| {
            rows[n as usize].len() * columns[n as usize].len()
        };
        let mut queue: BTreeSet<(usize, u32)> = (0..nodes as u32)
            .map(|n| (work(&rows, &columns, n), n))
            .collect();
        while let Some((cost, n)) = queue.pop_first() {
            if out.products.len() + cost > MOST_WORK {
                return None;
            }
            out.order.push(n);
            out.first
                .push((out.left.len() as u32, out.right.len() as u32));
            let right = std::mem::take(&mut rows[n as usize]);
            let left = std::mem::take(&mut columns[n as usize]);
            let touched: BTreeSet<u32> = right.union(&left).copied().collect();
            for t in &touched {
                queue.remove(&(work(&rows, &columns, *t), *t));
            }
            for to in &right {
                columns[*to as usize].remove(&n);
                out.right.push((*to, slots[&(n, *to)]));
            }
            for from in &left {
                rows[*from as usize].remove(&n);
                out.left.push((*from, slots[&(*from, n)]));
                for to in &right {
                    let next = slots.len() as u32;
                    out.products
                        .push(*slots.entry((*from, *to)).or_insert(next));
                    if from != to {
                        rows[*from as usize].insert(*to);
                        columns[*to as usize].insert(*from);
                    }
                }
            }
            for t in &touched {
                queue.insert((work(&rows, &columns, *t), *t));
            }
        }
        out.first
            .push((out.left.len() as u32, out.right.len() as u32));
        out.values = vec![0.0; slots.len()];
        Some(out)
    }

    /// Eliminates with these shares of ways.
    fn factor(&mut self, shares: impl Iterator<Item = f64>) {
        self.values.fill(0.0);
        for d in &self.diagonal {
            self.values[*d as usize] = 1.0;
        }
        for (slot, share) in self.ways.iter().zip(shares) {
            self.values[*slot as usize] -= share * (1.0 - LEAK);
        }
        let mut product = self.products.iter();
        for (k, n) in self.order.iter().enumerate() {
            let (left, right) = self.parts(k);
            let diagonal = self.diagonal[*n as usize] as usize;
            let pivot = self.values[diagonal].max(LEAK);
            self.values[diagonal] = pivot;
            for l in left {
                let slot = self.left[l].1 as usize;
                let factor = self.values[slot] / pivot;
                self.values[slot] = factor;
                for r in right.clone() {
                    if let Some(to) = product.next() {
                        self.values[*to as usize] -= factor * self.values[self.right[r].1 as usize];
                    }
                }
            }
        }
    }

    fn parts(&self, k: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (a, b) = (self.first[k], self.first[k + 1]);
        (a.0 as usize..b.0 as usize, a.1 as usize..b.1 as usize)
    }

    /// How often each node runs if it is entered that often from outside.
    fn counts(&self, entered: &mut [f64]) {
        for (k, n) in self.order.iter().enumerate() {
            let n = *n as usize;
            entered[n] /= self.values[self.diagonal[n] as usize];
            let count = entered[n];
            for (to, slot) in &self.right[self.parts(k).1] {
                entered[*to as usize] -= count * self.values[*slot as usize];
            }
        }
        for (k, n) in self.order.iter().enumerate().rev() {
            let mut sum = entered[*n as usize];
            for (from, slot) in &self.left[self.parts(k).0] {
                sum -= entered[*from as usize] * self.values[*slot as usize];
            }
            entered[*n as usize] = sum;
        }
    }

    /// From what one more run of each node is worth: what one more entry is worth.
    fn worth(&self, worth: &mut [f64]) {
        for (k, n) in self.order.iter().enumerate() {
            let own = worth[*n as usize];
            for (from, slot) in &self.left[self.parts(k).0] {
                worth[*from as usize] -= own * self.values[*slot as usize];
            }
        }
        for (k, n) in self.order.iter().enumerate().rev() {
            let mut sum = worth[*n as usize];
            for (to, slot) in &self.right[self.parts(k).1] {
                sum -= self.values[*slot as usize] * worth[*to as usize];
            }
            worth[*n as usize] = sum / self.values[self.diagonal[*n as usize] as usize];
        }
    }
}

/// The ways of a graph by the node that they leave: those whose shares are sought.
struct Fit<'a> {
    seen: &'a [(u32, Observed)],
    called: &'a [Called],
    ways: &'a [Way],
    /// By node, the outside first, and one more: where its ways begin in `list`.
    first: Vec<u32>,
    list: Vec<u32>,
    elimination: Elimination,
    /// By way: the logarithm of its share, up to the sum; by way: the share.
    logs: Vec<f64>,
    shares: Vec<f64>,
    /// The logarithm of how often the function is entered.
    scale: f64,
    /// The logarithm of the number of samples of an average instruction for each time that it runs.
    pace: f64,
    counts: Vec<f64>,
    worth: Vec<f64>,
}

fn node(b: u32) -> usize {
    if b == OUTSIDE { 0 } else { 1 + b as usize }
}

impl Fit<'_> {
    fn of(&self, n: usize) -> &[u32] {
        &self.list[self.first[n] as usize..self.first[n + 1] as usize]
    }

    /// Shares from logarithms, and counts from shares, for one entry.
    fn solve(&mut self) {
        for n in 0..self.first.len() - 1 {
            let own = self.first[n] as usize..self.first[n + 1] as usize;
            let most = self.list[own.clone()]
                .iter()
                .map(|w| self.logs[*w as usize])
                .fold(f64::NEG_INFINITY, f64::max);
            let mut sum = 0.0;
            for w in &self.list[own.clone()] {
                let share = exp(self.logs[*w as usize] - most);
                self.shares[*w as usize] = share;
                sum += share;
            }
            for w in &self.list[own] {
                self.shares[*w as usize] /= sum;
            }
        }
        let inside = self.ways.iter().zip(&self.shares);
        let inside = inside.filter(|(w, _)| w.from != OUTSIDE && w.to != OUTSIDE);
        self.elimination.factor(inside.map(|(_, share)| *share));
        self.counts.fill(0.0);
        for w in self.of(0).to_vec() {
            if let Some(count) = self.counts.get_mut(self.ways[w as usize].to as usize) {
                *count += self.shares[w as usize];
            }
        }
        let mut counts = std::mem::take(&mut self.counts);
        self.elimination.counts(&mut counts);
        self.counts = counts;
    }

    /// The derivatives of the logarithm of the posterior probability by the logarithms of all shares; and by the
    /// scale and the pace, which are returned.
    fn derivatives(&mut self, by: &mut [f64]) -> (f64, f64) {
        let (scale, timed) = (exp(self.scale), exp(self.scale + self.pace));
        let mut by_scale = 0.0;
        self.worth.fill(0.0);
        for (b, o) in self.seen {
            let b = *b as usize;
            let count = self.counts[b].max(1e-12);
            let pull = o.pull(timed * count);
            by_scale += pull;
            self.worth[b] += pull / count;
        }
        let by_pace = by_scale - self.pace / (PACE * PACE);
        for c in self.called {
            let b = c.block as usize;
            let count = self.counts[b].max(1e-12);
            let pull = c.pull(scale * count);
            by_scale += pull;
            self.worth[b] += pull / count;
        }
        let mut worth = std::mem::take(&mut self.worth);
        self.elimination.worth(&mut worth);
        self.worth = worth;
        for n in 0..self.first.len() - 1 {
            let flow = if n == 0 { 1.0 } else { self.counts[n - 1] };
            let of_way = |w: u32| {
                let to = self.ways[w as usize].to;
                self.worth.get(to as usize).copied().unwrap_or(0.0) * flow
            };
            let list = self.of(n);
            let mean: f64 = list
                .iter()
                .map(|w| self.shares[*w as usize] * of_way(*w))
                .sum();
            for w in list {
                let way = &self.ways[*w as usize];
                let prior = ln(way.share.max(1e-9)) - self.logs[*w as usize];
                by[*w as usize] = self.shares[*w as usize] * (of_way(*w) - mean)
                    + prior / (way.doubt * way.doubt);
            }
        }
        (by_scale, by_pace)
    }
}

/// Finds the likely counts of `nodes` blocks, of which `seen` says what samples say of some (of a block as often as
/// there is something to say), and `called` what those of the functions say that they call. Counts are in the unit of
/// samples of an average instruction; without samples the function is entered once.
/// `None` if the graph is too large, or nothing enters it.
///
/// ```
/// use postlink_flow::likely::{Observed, OUTSIDE, Way, likely};
/// // if (0 -> 1) a rare thing, then 2. The rare thing has no samples, and the branch is expected to be even.
/// let way = |from, to, share| Way { from, to, share, doubt: 5.0 };
/// let ways = [way(OUTSIDE, 0, 1.0), way(0, 1, 0.5), way(0, 2, 0.5), way(1, 2, 1.0), way(2, OUTSIDE, 1.0)];
/// let seen = [(0, 20.0), (1, 0.0), (2, 18.0)].map(|(block, samples)| {
///     (block, Observed { samples: vec![samples; 5], short: 4.0, long: 1.5 })
/// });
/// let counts = likely(3, &seen, &[], &ways).unwrap();
/// assert!(counts.ways[1] < 0.05 * counts.ways[2]);
/// ```
///
/// # Panics
///
/// If a way, an observation or a call names a block that does not exist.
pub fn likely(
    nodes: usize,
    seen: &[(u32, Observed)],
    called: &[Called],
    ways: &[Way],
) -> Option<Counts> {
    let inside: Vec<(u32, u32)> = ways
        .iter()
        .filter(|w| w.from != OUTSIDE && w.to != OUTSIDE)
        .map(|w| (w.from, w.to))
        .collect();
    let elimination = Elimination::new(nodes, &inside)?;
    let mut first = vec![0u32; nodes + 2];
    for w in ways {
        first[node(w.from) + 1] += 1;
    }
    for n in 0..nodes + 1 {
        first[n + 1] += first[n];
    }
    if first[1] == 0 {
        return None;
    }
    let mut next = first.clone();
    let mut list = vec![0u32; ways.len()];
    for (i, w) in ways.iter().enumerate() {
        let slot = &mut next[node(w.from)];
        list[*slot as usize] = i as u32;
        *slot += 1;
    }
    let mut fit = Fit {
        seen,
        called,
        ways,
        first,
        list,
        elimination,
        logs: ways.iter().map(|w| ln(w.share.max(1e-9))).collect(),
        shares: vec![0.0; ways.len()],
        scale: 0.0,
        pace: 0.0,
        counts: vec![0.0; nodes],
        worth: vec![0.0; nodes],
    };
    fit.solve();
    let samples: f64 = seen.iter().map(|(_, o)| o.sum()).sum();
    let expected: f64 = seen
        .iter()
        .map(|(b, o)| o.samples.len() as f64 * fit.counts[*b as usize])
        .sum();
    if samples > 0.0 && expected > 0.0 {
        fit.scale = ln(samples / expected);
        climb(&mut fit);
    }
    let scale = if samples > 0.0 { exp(fit.scale) } else { 1.0 };
    let flow = |from: u32| match from {
        OUTSIDE => scale,
        b => fit.counts[b as usize] * scale,
    };
    Some(Counts {
        ways: ways
            .iter()
            .zip(&fit.shares)
            .map(|(w, share)| flow(w.from) * share)
            .collect(),
        blocks: fit.counts.iter().map(|c| c * scale).collect(),
    })
}

/// Climbs by the signs of derivatives.
fn climb(fit: &mut Fit<'_>) {
    // Only calls tell the pace from how often the function is entered.
    let paces = usize::from(!fit.called.is_empty());
    let unknowns = fit.ways.len() + 1 + paces;
    let mut by = vec![0.0; unknowns];
    let mut before = vec![0.0; unknowns];
    let mut step = vec![0.2f64; unknowns];
    for _ in 0..STEPS {
        let (ways, rest) = by.split_at_mut(fit.ways.len());
        let (by_scale, by_pace) = fit.derivatives(ways);
        for (slot, by) in rest.iter_mut().zip([by_scale, by_pace]) {
            *slot = by;
        }
        let mut largest = 0.0f64;
        for i in 0..unknowns {
            let agrees = by[i] * before[i];
            if agrees > 0.0 {
                step[i] = (step[i] * 1.2).min(1.5);
            } else if agrees < 0.0 {
                step[i] = (step[i] * 0.5).max(1e-4);
                by[i] = 0.0;
            }
            before[i] = by[i];
            let change = if by[i] > 0.0 {
                step[i]
            } else if by[i] < 0.0 {
                -step[i]
            } else {
                0.0
            };
            largest = largest.max(step[i]);
            let ways = fit.ways.len();
            match fit.logs.get_mut(i) {
                Some(log) => *log += change,
                None if i == ways => fit.scale += change,
                None => fit.pace += change,
            }
        }
        fit.solve();
        if largest < 2e-3 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(from: u32, to: u32, share: f64) -> Way {
        let doubt = 5.0;
        Way {
            from,
            to,
            share,
            doubt,
        }
    }

    fn seen(samples: &[f64]) -> Vec<(u32, Observed)> {
        let observed = |sum: f64| Observed {
            samples: vec![sum / 4.0; 4],
            short: 4.0,
            long: 1.5,
        };
        (0..).zip(samples).map(|(b, n)| (b, observed(*n))).collect()
    }

    /// 0 enters, 1 is a loop's head with arms 2 and 3, 4 its latch, 5 leaves.
    fn a_loop() -> Vec<Way> {
        vec![
            way(OUTSIDE, 0, 1.0),
            way(0, 1, 1.0),
            way(1, 2, 0.5),
            way(1, 3, 0.5),
            way(2, 4, 1.0),
            way(3, 4, 1.0),
            way(4, 1, 0.9),
            way(4, 5, 0.1),
            way(5, OUTSIDE, 1.0),
        ]
    }

    #[test]
    fn without_samples_counts_are_what_is_expected() {
        let counts = likely(6, &[], &[], &a_loop()).expect("counts");
        let wanted = [1.0, 10.0, 5.0, 5.0, 10.0, 1.0];
        for (count, wanted) in counts.blocks.iter().zip(wanted) {
            assert!((count - wanted).abs() < 1e-3, "{count} {wanted}");
        }
    }

    #[test]
    fn flow_is_conserved() {
        let ways = a_loop();
        let counts =
            likely(6, &seen(&[0.0, 50.0, 3.0, 700.0, 40.0, 1.0]), &[], &ways).expect("counts");
        for b in 0..6 {
            let sum = |of: &dyn Fn(&Way) -> u32| -> f64 {
                let own = ways.iter().zip(&counts.ways).filter(|(w, _)| of(w) == b);
                own.map(|(_, count)| count).sum()
            };
            let (into, out) = (sum(&|w| w.to), sum(&|w| w.from));
            assert!((into - out).abs() < 1e-4 * into, "block {b}: {into} {out}");
        }
    }

    #[test]
    fn an_arm_with_samples_runs_more_often_than_one_without() {
        let counts = likely(6, &seen(&[0.0, 40.0, 0.0, 60.0, 50.0, 0.0]), &[], &a_loop());
        let blocks = counts.expect("counts").blocks;
        assert!(blocks[3] > 10.0 * blocks[2], "{blocks:?}");
    }

    #[test]
    fn a_stall_in_one_block_of_a_loop_is_no_loop_of_its_own() {
        // 4 has a hundred times the samples of the head, which runs as often.
        let counts = likely(
            6,
            &seen(&[0.0, 40.0, 0.0, 60.0, 5000.0, 0.0]),
            &[],
            &a_loop(),
        );
        let blocks = counts.expect("counts").blocks;
        assert!(
            (blocks[4] - blocks[1]).abs() < 0.01 * blocks[1],
            "{blocks:?}"
        );
        assert!(blocks[1] < 300.0, "{blocks:?}");
    }

    #[test]
    fn an_instruction_that_waits_makes_no_arm_hot() {
        // An arm has nearly all samples, but at one of its instructions; the other arm has a few at each.
        let mut seen = seen(&[0.0, 20.0, 0.0, 40.0, 20.0, 0.0]);
        seen[2].1.samples = vec![0.0, 0.0, 900.0, 0.0];
        let blocks = likely(6, &seen, &[], &a_loop()).expect("counts").blocks;
        assert!(blocks[3] > 2.0 * blocks[2], "{blocks:?}");
    }

    #[test]
    fn what_samples_say_is_bounded() {
        let seen = |n: f64| Observed {
            samples: vec![n],
            short: 4.0,
            long: 1.5,
        };
        assert!((seen(1e9).pull(1.0) - 1.5).abs() < 1e-6);
        assert!((seen(0.0).pull(1e9) + 4.0).abs() < 1e-6);
        assert!(seen(10.0).pull(10.0).abs() < 1e-12);
        let poisson = Observed {
            short: f64::INFINITY,
            long: f64::INFINITY,
            ..seen(7.0)
        };
        assert!((poisson.pull(3.0) - 4.0).abs() < 1e-12);
    }

    fn called(block: u32, entered: f64, others: f64) -> Called {
        Called {
            block,
            entered,
            others,
            weight: 8.0,
            short: 4.0,
            long: 1.5,
        }
    }

    /// Counts of the loop's arms, which have no samples though all around them has, by what they call.
    fn arms(calls: &[Called]) -> (f64, f64) {
        let seen = seen(&[0.0, 40.0, 0.0, 0.0, 50.0, 0.0]);
        let blocks = likely(6, &seen, calls, &a_loop()).expect("counts").blocks;
        (blocks[2], blocks[3])
    }

    #[test]
    fn a_block_that_calls_what_has_no_samples_hardly_runs() {
        let (calls, other) = arms(&[called(2, 0.0, 0.0)]);
        assert!(other > 10.0 * calls, "{calls} {other}");
    }

    #[test]
    fn a_block_that_alone_calls_a_hot_function_is_hot() {
        let (calls, other) = arms(&[called(3, 12.0, 0.0)]);
        assert!(other > 10.0 * calls, "{calls} {other}");
    }

    #[test]
    fn a_hot_function_that_others_call_says_little() {
        let (even, other) = arms(&[]);
        assert!((even - other).abs() < 1e-6 * even, "{even} {other}");
        let (calls, other) = arms(&[called(3, 12.0, 12.0)]);
        assert!(other < 1.5 * calls, "{calls} {other}");
    }

    #[test]
    fn a_function_that_is_slow_is_entered_less_often_than_its_samples_say() {
        // What the loop's head calls is entered a tenth as often as the loop seems to run.
        let samples = seen(&[0.0, 40.0, 3.0, 60.0, 50.0, 0.0]);
        let alone = likely(6, &samples, &[], &a_loop()).expect("counts");
        let with = likely(6, &samples, &[called(1, 4.0, 0.0)], &a_loop()).expect("counts");
        assert!(with.blocks[1] < 0.8 * alone.blocks[1], "{with:?} {alone:?}");
        let share = |of: &Counts| of.blocks[3] / of.blocks[1];
        assert!(
            (share(&with) - share(&alone)).abs() < 0.05,
            "{with:?} {alone:?}"
        );
    }

    #[test]
    fn what_a_call_says_is_bounded() {
        let pull = |entered, own| called(0, entered, 0.0).pull(own) / 8.0;
        assert!((pull(1e9, 1.0) - 1.5).abs() < 1e-6);
        assert!((pull(0.0, 1e9) + 4.0).abs() < 1e-6);
        assert!(pull(10.0, 10.0).abs() < 1e-12);
        assert!(pull(0.0, 0.0).is_finite());
    }

    #[test]
    fn a_loop_without_a_way_out_ends() {
        let ways = [way(OUTSIDE, 0, 1.0), way(0, 0, 1.0)];
        let counts = likely(1, &seen(&[10.0]), &[], &ways).expect("counts");
        assert!(counts.blocks[0].is_finite());
    }

    #[test]
    fn what_nothing_enters_has_no_counts() {
        assert_eq!(
            likely(1, &seen(&[10.0]), &[], &[way(0, OUTSIDE, 1.0)]),
            None
        );
    }

    #[test]
    fn too_much_work_is_left_alone() {
        // Every block leads to every other one.
        let n = 400;
        let all = (0..n).flat_map(|a| (0..n).map(move |b| way(a, b, 1.0)));
        let ways: Vec<Way> = std::iter::once(way(OUTSIDE, 0, 1.0)).chain(all).collect();
        assert_eq!(likely(n as usize, &[], &[], &ways), None);
    }
}
