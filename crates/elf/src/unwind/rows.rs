//! Unwind rows: where the caller's registers are, at each instruction.
//!
//! An FDE does not list its rows. It holds a program ([`cfi`](super) instructions) that starts from the row which the
//! CIE's own program builds, and changes one rule at a time while it advances through the code. A rewriter wants the
//! rows: it takes them apart at block borders, puts them in the new order, and [`encode`]s them for the new fragment.
//!
//! # Where unwinders differ
//!
//! The same program means different things to different unwinders in three corners. Reading follows the standard;
//! writing uses only what all of them (libgcc, LLVM's libunwind, the nongnu libunwind, gdb, gimli) agree on.
//!
//! * **`restore` of a register that the CIE has a rule for.** The standard says: back to the CIE's rule. libgcc makes
//!   the register unsaved instead (a comment there calls it wrong). No compiler emits it, reading takes the standard's
//!   side, and the encoder writes such a rule out. A `restore` of a register *without* an initial rule means "no rule"
//!   to everyone; compilers use it in every epilogue and so does the encoder.
//! * **`GNU_args_size` across `remember_state`/`restore_state`.** libgcc keeps the size outside the saved state, GCC
//!   relies on that, and so does reading; LLVM's libunwind and gimli save and restore it. The encoder states the size
//!   after a `restore_state` unless both readings agree already.
//! * **`def_cfa_register` or `def_cfa_offset` while the CFA is an expression**, as hand-written assembly has it. The
//!   run-time unwinders and gdb keep the offset that was there before the expression, internally: a new offset
//!   changes that one and leaves the expression, a new register goes with it and ends the expression. So does reading.
//!   gimli refuses both, and the encoder writes the whole address.
//!
//! # Invariants
//!
//! * Rows ascend strictly, the first is at offset 0, and equal neighbours are merged.
//! * [`encode`] of what [`rows`] gave, evaluated again, gives the same rows.
//! * Evaluation of `n` bytes makes at most `n` rows and `32 n + 4096` register rules; more is an error.

#![warn(clippy::indexing_slicing)]

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::cfi::{Instruction, Instructions};
use super::eh_frame::{Cie, Fde};
use crate::{ErrorKind, FormatError};

pub use super::encoder::encode;
pub use super::lowered::{Lowered, lowered};

/// How the canonical frame address is found. Expressions are byte ranges of the input's section, copied verbatim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule<'d> {
    /// Register plus byte offset.
    Offset {
        /// DWARF number.
        register: u16,
        /// Bytes.
        offset: i64,
    },
    /// DWARF expression.
    Expression(&'d [u8]),
}

/// How a register of the caller is found. Byte offsets (already multiplied by the data alignment factor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegRule<'d> {
    /// `DW_CFA_undefined`
    Undefined,
    /// `DW_CFA_same_value`
    SameValue,
    /// Saved at CFA + offset.
    Offset(i64),
    /// Is CFA + offset.
    ValOffset(i64),
    /// In another register.
    Register(u16),
    /// Saved at the address that the expression gives.
    Expression(&'d [u8]),
    /// Is the value that the expression gives.
    ValExpression(&'d [u8]),
}

/// The state at one place. Registers without a rule are not listed; the list is sorted by register.
#[derive(Debug, Eq)]
pub struct Row<'d> {
    /// Canonical frame address. Register 0 plus 0 where nothing defined it.
    pub cfa: CfaRule<'d>,
    /// Rules by DWARF register number.
    pub registers: SmallVec<[(u16, RegRule<'d>); 8]>,
    /// `DW_CFA_GNU_args_size`
    pub args_size: u64,
    /// AArch64: return address signed (`DW_CFA_AARCH64_negate_ra_state` seen an odd number of times).
    pub ra_signed: bool,
}

// By hand: the derived one would clone rule by rule, and rows are cloned by the million.
impl Clone for Row<'_> {
    fn clone(&self) -> Self {
        Row {
            cfa: self.cfa,
            registers: SmallVec::from_slice(&self.registers),
            args_size: self.args_size,
            ra_signed: self.ra_signed,
        }
    }
    fn clone_from(&mut self, other: &Self) {
        self.cfa = other.cfa;
        self.registers.clear();
        self.registers.extend_from_slice(&other.registers);
        self.args_size = other.args_size;
        self.ra_signed = other.ra_signed;
    }
}

// By hand, so that rows of two files can be compared: the list makes the lifetime invariant.
impl<'b> PartialEq<Row<'b>> for Row<'_> {
    fn eq(&self, other: &Row<'b>) -> bool {
        self.cfa == other.cfa
            && self.registers[..] == other.registers[..]
            && self.args_size == other.args_size
            && self.ra_signed == other.ra_signed
    }
}

