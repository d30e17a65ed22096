//! Checking shards on executors: each reads a part of the files whole, and says what the files say of themselves.
//!
//! ```text
//! Check      what each file says of itself, or what is wrong with it; a task for each partition
//!   files    crate::files
//! ```
//!
//! The client lists the files, and selects of what comes back as of what it finds itself: which shards are used
//! ([`crate::shard::Inventory`]) is decided in one place.
//!
//! A file that is damaged is a row with what is wrong. A file that an executor cannot open or read at all is an error
//! of the whole: else an executor that does not see the shards would have all of them left out where damaged ones may
//! be.
//!
//! | column | |
//! |---|---|
//! | `place` | URL |
//! | `wrong` | what is wrong; else null |
//! | `ids` | ids of its shards, 32 digits each; null if it has none or is damaged |
//! | `rows`, `bytes` | 0 if it is damaged |
//! | `first`, `last` | days, if it says so |

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, anyhow, bail};
use datafusion::arrow::array::{
    Int32Array, Int32Builder, LargeStringArray, LargeStringBuilder, RecordBatch, StringArray,
    StringBuilder, UInt64Array, UInt64Builder,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};
use tokio::runtime::Handle;

use crate::engine::at;
use crate::files;
use crate::operator::{Operator, Over, Task, WAITING, ended, failed};
use crate::place::Place;
use crate::progress::Progress;
use crate::read::Input;
use crate::schema::of_type;
use crate::shard::{self, OBJECTS_AT_ONCE, Shard};

const PLACE: &str = "place";
const WRONG: &str = "wrong";
const IDS: &str = "ids";
const ROWS: &str = "rows";
const BYTES: &str = "bytes";
const FIRST: &str = "first";
const LAST: &str = "last";

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new(PLACE, DataType::Utf8, false),
        Field::new(WRONG, DataType::Utf8, true),
        // A merged file may name a million.
        Field::new(IDS, DataType::LargeUtf8, true),
        Field::new(ROWS, DataType::UInt64, false),
        Field::new(BYTES, DataType::UInt64, false),
        Field::new(FIRST, DataType::Int32, true),
        Field::new(LAST, DataType::Int32, true),
    ]))
});

/// The plan that checks files, in so many partitions at most.
pub fn plan(places: &[Place], partitions: usize) -> anyhow::Result<Arc<dyn ExecutionPlan>> {
    let unknown = |place: &Place| Input {
        place: place.clone(),
        bytes: 0,
        rows: 0,
    };
    let files: Vec<Input> = places.iter().map(unknown).collect();
    Ok(Arc::new(Over::new(Check, files::plan(&files, partitions)?)))
}

/// Checks the files that the operator below names.
#[derive(Clone, Debug)]
pub struct Check;

impl Operator for Check {
    const NAME: &'static str = "Check";

    fn properties(&self, partitions: usize) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(SCHEMA.clone()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
    }

    fn run(&self, input: SendableRecordBatchStream, _: Task) -> Result<SendableRecordBatchStream> {
        let mut stream = RecordBatchReceiverStream::builder(SCHEMA.clone(), WAITING);
        let sender = stream.tx();
        stream.spawn(async move {
            let files = files::named(input).await.map_err(failed)?;
            let runtime = Handle::current();
            // Files are read by threads, which an executor's own must not wait for.
            let checking = tokio::task::spawn_blocking(move || {
                for some in files.chunks(OBJECTS_AT_ONCE) {
                    let places = some.iter().map(|file| file.place.clone()).collect();
                    let found = runtime.block_on(shard::check(places, &Progress::default()));
                    if sender.blocking_send(Ok(batch(&found)?)).is_err() {
                        break;
                    }
                }
                Ok(())
            });
            ended(checking.await)
        });
        Ok(stream.build())
    }
}

fn batch(found: &[(Place, anyhow::Result<Shard>)]) -> anyhow::Result<RecordBatch> {
    let (mut places, mut wrong, mut ids) = (
        StringBuilder::new(),
        StringBuilder::new(),
        LargeStringBuilder::new(),
    );
    let (mut rows, mut bytes) = (UInt64Builder::new(), UInt64Builder::new());
    let (mut first, mut last) = (Int32Builder::new(), Int32Builder::new());
    for (place, found) in found {
        places.append_value(place.url()?);
        let shard = match found {
            Ok(shard) => {
                wrong.append_null();
                Some(shard)
            }
            Err(error) if is_of_reading(error) => {
                bail!("{error:#}: an executor must be able to read all shards")
            }
            Err(error) => {
                wrong.append_value(format!("{error:#}"));
                None
            }
        };
        ids.append_option(shard.and_then(Shard::written_ids));
        rows.append_value(shard.map_or(0, |shard| shard.rows));
        bytes.append_value(shard.map_or(0, |shard| shard.bytes));
        let days = shard.and_then(|shard| shard.days);
        first.append_option(days.map(|days| days.0));
        last.append_option(days.map(|days| days.1));
    }
    Ok(RecordBatch::try_new(
        SCHEMA.clone(),
        vec![
            Arc::new(places.finish()),
            Arc::new(wrong.finish()),
            Arc::new(ids.finish()),
            Arc::new(rows.finish()),
            Arc::new(bytes.finish()),
            Arc::new(first.finish()),
            Arc::new(last.finish()),
        ],
    )?)
}

