//! The flow nearest to given counts: a minimum-cost circulation with a price on every change.
//!
//! # The problem
//!
//! Every arc has a *wanted* count and two prices: what it costs to have one more, and one less. Find counts that
//! conserve flow at every node and cost the least in sum. Zero everywhere conserves flow, so a solution always exists.
//!
//! # The idea
//!
//! Start with the wanted counts. They cost nothing and break conservation: some nodes have more flowing in
//! than out (an excess), others a deficit, and the sums are equal. Now send excess to deficits along the
//! cheapest ways, one after the other: over an arc in its direction by raising it, against it by lowering it.
//! Undoing an earlier change earns its price back. These are successive shortest paths (Jewell; Iri; Busacker
//! and Gowen, around 1960) with Edmonds' and Karp's potentials, which keep the prices of all possible changes
//! non-negative, so that Dijkstra's algorithm finds the ways.
//!
//! Why this and not network simplex: counts that come from sampling are wrong everywhere by a little, and
//! what is missing at a node is nearly always to be had next to it. A search ends at the first deficit, and
//! only what it has settled gets new potentials, so that the work follows the size of the errors and their
//! distance, not that of the graph.
//!
//! # Invariants
//!
//! * Counts that conserve flow come back as they are.
//! * The result conserves flow, whatever happens.
//! * Its price is the least possible, unless the searches together have visited more than [`Balancer::limit`]
//!   nodes. From then on what is left, the smaller errors, is evened out over two trees that join every node
//!   with node 0, in linear time. [`Balanced::optimal`] says whether that happened.
//! * The same input gives the same output: ties are decided by numbers.
//! * No overflow: amounts are 128 bits wide inside, and results saturate at 64.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An arc with what is wanted on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arc {
    /// Node that it leaves.
    pub from: u32,
    /// Node that it enters.
    pub to: u32,
    /// The wanted count.
    pub wanted: u64,
    /// Price of each unit above.
    pub more: u32,
    /// Price of each unit below.
    pub less: u32,
}

/// A flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balanced {
    /// By arc. Saturated at the largest number.
    pub counts: Vec<u64>,
    /// What the changes cost.
    pub price: u128,
    /// Whether that is the least possible.
    pub optimal: bool,
}

/// Reusable space for balancing.
#[derive(Debug)]
pub struct Balancer {
    /// How many visits of nodes the searches may make in sum before they stop looking for the cheapest ways:
    /// 4,000,000 if not set, which is less than a second.
    pub limit: u64,
    flow: Vec<u128>,
    excess: Vec<i128>,
    potential: Vec<i64>,
    /// Incident arcs by node: number of the arc, times two, plus one if it enters the node.
    ways: Vec<u32>,
    first: Vec<u32>,
    distance: Vec<i64>,
    by: Vec<u32>,
    touched: Vec<u32>,
    settled: Vec<bool>,
    heap: BinaryHeap<Reverse<(i64, u32)>>,
}

