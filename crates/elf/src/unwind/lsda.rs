//! Language-specific data areas as GCC and LLVM write them (`.gcc_except_table`): call sites, landing pads, actions,
//! types.
//!
//! When an exception passes a function, the unwinder asks the function's personality routine what to do, and that reads
//! the area which the FDE names. All of C++, C (`__attribute__((cleanup))`), Rust and Ada use one format; it is
//! described in no standard but in the Itanium C++ ABI's exception handling tables and in the readers of libsupc++,
//! libc++abi, Rust's `std` and GNAT's run-time (`raise-gcc.c`).
//!
//! | part | contents |
//! |---|---|
//! | header | encoding of the landing pad base, and the base unless that is 0xff (then it is the function's start) |
//! | | encoding of type table entries, and unless that is 0xff the ULEB distance from here to the *type base* |
//! | | encoding of call sites; ULEB length of the call-site table |
//! | call-site table | start, length (from the function's start), landing pad (from its base; 0: none), ULEB action |
//! | action table | SLEB filter, SLEB distance from that field to the next record (0: last) |
//! | type table | entries of a fixed size, numbered from 1, *backwards* from the type base |
//! | specifications | from the type base on: lists of ULEB type numbers, each ended by 0 |
//!
//! A call site's action is 0 (only cleanup) or 1 + the offset of its first action record. A filter is 0 (cleanup), a
//! type number (catch), or negative: −1 − the offset of a specification. The lengths of the last three parts are
//! written nowhere; they follow from what is reached.
//!
//! # What must stay
//!
//! Each reader walks the call sites until one begins after the instruction. An instruction between call sites must not
//! throw: C++ terminates. So three states of an instruction are told apart: landing pad, call site without landing pad
//! (the exception passes), no call site. [`Lsda::encode`] keeps all three for the call sites it is given. An empty
//! call-site table therefore means something (nothing may throw) and is not the same as no LSDA (everything may).
//!
//! Ada raises exceptions from any instruction that faults ([`Personality::faults`]): a division, a load through a
//! null access, a push onto a full stack. Its reader takes an instruction without call site for one whose exceptions
//! pass. An instruction that had no call site, in a prologue for example, must get none, also if it is not a call.
//!
//! # Landing pad base
//!
//! A fragment's landing pads may be before it, or at its very start: then the distance would be negative or the zero
//! that means "none". Such an area states a base one byte below the lowest landing pad. Readers of C++ and Rust honour
//! it. The reader of C programs in LLVM's compiler-rt reads the base and ignores it, and nothing in a program tells it
//! from libgcc's: for C, landing pads must be after the fragment's start ([`PadBase::FunctionStart`]).
//!
//! # What is refused
//!
//! The tables of setjmp/longjmp exceptions look alike but number call sites instead of locating them; they belong to
//! personality routines of other names, so callers check the name with [`personality_of`]. Refused here: call sites
//! that do not ascend or do overlap, cycles of actions, types that are not where they should be, and pointers that the
//! dynamic loader would fill in.

use rustc_hash::FxHashMap;

use super::cursor::{Cursor, put_uleb, put_uleb_padded, uleb_len};
use super::pointer::{
    self, Bases, FORMAT, INDIRECT, OMIT, PCREL_SDATA4, RELATIVE, UDATA2, UDATA4, ULEB128,
};
use crate::elf::Elf;
use crate::{ErrorKind, FormatError};

/// A range of instructions that may unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// First address.
    pub start: u64,
    /// Length.
    pub len: u64,
    /// Address of the landing pad; `None`: unwinding continues without stopping.
    pub landing_pad: Option<u64>,
    /// 0: cleanup or nothing; else 1 + offset into the action table.
    pub action: u64,
}

impl CallSite {
    /// One past the last address.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// A parsed LSDA. Instructions of the function that no call site covers must not unwind (the program is terminated).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lsda<'d> {
    /// Address.
    pub addr: u64,
    /// In ascending order, disjoint, none empty; adjacent ones differ in landing pad or action.
    pub call_sites: Vec<CallSite>,
    /// The action table: exactly the bytes that call sites reach.
    pub actions: &'d [u8],
    /// Encoding of type table entries; 0xff: no type table.
    pub type_encoding: u8,
    /// Type table in index order (1-based in actions): link-time addresses (of the slot if indirect), 0 for catch-all.
    pub types: Vec<u64>,
    /// Exception specification lists after the type table, verbatim.
    pub specs: &'d [u8],
}

/// What landing pads in the encoded table are counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PadBase {
    /// The function's start if that is possible and not longer, else a base of their own.
    #[default]
    Shortest,
    /// The function's start; an error if a landing pad is not after it. For readers that ignore the base.
    FunctionStart,
}

