//! Adding up very many fdata texts.
//!
//! Profiles of one program that were taken on a thousand machines have nearly the same lines in nearly the same order; only the counts at their
//! ends differ. So a line is not taken apart: what stands before its counts is the key of a sum. Keys are in a chain, in the order of the files:
//! after a line comes, most of the time, the next one of the chain, or one of the few after it if the file lacks some. That guess costs a
//! comparison, and only where it fails is the key hashed. A new key goes to the chain where it was met. A key is parsed once, when it is first seen, and
//! once more at the end.
//!
//! Each thread has its own sums and takes the next file when it is done with one. In memory are the sums and a piece of one file a thread. Addition is
//! commutative, so neither the number of threads nor who read what shows in the result: two spellings of a record (kind 1 or 2, more than one space)
//! are two keys here and one record there.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::source::{self, Bad, find_byte};
use crate::symbolic::{Collection, Records, SymbolicProfile};
use crate::{Error, Weighted, fdata};

/// What is added up under a key.
struct Entry {
    /// Of the key.
    hash: u64,
    /// Where the key is in [`Sums::keys`].
    start: usize,
    len: u32,
    /// The entry whose line came after this one's.
    next: u32,
    mispredictions: u64,
    count: u64,
}

/// No entry.
const NONE: u32 = u32::MAX;
/// Links of the chain that are tried before a key is hashed.
const GUESSES: usize = 4;
/// Bytes of a file that are read at a time, if its lines are not longer.
const PIECE: usize = 1 << 18;

/// The sums of one thread.
#[derive(Default)]
struct Sums {
    keys: Vec<u8>,
    entries: Vec<Entry>,
    /// Open addressing: number of an entry, or [`NONE`]; a power of two, at most half full.
    table: Vec<u32>,
}

/// What a file says of itself.
pub(crate) struct Head {
    pub(crate) collection: Option<Collection>,
    pub(crate) events: BTreeSet<Vec<u8>>,
    /// Where the records begin.
    pub(crate) body: usize,
}

/// A decimal number at the start of a text, and what follows it.
#[inline]
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut at = 0;
    while let Some(digit) = text
        .get(at)
        .map(|byte| byte.wrapping_sub(b'0'))
        .filter(|d| *d <= 9)
    {
        // Longer numbers are looked at with more care elsewhere.
        if at == 18 {
            return None;
        }
        value = value * 10 + u64::from(digit);
        at += 1;
    }
    (at > 0).then(|| (value, &text[at..]))
}

/// The key of a line and its counts: mispredictions (of a branch), count. `None` if the line does not end as a record does.
fn split(line: &[u8], branches: bool) -> Option<(&[u8], u64, u64)> {
    let last = |text: &[u8]| -> Option<(usize, u64)> {
        let at = text.iter().rposition(|&byte| byte == b' ')?;
        Some((at, source::decimal(&text[at + 1..])?))
    };
    let (at, count) = last(line)?;
    let rest = line[..at].trim_ascii_end();
    if !branches || !matches!(line.first(), Some(b'0'..=b'2')) {
        return Some((rest, 0, count));
    }
    let (at, mispredictions) = last(rest)?;
    Some((rest[..at].trim_ascii_end(), mispredictions, count))
}

impl Sums {
    fn key(&self, entry: &Entry) -> &[u8] {
        &self.keys[entry.start..entry.start + entry.len as usize]
    }

