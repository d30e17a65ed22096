//! How functions are cut into blocks: assembly in, text of the blocks out.
//!
//! A line is a block: its range of instructions, what holds of it, and its successors. `UPDATE_EXPECT=1 cargo
//! test -p postlink-aggregate --test blocks` writes what is shown into the tests; read the difference.

use std::fmt::Write as _;
use std::process::Command;

use expect_test::{Expect, expect};
use postlink_aggregate::Binary;
use postlink_aggregate::blocks::{Blocks, References, Surroundings, blocks};
use postlink_elf::elf::Elf;
use postlink_isa::x86_64::X86_64;

/// Links a function `f` with another, `g`, and compares how the blocks of `f` are shown.
fn check(f: &str, more: &str, flags: &[&str], expected: &Expect) {
    expected.assert_eq(&blocks_of(f, more, flags));
}

fn check_text(f: &str, more: &str, flags: &[&str], expected: &str) {
    assert_eq!(blocks_of(f, more, flags), expected, "{flags:?}");
}

fn blocks_of(f: &str, more: &str, flags: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, path) = (dir.path().join("a.s"), dir.path().join("app"));
    let text = format!(
        ".text\n.globl _start, g\n.type f, @function\nf:\n{f}\n.size f, .-f\n.p2align 4, 0xcc\n\
         .type g, @function\ng: ret\n.size g, .-g\n\
         .type _start, @function\n_start: call f\ncall g\nret\n.size _start, .-_start\n{more}\n"
    );
    std::fs::write(&source, text).expect("the directory is ours");
    let status = Command::new("gcc")
        .args(["-nostdlib", "-static", "-o"])
        .args([&path, &source])
        .args(flags)
        .status();
    assert!(status.expect("gcc is needed for this test").success());
    let bytes = std::fs::read(&path).expect("gcc has just made it");
    let elf = Elf::parse(&bytes).expect("gcc made it");
    let binary = Binary::new(&path, &elf).expect("it has functions");
    let references = References::new(&elf);
    let around = Surroundings {
        elf: &elf,
        functions: &binary.functions,
        unwind: &binary.unwind,
        crossings: &[],
        references: &references,
    };
    let named = |index: &usize| {
        let mut names = binary.functions.names_of(*index).iter();
        names.any(|name| name.text().starts_with(b"f/") || *name.text() == *b"f")
    };
    let index = (0..binary.functions.list().len()).find(named);
    shown(&blocks::<X86_64>(&around, index.expect("f is there")))
}

fn shown(blocks: &Blocks) -> String {
    let mut text = String::new();
    for (number, block) in blocks.list().iter().enumerate() {
        let _ = write!(text, "{number}: {:x}..={:x}", block.start, block.last);
        for (holds, word) in [
            (block.entry, "entry"),
            (block.landing_pad, "landing pad"),
            (block.calls, "calls"),
            (block.goes_on, "goes on"),
            (block.dispatches, "dispatches"),
        ] {
            if holds {
                let _ = write!(text, ", {word}");
            }
        }
        let _ = writeln!(text, " -> {:?}", blocks.successors(number));
    }
    let known = if blocks.explained { "" } else { "not " };
    let _ = writeln!(text, "{known}explained, transfers {:x?}", blocks.transfers);
    text
}

