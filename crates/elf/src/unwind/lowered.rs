//! Rows where the stack pointer is below where they take it for.
//!
//! Code that is added to a function may push a register and pop it again. In between a row of the function holds with
//! the distance added wherever it reads the stack pointer:
//!
//! | rule | becomes |
//! |---|---|
//! | CFA: stack pointer + offset | + the distance |
//! | CFA: another register + offset | the same |
//! | expression with the stack pointer as a base (`breg`, `bregx`) | its offset + the distance |
//! | register saved at CFA + offset | the same |
//!
//! What the row says of the saved register itself (nothing, in all code of compilers that such code is added to) does
//! not matter unless something else is found by it: by a register that is on the stack meanwhile nothing may be found,
//! and that is an error here.

#![warn(clippy::indexing_slicing)]

use super::cursor::{Cursor, put_sleb, put_uleb};
use super::rows::{CfaRule, RegRule, Row};
use crate::{ErrorKind, FormatError};

/// A row, and the expressions in it that had to be changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered<'d> {
    row: Row<'d>,
    cfa: Option<Vec<u8>>,
    registers: Vec<(u16, Vec<u8>)>,
}

impl<'d> Lowered<'d> {
    /// The same where the return address, which is in the register of this number until it is saved, is in another one
    /// meanwhile.
    #[must_use]
    pub fn with_link(mut self, link: u16, other: u16) -> Lowered<'d> {
        if matches!(self.row.rule(link), None | Some(RegRule::SameValue)) {
            self.row.set(link, RegRule::Register(other));
        }
        self
    }
}

impl<'d> From<Row<'d>> for Lowered<'d> {
    /// A row as it is.
    fn from(row: Row<'d>) -> Self {
        Lowered {
            row,
            cfa: None,
            registers: Vec::new(),
        }
    }
}

impl Lowered<'_> {
    /// The row.
    pub fn row(&self) -> Row<'_> {
        let mut row = self.row.shared();
        if let Some(expression) = &self.cfa {
            row.cfa = CfaRule::Expression(expression);
        }
        for (register, rule) in &mut row.registers {
            let changed = self.registers.iter().find(|r| r.0 == *register);
            let Some((_, expression)) = changed else {
                continue;
            };
            *rule = match rule {
                RegRule::ValExpression(_) => RegRule::ValExpression(expression),
                _ => RegRule::Expression(expression),
            };
        }
        row
    }
}

/// The row that holds where the stack pointer, of this number, is `down` bytes below where `row` takes it for, and the
/// registers `saved` hold something else.
///
/// # Errors
///
/// Something is found by one of `saved`, or by an expression that is not understood.
pub fn lowered<'d>(
    row: &Row<'d>,
    stack: u16,
    down: u32,
    saved: &[u16],
) -> Result<Lowered<'d>, FormatError> {
    let mut new = Lowered::from(row.clone());
    match row.cfa {
        CfaRule::Offset { register, .. } if saved.contains(&register) => {
            return Err(by_saved(register));
        }
        CfaRule::Offset { register, offset } if register == stack => {
            let offset = offset.saturating_add(i64::from(down));
            new.row.cfa = CfaRule::Offset { register, offset };
        }
        CfaRule::Offset { .. } => {}
        CfaRule::Expression(e) => new.cfa = Some(expression(e, stack, down, saved)?),
    }
    for (register, rule) in &row.registers {
        match *rule {
            RegRule::Register(by) if by == stack || saved.contains(&by) => {
                return Err(by_saved(by));
            }
            RegRule::SameValue if saved.contains(register) => return Err(by_saved(*register)),
            RegRule::Expression(e) | RegRule::ValExpression(e) => {
                let changed = expression(e, stack, down, saved)?;
                new.registers.push((*register, changed));
            }
            _ => {}
        }
    }
    Ok(new)
}

fn by_saved(register: u16) -> FormatError {
    FormatError::new(format!(
        "an unwind row needs register {register} where that is saved on the stack"
    ))
    .of(ErrorKind::Unsupported)
}

