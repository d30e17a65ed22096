//! Adding up very many fdata texts.
//!
//! Profiles of one program that were taken on a thousand machines have nearly the same lines in nearly the same order; only the counts at their
//! ends differ. So a line is not taken apart: what stands before its counts is the key of a sum. Keys are in a chain, in the order of the files:
//! after a line comes, most of the time, the next one of the chain, or one of the few after it if the file lacks some. That guess costs a
//! comparison, and only where it fails is the key hashed. A new key goes to the chain where it was met. A key is parsed once, when it is first seen, and
//! once more at the end.
//!
//! Names are long where there are many records (a record of clang has 224 characters, 200 of them two names), and every name is in many keys. So a key is
//! kept in parts:
//!
//! ```text
//! 1 _ZN5clang4Sema5CheckEv 1a2 1 _ZN5clang4Sema5CheckEv 1b0 0 17
//! └┘└────────────────────┘└─────┘└────────────────────┘└──┘ └──┘
//! kind   name (a number)    mid      name (a number)    end  counts
//! ```
//!
//! Each thread has its own sums and takes the next file when it is done with one. In memory are the sums, 64 bytes and a slot a key, the names, each once,
//! and a window of one file a thread. Addition is commutative, so neither the number of threads nor who read what shows in the result: two spellings of
//! a record (kind 1 or 2, more than one space) are two keys here and one record there.
//!
//! Files are read window by window to a buffer that stays in the caches. Mapping them, even whole windows at once, has been tried and is slower. Lines are
//! counted only if one of them is wrong.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::source::{self, Bad, Source, find_byte};
use crate::symbolic::{Collection, Records, SymbolicProfile};
use crate::{Error, Weighted, fdata};

/// Bytes of [`Key::mid`] and [`Key::end`].
const GLUE: usize = 16;

/// What stands before the counts of a line, in parts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    /// Between the names, and behind the second; zeros follow.
    mid: [u8; GLUE],
    end: [u8; GLUE],
    mid_len: u8,
    end_len: u8,
    /// Before the first name: a digit and a space. Zeros if the first name is all of the key, which is so if it has an unusual form.
    kind: [u8; 2],
    names: [u32; 2],
}

/// What is added up under a key.
struct Entry {
    key: Key,
    /// The entry whose line came after this one's.
    next: u32,
    mispredictions: u64,
    count: u64,
}

/// No entry, no name.
const NONE: u32 = u32::MAX;
/// Links of the chain that are tried before a key is hashed.
const GUESSES: usize = 4;
/// Bytes of a file that are looked at together, if its lines are not longer.
const PIECE: usize = 1 << 18;

/// Numbers of things that are numbered as they come, found by hash; open addressing in a power of two of slots, at most half full.
#[derive(Default)]
struct Slots {
    slots: Vec<u32>,
    used: u32,
}

impl Slots {
    /// The number of the thing with a hash that `is` says is it; a new one if there is none. `hash_of` gives the hash of a number.
    fn find(
        &mut self,
        hash: u64,
        is: impl Fn(u32) -> bool,
        hash_of: impl Fn(u32) -> u64,
    ) -> (u32, bool) {
        if self.slots.len() <= self.used as usize * 2 {
            let size = (self.slots.len() * 2).max(1 << 10);
            self.slots.clear();
            self.slots.resize(size, NONE);
            for number in 0..self.used {
                let mut slot = hash_of(number) as usize & (size - 1);
                while self.slots[slot] != NONE {
                    slot = (slot + 1) & (size - 1);
                }
                self.slots[slot] = number;
            }
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                NONE => break,
                number if is(number) => return (number, false),
                _ => slot = (slot + 1) & mask,
            }
        }
        let number = self.used;
        self.slots[slot] = number;
        self.used += 1;
        (number, true)
    }
}

/// Every name once.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// Start and length in the bytes.
    list: Vec<(usize, u32)>,
    slots: Slots,
}

impl Names {
    #[inline]
    fn get(&self, number: u32) -> &[u8] {
        let Some(&(start, len)) = self.list.get(number as usize) else {
            return b"";
        };
        &self.bytes[start..start + len as usize]
    }

    fn number(&mut self, name: &[u8]) -> u32 {
        let Names { bytes, list, slots } = self;
        let of = |number: u32| {
            let (start, len) = list[number as usize]; // numbers in slots are those of the list
            &bytes[start..start + len as usize]
        };
        let is = |number| of(number) == name;
        let (number, new) = slots.find(xxh3_64(name), is, |number| xxh3_64(of(number)));
        if new {
            list.push((bytes.len(), name.len() as u32));
            bytes.extend_from_slice(name);
        }
        number
    }
}

