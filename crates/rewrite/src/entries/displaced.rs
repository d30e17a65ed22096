//! What a jump at a function's entry overwrites ([`crate::entries`]): which instructions, whether they can be
//! somewhere else as well, and their copies there.

use postlink_isa::coverage::Covers;
use postlink_isa::{Code, Fixup, FixupKind, Flow, Insn, Isa, Reach, RegSet};

use crate::analyse::Target;
use crate::discover::{Piece, Program, lsda_of};
use crate::pin::Pin;

/// Whether control may go to the next instruction.
pub fn falls_through(flow: Flow) -> bool {
    !matches!(
        flow,
        Flow::Jump { .. } | Flow::IndirectJump | Flow::Return | Flow::Stop
    )
}

/// Code of a piece from an address on, as much as matters for a jump there.
pub fn code_at<'d>(program: &Program<'d>, at: u64) -> &'d [u8] {
    let end = program.piece_at(at).map_or(at, |p| p.end);
    let code = program.elf.bytes_at(at, end.saturating_sub(at).min(16));
    code.unwrap_or_default()
}

/// Length of a jump at `at`.
pub fn jump_len<I: Isa>(program: &Program<'_>, at: u64) -> u64 {
    let mut jump: Code<()> = Code::default();
    I::put_entry(&mut jump, code_at(program, at), ());
    jump.bytes.len() as u64
}

/// Where a jump goes at the entry of a function that was not understood, if it takes the place of one whole
/// instruction: no branch can target its inside.
pub fn whole_entry<I: Covers>(program: &Program<'_>, piece: &Piece, pin: Pin) -> Result<u64, Pin> {
    let unclear = matches!(
        pin,
        Pin::NoSize
            | Pin::NotInstructions
            | Pin::FallsOffItsEnd
            | Pin::Veneer
            | Pin::SignalTrampoline
            | Pin::SpecialSection
    );
    if !I::WHOLE_ENTRIES || unclear {
        return Err(pin);
    }
    let first = I::decode(code_at(program, piece.start), piece.start).ok_or(pin)?;
    let at = if first.traits.landing_pad {
        first.end()
    } else {
        piece.start
    };
    let insn = I::decode(code_at(program, at), at).ok_or(pin)?;
    if u64::from(insn.len) == jump_len::<I>(program, at) {
        Ok(at)
    } else {
        Err(pin)
    }
}

/// What must survive at a function's entry for callers from outside: whatever it is, unless its unwind entry
/// says that the function is a compiled one. Then the registers that calls leave to stubs hold nothing, and
/// flags neither, if the first instructions do not look at them.
pub fn live_from_outside<I: Covers>(program: &Program<'_>, piece: &Piece) -> RegSet {
    let mut free = I::CALL_SCRATCH.or(I::FLAGS);
    let len = (piece.end - piece.start).min(256);
    let Some(code) = program.elf.bytes_at(piece.start, len) else {
        return RegSet::ALL;
    };
    if piece.fde.is_none() {
        return RegSet::ALL;
    }
    let mut open = free;
    I::sweep(code, piece.start, |i| {
        let at = (i.addr - piece.start) as usize;
        let effects = I::effects(&code[at..at + usize::from(i.len)], i);
        // A call's arguments are in other registers.
        let reads = match i.flow {
            Flow::Call { .. } | Flow::IndirectCall | Flow::Jump { .. } | Flow::Return => {
                RegSet::EMPTY
            }
            _ => RegSet(effects.reads.0 & open.0),
        };
        free = free.minus(reads);
        open = open.minus(effects.kills);
        i.flow == Flow::Next
    });
    // What uses one of them, as hand-written code does, may use the others as well.
    if free == I::CALL_SCRATCH.or(I::FLAGS) {
        RegSet::ALL.minus(free)
    } else {
        RegSet::ALL
    }
}

/// Where the piece at `at` has landing pads for instructions that fault: their address tells where the exception
/// goes, and stubs have no landing pads. `None`: it is not known.
fn caught_faults(program: &Program<'_>, at: u64) -> Option<Vec<(u64, u64)>> {
    let Some(piece) = program.piece_index_at(at).filter(|_| program.faults()) else {
        return Some(Vec::new());
    };
    let Some(lsda) = lsda_of(program, piece).ok()? else {
        return Some(Vec::new());
    };
    let sites = lsda.call_sites.iter().filter(|c| c.landing_pad.is_some());
    Some(sites.map(|c| (c.start, c.end())).collect())
}

