//! Calls counted in functions that are re-emitted, as those of programs without kept relocations are: exact counts
//! where a counter has something to keep, callers by addresses of the input, and faults, each of which must be found.

use std::collections::BTreeMap;

use postlink_elf::callers;
use postlink_elf::elf::Elf;
use postlink_mip::{Profile, create, mip, order};
use postlink_verify::mutate::Kind;

mod counted;
mod support;
use counted::{Folder, have, sampled};
use support::faults;

/// A function that is given flags, one that signs its return address where a compiler has it so, one that does so on
/// AArch64 in any case and jumps to another then, one that is jumped to with something below the stack pointer, leaf
/// functions, one whose first block is a loop, and one of which no unwind table says anything.
const SOURCE: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline, noipa))
APART int leaf(int x) { return x ^ 5; }
APART int other(int x) { volatile int a[8]; for (int i = 0; i < 8; i++) a[i] = x + i; return a[x & 7]; }
long turns(long x);
long signs(long x);
int quiet(int x);
APART int twice(int x) { return quiet(x) + quiet(x + 1); }
APART int pick(int x) { switch (x % 5) { case 0: return leaf(x); case 1: return other(x); case 2: return x - 9; default: return ~x; } }
int (*volatile pointer)(int) = pick;
long carry(long x);
long below(long x);
int main(void) {
  long sum = 0;
  for (int i = 0; i < 70; i++) sum += carry(i) + below(i);
  for (int i = 0; i < 300; i++) sum += pointer(i);
  for (int i = 0; i < 70; i++) sum += turns(i) + quiet(i);
  for (int i = 0; i < 70; i++) sum += twice(i) + signs(i);
  printf("%ld\n", sum);
  return 0;
}
"#;

const X86_64: &str = r#"
.intel_syntax noprefix
.text
.globl carry, below
.type carry, @function
carry:
  .cfi_startproc
  cmp rdi, 40
  call carried
  mov rdi, rax
  call carried
  ret
  .cfi_endproc
  .size carry, .-carry
.type carried, @function
carried:
  .cfi_startproc
  adc rdi, 3
  mov rax, rdi
  ret
  .cfi_endproc
  .size carried, .-carried
.type below, @function
below:
  .cfi_startproc
  mov [rsp - 16], rdi
  mov qword ptr [rsp - 64], 17
  lea r11, [rdi + 1]
  jmp part
  .cfi_endproc
  .size below, .-below
.type part, @function
part:
  .cfi_startproc
  mov rax, [rsp - 16]
  add rax, [rsp - 64]
  add rax, r11
  ret
  .cfi_endproc
  .size part, .-part
# Neither leaves the auxiliary carry as something else, so that is kept.
.globl turns
.type turns, @function
turns:
  .cfi_startproc
  lea rdi, [rdi - 3]
  mov rax, rdi
  test rdi, rdi
  jg turns
  ret
  .cfi_endproc
  .size turns, .-turns
.globl signs
.type signs, @function
signs:
  .cfi_startproc
  lea rax, [rdi + 3]
  ret
  .cfi_endproc
  .size signs, .-signs
.globl quiet
.type quiet, @function
quiet:
  lea eax, [rdi + 7]
  ret
  nop dword ptr [rax]
  .size quiet, .-quiet
.section .note.GNU-stack, "", @progbits
"#;

