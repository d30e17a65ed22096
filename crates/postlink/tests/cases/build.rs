//! Link kinds, and building a case in one of them. All of them keep their relocations (`-Wl,-q`).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::directives::{Case, Driver};
use super::run;

/// Who compiles and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// gcc or g++ with GNU ld
    Gcc,
    /// clang-19 or clang++-19 with lld
    Clang,
    /// rustc with the system's cc and GNU ld
    Rust,
    /// rustc with the lld that comes with it
    RustLld,
}

/// What comes out of the linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Pie,
    NoPie,
    Static,
    StaticPie,
    /// The case as a shared library, `main` renamed, and a driver that calls it.
    So,
}

/// For which machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This one.
    Host,
    /// AArch64, cross-compiled, run by qemu.
    Aarch64,
}

/// Where Debian has the libraries of AArch64.
pub const AARCH64_ROOT: &str = "/usr/aarch64-linux-gnu";

/// A way to build cases.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub target: Target,
    pub toolchain: Toolchain,
    pub link: Link,
}

impl Kind {
    /// The words by which a `not` directive can name this kind.
    pub fn answers_to(&self, word: &str) -> bool {
        let host = self.name.strip_prefix("aarch64-");
        self.name == word
            || host.is_some() && word == "aarch64"
            || host
                .unwrap_or(self.name)
                .split_once('-')
                .is_some_and(|(tool, link)| tool == word || link == word)
    }
    /// Whether the C library is in the program itself.
    pub fn is_static(&self) -> bool {
        matches!(self.link, Link::Static | Link::StaticPie)
    }
    /// Whether additional builds of a case are made in this kind.
    pub fn takes_builds(&self, case: &Case) -> bool {
        let own = |names: &Vec<String>| names.iter().any(|name| name.starts_with("aarch64"));
        let names = case.kinds.as_ref().filter(|names| own(names));
        if let Some(first) = names.and_then(|names| names.first()) {
            let is_pie = |name: &&str| name.ends_with("-pie") && !name.ends_with("static-pie");
            let some_pie = names.is_some_and(|n| n.iter().map(String::as_str).any(|n| is_pie(&n)));
            return if some_pie {
                self.link == Link::Pie
            } else {
                self.name == first
            };
        }
        self.link == Link::Pie && self.target == Target::Host
    }
    /// What runs a program of this kind.
    pub fn run(&self, program: &Path) -> Command {
        match self.target {
            Target::Host => Command::new(program),
            Target::Aarch64 => {
                let mut command = Command::new("qemu-aarch64");
                command.args(["-L", AARCH64_ROOT]).arg(program);
                command
            }
        }
    }
}

macro_rules! kinds {
    ($($name:literal $target:ident $toolchain:ident $link:ident,)*) => {
        &[$(Kind { name: $name, target: Target::$target, toolchain: Toolchain::$toolchain, link: Link::$link },)*]
    };
}

/// For C, C++ and assembly.
pub const NATIVE: &[Kind] = kinds! {
    "gcc-pie" Host Gcc Pie,
    "gcc-nopie" Host Gcc NoPie,
    "gcc-static" Host Gcc Static,
    "gcc-static-pie" Host Gcc StaticPie,
    "gcc-so" Host Gcc So,
    "clang-pie" Host Clang Pie,
    "clang-nopie" Host Clang NoPie,
    "clang-static" Host Clang Static,
    "clang-so" Host Clang So,
    "aarch64-gcc-pie" Aarch64 Gcc Pie,
    "aarch64-gcc-nopie" Aarch64 Gcc NoPie,
    "aarch64-gcc-static" Aarch64 Gcc Static,
    "aarch64-gcc-static-pie" Aarch64 Gcc StaticPie,
    "aarch64-gcc-so" Aarch64 Gcc So,
    "aarch64-clang-pie" Aarch64 Clang Pie,
    "aarch64-clang-nopie" Aarch64 Clang NoPie,
    "aarch64-clang-static" Aarch64 Clang Static,
    "aarch64-clang-so" Aarch64 Clang So,
};

