//! Sequences of line programs as they are written, without their rows.
//!
//! Where each function has a section of its own, so has it a sequence of rows, and most functions did not move: a
//! sequence of which both programs have the same bytes, and in which no code moved, says the same in both. Those are
//! left out before the programs are run ([`equal`]). To know what a sequence covers, its opcodes are passed over here;
//! one in which readers might differ is not left out.

use std::ops::Range;

use rustc_hash::FxHashSet;

use super::map::{CodeMap, union};
use super::{DebugReport, Slice};
use crate::files::bytes::Reader;

/// A sequence as it is written.
#[derive(Clone, Debug)]
pub(super) struct Code<'d> {
    pub bytes: &'d [u8],
    /// Whether its first row names its file.
    pub sets_file: bool,
    pub rows: u64,
    /// What it covers, and whether a row says that a prologue ends. `None` if that takes more to find out than to pass
    /// over its opcodes.
    pub plain: Option<(Range<u64>, bool)>,
}

/// What the header says of opcodes.
pub(super) struct Machine<'d> {
    lengths: &'d [u8],
    opcode_base: u8,
    address: u8,
    min_inst_len: u64,
    line_range: u8,
    /// Known opcodes have the arguments that they should have, and an instruction is one operation.
    plain: bool,
}

impl<'d> Machine<'d> {
    pub fn new(header: &gimli::LineProgramHeader<Slice<'d>>) -> Self {
        const ARGUMENTS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
        let lengths = header.standard_opcode_lengths().slice();
        let known = lengths.len().min(ARGUMENTS.len());
        Machine {
            lengths,
            opcode_base: header.opcode_base(),
            address: header.address_size(),
            min_inst_len: header.minimum_instruction_length().into(),
            line_range: header.line_range(),
            plain: lengths[..known] == ARGUMENTS[..known]
                && header.maximum_operations_per_instruction() <= 1
                && header.line_range() > 0,
        }
    }

    /// What a special opcode advances the address by.
    fn advance(&self, special: u8) -> u64 {
        let units = (special - self.opcode_base) / self.line_range;
        self.min_inst_len * u64::from(units)
    }
}

/// What is known of a sequence after some of its opcodes.
#[derive(Clone, Default)]
struct Passed {
    /// Whether its file is set, and whether it was when the first row was appended.
    file: bool,
    at_row: Option<bool>,
    rows: u64,
    address: u64,
    first: Option<u64>,
    ends_prologue: bool,
    /// The address went back, or is that of code that was discarded: readers differ in what they do about it.
    odd: bool,
}

impl Passed {
    fn row(&mut self) {
        let file = self.file;
        self.at_row.get_or_insert(file);
        self.first.get_or_insert(self.address);
        self.rows += 1;
    }

    fn advance(&mut self, bytes: u64) {
        match self.address.checked_add(bytes) {
            Some(address) => self.address = address,
            None => self.odd = true,
        }
    }

    fn set(&mut self, address: u64) {
        self.odd |= address < self.address || address >= u64::MAX - 1;
        self.address = address;
    }
}

