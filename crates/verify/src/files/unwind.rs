//! Unwind tables, found as the run-time finds them, and the rows they describe.
//!
//! The run-time takes PT_GNU_EH_FRAME, searches the sorted table in it for the last entry that starts at or
//! before the address, and reads the one FDE that the entry points to. So does [`Table`], but for entries
//! without code. FDE and CIE headers are read here; the call frame instructions are run here where they are common ones
//! ([`frame_program`](super::frame_program)) and by `gimli` otherwise, once per FDE and only for FDEs that a moved
//! function has.
//!
//! `.eh_frame_hdr`:
//!
//! | field | size |
//! |---|---|
//! | version 1, encodings of the three fields that follow | 4 bytes |
//! | pointer to `.eh_frame` | as encoded |
//! | number of FDEs | as encoded |
//! | per FDE: start address, address of the FDE; relative to the table's start | 2 × s32 |
//!
//! A row is compared as a whole, with everything that the run-time takes from the CIE: [`Row`]. Rows are given small
//! numbers by an [`Interner`], so that comparing the rows of two instructions is comparing two numbers.

use crate::arch::Arch;
use crate::files::bytes::{Reader, put_sleb, u32_in};
use crate::files::elf::{Elf, PT_GNU_EH_FRAME};
use crate::files::frame_program::{self, Plain};
use crate::files::pointer::{self, Bases, OMIT, Pointer};
use gimli::{
    BaseAddresses, CfaRule, EndianSlice, LittleEndian, Operation, RegisterRule, UnwindContext,
    UnwindSection,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::xxh3_128;

/// A common information entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cie {
    pub offset: usize,
    pub fde_encoding: u8,
    pub lsda_encoding: u8,
    pub personality: Pointer,
    pub signal_frame: bool,
    pub augmented: bool,
    pub code_align: u64,
    pub data_align: i64,
    pub ra_register: u64,
    /// Letters of the augmentation without data: `B`, return addresses signed with key B; `G`, tagged stack frames.
    pub marks: [bool; 2],
    /// Place of the initial instructions in the section.
    pub instructions: (usize, usize),
    /// A digest of all that entries with it take from it.
    meaning: u128,
}

/// A frame description entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fde {
    pub start: u64,
    pub end: u64,
    /// Address of the LSDA, 0 if none.
    pub lsda: u64,
    pub offset: u32,
    pub cie: u32,
    /// Place of the instructions in the section.
    pub instructions: (u32, u32),
}

/// A file's unwind table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table<'d> {
    /// Address of `.eh_frame`.
    pub addr: u64,
    /// `.eh_frame` to the end of what is loaded after it.
    pub bytes: &'d [u8],
    pub cies: Vec<Cie>,
    /// In the order of the search table: ascending and disjoint.
    pub fdes: Vec<Fde>,
    /// Entries that a walk over the whole section sees.
    pub linear_fdes: usize,
    /// Whether there is a search table.
    pub searchable: bool,
}

impl<'d> Table<'d> {
    /// Reads a file's table; an empty one if it has none. Errors are sentences.
    pub(crate) fn read(elf: &Elf<'d>) -> Result<Self, String> {
        let Some(hdr) = elf.segment(PT_GNU_EH_FRAME) else {
            return Self::read_section(elf);
        };
        let bytes = elf.bytes(hdr.addr, hdr.file_size).ok_or_else(|| {
            format!(
                "PT_GNU_EH_FRAME at {:#x} is not loaded from the file",
                hdr.addr
            )
        })?;
        let short = || format!("the unwind search table at {:#x} ends early", hdr.addr);
        let mut r = Reader::new(bytes);
        let (version, frame_enc, count_enc, table_enc) =
            (|| Some((r.u8()?, r.u8()?, r.u8()?, r.u8()?)))().ok_or_else(short)?;
        if version != 1 {
            return Err(format!(
                "the unwind search table at {:#x} has version {version} instead of 1",
                hdr.addr
            ));
        }
        let bases = Bases {
            section: hdr.addr,
            data: hdr.addr,
            function: 0,
        };
        let frame = pointer::read(&mut r, frame_enc, &bases).ok_or_else(short)?;
        let mut table = Table {
            addr: frame.addr,
            searchable: true,
            ..Table::default()
        };
        if count_enc == OMIT || table_enc == OMIT {
            return Self::read_section(elf);
        }
        if table_enc != 0x3b {
            return Err(format!(
                "the unwind search table at {:#x} has the encoding {table_enc:#x}; the run-time can search only 0x3b",
                hdr.addr
            ));
        }
        let count = pointer::read(&mut r, count_enc, &bases)
            .ok_or_else(short)?
            .addr;
        if count == 0 && elf.bytes_from(frame.addr).is_none() {
            return Ok(table);
        }
        table.bytes = elf.bytes_from(frame.addr).ok_or_else(|| {
            format!(
                ".eh_frame at {:#x} (from the search table at {:#x}) is not loaded",
                frame.addr, hdr.addr
            )
        })?;
        let entries = r
            .take(
                usize::try_from(count)
                    .ok()
                    .and_then(|c| c.checked_mul(8))
                    .ok_or_else(short)?,
            )
            .ok_or_else(short)?;
        table.fdes.reserve(entries.len() / 8);
        let mut known = FxHashMap::default();
        for entry in entries.chunks_exact(8) {
            let word = |at| {
                u32_in(entry, at).map_or(0, |w| hdr.addr.wrapping_add_signed(i64::from(w as i32)))
            };
            let (start, at) = (word(0), word(4));
            let offset = at
                .checked_sub(frame.addr)
                .and_then(|o| usize::try_from(o).ok());
            let fde = offset
                .and_then(|o| table.fde(o, &mut known))
                .ok_or_else(|| {
                    format!(
                        "the search table's entry for {start:#x} points to {at:#x}, where no FDE is"
                    )
                })?;
            if fde.start != start {
                return Err(format!(
                    "the search table's entry for {start:#x} points to the FDE of {:#x}",
                    fde.start
                ));
            }
            if let Some(last) = table.fdes.last() {
                if last.start >= start {
                    return Err(format!(
                        "the search table is not sorted: {start:#x} follows {:#x}",
                        last.start
                    ));
                }
                if last.end > start {
                    return Err(format!(
                        "the FDEs of {:#x}..{:#x} and {start:#x} overlap",
                        last.start, last.end
                    ));
                }
            }
            table.fdes.push(fde);
        }
        table.linear_fdes = table.count_linear();
        table.look_behind_empty(&mut known);
        Ok(table)
    }