impl Default for Balancer {
    fn default() -> Self {
        Balancer {
            limit: 4_000_000,
            flow: Vec::new(),
            excess: Vec::new(),
            potential: Vec::new(),
            ways: Vec::new(),
            first: Vec::new(),
            distance: Vec::new(),
            by: Vec::new(),
            touched: Vec::new(),
            settled: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }
}

/// Not reached.
const FAR: i64 = i64::MAX;
/// Reached by no arc: where a search began.
const ROOT: u32 = u32::MAX;

/// A change of one arc by one unit: its price, and how many units it can continue for (`None`: any number).
fn change(arc: &Arc, flow: u128, raise: bool) -> Option<(i64, Option<u128>)> {
    let wanted = u128::from(arc.wanted);
    match raise {
        true if flow < wanted => Some((-i64::from(arc.less), Some(wanted - flow))),
        true => Some((i64::from(arc.more), None)),
        false if flow > wanted => Some((-i64::from(arc.more), Some(flow - wanted))),
        false if flow > 0 => Some((i64::from(arc.less), Some(flow))),
        false => None,
    }
}

impl Balancer {
    /// Balances counts on a graph of `nodes` nodes, called `0..nodes`.
    ///
    /// # Panics
    ///
    /// If an arc names a node that does not exist.
    pub fn balance(&mut self, nodes: u32, arcs: &[Arc]) -> Balanced {
        self.begin(nodes as usize, arcs);
        let mut visits = 0u64;
        // Large errors first: should the limit be reached, small ones are left.
        let mut order: Vec<u32> = (0..nodes)
            .filter(|n| self.excess[*n as usize] > 0)
            .collect();
        order.sort_by_key(|n| Reverse(self.excess[*n as usize]));
        let mut optimal = true;
        // Evening out over trees may leave excess in node 0, hence once more, in whatever order.
        for node in order.into_iter().chain(0..nodes) {
            while self.excess[node as usize] > 0 {
                if optimal && visits >= self.limit {
                    optimal = false;
                    self.over_trees(arcs);
                    continue;
                }
                let Some((end, found)) = self.search(arcs, node, optimal, &mut visits) else {
                    // All flow can be taken back to where it comes from, so a deficit is always found. Should
                    // it not be, the excess stays, and readers of the counts see it.
                    debug_assert!(false, "excess that leads nowhere");
                    break;
                };
                self.send(arcs, node, end);
                self.finish(optimal, found);
            }
        }
        let price = arcs
            .iter()
            .zip(&self.flow)
            .map(|(arc, flow)| {
                let wanted = u128::from(arc.wanted);
                let (distance, price) = if *flow >= wanted {
                    (flow - wanted, arc.more)
                } else {
                    (wanted - flow, arc.less)
                };
                distance.saturating_mul(u128::from(price))
            })
            .fold(0u128, u128::saturating_add);
        let counts = self.flow.iter();
        Balanced {
            counts: counts
                .map(|f| u64::try_from(*f).unwrap_or(u64::MAX))
                .collect(),
            price,
            optimal,
        }
    }

    fn begin(&mut self, nodes: usize, arcs: &[Arc]) {
        self.flow.clear();
        self.flow.extend(arcs.iter().map(|a| u128::from(a.wanted)));
        self.excess.clear();
        self.excess.resize(nodes, 0);
        self.potential.clear();
        self.potential.resize(nodes, 0);
        self.distance.clear();
        self.distance.resize(nodes, FAR);
        self.by.clear();
        self.by.resize(nodes, ROOT);
        self.settled.clear();
        self.settled.resize(nodes, false);
        self.touched.clear();
        self.heap.clear();
        // Incident arcs, by counting; a loop at one node conserves flow whatever its count is.
        self.first.clear();
        self.first.resize(nodes + 1, 0);
        for a in arcs.iter().filter(|a| a.from != a.to) {
            self.excess[a.from as usize] -= i128::from(a.wanted);
            self.excess[a.to as usize] += i128::from(a.wanted);
            self.first[a.from as usize + 1] += 1;
            self.first[a.to as usize + 1] += 1;
        }
        for n in 0..nodes {
            self.first[n + 1] += self.first[n];
        }
        self.ways.clear();
        self.ways.resize(self.first[nodes] as usize, 0);
        let mut next = self.first.clone();
        for (i, a) in arcs.iter().enumerate().filter(|(_, a)| a.from != a.to) {
            for (node, enters) in [(a.from, 0), (a.to, 1)] {
                let slot = &mut next[node as usize];
                self.ways[*slot as usize] = 2 * i as u32 + enters;
                *slot += 1;
            }
        }
    }

    /// The cheapest way from a node to a deficit, or any; the deficit and its distance.
    fn search(
        &mut self,
        arcs: &[Arc],
        from: u32,
        cheapest: bool,
        visits: &mut u64,
    ) -> Option<(u32, i64)> {
        self.distance[from as usize] = 0;
        self.by[from as usize] = ROOT;
        self.touched.push(from);
        self.heap.push(Reverse((0, from)));
        while let Some(Reverse((d, node))) = self.heap.pop() {
            let n = node as usize;
            if self.settled[n] {
                continue;
            }
            self.settled[n] = true;
            *visits += 1;
            if self.excess[n] < 0 {
                return Some((node, d));
            }
            for w in self.first[n]..self.first[n + 1] {
                let way = self.ways[w as usize];
                let arc = &arcs[(way / 2) as usize];
                let raise = way.is_multiple_of(2);
                let to = if raise { arc.to } else { arc.from };
                let t = to as usize;
                if self.settled[t] {
                    continue;
                }
                let Some((price, _)) = change(arc, self.flow[(way / 2) as usize], raise) else {
                    continue;
                };
                let step = if cheapest {
                    price + self.potential[n] - self.potential[t]
                } else {
                    1
                };
                let there = d + step;
                if there < self.distance[t] {
                    if self.distance[t] == FAR {
                        self.touched.push(to);
                    }
                    self.distance[t] = there;
                    self.by[t] = way;
                    self.heap.push(Reverse((there, to)));
                }
            }
        }
        None
    }