    /// The entry of a key, and whether it is new.
    fn find(&mut self, key: &[u8]) -> (u32, bool) {
        if self.table.len() <= self.entries.len() * 2 {
            self.grow();
        }
        let hash = xxh3_64(key);
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let number = self.table[slot];
            let Some(entry) = self.entries.get(number as usize) else {
                break;
            };
            if entry.hash == hash && self.key(entry) == key {
                return (number, false);
            }
            slot = (slot + 1) & mask;
        }
        let number = self.entries.len() as u32;
        self.table[slot] = number;
        self.entries.push(Entry {
            hash,
            start: self.keys.len(),
            len: key.len() as u32,
            next: NONE,
            mispredictions: 0,
            count: 0,
        });
        self.keys.extend_from_slice(key);
        (number, true)
    }

    fn grow(&mut self) {
        let size = (self.table.len() * 2).max(1 << 12);
        self.table.clear();
        self.table.resize(size, NONE);
        for (number, entry) in self.entries.iter().enumerate() {
            let mut slot = entry.hash as usize & (size - 1);
            while self.table[slot] != NONE {
                slot = (slot + 1) & (size - 1);
            }
            self.table[slot] = number as u32;
        }
    }

    /// Adds whole lines that begin at `start` of their file, after the line of the entry `before`. Returns the entry of the last line.
    fn add(
        &mut self,
        text: &[u8],
        start: usize,
        mut before: u32,
        branches: bool,
        weight: u64,
    ) -> Result<u32, Bad> {
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let first = match self.entries.get(before as usize) {
                Some(entry) => entry.next,
                None => 0, // the chain begins with the first line of the first file
            };
            let mut guess = first;
            let mut found = None;
            for _ in 0..GUESSES {
                let Some(entry) = self.entries.get(guess as usize) else {
                    break;
                };
                found = self.guessed(rest, entry, branches);
                if found.is_some() {
                    break;
                }
                guess = entry.next;
            }
            if let Some((after, mispredictions, count)) = found {
                self.entries[guess as usize].add(mispredictions, count, weight);
                before = guess;
                at += after;
                continue;
            }
            let len = find_byte(rest, b'\n').unwrap_or(rest.len());
            let line = &rest[..len];
            let wrong = |line: &[u8]| {
                let known = fdata::check_line(line, branches).err();
                let bad = known.unwrap_or_else(|| Bad::new(0, "not a record"));
                bad.shift(start + at)
            };
            let (key, mispredictions, count) = split(line, branches).ok_or_else(|| wrong(line))?;
            if self.entries.len() >= NONE as usize - 1 || u32::try_from(key.len()).is_err() {
                return Err(Bad::new(
                    start + at,
                    "more different records than can be added up",
                ));
            }
            let (number, new) = self.find(key);
            if new {
                fdata::check_line(line, branches).map_err(|bad| bad.shift(start + at))?;
                self.entries[number as usize].next = match first == number {
                    true => NONE, // the very first
                    false => first,
                };
            }
            self.entries[number as usize].add(mispredictions, count, weight);
            if number != before
                && let Some(entry) = self.entries.get_mut(before as usize)
            {
                entry.next = number;
            }
            before = number;
            at += len + 1;
        }
        Ok(before)
    }

    /// If the text begins with the line of an entry: bytes of the line with its end, counts.
    #[inline]
    fn guessed(&self, rest: &[u8], entry: &Entry, branches: bool) -> Option<(usize, u64, u64)> {
        let key = self.key(entry);
        let numbers = rest.strip_prefix(key)?.strip_prefix(b" ")?;
        let two = branches && matches!(key.first(), Some(b'0'..=b'2'));
        let (mispredictions, numbers) = if two {
            let (value, after) = number(numbers)?;
            (value, after.strip_prefix(b" ")?)
        } else {
            (0, numbers)
        };
        let (count, after) = number(numbers)?;
        let end = match after.first() {
            Some(b'\n') => 1,
            None => 0,
            Some(_) => return None,
        };
        Some((rest.len() - after.len() + end, mispredictions, count))
    }

    /// Takes over what another one added up.
    fn absorb(&mut self, other: &Sums) {
        for entry in &other.entries {
            let (number, _) = self.find(other.key(entry));
            self.entries[number as usize].add(entry.mispredictions, entry.count, 1);
        }
    }

    /// The sums as a text without headers.
    fn text(&self, branches: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.keys.len() + self.entries.len() * 12);
        for entry in &self.entries {
            let key = self.key(entry);
            out.extend_from_slice(key);
            if branches && matches!(key.first(), Some(b'0'..=b'2')) {
                out.push(b' ');
                out.extend_from_slice(entry.mispredictions.to_string().as_bytes());
            }
            out.push(b' ');
            out.extend_from_slice(entry.count.to_string().as_bytes());
            out.push(b'\n');
        }
        out
    }
}

impl Entry {
    #[inline]
    fn add(&mut self, mispredictions: u64, count: u64, weight: u64) {
        self.count = self.count.saturating_add(count.saturating_mul(weight));
        self.mispredictions = self
            .mispredictions
            .saturating_add(mispredictions.saturating_mul(weight));
    }
}