    /// One FDE, wherever it is, and its CIE.
    pub(crate) fn read_entry(elf: &Elf<'d>, addr: u64) -> Option<(Self, Fde)> {
        let back = u32_in(elf.bytes_from(addr)?, 4)?;
        let cie = addr.checked_add(4)?.checked_sub(u64::from(back))?;
        let mut table = Table {
            addr: cie,
            bytes: elf.bytes_from(cie)?,
            ..Table::default()
        };
        let offset = usize::try_from(addr.checked_sub(cie)?).ok()?;
        let fde = table.fde(offset, &mut FxHashMap::default())?;
        Some((table, fde))
    }

    /// Puts the entry that has code in the place of one without. A function without code shares its start
    /// with the one after it, and so do their entries; lld's search table has only the first, whatever it
    /// describes. That is taken for the mistake that it is: the code has an entry, and a table that finds it
    /// is not a wrong one.
    fn look_behind_empty(&mut self, known: &mut FxHashMap<usize, u32>) {
        let empty: FxHashMap<u64, usize> = self
            .fdes
            .iter()
            .enumerate()
            .filter(|(_, f)| f.start == f.end)
            .map(|(i, f)| (f.start, i))
            .collect();
        if empty.is_empty() {
            return;
        }
        let mut offsets = Vec::new();
        self.each_fde(|offset| offsets.push(offset));
        for offset in offsets {
            let Some(fde) = self.fde(offset, known).filter(|f| f.start < f.end) else {
                continue;
            };
            let Some(&index) = empty.get(&fde.start) else {
                continue;
            };
            let fits = self
                .fdes
                .get(index + 1)
                .is_none_or(|next| fde.end <= next.start);
            if let Some(entry) = self
                .fdes
                .get_mut(index)
                .filter(|entry| fits && entry.start == entry.end)
            {
                *entry = fde;
            }
        }
    }

    /// Without a search table: every FDE of the section `.eh_frame`, sorted.
    fn read_section(elf: &Elf<'d>) -> Result<Self, String> {
        let Some(section) = elf.section(b".eh_frame") else {
            return Ok(Table::default());
        };
        let mut table = Table {
            addr: section.addr,
            bytes: elf.section_data(section),
            ..Table::default()
        };
        let mut known = FxHashMap::default();
        let mut offsets = Vec::new();
        table.each_fde(|offset| offsets.push(offset));
        for offset in offsets {
            let fde = table.fde(offset, &mut known).ok_or_else(|| {
                format!(
                    "the FDE at {:#x} cannot be read",
                    section.addr + offset as u64
                )
            })?;
            table.fdes.push(fde);
        }
        table.linear_fdes = table.fdes.len();
        table.fdes.sort_by_key(|f| (f.start, f.end));
        table.fdes.dedup_by(|b, a| b.start < a.end);
        Ok(table)
    }

    /// Calls for the offset of each FDE up to the terminator or the first nonsense.
    fn each_fde(&self, mut found: impl FnMut(usize)) {
        let mut at = 0usize;
        while let Some(len) = u32_in(self.bytes, at).filter(|&l| l != 0 && l != u32::MAX) {
            let Some(id) = u32_in(self.bytes, at + 4) else {
                return;
            };
            let Some(next) = at
                .checked_add(4)
                .and_then(|a| a.checked_add(len as usize))
                .filter(|&n| n <= self.bytes.len())
            else {
                return;
            };
            if id != 0 {
                found(at);
            }
            at = next;
        }
    }

    fn count_linear(&self) -> usize {
        let mut count = 0;
        self.each_fde(|_| count += 1);
        count
    }

    /// Bytes of the entry at an offset after its length field, and where they start.
    fn body(&self, offset: usize) -> Option<(usize, &'d [u8])> {
        let len = u32_in(self.bytes, offset).filter(|&l| l != 0 && l != u32::MAX)? as usize;
        let start = offset.checked_add(4)?;
        Some((start, self.bytes.get(start..start.checked_add(len)?)?))
    }

    fn fde(&mut self, offset: usize, known: &mut FxHashMap<usize, u32>) -> Option<Fde> {
        let (start, body) = self.body(offset)?;
        let mut r = Reader::new(body);
        let back = r.u32()? as usize;
        let cie_at = start.checked_sub(back).filter(|_| back != 0)?;
        let cie_index = match known.get(&cie_at) {
            Some(&index) => index,
            None => {
                let cie = self.cie(cie_at)?;
                let index = u32::try_from(self.cies.len()).ok()?;
                self.cies.push(cie);
                known.insert(cie_at, index);
                index
            }
        };
        let cie = self.cies.get(cie_index as usize)?;
        let bases = Bases {
            section: self.addr.wrapping_add(start as u64),
            data: 0,
            function: 0,
        };
        let begin = pointer::read(&mut r, cie.fde_encoding, &bases)?;
        let len = pointer::read_value(&mut r, cie.fde_encoding & 0x0f)?;
        if begin.indirect {
            return None;
        }
        let mut lsda = 0;
        if cie.augmented {
            let len = usize::try_from(r.uleb()?).ok()?;
            let at = r.pos();
            if cie.lsda_encoding != OMIT {
                let mut l = r;
                let bases = Bases {
                    function: begin.addr,
                    ..bases
                };
                lsda = pointer::read(&mut l, cie.lsda_encoding, &bases)?.addr;
            }
            r = Reader::new(body);
            r.take(at.checked_add(len)?)?;
        }
        Some(Fde {
            start: begin.addr,
            end: begin.addr.checked_add(len)?,
            lsda,
            offset: u32::try_from(offset).ok()?,
            cie: cie_index,
            instructions: (
                u32::try_from(start + r.pos()).ok()?,
                u32::try_from(start + body.len()).ok()?,
            ),
        })
    }

