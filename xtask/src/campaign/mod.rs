//! `cargo xtask campaign`: generated programs, and everything that postlink makes of them.
//!
//! # What it is for
//!
//! The programs of `tests/cases` cover what came to mind. Here programs are generated, each from a seed: C and
//! C++ by csmith, and C++ by a generator of our own ([`cpp`]) with what csmith lacks: classes with virtual bases,
//! pointers to members, exceptions, coroutines, lambdas. Seeds also choose the compiler, its flags, the machine and
//! whether the linker keeps relocations. Each program runs plain; then counting in every mode, and optimised in every
//! preset and laid out at random ([`states`]) for what was counted. Output and status must be those of the plain one.
//!
//! What goes wrong is kept: a folder with the source and a script that does it again. The job ends with 1 then.
//!
//! # What does not count
//!
//! A program that the compiler refuses, that does not end in time, or that prints something else in a second plain
//! run (it reads what is not initialised), is left out and counted apart.

mod cpp;
mod random;
mod states;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};

use self::random::Random;
use self::states::{Makes, STATES};
use crate::packages::find_program;

/// The job's options.
#[derive(Args, Debug)]
pub struct Options {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    first: u64,
    /// So many seeds; without --minutes and without this, 100
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Begin no program after so many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Programs at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Only programs of these generators
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    generators: Vec<Generator>,
    /// Where what went wrong is kept
    #[arg(long, value_name = "FOLDER", default_value = "target/campaign")]
    keep: PathBuf,
    /// postlink to use [default: it is built]
    #[arg(long, value_name = "FILE")]
    postlink: Option<PathBuf>,
}

/// Who writes programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Generator {
    /// csmith, C
    Csmith,
    /// csmith, C++
    CsmithCpp,
    /// Classes, pointers to members, exceptions, coroutines, lambdas
    Cpp,
}

impl Generator {
    const ALL: [Generator; 3] = [Generator::Csmith, Generator::CsmithCpp, Generator::Cpp];

    fn name(self) -> &'static str {
        match self {
            Generator::Csmith => "csmith",
            Generator::CsmithCpp => "csmith-cpp",
            Generator::Cpp => "cpp",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Generator::Csmith => "p.c",
            _ => "p.cpp",
        }
    }

    fn needs_csmith(self) -> bool {
        self != Generator::Cpp
    }

    fn write(self, seed: u64, folder: &Path) -> Result<()> {
        let text = match self {
            Generator::Cpp => cpp::program(seed).into_bytes(),
            _ => {
                let mut command = Command::new("csmith");
                // It leaves a file where it runs.
                command.current_dir(folder);
                command.args(["--seed", &seed.to_string()]);
                if self == Generator::CsmithCpp {
                    command.args(["--lang-cpp", "--cpp11"]);
                }
                let output = command.output().context("csmith")?;
                if !output.status.success() {
                    bail!("csmith --seed {seed}: {}", output.status);
                }
                output.stdout
            }
        };
        fs::write(folder.join(self.file()), text).context("the source")
    }
}

/// A compiler: for C and for C++, what runs its programs, and which of its options are chosen from.
struct Compiler {
    c: &'static str,
    cpp: &'static str,
    runner: &'static [&'static str],
    options: &'static [&'static str],
}

const COMPILERS: &[Compiler] = &[
    Compiler {
        c: "gcc",
        cpp: "g++",
        runner: &[],
        options: &[
            "-O0",
            "-O1",
            "-O2",
            "-O3",
            "-Os",
            "-O2 -fno-pie -no-pie",
            "-O2 -static",
            "-O2 -flto",
            "-O2 -fno-inline",
            "-O2 -fcf-protection=full",
        ],
    },
    Compiler {
        c: "clang-22",
        cpp: "clang++-22",
        runner: &[],
        options: &[
            "-O1",
            "-O2",
            "-O3",
            "-Oz",
            "-O2 -fuse-ld=lld-22",
            "-O2 -ffunction-sections -fuse-ld=lld-22 -Wl,--icf=all",
        ],
    },
    Compiler {
        c: "clang-19",
        cpp: "clang++-19",
        runner: &[],
        options: &["-O1", "-O2", "-Os", "-O2 -fuse-ld=lld-19"],
    },
    Compiler {
        c: "aarch64-linux-gnu-gcc",
        cpp: "aarch64-linux-gnu-g++",
        runner: &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
        options: &[
            "-O1",
            "-O2",
            "-O3",
            "-Os",
            "-O2 -mbranch-protection=standard",
            "-O2 -static",
        ],
    },
];

