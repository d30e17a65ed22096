//! Headers, segments, sections that made way, dynamic section, relocations, symbols: read on both sides and compared
//! by meaning.
//!
//! The old image keeps its addresses. What may differ: a first segment that reaches further down (a program
//! at a fixed address whose program headers needed space), a segment of code that continues in the file and in
//! memory where nothing was, the zeros after the last segment of an instrumented program, new read-only or
//! executable segments, small read-only sections moved into one of them, and addresses of moved functions.

use crate::addr::{InputAddr, OutputAddr};
use crate::arch::Arch;
use crate::context::{Context, Findings};
use crate::files::bytes::{Reader, u64_in};
use crate::files::claim::Range;
use crate::files::elf::{self, Elf, Section, Segment, Symbol};
use crate::proof::data::first_difference;
use crate::report::{Check, Failure};

/// The smallest pages of the loader.
const PAGE: u64 = 4096;

/// Pages of the loader; segments may not share one. On AArch64 systems with pages of 64 KiB can load what is
/// aligned for them.
fn page(input: &Elf<'_>) -> u64 {
    let aligned = input.loads().iter().map(|s| s.align).min().unwrap_or(PAGE);
    if input.machine == 183 {
        aligned.clamp(PAGE, 1 << 16)
    } else {
        PAGE
    }
}

/// How the output's image is made of the input's.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Sections that moved: old range, new address.
    pub moved: Vec<(Range, u64)>,
    /// New segments.
    pub added: Vec<Segment>,
    /// Ranges of the old image that are compared by meaning, not by bytes; sorted.
    pub by_meaning: Vec<Range>,
    /// Old places of moved sections and of headers.
    pub abandoned: Vec<Range>,
}

impl Layout {
    /// Where the data at an old address is now.
    pub(crate) fn place(&self, addr: u64) -> u64 {
        let moved = self
            .moved
            .iter()
            .find(|(r, _)| r.contains(addr) || (r.len() == 0 && r.start == addr));
        moved.map_or(addr, |(r, new)| new + (addr - r.start))
    }
}

fn failure(text: impl Into<String>) -> Failure {
    Failure::new(Check::Headers, text)
}

/// Whether the file asks for guarded pages (`GNU_PROPERTY_AARCH64_FEATURE_1_BTI`): indirect branches end at
/// landing pads only.
pub(crate) fn is_guarded(elf: &Elf<'_>) -> bool {
    // In a note of owner GNU and type 5: properties of (type, size) padded to eight bytes.
    let mut r = Reader::new(elf.note(b"GNU", 5).unwrap_or(b""));
    while let (Some(kind), Some(size)) = (r.u32(), r.u32()) {
        let Some(data) = r.take(size as usize) else {
            return false;
        };
        if kind == 0xc000_0000 && elf.machine == 183 {
            return crate::files::bytes::u32_in(data, 0).is_some_and(|bits| bits & 1 != 0);
        }
        r.take((size as usize).wrapping_neg() & 7);
    }
    false
}

/// File bytes of a segment.
fn contents<'d>(elf: &Elf<'d>, s: &Segment) -> Option<&'d [u8]> {
    let start = usize::try_from(s.offset).ok()?;
    elf.data
        .get(start..start.checked_add(usize::try_from(s.file_size).ok()?)?)
}

/// Compares headers and segments, and finds out which sections moved. An instrumented one may have a writable
/// segment without bytes in the file.
pub(crate) fn layout_of(
    input: &Elf<'_>,
    output: &Elf<'_>,
    counts: bool,
    found: &mut Vec<Failure>,
) -> Layout {
    let mut layout = Layout::default();
    if (input.etype, input.machine, input.eflags, input.ident)
        != (output.etype, output.machine, output.eflags, output.ident)
    {
        found.push(failure(
            "the ELF header's type, machine, flags or identification changed",
        ));
    }
    segments(input, output, counts, &mut layout, found);
    new_segments(output, page(input), counts, &layout, found);
    sections(input, output, &mut layout, found);

    let table = Range {
        start: 0,
        end: output.phnum * 56,
    };
    if let Some(load) = output
        .loads()
        .iter()
        .find(|l| l.offset <= output.phoff && output.phoff + table.end <= l.offset + l.file_size)
    {
        let start = load.addr + (output.phoff - load.offset);
        layout.by_meaning.push(Range {
            start,
            end: start.saturating_add(table.end),
        });
    } else {
        found.push(failure(format!(
            "the program header table at {:#x} is not loaded",
            output.phoff
        )));
    }
    // The old header and table: the program may read either copy, and both files' headers describe themselves.
    for elf in [input, output] {
        if let Some(load) = elf.loads().iter().find(|l| l.offset == 0) {
            let header = Range {
                start: load.addr,
                end: load.addr.saturating_add(64),
            };
            if elf.bytes(header.start, 64) == elf.data.get(..64) {
                layout.by_meaning.push(header);
            }
        }
    }
    if let Some(load) = input.loads().iter().find(|l| {
        l.offset <= input.phoff && input.phoff + input.phnum * 56 <= l.offset + l.file_size
    }) {
        let start = load.addr + (input.phoff - load.offset);
        layout.by_meaning.push(Range {
            start,
            end: start.saturating_add(input.phnum * 56),
        });
    }
    for &(range, _) in &layout.moved {
        layout.by_meaning.push(range);
        // Bytes that are still the same may be read there.
        if input.bytes(range.start, range.len()) != output.bytes(range.start, range.len()) {
            layout.abandoned.push(range);
        }
    }
    // The grown table may cover only what made way for it.
    if let Some(&grown) = layout.by_meaning.first() {
        let mut at = grown.start;
        let covered = |at: u64| {
            layout
                .by_meaning
                .iter()
                .skip(1)
                .find(|r| r.contains(at))
                .map(|r| r.end)
        };
        while at < grown.end {
            match covered(at) {
                Some(end) => at = end,
                None if input.bytes(at, 1).is_none()
                    || input.bytes(at, 1) == Some(&[0])
                    || input.bytes(at, 1) == output.bytes(at, 1) =>
                {
                    at += 1
                }
                None => {
                    found.push(failure(format!(
                        "the program header table overwrites {at:#x}, which belongs to something that stays"
                    )));
                    break;
                }
            }
        }
    }
    layout.by_meaning.sort_unstable();
    layout
}

