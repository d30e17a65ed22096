//! The rewriter puts counters where it takes registers and flags for dead; the checker proves it with a table
//! of its own. Where the checker's table knows less, functions are put back that are right: so for every
//! instruction that compilers emit, what the rewriter takes for overwritten and not read is so for the
//! checker as well.

use std::collections::BTreeMap;

use postlink_isa::aarch64::AArch64;
use postlink_isa::x86_64::{self, X86_64};
use postlink_isa::{Decode, Encode, Flow, RegSet};
use postlink_verify::testing::{self, Differences, aarch64_flow, aarch64_words};

/// The rewriter's flags as the checker numbers them.
fn flags(set: RegSet) -> u8 {
    use x86_64::{AF, CF, OF, PF, SF, ZF};
    [(CF, 1), (PF, 2), (AF, 4), (ZF, 8), (SF, 16), (OF, 32)]
        .iter()
        .filter(|(flag, _)| set.0 & flag.0 != 0)
        .fold(0, |sum, (_, bit)| sum | bit)
}

/// Instructions of operating systems and of virtual machines, and some whose operands the two decoders divide
/// up otherwise: no compiler emits them on its own.
const LEFT_OUT: &[&str] = &[
    "aes",
    "clrssbsy",
    "enc",
    "enqcmd",
    "getsec",
    "in",
    "inv",
    "l",
    "mcommit",
    "mwait",
    "out",
    "pause",
    "pconfig",
    "popq",
    "psmash",
    "pvalidate",
    "rdrand",
    "rdseed",
    "rdmsr",
    "rdpkru",
    "rdpmc",
    "rdpru",
    "rmp",
    "rstorssp",
    "seamops",
    "senduipi",
    "sldt",
    "smsw",
    "str",
    "swapgs",
    "testui",
    "tpause",
    "um",
    "umwait",
    "verr",
    "verw",
    "vm",
    "xabort",
    "xrstor",
    "xsave",
];
/// Names that begin like those, and are compared.
const COMPARED: &[&str] = &[
    "inc", "lahf", "lea", "loop", "lzcnt", "vmov", "vmul", "vmax", "vmin", "vmask",
];

