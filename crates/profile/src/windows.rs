//! `.pltrace`: windows of a run, instruction by instruction.
//!
//! Counts say what ran how often, not what ran at the same time; that is what decides which lines of code compete
//! for an instruction cache. A trace of a few stretches of the run ("windows") says it, and needs neither an emulator
//! nor a processor with records of branches: a debugger's single steps are enough (`postlink trace`).
//!
//! | size | |
//! |---|---|
//! | 8 | magic `PLTRACE\n` |
//! | 4 | version, 1 |
//! | 4 | zero |
//! | 40 | the binary: its build-id or a hash of its contents, as in `.plprof` |
//! | … | number of windows, then each window |
//! | 8 | XXH3 hash (64 bits) of everything before it |
//!
//! Fixed numbers are little-endian, all others are LEB128 in their shortest form. A window is the number of its steps,
//! and the steps. A step is an address in the binary, or elsewhere in the process the number of a line of 64 bytes:
//! twice the difference to the step of the same kind before it (in a window, the first to 0; zigzag: 0, -1, 1, -2 …),
//! one more if it is elsewhere.
//!
//! There is exactly one file for each trace: the reader refuses every other spelling.

use std::io::Write;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Identity, output, varint};

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"PLTRACE\n";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes of the lines by which code outside of the binary is recorded.
pub const LINE: u64 = 64;

const HEADER_LEN: usize = 16 + Identity::ENCODED;
const CHECKSUM_LEN: usize = 8;
/// Marks a step outside of the binary.
const ELSEWHERE: u64 = 1 << 63;
/// Bits of an address that are kept: a difference with its sign and the kind are 64 then.
const KEPT: u64 = (1 << 61) - 1;

/// One step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An instruction of the binary, by its link-time address.
    Inside(u64),
    /// Code elsewhere in the process: the number of its line, its address in the process divided by [`LINE`].
    Elsewhere(u64),
}

/// A stretch of the run of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window(Vec<u64>);

impl Window {
    /// Adds a step. Consecutive steps in the same line elsewhere are one. The lower 61 bits are kept, which is more
    /// than addresses of processes have.
    pub fn push(&mut self, step: Step) {
        match step {
            Step::Inside(address) => self.0.push(address & KEPT),
            Step::Elsewhere(line) => {
                let coded = (line & KEPT) | ELSEWHERE;
                if self.0.last() != Some(&coded) {
                    self.0.push(coded);
                }
            }
        }
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no step in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its steps.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        self.0.iter().map(|coded| match coded & ELSEWHERE {
            0 => Step::Inside(*coded),
            _ => Step::Elsewhere(coded & KEPT),
        })
    }
}

/// A trace: windows of the runs of one binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The binary.
    pub identity: Identity,
    /// In the order in which they were recorded.
    pub windows: Vec<Window>,
}

impl Windows {
    /// Steps in all windows.
    pub fn steps(&self) -> usize {
        self.windows.iter().map(Window::len).sum()
    }

    /// Writes them to `path`, by way of a temporary beside it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let bytes = self.to_bytes();
        output::write_atomically(path, |out| out.write_all(&bytes))
    }

    /// The contents of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + 2 * self.steps() + CHECKSUM_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.identity.encode());
        varint::put(&mut out, self.windows.len() as u64);
        for window in &self.windows {
            varint::put(&mut out, window.len() as u64);
            let mut before = [0u64; 2];
            for step in window.steps() {
                let (kind, value) = match step {
                    Step::Inside(address) => (0, address),
                    Step::Elsewhere(line) => (1, line),
                };
                let delta = value as i64 - before[kind] as i64; // both have 61 bits
                let zigzag = ((delta << 1) ^ (delta >> 63)) as u64;
                varint::put(&mut out, zigzag << 1 | kind as u64);
                before[kind] = value;
            }
        }
        let hash = xxh3_64(&out);
        out.extend_from_slice(&hash.to_le_bytes());
        out
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Windows, Error> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, "read", e))?;
        Windows::read_bytes(path, &bytes)
    }

    /// Reads the contents of a file; `path` names it in errors.
    pub fn read_bytes(path: &Path, bytes: &[u8]) -> Result<Windows, Error> {
        decode(path, bytes)
    }
}

