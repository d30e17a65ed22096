//! Rows to call frame instructions.
//!
//! # The problem
//!
//! A compiler knows why a row is what it is (a push, an epilogue) and emits one instruction per event. After blocks
//! have moved only the rows are known, and neighbours may differ in many rules: after an early return, or where a cold
//! block comes to be after a hot one. Spelling out each difference is always right; `remember_state`/`restore_state`
//! is shorter when a row comes back to one that was there before.
//!
//! # The idea
//!
//! Two passes over the rows. The first decides for each row whether it is reached by plain changes from the row before
//! it, or by restoring an earlier row and plain changes from that one (usually none). The second writes the bytes.
//!
//! Restoring costs a byte here and a byte at the earlier row. `remember_state` and `restore_state` nest like brackets:
//! row `j` may restore row `i` only if no other pair has exactly one of its ends strictly between the two. What is
//! saved at `j` depends on `i` and `j` alone, so this is a choice of non-crossing pairs with the largest sum. The rows
//! that gain most choose first, each the best partner (the nearest among equals) that crosses nothing chosen before.
//! That is not always the optimum, but it finds what compilers write: body, epilogue, body, epilogue. (From left to
//! right, the first epilogue would restore the entry row and so bar the way back to the body, which is worth more.) A
//! partner is at most [`LOOK_BACK`] rows back, which keeps the time linear.
//!
//! # What is never written
//!
//! * `restore` of a register that the CIE has a rule for (libgcc reads it otherwise than the standard).
//! * Half of a frame address right after an expression.
//! * An argument size that unwinders could see differently: see [`rows`](super::rows).

#![warn(clippy::indexing_slicing)]

use smallvec::SmallVec;

use super::cfi::op;
use super::cursor::{put_sleb, put_uleb, sleb_len, uleb_len};
use super::eh_frame::Cie;
use super::rows::{CfaRule, RegRule, Row};
use crate::{ErrorKind, FormatError};

/// How far back a row to restore may be. Rows that come back often are near, so more gains next to nothing.
const LOOK_BACK: usize = 64;
/// States remembered at one place at most. gimli's default reader, which many profilers use, has space for four rows;
/// two of them are the CIE's and the current one.
const MAX_DEPTH: u32 = 2;
/// Bytes that a remembered row must save at least: every walk through the function pays for the copy that an unwinder
/// makes of it.
const MIN_SAVING: usize = 2;

