//! What machine profiles need of an instruction set: counters of coverage and of calls, and a start-up
//! routine that knows their file.
//!
//! The seam is [`Covers`]; each instruction set's `coverage` module has the sequences. What all of them share is here.
//!
//! # Calls
//!
//! A function's counter is a number of calls and the place of its first call in the order of first calls,
//! four bytes each. Counting is inline and saturates; only the first call (with edges also every
//! [`PERIOD`]th) takes the *slow way*, a routine that the program has once. It gives the first call the next
//! number of a clock, by an atomic addition.
//!
//! # Edges
//!
//! The first call of a function and then every 64th looks its return address up in a table, and adds 1 or 64
//! to its entry. Entries have 16 bytes: callee's counter (4, its offset in the file), return address less the
//! load bias (4), calls (8). The table is one for the program; an entry is searched in eight places from the
//! hash on. If all are taken, the one with the fewest calls has to go: frequent edges stay. All without locks
//! but for the claiming of an empty entry: threads that meet may lose a sample.

use crate::{Code, Isa, RegSet, RuntimeConfig, RuntimeError};

/// Calls that a sample represents, but for the first. A power of two.
pub const PERIOD: u32 = 64;
/// Size of an entry in the table of edges.
pub const EDGE: u64 = 16;
/// Places in which an edge may be.
pub const PLACES: u32 = 8;

/// What a call counter refers to.
#[derive(Clone, Copy, Debug)]
pub struct CallCounter<T> {
    /// Number of calls, 4 bytes.
    pub count: T,
    /// Place of the first call in the order, 4 bytes, right after it.
    pub time: T,
    /// The slow way without edges.
    pub slow: T,
    /// The slow way with edges, if return addresses are to be sampled.
    pub edges: Option<T>,
    /// Where the counter is.
    pub place: CallPlace,
}

/// Where a call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPlace {
    /// At the entry of the function, which has no predecessor in the function: the return address is where the call
    /// put it, and nothing is below the stack pointer.
    Entry,
    /// At an entry to which the function itself comes as well, with flags, and with something below the stack pointer.
    EntryAgain,
    /// In a block of which it is known what must survive, but for what is below the stack pointer: anything may be.
    Block,
}

/// Where the slow way finds things, link-time addresses.
#[derive(Clone, Copy, Debug)]
pub struct SlowConfig {
    /// Where it will be.
    pub at: u64,
    /// The clock, 4 bytes and 4 zeros: the last place that was given.
    pub clock: u64,
    /// What is at offset [`crate::Counters::COUNTER_UNIT`] of the file.
    pub counters: u64,
    /// The table of edges.
    pub table: u64,
    /// Number of its entries: a power of two, or 0 if edges are not wanted.
    pub entries: u32,
    /// Counters that take the slow way with edges are [in blocks](CallPlace::Block): they step over what may be below
    /// the stack pointer, and there is a place for flags.
    pub zone: bool,
}

/// What is different in a start-up routine when the file is a raw machine profile: the name comes from
/// [`MIP_VARIABLE`](crate::x86_64::runtime::MIP_VARIABLE), and counters from before the mapping are not added
/// to those in the file but joined bit by bit, since they are flags, or the file is new.
#[derive(Clone, Copy, Debug)]
pub struct MipRuntime<'a> {
    /// What `%h` represents, in place of the host's name.
    pub module: &'a str,
    /// Begin a new file: one that is there is unlinked first.
    pub fresh: bool,
}

/// An instruction set whose programs can make machine profiles.
pub trait Covers: Isa {
    /// Length of the store that covers a function, if it destroys no register and may be in the padding in front of it.
    const FRONT: Option<u64>;

    /// Whether addresses of functions in instructions and data can be changed where they are, so that they
    /// lead to a counter.
    const CHANGES_POINTERS: bool;

    /// Whether a jump takes the place of whole instructions, so that no branch can target its middle.
    const WHOLE_ENTRIES: bool;

    /// Code that returns from a signal handler, as run-times look for it where there is no unwind entry.
    const SIGNAL_RETURN: &[u8];

    /// What lets calls in where pages are guarded, for an entry whose own instruction that does so comes later.
    const LANDING_PAD: &[u8];

    /// How far away a flag is near, if that makes its store shorter.
    const NEAR: Option<u64>;

    /// Length of what [`Covers::put_covered`] appends for the same `live` and `near`.
    fn covered_len(live: RegSet, near: bool) -> usize;

    /// Appends what makes the flag `covered` something else than zero. `live` holds what must survive;
    /// `near`: the flag is not farther away than [`Covers::NEAR`].
    fn put_covered<T: Copy>(out: &mut Code<T>, live: RegSet, near: bool, covered: T);

    /// Appends the counting of a call. `live` holds what must survive.
    fn put_called<T: Copy>(out: &mut Code<T>, live: RegSet, counter: CallCounter<T>);

    /// The slow way.
    fn slow(config: SlowConfig) -> Result<Vec<u8>, RuntimeError>;

    /// The start-up routine of a program that writes a raw machine profile; see [`crate::Runtime::runtime`].
    fn mip_runtime(
        config: &RuntimeConfig<'_>,
        mip: MipRuntime<'_>,
    ) -> Result<Vec<u8>, RuntimeError>;
}

/// The counting of a call whose parts are numbers, for tests.
#[cfg(test)]
pub(crate) fn calls<I: Covers>(live: RegSet, edges: bool, place: CallPlace) -> Code<u8> {
    let mut out = Code::default();
    let counter = CallCounter {
        count: 0,
        time: 1,
        slow: 2,
        edges: edges.then_some(3),
        place,
    };
    I::put_called(&mut out, live, counter);
    out
}
