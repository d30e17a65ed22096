//! `cargo xtask bench mip-cc`: what machine profiles made at compile time cost, in size and instructions,
//! next to other instrumentation.
//!
//! Programs: 24 of nauty's graph tools (Debian source package `nauty`, unpacked by `apt-get source` and
//! configured, without those that need cliquer), each with a small workload over the same graphs. Debian has
//! no package that is a collection of benchmark programs and nothing else; these are many programs of one
//! collection, written to compute, and their output is text that can be compared. And of the corpus those
//! that are built in seconds, if it has their sources: lua, sqlite and a C++ program that throws. Lua gets a
//! fixed seed for its hashes and a cache of one string, which it else looks up by addresses: its instructions
//! would depend on them.
//!
//! All are built by clang 19 at `-O2`: plain, with our three modes, with
//! `-fsanitize-coverage=bb,inline-bool-flag`, `-fprofile-generate`, `-finstrument-functions` (with
//! instrumented functions, inlined nowhere), and XRay. Sizes are of stripped files. Instructions are counted
//! by cachegrind: on a machine with other load they are steadier than time.
//!
//! Exactness: the same programs at `-O0`, where each function of the source is one of the machine, built with
//! `-fprofile-instr-generate` as well; call counts and coverage must be what that counts in the same run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

use super::root;

/// Programs: source file, arguments; all but `geng` read graphs from standard input.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("geng", "geng.c", "-q 8"),
    ("gentreeg", "gentreeg.c", "-q 15"),
    ("genrang", "genrang.c", "-q -S7 30 700"),
    ("listg", "listg.c", "-q"),
    ("labelg", "labelg.c", "-q"),
    ("showg", "showg.c", "-q"),
    ("complg", "complg.c", "-q"),
    ("catg", "catg.c", ""),
    ("copyg", "copyg.c", "-q"),
    ("deledgeg", "deledgeg.c", "-q"),
    ("addedgeg", "addedgeg.c", "-q"),
    ("newedgeg", "newedgeg.c", "-q"),
    ("delptg", "delptg.c", "-q"),
    ("NRswitchg", "NRswitchg.c", "-q"),
    ("ranlabg", "ranlabg.c", "-q -S7"),
    ("linegraphg", "linegraphg.c", "-q"),
    ("subdivideg", "subdivideg.c", "-q"),
    ("planarg", "planarg.c planarity.c", "-q -u"),
    ("multig", "multig.c", "-q -e8:9 -T"),
    ("vcolg", "vcolg.c", "-q -m2 -u"),
    ("edgetransg", "edgetransg.c", "-q"),
    ("biplabg", "biplabg.c", "-q"),
    ("nbrhoodg", "nbrhoodg.c", "-q"),
    ("underlyingg", "underlyingg.c", "-q"),
];

/// Programs that do little with a graph: they get more of them.
const QUICK: &[&str] = &[
    "catg",
    "copyg",
    "complg",
    "underlyingg",
    "showg",
    "listg",
    "ranlabg",
    "biplabg",
];

/// A program of the corpus.
struct InCorpus {
    name: &'static str,
    compiler: &'static str,
    /// Where the sources are below the corpus. Empty: beside the script that builds it.
    folder: &'static str,
    /// Which of the files there; empty: all but `luac.c`, which has a `main` of its own.
    files: &'static [&'static str],
    flags: &'static str,
    /// For the program.
    arguments: &'static str,
}

const CORPUS: &[InCorpus] = &[
    InCorpus {
        name: "lua",
        compiler: "clang-19",
        folder: "src/lua5.4-5.4.4/src",
        files: &[],
        flags: "-DLUA_USE_LINUX -Dluai_makeseed(L)=42 -DSTRCACHE_N=1 -DSTRCACHE_M=1 -std=gnu99 -lm -ldl -Wl,-E",
        arguments: "bench.lua 1",
    },
    InCorpus {
        name: "sqlite",
        compiler: "clang-19",
        folder: "src/sqlite",
        files: &["shell.c", "sqlite3.c"],
        flags: "-DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_ENABLE_MATH_FUNCTIONS -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE -lm",
        arguments: "-init bench.sql :memory: .quit",
    },
    InCorpus {
        name: "exc",
        compiler: "clang++-19",
        folder: "",
        files: &[],
        flags: "-std=c++17",
        arguments: "3000",
    },
];

