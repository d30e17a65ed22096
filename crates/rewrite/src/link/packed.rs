//! Functions between two writings of one file.
//!
//! While a checker reads the file that was written, functions are needed only if it refuses one of them: then what
//! refers to it is looked for in the others ([`super::changed`]), or they are linked once more. That is rare, so of
//! large programs no more is kept than what the file does not say, and that in few bytes, in one buffer for many
//! functions: what is left between lists that were freed would be as large.
//!
//! | of a function | is kept |
//! |---|---|
//! | bytes of its fragments | not at all: they are in the file, with fields that are filled anew |
//! | fixups | in 4 to 8 bytes each |
//! | places of blocks | in 2 bytes each |
//! | entries of tables, call sites | in some 6 bytes each |
//! | call frame instructions, recorders | as they are |
//!
//! Most functions do not refer to one that is refused, and are not unpacked to see that: of some hundred functions
//! together it is known which functions they may mention.
//!
//! Numbers are in LEB128, most as differences from the one before. The few functions with something that there is no
//! form for stay what they are. A digest of the code shows whether the file still has it; if not, nothing is given
//! back, and who wrote it makes the functions once more.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;

use postlink_bytes::{Bytes, leb128};
use postlink_elf::unwind::lsda::Numbers;
use postlink_elf::write::{Placed, Writer};
use postlink_elf::{InputAddr, OutputAddr, OutputOffset};
use postlink_isa::{Code, Fixup, FixupKind};
use xxhash_rust::xxh3::Xxh3;

use super::place::Placement;
use super::ready::{Ready, ReadyFunction};
use crate::analyse::Target;
use crate::cfg::{BlockId, TableEntry};
use crate::emit::{Emitted, Fragment, FragmentUnwind, NewCallSite};

/// How many functions are packed, and unpacked, by one thread at a time.
const PART: usize = 512;

/// Bytes of the file that are read at a time.
const WINDOW: u64 = 256 << 10;

/// Functions without what the file says of them.
pub struct Packed {
    parts: Vec<Part>,
    /// The file.
    file: File,
    /// An address of new code, and where it is in the file.
    place: (OutputAddr, OutputOffset),
}

/// Some functions, in order.
struct Part {
    count: usize,
    /// Where the code of each is: of both fragments their bytes, and their addresses if there are some.
    places: Box<[u8]>,
    packed: Box<[u8]>,
    mentions: Mentions,
    /// Those that are not packed, in order.
    others: Vec<Ready>,
    /// Of their code in the file.
    digest: u64,
}

/// Digests of functions' code as it goes to the file, by parts of their list. `None`: it cannot be read back.
pub fn digests(ready: &[Ready], placed: &Placement, writer: &Writer<'_>) -> Option<Vec<u64>> {
    let filled = |s: &Option<Placed>| s.map(|s| (s.addr, writer.filled(s.id)));
    let sections = placed.sections.iter();
    let sections: Vec<[Option<(OutputAddr, &[u8])>; 2]> =
        sections.map(|group| group.each_ref().map(filled)).collect();
    let digest = |range: Range<usize>| {
        let mut hash = Xxh3::new();
        for i in range {
            let group = sections.get(usize::from(placed.veneer_groups[i]))?;
            for (f, fragment) in ready[i].code.fragments.iter().enumerate() {
                let len = fragment.code.bytes.len();
                if len == 0 {
                    continue;
                }
                let (start, bytes) = group[f].filter(|_| !placed.in_old_body[i][f])?;
                let at = placed.fragments[i][f].get().checked_sub(start.get())? as usize;
                hash.update(bytes.get(at..at.checked_add(len)?)?);
            }
        }
        Some(hash.digest())
    };
    postlink_parallel::map_parts(ready.len(), PART, digest)
        .into_iter()
        .collect()
}

