//! The command line. Options that cargo has too have cargo's names and go to cargo as they are.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Makes programs of a cargo package faster after linking, and proves that only the placement of code has changed
///
/// Nothing has to be changed in the package: what postlink needs of linking goes to cargo with each command, and
/// all output is in target/postlink.
#[derive(Debug, Parser)]
#[command(
    name = "cargo-postlink",
    bin_name = "cargo postlink",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
#[command(after_long_help = "\
Examples:
  All in one: builds the program, runs it with these arguments while it is counted where it goes, and optimises it
    cargo postlink optimize --bin app -- --benchmark input.txt

  Step by step; every run adds to what is known
    cargo postlink run --bin app -- --benchmark input.txt
    cargo postlink test
    cargo postlink optimize --bin app

  With the compiler's own profile-guided optimisation before it
    cargo postlink optimize --pgo --bin app -- --benchmark input.txt

Exit codes: 0 done; 1 error; 2 wrong command line; 130 after Ctrl-C. `run` ends as the program did.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what is used (cargo, target, runner, profile settings, llvm-profdata) and what is known of programs
    Info(Info),
    /// Build programs, and instrumented copies beside them
    Build(Build),
    /// Run a program instrumented, as `cargo run` would
    Run(Run),
    /// Run tests instrumented, as `cargo test` would, and the programs that they start
    Test(Test),
    /// Run benches instrumented, as `cargo bench` would, and the programs that they start
    Bench(Bench),
    /// Optimise programs for what was counted, prove the results, and say where they are
    Optimize(Optimize),
    /// Write manual pages for all commands
    Man {
        /// Directory that gets the pages; it is made if it is not there
        directory: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `info`
#[derive(Args, Debug)]
pub struct Info {
    #[command(flatten)]
    pub building: Building,
}

/// `build`
#[derive(Args, Debug)]
pub struct Build {
    #[command(flatten)]
    pub programs: Programs,
    #[command(flatten)]
    pub others: TestsAndBenches,
    #[command(flatten)]
    pub building: Building,
}

/// `run`
#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    pub programs: Programs,
    #[command(flatten)]
    pub building: Building,
    #[command(flatten)]
    pub running: Running,
    /// Arguments for the program
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<OsString>,
}

/// `test`
#[derive(Args, Debug)]
pub struct Test {
    #[command(flatten)]
    pub programs: Programs,
    #[command(flatten)]
    pub others: TestsAndBenches,
    #[command(flatten)]
    pub building: Building,
    #[command(flatten)]
    pub running: Running,
    /// Only tests whose name has this in it, and arguments for the tests' harness after `--`
    #[arg(value_name = "TESTNAME")]
    pub filter: Option<String>,
    /// Arguments for the tests' harness
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<OsString>,
}

/// `bench`
#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    pub programs: Programs,
    #[command(flatten)]
    pub others: TestsAndBenches,
    #[command(flatten)]
    pub building: Building,
    #[command(flatten)]
    pub running: Running,
    /// Only benches whose name has this in it
    #[arg(value_name = "BENCHNAME")]
    pub filter: Option<String>,
    /// Arguments for the benches' harness
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<OsString>,
}

/// `optimize`
#[derive(Args, Debug)]
pub struct Optimize {
    #[command(flatten)]
    pub programs: Programs,
    #[command(flatten)]
    pub others: TestsAndBenches,
    #[command(flatten)]
    pub building: Building,
    #[command(flatten)]
    pub running: Running,
    /// An option for `postlink optimize`, as in --option=--preset=fast; may be given several times
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub option: Vec<String>,
    /// Compare the result with the program on the same workload, with `postlink bench`
    #[arg(long)]
    pub measure: bool,
    /// Write a page that shows what was found and done, see `postlink report`
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// First run the program with these arguments, as `cargo postlink run` does
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<OsString>,
}

/// Which programs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Programs")]
pub struct Programs {
    /// Package of the workspace
    #[arg(long, short, value_name = "SPEC")]
    pub package: Vec<String>,
    /// All packages of the workspace
    #[arg(long)]
    pub workspace: bool,
    /// All packages of the workspace but this
    #[arg(long, value_name = "SPEC", requires = "workspace")]
    pub exclude: Vec<String>,
    /// This program
    #[arg(long, value_name = "NAME")]
    pub bin: Vec<String>,
    /// All programs
    #[arg(long)]
    pub bins: bool,
    /// This example
    #[arg(long, value_name = "NAME")]
    pub example: Vec<String>,
    /// All examples
    #[arg(long)]
    pub examples: bool,
}

/// Tests and benches among the programs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Programs")]
pub struct TestsAndBenches {
    /// This integration test
    #[arg(long, value_name = "NAME")]
    pub test: Vec<String>,
    /// This bench
    #[arg(long, value_name = "NAME")]
    pub bench: Vec<String>,
    /// All benches
    #[arg(long)]
    pub benches: bool,
}

