//! Merging on executors: each task adds up its files by [`sums`], and what comes of them is merged in order.
//!
//! ```text
//! Combine                rows with one key become one; one task
//!   SortPreservingMerge  by key
//!     AddUp              sums of the files of a partition, sorted; a task for each
//!       files            crate::files
//! ```
//!
//! A row has its key as the bytes of [`sums`], which compare as its columns do, so that neither sorting nor merging
//! looks at columns:
//!
//! | column | |
//! |---|---|
//! | `key` | bytes |
//! | `count`, `mispredictions` | sums, which saturate |
//! | `added` | rows of shards that it stands for |
//!
//! Of each row it is not known how many rows it was added up of, only of all of a task: so each stands for one, and the
//! last for all others. Their sum is the number of rows that were read, if none is lost on the way.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use datafusion::arrow::array::{BinaryArray, BinaryBuilder, RecordBatch, UInt64Array};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};
use futures::StreamExt;
use tokio::sync::mpsc::Sender;

use crate::engine::Limits;
use crate::files;
use crate::operator::{Operator, Over, Task, WAITING, ended, failed};
use crate::progress::Progress;
use crate::read::Input;
use crate::schema::of_type;
use crate::sums;

/// Rows that are given on at once.
const BATCH: usize = 8192;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Binary, false),
        Field::new("count", DataType::UInt64, false),
        Field::new("mispredictions", DataType::UInt64, false),
        Field::new("added", DataType::UInt64, false),
    ]))
});

/// The plan that adds up all rows of files which are not of a day before `since`, in so many parts at most.
pub fn plan(
    files: &[Input],
    since: Option<i32>,
    parts: usize,
) -> anyhow::Result<Arc<dyn ExecutionPlan>> {
    let sums = AddUp { since, share: None };
    let sums = Over::new(sums, files::plan(files, parts)?);
    let order = LexOrdering::new([by_key()]).context("no order")?;
    let sorted = SortPreservingMergeExec::new(order, Arc::new(sums));
    Ok(Arc::new(Over::new(Combine, Arc::new(sorted))))
}

fn by_key() -> PhysicalSortExpr {
    PhysicalSortExpr {
        expr: Arc::new(Column::new("key", 0)),
        options: SortOptions {
            descending: false,
            nulls_first: true,
        },
    }
}

/// Rows of the plan's answer as rows of shards, and how many rows were added up for them.
pub fn rows_of(batch: &RecordBatch) -> anyhow::Result<(RecordBatch, u64)> {
    let keyed = Columns::of(batch)?;
    let added = keyed.added.iter().flatten().sum();
    let rows = keyed.keys.iter().zip(keyed.counts).zip(keyed.missed);
    let rows = rows.map(|((key, count), missed)| {
        let key = key.unwrap_or_default();
        (key, count.unwrap_or(0), missed.unwrap_or(0))
    });
    Ok((sums::rows_of(rows)?, added))
}

fn sorted(partitions: usize) -> PlanProperties {
    PlanProperties::new(
        EquivalenceProperties::new_with_orderings(SCHEMA.clone(), [[by_key()]]),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Final,
        Boundedness::Bounded,
    )
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
        sorted(partitions)
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
    let sums = sums::add_up(files, since, &limits, &Progress::default())?;
    let mut left = sums.rows;
    let mut out = Out::new(sender);
    let wanted = sums.keys(|key, count, missed| {
        left = left.saturating_sub(1);
        out.put(key, count, missed, 1)
    })?;
    if wanted {
        if let Some(last) = out.added.last_mut() {
            *last += left;
        }
        out.send()?;
    }
    Ok(())
}

/// Rows that go to the operator above, of which the last are held back.
struct Out {
    sender: Sender<Result<RecordBatch>>,
    keys: BinaryBuilder,
    counts: Vec<u64>,
    missed: Vec<u64>,
    added: Vec<u64>,
}

