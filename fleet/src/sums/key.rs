//! What rows are grouped by, as bytes that compare as the rows are sorted.
//!
//! ```text
//! text     0                              null
//!          1, bytes with 0 as 0 1, 0 0    anything else: the end compares less than any byte that could follow
//! number   0                              null
//!          1, eight bytes, largest first
//! ```
//!
//! The columns follow each other in the order of the sort, so one comparison of bytes compares rows, whatever they are
//! read from. UTF-8 compares by bytes as by code points, which is how engines compare strings.

use anyhow::{Result, bail};

/// The columns in front of functions and addresses, all of text.
pub const HEAD: usize = 5;

/// What a row is grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key<'a> {
    /// `build_id`, `file`, `kind`, `map`, `address_kind`.
    pub head: [Option<&'a str>; HEAD],
    pub from_function: Option<&'a str>,
    pub from_address: Option<u64>,
    pub to_function: Option<&'a str>,
    pub to_address: Option<u64>,
    pub run: Option<u64>,
    pub label: Label<'a>,
}

/// The columns after `run`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label<'a> {
    pub event: Option<&'a str>,
    pub weight: u64,
    pub day: i32,
    pub service: Option<&'a str>,
    pub host_class: Option<&'a str>,
    pub source: Option<&'a str>,
}

/// Adds a text.
pub fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    let Some(text) = text else {
        out.push(0);
        return;
    };
    out.push(1);
    let mut parts = text.as_bytes().split(|byte| *byte == 0);
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(&[0, 1]);
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&[0, 0]);
}

/// Adds a number.
pub fn put_number(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        None => out.push(0),
        Some(number) => {
            out.push(1);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Adds the columns of a label.
pub fn put_label(out: &mut Vec<u8>, label: &Label) {
    put_text(out, label.event);
    put_number(out, Some(label.weight));
    put_number(out, Some(of_day(label.day)));
    put_text(out, label.service);
    put_text(out, label.host_class);
    put_text(out, label.source);
}

/// Days before 1970 are less than others.
fn of_day(day: i32) -> u64 {
    u64::from(day.cast_unsigned() ^ (1 << 31))
}

fn to_day(number: u64) -> i32 {
    ((number as u32) ^ (1 << 31)).cast_signed()
}

/// Texts of a key that have a byte 0 in them, and so cannot be borrowed from it.
#[derive(Default)]
pub struct Unescaped(Vec<String>);

/// What a key says. `unescaped` is used again from key to key.
pub fn take<'a>(mut bytes: &'a [u8], unescaped: &'a mut Unescaped) -> Result<Key<'a>> {
    // Each is either borrowed, or one of those that had to be copied.
    unescaped.0.clear();
    let mut texts = [Text::Null; HEAD + 6];
    let mut numbers = [None; 5];
    let (mut text, mut number) = (0, 0);
    for is_text in LAYOUT {
        if is_text {
            if let Some(to) = texts.get_mut(text) {
                *to = take_text(&mut bytes, &mut unescaped.0)?;
            }
            text += 1;
        } else {
            if let Some(to) = numbers.get_mut(number) {
                *to = take_number(&mut bytes)?;
            }
            number += 1;
        }
    }
    if !bytes.is_empty() {
        bail!("{} bytes after a key", bytes.len());
    }
    let copied = &unescaped.0;
    let texts = texts.map(|text| match text {
        Text::Null => None,
        Text::Borrowed(text) => Some(text),
        Text::Copied(at) => copied.get(at).map(String::as_str),
    });
    let [
        a,
        b,
        c,
        d,
        e,
        from_function,
        to_function,
        event,
        service,
        host_class,
        source,
    ] = texts;
    let [from_address, to_address, run, weight, day] = numbers;
    Ok(Key {
        head: [a, b, c, d, e],
        from_function,
        from_address,
        to_function,
        to_address,
        run,
        label: Label {
            event,
            weight: weight.unwrap_or(0),
            day: to_day(day.unwrap_or(0)),
            service,
            host_class,
            source,
        },
    })
}

/// Which of the columns are texts; the others are numbers.
const LAYOUT: [bool; 16] = [
    true, true, true, true, true, true, false, true, false, false, true, false, false, true, true,
    true,
];

#[derive(Clone, Copy)]
enum Text<'a> {
    Null,
    Borrowed(&'a str),
    Copied(usize),
}

fn take_text<'a>(bytes: &mut &'a [u8], copied: &mut Vec<String>) -> Result<Text<'a>> {
    let Some((tag, rest)) = bytes.split_first() else {
        bail!("a key ends in front of a text");
    };
    if *tag == 0 {
        *bytes = rest;
        return Ok(Text::Null);
    }
    let mut from = 0;
    let mut whole: Option<Vec<u8>> = None;
    loop {
        let after = rest.get(from..).unwrap_or_default();
        let Some(zero) = after.iter().position(|byte| *byte == 0) else {
            bail!("a text of a key has no end");
        };
        let part = after.get(..zero).unwrap_or_default();
        let is_end = match after.get(zero + 1) {
            Some(0) => true,
            Some(1) => false,
            other => bail!("{other:?} after a 0 in a text of a key"),
        };
        if let Some(whole) = &mut whole {
            whole.extend_from_slice(part);
        }
        from += zero + 2;
        if is_end {
            *bytes = rest.get(from..).unwrap_or_default();
            return Ok(match whole {
                None => Text::Borrowed(std::str::from_utf8(part)?),
                Some(whole) => {
                    copied.push(String::from_utf8(whole)?);
                    Text::Copied(copied.len() - 1)
                }
            });
        }
        whole.get_or_insert_with(|| part.to_vec()).push(0);
    }
}