impl Hash for Row<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (
            self.cfa,
            &self.registers[..],
            self.args_size,
            self.ra_signed,
        )
            .hash(state);
    }
}

impl Default for Row<'_> {
    fn default() -> Self {
        Row {
            cfa: CfaRule::Offset {
                register: 0,
                offset: 0,
            },
            registers: SmallVec::new(),
            args_size: 0,
            ra_signed: false,
        }
    }
}

impl<'d> Row<'d> {
    /// The rule of a register; `None` if it has none, which unwinders read as "not changed".
    pub fn rule(&self, register: u16) -> Option<RegRule<'d>> {
        let at = self.find(register).ok()?;
        self.registers.get(at).map(|r| r.1)
    }
    /// The same row, to stand beside rows with bytes from elsewhere.
    pub fn shared<'s>(&self) -> Row<'s>
    where
        'd: 's,
    {
        Row {
            cfa: self.cfa,
            registers: self.registers.iter().map(|r| (r.0, r.1)).collect(),
            args_size: self.args_size,
            ra_signed: self.ra_signed,
        }
    }
    fn find(&self, register: u16) -> Result<usize, usize> {
        self.registers.binary_search_by_key(&register, |r| r.0)
    }
    pub(super) fn set(&mut self, register: u16, rule: RegRule<'d>) {
        match self.find(register) {
            Ok(at) => {
                if let Some(known) = self.registers.get_mut(at) {
                    known.1 = rule;
                }
            }
            Err(at) => self.registers.insert(at, (register, rule)),
        }
    }
    fn clear(&mut self, register: u16) {
        if let Ok(at) = self.find(register) {
            self.registers.remove(at);
        }
    }
}

/// More rules in a row than any machine has registers: a hostile file.
const MAX_RULES: usize = 1024;
/// `remember_state` deeper than any compiler nests it.
const MAX_REMEMBERED: usize = 256;

/// The row that is being built.
#[derive(Clone)]
struct State<'d> {
    row: Row<'d>,
    /// The offset that a `def_cfa_register` goes with, also while the CFA is an expression.
    offset: Option<i64>,
}

impl<'d> State<'d> {
    fn from_initial(row: &Row<'d>) -> Self {
        let offset = match row.cfa {
            CfaRule::Offset { offset, .. } => Some(offset),
            CfaRule::Expression(_) => None,
        };
        State {
            row: row.clone(),
            offset,
        }
    }
}

/// Changes `state` by one instruction that neither advances nor uses the stack of states.
fn apply<'d>(
    state: &mut State<'d>,
    instruction: Instruction<'d>,
    addr: u64,
) -> Result<(), FormatError> {
    let row = &mut state.row;
    match instruction {
        Instruction::DefCfa(register, offset) => {
            row.cfa = CfaRule::Offset { register, offset };
            state.offset = Some(offset);
        }
        Instruction::DefCfaExpression(expression) => row.cfa = CfaRule::Expression(expression),
        Instruction::DefCfaRegister(register) => {
            let offset = state.offset.ok_or_else(|| {
                FormatError::new(format!(
                    "DW_CFA_def_cfa_register at {addr:#x} goes with an offset that was never defined"
                ))
                .of(ErrorKind::Missing)
                .at_address(addr)
            })?;
            row.cfa = CfaRule::Offset { register, offset };
        }
        Instruction::DefCfaOffset(new) => {
            state.offset = Some(new);
            if let CfaRule::Offset { offset, .. } = &mut row.cfa {
                *offset = new;
            }
        }
        Instruction::Rule(register, rule) => {
            row.set(register, rule);
            if row.registers.len() > MAX_RULES {
                return Err(FormatError::new(format!(
                    "the call frame instruction at {addr:#x} makes {} register rules in one row, more than {MAX_RULES}",
                    row.registers.len()
                ))
                .of(ErrorKind::TooLarge)
                .at_address(addr)
                .values(row.registers.len(), MAX_RULES));
            }
        }
        Instruction::ArgsSize(size) => row.args_size = size,
        Instruction::NegateRaState => row.ra_signed = !row.ra_signed,
        // The callers handle these.
        Instruction::Nop
        | Instruction::SetLoc(_)
        | Instruction::Advance(_)
        | Instruction::Restore(_)
        | Instruction::RememberState
        | Instruction::RestoreState => {}
    }
    Ok(())
}

