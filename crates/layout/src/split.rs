//! Which blocks of a function are hot enough to stay with the others.
//!
//! Moving code that never runs out of the way makes the hot code of a program dense: fewer pages,
//! fewer cache lines. A function is split along the order of its blocks: a first part stays hot, a
//! second is placed elsewhere. The entry block is always hot.
//!
//! * [`by_count`] parts blocks that ran from those that did not. Its result is safe to use without
//!   knowing anything of the surroundings.
//! * [`hot_blocks`] goes further and finds how many of the blocks that ran should stay, the rest
//!   being *warm*: executed seldom, so that the calls that jump over them matter more than the
//!   jumps to them. It needs to know where other functions are (BOLT's `cdsplit`).

use crate::ext_tsp::{Block, Jump};

/// Which blocks that were never executed become cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cold {
    /// Those at the end of the order, as far as no other block follows. The order is kept.
    Trailing,
    /// All; they are moved to the end.
    Anywhere,
}

/// A function split in two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// All blocks, the hot ones first.
    pub order: Vec<u32>,
    /// How many of them are hot; at least 1 unless there is no block.
    pub hot: usize,
}

impl Split {
    /// The blocks that stay.
    pub fn hot(&self) -> &[u32] {
        self.order.get(..self.hot).unwrap_or(&self.order)
    }

    /// The blocks that are placed elsewhere.
    pub fn cold(&self) -> &[u32] {
        self.order.get(self.hot..).unwrap_or(&[])
    }
}

/// Splits a function where execution counts say so.
///
/// `order` is the order of its blocks, the entry first, and `counts[b]` how often block `b` was
/// executed. Blocks for which `stays` holds are hot whatever their count: further entries that must
/// be near, landing pads of exception handling that cannot be in another part. A function none of
/// whose blocks was executed is not split: nothing is known about it.
///
/// ```
/// use postlink_layout::split::{Cold, by_count};
/// let counts = [9, 0, 9, 0];
/// assert_eq!(by_count(&counts, &[0, 1, 2, 3], |_| false, Cold::Trailing).cold(), [3]);
/// assert_eq!(by_count(&counts, &[0, 1, 2, 3], |_| false, Cold::Anywhere).cold(), [1, 3]);
/// assert_eq!(by_count(&counts, &[0, 1, 2, 3], |block| block == 3, Cold::Anywhere).cold(), [1]);
/// ```
pub fn by_count(counts: &[u64], order: &[u32], stays: impl Fn(u32) -> bool, cold: Cold) -> Split {
    let is_executed = |block: u32| counts.get(block as usize).is_none_or(|&count| count > 0);
    if !order.iter().any(|&block| is_executed(block)) {
        return Split {
            order: order.to_vec(),
            hot: order.len(),
        };
    }
    let is_hot = |index: usize, block: u32| index == 0 || is_executed(block) || stays(block);
    let mut order = order.to_vec();
    let hot = match cold {
        Cold::Trailing => {
            let last = order
                .iter()
                .enumerate()
                .rposition(|(index, &block)| is_hot(index, block));
            last.map_or(0, |last| last + 1)
        }
        Cold::Anywhere => {
            let hot = |&(index, &block): &(usize, &u32)| is_hot(index, block);
            let (first, second): (Vec<_>, Vec<_>) = order.iter().enumerate().partition(hot);
            let hot = first.len();
            order = first
                .into_iter()
                .chain(second)
                .map(|(_, &block)| block)
                .collect();
            hot
        }
    };
    Split { order, hot }
}

/// Whether a split is worth its new jumps: the hot part must have shrunk by more than `threshold`
/// bytes, from `before` to `after`, both rounded up to multiples of `alignment`.
///
/// A block that falls through into a cold one gets a jump, and a short branch may become a long
/// one, so the hot part of a small function can even grow.
pub fn is_worthwhile(before: u64, after: u64, alignment: u64, threshold: u64) -> bool {
    let round = |size: u64| {
        size.checked_next_multiple_of(alignment.max(1))
            .unwrap_or(u64::MAX)
    };
    round(before).saturating_sub(round(after)) > threshold
}

