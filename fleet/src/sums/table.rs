//! Rows that are added up in memory: a hash table of keys of fixed width.
//!
//! Strings are numbers here, and so are combinations of columns that change rarely: the five columns in front (a
//! *head*) and the six after `run` (a *label*). What is left of a key are four such numbers and three addresses, 48
//! bytes; with the two counts, one line of the cache. A shard's strings come as dictionaries, so each is looked up once
//! for a shard, and not for a row.
//!
//! Shards of one program have the same rows in the same order, mostly: a row is compared first with the one after that
//! to which the last row was added, and only then looked up by its hash.
//!
//! Nothing here asks for an order of the rows, so a shard whose rows are not sorted is added up as any other.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use anyhow::{Context, Result};
use datafusion::arrow::array::{
    Array, ArrayRef, Date32Array, DictionaryArray, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, Int32Type, Schema, SchemaRef};
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::key::{HEAD, Label, put_label, put_number, put_text};
use crate::schema::{column, of_type, schema};

/// Columns of text: those of the head, two functions, and four of the label.
const TEXTS: [&str; HEAD + 6] = [
    column::BUILD_ID,
    column::FILE,
    column::KIND,
    column::MAP,
    column::ADDRESS_KIND,
    column::FROM_FUNCTION,
    column::TO_FUNCTION,
    column::EVENT,
    column::SERVICE,
    column::HOST_CLASS,
    column::SOURCE,
];