/// What a loaded segment of the output has after the end of the input's, if that may be: code where the file
/// and the memory had nothing, or zeros after all else in an instrumented program. `down` bytes were put in
/// front.
fn grown(
    input: &Elf<'_>,
    counts: bool,
    (s, o): (&Segment, &Segment),
    down: u64,
) -> Option<Segment> {
    let by = o.end().checked_sub(s.end()).filter(|by| *by > 0)?;
    let in_file = o.file_size.checked_sub(s.file_size.checked_add(down)?)?;
    let tail = Segment {
        addr: s.end(),
        offset: o.offset.checked_add(o.file_size)?.checked_sub(in_file)?,
        file_size: in_file,
        mem_size: by,
        ..*o
    };
    let code = s.is_exec() && !s.is_writable() && s.file_size == s.mem_size && in_file == by;
    let next = input.loads().iter().map(|l| l.addr).find(|a| *a >= s.end());
    let until = next.map_or(u64::MAX, |a| a - a % page(input));
    if code && o.end() <= until && input.extent().1 > s.end() {
        return Some(tail);
    }
    // Counters begin with a page.
    let addr = s.end().checked_next_multiple_of(page(input))?;
    let zeros = counts && s.is_writable() && !s.is_exec() && in_file == 0;
    (zeros && s.end() == input.extent().1 && addr < o.end()).then(|| Segment {
        addr,
        mem_size: o.end() - addr,
        ..tail
    })
}

/// Whether bytes of two files are the same, but for their build-ids, which [`identity`](super::identity) judges.
fn same_but_build_id((input, a): (&Elf<'_>, &[u8]), (output, b): (&Elf<'_>, &[u8])) -> bool {
    if a == b {
        return true;
    }
    let id = |elf: &Elf<'_>| elf.note(b"GNU", elf::NT_GNU_BUILD_ID).map(<[u8]>::to_vec);
    let (Some(old), Some(new)) = (id(input), id(output)) else {
        return false;
    };
    let len = old.len();
    if a.len() != b.len() || len == 0 || len != new.len() {
        return false;
    }
    let differ = |at: usize| {
        let (end, is) = (at + len, |bytes: &[u8], id: &[u8]| {
            bytes.get(at..at + len) == Some(id)
        });
        is(a, &old) && is(b, &new) && a.get(..at) == b.get(..at) && a.get(end..) == b.get(end..)
    };
    (0..=a.len().saturating_sub(len)).any(differ)
}

/// By how much the segment that loads the program headers is longer, if it ended with them in the input and
/// does so in the output: with zeros of the file up to the page with which the next segment begins, and
/// nothing that can be written to or run.
fn longer_table(input: &Elf<'_>, output: &Elf<'_>, (s, o): (&Segment, &Segment)) -> Option<u64> {
    let end = |elf: &Elf<'_>| elf.phoff.checked_add(elf.phnum.checked_mul(56)?);
    let file_end = |s: &Segment| s.offset.checked_add(s.file_size);
    let by = o.file_size.checked_sub(s.file_size).filter(|by| *by > 0)?;
    let ends_with_it = |elf: &Elf<'_>, s: &Segment| {
        s.offset <= elf.phoff && s.file_size == s.mem_size && file_end(s) == end(elf)
    };
    let free = |l: &Segment| l.addr < s.end() || l.addr - l.addr % page(input) >= o.end();
    let tail = input
        .data
        .get(usize::try_from(file_end(s)?).ok()?..usize::try_from(file_end(o)?).ok()?)?;
    (input.phoff == output.phoff
        && s.offset == o.offset
        && !s.is_exec()
        && !s.is_writable()
        && ends_with_it(input, s)
        && ends_with_it(output, o)
        && input.loads().iter().all(free)
        && tail.iter().all(|b| *b == 0))
    .then_some(by)
}

