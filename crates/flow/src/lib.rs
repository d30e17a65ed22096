//! The fewest counters that tell every edge count of a flow graph, and the exact counts from them.
//!
//! # The problem
//!
//! An instrumented program should count how often each edge of each control-flow graph was taken,
//! and every counter costs time. But flow is conserved: what enters a block leaves it. If all edges
//! of a block but one are known, the last one follows. How few counters are enough, where should
//! they be, and how are the remaining counts found?
//!
//! # The idea
//!
//! Read the graph without its directions. A set of edges can stay *without* a counter exactly when
//! it holds no cycle: along a cycle any amount could circulate unseen, and without a cycle (a
//! forest) some node has only one unknown edge, so that conservation at that node gives it, which
//! makes the next one known, until all are. So the best choice without counters is a **maximum
//! spanning forest** by estimated frequency, and the counters go to its complement, which has
//! `edges - nodes + components` edges and the smallest possible total frequency. This is due to
//! Knuth ("Optimal measurement points for program frequency counts", with Stevenson, 1973) and, for
//! programs, to Ball and Larus ("Optimally profiling and tracing programs", 1994).
//!
//! * [`place`] chooses the counters: Kruskal's algorithm, edges that cannot carry a counter first.
//!   See [`Placer`].
//! * [`solve`] finds all counts again, offline, by taking leaves off the forest. See [`Solver`].
//!
//! # Counts that are not exact
//!
//! Sampled counts contradict each other, and counts of another build are missing here and there.
//! [`mod@infer`] finds the nearest counts that conserve flow, by way of a minimum-cost circulation
//! ([`mod@balance`]). Samples that are proportional to time are biased; [`mod@likely`] finds the likeliest
//! counts by them and by what branches mostly do.
//!
//! # What the caller must bring
//!
//! *Every* node conserves flow, so the graph has to be closed. Entries, returns, tail calls, calls
//! that do not return and exceptions are edges from and to one more node, the outside. An exit that
//! is left out is not an error that could be seen here: its flow is silently ascribed to another
//! edge.
//!
//! The graph may be disconnected and may have parallel edges and self loops. A self loop changes
//! nothing in the balance of its node, hence no other counter tells its count: it always carries
//! one.
//!
//! # Invariants
//!
//! * The same graph gives the same counters: ties of weight are decided by edge number.
//! * The counts of the counted edges are returned as they came. Those of the others are *the*
//!   solution, not an estimate: for any counts at all exactly one flow on the forest satisfies
//!   conservation, and it does not depend on the order of elimination.
//! * Counters that were read while the program ran, or lost on the way, can make that flow negative
//!   somewhere. Such an edge gets 0, and the amount is reported in [`Solution::inconsistent`]. The
//!   other edges keep the exact solution.
//! * Time is linear in the graph but for sorting the edges in [`place`]; no recursion, and no
//!   allocation when [`Placer`] and [`Solver`] are used again.
//!
//! # Example
//!
//! A loop with a branch inside, run twice with 10 rounds in total:
//!
//! ```
//! use postlink_flow::{Edge, Graph, place, solve};
//!
//! // 0 is outside, 1 the loop head, 2 and 3 the arms, 4 the latch.
//! let edge = |from, to, weight| Edge { from, to, weight: Some(weight) };
//! let graph = Graph {
//!     nodes: 5,
//!     edges: vec![
//!         edge(0, 1, 1.0),  // entry
//!         edge(1, 2, 9.0),  // likely arm
//!         edge(1, 3, 1.0),  // unlikely arm
//!         edge(2, 4, 9.0),
//!         edge(3, 4, 1.0),
//!         edge(4, 1, 9.0),  // next round
//!         edge(4, 0, 1.0),  // return
//!     ],
//! };
//! let counted = place(&graph).unwrap();
//! assert_eq!(counted.len(), 7 - 5 + 1);
//!
//! // The program ran: 2 calls, 10 rounds, the unlikely arm once.
//! let flow = [2, 9, 1, 9, 1, 8, 2];
//! let counts: Vec<u64> = counted.iter().map(|&edge| flow[edge as usize]).collect();
//! let solution = solve(&graph, &counted, &counts);
//! assert_eq!(solution.edges, flow);
//! assert_eq!(solution.inconsistent, 0);
//! ```

pub mod balance;
pub mod infer;
pub mod likely;
pub mod logarithm;
mod place;
mod solve;

pub use place::{Placer, Uncountable, place};
pub use solve::{Solution, Solver, solve};

/// A flow graph. Each node conserves flow: the counts of the edges into it and out of it have the
/// same sum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Number of nodes; they are called `0..nodes`. Working memory is proportional to it.
    pub nodes: u32,
    /// The edges; an edge is named by its index in this list.
    pub edges: Vec<Edge>,
}

/// A directed edge of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    /// The node that the edge leaves.
    pub from: u32,
    /// The node that the edge enters; may equal `from`.
    pub to: u32,
    /// The estimated frequency, in any unit: what a counter on this edge costs. `None`: no counter
    /// can be put there. Not-a-number counts as 0.
    pub weight: Option<f32>,
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
