//! A trace of a run, instruction by instruction, as a profile by addresses.
//!
//! All instructions of a window were executed, in that order. With their code it is known which of them are branches
//! that were taken, and what ran between two of them: what a processor's branch records say, without such a processor.
//!
//! ```text
//!  steps     1000  1004  1008 │ 1040  1044 │ elsewhere │ 1048  1052 │ 1000 …
//!                   a branch ─┘     a call ┘    return ─┘  a branch ┘
//!  traces    1008 → 1040..1044, 1044 → outside, outside → 1048..1052, …
//! ```
//!
//! Of the first run of a window the end is counted, and of the last one the beginning: all that was executed. Without
//! them long runs, which windows cut more often, would count for less than short ones. Control also goes on elsewhere
//! where a signal is handled. That is no branch: one run ends there, and another begins.

use postlink_elf::elf::Elf;
use postlink_isa::{Flow, Insn, Isa, Machine, with_isa};
use postlink_profile::address::{
    AddressProfile, Collector, Counts, Module, ModuleId, Origin, Place, Trace,
};
use postlink_profile::windows::{Step, Window, Windows};
use rustc_hash::FxHashMap;

use crate::Error;

/// Longest instruction.
const LONGEST: u64 = 16;

/// Branches and runs of a trace. It must be of this file; of what is not code of it only that control went there and
/// came from there is kept.
///
/// Errors: the file is of another machine.
pub fn by_address(
    path: &std::path::Path,
    elf: &Elf<'_>,
    windows: &Windows,
) -> Result<AddressProfile, Error> {
    let machine = Machine::of_elf(elf.machine).ok_or_else(|| Error::Machine {
        path: path.to_owned(),
        machine: elf.machine,
    })?;
    Ok(with_isa!(machine, I => Reader::new(|at| decode::<I>(elf, at)).all(windows)))
}

fn decode<I: Isa>(elf: &Elf<'_>, at: u64) -> Option<Insn> {
    // The last instructions of a segment have fewer bytes behind them.
    let bytes = (1..=LONGEST).rev().find_map(|len| elf.bytes_at(at, len))?;
    I::decode(bytes, at)
}

/// What was executed last.
#[derive(Clone, Copy)]
enum Last {
    /// Nothing, or what cannot be told.
    Unknown,
    /// Code elsewhere.
    Elsewhere,
    /// An instruction of the file.
    Own(Insn),
}

/// How control came from an instruction to what was executed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It went on behind it, or repeats it.
    On,
    /// It branched.
    Branch,
    /// Another way: a signal.
    Other,
}

/// `to` is `None` elsewhere.
fn way(insn: &Insn, to: Option<u64>) -> Way {
    let is_next = to == Some(insn.end());
    let branch_to = |target: u64| match to {
        Some(to) if to == target => Way::Branch,
        // Code that is not in the file may be at any address of the process.
        None => Way::Branch,
        Some(_) => Way::Other,
    };
    match insn.flow {
        Flow::CondJump { .. } | Flow::ShortCond { .. } if is_next => Way::On,
        Flow::Jump { target }
        | Flow::Call { target }
        | Flow::CondJump { target, .. }
        | Flow::ShortCond { target } => branch_to(target),
        Flow::IndirectJump | Flow::IndirectCall | Flow::Return => Way::Branch,
        // A step of a repeated string instruction is one repetition.
        Flow::Next | Flow::Trap if is_next || to == Some(insn.addr) => Way::On,
        Flow::Next | Flow::Trap | Flow::Stop => Way::Other,
    }
}

struct Reader<D> {
    decode: D,
    known: FxHashMap<u64, Option<Insn>>,
    out: Collector,
}

impl<D: Fn(u64) -> Option<Insn>> Reader<D> {
    fn new(decode: D) -> Reader<D> {
        Reader {
            decode,
            known: FxHashMap::default(),
            out: Collector::default(),
        }
    }

    fn all(mut self, windows: &Windows) -> AddressProfile {
        for window in &windows.windows {
            self.window(window);
        }
        self.out.finish(&[Module::default()])
    }

    fn window(&mut self, window: &Window) {
        let before = self.out.statistics.entries;
        let mut last = Last::Unknown;
        // How control came to where the run began that is going on, and where that is: in the middle of one at first.
        let mut run: Option<(Origin, u64)> = None;
        for step in window.steps() {
            let at = match step {
                Step::Inside(at) => Some(at),
                Step::Elsewhere(_) => None,
            };
            let way = match last {
                Last::Own(insn) => Some((insn, way(&insn, at))),
                Last::Elsewhere | Last::Unknown => None,
            };
            run = match (way, at, last) {
                (Some((_, Way::On)), ..) => run,
                (Some((insn, Way::Branch)), ..) => {
                    self.end_run(run, insn.addr);
                    let from = own(insn.addr);
                    let origin = match insn.flow {
                        Flow::Return => Origin::Return(from),
                        _ => Origin::Branch(from),
                    };
                    if at.is_none() {
                        self.add(origin, Place::OUTSIDE, None);
                    }
                    at.map(|at| (origin, at))
                }
                (None, Some(at), Last::Elsewhere) => Some((Origin::Branch(Place::OUTSIDE), at)),
                (way, at, _) => {
                    if let Some((insn, _)) = way {
                        self.end_run(run, insn.addr);
                    }
                    at.map(|at| (Origin::Unknown, at))
                }
            };
            last = match at {
                None => Last::Elsewhere,
                Some(at) => self.insn(at).map_or(Last::Unknown, Last::Own),
            };
            if let (Last::Unknown, Some((origin, start))) = (last, run) {
                // How far it went cannot be told.
                self.add(origin, own(start), None);
                run = None;
            }
        }
        if let Last::Own(insn) = last {
            self.end_run(run, insn.addr);
        }
        let found = self.out.statistics.entries > before;
        self.out.statistics.samples += 1;
        self.out.statistics.with_branches += u64::from(found);
    }

