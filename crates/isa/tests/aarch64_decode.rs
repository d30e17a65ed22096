//! AArch64 decoding against binutils' disassembler: over noise, and over a program's code.

use std::fs;
use std::process::Command;

use postlink_isa::aarch64::AArch64;
use postlink_isa::{Code, Cond, Decode, Encode, FixupKind, Flow, Reach};

const AT: u64 = 0x40_0000;

/// (word, mnemonic, operands) of code at [`AT`]; nothing without the tool.
fn disassemble(words: &[u32]) -> Vec<(u64, u32, String, String)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(file.path(), bytes).unwrap();
    let output = Command::new("aarch64-linux-gnu-objdump")
        .args([
            "-D",
            "-z",
            "-b",
            "binary",
            "-m",
            "aarch64",
            &format!("--adjust-vma={AT:#x}"),
        ])
        .arg(file.path())
        .output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: no aarch64-linux-gnu-objdump to compare with");
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        let mut parts = line.split('\t');
        let addr = u64::from_str_radix(parts.next()?.trim().strip_suffix(':')?, 16).ok()?;
        let word = u32::from_str_radix(parts.next()?.trim(), 16).ok()?;
        let mnemonic = parts.next()?.trim().to_owned();
        let operands = parts
            .next()
            .unwrap_or("")
            .split("//")
            .next()?
            .trim()
            .to_owned();
        Some((addr, word, mnemonic, operands))
    };
    text.lines().filter_map(line).collect()
}

/// The address that ends the operands.
fn address(operands: &str) -> Option<u64> {
    let last = operands.rsplit(',').next()?.trim();
    let last = last.split(' ').next()?;
    u64::from_str_radix(last.trim_start_matches("0x"), 16).ok()
}

fn compare(words: &[u32]) -> usize {
    let mut compared = 0;
    for (addr, word, mnemonic, operands) in disassemble(words) {
        let known = mnemonic != ".inst";
        let Some(insn) = AArch64::decode(&word.to_le_bytes(), addr) else {
            let refused = !known
                || mnemonic.starts_with("pac")
                || mnemonic.starts_with("aut")
                || mnemonic.starts_with("cb");
            assert!(refused, "{word:08x} {mnemonic} {operands}");
            continue;
        };
        if !known {
            continue;
        }
        compared += 1;
        let context = format!("{addr:x} {word:08x} {mnemonic} {operands} is {insn:?}");
        let target = || address(&operands).unwrap_or_else(|| panic!("{context}"));
        match mnemonic.as_str() {
            "b" | "b.al" | "b.nv" | "bc.al" | "bc.nv" => {
                assert_eq!(insn.flow, Flow::Jump { target: target() }, "{context}")
            }
            "bl" => assert_eq!(insn.flow, Flow::Call { target: target() }, "{context}"),
            "cbz" | "cbnz" | "tbz" | "tbnz" => {
                assert!(
                    matches!(insn.flow, Flow::CondJump { target: t, .. } if t == target()),
                    "{context}"
                );
            }
            m if m.starts_with("b.") || m.starts_with("bc.") => {
                assert!(
                    matches!(insn.flow, Flow::CondJump { target: t, .. } if t == target()),
                    "{context}"
                );
            }
            "br" | "braa" | "brab" | "braaz" | "brabz" => {
                assert_eq!(insn.flow, Flow::IndirectJump, "{context}")
            }
            "blr" | "blraa" | "blrab" | "blraaz" | "blrabz" => {
                assert_eq!(insn.flow, Flow::IndirectCall, "{context}")
            }
            "ret" | "retaa" | "retab" | "eret" | "eretaa" | "eretab" | "drps" => {
                assert_eq!(insn.flow, Flow::Return, "{context}")
            }
            "brk" | "hlt" | "udf" => assert_eq!(insn.flow, Flow::Stop, "{context}"),
            _ => assert_eq!(insn.flow, Flow::Next, "{context}"),
        }
        assert_eq!(insn.traits.nop, mnemonic == "nop", "{context}");
        assert_eq!(insn.traits.landing_pad, mnemonic == "bti", "{context}");
        let watches = ["ldxr", "ldaxr", "ldxp", "ldaxp"]
            .iter()
            .any(|m| mnemonic.starts_with(m));
        let ends = ["stxr", "stlxr", "stxp", "stlxp", "clrex"]
            .iter()
            .any(|m| mnemonic.starts_with(m));
        assert_eq!(
            (insn.traits.exclusive_load, insn.traits.exclusive_store),
            (watches, ends),
            "{context}"
        );
        // Scalable vectors have an `adr` of their own.
        let relative = matches!(mnemonic.as_str(), "ldr" | "ldrsw" | "prfm" | "adr" | "adrp")
            && !operands.contains('[');
        if insn.flow == Flow::Next {
            assert_eq!(insn.field.is_some(), relative, "{context}");
        }
        if let Some(field) = insn.field {
            assert_eq!(field.target, target(), "{context}");
            assert_eq!(
                AArch64::read_field(field.kind, &word.to_le_bytes(), addr),
                Some(field.target),
                "{context}"
            );
            // Written back it is the same, and elsewhere it is what was written.
            let mut bytes = word.to_le_bytes();
            AArch64::write_field(field.kind, &mut bytes, addr, field.target).unwrap();
            assert_eq!(u32::from_le_bytes(bytes), word, "{context}");
            let there = addr + 0x4000;
            if AArch64::write_field(field.kind, &mut bytes, there, field.target).is_ok() {
                let moved = AArch64::decode(&bytes, there).unwrap();
                assert_eq!(moved.field.unwrap().target, field.target, "{context}");
            }
        }
    }
    compared
}

