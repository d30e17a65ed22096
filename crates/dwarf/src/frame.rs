//! `.debug_frame`: how debuggers unwind where a program has no `.eh_frame` for its code.
//!
//! Compilers write it for functions without unwind tables (`-fno-asynchronous-unwind-tables`), assemblers on demand
//! (`.cfi_sections .debug_frame`). Entries have an address and a length; what an entry says of each instruction is a
//! small program that makes rows.
//!
//! | bytes | field of a CIE | field of an FDE |
//! |---|---|---|
//! | 4, or 12 in DWARF 64 | length | length |
//! | 4 or 8 | all bits set | offset of the CIE |
//! | 1 | version 1, 3 or 4 | |
//! | | augmentation, a string; address and segment size (4) | |
//! | 8, 8 | | first address, number of bytes |
//! | | alignment factors, return register | |
//! | | initial instructions | instructions |
//!
//! # What happens
//!
//! Old entries stay, as old bodies do: a pointer into one may still be on some stack. For each stretch of new code an
//! entry is appended whose rows are those of the old instructions, with the same CIE. Where other code is in an old
//! body (`--preset size`), its entry ends in front of that.
//!
//! Rules are kept as the bytes of the instruction that sets them, so nothing of them is interpreted: neither
//! registers nor expressions.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Error;
use crate::map::{AddressMap, Run};
use crate::read::{Reader, put_number, put_uleb};
use crate::splice::Splices;

const SECTION: &str = ".debug_frame";

/// Call frame instructions (`DW_CFA_…`), by their low bits.
mod cfa {
    pub const SET_LOC: u8 = 0x01;
    pub const ADVANCE_1: u8 = 0x02;
    pub const ADVANCE_2: u8 = 0x03;
    pub const ADVANCE_4: u8 = 0x04;
    pub const OFFSET_EXTENDED: u8 = 0x05;
    pub const RESTORE_EXTENDED: u8 = 0x06;
    pub const UNDEFINED: u8 = 0x07;
    pub const SAME_VALUE: u8 = 0x08;
    pub const REGISTER: u8 = 0x09;
    pub const REMEMBER: u8 = 0x0a;
    pub const RESTORE: u8 = 0x0b;
    pub const DEF_CFA: u8 = 0x0c;
    pub const DEF_CFA_REGISTER: u8 = 0x0d;
    pub const DEF_CFA_OFFSET: u8 = 0x0e;
    pub const DEF_CFA_EXPRESSION: u8 = 0x0f;
    pub const EXPRESSION: u8 = 0x10;
    pub const OFFSET_EXTENDED_SF: u8 = 0x11;
    pub const DEF_CFA_SF: u8 = 0x12;
    pub const DEF_CFA_OFFSET_SF: u8 = 0x13;
    pub const VAL_OFFSET: u8 = 0x14;
    pub const VAL_OFFSET_SF: u8 = 0x15;
    pub const VAL_EXPRESSION: u8 = 0x16;
    pub const NEGATE_RA_STATE: u8 = 0x2d;
    pub const GNU_ARGS_SIZE: u8 = 0x2e;
    /// In the two highest bits.
    pub const ADVANCE: u8 = 0x40;
    pub const OFFSET: u8 = 0x80;
    pub const RESTORE_SHORT: u8 = 0xc0;
}

/// What holds at an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    cfa: Cfa,
    /// By register: the instruction that sets its rule. What is not there is as at first.
    rules: BTreeMap<u64, Vec<u8>>,
    /// Whether the return address is signed (AArch64).
    signed: bool,
    /// Bytes of arguments on the stack.
    arguments: u64,
}

/// Where the caller's frame is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Cfa {
    #[default]
    None,
    /// Register and offset; whether the latter is factored and signed.
    Register(u64, Vec<u8>, bool),
    /// The instruction that sets it.
    Expression(Vec<u8>),
}

/// A common information entry.
struct Cie {
    code_factor: u64,
    initial: State,
}

/// Rows of an entry, by address: each holds until the next.
type Rows = Vec<(u64, State)>;

