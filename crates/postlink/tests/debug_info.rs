//! Debug information of optimised programs, as debuggers and symbolisers see it.
//!
//! A small C++ program with inlined functions, exceptions, a jump table and variables in registers is built
//! by gcc and clang with DWARF 4 and 5, profiled and optimised with all presets. The checker has compared
//! both files' debug information then; here other people's readers do: for each byte of code that moved,
//! `llvm-symbolizer` and `addr2line` must give the same chain of functions, files and lines as for the byte
//! of the input that it represents, and gdb must stop at the same places and show the same values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_elf::moves;

mod support;
use support::described::{
    Built, PRESETS, as_input, compare, compare_files, count, lldb, lldb_transcript, text,
    transcript,
};
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

fn variants() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut out = Vec::new();
    for compiler in ["g++", "clang++-19"] {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            out.push((compiler, vec!["-g", version]));
        }
    }
    out
}

/// For each compiler, version and preset.
fn each(mut check: impl FnMut(&Built, &Path, &str)) {
    for (compiler, options) in variants() {
        let Some(built) = Built::new(compiler, &options) else {
            continue;
        };
        for preset in PRESETS {
            let (output, json) = built.optimised(preset);
            let what = format!("{compiler} {options:?} {preset:?}");
            let debug = &json["debug"];
            assert_eq!(debug["what"], "update", "{what}: {debug}");
            assert_eq!(
                debug["losses"].as_array().map(Vec::len),
                Some(0),
                "{what}: {debug}"
            );
            check(&built, &output, &what);
        }
    }
}

#[test]
fn symbolisers_say_the_same_of_new_code_as_of_old() {
    let (llvm, binutils) = (
        is_installed("llvm-symbolizer-19"),
        is_installed("addr2line"),
    );
    each(|built, output, what| {
        if llvm {
            let arguments = [
                "--addresses",
                "--inlines",
                "--functions=linkage",
                "--no-demangle",
            ];
            compare("llvm-symbolizer-19", &arguments, built, output, what);
        }
        if binutils {
            compare("addr2line", &["-a", "-i", "-f"], built, output, what);
        }
    });
}

#[test]
fn gdb_stops_where_it_stopped_and_shows_what_it_showed() {
    if !is_installed("gdb") {
        return;
    }
    let mut plain: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    each(|built, output, what| {
        let before = plain
            .entry(built.program.clone())
            .or_insert_with(|| transcript(&built.program));
        assert!(
            before.iter().any(|line| line.contains("in middle")),
            "{what}: gdb shows no frames: {before:#?}"
        );
        let after = transcript(output);
        assert_eq!(&after, before, "{what}");
    });
}

/// LLDB (19) complained of scopes without a byte that had stayed where their function was. It takes a
/// function in two parts for all that is between them, and gets no further than its first frame where the
/// cold part is in front, as gcc puts it, and `--preset size`: what it shows is compared for other programs,
/// its complaints for all.
#[test]
fn lldb_stops_where_it_stopped_and_does_not_complain() {
    if lldb().is_none() {
        return;
    }
    let mut plain: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    each(|built, output, what| {
        let after = lldb_transcript(output);
        let complains = |line: &&String| line.contains("file a bug");
        assert_eq!(after.iter().find(complains), None, "{what}");
        if !what.contains("clang") || what.contains("size") {
            return;
        }
        let before = plain
            .entry(built.program.clone())
            .or_insert_with(|| lldb_transcript(&built.program));
        assert!(
            before.iter().any(|line| line.contains("`middle(")),
            "{what}: LLDB shows no frames: {before:#?}"
        );
        assert_eq!(&after, before, "{what}");
    });
}

