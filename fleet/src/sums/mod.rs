//! Adds up the rows of shards: rows that differ in nothing but their counts become one, in the order of the schema.
//!
//! ```text
//! shards ──read──► table of a thread ──full──► sorted, temporary file ─┐
//!                        └──────at the end──► sorted, in memory ───────┴─merged──► rows in their order
//! ```
//!
//! An engine groups by sixteen columns, of which ten are strings, by comparing strings. Here strings are numbers while
//! rows are added up ([`table`]), and a key is bytes that compare as its columns when runs are merged ([`key`],
//! [`run`]). Every thread has a table of its own, of its share of the memory. Sums are the same in any order, so it
//! does not matter which thread added which shard, nor how often a table was emptied.
//!
//! Nor does it matter where: runs of other machines come as blocks of rows ([`Sums::blocks`]), go to temporary files
//! ([`Received`]), and are merged as those of threads.

mod block;
mod key;
mod run;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result, anyhow};
use datafusion::arrow::array::{
    ArrayRef, Date32Builder, RecordBatch, StringBuilder, UInt64Builder,
};

use self::key::{Key, Unescaped};
use self::run::{Merging, Run, TOGETHER, Temporary, Writing, spill, together};
use self::table::{Table, with_dictionaries};
use crate::engine::Limits;
use crate::progress::Progress;
use crate::read::{Input, Queue, Reader};
use crate::schema::schema;

/// Rows that are given on at once.
const BATCH: usize = 8192;
/// A thread with less memory for its table spends its time in emptying it.
const MEMORY_OF_THREAD: usize = 8 << 20;
/// Batches that wait for the writer.
const WAITING: usize = 4;

/// Sums of rows.
pub struct Sums {
    runs: Vec<Run>,
    /// Rows that were added up.
    pub rows: u64,
    /// Bytes that went to temporary files.
    pub spilled: u64,
}

/// Adds up all rows of some files that are not of a day before `since`. Must be called where a runtime of several
/// threads is.
pub fn add_up(
    files: &[Input],
    since: Option<i32>,
    limits: &Limits,
    progress: &Progress,
) -> Result<Sums> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = limits.threads.unwrap_or(processors);
    let threads = threads
        .min(limits.memory / MEMORY_OF_THREAD)
        .min(files.len())
        .max(1);
    let work = Work {
        // The rest is for rows that are read and written.
        share: limits.memory / 4 * 3 / threads,
        temporary: Temporary::new(limits.temporary.as_deref()),
        queue: Queue::new(files),
        since,
        stop: AtomicBool::new(false),
        progress,
    };
    progress.begin("rows read", files.iter().map(|file| file.rows).sum());
    let runtime = tokio::runtime::Handle::current();
    let parts: Vec<Result<Part>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let _guard = runtime.enter();
                    let part = work.run();
                    work.stop.fetch_or(part.is_err(), Ordering::Relaxed);
                    part
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|part| part.unwrap_or_else(|_| Err(anyhow!("a thread that adds up rows ended"))))
            .collect()
    });
    let mut sums = Sums {
        runs: vec![],
        rows: 0,
        spilled: 0,
    };
    for part in parts {
        let part = part?;
        sums.runs.extend(part.runs);
        sums.rows += part.rows;
        sums.spilled += part.spilled;
    }
    let (runs, written) = together(sums.runs, &work.temporary)?;
    sums.runs = runs;
    sums.spilled += written;
    Ok(sums)
}

/// What a thread has added up.
struct Part {
    runs: Vec<Run>,
    rows: u64,
    spilled: u64,
}

/// What threads share.
struct Work<'a> {
    share: usize,
    temporary: Temporary,
    queue: Queue<&'a [Input]>,
    since: Option<i32>,
    stop: AtomicBool,
    progress: &'a Progress,
}