/// Runs a CIE's initial instructions. One that advances, restores or remembers has no meaning there and is refused.
pub fn initial_row<'d>(cie: &Cie<'d>) -> Result<Row<'d>, FormatError> {
    let mut state = State::from_initial(&Row::default());
    let mut instructions = Instructions::new(cie, cie.instructions, cie.instructions_addr());
    loop {
        let addr = instructions.cursor.addr();
        match instructions.next()? {
            None => return Ok(state.row),
            Some(
                Instruction::SetLoc(_)
                | Instruction::Advance(_)
                | Instruction::Restore(_)
                | Instruction::RememberState
                | Instruction::RestoreState,
            ) => {
                return Err(FormatError::new(format!(
                    "the call frame instruction at {addr:#x} has no meaning in a CIE (at offset {:#x})",
                    cie.offset
                ))
                .at_address(addr));
            }
            Some(instruction) => apply(&mut state, instruction, addr)?,
        }
    }
}

/// Calls `visit` with (offset from the FDE's start, row) for each row in ascending order, the first at 0, equal
/// neighbours merged. `initial` is the CIE's [`initial_row`]. Does not allocate unless states are remembered or a
/// row has more than eight rules.
pub fn visit_rows<'d>(
    cie: &Cie<'d>,
    initial: &Row<'d>,
    fde: &Fde<'d>,
    mut visit: impl FnMut(u64, &Row<'d>) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let mut state = State::from_initial(initial);
    let mut remembered: Vec<State<'d>> = Vec::new();
    // Where the row begins, and whether it differs from the row that was visited last (so far as is known: it is
    // compared when it ends).
    let mut loc = 0u64;
    let mut changed = true;
    let mut last: Option<Row<'d>> = None;
    let mut instructions = Instructions::new(cie, fde.instructions, fde.instructions_addr());
    loop {
        let addr = instructions.cursor.addr();
        let Some(instruction) = instructions.next()? else {
            break;
        };
        let next = match instruction {
            Instruction::Nop => continue,
            Instruction::Advance(delta) => loc.checked_add(delta),
            Instruction::SetLoc(target) => {
                target.checked_sub(fde.start).filter(|&next| next >= loc)
            }
            Instruction::Restore(register) => {
                match initial.rule(register) {
                    Some(rule) => state.row.set(register, rule),
                    None => state.row.clear(register),
                }
                changed = true;
                continue;
            }
            Instruction::RememberState => {
                if remembered.len() >= MAX_REMEMBERED {
                    return Err(FormatError::new(format!(
                        "DW_CFA_remember_state at {addr:#x} is nested more than {MAX_REMEMBERED} deep"
                    ))
                    .of(ErrorKind::TooLarge)
                    .at_address(addr)
                    .values(remembered.len() + 1, MAX_REMEMBERED));
                }
                remembered.push(state.clone());
                continue;
            }
            Instruction::RestoreState => {
                let Some(old) = remembered.pop() else {
                    return Err(FormatError::new(format!(
                        "DW_CFA_restore_state at {addr:#x} has no DW_CFA_remember_state before it"
                    ))
                    .of(ErrorKind::Missing)
                    .at_address(addr));
                };
                let args_size = state.row.args_size;
                state = old;
                state.row.args_size = args_size;
                changed = true;
                continue;
            }
            other => {
                apply(&mut state, other, addr)?;
                changed = true;
                continue;
            }
        };
        let next = match next {
            Some(next) if next <= fde.len => next,
            _ => {
                return Err(FormatError::new(format!(
                    "the call frame instruction at {addr:#x} goes from offset {loc:#x} to a place outside the FDE's code \
                     ({:#x}, {:#x} bytes)",
                    fde.start, fde.len
                ))
                .of(ErrorKind::OutOfBounds)
                .at_address(addr)
                .values(loc, fde.len));
            }
        };
        if next > loc {
            if changed && last.as_ref() != Some(&state.row) {
                visit(loc, &state.row)?;
                match &mut last {
                    Some(last) => last.clone_from(&state.row),
                    None => last = Some(state.row.clone()),
                }
            }
            changed = false;
            loc = next;
        }
    }
    // An advance to exactly the end opens a row that no instruction has.
    if changed && (loc < fde.len || last.is_none()) && last.as_ref() != Some(&state.row) {
        visit(loc, &state.row)?;
    }
    Ok(())
}

