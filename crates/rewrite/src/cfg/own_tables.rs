//! Jump tables of its own for new code, where the linker kept no relocations.
//!
//! Then no table of the input changes: how long one is, and who else reads it, is not known. An indirect jump that is
//! copied as it is goes through the old table, into old code. But the load of the table's entry can read another table,
//! in new memory, that is read by this load alone: the copied instruction gets another displacement, nothing else in it
//! or around it changes, and registers hold what they held, up to the loaded entry and the target that is made of it.
//!
//! | shape | instructions | table `T`, base `b` |
//! |---|---|---|
//! | distances | `movsxd r,[B+I*4+d]`; `add r,B'` or `add B',r`; `jmp` | `T = B + d`, `b = B'` |
//! | addresses (fixed-address programs) | `jmp [B+I*8+d]`; `jmp [d+I*8]`; the same with `mov r,…`; `jmp r` | `T = B + d` |
//!
//! On AArch64 no load has a displacement beside an index, and entries may be too narrow for where new code is. There
//! the straight code up to the jump is encoded again as a whole ([`TableJump`]): it forms the address of a new table of
//! words that count from that table, in registers that it overwrites anyhow. Then these hold something else behind the
//! jump, so every entry has to lead into the function, to code that does not read them, and there is no guard.
//!
//! Labels (addresses in a table) are loaded by one instruction there, and it may be far from the jump. It becomes two
//! or three that read a table in new memory, of addresses, or of words that count from the old table where the
//! program is not at a fixed address ([`LabelLoad::Formed`]). That overwrites no register but the loaded one. A label
//! that is loaded over its index takes another register, one of linkers' stubs ([`LabelLoad::Scratch`]), which must be
//! dead there. Cheaper is it to form another table's address in the first place ([`super::own_bases`]). A mask may be
//! wider than the table is long: each entry that is no label leads to code that loads it from the old table and jumps
//! ([`Fallback`]), so an entry too many does no harm there either.
//!
//! A table's address that was on the stack is no constant. But where all other loads of labels of the function read one
//! table, such a load reads that one, too: in front of it its base is compared with that table's address, and where it
//! is another, the old load goes on ([`OwnTable::base_guard`]).
//!
//! `B` and `B'` must be constants, and how large `I` may be must be known, by data flow over the function
//! ([`super::values`]). An index that nothing bounds is compared in front of the load with the last entry of those that
//! lead into the function, and where it is above, the old load goes on. So is one whose type alone bounds it, where
//! one of that many entries leads to what an old entry may overwrite. An entry of the table leads to the new
//! code of its target, or to the old one, as far as it was, if that is no instruction of the function. So an entry too
//! many does no harm.
//!
//! The edges of a table are part of the data flow that bounds its index and that of others. So tables are assumed, data
//! flow says what they are, and that is repeated until it says what was assumed.

use postlink_isa::{Code, Flow, Insn, Isa, LabelLoad, RegSet, Sets, TableJump, TableLoad, Values};
use rustc_hash::{FxHashMap, FxHashSet};

use super::build::FunctionCode;
use super::explained::JumpReason;
use super::own_bases::{self, OwnBase};
use super::values::{State, What};

/// More entries than this no table has.
const ENTRIES: u64 = 4096;
/// How often data flow is repeated.
const ROUNDS: usize = 8;
/// How often what changes at a place is taken in before it is given up.
const OFTEN: u32 = 24;
/// In a program of this size the words of a table that counts from itself reach everything.
const REACH: u64 = 1 << 30;
/// Between a load of a label and its jump are not more instructions.
const BETWEEN: usize = 60;
/// A jump through a table that is encoded again has no more instructions than this.
const LONGEST: usize = 6;
/// A jump table of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnTable {
    /// Address of the instruction that loads an entry (or jumps to it); of the first of those that are encoded again.
    pub load: u64,
    /// Its length; of all that are encoded again, up to the jump.
    pub len: u8,
    /// Address of the jump.
    pub jump: u64,
    /// The register with the index.
    pub index: u8,
    /// The load's displacement.
    pub disp: u64,
    /// Bytes of the load in front of its displacement.
    pub lead: u8,
    /// The old table.
    pub table: u64,
    /// What its entries are added to; 0 for addresses.
    pub base: u64,
    /// Bytes of an entry of its own: 4, or 8 for addresses.
    pub width: u8,
    /// Its own entries count from itself, and all that leads to the jump is encoded again ([`TableJump`]).
    pub relative: bool,
    /// It is of labels that no load with another displacement reads; how it is read.
    pub labels: Option<LabelLoad>,
    /// A register of linkers' stubs that is dead behind the load; where labels are loaded so.
    pub scratch: Option<u8>,
    /// What its entries lead to where an index is of no label, if there are such.
    pub fallback: Option<Fallback>,
    /// Nothing bounds the index: it is compared with the last entry. Or the base is not known: it is compared with the
    /// old table's address.
    pub guarded: bool,
    /// The register with the base, if it is compared.
    pub base_guard: Option<u8>,
    /// Its entries.
    pub entries: Vec<OwnEntry>,
}

/// New code that loads an entry of the old table, and jumps to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The register that it is loaded into.
    pub to: u8,
    /// A register that holds another table's address, and gets the old one's.
    pub base: Option<u8>,
}

/// An entry of such a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnEntry {
    /// As the old table has it.
    pub stored: u64,
    /// Where that leads.
    pub target: u64,
    /// That is a place of the function which a jump may lead to.
    pub inside: bool,
    /// The block there, if it is.
    pub block: Option<super::graph::BlockId>,
}

impl OwnTable {
    /// Bytes of the whole table.
    pub fn size(&self) -> u64 {
        self.entries.len() as u64 * u64::from(self.width)
    }

    /// Whether an entry of the old table, which is of labels, is there.
    pub fn holds(&self, place: u64) -> bool {
        let distance = place.wrapping_sub(self.table);
        self.is_of_labels()
            && distance.is_multiple_of(8)
            && distance / 8 < self.entries.len() as u64
    }

    /// Whether the old table is of addresses.
    pub fn is_of_labels(&self) -> bool {
        self.labels.is_some() || self.width == 8
    }

    /// What its own entries count from, where it is at `own`; 0 for addresses.
    pub fn counts_from(&self, own: u64) -> u64 {
        match self.labels {
            _ if self.width == 8 => 0,
            Some(LabelLoad::Formed) => self.table,
            Some(LabelLoad::Based | LabelLoad::Scratch(_)) => own,
            None if self.relative => own,
            None => self.base,
        }
    }

