//! Adding up very many fdata texts.
//!
//! Profiles of one program that were taken on a thousand machines have nearly the same lines in nearly the
//! same order; only the counts at their ends differ. So a line is not taken apart: what is before its counts
//! is the key of a sum. Keys are in a chain, in the order of the files: after a line comes, most of the time,
//! the next one of the chain, or one of the few after it if the file lacks some. That guess costs a
//! comparison, and only where it fails is the key hashed. A new key goes to the chain where it was met. A key
//! is parsed once, when it is first seen, and once more at the end.
//!
//! Names are long where there are many records (a record of clang has 224 characters, 200 of them two names),
//! and every name is in many keys. So a key is kept in four parts, each with the space after it:
//!
//! ```text
//! 1 _ZN5clang4Sema5CheckEv 1a2 1 _ZN5clang4Sema5CheckEv 1b0 0 17
//! └───────────────────────┘└──┘└───────────────────────┘└──┘└──┘
//!          place            mid          place           end counts
//! ```
//!
//! A comparison has no loop and one branch: the parts are where their lengths say, not where something in the
//! text is; of each place the first 32 bytes are compared (what is longer, only if they agree), of the others
//! 8, and what differs beyond the part's end is masked away. Where a line ends follows from the place of the
//! first character of its count that is no digit; that is all that one line waits for of the one before.
//!
//! There is one table of keys for all threads, after a lock that is taken for reading as long as nothing new
//! is met, which after some files is always; each thread has its own counts and takes the next file when it
//! is done with one. In memory are the keys, 40 bytes and a slot each, 16 bytes a key and thread, the places,
//! each once, and a window of one file a thread. Addition is commutative, so neither the number of threads
//! nor who read what shows in the result: two spellings of a record (kind 1 or 2, more than one space) are
//! two keys here and one record there.
//!
//! What it costs, for a thousand files of 16,000 lines with 60 bytes each, together 946 MB, on a processor of
//! 2024: 0.10 s for the kernel to copy them out of its cache of files, for any reader, and 0.20 s here, some
//! 130 instructions and 40 cycles a line. merge-fdata needs 2.1 s if the mispredictions of every record are
//! the same in all files, which they are not in those of real machines: then its table has a record for each
//! number of them, and it needs twice that. In memory are 5 MB, of which 2 are a process that does nothing;
//! the whole of postlink, with its command line, begins at 6.
//!
//! Files are read window by window to a buffer that stays in the caches. Mapping them, even whole windows at
//! once, has been tried and is slower. Lines are counted only if one of them is wrong.

mod scan;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use xxhash_rust::xxh3::xxh3_64;

use crate::source::{Bad, find_byte};
use crate::symbolic::{Collection, Records, SymbolicProfile};
use crate::{Error, Weighted, fdata, progress};

use scan::{number, some_digits, split, strip};

/// Bytes of [`Key::mid`] and [`Key::end`].
const GLUE: usize = 8;
/// Bytes of a place that are compared at once.
const WIDE: usize = 32;
/// No entry.
const NONE: u32 = u32::MAX;
/// Links of the chain that are tried before a key is hashed.
const GUESSES: usize = 6;
/// A key so many numbers after the one before it was left out by the file, not put elsewhere.
const SKIPPED: u32 = 4096;
/// Bytes of a file that are looked at together, if its lines are not longer.
const PIECE: usize = 1 << 16;
/// Bytes after a window, for comparisons beyond its end.
const SLACK: usize = 64;

/// Numbers of things that are numbered as they come, found by hash; open addressing in a power of two of
/// slots, at most half full.
#[derive(Default)]
struct Slots {
    slots: Vec<u32>,
    used: u32,
}

impl Slots {
    /// The number of the thing with a hash that `is` says is it.
    fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                NONE => return None,
                number if is(number) => return Some(number),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Takes in a thing that is not there. `hash_of` gives the hash of a number.
    fn insert(&mut self, hash: u64, hash_of: impl Fn(u32) -> u64) -> u32 {
        if self.slots.len() <= self.used as usize * 2 {
            let size = (self.slots.len() * 2).max(1 << 10);
            self.slots.clear();
            self.slots.resize(size, NONE);
            for number in 0..self.used {
                self.put(hash_of(number), number);
            }
        }
        let number = self.used;
        self.put(hash, number);
        self.used += 1;
        number
    }

