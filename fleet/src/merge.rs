//! Many shards into one: rows that differ in nothing but their counts become one row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use datafusion::arrow::array::{Array, ArrayRef, Date32Array, RecordBatch};
use datafusion::arrow::compute::{cast, max, min};

use crate::engine::{self, Engine, TABLE, sum};
use crate::schema::{KEYS, column, schema};
use crate::shard::{Inventory, Writer};

/// The query that groups and adds, as `docs/fleet.md` gives it for other engines.
pub fn sql(filter: &str) -> String {
    let keys = KEYS.join(", ");
    let order: Vec<String> = KEYS
        .iter()
        .map(|key| format!("{key} ASC NULLS FIRST"))
        .collect();
    format!(
        "SELECT {keys}, {}, {} FROM {TABLE} {filter} GROUP BY {keys} ORDER BY {}",
        sum(column::COUNT),
        sum(column::MISPREDICTIONS),
        order.join(", ")
    )
}

/// Adds the rows of an inventory up in one file in `folder`; says how many bytes went to temporary files. `None` if the
/// filter leaves no row.
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
    let spilled = engine
        .each(&sql(filter), |batch| {
            let batch = stored(batch)?;
            let day = batch.column_by_name(column::DAY);
            let day = day.and_then(|day| day.as_any().downcast_ref::<Date32Array>());
            let day = day.context("the rows have no days")?;
            if let (Some(first), Some(last)) = (min(day), max(day)) {
                let known = days.unwrap_or((first, last));
                days = Some((known.0.min(first), known.1.max(last)));
            }
            writer.write(&batch)
        })
        .await?;
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
pub fn remove(inventory: &Inventory, merged: &Path) -> Result<usize> {
    let used = inventory.used.iter().map(|shard| &shard.path);
    let mut removed = 0;
    for path in used.chain(&inventory.repeated) {
        if path != merged {
            std::fs::remove_file(path)
                .with_context(|| format!("{}: cannot remove", path.display()))?;
            removed += 1;
        }
    }
    Ok(removed)
}