/// The schema with dictionaries for strings: what a table is given.
pub fn with_dictionaries() -> SchemaRef {
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let fields = schema();
    let fields = fields.fields().iter().map(|field| {
        let field = field.as_ref().clone();
        match field.data_type() {
            DataType::Utf8 => field.with_data_type(text.clone()),
            _ => field,
        }
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A row. Of addresses that are null the number is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    head: u32,
    from_function: u32,
    from_address: u64,
    to_function: u32,
    label: u32,
    to_address: u64,
    run: u64,
    /// Which of the three addresses are not null: 4, 2, 1.
    present: u64,
    count: u64,
    mispredictions: u64,
}

const FROM: u64 = 4;
const TO: u64 = 2;
const RUN: u64 = 1;

impl Entry {
    fn is_same(&self, other: &Entry) -> bool {
        self.key() == other.key()
    }

    fn key(&self) -> [u64; 6] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [
            pair(self.head, self.from_function),
            self.from_address,
            pair(self.to_function, self.label),
            self.to_address,
            self.run,
            self.present,
        ]
    }

    fn hash(&self, seed: u64) -> u64 {
        // Multiplied to 128 bits and folded, as wyhash does.
        self.key().into_iter().fold(seed, |hash, word| {
            let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
            (product as u64) ^ ((product >> 64) as u64)
        })
    }

    /// By the columns in their order, once all numbers are ranks.
    fn compare(&self, other: &Entry) -> std::cmp::Ordering {
        let head = |entry: &Entry| (entry.head, entry.from_function);
        let address = |entry: &Entry, bit: u64, address: u64| (entry.present & bit, address);
        head(self)
            .cmp(&head(other))
            .then_with(|| {
                address(self, FROM, self.from_address).cmp(&address(
                    other,
                    FROM,
                    other.from_address,
                ))
            })
            .then_with(|| self.to_function.cmp(&other.to_function))
            .then_with(|| {
                address(self, TO, self.to_address).cmp(&address(other, TO, other.to_address))
            })
            .then_with(|| address(self, RUN, self.run).cmp(&address(other, RUN, other.run)))
            .then_with(|| self.label.cmp(&other.label))
    }

    fn add(&mut self, other: &Entry) {
        self.count = self.count.saturating_add(other.count);
        self.mispredictions = self.mispredictions.saturating_add(other.mispredictions);
    }
}

/// Bytes of an entry with its place in the index.
const OF_ENTRY: usize = size_of::<Entry>() + 8;
/// Bytes of a label or a head, of which there are few, with its place in an index and as a part of a key.
const OF_LABEL: usize = 256;
/// Bytes of a text beside its own.
const OF_TEXT: usize = 32;

/// Strings by numbers from 1 on; 0 is null.
#[derive(Default)]
struct Texts {
    bytes: String,
    spans: Vec<(usize, usize)>,
    index: HashTable<u32>,
}

impl Texts {
    fn get(&self, number: u32) -> Option<&str> {
        let (from, to) = *self.spans.get((number as usize).checked_sub(1)?)?;
        self.bytes.get(from..to)
    }

    fn number(&mut self, text: &str, seed: u64) -> u32 {
        let Texts {
            bytes,
            spans,
            index,
        } = self;
        let at = |number: u32| {
            let span = spans.get((number as usize).wrapping_sub(1));
            span.and_then(|(from, to)| bytes.get(*from..*to))
        };
        let of = |text: &str| xxh3_64_with_seed(text.as_bytes(), seed);
        let hash = of(text);
        if let Some(number) = index.find(hash, |number| at(*number) == Some(text)) {
            return *number;
        }
        let number = spans.len() as u32 + 1;
        index.insert_unique(hash, number, |number| of(at(*number).unwrap_or_default()));
        spans.push((bytes.len(), bytes.len() + text.len()));
        bytes.push_str(text);
        number
    }

    /// Gives the texts numbers in their order; says for each number which it has now.
    fn sort(&mut self) -> Vec<u32> {
        self.index = HashTable::new();
        let bytes = &self.bytes;
        let mut order: Vec<u32> = (0..self.spans.len() as u32).collect();
        let text = |at: &u32| {
            let span = self.spans.get(*at as usize);
            span.and_then(|(from, to)| bytes.get(*from..*to))
        };
        order.sort_unstable_by(|a, b| text(a).cmp(&text(b)));
        let spans = order.iter().filter_map(|at| self.spans.get(*at as usize));
        let spans = spans.copied().collect();
        self.spans = spans;
        ranks(&order, 1)
    }
}

/// For each number from `first` on, which place it has in an order.
fn ranks(order: &[u32], first: u32) -> Vec<u32> {
    let mut ranks = vec![0; order.len() + first as usize];
    for (rank, at) in order.iter().enumerate() {
        if let Some(to) = ranks.get_mut((at + first) as usize) {
            *to = rank as u32 + first;
        }
    }
    ranks
}

/// A number by its rank.
fn renamed(ranks: &[u32], number: u32) -> u32 {
    ranks.get(number as usize).copied().unwrap_or(0)
}

type Head = [u32; HEAD];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LabelNumbers {
    event: u32,
    weight: u64,
    day: i32,
    service: u32,
    host_class: u32,
    source: u32,
}

/// Values that get numbers from 0 on.
struct Numbered<T> {
    list: Vec<T>,
    numbers: HashMap<T, u32>,
    last: Option<(T, u32)>,
}

impl<T: Copy + Eq + Ord + std::hash::Hash> Numbered<T> {
    fn new() -> Numbered<T> {
        Numbered {
            list: Vec::new(),
            numbers: HashMap::new(),
            last: None,
        }
    }

    fn number(&mut self, value: T) -> u32 {
        if let Some((last, number)) = self.last
            && last == value
        {
            return number;
        }
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(value).or_insert(next);
        if number == next {
            self.list.push(value);
        }
        self.last = Some((value, number));
        number
    }

    /// The values in their order, and the new number of each.
    fn sorted(self, rename: impl Fn(T) -> T) -> (Vec<T>, Vec<u32>) {
        let list: Vec<T> = self.list.into_iter().map(rename).collect();
        let mut order: Vec<u32> = (0..list.len() as u32).collect();
        order.sort_unstable_by_key(|at| list.get(*at as usize));
        let sorted = order.iter().filter_map(|at| list.get(*at as usize));
        (sorted.copied().collect(), ranks(&order, 0))
    }
}

/// The numbers of a dictionary's texts.
#[derive(Default)]
struct Dictionary {
    values: Option<ArrayRef>,
    numbers: Vec<u32>,
}

/// Rows that are added up.
pub struct Table {
    seed: u64,
    limit: usize,
    texts: Texts,
    heads: Numbered<Head>,
    labels: Numbered<LabelNumbers>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    /// The entry to which the last row was added.
    last: usize,
    dictionaries: [Dictionary; TEXTS.len()],
}

impl Table {
    /// An empty table that is full when it has about so many bytes.
    pub fn new(limit: usize) -> Table {
        Table {
            seed: RandomState::new().hash_one(0u64),
            limit,
            texts: Texts::default(),
            heads: Numbered::new(),
            labels: Numbered::new(),
            entries: Vec::new(),
            index: HashTable::new(),
            last: 0,
            dictionaries: Default::default(),
        }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it must be emptied before more is added.
    pub fn is_full(&self) -> bool {
        let texts = self.texts.bytes.len() + self.texts.spans.len() * OF_TEXT;
        let labels = (self.labels.list.len() + self.heads.list.len()) * OF_LABEL;
        // Numbers of entries have 32 bits.
        self.entries.len() * OF_ENTRY + texts + labels >= self.limit
            || self.entries.len() >= u32::MAX as usize
    }

    /// Adds the rows of a batch from `from` on, but for those of days before `since`, until it is full; gives the
    /// first that it has not added.
    pub fn add(&mut self, batch: &RecordBatch, from: usize, since: Option<i32>) -> Result<usize> {
        let mut texts: [Vec<u32>; TEXTS.len()] = Default::default();
        for (at, name) in TEXTS.iter().enumerate() {
            if let (Some(dictionary), Some(numbers)) =
                (self.dictionaries.get_mut(at), texts.get_mut(at))
            {
                let column = of_type::<DictionaryArray<Int32Type>>(batch, name)?;
                *numbers = dictionary.numbers(column, from, &mut self.texts, self.seed)?;
            }
        }
        let rows = batch.num_rows() - from;
        let (days, weights) = (
            of_type::<Date32Array>(batch, column::DAY)?,
            of_type::<UInt64Array>(batch, column::WEIGHT)?,
        );
        let addresses = |name| of_type::<UInt64Array>(batch, name);
        let (from_addresses, to_addresses, runs) = (
            addresses(column::FROM_ADDRESS)?,
            addresses(column::TO_ADDRESS)?,
            addresses(column::RUN)?,
        );
        let counts = addresses(column::COUNT)?.values();
        let missed = addresses(column::MISPREDICTIONS)?.values();
        let (days, weights) = (days.values(), weights.values());
        // The same length for all, so that no access below can miss.
        let texts = texts.each_ref().map(|column| column.get(..rows));
        let [
            Some(build_ids),
            Some(files),
            Some(kinds),
            Some(maps),
            Some(address_kinds),
            Some(from_functions),
            Some(to_functions),
            Some(events),
            Some(services),
            Some(host_classes),
            Some(sources),
        ] = texts
        else {
            anyhow::bail!("columns of other lengths than {rows}");
        };
        for row in 0..rows {
            let all = from + row;
            let day = days.get(all).copied().unwrap_or(0);
            if since.is_some_and(|since| day < since) {
                continue;
            }
            let at = |column: &[u32]| column.get(row).copied().unwrap_or(0);
            let number = |column: &[u64]| column.get(all).copied().unwrap_or(0);
            let head = [build_ids, files, kinds, maps, address_kinds].map(at);
            let label = LabelNumbers {
                event: at(events),
                weight: number(weights),
                day,
                service: at(services),
                host_class: at(host_classes),
                source: at(sources),
            };
            let mut entry = Entry {
                head: self.heads.number(head),
                from_function: at(from_functions),
                to_function: at(to_functions),
                label: self.labels.number(label),
                count: number(counts),
                mispredictions: number(missed),
                ..Entry::default()
            };
            for (column, bit, to) in [
                (from_addresses, FROM, &mut entry.from_address),
                (to_addresses, TO, &mut entry.to_address),
                (runs, RUN, &mut entry.run),
            ] {
                if column.is_valid(all) {
                    *to = column.value(all);
                    entry.present |= bit;
                }
            }
            self.insert(entry);
            if self.is_full() {
                return Ok(all + 1);
            }
        }
        Ok(batch.num_rows())
    }

    fn insert(&mut self, entry: Entry) {
        let next = self.last + 1;
        if let Some(known) = self.entries.get_mut(next)
            && known.is_same(&entry)
        {
            known.add(&entry);
            self.last = next;
            return;
        }
        let (entries, seed) = (&mut self.entries, self.seed);
        let hash = entry.hash(seed);
        let same = |at: &u32| entries.get(*at as usize).is_some_and(|e| e.is_same(&entry));
        if let Some(at) = self.index.find(hash, same) {
            self.last = *at as usize;
            if let Some(known) = entries.get_mut(self.last) {
                known.add(&entry);
            }
            return;
        }
        self.last = entries.len();
        let of = |at: &u32| entries.get(*at as usize).map_or(0, |e| e.hash(seed));
        self.index.insert_unique(hash, self.last as u32, of);
        entries.push(entry);
    }

    /// The rows in their order. The table is empty then.
    pub fn sorted(&mut self) -> Sorted {
        let limit = self.limit;
        let old = std::mem::replace(self, Table::new(limit));
        let (mut entries, mut texts) = (old.entries, old.texts);
        drop((old.index, old.dictionaries));
        let of_texts = texts.sort();
        let text = |number| renamed(&of_texts, number);
        let (heads, of_heads) = old.heads.sorted(|head| head.map(text));
        let (labels, of_labels) = old.labels.sorted(|label| LabelNumbers {
            event: text(label.event),
            service: text(label.service),
            host_class: text(label.host_class),
            source: text(label.source),
            ..label
        });
        for entry in &mut entries {
            entry.head = renamed(&of_heads, entry.head);
            entry.label = renamed(&of_labels, entry.label);
            entry.from_function = text(entry.from_function);
            entry.to_function = text(entry.to_function);
        }
        // In place: beside the entries there may be no memory.
        entries.sort_unstable_by(Entry::compare);
        let (mut label_bytes, mut label_ends) = (Vec::new(), Vec::with_capacity(labels.len()));
        for label in &labels {
            let label = Label {
                event: texts.get(label.event),
                weight: label.weight,
                day: label.day,
                service: texts.get(label.service),
                host_class: texts.get(label.host_class),
                source: texts.get(label.source),
            };
            put_label(&mut label_bytes, &label);
            label_ends.push(label_bytes.len());
        }
        Sorted {
            texts,
            heads,
            label_bytes,
            label_ends,
            entries,
        }
    }
}

impl Dictionary {
    /// The numbers of the texts of a column from a row on, 0 for null.
    fn numbers(
        &mut self,
        column: &DictionaryArray<Int32Type>,
        from: usize,
        texts: &mut Texts,
        seed: u64,
    ) -> Result<Vec<u32>> {
        let values = column.values();
        let is_known = self
            .values
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, values));
        if !is_known {
            let strings = values.as_any().downcast_ref::<StringArray>();
            let strings = strings.context("a dictionary of something else than strings")?;
            self.numbers.clear();
            let numbers = strings
                .iter()
                .map(|text| text.map_or(0, |text| texts.number(text, seed)));
            self.numbers.extend(numbers);
            self.values = Some(values.clone());
        }
        let keys = column.keys();
        let number = |key: &i32| {
            let number = usize::try_from(*key)
                .ok()
                .and_then(|key| self.numbers.get(key));
            number.copied().unwrap_or(0)
        };
        let of_keys = keys.values().get(from..).unwrap_or_default().iter();
        Ok(match keys.nulls() {
            None => of_keys.map(number).collect(),
            Some(nulls) => of_keys
                .enumerate()
                .map(|(row, key)| match nulls.is_valid(from + row) {
                    true => number(key),
                    false => 0,
                })
                .collect(),
        })
    }
}

