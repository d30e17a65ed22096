//! `cargo xtask bench pointers`: what it saves when pointers to functions follow.
//!
//! A pointer that keeps its value leads to the old entry, whose jump leads to the new one: one jump more for
//! each call, and a cache line of old code for each function that is called so. Programs that do little else
//! are optimised twice from one profile, with `--pointers stay` and `--pointers follow`: calls through
//! virtual tables, through a table of functions, and the same with so many functions that their entry jumps
//! do not fit into the first-level cache of instructions. Processor times are compared in pairs of runs;
//! instructions, and misses of a simulated cache, are counted exactly by valgrind where it is installed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use postlink_measure::{Paired, compare};

use super::tools::Tools;
use crate::packages::find_program;

/// Calls in a timed run, and in a simulated one.
const CALLS: (u64, u64) = (60_000_000, 400_000);

/// A program that calls through pointers: its name, what it is, and how many functions it calls.
struct Shape {
    what: &'static str,
    calls: &'static str,
    functions: usize,
}

const SHAPES: &[Shape] = &[
    Shape {
        what: "virtual calls, 8 classes",
        calls: "virtual",
        functions: 8,
    },
    Shape {
        what: "virtual calls, 800 classes",
        calls: "virtual",
        functions: 800,
    },
    Shape {
        what: "table of 8 functions",
        calls: "table",
        functions: 8,
    },
    Shape {
        what: "table of 800 functions",
        calls: "table",
        functions: 800,
    },
];

/// The source of a program: every function does a little, and the next one is chosen by what came out.
fn source(shape: &Shape) -> String {
    let mut text = String::from("#include <cstdio>\n#include <cstdlib>\ntypedef unsigned u;\n");
    let body = |i: usize| {
        format!(
            "{{ if (x & {}) return x * {}u + s; return x ^ (s >> {}); }}",
            1 << (i % 5),
            2 * i + 3,
            i % 7
        )
    };
    if shape.calls == "virtual" {
        text += "struct Base { virtual u go(u x, u s) = 0; };\n";
        for i in 0..shape.functions {
            let _ = writeln!(
                text,
                "struct C{i} : Base {{ u go(u x, u s) override {} }};",
                body(i)
            );
        }
        text += "static Base *all[] = {";
        (0..shape.functions).for_each(|i| text += &format!("new C{i},"));
        text += "};\n#define CALL(i, x, s) all[i]->go(x, s)\n";
    } else {
        for i in 0..shape.functions {
            let _ = writeln!(
                text,
                "__attribute__((noinline)) static u f{i}(u x, u s) {}",
                body(i)
            );
        }
        text += "static u (*const volatile all[])(u, u) = {";
        (0..shape.functions).for_each(|i| text += &format!("f{i},"));
        text += "};\n#define CALL(i, x, s) all[i](x, s)\n";
    }
    text += "int main(int argc, char **argv) {\n  u x = 1, s = 0, n = argc > 1 ? std::atoi(argv[1]) : 1000;\n";
    let _ = writeln!(
        text,
        "  for (u i = 0; i < n; i++) {{ s = s * 1664525u + 1013904223u; x = CALL((s >> 16) % {}u, x, s); }}",
        shape.functions
    );
    text + "  std::printf(\"%u\\n\", x);\n}\n"
}

