//! Where the counters go: the complement of a maximum spanning forest.
//!
//! Kruskal's algorithm. Edges are visited from the heaviest to the lightest; an edge that joins two
//! parts of the graph which were separate until then goes into the forest and needs no counter, all
//! others close a cycle and carry one. Edges that cannot carry a counter are visited first of all,
//! so they close a cycle only if they form one among themselves, and then no placement exists.
//!
//! The order is made by sorting 64-bit keys, weight above edge number, which makes ties
//! deterministic and keeps the inner loop free of indirections. Parts are a union-find structure
//! with path halving, the smaller node number being the root: typical functions have a few dozen
//! blocks, for which balanced union is not worth its memory.

use crate::{Edge, Graph};

/// Why no set of counters can tell all edge counts of a graph. All variants name an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncountable {
    /// A self loop that cannot carry a counter: conservation says nothing about it.
    #[error(
        "edge {edge} from node {node} to itself cannot carry a counter, and its count does not follow from other counters"
    )]
    SelfLoop {
        /// The edge.
        edge: u32,
        /// Its node.
        node: u32,
    },
    /// Edges that cannot carry a counter form a cycle (seen without directions).
    #[error(
        "edge {edge} from node {from} to node {to} closes a cycle of edges that cannot carry a counter"
    )]
    Cycle {
        /// The edge with the highest number on that cycle.
        edge: u32,
        /// Where it leaves.
        from: u32,
        /// Where it enters.
        to: u32,
    },
    /// An edge refers to a node that is not in the graph.
    #[error("edge {edge} refers to node {node}, but the graph has {nodes} nodes")]
    NoSuchNode {
        /// The edge.
        edge: u32,
        /// The node it refers to.
        node: u32,
        /// The number of nodes.
        nodes: u32,
    },
    /// There are more edges than 32-bit edge numbers.
    #[error("the graph has {edges} edges, and edge numbers end at {}", u32::MAX)]
    TooManyEdges {
        /// The number of edges.
        edges: usize,
    },
}

impl Uncountable {
    /// The edge that is in the way.
    pub fn edge(&self) -> u32 {
        match *self {
            Self::SelfLoop { edge, .. }
            | Self::Cycle { edge, .. }
            | Self::NoSuchNode { edge, .. } => edge,
            Self::TooManyEdges { .. } => u32::MAX,
        }
    }
}

/// The edges of `graph` that need a counter, in ascending order; see [`Placer::place`].
///
/// # Errors
///
/// If the edges that cannot carry a counter form a cycle, or an edge refers to a node outside the
/// graph.
///
/// ```
/// use postlink_flow::{Edge, Graph, place};
/// let graph = Graph { nodes: 1, edges: vec![Edge { from: 0, to: 0, weight: None }] };
/// assert_eq!(
///     place(&graph).unwrap_err().to_string(),
///     "edge 0 from node 0 to itself cannot carry a counter, and its count does not follow from other counters",
/// );
/// ```
pub fn place(graph: &Graph) -> Result<Vec<u32>, Uncountable> {
    let mut placer = Placer::default();
    placer.place(graph)?;
    Ok(placer.counted)
}

/// [`place`] with memory that is used again: for programs with hundreds of thousands of small
/// graphs.
#[derive(Debug, Default)]
pub struct Placer {
    /// Countable edges: complemented weight in the upper half, edge number in the lower.
    keys: Vec<u64>,
    /// Union-find: the parent of each node, itself for a root.
    parents: Vec<u32>,
    /// By edge: it needs a counter.
    needs: Vec<bool>,
    counted: Vec<u32>,
}

