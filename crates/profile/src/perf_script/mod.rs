//! The text that `perf script` prints.
//!
//! Which fields there are depends on `-F`; they are told apart by their shape, so no setting is needed:
//!
//! | shape | field |
//! |---|---|
//! | `0x…/0x…/P/…` (also `M`, `-`) | entry of the branch stack (`brstack`), newest first; `(dso)` after an address is skipped |
//! | hexadecimal, right-aligned to 16 columns or more | instruction (`ip`); the first of two is the memory address (`addr`) |
//! | a line that starts with a tab | entry of the call chain, innermost first |
//! | decimal before the time, or `pid/tid` | process |
//! | `[003]`, `1234.567890:` | CPU, time |
//! | other, with a colon at its end | event |
//! | `PERF_RECORD_…` | mappings, processes (`--show-mmap-events --show-task-events`) |
//!
//! A sample is a line, or lines up to an empty one when there are call chains. The order of the text is the
//! order of time, so the position of a record serves as its time.
//!
//! In call chains, newer versions of perf print the offset in the file in place of the address, and nothing
//! tells which of the two it is. The chain is handed on as it is printed; a sample that has nothing but such
//! a chain is counted as outside of all modules. `perf.data` itself has the addresses: see
//! [`crate::perf_data`]. Branch stacks are always addresses.
//!
//! Where the text has no mapping event, addresses stay what they are in the process
//! ([`crate::address::AddressKind::RunTime`]).

mod known;
mod stack;

use std::path::Path;

use rustc_hash::FxHashMap;

use crate::address::{AddressProfile, Collector};
use crate::samples::{self, Adder, FirstFull, Options, Sample};
use crate::source::{self, Bad, PIECE, Pages, Source, piece_count, quote, share};
use crate::spaces::{Mapping, SpaceEvent, Spaces};
use crate::{Error, progress};
use known::{Event, Known};

/// Reads a file and adds up its samples, in parallel.
pub fn read(path: &Path, options: &Options) -> Result<AddressProfile, Error> {
    let source = Source::open(path)?;
    read_bytes(path, &source, options)
}

/// Reads a text; `name` is what errors call it.
pub fn read_bytes<'a>(
    name: &Path,
    text: impl Into<Pages<'a>>,
    options: &Options,
) -> Result<AddressProfile, Error> {
    let pages = text.into();
    let text = pages.bytes();
    let pieces = split(text, text.len() / PIECE + piece_count());
    let mut first = FirstFull::new(options);
    if options.without_newest {
        // It is in the first piece but for recordings of something strange.
        for &(start, piece) in &pieces {
            visit(piece, start, &mut |sample| first.see(sample))
                .map_err(|bad| bad.locate(name, text))?;
            if first.time < u64::MAX {
                break;
            }
        }
    }
    let mut known = Known::new();
    let mut adders = add_up(pages, &pieces, options, first.time, &known)
        .map_err(|bad| bad.locate(name, text))?;
    let nameless = adders
        .iter()
        .any(|collector| collector.processes.contains_key(&None));
    if !known.agree(nameless) {
        known = Known::all(spaces(name, pages)?);
        adders = add_up(pages, &pieces, options, first.time, &known)
            .map_err(|bad| bad.locate(name, text))?;
    }
    Ok(samples::finish(adders, known.last()))
}