fn segments(
    input: &Elf<'_>,
    output: &Elf<'_>,
    counts: bool,
    layout: &mut Layout,
    found: &mut Vec<Failure>,
) {
    let limit = input.extent().1;
    let mut outs = output.segments.iter().peekable();
    let mut first_load = true;
    for s in &input.segments {
        // New segments are anywhere in the table.
        // (An empty one of the input may be where the next would.)
        let old = |o: &elf::Segment| (o.kind, o.addr, o.mem_size) == (s.kind, s.addr, s.mem_size);
        while let Some(o) = outs.next_if(|o| o.kind == elf::PT_LOAD && o.addr >= limit && !old(o)) {
            layout.added.push(*o);
        }
        let Some(o) = outs.next() else {
            found.push(failure(format!(
                "the segment of type {:#x} at {:#x} is missing",
                s.kind, s.addr
            )));
            return;
        };
        let down = s.addr.wrapping_sub(o.addr);
        let extended = first_load
            && s.kind == elf::PT_LOAD
            && down > 0
            && down <= 16 * PAGE
            && down.is_multiple_of(PAGE);
        let tail = match s.kind {
            elf::PT_LOAD if extended => grown(input, counts, (s, o), down),
            elf::PT_LOAD if down == 0 => grown(input, counts, (s, o), 0),
            _ => None,
        };
        layout.added.extend(tail);
        let table = match s.kind {
            elf::PT_LOAD if down == 0 && tail.is_none() => longer_table(input, output, (s, o)),
            _ => None,
        };
        let more = tail.map_or((0, 0), |t| (t.file_size, o.end() - s.end()));
        let same = match s.kind {
            elf::PT_LOAD if extended => {
                (o.kind, o.flags, o.align) == (s.kind, s.flags, s.align)
                    && o.end() == s.end() + more.1
                    && o.file_size == s.file_size.saturating_add(down + more.0)
            }
            elf::PT_LOAD if tail.is_some() => {
                (o.kind, o.flags, o.addr, o.align) == (s.kind, s.flags, s.addr, s.align)
                    && o.file_size == s.file_size + more.0
            }
            elf::PT_LOAD if table.is_some() => {
                (o.kind, o.flags, o.addr, o.align) == (s.kind, s.flags, s.addr, s.align)
            }
            elf::PT_PHDR => {
                o.kind == s.kind
                    && o.flags == s.flags
                    && o.offset == output.phoff
                    && o.file_size == output.phnum * 56
            }
            elf::PT_INTERP | elf::PT_NOTE | elf::PT_GNU_PROPERTY => {
                (o.kind, o.flags, o.file_size, o.mem_size, o.align)
                    == (s.kind, s.flags, s.file_size, s.mem_size, s.align)
                    && contents(input, s)
                        .zip(contents(output, o))
                        .is_some_and(|(a, b)| same_but_build_id((input, a), (output, b)))
            }
            elf::PT_GNU_EH_FRAME => o.kind == s.kind && o.flags == s.flags,
            _ => {
                (o.kind, o.flags, o.addr, o.file_size, o.mem_size, o.align)
                    == (s.kind, s.flags, s.addr, s.file_size, s.mem_size, s.align)
            }
        };
        if !same {
            found.push(
                failure(format!(
                    "the segment of type {:#x} at {:#x} changed its permissions, place, size or contents",
                    s.kind, s.addr
                ))
                .at(InputAddr::new(s.addr), OutputAddr::new(o.addr)),
            );
        }
        // What a header says of the file and of memory must be the same bytes.
        let differs = || {
            let load = output.load_at(o.addr)?;
            // The loader protects memory, and reads no size in the file: that may be too large.
            let len = match o.kind {
                elf::PT_GNU_RELRO => load.file_end().saturating_sub(o.addr).min(o.file_size),
                _ => o.file_size,
            };
            let in_file = Segment {
                file_size: len,
                ..*o
            };
            Some(output.bytes(o.addr, len) != contents(output, &in_file))
        };
        if o.kind != elf::PT_LOAD
            && o.file_size > 0
            && o.kind != elf::PT_TLS
            && differs() == Some(true)
        {
            found.push(failure(format!(
                "the segment of type {:#x} names different bytes in the file and at {:#x}",
                o.kind, o.addr
            )));
        }
        if o.kind == elf::PT_PHDR && output.bytes(o.addr, o.file_size).is_none() {
            found.push(failure(format!("PT_PHDR at {:#x} is not loaded", o.addr)));
        }
        first_load &= s.kind != elf::PT_LOAD;
    }
    for o in outs {
        if o.kind == elf::PT_LOAD && o.addr >= limit {
            layout.added.push(*o);
        } else if o.kind != elf::PT_GNU_EH_FRAME || input.segment(elf::PT_GNU_EH_FRAME).is_some() {
            found.push(failure(format!(
                "there is a new segment of type {:#x} at {:#x}",
                o.kind, o.addr
            )));
        }
    }
}

