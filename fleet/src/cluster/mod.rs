//! The same plans on a cluster, by Ballista: the scheduler and the executors are commands of this program.
//!
//! ```text
//! merge, profile, …  --cluster df://…
//!   lists shards, plans  ──plan──► scheduler ◄──asks for tasks── executor ──reads──► shards
//!            ▲                                                    │    ▲
//!            └───────────────────── rows ────────────────────────┘    └─ rows of one stage for the next
//! ```
//!
//! What is submitted is the physical plan that would run here, cut into more parts, with the same operators of ours in
//! it (`codec`): so it reads the very files that were checked, with the sizes that they had, by the same reader, and
//! nothing is listed again on the other side. `merge` is no question to the engine: executors add up as one machine
//! does (`add_up`). Where there are many shards, executors check them as well, in a job before (`check`).
//!
//! Executors ask for work and need not be reachable by the scheduler, only by each other and by who asked. A task of
//! an executor that is lost runs again on another one, and what others had read of it is read again; Ballista sees to
//! that. Rows of other executors come by way of temporary files, so that the memory of an executor is bounded
//! (`fetch`).

#[cfg(feature = "cluster")]
mod add_up;
#[cfg(feature = "cluster")]
mod check;
#[cfg(feature = "cluster")]
mod client;
#[cfg(feature = "cluster")]
mod codec;
#[cfg(feature = "cluster")]
mod fetch;
#[cfg(feature = "cluster")]
mod server;
#[cfg(feature = "cluster")]
pub use {
    client::Cluster,
    server::{executor, scheduler},
};

#[cfg(not(feature = "cluster"))]
mod absent;
#[cfg(not(feature = "cluster"))]
pub use absent::{Cluster, executor, scheduler};

/// The cluster at the URL that `--cluster` gives, if it does.
pub fn at(url: Option<&str>) -> anyhow::Result<Option<Cluster>> {
    url.map(Cluster::new).transpose()
}