/// All rows of an FDE, like [`rows`], with the CIE's [`initial_row`] given: for callers with many FDEs of one CIE.
pub fn rows_from<'d>(
    cie: &Cie<'d>,
    initial: &Row<'d>,
    fde: &Fde<'d>,
) -> Result<Vec<(u64, Row<'d>)>, FormatError> {
    let mut rows = Vec::new();
    visit_bounded(cie, initial, fde, |offset, row| {
        rows.push((offset, row.clone()))
    })?;
    Ok(rows)
}

/// [`visit_rows`], of not more rows and rules than [`rows`] makes.
pub fn visit_bounded<'d>(
    cie: &Cie<'d>,
    initial: &Row<'d>,
    fde: &Fde<'d>,
    mut visit: impl FnMut(u64, &Row<'d>),
) -> Result<(), FormatError> {
    // Every row of a compiler takes two bytes at least and has a handful of rules. This bounds what a few bytes can
    // make.
    let mut budget = fde
        .instructions
        .len()
        .saturating_mul(32)
        .saturating_add(4096);
    visit_rows(cie, initial, fde, |offset, row| {
        budget = budget.checked_sub(row.registers.len()).ok_or_else(|| {
            FormatError::new(format!(
                "the {} bytes of call frame instructions at {:#x} make too many register rules",
                fde.instructions.len(),
                fde.instructions_addr()
            ))
            .of(ErrorKind::TooLarge)
            .at_address(fde.instructions_addr())
        })?;
        visit(offset, row);
        Ok(())
    })
}

/// All rows of an FDE: (offset from its start, row), ascending, the first at 0; equal neighbours merged.
/// Refuses what it does not know, naming the opcode and its address.
pub fn rows<'d>(cie: &Cie<'d>, fde: &Fde<'d>) -> Result<Vec<(u64, Row<'d>)>, FormatError> {
    rows_from(cie, &initial_row(cie)?, fde)
}