fn new_segments(
    output: &Elf<'_>,
    page: u64,
    counts: bool,
    layout: &Layout,
    found: &mut Vec<Failure>,
) {
    for s in &layout.added {
        if s.is_writable() && !(counts && s.file_size == 0 && !s.is_exec()) {
            found.push(failure(format!(
                "the new segment at {:#x} is writable",
                s.addr
            )));
        }
    }
    for s in output.loads() {
        if s.file_size > 0 && s.offset % page != s.addr % page
            || s.align > 1 && (!s.align.is_power_of_two() || s.offset % s.align != s.addr % s.align)
        {
            found.push(failure(format!(
                "the segment at {:#x} cannot be mapped from the file offset {:#x}",
                s.addr, s.offset
            )));
        }
    }
    for pair in output.loads().windows(2) {
        if let [a, b] = pair
            && layout.added.contains(b)
            && a.end()
                .checked_next_multiple_of(page)
                .is_none_or(|end| end > b.addr - b.addr % page)
        {
            found.push(failure(format!(
                "the segments at {:#x} and {:#x} share a page",
                a.addr, b.addr
            )));
        }
    }
}

fn sections(input: &Elf<'_>, output: &Elf<'_>, layout: &mut Layout, found: &mut Vec<Failure>) {
    for s in input
        .sections
        .iter()
        .filter(|s| s.is_alloc() && s.kind != elf::SHT_NOBITS && s.size > 0)
    {
        let matches = |o: &&Section<'_>| o.name == s.name && o.is_alloc();
        // The unwind tables are replaced; the old ones stay under another name.
        if matches!(s.name, b".eh_frame" | b".eh_frame_hdr") {
            continue;
        }
        let Some(o) = output
            .sections
            .iter()
            .find(|o| matches(o) && o.addr == s.addr)
            .or_else(|| output.sections.iter().find(matches))
        else {
            if !output.sections.is_empty() {
                found.push(failure(format!(
                    "the section {} is missing",
                    String::from_utf8_lossy(s.name)
                )));
            }
            continue;
        };
        if o.addr == s.addr {
            if o.size != s.size || o.flags != s.flags {
                found.push(failure(format!(
                    "the section {} changed its size or flags",
                    String::from_utf8_lossy(s.name)
                )));
            }
            continue;
        }
        let in_new = layout
            .added
            .iter()
            .any(|l| l.addr <= o.addr && o.end() <= l.file_end());
        let read_only = input.load_at(s.addr).is_some_and(|l| !l.is_writable());
        // Contents of the dynamic symbol table are compared by meaning.
        let equal = s.kind == elf::SHT_DYNSYM
            || output
                .bytes(o.addr, s.size)
                .zip(input.bytes(s.addr, s.size))
                .is_some_and(|(new, old)| same_but_build_id((input, old), (output, new)));
        if !in_new || !read_only || s.flags & elf::SHF_EXECINSTR != 0 || o.size != s.size || !equal
        {
            found.push(
                failure(format!(
                    "the section {} moved, but not unchanged to a new segment",
                    String::from_utf8_lossy(s.name)
                ))
                .at(InputAddr::new(s.addr), OutputAddr::new(o.addr)),
            );
            continue;
        }
        layout.moved.push((
            Range {
                start: s.addr,
                end: s.end(),
            },
            o.addr,
        ));
    }
}

/// Dynamic tags whose values are addresses of data.
fn is_address(tag: u64) -> bool {
    matches!(tag, 3 | 4 | 5 | 6 | 7 | 17 | 23 | 25 | 26 | 32 | 36)
        || (0x6fff_fe00..=0x6fff_feff).contains(&tag)
        || matches!(tag, 0x6fff_fff0 | 0x6fff_fffc | 0x6fff_fffe)
}