/// Where the bytes go: a buffer, or a count.
trait Sink {
    fn byte(&mut self, byte: u8);
    fn uleb(&mut self, value: u64);
    fn sleb(&mut self, value: i64);
    fn bytes(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }
    fn uleb(&mut self, value: u64) {
        put_uleb(self, value);
    }
    fn sleb(&mut self, value: i64) {
        put_sleb(self, value);
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

struct Count(usize);

impl Sink for Count {
    fn byte(&mut self, _: u8) {
        self.0 += 1;
    }
    fn uleb(&mut self, value: u64) {
        self.0 += uleb_len(value);
    }
    fn sleb(&mut self, value: i64) {
        self.0 += sleb_len(value);
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// What the rules are measured against.
struct Encoder<'a, 'd> {
    cie: &'a Cie<'d>,
    initial: &'a Row<'d>,
}

impl<'d> Encoder<'_, 'd> {
    /// `offset` in units of the data alignment, if it is a multiple.
    fn factored(&self, offset: i64) -> Option<i64> {
        if offset == 0 {
            return Some(0);
        }
        let align = self.cie.data_align;
        (offset.checked_rem(align)? == 0)
            .then(|| offset.checked_div(align))
            .flatten()
    }

    fn cfa(&self, out: &mut impl Sink, from: &CfaRule<'_>, to: &CfaRule<'_>) {
        if from == to {
            return;
        }
        let (register, offset) = match *to {
            CfaRule::Expression(expression) => {
                out.byte(op::DEF_CFA_EXPRESSION);
                out.uleb(expression.len() as u64);
                out.bytes(expression);
                return;
            }
            CfaRule::Offset { register, offset } => (register, offset),
        };
        // A negative offset that is no multiple cannot come out of `rows`. Unsigned, it wraps around to the same
        // address.
        let signed = self
            .factored(offset)
            .filter(|&f| offset < 0 || sleb_len(f) < uleb_len(offset as u64));
        match *from {
            CfaRule::Offset {
                register: old,
                offset: same,
            } if same == offset && old != register => {
                out.byte(op::DEF_CFA_REGISTER);
                out.uleb(register.into());
            }
            CfaRule::Offset { register: old, .. } if old == register => match signed {
                Some(factor) => {
                    out.byte(op::DEF_CFA_OFFSET_SF);
                    out.sleb(factor);
                }
                None => {
                    out.byte(op::DEF_CFA_OFFSET);
                    out.uleb(offset as u64);
                }
            },
            _ => match signed {
                Some(factor) => {
                    out.byte(op::DEF_CFA_SF);
                    out.uleb(register.into());
                    out.sleb(factor);
                }
                None => {
                    out.byte(op::DEF_CFA);
                    out.uleb(register.into());
                    out.uleb(offset as u64);
                }
            },
        }
    }

    fn rule(&self, out: &mut impl Sink, register: u16, rule: &RegRule<'_>) {
        match *rule {
            RegRule::Undefined => plain(out, op::UNDEFINED, register),
            RegRule::SameValue => plain(out, op::SAME_VALUE, register),
            RegRule::Register(other) => {
                plain(out, op::REGISTER, register);
                out.uleb(other.into());
            }
            RegRule::Offset(offset) => match self.factored(offset) {
                Some(factor @ 0..) => {
                    if register < 0x40 {
                        out.byte(op::OFFSET | register as u8);
                    } else {
                        plain(out, op::OFFSET_EXTENDED, register);
                    }
                    out.uleb(factor as u64);
                }
                Some(factor) => {
                    plain(out, op::OFFSET_EXTENDED_SF, register);
                    out.sleb(factor);
                }
                None => cfa_plus(out, op::EXPRESSION, register, offset),
            },
            RegRule::ValOffset(offset) => match self.factored(offset) {
                Some(factor @ 0..) => {
                    plain(out, op::VAL_OFFSET, register);
                    out.uleb(factor as u64);
                }
                Some(factor) => {
                    plain(out, op::VAL_OFFSET_SF, register);
                    out.sleb(factor);
                }
                None => cfa_plus(out, op::VAL_EXPRESSION, register, offset),
            },
            RegRule::Expression(expression) => {
                plain(out, op::EXPRESSION, register);
                block(out, expression);
            }
            RegRule::ValExpression(expression) => {
                plain(out, op::VAL_EXPRESSION, register);
                block(out, expression);
            }
        }
    }

    /// A register that `to` does not list any more.
    fn forget(&self, out: &mut impl Sink, register: u16) {
        if self.initial.rule(register).is_some() {
            // No program but libgcc's reading of `restore` comes to such a row. Without a rule a register counts as
            // unchanged.
            plain(out, op::SAME_VALUE, register);
        } else if register < 0x40 {
            out.byte(op::RESTORE | register as u8);
        } else {
            plain(out, op::RESTORE_EXTENDED, register);
        }
    }

    /// Everything but the argument size.
    fn change(&self, out: &mut impl Sink, from: &Row<'_>, to: &Row<'_>) {
        self.cfa(out, &from.cfa, &to.cfa);
        let (mut old, mut new) = (
            from.registers.iter().peekable(),
            to.registers.iter().peekable(),
        );
        loop {
            match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(o), n) if n.is_none_or(|n| o.0 < n.0) => {
                    self.forget(out, o.0);
                    old.next();
                }
                (o, Some(n)) => {
                    let before = o.filter(|o| o.0 == n.0);
                    if before.is_none_or(|o| o.1 != n.1) {
                        self.rule(out, n.0, &n.1);
                    }
                    if before.is_some() {
                        old.next();
                    }
                    new.next();
                }
                // The second arm took every old rule that has no new one beside it.
                (Some(_), None) => break,
            }
        }
        if from.ra_signed != to.ra_signed {
            out.byte(op::AARCH64_NEGATE_RA_STATE);
        }
    }

    /// Bytes from `from` to `to`, the argument size included.
    fn cost(&self, from: &Row<'_>, to: &Row<'_>) -> usize {
        let mut count = Count(0);
        self.change(&mut count, from, to);
        args_size(&mut count, &[from.args_size], to.args_size);
        count.0
    }

    fn advance(&self, out: &mut Vec<u8>, delta: u64) -> Result<(), FormatError> {
        let align = self.cie.code_align;
        let factor = match delta.checked_rem(align) {
            Some(0) => delta / align,
            _ => {
                return Err(FormatError::new(format!(
                    "rows that are {delta:#x} bytes apart cannot be written under the CIE at offset {:#x}, \
                     whose code alignment is {align}",
                    self.cie.offset
                ))
                .at_offset(self.cie.offset)
                .values(delta, format!("a multiple of {align}")));
            }
        };
        if factor < 0x40 {
            out.push(op::ADVANCE_LOC | factor as u8);
        } else if let Ok(factor) = u8::try_from(factor) {
            out.extend([op::ADVANCE_LOC1, factor]);
        } else if let Ok(factor) = u16::try_from(factor) {
            out.push(op::ADVANCE_LOC2);
            out.extend(factor.to_le_bytes());
        } else if let Ok(factor) = u32::try_from(factor) {
            out.push(op::ADVANCE_LOC4);
            out.extend(factor.to_le_bytes());
        } else {
            return Err(FormatError::new(format!(
                "rows that are {delta:#x} bytes apart are too far from each other"
            ))
            .of(ErrorKind::TooLarge)
            .values(delta, u32::MAX));
        }
        Ok(())
    }
}

fn plain(out: &mut impl Sink, opcode: u8, register: u16) {
    out.byte(opcode);
    out.uleb(register.into());
}

fn block(out: &mut impl Sink, expression: &[u8]) {
    out.uleb(expression.len() as u64);
    out.bytes(expression);
}

/// CFA + `offset` as an expression, for an offset that is no multiple of the data alignment (the CFA is on the stack at
/// first).
fn cfa_plus(out: &mut impl Sink, opcode: u8, register: u16, offset: i64) {
    const DW_OP_CONSTS: u8 = 0x11;
    const DW_OP_PLUS: u8 = 0x22;
    plain(out, opcode, register);
    out.uleb(2 + sleb_len(offset) as u64);
    out.byte(DW_OP_CONSTS);
    out.sleb(offset);
    out.byte(DW_OP_PLUS);
}

/// States the argument size unless all of `seen` (what the different unwinders believe now) are right.
fn args_size(out: &mut impl Sink, seen: &[u64], wanted: u64) {
    if seen.iter().any(|&s| s != wanted) {
        out.byte(op::GNU_ARGS_SIZE);
        out.uleb(wanted);
    }
}

/// How a row is reached, and how often it is restored later.
#[derive(Clone, Copy, Default)]
struct Step {
    /// Index of the row to restore first.
    restore: Option<u32>,
    remember: u32,
}

/// Encodes rows as call frame instructions after `initial`: the shortest plain instructions (advance, define, restore,
/// remember/restore where it saves bytes). `rows` as [`rows`](super::rows::rows) gives them: ascending offsets; the
/// first is normally at 0 (code before it has the initial row).
///
/// # Errors
///
/// Offsets that do not ascend, that are no multiples of the CIE's code alignment, or that are 4 GiB × alignment apart.
pub fn encode<'d>(
    cie: &Cie<'d>,
    initial: &Row<'d>,
    rows: &[(u64, &Row<'d>)],
) -> Result<Vec<u8>, FormatError> {
    let encoder = Encoder { cie, initial };
    let steps = choose(&encoder, rows)?;
    let mut out = Vec::with_capacity(rows.len() * 4);
    let (mut loc, mut current) = (0, initial);
    for (&(offset, row), step) in rows.iter().zip(&steps) {
        if offset > loc {
            encoder.advance(&mut out, offset - loc)?;
            loc = offset;
        }
        match step.restore.and_then(|i| rows.get(i as usize)) {
            Some(&(_, old)) => {
                out.push(op::RESTORE_STATE);
                encoder.change(&mut out, old, row);
                args_size(&mut out, &[old.args_size, current.args_size], row.args_size);
            }
            None => {
                encoder.change(&mut out, current, row);
                args_size(&mut out, &[current.args_size], row.args_size);
            }
        }
        out.resize(out.len() + step.remember as usize, op::REMEMBER_STATE);
        current = row;
    }
    Ok(out)
}

/// The first pass: decides where to remember and restore.
fn choose<'d>(
    encoder: &Encoder<'_, 'd>,
    rows: &[(u64, &Row<'d>)],
) -> Result<SmallVec<[Step; 16]>, FormatError> {
    if u32::try_from(rows.len()).is_err() {
        return Err(
            FormatError::new(format!("{} unwind rows in one function", rows.len()))
                .of(ErrorKind::TooLarge)
                .values(rows.len(), u32::MAX),
        );
    }
    let mut steps: SmallVec<[Step; 16]> = SmallVec::from_elem(Step::default(), rows.len());
    // Rows that could gain: (the most that they can save, bytes when written plainly, index).
    let mut gains: SmallVec<[(usize, usize, usize); 16]> = SmallVec::new();
    for (j, pair) in rows.windows(2).enumerate().map(|(i, pair)| (i + 1, pair)) {
        let [(before, old), (offset, row)] = pair else {
            continue;
        };
        if before >= offset {
            return Err(FormatError::new(format!(
                "unwind rows must ascend, but row {j} at offset {offset:#x} follows one at {before:#x}"
            ))
            .of(ErrorKind::Order)
            .at_entry(j as u64)
            .values(*offset, *before));
        }
        let plain = encoder.cost(old, row);
        if j >= 2
            && plain >= RESTORE_COST + MIN_SAVING
            && let Some((_, cost)) = partner(encoder, rows, j, plain, |_| true)
        {
            gains.push((plain - cost, plain, j));
        }
    }
    if gains.is_empty() {
        return Ok(steps);
    }
    gains.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.2.cmp(&b.2)));
    let mut pairs: Vec<Around> = vec![Around::default(); rows.len()];
    for &(_, plain, j) in &gains {
        let fits = |i: usize| match (pairs.get(i), pairs.get(j), pairs.get(i..j)) {
            (Some(at_i), Some(at_j), Some(inside)) => {
                at_i.second_end >= j
                    && at_j.first_end <= i
                    && inside.iter().all(|p| p.depth < MAX_DEPTH)
            }
            _ => false,
        };
        let Some((i, _)) = partner(encoder, rows, j, plain, fits) else {
            continue;
        };
        for (p, around) in pairs.iter_mut().enumerate().take(j).skip(i) {
            around.depth += 1;
            if p > i {
                around.first_end = around.first_end.max(i);
                around.second_end = around.second_end.min(j);
            }
        }
        // `rows.len()` fits 32 bits.
        if let Some(step) = steps.get_mut(j) {
            step.restore = Some(i as u32);
        }
        if let Some(step) = steps.get_mut(i) {
            step.remember += 1;
        }
    }
    Ok(steps)
}

/// The chosen pairs around a row.
#[derive(Clone, Copy)]
struct Around {
    /// Of those that the row is strictly between: the greatest first end.
    first_end: usize,
    /// And the smallest second end.
    second_end: usize,
    /// How many states are remembered after the row.
    depth: u32,
}

impl Default for Around {
    fn default() -> Self {
        Around {
            first_end: 0,
            second_end: usize::MAX,
            depth: 0,
        }
    }
}

/// `remember_state` and `restore_state`.
const RESTORE_COST: usize = 2;

/// The row before `j` that `fits` and that is the cheapest to restore there, with the bytes that it takes; the nearest
/// of equal ones.
fn partner<'d>(
    encoder: &Encoder<'_, 'd>,
    rows: &[(u64, &Row<'d>)],
    j: usize,
    plain: usize,
    fits: impl Fn(usize) -> bool,
) -> Option<(usize, usize)> {
    let row = rows.get(j)?.1;
    let current = rows.get(j.checked_sub(1)?)?.1;
    let mut most = plain.checked_sub(MIN_SAVING)?;
    let mut best = None;
    for (i, &(_, old)) in rows.iter().enumerate().take(j - 1).rev().take(LOOK_BACK) {
        if !fits(i) {
            continue;
        }
        let mut count = Count(RESTORE_COST);
        encoder.change(&mut count, old, row);
        args_size(
            &mut count,
            &[old.args_size, current.args_size],
            row.args_size,
        );
        if count.0 <= most {
            best = Some((i, count.0));
            if count.0 == RESTORE_COST {
                break;
            }
            // From now on only what is better.
            most = count.0 - 1;
        }
    }
    best
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::super::eh_frame::Fde;
    use super::super::rows::{initial_row, rows};
    use super::*;

    fn cie() -> Cie<'static> {
        // def_cfa r7+8; offset r16 at -8
        Cie::for_tests(&[0x0c, 7, 8, 0x90, 1], 1, -8)
    }

    /// Encodes the rows of a program.
    fn encode_again(cie: &Cie<'_>, input: &[u8], len: u64) -> Result<Vec<u8>, String> {
        let fde = Fde::for_tests(input, 0x1000, len);
        let before = rows(cie, &fde).unwrap();
        let refs: Vec<_> = before.iter().map(|(o, r)| (*o, r)).collect();
        encode(cie, &initial_row(cie).unwrap(), &refs).map_err(|e| e.what)
    }

    fn round_trip(cie: &Cie<'_>, input: &[u8], len: u64) -> Vec<u8> {
        let out = encode_again(cie, input, len).unwrap();
        let (a, b) = (
            Fde::for_tests(input, 0x1000, len),
            Fde::for_tests(&out, 0x1000, len),
        );
        assert_eq!(rows(cie, &a).unwrap(), rows(cie, &b).unwrap(), "{out:02x?}");
        out
    }

    #[test]
    fn push_and_pop_come_out_as_the_compiler_wrote_them() {
        let input = [
            0x41, 0x0e, 16, 0x83, 2, 0x44, 0x0e, 32, 0x50, 0x0e, 16, 0x41, 0x0e, 8, 0xc3,
        ];
        assert_eq!(round_trip(&cie(), &input, 0x40), input);
    }

    #[test]
    fn a_row_that_comes_back_is_remembered_if_that_is_shorter() {
        // Body, epilogue that restores three registers, body again.
        let input = [
            0x41, 0x0e, 16, 0x86, 2, 0x0e, 24, 0x83, 3, 0x8c, 4, 0x0e, 48, // body
            0x60, 0x0a, 0x0e, 8, 0xc6, 0xc3, 0xcc, 0x41, 0x0b, // epilogue, back
        ];
        let out = round_trip(&cie(), &input, 0x100);
        assert!(
            out.contains(&op::REMEMBER_STATE) && out.contains(&op::RESTORE_STATE),
            "{out:02x?}"
        );
        // `input` defines the offset three times at one place.
        assert_eq!(out.len(), input.len() - 4);
    }

    #[test]
    fn a_short_difference_is_written_plainly() {
        let out = round_trip(
            &cie(),
            &[0x44, 0x0e, 16, 0x44, 0x0e, 8, 0x44, 0x0e, 16],
            0x40,
        );
        assert_eq!(out, [0x44, 0x0e, 16, 0x44, 0x0e, 8, 0x44, 0x0e, 16]);
    }

    #[test]
    fn a_rule_of_the_cie_is_written_out_and_never_restored() {
        // undefined r16, later the initial rule again
        let out = round_trip(&cie(), &[0x07, 16, 0x48, 0xd0], 0x40);
        assert_eq!(out, [0x07, 16, 0x48, 0x90, 1]);
    }

    #[test]
    fn every_kind_of_rule_round_trips() {
        let input = [
            0x05, 0x80, 1, 3, 0x11, 3, 0x7e,
            0x41, // offset_extended, offset_extended_sf with a positive offset
            0x14, 4, 2, 0x15, 5, 0x7f, 0x41, // val_offset, val_offset_sf
            0x10, 6, 2, 0x77, 8, 0x16, 8, 1, 0x9c, 0x41, // expression, val_expression
            0x09, 9, 10, 0x08, 11, 0x07, 12, 0x41, // register, same_value, undefined
            0x2f, 13, 2, 0x2e, 16, 0x2d, 0x41, // negative offset, args size, ra state
            0x0f, 2, 0x77, 16, 0x41, 0x12, 6, 0x7e, 0x41, 0x13,
            0x7d, // CFA expression, def_cfa_sf, def_cfa_offset_sf
            0x41, 0x06, 0x80, 1, 0xc3, 0x0d, 3, 0x41, 0x12, 3,
            4, // restores, register, a negative CFA offset
            0x02, 0x90, 0x0e, 1, 0x03, 0, 2, 0x0e, 2, 0x04, 0, 0, 2, 0, 0x0e, 3, 0x1d, 0, 0, 0, 0,
            1, 0, 0, 0, 0x0e, 4,
        ];
        let cie = Cie::for_tests(&[0x0c, 7, 8, 0x90, 1], 2, -8);
        // 2^32 units cannot be written (and no function has them): only that last row is too far.
        let e = encode_again(&cie, &input, 1 << 40).unwrap_err();
        assert!(e.contains("too far"), "{e}");
        round_trip(&cie, &input[..input.len() - 11], 1 << 40);
    }

    #[test]
    fn offsets_that_are_no_multiples_become_expressions_of_the_same_value() {
        let cie = cie();
        let mut row = initial_row(&cie).unwrap();
        row.registers.push((17, RegRule::Offset(-12)));
        row.registers.push((18, RegRule::ValOffset(3)));
        let out = encode(&cie, &initial_row(&cie).unwrap(), &[(0, &row)]).unwrap();
        let fde = Fde::for_tests(&out, 0x1000, 4);
        let back = rows(&cie, &fde).unwrap();
        assert_eq!(
            back[0].1.rule(17),
            Some(RegRule::Expression(&[0x11, 0x74, 0x22]))
        );
        assert_eq!(
            back[0].1.rule(18),
            Some(RegRule::ValExpression(&[0x11, 3, 0x22]))
        );
    }

    #[test]
    fn argument_size_is_stated_when_unwinders_would_see_different_ones_after_a_restore() {
        let cie = cie();
        let initial = initial_row(&cie).unwrap();
        let mut body = initial.clone();
        for r in [3, 6, 12, 13] {
            body.registers
                .push((r, RegRule::Offset(-16 - 8 * i64::from(r))));
        }
        body.registers.sort_by_key(|r| r.0);
        let mut small = initial.clone();
        small.args_size = 16;
        let mut back = body.clone();
        back.args_size = 16;
        let list = [(0, &body), (4, &small), (8, &back)];
        let out: &'static [u8] = encode(&cie, &initial, &list).unwrap().leak();
        // libgcc would still see 16 there, but LLVM's libunwind the 0 of the remembered row.
        assert!(
            out.ends_with(&[op::RESTORE_STATE, op::GNU_ARGS_SIZE, 16]),
            "{out:02x?}"
        );
        let fde = Fde::for_tests(out, 0, 16);
        let got = rows(&cie, &fde).unwrap();
        assert!(got.iter().map(|(o, r)| (*o, r)).eq(list), "{got:?}");
    }

    #[test]
    fn rows_that_do_not_ascend_or_do_not_fit_the_code_alignment_are_errors() {
        let cie = Cie::for_tests(&[0x0c, 31, 0], 4, -8);
        let initial = initial_row(&cie).unwrap();
        let mut other = initial.clone();
        other.ra_signed = true;
        assert!(
            encode(&cie, &initial, &[(4, &other), (4, &initial)])
                .unwrap_err()
                .what
                .contains("ascend")
        );
        assert!(
            encode(&cie, &initial, &[(2, &other)])
                .unwrap_err()
                .what
                .contains("code alignment is 4")
        );
        assert_eq!(
            encode(&cie, &initial, &[(4, &other)]).unwrap(),
            [0x41, 0x2d]
        );
    }
}
