//! Programs for AArch64 without kept relocations and symbols. Each twin changes input and output alike, as if the
//! rewriter had not seen that something leads into what a jump overwrote, or reads it: the checker must refuse it, and
//! take the same change with an address that is in nobody's way.

use std::fs;
use std::path::Path;
use std::process::Command;

use postlink_verify::mutate::Kind;
use postlink_verify::{Basis, EntryLevel, FunctionReport, Options, Report, verify};

mod support;
use support::folder::Folder;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");
const GCC: &str = "aarch64-linux-gnu-gcc";
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// `victim` signs its return address; `table` jumps through a table that counts from its own code, and
/// reads what the jump leaves in registers, so that new code has no table of its own. What is at
/// `spare` belongs to nobody: it has neither unwind entry nor size.
const SOURCE: &str = r#"
extern int victim(int);
extern void spare(void);
__asm__(".text\n.p2align 4\n.globl _start\n.type _start,%function\n_start:\n.cfi_startproc\n.cfi_undefined 30\n bti c\n"
    " mov x29, #0\n bl run\n mov x0, #0\n mov x8, #93\n svc #0\n.cfi_endproc\n.size _start,.-_start\n"
    ".p2align 4\n.globl victim\n.type victim,%function\nvictim:\n.cfi_startproc\n paciasp\n"
    " add w0, w0, #3\n lsl w0, w0, #1\n autiasp\n ret\n.cfi_endproc\n.size victim,.-victim\n"
    ".p2align 4\n.globl spare\nspare:\n nop\n nop\n ret\n.p2align 4\n");
static void print(const char *text, long n) {
    register long x0 __asm__("x0") = 1, x2 __asm__("x2") = n, x8 __asm__("x8") = 64;
    register const char *x1 __asm__("x1") = text;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory");
}
__attribute__((noinline, noipa)) int table(int k, int x) {
    switch (k) {
    case 0: return x * 3;
    case 1: return x + 7;
    case 2: print("two ", 4); return x - 1;
    case 3: __asm__ volatile("cmp x0, x1" ::: "cc"); return x ^ 0x55;
    case 4: return x << 3;
    case 5: return victim(x) + 1;
    case 6: return -x;
    case 7: return x * x;
    case 8: return x / 7;
    case 9: return x & 0x1f;
    case 10: return x | 3;
    case 11: return x % 11;
    case 12: return ~x;
    case 13: return x * 9 - 4;
    case 14: return x >> 2;
    case 15: return x * 1001;
    case 16: return 17 - x;
    case 17: return x * x * x;
    }
    return 0;
}
/* Nothing relocates this program: the loader's pointer is only there to be looked at. */
__attribute__((used)) int (*pointer)(int) = victim;
__attribute__((used)) void run(void) {
    unsigned sum = 0;
    for (int i = 0; i < 700; i++) sum += table(i % 18, i) + victim(i);
    char text[9];
    for (int i = 0; i < 8; i++) text[i] = 'a' + (sum >> 4 * i & 15);
    text[8] = 10;
    print(text, 9);
}
"#;

/// A program and what was made of it.
struct Pair {
    input: Vec<u8>,
    output: Vec<u8>,
    /// Addresses, by the names that the program had before it was stripped.
    victim: u64,
    spare: u64,
    /// Where the jump table leads.
    arrivals: Vec<u64>,
}

fn run(program: &Path) -> Command {
    let mut command = Command::new("qemu-aarch64");
    command.args(["-L", ROOT]).arg(program);
    command
}

/// The address of a symbol, as `nm` prints it.
fn address(names: &str, name: &str) -> u64 {
    let line = names.lines().find(|l| l.ends_with(&format!(" {name}")));
    let line = line.unwrap_or_else(|| panic!("{name} is there"));
    u64::from_str_radix(&line[..16], 16).expect("an address")
}