impl Packed {
    /// Packs functions whose code has these addresses and digests. `place`: an address of new code, and its offset in
    /// the file.
    pub fn new(
        ready: Vec<Ready>,
        fragments: &[[OutputAddr; 2]],
        digests: Vec<u64>,
        file: File,
        place: (OutputAddr, OutputOffset),
    ) -> Self {
        let mut ready = ready.into_iter().zip(fragments.iter().copied());
        let parts = digests.into_iter().map(|digest| {
            let functions: Vec<_> = ready.by_ref().take(PART).collect();
            (functions, digest)
        });
        let parts = postlink_parallel::map_owned(parts.collect(), |(functions, digest)| {
            let (count, mut packed, mut others) = (functions.len(), Vec::new(), Vec::new());
            let (mut places, mut mentions) = (Vec::new(), Mentions::default());
            for (ready, at) in functions {
                mentions.note(&ready);
                put_places(&ready, at, &mut places);
                others.extend(pack_or_keep(ready, &mut packed));
            }
            Part {
                count,
                places: places.into(),
                packed: packed.into(),
                mentions,
                others,
                digest,
            }
        });
        Packed { parts, file, place }
    }

    /// Unpacks all of them. `None`: the file does not have their code any more.
    pub fn unpack(self) -> Option<Vec<Ready>> {
        let Packed { parts, file, place } = self;
        let given = postlink_parallel::map_owned(parts, |part| part.unpack(&file, place));
        let given: Vec<Vec<Ready>> = given.into_iter().collect::<Option<_>>()?;
        Some(given.into_iter().flatten().collect())
    }

    /// Has `look` see all functions that refer to one of `functions`, or are one, and perhaps others: by their
    /// positions, each with the bytes of its fragments in the file. Gives what it finds. `functions`: numbers, and
    /// addresses of the entries. `None`: the file does not have the functions' code any more.
    pub fn look<T: Send>(
        &self,
        functions: &[(u32, u64)],
        look: impl Fn(usize, &ReadyFunction, [&[u8]; 2], &mut Vec<T>) + Sync,
    ) -> Option<Vec<T>> {
        let found = postlink_parallel::map_range(self.parts.len(), |p| {
            let part = &self.parts[p];
            let (mut found, mut position) = (Vec::new(), p * PART);
            let mut others = part.others.iter();
            let digest = if part.mentions.may_have(functions) {
                part.each(&self.file, self.place, |ready, bytes| {
                    let ready = match &ready {
                        Some(ready) => ready,
                        None => &**others.next()?,
                    };
                    look(position, ready, bytes, &mut found);
                    position += 1;
                    Some(())
                })?
            } else {
                part.each_code(&self.file, self.place, |_| Some(()))?
            };
            (digest == part.digest).then_some(found)
        });
        let found: Vec<Vec<T>> = found.into_iter().collect::<Option<_>>()?;
        Some(found.into_iter().flatten().collect())
    }

    /// Takes note that the file has other bytes of functions at these positions.
    pub fn changed(&mut self, positions: impl Iterator<Item = usize>) {
        let numbers: BTreeSet<usize> = positions.map(|position| position / PART).collect();
        let (file, place) = (&self.file, self.place);
        for part in numbers {
            if let Some(part) = self.parts.get_mut(part)
                && let Some(digest) = part.each_code(file, place, |_| Some(()))
            {
                part.digest = digest;
            }
        }
    }
}

impl Part {
    fn unpack(mut self, file: &File, place: (OutputAddr, OutputOffset)) -> Option<Vec<Ready>> {
        let mut others = std::mem::take(&mut self.others).into_iter();
        let mut list = Vec::with_capacity(self.count);
        let digest = self.each(file, place, |ready, bytes| {
            list.push(match ready {
                Some(mut ready) => {
                    for (fragment, bytes) in ready.code.fragments.iter_mut().zip(bytes) {
                        fragment.code.bytes = bytes.to_vec();
                    }
                    Box::new(ready)
                }
                None => others.next()?,
            });
            Some(())
        })?;
        (digest == self.digest).then_some(list)
    }

    /// Gives each function, without the bytes of its fragments, and these as the file has them. `None` in the place of
    /// one that is not packed. Gives the digest of all these bytes.
    fn each(
        &self,
        file: &File,
        place: (OutputAddr, OutputOffset),
        mut each: impl FnMut(Option<ReadyFunction>, [&[u8]; 2]) -> Option<()>,
    ) -> Option<u64> {
        let mut packed = Bytes::new(&self.packed);
        self.each_code(file, place, |bytes| {
            let ready = match packed.u8().ok()? {
                PACKED => Some(unpack(&mut packed)?),
                _ => None,
            };
            each(ready, bytes)
        })
    }