    fn put(&mut self, hash: u64, number: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while self.slots[slot] != NONE {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = number;
    }
}

/// A text among [`Places`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    start: u32,
    len: u32,
}

/// Every place once: a kind and a name, with the spaces after them.
#[derive(Default)]
struct Places {
    /// [`WIDE`] zeros follow.
    bytes: Vec<u8>,
    list: Vec<Place>,
    slots: Slots,
}

impl Places {
    fn get(&self, place: Place) -> &[u8] {
        let start = place.start as usize;
        &self.bytes[start..start + place.len as usize]
    }

    fn find(&self, text: &[u8]) -> Option<Place> {
        let is = |number: u32| self.get(self.list[number as usize]) == text;
        let number = self.slots.find(xxh3_64(text), is)?;
        Some(self.list[number as usize])
    }

    /// A place's text, taken in if it is not there. `None` if there is no space.
    fn number(&mut self, text: &[u8]) -> Option<Place> {
        if let Some(known) = self.find(text) {
            return Some(known);
        }
        let start = self.bytes.len().saturating_sub(WIDE);
        let place = Place {
            start: u32::try_from(start).ok()?,
            len: u32::try_from(text.len()).ok()?,
        };
        let Places { bytes, list, slots } = self;
        slots.insert(xxh3_64(text), |number| {
            let Place { start, len } = list[number as usize]; // numbers in slots are those of the list
            xxh3_64(&bytes[start as usize..start as usize + len as usize])
        });
        list.push(place);
        bytes.truncate(start);
        bytes.extend_from_slice(text);
        bytes.extend_from_slice(&[0; WIDE]);
        Some(place)
    }
}

/// What is before the counts of a line, in parts. One of an unusual form is a place as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    places: [Place; 2],
    /// Zeros follow.
    mid: [u8; GLUE],
    end: [u8; GLUE],
    mid_len: u8,
    end_len: u8,
    /// Whether its records have mispredictions.
    two_counts: bool,
}

/// A key and what came after it.
struct Entry {
    key: Key,
    /// The entry whose line came after this one's. Only a guess: any thread changes it at any time.
    next: AtomicU32,
}

/// The parts of a key: a place, what is between, a place, what follows.
fn parts(key: &[u8]) -> [&[u8]; 4] {
    let none = &b""[..];
    let whole = [key, none, none, none];
    let mut spaces = [0; 6];
    let mut count = 0;
    for at in memchr::memchr_iter(b' ', key) {
        match spaces.get_mut(count) {
            Some(space) => *space = at + 1,
            None => return whole,
        }
        count += 1;
    }
    let [_, b, c, _, e, _] = spaces;
    let parts = match count {
        3 => [&key[..b], &key[b..], none, none],
        6 => [&key[..b], &key[b..c], &key[c..e], &key[e..]],
        _ => return whole,
    };
    if parts[1].len() <= GLUE && parts[3].len() <= GLUE {
        parts
    } else {
        whole
    }
}

impl Key {
    fn hash(&self) -> u64 {
        let mut hash = 0u64;
        let mut mix = |word: u64| {
            hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        };
        mix(u64::from_le_bytes(self.mid));
        mix(u64::from_le_bytes(self.end));
        mix(u64::from(self.places[0].start) | u64::from(self.places[1].start) << 32);
        hash ^ hash >> 32
    }

    fn put(&self, places: &Places, out: &mut Vec<u8>) {
        out.extend_from_slice(places.get(self.places[0]));
        out.extend_from_slice(&self.mid[..usize::from(self.mid_len)]);
        out.extend_from_slice(places.get(self.places[1]));
        out.extend_from_slice(&self.end[..usize::from(self.end_len)]);
    }
}

/// A word of a text.
///
/// # Safety
///
/// The text has eight bytes there.
#[inline(always)]
unsafe fn word(text: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= text.len());
    // SAFETY: the caller knows that the bytes are there; any bytes are a number.
    u64::from_le(unsafe { text.as_ptr().add(at).cast::<u64>().read_unaligned() })
}

/// Four words of a text.
///
/// # Safety
///
/// The text has [`WIDE`] bytes there.
#[inline(always)]
unsafe fn words(text: &[u8], at: usize) -> [u64; WIDE / 8] {
    // SAFETY: all of them are within the bytes that the caller knows of.
    [0, 8, 16, 24].map(|word_at| unsafe { word(text, at + word_at) })
}

