//! Faults in debug information, and in the output's build-id.
//!
//! Places are found by reading the output's sections, which must not be compressed, attribute by attribute. Entries
//! have the same offsets in both files, so what an attribute was is in the input at the same place.

use gimli::constants as c;
use gimli::{AttributeValue, Dwarf, EndianSlice, LittleEndian, SectionId, UnitHeader};

use super::{Edit, Faults, Kind};
use crate::files::elf::{self, Elf};

type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// An attribute of the output.
struct Field<'d> {
    /// Of which entry: its offset in `.debug_info`.
    entry: usize,
    is_root: bool,
    name: gimli::DwAt,
    form: gimli::DwForm,
    /// Where its value is in `.debug_info`, and its bytes there.
    at: usize,
    len: usize,
    value: AttributeValue<Slice<'d>>,
    version: u16,
}

/// An entry of a list: offsets in its section.
struct Item {
    start: usize,
    end: usize,
    /// The last byte of the number that says where it ends, or its lowest if it is not in LEB128.
    upper: usize,
    /// The first byte of its expression.
    expression: Option<usize>,
}

impl<'a> Faults<'a> {
    pub(super) fn debug_edits(&self, kind: Kind) -> Vec<Edit> {
        use Kind::*;
        match kind {
            ScopeEndOff | ScopesExchanged | ScopeLeftOld | EntryPcOff | ReturnAddressOff
            | CallSiteLeftOld | BaseOff | IndexOther | ViewsElsewhere | ExpressionAddressOld
            | PaddingShort | StmtListOfNeighbour | AddrBaseOfNeighbour => self.field_edits(kind),
            RangeEndOff | RangeDropped | RangesExchanged | LocationEndOff | LocationsMerged
            | ExpressionByte => self.list_edits(kind),
            AddressOff => self.pool_edits(),
            AbbreviationsOfNeighbour => self.unit_abbreviations(),
            AttributesExchanged => self.abbreviations(),
            StatementTurned | RowFlagLost | PrologueEndsLater | DiscriminatorOther | RowLineOff
            | RowColumnOther | RowAddressOff | EntryJumpRowLost | SequenceTooLong => {
                self.row_edits(kind)
            }
            ArangesShort => self.aranges(),
            GdbIndexUnit => self.gdb_index(),
            BuildIdOff => self.build_id(),
            _ => Vec::new(),
        }
    }

