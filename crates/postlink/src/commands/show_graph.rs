//! The graph of one function in box characters, for `postlink show --graph`.
//!
//! Blocks are below each other in the order of the code. Control that falls into the next block runs down
//! inside; every other edge leaves its block at the bottom, runs along a lane to the right and comes in at
//! the top of its target. Lanes are given so that short edges are inside of long ones. Lines are kept as the
//! directions that they have in a cell, so crossings and corners come out by themselves.

use postlink_rewrite::counts::{BlockCounts, FunctionCounts};

use crate::ui::{BOLD, COOL, DIM, HOT, WARM, count, counted, percent};

const UP: u8 = 1;
const DOWN: u8 = 2;
const LEFT: u8 = 4;
const RIGHT: u8 = 8;
/// Columns of a box, borders included.
const BOX: usize = 64;
/// Lines of a block: top, counts, ways, bottom.
const TALL: usize = 4;
/// Edges beyond so many lanes are described in words only.
const LANES: usize = 16;
/// Columns of a bar.
const BAR: usize = 16;

fn line(directions: u8) -> char {
    match directions {
        0 => ' ',
        d if d == UP | DOWN => '│',
        d if d == LEFT | RIGHT => '─',
        d if d == DOWN | RIGHT => '╭',
        d if d == DOWN | LEFT => '╮',
        d if d == UP | RIGHT => '╰',
        d if d == UP | LEFT => '╯',
        d if d == UP | DOWN | RIGHT => '├',
        d if d == UP | DOWN | LEFT => '┤',
        d if d == LEFT | RIGHT | DOWN => '┬',
        d if d == LEFT | RIGHT | UP => '┴',
        d if d & (UP | DOWN) == 0 => '─',
        d if d & (LEFT | RIGHT) == 0 => '│',
        _ => '┼',
    }
}

/// A bar of eighths.
pub fn bar(part: u64, most: u64, width: usize) -> String {
    let eighths = match most {
        0 => 0,
        _ => (part as f64 / most as f64 * (width * 8) as f64).round() as usize,
    };
    let eighths = if part > 0 { eighths.max(1) } else { 0 };
    let mut text = "█".repeat(eighths / 8);
    if let Some(rest) = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1))
    {
        text.push(*rest);
    }
    text
}

/// An edge that is drawn: from and to which block, in which lane.
#[derive(Debug, PartialEq, Eq)]
struct Drawn {
    from: usize,
    to: usize,
    lane: usize,
}

/// Gives edges their lanes: short ones first, so that they are inside.
fn lanes(blocks: &[BlockCounts]) -> Vec<Drawn> {
    let index = |address: u64| blocks.binary_search_by_key(&address, |b| b.address).ok();
    let mut edges: Vec<(usize, usize)> = Vec::new();
    for (from, block) in blocks.iter().enumerate() {
        for edge in block.edges.iter().filter(|e| e.count > 0) {
            match index(edge.to) {
                Some(to) if !falls(blocks, from, to) => edges.push((from, to)),
                _ => {}
            }
        }
    }
    edges.sort_unstable_by_key(|(from, to)| (from.abs_diff(*to), *from, *to));
    edges.dedup();
    // Rows that a lane is used in, both ends included: edges to one block may share a lane's end, and are
    // told apart by theirs.
    let mut used: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut out = Vec::new();
    for (from, to) in edges {
        let (a, b) = (from * TALL + TALL - 1, to * TALL);
        let (top, low) = (a.min(b), a.max(b));
        let is_free = |rows: &Vec<(usize, usize)>| rows.iter().all(|(t, l)| *l < top || low < *t);
        let lane = used.iter().position(is_free).unwrap_or(used.len());
        if lane >= LANES {
            continue;
        }
        if lane == used.len() {
            used.push(Vec::new());
        }
        used[lane].push((top, low));
        out.push(Drawn { from, to, lane });
    }
    out
}

/// Whether control runs from a block into the one after it.
fn falls(blocks: &[BlockCounts], from: usize, to: usize) -> bool {
    to == from + 1
        && blocks
            .get(from)
            .zip(blocks.get(to))
            .is_some_and(|(a, b)| a.address + a.size == b.address)
}

