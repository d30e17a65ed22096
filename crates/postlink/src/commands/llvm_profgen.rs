//! The program under the name `llvm-profgen`: LLVM's options, LLVM's messages, the same work.
//!
//! Options have one dash or two, a value behind `=` or in the next argument; a switch may have a value too.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use postlink_correlate::context::preinline;
use postlink_correlate::disasm::Listing;
use postlink_correlate::dwarf::Lines;
use postlink_correlate::dwarf::split::Files;
use postlink_correlate::machine::{EM_AARCH64, EM_X86_64, Machine};
use postlink_correlate::profgen::{self, Format, Input, Options};
use postlink_correlate::sample::summary;
use postlink_correlate::unwind::Limits;
use postlink_correlate::{pe, probe, script};
use postlink_image::elf::Elf;
use postlink_isa::x86_64::text::Syntax;
use postlink_profile::source::Source;

/// Options with a value: LLVM's name, what it is.
const VALUES: &[(&str, &str)] = &[
    ("binary", "Path of profiled executable binary."),
    ("output", "Output profile file"),
    (
        "perfdata",
        "Path of raw perf data created by Linux perf tool",
    ),
    (
        "perfscript",
        "Path of perf-script trace created by Linux perf tool",
    ),
    ("unsymbolized-profile", "Path of the unsymbolized profile"),
    ("llvm-sample-profile", "Path of the LLVM sample profile"),
    ("pid", "Process Id for the profiled executable binary."),
    ("debug-binary", "Path of debug info binary"),
    ("dwp", "Path of .dwp file"),
    ("format", "Format of output profile: text, extbinary"),
    ("max-search-depth", "Search limit of frame inference"),
    ("compress-recursion", "Compress recursion up to this length"),
    ("csprof-max-context-depth", "Keep the last K frames"),
    (
        "csprof-max-cold-context-depth",
        "Keep the last K frames of cold contexts",
    ),
    (
        "csspgo-preinliner-multiplier-for-previous-inlining",
        "Bonus for previous inlining",
    ),
    (
        "profile-density-threshold",
        "Density below which a hint is given",
    ),
    ("profile-density-cutoff-hot", "Share that density is about"),
    ("disassemble-functions", "Functions to disassemble"),
    ("perf-event", "Keep samples of this event"),
    ("perf-events", "Keep samples of these events"),
    ("sample-period", "Events that a sample stands for"),
    ("profile-summary-hot-count", "Hot threshold"),
    ("profile-summary-cold-count", "Cold threshold"),
    ("profile-summary-cutoff-hot", "Share of hot counts"),
    (
        "profile-summary-cutoff-cold",
        "Share of counts that are not cold",
    ),
    (
        "sample-profile-hot-inline-threshold",
        "Threshold of the pre-inliner",
    ),
    (
        "sample-profile-cold-inline-threshold",
        "Threshold of the pre-inliner",
    ),
    (
        "sample-profile-inline-growth-limit",
        "Limit of the pre-inliner",
    ),
    (
        "sample-profile-inline-limit-min",
        "Limit of the pre-inliner",
    ),
    (
        "sample-profile-inline-limit-max",
        "Limit of the pre-inliner",
    ),
    ("x86-asm-syntax", "att or intel"),
];

/// Switches.
const SWITCHES: &[(&str, &str)] = &[
    ("kernel", "Generate the profile for Linux kernel."),
    ("use-md5", "Use md5 to represent function names"),
    (
        "populate-profile-symbol-list",
        "Populate profile symbol list",
    ),
    ("skip-symbolization", "Dump the unsymbolized profile"),
    ("use-offset", "Work with offsets"),
    (
        "use-first-loadable-segment-as-base",
        "Use first loadable segment as base",
    ),
    ("ignore-stack-samples", "Ignore call stack samples"),
    ("use-dwarf-correlation", "Use dwarf for profile correlation"),
    ("infer-missing-frames", "Infer missing frames"),
    ("csprof-merge-cold-context", "Merge cold contexts"),
    ("trim-cold-profile", "Trim cold functions"),
    ("csspgo-preinliner", "Run the pre-inliner"),
    (
        "use-context-cost-for-preinliner",
        "Use context-sensitive byte size cost",
    ),
    ("csspgo-replay-preinline", "Replay previous inlining"),
    ("gen-cs-nested-profile", "Generate nested profiles"),
    (
        "generate-merged-base-profiles",
        "Add inlined functions of nested profiles to their own profile too",
    ),
    ("update-total-samples", "Update total samples"),
    (
        "fill-zero-for-all-funcs",
        "Fill zero for functions without samples",
    ),
    ("show-density", "Show density"),
    ("show-mmap-events", "Show binary load events"),
    ("show-detailed-warning", "Show detailed warnings"),
    ("show-disassembly-only", "Print disassembled code"),
    ("show-pseudo-probe", "Print pseudo probes"),
    ("show-source-locations", "Print source locations"),
    ("show-canonical-fname", "Print canonical function names"),
    ("leading-ip-only", "Form a profile based only on sample IPs"),
    ("sort-profiled-scc-member", "Order inside components"),
];

