//! The client: plans here, submits, and reads the rows that come back.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ballista_core::config::{
    BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK, BALLISTA_SHUFFLE_COMPRESSION_CODEC,
    BALLISTA_SHUFFLE_READER_MAX_BYTES_IN_FLIGHT,
    BALLISTA_SHUFFLE_SORT_BASED_MEMORY_LIMIT_PER_TASK_BYTES,
};
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use ballista_core::optimizer::ballista_default_optimizer_rules;
use datafusion::common::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::StreamExt;
use url::Url;

use super::add_up::{self, Fetched};
use super::check::{self, Checked};
use super::codec::Codec;
use super::server::MESSAGE;
use crate::cli::SCHEDULER_PORT;
use crate::engine::{Limits, MEMORY_OF_PARTITION, configured};
use crate::files;
use crate::place::Place;
use crate::progress::Progress;
use crate::read::Input;
use crate::shard::Shard;
use crate::store;
use crate::sums::Sums;

/// Parts that a plan is cut into where nothing else was asked for.
const PARTS: usize = 16;
/// How often what cannot be fetched is asked for.
const ATTEMPTS: usize = 3;
/// Bytes of rows for other executors that a task holds back before it writes them, and those of other executors that it
/// fetches at once.
const MEMORY_OF_SHUFFLE: usize = 16 << 20;
/// How long the scheduler may take to answer at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// A scheduler that answers.
pub struct Cluster {
    url: Url,
}

impl Cluster {
    /// By the URL `df://HOST:PORT`.
    pub fn new(text: &str) -> Result<Cluster> {
        let url = parse(text)?;
        let addresses = url.socket_addrs(|| Some(SCHEDULER_PORT));
        let addresses = addresses.with_context(|| format!("{text}: no such host"))?;
        let mut error = "it has no address".to_owned();
        for address in &addresses {
            match TcpStream::connect_timeout(address, PATIENCE) {
                Ok(_) => return Ok(Cluster { url }),
                Err(refused) => error = refused.to_string(),
            }
        }
        bail!("{text}: no scheduler answers: {error}")
    }

    /// A session whose plans are for the cluster.
    pub fn session(&self, limits: &Limits) -> Result<SessionContext> {
        self.session_of(limits.threads, "lz4")
    }

    /// One whose rows are compressed so on their way between tasks.
    fn session_of(&self, parts: Option<usize>, codec: &str) -> Result<SessionContext> {
        let parts = parts.unwrap_or(PARTS);
        let config = configured(
            SessionConfig::new_with_ballista(),
            parts,
            MEMORY_OF_PARTITION,
        )
        .with_information_schema(false)
        .with_ballista_physical_extension_codec(Arc::new(Codec::new()))
        .with_ballista_grpc_client_max_message_size(MESSAGE as usize)
        .set_usize(BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK, 1)
        .set_usize(
            BALLISTA_SHUFFLE_SORT_BASED_MEMORY_LIMIT_PER_TASK_BYTES,
            MEMORY_OF_SHUFFLE,
        )
        .set_u64(
            BALLISTA_SHUFFLE_READER_MAX_BYTES_IN_FLIGHT,
            MEMORY_OF_SHUFFLE as u64,
        )
        .set_str(BALLISTA_SHUFFLE_COMPRESSION_CODEC, codec);
        let runtime = RuntimeEnvBuilder::new().with_object_store_registry(store::stores());
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_runtime_env(runtime.build_arc()?)
            .with_optimizer_rules(ballista_default_optimizer_rules())
            .build();
        Ok(SessionContext::new_with_state(state))
    }

