//! How a program is optimised: `postlink optimize` and `postlink tune`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use postlink_profile::windows::Windows;
use postlink_rewrite::{
    CompressDebug, DebugInfo, Folding, FunctionOrder, OptimizeOptions, PassOptions, Plt, Preset,
};

use super::branches::BranchPasses;
use crate::function_order;

/// Bundles of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PresetArg {
    /// Only the placement of code changes
    Safe,
    /// The same, with the least padding, and cold code in the space that moved functions leave (x86-64)
    Size,
    /// The same, with hot functions at multiples of 64 bytes and heads of hot loops at multiples of 16
    Fast,
    /// As fast, and instructions are changed where it pays and can be proved (docs/passes.md): --plt=hot,
    /// --peepholes=double-jumps, --simplify-conditional-tail-calls, --inline-small-functions
    Max,
}

/// Which calls of imported functions take the slot of the procedure linkage table, not the stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PltArg {
    /// None
    None,
    /// Those in blocks that ran
    Hot,
    /// All in functions that move (AArch64: as hot)
    All,
}

impl From<PltArg> for Plt {
    fn from(arg: PltArg) -> Self {
        match arg {
            PltArg::None => Plt::None,
            PltArg::Hot => Plt::Hot,
            PltArg::All => Plt::All,
        }
    }
}

/// Which identical functions are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IcfArg {
    /// None
    None,
    /// Those that call nothing, so that no backtrace names one for the other
    Safe,
    /// All
    All,
}

impl From<IcfArg> for Folding {
    fn from(arg: IcfArg) -> Self {
        match arg {
            IcfArg::None => Folding::None,
            IcfArg::Safe => Folding::Safe,
            IcfArg::All => Folding::All,
        }
    }
}

/// How blocks are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockOrderArg {
    /// As in the input
    None,
    /// Along the likeliest paths (extended travelling-salesman score)
    ExtTsp,
}

/// How functions are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FunctionOrderArg {
    /// As in the input
    None,
    /// By how often they ran
    ExecCount,
    /// Cache-directed sort
    Cdsort,
    /// Clusters of callers and callees
    Hfsort,
}

/// What leaves a function's hot part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitArg {
    /// Nothing
    None,
    /// Every block that never ran, landing pads included
    Cold,
}

/// What becomes of pointers to functions that move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PointersArg {
    /// They lead to the new code where it is shown that the program cannot tell the difference
    Follow,
    /// They keep their values; calls through them go by a jump at the old entry
    Stay,
}

/// What becomes of debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DebugInfoArg {
    /// It describes code where it is now; if that is not possible it stays as it is, and the report says why
    Update,
    /// It stays as it is: it describes old bodies, and moved code has no lines
    Keep,
    /// The output has none
    Drop,
}

impl From<DebugInfoArg> for DebugInfo {
    fn from(arg: DebugInfoArg) -> Self {
        match arg {
            DebugInfoArg::Update => DebugInfo::Update,
            DebugInfoArg::Keep => DebugInfo::Keep,
            DebugInfoArg::Drop => DebugInfo::Drop,
        }
    }
}

/// How sections of debug information are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressDebugArg {
    /// As they are in the input
    Keep,
    /// Not at all
    None,
    /// With zlib
    Zlib,
    /// With zstd
    Zstd,
}

impl From<CompressDebugArg> for CompressDebug {
    fn from(arg: CompressDebugArg) -> Self {
        match arg {
            CompressDebugArg::Keep => CompressDebug::Keep,
            CompressDebugArg::None => CompressDebug::None,
            CompressDebugArg::Zlib => CompressDebug::Zlib,
            CompressDebugArg::Zstd => CompressDebug::Zstd,
        }
    }
}

/// Which build-id the output has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BuildIdArg {
    /// One of its own: profilers and debuggers keep files by it
    New,
    /// The input's
    Keep,
}

/// Which instructions are changed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Changing instructions")]
pub struct Passes {
    /// Calls of imported functions go through the slot of the procedure linkage table, not through its stub
    /// [default: none; hot with --preset max]
    #[arg(long, value_name = "WHICH")]
    pub plt: Option<PltArg>,
    /// Loads from memory that is never written become immediates
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub simplify_rodata_loads: Option<bool>,
    /// The new code of one function stands for others with the same code, which keep their addresses; backtraces name
    /// one for the other. safe: only functions that call nothing
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub icf: Option<IcfArg>,
    #[command(flatten)]
    pub branches: BranchPasses,
}

