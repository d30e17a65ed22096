//! One program in all its states: made, run, compared, measured.
//!
//! | state | made by |
//! |---|---|
//! | plain | the package |
//! | counting | `postlink instrument` |
//! | safe, fast | `postlink optimize` with what the counting one counted, preset safe and fast, each proved |
//! | size | the same with preset size, which a file without kept relocations is refused |
//! | llvm-bolt | `llvm-bolt` with the same counts (`postlink convert`), with the options that it takes for such files |
//!
//! To run a state its file is put into the place where the package has it, below the folder of the program, by a
//! hard link and a rename: so a program finds what is beside it, and a library is found by the loader.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use postlink_measure::series::{Job, Limits, Runner, Series, measure};
use postlink_measure::{Measure, Ratio, Run};
use serde_json::Value;

use super::catalogue::Entry;

/// Options of llvm-bolt. Functions cannot be reordered without kept relocations: it says so and ends.
pub const BOLT_OPTIONS: &[&str] = &[
    "--allow-stripped",
    "-reorder-blocks=ext-tsp",
    "-split-functions",
    "-split-all-cold",
];

/// A run that takes so much longer than the plain program's is taken for one that does not end.
const PATIENCE: u64 = 30;

/// What a run printed, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    stdout: Vec<u8>,
    status: ExitStatus,
}

impl Outcome {
    /// In what it differs from that of the plain program; `None` if in nothing.
    fn difference(&self, plain: &Outcome) -> Option<String> {
        let ended = |status: ExitStatus| match (status.code(), status.signal()) {
            (Some(124 | 137), _) => "did not end".to_owned(),
            (Some(code), _) => format!("exit status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        if self.status != plain.status {
            return Some(format!(
                "{}, the original: {}",
                ended(self.status),
                ended(plain.status)
            ));
        }
        let lines = |outcome: &Outcome| String::from_utf8_lossy(&outcome.stdout).into_owned();
        let (mine, theirs) = (lines(self), lines(plain));
        let both = mine.lines().zip(theirs.lines()).enumerate();
        let differing = both
            .map(|(i, (a, b))| (i + 1, a, b))
            .find(|(_, a, b)| a != b);
        match differing {
            Some((line, a, b)) => Some(format!(
                "line {line} is '{a:.60}', the original's '{b:.60}'"
            )),
            None if self.stdout != plain.stdout => Some(format!(
                "{} bytes of output, the original has {}",
                self.stdout.len(),
                plain.stdout.len()
            )),
            None => None,
        }
    }
}

/// A state other than the plain one.
#[derive(Debug)]
pub struct State {
    /// As in the table's head.
    pub name: &'static str,
    /// Size of the file.
    pub size: u64,
    /// What `--json` said, or for llvm-bolt the functions that it overwrote.
    pub said: Value,
    /// In what its run differed from the plain one's.
    pub difference: Option<String>,
    /// Processor time to that of the plain one.
    pub time: Option<Ratio>,
}

/// All that is known of one program.
#[derive(Debug)]
pub struct Figures {
    pub entry: &'static Entry,
    pub version: String,
    /// Size of the plain file.
    pub size: u64,
    /// What `inspect --json` said.
    pub inspect: Value,
    /// Median processor time of the plain one.
    pub seconds: Option<f64>,
    pub states: Vec<State>,
    /// States that could not be made: name, message.
    pub refused: Vec<(&'static str, String)>,
}

impl Figures {
    /// A state, if it could be made.
    pub fn state(&self, name: &str) -> Option<&State> {
        self.states.iter().find(|state| state.name == name)
    }

    /// Why a state could not be made.
    pub fn refusal(&self, name: &str) -> Option<&str> {
        let found = self.refused.iter().find(|(which, _)| *which == name);
        found.map(|(_, why)| why.as_str())
    }

    /// What is wrong with postlink's states.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let ours = self.states.iter().filter(|s| s.name != "llvm-bolt");
        for state in ours {
            if let Some(difference) = &state.difference {
                faults.push(format!("{}: {difference}", state.name));
            }
        }
        let wanted: &[&str] = match self.entry.refused {
            Some(_) => &[],
            None => &["counting", "safe", "fast"],
        };
        for name in wanted {
            if let Some(why) = self.refusal(name) {
                faults.push(format!("{name}: {why}"));
            }
        }
        if let Some(word) = self.entry.refused {
            match self.refusal("counting") {
                Some(why) if why.contains(word) => {}
                Some(why) => faults.push(format!("refused, but not for {word}: {why}")),
                None => faults.push(format!("not refused for {word}")),
            }
        }
        faults
    }
}

/// A program that is being measured.
pub struct Lab<'a> {
    /// What it is.
    pub entry: &'static Entry,
    /// The version of its package.
    pub version: String,
    /// Its folder; `root` in it has the packages.
    pub folder: PathBuf,
    /// The program postlink.
    pub postlink: &'a Path,
    /// llvm-bolt, if it is there.
    pub bolt: Option<&'a Path>,
    /// Rounds of runs.
    pub runs: u32,
}