/// Whether the row of an FDE at an offset, in front of which nothing is done, is another than the CIE's
/// [`initial_row`]: its code does not begin as functions do. What follows that row is not read.
pub fn begins_otherwise<'d>(cie: &Cie<'d>, initial: &Row<'d>, fde: &Fde<'d>, offset: u64) -> bool {
    let mut other = false;
    // The error only ends it.
    let _ = visit_rows(cie, initial, fde, |at, row| {
        if at > offset {
            return Err(FormatError::new(String::new()));
        }
        other = row != initial;
        Ok(())
    });
    other
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

    const INITIAL: &[u8] = &[0x0c, 7, 8, 0x90, 1];

    fn cie() -> Cie<'static> {
        Cie::for_tests(INITIAL, 1, -8)
    }
    fn eval(instructions: &[u8], len: u64) -> Result<Vec<(u64, Row<'_>)>, String> {
        rows(&cie(), &Fde::for_tests(instructions, 0x1000, len)).map_err(|e| e.what)
    }

    /// GCC puts a `nop` in front of a landing pad that a cold part begins with.
    #[test]
    fn a_part_that_begins_with_an_instruction_that_does_nothing_begins_otherwise() {
        let instructions = [0x41, 0x0e, 80, 0x83, 7];
        let (cie, fde) = (cie(), Fde::for_tests(&instructions, 0x1000, 0x20));
        let initial = initial_row(&cie).unwrap();
        assert!(!begins_otherwise(&cie, &initial, &fde, 0));
        assert!(begins_otherwise(&cie, &initial, &fde, 1));
    }

    #[test]
    fn rows_follow_advances_and_equal_neighbours_are_one() {
        let got = eval(
            &[0x0e, 16, 0x44, 0x0e, 16, 0x44, 0x0e, 24, 0x40, 0x0e, 32],
            0x20,
        )
        .unwrap();
        let cfa: Vec<_> = got.iter().map(|(o, r)| (*o, r.cfa)).collect();
        let at = |offset| CfaRule::Offset {
            register: 7,
            offset,
        };
        assert_eq!(cfa, [(0, at(16)), (8, at(32))]);
        assert_eq!(got[0].1.rule(16), Some(RegRule::Offset(-8)));
    }

    #[test]
    fn an_advance_to_the_end_opens_no_row_and_one_beyond_is_an_error() {
        assert_eq!(eval(&[0x44, 0x0e, 16], 4).unwrap().len(), 1);
        let e = eval(&[0x45, 0x0e, 16], 4).unwrap_err();
        assert!(e.contains("outside") && e.contains("0x1000"), "{e}");
        assert_eq!(eval(&[], 0).unwrap().len(), 1);
    }

    #[test]
    fn restore_state_brings_back_the_frame_address_but_not_the_argument_size() {
        let got = eval(&[0x0a, 0x41, 0x0d, 6, 0x2e, 8, 0x41, 0x0b], 8).unwrap();
        assert_eq!(
            got[2].1.cfa,
            CfaRule::Offset {
                register: 7,
                offset: 8
            }
        );
        assert_eq!(got[2].1.args_size, 8);
    }

    #[test]
    fn the_offset_behind_an_expression_comes_back_with_the_next_register() {
        // cfa = r7+32; expression; offset 40 after it; r6+40
        let got = eval(
            &[0x0e, 32, 0x41, 0x0f, 1, 0x9c, 0x41, 0x0e, 40, 0x41, 0x0d, 6],
            8,
        )
        .unwrap();
        let cfa: Vec<_> = got.iter().map(|(o, r)| (*o, r.cfa)).collect();
        let at = |register, offset| CfaRule::Offset { register, offset };
        assert_eq!(
            cfa,
            [
                (0, at(7, 32)),
                (1, CfaRule::Expression(&[0x9c])),
                (3, at(6, 40))
            ]
        );
    }

    #[test]
    fn set_loc_counts_from_the_function() {
        let cie = Cie {
            fde_encoding: 0x1b,
            ..cie()
        };
        // The field is one byte after the opcode.
        let mut bytes = vec![1];
        let fde = Fde::for_tests(&bytes, 0x1000, 0x40);
        let field = fde.instructions_addr() + 1;
        bytes.extend((0x1010u32).wrapping_sub(field as u32).to_le_bytes());
        bytes.extend([0x0e, 24]);
        // The test entry's instructions begin at the same address whatever their length.
        let got = rows(&cie, &Fde::for_tests(&bytes, 0x1000, 0x40)).unwrap();
        assert_eq!(got[1].0, 0x10);
        let back = Fde::for_tests(&bytes, 0x1011, 0x40);
        assert!(rows(&cie, &back).unwrap_err().what.contains("outside"));
    }

    #[test]
    fn what_has_no_meaning_is_refused_with_its_place() {
        assert!(eval(&[0x3f], 8).unwrap_err().contains("0x3f at"));
        assert!(eval(&[0x2c], 8).unwrap_err().contains("unknown"));
        assert!(eval(&[0x0b], 8).unwrap_err().contains("remember"));
        let expression = Cie::for_tests(&[0x0f, 1, 0x9c], 1, -8);
        let e = rows(&expression, &Fde::for_tests(&[0x0d, 6], 0x1000, 8)).unwrap_err();
        assert!(e.what.contains("never defined"), "{e}");
        assert!(eval(&[0x0f, 9], 8).unwrap_err().contains("9 bytes"));
        assert!(
            eval(&[0x05, 0x80, 0x80, 4, 0], 8)
                .unwrap_err()
                .contains("65536")
        );
        let nested = [0x0a; 300];
        assert!(eval(&nested, 8).unwrap_err().contains("nested"));
        let advances = Cie::for_tests(&[0x41], 1, -8);
        assert!(initial_row(&advances).unwrap_err().what.contains("CIE"));
    }

    #[test]
    fn few_bytes_cannot_make_rows_without_bound() {
        // A thousand rules, then a change in every second byte.
        let mut bytes = Vec::new();
        for r in 0..1000u16 {
            bytes.extend([0x08, (r & 0x7f) as u8 | 0x80, (r >> 7) as u8]);
        }
        for _ in 0..100_000 {
            bytes.extend([0x41, 0x2d]);
        }
        assert!(
            eval(&bytes, 1 << 30)
                .unwrap_err()
                .contains("too many register rules")
        );
        let many: Vec<u8> = (0..1100u16)
            .flat_map(|r| [0x08, (r & 0x7f) as u8 | 0x80, (r >> 7) as u8])
            .collect();
        assert!(eval(&many, 8).unwrap_err().contains("more than 1024"));
    }
}
