//! How the code that runs is spread over memory.
//!
//! Of every cache line it is known how many instructions were executed in it: blocks have counts, and every
//! instruction of a block ran as often as its block. In the output the same counts are at the blocks' new
//! places. From the lines follow pages and large pages, and how many of each hold 50, 90, 99, 99.9 per cent
//! of all executed instructions: what has to be in the caches for the program to run from them.

use postlink_elf::elf::Elf;
use postlink_isa::Isa;
use postlink_rewrite::facts::{Block, Function};
use rustc_hash::FxHashMap;

use crate::model::Side;
use crate::placed::Place;

/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a large page.
const LARGE: u64 = 2 << 20;
/// Thousandths of all executed instructions.
const SHARES: [u32; 5] = [500, 900, 990, 999, 1000];

/// What of a function was executed where: instructions by line, bytes, instructions without a place.
#[derive(Default)]
struct Part {
    lines: Vec<(u64, u64)>,
    bytes: u64,
    unplaced: u64,
}

/// Lays the counts of `functions` out at `places` (where blocks were, without) and adds them up.
pub fn side<I: Isa>(
    old: &Elf<'_>,
    laid_out: &Elf<'_>,
    functions: &[Function],
    places: Option<&[Option<Vec<Option<Place>>>]>,
) -> Side {
    let parts: Vec<Part> = postlink_parallel::map_range(functions.len(), |f| {
        let function = &functions[f];
        let mut part = Part::default();
        let blocks = function.ran.iter().flat_map(|ran| &ran.blocks);
        let moved = places.and_then(|places| places.get(f)?.as_ref());
        for (b, block) in blocks.enumerate().filter(|(_, block)| block.count > 0) {
            let place = match moved {
                None => Some((block.start, block.end)),
                Some(places) => places.get(b).copied().flatten(),
            };
            match place {
                Some(place) => add::<I>(old, laid_out, block, place, &mut part),
                None => {
                    let n = block.count.saturating_mul(block.instructions.into());
                    part.unplaced = part.unplaced.saturating_add(n);
                }
            }
        }
        part
    });
    let mut lines: FxHashMap<u64, u64> = FxHashMap::default();
    let mut side = Side::default();
    for part in &parts {
        side.hot_bytes += part.bytes;
        side.unplaced = side.unplaced.saturating_add(part.unplaced);
        for (line, n) in &part.lines {
            let sum = lines.entry(*line).or_default();
            *sum = sum.saturating_add(*n);
        }
    }
    let mut lines: Vec<(u64, u64)> = lines.into_iter().collect();
    lines.sort_unstable();
    let pages = coarser(&lines, PAGE / LINE);
    let large = coarser(&pages, LARGE / PAGE);
    side.touched = (lines.len() as u64, pages.len() as u64, large.len() as u64);
    let covering = [&lines, &pages, &large].map(|units| covering(units));
    for (k, share) in SHARES.into_iter().enumerate() {
        side.cover
            .push((share, covering[0][k], covering[1][k], covering[2][k]));
    }
    let mut before = 0;
    for (line, n) in &lines {
        side.lines.push(line - before);
        before = *line;
        side.heat.push(level(*n));
    }
    side.ranges = laid_out
        .sections
        .iter()
        .filter(|s| s.is_code() && s.is_alloc() && s.size > 0)
        .map(|s| (s.name.to_owned(), s.addr, s.size))
        .collect();
    side.ranges.sort_by_key(|range| range.1);
    side
}

/// Adds a block's instructions at its place.
fn add<I: Isa>(old: &Elf<'_>, laid_out: &Elf<'_>, block: &Block, place: Place, part: &mut Part) {
    let (start, end) = place;
    part.bytes += end.saturating_sub(start);
    let mut push = |at: u64, n: u64| match part.lines.last_mut() {
        Some((line, sum)) if *line == at / LINE => *sum = sum.saturating_add(n),
        _ => part.lines.push((at / LINE, n)),
    };
    // Where it was, all of it is as it was.
    let stayed = place == (block.start, block.end);
    let body = if stayed { block.end } else { block.branch } - block.start;
    if let Some(bytes) = old.bytes_at(block.start, body) {
        I::sweep(bytes, start, |insn| {
            push(insn.addr, block.count);
            true
        });
    }
    // The branch is the first instruction after the body. A jump that was put in after it runs less often;
    // how often is not looked at.
    let behind = start.saturating_add(body);
    if let Some(bytes) = laid_out.bytes_at(behind, end.saturating_sub(behind)) {
        I::sweep(bytes, behind, |insn| {
            push(insn.addr, block.count);
            false
        });
    }
    // What an instruction reaches into was fetched too, and has no instruction of its own.
    if end > start {
        push(end - 1, 0);
    }
}

fn coarser(units: &[(u64, u64)], by: u64) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (unit, n) in units {
        match out.last_mut() {
            Some((last, sum)) if *last == unit / by => *sum = sum.saturating_add(*n),
            _ => out.push((unit / by, *n)),
        }
    }
    out
}

/// How many of the hottest units hold each of the shares.
fn covering(units: &[(u64, u64)]) -> [u64; SHARES.len()] {
    let mut counts: Vec<u64> = units.iter().map(|u| u.1).filter(|n| *n > 0).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all: u128 = counts.iter().map(|n| u128::from(*n)).sum();
    let mut out = [0; SHARES.len()];
    let (mut sum, mut used) = (0u128, 0);
    for (k, share) in SHARES.into_iter().enumerate() {
        while sum * 1000 < all * u128::from(share) {
            let Some(n) = counts.get(used) else { break };
            sum += u128::from(*n);
            used += 1;
        }
        out[k] = used as u64;
    }
    out
}

/// 4·log2(1 + n), which a byte holds of every n.
fn level(n: u64) -> u8 {
    (4.0 * (1.0 + n as f64).log2()).round().min(255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_units_are_counted_until_the_share_is_reached() {
        let units = [(1, 50), (2, 30), (3, 19), (4, 1), (5, 0)];
        assert_eq!(covering(&units), [1, 3, 3, 4, 4]);
        assert_eq!(covering(&[]), [0; 5]);
    }

    #[test]
    fn units_join_to_larger_ones() {
        assert_eq!(coarser(&[(0, 1), (63, 2), (64, 4)], 64), [(0, 3), (1, 4)]);
    }

    #[test]
    fn a_level_holds_any_count() {
        assert_eq!([0, 1, 3, u64::MAX].map(level), [0, 4, 8, 255]);
    }
}