impl Work<'_> {
    fn run(&self) -> Result<Part> {
        let mut part = Part {
            runs: vec![],
            rows: 0,
            spilled: 0,
        };
        let mut table = Table::new(self.share);
        let mut reader = Reader::new(with_dictionaries());
        while let Some((file, whole)) = self.queue.next()? {
            reader.read(file, whole, &mut |rows| {
                let count = rows.batch.num_rows();
                let mut from = 0;
                while from < count {
                    from = table
                        .add(&rows.batch, from, self.since)
                        .with_context(|| format!("{}: after row {}", file.place, rows.first))?;
                    if table.is_full() {
                        let sorted = Run::Memory(Box::new(table.sorted()));
                        let (run, bytes) = spill(vec![sorted], &self.temporary)?;
                        part.runs.push(run);
                        part.spilled += bytes;
                    }
                }
                part.rows += count as u64;
                self.progress.did_some(count as u64);
                Ok(!self.stop.load(Ordering::Relaxed))
            })?;
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        if !table.is_empty() {
            part.runs.push(Run::Memory(Box::new(table.sorted())));
        }
        Ok(part)
    }
}

/// Sums of other machines, which come in blocks.
pub struct Received {
    temporary: Temporary,
    sums: Sums,
    run: Option<Writing>,
}

impl Received {
    /// None yet; they will be in temporary files.
    pub fn new(limits: &Limits) -> Received {
        Received {
            temporary: Temporary::new(limits.temporary.as_deref()),
            sums: Sums {
                runs: vec![],
                rows: 0,
                spilled: 0,
            },
            run: None,
        }
    }

    /// The next block of the run at hand, which begins with the first one.
    pub fn add(&mut self, block: &[u8]) -> Result<()> {
        let run = match self.run.take() {
            Some(run) => run,
            None => Writing::new(&self.temporary)?,
        };
        self.run.insert(run).add(block)
    }

    /// The run at hand is complete, and is what so many rows were added up to.
    pub fn end(&mut self, rows: u64) -> Result<()> {
        self.sums.rows = self.sums.rows.saturating_add(rows);
        if let Some(run) = self.run.take() {
            self.sums.spilled += run.bytes;
            self.sums.runs.push(run.finish()?);
        }
        // Each has a file open.
        if self.sums.runs.len() >= 2 * TOGETHER {
            self.merge()?;
        }
        Ok(())
    }

    /// The run at hand will not be complete.
    pub fn forget(&mut self) {
        self.run = None;
    }

    /// All runs that are complete.
    pub fn finish(mut self) -> Result<Sums> {
        self.forget();
        self.merge()?;
        Ok(self.sums)
    }

    fn merge(&mut self) -> Result<()> {
        let (runs, written) = together(std::mem::take(&mut self.sums.runs), &self.temporary)?;
        self.sums.runs = runs;
        self.sums.spilled += written;
        Ok(())
    }
}

impl Sums {
    /// Gives `each` the rows in their order as blocks for [`Received`], until it says no; whether it took all.
    pub fn blocks(self, each: impl FnMut(Vec<u8>) -> Result<bool>) -> Result<bool> {
        run::blocks(self.runs, each)
    }

    /// Gives `each` the rows in their order, with the columns of the schema, [`BATCH`] at a time.
    pub fn each(self, mut each: impl FnMut(&RecordBatch) -> Result<()>) -> Result<()> {
        let mut merging = Merging::new(self.runs)?;
        let (sender, receiver) = sync_channel(WAITING);
        std::thread::scope(|scope| {
            let merger = scope.spawn(move || -> Result<()> {
                let mut columns = Columns::default();
                let mut unescaped = Unescaped::default();
                while let Some(row) = merging.next()? {
                    let key = key::take(row.key, &mut unescaped)?;
                    columns.add(&key, row.count, row.mispredictions);
                    if columns.rows == BATCH && sender.send(columns.finish()?).is_err() {
                        // The writer has an error of its own to tell.
                        return Ok(());
                    }
                }
                if columns.rows > 0 {
                    let _ = sender.send(columns.finish()?);
                }
                Ok(())
            });
            let written = receiver.into_iter().try_for_each(|batch| each(&batch));
            let merged = merger.join();
            let merged =
                merged.unwrap_or_else(|_| Err(anyhow!("the thread that merges rows ended")));
            written.and(merged)
        })
    }
}

/// Columns that are being filled.
#[derive(Default)]
struct Columns {
    rows: usize,
    head: [StringBuilder; key::HEAD],
    from_function: StringBuilder,
    from_address: UInt64Builder,
    to_function: StringBuilder,
    to_address: UInt64Builder,
    run: UInt64Builder,
    event: StringBuilder,
    count: UInt64Builder,
    mispredictions: UInt64Builder,
    weight: UInt64Builder,
    day: Date32Builder,
    service: StringBuilder,
    host_class: StringBuilder,
    source: StringBuilder,
}

