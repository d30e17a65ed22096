//! Opening a profile file without being told what it is.
//!
//! Files are recognised by their first bytes, never by their name:
//!
//! | first bytes | format |
//! |---|---|
//! | `PLRAW`, eight zero bytes, or an empty file | raw counters |
//! | `PLPROF` | merged profile |
//! | `PERFILE2` | `perf.data` |
//! | `SIMPLEPERF` | simpleperf's report |
//! | `PLTRACE` | trace |
//! | gzip's, or a protobuf message of numbers in field 1; the same of messages | pprof; OpenTelemetry profiles |
//! | `---` and a line end | BOLT YAML |
//! | `SPROF42` and a number, in LEB128; `adcg`; `name:number:number` in the first line | sample profile |
//! | `no_lbr`, `boltedcollection`, a digit 0 to 5 and a name | fdata |
//! | a letter of its records and a hexadecimal number or name | pre-aggregated |
//! | `PERF_RECORD_`, `0x…/0x…/` or a tab in the first lines, a time (`12.345678:`) in the first | text of `perf script` |
//!
//! [`open`] is for the first two, which hold counters. The others have their own `read` in their modules.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::plprof::PlprofFile;
use crate::raw::{RawFile, Sink};
use crate::{Error, Profile, Subject, perf_script, protobuf, source, windows};

/// A file format of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Counters of an instrumented program: [`crate::raw`].
    Raw,
    /// Merged counters: [`crate::plprof`].
    Plprof,
    /// A recording: [`crate::perf_data`].
    PerfData,
    /// Counts by function and block: [`crate::bolt_yaml`].
    BoltYaml,
    /// Counts by name and offset: [`crate::fdata`].
    Fdata,
    /// Counts by address: [`crate::preaggregated`].
    PreAggregated,
    /// Samples as text: [`crate::perf_script`].
    PerfScript,
    /// Samples of pprof: [`crate::protobuf::pprof`].
    Pprof,
    /// OpenTelemetry's profiles: [`crate::protobuf::otlp`].
    Otlp,
    /// What simpleperf reports: [`crate::protobuf::simpleperf`].
    Simpleperf,
    /// A compiler's sample profile, by source lines or probes: recognised here, read by the crate `postlink-profgen`.
    SampleProfile,
    /// Windows of a run, instruction by instruction: [`crate::windows`].
    Trace,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Format::Raw => "raw profile",
            Format::Plprof => "merged profile",
            Format::PerfData => "perf.data",
            Format::BoltYaml => "BOLT YAML profile",
            Format::Fdata => "fdata profile",
            Format::PreAggregated => "pre-aggregated profile",
            Format::PerfScript => "perf script text",
            Format::Pprof => "pprof profile",
            Format::Otlp => "OpenTelemetry profiles",
            Format::Simpleperf => "simpleperf report",
            Format::SampleProfile => "sample profile",
            Format::Trace => "trace",
        })
    }
}

/// Bytes that suffice to recognise a format.
pub const START: usize = 4096;

impl Format {
    /// The format of a file by its first bytes ([`START`] suffice), if it is one of this crate's.
    pub fn recognise(start: &[u8]) -> Option<Format> {
        let zero = start.iter().take(8).all(|&byte| byte == 0);
        if start.starts_with(b"PLRAW") || zero {
            Some(Format::Raw)
        } else if start.starts_with(b"PLPROF") {
            Some(Format::Plprof)
        } else if start.starts_with(b"PERFILE2") {
            Some(Format::PerfData)
        } else if start.starts_with(&windows::MAGIC) {
            Some(Format::Trace)
        } else if start.starts_with(b"---\n") || start.starts_with(b"---\r\n") {
            Some(Format::BoltYaml)
        } else {
            let sample_profile = is_sample_profile(start).then_some(Format::SampleProfile);
            sample_profile
                .or_else(|| protobuf::recognise(start))
                .or_else(|| Format::text(start))
        }
    }

    fn text(start: &[u8]) -> Option<Format> {
        let line = start
            .split(|&byte| byte == b'\n')
            .next()
            .unwrap_or_default();
        let mut fields = line
            .split(|&byte| byte == b' ')
            .filter(|field| !field.is_empty());
        let (first, second, third) = (
            fields.next().unwrap_or_default(),
            fields.next(),
            fields.next(),
        );
        let has = |wanted: &[u8]| memchr::memmem::find(start, wanted).is_some();
        match first {
            b"no_lbr" | b"boltedcollection" => Some(Format::Fdata),
            [b'0'..=b'5']
                if third.is_some_and(|offset| source::hex(offset).is_some()) && !has(b"/0x") =>
            {
                Some(Format::Fdata)
            }
            b"E" if second.is_some() => Some(Format::PreAggregated),
            b"B" | b"F" | b"f" | b"T" | b"R" | b"r" | b"S"
                if second.is_some_and(|address| {
                    address
                        .rsplit(|&byte| byte == b':')
                        .next()
                        .and_then(source::hex)
                        .is_some()
                }) =>
            {
                Some(Format::PreAggregated)
            }
            _ if has(b"PERF_RECORD_")
                || has(b"/0x")
                || has(b"\n\t")
                || start.starts_with(b"\t")
                || line.split(|&byte| byte == b' ').any(is_time) =>
            {
                Some(Format::PerfScript)
            }
            _ => None,
        }
    }

