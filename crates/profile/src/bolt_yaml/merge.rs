//! Adding up YAML profiles; what it demands and how it differs from LLVM's is said in [`super`].
//!
//! The result depends on the set of inputs alone. Where two inputs say different things that do not matter
//! (the path of the binary, the origin, unknown keys) the smaller value is taken; lists of successors that
//! differ are united in the order of block numbers.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::probes::SOURCE_FUNCTIONS;
use super::{Block, BoltYaml, Call, Extra, Function, Header, Node, Successor};
use crate::Error;
use crate::error::Mismatch;

type Names<'a> = (&'a Path, &'a Path);

/// The sum of profiles. Each comes with the path that errors name. Fails without any input, or if two do not
/// belong together.
pub fn merge<'p>(inputs: Vec<(&'p Path, BoltYaml)>) -> Result<BoltYaml, Error> {
    let count = inputs.len();
    let mut inputs = inputs
        .into_iter()
        .map(|(path, profile)| (path, normal(profile)));
    let (first_path, first) = inputs.next().ok_or(Error::NoInputs { count })?;
    let mut header = first.header;
    let mut document = extra_map(first.extra);
    // The file that each function was first seen in is for errors.
    let mut functions: Functions<'p> = BTreeMap::new();
    // Calls refer to callees by a number of this table while profiles are added.
    let mut table = Table::default();
    // Inline trees refer to the list of their own file: of another list, pseudo probes would be others.
    let probes = document.get(SOURCE_FUNCTIONS).cloned();
    let mut is_one_list = true;
    add_functions(&mut functions, table.take(first.functions), first_path)?;
    for (path, profile) in inputs {
        is_one_list &= profile.extra_of(SOURCE_FUNCTIONS) == probes.as_ref();
        add_header(&mut header, profile.header, (first_path, path))?;
        for (key, node) in profile.extra {
            smaller(document.entry(key), node);
        }
        add_functions(&mut functions, table.take(profile.functions), path)?;
    }
    if !is_one_list {
        document.remove(SOURCE_FUNCTIONS);
    }
    // Numbers in the order of names.
    let numbers: BTreeMap<Vec<u8>, u32> = functions.keys().cloned().zip(1..).collect();
    let by_table: Vec<u32> = table
        .names
        .iter()
        .map(|name| numbers.get(name).copied().unwrap_or(0))
        .collect();
    let functions = functions
        .into_values()
        .map(|(mut function, _)| {
            function.fid = numbers.get(&function.name).copied().unwrap_or(0);
            for block in &mut function.blocks {
                for call in &mut block.calls {
                    call.fid = (call.fid as usize)
                        .checked_sub(1)
                        .and_then(|index| by_table.get(index).copied())
                        .unwrap_or(0);
                }
                block.calls.sort_by_key(call_key);
            }
            function
        })
        .collect();
    Ok(BoltYaml {
        header,
        functions,
        extra: document.into_iter().collect(),
    })
}

/// The sum so far, by name, with the file that each function was first seen in.
type Functions<'p> = BTreeMap<Vec<u8>, (Function, &'p Path)>;

fn add_functions<'p>(
    functions: &mut Functions<'p>,
    list: Vec<Named>,
    path: &'p Path,
) -> Result<(), Error> {
    for Named { function, callees } in list {
        let function = rename(function, &callees);
        match functions.entry(function.name.clone()) {
            Entry::Vacant(entry) => {
                entry.insert((function, path));
            }
            Entry::Occupied(mut entry) => {
                let (sum, before) = entry.get_mut();
                add_function(sum, function, (before, path))?;
            }
        }
    }
    Ok(())
}

/// Numbers for names over all inputs, from 1.
#[derive(Default)]
struct Table {
    names: Vec<Vec<u8>>,
    numbers: BTreeMap<Vec<u8>, u32>,
}

/// A function and the table's numbers for the numbers of its file.
struct Named {
    function: Function,
    callees: std::rc::Rc<BTreeMap<u32, u32>>,
}