/// A unit whose entries are in a file of their own (`-gsplit-dwarf`) that is not there kept the debug
/// information of all others as it was.
#[test]
fn units_that_cannot_be_updated_stay_and_others_follow_moved_code() {
    for (compiler, version) in [("g++", "-gdwarf-5"), ("clang++-19", "-gdwarf-4")] {
        if !is_installed(compiler) {
            return;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        let other = "__attribute__((noinline)) int other(int x) { return x % 3 ? x * 3 + 1 : x / 5; }\n\
            volatile int result;\n\
            __attribute__((constructor)) void first() { for (int i = 0; i < 900; i++) result += other(i); }\n";
        std::fs::write(path("other.cpp"), other).expect("the folder is ours");
        done(Command::new(compiler).current_dir(dir.path()).args([
            "-c",
            "-O2",
            "-g",
            version,
            "-gsplit-dwarf",
            "other.cpp",
        ]));
        let object = path("other.o").display().to_string();
        let Some(built) = Built::new(compiler, &["-g", version, &object]) else {
            return;
        };
        std::fs::remove_file(path("other.dwo")).expect("the compiler made it");
        let (output, json) = built.optimised(&[]);
        let debug = &json["debug"];
        assert_eq!(debug["what"], "update", "{compiler}: {debug}");
        let stale = debug["stale_units"].as_array().expect("it is a list");
        assert_eq!(stale.len(), 1, "{compiler}: {debug}");
        let says = "in a file of their own (split DWARF)";
        assert!(
            stale[0].as_str().is_some_and(|s| s.contains(says)),
            "{debug}"
        );
        let certificate = done(
            Command::new(POSTLINK)
                .args(["verify", "--json"])
                .arg(&built.program)
                .arg(&output),
        );
        let certificate: serde_json::Value =
            serde_json::from_slice(&certificate.stdout).expect("it prints JSON");
        assert_eq!(certificate["debug"]["stale_units"], 1, "{compiler}");
        assert_eq!(certificate["debug"]["state"], "updated", "{compiler}");
        // gdb knows as much of the others as before.
        if is_installed("gdb") {
            assert_eq!(
                transcript(&output),
                transcript(&built.program),
                "{compiler}"
            );
        }
    }
}

/// Static probes as `sys/sdt.h` makes them: a `nop`, and a note that says where it is.
const PROBES: &str = r#"
#include <cstdio>
#define PROBE(name, value) \
  asm volatile("990: nop\n" \
               ".pushsection .note.stapsdt,\"" FLAGS "\",\"note\"\n" \
               ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n" \
               "991: .asciz \"stapsdt\"\n992: .balign 4\n" \
               "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n" \
               ".asciz \"app\"\n.asciz \"" #name "\"\n.asciz \"-4@%0\"\n" \
               "994: .balign 4\n.popsection\n" ::"r"(value))
asm(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"
    ".size _.stapsdt.base,1\n.popsection\n");
extern "C" __attribute__((noinline, noipa)) int work(int x, int y) {
  int r = x * 3;
  if (x % 97 == 5) {
    r += y;
    PROBE(rare, r);
    r ^= 55;
  }
  PROBE(hit, r);
  r = r & 1 ? r * 5 + y : r - y;
  PROBE(left, r);
  return r;
}
int main(int argc, char **) {
  long sum = 0;
  for (int i = 0; i < 300; i++) sum += work(i, argc);
  std::printf("%ld\n", sum);
}
"#;

/// What gdb says of a program's probes, and how often it comes by each.
fn probes_seen(program: &Path) -> (Vec<String>, Vec<String>) {
    let mut command = Command::new("gdb");
    command.args(["-q", "-nx", "-batch"]);
    for line in [
        "set width 0",
        "set debuginfod enabled off",
        "info probes stap app",
        "break -probe-stap app:rare",
        "break -probe-stap app:hit",
        "break -probe-stap app:left",
        "ignore 1 100000",
        "ignore 2 100000",
        "ignore 3 100000",
        "run",
        "info breakpoints",
    ] {
        command.args(["-ex", line]);
    }
    let said = as_input(&text(&done(command.arg(program)).stdout));
    let take = |word: &str| -> Vec<String> {
        let lines = said.lines().map(str::trim);
        let found = lines.filter(|line| line.starts_with(word));
        found.map(str::to_owned).collect()
    };
    (take("stap "), take("breakpoint already hit"))
}

/// Notes of static probes went on naming old code, which control no longer reaches: tracers saw nothing.
#[test]
fn static_probes_are_hit_in_moved_code_as_often_as_before() {
    if !is_installed("g++") || !is_installed("gdb") {
        return;
    }
    for (flags, strip) in [("", false), ("", true), ("a", false)] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("app.cpp"), PROBES).expect("the folder is ours");
        let (program, inst, profile) = (path("app"), path("app.inst"), path("app.plraw"));
        done(
            Command::new("g++")
                .current_dir(dir.path())
                .args(["-O2", "-g", "-Wl,-q", "-o", "app", "app.cpp"])
                .arg(format!("-DFLAGS=\"{flags}\"")),
        );
        if strip {
            done(Command::new("strip").arg("--strip-debug").arg(&program));
        }
        count(&program, &inst, &profile);
        let built = Built {
            dir,
            program,
            profile,
        };
        let what = format!("section flags {flags:?}, stripped: {strip}");
        let before = probes_seen(&built.program);
        assert_eq!(
            (before.0.len(), before.1.len()),
            (3, 3),
            "{what}: {before:?}"
        );
        let (output, json) = built.optimised(&[]);
        let after = probes_seen(&output);
        assert_eq!(after.1, before.1, "{what}: {:?}", after.0);
        // A program whose notes are loaded may know where its probes are: there the function stays.
        let is_loaded = flags == "a";
        assert_eq!(after.0 != before.0, !is_loaded, "{what}: {:?}", after.0);
        if !strip {
            let followed = if is_loaded { 0 } else { 3 };
            assert_eq!(json["debug"]["probes"], followed, "{what}");
        }
        // Wrong addresses are found.
        let input = std::fs::read(&built.program).expect("it was just built");
        let right = std::fs::read(&output).expect("it was just written");
        let elf = Elf::parse(&right).expect("it was just written");
        let (_, section) = elf.section(".note.stapsdt").expect("it has probes");
        let start = section.offset as usize;
        let fields = postlink_elf::probes::probes(&elf);
        let old = Elf::parse(&input).expect("it was just built");
        let was = postlink_elf::probes::probes(&old);
        let check = |data: &[u8]| {
            postlink_verify::verify(&input, data, &postlink_verify::Options::default())
                .is_ok_and(|report| report.is_proved())
        };
        assert!(check(&right), "{what}");
        for (i, (new, old)) in fields.iter().zip(&was).enumerate() {
            let mut values = vec![new.at ^ 1, new.at + 1, fields[(i + 1) % 3].at];
            values.extend(Some(old.at).filter(|at| *at != new.at));
            for value in values {
                let mut wrong = right.clone();
                let field = start + new.field;
                wrong[field..field + 8].copy_from_slice(&value.to_le_bytes());
                assert!(!check(&wrong), "{what}: probe {i} at {value:#x}");
            }
            for byte in [8, 16, 24] {
                let mut wrong = right.clone();
                wrong[start + new.field + byte] ^= 1;
                assert!(!check(&wrong), "{what}: byte {byte} of probe {i}");
            }
        }
    }
}