/// The instructions that a jump at `at` overwrites, if they can be somewhere else as well; `exceptions`: they may
/// pass through stubs.
pub fn displaced<I: Covers>(program: &Program<'_>, at: u64, exceptions: bool) -> Option<Vec<Insn>> {
    let jump = at + jump_len::<I>(program, at);
    let piece = program.piece_at(at)?;
    // A call's return address tells where its exception goes.
    let throws = piece
        .fde
        .is_some_and(|f| program.eh.fdes[f as usize].lsda.is_some_and(|l| l != 0));
    let caught = caught_faults(program, at)?;
    let may_fault = exceptions || !program.faults();
    let mut displaced = Vec::new();
    let mut here = at;
    while here < jump {
        let bytes = program
            .elf
            .bytes_at(here, piece.end.checked_sub(here)?.min(16))?;
        let insn = I::decode(bytes, here)?;
        let kept = match insn.flow {
            Flow::ShortCond { .. } => false,
            Flow::Call { .. } | Flow::IndirectCall => exceptions && !throws,
            // Of a direct jump nobody is asked: where it goes is what may fault.
            Flow::Jump { .. } => !insn.traits.prefixed,
            _ => may_fault && !insn.traits.prefixed && !insn.traits.landing_pad,
        };
        let field = insn.field.is_none_or(|f| match f.kind {
            FixupKind::Rel32 { .. } | FixupKind::Rel8 { .. } => true,
            _ if I::is_near(&insn) => I::put_far(&mut Code::default(), bytes, ()),
            FixupKind::Branch26 | FixupKind::Imm19 | FixupKind::Branch14 | FixupKind::Page => true,
            _ => false,
        });
        // Absolute fields depend on nothing; a jump to what is overwritten would have to go to the stub.
        let inside = insn.field.is_some_and(|f| f.target > at && f.target < jump);
        let caught = caught.iter().any(|c| c.0 <= here && here < c.1);
        if !kept || !field || inside || caught {
            return None;
        }
        here = insn.end();
        displaced.push(insn);
        if !falls_through(insn.flow) {
            break;
        }
    }
    Some(displaced)
}

/// Appends an instruction of a function that starts at `start`, for another place. The address of a function
/// that it forms is the one that all others form.
pub fn relocate_insn<I: Isa>(
    program: &Program<'_>,
    code: &mut Code<Target>,
    insn: &Insn,
    start: u64,
) {
    // A loop back to the entry stays in the body.
    let target = |a: u64| {
        if a == start {
            Target::Same(a)
        } else {
            Target::Code(a)
        }
    };
    match insn.flow {
        Flow::Jump { target: t } => I::put_jump(code, Reach::Long, target(t)),
        Flow::CondJump { cond, target: t } => I::put_cond_jump(code, cond, Reach::Long, target(t)),
        flow => {
            let base = code.bytes.len() as u32;
            let bytes = program
                .elf
                .bytes_at(insn.addr, u64::from(insn.len))
                .unwrap_or_default();
            let forms = |a: u64| {
                if insn.traits.forms_address {
                    Target::Code(a)
                } else {
                    Target::Same(a)
                }
            };
            if let Some(field) = insn.field.filter(|_| I::is_near(insn)) {
                I::put_far(code, bytes, forms(field.target));
                return;
            }
            code.bytes.extend_from_slice(bytes);
            for &(place, kind) in program.refs.absolute_fields_in(insn.addr, insn.end()) {
                let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
                let field = program.elf.bytes_at(place, width);
                if let Some(target) = field.and_then(|b| I::read_field(kind, b, place)) {
                    code.fixups.push(Fixup {
                        at: base + (place - insn.addr) as u32,
                        kind,
                        target: Target::Code(target),
                    });
                }
            }
            if let Some(field) = insn.field {
                let target = match flow {
                    Flow::Call { target } => Target::Code(target),
                    _ => forms(field.target),
                };
                code.fixups.push(Fixup {
                    at: base + u32::from(field.at),
                    kind: field.kind,
                    target,
                });
            }
        }
    }
}