/// What a thread has done: its sums of branches and of samples, and what each of its files says of itself.
#[derive(Default)]
struct Worker {
    /// By whether the files hold branches.
    sums: [Sums; 2],
    heads: Vec<(usize, Option<Collection>)>,
    events: BTreeSet<Vec<u8>>,
    error: Option<(usize, Error)>,
    buffer: Vec<u8>,
}

impl Worker {
    fn take(&mut self, index: usize, input: &Weighted) -> Result<(), Error> {
        let path = &input.path;
        let mut file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.read(index, input, &mut file, &mut buffer);
        self.buffer = buffer;
        result
    }

    /// Adds a file, piece by piece.
    fn read(
        &mut self,
        index: usize,
        input: &Weighted,
        file: &mut File,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let path = &input.path;
        let io = |e| Error::io(path, "read", e);
        buffer.clear();
        let mut branches = None;
        let (mut lines, mut before) = (0u64, NONE);
        let mut at_end = false;
        while !at_end {
            // What is left of the piece before is short, unless there is no line end in it.
            let wish = PIECE.max(2 * buffer.len()) - buffer.len();
            let read = Read::by_ref(file)
                .take(wish as u64)
                .read_to_end(buffer)
                .map_err(io)?;
            at_end = read < wish;
            let whole = match at_end {
                true => buffer.len(),
                false => match memchr::memrchr(b'\n', buffer) {
                    Some(end) => end + 1,
                    None => continue, // a line longer than that
                },
            };
            let mut body = 0;
            let branches = match branches {
                Some(known) => known,
                None => {
                    let head = fdata::head(&buffer[..whole]);
                    body = head.body;
                    self.heads.push((index, head.collection));
                    self.events.extend(head.events);
                    *branches.insert(head.collection.is_none_or(|c| c.branches))
                }
            };
            let text = &buffer[body..whole];
            before = self.sums[usize::from(branches)]
                .add(text, body, before, branches, input.weight)
                .map_err(|bad| bad.locate_after(path, &buffer[..whole], lines))?;
            if !at_end {
                lines += memchr::memchr_iter(b'\n', &buffer[..whole]).count() as u64;
            }
            buffer.drain(..whole);
        }
        Ok(())
    }
}

