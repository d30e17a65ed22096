//! Where debuggers put breakpoints on moved functions.
//!
//! # Problem
//!
//! A breakpoint on a function is put behind its prologue. gdb takes the first row with `prologue_end` that is in the
//! function; LLDB looks for one in the six rows from the entry on, and if there is none takes the first of them whose
//! line is not the entry's, or the second. clang has the flag on the first instruction in memory that has a line. All
//! this is right as long as blocks are in the order in which they run. In another order the flagged row, or the second
//! one, may be in a block that seldom runs, and the breakpoint is never hit.
//!
//! # Idea
//!
//! A row may say that a prologue ends at "one (of possibly many)" places where execution should stop for a breakpoint
//! at the entry. So where the flag is not in the [entry block](EntryBlock), which each entry runs through, there is one
//! more: on the row in which the source changes first (clang would have put it there), else at the last instruction
//! that is certainly reached, where registers were saved. It says nothing else: the row names the place that is in
//! effect there, and is no statement unless it was one.
//!
//! Line programs that never have the flag (gcc's) do not get it: gdb stops at the entry of such functions.

use std::ops::Range;

use super::Row;
use crate::map::EntryBlock;

/// Says where the prologue ends of a function that begins in these rows, if no row of its entry block says so.
/// `says_prologues`: whether the program has this flag at all.
pub(super) fn mark(rows: &mut Vec<Row>, block: &EntryBlock, says_prologues: bool) {
    let behind = |address| rows.partition_point(|r| r.address <= address);
    let begin = rows.partition_point(|r| r.address < block.start);
    let (end, sure) = (behind(block.last), behind(block.sure));
    let Some(entry) = behind(block.start).checked_sub(1) else {
        return;
    };
    let (Some(first), Some(inside)) = (rows.get(entry).copied(), rows.get(begin..end)) else {
        return;
    };
    if !says_prologues || inside.iter().any(|r| r.prologue_end) {
        return;
    }
    let mut before = first;
    let mut changes = None;
    for (i, row) in effective(rows, entry + 1..sure) {
        if row.line != 0 && !row.same_place(&before) {
            changes = Some(i);
            break;
        }
        before = *row;
    }
    let (at, address) = match changes {
        Some(i) => (i, None),
        // Debuggers pass over code without a line, to what may be another block.
        None if before.line == 0 => (entry, Some(block.start)),
        None => (sure.saturating_sub(1), Some(block.sure)),
    };
    let Some(row) = rows.get_mut(at).filter(|r| r.line != 0) else {
        return;
    };
    match address.filter(|address| *address != row.address) {
        None => row.prologue_end = true,
        Some(address) => {
            let row = row.synthetic(address);
            let prologue_end = true;
            rows.insert(
                at + 1,
                Row {
                    prologue_end,
                    ..row
                },
            );
        }
    }
}

/// The rows of a part that cover something, of those at one address the last, with their indexes.
fn effective(rows: &[Row], part: Range<usize>) -> impl Iterator<Item = (usize, &Row)> {
    let covers = |i: usize, row: &Row| {
        rows.get(i + 1)
            .is_none_or(|next| next.address > row.address)
    };
    let inside = rows.iter().enumerate().take(part.end).skip(part.start);
    inside.filter(move |(i, row)| covers(*i, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: u64, line: u32, prologue_end: bool) -> Row {
        Row {
            prologue_end,
            ..crate::line::row(address, line)
        }
    }

    /// Addresses and lines of rows that say so, once a block from 0x10 to a call and a branch was marked.
    fn ends(
        mut rows: Vec<Row>,
        sure: u64,
        last: u64,
        says_prologues: bool,
    ) -> Vec<(u64, u32, bool)> {
        let start = 0x10;
        let before = rows.clone();
        mark(&mut rows, &EntryBlock { start, sure, last }, says_prologues);
        assert!(rows.is_sorted_by_key(|r| r.address));
        // Nothing else changed.
        let mut without = rows.clone();
        for row in &mut without {
            row.prologue_end &= before.contains(row);
        }
        without.retain(|r| before.contains(r));
        assert_eq!(without, before);
        let all = rows.iter().filter(|r| r.prologue_end);
        all.map(|r| (r.address, r.line, r.is_stmt)).collect()
    }

    #[test]
    fn a_row_in_the_entry_block_is_enough() {
        let rows = vec![
            row(0x10, 9, false),
            row(0x18, 14, true),
            row(0x30, 35, false),
        ];
        assert_eq!(ends(rows, 0x20, 0x20, true), [(0x18, 14, true)]);
        // The entry has no prologue.
        let rows = vec![row(0x10, 9, true), row(0x30, 35, false)];
        assert_eq!(ends(rows, 0x20, 0x20, true), [(0x10, 9, true)]);
        // It is behind a call.
        let rows = vec![row(0x10, 9, false), row(0x18, 14, true)];
        assert_eq!(ends(rows, 0x14, 0x20, true), [(0x18, 14, true)]);
    }

    #[test]
    fn registers_are_saved_where_no_row_of_the_entry_block_begins() {
        let rows = vec![
            row(0x10, 9, false),
            row(0x28, 35, false),
            row(0x40, 14, true),
        ];
        let found = ends(rows.clone(), 0x20, 0x20, true);
        assert_eq!(found, [(0x20, 9, false), (0x40, 14, true)]);
        // From the call control may not return.
        let found = ends(rows, 0x14, 0x20, true);
        assert_eq!(found, [(0x14, 9, false), (0x40, 14, true)]);
    }

    #[test]
    fn the_first_change_of_source_is_taken() {
        let rows = vec![
            row(0x10, 9, false),
            row(0x14, 0, false),
            row(0x18, 12, false),
            row(0x1c, 13, false),
            row(0x40, 14, true),
        ];
        let found = ends(rows, 0x20, 0x20, true);
        assert_eq!(found, [(0x18, 12, true), (0x40, 14, true)]);
    }

    #[test]
    fn debuggers_do_not_pass_over_code_without_a_line_to_another_block() {
        let rows = vec![
            row(0x10, 9, false),
            row(0x14, 0, false),
            row(0x40, 14, true),
        ];
        let found = ends(rows, 0x20, 0x20, true);
        assert_eq!(found, [(0x10, 9, true), (0x40, 14, true)]);
        // No line at all.
        let rows = vec![row(0x10, 0, false), row(0x40, 14, true)];
        assert_eq!(ends(rows, 0x20, 0x20, true), [(0x40, 14, true)]);
    }

    #[test]
    fn programs_without_the_flag_do_not_get_it() {
        let rows = vec![row(0x10, 9, false), row(0x28, 35, false)];
        assert_eq!(ends(rows, 0x20, 0x20, false), []);
    }

    #[test]
    fn of_rows_at_one_address_the_last_counts() {
        let rows = vec![
            row(0x10, 9, false),
            row(0x18, 12, false),
            row(0x18, 9, false),
            row(0x20, 9, false),
            row(0x40, 14, true),
        ];
        let found = ends(rows, 0x20, 0x20, true);
        assert_eq!(found, [(0x20, 9, true), (0x40, 14, true)]);
    }

    #[test]
    fn code_without_rows_gets_none() {
        assert_eq!(ends(vec![], 0x20, 0x20, true), []);
        assert_eq!(ends(vec![row(0x11, 9, false)], 0x20, 0x20, true), []);
    }
}