    /// Whether it may be in the place of another one of the function's.
    pub fn is_same(&self, other: &OwnTable) -> bool {
        // What entries count from, but for where the table is.
        let key = |t: &OwnTable| (t.table, t.counts_from(0), t.width, t.fallback);
        let of_labels = self.labels.is_some() && other.labels.is_some();
        of_labels && key(self) == key(other) && self.entries == other.entries
    }

    /// Whether the jump may go on in old code.
    pub fn leaves(&self) -> bool {
        self.guarded || self.entries.iter().any(|e| e.block.is_none())
    }

    /// Whether an instruction is behind the first of those that are encoded again as a whole: nothing can be put there.
    pub fn is_inside(&self, at: u64) -> bool {
        self.relative && self.load < at && at <= self.jump
    }
}

/// What reads a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A load that gets another displacement.
    Load(TableLoad),
    /// Straight code that begins there and is encoded again.
    Jump(TableJump),
}

impl Form {
    /// Bytes of an entry of the old table.
    fn width(&self) -> u64 {
        match self {
            Form::Load(load) => load.width.into(),
            Form::Jump(jump) => jump.width.into(),
        }
    }

    /// Where an entry leads.
    fn target(&self, base: u64, stored: u64) -> u64 {
        match self {
            Form::Load(load) if load.width == 8 => stored,
            Form::Load(_) => base.wrapping_add_signed(i64::from(stored as u32 as i32)),
            Form::Jump(jump) => {
                let unused = 64 - 8 * u32::from(jump.width).min(8);
                let value = if jump.signed {
                    (stored << unused) as i64 >> unused
                } else {
                    stored as i64
                };
                base.wrapping_add_signed(value << jump.shift.min(63))
            }
        }
    }
}

/// Finds the tables of a function's indirect jumps.
pub(super) fn find<I: Isa>(code: &FunctionCode<'_, '_>) -> (Vec<OwnTable>, Vec<OwnBase>) {
    let nothing = || (Vec::new(), Vec::new());
    let jumps = |i: &Insn| i.flow == Flow::IndirectJump;
    if code.program.refs.kept || !code.insns.iter().any(jumps) {
        return nothing();
    }
    let mut loads = loads::<I>(code);
    if loads.is_empty() {
        return nothing();
    }
    let tables = settled::<I>(code, loads.clone());
    // Where other code may read the table's address, what forms it stays.
    let found = |k: usize| tables.iter().any(|t| t.load == code.insns[k].addr);
    let mut changed = false;
    for (k, form) in &mut loads {
        if let Form::Jump(jump) = *form
            && jump.table.is_some()
            && !found(*k)
            && let Some(shorter) =
                table_jump::<I>(code, *k + usize::from(jump.count) - 1, *k, false)
        {
            (*k, *form) = shorter;
            changed = true;
        }
    }
    let mut tables = if changed {
        settled::<I>(code, loads.clone())
    } else {
        tables
    };
    // What cannot be loaded is not found any more, so others may not be either.
    loop {
        let bases = own_bases::find::<I>(code, &loads, &mut tables);
        // Of two loads that lead to one jump, both read the same.
        let differs = |t: &OwnTable| {
            let mut same_jump = tables.iter().filter(|other| other.jump == t.jump);
            t.labels.is_some() && same_jump.any(|other| !other.is_same(t))
        };
        let lost: FxHashSet<u64> = tables
            .iter()
            .filter(|t| !is_loaded::<I>(code, t) || differs(t))
            .map(|t| t.load)
            .collect();
        // Where a jump goes on in old code, control comes back at labels, where nothing is known.
        let is_own = |i: &Insn| tables.iter().any(|t| t.jump == i.addr);
        let labels = tables.iter().any(|t| t.labels.is_some());
        if lost.is_empty() && labels && code.insns.iter().any(|i| jumps(i) && !is_own(i)) {
            loads.retain(|l| l.1.width() != 8);
            return (settled::<I>(code, loads), Vec::new());
        }
        if lost.is_empty() {
            return (tables, bases);
        }
        loads.retain(|l| !lost.contains(&code.insns[l.0].addr));
        tables = settled::<I>(code, loads.clone());
    }
}

/// What may load an entry of a table, or is straight code that goes through one.
fn loads<I: Isa>(code: &FunctionCode<'_, '_>) -> Vec<(usize, Form)> {
    let of_labels = code.program.refs.fixed || I::HAS_LABEL_LOADS && is_near(code);
    let mut loads: Vec<(usize, Form)> = (0..code.insns.len())
        .filter_map(|k| {
            let insn = &code.insns[k];
            let may = matches!(insn.flow, Flow::Next | Flow::IndirectJump);
            let load = I::table_load(code.bytes(insn), insn).filter(|_| may)?;
            // The loader makes addresses of a program that is not at a fixed one.
            (load.width == 4 && load.to.is_some() || load.width == 8 && of_labels)
                .then_some((k, Form::Load(load)))
        })
        .collect();
    loads.extend(table_jumps::<I>(code));
    loads
}

/// Why indirect jumps have no table of their own: by address of the jump, ascending.
pub(super) fn reasons<I: Isa>(
    code: &FunctionCode<'_, '_>,
    tables: &[OwnTable],
) -> Vec<(u64, JumpReason)> {
    let mut search = Search::new::<I>(code, loads::<I>(code));
    let edges = search.edges_of(tables);
    let facts = search.flow::<I>(&edges);
    search.edges = edges;
    let is_own = |at: u64| tables.iter().any(|t| t.jump == at);
    let jumps = (0..code.insns.len()).filter(|k| {
        let insn = &code.insns[*k];
        insn.flow == Flow::IndirectJump && !is_own(insn.addr)
    });
    jumps
        .map(|k| (code.insns[k].addr, search.reason::<I>(k, &facts)))
        .collect()
}

/// Whether there is code that loads an entry of a table.
fn is_loaded<I: Isa>(code: &FunctionCode<'_, '_>, table: &OwnTable) -> bool {
    let Some(how) = table.labels else {
        return true;
    };
    let bytes = code.program.elf.bytes_at(table.load, table.len.into());
    let mut unused: Code<()> = Code::default();
    let guarded = table.base_guard.is_some();
    let scratch = matches!(how, LabelLoad::Scratch(_));
    let loads = |bytes| I::put_label_load(&mut unused, bytes, how, table.width == 8, ());
    (scratch || !guarded) && bytes.is_some_and(loads)
}

