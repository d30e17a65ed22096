//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::engine::Limits;
use crate::place::Place;
use crate::schema::parse_day;

/// The port of a scheduler where none is named, that of Ballista.
pub const SCHEDULER_PORT: u16 = 50050;

/// Collects, merges and queries the profiles of a fleet
///
/// Profiles of any format become rows in Parquet files (shards), one for each count. They are merged, asked by SQL
/// (DataFusion), and become profiles of one build again: the same bytes that `postlink merge` makes.
#[derive(Debug, Parser)]
#[command(
    name = "postlink-fleet",
    bin_name = "postlink fleet",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_long_help = "\
Examples:
  postlink fleet add host1.plraw host2.plraw --binary ./app -o shards
  postlink fleet add perf.data --binary ./app --service web -o shards
  postlink fleet profile shards --build-id 1f2e… -o app.plprof
  postlink fleet query \"SELECT file, sum(count) FROM counts GROUP BY file\" shards
  postlink fleet merge shards -o merged
  postlink fleet merge s3://fleet/shards -o s3://fleet/merged --cluster df://10.0.0.1:50050

Exit codes: 0 done; 1 error, or not enough (quality); 2 wrong command line.")]
pub struct Cli {
    /// Say nothing but errors and what was asked for
    #[arg(long, short, global = true)]
    pub quiet: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Add(Add),
    Merge(Merge),
    Profile(Profile),
    Query(Query),
    Quality(Quality),
    Stale(Stale),
    Expire(Expire),
    Check(Check),
    #[command(subcommand)]
    Cluster(Server),
}

/// Turn profiles into shards
///
/// Every file that a profile has counts of gets rows: a recording of a machine, all its programs and libraries. The
/// same profile gives the same shard, and a shard that is there already is not added again.
#[derive(Args, Debug)]
pub struct Add {
    /// Profiles of any format but YAML; FILE:N counts N times
    #[arg(value_name = "PROFILE[:WEIGHT]", required = true)]
    pub profiles: Vec<String>,
    /// A program or library that they are of; may be given several times
    ///
    /// Names rows of counters, and turns offsets in the file to addresses as linked.
    #[arg(long, short, value_name = "FILE")]
    pub binary: Vec<PathBuf>,
    /// The build-id of what says none (fdata, pre-aggregated) where no binary is given
    #[arg(long, value_name = "ID")]
    pub build_id: Option<String>,
    /// The folder of shards, or s3://BUCKET/PREFIX
    #[arg(long, short, value_name = "FOLDER", value_parser = place())]
    pub output: Place,
    /// The day of the profiles (2026-11-23) [default: that of each file's last change, UTC]
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub day: Option<i32>,
    /// The service that ran
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub service: String,
    /// The kind of host that it ran on
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub host_class: String,
    /// What tells profiles apart that counted the very same: a host and a time
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub run: String,
}

/// The shards that are read, and with how much.
#[derive(Args, Debug)]
pub struct Source {
    /// Shards, and folders of them; s3://BUCKET/PREFIX
    #[arg(value_name = "SHARDS", required = true, value_parser = place())]
    pub shards: Vec<Place>,
    /// Go on without damaged shards, and say which
    #[arg(long)]
    pub skip_damaged: bool,
    #[command(flatten)]
    pub using: Using,
    /// Let a cluster do it: the URL of its scheduler, df://HOST:PORT
    ///
    /// Its executors read the shards, so these must have the same paths on all machines, or be objects. --threads is
    /// then the number of parts that the plan is cut into (16), and --memory that of each executor counts.
    #[arg(long, value_name = "URL")]
    pub cluster: Option<String>,
}

impl Source {
    /// The same for the engine.
    pub fn limits(&self) -> Limits {
        Limits {
            memory: self.using.memory,
            temporary: self.using.temporary.clone(),
            threads: self.using.threads.map(usize::from),
            cluster: self.cluster.clone(),
        }
    }
}