    fn section(elf: &Elf<'a>, name: &str) -> &'a [u8] {
        let section = elf.section(name.as_bytes());
        section.map_or(&[], |s| elf.section_data(s))
    }

    fn section_at(&self, name: &str) -> usize {
        let section = self.output.section(name.as_bytes());
        section.map_or(0, |s| s.offset as usize)
    }

    /// A change of a section's bytes.
    fn in_section(&self, name: &str, at: usize, bytes: &[u8]) -> Edit {
        let file = self.section_at(name) + at;
        Edit::new(format!("{name} at {at:#x}"), file, bytes)
    }

    /// A byte with its lowest bit turned.
    fn turned(&self, name: &str, at: usize) -> Option<Edit> {
        let byte = *Self::section(&self.output, name).get(at)?;
        Some(self.in_section(name, at, &[byte ^ 1]))
    }

    fn dwarf(&self) -> Dwarf<Slice<'a>> {
        let load = |id: SectionId| {
            let data = Self::section(&self.output, id.name());
            Ok::<_, std::convert::Infallible>(EndianSlice::new(data, LittleEndian))
        };
        match Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    fn unit_headers(dwarf: &Dwarf<Slice<'a>>) -> Vec<UnitHeader<Slice<'a>>> {
        let mut units = dwarf.units();
        std::iter::from_fn(|| units.next().ok().flatten()).collect()
    }

    /// All attributes of all entries of `.debug_info`.
    fn fields(&self) -> Vec<Field<'a>> {
        let dwarf = self.dwarf();
        let mut out = Vec::new();
        for header in Self::unit_headers(&dwarf) {
            let start = header.debug_info_offset().map_or(0, |o| o.0);
            // What cannot be read has no place for a fault.
            let _ = Self::fields_of(&dwarf, header, start, &mut out);
        }
        out
    }

    fn fields_of(
        dwarf: &Dwarf<Slice<'a>>,
        header: UnitHeader<Slice<'a>>,
        start: usize,
        out: &mut Vec<Field<'a>>,
    ) -> gimli::Result<()> {
        let unit = dwarf.unit(header)?;
        let mut raw = unit.entries_raw(None)?;
        let mut is_root = true;
        while !raw.is_empty() {
            let entry = start + raw.next_offset().0;
            let Some(abbreviation) = raw.read_abbreviation()? else {
                continue;
            };
            for spec in abbreviation.attributes() {
                let at = start + raw.next_offset().0;
                let attribute = raw.read_attribute(*spec)?;
                out.push(Field {
                    entry,
                    is_root,
                    name: attribute.name(),
                    form: attribute.form(),
                    at,
                    len: start + raw.next_offset().0 - at,
                    value: attribute.value(),
                    version: unit.encoding().version,
                });
            }
            is_root = false;
        }
        Ok(())
    }

    fn field_edits(&self, kind: Kind) -> Vec<Edit> {
        let fields = self.fields();
        let (new, old) = (
            Self::section(&self.output, ".debug_info"),
            Self::section(&self.input, ".debug_info"),
        );
        let bytes = |f: &Field<'_>| new.get(f.at..f.at + f.len).unwrap_or_default();
        let is_address = |f: &Field<'_>| f.form == c::DW_FORM_addr;
        let turn = |f: &Field<'_>| self.turned(".debug_info", f.at);
        let of = |names: &'static [gimli::DwAt]| {
            fields
                .iter()
                .filter(move |f| names.contains(&f.name) && f.len > 0)
        };
        // What the input has in the place of an attribute that changed.
        let left = |f: &Field<'_>| {
            let was = old.get(f.at..f.at + f.len).filter(|was| *was != bytes(f))?;
            Some(self.in_section(".debug_info", f.at, was))
        };
        let inner = |f: &&Field<'_>| !f.is_root;
        match kind {
            Kind::ScopeEndOff => of(&[c::DW_AT_high_pc])
                .filter(inner)
                .filter_map(turn)
                .collect(),
            Kind::ScopesExchanged => {
                let low: Vec<&Field<'_>> = of(&[c::DW_AT_low_pc])
                    .filter(|f| !f.is_root && is_address(f))
                    .collect();
                let pairs = low.windows(2).filter(|w| bytes(w[0]) != bytes(w[1]));
                let change = |(to, from): (&Field<'_>, &Field<'_>)| {
                    (self.section_at(".debug_info") + to.at, bytes(from).to_vec())
                };
                pairs
                    .map(|w| Edit {
                        what: format!(".debug_info at {:#x}", w[0].at),
                        changes: [(w[0], w[1]), (w[1], w[0])].map(change).into(),
                    })
                    .collect()
            }
            Kind::ScopeLeftOld => of(&[c::DW_AT_low_pc])
                .filter(|f| !f.is_root && is_address(f))
                .filter_map(left)
                .collect(),
            Kind::EntryPcOff => of(&[c::DW_AT_entry_pc])
                .filter(|f| is_address(f))
                .filter_map(turn)
                .collect(),
            Kind::ReturnAddressOff => of(&[c::DW_AT_call_return_pc])
                .filter(|f| is_address(f))
                .filter_map(turn)
                .collect(),
            Kind::CallSiteLeftOld => of(&[c::DW_AT_call_return_pc, c::DW_AT_call_pc])
                .filter(|f| is_address(f))
                .filter_map(left)
                .collect(),
            Kind::BaseOff => of(&[c::DW_AT_low_pc])
                .filter(|f| f.is_root && is_address(f))
                .filter_map(turn)
                .collect(),
            Kind::IndexOther => of(&[c::DW_AT_low_pc, c::DW_AT_call_return_pc])
                .filter(|f| !f.is_root && f.form == c::DW_FORM_addrx)
                .filter_map(turn)
                .collect(),
            Kind::ViewsElsewhere => of(&[c::DW_AT_GNU_locviews]).filter_map(turn).collect(),
            Kind::ExpressionAddressOld => fields
                .iter()
                .filter(|f| f.form == c::DW_FORM_exprloc && bytes(f).contains(&c::DW_OP_addr.0))
                .filter_map(left)
                .collect(),
            Kind::PaddingShort => fields
                .iter()
                .filter(|f| f.name.0 == 0x3d51 && f.len > 1)
                .map(|f| self.in_section(".debug_info", f.at, &[0]))
                .collect(),
            Kind::StmtListOfNeighbour => {
                self.neighbours(&of(&[c::DW_AT_stmt_list]).collect::<Vec<_>>(), new)
            }
            Kind::AddrBaseOfNeighbour => {
                self.neighbours(&of(&[c::DW_AT_addr_base]).collect::<Vec<_>>(), new)
            }
            _ => Vec::new(),
        }
    }

    /// An attribute with the value that another unit has.
    fn neighbours(&self, fields: &[&Field<'_>], info: &[u8]) -> Vec<Edit> {
        let bytes = |f: &Field<'_>| info.get(f.at..f.at + f.len).unwrap_or_default();
        let pairs = fields.windows(2).filter(|w| bytes(w[0]) != bytes(w[1]));
        pairs
            .map(|w| self.in_section(".debug_info", w[0].at, bytes(w[1])))
            .collect()
    }

    /// The lists of entries that are not roots, with the entries of each.
    fn lists(&self, locations: bool) -> Vec<(&'static str, Vec<Item>)> {
        let mut out = Vec::new();
        let mut known = std::collections::BTreeSet::new();
        for f in self.fields().iter().filter(|f| !f.is_root) {
            let (name, at) = match (&f.value, locations, f.version) {
                (AttributeValue::RangeListsRef(at), false, 5) => (".debug_rnglists", at.0),
                (AttributeValue::RangeListsRef(at), false, _) => (".debug_ranges", at.0),
                (AttributeValue::LocationListsRef(at), true, 5) => (".debug_loclists", at.0),
                (AttributeValue::LocationListsRef(at), true, _) => (".debug_loc", at.0),
                _ => continue,
            };
            if known.insert((name, at)) {
                let section = Self::section(&self.output, name);
                let items = match f.version {
                    5 => items_5(section, at, locations),
                    _ => items_4(section, at, locations),
                };
                out.extend(items.map(|items| (name, items)));
            }
        }
        out
    }

    fn list_edits(&self, kind: Kind) -> Vec<Edit> {
        let locations = matches!(
            kind,
            Kind::LocationEndOff | Kind::LocationsMerged | Kind::ExpressionByte
        );
        let mut out = Vec::new();
        for (name, items) in self.lists(locations) {
            let data = Self::section(&self.output, name);
            let bytes = |item: &Item| data.get(item.start..item.end).unwrap_or_default();
            for (item, next) in items
                .iter()
                .zip(items.iter().skip(1).map(Some).chain([None]))
            {
                match (kind, next) {
                    (Kind::RangeEndOff | Kind::LocationEndOff, _) => {
                        out.extend(self.turned(name, item.upper));
                    }
                    (Kind::ExpressionByte, _) => {
                        out.extend(item.expression.and_then(|at| self.turned(name, at)));
                    }
                    // The rest of the list is gone.
                    (Kind::RangeDropped, Some(next)) => {
                        let zeros = vec![0; if name == ".debug_ranges" { 16 } else { 1 }];
                        out.push(self.in_section(name, next.start, &zeros));
                    }
                    (Kind::RangesExchanged, Some(next))
                        if item.start == items[0].start
                            && bytes(item).len() == bytes(next).len() =>
                    {
                        let both = [bytes(next), bytes(item)].concat();
                        out.push(self.in_section(name, item.start, &both));
                    }
                    // The first holds for the second's code as well.
                    (Kind::LocationsMerged, Some(next)) if name == ".debug_loc" => {
                        let end = data.get(next.upper..next.upper + 8).unwrap_or_default();
                        out.push(self.in_section(name, item.upper, end));
                    }
                    _ => {}
                }
            }
        }
        out
    }

    /// Addresses that entries name by index.
    fn pool_edits(&self) -> Vec<Edit> {
        let dwarf = self.dwarf();
        let mut out = Vec::new();
        let fields = self.fields();
        for header in Self::unit_headers(&dwarf) {
            let start = header.debug_info_offset().map_or(0, |o| o.0);
            let end = start + header.length_including_self();
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            let own = fields.iter().filter(|f| (start..end).contains(&f.entry));
            for f in own.filter(|f| f.name != c::DW_AT_location) {
                if let AttributeValue::DebugAddrIndex(index) = f.value {
                    out.extend(self.turned(".debug_addr", unit.addr_base.0 + 8 * index.0));
                }
            }
        }
        out
    }

    /// The offset of abbreviations in a unit's header.
    fn unit_abbreviations(&self) -> Vec<Edit> {
        let dwarf = self.dwarf();
        let units: Vec<(usize, u32)> = Self::unit_headers(&dwarf)
            .iter()
            .filter_map(|h| {
                let field = if h.version() == 5 { 8 } else { 6 };
                let offset = u32::try_from(h.debug_abbrev_offset().0).ok()?;
                Some((h.debug_info_offset()?.0 + field, offset))
            })
            .collect();
        let pairs = units.windows(2).filter(|w| w[0].1 != w[1].1);
        pairs
            .map(|w| self.in_section(".debug_info", w[0].0, &w[1].1.to_le_bytes()))
            .collect()
    }

    /// Attributes of alternate declarations in another order: those with padding, of which the one in front is
    /// exchanged with it.
    fn abbreviations(&self) -> Vec<Edit> {
        let data = Self::section(&self.output, ".debug_abbrev");
        // The padding's number in ULEB128, and its form.
        let is_padding = |at: &usize| data.get(*at..*at + 3) == Some(&[0xd1, 0x7a, 0x0f]);
        let places = (2..data.len()).filter(is_padding);
        places
            .filter_map(|at| {
                let front = data.get(at - 2..at)?;
                let changed = [0xd1, 0x7a, 0x0f, front[0], front[1]];
                (front[0] == 0x55).then(|| self.in_section(".debug_abbrev", at - 2, &changed))
            })
            .collect()
    }

    fn row_edits(&self, kind: Kind) -> Vec<Edit> {
        let data = Self::section(&self.output, ".debug_line");
        let old = Self::section(&self.input, ".debug_line");
        let entries: Vec<u64> = self
            .claim
            .functions
            .iter()
            .map(|f| f.old_entry.get())
            .collect();
        let mut out = Vec::new();
        let dwarf = self.dwarf();
        for f in self.fields().iter().filter(|f| f.is_root) {
            let AttributeValue::DebugLineRef(at) = f.value else {
                continue;
            };
            let Ok(program) = dwarf.debug_line.program(at, 8, None, None) else {
                continue;
            };
            let header = program.header();
            let code = header.raw_program_buf().slice();
            // Programs that did not change are compared as well; those of interest did.
            if old.windows(code.len().max(1)).any(|w| w == code) || code.is_empty() {
                continue;
            }
            let first = code.as_ptr() as usize - data.as_ptr() as usize;
            let lengths = header.standard_opcode_lengths().slice();
            for step in steps(code, header.opcode_base(), lengths) {
                let at = first + step.at;
                let base = header.opcode_base();
                if kind == Kind::PrologueEndsLater {
                    let next = data
                        .get(at + 1)
                        .filter(|next| **next == 1 || **next >= base);
                    if let (Step::Standard(10), Some(next)) = (step.what, next) {
                        out.push(self.in_section(".debug_line", at, &[*next, 10]));
                    }
                    continue;
                }
                let value = code.get(step.at + 3..step.at + 11);
                let address = value.map_or(0, word);
                let is = |what: Step| step.what == what;
                let edit = match kind {
                    Kind::StatementTurned if is(Step::Standard(6)) => Some((at, 7)),
                    Kind::RowFlagLost if is(Step::Standard(10)) => Some((at, 7)),
                    Kind::RowColumnOther if is(Step::Standard(5)) && step.rows_follow => {
                        Some((at + 1, data[at + 1] ^ 1))
                    }
                    Kind::DiscriminatorOther if is(Step::Extended(4)) => {
                        Some((at + 3, data[at + 3] ^ 1))
                    }
                    Kind::RowAddressOff if is(Step::Extended(2)) => {
                        Some((at + 3, data[at + 3] ^ 1))
                    }
                    Kind::EntryJumpRowLost
                        if is(Step::Extended(2)) && entries.contains(&address) =>
                    {
                        Some((at + 4, data[at + 4] ^ 0x80))
                    }
                    Kind::RowLineOff if is(Step::Special) && data[at] < 0xff => {
                        Some((at, data[at] + 1))
                    }
                    Kind::SequenceTooLong if is(Step::Standard(2)) && step.ends => {
                        Some((at + 1, data[at + 1] ^ 1))
                    }
                    _ => None,
                };
                out.extend(edit.map(|(at, byte)| self.in_section(".debug_line", at, &[byte])));
            }
        }
        out
    }

    /// The last interval of a set in `.debug_aranges` that gained one.
    fn aranges(&self) -> Vec<Edit> {
        let data = Self::section(&self.output, ".debug_aranges");
        let end = self.input.extent().1;
        let pairs = (0..data.len() / 16).map(|i| 16 * i);
        pairs
            .filter(|at| word(&data[*at..at + 8]) >= end && word(&data[at + 8..at + 16]) > 1)
            .filter(|at| word(&data[at + 8..at + 16]) < 1 << 32)
            .map(|at| self.in_section(".debug_aranges", at + 8, &[data[at + 8] ^ 1]))
            .collect()
    }

    /// The unit of an interval in `.gdb_index`.
    fn gdb_index(&self) -> Vec<Edit> {
        let data = Self::section(&self.output, ".gdb_index");
        let field = |i: usize| data.get(4 * i..4 * i + 4).map_or(0, |b| word(b) as usize);
        let area = (field(3)..field(4)).step_by(20);
        area.filter_map(|at| Some((at + 16, *data.get(at + 16)?)))
            .map(|(at, unit)| self.in_section(".gdb_index", at, &[unit ^ 1]))
            .collect()
    }

    fn build_id(&self) -> Vec<Edit> {
        let id = |elf: &Elf<'a>| elf.note(b"GNU", elf::NT_GNU_BUILD_ID);
        let Some(new) = id(&self.output).filter(|new| !new.is_empty()) else {
            return Vec::new();
        };
        let at = new.as_ptr() as usize - self.output.data.as_ptr() as usize;
        vec![Edit::new("a bit of it", at, &[new[0] ^ 1])]
    }
}

