//! Other targets: AArch64 and Arm (Arm and Thumb2 code) run by qemu, Mach-O assembled and linked.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::fs;

use common::{Scratch, counts, have};
use postlink_mip::create;

struct Cross {
    compiler: &'static str,
    emulator: &'static str,
    /// Options, one set a variant.
    variants: &'static [&'static str],
}

const TARGETS: &[Cross] = &[
    Cross {
        compiler: "aarch64-linux-gnu-gcc",
        emulator: "qemu-aarch64",
        variants: &[
            "-O0",
            "-O2",
            "-O2 -mbranch-protection=standard",
            "-O1 -fPIC",
        ],
    },
    Cross {
        compiler: "arm-linux-gnueabihf-gcc",
        emulator: "qemu-arm",
        variants: &[
            "-O0 -marm",
            "-O2 -marm",
            "-O0 -mthumb",
            "-O2 -mthumb",
            "-O2 -mthumb -fPIC",
        ],
    },
    Cross {
        compiler: "clang-19 --target=arm-linux-gnueabihf -march=armv7-a",
        emulator: "qemu-arm",
        variants: &["-O0 -marm", "-O2 -marm", "-O0 -mthumb", "-O2 -mthumb"],
    },
];

fn ready(cross: &Cross) -> bool {
    let compiler = cross.compiler.split(' ').next().unwrap();
    // clang has the C library from gcc's package for the target.
    let libraries = compiler != "clang-19" || have("arm-linux-gnueabihf-gcc", "clang for Arm");
    have(compiler, "code for its target")
        && libraries
        && have(cross.emulator, "code for its target")
}

#[test]
fn other_processors_count_as_this_one_does() {
    let native = Scratch::new();
    for program in ["control.c", "endless.c"] {
        for level in ["-O0", "-O2"] {
            native.build(&format!("gcc {level} @{program} -o %/app{level}"));
            native.run(
                &[&format!("app{level}")],
                &format!("{program}{level}.mipraw"),
            );
        }
        native.build(&format!("gcc -O1 @{program} -o %/app-O1"));
        native.run(&["app-O1"], &format!("{program}-O1.mipraw"));
        let expected = |level: &str| {
            counts(&native.profile(&format!("app{level}"), &format!("{program}{level}.mipraw")))
        };
        for cross in TARGETS.iter().filter(|cross| ready(cross)) {
            for variant in cross.variants {
                let level = variant.split(' ').next().unwrap();
                let here = expected(level);
                for mode in ["", "-fmachine-profile-function-coverage"] {
                    let scratch = Scratch::new();
                    scratch.build(&format!(
                        "{} -static {variant} {mode} @{program} -o %/app",
                        cross.compiler
                    ));
                    let app = scratch.path("app");
                    let out = scratch.run(&[cross.emulator, app.to_str().unwrap()], "x.mipraw");
                    assert_eq!(
                        out.status.success(),
                        program == "control.c",
                        "{variant} {mode}"
                    );
                    let there = counts(&scratch.profile("app", "x.mipraw"));
                    let mut compared = 0;
                    for (name, count) in &here {
                        let Some(found) = there.get(name) else {
                            continue;
                        };
                        if mode.is_empty() {
                            assert_eq!(found, count, "{} {variant}: {name}", cross.compiler);
                        } else {
                            assert_eq!(
                                *found > 0,
                                *count > 0,
                                "{} {variant}: {name}",
                                cross.compiler
                            );
                        }
                        compared += 1;
                    }
                    assert!(compared > 1 && there["main"] == 1, "{variant}: {there:?}");
                }
            }
        }
    }
}

#[test]
fn blocks_are_covered_on_other_processors_whichever_of_them_have_counters() {
    for cross in TARGETS.iter().filter(|cross| ready(cross)) {
        for variant in cross.variants {
            for mode in ["-fmachine-profile-function-coverage", ""] {
                let scratch = Scratch::new();
                let mut found = vec![];
                for (name, more) in [("all", "-fmachine-profile-all-blocks"), ("some", "")] {
                    scratch.build(&format!(
                        "{} -static {variant} {mode} -fmachine-profile-block-coverage {more} @control.c -o %/{name}",
                        cross.compiler
                    ));
                    let app = scratch.path(name);
                    let out = scratch.run(&[cross.emulator, app.to_str().unwrap()], "x.mipraw");
                    assert!(out.status.success(), "{variant} {mode} {more}");
                    let profile = scratch.profile(name, "x.mipraw");
                    let blocks: Vec<Vec<bool>> = profile
                        .functions
                        .iter()
                        .map(|f| f.all_blocks().iter().map(|b| b.covered).collect())
                        .collect();
                    assert!(blocks.iter().flatten().any(|covered| !covered));
                    assert!(blocks.iter().flatten().filter(|covered| **covered).count() > 20);
                    found.push(blocks);
                }
                assert_eq!(found[0], found[1], "{variant} {mode}");
            }
        }
    }
}