/// Adds up the samples of all pieces, with the mappings that are known at each.
fn add_up(
    pages: Pages<'_>,
    pieces: &[(usize, &[u8])],
    options: &Options,
    without_newest_from: u64,
    known: &Known,
) -> Result<Vec<Collector>, Bad> {
    let numbers: Vec<usize> = (0..pieces.len()).collect();
    progress::expect(numbers.len());
    let adders = share(
        &numbers,
        || {
            let adder = Adder::new(known.last(), options).without_newest_from(without_newest_from);
            (adder, None, Vec::new())
        },
        |(adder, edition, buffer), &number| {
            let turn = known.turn(number);
            let (start, piece) = pieces[number];
            let piece = pages.load(start..start + piece.len(), buffer);
            let events = if turn.is_needed() {
                space_events(piece, start)?
            } else {
                Vec::new()
            };
            let rest = || {
                let (mut rest, mut buffer) = (Vec::new(), Vec::new());
                for &(start, piece) in &pieces[number + 1..] {
                    let piece = pages.load(start..start + piece.len(), &mut buffer);
                    rest.append(&mut space_events(piece, start)?);
                }
                Ok(rest)
            };
            let Some((now, spaces)) = turn.take(events, rest)? else {
                return Ok(()); // an error before this piece
            };
            if edition.replace(now) != Some(now) {
                adder.change_spaces(spaces);
            }
            let lost = visit(piece, start, &mut |sample| adder.add(sample))?;
            adder.collector.statistics.lost += lost;
            progress::did(1);
            Ok(())
        },
    )?;
    Ok(adders
        .into_iter()
        .map(|(adder, _, _)| adder.collector)
        .collect())
}

/// Calls `each` with every sample, in order. Returns how many records perf says it lost.
pub fn for_each_sample(
    name: &Path,
    text: &[u8],
    mut each: impl FnMut(&Sample),
) -> Result<u64, Error> {
    visit(text, 0, &mut each).map_err(|bad| bad.locate(name, text))
}

/// The mappings that the text tells of; times are positions in it.
pub fn spaces<'a>(name: &Path, text: impl Into<Pages<'a>>) -> Result<Spaces, Error> {
    let pages = text.into();
    let text = pages.bytes();
    let pieces = source::split_lines(text, text.len() / PIECE + piece_count());
    progress::expect(pieces.len());
    let mut events: Vec<_> = share(
        &pieces,
        || (Vec::new(), Vec::new()),
        |(events, buffer), &(start, piece)| {
            let piece = pages.load(start..start + piece.len(), buffer);
            events.append(&mut space_events(piece, start)?);
            progress::did(1);
            Ok(())
        },
    )
    .map_err(|bad: Bad| bad.locate(name, text))?
    .into_iter()
    .flat_map(|(events, _)| events)
    .collect();
    // Positions in the text are times: the order of the text, whichever thread found them.
    events.sort_by_key(|event: &(u64, i32, SpaceEvent)| event.0);
    Ok(Spaces::new(events, &FxHashMap::default()))
}

/// The mapping events of a piece of the text that starts at `start`.
fn space_events(piece: &[u8], start: usize) -> Result<Vec<Event>, Bad> {
    let mut events = Vec::new();
    let mut at = 0;
    // Underscores are rare in numbers: most blocks are passed over 32 bytes at a time.
    while let Some(more) = source::find_byte(&piece[at..], b'_') {
        let underscore = at + more;
        at = underscore + 1;
        if !piece[..underscore].ends_with(b"PERF") || !piece[at..].starts_with(b"RECORD_") {
            continue;
        }
        let line_start = piece[..underscore]
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        let line_end = source::find_byte(&piece[at..], b'\n').map_or(piece.len(), |more| at + more);
        let record = &piece[at + b"RECORD_".len()..line_end];
        let event = space_event(record).map_err(|what| {
            Bad::new(
                start + line_start,
                format!("{what}: {}", quote(&piece[line_start..line_end])),
            )
        })?;
        if let Some((pid, event)) = event {
            events.push(((start + line_start) as u64, pid, event));
        }
        at = line_end;
    }
    Ok(events)
}