    fn cie(&self, offset: usize) -> Option<Cie> {
        let (start, body) = self.body(offset)?;
        let mut r = Reader::new(body);
        if r.u32()? != 0 {
            return None;
        }
        let version = r.u8()?;
        if !matches!(version, 1 | 3) {
            return None;
        }
        let rest = body.get(r.pos()..)?;
        let augmentation = rest.get(..rest.iter().position(|&b| b == 0)?)?;
        r.take(augmentation.len() + 1)?;
        let code_align = r.uleb()?;
        let data_align = r.sleb()?;
        let ra_register = if version == 1 {
            u64::from(r.u8()?)
        } else {
            r.uleb()?
        };
        let mut cie = Cie {
            offset,
            fde_encoding: 0,
            lsda_encoding: OMIT,
            personality: Pointer::NULL,
            signal_frame: false,
            augmented: augmentation.first() == Some(&b'z'),
            code_align,
            data_align,
            ra_register,
            marks: [false; 2],
            instructions: (0, 0),
            meaning: 0,
        };
        let mut rest = augmentation;
        if cie.augmented {
            let len = usize::try_from(r.uleb()?).ok()?;
            let end = r.pos().checked_add(len)?;
            for &letter in rest.get(1..)? {
                match letter {
                    b'R' => cie.fde_encoding = r.u8()?,
                    b'L' => cie.lsda_encoding = r.u8()?,
                    b'S' => cie.signal_frame = true,
                    b'P' => {
                        let encoding = r.u8()?;
                        let bases = Bases {
                            section: self.addr.wrapping_add(start as u64),
                            data: 0,
                            function: 0,
                        };
                        cie.personality = pointer::read(&mut r, encoding, &bases)?;
                    }
                    b'B' => cie.marks[0] = true,
                    b'G' => cie.marks[1] = true,
                    _ => return None,
                }
            }
            if r.pos() > end {
                return None;
            }
            r = Reader::new(body);
            r.take(end)?;
            rest = b"";
        }
        if !rest.is_empty() {
            return None;
        }
        cie.instructions = (start + r.pos(), start + body.len());
        cie.meaning = self.meaning_of_cie(&cie);
        Some(cie)
    }

    /// The FDE that the run-time finds for an address.
    pub(crate) fn find(&self, addr: u64) -> Option<&Fde> {
        let next = self.fdes.partition_point(|f| f.start <= addr);
        self.fdes.get(next.checked_sub(1)?).filter(|f| addr < f.end)
    }

    /// All FDEs that share an address with a range.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> &[Fde] {
        let first = self.fdes.partition_point(|f| f.end <= start);
        let last = self.fdes.partition_point(|f| f.start < end);
        self.fdes.get(first..last.max(first)).unwrap_or(&[])
    }

    pub(crate) fn cie_of(&self, fde: &Fde) -> Option<&Cie> {
        self.cies.get(fde.cie as usize)
    }

    /// The FDE's instructions without the padding at their end.
    pub(crate) fn instructions(&self, fde: &Fde) -> &'d [u8] {
        trim(
            self.bytes
                .get(fde.instructions.0 as usize..fde.instructions.1 as usize)
                .unwrap_or(b""),
        )
    }

    fn cie_instructions(&self, cie: &Cie) -> &'d [u8] {
        trim(
            self.bytes
                .get(cie.instructions.0..cie.instructions.1)
                .unwrap_or(b""),
        )
    }

    /// Whether two FDEs of the same code mean the same, seen from their bytes.
    pub(crate) fn same_meaning(&self, a: &Fde, other: &Table<'_>, b: &Fde) -> bool {
        let (Some(ca), Some(cb)) = (self.cie_of(a), other.cie_of(b)) else {
            return false;
        };
        a.start == b.start
            && a.end == b.end
            && a.lsda == b.lsda
            && ca.personality == cb.personality
            && (ca.signal_frame, ca.marks) == (cb.signal_frame, cb.marks)
            && (ca.code_align, ca.data_align, ca.ra_register)
                == (cb.code_align, cb.data_align, cb.ra_register)
            && self.cie_instructions(ca) == other.cie_instructions(cb)
            && self.instructions(a) == other.instructions(b)
    }

    /// A digest of all that [`Table::same_meaning`] compares.
    pub(crate) fn meaning(&self, fde: &Fde) -> Option<u128> {
        /// Numbers in front of the instructions, always as many bytes.
        const HEAD: usize = 40;
        let of_cie = self.cie_of(fde)?.meaning;
        let numbers = [
            fde.start,
            fde.end,
            fde.lsda,
            of_cie as u64,
            (of_cie >> 64) as u64,
        ];
        let instructions = self.instructions(fde);
        let put = |bytes: &mut [u8]| {
            let (head, rest) = bytes.split_at_mut(HEAD);
            for (place, number) in head.chunks_exact_mut(8).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            rest.copy_from_slice(instructions);
            xxh3_128(bytes)
        };
        // There are hundreds of thousands of entries, nearly all of them short.
        let mut short = [0; 4 * HEAD];
        Some(match short.get_mut(..HEAD + instructions.len()) {
            Some(bytes) => put(bytes),
            None => put(&mut vec![0; HEAD + instructions.len()]),
        })
    }

    /// A digest of what [`Table::same_meaning`] compares of common entries.
    fn meaning_of_cie(&self, cie: &Cie) -> u128 {
        let numbers = [
            cie.code_align,
            cie.data_align as u64,
            cie.ra_register,
            u64::from(cie.signal_frame),
            u64::from(cie.marks[0]),
            u64::from(cie.marks[1]),
            cie.personality.addr,
            u64::from(cie.personality.indirect),
        ];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.extend_from_slice(self.cie_instructions(cie));
        xxh3_128(&bytes)
    }
}

