//! What indirect jumps may go to: tables found by the code before a jump, or by what the function forms.

use postlink_isa::{Anchor, Flow, Insn, TableInPlace};

use crate::discover::Program;

/// The straight code `first..=k` with what comes before the only branch that leads there, if nothing else
/// does: the check of an index may be before it. The piece begins with instruction `from`; `alone` says that
/// control does not come to an address in another way.
pub(super) fn along_branch(
    insns: &[Insn],
    from: usize,
    first: usize,
    k: usize,
    leaders: &[u64],
    alone: impl Fn(u64) -> bool,
) -> Option<Vec<Insn>> {
    let start = insns[first].addr;
    let falls = |i: usize| {
        matches!(
            insns[i].flow,
            Flow::Next
                | Flow::CondJump { .. }
                | Flow::ShortCond { .. }
                | Flow::Call { .. }
                | Flow::IndirectCall
        )
    };
    if first == 0 || first > from && falls(first - 1) || !alone(start) {
        return None;
    }
    let mut branches = (0..insns.len()).filter(|i| match insns[*i].flow {
        Flow::CondJump { target, .. } | Flow::ShortCond { target } | Flow::Jump { target } => {
            target == start
        }
        _ => false,
    });
    let branch = branches.next().filter(|_| branches.next().is_none())?;
    let mut begin = branch;
    while begin > 0
        && branch - begin < 24
        && leaders.binary_search(&insns[begin].addr).is_err()
        && insns[begin - 1].end() == insns[begin].addr
        && matches!(
            insns[begin - 1].flow,
            Flow::Next | Flow::CondJump { .. } | Flow::ShortCond { .. }
        )
    {
        begin -= 1;
    }
    Some([&insns[begin..=branch], &insns[first..=k]].concat())
}

/// Targets of a table of distances from an anchor. If the table's address is not in sight of the jump,
/// whatever the function forms in that register may be it, if all its entries lead into the function. Without
/// a bound check the table ends before the first entry that leads elsewhere; a little too much does no harm.
pub(super) fn anchored(
    program: &Program<'_>,
    a: &Anchor,
    formed: &[(u8, u64)],
    ranges: &[(u64, u64)],
) -> Vec<u64> {
    const MANY: u32 = 4096;
    let limit = match (a.count, a.bytes) {
        (Some(count), _) => count.min(MANY),
        (None, 1) => 256,
        _ => MANY,
    };
    let inside = |target: u64| ranges.iter().any(|r| target >= r.0 && target < r.1);
    let bounded = a.count.is_some();
    // Unreachable entries may lead to the end.
    let right = |t: &Vec<u64>| {
        t.len() == limit as usize
            && t.iter()
                .all(|to| inside(*to) || ranges.iter().any(|r| r.1 == *to))
    };
    let tables = |near: bool| -> Vec<Vec<u64>> {
        let candidates: Vec<u64> = match a.table {
            Some(t) => vec![t],
            None => formed
                .iter()
                .filter(|f| !near || f.0 == a.register)
                .map(|f| f.1)
                .collect(),
        };
        candidates
            .iter()
            .map(|table| distances(program, a, *table, limit))
            .collect()
    };
    let mut found = tables(true);
    if bounded && !found.iter().any(right) {
        // It may have been formed in another register, and have lain on the stack.
        let far = tables(false);
        if far.iter().any(right) {
            found = far;
        }
    }
    let some = bounded && found.iter().any(right);
    found
        .iter()
        .filter(|t| !some || right(t))
        .flat_map(|t| t.iter().copied().take_while(|to| bounded || inside(*to)))
        .filter(|to| inside(*to))
        .collect()
}

