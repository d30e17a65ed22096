//! Functions that form the address of a place in themselves, in AArch64 programs without kept relocations: where
//! nothing else leads there it is a further entry, and they move; else something may describe their code by it, and
//! they stay.

use std::fs;
use std::path::Path;
use std::process::Command;

use postlink_verify::{Options, Report, verify};

mod support;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");
const GCC: &str = "aarch64-linux-gnu-gcc";
const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;

/// `marks` hands on where a call of it comes back to, and `between` the end of what it has done by then.
const SOURCE: &str = r#"
#include <stdio.h>
int marks(int), between(int);
const char *volatile place;
__attribute__((noinline)) void hold(const char *at) { place = at; }
__asm__(".text\n.p2align 4\n.globl marks\n.type marks,%function\nmarks:\n.cfi_startproc\n"
  "stp x29, x30, [sp, #-32]!\n.cfi_def_cfa_offset 32\n.cfi_offset 30, -24\n.cfi_offset 29, -32\nstr w0, [sp, #16]\n"
  "adrp x0, 1f\nadd x0, x0, :lo12:1f\nbl hold\n1: ldr w0, [sp, #16]\nadd w0, w0, #3\n"
  "ldp x29, x30, [sp], #32\n.cfi_def_cfa_offset 0\nret\n.cfi_endproc\n.size marks,.-marks\n"
  ".p2align 4\n.globl between\n.type between,%function\nbetween:\n.cfi_startproc\n"
  "cbz w0, 2f\nadrp x1, 2f\nadd x1, x1, :lo12:2f\nadrp x2, place\nadd x2, x2, :lo12:place\nstr x1, [x2]\n"
  "add w0, w0, #1\nret\n2: mov w0, #9\nret\n.cfi_endproc\n.size between,.-between\n");
int main(void) {
  int sum = 0;
  for (int k = 0; k < 90; k++) sum += marks(k) ^ between(k % 3);
  printf("%d %d\n", sum, place != 0);
  return 0;
}
"#;

struct Folder(tempfile::TempDir);

impl Folder {
    fn built(flags: &[&str]) -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        fs::write(folder.0.path().join("app.c"), SOURCE).expect("written");
        let mut compile = Command::new(GCC);
        compile.args(["-O2", "-o", "app", "app.c"]).args(flags);
        done(compile.current_dir(folder.0.path()));
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, name: &str) -> Vec<u8> {
        let mut command = Command::new("qemu-aarch64");
        command.arg(self.path().join(name));
        done(command.env("POSTLINK_PROFILE", self.path().join("run.plraw"))).stdout
    }

    fn json(&self, arguments: &str) -> serde_json::Value {
        let mut command = Command::new(POSTLINK);
        command.args(arguments.split(' ')).current_dir(self.path());
        serde_json::from_slice(&done(&mut command).stdout).expect("JSON")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).expect("a file")
    }
}

fn word(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"))
}

fn put(image: &mut [u8], at: usize, word: u32) {
    image[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Where an address of a file is in it, by its program headers.
fn place(image: &[u8], addr: u64) -> usize {
    let number = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
    let headers = number(32) as usize;
    let count = usize::from(u16::from_le_bytes([image[56], image[57]]));
    let mut loads = (0..count).map(|i| headers + 56 * i);
    let load = loads.find(|h| {
        let (start, len) = (number(h + 16), number(h + 32));
        word(image, *h) == 1 && start <= addr && addr - start < len
    });
    let load = load.expect("it is loaded");
    (addr - number(load + 16) + number(load + 8)) as usize
}

fn judged(input: &[u8], output: &[u8]) -> Report {
    verify(input, output, &Options::default()).expect("both can be read")
}

/// The checker put `_start` back: `__wrap_main`, which the same unwind entry covers, is behind it.
#[test]
fn the_start_of_a_static_program_moves_with_the_place_that_it_hands_on() {
    if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    for flags in [&["-static"][..], &["-static", "-s"], &["-static-pie"]] {
        let folder = Folder::built(flags);
        let expected = folder.run("app");
        let said = folder.json("instrument app -o counting --json");
        let refused = |said: &serde_json::Value| said["refused"].as_array().map_or(0, Vec::len);
        // The two functions of this test, below.
        assert_eq!(refused(&said), 2, "{flags:?}: {said}");
        assert_eq!(folder.run("counting"), expected, "{flags:?}");
        let said = folder.json("optimize app -p run.plraw -o opt --move-all --json");
        // What did not move has not counted, and is not tried.
        assert_eq!(refused(&said), 0, "{flags:?}: {said}");
        assert_eq!(folder.run("opt"), expected, "{flags:?}");
        let input = folder.read("app");
        let start = u64::from_le_bytes(input[24..32].try_into().expect("eight bytes"));
        // What it hands on: adrp x0, page; add x0, x0, #low.
        let at = place(&input, start);
        let low = (at..at + 64).step_by(4).find_map(|at| {
            let (page, add) = (word(&input, at), word(&input, at + 4));
            (page & 0x9f00_001f == 0x9000_0000 && add & 0xffc0_03ff == 0x9100_0000)
                .then_some(u64::from(add >> 10 & 0xfff))
        });
        let entry = start & !0xfff | low.expect("it forms an address");
        assert!(start < entry && entry < start + 64, "{flags:?}: {entry:#x}");
        let at = place(&input, entry);
        let mut new_start = 0;
        for output in ["opt", "counting"] {
            let output = folder.read(output);
            let report = judged(&input, &output);
            assert!(report.is_proved(), "{flags:?}");
            let moved = report.functions.iter().find(|f| f.old == start);
            let moved = moved.unwrap_or_else(|| panic!("{flags:?}: _start stays"));
            new_start = place(&output, moved.new);
            let jump = word(&output, place(&output, entry));
            assert_eq!(jump & 0xfc00_0000, 0x1400_0000, "{flags:?}: {jump:#x}");
            // Without the jump it would be a place like any other.
            let mut lost = output.clone();
            put(&mut lost, place(&output, entry), word(&input, at));
            assert!(!judged(&input, &lost).is_proved(), "{flags:?}");
        }
        let output = folder.read("counting");
        // As if what is in front of it ran on into it, and as if it did not.
        let calls = |at: &usize| word(&output, *at) & 0xfc00_0000 == 0x9400_0000;
        let mut new_calls = (new_start..new_start + 128).step_by(4).filter(calls);
        let new_call = new_calls.nth(1).expect("abort is called");
        for (instead, proved) in [(RET, true), (NOP, false)] {
            let (mut input, mut output) = (input.clone(), output.clone());
            put(&mut input, at - 4, instead);
            let old_call = place(&output, entry - 4);
            put(&mut output, old_call, instead);
            put(&mut output, new_call, instead);
            let report = judged(&input, &output);
            assert_eq!(
                report.is_proved(),
                proved,
                "{flags:?}: {instead:#x}: {:?}",
                report.failures().next()
            );
        }
    }
}

/// Where a call comes back to, and where a branch goes, are places inside, by which something may describe the code.
#[test]
fn functions_that_form_places_which_more_leads_to_stay() {
    if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::built(&["-static"]);
    folder.json("instrument app -o counting --json");
    let report = judged(&folder.read("app"), &folder.read("counting"));
    for name in ["marks", "between"] {
        assert!(report.functions.iter().all(|f| f.name != name), "{name}");
    }
    assert!(report.functions.iter().any(|f| f.name == "hold"));
}
