//! Where the indirect jumps of a function go.
//!
//! The straight-line code before a jump shows how its target is computed ([`JumpShape`]). A jump whose table
//! is not in sight may use any of the function's tables. A function is not understood if a table is left that
//! no jump is seen to use (it may be read relative to something else), or a place in the code whose address
//! is formed and that no table counts from.

use postlink_isa::{Anchor, Flow, Insn, Isa, JumpShape, Reach, TableInPlace};
use rustc_hash::FxHashMap;

use super::build::{FunctionCode, RelativeTable};
use super::explained::JumpReason;
use super::own_tables::OwnTable;
use super::targets::{absolute_table, along_branch, anchored, in_place};
use crate::pin::Pin;

/// More instructions than this before a jump are not looked at.
const PATH: usize = 24;

/// The indirect jumps of a function.
#[derive(Default)]
pub(super) struct IndirectJumps {
    /// Different lists of targets, each ascending.
    pub dispatches: Vec<Vec<u64>>,
    /// By address of the jump: its list, if it stays in the function, and whether it may leave it.
    pub by_address: FxHashMap<u64, (Option<u32>, bool)>,
    /// Targets of tables that count from a place in the code, ascending.
    pub anchored_targets: Vec<u64>,
    /// Jumps through tables of their own: they do not lead to old addresses.
    pub own: Vec<u64>,
    /// Where the linker kept no relocations: jumps in whose sight an entry of a table is loaded.
    pub through_tables: Vec<u64>,
}

/// Why the indirect jumps of a function are not understood.
pub(super) struct Unresolved {
    pub pin: Pin,
    /// The jump for which that is so, or a table that none is seen to use, and why.
    pub jump: Option<(u64, JumpReason)>,
}

impl From<Pin> for Unresolved {
    fn from(pin: Pin) -> Self {
        Unresolved { pin, jump: None }
    }
}

/// Finds the targets of all indirect jumps. `leaders` are those known so far, ascending.
pub(super) fn resolve<I: Isa>(
    code: &FunctionCode<'_, '_>,
    (tables, own_tables): (&[RelativeTable], &[OwnTable]),
    leaders: &[u64],
) -> Result<IndirectJumps, Unresolved> {
    if own_tables.is_empty() && !code.seen.anchors && !code.seen.indirect_jumps {
        return match tables.first() {
            None => Ok(IndirectJumps::default()),
            Some(unused) => Err(without_jump(unused)),
        };
    }
    let anchors: Vec<(u64, bool)> = code
        .insns
        .iter()
        .filter_map(|i| code.anchor(i))
        .map(|anchor| (anchor, false))
        .collect();
    let jumps = |i: &Insn| i.flow == Flow::IndirectJump;
    let in_place = !code.program.refs.kept && code.insns.iter().any(jumps);
    let formed = if anchors.is_empty() && !in_place {
        Vec::new()
    } else {
        I::formed(code.insns, |i| code.bytes(i))
    };
    let mut resolver = Resolver {
        code,
        tables,
        leaders,
        claimed: vec![false; tables.len()],
        anchors,
        formed,
        own_tables,
        found: IndirectJumps::default(),
    };
    for table in own_tables {
        let inside = table.entries.iter().filter(|e| e.inside);
        let mut targets: Vec<u64> = inside.map(|e| e.target).collect();
        targets.sort_unstable();
        targets.dedup();
        let leaves = table.guarded || table.entries.iter().any(|e| !e.inside);
        let jump = (Some(resolver.dispatch(targets)), leaves);
        resolver.found.by_address.insert(table.jump, jump);
        resolver.found.own.push(table.jump);
    }
    for &(from, to) in code.pieces {
        for k in from..to {
            if code.insns[k].flow == Flow::IndirectJump {
                let at = code.insns[k].addr;
                let unresolved = |(pin, reason)| Unresolved {
                    pin,
                    jump: Some((at, reason)),
                };
                resolver.jump::<I>(from, k).map_err(unresolved)?;
            }
        }
    }
    if let Some(unused) = resolver.claimed.iter().position(|claimed| !claimed) {
        return Err(without_jump(&tables[unused]));
    }
    if code.program.refs.kept && resolver.anchors.iter().any(|a| !a.1) {
        return Err(Pin::AddressOfItsInsideTaken.into());
    }
    let mut found = resolver.found;
    found.anchored_targets.sort_unstable();
    found.anchored_targets.dedup();
    Ok(found)
}

