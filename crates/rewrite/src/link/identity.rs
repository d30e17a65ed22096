//! The build-id of the output.
//!
//! Profilers and debuggers keep binaries and debug files by build-id. An output with the input's id would be
//! taken for the input: perf finds no line in it, a debugger loads a debug file that describes other
//! addresses. So an output has an id of its own, which is made from what it is:
//!
//! XXH3 (128 bits, little-endian) of `postlink`, the input's id, the description of `.note.postlink` and the
//! bytes of all new code in the note's order, once with seed 0 and once with seed 1, cut to the length of the
//! old id. Bytes beyond the 32nd stay. New code in the space of old bodies is left out.
//!
//! The note continues naming the input's id.

use postlink_elf::InputAddr;
use postlink_elf::elf::Elf;
use postlink_elf::write::{NewId, Writer};
use xxhash_rust::xxh3::Xxh3;

use super::place::Placement;
use super::ready::{Ready, moving};
use crate::discover::Program;
use crate::error::Error;

/// Where the build-id of a file is loaded. `None` if it has none, or it is not loaded.
fn address(elf: &Elf<'_>) -> Option<InputAddr> {
    let id = elf.build_id?;
    let offset = (id.as_ptr() as usize).checked_sub(elf.data.as_ptr() as usize)? as u64;
    let load = elf
        .loads()
        .find(|p| p.offset <= offset && offset + id.len() as u64 <= p.offset + p.file_size)?;
    Some(InputAddr::new(load.addr + (offset - load.offset)))
}

impl Placement {
    /// Gives the output a build-id of its own, if the input has one. Called when code is filled in and the
    /// note is made.
    pub fn build_id(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        note: NewId,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let (Some(at), Some(old)) = (address(program.elf), program.elf.build_id) else {
            return Ok(());
        };
        let mut hashes = [0, 1].map(Xxh3::with_seed);
        let mut add = |bytes: &[u8]| hashes.iter_mut().for_each(|h| h.update(bytes));
        add(b"postlink");
        add(old);
        add(postlink_elf::note::description(writer.contents(note)));
        let mut order: Vec<usize> = moving(ready).map(|(i, _)| i).collect();
        order.sort_by_key(|i| program.start(ready[*i].function as usize));
        for i in order {
            for (f, fragment) in ready[i].code.fragments.iter().enumerate() {
                let section = self.sections[usize::from(self.veneer_groups[i])][f];
                let (Some(section), false) = (section, self.in_old_body[i][f]) else {
                    continue;
                };
                let from = self.fragments[i][f].checked_sub(section.addr).unwrap_or(0) as usize;
                let to = from + fragment.code.bytes.len();
                add(writer
                    .contents(section.id)
                    .get(from..to)
                    .unwrap_or_default());
            }
        }
        let mut id = old.to_vec();
        let made = hashes.iter().flat_map(|h| h.digest128().to_le_bytes());
        id.iter_mut().zip(made).for_each(|(byte, new)| *byte = new);
        Ok(writer.patch(at, &id)?)
    }
}