/// Appends entries for new code.
pub(crate) fn update(data: &[u8], map: &AddressMap, out: &mut Splices) -> Result<(), Error> {
    let mut cies: BTreeMap<u64, Cie> = BTreeMap::new();
    let mut added = Vec::new();
    let mut at = 0;
    while at < data.len() as u64 {
        let mut r = Reader::new(data, at, SECTION)?;
        let offset_size = r.unit_length()?;
        let next = r.end as u64;
        let id = r.number(offset_size)?;
        let all_bits = if offset_size == 8 {
            u64::MAX
        } else {
            0xffff_ffff
        };
        if r.is_empty() && id == 0 || id == all_bits {
            at = next;
            continue;
        }
        if let std::collections::btree_map::Entry::Vacant(vacant) = cies.entry(id) {
            vacant.insert(Cie::read(data, id)?);
        }
        let Some(cie) = cies.get(&id) else {
            return Err(r.error("an entry without its CIE"));
        };
        let start = r.number(8)?;
        let range_field = r.at as u64;
        let range = start..start.wrapping_add(r.number(8)?);
        if map.touches(&range) {
            let rows = cie.rows(&mut r, range.start)?;
            for run in stretches(map, &range) {
                put_entry(&mut added, (id, cie), &run, &rows)?;
            }
            if let Some(end) = map.reused_in(&range) {
                out.push(
                    range_field..range_field + 8,
                    &(end - range.start).to_le_bytes(),
                );
            }
        }
        at = next;
    }
    if !added.is_empty() {
        let end = data.len() as u64;
        out.push(end..end, &added);
    }
    Ok(())
}

impl Cie {
    fn read(data: &[u8], at: u64) -> Result<Cie, Error> {
        let mut r = Reader::new(data, at, SECTION)?;
        let offset_size = r.unit_length()?;
        let id = r.number(offset_size)?;
        let version = r.u8()?;
        let augmentation = r.string()?;
        let all_bits = if offset_size == 8 {
            u64::MAX
        } else {
            0xffff_ffff
        };
        if id != all_bits || !matches!(version, 1 | 3 | 4) || !augmentation.is_empty() {
            return Err(r.error(format!(
                "a CIE of version {version} with the augmentation {:?}; 1, 3 and 4 without one are possible",
                String::from_utf8_lossy(augmentation)
            )));
        }
        if version == 4 {
            let (address, segment) = (r.u8()?, r.u8()?);
            if (address, segment) != (8, 0) {
                let what = format!(
                    "addresses of {address} bytes and segments of {segment}; 8 and 0 are possible"
                );
                return Err(r.error(what));
            }
        }
        let code_factor = r.uleb()?;
        r.sleb()?;
        if version == 1 {
            r.u8()?;
        } else {
            r.uleb()?;
        }
        let mut cie = Cie {
            code_factor,
            initial: State::default(),
        };
        // Rules of the initial instructions are those to which registers return.
        let rows = cie.rows(&mut r, 0)?;
        let mut initial = rows
            .into_iter()
            .next_back()
            .map(|(_, state)| state)
            .unwrap_or_default();
        initial.rules.clear();
        cie.initial = initial;
        Ok(cie)
    }

    /// Runs instructions.
    fn rows(&self, r: &mut Reader<'_>, start: u64) -> Result<Rows, Error> {
        let mut state = self.initial.clone();
        let mut saved = Vec::new();
        let mut rows: Rows = Vec::new();
        let mut at = start;
        while !r.is_empty() {
            let from = r.at;
            let op = r.u8()?;
            let mut advance = None;
            match op {
                0 => {}
                cfa::SET_LOC => advance = Some(r.number(8)?),
                cfa::ADVANCE_1 | cfa::ADVANCE_2 | cfa::ADVANCE_4 => {
                    let delta = r.number(1 << (op - cfa::ADVANCE_1))?;
                    advance = Some(at.wrapping_add(delta.wrapping_mul(self.code_factor)));
                }
                cfa::ADVANCE..cfa::OFFSET => {
                    let delta = u64::from(op & 0x3f).wrapping_mul(self.code_factor);
                    advance = Some(at.wrapping_add(delta));
                }
                cfa::REMEMBER => saved.push(state.clone()),
                cfa::RESTORE => {
                    let Some(before) = saved.pop() else {
                        return Err(r.error("a state is restored that was not saved"));
                    };
                    state = before;
                }
                _ => state.set(op, from, r)?,
            }
            if let Some(to) = advance {
                if to < at {
                    return Err(r.error("instructions that go back"));
                }
                if to > at {
                    rows.push((at, state.clone()));
                }
                at = to;
            }
        }
        rows.push((at, state));
        Ok(rows)
    }
}

