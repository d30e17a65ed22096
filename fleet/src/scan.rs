//! The rows of shards for an engine, in this process or on a cluster.
//!
//! DataFusion's own reader of Parquet is made for few large files; that of [`crate::read`] is made for many small ones.
//! This operator gives an engine what the latter reads, in batches of as many rows as engines like, whatever the shards
//! have. Which they are, the operator below says (`files`). Filters stay with the engine: only row groups of other
//! builds are passed over.

use std::fmt;
use std::sync::Arc;

use anyhow::anyhow;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, assert_or_internal_err, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions,
};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinError;

use crate::files;
use crate::read::{Input, Queue, Reader};

/// Batches that wait for the operator above.
const WAITING: usize = 2;

/// The operator.
#[derive(Debug)]
pub struct Scan {
    /// Names the files.
    input: Arc<dyn ExecutionPlan>,
    schema: SchemaRef,
    build: Option<String>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl Scan {
    /// Some columns of the files that `input` names; if a build is given, rows of others need not come.
    pub fn new(input: Arc<dyn ExecutionPlan>, schema: SchemaRef, build: Option<String>) -> Scan {
        let partitions = input.properties().output_partitioning().partition_count();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Scan {
            input,
            schema,
            build,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The only build whose rows must come.
    pub fn build(&self) -> Option<&str> {
        self.build.as_deref()
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns: Vec<&String> = self.schema.fields().iter().map(|f| f.name()).collect();
        write!(f, "Shards: columns={columns:?}, build={:?}", self.build)
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &str {
        "Shards"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    /// A partition of files stays one: what is above divides rows if it likes.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = only(children)?;
        let (schema, build) = (self.schema.clone(), self.build.clone());
        Ok(Arc::new(Scan::new(input, schema, build)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let (schema, build) = (self.schema.clone(), self.build.clone());
        let rows = MetricBuilder::new(&self.metrics).output_rows(partition);
        let size = context.session_config().batch_size();
        let input = self.input.execute(partition, context)?;
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

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The only operator below another.
pub fn only(mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
    let count = children.len();
    assert_or_internal_err!(count == 1, "{count} operators below one that has one");
    Ok(children.swap_remove(0))
}

/// An error of ours for an engine: all of it is text, since of an executor's nothing else comes back.
pub fn failed(error: anyhow::Error) -> DataFusionError {
    exec_datafusion_err!("{error:#}")
}

/// What came of work that was done on a thread of its own.
pub fn ended(joined: std::result::Result<anyhow::Result<()>, JoinError>) -> Result<()> {
    joined
        .unwrap_or_else(|error| Err(anyhow!("a thread that reads shards ended: {error}")))
        .map_err(failed)
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