impl Table {
    fn take(&mut self, functions: Vec<Function>) -> Vec<Named> {
        let mut callees = BTreeMap::new();
        for function in functions.iter().filter(|function| function.fid != 0) {
            let next = self.names.len() as u32 + 1;
            let number = *self.numbers.entry(function.name.clone()).or_insert(next);
            if number == next {
                self.names.push(function.name.clone());
            }
            callees.insert(function.fid, number);
        }
        let callees = std::rc::Rc::new(callees);
        functions
            .into_iter()
            .map(|function| Named {
                function,
                callees: callees.clone(),
            })
            .collect()
    }
}

fn rename(mut function: Function, callees: &BTreeMap<u32, u32>) -> Function {
    for block in &mut function.blocks {
        for call in &mut block.calls {
            call.fid = callees.get(&call.fid).copied().unwrap_or(0);
        }
        let calls = std::mem::take(&mut block.calls);
        add_calls(&mut block.calls, calls);
    }
    function
}

/// Blocks in order, none twice.
fn normal(mut profile: BoltYaml) -> BoltYaml {
    for function in &mut profile.functions {
        function.blocks.sort_by_key(|block| block.bid);
        function.blocks.dedup_by(|next, kept| {
            let same = next.bid == kept.bid;
            if same {
                add_block(kept, std::mem::take(next));
            }
            same
        });
    }
    profile
}

fn extra_map(extra: Extra) -> BTreeMap<Vec<u8>, Node> {
    extra.into_iter().collect()
}

/// Keeps the smaller of two values.
fn smaller(entry: Entry<'_, Vec<u8>, Node>, node: Node) {
    entry
        .and_modify(|kept| {
            if node < *kept {
                kept.clone_from(&node);
            }
        })
        .or_insert(node);
}

fn add_extra(sum: &mut Extra, add: Extra) {
    if *sum == add {
        return;
    }
    let mut map = extra_map(std::mem::take(sum));
    for (key, node) in add {
        smaller(map.entry(key), node);
    }
    *sum = map.into_iter().collect();
}

fn differ(names: Names<'_>, what: &'static str, a: String, b: String) -> Error {
    Error::Mismatch(Box::new(Mismatch {
        first: names.0.to_owned(),
        second: names.1.to_owned(),
        what,
        a,
        b,
        hint: "",
    }))
}

