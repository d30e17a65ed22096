//! Writing the output: a list of pieces at ascending offsets, each from the input, from memory, or made on the way.
//!
//! Every place is known before the first byte is written, so large pieces are cut up and written by all
//! threads at once, each part at its own offset; what is between pieces is never written and reads as zeroes.
//!
//! The input may be larger than memory, and every page of it that is touched costs memory and time. So its
//! ranges go through a small buffer only where patches change them. What no patch touches is written straight
//! from the map, or, if the input's file is at hand, copied by the kernel (`copy_file_range`) without passing
//! through this process at all.
//!
//! The output is a temporary file beside the target, renamed when it is complete. Dropped before that, it vanishes.
//!
//! Where an output replaces one that nobody has but its maker, nearly all bytes are what they were. Then the old file
//! is read beside, which is cheap, and only blocks that differ are written ([`Onto::Before`]).

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::patches::Merged;
use super::symbols::SymbolPlan;
use super::{Edits, Onto};
use crate::addr::{InputOffset, OutputOffset};

/// Where the bytes of a piece come from.
pub(super) enum Source<'a> {
    /// A range of the input, with the patches that concern it.
    Input { from: InputOffset, len: u64 },
    /// Memory.
    Bytes(Cow<'a, [u8]>),
    /// So many bytes that the file has already.
    Kept(u64),
    /// A range of the input, with edits, and the length that it has then.
    Edited {
        from: InputOffset,
        old_len: u64,
        edits: &'a dyn Edits,
        len: u64,
    },
    /// The symbol table.
    Symbols(&'a SymbolPlan<'a>),
    /// The table of full section indexes beside it.
    SectionIndexes(&'a SymbolPlan<'a>),
}

/// All edits.
fn each(edits: &dyn Edits) -> impl Iterator<Item = (Range<u64>, &[u8])> {
    (0..).map_while(|i| edits.get(i))
}

/// How long `old_len` bytes are when they are edited. The error says where an edit begins that cannot be made.
pub(super) fn edited_len(old_len: u64, edits: &dyn Edits) -> Result<u64, u64> {
    let (mut at, mut len) = (0, 0);
    for (old, new) in each(edits) {
        if old.start < at || old.end < old.start || old.end > old_len {
            return Err(old.start);
        }
        len += old.start - at + new.len() as u64;
        at = old.end;
    }
    Ok(len + (old_len - at))
}

impl<'a> Source<'a> {
    /// A range of the input with edits that can be made.
    pub fn edited(from: InputOffset, old_len: u64, edits: &'a dyn Edits) -> Self {
        let len = edited_len(old_len, edits).unwrap_or(old_len);
        Source::Edited {
            from,
            old_len,
            edits,
            len,
        }
    }

    pub fn len(&self) -> u64 {
        match self {
            Source::Input { len, .. } => *len,
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Kept(len) => *len,
            Source::Edited { len, .. } => *len,
            Source::Symbols(plan) => plan.size(),
            Source::SectionIndexes(plan) => plan.indexes_size(),
        }
    }
}

/// The output file as a list of pieces.
#[derive(Default)]
pub(super) struct Output<'a> {
    pieces: Vec<(OutputOffset, Source<'a>)>,
    end: OutputOffset,
}

