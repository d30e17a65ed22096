//! The text of `perf script -F ip,brstack`, as sample-profile tools exchange it.
//!
//! | line | content |
//! |---|---|
//! | `… PERF_RECORD_MMAP2 PID/TID: [0xADDR(0xLEN) @ OFF …]: r-xp PATH` | the file is mapped |
//! | `IP 0xFROM/0xTO/… 0xFROM/0xTO/… …` | a sample: branches, newest first |
//! | hexadecimal numbers, one a line, then a line ` 0xFROM/0xTO/…` | a sample: call chain, innermost first, and branches |
//! | a decimal number alone | how often the next sample occurred |
//!
//! Everything else is passed over. Addresses of a process become addresses of the file by its mapping; every process has its own, and what
//! is not an instruction of the file is [`EXTERNAL`].
//!
//! Equal samples are added up while reading, so memory follows the number of different ones.

use rustc_hash::FxHashMap;

use crate::counters::parse;
use crate::program::{EXTERNAL, Program};

/// A branch, in addresses of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Branch {
    /// Where from.
    pub from: u64,
    /// Where to.
    pub to: u64,
}

/// A sample, in addresses of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Call chain: the instruction, then the calls around it. Empty if none was recorded.
    pub chain: Vec<u64>,
    /// Branches, newest first.
    pub branches: Vec<Branch>,
    /// The instruction, if nothing else was recorded.
    pub ip: u64,
}

/// What is taken from the text.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the file, without directories.
    pub file: String,
    /// Only mappings of this process.
    pub pid: Option<i64>,
    /// Only samples of these events.
    pub events: Vec<String>,
    /// Only the instruction of each sample counts.
    pub ip_only: bool,
    /// Every sample stands for this many events.
    pub period: u64,
    /// Leave out call chains.
    pub ignore_chains: bool,
    /// The file is a kernel.
    pub kernel: bool,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Different samples, and how often each occurred.
    pub samples: FxHashMap<Sample, u64>,
    /// Samples have call chains.
    pub has_chains: bool,
    /// Things that the user should know.
    pub warnings: Vec<String>,
    /// Every mapping: path, address.
    pub mappings: Vec<(String, u64)>,
    /// Return addresses that do not follow a call.
    pub bad_returns: Vec<u64>,
    /// Samples outside of the file.
    pub outside: u64,
    /// Samples.
    pub total: u64,
}

/// Whether the samples of a text have call chains; `None` if there is no sample with branches in it.
fn has_chains(lines: &[&[u8]]) -> Option<bool> {
    let mut chain = 0;
    for line in lines {
        let trimmed = line.trim_ascii_start();
        if parse(trimmed.trim_ascii_end(), 16).is_some() && !trimmed.is_empty() {
            // A number at the very start is the count of an aggregated sample.
            if line.first() == Some(&b' ')
                || line.first() == Some(&b'\t')
                || parse(line.trim_ascii_end(), 10).is_none()
            {
                chain += 1;
            }
            continue;
        }
        let is_branch = |token: &[u8]| token.starts_with(b"0x") && token.contains(&b'/');
        let mut tokens = trimmed
            .split(u8::is_ascii_whitespace)
            .filter(|token| !token.is_empty());
        if (line.starts_with(b" 0x") && tokens.clone().next().is_some_and(is_branch))
            || tokens.clone().take(3).skip(1).any(is_branch)
        {
            let first = tokens.next().is_some_and(is_branch);
            return Some(chain > 0 && first);
        }
        chain = 0;
    }
    None
}