/// What follows `PERF_RECORD_`. Records that change no address space are `None`.
fn space_event(record: &[u8]) -> Result<Option<(i32, SpaceEvent)>, String> {
    let end = record
        .iter()
        .position(|byte| !byte.is_ascii_uppercase() && !byte.is_ascii_digit() && *byte != b'_')
        .unwrap_or(record.len());
    let (kind, rest) = record.split_at(end);
    match kind {
        b"MMAP" | b"MMAP2" => match mapping_event(rest)? {
            (-1, _) => Ok(None), // the kernel
            (pid, mapping) => Ok(Some((pid, SpaceEvent::Map(mapping)))),
        },
        b"COMM" => {
            let Some(rest) = rest.strip_prefix(b" exec: ") else {
                return Ok(None);
            };
            // "NAME:PID/TID"; the name may have any character in it.
            let pid = rest.rsplit(|&byte| byte == b':').next().unwrap_or_default();
            Ok(Some((
                process(pid.split(|&byte| byte == b'/').next().unwrap_or_default())?,
                SpaceEvent::Exec,
            )))
        }
        b"FORK" => {
            // "(PID:TID):(PARENT:TID)"
            let mut groups = rest
                .split(|&byte| byte == b'(')
                .skip(1)
                .map(|group| group.split(|&byte| byte == b':').next().unwrap_or_default());
            match (groups.next(), groups.next()) {
                (Some(pid), Some(parent)) => {
                    Ok(Some((process(pid)?, SpaceEvent::Fork(process(parent)?))))
                }
                _ => Err("fork event without two process ids".into()),
            }
        }
        _ => Ok(None),
    }
}

/// What a mapping event says after its kind: the process (-1 is the kernel) and the mapping. `None` if something is
/// missing or is no number.
pub fn mapping(rest: &[u8]) -> Option<(i32, Mapping)> {
    mapping_event(rest).ok()
}