impl Placer {
    /// The edges of `graph` that need a counter, in ascending order.
    ///
    /// Their number is `edges - nodes + components`, the smallest possible, and among all sets of
    /// that number that are enough, theirs is the smallest sum of weights. Of edges with equal
    /// weight those with higher numbers are preferred for counters.
    ///
    /// # Errors
    ///
    /// If the edges that cannot carry a counter form a cycle, or an edge refers to a node outside
    /// the graph.
    pub fn place(&mut self, graph: &Graph) -> Result<&[u32], Uncountable> {
        self.join_uncountable(graph)?;
        self.keys.clear();
        self.counted.clear();
        self.needs.clear();
        self.needs.resize(graph.edges.len(), false);
        for (id, edge) in (0u32..).zip(&graph.edges) {
            match edge.weight {
                Some(_) if edge.from == edge.to => self.needs[id as usize] = true,
                Some(weight) => self
                    .keys
                    .push(u64::from(!rank(weight)) << 32 | u64::from(id)),
                None => {}
            }
        }

        self.keys.sort_unstable();
        for &key in &self.keys {
            let id = key as u32;
            let edge = graph.edges[id as usize];
            self.needs[id as usize] = !join(&mut self.parents, edge.from, edge.to);
        }
        let needing = (0u32..).zip(&self.needs).filter(|(_, needs)| **needs);
        self.counted.extend(needing.map(|(id, _)| id));
        Ok(&self.counted)
    }

    /// How many edges of `graph` need a counter, which does not depend on their weights, only on which edges have one.
    ///
    /// # Errors
    ///
    /// As of [`Placer::place`].
    ///
    /// ```
    /// use postlink_flow::{Edge, Graph, Placer};
    /// let edges = [(0, 1), (1, 2), (1, 2), (2, 0)];
    /// let edges = edges.map(|(from, to)| Edge { from, to, weight: Some(0.0) });
    /// let graph = Graph { nodes: 3, edges: edges.to_vec() };
    /// assert_eq!(Placer::default().count(&graph), Ok(2));
    /// ```
    pub fn count(&mut self, graph: &Graph) -> Result<usize, Uncountable> {
        self.join_uncountable(graph)?;
        let countable = graph.edges.iter().filter(|edge| edge.weight.is_some());
        let closes = |edge: &&Edge| !join(&mut self.parents, edge.from, edge.to);
        Ok(countable.filter(closes).count())
    }

    /// Begins a forest with the edges that cannot carry a counter.
    fn join_uncountable(&mut self, graph: &Graph) -> Result<(), Uncountable> {
        self.parents.clear();
        if u32::try_from(graph.edges.len()).is_err() {
            return Err(Uncountable::TooManyEdges {
                edges: graph.edges.len(),
            });
        }
        self.parents.extend(0..graph.nodes);
        for (id, edge) in (0u32..).zip(&graph.edges) {
            let &Edge { from, to, weight } = edge;
            let node = from.max(to);
            if node >= graph.nodes {
                return Err(Uncountable::NoSuchNode {
                    edge: id,
                    node,
                    nodes: graph.nodes,
                });
            }
            if weight.is_some() {
                continue;
            }
            if from == to {
                return Err(Uncountable::SelfLoop { edge: id, node });
            }
            if !join(&mut self.parents, from, to) {
                return Err(Uncountable::Cycle { edge: id, from, to });
            }
        }
        Ok(())
    }
}

/// A number that orders like the weight: negative floats have their bits complemented, the others
/// the sign bit set.
fn rank(weight: f32) -> u32 {
    // Adding zero makes -0 and 0 the same.
    let bits = if weight.is_nan() {
        0
    } else {
        (weight + 0.0).to_bits()
    };
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

/// Joins the parts of two nodes; false if they were one part already.
fn join(parents: &mut [u32], a: u32, b: u32) -> bool {
    let (a, b) = (root(parents, a), root(parents, b));
    parents[a.max(b) as usize] = a.min(b);
    a != b
}

fn root(parents: &mut [u32], mut node: u32) -> u32 {
    loop {
        let parent = parents[node as usize];
        if parent == node {
            return node;
        }
        let grandparent = parents[parent as usize];
        parents[node as usize] = grandparent;
        node = grandparent;
    }
}