/// Drops `DW_CFA_nop` at the end. A zero there can also belong to an operand; both sides lose the same bytes then,
/// and operands of different length differ elsewhere.
fn trim(bytes: &[u8]) -> &[u8] {
    let len = bytes.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
    bytes.get(..len).unwrap_or(b"")
}

/// How one register or the CFA is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Undefined,
    Offset(i64),
    ValOffset(i64),
    Register(u16),
    RegisterOffset(u16, i64),
    Expression(Box<[u8]>),
    ValExpression(Box<[u8]>),
    Other(u64),
}

impl Rule {
    /// A number that is the same for equal rules, and mostly another for others.
    fn key(&self) -> u64 {
        let (kind, number) = match self {
            Rule::Undefined => (0, 0),
            Rule::Offset(at) => (1, *at as u64),
            Rule::ValOffset(at) => (2, *at as u64),
            Rule::Register(register) => (3, u64::from(*register)),
            Rule::RegisterOffset(register, at) => {
                (4, u64::from(*register).rotate_left(32) ^ *at as u64)
            }
            Rule::Expression(bytes) => (5, bytes.len() as u64),
            Rule::ValExpression(bytes) => (6, bytes.len() as u64),
            Rule::Other(number) => (7, *number),
        };
        number << 3 ^ number >> 61 ^ kind
    }
}

/// Everything that the run-time knows at one place but for the LSDA, and for the size of pushed arguments
/// (`DW_CFA_GNU_args_size`): that is read only when control goes to a landing pad, so it is compared there
/// ([`Span::args_size`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub cfa: Rule,
    /// Sorted by register. "Same value" is what a register without a rule has, so it is not listed.
    pub registers: SmallVec<[(u16, Rule); 8]>,
    pub ra_register: u64,
    signal_frame: bool,
    marks: [bool; 2],
    personality: Pointer,
    /// Where the row is if an expression in it reads the program counter: such a row equals no other.
    place: u64,
}

// What rows of one function differ in; the rest is left to the comparison.
impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.cfa.key());
        for (register, rule) in &self.registers {
            state.write_u64(rule.key() ^ u64::from(*register) << 48);
        }
        state.write_u64(self.place);
    }
}

impl Row {
    /// See [`Interner::lowered`].
    fn lowered<A: Arch>(mut self, down: i64) -> Option<Row> {
        let lower = |rule: &mut Rule| -> Option<()> {
            match rule {
                Rule::RegisterOffset(register, offset) if *register == A::UNWIND_STACK => {
                    *offset = offset.checked_add(down)?;
                }
                // It is where the stack pointer is: no rule says that it is beside it.
                Rule::Register(register) if *register == A::UNWIND_STACK => return None,
                Rule::Expression(bytes) | Rule::ValExpression(bytes) => {
                    *bytes = lowered_expression::<A>(bytes, down)?;
                }
                _ => {}
            }
            Some(())
        };
        lower(&mut self.cfa)?;
        self.registers
            .iter_mut()
            .try_for_each(|r| lower(&mut r.1))?;
        Some(self)
    }

    /// Whether it says what holds where a call has come, and nothing else.
    fn is_of_call<A: Arch>(&self) -> bool {
        let pushed = (self.ra_register, Rule::Offset(-A::CALL_PUSHES));
        let rules = self.registers.iter();
        let rules = rules.map(|(register, rule)| (u64::from(*register), rule.clone()));
        self.cfa == Rule::RegisterOffset(A::UNWIND_STACK, A::CALL_PUSHES)
            && rules.eq((A::CALL_PUSHES != 0).then_some(pushed))
            && !self.signal_frame
    }

    /// Whether a rule says where the return address is.
    fn has_return_address(&self) -> bool {
        let mut rules = self.registers.iter();
        rules.any(|r| u64::from(r.0) == self.ra_register)
    }

    /// See [`Interner::reads`].
    fn reads<A: Arch>(&self) -> u32 {
        let rules = self.registers.iter().map(|r| &r.1).chain([&self.cfa]);
        let mut set = match A::LINK.first() {
            Some(link) if !self.has_return_address() => 1 << link,
            _ => 0,
        };
        for rule in rules {
            match rule {
                Rule::Register(register) | Rule::RegisterOffset(register, _) => {
                    set |= A::of_unwind_register(*register);
                }
                Rule::Expression(bytes) | Rule::ValExpression(bytes) => {
                    let bytes = gimli::Expression(EndianSlice::new(bytes, LittleEndian));
                    let mut operations = bytes.operations(EXPRESSIONS);
                    while let Ok(Some(operation)) = operations.next() {
                        if let Operation::Register { register: r }
                        | Operation::RegisterOffset { register: r, .. } = operation
                        {
                            set |= A::of_unwind_register(r.0);
                        }
                    }
                }
                _ => {}
            }
        }
        set
    }
}

const EXPRESSIONS: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 5,
};

/// The expression with `down` added to the offset of each base that is the stack pointer; `None`: it is not understood,
/// or branches over one.
fn lowered_expression<A: Arch>(bytes: &[u8], down: i64) -> Option<Box<[u8]>> {
    let mut out = Vec::new();
    let mut left = EndianSlice::new(bytes, LittleEndian);
    while !left.is_empty() {
        let before = left;
        match Operation::parse(&mut left, EXPRESSIONS).ok()? {
            Operation::RegisterOffset {
                register, offset, ..
            } if register.0 == A::UNWIND_STACK => {
                // DW_OP_breg0 to 31, or DW_OP_bregx and the number.
                let head = match before.first()? {
                    0x70..=0x8f => 1,
                    0x92 if A::UNWIND_STACK < 0x80 => 2,
                    _ => return None,
                };
                out.extend_from_slice(before.get(..head)?);
                put_sleb(&mut out, offset.checked_add(down)?);
            }
            Operation::Bra { .. } | Operation::Skip { .. } | Operation::Register { .. } => {
                return None;
            }
            _ => out.extend_from_slice(before.get(..before.len() - left.len())?),
        }
    }
    Some(out.into())
}

