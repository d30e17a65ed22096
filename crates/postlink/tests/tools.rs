//! Other people's tools on files that postlink wrote: a program that cannot be stripped, debugged or profiled
//! any more is of no use.
//!
//! One C++ program with exceptions, split functions and a jump table is instrumented, run, and optimised, for
//! a position-independent and a fixed-address link; then readelf, strip, objcopy, gdb, perf and eu-elflint
//! get the outputs. Complaints are compared with those about the input: what the linker did is not our doing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

mod support;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
extern "C" __attribute__((noinline, noipa)) int leaf(int x) {
  if (x % 7 == 3) throw std::runtime_error("seven " + std::to_string(x % 5));
  switch (x & 7) {
    case 0: return x + 1; case 1: return x * 3; case 2: return x ^ 77; case 3: return x - 9;
    case 4: return x << 1; case 5: return ~x; case 6: return x / 3; default: return 5;
  }
}
extern "C" __attribute__((noinline, noipa)) int middle(int x) {
  std::string s(3 + x % 4, 'x');
  int r = leaf(x) + (int)s.size();
  if (r == -12345678) { std::puts("never"); std::abort(); }
  return r;
}
int main(int argc, char **) {
  long sum = 0; int thrown = 0;
  for (int i = 0; i < 20000; i++) {
    try { sum += middle(i); } catch (const std::runtime_error &e) { thrown++; sum += e.what()[6]; }
  }
  std::printf("%ld %d\n", sum, thrown);
  return argc > 5;
}
"#;

struct Made {
    dir: tempfile::TempDir,
    expected: String,
}

impl Made {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The program in both link kinds: NAME, NAME.inst, NAME.opt.
fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("app.cpp"), SOURCE).expect("the folder is ours");
        let mut expected = String::new();
        for (name, link) in [("pie", "-pie"), ("nopie", "-no-pie")] {
            let position = if name == "pie" { "-fPIE" } else { "-fno-pie" };
            done(
                Command::new("g++")
                    .args(["-g", "-O2", position, link, "-Wl,-q", "-o"])
                    .args([path(name), path("app.cpp")]),
            );
            expected = text(&done(&mut Command::new(path(name))).stdout);
            let (inst, opt, profile) = (
                path(&format!("{name}.inst")),
                path(&format!("{name}.opt")),
                path(&format!("{name}.plraw")),
            );
            done(
                Command::new(POSTLINK)
                    .args(["instrument", "-q"])
                    .arg(path(name))
                    .arg("-o")
                    .arg(&inst),
            );
            let run = done(Command::new(&inst).env("POSTLINK_PROFILE", &profile));
            assert_eq!(text(&run.stdout), expected);
            done(
                Command::new(POSTLINK)
                    .args(["optimize", "-q", "-p"])
                    .arg(&profile)
                    .arg(path(name))
                    .arg("-o")
                    .arg(&opt),
            );
        }
        Made { dir, expected }
    })
}

const FILES: [&str; 4] = ["pie.inst", "pie.opt", "nopie.inst", "nopie.opt"];

fn runs_as_before(program: &Path) {
    let made = made();
    let run = Command::new(program)
        .env("POSTLINK_PROFILE", made.path("another.plraw"))
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    assert!(
        run.status.success(),
        "{}: {}\n{}",
        program.display(),
        run.status,
        text(&run.stderr)
    );
    assert_eq!(text(&run.stdout), made.expected, "{}", program.display());
}

#[test]
fn readelf_reads_every_table_without_a_warning() {
    for name in FILES {
        let output = done(Command::new("readelf").args(["-aW"]).arg(made().path(name)));
        assert_eq!(text(&output.stderr), "", "readelf -a on {name}");
        assert!(
            !text(&output.stdout).contains("arning:"),
            "readelf -a on {name}"
        );
        let frames = done(
            Command::new("readelf")
                .args(["-W", "--debug-dump=frames-interp"])
                .arg(made().path(name)),
        );
        assert_eq!(text(&frames.stderr), "", "readelf --debug-dump on {name}");
    }
}

#[test]
fn strip_leaves_a_program_that_runs_and_still_says_what_it_is() {
    for name in FILES {
        for option in ["--strip-all", "--strip-debug", "--strip-unneeded"] {
            let to = made().path(&format!("{name}.stripped{option}"));
            let output = done(
                Command::new("strip")
                    .arg(option)
                    .arg("-o")
                    .arg(&to)
                    .arg(made().path(name)),
            );
            assert_eq!(text(&output.stderr), "", "strip {option} on {name}");
            runs_as_before(&to);
            let sections = text(&done(Command::new("readelf").args(["-SW"]).arg(&to)).stdout);
            assert!(
                sections.contains(".note.postlink"),
                "strip {option} on {name} took the note away"
            );
        }
    }
}

