//! Instructions as text, as LLVM's disassembler encodes them without options: aliases preferred, decimal
//! numbers, hexadecimal bit masks and addresses.
//!
//! The class of a word is given by its bits 28–25:
//!
//! | bits 28–25 | group | module |
//! |---|---|---|
//! | `100x` | data processing with an immediate | [`immediate`] |
//! | `101x` | branches, exceptions, system | [`system`] |
//! | `x1x0` | loads and stores | [`memory`] |
//! | `x101` | data processing with registers | [`register`] |
//! | `x111` | floating point and vectors | [`float`], [`vector`] |
//! | `0000` | `udf` | here |
//!
//! Each module goes by the tables of the Arm Architecture Reference Manual (C4.1), and by its rules for the
//! preferred alias. Covered is what compilers write for Armv8-A, with the atomic instructions of Armv8.1,
//! checksums and pointer authentication of returns; not SVE, SME, cryptography and half precision. What is
//! not covered is no instruction here.

mod float;
mod immediate;
mod memory;
mod register;
mod system;
mod vector;

use crate::digits;

/// Appends the instruction at the start of `bytes`, which is at `addr`, and returns its length. `None`, and
/// nothing appended, if it is not known.
pub fn print(bytes: &[u8], addr: u64, out: &mut Vec<u8>) -> Option<usize> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    let start = out.len();
    let mut line = Line {
        word,
        addr,
        out,
        operands: false,
    };
    let known = match word >> 25 & 15 {
        0b0000 => line.undefined(),
        0b1000 | 0b1001 => immediate::print(&mut line),
        0b1010 | 0b1011 => system::print(&mut line),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory::print(&mut line),
        0b0101 | 0b1101 => register::print(&mut line),
        0b0111 | 0b1111 => vector::print(&mut line),
        _ => None,
    };
    if known.is_none() {
        out.truncate(start);
        return None;
    }
    Some(4)
}

/// The conditions, by number.
const CONDITIONS: [&str; 16] = [
    "eq", "ne", "hs", "lo", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv",
];
/// The shifts, by number.
const SHIFTS: [&str; 4] = ["lsl", "lsr", "asr", "ror"];
/// The extensions of a register, by number.
const EXTENSIONS: [&str; 8] = [
    "uxtb", "uxth", "uxtw", "uxtx", "sxtb", "sxth", "sxtw", "sxtx",
];

/// A line of text and the word that it tells.
struct Line<'o> {
    word: u32,
    addr: u64,
    out: &'o mut Vec<u8>,
    /// Whether there is an operand yet.
    operands: bool,
}

impl Line<'_> {
    /// Bits `low` to `low + width - 1`.
    fn bits(&self, low: u32, width: u32) -> u32 {
        self.word >> low & ((1 << width) - 1)
    }

    fn bit(&self, number: u32) -> bool {
        self.word >> number & 1 != 0
    }

    /// The same as a signed number.
    fn signed(&self, low: u32, width: u32) -> i64 {
        i64::from((self.bits(low, width) << (32 - width)) as i32 >> (32 - width))
    }

    /// Destination register.
    fn rd(&self) -> u32 {
        self.bits(0, 5)
    }
    /// First source.
    fn rn(&self) -> u32 {
        self.bits(5, 5)
    }
    /// Second source.
    fn rm(&self) -> u32 {
        self.bits(16, 5)
    }
    /// Third source, or second destination.
    fn ra(&self) -> u32 {
        self.bits(10, 5)
    }

    /// Text as it is.
    fn raw(&mut self, text: &str) -> &mut Self {
        self.out.extend_from_slice(text.as_bytes());
        self
    }

    /// The mnemonic, in parts.
    fn name(&mut self, parts: &[&str]) -> &mut Self {
        self.out.push(b'\t');
        for part in parts {
            self.raw(part);
        }
        self
    }

    /// What is before an operand.
    fn next(&mut self) -> &mut Self {
        if std::mem::replace(&mut self.operands, true) {
            self.raw(", ")
        } else {
            self.raw("\t")
        }
    }

    fn put(&mut self, number: impl Into<u64>) -> &mut Self {
        digits::put(self.out, number.into());
        self
    }

    /// A word.
    fn word(&mut self, text: &str) -> &mut Self {
        self.next().raw(text)
    }

    /// A number without its sign `#`, after a letter.
    fn lettered(&mut self, letter: char, number: u32) -> &mut Self {
        self.next().out.push(letter as u8);
        self.put(number)
    }

    /// A general register, where 31 is the zero register.
    fn r(&mut self, wide: bool, number: u32) -> &mut Self {
        match (number, wide) {
            (31, true) => self.word("xzr"),
            (31, false) => self.word("wzr"),
            (_, true) => self.lettered('x', number),
            (_, false) => self.lettered('w', number),
        }
    }

    /// A general register, where 31 is the stack pointer.
    fn rsp(&mut self, wide: bool, number: u32) -> &mut Self {
        match (number, wide) {
            (31, true) => self.word("sp"),
            (31, false) => self.word("wsp"),
            _ => self.r(wide, number),
        }
    }

    /// A number.
    fn imm(&mut self, value: i64) -> &mut Self {
        self.word("#");
        digits::put_signed(self.out, value);
        self
    }

    /// A bit mask. 0 has no prefix.
    fn mask(&mut self, value: u64) -> &mut Self {
        self.word(if value == 0 { "#" } else { "#0x" });
        digits::hex(self.out, value);
        self
    }

    /// An address, so many bytes from the instruction's.
    fn label(&mut self, distance: i64) -> &mut Self {
        self.word("0x");
        digits::hex(self.out, self.addr.wrapping_add_signed(distance));
        self
    }

    /// A shift or extension with its amount.
    fn shift(&mut self, name: &str, amount: u32) -> &mut Self {
        self.word(name).raw(" #").put(amount)
    }

    /// A condition.
    fn cond(&mut self, number: u32) -> &mut Self {
        self.word(CONDITIONS[(number & 15) as usize])
    }

    /// A floating-point register: its letter says its size.
    fn f(&mut self, letter: char, number: u32) -> &mut Self {
        self.lettered(letter, number)
    }

    /// A vector with its arrangement.
    fn v(&mut self, number: u32, arrangement: &str) -> &mut Self {
        self.lettered('v', number).raw(".").raw(arrangement)
    }

    /// One lane of a vector.
    fn lane(&mut self, number: u32, letter: &str, lane: u32) -> &mut Self {
        self.v(number, letter).raw("[").put(lane).raw("]")
    }

    /// The end of a line that is known.
    fn done(&mut self) -> Option<()> {
        Some(())
    }

    fn undefined(&mut self) -> Option<()> {
        if self.word >> 16 != 0 {
            return None;
        }
        let number = self.bits(0, 16);
        self.name(&["udf"]).imm(i64::from(number)).done()
    }
}

#[cfg(test)]
mod tests;