    /// Gives the bytes of each function's fragments, as the file has them, and the digest of all of them.
    fn each_code(
        &self,
        file: &File,
        place: (OutputAddr, OutputOffset),
        mut each: impl FnMut([&[u8]; 2]) -> Option<()>,
    ) -> Option<u64> {
        let mut hash = Xxh3::new();
        let mut windows = [Window::default(), Window::default()];
        let mut places = Bytes::new(&self.places);
        for _ in 0..self.count {
            let mut bytes: [&[u8]; 2] = [&[], &[]];
            for (bytes, window) in bytes.iter_mut().zip(&mut windows) {
                let len = number(&mut places)?;
                if len > 0 {
                    let distance = number(&mut places)?.checked_sub(place.0.get())?;
                    let code = window.read(file, place.1.get().checked_add(distance)?, len)?;
                    hash.update(code);
                    *bytes = code;
                }
            }
            each(bytes)?;
        }
        Some(hash.digest())
    }
}

/// A function that is packed, and one that is not.
const PACKED: u8 = 1;
const NOT_PACKED: u8 = 0;

/// Which functions some others refer to, and which they are: bits of a table by digests, so that some may be taken for
/// mentioned that are not.
#[derive(Default)]
struct Mentions(Vec<u64>);

impl Mentions {
    /// Bits of the table, as a power of two: some times what so many functions mention.
    const BITS: u32 = 16;

    /// Which bit is an address's, or a number's.
    fn bit(value: u64) -> (usize, u64) {
        // The multiplier of Fibonacci hashing: addresses are multiples of small powers of two.
        let bit = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::BITS);
        ((bit >> 6) as usize, 1 << (bit & 63))
    }

    fn put(&mut self, value: u64) {
        let (word, bit) = Self::bit(value);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    fn note(&mut self, ready: &ReadyFunction) {
        self.0.resize(1 << (Self::BITS - 6), 0);
        self.put(u64::from(ready.function));
        let fragments = ready.code.fragments.iter().map(|f| &f.code);
        for fixup in fragments
            .chain([&ready.recorders])
            .flat_map(|code| &code.fixups)
        {
            if let Target::Code(addr) = fixup.target {
                self.put(addr);
            }
        }
    }

    /// Whether one of these functions, by numbers and entries, may be one of them, or be referred to.
    fn may_have(&self, functions: &[(u32, u64)]) -> bool {
        let has = |value: u64| {
            let (word, bit) = Self::bit(value);
            self.0.get(word).is_some_and(|word| word & bit != 0)
        };
        let mut all = functions.iter();
        all.any(|(number, entry)| has(u64::from(*number)) || has(*entry))
    }
}

/// Appends where a function's code is.
fn put_places(ready: &ReadyFunction, at: [OutputAddr; 2], out: &mut Vec<u8>) {
    for (fragment, at) in ready.code.fragments.iter().zip(at) {
        let len = fragment.code.bytes.len();
        put(out, len as u64);
        if len > 0 {
            put(out, at.get());
        }
    }
}

/// Appends what else a function is; gives it back if that has no form.
fn pack_or_keep(ready: Ready, out: &mut Vec<u8>) -> Option<Ready> {
    let before = out.len();
    out.push(PACKED);
    if pack(&ready, out).is_some() {
        return None;
    }
    out.truncate(before);
    out.push(NOT_PACKED);
    Some(ready)
}

/// Bytes of the file from an offset on.
#[derive(Default)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Some bytes of the file.
    fn read(&mut self, file: &File, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        if at < self.at || end > self.at + self.bytes.len() as u64 {
            self.at = at;
            read_at(file, at, len.max(WINDOW), &mut self.bytes)?;
        }
        let from = (at - self.at) as usize;
        self.bytes.get(from..from + len as usize)
    }
}

/// Reads so many bytes, or less at the end of the file.
#[cfg(unix)]
fn read_at(file: &File, at: u64, len: u64, into: &mut Vec<u8>) -> Option<()> {
    use std::os::unix::fs::FileExt;
    let left = file.metadata().ok()?.len().checked_sub(at)?;
    into.resize(len.min(left) as usize, 0);
    file.read_exact_at(into, at).ok()
}