impl Out {
    fn new(sender: Sender<Result<RecordBatch>>) -> Out {
        Out {
            sender,
            keys: BinaryBuilder::new(),
            counts: vec![],
            missed: vec![],
            added: vec![],
        }
    }

    /// Whether more is wanted.
    fn put(&mut self, key: &[u8], count: u64, missed: u64, added: u64) -> anyhow::Result<bool> {
        let wanted = self.counts.len() < BATCH || self.send()?;
        self.push(key, count, missed, added);
        Ok(wanted)
    }

    fn push(&mut self, key: &[u8], count: u64, missed: u64, added: u64) {
        self.keys.append_value(key);
        self.counts.push(count);
        self.missed.push(missed);
        self.added.push(added);
    }

    /// Adds to the last row; whether there is one.
    fn add(&mut self, count: u64, missed: u64, added: u64) -> bool {
        let all = self.counts.last_mut().zip(self.missed.last_mut());
        let Some(((counts, misses), sum)) = all.zip(self.added.last_mut()) else {
            return false;
        };
        *counts = counts.saturating_add(count);
        *misses = misses.saturating_add(missed);
        *sum = sum.saturating_add(added);
        true
    }

    fn take(&mut self) -> Result<RecordBatch> {
        let numbers = [&mut self.counts, &mut self.missed, &mut self.added];
        let [counts, missed, added] =
            numbers.map(|numbers| Arc::new(UInt64Array::from(std::mem::take(numbers))));
        let keys = Arc::new(self.keys.finish());
        Ok(RecordBatch::try_new(
            SCHEMA.clone(),
            vec![keys, counts, missed, added],
        )?)
    }

    fn send(&mut self) -> anyhow::Result<bool> {
        if self.counts.is_empty() {
            return Ok(true);
        }
        let batch = self.take()?;
        Ok(self.sender.blocking_send(Ok(batch)).is_ok())
    }
}

/// The columns of a batch.
struct Columns<'a> {
    keys: &'a BinaryArray,
    counts: &'a UInt64Array,
    missed: &'a UInt64Array,
    added: &'a UInt64Array,
}

impl Columns<'_> {
    fn of(batch: &RecordBatch) -> anyhow::Result<Columns<'_>> {
        Ok(Columns {
            keys: of_type(batch, "key")?,
            counts: of_type(batch, "count")?,
            missed: of_type(batch, "mispredictions")?,
            added: of_type(batch, "added")?,
        })
    }
}

/// Adds up rows that follow each other and have one key: of sorted rows in one partition.
#[derive(Clone, Copy, Debug)]
pub struct Combine;

impl Operator for Combine {
    const NAME: &'static str = "Combine";
    const KEEPS_ORDER: bool = true;

    fn properties(&self, partitions: usize) -> PlanProperties {
        sorted(partitions)
    }

    fn run(
        &self,
        mut input: SendableRecordBatchStream,
        _: Task,
    ) -> Result<SendableRecordBatchStream> {
        let mut stream = RecordBatchReceiverStream::builder(SCHEMA.clone(), WAITING);
        let sender = stream.tx();
        stream.spawn(async move {
            let mut out = Out::new(sender.clone());
            let mut last: Vec<u8> = vec![];
            while let Some(batch) = input.next().await {
                let batch = batch?;
                let rows = Columns::of(&batch).map_err(failed)?;
                for row in 0..batch.num_rows() {
                    let key = rows.keys.value(row);
                    let (count, missed) = (rows.counts.value(row), rows.missed.value(row));
                    let added = rows.added.value(row);
                    if last == key && out.add(count, missed, added) {
                        continue;
                    }
                    if out.counts.len() >= BATCH && sender.send(Ok(out.take()?)).await.is_err() {
                        return Ok(());
                    }
                    out.push(key, count, missed, added);
                    last.clear();
                    last.extend_from_slice(key);
                }
            }
            if !out.counts.is_empty() {
                // Nobody who waits is no error here.
                let _ = sender.send(Ok(out.take()?)).await;
            }
            Ok(())
        });
        Ok(stream.build())
    }
}