/// Whether words that count from one place of the file's, or of new memory, reach every other.
fn is_near(code: &FunctionCode<'_, '_>) -> bool {
    let program = code.program;
    let first = program.elf.loads().map(|s| s.addr).min().unwrap_or(0);
    program.new_end.saturating_sub(first) < REACH
}

/// Jumps through tables that may be encoded again, by number of their first instruction.
fn table_jumps<I: Isa>(code: &FunctionCode<'_, '_>) -> Vec<(usize, Form)> {
    if !is_near(code) {
        return Vec::new();
    }
    let jumps = code.pieces.iter().flat_map(|&(from, to)| {
        let all = (from..to).filter(|k| code.insns[*k].flow == Flow::IndirectJump);
        all.map(move |k| (from, k))
    });
    jumps
        .filter_map(|(from, k)| table_jump::<I>(code, k, from, true))
        .collect()
}

/// The same of one, instruction `k`, whose instructions are not in front of instruction `from`.
fn table_jump<I: Isa>(
    code: &FunctionCode<'_, '_>,
    k: usize,
    from: usize,
    forms: bool,
) -> Option<(usize, Form)> {
    let straight = |i: &usize| code.insns[*i].flow == Flow::Next;
    let before = (from..k).rev().take(LONGEST - 1).take_while(straight);
    let first = before.last().unwrap_or(k);
    let jump = I::table_jump(&code.insns[first..=k], |i| code.bytes(i), forms)?;
    let begin = (k + 1).checked_sub(jump.count.into())?;
    Some((begin, Form::Jump(jump)))
}

/// The tables of what reads some.
fn settled<I: Isa>(code: &FunctionCode<'_, '_>, loads: Vec<(usize, Form)>) -> Vec<OwnTable> {
    let mut search = Search::new::<I>(code, loads);
    let mut tables: Vec<OwnTable> = Vec::new();
    for round in 0..ROUNDS {
        let found = search.tables::<I>(&tables);
        let settled = found == tables;
        tables = if round + 1 == ROUNDS {
            // What is found under more assumptions than are left holds.
            let left = |t: &OwnTable| {
                let mut same_jump = found.iter().filter(|other| other.jump == t.jump);
                same_jump.all(|other| tables.contains(other))
            };
            found.iter().filter(|t| left(t)).cloned().collect()
        } else {
            found
        };
        if settled {
            break;
        }
    }
    tables
}

pub(super) struct Search<'a, 'd> {
    code: &'a FunctionCode<'a, 'd>,
    /// Loads of what could be a table's entry, by number of the instruction.
    loads: Vec<(usize, Form)>,
    /// By number of the instruction: what it is of `loads`.
    load_at: FxHashMap<usize, u32>,
    /// By address: the instruction's number.
    index: FxHashMap<u64, usize>,
    /// By number: what it leaves in registers.
    values: Vec<Values>,
    /// By number: what must be looked at from there on with what is known on all ways there.
    is_leader: Vec<bool>,
    /// Where nothing is known.
    entered: Vec<usize>,
    /// By number: a call that does not return.
    is_end: Vec<bool>,
    /// By number: instructions that form the old tables' addresses all the same, as something else reads them.
    pub forms_old: FxHashSet<usize>,
    /// By number of a jump through a table that was found: where it leads.
    edges: FxHashMap<usize, Vec<usize>>,
    /// Registers in which the addresses of other tables are formed, with those of the old ones.
    pub based: FxHashSet<(u8, u64)>,
    /// By number: loads that may read them.
    pub readers: FxHashSet<usize>,
    /// By number: jumps through tables that may lead to old code, with the registers that hold there what they did.
    pub leaving: FxHashMap<usize, u32>,
    /// By number: loads whose bases are compared, and that lead to old code with others.
    pub guarded: FxHashSet<usize>,
}

/// What data flow says of a load.
#[derive(Clone, Copy)]
struct Seen {
    base: Option<u64>,
    most: u64,
}

/// The loads of what a jump goes to, and the base that was added.
#[derive(Clone, Copy)]
struct Through {
    load: u32,
    /// There are two loads of labels that lead to it.
    other: Option<u32>,
    base: u64,
}

impl Through {
    fn loads(self) -> impl Iterator<Item = u32> {
        [Some(self.load), self.other].into_iter().flatten()
    }
}

/// What data flow says of registers that hold the addresses of other tables ([`own_bases`]).
#[derive(Default)]
pub(super) struct Bases {
    /// Additions that form them: instruction, register, the old table.
    pub formed: Vec<(usize, u8, u64)>,
    /// By instruction, loads that read them: whether they do on all ways.
    pub read: FxHashMap<usize, bool>,
    /// Registers of which something else reads what they hold.
    pub spoilt: u32,
    /// Additions right in front of something that reads what they form.
    pub read_otherwise: FxHashSet<usize>,
}

/// What data flow says.
#[derive(Default)]
struct Facts {
    /// By load.
    seen: FxHashMap<u32, Seen>,
    /// By instruction: what a jump goes through, if that is a table.
    jumps: FxHashMap<usize, Option<Through>>,
    /// Loads whose results, or the sums made of them, something else reads.
    spoilt: Vec<u32>,
    bases: Bases,
}

impl<'a, 'd> Search<'a, 'd> {
    pub fn new<I: Isa>(code: &'a FunctionCode<'a, 'd>, loads: Vec<(usize, Form)>) -> Self {
        let insns = code.insns;
        let index: FxHashMap<u64, usize> = (0..insns.len()).map(|k| (insns[k].addr, k)).collect();
        let mut is_leader = vec![false; insns.len()];
        let mut lead = |addr: u64| {
            if let Some(k) = index.get(&addr) {
                is_leader[*k] = true;
            }
        };
        let mut entered: Vec<u64> = vec![code.ranges[0].0];
        entered.extend_from_slice(&code.function.entries);
        entered.extend_from_slice(&code.landing_pads);
        entered.iter().for_each(|a| lead(*a));
        for i in insns {
            if let Flow::Jump { target }
            | Flow::CondJump { target, .. }
            | Flow::ShortCond { target } = i.flow
            {
                lead(target);
                lead(i.end());
            }
        }
        Search {
            load_at: loads.iter().zip(0..).map(|(l, n)| (l.0, n)).collect(),
            loads,
            values: insns.iter().map(|i| I::values(code.bytes(i), i)).collect(),
            is_end: insns
                .iter()
                .map(|i| code.program.calls_no_return::<I>(i))
                .collect(),
            entered: entered
                .iter()
                .filter_map(|a| index.get(a).copied())
                .collect(),
            forms_old: FxHashSet::default(),
            edges: FxHashMap::default(),
            based: FxHashSet::default(),
            readers: FxHashSet::default(),
            leaving: FxHashMap::default(),
            guarded: FxHashSet::default(),
            index,
            is_leader,
            code,
        }
    }

