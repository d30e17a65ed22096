//! Sample profiles in LLVM's plain binary form: what [`super::extbinary`] has, without sections.
//!
//! | part | content |
//! |---|---|
//! | head | magic number (`SPROF42` and 255), version 103, as ULEB128 |
//! | summary, names, functions | as in [`super::extbinary`], one after the other |
//!
//! There is no place in it for chains of callers, hashes or attributes.

use std::io::{self, Write};

use super::Profile;
use super::extbinary::{Options, Reader, VERSION, Writer, put, summary_section};
use super::summary::Summary;
use crate::probe::cursor::Cursor;
use crate::{ErrorKind, FormatError};

/// `SPROF42` and the number of the form.
pub const MAGIC: u64 = 0x5350_524f_4634_32ff;

/// Writes a profile.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer::new(profile, &Options::default());
    let mut bytes = Vec::new();
    put(&mut bytes, MAGIC);
    put(&mut bytes, VERSION);
    bytes.extend(summary_section(&Summary::of(profile)));
    bytes.extend(writer.names_section());
    bytes.extend(writer.functions_section());
    out.write_all(&bytes)
}

/// Whether bytes look like this form.
pub fn recognise(bytes: &[u8]) -> bool {
    Cursor::new("head", bytes, 0).uleb("magic number") == Ok(MAGIC)
}

/// Reads a profile.
///
/// # Errors
/// Anything cut off or out of range, other versions.
pub fn read(bytes: &[u8]) -> Result<Profile, FormatError> {
    let mut cursor = Cursor::new("profile", bytes, 0);
    let magic = cursor.uleb("magic number")?;
    if magic != MAGIC {
        return Err(
            FormatError::new(format!("magic number is {magic:#x}, not {MAGIC:#x}"))
                .at_offset(0)
                .values(magic, MAGIC),
        );
    }
    let version = cursor.uleb("version")?;
    if version != VERSION {
        return Err(
            FormatError::new(format!("version is {version}, not {VERSION}"))
                .of(ErrorKind::Unsupported)
                .values(version, VERSION),
        );
    }
    // The summary follows from the counts.
    for _ in 0..5 {
        cursor.uleb("a number of the summary")?;
    }
    for _ in 0..cursor.count(3, "number of shares")? {
        for _ in 0..3 {
            cursor.uleb("a number of a share")?;
        }
    }
    let mut reader = Reader::default();
    reader.read_names_at(0, &mut cursor)?;
    reader.read_functions(cursor)?;
    Ok(reader.profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::text;

    const NESTED: &str = "main:184019:7\n 2.1: 15\n 4: 534 _Z3fooi:500 bar:34\n 5: foo:424940\n  1: 15707\n  2: bar:7\n   1: 7\n";

    #[test]
    fn what_is_written_is_read_again_and_cut_files_are_refused() {
        let mut bytes = Vec::new();
        write(&text::read(NESTED.as_bytes()).unwrap(), &mut bytes).unwrap();
        assert!(recognise(&bytes));
        let mut out = Vec::new();
        text::write(&read(&bytes).unwrap(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), NESTED);
        for len in 0..bytes.len() {
            // The end of the functions is the end of the file: between two of them it may as well be whole.
            let read = read(&bytes[..len]);
            assert!(
                read.is_err() || read.is_ok_and(|profile| profile.functions.is_empty()),
                "cut at {len}"
            );
        }
    }
}