/// Functions are made once more there.
#[cfg(not(unix))]
fn read_at(_: &File, _: u64, _: u64, _: &mut Vec<u8>) -> Option<()> {
    None
}

fn put(out: &mut Vec<u8>, number: u64) {
    leb128::put_unsigned(out, number);
}

fn number(packed: &mut Bytes<'_>) -> Option<u64> {
    packed.unsigned(leb128::LONGEST).ok()
}

/// A number that has at most 32 bits.
fn short(packed: &mut Bytes<'_>) -> Option<u32> {
    number(packed)?.try_into().ok()
}

/// A list, by its length. It has no room to grow, as all functions are in memory at once.
fn list<T>(
    packed: &mut Bytes<'_>,
    mut each: impl FnMut(&mut Bytes<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = number(packed)? as usize;
    // Each takes a byte at least.
    let mut list = Vec::with_capacity(count.min(packed.left()));
    for _ in 0..count {
        list.push(each(packed)?);
    }
    Some(list)
}

/// Appends what a function has beside the bytes of its fragments. `None`: something has no form.
fn pack(ready: &ReadyFunction, out: &mut Vec<u8>) -> Option<()> {
    let ReadyFunction {
        function,
        code,
        unwind,
        table_entries,
        anchored_targets,
        secondary_entries,
        own_tables,
        own_bases,
        falls_back,
        address_taken,
        recorders,
        recorder_offsets,
        splits,
        counter_base,
        site_base,
        taken_back,
    } = ready;
    let Emitted {
        fragments,
        blocks,
        entry_check,
        external_entries,
        fallbacks,
    } = code;
    let all_have_forms = secondary_entries.is_empty()
        && own_tables.is_empty()
        && own_bases.is_empty()
        && falls_back.is_empty()
        && splits.is_empty()
        && external_entries.is_empty()
        && fallbacks.is_empty();
    if !all_have_forms {
        return None;
    }
    put(out, u64::from(*function));
    put(out, *counter_base);
    put(out, *site_base);
    put(out, u64::from(*entry_check) << 1 | u64::from(*taken_back));
    pack_blocks(blocks, out)?;
    for Fragment { code, spans, runs } in fragments {
        if !spans.is_empty() || !runs.is_empty() {
            return None;
        }
        pack_fixups(code, out)?;
    }
    pack_fixups(recorders, out)?;
    put(out, recorders.bytes.len() as u64);
    out.extend_from_slice(&recorders.bytes);
    put(out, recorder_offsets.len() as u64);
    for offset in recorder_offsets {
        // There are some of which there is no recorder.
        put(out, u64::from(offset.wrapping_add(1)));
    }
    put(out, table_entries.len() as u64);
    let mut before = 0u64;
    for entry in table_entries {
        leb128::put_signed(out, entry.place.wrapping_sub(before) as i64);
        before = entry.place;
        put(out, entry.width << 1 | u64::from(entry.base.is_some()));
        if let Some(base) = entry.base {
            leb128::put_signed(out, base.wrapping_sub(before) as i64);
        }
        put(out, u64::from(entry.block));
    }
    for list in [anchored_targets, address_taken] {
        put(out, list.len() as u64);
        for (at, block) in list {
            put(out, at.get());
            put(out, u64::from(*block));
        }
    }
    out.push(u8::from(unwind.is_some()));
    for unwind in unwind.iter().flatten() {
        pack_unwind(unwind, out);
    }
    Some(())
}

/// Reads what [`pack`] wrote. The fragments have no bytes.
fn unpack(packed: &mut Bytes<'_>) -> Option<ReadyFunction> {
    let function = short(packed)?;
    let (counter_base, site_base) = (number(packed)?, number(packed)?);
    let checked = number(packed)?;
    let blocks = unpack_blocks(packed)?;
    let hot = unpack_fixups(packed)?;
    let cold = unpack_fixups(packed)?;
    let mut recorders = unpack_fixups(packed)?;
    let len = number(packed)?;
    recorders.bytes = packed.take(len).ok()?.to_vec();
    let recorder_offsets = list(packed, |p| Some(short(p)?.wrapping_sub(1)))?;
    let mut before = 0u64;
    let table_entries = list(packed, |p| {
        let place = before.wrapping_add(p.signed(leb128::LONGEST).ok()? as u64);
        before = place;
        let width = number(p)?;
        let base = match width & 1 {
            0 => None,
            _ => Some(place.wrapping_add(p.signed(leb128::LONGEST).ok()? as u64)),
        };
        Some(TableEntry {
            place,
            base,
            width: width >> 1,
            block: short(p)?,
        })
    })?;
    let places = |p: &mut Bytes<'_>| -> Option<Vec<(InputAddr, BlockId)>> {
        list(p, |p| Some((InputAddr::new(number(p)?), short(p)?)))
    };
    let (anchored_targets, address_taken) = (places(packed)?, places(packed)?);
    let unwind = match packed.u8().ok()? {
        0 => None,
        _ => Some([unpack_unwind(packed)?, unpack_unwind(packed)?]),
    };
    let fragment = |code| Fragment {
        code,
        spans: Vec::new(),
        runs: Vec::new(),
    };
    Some(ReadyFunction {
        function,
        code: Emitted {
            fragments: [fragment(hot), fragment(cold)],
            blocks,
            entry_check: u32::try_from(checked >> 1).ok()?,
            external_entries: Vec::new(),
            fallbacks: Vec::new(),
        },
        unwind,
        table_entries,
        anchored_targets,
        secondary_entries: Vec::new(),
        own_tables: Vec::new(),
        own_bases: Vec::new(),
        falls_back: Vec::new(),
        address_taken,
        recorders,
        recorder_offsets,
        splits: Vec::new(),
        counter_base,
        site_base,
        taken_back: checked & 1 == 1,
    })
}

