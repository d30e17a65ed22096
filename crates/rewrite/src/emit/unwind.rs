//! Carrying unwind information over: the row at every copied instruction, and its call site, go where the
//! instruction goes.
//!
//! Rows are sampled at the start of every copied stretch and at every change inside it; the encoder makes
//! instructions of what differs. Where added code has moved the stack pointer, a row says so
//! ([`rows::lowered`]). Each fragment gets an unwind entry and, if the function has one, an
//! exception table of its own.

use std::ops::Range;

use postlink_elf::FormatError;
use postlink_elf::unwind::eh_frame::Cie;
use postlink_elf::unwind::lsda::Numbers;
use postlink_elf::unwind::rows::{self, RegRule, Row};
use postlink_isa::{Counters, RegSet};
use smallvec::SmallVec;

use super::body::{Emitted, Fragment, Span};
use crate::analyse::{FunctionUnwind, PieceRows};
use crate::cfg::{BlockId, Cfg, Use};
use crate::discover::Program;
use crate::pin::Pin;

/// A call site of new code, before addresses are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewCallSite {
    /// Offset in the fragment.
    pub start: u32,
    /// Length.
    pub len: u32,
    /// Landing pad.
    pub landing_pad: Option<BlockId>,
    /// Action, as in the input.
    pub action: u64,
}

/// Unwind information of a fragment.
#[derive(Clone, Debug, Default)]
pub struct FragmentUnwind {
    /// Index of the CIE.
    pub cie: usize,
    /// Call frame instructions.
    pub instructions: Vec<u8>,
    /// Call sites; `None` if the function has no exception table.
    pub call_sites: Option<Vec<NewCallSite>>,
    /// How their numbers are written.
    pub numbers: Numbers,
}

