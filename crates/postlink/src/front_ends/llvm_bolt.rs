//! `llvm-bolt`: instruments a program, or lays it out for a profile.
//!
//! What its options mean here:
//!
//! | option | here |
//! |---|---|
//! | `-instrument`, `-instrumentation-file=F` | the counters are mapped onto the file `F` while the program runs; `-data=F` takes it as it is |
//! | `-data`, `-b`, `-p` | a profile of any kind, from counters to perf.data |
//! | `-reorder-blocks=` | `none`, or ext-TSP, whatever else is named |
//! | `-reorder-functions=` | `none`, `exec-count`, `hfsort`, `cdsort` and its old name `hfsort+`, `user`; `pettis-hansen` is hfsort |
//! | `-split-functions`, `-split-all-cold`, `-split-eh` | every block that never ran leaves the hot part, landing pads too |
//! | `-funcs`, `-skip-funcs` and their kin | the others, or these, stay where they are |
//! | `-plt=`, `-simplify-rodata-loads`, `-icf`, `-hugify` | as there, by rules that the checker has (`docs/passes.md`) |
//! | `-infer-stale-profile` | always: counts of changed functions are carried over as far as code is recognised |
//!
//! As with LLVM's tool, nothing is reordered or split that the command line does not name. Unlike there, the
//! result is proved before it is written. Options that change instructions in other ways, print LLVM's
//! insides or tune them are taken with a note.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use postlink_bolt_symbols::names;
use postlink_elf::elf::SymbolTable;
use postlink_profile::any::Any;
use postlink_profile::bolt_yaml;
use postlink_rewrite::attach::{Moving, Source};
use postlink_rewrite::stats::DynoStats;
use postlink_rewrite::{
    DebugInfo, Fitted, Folding, FunctionOrder, Inlining, InstrumentOptions, OptimizeOptions,
    PassOptions, Phases, Plt, Promotion, Threading,
};
use regex::bytes::Regex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Arguments;
use super::options::{Given, Known, Tool, ignored, ignored_value, switch, value};
use crate::commands::optimize::{self, ProfileOf};
use crate::input::{Input, Parsed};
use crate::rewriting::{self, Optimized, Proof};
use crate::ui::Ui;

const CODE: &str = "there is no such change of instructions";
const DATA: &str = "data stays where it is";
const DEBUG: &str = "debug information is updated in place, and indexes stay true";
const KERNEL: &str = "Linux kernels are not rewritten";
const PRINT: &str = "nothing of this kind is printed";
const TUNE: &str = "it tunes LLVM's insides";
const ALWAYS: &str = "it is always so";
const COUNTERS: &str =
    "counters are mapped onto the file and always complete: nothing has to be dumped";

/// Where counters go by default, as with LLVM's tool.
const DEFAULT_COUNTERS: &str = "/tmp/prof.fdata";

/// Its command line.
pub const TOOL: Tool = Tool {
    name: "llvm-bolt",
    overview: "BOLT - Binary Optimization and Layout Tool",
    usage: "llvm-bolt [options] <executable>",
    options: OPTIONS,
    aliases: &[
        ("b", "data"),
        ("p", "data"),
        ("perfdata", "data"),
        ("icp", "indirect-call-promotion"),
        ("icp-calls-topn", "indirect-call-promotion-calls-topn"),
        ("icp-jt-topn", "indirect-call-promotion-jump-tables-topn"),
        ("icp-topn", "indirect-call-promotion-topn"),
        (
            "icp-mp-threshold",
            "indirect-call-promotion-mispredict-threshold",
        ),
        ("icp-use-mp", "indirect-call-promotion-use-mispredicts"),
        ("icp-jt-targets", "icp-jump-tables-targets"),
    ],
};

