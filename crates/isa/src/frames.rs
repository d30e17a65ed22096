//! Frames of code that is added to a program: where, at each of its instructions, the caller's registers are.
//!
//! A routine that inserted code calls may be interrupted anywhere, by a signal whose handler unwinds the stack or by a
//! profiler. What unwind tables have to say of it is found in its own instructions: every path is followed from the
//! entries on, with what each register and each word that it has stored holds ([`Value`]), as far as that matters to
//! unwinding. Where paths meet, what differs is not known. A call of a subroutine in the same code makes that an entry
//! of its own, which returns with the stack pointer as it was.
//!
//! | of | the row says |
//! |---|---|
//! | the frame (CFA) | stack pointer + distance; where that was aligned, another register + distance |
//! | a register whose value at the entry is stored on the stack | where |
//! | one whose value is in another register alone | in which |
//! | any other | nothing: it holds what it did, or that is lost |
//!
//! What is stored stays there until the stack pointer is above it. Only routines of our own are read, which store over
//! no register that they have saved.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::{Counters, Flow, Insn, RegSet};

/// What one instruction does to registers and the stack, as far as frames need to know; one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackOp {
    /// Puts a register's value, and a distance, into a register.
    Move {
        /// Which is written.
        to: u8,
        /// Which is read.
        from: u8,
        /// What is added.
        add: i64,
    },
    /// Stores a register.
    Store {
        /// Which.
        register: u8,
        /// The register that holds the address, with `disp` added.
        base: u8,
        /// Bytes.
        disp: i64,
    },
    /// Loads a register.
    Load {
        /// Which.
        register: u8,
        /// The register that holds the address, with `disp` added.
        base: u8,
        /// Bytes.
        disp: i64,
    },
    /// Puts something else into registers.
    Spoil(RegSet),
}

/// What an instruction does, see [`StackOp`].
pub type StackOps = SmallVec<[StackOp; 4]>;

/// How code is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameEntry {
    /// Offset in the code.
    pub at: u32,
    /// Nothing has called it: a program begins there.
    pub outermost: bool,
}

/// Where a caller's register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedIn {
    /// On the stack, so far from the frame's address (CFA).
    Stack(i64),
    /// In another register.
    Register(u8),
}

/// What holds from an instruction on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Offset of the instruction.
    pub at: u32,
    /// The register that the frame's address is found from, and the distance.
    pub cfa: (u8, i64),
    /// Registers that are elsewhere, ascending.
    pub saved: SmallVec<[(u8, SavedIn); 8]>,
    /// There is no caller.
    pub outermost: bool,
}

/// The frames of some code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Ascending; neighbours differ.
    pub list: Vec<Frame>,
    /// One past the last instruction that is reached.
    pub end: u32,
}

/// Code whose frames cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at offset {at:#x} of added code {why}")]
pub struct NoFrame {
    /// Offset of an instruction.
    pub at: u32,
    /// What is the matter.
    pub why: &'static str,
}

/// What a register or a word on the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// What this register held at the entry.
    Initial(u8),
    /// The frame's address, and a distance.
    Frame(i64),
    Other,
}

const REGISTERS: usize = 32;

/// What is known in front of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    registers: [Value; REGISTERS],
    /// Words on the stack: distance from the frame's address, and what is there; ascending.
    words: SmallVec<[(i64, Value); 16]>,
    outermost: bool,
}

impl State {
    fn new<I: Counters>(outermost: bool) -> State {
        let mut registers = std::array::from_fn(|register| Value::Initial(register as u8));
        registers[usize::from(I::STACK)] = Value::Frame(-I::CALL_PUSHES);
        State {
            registers,
            words: SmallVec::new(),
            outermost,
        }
    }

    fn get(&self, register: u8) -> Value {
        let known = self.registers.get(usize::from(register));
        known.copied().unwrap_or(Value::Other)
    }

    fn set(&mut self, register: u8, value: Value) {
        if let Some(place) = self.registers.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    /// Where a word is, from the frame's address.
    fn place(&self, base: u8, disp: i64) -> Option<i64> {
        match self.get(base) {
            Value::Frame(at) => Some(at.wrapping_add(disp)),
            _ => None,
        }
    }

    fn apply<I: Counters>(&mut self, op: StackOp) {
        match op {
            StackOp::Move { to, from, add } => {
                let value = match self.get(from) {
                    Value::Frame(at) => Value::Frame(at.wrapping_add(add)),
                    value if add == 0 => value,
                    _ => Value::Other,
                };
                self.set(to, value);
                if let (true, Value::Frame(top)) = (to == I::STACK, value) {
                    self.words.retain(|word| word.0 >= top);
                }
            }
            StackOp::Store {
                register,
                base,
                disp,
            } => {
                let Some(at) = self.place(base, disp) else {
                    return;
                };
                self.words.retain(|word| word.0 != at);
                let next = self.words.partition_point(|word| word.0 < at);
                self.words.insert(next, (at, self.get(register)));
            }
            StackOp::Load {
                register,
                base,
                disp,
            } => {
                let at = self.place(base, disp);
                let word = self.words.iter().find(|word| Some(word.0) == at);
                let value = word.map_or(Value::Other, |word| word.1);
                self.set(register, value);
            }
            StackOp::Spoil(registers) => {
                for register in (0..REGISTERS as u8).filter(|r| registers.0 >> r & 1 != 0) {
                    self.set(register, Value::Other);
                }
            }
        }
    }

    /// Forgets what is not the same in both. Whether something was forgotten.
    fn join(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, its) in self.registers.iter_mut().zip(&other.registers) {
            if mine != its {
                *mine = Value::Other;
            }
        }
        self.words.retain(|word| other.words.contains(word));
        self.outermost |= other.outermost;
        *self != before
    }