/// The graph as lines of text; what is inside of boxes is left to [`inside`].
fn frame(blocks: &[BlockCounts]) -> Vec<Vec<char>> {
    let edges = lanes(blocks);
    let width = BOX + 3 + 2 * edges.iter().map(|e| e.lane + 1).max().unwrap_or(0);
    let mut cells = vec![vec![0u8; width]; blocks.len() * TALL];
    let mut heads = Vec::new();
    for b in 0..blocks.len() {
        let top = b * TALL;
        for x in 1..BOX - 1 {
            cells[top][x] = LEFT | RIGHT;
            cells[top + TALL - 1][x] = LEFT | RIGHT;
        }
        cells[top][0] = DOWN | RIGHT;
        cells[top][BOX - 1] = DOWN | LEFT;
        cells[top + TALL - 1][0] = UP | RIGHT;
        cells[top + TALL - 1][BOX - 1] = UP | LEFT;
        for y in top + 1..top + TALL - 1 {
            cells[y][0] = UP | DOWN;
            cells[y][BOX - 1] = UP | DOWN;
        }
    }
    // When all boxes are there, so that lines run into both.
    for b in 0..blocks.len() {
        let top = b * TALL;
        let into_next = blocks[b].edges.iter().any(|e| {
            e.count > 0
                && blocks.get(b + 1).is_some_and(|n| n.address == e.to)
                && falls(blocks, b, b + 1)
        });
        if into_next {
            cells[top + TALL - 1][BOX / 2] |= DOWN;
            cells[top + TALL][BOX / 2] |= UP;
        }
    }
    for edge in &edges {
        let x = BOX + 2 + 2 * edge.lane;
        let (out, into) = (edge.from * TALL + TALL - 1, edge.to * TALL);
        for y in [out, into] {
            cells[y][BOX - 1] |= RIGHT;
            for cell in &mut cells[y][BOX..x] {
                *cell |= LEFT | RIGHT;
            }
            cells[y][x] |= LEFT;
        }
        let (top, low) = (out.min(into), out.max(into));
        cells[top][x] |= DOWN;
        cells[low][x] |= UP;
        for row in &mut cells[top + 1..low] {
            row[x] |= UP | DOWN;
        }
        heads.push(into);
    }
    let mut text: Vec<Vec<char>> = cells
        .into_iter()
        .map(|row| row.into_iter().map(line).collect())
        .collect();
    for y in heads {
        text[y][BOX] = '◀';
    }
    text
}

/// What is in a block's box: offset, count, bar, bytes; then its ways.
fn inside(function: &FunctionCounts, b: usize, most: u64) -> (String, String, String) {
    let block = &function.blocks[b];
    let offset = |address: u64| match address.checked_sub(function.address) {
        Some(n) => format!("+{n:x}"),
        None => format!("{address:#x}"),
    };
    let left = format!(
        "{:<8} {:>18} ",
        offset(block.address),
        format!("×{}", count(block.count))
    );
    let bar = bar(block.count, most, BAR);
    let mut ways: Vec<_> = block.edges.iter().filter(|e| e.count > 0).collect();
    ways.sort_by_key(|e| (std::cmp::Reverse(e.count), e.to));
    let mut text = String::new();
    for (k, way) in ways.iter().enumerate() {
        let sign = if way.estimated { "≈" } else { "" };
        let next = format!("{sign}{} {}", offset(way.to), share(way.count, block.count));
        let separator = if k == 0 { "→ " } else { ", " };
        if text.chars().count() + next.chars().count() + 4 > BOX - 4 {
            text.push_str(", …");
            break;
        }
        text.push_str(separator);
        text.push_str(&next);
    }
    (left, bar, text)
}

/// A share that is not rounded to nothing or to all.
fn share(part: u64, whole: u64) -> String {
    match percent(part, whole).as_str() {
        "0.0 %" if part > 0 => "< 0.1 %".to_owned(),
        "100.0 %" if part < whole => "> 99.9 %".to_owned(),
        rounded => rounded.to_owned(),
    }
}