const OPTIONS: &[Known] = &[
    value("o", "<output file>"),
    value(
        "data",
        "<data file>: a profile of any kind; may be given several times",
    ),
    value("w", "save recorded profile to a file"),
    switch(
        "instrument",
        "instrument code to generate accurate profile data",
    ),
    value(
        "instrumentation-file",
        "file that the counters are mapped onto (default: /tmp/prof.fdata)",
    ),
    switch(
        "instrumentation-file-append-pid",
        "append PID to saved profile file name (default: false)",
    ),
    switch(
        "instrument-calls",
        "record profile for indirect calls (default: true)",
    ),
    value(
        "reorder-blocks",
        "none, or ext-tsp (cache+, cache, normal and branch-predictor are taken for it)",
    ),
    value(
        "reorder-functions",
        "none, exec-count, hfsort, cdsort (hfsort+), pettis-hansen (taken for hfsort), user",
    ),
    value(
        "function-order",
        "file containing an ordered list of functions",
    ),
    switch(
        "split-functions",
        "move blocks that never ran out of functions",
    ),
    ignored("split-all-cold", ALWAYS),
    ignored("split-eh", ALWAYS),
    value("split-strategy", "profile2; cdsplit is taken for it"),
    value("align-functions", "align functions at a given value"),
    switch(
        "align-blocks",
        "align basic blocks that are mostly jumped to",
    ),
    value(
        "block-alignment",
        "boundary to use for alignment of basic blocks",
    ),
    value(
        "indirect-call-promotion",
        "none, calls, jump-tables or all: indirect calls are compared with functions, which are called directly; jumps stay",
    ),
    value(
        "indirect-call-promotion-topn",
        "compares a call with at most so many functions",
    ),
    value(
        "icp-calls-remaining-percent-threshold",
        "a function needs this part of the executions that are left",
    ),
    value(
        "icp-calls-total-percent-threshold",
        "a function needs this part of all executions of the call",
    ),
    value(
        "icp-top-callsites",
        "the hottest calls that together have this part of all executions",
    ),
    value(
        "peepholes",
        "none, double-jumps or all: branches to jumps lead to where those lead",
    ),
    switch(
        "inline-small-functions",
        "functions of a few straight-line instructions are inlined where they are called",
    ),
    value(
        "inline-small-functions-bytes",
        "the largest of those functions",
    ),
    switch(
        "inline-all",
        "as --inline-small-functions; larger functions are not inlined",
    ),
    switch(
        "icf",
        "none, safe or all (as without a value): the new code of one function stands for identical ones; pointers stay",
    ),
    switch(
        "simplify-conditional-tail-calls",
        "conditional branches to jumps out of the function are one branch",
    ),
    value(
        "plt",
        "none, hot or all: calls of imported functions take the slot of the procedure linkage table",
    ),
    switch(
        "hugify",
        "hot code at multiples of 2 MiB, for which the program asks for huge pages",
    ),
    switch(
        "simplify-rodata-loads",
        "loads from memory that is never written become immediates",
    ),
    switch("dyno-stats", "print execution info based on profile"),
    switch("enable-bat", "write BOLT Address Translation tables"),
    switch(
        "update-debug-sections",
        "update DWARF debug sections of the executable",
    ),
    value(
        "funcs",
        "limit optimizations to functions from the list (regular expressions)",
    ),
    value(
        "funcs-no-regex",
        "limit optimizations to functions from the list",
    ),
    value(
        "funcs-file",
        "file with list of functions to optimize (regular expressions)",
    ),
    value(
        "funcs-file-no-regex",
        "file with list of functions to optimize",
    ),
    value(
        "skip-funcs",
        "list of functions to skip (regular expressions)",
    ),
    value(
        "skip-funcs-file",
        "file with list of functions to skip (regular expressions)",
    ),
    value("thread-count", "number of threads"),
    switch("no-threads", "disable multithreading"),
    switch(
        "ignore-build-id",
        "take samples of another version of the binary",
    ),
    switch("time-rewrite", "print time spent in each phase"),
    // Always so, or of no meaning.
    ignored("pa", "profiles are recognised by their contents"),
    ignored("nl", "profiles are recognised by their contents"),
    ignored("infer-stale-profile", ALWAYS),
    ignored("infer-fall-throughs", ALWAYS),
    ignored("match-profile-with-function-hash", ALWAYS),
    ignored(
        "match-with-call-graph",
        "functions are matched by names and hashes",
    ),
    ignored_value(
        "name-similarity-function-matching-threshold",
        "functions are matched by names and hashes",
    ),
    ignored(
        "profile-ignore-hash",
        "what does not fit is matched by blocks",
    ),
    ignored(
        "profile-use-dfs",
        "a profile says itself how its blocks are numbered",
    ),
    ignored_value("profile-format", "-w writes YAML"),
    ignored_value("stale-matching-max-func-size", "there is no limit"),
    ignored_value("stale-matching-min-matched-block", "every match counts"),
    ignored_value(
        "stale-threshold",
        "stale functions are matched, however many",
    ),
    ignored("relocs", ALWAYS),
    ignored("lite", "only functions of the profile are moved"),
    ignored_value(
        "lite-threshold-count",
        "only functions of the profile are moved",
    ),
    ignored_value(
        "lite-threshold-pct",
        "only functions of the profile are moved",
    ),
    ignored("no-scan", "all code is looked through for references"),
    ignored(
        "strict",
        "a jump that is not understood keeps its function in place",
    ),
    ignored("use-gnu-stack", "there is space for a segment without it"),
    ignored("use-old-text", "old code stays as it was"),
    ignored("trap-old-code", "old code stays as it was"),
    ignored("force-patch", "old entries always lead to the new ones"),
    ignored(
        "allow-stripped",
        "functions of stripped files are found by unwind entries",
    ),
    ignored("bolt-info", "the section .note.postlink says what was done"),
    ignored_value("bolt-id", "the section .note.postlink says what was done"),
    ignored_value("v", "there are no levels of talk"),
    ignored("time-opts", "-time-rewrite prints times"),
    ignored("time-build", "-time-rewrite prints times"),
    ignored_value(
        "log-file",
        "messages go to standard output and standard error",
    ),
    ignored("sequential-disassembly", "-no-threads does so"),
    ignored_value("tasks-per-thread", TUNE),
    ignored_value("split-threshold", "every block that never ran leaves"),
    ignored_value("split-align-threshold", "every block that never ran leaves"),
    ignored_value("instrumentation-sleep-time", COUNTERS),
    ignored("instrumentation-no-counters-clear", COUNTERS),
    ignored("instrumentation-wait-forks", COUNTERS),
    ignored_value("instrumentation-max-size", COUNTERS),
    ignored(
        "no-lse-atomics",
        "counters use exclusive loads and stores, which every processor has",
    ),
    ignored_value(
        "runtime-lib-init-hook",
        "the start-up routine is entered before any code of the file",
    ),
    ignored_value(
        "instrumentation-binpath",
        "the program does not look for its own file",
    ),
    ignored_value(
        "runtime-instrumentation-lib",
        "there is no library beside the program",
    ),
    ignored_value(
        "runtime-hugify-lib",
        "there is no library beside the program",
    ),
    ignored("conservative-instrumentation", "counts are exact"),
    ignored("instrument-hot-only", "all functions are instrumented"),
    ignored("cg-from-perf-data", TUNE),
    // Changes of instructions.
    ignored_value("indirect-call-promotion-calls-topn", CODE),
    ignored_value("indirect-call-promotion-jump-tables-topn", CODE),
    ignored_value("indirect-call-promotion-mispredict-threshold", CODE),
    ignored("indirect-call-promotion-use-mispredicts", CODE),
    ignored_value("icp-funcs", CODE),
    ignored_value("icp-jt-remaining-percent-threshold", CODE),
    ignored_value("icp-jt-total-percent-threshold", CODE),
    ignored("icp-eliminate-loads", CODE),
    ignored("icp-inline", CODE),
    ignored("icp-jump-tables-targets", CODE),
    ignored("icp-old-code-sequence", CODE),
    ignored_value("sctc-mode", CODE),
    ignored_value("jump-tables", "jump tables stay where they are"),
    ignored("jt-footprint-reduction", "jump tables stay where they are"),
    ignored(
        "jt-footprint-optimize-for-icache",
        "jump tables stay where they are",
    ),
    ignored_value("frame-opt", CODE),
    ignored("frame-opt-rm-stores", CODE),
    ignored_value("shrink-wrapping-threshold", CODE),
    ignored("reg-reassign", CODE),
    ignored("use-aggr-reg-reassign", CODE),
    ignored("inline-ap", CODE),
    ignored("inline-memcpy", CODE),
    ignored_value("inline-limit", CODE),
    ignored_value("inline-max-iters", CODE),
    ignored_value("force-inline", CODE),
    ignored_value("skip-inline", CODE),
    ignored("no-inline", ALWAYS),
    ignored_value("memcpy1-spec", CODE),
    ignored_value("tail-duplication", CODE),
    ignored("shorten-instructions", CODE),
    ignored("strip-rep-ret", CODE),
    ignored("keep-nops", CODE),
    ignored("eliminate-unreachable", CODE),
    ignored("elim-link-veneers", CODE),
    ignored("insert-retpolines", CODE),
    ignored("retpoline-lfence", CODE),
    ignored_value("r11-availability", CODE),
    ignored("stoke", CODE),
    ignored("group-stubs", CODE),
    ignored("x86-strip-redundant-address-size", CODE),
    ignored("x86-align-branch-boundary-hot-only", CODE),
    ignored("trap-avx512", "AVX-512 is copied like everything else"),
    ignored("terminal-trap", TUNE),
    ignored("terminal-x86-hlt", TUNE),
    ignored("assume-abi", TUNE),
    // Placement that is not there.
    ignored("hot-text", "no marks around hot code are made"),
    ignored_value(
        "hot-text-move-sections",
        "no marks around hot code are made",
    ),
    ignored("hot-functions-at-end", "the hottest come first"),
    ignored("no-huge-pages", "code is not aligned to huge pages"),
    ignored_value(
        "align-text",
        "sections are aligned as their functions need it",
    ),
    ignored_value("align-functions-max-bytes", "functions are aligned in full"),
    ignored("use-compact-aligner", "functions are aligned in full"),
    ignored_value(
        "align-blocks-min-size",
        "hot blocks of all sizes are aligned",
    ),
    ignored_value("align-blocks-threshold", "blocks are aligned from 800 % on"),
    ignored(
        "preserve-blocks-alignment",
        "the input's alignment of blocks is not known",
    ),
    ignored_value("pad-funcs", "nothing is put in front of functions"),
    ignored_value("pad-funcs-before", "nothing is put in front of functions"),
    ignored_value(
        "custom-allocation-vma",
        "new code follows the last segment of the input",
    ),
    ignored(
        "compact-code-model",
        "branches are as short as their distances allow, whatever the size",
    ),
    ignored(
        "clone-constant-island",
        "constants stay in old code, where new code reads them",
    ),
    ignored("update-branch-protection", ALWAYS),
    ignored("hot-data", DATA),
    ignored_value("reorder-data", DATA),
    ignored_value("reorder-data-algo", DATA),
    ignored("reorder-data-inplace", DATA),
    ignored_value("reorder-data-max-bytes", DATA),
    ignored_value("reorder-data-max-symbols", DATA),
    ignored_value("reorder-symbols", DATA),
    ignored_value("reorder-skip-symbols", DATA),
    ignored("force-data-relocations", DATA),
    ignored_value("max-data-relocations", TUNE),
    ignored("remove-symtab", "strip does that"),
    // Tuning.
    ignored_value("bolt-seed", "nothing is random"),
    ignored("cg-ignore-recursive-calls", ALWAYS),
    ignored("cg-use-split-hot-size", ALWAYS),
    ignored("reorder-functions-use-hot-size", ALWAYS),
    ignored_value("cold-threshold", TUNE),
    ignored_value("execution-count-threshold", TUNE),
    ignored("equalize-bb-counts", TUNE),
    ignored("fix-block-counts", "counts are balanced as a whole"),
    ignored("fix-func-counts", "counts are balanced as a whole"),
    ignored("iterative-guess", "counts are balanced as a whole"),
    ignored("min-branch-clusters", TUNE),
    ignored_value("tsp-threshold", TUNE),
    ignored("use-edge-counts", ALWAYS),
    ignored("verify-cfg", "the result is proved"),
    ignored("check-encoding", "the result is proved"),
    ignored(
        "fail-on-invalid-padding",
        "bytes between functions are never taken for code",
    ),
    ignored_value("max-funcs", TUNE),
    ignored_value("break-funcs", TUNE),
    ignored("keep-tmp", "there are no temporary files to keep"),
    // Debug information.
    ignored("create-debug-names-section", DEBUG),
    ignored("debug-skeleton-cu", DEBUG),
    ignored("keep-aranges", DEBUG),
    ignored("write-dwp", DEBUG),
    ignored_value("comp-dir-override", DEBUG),
    ignored_value("cu-processing-batch-size", DEBUG),
    ignored_value("dwarf-output-path", DEBUG),
    ignored_value("dwp", DEBUG),
    ignored_value("debug-thread-count", "-thread-count holds for all phases"),
    // Kernels.
    ignored_value("alt-inst-feature-size", KERNEL),
    ignored("alt-inst-has-padlen", KERNEL),
    ignored("long-jump-labels", KERNEL),
    ignored("dump-alt-instructions", KERNEL),
    ignored("dump-linux-exceptions", KERNEL),
    ignored("dump-orc", KERNEL),
    ignored("dump-para-sites", KERNEL),
    ignored("dump-pci-fixups", KERNEL),
    ignored("dump-smp-locks", KERNEL),
    ignored("dump-static-calls", KERNEL),
    ignored("dump-static-keys", KERNEL),
    ignored("print-orc", KERNEL),
    // Listings.
    ignored("asm-dump", PRINT),
    ignored("dot-tooltip-code", PRINT),
    ignored("dump-data", PRINT),
    ignored("dump-dot-all", PRINT),
    ignored_value("dump-cg", PRINT),
    ignored_value(
        "dump-dot-func",
        "`postlink export --to dot` writes the graph of a function",
    ),
    ignored_value(
        "percentile-for-profile-quality-check",
        "`postlink aggregate` says what a profile is worth",
    ),
    ignored_value(
        "top-functions-for-profile-quality-check",
        "`postlink aggregate` says what a profile is worth",
    ),
    ignored(
        "profile-write-pseudo-probes",
        "-w writes blocks with their hashes",
    ),
    ignored_value("data2", "only llvm-boltdiff compares two profiles"),
    ignored("dyno-stats-all", "-dyno-stats prints them once"),
    ignored_value("dyno-stats-scale", PRINT),
    ignored_value("generate-function-order", PRINT),
    ignored_value("generate-link-sections", PRINT),
    ignored_value("report-bad-layout", PRINT),
    ignored("report-stale", "how much was recovered is always said"),
    ignored_value("top-called-limit", PRINT),
    ignored_value("print-dyno-opcode-stats", PRINT),
    ignored_value("print-function-statistics", PRINT),
    ignored_value("print-only", PRINT),
    ignored_value("print-only-file", PRINT),
    ignored("print-adr-ldr-relaxation", PRINT),
    ignored("print-pointer-auth-cfi-analyzer", PRINT),
    ignored("print-pointer-auth-cfi-fixup", PRINT),
    ignored_value("print-pseudo-probes", PRINT),
    ignored_value("print-sorted-by", PRINT),
    ignored_value("print-sorted-by-order", PRINT),
    ignored("print-aliases", PRINT),
    ignored("print-all", PRINT),
    ignored("print-after-branch-fixup", PRINT),
    ignored("print-after-jt-footprint-reduction", PRINT),
    ignored("print-after-lowering", PRINT),
    ignored("print-cache-metrics", PRINT),
    ignored("print-cfg", PRINT),
    ignored("print-clusters", PRINT),
    ignored("print-debug-info", PRINT),
    ignored("print-disasm", PRINT),
    ignored("print-dyno-stats-only", PRINT),
    ignored("print-estimate-edge-counts", PRINT),
    ignored("print-exceptions", PRINT),
    ignored("print-finalized", PRINT),
    ignored("print-fix-relaxations", PRINT),
    ignored("print-fix-riscv-calls", PRINT),
    ignored("print-fop", PRINT),
    ignored("print-globals", PRINT),
    ignored("print-icf", PRINT),
    ignored("print-icp", PRINT),
    ignored("print-inline", PRINT),
    ignored("print-jump-tables", PRINT),
    ignored("print-large-functions", PRINT),
    ignored("print-longjmp", PRINT),
    ignored("print-loops", PRINT),
    ignored("print-mem-data", PRINT),
    ignored("print-normalized", PRINT),
    ignored("print-optimize-bodyless", PRINT),
    ignored("print-output-address-range", PRINT),
    ignored("print-peepholes", PRINT),
    ignored("print-plt", PRINT),
    ignored("print-profile", PRINT),
    ignored("print-profile-stats", PRINT),
    ignored("print-regreassign", PRINT),
    ignored("print-relocations", PRINT),
    ignored("print-reordered", PRINT),
    ignored("print-reordered-data", PRINT),
    ignored("print-reordered-functions", PRINT),
    ignored("print-retpoline-insertion", PRINT),
    ignored("print-sctc", PRINT),
    ignored("print-sdt", PRINT),
    ignored("print-sections", PRINT),
    ignored("print-simplify-rodata-loads", PRINT),
    ignored("print-split", PRINT),
    ignored("print-stoke", PRINT),
    ignored("print-uce", PRINT),
    ignored("print-unknown", PRINT),
    ignored("print-veneer-elimination", PRINT),
];