/// No jump is seen to use a table.
fn without_jump(table: &RelativeTable) -> Unresolved {
    Unresolved {
        pin: Pin::UnknownIndirectJump,
        jump: Some((table.base, JumpReason::TableWithoutJump)),
    }
}

struct Resolver<'a, 'd> {
    code: &'a FunctionCode<'a, 'd>,
    tables: &'a [RelativeTable],
    leaders: &'a [u64],
    /// By table: a jump uses it.
    claimed: Vec<bool>,
    /// Places in the code whose address is formed, and whether a table counts from them.
    anchors: Vec<(u64, bool)>,
    /// Addresses that registers may hold.
    formed: Vec<(u8, u64)>,
    own_tables: &'a [OwnTable],
    found: IndirectJumps,
}

impl Resolver<'_, '_> {
    /// Instruction `k` is an indirect jump, in the piece that begins with instruction `from`.
    fn jump<I: Isa>(&mut self, from: usize, k: usize) -> Result<(), (Pin, JumpReason)> {
        let code = self.code;
        let insn = code.insns[k];
        if self.found.by_address.contains_key(&insn.addr) {
            return Ok(());
        }
        let imports = &code.program.imports;
        let imported = insn.field.is_some_and(|x| imports.contains_key(&x.target));
        let no_tables = !code.program.refs.kept && self.anchors.is_empty()
            || self.tables.is_empty() && code.function.labels.is_empty() && self.anchors.is_empty();
        let kept = code.program.refs.kept;
        if imported || kept && no_tables {
            self.found.by_address.insert(insn.addr, (None, true));
            return Ok(());
        }
        let shape = self.shape::<I>(from, k);
        if !kept {
            if shape != JumpShape::Unknown {
                self.found.through_tables.push(insn.addr);
            }
            let jump = match shape {
                JumpShape::Anchored(a) if !no_tables => {
                    let all = anchored(code.program, &a, &self.formed, &code.ranges);
                    self.arrivals::<I>(all, a.count.is_some())
                }
                JumpShape::Relative { .. } | JumpShape::Absolute { .. } | JumpShape::Unknown
                    if !code.program.is_far::<I>(insn.addr) =>
                {
                    match self.table_in_place::<I>(from, k) {
                        Some(t) => {
                            let all = in_place(code.program, &t, &self.formed, &code.ranges);
                            self.found.through_tables.push(insn.addr);
                            self.arrivals::<I>(all, t.count.is_some())
                        }
                        None => (None, true),
                    }
                }
                _ => (None, true),
            };
            self.found.by_address.insert(insn.addr, jump);
            return Ok(());
        }
        let (mut targets, leaves) = self.targets(shape)?;
        targets.sort_unstable();
        targets.dedup();
        let jump = if targets.is_empty() {
            (None, true)
        } else {
            (Some(self.dispatch(targets)), leaves)
        };
        self.found.by_address.insert(insn.addr, jump);
        Ok(())
    }

    /// The number of a list of targets.
    fn dispatch(&mut self, targets: Vec<u64>) -> u32 {
        let known = &mut self.found.dispatches;
        let at = known.iter().position(|d| *d == targets);
        let at = at.unwrap_or_else(|| {
            known.push(targets);
            known.len() - 1
        });
        at as u32
    }

    /// How a jump computes its target.
    fn shape<I: Isa>(&self, from: usize, k: usize) -> JumpShape {
        let code = self.code;
        let bytes = |i: &Insn| code.bytes(i);
        let first = self.straight_line(from, k);
        match I::jump_shape(&code.insns[first..=k], bytes) {
            JumpShape::Anchored(a) if a.count.is_none() => {
                let path = self.along_branch(from, first, k);
                path.map_or(JumpShape::Anchored(a), |path| I::jump_shape(&path, bytes))
            }
            shape => shape,
        }
    }

    /// The table of a jump that stays as it is, without counting from a place in the code.
    fn table_in_place<I: Isa>(&self, from: usize, k: usize) -> Option<TableInPlace> {
        let code = self.code;
        let bytes = |i: &Insn| code.bytes(i);
        let first = self.straight_line(from, k);
        let table = I::table_in_place(&code.insns[first..=k], bytes)?;
        let longer = || I::table_in_place(&self.along_branch(from, first, k)?, bytes);
        match table.count {
            Some(_) => Some(table),
            None => longer().or(Some(table)),
        }
    }