/// Code is where it says in the file, in the first segment of a program without other addresses.
fn word(image: &[u8], at: u64) -> u32 {
    let at = at as usize;
    u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"))
}

/// Builds the program, strips it, and optimises it by a profile of its own run; `None` without the tools.
fn pair(guarded: bool) -> Option<Pair> {
    if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("app.c"), SOURCE).expect("written");
    let mut compile = Command::new(GCC);
    // Nothing but this file: neither start files nor libraries are made for guarded pages everywhere.
    compile.args([
        "-O2",
        "-fPIE",
        "-static-pie",
        "-nostdlib",
        "-ffreestanding",
        "-fno-tree-switch-conversion",
    ]);
    compile.args(["-Wl,--eh-frame-hdr", "-o", "app", "app.c"]);
    // Of one file alone, the linker guards all pages if the file asks for landing pads.
    compile.arg(if guarded {
        "-mbranch-protection=standard"
    } else {
        "-mbranch-protection=pac-ret"
    });
    done(compile.current_dir(folder.path()));
    let names = done(Command::new("aarch64-linux-gnu-nm").arg(at("app"))).stdout;
    let names = String::from_utf8(names).expect("text");
    done(
        Command::new("aarch64-linux-gnu-strip")
            .arg("-s")
            .arg(at("app")),
    );
    let expected = done(&mut run(&at("app"))).stdout;
    let mut instrument = Command::new(POSTLINK);
    instrument
        .arg("instrument")
        .arg(at("app"))
        .arg("-o")
        .arg(at("counting"));
    done(&mut instrument);
    let mut counting = run(&at("counting"));
    let seen = done(counting.env("POSTLINK_PROFILE", at("run.plraw"))).stdout;
    assert_eq!(seen, expected, "while it counts");
    let victim = address(&names, "victim");
    let mut show = Command::new(POSTLINK);
    show.arg("show")
        .arg(at("run.plraw"))
        .arg("--binary")
        .arg(at("app"))
        .arg("--json");
    let shown: serde_json::Value = serde_json::from_slice(&done(&mut show).stdout).expect("JSON");
    let entries = |address: u64| {
        let name = format!("fun_{address:x}");
        let mut all = shown["functions"].as_array().expect("functions").iter();
        all.find(|f| f["name"] == *name)
            .map(|f| f["entries"].clone())
    };
    assert_eq!(
        entries(victim),
        Some(739.into()),
        "counts of what the table leads to are exact"
    );
    assert_eq!(entries(address(&names, "table")), Some(700.into()));
    let mut optimize = Command::new(POSTLINK);
    optimize
        .arg("optimize")
        .arg(at("app"))
        .arg("-p")
        .arg(at("run.plraw"));
    done(optimize.arg("-o").arg(at("out")));
    assert_eq!(done(&mut run(&at("out"))).stdout, expected, "optimised");
    let read = |name: &str| fs::read(at(name)).expect("a file");
    let (input, output) = (read("app"), read("out"));
    let table = address(&names, "table");
    let end = address(&names, "run").max(table);
    let changed = |at: &u64| word(&input, *at) != word(&output, *at);
    let arrivals = (table + 8..end).step_by(4).filter(changed).collect();
    Some(Pair {
        spare: address(&names, "spare"),
        input,
        output,
        victim,
        arrivals,
    })
}

fn check(input: &[u8], output: &[u8]) -> Report {
    verify(input, output, &Options::default()).expect("both can be read")
}