/// Runs with arguments (without the program's name).
pub fn main(arguments: Arguments<'_>) -> ExitCode {
    super::exit_code("BOLT", run(arguments))
}

fn run(arguments: Arguments<'_>) -> Result<()> {
    let given = TOOL.parse(arguments)?;
    let binary = given.executable()?;
    let output = given
        .value("o")
        .ok_or_else(|| anyhow!("missing required -o option."))?;
    let threads = if given.switch("no-threads", false)? {
        Some(1)
    } else {
        given.number("thread-count")?
    };
    if let Some(threads) = threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()?;
    }
    given.say_ignored("llvm-bolt");
    let ui = Ui::new(false, given.switch("time-rewrite", false)?);
    let input = Input::open(Path::new(binary))?;
    let input = input.parse()?;
    if given.switch("instrument", false)? {
        instrument(&given, &ui, &input, Path::new(output))
    } else {
        optimise(&given, &ui, &input, Path::new(output))
    }
}

fn instrument(given: &Given, ui: &Ui, input: &Parsed<'_>, output: &Path) -> Result<()> {
    let file = given
        .value("instrumentation-file")
        .unwrap_or(DEFAULT_COUNTERS);
    if file.is_empty() {
        bail!("-instrumentation-file names no file");
    }
    let (mut pattern, mut shown) = (file.replace('%', "%%"), file.to_owned());
    if given.switch("instrumentation-file-append-pid", false)? {
        // As BOLT's runtime names them: scripts then look for `FILE.*.fdata`.
        pattern.push_str(".%p.fdata");
        shown.push_str(".PID.fdata");
    }
    let options = InstrumentOptions {
        calls: given.switch("instrument-calls", true)?,
        excluded: excluded(given, input)?,
        pattern,
        ..InstrumentOptions::default()
    };
    let mut watched = ui.phases("instrument");
    let done = rewriting::instrument(input, &options, output, Proof::YES, &mut watched.phases)?;
    watched.finish();
    done.warn(ui);
    let report = &done.report;
    println!(
        "BOLT-INFO: {} out of {} functions instrumented, {} counters, {} indirect call sites",
        report.instrumented, report.functions, report.counters, report.sites
    );
    println!(
        "BOLT-INFO: counters are mapped onto {shown} while the program runs; -data and merge-fdata take them as they are"
    );
    Ok(())
}

