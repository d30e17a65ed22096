//! The scheduler and the executor: Ballista's, in this process.
//!
//! An executor has one pool of memory for all tasks that it runs, the one of [`crate::memory`], since a task groups
//! and sorts as a plan of one machine does; one that adds up shards has an equal share of it. Its folder has what other
//! executors read of it, and what did not fit; it goes with the executor, unless that is killed.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ballista_core::config::TaskSchedulingPolicy;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion::common::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use url::Url;

use super::add_up::Share;
use super::codec::Codec;
use super::fetch;
use crate::cli::{Executor, SCHEDULER_PORT, Scheduler};
use crate::engine::MEMORY_OF_PARTITION;
use crate::memory::Pool;
use crate::store;

/// The largest message in bytes: a plan that names a million shards has about 300 MB.
pub const MESSAGE: u32 = 1 << 30;
/// Seconds in which an executor tries to reach its scheduler when it begins.
const PATIENCE: u16 = 30;
/// Seconds after which results that nobody fetched are removed, of a scheduler that forgot them as well.
const FORGET: u64 = 24 * 3600;

/// Runs a scheduler until it is ended.
pub async fn scheduler(command: Scheduler) -> Result<()> {
    log_to_standard_error();
    let listener = tokio::net::TcpListener::bind((command.bind, command.port)).await;
    let listener = listener
        .with_context(|| format!("{}: cannot listen at port {}", command.bind, command.port))?;
    let address = listener.local_addr()?;
    let timeout = command.executor_timeout;
    let config = SchedulerConfig {
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        bind_host: host(command.bind),
        external_host: host(command.bind),
        bind_port: address.port(),
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: (timeout / 4).max(1),
        no_executors_grace_period_seconds: timeout,
        grpc_server_max_decoding_message_size: MESSAGE,
        grpc_server_max_encoding_message_size: MESSAGE,
        grpc_client_max_message_size: MESSAGE,
        override_physical_codec: Some(Arc::new(Codec::new())),
        override_session_builder: Some(Arc::new(session)),
        ..SchedulerConfig::default()
    };
    config.validate()?;
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let server =
        create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config)).await?;
    println!("scheduler: df://{address}");
    start_grpc_service_with_listener(listener, server).await?;
    Ok(())
}

/// A session of the scheduler, which reads no shard, but takes plans apart that name their stores.
fn session(config: SessionConfig) -> Result<SessionState, DataFusionError> {
    let runtime = RuntimeEnvBuilder::new().with_object_store_registry(store::stores());
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(runtime.build_arc()?);
    Ok(state.build())
}