/// Places of blocks: how far each is from the one before, twice, and its fragment.
fn pack_blocks(blocks: &[(u8, u32)], out: &mut Vec<u8>) -> Option<()> {
    put(out, blocks.len() as u64);
    let mut before = 0;
    for &(fragment, offset) in blocks {
        let fragment = match fragment {
            0 | 1 => u64::from(fragment),
            u8::MAX => 2,
            _ => return None,
        };
        let step = i64::from(offset) - before;
        before = i64::from(offset);
        // The sign is the lowest bit, so that numbers near zero are short.
        let unsigned = (step << 1 ^ step >> 63) as u64;
        put(out, unsigned << 2 | fragment);
    }
    Some(())
}

fn unpack_blocks(packed: &mut Bytes<'_>) -> Option<Vec<(u8, u32)>> {
    let mut before = 0i64;
    list(packed, |p| {
        let value = number(p)?;
        let fragment = match value & 3 {
            2 => u8::MAX,
            fragment => fragment as u8,
        };
        let unsigned = value >> 2;
        before = before.checked_add((unsigned >> 1) as i64 ^ -((unsigned & 1) as i64))?;
        Some((fragment, u32::try_from(before).ok()?))
    })
}

fn pack_fixups(code: &Code<Target>, out: &mut Vec<u8>) -> Option<()> {
    put(out, code.fixups.len() as u64);
    let mut before = Before::default();
    for fixup in &code.fixups {
        before.put(fixup, out)?;
    }
    code.stack.is_empty().then_some(())
}

fn unpack_fixups(packed: &mut Bytes<'_>) -> Option<Code<Target>> {
    let mut before = Before::default();
    Some(Code {
        bytes: Vec::new(),
        fixups: list(packed, |p| before.take(p))?,
        stack: Vec::new(),
    })
}

fn pack_unwind(unwind: &FragmentUnwind, out: &mut Vec<u8>) {
    let FragmentUnwind {
        cie,
        instructions,
        call_sites,
        numbers,
    } = unwind;
    put(out, *cie as u64);
    put(out, instructions.len() as u64);
    out.extend_from_slice(instructions);
    let quickest = *numbers == Numbers::Quickest;
    out.push(u8::from(quickest) << 1 | u8::from(call_sites.is_some()));
    let Some(call_sites) = call_sites else { return };
    put(out, call_sites.len() as u64);
    for site in call_sites {
        put(out, u64::from(site.start));
        put(out, u64::from(site.len));
        put(out, site.landing_pad.map_or(0, |pad| u64::from(pad) + 1));
        put(out, site.action);
    }
}