/// The value of a jump falls with this power of its length.
const JUMP_POWER: f64 = 0.15;
/// The value of a call falls with this power of its length.
const CALL_POWER: f64 = 0.05;
/// The value of a call relative to that of a jump.
const CALL_SCALE: f64 = 0.95;
/// The most terms that [`hot_blocks`] evaluates, by looking at fewer split points in functions with
/// very many blocks and calls.
const MAX_TERMS: usize = 1 << 20;

/// A call that a function makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCall {
    /// The block of the call.
    pub block: u32,
    /// Start of the callee in bytes after the start of this function, negative if before it, when
    /// nothing is split off.
    pub callee: i64,
    /// Number of calls.
    pub count: u64,
}

/// Calls by other functions, from one side of this function to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOver {
    /// Their length in bytes when nothing is split off.
    pub length: u64,
    /// Number of calls.
    pub count: u64,
}

/// What surrounds a function in the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// About how far away warm blocks would be placed, in bytes.
    pub warm_distance: u64,
    /// The calls that the function makes.
    pub own_calls: &'a [OwnCall],
    /// The calls that pass over the function. Calls of similar length should be put together: two
    /// dozen classes are enough, because their value falls slowly.
    pub calls_over: &'a [CallOver],
}

/// How many blocks of `order`, which starts with the entry and holds executed blocks, should stay
/// hot; the rest is warm.
///
/// Splitting after `i` blocks has the score of the sum of
///
/// * `c / (d + 1)^0.15` over the jumps between the blocks, `d` being the length of the jump, or
///   [`Surroundings::warm_distance`] if it goes between the parts, and
/// * `0.95 c / (d + 1)^0.05` over the own calls and those over the function, which get shorter by
///   the size of the warm part.
///
/// The largest score wins, of equals the larger hot part.
pub fn hot_blocks(
    blocks: &[Block],
    jumps: &[Jump],
    order: &[u32],
    surroundings: &Surroundings<'_>,
) -> usize {
    let number = order.len();
    let mut index_of: Vec<Option<usize>> = vec![None; blocks.len()];
    let mut starts = vec![0i64; number + 1];
    for (index, &block) in order.iter().enumerate() {
        let mut size = 0;
        if let Some(data) = blocks.get(block as usize) {
            index_of[block as usize] = Some(index);
            size = i64::from(data.size);
        }
        starts[index + 1] = starts[index] + size;
    }
    let index_of = |block: u32| index_of.get(block as usize).copied().flatten();

    // changes[i] is the score of jumps with i hot blocks minus that with i - 1.
    let far = jump_value(surroundings.warm_distance);
    let mut changes = vec![0.0; number + 2];
    for jump in jumps {
        let (Some(from), Some(to)) = (index_of(jump.from), index_of(jump.to)) else {
            continue;
        };
        let near = jump_value(starts[to].abs_diff(starts[from + 1]));
        let loss = jump.count as f64 * (near - far);
        changes[from.min(to) + 1] -= loss;
        changes[from.max(to) + 1] += loss;
    }
    let own_calls: Vec<(usize, &OwnCall)> = surroundings
        .own_calls
        .iter()
        .filter_map(|call| Some((index_of(call.block)?, call)))
        .collect();
    let end = starts[number];
    let calls_score = |hot: usize| {
        let warm = end - starts[hot];
        let mut sum = 0.0;
        for &(index, call) in &own_calls {
            let length = if index >= hot {
                surroundings.warm_distance
            } else if call.callee >= end {
                call.callee.saturating_sub(warm).abs_diff(starts[index])
            } else {
                call.callee.abs_diff(starts[index])
            };
            sum += call.count as f64 * call_value(length);
        }
        for call in surroundings.calls_over {
            sum += call.count as f64 * call_value(call.length.saturating_sub(warm.unsigned_abs()));
        }
        sum
    };

    let terms = number.saturating_mul(own_calls.len() + surroundings.calls_over.len());
    let step = terms / MAX_TERMS + 1;
    let mut best = (number, calls_score(number));
    let mut jumps_score = 0.0;
    for (hot, change) in changes.iter().enumerate().take(number).skip(1) {
        jumps_score += change;
        if hot % step == 0 {
            let score = jumps_score + calls_score(hot);
            // Of equals, or nearly so, the larger hot part; the unsplit function was first.
            let margin = score.abs() * 1e-12;
            if score > best.1 + margin || best.0 < number && score >= best.1 - margin {
                best = (hot, score);
            }
        }
    }
    best.0
}