/// From [`WIDE`] − n, n bytes that count and others that do not.
static MASKS: [u8; 2 * WIDE] = {
    let mut masks = [0; 2 * WIDE];
    let mut at = 0;
    while at < WIDE {
        masks[at] = 0xff;
        at += 1;
    }
    masks
};

/// Not 0 if the first [`WIDE`] bytes of a place are not those of a text.
///
/// # Safety
///
/// The text has [`WIDE`] bytes there, and the place is one of these.
#[inline(always)]
unsafe fn differs(text: &[u8], at: usize, places: &Places, place: Place) -> u64 {
    // At most `WIDE`, with as many masks after it.
    let masks = WIDE - (place.len as usize).min(WIDE);
    // SAFETY: the caller knows of the text; `WIDE` bytes follow every place.
    let (there, here, mask) = unsafe {
        (
            words(text, at),
            words(&places.bytes, place.start as usize),
            words(&MASKS, masks),
        )
    };
    (0..WIDE / 8).fold(0, |sum, i| sum | (there[i] ^ here[i]) & mask[i])
}

/// The rest of long places. (A function of its own: what it needs of registers, the loop of most lines lacks.)
#[inline(never)]
fn same_tails(text: &[u8], at: [usize; 2], places: &Places, these: [Place; 2]) -> bool {
    at.into_iter().zip(these).all(|(at, place)| {
        let tail = places.get(place).get(WIDE..).unwrap_or_default();
        strip(text.get(at + WIDE..).unwrap_or_default(), tail)
    })
}

/// What a file says of itself.
pub(crate) struct Head {
    pub(crate) collection: Option<Collection>,
    pub(crate) events: BTreeSet<Vec<u8>>,
    /// Where the records begin.
    pub(crate) body: usize,
}

/// The keys of all files. They hold branches or samples.
struct Table {
    branches: bool,
    places: Places,
    entries: Vec<Entry>,
    slots: Slots,
}

/// What a thread has counted under the entries of a table: mispredictions and counts.
type Counts = Vec<[u64; 2]>;

/// Whole lines of a file, and how far they are added up.
struct Window<'t> {
    /// The lines; [`SLACK`] bytes follow.
    text: &'t [u8],
    end: usize,
    at: usize,
    /// The entry of the line before.
    before: u32,
    weight: u64,
}

/// A line whose key was not guessed.
struct Line<'t> {
    key: &'t [u8],
    mispredictions: u64,
    count: u64,
    /// All of it, without its end.
    whole: &'t [u8],
}

impl Table {
    fn new(branches: bool) -> Table {
        Table {
            branches,
            places: Places::default(),
            entries: Vec::new(),
            slots: Slots::default(),
        }
    }

    /// Adds lines as long as their keys are known. The window's end is reached, or a new key.
    fn add(&self, counts: &mut Counts, window: &mut Window<'_>) -> Result<(), Bad> {
        counts.resize(self.entries.len(), [0; 2]);
        loop {
            self.add_guessed(counts, window);
            if window.at >= window.end {
                return Ok(());
            }
            let line = self.line(window)?;
            let Some(number) = self.key(line.key).and_then(|key| self.number(&key)) else {
                return Ok(());
            };
            let ahead = number.wrapping_sub(window.before);
            if let Some(entry) = self.entries.get(window.before as usize)
                && ahead >= SKIPPED
            {
                entry.next.store(number, Ordering::Relaxed);
            }
            window.count(counts, number, &line);
        }
    }

    /// Adds lines as long as their keys are new: one at least.
    fn add_new(&mut self, counts: &mut Counts, window: &mut Window<'_>) -> Result<(), Bad> {
        let mut new = true;
        while new && window.at < window.end {
            let line = self.line(window)?;
            let number;
            (number, new) = self.insert(window, &line)?;
            counts.resize(self.entries.len(), [0; 2]);
            window.count(counts, number, &line);
        }
        Ok(())
    }

    /// The entry that comes first after that of the line before.
    #[inline]
    fn guess(&self, window: &Window<'_>) -> u32 {
        match self.entries.get(window.before as usize) {
            Some(entry) => entry.next.load(Ordering::Relaxed),
            None => 0, // the chain begins with the first line of the first file
        }
    }