fn add_header(sum: &mut Header, add: Header, names: Names<'_>) -> Result<(), Error> {
    let show = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let known = |id: &[u8]| !id.is_empty() && id != b"<unknown>";
    if known(&sum.build_id) && known(&add.build_id) && sum.build_id != add.build_id {
        return Err(differ(
            names,
            "the build-id is",
            show(&sum.build_id),
            show(&add.build_id),
        ));
    }
    if sum.hash_function != add.hash_function {
        return Err(differ(
            names,
            "the hash function is",
            format!("{:?}", sum.hash_function),
            format!("{:?}", add.hash_function),
        ));
    }
    if sum.dfs_order != add.dfs_order {
        return Err(differ(
            names,
            "dfs-order is",
            sum.dfs_order.to_string(),
            add.dfs_order.to_string(),
        ));
    }
    if (sum.lbr, sum.sample) != (add.lbr, add.sample) {
        let flags = |header: &Header| format!("lbr {}, sample {}", header.lbr, header.sample);
        return Err(differ(names, "the flags are", flags(sum), flags(&add)));
    }
    sum.memevent |= add.memevent;
    if sum.events != add.events {
        let events: BTreeSet<Vec<u8>> = [&sum.events, &add.events]
            .into_iter()
            .flat_map(|list| list.split(|&byte| byte == b','))
            .filter(|event| !event.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        sum.events = events.into_iter().collect::<Vec<_>>().join(&b","[..]);
    }
    if !known(&sum.build_id) {
        sum.build_id = if known(&add.build_id) {
            add.build_id
        } else {
            sum.build_id.clone().max(add.build_id)
        };
    }
    sum.binary_name = std::mem::take(&mut sum.binary_name).min(add.binary_name);
    sum.origin = std::mem::take(&mut sum.origin).min(add.origin);
    Ok(())
}

fn add_function(sum: &mut Function, add: Function, names: Names<'_>) -> Result<(), Error> {
    let of = |what: String| format!("{what} (function {})", String::from_utf8_lossy(&sum.name));
    if sum.hash != add.hash {
        return Err(differ(
            names,
            "the hash of a function is",
            of(format!("{:#x}", sum.hash)),
            format!("{:#x}", add.hash),
        ));
    }
    if sum.nblocks != add.nblocks {
        return Err(differ(
            names,
            "the number of blocks is",
            of(sum.nblocks.to_string()),
            add.nblocks.to_string(),
        ));
    }
    sum.exec = sum.exec.saturating_add(add.exec);
    sum.external = sum.external.saturating_add(add.external);
    add_extra(&mut sum.extra, add.extra);
    let mut blocks: BTreeMap<u32, Block> = std::mem::take(&mut sum.blocks)
        .into_iter()
        .map(|block| (block.bid, block))
        .collect();
    for block in add.blocks {
        match blocks.entry(block.bid) {
            Entry::Vacant(entry) => {
                entry.insert(block);
            }
            Entry::Occupied(mut entry) => {
                let kept = entry.get_mut();
                let place = |value: String| {
                    format!(
                        "{value} (function {}, block {})",
                        String::from_utf8_lossy(&sum.name),
                        block.bid
                    )
                };
                if kept.hash != block.hash && kept.hash != 0 && block.hash != 0 {
                    return Err(differ(
                        names,
                        "the hash of a block is",
                        place(format!("{:#x}", kept.hash)),
                        format!("{:#x}", block.hash),
                    ));
                }
                if kept.insns != block.insns && kept.insns != 0 && block.insns != 0 {
                    return Err(differ(
                        names,
                        "the number of instructions is",
                        place(kept.insns.to_string()),
                        block.insns.to_string(),
                    ));
                }
                add_block(kept, block);
            }
        }
    }
    sum.blocks = blocks.into_values().collect();
    Ok(())
}

fn add_block(sum: &mut Block, add: Block) {
    sum.hash = sum.hash.max(add.hash);
    sum.insns = sum.insns.max(add.insns);
    sum.exec = sum.exec.saturating_add(add.exec);
    sum.events = sum.events.saturating_add(add.events);
    add_extra(&mut sum.extra, add.extra);
    add_calls(&mut sum.calls, add.calls);
    let same = sum.successors.len() == add.successors.len()
        && sum
            .successors
            .iter()
            .zip(&add.successors)
            .all(|(a, b)| a.bid == b.bid);
    if same {
        sum.successors
            .iter_mut()
            .zip(add.successors)
            .for_each(|(kept, next)| add_successor(kept, next));
        return;
    }
    let mut all: BTreeMap<u32, Successor> = BTreeMap::new();
    for next in std::mem::take(&mut sum.successors)
        .into_iter()
        .chain(add.successors)
    {
        all.entry(next.bid)
            .and_modify(|kept| add_successor(kept, next))
            .or_insert(next);
    }
    sum.successors = all.into_values().collect();
}

fn add_successor(kept: &mut Successor, next: Successor) {
    kept.count = kept.count.saturating_add(next.count);
    kept.mispredictions = kept.mispredictions.saturating_add(next.mispredictions);
}

fn call_key(call: &Call) -> (u32, u32, u32) {
    (call.offset, call.fid, call.discriminator)
}

fn add_calls(sum: &mut Vec<Call>, add: Vec<Call>) {
    sum.extend(add);
    sum.sort_by_key(call_key);
    sum.dedup_by(|next, kept| {
        let same = call_key(next) == call_key(kept);
        if same {
            kept.count = kept.count.saturating_add(next.count);
            kept.mispredictions = kept.mispredictions.saturating_add(next.mispredictions);
            add_extra(&mut kept.extra, std::mem::take(&mut next.extra));
        }
        same
    });
}