/// What an engine may use.
#[derive(Args, Debug)]
pub struct Using {
    /// Memory for groups, sorts and joins (256M, 4G); what does not fit goes to temporary files
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub memory: usize,
    /// Folder of temporary files [default: that of the system]
    #[arg(long, value_name = "FOLDER")]
    pub temporary: Option<PathBuf>,
    /// Number of threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// Which rows are wanted.
#[derive(Args, Debug, Default)]
pub struct Filter {
    /// Only rows of this service
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Only rows of this kind of host
    #[arg(long, value_name = "NAME")]
    pub host_class: Option<String>,
    /// Only rows of this day and later
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub since: Option<i32>,
    /// Only rows of this day and earlier
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub until: Option<i32>,
}

impl Filter {
    /// Conditions in SQL.
    pub fn conditions(&self) -> Vec<String> {
        use crate::engine::quoted;
        use crate::schema::day_text;
        let text = |name: &str, value: &Option<String>| {
            value
                .as_ref()
                .map(|value| format!("{name} = {}", quoted(value)))
        };
        let days = |compare: &str, day: Option<i32>| {
            day.map(|day| format!("day {compare} DATE '{}'", day_text(day)))
        };
        [
            text("service", &self.service),
            text("host_class", &self.host_class),
            days(">=", self.since),
            days("<=", self.until),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Add many shards up into one
///
/// Rows that differ in nothing but their counts become one. The file says which shards it holds, so that none is
/// counted twice where a file and its parts are read together.
#[derive(Args, Debug)]
pub struct Merge {
    #[command(flatten)]
    pub source: Source,
    /// The folder of the merged shard, or s3://BUCKET/PREFIX
    #[arg(long, short, value_name = "FOLDER", value_parser = place())]
    pub output: Place,
    /// Remove the shards that were added up, when the merged one is written
    #[arg(long)]
    pub replace: bool,
}

/// Write the profile of one build
///
/// The same bytes that `postlink merge` makes of the same profiles.
#[derive(Args, Debug)]
pub struct Profile {
    #[command(flatten)]
    pub source: Source,
    /// The build
    #[arg(long, value_name = "ID")]
    pub build_id: String,
    /// The profile: .plprof (counters), .preagg (addresses) or .fdata (functions)
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Which of several counter maps, or collections of fdata
    #[arg(long, value_name = "MAP")]
    pub map: Option<String>,
    /// The file, where rows have offsets in it for addresses
    #[arg(long, short, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    #[command(flatten)]
    pub filter: Filter,
}

/// Ask shards by SQL
///
/// The table `counts` has all rows; docs/fleet.md says what is in its columns.
#[derive(Args, Debug)]
pub struct Query {
    /// The query
    #[arg(value_name = "SQL")]
    pub sql: String,
    #[command(flatten)]
    pub source: Source,
    /// How the answer is written
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Format,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for eyes; all of it is in memory
    Table,
    /// Comma-separated values, with a head
    Csv,
}

/// Say whether there is enough of each build to optimise it
#[derive(Args, Debug)]
pub struct Quality {
    #[command(flatten)]
    pub source: Source,
    /// Only this build; the exit code is 1 if there is not enough of it
    #[arg(long, value_name = "ID")]
    pub build_id: Option<String>,
    /// Taken branches that are enough
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub min_branches: u64,
    /// Samples without branches that are enough
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub min_samples: u64,
    /// Days after which a profile is old
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub max_age: u32,
    /// Today, for ages [default: by this machine's clock, UTC]
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub today: Option<i32>,
    #[command(flatten)]
    pub filter: Filter,
}

/// Carry rows of an older build over to a new one
///
/// Functions whose code is the same but for addresses keep their counts, wherever they are now; the counts of others
/// are left out, and the sum says how many. Rows of counters cannot be carried over.
#[derive(Args, Debug)]
pub struct Stale {
    #[command(flatten)]
    pub source: Source,
    /// The older build
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// The new build
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// The folder of the new shard, or s3://BUCKET/PREFIX
    #[arg(long, short, value_name = "FOLDER", value_parser = place())]
    pub output: Place,
    #[command(flatten)]
    pub filter: Filter,
}

/// Remove rows of old days
///
/// Shards with nothing newer are removed, those with both are written again without the old rows.
#[derive(Args, Debug)]
pub struct Expire {
    #[command(flatten)]
    pub source: Source,
    /// Remove what is of an earlier day than this
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub before: i32,
    /// Only say what would be removed
    #[arg(long)]
    pub dry_run: bool,
}

/// Check shards, and say which are used and which are repeated
#[derive(Args, Debug)]
pub struct Check {
    /// Shards, and folders of them; s3://BUCKET/PREFIX
    #[arg(value_name = "SHARDS", required = true, value_parser = place())]
    pub shards: Vec<Place>,
    /// Let a cluster do it, if they are many: the URL of its scheduler, df://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub cluster: Option<String>,
}

/// Be a part of a cluster, on which other commands run with --cluster
///
/// One scheduler, and executors on as many machines as you like. Neither asks who talks to it: whoever reaches their
/// ports can read every file that they can. So they listen at this machine alone unless --bind says otherwise.
#[derive(Debug, Subcommand)]
pub enum Server {
    Scheduler(Scheduler),
    Executor(Executor),
}

/// Distribute the tasks of plans among executors
#[derive(Args, Debug)]
pub struct Scheduler {
    /// The address to listen at; 0.0.0.0 for all of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind: IpAddr,
    /// The port; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = SCHEDULER_PORT)]
    pub port: u16,
    /// Seconds of silence after which an executor is lost, and its tasks run elsewhere
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(8..))]
    pub executor_timeout: u64,
}

/// Run tasks
#[derive(Args, Debug)]
pub struct Executor {
    /// The scheduler
    #[arg(long, value_name = "URL", default_value = "df://127.0.0.1:50050")]
    pub scheduler: String,
    /// The address to listen at for other executors and for the client; 0.0.0.0 for all of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind: IpAddr,
    /// The port; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// The name or address under which others reach it [default: that of --bind, or what the scheduler sees]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    #[command(flatten)]
    pub using: Using,
}

fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(Place::parse)
}

fn day(text: &str) -> Result<i32, String> {
    parse_day(text).map_err(|error| error.to_string())
}

fn size(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is no size: must be a number of bytes, or with K, M or G");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (text.get(..at), 10),
        Some((at, 'M')) => (text.get(..at), 20),
        Some((at, 'G')) => (text.get(..at), 30),
        _ => (Some(text), 0),
    };
    let number: usize = digits.unwrap_or_default().parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    match bytes {
        0..0x10_0000 => Err(format!("{text}: at least 1M is needed")),
        _ => Ok(bytes),
    }
}

/// The program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("postlink fleet: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // A plan is taken apart and put together by functions that call themselves.
        .thread_stack_size(16 << 20)
        .build()
        .map_err(|error| anyhow!("cannot start threads: {error}"))?;
    runtime.block_on(crate::commands::run(cli.command, cli.quiet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units_and_do_not_overflow() {
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("1048576"), Ok(1 << 20));
        for wrong in ["", "G", "99999999999G", "1T", "-1", "3", "1 G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