const AARCH64: &str = r#"
.text
.globl carry, below
.type carry, %function
carry:
  .cfi_startproc
  stp x29, x30, [sp, #-16]!
  .cfi_def_cfa_offset 16
  .cfi_offset 29, -16
  .cfi_offset 30, -8
  cmp x0, #40
  bl carried
  bl carried
  ldp x29, x30, [sp], #16
  .cfi_def_cfa_offset 0
  ret
  .cfi_endproc
  .size carry, .-carry
.type carried, %function
carried:
  .cfi_startproc
  adc x0, x0, x0
  ret
  .cfi_endproc
  .size carried, .-carried
.type below, %function
below:
  .cfi_startproc
  mov x16, #17
  add x17, x0, #1
  b part
  .cfi_endproc
  .size below, .-below
.type part, %function
part:
  .cfi_startproc
  add x0, x16, x17
  ret
  .cfi_endproc
  .size part, .-part
.globl turns
.type turns, %function
turns:
  .cfi_startproc
  sub x0, x0, #3
  cmp x0, #0
  b.gt turns
  ret
  .cfi_endproc
  .size turns, .-turns
# paciasp and autiasp
.globl signs
.type signs, %function
signs:
  .cfi_startproc
  hint #25
  .cfi_negate_ra_state
  add x0, x0, #1
  b signed
  .cfi_endproc
  .size signs, .-signs
.type signed, %function
signed:
  .cfi_startproc
  .cfi_negate_ra_state
  add x0, x0, #2
  hint #29
  .cfi_negate_ra_state
  ret
  .cfi_endproc
  .size signed, .-signed
.globl quiet
.type quiet, %function
quiet:
  add w0, w0, #7
  ret
  .size quiet, .-quiet
.section .note.GNU-stack, "", %progbits
"#;

/// Builds the program, compares its calls with what is known of them, and spoils its counters.
fn check(command: &str, assembly: &str, kinds: &[Kind]) {
    let compiler = command.split(' ').next().unwrap_or_default();
    if !have(compiler, command) || command.contains("aarch64") && !have("qemu-aarch64", command) {
        return;
    }
    let folder = Folder::built(&[("p.c", SOURCE), ("part.s", assembly)], command);
    let profile = folder.profile("call-graph", &[&[]]);
    for (name, calls) in [
        ("main", 1),
        ("carry", 70),
        ("carried", 140),
        ("below", 70),
        ("part", 70),
        ("twice", 70),
        ("signs", 70),
        ("pick", 300),
        ("leaf", 60),
        ("other", 60),
    ] {
        let mut functions = profile.functions.iter();
        let counted = functions.find(|f| f.name == name.as_bytes());
        let counted = counted.map(|f| f.call_count);
        assert_eq!(counted, Some(calls), "{command}: {name}");
    }
    let read = |name: &str| std::fs::read(folder.path(name)).expect("the folder is ours");
    let applied = faults::spoil(&read("p"), &read("p.call-graph"), kinds);
    for kind in kinds {
        assert!(
            applied.contains_key(kind),
            "{command}: {kind:?} was not applied: {applied:?}"
        );
    }
}

#[test]
fn calls_of_x86_64_are_counted_exactly_and_faults_in_their_counters_are_found() {
    for options in ["", "-no-pie "] {
        let command = format!("gcc -O2 {options}-o p p.c part.s");
        check(&command, X86_64, &[Kind::CALLS, Kind::ROUTINES].concat());
    }
}

#[test]
fn calls_of_aarch64_are_counted_exactly_and_faults_in_their_counters_are_found() {
    let both = |k: &&Kind| !Kind::CALLS_X86_64.contains(k);
    let all = Kind::CALLS.iter().chain(Kind::ROUTINES);
    let kinds: Vec<Kind> = all.filter(both).copied().collect();
    for options in ["", "-no-pie "] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-o p p.c part.s");
        check(&command, AARCH64, &kinds);
    }
}

/// Routines of the compiler's for atomic operations begin with a page in the register that the counter begins with too.
#[test]
fn routines_that_begin_as_their_counter_does_count() {
    let command = "aarch64-linux-gnu-gcc -O2 -static -o p p.c part.s";
    if !have("aarch64-linux-gnu-gcc", command) || !have("qemu-aarch64", command) {
        return;
    }
    let folder = Folder::built(&[("p.c", SOURCE), ("part.s", AARCH64)], command);
    for mode in ["call-graph", "call-edges"] {
        let profile = folder.profile(mode, &[&[]]);
        let is_atomic = |f: &&postlink_mip::Function| f.name.starts_with(b"__aarch64_");
        let atomic = || profile.functions.iter().filter(is_atomic);
        assert!(atomic().count() >= 8, "{mode}: {}", atomic().count());
        assert!(atomic().any(|f| f.call_count > 0), "{mode}: none ran");
    }
}

/// Callers by name: who they are, and how many calls the samples represent. What is in no function has no name.
type Callers = BTreeMap<(String, String), u64>;