/// A number of at most eight bytes.
fn word(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// One past a number in LEB128.
fn past_leb(data: &[u8], at: usize) -> Option<usize> {
    let rest = data.get(at..)?;
    Some(at + 1 + rest.iter().position(|byte| byte & 0x80 == 0)?)
}

/// Entries of a list up to DWARF 4.
fn items_4(data: &[u8], mut at: usize, locations: bool) -> Option<Vec<Item>> {
    let mut out = Vec::new();
    loop {
        let (start, end) = (
            word(data.get(at..at + 8)?),
            word(data.get(at + 8..at + 16)?),
        );
        let item = at;
        at += 16;
        if (start, end) == (0, 0) {
            return Some(out);
        }
        if start == u64::MAX {
            continue;
        }
        let mut expression = None;
        if locations {
            let len = word(data.get(at..at + 2)?) as usize;
            expression = (len > 0).then_some(at + 2);
            at += 2 + len;
        }
        // Nothing is at no byte, so nothing can be wrong there.
        if start < end {
            out.push(Item {
                start: item,
                end: at,
                upper: item + 8,
                expression,
            });
        }
    }
}

/// Entries of a list of DWARF 5.
fn items_5(data: &[u8], mut at: usize, locations: bool) -> Option<Vec<Item>> {
    let mut out = Vec::new();
    loop {
        let item = at;
        let kind = *data.get(at)?;
        at += 1;
        // In location lists the default takes a number.
        let plain = if locations && kind >= 6 {
            kind - 1
        } else {
            kind
        };
        let upper = match (kind, plain) {
            (0, _) => return Some(out),
            (1, _) => {
                at = past_leb(data, at)?;
                continue;
            }
            (9, _) if locations => {
                at = past_leb(data, past_leb(data, at)?)?;
                continue;
            }
            (5, _) if locations => return Some(out),
            (2..=4, _) => {
                let upper = past_leb(data, at)?;
                at = past_leb(data, upper)?;
                upper
            }
            (_, 5) => {
                at += 8;
                continue;
            }
            (_, 6) => {
                at += 16;
                at - 8
            }
            (_, 7) => {
                let upper = at + 8;
                at = past_leb(data, upper)?;
                upper
            }
            _ => return None,
        };
        let mut expression = None;
        if locations {
            let start = past_leb(data, at)?;
            let len = usize::from(*data.get(at)?); // longer ones than 127 bytes are rare
            expression = (len > 0).then_some(start);
            at = start + len;
        }
        out.push(Item {
            start: item,
            end: at,
            upper,
            expression,
        });
    }
}

/// An operation of a line program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Special,
    Standard(u8),
    Extended(u8),
}

