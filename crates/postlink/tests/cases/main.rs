//! Small but nasty programs, each built in several ways, instrumented, optimised, proved and run.
//!
//! A case is a file in `tests/cases` with `//#` directives on top ([`directives`]). It is built in every link kind that
//! fits ([`build`]), and then goes through the states of [`states`]: plain, instrumented, optimised with the profile of that
//! run in every preset, checked again, and laid out at random. A program must print the same and end in the same way in all of them.
//!
//! `cargo test -p postlink --test cases -- exceptions` runs the cases whose name holds that word. Everything a
//! case has made is kept when it fails (the message says where), and always when `POSTLINK_KEEP` is set.

mod build;
mod directives;
mod run;
mod states;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use build::{Kind, Target, Toolchain};
use directives::{Build, Case};

/// The directory of cases.
pub fn cases_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/cases")
        .canonicalize()
        .expect("the repository has it")
}

/// Reads all cases; a case that cannot be read becomes a failing test rather than none.
fn read_cases() -> (Vec<Case>, Vec<String>) {
    let mut files: Vec<PathBuf> = fs::read_dir(cases_dir())
        .expect("the directory was just resolved")
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|e| ["c", "cpp", "rs", "S"].iter().any(|x| e == *x))
        })
        .collect();
    files.sort();
    let (mut cases, mut wrong, mut beside) = (vec![], vec![], vec![]);
    for file in &files {
        // Parts of other cases have no directives of their own.
        let own = fs::read_to_string(file).is_ok_and(|text| text.starts_with("//#"));
        if !own {
            beside.push(file.clone());
            continue;
        }
        match Case::read(file) {
            Ok(case) => cases.push(case),
            Err(what) => wrong.push(what),
        }
    }
    for file in beside {
        if !cases
            .iter()
            .any(|case| case.with.contains(&file) || case.lib.as_ref() == Some(&file))
        {
            wrong.push(format!(
                "{}: no case uses this file, and it has no directives",
                file.display()
            ));
        }
    }
    (cases, wrong)
}

/// Why a case is not built in a kind, if it is not.
fn skip_reason(case: &Case, kind: Kind, found: &mut HashMap<String, bool>) -> Option<String> {
    if let Some((_, reason)) = case.not.iter().find(|(word, _)| kind.answers_to(word)) {
        return Some(reason.clone());
    }
    let rust = matches!(kind.toolchain, Toolchain::Rust | Toolchain::RustLld);
    if rust && kind.target == Target::Aarch64 {
        let there = found
            .entry(build::RUST_AARCH64.to_owned())
            .or_insert_with(build::has_rust_aarch64);
        if !*there {
            return Some(format!(
                "Rust's standard library for AArch64 is not there: rustup target add {}",
                build::RUST_AARCH64
            ));
        }
    }
    let tools = build::needs(case, kind)
        .into_iter()
        .map(str::to_owned)
        .chain(case.needs.iter().cloned());
    for tool in tools {
        if !*found
            .entry(tool.clone())
            .or_insert_with(|| run::find_program(&tool).is_some())
        {
            return Some(format!("{tool} is not installed"));
        }
    }
    None
}

fn trial(case: &Case, kind: Kind, extra: Option<&Build>, skip: Option<String>) -> Trial {
    let mut name = format!("{}/{}", case.name, kind.name);
    let mut flags = vec![];
    if let Some(build) = extra {
        name = format!("{name}/{}", build.name);
        flags.clone_from(&build.flags);
    }
    let case = case.clone();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("cases")
        .join(name.replace('/', "."));
    Trial::ignorable_test(name, move || {
        if let Some(reason) = skip {
            return Ok(Completion::ignored_with(reason));
        }
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).map_err(|e| Failed::from(format!("{}: {e}", dir.display())))?;
        let result = build::build(&case, kind, &flags, &dir)
            .and_then(|built| states::check(&case, kind, &built, &dir));
        match result {
            Ok(()) => {
                if std::env::var_os("POSTLINK_KEEP").is_none() {
                    let _ = fs::remove_dir_all(&dir);
                }
                Ok(Completion::Completed)
            }
            Err(what) => Err(Failed::from(format!("{what}\nkept in {}", dir.display()))),
        }
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let (cases, wrong) = read_cases();
    let mut found = HashMap::new();
    let mut trials: Vec<Trial> = vec![];
    for (index, what) in wrong.into_iter().enumerate() {
        trials.push(Trial::test(format!("directives/{index}"), move || {
            Err(Failed::from(what))
        }));
    }
    for (number, case) in cases.iter().enumerate() {
        let all = if case.source.extension().is_some_and(|e| e == "rs") {
            build::RUST
        } else {
            build::NATIVE
        };
        if let Some(unknown) = case
            .kinds
            .iter()
            .flatten()
            .chain(&case.also)
            .find(|name| !all.iter().any(|kind| kind.answers_to(name)))
        {
            let what = format!("{}: no link kind '{unknown}'", case.source.display());
            trials.push(Trial::test(format!("{}/kinds", case.name), move || {
                Err(Failed::from(what))
            }));
        }
        for kind in build::kinds_of(case, number) {
            if case
                .kinds
                .as_ref()
                .is_some_and(|names| !names.iter().any(|name| kind.answers_to(name)))
            {
                continue;
            }
            trials.push(trial(case, kind, None, skip_reason(case, kind, &mut found)));
            for build in case.builds.iter().filter(|_| kind.takes_builds(case)) {
                trials.push(trial(
                    case,
                    kind,
                    Some(build),
                    skip_reason(case, kind, &mut found),
                ));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
