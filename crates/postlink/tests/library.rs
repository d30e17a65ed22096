//! Functions of a C library that is linked into the program: calls of them come back, and cost no counter
//! after them. A function of the program's own that bears such a name may do anything, and what follows its
//! calls is counted.

use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_isa::x86_64::X86_64;
use postlink_rewrite::{NonlocalExits, Program};
use serde_json::Value;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// `log` leaves by `longjmp` for every third number.
const SOURCE: &str = r#"
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static jmp_buf out;
__attribute__((noipa)) void log(int n) { if (n % 3 == 0) longjmp(out, 1); }
__attribute__((noipa)) int logs(int n) { log(n); return n + 1; }
__attribute__((noipa)) int copies(const char *s, size_t n) {
  char *p = malloc(n + 1);
  memcpy(p, s, n);
  p[n] = 0;
  int sum = atoi(p) + (int)strlen(p);
  free(p);
  return sum;
}
int main(int argc, char **argv) {
  volatile int i = 0, sum = 0;
  if (setjmp(out)) sum += 100;
  while (i < 30) sum += logs(i++);
  printf("%d\n", sum + copies("1234", argc + 2));
  return 0;
}
"#;

#[test]
fn calls_of_a_linked_in_library_come_back_and_those_of_the_same_name_need_not() {
    if Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: gcc is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("app.c"), SOURCE).expect("the directory is ours");
    let flags = [
        "-O2",
        "-w",
        "-fno-builtin",
        "-static",
        "-Wl,-q",
        "-o",
        "app",
        "app.c",
    ];
    done(Command::new("gcc").args(flags).current_dir(dir.path()));

    let bytes = std::fs::read(at("app")).expect("the program");
    let elf = Elf::parse(&bytes).expect("it is ELF");
    let program = Program::discover::<X86_64>(&elf).expect("it is understood");
    let symbols = elf.symbols(SymbolTable::Static);
    let address = |name: &str| {
        let of = |s: &postlink_elf::elf::Symbol<'_>| {
            s.name == name.as_bytes() && s.section != 0 && s.binding != 0
        };
        symbols.iter().find(of).expect(name).value
    };
    for name in ["free", "malloc"] {
        assert!(program.library.contains(&address(name)), "{name}");
    }
    for name in ["log", "logs", "copies", "longjmp"] {
        assert!(!program.library.contains(&address(name)), "{name}");
    }
    // After `memcpy` is a resolver: what is called is a stub.
    let code = elf.bytes_at(address("copies"), 256).expect("code");
    let mut called = Vec::new();
    let _ = <X86_64 as postlink_isa::Decode>::sweep(code, address("copies"), |insn| {
        if let postlink_isa::Flow::Call { target } = insn.flow {
            called.push((
                target,
                NonlocalExits::new(&program)
                    .call(&program, insn)
                    .nonlocal_exits,
            ));
        }
        insn.flow != postlink_isa::Flow::Return
    });
    assert!(called.len() >= 5, "{called:x?}");
    assert!(
        called.iter().all(|(_, nonlocal_exits)| !nonlocal_exits),
        "{called:x?}"
    );

    let postlink = |arguments: &[&str]| {
        let mut command = Command::new(POSTLINK);
        done(command.args(arguments).current_dir(dir.path())).stdout
    };
    postlink(&[
        "instrument",
        "app",
        "-o",
        "app.inst",
        "--profile",
        "p.plraw",
    ]);
    let run = |name: &str| done(Command::new(at(name)).current_dir(dir.path())).stdout;
    assert_eq!(run("app.inst"), run("app"));
    let shown = postlink(&["show", "p.plraw", "--binary", "app", "--json"]);
    let shown: Value = serde_json::from_slice(&shown).expect("JSON");
    let functions = shown["functions"].as_array().expect("functions");
    let counts = |name: &str| -> Vec<u64> {
        let f = functions.iter().find(|f| f["name"] == name).expect(name);
        let blocks = f["blocks"].as_array().expect("blocks");
        blocks.iter().filter_map(|b| b["count"].as_u64()).collect()
    };
    let logs = counts("logs");
    assert_eq!(
        (logs.first(), logs.last()),
        (Some(&30), Some(&20)),
        "{logs:?}"
    );
    let copies = counts("copies");
    assert!(copies.iter().all(|count| *count == 1), "{copies:?}");
}
