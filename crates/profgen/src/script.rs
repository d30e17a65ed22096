//! The text of `perf script -F ip,brstack`, as sample-profile tools exchange it.
//!
//! | line | content |
//! |---|---|
//! | `… PERF_RECORD_MMAP2 PID/TID: [0xADDR(0xLEN) @ OFF …]: r-xp PATH` | the file is mapped |
//! | `IP 0xFROM/0xTO/… 0xFROM/0xTO/… …` | a sample: branches, newest first |
//! | `PID IP 0xFROM/0xTO/…` | the same with its process (`-F pid,ip,brstack`) |
//! | `EVENT: IP 0xFROM/0xTO/…` | the same with its event (`-F event,ip,brstack`) |
//! | hexadecimal numbers, one a line, then a line ` 0xFROM/0xTO/…` | a sample: call chain, innermost first, and branches |
//! | a decimal number alone | how often the next sample occurred |
//!
//! Everything else is passed over. Addresses of a process become addresses of the file by its mapping; what
//! is not an instruction of the file is [`EXTERNAL`]. A sample that says its process uses the mapping of that
//! process, the others the latest one.
//!
//! # Another reader of perf's text
//!
//! [`postlink_profile::perf_script`] reads the same command's text and more of it, and is a reader of another
//! kind: what is a sample to one is an error to the other. Mapping events are read there for both.
//!
//! | | there | here, as `llvm-profgen` does it |
//! |---|---|---|
//! | the text | a file, mapped into memory | a stream of any length |
//! | a broken branch | an error with file and line | ends the sample, with a warning |
//! | an address | is given by its column, in lower case | any number alone, also of samples that a script has added up |
//! | a decimal number alone | a process | how often the next sample occurred |
//! | a call chain | after its sample's line | in front of its sample's line of branches |
//! | a mapping | places what its process does in its time | of the file: one bias for all processes that have none of their own |
//!
//! # Reading
//!
//! Scripts have tens of gigabytes. The text is read in blocks that end where a sample does, and blocks are
//! taken apart by all threads while the next ones are read; what a block says goes to the [`Tally`] of a
//! thread, so memory does not depend on the length of the text. Only mappings must be seen in order: the
//! reader looks for them and gives every block the mappings that hold in it. A block with mappings inside is
//! cut there.

use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use memchr::{memchr, memmem, memrchr};
use postlink_profile::{perf_script, progress};
use rustc_hash::FxHashMap;

use crate::FormatError;
use crate::counters::parse;
use crate::program::{EXTERNAL, Program};
use crate::stack::{Branch, Sample};
use crate::tally::{How, Tally, Total};

/// What is taken from the text.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the file, without directories.
    pub file: String,
    /// Only mappings and samples of this process.
    pub pid: Option<i64>,
    /// Only samples of these events.
    pub events: Vec<String>,
    /// Only the instruction of each sample counts.
    pub ip_only: bool,
    /// Every sample represents this many events.
    pub period: u64,
    /// Leave out call chains.
    pub ignore_chains: bool,
    /// The file is a kernel.
    pub kernel: bool,
    /// Paths in mappings are those of Windows.
    pub windows: bool,
    /// Samples without branches are an error, not a reason to count their instructions.
    pub branches_only: bool,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Script {
    /// Counters.
    pub total: Total,
    /// Counters are by chain.
    pub chains: bool,
    /// The samples have no branches: their instructions were counted.
    pub ips: bool,
    /// Things that the user should know.
    pub warnings: Vec<String>,
    /// Every mapping: path, address.
    pub mappings: Vec<(String, u64)>,
}

/// Bytes that are read together.
const BLOCK: usize = 2 << 20;
/// A sample that is longer than this is cut.
const LONGEST: usize = 64 << 20;
/// Warnings about lines that are kept.
const WARNINGS: usize = 100;

/// What the samples of a text are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Branches.
    Branches,
    /// Call chains and branches.
    Chains,
    /// Instructions, one a line.
    Ips,
    /// Instructions, the first line of each group of lines.
    StackedIps,
}

/// Whether a line is a number alone, at its start: how often the next sample occurred.
fn is_count(line: &[u8]) -> bool {
    !line.is_empty() && line.trim_ascii_end().iter().all(u8::is_ascii_digit)
}