impl Columns {
    fn add(&mut self, key: &Key, count: u64, mispredictions: u64) {
        self.rows += 1;
        for (column, text) in self.head.iter_mut().zip(key.head) {
            column.append_option(text);
        }
        self.from_function.append_option(key.from_function);
        self.from_address.append_option(key.from_address);
        self.to_function.append_option(key.to_function);
        self.to_address.append_option(key.to_address);
        self.run.append_option(key.run);
        self.event.append_option(key.label.event);
        self.count.append_value(count);
        self.mispredictions.append_value(mispredictions);
        self.weight.append_value(key.label.weight);
        self.day.append_value(key.label.day);
        self.service.append_option(key.label.service);
        self.host_class.append_option(key.label.host_class);
        self.source.append_option(key.label.source);
    }

    fn finish(&mut self) -> Result<RecordBatch> {
        self.rows = 0;
        let mut columns: Vec<ArrayRef> = Vec::new();
        for head in &mut self.head {
            columns.push(Arc::new(head.finish()));
        }
        columns.extend([
            Arc::new(self.from_function.finish()) as ArrayRef,
            Arc::new(self.from_address.finish()),
            Arc::new(self.to_function.finish()),
            Arc::new(self.to_address.finish()),
            Arc::new(self.run.finish()),
            Arc::new(self.event.finish()),
            Arc::new(self.count.finish()),
            Arc::new(self.mispredictions.finish()),
            Arc::new(self.weight.finish()),
            Arc::new(self.day.finish()),
            Arc::new(self.service.finish()),
            Arc::new(self.host_class.finish()),
            Arc::new(self.source.finish()),
        ]);
        Ok(RecordBatch::try_new(schema(), columns)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use datafusion::arrow::array::{
        Array, Date32Array, DictionaryArray, RecordBatch, StringArray, UInt64Array,
    };
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;
    use crate::schema::{KEYS, column};

    /// What a cell of a key says; null is less than all others.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Cell {
        Null,
        Number(u64),
        Text(String),
    }

    fn random(state: &mut u64, below: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % below
    }

    /// A key of few values for each column, so that many are the same.
    fn key(state: &mut u64) -> Vec<Cell> {
        let texts = ["", "a", "a\0", "a\0b", "b", "größe", "\u{1}"];
        let schema = schema();
        let cells = KEYS.iter().map(|name| {
            let field = schema.field_with_name(name).unwrap();
            let often = random(state, 3) > 0;
            if field.is_nullable() && random(state, 4) == 0 {
                return Cell::Null;
            }
            match *name {
                column::FROM_ADDRESS | column::TO_ADDRESS | column::RUN => {
                    let few = [0, 1, 255, 256, u64::MAX];
                    Cell::Number(few[random(state, 5) as usize])
                }
                column::WEIGHT | column::DAY => Cell::Number(random(state, 2)),
                _ if often => Cell::Text("a".into()),
                _ => Cell::Text(texts[random(state, texts.len() as u64) as usize].into()),
            }
        });
        cells.collect()
    }

    fn batch(rows: &[(Vec<Cell>, u64, u64)]) -> RecordBatch {
        let schema = with_dictionaries();
        let columns = schema.fields().iter().map(|field| -> ArrayRef {
            let at = KEYS.iter().position(|key| key == field.name());
            let cells = rows.iter().map(|row| at.map(|at| &row.0[at]));
            let number = |cell: Option<&Cell>| match cell {
                Some(Cell::Number(number)) => Some(*number),
                _ => None,
            };
            match field.name().as_str() {
                column::COUNT => Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.1))),
                column::MISPREDICTIONS => {
                    Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.2)))
                }
                column::DAY => {
                    let days = cells.map(|cell| number(cell).map(|day| day as i32));
                    Arc::new(days.collect::<Date32Array>())
                }
                column::FROM_ADDRESS | column::TO_ADDRESS | column::RUN | column::WEIGHT => {
                    Arc::new(cells.map(number).collect::<UInt64Array>())
                }
                _ => {
                    let texts = cells.map(|cell| match cell {
                        Some(Cell::Text(text)) => Some(text.as_str()),
                        _ => None,
                    });
                    Arc::new(texts.collect::<DictionaryArray<Int32Type>>())
                }
            }
        });
        RecordBatch::try_new(schema.clone(), columns.collect()).unwrap()
    }

    /// The rows of a result, with their counts.
    fn rows_of(batch: &RecordBatch) -> Vec<(Vec<Cell>, u64, u64)> {
        let cell = |name: &str, row: usize| {
            let column = batch.column_by_name(name).unwrap();
            if column.is_null(row) {
                return Cell::Null;
            }
            let any = column.as_any();
            if let Some(texts) = any.downcast_ref::<StringArray>() {
                return Cell::Text(texts.value(row).to_owned());
            }
            if let Some(days) = any.downcast_ref::<Date32Array>() {
                return Cell::Number(days.value(row) as u64);
            }
            Cell::Number(any.downcast_ref::<UInt64Array>().unwrap().value(row))
        };
        let number = |name: &str, row: usize| match cell(name, row) {
            Cell::Number(number) => number,
            other => panic!("{other:?}"),
        };
        let rows = (0..batch.num_rows()).map(|row| {
            let key = KEYS.iter().map(|name| cell(name, row)).collect();
            let counts = [column::COUNT, column::MISPREDICTIONS];
            let [count, missed] = counts.map(|name| number(name, row));
            (key, count, missed)
        });
        rows.collect()
    }

    #[test]
    fn rows_are_added_up_and_sorted_whatever_is_in_memory_and_in_files() {
        let folder = tempfile::tempdir().unwrap();
        let temporary = Temporary::new(Some(folder.path()));
        for limit in [1, 40_000, usize::MAX] {
            let mut state = 0x1234_5678_9abc_def1;
            let mut expected: BTreeMap<Vec<Cell>, (u64, u64)> = BTreeMap::new();
            let (mut table, mut runs) = (Table::new(limit), Vec::new());
            for _ in 0..5 {
                let row = |state: &mut u64| {
                    let count = match random(state, 8) {
                        0 => u64::MAX - 1,
                        _ => random(state, 1000),
                    };
                    (key(state), count, count / 3)
                };
                let rows: Vec<_> = (0..300).map(|_| row(&mut state)).collect();
                for (key, count, missed) in &rows {
                    let sum = expected.entry(key.clone()).or_default();
                    sum.0 = sum.0.saturating_add(*count);
                    sum.1 = sum.1.saturating_add(*missed);
                }
                let (batch, mut from) = (batch(&rows), 0);
                while from < rows.len() {
                    from = table.add(&batch, from, None).unwrap();
                    if table.is_full() {
                        let sorted = Run::Memory(Box::new(table.sorted()));
                        runs.push(spill(vec![sorted], &temporary).unwrap().0);
                    }
                }
            }
            runs.push(Run::Memory(Box::new(table.sorted())));
            // One row in each file, and one file for all.
            let many = limit == 1;
            assert_eq!(runs.len() > 10 * TOGETHER, many);
            let (runs, written) = together(runs, &temporary).unwrap();
            assert!(runs.len() <= TOGETHER && (written > 0) == many);
            let mut found = Vec::new();
            let sums = Sums {
                runs,
                rows: 0,
                spilled: 0,
            };
            sums.each(|batch| {
                found.extend(rows_of(batch));
                Ok(())
            })
            .unwrap();
            let expected = expected.into_iter().map(|(key, sum)| (key, sum.0, sum.1));
            assert!(found == expected.collect::<Vec<_>>(), "limit {limit}");
        }
    }

    #[test]
    fn rows_of_earlier_days_are_left_out() {
        let mut state = 99;
        let rows: Vec<_> = (0..50).map(|at| (key(&mut state), at, 0)).collect();
        let day = KEYS.iter().position(|key| *key == column::DAY).unwrap();
        let late = rows.iter().filter(|row| row.0[day] == Cell::Number(1));
        let expected: u64 = late.map(|row| row.1).sum();
        let mut table = Table::new(usize::MAX);
        assert_eq!(table.add(&batch(&rows), 0, Some(1)).unwrap(), 50);
        let sums = Sums {
            runs: vec![Run::Memory(Box::new(table.sorted()))],
            rows: 0,
            spilled: 0,
        };
        let mut found = 0;
        sums.each(|batch| {
            found += rows_of(batch).iter().map(|row| row.1).sum::<u64>();
            Ok(())
        })
        .unwrap();
        assert_eq!(found, expected);
    }
}