fn optimise(given: &Given, ui: &Ui, input: &Parsed<'_>, output: &Path) -> Result<()> {
    let files = given.values("data");
    if files.is_empty() {
        return unprofiled(given, ui, input, output);
    }
    let options = options(given, input)?;
    let mut watched = ui.phases("optimize");
    watched.phases.begin("profile");
    let profile = optimize::read_any(ui, input, files, given.switch("ignore-build-id", false)?)?;
    let optimize = |source: Source<'_>| {
        rewriting::optimize_and_save(
            input,
            source,
            &options,
            output,
            Proof::YES,
            &mut watched.phases,
            |fitted| match given.value("w") {
                Some(path) => save(input, fitted, Path::new(path)),
                None => Ok(()),
            },
        )
    };
    let done = profile
        .with_source(optimize)
        .with_context(|| format!("with the profile {}", files.join(", ")))?;
    watched.finish();
    done.warn(ui);
    let report = &done.report;
    let kind = match profile {
        ProfileOf::Any(Any::Counters(_)) => "counters",
        ProfileOf::Any(Any::Blocks(_)) => "YAML",
        _ => "branch",
    };
    println!("BOLT-INFO: pre-processing profile using {kind} profile reader");
    say_profiled(report.profiled, report.functions);
    if let Some(found) = &report.profile {
        if found.unknown_names > 0 {
            println!(
                "BOLT-WARNING: profile for {} functions that are not in the binary was ignored",
                found.unknown_names
            );
        }
        if found.stale > 0 {
            println!(
                "BOLT-INFO: {} out of {} functions have stale profile; {} of {} blocks were matched, the rest inferred",
                found.stale, found.functions, found.matched_blocks, found.stale_blocks
            );
        }
    }
    if report.not_emitted > 0 {
        println!(
            "BOLT-INFO: {} functions with profile could not be optimized",
            report.not_emitted
        );
    }
    say_done(&done);
    Ok(())
}

