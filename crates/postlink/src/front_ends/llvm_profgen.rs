//! The program under the name `llvm-profgen`: LLVM's options, LLVM's messages, the same work.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use postlink_elf::elf::Elf;
use postlink_isa::x86_64::text::Syntax;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::dwarf::split::Files;
use postlink_profgen::sample::summary;
use postlink_profgen::{
    Accesses, ContextLimits, EM_AARCH64, EM_X86_64, Format, Input, Listing, Machine, Options,
    generate, pe, preinline, probe,
};
use postlink_profile::{Source, progress};

use super::Arguments;
use super::options::{Asked, Given, Kind, Tool, ignored, switch, value};
use crate::ui::Ui;

/// Its command line.
pub const TOOL: Tool = Tool {
    name: "llvm-profgen",
    overview: "llvm SPGO profile generator",
    usage: "llvm-profgen [options]",
    options: &[
        value("binary", "Path of profiled executable binary."),
        value("output", "Output profile file"),
        value(
            "perfdata",
            "Path of raw perf data created by Linux perf tool",
        ),
        value(
            "perfscript",
            "Path of perf-script trace created by Linux perf tool",
        ),
        value("unsymbolized-profile", "Path of the unsymbolized profile"),
        value("llvm-sample-profile", "Path of the LLVM sample profile"),
        value(
            "data-access-perftrace",
            "Path of a recording of reads of data, or of its text by perf report -D",
        ),
        value("pid", "Process Id for the profiled executable binary."),
        value("debug-binary", "Path of debug info binary"),
        value("dwp", "Path of .dwp file"),
        value("format", "Format of output profile: text, extbinary"),
        value("max-search-depth", "Search limit of frame inference"),
        value("compress-recursion", "Compress recursion up to this length"),
        value("csprof-max-context-depth", "Keep the last K frames"),
        value(
            "csprof-max-unsymbolized-context-depth",
            "Keep the last K addresses of a call chain",
        ),
        value(
            "csprof-max-cold-context-depth",
            "Keep the last K frames of cold contexts",
        ),
        value(
            "csspgo-preinliner-multiplier-for-previous-inlining",
            "Bonus for previous inlining",
        ),
        value(
            "profile-density-threshold",
            "Density below which a hint is given",
        ),
        value("profile-density-cutoff-hot", "Share that density is about"),
        value("disassemble-functions", "Functions to disassemble"),
        value("perf-event", "Keep samples of this event"),
        value("perf-events", "Keep samples of these events"),
        value("sample-period", "Events per sample"),
        value("profile-summary-hot-count", "Hot threshold"),
        value("profile-summary-cold-count", "Cold threshold"),
        value("profile-summary-cutoff-hot", "Share of hot counts"),
        value(
            "profile-summary-cutoff-cold",
            "Share of counts that are not cold",
        ),
        value(
            "sample-profile-hot-inline-threshold",
            "Threshold of the pre-inliner",
        ),
        value(
            "sample-profile-cold-inline-threshold",
            "Threshold of the pre-inliner",
        ),
        value(
            "sample-profile-inline-growth-limit",
            "Limit of the pre-inliner",
        ),
        value(
            "sample-profile-inline-limit-min",
            "Limit of the pre-inliner",
        ),
        value(
            "sample-profile-inline-limit-max",
            "Limit of the pre-inliner",
        ),
        value("x86-asm-syntax", "att or intel"),
        switch(
            "extbinary-write-vtable-type-prof",
            "Write virtual tables in extensible binary profiles",
        ),
        switch("kernel", "Generate the profile for Linux kernel."),
        switch("use-md5", "Use md5 to represent function names"),
        switch(
            "populate-profile-symbol-list",
            "Populate profile symbol list",
        ),
        switch("skip-symbolization", "Dump the unsymbolized profile"),
        switch("use-offset", "Work with offsets"),
        switch(
            "use-first-loadable-segment-as-base",
            "Use first loadable segment as base",
        ),
        switch("ignore-stack-samples", "Ignore call stack samples"),
        switch("use-dwarf-correlation", "Use dwarf for profile correlation"),
        switch("infer-missing-frames", "Infer missing frames"),
        switch("csprof-merge-cold-context", "Merge cold contexts"),
        switch("trim-cold-profile", "Trim cold functions"),
        switch("csspgo-preinliner", "Run the pre-inliner"),
        switch(
            "use-context-cost-for-preinliner",
            "Use context-sensitive byte size cost",
        ),
        switch("csspgo-replay-preinline", "Replay previous inlining"),
        switch("gen-cs-nested-profile", "Generate nested profiles"),
        switch(
            "generate-merged-base-profiles",
            "Add inlined functions of nested profiles to their own profile too",
        ),
        switch("update-total-samples", "Update total samples"),
        switch(
            "fill-zero-for-all-funcs",
            "Fill zero for functions without samples",
        ),
        switch("show-density", "Show density"),
        switch("show-mmap-events", "Show binary load events"),
        switch("show-detailed-warning", "Show detailed warnings"),
        switch("show-disassembly-only", "Print disassembled code"),
        switch("show-pseudo-probe", "Print pseudo probes"),
        switch("show-source-locations", "Print source locations"),
        switch("show-canonical-fname", "Print canonical function names"),
        switch("leading-ip-only", "Form a profile based only on sample IPs"),
        switch("sort-profiled-scc-member", "Order inside components"),
        ignored("color", "messages have no colours"),
        ignored(
            "load-function-from-symbol",
            "functions of the symbol table are always known",
        ),
    ],
    aliases: &[
        ("o", "output"),
        ("pd", "perfdata"),
        ("ps", "perfscript"),
        ("up", "unsymbolized-profile"),
    ],
};

