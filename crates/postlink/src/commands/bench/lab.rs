//! What is run: each program on each workload, with what is before and after.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use postlink_measure::run::run_with;
use postlink_measure::series::{Job, Progress as Done, Runner};
use postlink_measure::server::{self, Plan};
use postlink_measure::{Counters, Run, ending, interrupt};

use super::Bench;
use crate::ui::{Progress, Ui, rough};
use crate::workload::{fill, fill_line};

/// A program that is measured.
pub struct Program {
    /// For tables.
    pub label: String,
    /// The file.
    pub path: PathBuf,
    /// What is put in the place of {}.
    pub runnable: PathBuf,
}

/// What a program is to do.
pub struct Workload {
    /// For tables.
    pub name: String,
    job: Words,
}

enum Words {
    /// Of a command.
    Command(Vec<OsString>),
    /// For the shell.
    Line(String),
}

impl Workload {
    /// A command.
    pub fn words(name: String, words: Vec<OsString>) -> Workload {
        let job = Words::Command(words);
        Workload { name, job }
    }

    /// A line for the shell.
    pub fn line(name: String, line: String) -> Workload {
        let job = Words::Line(line);
        Workload { name, job }
    }

    fn command(&self, program: &Path) -> Command {
        match &self.job {
            Words::Command(words) => {
                let words = fill(words, program);
                // An empty one fails when it is started.
                let mut command = Command::new(words.first().cloned().unwrap_or_default());
                command.args(words.get(1..).unwrap_or_default());
                command
            }
            Words::Line(line) => shell(line, program),
        }
    }
}

fn shell(line: &str, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(fill_line(line, program));
    command
}

/// Programs and workloads, ready to run.
pub struct Lab<'a> {
    programs: &'a [Program],
    workloads: &'a [Workload],
    bench: &'a Bench,
    plan: Option<(Plan, String)>,
    counters: Option<&'a Counters>,
    start: Instant,
    progress: Progress,
}

impl<'a> Lab<'a> {
    /// As the command line says.
    pub fn new(
        bench: &'a Bench,
        programs: &'a [Program],
        workloads: &'a [Workload],
        counters: Option<&'a Counters>,
        ui: &Ui,
    ) -> Lab<'a> {
        Lab {
            programs,
            workloads,
            bench,
            plan: bench.plan(),
            counters,
            start: Instant::now(),
            progress: ui.progress("bench"),
        }
    }

    /// Runs that are not counted. The time for measuring begins after them.
    pub fn warm_up(&mut self) -> Result<()> {
        // Every server is warmed up by itself.
        let rounds = match self.plan {
            Some(_) => 0,
            None => self.bench.warmup,
        };
        for round in 0..rounds {
            for workload in 0..self.workloads.len() {
                for program in 0..self.programs.len() {
                    if interrupt::was_asked() {
                        return Ok(());
                    }
                    self.progress
                        .set(|| format!("warming up, {} of {rounds} times", round + 1));
                    let job = Job {
                        workload,
                        program,
                        round: 0,
                    };
                    let result = self.run(job);
                    if !interrupt::was_asked() {
                        result?;
                    }
                }
            }
        }
        self.start = Instant::now();
        Ok(())
    }

    /// The output of programs goes nowhere unless the user wants it.
    fn quiet<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env_remove("POSTLINK_PROFILE").stdin(Stdio::null());
        if !self.bench.show_output {
            command.stdout(Stdio::null());
        }
        command
    }

    fn measured(&self, job: Job) -> Result<Run> {
        let (program, workload) = (&self.programs[job.program], &self.workloads[job.workload]);
        let mut command = workload.command(&program.runnable);
        let run = match &self.plan {
            Some((plan, load)) => {
                command.env_remove("POSTLINK_PROFILE");
                let load = || {
                    let mut load = shell(load, &program.runnable);
                    self.quiet(&mut load);
                    load
                };
                server::run(plan, &mut command, load, self.counters)?
            }
            None => run_with(self.quiet(&mut command), self.counters)
                .with_context(|| format!("cannot be started: {command:?}"))?,
        };
        if !run.status.success() && !self.bench.allow_failure {
            bail!(
                "{} (--allow-failure counts runs that fail like others)",
                ending(run.status)
            );
        }
        Ok(run)
    }

    /// What is before or after a run.
    fn beside(&self, option: &str, line: Option<&String>, program: &Program) -> Result<()> {
        let Some(line) = line else { return Ok(()) };
        let mut command = shell(line, &program.runnable);
        let status = self.quiet(&mut command).status().context("sh")?;
        if !status.success() {
            bail!("{option} '{line}' {}", ending(status));
        }
        Ok(())
    }
}

impl Runner for Lab<'_> {
    type Error = anyhow::Error;

    fn run(&mut self, job: Job) -> Result<Run> {
        let program = &self.programs[job.program];
        let named = || {
            let workload = &self.workloads[job.workload].name;
            format!("workload '{workload}' with {}", program.path.display())
        };
        self.beside("--setup", self.bench.setup.as_ref(), program)
            .with_context(named)?;
        let run = self.measured(job);
        let cleaned = self.beside("--cleanup", self.bench.cleanup.as_ref(), program);
        let run = run.with_context(named)?;
        cleaned.with_context(named)?;
        Ok(run)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn progress(&mut self, done: Done) {
        self.progress.set(|| {
            let workload = &self.workloads[done.workload].name;
            format!("{workload}: {}", so_far(&done, self.bench.precision))
        });
    }
}

/// How far measuring has come, and what is left; `precision` in per cent, 0 if runs alone decide.
pub fn so_far(done: &Done, precision: f64) -> String {
    let width = if done.width.is_finite() {
        format!("±{:.1} %", done.width * 100.0)
    } else {
        "not known yet".to_owned()
    };
    let wanted = if precision > 0.0 {
        format!(" of ±{precision} %")
    } else {
        String::new()
    };
    let left = done
        .left
        .map(|left| format!(", about {} left", rough(left)));
    format!(
        "{} {}, interval {width}{wanted}{}",
        done.rounds,
        if done.rounds == 1 {
            "run each"
        } else {
            "runs each"
        },
        left.unwrap_or_default()
    )
}