/// Rewrites what options ask for that need no profile. The program comes out as it is if none does.
fn unprofiled(given: &Given, ui: &Ui, input: &Parsed<'_>, output: &Path) -> Result<()> {
    if given.value("w").is_some() {
        bail!("-w saves a profile, and there is none: -data names one");
    }
    let mut options = options(given, input)?;
    for option in ["reorder-blocks", "split-functions"] {
        if given.value(option).is_some() {
            println!("BOLT-INFO: -{option} goes by a profile: without one nothing is changed");
        }
    }
    options.reorder_blocks = false;
    options.split_functions = false;
    let order = options.reorder_functions.clone();
    let moving = match &order {
        _ if !options.passes.is_placement_only() => Moving::All,
        FunctionOrder::User(names) => Moving::Named(names),
        _ => {
            rewriting::copy(input, output)?;
            let found = postlink_rewrite::inspect(&input.elf, &mut Phases::default())?;
            say_profiled(0, found.functions);
            println!(
                "BOLT-INFO: there is no profile and no option that can do without one: {} is a copy of {}",
                output.display(),
                input.path.display()
            );
            return Ok(());
        }
    };
    if !matches!(order, FunctionOrder::User(_)) {
        options.reorder_functions = FunctionOrder::None;
    }
    let mut watched = ui.phases("optimize");
    let done = rewriting::optimize_and_save(
        input,
        Source::Unprofiled(moving),
        &options,
        output,
        Proof::YES,
        &mut watched.phases,
        |_| Ok(()),
    )?;
    watched.finish();
    say_profiled(0, done.report.functions);
    if let Some(found) = &done.report.profile
        && found.unknown_names > 0
    {
        println!(
            "BOLT-WARNING: {} of {} names in the list of functions are not in the binary ({} …)",
            found.unknown_names,
            found.records,
            found.examples.join(", ")
        );
    }
    say_done(&done);
    Ok(())
}

