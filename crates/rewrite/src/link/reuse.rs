//! Space in old bodies that nothing comes to any more.

use postlink_elf::InputAddr;
use postlink_isa::{Code, Isa};
use rustc_hash::{FxHashMap, FxHashSet};

use super::ready::Ready;
use crate::analyse::EntryPatch;
use crate::discover::Program;

/// What is left of old bodies after the jumps at their entries, as address and length: nothing comes there
/// any more, as whatever referred to the insides of a function that could be moved was found and follows it.
/// (The checker looks for itself.)
pub fn reusable_space<I: Isa>(
    program: &Program<'_>,
    ready: &[Ready],
    patches: &[EntryPatch],
    sealed: &FxHashSet<u64>,
) -> Vec<(InputAddr, u64)> {
    let jumps: FxHashMap<InputAddr, InputAddr> = patches.iter().map(|p| (p.entry, p.at)).collect();
    let behind = |r: &Ready| {
        let function = &program.functions[r.function as usize];
        let piece = &program.pieces[*function.pieces.first()? as usize];
        let at = jumps.get(&InputAddr::new(piece.start))?.get();
        let mut jump: Code<()> = Code::default();
        I::put_entry(
            &mut jump,
            program.elf.bytes_at(at, (piece.end - at).min(16))?,
            (),
        );
        let start = at + jump.bytes.len() as u64;
        let plain = r.address_taken.is_empty()
            && r.anchored_targets.is_empty()
            && function.entries.is_empty()
            && !sealed.contains(&piece.start);
        (plain && start < piece.end).then(|| (InputAddr::new(start), piece.end - start))
    };
    ready.iter().filter_map(behind).collect()
}