impl Pair {
    /// What a report says of `victim`.
    fn moved<'r>(&self, report: &'r Report) -> &'r FunctionReport {
        let mut functions = report.functions.iter();
        functions.find(|f| f.old == self.victim).expect("it moved")
    }

    /// The verdict where two words at `spare` are others in both files.
    fn twin(&self, words: [u32; 2]) -> Report {
        let (mut input, mut output) = (self.input.clone(), self.output.clone());
        for (i, w) in words.iter().enumerate() {
            let at = self.spare as usize + 4 * i;
            for image in [&mut input, &mut output] {
                image[at..at + 4].copy_from_slice(&w.to_le_bytes());
            }
        }
        check(&input, &output)
    }

    #[track_caller]
    fn assert_refused(&self, words: [u32; 2]) {
        let report = self.twin(words);
        assert!(report.failed > 0, "{words:x?} is taken");
        assert!(
            report.file_failures.is_empty(),
            "{:?}",
            report.file_failures
        );
    }

    #[track_caller]
    fn assert_taken(&self, words: [u32; 2]) {
        let failures: Vec<String> = self
            .twin(words)
            .failures()
            .map(|f| f.1.to_string())
            .collect();
        assert!(failures.is_empty(), "{words:x?}: {failures:?}");
    }
}

const NOP: u32 = 0xd503_201f;

/// Branches, literals and addresses, with their distance in words or bytes.
fn b(by: u64) -> u32 {
    0x1400_0000 | (by / 4) as u32 & 0x03ff_ffff
}
fn cbz(by: u64) -> u32 {
    0xb400_0000 | ((by / 4) as u32 & 0x7_ffff) << 5
}
fn literal(by: u64) -> u32 {
    0x5800_0000 | ((by / 4) as u32 & 0x7_ffff) << 5
}
fn adr(by: u64) -> u32 {
    0x1000_0000 | (by as u32 & 3) << 29 | ((by / 4) as u32 & 0x7_ffff) << 5
}
fn adrp(from: u64, to: u64) -> u32 {
    let pages = (to >> 12).wrapping_sub(from >> 12);
    0x9000_0000 | (pages as u32 & 3) << 29 | ((pages >> 2) as u32 & 0x7_ffff) << 5
}
/// `ldr x1, [x0, #…]` and `add x0, x0, #…`.
fn load(to: u64) -> u32 {
    0xf940_0001 | ((to & 0xfff) as u32 / 8) << 10
}
fn add(to: u64) -> u32 {
    0x9100_0000 | ((to & 0xfff) as u32) << 10
}

#[test]
fn what_leads_into_an_overwritten_landing_pad_or_reads_it_is_refused() {
    let Some(pair) = pair(true) else { return };
    let report = check(&pair.input, &pair.output);
    assert_eq!(report.basis, Basis::Dynamic);
    let entry = pair.moved(&report).entry.as_ref().expect("it is told");
    // The landing pad took the place of `paciasp`, and the jump is behind it.
    assert_eq!(
        (entry.level, &entry.relies_on[..]),
        (EntryLevel::Long, &["A3", "A4"][..])
    );
    let (from, inside) = (pair.spare, pair.victim + 4);
    let by = inside.wrapping_sub(from);
    pair.assert_taken([NOP, NOP]);
    for (way, entry) in [
        (b(by), b(by.wrapping_sub(4))),
        (cbz(by), cbz(by.wrapping_sub(4))),
        (adr(by), adr(by.wrapping_sub(4))),
    ] {
        pair.assert_refused([way, NOP]);
        pair.assert_taken([entry, NOP]);
    }
    pair.assert_refused([adrp(from, inside), add(inside)]);
    pair.assert_taken([adrp(from, inside), add(inside - 4)]);
    // Words of the jump, and of the pad in front.
    pair.assert_refused([literal(by), NOP]);
    pair.assert_refused([literal(by.wrapping_sub(4)), NOP]);
    pair.assert_taken([literal(by.wrapping_add(4)), NOP]);
    let aligned = pair.victim & !7;
    pair.assert_refused([adrp(from, aligned), load(aligned)]);
    pair.assert_taken([adrp(from, from), load(from & !7)]);
    // Where the page may be in its register elsewhere too: the use is in front of it, and a branch behind it.
    pair.assert_refused([add(inside), adrp(from + 4, inside)]);
}

