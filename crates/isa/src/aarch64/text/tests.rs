use super::*;

fn text(word: u32) -> Option<String> {
    let mut out = Vec::new();
    print(&word.to_le_bytes(), 0x40_0340, &mut out)?;
    Some(String::from_utf8(out).unwrap())
}

#[test]
fn instructions_are_spelt_as_llvm_spells_them() {
    for (word, expected) in [
        (0xa9b3_7bfd, "\tstp\tx29, x30, [sp, #-208]!"),
        (0x9100_03fd, "\tmov\tx29, sp"),
        (0xd53b_d054, "\tmrs\tx20, TPIDR_EL0"),
        (0xd280_0002, "\tmov\tx2, #0"),
        (0x9280_0000, "\tmov\tx0, #-1"),
        (0xd2a0_0000, "\tmovz\tx0, #0, lsl #16"),
        (0x5400_0140, "\tb.eq\t0x400368"),
        (0x1e62_1001, "\tfmov\td1, #4.00000000"),
        (0x1e70_1001, "\tfmov\td1, #-2.00000000"),
        (0x2f00_e400, "\tmovi\td0, #0000000000000000"),
        (0x4c40_a000, "\tld1\t{ v0.16b, v1.16b }, [x0]"),
        (0xd4207d00, "\tbrk\t#0x3e8"),
        (0xf945_ec00, "\tldr\tx0, [x0, #3032]"),
        (0x7862_7820, "\tldrh\tw0, [x1, x2, lsl #1]"),
        (0x93407c41, "\tsxtw\tx1, w2"),
        (0x0f0c_8400, "\tshrn\tv0.8b, v0.8h, #4"),
    ] {
        assert_eq!(text(word).as_deref(), Some(expected), "{word:#010x}");
    }
}

#[test]
fn no_word_is_too_much_and_what_is_unknown_leaves_nothing() {
    let mut known = 0;
    let mut word = 1u32;
    for _ in 0..2_000_000 {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut out = b"x".to_vec();
        match print(&word.to_le_bytes(), u64::from(word) << 7, &mut out) {
            None => assert_eq!(out, b"x", "{word:#010x}"),
            Some(_) => {
                known += 1;
                assert!(out.starts_with(b"x\t") && out.len() > 3, "{word:#010x}");
            }
        }
    }
    assert!(known > 500_000, "{known}");
    assert_eq!(print(&[0, 0, 0], 0, &mut Vec::new()), None);
}
