//! Which chains are joined by which arcs, while chains are merged.
//!
//! Chain merging (of blocks into functions, of functions into text) asks again and again: which
//! chains are neighbours of this one, and by which arcs? An arc is a jump or a call with a number;
//! a *pair* is two chains with at least one arc between them. When a chain is merged into another,
//! the arcs between them become inner arcs, and pairs with a common third chain are united.
//!
//! The arcs of a pair are a linked list through one array, so that uniting two lists costs one
//! store. A pair that was united with another stays in the neighbour list of the third chain,
//! marked dead, until that list is walked the next time.

use smallvec::SmallVec;

/// The end of a list.
const END: u32 = u32::MAX;

/// A list of arcs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self {
        head: END,
        tail: END,
    };
}

/// Two chains and the arcs between them.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// In no particular order; equal to each other in a dead pair.
    chains: [u32; 2],
    arcs: List,
}

/// The pairs of a chain: most have few.
pub(crate) type Neighbours = SmallVec<[u32; 4]>;

/// The neighbourhood of chains.
#[derive(Debug)]
pub(crate) struct Links {
    next: Vec<u32>,
    pairs: Vec<Pair>,
    /// The pairs of each chain, dead ones included.
    neighbours: Vec<Neighbours>,
    /// The arcs inside each chain.
    inner: Vec<List>,
    /// Scratch for `merge`: the pair of each chain with the one that grows, or `END`.
    pair_of: Vec<u32>,
}

impl Links {
    /// The links of `chains` chains; arc number `i` goes between the two chains that the i-th item
    /// gives.
    pub(crate) fn new(chains: usize, arcs: impl ExactSizeIterator<Item = (u32, u32)>) -> Self {
        let mut links = Self {
            next: vec![END; arcs.len()],
            pairs: Vec::new(),
            neighbours: vec![Neighbours::new(); chains],
            inner: vec![List::EMPTY; chains],
            pair_of: vec![END; chains],
        };
        for (arc, (a, b)) in (0u32..).zip(arcs) {
            if a == b {
                push(&mut links.inner[a as usize], &mut links.next, arc);
                continue;
            }
            let pair = links.pair(a, b);
            push(&mut links.pairs[pair as usize].arcs, &mut links.next, arc);
        }
        links
    }

    /// The pair of two chains, which is made if there is none. It is looked for among those of the
    /// chain that has fewer: where one has many, the other hardly has as well.
    fn pair(&mut self, a: u32, b: u32) -> u32 {
        let [of_a, of_b] = [a, b].map(|chain| &self.neighbours[chain as usize]);
        let (few, chain, wanted) = if of_a.len() <= of_b.len() {
            (of_a, a, b)
        } else {
            (of_b, b, a)
        };
        let mut known = few.iter().copied();
        if let Some(pair) = known.find(|&pair| self.other(pair, chain) == wanted) {
            return pair;
        }
        let pair = self.pairs.len() as u32;
        self.pairs.push(Pair {
            chains: [a, b],
            arcs: List::EMPTY,
        });
        self.neighbours[a as usize].push(pair);
        self.neighbours[b as usize].push(pair);
        pair
    }

    /// The number of pairs that there were at first; no pair has a higher number.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The two chains of a pair.
    pub(crate) fn chains(&self, pair: u32) -> [u32; 2] {
        self.pairs[pair as usize].chains
    }

    /// The arcs between the two chains of a pair, in either direction.
    pub(crate) fn arcs(&self, pair: u32) -> impl Iterator<Item = u32> {
        self.list(self.pairs[pair as usize].arcs)
    }

    /// The arcs inside a chain.
    pub(crate) fn inner(&self, chain: u32) -> impl Iterator<Item = u32> {
        self.list(self.inner[chain as usize])
    }

    /// The living pairs of a chain, in a list that the caller gives back with
    /// [`Self::put_neighbours`].
    pub(crate) fn take_neighbours(&mut self, chain: u32) -> Neighbours {
        let mut list = std::mem::take(&mut self.neighbours[chain as usize]);
        list.retain(|pair| self.is_alive(*pair));
        list
    }

