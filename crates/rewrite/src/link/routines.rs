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
use postlink_isa::frames::{Frame, FrameEntry, Frames, SavedIn, frames};
use rustc_hash::FxHashMap;

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

/// Rows of recorders by what they depend on: which of a recorder's fields are open, and its bytes. Most are alike but
/// for the registers and distances of the call that they are for.
#[derive(Default)]
pub(super) struct KnownRecorders {
    known: FxHashMap<Vec<u8>, Frames>,
    key: Vec<u8>,
}

impl KnownRecorders {
    /// The rows of a function's recorders. None of them leads to another.
    pub fn frames_of<I: Counters>(&mut self, ready: &Ready) -> Result<Frames, Error> {
        let recorders = &ready.recorders;
        let starts = ready.recorder_offsets.iter().copied();
        let starts: Vec<u32> = starts.filter(|at| *at != u32::MAX).collect();
        let mut all = Frames::default();
        for (n, start) in starts.iter().enumerate() {
            let end = starts.get(n + 1).copied();
            let end = end.unwrap_or(recorders.bytes.len() as u32);
            let code = recorders.bytes.get(*start as usize..end as usize);
            let first = recorders.fixups.partition_point(|f| f.at < *start);
            let fixups = recorders.fixups[first..].iter();
            let open = fixups.map(|f| f.at).take_while(|at| *at < end);
            let frames = self.of::<I>(code.unwrap_or_default(), open.map(|at| at - start))?;
            for frame in &frames.list {
                let is_new = |last: &Frame| {
                    (last.cfa, &last.saved, last.outermost)
                        != (frame.cfa, &frame.saved, frame.outermost)
                };
                if all.list.last().is_none_or(is_new) {
                    let at = start + frame.at;
                    all.list.push(Frame {
                        at,
                        ..frame.clone()
                    });
                }
            }
            all.end = start + frames.end;
        }
        Ok(all)
    }

    /// The rows of one recorder.
    fn of<I: Counters>(
        &mut self,
        code: &[u8],
        open: impl Iterator<Item = u32> + Clone,
    ) -> Result<&Frames, Error> {
        self.key.clear();
        for at in open.clone() {
            self.key.extend_from_slice(&at.to_le_bytes());
        }
        // No field is there: nothing else looks like it.
        self.key.extend_from_slice(&u32::MAX.to_le_bytes());
        self.key.extend_from_slice(code);
        if !self.known.contains_key(&self.key) {
            let open: Vec<u32> = open.collect();
            let frames = frames::<I>(code, &[CALLED], &open)
                .map_err(|e| Error::internal(format!("a recorder's rows: {e}")))?;
            self.known.insert(self.key.clone(), frames);
        }
        let known = self.known.get(&self.key);
        known.ok_or_else(|| Error::internal("a recorder's rows are not there"))
    }
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
