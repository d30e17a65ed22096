//! Between profiles by names and profiles by blocks.
//!
//! A record within a function is an edge of its block, one that leaves it (or enters it again at its start) a
//! call. The count of a block is the largest of what enters it, what leaves it, and, of the first, the
//! function's entries. Numbers of blocks are in the order of the code.
//!
//! Of a binary that was optimised before, blocks are those of the translation table; it does not know the
//! edges of the input, so every edge is believed there.
//!
//! Hashes are not made here: who has the code at hand in another form gives them ([`Hashes`]).

use std::collections::BTreeMap;

use postlink_isa::{Isa, with_isa};
use postlink_profile::bolt_yaml::{
    Block, BoltYaml, Call, Function, HashFunction, Header, Successor,
};
use postlink_profile::symbolic::{Branch, Collection, Location, NameId, Records, SymbolicProfile};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::binary::Binary;
use crate::blocks::{self, Blocks, References, Surroundings};
use crate::crossings_of;
use crate::translate::{Shape, ShapeBlock};

/// Hashes of a function: its own, and of each block by offset of its start.
pub type Hashes = (u64, FxHashMap<u32, u64>);

/// The offsets of a function's blocks in depth-first order, by its index in the binary; `None` if its edges
/// are not known.
pub type DepthFirst<'a> = dyn Fn(usize) -> Option<Vec<u32>> + Sync + 'a;

/// A function that a profile names.
struct Named {
    /// Its index in the binary.
    index: usize,
    name: Vec<u8>,
    blocks: Blocks,
    shape: Shape,
    translated: bool,
}

/// The functions of a binary by every name they have.
pub fn by_name(binary: &Binary<'_, '_>) -> FxHashMap<Vec<u8>, usize> {
    let mut map = FxHashMap::default();
    for index in 0..binary.functions.list().len() {
        for name in binary.functions.names_of(index) {
            map.entry(name.text().into_owned()).or_insert(index);
        }
    }
    map
}

fn find<I: Isa>(
    binary: &Binary<'_, '_>,
    names: &[&[u8]],
    hashes: &(dyn Fn(usize) -> Option<Hashes> + Sync),
) -> Vec<Option<Named>> {
    let map = by_name(binary);
    let indexes: Vec<Option<usize>> = names.iter().map(|name| map.get(*name).copied()).collect();
    let crossings = crossings_of::<I>(binary, indexes.iter().flatten().copied().collect());
    let references = References::new(binary.elf);
    let around = Surroundings {
        elf: binary.elf,
        functions: &binary.functions,
        unwind: &binary.unwind,
        crossings: &crossings,
        references: &references,
    };
    indexes
        .par_iter()
        .zip(names)
        .map(|(index, name)| {
            let index = (*index)?;
            let start = binary.functions.list()[index].start;
            let name = name.to_vec();
            if let Some(shape) = binary.translate.as_ref().and_then(|t| t.shape(start)) {
                return Some(Named {
                    index,
                    name,
                    blocks: Blocks::default(),
                    shape,
                    translated: true,
                });
            }
            let blocks = blocks::blocks::<I>(&around, index);
            let (hash, of_block) = hashes(index).unwrap_or_default();
            let list = blocks.list().iter().enumerate();
            let shape = Shape {
                hash,
                count: blocks.list().len() as u32,
                blocks: list
                    .map(|(number, block)| ShapeBlock {
                        start: u64::from(block.start),
                        index: number as u32,
                        hash: of_block.get(&block.start).copied().unwrap_or(0),
                        instructions: block.instructions,
                    })
                    .collect(),
                entries: blocks
                    .list()
                    .iter()
                    .filter(|block| block.entry && block.start > 0)
                    .map(|block| u64::from(block.start))
                    .collect(),
            };
            Some(Named {
                index,
                name,
                blocks,
                shape,
                translated: false,
            })
        })
        .collect()
}