#[test]
fn debug_information_is_kept_or_left_out_where_that_is_asked_for() {
    let Some(built) = Built::new("g++", &["-g"]) else {
        return;
    };
    let sections = |path: &Path| -> Vec<(String, Vec<u8>)> {
        let data = std::fs::read(path).expect("it was just written");
        let elf = Elf::parse(&data).expect("it was just written");
        let debug = elf.sections.iter().filter(|s| s.name.starts_with(".debug"));
        debug
            .map(|s| (s.name.to_owned(), elf.section_data(s).to_vec()))
            .collect()
    };
    let before = sections(&built.program);
    assert!(before.len() > 4);
    let state = |output: &Path| {
        let certificate = done(
            Command::new(POSTLINK)
                .args(["verify", "--json"])
                .arg(&built.program)
                .arg(output),
        );
        let json: serde_json::Value =
            serde_json::from_slice(&certificate.stdout).expect("it prints JSON");
        json["debug"]["state"].as_str().unwrap_or("none").to_owned()
    };
    let (output, said) = built.optimised(&["--debug-info=keep"]);
    assert_eq!(sections(&output), before);
    assert_eq!(said["debug"]["what"], "keep");
    assert_eq!(state(&output), "kept");
    let (output, _) = built.optimised(&["--debug-info=drop"]);
    assert_eq!(sections(&output), []);
    assert_eq!(state(&output), "dropped");
    done(&mut Command::new(&output));
    let (output, _) = built.optimised(&[]);
    assert_ne!(sections(&output), before);
    assert_eq!(state(&output), "updated");
}