/// A hexadecimal number alone.
fn lone_address(line: &[u8]) -> Option<u64> {
    parse(line.trim_ascii(), 16)
}

/// What the samples of a text are like, by its beginning; `None` if there is no sample with branches in it.
fn kind(text: &[u8]) -> Option<Kind> {
    let mut chain = 0;
    for line in text.split(|&byte| byte == b'\n') {
        if lone_address(line).is_some() {
            // A number at the very start is the count of an aggregated sample.
            chain += usize::from(!is_count(line));
            continue;
        }
        let is_branch = |token: &[u8]| token.starts_with(b"0x") && token.contains(&b'/');
        let mut tokens = line
            .split(u8::is_ascii_whitespace)
            .filter(|token| !token.is_empty())
            .take(4);
        if tokens.clone().any(is_branch) {
            let first = tokens.next().is_some_and(is_branch);
            return Some(if chain > 0 && first {
                Kind::Chains
            } else {
                Kind::Branches
            });
        }
        chain = 0;
    }
    None
}

/// What samples without branches are like.
fn kind_of_ips(text: &[u8]) -> Kind {
    // Groups of lines with a blank line between them are call chains.
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let address = |line: &[u8]| {
        let token = line
            .split(u8::is_ascii_whitespace)
            .next()
            .unwrap_or_default();
        parse(token, 16).is_some()
    };
    let mut before = false;
    let stacked = lines.any(|line| {
        let stacked = before && line.is_empty();
        before = address(line);
        stacked
    });
    if stacked { Kind::StackedIps } else { Kind::Ips }
}

/// What is added to addresses of processes to get those of the file.
#[derive(Clone, Debug, Default)]
struct Maps {
    latest: u64,
    by_pid: Arc<FxHashMap<i64, u64>>,
}

/// A piece of text, with what is needed to take it apart.
struct Block {
    number: usize,
    text: Vec<u8>,
    maps: Maps,
}

/// Reads a text.
///
/// # Errors
/// Input that cannot be read, no sample with branches in it if there must be, mappings that contradict the file.
pub fn read(
    input: &mut (dyn Read + Send),
    how: &How<'_, '_>,
    options: &Options,
) -> Result<Script, FormatError> {
    let mut source = Source {
        input,
        text: Vec::new(),
        ended: false,
    };
    let mut found = None;
    while found.is_none() && !source.ended {
        source.more()?;
        found = kind(&source.text);
    }
    let kind = match found {
        _ if options.ip_only => match found {
            Some(Kind::Chains) => Kind::StackedIps,
            _ => Kind::Ips,
        },
        Some(kind) => kind,
        None if options.branches_only => {
            return Err(FormatError::new("Invalid perf script input!"));
        }
        None => kind_of_ips(&source.text),
    };
    let ips = matches!(kind, Kind::Ips | Kind::StackedIps);
    let how = How {
        chains: kind == Kind::Chains && !options.ignore_chains,
        ip_only: ips,
        ..*how
    };
    let mut reader = Reader {
        program: how.program,
        options,
        maps: Maps::default(),
        mapped: false,
        script: Script::default(),
    };
    let tallies = Pool::default();
    let limit = rayon::current_num_threads() * 2 + 2;
    let mut error = None;
    rayon::in_place_scope(|scope| {
        let mut number = 0;
        loop {
            let text = match source.block(kind) {
                Ok(Some(text)) => text,
                Ok(None) => return,
                Err(reason) => {
                    error = Some(reason);
                    return;
                }
            };
            let blocks = match reader.cut(text) {
                Ok(blocks) => blocks,
                Err(reason) => {
                    error = Some(reason);
                    return;
                }
            };
            for (text, maps) in blocks {
                let block = Block { number, text, maps };
                number += 1;
                tallies.wait(limit);
                let (tallies, how) = (&tallies, &how);
                scope.spawn(move |_| {
                    let mut parser = tallies.take();
                    parser.block(&block, kind, how, options);
                    progress::did(block.text.len());
                    tallies.give_back(parser);
                });
            }
        }
    });
    if let Some(error) = error {
        return Err(error);
    }
    if options.kernel && !reader.mapped {
        return Err(FormatError::new(
            "Kernel is requested, but no kernel is found in mmap events.",
        ));
    }
    let mut script = reader.script;
    script.ips = ips;
    script.chains = how.chains;
    script
        .warnings
        .extend(tallies.warnings(how.program, options, reader.mapped));
    script.total = Tally::total(tallies.tallies(), &how);
    Ok(script)
}