/// Reads numbers from the file's contents in front of the hash.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn error(&self, at: usize, what: impl Into<String>) -> Error {
        Error::at_byte(self.path, at as u64, what)
    }

    fn number(&mut self, what: &str) -> Result<u64, Error> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (value, len) = varint::get(rest).ok_or_else(|| {
            self.error(
                self.at,
                format!("{what} is no number of LEB128 in its shortest form"),
            )
        })?;
        self.at += len;
        Ok(value)
    }

    /// A number of things of which each takes a byte at least.
    fn count(&mut self, what: &str) -> Result<usize, Error> {
        let at = self.at;
        let value = self.number(what)?;
        let left = self.bytes.len() - self.at;
        usize::try_from(value)
            .ok()
            .filter(|n| *n <= left)
            .ok_or_else(|| self.error(at, format!("{what} is {value}, but {left} bytes are left")))
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Windows, Error> {
    let least = (HEADER_LEN + 1 + CHECKSUM_LEN) as u64;
    if !bytes.starts_with(&MAGIC) && bytes.len() >= MAGIC.len() {
        return Err(Error::at_byte(
            path,
            0,
            format!(
                "a trace begins with {:?}, this file with {:?}",
                MAGIC.escape_ascii().to_string(),
                bytes[..MAGIC.len()].escape_ascii().to_string()
            ),
        ));
    }
    if (bytes.len() as u64) < least {
        return Err(Error::CutShort {
            path: path.to_owned(),
            what: "a trace".to_owned(),
            expected: least,
            found: bytes.len() as u64,
        });
    }
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if word(8) != VERSION {
        return Err(Error::at_byte(
            path,
            8,
            format!(
                "version {} of the format, this postlink reads {VERSION}",
                word(8)
            ),
        ));
    }
    if word(12) != 0 {
        return Err(Error::at_byte(
            path,
            12,
            format!("padding is {:#x}, must be 0", word(12)),
        ));
    }
    let (body, hash) = bytes.split_at(bytes.len() - CHECKSUM_LEN);
    let (found, expected) = (xxh3_64(body).to_le_bytes(), hash);
    if found != expected {
        return Err(Error::at_byte(
            path,
            body.len() as u64,
            format!(
                "the hash of the contents is {}, the file says {}: it is damaged or cut short",
                postlink_bytes::hex(&found),
                postlink_bytes::hex(expected)
            ),
        ));
    }
    let mut own = [0; Identity::ENCODED];
    own.copy_from_slice(&body[16..HEADER_LEN]);
    let identity =
        Identity::decode(&own).map_err(|(at, what)| Error::at_byte(path, 16 + at, what))?;
    let mut reader = Reader {
        path,
        bytes: body,
        at: HEADER_LEN,
    };
    let mut windows = Vec::new();
    for _ in 0..reader.count("the number of windows")? {
        windows.push(window(&mut reader)?);
    }
    if reader.at != body.len() {
        return Err(reader.error(
            reader.at,
            format!("{} bytes after the last window", body.len() - reader.at),
        ));
    }
    Ok(Windows { identity, windows })
}

fn window(reader: &mut Reader<'_>) -> Result<Window, Error> {
    let count = reader.count("the number of steps")?;
    let mut window = Window(Vec::with_capacity(count));
    let mut before = [0i64; 2];
    for _ in 0..count {
        let at = reader.at;
        let coded = reader.number("a step")?;
        let (kind, zigzag) = ((coded & 1) as usize, coded >> 1);
        let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let value = before[kind] + delta; // 62 bits each at most
        if !(0..=KEPT as i64).contains(&value) {
            return Err(reader.error(at, format!("a step to {value:#x}, which no process has")));
        }
        before[kind] = value;
        let step = match kind {
            0 => Step::Inside(value as u64),
            _ => Step::Elsewhere(value as u64),
        };
        let length = window.len();
        window.push(step);
        if window.len() == length {
            return Err(reader.error(at, format!("line {value:#x} once more, which is one step")));
        }
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Windows {
        let mut first = Window::default();
        let steps = [
            Step::Inside(0x1000),
            Step::Inside(0x1003),
            Step::Elsewhere(0x7fff_1234),
            Step::Elsewhere(0x7fff_1235),
            Step::Inside(0xfff),
            Step::Inside(KEPT),
            Step::Inside(0),
            Step::Elsewhere(KEPT),
            Step::Elsewhere(0),
        ];
        steps.into_iter().for_each(|step| first.push(step));
        assert_eq!(first.steps().collect::<Vec<_>>(), steps);
        Windows {
            identity: Identity::of_contents(b"program"),
            windows: vec![first, Window::default()],
        }
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.pltrace");
        let written = sample();
        written.write(&path).unwrap();
        assert_eq!(Windows::read(&path).unwrap(), written);
        assert_eq!(written.steps(), 9);
    }

    #[test]
    fn a_line_elsewhere_that_follows_itself_is_one_step() {
        let mut window = Window::default();
        for _ in 0..3 {
            window.push(Step::Elsewhere(7));
        }
        window.push(Step::Inside(7));
        window.push(Step::Inside(7));
        assert_eq!(window.len(), 3);
    }

    #[test]
    fn damage_is_said_with_its_place() {
        let good = sample().to_bytes();
        let path = Path::new("t.pltrace");
        let said = |bytes: &[u8]| decode(path, bytes).unwrap_err().to_string();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(said(&bad).starts_with("t.pltrace at offset"), "{at}");
            assert!(said(&good[..at]).starts_with("t.pltrace"), "{at}");
        }
        // With the right hash, the contents are looked at.
        let body = &good[..good.len() - CHECKSUM_LEN];
        let with_hash = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = body.to_vec();
            change(&mut bytes);
            let hash = xxh3_64(&bytes);
            bytes.extend_from_slice(&hash.to_le_bytes());
            said(&bytes)
        };
        assert!(with_hash(&|b| b.push(0)).contains("1 bytes after the last window"));
        assert!(with_hash(&|b| b[HEADER_LEN] = 0x7f).contains("the number of windows is 127"));
        assert!(with_hash(&|b| b[HEADER_LEN + 1] = 0x7f).contains("the number of steps is 127"));
        assert!(with_hash(&|b| b[48] = 0).contains("length of the identity is 0"));
    }

    #[test]
    fn what_is_read_is_written_as_the_same_bytes() {
        let path = Path::new("t.pltrace");
        arbtest::arbtest(|u| {
            let mut bytes = sample().to_bytes()[..HEADER_LEN].to_vec();
            bytes.extend_from_slice(&u.arbitrary::<Vec<u8>>()?);
            let hash = xxh3_64(&bytes);
            bytes.extend_from_slice(&hash.to_le_bytes());
            if let Ok(read) = decode(path, &bytes) {
                assert_eq!(read.to_bytes(), bytes);
            }
            Ok(())
        })
        .budget_ms(1000);
    }
}
