//! The rows of shards for an engine, in this process or on a cluster.
//!
//! DataFusion's own reader of Parquet is made for few large files; that of [`crate::read`] is made for many small ones.
//! This operator gives an engine what the latter reads, in batches of as many rows as engines like, whatever the shards
//! have. Which they are, the operator below says (`files`). Filters stay with the engine: only row groups of other
//! builds are passed over.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{Partitioning, PlanProperties};
use tokio::sync::mpsc::Sender;

use crate::files;
use crate::operator::{Operator, Task, WAITING, ended, failed};
use crate::read::{Input, Queue, Reader};

/// Reads some columns of the files that the operator below names.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The columns.
    pub schema: SchemaRef,
    /// The only build whose rows must come.
    pub build: Option<String>,
}

impl Operator for Scan {
    const NAME: &'static str = "Shards";

    fn properties(&self, partitions: usize) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(self.schema.clone()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
    }

    fn show(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let columns: Vec<&String> = self.schema.fields().iter().map(|f| f.name()).collect();
        write!(f, "Shards: columns={columns:?}, build={:?}", self.build)
    }

    fn run(
        &self,
        input: SendableRecordBatchStream,
        task: Task,
    ) -> Result<SendableRecordBatchStream> {
        let (schema, build) = (self.schema.clone(), self.build.clone());
        let rows = MetricBuilder::new(&task.metrics).output_rows(task.partition);
        let size = task.context.session_config().batch_size();
        let mut stream = RecordBatchReceiverStream::builder(schema.clone(), WAITING);
        let sender = stream.tx();
        stream.spawn(async move {
            let files = files::named(input).await.map_err(failed)?;
            let queue = Queue::new(files);
            // It ends when nobody takes what it sends.
            let reading = tokio::task::spawn_blocking(move || {
                let mut reader = Reader::new(schema.clone());
                if let Some(build) = build {
                    reader = reader.only(build);
                }
                // What has no columns needs not to be put together.
                let has_columns = !schema.fields().is_empty();
                let out = Out {
                    batches: has_columns.then(|| BatchCoalescer::new(schema, size)),
                    sender,
                };
                read(&queue, reader, out, &rows)
            });
            ended(reading.await)
        });
        Ok(stream.build())
    }
}

/// Reads all files of a partition, as long as somebody wants their rows.
fn read(
    queue: &Queue<Arc<[Input]>>,
    mut reader: Reader,
    mut out: Out,
    rows: &Count,
) -> anyhow::Result<()> {
    let mut wanted = true;
    while let Some((file, whole)) = queue.next()? {
        reader.read(file, whole, &mut |some| {
            rows.add(some.batch.num_rows());
            wanted = out.push(some.batch)?;
            Ok(wanted)
        })?;
        if !wanted {
            return Ok(());
        }
    }
    out.finish()
}

/// Where batches go.
struct Out {
    batches: Option<BatchCoalescer>,
    sender: Sender<Result<RecordBatch>>,
}

impl Out {
    /// Whether more is wanted.
    fn push(&mut self, batch: RecordBatch) -> anyhow::Result<bool> {
        match &mut self.batches {
            None => Ok(self.sender.blocking_send(Ok(batch)).is_ok()),
            Some(batches) => {
                batches.push_batch(batch)?;
                Ok(self.send())
            }
        }
    }

    fn send(&mut self) -> bool {
        while let Some(batch) = self
            .batches
            .as_mut()
            .and_then(|all| all.next_completed_batch())
        {
            if self.sender.blocking_send(Ok(batch)).is_err() {
                return false;
            }
        }
        true
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        if let Some(batches) = &mut self.batches {
            batches.finish_buffered_batch()?;
        }
        self.send();
        Ok(())
    }
}