impl<'a> Output<'a> {
    /// Puts a piece at an offset, which is not before the end of the piece before it.
    pub fn put(&mut self, at: OutputOffset, source: Source<'a>) {
        assert!(
            at >= self.end,
            "pieces overlap: {at:#x} is before {:#x}",
            self.end
        );
        self.end = at + source.len();
        self.pieces.push((at, source));
    }
    /// Keeps the first `size` bytes of the file for [`Output::put_front`].
    pub fn reserve_front(&mut self, size: u64) {
        self.put(
            OutputOffset::default(),
            Source::Bytes(Cow::Owned(vec![0; size as usize])),
        );
    }
    /// The piece at the front of the file, of the size that was reserved for it.
    pub fn put_front(&mut self, source: Source<'a>) {
        assert!(
            self.pieces
                .first()
                .is_some_and(|(_, reserved)| reserved.len() == source.len())
        );
        if let Some(first) = self.pieces.first_mut() {
            first.1 = source;
        }
    }
    /// Puts a piece that is not loaded at the next aligned offset and returns that. The alignment is a courtesy to
    /// readers: one that is no power of two, or more than a page, counts for nothing.
    pub fn append(&mut self, align: u64, source: Source<'a>) -> OutputOffset {
        let honoured = align.is_power_of_two() && align <= 4096;
        let at = self.end.next_multiple_of(if honoured { align } else { 1 });
        self.put(at, source);
        at
    }
    /// Puts a piece where nothing was put, in front of the last one.
    pub fn put_between(&mut self, at: OutputOffset, source: Source<'a>) {
        assert!(at + source.len() <= self.end, "pieces overlap at {at:#x}");
        self.pieces.push((at, source));
    }
    /// Size of the file so far.
    pub fn end(&self) -> OutputOffset {
        self.end
    }

    /// Writes the file beside `path` and renames it, or changes what is there.
    pub fn write(
        &self,
        path: &Path,
        mode: u32,
        onto: Onto,
        input: &Input<'_>,
        patches: &Merged,
    ) -> io::Result<()> {
        if onto != Onto::Anew
            && let Ok(file) = File::options().read(true).write(true).open(path)
        {
            file.set_len(self.end.get())?;
            self.write_all(&file, onto == Onto::Before, input, patches)?;
            return set_mode(&file, mode);
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".postlink-")
            .tempfile_in(directory)?;
        let file = temporary.as_file();
        file.set_len(self.end.get())?;
        self.write_all(file, false, input, patches)?;
        set_mode(file, mode)?;
        temporary.persist(path).map_err(|e| e.error)?;
        Ok(())
    }

    /// All threads write all parts. `differing`: only what differs from what is in the file, which has its length.
    fn write_all(
        &self,
        file: &File,
        differing: bool,
        input: &Input<'_>,
        patches: &Merged,
    ) -> io::Result<()> {
        let mut jobs = self.jobs();
        if differing {
            jobs.extend(self.gaps());
        }
        let written = postlink_parallel::map_owned(jobs, |(at, job)| {
            let mut sink = Sink::new(file, at, differing);
            match job {
                Job::Input { from, len } => input.copy(from, len, patches, &mut sink)?,
                Job::Bytes(bytes) => sink.bytes(bytes)?,
                Job::Edited(part) => input.edit(&part, &mut sink)?,
                Job::Zeroes(len) => sink.zeroes(len)?,
                Job::Symbols(plan) => plan.for_each(|symbol, _| sink.bytes(&symbol.bytes()))?,
                Job::SectionIndexes(plan) => {
                    plan.for_each(|_, index| sink.bytes(&index.to_le_bytes()))?
                }
            }
            sink.flush()
        });
        written.into_iter().collect()
    }
}

/// A part of a piece, as one thread writes it.
enum Job<'a> {
    Input {
        from: InputOffset,
        len: u64,
    },
    Bytes(&'a [u8]),
    Edited(Part<'a>),
    /// Between pieces.
    Zeroes(u64),
    Symbols(&'a SymbolPlan<'a>),
    SectionIndexes(&'a SymbolPlan<'a>),
}

/// A part of a range of the input with edits.
struct Part<'a> {
    /// Where the range is.
    from: InputOffset,
    /// The old bytes of the part, in the range.
    old: Range<u64>,
    edits: &'a dyn Edits,
    /// Which of them are in the part.
    numbers: Range<usize>,
}

/// Cuts an edited range into parts of some [`PART`] new bytes, each with the offset of its first one.
fn parts<'a>(from: InputOffset, old_len: u64, edits: &'a dyn Edits) -> Vec<(u64, Part<'a>)> {
    let part = |old, numbers| Part {
        from,
        old,
        edits,
        numbers,
    };
    let mut out = Vec::new();
    // Of the part in hand: its first old byte, edit and new byte, and its length so far.
    let (mut start, mut first, mut new_at, mut len) = (0, 0, 0, 0);
    let (mut at, mut count) = (0, 0);
    for (old, new) in each(edits) {
        len += old.start - at + new.len() as u64;
        (at, count) = (old.end, count + 1);
        if len >= PART as u64 {
            out.push((new_at, part(start..at, first..count)));
            (start, first, new_at, len) = (at, count, new_at + len, 0);
        }
    }
    out.push((new_at, part(start..old_len, first..count)));
    out
}

