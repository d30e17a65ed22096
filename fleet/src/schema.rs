//! The rows of a shard: one for each count. `docs/fleet.md` says the same for users of other engines; the two must
//! agree.
//!
//! A row belongs to one file (a program or a library), by its build-id. It says how often something happened there: a
//! counter counted, a branch was taken and a straight run followed it, an address was sampled. What is not known of
//! it is null: a branch without `from_address` came from another file.
//!
//! `count` and `mispredictions` are multiplied by `weight` already, so that all that any engine has to do is to group
//! and to add. Sums saturate at 2^64-1, as everywhere in postlink; engines add in 128 bits or decimals, and what is
//! more than 2^64-1 is cut when the profile is written.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use datafusion::arrow::array::{
    Array, ArrayRef, Date32Builder, RecordBatch, StringBuilder, UInt64Array, UInt64Builder,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};

/// Version of the schema, in the file's metadata under [`VERSION_KEY`].
pub const VERSION: u32 = 1;
/// Where the version is.
pub const VERSION_KEY: &str = "postlink.fleet.version";
/// The ids of the shards that were added up in a file, 32 hexadecimal digits each, one after the other.
pub const SHARDS_KEY: &str = "postlink.fleet.shards";
/// The number of rows: what the footer says must be the same.
pub const ROWS_KEY: &str = "postlink.fleet.rows";
/// The first and the last day of the rows, `2026-11-23/2026-11-24`.
pub const DAYS_KEY: &str = "postlink.fleet.days";

/// Names of the columns, in their order.
pub mod column {
    pub const BUILD_ID: &str = "build_id";
    pub const FILE: &str = "file";
    pub const KIND: &str = "kind";
    pub const MAP: &str = "map";
    pub const ADDRESS_KIND: &str = "address_kind";
    pub const FROM_FUNCTION: &str = "from_function";
    pub const FROM_ADDRESS: &str = "from_address";
    pub const TO_FUNCTION: &str = "to_function";
    pub const TO_ADDRESS: &str = "to_address";
    pub const RUN: &str = "run";
    pub const EVENT: &str = "event";
    pub const COUNT: &str = "count";
    pub const MISPREDICTIONS: &str = "mispredictions";
    pub const WEIGHT: &str = "weight";
    pub const DAY: &str = "day";
    pub const SERVICE: &str = "service";
    pub const HOST_CLASS: &str = "host_class";
    pub const SOURCE: &str = "source";
}

/// All columns but the two that are added up: what rows are grouped by, in the order in which they are sorted.
pub const KEYS: [&str; 16] = [
    column::BUILD_ID,
    column::FILE,
    column::KIND,
    column::MAP,
    column::ADDRESS_KIND,
    column::FROM_FUNCTION,
    column::FROM_ADDRESS,
    column::TO_FUNCTION,
    column::TO_ADDRESS,
    column::RUN,
    column::EVENT,
    column::WEIGHT,
    column::DAY,
    column::SERVICE,
    column::HOST_CLASS,
    column::SOURCE,
];

/// A column of rows by its name, of a type that is known.
pub fn of_type<'a, T: Array + 'static>(rows: &'a RecordBatch, name: &str) -> Result<&'a T> {
    let column = rows
        .column_by_name(name)
        .with_context(|| format!("rows without the column {name}"))?;
    let of_type = column.as_any().downcast_ref();
    of_type.with_context(|| {
        format!(
            "the column {name} is {}, and must be a {}",
            column.data_type(),
            std::any::type_name::<T>()
        )
    })
}

/// The schema.
pub fn schema() -> SchemaRef {
    let text = |name, null| Field::new(name, DataType::Utf8, null);
    let number = |name, null| Field::new(name, DataType::UInt64, null);
    Arc::new(Schema::new(vec![
        text(column::BUILD_ID, false),
        text(column::FILE, false),
        text(column::KIND, false),
        text(column::MAP, true),
        text(column::ADDRESS_KIND, true),
        text(column::FROM_FUNCTION, true),
        number(column::FROM_ADDRESS, true),
        text(column::TO_FUNCTION, true),
        number(column::TO_ADDRESS, true),
        number(column::RUN, true),
        text(column::EVENT, false),
        number(column::COUNT, false),
        number(column::MISPREDICTIONS, false),
        number(column::WEIGHT, false),
        Field::new(column::DAY, DataType::Date32, false),
        text(column::SERVICE, false),
        text(column::HOST_CLASS, false),
        text(column::SOURCE, false),
    ]))
}

/// What a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Branch,
    Call,
    CallExternal,
    CallOverflow,
    Counter,
    FallThrough,
    FallThroughExternal,
    FallThroughExternalReturn,
    Memory,
    Profile,
    Return,
    Sample,
    Statistic,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 13] = [
        Kind::Branch,
        Kind::Call,
        Kind::CallExternal,
        Kind::CallOverflow,
        Kind::Counter,
        Kind::FallThrough,
        Kind::FallThroughExternal,
        Kind::FallThroughExternalReturn,
        Kind::Memory,
        Kind::Profile,
        Kind::Return,
        Kind::Sample,
        Kind::Statistic,
    ];

    /// As it stands in the column.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Branch => "branch",
            Kind::Call => "call",
            Kind::CallExternal => "call_external",
            Kind::CallOverflow => "call_overflow",
            Kind::Counter => "counter",
            Kind::FallThrough => "fall_through",
            Kind::FallThroughExternal => "fall_through_external",
            Kind::FallThroughExternalReturn => "fall_through_external_return",
            Kind::Memory => "memory",
            Kind::Profile => "profile",
            Kind::Return => "return",
            Kind::Sample => "sample",
            Kind::Statistic => "statistic",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What the addresses of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressKind {
    /// Numbers of counters and of call sites; targets of calls are addresses as linked.
    Counter,
    /// Offsets in functions.
    Function,
    /// Addresses of the file as it was linked.
    Linked,
    /// Offsets in the file: it was not at hand when the profile was added.
    FileOffset,
    /// Addresses in a process of which no mappings are known.
    RunTime,
}

