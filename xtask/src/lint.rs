//! `cargo xtask lint`: formatting, clippy and documentation without warnings, the order of layers
//! ([`layers`]), unused dependencies ([`dependencies`]), [`features`] of crates that differ between builds, widths
//! of comments ([`widths`]), lengths of functions ([`lengths`]), and what is no part of the workspace: the fuzz
//! targets and the folder `fleet`.
//!
//! Without options all parts are checked: `--source` reads only the source, in seconds; `--workspace` and `--fleet`
//! compile.
//!
//! # Tests compiled by clippy's driver
//!
//! `clippy-driver` compiles as `rustc` does, and lints: a crate of the workspace takes it 2 % longer. `cargo
//! clippy` makes no code, so everything is compiled once more when the tests are built. Where the environment says
//! that clippy's driver is the compiler ([`by_driver`], as `.ci/run` does for all that it runs), `cargo xtask
//! test` lints all targets while it builds them, and `--workspace` leaves that to it. cargo calls the driver by the
//! script `.ci/compiler`, which has test programs compiled without optimisation; where there is no driver, `cargo xtask
//! test` has cargo call the compiler by the same script.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{dependencies, features, layers, lengths, widths};

/// One check.
struct Check {
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// Lint while compiling with code, by clippy's driver, in place of `cargo clippy`, which only checks types.
    with_code: bool,
    /// A part of the toolchain that may not be installed, and the command that shows it.
    component: Option<(&'static str, &'static [&'static str])>,
}

/// What came of a check.
enum Outcome {
    Passed,
    Failed,
    /// Why it did not run.
    Skipped(String),
}

impl Outcome {
    fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

impl Check {
    fn shown(&self) -> String {
        format!("cargo {}", self.arguments.join(" "))
    }

    fn run(&self) -> Result<Outcome> {
        if let Some((component, version)) = self.component {
            let installed = cargo()
                .args(version)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
            if !installed {
                return Ok(Outcome::Skipped(format!(
                    "{component} is not installed (rustup component add {component})"
                )));
            }
        }
        let mut command = cargo();
        without_driver(&mut command).args(self.arguments);
        command.envs(self.environment.iter().copied());
        if self.with_code {
            command.envs(driver());
        }
        let status = command.status().with_context(|| self.shown())?;
        Ok(Outcome::of(status.success()))
    }
}

const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
const ARGUMENTS: &str = "CLIPPY_ARGS";

/// The environment in which cargo compiles by clippy's driver, with warnings as errors (which are what `cargo clippy
/// -- -D warnings` sets).
fn driver() -> [(&'static str, OsString); 2] {
    [
        (WRAPPER, script().into()),
        (
            ARGUMENTS,
            "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__".into(),
        ),
    ]
}

/// What cargo calls in place of the compiler.
fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name(".ci")
        .join("compiler")
}

/// The script as what cargo is to call in place of the compiler for tests, if it can run here and nothing else is to be
/// called: test programs are not optimised then. Unlike what is called for the crates of the workspace alone, it leaves
/// those as they are that are compiled already.
pub fn script_of_tests() -> Option<PathBuf> {
    let taken = [WRAPPER, "RUSTC_WRAPPER"].map(std::env::var_os);
    let script = script();
    let runs = || {
        let mut command = Command::new(&script);
        command.args(["true"]).stdin(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    (taken.iter().all(Option::is_none) && runs()).then_some(script)
}

/// Whether crates of the workspace are compiled by clippy's driver, as the environment says.
pub fn by_driver() -> bool {
    let set = |(name, value)| std::env::var_os(name).is_some_and(|set| set == value);
    driver().into_iter().all(set)
}

/// Compilers that this command starts are those that they are without clippy's driver.
pub fn without_driver(command: &mut Command) -> &mut Command {
    command.env_remove(WRAPPER).env_remove(ARGUMENTS)
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    // Paths of the checks are those from the repository's root.
    command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null());
    command
}

/// What reads the source only.
const SOURCE: [Check; 2] = [
    Check {
        arguments: &["fmt", "--all", "--check"],
        environment: &[],
        with_code: false,
        component: Some(("rustfmt", &["fmt", "--version"])),
    },
    Check {
        arguments: &["fmt", "--manifest-path", "fleet/Cargo.toml", "--check"],
        environment: &[],
        with_code: false,
        component: Some(("rustfmt", &["fmt", "--version"])),
    },
];

/// What compiles the workspace, and the fuzz targets.
const WORKSPACE: [Check; 3] = [
    Check {
        arguments: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        environment: &[],
        with_code: false,
        component: Some(("clippy", &["clippy", "--version"])),
    },
    Check {
        arguments: &["doc", "--workspace", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        with_code: false,
        component: None,
    },
    // Linking them needs a nightly compiler's sanitizers, checking their types does not, nor libFuzzer, which would be
    // compiled from C++. In the workspace's folder, where clippy has left the dependencies checked.
    Check {
        arguments: &[
            "check",
            "--locked",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--target-dir",
            "target",
        ],
        environment: &[("CUSTOM_LIBFUZZER_PATH", "not-linked/libfuzzer.a")],
        with_code: false,
        component: None,
    },
];

/// The other workspace.
const FLEET: [Check; 1] = [
    // Its dependencies take minutes to compile, and the tests need their code: checking their types first would be half
    // as much again.
    Check {
        arguments: &[
            "test",
            "--no-run",
            "--locked",
            "--manifest-path",
            "fleet/Cargo.toml",
            "--target-dir",
            "target",
        ],
        environment: &[],
        with_code: true,
        component: Some(("clippy", &["clippy", "--version"])),
    },
];

/// What is checked.
#[derive(clap::Args)]
pub struct Parts {
    /// What needs no compiler, in seconds
    #[arg(long)]
    source: bool,
    /// The workspace, its documentation and the fuzz targets
    #[arg(long)]
    workspace: bool,
    /// The folder fleet, a workspace of its own
    #[arg(long)]
    fleet: bool,
}

/// The job. `Ok(false)` when a check failed.
pub fn run(mut parts: Parts) -> Result<bool> {
    if !(parts.source || parts.workspace || parts.fleet) {
        parts = Parts {
            source: true,
            workspace: true,
            fleet: true,
        };
    }
    let (mut good, mut summary) = (true, vec![]);
    let mut since = Instant::now();
    let mut note = |name: String, outcome: Outcome| {
        let seconds = since.elapsed().as_secs();
        since = Instant::now();
        summary.push(match outcome {
            Outcome::Passed => format!("{name}: passed ({seconds} s)"),
            Outcome::Failed => {
                good = false;
                format!("{name}: FAILED ({seconds} s)")
            }
            Outcome::Skipped(why) => format!("{name}: SKIPPED, {why}"),
        });
    };
    if parts.source {
        for check in &SOURCE {
            note(check.shown(), check.run()?);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        type Own = fn(&Path) -> Result<bool>;
        let own: [(&str, Own); 5] = [
            ("order of layers", layers::check),
            ("no unused dependencies", dependencies::check),
            ("features of crates", features::check),
            ("widths of comments", widths::check),
            ("lengths of functions", lengths::check),
        ];
        for (name, check) in own {
            note(name.into(), Outcome::of(check(&root)?));
        }
    }
    let workspace = WORKSPACE.iter().filter(|_| parts.workspace);
    for check in workspace.chain(FLEET.iter().filter(|_| parts.fleet)) {
        let outcome = if check.arguments[0] == "clippy" && by_driver() {
            Outcome::Skipped("cargo xtask test lints what it compiles".into())
        } else {
            check.run()?
        };
        note(check.shown(), outcome);
    }
    for line in summary {
        println!("{line}");
    }
    Ok(good)
}