impl Output<'_> {
    /// What is between pieces, where a file that was there before may have something.
    fn gaps(&self) -> Vec<(OutputOffset, Job<'_>)> {
        let pieces = self.pieces.iter();
        let mut ranges: Vec<(OutputOffset, u64)> = pieces.map(|(at, s)| (*at, s.len())).collect();
        ranges.sort_unstable();
        let mut gaps = Vec::new();
        let mut end = OutputOffset::default();
        for (at, len) in ranges.into_iter().chain([(self.end, 0)]) {
            if at > end {
                gaps.push((end, Job::Zeroes(at.get() - end.get())));
            }
            end = end.max(at + len);
        }
        gaps
    }

    /// All pieces, large ones in parts, with their offsets.
    fn jobs(&self) -> Vec<(OutputOffset, Job<'_>)> {
        let mut jobs = Vec::new();
        for (start, source) in &self.pieces {
            match source {
                Source::Input { from, len } => {
                    for part in (0..*len).step_by(PART) {
                        let len = (len - part).min(PART as u64);
                        let from = *from + part;
                        jobs.push((*start + part, Job::Input { from, len }));
                    }
                }
                Source::Kept(_) => {}
                Source::Bytes(bytes) => {
                    for (part, bytes) in (0..).step_by(PART).zip(bytes.chunks(PART)) {
                        jobs.push((*start + part, Job::Bytes(bytes)));
                    }
                }
                Source::Edited {
                    from,
                    old_len,
                    edits,
                    ..
                } => {
                    let parts = parts(*from, *old_len, *edits).into_iter();
                    jobs.extend(parts.map(|(at, part)| (*start + at, Job::Edited(part))));
                }
                Source::Symbols(plan) => jobs.push((*start, Job::Symbols(plan))),
                Source::SectionIndexes(plan) => jobs.push((*start, Job::SectionIndexes(plan))),
            }
        }
        jobs
    }
}

/// Bytes that a thread writes at a time.
const PART: usize = 8 << 20;

const BUFFER: usize = 256 << 10;

/// Bytes that are written if one of them differs: pages of most file systems.
const BLOCK: usize = 4 << 10;

/// A place in a file, from which on it is written.
struct Sink<'a> {
    file: &'a File,
    /// Where the buffer's first byte goes.
    at: OutputOffset,
    buffer: Vec<u8>,
    /// What is in the file there, if only what differs is written.
    before: Option<Vec<u8>>,
}

