//! Files of shards as rows: what is below an operator that reads shards.
//!
//! So a plan names its files in data that every engine can take apart and send, a partition of files for each partition
//! of the operator, and a task of a cluster gets the files that it reads and no others.
//!
//! | column | |
//! |---|---|
//! | `place` | URL: `file:///…` or `s3://…` |
//! | `bytes` | size when it was checked |
//! | `rows` | rows that its footer says |

use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use datafusion::arrow::array::{RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;

use crate::place::Place;
use crate::read::Input;
use crate::schema::of_type;

const PLACE: &str = "place";
const BYTES: &str = "bytes";
const ROWS: &str = "rows";

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new(PLACE, DataType::Utf8, false),
        Field::new(BYTES, DataType::UInt64, false),
        Field::new(ROWS, DataType::UInt64, false),
    ]))
});

/// Files in so many partitions at most.
pub fn plan(files: &[Input], partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
    in_parts(&parts(files, partitions))
}

/// Files, divided in so many parts at most.
pub fn parts(files: &[Input], parts: usize) -> Vec<&[Input]> {
    let each = files.len().div_ceil(parts.max(1)).max(1);
    files.chunks(each).collect()
}

/// Files, with a partition for each part.
pub fn in_parts(parts: &[&[Input]]) -> Result<Arc<dyn ExecutionPlan>> {
    let partitions = parts.iter().map(|some| Ok(vec![batch(some)?]));
    let partitions: Vec<Vec<RecordBatch>> = partitions.collect::<Result<_>>()?;
    Ok(MemorySourceConfig::try_new_exec(
        &partitions,
        SCHEMA.clone(),
        None,
    )?)
}

fn batch(files: &[Input]) -> Result<RecordBatch> {
    let places = files
        .iter()
        .map(|file| Ok(String::from(file.place.url()?)))
        .collect::<Result<Vec<_>>>()?;
    let bytes = files.iter().map(|file| file.bytes);
    let rows = files.iter().map(|file| file.rows);
    Ok(RecordBatch::try_new(
        SCHEMA.clone(),
        vec![
            Arc::new(StringArray::from(places)),
            Arc::new(UInt64Array::from_iter_values(bytes)),
            Arc::new(UInt64Array::from_iter_values(rows)),
        ],
    )?)
}

/// The files that rows name.
pub async fn named(mut rows: SendableRecordBatchStream) -> Result<Arc<[Input]>> {
    let mut files = Vec::new();
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let places: &StringArray = of_type(&batch, PLACE)?;
        let bytes: &UInt64Array = of_type(&batch, BYTES)?;
        let rows: &UInt64Array = of_type(&batch, ROWS)?;
        for (place, (bytes, rows)) in places.iter().zip(bytes.iter().zip(rows)) {
            files.push(Input {
                place: Place::parse(place.context("a file without a place")?.into())?,
                bytes: bytes.context("a file without a size")?,
                rows: rows.context("a file without a number of rows")?,
            });
        }
    }
    Ok(files.into())
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[test]
    fn rows_name_the_files_that_they_were_made_of() {
        let files: Vec<Input> = ["/a/b c%20ü#?.parquet", "/x", "/y"]
            .into_iter()
            .zip(1..)
            .map(|(path, number)| Input {
                place: path.into(),
                bytes: 100 * number,
                rows: number,
            })
            .collect();
        let plan = plan(&files, 2).unwrap();
        let task = SessionContext::new().task_ctx();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.build().unwrap();
        let mut found = Vec::new();
        for (partition, count) in [(0, 2), (1, 1)] {
            let rows = plan.execute(partition, task.clone()).unwrap();
            let some = runtime.block_on(named(rows)).unwrap();
            assert_eq!(some.len(), count);
            found.extend(some.to_vec());
        }
        let text = |files: &[Input]| format!("{files:?}");
        assert_eq!(text(&found), text(&files));
    }
}