/// Emulation is slow, so a case that is for every machine is built in two kinds of AArch64, which change from
/// case to case.
const AARCH64_KINDS_PER_CASE: usize = 2;

/// A static build takes ten times as long as another, most of it for the C library, which is the same in all of them.
/// So a case that is for every kind is built in one static kind of this machine, which changes from case to case.
const STATIC_KINDS_PER_CASE: usize = 1;

/// Whether cases are built in every kind that fits, and go through all states there.
pub fn every_kind() -> bool {
    std::env::var_os("POSTLINK_ALL_KINDS").is_some()
}

/// The kinds that a case is built in. With `POSTLINK_ALL_KINDS` in the environment a case that is for every kind is
/// built in every one.
pub fn kinds_of(case: &Case, number: usize) -> Vec<Kind> {
    let rust = case.source.extension().is_some_and(|e| e == "rs");
    let (host, cross): (Vec<Kind>, Vec<Kind>) = if rust { RUST } else { NATIVE }
        .iter()
        .partition(|kind| kind.target == Target::Host);
    let also = |chosen: Vec<Kind>| {
        let named = case.also.iter().chain(&case.all_states);
        let named: Vec<&String> = named.collect();
        let asked = |kind: &&Kind| named.iter().any(|name| *name == kind.name);
        let more = host.iter().chain(&cross).filter(asked).copied();
        let mut all = chosen.clone();
        all.extend(more.filter(|kind| chosen.iter().all(|c| c.name != kind.name)));
        all
    };
    if let Some(names) = &case.kinds {
        let named = |kind: &&Kind| names.iter().any(|name| kind.answers_to(name));
        // What is named for the host alone goes for the same kinds here.
        let own = names.iter().any(|name| name.starts_with("aarch64"));
        let (named_host, named_cross): (Vec<Kind>, Vec<Kind>) = (
            host.iter().filter(named).copied().collect(),
            cross.iter().filter(named).copied().collect(),
        );
        return if own {
            [named_host, named_cross].concat()
        } else if every_kind() {
            also([named_host, named_cross].concat())
        } else {
            let cross = some(named_cross, number, AARCH64_KINDS_PER_CASE);
            also([named_host, cross].concat())
        };
    }
    if every_kind() {
        return [&host[..], &cross].concat();
    }
    // A kind that the case excludes takes no turn, and is reported as skipped.
    let fits = |kind: &Kind| !case.not.iter().any(|(word, _)| kind.answers_to(word));
    let fit = cross.iter().copied().filter(fits).collect();
    let (statics, others): (Vec<Kind>, Vec<Kind>) = host.iter().partition(|kind| kind.is_static());
    let (statics, skipped): (Vec<Kind>, Vec<Kind>) = statics.into_iter().partition(fits);
    let statics = some(statics, number, STATIC_KINDS_PER_CASE);
    let cross = some(fit, number, AARCH64_KINDS_PER_CASE);
    also([others, statics, skipped, cross].concat())
}

/// So many of some kinds, others for another number.
fn some(kinds: Vec<Kind>, number: usize, most: usize) -> Vec<Kind> {
    let count = kinds.len().min(most);
    // Neighbours in the list are of the same compiler; those half of it apart are mostly not, and never the same.
    let apart = kinds.len().div_ceil(most);
    (0..count)
        .map(|i| kinds[(number + apart * i) % kinds.len()])
        .collect()
}

/// For Rust.
pub const RUST: &[Kind] = kinds! {
    "rust-pie" Host Rust Pie,
    "rust-nopie" Host Rust NoPie,
    "rust-static" Host Rust Static,
    "rust-static-pie" Host Rust StaticPie,
    "rustlld-pie" Host RustLld Pie,
    "aarch64-rust-pie" Aarch64 Rust Pie,
    "aarch64-rust-nopie" Aarch64 Rust NoPie,
    "aarch64-rust-static" Aarch64 Rust Static,
    "aarch64-rust-static-pie" Aarch64 Rust StaticPie,
    "aarch64-rustlld-pie" Aarch64 RustLld Pie,
};

