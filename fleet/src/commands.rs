//! What each command does.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::util::pretty::pretty_format_batches;
use futures::StreamExt;
use postlink_profile::Weighted;

use crate::cli::{
    Add, Check, Command, Expire, Format, Merge, Profile, Quality, Query, Server, Source, Stale,
};
use crate::cluster;
use crate::engine::Engine;
use crate::place::{Output, Place, remove_all};
use crate::progress::Progress;
use crate::quality;
use crate::rows::{self, Binary};
use crate::schema::{Labels, day_text, today};
use crate::shard::{Inventory, Shard, Writer};
use crate::{merge, profile, stale};

/// Rows that are given to the writer at once.
const BATCH: usize = 1 << 16;

/// Runs a command.
pub async fn run(command: Command, quiet: bool) -> Result<ExitCode> {
    let say = Say {
        quiet,
        progress: Progress::new(name(&command), quiet),
    };
    let done = match command {
        Command::Add(command) => add(command, &say).await,
        Command::Merge(command) => merge_shards(command, &say).await,
        Command::Profile(command) => write_profile(command, &say).await,
        Command::Query(command) => query(command, &say).await,
        Command::Quality(command) => judge(command, &say).await,
        Command::Stale(command) => carry(command, &say).await,
        Command::Expire(command) => expire(command, &say).await,
        Command::Check(command) => check(&command, &say).await,
        Command::Cluster(server) => serve(server, &say).await,
    };
    say.progress.end();
    done
}

fn name(command: &Command) -> &'static str {
    match command {
        Command::Add(_) => "add",
        Command::Merge(_) => "merge",
        Command::Profile(_) => "profile",
        Command::Query(_) => "query",
        Command::Quality(_) => "quality",
        Command::Stale(_) => "stale",
        Command::Expire(_) => "expire",
        Command::Check(_) => "check",
        Command::Cluster(_) => "cluster",
    }
}

/// What goes to standard error.
struct Say {
    quiet: bool,
    progress: Progress,
}

impl Say {
    fn info(&self, text: &str) {
        if !self.quiet {
            self.progress.say(text);
        }
    }

    fn warn(&self, text: &str) {
        self.progress
            .say(&format!("postlink fleet: warning: {text}"));
    }
}

fn file_day(path: &Path) -> Result<i32> {
    let changed = std::fs::metadata(path)
        .and_then(|data| data.modified())
        .with_context(|| format!("{}: cannot get the time of its last change", path.display()))?;
    let days = match changed.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() / 86_400) as i64,
        Err(before) => -((before.duration().as_secs() / 86_400) as i64) - 1,
    };
    i32::try_from(days).with_context(|| format!("{}: changed on day {days}", path.display()))
}