impl State {
    /// An instruction that sets a rule.
    fn set(&mut self, op: u8, from: usize, r: &mut Reader<'_>) -> Result<(), Error> {
        let whole = |r: &Reader<'_>| r.data.get(from..r.at).unwrap_or_default().to_vec();
        match op {
            cfa::RESTORE_SHORT.. => drop(self.rules.remove(&u64::from(op & 0x3f))),
            cfa::OFFSET..cfa::RESTORE_SHORT => {
                r.uleb()?;
                self.rules.insert(u64::from(op & 0x3f), whole(r));
            }
            cfa::RESTORE_EXTENDED => drop(self.rules.remove(&r.uleb()?)),
            cfa::UNDEFINED | cfa::SAME_VALUE => {
                let register = r.uleb()?;
                self.rules.insert(register, whole(r));
            }
            cfa::OFFSET_EXTENDED
            | cfa::REGISTER
            | cfa::OFFSET_EXTENDED_SF
            | cfa::VAL_OFFSET
            | cfa::VAL_OFFSET_SF => {
                let register = r.uleb()?;
                r.uleb()?;
                self.rules.insert(register, whole(r));
            }
            cfa::EXPRESSION | cfa::VAL_EXPRESSION => {
                let register = r.uleb()?;
                let len = r.uleb()?;
                r.bytes(len)?;
                self.rules.insert(register, whole(r));
            }
            cfa::DEF_CFA | cfa::DEF_CFA_SF => {
                let register = r.uleb()?;
                self.cfa = Cfa::Register(register, number_bytes(r)?, op == cfa::DEF_CFA_SF);
            }
            cfa::DEF_CFA_REGISTER => {
                let register = r.uleb()?;
                match &mut self.cfa {
                    Cfa::Register(old, ..) => *old = register,
                    _ => return Err(r.error("a frame's register changes that has none")),
                }
            }
            cfa::DEF_CFA_OFFSET | cfa::DEF_CFA_OFFSET_SF => {
                let bytes = number_bytes(r)?;
                match &mut self.cfa {
                    Cfa::Register(_, offset, signed) => {
                        (*offset, *signed) = (bytes, op == cfa::DEF_CFA_OFFSET_SF);
                    }
                    _ => return Err(r.error("a frame's offset changes that has none")),
                }
            }
            cfa::DEF_CFA_EXPRESSION => {
                let len = r.uleb()?;
                r.bytes(len)?;
                self.cfa = Cfa::Expression(whole(r));
            }
            cfa::NEGATE_RA_STATE => self.signed = !self.signed,
            cfa::GNU_ARGS_SIZE => self.arguments = r.uleb()?,
            _ => {
                r.at = from;
                return Err(r.error(format!("the unknown instruction {op:#x}")));
            }
        }
        Ok(())
    }

    /// Appends instructions that lead to this state from another one.
    fn put_from(&self, before: &State, out: &mut Vec<u8>) {
        if self.cfa != before.cfa {
            match &self.cfa {
                // Every state begins with that of a CIE, and none goes back to having no frame.
                Cfa::None => {}
                Cfa::Register(register, offset, signed) => {
                    out.push(if *signed {
                        cfa::DEF_CFA_SF
                    } else {
                        cfa::DEF_CFA
                    });
                    put_uleb(out, *register);
                    out.extend_from_slice(offset);
                }
                Cfa::Expression(instruction) => out.extend_from_slice(instruction),
            }
        }
        for register in before.rules.keys().filter(|r| !self.rules.contains_key(r)) {
            out.push(cfa::RESTORE_EXTENDED);
            put_uleb(out, *register);
        }
        for (register, rule) in &self.rules {
            if before.rules.get(register) != Some(rule) {
                out.extend_from_slice(rule);
            }
        }
        if self.signed != before.signed {
            out.push(cfa::NEGATE_RA_STATE);
        }
        if self.arguments != before.arguments {
            out.push(cfa::GNU_ARGS_SIZE);
            put_uleb(out, self.arguments);
        }
    }
}