/// The name by which rustc knows AArch64.
pub const RUST_AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Whether Rust's standard library for AArch64 is there (`rustup target add aarch64-unknown-linux-gnu`).
pub fn has_rust_aarch64() -> bool {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    output.is_ok_and(|output| {
        let root = PathBuf::from(run::text(&output.stdout).trim());
        root.join("lib/rustlib")
            .join(RUST_AARCH64)
            .join("lib")
            .is_dir()
    })
}

/// What a build gives.
pub struct Built {
    /// The file that postlink works on: the program, or the library of a `so` kind.
    pub subject: PathBuf,
    /// What is run; is in the same folder as the subject.
    pub program: PathBuf,
    /// Files that must be beside it when it runs.
    pub beside: Vec<PathBuf>,
}

fn is_cpp(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "cpp")
}

/// The compiler's name.
pub fn compiler(kind: Kind, cpp: bool) -> &'static str {
    match (kind.toolchain, kind.target, cpp) {
        (Toolchain::Gcc, Target::Host, false) => "gcc",
        (Toolchain::Gcc, Target::Host, true) => "g++",
        (Toolchain::Gcc, Target::Aarch64, false) => "aarch64-linux-gnu-gcc",
        (Toolchain::Gcc, Target::Aarch64, true) => "aarch64-linux-gnu-g++",
        (Toolchain::Clang, _, false) => "clang-19",
        (Toolchain::Clang, _, true) => "clang++-19",
        (Toolchain::Rust | Toolchain::RustLld, ..) => "rustc",
    }
}

/// What must be on PATH to build in a kind.
pub fn needs(case: &Case, kind: Kind) -> Vec<&'static str> {
    let mut tools = vec![compiler(kind, is_cpp(&case.source))];
    if kind.target == Target::Aarch64 {
        // clang takes libraries and start files from gcc.
        tools.extend(["qemu-aarch64", "aarch64-linux-gnu-g++"]);
    }
    let crossed_lld = (kind.toolchain, kind.target) == (Toolchain::RustLld, Target::Aarch64);
    if kind.toolchain == Toolchain::Clang || crossed_lld {
        tools.push("ld.lld-19");
    }
    tools
}

fn succeed(mut command: Command, dir: &Path) -> Result<(), String> {
    command.current_dir(dir).env("LC_ALL", "C");
    let shown = format!("{command:?}");
    let output = command.output().map_err(|e| format!("{shown}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{shown}\n{}\n{}{}",
        output.status,
        run::text(&output.stdout),
        run::text(&output.stderr)
    ))
}

/// Builds into `dir`.
pub fn build(case: &Case, kind: Kind, flags: &[String], dir: &Path) -> Result<Built, String> {
    match kind.toolchain {
        Toolchain::Gcc | Toolchain::Clang => build_native(case, kind, flags, dir),
        Toolchain::Rust | Toolchain::RustLld => build_rust(case, kind, flags, dir),
    }
}

