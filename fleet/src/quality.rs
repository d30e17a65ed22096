//! Whether there is enough of a build to optimise it, and what is missing.
//!
//! Counters are exact: one run is enough, of what it ran. Branch records are enough when there are so many that the
//! frequent ones are seen often; samples of single addresses likewise. A profile is old after some days, and a day
//! after tomorrow is a wrong clock: such rows are counted in all sums, and told apart here.

use std::fmt::Write;

use anyhow::Result;
use datafusion::arrow::array::Date32Array;

use crate::engine::{self, Engine, TABLE, at, numbers, quoted, strings};
use crate::schema::day_text;

/// What is enough.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    pub branches: u64,
    pub samples: u64,
    /// Days.
    pub age: i64,
    pub today: i32,
}

/// What there is of one build.
#[derive(Clone, Debug, Default)]
pub struct Build {
    pub build_id: String,
    /// Names of the file; more than one for one build-id is worth a look.
    pub names: u64,
    pub name: String,
    pub rows: u64,
    pub profiles: u64,
    /// Counter maps or collections: profiles of different ones are not added up.
    pub maps: u64,
    pub counters: u64,
    pub counted: u64,
    pub branches: u64,
    pub distinct_branches: u64,
    pub run_bytes: u64,
    pub samples: u64,
    pub days: Option<(i32, i32)>,
}

/// All builds, or one.
pub async fn builds(
    engine: &Engine,
    build_id: Option<&str>,
    conditions: &[String],
) -> Result<Vec<Build>> {
    let id = build_id.map(|id| format!("build_id = {}", quoted(id)));
    let all: Vec<&String> = id.iter().chain(conditions).collect();
    let filter: String = all.iter().fold("WHERE true".to_owned(), |sum, condition| {
        sum + " AND " + condition
    });
    let total = |name: &str, count: &str, condition: &str| {
        format!(
            "sum(CASE WHEN {condition} THEN CAST({count} AS DECIMAL(20, 0)) ELSE CAST(0 AS DECIMAL(20, 0)) END) AS {name}"
        )
    };
    let distinct = |name: &str, of: &str, condition: &str| {
        format!("count(DISTINCT CASE WHEN {condition} THEN {of} END) AS {name}")
    };
    // A branch is counted where it leaves a file; a run where it is.
    let taken =
        "kind IN ('branch', 'return') AND (from_address IS NOT NULL OR from_function IS NOT NULL)";
    let place = "concat(coalesce(from_function, ''), ':', from_address, ':', coalesce(to_function, ''), ':', to_address)";
    let sql = format!(
        "SELECT build_id, max(file) AS name, {}, count(*) AS rows_of, {}, {}, {}, {}, {}, {}, {}, {}, min(day) AS first_day, max(day) AS last_day \
         FROM {TABLE} {filter} GROUP BY build_id ORDER BY build_id",
        distinct("names", "file", "file <> ''"),
        total("profiles", "count", "kind = 'profile'"),
        distinct("maps", "map", "kind = 'profile'"),
        "max(CASE WHEN kind = 'profile' AND address_kind = 'counter' THEN from_address END) AS counters",
        distinct("counted", "from_address", "kind = 'counter'"),
        total("branches", "count", taken),
        distinct("distinct_branches", place, taken),
        // In floating point: it is half of a ratio, and the product of two counts.
        "sum(CASE WHEN run IS NOT NULL THEN CAST(count AS DOUBLE) * CAST(run AS DOUBLE) ELSE CAST(0 AS DOUBLE) END) AS run_bytes",
        total("samples", "count", "kind = 'sample'"),
    );
    let mut builds = Vec::new();
    engine
        .each(&sql, |batch| {
            let (ids, names) = (strings(batch, "build_id")?, strings(batch, "name")?);
            let number = |name: &str, row: usize| -> Result<u64> {
                Ok(at(&numbers(batch, name)?, row).unwrap_or(0))
            };
            let (first, last) = (
                engine::column(batch, "first_day")?,
                engine::column(batch, "last_day")?,
            );
            let day = |column: &datafusion::arrow::array::ArrayRef, row: usize| {
                let days = column.as_any().downcast_ref::<Date32Array>()?;
                at(days, row)
            };
            for row in 0..batch.num_rows() {
                builds.push(Build {
                    build_id: at(&ids, row).unwrap_or_default().to_owned(),
                    name: at(&names, row).unwrap_or_default().to_owned(),
                    names: number("names", row)?,
                    rows: number("rows_of", row)?,
                    profiles: number("profiles", row)?,
                    maps: number("maps", row)?,
                    counters: number("counters", row)?,
                    counted: number("counted", row)?,
                    branches: number("branches", row)?,
                    distinct_branches: number("distinct_branches", row)?,
                    run_bytes: number("run_bytes", row)?,
                    samples: number("samples", row)?,
                    days: day(&first, row).zip(day(&last, row)),
                });
            }
            Ok(())
        })
        .await?;
    Ok(builds)
}

