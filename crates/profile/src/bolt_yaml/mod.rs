//! BOLT's YAML profiles: counts of blocks and edges by function and block number, with hashes that tell
//! whether the code is still the same.
//!
//! One document from `---` to `...`: a header, a list of functions, each with a list of blocks.
//!
//! | key | of | |
//! |---|---|---|
//! | `profile-version`, `binary-name`, `binary-build-id`, `profile-flags`, `profile-origin`, `profile-events`, `dfs-order`, `hash-func` | header | [`Header`] |
//! | `name`, `fid`, `hash`, `exec`, `extern`, `nblocks`, `blocks` | function | [`Function`] |
//! | `bid`, `insns`, `hash`, `exec`, `events`, `calls`, `succ` | block | [`Block`] |
//! | `off`, `fid`, `disc`, `cnt`, `mis` | call | [`Call`] |
//! | `bid`, `cnt`, `mis` | successor | [`Successor`] |
//!
//! All other keys are kept as they are and written back in flow form; [`probes`] reads pseudo probes among them.
//!
//! A missing `dfs-order` means true, a missing `hash-func` means `std-hash`. The writer always says both as
//! far as LLVM's does.
//!
//! Merging adds the counts of functions by name. It demands what makes the sum meaningful: the same hash
//! function and block order, the same kind of samples, per function the same hash and number of blocks. Where
//! merge-fdata 19 is different on purpose:
//!
//! * it loses `hash-func` and turns `dfs-order: false` to true, so that its result is read wrongly. Here the
//!   header is kept.
//! * it refuses to add up profiles that number functions differently. Here calls follow the name, and the
//!   result is numbered in the order of names. A callee that its file does not list becomes 0, "unknown".
//! * its order is that of hashing. Here functions are sorted by name, blocks by number.

mod merge;
pub mod probes;
mod write;

use std::path::Path;

pub use merge::merge;

use crate::source::{self, Bad, Source, quote};
use crate::yaml::{Entries, Node, Parser};
use crate::{Error, output};

/// Keys that are not modelled, with their values.
pub type Extra = Vec<(Vec<u8>, Node)>;

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoltYaml {
    /// What it is a profile of, and how to read it.
    pub header: Header,
    /// Functions in the order of the file.
    pub functions: Vec<Function>,
    /// Other keys of the document (`pseudo_probe_desc`).
    pub extra: Extra,
}

/// How hashes were computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashFunction {
    /// libstdc++'s; old profiles.
    #[default]
    StdHash,
    /// XXH3, 64 bits.
    Xxh3,
}

/// The header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Path of the binary.
    pub binary_name: Vec<u8>,
    /// Its build-id in hexadecimal, or `<unknown>`.
    pub build_id: Vec<u8>,
    /// Counts come from branches.
    pub lbr: bool,
    /// Counts come from samples of addresses.
    pub sample: bool,
    /// Memory accesses were sampled.
    pub memevent: bool,
    /// What made the profile.
    pub origin: Vec<u8>,
    /// The sampled events, with commas.
    pub events: Vec<u8>,
    /// Blocks are numbered in depth-first order, else in the order of the code.
    pub dfs_order: bool,
    /// How hashes were computed.
    pub hash_function: HashFunction,
}

impl Default for Header {
    /// What a file says that says nothing.
    fn default() -> Header {
        Header {
            binary_name: Vec::new(),
            build_id: Vec::new(),
            lbr: false,
            sample: false,
            memevent: false,
            origin: Vec::new(),
            events: Vec::new(),
            dfs_order: true,
            hash_function: HashFunction::StdHash,
        }
    }
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: Vec<u8>,
    /// Its number in this file, which calls refer to.
    pub fid: u32,
    /// Hash of its code.
    pub hash: u64,
    /// Entries.
    pub exec: u64,
    /// Entries from outside of the binary.
    pub external: u64,
    /// Blocks of its flow graph.
    pub nblocks: u32,
    /// Blocks; of LLVM's tools those with counts, of ours all.
    pub blocks: Vec<Block>,
    /// Other keys.
    pub extra: Extra,
}

/// A block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its number.
    pub bid: u32,
    /// Instructions.
    pub insns: u32,
    /// Hash of its code; 0 if not known.
    pub hash: u64,
    /// Executions; 0 if not known.
    pub exec: u64,
    /// Samples.
    pub events: u64,
    /// Calls in it.
    pub calls: Vec<Call>,
    /// Edges to other blocks, in the order of the flow graph.
    pub successors: Vec<Successor>,
    /// Other keys.
    pub extra: Extra,
}