/// The last line of a tool's message.
fn message(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let chosen = lines
        .clone()
        .find(|line| line.starts_with("error") || line.contains("BOLT-ERROR"));
    chosen
        .or(lines.next_back())
        .unwrap_or("no message")
        .trim_start_matches("error: ")
        .to_owned()
}

impl Lab<'_> {
    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The file of a state. The plain one has the file's own name.
    fn file(&self, state: &str) -> PathBuf {
        let name = Path::new(self.entry.file).file_name().unwrap_or_default();
        self.folder.join(state).join(name)
    }

    /// Puts a state's file into its place.
    fn place(&self, state: &str) -> Result<()> {
        let place = self.root().join(self.entry.file);
        let mut beside = place.clone().into_os_string();
        beside.push(".new");
        let _ = fs::remove_file(&beside); // It may not be there.
        fs::hard_link(self.file(state), &beside)
            .with_context(|| self.file(state).display().to_string())?;
        fs::rename(&beside, &place).with_context(|| place.display().to_string())?;
        Ok(())
    }

    /// A script, to be run in an empty folder of its own.
    fn command(&self, script: &str, folder: &Path, limit: Duration) -> Result<Command> {
        let _ = fs::remove_dir_all(folder); // It may not be there; what is left shows in the next line.
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let root = self.root();
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", &limit.as_secs().max(1).to_string()])
            .args(["sh", "-c", script])
            .current_dir(folder)
            .env("ROOT", &root)
            .env("INPUT", self.folder.join("input"))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("HOME", folder)
            .env_remove("POSTLINK_PROFILE")
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null());
        if !self.entry.packages.contains(&"libc6") {
            // What packages register for the loader when they are installed is in folders of its own.
            let folders = [
                "usr/lib/x86_64-linux-gnu",
                "lib/x86_64-linux-gnu",
                "usr/lib/x86_64-linux-gnu/blas",
                "usr/lib/x86_64-linux-gnu/lapack",
                "usr/lib/x86_64-linux-gnu/pulseaudio",
            ];
            let folders = folders.map(|f| root.join(f).display().to_string());
            command.env("LD_LIBRARY_PATH", folders.join(":"));
        }
        Ok(command)
    }

    fn scratch(&self) -> PathBuf {
        self.folder.join("scratch")
    }

    /// Runs a state once.
    fn once(&self, state: &str, profile: Option<&Path>, limit: Duration) -> Result<Outcome> {
        self.place(state)?;
        let mut command = self.command(self.entry.work, &self.scratch(), limit)?;
        if let Some(profile) = profile {
            command.env("POSTLINK_PROFILE", profile);
        }
        let output = command.output().context("timeout")?;
        fs::write(self.folder.join(format!("{state}.err")), &output.stderr)?;
        fs::write(self.folder.join(format!("{state}.out")), &output.stdout)?;
        Ok(Outcome {
            stdout: output.stdout,
            status: output.status,
        })
    }

    /// Runs postlink; its standard output, or its error.
    fn postlink(&self, arguments: &[&Path]) -> Result<std::result::Result<Vec<u8>, String>> {
        let mut command = Command::new(self.postlink);
        command.arg("--quiet").args(arguments);
        let output = command.output().with_context(|| format!("{command:?}"))?;
        Ok(if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(message(&output.stderr))
        })
    }

    fn json(&self, arguments: &[&Path]) -> Result<std::result::Result<Value, String>> {
        let arguments = [arguments, &["--json".as_ref()]].concat();
        Ok(match self.postlink(&arguments)? {
            Ok(said) => Ok(serde_json::from_slice(&said)
                .with_context(|| format!("postlink {}", arguments[0].display()))?),
            Err(why) => Err(why),
        })
    }

    /// llvm-bolt's output from the same counts: what it said of functions, or why there is none.
    fn bolt(&self, profile: &Path) -> Result<std::result::Result<Value, String>> {
        let Some(bolt) = self.bolt else {
            return Ok(Err(
                "llvm-bolt-22 is not installed (Debian package bolt-22)".into(),
            ));
        };
        let (plain, counts) = (self.file("plain"), self.folder.join("counts.fdata"));
        let arguments = ["convert".as_ref(), profile, "--binary".as_ref(), &plain];
        let arguments = [&arguments[..], &["-o".as_ref(), counts.as_path()]].concat();
        if let Err(why) = self.postlink(&arguments)? {
            return Ok(Err(format!("postlink convert: {why}")));
        }
        let mut command = Command::new(bolt);
        command
            .arg(&plain)
            .arg(format!("-data={}", counts.display()));
        command
            .args(BOLT_OPTIONS)
            .arg("-o")
            .arg(self.file("llvm-bolt"));
        let output = command.output().context("llvm-bolt")?;
        let said = [output.stdout, output.stderr].concat();
        fs::write(self.folder.join("llvm-bolt.log"), &said)?;
        if !output.status.success() || !self.file("llvm-bolt").exists() {
            return Ok(Err(match output.status.signal() {
                Some(signal) => format!("ended by signal {signal}"),
                None => message(&said),
            }));
        }
        Ok(Ok(overwritten(&String::from_utf8_lossy(&said))))
    }

    /// Everything about the program.
    pub fn figures(&self) -> Result<Figures> {
        for state in ["plain", "counting", "safe", "fast", "size", "llvm-bolt"] {
            fs::create_dir_all(self.folder.join(state))?;
        }
        let original = self.root().join(self.entry.file);
        fs::copy(&original, self.file("plain")).with_context(|| original.display().to_string())?;
        self.prepare()?;
        let start = Instant::now();
        let plain = self.once("plain", None, Duration::from_secs(300))?;
        if plain.status.code().is_none_or(|code| code >= 124) {
            bail!("the package's own program ended with {}", plain.status);
        }
        let again = self.once("plain", None, Duration::from_secs(300))?;
        if let Some(difference) = again.difference(&plain) {
            bail!("the package's own program does not print the same twice: {difference}");
        }
        let limit = Duration::from_secs(20) + start.elapsed() * PATIENCE as u32;
        let mut figures = Figures {
            entry: self.entry,
            version: self.version.clone(),
            size: fs::metadata(self.file("plain"))?.len(),
            inspect: Value::Null,
            seconds: None,
            states: Vec::new(),
            refused: Vec::new(),
        };
        self.states(&mut figures, &plain, limit)?;
        self.measure(&mut figures, limit)?;
        self.place("plain")?;
        Ok(figures)
    }

    fn prepare(&self) -> Result<()> {
        let script = format!("set -e\n{}", self.entry.prepare);
        let mut command = self.command(
            &script,
            &self.folder.join("input"),
            Duration::from_secs(120),
        )?;
        // What makes the input runs with the system's own libraries.
        let output = command.env_remove("LD_LIBRARY_PATH").output()?;
        if !output.status.success() {
            bail!("the input cannot be made: {}", message(&output.stderr));
        }
        Ok(())
    }

    fn states(&self, figures: &mut Figures, plain: &Outcome, limit: Duration) -> Result<()> {
        let file = self.file("plain");
        match self.json(&["inspect".as_ref(), &file])? {
            Ok(said) => figures.inspect = said,
            Err(why) => figures.refused.push(("inspect", why)),
        }
        let profiles = self.folder.join("profile");
        let _ = fs::remove_dir_all(&profiles); // It may not be there.
        fs::create_dir_all(&profiles)?;
        // Servers give up root's rights.
        fs::set_permissions(&profiles, fs::Permissions::from_mode(0o777))?;
        let profile = profiles.join("run.plraw");
        let counting = self.file("counting");
        let arguments: [&Path; 4] = ["instrument".as_ref(), &file, "-o".as_ref(), &counting];
        match self.json(&arguments)? {
            Ok(said) => {
                let outcome = self.once("counting", Some(&profile), limit * 2)?;
                self.add(figures, "counting", said, outcome.difference(plain))?;
            }
            Err(why) => {
                figures.refused.push(("counting", why));
                return Ok(());
            }
        }
        for preset in ["safe", "fast", "size"] {
            let output = self.file(preset);
            let _ = fs::remove_file(&output); // It may not be there.
            let arguments: [&Path; 8] = [
                "optimize".as_ref(),
                &file,
                "-p".as_ref(),
                &profile,
                "-o".as_ref(),
                &output,
                "--preset".as_ref(),
                preset.as_ref(),
            ];
            match self.json(&arguments)? {
                Ok(said) => {
                    let outcome = self.once(preset, None, limit)?;
                    self.add(figures, preset, said, outcome.difference(plain))?;
                }
                Err(why) => figures.refused.push((preset, why)),
            }
        }
        let _ = fs::remove_file(self.file("llvm-bolt")); // It may not be there.
        match self.bolt(&profile)? {
            Ok(said) => {
                let outcome = self.once("llvm-bolt", None, limit)?;
                self.add(figures, "llvm-bolt", said, outcome.difference(plain))?;
            }
            Err(why) => figures.refused.push(("llvm-bolt", why)),
        }
        Ok(())
    }

    fn add(
        &self,
        figures: &mut Figures,
        name: &'static str,
        said: Value,
        difference: Option<String>,
    ) -> Result<()> {
        figures.states.push(State {
            name,
            size: fs::metadata(self.file(name))?.len(),
            said,
            difference,
            time: None,
        });
        Ok(())
    }

    /// Runs the states that run right in rounds, and compares each with the plain one.
    fn measure(&self, figures: &mut Figures, limit: Duration) -> Result<()> {
        let right = figures.states.iter().filter(|s| s.difference.is_none());
        let names: Vec<&str> = ["plain"].into_iter().chain(right.map(|s| s.name)).collect();
        if self.runs == 0 || names.len() < 2 {
            return Ok(());
        }
        let mut rounds = Rounds {
            lab: self,
            states: names.clone(),
            limit,
            start: Instant::now(),
        };
        let (series, result) = measure(1, names.len(), &Limits::rounds(self.runs), &mut rounds);
        result?;
        let Some(series) = series.first() else {
            return Ok(());
        };
        for (i, name) in names.iter().enumerate().skip(1) {
            let time = series.ratio(0, i, Measure::ProcessorTime);
            if let Some(state) = figures.states.iter_mut().find(|s| s.name == *name) {
                state.time = time;
            }
        }
        figures.seconds = median(series);
        Ok(())
    }
}