impl<'a> Sink<'a> {
    fn new(file: &'a File, at: OutputOffset, differing: bool) -> Sink<'a> {
        Sink {
            file,
            at,
            buffer: Vec::new(),
            before: differing.then(Vec::new),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > BUFFER - self.buffer.len() {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
            self.put(bytes)?;
            self.at += bytes.len() as u64;
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn zeroes(&mut self, mut len: u64) -> io::Result<()> {
        const ZEROES: [u8; BLOCK] = [0; BLOCK];
        while len > 0 {
            let part = len.min(BLOCK as u64);
            self.bytes(&ZEROES[..part as usize])?;
            len -= part;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.put(&buffer)?;
        self.at += buffer.len() as u64;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    /// Writes bytes at the place, or those of their blocks that differ.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(before) = &mut self.before else {
            return write_at(self.file, bytes, self.at);
        };
        for (from, part) in (0..).step_by(BUFFER).zip(bytes.chunks(BUFFER)) {
            before.resize(part.len(), 0);
            read_at(self.file, before, self.at.get() + from)?;
            let blocks = part.chunks(BLOCK).zip(before.chunks(BLOCK));
            for (block, (new, old)) in (from..).step_by(BLOCK).zip(blocks) {
                if new != old {
                    write_at(self.file, new, self.at + block)?;
                }
            }
        }
        Ok(())
    }
}

/// Has the system begin to write a complete file to its disk, and waits for nothing. Some file systems (ext4, btrfs) do
/// that when a file is renamed to one that is there, so that a crash leaves one of the two, and let who renames it wait
/// until all of it is on its way. Nothing depends on it.
pub fn begin_to_write_out(path: &Path) {
    #[cfg(target_os = "linux")]
    if let Ok(file) = File::open(path) {
        // Where no thread can be had, it is done when the file is renamed.
        let _ = std::thread::Builder::new().spawn(move || {
            use std::os::fd::AsRawFd;
            // SAFETY: the file is open, and nothing else is told. It is sound for any file.
            unsafe {
                libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
            }
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = path;
}

#[cfg(unix)]
pub(super) fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(not(unix))]
pub(super) fn read_at(mut file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    use std::io::{Read, Seek};
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    file.seek(io::SeekFrom::Start(at))?;
    file.read_exact(into)
}

#[cfg(unix)]
pub(super) fn write_at(file: &File, bytes: &[u8], at: OutputOffset) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at.get())
}

/// A file has one position here, so one thread writes at a time.
#[cfg(not(unix))]
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(not(unix))]
pub(super) fn write_at(mut file: &File, bytes: &[u8], at: OutputOffset) -> io::Result<()> {
    use std::io::{Seek, Write};
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    file.seek(io::SeekFrom::Start(at.get()))?;
    file.write_all(bytes)
}

/// The input: its bytes, and if the caller has it open, its file.
pub(super) struct Input<'a> {
    pub data: &'a [u8],
    pub file: Option<&'a File>,
}

impl Input<'_> {
    /// Copies a range, changed by the patches. The range is in the input.
    fn copy(
        &self,
        from: InputOffset,
        len: u64,
        patches: &Merged,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let end = from + len;
        let mut at = from;
        let mut window = Vec::new();
        while at < end {
            // A long stretch without patches goes over whole; the rest goes through a window.
            let clean = patches.next(at).map_or(end, |patch| patch.min(end)) - at;
            if clean >= LONG {
                self.copy_clean(at, clean, sink)?;
                at += clean;
                continue;
            }
            window.resize((end - at).min(WINDOW) as usize, 0);
            self.read(at, &mut window)?;
            patches.apply(at, &mut window);
            sink.bytes(&window)?;
            at += window.len() as u64;
        }
        Ok(())
    }

    /// Copies a part of an edited range.
    fn edit(&self, part: &Part<'_>, sink: &mut Sink<'_>) -> io::Result<()> {
        let mut old_bytes = OldBytes {
            input: self,
            end: part.from + part.old.end,
            window: Vec::new(),
            at: part.from + part.old.start,
        };
        let mut at = part.old.start;
        let edits = part.numbers.clone().map_while(|i| part.edits.get(i));
        let end = (part.old.end..part.old.end, &[][..]);
        for (old, new) in edits.chain([end]) {
            let (from, len) = (part.from + at, old.start - at);
            if len >= LONG {
                self.copy_clean(from, len, sink)?;
            } else {
                old_bytes.copy(from, len, sink)?;
            }
            sink.bytes(new)?;
            at = old.end;
        }
        Ok(())
    }

    fn read(&self, from: InputOffset, into: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        if let Some(file) = self.file {
            return std::os::unix::fs::FileExt::read_exact_at(file, into, from.get());
        }
        into.copy_from_slice(&self.data[from.get() as usize..][..into.len()]);
        Ok(())
    }

    /// Copies a range without patches.
    fn copy_clean(&self, from: InputOffset, len: u64, sink: &mut Sink<'_>) -> io::Result<()> {
        sink.flush()?;
        let copied = self.copy_in_kernel(from, len, sink)?;
        let (mut at, end) = (from + copied, from + len);
        if self.file.is_none() {
            return sink.bytes(&self.data[at.get() as usize..end.get() as usize]);
        }
        let mut window = Vec::new();
        while at < end {
            window.resize((end - at).min(WINDOW) as usize, 0);
            self.read(at, &mut window)?;
            sink.bytes(&window)?;
            at += window.len() as u64;
        }
        Ok(())
    }

    /// Has the kernel copy from file to file, and gives how much it has: some file systems will not.
    #[cfg(target_os = "linux")]
    fn copy_in_kernel(&self, from: InputOffset, len: u64, sink: &mut Sink<'_>) -> io::Result<u64> {
        use rustix::io::Errno;
        let Some(file) = self.file.filter(|_| sink.before.is_none()) else {
            return Ok(0);
        };
        // The kernel moves both on.
        let (mut at, end) = (from.get(), from.get() + len);
        while at < end {
            let left = (end - at) as usize;
            let mut to = sink.at.get();
            let copied =
                rustix::fs::copy_file_range(file, Some(&mut at), sink.file, Some(&mut to), left);
            sink.at = OutputOffset::new(to);
            match copied {
                Ok(0) => {
                    let what = format!(
                        "the input ends at {at:#x} where {:#x} bytes were read before: it was changed",
                        self.data.len()
                    );
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(
                    Errno::XDEV
                    | Errno::INVAL
                    | Errno::NOSYS
                    | Errno::OPNOTSUPP
                    | Errno::PERM
                    | Errno::BADF
                    | Errno::TXTBSY
                    | Errno::IO,
                ) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(at - from.get())
    }

    #[cfg(not(target_os = "linux"))]
    fn copy_in_kernel(&self, _: InputOffset, _: u64, _: &mut Sink<'_>) -> io::Result<u64> {
        Ok(0)
    }
}

/// Short stretches of the input, one after another: millions of them, with edits in between. Pages of the map that were
/// touched for them would all stay in memory, so some are read from the file at a time.
struct OldBytes<'a> {
    input: &'a Input<'a>,
    /// Behind the last stretch.
    end: InputOffset,
    /// Bytes from `at` on.
    window: Vec<u8>,
    at: InputOffset,
}

impl OldBytes<'_> {
    fn copy(&mut self, from: InputOffset, len: u64, sink: &mut Sink<'_>) -> io::Result<()> {
        let (mut from, end) = (from, from + len);
        if self.input.file.is_none() {
            return sink.bytes(&self.input.data[from.get() as usize..end.get() as usize]);
        }
        while from < end {
            let known = from.get().checked_sub(self.at.get());
            let known = known.and_then(|skip| self.window.get(skip as usize..));
            let known = known.filter(|known| !known.is_empty());
            let Some(known) = known else {
                self.window
                    .resize((self.end - from).min(WINDOW) as usize, 0);
                self.input.read(from, &mut self.window)?;
                self.at = from;
                continue;
            };
            let part = known.get(..(end - from) as usize).unwrap_or(known);
            sink.bytes(part)?;
            from += part.len() as u64;
        }
        Ok(())
    }
}

/// Bytes that are patched at a time.
const WINDOW: u64 = 64 << 10;

/// Bytes without a patch that are worth a call of their own.
const LONG: u64 = 256 << 10;

/// Gives a file its permissions, where files have such.
#[cfg(unix)]
fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777))
}

