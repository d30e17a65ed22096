//! Nothing that is in a file can make the checker panic, or run for ever.

mod support;

use postlink_verify::{Options, verify};

/// A real program; `None` without its compiler.
fn program() -> Option<Vec<u8>> {
    let &(name, source, compiler, flags, _) =
        support::PROGRAMS.iter().find(|p| p.0 == "throws_pie")?;
    support::compile(name, source, compiler, flags)
}

#[test]
fn arbitrary_bytes_are_refused() {
    arbtest::arbtest(|u| {
        let (mut input, mut output): (Vec<u8>, Vec<u8>) = (u.arbitrary()?, u.arbitrary()?);
        for file in [&mut input, &mut output] {
            let head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0";
            let len = file.len().min(head.len());
            file[..len].copy_from_slice(&head[..len]);
        }
        assert!(!verify(&input, &output, &Options::default()).is_ok_and(|r| r.is_proved()));
        Ok(())
    });
}

#[test]
fn an_output_for_another_machine_is_refused() {
    let Some(input) = program() else {
        return;
    };
    let mut output = input.clone();
    output[18..20].copy_from_slice(&183u16.to_le_bytes());
    let error = verify(&input, &output, &Options::default()).map(|_| ());
    let message = error.expect_err("another machine").to_string();
    assert!(
        message.contains("62") && message.contains("183"),
        "{message}"
    );
}

#[test]
fn damaged_real_files_never_panic() {
    let Some(input) = program() else {
        return;
    };
    let output = support::rewrite(
        &input,
        &[],
        support::Options {
            pointers: true,
            entry_jumps: true,
            any_front: false,
            shift: 0,
            bare: false,
        },
    )
    .image;
    arbtest::arbtest(|u| {
        let (mut a, mut b) = (input.clone(), output.clone());
        for _ in 0..u.int_in_range(1..=12)? {
            let file = if u.ratio(1, 3)? { &mut a } else { &mut b };
            // Headers and tables at both ends are where the numbers are.
            let len = file.len();
            let at = match u.int_in_range(0..=3)? {
                0 => u.int_in_range(0..=1023)?,
                1 => len - 1 - u.int_in_range(0..=4095.min(len - 1))?,
                _ => u.int_in_range(0..=len - 1)?,
            };
            let value: u64 = match u.int_in_range(0..=4)? {
                0 => u64::MAX,
                1 => 0,
                2 => 1 << 63,
                _ => u.arbitrary()?,
            };
            let width = *u.choose(&[1usize, 4, 8])?;
            let end = (at + width).min(len);
            file[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        if u.ratio(1, 8)? {
            b.truncate(u.int_in_range(0..=output.len())?);
        }
        let _ = verify(&a, &b, &Options::default());
        Ok(())
    })
    .budget_ms(4_800);
}
