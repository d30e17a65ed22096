//! Some code and its jumps: what is needed to look backwards.

use crate::arch::{Arch, Flow};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Pieces of code with direct jumps by target. Only for instructions of fixed length.
#[derive(Debug, Default)]
pub(crate) struct Graph<'a> {
    code: SmallVec<[(u64, &'a [u8]); 2]>,
    jumps: FxHashMap<u64, SmallVec<[u64; 2]>>,
}

impl<'a> Graph<'a> {
    /// Reads all jumps in the pieces (address, bytes).
    pub(crate) fn new<A: Arch>(code: impl IntoIterator<Item = (u64, &'a [u8])>) -> Self {
        let mut graph = Graph {
            code: code.into_iter().collect(),
            jumps: FxHashMap::default(),
        };
        for (start, bytes) in &graph.code {
            for (i, word) in bytes.chunks_exact(A::STEP).enumerate() {
                let at = start.saturating_add((i * A::STEP) as u64);
                if let Some(Flow::Jump(target) | Flow::Branch { target, .. }) =
                    A::decode(word, at).map(|i| i.flow)
                {
                    graph.jumps.entry(target).or_default().push(at);
                }
            }
        }
        graph
    }

    /// The four bytes at an address.
    pub(crate) fn word(&self, at: u64) -> Option<u32> {
        self.code.iter().find_map(|(start, bytes)| {
            let i = usize::try_from(at.checked_sub(*start)?).ok()?;
            Some(u32::from_le_bytes(
                bytes.get(i..i.checked_add(4)?)?.try_into().ok()?,
            ))
        })
    }

    /// Addresses of the instructions that jump there.
    pub(crate) fn jumps_to(&self, at: u64) -> &[u64] {
        self.jumps.get(&at).map_or(&[], SmallVec::as_slice)
    }
}