/// strip removes sections of kept relocations and numbers the rest anew, but leaves the old numbers in dynamic
/// symbols. Those beyond the last section became absolute symbols, and the checker refused the output.
#[test]
fn dynamic_symbols_of_a_stripped_program_that_name_no_section_stay_as_they_are() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = done(command.args(arguments).current_dir(folder.path()));
        text(&output.stdout)
    };
    let source = "int data = 5; int counter; int main(int c, char **v) { for (int i = 0; i < 99 * c; i++) counter += data; return counter != 495; }";
    std::fs::write(folder.path().join("app.c"), source).expect("the folder is ours");
    run("gcc", &["-O2", "-rdynamic", "-Wl,-q", "-o", "app", "app.c"]);
    run("strip", &["app"]);
    let symbols = run("readelf", &["-W", "--dyn-syms", "app"]);
    assert!(
        symbols.contains("bad section index"),
        "strip has learned it: {symbols}"
    );
    let postlink = env!("CARGO_BIN_EXE_postlink");
    run(postlink, &["tune", "app", "-o", "app.opt", "--", "{}"]);
    run("./app.opt", &[]);
    let after = run("readelf", &["-W", "--dyn-syms", "app.opt"]);
    assert!(!after.contains(" ABS "), "{after}");
}

#[test]
fn a_stripped_output_is_still_proved_against_the_input() {
    for name in ["pie", "nopie"] {
        let to = made().path(&format!("{name}.opt.debugless"));
        done(
            Command::new("strip")
                .arg("--strip-debug")
                .arg("-o")
                .arg(&to)
                .arg(made().path(&format!("{name}.opt"))),
        );
        // Its symbol table was written anew, so file-wide differences may be told, but no function may fail.
        let verdict = Command::new(POSTLINK)
            .args(["verify", "--json"])
            .arg(made().path(name))
            .arg(&to)
            .output()
            .expect("postlink runs");
        let certificate: serde_json::Value =
            serde_json::from_slice(&verdict.stdout).expect("verify prints JSON");
        assert_eq!(
            certificate["failed"].as_u64(),
            Some(0),
            "{name}: {}",
            text(&verdict.stderr)
        );
        assert!(certificate["proved"].as_u64() > Some(2), "{name}");
    }
}

#[test]
fn objcopy_copies_splits_off_debug_information_and_links_back_to_it() {
    for name in FILES {
        let from = made().path(name);
        let (copy, debug, slim) = (
            made().path(&format!("{name}.copy")),
            made().path(&format!("{name}.debug")),
            made().path(&format!("{name}.slim")),
        );
        let link = format!("--add-gnu-debuglink={}", debug.display());
        let steps: [(&[&str], &Path); 3] = [
            (&[], &copy),
            (&["--only-keep-debug"], &debug),
            (&["--strip-debug", &link], &slim),
        ];
        for (options, to) in steps {
            let output = done(Command::new("objcopy").args(options).arg(&from).arg(to));
            assert_eq!(text(&output.stderr), "", "objcopy {options:?} on {name}");
        }
        runs_as_before(&copy);
        runs_as_before(&slim);
    }
}