/// Parsers that wait for work, and how many blocks are under way.
#[derive(Default)]
struct Pool {
    state: Mutex<(Vec<Parser>, usize)>,
    done: Condvar,
}

impl Pool {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<Parser>, usize)> {
        // A thread that panicked while it held the lock has broken nothing: each statement under it leaves
        // the list whole.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits until fewer than `limit` blocks are under way, and counts one more.
    fn wait(&self, limit: usize) {
        loop {
            let mut state = self.lock();
            if state.1 < limit {
                state.1 += 1;
                return;
            }
            drop(state);
            // The thread that reads is one of the pool's: without work of its own it takes some.
            if rayon::yield_now() != Some(rayon::Yield::Executed) {
                let state = self.lock();
                if state.1 >= limit {
                    let wait = std::time::Duration::from_millis(1);
                    drop(self.done.wait_timeout(state, wait));
                }
            }
        }
    }

    fn take(&self) -> Parser {
        self.lock().0.pop().unwrap_or_default()
    }

    fn give_back(&self, parser: Parser) {
        let mut state = self.lock();
        state.0.push(parser);
        state.1 -= 1;
        self.done.notify_one();
    }

    fn tallies(self) -> Vec<Tally> {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        state.0.into_iter().map(|parser| parser.tally).collect()
    }

    /// The warnings of all parsers, in the order of the text.
    fn warnings(&self, program: &Program<'_>, options: &Options, mapped: bool) -> Vec<String> {
        let state = self.lock();
        let mut all = Vec::new();
        if !mapped && state.0.iter().any(|parser| parser.tally.notes.samples > 0) {
            all.push(format!(
                "No relevant mmap event is matched for {}, will use preferred address (0x{:x}) as the base loading address!",
                options.file,
                program.base()
            ));
        }
        let mut lines: Vec<(usize, u64)> = state
            .0
            .iter()
            .flat_map(|p| p.lines.iter().copied())
            .collect();
        lines.sort_unstable();
        let mut before = 0;
        let starts: FxHashMap<usize, u64> = lines
            .into_iter()
            .map(|(block, lines)| {
                let start = before;
                before += lines;
                (block, start)
            })
            .collect();
        let mut bad: Vec<&(usize, u64, String)> =
            state.0.iter().flat_map(|parser| &parser.bad).collect();
        bad.sort_unstable();
        let count: u64 = state.0.iter().map(|parser| parser.bad_count).sum();
        for (block, line, token) in bad.iter().take(WARNINGS) {
            let line = starts.get(block).copied().unwrap_or(0) + line;
            all.push(format!(
                "Invalid address in LBR record at line {line}: {token}"
            ));
        }
        if count > WARNINGS as u64 {
            all.push(format!(
                "{} more records have invalid addresses",
                count - WARNINGS as u64
            ));
        }
        all
    }
}

/// Text as it is read.
struct Source<'a> {
    input: &'a mut (dyn Read + Send),
    /// What has been read and not been given out.
    text: Vec<u8>,
    ended: bool,
}

impl Source<'_> {
    /// Reads one more block.
    fn more(&mut self) -> Result<(), FormatError> {
        let wanted = self.text.len() + BLOCK;
        self.text.reserve(BLOCK);
        let mut part = (&mut *self.input).take((wanted - self.text.len()) as u64);
        let read = part
            .read_to_end(&mut self.text)
            .map_err(|error| FormatError::new(format!("cannot read the samples: {error}")))?;
        self.ended = read < BLOCK;
        Ok(())
    }

    /// The next block of whole samples.
    fn block(&mut self, kind: Kind) -> Result<Option<Vec<u8>>, FormatError> {
        loop {
            if !self.ended && self.text.len() < BLOCK {
                self.more()?;
            }
            if self.ended {
                let rest = std::mem::take(&mut self.text);
                return Ok((!rest.is_empty()).then_some(rest));
            }
            let end = match last_end(&self.text, kind) {
                Some(end) => end,
                None if self.text.len() > LONGEST => self.text.len(),
                None => {
                    self.more()?;
                    continue;
                }
            };
            let mut rest = Vec::with_capacity(self.text.len() - end + BLOCK);
            rest.extend_from_slice(self.text.get(end..).unwrap_or_default());
            self.text.truncate(end);
            return Ok(Some(std::mem::replace(&mut self.text, rest)));
        }
    }
}

