//! Between profiles by names and profiles by blocks.
//!
//! A record within a function is an edge of its block, one that leaves it (or enters it again at its start) a
//! call. The count of a block is the largest of what enters it, what leaves it, and, of the first, the
//! function's entries. Numbers of blocks are in the order of the code.
//!
//! Of a binary that was optimised before, blocks are those of the translation table; it does not know the
//! edges of the input, so every edge is believed there.
//!
//! Hashes are not made here: the caller that has the code in another form gives them ([`Hashes`]).

use std::collections::BTreeMap;

use postlink_isa::{Isa, with_isa};
use postlink_profile::bolt_yaml::{
    Block, BoltYaml, Call, Function, HashFunction, Header, Successor,
};
use postlink_profile::symbolic::{
    BasicSample, Branch, Collection, Location, NameId, Records, SymbolicProfile,
};
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
    let named: Vec<_> = indexes.iter().zip(names).collect();
    postlink_parallel::map(&named, |&(index, name)| {
        let index = (*index)?;
        let start = binary.functions.list().get(index)?.start;
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
    let wanted = names_in_records(profile);
    let names: Vec<&[u8]> = wanted.iter().map(|name| name.unwrap_or_default()).collect();
    let found = find::<I>(binary, &names, hashes);
    let mut counting = Counting::new(&found);
    for branch in profile.branches() {
        counting.branch(branch);
    }
    for sample in profile.samples() {
        counting.sample(sample);
    }
    let Counting {
        order, sums, lost, ..
    } = counting;
    let mut first: FxHashMap<usize, &Named> = FxHashMap::default();
    for named in found.iter().flatten() {
        first.entry(named.index).or_insert(named);
    }
    let listed: Vec<_> = (1u32..).zip(order.iter().zip(&sums)).collect();
    let functions = postlink_parallel::filter_map(&listed, |&(number, (index, sums))| {
        Some(function(first.get(index)?, number, sums))
    });
    let yaml = BoltYaml {
        header: header(binary, profile, origin),
        functions,
        extra: Vec::new(),
    };
    let missing = wanted.iter().zip(&found);
    let left = Left {
        unknown: missing.filter(|(w, f)| w.is_some() && f.is_none()).count(),
        changed: 0,
        counts: lost,
    };
    (yaml, left)
}

/// All names of a profile by their numbers; `None` for those of no function in a record.
fn names_in_records(profile: &SymbolicProfile) -> Vec<Option<&[u8]>> {
    let mut used = vec![None; profile.names().iter().count()];
    let names: Vec<&[u8]> = profile.names().iter().map(|(_, name)| name).collect();
    let ends = profile.branches().iter().flat_map(|b| [b.from, b.to]);
    let samples = profile.samples().iter().map(|sample| sample.at);
    for location in ends.chain(samples).filter(|location| location.in_symbol) {
        let number = location.name.0 as usize;
        if let (Some(used), Some(name)) = (used.get_mut(number), names.get(number)) {
            *used = Some(*name);
        }
    }
    used
}

/// Records of a profile while they are added up.
struct Counting<'a> {
    /// By number of the name.
    found: &'a [Option<Named>],
    /// Functions numbered by address; several names of one function are one.
    order: Vec<usize>,
    /// By place in `order`.
    sums: Vec<Sums>,
    /// Counts of records that do not fit the code.
    lost: u64,
}

impl<'a> Counting<'a> {
    fn new(found: &'a [Option<Named>]) -> Counting<'a> {
        let mut order: Vec<usize> = found.iter().flatten().map(|named| named.index).collect();
        order.sort_unstable();
        order.dedup();
        Counting {
            found,
            sums: order.iter().map(|_| Sums::default()).collect(),
            order,
            lost: 0,
        }
    }

    fn named(&self, name: NameId) -> Option<&'a Named> {
        self.found.get(name.0 as usize)?.as_ref()
    }

    /// The function that a location is in, by its place in the order.
    fn at(&self, location: Location) -> Option<usize> {
        let named = self.named(location.name).filter(|_| location.in_symbol)?;
        self.order.binary_search(&named.index).ok()
    }

    /// Adds a branch: an edge of its block, or a call.
    fn branch(&mut self, branch: &Branch) {
        let (from, to) = (self.at(branch.from), self.at(branch.to));
        if let Some(to) = to {
            self.entered(branch, from, to);
        }
        let (Some(at), Some(source)) = (from, self.named(branch.from.name)) else {
            return;
        };
        let counted = match source.block(branch.from.offset) {
            None => None,
            Some(block) if from == to && branch.to.offset != 0 => {
                let target = source.target(branch.to.offset);
                let target = target.filter(|&target| source.has_edge(block, target));
                let sums = self.sums.get_mut(at);
                let edge = target.zip(sums);
                edge.map(|(target, sums)| sums.edges.entry((block, target)).or_default())
            }
            Some(block) => self.call(branch, block, source, at, to),
        };
        match counted {
            Some(sum) => {
                sum.0 = sum.0.saturating_add(branch.count);
                sum.1 = sum.1.saturating_add(branch.mispredictions);
            }
            None => self.lost = self.lost.saturating_add(branch.count),
        }
    }

