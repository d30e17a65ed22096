//! The part of `cargo xtask bench aarch64` on machine profiles made after linking: what each mode costs, and
//! whether it counts right.
//!
//! | figure | from |
//! |---|---|
//! | instrumented functions | `instrument --json` |
//! | stripped size | `strip` for AArch64, relative to the plain program |
//! | instructions | the plugin, on a short workload, relative to the plain program |
//! | different | functions whose calls, or whether they ran, are not those of the trace of the same run |
//!
//! A call goes through the function's stub, which ends with a jump to the function's beginning, or past the
//! instructions that the stub took from there; what it took may be a branch in the function itself. So the
//! trace's jumps out of the stubs into functions are the calls. A function that is over before that (a jump
//! or a return is what the stub took) is not compared, and neither is coverage of blocks, where functions are
//! emitted anew: there the functions that ran are compared with those of function coverage, in another run,
//! which may differ by itself where addresses are hashed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::aarch64::{Bench, Trace, change, code, mean, readelf};
use super::programs::Program;

const MODES: [&str; 4] = [
    "function-coverage",
    "block-coverage",
    "call-graph",
    "call-edges",
];

/// Programs below this are hardly more than the start-up routine and headers.
const SMALL: u64 = 100_000;

/// What a mode costs a program.
pub struct Row {
    program: &'static str,
    mode: &'static str,
    /// Instrumented functions, and all.
    functions: (u64, u64),
    /// Bytes of the stripped file, plain and instrumented.
    size: (u64, u64),
    /// Instructions, plain and instrumented.
    instructions: (u64, u64),
    /// Functions compared, and those that differ.
    compared: (u64, u64),
}

/// A workload of a few seconds.
fn short(program: &Program) -> &'static str {
    match program.workload {
        "lua" => "0.05",
        "sqlite" => "2000",
        _ => "5000",
    }
}

/// Measures a program in all modes.
pub fn measure(
    bench: &Bench<'_>,
    program: &'static Program,
    wrong: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let original = bench.corpus.join("bin").join(program.file);
    let at = |name: String| bench.folder.join(format!("{}.{name}", program.name));
    let n = Some(short(program));
    let (expected, plain) = bench.run_for(program, &original, None, n)?;
    let size = stripped_size(bench, &original)?;
    let mut rows = vec![];
    let mut covered: BTreeMap<u64, Function> = BTreeMap::new();
    for mode in MODES {
        let (output, raw) = (at(format!("{mode}.inst")), at(format!("{mode}.mipraw")));
        let arguments: [&Path; 7] = [
            "instrument".as_ref(),
            "--json".as_ref(),
            "--mode".as_ref(),
            mode.as_ref(),
            &original,
            "-o".as_ref(),
            &output,
        ];
        let (_, said) = bench.tools.postlink(&bench.folder, &arguments)?;
        let account: Value = serde_json::from_slice(&said).context("postlink instrument --json")?;
        let number = |key: &str| account[key].as_u64().unwrap_or(0);
        let _ = fs::remove_file(&raw);
        let (printed, trace) = bench.run_for(program, &output, Some(&raw), n)?;
        if printed != expected {
            wrong.push(format!("{mode}: the output differs"));
        }
        let functions = shown(bench, &output, &raw, &at("mip".to_owned()))?;
        let compared = if mode == "block-coverage" {
            // What counts in both.
            let both = functions
                .iter()
                .filter_map(|(at, f)| Some((f, covered.get(at)?)));
            let differ = both.clone().filter(|(f, g)| f.ran != g.ran).count();
            (both.count() as u64, differ as u64)
        } else {
            let exact = compare((&original, &output), &trace, &functions, mode, wrong)?;
            if exact.1 > 0 {
                wrong.push(format!(
                    "{mode}: {} functions differ from the trace",
                    exact.1
                ));
            }
            exact
        };
        if mode == MODES[0] {
            covered = functions;
        }
        rows.push(Row {
            program: program.name,
            mode,
            functions: (number("instrumented"), number("functions")),
            size: (size, stripped_size(bench, &output)?),
            instructions: (plain.instructions, trace.instructions),
            compared,
        });
        for file in [&output, &raw, &output.with_extension("inst.mipmap")] {
            let _ = fs::remove_file(file);
        }
    }
    Ok(rows)
}

