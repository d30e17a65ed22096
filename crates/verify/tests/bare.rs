//! Programs whose linker kept no relocations. Each twin is a program in which something leads into the bytes that
//! the jump at an old entry overwrites, or reads them, and an output as a rewriter would make it that does not
//! see it: it must be refused, and the same program without that one thing proved.

mod support;

use postlink_verify::mutate::{Faults, Kind};
use postlink_verify::{Basis, EntryLevel, Options, Report, verify};
use support::{Rewritten, compile, functions, offset, rewrite, run};

const PIE: &[&str] = &["-pie", "-fPIE", "-fno-toplevel-reorder"];
const FIXED: &[&str] = &["-no-pie", "-fno-pie", "-fno-toplevel-reorder"];

/// Everything moves, and every old entry gets a jump.
const BLIND: support::Options = support::Options {
    pointers: false,
    entry_jumps: true,
    any_front: true,
    shift: 0,
    bare: true,
};

/// A program with a function `victim` of a few instructions, in front of which, in which, or beside which `more`
/// is. The second instruction is at `inside`, two bytes behind the entry.
fn program(body: &str, more: &str) -> String {
    format!(
        r#"
#include <stdio.h>
extern int victim(int);
__asm__(".text\n.p2align 4\n.globl victim\n.type victim,@function\nvictim:\n.cfi_startproc\n"
    "movl %edi,%eax\n.Linside: addl $3,%eax\n imull $5,%eax,%eax\n {body}\n ret\n.cfi_endproc\n.size victim,.-victim\n.p2align 4\n{more}");
__attribute__((noinline)) int other(int x) {{ return x * 7 + victim(x); }}
int main(int argc, char **argv) {{ printf("%d %d\n", victim(argc), other(argc)); return 0; }}
"#
    )
}

fn check(input: &[u8], output: &[u8]) -> Report {
    verify(input, output, &Options::default()).expect("both can be read")
}

fn failures(report: &Report) -> Vec<String> {
    let of_functions = report
        .failures()
        .map(|(f, failure)| format!("{}: {failure}", f.name));
    let of_file = report.file_failures.iter().map(ToString::to_string);
    of_functions.chain(of_file).collect()
}

/// Moves `victim` and `other` of a program. `None` without the compiler.
fn moved(source: &str, flags: &[&str]) -> Option<(Vec<u8>, Rewritten)> {
    let Some(input) = compile("program", source, "gcc", flags) else {
        eprintln!("SKIPPED: gcc is not installed");
        return None;
    };
    let names: Vec<&str> = ["victim", "other"].to_vec();
    let rewritten = rewrite(&input, &names, BLIND);
    Some((input, rewritten))
}

#[track_caller]
fn assert_proved(source: &str, flags: &[&str]) {
    let Some((input, rewritten)) = moved(source, flags) else {
        return;
    };
    let report = check(&input, &rewritten.image);
    assert!(report.is_proved(), "{:#?}", failures(&report));
    assert_eq!(report.proved, 2);
    assert_eq!(run(&input, &["a"]), run(&rewritten.image, &["a"]));
}

/// The function `victim` is refused, with these words.
#[track_caller]
fn assert_refused(source: &str, flags: &[&str], words: &str) {
    let Some((input, rewritten)) = moved(source, flags) else {
        return;
    };
    let all = failures(&check(&input, &rewritten.image));
    let found = all
        .iter()
        .any(|f| f.starts_with("victim") && f.contains(words));
    assert!(found, "{words}: {all:#?}");
}

#[test]
fn a_program_without_kept_relocations_is_proved() {
    for flags in [PIE, FIXED] {
        assert_proved(&program("", ""), flags);
    }
}

#[test]
fn a_branch_of_the_function_to_its_second_instruction_is_found() {
    let short = program("decl %edi\\n js .Linside", "");
    assert_refused(&short, PIE, "the branch at");
    let long = program(
        "testl %edi,%edi\\n .byte 0x0f,0x88\\n .long .Linside-.-4",
        "",
    );
    assert_refused(&long, PIE, "what could be a branch near");
    assert_proved(&program("testl %edi,%edi\\n js 1f\\n1:", ""), PIE);
}