/// The edges of a profile, whose return addresses must be behind calls of the input; direct ones of the function, but
/// in static programs, whose library jumps from function to function.
fn callers_of(profile: &Profile, input: &[u8], command: &str) -> Callers {
    let elf = Elf::parse(input).expect("a program");
    let mut out = Callers::new();
    for callee in &profile.functions {
        for edge in &callee.edges {
            let around = |f: &&postlink_mip::Function| {
                (f.address + 1..=f.address + i64::from(f.size)).contains(&edge.source)
            };
            let name = callee.display_name().into_owned();
            let caller = profile.functions.iter().find(around);
            let caller_name = caller.map_or(String::new(), |f| f.display_name().into_owned());
            *out.entry((name.clone(), caller_name)).or_default() += edge.weight;
            if caller.is_none() || command.contains("-static") {
                continue;
            }
            let target = if command.contains("aarch64") {
                target_a64(&elf, edge.source)
            } else {
                target_x86(&elf, edge.source)
            };
            let Some(target) = target else { continue };
            let jumps = name == "part"
                && profile
                    .functions
                    .iter()
                    .any(|f| f.name == b"below" && f.address == target);
            assert!(
                target == callee.address || jumps,
                "{command}: {name} is called from {:#x}",
                edge.source
            );
        }
    }
    out
}

/// Where the call in front of an address goes; `None`: through a register or memory.
fn target_x86(elf: &Elf<'_>, back: i64) -> Option<i64> {
    let call = elf.bytes_at(back as u64 - 5, 5).expect("code");
    if call[0] == 0xe8 {
        let distance = i32::from_le_bytes(call[1..].try_into().expect("four bytes"));
        return Some(back + i64::from(distance));
    }
    // call [rip+d], call [rsp+d], call reg
    assert!(call.contains(&0xff), "{call:x?} in front of {back:#x}");
    None
}

fn target_a64(elf: &Elf<'_>, back: i64) -> Option<i64> {
    let call = elf.bytes_at(back as u64 - 4, 4).expect("code");
    let call = u32::from_le_bytes(call.try_into().expect("four bytes"));
    if call >> 26 == 0x25 {
        let distance = (call << 6) as i32 >> 4;
        return Some(back - 4 + i64::from(distance));
    }
    // blr
    assert_eq!(call & 0xffff_fc1f, 0xd63f_0000, "in front of {back:#x}");
    None
}

/// Instruments a program for callers, runs it, and merges its run.
fn with_callers(folder: &Folder, program: &str, options: &[&str]) -> Profile {
    let inst = format!("{program}.edges");
    let all = [
        &["instrument", "--mode", "call-edges", program, "-o", &inst],
        options,
    ]
    .concat();
    folder.postlink(&all);
    let map = format!("{inst}.mipmap");
    let made = create::open(&folder.path(&map)).expect("a map");
    let raw = format!("run.{:04x}.mipraw", made.module_hash as u16);
    let _ = std::fs::remove_file(folder.path(&raw));
    let (plain, ours) = (
        folder.run(folder.path(program), &[]),
        folder.run(folder.path(&inst), &[]),
    );
    assert_eq!(plain.stdout, ours.stdout);
    assert_eq!(plain.status.code(), ours.status.code());
    let profile = format!("{program}.mip");
    folder.postlink(&["mip", "create", "-p", &profile, &map]);
    folder.postlink(&["mip", "merge", "--strict", "-p", &profile, &raw]);
    // The map says what the checker has found to be right.
    let output = std::fs::read(folder.path(&inst)).expect("the folder is ours");
    let output = Elf::parse(&output).expect("a program");
    let noted = callers::read(&output).expect("a note").unwrap_or_default();
    let noted: Vec<(i64, i64)> = noted.iter().map(|c| (c.new as i64, c.old as i64)).collect();
    let mapped: Vec<(i64, i64)> = made.callers.iter().map(|c| (c.ran, c.source)).collect();
    assert_eq!(noted, mapped);
    mip::open(&folder.path(&profile)).expect("a profile")
}

