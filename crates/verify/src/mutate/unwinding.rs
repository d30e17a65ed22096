//! Faults in unwind tables and language-specific data.

use super::{Edit, Faults, Kind, Site};
use crate::addr::OutputAddr;
use crate::arch::{Flow, Insn};
use crate::files::bytes::{Reader, u32_in};
use crate::files::elf::{PT_GNU_EH_FRAME, SHT_SYMTAB};
use crate::files::pointer;
use crate::files::unwind::{Fde, Table};

/// A call frame instruction: what it is, where its first operand is, and the place from which it holds.
struct Cfi {
    opcode: u8,
    at: usize,
    operand: usize,
    location: u64,
    advances: bool,
}

/// Reads a program of call frame instructions up to the first that is unknown.
fn program(table: &Table<'_>, fde: &Fde) -> Vec<Cfi> {
    let mut list = Vec::new();
    let begin = fde.instructions.0 as usize;
    let Some(bytes) = table.bytes.get(begin..fde.instructions.1 as usize) else {
        return list;
    };
    let mut r = Reader::new(bytes);
    let unit = table.cie_of(fde).map_or(1, |c| c.code_align);
    let mut location = fde.start;
    loop {
        let at = begin + r.pos();
        let Some(byte) = r.u8() else { return list };
        let operand = begin + r.pos();
        let opcode = if byte & 0xc0 != 0 { byte & 0xc0 } else { byte };
        let mut advance = |by: Option<u64>| {
            location = location.saturating_add(by?.saturating_mul(unit));
            Some(())
        };
        let read = match opcode {
            0x40 => advance(Some(u64::from(byte & 0x3f))),
            2 => advance(r.u8().map(u64::from)),
            3 => advance(r.u16().map(u64::from)),
            4 => advance(r.u32().map(u64::from)),
            0x80 | 6 | 8 | 0x0d | 0x0e | 0x2e => r.uleb().map(|_| ()),
            0x07 | 0xc0 | 0 | 0x0a | 0x0b | 0x2d => {
                if opcode == 7 {
                    r.uleb().map(|_| ())
                } else {
                    Some(())
                }
            }
            5 | 9 | 0x0c => r.uleb().and_then(|_| r.uleb()).map(|_| ()),
            0x13 => r.sleb().map(|_| ()),
            0x0f => block(&mut r),
            0x10 | 0x16 => r.uleb().and_then(|_| block(&mut r)),
            0x11 | 0x12 => r.uleb().and_then(|_| r.sleb()).map(|_| ()),
            _ => None,
        };
        if read.is_none() {
            return list;
        }
        list.push(Cfi {
            opcode,
            at,
            operand,
            location,
            advances: matches!(opcode, 0x40 | 2 | 3 | 4),
        });
    }
}

/// Goes over an expression.
fn block(r: &mut Reader<'_>) -> Option<()> {
    let len = usize::try_from(r.uleb()?).ok()?;
    r.take(len).map(|_| ())
}

/// A call site's fields: offset in the file and length of each, and what they say.
pub(super) struct SiteFields {
    pub(super) start: u64,
    pub(super) end: u64,
    len: (usize, usize),
    pad: (usize, usize),
    pub(super) pad_value: u64,
    action: (usize, usize),
    action_value: u64,
}

/// Where the parts of an LSDA are in the file.
pub(super) struct Area {
    pub(super) sites: Vec<SiteFields>,
    /// Call sites' numbers are LEB128.
    leb: bool,
    actions: usize,
    types: Option<usize>,
    type_encoding: u8,
}

