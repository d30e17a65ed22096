//! Where rows are grouped and added: DataFusion in this process, or on a cluster, which gets the plan that would run
//! here.
//!
//! Memory is bounded by a pool that all operators of a process share. What does not fit, groups and runs of a sort,
//! goes to files in a temporary folder and comes back in order.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use datafusion::arrow::array::{
    Array, ArrayRef, Decimal128Array, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::cluster::{self, Cluster};
use crate::memory::Pool;
use crate::progress::Progress;
use crate::shard::Inventory;
use crate::store;
use crate::table::Counts;

/// Name of the table of all rows.
pub const TABLE: &str = "counts";

/// Bytes of memory without which a partition spends its time in spilling.
pub const MEMORY_OF_PARTITION: usize = 64 << 20;

/// How much may be used.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of memory for groups, sorts and joins.
    pub memory: usize,
    /// Where what does not fit goes; the system's folder for temporaries if not given.
    pub temporary: Option<PathBuf>,
    /// Threads; one for each processor if not given. On a cluster: the parts that a plan is cut into.
    pub threads: Option<usize>,
    /// The URL of a cluster's scheduler; nothing for this process.
    pub cluster: Option<String>,
}

/// A session with the rows of some shards.
pub struct Engine {
    context: SessionContext,
    cluster: Option<Cluster>,
    /// Rows of all shards.
    rows: u64,
    progress: Progress,
}

impl Engine {
    /// A session. Nothing is read yet; how much is, `progress` will show.
    pub async fn new(
        inventory: &Inventory,
        limits: &Limits,
        progress: &Progress,
    ) -> Result<Engine> {
        let table = Counts::new(inventory)?;
        let cluster = cluster::at(limits.cluster.as_deref())?;
        let context = match &cluster {
            None => local(limits)?,
            Some(cluster) => cluster.session(limits)?,
        };
        context.register_table(TABLE, Arc::new(table))?;
        Ok(Engine {
            context,
            cluster,
            rows: inventory.used.iter().map(|shard| shard.rows).sum(),
            progress: progress.clone(),
        })
    }

    /// The result of a query, as it comes.
    pub async fn stream(&self, sql: &str) -> Result<Answer> {
        let frame = self.context.sql(sql).await?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        let stream = match &self.cluster {
            None => {
                let stream = execute_stream(plan.clone(), task)?;
                self.progress.read(&plan, self.rows);
                stream
            }
            Some(cluster) => cluster.run(plan.clone(), &self.context).await?,
        };
        Ok(Answer { stream, plan })
    }

