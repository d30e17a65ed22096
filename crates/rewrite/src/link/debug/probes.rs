//! Static probes (`.note.stapsdt`): where they are in new code.
//!
//! A tracer puts its breakpoint where the note says. Control no longer reaches the old body of a moved function, so the
//! note has to name the copy of the instruction. Nothing else of it changes: semaphores are data, and arguments are
//! in the registers in which they were.

use postlink_dwarf::AddressMap;
use postlink_elf::elf::Elf;
use postlink_elf::probes;

/// The section with probes where they are now.
pub(super) struct Probes {
    /// Its index in the input.
    pub index: usize,
    pub bytes: Vec<u8>,
    pub align: u64,
    /// Probes in moved code.
    pub moved: u64,
    /// Those whose instruction is gone: they stay where they were.
    pub gone: u64,
}

/// The section's new contents; `None` if the file has no probes in moved code.
pub(super) fn follow(elf: &Elf<'_>, map: &AddressMap) -> Option<Probes> {
    let (index, section) = probes::section(elf).filter(|(_, s)| !s.is_alloc())?;
    let mut out = Probes {
        index,
        bytes: elf.section_data(section).to_vec(),
        align: section.align,
        moved: 0,
        gone: 0,
    };
    for probe in probes::probes(elf) {
        if !map.is_moved(probe.at) {
            continue;
        }
        let field = out.bytes.get_mut(probe.field..probe.field + 8);
        match (map.address(probe.at), field) {
            (Some(new), Some(field)) => {
                let value = new.wrapping_sub(probe.moved_by);
                field.copy_from_slice(&value.to_le_bytes());
                out.moved += 1;
            }
            _ => out.gone += 1,
        }
    }
    (out.moved + out.gone > 0).then_some(out)
}

/// Probes of a file that stay in old bodies: their section is loaded, so that the program may know it, or nothing
/// says where code is.
pub(super) fn left(elf: &Elf<'_>, bodies: &[std::ops::Range<u64>]) -> u64 {
    let inside = |at: u64| bodies.iter().any(|body| body.contains(&at));
    let all = probes::probes(elf);
    all.iter().filter(|probe| inside(probe.at)).count() as u64
}
