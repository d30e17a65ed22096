//! Entries that say the same in both files because they have the same bytes.
//!
//! Most entries speak of types, names and places in the source: no attribute of theirs has an address, names a list or
//! is an expression. Where both files give such an entry the same abbreviation and the same bytes, it says the same,
//! and its attributes need not be read one by one.
//!
//! Which abbreviations are like that ([`is_plain`]) is decided by the forms of their attributes: those that are not
//! known here are not.

use gimli::constants as c;
use gimli::{Abbreviation, Abbreviations, AttributeSpecification, Encoding, Format};

/// A part of an entry: bytes to be passed over, and then one value that says itself how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    skip: usize,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A number in LEB128.
    Number,
    /// Bytes up to a zero byte.
    String,
}

/// What is known of an abbreviation code.
#[derive(Clone, Debug)]
enum Code {
    /// It was not asked for yet.
    Unknown,
    /// Entries with it have to be read. Whether it means the same in both files, and then for each attribute whether it
    /// may say something else where the entry has the same bytes.
    Read(Option<Vec<bool>>),
    /// Entries with it are passed over.
    Plain {
        steps: Vec<Step>,
        /// Bytes behind the last step.
        rest: usize,
        has_children: bool,
    },
}

/// Passes over entries of a unit in both files.
pub(super) struct Plain<'u> {
    /// The bytes of the unit's entries in both files. Places are counted from there.
    bytes: [&'u [u8]; 2],
    abbreviations: [&'u Abbreviations; 2],
    encoding: Encoding,
    /// Equal indexes of strings are equal strings.
    same_strings: bool,
    /// By code.
    codes: Vec<Code>,
    /// Up to where both files are known to have the same bytes.
    same: usize,
}

/// Codes from here on are looked up in gimli's tables alone.
const CODES: u64 = 1 << 16;

/// What was passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// Where the next entry is that has to be read, or the end.
    pub at: usize,
    pub entries: u64,
}

impl<'u> Plain<'u> {
    pub fn new(
        bytes: [&'u [u8]; 2],
        abbreviations: [&'u Abbreviations; 2],
        encoding: Encoding,
        same_strings: bool,
    ) -> Self {
        Plain {
            bytes,
            abbreviations,
            encoding,
            same_strings,
            codes: Vec::new(),
            same: 0,
        }
    }

    /// Passes over entries from a place on. `depth` is that of the entry there, and then that of the next.
    pub fn pass(&mut self, at: usize, depth: &mut isize) -> Passed {
        let mut passed = Passed { at, entries: 0 };
        loop {
            let Some((next, is_entry)) = self.one(passed.at, depth) else {
                return passed;
            };
            passed.at = next;
            passed.entries += u64::from(is_entry);
        }
    }

    /// The end of the entry at a place, and whether it is one or the end of a list of children. `None` if it has to be
    /// read.
    fn one(&mut self, start: usize, depth: &mut isize) -> Option<(usize, bool)> {
        let bytes = self.bytes[0];
        let (code, mut at) = short_number(bytes, start)?;
        if code == 0 {
            return self.is_same(start, at).then(|| {
                *depth -= 1;
                (at, false)
            });
        }
        let index = self.known(code)?;
        let Some(Code::Plain {
            steps,
            rest,
            has_children,
        }) = self.codes.get(index)
        else {
            return None;
        };
        for step in steps {
            at = at.checked_add(step.skip)?;
            at = match step.then {
                Then::Number => short_number(bytes, at)?.1,
                Then::String => {
                    let rest = bytes.get(at..)?;
                    at + rest.iter().position(|b| *b == 0)? + 1
                }
            };
        }
        at = at.checked_add(*rest).filter(|end| *end <= bytes.len())?;
        let has_children = *has_children;
        if !self.is_same(start, at) {
            return None;
        }
        *depth += isize::from(has_children);
        Some((at, true))
    }

    /// The place of a code among those that are known, once it is; `None` if it is looked up in gimli's tables alone.
    fn known(&mut self, code: u64) -> Option<usize> {
        let index = usize::try_from(code).ok().filter(|_| code < CODES)?;
        if matches!(self.codes.get(index), None | Some(Code::Unknown)) {
            if self.codes.len() <= index {
                self.codes.resize(index + 1, Code::Unknown);
            }
            let [a, b] = self.abbreviations;
            let both = [a.get(code), b.get(code)];
            self.codes[index] = code_of(both, self.encoding, self.same_strings);
        }
        Some(index)
    }

    /// Of an entry that has to be read, from one place to another: if both files have the same bytes there and give
    /// them the same meaning, which of its attributes may say something else all the same.
    pub fn same(&mut self, start: usize, end: usize) -> Option<&[bool]> {
        let (code, _) = short_number(self.bytes[0], start)?;
        let index = self.known(code)?;
        if !self.is_same(start, end) {
            return None;
        }
        match self.codes.get(index) {
            Some(Code::Read(Some(moving))) => Some(moving),
            _ => None,
        }
    }

    /// Whether both files have the same bytes from one place to another. Places ascend.
    fn is_same(&mut self, start: usize, end: usize) -> bool {
        if self.same < end {
            let [a, b] = self.bytes;
            let from = self.same.max(start);
            let is_same = |to: usize| {
                let old = a.get(from..to);
                old.is_some() && old == b.get(from..to)
            };
            // What follows is looked at as well, a good piece at a time.
            const PIECE: usize = 256;
            let ahead = (from + PIECE).min(a.len());
            self.same = if ahead > end && is_same(ahead) {
                ahead
            } else if is_same(end) {
                end
            } else {
                return false;
            };
        }
        true
    }
}

/// A number in ULEB128 of at most 9 bytes, and where it ends. Longer ones may exceed 64 bits, of which readers think
/// differently.
fn short_number(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for (i, byte) in bytes.get(at..)?.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, at + i + 1));
        }
    }
    None
}