/// How numbers of call sites are written.
///
/// To throw, the unwinder reads the call-site table of every function on the way from its start to the place that
/// is unwound through, number by number. libstdc++ takes nearly twice as many instructions for the shortest
/// LEB128 as for a number of fixed size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// In LEB128.
    #[default]
    Shortest,
    /// In 2 bytes each if that is enough for all, else in 4.
    Quickest,
}

/// What is known of a personality routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Personality {
    /// What it can count landing pads from.
    pub pad_base: PadBase,
    /// Its language has exceptions from instructions that are not calls: it is asked about any instruction that faults,
    /// also about one that no call site covers.
    pub faults: bool,
}

/// The personality routine with this symbol name; `None` for an unknown one, whose functions should not be moved.
pub fn personality_of(name: &[u8]) -> Option<Personality> {
    let (pad_base, faults) = match name {
        b"__gxx_personality_v0" => (PadBase::Shortest, false),
        // GCC's run-time for Objective-C; its language raises exceptions in calls alone.
        b"__gnu_objc_personality_v0" => (PadBase::Shortest, false),
        b"__gcc_personality_v0" => (PadBase::FunctionStart, false),
        // Ada: GNAT compiles with -fnon-call-exceptions, and turns signals into exceptions.
        b"__gnat_personality_v0" => (PadBase::Shortest, true),
        // Newer compilers mangle it, with the crate's hash before the name.
        name if name.windows(RUST.len()).any(|w| w == RUST) => (PadBase::Shortest, false),
        _ => return None,
    };
    Some(Personality { pad_base, faults })
}

const RUST: &[u8] = b"rust_eh_personality";

impl<'d> Lsda<'d> {
    /// Parses the LSDA at `addr` of a function that starts at `function`.
    pub fn parse(elf: &Elf<'d>, addr: u64, function: u64) -> Result<Self, FormatError> {
        let data = match elf.section_at(addr) {
            Some((_, section)) => {
                // `section_at` says that it covers the address; contents can be shorter in a hostile file.
                let offset = usize::try_from(addr - section.addr).unwrap_or(usize::MAX);
                elf.section_data(section).get(offset..).unwrap_or(&[])
            }
            None => {
                let len = elf
                    .load_at(addr)
                    .map_or(0, |s| s.file_size.saturating_sub(addr - s.addr));
                elf.bytes_at(addr, len).unwrap_or(&[])
            }
        };
        Self::parse_bytes(data, addr, function, &Bases::of(elf))
    }

    /// Parses the LSDA at link-time address `addr`, with which `data` begins; `data` may continue after it.
    pub fn parse_bytes(
        data: &'d [u8],
        addr: u64,
        function: u64,
        bases: &Bases,
    ) -> Result<Self, FormatError> {
        parse(data, addr, function, bases).map_err(|e| {
            e.within(format_args!(
                "the LSDA at {addr:#x} of the function at {function:#x}"
            ))
        })
    }

    /// Whether both have the same actions, types and specifications, so that a call site means the same in either.
    pub fn same_tables(&self, other: &Lsda<'_>) -> bool {
        self.type_encoding == other.type_encoding
            && self.actions == other.actions
            && self.types == other.types
            && self.specs == other.specs
    }

