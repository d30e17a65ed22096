//! What jobs need of the system, and installing it where that is possible: as root, with `apt-get`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something that must be on the machine.
pub struct Need {
    /// A program on PATH, or an absolute path of a file.
    pub probe: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// What is not done without it.
    pub purpose: &'static str,
}

const fn need(probe: &'static str, package: &'static str, purpose: &'static str) -> Need {
    Need {
        probe,
        package,
        purpose,
    }
}

/// For `cargo xtask test`.
pub const FOR_TESTS: &[Need] = &[
    need(
        "gcc",
        "gcc",
        "building the cases in C and assembly, and linking Rust",
    ),
    need("g++", "g++", "building the cases in C++"),
    need("/usr/include/stdio.h", "libc6-dev", "building the cases"),
    need("make", "make", "building real programs"),
    need("cmake", "cmake", "the launcher of compilers under CMake"),
    need(
        "readelf",
        "binutils",
        "checking outputs with readelf, strip, objcopy",
    ),
    need("eu-elflint", "elfutils", "checking outputs with eu-elflint"),
    need("gdb", "gdb", "the test that gdb sees moved functions"),
    need(
        "valgrind",
        "valgrind",
        "the test of counts against full counting",
    ),
    need(
        "perf",
        "linux-perf",
        "the test that perf names moved functions",
    ),
    need("clang-19", "clang-19", "cases built by clang"),
    need("lldb-19", "lldb-19", "transcripts of LLDB"),
    need(
        "llvm-dwp-19",
        "llvm-19",
        "packages of split debug information",
    ),
    need(
        "llvm-profgen-19",
        "llvm-19",
        "sample profiles beside those of LLVM's tools",
    ),
    need(
        "/usr/lib/llvm-19/bin/llvm-bolt",
        "bolt-19",
        "the options of its tools, and translation tables that it wrote",
    ),
    need(
        "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.profile-x86_64.a",
        "libclang-rt-19-dev",
        "exact counts by clang's own instrumentation to compare with",
    ),
    need("ld.lld-19", "lld-19", "cases linked by lld"),
    need("musl-gcc", "musl-tools", "programs of another C library"),
    need("gnatmake", "gnat", "programs in Ada"),
    need(
        "aarch64-linux-gnu-gnatmake",
        "gnat-12-aarch64-linux-gnu",
        "programs in Ada for AArch64",
    ),
    need(
        "xmllint",
        "libxml2-utils",
        "that exported coverage is valid by its document type",
    ),
    need(
        "/usr/lib/python3/dist-packages/jsonschema",
        "python3-jsonschema",
        "that exported profiles are valid by the schemas of their formats",
    ),
    need(
        "pdftotext",
        "poppler-utils",
        "that the report is printed as it should be",
    ),
    need("gfortran", "gfortran", "programs in Fortran"),
    need("gdc", "gdc", "programs in D"),
    need(
        "/usr/lib/gcc/x86_64-linux-gnu/12/cc1obj",
        "gobjc",
        "programs in Objective-C",
    ),
    need(
        "go",
        "golang-go",
        "that programs in Go are refused, and that pprof reads exports",
    ),
    need("ocamlopt", "ocaml-nox", "programs in OCaml"),
    need("ghc", "ghc", "programs in Haskell"),
    need("fpc", "fp-compiler", "programs in Pascal"),
    need("nim", "nim", "programs in Nim"),
    need(
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        "programs for AArch64",
    ),
    need(
        "aarch64-linux-gnu-g++",
        "g++-aarch64-linux-gnu",
        "programs for AArch64 in C++",
    ),
    need(
        "/usr/aarch64-linux-gnu/include/stdio.h",
        "libc6-dev-arm64-cross",
        "programs for AArch64",
    ),
    need(
        "qemu-aarch64",
        "qemu-user",
        "running programs for AArch64 and Arm",
    ),
    need(
        "strace",
        "strace",
        "tests of system call failures in the instrumented program",
    ),
    need(
        "arm-linux-gnueabihf-gcc",
        "gcc-arm-linux-gnueabihf",
        "machine profiles on Arm",
    ),
    need(
        "/usr/arm-linux-gnueabihf/include/stdio.h",
        "libc6-dev-armhf-cross",
        "machine profiles on Arm",
    ),
    need(
        "llvm-profdata-19",
        "llvm-19",
        "exact counts to compare with",
    ),
    need(
        "/usr/lib/llvm-22/bin/perf2bolt",
        "bolt-22",
        "profiles beside those that LLVM's tools write, and translation tables",
    ),
    need(
        "clang-22",
        "clang-22",
        "that clang takes clusters of blocks",
    ),
    need("ld.lld-22", "lld-22", "that lld takes orders of functions"),
    need(
        "llvm-readobj-22",
        "llvm-22",
        "which order of blocks clang has made",
    ),
    need(
        "llvm-profdata-22",
        "llvm-22",
        "sample profiles and temporal profiles beside LLVM's",
    ),
    need("genhtml", "lcov", "the test that genhtml reads coverage"),
    need(
        "callgrind_annotate",
        "valgrind",
        "the test that callgrind_annotate reads calls",
    ),
    need("dot", "graphviz", "the test that Graphviz reads graphs"),
    need("llvm-cov-19", "llvm-19", "coverage to compare with"),
    need("chromium", "chromium", "reports opened in a browser"),
    need(
        "qemu-x86_64",
        "qemu-user",
        "the test that optimises again from a profile of the optimised program",
    ),
];

