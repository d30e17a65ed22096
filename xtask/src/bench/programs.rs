//! The corpus: real programs, built once into `$POSTLINK_CORPUS` (default `target/corpus`), and their workloads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::process;

/// A program of the corpus.
#[derive(Debug)]
pub struct Program {
    /// As given to `cargo xtask bench`.
    pub name: &'static str,
    /// File in `bin`.
    pub file: &'static str,
    /// Target of `build.sh` that makes it.
    target: &'static str,
    /// Name of its workload for `workload.sh`.
    pub workload: &'static str,
    /// Environment variable N for the workload, for measuring.
    n: Option<&'static str>,
    /// N for simulation, which is some fifty times as slow; `None`: not simulated.
    pub simulated: Option<Option<&'static str>>,
}

macro_rules! programs {
    ($($name:literal $file:literal $target:literal $workload:literal $n:expr, $simulated:expr;)*) => {
        &[$(Program {
            name: $name, file: $file, target: $target, workload: $workload, n: $n, simulated: $simulated,
        },)*]
    };
}

const PROGRAMS: &[Program] = programs! {
    "sqlite" "sqlite-pie" "sqlite" "sqlite" None, Some(None);
    "lua" "lua" "lua" "lua" None, Some(Some("1"));
    "exc" "exc" "exc" "exc" None, Some(Some("200000"));
    "redis" "redis-server" "redis" "redis" Some("100000"), None;
    "rg" "rg" "rg" "rg" None, Some(None);
    "gawk" "gawk" "gawk" "gawk" None, Some(Some("20000"));
    "cppcheck" "cppcheck" "cppcheck" "cppcheck" None, Some(None);
    "bash" "bash-5.2.15" "bash" "bash" None, Some(Some("300"));
    "perl" "perl-5.36.0" "perl" "perl" None, Some(Some("3000"));
    "vim" "vim-9.0" "vim" "vim" None, Some(Some("50"));
    "tclsh" "tclsh" "tclsh" "tclsh" None, Some(Some("20000"));
    "tcc" "tcc" "tcc" "tcc" None, Some(None);
    "clang" "clang-no-pie" "clang" "clang" None, None;
    "clang-pie" "clang-pie" "clang" "clang" None, None;
    "sqlite-nopie" "sqlite-nopie" "sqlite" "sqlite" None, None;
    "sqlite-static" "sqlite-static" "variants" "sqlite" None, None;
    "sqlite-g" "sqlite-g" "variants" "sqlite" None, None;
    "sqlite-clang" "sqlite-clang" "variants" "sqlite" None, None;
    "lua-static" "lua-static" "variants" "lua" None, None;
    "lua-clang" "lua-clang" "variants" "lua" None, None;
    "exc-clang" "exc-clang" "variants" "exc" None, None;
    "exc-static" "exc-static" "variants" "exc" None, None;
};

/// For `cargo xtask bench aarch64`, with smaller workloads: they are emulated.
pub const AARCH64: &[Program] = programs! {
    "sqlite-pie" "aarch64/sqlite-pie" "aarch64" "sqlite" None, Some(Some("50000"));
    "sqlite-static" "aarch64/sqlite-static" "aarch64" "sqlite" None, Some(Some("50000"));
    "lua" "aarch64/lua-seeded" "aarch64" "lua" None, Some(Some("1"));
    "lua-static" "aarch64/lua-seeded-static" "aarch64" "lua" None, Some(Some("1"));
    "exc" "aarch64/exc" "aarch64" "exc" None, Some(Some("100000"));
    "sqlite-clang" "aarch64/sqlite-clang" "aarch64-clang" "sqlite" None, Some(Some("20000"));
    "exc-clang-static" "aarch64/exc-clang-static" "aarch64-clang" "exc" None, Some(Some("50000"));
};

/// What is measured when nothing is named.
pub const DEFAULT: &[&str] = &["sqlite", "lua", "exc", "redis", "rg"];

impl Program {
    /// The same with another N for simulation.
    pub fn with_simulated(&self, n: &'static str) -> Program {
        Program {
            simulated: Some(Some(n)),
            ..*self
        }
    }
}

