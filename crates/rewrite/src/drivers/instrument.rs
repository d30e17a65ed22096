//! An instrumented program.
//!
//! Every function that is understood is re-emitted with its counters; the counters are in pages of their
//! own that a start-up routine maps onto the profile file. Pointers to functions stay as they are (they lead
//! to the old entry, which jumps on): so the targets that recorders see are addresses of the input. It also
//! makes old entries the only way in from outside, where checks for per-thread counters ([`per_thread`]) are.

use std::fs::File;
use std::marker::PhantomData;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_elf::write::{NewId, NewKind, NewSection, Onto, Placed, WriteOptions, Writer};
use postlink_elf::{OutputAddr, OutputOffset};
use postlink_isa::frames::{FrameEntry, Frames};
use postlink_isa::{
    Code, CounterMode, Isa, PerThreadMemory, RuntimeConfig, RuntimeEntry, SiteRef, with_isa,
};
use postlink_profile::raw;
use regex::bytes::Regex;
use rustc_hash::FxHashSet;
use serde::Serialize;

use super::rewriting::{Answer, OutputFile, Refusal, Rewriting};
use crate::analyse::{
    Analysed, CounterMap, EntryPatch, FunctionCounters, Rows, Scratch, Target, biased, count_pins,
    per_thread, prepare, stub_registers,
};
use crate::discover::{
    NonlocalExits, Program, check_input, check_program, finds_new_header, is_program, libc,
};
use crate::error::Error;
use crate::link::{
    self, CALLED, Hook, LinkOptions, Linked, Packed, Placement, ProbeAddresses, Ready, RoutineAt,
    emit_in_place, frames_of, hook,
};
use crate::phases::{self, Phases};
use crate::pin::Pin;

/// How counters are incremented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counters {
    /// Per thread where that is possible, else biased where that is; else atomically if the program can have threads or
    /// forks, else plainly.
    #[default]
    Auto,
    /// Each thread in an area of its own; where that is not possible, biased or atomically.
    PerThread,
    /// The thread that loads the program in an area of its own, all others atomically in one that they share; all
    /// atomically where that is not possible.
    Biased,
    /// Atomically.
    Atomic,
    /// Plainly: fast, and inexact when threads meet at a counter.
    Plain,
}

/// What to instrument and how.
#[derive(Clone, Debug)]
pub struct InstrumentOptions {
    /// Profile's file name if the environment names none; `%p`, `%b`, `%h`, `%m`, `%%`.
    pub pattern: String,
    /// Only functions with a name that matches.
    pub functions: Option<Regex>,
    /// How counters are incremented.
    pub counters: Counters,
    /// Why they are not to be per thread, if that is known already: a sentence for the report.
    pub not_per_thread: Option<String>,
    /// Record targets of indirect calls.
    pub calls: bool,
    /// Functions to leave out, by address: the user's wish.
    pub excluded: FxHashSet<u64>,
    /// Functions to leave where they are, by address: those that the checker could not prove.
    pub keep: FxHashSet<u64>,
    /// Tell where blocks went ([`InstrumentReport::blocks`]).
    pub blocks: bool,
    /// Bytes of code that are kept while the checker reads them, for the case that it refuses some. Of more, which
    /// would take several times their size of memory beside what the checker needs, only that is kept which cannot be
    /// read back from the output.
    pub kept_code: usize,
}

