//! Many shards into one: rows that differ in nothing but their counts become one row.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use datafusion::arrow::array::{Date32Array, RecordBatch};
use datafusion::arrow::compute::{BatchCoalescer, max, min};

use crate::cluster::Cluster;
use crate::engine::Limits;
use crate::place::{Place, remove_all};
use crate::progress::Progress;
use crate::read::Input;
use crate::schema::{column, schema};
use crate::shard::{Inventory, Writer};
use crate::sums;

/// Rows that are given to the writer at once. Where pages end depends on it, so it is not what an engine happens to
/// give, which would make other bytes of the same rows.
const BATCH: usize = 8192;
/// Adds the rows of an inventory up in one file in `folder`, those of days before `since` not; says how many bytes went
/// to temporary files. `None` if no row is left.
///
/// By [`sums`], in this process or in tasks of a cluster: the same rows in the same order, so the same bytes. Every row
/// that the shards say they have must have been looked at once, wherever that was done.
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
    let files: Vec<Input> = inventory.used.iter().map(Input::from).collect();
    let sums = match &limits.cluster {
        Some(url) => {
            let cluster = Cluster::new(url)?;
            cluster.add_up(&files, since, limits, progress).await?
        }
        None => tokio::task::block_in_place(|| sums::add_up(&files, since, limits, progress))?,
    };
    let (added, spilled) = (sums.rows, sums.spilled);
    let all: u64 = inventory.used.iter().map(|shard| shard.rows).sum();
    if added != all {
        bail!("{added} rows were added up, and the shards have {all}: nothing is written");
    }
    tokio::task::block_in_place(|| sums.each(|batch| merged.add(batch.clone())))?;
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

/// Removes files that are in a merged one now.
pub async fn remove(inventory: &Inventory, merged: &Place) -> Result<usize> {
    let used = inventory.used.iter().map(|shard| &shard.place);
    let all = used.chain(&inventory.repeated);
    let all: Vec<&Place> = all.filter(|place| *place != merged).collect();
    remove_all(&all).await?;
    Ok(all.len())
}