impl Named {
    /// The block that an offset is in: its place in the list.
    fn block(&self, offset: u64) -> Option<usize> {
        if !self.translated {
            return self.blocks.containing(offset);
        }
        let after = self.shape.blocks.partition_point(|b| b.start <= offset);
        after.checked_sub(1)
    }

    /// The block that an edge leads to.
    fn target(&self, offset: u64) -> Option<usize> {
        if self.translated {
            self.block(offset)
        } else {
            self.blocks.starting(offset)
        }
    }

    fn has_edge(&self, from: usize, to: usize) -> bool {
        self.translated || self.blocks.successors(from).contains(&(to as u32))
    }
}

/// What is counted of a function.
#[derive(Default)]
struct Sums {
    exec: u64,
    /// By block: what comes from other functions, or from nowhere, to the start of another block than the first.
    entered: BTreeMap<usize, u64>,
    /// By block: calls (offset, callee's number, entry), edges.
    calls: BTreeMap<usize, BTreeMap<(u64, u32, u32), (u64, u64)>>,
    edges: BTreeMap<(usize, usize), (u64, u64)>,
    events: BTreeMap<usize, u64>,
}

/// A profile by blocks. Records that do not fit the code are left out, and counted.
pub fn from_symbolic(
    binary: &Binary<'_, '_>,
    profile: &SymbolicProfile,
    origin: &str,
    hashes: &(dyn Fn(usize) -> Option<Hashes> + Sync),
) -> (BoltYaml, Left) {
    with_isa!(binary.machine, I => from_symbolic_with::<I>(binary, profile, origin, hashes))
}

