//! A copy of a program that counts.
//!
//! Every function that is understood is emitted anew with its counters; the counters lie in pages of their own that a
//! start-up routine maps onto the profile file. Pointers to functions stay as they are (they lead to the old entry, which jumps
//! on): so the targets that recorders see are addresses of the input. It also makes old entries the only way in from outside, where checks for
//! per-thread counters ([`per_thread`]) stand.

use std::path::Path;

use postlink_image::elf::Elf;
use postlink_image::write::{NewKind, NewSection, WriteOptions, Writer};
use postlink_isa::{Code, CounterMode, Isa, RuntimeConfig, RuntimeEntry, SiteRef};
use postlink_profile::raw;
use rayon::prelude::*;
use regex::bytes::Regex;
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::cfg::Cfg;
use crate::discover::Program;
use crate::emit::{self, Plan, Probes, Target};
use crate::leaks::Leaks;
use crate::link::{self, LinkOptions, ProbeAddresses, Ready};
use crate::phases::Phases;
use crate::pin::Pin;
use crate::prepare::{self, Analysed, CounterMap, Machine, Scratch, Share};
use crate::{Error, per_thread, unwind};

/// How counters are incremented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counters {
    /// Per thread where that is possible; else atomically if the program can have threads or forks, else plainly.
    #[default]
    Auto,
    /// Each thread in an area of its own; atomically where that is not possible.
    PerThread,
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
    /// Functions to leave where they are, by address: those that the checker could not prove.
    pub keep: FxHashSet<u64>,
    /// Tell where blocks went ([`InstrumentReport::blocks`]).
    pub blocks: bool,
}