/// The rows of a table, each key once, in their order.
pub struct Sorted {
    texts: Texts,
    heads: Vec<Head>,
    /// The last columns of keys, one label after the other.
    label_bytes: Vec<u8>,
    label_ends: Vec<usize>,
    entries: Vec<Entry>,
}

impl Sorted {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Writes the key of a row over `key`, in which that of the row before is, whose head ended at `head`; gives where
    /// the new one's head ends, and the counts.
    pub fn key(&self, at: usize, head: usize, key: &mut Vec<u8>) -> (usize, u64, u64) {
        let Some(entry) = self.entries.get(at) else {
            return (head, 0, 0);
        };
        let before = at.checked_sub(1).and_then(|at| self.entries.get(at));
        let head = if before.is_some_and(|before| before.head == entry.head) {
            key.truncate(head);
            head
        } else {
            key.clear();
            let head = self
                .heads
                .get(entry.head as usize)
                .copied()
                .unwrap_or_default();
            for text in head {
                put_text(key, self.texts.get(text));
            }
            key.len()
        };
        let number = |bit: u64, number: u64| (entry.present & bit != 0).then_some(number);
        put_text(key, self.texts.get(entry.from_function));
        put_number(key, number(FROM, entry.from_address));
        put_text(key, self.texts.get(entry.to_function));
        put_number(key, number(TO, entry.to_address));
        put_number(key, number(RUN, entry.run));
        let label = entry.label as usize;
        let end = self.label_ends.get(label).copied().unwrap_or(0);
        let start = label
            .checked_sub(1)
            .and_then(|label| self.label_ends.get(label));
        let label = self.label_bytes.get(start.copied().unwrap_or(0)..end);
        key.extend_from_slice(label.unwrap_or_default());
        (head, entry.count, entry.mispredictions)
    }
}
