//! Small but nasty programs, each built in several ways, instrumented, optimised, proved and run.
//!
//! A case is a file in `tests/cases` with `//#` directives on top ([`directives`]). It is built in every link
//! kind that fits ([`build`]), and then goes through the states of [`states`]: plain, instrumented, optimised
//! with the profile of that run in every preset, checked again, and laid out at random. A program must print
//! the same and end in the same way in all of them. States that not every kind goes through change from kind to
//! kind.
//!
//! Every case runs in one of its kinds before any runs in a second: where time is short
//! (`POSTLINK_TESTS_UNTIL`, in seconds since 1970), kinds after the first that have not begun by then are
//! skipped, and the summary counts them. `.ci/run` sets it to a time that machines of the size it is made for
//! do not reach.
//!
//! `cargo test -p postlink --test cases -- exceptions` runs the cases whose name holds that word; with
//! `POSTLINK_ALL_KINDS=1` in every kind ([`build`] says which are left out otherwise) and through all states.
//! Everything a case has made is kept when it fails (the message says where), and always when `POSTLINK_KEEP` is
//! set.

mod build;
mod directives;
mod run;
mod select;
mod states;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use build::{Kind, Target, every_kind};
use directives::{Build, Case};
use select::{kinds, kinds_of_language, read_cases, skip_reason};
use states::Turn;

/// When kinds after a case's first are no longer begun.
fn end_of_time() -> Option<SystemTime> {
    let seconds = std::env::var("POSTLINK_TESTS_UNTIL").ok()?.parse().ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn trial(
    case: &Case,
    kind: Kind,
    extra: Option<&Build>,
    skip: Option<String>,
    until: Option<SystemTime>,
    turn: Turn,
) -> Trial {
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
        if until.is_some_and(|until| SystemTime::now() > until) {
            return Ok(Completion::ignored_with(
                "the time given to the tests was over",
            ));
        }
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).map_err(|e| Failed::from(format!("{}: {e}", dir.display())))?;
        let result = build::build(&case, kind, &flags, &dir)
            .and_then(|built| states::check(&case, kind, &built, &dir, turn));
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
    let until = end_of_time();
    // By how many kinds of the same case go before.
    let mut trials: Vec<(usize, Trial)> = vec![];
    for (index, what) in wrong.into_iter().enumerate() {
        let name = format!("directives/{index}");
        trials.push((0, Trial::test(name, move || Err(Failed::from(what)))));
    }
    for case in &cases {
        let number = case.number();
        let all = kinds_of_language(case);
        if let Some(unknown) = case
            .kinds
            .iter()
            .flatten()
            .chain(&case.also)
            .chain(&case.all_states)
            .find(|name| !all.iter().any(|kind| kind.answers_to(name)))
        {
            let what = format!("{}: no link kind '{unknown}'", case.source.display());
            let name = format!("{}/kinds", case.name);
            trials.push((0, Trial::test(name, move || Err(Failed::from(what)))));
        }
        let mut todo: Vec<(Kind, Option<&Build>, Option<String>)> = vec![];
        for kind in kinds(case, number) {
            let skip = skip_reason(case, kind, &mut found);
            todo.push((kind, None, skip.clone()));
            for build in case.builds.iter().filter(|_| kind.takes_builds(case)) {
                todo.push((kind, Some(build), skip.clone()));
            }
        }
        // Not always the same kind first.
        let first = number % todo.len().max(1);
        todo.rotate_left(first);
        // What is skipped anyway is nobody's first.
        todo.sort_by_key(|(_, _, skip)| skip.is_some());
        let position = |fits: fn(Kind) -> bool| todo.iter().position(|t| fits(t.0));
        let whole = position(|kind| kind.target == Target::Host && !kind.is_static())
            .or_else(|| position(|kind| kind.target == Target::Host));
        let elsewhere = position(|kind| kind.target != Target::Host && !kind.is_static())
            .or_else(|| position(|kind| kind.target != Target::Host));
        for (before, (kind, build, skip)) in todo.into_iter().enumerate() {
            let until = until.filter(|_| before > 0);
            let every = every_kind() || case.all_states.iter().any(|name| name == kind.name);
            let turn = Turn {
                whole: every || Some(before) == whole,
                presets: every || [whole, elsewhere].contains(&Some(before)),
                number: before,
                few: kind.is_static() && !every,
            };
            trials.push((before, trial(case, kind, build, skip, until, turn)));
        }
    }
    trials.sort_by_key(|(before, _)| *before);
    let trials = trials.into_iter().map(|(_, trial)| trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
