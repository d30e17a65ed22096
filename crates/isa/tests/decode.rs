//! Decoding against known answers, against a second decoder, and against noise.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{hex, text_of};
use postlink_isa::x86_64::X86_64;
use postlink_isa::{
    Code, Cond, CounterMode, Counters, Decode, Encode, FixupKind, Flow, Insn, Traits,
};
use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::{InstDecoder, Opcode, Operand, RegSpec};

const AT: u64 = 0x40_1000;

fn decode(text: &str) -> Insn {
    let bytes = hex(text);
    let insn = X86_64::decode(&bytes, AT).unwrap_or_else(|| panic!("{text} does not decode"));
    assert_eq!(usize::from(insn.len), bytes.len(), "{text}");
    if let Some(field) = insn.field {
        let read = X86_64::read_field(
            field.kind,
            &bytes[field.at.into()..],
            AT + u64::from(field.at),
        );
        assert_eq!(read, Some(field.target), "{text}");
    }
    insn
}

fn field(text: &str) -> Option<(u8, FixupKind, u64)> {
    decode(text)
        .field
        .map(|field| (field.at, field.kind, field.target.wrapping_sub(AT)))
}

#[test]
fn direct_branches_have_their_displacement_as_field() {
    let (rel8, rel32) = (FixupKind::Rel8 { trail: 0 }, FixupKind::Rel32 { trail: 0 });
    assert_eq!(decode("eb 05").flow, Flow::Jump { target: AT + 7 });
    assert_eq!(decode("eb fe").flow, Flow::Jump { target: AT });
    assert_eq!(
        decode("e9 00 01 00 00").flow,
        Flow::Jump { target: AT + 0x105 }
    );
    assert_eq!(decode("e8 fb ff ff ff").flow, Flow::Call { target: AT });
    assert_eq!(
        decode("75 10").flow,
        Flow::CondJump {
            cond: Cond(5),
            target: AT + 0x12
        }
    );
    assert_eq!(
        decode("0f 8f 10 00 00 00").flow,
        Flow::CondJump {
            cond: Cond(15),
            target: AT + 0x16
        }
    );
    assert_eq!(decode("e3 10").flow, Flow::ShortCond { target: AT + 0x12 });
    assert_eq!(
        decode("67 e3 10").flow,
        Flow::ShortCond { target: AT + 0x13 }
    );
    for loops in ["e0 10", "e1 10", "e2 10"] {
        assert_eq!(decode(loops).flow, Flow::ShortCond { target: AT + 0x12 });
    }
    assert_eq!(field("eb 05"), Some((1, rel8, 7)));
    assert_eq!(field("67 e3 05"), Some((2, rel8, 8)));
    assert_eq!(field("e8 00 00 00 00"), Some((1, rel32, 5)));
    assert_eq!(field("0f 84 00 00 00 00"), Some((2, rel32, 6)));
    assert_eq!(field("f2 0f 84 00 00 00 00"), Some((3, rel32, 7)));
    assert_eq!(field("66 66 48 e8 00 00 00 00"), Some((4, rel32, 8)));
}

#[test]
fn memory_relative_to_rip_knows_what_follows_its_displacement() {
    let rel32 = |trail| FixupKind::Rel32 { trail };
    assert_eq!(field("48 8b 05 10 00 00 00"), Some((3, rel32(0), 0x17)));
    assert_eq!(field("83 3d 10 00 00 00 07"), Some((2, rel32(1), 0x17)));
    assert_eq!(
        field("66 81 3d 10 00 00 00 34 12"),
        Some((3, rel32(2), 0x19))
    );
    assert_eq!(
        field("48 c7 05 10 00 00 00 78 56 34 12"),
        Some((3, rel32(4), 0x1b))
    );
    assert_eq!(
        field("c4 e3 71 4a 05 00 00 00 00 20"),
        Some((5, rel32(1), 10))
    ); // vblendvps xmm0, xmm1, [rip], xmm2
    assert_eq!(
        field("62 f1 7c 48 28 05 00 00 00 00"),
        Some((6, rel32(0), 10))
    ); // vmovaps zmm0, [rip]
    assert_eq!(field("0f 0f 05 00 00 00 00 9e"), Some((3, rel32(1), 8))); // pfadd mm0, [rip]: the opcode comes last
    assert_eq!(field("ff 15 10 00 00 00"), Some((2, rel32(0), 0x16)));
    assert_eq!(field("67 8b 05 00 00 00 00"), Some((3, rel32(0), 7)));
    assert_eq!(field("48 8b 04 25 10 00 00 00"), None); // absolute
    assert_eq!(field("48 a1 10 00 00 00 00 00 00 00"), None);
    assert!(decode("48 8d 05 00 00 00 00").traits.forms_address);
    assert!(!decode("48 8b 05 00 00 00 00").traits.forms_address);
    assert!(!decode("48 8d 04 24").traits.forms_address);
}

