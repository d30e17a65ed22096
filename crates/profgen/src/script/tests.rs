//! Texts in all shapes, on a small program.

use super::*;

fn hex_of(text: &[u8]) -> Option<(u64, usize)> {
    let mut at = 0;
    Some((hex(text, &mut at)?, at))
}

#[test]
fn numbers_have_up_to_16_digits() {
    assert_eq!(hex_of(b"1f/"), Some((0x1f, 2)));
    assert_eq!(hex_of(b"FFFFFFFFFFFFFFFF "), Some((u64::MAX, 16)));
    assert_eq!(hex_of(b"10000000000000000"), None);
    assert_eq!(hex_of(b"x"), None);
    assert_eq!(hex_of(b""), None);
}

#[test]
fn the_kind_of_samples_is_told_from_the_first_one() {
    let of = |text: &str| kind(text.as_bytes());
    assert_eq!(of("  401136 0x1/0x2/P/-/-/0\n"), Some(Kind::Branches));
    assert_eq!(of("7\n 401136 0x1/0x2\n"), Some(Kind::Branches));
    assert_eq!(of("cycles: 401136 0x1/0x2/P/-/-/0\n"), Some(Kind::Branches));
    assert_eq!(of("4242 401136 0x1/0x2\n"), Some(Kind::Branches));
    assert_eq!(
        of("\n\t 401136\n\t 401200\n 0x1/0x2/P/-/-/0\n"),
        Some(Kind::Chains)
    );
    assert_eq!(
        of("\t 401136\n\t 401200\n\n  401136 0x1/0x2\n"),
        Some(Kind::Branches)
    );
    assert_eq!(of("\t 401136\n\n\t 401136\n\n"), None);
    assert_eq!(kind_of_ips(b"\t 401136\n\n\t 401136\n\n"), Kind::StackedIps);
    assert_eq!(kind_of_ips(b" 401136\n 401137\n"), Kind::Ips);
    assert_eq!(kind_of_ips(b"MMAP\n\n 401136\n 401137\n"), Kind::Ips);
}

#[test]
fn ends_are_looked_for_in_texts_of_any_shape() {
    let pieces: [&[u8]; 6] = [b"\n", b" 0x", b"7", b" ", b"/", b"PERF_RECORD_MMAP"];
    arbtest::arbtest(|u| {
        let mut text = Vec::new();
        while !u.is_empty() && text.len() < 100 {
            text.extend(pieces[u.choose_index(pieces.len())?]);
        }
        for kind in [Kind::Branches, Kind::Chains, Kind::StackedIps, Kind::Ips] {
            let end = last_end(&text, kind);
            assert!(
                end.is_none_or(|end| text[..end].ends_with(b"\n")),
                "{text:?}"
            );
        }
        for at in 0..=text.len() + 1 {
            let expected = text.get(at..).is_some_and(|rest| rest.starts_with(b"0x"));
            assert_eq!(starts_address(&text, at), expected);
        }
        Ok(())
    });
}

#[test]
fn blocks_end_where_a_sample_does() {
    let of = |text: &str, kind| last_end(text.as_bytes(), kind);
    assert_eq!(of(" 1 0x1/0x2\n3\n", Kind::Branches), Some(11));
    assert_eq!(of(" 1 0x1/0x2\n 1 0x1/0", Kind::Branches), Some(11));
    assert_eq!(of("\t1\n 0x1/0x2\n\n\t2\n", Kind::Chains), Some(12));
    assert_eq!(of("\t1\n\t2\n", Kind::Chains), None);
    assert_eq!(of("1", Kind::Branches), None);
}