    /// Where jumps through tables lead.
    fn edges_of(&mut self, assumed: &[OwnTable]) -> FxHashMap<usize, Vec<usize>> {
        let mut edges: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for table in assumed {
            let mut to: Vec<usize> = table
                .entries
                .iter()
                .filter(|e| e.inside)
                .filter_map(|e| self.index.get(&e.target).copied())
                .collect();
            to.sort_unstable();
            to.dedup();
            to.iter().for_each(|k| self.is_leader[*k] = true);
            edges.insert(self.index[&table.jump], to);
        }
        edges
    }

    /// What data flow says of the registers of [`Search::based`], with these tables.
    pub fn bases<I: Isa>(&mut self, tables: &[OwnTable]) -> Bases {
        self.edges = self.edges_of(tables);
        self.flow::<I>(&self.edges).bases
    }

    /// The tables, if those that are given are.
    fn tables<I: Isa>(&mut self, assumed: &[OwnTable]) -> Vec<OwnTable> {
        let edges = self.edges_of(assumed);
        let facts = self.flow::<I>(&edges);
        self.edges = edges;
        let mut users: FxHashMap<u32, u32> = FxHashMap::default();
        let jumps = || facts.jumps.iter().filter_map(|(k, j)| Some((*k, (*j)?)));
        for (_, through) in jumps() {
            for load in through.loads() {
                *users.entry(load).or_default() += 1;
            }
        }
        let mut found: Vec<(usize, u32, u64, u64)> = Vec::new();
        let mut unknown: Vec<(usize, u32, u64)> = Vec::new();
        for (jump, through) in jumps() {
            let free = |load| users.get(&load) == Some(&1) && !facts.spoilt.contains(&load);
            let Some(seen) = facts
                .seen
                .get(&through.load)
                .filter(|_| through.loads().all(free))
            else {
                continue;
            };
            let alike = |load: u32| {
                let other = facts.seen.get(&load);
                let labels = self.loads[load as usize].1.width() == 8 && I::HAS_LABEL_LOADS;
                labels && other.is_some_and(|o| (o.base, o.most) == (seen.base, seen.most))
            };
            if !through.other.is_none_or(alike) {
                continue;
            }
            for load in through.loads() {
                let disp = match self.loads[load as usize].1 {
                    Form::Load(load) => load.disp,
                    Form::Jump(_) => 0,
                };
                match seen.base {
                    Some(seen) => found.push((jump, load, through.base, seen.wrapping_add(disp))),
                    None if through.other.is_none() => unknown.push((jump, load, seen.most)),
                    None => {}
                }
            }
        }
        found.sort_unstable();
        let starts: Vec<u64> = found.iter().map(|f| f.3).collect();
        let tables = found.iter().filter_map(|&(jump, load, base, table)| {
            self.table::<I>(
                jump,
                load,
                base,
                table,
                facts.seen.get(&load)?.most,
                &starts,
            )
        });
        let mut tables: Vec<OwnTable> = tables.collect();
        // Both loads that lead to a jump have a table, or none.
        let pairs = jumps().filter(|j| j.1.other.is_some());
        let pairs: Vec<u64> = pairs.map(|j| self.code.insns[j.0].addr).collect();
        let both = |jump: u64| tables.iter().filter(|t| t.jump == jump).count() == 2;
        let alone: Vec<u64> = pairs.into_iter().filter(|jump| !both(*jump)).collect();
        tables.retain(|t| !alone.contains(&t.jump));
        unknown.sort_unstable();
        tables.extend(self.guarded_tables::<I>(&unknown, &tables));
        tables.sort_by_key(|t| t.jump);
        tables
    }

    /// Tables of labels of loads whose base is not known, as it was on the stack: the one that all others read.
    fn guarded_tables<I: Isa>(
        &self,
        unknown: &[(usize, u32, u64)],
        tables: &[OwnTable],
    ) -> Vec<OwnTable> {
        let mut of_labels = tables.iter().filter(|t| t.labels.is_some());
        let Some(table) = of_labels.next().map(|t| t.table) else {
            return Vec::new();
        };
        if of_labels.any(|t| t.table != table) {
            return Vec::new();
        }
        let program = self.code.program;
        let guarded = unknown.iter().filter_map(|&(jump, load, most)| {
            let (at, form) = self.loads[load as usize];
            let Form::Load(shape) = form else {
                return None;
            };
            let insn = &self.code.insns[at];
            let enters = shape.width == 8
                && !program.may_be_overwritten(insn.addr)
                && !program.is_far::<I>(insn.addr);
            let enters = enters.then_some((table, most))?;
            let found = self.labels::<I>((jump, at), shape, enters, true)?;
            let mut unused: Code<()> = Code::default();
            let base = found.base_guard?;
            let fits = I::put_base_guard(&mut unused, base, found.scratch?, (), ());
            fits.then_some(found)
        });
        guarded.collect()
    }

    /// Registers and flags that a jump through a table of its own leaves otherwise than through the old one: what is
    /// loaded, the sum, and what the addition says.
    fn changed_by<I: Isa>(&self, jump: usize, load: u32) -> RegSet {
        let register = |r: u8| RegSet(1 << r);
        let insn = &self.code.insns[jump];
        let to = I::jump_register(self.code.bytes(insn), insn);
        let shape = match self.loads[load as usize].1 {
            Form::Load(shape) => shape,
            Form::Jump(jump) => return RegSet(jump.writes.into()),
        };
        let both = [to, shape.to].into_iter().flatten().map(register);
        let set = both.fold(RegSet::EMPTY, RegSet::or);
        match shape.width {
            4 => set.or(I::FLAGS),
            _ => set,
        }
    }

