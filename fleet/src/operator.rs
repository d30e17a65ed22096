//! Operators of ours with one operator below them, for plans of an engine.
//!
//! An engine asks an operator for much that is the same for all of them: what is below it, how it stands over something
//! else, what it measures. Here that is written once ([`Over`]); what one of them does with rows is its own
//! ([`Operator`]).

use std::fmt;
use std::sync::Arc;

use anyhow::anyhow;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, assert_or_internal_err, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use tokio::task::JoinError;

/// Batches that wait for the operator above.
pub const WAITING: usize = 2;

/// What an operator does with the rows of the one below it.
pub trait Operator: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its name in plans.
    const NAME: &'static str;
    /// Whether rows come out in the order in which they came in.
    const KEEPS_ORDER: bool = false;

    /// What the engine has to know of the rows that it gives, in so many partitions.
    fn properties(&self, partitions: usize) -> PlanProperties;

    /// The rows of one partition.
    fn run(
        &self,
        input: SendableRecordBatchStream,
        task: Task,
    ) -> Result<SendableRecordBatchStream>;

    /// What stands for it where a plan is shown.
    fn show(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

/// One partition of an operator that runs.
#[derive(Debug)]
pub struct Task {
    pub partition: usize,
    pub context: Arc<TaskContext>,
    /// Where the operator says what it has done.
    pub metrics: ExecutionPlanMetricsSet,
}

/// An operator over another one.
#[derive(Debug)]
pub struct Over<T> {
    operator: T,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl<T: Operator> Over<T> {
    /// With as many partitions as the one below.
    pub fn new(operator: T, input: Arc<dyn ExecutionPlan>) -> Over<T> {
        let partitions = input.properties().output_partitioning().partition_count();
        Over {
            properties: Arc::new(operator.properties(partitions)),
            operator,
            input,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The operator alone.
    pub fn operator(&self) -> &T {
        &self.operator
    }
}

impl<T: Operator> DisplayAs for Over<T> {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        self.operator.show(f)
    }
}

impl<T: Operator> ExecutionPlan for Over<T> {
    fn name(&self) -> &str {
        T::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    /// A partition of the input stays one: what is above divides rows if it likes.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![T::KEEPS_ORDER]
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
        Ok(Arc::new(Over::new(self.operator.clone(), only(children)?)))
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
        let input = self.input.execute(partition, context.clone())?;
        let metrics = self.metrics.clone();
        self.operator.run(
            input,
            Task {
                partition,
                context,
                metrics,
            },
        )
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
