//! A copy of a program that writes a raw machine profile: coverage of functions or blocks, calls with the order of first calls, call edges.
//!
//! Where entries alone count, nothing moves: [`crate::entries`]. For coverage of blocks, and in programs whose unwind tables cannot be extended, the way is that of
//! [`mod@crate::instrument`]: functions that are understood are emitted anew. In both the counters lie in pages that a start-up routine
//! maps onto the file, a `.mipraw` of version 9:
//!
//! | offset in the file | what |
//! |---|---|
//! | 0 | the 32 bytes of the header, zeros up to [`Isa::COUNTER_UNIT`]: 4096, on AArch64 65536 |
//! | there | with calls: the clock, the last place in the order of first calls that was given (4), zero (4) |
//! | | coverage: one byte for each counter; calls: count (4) and place (4) for each function |
//! | | zeros up to the end of a page |
//! | the end | with edges: a table of sampled return addresses, 16 bytes each |
//!
//! What they mean goes to a `.mipmap` beside the output, and nothing of it into the output. Addresses in it count from zero: a function's is its
//! address in the input.
//!
//! Only the function's first block counts its calls; if it is also the head of a loop and a jump leads to the counter, rounds count as well.

use std::path::Path;

use postlink_image::elf::{Elf, SymbolTable};
use postlink_image::note::{Note, NoteKind};
use postlink_image::write::{InSection, NewKind, NewSection, SymbolEdit, WriteOptions, Writer};
use postlink_isa::aarch64::AArch64;
use postlink_isa::coverage::{self, CallCounter, Covers, MipRuntime, SlowConfig};
use postlink_isa::x86_64::X86_64;
use postlink_isa::{Code, Isa, RegSet, RuntimeConfig};
use postlink_mip::{self as mip, Block, InferredBlock, Kind, Profile, Types, Width};
use rayon::prelude::*;
use regex::bytes::Regex;
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::Error;
use crate::cfg::{BlockId, Cfg};
use crate::counters::{cheapest, estimate, spare};
use crate::coverage_blocks::{self, CoverageBlocks};
use crate::discover::Program;
use crate::emit::{NodeCounter, Probes, Target};
use crate::entries::{self, Entered, Places, Plan, Stubs};
use crate::entries_frames::Described;
use crate::instrument::{Hook, count_pins, emit_in_place, hook};
use crate::leaks::Leaks;
use crate::link::{self, LinkOptions, ProbeAddresses, Ready};
use crate::optimize;
use crate::phases::Phases;
use crate::pin::Pin;
use crate::prepare::{self, Analysed, Machine, Scratch, Share};
use crate::refs::Refs;

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
    /// Whether code that moves may lie in old bodies. Whether something may still come there is for a checker to say.
    pub reuse: bool,
    /// Functions in whose old bodies nothing else may lie all the same, by address.
    pub sealed: FxHashSet<u64>,
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct CoverageReport {
    /// What is counted.
    pub mode: CoverageMode,
    /// Functions found.
    pub functions: usize,
    /// Functions that count.
    pub instrumented: usize,
    /// Functions that stay, by reason.
    pub pinned: Vec<(Pin, usize)>,
    /// Blocks of functions that count.
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

/// Bytes behind the counters' pages, in which the load bias is.
const BIAS: u64 = 4096;

/// Bytes of the start-up routine and a little more: what all programs have to bear, and a hole in the file saves if it is as large.
const START_UP: u64 = 2400;

/// Instruments a file. The map is in the report.
pub fn instrument_coverage(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<CoverageReport, Error> {
    match prepare::check_input(elf)? {
        Machine::X86_64 => instrument_with::<X86_64>(elf, options, out, mode, phases),
        Machine::AArch64 => instrument_with::<AArch64>(elf, options, out, mode, phases),
    }
}

fn instrument_with<I: Covers>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<CoverageReport, Error> {
    phases.begin("discover");
    let program = Program::discover::<I>(elf)?;
    if !program.refs.kept {
        return Err(Error::Unsupported(
            "the linker kept no relocations: link with -Wl,-q (--emit-relocs) so that every reference to code can be found".into(),
        ));
    }
    let leaks = Leaks::new(&program);
    // Shorter, if all flags turn out to be near.
    if is_compact::<I>(&program, options) {
        let done = attempt::<I>(&program, &leaks, options, true, (out, mode), phases);
        if !matches!(done, Err(Error::Reach { .. })) {
            return done;
        }
    }
    attempt::<I>(&program, &leaks, options, false, (out, mode), phases)
}

/// Whether it is worth trying if every flag is near the code that sets it ([`Covers::NEAR`]).
fn is_compact<I: Covers>(program: &Program<'_>, options: &CoverageOptions) -> bool {
    let code = program.elf.loads().filter(|p| p.flags & 1 == 1);
    // Stubs lie between the old code and a bit behind the counters; what is emitted anew takes about the room that it had.
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

/// Instruments with flags that are near, or anywhere. An error, without anything written, if they are not near.
fn attempt<I: Covers>(
    program: &Program<'_>,
    leaks: &Leaks,
    options: &CoverageOptions,
    near: bool,
    (out, mode): (&Path, u32),
    phases: &mut Phases,
) -> Result<CoverageReport, Error> {
    let elf = program.elf;
    phases.begin("functions");
    let calls = options.mode.calls();
    let (mut pins, mut functions): (Vec<Option<Pin>>, Vec<mip::Function>) = Default::default();
    let way;
    if let Some(plan) = in_place::<I>(program, leaks, options, near) {
        functions = plan
            .functions()
            .map(|(f, cfg_signature)| mip::Function {
                cfg_signature,
                ..describe(program, f)
            })
            .collect();
        pins = plan.pins.clone();
        way = Emission::InPlace(Box::new(plan));
    } else {
        if options.mode == CoverageMode::CallEdges {
            return Err(Error::Unsupported(
                "call edges need an unwind search table (.eh_frame_hdr) of the ordinary form, which this file has not".into(),
            ));
        }
        let mut anew = Anew::default();
        for one in make_all::<I>(program, leaks, options, near) {
            pins.push(one.as_ref().err().copied());
            let Ok(one) = one else { continue };
            functions.push(one.function);
            anew.patches.extend(one.entry_patch);
            anew.blocks += one.blocks;
            anew.ready.push(one.ready);
        }
        way = Emission::Anew(anew);
    }
    // Counters from the clock on.
    let mut next = if calls { CLOCK } else { 0 };
    for function in &mut functions {
        function.raw_offset = I::COUNTER_UNIT + next;
        next += function.counter_bytes(options.mode.types());
    }
    let counted: u64 = functions.iter().map(|f| f.blocks.len() as u64 + 1).sum();
    let mut profile = Profile {
        types: options.mode.types(),
        identity: elf.build_id.map_or(0, mip::create::identity),
        functions,
        ..Profile::default()
    };
    // Of the contents: another build, or other options, give another hash.
    let mut contents = mip::map::write(&profile, Width::Wide, 0);
    contents.extend(prepare::identity(elf).hex().bytes());
    profile.module_hash = mip::hash::module_hash(&contents);
    let map = mip::map::write(&profile, Width::Wide, 0);

    phases.begin("link");
    let bytes = Room::of::<I>(options, next).bytes + BIAS;
    let write_options = WriteOptions {
        zero_fill: true,
        zero_size: Some((bytes, I::COUNTER_UNIT)),
        no_search_table: matches!(way, Emission::InPlace(_)) || program.refs.registration_follows(),
        map_hole: match way {
            Emission::InPlace(_) => START_UP,
            Emission::Anew(_) => 0,
        },
    };
    let mut writer = Writer::new(elf, write_options)?;
    let (instrumented, blocks) = match way {
        Emission::InPlace(plan) => {
            link_in_place::<I>(program, &plan, options, &profile, next, &mut writer)?;
            (profile.functions.len(), profile.functions.len() as u64)
        }
        Emission::Anew(mut anew) => {
            link_anew::<I>(program, &mut anew, options, &profile, next, &mut writer)?;
            (anew.ready.len(), anew.blocks)
        }
    };

    phases.begin("write");
    let summary = writer.write(out, mode)?;
    phases.end();
    let shares: Vec<Share> = pins
        .into_iter()
        .map(|pin| Share {
            pin,
            ..Share::default()
        })
        .collect();
    Ok(CoverageReport {
        mode: options.mode,
        functions: program.functions.len(),
        instrumented,
        pinned: count_pins(&shares),
        blocks,
        counted,
        raw_size: I::COUNTER_UNIT + Room::of::<I>(options, next).bytes,
        input_size: elf.data.len() as u64,
        output_size: summary.size,
        map,
    })
}

/// How counters come into the program.
enum Emission {
    /// At entries, see [`crate::entries`].
    InPlace(Box<Plan>),
    /// Functions are emitted anew.
    Anew(Anew),
}

/// Functions emitted anew.
#[derive(Default)]
struct Anew {
    ready: Vec<Ready>,
    patches: Vec<(u64, u64)>,
    blocks: u64,
}

/// The way without emitting anything anew: where only entries count, and the unwind tables allow it.
fn in_place<I: Covers>(
    program: &Program<'_>,
    leaks: &Leaks,
    options: &CoverageOptions,
    near: bool,
) -> Option<Plan> {
    let edges = options.mode == CoverageMode::CallEdges;
    let functions = options.functions.as_ref();
    match options.mode {
        CoverageMode::BlockCoverage => None,
        CoverageMode::FunctionCoverage => entries::plan::<I>(
            program,
            leaks,
            functions,
            &options.keep,
            true,
            &|out, live, _| I::put_covered(out, live, near, Target::Counter(0)),
        ),
        CoverageMode::CallGraph | CoverageMode::CallEdges => entries::plan::<I>(
            program,
            leaks,
            functions,
            &options.keep,
            false,
            &|out, live, alone| I::put_called(out, live, call_counter(edges && alone, alone)),
        ),
    }
}

/// Counters' pages.
struct Room {
    /// Entries of the table of edges.
    entries: u32,
    /// Where the table begins.
    table: u64,
    /// All of them, whole pages.
    bytes: u64,
}

impl Room {
    /// `next`: the bytes of the functions' counters and the clock.
    fn of<I: Isa>(options: &CoverageOptions, next: u64) -> Room {
        let unit = I::COUNTER_UNIT;
        let entries = match options.mode {
            CoverageMode::CallEdges => options.edges.clamp(256, 1 << 24).next_power_of_two(),
            _ => 0,
        };
        let len = u64::from(entries) * coverage::EDGE;
        let bytes = (next.next_multiple_of(4096) + len)
            .next_multiple_of(unit)
            .max(unit);
        // The slots of a raw file are its end, so the table must end with the last page.
        Room {
            entries,
            table: bytes - len,
            bytes,
        }
    }
}

/// Appends what counters need: the slow way of calls, the start-up routine, and last the counters' pages. Gives the start-up routine's address and those that code
/// refers to.
fn put_runtime<I: Covers>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
    entry: &Hook,
    writer: &mut Writer<'_>,
) -> Result<(u64, ProbeAddresses), Error> {
    let calls = options.mode.calls();
    let room = Room::of::<I>(options, next);
    let unit = I::COUNTER_UNIT;
    let mut header = mip::Header::new(
        Kind::Raw,
        Some(Width::Wide),
        profile.types.without(Types::INFERRED_BLOCKS),
        profile.module_hash,
    );
    header.word = profile.identity;
    header.slots = room.entries;
    let header = header.to_bytes();
    let module = format!("{:04x}", profile.module_hash as u16);
    let build_id = prepare::identity(elf).hex();
    let near = elf.extent().1;
    let mut config = RuntimeConfig {
        at: near,
        counters: near.next_multiple_of(unit) + unit,
        counters_len: room.bytes,
        sites_offset: room.bytes,
        bias_slot: near,
        header: &header,
        header_check: header.len(),
        pattern: &options.pattern,
        build_id: &build_id,
        entry: entry.runtime(),
    };
    let mip_config = MipRuntime {
        module: &module,
        // Orders of first calls are those of one run.
        fresh: calls,
    };
    let mut slow_config = SlowConfig {
        at: near,
        clock: config.counters,
        counters: config.counters,
        table: config.counters + room.table,
        entries: room.entries,
    };
    let slow_code = |config: SlowConfig| -> Result<(Vec<u8>, u64), Error> {
        let one = |config| {
            I::slow(config).map_err(|error| Error::internal(format!("slow path: {error}")))
        };
        if !calls {
            return Ok((Vec::new(), 0));
        }
        // First the one without edges, then the one with.
        let mut code = one(SlowConfig {
            entries: 0,
            ..config
        })?;
        code.resize(code.len().next_multiple_of(16), I::PADDING);
        let with_edges = code.len() as u64;
        if config.entries > 0 {
            let at = config.at + with_edges;
            code.extend(one(SlowConfig { at, ..config })?);
        }
        Ok((code, with_edges))
    };
    // Addresses are loaded as constants of eight bytes or fewer: room for the longest, and what is not needed is padding.
    const SLACK: u64 = 64;
    let slow = match slow_code(slow_config)?.0.len() as u64 {
        0 => None,
        size => Some(writer.append_anywhere(NewSection {
            name: ".text.slow".into(),
            kind: NewKind::Code,
            align: 16,
            size: size + SLACK,
        })),
    };
    let size = I::mip_runtime(&config, mip_config)?.len() as u64 + SLACK;
    let runtime = writer.append_anywhere(NewSection {
        name: ".text.start".into(),
        kind: NewKind::Code,
        align: 16,
        size,
    });
    let counters = writer.append_zero_fill_aligned(".postlink.counters", room.bytes + BIAS, unit);
    config.at = runtime.addr;
    config.counters = counters.addr;
    config.bias_slot = counters.addr + room.bytes;
    slow_config.at = slow.map_or(0, |s| s.addr);
    slow_config.clock = counters.addr;
    slow_config.counters = counters.addr;
    slow_config.table = counters.addr + room.table;
    let (slow_bytes, with_edges) = slow_code(slow_config)?;
    let runtime_bytes = I::mip_runtime(&config, mip_config)?;
    let parts = [
        Some((runtime.id, runtime_bytes)),
        slow.map(|s| (s.id, slow_bytes)),
    ];
    for (section, code) in parts.into_iter().flatten() {
        let room = writer.contents(section);
        let Some(place) = room.get_mut(..code.len()) else {
            return Err(Error::internal(format!(
                "{} bytes of start-up code, where {} were expected",
                code.len(),
                room.len()
            )));
        };
        place.copy_from_slice(&code);
        room[code.len()..].fill(I::PADDING);
    }
    let probes = ProbeAddresses {
        counters: counters.addr,
        counter_size: counter_size(options.mode),
        sites: counters.addr + room.bytes,
        // No recorders here, and so nothing that needs the bias: the name stands for the slow way with edges.
        bias: slow_config.at + with_edges,
        slow: slow_config.at,
        ..ProbeAddresses::default()
    };
    Ok((runtime.addr, probes))
}

/// Bytes of what counters are numbered by.
fn counter_size(mode: CoverageMode) -> u64 {
    if mode.calls() { 4 } else { 1 }
}

fn link_anew<I: Covers>(
    program: &Program<'_>,
    anew: &mut Anew,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    let elf = program.elf;
    for (ready, function) in anew.ready.iter_mut().zip(&profile.functions) {
        ready.counter_base = (function.raw_offset - I::COUNTER_UNIT) / counter_size(options.mode);
    }
    let ready = &anew.ready;
    // Everything moves, so there is room in old bodies for nearly everything. What lies there must not be found by the old unwind entries, nor by debug
    // information, which would name the functions that lay there: Rust's panics ask it.
    // (The checker does not follow what becomes of an address that the input's code registers.)
    let known = Refs::registers_frames(elf) || elf.section(".debug_info").is_some();
    let room = match options.reuse && !known {
        true => optimize::room::<I>(program, ready, &anew.patches, &options.sealed),
        false => Vec::new(),
    };
    let link_options = LinkOptions {
        room,
        room_for_all: true,
        ..LinkOptions::instrumented(elf)
    };
    let order: Vec<u32> = (0..ready.len() as u32).collect();
    let mut placed = link::place::<I>(program, ready, [&order, &order], &link_options, writer);
    placed.bridge::<I>(program, ready, writer);
    placed.unwind(program, ready, writer)?;
    let entry = hook(elf)?;
    let (start, probes) = put_runtime::<I>(elf, options, profile, next, &entry, writer)?;
    placed.fill::<I>(program, ready, [&order, &order], &probes, writer)?;
    placed.references::<I>(program, ready, &anew.patches, false, writer)?;
    entry.install(elf, start, writer)?;
    placed.symbols(program, ready, &link_options, writer);
    placed.note(program, ready, &link_options, writer)
}

fn link_in_place<I: Covers>(
    program: &Program<'_>,
    plan: &Plan,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    let elf = program.elf;
    let first_len = plan.fitting(writer.free_anywhere(entries::STUBS));
    let mut put = |name: &str, size: u64| {
        let section = NewSection {
            name: name.into(),
            kind: NewKind::Code,
            align: entries::STUBS,
            size,
        };
        (size > 0).then(|| writer.append_anywhere(section))
    };
    let first = put(".text.entries", first_len);
    let name = if first_len == 0 {
        ".text.entries"
    } else {
        ".text.entries.rest"
    };
    let rest = put(name, plan.size() - first_len);
    let stubs = Stubs {
        first: first.map_or(0, |s| s.addr),
        first_len,
        rest: rest.map_or(0, |s| s.addr),
    };
    let described = Described {
        places: stubs,
        len: plan.size(),
    };
    let frames = match plan.frames() {
        Some((search, overwriting)) if plan.size() > 0 => {
            let size = search.size(program, described, overwriting)?;
            let section = writer.append_anywhere(NewSection {
                name: ".eh_frame.entries".into(),
                kind: NewKind::ReadOnly,
                align: 8,
                size,
            });
            let (bytes, word) = search.extend(program, described, overwriting, section.addr)?;
            let out = writer.contents(section.id);
            if out.len() != bytes.len() {
                return Err(Error::internal(format!(
                    "the unwind entry of stubs has {} bytes, not {}",
                    bytes.len(),
                    out.len()
                )));
            }
            out.copy_from_slice(&bytes);
            Some(word)
        }
        _ => None,
    };
    if let Some((at, word)) = frames {
        writer.patch(at, &word)?;
    }
    let entry = hook(elf)?;
    let (start, probes) = put_runtime::<I>(elf, options, profile, next, &entry, writer)?;
    let counter = |i: usize, n: u32| {
        probes.counters + profile.functions[i].raw_offset - I::COUNTER_UNIT
            + probes.counter_size * u64::from(n)
    };
    let places = Places {
        stubs,
        counter: &counter,
        slow: probes.slow,
        slow_with_edges: probes.bias,
    };
    let mut code = vec![0; plan.size() as usize];
    plan.fill::<I>(program, &places, &mut code, |at, bytes| {
        Ok(writer.patch(at, bytes)?)
    })?;
    let (in_first, in_rest) = code.split_at(first_len as usize);
    for (section, code) in [(first, in_first), (rest, in_rest)] {
        if let Some(section) = section {
            writer.contents(section.id).copy_from_slice(code);
        }
    }
    entry.install(elf, start, writer)?;
    let entered = plan.entered(program, &stubs);
    for (index, s) in (0u32..).zip(elf.symbols(SymbolTable::Dynamic).iter()) {
        let Some(place) = entered.get(&s.value).filter(|_| s.section != 0) else {
            continue;
        };
        let edit = match *place {
            Entered::Earlier(by) => SymbolEdit {
                value: s.value - by,
                size: if s.size == 0 { 0 } else { s.size + by },
                section: InSection::Old(s.section),
            },
            Entered::Stub(at) => SymbolEdit {
                value: at,
                size: s.size,
                section: match rest.filter(|r| at >= r.addr) {
                    Some(rest) => InSection::New(rest.id),
                    None => first.map_or(InSection::Old(s.section), |f| InSection::New(f.id)),
                },
            },
        };
        writer.edit_symbol(SymbolTable::Dynamic, index, edit);
    }
    // Nothing moved; what changed is proved from the bytes alone.
    let note = Note {
        kind: NoteKind::Instrumented,
        input_id: elf.build_id.unwrap_or_default().to_vec(),
        functions: Vec::new(),
    };
    link::put_note(&note, writer)
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

/// All functions emitted anew, or why not.
fn make_all<'d, I: Covers>(
    program: &Program<'d>,
    leaks: &Leaks,
    options: &CoverageOptions,
    near: bool,
) -> Vec<Result<Made, Pin>> {
    (0..program.functions.len())
        .into_par_iter()
        .map_init(Scratch::default, |scratch, f| {
            let analysed = prepare::analyse::<I>(program, leaks, f, scratch)?;
            if let Some(functions) = &options.functions
                && !functions.is_match(program.name(f).as_bytes())
            {
                return Err(Pin::Excluded);
            }
            if options.keep.contains(&program.start(f)) {
                return Err(Pin::NotProved);
            }
            make::<I>(program, f, &analysed, options.mode, near)
        })
        .collect()
}

/// A function with its counters.
struct Made {
    ready: Ready,
    entry_patch: Option<(u64, u64)>,
    function: mip::Function,
    blocks: u64,
}

fn make<'d, I: Covers>(
    program: &Program<'d>,
    function: usize,
    a: &Analysed<'d>,
    mode: CoverageMode,
    near: bool,
) -> Result<Made, Pin> {
    let start = program.start(function);
    let chosen = match mode {
        CoverageMode::BlockCoverage => coverage_blocks::choose(&a.cfg, &estimate(&a.cfg)),
        _ => CoverageBlocks {
            counted: vec![0],
            inferred: Vec::new(),
        },
    };
    // The first block is also come to from within the function.
    let entered_again = a.cfg.succs.contains(&0);
    let mut probes = Probes {
        put: Some(match mode {
            CoverageMode::FunctionCoverage | CoverageMode::BlockCoverage if near => {
                put_covered::<I, true>
            }
            CoverageMode::FunctionCoverage | CoverageMode::BlockCoverage => put_covered::<I, false>,
            CoverageMode::CallGraph | CoverageMode::CallEdges if entered_again => {
                put_call_inside::<I>
            }
            CoverageMode::CallGraph => put_call::<I>,
            CoverageMode::CallEdges => put_call_and_edge::<I>,
        }),
        ..Probes::default()
    };
    let spare = spare::<I>(program, &a.cfg);
    // Where a store takes no register, one place is as good as another.
    let choosy =
        !mode.calls() && I::covered_len(RegSet::EMPTY, near) != I::covered_len(RegSet::ALL, near);
    for (counter, &b) in (0u32..).zip(&chosen.counted) {
        if a.cfg.blocks[b as usize].watch.whole {
            return Err(Pin::NoPlaceToCount);
        }
        let node = match choosy {
            true => cheapest::<I>(program, &a.cfg, b, counter, spare, &|live| {
                I::covered_len(live, near)
            }),
            false => {
                let (at, live) = first_place::<I>(program, &a.cfg, b, mode);
                NodeCounter { counter, at, live }
            }
        };
        probes.nodes.insert(b, node);
    }
    let ready = emit_in_place::<I>(program, function, a, probes)?;
    // A block in another piece has an offset that wraps.
    let offset = |b: BlockId| a.cfg.blocks[b as usize].start.wrapping_sub(start) as u32;
    let successors = (0..a.cfg.blocks.len() as u32).map(|b| a.cfg.succs(b));
    let mip = mip::Function {
        cfg_signature: mip::hash::cfg_signature(successors),
        blocks: chosen
            .counted
            .iter()
            .skip(1)
            .map(|&b| Block {
                offset: offset(b),
                covered: false,
            })
            .collect(),
        inferred: chosen
            .inferred
            .iter()
            .map(|(b, from)| InferredBlock {
                offset: offset(*b),
                from: from.clone(),
            })
            .collect(),
        ..describe(program, function)
    };
    Ok(Made {
        ready,
        entry_patch: a.entry_patch,
        function: mip,
        blocks: (chosen.counted.len() + chosen.inferred.len()) as u64,
    })
}

fn put_covered<I: Covers, const NEAR: bool>(out: &mut Code<Target>, live: RegSet, counter: u32) {
    I::put_covered(out, live, NEAR, Target::Counter(counter));
}

fn put_call<I: Covers>(out: &mut Code<Target>, live: RegSet, _counter: u32) {
    I::put_called(out, live, call_counter(false, true));
}

fn put_call_and_edge<I: Covers>(out: &mut Code<Target>, live: RegSet, _counter: u32) {
    I::put_called(out, live, call_counter(true, true));
}

fn put_call_inside<I: Covers>(out: &mut Code<Target>, live: RegSet, _counter: u32) {
    I::put_called(out, live, call_counter(false, false));
}

/// Counters have four bytes: the number of calls and the time.
fn call_counter(edges: bool, at_entry: bool) -> CallCounter<Target> {
    CallCounter {
        count: Target::Counter(0),
        time: Target::Counter(1),
        slow: Target::Slow,
        edges: edges.then_some(Target::Bias),
        at_entry,
    }
}

/// The first place in a block for a counter, behind a landing pad of indirect branches, and what is live there.
fn first_place<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    b: BlockId,
    mode: CoverageMode,
) -> (u64, RegSet) {
    let block = &cfg.blocks[b as usize];
    let len = block.end - block.start;
    let bytes = program.elf.bytes_at(block.start, len).unwrap_or(&[]);
    let mut at = block.start;
    I::sweep(bytes, block.start, |i| {
        let pad = i.traits.landing_pad;
        if pad {
            at = i.end();
        }
        pad
    });
    let live = if mode.calls() {
        crate::counters::live_at::<I>(program, cfg, b, at)
    } else {
        // A store of a constant destroys nothing.
        RegSet::ALL
    };
    (at.min(block.term_at), live)
}
