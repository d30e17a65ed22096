//! The unwind entry that describes stubs at entries: faults in it are found.

mod support;

use postlink_elf::elf::Elf;
use postlink_elf::raw::PT_GNU_EH_FRAME;
use postlink_verify::mutate::{Faults, Kind, Mutant};
use support::folder::Folder;
use support::is_installed;

/// The jump to the counter of `entered` overwrites a call, in front of which the stack pointer has changed: control
/// also runs into the function from the one before, so call sites cannot lead to the counter.
const PROGRAM: &str = r#"
#include <stdio.h>
int before(void);
int called(void) { return 7; }
__asm__(".text\n.p2align 4\n.globl before\n.type before,@function\nbefore:\n.cfi_startproc\n nop\n.cfi_endproc\n.size before,.-before\n"
 ".globl entered\n.type entered,@function\nentered:\n.cfi_startproc\n sub $24,%rsp\n.cfi_def_cfa_offset 32\n call called\n add $24,%rsp\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size entered,.-entered\n");
int main(void) { printf("%d\n", before()); return 0; }
"#;

#[test]
fn wrong_rows_of_stubs_and_stubs_without_an_entry_are_found() {
    if !is_installed("gcc") {
        return;
    }
    let flags = ["-fPIE", "-pie", "-fno-toplevel-reorder", "-Wl,-q"];
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        let folder = Folder::new();
        let app = folder.compile("app", PROGRAM, &flags);
        folder.postlink(&["instrument", "app", "-o", "counting", "--mode", mode]);
        let (old, entry) = last_entry(&std::fs::read(app).expect("it was made"));
        let image = std::fs::read(folder.path("counting")).expect("it was made");
        let (new, extended) = last_entry(&image);
        assert_ne!(old.0, new.0, "{mode}: stubs have no entry");
        assert_eq!(old.1, new.1, "the search table has another place");
        assert!(entry < extended, "{mode}: {entry} and {extended} bytes");
        let fails = |image: &[u8], what: &str| {
            std::fs::write(folder.path("wrong"), image).expect("the folder is ours");
            let said = folder.attempt(&["verify", "app", "wrong"]);
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            assert_eq!(said.status.code(), Some(1), "{mode}: {what}: {text}");
            assert!(text.contains("unwind"), "{mode}: {what}: {text}");
        };
        // DW_CFA_def_cfa_offset 32, for the call in the stub.
        let within = &image[new.0..new.0 + extended];
        let rows: Vec<usize> = (0..within.len() - 1)
            .filter(|at| within[*at..].starts_with(&[0x0e, 32]))
            .collect();
        assert!(
            !rows.is_empty(),
            "{mode}: no row of the stub in {within:x?}"
        );
        for at in rows {
            let mut wrong = image.clone();
            wrong[new.0 + at + 1] = 24;
            fails(&wrong, "another frame at the call");
        }
        let mut wrong = image.clone();
        let original = std::fs::read(folder.path("app")).expect("it was made");
        wrong[new.1..new.1 + 4].copy_from_slice(&original[old.1..old.1 + 4]);
        fails(&wrong, "no entry");
    }
}

/// `entered` is reached with a frame of 32 bytes, so its first row is not that of its CIE: the counter in its stub has
/// that row, as `_dl_runtime_profile_sse` of static programs needs it.
const FRAME_AT_ENTRY: &str = r#"
#include <stdio.h>
int before(void);
int called(void) { return 7; }
__asm__(".text\n.p2align 4\n.globl before\n.type before,@function\nbefore:\n.cfi_startproc\n sub $24,%rsp\n.cfi_def_cfa_offset 32\n nop\n.cfi_endproc\n.size before,.-before\n"
 ".globl entered\n.type entered,@function\nentered:\n.cfi_startproc\n.cfi_def_cfa_offset 32\n call called\n add $24,%rsp\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size entered,.-entered\n");
