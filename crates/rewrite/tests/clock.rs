//! Counts from samples of instructions: of a clock, and of executed instructions.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_profile::address::Place;
use postlink_profile::preaggregated;
use postlink_rewrite::attach::{Samples, Source};
use postlink_rewrite::{Phases, facts};

/// A function with a branch that is rare, a load that waits, and a block of one instruction beside it.
const CODE: &str = "
    .globl main
    .type main, @function
main:
    .cfi_startproc
    xorl %eax, %eax
main2:
    testl %edi, %edi
main3:
    je rare
waits:
    movq (%rsi), %rdx
after:
    addq $1, %rdx
after2:
    testq %rdx, %rdx
after3:
    je join
short:
    incl %eax
join:
    addl %edx, %eax
join2:
    leal 1(%rax), %eax
join3:
    xorl %edx, %eax
join4:
    ret
rare:
    movl $1, %eax
rare2:
    movl $2, %edx
rare3:
    imull %edx, %eax
rare4:
    addl $7, %eax
rare5:
    jmp join
    .cfi_endproc
    .size main, . - main
    .section .note.GNU-stack, \"\", @progbits
";

/// Counts of the blocks of `main` that begin at some labels, by samples at labels; `None`, and says so, if there is no
/// compiler.
fn counts(code: &str, event: &str, samples: &[(&str, u64)], labels: &[&str]) -> Option<Vec<u64>> {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("a.s"), folder.path().join("a"));
    fs::write(&source, code).expect("the folder is ours");
    let status = Command::new("gcc")
        .args(["-Wl,-q", "-o"])
        .args([&program, &source])
        .status();
    if !cfg!(target_arch = "x86_64") || !status.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: gcc for x86-64 is missing");
        return None;
    }
    let data = fs::read(&program).expect("it was built");
    let elf = Elf::parse(&data).expect("a program");
    let at = |label: &str| {
        let symbols = elf.symbols(SymbolTable::Static);
        let symbol = symbols.iter().find(|s| s.name == label.as_bytes());
        symbol.expect("a label").value
    };
    let mut text = format!("E {event}\n");
    for (label, count) in samples {
        writeln!(text, "S {:x} {count}", at(label)).expect("a string");
    }
    let file = folder.path().join("a.preagg");
    fs::write(&file, text).expect("the folder is ours");
    let profile = preaggregated::read(&file).expect("samples");
    let address = |place: Place| Some(place.address);
    let source = Source::Addresses(Samples {
        profile: &profile,
        address: &address,
        same_code: true,
    });
    let facts = facts::facts(&elf, source, &mut Phases::default()).expect("it fits");
    let main = facts.functions.iter().find(|f| f.name == "main");
    let ran = main.and_then(|f| f.ran.as_ref()).expect("main ran");
    let count = |label: &&str| {
        let block = ran.blocks.iter().find(|b| b.start == at(label));
        block.expect("a block").count
    };
    Some(labels.iter().map(count).collect())
}

const LABELS: [&str; 4] = ["main", "waits", "join", "rare"];

#[test]
fn a_load_that_waits_does_not_run_more_often_than_what_leads_to_it() {
    let samples = [("main", 30), ("waits", 10), ("after", 5000), ("join", 40)];
    let Some(counts) = counts(CODE, "cpu-clock:u", &samples, &LABELS) else {
        return;
    };
    let [main, waits, join, rare] = counts[..] else {
        panic!("four counts");
    };
    assert!(main.abs_diff(join) <= main / 100, "{main} {join}");
    assert!(waits <= main && waits > main / 2, "{main} {waits}");
    assert!(rare < main / 2, "{main} {rare}");
    // By instruction it has 1,252 samples.
    assert!(main < 500_000, "{main}");
}

#[test]
fn samples_of_instructions_say_how_often_blocks_run() {
    let each =
        |count, labels: &[&'static str]| labels.iter().map(|l| (*l, count)).collect::<Vec<_>>();
    let samples = [
        each(100, &["main", "main2", "main3"]),
        each(75, &["waits", "after", "after2", "after3"]),
        each(100, &["join", "join2", "join3", "join4"]),
        each(20, &["rare", "rare2", "rare3", "rare4", "rare5"]),
    ]
    .concat();
    let Some(counts) = counts(CODE, "instructions:u", &samples, &LABELS) else {
        return;
    };
    let [main, waits, join, rare] = counts[..] else {
        panic!("four counts");
    };
    assert!((60_000..140_000).contains(&main), "{main}");
    assert!((45_000..120_000).contains(&waits), "{waits}");
    assert!(main.abs_diff(join) <= main / 100, "{main} {join}");
    assert!((5_000..40_000).contains(&rare), "{rare}");
}

/// Two arms with the same instructions, each of which calls another function; and a third function that calls one of
/// them as well.
const CALLS: &str = "
    .macro function name
    .globl \\name
    .type \\name, @function
\\name:
    .cfi_startproc
    .endm
    .macro end name
    .cfi_endproc
    .size \\name, . - \\name
    .endm

    function main
    subq $8, %rsp
    testl %edi, %edi
    je two
one:
    movl $1, %edi
    call first
    jmp join
two:
    movl $2, %edi
    call second
join:
    addl %edi, %eax
    addq $8, %rsp
    ret
    end main

    function first
    leal 1(%rdi), %eax
first2:
    imull %edi, %eax
first3:
    xorl $5, %eax
first4:
    ret
    end first

    function second
    leal 2(%rdi), %eax
second2:
    imull %edi, %eax
second3:
    xorl $6, %eax
second4:
    ret
    end second

    function other
    call second
other2:
    leal 3(%rax), %eax
other3:
    addl %eax, %eax
other4:
    ret
    end other
    .section .note.GNU-stack, \"\", @progbits
";

/// How often the two arms run, with samples on neither: by samples of each instruction of both functions, and of the
/// other caller of the second.
fn arms(event: &str, first: u64, second: u64, other: u64) -> Option<(u64, u64)> {
    let mut samples = vec![("main", 30), ("join", 30)];
    let mut push = |labels: [&'static str; 4], count| {
        if count > 0 {
            samples.extend(labels.map(|label| (label, count)));
        }
    };
    push(["first", "first2", "first3", "first4"], first);
    push(["second", "second2", "second3", "second4"], second);
    push(["other", "other2", "other3", "other4"], other);
    let counts = counts(CALLS, event, &samples, &["one", "two"])?;
    Some((counts[0], counts[1]))
}

#[test]
fn an_arm_that_calls_a_function_with_samples_runs_more_often_than_one_that_calls_another_without() {
    let Some((one, two)) = arms("cpu-clock:u", 20, 0, 0) else {
        return;
    };
    assert!(one > 10 * two, "{one} {two}");
    let (one, two) = arms("cpu-clock:u", 0, 20, 0).expect("a compiler");
    assert!(two > 10 * one, "{one} {two}");
}

#[test]
fn a_function_that_others_call_often_makes_no_arm_hot() {
    let Some((one, two)) = arms("cpu-clock:u", 10, 20, 20) else {
        return;
    };
    assert!(one > two, "{one} {two}");
}

#[test]
fn samples_of_executed_instructions_say_nothing_of_callers() {
    let Some(before) = arms("instructions:u", 20, 0, 0) else {
        return;
    };
    assert_eq!(arms("instructions:u", 0, 20, 0), Some(before));
}