impl Default for InstrumentOptions {
    fn default() -> Self {
        InstrumentOptions {
            pattern: "postlink.%p.plraw".into(),
            functions: None,
            counters: Counters::Auto,
            not_per_thread: None,
            calls: true,
            excluded: FxHashSet::default(),
            keep: FxHashSet::default(),
            blocks: false,
            kept_code: 64 << 20,
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct InstrumentReport {
    /// Functions found.
    pub functions: usize,
    /// Instrumented functions.
    pub instrumented: usize,
    /// Functions that stay, by reason.
    pub pinned: Vec<(Pin, usize)>,
    /// Counters in the file's map.
    pub counters: u64,
    /// Indirect calls and tail jumps with a recorder.
    pub sites: u64,
    /// Whether all counters are atomic.
    pub atomic: bool,
    /// How counters are incremented; never [`Counters::Auto`].
    pub counting: Counters,
    /// Why counters are not per thread, where that was to be tried.
    pub not_per_thread: Option<String>,
    /// Why counters are not biased, where that was to be tried.
    pub not_biased: Option<String>,
    /// Size of the input.
    pub input_size: u64,
    /// Size of the output.
    pub output_size: u64,
    /// Where blocks of instrumented functions went, if that was asked for: link-time addresses in the input
    /// and in the output, ascending by the first.
    #[serde(skip)]
    pub blocks: Vec<(u64, u64)>,
}

/// Instruments a file. `mode`: the output's permissions.
pub fn instrument(
    elf: &Elf<'_>,
    options: &InstrumentOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<InstrumentReport, Error> {
    prepare_instrumented(elf, options, phases)?.write(OutputFile::new(out, mode), phases)
}

/// Finds a file's functions and makes their code with counters.
pub fn prepare_instrumented<'d>(
    elf: &'d Elf<'d>,
    options: &InstrumentOptions,
    phases: &mut Phases,
) -> Result<Box<dyn Rewriting<Report = InstrumentReport> + 'd>, Error> {
    with_isa!(check_input(elf)?, I => Ok(Box::new(Instrumented::<I>::new(elf, options, phases)?)))
}

/// Functions with counters, without addresses.
struct Instrumented<'d, I> {
    program: Program<'d>,
    nonlocal_exits: NonlocalExits,
    options: InstrumentOptions,
    counting: Counting,
    /// `None` while it is to be made once more: as counters are to be incremented in another way than before, or as
    /// memory was needed for something else.
    made: Option<Made>,
    /// Functions that the checker refused, by the addresses of their entries: their places stay empty.
    taken_back: FxHashSet<u64>,
    /// Whether the output that was written last has an instrumented function.
    moves: bool,
    /// The output that is there, which can be changed, and the report on it.
    linked: Option<(Linked<'d>, InstrumentReport)>,
    isa: PhantomData<fn() -> I>,
}

impl<'d, I: Isa> Instrumented<'d, I> {
    fn new(
        elf: &'d Elf<'d>,
        options: &InstrumentOptions,
        phases: &mut Phases,
    ) -> Result<Self, Error> {
        phases.begin("discover");
        let mut program = if I::PER_THREAD.is_some() {
            Program::discover_for_threads::<I>(elf)?
        } else {
            Program::discover::<I>(elf)?
        };
        elf.release();
        check_program(&program)?;
        let mut nonlocal_exits = NonlocalExits::new(&program);
        let counting = Counting::choose::<I>(&program, &mut nonlocal_exits, options);
        program.survey = None;
        let mut instrumented = Instrumented {
            program,
            nonlocal_exits,
            options: options.clone(),
            counting,
            made: None,
            taken_back: FxHashSet::default(),
            moves: false,
            linked: None,
            isa: PhantomData,
        };
        phases.begin("functions");
        instrumented.make();
        phases.end();
        Ok(instrumented)
    }

    /// Emits all functions, if that is still to be done; once more if what stays turns out to forbid counters
    /// per thread.
    fn make(&mut self) -> &Made {
        let Instrumented {
            program,
            nonlocal_exits,
            options,
            counting,
            made,
            taken_back,
            ..
        } = self;
        made.get_or_insert_with(|| {
            let mut made = make_with_counters::<I>(program, nonlocal_exits, options, counting);
            made.take_back(program, taken_back);
            program.elf.release();
            made
        })
    }

    /// Unpacks functions that were packed. If the file does not have their code any more, all are to be made again.
    fn unpack(&mut self) {
        let Some(made) = &mut self.made else { return };
        let Some(packed) = made.packed.take() else {
            return;
        };
        match packed.unpack() {
            Some(ready) => {
                made.ready = ready;
                made.take_back(&self.program, &self.taken_back);
            }
            None => self.made = None,
        }
    }

    /// Leaves functions where they were, by the addresses of their entries.
    fn take_back(&mut self, functions: &FxHashSet<u64>) {
        self.taken_back.extend(functions);
        if let Some(made) = &mut self.made {
            made.take_back(&self.program, functions);
        }
        if self.counting.how == Counters::PerThread {
            let start = |f: usize| self.program.start(f);
            let moved: Vec<bool> = (0..self.program.functions.len())
                .map(|f| !functions.contains(&start(f)))
                .collect();
            if let Some(why) =
                per_thread::staying_obstacle::<I>(&self.program, &self.nonlocal_exits, &moved)
            {
                self.not_per_thread(why);
            }
        }
    }

    /// Counters are incremented in another way: all code is made again.
    fn not_per_thread(&mut self, why: String) {
        let asked = self.options.counters;
        self.counting.fall_back::<I>(&self.program, asked, why);
        self.options.keep.extend(self.taken_back.drain());
        self.made = None;
    }

    /// Takes functions that were taken back since out of the output that is there. `None`: it is to be linked.
    fn change(
        &mut self,
        out: OutputFile<'_>,
        phases: &mut Phases,
    ) -> Result<Option<InstrumentReport>, Error> {
        let (Some(made), Some((linked, report))) = (&mut self.made, &mut self.linked) else {
            return Ok(None);
        };
        let (Some(packed), Onto::Before) = (&mut made.packed, out.onto) else {
            return Ok(None);
        };
        phases.begin("link");
        let (program, file) = (&self.program, (out.path, out.mode));
        let jumps = [&made.patches[..], &made.unpatched[..]];
        let changed = linked.take_out::<I>(program, packed, jumps, &self.taken_back, file)?;
        let Some((summary, gone)) = changed else {
            return Ok(None);
        };
        phases.end();
        for function in &gone {
            made.map.shares[function.function as usize].pin = Some(Pin::NotProved);
            report.sites -= function.sites;
        }
        report
            .blocks
            .retain(|block| !gone.iter().any(|g| g.had(block.1)));
        report.instrumented -= gone.len();
        report.pinned = count_pins(&made.map.shares);
        report.output_size = summary.size;
        self.moves = report.instrumented > 0;
        Ok(Some(report.clone()))
    }

    fn report(&self, made: &Made, placed: &Placement, output_size: u64) -> InstrumentReport {
        // By function: whether it moves, and how many recorders it has.
        let counts = postlink_parallel::map(&made.ready, |r| {
            let sites = r.recorder_offsets.iter().filter(|o| **o != u32::MAX);
            (!r.taken_back).then(|| sites.count() as u64)
        });
        InstrumentReport {
            functions: self.program.functions.len(),
            instrumented: counts.iter().flatten().count(),
            pinned: count_pins(&made.map.shares),
            counters: made.map.subject.counters,
            sites: counts.iter().flatten().sum(),
            atomic: self.counting.how == Counters::Atomic,
            counting: self.counting.how,
            not_per_thread: self.counting.not_per_thread.clone(),
            not_biased: self.counting.not_biased.clone(),
            input_size: self.program.elf.data.len() as u64,
            output_size,
            blocks: block_places(made, placed),
        }
    }
}

impl<I: Isa> Rewriting for Instrumented<'_, I> {
    type Report = InstrumentReport;

    fn write(
        &mut self,
        out: OutputFile<'_>,
        phases: &mut Phases,
    ) -> Result<InstrumentReport, Error> {
        if let Some(report) = self.change(out, phases)? {
            return Ok(report);
        }
        self.linked = None;
        if self.made.as_ref().is_none_or(|made| made.packed.is_some()) {
            phases.begin("functions");
        }
        self.unpack();
        self.make();
        let Some(made) = &self.made else {
            return Err(Error::internal("functions were not made"));
        };
        if made.ready.is_empty() {
            return Err(nothing_to_count(&count_pins(&made.map.shares)));
        }
        phases.begin("link");
        let (writer, placed, note) =
            link_all::<I>(&self.program, made, self.counting.how, &self.options)?;
        phases.begin("write");
        let is_large = made.code_len() > self.options.kept_code;
        let digests = is_large.then(|| link::digests(&made.ready, &placed, &writer));
        let (summary, written) = writer.write_to_change(out.path, out.mode, out.onto)?;
        phases.end();
        let report = self.report(made, &placed, summary.size);
        self.moves = report.instrumented > 0;
        if let Some(digests) = digests {
            let file = File::open(out.path).ok();
            match (&mut self.made, digests, file) {
                (Some(made), Some(digests), Some(file)) => {
                    let parts = (note, &placed);
                    let linked = Linked::new::<I>(&self.program, written, parts, &self.taken_back);
                    self.linked = linked.map(|linked| (linked, report.clone()));
                    made.pack(&placed, digests, file, summary.appended);
                }
                _ => self.made = None,
            }
        }
        Ok(report)
    }

    /// Without an instrumented function there is nothing that could differ.
    fn is_checked(&self, asked: bool) -> bool {
        asked && self.moves
    }

    fn answer(&mut self, refusal: &Refusal) -> Answer {
        if let Some(why) = &refusal.counting
            && self.counting.how == Counters::PerThread
        {
            // Others ask less of the program.
            self.not_per_thread(why.clone());
            return Answer::Changed;
        }
        let known = &self.options.keep | &self.taken_back;
        let answer = Answer::taken_back(&refusal.functions, &known);
        if let Answer::TakenBack(functions) = &answer {
            self.take_back(functions);
        }
        answer
    }
}

/// How counters are incremented.
struct Counting {
    /// Never [`Counters::Auto`].
    how: Counters,
    /// Why counters are not per thread, where that was to be tried.
    not_per_thread: Option<String>,
    /// Why they are not biased, where they would be.
    not_biased: Option<String>,
}

impl Counting {
    /// By what was asked for, and what the program's code shows.
    fn choose<I: Isa>(
        program: &Program<'_>,
        nonlocal_exits: &mut NonlocalExits,
        options: &InstrumentOptions,
    ) -> Self {
        let not_per_thread = match options.counters {
            // Nothing asks for it, and no program of this machine has it.
            Counters::Auto if I::PER_THREAD.is_none() => None,
            Counters::Auto | Counters::PerThread if options.not_per_thread.is_some() => {
                options.not_per_thread.clone()
            }
            Counters::Auto | Counters::PerThread => {
                per_thread::obstacle::<I>(program, nonlocal_exits)
            }
            _ => None,
        };
        let wanted = matches!(options.counters, Counters::Auto | Counters::PerThread);
        let may = wanted && I::PER_THREAD.is_some() && not_per_thread.is_none();
        let mut counting = Counting {
            how: Counters::PerThread,
            not_per_thread,
            not_biased: None,
        };
        if !may {
            counting.not_biased = not_biased::<I>(program, options.counters);
            let biased = counting.not_biased.is_none();
            counting.how = otherwise::<I>(program, options.counters, biased);
        }
        counting
    }