/// Number of a row; 0 where there is no FDE.
pub(crate) type RowId = u32;

/// A row's range: half-open addresses and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: u64,
    pub end: u64,
    pub row: RowId,
    /// What the run-time takes off the stack before a landing pad.
    pub args_size: u64,
    pub lsda: u64,
    /// Where the entry's code begins and ends.
    pub function: u64,
    pub function_end: u64,
    pub signal_frame: bool,
    /// There is no caller: to run-times that is what a missing entry says.
    pub is_outermost: bool,
}

impl Span {
    /// One of an entry, of no place in it.
    fn of(fde: &Fde, cie: &Cie) -> Self {
        Span {
            start: fde.start,
            end: fde.start,
            row: 0,
            args_size: 0,
            lsda: fde.lsda,
            function: fde.start,
            function_end: fde.end,
            signal_frame: cie.signal_frame,
            is_outermost: false,
        }
    }
}

/// What a row has from its CIE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OfCie {
    ra_register: u64,
    signal_frame: bool,
    marks: [bool; 2],
    personality: Pointer,
}

impl OfCie {
    fn new(cie: &Cie) -> Self {
        OfCie {
            ra_register: cie.ra_register,
            signal_frame: cie.signal_frame,
            marks: cie.marks,
            personality: cie.personality,
        }
    }

    fn row(self, cfa: Rule, registers: SmallVec<[(u16, Rule); 8]>, place: u64) -> Row {
        Row {
            cfa,
            registers,
            ra_register: self.ra_register,
            signal_frame: self.signal_frame,
            marks: self.marks,
            personality: self.personality,
            place,
        }
    }
}

/// Rows that are looked for one after the other before a map is asked: a function has few.
const AT_HAND: usize = 24;

/// Gives equal rows equal numbers.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    rows: FxHashMap<Row, RowId>,
    /// Some of them as they were told.
    plain: Vec<(OfCie, Plain, RowId)>,
    /// What [`Interner::lowered`] has found.
    lowered: FxHashMap<(RowId, i64), Option<RowId>>,
    /// What [`Interner::reads`] has found.
    reads: FxHashMap<RowId, u32>,
}

impl Interner {
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.plain.clear();
        self.lowered.clear();
        self.reads.clear();
    }

    fn id(&mut self, row: Row) -> RowId {
        // Rows are large, and most are there: they are not moved for the question.
        if let Some(id) = self.rows.get(&row) {
            return *id;
        }
        let next = self.rows.len() as RowId + 1;
        self.rows.insert(row, next);
        next
    }

    /// The same of a row that is found as it was told, if it was told before.
    fn plain(&mut self, of: OfCie, plain: &Plain) -> RowId {
        let known = self.plain.iter().rev().find(|k| k.1 == *plain && k.0 == of);
        if let Some(known) = known {
            return known.2;
        }
        let saved = plain.saved.iter().map(|(r, at)| (*r, Rule::Offset(*at)));
        let cfa = Rule::RegisterOffset(plain.cfa.0, plain.cfa.1);
        let id = self.id(of.row(cfa, saved.collect(), 0));
        if self.plain.len() < AT_HAND {
            self.plain.push((of, plain.clone(), id));
        }
        id
    }

    /// Whether a row says what holds where a call has just come: the return address is where a call leaves it, and is
    /// not signed, which a constant would say.
    pub(crate) fn is_called<A: Arch>(&self, id: RowId) -> bool {
        let row = self
            .rows
            .iter()
            .find(|(_, v)| **v == id)
            .map(|(row, _)| row);
        row.is_some_and(|row| {
            let of = u16::try_from(row.ra_register).ok();
            let rule = row.registers.iter().find(|(r, _)| Some(*r) == of);
            let returns = rule.map(|(_, rule)| rule);
            let signed = |(_, rule): &(u16, Rule)| matches!(rule, Rule::Other(_));
            row.cfa == Rule::RegisterOffset(A::UNWIND_STACK, A::CALL_PUSHES)
                && !row.registers.iter().any(signed)
                && match A::CALL_PUSHES {
                    0 => returns.is_none(),
                    pushed => returns == Some(&Rule::Offset(-pushed)),
                }
        })
    }

    /// The row that says the same where the stack pointer is `down` bytes below where row `id` takes it for; `None` if
    /// there is none that says so.
    pub(crate) fn lowered<A: Arch>(&mut self, id: RowId, down: i64) -> Option<RowId> {
        if down == 0 || id == 0 {
            return Some(id);
        }
        if let Some(known) = self.lowered.get(&(id, down)) {
            return *known;
        }
        let row = self.rows.iter().find(|(_, v)| **v == id)?.0.clone();
        let new = row.lowered::<A>(down).map(|row| self.id(row));
        self.lowered.insert((id, down), new);
        new
    }

    /// The row that says the same at a call which overwrites the register with the return address, whose value is in
    /// the register `link` meanwhile; `None` if a row would have to say so, and there is no such register.
    pub(crate) fn at_call<A: Arch>(&mut self, id: RowId, link: Option<u8>) -> Option<RowId> {
        if A::LINK.is_empty() || id == 0 {
            return Some(id);
        }
        let mut row = self.row(id)?.clone();
        if row.has_return_address() {
            return Some(id);
        }
        let (register, link) = (u16::try_from(row.ra_register).ok()?, link?);
        let other = (0..64u16).find(|other| A::of_unwind_register(*other) == 1 << link)?;
        let at = row.registers.partition_point(|r| r.0 < register);
        row.registers.insert(at, (register, Rule::Register(other)));
        Some(self.id(row))
    }

    /// Whether a row says what holds where a call has come, and nothing else.
    pub(crate) fn is_of_call<A: Arch>(&self, id: RowId) -> bool {
        self.row(id).is_some_and(Row::is_of_call::<A>)
    }

    /// A row by its number.
    pub(crate) fn row(&self, id: RowId) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|(_, number)| **number == id).map(|(row, _)| row)
    }

    /// Registers, by the machine's numbers, by which a row finds something.
    pub(crate) fn reads<A: Arch>(&mut self, id: RowId) -> u32 {
        if let Some(known) = self.reads.get(&id) {
            return *known;
        }
        let row = self.rows.iter().find(|(_, v)| **v == id);
        let reads = row.map_or(0, |(row, _)| row.reads::<A>());
        self.reads.insert(id, reads);
        reads
    }

    /// A row for people.
    pub(crate) fn describe(&self, id: RowId) -> String {
        self.rows.iter().find(|(_, v)| **v == id).map_or_else(
            || "no unwind information".into(),
            |(row, _)| format!("{row:?}"),
        )
    }
}