#[cfg(not(unix))]
fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::patches::Patches;

    /// A file of pieces at offsets, and a part of an input.
    fn write(pieces: &[(u64, Vec<u8>)], input: &[u8], path: &Path, onto: Onto) -> Vec<u8> {
        let mut output = Output::default();
        for (at, bytes) in pieces {
            let source = Source::Bytes(Cow::Borrowed(bytes));
            output.put(OutputOffset::new(*at), source);
        }
        let from = InputOffset::new(0);
        let len = input.len() as u64;
        output.append(1, Source::Input { from, len });
        let file = None;
        let input = Input { data: input, file };
        let patches = Patches::default().merge(|_| None).expect("there is none");
        let done = output.write(path, 0o640, onto, &input, &patches);
        done.expect("it can be written");
        std::fs::read(path).expect("it was written")
    }

    #[derive(Debug)]
    struct List(Vec<(Range<u64>, Vec<u8>)>);

    impl Edits for List {
        fn get(&self, i: usize) -> Option<(Range<u64>, &[u8])> {
            self.0.get(i).map(|(old, new)| (old.clone(), &new[..]))
        }
    }

    #[test]
    fn an_edited_section_is_what_edits_of_all_of_it_make() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, original) = (folder.path().join("edited"), folder.path().join("input"));
        let data: Vec<u8> = (0..3 * PART + 12_345)
            .map(|i| (i * 7 + i / 251) as u8)
            .collect();
        std::fs::write(&original, &data).expect("the folder is ours");
        let file = File::open(&original).expect("it was written");
        let (from, old_len) = (1000, data.len() as u64 - 5000);
        let at = |start: u64, len: u64, new: usize| (start..start + len, vec![0xee; new]);
        // Two at one place, some in the first part, none for long, one longer than a part, one at the end.
        let mut list = vec![
            at(0, 4, 4),
            at(4, 0, 3),
            at(4, 2, 0),
            at(600_000, 1, PART + 9),
        ];
        list.extend((0..90_000).map(|i| at(9_000_000 + 100 * i, 3, 4)));
        list.push(at(old_len, 0, 77));
        let edits = List(list);
        let mut expected = Vec::new();
        let old = &data[from as usize..(from + old_len) as usize];
        let mut done = 0;
        for (range, new) in &edits.0 {
            expected.extend_from_slice(&old[done..range.start as usize]);
            expected.extend_from_slice(new);
            done = range.end as usize;
        }
        expected.extend_from_slice(&old[done..]);
        for file in [None, Some(&file)] {
            for onto in [Onto::Anew, Onto::Before, Onto::Empty] {
                if onto == Onto::Empty {
                    std::fs::write(&path, []).expect("the folder is ours");
                }
                let mut output = Output::default();
                let source = Source::edited(InputOffset::new(from), old_len, &edits);
                assert_eq!(source.len(), expected.len() as u64);
                output.append(1, source);
                let input = Input { data: &data, file };
                let patches = Patches::default().merge(|_| None).expect("there is none");
                let done = output.write(&path, 0o640, onto, &input, &patches);
                done.expect("it can be written");
                let written = std::fs::read(&path).expect("it was written");
                assert!(written == expected, "{} {onto:?}", file.is_some());
            }
        }
        for wrong in [
            vec![at(5, 2, 0), at(6, 1, 0)],
            vec![at(old_len, 1, 0)],
            vec![at(9, 1, 0), at(3, 1, 1)],
        ] {
            let place = wrong.last().map_or(0, |(old, _)| old.start);
            assert_eq!(edited_len(old_len, &List(wrong)), Err(place));
        }
    }

    #[test]
    fn a_file_that_is_written_over_is_what_it_would_be_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let (over, anew) = (folder.path().join("over"), folder.path().join("anew"));
        let bytes = |seed: usize, len: usize| -> Vec<u8> {
            (0..len).map(|i| (i * 31 + seed + i / 256) as u8).collect()
        };
        let mut changed = bytes(2, 3 * BUFFER + 77);
        changed[BLOCK] ^= 1;
        changed[2 * BUFFER + 5] ^= 1;
        let states = [
            vec![(0, bytes(1, 5000)), (20_000, bytes(2, 3 * BUFFER + 77))],
            // The same length, a gap at another place, and few bytes that differ.
            vec![(0, bytes(1, 4000)), (20_000, changed)],
            vec![(0, bytes(1, 64)), (1 << 21, bytes(4, 10))],
            // Shorter.
            vec![(0, bytes(5, 100))],
        ];
        for (round, pieces) in states.iter().enumerate() {
            let input = bytes(round, LONG as usize * 2 + 13);
            let expected = write(pieces, &input, &anew, Onto::Anew);
            assert!(
                write(pieces, &input, &over, Onto::Before) == expected,
                "{round}"
            );
        }
    }
}