    /// Not per thread, after all. `asked`: how counters were to be incremented.
    fn fall_back<I: Isa>(&mut self, program: &Program<'_>, asked: Counters, why: String) {
        self.not_per_thread = Some(why);
        let biased = not_biased::<I>(program, asked).is_none();
        self.how = otherwise::<I>(program, asked, biased);
    }
}

/// Why counters are not biased, where they would be. All code is read for that.
fn not_biased<I: Isa>(program: &Program<'_>, asked: Counters) -> Option<String> {
    match asked {
        Counters::Auto | Counters::PerThread if I::BIASED.is_none() => None,
        Counters::Auto | Counters::PerThread | Counters::Biased => biased::obstacle::<I>(program),
        Counters::Atomic | Counters::Plain => None,
    }
}

/// How counters are incremented where they are not per thread; `biased`: that is possible.
fn otherwise<I: Isa>(program: &Program<'_>, asked: Counters, biased: bool) -> Counters {
    match asked {
        Counters::Plain => Counters::Plain,
        Counters::Auto | Counters::PerThread | Counters::Biased
            if I::BIASED.is_some() && biased =>
        {
            Counters::Biased
        }
        Counters::Atomic | Counters::PerThread | Counters::Biased => Counters::Atomic,
        Counters::Auto if can_have_threads(program) => Counters::Atomic,
        Counters::Auto if I::PER_THREAD.is_some() && can_fork(program) => Counters::Atomic,
        Counters::Auto => Counters::Plain,
    }
}

/// Emits all functions; once more if what stays turns out to forbid counters per thread.
fn make_with_counters<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    options: &InstrumentOptions,
    counting: &mut Counting,
) -> Made {
    let mut made = loop {
        let mode = counter_mode::<I>(program, counting.how);
        let made = make_all::<I>(program, nonlocal_exits, options, mode);
        if counting.how != Counters::PerThread {
            break made;
        }
        let mut moved = vec![false; program.functions.len()];
        let patched: FxHashSet<u32> = made
            .patches
            .iter()
            .filter_map(|p| program.piece_at(p.entry.get()).map(|piece| piece.function))
            .collect();
        for r in &made.ready {
            // Control that continues in the old body may fork there.
            moved[r.function as usize] =
                program.refs.kept || r.falls_back.is_empty() && patched.contains(&r.function);
        }
        let subject = &made.map.subject;
        let len = raw::counters_len(subject.counters, subject.sites);
        match per_thread::staying_obstacle::<I>(program, nonlocal_exits, &moved) {
            Some(why) => counting.fall_back::<I>(program, options.counters, why),
            None if len > i32::MAX as u64 => {
                let why = "its counters have more than 2 GiB";
                counting.fall_back::<I>(program, options.counters, why.into());
            }
            None => break made,
        }
    };
    let Made { map, ready, .. } = &mut made;
    postlink_parallel::map_mut(ready, |_, r| {
        (r.counter_base, r.site_base) = map.bases[r.function as usize];
    });
    made
}