/// Rows of the workload for sqlite, which has half a million: a hundredth will do where instructions are counted.
const ROWS: (&str, &str) = ("500000", "5000");

/// What the programs share.
const COMMON: &[&str] = &[
    "gtools.c",
    "gtnauty.c",
    "naututil.c",
    "gutil1.c",
    "gutil2.c",
    "nautinv.c",
    "traces.c",
    "naugroup.c",
    "nauty.c",
    "nautil.c",
    "nausparse.c",
    "naugraph.c",
    "schreier.c",
    "naurng.c",
];
/// `geng` has its own, with sets of one word.
const ONE_WORD: &[&str] = &["-DMAXN=WORDSIZE", "-DWORDSIZE=32"];

/// A way to build.
struct Way {
    name: &'static str,
    /// Flags of our driver, if it is ours.
    ours: Option<&'static [&'static str]>,
    flags: &'static [&'static str],
    /// Whether it is run under cachegrind.
    counted: bool,
}

/// Each function of the source is one of the machine, and counted exactly.
const EXACT: &[&str] = &["-O0", "-fprofile-instr-generate"];

const WAYS: &[Way] = &[
    Way {
        name: "plain",
        ours: None,
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "function coverage",
        ours: Some(&["-fmachine-profile-function-coverage"]),
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "block coverage",
        ours: Some(&[
            "-fmachine-profile-function-coverage",
            "-fmachine-profile-block-coverage",
        ]),
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "call graph",
        ours: Some(&[]),
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "inline-bool-flag",
        ours: None,
        flags: &["-O2", "-fsanitize-coverage=bb,inline-bool-flag"],
        counted: true,
    },
    Way {
        name: "profile-generate",
        ours: None,
        flags: &["-O2", "-fprofile-generate"],
        counted: true,
    },
    Way {
        name: "instrument-functions",
        ours: None,
        flags: &["-O2", "-finstrument-functions"],
        counted: true,
    },
    Way {
        name: "XRay",
        ours: None,
        flags: &["-O2", "-fxray-instrument", "-fxray-instruction-threshold=1"],
        counted: true,
    },
    // Both kinds of counters in one program: two runs of one that follows addresses, as collectors of garbage
    // do, are not alike.
    Way {
        name: "calls and exact",
        ours: Some(&[]),
        flags: EXACT,
        counted: false,
    },
    Way {
        name: "coverage and exact",
        ours: Some(&["-fmachine-profile-function-coverage"]),
        flags: EXACT,
        counted: false,
    },
];

/// What the others need: a run-time that counts.
const HOOKS: &str = "\
static unsigned long calls;
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *f, void *c) { (void)f; (void)c; calls++; }
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *f, void *c) { (void)f; (void)c; }
void __sanitizer_cov_bool_flag_init(char *start, char *end) { (void)start; (void)end; }
";

struct Bench {
    folder: PathBuf,
    source: PathBuf,
    postlink: PathBuf,
    /// The example `mip-cc` in place of `postlink mip cc`: the same driver, built in a minute.
    driver: Option<PathBuf>,
    graphs: PathBuf,
    /// Programs of [`CORPUS`] that can be built: name, compiler, sources, other arguments, and those for the program.
    corpus: Vec<Extra>,
}

/// A program of the corpus.
struct Extra {
    name: &'static str,
    compiler: &'static str,
    sources: Vec<PathBuf>,
    flags: &'static str,
    arguments: String,
}