#[test]
fn a_branch_of_another_function_is_found() {
    let other = |to: &str| {
        format!(
            ".globl third\\n.type third,@function\\nthird:\\n.cfi_startproc\\n movl %esi,%eax\\n jmp {to}\\n.cfi_endproc\\n.size third,.-third\\n"
        )
    };
    assert_refused(&program("", &other(".Linside")), PIE, "the branch at");
    assert_proved(&program("", &other("victim")), PIE);
}

#[test]
fn a_short_branch_of_code_without_unwind_entry_is_found() {
    // Neither a size nor an unwind entry: decoded from no certain place.
    assert_refused(
        &program("", " jmp .Linside\\n"),
        PIE,
        "what could be an instruction after",
    );
    assert_proved(&program("", " jmp victim\\n"), PIE);
}

#[test]
fn a_branch_that_hides_in_a_constant_is_found() {
    let hidden = |to: &str| {
        format!(
            ".globl third\\n.type third,@function\\nthird:\\n.cfi_startproc\\n .byte 0x48,0xb8,0x90,0x90,0xe9\\n .long {to}-.-4\\n .byte 0x90\\n ret\\n.cfi_endproc\\n.size third,.-third\\n"
        )
    };
    assert_refused(
        &program("", &hidden(".Linside")),
        PIE,
        "what could be a branch near",
    );
    assert_proved(&program("", &hidden("victim")), PIE);
}

#[test]
fn a_pointer_to_the_second_instruction_is_found() {
    let word = |to: &str| {
        format!(".pushsection .data.rel.ro,\\\"aw\\\"\\n.p2align 3\\n .quad {to}\\n.popsection\\n")
    };
    for flags in [PIE, FIXED] {
        let how = if flags == PIE {
            "the relocation at"
        } else {
            "the number at"
        };
        assert_refused(&program("", &word(".Linside")), flags, how);
        assert_proved(&program("", &word("victim")), flags);
    }
    // Of RELR, and where words are at multiples of four alone.
    let relr = [PIE, &["-Wl,-z,pack-relative-relocs"]].concat();
    assert_refused(&program("", &word(".Linside")), &relr, "the pointer at");
    let odd = word(".Linside").replace(".quad", ".long 0\\n .quad");
    assert_refused(&program("", &odd), FIXED, "the number at");
}

#[test]
fn a_symbol_of_the_second_instruction_is_found() {
    let named = program("", "").replace(".Linside", "inside");
    assert_refused(&named, PIE, "the symbol at");
}

#[test]
fn a_number_that_is_the_address_of_the_second_instruction_is_found() {
    let number = |to: &str| {
        format!(
            ".globl third\\n.type third,@function\\nthird:\\n.cfi_startproc\\n movl ${to},%eax\\n ret\\n.cfi_endproc\\n.size third,.-third\\n"
        )
    };
    assert_refused(&program("", &number(".Linside")), FIXED, "the number at");
    assert_proved(&program("", &number("victim")), FIXED);
    // In code that nothing tells the beginning of.
    assert_refused(&program("", " .long .Linside\\n"), FIXED, "the number at");
}

/// A table may describe code by address. The jump at the entry is in nobody's way, so nothing else is wrong.
#[test]
fn a_word_or_number_that_may_be_an_address_further_inside_is_found() {
    let further = "nop\\n.Lfurther: xorl %edx,%edx";
    let word = |to: &str| {
        format!(".pushsection .data.rel.ro,\\\"aw\\\"\\n.p2align 3\\n .quad {to}\\n.popsection\\n")
    };
    let third = |insn: &str| {
        format!(
            ".globl third\\n.type third,@function\\nthird:\\n.cfi_startproc\\n {insn}\\n ret\\n.cfi_endproc\\n.size third,.-third\\n"
        )
    };
    let immediate = |to: &str| third(&format!("movl ${to},%eax"));
    let displacement = |to: &str| third(&format!("movl {to}(%rdi),%eax"));
    let long = |to: &str| third(&format!("movabsq ${to},%rax"));
    let ways: [&dyn Fn(&str) -> String; 4] = [&word, &immediate, &displacement, &long];
    for way in ways {
        let words = "a word or number of the program is";
        assert_refused(&program(further, &way(".Lfurther")), FIXED, words);
        assert_proved(&program(further, &way("victim")), FIXED);
    }
    // Nor is a word at an odd multiple of four one that programs look up.
    let odd = word(".Lfurther").replace(".quad", ".long 0\\n .quad");
    assert_proved(&program(further, &odd), FIXED);
}

