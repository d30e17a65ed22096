//! Graphs of single functions, with their instructions.

use postlink_elf::elf::Elf;
use postlink_isa::aarch64;
use postlink_isa::x86_64::text::{Memo, Syntax};
use postlink_lines::Lines;
use postlink_rewrite::facts::{Block, Call, Ending, Function, Ran, Site};
use rustc_hash::FxHashMap;

use crate::model::Graph;
use crate::placed::Place;

/// Text of blocks that never ran is left out of functions with more code than this.
const COLD_TEXT: u64 = 24 << 10;

/// Writes instructions.
pub enum Speller {
    /// Of x86-64.
    X86_64(Box<Memo>),
    /// Of AArch64.
    AArch64,
}

impl Speller {
    /// For a machine.
    pub fn new(machine: u16) -> Speller {
        match machine {
            postlink_elf::raw::EM_AARCH64 => Speller::AArch64,
            _ => Speller::X86_64(Box::new(Memo::new(Syntax::Att))),
        }
    }

    /// The instructions of `bytes`, one a line, with their lengths.
    fn text(&mut self, bytes: &[u8], at: u64, lengths: &mut Vec<u8>) -> String {
        let mut out = Vec::new();
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            if done > 0 {
                out.push(b'\n');
            }
            let from = out.len();
            let address = at.wrapping_add(done as u64);
            let (len, unknown) = match self {
                Speller::X86_64(memo) => (memo.print(rest, address, &mut out), 1),
                Speller::AArch64 => (aarch64::text::print(rest, address, &mut out), 4),
            };
            let len = len.unwrap_or_else(|| {
                out.truncate(from);
                out.extend_from_slice(b"(unknown)");
                unknown
            });
            // A tab is in front of every instruction.
            while out.get(from) == Some(&b'\t') {
                out.remove(from);
            }
            lengths.push(len as u8);
            done += len.max(1);
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// What a graph is made of.
pub struct Subject<'a> {
    /// Its number among the functions that ran.
    pub number: u32,
    /// Its number among all functions.
    pub index: usize,
    /// The function.
    pub function: &'a Function,
    /// Its counts.
    pub ran: &'a Ran,
    /// Where its blocks went, if it moved.
    pub places: Option<&'a [Option<Place>]>,
    /// Calls that it makes.
    pub calls: &'a [Call],
    /// Its indirect calls.
    pub sites: &'a [Site],
}

fn ending(ending: Ending) -> u8 {
    match ending {
        Ending::Falls => 0,
        Ending::Jumps => 1,
        Ending::Branches => 2,
        Ending::Switches => 3,
        Ending::Leaves => 4,
        Ending::Returns => 5,
        Ending::Stops => 6,
    }
}

/// A function's graph. `numbers` has the numbers of functions among those that ran.
pub fn graph(
    elf: &Elf<'_>,
    subject: &Subject<'_>,
    lines: Option<&Lines>,
    numbers: &FxHashMap<u32, u32>,
    speller: &mut Speller,
) -> Graph {
    let entry = subject.function.start();
    let mut graph = Graph {
        function: subject.number,
        ..Graph::default()
    };
    let with_cold = subject.function.size() <= COLD_TEXT;
    let mut before = entry;
    let mut number = 0;
    for (b, block) in subject.ran.blocks.iter().enumerate() {
        graph.start.push(block.start.wrapping_sub(before) as i64);
        before = block.start;
        graph.size.push(block.end - block.start);
        graph.count.push(block.count);
        graph
            .flags
            .push(u8::from(block.entry) | u8::from(block.landing_pad) << 1);
        graph.ending.push(ending(block.ending));
        graph.edges.push(block.edges.len() as u32);
        for edge in &block.edges {
            if edge.estimated {
                graph.estimated.push(graph.to.len() as u32);
            }
            graph.to.push(edge.to);
            graph.taken.push(edge.count);
        }
        if let Some(places) = subject.places {
            let place = places.get(b).copied().flatten();
            let shift = place.map(|(at, _)| at.wrapping_sub(block.start) as i64);
            graph.moved.push(shift);
            graph
                .new_size
                .push(place.map_or(0, |(at, end)| end.saturating_sub(at)));
        }
        if block.count == 0 && !with_cold {
            graph.text.push(String::new());
            continue;
        }
        text(
            elf,
            subject.index,
            block,
            lines,
            speller,
            &mut number,
            &mut graph,
        );
    }
    for call in subject.calls {
        if let Some(callee) = numbers.get(&call.callee) {
            let at = call.at.wrapping_sub(entry) as i64;
            graph
                .calls
                .push((at, *callee, call.count, call.indirect.into()));
        }
    }
    for site in subject
        .sites
        .iter()
        .filter(|s| s.external > 0 || s.overflow > 0)
    {
        let at = site.at.wrapping_sub(entry) as i64;
        graph.sites.push((at, site.external, site.overflow));
    }
    graph
}

/// Adds a block's instructions; `number` counts those of the function.
fn text(
    elf: &Elf<'_>,
    function: usize,
    block: &Block,
    lines: Option<&Lines>,
    speller: &mut Speller,
    number: &mut u32,
    graph: &mut Graph,
) {
    let bytes = elf.bytes_at(block.start, block.end - block.start);
    let from = graph.lengths.len();
    graph
        .text
        .push(speller.text(bytes.unwrap_or_default(), block.start, &mut graph.lengths));
    let mut at = block.start;
    for len in graph.lengths.get(from..).unwrap_or_default() {
        let here = lines.and_then(|lines| lines.at(function, at));
        let last = graph.lines.last().map(|l| (l.1, l.2));
        if let Some(here) = here.filter(|here| last != Some(*here)) {
            graph.lines.push((*number, here.0, here.1));
        }
        *number += 1;
        at = at.wrapping_add(u64::from(*len));
    }
}