fn done(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Both outputs of a program: pointers stay, pointers follow.
fn make(shape: &Shape, folder: &Path, postlink: &Path) -> Result<[PathBuf; 2]> {
    let at = |name: &str| folder.join(name);
    fs::write(at("a.cpp"), source(shape))?;
    let mut compile = Command::new("g++");
    done(
        compile
            .args(["-O2", "-Wl,-q", "-o"])
            .args([at("a"), at("a.cpp")]),
    )?;
    let (profile, counting) = (at("profile"), at("counting"));
    let _ = fs::remove_file(&profile); // Of the program before.
    let mut instrument = Command::new(postlink);
    done(
        instrument
            .args(["-q", "instrument"])
            .arg(at("a"))
            .arg("-o")
            .arg(&counting),
    )?;
    let mut count = Command::new(&counting);
    let expected = done(
        count
            .arg(CALLS.1.to_string())
            .env("POSTLINK_PROFILE", &profile),
    )?;
    let outputs = ["stay", "follow"].map(|pointers| (pointers, at(pointers)));
    for (pointers, output) in &outputs {
        let mut optimize = Command::new(postlink);
        optimize
            .args(["-q", "optimize", "--pointers", pointers])
            .arg(at("a"));
        done(optimize.arg("-p").arg(&profile).arg("-o").arg(output))?;
        let said = done(Command::new(output).arg(CALLS.1.to_string()))?;
        if said != expected {
            bail!(
                "{}: with pointers that {pointers} it prints {said}, and not {expected}",
                shape.what
            );
        }
    }
    Ok(outputs.map(|o| o.1))
}

/// Instructions and misses of the first-level instruction cache.
fn simulate(program: &Path) -> Result<(u64, u64)> {
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=cachegrind",
        "--cache-sim=yes",
        "--cachegrind-out-file=/dev/null",
    ]);
    let output = command
        .arg(program)
        .arg(CALLS.1.to_string())
        .output()
        .context("valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = |what: &str| {
        let line = said.lines().find(|line| line.contains(what));
        let digits = line?
            .rsplit(':')
            .next()?
            .chars()
            .filter(char::is_ascii_digit);
        digits.collect::<String>().parse::<u64>().ok()
    };
    let find = |what: &str| value(what).with_context(|| format!("valgrind did not print '{what}'"));
    let instructions = find("I   refs").or_else(|_| find("I refs"))?;
    Ok((instructions, find("I1  misses")?))
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let (mut pairs, mut output) = (10u32, super::root()?.join("bench/pointers.md"));
    let mut postlink = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest
            .next()
            .with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--runs" => pairs = value.parse().context("--runs needs a number")?,
            "--output" => output = value.into(),
            "--postlink" => postlink = Some(PathBuf::from(value)),
            other => bail!("cargo xtask bench pointers has no option '{other}'"),
        }
    }
    let postlink = match postlink {
        Some(postlink) => postlink,
        None => Tools::find(false)?.program().to_owned(),
    };
    let folder = tempfile::tempdir().context("a folder for the programs")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!(
        "# Pointers that follow

Written by `cargo xtask bench pointers`: programs that do little but call through pointers, optimised with `--pointers stay` (calls go by the jump at the old
entry) and `--pointers follow`. {} calls a run, {pairs} pairs of runs, processor time as ratio follow / stay with its 95 % interval; {cores} processors. Instructions and misses of a cache of
instructions for {} calls, counted by cachegrind.

| program | stay | follow | ratio | interval | instructions: stay, follow | misses: stay, follow |
|---|--:|--:|--:|---|--:|--:|
",
        CALLS.0, CALLS.1
    );
    for shape in SHAPES {
        eprintln!("== {}", shape.what);
        let outputs = make(shape, folder.path(), &postlink)?;
        let command = |path: &PathBuf| {
            let mut command = Command::new(path);
            command.arg(CALLS.0.to_string()).stdout(Stdio::null());
            command
        };
        let (stay, follow) = (|| command(&outputs[0]), || command(&outputs[1]));
        let commands: [&dyn Fn() -> Command; 2] = [&stay, &follow];
        let paired: Paired = compare(pairs, commands, |run| {
            if run.status.success() {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{}: {}", shape.what, run.status))
            }
        })?;
        let [stay, follow] = paired.cpu();
        let ratio = paired.cpu_ratio().context("no run took any time")?;
        let _ = write!(
            text,
            "| {} | {:.2} s | {:.2} s | {:.3} | {} | ",
            shape.what,
            stay.as_secs_f64(),
            follow.as_secs_f64(),
            ratio.estimate,
            ratio.interval_words()
        );
        text += &match find_program("valgrind") {
            Some(_) => {
                let (a, b) = (simulate(&outputs[0])?, simulate(&outputs[1])?);
                format!("{}, {} | {}, {} |\n", a.0, b.0, a.1, b.1)
            }
            None => "| |\n".to_owned(),
        };
    }
    println!("{text}");
    fs::write(&output, &text).with_context(|| output.display().to_string())?;
    Ok(true)
}