/// Why a file cannot be instrumented.
fn nothing_to_count(pins: &[(Pin, usize)]) -> Error {
    let reasons = pins
        .iter()
        .map(|(pin, n)| format!("{n} × {}", pin.explain()));
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    Error::Unsupported(format!("no function can be instrumented ({reasons})"))
}

/// Gives functions, counters and routines their places, and fills in what refers to them.
fn link_all<'d, I: Isa>(
    program: &Program<'d>,
    made: &Made,
    counting: Counters,
    options: &InstrumentOptions,
) -> Result<(Writer<'d>, Placement, NewId), Error> {
    let (elf, ready) = (program.elf, &made.ready);
    let memory = CounterMemory::new::<I>(made, counting);
    let write_options = WriteOptions {
        zero_fill: true,
        zero_size: memory
            .own
            .is_none()
            .then_some((memory.all, I::COUNTER_UNIT)),
        no_search_table: program.refs.registration_follows(),
        map_hole: 0,
        no_way: program.entry_proof.needs_headers,
        like_text: false,
        adds_search_table: program.eh.fdes.is_empty() && finds_new_header(program),
    };
    let mut writer = Writer::new(elf, write_options)?;
    let mut slow: Code<Target> = Code::default();
    I::put_site_slow(&mut slow, made.mode, elf.extent());
    let link_options = LinkOptions {
        slow: slow.bytes.clone(),
        ..LinkOptions::instrumented(elf)
    };
    let order: Vec<u32> = (0..ready.len() as u32).collect();
    let orders = [order.as_slice(), order.as_slice()];
    let mut placed = link::place::<I>(program, ready, orders, &link_options, &mut writer);
    placed.plan_veneers::<I>(program, ready, &mut writer);
    let entry = hook(elf)?;
    let routines = Routines::append::<I>(made, &memory, &slow.bytes, &entry, options, &mut writer)?;
    let of_routines = routines.frames::<I>(&placed, &slow.bytes)?;
    placed.unwind::<I>(program, ready, &of_routines, &mut writer)?;
    let (probes, runtime) = routines.fill::<I>(&memory, &slow.bytes, &mut writer)?;
    placed.fill::<I>(program, ready, orders, &probes, &mut writer)?;
    placed.references::<I>(program, ready, &made.patches, false, &mut writer)?;
    // Nearly all pages of the old code were looked at, and most memory is needed next.
    elf.release();
    entry.install(runtime, &mut writer)?;
    placed.symbols(program, ready, &link_options, &mut writer);
    let note = placed.note(program, ready, &made.patches, &link_options, &mut writer)?;
    Ok((writer, placed, note))
}

