//! Veneers (range-extension thunks): what direct jumps and calls go through when their targets are out of reach.
//!
//! On AArch64 a direct jump or call reaches 128 MiB. New code is after the old image; in a program with more
//! text than that it cannot reach all of the old. Then one section after the new code holds a veneer for each
//! target that is out of some branch's reach, `adrp x16`, `add x16`, `br x16`, which all share. The procedure
//! call standard leaves `x16` to veneers, so only targets at which functions begin get one.
//!
//! Linkers make veneers too. A call of new code that went through one goes to its target directly, or
//! to a veneer of ours for it. They themselves stay: nothing is gained by a copy, and it would be one more
//! place that knows the old address of a function that moved.
//!
//! New code that is itself more than branches reach is divided into *veneer groups*: functions that follow
//! each other in the order that was chosen for them, with their cold parts and recorders, some 96 MiB
//! together. All of a function is in one veneer group, so that only calls and jumps between functions can be
//! out of reach. After each veneer group is a section of veneers with space for all that its branches lead
//! to.
//!
//! The other direction needs no section: an old entry that may be out of reach of the new one gets the veneer itself
//! ([`crate::analyse::put_entry`]), if three instructions have space there.
//!
//! Where branches must land at landing pads, a veneer's jump does as well: a target without one gets no veneer.

use postlink_elf::write::{NewKind, NewSection, Placed, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{Code, Fixup, FixupKind, Isa};
use rustc_hash::FxHashMap;

use super::ready::Ready;
use crate::analyse::Target;
use crate::discover::Program;
use crate::error::Error;

/// Name of the section of veneers.
pub(crate) const SECTION: &str = ".text.veneers";

/// Divides functions that are placed in an order into veneer groups, by position in `ready`; all are in
/// veneer group 0 if everything reaches everything.
/// `sizes`: bytes of their fragments and recorders.
pub(crate) fn veneer_groups<I: Isa>(
    (ready, sizes): (&[Ready], &[[u32; 3]]),
    order: &[u32],
    align: [u64; 2],
) -> Vec<u16> {
    let mut veneer_groups = vec![0; ready.len()];
    // Most programs have one.
    let most = I::BRANCH_REACH / 4 * 3;
    let size = |r: &Ready| {
        let codes = r.code.fragments.iter().map(|f| &f.code);
        let all = codes.chain([&r.recorders]).map(|code| {
            let veneers = branches(code).count() as u64 * VENEER;
            code.bytes.len() as u64 + veneers
        });
        all.sum::<u64>() + align[0] + align[1]
    };
    let bytes = sizes.iter().map(|sizes| {
        let code: u64 = sizes.iter().copied().map(u64::from).sum();
        code + align[0] + align[1]
    });
    let bytes: u64 = bytes.sum();
    if bytes < most {
        return veneer_groups;
    }
    let (mut veneer_group, mut used) = (0, 0u64);
    for i in order {
        let own = size(&ready[*i as usize]);
        if used > 0 && used.saturating_add(own) > most && veneer_group < u16::MAX {
            (veneer_group, used) = (veneer_group + 1, 0);
        }
        used = used.saturating_add(own);
        veneer_groups[*i as usize] = veneer_group;
    }
    veneer_groups
}

/// Branches of code out of its function, with the input addresses of their targets.
pub(crate) fn branches(code: &Code<Target>) -> impl Iterator<Item = (&Fixup<Target>, u64)> {
    code.fixups.iter().filter_map(|f| match f.target {
        Target::Code(to) | Target::Same(to) if f.kind == FixupKind::Branch26 => Some((f, to)),
        _ => None,
    })
}

/// A branch of new code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    /// Where it is.
    pub veneer_group: u16,
    /// Its address.
    pub place: OutputAddr,
    /// The input address of its target.
    pub input: InputAddr,
    /// Where that is now.
    pub target: OutputAddr,
}

/// The veneers of a new program.
#[derive(Default)]
pub(crate) struct Veneers {
    /// By veneer group and target: where its veneer is.
    at: FxHashMap<(u16, OutputAddr), OutputAddr>,
    /// Linker's veneers: where they lead.
    through: FxHashMap<OutputAddr, OutputAddr>,
    /// By veneer group, if there is one: the section, and how many veneers have space in it.
    sections: Vec<Option<(Placed, usize)>>,
}