/// Entry point and dynamic section.
pub(crate) fn dynamic(cx: &Context<'_>, layout: &Layout, found: &mut Findings) {
    let code = |found: &mut Findings, old: u64, new: u64, what: &str| {
        found.pointers += u64::from(old != new);
        if !found.hook(cx, InputAddr::new(old), OutputAddr::new(new))
            && !found.pointer(cx, InputAddr::new(old), OutputAddr::new(new), false)
        {
            let failure = Failure::new(Check::Dynamic, format!("{what} goes to another place"))
                .at(InputAddr::new(old), OutputAddr::new(new))
                .values(old, new);
            found.charge(cx, InputAddr::new(old), OutputAddr::new(new), failure);
        }
    };
    code(found, cx.input.entry, cx.output.entry, "the entry point");
    // A new initialiser after the last entry, where there was none.
    let behind = match cx.output.dynamic.get(cx.input.dynamic.len()..) {
        Some([last]) => {
            last.tag == 12 && found.hook(cx, InputAddr::new(0), OutputAddr::new(last.value))
        }
        _ => false,
    };
    if cx.input.dynamic.len() != cx.output.dynamic.len() && !behind {
        found.file.push(Failure::new(
            Check::Dynamic,
            "the dynamic section has another number of entries",
        ));
    }
    for (a, b) in cx.input.dynamic.iter().zip(&cx.output.dynamic) {
        // A loader does without the number of relative relocations, and without the size of a symbol.
        let spare = matches!(a.tag, 11 | 0x6fff_fff9) && b.tag == 12;
        if spare && found.hook(cx, InputAddr::new(0), OutputAddr::new(b.value)) {
            continue;
        }
        if a.tag != b.tag {
            found
                .file
                .push(Failure::new(Check::Dynamic, "a dynamic tag changed").values(a.tag, b.tag));
        } else if matches!(a.tag, 12 | 13) {
            code(
                found,
                a.value,
                b.value,
                if a.tag == 12 { "DT_INIT" } else { "DT_FINI" },
            );
        } else {
            let expected = if is_address(a.tag) {
                layout.place(a.value)
            } else {
                a.value
            };
            if b.value != expected {
                found.file.push(
                    Failure::new(
                        Check::Dynamic,
                        format!("the dynamic tag {:#x} has another value", a.tag),
                    )
                    .values(a.value, b.value),
                );
            }
        }
    }
}

/// Tables of relocations with addends, by their old ranges.
pub(crate) fn rela_tables(elf: &Elf<'_>) -> Vec<Range> {
    let value = |tag| elf.dynamic_value(tag);
    let mut tables: Vec<Range> = [(7, 8), (23, 2)]
        .into_iter()
        .filter_map(|(at, size)| {
            Some(Range {
                start: value(at)?,
                end: value(at)?.checked_add(value(size)?)?,
            })
        })
        .chain(
            elf.sections
                .iter()
                .filter(|s| s.is_alloc() && s.kind == elf::SHT_RELA)
                .map(|s| Range {
                    start: s.addr,
                    end: s.end(),
                }),
        )
        .filter(|r| r.start < r.end)
        .collect();
    tables.sort_unstable();
    // Sections are inside what the dynamic section names.
    let mut merged: Vec<Range> = Vec::new();
    for t in tables {
        match merged.last_mut() {
            Some(last) if t.start < last.end => last.end = last.end.max(t.end),
            _ => merged.push(t),
        }
    }
    merged
}