impl Passes {
    /// For the library.
    fn options(&self, preset: PresetArg) -> PassOptions {
        let default = match preset {
            PresetArg::Max => PassOptions::MAX,
            PresetArg::Safe | PresetArg::Size | PresetArg::Fast => PassOptions::default(),
        };
        PassOptions {
            plt: self.plt.map_or(default.plt, Plt::from),
            simplify_rodata_loads: self
                .simplify_rodata_loads
                .unwrap_or(default.simplify_rodata_loads),
            folding: self.icf.map_or(default.folding, Folding::from),
            promotion: self.branches.promotion(default.promotion),
            inlining: self.branches.inlining(default.inlining),
            threading: self.branches.threading(default.threading),
        }
    }
}

/// What to do with the code that ran.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Optimising")]
pub struct Optimizing {
    /// Bundle of settings for everything below
    #[arg(long, value_name = "PRESET", default_value = "safe")]
    pub preset: PresetArg,
    /// Order of blocks in a function
    #[arg(long, value_name = "HOW", default_value = "ext-tsp", default_missing_value = "ext-tsp", num_args = 0..=1, require_equals = true)]
    pub reorder_blocks: BlockOrderArg,
    /// Order of functions
    #[arg(long, value_name = "HOW", default_value = "hfsort", default_missing_value = "hfsort", num_args = 0..=1, require_equals = true)]
    pub reorder_functions: FunctionOrderArg,
    /// Order of functions as a file says: one symbol name a line, the hottest first
    ///
    /// As lld's --symbol-ordering-file has it: what follows a '#' at the start of a line or behind a blank is a
    /// comment. Or a temporal profile as `llvm-profdata merge --text` writes it, of which an order for starting is
    /// made. Functions that the file does not name follow in the order of cdsort.
    #[arg(long, value_name = "FILE", conflicts_with = "reorder_functions")]
    pub function_order: Option<PathBuf>,
    /// What leaves the hot part of functions
    #[arg(long, value_name = "WHAT", default_value = "cold", default_missing_value = "cold", num_args = 0..=1, require_equals = true)]
    pub split_functions: SplitArg,
    /// Alignment of hot functions in bytes, a power of two [default: as the preset says; safe has those begin at a
    /// cache line that would be in one more otherwise]
    #[arg(long, value_name = "BYTES", value_parser = alignment)]
    pub align_functions: Option<u64>,
    /// Alignment in bytes of hot blocks that are mostly jumped to, a power of two up to 64; 1 for none
    /// [default: as the preset says]
    #[arg(long, value_name = "BYTES", value_parser = block_alignment)]
    pub align_blocks: Option<u32>,
    /// Hot code at multiples of 2 MiB, for which the program asks for huge pages when it starts
    ///
    /// It asks with madvise(MADV_COLLAPSE), and where that is refused with MADV_HUGEPAGE; whether it gets any is up
    /// to the kernel and the file system, and nothing else depends on it. The file grows by 2 to 6 MB.
    #[arg(long)]
    pub hugify: bool,
    #[command(flatten)]
    pub passes: Passes,
    /// Without kept relocations, move also functions that cost less where they are
    ///
    /// Pointers and other files lead to old entries, from where a jump goes to the new code. A function that is entered
    /// so more often than its new layout saves branches stays, unless this is given.
    #[arg(long)]
    pub move_all: bool,
    /// What becomes of pointers to functions that move
    #[arg(long, value_name = "HOW", default_value = "follow")]
    pub pointers: PointersArg,
    /// What becomes of debug information (DWARF 2 to 5)
    #[arg(long, value_name = "WHAT", default_value = "update")]
    pub debug_info: DebugInfoArg,
    /// How sections of debug information are compressed
    #[arg(long, value_name = "HOW", default_value = "keep")]
    pub compress_debug_sections: CompressDebugArg,
    /// Which build-id the output has, if the input has one
    #[arg(long, value_name = "WHICH", default_value = "new")]
    pub build_id: BuildIdArg,
    /// Choose distances between functions by chance, up to three times their alignment, from this seed
    ///
    /// Layouts of several seeds differ in nothing that matters; how far their times scatter is layout luck (see
    /// `postlink bench --layouts`).
    #[arg(long, value_name = "SEED")]
    pub layout_seed: Option<u64>,
    /// Try this many layouts, and take the best by a model of the instruction cache
    ///
    /// Orders of functions and padding are tried; blocks are ordered and code is proved once. The model is fed with a
    /// trace of the run (`tune` records one, `optimize` is given one by --search-trace), and ranks layouts as a
    /// simulator does. Without a trace it walks through the program at random by its counts, which say what
    /// runs how often, not what runs at the same time: that is right about programs whose hot code is much larger than
    /// the cache, and near to chance about others (figures: bench/frontend.md).
    #[arg(long, value_name = "N")]
    pub search: Option<usize>,
    /// Judge layouts by this trace of a run, which `postlink trace` has recorded
    #[arg(long, value_name = "FILE", requires = "search")]
    pub search_trace: Option<PathBuf>,
    /// For measuring the model: take the layout with this number
    #[arg(long, value_name = "NUMBER", hide = true)]
    pub search_take: Option<usize>,
    /// For tests: choose at random, by a seed, all that a layout is free to choose
    #[arg(long, value_name = "SEED", hide = true)]
    pub stress: Option<u64>,
    /// For tests, with --stress: overwrite old bodies with breakpoints once the output is proved
    ///
    /// But for those where old code may still run, as a jump of new code continues there or no jump fits at the
    /// entry, and for what these call.
    #[arg(long, requires = "stress", hide = true)]
    pub poison: bool,
    /// Write tables (.note.bolt_bat) that translate addresses of the output to the input's
    ///
    /// With them a profile taken on the optimised program becomes one of the program that went in: see
    /// `postlink bat`, and `perf2bolt`, which reads them too.
    #[arg(long)]
    pub enable_bat: bool,
    /// Print what the processor executes before and after, by the profile
    #[arg(long)]
    pub dyno_stats: bool,
}

