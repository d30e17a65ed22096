//! Running postlink and llvm-bolt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::programs::Program;
use super::report::ToolRun;
use crate::packages::find_program;
use crate::process::{self, Run};

/// Memory that llvm-bolt needs to instrument clang; with less it is killed, or takes the machine with it.
const BOLT_CLANG_MEMORY: u64 = 28 << 30;

/// Both tools.
pub struct Tools {
    postlink: PathBuf,
    /// An example of the crate `rewrite` that judges layouts, if it was built.
    judge: Option<PathBuf>,
    /// llvm-bolt, unless it is not there or not wanted.
    pub bolt: Option<PathBuf>,
}

/// The last lines of a log, for an error.
fn end_of(log: &Path) -> String {
    let said = fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let mut lines: Vec<&str> = said
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(3)
        .collect();
    lines.reverse();
    lines.join(" / ")
}

/// Builds a program for release, and says where it is.
fn built(wanted: &[&str], kind: &str, name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--release"])
        .args(wanted)
        .arg("--message-format=json-render-diagnostics");
    let output = build
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo build")?;
    if !output.status.success() {
        bail!("{name} does not build");
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name && message["target"]["kind"][0] == kind)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo did not say where {name} is"))
}

/// Each tool makes a new file: a file system takes its time to give up the one before.
fn clear(output: &Path) {
    let _ = fs::remove_file(output); // It may not be there.
}

impl Tools {
    /// Builds postlink as users do, and looks for llvm-bolt.
    pub fn find(bolt: bool) -> Result<Tools> {
        let mut tools = Tools::without_judge()?;
        let judge = &["--package", "postlink-rewrite", "--example", "judge"];
        tools.judge = Some(built(judge, "example", "judge")?);
        tools.bolt = bolt.then(|| find_program("llvm-bolt-22")).flatten();
        Ok(tools)
    }

    /// Builds postlink and the examples that judge layouts and draw samples. Returns the latter.
    pub fn with_draw(bolt: Option<PathBuf>) -> Result<(Tools, PathBuf)> {
        let mut tools = Tools::find(false)?;
        tools.bolt = bolt;
        let draw = &["--package", "postlink-rewrite", "--example", "draw"];
        Ok((tools, built(draw, "example", "draw")?))
    }

    /// Programs that are built already.
    pub fn of(postlink: &Path, judge: &Path, bolt: Option<PathBuf>) -> Result<Tools> {
        let mut tools = Tools::at(Some(postlink))?;
        tools.judge = Some(judge.to_owned());
        tools.bolt = bolt;
        Ok(tools)
    }

    /// This postlink, or one that is built now, and nothing else.
    pub fn at(postlink: Option<&Path>) -> Result<Tools> {
        let Some(path) = postlink else {
            return Tools::without_judge();
        };
        let path = path.canonicalize();
        Ok(Tools {
            postlink: path.with_context(|| format!("{postlink:?}"))?,
            judge: None,
            bolt: None,
        })
    }

    /// Builds postlink alone.
    pub fn without_judge() -> Result<Tools> {
        Ok(Tools {
            postlink: built(&["--package", "postlink"], "bin", "postlink")?,
            judge: None,
            bolt: None,
        })
    }

    /// The program postlink.
    pub fn program(&self) -> &Path {
        &self.postlink
    }

    /// Versions, for the report.
    pub fn versions(&self) -> Vec<String> {
        let first = |program: &Path, argument: &str, wanted: &str| {
            let output = Command::new(program).arg(argument).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines()
                .find(|line| line.contains(wanted))
                .map(|line| line.trim().to_owned())
        };
        let mut versions = vec![];
        versions.extend(first(&self.postlink, "--version", "postlink"));
        if let Some(bolt) = &self.bolt {
            versions.extend(first(bolt, "--version", "version").map(|v| format!("llvm-bolt: {v}")));
        }
        for compiler in ["gcc", "rustc"] {
            versions.extend(
                find_program(compiler).and_then(|path| first(&path, "--version", compiler)),
            );
        }
        versions
    }

    /// Runs postlink; what it prints is given back.
    pub fn postlink(&self, folder: &Path, arguments: &[&Path]) -> Result<(Run, Vec<u8>)> {
        let (stdout, stderr) = (folder.join("tool.out"), folder.join("tool.err"));
        let mut command = Command::new(&self.postlink);
        command.arg("--quiet").args(arguments);
        let run = process::run(&mut command, &stdout, &stderr)?;
        if !run.status.success() {
            bail!("{command:?}: {}: {}", run.status, end_of(&stderr));
        }
        Ok((
            run,
            fs::read(&stdout).with_context(|| stdout.display().to_string())?,
        ))
    }

    pub fn postlink_instrument(&self, input: &Path, output: &Path, folder: &Path) -> Result<Run> {
        clear(output);
        Ok(self
            .postlink(
                folder,
                &["instrument".as_ref(), input, "-o".as_ref(), output],
            )?
            .0)
    }