/// How to pass over entries of an abbreviation that both files have.
fn code_of(both: [Option<&Abbreviation>; 2], encoding: Encoding, same_strings: bool) -> Code {
    let [Some(old), Some(new)] = both else {
        return Code::Read(None);
    };
    let head = |a: &Abbreviation| (a.tag(), a.has_children());
    if head(old) != head(new) || old.attributes() != new.attributes() {
        return Code::Read(None);
    }
    let value = |spec: &AttributeSpecification| value_of(spec, encoding, same_strings);
    let (mut steps, mut rest) = (Vec::new(), 0);
    for spec in old.attributes() {
        match value(spec) {
            Some(Value::Fixed(len)) => rest += len,
            Some(Value::Own(then)) => {
                let skip = std::mem::take(&mut rest);
                steps.push(Step { skip, then });
            }
            None => {
                let all = old.attributes().iter();
                return Code::Read(Some(all.map(|spec| value(spec).is_none()).collect()));
            }
        }
    }
    Code::Plain {
        steps,
        rest,
        has_children: old.has_children(),
    }
}

/// How long a value is.
enum Value {
    Fixed(usize),
    Own(Then),
}

/// How long the values of an attribute are that says the same wherever code is; `None` if it may not.
fn value_of(
    spec: &AttributeSpecification,
    encoding: Encoding,
    same_strings: bool,
) -> Option<Value> {
    // Of these the other attributes of their entry are to be seen with them.
    if matches!(
        spec.name(),
        c::DW_AT_low_pc | c::DW_AT_high_pc | c::DW_AT_ranges | c::DW_AT_entry_pc
    ) {
        return None;
    }
    let offset = match encoding.format {
        Format::Dwarf32 => 4,
        Format::Dwarf64 => 8,
    };
    Some(match spec.form() {
        c::DW_FORM_flag_present | c::DW_FORM_implicit_const => Value::Fixed(0),
        c::DW_FORM_data1 | c::DW_FORM_ref1 | c::DW_FORM_flag => Value::Fixed(1),
        c::DW_FORM_data2 | c::DW_FORM_ref2 => Value::Fixed(2),
        // Offsets have these forms in older versions.
        c::DW_FORM_data4 | c::DW_FORM_data8 if encoding.version < 4 => return None,
        c::DW_FORM_data4 | c::DW_FORM_ref4 | c::DW_FORM_ref_sup4 => Value::Fixed(4),
        c::DW_FORM_data8 | c::DW_FORM_ref8 | c::DW_FORM_ref_sig8 | c::DW_FORM_ref_sup8 => {
            Value::Fixed(8)
        }
        c::DW_FORM_data16 => Value::Fixed(16),
        c::DW_FORM_ref_addr if encoding.version == 2 => return None,
        c::DW_FORM_strp
        | c::DW_FORM_line_strp
        | c::DW_FORM_strp_sup
        | c::DW_FORM_GNU_strp_alt
        | c::DW_FORM_ref_addr
        | c::DW_FORM_GNU_ref_alt => Value::Fixed(offset),
        c::DW_FORM_udata | c::DW_FORM_sdata | c::DW_FORM_ref_udata => Value::Own(Then::Number),
        c::DW_FORM_string => Value::Own(Then::String),
        c::DW_FORM_strx1 if same_strings => Value::Fixed(1),
        c::DW_FORM_strx2 if same_strings => Value::Fixed(2),
        c::DW_FORM_strx3 if same_strings => Value::Fixed(3),
        c::DW_FORM_strx4 if same_strings => Value::Fixed(4),
        c::DW_FORM_strx | c::DW_FORM_GNU_str_index if same_strings => Value::Own(Then::Number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::{DebugAbbrev, DebugAbbrevOffset, LittleEndian};

    /// Tables: 1 a name, 2 a name and children, 3 an address, 4 a string, a number and a reference.
    const TABLE: &[u8] = &[
        1, 0x24, 0, 0x03, 0x0e, 0, 0, //
        2, 0x13, 1, 0x03, 0x0e, 0, 0, //
        3, 0x0a, 0, 0x11, 0x01, 0, 0, //
        4, 0x34, 0, 0x03, 0x08, 0x0b, 0x0f, 0x49, 0x13, 0, 0, 0,
    ];

    fn passed(tables: [&[u8]; 2], bytes: [&[u8]; 2], version: u16) -> (Passed, isize) {
        let tables = tables.map(|table| {
            let section = DebugAbbrev::new(table, LittleEndian);
            section.abbreviations(DebugAbbrevOffset(0)).unwrap()
        });
        let encoding = Encoding {
            format: Format::Dwarf32,
            version,
            address_size: 8,
        };
        let mut depth = 1;
        let [a, b] = &tables;
        let mut plain = Plain::new(bytes, [a, b], encoding, true);
        (plain.pass(0, &mut depth), depth)
    }

    #[test]
    fn entries_with_the_same_bytes_are_passed_over_up_to_one_with_an_address() {
        let entries = [
            &[2, 1, 0, 0, 0][..],
            &[4, b'x', 0, 0x80, 1, 9, 0, 0, 0],
            &[0, 1, 2, 0, 0, 0],
            &[3, 0, 0x10, 0, 0, 0, 0, 0, 0, 0],
        ];
        let all = entries.concat();
        let at = all.len() - 10;
        let (found, depth) = passed([TABLE; 2], [&all; 2], 4);
        assert_eq!((found, depth), (Passed { at, entries: 3 }, 1));
        // Up to the end, if there is none.
        let (found, depth) = passed([TABLE; 2], [&all[..at]; 2], 4);
        assert_eq!((found, depth), (Passed { at, entries: 3 }, 1));
        // A byte that differs, each in turn, is in an entry that is read.
        for i in 0..at {
            let mut other = all.clone();
            other[i] ^= 0x40;
            let (found, _) = passed([TABLE; 2], [&all, &other], 4);
            assert!(found.at <= i, "{i}: {found:?}");
        }
    }

    /// Of an entry with an address and a name the address alone may say something else.
    #[test]
    fn attributes_of_entries_with_the_same_bytes_are_told_that_may_say_something_else() {
        let table = [1, 0x0a, 0, 0x03, 0x0e, 0x11, 0x01, 0, 0, 0];
        let other = [1, 0x0a, 0, 0x03, 0x0e, 0x52, 0x01, 0, 0, 0];
        let entry = [1, 7, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        let same = |tables: [&[u8]; 2], bytes: [&[u8]; 2]| {
            let tables = tables.map(|table| {
                let section = DebugAbbrev::new(table, LittleEndian);
                section.abbreviations(DebugAbbrevOffset(0)).unwrap()
            });
            let encoding = Encoding {
                format: Format::Dwarf32,
                version: 4,
                address_size: 8,
            };
            let [a, b] = &tables;
            let mut plain = Plain::new(bytes, [a, b], encoding, true);
            plain.same(0, entry.len()).map(<[bool]>::to_vec)
        };
        assert_eq!(same([&table; 2], [&entry; 2]), Some(vec![false, true]));
        assert_eq!(same([&table, &other], [&entry; 2]), None);
        assert_eq!(same([&table; 2], [&entry[..9]; 2]), None);
        for i in 0..entry.len() {
            let mut changed = entry;
            changed[i] ^= 0x40;
            assert_eq!(same([&table; 2], [&entry, &changed]), None, "{i}");
        }
    }

    #[test]
    fn entries_are_read_whose_abbreviation_changed() {
        let entry = [1, 1, 0, 0, 0];
        assert_eq!(passed([TABLE; 2], [&entry; 2], 4).0.at, 5);
        // Its tag, whether it has children, its attribute, the form of that.
        for i in [1, 2, 3, 4] {
            let mut other = TABLE.to_vec();
            other[i] = [0, 0x16, 1, 0x25, 0x17][i];
            assert_eq!(passed([TABLE, &other], [&entry; 2], 4).0.at, 0, "{i}");
        }
    }

    #[test]
    fn entries_are_read_that_end_too_early_or_have_numbers_that_are_too_long() {
        for entry in [&[1, 1, 0][..], &[4, b'x'], &[4, b'x', 0, 0x80], &[9]] {
            assert_eq!(passed([TABLE; 2], [entry; 2], 4).0, Passed::default());
        }
        let mut long = vec![4, b'x', 0];
        long.extend([0x80; 9]);
        long.extend([0, 1, 0, 0, 0]);
        assert_eq!(passed([TABLE; 2], [&long; 2], 4).0, Passed::default());
    }

    /// Before DWARF 4 offsets of lists have the forms of numbers.
    #[test]
    fn numbers_that_may_be_offsets_are_read() {
        let table = [1, 0x34, 0, 0x02, 0x06, 0, 0, 0];
        let entry = [1, 1, 0, 0, 0];
        let at = |version| passed([&table; 2], [&entry; 2], version).0.at;
        assert_eq!([at(2), at(3), at(4)], [0, 0, 5]);
    }
}
