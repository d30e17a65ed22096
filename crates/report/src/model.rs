//! What the page knows: the shape of its JSON.
//!
//! A program has up to hundreds of thousands of functions, and the page is one file that a browser reads at
//! once. So tables are columns (one array a field, all of the same length), ascending addresses are
//! differences, what is the same for many is a number into a list, and graphs and instructions are there of
//! the hottest functions only. The script's first file (`page/data.js`) is the reader.
//!
//! Counts are written as they are; a script reads them as doubles, so beyond 2^53 their last digits are lost.
//! Addresses of differences fit.

use serde::Serialize;

/// Everything on the page.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Version of this shape.
    pub version: u32,
    /// What it is about.
    pub program: Program,
    /// What came out.
    pub verdict: Verdict,
    /// Reasons for staying, in words; pins are numbers into it.
    pub reasons: Vec<String>,
    /// Functions that ran, in either profile, by address.
    pub ran: Ran,
    /// Functions that did not.
    pub rest: Rest,
    /// Calls from function to function, by their numbers in `ran`.
    pub calls: Calls,
    /// How many edges of the call graph were left out, and the calls in them.
    pub calls_left_out: (usize, u64),
    /// Where code is, and what of it runs.
    pub layout: Layout,
    /// Graphs of the hottest functions.
    pub graphs: Vec<Graph>,
    /// Names of source files.
    pub files: Vec<String>,
    /// Text of source files, by number, as far as they were found and there was space.
    pub sources: Vec<(u32, String)>,
    /// Lines that ran, by file; none without debug information.
    pub coverage: Vec<FileLines>,
    /// Parts of the file, before and after.
    pub sizes: Sizes,
    /// Pages of code over time; none without copies of a live profile.
    pub startup: Option<Startup>,
    /// A second profile.
    pub compare: Option<Compare>,
    /// What was left out for want of space or data, in sentences.
    pub notes: Vec<String>,
}

/// A program and its profile.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    /// File name.
    pub name: String,
    /// Name of the output, if there is one.
    pub output: Option<String>,
    /// Instruction set.
    pub machine: String,
    /// Build-id in hexadecimal.
    pub build_id: Option<String>,
    /// Files of the profile.
    pub profile: Vec<String>,
    /// Counts are those of counters; otherwise they are estimates.
    pub exact: bool,
    /// Functions found.
    pub functions: usize,
    /// Bytes of code in them.
    pub code: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Version of the tool.
    pub tool: String,
}

/// What came out.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Measured times.
    pub measured: Option<Measured>,
    /// What the checker says.
    pub proof: Option<Proof>,
    /// Bytes of the files.
    pub sizes: Option<(u64, u64)>,
    /// Functions that moved.
    pub moved: usize,
    /// Jumps that were taken, as opposed to falls into the next block: before and after.
    pub taken: (u64, Option<u64>),
    /// All ways from block to block.
    pub ways: u64,
    /// Functions that stay, by reason: number of the reason, functions, of these ran, instructions executed in them.
    pub stay: Vec<(u32, usize, usize, u64)>,
}

/// Times of the program before and after.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// `faster`, `slower` or `no difference shown`.
    pub verdict: String,
    /// The sentence.
    pub sentence: String,
    /// Estimated ratio of processor time, after to before.
    pub estimate: f64,
    /// Its interval; none if there were too few runs.
    pub interval: Option<(f64, f64)>,
    /// Of each pair of runs: processor time before and after, in seconds.
    pub pairs: Vec<(f64, f64)>,
}

/// What the checker says of an output.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// Everything is proved.
    pub proved: bool,
    /// Moved functions that are.
    pub functions: u64,
    /// Moved functions that are not.
    pub failed: u64,
    /// Functions that are as they were.
    pub identical: u64,
    /// Instructions compared.
    pub instructions: u64,
    /// References that lead to the same places, in code and in data.
    pub references: (u64, u64),
    /// What it takes for granted: number, sentence, functions.
    pub assumptions: Vec<(String, String, u64)>,
    /// What does not hold.
    pub failures: Vec<String>,
}

/// Functions that ran, by address: columns.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ran {
    /// Demangled, cut after [`crate::Room::name`] characters.
    pub name: Vec<String>,
    /// Entry, less that of the function before.
    pub start: Vec<i64>,
    /// Bytes of all parts.
    pub size: Vec<u64>,
    /// Bytes of blocks that ran.
    pub hot: Vec<u64>,
    /// How often it was entered.
    pub entries: Vec<u64>,
    /// Instructions executed.
    pub instructions: Vec<u64>,
    /// Calls made from it to functions of the program.
    pub calls: Vec<u64>,
    /// Blocks.
    pub blocks: Vec<u32>,
    /// Blocks that ran.
    pub hot_blocks: Vec<u32>,
    /// Conditional branches that ran.
    pub branches: Vec<u32>,
    /// Of these, those that went both ways.
    pub both: Vec<u32>,
    /// Conditional branches in all.
    pub all_branches: Vec<u32>,
    /// Why it stays: a number into the reasons and one more; 0 if nothing holds it.
    pub pin: Vec<u32>,
    /// New entry less the old one; 0 if it did not move.
    pub moved: Vec<i64>,
    /// Bytes of its first new part, where the hot code is.
    pub new_hot: Vec<u64>,
    /// Bytes of its other new parts.
    pub new_cold: Vec<u64>,
    /// Source file, a number and one more; 0 if not known.
    pub file: Vec<u32>,
    /// Line of its entry.
    pub line: Vec<u32>,
}