#[test]
fn transactions_show_their_abort_handler() {
    let insn = decode("c7 f8 10 00 00 00");
    assert_eq!(insn.flow, Flow::Next);
    assert_eq!(
        field("c7 f8 10 00 00 00"),
        Some((2, FixupKind::Rel32 { trail: 0 }, 0x16))
    );
    assert!(insn.traits.forms_address);
    assert_eq!(decode("0f 01 d5").flow, Flow::Next);
    assert_eq!(decode("c6 f8 01").flow, Flow::Next);
}

#[test]
fn other_flow_is_classified() {
    let cases = [
        (
            Flow::IndirectCall,
            "ff d0; 41 ff d3; ff 10; ff 15 00 00 00 00; ff 18; 48 ff 18; 3e ff d0; 64 ff 10",
        ),
        (
            Flow::IndirectJump,
            "ff e0; 41 ff e3; ff 20; ff 24 c5 00 00 00 00; 3e ff e0; ff 28; 48 ff 28",
        ),
        (
            Flow::Return,
            "c3; f3 c3; c2 08 00; cb; ca 08 00; cf; 48 cf; 0f 07; 48 0f 07; 0f 35; f3 0f 01 ec",
        ),
        (Flow::Stop, "0f 0b; 0f b9 c0; 0f ff c0; f4; cd 29"),
        (Flow::Trap, "cc"),
        (
            Flow::Next,
            "0f 05; 0f 34; cd 80; f1; 0f 01 c1; 0f 01 d8; 90; f3 90; 48 89 c3; 0f a2",
        ),
    ];
    for (flow, list) in cases {
        for text in list.split(';') {
            assert_eq!(decode(text).flow, flow, "{text}");
        }
    }
}

#[test]
fn nops_and_landing_pads_are_known() {
    let nop = Traits {
        nop: true,
        ..Traits::default()
    };
    for text in [
        "90",
        "66 90",
        "48 90",
        "0f 1f 00",
        "0f 1f 44 00 00",
        "66 66 2e 0f 1f 84 00 00 00 00 00",
        "48 0f 1f c0",
    ] {
        assert_eq!(decode(text).traits, nop, "{text}");
    }
    for text in [
        "f3 90",
        "41 90",
        "0f 1e c8",
        "f3 48 0f 1e c8",
        "cc",
        "0f 18 00",
        "f3 0f 1e fb",
        "87 c0",
        "48 8d 36",
    ] {
        assert_eq!(decode(text).traits, Traits::default(), "{text}");
    }
    assert_eq!(
        decode("f3 0f 1e fa").traits,
        Traits {
            landing_pad: true,
            ..Traits::default()
        }
    );
}

#[test]
fn prefixes_of_branches_are_seen() {
    let list = "f2 e8 00 00 00 00; 67 e8 00 00 00 00; 48 e9 00 00 00 00; 40 eb 00; 2e 74 00; 3e 0f 84 00 00 00 00;
        66 48 ff 15 00 00 00 00; 3e ff d0; 64 ff 10; 65 ff 20; f2 ff d0; 48 ff d0; 40 ff d0; 48 ff e0; 67 ff 10;
        41 ff 15 00 00 00 00";
    for text in list.split(';') {
        assert!(decode(text).traits.prefixed, "{text}");
    }
    let list =
        "e8 00 00 00 00; e9 00 00 00 00; eb 00; 74 00; 0f 84 00 00 00 00; e3 00; 67 e3 00; ff d0; 41 ff d0; ff 10;
        41 ff 10; 42 ff 14 c0; 43 ff 24 c0; ff 15 00 00 00 00; f3 c3";
    for text in list.split(';') {
        assert!(!decode(text).traits.prefixed, "{text}");
    }
}

