//! The states of a case: plain, instrumented, counting at entries for a machine profile, optimised in every
//! preset, laid out at random, without kept relocations, and checked again.
//!
//! Which states a build goes through, a [`Turn`] says. One build of each case for this machine, not a static one where
//! there is a choice, goes through all, and one for the other machine through all presets; every further one through
//! fewer, others for another name. So every case is in every state, and a run stays short. Nine tenths of a static
//! program are the C library's code, the same in all of them: each takes ten times as long as the others, and of a
//! single case its states show no more.
//!
//! | group | states | of one build | of others | of static ones |
//! |---|---|---|---|---|
//! | presets | safe without splitting, fast, size, max with every pass | all | two | two |
//! | counting | [`MODES`] | all | one | one, or none |
//! | without kept relocations | edges counted; then [`BARE`]; size needs relocations | all | edges and one | the same, or none |
//! | random layout | a seed by case and kind | one | one | one, or none |
//!
//! Of the last three groups a static build goes through one.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::build::{Built, Kind, Target};
use super::directives::Case;
use super::run::{self, Seen};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// All changes of instructions, wherever they are possible.
const EVERY_PASS: [&str; 7] = [
    "--preset=max",
    "--plt=all",
    "--simplify-rodata-loads",
    "--indirect-call-promotion=calls",
    "--icp-top-callsites=0",
    "--icp-calls-total-percent-threshold=1",
    "--icp-calls-remaining-percent-threshold=1",
];

/// Ways to count beside edges with the counters that fit the program.
const MODES: [(&str, &[&str]); 6] = [
    ("function-coverage", &["--mode", "function-coverage"]),
    ("block-coverage", &["--mode", "block-coverage"]),
    ("call-graph", &["--mode", "call-graph"]),
    ("call-edges", &["--mode", "call-edges"]),
    ("atomic", &["--counters", "atomic"]),
    ("plain-counters", &["--counters", "plain"]),
];

/// Ways to optimise without kept relocations. In all but [`CHEAPER_STAYS`] every function moves that can.
const BARE: [(&str, &[&str]); 4] = [
    ("without.optimized", &["--split-functions=none"]),
    ("without.split", &["--split-functions", "--preset", "fast"]),
    ("without.max", &EVERY_PASS),
    ("without.stressed", &["--stress", "1"]),
];

/// The state in which functions stay that cost less where they are.
const CHEAPER_STAYS: &str = "without.split";

/// Which states a build goes through; see the module.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// All of them.
    pub whole: bool,
    /// Of the presets all.
    pub presets: bool,
    /// Which build of the case it is.
    pub number: usize,
    /// Of the groups beside the presets one.
    pub few: bool,
}

/// The groups of states beside the presets.
const GROUPS: [Group; 3] = [
    Group::Counting,
    Group::WithoutRelocations,
    Group::RandomLayout,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Counting,
    WithoutRelocations,
    RandomLayout,
}

impl Turn {
    /// A number that is another one for the next build, and for most other cases.
    fn hash(self, case: &Case) -> usize {
        case.number().wrapping_add(self.number)
    }

    /// Of some states those whose turn it is.
    fn of<'s, T>(self, case: &Case, all: &'s [T]) -> &'s [T] {
        let one = self.hash(case) % all.len();
        if self.whole { all } else { &all[one..=one] }
    }

    /// Whether it is this group's turn.
    fn takes(self, case: &Case, group: Group) -> bool {
        self.whole || !self.few || GROUPS[self.hash(case) % GROUPS.len()] == group
    }

    /// Whether it is the turn of the preset of this number.
    fn takes_preset(self, case: &Case, number: usize) -> bool {
        self.presets || self.hash(case) % 2 == number % 2
    }
}

