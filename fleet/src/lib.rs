//! Profiles of a fleet: many hosts, builds, programs and libraries.
//!
//! ```text
//! profiles ──rows──► shards (Parquet) ──┬─ query, quality ──► tables
//!                      ▲                ├─ profile ────────► .plprof, .preagg, .fdata of one build
//!                      └─ merge, expire ┘
//! ```
//!
//! A profile is a sum, so it is grouped and added by an engine that others maintain: DataFusion, in this process or on
//! a cluster of Ballista ([`cluster`]). The schema ([`schema`]) is published, and any other engine that reads Parquet
//! gives the same sums.

pub mod cli;
pub mod cluster;
mod commands;
pub mod engine;
pub mod memory;
pub mod merge;
pub mod place;
pub mod profile;
pub mod progress;
pub mod quality;
pub mod rows;
pub mod schema;
pub mod shard;
pub mod stale;
pub mod store;
pub mod table;