    /// Adds a branch to what enters the function at `to`.
    fn entered(&mut self, branch: &Branch, from: Option<usize>, to: usize) {
        if branch.to.offset == 0 {
            if let Some(sums) = self.sums.get_mut(to) {
                sums.exec = sums.exec.saturating_add(branch.count);
            }
            return;
        }
        // Of a program that was optimised before, returns into a function are such records too: its code was
        // not looked at.
        if from != Some(to)
            && let Some(callee) = self.named(branch.to.name).filter(|f| f.translated)
            && let Some(block) = callee.block(branch.to.offset)
            && callee.shape.blocks.get(block).map(|b| b.start) == Some(branch.to.offset)
            && let Some(sums) = self.sums.get_mut(to)
        {
            let sum = sums.entered.entry(block).or_default();
            *sum = sum.saturating_add(branch.count);
        }
    }

    /// The count of a call in a block. `None` if no instruction of the function transfers control there.
    fn call(
        &mut self,
        branch: &Branch,
        block: usize,
        source: &Named,
        at: usize,
        to: Option<usize>,
    ) -> Option<&mut (u64, u64)> {
        let is_transfer = |at| source.blocks.transfers.binary_search(&at).is_ok();
        if !source.translated && !u32::try_from(branch.from.offset).is_ok_and(is_transfer) {
            return None;
        }
        let offset = branch.from.offset - source.shape.blocks.get(block).map_or(0, |b| b.start);
        let callee = to.and_then(|_| self.named(branch.to.name));
        let entry = callee.map_or(0, |callee| {
            let place = callee.shape.entries.binary_search(&branch.to.offset);
            place.map_or(0, |at| at as u32 + 1)
        });
        let callee = to.map_or(0, |to| to as u32 + 1);
        let calls = self.sums.get_mut(at)?.calls.entry(block).or_default();
        Some(calls.entry((offset, callee, entry)).or_default())
    }

    fn sample(&mut self, sample: &BasicSample) {
        let named = self.named(sample.at.name);
        let block = named.and_then(|named| named.block(sample.at.offset));
        let at = self.at(sample.at);
        match at.and_then(|at| self.sums.get_mut(at)).zip(block) {
            Some((sums, block)) => {
                let events = sums.events.entry(block).or_default();
                *events = events.saturating_add(sample.count);
            }
            None => self.lost = self.lost.saturating_add(sample.count),
        }
    }
}

fn header(binary: &Binary<'_, '_>, profile: &SymbolicProfile, origin: &str) -> Header {
    let collection = profile.collection.unwrap_or(Collection {
        branches: true,
        bolted: false,
    });
    let events: Vec<&[u8]> = profile.events.iter().map(Vec::as_slice).collect();
    let build_id = binary
        .elf
        .build_id
        .map_or_else(|| "<unknown>".to_owned(), postlink_elf::hex);
    Header {
        binary_name: binary.path.as_os_str().as_encoded_bytes().to_vec(),
        build_id: build_id.into_bytes(),
        lbr: collection.branches,
        sample: !collection.branches,
        memevent: false,
        origin: origin.as_bytes().to_vec(),
        events: events.join(&b","[..]),
        dfs_order: false,
        hash_function: HashFunction::Xxh3,
    }
}