/// Takes a built case through all states; the error says in which one it went wrong.
pub fn check(case: &Case, kind: Kind, built: &Built, dir: &Path, turn: Turn) -> Result<(), String> {
    let plain = execute(case, kind, &built.program, dir, "plain", None)?;
    if plain.end != case.end {
        return Err(format!(
            "plain: ended with {:?}, the case says {:?}\n{}",
            plain.end,
            case.end,
            output(&plain)
        ));
    }
    let printed: Vec<String> = run::text(&plain.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    if !case.stdout.is_empty() && printed != case.stdout {
        return Err(format!(
            "plain: printed\n{}\nthe case says\n{}",
            printed.join("\n"),
            case.stdout.join("\n")
        ));
    }
    let instrumented = dir.join("instrumented");
    let subject = place(built, &instrumented)?;
    let (input, profile) = (built.subject.as_os_str(), dir.join("run.plraw"));
    let mut command = postlink("instrument", &[input, "-o".as_ref(), subject.as_os_str()]);
    command.args(&case.instrument);
    rewritten(case, command, dir, "instrument")?;
    let program = instrumented.join(built.program.file_name().unwrap_or_default());
    let seen = execute(
        case,
        kind,
        &program,
        dir,
        "instrumented.run",
        Some(&profile),
    )?;
    same("instrumented", &seen, &plain)?;
    if kind.target == Target::Aarch64 {
        let verify = postlink("verify", &[input, subject.as_os_str()]);
        run::tool(verify, dir, "instrumented.verify")?;
    }
    if turn.takes(case, Group::Counting) {
        count(case, kind, built, dir, &plain, turn)?;
    }
    if !case.needs_relocations && turn.takes(case, Group::WithoutRelocations) {
        without_relocations(case, kind, built, dir, &plain, turn)?;
    }
    if !case.profile_expected {
        return Ok(());
    }
    let show = postlink(
        "show",
        &[
            profile.as_os_str(),
            "--binary".as_ref(),
            input,
            "--json".as_ref(),
        ],
    );
    let shown = run::tool(show, dir, "show")?;
    check_counts(case, &shown)?;

    let states = [
        ("optimized", &["--split-functions=none"][..]),
        ("split", &["--split-functions", "--preset", "fast"][..]),
        ("small", &["--preset", "size"][..]),
        ("max", &EVERY_PASS[..]),
    ];
    let mut numbered: Vec<_> = states.into_iter().enumerate().collect();
    numbered.retain(|(number, _)| turn.takes_preset(case, *number));
    let again = seed(case, kind) as usize % numbered.len();
    for (number, (_, (state, options))) in numbered.into_iter().enumerate() {
        let folder = dir.join(state);
        let subject = place(built, &folder)?;
        let certificate = folder.join("certificate.json");
        let mut command = postlink(
            "optimize",
            &[
                input,
                "-p".as_ref(),
                profile.as_os_str(),
                "-o".as_ref(),
                subject.as_os_str(),
                "--certificate".as_ref(),
                certificate.as_os_str(),
            ],
        );
        command.args(options).args(&case.optimize);
        if case.debug {
            command.arg("--json");
        }
        let said = rewritten(case, command, dir, state)?;
        if case.debug {
            check_debug(&said).map_err(|e| format!("{state}: {e}"))?;
        }
        let program = folder.join(built.program.file_name().unwrap_or_default());
        same(
            state,
            &execute(case, kind, &program, dir, &format!("{state}.run"), None)?,
            &plain,
        )?;
        let certificate =
            fs::read(&certificate).map_err(|e| format!("{state}: certificate: {e}"))?;
        if number == again {
            proved_again(state, built, &subject, &certificate, dir)?;
        }
        check_verdicts(case, &certificate).map_err(|e| format!("{state}: {e}"))?;
        let described = parse("verify", &certificate)?["debug"]["state"] == "updated";
        if case.debug && !described {
            return Err(format!("{state}: verify: debug information is not updated"));
        }
    }
    if turn.takes(case, Group::RandomLayout) {
        stress(case, kind, built, dir, &profile, &plain)?;
    }
    Ok(())
}

/// As if the linker had kept no relocations: instrumented, optimised, proved. Nothing may be different.
fn without_relocations(
    case: &Case,
    kind: Kind,
    built: &Built,
    dir: &Path,
    plain: &Seen,
    turn: Turn,
) -> Result<(), String> {
    let (input, profile) = (built.subject.as_os_str(), dir.join("without.plraw"));
    let none = ["--relocations", "none"];
    let folder = dir.join("without.instrumented");
    let subject = place(built, &folder)?;
    let mut command = postlink("instrument", &[input, "-o".as_ref(), subject.as_os_str()]);
    command.args(none).args(&case.instrument);
    match rewritten(case, command, dir, "without.instrument") {
        // Nothing that says where functions are.
        Err(error) if error.contains("the file has neither unwind entries") => return Ok(()),
        log => log?,
    };
    let file = built.program.file_name().unwrap_or_default();
    let seen = execute(
        case,
        kind,
        &folder.join(file),
        dir,
        "without.run",
        Some(&profile),
    )?;
    same("instrumented without relocations", &seen, plain)?;
    if !case.profile_expected {
        return Ok(());
    }
    let arguments = [
        profile.as_os_str(),
        "--binary".as_ref(),
        input,
        "--json".as_ref(),
    ];
    let mut show = postlink("show", &arguments);
    show.args(none);
    let expects = [
        &case.led,
        &case.long,
        &case.own_tables,
        &case.goes_on_in_old_code,
    ];
    match run::tool(show, dir, "without.show") {
        // Of a tiny program all functions may be near code without unwind entries, whose bytes could lead
        // there: then no jump is at an old entry.
        Err(error)
            if error.contains("the profile is empty") && expects.iter().all(|e| e.is_empty()) =>
        {
            return Ok(());
        }
        shown => shown?,
    };
    let states = turn.of(case, &BARE);
    let again = seed(case, kind) as usize % states.len();
    for (number, (state, options)) in states.iter().enumerate() {
        let folder = dir.join(state);
        let subject = place(built, &folder)?;
        let arguments = [
            input,
            "-p".as_ref(),
            profile.as_os_str(),
            "-o".as_ref(),
            subject.as_os_str(),
        ];
        let mut command = postlink("optimize", &arguments);
        command.args(none).args(*options).args(&case.optimize);
        let all_move = *state != CHEAPER_STAYS;
        command.args(all_move.then_some("--move-all"));
        let certificate = folder.join("certificate.json");
        command.arg("--certificate").arg(&certificate);
        rewritten(case, command, dir, state)?;
        let seen = execute(
            case,
            kind,
            &folder.join(file),
            dir,
            &format!("{state}.run"),
            None,
        )?;
        same(state, &seen, plain)?;
        let certificate =
            fs::read(&certificate).map_err(|e| format!("{state}: certificate: {e}"))?;
        if number == again {
            proved_again(state, built, &subject, &certificate, dir)?;
        }
        if all_move {
            check_entries(case, &certificate).map_err(|e| format!("{state}: {e}"))?;
        }
    }
    Ok(())
}

/// Runs a command that writes a program. What the checker refuses is a disagreement between it and the rewriter, and an
/// error but for what the case names.
fn rewritten(case: &Case, command: Command, dir: &Path, name: &str) -> Result<Vec<u8>, String> {
    let said = run::tool(command, dir, name)?;
    let stderr = fs::read(dir.join(format!("{name}.stderr"))).unwrap_or_default();
    let stderr = run::text(&stderr);
    // Words of data may by chance be like entries of a jump table of a function whose body is to be used again.
    let by_chance = stderr.contains("is still entered, but other code is there now");
    let proved = "could not be proved and stay";
    let lists = stderr.lines().filter(|line| line.contains(proved));
    let names = lists.filter_map(|line| line.split_once(": ")?.1.split_once(": "));
    let mut names = names.flat_map(|(_, names)| names.split(", "));
    match names.find(|name| !case.refused.iter().any(|refused| refused == name)) {
        Some(function) if stderr.contains("please report this") && !by_chance => Err(format!(
            "{name}: the checker has refused {function}\n{stderr}"
        )),
        _ => Ok(said),
    }
}

/// `verify` proves from the two files alone what `optimize` proved of what it wrote. It is the same checker, and a
/// third of a case's time: one state of each case is enough.
fn proved_again(
    state: &str,
    built: &Built,
    output: &Path,
    certificate: &[u8],
    dir: &Path,
) -> Result<(), String> {
    let files = [built.subject.as_os_str(), output.as_os_str()];
    let mut verify = postlink("verify", &files);
    verify.arg("--json");
    let again = run::tool(verify, dir, &format!("{state}.verify"))?;
    if again == certificate {
        Ok(())
    } else {
        Err(format!(
            "{state}: the certificates of optimize and verify differ:\n{}\n{}",
            run::text(certificate),
            run::text(&again)
        ))
    }
}

/// What the case says of functions in outputs without kept relocations: whether there is a jump at their old
/// entries, and whether they continue in old code.
fn check_entries(case: &Case, certificate: &[u8]) -> Result<(), String> {
    let certificate = parse("verify", certificate)?;
    let moved = |name: &str| {
        let mut all = functions(&certificate);
        let found = all.find(|(symbol, _)| is_named(symbol, name)).map(|f| f.1);
        found.ok_or_else(|| format!("verify: {name} has not moved"))
    };
    for (names, level) in [(&case.led, "led"), (&case.long, "long")] {
        for name in names {
            let entry = &moved(name)?["entry"]["level"];
            if entry != level {
                return Err(format!(
                    "verify: the entry of {name} is {entry}, not {level}"
                ));
            }
        }
    }
    if let Some(name) = case.stay.iter().find(|name| moved(name).is_ok()) {
        return Err(format!(
            "verify: {name} has moved, the case says that it must stay"
        ));
    }
    for name in &case.goes_on_in_old_code {
        if moved(name)?["falls_back"]
            .as_array()
            .is_none_or(Vec::is_empty)
        {
            return Err(format!("verify: {name} does not continue in old code"));
        }
    }
    for name in &case.own_tables {
        let function = moved(name)?;
        let has = |what: &str| {
            function[what]
                .as_array()
                .is_some_and(|list| !list.is_empty())
        };
        if has("falls_back") || !has("tables") {
            return Err(format!(
                "verify: {name} has tables {}, and continues in old code at {}",
                function["tables"], function["falls_back"]
            ));
        }
    }
    Ok(())
}

/// A number that is another one for each case and kind, and the same every time.
fn seed(case: &Case, kind: Kind) -> u64 {
    let bytes = case.name.bytes().chain(kind.name.bytes());
    bytes.fold(1, |seed: u64, b| {
        seed.wrapping_mul(31).wrapping_add(u64::from(b))
    })
}

/// A layout chosen at random, proved, and then with breakpoints in old bodies: what still runs there is an
/// unnoticed fall-back.
fn stress(
    case: &Case,
    kind: Kind,
    built: &Built,
    dir: &Path,
    profile: &Path,
    plain: &Seen,
) -> Result<(), String> {
    let seed = (seed(case, kind) % 1000).to_string();
    let folder = dir.join("stressed");
    let subject = place(built, &folder)?;
    let arguments = [
        built.subject.as_os_str(),
        "-p".as_ref(),
        profile.as_os_str(),
        "-o".as_ref(),
        subject.as_os_str(),
        "--stress".as_ref(),
        seed.as_ref(),
    ];
    let mut command = postlink("optimize", &arguments);
    command.arg("--poison").args(&case.optimize);
    rewritten(case, command, dir, "stressed")?;
    let program = folder.join(built.program.file_name().unwrap_or_default());
    let seen = execute(case, kind, &program, dir, "stressed.run", None)?;
    same(&format!("stressed with seed {seed}"), &seen, plain)
}

/// Counts in other ways: at entries with stores in padding, with calls and where they come from; in blocks, in
/// code that is in old bodies; at edges with other counters. Nothing may be different.
fn count(
    case: &Case,
    kind: Kind,
    built: &Built,
    dir: &Path,
    plain: &Seen,
    turn: Turn,
) -> Result<(), String> {
    for (mode, options) in turn.of(case, &MODES) {
        let folder = dir.join(mode);
        let subject = place(built, &folder)?;
        let arguments = [
            built.subject.as_os_str(),
            "-o".as_ref(),
            subject.as_os_str(),
        ];
        let mut command = postlink("instrument", &arguments);
        command.args(*options);
        // What the case asks for is for counters at edges, and may be other counters.
        let asked = case.instrument.iter().any(|option| option == "--counters");
        match options.contains(&"--mode") {
            false if asked => continue,
            false => command.args(&case.instrument),
            true => &mut command,
        };
        rewritten(case, command, dir, mode)?;
        let program = folder.join(built.program.file_name().unwrap_or_default());
        let profile = dir.join(format!("{mode}.counts"));
        let counts = (!options.contains(&"--mode")).then_some(profile.as_path());
        let seen = execute(case, kind, &program, dir, &format!("{mode}.run"), counts)?;
        same(mode, &seen, plain)?;
    }
    Ok(())
}

fn postlink(command: &str, arguments: &[&OsStr]) -> Command {
    let mut built = Command::new(POSTLINK);
    built.args(["--threads", "1"]).arg(command).args(arguments);
    built
}

/// A folder for a state: everything that is beside the subject, which is still to be written at the path given back.
fn place(built: &Built, folder: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for file in built
        .beside
        .iter()
        .chain(Some(&built.program).filter(|p| **p != built.subject))
    {
        let target = folder.join(file.file_name().unwrap_or_default());
        fs::copy(file, &target).map_err(|e| format!("{}: {e}", target.display()))?;
    }
    Ok(folder.join(built.subject.file_name().unwrap_or_default()))
}

fn execute(
    case: &Case,
    kind: Kind,
    program: &Path,
    dir: &Path,
    name: &str,
    profile: Option<&Path>,
) -> Result<Seen, String> {
    let mut command = kind.run(program);
    command
        .args(&case.args)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .env_remove("POSTLINK_PROFILE");
    if let Some(profile) = profile {
        command.env("POSTLINK_PROFILE", profile);
    }
    run::run(command, dir, name)
}

fn output(seen: &Seen) -> String {
    run::text(&seen.stdout)
}

fn same(state: &str, seen: &Seen, plain: &Seen) -> Result<(), String> {
    if seen == plain {
        return Ok(());
    }
    Err(format!(
        "{state}: ended with {:?} and printed\n{}\nbut plain ended with {:?} and printed\n{}",
        seen.end,
        output(seen),
        plain.end,
        output(plain)
    ))
}

/// Whether a symbol is the function that a case names: the compiler may have put `.constprop.0` and the like after it.
fn is_named(symbol: &str, name: &str) -> bool {
    symbol
        .strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn parse(what: &str, json: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(json).map_err(|e| format!("{what}: {e}: {}", run::text(json)))
}

fn functions(json: &Value) -> impl Iterator<Item = (&str, &Value)> {
    json["functions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|f| Some((f["name"].as_str()?, f)))
}

/// The profile must be readable, hold counts, and say what the case knows of it.
fn check_counts(case: &Case, shown: &[u8]) -> Result<(), String> {
    let shown = parse("show", shown)?;
    if shown["totals"]["total"].as_u64().unwrap_or(0) == 0 || functions(&shown).next().is_none() {
        return Err("show: the profile is empty".to_owned());
    }
    for (name, expected) in &case.counts {
        let entries: u64 = functions(&shown)
            .filter(|(symbol, _)| is_named(symbol, name))
            .filter_map(|(_, f)| f["entries"].as_u64())
            .sum();
        if entries != *expected {
            return Err(format!(
                "show: {name} was entered {entries} times by the profile, {expected} times by the case"
            ));
        }
    }
    Ok(())
}

/// Debug information was updated, and nothing is lost.
fn check_debug(said: &[u8]) -> Result<(), String> {
    let said = parse("optimize", said)?;
    let debug = &said["optimize"]["debug"];
    let lost = debug["losses"].as_array().is_none_or(|l| !l.is_empty());
    if debug["what"] == "update" && !lost {
        Ok(())
    } else {
        Err(format!(
            "debug information is not as good as before: {debug}"
        ))
    }
}

/// Every moved function is proved; those that the case names have moved, or stayed.
fn check_verdicts(case: &Case, certificate: &[u8]) -> Result<(), String> {
    let certificate = parse("verify", certificate)?;
    let verdict = |name: &str| {
        functions(&certificate)
            .find(|(symbol, _)| is_named(symbol, name))
            .map(|(_, f)| &f["verdict"])
    };
    if functions(&certificate).next().is_none() {
        return Err("verify: no function has moved".to_owned());
    }
    for name in &case.moved {
        match verdict(name) {
            None => return Err(format!("verify: {name} has not moved")),
            Some(verdict) if verdict != "proved" => {
                return Err(format!("verify: {name}: {verdict}"));
            }
            Some(_) => {}
        }
    }
    match case.pinned.iter().find(|name| verdict(name).is_some()) {
        Some(name) => Err(format!(
            "verify: {name} has moved, the case says that it must stay"
        )),
        None => Ok(()),
    }
}
