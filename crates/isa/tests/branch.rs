//! Branches, nops and fields: what is written decodes to what was meant.

use postlink_isa::x86_64::X86_64;
use postlink_isa::{Code, Cond, Decode, Encode, FixupKind, Flow, Insn, Reach};

const AT: u64 = 0x7000_0000;

/// Puts the code at `AT` with every fixup pointing to its target, and decodes it.
fn place(code: &Code<u64>) -> (Vec<u8>, Vec<Insn>) {
    let mut bytes = code.bytes.clone();
    for fixup in &code.fixups {
        let at = fixup.at as usize;
        X86_64::write_field(fixup.kind, &mut bytes[at..], AT + at as u64, fixup.target).unwrap();
    }
    let mut insns = Vec::new();
    let stop = X86_64::sweep(&bytes, AT, |insn| {
        insns.push(*insn);
        true
    });
    assert_eq!(stop, None, "{bytes:02x?}");
    (bytes, insns)
}

fn emit(put: impl FnOnce(&mut Code<u64>)) -> (Vec<u8>, Vec<Insn>) {
    let mut code = Code::default();
    put(&mut code);
    place(&code)
}

#[test]
fn jumps_and_calls_decode_to_their_target_at_their_length() {
    for (reach, target) in [
        (Reach::Short, AT + 0x50),
        (Reach::Short, AT - 0x50),
        (Reach::Long, AT - 0x5000_0000),
    ] {
        let (bytes, insns) = emit(|out| X86_64::put_jump(out, reach, target));
        assert_eq!((insns.len(), insns[0].flow), (1, Flow::Jump { target }));
        assert_eq!(bytes.len(), X86_64::jump_len(reach));
        for cond in 0..16 {
            let cond = Cond(cond);
            let (bytes, insns) = emit(|out| X86_64::put_cond_jump(out, cond, reach, target));
            assert_eq!(
                (insns.len(), insns[0].flow),
                (1, Flow::CondJump { cond, target })
            );
            assert_eq!(bytes.len(), X86_64::cond_jump_len(reach));
        }
    }
    let (_, insns) = emit(|out| X86_64::put_call(out, AT + 0x1234));
    assert_eq!(
        (insns.len(), insns[0].flow),
        (
            1,
            Flow::Call {
                target: AT + 0x1234
            }
        )
    );
}

#[test]
fn inverse_conditions_are_each_others_inverse() {
    for cond in 0..16 {
        let inverse = X86_64::invert(Cond(cond));
        assert_ne!(inverse, Cond(cond));
        assert_eq!(X86_64::invert(inverse), Cond(cond));
    }
    assert_eq!(X86_64::invert(Cond(4)), Cond(5)); // e, ne
}

#[test]
fn short_conditions_reach_everything_through_a_long_jump() {
    let target = AT + 0x1234_5678;
    for original in [
        &[0xe3u8, 9][..],
        &[0x67, 0xe3, 9],
        &[0xe2, 9],
        &[0x2e, 0xe0, 9],
    ] {
        let (bytes, insns) = emit(|out| X86_64::put_short_cond(out, original, target));
        assert_eq!(bytes.len(), X86_64::short_cond_len(original));
        let long = insns[2].addr;
        assert_eq!(insns[0].flow, Flow::ShortCond { target: long });
        assert_eq!(
            insns[1].flow,
            Flow::Jump {
                target: AT + bytes.len() as u64
            }
        );
        assert_eq!(insns[2].flow, Flow::Jump { target });
        assert_eq!(insns.len(), 3);
        assert_eq!(bytes[..original.len() - 1], original[..original.len() - 1]);
    }
}

#[test]
fn nops_fill_any_length_with_nothing_but_nops() {
    for len in 0..100 {
        let mut bytes = Vec::new();
        X86_64::put_nops(&mut bytes, len);
        assert_eq!(bytes.len(), len);
        let (_, insns) = place(&Code {
            bytes,
            fixups: Vec::new(),
            stack: Vec::new(),
        });
        assert!(
            insns
                .iter()
                .all(|insn| insn.traits.nop && insn.flow == Flow::Next)
        );
        assert_eq!(insns.len(), len.div_ceil(11));
    }
}

#[test]
fn padding_traps() {
    assert_eq!(
        X86_64::decode(&[X86_64::PADDING], AT).unwrap().flow,
        Flow::Trap
    );
}

#[test]
fn fields_hold_exactly_what_their_width_allows() {
    let kinds = |trail| [FixupKind::Rel8 { trail }, FixupKind::Rel32 { trail }];
    for trail in 0..5 {
        for (kind, (low, high)) in kinds(trail)
            .into_iter()
            .zip([(-128, 127), (i64::from(i32::MIN), i64::from(i32::MAX))])
        {
            let width = if matches!(kind, FixupKind::Rel8 { .. }) {
                1
            } else {
                4
            };
            let end = AT + width + u64::from(trail);
            for disp in [low, -1, 0, 1, high] {
                let mut bytes = [0xaa; 8];
                let target = end.wrapping_add_signed(disp);
                X86_64::write_field(kind, &mut bytes, AT, target).unwrap();
                assert_eq!(X86_64::read_field(kind, &bytes, AT), Some(target));
                assert!(bytes[width as usize..].iter().all(|&byte| byte == 0xaa));
            }
            for disp in [low - 1, high + 1] {
                let mut bytes = [0xaa; 8];
                let error =
                    X86_64::write_field(kind, &mut bytes, AT, end.wrapping_add_signed(disp))
                        .unwrap_err();
                assert_eq!((error.kind, error.place), (kind, AT));
                assert_eq!(bytes, [0xaa; 8]);
            }
        }
    }
    let absolute = |kind, target| {
        let mut bytes = [0; 8];
        X86_64::write_field(kind, &mut bytes, AT, target)
            .ok()
            .and_then(|()| X86_64::read_field(kind, &bytes, AT))
    };
    for (kind, fits, not) in [
        (FixupKind::Abs32, 0xffff_ffff, 0x1_0000_0000),
        (FixupKind::Abs32S, 0xffff_ffff_8000_0000, 0x8000_0000),
        (FixupKind::Abs32S, 0x7fff_ffff, 0xffff_ffff_7fff_ffff),
    ] {
        assert_eq!(absolute(kind, fits), Some(fits));
        assert_eq!(absolute(kind, not), None);
    }
    assert_eq!(absolute(FixupKind::Abs64, u64::MAX), Some(u64::MAX));
}

#[test]
fn a_field_cut_short_is_an_error() {
    let kinds = [
        FixupKind::Rel8 { trail: 0 },
        FixupKind::Rel32 { trail: 0 },
        FixupKind::Abs32,
        FixupKind::Abs64,
    ];
    for (kind, width) in kinds.into_iter().zip([1, 4, 4, 8]) {
        let mut bytes = vec![0; width - 1];
        assert_eq!(X86_64::read_field(kind, &bytes, AT), None);
        assert!(X86_64::write_field(kind, &mut bytes, AT, AT).is_err());
    }
}

#[test]
fn short_reach_is_that_of_a_signed_byte() {
    assert!(X86_64::reaches_short(None, 127) && X86_64::reaches_short(None, -128));
    assert!(!X86_64::reaches_short(None, 128) && !X86_64::reaches_short(None, -129));
}
