//! Profiles of a fleet: many hosts, builds, programs and libraries.
//!
//! ```text
//! profiles ──rows──► shards (Parquet) ──┬─ query, quality ──► tables
//!                      ▲                ├─ profile ────────► .plprof, .preagg, .fdata of one build
//!                      └─ merge, expire ┘
//! ```
//!
//! A profile is a sum. Merging, where all rows of all shards are sorted and added up, is done by [`sums`], in this
//! process or by tasks of a cluster of Ballista ([`cluster`]); everything else is a question to an engine that others
//! maintain: DataFusion, which reads shards by [`scan`] here and there. The schema ([`schema`]) is published, and any
//! other engine that reads Parquet gives the same sums.

pub mod cli;
pub mod cluster;
mod commands;
pub mod engine;
mod files;
pub mod memory;
pub mod merge;
pub mod operator;
pub mod place;
pub mod profile;
pub mod progress;
pub mod quality;
pub mod read;
pub mod rows;
pub mod scan;
pub mod schema;
pub mod shard;
pub mod stale;
pub mod store;
pub mod sums;
pub mod table;