/// Where the last whole sample of a text ends.
fn last_end(text: &[u8], kind: Kind) -> Option<usize> {
    let mut end = memrchr(b'\n', text)? + 1;
    while let Some(before) = end.checked_sub(1).and_then(|end| text.get(..end)) {
        let start = memrchr(b'\n', before).map_or(0, |at| at + 1);
        let line = before.get(start..)?;
        let complete = match kind {
            Kind::Chains => line.starts_with(b" 0x"),
            Kind::StackedIps => line.trim_ascii().is_empty(),
            Kind::Branches | Kind::Ips => !line.trim_ascii().is_empty() && !is_count(line),
        };
        if complete {
            return Some(end);
        }
        end = start;
    }
    None
}

/// Follows the mappings.
struct Reader<'a, 'd> {
    program: &'a Program<'d>,
    options: &'a Options,
    maps: Maps,
    mapped: bool,
    script: Script,
}

impl Reader<'_, '_> {
    /// Cuts a text at its mappings. Each piece comes with the mappings that hold in it.
    fn cut(&mut self, text: Vec<u8>) -> Result<Vec<(Vec<u8>, Maps)>, FormatError> {
        let mut marks: Vec<Range<usize>> = Vec::new();
        for at in memmem::find_iter(&text, b"PERF_RECORD_MMAP") {
            let (before, after) = text.split_at(at);
            let start = memrchr(b'\n', before).map_or(0, |at| at + 1);
            let end = memchr(b'\n', after).map_or(text.len(), |len| at + len + 1);
            let known = marks.last().is_some_and(|last| last.end > start);
            let counted = text.get(start).is_some_and(u8::is_ascii_digit);
            if !known && end - start > 50 && !counted {
                marks.push(start..end);
            }
        }
        let (mut pieces, mut start) = (Vec::new(), 0);
        for mark in marks {
            let before = self.maps.clone();
            let line = text.get(mark.clone()).unwrap_or_default();
            self.mapping(line.trim_ascii_end())?;
            if !self.maps.same(&before)
                && mark.start > start
                && let Some(piece) = text.get(start..mark.start)
            {
                pieces.push((piece.to_vec(), before));
                start = mark.start;
            }
        }
        let last = match start {
            0 => text,
            _ => text.get(start..).unwrap_or_default().to_vec(),
        };
        pieces.push((last, self.maps.clone()));
        Ok(pieces)
    }