    fn add_guessed(&self, counts: &mut Counts, window: &mut Window<'_>) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.add_guessed_avx2(counts, window) };
        }
        self.add_guessed_with(counts, window);
    }

    /// The same, compiled for registers of [`WIDE`] bytes.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn add_guessed_avx2(&self, counts: &mut Counts, window: &mut Window<'_>) {
        self.add_guessed_with(counts, window);
    }

    /// Adds lines as long as the chain tells their keys.
    #[inline(always)]
    fn add_guessed_with(&self, counts: &mut Counts, window: &mut Window<'_>) {
        let (text, weight) = (window.text, window.weight);
        let mut at = window.at;
        let mut before = window.before;
        let mut guess = self.guess(window);
        let mut left = GUESSES;
        while at < window.end
            && let Some(entry) = self.entries.get(guess as usize)
        {
            let next = entry.next.load(Ordering::Relaxed);
            let Some((end, mispredictions, count)) = entry.key.after(&self.places, text, at) else {
                left -= 1;
                if left == 0 {
                    break;
                }
                guess = next;
                continue;
            };
            if let Some(sums) = counts.get_mut(guess as usize) {
                add(sums, mispredictions, count, weight);
            }
            (at, before, guess, left) = (end, guess, next, GUESSES);
        }
        window.at = at;
        window.before = before;
    }

    /// The line where a window is.
    fn line<'t>(&self, window: &Window<'t>) -> Result<Line<'t>, Bad> {
        let rest = &window.text[window.at..window.end];
        let len = find_byte(rest, b'\n').unwrap_or(rest.len());
        let whole = &rest[..len];
        let (key, mispredictions, count) =
            split(whole, self.two_counts(whole)).ok_or_else(|| {
                let known = fdata::check_line(whole, self.branches).err();
                let bad = known.unwrap_or_else(|| Bad::new(0, "not a record"));
                bad.shift(window.at)
            })?;
        Ok(Line {
            key,
            mispredictions,
            count,
            whole,
        })
    }

    fn two_counts(&self, line: &[u8]) -> bool {
        self.branches && matches!(line.first(), Some(b'0'..=b'2'))
    }

    /// A key, if its places are known.
    fn key(&self, text: &[u8]) -> Option<Key> {
        self.key_with(text, |place| self.places.find(place))
    }

    fn key_with(&self, text: &[u8], mut place: impl FnMut(&[u8]) -> Option<Place>) -> Option<Key> {
        let [first, mid, second, end] = parts(text);
        let glue = |part: &[u8]| {
            let mut glue = [0; GLUE];
            glue[..part.len()].copy_from_slice(part); // at most `GLUE`
            (glue, part.len() as u8)
        };
        let ((mid, mid_len), (end, end_len)) = (glue(mid), glue(end));
        Some(Key {
            places: [
                place(first)?,
                match second {
                    [] => Place { start: 0, len: 0 },
                    _ => place(second)?,
                },
            ],
            mid,
            end,
            mid_len,
            end_len,
            two_counts: self.two_counts(text),
        })
    }

    /// The entry of a key.
    fn number(&self, key: &Key) -> Option<u32> {
        // Numbers in slots are those of entries.
        self.slots.find(key.hash(), |number| {
            self.entries[number as usize].key == *key
        })
    }

    /// The entry of a line, and whether it is new.
    fn insert(&mut self, window: &Window<'_>, line: &Line<'_>) -> Result<(u32, bool), Bad> {
        let full = || Bad::new(window.at, "more different records than can be added up");
        if self.entries.len() >= NONE as usize - 1 {
            return Err(full());
        }
        let mut places = std::mem::take(&mut self.places);
        let key = self.key_with(line.key, |place| places.number(place));
        self.places = places;
        let key = key.ok_or_else(full)?;
        if let Some(number) = self.number(&key) {
            return Ok((number, false));
        }
        fdata::check_line(line.whole, self.branches).map_err(|bad| bad.shift(window.at))?;
        let guess = self.guess(window);
        let entries = &self.entries;
        let number = self
            .slots
            .insert(key.hash(), |number| entries[number as usize].key.hash());
        let next = if guess == number {
            NONE
        } else {
            // the very first
            guess
        };
        self.entries.push(Entry {
            key,
            next: AtomicU32::new(next),
        });
        if let Some(before) = self.entries.get(window.before as usize) {
            before.next.store(number, Ordering::Relaxed);
        }
        Ok((number, true))
    }

    /// The sums as texts without headers, of about [`PIECE`] bytes each, in a buffer; until that is empty.
    fn texts(&self, counts: &Counts) -> impl FnMut(&mut Vec<u8>) {
        let mut entries = self.entries.iter().zip(counts);
        move |out| {
            while out.len() < PIECE
                && let Some((entry, [mispredictions, count])) = entries.next()
            {
                entry.key.put(&self.places, out);
                if entry.key.two_counts {
                    out.extend_from_slice(mispredictions.to_string().as_bytes());
                    out.push(b' ');
                }
                out.extend_from_slice(count.to_string().as_bytes());
                out.push(b'\n');
            }
        }
    }
}

