//! Programs that make machine profiles, and what must be in these: compared with exact counts.

// Each test uses its own part.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postlink_mip::{Profile, mip};

/// Loops, a switch, calls through a pointer, a function that never runs, one that is called by threads' worth
/// of callers.
pub const PROGRAM: &str = "
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) static int work(int x) { int n = 0; while (x > 1) { x = x & 1 ? 3 * x + 1 : x / 2; n++; } return n; }
__attribute__((noinline)) int never(int x) { return x > 3 ? work(x) : -x; }
__attribute__((noinline)) int pick(int x) { switch (x & 7) { case 0: return 5; case 1: return x * 3; case 2: return work(x);
  case 3: return x ^ 9; case 4: return x - 9; default: return ~x; } }
__attribute__((noinline)) int deep(int x) { if (x == 0) return 1; if (x & 1) return deep(x - 1) + 1; return deep(x / 2) * 2 % 1000; }
int (*volatile pointer)(int) = pick;
int main(int argc, char **argv) {
  long sum = 0;
  for (int i = 1; i < 3000; i++) sum += work(i);
  for (int i = 0; i < 1000; i++) sum += pointer(i * 2);
  for (int i = 0; i < 50; i++) sum += deep(i);
  if (argc > 1) sum += never(argc);
  printf(\"%ld\\n\", sum);
  fflush(stdout);
  if (argc > 2) _exit(3);
  return 0;
}
";

/// A folder with a program `p`, which an emulator may have to run.
pub struct Folder(pub tempfile::TempDir, bool);

impl Folder {
    pub fn new() -> Folder {
        Folder::built(&[("p.c", PROGRAM)], "gcc -O2 -Wl,-q -o p p.c")
    }

    /// With a program `p` of these sources.
    pub fn built(sources: &[(&str, &str)], command: &str) -> Folder {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let folder = Folder(dir, command.contains("aarch64"));
        for (name, text) in sources {
            std::fs::write(folder.path(name), text).expect("the folder is ours");
        }
        let mut words = command.split(' ');
        let status = Command::new(words.next().unwrap_or_default())
            .args(words)
            .current_dir(folder.0.path())
            .status();
        assert!(status.is_ok_and(|status| status.success()), "{command}");
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn run(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Output {
        let ours = program.as_ref() == Path::new(env!("CARGO_BIN_EXE_postlink"));
        // All copies run under one name: it is on the stack, so where strings are there, and which blocks of
        // `strncmp` run, would depend on its length.
        let name = self.path("running");
        if !ours {
            let _ = std::fs::remove_file(&name);
            std::fs::hard_link(program.as_ref(), &name).expect("the folder is ours");
        }
        let mut command = match (ours, self.1) {
            (true, _) => Command::new(program.as_ref()),
            (false, false) => Command::new(&name),
            (false, true) => Command::new("qemu-aarch64"),
        };
        if self.1 && !ours {
            command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(&name);
        }
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("POSTLINK_PROFILE", "exact.plraw")
            .env("LLVM_MIP_PROFILE_FILENAME", "run.%h.mipraw")
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", program.as_ref().display()))
    }

    /// Another program, in the folder.
    pub fn tool(&self, tool: &str, arguments: &[&str]) {
        let status = Command::new(tool)
            .args(arguments)
            .current_dir(self.0.path())
            .status();
        assert!(status.is_ok_and(|s| s.success()), "{tool} {arguments:?}");
    }

    pub fn postlink(&self, arguments: &[&str]) -> String {
        let output = self.run(env!("CARGO_BIN_EXE_postlink"), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    /// Instruments, runs with each list of arguments, merges.
    pub fn profile(&self, mode: &str, runs: &[&[&str]]) -> Profile {
        let nth = std::cell::Cell::new(0);
        self.profile_by(mode, runs.len(), &|inst| {
            let arguments = runs[nth.replace(nth.get() + 1)];
            let plain = self.run(self.path("p"), arguments);
            let ours = self.run(self.path(inst), arguments);
            assert_eq!(plain.stdout, ours.stdout);
            assert_eq!(plain.status.code(), ours.status.code());
        })
    }

    /// The same with runs of any kind; `run` gets the file's name.
    pub fn profile_by(&self, mode: &str, runs: usize, run: &dyn Fn(&str)) -> Profile {
        let inst = format!("p.{mode}");
        self.postlink(&["instrument", "--mode", mode, "p", "-o", &inst]);
        let map = format!("{inst}.mipmap");
        let module = postlink_mip::create::open(&self.path(&map))
            .unwrap()
            .module_hash as u16;
        let raw = format!("run.{module:04x}.mipraw");
        let profile = format!("{mode}.mip");
        self.postlink(&["mip", "create", "-p", &profile, &map]);
        for _ in 0..runs {
            run(&inst);
            self.postlink(&["mip", "merge", "--strict", "-p", &profile, &raw]);
        }
        mip::open(&self.path(&profile)).unwrap()
    }

    /// Addresses of blocks that ran, and calls of functions by address, exactly.
    pub fn exact(&self, arguments: &[&str]) -> (BTreeSet<u64>, BTreeMap<u64, u64>) {
        self.postlink(&["instrument", "p", "-o", "p.exact"]);
        self.run(self.path("p.exact"), arguments);
        self.read_exact()
    }

    /// The same, once the copy has run.
    pub fn read_exact(&self) -> (BTreeSet<u64>, BTreeMap<u64, u64>) {
        let text = self.postlink(&["show", "exact.plraw", "--binary", "p", "--json"]);
        let counts: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut blocks = BTreeSet::new();
        let mut calls = BTreeMap::new();
        for f in counts["functions"].as_array().unwrap() {
            let number = |v: &serde_json::Value, key: &str| v[key].as_u64().unwrap();
            calls.insert(number(f, "address"), number(f, "entries"));
            for b in f["blocks"].as_array().unwrap() {
                if number(b, "count") > 0 {
                    blocks.insert(number(b, "address"));
                }
            }
        }
        (blocks, calls)
    }
}

/// All modes against exact counts of a run with these arguments. Gives the names of the functions in each
/// mode's profile.
pub fn compare(folder: &Folder, arguments: &[&str], what: &str) -> Vec<BTreeSet<String>> {
    let _ = std::fs::remove_file(folder.path("exact.plraw"));
    let (blocks, calls) = folder.exact(arguments);
    let mut compared = vec![];
    let modes = [
        "function-coverage",
        "block-coverage",
        "call-graph",
        "call-edges",
    ];
    for mode in &modes {
        for raw in std::fs::read_dir(folder.0.path()).unwrap().flatten() {
            if raw.path().extension().is_some_and(|e| e == "mipraw") {
                std::fs::remove_file(raw.path()).unwrap();
            }
        }
        let profile = folder.profile(mode, &[arguments]);
        let mut names = BTreeSet::new();
        for f in &profile.functions {
            let name = f.display_name();
            names.insert(name.to_string());
            // What Rust's library does with the program's own name and its place on the stack differs from run to run.
            if what.starts_with("rustc") && !name.contains("4main") {
                continue;
            }
            // Where unwind entries are registered they are sorted, and a copy that was emitted anew has others.
            let own = name.starts_with("_Z") || name == "main";
            if what.contains("++") && what.contains("-static ") && !own {
                continue;
            }
            // It has second entries in libc, and control that enters through one is an entry in exact counts alone.
            if name == "setjmp" {
                continue;
            }
            // Those of glibc for x86-64 that copy are several names for parts of one body; what others for strings do
            // depends on where these are.
            if ["_unaligned", "_evex", "_avx", "_sse"]
                .iter()
                .any(|part| name.contains(part))
            {
                continue;
            }
            // Start-up code without a size counts here, and cannot be counted exactly.
            let Some(exact) = calls.get(&(f.address as u64)).copied() else {
                assert!(
                    !(f.is_covered() && name.contains("nobody")),
                    "{what}: {mode} {name}"
                );
                continue;
            };
            assert_eq!(f.is_covered(), exact > 0, "{what}: {mode} {name}");
            if mode.starts_with("call") {
                assert_eq!(f.call_count, exact, "{what}: {mode} {name}");
            }
            if *mode == "block-coverage" {
                for b in f.all_blocks() {
                    let address = (f.address + i64::from(b.offset as i32)) as u64;
                    assert_eq!(
                        b.covered,
                        blocks.contains(&address),
                        "{what}: {name} at {address:#x} with {arguments:?}"
                    );
                }
            }
        }
        compared.push(names);
    }
    compared
}

/// A template and an inline function in both files, local functions of one name, a hidden one, exceptions,
/// virtual calls, and a function that nobody calls.
pub const CPP_MAIN: &str = "
#include <cstdio>
#include <stdexcept>
#include <vector>
struct Shape { virtual int area() const = 0; virtual ~Shape() {} };
struct Square : Shape { int a; Square(int a) : a(a) {} __attribute__((noinline)) int area() const override { return a * a; } };
struct Strip : Shape { int a; Strip(int a) : a(a) {} __attribute__((noinline)) int area() const override { return a * 3; } };
template<class T> __attribute__((noinline)) T twice(T x) { return x > 3 ? x * 2 : x + 1; }
inline __attribute__((noinline)) int shared(int x) { return twice(x) ^ 5; }
__attribute__((noinline)) static int same(int x) { return x % 7; }
int other(int x);
__attribute__((noinline, visibility(\"hidden\"))) int hidden(int x) { if (x % 9 == 8) throw std::runtime_error(\"nine\"); return same(x); }
__attribute__((noinline)) int nobody_calls_this(int x) { return x * 77 + same(x); }
int main(int argc, char **) {
  std::vector<Shape *> shapes;
  for (int i = 0; i < 40; i++) { if (i % 3) shapes.push_back(new Square(i)); else shapes.push_back(new Strip(i)); }
  long sum = 0;
  for (Shape *s : shapes) { sum += s->area(); delete s; }
  for (int i = 0; i < 100; i++) try { sum += hidden(i) + other(i) + shared(i) + twice(i); } catch (std::exception &e) { sum += 1000; }
  if (argc > 9) sum += nobody_calls_this(argc);
  printf(\"%ld\\n\", sum);
}
";
pub const CPP_OTHER: &str = "
template<class T> __attribute__((noinline)) T twice(T x) { return x > 3 ? x * 2 : x + 1; }
inline __attribute__((noinline)) int shared(int x) { return twice(x) ^ 5; }
__attribute__((noinline)) static int same(int x) { return x % 11; }
__attribute__((noinline)) int nobody_calls_this_either(int x) { return same(x) * 3; }
int other(int x) { int n = 0; for (int i = 0; i < x; i++) n += same(shared(i)); return n; }
";

pub fn have(tool: &str, what: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        eprintln!("SKIPPED: {tool} is not installed: {what} is not tested");
    }
    there
}

/// Functions that are called directly, every other one by a pointer as well: the stubs of two hundred do not
/// fit into one hole.
pub fn many_functions(count: usize) -> String {
    let mut text = "#include <stdio.h>\n".to_owned();
    for i in 0..count {
        text += &format!(
            "__attribute__((noinline)) int f{i}(int *x) {{ int y[40]; for (int k = 0; k < 40; k++) y[k] = x[k % 4] + {i}; return printf(\"\") + y[x[1] & 31]; }}\n"
        );
    }
    text += "int (*all[])(int *) = {";
    for i in (0..count).step_by(2) {
        text += &format!("f{i},");
    }
    text += "};\nint main(void) { int x[4] = {1, 2, 3, 4}, sum = 0;\n";
    for i in 0..count {
        text += &format!("sum += f{i}(x);\n");
    }
    text + "for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sum += all[i](x);\nprintf(\"%d\\n\", sum); return 0; }\n"
}

/// Holds what is said of stubs for unwinding against where they are: at the first instruction of each place
/// what holds when a function is entered, between the old code and the stubs and between them nothing. Gives
/// the number of places, and of rows that say something else than at an entry.
pub fn frames_of_stubs(folder: &Folder, mode: &str) -> (usize, usize) {
    use postlink_elf::unwind::eh_frame::EhFrame;
    use postlink_elf::unwind::pointer::Bases;
    use postlink_elf::unwind::rows::{RegRule, initial_row, rows};
    folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
    let data = std::fs::read(folder.path("p.inst")).unwrap();
    let elf = postlink_elf::elf::Elf::parse(&data).unwrap();
    let (_, section) = elf
        .section(".eh_frame.entries")
        .expect("stubs are described");
    let bytes = elf.section_data(section);
    let eh = EhFrame::parse_section(bytes, section.addr, Bases::default()).unwrap();
    let [fde] = &eh.fdes[..] else {
        panic!("{} entries", eh.fdes.len())
    };
    let cie = &eh.cies[fde.cie];
    let (initial, list) = (initial_row(cie).unwrap(), rows(cie, fde).unwrap());
    let row_at = |addr: u64| {
        let k = list.partition_point(|(offset, _)| fde.start + offset <= addr);
        list[k - 1].1.clone()
    };
    let ra = cie.ra_register as u16;
    let ends = |addr: u64| row_at(addr).registers.contains(&(ra, RegRule::Undefined));
    let mut places: Vec<(u64, u64)> = elf
        .sections
        .iter()
        .filter(|s| s.name.starts_with(".text.entries"))
        .map(|s| (s.addr, s.addr + s.size))
        .collect();
    places.sort_unstable();
    // Behind the stubs are the routines that they call, if they call any.
    let (last, end) = (places.last().unwrap().1, fde.start + fde.len);
    let routines = |s: &postlink_elf::elf::Section<'_>| {
        s.flags & postlink_elf::raw::SHF_EXECINSTR != 0 && (s.addr..=s.addr + s.size).contains(&end)
    };
    assert!(
        end == last || end > last && elf.sections.iter().any(routines),
        "{end:#x} {last:#x}"
    );
    let mut other = 0;
    for &(from, to) in &places {
        assert_eq!(row_at(from), initial, "at {from:#x}");
        assert!(ends(from - 1), "in front of {from:#x}");
        // But for the stub of `_start`, after which there is nothing: a counter and what was taken from it.
        let end_there = (from..to).filter(|a| ends(*a)).count();
        assert!(end_there <= 64, "{end_there} bytes from {from:#x} on");
        other += (from..to).filter(|a| row_at(*a) != initial).count();
    }
    // The last entry of the search table names it.
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    let table = elf
        .segments
        .iter()
        .find(|s| s.kind == PT_GNU_EH_FRAME)
        .unwrap();
    let count = u64::from(u32::from_le_bytes(
        elf.bytes_at(table.addr + 8, 4).unwrap().try_into().unwrap(),
    ));
    let word = |at: u64| i32::from_le_bytes(elf.bytes_at(at, 4).unwrap().try_into().unwrap());
    let last = table.addr + 12 + (count - 1) * 8;
    let named = |at: u64| table.addr.wrapping_add_signed(word(at).into());
    assert_eq!((named(last), named(last + 4)), (fde.start, fde.addr));
    (places.len(), other)
}

/// Of so many calls the first and every 64th after it are noted.
pub fn sampled(calls: u64) -> u64 {
    calls.checked_sub(1).map_or(0, |more| 1 + more / 64 * 64)
}

/// Of [`PROGRAM`]: the sampled callers of a function that one other calls, 1000 times, and of one that two call. The
/// first call counts, and every 64th for 64.
pub fn named_callers(profile: &Profile, what: &str) {
    let find = |name: &str| {
        let found = profile.functions.iter().find(|f| f.name == name.as_bytes());
        found.unwrap_or_else(|| panic!("{what}: no function {name}"))
    };
    for (callee, callers, least) in [
        ("pick", &["main"][..], 961),
        ("work", &["main", "pick"], 3200),
    ] {
        let edges = &find(callee).edges;
        let from = |edge: &postlink_mip::Edge| {
            callers.iter().any(|caller| {
                let caller = find(caller);
                let start = caller.address;
                (start..=start + i64::from(caller.size)).contains(&edge.source)
            })
        };
        let all = !edges.is_empty() && edges.iter().all(from);
        assert!(all, "{what}: {callee}: {edges:?}");
        let weight: u64 = edges.iter().map(|e| e.weight).sum();
        let count = find(callee).call_count;
        let fits = (least..=count + 63).contains(&weight);
        assert!(fits, "{what}: {callee}: {weight} of {count}");
    }
}
