//! Jump tables of AArch64 programs without kept relocations that do not count from a place in the code: words that
//! count from the table itself, and addresses. They stay as they are; where they lead in old code, jumps to new code
//! are written, unless the jump is understood whole. So what they lead to is counted, and what is changed there is
//! found.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use postlink_verify::mutate::Kind;
use postlink_verify::{Options, verify};

mod support;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");
const ROOT: &str = "/usr/aarch64-linux-gnu";
const CASES: u64 = 6;
/// How often each case of each function is gone through.
const TIMES: u64 = 50;

const MAIN: &str = r#"
#include <stdio.h>
#define EACH(f) f(near) f(extended) f(unbounded) f(hoisted) f(addresses)
#define DECLARE(f) int f(unsigned, int);
EACH(DECLARE)
#define ADD(f) sum = sum * 3 + f(i % 6, i);
int main(void) {
  unsigned sum = 0;
  for (int i = 0; i < 300; i++) { EACH(ADD) }
  printf("%u\n", sum);
  return 0;
}
"#;

/// A function with its table, `table_NAME`; `form` puts its address into `x9`, and `load` what is jumped to into `x10`.
fn function(name: &str, check: bool, form: &str, load: &str, wide: bool) -> String {
    let entry = |i: u64| {
        if wide {
            format!(" .quad .L{name}{i}\n")
        } else {
            format!(" .word .L{name}{i} - table_{name}\n")
        }
    };
    let check = if check {
        format!(" cmp w0, #{}\n b.hi .L{name}\n", CASES - 1)
    } else {
        String::new()
    };
    let case = |i: u64| format!(".L{name}{i}:\n add w0, w1, #{}\n b .L{name}\n", 7 * i + 1);
    let cases: String = (0..CASES).map(case).collect();
    let entries: String = (0..CASES).map(entry).collect();
    let form = form.replace("TABLE", &format!("table_{name}"));
    let section = if wide {
        ".data.rel.ro, \"aw\""
    } else {
        ".rodata"
    };
    // Where the address is formed in front of the check, that is a branch to where it is loaded from.
    let (before, behind) = if name == "hoisted" {
        let again =
            format!("{form} mov w2, #2\n.L{name}again:\n subs w2, w2, #1\n b.eq .L{name}end\n");
        (again, String::new())
    } else {
        (String::new(), form)
    };
    let end = if name == "hoisted" {
        format!(".L{name}:\n b .L{name}again\n.L{name}end:\n")
    } else {
        format!(".L{name}:\n")
    };
    format!(
        ".text\n.p2align 4\n.globl {name}\n.type {name}, %function\n{name}:\n .cfi_startproc\n{before}{check}{behind}{load} br x10\n{cases}{end} ret\n .cfi_endproc\n .size {name}, .-{name}\n.section {section}\n.p2align 3\n.type table_{name}, %object\ntable_{name}:\n{entries}.size table_{name}, .-table_{name}\n"
    )
}

fn assembly() -> String {
    let two = " adrp x9, TABLE\n add x9, x9, :lo12:TABLE\n";
    let word = " ldrsw x10, [x9, w0, uxtw #2]\n add x10, x9, x10\n";
    let extended = " ldr w10, [x9, w0, uxtw #2]\n add x10, x9, w10, sxtw\n";
    let address = " ldr x10, [x9, w0, uxtw #3]\n";
    [
        function("near", true, two, word, false),
        function("extended", true, two, extended, false),
        function("unbounded", false, two, word, false),
        function("hoisted", true, two, word, false),
        function("addresses", true, two, address, true),
        ".section .note.GNU-stack, \"\", %progbits\n".to_owned(),
    ]
    .concat()
}