#[test]
fn what_cannot_be_kept_or_is_no_instruction_is_refused() {
    let list =
        "66 e8 00 00 00 00; 66 e9 00 00 00 00; 66 eb 00; 66 74 00; 66 0f 84 00 00 00 00; 66 e3 00; 66 c7 f8 00 00;
        06; ea 00 00 00 00 00 00; 82 c0 00; 48; f0 90; c5; 0f; e8 00 00; ";
    for text in list.split(';') {
        assert_eq!(X86_64::decode(&hex(text), AT), None, "{text}");
    }
    // Relative to eip across the end of the low 4 GiB.
    assert_eq!(
        X86_64::decode(&hex("67 8b 05 00 00 00 00"), 0xffff_fffa),
        None
    );
}

#[test]
fn a_list_has_what_a_sweep_visits_and_stops_where_it_does() {
    // Common instructions and others, and then what is none.
    let good = "90 e8 10 00 00 00 48 8d 05 00 01 00 00 c5 f8 77 74 02 f3 a4 ff 25 10 00 00 00 c3";
    for tail in ["", "06", "e8 10"] {
        let bytes = hex(&format!("{good} {tail}"));
        let before = X86_64::decode(&hex("0f 0b"), 2).expect("an instruction");
        let (mut wanted, mut list, mut visited) = (vec![before], vec![before], vec![before]);
        let swept = X86_64::sweep(&bytes, AT, |insn| {
            wanted.push(*insn);
            true
        });
        let listed = X86_64::list(&bytes, AT, &mut list, |insn| visited.push(*insn));
        assert_eq!(listed, swept);
        assert_eq!(list, wanted);
        assert_eq!(visited, wanted);
        assert_eq!(list.len(), 9);
        assert_eq!(swept, (!tail.is_empty()).then(|| list[8].end()));
    }
}

#[test]
fn a_sweep_says_where_and_why_it_stopped() {
    let bytes = hex("90 e8 00 00 00 00 06 90");
    let mut seen = Vec::new();
    let stop = X86_64::sweep(&bytes, AT, |insn| {
        seen.push((insn.addr - AT, insn.len));
        true
    });
    assert_eq!((stop, seen), (Some(AT + 6), vec![(0, 1), (1, 5)]));
    assert_eq!(X86_64::sweep(&bytes[..4], AT, |_| true), Some(AT + 1)); // incomplete
    assert_eq!(X86_64::sweep(&bytes, AT, |insn| insn.addr == AT), None);
    assert_eq!(X86_64::sweep(&bytes[..6], AT, |_| true), None);
    assert_eq!(X86_64::sweep(&[], AT, |_| true), None);
}

#[test]
fn addresses_wrap_at_the_top_of_the_address_space() {
    let insn = X86_64::decode(&hex("eb 7f"), u64::MAX - 1).unwrap();
    assert_eq!((insn.end(), insn.flow), (0, Flow::Jump { target: 0x7f }));
    assert_eq!(
        X86_64::sweep(&hex("90 90 90 90"), u64::MAX - 1, |_| true),
        None
    );
}

/// Valid instructions that the second decoder (2.2.0) does not know.
fn unknown_there(bytes: &[u8]) -> bool {
    use iced_x86::Mnemonic::*;
    matches!(
        mnemonic(bytes),
        // VEX-coded moves and logic of AVX-512 mask registers, unless byte- or word-sized.
        Kmovd
            | Kmovq
            | Kord
            | Korq
            | Kortestd
            | Kortestq
            | Ktestd
            | Ktestq
            | Kunpckbw
            | Kunpckdq
            | Kxnord
            | Kxnorq
    )
}