const ALIASES: &[(&str, &str)] = &[
    ("o", "output"),
    ("pd", "perfdata"),
    ("ps", "perfscript"),
    ("up", "unsymbolized-profile"),
];

/// Runs with arguments (without the program's name).
pub fn main(arguments: &mut dyn Iterator<Item = String>) -> ExitCode {
    match parse(arguments).and_then(|options| options.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("llvm-profgen: error: {}", crate::errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

/// What was given: every option with its values, in order.
#[derive(Debug, Default)]
struct Given(HashMap<&'static str, Vec<String>>);

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Given> {
    let mut given = Given::default();
    while let Some(argument) = arguments.next() {
        let Some(option) = argument
            .strip_prefix("--")
            .or_else(|| argument.strip_prefix('-'))
        else {
            bail!("Too many positional arguments specified: {argument}");
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        let name = ALIASES
            .iter()
            .find(|alias| alias.0 == name)
            .map_or(name, |alias| alias.1);
        if matches!(name, "help" | "h") {
            help();
            std::process::exit(0);
        }
        if name == "version" {
            println!(
                "postlink {}, compatible with LLVM 19",
                env!("CARGO_PKG_VERSION")
            );
            std::process::exit(0);
        }
        if let Some((known, _)) = VALUES.iter().find(|known| known.0 == name) {
            let value = value.or_else(|| arguments.next());
            let value =
                value.ok_or_else(|| anyhow!("for the --{name} option: requires a value!"))?;
            given.0.entry(known).or_default().push(value);
        } else if let Some((known, _)) = SWITCHES.iter().find(|known| known.0 == name) {
            given
                .0
                .entry(known)
                .or_default()
                .push(value.unwrap_or_else(|| "1".to_owned()));
        } else {
            bail!("Unknown command line argument '{argument}'.  Try: 'llvm-profgen --help'");
        }
    }
    Ok(given)
}

fn help() {
    println!(
        "OVERVIEW: llvm SPGO profile generator\n\nUSAGE: llvm-profgen [options]\n\nOPTIONS:\n"
    );
    println!("Color Options:\n\n  --color  - Use colors in output\n");
    println!(
        "Generic Options:\n\n  --help  - Display available options\n  --version  - Display the version of this program\n"
    );
    println!("ProfGen Options:\n");
    for (name, what) in VALUES {
        println!("  --{name}=<value>  - {what}");
    }
    for (name, what) in SWITCHES {
        println!("  --{name}  - {what}");
    }
}

impl Given {
    fn value(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .and_then(|values| values.last())
            .map(String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        match self.value(name) {
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => {
                    bail!("for the --{name} option: '{text}' value invalid for uint argument!")
                }
            },
            None => Ok(None),
        }
    }

    /// A number of which any negative value means "no limit".
    fn unlimited(&self, name: &str) -> Result<Option<usize>> {
        let number: Option<i64> = self.number(name)?;
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    fn switch(&self, name: &str, default: bool) -> Result<bool> {
        match self.value(name) {
            None => Ok(default),
            Some("" | "1" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => bail!(
                "for the --{name} option: '{other}' is invalid value for boolean argument! Try 0 or 1"
            ),
        }
    }

    fn run(&self) -> Result<()> {
        let binary = self
            .value("binary")
            .ok_or_else(|| anyhow!("for the --binary option: must be specified at least once!"))?;
        let output = self
            .value("output")
            .ok_or_else(|| anyhow!("for the --output option: must be specified at least once!"))?;
        let inputs = [
            "perfdata",
            "perfscript",
            "unsymbolized-profile",
            "llvm-sample-profile",
        ];
        let given: Vec<(&str, &str)> = inputs
            .iter()
            .filter_map(|name| Some((*name, self.value(name)?)))
            .collect();
        let listing = self.switch("show-disassembly-only", false)?;
        if given.is_empty() && !listing {
            bail!(
                "Sample input missing: one of --perfscript, --perfdata, --unsymbolized-profile, --llvm-sample-profile is needed"
            );
        }
        if given.len() > 1 {
            bail!(
                "Multiple inputs: only one of --perfscript, --perfdata, --unsymbolized-profile, --llvm-sample-profile can be used"
            );
        }
        if self.switch("show-source-locations", false)? && !listing {
            bail!("--show-source-locations should work together with --show-disassembly-only!");
        }
        if self
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
        if let Some((_, path)) = given.first()
            && !Path::new(path).exists()
        {
            bail!("Input perf file({path}) doesn't exist.");
        }
        if listing {
            return self.list(&elf, binary);
        }
        let Some(&(kind, path)) = given.first() else {
            return Ok(());
        };
        let mut options = self.options(binary)?;
        let debug_data = self
            .value("debug-binary")
            .map(|path| read(path, "binary"))
            .transpose()?;
        let debug = debug_data.as_deref().map(Elf::parse).transpose()?;
        let debug = debug.as_ref().unwrap_or(&elf);
        let dwp = self.value("dwp").map(Path::new);
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
        let mut bytes = Vec::new();
        let result = profgen::run(&elf, &lines, input, &options, &mut bytes);
        let report = result.map_err(|error| anyhow!("{error}"))?;
        if self.switch("show-mmap-events", false)? {
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

    fn options(&self, binary: &str) -> Result<Options> {
        let defaults = Options::default();
        let mut events: Vec<String> = self.0.get("perf-event").cloned().unwrap_or_default();
        for list in self.0.get("perf-events").into_iter().flatten() {
            events.extend(list.split(',').map(str::to_owned));
        }
        Ok(Options {
            format: match self.value("format").unwrap_or("extbinary") {
                "text" => Format::Text,
                "extbinary" => Format::ExtBinary,
                "binary" => Format::Binary,
                "gcc" => {
                    bail!("Profile encoding format unsupported for writing operations")
                }
                other => bail!("for the --format option: Cannot find option named '{other}'!"),
            },
            hashes: self.switch("use-md5", false)?,
            symbol_list: self.switch("populate-profile-symbol-list", false)?,
            raw: self.switch("skip-symbolization", false)?,
            use_offset: self.switch("use-offset", true)?,
            first_loadable: self.switch("use-first-loadable-segment-as-base", false)?,
            by_lines: self.switch("use-dwarf-correlation", false)?,
            script: script::Options {
                file: Path::new(binary)
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                pid: self.number("pid")?,
                events,
                ip_only: self.switch("leading-ip-only", false)?,
                period: self.number("sample-period")?.unwrap_or(1),
                ignore_chains: self.switch("ignore-stack-samples", false)?,
                kernel: self.switch("kernel", false)?,
                windows: false,
                branches_only: true,
            },
            update_totals: self.switch("update-total-samples", false)?,
            fill_all: self.switch("fill-zero-for-all-funcs", false)?,
            trim_cold: self.switch("trim-cold-profile", false)?,
            summary: summary::Limits {
                hot_count: self.number("profile-summary-hot-count")?,
                cold_count: self.number("profile-summary-cold-count")?,
                hot_cutoff: self
                    .number("profile-summary-cutoff-hot")?
                    .unwrap_or(defaults.summary.hot_cutoff),
                cold_cutoff: self
                    .number("profile-summary-cutoff-cold")?
                    .unwrap_or(defaults.summary.cold_cutoff),
            },
            limits: Limits {
                fold: self.unlimited("compress-recursion")?,
                depth: self.unlimited("csprof-max-context-depth")?,
            },
            infer_frames: self.switch("infer-missing-frames", true)?,
            search_depth: self.number("max-search-depth")?.unwrap_or(u32::MAX),
            merge_cold: match self.value("csprof-merge-cold-context") {
                Some(_) => Some(self.switch("csprof-merge-cold-context", true)?),
                None => None,
            },
            preinliner: match self.switch("csspgo-preinliner", true)? {
                true => Some(self.preinliner()?),
                false => None,
            },
            cost_by_bytes: self.switch("use-context-cost-for-preinliner", true)?,
            nested: self.switch("gen-cs-nested-profile", true)?,
            duplicate: self.switch("generate-merged-base-profiles", false)?,
            cold_depth: self.number("csprof-max-cold-context-depth")?.unwrap_or(1),
            show_density: self.switch("show-density", false)?,
            density_threshold: self
                .number("profile-density-threshold")?
                .unwrap_or(defaults.density_threshold),
            density_cutoff: self
                .number("profile-density-cutoff-hot")?
                .unwrap_or(defaults.density_cutoff),
            detailed: self.switch("show-detailed-warning", false)?,
        })
    }

    fn preinliner(&self) -> Result<preinline::Options> {
        let defaults = preinline::Options::default();
        // LLVM takes signed numbers here and calculates with unsigned ones of 32 bits.
        let number = |name: &str, default: u32| -> Result<u32> {
            Ok(self
                .number::<i32>(name)?
                .map_or(default, |number| number as u32))
        };
        Ok(preinline::Options {
            replay: self.switch("csspgo-replay-preinline", false)?,
            hot: number("sample-profile-hot-inline-threshold", defaults.hot)?,
            cold: number("sample-profile-cold-inline-threshold", defaults.cold)?,
            growth: number("sample-profile-inline-growth-limit", defaults.growth)?,
            least: number("sample-profile-inline-limit-min", defaults.least)?,
            most: number("sample-profile-inline-limit-max", defaults.most)?,
            again: number(
                "csspgo-preinliner-multiplier-for-previous-inlining",
                defaults.again,
            )?,
            order_cycles: self.switch("sort-profiled-scc-member", true)?,
        })
    }

    fn list(&self, elf: &Elf<'_>, binary: &str) -> Result<()> {
        let probes = match self.switch("show-pseudo-probe", false)? {
            true => probe::load(elf)?,
            false => None,
        };
        let lines = match self.switch("show-source-locations", false)? {
            true => Some(Lines::load(elf)?),
            false => None,
        };
        let only = self.value("disassemble-functions");
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
            syntax: match self.value("x86-asm-syntax") {
                Some("intel") => Syntax::Intel,
                _ => Syntax::Att,
            },
            canonical: self.switch("show-canonical-fname", false)?,
            only: only.as_ref(),
        }
        .write(&mut out)?;
        Ok(out.flush()?)
    }
}