fn jump_value(length: u64) -> f64 {
    (length as f64 + 1.0).powf(-JUMP_POWER)
}

fn call_value(length: u64) -> f64 {
    CALL_SCALE * (length as f64 + 1.0).powf(-CALL_POWER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbtest::arbtest;

    #[test]
    fn the_entry_stays_hot_even_if_it_was_not_counted() {
        let split = by_count(&[0, 5, 0], &[0, 2, 1], |_| false, Cold::Anywhere);
        assert_eq!((split.hot(), split.cold()), (&[0, 1][..], &[2][..]));
    }

    #[test]
    fn a_function_that_never_ran_is_not_split() {
        let split = by_count(&[0, 0, 0], &[0, 2, 1], |_| false, Cold::Anywhere);
        assert_eq!(
            split,
            Split {
                order: vec![0, 2, 1],
                hot: 3
            }
        );
    }

    #[test]
    fn trailing_cold_blocks_stop_at_one_that_stays() {
        let counts = [9, 0, 0, 0];
        let split = by_count(&counts, &[0, 1, 2, 3], |block| block == 2, Cold::Trailing);
        assert_eq!((split.hot(), split.cold()), (&[0, 1, 2][..], &[3][..]));
    }

    #[test]
    fn a_split_that_does_not_shrink_the_hot_part_is_not_worth_it() {
        assert!(is_worthwhile(100, 96, 2, 0));
        assert!(!is_worthwhile(100, 99, 2, 0), "the same after rounding");
        assert!(
            !is_worthwhile(100, 104, 2, 0),
            "larger, because of new jumps"
        );
        assert!(!is_worthwhile(100, 90, 2, 10));
        assert!(!is_worthwhile(u64::MAX, u64::MAX - 1, 16, 0));
    }

    /// A hot block, a block of 2000 bytes that is executed `count` times, and a hot block again,
    /// ordered with the big one last.
    fn seldom(count: u64) -> (Vec<Block>, Vec<Jump>, Vec<u32>) {
        let blocks =
            [(20, 1000), (2000, count), (20, 1000)].map(|(size, count)| Block { size, count });
        let jumps = [(0, 2, 1000 - count), (0, 1, count), (1, 2, count)];
        let jumps = jumps.map(|(from, to, count)| Jump { from, to, count });
        (blocks.to_vec(), jumps.to_vec(), vec![0, 2, 1])
    }

    #[test]
    fn warm_blocks_go_if_enough_calls_pass_over_them() {
        let (blocks, jumps, order) = seldom(1);
        let split = |calls_over: &[CallOver]| {
            let surroundings = Surroundings {
                warm_distance: 1 << 20,
                own_calls: &[],
                calls_over,
            };
            hot_blocks(&blocks, &jumps, &order, &surroundings)
        };
        assert_eq!(split(&[]), 3, "no gain");
        assert_eq!(
            split(&[CallOver {
                length: 3000,
                count: 1000
            }]),
            2
        );
        assert_eq!(
            split(&[CallOver {
                length: 3000,
                count: 1
            }]),
            3,
            "too few calls gain"
        );
    }

    #[test]
    fn own_calls_pass_over_the_warm_part_as_well() {
        let (blocks, jumps, order) = seldom(1);
        let split = |callee| {
            let own_calls = &[OwnCall {
                block: 2,
                callee,
                count: 1000,
            }];
            let surroundings = Surroundings {
                warm_distance: 1 << 20,
                own_calls,
                calls_over: &[],
            };
            hot_blocks(&blocks, &jumps, &order, &surroundings)
        };
        assert_eq!(split(2100), 2);
        assert_eq!(
            split(-2100),
            3,
            "a callee before the function does not come nearer"
        );
    }

    #[test]
    fn the_best_split_is_that_of_the_definition() {
        arbtest(|u| {
            let number = u.int_in_range(1..=8u32)?;
            let blocks: Vec<Block> = (0..number)
                .map(|_| {
                    Ok(Block {
                        size: u.int_in_range(0..=3000)?,
                        count: 1,
                    })
                })
                .collect::<arbitrary::Result<_>>()?;
            let mut jumps = Vec::new();
            for _ in 0..u.int_in_range(0..=12)? {
                let (from, to) = (u.int_in_range(0..=number)?, u.int_in_range(0..=number - 1)?);
                jumps.push(Jump {
                    from,
                    to,
                    count: u.int_in_range(0..=99)?,
                });
            }
            let mut own_calls = Vec::new();
            for _ in 0..u.int_in_range(0..=3)? {
                let callee = u.int_in_range(-50_000..=50_000)?;
                own_calls.push(OwnCall {
                    block: u.int_in_range(0..=number)?,
                    callee,
                    count: u.int_in_range(0..=99)?,
                });
            }
            let mut calls_over = Vec::new();
            for _ in 0..u.int_in_range(0..=3)? {
                calls_over.push(CallOver {
                    length: u.int_in_range(0..=99_999)?,
                    count: u.int_in_range(0..=9999)?,
                });
            }
            let mut order: Vec<u32> = (0..number).collect();
            for index in 1..order.len() {
                order.swap(index, u.int_in_range(1..=index)?);
            }
            let surroundings = Surroundings {
                warm_distance: 100_000,
                own_calls: &own_calls,
                calls_over: &calls_over,
            };

            let size = |order: &[u32]| {
                order
                    .iter()
                    .map(|&block| i64::from(blocks[block as usize].size))
                    .sum::<i64>()
            };
            let index = |block: u32| order.iter().position(|&other| other == block);
            let end = size(&order);
            let score = |hot: usize| {
                let mut sum = 0.0;
                for jump in &jumps {
                    let (Some(from), Some(to)) = (index(jump.from), index(jump.to)) else {
                        continue;
                    };
                    let length = size(&order[..to]).abs_diff(size(&order[..=from]));
                    let length = if (from < hot) == (to < hot) {
                        length
                    } else {
                        100_000
                    };
                    sum += jump.count as f64 / (length as f64 + 1.0).powf(0.15);
                }
                for call in &own_calls {
                    let Some(index) = index(call.block) else {
                        continue;
                    };
                    let callee = if call.callee >= end {
                        call.callee - size(&order[hot..])
                    } else {
                        call.callee
                    };
                    let length = callee.abs_diff(size(&order[..index]));
                    let length = if index < hot { length } else { 100_000 };
                    sum += 0.95 * call.count as f64 / (length as f64 + 1.0).powf(0.05);
                }
                for call in &calls_over {
                    let length = call.length.saturating_sub(size(&order[hot..]) as u64);
                    sum += 0.95 * call.count as f64 / (length as f64 + 1.0).powf(0.05);
                }
                sum
            };
            let best = (1..=order.len()).map(score).fold(0.0, f64::max);
            let found = hot_blocks(&blocks, &jumps, &order, &surroundings);
            assert!((1..=order.len()).contains(&found));
            assert!(
                score(found) >= best - 1e-9 * best,
                "{found}: {} < {best}",
                score(found)
            );
            Ok(())
        });
    }
}