/// Builds the program, compares its callers with what is known of them, and spoils what notes them.
fn check_callers(command: &str, assembly: &str, kinds: &[Kind]) {
    let compiler = command.split(' ').next().unwrap_or_default();
    if !have(compiler, command) || command.contains("aarch64") && !have("qemu-aarch64", command) {
        return;
    }
    let folder = Folder::built(&[("p.c", SOURCE), ("part.s", assembly)], command);
    let input = std::fs::read(folder.path("p")).expect("the folder is ours");
    let profile = with_callers(&folder, "p", &[]);
    assert!(!profile.callers.is_empty(), "{command}: nothing moved");
    let callers = callers_of(&profile, &input, command);
    for (callee, caller, calls) in [
        ("carry", "main", 70),
        // Flags are kept.
        ("carried", "carry", 140),
        ("below", "main", 70),
        // It is jumped to by one that has no frame.
        ("part", "main", 70),
        ("twice", "main", 70),
        ("signs", "main", 70),
        ("pick", "main", 300),
        // By a tail call.
        ("leaf", "main", 60),
        ("other", "main", 60),
    ] {
        let weight = callers.get(&(callee.to_owned(), caller.to_owned()));
        assert_eq!(
            weight,
            Some(&sampled(calls)),
            "{command}: {callee}: {callers:?}"
        );
        let all = callers.iter().filter(|((name, _), _)| name == callee);
        assert_eq!(
            all.map(|(_, n)| n).sum::<u64>(),
            sampled(calls),
            "{command}: {callee}"
        );
    }
    // The entry is a loop's; no unwind table says that it is called.
    for callee in ["turns", "quiet"] {
        let mut functions = profile.functions.iter();
        let ran = functions.any(|f| f.name == callee.as_bytes() && f.call_count >= 70);
        assert!(ran, "{command}: {callee} is not counted");
        let any = callers.keys().any(|(name, _)| name == callee);
        assert!(!any, "{command}: {callee}: {callers:?}");
    }
    if command.contains("-mbranch-protection=standard") {
        let mut functions = profile.functions.iter();
        let twice = functions.find(|f| f.name == b"twice").expect("it is there");
        let elf = Elf::parse(&input).expect("a program");
        let first = elf.bytes_at(twice.address as u64, 4).expect("code");
        // paciasp
        assert_eq!(first, [0x3f, 0x23, 0x03, 0xd5], "{command}");
    }
    let order = order::by_call_graph(&profile).expect("edges");
    let place = |name: &str| {
        let is_it = |f: &&u32| profile.functions[**f as usize].name == name.as_bytes();
        order.iter().find(is_it).is_some()
    };
    assert!(
        place("main") && place("pick") && place("leaf"),
        "{command}: {order:?}"
    );
    let printed = folder.postlink(&["mip", "order", "-p", "p.mip", "--by", "call-graph"]);
    assert!(printed.contains("pick"), "{command}: {printed}");
    let applied = faults::spoil(
        &input,
        &std::fs::read(folder.path("p.edges")).expect("the folder is ours"),
        kinds,
    );
    for kind in kinds {
        assert!(
            applied.contains_key(kind),
            "{command}: {kind:?} was not applied: {applied:?}"
        );
    }
}

#[test]
fn callers_are_those_of_the_input_where_the_linker_kept_no_relocations() {
    for options in ["", "-no-pie "] {
        let command = format!("gcc -O2 {options}-o p p.c part.s");
        let kinds = [Kind::CALLS, Kind::CALLERS, Kind::ROUTINES].concat();
        check_callers(&command, X86_64, &kinds);
    }
}

#[test]
fn callers_of_aarch64_are_those_of_the_input_where_the_linker_kept_no_relocations() {
    let both = |k: &&Kind| !Kind::CALLS_X86_64.contains(k);
    let all = Kind::CALLS.iter().chain(Kind::CALLERS);
    let all = all.chain(Kind::ROUTINES);
    let kinds: Vec<Kind> = all.filter(both).copied().collect();
    for options in ["", "-no-pie ", "-static ", "-static-pie "] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-o p p.c part.s");
        check_callers(&command, AARCH64, &kinds);
    }
}