    /// Reads a mapping.
    fn mapping(&mut self, line: &[u8]) -> Result<(), FormatError> {
        let text = String::from_utf8_lossy(line);
        let event = memmem::find(line, b"PERF_RECORD_MMAP").and_then(|at| {
            let record = line.get(at..)?;
            let fields = record.get(memchr(b' ', record)?..)?;
            perf_script::mapping(fields)
        });
        let Some((pid, mapping)) = event else {
            if self.script.warnings.len() < WARNINGS {
                self.script
                    .warnings
                    .push(format!("Cannot parse mmap event: {text}"));
            }
            return Ok(());
        };
        let (pid, start, offset) = (i64::from(pid), mapping.start, mapping.file_offset);
        let path = String::from_utf8_lossy(&mapping.path).trim().to_owned();
        self.script.mappings.push((path.clone(), start));
        let separator = |c: char| c == '/' || (self.options.windows && c == '\\');
        let name = path.rsplit(separator).next().unwrap_or_default();
        let kernel = self.options.kernel
            && (path.starts_with("[kernel.kallsyms]")
                || path.ends_with("_stext")
                || path.ends_with("_text"));
        if !kernel
            && (name != self.options.file || self.options.pid.is_some_and(|wanted| wanted != pid))
        {
            return Ok(());
        }
        let segments = &self.program.segments;
        let Some(first) = segments.first() else {
            return Ok(());
        };
        let bias = self.maps.by_pid.get(&pid).copied();
        if first.address.wrapping_sub(bias.unwrap_or(self.maps.latest)) == start {
            self.mapped = true;
            self.maps.set(pid, bias.unwrap_or(self.maps.latest));
            return Ok(());
        }
        if kernel || offset == first.offset {
            self.mapped = true;
            self.maps.set(pid, first.address.wrapping_sub(start));
            return Ok(());
        }
        let bias = bias.unwrap_or(self.maps.latest);
        let error = |what: &str| Err(FormatError::new(format!("{what}: {text}")));
        if let Some(segment) = segments.iter().find(|segment| segment.offset == offset) {
            return if segment.address.wrapping_sub(bias) == start {
                Ok(())
            } else {
                error("Executable segments not loaded consecutively")
            };
        }
        match segments
            .iter()
            .rev()
            .find(|segment| segment.offset <= offset)
        {
            Some(segment) => {
                let loaded = segment.address.wrapping_sub(bias);
                if offset - segment.offset == start.wrapping_sub(loaded) {
                    Ok(())
                } else {
                    error("Segment not loaded by consecutive mmaps")
                }
            }
            None => error("File offset not found"),
        }
    }
}

impl Maps {
    fn set(&mut self, pid: i64, bias: u64) {
        self.latest = bias;
        if self.by_pid.get(&pid) != Some(&bias) {
            Arc::make_mut(&mut self.by_pid).insert(pid, bias);
        }
    }

    fn same(&self, other: &Maps) -> bool {
        self.latest == other.latest && Arc::ptr_eq(&self.by_pid, &other.by_pid)
    }
}

/// Takes blocks apart.
#[derive(Default)]
struct Parser {
    tally: Tally,
    /// Lines of each block.
    lines: Vec<(usize, u64)>,
    /// Broken records: block, line in it, text; the first ones.
    bad: Vec<(usize, u64, String)>,
    bad_count: u64,
    /// The sample at hand.
    sample: Sample,
    /// The call chain at hand, in addresses of the process.
    stack: Vec<u64>,
}

/// A block being taken apart.
struct Run<'a, 'd> {
    how: &'a How<'a, 'd>,
    options: &'a Options,
    block: &'a Block,
    line: u64,
}

impl Parser {
    fn block(&mut self, block: &Block, kind: Kind, how: &How<'_, '_>, options: &Options) {
        let mut run = Run {
            how,
            options,
            block,
            line: 0,
        };
        self.stack.clear();
        let mut count = 1;
        let mut rest = &block.text[..];
        while !rest.is_empty() {
            let line = match memchr(b'\n', rest) {
                Some(end) => {
                    let (line, after) = rest.split_at(end);
                    rest = after.get(1..).unwrap_or_default();
                    line
                }
                None => std::mem::take(&mut rest),
            };
            run.line += 1;
            let used = match kind {
                Kind::Branches | Kind::Ips => {
                    if is_count(line) {
                        match parse(line.trim_ascii(), 10) {
                            // On a line of its own an address with nothing but digits looks the same: a
                            // sample's are indented.
                            Some(number) => count = number,
                            None => continue,
                        }
                        continue;
                    }
                    self.plain(&run, line, count)
                }
                Kind::Chains => self.chained(&run, line, &mut count),
                Kind::StackedIps => self.stacked_ip(&run, line, count),
            };
            if used {
                count = 1;
            }
        }
        self.lines.push((block.number, run.line));
    }

    /// An address of a process in the file, or [`EXTERNAL`].
    #[inline]
    fn place(run: &Run<'_, '_>, bias: u64, address: u64) -> u64 {
        let place = address.wrapping_add(bias);
        if run.how.program.is_code(place) {
            place
        } else {
            EXTERNAL
        }
    }

    fn bad(&mut self, run: &Run<'_, '_>, token: &[u8]) {
        self.bad_count += 1;
        let shown = crate::beginning(token);
        let entry = (run.block.number, run.line, shown);
        let at = self.bad.partition_point(|other| *other <= entry);
        if at < WARNINGS {
            self.bad.insert(at, entry);
            self.bad.truncate(WARNINGS);
        }
    }