/// A program and its debug information in a file of its own.
struct Apart {
    /// The program with everything in it.
    whole: Built,
    /// What was split off.
    debug: PathBuf,
}

impl Apart {
    fn new(compiler: &str, options: &[&str], strip: &str) -> Option<Apart> {
        let mut whole = Built::new(compiler, options)?;
        let path = |name: &str| whole.dir.path().join(name);
        let (debug, app) = (path("app.debug"), path("app.stripped"));
        let objcopy = || Command::new("objcopy");
        done(
            objcopy()
                .arg("--only-keep-debug")
                .arg(&whole.program)
                .arg(&debug),
        );
        done(
            Command::new("strip")
                .arg(strip)
                .arg(&whole.program)
                .arg("-o")
                .arg(&app),
        );
        let (inst, profile) = (path("app.inst"), path("stripped.plraw"));
        done(
            Command::new(POSTLINK)
                .args(["instrument", "-q"])
                .arg(&app)
                .arg("-o")
                .arg(&inst),
        );
        done(Command::new(&inst).env("POSTLINK_PROFILE", &profile));
        whole.profile = profile;
        whole.program = app;
        Some(Apart { whole, debug })
    }

    /// The new debug file of an output.
    fn updated(&self, output: &Path) -> PathBuf {
        let out = self.whole.dir.path().join("opt.debug");
        done(
            Command::new(POSTLINK)
                .args(["debug", "-q"])
                .arg(&self.whole.program)
                .arg(output)
                .arg(&self.debug)
                .arg("-o")
                .arg(&out),
        );
        out
    }
}

#[test]
fn files_of_debug_information_say_the_same_of_new_code_as_of_old() {
    let llvm = is_installed("llvm-symbolizer-19");
    let gdb = is_installed("gdb");
    let name = regex::Regex::new(r"app\.(opt\.)?linked").expect("it is an expression");
    // All that is not needed is gone, relocations too; and debug information alone is.
    for strip in ["--strip-all", "--strip-debug"] {
        for (compiler, options) in variants() {
            let Some(apart) = Apart::new(compiler, &options, strip) else {
                continue;
            };
            let what = format!("{compiler} {options:?} {strip}");
            let (output, _) = apart.whole.optimised(&[]);
            let debug = apart.updated(&output);
            if llvm {
                let arguments = [
                    "--addresses",
                    "--inlines",
                    "--functions=linkage",
                    "--no-demangle",
                ];
                let files = [&*apart.debug, &*debug];
                compare_files("llvm-symbolizer-19", &arguments, files, &output, &what);
            }
            if gdb {
                // gdb takes a file with debug information where a link leads.
                let linked = |program: &Path, debug: &Path| {
                    let out = debug.with_extension("linked");
                    let link = format!("--add-gnu-debuglink={}", debug.display());
                    done(Command::new("objcopy").arg(link).arg(program).arg(&out));
                    out
                };
                let before = transcript(&linked(&apart.whole.program, &apart.debug));
                assert!(
                    before.iter().any(|line| line.contains("in middle")),
                    "{before:#?}"
                );
                let named = |lines: Vec<String>| -> Vec<String> {
                    lines
                        .iter()
                        .map(|l| name.replace_all(l, "app").into_owned())
                        .collect()
                };
                let after = transcript(&linked(&output, &debug));
                assert_eq!(named(after), named(before), "{what}");
            }
        }
    }
}