/// How cargo builds.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Building")]
pub struct Building {
    /// Features to turn on
    #[arg(long, short = 'F', value_name = "FEATURES")]
    pub features: Vec<String>,
    /// Turn all features on
    #[arg(long)]
    pub all_features: bool,
    /// Turn the default features off
    #[arg(long)]
    pub no_default_features: bool,
    /// What to build for [default: as cargo is configured, else this machine]
    #[arg(long, value_name = "TRIPLE")]
    pub target: Option<String>,
    /// The profile to build with [default: release; bench: bench]
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,
    /// For who is used to it: the release profile is the default
    #[arg(long, short, conflicts_with = "profile")]
    pub release: bool,
    /// Path to Cargo.toml
    #[arg(long, value_name = "PATH")]
    pub manifest_path: Option<PathBuf>,
    /// A setting of cargo's, KEY=VALUE or a file
    #[arg(long, value_name = "KEY=VALUE")]
    pub config: Vec<String>,
    /// Number of jobs that run at once
    #[arg(long, short, value_name = "N")]
    pub jobs: Option<String>,
    /// Cargo.lock must not change
    #[arg(long)]
    pub locked: bool,
    /// Use no network
    #[arg(long)]
    pub offline: bool,
    /// Both
    #[arg(long)]
    pub frozen: bool,
    /// Have the compiler optimise by a profile first; needs llvm-profdata
    #[arg(long)]
    pub pgo: bool,
    /// Whether the linker keeps relocations; without, jumps through tables continue in the original code (x86-64 only)
    #[arg(long, value_name = "WHICH", default_value = "kept")]
    pub relocations: Relocations,
}

/// Whether the linker keeps relocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Relocations {
    /// Yes (-Wl,--emit-relocs): everything can move
    #[default]
    Kept,
    /// No: for linkers that cannot
    None,
}

/// How a workload runs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Running")]
pub struct Running {
    /// The workload as a line for the shell, in which {} stands for the program; for one program
    #[arg(long, value_name = "LINE")]
    pub workload: Option<String>,
    /// Use what was counted although the workload failed
    #[arg(long)]
    pub allow_failure: bool,
    /// Forget what was counted in earlier runs of these programs
    #[arg(long)]
    pub fresh: bool,
}

impl Programs {
    /// For cargo.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut words = Words::default();
        words.each("--package", &self.package);
        words.flag("--workspace", self.workspace);
        words.each("--exclude", &self.exclude);
        words.each("--bin", &self.bin);
        words.flag("--bins", self.bins);
        words.each("--example", &self.example);
        words.flag("--examples", self.examples);
        words.0
    }
}

impl TestsAndBenches {
    /// For cargo.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut words = Words::default();
        words.each("--test", &self.test);
        words.each("--bench", &self.bench);
        words.flag("--benches", self.benches);
        words.0
    }
}

impl Building {
    /// For cargo: all but what [`crate::session`] decides, the target, the profile and `--config`.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut words = Words::default();
        words.each("--features", &self.features);
        words.flag("--all-features", self.all_features);
        words.flag("--no-default-features", self.no_default_features);
        words.each("--manifest-path", self.manifest_path.as_slice());
        words.each("--config", &self.config);
        words.each("--jobs", self.jobs.as_slice());
        words.0.extend(self.network());
        words.0
    }

    /// What else `cargo metadata` takes.
    pub fn network(&self) -> Vec<OsString> {
        let mut words = Words::default();
        words.flag("--locked", self.locked);
        words.flag("--offline", self.offline);
        words.flag("--frozen", self.frozen);
        words.0
    }
}

#[derive(Default)]
struct Words(Vec<OsString>);

impl Words {
    fn flag(&mut self, name: &str, is_given: bool) {
        if is_given {
            self.0.push(name.into());
        }
    }

    fn each(&mut self, name: &str, values: &[impl Into<OsString> + Clone]) {
        for value in values {
            self.0.push(name.into());
            self.0.push(value.clone().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_cargo_has_too_goes_to_cargo() {
        let cli = Cli::parse_from([
            "cargo-postlink",
            "optimize",
            "-p",
            "a",
            "--bin",
            "x",
            "--features",
            "f,g",
            "--locked",
            "--option=--preset=fast",
            "--",
            "--bin",
            "y",
        ]);
        let Command::Optimize(optimize) = cli.command else {
            panic!("another command");
        };
        assert_eq!(
            optimize.programs.arguments(),
            ["--package", "a", "--bin", "x"]
        );
        assert_eq!(
            optimize.building.arguments(),
            ["--features", "f,g", "--locked"]
        );
        assert_eq!(optimize.option, ["--preset=fast"]);
        assert_eq!(optimize.arguments, ["--bin", "y"]);
    }
}