    /// Reads the branches of a line from `at` on.
    fn branches(&mut self, run: &Run<'_, '_>, line: &[u8], mut at: usize, bias: u64) {
        self.sample.branches.clear();
        loop {
            at = blanks(line, at);
            if at >= line.len() {
                return;
            }
            let start = at;
            let mut address = || {
                at += 2;
                hex(line, &mut at)
            };
            let from = address();
            let both = from
                .filter(|_| line.get(at) == Some(&b'/'))
                .and_then(|from| {
                    at += 1;
                    at += 2;
                    Some((from, hex(line, &mut at)?))
                });
            let ends = line
                .get(at)
                .is_none_or(|&byte| byte == b'/' || byte.is_ascii_whitespace());
            let Some((from, to)) = both.filter(|_| ends) else {
                let end = word_end(line, start);
                self.bad(run, line.get(start..end).unwrap_or_default());
                return;
            };
            at = word_end(line, at);
            let (from, to) = (Self::place(run, bias, from), Self::place(run, bias, to));
            if from != EXTERNAL || to != EXTERNAL {
                self.sample.branches.push(Branch { from, to });
            }
        }
    }

    /// A sample without call chain; false if the line is none.
    fn plain(&mut self, run: &Run<'_, '_>, line: &[u8], count: u64) -> bool {
        // Event, process and instruction are before the first branch.
        let mut at = blanks(line, 0);
        if at >= line.len() {
            return false;
        }
        let mut event: &[u8] = &[];
        let (mut numbers, mut last): (usize, &[u8]) = (0, &[]);
        let mut first: &[u8] = &[];
        while at < line.len() && !starts_address(line, at) {
            let end = word_end(line, at);
            let word = line.get(at..end).unwrap_or_default();
            match word.strip_suffix(b":") {
                Some(name) if numbers == 0 => event = name,
                _ if parse(word, 16).is_some() && numbers < 2 => {
                    if numbers == 0 {
                        first = word;
                    }
                    last = word;
                    numbers += 1;
                }
                // After an instruction alone there may be its symbol.
                _ if run.how.ip_only && numbers > 0 => break,
                _ => return false,
            }
            at = blanks(line, end);
        }
        let pid = match numbers {
            2 => parse(first, 10).and_then(|pid| i64::try_from(pid).ok()),
            _ => None,
        };
        if !run.options.events.is_empty()
            && !run
                .options
                .events
                .iter()
                .any(|wanted| wanted.as_bytes() == event)
        {
            return true;
        }
        if let (Some(wanted), Some(pid)) = (run.options.pid, pid)
            && wanted != pid
        {
            return true;
        }
        let maps = &run.block.maps;
        let bias = match pid {
            Some(pid) => maps.by_pid.get(&pid).copied().unwrap_or(maps.latest),
            None => maps.latest,
        };
        if run.how.ip_only {
            let Some(ip) = parse(last, 16) else {
                return false;
            };
            self.ip(run, bias, ip, count);
            return true;
        }
        if at >= line.len() {
            return false;
        }
        self.branches(run, line, at, bias);
        self.tally.notes.samples += 1;
        if self.sample.branches.is_empty() {
            self.tally.notes.unused += 1;
        } else {
            self.tally.add(run.how, &self.sample, count);
        }
        true
    }

    /// A sample's instruction.
    fn ip(&mut self, run: &Run<'_, '_>, bias: u64, ip: u64, count: u64) {
        self.tally.notes.samples += 1;
        self.sample.ip = Self::place(run, bias, ip);
        match self.sample.ip {
            EXTERNAL => self.tally.notes.unused += 1,
            _ => self.tally.add(run.how, &self.sample, count),
        }
    }

    /// A line of a call chain, of which only the first one counts; or anything else.
    fn stacked_ip(&mut self, run: &Run<'_, '_>, line: &[u8], count: u64) -> bool {
        let start = blanks(line, 0);
        let word = line.get(start..word_end(line, start)).unwrap_or_default();
        if word.is_empty() || start == 0 {
            // A blank line, or a line of another kind, ends a call chain.
            self.stack.clear();
            return false;
        }
        let Some(address) = parse(word, 16) else {
            self.stack.clear();
            return false;
        };
        self.stack.push(address);
        if self.stack.len() == 1 {
            self.ip(run, run.block.maps.latest, address, count);
            return true;
        }
        false
    }