#[test]
fn an_address_formed_of_the_second_instruction_is_found() {
    let forms = |to: &str| {
        format!(
            ".globl third\\n.type third,@function\\nthird:\\n.cfi_startproc\\n leaq {to}(%rip),%rax\\n ret\\n.cfi_endproc\\n.size third,.-third\\n"
        )
    };
    assert_refused(
        &program("", &forms(".Linside")),
        PIE,
        "the address formed at",
    );
    assert_proved(&program("", &forms("victim")), PIE);
}

#[test]
fn a_read_of_the_entry_is_found() {
    let reads = |to: &str| {
        format!(
            ".globl third\\n.type third,@function\\nthird:\\n.cfi_startproc\\n movq {to}(%rip),%rax\\n ret\\n.cfi_endproc\\n.size third,.-third\\n"
        )
    };
    for to in ["victim", "victim+4"] {
        assert_refused(&program("", &reads(to)), PIE, " read");
    }
    assert_proved(&program("", &reads("main+64")), PIE);
}

#[test]
fn an_entry_of_a_jump_table_is_found() {
    // A dispatch through a table of the function's own.
    let table = |to: &str| {
        program(
            "cmpl $2,%edi\\n ja 9f\\n movl %edi,%edi\\n leaq table(%rip),%rdx\\n movslq (%rdx,%rdi,4),%rcx\\n addq %rdx,%rcx\\n jmp *%rcx\\n8: incl %eax\\n9:",
            &format!(
                ".pushsection .rodata\\n.p2align 2\\ntable: .long 8b-table, 9b-table, {to}-table\\n.popsection\\n"
            ),
        )
    };
    assert_refused(&table(".Linside"), PIE, "the table's entry at");
    assert_proved(&table("8b"), PIE);
}

#[test]
fn a_landing_pad_behind_the_entry_is_found() {
    let pads = |to: &str| {
        let area = format!(
            ".pushsection .gcc_except_table,\\\"a\\\"\\narea: .byte 0xff,0xff,0x01,9f-8f\\n8: .uleb128 0, 60, {to}-victim, 0\\n9:\\n.popsection\\n"
        );
        program("", &area).replace(
            "victim:\\n.cfi_startproc\\n",
            "victim:\\n.cfi_startproc\\n.cfi_personality 0x9b,DW.ref.__gcc_personality_v0\\n.cfi_lsda 0x1b,area\\n",
        ) + "__asm__(\".hidden DW.ref.__gcc_personality_v0\\n.weak DW.ref.__gcc_personality_v0\\n.pushsection .data.rel.local.DW.ref.__gcc_personality_v0,\\\"awG\\\",@progbits,DW.ref.__gcc_personality_v0,comdat\\n.p2align 3\\nDW.ref.__gcc_personality_v0: .quad __gcc_personality_v0\\n.popsection\");"
    };
    assert_refused(&pads(".Linside"), PIE, "the landing pad at");
}

#[test]
fn the_certificate_names_the_basis_and_what_each_function_rests_on() {
    for (flags, basis) in [(PIE, Basis::Dynamic), (FIXED, Basis::None)] {
        let Some((input, rewritten)) = moved(&program("", ""), flags) else {
            return;
        };
        let report = check(&input, &rewritten.image);
        assert_eq!(report.basis, basis);
        for f in &report.functions {
            let entry = f.entry.as_ref().expect("it is told");
            assert_eq!(entry.level, EntryLevel::Long);
            assert_eq!(entry.relies_on, ["A2", "A3", "A4"]);
        }
        let accepted = |ids: &[&str]| {
            let options = Options {
                accepted: postlink_verify::Accepted::parse(ids).expect("they are known"),
                ..Options::default()
            };
            let report = verify(&input, &rewritten.image, &options);
            report.expect("both can be read").is_proved()
        };
        assert!(accepted(&["A1", "A2", "A3", "A4", "A7"]));
        assert!(!accepted(&["A1", "A2", "A4", "A7"]));
    }
}

/// Bytes of the output that another rewriter would have changed too.
fn spoilt(
    source: &str,
    change: impl Fn(&[u8], &mut Vec<u8>, &Rewritten) -> bool,
) -> Option<Report> {
    let (input, rewritten) = moved(source, PIE)?;
    let mut image = rewritten.image.clone();
    assert!(
        change(&input, &mut image, &rewritten),
        "there is such a place"
    );
    assert_ne!(image, rewritten.image);
    Some(check(&input, &image))
}