/// Compares relocations. Returns the places that the loader relocates relative to the load address, sorted.
pub(crate) fn relocations<A: Arch>(
    cx: &Context<'_>,
    layout: &mut Layout,
    found: &mut Findings,
) -> Vec<u64> {
    let mut places = Vec::new();
    for table in rela_tables(cx.input) {
        layout.by_meaning.push(table);
        let (Some(old), Some(new)) = (
            cx.input.bytes(table.start, table.len()),
            cx.output.bytes(layout.place(table.start), table.len()),
        ) else {
            found.file.push(Failure::new(
                Check::Relocations,
                format!(
                    "the relocations at {:#x} are not loaded from the file",
                    table.start
                ),
            ));
            continue;
        };
        for (i, (a, b)) in old.chunks(24).zip(new.chunks(24)).enumerate() {
            let fields = |e: &[u8]| Some((u64_in(e, 0)?, u64_in(e, 8)?, u64_in(e, 16)?));
            let at = table.start + 24 * i as u64;
            let (Some((place, info, addend)), Some((new_place, new_info, new_addend))) =
                (fields(a), fields(b))
            else {
                if a != b {
                    found.file.push(
                        Failure::new(
                            Check::Relocations,
                            format!("the relocations at {at:#x} changed"),
                        )
                        .bytes(a, b),
                    );
                }
                continue;
            };
            if (place, info) != (new_place, new_info) {
                let text = format!("the relocation at {at:#x} has another place, type or symbol");
                found.file.push(
                    Failure::new(Check::Relocations, text)
                        .at_kept(at)
                        .bytes(a, b),
                );
                continue;
            }
            let [relative, irelative] = A::RELATIVE;
            let kind = info as u32;
            if kind == relative {
                places.push(place);
            }
            if kind == relative || kind == irelative {
                found.pointers += u64::from(addend != new_addend);
                if cx.is_abandoned(addend) {
                    let text = format!(
                        "the relocation at {at:#x} refers to {addend:#x}, whose section was moved"
                    );
                    found.file.push(Failure::new(Check::Relocations, text));
                }
                if !found.first_initialiser(
                    cx,
                    place,
                    InputAddr::new(addend),
                    OutputAddr::new(new_addend),
                ) && !found.pointer(
                    cx,
                    InputAddr::new(addend),
                    OutputAddr::new(new_addend),
                    kind == relative,
                ) {
                    let text = format!("the relocation at {at:#x} makes another address");
                    let failure = Failure::new(Check::Relocations, text)
                        .at_kept(at)
                        .values(addend, new_addend);
                    found.charge(
                        cx,
                        InputAddr::new(addend),
                        OutputAddr::new(new_addend),
                        failure,
                    );
                } else if addend == new_addend
                    && let Some(id) = cx.interiors.owner(InputAddr::new(addend))
                {
                    let text = format!(
                        "the relocation at {at:#x} still points to {addend:#x}, which the entry jump overwrote"
                    );
                    found.functions.push((
                        id,
                        Failure::new(Check::EntryJump, text)
                            .at(InputAddr::new(at), OutputAddr::new(addend)),
                    ));
                }
            } else if addend != new_addend {
                found.file.push(
                    Failure::new(
                        Check::Relocations,
                        format!("the relocation at {at:#x} has another addend"),
                    )
                    .at_kept(at)
                    .values(addend, new_addend),
                );
            }
        }
    }
    // The table itself is compared as data; unchanged words count here, changed ones when the data is compared.
    if let (Some(at), Some(size)) = (cx.input.dynamic_value(36), cx.input.dynamic_value(35)) {
        let words = relr_places(cx.input.bytes(at, size).unwrap_or(b""));
        for &place in &words {
            if let (Some(old), Some(new)) = (cx.input.u64_at(place), cx.output.u64_at(place))
                && old == new
            {
                found.pointer(cx, InputAddr::new(old), OutputAddr::new(new), true);
                if let Some(id) = cx.interiors.owner(InputAddr::new(old)) {
                    let text = format!(
                        "the pointer at {place:#x} still leads to {old:#x}, which the entry jump overwrote"
                    );
                    found.functions.push((
                        id,
                        Failure::new(Check::EntryJump, text)
                            .at(InputAddr::new(place), OutputAddr::new(old)),
                    ));
                }
            }
        }
        places.extend(words);
    }
    places.sort_unstable();
    places.dedup();
    layout.by_meaning.sort_unstable();
    places
}

/// Places of dynamic relocations in segments of the input that are not writable, ascending.
pub(crate) fn relocated_constants(input: &Elf<'_>) -> Vec<u64> {
    let mut places: Vec<u64> = Vec::new();
    for table in rela_tables(input) {
        let entries = input.bytes(table.start, table.len()).unwrap_or(b"");
        places.extend(entries.chunks(24).filter_map(|entry| u64_in(entry, 0)));
    }
    if let (Some(at), Some(size)) = (input.dynamic_value(36), input.dynamic_value(35)) {
        places.extend(relr_places(input.bytes(at, size).unwrap_or(b"")));
    }
    places.retain(|at| input.load_at(*at).is_none_or(|l| !l.is_writable()));
    places.sort_unstable();
    places
}

/// Places that a RELR table relocates. An even word is an address; an odd word has a bit for each of the 63 words that
/// follow the last place.
pub(crate) fn relr_places(bytes: &[u8]) -> Vec<u64> {
    let mut places = Vec::new();
    let mut next = 0u64;
    let mut r = Reader::new(bytes);
    while let Some(word) = r.u64() {
        if word & 1 == 0 {
            places.push(word);
            next = word.wrapping_add(8);
        } else {
            places.extend(
                (0..63)
                    .filter(|bit| word >> (bit + 1) & 1 != 0)
                    .map(|bit| next.wrapping_add(8 * bit)),
            );
            next = next.wrapping_add(63 * 8);
        }
    }
    places
}