async fn serve(server: Server, say: &Say) -> Result<ExitCode> {
    say.progress.end();
    match server {
        Server::Scheduler(command) => cluster::scheduler(command).await?,
        Server::Executor(command) => cluster::executor(command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(command: Add, say: &Say) -> Result<ExitCode> {
    let binaries = command.binary.iter().map(|path| Binary::open(path));
    let binaries = binaries.collect::<Result<Vec<_>>>()?;
    // Only footers are looked at: adding must not cost the reading of all that was added before.
    let mut known = if command.output.exists() {
        HashSet::from_iter(Inventory::names(&command.output).await?)
    } else {
        HashSet::new()
    };
    let output = Output::new(&command.output)?;
    let (mut added, mut rows_added, mut repeated) = (0u64, 0u64, 0u64);
    say.progress
        .begin("profiles", command.profiles.len() as u64);
    for (number, text) in command.profiles.iter().enumerate() {
        if number > 0 {
            say.progress.did();
        }
        let input = Weighted::parse(text)?;
        let Some(mut read) = rows::read(&input, &binaries, command.build_id.as_deref())? else {
            say.warn(&format!(
                "{}: nothing recorded yet, left out",
                input.path.display()
            ));
            continue;
        };
        for warning in &read.warnings {
            say.warn(warning);
        }
        let labels = Labels {
            day: command.day.map_or_else(|| file_day(&input.path), Ok)?,
            service: command.service.clone(),
            host_class: command.host_class.clone(),
            source: read.source.to_owned(),
            weight: input.weight,
        };
        if labels.day > today() + 1 {
            say.warn(&format!(
                "{}: its day is {}, and today is {}: kept as it is; quality counts such rows apart",
                input.path.display(),
                day_text(labels.day),
                day_text(today())
            ));
        }
        let id = read.rows.finish(&labels, &command.run);
        if !known.insert(id.clone()) {
            say.info(&format!(
                "{}: is there already as {id}, not added again (--run NAME tells runs apart that counted the same)",
                input.path.display()
            ));
            repeated += 1;
            continue;
        }
        let place = write_shard(&output, &read.rows, &labels, &id).await?;
        say.info(&format!(
            "{}: {} rows of {} files in {place}",
            input.path.display(),
            read.rows.rows.len(),
            read.rows
                .files
                .iter()
                .filter(|file| !file.0.is_empty())
                .count()
        ));
        added += 1;
        rows_added += read.rows.rows.len() as u64;
    }
    say.info(&format!(
        "{added} shards added, {rows_added} rows; {repeated} were there already"
    ));
    Ok(ExitCode::SUCCESS)
}

async fn write_shard(
    output: &Output,
    rows: &crate::schema::Rows,
    labels: &Labels,
    id: &str,
) -> Result<Place> {
    let mut writer = Writer::new(output.folder())?;
    for some in rows.rows.chunks(BATCH) {
        writer.write(&rows.batch(some, labels)?)?;
    }
    let path = writer.finish(id, &[id.to_owned()], (labels.day, labels.day))?;
    output.deliver(path).await
}

async fn inventory(source: &Source, say: &Say) -> Result<Inventory> {
    let cluster = cluster::at(source.cluster.as_deref())?;
    let (cluster, skip) = (cluster.as_ref(), source.skip_damaged);
    let inventory = Inventory::read(&source.shards, skip, cluster, &say.progress).await?;
    for (_, what) in &inventory.damaged {
        say.warn(&format!("left out: {what}"));
    }
    if !inventory.damaged.is_empty() {
        let (damaged, used) = (inventory.damaged.len(), inventory.used.len());
        say.warn(&format!(
            "{damaged} damaged files were left out, {used} are used"
        ));
    }
    if !inventory.repeated.is_empty() {
        say.info(&format!(
            "{} files are in others and were not counted again",
            inventory.repeated.len()
        ));
    }
    Ok(inventory)
}

async fn merge_shards(command: Merge, say: &Say) -> Result<ExitCode> {
    let inventory = inventory(&command.source, say).await?;
    let output = Output::new(&command.output)?;
    let limits = command.source.limits();
    let merged = merge::merge(&inventory, &limits, None, output.folder(), &say.progress).await?;
    let (merged, spilled) = merged.context("the shards have no rows")?;
    if spilled > 0 {
        say.info(&format!("{spilled} bytes went to temporary files and back"));
    }
    let shard = crate::shard::open(&merged)?;
    let merged = output.deliver(merged).await?;
    let rows: u64 = inventory.used.iter().map(|shard| shard.rows).sum();
    say.info(&format!(
        "{merged}: {} rows of {rows}, {} shards",
        shard.rows,
        shard.ids.len()
    ));
    if command.replace {
        let merged = merged.canonical()?;
        let removed = merge::remove(&inventory, &merged).await?;
        say.info(&format!("{removed} files removed"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn write_profile(command: Profile, say: &Say) -> Result<ExitCode> {
    let inventory = inventory(&command.source, say).await?;
    let engine = Engine::new(&inventory, &command.source.limits(), &say.progress).await?;
    let wanted = profile::Wanted {
        build_id: command.build_id,
        map: command.map,
        conditions: command.filter.conditions(),
        binary: command.binary,
    };
    profile::write(&engine, &wanted, &command.output).await?;
    say.info(&format!(
        "{}: of {} files of shards",
        command.output.display(),
        inventory.used.len()
    ));
    Ok(ExitCode::SUCCESS)
}

async fn query(command: Query, say: &Say) -> Result<ExitCode> {
    let inventory = inventory(&command.source, say).await?;
    let engine = Engine::new(&inventory, &command.source.limits(), &say.progress).await?;
    let mut stream = engine.stream(&command.sql).await?.stream;
    let stdout = std::io::stdout().lock();
    let mut out = std::io::BufWriter::new(stdout);
    match command.format {
        Format::Table => {
            let schema = stream.schema();
            let mut batches = vec![datafusion::arrow::array::RecordBatch::new_empty(schema)];
            while let Some(batch) = stream.next().await {
                batches.push(batch?);
            }
            say.progress.end();
            writeln!(out, "{}", pretty_format_batches(&batches)?)?;
        }
        Format::Csv => {
            let mut csv = WriterBuilder::new().with_header(true).build(&mut out);
            while let Some(batch) = stream.next().await {
                // The table comes where the line is.
                say.progress.end();
                csv.write(&batch?)?;
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

async fn judge(command: Quality, say: &Say) -> Result<ExitCode> {
    let inventory = inventory(&command.source, say).await?;
    let engine = Engine::new(&inventory, &command.source.limits(), &say.progress).await?;
    let thresholds = quality::Thresholds {
        branches: command.min_branches,
        samples: command.min_samples,
        age: i64::from(command.max_age),
        today: command.today.unwrap_or_else(today),
    };
    let conditions = command.filter.conditions();
    let builds = quality::builds(&engine, command.build_id.as_deref(), &conditions).await?;
    if let Some(id) = &command.build_id
        && builds.is_empty()
    {
        bail!("no rows of the build {id} fit");
    }
    say.progress.end();
    let mut enough = true;
    for build in &builds {
        println!("{}", build.describe(&thresholds));
        enough &= build.missing(&thresholds).is_empty();
    }
    let failed = command.build_id.is_some() && !enough;
    Ok(ExitCode::from(u8::from(failed)))
}

async fn carry(command: Stale, say: &Say) -> Result<ExitCode> {
    let inventory = inventory(&command.source, say).await?;
    let engine = Engine::new(&inventory, &command.source.limits(), &say.progress).await?;
    let (old, new) = (Binary::open(&command.from)?, Binary::open(&command.to)?);
    let conditions = command.filter.conditions();
    let (mut carried, map) = stale::carry(&engine, &old, &new, &conditions).await?;
    let counters = match carried.others {
        0 => String::new(),
        rows => format!(
            "; {rows} rows cannot be carried over (counters: postlink convert --binary {} makes a profile by names of them)",
            command.from.display()
        ),
    };
    if carried.kept == 0 {
        bail!(
            "no count of the build {} ({}) fits the code of {}{counters}",
            old.identity()?,
            command.from.display(),
            command.to.display()
        );
    }
    let labels = Labels {
        day: carried.day,
        source: "stale".into(),
        weight: 1,
        ..Labels::default()
    };
    let id = carried.rows.finish(&labels, &old.identity()?.to_string());
    let output = Output::new(&command.output)?;
    let place = write_shard(&output, &carried.rows, &labels, &id).await?;
    let percent = carried.kept as f64 * 100.0 / (carried.kept + carried.lost).max(1) as f64;
    say.info(&format!(
        "{place}: {} rows, {percent:.1} % of the counts; {} of {} functions are the same{counters}",
        carried.rows.rows.len(),
        map.found(),
        map.functions
    ));
    Ok(ExitCode::SUCCESS)
}

async fn expire(command: Expire, say: &Say) -> Result<ExitCode> {
    let inventory = inventory(&command.source, say).await?;
    let (mut removed, mut written) = (0u64, 0u64);
    let mut all_old = Vec::new();
    let before = command.before;
    let old = |shard: &&Shard| shard.days.is_some_and(|days| days.0 < before);
    for shard in inventory.used.iter().filter(old) {
        let only_old = shard.days.is_some_and(|days| days.1 < before);
        let place = &shard.place;
        if command.dry_run {
            let what = if only_old { "remove" } else { "write again" };
            say.info(&format!("would {what} {place}"));
        } else if !only_old {
            let one = Inventory {
                used: vec![shard.clone()],
                ..Inventory::default()
            };
            let limits = command.source.limits();
            let output = Output::new(&shard.place.parent())?;
            let (folder, progress) = (output.folder(), &say.progress);
            let kept = merge::merge(&one, &limits, Some(before), folder, progress).await?;
            let kept = match kept {
                Some((kept, _)) => Some(output.deliver(kept).await?),
                None => None,
            };
            if kept.is_none_or(|kept| kept != shard.place) {
                shard.place.remove().await?;
            }
        } else {
            all_old.push(&shard.place);
        }
        removed += u64::from(only_old);
        written += u64::from(!only_old);
    }
    remove_all(&all_old).await?;
    // What is in one of them as well would come back to life.
    for place in inventory.repeated.iter().filter(|_| removed + written > 0) {
        if command.dry_run {
            say.info(&format!("would remove {place}, which is in others"));
        } else {
            place.remove().await?;
        }
    }
    let would = if command.dry_run { "would be " } else { "" };
    say.info(&format!(
        "{removed} shards {would}removed, {written} {would}written again without rows before {}",
        day_text(before)
    ));
    Ok(ExitCode::SUCCESS)
}

async fn check(command: &Check, say: &Say) -> Result<ExitCode> {
    let cluster = cluster::at(command.cluster.as_deref())?;
    let cluster = cluster.as_ref();
    let inventory = Inventory::read(&command.shards, true, cluster, &say.progress).await?;
    say.progress.end();
    for (_, what) in &inventory.damaged {
        println!("damaged: {what}");
    }
    for place in &inventory.repeated {
        println!("repeated: {place}");
    }
    let (rows, bytes) = inventory.used.iter().fold((0u64, 0u64), |sum, shard| {
        (sum.0 + shard.rows, sum.1 + shard.bytes)
    });
    say.info(&format!(
        "{} files used, {} shards, {rows} rows, {bytes} bytes; {} repeated, {} damaged",
        inventory.used.len(),
        inventory.ids().len(),
        inventory.repeated.len(),
        inventory.damaged.len()
    ));
    Ok(ExitCode::from(u8::from(!inventory.damaged.is_empty())))
}