    /// What files say of themselves, which executors check whole, in the order of the places. What an executor has
    /// found and cannot be fetched, as it is lost then, is checked again.
    pub async fn check(
        &self,
        places: Vec<Place>,
        progress: &Progress,
    ) -> Result<Vec<(Place, Result<Shard>)>> {
        let mut checked = Checked::default();
        let mut left = places.clone();
        for attempt in 1.. {
            let plan = check::plan(&left, PARTS)?;
            let session = self.session_of(None, "lz4")?;
            let mut answer = self.run(plan, &session).await?;
            let mut lost = None;
            while let Some(batch) = answer.next().await {
                match batch {
                    Ok(batch) => (0..checked.add(&batch)?).for_each(|_| progress.did()),
                    Err(error) => lost = Some(error),
                }
            }
            left = checked.missing(&left)?;
            if left.is_empty() {
                break;
            }
            self.again(lost, left.len(), "files", attempt, progress)?;
        }
        checked.finish(places)
    }

    /// What an attempt has left out is said, and done again; after the last one it is an error.
    fn again(
        &self,
        lost: Option<DataFusionError>,
        left: usize,
        what: &str,
        attempt: usize,
        progress: &Progress,
    ) -> Result<()> {
        let lost = lost.map_or_else(|| anyhow!("it ended too early"), anyhow::Error::from);
        let lost = lost.context(format!(
            "the cluster at {}: {left} {what} cannot be fetched",
            self.url
        ));
        if attempt == ATTEMPTS {
            return Err(lost);
        }
        progress.say(&format!(
            "postlink fleet: warning: {lost:#}; they are done again"
        ));
        Ok(())
    }

    /// Adds up all rows of files which are not of a day before `since`. What executors make of them is fetched to
    /// temporary files. What cannot be fetched, as its executor is lost after its work, is done again.
    pub async fn add_up(
        &self,
        files: &[Input],
        since: Option<i32>,
        limits: &Limits,
        progress: &Progress,
    ) -> Result<Sums> {
        let mut fetched = Fetched::new(limits);
        let mut left = files::parts(files, limits.threads.unwrap_or(PARTS));
        for attempt in 1.. {
            let plan = add_up::plan(&left, since)?;
            // Blocks are compressed already.
            let session = self.session_of(limits.threads, "none")?;
            let mut answer = self.run(plan, &session).await?;
            let mut lost = None;
            while let Some(batch) = answer.next().await {
                match batch {
                    Ok(batch) => tokio::task::block_in_place(|| fetched.add(&batch))?,
                    // The parts after it may be at other executors.
                    Err(error) => {
                        fetched.forget();
                        lost = Some(error);
                    }
                }
            }
            let mut missing = Vec::new();
            for part in left {
                if !fetched.has(part)? {
                    missing.push(part);
                }
            }
            left = missing;
            if left.is_empty() {
                break;
            }
            self.again(lost, left.len(), "parts", attempt, progress)?;
        }
        tokio::task::block_in_place(|| fetched.finish())
    }

    /// The rows of a plan that this session made. They come when all of it has run.
    pub async fn run(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &SessionContext,
    ) -> Result<SendableRecordBatchStream> {
        let config = context.copied_config();
        let (host, port) = (
            self.url.host_str().unwrap_or_default(),
            self.url.port().unwrap_or(SCHEDULER_PORT),
        );
        execute_physical_plan::<PhysicalPlanNode>(
            format!("http://{host}:{port}"),
            &config.ballista_config(),
            plan,
            config.ballista_physical_extension_codec().as_ref(),
            context.session_id(),
            config,
        )
        .await
        .with_context(|| format!("the cluster at {}", self.url))
    }
}

fn parse(text: &str) -> Result<Url> {
    let wrong = || anyhow!("{text}: no cluster, must be df://HOST:PORT");
    let url = Url::parse(text).map_err(|_| wrong())?;
    let is_bare = matches!(url.path(), "" | "/") && url.query().is_none();
    if url.scheme() != "df" || url.host_str().is_none_or(str::is_empty) || !is_bare {
        return Err(wrong());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_a_host_and_a_port() {
        assert_eq!(parse("df://host:5").unwrap().port(), Some(5));
        assert_eq!(parse("df://host").unwrap().port(), None);
        for wrong in ["host:5", "http://host:5", "df://", "df://host:5/x", "df:5"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("must be df://HOST:PORT"), "{error}");
        }
    }
}