/// Compares the dynamic symbols.
pub(crate) fn dynamic_symbols(cx: &Context<'_>, layout: &mut Layout, found: &mut Findings) {
    let Some(at) = cx.input.dynamic_value(6) else {
        return;
    };
    let by_section = cx
        .input
        .sections
        .iter()
        .find(|s| s.kind == elf::SHT_DYNSYM && s.addr == at)
        .map(|s| s.size);
    let by_strings = cx
        .input
        .dynamic_value(5)
        .and_then(|s| s.checked_sub(at))
        .map(|size| size - size % elf::SYM_SIZE as u64);
    let Some(size) = by_section.or(by_strings) else {
        found.file.push(Failure::new(
            Check::Symbols,
            "the size of the dynamic symbol table is unknown",
        ));
        return;
    };
    let range = Range {
        start: at,
        end: at.saturating_add(size),
    };
    layout.by_meaning.push(range);
    layout.by_meaning.sort_unstable();
    let (Some(old), Some(new)) = (
        cx.input.bytes(at, size),
        cx.output.bytes(layout.place(at), size),
    ) else {
        found.file.push(Failure::new(
            Check::Symbols,
            format!("the dynamic symbols at {at:#x} are not loaded from the file"),
        ));
        return;
    };
    let pairs = elf::raw_symbols(old).zip(elf::raw_symbols(new));
    for (i, ((name_a, a), (name_b, b))) in pairs.enumerate() {
        let undefined = |s: &Symbol<'_>| s.section == 0;
        let special = |s: &Symbol<'_>| s.section >= 0xff00;
        let same = name_a == name_b
            && (a.info, a.other) == (b.info, b.other)
            && undefined(&a) == undefined(&b)
            && special(&a) == special(&b)
            && (!special(&a) || a.section == b.section);
        let moved = a.value != b.value;
        if !same || (!moved && a.size != b.size) {
            found.file.push(
                Failure::new(Check::Symbols, format!("the dynamic symbol {i} changed"))
                    .at(InputAddr::new(a.value), OutputAddr::new(b.value)),
            );
            continue;
        }
        if undefined(&a) && a.value == 0 && b.value == 0 || a.kind() == 6 {
            if moved {
                found.file.push(
                    Failure::new(
                        Check::Symbols,
                        format!("the dynamic symbol {i} changed its value"),
                    )
                    .values(a.value, b.value),
                );
            }
            continue;
        }
        found.pointers += u64::from(moved);
        // Plain symbols give their address to any code that asks; an indirect function's resolver stays unknown.
        let identity = a.kind() != 10;
        if b.value != layout.place(a.value)
            && !found.pointer(
                cx,
                InputAddr::new(a.value),
                OutputAddr::new(b.value),
                identity,
            )
        {
            let failure = Failure::new(
                Check::Symbols,
                format!("the dynamic symbol {i} has another address"),
            )
            .at(InputAddr::new(a.value), OutputAddr::new(b.value))
            .values(a.value, b.value);
            found.charge(
                cx,
                InputAddr::new(a.value),
                OutputAddr::new(b.value),
                failure,
            );
        } else if !moved && !undefined(&a) {
            found.pointer(
                cx,
                InputAddr::new(a.value),
                OutputAddr::new(b.value),
                identity,
            );
        }
    }
}

/// Compares `.symtab`: the input's symbols must be there in their order, at their place or at that of their moved
/// function; symbols may have been added between them, but only for new code. `files` have the tables: the
/// input and the output, or files with their debug information.
pub(crate) fn static_symbols(cx: &Context<'_>, files: (&Elf<'_>, &Elf<'_>), found: &mut Findings) {
    let (old, new) = files;
    let has = |elf: &Elf<'_>| elf.sections.iter().any(|s| s.kind == elf::SHT_SYMTAB);
    if !has(old) || !has(new) {
        return;
    }
    let (olds, strings) = old.symbols_and_strings(elf::SHT_SYMTAB);
    let (news, new_strings) = new.symbols_and_strings(elf::SHT_SYMTAB);
    let names = Names::new(strings, new_strings);
    cx.maps.read(strings.len() + new_strings.len());
    let fits = |(name_a, a): &(u32, Symbol<'_>), (name_b, b): &(u32, Symbol<'_>)| {
        let of = |s: &Symbol<'_>| (s.info, s.other, s.section == 0);
        if of(a) != of(b) || !names.are_equal(*name_a, *name_b) {
            return false;
        }
        if let Some(id) = cx.entry_of(InputAddr::new(a.value)) {
            // What comes from inside may have an entry of its own, after what control from outside does.
            return b.value == a.value
                || cx.pair_owner(InputAddr::new(a.value), OutputAddr::new(b.value)) == Some(id);
        }
        // Section symbols follow their sections; the old unwind tables' do too.
        a.value == b.value
            || a.kind() == 3
            || cx
                .pair_owner(InputAddr::new(a.value), OutputAddr::new(b.value))
                .is_some()
            || cx.old.owner(InputAddr::new(a.value)).is_none()
                && a.kind() != 2
                && cx.new.owner(OutputAddr::new(b.value)).is_none()
    };
    let mut outs = news.skip(1).peekable();
    let mut pairs = Vec::new();
    'symbols: for (name, a) in olds.skip(1) {
        // Section symbols may have been dropped with their sections.
        if a.kind() == 3 {
            outs.next_if(|b| b.1.kind() == 3);
            continue;
        }
        for (name_b, b) in outs.by_ref() {
            if fits(&(name, a), &(name_b, b)) {
                if cx.entry_of(InputAddr::new(a.value)).is_some() && b.value != a.value {
                    pairs.push((InputAddr::new(a.value), OutputAddr::new(b.value)));
                }
                continue 'symbols;
            }
            let added = b.kind() == 3
                || names_old_entry(cx, &b, elf::string_at(new_strings, name_b))
                || cx.new.owner(OutputAddr::new(b.value)).is_some()
                || b.section != 0 && b.value >= cx.input.extent().1;
            if !added {
                let text = format!(
                    "the symbol {} is missing or has another value",
                    String::from_utf8_lossy(elf::string_at(strings, name))
                );
                let failure = Failure::new(Check::Symbols, text)
                    .at(InputAddr::new(a.value), OutputAddr::new(b.value));
                found.charge(
                    cx,
                    InputAddr::new(a.value),
                    OutputAddr::new(b.value),
                    failure,
                );
                return;
            }
        }
        let text = format!(
            "the symbol {} is missing or has another value",
            String::from_utf8_lossy(elf::string_at(strings, name))
        );
        found.charge(
            cx,
            InputAddr::new(a.value),
            OutputAddr::new(0),
            Failure::new(Check::Symbols, text).at(InputAddr::new(a.value), OutputAddr::new(0)),
        );
        return;
    }
    found.pairs.append(&mut pairs);
}