/// Everything that a seed chooses.
#[derive(Clone, Debug)]
struct Recipe {
    seed: u64,
    generator: Generator,
    compiler: &'static str,
    options: Vec<&'static str>,
    runner: &'static [&'static str],
    /// The linker keeps relocations.
    kept: bool,
}

impl Recipe {
    /// `installed` compilers and `generators` are chosen from.
    fn of(seed: u64, generators: &[Generator], installed: &[&'static Compiler]) -> Recipe {
        let mut random = Random::new(seed ^ 0x7061_7468);
        let generator = generators[random.below(generators.len())];
        let compiler = installed[random.below(installed.len())];
        let options = random.pick(compiler.options);
        Recipe {
            seed,
            generator,
            compiler: match generator {
                Generator::Csmith => compiler.c,
                _ => compiler.cpp,
            },
            options: options.split(' ').collect(),
            runner: compiler.runner,
            // Without them files for x86-64 alone can be rewritten, and of static ones those with a search table for
            // unwinding, which GCC's have not.
            kept: !random.one_in(5) || !compiler.runner.is_empty() || options.contains("-static"),
        }
    }

    fn command_line(&self) -> Vec<&'static str> {
        let mut words = vec![self.compiler, "-w", "-I/usr/include/csmith"];
        words.extend(&self.options);
        if self.generator == Generator::Cpp {
            words.extend(["-std=c++20", "-DCOROUTINES=1"]);
        }
        words.push(self.generator.file());
        if self.kept {
            words.push("-Wl,-q");
        }
        words.extend(["-o", "p"]);
        words
    }

    /// The seed, for people, and how the program is made.
    fn title(&self) -> String {
        format!(
            "{} {} ({})",
            self.seed,
            self.generator.name(),
            self.command_line().join(" ")
        )
    }
}

/// Why a program is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LeftOut {
    Refused,
    Endless,
    Undefined,
}

impl LeftOut {
    fn words(self) -> &'static str {
        match self {
            LeftOut::Refused => "refused by the compiler",
            LeftOut::Endless => "do not end in time",
            LeftOut::Undefined => "print something else in a second plain run",
        }
    }
}

/// All sums.
#[derive(Default)]
struct Sums {
    compared: BTreeMap<&'static str, u64>,
    left_out: BTreeMap<LeftOut, u64>,
    runs: BTreeMap<&'static str, u64>,
    faults: Vec<String>,
}

impl Sums {
    fn print(&self, began: Instant) {
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let programs: u64 = self.compared.values().sum();
        let runs: u64 = self.runs.values().sum();
        println!("{programs} programs compared in {runs} outputs, {minutes:.0} minutes");
        for (name, count) in &self.compared {
            println!("{count:>8}  of {name}");
        }
        for (state, count) in &self.runs {
            println!("{count:>8}  {state}");
        }
        for (why, count) in &self.left_out {
            println!("{count:>8}  left out: {}", why.words());
        }
        println!("{:>8}  wrong", self.faults.len());
        for fault in &self.faults {
            println!("          {fault}");
        }
    }
}

/// The job; `false` if something went wrong.
pub fn run(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let postlink = match &options.postlink {
        Some(postlink) => {
            fs::canonicalize(postlink).with_context(|| postlink.display().to_string())?
        }
        None => crate::differ::build_postlink()?,
    };
    let mut generators = if options.generators.is_empty() {
        Generator::ALL.to_vec()
    } else {
        options.generators.clone()
    };
    if find_program("csmith").is_none() {
        generators.retain(|g| !g.needs_csmith());
        eprintln!("SKIPPED: csmith is not installed (Debian packages csmith, libcsmith-dev)");
    }
    let there = |c: &&Compiler| {
        let mut needed = [c.c, c.cpp].into_iter().chain(c.runner.first().copied());
        needed.all(|name| find_program(name).is_some())
    };
    let installed: Vec<&Compiler> = COMPILERS.iter().filter(there).collect();
    if generators.is_empty() || installed.is_empty() {
        bail!("no generator or no compiler is installed");
    }
    let seeds = options.seeds.or(options.minutes.is_none().then_some(100));
    let last = seeds.map_or(u64::MAX, |n| options.first.saturating_add(n));
    let until = options.minutes.map(|m| began + Duration::from_secs(60 * m));
    let (next, sums) = (AtomicU64::new(options.first), Mutex::new(Sums::default()));
    let work = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let recipe = Recipe::of(seed, &generators, &installed);
            one(&recipe, &postlink, &options.keep, &sums)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        let mut done = threads
            .into_iter()
            .map(|t| t.join().map_err(|_| anyhow!("a thread panicked"))?);
        done.try_for_each(|done| done)
    })?;
    let sums = sums
        .into_inner()
        .map_err(|_| anyhow!("a thread panicked"))?;
    sums.print(began);
    Ok(sums.faults.is_empty())
}