/// Runs with arguments (without the program's name).
pub fn main(arguments: Arguments<'_>) -> ExitCode {
    match TOOL.read(arguments).and_then(|asked| match asked {
        Asked::Work(given) => run(&given),
        Asked::Help(_) => {
            help();
            Ok(())
        }
        Asked::Version => {
            println!(
                "postlink {}, compatible with LLVM 22",
                env!("CARGO_PKG_VERSION")
            );
            Ok(())
        }
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: error: {}", TOOL.name, crate::errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

fn help() {
    println!(
        "OVERVIEW: {}\n\nUSAGE: {}\n\nOPTIONS:\n",
        TOOL.overview, TOOL.usage
    );
    println!("Color Options:\n\n  --color  - Use colors in output\n");
    println!(
        "Generic Options:\n\n  --help  - Display available options\n  --version  - Display the version of this program\n"
    );
    println!("ProfGen Options:\n");
    for known in TOOL.options {
        let value = match known.kind {
            Kind::Value => "=<value>",
            _ => "",
        };
        println!("  --{}{value}  - {}", known.name, known.about);
    }
}

fn run(given: &Given) -> Result<()> {
    if let Some(argument) = given.positional.first() {
        bail!("Too many positional arguments specified: {argument}");
    }
    let binary = given
        .value("binary")
        .ok_or_else(|| anyhow!("for the --binary option: must be specified at least once!"))?;
    let output = given
        .value("output")
        .ok_or_else(|| anyhow!("for the --output option: must be specified at least once!"))?;
    let inputs = [
        "perfdata",
        "perfscript",
        "unsymbolized-profile",
        "llvm-sample-profile",
    ];
    let inputs: Vec<(&str, &str)> = inputs
        .iter()
        .filter_map(|name| Some((*name, given.value(name)?)))
        .collect();
    let listing = given.switch("show-disassembly-only", false)?;
    if inputs.is_empty() && !listing {
        bail!(
            "Sample input missing: one of --perfscript, --perfdata, --unsymbolized-profile, --llvm-sample-profile is needed"
        );
    }
    if inputs.len() > 1 {
        bail!(
            "Multiple inputs: only one of --perfscript, --perfdata, --unsymbolized-profile, --llvm-sample-profile can be used"
        );
    }
    if given.switch("show-source-locations", false)? && !listing {
        bail!("--show-source-locations should work together with --show-disassembly-only!");
    }
    if given
        .number::<i64>("compress-recursion")?
        .is_some_and(|length| length < -1)
    {
        bail!("Value of --compress-recursion should >= -1");
    }
    let read = |path: &str, what: &str| -> Result<Vec<u8>> {
        if !Path::new(path).exists() {
            bail!("Input {what}({path}) doesn't exist.");
        }
        std::fs::read(path).map_err(|error| anyhow!("{path}: {error}"))
    };
    let mut data = read(binary, "binary")?;
    let windows = pe::recognise(&data);
    if windows {
        data = pe::as_elf(&data).map_err(|error| anyhow!("{binary}: {error}"))?;
    }
    let elf = Elf::parse(&data).map_err(|error| anyhow!("{binary}: {error}"))?;
    if let Some((_, path)) = inputs.first()
        && !Path::new(path).exists()
    {
        bail!("Input perf file({path}) doesn't exist.");
    }
    if listing {
        return list(given, &elf, binary);
    }
    let Some(&(kind, path)) = inputs.first() else {
        return Ok(());
    };
    let mut options = options(given, binary)?;
    let debug_data = given
        .value("debug-binary")
        .map(|path| read(path, "binary"))
        .transpose()?;
    let debug = debug_data.as_deref().map(Elf::parse).transpose()?;
    let debug = debug.as_ref().unwrap_or(&elf);
    let dwp = given.value("dwp").map(Path::new);
    let mut watched = Ui::new(false, false).phases("profgen");
    watched.phases.begin("lines");
    let files = Files::open(debug, Path::new(binary), dwp)?;
    let lines = Lines::load_split(debug, &files)?;
    let (mut script, samples);
    let input = if kind == "perfscript" {
        script = File::open(path).map_err(|error| anyhow!("{path}: {error}"))?;
        Input::Script(&mut script)
    } else {
        samples = Source::open(Path::new(path))?;
        match kind {
            "perfdata" => Input::PerfData(&samples),
            "unsymbolized-profile" => Input::Raw(&samples),
            _ => Input::Finished(&samples),
        }
    };
    options.script.windows = windows;
    if let Some(path) = given.value("data-access-perftrace") {
        let trace = Source::open(Path::new(path))?;
        options.accesses = Accesses::read(&trace, &elf, &options.script)
            .map_err(|error| anyhow!("{path}: {error}"))?;
    }
    let mut bytes = Vec::new();
    watched.phases.begin("samples");
    if kind == "perfscript" {
        let size = std::fs::metadata(path).map_or(0, |data| data.len());
        progress::expect(size as usize);
    }
    let result = generate(&elf, &lines, input, &options, &mut bytes);
    watched.finish();
    let report = result.map_err(|error| anyhow!("{error}"))?;
    if given.switch("show-mmap-events", false)? {
        for (path, address) in &report.mappings {
            println!("Mmap: Binary {path} loaded at 0x{address:x}: ");
        }
    }
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    for note in &report.notes {
        println!("{note}");
    }
    std::fs::write(output, bytes).map_err(|error| anyhow!("{output}: {error}"))
}

fn options(given: &Given, binary: &str) -> Result<Options> {
    let defaults = Options::default();
    let mut events: Vec<String> = given.values("perf-event").to_vec();
    for list in given.values("perf-events") {
        events.extend(list.split(',').map(str::to_owned));
    }
    Ok(Options {
        format: match given.value("format").unwrap_or("extbinary") {
            "text" => Format::Text,
            "extbinary" => Format::ExtBinary,
            "binary" => Format::Binary,
            "gcc" => {
                bail!("Profile encoding format unsupported for writing operations")
            }
            other => bail!("for the --format option: Cannot find option named '{other}'!"),
        },
        hashes: given.switch("use-md5", false)?,
        symbol_list: given.switch("populate-profile-symbol-list", false)?,
        accesses: Accesses::default(),
        vtables_in_binary: given.switch("extbinary-write-vtable-type-prof", false)?,
        raw: given.switch("skip-symbolization", false)?,
        use_offset: given.switch("use-offset", true)?,
        first_loadable: given.switch("use-first-loadable-segment-as-base", false)?,
        by_lines: given.switch("use-dwarf-correlation", false)?,
        script: postlink_profgen::ScriptOptions {
            file: Path::new(binary)
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            pid: given.number("pid")?,
            events,
            ip_only: given.switch("leading-ip-only", false)?,
            period: given.number("sample-period")?.unwrap_or(1),
            ignore_chains: given.switch("ignore-stack-samples", false)?,
            kernel: given.switch("kernel", false)?,
            windows: false,
            branches_only: true,
        },
        update_totals: given.switch("update-total-samples", false)?,
        fill_all: given.switch("fill-zero-for-all-funcs", false)?,
        trim_cold: given.switch("trim-cold-profile", false)?,
        summary: summary::Limits {
            hot_count: given.number("profile-summary-hot-count")?,
            cold_count: given.number("profile-summary-cold-count")?,
            hot_cutoff: given
                .number("profile-summary-cutoff-hot")?
                .unwrap_or(defaults.summary.hot_cutoff),
            cold_cutoff: given
                .number("profile-summary-cutoff-cold")?
                .unwrap_or(defaults.summary.cold_cutoff),
        },
        limits: ContextLimits {
            fold: given.unlimited("compress-recursion")?,
            depth: given.unlimited("csprof-max-context-depth")?,
            unsymbolized_depth: given.unlimited("csprof-max-unsymbolized-context-depth")?,
        },
        infer_frames: given.switch("infer-missing-frames", true)?,
        search_depth: given.number("max-search-depth")?.unwrap_or(u32::MAX),
        merge_cold: match given.value("csprof-merge-cold-context") {
            Some(_) => Some(given.switch("csprof-merge-cold-context", true)?),
            None => None,
        },
        preinliner: if given.switch("csspgo-preinliner", true)? {
            Some(preinliner(given)?)
        } else {
            None
        },
        cost_by_bytes: given.switch("use-context-cost-for-preinliner", true)?,
        nested: given.switch("gen-cs-nested-profile", true)?,
        duplicate: given.switch("generate-merged-base-profiles", false)?,
        cold_depth: given.number("csprof-max-cold-context-depth")?.unwrap_or(1),
        show_density: given.switch("show-density", false)?,
        density_threshold: given
            .number("profile-density-threshold")?
            .unwrap_or(defaults.density_threshold),
        density_cutoff: given
            .number("profile-density-cutoff-hot")?
            .unwrap_or(defaults.density_cutoff),
        detailed: given.switch("show-detailed-warning", false)?,
    })
}

fn preinliner(given: &Given) -> Result<preinline::Options> {
    let defaults = preinline::Options::default();
    // LLVM takes signed numbers here and calculates with unsigned ones of 32 bits.
    let number = |name: &str, default: u32| -> Result<u32> {
        Ok(given
            .number::<i32>(name)?
            .map_or(default, |number| number as u32))
    };
    Ok(preinline::Options {
        replay: given.switch("csspgo-replay-preinline", false)?,
        hot: number("sample-profile-hot-inline-threshold", defaults.hot)?,
        cold: number("sample-profile-cold-inline-threshold", defaults.cold)?,
        growth: number("sample-profile-inline-growth-limit", defaults.growth)?,
        least: number("sample-profile-inline-limit-min", defaults.least)?,
        most: number("sample-profile-inline-limit-max", defaults.most)?,
        again: number(
            "csspgo-preinliner-multiplier-for-previous-inlining",
            defaults.again,
        )?,
        order_cycles: given.switch("sort-profiled-scc-member", true)?,
    })
}

fn list(given: &Given, elf: &Elf<'_>, binary: &str) -> Result<()> {
    let probes = if given.switch("show-pseudo-probe", false)? {
        probe::load(elf)?
    } else {
        None
    };
    let source = given.switch("show-source-locations", false)?;
    let files = if source {
        Files::of_program(elf)?
    } else {
        Files::NONE
    };
    let lines = if source {
        Some(Lines::load_split(elf, &files)?)
    } else {
        None
    };
    let only = given.value("disassemble-functions");
    let only = only.map(|list| {
        list.split(',')
            .map(|name| name.as_bytes().to_vec())
            .collect()
    });
    let Some(machine) = Machine::of(elf) else {
        bail!(
            "{binary}: e_machine is {}, but only x86-64 ({EM_X86_64}) and AArch64 ({EM_AARCH64}) can be printed",
            elf.machine
        );
    };
    let mut out = std::io::stdout();
    Listing {
        elf,
        name: binary,
        probes: probes.as_ref(),
        lines: lines.as_ref(),
        machine,
        syntax: match given.value("x86-asm-syntax") {
            Some("intel") => Syntax::Intel,
            _ => Syntax::Att,
        },
        canonical: given.switch("show-canonical-fname", false)?,
        only: only.as_ref(),
    }
    .write(&mut out)?;
    Ok(out.flush()?)
}