struct Placed {
    what: Step,
    at: usize,
    /// The sequence ends right after it.
    ends: bool,
    /// The next operation but one that is no flag makes a row.
    rows_follow: bool,
}

/// The operations of a line program.
fn steps(code: &[u8], opcode_base: u8, lengths: &[u8]) -> Vec<Placed> {
    let mut out: Vec<Placed> = Vec::new();
    let mut at = 0;
    while let Some(&opcode) = code.get(at) {
        let start = at;
        at += 1;
        let what = match opcode {
            0 => {
                let Some(len) = past_leb(code, at) else { break };
                let size = usize::from(code[at]);
                at = len + size;
                Step::Extended(code.get(len).copied().unwrap_or(0))
            }
            9 => {
                at += 2;
                Step::Standard(9)
            }
            _ if opcode >= opcode_base => Step::Special,
            _ => {
                let arguments = lengths.get(usize::from(opcode) - 1).copied().unwrap_or(0);
                for _ in 0..arguments {
                    at = past_leb(code, at).unwrap_or(code.len());
                }
                Step::Standard(opcode)
            }
        };
        if let Some(last) = out.last_mut() {
            last.ends = what == Step::Extended(1);
            last.rows_follow = matches!(what, Step::Special);
        }
        out.push(Placed {
            what,
            at: start,
            ends: false,
            rows_follow: false,
        });
    }
    out
}