/// What a profile says of a function: size, whether it ran, calls.
struct Function {
    size: u64,
    ran: bool,
    calls: u64,
}

/// Functions by address.
fn shown(
    bench: &Bench<'_>,
    output: &Path,
    raw: &Path,
    profile: &Path,
) -> Result<BTreeMap<u64, Function>> {
    let map = output.with_extension("inst.mipmap");
    let _ = fs::remove_file(profile);
    let arguments: [&Path; 8] = [
        "mip".as_ref(),
        "merge".as_ref(),
        "--map".as_ref(),
        &map,
        "-p".as_ref(),
        profile,
        raw,
        "--strict".as_ref(),
    ];
    bench.tools.postlink(&bench.folder, &arguments)?;
    let arguments: [&Path; 5] = [
        "mip".as_ref(),
        "show".as_ref(),
        "--json".as_ref(),
        "-p".as_ref(),
        profile,
    ];
    let (_, said) = bench.tools.postlink(&bench.folder, &arguments)?;
    let said: Value = serde_json::from_slice(&said).context("postlink mip show --json")?;
    let list = said.as_array().context("a list of functions")?;
    let number = |f: &Value, key: &str| f[key].as_u64().unwrap_or(0);
    let one = |f: &Value| {
        let function = Function {
            size: number(f, "size"),
            ran: number(f, "runs") > 0,
            calls: number(f, "calls"),
        };
        (number(f, "address"), function)
    };
    Ok(list.iter().map(one).collect())
}

/// Link-time addresses of the sections with stubs.
fn stubs(file: &Path) -> Result<Vec<(u64, u64)>> {
    let sections = readelf("-SW", file)?;
    let range = |line: &str| {
        let words: Vec<&str> = line.split(']').nth(1)?.split_whitespace().collect();
        let number = |i: usize| u64::from_str_radix(words.get(i)?, 16).ok();
        let start = number(2)?;
        words
            .first()?
            .starts_with(".text.entries")
            .then_some((start, start + number(4)?))
    };
    Ok(sections.lines().filter_map(range).collect())
}

/// A file's code.
struct Words {
    bytes: Vec<u8>,
    segments: Vec<(u64, u64, u64)>,
}

impl Words {
    fn read(file: &Path) -> Result<Words> {
        Ok(Words {
            bytes: fs::read(file).with_context(|| file.display().to_string())?,
            segments: code(file)?,
        })
    }

    /// The instruction at a link-time address.
    fn at(&self, at: u64) -> Option<u32> {
        let segment = self
            .segments
            .iter()
            .find(|s| (s.0..s.0 + s.2).contains(&at))?;
        let from = usize::try_from(segment.1 + (at - segment.0)).ok()?;
        let word = self.bytes.get(from..from.checked_add(4)?)?;
        Some(u32::from_le_bytes(word.try_into().ok()?))
    }
}

