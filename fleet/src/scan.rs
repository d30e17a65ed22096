//! The rows of shards for an engine of this process.
//!
//! DataFusion's own reader of Parquet is made for few large files; that of [`crate::read`] is made for many small ones.
//! This operator gives an engine what the latter reads, in batches of as many rows as engines like, whatever the shards
//! have. Filters stay with the engine: only row groups of other builds are passed over.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};
use tokio::sync::mpsc::Sender;

use crate::read::{Input, Queue, Reader};

/// Batches that wait for the operator above.
const WAITING: usize = 2;

/// The operator.
#[derive(Debug)]
pub struct Scan {
    /// The files of each partition.
    partitions: Vec<Arc<[Input]>>,
    schema: SchemaRef,
    build: Option<String>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl Scan {
    /// Some columns of files, in so many partitions at most; if a build is given, rows of others need not come.
    pub fn new(
        files: &[Input],
        schema: SchemaRef,
        partitions: usize,
        build: Option<String>,
    ) -> Scan {
        let each = files.len().div_ceil(partitions.max(1)).max(1);
        let partitions: Vec<Arc<[Input]>> = files.chunks(each).map(Arc::from).collect();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Scan {
            partitions,
            schema,
            build,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let files: usize = self.partitions.iter().map(|files| files.len()).sum();
        let columns: Vec<&String> = self.schema.fields().iter().map(|f| f.name()).collect();
        write!(
            f,
            "Shards: files={files}, columns={columns:?}, build={:?}",
            self.build
        )
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
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(files) = self.partitions.get(partition) else {
            return exec_err!("partition {partition} of {}", self.partitions.len());
        };
        let (schema, build) = (self.schema.clone(), self.build.clone());
        let rows = MetricBuilder::new(&self.metrics).output_rows(partition);
        let size = context.session_config().batch_size();
        let mut stream = RecordBatchReceiverStream::builder(schema.clone(), WAITING);
        let (sender, queue) = (stream.tx(), Queue::new(files.clone()));
        stream.spawn_blocking(move || {
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
            let read = read(&queue, reader, out, &rows);
            read.map_err(|error| DataFusionError::External(error.into()))
        });
        Ok(stream.build())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
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