#[test]
fn what_reads_an_old_target_of_a_table_is_refused() {
    let Some(pair) = pair(false) else { return };
    let report = check(&pair.input, &pair.output);
    let entry = pair.moved(&report).entry.as_ref().expect("it is told");
    // Nothing but one instruction was overwritten, `paciasp` where it was one.
    assert_eq!(
        (entry.level, &entry.relies_on[..]),
        (EntryLevel::Long, &["A4"][..])
    );
    assert!(pair.arrivals.len() >= 5, "{:x?}", pair.arrivals);
    for at in [pair.arrivals[0], pair.victim] {
        let by = at.wrapping_sub(pair.spare);
        pair.assert_refused([literal(by), NOP]);
        pair.assert_refused([adrp(pair.spare, at), load(at & !7)]);
        // A branch to there finds the jump.
        pair.assert_taken([b(by), NOP]);
    }
}

#[test]
fn every_fault_in_an_output_without_kept_relocations_is_found() {
    for guarded in [false, true] {
        let Some(pair) = pair(guarded) else { return };
        let applied = support::faults::spoil(&pair.input, &pair.output, Kind::ALL);
        let mut needed = vec![
            Kind::BasisLied,
            Kind::LevelLied,
            Kind::FallBackUnclaimed,
            Kind::LabelJumpToWrongBlock,
            Kind::EntryJumpToWrongFunction,
            Kind::TableScale,
            Kind::TableBaseOff,
            Kind::PageOff,
            Kind::PageOffsetOff,
            Kind::RelocAddendOff,
            Kind::RelocPlaceOff,
            Kind::ChangedData,
        ];
        if guarded {
            needed.push(Kind::IntoEntryJump);
        }
        for kind in needed {
            assert!(
                applied.contains_key(&kind),
                "{kind:?} was not applied: {applied:?}"
            );
        }
    }
}

impl Pair {
    /// The verdict where words of the output alone are others.
    fn spoilt(&self, at: u64, words: &[u32]) -> Report {
        let mut output = self.output.clone();
        for (i, w) in words.iter().enumerate() {
            let at = at as usize + 4 * i;
            output[at..at + 4].copy_from_slice(&w.to_le_bytes());
        }
        check(&self.input, &output)
    }
}

#[test]
fn a_changed_instruction_of_code_that_stays_is_found() {
    let Some(pair) = pair(false) else { return };
    // `nop`, which is nobody's, and `bti c` and `svc` of the start-up code's bodies.
    assert!(check(&pair.input, &pair.output).is_proved());
    assert!(pair.spoilt(pair.spare, &[NOP]).is_proved());
    assert!(!pair.spoilt(pair.spare, &[0xd503_203f]).is_proved());
    // Behind the jump of a function that moved: `lsl w0, w0, #1` is `lsl w0, w0, #2`.
    let behind = pair.victim + 8;
    let as_it_was = word(&pair.input, behind);
    assert_eq!(as_it_was, 0x531f_7800);
    assert!(pair.spoilt(behind, &[as_it_was]).is_proved());
    assert!(!pair.spoilt(behind, &[0x531e_7400]).is_proved());
}

#[test]
fn a_veneer_that_leads_elsewhere_is_found() {
    let Some(pair) = pair(false) else { return };
    let report = check(&pair.input, &pair.output);
    let new = pair.moved(&report).new;
    let at = pair.victim;
    // `adrp x16, …; add x16, x16, #…; br x16`, as where a branch does not reach.
    let veneer = [adrp(at, new) | 16, add(new) | 16 << 5 | 16, 0xd61f_0200];
    let failures: Vec<String> = pair
        .spoilt(at, &veneer)
        .failures()
        .map(|f| f.1.to_string())
        .collect();
    assert!(failures.is_empty(), "{failures:?}");
    let [page, low, jump] = veneer;
    for other in [
        [adrp(at, new + 0x1000) | 16, low, jump],
        [page, low ^ 1 << 12, jump],
        // Another register, a call, and one that the caller passes something in.
        [page, low, 0xd61f_0220],
        [page, low, 0xd63f_0200],
        [page & !31, low & !(31 << 5 | 31), 0xd61f_0000],
    ] {
        assert!(!pair.spoilt(at, &other).is_proved(), "{other:x?} is taken");
    }
}

