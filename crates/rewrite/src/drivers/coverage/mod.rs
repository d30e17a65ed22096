//! An instrumented program that writes a raw machine profile: coverage of functions or blocks, calls with the
//! order of first calls, call edges.
//!
//! Where only entries are counted, nothing moves: [`crate::entries`]. For coverage of blocks, for that of functions
//! in programs whose unwind tables cannot be extended, and in programs with more code than direct branches reach, the
//! way is that of [`super::instrument`]: functions that are understood are re-emitted. In both the counters are in
//! pages that a start-up routine maps onto the file, a `.mipraw` of version 9:
//!
//! | offset in the file | what |
//! |---|---|
//! | 0 | the 32 bytes of the header, zeros up to [`COUNTER_UNIT`](postlink_isa::Counters::COUNTER_UNIT): 4096, on AArch64 65536 |
//! | there | with calls: the clock, the last place in the order of first calls that was given (4), zero (4) |
//! | | coverage: one byte for each counter; calls: count (4) and place (4) for each function |
//! | | zeros up to the end of a page |
//! | the end | with edges: a table of sampled return addresses, 16 bytes each |
//!
//! What they mean goes to a `.mipmap` beside the output, and nothing of it into the output. Addresses in it
//! count from zero: a function's is its address in the input.
//!
//! Without kept relocations functions are re-emitted as well; what their return addresses are in the input, the map
//! says ([`anew`]). Those whose old entry has no room for a jump are left
//! out, as pointers lead there past the counter; so are, for coverage of blocks, those that may continue in old code.
//! Which of them are parts that a compiler split off is not known: counters step over what may be below the stack
//! pointer.
//!
//! A function's calls are counted in its first block; if that is also a loop header and a jump leads to the counter,
//! iterations are counted as well.
//!
//! | file | subject |
//! |---|---|
//! | [`in_place`] | counters at entries of functions that stay |
//! | [`anew`] | functions re-emitted |
//! | [`runtime`] | the counters' pages, the start-up routine, the slow path of calls |

mod anew;
mod in_place;
mod runtime;

use std::marker::PhantomData;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_elf::write::{WriteOptions, Writer};
use postlink_isa::coverage::{CallCounter, CallPlace, Covers};
use postlink_isa::with_isa;
use postlink_mip::{self as mip, Profile, Types, Width};
use regex::bytes::Regex;
use rustc_hash::FxHashSet;
use serde::Serialize;

use super::rewriting::{Answer, OutputFile, Refusal, Rewriting};
use crate::analyse::{FunctionCounters, Target, count_pins};
use crate::discover::{NonlocalExits, Program, check_input, finds_new_header, identity};
use crate::entries::Plan;
use crate::error::Error;
use crate::phases::Phases;
use crate::pin::Pin;
use anew::Anew;
use runtime::Room;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoverageMode {
    /// Whether each function ran.
    FunctionCoverage,
    /// Whether each block ran.
    BlockCoverage,
    /// How often each function was called, and in which order for the first time.
    CallGraph,
    /// The same, and from where.
    CallEdges,
}

impl CoverageMode {
    fn calls(self) -> bool {
        matches!(self, CoverageMode::CallGraph | CoverageMode::CallEdges)
    }

    /// What the files say of themselves.
    pub fn types(self) -> Types {
        let types = match self {
            CoverageMode::FunctionCoverage => Types::FUNCTION_COVERAGE,
            CoverageMode::BlockCoverage => Types::FUNCTION_COVERAGE
                .with(Types::BLOCK_COVERAGE)
                .with(Types::INFERRED_BLOCKS),
            CoverageMode::CallGraph => Types::CALL_GRAPH,
            CoverageMode::CallEdges => Types::CALL_GRAPH.with(Types::RETURN_ADDRESS),
        };
        types.with(Types::ZERO_FILLED)
    }
}