/// Whether a file could not be read, be it right or not.
fn is_of_reading(error: &anyhow::Error) -> bool {
    let is_it = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<std::io::Error>() || cause.is::<object_store::Error>()
    };
    error.chain().any(is_it)
}

/// What executors have found so far.
#[derive(Default)]
pub struct Checked(HashMap<String, anyhow::Result<Shard>>);

impl Checked {
    /// Takes some rows; how many they are.
    pub fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<usize> {
        let places: &StringArray = of_type(batch, PLACE)?;
        let wrong: &StringArray = of_type(batch, WRONG)?;
        let ids: &LargeStringArray = of_type(batch, IDS)?;
        let rows: &UInt64Array = of_type(batch, ROWS)?;
        let bytes: &UInt64Array = of_type(batch, BYTES)?;
        let first: &Int32Array = of_type(batch, FIRST)?;
        let last: &Int32Array = of_type(batch, LAST)?;
        for row in 0..batch.num_rows() {
            let url = places.value(row);
            let found = match at(wrong, row) {
                Some(what) => Err(anyhow!("{what}")),
                None => {
                    let place = Place::parse(url.into())?;
                    Ok(Shard {
                        ids: Shard::ids_of(&place, at(ids, row))
                            .map_err(|what| anyhow!("{place}: {what}"))?,
                        place,
                        rows: rows.value(row),
                        bytes: bytes.value(row),
                        days: at(first, row).zip(at(last, row)),
                    })
                }
            };
            self.0.insert(url.to_owned(), found);
        }
        Ok(batch.num_rows())
    }

    /// Of these places those that are not checked yet.
    pub fn missing(&self, places: &[Place]) -> anyhow::Result<Vec<Place>> {
        let mut missing = Vec::new();
        for place in places {
            if !self.0.contains_key(place.url()?.as_str()) {
                missing.push(place.clone());
            }
        }
        Ok(missing)
    }

    /// What was found, in the order of the places.
    pub fn finish(
        mut self,
        places: Vec<Place>,
    ) -> anyhow::Result<Vec<(Place, anyhow::Result<Shard>)>> {
        let checked = places.into_iter().map(|place| {
            let found = self.0.remove(place.url()?.as_str());
            Ok((place, found.context("a file that no executor checked")?))
        });
        checked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "/of/another/tool/27.parquet";

    fn shard(path: &str, ids: Vec<String>, days: Option<(i32, i32)>) -> Shard {
        Shard {
            place: path.into(),
            ids,
            rows: 7,
            bytes: 1000,
            days,
        }
    }

    /// A path that is as long as an id, with what is in front of it, was taken for one.
    #[test]
    fn what_files_say_of_themselves_comes_out_as_it_went_in() {
        let two = ["0", "f"].map(|digit| digit.repeat(shard::ID_DIGITS));
        let shards = [
            shard("/a b", two.to_vec(), Some((-1, 20_000))),
            shard("/c", vec!["path:/c".into()], None),
            // Of as many characters as an id has digits.
            shard(LONG, vec![format!("path:{LONG}")], None),
        ];
        let mut found: Vec<(Place, anyhow::Result<Shard>)> = shards
            .iter()
            .map(|shard| (shard.place.clone(), Ok(shard.clone())))
            .collect();
        found.push(("/d".into(), Err(anyhow!("/d: cut short").context("why"))));
        let places: Vec<Place> = found.iter().map(|one| one.0.clone()).collect();
        let mut checked = Checked::default();
        assert_eq!(checked.add(&batch(&found[..3]).unwrap()).unwrap(), 3);
        assert_eq!(checked.missing(&places).unwrap(), [Place::from("/d")]);
        checked.add(&batch(&found[3..]).unwrap()).unwrap();
        assert!(checked.missing(&places).unwrap().is_empty());
        let out = checked.finish(places.clone()).unwrap();
        assert!(out.iter().map(|one| &one.0).eq(&places));
        for (shard, (_, found)) in shards.iter().zip(&out) {
            assert_eq!(found.as_ref().unwrap(), shard);
        }
        let wrong = out[3].1.as_ref().unwrap_err().to_string();
        assert_eq!(wrong, "why: /d: cut short");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_damaged_one() {
        let error = std::fs::read("/nowhere").unwrap_err();
        let found = Err(anyhow!(error).context("/nowhere: cannot open"));
        let error = batch(&[("/nowhere".into(), found)]).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("/nowhere: cannot open") && said.contains("must be able to read"),
            "{said}"
        );
    }
}
