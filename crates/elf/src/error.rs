//! What is wrong with a file, for people and for programs.
//!
//! An error of this crate is a sentence that names the place and the values; that is what `Display` gives. A program
//! that wants to act on it asks for its parts: the [`ErrorKind`], the [`Place`] in the file, and the two [`Value`]s
//! that contradict each other (what was found, and what was expected there). Not every error has all of them: where
//! something is missing there is nothing to compare, and a file that loads nothing is wrong at no place.

use std::fmt;

/// What is wrong with a file.
///
/// ```
/// use postlink_elf::ErrorKind;
/// use postlink_elf::elf::Elf;
///
/// let error = Elf::parse(b"\x7fELF").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Truncated);
/// assert_eq!(error.found(), Some(&4u64.into()));
/// assert_eq!(error.expected(), Some(&64u64.into()));
/// assert_eq!(error.to_string(), "the file ends inside the ELF header: it has 4 bytes, the header 64");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct FormatError {
    /// The sentence, without the file's name (the caller knows it).
    pub what: String,
    // Boxed, as results are returned from functions that read a byte, and nearly none of them is an error.
    detail: Box<Detail>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Detail {
    kind: ErrorKind,
    place: Option<Place>,
    values: Option<(Value, Value)>,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A field has a value that the format does not allow there.
    Malformed,
    /// The data end before what they are said to hold.
    Truncated,
    /// An address, an offset or an index leads to where nothing is.
    OutOfBounds,
    /// A number does not fit its field, the address space, or a limit of this crate.
    TooLarge,
    /// Entries overlap, repeat, or do not ascend.
    Order,
    /// Two parts of the file, or two files, say different things about the same.
    Mismatch,
    /// Something that must be there is not.
    Missing,
    /// Sound as far as is known, but of a version, an encoding or a form that this crate does not handle.
    Unsupported,
}

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// An offset in bytes: from the start of the file, or from that of the section or note that the sentence names.
    Offset(u64),
    /// An address, as the file's headers have it.
    Address(u64),
    /// A line of a text, from 1.
    Line(u64),
    /// The index of an entry of the table that the sentence names: a section, a segment, a symbol, a relocation.
    Entry(u64),
}

/// One of the two values that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A number: a field's value, a size, a limit.
    Number(i128),
    /// Anything else: a name, a build-id, "2 or 3".
    Text(String),
}

impl FormatError {
    /// Of the kind [`ErrorKind::Malformed`], from a sentence.
    pub fn new(what: impl Into<String>) -> Self {
        FormatError {
            what: what.into(),
            detail: Box::new(Detail {
                kind: ErrorKind::Malformed,
                place: None,
                values: None,
            }),
        }
    }

    /// The same, of this kind.
    #[must_use]
    pub fn of(mut self, kind: ErrorKind) -> Self {
        self.detail.kind = kind;
        self
    }

    /// The same, at this offset.
    #[must_use]
    pub fn at_offset(mut self, offset: u64) -> Self {
        self.detail.place = Some(Place::Offset(offset));
        self
    }

    /// The same, at this address.
    #[must_use]
    pub fn at_address(mut self, address: u64) -> Self {
        self.detail.place = Some(Place::Address(address));
        self
    }

    /// The same, on this line of a text.
    #[must_use]
    pub fn at_line(mut self, line: u64) -> Self {
        self.detail.place = Some(Place::Line(line));
        self
    }

    /// The same, about the entry of a table with this index.
    #[must_use]
    pub fn at_entry(mut self, index: u64) -> Self {
        self.detail.place = Some(Place::Entry(index));
        self
    }

    /// The same, with the value that is there, and what should be.
    #[must_use]
    pub fn values(mut self, found: impl Into<Value>, expected: impl Into<Value>) -> Self {
        self.detail.values = Some((found.into(), expected.into()));
        self
    }

    /// The same, whose sentence begins with these words and a colon.
    #[must_use]
    pub fn within(mut self, part: impl fmt::Display) -> Self {
        self.what = format!("{part}: {}", self.what);
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.detail.kind
    }

    /// Where in the file, if it is at one place.
    pub fn place(&self) -> Option<Place> {
        self.detail.place
    }

    /// The value that is there.
    pub fn found(&self) -> Option<&Value> {
        self.detail.values.as_ref().map(|(found, _)| found)
    }

    /// The value, the limit or the form that is expected.
    pub fn expected(&self) -> Option<&Value> {
        self.detail.values.as_ref().map(|(_, expected)| expected)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Self {
                // No platform's `usize` has more than 64 bits.
                Value::Number(number as i128)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, usize, i32, i64);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}