/// What to instrument and how.
#[derive(Clone, Debug)]
pub struct CoverageOptions {
    /// What is counted.
    pub mode: CoverageMode,
    /// Name of the raw profile if the environment gives none; `%p`, `%b`, `%h` (the module hash), `%m`, `%%`.
    pub pattern: String,
    /// Only functions with a name that matches.
    pub functions: Option<Regex>,
    /// Entries in the table of edges, rounded up to a power of two.
    pub edges: u32,
    /// Functions that stay as they are, by address: a checker did not accept them.
    pub keep: FxHashSet<u64>,
    /// Whether code that moves may be in old bodies. Whether something may still come there is for a checker to say.
    pub reuse: bool,
    /// Functions in whose old bodies nothing else may be all the same, by address.
    pub sealed: FxHashSet<u64>,
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct CoverageReport {
    /// What is counted.
    pub mode: CoverageMode,
    /// Functions found.
    pub functions: usize,
    /// Instrumented functions.
    pub instrumented: usize,
    /// Functions that stay, by reason.
    pub pinned: Vec<(Pin, usize)>,
    /// Blocks of instrumented functions.
    pub blocks: u64,
    /// Blocks with a counter, entries among them.
    pub counted: u64,
    /// Size of a raw profile.
    pub raw_size: u64,
    /// Size of the input.
    pub input_size: u64,
    /// Size of the output.
    pub output_size: u64,
    /// The map's bytes, to be written beside the output.
    #[serde(skip)]
    pub map: Vec<u8>,
}

/// Bytes in front of the functions' counters: the clock.
const CLOCK: u64 = 8;

/// Bytes of the start-up routine and a little more: what all programs have to bear, and a hole in the file
/// saves if it is as large.
const START_UP: u64 = 2400;

/// Instruments a file. The map is in the report.
pub fn instrument_coverage(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<CoverageReport, Error> {
    prepare_coverage(elf, options, phases)?.write(OutputFile::new(out, mode), phases)
}

/// Finds a file's functions and makes their instrumentation.
pub fn prepare_coverage<'d>(
    elf: &'d Elf<'d>,
    options: &CoverageOptions,
    phases: &mut Phases,
) -> Result<Box<dyn Rewriting<Report = CoverageReport> + 'd>, Error> {
    with_isa!(check_input(elf)?, I => Ok(Box::new(Covered::<I>::new(elf, options, phases)?)))
}

/// Instrumented functions, without addresses.
struct Covered<'d, I> {
    program: Program<'d>,
    nonlocal_exits: NonlocalExits,
    options: CoverageOptions,
    /// Every flag is near the code that sets it ([`Covers::NEAR`]): shorter, if it turns out that all are.
    near: bool,
    emission: Emission,
    isa: PhantomData<fn() -> I>,
}

impl<'d, I: Covers> Covered<'d, I> {
    fn new(
        elf: &'d Elf<'d>,
        options: &CoverageOptions,
        phases: &mut Phases,
    ) -> Result<Self, Error> {
        phases.begin("discover");
        let program = Program::discover::<I>(elf)?;
        let nonlocal_exits = NonlocalExits::new(&program);
        let options = CoverageOptions {
            // Without kept relocations not every reference to old code is known.
            reuse: options.reuse && program.refs.kept,
            ..options.clone()
        };
        let near = is_compact::<I>(&program, &options);
        phases.begin("functions");
        let emission = Emission::make::<I>(&program, &nonlocal_exits, &options, near);
        phases.end();
        Ok(Covered {
            program,
            nonlocal_exits,
            options,
            near,
            emission,
            isa: PhantomData,
        })
    }

    /// The map, with the places of all counters; and the bytes of counters, with the clock.
    fn map(&self) -> (Profile, u64) {
        let mut functions = self.emission.functions(&self.program);
        let types = self.options.mode.types();
        let mut next = if self.options.mode.calls() { CLOCK } else { 0 };
        for function in &mut functions {
            function.raw_offset = I::COUNTER_UNIT + next;
            next += function.counter_bytes(types);
        }
        let elf = self.program.elf;
        let moved = types.has(Types::RETURN_ADDRESS) && !self.emission.is_in_place();
        let mut profile = Profile {
            types: if moved {
                types.with(Types::MOVED_CALLERS)
            } else {
                types
            },
            identity: elf.build_id.map_or(0, mip::create::identity),
            functions,
            ..Profile::default()
        };
        seal(&mut profile, elf);
        (profile, next)
    }

