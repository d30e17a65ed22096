//! Sizes of address translation tables beside llvm-bolt's, for programs of the corpus.
//!
//! Both tools optimise from the same counts. Our encoder then writes llvm-bolt's tables again from their
//! decoded form: the bytes must be the same, so for the same layout ours are neither larger nor smaller. What
//! our own layout needs is beside it; there are more functions in it where llvm-bolt leaves some alone, and
//! entries for old bodies that continue being used.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::bat::call;
use super::programs::{self, Program};

/// Programs that are compared when nothing is named.
pub const DEFAULT: &[&str] = &[
    "sqlite",
    "lua",
    "exc",
    "redis",
    "rg",
    "sqlite-nopie",
    "sqlite-clang",
    "sqlite-static",
    "sqlite-g",
    "lua-static",
    "lua-clang",
    "exc-clang",
    "exc-static",
];
const BOLT: &str = "/usr/lib/llvm-22/bin/llvm-bolt";

/// Tables of a program: bytes, functions, split-off parts, entries.
struct Tables {
    bytes: f64,
    functions: f64,
    parts: f64,
    entries: f64,
}

impl Tables {
    /// Fails if they are not the same when written again.
    fn of(release: &Path, binary: &Path) -> Result<Tables> {
        let figures = call(Command::new(release.join("examples/bat_size")).arg(binary))?;
        let numbers: Vec<f64> = figures
            .split_whitespace()
            .filter_map(|n| n.parse().ok())
            .collect();
        let [bytes, _, functions, parts, entries] = numbers[..] else {
            bail!("{}: bat_size printed {figures:?}", binary.display());
        };
        Ok(Tables {
            bytes,
            functions,
            parts,
            entries,
        })
    }

    fn columns(&self) -> String {
        format!(
            "{:.1} kB | {} + {} | {} | {:.0} | {:.1}",
            self.bytes / 1e3,
            self.functions,
            self.parts,
            self.entries,
            self.bytes / self.functions.max(1.0),
            self.bytes / self.entries.max(1.0)
        )
    }
}

/// Optimises a program with tables from counts of its workload, which are made if they are not there.
pub fn optimised(postlink: &Path, program: &Program, corpus: &Path) -> Result<()> {
    programs::build(program, corpus)?;
    let folder = corpus.join("bench").join(program.name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let original = corpus.join("bin").join(program.file);
    let [inst, counts, output] =
        ["bat.inst", "bat.inst.plraw", "bat.opt"].map(|name| folder.join(name));
    call(
        Command::new(postlink)
            .arg("instrument")
            .arg(&original)
            .arg("-o")
            .arg(&inst),
    )?;
    let _ = fs::remove_file(&counts); // counts are added to what is there
    let run = programs::workload(program, &inst, corpus, &folder, "bat.inst")?;
    if !run.status.success() {
        bail!("{}: the workload ended with {}", program.name, run.status);
    }
    call(
        Command::new(postlink)
            .arg("optimize")
            .arg(&original)
            .arg("-p")
            .arg(&counts)
            .arg("-o")
            .arg(&output)
            .arg("--enable-bat"),
    )?;
    Ok(())
}

/// The table, and whether all is as it must be.
pub fn table(release: &Path, corpus: &Path, names: &[String]) -> Result<(String, bool)> {
    let postlink = release.join("postlink");
    let mut table = String::from(
        "| program | tool | tables | functions + parts | entries | bytes a function | an entry | written again |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mut all_same = true;
    for program in programs::choose(names)? {
        let folder = corpus.join("bench").join(program.name);
        // What another version of postlink made is not what this one makes, and its counts may not fit.
        let made = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
        if made(&folder.join("bat.opt")) < made(&postlink) {
            optimised(&postlink, program, corpus)?;
        }
        let original = corpus.join("bin").join(program.file);
        let [fdata, theirs] = ["bat.fdata", "bat.bolt"].map(|name| folder.join(name));
        call(
            Command::new(&postlink)
                .arg("convert")
                .arg(folder.join("bat.inst.plraw"))
                .arg("--binary")
                .arg(&original)
                .arg("-o")
                .arg(&fdata),
        )?;
        let mut line = |tool: &str, columns: Result<String>| -> Result<()> {
            let columns = columns.unwrap_or_else(|error| {
                eprintln!("{}, {tool}: {error:#}", program.name);
                all_same = false;
                "| | | | | **not the same**".to_owned()
            });
            writeln!(table, "| {} | {tool} | {columns} |", program.name).context("out of memory")
        };
        if Path::new(BOLT).exists() {
            let _ = fs::remove_file(&theirs);
            let bolted = Command::new(BOLT)
                .arg(&original)
                .arg(format!("-data={}", fdata.display()))
                .args(["-reorder-blocks=ext-tsp", "-reorder-functions=cdsort"])
                .args(["-split-functions", "-split-all-cold", "-split-eh"])
                .args(["-enable-bat", "-o"])
                .arg(&theirs)
                .output()
                .context(BOLT)?;
            if bolted.status.success() {
                let tables = Tables::of(release, &theirs);
                line(
                    "llvm-bolt",
                    tables.map(|t| t.columns() + " | the same bytes"),
                )?;
            } else {
                let said = String::from_utf8_lossy(&bolted.stderr).into_owned();
                let error = said.lines().find(|l| l.contains("ERROR")).unwrap_or("");
                eprintln!("{}: llvm-bolt refuses: {error}", program.name);
                line("llvm-bolt", Ok("refuses | | | | |".to_owned()))?;
            }
            let _ = fs::remove_file(&theirs);
        } else {
            line("llvm-bolt", Ok("not installed | | | | |".to_owned()))?;
        }
        let tables = Tables::of(release, &folder.join("bat.opt"));
        line(
            "postlink",
            tables.map(|t| t.columns() + " | the same bytes"),
        )?;
    }
    Ok((table, all_same))
}