fn median(series: &Series) -> Option<f64> {
    crate::process::median(&series.values(0, Measure::ProcessorTime))
}

/// What llvm-bolt said: `BOLT: 4560 out of 10715 functions were overwritten.`, and how many had counts.
fn overwritten(log: &str) -> Value {
    let number = |line: &str| line.split(' ').find_map(|word| word.parse::<u64>().ok());
    let line = |end: &str| log.lines().find(|line| line.contains(end));
    serde_json::json!({
        "overwritten": line("functions were overwritten").and_then(number),
        "profiled": line("have non-empty execution profile").and_then(number),
    })
}

/// Runs of all states, in turn.
struct Rounds<'a> {
    lab: &'a Lab<'a>,
    states: Vec<&'a str>,
    limit: Duration,
    start: Instant,
}

impl Runner for Rounds<'_> {
    type Error = anyhow::Error;

    fn run(&mut self, job: Job) -> Result<Run> {
        let lab = self.lab;
        let state = self.states[job.program];
        lab.place(state)?;
        let mut command = lab.command(lab.entry.work, &lab.scratch(), self.limit)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if state == "counting" {
            command.env("POSTLINK_PROFILE", lab.folder.join("profile/again.plraw"));
        }
        let run = postlink_measure::run(&mut command)?;
        match run.status.code() {
            Some(0..124) => Ok(run),
            _ => bail!("{state}: a run that is measured ended with {}", run.status),
        }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(stdout: &str, code: i32) -> Outcome {
        Outcome {
            stdout: stdout.into(),
            status: ExitStatus::from_raw(code << 8),
        }
    }

    #[test]
    fn other_output_and_other_ends_are_differences() {
        let plain = outcome("a\nb\n", 3);
        assert_eq!(outcome("a\nb\n", 3).difference(&plain), None);
        let line = outcome("a\nc\n", 3).difference(&plain).unwrap();
        assert_eq!(line, "line 2 is 'c', the original's 'b'");
        let end = outcome("a\nb\n", 124).difference(&plain).unwrap();
        assert_eq!(end, "did not end, the original: exit status 3");
        let short = outcome("a\n", 3).difference(&plain).unwrap();
        assert_eq!(short, "2 bytes of output, the original has 4");
    }

    #[test]
    fn what_llvm_bolt_says_of_functions_is_read() {
        let log = "BOLT-INFO: 512 out of 2235 functions in the binary (22.9%) have non-empty execution profile\n\
                   BOLT: 4560 out of 10715 functions were overwritten.\n";
        let said = overwritten(log);
        assert_eq!(said["overwritten"], 4560);
        assert_eq!(said["profiled"], 512);
        assert!(overwritten("")["overwritten"].is_null());
    }
}