/// For `cargo xtask dist`.
pub const FOR_DIST: &[Need] = &[
    need("git", "git", "the time of the commit"),
    need(
        "readelf",
        "binutils",
        "the check that the program is static",
    ),
    need("tar", "tar", "the archive"),
    need("xz", "xz-utils", "the archive"),
    need("gzip", "gzip", "manual pages of the package"),
    need("dpkg-deb", "dpkg", "the package"),
    need("sha256sum", "coreutils", "checksums"),
];

/// For `cargo xtask bench`.
pub const FOR_BENCH: &[Need] = &[
    need("gcc", "gcc", "building the corpus"),
    need("g++", "g++", "building the corpus"),
    need("make", "make", "building the corpus"),
    need("clang-19", "clang-19", "building the corpus' variants"),
    need("ld.lld-19", "lld-19", "building the corpus' variants"),
    need("tclsh", "tcl", "building sqlite"),
    need("dpkg-source", "dpkg-dev", "unpacking source packages"),
    need("llvm-bolt-22", "bolt-22", "the side by side comparison"),
    need("llvm-strip-22", "llvm-22", "sizes of stripped files"),
    need("valgrind", "valgrind", "simulated cache misses"),
    need("qemu-x86_64", "qemu-user", "branch records"),
];

/// For `cargo xtask bench frontend`.
pub const FOR_FRONTEND: &[Need] = &[
    need("gcc", "gcc", "building the corpus"),
    need("g++", "g++", "building the corpus"),
    need("make", "make", "building the corpus"),
    need("tclsh", "tcl", "building sqlite"),
    need("dpkg-source", "dpkg-dev", "unpacking source packages"),
    need("llvm-bolt-22", "bolt-22", "the side by side comparison"),
    need("valgrind", "valgrind", "the first model of caches"),
    need("qemu-x86_64", "qemu-user", "the second model of caches"),
];

/// For `cargo xtask bench debug`.
pub const FOR_DEBUG: &[Need] = &[
    need("gcc", "gcc", "building the corpus"),
    need("make", "make", "building the corpus"),
    need("tclsh", "tcl", "building sqlite"),
    need("dpkg-source", "dpkg-dev", "unpacking source packages"),
    need("clang-19", "clang-19", "building the corpus"),
    need("ld.lld-19", "lld-19", "linking the corpus"),
    need("llvm-dwarfdump-19", "llvm-19", "counting what is described"),
    need("llvm-bolt-19", "bolt-19", "the side by side comparison"),
    need("llvm-bolt-22", "bolt-22", "the side by side comparison"),
    need("gdb", "gdb", "transcripts of postlink itself"),
    need("lldb-19", "lldb-19", "transcripts of postlink itself"),
    need("prlimit", "util-linux", "a bound for llvm-bolt's memory"),
];

/// For `cargo xtask bench samples`.
pub const FOR_SAMPLES: &[Need] = &[
    need("gcc", "gcc", "building the corpus"),
    need("g++", "g++", "building the corpus"),
    need("tclsh", "tcl", "building sqlite"),
    need("dpkg-source", "dpkg-dev", "unpacking source packages"),
    need("perf", "linux-perf", "samples of the software clock"),
    need("llvm-bolt-22", "bolt-22", "the side by side comparison"),
];

/// For `cargo xtask debian`. What it tries is fetched, not installed.
pub const FOR_DEBIAN: &[Need] = &[
    need("apt-get", "apt", "fetching packages"),
    need("dpkg-deb", "dpkg", "unpacking packages"),
    need("gcc", "gcc", "inputs of workloads"),
    need("g++", "g++", "inputs of workloads"),
    need("llvm-bolt-22", "bolt-22", "the side by side comparison"),
    need(
        "setpriv",
        "util-linux",
        "a server that refuses to run as root",
    ),
];

/// For `cargo xtask bench mip-cc`.
pub const FOR_MIP_CC: &[Need] = &[
    need("clang-19", "clang-19", "building the programs"),
    need("dpkg-source", "dpkg-dev", "unpacking source packages"),
    need("autoreconf", "autoconf", "configuring nauty"),
    need("automake", "automake", "configuring nauty"),
    need("libtoolize", "libtool", "configuring nauty"),
    need("valgrind", "valgrind", "counting instructions"),
    need(
        "llvm-profdata-19",
        "llvm-19",
        "exact counts to compare with",
    ),
    need(
        "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.profile-x86_64.a",
        "libclang-rt-19-dev",
        "the other instrumentation's run-times",
    ),
];