/// The memory of counters: how large it is.
struct CounterMemory {
    /// Of counters and sites, in whole pages.
    counters: u64,
    /// In front of the counters, if they are per thread or biased.
    before: u64,
    /// How far behind the shared counters the owner's are, if they are biased.
    owners: u64,
    /// With what is in front of the counters or after them: the load bias is there.
    all: u64,
    own: Option<PerThreadMemory>,
}

impl CounterMemory {
    fn new<I: Isa>(made: &Made, counting: Counters) -> Self {
        let subject = &made.map.subject;
        let own = I::PER_THREAD.filter(|_| counting == Counters::PerThread);
        let counters = raw::counters_len(subject.counters, subject.sites)
            .checked_next_multiple_of(I::COUNTER_UNIT)
            .unwrap_or(u64::MAX);
        // The load bias is after the counters, or at the beginning of the private memory in front of them.
        let biased = I::BIASED.filter(|_| counting == Counters::Biased);
        let (before, behind) = match (own, biased) {
            (Some(own), _) => (own.len, 0),
            (None, Some(biased)) => (biased.before, counters.saturating_add(4096)),
            (None, None) => (0, 4096),
        };
        CounterMemory {
            counters,
            before,
            owners: if biased.is_some() { counters } else { 0 },
            all: counters.saturating_add(before).saturating_add(behind),
            own,
        }
    }
}

/// The recorders' slow path, and the start-up routine, which with per-thread counters has the one with it that gives a
/// thread its counters.
struct Routines<'a> {
    slow: Placed,
    start: Placed,
    header: Vec<u8>,
    build_id: String,
    pattern: &'a str,
    sites_offset: u64,
    counters_len: u64,
    entry: RuntimeEntry,
    /// The rows of the start-up routine, if it has the other one with it.
    frames: Option<Frames>,
}

