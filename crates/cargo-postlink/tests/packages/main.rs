//! `cargo postlink` in small packages: nothing is downloaded, everything is built.

mod cross;
mod project;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use project::{Project, done, host, manifest, program, sections, text};

#[test]
fn a_program_is_built_run_optimised_and_proved_by_one_command() {
    let project = Project::simple("");
    let (printed, said) = project.done(&["optimize", "--", "3000"]);
    assert!(
        printed.starts_with("app "),
        "the workload's output is passed on: {printed}"
    );
    assert!(
        said.contains("proved:") && said.contains("Optimized"),
        "{said}"
    );
    let result = project.result("app");
    assert!(
        said.contains(result.to_str().unwrap()),
        "the result is named: {said}"
    );
    let (after, _) = done(Command::new(&result).arg("3000"));
    assert_eq!(after, printed);
    let verified = project.postlink(&[
        "verify",
        project.built("app").to_str().unwrap(),
        result.to_str().unwrap(),
    ]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let moved = said.lines().find(|line| line.contains(" moved")).unwrap();
    assert!(!moved.contains(" 0 moved"), "{moved}");
}

#[test]
fn of_a_workspace_the_program_that_ran_is_optimised_and_the_other_is_named() {
    let project = Project::new(&[
        (
            "Cargo.toml",
            "[workspace]\nmembers = [\"one\", \"two\"]\nresolver = \"3\"\n",
        ),
        ("one/Cargo.toml", &manifest("one", "")),
        ("one/src/main.rs", &program("one")),
        (
            "two/Cargo.toml",
            &manifest(
                "two",
                "[[bin]]\nname = \"second\"\npath = \"src/second.rs\"",
            ),
        ),
        ("two/src/main.rs", &program("two")),
        ("two/src/second.rs", &program("second")),
    ]);
    let (_, which) = project.fails(&["run"]);
    assert!(which.contains("has not started any program"), "{which}");
    let (printed, _) = project.done(&["run", "--bin", "second", "--", "500"]);
    assert!(printed.starts_with("second "), "{printed}");
    let (_, said) = project.done(&["optimize"]);
    assert!(
        project.result("second").is_file() && !project.result("one").exists(),
        "{said}"
    );
    for other in ["one", "two"] {
        assert!(
            said.contains(&format!("{other}: was never run instrumented")),
            "{said}"
        );
    }
    // A second run adds to the first, and the package's own selection works.
    project.done(&["run", "-p", "one", "--", "10"]);
    project.done(&["run", "-p", "one", "--", "20"]);
    assert_eq!(
        project.counts(),
        [
            "release/one run-1.plraw",
            "release/one run-2.plraw",
            "release/second run-1.plraw"
        ]
    );
    project.done(&["optimize", "-p", "one"]);
    let (fresh, _) = project.done(&["run", "--fresh", "-p", "one", "--", "10"]);
    assert!(fresh.starts_with("one "));
    assert_eq!(project.counts(), ["release/one run-1.plraw"]);
}

/// cargo-pgo's users had to remove `strip` from their profiles.
#[test]
fn a_profile_that_strips_needs_no_change_and_the_result_is_stripped() {
    for strip in ["true", "\"symbols\""] {
        let project = Project::simple(&format!("[profile.release]\nstrip = {strip}"));
        let (_, said) = project.done(&["optimize", "--", "1000"]);
        assert!(said.contains("Stripped"), "{said}");
        let has = |path: &std::path::Path, name: &str| sections(path).iter().any(|s| s == name);
        assert!(has(&project.built("app"), ".symtab") && has(&project.built("app"), ".rela.text"));
        assert!(!has(&project.result("app"), ".symtab"));
        let (printed, _) = done(Command::new(project.result("app")).arg("100"));
        assert!(printed.starts_with("app "));
    }
    let project = Project::simple("[profile.release]\nstrip = \"debuginfo\"");
    let (_, said) = project.done(&["optimize", "--", "1000"]);
    assert!(!said.contains("Stripped"), "{said}");
    assert!(
        sections(&project.result("app"))
            .iter()
            .any(|s| s == ".symtab")
    );
}

/// cargo-pgo's users saw flags that leaked into other builds.
#[test]
fn other_builds_are_not_made_anew() {
    let project = Project::simple("");
    let build = || done(project.clean(env!("CARGO")).args(["build", "--release"])).1;
    assert!(build().contains("Compiling"));
    project.done(&["optimize", "--", "100"]);
    assert!(
        !build().contains("Compiling"),
        "the package's own build was touched"
    );
    let own = project.path().join("target/release/app");
    assert!(
        !sections(&own).iter().any(|s| s == ".rela.text"),
        "flags have leaked"
    );
}

/// cargo-pgo once said that it had succeeded when what it had started had crashed.
#[test]
fn a_workload_that_crashes_is_an_error_and_its_counts_are_not_used() {
    let project = Project::simple("");
    for (how, words) in [("die", "signal 6"), ("fail", "exit code 3")] {
        let (code, said) = project.fails(&["run", "--", "100", how]);
        assert_eq!(code, Some(1));
        assert!(
            said.contains("error: the workload") && said.contains(words),
            "{said}"
        );
        let (_, said) = project.fails(&["optimize", "--", "100", how]);
        assert!(
            said.contains(words) && !said.contains("Optimized"),
            "{said}"
        );
    }
    assert!(
        project.counts().iter().all(|file| file.contains("failed-")),
        "{:?}",
        project.counts()
    );
    let (_, said) = project.fails(&["optimize"]);
    assert!(said.contains("nothing is known"), "{said}");
    assert!(!project.result("app").exists());
    let (_, said) = project.done(&["run", "--allow-failure", "--", "100", "fail"]);
    assert!(
        said.contains("warning: the workload ended with exit code 3"),
        "{said}"
    );
    project.done(&["optimize"]);
}

#[test]
fn ctrl_c_ends_a_server_and_keeps_what_was_counted() {
    let project = Project::simple("");
    project.done(&["build"]);
    let mut command = project.command(&["run", "--", "2000", "wait"]);
    let mut child = command
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let group = i32::try_from(child.id()).unwrap();
    let begin = Instant::now();
    // What it prints comes before it waits.
    let mut first = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    assert_eq!(&first, b"app");
    assert!(begin.elapsed() < Duration::from_secs(120));
    // SAFETY: kill has no preconditions; the group is that of the child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(-group, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("is kept"), "{said}");
    assert_eq!(project.counts(), ["release/app run-1.plraw"]);
    project.done(&["optimize"]);
}

#[test]
fn flags_of_the_user_stay_and_come_first() {
    let source = "fn main() { println!(\"{} {}\", cfg!(from_file), cfg!(from_environment)); }";
    let lint = "[lints.rust]\nunexpected_cfgs = 'allow'";
    let project = Project::new(&[
        ("Cargo.toml", &manifest("app", lint)),
        ("src/main.rs", source),
        (
            ".cargo/config.toml",
            "[build]\nrustflags = [\"--cfg\", \"from_file\"]\n",
        ),
    ]);
    assert_eq!(project.done(&["run"]).0, "true false\n");
    assert!(
        sections(&project.built("app"))
            .iter()
            .any(|s| s == ".rela.text")
    );
    project.write(
        ".cargo/config.toml",
        &format!(
            "[target.{}]\nrustflags = [\"--cfg\", \"from_file\"]\n",
            host()
        ),
    );
    assert_eq!(project.done(&["run"]).0, "true false\n");
    // As for cargo, the environment's count instead of the file's.
    let mut command = project.command(&["run"]);
    command.env("RUSTFLAGS", "--cfg from_environment");
    assert_eq!(done(&mut command).0, "false true\n");
    let (_, said) = project.fails(&["run", "--config", "build.rustflags=['--cfg','x']"]);
    assert!(said.contains("--config build.rustflags"), "{said}");
}

#[test]
fn examples_and_features_are_chosen_as_in_cargo() {
    let example = "fn main() { println!(\"{}\", app::answer()); }";
    let library = "pub fn answer() -> u32 { if cfg!(feature = \"more\") { 42 } else { 0 } }";
    let more =
        "[features]\nmore = []\n[[example]]\nname = \"show\"\nrequired-features = [\"more\"]";
    let project = Project::new(&[
        ("Cargo.toml", &manifest("app", more)),
        ("src/lib.rs", library),
        ("examples/show.rs", example),
    ]);
    let (_, said) = project.fails(&["optimize"]);
    assert!(said.contains("cargo has built no program"), "{said}");
    let (printed, _) = project.done(&["run", "--example", "show", "--features", "more"]);
    assert_eq!(printed, "42\n");
    project.done(&["optimize", "--example", "show", "-F", "more"]);
    let (printed, _) = done(&mut Command::new(project.result("examples/show")));
    assert_eq!(printed, "42\n");
}

/// What tests and benches start is counted as well, by the path that was compiled into them.
#[test]
fn tests_and_benches_are_workloads_of_the_programs_that_they_start() {
    let check = "fn main() { starts() }\nfn starts() {\n  let out = std::process::Command::new(env!(\"CARGO_BIN_EXE_app\"))\
                 .arg(\"700\").output().unwrap();\n  assert!(out.stdout.starts_with(b\"app \"));\n}";
    let test = check.replace("fn main() { starts() }\n", "#[test]\n");
    let project = Project::new(&[
        (
            "Cargo.toml",
            &manifest("app", "[[bench]]\nname = \"speed\"\nharness = false"),
        ),
        ("src/main.rs", &program("app")),
        ("tests/works.rs", &test),
        ("benches/speed.rs", check),
    ]);
    for command in ["test", "bench"] {
        project.done(&[command, "--fresh"]);
        let counts = project.counts();
        assert!(
            counts.iter().any(|file| file == "release/app run-1.plraw"),
            "{command}: {counts:?}"
        );
        let harness = if command == "test" {
            "deps/works-"
        } else {
            "deps/speed-"
        };
        assert!(
            counts.iter().any(|file| file.contains(harness)),
            "{command}: {counts:?}"
        );
        // Cargo puts the program back, and it is the one that was counted.
        let (_, said) = project.done(&["optimize", "--bin", "app"]);
        assert!(
            said.contains("proved:") && !said.contains("built anew"),
            "{command}: {said}"
        );
    }
    let (_, said) = project.done(&["optimize", "--bench", "speed"]);
    assert!(said.contains("deps/speed-"), "{said}");
    // A test that fails is a failure.
    project.write("tests/works.rs", "#[test]\nfn no() { panic!() }");
    let (_, said) = project.fails(&["test"]);
    assert!(
        said.contains("the workload ended with exit code 101"),
        "{said}"
    );
}

/// Tests by assert_cmd start the package's programs through the runner that they find in the environment, as sd's do:
/// ours, without its plan, started nothing, and all of them failed. Flags of ours would reach what a test builds.
#[test]
fn what_is_counted_finds_the_users_runner_and_flags_in_its_environment_and_not_ours() {
    let runner = format!(
        "CARGO_TARGET_{}_RUNNER",
        host().to_uppercase().replace(['-', '.'], "_")
    );
    let test = r#"
        fn starts() {
            for name in ["RUNNER", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"] {
                let expected = std::env::var(format!("EXPECTED_{name}")).ok();
                assert_eq!(std::env::var(name).ok(), expected, "{name}");
            }
            let mut words: Vec<String> = std::env::var("RUNNER")
                .map(|runner| runner.split(' ').map(str::to_owned).collect())
                .unwrap_or_default();
            words.extend([env!("CARGO_BIN_EXE_app").to_owned(), "700".to_owned()]);
            let output = std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.stdout.starts_with(b"app ") && output.status.success(), "{said}");
        }"#
    .replace("\"RUNNER\"", &format!("{runner:?}"));
    let project = Project::new(&[
        (
            "Cargo.toml",
            &manifest("app", "[[bench]]\nname = \"speed\"\nharness = false"),
        ),
        ("src/main.rs", &program("app")),
        ("tests/works.rs", &format!("#[test]{test}")),
        (
            "benches/speed.rs",
            &format!("fn main() {{ starts() }}{test}"),
        ),
    ]);
    for words in [&["test", "--fresh"][..], &["bench", "--fresh"]] {
        project.done(words);
        let counts = project.counts();
        assert!(
            counts.iter().any(|file| file == "release/app run-1.plraw"),
            "{words:?}: {counts:?}"
        );
    }
    let mut command = project.command(&["test"]);
    for (name, value) in [
        (runner.as_str(), "env OF_THE_USER=1"),
        ("RUSTFLAGS", "--cfg of_the_user"),
    ] {
        command
            .env(name, value)
            .env(format!("EXPECTED_{name}"), value);
    }
    done(&mut command);
}