impl AddressKind {
    /// As it stands in the column.
    pub fn name(self) -> &'static str {
        match self {
            AddressKind::Counter => "counter",
            AddressKind::Function => "function",
            AddressKind::Linked => "linked",
            AddressKind::FileOffset => "file_offset",
            AddressKind::RunTime => "run_time",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<AddressKind> {
        use AddressKind::{Counter, FileOffset, Function, Linked, RunTime};
        let all = [Counter, Function, Linked, FileOffset, RunTime];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// What all rows of a shard have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Days since 1970-01-01.
    pub day: i32,
    pub service: String,
    pub host_class: String,
    pub source: String,
    pub weight: u64,
}

/// A row, without what is in [`Labels`]. Strings are numbers in [`Rows::names`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number in [`Rows::files`].
    pub file: u32,
    pub kind: Option<Kind>,
    pub address_kind: Option<AddressKind>,
    pub map: Option<u32>,
    pub from_function: Option<u32>,
    pub from_address: Option<u64>,
    pub to_function: Option<u32>,
    pub to_address: Option<u64>,
    pub run: Option<u64>,
    pub event: u32,
    pub count: u64,
    pub mispredictions: u64,
}

/// The rows of one profile.
#[derive(Debug, Default)]
pub struct Rows {
    /// Build-id and name of each file.
    pub files: Vec<(String, String)>,
    names: Vec<String>,
    numbers: std::collections::HashMap<String, u32>,
    pub rows: Vec<Row>,
}

impl Rows {
    /// The number of a string.
    pub fn name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The number of a file.
    pub fn file(&mut self, build_id: &str, name: &str) -> u32 {
        let found = self
            .files
            .iter()
            .position(|file| file.0 == build_id && file.1 == name);
        let number = found.unwrap_or_else(|| {
            self.files.push((build_id.to_owned(), name.to_owned()));
            self.files.len() - 1
        });
        number as u32
    }

    fn text(&self, number: Option<u32>) -> Option<&str> {
        number.map(|number| self.names.get(number as usize).map_or("", String::as_str))
    }

    fn file_of(&self, row: &Row) -> (&str, &str) {
        let file = self.files.get(row.file as usize);
        file.map_or(("", ""), |(id, name)| (id, name))
    }

    /// Everything of a row in the order of the sort.
    #[allow(clippy::type_complexity)]
    fn key<'r>(&'r self, row: &'r Row) -> impl Ord + use<'r> {
        (
            self.file_of(row),
            row.kind.map(Kind::name),
            self.text(row.map),
            row.address_kind.map(AddressKind::name),
            (self.text(row.from_function), row.from_address),
            (self.text(row.to_function), row.to_address),
            row.run,
            self.text(Some(row.event)),
        )
    }

    /// Sorts the rows and gives their id: a hash of all that they say, with their labels and the name of the run.
    pub fn finish(&mut self, labels: &Labels, run: &str) -> String {
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by(|a, b| self.key(a).cmp(&self.key(b)));
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let mut text = |text: Option<&str>| {
            hash.update(
                &text
                    .map_or(u64::MAX, |text| text.len() as u64)
                    .to_le_bytes(),
            );
            hash.update(text.unwrap_or_default().as_bytes());
        };
        for label in [run, &labels.service, &labels.host_class, &labels.source] {
            text(Some(label));
        }
        let numbers = format!("{VERSION} {} {}", labels.day, labels.weight);
        text(Some(&numbers));
        for row in &rows {
            let (id, name) = self.file_of(row);
            text(Some(id));
            text(Some(name));
            text(row.kind.map(Kind::name));
            text(self.text(row.map));
            text(row.address_kind.map(AddressKind::name));
            text(self.text(row.from_function));
            text(self.text(row.to_function));
            text(self.text(Some(row.event)));
            let numbers = [row.from_address, row.to_address, row.run]
                .map(|n| n.map_or_else(|| "-".to_owned(), |n| n.to_string()));
            text(Some(&format!(
                "{} {} {}",
                numbers.join(" "),
                row.count,
                row.mispredictions
            )));
        }
        self.rows = rows;
        format!("{:032x}", hash.digest128())
    }

