//! All edge counts from those of the counted edges: leaf elimination.
//!
//! The edges without a counter form a forest. A node with a single unknown edge (a leaf) gives the
//! count of that edge: the difference between what the known edges bring in and what they take out.
//! Then the edge is known, and its other node has one unknown edge less and may have become a leaf.
//!
//! No adjacency lists are needed. Each node keeps the number of its unknown edges and the
//! *exclusive or* of their numbers; when the number is 1, the exclusive or is the edge. No queue is
//! needed either: nodes are visited in order, and from each leaf the walk continues along the edge
//! just solved as long as the next node is a leaf. A node that becomes a leaf becomes one by the
//! step of a walk that then is on it, so none is forgotten.
//!
//! Sums are 128 bits wide: at most 2^32 edges of 64-bit counts cannot overflow them.

use crate::Graph;

/// The count of every edge; see [`solve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// The count of each edge of the graph, saturating at [`u64::MAX`].
    pub edges: Vec<u64>,
    /// The total amount by which counts would have been negative (those are 0 in `edges`): 0 for
    /// counters read at rest.
    pub inconsistent: u64,
    /// How many edges would have been negative.
    pub negative: u32,
    /// How many edges cannot be told from the counted ones (0 in `edges`). Always 0 if the counted
    /// edges are those of [`crate::place`].
    pub undetermined: u32,
}

/// The count of every edge of `graph` from the counts of the edges `counted`; see
/// [`Solver::solve`].
///
/// ```
/// use postlink_flow::{Edge, Graph, solve};
/// let edge = |from, to| Edge { from, to, weight: Some(1.0) };
/// let graph = Graph { nodes: 3, edges: vec![edge(0, 1), edge(1, 2), edge(2, 0), edge(0, 2)] };
/// assert_eq!(solve(&graph, &[2, 3], &[10, 4]).edges, [6, 6, 10, 4]);
/// // Counters that contradict each other: more went straight to node 2 than came back from it.
/// let torn = solve(&graph, &[2, 3], &[10, 11]);
/// assert_eq!((torn.edges, torn.inconsistent, torn.negative), (vec![0, 0, 10, 11], 2, 2));
/// ```
pub fn solve(graph: &Graph, counted: &[u32], counts: &[u64]) -> Solution {
    let mut solver = Solver::default();
    solver.solve(graph, counted, counts);
    solver.solution
}

/// [`solve`] with memory that is used again.
#[derive(Debug, Default)]
pub struct Solver {
    nodes: Vec<Node>,
    known: Vec<bool>,
    solution: Solution,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// What the known edges bring in minus what they take out.
    surplus: i128,
    /// Number of unknown edges at this node.
    unknown: u32,
    /// Exclusive or of their numbers.
    edges: u32,
}

impl Solver {
    /// The count of every edge of `graph`, when the edge `counted[i]` was taken `counts[i]` times.
    ///
    /// `counted` should be what [`crate::place`] gave. If it is not, what follows from it is solved
    /// and the rest is [undetermined](Solution::undetermined); numbers that name no edge are
    /// ignored, of a number that comes twice the first is used, and a missing count is 0. Edges to
    /// nodes outside the graph have no influence on others.
    pub fn solve(&mut self, graph: &Graph, counted: &[u32], counts: &[u64]) -> &Solution {
        let Self {
            nodes,
            known,
            solution,
        } = self;
        // Edge numbers have 32 bits; `place` refuses a graph with more edges.
        let edges = &graph.edges[..graph.edges.len().min(u32::MAX as usize)];
        nodes.clear();
        nodes.resize(graph.nodes as usize, Node::default());
        known.clear();
        known.resize(edges.len(), false);
        solution.edges.clear();
        solution.edges.resize(graph.edges.len(), 0);

        let mut inconsistent = 0u128;
        let mut negative = 0u32;
        // Not more than 32 bits of edges, see above.
        let mut undetermined = edges.len() as u32;

        for (&id, count) in counted
            .iter()
            .zip(counts.iter().copied().chain(std::iter::repeat(0)))
        {
            let Some(known) = known.get_mut(id as usize) else {
                continue;
            };
            if !std::mem::replace(known, true) {
                solution.edges[id as usize] = count;
                undetermined -= 1;
            }
        }
        for (id, (edge, &known)) in (0u32..).zip(edges.iter().zip(&*known)) {
            if edge.from == edge.to || edge.from.max(edge.to) >= graph.nodes {
                continue;
            }
            let count = i128::from(solution.edges[id as usize]);
            for (node, sign) in [(edge.from, -1), (edge.to, 1)] {
                let node = &mut nodes[node as usize];
                if known {
                    node.surplus += sign * count;
                } else {
                    node.unknown += 1;
                    node.edges ^= id;
                }
            }
        }

        for start in 0..nodes.len() {
            let mut leaf = start;
            while nodes[leaf].unknown == 1 {
                let Node {
                    surplus, edges: id, ..
                } = nodes[leaf];
                let edge = edges[id as usize];
                let leaves = edge.from as usize == leaf;
                let other = if leaves { edge.to } else { edge.from } as usize;
                let count = if leaves { surplus } else { -surplus };
                if count < 0 {
                    inconsistent = inconsistent.saturating_add(count.unsigned_abs());
                    negative += 1;
                }
                solution.edges[id as usize] = u64::try_from(count.max(0)).unwrap_or(u64::MAX);
                undetermined -= 1;
                nodes[leaf].unknown = 0;
                // The surplus of the leaf moves on, whichever way the edge points.
                let node = &mut nodes[other];
                node.surplus += surplus;
                node.unknown -= 1;
                node.edges ^= id;
                leaf = other;
            }
        }

        solution.inconsistent = u64::try_from(inconsistent).unwrap_or(u64::MAX);
        solution.negative = negative;
        solution.undetermined = undetermined;
        solution
    }

    /// The result of the last [`Solver::solve`], without copying it.
    pub fn into_solution(self) -> Solution {
        self.solution
    }
}