fn take_number(bytes: &mut &[u8]) -> Result<Option<u64>> {
    match bytes.split_first() {
        Some((0, rest)) => {
            *bytes = rest;
            Ok(None)
        }
        Some((_, rest)) => {
            let Some((number, rest)) = rest.split_first_chunk::<8>() else {
                bail!("a key ends in a number");
            };
            *bytes = rest;
            Ok(Some(u64::from_be_bytes(*number)))
        }
        None => bail!("a key ends in front of a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(key: &Key) -> Vec<u8> {
        let mut out = Vec::new();
        key.head.iter().for_each(|text| put_text(&mut out, *text));
        put_text(&mut out, key.from_function);
        put_number(&mut out, key.from_address);
        put_text(&mut out, key.to_function);
        put_number(&mut out, key.to_address);
        put_number(&mut out, key.run);
        put_label(&mut out, &key.label);
        out
    }

    /// Values in the order of the sort, null first.
    const TEXTS: [Option<&str>; 8] = [
        None,
        Some(""),
        Some("\0"),
        Some("\0\u{1}"),
        Some("a"),
        Some("a\0b"),
        Some("a\u{1}"),
        Some("größe"),
    ];
    const NUMBERS: [Option<u64>; 4] = [None, Some(0), Some(256), Some(u64::MAX)];

    #[test]
    fn keys_say_what_was_put_in_and_compare_as_their_columns() {
        let mut keys = Vec::new();
        for from_function in TEXTS {
            for from_address in NUMBERS {
                for day in [i32::MIN, -1, 0, i32::MAX] {
                    for source in TEXTS {
                        keys.push(Key {
                            head: [Some("id"), source, None, Some(""), from_function],
                            from_function,
                            from_address,
                            to_address: from_address,
                            label: Label {
                                day,
                                source,
                                event: from_function,
                                ..Label::default()
                            },
                            ..Key::default()
                        });
                    }
                }
            }
        }
        let mut unescaped = Unescaped::default();
        for key in &keys {
            let bytes = bytes(key);
            assert_eq!(take(&bytes, &mut unescaped).unwrap(), *key);
        }
        let columns = |key: &Key| {
            (
                key.head.map(|text| text.map(str::to_owned)),
                key.from_function.map(str::to_owned),
                key.from_address,
                key.label.event.map(str::to_owned),
                key.label.day,
                key.label.source.map(str::to_owned),
            )
        };
        for a in keys.iter().step_by(3) {
            for b in keys.iter().step_by(7) {
                let expected = columns(a).cmp(&columns(b));
                assert_eq!(bytes(a).cmp(&bytes(b)), expected, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn keys_that_are_cut_are_refused() {
        let whole = bytes(&Key {
            head: [Some("a"), None, Some("b\0"), None, None],
            run: Some(7),
            ..Key::default()
        });
        for length in 0..whole.len() {
            assert!(take(&whole[..length], &mut Unescaped::default()).is_err());
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(take(&longer, &mut Unescaped::default()).is_err());
    }
}