    /// Rows as a batch.
    pub fn batch(&self, rows: &[Row], labels: &Labels) -> Result<RecordBatch> {
        let (mut build_id, mut file) = (StringBuilder::new(), StringBuilder::new());
        let (mut kind, mut map, mut address_kind) = (
            StringBuilder::new(),
            StringBuilder::new(),
            StringBuilder::new(),
        );
        let (mut from, mut to, mut run) = (
            UInt64Builder::new(),
            UInt64Builder::new(),
            UInt64Builder::new(),
        );
        let (mut from_function, mut to_function, mut event) = (
            StringBuilder::new(),
            StringBuilder::new(),
            StringBuilder::new(),
        );
        for row in rows {
            let (id, name) = self.file_of(row);
            build_id.append_value(id);
            file.append_value(name);
            kind.append_option(row.kind.map(Kind::name));
            map.append_option(self.text(row.map));
            address_kind.append_option(row.address_kind.map(AddressKind::name));
            from_function.append_option(self.text(row.from_function));
            from.append_option(row.from_address);
            to_function.append_option(self.text(row.to_function));
            to.append_option(row.to_address);
            run.append_option(row.run);
            event.append_option(self.text(Some(row.event)));
        }
        let counts = |of: fn(&Row) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(of)))
        };
        let label = |text: &str| -> ArrayRef {
            let mut column = StringBuilder::new();
            rows.iter().for_each(|_| column.append_value(text));
            Arc::new(column.finish())
        };
        let mut day = Date32Builder::new();
        rows.iter().for_each(|_| day.append_value(labels.day));
        let weight = UInt64Array::from_iter_values(rows.iter().map(|_| labels.weight));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(build_id.finish()),
            Arc::new(file.finish()),
            Arc::new(kind.finish()),
            Arc::new(map.finish()),
            Arc::new(address_kind.finish()),
            Arc::new(from_function.finish()),
            Arc::new(from.finish()),
            Arc::new(to_function.finish()),
            Arc::new(to.finish()),
            Arc::new(run.finish()),
            Arc::new(event.finish()),
            counts(|row| row.count),
            counts(|row| row.mispredictions),
            Arc::new(weight),
            Arc::new(day.finish()),
            label(&labels.service),
            label(&labels.host_class),
            label(&labels.source),
        ];
        Ok(RecordBatch::try_new(schema(), columns)?)
    }
}

/// A name of bytes as text: a backslash is doubled, a byte that is no UTF-8 becomes `\xNN`.
pub fn to_text(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// The bytes of a name; the reverse of [`to_text`].
pub fn from_text(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let hex = after.strip_prefix('x').and_then(|hex| hex.get(..2));
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = match (after.strip_prefix('\\'), byte) {
            (Some(after), _) => {
                out.push(b'\\');
                after
            }
            (None, Some(byte)) => {
                out.push(byte);
                after.get(3..).unwrap_or_default()
            }
            (None, None) => bail!(
                "the name {text:?}: after a backslash must be another one or x and two hexadecimal digits, not {:?}",
                after.chars().take(3).collect::<String>()
            ),
        };
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Before the name of a file in a column of functions: the place is in no function of that file.
pub const OUTSIDE: &str = "\\o:";

/// Days since 1970-01-01 of a date `2026-11-23` (proleptic Gregorian calendar).
pub fn parse_day(text: &str) -> Result<i32> {
    use datafusion::arrow::compute::cast;
    let wrong = || anyhow::anyhow!("{text:?} is no day: must be like 2026-11-23");
    let shape = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if !shape {
        return Err(wrong());
    }
    let column = datafusion::arrow::array::StringArray::from(vec![text]);
    let days = cast(&column, &DataType::Date32)?;
    let days = days
        .as_any()
        .downcast_ref::<datafusion::arrow::array::Date32Array>();
    days.and_then(|days| days.iter().next().flatten())
        .ok_or_else(wrong)
}

/// A day as text.
pub fn day_text(day: i32) -> String {
    // Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
    let shifted = i64::from(day) + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Today, by this machine's clock (UTC).
pub fn today() -> i32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| (since.as_secs() / 86_400) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_survives_as_text() {
        for name in [
            &b"main"[..],
            b"a\\b",
            b"\xff\xfe\\x00",
            "größe\\".as_bytes(),
            b"\\o:x",
            b"",
        ] {
            let text = to_text(name);
            assert_eq!(from_text(&text).unwrap(), name, "{text}");
            assert!(!text.starts_with(OUTSIDE), "{text}");
        }
        assert!(from_text("a\\q").unwrap_err().to_string().contains("\"q\""));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (text, day) in [
            ("1970-01-01", 0),
            ("2000-02-29", 11_016),
            ("2026-11-23", 20_780),
            ("1969-12-31", -1),
        ] {
            assert_eq!(parse_day(text).unwrap(), day, "{text}");
            assert_eq!(day_text(day), text);
        }
        for text in ["2026-02-30", "26-11-23", "tomorrow", "2026-11-23T00", ""] {
            assert!(
                parse_day(text).unwrap_err().to_string().contains("no day"),
                "{text}"
            );
        }
    }
}