/// The same, with a sentence about what is wrong.
fn mapping_event(mut rest: &[u8]) -> Result<(i32, Mapping), String> {
    let mut take = |until: &[u8], what: &str| -> Result<&[u8], String> {
        let at = rest.windows(until.len()).position(|window| window == until);
        let at = at.ok_or_else(|| format!("mapping event without {what}"))?;
        let field = &rest[..at];
        rest = &rest[at + until.len()..];
        Ok(field)
    };
    // " PID/TID: [0xSTART(0xLEN) @ 0xOFFSET MAJ:MIN INODE GENERATION]: r-xp PATH", or "<BUILD-ID>" for the three.
    let pid = take(b"/", "process id")?;
    take(b"[", "address")?;
    let start = take(b"(", "address")?;
    let len = take(b") @ ", "length")?;
    let place = take(b"]: ", "offset")?;
    let mut place = place.splitn(2, |&byte| byte == b' ');
    let offset = place.next().unwrap_or_default();
    let more = place.next().unwrap_or_default();
    let path = rest
        .iter()
        .position(|&byte| byte == b' ')
        .map_or(&[][..], |at| &rest[at + 1..]);
    let number = |field: &[u8], what: &str| {
        let digits = field.strip_prefix(b"0x").unwrap_or(field);
        source::hex(digits).ok_or_else(|| {
            format!(
                "{what} {} of a mapping is no hexadecimal number",
                quote(field)
            )
        })
    };
    let build_id = match more {
        [b'<', hex @ .., b'>'] => {
            let bytes = hex
                .chunks(2)
                .map(|pair| source::hex(pair).map(|byte| byte as u8))
                .collect::<Option<Vec<u8>>>();
            bytes.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let mapping = Mapping {
        start: number(start, "address")?,
        len: number(len, "length")?,
        file_offset: number(offset, "offset")?,
        path: path.trim_ascii_end().to_vec(),
        build_id,
    };
    let pid = match pid.trim_ascii() {
        b"-1" => -1,
        pid => process(pid)?,
    };
    Ok((pid, mapping))
}

fn process(field: &[u8]) -> Result<i32, String> {
    source::decimal(field.trim_ascii())
        .and_then(|pid| i32::try_from(pid).ok())
        .ok_or_else(|| format!("{} is no process id", quote(field)))
}

/// Cuts a text into pieces of whole samples.
fn split(text: &[u8], pieces: usize) -> Vec<(usize, &[u8])> {
    let mut out = Vec::new();
    let mut start = 0;
    for (at, piece) in source::split_lines(text, pieces) {
        // From the line end on: it may be between the lines of a sample, which is where a call chain is
        // before or after.
        let mut end = (at + piece.len()).max(start);
        let mut before = text[..end.saturating_sub(1)]
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        while end < text.len() {
            let line_end = end
                + source::find_byte(&text[end..], b'\n').map_or(text.len() - end, |more| more + 1);
            let (last, next) = (&text[before..end], &text[end..line_end]);
            // A header without branches, and branches alone.
            let stack = next.trim_ascii_start().starts_with(b"0x")
                && !last.windows(2).any(|pair| pair == b"0x");
            if last[0] != b'\t' && next[0] != b'\t' && !stack {
                break;
            }
            before = end;
            end = line_end;
        }
        if end > start {
            out.push((start, &text[start..end]));
            start = end;
        }
    }
    out
}

/// Calls `each` with the samples of a piece that starts at `start` of the text. Returns the number of lost records.
fn visit(text: &[u8], start: usize, each: &mut impl FnMut(&Sample)) -> Result<u64, Bad> {
    let mut sample = Sample::default();
    let mut lost = 0u64;
    for (at, line) in source::lines(text) {
        if line.is_empty() {
            flush(&mut sample, each);
            continue;
        }
        // A call chain continues, and a branch stack alone on a line belongs to the header or call chain before
        // it. Everything else begins a sample; what is pending here is not complete in one line.
        let pending =
            !sample.callchain.is_empty() || sample.pid.is_some() || !sample.event.is_empty();
        let goes_on = line[0] == b'\t' || (pending && line.trim_ascii_start().starts_with(b"0x"));
        if !goes_on {
            flush(&mut sample, each);
        }
        let record = read_line(&text[at..], line.len(), &mut sample, (start + at) as u64)
            .map_err(|what| Bad::new(start + at, format!("{what}: {}", quote(line))))?;
        match record {
            Some(record) => {
                sample.clear();
                if let Some(rest) = record.strip_prefix(b"LOST lost ") {
                    lost = lost.saturating_add(source::decimal(rest.trim_ascii()).unwrap_or(0));
                }
            }
            None if sample.callchain.is_empty() && !sample.is_empty() => flush(&mut sample, each),
            None => {}
        }
    }
    flush(&mut sample, each);
    Ok(lost)
}

fn flush(sample: &mut Sample, each: &mut impl FnMut(&Sample)) {
    if !sample.is_empty() {
        each(sample);
    }
    sample.clear();
}

/// Adds the line that a text begins with, of `len` bytes and not empty, to the sample. Of a line with
/// `PERF_RECORD_` it returns what follows that.
fn read_line<'a>(
    text: &'a [u8],
    len: usize,
    sample: &mut Sample,
    time: u64,
) -> Result<Option<&'a [u8]>, String> {
    let line = &text[..len];
    let chain = line[0] == b'\t';
    let mut at = 0;
    // The end of the field before, for the width of columns.
    let mut before = 0;
    // An address has been read: what follows is a symbol, a source line, or the branch stack.
    let mut addresses = 0;
    let mut timed = false;
    loop {
        while let Some(b' ' | b'\t') = line.get(at) {
            at += 1;
        }
        if at >= line.len() {
            return Ok(None);
        }
        if line[at..].starts_with(b"0x") {
            let (next, end) = stack::entries(text, at, &mut sample.branches);
            if next > at {
                (at, before) = (next, end);
                continue;
            }
            if let Some((entry, len)) = stack::entry(&line[at..])? {
                sample.branches.push(entry);
                at += len;
                before = at;
                continue;
            }
        }
        let token_end = line[at..]
            .iter()
            .position(|&byte| matches!(byte, b' ' | b'\t'))
            .map_or(line.len(), |more| at + more);
        let token = &line[at..token_end];
        let wide = token_end - before >= 16 && token.len() <= 16;
        let address = if chain && addresses == 0 || wide {
            source::hex(token)
        } else {
            None
        };
        if chain {
            if let (0, Some(address)) = (addresses, address) {
                sample.callchain.push(address);
                addresses = 1;
            }
        } else if let (0 | 1, Some(address)) = (addresses, address) {
            if addresses == 1 {
                sample.address = sample.ip;
            }
            sample.ip = Some(address);
            addresses += 1;
        } else if addresses == 0 {
            if let Some(record) = token.strip_prefix(b"PERF_RECORD_") {
                let rest_at = token_end - record.len();
                return Ok(Some(&line[rest_at..]));
            }
            if let Some(time) = token.strip_suffix(b":") {
                if is_time(time) {
                    timed = true;
                } else {
                    // "1 cycles:u:": the name keeps its modifier.
                    sample.event.clear();
                    sample.event.extend_from_slice(time);
                }
            } else if !timed
                && let Some(pid) = token
                    .split(|&byte| byte == b'/')
                    .next()
                    .and_then(source::decimal)
            {
                sample.pid = i32::try_from(pid).ok();
            }
        }
        if sample.time == 0 {
            sample.time = time;
        }
        at = token_end;
        before = at;
    }
}