fn alignment(text: &str) -> Result<u64, String> {
    let bytes: u64 = text.parse().map_err(|e| format!("{e}"))?;
    if bytes.is_power_of_two() && bytes <= 4096 {
        Ok(bytes)
    } else {
        Err("a power of two from 1 to 4096 is needed".to_owned())
    }
}

fn block_alignment(text: &str) -> Result<u32, String> {
    let bytes: u32 = text.parse().map_err(|e| format!("{e}"))?;
    if bytes.is_power_of_two() && bytes <= 64 {
        Ok(bytes)
    } else {
        Err("a power of two from 1 to 64 is needed".to_owned())
    }
}

impl Optimizing {
    /// For the library. Reads the order file.
    pub fn options(&self) -> Result<OptimizeOptions> {
        let default = OptimizeOptions::default();
        let reorder_functions = match (&self.function_order, self.reorder_functions) {
            (Some(path), _) => FunctionOrder::User(function_order::read(path)?),
            (None, FunctionOrderArg::None) => FunctionOrder::None,
            (None, FunctionOrderArg::ExecCount) => FunctionOrder::ExecCount,
            (None, FunctionOrderArg::Cdsort) => FunctionOrder::Cdsort,
            (None, FunctionOrderArg::Hfsort) => FunctionOrder::Hfsort,
        };
        Ok(OptimizeOptions {
            preset: match self.preset {
                PresetArg::Safe => Preset::Safe,
                PresetArg::Size => Preset::Size,
                PresetArg::Fast => Preset::Fast,
                PresetArg::Max => Preset::Max,
            },
            passes: self.passes.options(self.preset),
            hugify: self.hugify,
            reorder_blocks: self.reorder_blocks == BlockOrderArg::ExtTsp,
            reorder_functions,
            split_functions: self.split_functions == SplitArg::Cold,
            align_functions: self.align_functions.unwrap_or(match self.preset {
                PresetArg::Fast | PresetArg::Max => 64,
                PresetArg::Safe | PresetArg::Size => default.align_functions,
            }),
            functions_at_lines: self.align_functions.is_none() && self.preset == PresetArg::Safe,
            align_blocks: self.align_blocks.unwrap_or(match self.preset {
                PresetArg::Fast | PresetArg::Max => 16,
                PresetArg::Safe | PresetArg::Size => default.align_blocks,
            }),
            move_all: self.move_all,
            keep_pointers: self.pointers == PointersArg::Stay,
            stress: self.stress,
            layout_seed: self.layout_seed,
            search: self.search.unwrap_or(default.search),
            windows: match &self.search_trace {
                Some(path) => Some(Arc::new(Windows::read(path)?)),
                None => None,
            },
            search_take: self.search_take,
            dyno_stats: self.dyno_stats,
            bat: self.enable_bat,
            debug_info: self.debug_info.into(),
            compress_debug: self.compress_debug_sections.into(),
            keep_build_id: self.build_id == BuildIdArg::Keep,
            ..default
        })
    }
}