impl Key {
    /// If a text has a line of this key at a place: where the next one begins, the line's counts. What is
    /// unusual about the counts is left to others.
    #[inline(always)]
    fn after(&self, places: &Places, text: &[u8], at: usize) -> Option<(usize, u64, u64)> {
        let [first, second] = self.places;
        let mid = at + first.len as usize;
        let place = mid + usize::from(self.mid_len);
        let end = place + second.len as usize;
        let mut counts = end + usize::from(self.end_len);
        if counts + WIDE > text.len() {
            return None;
        }
        // SAFETY: `WIDE` bytes are there after the last part of the key and so after all others; the places
        // of keys are places.
        let (differs, digits) = unsafe {
            let glue_differs = |at: usize, glue: [u8; GLUE], len: u8| {
                let differs = word(text, at) ^ u64::from_le_bytes(glue);
                // Twice, because a shift by all of 64 is none.
                differs << (32 - 4 * u32::from(len)) << (32 - 4 * u32::from(len))
            };
            (
                differs(text, at, places, first)
                    | glue_differs(mid, self.mid, self.mid_len)
                    | differs(text, place, places, second)
                    | glue_differs(end, self.end, self.end_len),
                word(text, counts),
            )
        };
        if differs != 0 {
            return None;
        }
        if (first.len | second.len) as usize > WIDE
            && !same_tails(text, [at, place], places, self.places)
        {
            return None;
        }
        let mut mispredictions = 0;
        if self.two_counts {
            // Most branches are always predicted. Here the next count does not wait for the length of this one.
            mispredictions = (digits & 0xff).wrapping_sub(u64::from(b'0'));
            let mut len = 1;
            if mispredictions > 9 || digits >> 8 & 0xff != u64::from(b' ') {
                (mispredictions, len) = some_digits(digits)?;
            }
            counts += len + 1;
        }
        // SAFETY: at most eight bytes further, of `WIDE`.
        let digits = unsafe { word(text, counts) };
        let (count, len) = number(digits)?;
        let ends = digits >> (8 * len) & 0xff == u64::from(b'\n');
        ends.then_some((counts + len + 1, mispredictions, count))
    }
}

#[inline]
fn add(sums: &mut [u64; 2], mispredictions: u64, count: u64, weight: u64) {
    let [mut more_mispredictions, mut more] = [mispredictions, count];
    if weight != 1 {
        more_mispredictions = more_mispredictions.saturating_mul(weight);
        more = more.saturating_mul(weight);
    }
    sums[0] = sums[0].saturating_add(more_mispredictions);
    sums[1] = sums[1].saturating_add(more);
}

impl Window<'_> {
    /// Counts the line where it is under an entry, and continues to the next.
    fn count(&mut self, counts: &mut Counts, number: u32, line: &Line<'_>) {
        if let Some(sums) = counts.get_mut(number as usize) {
            add(sums, line.mispredictions, line.count, self.weight);
        }
        self.before = number;
        self.at += line.whole.len() + 1;
    }
}

/// What all threads have in common: a table of samples and one of branches.
struct Shared([RwLock<Table>; 2]);

/// What a thread has done: its counts of samples and of branches, and what each of its files says of itself.
#[derive(Default)]
struct Worker {
    counts: [Counts; 2],
    heads: Vec<(usize, Option<Collection>)>,
    events: BTreeSet<Vec<u8>>,
    error: Option<(usize, Error)>,
    buffer: Vec<u8>,
}