/// Two string tables, of which the second mostly begins as the first.
struct Names<'d> {
    old: &'d [u8],
    new: &'d [u8],
    /// Strings that begin in front of this are the same in both: names are long, and most need not be read.
    alike: usize,
}

impl<'d> Names<'d> {
    fn new(old: &'d [u8], new: &'d [u8]) -> Self {
        let shorter = old.len().min(new.len());
        let (a, b) = (old.get(..shorter), new.get(..shorter));
        let common = first_difference(a, b).unwrap_or(shorter);
        // As far as one ends there.
        let ends = old.get(..common).unwrap_or(b"");
        let alike = ends.iter().rposition(|b| *b == 0).map_or(0, |at| at + 1);
        Names { old, new, alike }
    }

    fn are_equal(&self, a: u32, b: u32) -> bool {
        let same = a == b && (a as usize) < self.alike;
        same || elf::string_at(self.old, a) == elf::string_at(self.new, b)
    }
}

/// Whether a symbol is one that an output may have for what is left of a moved function at its old entry:
/// `NAME.entry`, local, no longer than the old body.
fn names_old_entry(cx: &Context<'_>, symbol: &Symbol<'_>, name: &[u8]) -> bool {
    let Some(f) = cx
        .entry_of(InputAddr::new(symbol.value))
        .and_then(|id| cx.function(id))
    else {
        return false;
    };
    let body = f
        .old
        .iter()
        .find(|r| r.contains(InputAddr::new(symbol.value)));
    // A jump may run over padding after it.
    let end = body.map_or(symbol.value, |r| {
        (r.end.max(InputAddr::new(symbol.value + 16))).get()
    });
    symbol.info == 2
        && name.ends_with(b".entry")
        && symbol
            .value
            .checked_add(symbol.size)
            .is_some_and(|e| e <= end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relr_words_and_bitmaps_give_all_places() {
        let mut bytes = Vec::new();
        for word in [0x1000u64, 0b1011, 0x2000, 1 | 1 << 63] {
            bytes.extend(word.to_le_bytes());
        }
        assert_eq!(
            relr_places(&bytes),
            [0x1000, 0x1008, 0x1018, 0x2000, 0x2008 + 62 * 8]
        );
        assert_eq!(relr_places(&[0; 7]), Vec::<u64>::new());
    }

    #[test]
    fn names_are_equal_if_their_strings_are() {
        let (old, new) = (
            b"\0main\0exit\0abort\0".as_slice(),
            b"\0main\0exit\0about\0main\0",
        );
        let names = Names::new(old, new);
        assert_eq!(names.alike, 11);
        for (a, b, equal) in [(1, 1, true), (3, 3, true), (1, 17, true), (6, 6, true)]
            .into_iter()
            .chain([(11, 11, false), (1, 6, false), (0, 22, true), (16, 5, true)])
        {
            assert_eq!(names.are_equal(a, b), equal, "{a} {b}");
        }
        // A string that no zero ends goes on in one of them.
        let names = Names::new(b"\0main", b"\0mains\0");
        assert_eq!(names.alike, 1);
        assert!(!names.are_equal(1, 1) && names.are_equal(0, 0));
    }

    #[test]
    fn an_address_in_a_moved_section_is_found_at_its_new_place() {
        let layout = Layout {
            moved: vec![(
                Range {
                    start: 0x300,
                    end: 0x31c,
                },
                0x9000,
            )],
            ..Layout::default()
        };
        assert_eq!(layout.place(0x310), 0x9010);
        assert_eq!(layout.place(0x31c), 0x31c);
    }
}