int main(void) { printf("%d\n", before()); return 0; }
"#;

#[test]
fn counters_in_stubs_have_the_first_row_of_their_function() {
    if !is_installed("gcc") {
        return;
    }
    let flags = ["-fPIE", "-pie", "-fno-toplevel-reorder", "-Wl,-q"];
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        let folder = Folder::new();
        folder.compile("app", FRAME_AT_ENTRY, &flags);
        folder.postlink(&["instrument", "app", "-o", "counting", "--mode", mode]);
        folder.postlink(&["verify", "app", "counting"]);
        assert_eq!(folder.run(folder.path("counting"), &[]), "7\n", "{mode}");
    }
}

/// The last entry of the search table has an exception table, and a personality routine that nobody knows: it may be
/// asked about any instruction, so instructions stay where they are. `read` and `written` would need a jump to a stub.
const UNKNOWN_ROUTINE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) int routine(void) { abort(); }
int loaded;
__asm__(".text\n.p2align 4\n.globl read\n.type read,@function\nread:\n.cfi_startproc\n mov loaded(%rip),%eax\n ret\n.cfi_endproc\n.size read,.-read\n"
 ".globl written\n.type written,@function\nwritten:\n.cfi_startproc\n addl $1,loaded(%rip)\n ret\n.cfi_endproc\n.size written,.-written\n"
 ".globl last\n.type last,@function\nlast:\n.cfi_startproc\n.cfi_personality 0x1b,routine\n.cfi_lsda 0x1b,table\n mov $7,%eax\n ret\n.cfi_endproc\n.size last,.-last\n"
 ".section .gcc_except_table,\"a\",@progbits\ntable:\n.byte 255,255,1,0\n.text\n");
int read_it(void) __asm__("read");
void written(void);
int last(void);
int (*volatile pointers[])(void) = {read_it, last};
int main(void) { written(); printf("%d\n", pointers[0]() + pointers[1]()); return 0; }
"#;

#[test]
fn an_unknown_personality_routine_keeps_instructions_where_they_are() {
    if !is_installed("gcc") {
        return;
    }
    let flags = ["-fPIE", "-pie", "-fno-toplevel-reorder", "-Wl,-q"];
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        let folder = Folder::new();
        folder.compile("app", UNKNOWN_ROUTINE, &flags);
        folder.postlink(&["instrument", "app", "-o", "counting", "--mode", mode]);
        folder.postlink(&["verify", "app", "counting"]);
        assert_eq!(folder.run(folder.path("counting"), &[]), "8\n", "{mode}");
    }
}

/// Ada's routine is asked about any instruction. `caught` begins with one that has a landing pad, `passed` with the
/// same one without. Neither has a jump to a stub, since all that leads there is known. The last function has no
/// exception table, so exceptions pass through stubs.
const FAULTS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) int __gnat_personality_v0(void) { abort(); }
int loaded = 6;
__asm__(".text\n.p2align 4\n.globl caught\n.type caught,@function\ncaught:\n.cfi_startproc\n.cfi_personality 0x9b,DW.ref.__gnat_personality_v0\n.cfi_lsda 0x1b,0f\n mov (%rdi),%eax\n add $1,%eax\n ret\n mov $0,%eax\n ret\n.cfi_endproc\n.size caught,.-caught\n"
 ".globl passed\n.type passed,@function\npassed:\n.cfi_startproc\n.cfi_personality 0x9b,DW.ref.__gnat_personality_v0\n.cfi_lsda 0x1b,1f\n mov (%rdi),%eax\n add $1,%eax\n ret\n.cfi_endproc\n.size passed,.-passed\n"
 ".globl last\n.type last,@function\nlast:\n.cfi_startproc\n mov $7,%eax\n ret\n.cfi_endproc\n.size last,.-last\n"
 ".section .gcc_except_table,\"a\",@progbits\n0: .byte 255,255,1,4,0,2,6,0\n1: .byte 255,255,1,4,0,6,0,0\n.data\n.p2align 3\n.type DW.ref.__gnat_personality_v0,@object\n.size DW.ref.__gnat_personality_v0,8\nDW.ref.__gnat_personality_v0: .quad __gnat_personality_v0\n.text\n");