impl Worker {
    fn take(&mut self, shared: &Shared, index: usize, input: &Weighted) -> Result<(), Error> {
        let path = &input.path;
        let mut file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.read(shared, index, input, &mut file, &mut buffer);
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

    /// Adds a file, window by window.
    fn read(
        &mut self,
        shared: &Shared,
        index: usize,
        input: &Weighted,
        file: &mut File,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let path = &input.path;
        let mut branches = None;
        let mut before = NONE;
        // Of what can be read again, lines are counted only if one is wrong.
        let again = file.metadata().is_ok_and(|data| data.is_file());
        let (mut lines, mut passed) = (0u64, 0u64);
        // Bytes of the file in the buffer. Whatever else is in it does not matter.
        let mut filled = 0;
        let mut size = PIECE;
        let mut at_end = false;
        while !at_end {
            if buffer.len() < size + SLACK {
                buffer.resize(size + SLACK, 0);
            }
            while filled < size {
                match file.read(&mut buffer[filled..size]) {
                    Ok(0) => {
                        at_end = true;
                        break;
                    }
                    Ok(read) => {
                        filled += read;
                        progress::did(read);
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(Error::io(path, "read", e)),
                }
            }
            let whole = if at_end {
                filled
            } else {
                match memchr::memrchr(b'\n', &buffer[..filled]) {
                    Some(end) => end + 1,
                    None => {
                        size = size.saturating_mul(2); // a line longer than that
                        continue;
                    }
                }
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
            let which = usize::from(branches);
            let mut window = Window {
                text: &buffer[..],
                end: whole,
                at: body,
                before,
                weight: input.weight,
            };
            let counts = &mut self.counts[which];
            (|| {
                while window.at < window.end {
                    // A panic while adding would end the merge: poison means nothing.
                    let table = shared.0[which]
                        .read()
                        .unwrap_or_else(PoisonError::into_inner);
                    table.add(counts, &mut window)?;
                    drop(table);
                    if window.at < window.end {
                        shared.0[which]
                            .write()
                            .unwrap_or_else(PoisonError::into_inner)
                            .add_new(counts, &mut window)?;
                    }
                }
                Ok(())
            })()
            .map_err(|bad: Bad| {
                let before = if again { lines_in(path, passed) } else { lines };
                bad.locate_after(path, &buffer[..whole], before)
            })?;
            before = window.before;
            passed += whole as u64;
            if !again && !at_end {
                lines += memchr::memchr_iter(b'\n', &buffer[..whole]).count() as u64;
            }
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
        Ok(())
    }
}

/// Lines in the first bytes of a file that was readable a moment ago.
fn lines_in(path: &Path, bytes: u64) -> u64 {
    let Ok(file) = File::open(path) else {
        return 0;
    };
    let mut file = std::io::BufReader::with_capacity(PIECE, file.take(bytes));
    let mut lines = 0;
    while let Ok(read) = file.fill_buf()
        && !read.is_empty()
    {
        lines += memchr::memchr_iter(b'\n', read).count() as u64;
        let len = read.len();
        file.consume(len);
    }
    lines
}

/// Reads and adds up files; see [`fdata::merge`].
pub(crate) fn merge(inputs: &[Weighted]) -> Result<SymbolicProfile, Error> {
    let threads = rayon::current_num_threads().min(inputs.len()).max(1);
    // Pipes have no size: then more is done than was expected, and no time is told.
    let sizes = inputs.iter().map(|input| std::fs::metadata(&input.path));
    progress::reset();
    progress::expect(sizes.flatten().map(|data| data.len() as usize).sum());
    let next = AtomicUsize::new(0);
    let shared = Shared([false, true].map(|branches| RwLock::new(Table::new(branches))));
    let work = || {
        let mut worker = Worker::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.get(index) else {
                worker.buffer = Vec::new();
                return worker;
            };
            if let Err(error) = worker.take(&shared, index, input) {
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
    let [samples, branched] = shared
        .0
        .map(|table| table.into_inner().unwrap_or_else(PoisonError::into_inner));
    let mut table = if branches { branched } else { samples };
    table.slots = Slots::default();
    let mut total = Counts::new();
    for worker in workers {
        let [samples, branched] = worker.counts;
        let mut counts = if branches { branched } else { samples };
        if counts.len() > total.len() {
            std::mem::swap(&mut total, &mut counts);
        }
        for (sums, [mispredictions, count]) in total.iter_mut().zip(counts) {
            add(sums, mispredictions, count, 1);
        }
    }
    total.resize(table.entries.len(), [0; 2]);
    fdata::assemble(collection, events, table.entries.len(), table.texts(&total))
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