/// One program in all states.
fn one(recipe: &Recipe, postlink: &Path, keep: &Path, sums: &Mutex<Sums>) -> Result<()> {
    let lock = || sums.lock().map_err(|_| anyhow!("a thread panicked"));
    let folder = tempfile::tempdir().context("a folder for a program")?;
    let program = Program {
        recipe,
        folder: folder.path(),
        postlink,
    };
    let plain = match program.build()? {
        Ok(plain) => plain,
        Err(why) => {
            *lock()?.left_out.entry(why).or_default() += 1;
            eprintln!("{}: {}", recipe.title(), why.words());
            return Ok(());
        }
    };
    let (mut count, mut wrong) = (0, 0);
    for state in STATES {
        if !state.is_possible(recipe.kept) {
            continue;
        }
        if let Err(what) = program.state(state, &plain)? {
            let fault = format!("{}: {}: {what}", recipe.title(), state.name);
            println!("{fault}");
            program.keep(keep, &fault)?;
            lock()?.faults.push(fault);
            wrong += 1;
        }
        count += 1;
        *lock()?.runs.entry(state.name).or_default() += 1;
    }
    *lock()?.compared.entry(recipe.generator.name()).or_default() += 1;
    eprintln!("{}: {count} outputs, {wrong} wrong", recipe.title());
    Ok(())
}

/// Files of one program.
struct Program<'a> {
    recipe: &'a Recipe,
    folder: &'a Path,
    postlink: &'a Path,
}

/// What a run shows.
type Shown = (Option<i32>, Vec<u8>);