#[test]
fn noise_decodes_as_binutils_say() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as u32
    };
    let mut words: Vec<u32> = (0..20_000).map(|_| next()).collect();
    // Branches and system instructions, exclusives and literals are a small part of all words.
    words.extend((0..20_000).map(|_| next() & !0x1c00_0000 | 0x1400_0000));
    words.extend((0..4_000).map(|_| next() & !0x3f00_0000 | 0x0800_0000));
    words.extend((0..4_000).map(|_| next() & !0x3b00_0000 | 0x1800_0000));
    words.extend((0..4_000).map(|_| next() & !0x1f00_0000 | 0x1000_0000));
    words.extend((0..4_000).map(|_| next() & 0xfff | 0xd503_2000));
    words.extend((0..4_000).map(|_| next() & 0x01ff_ffff | 0xd600_0000));
    let compared = compare(&words);
    assert!(compared == 0 || compared > 15_000, "{compared}");
}

#[test]
fn conditions_have_an_inverse_that_differs_in_one_bit() {
    for word in [
        0x5400_0000u32,
        0x5400_000b,
        0x3400_0013,
        0xb500_001e,
        0x3600_0005,
        0xb7f8_0001,
    ] {
        let decoded = AArch64::decode(&word.to_le_bytes(), AT).unwrap();
        let Flow::CondJump { cond, .. } = decoded.flow else {
            panic!("{word:x}")
        };
        assert_eq!(cond, Cond(word));
        let inverse = AArch64::invert(cond);
        assert_eq!((inverse.0 ^ word).count_ones(), 1);
        assert_eq!(AArch64::invert(inverse), cond);
    }
}

#[test]
fn branches_reach_as_far_as_their_fields() {
    let reach = |cond: Option<Cond>, far: i64| {
        // A distance counts from the end of the branch.
        assert!(AArch64::reaches_short(cond, far - 8) && !AArch64::reaches_short(cond, far - 4));
        assert!(AArch64::reaches_short(cond, -far - 4) && !AArch64::reaches_short(cond, -far - 8));
    };
    reach(None, 128 << 20);
    reach(Some(Cond(0x5400_0001)), 1 << 20);
    reach(Some(Cond(0xb400_0001)), 1 << 20);
    reach(Some(Cond(0x3600_0001)), 32 << 10);
}

#[test]
fn what_is_put_in_decodes_to_what_it_should_do() {
    for reach in [Reach::Short, Reach::Long] {
        let mut code: Code<u64> = Code::default();
        AArch64::put_cond_jump(&mut code, Cond(0x3628_0007), reach, AT + 0x400);
        assert_eq!(code.bytes.len(), AArch64::cond_jump_len(reach));
        for f in &code.fixups {
            let place = AT + u64::from(f.at);
            AArch64::write_field(f.kind, &mut code.bytes[f.at as usize..], place, f.target)
                .unwrap();
        }
        let first = AArch64::decode(&code.bytes, AT).unwrap();
        match reach {
            Reach::Short => assert_eq!(
                first.flow,
                Flow::CondJump {
                    cond: Cond(0x3628_0007),
                    target: AT + 0x400
                }
            ),
            Reach::Long => {
                assert_eq!(
                    first.flow,
                    Flow::CondJump {
                        cond: Cond(0x3728_0007),
                        target: AT + 8
                    }
                );
                let second = AArch64::decode(&code.bytes[4..], AT + 4).unwrap();
                assert_eq!(second.flow, Flow::Jump { target: AT + 0x400 });
            }
        }
    }
}

#[test]
fn fields_refuse_what_they_cannot_hold() {
    let mut word = 0x1400_0000u32.to_le_bytes();
    for (kind, target) in [
        (FixupKind::Branch26, AT + (128 << 20)),
        (FixupKind::Branch26, AT + 2),
        (FixupKind::Imm19, AT + (1 << 20)),
        (FixupKind::Branch14, AT + (32 << 10)),
        (FixupKind::Adr, AT + (1 << 20)),
        (FixupKind::Page, AT + (4 << 30)),
        (FixupKind::Low12 { scale: 3 }, AT + 4),
        (FixupKind::Rel32 { trail: 0 }, AT),
    ] {
        assert!(
            AArch64::write_field(kind, &mut word, AT, target).is_err(),
            "{kind:?}"
        );
        assert_eq!(word, 0x1400_0000u32.to_le_bytes());
        assert!(AArch64::write_field(kind, &mut [0; 3], AT, AT).is_err());
    }
}
