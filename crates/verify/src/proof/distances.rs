//! Addresses that code makes of distances.
//!
//! In the large code model code loads the distance of a function from the global offset table (or from a
//! place of its own) as a number, and adds it to an address that it has formed; on AArch64 instructions form
//! an address in four parts. No field of an instruction holds such an address, so no walk over instructions
//! sees it. The relocations that the linker kept tell: the program knows what they lead to by its old
//! address, wherever the code that does so is, and pointers to the same function must be that address too.
//!
//! What such code adds distances to must be the address that it was, so in a function with a distance no
//! instruction may form another address than before, not even that of the new place of what moved.

use crate::addr::InputAddr;
use crate::arch::Arch;
use crate::context::{Context, Distance, Findings, FuncId};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::elf::SHT_SYMTAB;
use rustc_hash::FxHashSet;

/// All relocations of code by distances.
pub(crate) fn relocations<A: Arch>(cx: &Context<'_>) -> Vec<Distance> {
    let kinds = [A::DISTANCES, A::DISTANCES_OF_DATA];
    let in_code = |info: u32| {
        let about = cx.input.sections.get(info as usize);
        info != 0 && about.is_some_and(|s| s.is_alloc() && cx.is_code(s.addr))
    };
    let wanted = |e: &[u8]| {
        let kind = u32_in(e, 8)?;
        let used = kinds.iter().any(|k| k.contains(&kind));
        used.then(|| Some((u64_in(e, 0)?, kind, u32_in(e, 12)?, u64_in(e, 16)?)))?
    };
    let sections = cx.input.sections.iter();
    sections
        .filter(|s| s.is_kept_relocations() && in_code(s.info))
        .flat_map(|s| {
            postlink_parallel::flat_map_chunks(cx.input.relocation_records(s), 24 << 12, |part| {
                cx.maps.read(part.len());
                part.chunks_exact(24).filter_map(wanted)
            })
        })
        .collect()
}

/// The moved functions that calculate with distances.
pub(crate) fn calculating(cx: &Context<'_>) -> FxHashSet<FuncId> {
    cx.distances
        .iter()
        .filter_map(|r| cx.old.owner(InputAddr::new(r.0)))
        .collect()
}

/// Notes the moved functions that code knows by their distance.
pub(crate) fn known<A: Arch>(cx: &Context<'_>, found: &mut Findings) {
    let of_code = cx.distances.iter().filter(|r| A::DISTANCES.contains(&r.1));
    let mut relocs: Vec<(u32, u32, u64)> = of_code.map(|r| (r.1, r.2, r.3)).collect();
    if relocs.is_empty() {
        return;
    }
    relocs.sort_unstable();
    relocs.dedup();
    let values: Vec<u64> = cx
        .input
        .nameless_symbols(SHT_SYMTAB)
        .map(|s| s.value)
        .collect();
    let mut known = FxHashSet::default();
    for (kind, symbol, addend) in relocs {
        let Some(&value) = values.get(symbol as usize).filter(|_| symbol != 0) else {
            continue;
        };
        known.insert(value.wrapping_add(addend));
        // The addend of a distance from the field itself also says where the code counts from.
        if kind == A::DISTANCE_8 {
            known.insert(value);
        }
    }
    let moved = known
        .into_iter()
        .filter_map(|addr| cx.entry_of(InputAddr::new(addr)));
    found.addresses.extend(moved.map(|id| (id, false)));
}
