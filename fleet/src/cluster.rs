//! The same plans on a cluster: Ballista's scheduler and executors, and a session that gives them its work.
//!
//! Nothing of scheduling is our own. Executors read the shards themselves, so every one of them must see the same
//! files under the same paths. An executor that ends is noticed when its heartbeats stop; what it had done is done
//! again by others.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use ballista::prelude::SessionContextExt;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use clap::Args;
use datafusion::prelude::SessionContext;

/// Start the scheduler of a cluster
///
/// It runs until it is stopped. Commands find it by `--cluster df://HOST:PORT`.
#[derive(Args, Debug)]
pub struct Scheduler {
    /// Address and port that it listens on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50050")]
    pub listen: SocketAddr,
    /// The name by which others reach it [default: the address]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Seconds without a heartbeat after which an executor is taken for dead, and its work is given to others
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
}

impl Scheduler {
    pub async fn run(self) -> Result<ExitCode> {
        let config = SchedulerConfig {
            bind_host: self.listen.ip().to_string(),
            bind_port: self.listen.port(),
            external_host: self.host.unwrap_or_else(|| self.listen.ip().to_string()),
            executor_timeout_seconds: self.timeout,
            expire_dead_executor_interval_seconds: (self.timeout / 4).max(1),
            no_executors_grace_period_seconds: self.timeout,
            ..SchedulerConfig::default()
        };
        let failed = || format!("the scheduler at {}", self.listen);
        let cluster = BallistaCluster::new_from_config(&config).await;
        let cluster = cluster.with_context(failed)?;
        eprintln!("scheduler: df://{}", self.listen);
        start_server(cluster, self.listen, Arc::new(config))
            .await
            .with_context(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Start an executor of a cluster
///
/// It runs until it is stopped, and must see the shards under the same paths as whoever asks.
#[derive(Args, Debug)]
pub struct Executor {
    /// The scheduler
    #[arg(long, value_name = "URL", default_value = "df://127.0.0.1:50050")]
    pub scheduler: String,
    /// Address and port for data; the port after it is for commands of the scheduler
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    pub listen: SocketAddr,
    /// The name by which others reach it [default: the address]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Memory for groups and sorts; what does not fit goes to temporary files
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = crate::cli::size)]
    pub memory: usize,
    /// Tasks at a time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Folder for what goes from one step to the next [default: one in the system's folder of temporaries]
    #[arg(long, value_name = "FOLDER")]
    pub temporary: Option<PathBuf>,
}

impl Executor {
    pub async fn run(self) -> Result<ExitCode> {
        let (scheduler_host, scheduler_port) = address(&self.scheduler)?;
        let port = self.listen.port();
        let grpc_port = port
            .checked_add(1)
            .with_context(|| format!("there is no port after {port}"))?;
        let folder = match &self.temporary {
            Some(folder) => {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("{}: cannot make the folder", folder.display()))?;
                folder.clone()
            }
            None => tempfile::Builder::new()
                .prefix("postlink-fleet-")
                .tempdir()
                .context("cannot make a temporary folder")?
                .keep(),
        };
        let mut config = ExecutorProcessConfig {
            bind_host: self.listen.ip().to_string(),
            external_host: Some(self.host.unwrap_or_else(|| self.listen.ip().to_string())),
            port,
            grpc_port,
            scheduler_host,
            scheduler_port,
            scheduler_connect_timeout_seconds: 30,
            work_dir: Some(folder.display().to_string()),
            memory_pool_size: Some(self.memory as u64),
            executor_heartbeat_interval_seconds: 2,
            ..ExecutorProcessConfig::default()
        };
        if let Some(threads) = self.threads {
            config.vcores = usize::from(threads);
        }
        eprintln!("executor: {} for {}", self.listen, self.scheduler);
        let done = start_executor_process(Arc::new(config)).await;
        if self.temporary.is_none() {
            // What is left of a folder of our own is nobody's.
            let _ = std::fs::remove_dir_all(&folder);
        }
        done.with_context(|| format!("the executor at {}", self.listen))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Host and port of `df://host:port`.
fn address(text: &str) -> Result<(String, u16)> {
    let wrong = || anyhow!("{text:?} is no scheduler: must be like df://host:50050");
    let url = url::Url::parse(text).map_err(|_| wrong())?;
    if url.scheme() != "df" {
        bail!(wrong());
    }
    let host = url.host_str().ok_or_else(wrong)?.to_owned();
    Ok((host, url.port().ok_or_else(wrong)?))
}

/// A session whose queries a cluster answers.
pub async fn session(url: &str) -> Result<SessionContext> {
    let (host, port) = address(url)?;
    // A plan is only sent when it is executed, and an error then would not say which address was meant.
    let connected = tokio::net::TcpStream::connect((host.as_str(), port)).await;
    connected.with_context(|| format!("no scheduler answers at {url}"))?;
    SessionContext::remote(url)
        .await
        .with_context(|| format!("the scheduler at {url}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_is_a_host_and_a_port() {
        assert_eq!(address("df://a:1").unwrap(), ("a".to_owned(), 1));
        for wrong in ["df://a", "http://a:1", "a:1", "", "df://:1"] {
            let error = address(wrong).unwrap_err().to_string();
            assert!(error.contains("df://host:50050"), "{wrong}: {error}");
        }
    }
}