impl Faults<'_> {
    pub(super) fn unwind_edits(&self, kind: Kind) -> Vec<Edit> {
        let Ok(table) = Table::read(&self.output) else {
            return Vec::new();
        };
        let fresh: Vec<Fde> = table
            .fdes
            .iter()
            .filter(|f| {
                self.claim
                    .functions
                    .iter()
                    .any(|m| m.in_new(OutputAddr::new(f.start)))
            })
            .take(2000)
            .copied()
            .collect();
        match kind {
            Kind::RowBeginsLate
            | Kind::WrongCfaOffset
            | Kind::WrongRegisterRule
            | Kind::WrongArgsSize
            | Kind::SignStateLost => fresh
                .iter()
                .flat_map(|f| self.rows(kind, &table, f))
                .collect(),
            Kind::FdeTooShort | Kind::FdeTooLong | Kind::WrongLsda => fresh
                .iter()
                .filter_map(|f| self.extent(kind, &table, f))
                .collect(),
            Kind::SearchTableUnsorted | Kind::SearchEntryWrong | Kind::SearchEntryMissing => {
                self.search(kind, &table)
            }
            Kind::CallSiteStretched | Kind::CallSiteLosesFault => fresh
                .iter()
                .filter(|f| f.lsda != 0 && self.faults_raise(&table, f))
                .flat_map(|f| self.fault_edits(kind, f))
                .collect(),
            _ => fresh
                .iter()
                .filter(|f| f.lsda != 0)
                .flat_map(|f| self.area_edits(kind, f))
                .collect(),
        }
    }

    /// Rows that begin in counters which save registers, or where they end: where the stack pointer moves.
    pub(super) fn stack_row_edits(&self, kind: Kind) -> Vec<Edit> {
        let Ok(table) = Table::read(&self.output) else {
            return Vec::new();
        };
        let places = self.places_of_saves();
        let mut edits = Vec::new();
        for fde in &table.fdes {
            let mut within = places.iter().filter(|p| fde.start <= p.0 && p.1 <= fde.end);
            if within.next().is_none() {
                continue;
            }
            let list = program(&table, fde);
            for (i, cfi) in list.iter().enumerate() {
                if places.iter().any(|p| (p.0..=p.1).contains(&cfi.location)) {
                    edits.extend(self.stack_row(kind, &table, list.get(i..).unwrap_or(&[])));
                }
            }
        }
        edits
    }

    /// Rows and entries of recorders, and of routines that inserted code calls.
    pub(super) fn routine_edits(&self, kind: Kind) -> Vec<Edit> {
        // The entry of stubs alone may be in another segment than all others.
        let table = Table::read(&self.output).ok();
        let Some(table) = table.or_else(|| self.last_entry()) else {
            return Vec::new();
        };
        let is_theirs = |name: &[u8]| {
            [&b".text.slow"[..], b".text.record"]
                .iter()
                .any(|of| name.starts_with(of))
        };
        let sections = self.output.sections.iter().filter(|s| is_theirs(s.name));
        let places: Vec<(u64, u64)> = sections.map(|s| (s.addr, s.end())).collect();
        let within = |at: u64| places.iter().any(|p| p.0 <= at && at < p.1);
        let mut edits = Vec::new();
        for (i, fde) in table.fdes.iter().enumerate() {
            match kind {
                Kind::RoutineFdeMissing if within(fde.start) => {
                    edits.extend(self.without_entry(&table, i));
                }
                Kind::RoutineFdeShort if within(fde.start) => {
                    edits.extend(self.shortened(&table, fde));
                }
                Kind::RoutineFdeMissing | Kind::RoutineFdeShort => {}
                _ => {
                    let list = program(&table, fde);
                    for (i, cfi) in list.iter().enumerate() {
                        // What is at the very beginning of a routine after another one repeats what is known.
                        let theirs = within(cfi.location) && !self.is_behind_code(cfi.location);
                        if theirs || self.is_in_counter_of_stub(cfi.location) {
                            let rest = list.get(i..).unwrap_or(&[]);
                            edits.extend(self.routine_row(kind, &table, rest));
                        }
                    }
                }
            }
        }
        edits
    }

    /// Whether what fills the rest of a section with code begins there.
    fn is_behind_code(&self, at: u64) -> bool {
        let filling: &[u8] = if self.arm { &[0; 4] } else { &[0xcc] };
        let offset = self.offset(at);
        offset.is_none_or(|offset| self.file(offset, filling.len()) == filling)
    }

    /// What the last entry of the search table leads to.
    fn last_entry(&self) -> Option<Table<'_>> {
        let search = self.output.segment(PT_GNU_EH_FRAME)?;
        let count = u64::from(self.output.u32_at(search.addr + 8)?);
        let distance = self.output.u32_at(search.addr + 8 + 8 * count)? as i32;
        let addr = search.addr.wrapping_add_signed(distance.into());
        let (table, fde) = Table::read_entry(&self.output, addr)?;
        Some(Table {
            fdes: vec![fde],
            ..table
        })
    }

    /// Whether the counter in a stub has just saved what it calls its routine with.
    fn is_in_counter_of_stub(&self, at: u64) -> bool {
        let mut sections = self.output.sections.iter();
        let is_stub = sections
            .any(|s| s.name.starts_with(b".text.entries") && s.addr + 4 <= at && at < s.end());
        let around = at.checked_sub(4).and_then(|from| self.offset(from));
        let bytes = around.map_or(&[][..], |from| self.file(from, 7));
        is_stub
            && match (self.arm, bytes) {
                // stp x16,x17,[sp,#-16]!
                (true, bytes) => bytes.starts_with(&0xa9bf_47f0u32.to_le_bytes()),
                // push r11; lea r11,[c]
                (false, bytes) => bytes.get(2..7) == Some(&[0x41, 0x53, 0x4c, 0x8d, 0x1d]),
            }
    }

    /// What spoils the row of the first of some call frame instructions of a routine.
    fn routine_row(&self, kind: Kind, table: &Table<'_>, list: &[Cfi]) -> Option<Edit> {
        match kind {
            Kind::RoutineRowLost => self.stack_row(Kind::StackRowLost, table, list),
            Kind::RoutineRowLate => self.stack_row(Kind::StackRowLate, table, list),
            _ => self.stack_row(Kind::StackRowOff, table, list),
        }
    }

    /// The search table without its n-th entry.
    fn without_entry(&self, table: &Table<'_>, n: usize) -> Option<Edit> {
        let hdr = self.output.segment(PT_GNU_EH_FRAME)?;
        let at = self.offset(hdr.addr)?;
        let count = u32_in(self.file(at + 8, 4), 0)? as usize;
        let (entry, end) = (at + 12 + 8 * n, at + 12 + 8 * count);
        let mut rest = self.file(entry + 8, end.checked_sub(entry + 8)?).to_vec();
        rest.extend([0; 8]);
        let fewer = u32::try_from(count.checked_sub(1)?).ok()?;
        let what = format!("the FDE of {:#x}", table.fdes.get(n)?.start);
        let changes = vec![(at + 8, fewer.to_le_bytes().to_vec()), (entry, rest)];
        Some(Edit { what, changes })
    }

    /// An unwind entry that is shorter by an instruction, or a byte.
    fn shortened(&self, table: &Table<'_>, fde: &Fde) -> Option<Edit> {
        let size = pointer::size(table.cie_of(fde)?.fde_encoding)? as usize;
        let at = self.offset(table.addr + u64::from(fde.offset))? + 8 + size;
        let len = u32_in(self.file(at, 4), 0)?;
        let less = len.checked_sub(if self.arm { 4 } else { 1 })?;
        let what = format!("the FDE of {:#x}..{:#x}", fde.start, fde.end);
        Some(Edit::new(what, at, &less.to_le_bytes()))
    }

    /// From behind the instruction that moves the stack pointer to behind the one that moves it back.
    fn places_of_saves(&self) -> Vec<(u64, u64)> {
        let end = |s: &Site| s.addr + u64::from(s.insn.len);
        let (mut all, mut begin) = (Vec::new(), None);
        for site in &self.sites {
            let bytes = self.bytes(site);
            let (down, up) = match *bytes {
                // stp or str to [sp,#-16]!; ldp or ldr from [sp],#16
                [_, 0x0f, 0x1f, 0xf8] if self.arm => (true, false),
                [_, _, 0xbf, 0xa9] if self.arm => (true, false),
                [_, 0x07, 0x41, 0xf8] if self.arm => (false, true),
                [_, _, 0xc1, 0xa8] if self.arm => (false, true),
                [0x48, 0x8d, 0x64, 0x24, 0x80] => (true, false),
                [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0] => (false, true),
                _ => (false, false),
            };
            if down {
                begin = Some(end(site));
            } else if up && let Some(begin) = begin.take() {
                all.push((begin, end(site)));
            }
        }
        all
    }

    /// What spoils the row of the first of some call frame instructions.
    fn stack_row(&self, kind: Kind, table: &Table<'_>, list: &[Cfi]) -> Option<Edit> {
        let (cfi, next) = (list.first()?, list.get(1));
        let at = self.offset(table.addr + cfi.at as u64)?;
        let operand = at + (cfi.operand - cfi.at);
        let (byte, low) = (*self.file(at, 1).first()?, *self.file(operand, 1).first()?);
        let what = format!("the row at {:#x}", cfi.location);
        let offset = matches!(cfi.opcode, 0x0e | 0x13);
        match kind {
            Kind::StackRowLost if offset => {
                let len = next.map_or(2, |n| n.at - cfi.at);
                Some(Edit::new(what, at, &vec![0; len]))
            }
            Kind::StackRowOff if offset => {
                let bit = if cfi.opcode == 0x0e { 8 } else { 1 };
                Some(Edit::new(what, operand, &[low ^ bit]))
            }
            Kind::StackRowLate if cfi.opcode == 0x40 && byte & 0x3f < 0x3f => {
                next.filter(|n| matches!(n.opcode, 0x0e | 0x13 | 0x0b))?;
                let mut changes = vec![(at, vec![byte + 1])];
                // What comes after it begins where it did.
                if let Some(later) = list.iter().skip(1).find(|n| n.advances)
                    && later.opcode == 0x40
                    && let Some(place) = self.offset(table.addr + later.at as u64)
                    && let Some(by) = self.file(place, 1).first().filter(|b| **b & 0x3f > 1)
                {
                    changes.push((place, vec![by - 1]));
                }
                Some(Edit { what, changes })
            }
            _ => None,
        }
    }

    fn rows(&self, kind: Kind, table: &Table<'_>, fde: &Fde) -> Vec<Edit> {
        let mut edits = Vec::new();
        let list = program(table, fde);
        for (i, cfi) in list.iter().enumerate() {
            // The row must be that of a reached instruction.
            let Some(at) = self
                .offset(table.addr + cfi.at as u64)
                .filter(|_| self.site_at(cfi.location).is_some())
            else {
                continue;
            };
            let operand = at + (cfi.operand - cfi.at);
            let byte = self.file(at, 1).first().copied().unwrap_or(0);
            let what = format!(
                "the row at {:#x} of the FDE of {:#x}",
                cfi.location, fde.start
            );
            // What follows at the same place could undo the change.
            let next = list.get(i + 1);
            let lasts = next.is_none_or(|n| {
                n.advances || n.opcode != cfi.opcode && !matches!(n.opcode, 0x0b | 0x0c | 0xc0)
            });
            let settled = list
                .iter()
                .skip(i + 1)
                .take_while(|n| !n.advances)
                .all(|n| !matches!(n.opcode, 0x0b | 0x0c | 0x0e | 0xc0));
            match (kind, cfi.opcode) {
                // An advance without a change after it would change nothing.
                (Kind::RowBeginsLate, 0x40)
                    if byte & 0x3f < 0x3f
                        && next.is_some_and(|n| !n.advances && !matches!(n.opcode, 0 | 0x2e)) =>
                {
                    edits.push(Edit::new(what, at, &[byte + 1]))
                }
                (Kind::RowBeginsLate, 2..=4)
                    if next.is_some_and(|n| !n.advances && !matches!(n.opcode, 0 | 0x2e)) =>
                {
                    let low = self.file(operand, 1).first().copied().unwrap_or(0xff);
                    if low < 0xff {
                        edits.push(Edit::new(what, operand, &[low + 1]));
                    }
                }
                (Kind::WrongCfaOffset, 0x0e) if settled => {
                    let low = self.file(operand, 1).first().copied().unwrap_or(0);
                    edits.push(Edit::new(what, operand, &[low ^ 8]));
                }
                (Kind::WrongCfaOffset, 0x0c) if settled => {
                    let low = self.file(operand + 1, 1).first().copied().unwrap_or(0);
                    edits.push(Edit::new(what, operand + 1, &[low ^ 8]));
                }
                (Kind::WrongArgsSize, 0x2e) => {
                    // It must hold at a call that has a landing pad. States taken up again may bring another size.
                    let ends = list
                        .iter()
                        .skip(i + 1)
                        .find(|n| matches!(n.opcode, 0x0a | 0x0b | 0x2e));
                    if self.call_with_pad(fde, cfi.location, ends.map_or(fde.end, |n| n.location)) {
                        edits.push(Edit::new(
                            what,
                            operand,
                            &[self.file(operand, 1).first().copied().unwrap_or(0) ^ 8],
                        ));
                    }
                }
                (Kind::SignStateLost, 0x2d) if settled => edits.push(Edit::new(what, at, &[0])),
                (Kind::WrongRegisterRule, 0x80) if lasts && settled => {
                    edits.push(Edit::new(what, at, &[byte ^ 1]))
                }
                (Kind::WrongRegisterRule, 0x11) if lasts && settled => {
                    let low = self.file(operand, 1).first().copied().unwrap_or(0);
                    edits.push(Edit::new(what, operand, &[low ^ 1]));
                }
                _ => {}
            }
        }
        edits
    }

    /// Whether a reached call in a range of a moved function's code has a landing pad.
    fn call_with_pad(&self, fde: &Fde, from: u64, to: u64) -> bool {
        let Some(area) = self.area(fde) else {
            return false;
        };
        let calls = self
            .sites
            .iter()
            .filter(|s| matches!(s.insn.flow, Flow::Call(_) | Flow::IndirectCall));
        let mut seen = calls
            .map(|s| s.addr + u64::from(s.insn.len) - 1)
            .filter(|ip| from <= *ip && *ip < to);
        seen.any(|ip| {
            area.sites
                .iter()
                .any(|s| s.pad_value != 0 && s.start <= ip && ip < s.end)
        })
    }

    fn extent(&self, kind: Kind, table: &Table<'_>, fde: &Fde) -> Option<Edit> {
        let cie = table.cie_of(fde)?;
        let size = pointer::size(cie.fde_encoding)? as usize;
        // After length and CIE pointer: start, length, augmentation length, LSDA.
        let at = self.offset(table.addr + u64::from(fde.offset))? + 8 + size;
        let what = format!("the FDE of {:#x}..{:#x}", fde.start, fde.end);
        let low = u32_in(self.file(at, 4), 0)?;
        match kind {
            Kind::FdeTooShort => {
                let last = self
                    .sites
                    .iter()
                    .rev()
                    .find(|s| s.addr + u64::from(s.insn.len) == fde.end)?;
                Some(Edit::new(
                    what,
                    at,
                    &(low - u32::from(last.insn.len)).to_le_bytes(),
                ))
            }
            Kind::FdeTooLong => Some(Edit::new(what, at, &(low + 0x40).to_le_bytes())),
            _ => {
                let calls = self.sites.iter().any(|s| {
                    fde.start <= s.addr
                        && s.addr < fde.end
                        && matches!(s.insn.flow, Flow::Call(_) | Flow::IndirectCall)
                });
                (fde.lsda != 0 && calls && cie.lsda_encoding & 0x0f == 0x0b)
                    .then(|| Edit::new(what, at + size + 1, &[0; 4]))
            }
        }
    }

    fn search(&self, kind: Kind, table: &Table<'_>) -> Vec<Edit> {
        let Some(hdr) = self.output.segment(PT_GNU_EH_FRAME) else {
            return Vec::new();
        };
        let Some(at) = self.offset(hdr.addr) else {
            return Vec::new();
        };
        // Four bytes of header, the pointer, the number: as linkers write them.
        let count_at = at + 8;
        let first = at + 12;
        if self.file(at, 4) != [1, 0x1b, 3, 0x3b] {
            return Vec::new();
        }
        if kind == Kind::SearchEntryMissing {
            let count = table.fdes.len() as u32;
            return vec![Edit::new(
                "the last entry",
                count_at,
                &count.saturating_sub(1).to_le_bytes(),
            )];
        }
        (1..table.fdes.len())
            .map(|i| {
                let (a, b) = (first + 8 * (i - 1), first + 8 * i);
                let what = format!("entry {i}");
                if kind == Kind::SearchTableUnsorted {
                    let mut both = self.file(b, 8).to_vec();
                    both.extend(self.file(a, 8));
                    Edit::new(what, a, &both)
                } else {
                    Edit::new(what, b + 4, self.file(a + 4, 4))
                }
            })
            .collect()
    }

    /// The program header of the unwind table, which the program had none of, tells of nothing.
    pub(super) fn lost_header(&self) -> Vec<Edit> {
        if self.input.segment(PT_GNU_EH_FRAME).is_some() {
            return Vec::new();
        }
        let headers = (0..self.output.phnum).map(|i| (self.output.phoff + 56 * i) as usize);
        let kind = PT_GNU_EH_FRAME.to_le_bytes();
        let lost = headers.filter(|at| self.file(*at, 4) == kind);
        lost.map(|at| Edit::new("it is gone", at, &[0; 4]))
            .collect()
    }

    pub(super) fn area(&self, fde: &Fde) -> Option<Area> {
        let bytes = self.output.bytes_from(fde.lsda)?;
        let file = self.offset(fde.lsda)?;
        let mut r = Reader::new(bytes);
        let base = r.u8()?;
        if base != pointer::OMIT {
            pointer::read_value(&mut r, base)?;
        }
        let type_encoding = r.u8()?;
        let types = if type_encoding == pointer::OMIT {
            None
        } else {
            let distance = r.uleb()? as usize;
            Some(file + r.pos() + distance)
        };
        let encoding = r.u8()?;
        let end = r.uleb()? as usize + r.pos();
        let mut sites = Vec::new();
        while r.pos() < end {
            let mut field = |encoding: u8| {
                let at = r.pos();
                let value = pointer::read_value(&mut r, encoding)?;
                Some(((file + at, r.pos() - at), value))
            };
            let (_, start) = field(encoding)?;
            let (len, length) = field(encoding)?;
            let (pad, pad_value) = field(encoding)?;
            let (action, action_value) = field(1)?;
            let start = fde.start + start;
            sites.push(SiteFields {
                start,
                end: start + length,
                len,
                pad,
                pad_value,
                action,
                action_value,
            });
        }
        Some(Area {
            sites,
            leb: encoding == 1,
            actions: file + end,
            types,
            type_encoding,
        })
    }

    /// Whether the personality routine of an entry is one of Ada's, by the symbol of the word that holds its address.
    pub(super) fn faults_raise(&self, table: &Table<'_>, fde: &Fde) -> bool {
        let Some(cie) = table.cie_of(fde) else {
            return false;
        };
        let at = cie.personality.addr;
        let mut symbols = self.output.symbols(SHT_SYMTAB);
        symbols.any(|s| s.value == at && s.name == b"DW.ref.__gnat_personality_v0")
    }

    /// Changes at the ends of call sites that only instructions other than calls can see.
    fn fault_edits(&self, kind: Kind, fde: &Fde) -> Vec<Edit> {
        let Some(area) = self.area(fde) else {
            return Vec::new();
        };
        let is_plain = |insn: &Insn| insn.flow == Flow::Next;
        let mut edits = Vec::new();
        for (i, s) in area
            .sites
            .iter()
            .enumerate()
            .filter(|(_, s)| s.pad_value != 0)
        {
            let (at, len) = s.len;
            let by = match kind {
                Kind::CallSiteStretched => {
                    let free = area.sites.get(i + 1).map_or(fde.end, |next| next.start);
                    let behind = self.site_at(s.end).filter(|c| is_plain(&c.insn));
                    let fits = behind.filter(|c| c.addr + u64::from(c.insn.len) <= free);
                    fits.map(|c| i64::from(c.insn.len))
                }
                _ => {
                    let last = self
                        .sites
                        .iter()
                        .rfind(|c| c.addr < s.end && c.addr >= s.start);
                    let ends = last.filter(|c| c.addr + u64::from(c.insn.len) == s.end);
                    ends.filter(|c| is_plain(&c.insn))
                        .map(|c| -i64::from(c.insn.len))
                }
            };
            let value = by.and_then(|by| (s.end - s.start).checked_add_signed(by));
            let Some(value) = value else { continue };
            let bytes: Vec<u8> = match (area.leb, len) {
                (true, 1) if value < 0x80 => vec![value as u8],
                (true, 2) if value < 0x4000 => vec![value as u8 | 0x80, (value >> 7) as u8],
                (false, _) => value.to_le_bytes()[..len].to_vec(),
                _ => continue,
            };
            edits.push(Edit::new(
                format!("the end of the call site at {:#x}", s.end),
                at,
                &bytes,
            ));
        }
        edits
    }

    fn area_edits(&self, kind: Kind, fde: &Fde) -> Vec<Edit> {
        let Some(area) = self.area(fde) else {
            return Vec::new();
        };
        let mut edits = Vec::new();
        for s in &area.sites {
            // Only calls that are reached ask for their call site.
            let Some(call) = self.sites.iter().rfind(|c| {
                s.start <= c.addr
                    && c.addr < s.end
                    && matches!(c.insn.flow, Flow::Call(_) | Flow::IndirectCall)
            }) else {
                continue;
            };
            let what = format!("the call at {:#x}", call.addr);
            let low = |at: usize| self.file(at, 1).first().copied().unwrap_or(0);
            // LEB128 keeps its length if only the low bits change, or all of them go.
            let zero = |(at, len): (usize, usize), leb: bool| {
                (
                    at,
                    (0..len)
                        .map(|i| {
                            if leb && i + 1 < len && low(at + i) & 0x80 != 0 {
                                0x80
                            } else {
                                0
                            }
                        })
                        .collect::<Vec<u8>>(),
                )
            };
            match kind {
                Kind::WrongLandingPad if s.pad_value != 0 => {
                    edits.push(Edit::new(what, s.pad.0, &[low(s.pad.0) ^ 1]))
                }
                Kind::LandingPadDropped if s.pad_value != 0 => {
                    let (at, bytes) = zero(s.pad, area.leb);
                    edits.push(Edit::new(what, at, &bytes));
                }
                Kind::CallSiteTooShort if call.addr + u64::from(call.insn.len) == s.end => {
                    let (at, bytes) = zero(s.len, area.leb);
                    edits.push(Edit::new(what, at, &bytes));
                }
                Kind::ChangedAction if s.pad_value != 0 && s.action_value != 0 => {
                    let (at, bytes) = zero(s.action, true);
                    edits.push(Edit::new(what, at, &bytes));
                }
                Kind::ChangedFilter | Kind::WrongType
                    if s.pad_value != 0 && s.action_value != 0 =>
                {
                    let record = area.actions + s.action_value as usize - 1;
                    let filter = low(record);
                    if filter == 0 || filter >= 0x40 {
                        continue;
                    }
                    if kind == Kind::ChangedFilter {
                        // Filter 0 is a cleanup: never the same as a handler.
                        edits.push(Edit::new(what, record, &[0]));
                    } else if let (Some(types), Some(size)) =
                        (area.types, pointer::size(area.type_encoding))
                    {
                        let at = types.saturating_sub(usize::from(filter) * size as usize);
                        edits.push(Edit::new(what, at, &[low(at) ^ 8]));
                    }
                }
                _ => {}
            }
        }
        edits
    }
}
