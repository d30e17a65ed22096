//! Inserted code that was followed on the symbolic machine, for where the same code is once more.
//!
//! All functions of an instrumented program check in the same way that their thread has counters. What the machine
//! finds out of such code depends on its bytes and on where its address fields lead, and not on where it is. So where
//! the same bytes are again, with fields that lead to the same places, the same comes out, but for the place. What is
//! asked where it may end is about the old code there, and is asked again.
//!
//! Only what counts nothing, and was asked about the place alone where it ended, is kept: then what is behind it had no
//! part in that.

use crate::arch::step::Op;
use crate::arch::{Arch, Insn};
use crate::machine::{self, Footprint, Meeting, Moment};
use smallvec::SmallVec;

/// Pieces of code that are kept: there are few different ones.
const KEPT: usize = 8;

/// The longest that is kept, in bytes.
const LONGEST: u64 = 96;

/// A field that leads out of a piece of code: where it is in that, its length, and where it leads.
type Outward = (u8, u8, u64);

/// A piece of inserted code, and what came out.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    bytes: SmallVec<[u8; 64]>,
    /// Ascending.
    outward: SmallVec<[Outward; 4]>,
    /// See [`machine::Places`].
    zone: i64,
    /// Where it was.
    start: u64,
    meeting: Meeting,
    footprint: Footprint,
    moments: Vec<Moment>,
}

impl Passage {
    /// What is different where it ends, if it begins at `start`.
    pub(crate) fn meeting(&self, start: u64) -> Meeting {
        Meeting {
            at: start.wrapping_add(self.bytes.len() as u64),
            ..self.meeting
        }
    }

    /// What it touches.
    pub(crate) fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Its instructions, if it begins at `start`.
    pub(crate) fn moments(&self, start: u64) -> impl Iterator<Item = Moment> {
        self.moments.iter().map(move |moment| Moment {
            at: start.wrapping_add(moment.at.wrapping_sub(self.start)),
            ..*moment
        })
    }

    /// Whether code at `start` is the same.
    fn is_same(&self, bytes: &[u8], start: u64) -> bool {
        let Some(own) = bytes.get(..self.bytes.len()) else {
            return false;
        };
        let mut from = 0;
        for &(at, len, target) in &self.outward {
            let at = usize::from(at);
            if own.get(from..at) != self.bytes.get(from..at)
                || self.leads(own, start, (at, len)) != Some(target)
            {
                return false;
            }
            from = at + usize::from(len);
        }
        own.get(from..) == self.bytes.get(from..)
    }

    /// Where a field leads in code at `start`: its number is added to what was so far from where it leads here.
    fn leads(&self, own: &[u8], start: u64, (at, len): (usize, u8)) -> Option<u64> {
        let number = |bytes: &[u8]| {
            let field = bytes.get(at..)?.first_chunk::<4>()?;
            (len == 4).then(|| i64::from(i32::from_le_bytes(*field)))
        };
        let here = self.outward.iter().find(|o| usize::from(o.0) == at)?.2;
        let further = number(own)?.wrapping_sub(number(&self.bytes)?);
        let moved = start.wrapping_sub(self.start);
        Some(here.wrapping_add(moved).wrapping_add_signed(further))
    }
}

/// Pieces that were followed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passages {
    known: Vec<Passage>,
    /// The next whose place is taken.
    next: usize,
}

impl Passages {
    /// What came out of the same code as that at `start`, if it may end where that did.
    pub(crate) fn find<'c, A: Arch>(
        &self,
        code: &dyn Fn(u64) -> Option<&'c [u8]>,
        start: u64,
        zone: i64,
    ) -> Option<&Passage> {
        if self.known.is_empty() {
            return None;
        }
        let bytes = code(start)?;
        let is_same = |known: &&Passage| known.zone == zone && known.is_same(bytes, start);
        let same = self.known.iter().find(is_same)?;
        let end = same.meeting(start).at;
        (!machine::repeats::<A>(code, start, end)).then_some(same)
    }

    /// Keeps what came out of code that begins at a place, with so much of the stack below the stack pointer that
    /// belongs to the program. `moments` are all of its instructions.
    pub(crate) fn note<'c, A: Arch>(
        &mut self,
        code: &dyn Fn(u64) -> Option<&'c [u8]>,
        (start, zone): (u64, i64),
        meeting: Meeting,
        (footprint, moments): (&Footprint, &[Moment]),
    ) {
        let Some((bytes, outward)) = piece::<A>(code, (start, meeting.at), moments) else {
            return;
        };
        let passage = Passage {
            bytes,
            outward,
            zone,
            start,
            meeting,
            footprint: footprint.clone(),
            moments: moments.to_vec(),
        };
        if self.known.len() < KEPT {
            self.known.push(passage);
        } else if let Some(old) = self.known.get_mut(self.next) {
            *old = passage;
            self.next = (self.next + 1) % KEPT;
        }
    }
}