fn say_profiled(profiled: usize, functions: usize) {
    println!(
        "BOLT-INFO: {profiled} out of {functions} functions in the binary ({:.1}%) have non-empty execution profile",
        profiled as f64 * 100.0 / functions.max(1) as f64
    );
}

/// What was made, and proved.
fn say_done(done: &Optimized) {
    let report = &done.report;
    println!(
        "BOLT-INFO: {} functions moved, {} bytes of hot code, {} of cold",
        report.moved, report.hot_bytes, report.cold_bytes
    );
    if let Some(folding) = report.folding.filter(|f| f.folded > 0) {
        println!(
            "BOLT-INFO: ICF folded {} out of {} functions in {} passes. 0 functions had jump tables.",
            folding.folded, folding.considered, folding.rounds
        );
        println!(
            "BOLT-INFO: Removing all identical functions will save {:.2} KB of code space. Folded functions were called {} times based on profile.",
            folding.bytes as f64 / 1024.0,
            folding.executions
        );
    }
    for pass in &report.passes {
        println!(
            "BOLT-INFO: -{}: {} of {} {} changed, which ran {} times",
            pass.pass, pass.changed, pass.sites, pass.what, pass.executions
        );
    }
    if let Some((before, after)) = &report.dyno_stats {
        dyno_stats(before, after);
    }
    if let Some(certificate) = &done.certificate {
        println!(
            "BOLT-INFO: proved: {} moved functions are equivalent to the input's, {} are unchanged",
            certificate.proved, certificate.identical
        );
    }
    for refused in &done.reverted {
        let (name, reason) = (&refused.name, &refused.reason);
        println!("BOLT-WARNING: {name} could not be proved and stays: {reason}");
    }
}

/// Saves the profile by blocks, as it fits the program.
fn save(input: &Input, fitted: &dyn Fitted<'_>, path: &Path) -> Result<()> {
    let name = input.path.as_os_str().as_encoded_bytes();
    Ok(bolt_yaml::write(path, &fitted.yaml(name))?)
}