    /// The straight code `first..=k` with what is before the only branch that leads there.
    fn along_branch(&self, from: usize, first: usize, k: usize) -> Option<Vec<Insn>> {
        let (code, f) = (self.code, self.code.function);
        let alone = |at: u64| {
            !f.entries.contains(&at) && !f.labels.contains(&at) && !code.landing_pads.contains(&at)
        };
        along_branch(code.insns, from, first, k, self.leaders, alone)
    }

    /// The first instruction of the straight-line code before instruction `k`, back to where control may come in.
    fn straight_line(&self, from: usize, k: usize) -> usize {
        let insns = self.code.insns;
        let mut first = k;
        while first > from
            && k - first < PATH
            && self.leaders.binary_search(&insns[first].addr).is_err()
            && matches!(
                insns[first - 1].flow,
                Flow::Next | Flow::CondJump { .. } | Flow::ShortCond { .. }
            )
        {
            first -= 1;
        }
        first
    }

    /// The targets of a jump, in any order, and whether it may go elsewhere as well.
    fn targets(&mut self, shape: JumpShape) -> Result<(Vec<u64>, bool), (Pin, JumpReason)> {
        let unknown = |reason| (Pin::UnknownIndirectJump, reason);
        let (code, tables) = (self.code, self.tables);
        let labels = &code.function.labels;
        let of_all_tables = || tables.iter().flat_map(RelativeTable::targets);
        match shape {
            JumpShape::Relative {
                table: Some(base),
                width,
            } => {
                let refs = &code.program.refs;
                let known = |t: &RelativeTable| {
                    t.base == base && refs.relative_width(base) == Some(u64::from(width))
                };
                let at = tables.iter().position(known);
                let at = at.ok_or(unknown(JumpReason::TableNotDescribed))?;
                self.claimed[at] = true;
                Ok((tables[at].targets().collect(), false))
            }
            JumpShape::Relative { table: None, .. } if tables.is_empty() => {
                Err(unknown(JumpReason::BaseUnknown))
            }
            JumpShape::Relative { table: None, .. } => {
                self.claimed.fill(true);
                Ok((of_all_tables().collect(), false))
            }
            JumpShape::Absolute { table: Some(table) } => {
                let list = absolute_table(code.program, table, &code.ranges);
                let leaves = list.is_empty();
                Ok((list, leaves))
            }
            JumpShape::Absolute { table: None } => Ok((labels.clone(), labels.is_empty())),
            JumpShape::Anchored(a) => self.anchored_targets(&a),
            JumpShape::Unknown => {
                let mut all = labels.clone();
                all.extend(of_all_tables());
                Ok((all, true))
            }
        }
    }

    /// A jump through a table that stays as it is, with these targets in the function, where the linker kept no
    /// relocations: its number, and whether it may go on in old code. It does so at targets that do not begin an
    /// instruction, or whose old code something reads, and where no check of the index is in sight.
    fn arrivals<I: Isa>(&mut self, mut all: Vec<u64>, bounded: bool) -> (Option<u32>, bool) {
        let program = self.code.program;
        all.sort_unstable();
        all.dedup();
        let fits = |at: &u64| {
            self.code.insn_at(*at).is_some_and(|first| {
                // The jump may be after a landing pad.
                let pad = u64::from(first.len) * u64::from(first.traits.landing_pad);
                let end = at + I::jump_len(Reach::Long) as u64 + pad;
                // Nothing enters what is encoded again.
                let inside = self.own_tables.iter().any(|t| t.is_inside(*at));
                !inside && !program.entry_proof.may_be_read(*at, end)
            })
        };
        let count = all.len();
        all.retain(fits);
        if all.is_empty() {
            return (None, true);
        }
        let leaves = !bounded || all.len() < count;
        self.found.anchored_targets.extend_from_slice(&all);
        (Some(self.dispatch(all)), leaves)
    }

    /// The targets of a table that counts from a place in the code.
    fn anchored_targets(&mut self, a: &Anchor) -> Result<(Vec<u64>, bool), (Pin, JumpReason)> {
        let used = self.anchors.iter_mut().filter(|x| x.0 == a.anchor);
        used.for_each(|x| x.1 = true);
        let targets = anchored(self.code.program, a, &self.formed, &self.code.ranges);
        if targets.is_empty() {
            return Err((Pin::UnknownIndirectJump, JumpReason::NoTarget));
        }
        self.found.anchored_targets.extend_from_slice(&targets);
        Ok((targets, false))
    }
}