    /// See [`Self::take_neighbours`].
    pub(crate) fn put_neighbours(&mut self, chain: u32, list: Neighbours) {
        self.neighbours[chain as usize] = list;
    }

    /// Merges the chain `from` of a pair into the other one, `into`. `dead` is called for every
    /// pair that ceases to be.
    pub(crate) fn merge(&mut self, into: u32, from: u32, mut dead: impl FnMut(u32)) {
        let mut kept = self.take_neighbours(into);
        let moved = self.take_neighbours(from);
        for &pair in &kept {
            let third = self.other(pair, into);
            self.pair_of[third as usize] = pair;
        }
        for pair in moved {
            let third = self.other(pair, from);
            let arcs = self.pairs[pair as usize].arcs;
            let same = self.pair_of[third as usize];
            if third == into {
                append(&mut self.inner[into as usize], &mut self.next, arcs);
            } else if same != END {
                append(&mut self.pairs[same as usize].arcs, &mut self.next, arcs);
            } else {
                self.pairs[pair as usize].chains = [into, third];
                kept.push(pair);
                continue;
            }
            self.pairs[pair as usize].chains = [into, into];
            dead(pair);
        }
        for &pair in &kept {
            if self.is_alive(pair) {
                let third = self.other(pair, into);
                self.pair_of[third as usize] = END;
            }
        }
        self.pair_of[from as usize] = END;
        let arcs = std::mem::replace(&mut self.inner[from as usize], List::EMPTY);
        append(&mut self.inner[into as usize], &mut self.next, arcs);
        self.neighbours[into as usize] = kept;
    }

    /// The chain of the pair that is not `chain`.
    pub(crate) fn other(&self, pair: u32, chain: u32) -> u32 {
        let [a, b] = self.pairs[pair as usize].chains;
        if a == chain { b } else { a }
    }

    fn is_alive(&self, pair: u32) -> bool {
        let [a, b] = self.pairs[pair as usize].chains;
        a != b
    }

    fn list(&self, list: List) -> impl Iterator<Item = u32> {
        let mut arc = list.head;
        std::iter::from_fn(move || {
            let this = arc;
            (this != END).then(|| {
                arc = self.next[this as usize];
                this
            })
        })
    }
}

fn push(list: &mut List, next: &mut [u32], arc: u32) {
    append(
        list,
        next,
        List {
            head: arc,
            tail: arc,
        },
    );
}

fn append(list: &mut List, next: &mut [u32], more: List) {
    if more.head == END {
        return;
    }
    match list.tail {
        END => list.head = more.head,
        tail => next[tail as usize] = more.head,
    }
    list.tail = more.tail;
}

#[cfg(test)]
mod tests {
    use super::Links;

    #[test]
    fn merging_unites_the_arcs_of_common_neighbours() {
        // Two triangles that share the side 1 - 2.
        let mut links = Links::new(
            4,
            [(0, 1), (1, 2), (2, 0), (0, 1), (3, 1), (2, 3), (3, 3)].into_iter(),
        );
        assert_eq!(links.pairs(), 5);
        let mut dead = Vec::new();
        links.merge(1, 2, |pair| dead.push(pair));
        assert_eq!(links.inner(1).collect::<Vec<_>>(), [1]);
        let around: Vec<(u32, Vec<u32>)> = links
            .take_neighbours(1)
            .into_iter()
            .map(|pair| (links.other(pair, 1), links.arcs(pair).collect()))
            .collect();
        assert_eq!(around, [(0, vec![0, 3, 2]), (3, vec![4, 5])]);
        assert_eq!(dead.len(), 3);
        assert_eq!(links.inner(3).collect::<Vec<_>>(), [6]);
        let around_third = links.take_neighbours(3);
        assert_eq!(around_third.len(), 1, "the pair of the dead chain is gone");
    }
}