/// The bytes of code that was followed, and its fields that lead out of it. `None`: what it does may depend on more.
fn piece<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    (start, end): (u64, u64),
    moments: &[Moment],
) -> Option<(SmallVec<[u8; 64]>, SmallVec<[Outward; 4]>)> {
    // Elsewhere addresses take several instructions.
    let len = end.checked_sub(start).filter(|len| *len <= LONGEST)?;
    if A::STEP > 1 {
        return None;
    }
    let mut outward: SmallVec<[Outward; 4]> = SmallVec::new();
    for moment in moments {
        let bytes = code(moment.at)?;
        let after = moment.at.checked_add(u64::from(moment.len))?;
        let insn: Insn = A::decode(bytes, moment.at)?;
        // An addition may be one step with what takes it back behind it.
        let step = A::step(bytes, moment.at)?;
        let adds = step.ops.iter().any(|op| matches!(op, Op::Change { .. }));
        if moment.at < start || after > end || insn.len != moment.len || adds {
            return None;
        }
        let Some(field) = insn.field else {
            continue;
        };
        let is_inside = (start..=end).contains(&field.target);
        if !is_inside && field.len != 4 {
            return None;
        }
        let at = moment.at - start + u64::from(field.at);
        let field = (u8::try_from(at).ok()?, field.len, field.target);
        if !is_inside && !outward.contains(&field) {
            outward.push(field);
        }
    }
    outward.sort_unstable();
    let bytes = code(start)?.get(..usize::try_from(len).ok()?)?;
    Some((bytes.into(), outward))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::X86_64;

    /// A comparison of a byte at `flag` and a branch over a call of `routine`, at a place.
    fn check(at: u64, flag: u64, routine: u64) -> Vec<u8> {
        let mut code = vec![0x80, 0x3d];
        code.extend((flag.wrapping_sub(at + 7) as i32).to_le_bytes());
        code.extend([1, 0x74, 5, 0xe8]);
        code.extend((routine.wrapping_sub(at + 14) as i32).to_le_bytes());
        code.extend([0x90; 32]);
        code
    }

    #[test]
    fn the_same_code_elsewhere_is_found_by_where_its_fields_lead() {
        let (start, flag, routine) = (0x1000, 0x9000, 0x8000);
        let moment = |at, len| Moment {
            at,
            len,
            ..Moment::default()
        };
        let moments = [moment(start, 7), moment(0x1007, 2), moment(0x1009, 5)];
        let meeting = Meeting {
            at: start + 14,
            flags: 3,
            ..Meeting::default()
        };
        let mut passages = Passages::default();
        let code = check(start, flag, routine);
        let at_start = |at: u64| code.get((at - start) as usize..);
        let footprint = Footprint::default();
        let what = (&footprint, &moments[..]);
        passages.note::<X86_64>(&at_start, (start, 128), meeting, what);
        let found = |at: u64, zone: i64, bytes: &[u8]| {
            let code = |a: u64| bytes.get((a - at) as usize..);
            let same = passages.find::<X86_64>(&code, at, zone)?;
            let moments: Vec<Moment> = same.moments(at).collect();
            Some((same.meeting(at), moments))
        };
        for at in [start, 0x2345, 0x8100] {
            let meeting = Meeting {
                at: at + 14,
                ..meeting
            };
            let moments = vec![moment(at, 7), moment(at + 7, 2), moment(at + 9, 5)];
            let same = found(at, 128, &check(at, flag, routine));
            assert_eq!(same, Some((meeting, moments)));
            assert_eq!(found(at, 0, &check(at, flag, routine)), None);
            assert_eq!(found(at, 128, &check(at, flag + 1, routine)), None);
            assert_eq!(found(at, 128, &check(at, flag, routine - 1)), None);
            for byte in 0..14 {
                let mut other = check(at, flag, routine);
                other[byte] ^= 1;
                assert_eq!(found(at, 128, &other), None, "byte {byte}");
            }
            assert_eq!(found(at, 128, &check(at, flag, routine)[..13]), None);
        }
    }

    #[test]
    fn what_depends_on_more_than_its_bytes_is_not_kept() {
        let start = 0x1000;
        let moment = |at, len| Moment {
            at,
            len,
            ..Moment::default()
        };
        let kept = |bytes: &[u8], moments: &[Moment], len: u64| {
            let code = |at: u64| bytes.get((at - start) as usize..);
            piece::<X86_64>(&code, (start, start + len), moments).is_some()
        };
        let code = check(start, 0x9000, 0x8000);
        let call = moment(0x1009, 5);
        let all = [moment(start, 7), moment(0x1007, 2), call];
        assert!(kept(&code, &all, 14));
        // Something was run behind the end; an instruction of another length.
        assert!(!kept(&code, &all, 9));
        assert!(!kept(&code, &[moment(start, 6)], 7));
        // A short branch out of it; an addition, which may be taken back behind it.
        assert!(!kept(&[0x74, 0x20, 0x90, 0x90], &[moment(start, 2)], 2));
        let adds = [&[0x48, 0x83, 0x05, 0, 0, 1, 0, 1][..], &[0x90; 32]].concat();
        assert!(!kept(&adds, &[moment(start, 8)], 8));
    }
}
