//! Many shards into one: rows that differ in nothing but their counts become one row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use datafusion::arrow::array::{Array, ArrayRef, Date32Array, RecordBatch};
use datafusion::arrow::compute::{BatchCoalescer, cast, max, min};

use crate::engine::{self, Engine, Limits, TABLE, sum};
use crate::place::Place;
use crate::progress::Progress;
use crate::read::Input;
use crate::schema::{KEYS, column, day_text, schema};
use crate::shard::{Inventory, Writer};
use crate::sums;

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

/// Adds the rows of an inventory up in one file in `folder`, those of days before `since` not; says how many bytes went
/// to temporary files. `None` if no row is left.
///
/// In this process by [`sums`], on a cluster by the query above: the same rows in the same order, so the same bytes. If
/// no day is left out, every row that the shards say they have must have been added once, wherever that was done.
pub async fn merge(
    inventory: &Inventory,
    limits: &Limits,
    since: Option<i32>,
    folder: &Path,
    progress: &Progress,
) -> Result<Option<(PathBuf, u64)>> {
    if inventory.used.is_empty() {
        bail!("no shard there that can be used");
    }
    let ids = inventory.ids();
    if ids.iter().any(|id| id.starts_with("path:")) {
        bail!("files of other tools say not which shards they hold, so a merged file cannot");
    }
    let mut merged = Merged {
        writer: Writer::new(folder)?,
        days: None,
        rows: BatchCoalescer::new(schema(), BATCH),
    };
    let (added, spilled) = if limits.cluster.is_some() {
        on_cluster(inventory, limits, since, progress, &mut merged).await?
    } else {
        tokio::task::block_in_place(|| {
            let files: Vec<Input> = inventory.used.iter().map(Input::from).collect();
            let sums = sums::add_up(&files, since, limits, progress)?;
            let (added, spilled) = (sums.rows, sums.spilled);
            sums.each(|batch| merged.add(batch.clone()))?;
            Ok::<_, anyhow::Error>((added, spilled))
        })?
    };
    let all: u64 = inventory.used.iter().map(|shard| shard.rows).sum();
    if since.is_none() && added != all {
        bail!("{added} rows were added up, and the shards have {all}: nothing is written");
    }
    merged.rows.finish_buffered_batch()?;
    merged.write()?;
    let Some(days) = merged.days else {
        return Ok(None);
    };
    let id = match &ids[..] {
        [id] => id.clone(),
        several => format!(
            "{:032x}",
            xxhash_rust::xxh3::xxh3_128(several.concat().as_bytes())
        ),
    };
    Ok(Some((merged.writer.finish(&id, &ids, days)?, spilled)))
}

/// The same by a cluster; says how many rows were added up, and how many bytes went to temporary files.
async fn on_cluster(
    inventory: &Inventory,
    limits: &Limits,
    since: Option<i32>,
    progress: &Progress,
    merged: &mut Merged,
) -> Result<(u64, u64)> {
    let engine = Engine::new(inventory, limits, progress).await?;
    let filter = since.map_or(String::new(), |day| {
        format!("WHERE day >= DATE '{}'", day_text(day))
    });
    let mut added = 0u64;
    let spilled = engine
        .each(&sql(&filter), |batch| {
            let counts = engine::numbers(batch, ADDED)?;
            added += counts.iter().flatten().sum::<u64>();
            merged.add(stored(batch)?)
        })
        .await?;
    Ok((added, spilled))
}

/// The file that is being written.
struct Merged {
    writer: Writer,
    /// The first and the last day so far.
    days: Option<(i32, i32)>,
    rows: BatchCoalescer,
}

impl Merged {
    fn add(&mut self, batch: RecordBatch) -> Result<()> {
        let day = batch.column_by_name(column::DAY);
        let day = day.and_then(|day| day.as_any().downcast_ref::<Date32Array>());
        let day = day.context("the rows have no days")?;
        if let (Some(first), Some(last)) = (min(day), max(day)) {
            let known = self.days.unwrap_or((first, last));
            self.days = Some((known.0.min(first), known.1.max(last)));
        }
        self.rows.push_batch(batch)?;
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        while let Some(batch) = self.rows.next_completed_batch() {
            self.writer.write(&batch)?;
        }
        Ok(())
    }
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
