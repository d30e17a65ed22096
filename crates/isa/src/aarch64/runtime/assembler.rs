//! A small assembler: words, labels, and data after the code.

use super::super::branch::write_field;
use super::super::encode;
use crate::{FixupKind, OutOfRange};

/// A place in the routine, bound once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::aarch64) struct Label(usize);

/// The routine while it is being put together.
#[derive(Default)]
pub(in crate::aarch64) struct Assembler {
    bytes: Vec<u8>,
    /// By label: its offset.
    bound: Vec<Option<usize>>,
    /// Places that wait for a label.
    waiting: Vec<(usize, FixupKind, Label)>,
    /// What goes after the code.
    data: Vec<(Label, Vec<u8>)>,
}

impl Assembler {
    /// A label that is not bound yet.
    pub fn label(&mut self) -> Label {
        self.bound.push(None);
        Label(self.bound.len() - 1)
    }

    /// Several of them.
    pub fn labels<const N: usize>(&mut self) -> [Label; N] {
        std::array::from_fn(|_| self.label())
    }

    /// Binds a label to here.
    pub fn bind(&mut self, label: Label) {
        self.bound[label.0] = Some(self.bytes.len());
    }

    /// Appends instructions.
    pub fn put(&mut self, words: &[u32]) {
        for word in words {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn to(&mut self, word: u32, kind: FixupKind, label: Label) {
        self.waiting.push((self.bytes.len(), kind, label));
        self.put(&[word]);
    }

    /// `b`
    pub fn b(&mut self, label: Label) {
        self.to(encode::B, FixupKind::Branch26, label);
    }

    /// `bl`
    pub fn bl(&mut self, label: Label) {
        self.to(encode::BL, FixupKind::Branch26, label);
    }

    /// `b.cond`
    pub fn b_cond(&mut self, cond: u32, label: Label) {
        self.to(encode::b_cond(cond, 0), FixupKind::Imm19, label);
    }

    /// `cbz`
    pub fn cbz(&mut self, register: u32, label: Label) {
        self.to(encode::cbz(register, 0), FixupKind::Imm19, label);
    }

    /// `cbnz`
    pub fn cbnz(&mut self, register: u32, label: Label) {
        self.to(encode::cbnz(register, 0), FixupKind::Imm19, label);
    }

    /// A branch if a register is negative: `tbnz x, #63`.
    pub fn b_negative(&mut self, register: u32, label: Label) {
        self.to(0xb7f8_0000 | register, FixupKind::Branch14, label);
    }

    /// A branch if a register is not: `tbz x, #63`.
    pub fn b_not_negative(&mut self, register: u32, label: Label) {
        self.to(0xb6f8_0000 | register, FixupKind::Branch14, label);
    }

    /// `adr`
    pub fn adr(&mut self, register: u32, label: Label) {
        self.to(encode::adr(register), FixupKind::Adr, label);
    }

    /// A number below 2^16.
    pub fn small(&mut self, register: u32, value: u16) {
        self.put(&[encode::movz(register, value, 0)]);
    }

    /// A number that is known, in as few instructions as its parts of 16 bits allow.
    pub fn constant(&mut self, register: u32, value: u64) {
        let mut begun = false;
        for part in 0..4 {
            let bits = (value >> (16 * part)) as u16;
            if bits == 0 && (begun || value != 0) {
                continue;
            }
            self.put(&[if begun {
                encode::movk(register, bits, part)
            } else {
                encode::movz(register, bits, part)
            }]);
            begun = true;
            if value == 0 {
                break;
            }
        }
    }

    /// Any number, in as many instructions for any: addresses are not known when the length is asked for.
    pub fn number(&mut self, register: u32, value: u64) {
        self.small(register, value as u16);
        for part in 1..4 {
            self.put(&[encode::movk(register, (value >> (16 * part)) as u16, part)]);
        }
    }

    /// The label of bytes that are put after the code.
    pub fn data(&mut self, bytes: &[u8]) -> Label {
        if let Some((label, _)) = self.data.iter().find(|(_, known)| known == bytes) {
            return *label;
        }
        let label = self.label();
        self.data.push((label, bytes.to_vec()));
        label
    }

    /// The label of a string with a zero byte at its end.
    pub fn string(&mut self, text: &str) -> Label {
        self.data(&[text.as_bytes(), &[0]].concat())
    }

    /// How long the code is so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Everything, for a place.
    pub fn finish(mut self) -> Result<Vec<u8>, OutOfRange> {
        for (label, bytes) in std::mem::take(&mut self.data) {
            self.bind(label);
            self.bytes.extend_from_slice(&bytes);
        }
        for (at, kind, label) in self.waiting {
            let (place, unbound) = (
                at as u64,
                OutOfRange {
                    kind,
                    place: at as u64,
                    target: u64::MAX,
                },
            );
            let target = self.bound[label.0].ok_or(unbound)? as u64;
            write_field(kind, &mut self.bytes[at..], place, target)?;
        }
        Ok(self.bytes)
    }
}