    /// One LSDA for the call sites of both, if every action means the same in it. The parts of a function that a
    /// compiler split have the same tables in the file, but each reaches its own share of them: what one knows of a
    /// table must begin what the other knows. `None` if they differ or call sites overlap.
    pub fn union(&self, other: &Lsda<'d>) -> Option<Lsda<'d>> {
        let type_encoding = match (self.type_encoding, other.type_encoding) {
            (a, b) if a == b => a,
            (a, OMIT) => a,
            (OMIT, b) => b,
            _ => return None,
        };
        let mut call_sites = [self.call_sites.as_slice(), &other.call_sites].concat();
        call_sites.sort_unstable_by_key(|c| c.start);
        if call_sites
            .windows(2)
            .any(|w| matches!(w, [a, b] if a.end() > b.start))
        {
            return None;
        }
        Some(Lsda {
            addr: self.addr,
            call_sites,
            actions: longer(self.actions, other.actions)?,
            type_encoding,
            types: longer(&self.types, &other.types)?.to_vec(),
            specs: longer(self.specs, other.specs)?,
        })
    }

    /// Encodes it at `at` for the code range that starts at `function`, with `call_sites` in place of its own (output
    /// addresses). Landing pads may be anywhere within 2 GiB: the landing pad base is written explicitly if need be,
    /// below the lowest landing pad.
    ///
    /// The length depends on `at` only modulo 8. Call sites are sorted, and adjacent equal ones become one.
    ///
    /// # Errors
    ///
    /// Call sites that overlap, are before `function`, or have an action that this LSDA does not; landing pads out of
    /// reach.
    pub fn encode(
        &self,
        call_sites: &[CallSite],
        function: u64,
        at: u64,
    ) -> Result<Vec<u8>, FormatError> {
        let (base, numbers) = (PadBase::Shortest, Numbers::Shortest);
        self.encode_with(call_sites, function, at, base, numbers)
    }

    /// Like [`Lsda::encode`], with a say in the landing pad base and in how numbers are written.
    pub fn encode_with(
        &self,
        call_sites: &[CallSite],
        function: u64,
        at: u64,
        base: PadBase,
        numbers: Numbers,
    ) -> Result<Vec<u8>, FormatError> {
        encode(self, call_sites, function, at, base, numbers)
            .map_err(|e| e.within(format_args!("the LSDA for the code at {function:#x}")))
    }
}

/// The longer slice, if it begins with the other.
fn longer<'a, T: PartialEq>(a: &'a [T], b: &'a [T]) -> Option<&'a [T]> {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    long.starts_with(short).then_some(long)
}

fn parse<'d>(
    data: &'d [u8],
    addr: u64,
    function: u64,
    bases: &Bases,
) -> Result<Lsda<'d>, FormatError> {
    let mut cursor = Cursor::new(data, addr);
    let encoding = cursor.u8("the encoding of the landing pad base")?;
    let pad_base = match encoding {
        OMIT => function,
        _ if encoding & INDIRECT != 0 => {
            return Err(FormatError::new(format!(
                "an indirect landing pad base (encoding {encoding:#04x})"
            ))
            .of(ErrorKind::Unsupported)
            .values(encoding, "a direct encoding"));
        }
        // BOLT and LLVM write an absolute base of 0 for the whole of a file at a fixed address.
        _ => pointer::read(encoding, &mut cursor, bases, "the landing pad base")?,
    };
    let type_encoding = cursor.u8("the encoding of types")?;
    let type_base = match type_encoding {
        OMIT => None,
        _ => {
            let distance = cursor.uleb("the distance of the type table")?;
            let at = (cursor.pos() as u64)
                .checked_add(distance)
                .and_then(|at| usize::try_from(at).ok());
            Some(at.filter(|&at| at <= data.len()).ok_or_else(|| {
                FormatError::new(format!(
                    "its type table ends {distance:#x} bytes after {:#x}, outside the section",
                    cursor.addr()
                ))
                .of(ErrorKind::OutOfBounds)
                .at_address(cursor.addr())
                .values(distance, data.len() - cursor.pos())
            })?)
        }
    };
    let site_encoding = cursor.u8("the encoding of call sites")?;
    if site_encoding & !FORMAT != 0 {
        return Err(FormatError::new(format!(
            "call sites have encoding {site_encoding:#04x}, which is relative"
        ))
        .of(ErrorKind::Unsupported)
        .values(site_encoding, "an encoding that is not relative"));
    }
    let table_len = cursor.uleb("the length of the call-site table")?;
    let table = cursor.sub(table_len, "the call-site table")?;
    let call_sites = parse_call_sites(table, site_encoding, function, pad_base)?;

    let mut reach = Reach::default();
    let actions_at = cursor.pos();
    let actions_end = reach.actions(cursor.rest(), cursor.addr(), &call_sites)?;
    let actions = cursor.rest().get(..actions_end).unwrap_or(&[]);
    let mut this = Lsda {
        addr,
        call_sites,
        actions,
        type_encoding: OMIT,
        types: Vec::new(),
        specs: &[],
    };
    if reach.max_type == 0 && reach.specs.is_empty() {
        return Ok(this);
    }
    let Some(type_base) = type_base else {
        return Err(
            FormatError::new("an action names a type, but there is no type table")
                .of(ErrorKind::Missing),
        );
    };
    let specs = data.get(type_base..).unwrap_or(&[]);
    this.specs = reach.specs(specs, addr.wrapping_add(type_base as u64))?;
    this.type_encoding = type_encoding;
    this.types = parse_types(
        data,
        addr,
        actions_at + actions_end,
        type_base,
        type_encoding,
        reach.max_type,
        bases,
    )?;
    Ok(this)
}

fn parse_call_sites(
    mut table: Cursor<'_>,
    encoding: u8,
    function: u64,
    pad_base: u64,
) -> Result<Vec<CallSite>, FormatError> {
    let mut call_sites: Vec<CallSite> = Vec::new();
    while !table.is_empty() {
        let at = table.addr();
        let start = pointer::read_raw(encoding, &mut table, "the start of a call site")?;
        let len = pointer::read_raw(encoding, &mut table, "the length of a call site")?;
        let pad = pointer::read_raw(encoding, &mut table, "the landing pad of a call site")?;
        let action = table.uleb("the action of a call site")?;
        let outside = || {
            FormatError::new(format!(
                "the call site at {at:#x} ({start:#x}, {len:#x} bytes, landing pad {pad:#x}) goes beyond the address space"
            ))
            .of(ErrorKind::TooLarge)
            .at_address(at)
            .values(start, u64::MAX)
        };
        let start = function.checked_add(start).ok_or_else(outside)?;
        let end = start.checked_add(len).ok_or_else(outside)?;
        let landing_pad = match pad {
            0 => None,
            _ => Some(pad_base.checked_add(pad).ok_or_else(outside)?),
        };
        // An empty one covers nothing; compilers leave them where a call was optimised away.
        if end > start {
            push(
                &mut call_sites,
                CallSite {
                    start,
                    len,
                    landing_pad,
                    action,
                },
            )?;
        }
    }
    Ok(call_sites)
}

