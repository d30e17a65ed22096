//! Machine profiles from one end to the other: instrumented after linking, run, merged, compared with exact
//! counts, optimised by.

use std::collections::BTreeMap;
use std::process::Command;

mod counted;
use counted::{
    CPP_MAIN, CPP_OTHER, Folder, PROGRAM, compare, frames_of_stubs, have, many_functions,
    named_callers,
};

#[test]
fn coverage_and_calls_are_those_of_exact_counts() {
    let folder = Folder::new();
    // Leaving by _exit loses nothing: the counters are the file.
    for arguments in [&[][..], &["x"], &["x", "y"]] {
        let compared = compare(&folder, arguments, "C");
        assert!(compared.iter().all(|names| names.len() > 4));
    }
}

const RUST: &str = "
use std::collections::BTreeMap;
trait Animal { fn legs(&self) -> u32; }
struct Cat; struct Bird(u32);
impl Animal for Cat { #[inline(never)] fn legs(&self) -> u32 { 4 } }
impl Animal for Bird { #[inline(never)] fn legs(&self) -> u32 { self.0 % 3 } }
#[inline(never)] fn parse(text: &str) -> Result<u32, std::num::ParseIntError> { text.parse() }
#[inline(never)] fn collatz(mut x: u64) -> u32 { let mut n = 0; while x > 1 { x = if x % 2 == 0 { x / 2 } else { 3 * x + 1 }; n += 1; } n }
fn main() {
    let zoo: Vec<Box<dyn Animal>> = (0..30).map(|i| if i % 2 == 0 { Box::new(Cat) as Box<dyn Animal> } else { Box::new(Bird(i)) }).collect();
    let legs: u32 = zoo.iter().map(|a| a.legs()).sum();
    let mut map = BTreeMap::new();
    for i in 1..200u64 { *map.entry(collatz(i)).or_insert(0u32) += 1; }
    let caught = std::panic::catch_unwind(|| parse(\"12x\").unwrap()).is_err();
    println!(\"{legs} {} {caught} {:?}\", map.len(), parse(\"34\"));
}
";

#[test]
fn programs_in_cpp_and_rust_in_sections_and_by_link_time_optimisation_are_counted_exactly() {
    let cpp = [("main.cc", CPP_MAIN), ("other.cc", CPP_OTHER)];
    let files = "-Wl,-q -o p main.cc other.cc";
    let lld = "-fuse-ld=/usr/bin/ld.lld-19";
    for (command, needs) in [
        (format!("g++ -O2 {files}"), "g++"),
        (
            format!("g++ -O1 -fno-inline -ffunction-sections -Wl,--gc-sections {files}"),
            "g++",
        ),
        (
            // gold fails with an internal error where it is to drop sections and keep relocations.
            format!("g++ -O1 -fuse-ld=gold -ffunction-sections {files}"),
            "ld.gold",
        ),
        (format!("g++ -O2 -flto -fvisibility=hidden {files}"), "g++"),
        (
            format!("clang++-19 -O2 {lld} -ffunction-sections -Wl,--gc-sections {files}"),
            "clang++-19",
        ),
        (format!("clang++-19 -O2 {lld} -flto {files}"), "clang++-19"),
        (
            format!("clang++-19 -O2 {lld} -flto=thin {files}"),
            "clang++-19",
        ),
    ] {
        if !have(needs, &command)
            || command.contains("lld") && !have("/usr/bin/ld.lld-19", &command)
        {
            continue;
        }
        let folder = Folder::built(&cpp, &command);
        for names in compare(&folder, &[], &command) {
            assert!(names.contains("main"), "{command}: {names:?}");
            let dropped = command.contains("gc-sections") || command.contains("flto");
            let unused = names.iter().any(|name| name.contains("either"));
            assert_ne!(dropped, unused, "{command}: {names:?}");
        }
    }
    let command = "rustc -O -Clink-arg=-Wl,-q -o p main.rs";
    let folder = Folder::built(&[("main.rs", RUST)], command);
    for names in compare(&folder, &[], command) {
        for part in ["collatz", "parse", "legs"] {
            assert!(names.iter().any(|name| name.contains(part)), "{names:?}");
        }
    }
}

/// Static programs of GCC register their unwind entries at the start, those of musl have none that anybody looks for:
/// in neither can a search table say where stubs are.
#[test]
fn calls_of_programs_without_a_search_table_are_counted_exactly() {
    let cpp = [("main.cc", CPP_MAIN), ("other.cc", CPP_OTHER)];
    let c = [("p.c", PROGRAM)];
    let all: [(&str, &[(&str, &str)]); 5] = [
        ("gcc -O2 -static -Wl,-q -o p p.c", &c),
        ("gcc -O2 -static-pie -fPIE -Wl,-q -o p p.c", &c),
        ("musl-gcc -O2 -static -Wl,-q -o p p.c", &c),
        ("musl-gcc -O0 -static -Wl,-q -o p p.c", &c),
        ("g++ -O2 -static -Wl,-q -o p main.cc other.cc", &cpp),
    ];
    for (command, sources) in all {
        let compiler = command.split(' ').next().unwrap_or_default();
        if !have(compiler, command) {
            continue;
        }
        let folder = Folder::built(sources, command);
        for names in compare(&folder, &[], command) {
            assert!(names.contains("main"), "{command}: {names:?}");
        }
        if command.contains("p.c") {
            let profile = folder.profile("call-edges", &[&[]]);
            named_callers(&profile, command);
        }
    }
}

/// Where the linker kept no relocations: those of functions whose old entry leads to the counter are counted, as all of
/// these do.
#[test]
fn programs_as_distributions_link_them_are_counted_exactly() {
    let cpp = [("main.cc", CPP_MAIN), ("other.cc", CPP_OTHER)];
    let lld = "-fuse-ld=/usr/bin/ld.lld-19";
    for (command, sources, expected) in [
        (
            "gcc -O2 -o p p.c".to_owned(),
            &[("p.c", PROGRAM)][..],
            &["main"][..],
        ),
        (
            "gcc -O2 -no-pie -s -o p p.c".to_owned(),
            &[("p.c", PROGRAM)],
            &[],
        ),
        (
            "g++ -O2 -fstack-protector-strong -o p main.cc other.cc".to_owned(),
            &cpp,
            &["main", "_Z5otheri"],
        ),
        (
            format!("clang++-19 -O2 {lld} -o p main.cc other.cc"),
            &cpp,
            &["main", "_Z5otheri"],
        ),
        (
            "rustc -O -o p main.rs".to_owned(),
            &[("main.rs", RUST)],
            &["main"],
        ),
    ] {
        let compiler = command.split(' ').next().unwrap_or_default();
        if !have(compiler, &command)
            || command.contains("lld") && !have("/usr/bin/ld.lld-19", &command)
        {
            continue;
        }
        let folder = Folder::built(sources, &command);
        for names in compare(&folder, &[], &command) {
            assert!(names.len() > 2, "{command}: {names:?}");
            for name in expected {
                assert!(
                    names.contains(*name),
                    "{command}: {name} is not in {names:?}"
                );
            }
        }
    }
}

#[test]
fn block_coverage_does_without_counters_for_some_blocks() {
    let folder = Folder::new();
    let profile = folder.profile("block-coverage", &[]);
    let counted: usize = profile.functions.iter().map(|f| f.blocks.len() + 1).sum();
    let all: usize = profile.functions.iter().map(|f| f.block_count()).sum();
    assert!(counted < all, "{counted} of {all}");
}

#[test]
fn first_calls_are_in_order() {
    let folder = Folder::new();
    let profile = folder.profile("call-graph", &[&[], &[]]);
    let of = |name: &str| {
        let found = profile.functions.iter().find(|f| f.name == name.as_bytes());
        found.unwrap_or_else(|| panic!("no function {name}"))
    };
    let [main, work, pick, deep] = ["main", "work", "pick", "deep"].map(of);
    for (first, second) in [(main, work), (work, pick), (pick, deep)] {
        assert!(first.order_sum < second.order_sum);
    }
    assert_eq!(profile.traces.len(), 1, "both runs had the same order");
    assert_eq!(profile.traces[0].weight, 2);
}

#[test]
fn a_raw_of_another_build_is_refused() {
    let folder = Folder::new();
    folder.profile("function-coverage", &[&[]]);
    folder.postlink(&["instrument", "--mode", "call-graph", "p", "-o", "p.calls"]);
    folder.postlink(&["mip", "create", "-p", "calls.mip", "p.calls.mipmap"]);
    let raw = std::fs::read_dir(folder.0.path())
        .unwrap()
        .flatten()
        .find(|entry| entry.path().extension().is_some_and(|e| e == "mipraw"))
        .expect("a run has written one");
    let raw = raw.path();
    let output = folder.run(
        env!("CARGO_BIN_EXE_postlink"),
        &["mip", "merge", "-p", "calls.mip", raw.to_str().unwrap()],
    );
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the module hash is"), "{said}");
}

#[test]
fn a_program_is_optimised_by_a_machine_profile() {
    let folder = Folder::new();
    for (mode, splits) in [("block-coverage", true), ("call-graph", false)] {
        folder.profile(mode, &[&[]]);
        let profile = format!("{mode}.mip");
        let said = folder.postlink(&["optimize", "p", "-p", &profile, "-o", "p.opt", "--json"]);
        let account: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(
            account["optimize"]["moved"].as_u64().unwrap() >= 4,
            "{said}"
        );
        assert_eq!(
            account["optimize"]["cold_bytes"].as_u64().unwrap() > 0,
            splits,
            "{said}"
        );
        for arguments in [&[][..], &["x"], &["x", "y"]] {
            let plain = folder.run(folder.path("p"), arguments);
            let ours = folder.run(folder.path("p.opt"), arguments);
            assert_eq!((plain.stdout, plain.status), (ours.stdout, ours.status));
        }
    }
}

/// What may leave by `longjmp` is called three times, and what is between the calls ran.
const LEAVING: &str = r#"
#include <setjmp.h>
#include <stdio.h>
static jmp_buf out;
static volatile int sum;
__attribute__((noinline)) static void step(int x) { if (x > 100) longjmp(out, 1); sum += x; }
void (*volatile stepper)(int) = step;
__attribute__((noinline)) int work(int x, int y) {
    stepper(x);
    sum ^= y * 3; stepper(y);
    sum ^= x * 5; stepper(x + y);
    return sum ^= x - y;
}
int main(int argc, char **argv) {
    if (setjmp(out)) { puts("left"); return 1; }
    for (int i = 0; i < 10; i++) work(i, argc);
    printf("%d\n", sum);
    if (argc > 3) work(1000, 1);
    return 0;
}
"#;

#[test]
fn what_follows_a_call_in_a_block_needs_no_counter_and_is_not_cold() {
    let folder = Folder::built(&[("main.c", LEAVING)], "gcc -O1 -Wl,-q -o p main.c");
    folder.profile("block-coverage", &[&[]]);
    let shown = folder.postlink(&["mip", "show", "-p", "block-coverage.mip"]);
    let listed = shown.lines().skip_while(|line| *line != "work");
    let of_work: Vec<&str> = listed.take_while(|line| !line.is_empty()).collect();
    assert_eq!(
        of_work,
        ["work", "  Call Count: 1"],
        "it is one block: {shown}"
    );
    folder.postlink(&["optimize", "p", "-p", "block-coverage.mip", "-o", "p.opt"]);
    let data = std::fs::read(folder.path("p.opt")).unwrap();
    let elf = postlink_elf::elf::Elf::parse(&data).unwrap();
    let table = postlink_elf::elf::SymbolTable::Static;
    let names: Vec<Vec<u8>> = elf.symbols(table).iter().map(|s| s.name.to_vec()).collect();
    let of = |name: &[u8]| names.iter().filter(|n| n.starts_with(name)).count();
    assert!(
        of(b"work") >= 1 && of(b"work.cold") == 0,
        "a part of it moved away"
    );
    assert!(of(b"main.cold") == 1, "what did not run did not");
}

#[test]
fn counters_at_entries_are_proved_and_what_is_changed_in_them_is_found() {
    let folder = Folder::new();
    let input = std::fs::read(folder.path("p")).unwrap();
    let proved = |output: &[u8]| {
        let report = postlink_verify::verify(&input, output, &postlink_verify::Options::default());
        report.map_err(|e| e.to_string()).and_then(|report| {
            if report.is_proved() {
                Ok(report.retargeted)
            } else {
                Err(format!("{:?}", report.file_failures))
            }
        })
    };
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
        let output = std::fs::read(folder.path("p.inst")).unwrap();
        assert!(proved(&output).unwrap() > 0, "{mode}");
        // Old code is at the same offsets in both files.
        let elf = postlink_elf::elf::Elf::parse(&input).unwrap();
        let (_, text) = elf.section(".text").unwrap();
        let (from, to) = (
            text.offset as usize,
            text.end() as usize - text.addr as usize + text.offset as usize,
        );
        let changed: Vec<usize> = (from..to).filter(|&i| input[i] != output[i]).collect();
        assert!(!changed.is_empty(), "{mode}");
        let mut tried = 0;
        for i in changed {
            // Which of the counters is written to does not matter for what the program does.
            if (2..6).any(|k| output[i - k..].starts_with(&[0xc6, 0x05])) {
                continue;
            }
            tried += 1;
            let mut damaged = output.clone();
            damaged[i] ^= 0x24;
            assert!(
                proved(&damaged).is_err(),
                "{mode}: a change at {i:#x} was not found"
            );
        }
        assert!(tried > 3, "{mode}: {tried}");
    }
}

/// In sqlite's library and in redis, jumps at entries end in the middle of instructions, and the table of
/// hashes makes space for program headers.
#[test]
fn an_entry_jump_that_ends_within_an_instruction_is_proved() {
    let folder = Folder::new();
    let source = "int key(int a) { return a & 7; }\nint go(int a, int b) { int k = key(a); return k ? k : b; }\n";
    std::fs::write(folder.path("lib.c"), source).unwrap();
    let flags = [
        "-O1",
        "-fPIC",
        "-shared",
        "-falign-functions=1",
        "-fcf-protection=none",
        "-Wl,-q",
        "lib.c",
        "-o",
        "lib.so",
    ];
    let built = Command::new("gcc")
        .args(flags)
        .current_dir(folder.path(""))
        .status()
        .unwrap();
    assert!(built.success());
    let input = std::fs::read(folder.path("lib.so")).unwrap();
    // push %rbx; mov %esi,%ebx; call
    let entry = [0x53, 0x89, 0xf3, 0xe8];
    let at = input
        .windows(4)
        .position(|bytes| bytes == entry)
        .expect("gcc begins it so");
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        folder.postlink(&["instrument", "--mode", mode, "lib.so", "-o", "lib.inst"]);
        let output = std::fs::read(folder.path("lib.inst")).unwrap();
        assert_eq!(output[at], 0xe9, "{mode}: there is a jump at the entry");
        let report =
            postlink_verify::verify(&input, &output, &postlink_verify::Options::default()).unwrap();
        assert!(report.is_proved(), "{mode}: {:?}", report.file_failures);
    }
}

/// Programs that export their functions have many that cannot be entered elsewhere: whoever calls them should
/// not pay for two jumps.
#[test]
fn calls_of_functions_with_an_entry_jump_go_straight_to_the_stub() {
    let folder = Folder::built(
        &[("p.c", PROGRAM)],
        "gcc -O2 -rdynamic -falign-functions=1 -Wl,-q -o p p.c",
    );
    let input = std::fs::read(folder.path("p")).unwrap();
    let elf = postlink_elf::elf::Elf::parse(&input).unwrap();
    let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
    let find = |name: &str| {
        let found = symbols.iter().find(|s| s.name == name.as_bytes());
        found.map(|s| (s.value, s.size)).unwrap()
    };
    let ((deep, _), (main, size)) = (find("deep"), find("main"));
    let (_, text) = elf.section(".text").unwrap();
    let at = |address: u64| (address - text.addr + text.offset) as usize;
    let calls = |file: &[u8], target: u64| {
        (main..main + size - 5)
            .filter(|&a| {
                let field = &file[at(a)..at(a) + 5];
                let to = i32::from_le_bytes([field[1], field[2], field[3], field[4]]);
                matches!(field[0], 0xe8 | 0xe9) && (a + 5).wrapping_add_signed(to.into()) == target
            })
            .count()
    };
    assert!(calls(&input, deep) > 0);
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
        let output = std::fs::read(folder.path("p.inst")).unwrap();
        let entry = at(deep);
        assert!(
            output[entry] == 0xe9 || output[entry + 4] == 0xe9,
            "{mode}: there is a jump at the entry"
        );
        assert_eq!(calls(&output, deep), 0, "{mode}");
        let proved = |output: &[u8]| {
            let options = postlink_verify::Options::default();
            postlink_verify::verify(&input, output, &options).is_ok_and(|report| report.is_proved())
        };
        assert!(proved(&output), "{mode}");
        // A call into the middle of the stub would not count, or do something else.
        let call = (main..main + size - 5)
            .map(at)
            .find(|&i| {
                input[i] == 0xe8 && output[i] == 0xe8 && input[i + 1..i + 5] != output[i + 1..i + 5]
            })
            .expect("a call that changed");
        let mut damaged = output.clone();
        damaged[call + 1] = damaged[call + 1].wrapping_add(7);
        assert!(!proved(&damaged), "{mode}");
    }
    compare(&folder, &["a"], "-rdynamic");
}

/// What moves leaves space for what moves.
#[test]
fn stubs_in_two_places_are_described_for_unwinding() {
    let folder = Folder::built(&[("p.c", &many_functions(200))], "gcc -O1 -Wl,-q -o p p.c");
    let (places, other) = frames_of_stubs(&folder, "call-graph");
    assert_eq!(places, 2);
    assert!(other > 0, "some instructions were overwritten");
    let names = compare(&folder, &[], "many functions");
    assert!(names.iter().all(|n| n.contains("f199")));
}

#[test]
fn an_unwind_entry_alone_in_a_hole_is_proved() {
    let mut alone = 0;
    for count in (100..240).step_by(10) {
        let command = "gcc -O1 -rdynamic -Wl,-q -o p p.c";
        let folder = Folder::built(&[("p.c", &many_functions(count))], command);
        folder.postlink(&["instrument", "--mode", "call-graph", "p", "-o", "p.inst"]);
        let data = std::fs::read(folder.path("p.inst")).unwrap();
        let elf = postlink_elf::elf::Elf::parse(&data).unwrap();
        let (_, entries) = elf.section(".eh_frame.entries").unwrap();
        let only_read = postlink_elf::raw::PF_R;
        alone += usize::from(elf.load_at(entries.addr).unwrap().flags == only_read);
    }
    assert!(alone > 0, "it never lay in a segment without code");
}

#[test]
fn code_of_block_coverage_lies_in_old_bodies_and_is_proved() {
    // Functions of all sizes.
    let many: String = (1..200)
        .map(|n| {
            let steps: String = (0..n % 30)
                .map(|k| format!("if (x & {}) x = x * 3 + {k}; ", 1 << (k % 20)))
                .collect();
            format!(
                "__attribute__((noinline)) int f{n}(int x) {{ {steps}return x + f{}(x / 2); }}\n",
                n - 1
            )
        })
        .collect();
    let source = format!(
        "#include <stdio.h>\n__attribute__((noinline)) int f0(int x) {{ return x; }}\n{many}\
         int main(int argc, char **argv) {{ printf(\"%d\\n\", f199(argc * 77)); return 0; }}\n"
    );
    let folder = Folder::built(&[("p.c", &source)], "gcc -O1 -Wl,-q -o p p.c");
    compare(&folder, &["a", "b"], "many functions");
    let instrument = |more: &[&str]| {
        let arguments = [&["instrument", "p", "-o", "p.inst"], more].concat();
        folder.postlink(&arguments);
        std::fs::read(folder.path("p.inst")).unwrap()
    };
    let output = instrument(&["--mode", "block-coverage"]);
    let input = std::fs::read(folder.path("p")).unwrap();
    let report =
        postlink_verify::verify(&input, &output, &postlink_verify::Options::default()).unwrap();
    assert!(report.is_proved() && report.proved >= 200);
    let functions = |file: &[u8]| -> BTreeMap<Vec<u8>, u64> {
        let elf = postlink_elf::elf::Elf::parse(file).unwrap();
        let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
        let own = symbols
            .iter()
            .filter(|s| s.kind == 2 && s.name.starts_with(b"f"));
        own.map(|s| (s.name.to_vec(), s.value)).collect()
    };
    let elf = postlink_elf::elf::Elf::parse(&input).unwrap();
    let (_, text) = elf.section(".text").unwrap();
    let (before, after) = (functions(&input), functions(&output));
    let in_old_code = after
        .iter()
        .filter(|(name, at)| (text.addr..text.end()).contains(at) && before.get(*name) != Some(at))
        .count();
    assert!(in_old_code > 50, "{in_old_code}");
    // All modes may be proved before they are written.
    for mode in [
        "function-coverage",
        "block-coverage",
        "call-graph",
        "call-edges",
    ] {
        instrument(&["--mode", mode]);
    }
}