fn build_native(case: &Case, kind: Kind, flags: &[String], dir: &Path) -> Result<Built, String> {
    let cpp = is_cpp(&case.source);
    let start = |cpp: bool| {
        let mut command = Command::new(compiler(kind, cpp));
        if (kind.toolchain, kind.target) == (Toolchain::Clang, Target::Aarch64) {
            command.arg("--target=aarch64-linux-gnu");
        }
        if kind.toolchain == Toolchain::Clang {
            command.args(["-fuse-ld=lld", "-Wno-unused-command-line-argument"]);
        }
        command.args(["-w", "-O2"]);
        command
    };
    let mut beside = vec![];
    let mut libraries = vec![];
    if let Some(lib) = &case.lib {
        let target = dir.join("libbeside.so");
        let mut command = start(is_cpp(lib));
        command
            .args(["-fPIC", "-shared", "-Wl,-soname,libbeside.so", "-o"])
            .arg(&target)
            .arg(lib);
        succeed(command, dir)?;
        libraries.push(target.as_os_str().to_owned());
        libraries.push("-Wl,-rpath,$ORIGIN".into());
        beside.push(target);
    }
    let mut command = start(cpp);
    command.arg("-Wl,-q").args(expand(&case.flags)).args(flags);
    let name = if kind.link == Link::So {
        "libcase.so"
    } else {
        "program"
    };
    let subject = dir.join(name);
    match kind.link {
        Link::Pie => command.args(["-fPIE", "-pie"]),
        Link::NoPie => command.args(["-fno-pie", "-no-pie"]),
        Link::Static => command.args(["-fno-pie", "-no-pie", "-static"]),
        Link::StaticPie => command.args(["-fPIE", "-static-pie"]),
        Link::So => {
            command.args([
                "-fPIC",
                "-shared",
                "-Wl,-soname,libcase.so",
                "-Dmain=case_main",
            ]);
            if case.source.extension().is_none_or(|e| e != "S") {
                command.arg("-include").arg(support("case_main.h"));
            }
            &mut command
        }
    };
    command.arg(&case.source);
    for part in &case.with {
        // C in a program of C++ stays C.
        let language = if part.extension().is_some_and(|e| e == "c") {
            "c"
        } else {
            "none"
        };
        command
            .args(["-x", language])
            .arg(part)
            .args(["-x", "none"]);
    }
    command
        .args(&libraries)
        .args(expand(&case.link))
        .arg("-o")
        .arg(&subject);
    succeed(command, dir)?;
    if kind.link != Link::So {
        return Ok(Built {
            program: subject.clone(),
            subject,
            beside,
        });
    }
    let program = dir.join("driver");
    let mut command = start(cpp);
    command
        .arg("-o")
        .arg(&program)
        .arg("-Wl,-rpath,$ORIGIN")
        .args(case.flags.iter().filter(|f| *f == "-pthread"));
    match case.driver {
        Driver::Link => command
            .arg(support("driver_link.c"))
            .arg(&subject)
            .args(&libraries),
        Driver::Dlopen => command
            .arg(support("driver_dlopen.c"))
            .args(["-ldl", "-rdynamic"]),
    };
    succeed(command, dir)?;
    Ok(Built {
        subject,
        program,
        beside,
    })
}

fn build_rust(case: &Case, kind: Kind, flags: &[String], dir: &Path) -> Result<Built, String> {
    let subject = dir.join("program");
    let mut command = Command::new("rustc");
    if kind.target == Target::Aarch64 {
        command.args(["--target", RUST_AARCH64, "-Clinker=aarch64-linux-gnu-gcc"]);
    }
    command.args([
        "--edition=2024",
        "-Clink-arg=-Wl,-q",
        "-Copt-level=2",
        "-Cdebuginfo=0",
        "-Awarnings",
    ]);
    match kind.link {
        Link::Pie => &mut command,
        Link::NoPie => command.arg("-Crelocation-model=static"),
        Link::Static => command.args(["-Ctarget-feature=+crt-static", "-Crelocation-model=static"]),
        Link::StaticPie => command.arg("-Ctarget-feature=+crt-static"),
        Link::So => return Err("Rust cases are not built as shared libraries".into()),
    };
    match (kind.toolchain, kind.target) {
        // Only there it is on by default, and may be switched off.
        (Toolchain::Rust, Target::Host) => {
            command.arg("-Clinker-features=-lld");
        }
        (Toolchain::RustLld, Target::Aarch64) => {
            command.args([
                "-Clink-arg=-fuse-ld=lld",
                "-Clink-arg=-B/usr/lib/llvm-19/bin",
            ]);
        }
        _ => {}
    }
    command
        .args(&case.flags)
        .args(flags)
        .arg("-o")
        .arg(&subject)
        .arg(&case.source);
    command.env_remove("RUSTFLAGS").env_remove("RUSTC_WRAPPER");
    succeed(command, dir)?;
    Ok(Built {
        program: subject.clone(),
        subject,
        beside: vec![],
    })
}

/// Flags as a case has them, with `{cases}`, the directory of cases, filled in.
fn expand(flags: &[String]) -> impl Iterator<Item = String> {
    let cases = super::select::cases_dir().display().to_string();
    flags
        .iter()
        .map(move |flag| flag.replace("{cases}", &cases))
}

/// A file that all cases share.
fn support(name: &str) -> PathBuf {
    super::select::cases_dir().join("support").join(name)
}