impl Veneers {
    /// Appends the section of the next veneer group, with space for veneers to all that its functions'
    /// branches lead to.
    pub(crate) fn reserve<'r, I: Isa>(
        &mut self,
        name: String,
        functions: impl Iterator<Item = &'r Ready>,
        writer: &mut Writer<'_>,
    ) {
        let mut targets: Vec<u64> = functions
            .flat_map(|r| {
                let codes = r.code.fragments.iter().map(|f| &f.code);
                codes.chain([&r.recorders]).flat_map(branches)
            })
            .map(|b| b.1)
            .collect();
        targets.sort_unstable();
        targets.dedup();
        let room = targets.len();
        let section = (room > 0).then(|| (append::<I>(name, room, writer), room));
        self.sections.push(section);
    }

    /// Gives veneers to branches that need one. `entries`: where functions went.
    pub(crate) fn plan<I: Isa>(
        &mut self,
        program: &Program<'_>,
        entries: &FxHashMap<InputAddr, OutputAddr>,
        branches: &[Branch],
        writer: &mut Writer<'_>,
    ) {
        let guarded = program.guarded;
        let mut wanted: Vec<(u16, OutputAddr)> = Vec::new();
        let mut seen: FxHashMap<InputAddr, bool> = FxHashMap::default();
        for &Branch {
            veneer_group,
            place,
            input,
            target,
        } in branches
        {
            let of_linker = program
                .elf
                .bytes_at(target.get(), 12)
                .and_then(|b| I::veneer_target(b, target.get()));
            let (input, target) = match of_linker {
                Some(to) => {
                    let to = InputAddr::new(to);
                    let now = entries.get(&to).copied().unwrap_or(to.kept());
                    self.through.insert(target, now);
                    (to, now)
                }
                None => (input, target),
            };
            if target.abs_diff(place) < I::BRANCH_REACH {
                continue;
            }
            let begins = *seen.entry(input).or_insert_with(|| {
                let entry = program
                    .piece_at(input.get())
                    .is_none_or(|p| program.start(p.function as usize) == input.get());
                let lets_in = || {
                    program
                        .elf
                        .bytes_at(input.get(), 4)
                        .and_then(|b| I::decode(b, input.get()))
                        .is_some_and(|i| i.traits.landing_pad)
                };
                entry && (!guarded || lets_in())
            });
            if begins {
                wanted.push((veneer_group, target));
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return;
        }
        if self.sections.is_empty() {
            // One veneer group, all of whose veneers are known now.
            let section = append::<I>(SECTION.to_owned(), wanted.len(), writer);
            self.sections.push(Some((section, wanted.len())));
        }
        for of_veneer_group in wanted.chunk_by(|a, b| a.0 == b.0) {
            let section = self.sections.get(usize::from(of_veneer_group[0].0));
            if let Some(Some((section, room))) = section {
                for (key, i) in of_veneer_group.iter().take(*room).zip(0..) {
                    let at = section.addr + VENEER * i;
                    self.at.insert(*key, at);
                }
            }
        }
    }

    /// Where a branch of a veneer group at `place` to `target` goes.
    pub(crate) fn instead<I: Isa>(
        &self,
        veneer_group: u16,
        kind: FixupKind,
        place: OutputAddr,
        target: OutputAddr,
    ) -> OutputAddr {
        if kind != FixupKind::Branch26 || self.at.is_empty() && self.through.is_empty() {
            return target;
        }
        let target = self.through.get(&target).copied().unwrap_or(target);
        if target.abs_diff(place) < I::BRANCH_REACH {
            return target;
        }
        let veneer = self.at.get(&(veneer_group, target));
        veneer.copied().unwrap_or(target)
    }

    /// Writes them.
    pub(crate) fn fill<I: Isa>(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        for (veneer_group, section) in self.sections.iter().enumerate() {
            let Some((section, _)) = section else {
                continue;
            };
            let own = self
                .at
                .iter()
                .filter(|veneer| usize::from(veneer.0.0) == veneer_group);
            let mut all: Vec<(OutputAddr, OutputAddr)> =
                own.map(|(key, at)| (*at, key.1)).collect();
            all.sort_unstable();
            let mut code: Code<OutputAddr> = Code::default();
            for (_, target) in &all {
                I::put_veneer(&mut code, *target);
            }
            for f in &code.fixups {
                I::write_field(
                    f.kind,
                    &mut code.bytes[f.at as usize..],
                    (section.addr + u64::from(f.at)).get(),
                    f.target.get(),
                )
                .map_err(|source| Error::Reach {
                    function: format!("the veneer to {:#x}", f.target),
                    source,
                })?;
            }
            let out = writer.contents(section.id);
            let Some((used, rest)) = out.split_at_mut_checked(code.bytes.len()) else {
                return Err(Error::internal("veneers changed their size"));
            };
            used.copy_from_slice(&code.bytes);
            rest.fill(I::PADDING);
        }
        Ok(())
    }
}

/// Bytes of a veneer.
const VENEER: u64 = 12;

fn append<I: Isa>(name: String, count: usize, writer: &mut Writer<'_>) -> Placed {
    let mut one: Code<()> = Code::default();
    I::put_veneer(&mut one, ());
    assert_eq!(one.bytes.len() as u64, VENEER);
    writer.append(NewSection {
        name,
        kind: NewKind::Code,
        align: 16,
        size: VENEER * count as u64,
    })
}