fn function(named: &Named, fid: u32, sums: &Sums) -> Function {
    let shape = &named.shape;
    let (mut into, mut out) = (BTreeMap::<usize, u64>::new(), BTreeMap::<usize, u64>::new());
    for (&(from, to), &(times, _)) in &sums.edges {
        for sum in [out.entry(from).or_default(), into.entry(to).or_default()] {
            *sum = sum.saturating_add(times);
        }
    }
    let mut blocks = Vec::new();
    for (at, block) in shape.blocks.iter().enumerate() {
        let [into, out] = [&into, &out].map(|sums| sums.get(&at).copied().unwrap_or(0));
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
        let exec = into.max(out).max(entered);
        if exec == 0 && calls.is_empty() && events == 0 {
            continue;
        }
        let counted = |to: usize| sums.edges.get(&(at, to)).copied().unwrap_or_default();
        let successors: Vec<Successor> = if named.translated {
            let from = sums.edges.range((at, 0)..(at + 1, 0));
            from.filter_map(|(&(_, to), &(count, mispredictions))| {
                Some(Successor {
                    bid: shape.blocks.get(to)?.index,
                    count,
                    mispredictions,
                })
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
        let successors = if out > 0 { successors } else { Vec::new() };
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
    let mut naming = Naming::new(profile, &found);
    let mut left = Left::default();
    for (at, (function, named)) in profile.functions.iter().zip(&found).enumerate() {
        let Some(named) = named else {
            left.unknown += 1;
            continue;
        };
        match blocks_by_number(named, function, profile.header.dfs_order, depth_first) {
            Some(blocks) => naming.function(at, function, &blocks),
            None => left.changed += 1,
        }
    }
    naming.other_entries();
    let mut records = naming.records;
    let sampled = profile.header.sample;
    if sampled {
        records.branches.clear();
    } else {
        records.samples.clear();
    }
    let events = profile.header.events.split(|&byte| byte == b',');
    let events = events.filter(|event| !event.is_empty());
    let collection = Collection {
        branches: !sampled,
        bolted: false,
    };
    // One more name, for what is in no function.
    let mut list: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    list.push(b"[unknown]".to_vec());
    let events = events.map(<[u8]>::to_vec).collect();
    let symbolic = SymbolicProfile::new(Some(collection), events, &list, records);
    (symbolic, left)
}

/// The blocks of a function by their numbers in a profile. `None` if the profile is of another version of it.
fn blocks_by_number<'n>(
    named: &'n Named,
    function: &Function,
    depth_first_order: bool,
    depth_first: &DepthFirst<'_>,
) -> Option<impl Fn(u32) -> Option<&'n blocks::Block> + use<'n>> {
    if named.shape.count != function.nblocks {
        return None;
    }
    let order = if depth_first_order {
        Some(numbered_depth_first(named, function, depth_first)?)
    } else {
        None
    };
    Some(move |bid: u32| {
        let at = match &order {
            Some(order) => *order.get(&bid)?,
            None => bid as usize,
        };
        named.blocks.list().get(at)
    })
}

/// Records by names while they are made of functions by blocks.
struct Naming<'a> {
    profile: &'a BoltYaml,
    /// By place of the function in the profile, which is the number of its name.
    found: &'a [Option<Named>],
    /// Places of functions by their numbers in the profile.
    by_number: FxHashMap<u32, usize>,
    records: Records,
    /// Entries of each function that records tell.
    known_entries: Vec<u64>,
}

impl<'a> Naming<'a> {
    fn new(profile: &'a BoltYaml, found: &'a [Option<Named>]) -> Naming<'a> {
        let numbered = profile.functions.iter().enumerate();
        Naming {
            profile,
            found,
            by_number: numbered.map(|(at, f)| (f.fid, at)).collect(),
            records: Records::default(),
            known_entries: vec![0; found.len()],
        }
    }

    fn place(at: usize, offset: u64) -> Location {
        Location {
            in_symbol: true,
            name: NameId(at as u32),
            offset,
        }
    }

    /// A place in no function: the name after all others.
    fn nowhere(&self) -> Location {
        Location {
            in_symbol: false,
            name: NameId(self.found.len() as u32),
            offset: 0,
        }
    }

    /// Adds the records of a function; `block_of` gives its blocks by number.
    fn function<'n>(
        &mut self,
        at: usize,
        function: &Function,
        block_of: &impl Fn(u32) -> Option<&'n blocks::Block>,
    ) {
        for block in &function.blocks {
            let Some(code) = block_of(block.bid) else {
                continue;
            };
            for edge in block.successors.iter().filter(|edge| edge.count > 0) {
                if let Some(to) = block_of(edge.bid) {
                    self.edge(at, code, to, edge);
                }
            }
            for call in &block.calls {
                self.call(at, code, call);
            }
            if block.events > 0 {
                self.records.samples.push(BasicSample {
                    at: Self::place(at, u64::from(code.start)),
                    count: block.events,
                });
            }
        }
    }

    fn edge(&mut self, at: usize, from: &blocks::Block, to: &blocks::Block, edge: &Successor) {
        self.records.branches.push(Branch {
            from: Self::place(at, u64::from(from.last)),
            to: Self::place(at, u64::from(to.start)),
            mispredictions: edge.mispredictions,
            count: edge.count,
        });
        if to.start == 0 {
            self.is_known_entry(at, edge.count);
        }
    }

    fn call(&mut self, at: usize, from: &blocks::Block, call: &Call) {
        let to = match self.by_number.get(&call.fid) {
            None => self.nowhere(),
            Some(&callee) => {
                let named = self.found.get(callee).and_then(Option::as_ref);
                let entries = named.map_or(&[][..], |c| &c.shape.entries[..]);
                let entry = (call.discriminator as usize).checked_sub(1);
                let offset = entry.and_then(|e| entries.get(e)).copied().unwrap_or(0);
                if offset == 0 {
                    self.is_known_entry(callee, call.count);
                }
                Self::place(callee, offset)
            }
        };
        self.records.branches.push(Branch {
            from: Self::place(at, u64::from(from.start) + u64::from(call.offset)),
            to,
            mispredictions: call.mispredictions,
            count: call.count,
        });
    }

    /// A record explains so many entries of a function.
    fn is_known_entry(&mut self, function: usize, count: u64) {
        if let Some(known) = self.known_entries.get_mut(function) {
            *known = known.saturating_add(count);
        }
    }

    /// Adds the entries that no record explains: they come from elsewhere.
    fn other_entries(&mut self) {
        let known = self.known_entries.iter().zip(self.found);
        for (at, (function, (known, found))) in self.profile.functions.iter().zip(known).enumerate()
        {
            let rest = function.exec.saturating_sub(*known);
            if rest > 0 && found.is_some() {
                self.records.branches.push(Branch {
                    from: self.nowhere(),
                    to: Self::place(at, 0),
                    mispredictions: 0,
                    count: rest,
                });
            }
        }
    }
}