/// Busybox jumps to `main`, which begins with a call and has no unwind entry: where counters before such jumps used
/// registers of linkers' stubs that the function has nothing to do with, they were refused.
#[test]
fn a_jump_to_code_without_an_unwind_entry_keeps_no_function_from_counting() {
    const JUMPS: &str = r#"
#include <stdio.h>
int without(int);
__attribute__((noinline, noipa)) int helper(int x) { return x * 3; }
__attribute__((noinline, noipa)) int jumps(int x) { return x & 1 ? without(x + 1) : x & 2 ? without(x - 5) : x ^ 9; }
__asm__(".text\n.type without,%function\nwithout:\n stp x29, x30, [sp, #-16]!\n bl helper\n"
    " ldp x29, x30, [sp], #16\n add w0, w0, #1\n ret\n.size without,.-without\n");
int main(void) {
    int sum = 0;
    for (int i = 0; i < 40; i++) sum += jumps(i);
    printf("%d\n", sum);
    return 0;
}
"#;
    counts_with_every_function(JUMPS);
}

/// libawt's conversions: `s17` was taken for `x17`, so counters that used that register in front of an indirect tail
/// call were refused.
#[test]
fn a_conversion_of_s17_has_nothing_to_do_with_x17() {
    const CONVERTS: &str = r#"
#include <stdio.h>
int converts(int, int (*)(int));
__attribute__((noinline, noipa)) int last(int x) { return x ^ 5; }
__asm__(".text\n.type converts,%function\nconverts:\n .cfi_startproc\n scvtf s17, w0\n tbz w0, #0, 1f\n fadd s17, s17, s17\n"
    "1: tbz w0, #1, 2f\n fmul s17, s17, s17\n2: fcvtzs w0, s17, #4\n mov x16, x1\n br x16\n .cfi_endproc\n"
    ".size converts,.-converts\n");
int main(void) {
    int sum = 0;
    for (int i = 0; i < 40; i++) sum += converts(i, last);
    printf("%d\n", sum);
    return 0;
}
"#;
    counts_with_every_function(CONVERTS);
}

/// libgdk: a function leaves a page in a register when it returns, and adds to that register elsewhere. The checker
/// takes the sum for a place that may be read; the rewriter did not, and wrote a jump there.
#[test]
fn a_page_that_is_in_a_register_at_a_return_may_be_read_anywhere_in_the_function() {
    const LEAVES: &str = r#"
#include <stdio.h>
int entered(int);
int leaves(int);
int number[4] = { 1, 2, 3, 4 };
__asm__(".text\n.balign 4096\n.skip 16\n.type entered,%function\nentered:\n .cfi_startproc\n cbz w0, 1f\n add w0, w0, #7\n"
    "1: eor w0, w0, #1\n ret\n .cfi_endproc\n.size entered,.-entered\n"
    ".type leaves,%function\nleaves:\n .cfi_startproc\n mov w2, w0\n adrp x1, number\n add x1, x1, :lo12:number\n"
    " ldr w0, [x1, #8]\n cbz w2, 1f\n adrp x1, entered\n add x3, x1, :lo12:entered\n ldrb w3, [x3, #1]\n1: add w0, w0, w2\n ret\n"
    " .cfi_endproc\n.size leaves,.-leaves\n");
int main(void) {
    int sum = 0;
    for (int i = 0; i < 40; i++) sum += entered(i) + leaves(i);
    printf("%d\n", sum);
    return 0;
}
"#;
    counts_with_every_function(LEAVES);
}