fn from_symbolic_with<I: Isa>(
    binary: &Binary<'_, '_>,
    profile: &SymbolicProfile,
    origin: &str,
    hashes: &(dyn Fn(usize) -> Option<Hashes> + Sync),
) -> (BoltYaml, Left) {
    let names: Vec<&[u8]> = profile.names().iter().map(|(_, name)| name).collect();
    let mut used = vec![false; names.len()];
    let mut mark = |location: Location| {
        if location.in_symbol
            && let Some(used) = used.get_mut(location.name.0 as usize)
        {
            *used = true;
        }
    };
    for branch in profile.branches() {
        mark(branch.from);
        mark(branch.to);
    }
    profile.samples().iter().for_each(|sample| mark(sample.at));
    let wanted: Vec<&[u8]> = names
        .iter()
        .zip(&used)
        .map(|(name, used)| if *used { *name } else { b"".as_slice() })
        .collect();
    let found = find::<I>(binary, &wanted, hashes);
    // Numbered from 1 by address; several names of one function are one.
    let mut order: Vec<usize> = found.iter().flatten().map(|named| named.index).collect();
    order.sort_unstable();
    order.dedup();
    let number = |name: NameId| {
        let named = found.get(name.0 as usize)?.as_ref()?;
        order.binary_search(&named.index).ok()
    };
    let mut sums: Vec<Sums> = order.iter().map(|_| Sums::default()).collect();
    let mut lost = 0u64;
    let missing = found
        .iter()
        .zip(&used)
        .filter(|(f, used)| **used && f.is_none());
    let unknown = missing.count();
    for branch in profile.branches() {
        let to = number(branch.to.name).filter(|_| branch.to.in_symbol);
        let from = number(branch.from.name).filter(|_| branch.from.in_symbol);
        let of = |name: NameId| found.get(name.0 as usize).and_then(Option::as_ref);
        let counts = |sum: &mut (u64, u64)| {
            sum.0 = sum.0.saturating_add(branch.count);
            sum.1 = sum.1.saturating_add(branch.mispredictions);
        };
        if let Some(to) = to
            && branch.to.offset == 0
        {
            let exec = &mut sums[to].exec;
            *exec = exec.saturating_add(branch.count);
        }
        // Of a program that was optimised before, returns into a function are such records too: its code was
        // not looked at.
        if let Some(to) = to
            && from != Some(to)
            && let Some(callee) = of(branch.to.name).filter(|callee| callee.translated)
            && branch.to.offset != 0
            && let Some(block) = callee.block(branch.to.offset)
            && callee.shape.blocks[block].start == branch.to.offset
        {
            let sum = sums[to].entered.entry(block).or_default();
            *sum = sum.saturating_add(branch.count);
        }
        let (Some(at), Some(source)) = (from, of(branch.from.name)) else {
            continue;
        };
        let Some(block) = source.block(branch.from.offset) else {
            lost = lost.saturating_add(branch.count);
            continue;
        };
        if from == to && branch.to.offset != 0 {
            match source.target(branch.to.offset) {
                Some(target) if source.has_edge(block, target) => {
                    counts(sums[at].edges.entry((block, target)).or_default());
                }
                _ => lost = lost.saturating_add(branch.count),
            }
            continue;
        }
        let offset = branch.from.offset - source.shape.blocks.get(block).map_or(0, |b| b.start);
        let is_transfer = source.translated
            || u32::try_from(branch.from.offset)
                .is_ok_and(|at| source.blocks.transfers.binary_search(&at).is_ok());
        if !is_transfer {
            lost = lost.saturating_add(branch.count);
            continue;
        }
        let entry = to.and_then(|_| of(branch.to.name)).map_or(0, |callee| {
            let place = callee.shape.entries.binary_search(&branch.to.offset);
            place.map_or(0, |at| at as u32 + 1)
        });
        let callee = to.map_or(0, |to| to as u32 + 1);
        let calls = sums[at].calls.entry(block).or_default();
        counts(calls.entry((offset, callee, entry)).or_default());
    }
    for sample in profile.samples() {
        let at = number(sample.at.name).filter(|_| sample.at.in_symbol);
        let named = found
            .get(sample.at.name.0 as usize)
            .and_then(Option::as_ref);
        match at.zip(named.and_then(|named| named.block(sample.at.offset))) {
            Some((at, block)) => {
                let events = sums[at].events.entry(block).or_default();
                *events = events.saturating_add(sample.count);
            }
            None => lost = lost.saturating_add(sample.count),
        }
    }
    let mut first: FxHashMap<usize, &Named> = FxHashMap::default();
    for named in found.iter().flatten() {
        first.entry(named.index).or_insert(named);
    }
    let functions = order
        .par_iter()
        .zip(&sums)
        .enumerate()
        .filter_map(|(at, (index, sums))| Some(function(first.get(index)?, at as u32 + 1, sums)))
        .collect();
    let collection = profile.collection.unwrap_or(Collection {
        branches: true,
        bolted: false,
    });
    let events: Vec<&[u8]> = profile.events.iter().map(Vec::as_slice).collect();
    let file = binary.path.as_os_str().as_encoded_bytes().to_vec();
    let header = Header {
        binary_name: file,
        build_id: binary.elf.build_id.map_or_else(
            || b"<unknown>".to_vec(),
            |id| {
                id.iter()
                    .flat_map(|b| format!("{b:02x}").into_bytes())
                    .collect()
            },
        ),
        lbr: collection.branches,
        sample: !collection.branches,
        memevent: false,
        origin: origin.as_bytes().to_vec(),
        events: events.join(&b","[..]),
        dfs_order: false,
        hash_function: HashFunction::Xxh3,
    };
    let yaml = BoltYaml {
        header,
        functions,
        extra: Vec::new(),
    };
    let left = Left {
        unknown,
        changed: 0,
        counts: lost,
    };
    (yaml, left)
}