/// Those whose sources are there.
fn extras(root: &Path, folder: &Path) -> Result<Vec<Extra>> {
    let here = root.join("bench/corpus");
    let mut found = vec![];
    for program in CORPUS {
        let name = program.name;
        let sources: Vec<PathBuf> = if program.folder.is_empty() {
            vec![here.join(name).with_extension("cpp")]
        } else {
            let folder = super::programs::corpus().map(|corpus| corpus.join(program.folder));
            let mut files: Vec<PathBuf> = folder
                .and_then(|folder| Ok(fs::read_dir(folder)?))
                .map(|entries| entries.flatten().map(|e| e.path()).collect())
                .unwrap_or_default();
            files.retain(|f| {
                let name = f.file_name().unwrap_or_default().to_string_lossy();
                match program.files {
                    [] => name.ends_with(".c") && name != "luac.c",
                    wanted => wanted.contains(&name.as_ref()),
                }
            });
            files.sort();
            files
        };
        if sources.is_empty() || !sources[0].is_file() {
            eprintln!("the sources of {name} are not in the corpus: it is left out");
            continue;
        }
        let mut words = vec![];
        for word in program.arguments.split(' ') {
            let file = here.join(word);
            words.push(match file.is_file() {
                true if word.ends_with(".sql") => {
                    let smaller = folder.join(word);
                    let text = fs::read_to_string(&file).context("the workload")?;
                    fs::write(&smaller, text.replace(ROWS.0, ROWS.1))?;
                    smaller.display().to_string()
                }
                true => file.display().to_string(),
                false => word.to_owned(),
            });
        }
        found.push(Extra {
            name,
            compiler: program.compiler,
            sources,
            flags: program.flags,
            arguments: words.join(" "),
        });
    }
    Ok(found)
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let root = root()?;
    let mut folder = root.join("target/mip-cc");
    let mut postlink = root.join("target/release/postlink");
    let mut output = root.join("bench/mip-cc.md");
    let mut driver = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest
            .next()
            .with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--folder" => folder = value.into(),
            "--postlink" => postlink = value.into(),
            "--output" => output = value.into(),
            "--driver" => driver = Some(PathBuf::from(value)),
            other => bail!("cargo xtask bench mip-cc has no option '{other}'"),
        }
    }
    crate::packages::install(crate::packages::FOR_MIP_CC, true);
    if !postlink.is_file() && driver.is_none() {
        let built = Command::new("cargo")
            .args(["build", "--release", "-p", "postlink"])
            .current_dir(&root)
            .status()?;
        ensure!(built.success(), "postlink does not build");
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let source = unpack(&folder)?;
    let bench = Bench {
        graphs: folder.join("graphs.g6"),
        corpus: extras(&root, &folder)?,
        folder,
        source,
        postlink,
        driver,
    };
    let text = bench.all()?;
    println!("{text}");
    fs::write(&output, &text).with_context(|| output.display().to_string())?;
    Ok(!text.contains("DIFFERENT"))
}

/// The sources of nauty, configured.
fn unpack(folder: &Path) -> Result<PathBuf> {
    let find = || -> Option<PathBuf> {
        fs::read_dir(folder)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                path.is_dir()
                    && path
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with("nauty-"))
            })
    };
    if find().is_none() {
        quiet(
            Command::new("apt-get")
                .args(["source", "-qq", "nauty"])
                .current_dir(folder),
        )?;
    }
    let source = find().context("apt-get source nauty left no folder")?;
    if !source.join("nauty.h").is_file() {
        quiet(Command::new("autoreconf").arg("-fi").current_dir(&source))?;
        quiet(Command::new("./configure").current_dir(&source))?;
    }
    // Some of Debian's sources include <nauty/…>.
    let include = folder.join("include");
    fs::create_dir_all(&include)?;
    let link = include.join("nauty");
    if !link.exists() {
        std::os::unix::fs::symlink(source.canonicalize()?, &link)?;
    }
    Ok(source)
}

fn quiet(command: &mut Command) -> Result<Vec<u8>> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    if !out.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(out.stdout)
}

/// A program built in one way.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Of the stripped file.
    size: u64,
    /// Of what its sections hold: without what linkers put between segments so that each begins on a page of its own.
    contents: u64,
    instructions: u64,
}

/// What is known of all programs so far.
#[derive(Default)]
struct Measured {
    costs: BTreeMap<(&'static str, &'static str), Cost>,
    /// Functions whose counts were compared.
    functions: usize,
    wrong: Vec<String>,
}