int caught(int *), passed(int *), last(void);
int main(void) { printf("%d\n", caught(&loaded) + passed(&loaded) + last()); return 0; }
"#;

#[test]
fn a_stub_is_refused_for_its_landing_pad_alone() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let flags = ["-fPIE", "-pie", "-fno-toplevel-reorder", "-Wl,-q"];
    let app = folder.compile("app", FAULTS, &flags);
    folder.postlink(&[
        "instrument",
        "app",
        "-o",
        "counting",
        "--mode",
        "function-coverage",
    ]);
    let input = std::fs::read(app).expect("it was made");
    let output = std::fs::read(folder.path("counting")).expect("it was made");
    let faults = Faults::new(&input, &output).unwrap_or_else(|what| panic!("{what}"));
    let verified = |mutant: &Mutant| {
        let options = postlink_verify::Options::default();
        let report = postlink_verify::verify(&input, &mutant.image, &options).expect("it is read");
        report.is_proved()
    };
    let right = faults.harmless_stub(0).expect("`passed` gets a stub");
    assert!(verified(&right), "{}", right.what);
    let wrong = faults
        .inject(Kind::StubWithoutLandingPad, 0)
        .expect("`caught` gets a stub");
    assert!(!verified(&wrong), "{}", wrong.what);
}

/// Throws out of a signal handler at each instruction of a function and of its counter, and catches that in the caller.
/// The last function has an exception table.
const THROWS: &str = r#"
#include <csignal>
#include <cstdio>
#include <ucontext.h>
extern "C" int stepped(int);
__asm__(".text\n.globl stepped\n.type stepped,@function\nstepped:\n.cfi_startproc\n nop\n nop\n lea (%rdi,%rdi,2),%eax\n ret\n.cfi_endproc\n.size stepped,.-stepped\n");
static volatile unsigned long top;
static volatile int at, now, inside;
static void step(int, siginfo_t *, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  if ((unsigned long)registers[REG_RSP] >= top) {
    if (inside) registers[REG_EFL] &= ~0x100;
    return;
  }
  inside = 1;
  if (now++ == at) throw 7;
}
__attribute__((noinline, noipa)) static bool throws_at(int k) {
  at = k, now = 0, inside = 0;
  try {
    unsigned long sp;
    __asm__ volatile("mov %%rsp,%0" : "=r"(sp));
    top = sp;
    __asm__ volatile("pushfq; orq $0x100,(%%rsp); popfq" ::: "memory", "cc");
    stepped(k);
  } catch (int) {
    return true;
  }
  return false;
}
int main() {
  struct sigaction action = {};
  action.sa_sigaction = step;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGTRAP, &action, nullptr);
  int k = 0;
  while (throws_at(k)) k++;
  std::printf("%s\n", k > 3 ? "all are caught" : "none");
}
int fails(int k) { if (k) throw k; return 1; }
int (*volatile last_fails)(int) = fails;
int last(int k) { try { return last_fails(k); } catch (int n) { return n + k; } }
"#;