/// Looks programs up by name; `all` and `variants` represent groups.
pub fn choose(names: &[String]) -> Result<Vec<&'static Program>> {
    let mut chosen: Vec<&Program> = vec![];
    for name in names {
        let matching: Vec<&Program> = PROGRAMS
            .iter()
            .filter(|p| p.name == name || p.target == name || name == "all")
            .collect();
        if matching.is_empty() {
            let known: Vec<&str> = PROGRAMS.iter().map(|p| p.name).collect();
            bail!(
                "no program '{name}' in the corpus; there are {}, and the groups variants and all",
                known.join(", ")
            );
        }
        // A name that is a program and a group at once means the program.
        let exact = matching.iter().find(|p| p.name == name).copied();
        for program in exact.map_or(matching, |p| vec![p]) {
            if !chosen.iter().any(|c| c.name == program.name) {
                chosen.push(program);
            }
        }
    }
    Ok(chosen)
}

/// Where the corpus is.
pub fn corpus() -> Result<PathBuf> {
    let path = match std::env::var_os("POSTLINK_CORPUS") {
        Some(path) => PathBuf::from(path),
        None => super::root()?.join("target/corpus"),
    };
    fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    path.canonicalize()
        .with_context(|| path.display().to_string())
}

fn script(name: &str) -> Result<PathBuf> {
    Ok(super::root()?.join("bench/corpus").join(name))
}

/// Builds a program unless it is there.
pub fn build(program: &Program, corpus: &Path) -> Result<()> {
    if corpus.join("bin").join(program.file).exists() {
        return Ok(());
    }
    if program.target == "clang" {
        packages::install(packages::FOR_CLANG, true);
    }
    eprintln!("building {}", program.target);
    let log = corpus.join(format!("build-{}.log", program.target));
    let mut command = Command::new(script("build.sh")?);
    command.arg(corpus).arg(program.target);
    let run = process::run(&mut command, &log, &corpus.join("build.err"))?;
    if !run.status.success() {
        let said = fs::read_to_string(corpus.join("build.err")).unwrap_or_default();
        let end: Vec<&str> = said.lines().rev().take(5).collect();
        bail!(
            "build.sh {} {}: {}",
            program.target,
            run.status,
            end.into_iter().rev().collect::<Vec<_>>().join(" / ")
        );
    }
    Ok(())
}

/// Builds releases of programs.
pub fn build_releases(corpus: &Path, names: &[String]) -> Result<()> {
    let errors = corpus.join("releases.err");
    let mut command = Command::new(script("releases.sh")?);
    command.arg(corpus).args(names);
    let run = process::run(&mut command, &corpus.join("releases.log"), &errors)?;
    if !run.status.success() {
        let said = fs::read_to_string(&errors).unwrap_or_default();
        let end = said.lines().count().saturating_sub(5);
        let said: Vec<&str> = said.lines().skip(end).collect();
        bail!("releases.sh: {}: {}", run.status, said.join(" / "));
    }
    Ok(())
}

/// A run of a workload.
pub struct Worked {
    /// Processor time of the program.
    pub cpu: Duration,
    pub status: ExitStatus,
    pub output: Vec<u8>,
}

/// Runs the workload with a program; an instrumented one has its profile beside it.
pub fn workload(
    program: &Program,
    path: &Path,
    corpus: &Path,
    folder: &Path,
    name: &str,
) -> Result<Worked> {
    let (stdout, stderr) = (folder.join("workload.out"), folder.join("workload.err"));
    let ticks = folder.join("ticks");
    let _ = fs::remove_file(&ticks);
    let mut command = command(program, path, corpus, program.n)?;
    command
        .env("POSTLINK_PROFILE", folder.join(format!("{name}.plraw")))
        .env(
            "LLVM_MIP_PROFILE_FILENAME",
            folder.join(format!("{name}.mipraw")),
        )
        .env("CPU_OUT", &ticks);
    let run = process::run(&mut command, &stdout, &stderr)?;
    // A server's time is apart from its clients'.
    let own = fs::read_to_string(&ticks)
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    Ok(Worked {
        cpu: own.map_or(run.cpu, |ticks| Duration::from_millis(ticks * 10)),
        status: run.status,
        output: fs::read(&stdout).with_context(|| stdout.display().to_string())?,
    })
}

/// The command that runs a program's workload.
pub fn command(program: &Program, path: &Path, corpus: &Path, n: Option<&str>) -> Result<Command> {
    command_of(program.workload, path, corpus, n)
}

/// The command that runs a workload by its name.
pub fn command_of(workload: &str, path: &Path, corpus: &Path, n: Option<&str>) -> Result<Command> {
    let mut command = Command::new(script("workload.sh")?);
    command
        .arg(workload)
        .arg(path)
        .arg(corpus)
        .env_remove("RUNNER");
    match n {
        Some(n) => command.env("N", n),
        None => command.env_remove("N"),
    };
    Ok(command)
}