/// Sequences as they are written. `None` if the program ends within an opcode or if an extended opcode is not as long
/// as what it holds: readers differ in what they do about others.
pub(super) fn sequences<'d>(code: &'d [u8], machine: &Machine<'_>) -> Option<Vec<Code<'d>>> {
    let mut r = Reader::new(code);
    let mut out = Vec::new();
    let mut begin = 0;
    let mut passed = Passed::default();
    while !r.is_empty() {
        match r.u8()? {
            0 => {
                let length = r.uleb()?;
                let start = r.pos();
                let opcode = r.u8()?;
                match opcode {
                    1 => {}
                    2 => {
                        let bytes = r.take(machine.address.into())?;
                        match bytes.try_into() {
                            Ok(bytes) => passed.set(u64::from_le_bytes(bytes)),
                            Err(_) => passed.odd = true,
                        }
                    }
                    3 => {
                        while r.u8()? != 0 {}
                        for _ in 0..3 {
                            r.uleb()?;
                        }
                        passed.odd = true; // it says more than rows
                    }
                    4 => drop(r.uleb()?),
                    _ => {
                        r.take(length.checked_sub(1)?.try_into().ok()?)?;
                        passed.odd = true;
                    }
                }
                if (r.pos() - start) as u64 != length {
                    return None;
                }
                if opcode == 1 {
                    let covers = passed.first.unwrap_or(passed.address)..passed.address;
                    let plain = machine.plain && !passed.odd;
                    out.push(Code {
                        bytes: &code[begin..r.pos()],
                        sets_file: passed.at_row.unwrap_or(true),
                        rows: passed.rows,
                        plain: plain.then_some((covers, passed.ends_prologue)),
                    });
                    (begin, passed) = (r.pos(), Passed::default());
                }
            }
            special if special >= machine.opcode_base => {
                if machine.plain {
                    passed.advance(machine.advance(special));
                }
                passed.row();
            }
            // The one standard opcode with an operand of a fixed size.
            9 => {
                let bytes = r.take(2)?;
                passed.advance(u64::from(bytes[0]) | u64::from(bytes[1]) << 8);
            }
            opcode => {
                let arguments = *machine.lengths.get(usize::from(opcode) - 1)?;
                let mut first = 0;
                for i in 0..arguments {
                    let argument = r.uleb()?;
                    if i == 0 {
                        first = argument;
                    }
                }
                match opcode {
                    1 => passed.row(),
                    2 => match machine.min_inst_len.checked_mul(first) {
                        Some(bytes) => passed.advance(bytes),
                        None => passed.odd = true,
                    },
                    4 => passed.file = true,
                    8 if machine.plain => passed.advance(machine.advance(255)),
                    10 => passed.ends_prologue = true,
                    _ => {}
                }
            }
        }
    }
    Some(out)
}

/// Which sequences of both programs are the same, and of code that did not move. They are in the same order in both.
pub(super) fn equal(map: &CodeMap, old: &[Code<'_>], new: &[Code<'_>]) -> [Vec<bool>; 2] {
    let mut out = [vec![false; old.len()], vec![false; new.len()]];
    let mut near = map.cursor();
    let mut next = 0;
    for (i, sequence) in old.iter().enumerate() {
        let mut stays = |covers: &Range<u64>| covers.start <= covers.end && !near.touches(covers);
        if !sequence.plain.as_ref().is_some_and(|plain| stays(&plain.0)) {
            continue;
        }
        // In front of it are at most what took the place of those that were in front of it.
        let at = new[next..].iter().position(|s| s.bytes == sequence.bytes);
        let Some(at) = at else {
            return out;
        };
        out[0][i] = true;
        out[1][next + at] = true;
        next += at + 1;
    }
    out
}

/// What is known of sequences that both programs have.
#[derive(Default)]
pub(super) struct LeftOut {
    pub rows: u64,
    /// What they cover, ascending.
    covers: Vec<Range<u64>>,
    pub ends_prologue: bool,
}

impl LeftOut {
    pub fn new(sequences: &[Code<'_>], which: &[bool]) -> Self {
        let mut out = LeftOut::default();
        let all = sequences.iter().zip(which);
        for (sequence, _) in all.filter(|(_, which)| **which) {
            out.rows += sequence.rows;
            let (covers, ends_prologue) = sequence.plain.clone().unwrap_or_default();
            out.covers.push(covers);
            out.ends_prologue |= ends_prologue;
        }
        out.covers = union(out.covers);
        out
    }

    /// Whether one of them covers an address.
    pub fn covers(&self, at: u64) -> bool {
        let next = self.covers.partition_point(|c| c.end <= at);
        self.covers.get(next).is_some_and(|c| c.start <= at)
    }
}

/// What was written anew can be read in one way alone.
pub(super) fn compare(
    (old, new): (Option<&[Code<'_>]>, Option<&[Code<'_>]>),
    left_out: &[bool],
    at: u64,
    report: &mut DebugReport,
) {
    match (old, new) {
        (Some(_), None) => report.fail(format!(
            "an extended opcode of the line program at {at:#x} is not as long as what it holds"
        )),
        (Some(old), Some(new)) => {
            // Readers differ in which file a sequence begins with (binutils 2.40: 0 in version 5), so those that were
            // written anew say it.
            let is_left_out = |i: usize| left_out.get(i) == Some(&true);
            let new = new.iter().enumerate();
            let mut without = new.filter(|(i, s)| !s.sets_file && !is_left_out(*i));
            let mut known = None;
            let mut is_known = |bytes: &[u8]| {
                let all = || old.iter().map(|s| s.bytes).collect::<FxHashSet<&[u8]>>();
                known.get_or_insert_with(all).contains(bytes)
            };
            if !without.all(|(_, s)| is_known(s.bytes)) {
                report.fail(format!(
                    "a sequence of the line program at {at:#x} does not set the file of its first row"
                ));
            }
        }
        (None, _) => {}
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const LENGTHS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];

    const MACHINE: Machine<'static> = Machine {
        lengths: &LENGTHS,
        opcode_base: 13,
        address: 8,
        min_inst_len: 1,
        line_range: 14,
        plain: true,
    };