/// A call of one callee.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Bytes from the start of the block.
    pub offset: u32,
    /// Number of the callee; 0 if not known.
    pub fid: u32,
    /// Which entry of the callee.
    pub discriminator: u32,
    /// Times.
    pub count: u64,
    /// Of these, mispredicted.
    pub mispredictions: u64,
    /// Other keys.
    pub extra: Extra,
}

/// An edge of the flow graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Successor {
    /// Where it leads.
    pub bid: u32,
    /// Times.
    pub count: u64,
    /// Of these, mispredicted.
    pub mispredictions: u64,
}

impl BoltYaml {
    /// Multiplies all counts, saturating.
    pub fn scale(&mut self, weight: u64) {
        let scale = |count: &mut u64| *count = count.saturating_mul(weight);
        for function in &mut self.functions {
            scale(&mut function.exec);
            scale(&mut function.external);
            for block in &mut function.blocks {
                scale(&mut block.exec);
                scale(&mut block.events);
                for call in &mut block.calls {
                    scale(&mut call.count);
                    scale(&mut call.mispredictions);
                }
                for edge in &mut block.successors {
                    scale(&mut edge.count);
                    scale(&mut edge.mispredictions);
                }
            }
        }
    }
}

/// Reads a file.
pub fn read(path: &Path) -> Result<BoltYaml, Error> {
    let source = Source::open(path)?;
    parse(&source).map_err(|bad| bad.locate(path, &source))
}

/// Reads a text; `name` is what errors call it.
pub fn read_bytes(name: &Path, text: &[u8]) -> Result<BoltYaml, Error> {
    parse(text).map_err(|bad| bad.locate(name, text))
}

/// Writes a file, by way of a temporary beside it.
pub fn write(path: &Path, profile: &BoltYaml) -> Result<(), Error> {
    output::write_atomically(path, |out| {
        std::io::Write::write_all(out, &to_bytes(profile))
    })
}

/// The text of a profile.
pub fn to_bytes(profile: &BoltYaml) -> Vec<u8> {
    write::document(profile)
}

fn parse(text: &[u8]) -> Result<BoltYaml, Bad> {
    // The functions are most of the text: they are cut apart and read in parallel.
    let mut before = (0, text.len());
    let mut list = (text.len(), text.len());
    let mut after = text.len();
    let mut indent = None;
    for (at, line) in source::lines(text) {
        let trimmed = line.trim_ascii_start();
        let column = line.len() - trimmed.len();
        if trimmed.is_empty() || trimmed.starts_with(b"#") {
            continue;
        }
        let document_end = line.trim_ascii_end() == b"...";
        if line.starts_with(b"---") && at == before.0 {
            before.0 = at + line.len() + 1;
        } else if list.0 == text.len() {
            if document_end {
                before.1 = at;
                break;
            }
            if line.trim_ascii_end() == b"functions:" {
                before.1 = at;
                list.0 = (at + line.len() + 1).min(text.len());
            }
        } else {
            let dash = trimmed.starts_with(b"- ");
            let indent = *indent.get_or_insert(column);
            if document_end || column < indent || (column == indent && !dash) {
                list.1 = at;
                if !document_end {
                    after = at;
                }
                break;
            }
        }
    }
    let mut profile = BoltYaml::default();
    let mut header = false;
    let end = text.len();
    let after_end = source::lines(&text[after..])
        .find(|(_, line)| line.trim_ascii_end() == b"...")
        .map_or(end, |(at, _)| after + at);
    for (start, end) in [before, (after, after_end)] {
        for (key, value, at) in Parser::new(text, start, end).mapping(0)? {
            match (&key[..], value) {
                (b"header", Node::Map(entries)) => {
                    header = true;
                    profile.header = parse_header(entries, at)?;
                }
                (b"functions", Node::List(items)) if items.is_empty() => {}
                (b"functions", _) => {
                    return Err(Bad::new(at, "\"functions\" must be a list in block form"));
                }
                (_, value) => profile.extra.push((key, value)),
            }
        }
    }
    if !header {
        return Err(Bad::new(0, "a BOLT profile without \"header\""));
    }
    let indent = indent.unwrap_or(0);
    let starts = item_starts(text, list.0, list.1, indent);
    let pieces = postlink_parallel::map_owned(starts, |(start, end)| {
        let mut functions = Vec::new();
        Parser::new(text, start, end).items(indent, |entries, at| {
            functions.push(parse_function(entries, at)?);
            Ok(())
        })?;
        Ok(functions)
    });
    let pieces = pieces
        .into_iter()
        .collect::<Result<Vec<Vec<Function>>, Bad>>()?;
    profile.functions = pieces.into_iter().flatten().collect();
    Ok(profile)
}