    /// What unwind tables have to say; `None` where the frame is not found.
    fn frame<I: Counters>(&self, at: u32) -> Option<Frame> {
        let of = |register: u8| match self.get(register) {
            Value::Frame(distance) => Some((register, distance.wrapping_neg())),
            _ => None,
        };
        let cfa = of(I::STACK).or_else(|| (0..REGISTERS as u8).find_map(of))?;
        let mut saved = SmallVec::new();
        for register in (0..REGISTERS as u8).filter(|r| *r != I::STACK) {
            let held = Value::Initial(register);
            if let Some(word) = self.words.iter().find(|word| word.1 == held) {
                saved.push((register, SavedIn::Stack(word.0)));
            } else if self.get(register) != held {
                let other = (0..REGISTERS as u8).find(|other| self.get(*other) == held);
                saved.extend(other.map(|other| (register, SavedIn::Register(other))));
            }
        }
        Some(Frame {
            at,
            cfa,
            saved,
            outermost: self.outermost,
        })
    }
}

/// The frames of code that is entered at these places. `open`: offsets of fields that wait for an address, ascending;
/// a call with such a field leads to other code.
///
/// # Errors
///
/// An instruction that cannot be decoded, or in front of which it is not known where the frame is.
pub fn frames<I: Counters>(
    code: &[u8],
    entries: &[FrameEntry],
    open: &[u32],
) -> Result<Frames, NoFrame> {
    let states = follow::<I>(code, entries, open)?;
    let mut frames = Frames::default();
    for (at, (state, len)) in states {
        let why = "the frame is not found";
        let frame = state.frame::<I>(at).ok_or(NoFrame { at, why })?;
        let is_new = |last: &Frame| {
            (last.cfa, &last.saved, last.outermost) != (frame.cfa, &frame.saved, frame.outermost)
        };
        if frames.list.last().is_none_or(is_new) {
            frames.list.push(frame);
        }
        frames.end = frames.end.max(at + len);
    }
    Ok(frames)
}

/// What holds in front of each instruction, and the instruction's length.
fn follow<I: Counters>(
    code: &[u8],
    entries: &[FrameEntry],
    open: &[u32],
) -> Result<BTreeMap<u32, (State, u32)>, NoFrame> {
    let mut states: BTreeMap<u32, (State, u32)> = BTreeMap::new();
    let enter = |entry: &FrameEntry| (entry.at, State::new::<I>(entry.outermost));
    let mut work: Vec<(u32, State)> = entries.iter().map(enter).collect();
    while let Some((at, mut state)) = work.pop() {
        let unknown = NoFrame {
            at,
            why: "an instruction is not understood",
        };
        let bytes = code.get(at as usize..).filter(|bytes| !bytes.is_empty());
        let insn = bytes.and_then(|bytes| I::decode(bytes, u64::from(at)));
        let (Some(bytes), Some(insn)) = (bytes, insn) else {
            return Err(unknown);
        };
        let len = u32::from(insn.len);
        match states.get_mut(&at) {
            Some((known, _)) => {
                if !known.join(&state) {
                    continue;
                }
                state = known.clone();
            }
            None => {
                states.insert(at, (state.clone(), len));
            }
        }
        let ops = I::stack_ops(bytes, &insn).ok_or(unknown)?;
        for op in ops {
            state.apply::<I>(op);
        }
        successors::<I>(code, at, &insn, open, state, &mut work);
    }
    Ok(states)
}