/// Runs FDEs; keeps gimli's buffers.
pub(crate) struct Runner {
    context: UnwindContext<usize>,
}

impl Default for Runner {
    fn default() -> Self {
        Runner {
            context: UnwindContext::new(),
        }
    }
}

impl Runner {
    /// Appends the rows of an FDE. Equal neighbours become one.
    pub(crate) fn rows<A: Arch>(
        &mut self,
        table: &Table<'_>,
        fde: &Fde,
        interner: &mut Interner,
        out: &mut Vec<Span>,
    ) -> Result<(), String> {
        self.rows_if::<A>(true, table, fde, (interner, out))
    }

    /// The same; `plain`: common instructions may be run here.
    fn rows_if<A: Arch>(
        &mut self,
        plain: bool,
        table: &Table<'_>,
        fde: &Fde,
        (interner, out): (&mut Interner, &mut Vec<Span>),
    ) -> Result<(), String> {
        let mut section = gimli::EhFrame::new(table.bytes, LittleEndian);
        section.set_vendor(A::VENDOR);
        let bases = BaseAddresses::default().set_eh_frame(table.addr);
        let sentence = |e: gimli::Error| format!("the FDE of {:#x} cannot be run: {e}", fde.start);
        let cie = table
            .cie_of(fde)
            .ok_or_else(|| format!("the FDE of {:#x} has no CIE", fde.start))?;
        let parsed = section
            .fde_from_offset(
                &bases,
                gimli::EhFrameOffset(fde.offset as usize),
                |s, b, o| s.cie_from_offset(b, o),
            )
            .map_err(sentence)?;
        let first = out.len();
        if plain && Self::plain_rows(table, (fde, cie), interner, out).is_some() {
            return Ok(());
        }
        out.truncate(first);
        let of = OfCie::new(cie);
        let mut rows = parsed
            .rows(&section, &bases, &mut self.context)
            .map_err(sentence)?;
        while let Some(row) = rows.next_row().map_err(sentence)? {
            let (start, end) = (row.start_address(), row.end_address().min(fde.end));
            if start >= end {
                continue;
            }
            let mut pc_dependent = false;
            let mut expression = |e: &gimli::UnwindExpression<usize>| -> Result<Box<[u8]>, String> {
                let e = e.get(&section).map_err(sentence)?;
                pc_dependent |= reads_register(e, A::PC_REGISTER);
                Ok(e.0.slice().into())
            };
            let cfa = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => {
                    Rule::RegisterOffset(register.0, *offset)
                }
                CfaRule::Expression(e) => Rule::Expression(expression(e)?),
            };
            let mut registers = SmallVec::new();
            for (register, rule) in row.registers() {
                let rule = match rule {
                    RegisterRule::SameValue => continue,
                    RegisterRule::Undefined => Rule::Undefined,
                    RegisterRule::Offset(o) => Rule::Offset(*o),
                    RegisterRule::ValOffset(o) => Rule::ValOffset(*o),
                    RegisterRule::Register(r) => Rule::Register(r.0),
                    RegisterRule::Expression(e) => Rule::Expression(expression(e)?),
                    RegisterRule::ValExpression(e) => Rule::ValExpression(expression(e)?),
                    RegisterRule::Architectural => Rule::Other(u64::MAX),
                    // Signed twice, or signed and authenticated (`DW_CFA_AARCH64_negate_ra_state`): as if never.
                    RegisterRule::Constant(0) if A::VENDOR == gimli::Vendor::AArch64 => continue,
                    RegisterRule::Constant(c) => Rule::Other(*c),
                };
                registers.push((register.0, rule));
            }
            registers.sort_by_key(|r: &(u16, Rule)| r.0);
            let is_outermost = registers
                .iter()
                .any(|(r, rule)| u64::from(*r) == cie.ra_register && *rule == Rule::Undefined);
            let place = if pc_dependent { start } else { 0 };
            let id = interner.id(of.row(cfa, registers, place));
            let span = Span {
                start,
                end,
                row: id,
                args_size: row.saved_args_size(),
                is_outermost,
                ..Span::of(fde, cie)
            };
            append(out, first, span);
        }
        Ok(())
    }

    /// The same, if the instructions are common ones.
    fn plain_rows(
        table: &Table<'_>,
        (fde, cie): (&Fde, &Cie),
        interner: &mut Interner,
        out: &mut Vec<Span>,
    ) -> Option<()> {
        let of_cie = table.bytes.get(cie.instructions.0..cie.instructions.1)?;
        let (from, to) = fde.instructions;
        let own = table.bytes.get(from as usize..to as usize)?;
        let first = out.len();
        let of = OfCie::new(cie);
        let blank = Span::of(fde, cie);
        let code = (fde.start, fde.end);
        frame_program::run(
            cie,
            (of_cie, own),
            code,
            |(start, end), plain, args_size| {
                let end = end.min(fde.end);
                if start < end {
                    let span = Span {
                        start,
                        end,
                        row: interner.plain(of, plain),
                        args_size,
                        ..blank
                    };
                    append(out, first, span);
                }
            },
        )
    }
}