fn unpack_unwind(packed: &mut Bytes<'_>) -> Option<FragmentUnwind> {
    let cie = number(packed)? as usize;
    let len = number(packed)?;
    let instructions = packed.take(len).ok()?.to_vec();
    let flags = packed.u8().ok()?;
    let site = |p: &mut Bytes<'_>| {
        let (start, len) = (short(p)?, short(p)?);
        let landing_pad = match number(p)? {
            0 => None,
            pad => Some(u32::try_from(pad - 1).ok()?),
        };
        Some(NewCallSite {
            start,
            len,
            landing_pad,
            action: number(p)?,
        })
    };
    let call_sites = match flags & 1 {
        0 => None,
        _ => Some(list(packed, site)?),
    };
    let numbers = match flags >> 1 {
        0 => Numbers::Shortest,
        _ => Numbers::Quickest,
    };
    Some(FragmentUnwind {
        cie,
        instructions,
        call_sites,
        numbers,
    })
}

/// What the next fixup is compared with.
#[derive(Default)]
struct Before {
    at: u32,
    address: u64,
    number: u32,
}

impl Before {
    fn put(&mut self, fixup: &Fixup<Target>, out: &mut Vec<u8>) -> Option<()> {
        leb128::put_unsigned(out, u64::from(fixup.at.checked_sub(self.at)?));
        self.at = fixup.at;
        out.push(kind_to_byte(fixup.kind)?);
        let (tag, number) = match fixup.target {
            Target::Block(n) => (0, n),
            Target::Unit(n) => (1, n),
            Target::OwnTable(n) => (2, n),
            Target::OwnBase(n) => (3, n),
            Target::Counter(n) => (4, n),
            Target::OwnersCounter(n) => (5, n),
            Target::SiteWord(n) => (6, n),
            Target::OwnersSiteWord(n) => (7, n),
            Target::Recorder(n) => (8, n),
            Target::Code(address) => return self.put_address(9, address, out),
            Target::Same(address) => return self.put_address(10, address, out),
            Target::Bias => (11, self.number),
            Target::Slow => (12, self.number),
            Target::SlowWithEdges => (13, self.number),
            Target::Ready => (14, self.number),
            Target::Enter => (15, self.number),
            Target::Owner => (16, self.number),
        };
        out.push(tag);
        if tag < 9 {
            leb128::put_signed(out, i64::from(number) - i64::from(self.number));
            self.number = number;
        }
        Some(())
    }

    fn put_address(&mut self, tag: u8, address: u64, out: &mut Vec<u8>) -> Option<()> {
        out.push(tag);
        leb128::put_signed(out, address.wrapping_sub(self.address) as i64);
        self.address = address;
        Some(())
    }

    fn take(&mut self, packed: &mut Bytes<'_>) -> Option<Fixup<Target>> {
        let step = packed.unsigned(leb128::LONGEST).ok()?;
        self.at = self.at.checked_add(u32::try_from(step).ok()?)?;
        let kind = kind_of_byte(packed.u8().ok()?)?;
        let tag = packed.u8().ok()?;
        match tag {
            ..9 => {
                let step = packed.signed(leb128::LONGEST).ok()?;
                self.number = u32::try_from(i64::from(self.number).checked_add(step)?).ok()?;
            }
            9 | 10 => {
                let step = packed.signed(leb128::LONGEST).ok()?;
                self.address = self.address.wrapping_add(step as u64);
            }
            _ => {}
        }
        let number = self.number;
        let target = match tag {
            0 => Target::Block(number),
            1 => Target::Unit(number),
            2 => Target::OwnTable(number),
            3 => Target::OwnBase(number),
            4 => Target::Counter(number),
            5 => Target::OwnersCounter(number),
            6 => Target::SiteWord(number),
            7 => Target::OwnersSiteWord(number),
            8 => Target::Recorder(number),
            9 => Target::Code(self.address),
            10 => Target::Same(self.address),
            11 => Target::Bias,
            12 => Target::Slow,
            13 => Target::SlowWithEdges,
            14 => Target::Ready,
            15 => Target::Enter,
            16 => Target::Owner,
            _ => return None,
        };
        Some(Fixup {
            at: self.at,
            kind,
            target,
        })
    }
}

