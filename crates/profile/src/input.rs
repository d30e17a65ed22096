//! Opening a profile file without being told what it is.
//!
//! Files are recognised by their first bytes, never by their name:
//!
//! | first bytes | format |
//! |---|---|
//! | `PLRAW`, eight zero bytes, or an empty file | raw counters |
//! | `PLPROF` | merged profile |

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::plprof::PlprofFile;
use crate::raw::{RawFile, Sink};
use crate::{Error, Profile, Subject};

/// A file format of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Counters of an instrumented program: [`crate::raw`].
    Raw,
    /// Merged counters: [`crate::plprof`].
    Plprof,
}

impl Format {
    /// The format of a file by its first bytes (16 suffice), if it is one of this crate's.
    pub fn recognise(start: &[u8]) -> Option<Format> {
        let zero = start.iter().take(8).all(|&byte| byte == 0);
        if start.starts_with(b"PLRAW") || zero {
            Some(Format::Raw)
        } else if start.starts_with(b"PLPROF") {
            Some(Format::Plprof)
        } else {
            None
        }
    }
}

/// An open profile file, its header checked.
#[derive(Debug)]
pub enum Input {
    /// Raw counters.
    Raw(RawFile),
    /// A merged profile.
    Plprof(Box<PlprofFile>),
}

impl Input {
    /// What the counts belong to.
    pub fn subject(&self) -> &Subject {
        match self {
            Input::Raw(file) => file.subject(),
            Input::Plprof(file) => file.subject(),
        }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        match self {
            Input::Raw(file) => file.path(),
            Input::Plprof(file) => file.path(),
        }
    }

    /// Reads the whole profile.
    pub fn read(self) -> Result<Profile, Error> {
        match self {
            Input::Raw(file) => file.read(),
            Input::Plprof(file) => file.read(),
        }
    }

    /// Reads the profile in pieces.
    pub fn stream(self, sink: &mut impl Sink) -> Result<(), Error> {
        match self {
            Input::Raw(file) => file.stream(sink),
            Input::Plprof(file) => file.stream(sink),
        }
    }
}

/// Opens a profile and checks its header. A raw profile that holds nothing yet is the error [`Error::NothingRecorded`].
pub fn open(path: &Path) -> Result<Input, Error> {
    let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    let mut start = [0; 16];
    let mut len = 0;
    while len < start.len() {
        match file.read_at(&mut start[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io(path, "read", e)),
        }
    }
    match Format::recognise(&start[..len]) {
        Some(Format::Raw) => RawFile::from_file(path, file).map(Input::Raw),
        Some(Format::Plprof) => {
            PlprofFile::from_file(path, file).map(|file| Input::Plprof(Box::new(file)))
        }
        None => Err(Error::at_byte(
            path,
            0,
            format!(
                "not a profile that can be read: it starts with \"{}\"; raw profiles start with \"PLRAW\", merged ones with \"PLPROF\"",
                start[..len].escape_ascii()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognised_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("any name");
        let subject = crate::raw::tests::subject(5, 1);
        std::fs::write(&path, crate::raw::tests::image(&subject, &[(2, 3)], &[])).unwrap();
        let input = open(&path).unwrap();
        assert!(matches!(input, Input::Raw(_)));
        let profile = input.read().unwrap();
        crate::plprof::write(&path, &profile).unwrap();
        let input = open(&path).unwrap();
        assert!(matches!(input, Input::Plprof(_)));
        assert_eq!(input.read().unwrap(), profile);
        std::fs::write(&path, "").unwrap();
        assert!(matches!(open(&path), Err(Error::NothingRecorded { .. })));
        std::fs::write(&path, "\x7fELF").unwrap();
        assert!(
            open(&path)
                .unwrap_err()
                .to_string()
                .contains(r#"it starts with "\x7fELF""#)
        );
    }
}
