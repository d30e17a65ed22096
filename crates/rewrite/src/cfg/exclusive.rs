//! Load-exclusive and store-exclusive pairs: where a store of a counter would make the pair fail for ever.

use postlink_isa::Insn;

use super::graph::{Block, BlockId, Cfg};

/// Fills in [`Block::watch`].
pub(super) fn mark_regions(cfg: &mut Cfg, insns: &[Insn]) {
    if !insns.iter().any(|i| i.traits.exclusive_load) {
        return;
    }
    let exclusive: Vec<&Insn> = insns
        .iter()
        .filter(|i| i.traits.exclusive_load || i.traits.exclusive_store)
        .collect();
    let inside = |b: &Block| {
        let (start, end) = (b.start, b.end);
        exclusive
            .iter()
            .filter(move |i| i.addr >= start && i.addr < end)
    };
    // (first is a store, last is a load, has a store) of those that have any.
    let facts: Vec<Option<(bool, bool, bool)>> = cfg
        .blocks
        .iter()
        .map(|b| {
            let first = inside(b).next()?;
            let last = inside(b).next_back()?;
            let has_store = inside(b).any(|i| i.traits.exclusive_store);
            Some((
                first.traits.exclusive_store,
                last.traits.exclusive_load,
                has_store,
            ))
        })
        .collect();
    let n = cfg.blocks.len();
    let mut changed = true;
    while changed {
        changed = false;
        for b in 0..n {
            let stores_out = cfg
                .succs(b as BlockId)
                .iter()
                .any(|s| cfg.blocks[*s as usize].watch.stores_in);
            let stores_in = facts[b].map_or(stores_out, |f| f.0);
            let loaded_out = facts[b].map_or(cfg.blocks[b].watch.loaded_in, |f| f.1);
            let watch = &mut cfg.blocks[b].watch;
            changed |= (watch.stores_in, watch.loaded_out) != (stores_in, loaded_out);
            (watch.stores_in, watch.loaded_out) = (stores_in, loaded_out);
            if loaded_out {
                for k in 0..cfg.succs(b as BlockId).len() {
                    let s = cfg.succs(b as BlockId)[k] as usize;
                    changed |= !std::mem::replace(&mut cfg.blocks[s].watch.loaded_in, true);
                }
            }
        }
    }
    for b in 0..n {
        let watch = &mut cfg.blocks[b].watch;
        watch.inside = facts[b].is_some();
        watch.whole = watch.loaded_in && watch.stores_in && !facts[b].is_some_and(|f| f.2);
    }
}