fn symbols(names: &str) -> BTreeMap<&str, u64> {
    let lines = names.lines().filter_map(|l| {
        let mut words = l.split(' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((words.nth(1)?, address))
    });
    lines.collect()
}

#[test]
fn what_words_and_addresses_lead_to_is_counted_and_faults_there_are_found() {
    let gcc = "aarch64-linux-gnu-gcc";
    if ![gcc, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    for kind in ["-pie", "-no-pie", "-static"] {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("main.c"), MAIN).expect("written");
        fs::write(at("part.s"), assembly()).expect("written");
        let mut compile = Command::new(gcc);
        compile.args(["-O2", kind, "-o", "app", "main.c", "part.s"]);
        done(compile.current_dir(folder.path()));
        let names = done(Command::new("aarch64-linux-gnu-nm").arg(at("app"))).stdout;
        let names = String::from_utf8(names).expect("text");
        let symbols = symbols(&names);
        let postlink = |arguments: &str| {
            let mut command = Command::new(POSTLINK);
            let arguments = arguments.split(' ');
            done(command.args(arguments).current_dir(folder.path())).stdout
        };
        let run = |name: &str| {
            let mut command = Command::new("qemu-aarch64");
            command.args(["-L", ROOT]).arg(at(name));
            // Counters of blocks are written to the current folder.
            command.current_dir(folder.path());
            done(command.env("POSTLINK_PROFILE", at("run.plraw"))).stdout
        };
        let expected = run("app");
        postlink("instrument app -o counting");
        assert_eq!(run("counting"), expected, "{kind}: while it counts");
        let shown = postlink("show run.plraw --binary app --json");
        let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
        for name in ["near", "extended", "unbounded", "hoisted", "addresses"] {
            let start = symbols[name];
            let mut functions = shown["functions"].as_array().expect("functions").iter();
            let function = functions.find(|f| f["address"] == start);
            let function = function.unwrap_or_else(|| panic!("{kind}: {name} counts"));
            let blocks = function["blocks"].as_array().expect("blocks");
            // Each case is two instructions, and the first is behind the jump.
            let counts: Vec<u64> = blocks.iter().filter_map(|b| b["count"].as_u64()).collect();
            let of_cases = counts.iter().filter(|c| **c == TIMES).count();
            assert!(of_cases as u64 >= CASES, "{kind}: {name}: {counts:?}");
        }
        postlink("optimize app -p run.plraw -o opt --move-all");
        assert_eq!(run("opt"), expected, "{kind}: optimised");
        let read = |name: &str| fs::read(at(name)).expect("a file");
        let (input, output) = (read("app"), read("opt"));
        let report = verify(&input, &output, &Options::default()).expect("both can be read");
        for name in ["near", "extended", "unbounded", "hoisted", "addresses"] {
            let moved = report.functions.iter().find(|f| f.old == symbols[name]);
            let moved = moved.unwrap_or_else(|| panic!("{kind}: {name} moved"));
            // Of three of them new code has a table of its own; `tests/own_tables_aarch64.rs` looks at such.
            let own = usize::from(["near", "extended", "addresses"].contains(&name));
            let numbers = (moved.tables.len(), moved.falls_back.len());
            assert_eq!(numbers, (own, 1 - own), "{kind}: {name}");
        }
        let kinds = [Kind::LabelJumpToWrongBlock, Kind::FallBackUnclaimed];
        let applied = support::faults::spoil(&input, &output, &kinds);
        assert_eq!(applied.len(), kinds.len(), "{kind}: {applied:?}");
        postlink("instrument app -o blocks --mode block-coverage");
        assert_eq!(run("blocks"), expected, "{kind}: blocks");
    }
}

/// What compilers write: a switch with words, and labels as values.
const COMPILED: &str = r#"
#include <stdio.h>
__attribute__((noinline, noipa)) int pick(int k, int x) {
  switch (k) {
  case 0: return x * 3; case 1: return x + 7; case 2: return x - 1; case 3: return x ^ 0x55; case 4: return x << 3;
  case 5: return -x; case 6: return x * x; case 7: return x / 7; case 8: return x & 31; default: return x;
  }
}
__attribute__((noinline, noipa)) int run(const unsigned char *code, int x) {
  static const void *const labels[] = {&&add, &&twice, &&less, &&turn, &&end};
  goto *labels[*code++];
add: x += 3; goto *labels[*code++];
twice: x *= 2; goto *labels[*code++];
less: x -= 5; goto *labels[*code++];
turn: x = ~x; goto *labels[*code++];
end: return x;
}
int main(void) {
  unsigned sum = 0;
  for (int i = 0; i < 700; i++) sum += pick(i % 11, i) + run((const unsigned char *)"\0\1\2\3\1\4" + i % 3, i);
  printf("%u\n", sum);
  return 0;
}
"#;

#[test]
fn switches_and_labels_of_compilers_are_counted_in_new_code() {
    let words = "-mllvm -aarch64-enable-compress-jump-tables=false";
    let clang = "clang-19 --target=aarch64-linux-gnu -fuse-ld=/usr/bin/ld.lld-19 -O2";
    for command in [
        format!("{clang} {words} -o app app.c"),
        format!("{clang} {words} -no-pie -o app app.c"),
        format!("{clang} -o app app.c"),
        "aarch64-linux-gnu-gcc -O2 -o app app.c".to_owned(),
        "aarch64-linux-gnu-gcc -O2 -no-pie -o app app.c".to_owned(),
    ] {
        let mut parts = command.split(' ');
        let compiler = parts.next().expect("a word");
        let lld = command.contains("lld") && !is_installed("/usr/bin/ld.lld-19");
        if lld || ![compiler, "qemu-aarch64"].into_iter().all(is_installed) {
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("app.c"), COMPILED).expect("written");
        done(
            Command::new(compiler)
                .args(parts)
                .current_dir(folder.path()),
        );
        let run = |name: &str| {
            let mut command = Command::new("qemu-aarch64");
            command.args(["-L", ROOT]).arg(at(name));
            done(command.env("POSTLINK_PROFILE", at("run.plraw"))).stdout
        };
        let postlink = |arguments: &str| {
            let mut command = Command::new(POSTLINK);
            let arguments = arguments.split(' ');
            done(command.args(arguments).current_dir(folder.path())).stdout
        };
        let expected = run("app");
        postlink("instrument app -o counting");
        assert_eq!(run("counting"), expected, "{command}");
        let shown = postlink("show run.plraw --binary app --json");
        let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
        for (name, at_least) in [("pick", 9), ("run", 5)] {
            let mut functions = shown["functions"].as_array().expect("functions").iter();
            let function = functions.find(|f| f["name"] == name).expect("it counts");
            let blocks = function["blocks"].as_array().expect("blocks").iter();
            let ran = blocks.filter(|b| b["count"].as_u64() > Some(0)).count();
            assert!(ran >= at_least, "{command}: {name}: {ran}");
        }
        postlink("optimize app -p run.plraw -o opt --move-all");
        assert_eq!(run("opt"), expected, "{command}");
    }
}