    fn insn(&mut self, at: u64) -> Option<Insn> {
        *self.known.entry(at).or_insert_with(|| (self.decode)(at))
    }

    /// The run that is going on ended with the instruction at `end`.
    fn end_run(&mut self, run: Option<(Origin, u64)>, end: u64) {
        if let Some((origin, start)) = run {
            self.out.statistics.pairs += 1;
            self.add(origin, own(start), Some(end));
        }
    }

    fn add(&mut self, origin: Origin, start: Place, end: Option<u64>) {
        let is_branch = matches!(origin, Origin::Branch(_) | Origin::Return(_));
        self.out.statistics.entries += u64::from(is_branch);
        self.out.statistics.branches += u64::from(is_branch);
        let once = Counts {
            count: 1,
            mispredictions: 0,
        };
        self.out.trace(Trace { origin, start, end }, once);
    }
}

/// An address of the file.
fn own(address: u64) -> Place {
    Place {
        module: ModuleId(0),
        address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_isa::Decode;
    use postlink_isa::x86_64::X86_64;
    use postlink_profile::Identity;

    /// Ten bytes of code from 0x10 on:
    ///
    /// ```text
    ///  10: call *%rax   12: je 10   14: rep stosb   16: ret   17: jmp 12   19: nop
    /// ```
    const CODE: [u8; 10] = [0xff, 0xd0, 0x74, 0xfc, 0xf3, 0xaa, 0xc3, 0xeb, 0xf9, 0x90];

    fn read(steps: &[Option<u64>]) -> Vec<(Origin, u64, Option<u64>)> {
        let decode = |at: u64| {
            let from = usize::try_from(at.checked_sub(0x10)?).ok()?;
            X86_64::decode(CODE.get(from..)?, at)
        };
        let mut window = Window::default();
        for step in steps {
            window.push(step.map_or(Step::Elsewhere(7), Step::Inside));
        }
        let windows = Windows {
            identity: Identity::of_contents(b"a file"),
            windows: vec![window],
        };
        let profile = Reader::new(decode).all(&windows);
        let traces = profile.traces().iter();
        traces
            .map(|(trace, counts)| {
                assert_eq!(counts.count, 1);
                let outside = trace.start.is_outside();
                (
                    trace.origin,
                    if outside { 0 } else { trace.start.address },
                    trace.end,
                )
            })
            .collect()
    }

    #[test]
    fn branches_and_the_runs_between_them_are_found() {
        let steps = [
            Some(0x12),
            Some(0x10), // taken
            None,
            None,
            Some(0x12), // back
            Some(0x14),
            Some(0x14),
            Some(0x14),
            Some(0x16),
            Some(0x17), // a return to here
            Some(0x12), // its run was not seen to its end
            Some(0x14),
        ];
        let found = read(&steps);
        let expected = [
            (Origin::Unknown, 0x12, Some(0x12)),
            (Origin::Branch(own(0x10)), 0, None),
            (Origin::Branch(own(0x12)), 0x10, Some(0x10)),
            (Origin::Branch(Place::OUTSIDE), 0x12, Some(0x16)),
            (Origin::Return(own(0x16)), 0x17, Some(0x17)),
            (Origin::Branch(own(0x17)), 0x12, Some(0x14)),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for trace in expected {
            assert!(found.contains(&trace), "{trace:?} in {found:?}");
        }
    }

    #[test]
    fn a_signal_is_no_branch() {
        // In the middle of a run, at a branch with one target, and at an instruction that is repeated.
        for at in [0x19, 0x17, 0x14] {
            let arrives = [Some(0x12), Some(0x10), Some(at)];
            let handled = [Some(0x10), None, Some(at)];
            let found = read(&[&arrives[..], &handled].concat());
            let expected = [
                (Origin::Branch(own(0x10)), 0, None),
                (Origin::Branch(own(0x10)), at, Some(at)),
                (Origin::Branch(own(0x12)), 0x10, Some(0x10)),
                (Origin::Branch(Place::OUTSIDE), at, Some(at)),
                (Origin::Unknown, 0x10, Some(0x10)),
                (Origin::Unknown, 0x12, Some(0x12)),
            ];
            assert_eq!(found.len(), expected.len(), "{at:x}: {found:?}");
            for trace in expected {
                assert!(found.contains(&trace), "{at:x}: {trace:?} in {found:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_decoded_ends_no_run_and_begins_none() {
        let expected = [
            (Origin::Branch(own(0x12)), 0x10, Some(0x10)),
            (Origin::Unknown, 0x12, Some(0x12)),
            (Origin::Branch(own(0x10)), 0x9999, None),
            (Origin::Unknown, 0x19, Some(0x19)),
        ];
        let steps = [Some(0x12), Some(0x10), Some(0x9999), Some(0x19)];
        let found = read(&steps);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for trace in expected {
            assert!(found.contains(&trace), "{trace:?} in {found:?}");
        }
        assert_eq!(read(&[]), []);
    }
}