    /// Sends as much as can go the way that was found.
    fn send(&mut self, arcs: &[Arc], from: u32, end: u32) {
        let mut amount = self.excess[from as usize]
            .min(-self.excess[end as usize])
            .unsigned_abs();
        let walk = |by: &[u32], mut visit: Box<dyn FnMut(usize, bool) + '_>| {
            let mut node = end;
            while by[node as usize] != ROOT {
                let way = by[node as usize];
                let arc = &arcs[(way / 2) as usize];
                visit((way / 2) as usize, way.is_multiple_of(2));
                node = if way.is_multiple_of(2) {
                    arc.from
                } else {
                    arc.to
                };
            }
        };
        {
            let (flow, amount) = (&self.flow, &mut amount);
            walk(
                &self.by,
                Box::new(move |a, raise| {
                    if let Some((_, Some(room))) = change(&arcs[a], flow[a], raise) {
                        *amount = (*amount).min(room);
                    }
                }),
            );
        }
        let flow = &mut self.flow;
        walk(
            &self.by,
            Box::new(move |a, raise| {
                if raise {
                    flow[a] += amount
                } else {
                    flow[a] -= amount
                }
            }),
        );
        // Amounts are at most the sum of 2^32 counts of 64 bits.
        self.excess[from as usize] -= amount as i128;
        self.excess[end as usize] += amount as i128;
    }

    /// Evens out excess and deficits without regard to prices: excess goes to node 0 over a tree of arcs,
    /// deficits are fed from there over another. What is not joined with node 0 in both directions stays as
    /// it is.
    fn over_trees(&mut self, arcs: &[Arc]) {
        let nodes = self.excess.len();
        for towards in [true, false] {
            let mut by = vec![ROOT; nodes];
            let mut order = vec![0u32];
            let mut next = 0;
            while let Some(node) = order.get(next).copied() {
                next += 1;
                let n = node as usize;
                for w in self.first[n]..self.first[n + 1] {
                    let way = self.ways[w as usize];
                    let arc = &arcs[(way / 2) as usize];
                    // Towards node 0 the tree is followed from the arcs that enter a node.
                    let (usable, other) = if towards {
                        (way % 2 == 1, arc.from)
                    } else {
                        (way.is_multiple_of(2), arc.to)
                    };
                    if usable && other != 0 && by[other as usize] == ROOT {
                        by[other as usize] = way / 2;
                        order.push(other);
                    }
                }
            }
            // From the leaves inwards.
            for node in order.iter().skip(1).rev() {
                let n = *node as usize;
                let amount = if towards {
                    self.excess[n].max(0)
                } else {
                    self.excess[n].min(0)
                };
                let arc = &arcs[by[n] as usize];
                let other = if towards { arc.to } else { arc.from };
                self.flow[by[n] as usize] += amount.unsigned_abs();
                self.excess[n] -= amount;
                self.excess[other as usize] += amount;
            }
        }
    }

    /// New potentials for what was settled, and everything as before for the next search.
    fn finish(&mut self, cheapest: bool, found: i64) {
        for node in self.touched.drain(..) {
            let n = node as usize;
            if self.settled[n] && cheapest {
                self.potential[n] += self.distance[n] - found;
            }
            self.settled[n] = false;
            self.distance[n] = FAR;
            self.by[n] = ROOT;
        }
        self.heap.clear();
    }
}

/// Balances counts once; see [`Balancer::balance`].
pub fn balance(nodes: u32, arcs: &[Arc]) -> Balanced {
    Balancer::default().balance(nodes, arcs)
}