/// Cuts the list of functions into ranges of whole functions.
fn item_starts(text: &[u8], start: usize, end: usize, indent: usize) -> Vec<(usize, usize)> {
    let pieces = source::split_lines(&text[start..end], source::piece_count());
    let mut out = Vec::new();
    let mut from = start;
    for (at, piece) in pieces {
        let after = start + at + piece.len();
        if after < from {
            continue;
        }
        let next = source::lines(&text[after..end])
            .find(|(_, line)| {
                line.len() > indent
                    && line[..indent].iter().all(|&byte| byte == b' ')
                    && line[indent..].starts_with(b"- ")
            })
            .map_or(end, |(more, _)| after + more);
        if next > from {
            out.push((from, next));
            from = next;
        }
    }
    out
}

/// A number as LLVM writes it: decimal, or hexadecimal after `0x`.
fn number(node: &Node) -> Option<u64> {
    let Node::Scalar(text) = node else {
        return None;
    };
    match text.strip_prefix(b"0x") {
        Some(digits) => source::hex(digits),
        None => source::decimal(text),
    }
}

/// Reads the keys of one mapping; what is wrong is said with the key.
struct Fields {
    at: usize,
    of: &'static str,
}

impl Fields {
    fn u64(&self, key: &[u8], node: &Node) -> Result<u64, Bad> {
        number(node).ok_or_else(|| self.wrong(key, node, "a number below 2^64"))
    }

    fn u32(&self, key: &[u8], node: &Node) -> Result<u32, Bad> {
        let small = number(node).and_then(|value| u32::try_from(value).ok());
        small.ok_or_else(|| self.wrong(key, node, "a number below 2^32"))
    }

    fn wrong(&self, key: &[u8], node: &Node, must: &str) -> Bad {
        let found = match node {
            Node::Scalar(text) => quote(text),
            Node::List(_) => "a list".to_owned(),
            Node::Map(_) => "a mapping".to_owned(),
        };
        Bad::new(
            self.at,
            format!(
                "\"{}\" of a {} must be {must}, is {found}",
                key.escape_ascii(),
                self.of
            ),
        )
    }

    /// All of `required` must have been seen.
    fn complete(&self, seen: &[(&str, bool)]) -> Result<(), Bad> {
        match seen.iter().find(|key| !key.1) {
            None => Ok(()),
            Some((key, _)) => Err(Bad::new(
                self.at,
                format!("a {} without \"{key}\"", self.of),
            )),
        }
    }
}

fn parse_header(entries: Extra, at: usize) -> Result<Header, Bad> {
    let fields = Fields { at, of: "header" };
    let mut header = Header::default();
    let (mut version, mut name, mut flags) = (false, false, false);
    for (key, node) in entries {
        match (&key[..], node) {
            (b"profile-version", node) => {
                version = true;
                let found = fields.u64(&key, &node)?;
                if found != 1 {
                    return Err(Bad::new(
                        at,
                        format!("BOLT profile of version {found}, only 1 can be read"),
                    ));
                }
            }
            (b"profile-flags", Node::List(items)) => {
                flags = true;
                for item in items {
                    match &item {
                        Node::Scalar(text) if text == b"lbr" => header.lbr = true,
                        Node::Scalar(text) if text == b"sample" => header.sample = true,
                        Node::Scalar(text) if text == b"memevent" => header.memevent = true,
                        _ => {
                            return Err(fields.wrong(
                                &key,
                                &item,
                                "a list of lbr, sample, memevent",
                            ));
                        }
                    }
                }
            }
            (b"binary-name", Node::Scalar(text)) => {
                name = true;
                header.binary_name = text;
            }
            (b"binary-build-id", Node::Scalar(text)) => header.build_id = text,
            (b"profile-origin", Node::Scalar(text)) => header.origin = text,
            (b"profile-events", Node::Scalar(text)) => header.events = text,
            (b"dfs-order", Node::Scalar(text)) if text == b"true" => header.dfs_order = true,
            (b"dfs-order", Node::Scalar(text)) if text == b"false" => header.dfs_order = false,
            (b"hash-func", Node::Scalar(text)) if text == b"xxh3" => {
                header.hash_function = HashFunction::Xxh3
            }
            (b"hash-func", Node::Scalar(text)) if text == b"std-hash" => {
                header.hash_function = HashFunction::StdHash
            }
            (b"dfs-order", node) => return Err(fields.wrong(&key, &node, "true or false")),
            (b"hash-func", node) => return Err(fields.wrong(&key, &node, "std-hash or xxh3")),
            (_, node) => {
                return Err(fields.wrong(
                    &key,
                    &node,
                    "a known key with a value of the right kind",
                ));
            }
        }
    }
    fields.complete(&[
        ("profile-version", version),
        ("binary-name", name),
        ("profile-flags", flags),
    ])?;
    Ok(header)
}

