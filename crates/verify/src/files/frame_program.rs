//! Call frame instructions, run without `gimli` where they are the most common ones.
//!
//! Compilers write nearly all unwind entries with a dozen instructions: a CFA that is a register and an offset,
//! registers that are saved at offsets from it, and states that are remembered. Programs of only those are run here;
//! what holds is a few numbers then, and most rows are found among those that the function had before. With anything
//! else (an expression, an operand that is too long, a state that was not remembered) the whole program is left to
//! `gimli`, errors as well. Tests run all entries of a program and many random programs both ways.

use crate::files::bytes::Reader;
use crate::files::unwind::Cie;
use smallvec::SmallVec;

/// What holds at a place: all registers that are listed are saved in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plain {
    /// The CFA: register and offset.
    pub cfa: (u16, i64),
    /// Registers and where they are, as offsets from the CFA; ascending.
    pub saved: SmallVec<[(u16, i64); 8]>,
}

impl Plain {
    fn place(&self, register: u16) -> Result<usize, usize> {
        self.saved.binary_search_by_key(&register, |s| s.0)
    }

    fn save(&mut self, register: u16, at: i64) {
        match self.place(register) {
            Ok(place) => {
                if let Some(known) = self.saved.get_mut(place) {
                    known.1 = at;
                }
            }
            Err(place) => self.saved.insert(place, (register, at)),
        }
    }

    /// What was said of the register at the beginning holds again.
    fn restore(&mut self, register: u16, initial: &Plain) {
        let said = initial.place(register).ok();
        match said.and_then(|place| initial.saved.get(place)) {
            Some(&(_, at)) => self.save(register, at),
            None => {
                if let Ok(place) = self.place(register) {
                    self.saved.remove(place);
                }
            }
        }
    }
}

/// States that may be remembered at once. `gimli` has room for at least so many.
const REMEMBERED: usize = 2;

/// What a program has come to.
#[derive(Default)]
struct State {
    now: Plain,
    args_size: u64,
    /// A CFA was defined.
    has_cfa: bool,
    remembered: SmallVec<[(Plain, u64); REMEMBERED]>,
}

/// An instruction that moves on, or one that was done.
enum Done {
    Advance(u64),
    Here,
}

impl State {
    /// Does the next instruction; `None`: it is for another to do.
    #[inline]
    fn step(&mut self, r: &mut Reader<'_>, cie: &Cie, initial: Option<&Plain>) -> Option<Done> {
        let advance = |units: u64| Some(Done::Advance(units.checked_mul(cie.code_align)?));
        let opcode = r.u8()?;
        match opcode {
            0x40..=0x7f => return advance(u64::from(opcode & 0x3f)),
            // DW_CFA_offset
            0x80..=0xbf => {
                let factored = i64::try_from(r.uleb()?).ok()?;
                let at = factored.checked_mul(cie.data_align)?;
                self.now.save(u16::from(opcode & 0x3f), at);
            }
            // DW_CFA_restore
            0xc0..=0xff => self.now.restore(u16::from(opcode & 0x3f), initial?),
            // DW_CFA_nop
            0x00 => {}
            // DW_CFA_advance_loc1, 2 and 4
            0x02 => return advance(u64::from(r.u8()?)),
            0x03 => return advance(u64::from(r.u16()?)),
            0x04 => return advance(u64::from(r.u32()?)),
            // DW_CFA_remember_state
            0x0a => {
                if self.remembered.len() >= REMEMBERED || initial.is_none() {
                    return None;
                }
                self.remembered.push((self.now.clone(), self.args_size));
            }
            // DW_CFA_restore_state
            0x0b => (self.now, self.args_size) = self.remembered.pop()?,
            // DW_CFA_def_cfa, its parts
            0x0c => {
                self.now.cfa = (register(r)?, offset(r)?);
                self.has_cfa = true;
            }
            0x0d if self.has_cfa => self.now.cfa.0 = register(r)?,
            0x0e if self.has_cfa => self.now.cfa.1 = offset(r)?,
            // DW_CFA_GNU_args_size
            0x2e => self.args_size = r.uleb()?,
            _ => return None,
        }
        Some(Done::Here)
    }
}

fn register(r: &mut Reader<'_>) -> Option<u16> {
    u16::try_from(r.uleb()?).ok()
}

fn offset(r: &mut Reader<'_>) -> Option<i64> {
    i64::try_from(r.uleb()?).ok()
}

/// Runs the instructions of an entry and of its CIE. `each` is told from where to where something holds, what, and the
/// size of pushed arguments: in ascending order, and of all code from `start` on. `None`: it is for another to do, and
/// what was told is void.
pub(super) fn run(
    cie: &Cie,
    (of_cie, instructions): (&[u8], &[u8]),
    (start, end): (u64, u64),
    mut each: impl FnMut((u64, u64), &Plain, u64),
) -> Option<()> {
    let mut state = State::default();
    let mut r = Reader::new(of_cie);
    while !r.is_empty() {
        match state.step(&mut r, cie, None)? {
            Done::Here => {}
            Done::Advance(_) => return None,
        }
    }
    if !state.has_cfa {
        return None;
    }
    let initial = state.now.clone();
    let mut r = Reader::new(instructions);
    let mut from = start;
    while !r.is_empty() {
        if let Done::Advance(further) = state.step(&mut r, cie, Some(&initial))? {
            let to = from.checked_add(further)?;
            each((from, to), &state.now, state.args_size);
            from = to;
        }
    }
    each((from, end), &state.now, state.args_size);
    Some(())
}