/// Adds a call site after the others, or to the last one if it continues with the same meaning.
fn push(sites: &mut Vec<CallSite>, site: CallSite) -> Result<(), FormatError> {
    match sites.last_mut() {
        Some(last) if last.end() > site.start => Err(FormatError::new(format!(
            "the call site at {:#x} begins before the end {:#x} of the one before it",
            site.start,
            last.end()
        ))
        .of(ErrorKind::Order)
        .at_address(site.start)
        .values(site.start, last.end())),
        Some(last)
            if last.end() == site.start
                && (last.landing_pad, last.action) == (site.landing_pad, site.action) =>
        {
            last.len += site.len;
            Ok(())
        }
        _ => {
            sites.push(site);
            Ok(())
        }
    }
}

fn parse_types(
    data: &[u8],
    addr: u64,
    actions_end: usize,
    type_base: usize,
    encoding: u8,
    count: u64,
    bases: &Bases,
) -> Result<Vec<u64>, FormatError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let size = type_size(encoding)?;
    let first = usize::try_from(count)
        .ok()
        .and_then(|n| n.checked_mul(size))
        .and_then(|len| type_base.checked_sub(len));
    let Some(first) = first.filter(|&first| first >= actions_end) else {
        return Err(FormatError::new(format!(
            "{count} types of {size} bytes do not fit between the actions, which end at {:#x}, and the type base {:#x}",
            addr.wrapping_add(actions_end as u64),
            addr.wrapping_add(type_base as u64)
        ))
        .of(ErrorKind::OutOfBounds)
        .at_address(addr.wrapping_add(type_base as u64))
        .values(count, "types that fit after the actions"));
    };
    let entries = data.get(first..type_base).unwrap_or(&[]);
    let mut types = Vec::with_capacity(entries.len() / size);
    let mut cursor = Cursor::new(entries, addr.wrapping_add(first as u64));
    while !cursor.is_empty() {
        types.push(pointer::read(
            encoding,
            &mut cursor,
            bases,
            "an entry of the type table",
        )?);
    }
    // They are numbered backwards.
    types.reverse();
    Ok(types)
}

/// Bytes of a type table entry.
fn type_size(encoding: u8) -> Result<usize, FormatError> {
    match encoding & FORMAT {
        0x01 | 0x09 => None,
        _ => pointer::size(encoding),
    }
    // Data-relative ones would count from a base that the personality routine gets from elsewhere.
    .filter(|_| matches!(encoding & RELATIVE, 0 | pointer::PCREL))
    .ok_or_else(|| {
        FormatError::new(format!(
            "types of pointer encoding {encoding:#04x} are not supported"
        ))
        .of(ErrorKind::Unsupported)
        .values(encoding, "an absolute or pc-relative encoding")
    })
}

/// What call sites reach in the tables whose lengths are not written.
#[derive(Default)]
struct Reach {
    max_type: u64,
    /// Offsets of specifications.
    specs: Vec<u64>,
}

impl Reach {
    fn types(&mut self, number: u64) {
        self.max_type = self.max_type.max(number);
    }

    /// Follows all action records of the call sites in `table`, and gives the end of the last one.
    fn actions(
        &mut self,
        table: &[u8],
        addr: u64,
        call_sites: &[CallSite],
    ) -> Result<usize, FormatError> {
        // Record offset → the call site whose walk came there first.
        let mut seen: FxHashMap<u64, usize> = FxHashMap::default();
        let mut end = 0;
        for (walk, site) in call_sites.iter().enumerate() {
            let mut next = site.action.checked_sub(1);
            while let Some(offset) = next {
                match seen.insert(offset, walk) {
                    Some(before) if before == walk => {
                        return Err(FormatError::new(format!(
                            "the actions of the call site at {:#x} form a loop through the record at {:#x}",
                            site.start,
                            addr.wrapping_add(offset)
                        ))
                        .at_address(addr.wrapping_add(offset)));
                    }
                    // An earlier walk went on from here.
                    Some(_) => break,
                    None => {}
                }
                let record = usize::try_from(offset)
                    .ok()
                    .and_then(|offset| table.get(offset..))
                    .unwrap_or(&[]);
                let mut cursor = Cursor::new(record, addr.wrapping_add(offset));
                let filter = cursor.sleb("an action record")?;
                match filter {
                    1.. => self.types(filter as u64),
                    0 => {}
                    _ => self.specs.push(!filter as u64),
                }
                let field = offset + cursor.pos() as u64;
                let distance = cursor.sleb("an action record")?;
                // `offset` is inside `table`, as reading there succeeded.
                end = end.max(offset as usize + cursor.pos());
                next = match distance {
                    0 => None,
                    _ => Some(field.checked_add_signed(distance).ok_or_else(|| {
                        FormatError::new(format!(
                            "the action record at {:#x} continues {distance} bytes further, outside the table",
                            addr.wrapping_add(offset)
                        ))
                        .of(ErrorKind::OutOfBounds)
                        .at_address(addr.wrapping_add(offset))
                        .values(distance, "a distance within the table")
                    })?),
                };
            }
        }
        Ok(end)
    }