/// tshark with `--preset max`: a function ends with a call of one that does not return, and jumps through a table.
/// Where the call went through the stub's slot, the checker took what is behind it in new code for what comes after it.
#[test]
fn nothing_comes_after_a_call_through_a_slot_that_ends_its_function() {
    const ENDS: &str = r#"
#include <err.h>
#include <stdio.h>
int ends(int);
__asm__(".text\n.balign 16\n.type ends,%function\nends:\n .cfi_startproc\n stp x29, x30, [sp, #-32]!\n .cfi_def_cfa_offset 32\n"
    " .cfi_offset 29, -32\n .cfi_offset 30, -24\n str x20, [sp, #16]\n .cfi_offset 20, -16\n mov w3, #0\n cbz w0, 9f\n"
    " adrp x20, table\n add x20, x20, :lo12:table\n1: and w1, w0, #3\n ldrh w1, [x20, w1, uxtw #1]\n adr x2, 2f\n"
    " add x1, x2, w1, sxth #2\n br x1\n2: add w3, w3, #5\n b 6f\n3: add w3, w3, #7\n b 6f\n4: eor w3, w3, #1\n b 6f\n"
    "5: add w3, w3, w0\n6: subs w0, w0, #1\n b.ne 1b\n mov w0, w3\n ldr x20, [sp, #16]\n ldp x29, x30, [sp], #32\n"
    " .cfi_remember_state\n .cfi_restore 20\n .cfi_restore 29\n .cfi_restore 30\n .cfi_def_cfa_offset 0\n ret\n"
    "9: .cfi_restore_state\n adrp x1, said\n add x1, x1, :lo12:said\n bl errx\n .cfi_endproc\n.size ends,.-ends\n"
    ".section .rodata\n.balign 2\ntable: .hword 0, 2, 4, 6\nsaid: .asciz \"the end\"\n.text\n");
__attribute__((noinline)) static int all(void) {
    int sum = 0;
    for (int i = 1; i < 40; i++) sum += ends(i);
    return sum;
}
int main(void) {
    printf("%d\n", all());
    fflush(stdout);
    return ends(0);
}
"#;
    let Some((folder, expected)) = built(ENDS) else {
        return;
    };
    instrument_all(&folder);
    folder.emulate("app.inst");
    for seed in 1..=12 {
        let seed = seed.to_string();
        let args = ["optimize", "app", "-p", "run.plraw", "-o", "app.opt"];
        refuses_nothing(
            &folder,
            &[&args[..], &["--plt", "hot", "--stress", &seed]].concat(),
        );
        assert_eq!(folder.emulate("app.opt"), expected);
    }
}

/// Compiles a program as `app`; gives what it prints as well. `None` without the tools for that.
fn built(program: &str) -> Option<(Folder, String)> {
    if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
        return None;
    }
    let folder = Folder::new();
    fs::write(folder.path("app.c"), program).expect("written");
    folder.run(GCC, &["-O2", "-o", "app", "app.c"]);
    let expected = folder.emulate("app");
    Some((folder, expected))
}

/// Runs postlink, which is to refuse no function.
fn refuses_nothing(folder: &Folder, args: &[&str]) {
    let said = folder.postlink(&[args, &["--json"]].concat());
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["refused"], serde_json::json!([]), "{said}");
}

/// Instruments `app` without a function being refused: `app.inst` writes `run.plraw`.
fn instrument_all(folder: &Folder) {
    let instrument = ["instrument", "app", "-o", "app.inst"];
    refuses_nothing(
        folder,
        &[&instrument[..], &["--profile", "run.plraw"]].concat(),
    );
}

/// Compiles a program, instruments it without a function being refused, and runs it.
fn counts_with_every_function(program: &str) {
    let Some((folder, expected)) = built(program) else {
        return;
    };
    instrument_all(&folder);
    assert_eq!(folder.emulate("app.inst"), expected, "while it counts");
}