/// Reads and adds up files; see [`fdata::merge`].
pub(crate) fn merge(inputs: &[Weighted]) -> Result<SymbolicProfile, Error> {
    let threads = rayon::current_num_threads().min(inputs.len()).max(1);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut worker = Worker::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.get(index) else {
                return worker;
            };
            if let Err(error) = worker.take(index, input) {
                worker.error = Some((index, error));
                return worker;
            }
        }
    };
    let mut workers: Vec<Worker> = Vec::with_capacity(threads);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        workers.push(work());
        for other in others {
            match other.join() {
                Ok(worker) => workers.push(worker),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    let first_error = workers
        .iter_mut()
        .filter_map(|worker| worker.error.take())
        .min_by_key(|(index, _)| *index);
    if let Some((_, error)) = first_error {
        return Err(error);
    }
    let mut heads: Vec<(usize, Option<Collection>)> = workers
        .iter_mut()
        .flat_map(|worker| std::mem::take(&mut worker.heads))
        .collect();
    heads.sort_unstable_by_key(|head| head.0);
    let mut known: Option<(usize, Collection)> = None;
    for (index, collection) in heads {
        let Some(collection) = collection else {
            continue;
        };
        match known {
            Some((first, before)) if before != collection => {
                let empty = |collection| {
                    let none: [&[u8]; 0] = [];
                    SymbolicProfile::new(
                        Some(collection),
                        BTreeSet::new(),
                        &none,
                        Records::default(),
                    )
                };
                let names: (&Path, &Path) = (&inputs[first].path, &inputs[index].path);
                return empty(before).merge(empty(collection), names);
            }
            Some(_) => {}
            None => known = Some((index, collection)),
        }
    }
    let mut events = BTreeSet::new();
    workers
        .iter_mut()
        .for_each(|worker| events.append(&mut worker.events));
    let collection = known.map(|known| known.1);
    let branches = collection.is_none_or(|c| c.branches);
    let mut total = Sums::default();
    for worker in workers {
        let [samples, branched] = worker.sums;
        let sums = if branches { branched } else { samples };
        if total.entries.is_empty() {
            total = sums;
        } else {
            total.absorb(&sums);
        }
    }
    let text = total.text(branches);
    drop(total);
    fdata::assemble(collection, events, &[text])
        .map_err(|bad| bad.locate(Path::new("sum of profiles"), b""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn files(dir: &Path, texts: &[&str]) -> Vec<Weighted> {
        let write = |(index, text): (usize, &&str)| {
            let path: PathBuf = dir.join(format!("{index}.fdata"));
            std::fs::write(&path, text).unwrap();
            Weighted { path, weight: 1 }
        };
        texts.iter().enumerate().map(write).collect()
    }

    fn text(profile: &SymbolicProfile) -> String {
        let mut out = Vec::new();
        fdata::write_to(&mut out, profile).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_in_another_order_and_spelling_are_added_to_the_same_sums() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = files(
            dir.path(),
            &[
                "1 f 1 1 f 4 1 10\n1 f 8 1 g 0 0 5\n4 f 2 3 [unknown] 7f 3\n",
                "1 f 8 1 g 0 2 6\n1 f 1 1 f 4 0 20\n4 f 2 3 [unknown] 7f 4",
                "2 f  1 1 f 4 0  20\n0 [unknown] 0 1 f 0 0 1\n",
                "",
            ],
        );
        let expected =
            "1 f 1 1 f 4 1 50\n1 f 8 1 g 0 2 11\n0 [unknown] 0 1 f 0 0 1\n4 f 2 3 [unknown] 7f 7\n";
        assert_eq!(text(&merge(&inputs).unwrap()), expected);
        let mut reversed = inputs.clone();
        reversed.reverse();
        assert_eq!(text(&merge(&reversed).unwrap()), expected);
    }

    #[test]
    fn sums_agree_with_merging_whole_profiles() {
        let dir = tempfile::tempdir().unwrap();
        arbtest::arbtest(|u| {
            let mut texts = Vec::new();
            for _ in 0..u.int_in_range(1..=4)? {
                let mut text = String::new();
                for _ in 0..u.int_in_range(0..=30)? {
                    let (a, b) = (u.int_in_range(0..=5)?, u.int_in_range(0..=5)?);
                    let count: u64 = u.arbitrary()?;
                    text += &format!("1 f{a} {b:x} 1 f{b} {a:x} {} {count}\n", u8::from(a == b));
                }
                texts.push(text);
            }
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let mut inputs = files(dir.path(), &texts);
            inputs[0].weight = u.int_in_range(1..=3)?;
            let mut expected = SymbolicProfile::default();
            for input in &inputs {
                let mut profile = fdata::read(&input.path).unwrap();
                profile.scale(input.weight);
                expected = expected.merge(profile, (&input.path, &input.path)).unwrap();
            }
            assert_eq!(merge(&inputs).unwrap(), expected);
            Ok(())
        });
    }

    #[test]
    fn a_wrong_line_is_named_with_its_file_and_number() {
        let dir = tempfile::tempdir().unwrap();
        for (bad, said) in [
            ("1 f 1 1 f 4 1 10\n1 f 1 1 f 4 1 x\n", "1.fdata:2:"),
            ("1 f 1 1 f 4 1 10\n1 f 1 1 f zz 1 1\n", "1.fdata:2:"),
            ("1 f 1 1 f 4 1 10\n\n", "1.fdata:2:"),
            ("1 f 1 1 f 4 1 99999999999999999999\n", "1.fdata:1:"),
        ] {
            let inputs = files(dir.path(), &["1 f 1 1 f 4 1 10\n", bad]);
            let error = merge(&inputs).unwrap_err().to_string();
            assert!(error.contains(said), "{bad:?}: {error}");
        }
    }

    #[test]
    fn branches_and_samples_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = files(
            dir.path(),
            &["1 f 1 1 f 4 1 10\n", "no_lbr cycles\n1 f 1 3\n"],
        );
        let error = merge(&inputs).unwrap_err().to_string();
        assert!(error.contains("no_lbr"), "{error}");
    }
}