    /// Reads the specifications that were reached, and gives the bytes from the type base to the end of the last one.
    fn specs<'d>(&mut self, table: &'d [u8], addr: u64) -> Result<&'d [u8], FormatError> {
        let mut end = 0;
        let mut specs = std::mem::take(&mut self.specs);
        specs.sort_unstable();
        specs.dedup();
        for offset in specs {
            // In ascending order, one that begins before the last end is a tail of the list that made this end.
            if offset < end as u64 {
                continue;
            }
            let list = usize::try_from(offset)
                .ok()
                .and_then(|offset| table.get(offset..))
                .unwrap_or(&[]);
            let mut cursor = Cursor::new(list, addr.wrapping_add(offset));
            loop {
                match cursor.uleb("an exception specification")? {
                    0 => break,
                    number => self.types(number),
                }
            }
            end = end.max(offset as usize + cursor.pos());
        }
        Ok(table.get(..end).unwrap_or(&[]))
    }
}

/// Sorted, without empty ones, adjacent equal ones merged.
fn normalise(call_sites: &[CallSite], function: u64) -> Result<Vec<CallSite>, FormatError> {
    let mut sites: Vec<CallSite> = call_sites.iter().copied().filter(|c| c.len > 0).collect();
    sites.sort_by_key(|c| c.start);
    let mut out: Vec<CallSite> = Vec::with_capacity(sites.len());
    for site in sites {
        if site.start < function || site.start.checked_add(site.len).is_none() {
            return Err(FormatError::new(format!(
                "the call site at {:#x} of {:#x} bytes is not after the function's start",
                site.start, site.len
            ))
            .of(ErrorKind::OutOfBounds)
            .at_address(site.start)
            .values(site.start, function));
        }
        push(&mut out, site)?;
    }
    Ok(out)
}

fn encode(
    lsda: &Lsda<'_>,
    call_sites: &[CallSite],
    function: u64,
    at: u64,
    base: PadBase,
    numbers: Numbers,
) -> Result<Vec<u8>, FormatError> {
    let sites = normalise(call_sites, function)?;
    if let Some(site) = sites.iter().find(|s| s.action > lsda.actions.len() as u64) {
        return Err(FormatError::new(format!(
            "the call site at {:#x} has action {}, but there are only {} bytes of actions",
            site.start,
            site.action,
            lsda.actions.len()
        ))
        .of(ErrorKind::OutOfBounds)
        .at_address(site.start)
        .values(site.action, lsda.actions.len()));
    }
    let mut out = Vec::new();
    let pad_base = match choose_base(&sites, function, base)? {
        None => {
            out.push(OMIT);
            function
        }
        Some(pad_base) => {
            out.push(PCREL_SDATA4);
            // The base is an address, not a value of `lsda`'s file: nothing but the field itself matters.
            pointer::write(
                &mut out,
                PCREL_SDATA4,
                pad_base,
                at.wrapping_add(1),
                &Bases::default(),
                "the landing pad base",
            )?;
            pad_base
        }
    };
    let fields = |site: &CallSite| {
        // `choose_base` has put the base below every landing pad.
        let pad = site.landing_pad.map_or(0, |pad| pad.wrapping_sub(pad_base));
        [site.start - function, site.len, pad]
    };
    let largest = sites.iter().flat_map(fields).max().unwrap_or(0);
    let encoding = match numbers {
        Numbers::Quickest if u16::try_from(largest).is_ok() => UDATA2,
        Numbers::Quickest if u32::try_from(largest).is_ok() => UDATA4,
        _ => ULEB128,
    };
    let mut table = Vec::with_capacity(sites.len() * 8);
    for site in &sites {
        for field in fields(site) {
            match encoding {
                UDATA2 => table.extend_from_slice(&field.to_le_bytes()[..2]),
                UDATA4 => table.extend_from_slice(&field.to_le_bytes()[..4]),
                _ => put_uleb(&mut table, field),
            }
        }
        put_uleb(&mut table, site.action);
    }
    // Without actions types are not used.
    let used = sites.iter().any(|s| s.action != 0);
    let actions = if used { lsda.actions } else { &[] };
    let typed = used && lsda.type_encoding != OMIT;
    if !typed {
        out.extend([OMIT, encoding]);
        put_uleb(&mut out, table.len() as u64);
        out.extend(table);
        out.extend_from_slice(actions);
        return Ok(out);
    }

    let size = type_size(lsda.type_encoding)?;
    out.push(lsda.type_encoding);
    // From after the distance to the end of the actions.
    let fixed = 1 + uleb_len(table.len() as u64) + table.len() + actions.len();
    let types = lsda.types.len() * size;
    // The distance's own length moves the type table; padding of that field is as good as any other, so the first
    // length that fits is taken.
    let (width, padding, distance) = (1..=super::cursor::MAX_LEB)
        .map(|width| {
            let end = at.wrapping_add((out.len() + width + fixed) as u64);
            let padding = (end.wrapping_neg() % size as u64) as usize;
            (width, padding, (fixed + padding + types) as u64)
        })
        .find(|&(width, _, distance)| uleb_len(distance) <= width)
        .ok_or_else(|| FormatError::new("its tables do not fit 64 bits").of(ErrorKind::TooLarge))?;
    put_uleb_padded(&mut out, distance, width);
    out.push(encoding);
    put_uleb(&mut out, table.len() as u64);
    out.extend(table);
    out.extend_from_slice(actions);
    out.resize(out.len() + padding, 0);
    for &target in lsda.types.iter().rev() {
        let field = at.wrapping_add(out.len() as u64);
        pointer::write(
            &mut out,
            lsda.type_encoding,
            target,
            field,
            &Bases::default(),
            "an entry of the type table",
        )?;
    }
    out.extend_from_slice(lsda.specs);
    Ok(out)
}