impl<'d> FunctionUnwind<'d> {
    /// Carries the tables over to a fragment. `pieces`: the rows, by piece.
    pub fn carry(
        &self,
        program: &Program<'d>,
        (cfg, pieces): (&Cfg, &[PieceRows<'d>]),
        fragment: &Fragment,
        stack: Stack,
    ) -> Result<FragmentUnwind, Pin> {
        // Most functions have no cold fragment.
        if fragment.spans.is_empty() {
            return Ok(FragmentUnwind {
                cie: self.cie,
                instructions: Vec::new(),
                call_sites: self.table.as_ref().map(|_| Vec::new()),
                numbers: Numbers::Shortest,
            });
        }
        // Only what control takes to a landing pad has its pushed arguments taken off. Elsewhere their size
        // may be anything, so it is not changed: the unwinder runs all instructions up to a place,
        // so fewer of them are quicker.
        let pushes = pieces
            .iter()
            .any(|(_, rows)| rows.iter().any(|(_, row)| row.args_size != 0));
        let settled = if pushes {
            self.settled(pieces, fragment)?
        } else {
            Vec::new()
        };
        let cie = &program.eh.cies[self.cie];
        let initial = program.initial_row(self.cie)?;
        let mut list: Vec<(u64, &Row<'d>, &Span)> = Vec::new();
        for (at, row, span) in &settled {
            add(&mut list, *at, row, span);
        }
        if !pushes {
            each_row(pieces, fragment, |at, row, span, _| {
                add(&mut list, at, row, span);
            })?;
        }
        let instructions = if list.iter().all(|(_, _, span)| is_as_before(span)) {
            let list: Vec<_> = list.iter().map(|(at, row, _)| (*at, *row)).collect();
            rows::encode(cie, initial, &list)
        } else {
            with_lowered(cie, initial, &list, stack)
        };
        let instructions = instructions.map_err(|_| Pin::UnwindTable)?;
        let call_sites = match self.table {
            None => None,
            Some(_) => Some(self.call_sites(cfg, fragment)?),
        };
        Ok(FragmentUnwind {
            cie: self.cie,
            instructions,
            call_sites,
            numbers: Numbers::Shortest,
        })
    }

    /// The rows of a fragment, with the size of pushed arguments changed only before what may lead to a landing pad.
    fn settled<'f>(
        &self,
        pieces: &[PieceRows<'d>],
        fragment: &'f Fragment,
    ) -> Result<Vec<(u64, Row<'d>, &'f Span)>, Pin> {
        let mut out: Vec<(u64, Row<'d>, &Span)> = Vec::new();
        let mut args_size = 0;
        each_row(pieces, fragment, |at, row, span, covered| {
            let caught = self.lsdas[usize::from(span.piece)]
                .as_ref()
                .is_some_and(|lsda| {
                    let first = lsda
                        .call_sites
                        .partition_point(|c| c.end() <= covered.start);
                    lsda.call_sites[first..]
                        .iter()
                        .take_while(|c| c.start < covered.end)
                        .any(|c| c.landing_pad.is_some())
                });
            if caught {
                args_size = row.args_size;
            }
            let mut row = row.clone();
            row.args_size = args_size;
            out.push((at, row, span));
        })?;
        Ok(out)
    }

    fn call_sites(&self, cfg: &Cfg, fragment: &Fragment) -> Result<Vec<NewCallSite>, Pin> {
        let mut out: Vec<NewCallSite> = Vec::new();
        // The personality routine goes through the call sites one by one, so few of them are quick. What the
        // compiler left out and is not a call cannot throw; a call without a call site ends the program, and
        // has to continue doing so. Where instructions that fault raise exceptions, none is left to a call site that it
        // had not.
        let mut calls: Vec<u64> = cfg.sites.iter().map(|s| s.at).collect();
        calls.extend(
            cfg.fields
                .iter()
                .filter(|f| f.role == Use::Call)
                .map(|f| f.at),
        );
        calls.sort_unstable();
        let mut starts: Vec<(u64, BlockId)> =
            (0..).zip(&cfg.blocks).map(|(i, b)| (b.start, i)).collect();
        starts.sort_unstable();
        let silent = |from: u64, to: u64| {
            !self.faults
                && calls
                    .get(calls.partition_point(|c| *c < from))
                    .is_none_or(|c| *c >= to)
        };
        // Whether nothing that can throw is between the last call site and here, so that a call site may cover it.
        let mut bridge = false;
        let put = |out: &mut Vec<NewCallSite>, bridge: &mut bool, site: NewCallSite| {
            if let Some(last) = out.last_mut()
                && (last.landing_pad, last.action) == (site.landing_pad, site.action)
                && (*bridge || last.start + last.len == site.start)
            {
                last.len = site.start + site.len - last.start;
            } else {
                out.push(site);
            }
            *bridge = true;
        };
        for s in &fragment.spans {
            if !s.copied && !s.instead {
                continue;
            }
            // An instruction that corresponds to another has that one's call site, whatever its own length.
            let (a, b) = (
                s.input,
                s.input + if s.instead { 1 } else { u64::from(s.len) },
            );
            let Some(lsda) = &self.lsdas[s.piece as usize] else {
                // Without a table unwinding passes through.
                put(
                    &mut out,
                    &mut bridge,
                    NewCallSite {
                        start: s.out,
                        len: s.len,
                        landing_pad: None,
                        action: 0,
                    },
                );
                continue;
            };
            let sites = &lsda.call_sites;
            // A call is known by the place of its address, which need not be its first byte.
            let whole = match s.of {
                Some((of, len)) if s.instead => of + u64::from(len),
                _ => b,
            };
            let mut at = a;
            let mut k = sites.partition_point(|c| c.start + c.len <= a);
            while at < b {
                let Some(c) = sites.get(k).filter(|c| c.start < b) else {
                    bridge &= silent(at, whole);
                    break;
                };
                if c.start > at {
                    bridge &= silent(at, c.start);
                    at = c.start;
                }
                let end = (c.start + c.len).min(b);
                if end > at {
                    let landing_pad = match c.landing_pad {
                        None => None,
                        Some(l) => {
                            let at = starts.binary_search_by_key(&l, |s| s.0);
                            Some(starts[at.map_err(|_| Pin::ExceptionTable)?].1)
                        }
                    };
                    let len = if s.instead { s.len } else { (end - at) as u32 };
                    let site = NewCallSite {
                        start: s.out + (at - a) as u32,
                        len,
                        landing_pad,
                        action: c.action,
                    };
                    put(&mut out, &mut bridge, site);
                }
                at = end.max(at);
                k += 1;
            }
        }
        Ok(out)
    }
}

/// The stack pointer in unwind tables, and the numbers there of a machine's registers.
#[derive(Clone, Copy)]
pub struct Stack {
    pointer: u16,
    register: fn(u8) -> u16,
}

impl Stack {
    /// Those of an instruction set.
    pub fn of<I: Counters>() -> Stack {
        Stack {
            pointer: I::UNWIND_STACK,
            register: I::unwind_register,
        }
    }
}

/// Calls for every stretch of a fragment that has one row: offset in the fragment, the row, and the input's addresses.
fn each_row<'a, 'd, 'f>(
    pieces: &'a [PieceRows<'d>],
    fragment: &'f Fragment,
    mut found: impl FnMut(u64, &'a Row<'d>, &'f Span, Range<u64>),
) -> Result<(), Pin> {
    for s in &fragment.spans {
        let (start, rows) = &pieces[s.piece as usize];
        let offset = s.input.checked_sub(*start).ok_or(Pin::UnwindTable)?;
        let first = rows
            .partition_point(|r| r.0 <= offset)
            .checked_sub(1)
            .ok_or(Pin::UnwindTable)?;
        // What was added shares the row of one place.
        let end = offset + if s.copied { u64::from(s.len).max(1) } else { 1 };
        let mut at = offset;
        for (k, (_, row)) in rows.iter().enumerate().skip(first) {
            let next = rows.get(k + 1).map_or(end, |r| r.0.min(end));
            found(
                u64::from(s.out) + (at - offset),
                row,
                s,
                start + at..start + next,
            );
            if next == end {
                break;
            }
            at = next;
        }
    }
    Ok(())
}

/// Appends a row unless it repeats the last one; a row at the same offset replaces it.
fn add<'a, 'd>(
    list: &mut Vec<(u64, &'a Row<'d>, &'a Span)>,
    at: u64,
    row: &'a Row<'d>,
    span: &'a Span,
) {
    if list.last().is_some_and(|l| l.0 == at) {
        list.pop();
    }
    let state = |span: &Span| (span.down, span.saved, span.link);
    let repeats = |last: &(u64, &'a Row<'d>, &'a Span)| {
        // Most stretches are in the row of the one before.
        state(last.2) == state(span) && (std::ptr::eq(last.1, row) || last.1 == row)
    };
    if !list.last().is_some_and(repeats) {
        list.push((at, row, span));
    }
}

/// Whether a row of the input holds in a stretch as it is.
fn is_as_before(span: &Span) -> bool {
    span.down == 0 && span.link.is_none()
}

/// Call frame instructions for rows of which some hold where the stack pointer is below where they take it for.
fn with_lowered<'d>(
    cie: &Cie<'d>,
    initial: &Row<'d>,
    list: &[(u64, &Row<'d>, &Span)],
    stack: Stack,
) -> Result<Vec<u8>, FormatError> {
    let saved = |span: &Span| {
        (0..32u8)
            .filter(|r| span.saved.meets(RegSet(1 << r)))
            .map(stack.register)
            .collect::<SmallVec<[u16; 4]>>()
    };
    let lowered: Vec<Option<rows::Lowered<'d>>> = list
        .iter()
        .map(|(_, row, span)| {
            if is_as_before(span) {
                return Ok(None);
            }
            let lowered = rows::lowered(row, stack.pointer, span.down, &saved(span))?;
            let link = span.link.map(stack.register);
            Ok(Some(match link {
                Some(other) => lowered.with_link(cie.ra_register as u16, other),
                None => lowered,
            }))
        })
        .collect::<Result<_, _>>()?;
    let all: Vec<(u64, Row<'_>)> = list
        .iter()
        .zip(&lowered)
        .map(|((at, row, _), lowered)| {
            (
                *at,
                lowered.as_ref().map_or_else(|| shared(row), |l| l.row()),
            )
        })
        .collect();
    let all: Vec<(u64, &Row<'_>)> = all.iter().map(|(at, row)| (*at, row)).collect();
    rows::encode(cie, &shared(initial), &all)
}

/// The same row, to stand beside rows with bytes from elsewhere: its list has one lifetime, but a slice of it has the
/// shorter one as well.
fn shared<'s>(row: &'s Row<'_>) -> Row<'s> {
    let registers: &[(u16, RegRule<'s>)] = &row.registers;
    Row {
        cfa: row.cfa,
        registers: SmallVec::from_slice(registers),
        args_size: row.args_size,
        ra_signed: row.ra_signed,
    }
}

/// Unwind information for both fragments.
pub fn carry<'d>(
    program: &Program<'d>,
    cfg: &Cfg,
    from: Option<&FunctionUnwind<'d>>,
    code: &Emitted,
    stack: Stack,
) -> Result<Option<[FragmentUnwind; 2]>, Pin> {
    let Some(u) = from else {
        return Ok(None);
    };
    let rows = u.known_rows(program)?;
    let of = |fragment| u.carry(program, (cfg, &rows), fragment, stack);
    let [hot, cold] = &code.fragments;
    Ok(Some([of(hot)?, of(cold)?]))
}