/// Where control goes from an instruction, with the state after it.
fn successors<I: Counters>(
    code: &[u8],
    at: u32,
    insn: &Insn,
    open: &[u32],
    state: State,
    work: &mut Vec<(u32, State)>,
) {
    let next = at + u32::from(insn.len);
    let first = open.partition_point(|field| *field < at);
    let is_open = open.get(first).is_some_and(|field| *field < next);
    // What is outside of the code is somebody else's.
    let inside = |target: u64| {
        let target = u32::try_from(target).ok();
        target.filter(|target| !is_open && (*target as usize) < code.len())
    };
    match insn.flow {
        Flow::Next => work.push((next, state)),
        Flow::Jump { target } => work.extend(inside(target).map(|to| (to, state))),
        Flow::CondJump { target, .. } | Flow::ShortCond { target } => {
            work.extend(inside(target).map(|to| (to, state.clone())));
            work.push((next, state));
        }
        Flow::Call { target } => {
            work.extend(inside(target).map(|to| (to, State::new::<I>(false))));
            work.push((next, state));
        }
        Flow::IndirectCall | Flow::Trap => work.push((next, state)),
        Flow::IndirectJump | Flow::Return | Flow::Stop => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::AArch64;
    use crate::coverage::{Covers, SlowConfig};
    use crate::x86_64::X86_64;
    use crate::{Code, CounterMode};

    const ENTRY: FrameEntry = FrameEntry {
        at: 0,
        outermost: false,
    };

    fn of<I: Counters>(code: &[u8]) -> Frames {
        frames::<I>(code, &[ENTRY], &[]).expect("all frames are found")
    }

    fn slow<I: Covers>(entries: u32) -> Frames {
        let code = I::slow(SlowConfig {
            at: 0x40_0000,
            clock: 0x50_0000,
            counters: 0x50_0000,
            table: 0x51_0000,
            entries,
            zone: false,
        });
        of::<I>(&code.expect("it can be assembled"))
    }

    #[test]
    fn pushes_and_pops_are_followed_on_every_path() {
        // push rax; je +3; push rcx; pop rcx; nop; pop rax; ret
        let code = [0x50, 0x74, 3, 0x51, 0x59, 0x90, 0x58, 0xc3];
        let frames = of::<X86_64>(&code);
        let rows: Vec<_> = frames.list.iter().map(|f| (f.at, f.cfa)).collect();
        let expected = [(0, 8), (1, 16), (4, 24), (5, 16), (7, 8)];
        assert_eq!(rows, expected.map(|(at, distance)| (at, (4, distance))));
        assert_eq!(
            frames.list[2].saved[..],
            [(0, SavedIn::Stack(-16)), (1, SavedIn::Stack(-24))]
        );
        assert_eq!(frames.end, 8);
        // Where paths with different stack pointers meet there is no frame.
        assert!(super::frames::<X86_64>(&[0x74, 1, 0x50, 0xc3], &[ENTRY], &[]).is_err());
    }

    #[test]
    fn an_aligned_frame_is_found_by_another_register() {
        // push rbp; mov rbp,rsp; and rsp,-64; push rcx; mov rsp,rbp; pop rbp; ret
        let code = [
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xc0, 0x51, 0x48, 0x89, 0xec, 0x5d, 0xc3,
        ];
        let rows: Vec<_> = of::<X86_64>(&code)
            .list
            .iter()
            .map(|f| (f.at, f.cfa))
            .collect();
        assert_eq!(
            rows,
            [
                (0, (4, 8)),
                (1, (4, 16)),
                (8, (5, 16)),
                (12, (4, 16)),
                (13, (4, 8))
            ]
        );
    }

    #[test]
    fn a_subroutine_has_a_frame_of_its_own() {
        // push rax; call +2; pop rax; ret; push rcx; pop rcx; ret
        let code = [0x50, 0xe8, 2, 0, 0, 0, 0x58, 0xc3, 0x51, 0x59, 0xc3];
        let frames = of::<X86_64>(&code);
        let at = |offset| {
            frames
                .list
                .iter()
                .rfind(|f| f.at <= offset)
                .map(|f| f.cfa.1)
        };
        assert_eq!(
            [0, 1, 6, 7, 8, 9, 10].map(at),
            [8, 16, 16, 8, 8, 16, 8].map(Some)
        );
        // Where the call goes is not known yet: what it leads to is not in this code.
        let frames = super::frames::<X86_64>(&code, &[ENTRY], &[2]).expect("they are found");
        assert_eq!(frames.end, 8);
    }

    #[test]
    fn routines_that_note_calls_have_frames_and_return_as_they_were_called() {
        for entries in [0, 256] {
            for frames in [slow::<X86_64>(entries), slow::<AArch64>(entries)] {
                let (first, last) = (&frames.list[0], &frames.list[frames.list.len() - 1]);
                assert_eq!(first.cfa, last.cfa);
                assert!(first.saved.is_empty() && frames.list.len() > 2);
            }
        }
        let frames = slow::<AArch64>(0);
        // The return address is in the other register at the end.
        let last = &frames.list[frames.list.len() - 1];
        assert_eq!(
            last.saved[..],
            [(17, SavedIn::Register(30)), (30, SavedIn::Register(17))]
        );
    }

    #[test]
    fn recorders_slow_paths_have_frames_in_every_mode() {
        fn check<I: Counters>(mode: CounterMode) {
            let mut code: Code<u8> = Code::default();
            I::put_site_slow(&mut code, mode, (0x40_0000, 0x50_0000));
            let frames = of::<I>(&code.bytes);
            assert_eq!(frames.end as usize, code.bytes.len());
        }
        use CounterMode::{Atomic, Biased, PerThread, Plain};
        for mode in [Plain, Atomic, PerThread, Biased] {
            check::<X86_64>(mode);
        }
        check::<AArch64>(Plain);
        check::<AArch64>(Atomic);
    }
}
