//! Profiles: what was counted or sampled, and every file format that carries it.
//!
//! ```text
//!  *.plraw ──┐                                     ┌──► .plprof
//!            ├──► Profile (counters, call sites) ──┤
//!  *.plprof ─┘        model, merge                 └──► (attached to a program by the rewriter)
//! ```
//!
//! A profile is a commutative monoid: [`Profile::merge`] is associative and commutative, an empty profile is
//! its identity, all counts saturate, and the bytes written depend on the sum alone, never on the order or
//! the tree of the additions. That is what lets [`merge()`] take its inputs in parallel and in any order.
//!
//! Invariants of the crate: no function panics, whatever the bytes; no allocation is larger than what a file
//! of that size (or a stated limit) can justify; an error names the file, the place in it, and both values; a
//! file is written to a temporary beside its target and renamed when complete.
//!
//! The crate knows nothing of instructions or of executable formats. Addresses are numbers here; their kinds
//! are stated where they are stored.

pub mod address;
pub mod any;
pub mod bolt_yaml;
mod error;
pub mod fdata;
mod fdata_sum;
mod identity;
mod input;
mod merge;
mod model;
mod modules;
pub mod orders;
mod output;
pub mod perf_data;
pub mod perf_script;
pub mod plprof;
pub mod preaggregated;
pub mod progress;
pub mod protobuf;
pub mod raw;
pub mod samples;
mod source;
mod spaces;
pub mod symbolic;
mod traces;
mod varint;
pub mod windows;
pub mod yaml;

pub use error::{Error, Mismatch, Place};
pub use identity::{Digest, Identity, IdentityKind, Subject};
pub use input::{Format, Input, open};
pub use merge::{Merged, Weighted, merge};
pub use model::{Profile, Site};
pub use modules::{BinaryModules, RecognisedBy, is_named, modules_of_binary};
pub use output::{put_in_place, temporary_for, write_atomically};
pub use source::{Pages, Source};
pub use spaces::{Mapping, Space, SpaceEvent, Spaces};
pub use traces::{Iter as TraceIter, Traces};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