/// What the second decoder says about control flow and position.
fn second_opinion(bytes: &[u8], addr: u64) -> Option<(usize, Option<u64>, Option<u64>)> {
    let insn = InstDecoder::default().decode_slice(bytes).ok()?;
    let len = insn.len().to_const() as usize;
    let end = addr.wrapping_add(len as u64);
    let displacement = match insn.operand(0) {
        Operand::ImmediateI8 { imm } => Some(i64::from(imm)),
        Operand::ImmediateI32 { imm } => Some(i64::from(imm)),
        _ => None,
    };
    let loops = matches!(
        insn.opcode(),
        Opcode::LOOP | Opcode::LOOPZ | Opcode::LOOPNZ | Opcode::JRCXZ
    );
    let direct = insn.opcode().is_jcc()
        || loops
        || matches!(insn.opcode(), Opcode::CALL | Opcode::JMP | Opcode::XBEGIN);
    let branch = displacement
        .filter(|_| direct)
        .map(|disp| end.wrapping_add_signed(disp));
    let memory = (0..insn.operand_count()).find_map(|index| match insn.operand(index) {
        Operand::MemDeref { base: RegSpec::RIP } => Some(end),
        Operand::Disp {
            base: RegSpec::RIP,
            disp,
        }
        | Operand::DispMasked {
            base: RegSpec::RIP,
            disp,
            ..
        } => Some(end.wrapping_add_signed(i64::from(disp))),
        _ => None,
    });
    Some((len, branch, memory))
}

fn mnemonic(bytes: &[u8]) -> iced_x86::Mnemonic {
    iced_x86::Decoder::new(64, bytes, iced_x86::DecoderOptions::MPX)
        .decode()
        .mnemonic()
}

/// Compares both decoders over one text; disagreements go to `differ` by kind, with an example.
fn compare(
    bytes: &[u8],
    addr: u64,
    path: &Path,
    differ: &mut BTreeMap<String, (u64, String)>,
) -> u64 {
    let mut count = 0;
    let mut at = 0;
    while at < bytes.len() {
        let here = addr + at as u64;
        let stop = X86_64::sweep(&bytes[at..], here, |insn| {
            count += 1;
            let own = &bytes[(insn.addr - addr) as usize..];
            let direct = match insn.flow {
                Flow::Jump { target } | Flow::CondJump { target, .. } => Some(target),
                Flow::ShortCond { target } | Flow::Call { target } => Some(target),
                _ => None,
            };
            let field = insn.field.map(|field| field.target);
            let kind = match second_opinion(&own[..own.len().min(15)], insn.addr) {
                None if unknown_there(own) => None,
                None => Some(format!("only iced decodes it: {:?}", mnemonic(own))),
                Some((len, ..)) if len != usize::from(insn.len) => Some("length".to_string()),
                Some((_, branch, memory)) if branch.or(memory) != field => Some(format!(
                    "field: {field:x?} here, {branch:x?} or {memory:x?} there"
                )),
                Some((_, branch, _)) if direct.is_some() && direct != branch => {
                    Some("target".to_string())
                }
                _ => None,
            };
            if let Some(kind) = kind {
                let opcode: Vec<String> = own[..insn.len.into()]
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                let entry = differ.entry(kind).or_default();
                entry.0 += 1;
                entry.1 = format!(
                    "{} at {:#x} in {}",
                    opcode.join(" "),
                    insn.addr,
                    path.display()
                );
            }
            true
        });
        match stop {
            // Data in text: continue after the byte, as both decoders would.
            Some(stop) => at = (stop - addr) as usize + 1,
            None => break,
        }
    }
    count
}

#[test]
fn a_second_decoder_agrees_on_real_programs() {
    let mut paths: Vec<PathBuf> = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/lib64/libc.so.6",
    ]
    .iter()
    .map(PathBuf::from)
    .filter(|path| path.exists())
    .collect();
    paths.truncate(1);
    for name in ["bash", "openssl", "git", "python3", "gcc", "perl"] {
        paths.push(Path::new("/usr/bin").join(name));
    }
    paths.push(std::env::current_exe().unwrap());
    let (mut differ, mut count) = (BTreeMap::new(), 0);
    for path in &paths {
        for (addr, bytes) in text_of(path).unwrap_or_default() {
            count += compare(&bytes, addr, path, &mut differ);
        }
    }
    assert!(
        count > 100_000,
        "only {count} instructions compared in {paths:?}"
    );
    println!("{count} instructions compared");
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn arbitrary_bytes_never_panic() {
    arbtest::arbtest(|noise| {
        let addr: u64 = noise.arbitrary()?;
        let bytes: Vec<u8> = noise.arbitrary()?;
        let mut end = addr;
        let stop = X86_64::sweep(&bytes, addr, |insn| {
            assert_eq!(insn.addr, end);
            assert!((1..=15).contains(&insn.len));
            if let Some(field) = insn.field {
                assert!(field.at < insn.len);
            }
            let own = &bytes[insn.addr.wrapping_sub(addr) as usize..];
            assert_eq!(X86_64::decode(own, insn.addr).as_ref(), Some(insn));
            // Whatever it is, the rest of the crate takes it, and also bytes that are not its own.
            for code in [own, &bytes[..]] {
                X86_64::effects(code, insn);
                let mut out = Code::default();
                let done =
                    X86_64::put_site(&mut out, CounterMode::Plain, false, code, insn, |_| ());
                assert_eq!(done, !out.bytes.is_empty());
                X86_64::put_short_cond(&mut out, &code[..code.len().min(15)], ());
            }
            end = insn.end();
            true
        });
        assert_eq!(end, stop.unwrap_or(addr.wrapping_add(bytes.len() as u64)));
        Ok(())
    });
}