/// The parts of a key: what is before the first name, that, and so on. `None` if it has an unusual form.
fn parts(key: &[u8]) -> Option<[&[u8]; 5]> {
    if memchr::memchr(b'\\', key).is_some() {
        return None; // there may be spaces in names
    }
    let mut spaces = [0; 5];
    let mut count = 0;
    for at in memchr::memchr_iter(b' ', key) {
        *spaces.get_mut(count)? = at;
        count += 1;
    }
    let [a, b, _, d, e] = spaces;
    let (mid, name, end) = match count {
        2 => (&key[b..], &b""[..], &b""[..]),
        5 => (&key[b..=d], &key[d + 1..e], &key[e..]),
        _ => return None,
    };
    let fits = a == 1 && mid.len() <= GLUE && end.len() <= GLUE && !mid.is_empty();
    fits.then_some([&key[..=a], &key[a + 1..b], mid, name, end])
}

impl Key {
    fn hash(&self) -> u64 {
        let mut hash = 0u64;
        let mut mix = |word: u64| {
            hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        };
        for glue in [&self.mid, &self.end] {
            let both = u128::from_le_bytes(*glue);
            mix(both as u64);
            mix((both >> 64) as u64);
        }
        mix(u64::from(self.names[0]) | u64::from(self.names[1]) << 32);
        mix(u64::from(u16::from_le_bytes(self.kind)));
        hash ^ hash >> 32
    }

    /// Whether records of the key have mispredictions.
    #[inline]
    fn has_two_counts(&self, names: &Names, branches: bool) -> bool {
        let first = match self.kind[0] {
            0 => names.get(self.names[0]).first().copied(),
            kind => Some(kind),
        };
        branches && matches!(first, Some(b'0'..=b'2'))
    }

    fn put(&self, names: &Names, out: &mut Vec<u8>) {
        if self.kind[0] != 0 {
            out.extend_from_slice(&self.kind);
        }
        out.extend_from_slice(names.get(self.names[0]));
        out.extend_from_slice(&self.mid[..usize::from(self.mid_len)]);
        out.extend_from_slice(names.get(self.names[1]));
        out.extend_from_slice(&self.end[..usize::from(self.end_len)]);
    }

    /// What follows the key in a text that begins with it.
    #[inline]
    fn strip<'t>(&self, names: &Names, mut text: &'t [u8]) -> Option<&'t [u8]> {
        let first = names.get(self.names[0]);
        if self.kind[0] == 0 {
            return text.strip_prefix(first);
        }
        text = text.strip_prefix(&self.kind)?;
        text = strip(text, first)?;
        text = strip_glue(text, &self.mid, self.mid_len)?;
        if self.end_len > 0 {
            text = strip(text, names.get(self.names[1]))?;
            text = strip_glue(text, &self.end, self.end_len)?;
        }
        Some(text)
    }
}

/// Strips a prefix, 16 bytes at a time.
#[inline]
fn strip<'t>(text: &'t [u8], prefix: &[u8]) -> Option<&'t [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    let same = match (start.last_chunk::<16>(), prefix.last_chunk::<16>()) {
        // The last 16 may be some of those before.
        (Some(a), Some(b)) => {
            a == b
                && start
                    .chunks_exact(16)
                    .zip(prefix.chunks_exact(16))
                    .all(|(a, b)| a == b)
        }
        _ => start == prefix,
    };
    same.then_some(rest)
}

/// Strips the first `len` bytes of some that zeros follow.
#[inline]
fn strip_glue<'t>(text: &'t [u8], glue: &[u8; GLUE], len: u8) -> Option<&'t [u8]> {
    let Some(start) = text.first_chunk::<GLUE>() else {
        return text.strip_prefix(&glue[..usize::from(len)]);
    };
    let differ = u128::from_le_bytes(*start) ^ u128::from_le_bytes(*glue);
    (differ.unbounded_shl(128 - 8 * u32::from(len)) == 0).then(|| &text[usize::from(len)..])
}

/// The sums of one thread.
#[derive(Default)]
struct Sums {
    names: Names,
    entries: Vec<Entry>,
    slots: Slots,
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
    if let Some(eight) = text.first_chunk() {
        // A byte is 0 to 9 where there is a digit. The lowest that is not sets its uppermost bit here; what is above it does not matter.
        let digits = u64::from_le_bytes(*eight) ^ 0x3030_3030_3030_3030;
        let other = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
        let count = other.trailing_zeros() / 8;
        if count == 0 {
            return None;
        }
        if count < 8 {
            let mut value = digits << (64 - 8 * count);
            value = (value.wrapping_mul(10).wrapping_add(value >> 8)) & 0x00ff_00ff_00ff_00ff;
            value = (value.wrapping_mul(100).wrapping_add(value >> 16)) & 0x0000_ffff_0000_ffff;
            value = (value.wrapping_mul(10_000).wrapping_add(value >> 32)) & 0xffff_ffff;
            return Some((value, &text[count as usize..]));
        }
    }
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
    /// The entry of a key, and whether it is new.
    fn find(&mut self, key: &[u8]) -> (u32, bool) {
        let mut glue = [[0; GLUE]; 2];
        let mut put = |at: usize, part: &[u8]| {
            glue[at][..part.len()].copy_from_slice(part);
            part.len() as u8 // at most `GLUE`
        };
        let key = match parts(key) {
            Some([kind, first, mid, second, end]) => Key {
                mid_len: put(0, mid),
                end_len: put(1, end),
                mid: glue[0],
                end: glue[1],
                kind: [kind[0], b' '],
                names: [
                    self.names.number(first),
                    match end {
                        [] => NONE,
                        _ => self.names.number(second),
                    },
                ],
            },
            None => Key {
                mid: glue[0],
                end: glue[1],
                mid_len: 0,
                end_len: 0,
                kind: [0; 2],
                names: [self.names.number(key), NONE],
            },
        };
        self.entry(key)
    }