    /// Gives everything its place.
    fn link(&mut self, profile: &mut Profile, next: u64) -> Result<Writer<'d>, Error> {
        let (program, in_place) = (&self.program, self.emission.is_in_place());
        // Stubs are described where the program's own code is, routines everywhere.
        let describes = if program.eh.fdes.is_empty() {
            self.options.mode.calls()
        } else {
            in_place
        };
        let adds = describes && finds_new_header(program);
        let bytes = Room::of::<I>(&self.options, next).bytes + runtime::BIAS;
        let write_options = WriteOptions {
            zero_fill: true,
            zero_size: Some((bytes, I::COUNTER_UNIT)),
            no_search_table: if in_place {
                !adds
            } else {
                program.refs.registration_follows()
            },
            map_hole: if in_place { START_UP } else { 0 },
            no_way: program.entry_proof.needs_headers,
            like_text: false,
            adds_search_table: adds,
        };
        let mut writer = Writer::new(program.elf, write_options)?;
        match &mut self.emission {
            Emission::InPlace(plan) => {
                in_place::link::<I>(program, plan, &self.options, profile, next, &mut writer)?;
            }
            Emission::Anew(anew) => {
                anew.link::<I>(program, &self.options, profile, next, &mut writer)?;
            }
        }
        Ok(writer)
    }

    /// Links and writes once.
    fn attempt(
        &mut self,
        out: OutputFile<'_>,
        phases: &mut Phases,
    ) -> Result<CoverageReport, Error> {
        phases.begin("link");
        let (mut profile, next) = self.map();
        let writer = self.link(&mut profile, next)?;
        phases.begin("write");
        let summary = writer.write_onto(out.path, out.mode, out.onto)?;
        phases.end();
        Ok(self.report(&profile, next, summary.size))
    }

    fn report(&self, profile: &Profile, next: u64, output_size: u64) -> CoverageReport {
        let of_pin = |pin: &Option<Pin>| FunctionCounters {
            pin: *pin,
            ..FunctionCounters::default()
        };
        let shares: Vec<FunctionCounters> = self.emission.pins().iter().map(of_pin).collect();
        let functions = &profile.functions;
        CoverageReport {
            mode: self.options.mode,
            functions: self.program.functions.len(),
            instrumented: functions.len(),
            pinned: count_pins(&shares),
            blocks: match &self.emission {
                Emission::InPlace(_) => functions.len() as u64,
                Emission::Anew(anew) => anew.blocks(),
            },
            counted: functions.iter().map(|f| f.blocks.len() as u64 + 1).sum(),
            raw_size: I::COUNTER_UNIT + Room::of::<I>(&self.options, next).bytes,
            input_size: self.program.elf.data.len() as u64,
            output_size,
            map: mip::map::write(profile, Width::Wide, 0),
        }
    }
}

impl<I: Covers> Rewriting for Covered<'_, I> {
    type Report = CoverageReport;

    fn write(&mut self, out: OutputFile<'_>, phases: &mut Phases) -> Result<CoverageReport, Error> {
        let done = self.attempt(out, phases);
        if !self.near || !matches!(done, Err(Error::Reach { .. })) {
            return done;
        }
        // Nothing was written.
        self.near = false;
        phases.begin("functions");
        self.emission = Emission::make::<I>(
            &self.program,
            &self.nonlocal_exits,
            &self.options,
            self.near,
        );
        self.attempt(out, phases)
    }

    /// Where code is to be in old bodies it is checked in any case: bodies that control may still reach
    /// are left alone then. Without an instrumented function there is nothing that could differ.
    fn is_checked(&self, asked: bool) -> bool {
        (asked || self.options.reuse) && self.emission.counts()
    }

    fn answer(&mut self, refusal: &Refusal) -> Answer {
        let options = &mut self.options;
        if options.reuse {
            let sealed = options.sealed.len();
            options.sealed.extend(&refusal.functions);
            if options.sealed.len() > sealed && !refusal.last {
                return Answer::Changed;
            }
            // It was not for what is where, or there is no end to it.
            options.reuse = false;
            if !refusal.binding {
                return Answer::Changed;
            }
        }
        let answer = Answer::taken_back(&refusal.functions, &options.keep);
        if let Answer::TakenBack(functions) = &answer {
            options.keep.extend(functions);
            self.emission
                .take_back::<I>(&self.program, &self.options, self.near, functions);
        }
        answer
    }
}