/// Runs an executor until it is ended.
pub async fn executor(command: Executor) -> Result<()> {
    log_to_standard_error();
    let memory = command.using.memory;
    let cores = match command.using.threads.map(usize::from) {
        None => std::thread::available_parallelism()?
            .get()
            .min((memory / MEMORY_OF_PARTITION).max(1)),
        Some(cores) if memory / cores < MEMORY_OF_PARTITION => bail!(
            "--threads {cores}: needs {} bytes of --memory, {MEMORY_OF_PARTITION} for each, and has {memory}",
            cores * MEMORY_OF_PARTITION
        ),
        Some(cores) => cores,
    };
    let scheduler = Url::parse(&command.scheduler).ok();
    let scheduler = scheduler.filter(|url| url.scheme() == "df");
    let scheduler = scheduler.ok_or_else(|| {
        anyhow!(
            "{}: no scheduler, must be df://HOST:PORT",
            command.scheduler
        )
    })?;
    let parent = command
        .using
        .temporary
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let failed = || format!("{}: cannot make a folder in it", parent.display());
    std::fs::create_dir_all(&parent).with_context(failed)?;
    let folder = tempfile::Builder::new()
        .prefix("postlink-fleet-executor-")
        .tempdir_in(&parent)
        .with_context(failed)?;
    let (rows, spilled) = (folder.path().join("rows"), folder.path().join("spilled"));
    for folder in [&rows, &spilled] {
        std::fs::create_dir(folder)
            .with_context(|| format!("{}: cannot make the folder", folder.display()))?;
    }
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(Pool::new(memory, cores)))
        .with_temp_file_path(&spilled)
        .with_object_store_registry(store::stores())
        .build_arc()?;
    let share = Share {
        memory: memory / cores,
        temporary: spilled.clone(),
    };
    let port = match command.port {
        0 => free_port(command.bind)?,
        port => port,
    };
    let advertised = command.host.clone();
    let advertised =
        advertised.or_else(|| (!command.bind.is_unspecified()).then(|| host(command.bind)));
    println!(
        "executor: {}:{port}, {cores} cores, {memory} bytes of memory, for {}",
        advertised.as_deref().unwrap_or("*"),
        command.scheduler
    );
    let config = ExecutorProcessConfig {
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        bind_host: host(command.bind),
        external_host: advertised,
        port,
        scheduler_host: scheduler.host_str().unwrap_or_default().to_owned(),
        scheduler_port: scheduler.port().unwrap_or(SCHEDULER_PORT),
        scheduler_connect_timeout_seconds: PATIENCE,
        vcores: cores,
        work_dir: Some(rows.display().to_string()),
        job_data_ttl_seconds: FORGET,
        job_data_clean_up_interval_seconds: FORGET / 24,
        grpc_max_decoding_message_size: MESSAGE,
        grpc_max_encoding_message_size: MESSAGE,
        // No pool of its own for each task: the runtime below has one for all.
        memory_pool_size: Some(0),
        override_physical_codec: Some(Arc::new(Codec::of_executor(share))),
        override_execution_engine: Some(Arc::new(fetch::Engine::default())),
        override_runtime_producer: Some(Arc::new(move |_| Ok(runtime.clone()))),
        ..ExecutorProcessConfig::default()
    };
    start_executor_process(Arc::new(config))
        .await
        .with_context(|| format!("the executor of {}", command.scheduler))?;
    Ok(())
}

/// As it stands in front of a port.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// A port that nobody has now.
fn free_port(bind: IpAddr) -> Result<u16> {
    let listener = TcpListener::bind((bind, 0)).with_context(|| format!("{bind}: no free port"))?;
    Ok(listener.local_addr()?.port())
}

/// Warnings and errors go to standard error; what is said again and again, as by an executor whose scheduler is away,
/// every ten seconds.
struct Log(Mutex<BTreeMap<(String, u32), Instant>>);

static LOG: Log = Log(Mutex::new(BTreeMap::new()));

const PAUSE: Duration = Duration::from_secs(10);

impl Log {
    fn is_due(&self, file: &str, line: u32, now: Instant) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (file.to_owned(), line);
        let due = said
            .get(&key)
            .is_none_or(|last| now.duration_since(*last) >= PAUSE);
        if due {
            said.insert(key, now);
        }
        due
    }
}

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record) {
        let place = (
            record.file().unwrap_or_default(),
            record.line().unwrap_or(0),
        );
        if self.enabled(record.metadata()) && self.is_due(place.0, place.1, Instant::now()) {
            let level = record.level().as_str().to_lowercase();
            eprintln!("postlink fleet: {level}: {}", record.args());
        }
    }

    fn flush(&self) {}
}

fn log_to_standard_error() {
    // Fails only if there is one already, which says the same.
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_and_again_is_said_every_ten_seconds() {
        let (log, start) = (Log(Mutex::default()), Instant::now());
        assert!(log.is_due("a.rs", 1, start));
        assert!(!log.is_due("a.rs", 1, start + PAUSE / 2));
        assert!(log.is_due("a.rs", 2, start + PAUSE / 2));
        assert!(log.is_due("a.rs", 1, start + PAUSE));
    }

    #[test]
    fn addresses_stand_in_front_of_ports() {
        assert_eq!(host("127.0.0.1".parse().unwrap()), "127.0.0.1");
        assert_eq!(host("::1".parse().unwrap()), "[::1]");
    }
}