    /// The entry of a key whose names have numbers.
    fn entry(&mut self, key: Key) -> (u32, bool) {
        let entries = &mut self.entries;
        // Numbers in slots are those of entries.
        let (number, new) = self.slots.find(
            key.hash(),
            |number| entries[number as usize].key == key,
            |number| entries[number as usize].key.hash(),
        );
        if new {
            entries.push(Entry {
                key,
                next: NONE,
                mispredictions: 0,
                count: 0,
            });
        }
        (number, new)
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
        let numbers = entry.key.strip(&self.names, rest)?.strip_prefix(b" ")?;
        let (mispredictions, numbers) = if entry.key.has_two_counts(&self.names, branches) {
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
        let all = 0..other.names.list.len() as u32;
        let numbers: Vec<u32> = all
            .map(|number| self.names.number(other.names.get(number)))
            .collect();
        for entry in &other.entries {
            let names = entry
                .key
                .names
                .map(|name| numbers.get(name as usize).copied().unwrap_or(NONE));
            let (number, _) = self.entry(Key { names, ..entry.key });
            self.entries[number as usize].add(entry.mispredictions, entry.count, 1);
        }
    }

    /// The sums as texts without headers, of about [`PIECE`] bytes each, in a buffer; until that is empty.
    fn texts(&self, branches: bool) -> impl FnMut(&mut Vec<u8>) {
        let mut entries = self.entries.iter();
        move |out| {
            while out.len() < PIECE
                && let Some(entry) = entries.next()
            {
                entry.key.put(&self.names, out);
                if entry.key.has_two_counts(&self.names, branches) {
                    out.push(b' ');
                    out.extend_from_slice(entry.mispredictions.to_string().as_bytes());
                }
                out.push(b' ');
                out.extend_from_slice(entry.count.to_string().as_bytes());
                out.push(b'\n');
            }
        }
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
        #[cfg(unix)]
        let size = file.metadata().ok().filter(|data| data.is_file());
        #[cfg(unix)]
        if let Some(size) = size.map(|data| data.len()).filter(|&size| size > 0) {
            let result = self.read_windows(index, input, &file, size, &mut buffer);
            self.buffer = buffer;
            return result;
        }
        let result = self.read(index, input, &mut file, &mut buffer);
        self.buffer = buffer;
        result
    }

    /// Notes what the start of a file says; where its records begin, and whether they are branches.
    fn see_head(&mut self, index: usize, text: &[u8]) -> (usize, bool) {
        let head = fdata::head(text);
        self.heads.push((index, head.collection));
        self.events.extend(head.events);
        (head.body, head.collection.is_none_or(|c| c.branches))
    }

    /// Adds a file of some size, window by window.
    #[cfg(unix)]
    fn read_windows(
        &mut self,
        index: usize,
        input: &Weighted,
        file: &File,
        size: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        use std::os::unix::fs::FileExt;
        let mut branches = None;
        let (mut at, mut before) = (0u64, NONE);
        let mut wish = PIECE as u64;
        while at < size {
            let len = wish.min(size - at);
            // Below the file's size, and twice a piece that is in memory already.
            buffer.resize(len as usize, 0);
            file.read_exact_at(buffer, at)
                .map_err(|e| Error::io(&input.path, "read", e))?;
            let whole = match at + len == size {
                true => buffer.len(),
                false => match memchr::memrchr(b'\n', buffer) {
                    Some(end) => end + 1,
                    None => {
                        wish = wish.saturating_mul(2); // a line longer than that
                        continue;
                    }
                },
            };
            let (body, branches) = match branches {
                Some(known) => (0, known),
                None => {
                    let (body, known) = self.see_head(index, &buffer[..whole]);
                    (body, *branches.insert(known))
                }
            };
            before = self.sums[usize::from(branches)]
                .add(&buffer[body..whole], body, before, branches, input.weight)
                .map_err(|bad| match Source::open(&input.path) {
                    Ok(all) => bad.shift(at as usize).locate(&input.path, &all),
                    Err(error) => error,
                })?;
            at += whole as u64;
        }
        Ok(())
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
                    let known;
                    (body, known) = self.see_head(index, &buffer[..whole]);
                    *branches.insert(known)
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
    total.slots = Slots::default();
    fdata::assemble(
        collection,
        events,
        total.entries.len(),
        total.texts(branches),
    )
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