    /// Whether code at an instruction reads what a jump that leads there has changed, up to what leaves.
    /// Loops that jump again to what they have loaded once do, results of 8 bits, and what only looks like an entry.
    fn may_read<I: Isa>(&self, from: usize, changed: RegSet) -> bool {
        const MOST: usize = 2000;
        let insns = self.code.insns;
        let mut work = vec![(from, changed, RegSet::EMPTY)];
        let (mut steps, mut seen) = (0, FxHashSet::default());
        // `low`: those of which the low 8 bits are what the program has written there.
        while let Some((mut k, mut open, mut low)) = work.pop() {
            while open != RegSet::EMPTY && steps < MOST {
                steps += 1;
                // Every loop passes a leader.
                if self.is_leader[k] && !seen.insert((k, open.0, low.0)) {
                    break;
                }
                let insn = &insns[k];
                let target = match insn.flow {
                    Flow::Next => None,
                    Flow::Jump { target }
                    | Flow::CondJump { target, .. }
                    | Flow::ShortCond { target } => self.index.get(&target).copied(),
                    // A loop may jump again to what was loaded in front of it.
                    Flow::IndirectJump => {
                        let to = I::jump_register(self.code.bytes(insn), insn);
                        if to.is_some_and(|to| RegSet(1 << to).meets(open)) {
                            return true;
                        }
                        let to = self.edges.get(&k).into_iter().flatten();
                        work.extend(to.map(|to| (*to, open, low)));
                        break;
                    }
                    // Calls do not look at what they keep.
                    Flow::Call { .. } | Flow::IndirectCall if !self.is_end[k] => {
                        open = open.minus(open.minus(I::KEPT_BY_CALLS));
                        k += 1;
                        if insns.get(k).is_none_or(|next| next.addr != insn.end()) {
                            break;
                        }
                        continue;
                    }
                    _ => break,
                };
                let effects = I::effects(self.code.bytes(insn), insn);
                let values = &self.values[k];
                let wide = RegSet(u64::from(values.wide));
                let whole = open.minus(low);
                if effects.reads.meets(whole) || wide.meets(open.minus(whole)) {
                    return true;
                }
                open = open.minus(effects.kills);
                if !values.may_not_write {
                    low = low.or(RegSet(u64::from(values.low)));
                }
                low = low.minus(effects.kills);
                let next = insns.get(k + 1).filter(|next| next.addr == insn.end());
                let falls = next.map(|_| k + 1);
                let falls = falls.filter(|_| !matches!(insn.flow, Flow::Jump { .. }));
                k = match (target, falls) {
                    (Some(to), Some(next)) => {
                        work.push((to, open, low));
                        next
                    }
                    (Some(to), None) | (None, Some(to)) => to,
                    (None, None) => break,
                };
            }
        }
        false
    }

    /// Why the jump at instruction `k` has no table of its own.
    fn reason<I: Isa>(&self, k: usize, facts: &Facts) -> JumpReason {
        use postlink_elf::raw::SHF_WRITE;
        let insn = &self.code.insns[k];
        if I::HAS_LABEL_LOADS && (!is_near(self.code) || self.code.program.is_far::<I>(insn.addr)) {
            return JumpReason::TooFar;
        }
        // A jump that a load leads to, but of which no base is known, is one of a table.
        let through = facts.jumps.get(&k).copied();
        let Some(Through { load, base, .. }) = through.flatten() else {
            return match self.table_jump_before(k) {
                Some(first) if self.whole_jump(first).is_some() => JumpReason::BaseUnknown,
                Some(_) => JumpReason::EnteredBetween,
                None if through.is_none() => JumpReason::NotReached,
                None => JumpReason::NoTable,
            };
        };
        let Some(mut seen) = facts.seen.get(&load).copied() else {
            return JumpReason::NoTable;
        };
        // Two loads may lead to it.
        let loads = through.flatten().into_iter().flat_map(Through::loads);
        for other in loads.filter_map(|load| facts.seen.get(&load)) {
            seen.base = seen.base.filter(|base| other.base == Some(*base));
            seen.most = seen.most.max(other.most);
        }
        let jumps = facts.jumps.values().flatten();
        let leads = |j: &&Through| j.loads().any(|l| l == load);
        if facts.spoilt.contains(&load) || jumps.filter(leads).count() > 1 {
            return JumpReason::EntryReadElsewhere;
        }
        let form = self.loads[load as usize].1;
        let disp = match form {
            Form::Load(load) => load.disp,
            Form::Jump(_) => 0,
        };
        let Some(table) = seen.base.map(|base| base.wrapping_add(disp)) else {
            return JumpReason::BaseUnknown;
        };
        let section = self.code.program.elf.section_at(table).map(|s| s.1);
        let of_labels = form.width() == 8 && I::HAS_LABEL_LOADS;
        if section.is_none_or(|s| !of_labels && s.flags & SHF_WRITE != 0) {
            return JumpReason::TableWritable;
        }
        let room = section.map_or(0, |s| (s.end() - table) / form.width());
        if seen.most >= ENTRIES.min(if of_labels { ENTRIES } else { room }) {
            return JumpReason::IndexUnbounded;
        }
        match self.table::<I>(k, load, base, table, seen.most, &[]) {
            Some(found) if is_loaded::<I>(self.code, &found) => JumpReason::OtherJump,
            Some(_) => JumpReason::NoRegister,
            None => JumpReason::EntryNotFollowed,
        }
    }

    /// Where straight code begins that goes through a table and ends with that jump.
    fn table_jump_before(&self, k: usize) -> Option<usize> {
        let ends = |form: &Form, first: usize| match form {
            Form::Jump(jump) => first + usize::from(jump.count) - 1 == k,
            Form::Load(_) => false,
        };
        let found = self.loads.iter().find(|(first, form)| ends(form, *first));
        found.map(|l| l.0)
    }