/// Reads a text.
///
/// # Errors
/// No sample with branches in it.
pub fn read(
    text: &[u8],
    program: &Program<'_>,
    options: &Options,
) -> Result<Script, crate::FormatError> {
    let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    let has_chains = match has_chains(&lines) {
        Some(chains) => chains,
        None if options.ip_only => false,
        None => return Err(crate::FormatError::new("Invalid perf script input!")),
    };
    let script = Script {
        has_chains,
        ..Script::default()
    };
    let mut reader = Reader {
        program,
        options,
        bias: 0,
        mapped: false,
        script,
    };
    let mut count = 1;
    let mut chain: Vec<u64> = Vec::new();
    let mut chain_lines = 0;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        if line.len() >= 50
            && !line[0].is_ascii_digit()
            && line.windows(16).any(|w| w == b"PERF_RECORD_MMAP")
        {
            reader.mapping(line)?;
            continue;
        }
        let trimmed = line.trim_ascii();
        if trimmed.is_empty() {
            chain.clear();
            chain_lines = 0;
            continue;
        }
        if !line[0].is_ascii_whitespace()
            && let Some(n) = parse(trimmed, 10)
        {
            count = n;
            continue;
        }
        if reader.script.has_chains {
            if let Some(address) = parse(trimmed, 16) {
                chain.push(address);
                chain_lines += 1;
                continue;
            }
            if line.starts_with(b" 0x") && chain_lines > 0 {
                reader.hybrid(&chain, trimmed, count, at);
                count = 1;
            }
            chain.clear();
            chain_lines = 0;
            continue;
        }
        if reader.plain(trimmed, count, at) {
            count = 1;
        }
    }
    Ok(reader.script)
}

struct Reader<'a, 'd> {
    program: &'a Program<'d>,
    options: &'a Options,
    /// What is added to an address of the process to get one of the file.
    bias: u64,
    mapped: bool,
    script: Script,
}

impl Reader<'_, '_> {
    /// An address of the process in the file, or [`EXTERNAL`].
    fn place(&self, address: u64) -> u64 {
        let place = address.wrapping_add(self.bias);
        match self.program.is_code(place) {
            true => place,
            false => EXTERNAL,
        }
    }

    fn unmapped(&mut self) {
        if !self.mapped {
            self.mapped = true;
            self.script.warnings.push(format!(
                "No relevant mmap event is matched for {}, will use preferred address (0x{:x}) as the base loading address!",
                self.options.file,
                self.program.base()
            ));
        }
    }

    fn mapping(&mut self, line: &[u8]) -> Result<(), crate::FormatError> {
        let text = String::from_utf8_lossy(line);
        let fields = || {
            let rest = &text[text.find("PERF_RECORD_MMAP")?..];
            let (head, rest) = rest.split_once(": [")?;
            let pid: i64 = head.split_once(' ')?.1.split_once('/')?.0.parse().ok()?;
            let (start, rest) = rest.split_once('(')?;
            let (_, rest) = rest.split_once(") @ ")?;
            let (place, rest) = rest.split_once("]: ")?;
            let offset = place.split(' ').next()?;
            let (_, path) = rest.split_once(' ')?;
            let hex = |digits: &str| {
                u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
            };
            Some((pid, hex(start)?, hex(offset)?, path.trim().to_owned()))
        };
        let Some((pid, start, offset, path)) = fields() else {
            self.script
                .warnings
                .push(format!("Cannot parse mmap event: {text}"));
            return Ok(());
        };
        self.script.mappings.push((path.clone(), start));
        let name = path.rsplit('/').next().unwrap_or_default();
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
        let base = first.address.wrapping_sub(self.bias);
        if self.mapped && start == base {
            return Ok(());
        }
        if kernel || offset == first.offset {
            self.bias = first.address.wrapping_sub(start);
            self.mapped = true;
            return Ok(());
        }
        let error = |what: &str| Err(crate::FormatError::new(format!("{what}: {text}")));
        if let Some(segment) = segments.iter().find(|segment| segment.offset == offset) {
            return match segment.address.wrapping_sub(self.bias) == start {
                true => Ok(()),
                false => error("Executable segments not loaded consecutively"),
            };
        }
        match segments
            .iter()
            .rev()
            .find(|segment| segment.offset <= offset)
        {
            Some(segment) => {
                let loaded = segment.address.wrapping_sub(self.bias);
                match offset - segment.offset == start.wrapping_sub(loaded) {
                    true => Ok(()),
                    false => error("Segment not loaded by consecutive mmaps"),
                }
            }
            None => error("File offset not found"),
        }
    }