impl<'a> Routines<'a> {
    /// Appends them.
    fn append<I: Isa>(
        made: &Made,
        memory: &CounterMemory,
        slow: &[u8],
        entry: &Hook,
        options: &'a InstrumentOptions,
        writer: &mut Writer<'_>,
    ) -> Result<Routines<'a>, Error> {
        let (subject, unit) = (&made.map.subject, I::COUNTER_UNIT);
        let code = |name: &str, size: usize| NewSection {
            name: name.into(),
            kind: NewKind::Code,
            align: 16,
            size: size as u64,
        };
        let slow = writer.append_anywhere(code(".text.slow", slow.len()));
        let of_threads = memory.own.is_some() || memory.owners > 0;
        let mut routines = Routines {
            slow,
            start: slow,
            header: raw::header_bytes_for(subject, unit, of_threads).to_vec(),
            build_id: subject.identity.hex(),
            pattern: &options.pattern,
            sites_offset: raw::sites_offset(subject.counters),
            counters_len: memory.counters,
            entry: entry.runtime(),
            frames: None,
        };
        // Addresses near by, for a routine of the same size.
        let near = slow.addr.get();
        let counters = near.next_multiple_of(unit) + memory.before.max(unit);
        let config = routines.config(near, counters, near + 0x1000);
        let (bytes, enter) = assemble::<I>(&config, memory)?;
        let frames = start_frames::<I>(&bytes, near, enter, memory)?;
        routines.start = writer.append_anywhere(code(".text.start", bytes.len()));
        routines.frames = frames;
        Ok(routines)
    }

    fn config(&self, at: u64, counters: u64, bias_slot: u64) -> RuntimeConfig<'_> {
        RuntimeConfig {
            at,
            counters,
            counters_len: self.counters_len,
            sites_offset: self.sites_offset,
            bias_slot,
            header: &self.header,
            header_check: raw::HEADER_LEN,
            pattern: self.pattern,
            build_id: &self.build_id,
            entry: self.entry,
        }
    }

    /// What unwind tables have to say of them, and of copies of the slow path.
    fn frames<I: Isa>(&self, placed: &Placement, slow: &[u8]) -> Result<Vec<RoutineAt>, Error> {
        let frames = frames_of::<I>(slow, &[CALLED])?;
        let copies = placed.copies_of_slow_path();
        let copies = copies.chain([self.slow.addr]).map(|start| RoutineAt {
            start,
            frames: frames.clone(),
        });
        let with_start = self.frames.clone().map(|frames| RoutineAt {
            start: self.start.addr,
            frames,
        });
        Ok(copies.chain(with_start).collect())
    }

    /// Appends the counters, and fills the routines. Gives the addresses that code refers to, and the start-up
    /// routine's.
    fn fill<I: Isa>(
        &self,
        memory: &CounterMemory,
        slow: &[u8],
        writer: &mut Writer<'_>,
    ) -> Result<(ProbeAddresses, OutputAddr), Error> {
        let (own, unit) = (memory.own, I::COUNTER_UNIT);
        let counters = writer.append_zero_fill_aligned(".postlink.counters", memory.all, unit);
        let first = counters.addr + memory.before;
        let bias = own.map_or(first + memory.counters + memory.owners, |_| counters.addr);
        let at = self.start.addr.get();
        let config = self.config(at, first.get(), bias.get());
        let (routine, enter) = assemble::<I>(&config, memory)?;
        let place = writer.contents(self.start.id);
        if routine.len() != place.len() {
            return Err(Error::internal(format!(
                "start-up routine changed its size from {} to {}",
                place.len(),
                routine.len()
            )));
        }
        place.copy_from_slice(&routine);
        if start_frames::<I>(&routine, at, enter, memory)? != self.frames {
            return Err(Error::internal("start-up routine changed its rows"));
        }
        writer.contents(self.slow.id).copy_from_slice(slow);
        // Per thread, addresses of counters are offsets in an area.
        let base = match own {
            Some(_) => OutputAddr::default(),
            None => first,
        };
        let probes = ProbeAddresses {
            counters: base,
            counter_size: 8,
            sites: base + self.sites_offset,
            bias,
            slow: self.slow.addr,
            ready: counters.addr + own.map_or(0, |own| own.ready),
            enter: OutputAddr::new(enter),
            owner: counters.addr,
            owners: memory.owners,
            ..ProbeAddresses::default()
        };
        Ok((probes, self.start.addr))
    }
}

/// The start-up routine, and where the routine that gives a thread its counters is, if it is there.
fn assemble<I: Isa>(
    config: &RuntimeConfig<'_>,
    memory: &CounterMemory,
) -> Result<(Vec<u8>, u64), Error> {
    Ok(match memory.own {
        None if memory.owners > 0 => (I::biased_runtime(config)?, 0),
        None => (I::runtime(config)?, 0),
        Some(_) => I::per_thread_runtime(config)?,
    })
}

/// The rows of a start-up routine at `at` that has the one with it which gives a thread its counters, at `enter`.
fn start_frames<I: Isa>(
    code: &[u8],
    at: u64,
    enter: u64,
    memory: &CounterMemory,
) -> Result<Option<Frames>, Error> {
    if memory.own.is_none() {
        return Ok(None);
    }
    let enter = FrameEntry {
        at: enter.wrapping_sub(at) as u32,
        ..CALLED
    };
    // Only programs have such counters: they begin there.
    let begin = FrameEntry {
        at: 0,
        outermost: true,
    };
    frames_of::<I>(code, &[begin, enter]).map(Some)
}

/// Where blocks went, if that was asked for: addresses in the input and in the output, ascending.
fn block_places(made: &Made, placed: &Placement) -> Vec<(u64, u64)> {
    // There are no starts if they were not asked for.
    let mut blocks: Vec<(u64, u64)> = made
        .ready
        .iter()
        .zip(&made.starts)
        .zip(&placed.fragments)
        .filter(|((r, _), _)| !r.taken_back)
        .flat_map(|((r, starts), at)| {
            let places = starts.iter().zip(&r.code.blocks);
            places.filter_map(|(start, (fragment, offset))| {
                let fragment = at.get(usize::from(*fragment))?;
                Some((*start, (*fragment + u64::from(*offset)).get()))
            })
        })
        .collect();
    blocks.sort_unstable();
    blocks
}

/// What one pass over all functions makes.
struct Made {
    /// The instructions that count.
    mode: CounterMode,
    /// The counters' map.
    map: CounterMap,
    /// The functions' code. Empty while it is packed.
    ready: Vec<Ready>,
    /// The same, while a checker reads the file that it is in.
    packed: Option<Packed>,
    /// Where old entries get jumps.
    patches: Vec<EntryPatch>,
    /// Those of functions that were taken back.
    unpatched: Vec<EntryPatch>,
    /// Input addresses of their blocks, if they are asked for.
    starts: Vec<Vec<u64>>,
}