/// Compares calls with the jumps out of stubs: how many functions, and how many differ.
fn compare(
    (original, output): (&Path, &Path),
    trace: &Trace,
    functions: &BTreeMap<u64, Function>,
    mode: &str,
    wrong: &mut Vec<String>,
) -> Result<(u64, u64)> {
    let stubs = stubs(output)?;
    let in_stubs = |at: u64| stubs.iter().any(|s| (s.0..s.1).contains(&at));
    let (old, new) = (Words::read(original)?, Words::read(output)?);
    // A `b` to a stub, perhaps after a landing pad: control that reaches the beginning goes to the stub, and then back.
    let leads_to_stub = |start: u64| {
        [start, start + 4].into_iter().any(|at| {
            new.at(at).is_some_and(|w| {
                let by = i64::from((w << 6).cast_signed() >> 6) * 4;
                w >> 26 == 5 && in_stubs(at.wrapping_add_signed(by))
            })
        })
    };
    // Then the stub took the first instruction, and may leave as that does.
    let branches = |start: u64| {
        let first = old.at(start).filter(|w| w & 0xffff_f01f != 0xd503_201f);
        let word = first.or_else(|| old.at(start + 4));
        word.is_some_and(|w| w & 0xff00_0000 == 0x5400_0000 || w & 0x7c00_0000 == 0x3400_0000)
    };
    let mut calls: BTreeMap<u64, u64> = BTreeMap::new();
    for (to, count) in trace
        .jumps
        .iter()
        .filter(|(from, _)| in_stubs(**from))
        .flat_map(|(_, led)| led)
    {
        // Elsewhere lead the slow way, and calls that the stub took.
        let into = functions.range(..=*to).next_back();
        let Some((start, _)) = into.filter(|(start, f)| to - *start < f.size) else {
            continue;
        };
        let counts = match to - start {
            0 => !leads_to_stub(*start),
            4 | 8 => true,
            _ => leads_to_stub(*start) && branches(*start),
        };
        if counts {
            *calls.entry(*start).or_default() += count;
        }
    }
    let counts = mode.starts_with("call");
    let (mut all, mut different) = (0, 0);
    for (at, f) in functions {
        let is = calls.get(at).copied().unwrap_or(0);
        // All that ran may be in the stub.
        if is == 0 && f.ran && leads_to_stub(*at) {
            continue;
        }
        all += 1;
        let same = if counts {
            f.calls == is
        } else {
            f.ran == (is > 0)
        };
        if !same {
            different += 1;
            if different <= 3 {
                let said = if counts { f.calls } else { u64::from(f.ran) };
                wrong.push(format!(
                    "{mode}: function at {at:#x}: the profile says {said}, the trace {is}"
                ));
            }
        }
    }
    Ok((all, different))
}

/// Size of a file without symbols and debug information.
fn stripped_size(bench: &Bench<'_>, file: &Path) -> Result<u64> {
    let to = bench.folder.join("stripped");
    let mut command = Command::new("aarch64-linux-gnu-strip");
    let status = command.arg("-o").arg(&to).arg(file).status();
    if !status.context("aarch64-linux-gnu-strip")?.success() {
        bail!("aarch64-linux-gnu-strip {} failed", file.display());
    }
    let size = fs::metadata(&to)
        .with_context(|| to.display().to_string())?
        .len();
    fs::remove_file(&to)?;
    Ok(size)
}

/// The table.
pub fn report(rows: &[Row]) -> Result<String> {
    let mut text = "\n## Machine profiles made after linking\n\nStripped size, and instructions executed on a short workload (libraries included), relative to the plain program. \
         Different: functions whose calls, or whether they ran, are not those of the trace of the same run; for block coverage, functions that ran in only one of the runs with block \
         and function coverage (in clang's static program those with which the unwinder sorts and searches a list of entries, which is emptied where code moves). Targets: function coverage at most +2 % of size in the geometric mean, never over +5 %, for programs of 100 kB or more; no count differs.\n\n\
         | program | mode | functions that count | plain, bytes | stripped size | instructions | compared | different |\n|---|---|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for r in rows {
        let (some, all) = r.functions;
        writeln!(
            text,
            "| {} | {} | {:.1} % | {} | {} | {} | {} | {} |",
            r.program,
            r.mode,
            100.0 * some as f64 / all.max(1) as f64,
            r.size.0,
            change(r.size.0, r.size.1),
            change(r.instructions.0, r.instructions.1),
            r.compared.0,
            r.compared.1
        )?;
    }
    for mode in MODES {
        let of = || rows.iter().filter(move |r| r.mode == mode);
        let large = || of().filter(|r| r.size.0 >= SMALL);
        let most = large()
            .max_by(|a, b| ratio(a.size).total_cmp(&ratio(b.size)))
            .map_or_else(|| "–".to_owned(), |r| change(r.size.0, r.size.1));
        let target = match mode {
            "function-coverage" => " (target: at most +2 %, never over +5 %)",
            _ => "",
        };
        writeln!(
            text,
            "\n{mode}: size {} in the geometric mean of programs of 100 kB or more, at most {most}{target}; instructions {} of all.",
            mean(large().map(|r| r.size)),
            mean(of().map(|r| r.instructions))
        )?;
    }
    Ok(text)
}

fn ratio((before, after): (u64, u64)) -> f64 {
    after as f64 / before.max(1) as f64
}