    /// Without checking, whose time is in a column of its own; also what `--json` tells.
    pub fn postlink_optimize(
        &self,
        input: &Path,
        profile: &Path,
        output: &Path,
        folder: &Path,
        options: &[&str],
    ) -> Result<(Run, Value)> {
        clear(output);
        let mut arguments: Vec<&Path> = vec![
            "optimize".as_ref(),
            input,
            "-p".as_ref(),
            profile,
            "-o".as_ref(),
            output,
        ];
        arguments.extend(["--no-verify", "--dyno-stats", "--json"].map(Path::new));
        arguments.extend(options.iter().map(Path::new));
        let (run, said) = self.postlink(folder, &arguments)?;
        Ok((
            run,
            serde_json::from_slice(&said).context("postlink optimize --json")?,
        ))
    }

    /// A trace of a run: of a command with {} in the place of the program.
    pub fn postlink_trace(&self, original: &Path, trace: &Path, run: &Command) -> Result<()> {
        let mut command = Command::new(&self.postlink);
        command.args(["--quiet", "trace"]).arg(original);
        command.arg("-o").arg(trace).arg("--");
        command.arg(run.get_program()).args(run.get_args());
        for (name, value) in run.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let done = command.output().context("postlink trace")?;
        if !done.status.success() {
            bail!("postlink trace: {}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(())
    }

    pub fn postlink_verify(&self, input: &Path, output: &Path, folder: &Path) -> Result<Run> {
        Ok(self
            .postlink(folder, &["verify".as_ref(), input, output])?
            .0)
    }

    /// What `show --json` tells.
    pub fn postlink_counts(&self, input: &Path, profile: &Path, folder: &Path) -> Result<Value> {
        let arguments = [
            "show".as_ref(),
            profile,
            "--binary".as_ref(),
            input,
            "--json".as_ref(),
        ];
        let (_, said) = self.postlink(folder, &arguments)?;
        serde_json::from_slice(&said).context("postlink show --json")
    }

    /// What `inspect --json` tells.
    pub fn postlink_inspect(&self, input: &Path, folder: &Path) -> Result<Value> {
        let (_, said) = self.postlink(folder, &["inspect".as_ref(), input, "--json".as_ref()])?;
        serde_json::from_slice(&said).context("postlink inspect --json")
    }

    /// Runs llvm-bolt; also what it prints.
    pub fn bolt(&self, folder: &Path, output: &Path, arguments: &[&Path]) -> (ToolRun, String) {
        let Some(bolt) = &self.bolt else {
            return (ToolRun::Failed("not installed".into()), String::new());
        };
        let (stdout, stderr) = (folder.join("bolt.out"), folder.join("bolt.err"));
        clear(output);
        let mut command = Command::new(bolt);
        command.args(arguments).arg("-o").arg(output);
        match process::run(&mut command, &stdout, &stderr) {
            Ok(run) if run.status.success() && output.exists() => {
                let said = fs::read(&stdout).unwrap_or_default();
                (
                    ToolRun::ok(run, output),
                    String::from_utf8_lossy(&said).into_owned(),
                )
            }
            Ok(run) => (
                ToolRun::Failed(format!("{}: {}", run.status, end_of(&stderr))),
                String::new(),
            ),
            Err(error) => (ToolRun::Failed(format!("{error:#}")), String::new()),
        }
    }

    pub fn bolt_instrument(
        &self,
        program: &Program,
        input: &Path,
        output: &Path,
        folder: &Path,
    ) -> ToolRun {
        if program.name.starts_with("clang") && memory_available() < BOLT_CLANG_MEMORY {
            return ToolRun::Failed(format!(
                "not tried: needs {} GiB of memory",
                BOLT_CLANG_MEMORY >> 30
            ));
        }
        let file = format!(
            "-instrumentation-file={}",
            folder.join("bolt.inst.fdata").display()
        );
        let arguments = [input, "-instrument".as_ref(), file.as_ref()];
        self.bolt(folder, output, &arguments).0
    }

    /// What the layouts of outputs are worth by the profile, by one measure for all. They must have been made
    /// with `--enable-bat`.
    pub fn judge(
        &self,
        input: &Path,
        profile: &Path,
        outputs: &[&Path],
        folder: &Path,
    ) -> Result<Value> {
        let (stdout, stderr) = (folder.join("judge.out"), folder.join("judge.err"));
        let judge = self.judge.as_ref().context("the judge was not built")?;
        let mut command = Command::new(judge);
        command.arg(input).arg(profile).args(outputs);
        let run = process::run(&mut command, &stdout, &stderr)?;
        if !run.status.success() {
            bail!("{command:?}: {}: {}", run.status, end_of(&stderr));
        }
        let said = fs::read(&stdout).with_context(|| stdout.display().to_string())?;
        serde_json::from_slice(&said).context("the judgement")
    }

    pub fn bolt_optimize(
        &self,
        input: &Path,
        data: &Path,
        output: &Path,
        folder: &Path,
        options: &[&str],
    ) -> (ToolRun, String) {
        let data = format!("-data={}", data.display());
        let mut arguments = vec![input, Path::new(&data)];
        arguments.extend(
            [
                "-reorder-blocks=ext-tsp",
                "-reorder-functions=cdsort",
                "-split-functions",
                "-split-all-cold",
                "-split-eh",
                "-icf=1",
                "-dyno-stats",
            ]
            .map(Path::new),
        );
        arguments.extend(options.iter().map(Path::new));
        self.bolt(folder, output, &arguments)
    }
}

/// Memory that can be had, in bytes.
fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}