/// Every prefix, REX prefix, opcode of one and two bytes and ModRM byte.
fn every(mut visit: impl FnMut(&[u8], u16)) {
    for prefix in [0u8, 0x66, 0xf2, 0xf3] {
        for rex in [0u8, 0x41, 0x48, 0x4d] {
            for opcode in 0..0x200u16 {
                // Segments' and other prefixes come in front, once.
                if matches!(opcode, 0x0f | 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
                {
                    continue;
                }
                for modrm in 0..=255u8 {
                    let mut bytes = vec![];
                    bytes.extend((prefix != 0).then_some(prefix));
                    bytes.extend((rex != 0).then_some(rex));
                    bytes.extend((opcode >= 0x100).then_some(0x0f));
                    bytes.extend([opcode as u8, modrm, 0x24, 0x11, 2, 3, 4, 5, 6, 7, 8, 9]);
                    visit(&bytes, opcode);
                }
            }
        }
    }
}

/// The checker took `ah` for a part of the stack pointer, and refused every call that became `movzx eax,ah`.
#[test]
fn what_the_rewriter_inlines_may_be_inlined_for_the_checker() {
    let (mut compared, mut differ) = (0, BTreeMap::<String, Vec<u8>>::new());
    every(|bytes, opcode| {
        let Some(insn) = X86_64::decode(bytes, 0x1000).filter(|i| i.flow == Flow::Next) else {
            return;
        };
        let own = &bytes[..usize::from(insn.len)];
        if !X86_64::leaves_stack(own, &insn) {
            return;
        }
        compared += 1;
        if !testing::x86_64_leaves_stack(own) {
            let mut name = String::new();
            X86_64::mnemonics(own, insn.addr, |_, n| name = n.to_string());
            differ
                .entry(format!("{opcode:03x} {name}"))
                .or_insert_with(|| own.to_vec());
        }
    });
    assert!(compared > 50_000, "{compared}");
    assert!(differ.is_empty(), "{differ:02x?}");
}

/// The checker knew nothing of what `shrd` leaves in a register, by which clang 18 rotates the index of a jump table.
#[test]
fn what_bounds_an_index_for_the_rewriter_bounds_it_for_the_checker() {
    let (mut compared, mut differ) = (0, BTreeMap::<String, Vec<u8>>::new());
    let mut compare = |bytes: &[u8], opcode: u16| {
        let Some(insn) = X86_64::decode(bytes, 0x1000).filter(|i| i.flow == Flow::Next) else {
            return;
        };
        let own = &bytes[..usize::from(insn.len)];
        let Some(sets) = X86_64::values(own, &insn).sets else {
            return;
        };
        // Compilers put no prefix in front of it, and assemblers none that repeats.
        let swaps = matches!(opcode, 0x1c8..=0x1cf) && matches!(own[0], 0xf2 | 0xf3);
        if swaps {
            return;
        }
        compared += 1;
        if !testing::x86_64_bounds(own, sets.to()) {
            let mut name = String::new();
            X86_64::mnemonics(own, insn.addr, |_, n| name = n.to_string());
            let left_out = LEFT_OUT.iter().any(|l| name.starts_with(l));
            if !left_out || COMPARED.iter().any(|c| name.starts_with(c)) {
                differ
                    .entry(format!("{opcode:03x} {name}"))
                    .or_insert_with(|| own.to_vec());
            }
        }
    };
    every(&mut compare);
    // Those of three bytes, and with VEX prefixes.
    for (map, opcode) in (0..=0x3ffu16).map(|o| (o >> 8, o as u8)) {
        for modrm in 0..=255u8 {
            for prefix in [0x66, 0xf2, 0xf3, 0x41] {
                let escape = [0x38, 0x3a][usize::from(map & 1)];
                let long = [
                    prefix, 0x0f, escape, opcode, modrm, 0x24, 2, 3, 4, 5, 6, 7, 8,
                ];
                compare(&long, 0x200 | u16::from(opcode));
            }
            for pp in 0..8u8 {
                let vex = [
                    0xc4,
                    0xe0 | map as u8,
                    0x60 | pp,
                    opcode,
                    modrm,
                    0x24,
                    2,
                    3,
                    4,
                    5,
                    6,
                    7,
                ];
                compare(&vex, 0x300 | u16::from(opcode));
            }
        }
    }
    assert!(compared > 50_000, "{compared}");
    assert!(differ.is_empty(), "{differ:02x?}");
}

#[test]
fn what_the_rewriter_takes_for_dead_is_dead_for_the_checker() {
    let (mut compared, mut differ) = (0, BTreeMap::<String, String>::new());
    every(|bytes, opcode| {
        let Some(insn) = X86_64::decode(bytes, 0x1000).filter(|i| i.flow == Flow::Next) else {
            return;
        };
        let Some((len, checker)) = testing::x86_64(bytes) else {
            return;
        };
        if len != usize::from(insn.len) {
            return;
        }
        let rewriter = X86_64::effects(bytes, &insn);
        let (reads, kills) = (
            rewriter.reads.0 as u32 & 0xffff,
            rewriter.kills.0 as u32 & 0xffff,
        );
        compared += 1;
        // The stack pointer is never given away; of byte operations that set a register to zero, the checker
        // says that they read it.
        let stack = 1 << 4;
        let more = checker.reads & 0xffff & !reads & !stack;
        let less = kills & !reads & !checker.kills & !stack;
        let more_flags = checker.flag_reads & !flags(rewriter.reads);
        let less_flags = flags(rewriter.kills) & !flags(rewriter.reads) & !checker.flag_kills;
        if (more | less, more_flags | less_flags) == (0, 0) {
            return;
        }
        let mut name = String::new();
        X86_64::mnemonics(&bytes[..len], insn.addr, |_, n| name = n.to_string());
        let begins = |list: &[&str]| list.iter().any(|l| name.starts_with(l));
        let narrow_zero = matches!(opcode, 0x28 | 0x2a | 0x30 | 0x32)
            || bytes[0] == 0x66 && matches!(opcode, 0x29 | 0x2b | 0x31 | 0x33);
        if begins(LEFT_OUT) && !begins(COMPARED) || narrow_zero {
            return;
        }
        differ.entry(format!("{opcode:03x} {name}")).or_insert_with(|| {
            format!(
                "{:02x?}: the checker also reads {more:#x}, flags {more_flags:#x}; it does not overwrite {less:#x}, flags {less_flags:#x}",
                &bytes[..len]
            )
        });
    });
    assert!(compared > 500_000, "{compared}");
    let lines: Vec<String> = differ.iter().map(|(k, v)| format!("{k} {v}")).collect();
    assert!(
        lines.is_empty(),
        "{} differ:\n{}",
        lines.len(),
        lines.join("\n")
    );
}

/// The name of an AArch64 instruction, by a decoder that neither of the two uses.
fn aarch64_name(word: u32) -> String {
    let options = farm64::DecoderOptions::default();
    let insn = farm64::Decoder::new(&word.to_le_bytes(), 0x1000, options).decode();
    format!("{:?}", insn.mnemonic())
}

#[test]
fn aarch64_flow_and_addresses_are_those_of_the_checker() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let bytes = word.to_le_bytes();
        let Some(insn) = AArch64::decode(&bytes, 0x1000) else {
            return;
        };
        compared += 1;
        let checker = aarch64_flow(&bytes, 0x1000);
        let same = checker.is_some_and(|(flow, target)| {
            let is = match insn.flow {
                // System calls and other exceptions come back.
                Flow::Next => matches!(flow, "next" | "trap"),
                // `b.al` is a branch with a condition that always holds.
                Flow::Jump { .. } => flow == "jump" || flow == "branch" && insn.traits.prefixed,
                Flow::CondJump { .. } | Flow::ShortCond { .. } => flow == "branch",
                Flow::Call { .. } => flow == "call",
                Flow::IndirectCall => flow == "indirect call",
                Flow::IndirectJump => flow == "indirect jump",
                Flow::Return | Flow::Stop | Flow::Trap => flow == "stop",
            };
            is && target == insn.field.map(|f| f.target)
        });
        if !same {
            let name = aarch64_name(word);
            // Exceptions of a debugger, of which the rewriter says that they come back, and the checker that they do
            // not; and words among the exceptions that are not allocated. A function that has one stays.
            let debugger = matches!(name.as_str(), "Dcps1" | "Dcps2" | "Dcps3");
            if word >> 24 == 0xd4 && (debugger || matches!(name.as_str(), "Invalid" | "Tenter")) {
                return;
            }
            // The checker refuses jumps whose other fields are not allocated: a function that has one stays.
            if name == "Invalid" && checker.is_none() {
                return;
            }
            found.note("flow", &name, || {
                format!("{word:08x}: {insn:x?}; the checker: {checker:x?}")
            });
        }
    });
    assert!(compared > 4_000_000, "{compared}");
    found.assert_none();
}

#[test]
fn what_the_rewriter_takes_for_dead_on_aarch64_is_dead_for_the_checker() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let bytes = word.to_le_bytes();
        let Some(insn) = AArch64::decode(&bytes, 0x1000).filter(|i| i.flow == Flow::Next) else {
            return;
        };
        let Some((_, checker)) = testing::aarch64(&bytes) else {
            return;
        };
        compared += 1;
        let rewriter = AArch64::effects(&bytes, &insn);
        // The stack pointer is never given away.
        let general = 0x7fff_ffff;
        let (reads, kills) = (rewriter.reads.0 as u32, rewriter.kills.0 as u32);
        let more = checker.reads & general & !reads;
        let less = kills & general & !reads & !checker.kills;
        if more | less != 0 {
            let name = aarch64_name(word);
            // Not allocated: nothing is known of it. The other decoder takes some such words for `msr`.
            if name == "Invalid" || name == "Msr" && word >> 20 == 0xd50 {
                return;
            }
            found.note("registers", &name, || {
                format!(
                    "{word:08x}: the checker also reads {more:#x}; it does not overwrite {less:#x}"
                )
            });
        }
    });
    assert!(compared > 2_000_000, "{compared}");
    found.assert_none();
}
