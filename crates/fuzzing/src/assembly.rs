//! Assembly for the inserter of machine profiles: of any kind, whole and damaged.

use arbitrary::{Result, Unstructured};
use postlink_mip_asm::{Mode, Options, Target, instrument};

/// Lines that compilers and people write, in no order that makes sense.
const LINES: &[&str] = &[
    "\t.text",
    "\t.section\t.text.f,\"axG\",@progbits,f,comdat",
    "\t.section .rodata",
    "\t.section\t.gcc_except_table,\"a\",@progbits",
    "\t.pushsection .data",
    "\t.popsection",
    "\t.previous",
    "\t.subsection 1",
    "\t.type\tf, @function",
    "\t.type\t\"g h\", %function",
    "\t.type f",
    "f:",
    "\"g h\":",
    "_m:",
    ".L1:",
    ".L2: .L3: nop; jmp .L1",
    "1: 2:",
    "\t.cfi_startproc",
    "\t.cfi_endproc",
    "\t.size\tf, .-f",
    "\t.size \"g h\", .-\"g h\"",
    "\tendbr64",
    "\tjne\t.L2",
    "\tjmp\t*%rax",
    "\tcall\tf@PLT",
    "\tret",
    "\tleaq\t.L3(%rip), %rax",
    "\tb.eq\t.L1",
    "\ttbz\tw0, #3, .L2",
    "\tbl\tf",
    "\tbr\tx3",
    "\tpop\t{r4, pc}",
    "\tbx\tlr",
    "\t.long\t.L1-.L3",
    "\t.byte\t(.L2-.L1)/4",
    "\t.uleb128 .L1-f",
    "\t.uleb128 .L2-.L1",
    "#APP",
    "#NO_APP",
    "//APP",
    "//NO_APP",
    "\t.syntax divided",
    "\t.syntax unified",
    "\t.macro x",
    "\t.endm",
    "\t.rept 3",
    "\t.endr",
    "\t.if 1",
    "\t.thumb",
    "\t.ascii\t\"a;#b: \\\"\"",
    "/* a",
    "*/ nop",
    "x = 3",
    "\t.set y, .L1",
    "\t.altmacro",
];

/// Such lines, damaged in places.
pub fn text(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut text = vec![];
    for _ in 0..u.int_in_range(0..=40)? {
        text.extend_from_slice(u.choose(LINES)?.as_bytes());
        text.push(b'\n');
    }
    for _ in 0..u.int_in_range(0..=4)? {
        if text.is_empty() {
            break;
        }
        let at = u.int_in_range(0..=text.len() - 1)?;
        match u.int_in_range(0..=3)? {
            0 => text[at] = u.arbitrary()?,
            1 => text.truncate(at),
            2 => {
                text.remove(at);
            }
            _ => text.insert(at, *u.choose(b"\n\";:#@,.\\\xff")?),
        }
    }
    Ok(text)
}

/// Whether all bytes but blanks of one text are in the other one, in their order.
fn is_within(part: &[u8], whole: &[u8]) -> bool {
    let mut rest = whole.iter();
    part.iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .all(|byte| rest.any(|other| other == byte))
}

/// Instruments a text for some target: there is always an answer, and what was there stays there. Gives the
/// number of instrumented functions.
pub fn check(u: &mut Unstructured<'_>) -> Result<usize> {
    let triples = [
        "x86_64-linux-gnu",
        "aarch64-linux-gnu",
        "arm-linux-gnueabihf",
        "x86_64-apple-macos11",
        "arm64-apple-macos11",
    ];
    let text = text(u)?;
    let Some(target) = Target::of_triple(u.choose(&triples)?) else {
        return Ok(0);
    };
    let options = Options {
        mode: if u.arbitrary()? {
            Mode::CallGraph
        } else {
            Mode::FunctionCoverage
        },
        blocks: u.arbitrary()?,
        all_blocks: u.arbitrary()?,
        ..Options::default()
    };
    let done = instrument(&text, target, &options);
    assert!(is_within(&text, &done.text));
    if done.report.functions == 0 {
        assert_eq!(done.text, text);
    }
    Ok(done.report.functions)
}