    /// The format of a file by its contents, if it is one of this crate's.
    pub fn of(path: &Path) -> Result<Option<Format>, Error> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        Ok(Format::recognise(&first_bytes(path, &file)?))
    }
}

/// The forms of a compiler's sample profile: LLVM's two binary ones, AutoFDO's, and text, whose first line is a
/// function: `name:sum:entries`, or with its callers `[main:3 @ name]:sum:entries`.
fn is_sample_profile(start: &[u8]) -> bool {
    // `SPROF42` and the number of the form, in LEB128.
    const BINARY: [u8; 9] = [0xff, 0xe5, 0xd0, 0xb1, 0xf4, 0xc9, 0x94, 0xa8, 0x53];
    const EXTENSIBLE: [u8; 9] = [0x84, 0xe4, 0xd0, 0xb1, 0xf4, 0xc9, 0x94, 0xa8, 0x53];
    // GCC's word `gcda`, little-endian.
    const GCOV: &[u8] = b"adcg";
    if [&BINARY[..], &EXTENSIBLE, GCOV]
        .iter()
        .any(|magic| start.starts_with(magic))
    {
        return true;
    }
    let mut lines = start.split(|&byte| byte == b'\n');
    let Some(line) = lines.find(|line| !line.is_empty() && !line.starts_with(b"#")) else {
        return false;
    };
    let mut fields = line.rsplitn(3, |&byte| byte == b':');
    let (entries, sum, name) = (fields.next(), fields.next(), fields.next());
    let is_number = |field: Option<&[u8]>| field.is_some_and(|f| source::decimal(f).is_some());
    let is_name = |name: &[u8]| {
        let chain = name.starts_with(b"[") && name.ends_with(b"]");
        !name.is_empty() && (chain || !name.contains(&b' ') && !name.contains(&b'\t'))
    };
    is_number(entries) && is_number(sum) && name.is_some_and(is_name)
}

/// A field of `perf script` with a time: seconds, a point, digits, a colon.
fn is_time(field: &[u8]) -> bool {
    field.strip_suffix(b":").is_some_and(perf_script::is_time)
}

fn first_bytes(path: &Path, file: &File) -> Result<Vec<u8>, Error> {
    let mut start = vec![0; START];
    let mut len = 0;
    while len < start.len() {
        match file.read_at(&mut start[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotSeekable => {
                return Err(Error::at_byte(
                    path,
                    0,
                    "a pipe, and profiles are read more than once: write it to a file first",
                ));
            }
            Err(e) => return Err(Error::io(path, "read", e)),
        }
    }
    start.truncate(len);
    Ok(start)
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
    let start = first_bytes(path, &file)?;
    match Format::recognise(&start) {
        Some(Format::Raw) => RawFile::from_file(path, file).map(Input::Raw),
        Some(Format::Plprof) => {
            PlprofFile::from_file(path, file).map(|file| Input::Plprof(Box::new(file)))
        }
        Some(other) => Err(Error::at_byte(
            path,
            0,
            format!("this is {other}, which has no counters of an instrumented program"),
        )),
        None => Err(Error::at_byte(
            path,
            0,
            format!(
                "not a profile that can be read: it starts with \"{}\"; raw profiles start with \"PLRAW\", merged ones with \"PLPROF\"",
                start[..start.len().min(16)].escape_ascii()
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

    #[test]
    #[cfg(target_os = "linux")]
    fn a_pipe_is_refused_by_name() {
        use std::os::fd::AsRawFd;
        let (read, _write) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", read.as_raw_fd());
        let error = Format::of(Path::new(&path)).unwrap_err().to_string();
        assert!(
            error.starts_with(&path) && error.contains("a pipe"),
            "{error}"
        );
    }

    #[test]
    fn every_format_is_recognised_by_its_start() {
        for (start, format) in [
            ("PERFILE2\x68", Some(Format::PerfData)),
            ("PLTRACE\n\x01", Some(Format::Trace)),
            ("---\nheader:\n", Some(Format::BoltYaml)),
            ("no_lbr cycles\n1 f 0 1\n", Some(Format::Fdata)),
            ("boltedcollection\n", Some(Format::Fdata)),
            ("1 main 1f 1 g 0 0 1\n", Some(Format::Fdata)),
            ("B 401000 401010 1 0\n", Some(Format::PreAggregated)),
            ("T abcd:401000 X:0 401020 1\n", Some(Format::PreAggregated)),
            ("E cycles\n", Some(Format::PreAggregated)),
            (
                " 4242           401126 0x401126/0x401130/P/-/-/1\n",
                Some(Format::PerfScript),
            ),
            (
                "prog 7/7 0.0: PERF_RECORD_MMAP2 7/7: [0x1000(0x2000) @ 0 08:01 1 1]: r-xp /p\n",
                Some(Format::PerfScript),
            ),
            (
                "  bz  9932 59676.042637:  250000 cpu-clock:  7f52ad136c2a strcmp+0x1a (/lib/ld.so)\n",
                Some(Format::PerfScript),
            ),
            (
                "prog 1 2.5: 1 x: \n\t  401127 f+0x1 (/tmp/x)\n\n",
                Some(Format::PerfScript),
            ),
            ("\x7fELF", None),
            ("hello\n", None),
        ] {
            assert_eq!(Format::recognise(start.as_bytes()), format, "{start:?}");
        }
    }
}