/// The base to be written, if one is.
fn choose_base(
    sites: &[CallSite],
    function: u64,
    base: PadBase,
) -> Result<Option<u64>, FormatError> {
    let pads = || sites.iter().filter_map(|s| s.landing_pad);
    let Some(lowest) = pads().min() else {
        return Ok(None);
    };
    let highest = pads().max().unwrap_or(lowest);
    if highest - lowest > u64::from(u32::MAX) {
        return Err(FormatError::new(format!(
            "its landing pads {lowest:#x} and {highest:#x} are too far from each other"
        ))
        .of(ErrorKind::TooLarge)
        .at_address(lowest)
        .values(highest - lowest, u32::MAX));
    }
    if lowest == 0 {
        return Err(FormatError::new("a landing pad at address 0")
            .at_address(0)
            .values(0u64, "an address that is not null"));
    }
    let own = lowest - 1;
    if lowest <= function {
        return match base {
            PadBase::Shortest => Ok(Some(own)),
            PadBase::FunctionStart => Err(FormatError::new(format!(
                "its landing pad {lowest:#x} is not after its start, which the format needs"
            ))
            .of(ErrorKind::Unsupported)
            .at_address(lowest)
            .values(lowest, function + 1)),
        };
    }
    let bytes = |base: u64| pads().map(|pad| uleb_len(pad - base)).sum::<usize>();
    let shorter = base == PadBase::Shortest && bytes(own) + 4 < bytes(function);
    Ok(shorter.then_some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: u64 = 0x40_1000;
    const AT: u64 = 0x50_0000;
    const BASES: Bases = Bases {
        data: None,
        position_independent: false,
    };

    fn parse(data: &[u8]) -> Result<Lsda<'_>, String> {
        Lsda::parse_bytes(data, AT, FUNCTION, &BASES).map_err(|e| e.what)
    }
    fn site(start: u64, len: u64, pad: Option<u64>, action: u64) -> CallSite {
        CallSite {
            start: FUNCTION + start,
            len,
            landing_pad: pad.map(|p| FUNCTION + p),
            action,
        }
    }

    /// catch (type 2), then catch-all (type 1); cleanup after a specification that allows type 2.
    fn example() -> Vec<u8> {
        let mut data = vec![0xff, 0x9b, 0, 0x01, 12];
        data.extend([4, 5, 0x30, 1, 9, 3, 0, 0, 0x10, 1, 0x40, 5]);
        // Records at 0: filter 2, next at +3; at 2: filter 0; at 4: filter -1, next is the cleanup at 2.
        data.extend([2, 3, 0, 0, 0x7f, 0x7d]);
        // The first record continues at the one with filter 1.
        data[17 + 1] = 5;
        data.extend([1, 0]);
        data.resize(data.len() + (32 - data.len() % 4) % 4, 0);
        let slot = |field: usize, target: u64| {
            (target as u32)
                .wrapping_sub((AT + field as u64) as u32)
                .to_le_bytes()
        };
        let at = data.len();
        data.extend(slot(at, 0x60_0010));
        data.extend([0; 4]);
        data[2] = (data.len() - 3) as u8;
        data.extend([2, 0]);
        data.push(0xee);
        data
    }

    #[test]
    fn all_parts_are_read_as_far_as_they_are_reached() {
        let data = example();
        let lsda = parse(&data).unwrap();
        assert_eq!(
            lsda.call_sites,
            [
                site(4, 5, Some(0x30), 1),
                site(9, 3, None, 0),
                site(0x10, 1, Some(0x40), 5)
            ]
        );
        assert_eq!(lsda.actions, [2, 5, 0, 0, 0x7f, 0x7d, 1, 0]);
        assert_eq!(
            (lsda.type_encoding, lsda.types.as_slice()),
            (0x9b, [0, 0x60_0010].as_slice())
        );
        assert_eq!(lsda.specs, [2, 0]);
    }

    #[test]
    fn encoding_gives_back_the_same_at_any_place() {
        let data = example();
        let lsda = parse(&data).unwrap();
        for at in [AT, AT + 0x1234, AT + 3, AT - 0x10_0001] {
            let out = lsda.encode(&lsda.call_sites, FUNCTION, at).unwrap();
            let again = Lsda::parse_bytes(&out, at, FUNCTION, &BASES).unwrap();
            assert_eq!(again.call_sites, lsda.call_sites);
            assert!(again.same_tables(&lsda));
            // The type table is aligned to its entries.
            assert_eq!((at + (out.len() - lsda.specs.len()) as u64) % 4, 0);
        }
    }

    #[test]
    fn landing_pads_before_and_at_the_start_get_a_base_of_their_own() {
        let data = example();
        let lsda = parse(&data).unwrap();
        for pads in [[-0x1000, 0x40], [0, 0x40], [-0x30_0000, 0x3f_0000], [1, 2]] {
            let pad = |p: i64| Some(FUNCTION.wrapping_add_signed(p));
            let sites = [
                CallSite {
                    start: FUNCTION,
                    len: 4,
                    landing_pad: pad(pads[0]),
                    action: 1,
                },
                CallSite {
                    start: FUNCTION + 4,
                    len: 4,
                    landing_pad: pad(pads[1]),
                    action: 0,
                },
            ];
            let out = lsda.encode(&sites, FUNCTION, AT).unwrap();
            assert_eq!(out[0] == OMIT, pads[0] > 0);
            assert_eq!(
                Lsda::parse_bytes(&out, AT, FUNCTION, &BASES)
                    .unwrap()
                    .call_sites,
                sites
            );
            let plain = lsda.encode_with(
                &sites,
                FUNCTION,
                AT,
                PadBase::FunctionStart,
                Numbers::Shortest,
            );
            if pads[0] > 0 {
                assert_eq!(plain.unwrap(), out)
            } else {
                assert!(plain.unwrap_err().what.contains("after its start"))
            }
        }
    }

    #[test]
    fn far_landing_pads_get_a_base_when_that_is_shorter() {
        let data = example();
        let lsda = parse(&data).unwrap();
        let sites: Vec<_> = (0..20)
            .map(|i| site(8 * i, 4, Some(0x100_0000 + 8 * i), 0))
            .collect();
        let out = lsda.encode(&sites, FUNCTION, AT).unwrap();
        let plain = lsda
            .encode_with(
                &sites,
                FUNCTION,
                AT,
                PadBase::FunctionStart,
                Numbers::Shortest,
            )
            .unwrap();
        assert_eq!((out[0], plain[0]), (PCREL_SDATA4, OMIT));
        assert!(out.len() < plain.len());
        for bytes in [out, plain] {
            assert_eq!(parse(&bytes).unwrap().call_sites, sites);
        }
    }

    #[test]
    fn numbers_of_call_sites_have_two_bytes_each_where_that_is_enough_for_all() {
        let data = example();
        let lsda = parse(&data).unwrap();
        let quick = |sites: &[CallSite]| {
            let (base, numbers) = (PadBase::FunctionStart, Numbers::Quickest);
            let out = lsda.encode_with(sites, FUNCTION, AT, base, numbers);
            let out = out.unwrap();
            let again = parse(&out).unwrap();
            assert_eq!(again.call_sites, sites);
            assert!(again.same_tables(&lsda));
            // One byte each for no base, the encoding of types and their distance.
            (out[3], out[4])
        };
        let sites = |pad: u64| [site(3, 200, Some(pad), 1), site(300, 5, Some(9), 5)];
        assert_eq!(quick(&sites(0x40)), (UDATA2, 2 * 7));
        assert_eq!(quick(&sites(0xffff)), (UDATA2, 2 * 7));
        assert_eq!(quick(&sites(0x1_0000)), (UDATA4, 2 * 13));
        assert_eq!(quick(&sites(0xffff_ffff)), (UDATA4, 2 * 13));
    }

    #[test]
    fn only_equal_neighbours_become_one_call_site() {
        let data = example();
        let lsda = parse(&data).unwrap();
        let sites = [
            site(8, 4, None, 0),
            site(0, 4, Some(0x20), 0),
            site(4, 4, Some(0x20), 0),
            site(13, 1, None, 0),
            site(12, 0, None, 0),
            site(14, 2, None, 1),
        ];
        let out = lsda.encode(&sites, FUNCTION, AT).unwrap();
        let want = [
            site(0, 8, Some(0x20), 0),
            site(8, 4, None, 0),
            site(13, 1, None, 0),
            site(14, 2, None, 1),
        ];
        assert_eq!(parse(&out).unwrap().call_sites, want);
        assert!(
            lsda.encode(&[site(0, 8, None, 0), site(4, 8, None, 0)], FUNCTION, AT)
                .is_err()
        );
        assert!(
            lsda.encode(&[site(0, 8, None, 9)], FUNCTION, AT)
                .unwrap_err()
                .what
                .contains("action 9")
        );
        let before = CallSite {
            start: FUNCTION - 1,
            ..site(0, 4, None, 0)
        };
        assert!(lsda.encode(&[before], FUNCTION, AT).is_err());
    }

    #[test]
    fn a_function_that_may_not_throw_keeps_an_empty_table() {
        let lsda = parse(&[0xff, 0xff, 1, 0]).unwrap();
        assert!(lsda.call_sites.is_empty());
        assert_eq!(lsda.encode(&[], FUNCTION, AT).unwrap(), [0xff, 0xff, 1, 0]);
    }

    #[test]
    fn fragments_with_shares_of_one_table_have_a_union() {
        let data = example();
        let lsda = parse(&data).unwrap();
        // A cold part that reaches only the first two records: types 2 and 1, no specification.
        let cold = Lsda {
            call_sites: vec![site(0x200, 4, Some(0x230), 1)],
            actions: &data[17..25],
            specs: &[],
            ..lsda.clone()
        };
        assert!(!cold.same_tables(&lsda));
        let both = lsda.union(&cold).unwrap();
        assert!(both.same_tables(&lsda));
        assert_eq!(both.call_sites.len(), 4);
        let plain = Lsda {
            actions: &[],
            type_encoding: OMIT,
            types: vec![],
            specs: &[],
            ..cold.clone()
        };
        assert!(plain.union(&lsda).unwrap().same_tables(&lsda));
        let other = Lsda {
            types: vec![1],
            ..cold.clone()
        };
        assert_eq!(other.union(&lsda), None);
        assert_eq!(cold.union(&cold), None);
    }

    #[test]
    fn hostile_tables_are_refused_with_their_place() {
        let check = |data: &[u8], part: &str| {
            let e = parse(data).unwrap_err();
            assert!(
                e.contains(part) && e.contains("0x500000") && e.contains("0x401000"),
                "{e}"
            );
        };
        check(&[0xff, 0xff, 1, 4, 0, 4, 9, 1, 0, 0x7f], "form a loop");
        check(
            &[0xff, 0xff, 1, 4, 0, 4, 9, 1, 0, 0x40],
            "outside the table",
        );
        check(&[0xff, 0xff, 1, 4, 0, 4, 9, 1, 1, 0], "no type table");
        check(
            &[0xff, 0x03, 12, 1, 4, 0, 4, 9, 1, 3, 0, 0, 0, 0, 0, 0],
            "3 types of 4 bytes",
        );
        check(&[0xff, 0x03, 90, 1, 0], "outside the section");
        check(
            &[0xff, 0xff, 1, 8, 4, 4, 0, 0, 0, 2, 0, 0],
            "begins before the end",
        );
        check(&[0xff, 0xff, 0x1b, 0], "relative");
        check(&[0x50, 0, 0, 0, 0, 0, 0, 0, 0], "aligned");
        check(&[0xff, 0xff, 1, 9, 0], "9 bytes");
        let pie = Bases {
            data: None,
            position_independent: true,
        };
        let absolute = [0xff, 0x03, 12, 1, 4, 0, 4, 9, 1, 1, 0, 0, 9, 0, 0, 0];
        assert!(parse(&absolute).is_ok());
        assert!(Lsda::parse_bytes(&absolute, AT, FUNCTION, &pie).is_err());
    }

    #[test]
    fn personality_routines_are_known_by_name() {
        let known = |name: &[u8]| personality_of(name).map(|p| (p.pad_base, p.faults));
        assert_eq!(
            known(b"__gxx_personality_v0"),
            Some((PadBase::Shortest, false))
        );
        assert_eq!(
            known(b"__gnu_objc_personality_v0"),
            Some((PadBase::Shortest, false))
        );
        assert_eq!(
            known(b"__gcc_personality_v0"),
            Some((PadBase::FunctionStart, false))
        );
        assert_eq!(
            known(b"_RNvCsjRHc_7___rustc19rust_eh_personality"),
            Some((PadBase::Shortest, false))
        );
        assert_eq!(
            known(b"__gnat_personality_v0"),
            Some((PadBase::Shortest, true))
        );
        for unknown in [&b"__gxx_personality_sj0"[..], b"__gnat_personality_sj0"] {
            assert_eq!(known(unknown), None);
        }
    }
}