impl Made {
    /// Leaves functions where they were, by the addresses of their entries. Their counters stay in the map,
    /// which is the input's.
    fn take_back(&mut self, program: &Program<'_>, functions: &FxHashSet<u64>) {
        let refused = |r: &Ready| functions.contains(&program.start(r.function as usize));
        for r in self.ready.iter_mut().filter(|r| refused(r)) {
            self.map.shares[r.function as usize].pin = Some(Pin::NotProved);
            r.taken_back = true;
        }
        let is_gone = |patch: &mut EntryPatch| functions.contains(&patch.entry.get());
        self.unpatched.extend(self.patches.extract_if(.., is_gone));
    }

    /// Packs the functions. `digests` are of their code; `place` is an address of new code, and its offset in the file.
    fn pack(
        &mut self,
        placed: &Placement,
        digests: Vec<u64>,
        file: File,
        place: (OutputAddr, OutputOffset),
    ) {
        let ready = std::mem::take(&mut self.ready);
        let packed = Packed::new(ready, &placed.fragments, digests, file, place);
        self.packed = Some(packed);
    }

    /// Bytes of the functions' code.
    fn code_len(&self) -> usize {
        let of = |r: &Ready| -> usize {
            let fragments = r.code.fragments.iter();
            fragments.map(|f| f.code.bytes.len()).sum()
        };
        postlink_parallel::map(&self.ready, of).into_iter().sum()
    }
}

impl Drop for Made {
    /// Millions of small buffers: all threads give them back.
    fn drop(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        postlink_parallel::map_owned(ready, drop);
    }
}

/// Emits all functions with their counters.
fn make_all<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    options: &InstrumentOptions,
    mode: CounterMode,
) -> Made {
    type One = (
        FunctionCounters,
        Option<(Ready, Option<EntryPatch>, Vec<u64>)>,
    );
    phases::expect(program.functions.len());
    let scratch = || Scratch {
        rows: Rows::Kept,
        ..Scratch::default()
    };
    let mut made: Vec<One> =
        postlink_parallel::map_range_with(program.functions.len(), scratch, |scratch, f| {
            phases::did();
            let analysed = prepare::analyse_for_now::<I>(program, nonlocal_exits, f, scratch);
            let mut share = FunctionCounters::of(&analysed);
            let wanted = options
                .functions
                .as_ref()
                .is_none_or(|r| r.is_match(program.name(f).as_bytes()))
                && !options.excluded.contains(&program.start(f));
            let ready = match &analysed {
                Ok(_) if options.keep.contains(&program.start(f)) => {
                    share.pin = Some(Pin::NotProved);
                    None
                }
                Ok(a) if wanted => match make::<I>(program, (f, a), mode, options.calls, scratch) {
                    Ok(ready) => {
                        let blocks = a.cfg.blocks.iter().filter(|_| options.blocks);
                        Some((ready, a.entry_patch, blocks.map(|b| b.start).collect()))
                    }
                    Err(pin) => {
                        share.pin = Some(pin);
                        None
                    }
                },
                Ok(_) => {
                    share.pin = Some(Pin::Excluded);
                    None
                }
                Err(_) => None,
            };
            if let Ok(analysed) = analysed {
                scratch.cfg.take_back(analysed.cfg);
                scratch.counters.take_back(analysed.placement);
            }
            (share, ready)
        });
    let shares = made.iter().map(|one| one.0).collect();
    let mut patches = Vec::new();
    let mut starts = Vec::new();
    for (_, patch, blocks) in made.iter_mut().filter_map(|one| one.1.as_mut()) {
        patches.extend(patch.take());
        if options.blocks {
            starts.push(std::mem::take(blocks));
        }
    }
    // In the same memory.
    let ready = made
        .into_iter()
        .filter_map(|(_, one)| Some(one?.0))
        .collect();
    Made {
        mode,
        map: CounterMap::new(program, shares),
        ready,
        packed: None,
        patches,
        unpatched: Vec::new(),
        starts,
    }
}

/// The instructions for a way of counting.
fn counter_mode<I: Isa>(program: &Program<'_>, counting: Counters) -> CounterMode {
    match counting {
        Counters::Plain => CounterMode::Plain,
        Counters::PerThread => CounterMode::PerThread,
        Counters::Biased => CounterMode::Biased,
        _ if uses_atomic_one::<I>(program) => CounterMode::AtomicOne,
        _ => CounterMode::Atomic,
    }
}

