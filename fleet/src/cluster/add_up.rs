//! Merging on executors: each task adds up its files by [`sums`]; the client merges what comes of them.
//!
//! ```text
//! AddUp      sums of the files of a partition, sorted, as blocks; a task for each
//!   files    crate::files
//! ```
//!
//! A sum of a task is a run of rows as those in temporary files ([`sums`]), and is merged with those of other tasks in
//! the same way: it is fetched to a temporary file of the client ([`Fetched`]). So an executor has no rows of others,
//! and the client has one block of each run that is merged at once in memory, however many rows and executors there
//! are.
//!
//! | column | |
//! |---|---|
//! | `part` | URL of the first file of the partition |
//! | `number` | number of the block, from 0 on |
//! | `block` | rows; empty after the last one |
//! | `added` | after the last block: rows of shards that were added up; else null |

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, bail};
use datafusion::arrow::array::{
    BinaryArray, BinaryBuilder, RecordBatch, StringArray, StringBuilder, UInt64Array, UInt64Builder,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};
use tokio::sync::mpsc::Sender;

use crate::engine::{Limits, at};
use crate::files;
use crate::operator::{Operator, Over, Task, WAITING, ended, failed};
use crate::progress::Progress;
use crate::read::Input;
use crate::schema::of_type;
use crate::sums::{self, Received, Sums};

/// Bytes of blocks that are given on at once.
const BATCH: usize = 1 << 19;

const PART: &str = "part";
const NUMBER: &str = "number";
const BLOCK: &str = "block";
const ADDED: &str = "added";

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new(PART, DataType::Utf8, false),
        Field::new(NUMBER, DataType::UInt64, false),
        Field::new(BLOCK, DataType::Binary, false),
        Field::new(ADDED, DataType::UInt64, true),
    ]))
});

/// The plan that adds up all rows of files which are not of a day before `since`, in these parts.
pub fn plan(parts: &[&[Input]], since: Option<i32>) -> anyhow::Result<Arc<dyn ExecutionPlan>> {
    let sums = AddUp { since, share: None };
    Ok(Arc::new(Over::new(sums, files::in_parts(parts)?)))
}

/// What an executor has for the sums of one task.
#[derive(Clone, Debug)]
pub struct Share {
    /// Bytes of memory.
    pub memory: usize,
    /// The folder of temporary files.
    pub temporary: PathBuf,
}

/// Adds up the files of each partition, which the operator below names.
#[derive(Clone, Debug)]
pub struct AddUp {
    /// The first day that is wanted.
    pub since: Option<i32>,
    /// Nothing where the plan does not run.
    pub share: Option<Share>,
}

impl Operator for AddUp {
    const NAME: &'static str = "AddUp";

    fn properties(&self, partitions: usize) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(SCHEMA.clone()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Final,
            Boundedness::Bounded,
        )
    }

    fn show(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "AddUp: since={:?}", self.since)
    }

    fn run(
        &self,
        input: SendableRecordBatchStream,
        task: Task,
    ) -> Result<SendableRecordBatchStream> {
        let Some(share) = self.share.clone() else {
            return exec_err!("shards are added up by executors alone");
        };
        let since = self.since;
        let memory = MemoryConsumer::new("sums of shards").register(task.context.memory_pool());
        let mut stream = RecordBatchReceiverStream::builder(SCHEMA.clone(), WAITING);
        let sender = stream.tx();
        stream.spawn(async move {
            let files = files::named(input).await.map_err(failed)?;
            // It is the task's own, and never refused: what other tasks sort has less.
            memory.grow(share.memory);
            let adding = tokio::task::spawn_blocking(move || {
                let _memory = memory;
                add_up(&files, since, share, sender)
            });
            ended(adding.await)
        });
        Ok(stream.build())
    }
}

fn add_up(
    files: &[Input],
    since: Option<i32>,
    share: Share,
    sender: Sender<Result<RecordBatch>>,
) -> anyhow::Result<()> {
    let limits = Limits {
        memory: share.memory,
        temporary: Some(share.temporary),
        threads: Some(1),
        cluster: None,
    };
    let mut out = Out::new(sender, part(files)?);
    let sums = sums::add_up(files, since, &limits, &Progress::default())?;
    let rows = sums.rows;
    if sums.blocks(|block| out.put(&block))? {
        out.end(rows)?;
    }
    Ok(())
}

/// What tells parts apart: no file is in two of them.
fn part(files: &[Input]) -> anyhow::Result<String> {
    let first = files.first().context("a part without files")?;
    Ok(first.place.url()?.into())
}

/// Blocks that go to the client.
struct Out {
    sender: Sender<Result<RecordBatch>>,
    part: String,
    number: u64,
    /// Bytes of blocks that are not sent yet.
    bytes: usize,
    parts: StringBuilder,
    numbers: UInt64Builder,
    blocks: BinaryBuilder,
    added: UInt64Builder,
}

impl Out {
    fn new(sender: Sender<Result<RecordBatch>>, part: String) -> Out {
        Out {
            sender,
            part,
            number: 0,
            bytes: 0,
            parts: StringBuilder::new(),
            numbers: UInt64Builder::new(),
            blocks: BinaryBuilder::new(),
            added: UInt64Builder::new(),
        }
    }