/// For `cargo xtask bench aarch64`.
pub const FOR_AARCH64: &[Need] = &[
    need("gcc", "gcc", "building the plugin for qemu"),
    need("make", "make", "building the corpus"),
    need("tclsh", "tcl", "building sqlite"),
    need("dpkg-source", "dpkg-dev", "unpacking source packages"),
    need("readelf", "binutils", "reading headers and symbols"),
    need(
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        "building the corpus",
    ),
    need(
        "aarch64-linux-gnu-g++",
        "g++-aarch64-linux-gnu",
        "building the corpus",
    ),
    need(
        "/usr/aarch64-linux-gnu/include/stdio.h",
        "libc6-dev-arm64-cross",
        "building the corpus",
    ),
    need("qemu-aarch64", "qemu-user", "running the corpus"),
    need("clang-19", "clang-19", "building the corpus"),
    need("ld.lld-19", "lld-19", "building the corpus"),
];

/// Additionally for the corpus' clang.
pub const FOR_CLANG: &[Need] = &[
    need("llvm-config-19", "llvm-19-dev", "building clang"),
    need(
        "/usr/lib/llvm-19/lib/libclangSema.a",
        "libclang-19-dev",
        "building clang",
    ),
    need(
        "/usr/lib/llvm-19/lib/libPolly.a",
        "libpolly-19-dev",
        "building clang",
    ),
    need("/usr/include/zstd.h", "libzstd-dev", "building clang"),
];

/// Where a program is on PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Whether a need is met.
pub fn is_there(need: &Need) -> bool {
    if need.probe.starts_with('/') {
        Path::new(need.probe).exists()
    } else {
        find_program(need.probe).is_some()
    }
}

/// A reason for skipping something, with the Debian package of the tool that it names, unless it says that itself.
pub fn with_package(reason: &str) -> String {
    let is_named = |need: &&Need| {
        let name = need.probe.rsplit('/').next().unwrap_or(need.probe);
        reason
            .split([' ', ',', ':'])
            .any(|word| word == name || word == need.probe)
    };
    match FOR_TESTS.iter().find(is_named) {
        Some(need) if !reason.contains("package") => {
            format!("{reason} (Debian package {})", need.package)
        }
        _ => reason.to_owned(),
    }
}

fn apt(arguments: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command
        .args(["-qq", "-o", "DPkg::Lock::Timeout=300"])
        .args(arguments);
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// What Rust programs are linked with, of [`FOR_TESTS`]: while it is installed, or replaced by a newer version that
/// goes with other packages, nothing can be built.
pub fn for_linking() -> impl Iterator<Item = &'static Need> {
    const PACKAGES: [&str; 4] = ["gcc", "g++", "libc6-dev", "binutils"];
    FOR_TESTS
        .iter()
        .filter(|need| PACKAGES.contains(&need.package))
}

/// Installs what is missing when that is allowed, and gives back what is still missing.
pub fn install(
    needs: impl IntoIterator<Item = &'static Need>,
    allowed: bool,
) -> Vec<&'static Need> {
    let mut missing: Vec<&Need> = needs.into_iter().filter(|need| !is_there(need)).collect();
    if missing.is_empty() {
        return missing;
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if allowed && root && find_program("apt-get").is_some() {
        let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
        packages.sort_unstable();
        packages.dedup();
        eprintln!("installing {}", packages.join(" "));
        let mut install = vec!["install", "-y", "--no-install-recommends"];
        // A machine that is there for one run of the tests needs not to outlive a loss of power, and waiting for the
        // disk after every file takes longer than building the tests.
        if std::env::var_os("CI").is_some() {
            install.extend(["-o", "DPkg::Options::=--force-unsafe-io"]);
        }
        let all = [&install[..], &packages].concat();
        // Together first; one by one if the distribution lacks some of them. A bare system has no lists of
        // packages yet, and old ones name files that are gone.
        if !(apt(&["update"]) && apt(&all)) {
            for package in packages {
                apt(&[&install[..], &[package]].concat());
            }
        }
    }
    missing.retain(|need| !is_there(need));
    for need in &missing {
        eprintln!(
            "missing: {} (Debian package {}), for {}",
            need.probe, need.package, need.purpose
        );
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_names_a_tool_gets_its_package() {
        assert_eq!(
            with_package("eu-elflint is not installed"),
            "eu-elflint is not installed (Debian package elfutils)"
        );
        assert_eq!(with_package("needs a kernel"), "needs a kernel");
        let whole = "llvm-bolt is not there (package bolt-19)";
        assert_eq!(with_package(whole), whole);
    }
}
