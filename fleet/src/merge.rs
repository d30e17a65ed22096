//! Many shards into one: rows that differ in nothing but their counts become one row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use datafusion::arrow::array::{Array, ArrayRef, Date32Array, RecordBatch};
use datafusion::arrow::compute::{BatchCoalescer, cast, max, min};

use crate::engine::{self, Engine, TABLE, sum};
use crate::place::Place;
use crate::schema::{KEYS, column, schema};
use crate::shard::{Inventory, Writer};

/// Rows that are given to the writer at once. Where pages end depends on it, so it is not what an engine happens to
/// give, which would make other bytes of the same rows.
const BATCH: usize = 8192;
/// The column that says how many rows a row was added up of.
const ADDED: &str = "rows_added";

/// The query that groups and adds, as `docs/fleet.md` gives it for other engines.
pub fn sql(filter: &str) -> String {
    let keys = KEYS.join(", ");
    let order: Vec<String> = KEYS
        .iter()
        .map(|key| format!("{key} ASC NULLS FIRST"))
        .collect();
    format!(
        "SELECT {keys}, {}, {}, count(*) AS {ADDED} FROM {TABLE} {filter} GROUP BY {keys} ORDER BY {}",
        sum(column::COUNT),
        sum(column::MISPREDICTIONS),
        order.join(", ")
    )
}

/// Adds the rows of an inventory up in one file in `folder`; says how many bytes went to temporary files. `None` if the
/// filter leaves no row.
///
/// Without a filter every row that the shards say they have must have been added once, wherever that was done.
pub async fn merge(
    engine: &Engine,
    inventory: &Inventory,
    filter: &str,
    folder: &Path,
) -> Result<Option<(PathBuf, u64)>> {
    let ids = inventory.ids();
    if ids.iter().any(|id| id.starts_with("path:")) {
        bail!("files of other tools say not which shards they hold, so a merged file cannot");
    }
    let mut writer = Writer::new(folder)?;
    let mut days: Option<(i32, i32)> = None;
    let mut added = 0u64;
    let mut rows = BatchCoalescer::new(schema(), BATCH);
    let spilled = engine
        .each(&sql(filter), |batch| {
            let counts = engine::numbers(batch, ADDED)?;
            added += counts.iter().flatten().sum::<u64>();
            let batch = stored(batch)?;
            let day = batch.column_by_name(column::DAY);
            let day = day.and_then(|day| day.as_any().downcast_ref::<Date32Array>());
            let day = day.context("the rows have no days")?;
            if let (Some(first), Some(last)) = (min(day), max(day)) {
                let known = days.unwrap_or((first, last));
                days = Some((known.0.min(first), known.1.max(last)));
            }
            rows.push_batch(batch)?;
            write(&mut rows, &mut writer)
        })
        .await?;
    rows.finish_buffered_batch()?;
    write(&mut rows, &mut writer)?;
    let all: u64 = inventory.used.iter().map(|shard| shard.rows).sum();
    if filter.is_empty() && added != all {
        bail!("{added} rows were added up, and the shards have {all}: nothing is written");
    }
    let Some(days) = days else {
        return Ok(None);
    };
    let id = match &ids[..] {
        [id] => id.clone(),
        several => format!(
            "{:032x}",
            xxhash_rust::xxh3::xxh3_128(several.concat().as_bytes())
        ),
    };
    Ok(Some((writer.finish(&id, &ids, days)?, spilled)))
}

fn write(rows: &mut BatchCoalescer, writer: &mut Writer) -> Result<()> {
    while let Some(batch) = rows.next_completed_batch() {
        writer.write(&batch)?;
    }
    Ok(())
}

/// Rows of an engine's answer in the types of the schema.
fn stored(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = schema();
    let columns = schema.fields().iter().map(|field| -> Result<ArrayRef> {
        let name = field.name();
        Ok(
            if [column::COUNT, column::MISPREDICTIONS].contains(&name.as_str()) {
                Arc::new(engine::numbers(batch, name)?)
            } else {
                cast(&engine::column(batch, name)?, field.data_type())?
            },
        )
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

/// Removes files that are in a merged one now.
pub async fn remove(inventory: &Inventory, merged: &Place) -> Result<usize> {
    let used = inventory.used.iter().map(|shard| &shard.place);
    let mut removed = 0;
    for place in used.chain(&inventory.repeated) {
        if place != merged {
            place.remove().await?;
            removed += 1;
        }
    }
    Ok(removed)
}