pub(crate) fn is_time(token: &[u8]) -> bool {
    token.contains(&b'.')
        && token
            .iter()
            .all(|&byte| byte.is_ascii_digit() || byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Seen;
    use crate::samples::BranchEntry;

    fn samples(text: &str) -> Vec<Sample> {
        let mut out = Vec::new();
        for_each_sample(Path::new("x"), text.as_bytes(), |sample| {
            out.push(sample.clone())
        })
        .unwrap();
        out.iter_mut().for_each(|sample| sample.time = 0);
        out
    }

    fn entry(from: u64, to: u64, mispredicted: bool) -> BranchEntry {
        BranchEntry {
            from,
            to,
            mispredicted,
            wrong_path: false,
        }
    }

    #[test]
    fn samples_are_counted_for_the_files_that_their_process_had_mapped() {
        let text =
            b"a 1/1 1.0: PERF_RECORD_MMAP2 1/1: [0x1000(0x1000) @ 0 08:01 1 1]: r-xp /bin/a\n\
            b 2/2 1.0: PERF_RECORD_MMAP2 2/2: [0x1000(0x1000) @ 0 08:01 1 1]: r-xp /bin/b\n \
            1 0x1010/0x1020/P/-/-/1\n 2 0x1010/0x1020/P/-/-/1\n 1 0x1010/0x1020/P/-/-/1\n";
        let profile = read_bytes(Path::new("x"), text, &Options::default()).unwrap();
        let mapped: Vec<_> = profile
            .mapped
            .iter()
            .map(|(module, seen)| (&module.path[..], seen.samples))
            .collect();
        assert_eq!(mapped, [(&b"/bin/a"[..], 2), (b"/bin/b", 1)]);
        let twice = profile.clone().merge(profile);
        assert!(twice.mapped.values().map(|seen| seen.samples).eq([4, 2]));
    }

    #[test]
    fn entries_and_pairs_are_counted_for_the_files_that_their_process_had_mapped() {
        let text =
            b"a 1/1 1.0: PERF_RECORD_MMAP2 1/1: [0x1000(0x1000) @ 0 08:01 1 1]: r-xp /bin/a\n\
            b 2/2 1.0: PERF_RECORD_MMAP2 2/2: [0x1000(0x1000) @ 0 08:01 1 1]: r-xp /bin/b\n \
            1 0x1010/0x1020/P/-/-/1 0x1010/0x1020/P/-/-/1 \n 2 0x1010/0x1020/P/-/-/1 \n";
        let profile = read_bytes(Path::new("x"), text, &Options::default()).unwrap();
        let seen: Vec<_> = profile.mapped.values().collect();
        let of = |entries, pairs| Seen {
            samples: 1,
            with_branches: 1,
            entries,
            pairs,
        };
        assert_eq!(seen, [&of(2, 1), &of(1, 0)]);
    }

    #[test]
    fn fields_are_told_apart_by_their_shape() {
        let stack = vec![
            entry(0x401126, 0x401130, false),
            entry(0x401140, 0x401120, true),
        ];
        let pid_ip_stack = samples(
            " 4242           401126 0x401126/0x401130/P/-/-/1  0x401140/0x401120/M/-/-/0/COND/- \n",
        );
        let whole = Sample {
            pid: Some(4242),
            ip: Some(0x401126),
            branches: stack.clone(),
            ..Sample::default()
        };
        assert_eq!(pid_ip_stack.len(), 1);
        assert_eq!(pid_ip_stack[0], whole);
        let pid_stack = samples(" 4242 0x401126/0x401130/P/-/-/1 0x401140/0x401120/M/-/-/0\n");
        assert_eq!(
            pid_stack,
            [Sample {
                ip: None,
                ..whole.clone()
            }]
        );
        let ip_stack = samples(
            "           401126 0x401126(/usr/a b)/0x401130(/x)/P/-/-/1 0x401140/0x401120/M\n",
        );
        assert_eq!(
            ip_stack,
            [Sample {
                pid: None,
                ..whole.clone()
            }]
        );
        let basic =
            samples(" 4242 cycles:u:     7ffff7dcf0e1 \n 4243 cycles:u:     7ffff7dcf0e2 \n");
        assert_eq!(basic.len(), 2);
        assert_eq!(
            (basic[0].pid, &basic[0].event[..], basic[0].ip),
            (Some(4242), &b"cycles:u"[..], Some(0x7ffff7dcf0e1))
        );
        let memory = samples(" 4242 cpu/mem-loads,ldlat=30/P:     7f0000001234           401126\n");
        assert_eq!(
            (memory[0].address, memory[0].ip),
            (Some(0x7f0000001234), Some(0x401126))
        );
    }

    #[test]
    fn call_chains_belong_to_the_header_before_and_end_at_an_empty_line() {
        let text = "my prog  4242/4243 [001]  123.456789:     250000 task-clock:u: \n\t          401126 main+0x6 (/tmp/a b)\n\t    7ffff7dcf0e1 [unknown] (/lib/c.so)\n\nprog 1 2.5: 1 x: \n\t  401127 f+0x1 (/tmp/x)\n\n";
        let samples = samples(text);
        assert_eq!(samples.len(), 2);
        assert_eq!(samples[0].pid, Some(4242));
        assert_eq!(samples[0].event, b"task-clock:u");
        assert_eq!(samples[0].callchain, [0x401126, 0x7ffff7dcf0e1]);
        assert_eq!(samples[1].callchain, [0x401127]);
        let samples = self::samples(
            "\t          401126\n\t          401200\n 0x1/0x2/P/-/-/1 0x3/0x4/M/-/-/1\n\n\t          401127\n 0x5/0x6/P/-/-/1\n\n",
        );
        assert_eq!(samples.len(), 2);
        assert_eq!(samples[0].callchain.len(), 2);
        assert_eq!(samples[0].branches.len(), 2);
    }

    #[test]
    fn mappings_place_addresses_in_files() {
        let text = "prog 7/7 0.0: PERF_RECORD_MMAP2 7/7: [0x555500001000(0x2000) @ 0x1000 08:01 1234 1]: r-xp /usr/bin/my prog\n\
                    prog 7/7 0.0: PERF_RECORD_MMAP2 7/7: [0x7f0000000000(0x1000) @ 0 <deadbeef>]: r-xp /lib/c.so\n\
                    swapper 0 0.0: PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x1000000) @ 0xffffffff81000000]: x [kernel.kallsyms]_text\n\
                    x 8/8 1.0: PERF_RECORD_FORK(8:8):(7:7)\n\
                    x 8/8 1.0: PERF_RECORD_LOST lost 17\n\
                    \x20   8     555500001010 0x555500001010/0x7f0000000020/P/-/-/0 0xffffffff81000010/0x555500001000/P/-/-/0\n\
                    x 8/8 1.1: PERF_RECORD_COMM exec: we:ird:8/8\n\
                    \x20   8     555500001010 0x555500001010/0x7f0000000020/P/-/-/0\n";
        let profile = read_bytes(Path::new("x"), text.as_bytes(), &Options::default()).unwrap();
        let paths: Vec<&[u8]> = profile
            .modules()
            .iter()
            .map(|module| &module.path[..])
            .collect();
        assert_eq!(paths, [&b"/lib/c.so"[..], b"/usr/bin/my prog"]);
        assert_eq!(profile.modules()[0].build_id, [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(profile.statistics.lost, 17);
        // Entries from the kernel are no branches of the program; nothing is mapped after exec.
        assert_eq!(profile.statistics.outside, 1);
        let branches: Vec<_> = profile
            .branches()
            .iter()
            .map(|((from, to), _)| (from.address, to.address))
            .collect();
        assert_eq!(branches, [(0x1010, 0x20)]);
        let profile = read_bytes(
            Path::new("x"),
            text.as_bytes(),
            &Options {
                pids: vec![7],
                ..Options::default()
            },
        )
        .unwrap();
        assert!(profile.is_empty());
    }

    #[test]
    fn damaged_branches_and_mappings_are_errors_with_their_line() {
        let error = |text: &str| {
            read_bytes(Path::new("x"), text.as_bytes(), &Options::default())
                .unwrap_err()
                .to_string()
        };
        assert!(
            error("\n 1 0x12/0x/P\n")
                .starts_with("x:2: branch \"0x12/0x/P\" has no address after the slash")
        );
        assert!(error(" 1 0x12/0x13/Q\n").contains("has no M, P or -"));
        assert!(
            error("p 1 0.1: PERF_RECORD_MMAP2 1/1: [0x1(0x2) @ 0\n")
                .contains("mapping event without offset")
        );
        assert!(
            error("p 1 0.1: PERF_RECORD_MMAP2 q/1: [0x1(0x2) @ 0 1]: r-xp /x\n")
                .contains("\"q\" is no process id")
        );
    }

    #[test]
    fn any_text_is_read_or_refused_and_pieces_make_no_difference() {
        let good = "prog 7/7 0.0: PERF_RECORD_MMAP2 7/7: [0x1000(0x2000) @ 0x1000 08:01 1234 1]: r-xp /p\n 7             1126 0x1126/0x1130/P/-/-/1 0x1140/0x1120/M/-/-/0\n\n\t            1126 f (x)\n 0x1126/0x1130/P\n\n";
        arbtest::arbtest(|u| {
            let mut bytes = good.repeat(u.int_in_range(1..=2)?).into_bytes();
            for _ in 0..u.int_in_range(0..=5)? {
                let at = u.choose_index(bytes.len())?;
                if u.arbitrary()? {
                    bytes[at] = u.arbitrary()?;
                } else {
                    bytes.remove(at);
                }
            }
            let _ = read_bytes(Path::new("x"), &bytes, &Options::default());
            let any: Vec<u8> = u.arbitrary()?;
            let _ = read_bytes(Path::new("x"), &any, &Options::default());
            let mut text = good.repeat(3000 + u.int_in_range(0..=3)?).into_bytes();
            text.truncate(text.len() - u.int_in_range(0..=1)?);
            let pieces = split(&text, u.int_in_range(1..=8)?);
            assert_eq!(
                pieces.iter().map(|piece| piece.1.len()).sum::<usize>(),
                text.len()
            );
            let mut whole = Vec::new();
            visit(&text, 0, &mut |sample| whole.push(sample.clone())).unwrap();
            let mut parts = Vec::new();
            for (start, piece) in pieces {
                visit(piece, start, &mut |sample| parts.push(sample.clone())).unwrap();
            }
            assert_eq!(parts, whole);
            Ok(())
        });
    }
}