/// Kinds with a number below 16 have it in the lower half.
fn kind_to_byte(kind: FixupKind) -> Option<u8> {
    let (high, low) = match kind {
        FixupKind::Rel8 { trail } => (0, trail),
        FixupKind::Rel32 { trail } => (1, trail),
        FixupKind::Low12 { scale } => (2, scale),
        FixupKind::Abs32 => (3, 0),
        FixupKind::Abs32S => (3, 1),
        FixupKind::Abs64 => (3, 2),
        FixupKind::Branch26 => (3, 3),
        FixupKind::Imm19 => (3, 4),
        FixupKind::Branch14 => (3, 5),
        FixupKind::Adr => (3, 6),
        FixupKind::Page => (3, 7),
        FixupKind::Low12Odd => (3, 8),
        FixupKind::AdrOdd => (3, 9),
        FixupKind::FromOdd => (3, 10),
    };
    (low < 16).then_some(high << 4 | low)
}

fn kind_of_byte(byte: u8) -> Option<FixupKind> {
    let low = byte & 15;
    Some(match (byte >> 4, low) {
        (0, _) => FixupKind::Rel8 { trail: low },
        (1, _) => FixupKind::Rel32 { trail: low },
        (2, _) => FixupKind::Low12 { scale: low },
        (3, 0) => FixupKind::Abs32,
        (3, 1) => FixupKind::Abs32S,
        (3, 2) => FixupKind::Abs64,
        (3, 3) => FixupKind::Branch26,
        (3, 4) => FixupKind::Imm19,
        (3, 5) => FixupKind::Branch14,
        (3, 6) => FixupKind::Adr,
        (3, 7) => FixupKind::Page,
        (3, 8) => FixupKind::Low12Odd,
        (3, 9) => FixupKind::AdrOdd,
        (3, 10) => FixupKind::FromOdd,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> Vec<Target> {
        let far = [0, 1, 0x40_0000, u64::from(u32::MAX) + 7, u64::MAX];
        let near = [0u32, 3, 64, 1 << 20, u32::MAX];
        let of_address = far
            .iter()
            .flat_map(|a| [Target::Code(*a), Target::Same(*a)]);
        let of_number = near.iter().flat_map(|n| {
            [
                Target::Block(*n),
                Target::Unit(*n),
                Target::OwnTable(*n),
                Target::OwnBase(*n),
                Target::Counter(*n),
                Target::OwnersCounter(*n),
                Target::SiteWord(*n),
                Target::OwnersSiteWord(*n),
                Target::Recorder(*n),
            ]
        });
        let alone = [
            Target::Bias,
            Target::Slow,
            Target::SlowWithEdges,
            Target::Ready,
            Target::Enter,
            Target::Owner,
        ];
        of_address.chain(of_number).chain(alone).collect()
    }

    /// A function with all that has a form.
    fn function() -> ReadyFunction {
        let kinds = (0..=u8::MAX).filter_map(kind_of_byte);
        let kinds: Vec<FixupKind> = kinds.collect();
        assert_eq!(kinds.len(), 3 * 16 + 11);
        let mut code = [Code::default(), Code::default(), Code::default()];
        let mut at = 0;
        for (n, target) in targets().into_iter().enumerate() {
            for (k, kind) in kinds.iter().copied().enumerate() {
                code[n % 3].fixups.push(Fixup { at, kind, target });
                at += (n * k) as u32;
            }
        }
        let [hot, cold, mut recorders] = code;
        recorders.bytes = vec![0xcc; 300];
        let fragment = |code| Fragment {
            code,
            spans: Vec::new(),
            runs: Vec::new(),
        };
        let entry = |place, base, width, block| TableEntry {
            place,
            base,
            width,
            block,
        };
        let site = |start, landing_pad, action| NewCallSite {
            start,
            len: 5,
            landing_pad,
            action,
        };
        let unwind = |call_sites, numbers| FragmentUnwind {
            cie: 3,
            instructions: vec![0x41, 0x0e, 0x10],
            call_sites,
            numbers,
        };
        let sites = vec![
            site(0, None, 0),
            site(300, Some(0), 1),
            site(9, Some(u32::MAX), u64::MAX),
        ];
        ReadyFunction {
            function: 17,
            code: Emitted {
                fragments: [fragment(hot), fragment(cold)],
                blocks: vec![
                    (0, 0),
                    (0, 17),
                    (1, 4),
                    (u8::MAX, 0),
                    (0, u32::MAX),
                    (1, 300),
                ],
                entry_check: u32::MAX,
                ..Emitted::default()
            },
            unwind: Some([
                unwind(Some(sites), Numbers::Quickest),
                unwind(None, Numbers::Shortest),
            ]),
            table_entries: vec![
                entry(0x40_0000, None, 8, 4),
                entry(0x3f_fff8, Some(0x3f_0000), 4, u32::MAX),
                entry(u64::MAX, Some(1), 4, 0),
            ],
            anchored_targets: vec![(InputAddr::new(u64::MAX), 3)],
            secondary_entries: Vec::new(),
            own_tables: Vec::new(),
            own_bases: Vec::new(),
            falls_back: Vec::new(),
            address_taken: vec![(InputAddr::new(1), 0), (InputAddr::new(0), 9)],
            recorders,
            recorder_offsets: vec![0, u32::MAX, 12],
            splits: Vec::new(),
            counter_base: 1 << 40,
            site_base: 200,
            taken_back: true,
        }
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed() {
        let function = function();
        let mut packed = Vec::new();
        pack(&function, &mut packed).expect("all of it has a form");
        let mut bytes = Bytes::new(&packed);
        let unpacked = unpack(&mut bytes).expect("it was packed");
        assert!(bytes.is_empty());
        for f in 0..2 {
            assert_eq!(
                unpacked.code.fragments[f].code,
                function.code.fragments[f].code
            );
        }
        assert_eq!(unpacked.code.blocks, function.code.blocks);
        assert_eq!(unpacked.recorders, function.recorders);
        assert_eq!(unpacked.recorder_offsets, function.recorder_offsets);
        assert_eq!(unpacked.anchored_targets, function.anchored_targets);
        assert_eq!(unpacked.address_taken, function.address_taken);
        let sites = |f: &ReadyFunction| f.unwind.clone().map(|u| u.map(|u| u.call_sites));
        assert_eq!(sites(&unpacked), sites(&function));
        // The same in every field that there is a form for.
        let mut again = Vec::new();
        pack(&unpacked, &mut again).expect("it was packed before");
        assert_eq!(again, packed);
        // What is cut off is no function.
        for end in (0..packed.len()).step_by(7) {
            assert!(unpack(&mut Bytes::new(&packed[..end])).is_none());
        }
    }

    #[test]
    fn what_a_function_is_and_refers_to_is_mentioned() {
        let (mut function, mut mentions) = (function(), Mentions::default());
        function.function = 0x1_7171;
        assert!(!mentions.may_have(&[(0x1_7171, 0)]));
        mentions.note(&function);
        assert!(mentions.may_have(&[(1, 2), (0x1_7171, 0x99)]));
        for target in targets() {
            if let Target::Code(addr) = target {
                assert!(mentions.may_have(&[(1, addr)]), "{addr:#x}");
            }
        }
        let wrong =
            (0..1000).filter(|n| mentions.may_have(&[(n + 100, 0x1234_5678 + 16 * u64::from(*n))]));
        assert!(wrong.count() < 10);
    }

    #[test]
    fn what_has_no_form_stays_what_it_is() {
        let kept = |change: &dyn Fn(&mut ReadyFunction)| {
            let mut ready = Box::new(function());
            change(&mut ready);
            pack_or_keep(ready, &mut Vec::new())
        };
        assert!(kept(&|_| {}).is_none());
        let kind = FixupKind::Rel32 { trail: 16 };
        let target = Target::Bias;
        let changes: [&dyn Fn(&mut ReadyFunction); 4] = [
            &|r| r.code.blocks.push((2, 0)),
            &|r| {
                r.recorders.fixups = vec![Fixup {
                    at: 0,
                    kind,
                    target,
                }]
            },
            &|r| r.falls_back.push(InputAddr::new(4)),
            &|r| r.code.fallbacks.push((0, 0, 0, 0)),
        ];
        for change in changes {
            assert!(kept(change).is_some());
        }
    }
}
