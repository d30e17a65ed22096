//! The order of functions: hfsort, the C³ heuristic (call-chain clustering).
//!
//! Simpler and faster than [`cdsort`](crate::cdsort), and a baseline for it. From "Optimizing
//! function placement for large-scale data-center applications" (Ottoni and Maher, 2017): a
//! function should be right after its most likely caller, so that the call goes forward and not
//! far.
//!
//! Every function starts as a cluster. Functions are visited from the densest (samples per byte) to
//! the least dense; the cluster that a function heads is appended to that of its most likely
//! caller, unless
//!
//! * the caller makes less than a tenth of the calls: then no place is good;
//! * the result would be larger than 1 MiB: calls across it miss the translation buffer anyhow;
//! * the caller's cluster is more than eight times as dense as the result would be: cold code would
//!   be carried into hot code.
//!
//! In the end clusters are by falling density.

use crate::call_graph::{Arc, Call, CallGraph, Function};
use crate::heap::Gain;
use std::cmp::Reverse;

/// The least share of the calls to a function that its caller must make.
const MIN_PROBABILITY: f64 = 0.1;
/// The largest size of a cluster in bytes.
const MAX_SIZE: f64 = (1 << 20) as f64;
/// The most that the density of the caller's cluster may fall.
const MAX_DENSITY_LOSS: f64 = 8.0;

/// A good order of functions: those with samples as computed (see the [module](self)), then the
/// others in the order that came in.
///
/// Arcs from or to functions that do not exist are ignored.
pub fn order(functions: &[Function], arcs: &[Arc]) -> Vec<u32> {
    let graph = CallGraph::new(functions, arcs);
    let mut callers: Vec<Option<&Call>> = vec![None; functions.len()];
    for call in &graph.calls {
        let best = &mut callers[call.callee as usize];
        if best.is_none_or(|best| call.count > best.count) {
            *best = Some(call);
        }
    }

    let mut clusters: Vec<Cluster> = (0u32..)
        .zip(graph.sizes.iter().zip(&graph.samples))
        .map(|(function, (&size, &samples))| Cluster {
            functions: vec![function],
            size,
            samples,
        })
        .collect();
    let mut cluster_of: Vec<u32> = (0..functions.len() as u32).collect();
    let mut visits: Vec<u32> = graph.hot().collect();
    visits.sort_by_key(|&function| Reverse(Gain(clusters[function as usize].density())));
    for &function in &visits {
        // A cluster is appended once, when the function that heads it is visited: it is at home
        // until then.
        let Some(call) = callers[function as usize] else {
            continue;
        };
        let caller = cluster_of[call.caller as usize];
        if caller == function || call.count < MIN_PROBABILITY * graph.samples[function as usize] {
            continue;
        }
        let (into, from) = (&clusters[caller as usize], &clusters[function as usize]);
        let (size, samples) = (into.size + from.size, into.samples + from.samples);
        if size > MAX_SIZE || into.density() > MAX_DENSITY_LOSS * samples / size {
            continue;
        }
        let moved = std::mem::take(&mut clusters[function as usize].functions);
        for &function in &moved {
            cluster_of[function as usize] = caller;
        }
        let into = &mut clusters[caller as usize];
        into.functions.extend(moved);
        (into.size, into.samples) = (size, samples);
    }

    let mut heads: Vec<u32> = visits;
    heads.retain(|&function| cluster_of[function as usize] == function);
    heads.sort_by_key(|&head| (Reverse(Gain(clusters[head as usize].density())), head));
    let order = heads
        .into_iter()
        .flat_map(|head| &clusters[head as usize].functions)
        .copied()
        .collect();
    graph.complete(order)
}

struct Cluster {
    functions: Vec<u32>,
    size: f64,
    samples: f64,
}

impl Cluster {
    fn density(&self) -> f64 {
        self.samples / self.size
    }
}