#[test]
fn exceptions_pass_counters_in_stubs_where_the_last_function_has_an_exception_table() {
    if !is_installed("g++") || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        let folder = Folder::new();
        std::fs::write(folder.path("app.cc"), THROWS).expect("the folder is ours");
        let mut compiler = folder.command("g++", &["-O2", "-fPIE", "-pie", "-mno-red-zone"]);
        compiler.args(["-fno-toplevel-reorder", "-Wl,-q", "-o", "app", "app.cc"]);
        assert!(compiler.status().expect("it is installed").success());
        folder.postlink(&["instrument", "app", "-o", "counting", "--mode", mode]);
        folder.postlink(&["verify", "app", "counting"]);
        for program in ["app", "counting"] {
            let said = folder.run(folder.path(program), &[]);
            assert_eq!(said, "all are caught\n", "{mode}: {program}");
        }
        let read = |name: &str| std::fs::read(folder.path(name)).expect("it was made");
        let (input, image) = (read("app"), read("counting"));
        let table = last_exception_table(&image);
        assert_ne!(table.0, last_exception_table(&input).0, "{mode}");
        // Encodings of landing pads' base, of types, and the distance of these; encoding and length of call sites.
        let sites = table.0 + 5..table.0 + 5 + usize::from(image[table.0 + 4]);
        assert_eq!(image[table.0 + 3], 1, "{mode}: call sites are in LEB128");
        // A call site without a landing pad has no action.
        let mut fields = [0, 0, 0, 0];
        let (mut field, mut spoiled) = (0, 0);
        for at in sites {
            let begins = !(fields[field] > 0 && image[at - 1] & 0x80 != 0);
            fields[field] = if begins { at } else { fields[field] };
            if image[at] & 0x80 != 0 {
                continue;
            }
            field = (field + 1) % 4;
            if field != 0 {
                continue;
            }
            let has_pad = image[fields[2]] != 0;
            for (which, place) in fields
                .into_iter()
                .enumerate()
                .take(3 + usize::from(has_pad))
            {
                let mut wrong = image.clone();
                let low = wrong[place] & 0x7f;
                // What is longer may be as good.
                let other = if which == 1 {
                    low.wrapping_sub(1)
                } else {
                    low + 1
                } & 0x7f;
                wrong[place] = wrong[place] & 0x80 | other;
                let report = postlink_verify::verify(&input, &wrong, &Default::default());
                let is_proved = report.is_ok_and(|report| report.is_proved());
                let what = format!("{mode}: field {which} at {place:#x}");
                assert!(!is_proved || which == 1 && low == 0, "{what}");
                spoiled += 1;
            }
            fields = [0, 0, 0, 0];
        }
        assert!(spoiled >= 6, "{mode}: {spoiled}");
    }
}

/// Where in the file the exception table of the search table's last entry is.
fn last_exception_table(image: &[u8]) -> (usize, u64) {
    let elf = Elf::parse(image).expect("it is an ELF file");
    let ((fde, _), _) = last_entry(image);
    // Behind length, CIE, start, length, and length of what is added.
    let field = fde + 17;
    let bytes = image[field..field + 4].try_into().expect("four bytes");
    let inside = |load: &&postlink_elf::elf::Segment| {
        (load.offset..load.offset + load.file_size).contains(&(field as u64))
    };
    let load = elf.loads().find(inside).expect("it is loaded");
    let distance = i64::from(i32::from_le_bytes(bytes));
    let addr = (load.addr + field as u64 - load.offset).wrapping_add_signed(distance);
    let load = elf.load_at(addr).expect("it is loaded");
    ((load.offset + addr - load.addr) as usize, addr)
}

/// Of the last entry of the search table: where in the file the FDE and the word that leads to it are; the FDE's size.
fn last_entry(image: &[u8]) -> ((usize, usize), usize) {
    let elf = Elf::parse(image).expect("it is an ELF file");
    let table = elf.segments.iter().find(|s| s.kind == PT_GNU_EH_FRAME);
    let table = table.expect("it has a search table");
    let word = |at: usize| i32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"));
    let at = table.offset as usize;
    let place = at + 8 + 8 * word(at + 8) as usize;
    let addr = table.addr.wrapping_add_signed(i64::from(word(place)));
    let load = elf.load_at(addr).expect("it is loaded");
    let fde = (load.offset + addr - load.addr) as usize;
    ((fde, place), 4 + word(fde) as usize)
}