/// Appends what holds behind the last span; equal neighbours from `first` on become one.
fn append(out: &mut Vec<Span>, first: usize, span: Span) {
    match out.get_mut(first..).and_then(<[Span]>::last_mut) {
        Some(last)
            if last.row == span.row
                && last.args_size == span.args_size
                && last.end == span.start =>
        {
            last.end = span.end;
        }
        _ => out.push(span),
    }
}

/// Whether an expression reads a register, or cannot be understood.
fn reads_register(e: gimli::Expression<EndianSlice<'_, LittleEndian>>, register: u16) -> bool {
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 5,
    };
    let mut operations = e.operations(encoding);
    loop {
        match operations.next() {
            Ok(None) => return false,
            Ok(Some(
                Operation::Register { register: r } | Operation::RegisterOffset { register: r, .. },
            )) if r.0 == register => {
                return true;
            }
            Ok(Some(_)) => {}
            Err(_) => return true,
        }
    }
}

/// Rows by address, with a cursor: neighbouring questions are answered without a search.
#[derive(Debug, Default)]
pub(crate) struct RowMap {
    spans: Vec<Span>,
    cursor: std::cell::Cell<usize>,
}

impl RowMap {
    pub(crate) fn clear(&mut self) -> &mut Vec<Span> {
        self.cursor.set(0);
        self.spans.clear();
        &mut self.spans
    }

    pub(crate) fn sort(&mut self) {
        self.spans.sort_by_key(|s| s.start);
    }

    /// The span that covers an address.
    #[inline]
    pub(crate) fn at(&self, addr: u64) -> Option<&Span> {
        let here = self.cursor.get();
        let covers = |s: &&Span| s.start <= addr && addr < s.end;
        let span = self.spans.get(here).filter(covers);
        span.or_else(|| self.search(here + 1, addr))
    }

    /// The same where it is not the one at hand: perhaps the next.
    fn search(&self, next: usize, addr: u64) -> Option<&Span> {
        let covers = |s: &&Span| s.start <= addr && addr < s.end;
        if let Some(s) = self.spans.get(next).filter(covers) {
            self.cursor.set(next);
            return Some(s);
        }
        let index = self
            .spans
            .partition_point(|s| s.start <= addr)
            .checked_sub(1)?;
        let span = self.spans.get(index).filter(|s| addr < s.end)?;
        self.cursor.set(index);
        Some(span)
    }

