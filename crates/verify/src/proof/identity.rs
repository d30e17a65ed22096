//! The build-id: the input's, or one that is made from it, from the claim and from the bytes of new code.
//!
//! XXH3 (128 bits, little-endian) of `postlink`, the input's id, the claim's description and the bytes of all
//! claimed new ranges outside of the old image, once with seed 0 and once with seed 1, cut to the length of
//! the id. Bytes beyond the 32nd are the input's.

use xxhash_rust::xxh3::Xxh3;

use crate::context::{Context, Findings};
use crate::files::claim::Range;
use crate::files::elf;
use crate::report::{Check, Failure};

/// Compares the build-ids. Returns where the input's is loaded, whose bytes were judged here.
pub(crate) fn build_id(cx: &Context<'_>, found: &mut Findings) -> Option<Range> {
    let old = cx.input.note(b"GNU", elf::NT_GNU_BUILD_ID)?;
    let new = cx.output.note(b"GNU", elf::NT_GNU_BUILD_ID).unwrap_or(b"");
    if old != new {
        let mut hashes = [0, 1].map(Xxh3::with_seed);
        let mut add = |bytes: &[u8]| hashes.iter_mut().for_each(|h| h.update(bytes));
        add(b"postlink");
        add(old);
        add(cx.output.note(b"postlink", 1).unwrap_or(b""));
        let own = cx.functions.iter().filter(|f| f.folded.is_none());
        for range in own.flat_map(|f| &f.new) {
            let in_old_image = cx.reused.owner(range.start).is_some();
            let bytes = cx.output.bytes(range.start.get(), range.len());
            add(bytes.filter(|_| !in_old_image).unwrap_or(b""));
        }
        let mut right = old.to_vec();
        let made = hashes.iter().flat_map(|h| h.digest128().to_le_bytes());
        right
            .iter_mut()
            .zip(made)
            .for_each(|(byte, new)| *byte = new);
        if right != new {
            let text = "the build-id is neither the input's nor the one made from it";
            found
                .file
                .push(Failure::new(Check::Headers, text).bytes(&right, new));
        }
    }
    // Where it is in the file, it is loaded.
    let offset = (old.as_ptr() as usize).checked_sub(cx.input.data.as_ptr() as usize)? as u64;
    let len = old.len() as u64;
    let load = cx
        .input
        .loads()
        .iter()
        .find(|l| l.offset <= offset && offset + len <= l.offset + l.file_size)?;
    let start = load.addr + (offset - load.offset);
    Some(Range {
        start,
        end: start + len,
    })
}
