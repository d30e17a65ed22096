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
//! | addresses (programs at a fixed address) | `jmp [B+I*8+d]`; `jmp [d+I*8]`; the same with `mov r,…`; `jmp r` | `T = B + d` |
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
//! On x86-64 labels of a program that is not at a fixed address are loaded by two instructions in the place of one,
//! from a table of words that count from the old one ([`LabelLoad::Displaced`]). Old code does not come back there, so
//! other jumps may keep their table.
//!
//! A register that the jump leaves with another value may be read where an entry leads: compilers combine results of 8
//! bits in registers of 32, and spill registers whose upper bits are of no account. Such an entry leads to an
//! instruction or two in front of the block, which give the registers what they held ([`Restored`]). It leads to the
//! old code where the flags that the addition sets are read, or where the register may be jumped to again.
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

mod flow;
mod labels;
mod reason;
mod search;

use postlink_isa::{Flow, Insn, Isa, LabelLoad, TableJump, TableLoad, Values};
use rustc_hash::{FxHashMap, FxHashSet};

use super::build::FunctionCode;
use super::own_bases::{self, OwnBase};
use labels::is_loaded;
pub(super) use reason::reasons;

/// More entries than this no table has.
const ENTRIES: u64 = 4096;
/// How often data flow is repeated.
const ROUNDS: usize = 8;
/// In a program of this size the words of a table that counts from itself reach everything.
const REACH: u64 = 1 << 30;
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
    /// The registers that [restored entries](OwnEntry::restores) give what they held.
    pub restored: Option<Restored>,
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

/// Registers that a jump through a table of its own leaves with other values than one through the old table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// That of the target: it held the target's old address.
    pub target: u8,
    /// That of the loaded distance, where it is another one: it held the old table's entry, extended with its sign.
    pub distance: Option<u8>,
}

impl Restored {
    /// Both, as a set.
    fn registers(self) -> u32 {
        1 << self.target | self.distance.map_or(0, |register| 1 << register)
    }
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
    /// It is behind the next address that the function forms, so it is probably no entry.
    pub behind: bool,
    /// [`OwnTable::restored`] has to be given there what it held.
    pub restores: bool,
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
            Some(LabelLoad::Formed | LabelLoad::Displaced) => self.table,
            Some(LabelLoad::Based | LabelLoad::Scratch(_)) => own,
            None if self.relative => own,
            None => self.base,
        }
    }

    /// Whether code forms its address: then it begins a page.
    pub fn is_formed(&self) -> bool {
        self.labels.is_some_and(|how| how != LabelLoad::Displaced)
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

/// A way that a jump through a table may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    /// Number of the instruction that it leads to.
    to: usize,
    /// Registers that are given there what they held.
    restored: u32,
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
        if I::HAS_LABEL_LOADS
            && lost.is_empty()
            && labels
            && code.insns.iter().any(|i| jumps(i) && !is_own(i))
        {
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
    let of_labels = code.program.refs.fixed || is_near(code);
    let mut loads: Vec<(usize, Form)> = (0..code.insns.len())
        .filter_map(|k| {
            let insn = &code.insns[k];
            let may = matches!(insn.flow, Flow::Next | Flow::IndirectJump);
            let load = I::table_load(code.bytes(insn), insn).filter(|_| may)?;
            (load.width == 4 && load.to.is_some() || load.width == 8 && of_labels)
                .then_some((k, Form::Load(load)))
        })
        .collect();
    loads.extend(table_jumps::<I>(code));
    loads
}

/// Whether loads of labels become other code, as the loader makes addresses of a program that is not at a fixed one, or
/// as no load has a displacement.
fn has_label_loads<I: Isa>(code: &FunctionCode<'_, '_>) -> bool {
    I::HAS_LABEL_LOADS || !code.program.refs.fixed
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
    edges: FxHashMap<usize, Vec<Edge>>,
    /// Registers in which the addresses of other tables are formed, with those of the old ones.
    pub based: FxHashSet<(u8, u64)>,
    /// By number: loads that may read them.
    pub readers: FxHashSet<usize>,
    /// By number: jumps through tables that may lead to old code, with the registers that hold there what they did.
    pub leaving: FxHashMap<usize, u32>,
    /// By number: loads whose bases are compared, and that lead to old code with others.
    pub guarded: FxHashSet<usize>,
}