/// gcc puts the parts that it splits off in front of the functions, and a stripped file does not name them: control
/// went on into old code, while the new code began with the cold part.
#[test]
fn a_cold_part_in_front_of_its_function_is_not_taken_for_its_entry() {
    let Some(apart) = Apart::new("g++", &["-g"], "--strip-all") else {
        return;
    };
    let data = std::fs::read(&apart.debug).expect("it was just written");
    let elf = Elf::parse_debug_file(&data).expect("it was just written");
    let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
    let value = |name: &[u8]| symbols.iter().find(|s| s.name == name).map(|s| s.value);
    let (output, _) = apart.whole.optimised(&[]);
    let data = std::fs::read(&output).expect("it was just written");
    let elf = Elf::parse(&data).expect("it was just written");
    let note = postlink_elf::note::Note::read(&elf).expect("it can be read");
    let note = note.expect("it was just written");
    let names: [(&[u8], &[u8]); 2] = [(b"leaf", b"leaf.cold"), (b"middle", b"middle.cold")];
    let mut jumps = 0;
    for (name, cold) in names {
        let what = text(name);
        let (Some(entry), Some(cold)) = (value(name), value(cold)) else {
            panic!("gcc does not split {what} in two");
        };
        assert!(
            cold < entry,
            "{what}: the cold part is not in front: {cold:#x}, {entry:#x}"
        );
        let moved = note.functions.iter().find(|f| f.entry == entry);
        let moved = moved.unwrap_or_else(|| panic!("{what} moved by another entry"));
        // Of some functions other code may know what is after the entry; no jump fits there.
        let jump = elf.bytes_at(entry, 5).expect("it is code");
        let distance = i32::from_le_bytes([jump[1], jump[2], jump[3], jump[4]]);
        let to = entry.wrapping_add(5).wrapping_add_signed(distance.into());
        jumps += usize::from(jump[0] == 0xe9 && to == moved.new[0].0);
    }
    assert!(jumps > 0, "no old entry has a jump to the new one");
}

#[test]
fn wrong_files_of_debug_information_are_refused_by_name() {
    let options = ["-g", "-Wl,--build-id=sha1"];
    let (Some(one), Some(other)) = (
        Apart::new("g++", &options, "--strip-all"),
        Apart::new("g++", &["-g", "-O1", "-Wl,--build-id=sha1"], "--strip-all"),
    ) else {
        return;
    };
    let (output, _) = one.whole.optimised(&[]);
    let (kept, _) = other.whole.optimised(&["--debug-info=keep"]);
    let out = one.whole.dir.path().join("out");
    let fails = |program: &Path, output: &Path, debug: &Path, says: &str| {
        let mut command = Command::new(POSTLINK);
        command
            .arg("debug")
            .args([program, output, debug])
            .arg("-o")
            .arg(&out);
        let said = command.output().expect("it is ours");
        let said = (said.status.code(), text(&said.stderr));
        assert!(
            said.0 == Some(1) && said.1.contains(says),
            "{says}: {said:?}"
        );
        assert!(!out.exists());
    };
    let (app, debug) = (&one.whole.program, &one.debug);
    fails(app, &output, &other.debug, "it describes another program");
    fails(
        &other.whole.program,
        &output,
        &other.debug,
        "made from a program with build-id",
    );
    fails(app, app, debug, "postlink did not write it");
    fails(
        &other.whole.program,
        &kept,
        &other.debug,
        "optimise again with --debug-info update",
    );
    fails(app, &output, app, "no debug information");
    let (missing, empty) = (out.with_extension("missing"), out.with_extension("empty"));
    fails(app, &output, &missing, "No such file");
    std::fs::write(&empty, b"").expect("the folder is ours");
    fails(app, &output, &empty, "the file is empty");
    // The checker finds a file that says something else.
    let right = std::fs::read(one.updated(&output)).expect("it was just written");
    let read = |path: &Path| std::fs::read(path).expect("it is there");
    let (input, output, old) = (read(app), read(&output), read(debug));
    let check = |new: &[u8]| {
        let options = postlink_verify::Options::default();
        postlink_verify::verify_debug_file(&input, &output, &old, new, &options)
    };
    assert!(check(&right).expect("it can be read").is_proved());
    assert!(!check(&old).expect("it can be read").is_proved());
    let elf = Elf::parse_debug_file(&right).expect("it was just written");
    let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
    let moved = symbols
        .iter()
        .position(|s| s.name == b"main")
        .expect("it is a program");
    for (name, at) in [
        (".symtab", 24 * moved as u64 + 8),
        (".debug_info", 60),
        (".note.gnu.build-id", 20),
    ] {
        let (_, section) = elf.section(name).unwrap_or_else(|| panic!("no {name}"));
        let mut wrong = right.clone();
        let last = section.size - 1;
        wrong[(section.offset + last.min(at)) as usize] ^= 1;
        assert!(!check(&wrong).is_ok_and(|r| r.is_proved()), "{name}");
    }
}