impl Default for InstrumentOptions {
    fn default() -> Self {
        InstrumentOptions {
            pattern: "postlink.%p.plraw".into(),
            functions: None,
            counters: Counters::Auto,
            not_per_thread: None,
            calls: true,
            keep: FxHashSet::default(),
            blocks: false,
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct InstrumentReport {
    /// Functions found.
    pub functions: usize,
    /// Functions that count.
    pub instrumented: usize,
    /// Functions that stay, by reason.
    pub pinned: Vec<(Pin, usize)>,
    /// Counters in the file's map.
    pub counters: u64,
    /// Indirect calls and tail jumps with a recorder.
    pub sites: u64,
    /// Whether counters are atomic.
    pub atomic: bool,
    /// How counters are incremented; never [`Counters::Auto`].
    pub counting: Counters,
    /// Why counters are not per thread, where that was to be tried.
    pub not_per_thread: Option<String>,
    /// Size of the input.
    pub input_size: u64,
    /// Size of the output.
    pub output_size: u64,
    /// Where blocks of functions that count went, if that was asked for: link-time addresses in the input and in the output,
    /// ascending by the first.
    #[serde(skip)]
    pub blocks: Vec<(u64, u64)>,
}

/// Instruments an x86-64 file.
pub fn instrument(
    elf: &Elf<'_>,
    options: &InstrumentOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<InstrumentReport, Error> {
    match prepare::check_input(elf)? {
        Machine::X86_64 => {
            instrument_with::<postlink_isa::x86_64::X86_64>(elf, options, out, mode, phases)
        }
        Machine::AArch64 => {
            instrument_with::<postlink_isa::aarch64::AArch64>(elf, options, out, mode, phases)
        }
    }
}

fn instrument_with<I: Isa>(
    elf: &Elf<'_>,
    options: &InstrumentOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<InstrumentReport, Error> {
    phases.begin("discover");
    let program = Program::discover::<I>(elf)?;
    if !program.refs.kept {
        return Err(Error::Unsupported(
            "the linker kept no relocations: link with -Wl,-q (--emit-relocs) so that every reference to code can be found".into(),
        ));
    }
    let leaks = Leaks::new(&program);
    let mut not_per_thread = match options.counters {
        // Nobody has asked, and no program of this machine has it.
        Counters::Auto if I::PER_THREAD.is_none() => None,
        Counters::Auto | Counters::PerThread if options.not_per_thread.is_some() => {
            options.not_per_thread.clone()
        }
        Counters::Auto | Counters::PerThread => per_thread::obstacle::<I>(&program, &leaks),
        _ => None,
    };
    let fallback = match options.counters {
        Counters::Atomic | Counters::PerThread => Counters::Atomic,
        Counters::Plain => Counters::Plain,
        Counters::Auto if can_have_threads(&program) => Counters::Atomic,
        Counters::Auto if I::PER_THREAD.is_some() && can_fork(&program) => Counters::Atomic,
        Counters::Auto => Counters::Plain,
    };
    let wanted = matches!(options.counters, Counters::Auto | Counters::PerThread);
    let may = wanted && I::PER_THREAD.is_some() && not_per_thread.is_none();
    let mut counting = if may { Counters::PerThread } else { fallback };

    phases.begin("functions");
    let image = elf.extent();
    let (mode_of_counters, made) = loop {
        let mode = counter_mode::<I>(&program, counting);
        let made = make_all::<I>(&program, &leaks, options, mode);
        if counting != Counters::PerThread {
            break (mode, made);
        }
        let mut moved = vec![false; program.functions.len()];
        made.ready
            .iter()
            .for_each(|r| moved[r.function as usize] = true);
        not_per_thread = match per_thread::staying_obstacle::<I>(&program, &leaks, &moved) {
            None if raw::counters_len(made.map.subject.counters, made.map.subject.sites)
                > i32::MAX as u64 =>
            {
                Some("its counters have more than 2 GiB".into())
            }
            None => break (mode, made),
            found => found,
        };
        counting = fallback;
    };
    let Made {
        map,
        mut ready,
        patches,
        starts,
    } = made;
    for r in &mut ready {
        (r.counter_base, r.site_base) = map.bases[r.function as usize];
    }

    phases.begin("link");
    let subject = map.subject;
    let unit = I::COUNTER_UNIT;
    let own = I::PER_THREAD.filter(|_| counting == Counters::PerThread);
    let counters_len = raw::counters_len(subject.counters, subject.sites)
        .checked_next_multiple_of(unit)
        .unwrap_or(u64::MAX);
    // The load bias stands behind the counters, or at the beginning of the private memory in front of them.
    let (before, behind) = own.map_or((0, 4096), |own| (own.len, 0));
    let all = counters_len.saturating_add(before + behind);
    let write_options = WriteOptions {
        zero_fill: true,
        zero_size: own.is_none().then_some((all, unit)),
        no_search_table: program.refs.registration_follows(),
        map_hole: 0,
    };
    let mut writer = Writer::new(elf, write_options)?;
    let mut slow: Code<Target> = Code::default();
    I::put_site_slow(&mut slow, mode_of_counters, image);
    let link_options = LinkOptions {
        slow: slow.bytes.clone(),
        ..LinkOptions::instrumented(elf)
    };
    let order: Vec<u32> = (0..ready.len() as u32).collect();
    let mut placed = link::place::<I>(
        &program,
        &ready,
        [&order, &order],
        &link_options,
        &mut writer,
    );
    placed.bridge::<I>(&program, &ready, &mut writer);
    placed.unwind(&program, &ready, &mut writer)?;

    // The recorders' slow path and the start-up routine.
    let slow_at = writer.append_anywhere(NewSection {
        name: ".text.slow".into(),
        kind: NewKind::Code,
        align: 16,
        size: slow.bytes.len() as u64,
    });
    let entry = hook(elf)?;
    let header = raw::header_bytes_for(&subject, unit, own.is_some());
    let build_id = subject.identity.hex();
    let sites_offset = raw::sites_offset(subject.counters);
    let near = slow_at.addr;
    let mut config = RuntimeConfig {
        at: near,
        counters: near.next_multiple_of(unit) + own.map_or(unit, |own| own.len),
        counters_len,
        sites_offset,
        bias_slot: near + 0x1000,
        header: &header,
        header_check: raw::HEADER_LEN,
        pattern: &options.pattern,
        build_id: &build_id,
        entry: entry.runtime(),
    };
    let assemble = |config: &RuntimeConfig<'_>| match own {
        None => I::runtime(config).map(|code| (code, 0)),
        Some(_) => I::per_thread_runtime(config),
    };
    let size = assemble(&config)?.0.len() as u64;
    let runtime = writer.append_anywhere(NewSection {
        name: ".text.start".into(),
        kind: NewKind::Code,
        align: 16,
        size,
    });
    let counters = writer.append_zero_fill_aligned(".postlink.counters", all, unit);
    config.at = runtime.addr;
    config.counters = counters.addr + before;
    config.bias_slot = own.map_or(counters.addr + counters_len, |_| counters.addr);
    let (code, enter) = assemble(&config)?;
    if code.len() as u64 != size {
        return Err(Error::internal(format!(
            "start-up routine changed its size from {size} to {}",
            code.len()
        )));
    }
    writer.contents(runtime.id).copy_from_slice(&code);
    // Per thread, addresses of counters are offsets in an area.
    let base = if own.is_some() { 0 } else { counters.addr };
    let probes = ProbeAddresses {
        counters: base,
        counter_size: 8,
        sites: base + sites_offset,
        bias: config.bias_slot,
        slow: slow_at.addr,
        ready: counters.addr + own.map_or(0, |own| own.ready),
        enter,
    };
    writer.contents(slow_at.id).copy_from_slice(&slow.bytes);
    placed.fill::<I>(&program, &ready, [&order, &order], &probes, &mut writer)?;
    placed.references::<I>(&program, &ready, &patches, false, &mut writer)?;
    entry.install(elf, runtime.addr, &mut writer)?;
    placed.symbols(&program, &ready, &link_options, &mut writer);
    placed.note(&program, &ready, &link_options, &mut writer)?;

    let mut blocks: Vec<(u64, u64)> = ready
        .iter()
        .zip(&starts)
        .zip(&placed.fragments)
        .flat_map(|((r, starts), at)| {
            let places = starts.iter().zip(&r.code.blocks);
            places.filter_map(|(start, (fragment, offset))| {
                let fragment = at.get(usize::from(*fragment))?;
                Some((*start, fragment + u64::from(*offset)))
            })
        })
        .collect();
    blocks.sort_unstable();
    let instrumented = ready.len();
    let sites = ready
        .iter()
        .flat_map(|r| &r.recorder_offsets)
        .filter(|o| **o != u32::MAX)
        .count() as u64;

    phases.begin("write");
    // Millions of small buffers: they are given back while the file system is at work.
    let (summary, ()) = rayon::join(
        || writer.write(out, mode),
        || ready.into_par_iter().for_each(drop),
    );
    let summary = summary?;
    phases.end();
    Ok(InstrumentReport {
        functions: program.functions.len(),
        instrumented,
        pinned: count_pins(&map.shares),
        counters: subject.counters,
        sites,
        atomic: counting == Counters::Atomic,
        counting,
        not_per_thread,
        input_size: elf.data.len() as u64,
        output_size: summary.size,
        blocks,
    })
}

/// What one pass over all functions makes.
struct Made {
    /// The counters' map.
    map: CounterMap,
    /// The functions' code.
    ready: Vec<Ready>,
    /// Where old entries get jumps.
    patches: Vec<(u64, u64)>,
    /// Input addresses of their blocks, if they are asked for.
    starts: Vec<Vec<u64>>,
}

/// Emits all functions with their counters.
fn make_all<I: Isa>(
    program: &Program<'_>,
    leaks: &Leaks,
    options: &InstrumentOptions,
    mode: CounterMode,
) -> Made {
    type One = (Share, Option<(Ready, Option<(u64, u64)>, Vec<u64>)>);
    let made: Vec<One> = (0..program.functions.len())
        .into_par_iter()
        .map_init(Scratch::default, |scratch, f| {
            let analysed = prepare::analyse::<I>(program, leaks, f, scratch);
            let mut share = Share::of(program, f, &analysed);
            let wanted = options
                .functions
                .as_ref()
                .is_none_or(|r| r.is_match(program.name(f).as_bytes()));
            let ready = match analysed {
                Ok(_) if options.keep.contains(&program.start(f)) => {
                    share.pin = Some(Pin::NotProved);
                    None
                }
                Ok(a) if wanted => match make::<I>(program, f, &a, mode, options.calls) {
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
            (share, ready)
        })
        .collect();
    let mut shares = Vec::with_capacity(made.len());
    let mut ready = Vec::new();
    let mut patches = Vec::new();
    let mut starts = Vec::new();
    for (share, r) in made {
        shares.push(share);
        if let Some((r, p, s)) = r {
            ready.push(r);
            patches.extend(p);
            starts.push(s);
        }
    }
    Made {
        map: CounterMap::new(program.elf, shares),
        ready,
        patches,
        starts,
    }
}

/// The instructions for a way of counting.
fn counter_mode<I: Isa>(program: &Program<'_>, counting: Counters) -> CounterMode {
    match counting {
        Counters::Plain => CounterMode::Plain,
        Counters::PerThread => CounterMode::PerThread,
        _ if uses_atomic_one::<I>(program) => CounterMode::AtomicOne,
        _ => CounterMode::Atomic,
    }
}

/// Reasons and how often each occurs, the most frequent first.
pub fn count_pins(shares: &[Share]) -> Vec<(Pin, usize)> {
    let mut counts: std::collections::BTreeMap<Pin, usize> = std::collections::BTreeMap::new();
    for p in shares.iter().filter_map(|s| s.pin) {
        *counts.entry(p).or_default() += 1;
    }
    let mut list: Vec<_> = counts.into_iter().collect();
    list.sort_by_key(|x| std::cmp::Reverse(x.1));
    list
}

/// Emits one function with its counters.
fn make<'d, I: Isa>(
    program: &Program<'d>,
    function: usize,
    a: &Analysed<'d>,
    mode: CounterMode,
    calls: bool,
) -> Result<Ready, Pin> {
    let mut probes = a.placement.probes::<I>(program, &a.cfg, mode);
    if mode == CounterMode::PerThread {
        probes.fork_checks.clone_from(&a.cfg.forks);
        // Nobody comes from outside where there is no way in.
        probes.entry_check = a
            .entry_patch
            .map(|_| per_thread::must_save::<I>(program, &a.cfg));
        probes.second_checks = a.second.iter().map(|s| s.block).collect();
    }
    let mut recorders: Code<Target> = Code::default();
    let mut recorder_offsets = Vec::new();
    if calls {
        for (n, s) in a.cfg.recorded().enumerate() {
            let mut offset = u32::MAX;
            let bytes = program.elf.bytes_at(s.at, u64::from(s.len)).unwrap_or(&[]);
            // The callee of a TLS descriptor preserves every register: nothing is free there.
            let descriptor = program
                .refs
                .tls_descriptor_calls
                .binary_search(&s.at)
                .is_ok();
            if !descriptor && let Some(insn) = I::decode(bytes, s.at) {
                let at = recorders.bytes.len().next_multiple_of(4);
                recorders.bytes.resize(at, I::PADDING);
                let refer = |r: SiteRef| match r {
                    SiteRef::Table(word) => Target::SiteWord(8 * n as u32 + word),
                    SiteRef::Bias => Target::Bias,
                    SiteRef::Slow => Target::Slow,
                    SiteRef::Original(addr) => Target::Same(addr),
                };
                let fixed = program.elf.etype == postlink_image::raw::ET_EXEC;
                if I::put_site(&mut recorders, mode, fixed, bytes, &insn, refer) {
                    offset = at as u32;
                    probes.sites.insert(s.at, n as u32);
                }
            }
            recorder_offsets.push(offset);
        }
    }
    Ok(Ready {
        recorders,
        recorder_offsets,
        ..emit_in_place::<I>(program, function, a, probes)?
    })
}

/// A function with probes, its blocks in the order of the input. The parts that the compiler split off stay apart.
pub fn emit_in_place<'d, I: Isa>(
    program: &Program<'d>,
    function: usize,
    a: &Analysed<'d>,
    probes: Probes,
) -> Result<Ready, Pin> {
    let mut fragments: [Vec<u32>; 2] = Default::default();
    let one = a
        .unwind
        .as_ref()
        .is_some_and(unwind::FunctionUnwind::one_fragment);
    for (b, block) in a.cfg.blocks.iter().enumerate() {
        fragments[usize::from(block.piece > 0 && !one)].push(b as u32);
    }
    let plan = Plan {
        fragments,
        probes,
        move_addresses: false,
        drop_padding: false,
        ..Plan::default()
    };
    let code = emit::emit::<I>(program, &a.cfg, &plan)?;
    let unwind = carry(program, &a.cfg, a.unwind.as_ref(), &code)?;
    Ok(Ready {
        function: function as u32,
        code,
        unwind,
        table_entries: a.cfg.table_entries.clone(),
        arrivals: a.cfg.arrivals.clone(),
        second: a.second.clone(),
        marks: a.cfg.labels(program, function),
        recorders: Code::default(),
        recorder_offsets: Vec::new(),
        splits: Vec::new(),
        counter_base: 0,
        site_base: 0,
    })
}

/// Unwind information for both fragments.
pub fn carry<'d>(
    program: &Program<'d>,
    cfg: &Cfg,
    from: Option<&unwind::FunctionUnwind<'d>>,
    code: &emit::Emitted,
) -> Result<Option<[unwind::FragmentUnwind; 2]>, Pin> {
    match from {
        None => Ok(None),
        Some(u) => Ok(Some([
            u.carry(program, cfg, &code.fragments[0])?,
            u.carry(program, cfg, &code.fragments[1])?,
        ])),
    }
}

/// Whether the program relies on the instructions of [`CounterMode::AtomicOne`] already. Compilers' helpers (`__aarch64_ldadd8_relax` …) look
/// before they use them, so those do not count.
fn uses_atomic_one<I: Isa>(program: &Program<'_>) -> bool {
    program.pieces.par_iter().any(|p| {
        let bytes = program
            .elf
            .bytes_at(p.start, p.end - p.start)
            .unwrap_or_default();
        I::has_atomic_one(bytes) && !program.name_at(p.start).starts_with("__aarch64_")
    })
}

/// Whether the program can make processes that go on in its code.
fn can_fork(program: &Program<'_>) -> bool {
    program.imported(Leaks::import_forks).is_some()
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
    use postlink_image::elf::SymbolTable;
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

/// Whether a file is started by the kernel (else it is loaded as a library).
pub fn is_program(elf: &Elf<'_>) -> bool {
    const DT_FLAGS_1: i64 = 0x6fff_fffb;
    const DF_1_PIE: u64 = 0x0800_0000;
    const DT_SONAME: i64 = 14;
    elf.etype == 2
        || elf
            .dynamic_value(DT_FLAGS_1)
            .is_some_and(|f| f & DF_1_PIE != 0)
        || elf.interpreter().is_some() && elf.dynamic_value(DT_SONAME).is_none()
}

/// Where the start-up routine is hooked in.
pub(crate) enum Hook {
    /// The ELF entry point.
    Entry(u64),
    /// DT_INIT, with the old initialiser.
    Init(u64),
    /// The first slot of DT_INIT_ARRAY: (slot, old initialiser).
    InitArray(u64, u64),
    /// A new DT_INIT in an unused entry of the dynamic section, at this address.
    NewInit(u64),
}

pub(crate) fn hook(elf: &Elf<'_>) -> Result<Hook, Error> {
    const DT_INIT: i64 = 12;
    const DT_INIT_ARRAY: i64 = 25;
    const DT_INIT_ARRAYSZ: i64 = 27;
    const DT_RELACOUNT: i64 = 0x6fff_fff9;
    const DT_SYMENT: i64 = 11;
    if is_program(elf) {
        return Ok(Hook::Entry(elf.entry));
    }
    if let Some(init) = elf.dynamic_value(DT_INIT) {
        return Ok(Hook::Init(init));
    }
    if let (Some(array), Some(size)) = (
        elf.dynamic_value(DT_INIT_ARRAY),
        elf.dynamic_value(DT_INIT_ARRAYSZ),
    ) && size >= 8
        && let Some(d) = elf
            .dyn_relocs()?
            .iter()
            .find(|d| d.addr == array && d.symbol == 0)
    {
        return Ok(Hook::InitArray(
            d.addend_at.unwrap_or(array),
            d.addend as u64,
        ));
    }
    // Linkers leave a few empty entries behind the last; the loader stops at the first.
    let end = elf.section(".dynamic").map_or(0, |(_, s)| s.end());
    match elf.dynamic.last() {
        Some((_, _, value_at)) if value_at + 8 + 32 <= end => Ok(Hook::NewInit(value_at + 8)),
        // Loaders do without the number of RELATIVE relocations, a hint, and without the size of a symbol, which is fixed.
        _ if elf.dynamic.iter().any(|d| matches!(d.0, DT_RELACOUNT | DT_SYMENT)) => {
            let spare = |tag: i64| elf.dynamic.iter().find(|d| d.0 == tag).map(|d| d.2 - 8);
            Ok(Hook::NewInit(spare(DT_RELACOUNT).or_else(|| spare(DT_SYMENT)).unwrap_or(0)))
        }
        _ => Err(Error::Unsupported(
            "the library has no initialiser (DT_INIT, DT_INIT_ARRAY) and no room in its dynamic section for one: link it with -Wl,-init=SYMBOL".into(),
        )),
    }
}

impl Hook {
    pub(crate) fn runtime(&self) -> RuntimeEntry {
        match self {
            Hook::Entry(next) => RuntimeEntry::Program { next: *next },
            Hook::Init(next) | Hook::InitArray(_, next) => {
                RuntimeEntry::Library { next: Some(*next) }
            }
            Hook::NewInit(_) => RuntimeEntry::Library { next: None },
        }
    }

    pub(crate) fn install(
        &self,
        _elf: &Elf<'_>,
        runtime: u64,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        match self {
            Hook::Entry(_) => writer.set_entry(runtime),
            Hook::Init(_) => writer.set_dynamic(12, runtime)?,
            Hook::InitArray(slot, _) => writer.patch(*slot, &runtime.to_le_bytes())?,
            Hook::NewInit(at) => {
                writer.patch(*at, &12u64.to_le_bytes())?;
                writer.patch(at + 8, &runtime.to_le_bytes())?;
            }
        }
        Ok(())
    }
}