    /// Reads a table.
    fn table<I: Isa>(
        &self,
        jump: usize,
        load: u32,
        base: u64,
        table: u64,
        most: u64,
        starts: &[u64],
    ) -> Option<OwnTable> {
        use postlink_elf::raw::SHF_WRITE;
        let (at, form) = self.loads[load as usize];
        if let Form::Load(shape) = form
            && shape.width == 8
            && I::HAS_LABEL_LOADS
        {
            return self.labels::<I>((jump, at), shape, (table, most), false);
        }
        let elf = self.code.program.elf;
        let (_, section) = elf.section_at(table)?;
        let width = form.width();
        if section.flags & SHF_WRITE != 0 || !section.is_alloc() || section.is_code() {
            return None;
        }
        let room = ENTRIES.min((section.end() - table) / width);
        let entry = |i: u64| {
            let place = table + i * width;
            let bytes = elf.bytes_at(place, width)?.iter().rev();
            let stored = bytes.fold(0u64, |n, byte| n << 8 | u64::from(*byte));
            let target = form.target(base, stored);
            Some(OwnEntry {
                stored,
                target,
                inside: true,
                block: None,
            })
        };
        let changed = self.changed_by::<I>(jump, load);
        let leads = |e: &OwnEntry| {
            let to = self.index.get(&e.target);
            to.is_some_and(|to| !self.may_read::<I>(*to, changed))
        };
        // A bound that is the type's, not the table's: what follows the table may lead to what old entries overwrite.
        let is_lost = |e: &OwnEntry| {
            let program = self.code.program;
            program.may_be_overwritten(e.target) && !leads(e)
        };
        let guarded = most >= room || (0..=most).map_while(entry).any(|e| is_lost(&e));
        let entries: Vec<OwnEntry> = if guarded {
            // Its flags would be others where an addition does not change them anyhow.
            if width == 8 || matches!(form, Form::Jump(_)) {
                return None;
            }
            let next = starts.iter().filter(|s| **s > table).min();
            let limit = next.map_or(room, |next| room.min((next - table) / width));
            let limit = limit.min(most.saturating_add(1));
            (0..limit).map_while(entry).take_while(leads).collect()
        } else {
            let left = |e: OwnEntry| OwnEntry {
                // Else it goes on in old code.
                inside: leads(&e),
                ..e
            };
            (0..=most).map_while(entry).map(left).collect()
        };
        let whole = guarded && entries.len() >= 2 || entries.len() as u64 == most.saturating_add(1);
        let insn = &self.code.insns[at];
        let jump = self.code.insns[jump].addr;
        if !whole || !entries.iter().any(leads) {
            return None;
        }
        let plain = OwnTable {
            load: insn.addr,
            len: insn.len,
            jump,
            index: 0,
            disp: 0,
            lead: 0,
            table,
            base,
            width: 4,
            relative: false,
            labels: None,
            scratch: None,
            fallback: None,
            guarded,
            base_guard: None,
            entries,
        };
        match form {
            Form::Load(shape) => Some(OwnTable {
                index: shape.index,
                disp: shape.disp,
                lead: shape.lead,
                width: shape.width,
                ..plain
            }),
            // What is left in registers would be foreign to old code.
            Form::Jump(_) if !plain.entries.iter().all(|e| e.inside) => None,
            Form::Jump(shape) => Some(OwnTable {
                index: shape.index,
                len: (jump - insn.addr) as u8,
                relative: true,
                ..plain
            }),
        }
    }

    /// A table of labels that a load reads which has no displacement: instruction `load`, for that at `jump`.
    /// `guarded`: its base is not known, and is compared.
    fn labels<I: Isa>(
        &self,
        (jump, load): (usize, usize),
        shape: TableLoad,
        (table, most): (u64, u64),
        guarded: bool,
    ) -> Option<OwnTable> {
        let program = self.code.program;
        if most >= ENTRIES {
            return None;
        }
        let changed = RegSet(shape.to.map_or(0, |to| 1 << to));
        let entry = |i: u64| {
            let place = table.wrapping_add(8 * i);
            let to = program.refs.lasting_address(program.elf, place);
            let leads = |to: &u64| {
                let at = self.index.get(to);
                at.is_some_and(|at| !self.may_read::<I>(*at, changed))
            };
            OwnEntry {
                stored: to.unwrap_or(0),
                target: to.unwrap_or(0),
                inside: to.as_ref().is_some_and(leads),
                block: None,
            }
        };
        let entries: Vec<OwnEntry> = (0..=most).map(entry).collect();
        if !entries.iter().any(|e| e.inside) {
            return None;
        }
        let leaves = entries.iter().any(|e| !e.inside);
        let fallback = self.fallback::<I>((jump, load), shape);
        // The entries of the old table that fallbacks load are where a load can have them.
        if leaves && (fallback.is_none() || !table.is_multiple_of(8)) {
            return None;
        }
        let insn = &self.code.insns[load];
        let bytes = self.code.bytes(insn);
        let scratch = self.scratch::<I>(load, leaves || guarded);
        let width = if program.refs.fixed { 8 } else { 4 };
        let fits = |how: &LabelLoad| {
            let mut unused: Code<()> = Code::default();
            I::put_label_load(&mut unused, bytes, *how, width == 8, ())
        };
        let scratch = scratch.filter(|register| fits(&LabelLoad::Scratch(*register)));
        let formed = Some(LabelLoad::Formed).filter(|how| !guarded && fits(how));
        let labels = formed.or(scratch.map(LabelLoad::Scratch));
        Some(OwnTable {
            load: insn.addr,
            len: insn.len,
            jump: self.code.insns[jump].addr,
            index: shape.index,
            disp: 0,
            lead: 0,
            table,
            base: 0,
            width,
            relative: false,
            // It may be that its base can hold another table's address.
            labels: labels.or(Some(LabelLoad::Formed)),
            scratch,
            fallback: fallback.filter(|_| leaves),
            guarded,
            base_guard: shape.base.filter(|_| guarded),
            entries,
        })
    }

    /// A register of linkers' stubs that nothing reads behind a load before it is overwritten; with `leaves`, in which
    /// nothing is where old code goes on, as no instruction of the function has to do with it.
    fn scratch<I: Isa>(&self, load: usize, leaves: bool) -> Option<u8> {
        let code = self.code;
        let compiled = |range: &(u64, u64)| {
            let piece = code.program.piece_at(range.0);
            piece.is_some_and(|piece| piece.fde.is_some())
        };
        if !code.ranges.iter().all(compiled) {
            return None;
        }
        let has_to_do = |i: &Insn, set: RegSet| {
            let effects = I::effects(code.bytes(i), i);
            let calls = matches!(i.flow, Flow::Call { .. } | Flow::IndirectCall);
            effects.reads.meets(set) || !calls && effects.kills.meets(set)
        };
        let registers = (0..32u8).filter(|r| I::STUB_SCRATCH.meets(RegSet(1 << r)));
        let mut registers = registers.map(|r| (r, RegSet(1 << r)));
        let untouched = |set: RegSet| !code.insns.iter().any(|i| has_to_do(i, set));
        let untouched = registers.clone().find(|(_, set)| untouched(*set));
        let dead = |set: RegSet| {
            let next = self.code.insns.get(load + 1);
            let straight = next.is_some_and(|n| n.addr == self.code.insns[load].end());
            !leaves && straight && !self.may_read::<I>(load + 1, set)
        };
        let found = untouched.or_else(|| registers.find(|(_, set)| dead(*set)));
        found.map(|f| f.0)
    }