    /// Branches of a line, from its tokens.
    fn branches<'t>(&mut self, tokens: impl Iterator<Item = &'t [u8]>, line: usize) -> Vec<Branch> {
        let mut branches = Vec::new();
        for token in tokens {
            let mut parts = token.split(|&byte| byte == b'/');
            let mut address = || parse(parts.next()?.strip_prefix(b"0x")?, 16);
            let (Some(from), Some(to)) = (address(), address()) else {
                self.script.warnings.push(format!(
                    "Invalid address in LBR record at line {line}: {}",
                    String::from_utf8_lossy(token)
                ));
                break;
            };
            let (from, to) = (self.place(from), self.place(to));
            if from != EXTERNAL || to != EXTERNAL {
                branches.push(Branch { from, to });
            }
        }
        branches
    }

    fn add(&mut self, sample: Sample, count: u64) {
        let mut weight = count.saturating_mul(self.options.period.max(1));
        if !self.options.ip_only && self.options.period > 1 && sample.branches.len() > 1 {
            weight /= sample.branches.len() as u64 - 1;
        }
        let sum = self.script.samples.entry(sample).or_default();
        *sum = sum.saturating_add(weight);
    }

    /// A sample without call chain; false if the line is none.
    fn plain(&mut self, line: &[u8], count: u64, number: usize) -> bool {
        let mut tokens = line
            .split(u8::is_ascii_whitespace)
            .filter(|token| !token.is_empty())
            .peekable();
        let mut event = None;
        if let Some(token) = tokens.peek()
            && token.ends_with(b":")
            && parse(token, 16).is_none()
        {
            event = Some(String::from_utf8_lossy(&token[..token.len() - 1]).into_owned());
            tokens.next();
        }
        let Some(ip) = tokens.next().and_then(|token| parse(token, 16)) else {
            return false;
        };
        if tokens.peek().is_none() && !self.options.ip_only {
            return false;
        }
        if !self.options.ip_only && tokens.peek().is_some_and(|token| !token.starts_with(b"0x")) {
            return false;
        }
        if !self.options.events.is_empty()
            && !event.is_some_and(|event| self.options.events.contains(&event))
        {
            return true;
        }
        self.unmapped();
        self.script.total += 1;
        let mut sample = Sample::default();
        if self.options.ip_only {
            sample.ip = self.place(ip);
            if sample.ip != EXTERNAL {
                self.add(sample, count);
            }
            return true;
        }
        sample.branches = self.branches(tokens, number);
        if sample.branches.is_empty() {
            self.script.outside += 1;
        } else {
            self.add(sample, count);
        }
        true
    }

    /// A sample with a call chain.
    fn hybrid(&mut self, stack: &[u64], line: &[u8], count: u64, number: usize) {
        self.unmapped();
        self.script.total += 1;
        let mut chain = Vec::new();
        let mut external = false;
        for (depth, &address) in stack.iter().enumerate() {
            let place = self.place(address);
            if place == EXTERNAL {
                if chain.last() != Some(&EXTERNAL) {
                    chain.push(EXTERNAL);
                }
                external |= depth == 0;
                continue;
            }
            if depth == 0 {
                chain.push(place);
                continue;
            }
            match self.program.call_before(place) {
                Some(call) => chain.push(call),
                None => {
                    self.script.bad_returns.push(place);
                    break;
                }
            }
        }
        self.script.outside += u64::from(external);
        if chain.len() > 1 && chain.last() == Some(&EXTERNAL) {
            chain.pop();
        }
        let Some(&leaf) = chain.first() else { return };
        if self.program.is_unframed(leaf) {
            return;
        }
        let tokens = line
            .split(u8::is_ascii_whitespace)
            .filter(|token| !token.is_empty());
        let branches = self.branches(tokens, number);
        let Some(newest) = branches.first() else {
            return;
        };
        chain[0] = newest.to;
        if self.options.ignore_chains {
            chain.clear();
        }
        self.add(
            Sample {
                chain,
                branches,
                ip: 0,
            },
            count,
        );
    }
}