/// Prints a function's graph. `name` is how it is called for people.
pub fn print(function: &FunctionCounts, name: &str) {
    anstream::println!(
        "{BOLD}{name}{BOLD:#} at {:#x}, entered {}; blocks that never ran are not shown",
        function.address,
        counted(function.entries, "time", "times")
    );
    let most = function.blocks.iter().map(|b| b.count).max().unwrap_or(0);
    let rows = frame(&function.blocks);
    for (y, row) in rows.iter().enumerate() {
        let (b, at) = (y / TALL, y % TALL);
        let right: String = row[BOX..].iter().collect();
        let right = right.trim_end();
        let border: String = row[..BOX].iter().collect();
        if at == 0 || at == TALL - 1 {
            anstream::println!("{DIM}{border}{DIM:#}{right}");
            continue;
        }
        let (left, bar, ways) = inside(function, b, most);
        let block = &function.blocks[b];
        if at == 1 {
            let heat = match block.count {
                n if n >= most / 2 => HOT,
                n if n >= most / 20 => WARM,
                _ => COOL,
            };
            let size = format!("{} B", block.size);
            let space = " ".repeat(
                (BOX - 4).saturating_sub(left.chars().count() + bar.chars().count() + size.len()),
            );
            anstream::println!(
                "{DIM}│{DIM:#} {left}{heat}{bar}{heat:#}{space}{DIM}{size}{DIM:#} {DIM}│{DIM:#}{right}"
            );
        } else {
            let space = " ".repeat((BOX - 4).saturating_sub(ways.chars().count()));
            anstream::println!("{DIM}│{DIM:#} {ways}{space} {DIM}│{DIM:#}{right}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_rewrite::counts::EdgeCounts;

    fn block(address: u64, count: u64, edges: &[(u64, u64)]) -> BlockCounts {
        BlockCounts {
            address,
            last: address,
            size: 16,
            count,
            edges: edges
                .iter()
                .map(|(to, count)| EdgeCounts {
                    to: *to,
                    count: *count,
                    joins: false,
                    estimated: false,
                })
                .collect(),
        }
    }

    #[test]
    fn short_edges_lie_inside_of_long_ones() {
        let blocks = [
            block(0, 10, &[(16, 5), (48, 5)]),
            block(16, 90, &[(16, 85), (32, 5)]),
            block(32, 5, &[(48, 5)]),
            block(48, 10, &[]),
        ];
        let drawn = lanes(&blocks);
        let expected = [(1, 1, 0), (0, 3, 1)].map(|(from, to, lane)| Drawn { from, to, lane });
        assert_eq!(drawn, expected);
    }

    #[test]
    fn a_loop_is_a_closed_line() {
        let blocks = [block(0, 90, &[(0, 85), (16, 5)]), block(16, 5, &[])];
        let text: Vec<String> = frame(&blocks)
            .into_iter()
            .map(|row| {
                row[BOX - 2..]
                    .iter()
                    .collect::<String>()
                    .trim_end()
                    .to_owned()
            })
            .collect();
        assert_eq!(
            text,
            ["─┬◀─╮", " │  │", " │  │", "─┴──╯", "─╮", " │", " │", "─╯"]
        );
    }

    #[test]
    fn falling_into_the_next_block_joins_both_boxes() {
        let blocks = [block(0, 9, &[(16, 9)]), block(16, 9, &[])];
        let rows = frame(&blocks);
        assert_eq!((rows[3][BOX / 2], rows[4][BOX / 2]), ('┬', '┴'));
        let apart = [block(0, 9, &[]), block(16, 9, &[])];
        assert_eq!(frame(&apart)[3][BOX / 2], '─');
    }

    #[test]
    fn a_bar_shows_what_is_more_than_nothing() {
        assert_eq!(bar(0, 100, 4), "");
        assert_eq!(bar(1, 1_000_000, 4), "▏");
        assert_eq!(bar(50, 100, 4), "██");
        assert_eq!(bar(100, 100, 4), "████");
        assert_eq!(bar(0, 0, 4), "");
    }
}