impl Bench {
    fn all(&self) -> Result<String> {
        let hooks = self.folder.join("hooks.c");
        fs::write(&hooks, HOOKS)?;
        for way in WAYS
            .iter()
            .filter(|way| way.counted || self.postlink.is_file())
        {
            eprintln!("== building: {}", way.name);
            self.build(way, &hooks)?;
        }
        for (size, file) in [("7", &self.graphs), ("8", &self.many())] {
            let graphs = quiet(Command::new(self.program(&WAYS[0], "geng")).args(["-q", size]))?;
            fs::write(file, graphs)?;
        }
        let own = PROGRAMS
            .iter()
            .map(|(name, _, arguments)| (*name, (*arguments).to_owned()));
        let all: Vec<(&'static str, String)> = own
            .chain(self.corpus.iter().map(|e| (e.name, e.arguments.clone())))
            .collect();
        let jobs = Mutex::new(all.iter());
        let measured: Mutex<Measured> = Mutex::default();
        let done: Vec<Result<()>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        while let Some((name, arguments)) =
                            jobs.lock().ok().and_then(|mut jobs| jobs.next())
                        {
                            self.measure(name, arguments, &measured)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|w| w.join().unwrap_or_else(|_| bail!("a worker ended early")))
                .collect()
        });
        done.into_iter().collect::<Result<Vec<()>>>()?;
        let Measured {
            costs,
            functions,
            mut wrong,
        } = measured.into_inner().unwrap_or_default();
        wrong.sort();
        let programs: Vec<&str> = all.iter().map(|p| p.0).collect();
        Ok(report(&programs, &costs, functions, &wrong))
    }

    /// More graphs.
    fn many(&self) -> PathBuf {
        self.folder.join("many.g6")
    }

    /// One program in all ways.
    fn measure(
        &self,
        name: &'static str,
        arguments: &str,
        measured: &Mutex<Measured>,
    ) -> Result<()> {
        eprintln!("== {name}");
        let mut own = Measured::default();
        let expected = self.output(&WAYS[0], name, arguments)?;
        for way in WAYS.iter().filter(|way| way.counted) {
            if self.output(way, name, arguments)? != expected {
                own.wrong
                    .push(format!("{name}: DIFFERENT output with {}", way.name));
            }
            let (size, contents) = self.stripped_size(way, name)?;
            let cost = Cost {
                size,
                contents,
                instructions: self.instructions(way, name, arguments)?,
            };
            own.costs.insert((name, way.name), cost);
        }
        if self.postlink.is_file() {
            match self.compare(name, arguments) {
                Ok(compared) => own.functions += compared,
                Err(error) => own.wrong.push(format!("{name}: DIFFERENT: {error:#}")),
            }
        }
        if let Ok(mut all) = measured.lock() {
            all.costs.extend(own.costs);
            all.functions += own.functions;
            all.wrong.extend(own.wrong);
        }
        Ok(())
    }

    fn way_folder(&self, way: &Way) -> PathBuf {
        self.folder.join(way.name.replace(' ', "-"))
    }

    fn program(&self, way: &Way, name: &str) -> PathBuf {
        self.way_folder(way).join(name)
    }

    fn cc(&self, way: &Way, compiler: &str) -> Command {
        let mut command = match way.ours {
            Some(flags) => match &self.driver {
                Some(driver) => {
                    let mut command = Command::new(driver);
                    command.arg(compiler).args(flags);
                    command
                }
                None => {
                    let mut command = Command::new(&self.postlink);
                    command
                        .args(["mip", "cc"])
                        .args(flags)
                        .args(["--", compiler]);
                    command
                }
            },
            None => Command::new(compiler),
        };
        command
            .args(way.flags)
            .arg("-w")
            .arg("-I")
            .arg(&self.source)
            .arg("-I")
            .arg(self.folder.join("include"))
            .current_dir(&self.source);
        command
    }

    fn build(&self, way: &Way, hooks: &Path) -> Result<()> {
        let folder = self.way_folder(way);
        // What was built by another postlink says nothing of this one.
        let stamp = match (
            way.ours,
            fs::metadata(self.driver.as_ref().unwrap_or(&self.postlink)),
        ) {
            (Some(_), Ok(data)) => format!("{} {:?}", data.len(), data.modified().ok()),
            _ => String::new(),
        };
        let done = folder.join("done");
        let mut programs = PROGRAMS
            .iter()
            .map(|p| p.0)
            .chain(self.corpus.iter().map(|e| e.name));
        if fs::read_to_string(&done).is_ok_and(|text| text == stamp)
            && programs.all(|name| folder.join(name).is_file())
        {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        let mut jobs: Vec<Command> = vec![];
        let mut objects = vec![];
        for file in COMMON {
            let object = folder.join(file).with_extension("o");
            let mut command = self.cc(way, "clang-19");
            command.args(["-c", file, "-o"]).arg(&object);
            jobs.push(command);
            objects.push(object);
        }
        let object = folder.join("hooks.o");
        quiet(
            Command::new("clang-19")
                .args(["-O2", "-c"])
                .arg(hooks)
                .arg("-o")
                .arg(&object),
        )?;
        objects.push(object);
        in_parallel(jobs)?;
        let archive = folder.join("common.a");
        let _ = fs::remove_file(&archive);
        quiet(Command::new("ar").arg("rcs").arg(&archive).args(&objects))?;
        let mut jobs: Vec<Command> = vec![];
        for (name, sources, _) in PROGRAMS {
            let mut command = self.cc(way, "clang-19");
            if *name == "geng" {
                command.args(ONE_WORD);
                command.args([
                    "gtools.c",
                    "nauty.c",
                    "nautil.c",
                    "naugraph.c",
                    "schreier.c",
                    "naurng.c",
                ]);
            }
            command
                .args(sources.split(' '))
                .arg("-o")
                .arg(folder.join(name))
                .arg(&archive);
            jobs.push(command);
        }
        for extra in &self.corpus {
            let mut command = self.cc(way, extra.compiler);
            command
                .args(&extra.sources)
                .args(extra.flags.split(' '))
                .arg("-o")
                .arg(folder.join(extra.name))
                .arg(folder.join("hooks.o"));
            jobs.push(command);
        }
        in_parallel(jobs)?;
        fs::write(&done, stamp)?;
        Ok(())
    }

    fn prepared(&self, name: &str, mut command: Command, arguments: &str) -> Result<Command> {
        command
            .args(arguments.split_whitespace())
            .env("LLVM_MIP_PROFILE_FILENAME", self.scratch(name, "mipraw"))
            .env("LLVM_PROFILE_FILE", self.scratch(name, "profraw"))
            .env("XRAY_OPTIONS", "patch_premain=false")
            .stdin(
                File::open(if QUICK.contains(&name) {
                    self.many()
                } else {
                    self.graphs.clone()
                })
                .context("the graphs")?,
            )
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// A file of a program's own.
    fn scratch(&self, name: &str, extension: &str) -> PathBuf {
        self.folder.join(name).with_extension(extension)
    }

    fn output(&self, way: &Way, name: &str, arguments: &str) -> Result<Vec<u8>> {
        let mut command = self.prepared(name, Command::new(self.program(way, name)), arguments)?;
        // Every way under one name: Lua keeps short strings in another way than long ones, its own name among them.
        let out = command.arg0(name).output()?;
        ensure!(
            out.status.success(),
            "{name} with {}: {}: {}",
            way.name,
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(out.stdout)
    }

    /// Of the file, and of what is loaded from it.
    fn stripped_size(&self, way: &Way, name: &str) -> Result<(u64, u64)> {
        let to = self.scratch(name, "stripped");
        quiet(
            Command::new("strip")
                .args(["-R", "__llvm_mipmap", "-o"])
                .arg(&to)
                .arg(self.program(way, name)),
        )?;
        // A line of headings, and one that begins with text and data.
        let said = quiet(Command::new("size").arg(&to))?;
        let said = String::from_utf8_lossy(&said);
        let numbers = said.lines().nth(1).unwrap_or_default().split_whitespace();
        let parts: Vec<u64> = numbers.map_while(|n| n.parse().ok()).take(2).collect();
        if parts.len() != 2 {
            bail!("size {}: {said}", to.display());
        }
        Ok((fs::metadata(&to)?.len(), parts.iter().sum()))
    }

    fn instructions(&self, way: &Way, name: &str, arguments: &str) -> Result<u64> {
        let mut command = Command::new("valgrind");
        command
            .args([
                "--tool=cachegrind",
                "--cache-sim=no",
                "--cachegrind-out-file=/dev/null",
            ])
            .arg(self.program(way, name));
        let out = self.prepared(name, command, arguments)?.output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        let line = said
            .lines()
            .find(|line| line.contains("refs:"))
            .with_context(|| format!("cachegrind on {name}: {said}"))?;
        let number: String = line
            .rsplit("refs:")
            .next()
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
        number.parse().with_context(|| line.to_owned())
    }

    /// Compares counts and coverage with the exact ones of the same run. Gives the number of functions compared.
    fn compare(&self, name: &str, arguments: &str) -> Result<usize> {
        let mut compared = 0;
        for way in WAYS.iter().filter(|way| way.flags == EXACT) {
            self.output(way, name, arguments)?;
            let (exact, found) = (self.exact(name)?, self.found(way, name)?);
            let coverage = way.ours.is_some_and(|flags| !flags.is_empty());
            let mut functions = 0;
            for (function, &count) in &exact {
                let found = found.get(function).copied();
                if found.is_none() && count == 0 {
                    continue; // never emitted, or not in this program's part of the archive
                }
                if coverage {
                    ensure!(
                        found.is_some_and(|found| (found > 0) == (count > 0)),
                        "coverage of {function}, which was called {count} times, is {found:?}"
                    );
                } else {
                    ensure!(
                        found == Some(count),
                        "{function} was called {count} times, the profile says {found:?}"
                    );
                }
                functions += 1;
            }
            ensure!(functions > 0, "no function to compare");
            compared = functions;
        }
        Ok(compared)
    }

    /// Clang's counts of the last run, by function; those of the same name together.
    fn exact(&self, name: &str) -> Result<BTreeMap<String, u64>> {
        let data = self.scratch(name, "profdata");
        quiet(
            Command::new("llvm-profdata-19")
                .arg("merge")
                .arg(self.scratch(name, "profraw"))
                .arg("-o")
                .arg(&data),
        )?;
        let text = quiet(
            Command::new("llvm-profdata-19")
                .args(["show", "--all-functions"])
                .arg(&data),
        )?;
        let mut exact: BTreeMap<String, u64> = BTreeMap::new();
        let mut function = String::new();
        for line in String::from_utf8_lossy(&text).lines() {
            if let Some(count) = line.trim().strip_prefix("Function count: ") {
                *exact.entry(function.clone()).or_default() += count.parse::<u64>()?;
            } else if line.starts_with("  ") && !line.starts_with("   ") {
                function = line
                    .trim()
                    .trim_end_matches(':')
                    .rsplit([':', ';'])
                    .next()
                    .unwrap_or_default()
                    .to_owned();
            }
        }
        Ok(exact)
    }

    /// Our counts of the last run.
    fn found(&self, way: &Way, name: &str) -> Result<BTreeMap<String, u64>> {
        let profile = self.scratch(name, "mip");
        let p = ["-q", "-p"];
        quiet(
            Command::new(&self.postlink)
                .args(["mip", "create"])
                .args(p)
                .arg(&profile)
                .arg(self.program(way, name)),
        )?;
        quiet(
            Command::new(&self.postlink)
                .args(["mip", "merge"])
                .args(p)
                .arg(&profile)
                .arg(self.scratch(name, "mipraw")),
        )?;
        let shown = quiet(
            Command::new(&self.postlink)
                .args(["mip", "show", "-p"])
                .arg(&profile),
        )?;
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut function = String::new();
        for line in String::from_utf8_lossy(&shown).lines() {
            if let Some(count) = line.trim().strip_prefix("Call Count: ") {
                *counts.entry(function.clone()).or_default() += count.parse::<u64>()?;
            } else if !line.starts_with(' ') {
                function = line.to_owned();
            }
        }
        Ok(counts)
    }
}

/// Two at a time.
fn in_parallel(jobs: Vec<Command>) -> Result<()> {
    let queue = Mutex::new(jobs);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(mut job) = queue.lock().ok().and_then(|mut queue| queue.pop()) else {
                        return;
                    };
                    if let Err(error) = quiet(&mut job) {
                        if let Ok(mut failed) = failed.lock() {
                            failed.get_or_insert(error);
                        }
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(Some(error)) => Err(error),
        _ => Ok(()),
    }
}

fn geomean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value.ln();
        count += 1;
    }
    (sum / f64::from(count.max(1))).exp()
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn report(
    programs: &[&str],
    costs: &BTreeMap<(&str, &str), Cost>,
    functions: usize,
    wrong: &[String],
) -> String {
    let counted: Vec<&Way> = WAYS.iter().filter(|way| way.counted).collect();
    let mut text = String::from(
        "# Machine profiles at compile time: cost\n\nMade by `cargo xtask bench mip-cc`; what is measured and how, `xtask/src/bench/mip_cc.rs` says.\nclang 19, `-O2`; stripped file size and instructions (cachegrind) against the plain program.\n\n",
    );
    let ratio = |program: &str, way: &str, part: fn(&Cost) -> u64| -> f64 {
        let (cost, plain) = (costs.get(&(program, way)), costs.get(&(program, "plain")));
        match (cost, plain) {
            (Some(cost), Some(plain)) => part(cost) as f64 / part(plain).max(1) as f64,
            _ => 1.0,
        }
    };
    let _ = writeln!(
        text,
        "| geometric mean of {} programs | size | worst | instructions | worst |\n|---|---:|---:|---:|---:|",
        programs.len()
    );
    for way in &counted[1..] {
        let sizes = || programs.iter().map(|p| ratio(p, way.name, |c| c.size));
        let instructions = || {
            programs
                .iter()
                .map(|p| ratio(p, way.name, |c| c.instructions))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            way.name,
            percent(geomean(sizes())),
            percent(sizes().fold(0.0, f64::max)),
            percent(geomean(instructions())),
            percent(instructions().fold(0.0, f64::max))
        );
    }
    // Extra cost of one way against that of another.
    let against = |way: &str, other: &str, part: fn(&Cost) -> u64| -> f64 {
        let extra = |way: &str| geomean(programs.iter().map(|p| ratio(p, way, part))) - 1.0;
        extra(way) / extra(other).max(1e-9)
    };
    let size: fn(&Cost) -> u64 = |c| c.size;
    let work: fn(&Cost) -> u64 = |c| c.instructions;
    let coverage = |part: fn(&Cost) -> u64| {
        programs
            .iter()
            .map(move |p| ratio(p, "function coverage", part))
    };
    let contents: fn(&Cost) -> u64 = |c| c.contents;
    let over = |part| coverage(part).filter(|&ratio| ratio > 1.05).count();
    text.push_str("\n| what the targets are about | found | target |\n|---|---:|---:|\n");
    let mut row = |what: &str, found: String, target: &str| {
        let _ = writeln!(text, "| {what} | {found} | {target} |");
    };
    row(
        "function coverage, stripped size, geometric mean",
        percent(geomean(coverage(size))),
        "at most +2 %",
    );
    row(
        "function coverage, programs whose stripped size grows by over 5 %",
        over(size).to_string(),
        "0",
    );
    row(
        "function coverage, programs whose contents grow by over 5 %, without padding to pages",
        format!(
            "{} (worst {})",
            over(contents),
            percent(coverage(contents).fold(0.0, f64::max))
        ),
        "0",
    );
    row(
        "function coverage, instructions, geometric mean",
        percent(geomean(coverage(work))),
        "at most +1 %",
    );
    for (way, others, target) in [
        (
            "block coverage",
            ["inline-bool-flag", "profile-generate"],
            "at most 0.50",
        ),
        (
            "call graph",
            ["instrument-functions", "XRay"],
            "at most 0.33",
        ),
    ] {
        for other in others {
            for (name, part) in [("size", size), ("instructions", work)] {
                let found = format!("{:.2}", against(way, other, part));
                row(
                    &format!("{way}, extra {name}, in parts of that of {other}"),
                    found,
                    target,
                );
            }
        }
    }
    row(
        "programs with other counts or coverage than exact ones",
        match functions {
            0 => "not compared".to_owned(),
            _ => format!("{} of {}", wrong.len(), programs.len()),
        },
        "0",
    );
    if functions == 0 {
        text.push_str("\nExactness was not compared in this run: that needs postlink itself.\n");
    }
    let _ = writeln!(
        text,
        "\nInstructions stand for time: they are steadier. Programs that do next to nothing show what starting costs: our run-time takes about 3,000 instructions (catg has 190,000 in all). Sizes go in steps of a page of 4,096 bytes where a segment just outgrows one: 5.7 % of listg, whose 83 stores alone are longer than what was free on its last page of code. XRay's sleds are not patched: its instructions are those of a program that records nothing.\n\nExactness at `-O0`: call counts and coverage of {functions} functions are those that `-fprofile-instr-generate` counts in the same run{}",
        if wrong.is_empty() { "." } else { ", but for:" }
    );
    for line in wrong {
        let _ = writeln!(text, "* {line}");
    }
    for (title, part) in [
        (
            "Stripped size, bytes",
            (|c: &Cost| c.size) as fn(&Cost) -> u64,
        ),
        ("Instructions", |c: &Cost| c.instructions),
    ] {
        let _ = write!(text, "\n## {title}\n\n| program | plain |");
        for way in &counted[1..] {
            let _ = write!(text, " {} |", way.name);
        }
        text.push_str("\n|---|---:|");
        text.push_str(&"---:|".repeat(counted.len() - 1));
        text.push('\n');
        for program in programs {
            let _ = write!(
                text,
                "| {program} | {} |",
                costs.get(&(*program, "plain")).map_or(0, part)
            );
            for way in &counted[1..] {
                let _ = write!(text, " {} |", percent(ratio(program, way.name, part)));
            }
            text.push('\n');
        }
    }
    text
}
