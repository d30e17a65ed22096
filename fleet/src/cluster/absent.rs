//! What stands in the place of clusters where the feature is not built in: an error that says so.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Result, bail};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use crate::cli::{Executor, Scheduler};
use crate::engine::Limits;
use crate::place::Place;
use crate::progress::Progress;
use crate::read::Input;
use crate::shard::Shard;
use crate::sums::Sums;

/// There is none.
pub struct Cluster(Infallible);

fn absent<T>() -> Result<T> {
    bail!("this program was built without clusters (cargo install --path fleet --features cluster)")
}

impl Cluster {
    /// An error.
    pub fn new(_: &str) -> Result<Cluster> {
        absent()
    }

    /// Never called.
    pub fn session(&self, _: &Limits) -> Result<SessionContext> {
        match self.0 {}
    }

    /// Never called.
    pub async fn check(&self, _: Vec<Place>, _: &Progress) -> Result<Vec<(Place, Result<Shard>)>> {
        match self.0 {}
    }

    /// Never called.
    pub async fn add_up(
        &self,
        _: &[Input],
        _: Option<i32>,
        _: &Limits,
        _: &Progress,
    ) -> Result<Sums> {
        match self.0 {}
    }

    /// Never called.
    pub async fn run(
        &self,
        _: Arc<dyn ExecutionPlan>,
        _: &SessionContext,
    ) -> Result<SendableRecordBatchStream> {
        match self.0 {}
    }
}

/// An error.
pub async fn scheduler(_: Scheduler) -> Result<()> {
    absent()
}

/// An error.
pub async fn executor(_: Executor) -> Result<()> {
    absent()
}
