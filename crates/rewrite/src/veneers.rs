//! Veneers: what direct jumps and calls go by way of when they do not reach.
//!
//! On AArch64 a direct jump or call reaches 128 MiB. New code lies behind the old image; in a program with more text than that it cannot
//! reach all of the old. Then one section behind the new code holds a veneer for each target that is out of reach of somebody,
//! `adrp x16`, `add x16`, `br x16`, which all share. The procedure call standard leaves `x16` to veneers, so only targets at which functions
//! begin get one.
//!
//! Linkers make veneers too. A call of new code that went by way of one goes straight to where that leads, or to a veneer of ours for it. They
//! themselves stay: nothing is gained by a copy, and it would be one more place that knows the old address of a function that moved.
//!
//! The other direction needs no section: an old entry that may be out of reach of the new one gets the veneer itself
//! ([`crate::link::entry_patch`]), if three instructions have room there.
//!
//! Where branches must land at landing pads, a veneer's jump does as well: a target without one gets no veneer.

use postlink_image::elf::Elf;
use postlink_image::write::{NewKind, NewSection, Placed, Writer};
use postlink_isa::aarch64::AArch64;
use postlink_isa::{Code, FixupKind, Isa};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::discover::Program;

/// `e_machine` of AArch64, the only machine with veneers.
const EM_AARCH64: u16 = 183;

/// Where the function that begins at `addr` leads, if it is nothing but a linker's veneer.
pub(crate) fn behind(program: &Program<'_>, addr: u64) -> Option<u64> {
    if program.elf.machine != EM_AARCH64 {
        return None;
    }
    let piece = program.piece_at(addr).filter(|p| p.start == addr)?;
    // The last word may be padding that the symbol's size includes.
    if piece.end - piece.start > 16 {
        return None;
    }
    AArch64::veneer_target(program.elf.bytes_at(addr, 12)?, addr)
}

/// The veneers of a new program.
#[derive(Default)]
pub(crate) struct Veneers {
    /// By target: where its veneer lies.
    at: FxHashMap<u64, u64>,
    /// Linker's veneers: where they lead.
    through: FxHashMap<u64, u64>,
    section: Option<Placed>,
}

impl Veneers {
    /// For branches (place, target) of new code. `entries`: where functions went.
    pub(crate) fn new<I: Isa>(
        program: &Program<'_>,
        entries: &FxHashMap<u64, u64>,
        branches: &[(u64, u64)],
        writer: &mut Writer<'_>,
    ) -> Veneers {
        let guarded = is_guarded(program.elf);
        let mut veneers = Veneers::default();
        let mut wanted: Vec<u64> = Vec::new();
        let mut seen: FxHashMap<u64, bool> = FxHashMap::default();
        for &(place, target) in branches {
            let of_linker = program
                .elf
                .bytes_at(target, 12)
                .and_then(|b| I::veneer_target(b, target));
            let target = match of_linker {
                Some(to) => {
                    let to = entries.get(&to).copied().unwrap_or(to);
                    veneers.through.insert(target, to);
                    to
                }
                None => target,
            };
            if target.abs_diff(place) < I::BRANCH_REACH {
                continue;
            }
            let begins = *seen.entry(target).or_insert_with(|| {
                let entry = program
                    .piece_at(target)
                    .is_none_or(|p| program.start(p.function as usize) == target);
                let lets_in = || {
                    program
                        .elf
                        .bytes_at(target, 4)
                        .and_then(|b| I::decode(b, target))
                        .is_some_and(|i| i.traits.landing_pad)
                };
                entry && (!guarded || lets_in())
            });
            if begins {
                wanted.push(target);
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return veneers;
        }
        let mut one: Code<()> = Code::default();
        I::put_veneer(&mut one, ());
        let len = one.bytes.len() as u64;
        let placed = writer.append(NewSection {
            name: ".text.veneers".to_owned(),
            kind: NewKind::Code,
            align: 16,
            size: len * wanted.len() as u64,
        });
        veneers.at = wanted
            .iter()
            .zip(0..)
            .map(|(target, i)| (*target, placed.addr + len * i))
            .collect();
        veneers.section = Some(placed);
        veneers
    }

    /// Where a branch at `place` that is to come to `target` goes.
    pub(crate) fn instead<I: Isa>(&self, kind: FixupKind, place: u64, target: u64) -> u64 {
        if kind != FixupKind::Branch26 || self.at.is_empty() && self.through.is_empty() {
            return target;
        }
        let target = self.through.get(&target).copied().unwrap_or(target);
        if target.abs_diff(place) < I::BRANCH_REACH {
            return target;
        }
        self.at.get(&target).copied().unwrap_or(target)
    }

    /// Writes them.
    pub(crate) fn fill<I: Isa>(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let Some(section) = self.section else {
            return Ok(());
        };
        let mut all: Vec<(u64, u64)> = self.at.iter().map(|(target, at)| (*at, *target)).collect();
        all.sort_unstable();
        let mut code: Code<u64> = Code::default();
        for (_, target) in &all {
            I::put_veneer(&mut code, *target);
        }
        for f in &code.fixups {
            I::write_field(
                f.kind,
                &mut code.bytes[f.at as usize..],
                section.addr + u64::from(f.at),
                f.target,
            )
            .map_err(|source| Error::Reach {
                function: format!("the veneer to {:#x}", f.target),
                source,
            })?;
        }
        let out = writer.contents(section.id);
        if out.len() != code.bytes.len() {
            return Err(Error::internal("veneers changed their size"));
        }
        out.copy_from_slice(&code.bytes);
        Ok(())
    }
}

/// Whether the program asks for pages in which indirect branches must land at landing pads (the property `BTI` of AArch64).
pub(crate) fn is_guarded(elf: &Elf<'_>) -> bool {
    /// `GNU_PROPERTY_AARCH64_FEATURE_1_AND`, and its length.
    const FEATURES: [u8; 8] = [0, 0, 0, 0xc0, 4, 0, 0, 0];
    if elf.machine != EM_AARCH64 {
        return false;
    }
    let Some((_, section)) = elf.section(".note.gnu.property") else {
        return false;
    };
    let bytes = elf.bytes_at(section.addr, section.size).unwrap_or_default();
    let at = bytes.windows(8).position(|w| w == FEATURES);
    at.and_then(|at| bytes.get(at + 8))
        .is_some_and(|features| features & 1 != 0)
}