    /// What goes on in old code where an index is of no label: the entry is loaded again, and jumped to as there.
    fn fallback<I: Isa>(&self, (jump, load): (usize, usize), shape: TableLoad) -> Option<Fallback> {
        let insns = self.code.insns;
        let to = shape.to?;
        // From the load to the jump, over direct jumps as well.
        let next = |k: usize| match insns[k].flow {
            Flow::Next if k == load || self.values[k].writes >> to & 1 == 0 => {
                let on = k + 1 < insns.len() && insns[k + 1].addr == insns[k].end();
                on.then_some(k + 1)
            }
            Flow::Jump { target } => self.index.get(&target).copied(),
            _ => None,
        };
        let mut path = std::iter::successors(Some(load), |k| next(*k)).take(BETWEEN);
        let straight = path.any(|k| k == jump);
        let jumps = I::jump_register(self.code.bytes(&insns[jump]), &insns[jump]) == Some(to);
        let mut unused: Code<()> = Code::default();
        let fits = straight && jumps && I::put_label_fallback(&mut unused, to, (), None);
        fits.then_some(Fallback { to, base: None })
    }

    /// Data flow with these edges beside those of direct jumps.
    fn flow<I: Isa>(&self, edges: &FxHashMap<usize, Vec<usize>>) -> Facts {
        let mut states: FxHashMap<usize, (State, u32)> = FxHashMap::default();
        let mut work: Vec<usize> = Vec::new();
        for k in &self.entered {
            states.insert(*k, (State::ENTERED, 0));
            work.push(*k);
        }
        while let Some(from) = work.pop() {
            let mut out: Vec<(usize, State)> = Vec::new();
            let state = states[&from].0.clone();
            self.block::<I>(
                from,
                state,
                edges,
                &mut |k, state| out.push((k, state)),
                None,
            );
            for (k, state) in out {
                match states.get_mut(&k) {
                    None => {
                        states.insert(k, (state, 0));
                        work.push(k);
                    }
                    Some((known, visits)) => {
                        if known.join(&state, *visits > OFTEN) {
                            *visits += 1;
                            work.push(k);
                        }
                    }
                }
            }
        }
        let mut facts = Facts::default();
        for (k, (state, _)) in states {
            self.block::<I>(k, state, edges, &mut |_, _| {}, Some(&mut facts));
        }
        facts
    }

    /// From a leader to the end of straight code. Gives what is known where control goes.
    fn block<I: Isa>(
        &self,
        from: usize,
        mut state: State,
        edges: &FxHashMap<usize, Vec<usize>>,
        goes: &mut dyn FnMut(usize, State),
        mut facts: Option<&mut Facts>,
    ) {
        let insns = self.code.insns;
        let mut k = from;
        loop {
            let insn = &insns[k];
            let next = (k + 1 < insns.len() && insns[k + 1].addr == insn.end()).then_some(k + 1);
            if let Some(facts) = facts.as_deref_mut() {
                self.note::<I>(k, &state, facts);
            }
            if let Some((shape, jump)) = self.whole_jump(k) {
                state.forget(shape.writes);
                for to in edges.get(&jump).into_iter().flatten() {
                    goes(*to, state.clone());
                }
                return;
            }
            match insn.flow {
                Flow::Next => self.plain::<I>(k, &mut state),
                Flow::Call { .. } | Flow::IndirectCall => {
                    if self.is_end[k] {
                        return;
                    }
                    state.forget(!(I::KEPT_BY_CALLS.0 as u32));
                    state.forget_flags();
                }
                Flow::Jump { target } => {
                    if let Some(to) = self.index.get(&target) {
                        goes(*to, state);
                    }
                    return;
                }
                Flow::CondJump { cond, target } => {
                    if let Some(to) = self.index.get(&target) {
                        goes(*to, state.bounded(|c| I::bounds(cond, true, c)));
                    }
                    state = state.bounded(|c| I::bounds(cond, false, c));
                }
                Flow::ShortCond { target } => {
                    state.forget(self.values[k].writes);
                    if let Some(to) = self.index.get(&target) {
                        goes(*to, state.clone());
                    }
                }
                Flow::IndirectJump => {
                    self.plain::<I>(k, &mut state);
                    for to in edges.get(&k).into_iter().flatten() {
                        goes(*to, state.clone());
                    }
                    return;
                }
                Flow::Return | Flow::Stop => return,
            }
            let Some(next) = next else {
                return;
            };
            if self.is_leader[next] {
                goes(next, state);
                return;
            }
            k = next;
        }
    }

    /// The jump that is encoded again from an instruction on, and its number, if control comes to all of it from there.
    fn whole_jump(&self, k: usize) -> Option<(TableJump, usize)> {
        let load = *self.load_at.get(&k)?;
        let Form::Jump(shape) = self.loads[load as usize].1 else {
            return None;
        };
        let end = k + usize::from(shape.count);
        let entered = self.is_leader[k + 1..end].contains(&true);
        (!entered).then_some((shape, end - 1))
    }

    /// After an instruction that calls nothing and does not branch.
    fn plain<I: Isa>(&self, k: usize, state: &mut State) {
        let insn = &self.code.insns[k];
        if insn.traits.system_call {
            state.forget(u32::MAX);
            state.forget_flags();
            return;
        }
        let sum = self.sum::<I>(k, state);
        state.step(&self.values[k]);
        if let Some((to, table)) = self.formed(k, state) {
            state.put(to, What::Base(table));
        }
        if let Some(load) = self.load_at.get(&k)
            && let Form::Load(TableLoad { to: Some(to), .. }) = self.loads[*load as usize].1
        {
            state.put(to, What::Entry(*load));
        }
        if let Some((to, load, base)) = sum {
            state.put(to, What::Target(load, base));
        }
    }

    /// The register in which instruction `k` has left the address of a table, after it, if that is to be another's.
    fn formed(&self, k: usize, state: &State) -> Option<(u8, u64)> {
        if self.based.is_empty() || self.forms_old.contains(&k) {
            return None;
        }
        match self.values[k].sets {
            Some(Sets::Sum { to, .. } | Sets::Address { to, .. }) => match state.get(to).what {
                What::Address(a) => self.based.contains(&(to, a)).then_some((to, a)),
                _ => None,
            },
            _ => None,
        }
    }

    /// An addition of an entry and an address: the register with the sum, the load, the address.
    fn sum<I: Isa>(&self, k: usize, state: &State) -> Option<(u8, u32, u64)> {
        let insn = &self.code.insns[k];
        // Additions are of few bytes.
        let (to, from) = (insn.len <= 3)
            .then(|| I::adds(self.code.bytes(insn), insn))
            .flatten()?;
        match (state.get(to).what, state.get(from).what) {
            (What::Entry(load), base) | (base, What::Entry(load)) => {
                Some((to, load, self.address(base)?))
            }
            _ => None,
        }
    }