/// The bytes of a number in LEB128, signed or not.
fn number_bytes(r: &mut Reader<'_>) -> Result<Vec<u8>, Error> {
    let from = r.at;
    r.uleb()?;
    Ok(r.data.get(from..r.at).unwrap_or_default().to_vec())
}

/// New code of an interval: runs that follow each other without a gap, cut at the interval's ends.
fn stretches(map: &AddressMap, old: &Range<u64>) -> Vec<Vec<Run>> {
    let first = map.runs().partition_point(|run| run.old_end() <= old.start);
    let here = map
        .runs()
        .iter()
        .skip(first)
        .take_while(|run| run.old < old.end);
    let mut runs: Vec<Run> = here.copied().collect();
    runs.sort_by_key(|run| run.new);
    let mut out: Vec<Vec<Run>> = Vec::new();
    for run in runs {
        match out
            .last_mut()
            .filter(|s| s.last().is_some_and(|last| last.tail_end() == run.new))
        {
            Some(stretch) => stretch.push(run),
            None => out.push(vec![run]),
        }
    }
    out
}

/// Appends the entry of a stretch of new code.
fn put_entry(
    out: &mut Vec<u8>,
    (cie_at, cie): (u64, &Cie),
    runs: &[Run],
    rows: &Rows,
) -> Result<(), Error> {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return Ok(());
    };
    // What holds from each new address on.
    let mut states: Vec<(u64, &State)> = Vec::new();
    for run in runs {
        let at = rows
            .partition_point(|row| row.0 <= run.old)
            .saturating_sub(1);
        states.extend(rows.get(at).map(|row| (run.new, &row.1)));
        let inside = rows.iter().skip(at + 1);
        let inside = inside.take_while(|row| row.0 < run.old_end());
        states.extend(inside.map(|row| (run.border(row.0), &row.1)));
    }
    let mut code = Vec::new();
    let (mut state, mut at) = (&cie.initial, first.new);
    for (address, next) in states {
        if next == state {
            continue;
        }
        put_advance(&mut code, address - at, cie.code_factor)?;
        next.put_from(state, &mut code);
        (state, at) = (next, address);
    }
    let fixed = 4 + 8 + 8;
    code.resize((4 + fixed + code.len()).next_multiple_of(8) - 4 - fixed, 0);
    put_number(out, (fixed + code.len()) as u64, 4);
    let near =
        u32::try_from(cie_at).map_err(|_| Error::new(SECTION, cie_at, "a CIE past 4 GiB"))?;
    put_number(out, near.into(), 4);
    put_number(out, first.new, 8);
    put_number(out, last.tail_end() - first.new, 8);
    out.extend(code);
    Ok(())
}

fn put_advance(out: &mut Vec<u8>, bytes: u64, factor: u64) -> Result<(), Error> {
    let units = bytes
        .checked_div(factor)
        .filter(|units| units * factor == bytes);
    let Some(units) = units.and_then(|units| u32::try_from(units).ok()) else {
        let what = format!("an advance of {bytes:#x} bytes in units of {factor}");
        return Err(Error::new(SECTION, 0, what));
    };
    match units {
        0 => {}
        1..0x40 => out.push(cfa::ADVANCE | units as u8),
        0x40..0x100 => out.extend([cfa::ADVANCE_1, units as u8]),
        0x100..0x1_0000 => {
            out.push(cfa::ADVANCE_2);
            put_number(out, units.into(), 2);
        }
        _ => {
            out.push(cfa::ADVANCE_4);
            put_number(out, units.into(), 4);
        }
    }
    Ok(())
}