    /// Gives `each` the batches of a query's result; returns how many bytes went to temporary files.
    pub async fn each(
        &self,
        sql: &str,
        mut each: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<u64> {
        let mut answer = self.stream(sql).await?;
        while let Some(batch) = answer.stream.next().await {
            each(&batch?)?;
        }
        Ok(spilled(&answer.plan))
    }
}

/// The result of a query.
pub struct Answer {
    /// Its rows.
    pub stream: SendableRecordBatchStream,
    plan: Arc<dyn ExecutionPlan>,
}

/// Bytes that a plan, which is at its end, wrote to temporary files.
fn spilled(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let own = plan.metrics().and_then(|metrics| metrics.spilled_bytes());
    let below = plan.children().into_iter().map(spilled).sum::<u64>();
    own.unwrap_or(0) as u64 + below
}

fn local(limits: &Limits) -> Result<SessionContext> {
    let threads = limits
        .threads
        .unwrap_or(SessionConfig::new().target_partitions());
    // Each partition sorts on its own, and merging them takes memory that cannot spill: with little of it, fewer
    // partitions.
    let partitions = threads.min((limits.memory / MEMORY_OF_PARTITION).max(1));
    let config = configured(SessionConfig::new(), partitions, limits.memory / partitions);
    let pool = Pool::new(limits.memory, partitions);
    let mut runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_object_store_registry(store::stores());
    if let Some(folder) = &limits.temporary {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot make the folder", folder.display()))?;
        runtime = runtime.with_temp_file_path(folder);
    }
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(runtime.build_arc()?)
        .build();
    Ok(SessionContext::new_with_state(state))
}

/// Options of plans with so many partitions, each of which has so many bytes of memory.
pub fn configured(config: SessionConfig, partitions: usize, memory: usize) -> SessionConfig {
    let mut config = config.with_target_partitions(partitions);
    let options = config.options_mut();
    options.execution.collect_statistics = false;
    options.execution.parquet.pushdown_filters = true;
    // Shards have no bloom filters, and of most columns one page: looking for more takes longer than reading most.
    options.execution.parquet.enable_page_index = false;
    options.execution.parquet.bloom_filter_on_read = false;
    // A join by sorting goes to temporary files where it does not fit; one by hashing is an error there.
    options.optimizer.prefer_hash_join = false;
    // A sort that spills needs some memory to merge what it spilled: of a small pool, not all of it.
    let reserved = options.execution.sort_spill_reservation_bytes;
    options.execution.sort_spill_reservation_bytes = reserved.min(memory / 8);
    config
}

/// A string in SQL.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Sums of counts as SQL: in decimals, so that they do not wrap around.
pub fn sum(column: &str) -> String {
    format!("sum(CAST({column} AS DECIMAL(20, 0))) AS {column}")
}

/// A column by its name.
pub fn column(batch: &RecordBatch, name: &str) -> Result<ArrayRef> {
    let column = batch.column_by_name(name);
    Ok(column
        .with_context(|| format!("the engine's answer has no column {name}"))?
        .clone())
}

/// A column of strings.
pub fn strings(batch: &RecordBatch, name: &str) -> Result<StringArray> {
    let column = cast(&column(batch, name)?, &DataType::Utf8)?;
    let strings = column.as_any().downcast_ref::<StringArray>();
    Ok(strings
        .with_context(|| format!("the column {name} is no text"))?
        .clone())
}

/// A column of numbers that are not negative. Sums above 2^64-1 become that.
pub fn numbers(batch: &RecordBatch, name: &str) -> Result<UInt64Array> {
    let column = column(batch, name)?;
    let wrong = || {
        anyhow!(
            "the column {name} has the type {}, and holds no counts",
            column.data_type()
        )
    };
    if let Some(numbers) = column.as_any().downcast_ref::<UInt64Array>() {
        return Ok(numbers.clone());
    }
    if let DataType::Decimal128(_, 0) = column.data_type() {
        let sums = column.as_any().downcast_ref::<Decimal128Array>();
        let sums = sums.ok_or_else(wrong)?;
        let saturated = sums
            .iter()
            .map(|sum| sum.map(|sum| u64::try_from(sum.max(0)).unwrap_or(u64::MAX)));
        return Ok(saturated.collect());
    }
    let numbers = cast(&column, &DataType::UInt64)?;
    let numbers = numbers.as_any().downcast_ref::<UInt64Array>();
    Ok(numbers.ok_or_else(wrong)?.clone())
}

/// An element that may be null.
pub fn at<'a, T>(
    array: &'a T,
    index: usize,
) -> Option<<&'a T as datafusion::arrow::array::ArrayAccessor>::Item>
where
    &'a T: datafusion::arrow::array::ArrayAccessor,
    T: Array,
{
    use datafusion::arrow::array::ArrayAccessor;
    (index < array.len() && array.is_valid(index)).then(|| array.value(index))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{Field, Schema};
    use datafusion::datasource::MemTable;

    use super::*;

    /// Both sides are larger than the memory: joining by a table of one side was an error.
    #[test]
    fn a_join_that_does_not_fit_goes_to_temporary_files() {
        let (rows, memory, partitions) = (1_000_000, 16 << 20, 2);
        let pool = Pool::new(memory, partitions);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool));
        let config = configured(SessionConfig::new(), partitions, memory / partitions);
        let context = SessionContext::new_with_config_rt(config, runtime.build_arc().unwrap());
        let numbers = |multiple: u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(
                (0..rows).map(|n| n * multiple % rows),
            ))
        };
        let fields = ["at", "count"].map(|name| Field::new(name, DataType::UInt64, false));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        for (table, multiple) in [("a", 1), ("b", 7919)] {
            let batch = RecordBatch::try_new(schema.clone(), vec![numbers(multiple), numbers(3)]);
            let batch = batch.unwrap();
            let batches = (0..rows as usize).step_by(8192);
            let batches = batches.map(|at| batch.slice(at, 8192.min(rows as usize - at)));
            let table_of = MemTable::try_new(schema.clone(), vec![batches.collect()]).unwrap();
            context.register_table(table, Arc::new(table_of)).unwrap();
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let joined = "SELECT a.at, a.count, b.count FROM a JOIN b ON a.at = b.at";
        let (found, spilled) = runtime.block_on(async {
            let plan = context.sql(joined).await.unwrap();
            let plan = plan.create_physical_plan().await.unwrap();
            let mut stream = execute_stream(plan.clone(), context.task_ctx()).unwrap();
            let mut found = 0;
            while let Some(batch) = stream.next().await {
                found += batch.unwrap().num_rows();
            }
            (found, spilled(&plan))
        });
        assert_eq!(found, rows as usize);
        assert!(spilled > 0);
    }
}
