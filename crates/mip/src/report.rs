//! What a profile says, as text: the layouts of the original tool, byte for byte.

use std::io::{Result, Write};

use crate::model::Profile;
use crate::symbolize::Symbolizer;

/// Blocks on a line of [`show`].
const BLOCKS_A_LINE: usize = 8;

/// What part of a profile is wanted, and how.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Mangled names for which it is true.
    pub filter: &'a dyn Fn(&[u8]) -> bool,
    /// For source lines.
    pub symbolizer: Option<&'a Symbolizer>,
    /// Hot blocks red, cold ones cyan.
    pub color: bool,
}

/// How [`covered`] prints a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// Its mangled name, or with a symbolizer the names of what is inlined at its entry.
    Names,
    /// The file of each of these.
    Paths,
    /// File and line of each of these.
    Lines,
}

/// Prints counts and blocks of functions.
pub fn show(out: &mut impl Write, profile: &Profile, options: Options<'_>) -> Result<()> {
    for function in &profile.functions {
        if !(options.filter)(&function.name) {
            continue;
        }
        put_name(out, function)?;
        let frames = options
            .symbolizer
            .map(|symbolizer| symbolizer.frames(function));
        if let Some(frame) = frames.as_ref().and_then(|frames| frames.first()) {
            writeln!(out, "  Source Info: {}:{}", frame.file, frame.line)?;
        }
        writeln!(out, "  Call Count: {}", function.call_count)?;
        if function.order_sum != 0 {
            writeln!(out, "  Order Sum: {}", function.order_sum)?;
        }
        if function.block_count() > 1 {
            writeln!(out, "  Block Coverage:")?;
            for line in function.all_blocks().chunks(BLOCKS_A_LINE) {
                write!(out, "    ")?;
                for block in line {
                    let (text, code) = if block.covered {
                        (" HOT ", 31)
                    } else {
                        (" COLD", 36)
                    };
                    if options.color {
                        write!(out, "\x1b[{code}m{text}\x1b[0m")?;
                    } else {
                        write!(out, "{text}")?;
                    }
                }
                writeln!(out)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// What [`covered`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CoveredCount {
    /// Covered functions, whatever the filter.
    pub total: usize,
    /// Functions that were found in the debug information.
    pub known: usize,
    /// Names of functions for which nothing was found in the debug information.
    pub unknown: Vec<String>,
}

/// Prints functions that ran.
pub fn covered(
    out: &mut impl Write,
    profile: &Profile,
    options: Options<'_>,
    how: Covered,
) -> Result<CoveredCount> {
    let mut count = CoveredCount::default();
    for function in profile.functions.iter().filter(|f| f.is_covered()) {
        count.total += 1;
        if !(options.filter)(&function.name) {
            continue;
        }
        let Some(symbolizer) = options.symbolizer else {
            put_name(out, function)?;
            continue;
        };
        let frames = symbolizer.frames(function);
        if frames.is_empty() {
            count.unknown.push(function.display_name().into_owned());
        } else {
            count.known += 1;
        }
        for frame in frames {
            match how {
                Covered::Names => writeln!(out, "{}", frame.function)?,
                Covered::Paths => writeln!(out, "{}", frame.file)?,
                Covered::Lines => writeln!(out, "{}:{}", frame.file, frame.line)?,
            }
        }
    }
    Ok(count)
}

fn put_name(out: &mut impl Write, function: &crate::Function) -> Result<()> {
    if function.name.is_empty() {
        writeln!(out, "{}", function.display_name())
    } else {
        out.write_all(&function.name)?;
        writeln!(out)
    }
}

/// Numbers about a profile as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Largest number of runs of a function: how many raws were merged, if any function is always called.
    pub raw_profiles: u64,
    /// Number of functions.
    pub functions: u64,
    /// Functions that ran.
    pub profiled_functions: u64,
    /// Blocks, entries among them.
    pub blocks: u64,
    /// Blocks that ran.
    pub covered_blocks: u64,
    /// Places that functions were called from.
    pub call_edges: u64,
    /// First-call orders that were kept.
    pub traces: u64,
}

impl Info {
    /// Counts.
    pub fn of(profile: &Profile) -> Info {
        let mut info = Info {
            functions: profile.functions.len() as u64,
            traces: profile.traces.len() as u64,
            ..Info::default()
        };
        for function in &profile.functions {
            info.raw_profiles = info.raw_profiles.max(function.raw_count.into());
            info.profiled_functions += u64::from(function.is_covered());
            info.blocks += function.block_count() as u64;
            let covered = function.all_blocks().iter().filter(|b| b.covered).count();
            info.covered_blocks += covered as u64;
            info.call_edges += function.edges.len() as u64;
        }
        info
    }

    /// The original's six lines.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "Total Raw Profile Count: {}", self.raw_profiles)?;
        writeln!(out, "Total Machine Functions: {}", self.functions)?;
        writeln!(
            out,
            "Profiled Machine Functions: {}",
            self.profiled_functions
        )?;
        writeln!(out, "Total Machine Basic Blocks: {}", self.blocks)?;
        writeln!(out, "Covered Machine Basic Blocks: {}", self.covered_blocks)?;
        writeln!(out, "Total Call Edges: {}", self.call_edges)
    }
}