#[test]
fn branches_end_blocks_and_calls_do_not() {
    check(
        "test %edi, %edi\nje 1f\ncall g\nnop\n1: ret",
        "",
        &[],
        &expect![[r#"
            0: 0..=2, entry, goes on -> [2, 1]
            1: 4..=9, goes on -> [2]
            2: a..=a -> []
            explained, transfers [4]
        "#]],
    );
}

#[test]
fn a_jump_after_a_conditional_branch_belongs_to_its_block() {
    check(
        "test %edi, %edi\nje 1f\njmp 2f\n1: nop\n2: ret",
        "",
        &[],
        &expect![[r#"
            0: 0..=4, entry, goes on -> [1, 2]
            1: 6..=6, goes on -> [2]
            2: 7..=7 -> []
            explained, transfers []
        "#]],
    );
}

#[test]
fn a_jump_after_a_conditional_branch_out_of_the_function_is_a_block_of_its_own() {
    check(
        "test %edi, %edi\nje g\njmp 2f\n1: nop\n2: ret",
        "",
        &[],
        &expect![[r#"
            0: 0..=2, entry, calls, goes on -> [1]
            1: 4..=4 -> [3]
            2: 6..=6, goes on -> [3]
            3: 7..=7 -> []
            explained, transfers [2]
        "#]],
    );
}

#[test]
fn a_branch_just_after_the_end_of_the_function_is_none() {
    check(
        "test %edi, %edi\nje 1f\nret\n1:",
        "",
        &[],
        &expect![[r#"
        0: 0..=4, entry -> []
        explained, transfers []
    "#]],
    );
}

#[test]
fn a_relative_table_that_the_jump_names_gives_successors() {
    check(
        "lea table(%rip), %rdx\nmovslq (%rdx,%rdi,4), %rax\nadd %rdx, %rax\njmp *%rax\n\
         1: nop\n2: nop\n3: ret",
        ".section .rodata\n.p2align 2\ntable: .long 1b-table, 2b-table, 3b-table, 0",
        &[],
        &expect![[r#"
            0: 0..=e, entry, goes on, dispatches -> [1, 2, 3]
            1: 10..=10, goes on -> [2]
            2: 11..=11, goes on -> [3]
            3: 12..=12 -> []
            explained, transfers [e]
        "#]],
    );
}

#[test]
fn a_table_ends_where_the_next_begins() {
    check(
        "lea other(%rip), %rcx\nlea table(%rip), %rdx\nmovslq (%rdx,%rdi,4), %rax\nadd %rdx, %rax\n\
         jmp *%rax\n1: nop\n2: nop\n3: ret",
        ".section .rodata\n.p2align 2\ntable: .long 1b-table, 2b-table\nother: .long 3b-table, 3b-table, 0",
        &[],
        &expect![[r#"
            0: 0..=15, entry, goes on, dispatches -> [1, 2]
            1: 17..=17, goes on -> [2]
            2: 18..=19 -> []
            explained, transfers [15]
        "#]],
    );
}

#[test]
fn a_jump_that_nothing_explains_goes_nowhere_and_the_rest_of_its_function_is_believed() {
    check(
        "test %edi, %edi\nje 1f\njmp *%rsi\n1: ret",
        "",
        &[],
        &expect![[r#"
            0: 0..=2, entry, goes on -> [2, 1]
            1: 4..=4 -> []
            2: 6..=6 -> []
            explained, transfers [4]
        "#]],
    );
}

#[test]
fn with_kept_relocations_it_may_go_to_whatever_data_refers_to() {
    check(
        "test %edi, %edi\nje 1f\njmp *%rsi\n1: ret\n2: nop\nret",
        ".data\n.quad 2b",
        &["-Wl,--emit-relocs"],
        &expect![[r#"
            0: 0..=2, entry, goes on -> [2, 1]
            1: 4..=4, dispatches -> [3]
            2: 6..=6 -> []
            3: 7..=8 -> []
            explained, transfers [4]
        "#]],
    );
}

#[test]
fn a_jump_after_the_frame_is_taken_down_is_a_tail_call() {
    check(
        "test %edi, %edi\nje 1f\npop %rbp\njmp *%rsi\n1: ret",
        "",
        &[],
        &expect![[r#"
            0: 0..=2, entry, goes on -> [2, 1]
            1: 4..=5 -> []
            2: 7..=7 -> []
            explained, transfers [5]
        "#]],
    );
}

#[test]
fn a_place_whose_address_the_code_forms_is_an_entry() {
    check(
        "lea 1f(%rip), %rax\nnop\n1: ret",
        "",
        &[],
        &expect![[r#"
        0: 0..=7, entry, goes on -> [1]
        1: 8..=8, entry -> []
        explained, transfers []
    "#]],
    );
}

#[test]
fn a_block_begins_where_data_refers_to() {
    let data = ".data\n.quad 1b";
    let f = "nop\nnop\n1: nop\nret";
    let cut = expect![[r#"
        0: 0..=1, entry, goes on -> [1]
        1: 2..=3 -> []
        explained, transfers []
    "#]];
    check(f, data, &["-Wl,--emit-relocs"], &cut);
    // The loader's relocations tell of it too.
    check(f, data, &["-static-pie"], &cut);
    // At a fixed address without kept relocations it is a number among others.
    check(
        f,
        data,
        &[],
        &expect![[r#"
            0: 0..=3, entry -> []
            explained, transfers []
        "#]],
    );
}

#[test]
fn a_lock_prefix_is_an_instruction_of_its_own() {
    check(
        "je 1f\nlock\n1: incl (%rdi)\nret",
        "",
        &[],
        &expect![[r#"
            0: 0..=0, entry, goes on -> [2, 1]
            1: 2..=2, goes on -> [2]
            2: 3..=5 -> []
            explained, transfers []
        "#]],
    );
}

#[test]
fn a_table_goes_on_behind_an_entry_that_leads_to_a_part_of_the_function() {
    check(
        "lea table(%rip), %rdx\nmovslq (%rdx,%rdi,4), %rax\nadd %rdx, %rax\njmp *%rax\n\
         1: nop\n2: ret",
        ".type f.cold, @function\nf.cold: ud2\n.size f.cold, .-f.cold\n\
         .section .rodata\n.p2align 2\ntable: .long 1b-table, f.cold-table, 2b-table, g-table, 1b-table",
        &["-Wl,--emit-relocs"],
        &expect![[r#"
            0: 0..=e, entry, goes on, dispatches -> [1, 2]
            1: 10..=10, goes on -> [2]
            2: 11..=11 -> []
            explained, transfers [e]
        "#]],
    );
}

#[test]
fn a_function_with_a_part_elsewhere_is_unbelieved_unless_relocations_are_kept() {
    let f = "test %edi, %edi\nje 1f\nnop\n1: ret";
    let part = ".type f.cold, @function\nf.cold: ud2\n.size f.cold, .-f.cold";
    let blocks = |known: &str| {
        format!(
            "0: 0..=2, entry, goes on -> [2, 1]\n1: 4..=4, goes on -> [2]\n2: 5..=5 -> []\n{known}explained, transfers []\n"
        )
    };
    check_text(f, part, &[], &blocks("not "));
    check_text(f, part, &["-Wl,--emit-relocs"], &blocks(""));
}