    /// A line of a sample with a call chain; whether it was the last one of a sample.
    fn chained(&mut self, run: &Run<'_, '_>, line: &[u8], count: &mut u64) -> bool {
        let mut at = blanks(line, 0);
        let start = at;
        if starts_address(line, at) {
            let whole = line.starts_with(b" 0x") && !self.stack.is_empty();
            if whole {
                self.hybrid(run, line, start, *count);
            }
            self.stack.clear();
            return whole;
        }
        if start == 0 && is_count(line) {
            if let Some(number) = parse(line.trim_ascii(), 10) {
                *count = number;
            }
            self.stack.clear();
            return false;
        }
        match hex(line, &mut at) {
            Some(address) if blanks(line, at) >= line.len() => self.stack.push(address),
            _ => self.stack.clear(),
        }
        false
    }

    /// A sample with a call chain; its branches are on `line` from `at` on.
    fn hybrid(&mut self, run: &Run<'_, '_>, line: &[u8], at: usize, count: u64) {
        let notes = &mut self.tally.notes;
        notes.samples += 1;
        let (program, bias) = (run.how.program, run.block.maps.latest);
        let chain = &mut self.sample.chain;
        chain.clear();
        for (depth, &address) in self.stack.iter().enumerate() {
            let place = Self::place(run, bias, address);
            if place == EXTERNAL {
                if chain.last() != Some(&EXTERNAL) {
                    chain.push(EXTERNAL);
                }
                notes.leaf_outside += u64::from(depth == 0);
                continue;
            }
            if chain.is_empty() {
                chain.push(place);
                continue;
            }
            match program.call_before(place) {
                Some(call) => chain.push(call),
                None => {
                    notes.bad_returns.insert(place);
                    notes.truncated += 1;
                    break;
                }
            }
        }
        if chain.len() > 1 && chain.last() == Some(&EXTERNAL) {
            chain.pop();
        }
        let Some(&leaf) = chain.first() else { return };
        if program.is_unframed(leaf) {
            return;
        }
        self.branches(run, line, at, bias);
        let Some(newest) = self.sample.branches.first() else {
            self.tally.notes.unused += 1;
            return;
        };
        if let Some(leaf) = self.sample.chain.first_mut() {
            *leaf = newest.to;
        }
        self.tally.add(run.how, &self.sample, count);
    }
}

/// Whether an address with `0x` begins at a place.
#[inline]
fn starts_address(line: &[u8], at: usize) -> bool {
    line.get(at..).is_some_and(|rest| rest.starts_with(b"0x"))
}

/// The first place from `at` on that is no blank.
#[inline]
fn blanks(line: &[u8], mut at: usize) -> usize {
    while line.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The first blank from `at` on.
#[inline]
fn word_end(line: &[u8], mut at: usize) -> usize {
    while line.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
        at += 1;
    }
    at
}

#[expect(
    clippy::indexing_slicing,
    reason = "digits and their codes are in range"
)]
/// Values of hexadecimal digits; 255 for anything else.
const DIGITS: [u8; 256] = {
    let mut table = [255; 256];
    let mut at = 0;
    while at < 16 {
        table[b"0123456789abcdef"[at] as usize] = at as u8;
        table[b"0123456789ABCDEF"[at] as usize] = at as u8;
        at += 1;
    }
    table
};

/// A hexadecimal number of at most 16 digits; `at` is moved after it.
#[inline]
fn hex(line: &[u8], at: &mut usize) -> Option<u64> {
    let start = *at;
    let mut value = 0;
    while let Some(&byte) = line.get(*at) {
        let digit = DIGITS.get(usize::from(byte)).copied().unwrap_or(255);
        if digit == 255 {
            break;
        }
        value = value << 4 | u64::from(digit);
        *at += 1;
    }
    (1..=16).contains(&(*at - start)).then_some(value)
}

#[cfg(test)]
mod tests;