fn dyno_stats(before: &DynoStats, after: &DynoStats) {
    println!("BOLT-INFO: program-wide dynostats after all optimizations:\n");
    for (name, n) in before.rows() {
        println!("{n:>20} : {name}");
    }
    println!();
    for ((name, old), (_, new)) in before.rows().into_iter().zip(after.rows()) {
        let change = match old {
            _ if old == new => "(=)".to_owned(),
            0 => "(new)".to_owned(),
            _ => format!("({:+.1}%)", (new as f64 - old as f64) * 100.0 / old as f64),
        };
        println!("{new:>20} : {name} {change}");
    }
    println!();
}

fn options(given: &Given, input: &Parsed<'_>) -> Result<OptimizeOptions> {
    let mut options = OptimizeOptions {
        reorder_blocks: match given.value("reorder-blocks") {
            None | Some("none") => false,
            Some("ext-tsp" | "cache+" | "cache" | "normal" | "branch-predictor") => true,
            Some(other @ ("reverse" | "cluster-shuffle")) => {
                bail!("-reorder-blocks={other} is for testing LLVM's tool and not supported")
            }
            Some(other) => {
                bail!("for the --reorder-blocks option: Cannot find option named '{other}'!")
            }
        },
        reorder_functions: match given.value("reorder-functions") {
            None | Some("none") => FunctionOrder::None,
            Some("exec-count") => FunctionOrder::ExecCount,
            Some("hfsort" | "pettis-hansen") => FunctionOrder::Hfsort,
            Some("hfsort+" | "cdsort") => FunctionOrder::Cdsort,
            Some("user") => {
                let path = given
                    .value("function-order")
                    .ok_or_else(|| anyhow!("-reorder-functions=user takes -function-order"))?;
                FunctionOrder::User(lines(path)?)
            }
            Some("random") => bail!("-reorder-functions=random is for testing and not supported"),
            Some(other) => {
                bail!("for the --reorder-functions option: Cannot find option named '{other}'!")
            }
        },
        // Older releases took a number: 0 none, 1 large functions only, 2 and 3 all.
        split_functions: match given.value("split-functions") {
            Some("2" | "3") => true,
            _ => given.switch("split-functions", false)?,
        },
        dyno_stats: given.switch("dyno-stats", false)?,
        passes: passes(given)?,
        hugify: given.switch("hugify", false)?,
        ..OptimizeOptions::default()
    };
    match given.value("split-strategy") {
        None | Some("profile2" | "cdsplit") => {}
        Some(other) => {
            bail!("-split-strategy={other} is for testing LLVM's tool and not supported")
        }
    }
    if let Some(align) = given.number::<u64>("align-functions")? {
        if !align.is_power_of_two() || align > 4096 {
            bail!("for the --align-functions option: {align} is not a power of two up to 4096");
        }
        options.align_functions = align;
        options.functions_at_lines = false;
    }
    if given.switch("align-blocks", false)? {
        let align = given.number::<u32>("block-alignment")?.unwrap_or(16);
        if !align.is_power_of_two() || align > 64 {
            bail!("for the --block-alignment option: {align} is not a power of two up to 64");
        }
        options.align_blocks = align;
    }
    options.bat = given.switch("enable-bat", false)?;
    options.debug_info = if given.switch("update-debug-sections", false)? {
        DebugInfo::Update
    } else {
        DebugInfo::Keep
    };
    options.excluded = excluded(given, input)?;
    Ok(options)
}

/// Changes of instructions.
fn passes(given: &Given) -> Result<PassOptions> {
    Ok(PassOptions {
        plt: match given.value("plt") {
            None | Some("none") => Plt::None,
            Some("hot") => Plt::Hot,
            Some("all") => Plt::All,
            Some(other) => bail!("for the --plt option: Cannot find option named '{other}'!"),
        },
        simplify_rodata_loads: given.switch("simplify-rodata-loads", false)?,
        promotion: promotion(given)?,
        inlining: inlining(given)?,
        folding: match given.value("icf") {
            None | Some("none" | "0" | "false" | "FALSE" | "False") => Folding::None,
            Some("safe") => Folding::Safe,
            Some("" | "all" | "1" | "true" | "TRUE" | "True") => Folding::All,
            Some(other) => bail!("for the --icf option: Cannot find option named '{other}'!"),
        },
        threading: Threading {
            double_jumps: match given.value("peepholes") {
                None | Some("none" | "tailcall-traps" | "useless-branches") => false,
                Some("double-jumps" | "all") => true,
                Some(other) => {
                    bail!("for the --peepholes option: Cannot find option named '{other}'!")
                }
            },
            tail_calls: given.switch("simplify-conditional-tail-calls", false)?,
        },
    })
}

/// Calls of tiny functions.
fn inlining(given: &Given) -> Result<Inlining> {
    let all = given.switch("inline-all", false)?;
    let on = all || given.switch("inline-small-functions", false)?;
    let default = if all {
        Inlining::MOST_BYTES
    } else {
        Inlining::DEFAULT_BYTES
    };
    let bytes = given.number("inline-small-functions-bytes")?;
    Ok(Inlining {
        bytes: if on { bytes.unwrap_or(default) } else { 0 },
    })
}

