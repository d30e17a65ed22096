//! Words against what the assembler says of them.

use super::*;
use crate::arch::graph::Graph;

fn insn(w: u32) -> Insn {
    AArch64::decode(&w.to_le_bytes(), 0x1000)
        .unwrap_or_else(|| panic!("{w:#x} is a valid instruction"))
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn branches_have_their_targets_and_conditions() {
    assert_eq!(insn(0x1400_0004).flow, Flow::Jump(0x1010));
    assert_eq!(insn(0x17ff_ffff).flow, Flow::Jump(0xffc));
    assert_eq!(insn(0x9400_0004).flow, Flow::Call(0x1010));
    // b.eq, b.ne, b.al; bc.eq
    assert_eq!(
        insn(0x5400_0080).flow,
        Flow::Branch {
            cond: 0,
            inverse: Some(1),
            target: 0x1010
        }
    );
    assert_eq!(
        insn(0x54ff_ffe1).flow,
        Flow::Branch {
            cond: 1,
            inverse: Some(0),
            target: 0xffc
        }
    );
    assert_eq!(
        insn(0x5400_008e).flow,
        Flow::Branch {
            cond: 14,
            inverse: None,
            target: 0x1010
        }
    );
    assert_eq!(
        insn(0x5400_0090).flow,
        Flow::Branch {
            cond: 16,
            inverse: Some(17),
            target: 0x1010
        }
    );
    // cbz w3, cbnz x3
    assert_eq!(
        insn(0x3400_0083).flow,
        Flow::Branch {
            cond: 0x103,
            inverse: Some(0x123),
            target: 0x1010
        }
    );
    assert_eq!(
        insn(0xb500_0083).flow,
        Flow::Branch {
            cond: 0x163,
            inverse: Some(0x143),
            target: 0x1010
        }
    );
    // tbz w3, #5; tbnz x3, #37
    assert_eq!(
        insn(0x3628_0083).flow,
        Flow::Branch {
            cond: 0x10a3,
            inverse: Some(0x18a3),
            target: 0x1010
        }
    );
    assert_eq!(
        insn(0xb728_0083).flow,
        Flow::Branch {
            cond: 0x1ca3,
            inverse: Some(0x14a3),
            target: 0x1010
        }
    );
}

#[test]
fn a_tested_bit_or_register_of_another_number_is_another_condition() {
    let cond = |w| match insn(w).flow {
        Flow::Branch { cond, inverse, .. } => (cond, inverse),
        other => panic!("{other:?}"),
    };
    let mut all = std::collections::BTreeSet::new();
    for register in 0..32 {
        for w in [0x3400_0080, 0x3500_0080, 0xb400_0080, 0xb500_0080] {
            assert!(all.insert(cond(w | register).0));
        }
        for bit in 0..64u32 {
            let w = 0x3600_0080 | (bit >> 5) << 31 | (bit & 31) << 19 | register;
            let (zero, set) = (cond(w), cond(w | 1 << 24));
            assert!(all.insert(zero.0) && all.insert(set.0));
            assert_eq!((zero.1, set.1), (Some(set.0), Some(zero.0)));
        }
    }
}

#[test]
fn addresses_are_read_with_their_sign_and_scale() {
    // adr x0, .+4; adr x0, .-1; adrp x1, next page; adrp x1, page before
    assert_eq!(
        insn(0x1000_0020).field.map(|f| (f.kind, f.target)),
        Some((FieldKind::Forms, 0x1004))
    );
    assert_eq!(
        insn(0x70ff_ffe0).field.map(|f| (f.kind, f.target)),
        Some((FieldKind::Forms, 0xfff))
    );
    assert_eq!(
        insn(0xb000_0001).field.map(|f| (f.kind, f.target)),
        Some((FieldKind::Page, 0x2000))
    );
    assert_eq!(
        insn(0xf0ff_ffe1).field.map(|f| (f.kind, f.target)),
        Some((FieldKind::Page, 0))
    );
    // ldr w0, x0, s0, d0, q0, ldrsw x0, prfm of .+8
    for (w, size) in [
        (0x1800_0040, 4),
        (0x5800_0040, 8),
        (0x1c00_0040, 4),
        (0x5c00_0040, 8),
        (0x9c00_0040, 16),
        (0x9800_0040, 4),
        (0xd800_0040, 0),
    ] {
        let field = insn(w).field.expect("a literal has an address");
        assert_eq!(
            (field.kind, field.target, field.literal),
            (FieldKind::Accesses, 0x1008, size),
            "{w:#x}"
        );
    }
}

#[test]
fn indirect_branches_returns_and_traps_end_what_they_end() {
    let jump = Flow::IndirectJump { computed: true };
    for (w, flow) in [
        (0xd61f_0200, jump),
        (0xd61f_0a1f, jump),
        (0xd71f_0a11, jump),
        (0xd63f_0000, Flow::IndirectCall),
        (0xd73f_0811, Flow::IndirectCall),
        (0xd65f_03c0, Flow::Stop),
        (0xd65f_0bff, Flow::Stop),
        (0xd65f_0fff, Flow::Stop),
        (0xd420_7d00, Flow::Stop),
        (0x0000_0000, Flow::Stop),
        (0xd400_0001, Flow::Trap),
        (0xd503_201f, Flow::Nothing),
        (0xd503_203f, Flow::Next),
        (0xd503_3fdf, Flow::Next),
    ] {
        assert_eq!(insn(w).flow, flow, "{w:#x}");
    }
}

#[test]
fn what_is_unallocated_or_signs_with_the_program_counter_is_refused() {
    for w in [
        0x0001_0000,
        0x0200_0000,
        0x0600_0000,
        0xdac1_a3fe,
        0x5500_001f,
        0xf380_001f,
        0x7400_0000,
        0xd620_0000,
        0xdc00_0000,
    ] {
        assert_eq!(AArch64::decode(&u32::to_le_bytes(w), 0), None, "{w:#x}");
    }
}

#[test]
fn landing_pads_are_the_ones_that_the_processor_takes() {
    for w in [
        0xd503_245f,
        0xd503_249f,
        0xd503_24df,
        0xd503_233f,
        0xd503_237f,
    ] {
        assert!(insn(w).landing_pad, "{w:#x}");
        assert_eq!(
            AArch64::lets_calls_in(&u32::to_le_bytes(w)),
            w != 0xd503_249f,
            "{w:#x}"
        );
    }
    // bti without a letter, autiasp
    assert!(!insn(0xd503_241f).landing_pad && !insn(0xd503_23bf).landing_pad);
}

#[test]
fn entry_jumps_are_direct_or_through_x16() {
    let at = |words: &[u32]| AArch64::entry_jump(&bytes(words), 0x1000);
    assert_eq!(at(&[0x1400_0004]), Some((0, 4, 0x1010)));
    assert_eq!(at(&[0xd503_245f, 0x1400_0004]), Some((4, 4, 0x1014)));
    // adrp x16, 0x3000; add x16, x16, #8; br x16
    assert_eq!(
        at(&[0xd000_0010, 0x9100_2210, 0xd61f_0200]),
        Some((0, 12, 0x3008))
    );
    assert_eq!(
        at(&[0xd503_245f, 0xd000_0010, 0x9100_2210, 0xd61f_0200]),
        Some((4, 12, 0x3008))
    );
    assert_eq!(at(&[0xd000_0010, 0x9100_2211, 0xd61f_0200]), None);
    assert_eq!(at(&[0xd503_201f]), None);
}

#[test]
fn an_adr_out_of_reach_is_the_pair_that_forms_the_same_address() {
    // adr x3, .+8 at 0x1000; adrp x3, 0x1000; add x3, x3, #8 at 0x9000
    let old = bytes(&[0x1000_0043, 0xd65f_03c0]);
    let new = bytes(&[0x90ff_ffc3, 0x9100_2063, 0xd65f_03c0]);
    let longer = AArch64::longer(&old, 0x1000, &new, 0x9000).expect("they do the same");
    assert_eq!(
        (
            longer.old_len,
            longer.new_len,
            longer.old.target,
            longer.new.target
        ),
        (4, 8, 0x1008, 0x1008)
    );
    // The other way round, and with another register.
    let back = AArch64::longer(&new, 0x9000, &old, 0x1000).expect("they do the same");
    assert_eq!((back.old_len, back.new_len), (8, 4));
    let other = bytes(&[0x90ff_ffc4, 0x9100_2084]);
    assert_eq!(AArch64::longer(&old, 0x1000, &other, 0x9000), None);
}

#[test]
fn a_counter_in_the_register_of_the_pair_behind_it_is_no_shorter_form_of_that_pair() {
    // adrp x3, 0x1000; add x3, x3, #8; ret, and in front of it adr x3, flag; sturb w3, [x3, #1]
    let old = bytes(&[0x90ff_ffc3, 0x9100_2063, 0xd65f_03c0]);
    let counted = bytes(&[0x1000_0043, 0x3800_1063, 0x9000_0003, 0x9100_2063]);
    assert_eq!(AArch64::longer(&old, 0x9000, &counted, 0x1000), None);
    // adr x3, .+8; ret, and in front of it adrp x3; add x3, x3, #1; sturb w3, [x3, #-1]
    let old = bytes(&[0x1000_0043, 0xd65f_03c0]);
    let counted = bytes(&[0xb000_0003, 0x9100_0463, 0x381f_f063, 0x1000_0043]);
    assert_eq!(AArch64::longer(&old, 0x1000, &counted, 0x1000), None);
}

#[test]
fn a_literal_out_of_reach_is_loaded_through_its_own_register() {
    // ldr x3, .+8; ldr w3, .+8; ldrsw x3, .+8
    for (old, load) in [
        (0x5800_0043, 0xf940_0463),
        (0x1800_0043, 0xb940_0863),
        (0x9800_0043, 0xb980_0863),
    ] {
        let new = bytes(&[0x90ff_ffc3, load]);
        let longer =
            AArch64::longer(&bytes(&[old]), 0x1000, &new, 0x9000).expect("they do the same");
        assert_eq!(
            (longer.old.target, longer.new.target, longer.new.kind),
            (0x1008, 0x1008, FieldKind::Accesses)
        );
    }
    // A vector register cannot hold the page.
    assert_eq!(
        AArch64::longer(
            &bytes(&[0x5c00_0043]),
            0x1000,
            &bytes(&[0x90ff_ffc3, 0xfd40_0463]),
            0x9000
        ),
        None
    );
    // Another width.
    assert_eq!(
        AArch64::longer(
            &bytes(&[0x5800_0043]),
            0x1000,
            &bytes(&[0x90ff_ffc3, 0xb940_0863]),
            0x9000
        ),
        None
    );
}

#[test]
fn pages_are_followed_to_the_instructions_that_use_them() {
    // adrp x1, 0x5000; mov x2, x3; ldr x0, [x1, #16]; add x4, x1, #8; add x1, x1, #0xc; add x5, x1, #1
    let code = bytes(&[
        0x9000_0021,
        0xaa03_03e2,
        0xf940_0820,
        0x9100_2024,
        0x9100_3021,
        0x9100_0425,
    ]);
    let uses = AArch64::page_uses(&code, 0x5000);
    assert_eq!(
        uses.as_slice(),
        [
            (8, 0x5010, FieldKind::Accesses),
            (12, 0x5008, FieldKind::Forms),
            (16, 0x500c, FieldKind::Forms)
        ]
    );
}

fn dispatch(words: &[u32]) -> Option<Dispatch> {
    let jump = 0x1000 + 4 * (words.len() as u64 - 1);
    AArch64::dispatch(
        jump,
        &Graph::new::<AArch64>([(0x1000, bytes(words).as_slice())]),
    )
}

#[test]
fn table_jumps_of_gcc_are_read() {
    // cmp w0, #8; b.hi; adrp x1, 0x2000; add x1, x1, #0x10; ldrb w0, [x1, w0, uxtw]; adr x1, .+12; add x0,
    // x1, w0, sxtb #2; br x0
    let d = dispatch(&[
        0x7100_201f,
        0x5400_0ec8,
        0xb000_0001,
        0x9100_4021,
        0x3860_4820,
        0x1000_0061,
        0x8b20_8820,
        0xd61f_0000,
    ])
    .expect("it is a table jump");
    assert_eq!(
        (d.table, d.base, d.width, d.signed, d.shift, d.count),
        (0x2010, 0x1020, 1, true, 2, Some(9))
    );
    assert_eq!((d.index, d.scratch), ((0, 2), 3));
    assert_eq!(
        d.parts.as_slice(),
        [0x1008, 0x100c, 0x1010, 0x1014, 0x1018, 0x101c]
    );
    assert_eq!((d.target(0xff), d.target(3)), (0x101c, 0x102c));
    // ldrh w0, [x1, w0, uxtw #1]; … sxth #2
    let d = dispatch(&[
        0xb000_0001,
        0x9100_4021,
        0x7860_5820,
        0x1000_0061,
        0x8b20_a820,
        0xd61f_0000,
    ])
    .expect("it is one");
    assert_eq!((d.width, d.signed, d.shift, d.count), (2, true, 2, None));
    // ldr w0, [x1, w0, uxtw #2]; … sxtw #2
    let d = dispatch(&[
        0xb000_0001,
        0x9100_4021,
        0xb860_5820,
        0x1000_0061,
        0x8b20_c820,
        0xd61f_0000,
    ])
    .expect("it is one");
    assert_eq!((d.width, d.signed, d.shift), (4, true, 2));
}

#[test]
fn table_jumps_of_clang_are_read() {
    // adrp x9; add x9; adr x10, .+16; ldrb w11, [x9, x8]; add x10, x10, x11, lsl #2; br x10
    let d = dispatch(&[
        0xb000_0009,
        0x9100_4129,
        0x1000_008a,
        0x3868_692b,
        0x8b0b_094a,
        0xd61f_0140,
    ])
    .expect("it is one");
    assert_eq!(
        (d.table, d.base, d.width, d.signed, d.shift, d.index),
        (0x2010, 0x1018, 1, false, 2, (8, 3))
    );
    assert_eq!(d.scratch, 1 << 9 | 1 << 10 | 1 << 11);
    // adrp x9; add x9; ldrsw x10, [x9, x8, lsl #2]; add x9, x9, x10; br x9
    let d = dispatch(&[
        0xb000_0009,
        0x9100_4129,
        0xb8a8_792a,
        0x8b0a_0129,
        0xd61f_0120,
    ])
    .expect("it is one");
    assert_eq!(
        (d.table, d.base, d.width, d.signed, d.shift),
        (0x2010, 0x2010, 4, true, 0)
    );
}

#[test]
fn a_table_whose_address_is_formed_before_the_loop_is_found() {
    // adrp x25, 0x2000; add x25, x25, #0x10; head: cmp w0, #15; b.ls body; nop; b head;
    // body: ldrh w0, [x25, w0, uxtw #1]; adr x1, .+12; add x0, x1, w0, sxth #2; br x0; case: b head
    let words = [
        0xb000_0019,
        0x9100_4339,
        0x7100_3c1f,
        0x5400_0069,
        0xd503_201f,
        0x17ff_fffd,
        0x7860_5b20,
        0x1000_0061,
        0x8b20_a820,
        0xd61f_0000,
        0x17ff_fff8,
    ];
    let code = bytes(&words);
    let graph = Graph::new::<AArch64>([(0x1000, code.as_slice())]);
    let d = AArch64::dispatch(0x1024, &graph).expect("it is a table jump");
    assert_eq!(
        (d.table, d.base, d.width, d.count),
        (0x2010, 0x1028, 2, Some(16))
    );
    assert_eq!(
        (d.formed.as_slice(), d.scratch),
        ([0x1000, 0x1004].as_slice(), 3)
    );
}

#[test]
fn an_entry_whose_sign_is_cut_off_is_no_table_jump() {
    // ldrsb w11, [x9, x8]; add x10, x10, x11, lsl #2: the sign reaches 32 bits, the sum has 64.
    assert_eq!(
        dispatch(&[
            0xb000_0009,
            0x9100_4129,
            0x1000_008a,
            0x38e8_692b,
            0x8b0b_094a,
            0xd61f_0140
        ]),
        None
    );
}

#[test]
fn arbitrary_words_never_panic() {
    arbtest::arbtest(|u| {
        let all: Vec<u8> = u.arbitrary()?;
        for at in [0, 0xffff_ffff_ffff_fff0] {
            if let Some(i) = AArch64::decode(&all, at) {
                assert_eq!(i.len, 4);
            }
            let _ = AArch64::entry_jump(&all, at);
            let _ = AArch64::veneer(&all, at);
            let _ = AArch64::longer(&all, at, &all, !at);
            let graph = Graph::new::<AArch64>([(at, all.as_slice())]);
            for i in 0..all.len() as u64 / 4 {
                let _ = AArch64::dispatch(at.wrapping_add(4 * i), &graph);
            }
        }
        let _ = AArch64::page_uses(&all, u64::MAX);
        let _ = AArch64::touched(&all);
        let _ = AArch64::padding_len(&all);
        let _ = AArch64::calculates_with_formed(&all, &all);
        Ok(())
    });
}