    /// A sequence of two rows and 16 bytes of code, the first of which is at a line from 1 to 8.
    pub fn sequence(address: u64, line: u8) -> Vec<u8> {
        let mut out = vec![0, 9, 2];
        out.extend(address.to_le_bytes());
        // The file, the row, another one of the next line 4 bytes on, 12 bytes more.
        out.extend([4, 1, 13 + 5 - 1 + line, 13 + 6 + 4 * 14, 2, 12, 0, 1, 1]);
        out
    }

    #[test]
    fn what_sequences_cover_is_known_without_a_look_at_their_rows() {
        let plain = |code: &[u8]| super::sequences(code, &MACHINE).unwrap()[0].plain.clone();
        let rows = |code: &[u8]| super::sequences(code, &MACHINE).unwrap()[0].rows;
        let code = sequence(0x1000, 2);
        assert_eq!(
            (plain(&code), rows(&code)),
            (Some((0x1000..0x1010, false)), 2)
        );
        // By the constant (17 bytes), by a number of two bytes; the end of a prologue.
        let mut by = vec![0, 9, 2];
        by.extend(0x1000u64.to_le_bytes());
        by.extend([8, 10, 1, 9, 0, 1, 1, 0, 1, 1]);
        assert_eq!((plain(&by), rows(&by)), (Some((0x1011..0x1111, true)), 2));
        // An address in front of the one before, and one of code that was discarded.
        let mut back = code[..code.len() - 3].to_vec();
        back.extend([0, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1]);
        assert_eq!(plain(&back), None);
        assert_eq!(plain(&sequence(u64::MAX, 2)), None);
        // The same opcodes where they have other arguments.
        let other = Machine {
            plain: false,
            ..MACHINE
        };
        assert_eq!(sequences(&code, &other).unwrap()[0].plain, None);
    }

    /// Bytes behind an address were passed over with what they say.
    #[test]
    fn an_address_that_is_longer_than_addresses_is_found() {
        let right = |code: &[u8]| super::sequences(code, &MACHINE).is_some();
        let address = |length| right(&[0, length, 2, 1, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0x30]);
        assert!(address(9));
        assert!(!address(11));
        assert!(!address(5));
        // A discriminator of two bytes, the end, an advance by a number of fixed size, a file.
        assert!(right(&[0, 3, 4, 0x80, 1, 0, 1, 1]));
        assert!(!right(&[0, 4, 4, 0x80, 1, 0, 1, 1]));
        assert!(!right(&[0, 2, 1, 1]));
        assert!(right(&[9, 0, 0, 2, 0x80, 1, 0, 6, 3, b'a', 0, 1, 2, 3]));
        // It ends within an opcode.
        assert!(!right(&[9, 0]));
        assert!(!right(&[0, 9, 2, 1]));
        // What nobody knows is as long as it says.
        assert!(right(&[0, 4, 0x90, 1, 2, 3, 1]));
        assert!(!right(&[0, 9, 0x90, 1, 2, 3, 1]));
    }

    /// One sequence said its file and another did not, which only some readers took for the same.
    #[test]
    fn sequences_that_do_not_set_the_file_of_their_first_row_are_told() {
        let sets = |code: &[u8]| -> Vec<bool> {
            let all = super::sequences(code, &MACHINE).unwrap();
            all.iter().map(|s| s.sets_file).collect()
        };
        let (file, column, row, copy, end) = ([4, 1], [5, 1], [0x30], [1], [0, 1, 1]);
        let code = |parts: &[&[u8]]| parts.concat();
        assert_eq!(sets(&code(&[&file, &column, &row, &end])), [true]);
        assert_eq!(sets(&code(&[&column, &row, &file, &row, &end])), [false]);
        assert_eq!(sets(&code(&[&copy, &file, &end])), [false]);
        // Each sequence by itself; without rows it says nothing.
        let both = code(&[&file, &row, &end, &row, &end, &end]);
        assert_eq!(sets(&both), [true, false, true]);
    }
}