#[test]
fn pointers_tables_and_old_code_that_change_are_found() {
    // A pointer that follows, in the place that the loader fills.
    let pointer = program(
        "",
        ".pushsection .data.rel.ro,\\\"aw\\\"\\n.p2align 3\\n .quad victim\\n.popsection\\n",
    );
    let follow = |input: &[u8], image: &mut Vec<u8>, rewritten: &Rewritten| {
        let m = rewritten
            .moved
            .iter()
            .find(|m| m.0 == "victim")
            .expect("it moved");
        let (old, new) = (m.1.to_le_bytes(), m.2[0].0.to_le_bytes());
        let rela = support::sections(input)
            .into_iter()
            .find(|s| s.name == ".rela.dyn");
        let rela = rela.expect("there are relocations");
        let mut places = (rela.offset + 16..rela.offset + rela.size).step_by(24);
        let place = places.find(|at| image[*at..at + 8] == old);
        place
            .map(|at| image[at..at + 8].copy_from_slice(&new))
            .is_some()
    };
    let Some(report) = spoilt(&pointer, follow) else {
        return;
    };
    assert!(!report.is_proved());
    // A byte of the old body behind the jump.
    let touch = |input: &[u8], image: &mut Vec<u8>, _: &Rewritten| {
        let victim = functions(input).into_iter().find(|f| f.0 == "victim");
        let at = offset(input, victim.expect("it is there").1 + 6);
        image[at] ^= 1;
        true
    };
    assert!(
        !spoilt(&program("", ""), touch)
            .expect("gcc is here")
            .is_proved()
    );
    // A byte of constants.
    let constant = |input: &[u8], image: &mut Vec<u8>, _: &Rewritten| {
        let s = support::sections(input)
            .into_iter()
            .find(|s| s.name == ".rodata");
        image[s.expect("it is there").offset + 4] ^= 1;
        true
    };
    assert!(
        !spoilt(&program("", ""), constant)
            .expect("gcc is here")
            .is_proved()
    );
    // A call in code that stays.
    let call = |input: &[u8], image: &mut Vec<u8>, rewritten: &Rewritten| {
        let main = functions(input)
            .into_iter()
            .find(|f| f.0 == "main")
            .expect("it is there");
        let m = rewritten
            .moved
            .iter()
            .find(|m| m.0 == "victim")
            .expect("it moved");
        let place = (main.1..main.2).find(|at| {
            let from = offset(input, *at);
            let field = i64::from(support::u32_at(input, from + 1) as i32);
            input[from] == 0xe8 && (*at + 5).wrapping_add_signed(field) == m.1
        });
        let Some(at) = place else { return false };
        let field = (m.2[0].0 as i64 - (at as i64 + 5)) as i32;
        let from = offset(input, at) + 1;
        image[from..from + 4].copy_from_slice(&field.to_le_bytes());
        true
    };
    assert!(
        !spoilt(&program("", ""), call)
            .expect("gcc is here")
            .is_proved()
    );
}

#[test]
fn faults_of_rewriters_that_know_too_little_are_found() {
    let source = program(
        "cmpl $2,%edi\\n ja 9f\\n movl %edi,%edi\\n leaq table(%rip),%rdx\\n movslq (%rdx,%rdi,4),%rcx\\n addq %rdx,%rcx\\n leaq victim(%rip),%rdx\\n jmp *%rcx\\n8: incl %eax\\n9:",
        ".pushsection .rodata\\n.p2align 2\\ntable: .long 8b-table, 9b-table, 8b-table\\n.popsection\\n",
    );
    let Some((input, rewritten)) = moved(&source, PIE) else {
        return;
    };
    let faults = Faults::new(&input, &rewritten.image).expect("the pair is proved");
    for &kind in Kind::WITHOUT_RELOCATIONS {
        let mut applied = 0;
        for seed in 0..8 {
            let Some(mutant) = faults.inject(kind, seed) else {
                break;
            };
            applied += 1;
            let report = verify(&input, &mutant.image, &Options::default());
            assert!(!report.is_ok_and(|r| r.is_proved()), "{}", mutant.what);
        }
        assert!(applied > 0, "{kind:?} applies nowhere");
    }
}