/// Where the linker kept relocations functions stay, and calls are counted in stubs.
#[test]
fn faults_in_rows_of_stubs_and_of_the_routine_that_they_call_are_found() {
    let kinds = [
        Kind::RoutineRowLost,
        Kind::RoutineRowLate,
        Kind::RoutineRowOff,
    ];
    let machines = [
        ("gcc", X86_64, "call-graph"),
        ("gcc", X86_64, "call-edges"),
        ("aarch64-linux-gnu-gcc", AARCH64, "call-edges"),
    ];
    for (compiler, assembly, mode) in machines {
        let command = format!("{compiler} -O2 -Wl,-q -o p p.c part.s");
        if !have(compiler, &command) {
            return;
        }
        let folder = Folder::built(&[("p.c", SOURCE), ("part.s", assembly)], &command);
        folder.postlink(&["instrument", "p", "-o", "counting", "--mode", mode]);
        let read = |name: &str| std::fs::read(folder.path(name)).expect("the folder is ours");
        let (input, output) = (read("p"), read("counting"));
        let report = postlink_verify::verify(&input, &output, &Default::default());
        let report = report.expect("they can be compared");
        assert!(report.is_proved() && report.routine_rows > 10, "{command}");
        let applied = faults::spoil(&input, &output, &kinds);
        assert_eq!(applied.len(), kinds.len(), "{command}: {applied:?}");
    }
}

/// The counter is before what signs the return address.
#[test]
fn callers_are_right_where_return_addresses_are_signed() {
    let both = |k: &&Kind| !Kind::CALLS_X86_64.contains(k);
    let all = Kind::CALLS.iter().chain(Kind::CALLERS);
    let all = all.chain(Kind::ROUTINES);
    let kinds: Vec<Kind> = all
        .chain(Kind::CALLERS_SIGNED)
        .filter(both)
        .copied()
        .collect();
    for options in ["", "-no-pie "] {
        let command = format!(
            "aarch64-linux-gnu-gcc -O2 -mbranch-protection=standard {options}-o p p.c part.s"
        );
        check_callers(&command, AARCH64, &kinds);
    }
}

/// A stripped program, one whose relocations are ignored and one whose relocations are used have the same edges: in the
/// last functions stay, and so do their callers.
#[test]
fn callers_are_the_same_with_and_without_relocations_and_symbols() {
    for (compiler, strip) in [
        ("gcc", "strip"),
        ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-strip"),
    ] {
        let emulated = compiler != "gcc" && !have("qemu-aarch64", compiler);
        if !have(compiler, compiler) || !have(strip, compiler) || emulated {
            continue;
        }
        same_with_and_without(compiler, strip);
    }
}

fn same_with_and_without(compiler: &str, strip: &str) {
    let command = format!("{compiler} -O2 -Wl,-q -o p p.c");
    let folder = Folder::built(&[("p.c", counted::PROGRAM)], &command);
    for (from, to) in [("p", "twin"), ("p", "bare")] {
        std::fs::copy(folder.path(from), folder.path(to)).expect("the folder is ours");
    }
    folder.tool(strip, &["bare"]);
    // How far from the program a library is that calls it may differ: instrumented programs have different sizes.
    let size = std::fs::metadata(folder.path("p"))
        .expect("it was linked")
        .len();
    let is_inside = |source: i64| u64::try_from(source).is_ok_and(|source| source < size);
    let edges = |profile: &Profile| -> BTreeMap<i64, (u64, Vec<(i64, u64)>)> {
        let functions = profile.functions.iter().filter(|f| f.is_covered());
        let of = functions.map(|f| {
            let inside = f.edges.iter().filter(|e| is_inside(e.source));
            let edges = inside.map(|e| (e.source, e.weight));
            (f.address, (f.call_count, edges.collect()))
        });
        of.collect()
    };
    let kept = edges(&with_callers(&folder, "p", &[]));
    for program in ["twin", "bare"] {
        let profile = with_callers(&folder, program, &["--relocations", "none"]);
        assert!(!profile.callers.is_empty(), "{program}: nothing moved");
        let mut compared = 0;
        for (address, (calls, list)) in edges(&profile) {
            let Some((kept_calls, kept_list)) = kept.get(&address) else {
                continue;
            };
            assert_eq!(calls, *kept_calls, "{program}: {address:#x}");
            // Those of a stub that the function itself jumps to as well are counted without.
            if !list.is_empty() && !kept_list.is_empty() {
                assert_eq!(list, *kept_list, "{program}: {address:#x}");
                compared += 1;
            }
        }
        assert!(compared >= 3, "{program}: {compared}");
    }
}