/// Emits one function with its counters. `scratch`: what it was analysed with.
fn make<'d, I: Isa>(
    program: &Program<'d>,
    (function, a): (usize, &Analysed<'d>),
    mode: CounterMode,
    calls: bool,
    scratch: &mut Scratch,
) -> Result<Ready, Pin> {
    let Scratch { cfg, counters, .. } = scratch;
    let kept = a.unwind.as_ref().map(|unwind| unwind.reads::<I>(program));
    let kept = kept.transpose()?.unwrap_or_default();
    let mut probes = a
        .placement
        .probes::<I>(program, (&a.cfg, cfg, kept), mode, counters);
    if mode == CounterMode::PerThread {
        probes.fork_checks.clone_from(&a.cfg.forks);
        // No control comes from outside where there is no entry.
        probes.entry_check = a
            .entry_patch
            .map(|_| per_thread::must_save::<I, _>(program, &a.cfg, |b| counters.of_block(cfg, b)));
        probes.secondary_checks = a.secondary_entries.iter().map(|s| s.block).collect();
    }
    let mut recorders: Code<Target> = Code::default();
    let mut recorder_offsets = Vec::new();
    if calls {
        for (n, s) in a.cfg.recorded().enumerate() {
            let mut offset = u32::MAX;
            let bytes = program.elf.bytes_at(s.at, u64::from(s.len)).unwrap_or(&[]);
            let start = program.piece_at(s.at).map_or(s.at, |p| p.start);
            let before = program.elf.bytes_at(start, s.at.saturating_sub(start));
            // The callee of a TLS descriptor preserves every register: nothing is free there.
            let descriptor = program
                .refs
                .tls_descriptor_calls
                .binary_search(&s.at)
                .is_ok()
                || !program.refs.kept
                    && !program.refs.tls_descriptors.is_empty()
                    && I::may_call_descriptor(before.unwrap_or_default(), bytes);
            if !descriptor
                && !stub_registers::are_passed_on::<I>(program, &a.cfg, s)
                && let Some(insn) = I::decode(bytes, s.at)
            {
                let at = recorders.bytes.len().next_multiple_of(4);
                recorders.bytes.resize(at, I::PADDING);
                let refer = |r: SiteRef| match r {
                    SiteRef::Table(word) => Target::SiteWord(8 * n as u32 + word),
                    SiteRef::OwnersTable(word) => Target::OwnersSiteWord(8 * n as u32 + word),
                    SiteRef::Owner => Target::Owner,
                    SiteRef::Bias => Target::Bias,
                    SiteRef::Slow => Target::Slow,
                    SiteRef::Original(addr) => Target::Same(addr),
                };
                let fixed = program.elf.etype == postlink_elf::raw::ET_EXEC;
                if I::put_site(&mut recorders, mode, fixed, bytes, &insn, refer) {
                    offset = at as u32;
                    probes.sites.insert(s.at, n as u32);
                }
            }
            recorder_offsets.push(offset);
        }
    }
    // Neither debug information nor translation tables are made of its spans.
    let mut ready = emit_in_place::<I>(program, function, a, probes, false)?;
    (ready.recorders, ready.recorder_offsets) = (recorders, recorder_offsets);
    Ok(ready)
}

/// Whether the program relies on the instructions of [`CounterMode::AtomicOne`] already. Compilers' helpers
/// (`__aarch64_ldadd8_relax` …) look before they use them, so those do not count. Nor does any other code if some has
/// exclusive loads: helpers of a stripped program have no names, and who may rely on the one needs no other.
fn uses_atomic_one<I: Isa>(program: &Program<'_>) -> bool {
    let any = |has: fn(&[u8]) -> bool| {
        postlink_parallel::any(program.pieces.len(), |i| {
            let p = &program.pieces[i];
            let bytes = program.elf.bytes_at(p.start, p.end - p.start);
            has(bytes.unwrap_or_default()) && !program.name_at(p.start).starts_with("__aarch64_")
        })
    };
    any(I::has_atomic_one) && !any(I::has_exclusive_load)
}

/// Whether the program can make processes that continue in its code.
fn can_fork(program: &Program<'_>) -> bool {
    program.imported(libc::forks).is_some()
}

/// Whether the program can have threads: it starts some, or is a library, whose host may.
fn can_have_threads(program: &Program<'_>) -> bool {
    if !is_program(program.elf) {
        return true;
    }
    const STARTERS: &[&[u8]] = &[
        b"pthread_create",
        b"thrd_create",
        b"clone",
        b"clone3",
        b"_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE",
        b"GOMP_parallel",
    ];
    use postlink_elf::elf::SymbolTable;
    // Only what is called counts: a static libc has `clone` in any case.
    if program.imported(|name| STARTERS.contains(&name)).is_some() {
        return true;
    }
    let table = program.elf.symbols(SymbolTable::Static);
    program.elf.interpreter().is_none()
        && table
            .iter()
            .any(|s| s.section != 0 && matches!(s.name, b"pthread_create" | b"thrd_create"))
}
