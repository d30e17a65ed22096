//! Rows of other executors, in bounded memory: they go to a temporary file first.
//!
//! ```text
//! task of another executor          this executor
//!   file of rows ──stream of blocks──► temporary file, of DataFusion's manager of spilled rows ──► operators of the plan
//! ```
//!
//! A task that reads what tasks of the stage before wrote has a `ShuffleReaderExec` of Ballista for it. That keeps
//! everything that one task wrote for it in memory, to be able to ask again when a connection breaks, and of a plan
//! that merges sorted rows it keeps all of them at once. So an executor puts [`Fetch`] in its place when a task begins.
//! Rows that are on this machine are left to Ballista's reader, which reads them block by block.
//!
//! While the operators above read one file, the next one is fetched: two files of a partition are there at most.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::JobId;
use ballista_core::client::BallistaClient;
use ballista_core::error::BallistaError;
use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::extension::{BallistaConfigGrpcEndpoint, SessionConfigExt};
use ballista_core::serde::scheduler::PartitionLocation;
use ballista_core::utils::GrpcClientConfig;
use ballista_executor::execution_engine::{
    DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor,
};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, assert_or_internal_err};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, SpillManager,
};
use datafusion::prelude::SessionConfig;
use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

/// Ballista's way of running tasks, with [`Fetch`] in the place of its reader.
#[derive(Default)]
pub struct Engine(DefaultExecutionEngine);

impl ExecutionEngine for Engine {
    fn create_query_stage_exec(
        &self,
        job: JobId,
        stage: usize,
        task: usize,
        partitions: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        folder: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let fetching = |plan: Arc<dyn ExecutionPlan>| -> Result<Transformed<_>> {
            let Some(reader) = plan.downcast_ref::<ShuffleReaderExec>() else {
                return Ok(Transformed::no(plan));
            };
            Ok(Transformed::yes(Arc::new(Fetch {
                reader: reader.clone(),
                folder: folder.to_owned(),
                metrics: ExecutionPlanMetricsSet::new(),
            })))
        };
        let plan = plan.transform(fetching)?.data;
        self.0
            .create_query_stage_exec(job, stage, task, partitions, plan, folder, config)
    }
}

/// Reads what tasks of the stage before wrote.
#[derive(Debug)]
struct Fetch {
    /// Ballista's reader, which says where all of it is.
    reader: ShuffleReaderExec,
    /// Of rows that this executor wrote.
    folder: String,
    metrics: ExecutionPlanMetricsSet,
}

impl DisplayAs for Fetch {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Fetch: ")?;
        self.reader.fmt_as(kind, f)
    }
}

impl ExecutionPlan for Fetch {
    fn name(&self) -> &str {
        "Fetch"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.reader.properties()
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

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let count = children.len();
        assert_or_internal_err!(count == 0, "{count} operators below one that has none");
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let of = if self.reader.broadcast { 0 } else { partition };
        let is_here = |location: &PartitionLocation| {
            let path = location.path(&self.folder);
            path.is_ok_and(|path| path.exists())
        };
        let all = self.reader.partition[of].iter().cloned();
        let (here, there): (Vec<_>, Vec<_>) = all.partition(is_here);
        let here = ShuffleReaderExec::try_new(
            self.reader.stage_id,
            vec![here],
            self.schema(),
            Partitioning::UnknownPartitioning(1),
        )?;
        let here = here.with_work_dir(self.folder.clone());
        let here = here.execute(0, context.clone())?;
        if there.is_empty() {
            return Ok(here);
        }
        let spill = SpillManager::new(
            context.runtime_env(),
            SpillMetrics::new(&self.metrics, partition),
            self.schema(),
        );
        let there = files(there, context, spill.clone())
            .map(move |file| spill.read_spill_as_stream(file?, None))
            .try_flatten();
        let stream = RecordBatchStreamAdapter::new(self.schema(), here.chain(there));
        Ok(Box::pin(stream))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        arguments: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.reader.statistics_from_inputs(inputs, arguments)
    }
}

type File = Arc<dyn SpillFile>;