    /// A link-time address that a register holds.
    fn address(&self, what: What) -> Option<u64> {
        match what {
            What::Address(a) | What::Base(a) => Some(a),
            What::Number(a) if self.code.program.refs.fixed => Some(a),
            _ => None,
        }
    }

    /// Notes what is known before an instruction.
    fn note<I: Isa>(&self, k: usize, state: &State, facts: &mut Facts) {
        let insn = &self.code.insns[k];
        if let Some((shape, jump)) = self.whole_jump(k) {
            let held = || self.address(state.get(shape.register).what);
            let base = shape.table.or_else(held);
            let most = state.get(shape.index).most_of(shape.bits);
            let load = self.load_at[&k];
            facts.seen.insert(load, Seen { base, most });
            let through = base.map(|table| Through {
                load,
                other: None,
                base: shape.anchor.unwrap_or(table),
            });
            facts.jumps.insert(jump, through);
        } else if let Some(load) = self.load_at.get(&k)
            && let Form::Load(shape) = self.loads[*load as usize].1
        {
            let base = match shape.base {
                Some(register) => self.address(state.get(register).what),
                None if self.code.program.refs.fixed => Some(0),
                None => None,
            };
            let most = state.get(shape.index).most_of(shape.bits);
            facts.seen.insert(*load, Seen { base, most });
            if shape.to.is_none() {
                let (load, other, base) = (*load, None, 0);
                facts.jumps.insert(k, Some(Through { load, other, base }));
            }
        } else if insn.flow == Flow::IndirectJump {
            let register = I::jump_register(self.code.bytes(insn), insn);
            let of_addresses = |load: u32| self.loads[load as usize].1.width() == 8;
            let through = match register.map(|r| state.get(r).what) {
                Some(What::Target(load, base)) => Some((load, None, base)),
                Some(What::Entry(load)) if of_addresses(load) => Some((load, None, 0)),
                Some(What::Either(a, b)) if of_addresses(a) && of_addresses(b) => {
                    Some((a, Some(b), 0))
                }
                _ => None,
            };
            let through = through.map(|(load, other, base)| Through { load, other, base });
            facts.jumps.insert(k, through);
        }
        self.note_reads::<I>(k, state, facts);
        if !self.based.is_empty() {
            self.note_bases::<I>(k, state, &mut facts.bases);
        }
    }

    /// Notes what forms and reads the addresses of other tables. Nothing may but loads of labels: no call, return or
    /// jump out of the function finds them in a register that it may look at.
    fn note_bases<I: Isa>(&self, k: usize, state: &State, bases: &mut Bases) {
        let insn = &self.code.insns[k];
        let load = self.load_at.get(&k).filter(|_| self.readers.contains(&k));
        let base = match load.map(|load| self.loads[*load as usize].1) {
            Some(Form::Load(shape)) => shape.base,
            _ => None,
        };
        let mut allowed = 0;
        if let Some(register) = base {
            let based = matches!(state.get(register).what, What::Base(_));
            bases.read.insert(k, based);
            allowed = u32::from(based) << register;
        }
        if insn.flow == Flow::Next {
            let mut after = state.clone();
            after.step(&self.values[k]);
            if let Some((to, table)) = self.formed(k, &after) {
                bases.formed.push((k, to, table));
            }
        }
        if state.based == 0 {
            return;
        }
        let bytes = self.code.bytes(insn);
        let reads = || I::effects(bytes, insn).reads.0 as u32;
        let lost = !(I::KEPT_BY_CALLS.0 as u32);
        let inside = |target: u64| self.index.contains_key(&target);
        let goes_on = || {
            self.code
                .insns
                .get(k + 1)
                .is_some_and(|n| n.addr == insn.end())
        };
        let looked_at = match insn.flow {
            Flow::Next if insn.traits.system_call || self.guarded.contains(&k) => u32::MAX,
            Flow::Next if goes_on() => reads() & !allowed,
            Flow::CondJump { target, .. } | Flow::ShortCond { target }
                if inside(target) && goes_on() =>
            {
                reads()
            }
            Flow::Jump { target } if inside(target) => 0,
            Flow::Call { .. } | Flow::IndirectCall => {
                lost | I::operand_registers(bytes, insn).0 as u32
            }
            Flow::IndirectJump if self.edges.contains_key(&k) => {
                self.leaving.get(&k).map_or(0, |kept| !kept)
            }
            _ => u32::MAX,
        };
        for register in (0..32u8).filter(|r| (state.based & looked_at) >> r & 1 != 0) {
            match self.formed_before(k, register) {
                Some(addition) => {
                    bases.read_otherwise.insert(addition);
                }
                None => bases.spoilt |= 1 << register,
            }
        }
    }

    /// The instruction in the straight code in front of instruction `k` that forms what a register holds there.
    fn formed_before(&self, k: usize, register: u8) -> Option<usize> {
        let insns = self.code.insns;
        let straight = |i: &usize| {
            let (insn, next) = (&insns[*i], &insns[*i + 1]);
            insn.flow == Flow::Next && next.addr == insn.end() && !self.is_leader[*i + 1]
        };
        let mut before = (0..k).rev().take_while(straight);
        let last = before.find(|i| self.values[*i].writes >> register & 1 != 0)?;
        let sets = self.values[last].sets.filter(|s| s.to() == register);
        sets.filter(|s| matches!(s, Sets::Sum { .. } | Sets::Address { .. }))
            .map(|_| last)
    }

    /// Notes loads whose results another instruction reads than the addition and the jump.
    fn note_reads<I: Isa>(&self, k: usize, state: &State, facts: &mut Facts) {
        let insn = &self.code.insns[k];
        let of = |register: u8| match state.get(register).what {
            What::Entry(load) | What::Target(load, _) => [Some(load), None],
            What::Either(a, b) => [Some(a), Some(b)],
            _ => [None; 2],
        };
        if (0..32).all(|r| of(r) == [None; 2])
            || insn.flow != Flow::Next
            || self.sum::<I>(k, state).is_some()
        {
            return;
        }
        let RegSet(reads) = I::effects(self.code.bytes(insn), insn).reads;
        for register in 0..32u8 {
            if reads >> register & 1 != 0 {
                facts.spoilt.extend(of(register).into_iter().flatten());
            }
        }
    }
}