#[test]
fn compressed_debug_information_is_updated_and_compressed_again() {
    if !is_installed("readelf") {
        return;
    }
    let sections = |path: &Path| -> BTreeMap<String, bool> {
        let data = std::fs::read(path).expect("it was just written");
        let elf = Elf::parse(&data).expect("it was just written");
        let of = elf.sections.iter().filter(|s| s.name.contains("debug_"));
        of.map(|s| (s.name.to_owned(), s.flags & 0x800 != 0))
            .collect()
    };
    for how in ["zlib", "zstd", "zlib-gnu"] {
        let link = format!("-Wl,--compress-debug-sections={how}");
        let Some(built) = Built::new("g++", &["-g", &link]) else {
            continue;
        };
        let before = sections(&built.program);
        let name = if how == "zlib-gnu" {
            ".zdebug_info"
        } else {
            ".debug_info"
        };
        let flag = how != "zlib-gnu";
        assert_eq!(before.get(name), Some(&flag), "{how}: {before:?}");
        for (option, name, flag) in [
            ("keep", name, flag),
            ("none", ".debug_info", false),
            ("zlib", ".debug_info", true),
            ("zstd", ".debug_info", true),
        ] {
            let compress = format!("--compress-debug-sections={option}");
            let (output, json) = built.optimised(&[&compress]);
            assert_eq!(json["debug"]["what"], "update", "{how} {option}");
            let after = sections(&output);
            assert_eq!(after.get(name), Some(&flag), "{how} {option}: {after:?}");
            // LLVM does not know sections called .zdebug_*.
            if how != "zlib-gnu" && option != "keep" && is_installed("llvm-symbolizer-19") {
                compare(
                    "llvm-symbolizer-19",
                    &[
                        "--addresses",
                        "--inlines",
                        "--functions=linkage",
                        "--no-demangle",
                    ],
                    &built,
                    &output,
                    &format!("{how} {option}"),
                );
            }
        }
    }
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    }
}

/// Where the contents of a section are in a file.
fn place(data: &[u8], name: &str) -> std::ops::Range<usize> {
    let elf = Elf::parse(data).expect("it was just written");
    let (_, section) = elf.section(name).unwrap_or_else(|| panic!("no {name}"));
    let start = section.offset as usize;
    start..start + section.size as usize
}

/// Wrong bytes in debug information, in the note of what moved, and in the build-id: the checker finds each.
#[test]
fn the_checker_finds_wrong_bytes_in_what_is_said_of_code() {
    // Without views: gimli does not know them, and only their number is compared.
    let options: [&[&str]; 2] = [
        &["-g", "-gdwarf-5", "-gno-variable-location-views"],
        &["-g", "-gdwarf-4", "-gno-variable-location-views"],
    ];
    for options in options {
        let Some(built) = Built::new("g++", options) else {
            return;
        };
        let input = std::fs::read(&built.program).expect("it was just built");
        let (output, _) = built.optimised(&[]);
        let right = std::fs::read(output).expect("it was just written");
        let check = |data: &[u8]| {
            postlink_verify::verify(&input, data, &postlink_verify::Options::default())
        };
        assert!(check(&right).expect("it can be read").is_proved());
        let mut random = Random(5);
        let mut survivors = Vec::new();
        for (section, times) in [
            (".debug_info", 12),
            (".debug_line", 12),
            (".debug_abbrev", 4),
            (".debug_aranges", 6),
            (".debug_str", 2),
            (moves::SECTION, 16),
            (".note.gnu.build-id", 2),
        ] {
            let mut whole = place(&right, section);
            if section.starts_with(".note") {
                // The description, without the padding after it.
                let header = 12 + (right[whole.start] as usize).next_multiple_of(4);
                let size = u32::from_le_bytes([4, 5, 6, 7].map(|i| right[whole.start + i]));
                whole.start += header;
                whole.end = whole.start + size as usize;
            }
            for _ in 0..times {
                let at = whole.start + random.below(whole.len());
                let mut wrong = right.clone();
                wrong[at] = match random.below(3) {
                    0 => wrong[at].wrapping_add(1),
                    1 => wrong[at].wrapping_sub(1),
                    _ => wrong[at] ^ (1 << random.below(7)),
                };
                if check(&wrong).is_ok_and(|report| report.is_proved()) {
                    survivors.push(format!(
                        "{section} + {:#x}: {:#x} for {:#x}",
                        at - whole.start,
                        wrong[at],
                        right[at]
                    ));
                }
            }
        }
        assert!(survivors.is_empty(), "{options:?}: {survivors:#?}");
    }
}