fn function(named: &Named, fid: u32, sums: &Sums) -> Function {
    let shape = &named.shape;
    let count = shape.blocks.len();
    let (mut into, mut out) = (vec![0u64; count], vec![0u64; count]);
    for (&(from, to), &(times, _)) in &sums.edges {
        out[from] = out[from].saturating_add(times);
        into[to] = into[to].saturating_add(times);
    }
    let mut blocks = Vec::new();
    for (at, block) in shape.blocks.iter().enumerate() {
        let calls: Vec<Call> = sums
            .calls
            .get(&at)
            .into_iter()
            .flatten()
            .map(
                |(&(offset, fid, discriminator), &(count, mispredictions))| Call {
                    offset: offset as u32,
                    fid,
                    discriminator,
                    count,
                    mispredictions,
                    ..Call::default()
                },
            )
            .collect();
        let entered = match block.start {
            0 => sums.exec,
            _ => sums.entered.get(&at).copied().unwrap_or(0),
        };
        let events = sums.events.get(&at).copied().unwrap_or(0);
        let exec = into[at].max(out[at]).max(entered);
        if exec == 0 && calls.is_empty() && events == 0 {
            continue;
        }
        let counted = |to: usize| sums.edges.get(&(at, to)).copied().unwrap_or_default();
        let successors: Vec<Successor> = if named.translated {
            let from = sums.edges.range((at, 0)..(at + 1, 0));
            from.map(|(&(_, to), &(count, mispredictions))| Successor {
                bid: shape.blocks[to].index,
                count,
                mispredictions,
            })
            .collect()
        } else {
            let list = named.blocks.successors(at).iter();
            list.map(|&to| {
                let (count, mispredictions) = counted(to as usize);
                Successor {
                    bid: to,
                    count,
                    mispredictions,
                }
            })
            .collect()
        };
        let successors = if out[at] > 0 { successors } else { Vec::new() };
        blocks.push(Block {
            bid: block.index,
            insns: block.instructions,
            hash: block.hash,
            exec: if sums.events.is_empty() { exec } else { 0 },
            events,
            calls,
            successors,
            ..Block::default()
        });
    }
    blocks.sort_by_key(|block| block.bid);
    Function {
        name: named.name.clone(),
        fid,
        hash: shape.hash,
        exec: sums.exec,
        nblocks: shape.count,
        blocks,
        ..Function::default()
    }
}

/// What could not be taken over from a profile by blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Functions that the binary does not have.
    pub unknown: usize,
    /// Functions with another number of blocks: their code has changed.
    pub changed: usize,
    /// Counts of records that do not fit the code.
    pub counts: u64,
}

/// A profile by names from one by blocks. Functions whose number of blocks differs are left out, and counted.
pub fn to_symbolic(
    binary: &Binary<'_, '_>,
    profile: &BoltYaml,
    depth_first: &DepthFirst<'_>,
) -> (SymbolicProfile, Left) {
    with_isa!(binary.machine, I => to_symbolic_with::<I>(binary, profile, depth_first))
}

/// Which block has which depth-first number. The lowest 16 bits of a block's hash are those of its offset,
/// which says it at once, if the profile has hashes and the function is not too large; else it follows from
/// the edges. `None` if neither tells.
fn numbered_depth_first(
    named: &Named,
    function: &Function,
    depth_first: &DepthFirst<'_>,
) -> Option<FxHashMap<u32, usize>> {
    let blocks = named.blocks.list();
    let order = depth_first(named.index).filter(|order| order.len() == blocks.len());
    let numbered = |bid: u32| {
        let start = *order.as_ref()?.get(bid as usize)?;
        named.blocks.starting(u64::from(start))
    };
    let mut places: FxHashMap<u16, Vec<usize>> = FxHashMap::default();
    for (at, block) in blocks.iter().enumerate() {
        places.entry(block.start as u16).or_default().push(at);
    }
    let mut map = FxHashMap::default();
    for block in &function.blocks {
        let at = match (
            block.hash,
            places.get(&(block.hash as u16)).map(Vec::as_slice),
        ) {
            (0, _) => numbered(block.bid)?,
            (_, None) => return None,
            (_, Some([only])) => *only,
            (_, Some(several)) => numbered(block.bid).filter(|at| several.contains(at))?,
        };
        map.insert(block.bid, at);
    }
    Some(map)
}