/// An expression whose bases that are the stack pointer have a larger offset.
fn expression(bytes: &[u8], stack: u16, down: u32, saved: &[u16]) -> Result<Vec<u8>, FormatError> {
    const BREG0: u8 = 0x70;
    const BREG31: u8 = 0x8f;
    const BREGX: u8 = 0x92;
    let unknown = |opcode: u8| {
        FormatError::new(format!(
            "operation {opcode:#04x} of an expression in an unwind row is not understood"
        ))
        .of(ErrorKind::Unsupported)
        .values(opcode, "a known operation")
    };
    let mut out = Vec::with_capacity(bytes.len() + 2);
    let mut cursor = Cursor::new(bytes, 0);
    while !cursor.is_empty() {
        let begin = cursor.addr() as usize;
        let opcode = cursor.u8("an operation")?;
        if let BREG0..=BREG31 | BREGX = opcode {
            let register = match opcode {
                BREGX => cursor.uleb("a register number")?,
                _ => u64::from(opcode - BREG0),
            };
            let mut offset = cursor.sleb("an offset")?;
            if let Some(saved) = saved.iter().find(|s| u64::from(**s) == register) {
                return Err(by_saved(*saved));
            }
            if register == u64::from(stack) {
                offset = offset.saturating_add(i64::from(down));
            }
            out.push(opcode);
            if opcode == BREGX {
                put_uleb(&mut out, register);
            }
            put_sleb(&mut out, offset);
            continue;
        }
        // Not branches: where they lead depends on the length of what is between.
        match opcode {
            // deref; dup to xderef; abs to xor; eq to ne; lit0 to lit31; nop
            0x06 | 0x12..=0x14 | 0x16..=0x17 | 0x19..=0x22 | 0x24..=0x27 => {}
            0x29..=0x2e | 0x30..=0x4f | 0x96 => {}
            // const1, pick, deref_size; const2; const4; addr, const8
            0x08 | 0x09 | 0x15 | 0x94 => {
                cursor.take(1, "an operand")?;
            }
            0x0a | 0x0b => {
                cursor.take(2, "an operand")?;
            }
            0x0c | 0x0d => {
                cursor.take(4, "an operand")?;
            }
            0x03 | 0x0e | 0x0f => {
                cursor.take(8, "an operand")?;
            }
            // constu, plus_uconst; consts
            0x10 | 0x23 => {
                cursor.uleb("an operand")?;
            }
            0x11 => {
                cursor.sleb("an operand")?;
            }
            other => return Err(unknown(other)),
        }
        out.extend_from_slice(bytes.get(begin..cursor.addr() as usize).unwrap_or(&[]));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cfa: CfaRule<'static>, rules: &[(u16, RegRule<'static>)]) -> Row<'static> {
        Row {
            cfa,
            registers: rules.iter().copied().collect(),
            ..Row::default()
        }
    }

    #[test]
    fn what_is_found_by_the_stack_pointer_is_farther_away_and_all_else_is_as_it_was() {
        let by = |register, offset| CfaRule::Offset { register, offset };
        let saved = (16, RegRule::Offset(-8));
        let new = |cfa| lowered(&row(cfa, &[saved]), 7, 136, &[0]).map(|l| l.row().cfa == cfa);
        let lower = lowered(&row(by(7, 8), &[saved]), 7, 136, &[0]).expect("it is understood");
        assert_eq!(lower.row(), row(by(7, 144), &[saved]));
        assert_eq!(new(by(6, 16)).ok(), Some(true));
        assert!(
            new(by(0, 8)).is_err(),
            "the frame is found by what is on the stack"
        );
    }

    #[test]
    fn a_return_address_in_another_register_is_found_there_unless_it_is_saved() {
        let cfa = CfaRule::Offset {
            register: 31,
            offset: 0,
        };
        let is = |rules: &[(u16, RegRule<'static>)], expected| {
            let new = Lowered::from(row(cfa, rules)).with_link(30, 17);
            new.row().rule(30) == Some(expected)
        };
        assert!(is(&[], RegRule::Register(17)));
        let saved = RegRule::Offset(-8);
        assert!(is(&[(30, saved)], saved));
    }

    #[test]
    fn expressions_have_another_offset() {
        // breg7 40, deref, plus_uconst 8; a register at breg7 -8
        let cfa = CfaRule::Expression(&[0x77, 40, 0x06, 0x23, 8]);
        let rules = [(3, RegRule::Expression(&[0x77, 0x78]))];
        let lower = lowered(&row(cfa, &rules), 7, 136, &[0]).expect("it is understood");
        let new = CfaRule::Expression(&[0x77, 0xb0, 0x01, 0x06, 0x23, 8]);
        let rules = [(3, RegRule::Expression(&[0x77, 0x80, 0x01]))];
        assert_eq!(lower.row(), row(new, &rules));
        let branch = CfaRule::Expression(&[0x77, 0, 0x28, 0, 0]);
        assert!(lowered(&row(branch, &[]), 7, 8, &[]).is_err());
        let by_saved = CfaRule::Expression(&[0x70, 0]);
        assert!(lowered(&row(by_saved, &[]), 7, 8, &[0]).is_err());
        let other = [(3, RegRule::Register(0))];
        assert!(lowered(&row(new, &other), 7, 8, &[0]).is_err());
    }
}