impl Build {
    /// What is missing; nothing if it is enough.
    pub fn missing(&self, enough: &Thresholds) -> Vec<String> {
        let mut missing = Vec::new();
        let counted = self.counted > 0;
        if !counted && self.branches < enough.branches {
            let wanted = enough.branches;
            match (self.branches, self.samples >= enough.samples) {
                (0, true) => {}
                (0, false) => missing.push(format!(
                    "{} samples, {} are enough",
                    self.samples, enough.samples
                )),
                (some, _) => missing.push(format!("{some} taken branches, {wanted} are enough")),
            }
        }
        if let Some((_, last)) = self.days {
            let age = i64::from(enough.today) - i64::from(last);
            if age > enough.age {
                missing.push(format!(
                    "the newest rows are {age} days old, {} are allowed",
                    enough.age
                ));
            }
        }
        if self.build_id.is_empty() {
            missing.push("it is not known of which build the rows are".to_owned());
        }
        missing
    }

    /// A few lines for people.
    pub fn describe(&self, enough: &Thresholds) -> String {
        let mut text = String::new();
        let id = if self.build_id.is_empty() {
            "(no build-id)"
        } else {
            &self.build_id
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{id} {}", self.name);
        let _ = write!(text, "\n  {} rows, {} profiles", self.rows, self.profiles);
        if let Some((first, last)) = self.days {
            let _ = write!(text, ", {} to {}", day_text(first), day_text(last));
            if last > enough.today + 1 {
                let _ = write!(text, " (in the future: a clock lied)");
            }
        }
        if self.counted > 0 {
            let percent = self.counted as f64 * 100.0 / self.counters.max(1) as f64;
            let _ = write!(
                text,
                "\n  counters: {} of {} counted ({percent:.1} %)",
                self.counted, self.counters
            );
        }
        if self.branches > 0 {
            let _ = write!(
                text,
                "\n  taken branches: {}, {:.1} for each of {} different ones",
                self.branches,
                self.branches as f64 / self.distinct_branches.max(1) as f64,
                self.distinct_branches
            );
        }
        if self.run_bytes > 0 {
            let _ = write!(
                text,
                "; one for each {:.1} bytes executed between branches",
                self.run_bytes as f64 / self.branches.max(1) as f64
            );
        }
        if self.samples > 0 {
            let _ = write!(text, "\n  samples: {}", self.samples);
        }
        if self.maps > 1 {
            let _ = write!(
                text,
                "\n  {} counter maps or collections under one build-id: they are not added up",
                self.maps
            );
        }
        if self.names > 1 {
            let _ = write!(text, "\n  {} names of files under one build-id", self.names);
        }
        let missing = self.missing(enough);
        let _ = if missing.is_empty() {
            write!(text, "\n  enough")
        } else {
            write!(text, "\n  missing: {}", missing.join("; "))
        };
        text
    }
}