#[test]
fn every_form_of_indirect_branch_is_recorded_in_valid_code_or_refused() {
    const PREFIXES: [u8; 14] = [
        0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf2, 0xf3, 0x40, 0x41, 0x43, 0x48,
    ];
    let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
    for first in PREFIXES {
        prefixes.push(vec![first]);
        prefixes.extend(PREFIXES.iter().map(|second| vec![first, *second]));
    }
    let mut done = [0u32; 2];
    for prefixes in &prefixes {
        for modrm in (0..=255).filter(|modrm| (0x10..0x30).contains(&(modrm & 0x38))) {
            for sib in [0x00, 0x24, 0x25, 0xcc] {
                let bytes = [&prefixes[..], &[0xff, modrm, sib, 0xfc, 0xff, 0xff, 0x7f]].concat();
                let Some(insn) = X86_64::decode(&bytes, AT) else {
                    continue;
                };
                let mut out = Code::default();
                let recorded =
                    X86_64::put_site(&mut out, CounterMode::Atomic, false, &bytes, &insn, |_| ());
                assert_eq!(recorded, !out.bytes.is_empty());
                let stop = X86_64::sweep(&out.bytes, AT, |_| true);
                assert!(stop.is_none(), "{bytes:02x?} gives {:02x?}", out.bytes);
                done[usize::from(recorded)] += 1;
            }
        }
    }
    assert!(done[0] > 1000 && done[1] > 1000, "{done:?}");
}

#[test]
fn numbers_at_the_end_are_operands_of_four_or_eight_bytes_and_no_distances() {
    for text in [
        "b8 7c 24 40 00",                // mov $0x40247c,%eax
        "48 b8 7c 24 40 00 00 00 00 00", // movabs $0x40247c,%rax
        "a1 7c 24 40 00 00 00 00 00",    // movabs 0x40247c,%eax
        "8b 87 7c 24 40 00",             // mov 0x40247c(%rdi),%eax
        "ff 24 c5 7c 24 40 00",          // jmp *0x40247c(,%rax,8)
        "c7 04 24 7c 24 40 00",          // movl $0x40247c,(%rsp)
        "c7 05 00 01 00 00 7c 24 40 00", // movl $0x40247c,0x100(%rip)
        "c7 87 00 01 00 00 7c 24 40 00", // movl $0x40247c,0x100(%rdi)
    ] {
        let number = X86_64::last_number(&hex(text), &decode(text));
        assert_eq!(number, Some(0x40_247c), "{text}");
    }
    for text in [
        "80 bf 7c 24 40 00 01", // cmpb $1,0x40247c(%rdi)
        "83 7c 24 40 00",       // cmpl $0,0x40(%rsp)
        "66 42 c7 04 06 5c 00", // movw $0x5c,(%rsi,%r8)
        "f3 41 0f 7e 45 00",    // movq 0x0(%r13),%xmm0
        "c8 24 40 00",          // enter $0x4024,$0
        "8b 05 7c 24 40 00",    // mov 0x40247c(%rip),%eax
        "80 3d 7c 24 40 00 00", // cmpb $0,0x40247c(%rip)
        "e8 7c 24 40 00",       // call
        "0f 84 7c 24 40 00",    // je
        "c7 f8 7c 24 40 00",    // xbegin
        "c3",                   // ret
    ] {
        let number = X86_64::last_number(&hex(text), &decode(text));
        assert_eq!(number, None, "{text}");
    }
}