    /// The row at an address, 0 if none; and whether it covers `len` bytes.
    #[inline]
    pub(crate) fn row(&self, addr: u64, len: u64) -> (RowId, bool) {
        match self.at(addr) {
            Some(s) => (s.row, addr.saturating_add(len) <= s.end),
            None => (0, true),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(crate) fn has_lsda(&self) -> bool {
        self.spans.iter().any(|s| s.lsda != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::aarch64::AArch64;
    use crate::arch::x86_64::X86_64;

    #[test]
    fn every_fde_of_the_test_program_runs_and_covers_its_range() {
        let data = std::fs::read("/proc/self/exe").expect("the running test can be read");
        let elf = Elf::parse(&data, "input").expect("it is an ELF file");
        let table = Table::read(&elf).expect("its unwind table is sound");
        assert!(table.fdes.len() > 100 && table.searchable);
        assert_eq!(table.linear_fdes, table.fdes.len());
        let (mut runner, mut interner, mut spans) =
            (Runner::default(), Interner::default(), Vec::new());
        for fde in table.fdes.iter().take(2000) {
            spans.clear();
            runner
                .rows::<X86_64>(&table, fde, &mut interner, &mut spans)
                .expect("it runs");
            assert_eq!(spans.first().map(|s| s.start), Some(fde.start));
            assert_eq!(spans.last().map(|s| s.end), Some(fde.end));
            assert!(spans.windows(2).all(|w| w[0].end == w[1].start
                && (w[0].row, w[0].args_size) != (w[1].row, w[1].args_size)));
            assert!(table.same_meaning(fde, &table, fde));
        }
    }

    /// Rows of an entry, with and without the common instructions run here; `true` if they were.
    fn run_both_ways(table: &Table<'_>, fde: &Fde, interner: &mut Interner) -> bool {
        let (mut runner, mut spans, mut plain) = (Runner::default(), Vec::new(), Vec::new());
        let by_gimli = runner.rows_if::<X86_64>(false, table, fde, (interner, &mut spans));
        let cie = table.cie_of(fde).expect("it was read");
        let here = Runner::plain_rows(table, (fde, cie), interner, &mut plain);
        if here.is_some() {
            assert_eq!(by_gimli, Ok(()), "at {:#x}", fde.start);
            assert_eq!(plain, spans, "at {:#x}", fde.start);
        }
        here.is_some()
    }

    #[test]
    fn common_frame_instructions_make_the_rows_that_gimli_makes() {
        let data = std::fs::read("/proc/self/exe").expect("the running test can be read");
        let elf = Elf::parse(&data, "input").expect("it is an ELF file");
        let table = Table::read(&elf).expect("its unwind table is sound");
        let mut interner = Interner::default();
        let mut here = 0;
        for fde in table.fdes.iter().take(4000) {
            interner.clear();
            here += usize::from(run_both_ways(&table, fde, &mut interner));
        }
        let all = table.fdes.len().min(4000);
        assert!(here > all / 10 * 9, "{here} of {all}");
    }

    #[test]
    fn random_frame_instructions_make_the_rows_that_gimli_makes_or_are_left_to_it() {
        const COMMON: [&[u8]; 24] = [
            &[0x41],
            &[0x4f],
            &[0x40],
            &[0x7f],
            &[0x86, 2],
            &[0x83, 3],
            &[0x8c, 0x81, 1],
            &[0xc6],
            &[0xc3],
            &[0xd0],
            &[0x0a],
            &[0x0b],
            &[0x0e, 16],
            &[0x0e, 0x90, 2],
            &[0x0d, 6],
            &[0x0c, 7, 8],
            &[0x2e, 16],
            &[0x2e, 0],
            &[0x02, 9],
            &[0x03, 1, 1],
            &[0x04, 5, 0, 0, 0],
            &[0x00],
            &[0x07, 3],
            &[0x08, 6],
        ];
        let (mut here, mut all) = (0, 0);
        arbtest::arbtest(|u| {
            let mut section = Vec::new();
            // Version 1, "zR", alignments 1 and -8, register 16, an encoding relative to the place.
            let head = [0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b];
            let initial = *u.choose(&[
                &[0x0c, 7, 8, 0x90, 1][..],
                &[0x0c, 7, 8, 0x90, 1, 0x86, 2, 0, 0],
                &[0x0c, 7, 8],
                &[0x90, 1],
                &[0x0c, 7, 8, 0x90, 1, 0x41],
            ])?;
            section.extend(((head.len() + initial.len()) as u32).to_le_bytes());
            section.extend(head);
            section.extend(initial);
            let mut body = Vec::new();
            for _ in 0..u.int_in_range(0..=30)? {
                if u.ratio(1, 60)? {
                    body.push(u.arbitrary::<u8>()?);
                } else {
                    body.extend_from_slice(u.choose(&COMMON)?);
                }
            }
            let back = section.len() as u32 + 4;
            let mut head = back.to_le_bytes().to_vec();
            head.extend(0x1000i32.to_le_bytes());
            head.extend(u.int_in_range(0..=400u32)?.to_le_bytes());
            head.push(0);
            let at = section.len();
            section.extend(((head.len() + body.len()) as u32).to_le_bytes());
            section.extend(head);
            section.extend(body);
            let mut table = Table {
                addr: 0x400000,
                bytes: &section,
                ..Table::default()
            };
            let fde = table.fde(at, &mut FxHashMap::default());
            let fde = fde.expect("it is well formed");
            let mut interner = Interner::default();
            here += usize::from(run_both_ways(&table, &fde, &mut interner));
            all += 1;
            Ok(())
        });
        assert!(here > all / 20, "{here} of {all}");
    }

    #[test]
    fn a_signed_return_address_is_not_where_a_call_leaves_it() {
        let mut interner = Interner::default();
        let mut called = |registers: &[(u16, Rule)]| {
            let id = interner.id(Row {
                cfa: Rule::RegisterOffset(31, 0),
                registers: registers.iter().cloned().collect(),
                ra_register: 30,
                signal_frame: false,
                marks: [false; 2],
                personality: Pointer::default(),
                place: 0,
            });
            interner.is_called::<AArch64>(id)
        };
        assert!(called(&[]));
        assert!(called(&[(19, Rule::Offset(-16))]));
        assert!(!called(&[(34, Rule::Other(1))]));
        assert!(!called(&[(30, Rule::Offset(-8))]));
    }

    #[test]
    fn an_expression_that_reads_the_program_counter_is_noticed() {
        // The CFA of a PLT entry: rsp + 8 + ((rip & 15) >= 11) * 8.
        let plt = [
            0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
        ];
        assert!(reads_register(
            gimli::Expression(EndianSlice::new(&plt, LittleEndian)),
            16
        ));
        assert!(!reads_register(
            gimli::Expression(EndianSlice::new(&[0x77, 0x08], LittleEndian)),
            16
        ));
    }

    #[test]
    fn a_row_for_a_lower_stack_pointer_differs_where_it_reads_that() {
        let row = |cfa: Rule, rule: Rule| Row {
            cfa,
            registers: [(3, rule)].into_iter().collect(),
            ra_register: 16,
            signal_frame: false,
            marks: [false; 2],
            personality: Pointer::default(),
            place: 0,
        };
        let lowered = |cfa: Rule, rule: Rule| row(cfa, rule).lowered::<X86_64>(136);
        let (by, saved) = (Rule::RegisterOffset, Rule::Offset(-16));
        assert_eq!(
            lowered(by(7, 8), saved.clone()),
            Some(row(by(7, 144), saved.clone()))
        );
        assert_eq!(
            lowered(by(6, 16), saved.clone()),
            Some(row(by(6, 16), saved.clone()))
        );
        // DW_OP_breg7 40, DW_OP_deref, DW_OP_plus_uconst 8; DW_OP_bregx 7 -8
        let cfa = |e: &[u8]| Rule::Expression(e.into());
        assert_eq!(
            lowered(cfa(&[0x77, 40, 6, 0x23, 8]), cfa(&[0x92, 7, 0x78])),
            Some(row(
                cfa(&[0x77, 0xb0, 1, 6, 0x23, 8]),
                cfa(&[0x92, 7, 0x80, 1])
            ))
        );
        assert_eq!(lowered(by(6, 16), Rule::Register(7)), None);
        let branch = cfa(&[0x77, 40, 0x2f, 0, 0]);
        assert_eq!(lowered(branch, saved.clone()), None);
        let reads = row(by(6, 16), cfa(&[0x72, 8])).reads::<X86_64>();
        assert_eq!(
            reads,
            1 << 5 | 1 << 1,
            "rbp and rcx, by the machine's numbers"
        );
    }

    #[test]
    fn rows_are_found_by_cursor_and_by_search() {
        let mut map = RowMap::default();
        let span = |start, end, row| Span {
            start,
            end,
            row,
            args_size: 0,
            lsda: 0,
            function: start,
            function_end: end,
            signal_frame: false,
            is_outermost: false,
        };
        map.clear()
            .extend([span(10, 20, 1), span(20, 30, 2), span(50, 60, 3)]);
        map.sort();
        assert_eq!(map.row(12, 4), (1, true));
        assert_eq!(map.row(18, 4), (1, false));
        assert_eq!(map.row(20, 1), (2, true));
        assert_eq!(map.row(35, 1), (0, true));
        assert_eq!(map.row(59, 1), (3, true));
        assert_eq!(map.row(9, 1), (0, true));
    }
}