/// Indirect calls.
fn promotion(given: &Given) -> Result<Promotion> {
    let default = Promotion::OFF;
    let number =
        |name: &str, default: u32| Ok::<u32, anyhow::Error>(given.number(name)?.unwrap_or(default));
    Ok(Promotion {
        calls: match given.value("indirect-call-promotion") {
            None | Some("none" | "jump-tables") => false,
            Some("calls" | "all") => true,
            Some(other) => bail!(
                "for the --indirect-call-promotion option: Cannot find option named '{other}'!"
            ),
        },
        most: number("indirect-call-promotion-topn", default.most)?,
        of_remaining: number(
            "icp-calls-remaining-percent-threshold",
            default.of_remaining,
        )?,
        of_total: number("icp-calls-total-percent-threshold", default.of_total)?,
        hottest: number("icp-top-callsites", default.hottest)?,
    })
}

/// The lines of a file that say something.
fn lines(path: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// Functions to leave out, by address: those to skip, and all others where only some are wanted.
fn excluded(given: &Given, input: &Parsed<'_>) -> Result<FxHashSet<u64>> {
    let list = |name: &str, file: &str| -> Result<Vec<String>> {
        let mut all: Vec<String> = Vec::new();
        for value in given.values(name) {
            all.extend(
                value
                    .split(',')
                    .filter(|v| !v.is_empty())
                    .map(str::to_owned),
            );
        }
        for path in given.values(file) {
            all.extend(lines(path)?);
        }
        Ok(all)
    };
    let matcher = |patterns: &[String], literal: &[String]| -> Result<Option<Regex>> {
        if patterns.is_empty() && literal.is_empty() {
            return Ok(None);
        }
        let literal = literal.iter().map(|l| regex::escape(l));
        let all: Vec<String> = patterns.iter().cloned().chain(literal).collect();
        // With or without the number of a local name.
        let text = format!("^(?:{})(?:/.*)?$", all.join("|"));
        Ok(Some(Regex::new(&text).with_context(|| {
            format!("a list of functions: {}", all.join(","))
        })?))
    };
    let wanted = matcher(
        &list("funcs", "funcs-file")?,
        &list("funcs-no-regex", "funcs-file-no-regex")?,
    )?;
    let unwanted = matcher(&list("skip-funcs", "skip-funcs-file")?, &[])?;
    let mut excluded = FxHashSet::default();
    if wanted.is_none() && unwanted.is_none() {
        return Ok(excluded);
    }

    // By address: whether any of its names is wanted, whether any is not.
    let mut all: FxHashMap<u64, (bool, bool)> = FxHashMap::default();
    names::each(
        &input.elf,
        &input.elf.symbols(SymbolTable::Static),
        |named| {
            let hit = |r: &Option<Regex>| {
                r.as_ref().is_some_and(|r| {
                    let names = [named.name, named.by_file];
                    names.iter().flatten().any(|name| r.is_match(&name.text()))
                })
            };
            let slot = all.entry(named.symbol.value).or_default();
            slot.0 |= hit(&wanted);
            slot.1 |= hit(&unwanted);
        },
    );
    for (address, (in_wanted, in_unwanted)) in all {
        if in_unwanted || (wanted.is_some() && !in_wanted) {
            excluded.insert(address);
        }
    }
    Ok(excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Given> {
        TOOL.parse(&mut line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_founding_documents_command_lines_are_understood() {
        let given = parse("app -instrument -o app.inst -instrumentation-file=x.fdata").unwrap();
        assert_eq!(given.positional, ["app"]);
        assert!(given.switch("instrument", false).unwrap());
        assert_eq!(given.value("instrumentation-file"), Some("x.fdata"));
        let line = "app -o app.bolt -data=prof.fdata -reorder-blocks=cache+ -reorder-functions=hfsort -split-functions=2 -split-all-cold -split-eh -dyno-stats";
        let given = parse(line).unwrap();
        let itself = Input::open(&std::env::current_exe().unwrap()).unwrap();
        let itself = itself.parse().unwrap();
        let options = options(&given, &itself).unwrap();
        assert!(options.reorder_blocks && options.split_functions && options.dyno_stats);
        assert_eq!(options.reorder_functions, FunctionOrder::Hfsort);
        assert_eq!(given.values("data"), ["prof.fdata"]);
    }

    #[test]
    fn what_nobody_knows_is_an_error_and_what_tunes_llvm_a_note() {
        assert!(parse("app -frobnicate").is_err());
        let given = parse("app -stoke -plt=hot -use-gnu-stack -v 1").unwrap();
        assert_eq!(given.positional, ["app"]);
        assert_eq!(given.ignored.len(), 3);
    }

    #[test]
    fn changes_of_instructions_are_taken_by_name() {
        let of = |line: &str| passes(&parse(line).unwrap());
        let given = of("app -plt=hot -simplify-rodata-loads").unwrap();
        assert_eq!((given.plt, given.simplify_rodata_loads), (Plt::Hot, true));
        assert_eq!(of("app --plt=all").unwrap().plt, Plt::All);
        assert!(of("app").unwrap().is_placement_only());
        assert!(of("app -plt=some").is_err());
    }
}
