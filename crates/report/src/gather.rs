//! From a program, its profile and its output to what the page knows.

use postlink_elf::elf::Elf;
use postlink_elf::note::Note;
use postlink_elf::raw;
use postlink_isa::Isa;
use postlink_isa::aarch64::AArch64;
use postlink_isa::x86_64::X86_64;
use postlink_lines::{FileCoverage, Lines, goes_both_ways};
use postlink_rewrite::Pin;
use postlink_rewrite::facts::{Ending, Facts, Function};
use rustc_hash::FxHashMap;

use crate::graphs::{self, Speller, Subject};
use crate::heat;
use crate::model::{Calls, Compare, FileLines, Model, Program, Ran, Rest, Verdict};
use crate::placed::{self, Place};
use crate::sizes;
use crate::startup::{self, Moment};

/// How much of what can be of any size goes onto the page.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Functions with a graph.
    pub graphs: usize,
    /// Bytes of graphs, roughly.
    pub graph_bytes: usize,
    /// Edges of the call graph.
    pub calls: usize,
    /// Functions that did not run and are named.
    pub names: usize,
    /// Bytes of source files.
    pub sources: usize,
    /// Characters of a name; longer ones are cut.
    pub name: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            graphs: 400,
            graph_bytes: 5 << 20,
            calls: 80_000,
            names: 20_000,
            sources: 2 << 20,
            name: 400,
        }
    }
}

impl Room {
    /// Less of everything, for a page that has become too large.
    #[must_use]
    pub fn less(self) -> Room {
        Room {
            graphs: self.graphs * 2 / 3,
            graph_bytes: self.graph_bytes / 2,
            calls: self.calls / 2,
            names: self.names / 4,
            sources: self.sources / 2,
            name: (self.name / 2).max(80),
        }
    }
}

/// What a report is made of.
pub struct Subjects<'a, 'd> {
    /// The program.
    pub input: &'a Elf<'d>,
    /// The file with its debug information, if that is another one.
    pub debug: Option<&'a Elf<'d>>,
    /// Its functions and counts.
    pub facts: &'a Facts,
    /// What was made of it, with its note.
    pub output: Option<(&'a Elf<'d>, &'a Note)>,
    /// What had run by when.
    pub moments: &'a [Moment],
    /// A second profile's counts, with its name.
    pub other: Option<(&'a Facts, &'a str)>,
    /// Name of the program, of the output, of the profile's files, version of the tool.
    pub program: Program,
    /// What is known from elsewhere: times, proof.
    pub verdict: Verdict,
    /// A symbol's name as its author wrote it.
    pub demangle: &'a (dyn Fn(&str) -> String + Sync),
    /// The text of a source file, if it is there.
    pub source: &'a (dyn Fn(&str) -> Option<String> + Sync),
}

/// Where the blocks of each function went; `None` for functions that stay.
type Places = Vec<Option<Vec<Option<Place>>>>;

/// Gathers everything.
pub fn gather(subjects: &Subjects<'_, '_>, room: Room) -> Model {
    match subjects.input.machine {
        raw::EM_AARCH64 => Gather::<AArch64>::new(subjects, room).model(),
        _ => Gather::<X86_64>::new(subjects, room).model(),
    }
}

struct Gather<'a, 'd, I> {
    subjects: &'a Subjects<'a, 'd>,
    room: Room,
    /// Functions that ran, in either profile.
    ran: Vec<usize>,
    /// Their numbers.
    numbers: FxHashMap<u32, u32>,
    isa: std::marker::PhantomData<I>,
}

/// 1234567 as `1,234,567`, as the page's script writes numbers.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn cut(name: String, limit: usize) -> String {
    match name.char_indices().nth(limit) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}