/// Files of what is at other executors, fetched one after another.
fn files(
    locations: Vec<PartitionLocation>,
    context: Arc<TaskContext>,
    spill: SpillManager,
) -> impl Stream<Item = Result<File>> + Send {
    let (send, receive) = mpsc::channel(1);
    let task = SpawnedTask::spawn(async move {
        let mut clients = Clients::new(context.session_config());
        for location in locations {
            let file = clients.file(&location, &spill).await;
            let file = file.map_err(BallistaError::into_datafusion).transpose();
            // What has no rows has no file.
            let Some(file) = file else { continue };
            let failed = file.is_err();
            // Whoever reads no more has ended.
            if send.send(file).await.is_err() || failed {
                return;
            }
        }
    });
    stream::unfold((receive, task), |(mut receive, task)| async move {
        let file = receive.recv().await?;
        Some((file, (receive, task)))
    })
}

/// Connections to other executors, and how they are asked.
struct Clients {
    config: GrpcClientConfig,
    endpoint: Option<Arc<BallistaConfigGrpcEndpoint>>,
    flight: bool,
    open: HashMap<(String, u16), BallistaClient>,
}

impl Clients {
    fn new(config: &SessionConfig) -> Clients {
        Clients {
            config: GrpcClientConfig::from(&config.ballista_config()),
            endpoint: config.ballista_override_create_grpc_client_endpoint(),
            flight: config.ballista_shuffle_reader_remote_prefer_flight(),
            open: HashMap::new(),
        }
    }

    /// A file with the rows of one location. Asked for again if a connection breaks; if that does not help, the
    /// scheduler gets to know what is lost, and runs the task again that wrote it.
    async fn file(
        &mut self,
        location: &PartitionLocation,
        spill: &SpillManager,
    ) -> Result<Option<File>, BallistaError> {
        let pause = Duration::from_millis(self.config.io_retry_wait_time_ms);
        let mut retries = self.config.io_retries_times;
        loop {
            let error = match self.fetch(location, spill).await {
                Err(error @ BallistaError::FetchFailed(..)) if retries > 0 => error,
                other => return other,
            };
            log::warn!("{error}; it is asked for again");
            retries -= 1;
            tokio::time::sleep(pause).await;
        }
    }

    async fn fetch(
        &mut self,
        location: &PartitionLocation,
        spill: &SpillManager,
    ) -> Result<Option<File>, BallistaError> {
        let (executor, rows) = (&location.executor_meta, &location.partition_id);
        let lost = |message: String| {
            let executor = executor.id.clone();
            BallistaError::FetchFailed(executor, rows.stage_id, rows.partition_id, message)
        };
        let address = (executor.host.clone(), executor.port);
        // Away while it is used: after an error it is not used again.
        let mut client = match self.open.remove(&address) {
            Some(client) => client,
            None => {
                let connected = self.connect(&address).await;
                connected.map_err(|error| lost(error.to_string()))?
            }
        };
        let layout = location.layout();
        let stream = client
            .fetch_partition(&executor.id, rows, location.file_id, layout, self.flight)
            .await;
        // A connection that breaks in the first block is an error of its format.
        let mut stream = stream.map_err(|error| match error {
            error @ BallistaError::FetchFailed(..) => error,
            other => lost(other.to_string()),
        })?;
        let mut file = spill.create_in_progress_file("rows of another executor")?;
        while let Some(batch) = stream.next().await {
            let batch = batch.map_err(|error| lost(error.to_string()))?;
            file.append_batch(&batch)?;
        }
        self.open.insert(address, client);
        Ok(file.finish()?)
    }

    async fn connect(&self, (host, port): &(String, u16)) -> Result<BallistaClient, BallistaError> {
        let config = &self.config;
        BallistaClient::try_new(
            host,
            *port,
            config.max_message_size,
            config.use_tls,
            self.endpoint.clone(),
            // Asked again here, and not by the client as well.
            1,
            0,
            config.initial_connection_window_size,
            config.initial_stream_window_size,
        )
        .await
    }
}