#[test]
fn gdb_stops_in_moved_functions_and_walks_out_of_them() {
    if !is_installed("gdb") {
        return;
    }
    for name in FILES {
        let output = done(
            Command::new("gdb")
                .args([
                    "-nx",
                    "-q",
                    "-batch",
                    "-ex",
                    "set debuginfod enabled off",
                    "-ex",
                    "break leaf",
                    "-ex",
                    "run",
                    "-ex",
                    "backtrace",
                ])
                .args([
                    "-ex",
                    "finish",
                    "-ex",
                    "backtrace",
                    "-ex",
                    "delete",
                    "-ex",
                    "continue",
                ])
                .arg(made().path(name))
                .env("POSTLINK_PROFILE", made().path("gdb.plraw")),
        );
        let told = text(&output.stdout);
        for frame in ["#0", "leaf", "#1", "middle", "#2", "main"] {
            assert!(told.contains(frame), "{name}: no {frame} in gdb's\n{told}");
        }
        assert!(
            told.contains("exited normally"),
            "{name}: {told}\n{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn perf_names_the_moved_functions_that_it_sampled() {
    if !is_installed("perf") {
        return;
    }
    for name in ["pie.opt", "nopie.opt"] {
        let data = made().path(&format!("{name}.perf"));
        let record = Command::new("perf")
            .args(["record", "-q", "-e", "cpu-clock", "-F", "5000", "-o"])
            .arg(&data)
            .arg(made().path(name))
            .output()
            .expect("perf runs");
        if !record.status.success() {
            eprintln!(
                "SKIPPED: perf may not record here: {}",
                text(&record.stderr).lines().next().unwrap_or_default()
            );
            return;
        }
        let script = done(
            Command::new("perf")
                .args(["script", "-F", "sym,dso", "-i"])
                .arg(&data),
        );
        let told = text(&script.stdout);
        let ours: Vec<&str> = told.lines().filter(|line| line.contains(name)).collect();
        let named = ours
            .iter()
            .filter(|line| ["leaf", "middle", "main"].iter().any(|f| line.contains(f)))
            .count();
        assert!(
            ours.len() < 5 || named * 2 >= ours.len(),
            "{name}: {named} of {} samples are named:\n{told}",
            ours.len()
        );
    }
}

/// eu-elflint's complaints, without numbers, which differ from file to file.
fn complaints(file: &Path) -> BTreeSet<String> {
    let output = Command::new("eu-elflint")
        .args(["--gnu-ld"])
        .arg(file)
        .output()
        .expect("eu-elflint runs");
    let told = text(&output.stdout) + &text(&output.stderr);
    told.lines()
        .filter(|line| *line != "No errors")
        .map(|line| {
            // `section [12] '.x': …`
            let mut line = line.to_owned();
            while let (Some(a), Some(b)) = (line.find('['), line.find(']')) {
                if a > b {
                    break;
                }
                line.replace_range(a..=b, "");
            }
            line.chars().filter(|c| !c.is_ascii_digit()).collect()
        })
        .collect()
}

#[test]
fn eu_elflint_has_nothing_new_to_complain_of() {
    if !is_installed("eu-elflint") {
        return;
    }
    for name in FILES {
        let input = name.split('.').next().unwrap_or_default();
        let (before, after) = (
            complaints(&made().path(input)),
            complaints(&made().path(name)),
        );
        // It knows no notes but those of the GNU tools, and expects something writable in a segment besides
        // zero-filled pages, which is all that counters are.
        let known = |c: &String| {
            c.contains("note type")
                || name.ends_with(".inst") && c.contains("contains no writable sections")
        };
        let new: Vec<&String> = after.difference(&before).filter(|c| !known(c)).collect();
        assert!(new.is_empty(), "{name}: {new:#?}");
    }
}

/// Addresses that jumps in a function lead backwards to.
fn loop_heads(program: &Path, function: &str) -> BTreeSet<u64> {
    let listing = text(
        &done(
            Command::new("objdump")
                .args(["-d", "--no-show-raw-insn"])
                .arg(format!("--disassemble={function}"))
                .arg(program),
        )
        .stdout,
    );
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let jump = |line: &str| {
        let (addr, rest) = line.trim().split_once(':')?;
        let mut words = rest.split_whitespace();
        let is_jump = words.next()?.starts_with('j');
        let (from, to) = (hex(addr)?, hex(words.next()?)?);
        (is_jump && to < from).then_some(to)
    };
    listing.lines().filter_map(jump).collect()
}

#[test]
fn heads_of_hot_loops_are_aligned_where_asked_for() {
    if !is_installed("objdump") {
        return;
    }
    let made = made();
    for name in ["pie", "nopie"] {
        let out = made.path(&format!("{name}.aligned"));
        let input = made.path(name);
        done(
            Command::new(POSTLINK)
                .args([
                    "optimize",
                    "-q",
                    "--align-blocks",
                    "64",
                    "--align-functions",
                    "64",
                    "-p",
                ])
                .arg(made.path(&format!("{name}.plraw")))
                .args([input.as_path(), Path::new("-o"), out.as_path()]),
        );
        runs_as_before(&out);
        done(
            Command::new(POSTLINK)
                .args(["verify", "-q"])
                .args([&input, &out]),
        );
        let heads = loop_heads(&out, "main");
        assert!(
            heads.iter().any(|a| a % 64 == 0),
            "{name}: no head of a loop in main is aligned: {heads:x?}"
        );
        let plain = loop_heads(&made.path(&format!("{name}.opt")), "main");
        assert!(
            plain.iter().all(|a| a % 64 != 0),
            "{name}: the loop is aligned unasked, so this shows nothing: {plain:x?}"
        );
    }
}

/// What `objdump` shows of a symbol.
fn shown(program: &Path, symbol: &str) -> String {
    let output = done(
        Command::new("objdump")
            .args(["-d", "--no-show-raw-insn"])
            .arg(format!("--disassemble={symbol}"))
            .arg(program),
    );
    text(&output.stdout)
}

/// An exception reads the unwind tables of each function from their start to the place that it passes, and
/// again where its cleanup resumes it: after all of the hot part that was 5 % more instructions for a
/// program that throws much.
#[test]
fn cleanups_that_ran_are_not_behind_the_hot_part() {
    for name in ["pie", "nopie"] {
        let program = made().path(&format!("{name}.opt"));
        let resumes = |symbol: &str| shown(&program, symbol).contains("_Unwind_Resume");
        assert!(!resumes("middle"), "{name}: a cleanup is in the hot part");
        assert!(
            resumes("middle.cold.0"),
            "{name}: no cleanup is in the cold part"
        );
        runs_as_before(&program);
    }
}

/// The encoding of call sites in the exception table of the function at a symbol.
fn call_site_encoding(program: &Path, symbol: &str) -> u8 {
    use postlink_elf::elf::{Elf, SymbolTable};
    let data = std::fs::read(program).expect("it was just made");
    let elf = Elf::parse(&data).expect("it was just written");
    let mut symbols = elf.symbols(SymbolTable::Static).iter();
    let at = symbols
        .find(|s| s.name == symbol.as_bytes())
        .expect("it is in the source");
    let eh = postlink_elf::unwind::eh_frame::EhFrame::parse(&elf).expect("it was just written");
    let fde = eh.fdes.iter().find(|f| f.start == at.value);
    let lsda = fde.and_then(|f| f.lsda).expect("it cleans up");
    let bytes = elf.bytes_at(lsda, 12).expect("it has a table");
    let types = match bytes[0] {
        0xff => 1,
        _ => 5,
    };
    match bytes[types] {
        0xff => bytes[types + 1],
        _ => {
            let distance = bytes[types + 1..].iter().take_while(|b| **b >= 0x80);
            bytes[types + 2 + distance.count()]
        }
    }
}

/// LEB128 takes the personality routine twice as long: a program that throws much executed more instructions
/// when optimised than before.
#[test]
fn call_sites_of_what_was_thrown_through_have_numbers_of_fixed_size() {
    const ULEB128: u8 = 1;
    const UDATA2: u8 = 2;
    for name in ["pie", "nopie"] {
        for function in ["middle", "main"] {
            let before = call_site_encoding(&made().path(name), function);
            let after = call_site_encoding(&made().path(&format!("{name}.opt")), function);
            assert_eq!((before, after), (ULEB128, UDATA2), "{name}: {function}");
        }
    }
}

#[test]
fn the_size_preset_puts_cold_code_into_the_room_of_old_bodies() {
    let made = made();
    for name in ["pie", "nopie"] {
        let (input, small, plain) = (
            made.path(name),
            made.path(&format!("{name}.small")),
            made.path(&format!("{name}.opt")),
        );
        done(
            Command::new(POSTLINK)
                .args(["optimize", "-q", "--preset", "size", "-p"])
                .arg(made.path(&format!("{name}.plraw")))
                .args([input.as_path(), Path::new("-o"), small.as_path()]),
        );
        runs_as_before(&small);
        done(
            Command::new(POSTLINK)
                .args(["verify", "-q"])
                .args([&input, &small]),
        );
        if !is_installed("nm") {
            continue;
        }
        // Addresses of what was split off, against where the input's text ends.
        let cold = |file: &Path| -> Vec<u64> {
            let listing = text(&done(Command::new("nm").arg(file)).stdout);
            let split_off = |line: &&str| {
                line.rsplit_once(".cold.")
                    .is_some_and(|(_, n)| n.parse::<u32>().is_ok())
            };
            listing
                .lines()
                .filter(split_off)
                .filter_map(|l| u64::from_str_radix(l.split(' ').next()?, 16).ok())
                .collect()
        };
        let end = |file: &Path| {
            let listing = text(&done(Command::new("nm").arg(file)).stdout);
            let found = listing
                .lines()
                .find(|l| l.ends_with(" _fini") || l.ends_with(" _etext") || l.ends_with(" etext"));
            found
                .and_then(|l| u64::from_str_radix(l.split(' ').next()?, 16).ok())
                .expect("the linker or the C library defines one of them")
        };
        let end = end(&input);
        assert!(
            cold(&small).iter().any(|a| *a < end),
            "{name}: nothing cold lies in the old text before {end:#x}: {:x?}",
            cold(&small)
        );
        assert!(
            cold(&plain).iter().all(|a| *a > end),
            "{name}: {:x?}",
            cold(&plain)
        );
        let size = |file: &Path| std::fs::metadata(file).map_or(0, |m| m.len());
        assert!(
            size(&small) <= size(&plain),
            "{name}: {} bytes became {}",
            size(&plain),
            size(&small)
        );
    }
}

/// What damages outputs is for tests, which use the same crates.
#[test]
fn the_program_has_no_code_that_injects_faults() {
    if !is_installed("nm") {
        return;
    }
    let names = done(Command::new("nm").arg(env!("CARGO_BIN_EXE_postlink"))).stdout;
    let names = text(&names);
    let of = |module: &str| names.lines().filter(|line| line.contains(module)).count();
    assert!(of("postlink_verify5proof") > 0 || of("postlink_verify::proof") > 0);
    assert_eq!(
        of("postlink_verify6mutate") + of("postlink_verify7testing"),
        0
    );
}