#[test]
fn tests_are_found_where_the_user_keeps_them_apart() {
    let project = Project::simple("");
    project.write(".cargo/config.toml", "[build]\nbuild-dir = \"apart\"\n");
    project.write("tests/works.rs", "#[test]\nfn works() {}");
    project.done(&["test"]);
    let counts = project.counts();
    assert!(
        counts.iter().any(|file| file.contains("deps/works-")),
        "{counts:?}"
    );
    assert!(!project.path().join("apart").exists());
}

#[test]
fn what_was_counted_of_an_older_build_is_used_and_that_is_said() {
    let project = Project::simple("");
    project.done(&["run", "--", "3000"]);
    let changed = program("app").replace("text += \"bb\"", "text += \"b and b\"");
    project.write("src/main.rs", &changed);
    let (_, said) = project.done(&["optimize"]);
    assert!(
        said.contains("warning: app was rebuilt since it was profiled"),
        "{said}"
    );
    let moved = said.lines().find(|line| line.contains(" moved")).unwrap();
    assert!(!moved.contains(" 0 moved"), "{moved}");
    let (printed, _) = done(Command::new(project.result("app")).arg("100"));
    assert!(printed.starts_with("app "));
}

#[test]
fn the_runner_of_the_user_runs_the_instrumented_program() {
    let project = Project::simple("");
    let runner = project.path().join("run it");
    std::fs::write(
        &runner,
        "#!/bin/sh\necho \"runner $1\"; shift\nexec \"$@\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!("[target.{}]\nrunner = [{:?}, \"word\"]\n", host(), runner);
    project.write(".cargo/config.toml", &config);
    let (printed, _) = project.done(&["run", "--", "10"]);
    assert!(printed.starts_with("runner word\napp "), "{printed}");
    let (printed, _) = project.done(&["run", "--workload", "{} 20 && {} 30"]);
    assert_eq!(printed.matches("runner word\napp ").count(), 2, "{printed}");
    assert_eq!(project.counts().len(), 2);
}

#[test]
fn a_workload_may_be_a_line_for_the_shell() {
    let project = Project::within(
        " it's",
        &[
            ("Cargo.toml", &manifest("app", "")),
            ("src/main.rs", &program("app")),
        ],
    );
    let (printed, said) = project.done(&["optimize", "--workload", "{} 40; {} 50 | cat"]);
    assert_eq!(printed.matches("app ").count(), 2, "{printed}");
    assert!(said.contains("proved:"), "{said}");
}

/// A package was built for 75 seconds, and with `--fresh` what had been counted was forgotten, before it was said.
#[test]
fn a_workload_that_cannot_be_is_an_error_before_anything_is_built_or_forgotten() {
    let project = Project::simple("");
    project.done(&["run", "--", "40"]);
    let counts = project.counts();
    project.write("src/main.rs", "this does not compile");
    for (words, why) in [
        (&["run", "--fresh", "--workload", "true"][..], "has no {}"),
        (
            &["optimize", "--fresh", "--workload", "{}", "--", "x"],
            "one of both",
        ),
    ] {
        let (_, said) = project.fails(words);
        assert!(said.contains(why), "{said}");
        assert!(!said.contains("Compiling"), "{said}");
        assert_eq!(project.counts(), counts);
    }
}

#[test]
fn what_is_built_is_run_by_the_user_and_counts_as_well() {
    let project = Project::simple("");
    let (_, said) = project.done(&["build"]);
    let copy = project.built("app.instrumented");
    assert!(said.contains(copy.to_str().unwrap()), "{said}");
    done(project.clean(copy.to_str().unwrap()).arg("900"));
    let (_, said) = project.done(&["optimize", "--report", "report.html"]);
    assert!(said.contains("proved:"), "{said}");
    let page = std::fs::read_to_string(project.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!"));
    let (known, _) = project.done(&["info"]);
    assert!(
        known.contains(&format!("app of {}/release: 1 file", host())),
        "{known}"
    );
}

#[test]
fn without_kept_relocations_it_works_as_well() {
    let project = Project::simple("");
    let (_, said) = project.done(&["optimize", "--relocations", "none", "--", "3000"]);
    assert!(said.contains("proved:"), "{said}");
    assert!(
        !sections(&project.built("app"))
            .iter()
            .any(|s| s == ".rela.text")
    );
}

#[test]
fn a_target_that_is_not_installed_is_named_with_what_to_do() {
    let project = Project::simple("");
    let target = ["aarch64-unknown-linux-gnu", "aarch64-unknown-linux-musl"]
        .into_iter()
        .find(|target| {
            let said = Command::new("rustc")
                .args(["--print", "target-libdir", "--target", target])
                .output();
            !std::path::Path::new(text(&said.unwrap().stdout).trim()).is_dir()
        });
    if let Some(target) = target {
        let (_, said) = project.fails(&["optimize", "--target", target, "--", "10"]);
        assert!(
            said.contains(&format!("rustup target add {target}")),
            "{said}"
        );
    }
    let (_, said) = project.fails(&["build", "--target", "wasm32-unknown-unknown"]);
    assert!(
        said.contains("wasm32-unknown-unknown: postlink rewrites programs for Linux"),
        "{said}"
    );
}

#[test]
fn sources_that_do_not_compile_are_cargos_error() {
    let project = Project::simple("");
    project.write("src/main.rs", "fn main() { nothing() }");
    let (_, said) = project.fails(&["run"]);
    assert!(
        said.contains("error[E0425]") && said.contains("cargo build ended with exit code 101"),
        "{said}"
    );
}

/// The compiler's own optimisation comes first, and what is counted is the program that it made.
#[test]
fn with_pgo_the_compiler_optimises_first() {
    let project = Project::simple("");
    let (info, _) = project.done(&["info"]);
    if info.contains("--pgo            not possible") {
        let (_, said) = project.fails(&["optimize", "--pgo", "--", "10"]);
        assert!(said.contains("llvm-tools"), "{said}");
        return;
    }
    let (_, said) = project.fails(&["optimize", "--pgo"]);
    assert!(said.contains("no profile of the compiler's yet"), "{said}");
    let (printed, said) = project.done(&["optimize", "--pgo", "--", "3000"]);
    assert_eq!(
        printed.matches("app ").count(),
        2,
        "once for each profile: {printed}"
    );
    assert!(said.contains("proved:"), "{said}");
    let result = project
        .postlink_folder()
        .join(host())
        .join("release-pgo/app");
    done(Command::new(&result).arg("50"));
    assert!(
        project
            .counts()
            .iter()
            .all(|file| file.starts_with("release-pgo/app"))
    );
    let (code, said) = project.fails(&["run", "--pgo", "--", "5", "die"]);
    assert!(code == Some(1) && said.contains("signal 6"), "{said}");
}

#[test]
fn manual_pages_and_completions_are_of_all_commands() {
    let project = Project::new(&[]);
    project.done(&["man", "pages"]);
    let page = |name: &str| {
        let path = project.path().join("pages").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    // As `cargo help postlink` looks for it.
    assert!(page("cargo-postlink.1").contains("cargo postlink"));
    for command in ["info", "build", "run", "test", "bench", "optimize"] {
        let page = page(&format!("cargo-postlink-{command}.1"));
        assert!(page.contains(".SH OPTIONS") || command == "info", "{page}");
    }
    assert!(page("cargo-postlink-optimize.1").contains("measure"));
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = project.done(&["completions", shell]);
        for word in ["cargo-postlink", "optimize", "allow-failure"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