/// Targets of a table that stays where it is, and whose entries are addresses or count from itself. If its address is
/// not in sight of the jump, whatever the function forms in that register may be it. Without a bound check it ends
/// before the first entry that leads elsewhere.
pub(super) fn in_place(
    program: &Program<'_>,
    t: &TableInPlace,
    formed: &[(u8, u64)],
    ranges: &[(u64, u64)],
) -> Vec<u64> {
    const MANY: u32 = 4096;
    let limit = u64::from(t.count.unwrap_or(MANY).min(MANY));
    let width = u64::from(t.bytes);
    let pointers = &program.refs.pointers;
    let entry = |table: u64, i: u64| {
        let place = table.checked_add(i * width)?;
        if width == 4 {
            let distance = program.elf.bytes_at(place, 4)?.first_chunk::<4>()?;
            let distance = i32::from_le_bytes(*distance);
            return Some(table.wrapping_add_signed(distance.into()));
        }
        // The loader makes addresses of a program that is not at a fixed one.
        let at = pointers.binary_search_by_key(&place, |p| p.place);
        match at.ok().and_then(|at| pointers.get(at)) {
            Some(pointer) => Some(pointer.target),
            None if program.refs.fixed => program.elf.u64_at(place),
            None => None,
        }
    };
    let inside = |to: &u64| ranges.iter().any(|r| *to >= r.0 && *to < r.1);
    let of_register = || {
        let held = formed.iter().filter(|f| f.0 == t.register);
        held.map(|f| f.1).collect()
    };
    let tables: Vec<u64> = t.table.map_or_else(of_register, |table| vec![table]);
    let entries = tables.iter().flat_map(|table| {
        let all = (0..limit).map_while(|i| entry(*table, i));
        all.take_while(|to| t.count.is_some() || inside(to))
    });
    entries.filter(|to| inside(to)).collect()
}

/// Where the first entries of a table of distances lead.
fn distances(program: &Program<'_>, a: &Anchor, table: u64, limit: u32) -> Vec<u64> {
    let bytes = u64::from(a.bytes);
    let mut targets = Vec::new();
    for i in 0..u64::from(limit) {
        let Some(entry) = table
            .checked_add(i * bytes)
            .and_then(|at| program.elf.bytes_at(at, bytes))
        else {
            break;
        };
        let value = match (entry, a.signed) {
            (&[b], true) => i64::from(b as i8),
            (&[b], false) => i64::from(b),
            (&[b, c], true) => i64::from(i16::from_le_bytes([b, c])),
            (&[b, c], false) => i64::from(u16::from_le_bytes([b, c])),
            (&[b, c, d, e], true) => i64::from(i32::from_le_bytes([b, c, d, e])),
            (&[b, c, d, e], false) => i64::from(u32::from_le_bytes([b, c, d, e])),
            _ => break,
        };
        targets.push(a.anchor.wrapping_add_signed(value << (a.shift & 7)));
    }
    targets
}

/// Targets of a table of absolute addresses: the run of pointers to this function at `table`, or after it
/// where the index does not begin at zero.
pub(super) fn absolute_table(program: &Program<'_>, table: u64, ranges: &[(u64, u64)]) -> Vec<u64> {
    const FAR: u64 = 8 * 4096;
    let p = &program.refs.pointers;
    let inside = |a: u64| ranges.iter().any(|r| a >= r.0 && a < r.1);
    let from = p.partition_point(|x| x.place < table);
    let near = p[from..].iter().take_while(|x| x.place - table < FAR);
    let Some(skip) = near
        .into_iter()
        .position(|x| (x.place - table).is_multiple_of(8) && inside(x.target))
    else {
        return Vec::new();
    };
    let mut at = p[from + skip].place;
    let mut next = from + skip;
    let mut targets = Vec::new();
    loop {
        match p.get(next).filter(|x| x.place == at) {
            Some(x) if inside(x.target) => targets.push(x.target),
            // Unreachable cases lead to the function's end, which is no place in it.
            _ if program
                .elf
                .u64_at(at)
                .is_some_and(|w| ranges.iter().any(|r| r.1 == w)) => {}
            _ => return targets,
        }
        next += usize::from(p.get(next).is_some_and(|x| x.place == at));
        at += 8;
    }
}