/// Faults by name, in all that is said of moved code: the checker finds each, wherever it is.
#[test]
fn faults_of_all_kinds_in_debug_information_are_found() {
    use postlink_verify::mutate::{Faults, Kind};
    let index = [
        "-gdwarf-4",
        "-ggnu-pubnames",
        "-fuse-ld=lld",
        "-Wl,--gdb-index",
    ];
    let variants: [(&str, &[&str]); 5] = [
        ("g++", &["-gdwarf-5", "-gno-variable-location-views"]),
        ("g++", &["-gdwarf-4"]),
        ("clang++-19", &["-gdwarf-5"]),
        ("clang++-19", &["-gdwarf-4", "-gdwarf-aranges"]),
        ("clang++-19", &index),
    ];
    let (mut applied, mut missed) = (BTreeMap::new(), Vec::new());
    let mut built_all = is_installed("ld.lld-19");
    for (compiler, options) in variants {
        // A second unit, for what one unit could have of another.
        let dir = tempfile::tempdir().expect("a temporary directory");
        let other = dir.path().join("other.cpp");
        let source = "__attribute__((noinline)) int other(int x) { return x % 3 ? x * 3 + 1 : x / 5; }\n\
            volatile int result;\n\
            extern \"C\" void qsort(void *, unsigned long, unsigned long, int (*)(const void *, const void *));\n\
            __attribute__((noinline)) int order(const void *a, const void *b) { return *(int *)a - *(int *)b; }\n\
            int list[64];\n\
            __attribute__((constructor)) void first() {\n\
              for (int i = 0; i < 900; i++) { result += other(i); list[i & 63] = other(i) * 7 % 64; }\n\
              qsort(list, 64, 4, order); }\n";
        std::fs::write(&other, source).expect("the folder is ours");
        let other = other.display().to_string();
        let all: Vec<&str> = ["-g", "-Wl,--build-id=sha1", &other]
            .into_iter()
            .chain(options.iter().copied())
            .collect();
        let lld = options.iter().any(|o| o.contains("lld"));
        let Some(built) = Built::new(compiler, &all).filter(|_| !lld || built_all) else {
            built_all = false;
            continue;
        };
        let input = std::fs::read(&built.program).expect("it was just built");
        let (output, _) = built.optimised(&[]);
        let output = std::fs::read(output).expect("it was just written");
        let faults = Faults::new(&input, &output).unwrap_or_else(|e| panic!("{all:?}: {e}"));
        for kind in Kind::DEBUG {
            for seed in 0..6 {
                let Some(mutant) = faults.inject(*kind, seed) else {
                    break;
                };
                *applied.entry(*kind).or_insert(0) += 1;
                let options = postlink_verify::Options::default();
                let report = postlink_verify::verify(&input, &mutant.image, &options);
                if report.is_ok_and(|report| report.is_proved()) {
                    missed.push(format!("{compiler} {options:?}: {}", mutant.what));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    let never = |kind: &&Kind| built_all && !applied.contains_key(kind);
    let never: Vec<&Kind> = Kind::DEBUG.iter().filter(never).collect();
    assert!(never.is_empty(), "never applied: {never:?}");
}