    /// Whether more is wanted.
    fn put(&mut self, block: &[u8]) -> anyhow::Result<bool> {
        self.append(block, None);
        Ok(self.bytes < BATCH || self.send()?)
    }

    fn append(&mut self, block: &[u8], added: Option<u64>) {
        self.parts.append_value(&self.part);
        self.numbers.append_value(self.number);
        self.blocks.append_value(block);
        self.added.append_option(added);
        self.number += 1;
        self.bytes += block.len();
    }

    fn send(&mut self) -> anyhow::Result<bool> {
        self.bytes = 0;
        let batch = RecordBatch::try_new(
            SCHEMA.clone(),
            vec![
                Arc::new(self.parts.finish()),
                Arc::new(self.numbers.finish()),
                Arc::new(self.blocks.finish()),
                Arc::new(self.added.finish()),
            ],
        )?;
        Ok(self.sender.blocking_send(Ok(batch)).is_ok())
    }

    /// After the last block.
    fn end(mut self, added: u64) -> anyhow::Result<()> {
        self.append(&[], Some(added));
        // Nobody who waits is no error here.
        self.send()?;
        Ok(())
    }
}

/// The sums of tasks, in temporary files of the client. Parts come one after another, each in the order of its blocks.
pub struct Fetched {
    received: Received,
    /// The part at hand, and the number of its next block.
    at_hand: Option<(String, u64)>,
    complete: HashSet<String>,
}

impl Fetched {
    /// None yet.
    pub fn new(limits: &Limits) -> Fetched {
        Fetched {
            received: Received::new(limits),
            at_hand: None,
            complete: HashSet::new(),
        }
    }

    /// Takes some blocks.
    pub fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let parts: &StringArray = of_type(batch, PART)?;
        let numbers: &UInt64Array = of_type(batch, NUMBER)?;
        let blocks: &BinaryArray = of_type(batch, BLOCK)?;
        let added: &UInt64Array = of_type(batch, ADDED)?;
        for row in 0..batch.num_rows() {
            let number = numbers.value(row);
            let part = parts.value(row);
            let (of, next) = match &self.at_hand {
                Some((of, next)) => (of.as_str(), *next),
                None => (part, 0),
            };
            if (of, next) != (part, number) || self.complete.contains(part) {
                bail!("block {number} of the part {part} came, and block {next} of {of} must");
            }
            if let Some(rows) = at(added, row) {
                self.at_hand = None;
                self.complete.insert(part.to_owned());
                self.received.end(rows)?;
            } else {
                self.received.add(blocks.value(row))?;
                self.at_hand = Some((part.to_owned(), next + 1));
            }
        }
        Ok(())
    }

    /// The part at hand will not be complete.
    pub fn forget(&mut self) {
        self.at_hand = None;
        self.received.forget();
    }

    /// Whether a part is complete.
    pub fn has(&self, files: &[Input]) -> anyhow::Result<bool> {
        Ok(self.complete.contains(&part(files)?))
    }

    /// The sums of all parts.
    pub fn finish(self) -> anyhow::Result<Sums> {
        self.received.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: &[(&str, u64, Option<u64>)]) -> RecordBatch {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let mut out = Out::new(sender, String::new());
        for (part, number, added) in rows {
            (out.part, out.number) = ((*part).to_owned(), *number);
            out.append(b"block", *added);
        }
        assert!(out.send().unwrap());
        receiver.blocking_recv().unwrap().unwrap()
    }

    fn fetched() -> Fetched {
        Fetched::new(&Limits {
            memory: 1 << 20,
            temporary: None,
            threads: None,
            cluster: None,
        })
    }

    fn files(path: &str) -> [Input; 1] {
        let place = path.into();
        [Input {
            place,
            bytes: 1,
            rows: 1,
        }]
    }

    #[test]
    fn a_part_is_there_when_its_end_is() {
        let mut fetched = fetched();
        let [a, b] = ["file:///a", "file:///b"];
        fetched
            .add(&batch(&[
                (a, 0, None),
                (a, 1, None),
                (a, 2, Some(7)),
                (b, 0, None),
            ]))
            .unwrap();
        assert!(fetched.has(&files("/a")).unwrap() && !fetched.has(&files("/b")).unwrap());
        fetched.forget();
        // Again, and whole.
        fetched.add(&batch(&[(b, 0, Some(5))])).unwrap();
        assert!(fetched.has(&files("/b")).unwrap());
        assert_eq!(fetched.finish().unwrap().rows, 12);
    }

    #[test]
    fn blocks_that_are_missing_mixed_or_there_twice_are_errors() {
        let wrong: [&[(&str, u64, Option<u64>)]; 5] = [
            &[("a", 1, None)],
            &[("a", 0, None), ("a", 2, None)],
            &[("a", 0, None), ("b", 0, None)],
            &[("a", 0, None), ("b", 1, None)],
            &[("a", 0, Some(1)), ("a", 0, None)],
        ];
        for rows in wrong {
            let error = fetched().add(&batch(rows)).unwrap_err().to_string();
            assert!(error.contains("must"), "{rows:?}: {error}");
        }
    }
}
