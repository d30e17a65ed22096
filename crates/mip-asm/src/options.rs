//! What to instrument, and how it is written in the headers.

use postlink_mip::{Header, Kind, Types, Width};

use crate::target::{Arch, Format, Target};

/// What is recorded at the entry of a function. Exactly one of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// That it ran.
    FunctionCoverage,
    /// How often, and its place in the order of first calls.
    CallGraph,
}

/// What to instrument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is recorded at entries.
    pub mode: Mode,
    /// Whether blocks are recorded too.
    pub blocks: bool,
    /// Whether a block that follows from others gets a counter all the same.
    pub all_blocks: bool,
    /// Size of the buffer for sampled return addresses in bytes; 0 for none.
    pub buffer: u32,
    /// Number of function groups; 1: all functions are in one.
    pub groups: u32,
    /// The group that is instrumented.
    pub group: u32,
    /// Functions with fewer instructions are left out.
    pub min_instructions: u32,
    /// Name of the program or library that it will be linked into.
    pub link_unit: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: Mode::CallGraph,
            blocks: false,
            all_blocks: false,
            buffer: 0,
            groups: 1,
            group: 0,
            min_instructions: 0,
            link_unit: "a.out".to_owned(),
        }
    }
}

impl Options {
    /// Whether counters are zero before anything has run, and so take no space in the program's file.
    ///
    /// On AArch64 and Arm a store of zero costs an instruction less than any other, so coverage bytes begin
    /// as all ones there: the start-up routine fills them in. Counts always begin as zero. In Mach-O
    /// everything is initialised data.
    pub fn zero_filled(&self, target: Target) -> bool {
        match (target.format, target.arch, self.mode) {
            (Format::MachO, ..) => false,
            (_, Arch::X86_64, _) | (_, _, Mode::CallGraph) => true,
            (..) => false,
        }
    }

    /// Bytes of a function's entry.
    pub fn entry_size(&self) -> usize {
        match self.mode {
            Mode::FunctionCoverage => 1,
            Mode::CallGraph => 8,
        }
    }

    fn types(&self, target: Target) -> Types {
        let mut types = match self.mode {
            Mode::FunctionCoverage => Types::FUNCTION_COVERAGE,
            Mode::CallGraph => Types::CALL_GRAPH,
        };
        if self.blocks {
            types = types.with(Types::BLOCK_COVERAGE);
        }
        if self.zero_filled(target) {
            types = types.with(Types::ZERO_FILLED);
            if self.mode == Mode::CallGraph {
                types = types.with(Types::COUNTS_DOWN);
            }
        }
        types
    }

    /// Whether maps say which blocks follow from others.
    pub fn infers(&self) -> bool {
        self.blocks && !self.all_blocks
    }

    fn header(&self, target: Target, kind: Kind) -> Header {
        let width = if target.is_wide() {
            Width::Wide
        } else {
            Width::Narrow
        };
        let mut types = self.types(target);
        if kind == Kind::Map && self.infers() {
            types = types.with(Types::INFERRED_BLOCKS);
        }
        let hash = postlink_mip::hash::module_hash(self.link_unit.as_bytes());
        Header::new(kind, Some(width), types, hash)
    }

    /// The header of the map, the distance to the raw section left zero.
    pub fn map_header(&self, target: Target) -> [u8; 32] {
        self.header(target, Kind::Map).to_bytes()
    }

    /// The header of raw files.
    pub fn raw_header(&self, target: Target) -> [u8; 32] {
        self.header(target, Kind::Raw).to_bytes()
    }
}