#[test]
fn sampling_works_on_other_processors() {
    for cross in TARGETS.iter().filter(|cross| ready(cross)) {
        let scratch = Scratch::new();
        scratch.build(&format!(
            "{} -static -fmachine-profile-runtime-buffer=1024 -O1 -fno-inline @edges.c -o %/app",
            cross.compiler
        ));
        let app = scratch.path("app");
        let out = scratch.run(&[cross.emulator, app.to_str().unwrap()], "x.mipraw");
        assert!(out.status.success());
        let profile = scratch.profile("app", "x.mipraw");
        let heavy = profile
            .functions
            .iter()
            .find(|f| f.name == b"heavy")
            .unwrap();
        assert_eq!(heavy.call_count, 900_000);
        let weight: u64 = heavy.edges.iter().map(|edge| edge.weight).sum();
        assert!(
            (850_000..950_000).contains(&weight),
            "{}: {weight}",
            cross.compiler
        );
    }
}

#[test]
fn mach_o_programs_link_and_have_readable_maps() {
    let linker = "/usr/bin/ld64.lld-19";
    if !have("clang-19", "Mach-O") || !have(linker, "linking Mach-O") {
        return;
    }
    for arch in ["x86_64", "arm64"] {
        for mode in [
            "-fmachine-profile-function-coverage -fmachine-profile-block-coverage",
            "",
        ] {
            let scratch = Scratch::new();
            fs::write(
                scratch.path("m.cc"),
                "template<class T> __attribute__((noinline)) T twice(T x) { return x > 3 ? x * 2 : x + 1; }\nstatic int local(int x) { return x ^ 3; }\n__attribute__((noinline)) int f(int x) { return x ? local(x) : twice(x); }\nint main() { return f(1) + twice(2l); }\n",
            )
            .unwrap();
            fs::write(
                scratch.path("n.cc"),
                "template<class T> __attribute__((noinline)) T twice(T x) { return x > 3 ? x * 2 : x + 1; }\nint g(int x) { return twice(x) + 1; }\n",
            )
            .unwrap();
            let target = format!("--target={arch}-apple-macos11");
            for name in ["m", "n"] {
                scratch.build(&format!(
                    "clang-19 {target} -O1 {mode} -c %/{name}.cc -o %/{name}.o"
                ));
            }
            fs::write(
                scratch.path("stub.c"),
                // What the run-time and the system would have.
                "void __llvm_mip_first(void) {}\n",
            )
            .unwrap();
            scratch.build(&format!(
                "clang-19 {target} -fno-machine-profile-generate -c %/stub.c -o %/stub.o"
            ));
            let out = std::process::Command::new(linker)
                .args([
                    "-arch",
                    arch,
                    "-platform_version",
                    "macos",
                    "11.0",
                    "11.0",
                    "-dylib",
                    "-o",
                ])
                .arg(scratch.path("out"))
                .args(["m.o", "n.o", "stub.o"].map(|name| scratch.path(name)))
                .output()
                .unwrap();
            assert!(
                out.status.success(),
                "{arch}: {}",
                String::from_utf8_lossy(&out.stderr)
            );
            let profile = create::open(&scratch.path("out"))
                .unwrap_or_else(|error| panic!("{arch} {mode}: {error}"));
            let names = counts(&profile);
            for name in ["_main", "__Z1fi", "__Z1gi", "__Z5twiceIiET_S0_"] {
                assert!(
                    names.contains_key(name),
                    "{arch} {mode}: {name} in {names:?}"
                );
            }
            let main = profile
                .functions
                .iter()
                .find(|f| f.name == b"_main")
                .unwrap();
            assert!(main.raw_offset >= 32 && main.size > 8 && main.size < 400);
        }
    }
}

/// The run-time has nothing that samples there, so linking would fail, later and with less to say.
#[test]
fn sampling_in_mach_o_is_refused() {
    if !have("clang-19", "Mach-O") {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.path("a.c"), "int f(int x) { return x + 1; }\n").unwrap();
    let error = scratch
        .try_cc("clang-19 --target=arm64-apple-macos11 -fmachine-profile-runtime-buffer=1024 -c %/a.c -o %/a.o")
        .unwrap_err();
    assert!(
        error.to_string().contains("in ELF programs only"),
        "{error}"
    );
}