/// Functions that did not run.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rest {
    /// Entry, less that of the function before.
    pub start: Vec<i64>,
    /// Bytes.
    pub size: Vec<u64>,
    /// As in [`Ran`].
    pub pin: Vec<u32>,
    /// Names; empty if there was no space for them.
    pub name: Vec<String>,
    /// Conditional branches in them, all together.
    pub branches: u64,
}

/// Edges of the call graph: columns, by caller.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Calls {
    /// Calling function, less that of the edge before.
    pub caller: Vec<u32>,
    /// Called function.
    pub callee: Vec<u32>,
    /// How often.
    pub count: Vec<u64>,
    /// Of these, through registers and memory.
    pub indirect: Vec<u64>,
}

/// Where code is.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    /// Bytes of a cache line.
    pub line: u64,
    /// Bytes of a page.
    pub page: u64,
    /// In the input.
    pub before: Side,
    /// In the output.
    pub after: Option<Side>,
}

/// One layout.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// Stretches of code: name of the section, start, length.
    pub ranges: Vec<(String, u64, u64)>,
    /// Cache lines that ran: their numbers (address / line), each less the one before.
    pub lines: Vec<u64>,
    /// Instructions executed in them, as 4·log2(1 + n), rounded.
    pub heat: Vec<u8>,
    /// Bytes of blocks that ran.
    pub hot_bytes: u64,
    /// Cache lines, pages and large pages (2 MiB) that ran.
    pub touched: (u64, u64, u64),
    /// Of the cache lines, pages, large pages: how many of the hottest hold so many thousandths of the
    /// instructions: (thousandths, lines, pages, large pages).
    pub cover: Vec<(u32, u64, u64, u64)>,
    /// Instructions in blocks whose new place is not known.
    pub unplaced: u64,
}

/// One function's graph: columns by block.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Graph {
    /// Its number in `ran`.
    pub function: u32,
    /// Start, less that of the block before (the entry at first).
    pub start: Vec<i64>,
    /// Bytes.
    pub size: Vec<u64>,
    /// How often it ran.
    pub count: Vec<u64>,
    /// 1: entry, 2: landing pad.
    pub flags: Vec<u8>,
    /// 0 falls, 1 jumps, 2 branches, 3 switches, 4 leaves, 5 returns, 6 stops.
    pub ending: Vec<u8>,
    /// Edges: of each block its number of them.
    pub edges: Vec<u32>,
    /// Where they lead, and how often.
    pub to: Vec<u32>,
    /// How often.
    pub taken: Vec<u64>,
    /// Numbers of edges whose count is a share.
    pub estimated: Vec<u32>,
    /// Where the block is in the output, less its place in the input; null if not known. Empty without an output.
    pub moved: Vec<Option<i64>>,
    /// Its bytes there.
    pub new_size: Vec<u64>,
    /// Instructions, one a line; empty if there was no space.
    pub text: Vec<String>,
    /// Lengths of the instructions, all blocks together.
    pub lengths: Vec<u8>,
    /// Source lines: (number of the instruction in the function, file, line) from which they hold.
    pub lines: Vec<(u32, u32, u32)>,
    /// Calls: (address less the entry, number of the called function in `ran`, how often, whether indirect).
    pub calls: Vec<(i64, u32, u64, u8)>,
    /// Indirect calls whose targets are not all known: (address less the entry, calls out of the file, calls
    /// that found no space).
    pub sites: Vec<(i64, u64, u64)>,
}

/// Lines of a source file.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileLines {
    /// Number of the file.
    pub file: u32,
    /// Lines with code, each less the one before.
    pub line: Vec<u32>,
    /// How often each ran.
    pub count: Vec<u64>,
    /// Of each: conditional branches that ran, and of these those that went one way only; only lines that
    /// have some: (line, branches, one way).
    pub branches: Vec<(u32, u32, u32)>,
}

/// What a file's bytes are for.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizes {
    /// Bytes of the input.
    pub before: u64,
    /// Bytes of the output.
    pub after: Option<u64>,
    /// Part, bytes before, bytes after.
    pub parts: Vec<(String, u64, u64)>,
}

/// Pages of code that have been needed by when: columns, a row for each copy of a live profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Startup {
    /// Instructions executed by then.
    pub instructions: Vec<u64>,
    /// Pages, in the input's layout.
    pub before: Vec<u64>,
    /// Pages, in the output's layout; empty without an output.
    pub after: Vec<u64>,
}

/// A second profile of the same program, by the numbers of `ran`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compare {
    /// Its file.
    pub name: String,
    /// How often functions were entered.
    pub entries: Vec<u64>,
    /// Instructions executed.
    pub instructions: Vec<u64>,
}