/// Whether it is worth trying if every flag is near the code that sets it ([`Covers::NEAR`]).
fn is_compact<I: Covers>(program: &Program<'_>, options: &CoverageOptions) -> bool {
    let code = program.elf.loads().filter(|p| p.flags & 1 == 1);
    // Stubs are between the old code and a bit after the counters; what is re-emitted takes about the space
    // that it had.
    let size = match options.mode {
        CoverageMode::FunctionCoverage => {
            let end = code.map(|p| p.addr + p.mem_size).min();
            let behind = program.elf.extent().1.saturating_sub(end.unwrap_or(0));
            behind.saturating_add(program.functions.len() as u64 * 12)
        }
        CoverageMode::BlockCoverage => code.map(|p| p.mem_size).sum(),
        CoverageMode::CallGraph | CoverageMode::CallEdges => return false,
    };
    I::NEAR.is_some_and(|near| size < near)
}

/// How counters come into the program.
enum Emission {
    /// At entries, see [`crate::entries`].
    InPlace(Box<Plan>),
    /// Functions are re-emitted.
    Anew(Anew),
}

impl Emission {
    fn make<I: Covers>(
        program: &Program<'_>,
        nonlocal_exits: &NonlocalExits,
        options: &CoverageOptions,
        near: bool,
    ) -> Emission {
        // What leads into the first instructions of a function is known only as far as a jump there takes.
        if !program.refs.kept {
            return Emission::Anew(Anew::make::<I>(program, nonlocal_exits, options, near));
        }
        // Stubs are in one or two places, and branches between them and the old code are direct.
        if !program.has_far_code::<I>()
            && let Some(plan) = in_place::plan::<I>(program, nonlocal_exits, options, near)
        {
            return Emission::InPlace(Box::new(plan));
        }
        Emission::Anew(Anew::make::<I>(program, nonlocal_exits, options, near))
    }

    fn is_in_place(&self) -> bool {
        matches!(self, Emission::InPlace(_))
    }

    /// Whether any function counts.
    fn counts(&self) -> bool {
        match self {
            Emission::InPlace(plan) => plan.functions().next().is_some(),
            Emission::Anew(anew) => !anew.functions.is_empty(),
        }
    }

    /// By function: why it does not count.
    fn pins(&self) -> &[Option<Pin>] {
        match self {
            Emission::InPlace(plan) => &plan.pins,
            Emission::Anew(anew) => &anew.pins,
        }
    }

    /// What the map says of instrumented functions, but for the places of their counters.
    fn functions(&self, program: &Program<'_>) -> Vec<mip::Function> {
        match self {
            Emission::InPlace(plan) => plan
                .functions()
                .map(|(f, cfg_signature)| mip::Function {
                    cfg_signature,
                    ..describe(program, f)
                })
                .collect(),
            Emission::Anew(anew) => anew.functions.clone(),
        }
    }

    /// Leaves functions as they were, by the addresses of their entries.
    fn take_back<I: Covers>(
        &mut self,
        program: &Program<'_>,
        options: &CoverageOptions,
        near: bool,
        functions: &FxHashSet<u64>,
    ) {
        match self {
            Emission::InPlace(plan) => {
                in_place::take_back::<I>(plan, program, options, near, functions);
            }
            Emission::Anew(anew) => anew.take_back(program, functions),
        }
    }
}

/// Gives the map its hash, of the contents: another build, or other options, give another one.
fn seal(profile: &mut Profile, elf: &Elf<'_>) {
    profile.module_hash = 0;
    let mut contents = mip::map::write(profile, Width::Wide, 0);
    contents.extend(identity(elf).hex().bytes());
    profile.module_hash = mip::hash::module_hash(&contents);
}

/// What the map says of a function before its counters are known.
fn describe(program: &Program<'_>, function: usize) -> mip::Function {
    let name = program.name(function);
    mip::Function {
        signature: mip::hash::md5_64(name.as_bytes()),
        name: name.into_bytes(),
        address: program.start(function) as i64,
        size: u32::try_from(program.size(function)).unwrap_or(u32::MAX),
        ..mip::Function::default()
    }
}

/// Counters have four bytes: the number of calls and the time.
fn call_counter(edges: bool, place: CallPlace) -> CallCounter<Target> {
    CallCounter {
        count: Target::Counter(0),
        time: Target::Counter(1),
        slow: Target::Slow,
        edges: edges.then_some(Target::SlowWithEdges),
        place,
    }
}
