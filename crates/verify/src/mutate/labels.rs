//! Faults in tables of labels of new code's own on AArch64, in what loads from them, in what forms their addresses, and
//! in what is claimed of them.

use super::{Edit, Faults, Kind};
use crate::addr::OutputAddr;
use crate::arch::aarch64::word;
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::OwnTable;

/// Instructions by which a page is formed: `adrp`.
const PAGE: u64 = 4096;

/// A claim of a table, by the numbers of the function and of the claim.
pub(super) struct Claimed {
    pub(super) function: usize,
    number: usize,
    pub(super) table: OwnTable,
    /// Where the claimed instruction is in the file.
    pub(super) at: usize,
    /// It forms the table's address for loads elsewhere.
    based: bool,
}

impl Faults<'_> {
    /// Claimed tables of labels.
    fn label_tables(&self) -> Vec<Claimed> {
        let functions = self.claim.functions.iter().enumerate();
        let all =
            functions.flat_map(|(f, m)| m.tables.iter().enumerate().map(move |(n, t)| (f, n, *t)));
        all.filter(|t| self.is_of_labels(&t.2))
            .filter_map(|(function, number, table)| {
                let old = word(self.input.bytes(table.load.0.get(), 4)?)?;
                Some(Claimed {
                    function,
                    number,
                    table,
                    at: self.site_at(table.load.1.get())?.at,
                    // An addition with an immediate operand, or one `adr`.
                    based: self.arm && (old >> 24 == 0x91 || old & 0x9f00_0000 == 0x1000_0000),
                })
            })
            .collect()
    }

    /// Whether a claimed table is of labels that are loaded by other code.
    pub(super) fn is_of_labels(&self, table: &OwnTable) -> bool {
        table.base == 0 && (self.arm || !table.wide)
    }

    pub(super) fn label_edits(&self, kind: Kind) -> Vec<Edit> {
        let all = self.label_tables();
        let each = all.iter();
        match kind {
            Kind::LabelEntrySwapped
            | Kind::LabelEntryOff
            | Kind::LabelEntryToOtherFunction
            | Kind::LabelFallbackElsewhere
            | Kind::LabelFallbackEntry
            | Kind::LabelFallbackBase
            | Kind::LabelFallbackJump
            | Kind::LabelFallbackPad => each
                .filter_map(|t| {
                    if self.arm {
                        self.label_entry(kind, t)
                    } else {
                        self.displaced_entry(kind, t)
                    }
                })
                .collect(),
            Kind::LabelTableMoved | Kind::LabelTableWritable => each
                .filter_map(|t| {
                    let to = match kind {
                        Kind::LabelTableMoved => t.table.new.get() + PAGE,
                        _ => self.writable_page()?,
                    };
                    if self.arm {
                        self.label_table_at(t, to)
                    } else {
                        self.displaced_at(t, to)
                    }
                })
                .collect(),
            Kind::LabelTableShort => each
                .filter_map(|t| {
                    let mut claim = self.claim.clone();
                    // All that share it.
                    for table in &mut claim.functions.get_mut(t.function)?.tables {
                        if table.key() == t.table.key() && table.new == t.table.new {
                            table.entries = t.table.entries.checked_sub(1).filter(|n| *n > 0)?;
                        }
                    }
                    self.claiming(&claim, format!("at {:#x}", t.table.load.1))
                })
                .collect(),
            Kind::LabelGuardUnclaimed => each
                .filter(|t| t.table.guarded)
                .filter_map(|t| {
                    let mut claim = self.claim.clone();
                    let tables = &mut claim.functions.get_mut(t.function)?.tables;
                    tables.get_mut(t.number)?.guarded = false;
                    self.claiming(&claim, format!("at {:#x}", t.table.load.1))
                })
                .collect(),
            Kind::LabelGuardLost
            | Kind::LabelGuardRegister
            | Kind::LabelGuardTable
            | Kind::LabelGuardTarget => each
                .filter(|t| t.table.guarded)
                .filter_map(|t| self.label_guard(kind, t))
                .collect(),
            Kind::LabelTableUnclaimed => each
                .filter_map(|t| {
                    let mut claim = self.claim.clone();
                    let tables = &mut claim.functions.get_mut(t.function)?.tables;
                    (t.number < tables.len()).then(|| tables.remove(t.number));
                    self.claiming(&claim, format!("at {:#x}", t.table.load.1))
                })
                .collect(),
            Kind::LabelBaseLost | Kind::LabelBaseOff | Kind::LabelBaseRegister => each
                .filter(|t| t.based)
                .filter_map(|t| self.label_base(kind, t))
                .collect(),
            _ if !self.arm => each.filter_map(|t| self.displaced_word(kind, t)).collect(),
            _ => {
                let of_loads = each.clone().filter(|t| !t.based);
                let mut edits: Vec<Edit> = of_loads
                    .filter_map(|t| self.label_word(kind, t.at, true))
                    .collect();
                let by_base = each.filter(|t| t.based).flat_map(|t| self.based_loads(t));
                edits.extend(by_base.filter_map(|at| self.label_word(kind, at, false)));
                edits
            }
        }
    }

    /// Places in the file of loads that read a register with a table's address.
    fn based_loads(&self, t: &Claimed) -> Vec<usize> {
        let Some(page) = self.output.data.get(t.at..).and_then(word) else {
            return Vec::new();
        };
        let Some(function) = self.claim.functions.get(t.function) else {
            return Vec::new();
        };
        let loads = |at: usize| {
            let load = self.output.data.get(at..).and_then(word);
            load.is_some_and(|w| {
                let wanted = if t.table.wide {
                    0xf860_1800
                } else {
                    0xb8a0_1800
                };
                w & 0xffe0_1c00 == wanted && w >> 5 & 31 == page & 31
            })
        };
        let own = self
            .sites
            .iter()
            .filter(|s| function.in_new(OutputAddr::new(s.addr)));
        own.map(|s| s.at).filter(|at| loads(*at)).collect()
    }

    /// An instruction of what loads a label. `page`: the first of them forms a page.
    fn label_word(&self, kind: Kind, at: usize, page: bool) -> Option<Edit> {
        let old = |k: usize| word(self.output.data.get(at + 4 * k..)?);
        let first = usize::from(page);
        let load = old(first)?;
        let sum = old(first + 1).filter(|_| load >> 22 & 3 == 2);
        let base = sum.unwrap_or(load) >> 5 & 31;
        let named = [load & 31, load >> 5 & 31, load >> 16 & 31, base];
        let other = (0..29).find(|r| !named.contains(r))?;
        if kind == Kind::LabelScratchRegister {
            // The page is formed in a register that is not loaded.
            let scratch = load >> 5 & 31;
            let page = old(0).filter(|_| page && scratch != load & 31)?;
            let words = [
                Some(page & !31 | other),
                Some(load & !(31 << 5) | other << 5),
                sum.map(|sum| sum & !(31 << 5) | other << 5),
            ];
            let bytes = words.into_iter().flatten().flat_map(u32::to_le_bytes);
            let bytes: Vec<u8> = bytes.collect();
            return Some(Edit::new(format!("at {at:#x} of the file"), at, &bytes));
        }
        let (k, new) = match kind {
            Kind::LabelPageOff if page => (0, old(0)? ^ 1 << 29),
            Kind::LabelIndexRegister => (first, load & !(31 << 16) | other << 16),
            Kind::LabelIndexExtended => (first, load ^ 1 << 13),
            Kind::LabelIndexNotScaled => (first, load & !(1 << 12)),
            // Without its sign.
            Kind::LabelWordUnsigned => (first, load & !(3 << 22) | 1 << 22),
            Kind::LabelSumOff => (first + 1, sum? | 1 << 10),
            Kind::LabelSumElsewhere => (first + 1, sum? & !(31 << 5) | other << 5),
            Kind::LabelRegister => (first + 1, sum? & !31 | other),
            _ => return None,
        };
        let what = format!("word {k} at {at:#x} of the file");
        Some(Edit::new(what, at + 4 * k, &new.to_le_bytes()))
    }

    /// An instruction of the guard in front of a load of a label.
    fn label_guard(&self, kind: Kind, t: &Claimed) -> Option<Edit> {
        let at = |k: usize| t.at.checked_sub(4 * (5 - k));
        let old = |k: usize| word(self.output.data.get(at(k)?..)?);
        let (k, new) = match kind {
            // b, over the jump
            Kind::LabelGuardLost => (3, 0x1400_0002),
            Kind::LabelGuardRegister => (2, old(2)? ^ 1 << 5),
            Kind::LabelGuardTable => (1, old(1)? ^ 1 << 13),
            _ => (4, old(4)? ^ 1),
        };
        let what = format!("in front of {:#x}", t.table.load.1);
        Some(Edit::new(what, at(k)?, &new.to_le_bytes()))
    }

    /// What forms a table's address.
    fn label_base(&self, kind: Kind, t: &Claimed) -> Option<Edit> {
        let old = word(self.output.data.get(t.at..)?)?;
        let new = match kind {
            // The instruction of the input.
            Kind::LabelBaseLost => word(self.input.bytes(t.table.load.0.get(), 4)?)?,
            Kind::LabelBaseOff => old ^ 1 << 29,
            _ => old ^ 1,
        };
        let what = format!("at {:#x}", t.table.load.1);
        Some(Edit::new(what, t.at, &new.to_le_bytes()))
    }

    /// A page of the program's data, with enough behind it.
    fn writable_page(&self) -> Option<u64> {
        let loads = self.output.loads().iter();
        loads.filter(|l| l.is_writable()).find_map(|l| {
            let page = l.addr.next_multiple_of(PAGE);
            (page + 8 <= l.file_end()).then_some(page)
        })
    }

    /// All claims that share a table, and what forms its address, say that it is elsewhere.
    fn label_table_at(&self, t: &Claimed, to: u64) -> Option<Edit> {
        let mut claim = self.claim.clone();
        let mut changes = Vec::new();
        for table in &mut claim.functions.get_mut(t.function)?.tables {
            if table.key() != t.table.key() || table.new != t.table.new {
                continue;
            }
            table.new = OutputAddr::new(to);
            let site = self.site_at(table.load.1.get())?;
            let old = word(self.output.data.get(site.at..)?)?;
            let pages = ((to >> 12).wrapping_sub(site.addr >> 12)) as u32;
            let page = old & !0x60ff_ffe0 | (pages & 3) << 29 | (pages >> 2 & 0x7ffff) << 5;
            changes.push((site.at, page.to_le_bytes().to_vec()));
        }
        let mut edit = self.claiming(&claim, format!("at {:#x} to {to:#x}", t.table.load.1))?;
        edit.changes.extend(changes);
        Some(edit)
    }

    /// Whether a load of a label has another register for the table's address.
    fn has_scratch(&self, t: &Claimed) -> bool {
        let old = |k: usize| self.output.data.get(t.at + 4 * k..).and_then(word);
        !t.based && old(1).is_some_and(|load| load >> 5 & 31 != load & 31)
    }

    /// An entry of a table of labels.
    fn label_entry(&self, kind: Kind, t: &Claimed) -> Option<Edit> {
        let table = &t.table;
        let width = table.width() as usize;
        let at = self.offset(table.new.get())?;
        // Words count from the new table where a register has its address.
        let base = match (table.wide, t.based || self.has_scratch(t)) {
            (true, _) => 0,
            (false, true) => table.new.get(),
            (false, false) => table.old.get(),
        };
        let entry = |i: usize| {
            let bytes = self.file(at + i * width, width);
            if table.wide {
                u64_in(bytes, 0)
            } else {
                u32_in(bytes, 0).map(|w| base.wrapping_add_signed((w as i32).into()))
            }
        };
        let function = self.claim.functions.get(t.function)?;
        let inside = |i: &usize| entry(*i).is_some_and(|to| function.in_new(OutputAddr::new(to)));
        let mut entries = 0..table.entries as usize;
        let stored = |to: u64| {
            to.wrapping_sub(base)
                .to_le_bytes()
                .get(..width)
                .map(<[u8]>::to_vec)
        };
        let place = |i: usize| at + i * width;
        let changes = match kind {
            Kind::LabelEntrySwapped => {
                let i = entries.find(inside)?;
                let j = entries.find(|j| inside(j) && entry(*j) != entry(i))?;
                vec![
                    (place(i), stored(entry(j)?)?),
                    (place(j), stored(entry(i)?)?),
                ]
            }
            Kind::LabelEntryOff => {
                let i = entries.find(inside)?;
                vec![(place(i), stored(entry(i)?.wrapping_add(4))?)]
            }
            Kind::LabelEntryToOtherFunction => {
                let i = entries.find(inside)?;
                let mut others = self.claim.functions.iter();
                let other = others.find(|f| !f.in_new(table.load.1))?;
                vec![(place(i), stored(other.new_entry().get())?)]
            }
            // A fallback begins with a landing pad, and ends with a page, a load and a jump.
            _ => {
                let words = |to: u64, k: u64| word(self.output.bytes(to + 4 * k, 4)?);
                let skip = |to: u64| match words(to, 2) {
                    Some(add) if add >> 24 == 0x91 => 3,
                    _ => 1,
                };
                let falls_back = |i: &usize| {
                    let Some(to) = entry(*i) else { return false };
                    let load = words(to, skip(to) + 1);
                    let jump = words(to, skip(to) + 2);
                    load.is_some_and(|w| w & 0xffc0_0000 == 0xf940_0000)
                        && jump.is_some_and(|w| w & 0xffff_fc1f == 0xd61f_0000)
                        && words(to, skip(to)).is_some_and(|w| w & 0x9f00_0000 == 0x9000_0000)
                };
                let i = entries.find(falls_back)?;
                let to = entry(i)?;
                let skip = skip(to);
                let (k, flipped) = match kind {
                    Kind::LabelFallbackElsewhere => {
                        let place = place(i);
                        let changes = vec![(place, stored(function.new_entry().get())?)];
                        let what = format!("entry {i} of the table at {:#x}", table.new);
                        return Some(Edit { what, changes });
                    }
                    Kind::LabelFallbackEntry => (skip + 1, 1 << 10),
                    Kind::LabelFallbackBase if skip > 1 => (2, 1 << 13),
                    // nop
                    Kind::LabelFallbackPad => (0, 0xd503_249f ^ 0xd503_201f),
                    Kind::LabelFallbackJump => (skip + 2, 1 << 5),
                    _ => return None,
                };
                let new = words(to, k)? ^ flipped;
                vec![(self.offset(to + 4 * k)?, new.to_le_bytes().to_vec())]
            }
        };
        let what = format!("the table at {:#x}", table.new);
        Some(Edit { what, changes })
    }
}
