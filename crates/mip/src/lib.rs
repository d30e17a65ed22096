//! Machine IR profiles (MIP): which functions and blocks ran, how often functions were called, and in which
//! order for the first time.
//!
//! # The idea
//!
//! An instrumented program carries nothing but the instruction that counts and the bytes that it counts in.
//! Names, sizes and blocks stay where it was built. So there are three files:
//!
//! | file | made by | holds | module |
//! |---|---|---|---|
//! | `.mipmap` | compiler, or `postlink instrument` | what each counter means | [`map`] |
//! | `.mipraw` | a run of the program | a copy of its counters, verbatim | [`raw`] |
//! | `.mip` | [`merge`] | both, for any number of runs | [`mip`] |
//!
//! All begin with the same [`header`]. A map and a `.mip` hold the same model, [`Profile`]; a map is one in
//! which nothing has run yet.
//!
//! # Versions
//!
//! Files of the proposal (LLVM review D104060) have version 7 or 8 and a header of 24 or 32 bytes; all are
//! read. We write version 8, byte for byte as the proposal's last tools did, unless the profile holds
//! something that version 8 has no place for: then it is version 9, which differs in what the modules say
//! under "Version 9":
//!
//! * counters that are zero at first ([`Types::ZERO_FILLED`]) and so take no space in the program's file;
//! * blocks without a counter, whose coverage follows from others ([`InferredBlock`]);
//! * call edges with their counts, from sampled return addresses;
//! * first-call orders of single runs ([`Trace`]).
//!
//!
//! # What is made of it
//!
//! [`report`] prints, [`order`] orders functions, [`outline`] looks for what should be small, [`yaml`] writes
//! it all down and reads it back, [`symbolize`] finds source lines.
//!
//! # Invariants
//!
//! * Merging is commutative and associative, and saturates: the same raws give the same bytes in any order or grouping.
//! * No input makes it panic or allocate more than a small multiple of the input's size.
//! * A file is replaced when its successor is complete, never before.

pub mod create;
pub mod hash;
mod header;
pub mod map;
pub mod merge;
pub mod mip;
mod model;
pub mod order;
pub mod outline;
pub mod raw;
mod reader;
pub mod report;
mod symbolize;
pub mod yaml;

pub use header::{Header, Kind, Types, Width};
pub use header::{MAGIC, VERSION};
pub use model::{Block, Edge, Function, InferredBlock, MovedCaller, Profile, Trace};
pub use postlink_profile::{Error, Place};
pub use symbolize::{SourceFrame, Symbolizer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