fn parse_function(entries: Entries, at: usize) -> Result<Function, Bad> {
    let fields = Fields { at, of: "function" };
    let mut function = Function::default();
    let mut seen = [
        ("name", false),
        ("fid", false),
        ("hash", false),
        ("exec", false),
        ("nblocks", false),
    ];
    for (key, node, _) in entries {
        if let Some(seen) = seen.iter_mut().find(|seen| seen.0.as_bytes() == key) {
            seen.1 = true;
        }
        match (&key[..], node) {
            (b"name", Node::Scalar(text)) => function.name = text,
            (b"name", node) => return Err(fields.wrong(&key, &node, "a name")),
            (b"fid", node) => function.fid = fields.u32(&key, &node)?,
            (b"hash", node) => function.hash = fields.u64(&key, &node)?,
            (b"exec", node) => function.exec = fields.u64(&key, &node)?,
            (b"extern", node) => function.external = fields.u64(&key, &node)?,
            (b"nblocks", node) => function.nblocks = fields.u32(&key, &node)?,
            (b"blocks", Node::List(items)) => {
                function.blocks = items
                    .into_iter()
                    .map(|item| parse_block(item, at))
                    .collect::<Result<_, _>>()?;
            }
            (b"blocks", node) => return Err(fields.wrong(&key, &node, "a list")),
            (_, node) => function.extra.push((key, node)),
        }
    }
    fields.complete(&seen)?;
    Ok(function)
}

fn entries_of(node: Node, fields: &Fields) -> Result<Extra, Bad> {
    match node {
        Node::Map(entries) => Ok(entries),
        other => Err(fields.wrong(b"item", &other, "a mapping")),
    }
}

fn parse_block(node: Node, at: usize) -> Result<Block, Bad> {
    let fields = Fields { at, of: "block" };
    let mut block = Block::default();
    let (mut bid, mut insns) = (false, false);
    for (key, node) in entries_of(node, &fields)? {
        match (&key[..], node) {
            (b"bid", node) => {
                bid = true;
                block.bid = fields.u32(&key, &node)?;
            }
            (b"insns", node) => {
                insns = true;
                block.insns = fields.u32(&key, &node)?;
            }
            (b"hash", node) => block.hash = fields.u64(&key, &node)?,
            (b"exec", node) => block.exec = fields.u64(&key, &node)?,
            (b"events", node) => block.events = fields.u64(&key, &node)?,
            (b"calls", Node::List(items)) => {
                block.calls = items
                    .into_iter()
                    .map(|item| parse_call(item, at))
                    .collect::<Result<_, _>>()?;
            }
            (b"succ", Node::List(items)) => {
                block.successors = items
                    .into_iter()
                    .map(|item| parse_successor(item, at))
                    .collect::<Result<_, _>>()?;
            }
            (b"calls" | b"succ", node) => return Err(fields.wrong(&key, &node, "a list")),
            (_, node) => block.extra.push((key, node)),
        }
    }
    fields.complete(&[("bid", bid), ("insns", insns)])?;
    Ok(block)
}

fn parse_call(node: Node, at: usize) -> Result<Call, Bad> {
    let fields = Fields { at, of: "call" };
    let mut call = Call::default();
    let (mut offset, mut fid, mut count) = (false, false, false);
    for (key, node) in entries_of(node, &fields)? {
        match &key[..] {
            b"off" => {
                offset = true;
                call.offset = fields.u32(&key, &node)?;
            }
            b"fid" => {
                fid = true;
                call.fid = fields.u32(&key, &node)?;
            }
            b"disc" => call.discriminator = fields.u32(&key, &node)?,
            b"cnt" => {
                count = true;
                call.count = fields.u64(&key, &node)?;
            }
            b"mis" => call.mispredictions = fields.u64(&key, &node)?,
            _ => call.extra.push((key, node)),
        }
    }
    fields.complete(&[("off", offset), ("fid", fid), ("cnt", count)])?;
    Ok(call)
}

fn parse_successor(node: Node, at: usize) -> Result<Successor, Bad> {
    let fields = Fields {
        at,
        of: "successor",
    };
    let mut successor = Successor::default();
    let (mut bid, mut count) = (false, false);
    for (key, node) in entries_of(node, &fields)? {
        match &key[..] {
            b"bid" => {
                bid = true;
                successor.bid = fields.u32(&key, &node)?;
            }
            b"cnt" => {
                count = true;
                successor.count = fields.u64(&key, &node)?;
            }
            b"mis" => successor.mispredictions = fields.u64(&key, &node)?,
            _ => return Err(fields.wrong(&key, &node, "bid, cnt or mis")),
        }
    }
    fields.complete(&[("bid", bid), ("cnt", count)])?;
    Ok(successor)
}

#[cfg(test)]
mod tests;