impl<'a, 'd, I: Isa> Gather<'a, 'd, I> {
    fn new(subjects: &'a Subjects<'a, 'd>, room: Room) -> Self {
        let other = |f: usize| {
            let other = subjects.other.and_then(|(facts, _)| facts.functions.get(f));
            other.is_some_and(|f| f.ran.is_some())
        };
        let functions = subjects.facts.functions.iter().enumerate();
        let ran: Vec<usize> = functions
            .filter(|(f, function)| function.ran.is_some() || other(*f))
            .map(|(f, _)| f)
            .collect();
        let numbers = (0..).zip(&ran).map(|(n, f)| (*f as u32, n)).collect();
        Gather {
            subjects,
            room,
            ran,
            numbers,
            isa: std::marker::PhantomData,
        }
    }

    fn facts(&self) -> &'a Facts {
        self.subjects.facts
    }

    fn model(&self) -> Model {
        let facts = self.facts();
        let mut notes = Vec::new();
        let lines = match Lines::load(self.subjects.debug.unwrap_or(self.subjects.input), facts) {
            Ok(lines) => Some(lines),
            Err(why) => {
                notes.push(why);
                None
            }
        };
        let places = self.places();
        let mut model = Model {
            version: 1,
            program: Program {
                machine: facts.machine.to_owned(),
                exact: facts.exact,
                functions: facts.functions.len(),
                code: facts.functions.iter().map(Function::size).sum(),
                build_id: self.subjects.input.build_id.map(postlink_elf::hex),
                ..self.subjects.program.clone()
            },
            verdict: self.subjects.verdict.clone(),
            notes,
            ..Model::default()
        };
        let reasons = self.reasons(&mut model);
        self.functions(&mut model, &reasons, lines.as_ref());
        self.rest(&mut model, &reasons);
        self.calls(&mut model);
        self.layout(&mut model, places.as_deref());
        self.graphs(&mut model, places.as_deref(), lines.as_ref());
        if let Some(lines) = lines {
            let coverage = lines.coverage(facts, true);
            model.coverage = coverage.iter().map(columns).collect();
            model.files = lines.files;
            self.sources(&mut model);
        }
        model.sizes = sizes::sizes(self.subjects.input, self.subjects.output.map(|o| o.0));
        model.verdict.sizes = model.sizes.after.map(|after| (model.sizes.before, after));
        model.startup =
            startup::startup(self.subjects.moments, &facts.functions, places.as_deref());
        model.compare = self.compare();
        model
    }

    fn places(&self) -> Option<Places> {
        let (output, note) = self.subjects.output?;
        let of: FxHashMap<u64, _> = note.functions.iter().map(|m| (m.entry, m)).collect();
        let places = postlink_parallel::map(&self.facts().functions, |function| {
            let moved = of.get(&function.start())?;
            let ran = function.ran.as_ref()?;
            Some(placed::places::<I>(self.subjects.input, output, moved, ran))
        });
        Some(places)
    }

    /// Numbers of reasons, and what stays for them.
    fn reasons(&self, model: &mut Model) -> FxHashMap<Pin, u32> {
        let mut pins: Vec<Pin> = self
            .facts()
            .functions
            .iter()
            .filter_map(|f| f.pin)
            .collect();
        pins.sort_unstable();
        pins.dedup();
        let numbers: FxHashMap<Pin, u32> = pins.iter().copied().zip(0..).collect();
        model.reasons = pins.iter().map(|pin| pin.explain().to_owned()).collect();
        let mut stay = vec![(0u32, 0usize, 0usize, 0u64); pins.len()];
        for function in &self.facts().functions {
            let Some(number) = function.pin.and_then(|pin| numbers.get(&pin)) else {
                continue;
            };
            let row = &mut stay[*number as usize];
            row.0 = *number;
            row.1 += 1;
            if let Some(ran) = &function.ran {
                row.2 += 1;
                row.3 = row.3.saturating_add(ran.instructions);
            }
        }
        stay.sort_by_key(|row| (std::cmp::Reverse(row.1), row.0));
        model.verdict.stay = stay;
        numbers
    }

    fn pin(reasons: &FxHashMap<Pin, u32>, function: &Function) -> u32 {
        let number = function.pin.and_then(|pin| reasons.get(&pin));
        number.map_or(0, |number| number + 1)
    }

    fn functions(&self, model: &mut Model, reasons: &FxHashMap<Pin, u32>, lines: Option<&Lines>) {
        let facts = self.facts();
        let mut out_calls = vec![0u64; facts.functions.len()];
        for call in &facts.calls {
            let sum = &mut out_calls[call.caller as usize];
            *sum = sum.saturating_add(call.count);
        }
        let note = self.subjects.output.map(|output| output.1);
        let new: FxHashMap<u64, _> = note
            .iter()
            .flat_map(|note| &note.functions)
            .map(|m| (m.entry, m))
            .collect();
        let demangle = self.subjects.demangle;
        let names: Vec<String> = postlink_parallel::map(&self.ran, |f| {
            cut(demangle(&facts.functions[*f].name), self.room.name)
        });
        let mut ran = Ran {
            name: names,
            ..Ran::default()
        };
        let mut before = 0u64;
        for f in &self.ran {
            let function = &facts.functions[*f];
            let start = function.start();
            ran.start.push(start.wrapping_sub(before) as i64);
            before = start;
            ran.size.push(function.size());
            ran.blocks.push(function.blocks);
            ran.all_branches.push(function.branches.len() as u32);
            ran.pin.push(Self::pin(reasons, function));
            ran.calls.push(out_calls[*f]);
            let blocks = function.ran.iter().flat_map(|ran| &ran.blocks);
            let hot = blocks.filter(|b| b.count > 0);
            let branches = hot.clone().filter(|b| b.ending == Ending::Branches);
            ran.hot.push(hot.clone().map(|b| b.end - b.start).sum());
            ran.hot_blocks.push(hot.count() as u32);
            ran.branches.push(branches.clone().count() as u32);
            ran.both
                .push(branches.filter(|b| goes_both_ways(b)).count() as u32);
            let counts = function.ran.as_ref();
            ran.entries.push(counts.map_or(0, |r| r.entries));
            ran.instructions.push(counts.map_or(0, |r| r.instructions));
            let moved = new.get(&start);
            let first = moved.and_then(|m| m.new.first());
            ran.moved
                .push(first.map_or(0, |to| to.0.wrapping_sub(start) as i64));
            ran.new_hot.push(first.map_or(0, |to| to.1));
            let others = moved.and_then(|m| m.new.get(1..)).unwrap_or_default();
            ran.new_cold.push(others.iter().map(|r| r.1).sum());
            let line = lines.and_then(|lines| lines.at(*f, start));
            ran.file.push(line.map_or(0, |l| l.0 + 1));
            ran.line.push(line.map_or(0, |l| l.1));
        }
        model.verdict.moved = note.map_or(0, |note| note.functions.len());
        let all = ran.instructions.iter();
        model.program.instructions = all.fold(0, |sum, n| sum.saturating_add(*n));
        model.ran = ran;
    }

    fn rest(&self, model: &mut Model, reasons: &FxHashMap<Pin, u32>) {
        let facts = self.facts();
        let is_rest = |f: &usize| !self.numbers.contains_key(&(*f as u32));
        let others: Vec<usize> = (0..facts.functions.len()).filter(is_rest).collect();
        let mut rest = Rest::default();
        let mut before = 0u64;
        for f in &others {
            let function = &facts.functions[*f];
            rest.start
                .push(function.start().wrapping_sub(before) as i64);
            before = function.start();
            rest.size.push(function.size());
            rest.pin.push(Self::pin(reasons, function));
            rest.branches += function.branches.len() as u64;
        }
        if others.len() <= self.room.names {
            let demangle = self.subjects.demangle;
            rest.name = postlink_parallel::map(&others, |f| {
                cut(demangle(&facts.functions[*f].name), self.room.name)
            });
        } else {
            model.notes.push(format!(
                "{} functions that did not run are counted, but not named.",
                grouped(others.len() as u64)
            ));
        }
        model.rest = rest;
    }

    fn calls(&self, model: &mut Model) {
        let mut edges: FxHashMap<(u32, u32), (u64, u64)> = FxHashMap::default();
        for call in &self.facts().calls {
            let ends = (
                self.numbers.get(&call.caller),
                self.numbers.get(&call.callee),
            );
            if let (Some(from), Some(to)) = ends {
                let edge = edges.entry((*from, *to)).or_default();
                edge.0 = edge.0.saturating_add(call.count);
                if call.indirect {
                    edge.1 = edge.1.saturating_add(call.count);
                }
            }
        }
        let mut edges: Vec<_> = edges.into_iter().collect();
        edges.sort_unstable_by_key(|(ends, counts)| (std::cmp::Reverse(counts.0), *ends));
        if edges.len() > self.room.calls {
            let left_out = edges.split_off(self.room.calls);
            let calls = left_out
                .iter()
                .fold(0u64, |sum, e| sum.saturating_add(e.1.0));
            model.calls_left_out = (left_out.len(), calls);
            model.notes.push(format!(
                "The call graph has its {} most frequent edges; {} others, with {} calls, are left out.",
                grouped(edges.len() as u64),
                grouped(left_out.len() as u64),
                grouped(calls)
            ));
        }
        edges.sort_unstable();
        let mut calls = Calls::default();
        let mut before = 0;
        for ((from, to), (count, indirect)) in edges {
            calls.caller.push(from - before);
            before = from;
            calls.callee.push(to);
            calls.count.push(count);
            calls.indirect.push(indirect);
        }
        model.calls = calls;
    }

    fn layout(&self, model: &mut Model, places: Option<&[Option<Vec<Option<Place>>>]>) {
        let (input, functions) = (self.subjects.input, &self.facts().functions[..]);
        model.layout.line = heat::LINE;
        model.layout.page = heat::PAGE;
        model.layout.before = heat::side::<I>(input, input, functions, None);
        let output = self.subjects.output.map(|output| output.0);
        model.layout.after = output.map(|output| heat::side::<I>(input, output, functions, places));
        let (mut ways, mut before, mut after) = (0u64, 0u64, 0u64);
        for (f, function) in functions.iter().enumerate() {
            let Some(ran) = &function.ran else { continue };
            let moved = places.and_then(|places| places.get(f)?.as_ref());
            for (b, block) in ran.blocks.iter().enumerate() {
                for edge in &block.edges {
                    let Some(to) = ran.blocks.get(edge.to as usize) else {
                        continue;
                    };
                    ways = ways.saturating_add(edge.count);
                    let stays = block.end == to.start;
                    let falls = match moved {
                        None => stays,
                        Some(places) => matches!(
                            (places.get(b), places.get(edge.to as usize)),
                            (Some(Some(here)), Some(Some(next))) if here.1 == next.0
                        ),
                    };
                    let taken = |falls: bool| if falls { 0 } else { edge.count };
                    before = before.saturating_add(taken(stays));
                    after = after.saturating_add(taken(falls));
                }
            }
        }
        model.verdict.ways = ways;
        model.verdict.taken = (before, places.is_some().then_some(after));
    }

    fn graphs(
        &self,
        model: &mut Model,
        places: Option<&[Option<Vec<Option<Place>>>]>,
        lines: Option<&Lines>,
    ) {
        let facts = self.facts();
        let weight = |f: &usize| {
            facts.functions[*f]
                .ran
                .as_ref()
                .map_or(0, |r| r.instructions)
        };
        let mut hottest: Vec<usize> = self.ran.iter().copied().filter(|f| weight(f) > 0).collect();
        hottest.sort_by_key(|f| (std::cmp::Reverse(weight(f)), *f));
        let mut speller = Speller::new(self.subjects.input.machine);
        let mut bytes = 0;
        for f in &hottest {
            let (Some(number), function) = (self.numbers.get(&(*f as u32)), &facts.functions[*f])
            else {
                continue;
            };
            let Some(ran) = &function.ran else { continue };
            if model.graphs.len() >= self.room.graphs || bytes > self.room.graph_bytes {
                break;
            }
            let within = |caller: u32| caller.cmp(&(*f as u32));
            let from = facts.calls.partition_point(|c| within(c.caller).is_lt());
            let to = facts.calls.partition_point(|c| within(c.caller).is_le());
            let sites: Vec<_> = facts
                .sites
                .iter()
                .filter(|s| s.caller == *f as u32)
                .copied()
                .collect();
            let subject = Subject {
                number: *number,
                index: *f,
                function,
                ran,
                places: places.and_then(|places| places.get(*f)?.as_deref()),
                calls: facts.calls.get(from..to).unwrap_or_default(),
                sites: &sites,
            };
            let graph = graphs::graph(
                self.subjects.input,
                &subject,
                lines,
                &self.numbers,
                &mut speller,
            );
            bytes += graph.text.iter().map(String::len).sum::<usize>() + 24 * graph.start.len();
            model.graphs.push(graph);
        }
        if model.graphs.len() < hottest.len() {
            let held = hottest[..model.graphs.len()].iter().map(weight);
            let held = held.fold(0u64, u64::saturating_add);
            let all = model.program.instructions.max(1);
            model.notes.push(format!(
                "Graphs and instructions are here of the {} hottest of {} functions that ran ({:.1} % of what was executed).",
                grouped(model.graphs.len() as u64),
                grouped(hottest.len() as u64),
                100.0 * held as f64 / all as f64
            ));
        }
    }

    /// Texts of the files of which most ran.
    fn sources(&self, model: &mut Model) {
        let mut order: Vec<(u64, u32)> = model
            .coverage
            .iter()
            .map(|file| {
                let lines = file.count.iter().filter(|n| **n > 0).count();
                (lines as u64, file.file)
            })
            .filter(|file| file.0 > 0)
            .collect();
        order.sort_unstable_by_key(|file| (std::cmp::Reverse(file.0), file.1));
        let (mut bytes, mut missing) = (0, 0);
        for (_, file) in order {
            let name = &model.files[file as usize];
            match (self.subjects.source)(name) {
                Some(text) if bytes + text.len() <= self.room.sources => {
                    bytes += text.len();
                    model.sources.push((file, text));
                }
                _ => missing += 1,
            }
        }
        if missing > 0 {
            model.notes.push(format!(
                "Of {} source files with lines that ran the text is not here: it was not found, or exceeds the page's limit.",
                grouped(missing)
            ));
        }
    }

    fn compare(&self) -> Option<Compare> {
        let (facts, name) = self.subjects.other?;
        let of = |f: &usize| facts.functions.get(*f).and_then(|f| f.ran.as_ref());
        Some(Compare {
            name: name.to_owned(),
            entries: self
                .ran
                .iter()
                .map(|f| of(f).map_or(0, |r| r.entries))
                .collect(),
            instructions: self
                .ran
                .iter()
                .map(|f| of(f).map_or(0, |r| r.instructions))
                .collect(),
        })
    }
}

/// A file's lines as the page has them.
fn columns(of: &FileCoverage) -> FileLines {
    let mut columns = FileLines {
        file: of.file,
        ..FileLines::default()
    };
    let mut before = 0;
    for line in &of.lines {
        columns.line.push(line.line - before);
        before = line.line;
        columns.count.push(line.count);
        let ran = line.branches.iter().filter(|branch| branch.ran > 0);
        let one_way = ran.clone().filter(|b| b.ways.0 == 0 || b.ways.1 == 0);
        if ran.clone().count() > 0 {
            let numbers = (ran.count() as u32, one_way.count() as u32);
            columns.branches.push((line.line, numbers.0, numbers.1));
        }
    }
    columns
}