impl Program<'_> {
    /// A command in the program's folder that ends after some seconds, by force if need be.
    fn command(&self, seconds: u32, words: &[&str]) -> Result<Output> {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &seconds.to_string()]).args(words);
        command
            .current_dir(self.folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        for (variable, file) in [
            ("POSTLINK_PROFILE", "run.plraw"),
            ("LLVM_MIP_PROFILE_FILENAME", "run.mipraw"),
        ] {
            command.env(variable, self.folder.join(file));
        }
        command.output().with_context(|| words.join(" "))
    }

    /// What a file of the folder prints and how it ends; `None` if it does not in time.
    fn run(&self, name: &str, seconds: u32) -> Result<Option<Shown>> {
        let path = self.folder.join(name);
        let mut words = self.recipe.runner.to_vec();
        let path = path.to_string_lossy();
        words.push(&path);
        let output = self.command(seconds, &words)?;
        let shown = (
            output.status.code(),
            [output.stdout, output.stderr].concat(),
        );
        Ok((!matches!(shown.0, Some(124 | 137))).then_some(shown))
    }

    /// Writes, compiles and runs the program.
    fn build(&self) -> Result<Result<Shown, LeftOut>> {
        self.recipe.generator.write(self.recipe.seed, self.folder)?;
        if !self
            .command(180, &self.recipe.command_line())?
            .status
            .success()
        {
            return Ok(Err(LeftOut::Refused));
        }
        let Some(first) = self.run("p", 5)? else {
            return Ok(Err(LeftOut::Endless));
        };
        Ok(match self.run("p", 30)? {
            Some(second) if second == first => Ok(first),
            _ => Err(LeftOut::Undefined),
        })
    }

    /// What is wrong with a state of the program; `Ok(Ok)` if nothing is.
    fn state(&self, state: &states::State, plain: &Shown) -> Result<Result<(), String>> {
        let seed = self.recipe.seed.to_string();
        let name = self.postlink.to_string_lossy();
        let mut words = vec![&*name, "-q", "--threads", "1"];
        words.extend(match state.makes {
            Makes::Counting => &["instrument", "p"][..],
            Makes::Optimised => &["optimize", "p", "-p", "edges.plraw"][..],
        });
        words.extend(
            state
                .options
                .iter()
                .map(|o| if *o == "SEED" { &*seed } else { o }),
        );
        words.extend(["-o", "q"]);
        let made = self.command(600, &words)?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            let said = said.lines().last().unwrap_or_default();
            return Ok(Err(format!("not made: {}: {said}", made.status)));
        }
        let shown = self.run("q", 120)?;
        if state.name == "edges" {
            // For all that is optimised.
            let _ = fs::rename(
                self.folder.join("run.plraw"),
                self.folder.join("edges.plraw"),
            );
        }
        // Another program's profile would be complained about by the next one.
        for file in ["run.plraw", "run.mipraw"] {
            let _ = fs::remove_file(self.folder.join(file));
        }
        Ok(match shown {
            None => Err("does not end".into()),
            Some(shown) if shown.0 != plain.0 => {
                let say =
                    |code: Option<i32>| code.map_or("a signal".into(), |code| code.to_string());
                Err(format!(
                    "ends with {} instead of {}",
                    say(shown.0),
                    say(plain.0)
                ))
            }
            Some(shown) if shown.1 != plain.1 => Err("prints something else".into()),
            Some(_) => Ok(()),
        })
    }

    /// Keeps the source, and how to do it again.
    fn keep(&self, keep: &Path, fault: &str) -> Result<()> {
        let folder = keep.join(self.recipe.seed.to_string());
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let source = self.recipe.generator.file();
        fs::copy(self.folder.join(source), folder.join(source))?;
        let mut text = fs::read_to_string(folder.join("faults.txt")).unwrap_or_default();
        if text.is_empty() {
            text = format!("{}\n", self.recipe.command_line().join(" "));
        }
        text += &format!("{fault}\n");
        fs::write(folder.join("faults.txt"), text).context("faults.txt")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_choose_all_generators_compilers_and_both_ways_to_link() {
        let installed: Vec<&Compiler> = COMPILERS.iter().collect();
        let recipes: Vec<Recipe> = (0..400)
            .map(|seed| Recipe::of(seed, &Generator::ALL, &installed))
            .collect();
        for generator in Generator::ALL {
            assert!(recipes.iter().any(|r| r.generator == generator));
        }
        for compiler in COMPILERS {
            for options in compiler.options {
                let words: Vec<&str> = options.split(' ').collect();
                let is = |r: &&Recipe| {
                    [compiler.c, compiler.cpp].contains(&r.compiler) && r.options == words
                };
                assert!(recipes.iter().any(|r| is(&r)), "{} {options}", compiler.c);
            }
        }
        assert!(recipes.iter().any(|r| r.kept) && recipes.iter().any(|r| !r.kept));
    }

    /// A postlink that makes something else of a program: it must be seen, and kept.
    #[test]
    fn a_program_that_does_something_else_is_a_fault() {
        if find_program("g++").is_none() {
            eprintln!("SKIPPED: g++ is not installed");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let postlink = folder.path().join("postlink");
        // Its arguments end with "-o q".
        fs::write(&postlink, "#!/bin/sh\nfor last; do :; done\ncp p $last\ncase \"$*\" in *--preset?size*) printf '#!/bin/sh\\necho x\\n' > $last;; *safe*) exit 3;; esac\n").expect("the folder is ours");
        fs::set_permissions(
            &postlink,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .expect("the file is ours");
        let recipe = Recipe {
            seed: 5,
            generator: Generator::Cpp,
            compiler: "g++",
            options: vec!["-O0"],
            runner: &[],
            kept: true,
        };
        let (keep, sums) = (folder.path().join("kept"), Mutex::new(Sums::default()));
        one(&recipe, &postlink, &keep, &sums).expect("nothing is missing");
        let sums = sums.into_inner().expect("no thread panicked");
        let of = |word: &str| sums.faults.iter().filter(|f| f.contains(word)).count();
        let sizes = STATES
            .iter()
            .filter(|s| s.options.windows(2).any(|w| w == ["--preset", "size"]))
            .count();
        assert_eq!(
            (of("ends with 0 instead of"), of("not made: exit status: 3")),
            (sizes, 1),
            "{:?}",
            sums.faults
        );
        assert_eq!(sums.faults.len(), sizes + 1);
        let kept = fs::read_to_string(keep.join("5/faults.txt")).expect("kept");
        assert!(
            kept.starts_with("g++ -w") && kept.contains(": size"),
            "{kept}"
        );
        assert!(keep.join("5/p.cpp").is_file());
    }
}