fn to_symbolic_with<I: Isa>(
    binary: &Binary<'_, '_>,
    profile: &BoltYaml,
    depth_first: &DepthFirst<'_>,
) -> (SymbolicProfile, Left) {
    let names: Vec<&[u8]> = profile
        .functions
        .iter()
        .map(|f| postlink_profile::symbolic::without_alias_mark(&f.name))
        .collect();
    let found = find::<I>(binary, &names, &|_| None);
    let by_number: FxHashMap<u32, usize> = profile
        .functions
        .iter()
        .enumerate()
        .map(|(at, f)| (f.fid, at))
        .collect();
    let mut left = Left::default();
    let mut records = Records::default();
    // One more name, for what is in no function.
    let mut list: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    list.push(b"[unknown]".to_vec());
    let unknown = Location {
        in_symbol: false,
        name: NameId(names.len() as u32),
        offset: 0,
    };
    let mut known_entries = vec![0u64; names.len()];
    for (at, (function, named)) in profile.functions.iter().zip(&found).enumerate() {
        let Some(named) = named else {
            left.unknown += 1;
            continue;
        };
        if named.shape.count != function.nblocks {
            left.changed += 1;
            continue;
        }
        let place = |offset: u64| Location {
            in_symbol: true,
            name: NameId(at as u32),
            offset,
        };
        let order = match profile.header.dfs_order {
            true => match numbered_depth_first(named, function, depth_first) {
                Some(order) => Some(order),
                None => {
                    left.changed += 1;
                    continue;
                }
            },
            false => None,
        };
        let block_of = |bid: u32| {
            let at = match &order {
                Some(order) => *order.get(&bid)?,
                None => bid as usize,
            };
            named.blocks.list().get(at)
        };
        for block in &function.blocks {
            let Some(code) = block_of(block.bid) else {
                continue;
            };
            for edge in &block.successors {
                if edge.count == 0 {
                    continue;
                }
                let Some(to) = block_of(edge.bid) else {
                    continue;
                };
                records.branches.push(Branch {
                    from: place(u64::from(code.last)),
                    to: place(u64::from(to.start)),
                    mispredictions: edge.mispredictions,
                    count: edge.count,
                });
                if to.start == 0 {
                    known_entries[at] = known_entries[at].saturating_add(edge.count);
                }
            }
            for call in &block.calls {
                let callee = by_number.get(&call.fid).copied();
                let to = callee.map_or(unknown, |callee| {
                    let entries = found[callee]
                        .as_ref()
                        .map_or(&[][..], |c| &c.shape.entries[..]);
                    let entry = (call.discriminator as usize).checked_sub(1);
                    let offset = entry.and_then(|e| entries.get(e)).copied().unwrap_or(0);
                    if offset == 0 {
                        known_entries[callee] = known_entries[callee].saturating_add(call.count);
                    }
                    Location {
                        in_symbol: true,
                        name: NameId(callee as u32),
                        offset,
                    }
                });
                records.branches.push(Branch {
                    from: place(u64::from(code.start) + u64::from(call.offset)),
                    to,
                    mispredictions: call.mispredictions,
                    count: call.count,
                });
            }
            if block.events > 0 {
                records
                    .samples
                    .push(postlink_profile::symbolic::BasicSample {
                        at: place(u64::from(code.start)),
                        count: block.events,
                    });
            }
        }
    }
    // Entries that no call explains come from elsewhere.
    for (at, function) in profile.functions.iter().enumerate() {
        let rest = function.exec.saturating_sub(known_entries[at]);
        if rest > 0 && found[at].is_some() {
            records.branches.push(Branch {
                from: unknown,
                to: Location {
                    in_symbol: true,
                    name: NameId(at as u32),
                    offset: 0,
                },
                mispredictions: 0,
                count: rest,
            });
        }
    }
    let events = profile
        .header
        .events
        .split(|&byte| byte == b',')
        .filter(|event| !event.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let collection = Collection {
        branches: !profile.header.sample,
        bolted: false,
    };
    if profile.header.sample {
        records.branches.clear();
    } else {
        records.samples.clear();
    }
    let symbolic = SymbolicProfile::new(Some(collection), events, &list, records);
    (symbolic, left)
}
