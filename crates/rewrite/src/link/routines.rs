//! Unwind entries of code that is added to a program and belongs to none of its functions: recorders of indirect calls,
//! and the routines that inserted code calls.
//!
//! They are entered by a call, or by a jump where a call would have gone. What holds there is the initial row of nearly
//! every common entry (CIE) of a program; where there is none that says just that, one of our own is added
//! ([`Counters::CIE`]). The rows are found in the code ([`frames`]), and the checker finds them again, by unwinding
//! from each instruction.

use postlink_elf::OutputAddr;
use postlink_elf::unwind::eh_frame::{Cie, EhFrame, NewFde};
use postlink_elf::unwind::rows::{self, CfaRule, RegRule, Row};
use postlink_isa::Counters;
use postlink_isa::frames::{FrameEntry, Frames, SavedIn, frames};

use super::ready::Ready;
use crate::error::Error;

/// A routine at its place.
#[derive(Clone, Debug)]
pub struct RoutineAt {
    /// Address of its first byte.
    pub start: OutputAddr,
    /// Its rows.
    pub frames: Frames,
}

/// An entry by a call.
pub const CALLED: FrameEntry = FrameEntry {
    at: 0,
    outermost: false,
};

/// The rows of a routine of our own that has all its bytes.
pub fn frames_of<I: Counters>(code: &[u8], entries: &[FrameEntry]) -> Result<Frames, Error> {
    frames::<I>(code, entries, &[]).map_err(|e| Error::internal(format!("a routine's rows: {e}")))
}

/// The rows of a function's recorders.
pub(super) fn frames_of_recorders<I: Counters>(ready: &Ready) -> Result<Frames, Error> {
    let offsets = ready.recorder_offsets.iter().filter(|at| **at != u32::MAX);
    let entries: Vec<FrameEntry> = offsets.map(|at| FrameEntry { at: *at, ..CALLED }).collect();
    let open: Vec<u32> = ready.recorders.fixups.iter().map(|f| f.at).collect();
    frames::<I>(&ready.recorders.bytes, &entries, &open)
        .map_err(|e| Error::internal(format!("a recorder's rows: {e}")))
}

/// The common entry of such code.
pub struct RoutineCie<'d> {
    cie: Cie<'d>,
    initial: Row<'d>,
    /// Its place among those of the program, or behind them.
    index: usize,
    is_own: bool,
}

impl<'d> RoutineCie<'d> {
    /// One of the program's that says what holds where a call has come and nothing else, or our own.
    pub fn of<I: Counters>(eh: &EhFrame<'d>) -> Result<RoutineCie<'d>, Error> {
        let own = EhFrame::parse_section(I::CIE, 0, eh.bases)?;
        let own = own.cies.into_iter().next();
        let own = own.ok_or_else(|| Error::internal("the common entry of routines is empty"))?;
        let initial = rows::initial_row(&own)?;
        let known = eh.cies.iter().position(|cie| {
            let plain = cie
                .augmentation
                .iter()
                .all(|letter| matches!(letter, b'z' | b'R'));
            plain
                && cie.ra_register == own.ra_register
                && rows::initial_row(cie).is_ok_and(|row| row == initial)
        });
        Ok(match known {
            Some(index) => RoutineCie {
                cie: eh.cies[index].clone(),
                initial: rows::initial_row(&eh.cies[index])?,
                index,
                is_own: false,
            },
            None => RoutineCie {
                cie: own,
                initial,
                index: eh.cies.len(),
                is_own: true,
            },
        })
    }

    /// Itself.
    pub fn cie(&self) -> &Cie<'d> {
        &self.cie
    }

    /// What holds where a call has come.
    pub fn initial(&self) -> &Row<'d> {
        &self.initial
    }

    /// The program's entries with this one, if they have not got it.
    pub fn added_to(&self, eh: &EhFrame<'d>) -> Option<EhFrame<'d>> {
        self.is_own.then(|| {
            let mut eh = eh.clone();
            eh.cies.push(self.cie.clone());
            eh
        })
    }

    /// The row of a frame.
    fn row<I: Counters>(&self, frame: &postlink_isa::frames::Frame) -> Row<'d> {
        let number = |register: u8| I::unwind_register(register);
        let mut row = self.initial.clone();
        let (register, offset) = frame.cfa;
        row.cfa = CfaRule::Offset {
            register: number(register),
            offset,
        };
        let saved = frame.saved.iter().map(|(register, place)| {
            let rule = match *place {
                SavedIn::Stack(offset) => RegRule::Offset(offset),
                SavedIn::Register(other) => RegRule::Register(number(other)),
            };
            (number(*register), rule)
        });
        let no_caller = (self.cie.ra_register as u16, RegRule::Undefined);
        let rules = saved.chain(frame.outermost.then_some(no_caller));
        for (register, rule) in rules {
            row.registers.retain(|known| known.0 != register);
            row.registers.push((register, rule));
        }
        row.registers.sort_by_key(|known| known.0);
        row
    }

    /// The rows of frames, by offset from what they are the frames of.
    pub fn rows<I: Counters>(&self, frames: &Frames) -> Vec<(u64, Row<'d>)> {
        let rows = frames.list.iter();
        rows.map(|frame| (frame.at.into(), self.row::<I>(frame)))
            .collect()
    }

    /// The entry of such code.
    pub fn entry<I: Counters>(
        &self,
        start: OutputAddr,
        len: u64,
        frames: &Frames,
    ) -> Result<NewFde, Error> {
        let rows = self.rows::<I>(frames);
        let rows: Vec<(u64, &Row<'_>)> = rows.iter().map(|(at, row)| (*at, row)).collect();
        Ok(NewFde {
            cie: self.index,
            start: start.get(),
            len,
            lsda: None,
            instructions: rows::encode(&self.cie, &self.initial, &rows)?,
        })
    }
}
