//! Blocks of all functions with counts, the ways between them, and calls.

/// Where control goes after a block, within its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Number of the block in its function.
    pub to: u32,
    /// How often.
    pub count: u64,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee {
    /// A function of the graph.
    Function(u32),
    /// Code that is not in the graph: any number that tells it from other such code.
    Outside(u32),
}

/// A call, or a jump out of a function, to one of the functions that it called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Number of its block in the function.
    pub block: u32,
    /// Bytes of the block that are executed before it.
    pub offset: u32,
    /// A jump: it does not come back.
    pub tail: bool,
    /// What it called, and how often.
    pub callees: Vec<(Callee, u64)>,
}

/// A block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) function: u32,
    pub(super) count: u64,
    /// First of its ways.
    pub(super) ways: u32,
    /// First of its sites.
    pub(super) sites: u32,
}

/// A site, in the graph's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) offset: u32,
    pub(super) tail: bool,
    /// First of its callees.
    pub(super) callees: u32,
    /// Sum of its counts.
    pub(super) total: u64,
}

/// A function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    /// Its first block.
    pub(super) first: u32,
    /// How often it was entered.
    pub(super) entries: u64,
}

/// A program with counts. Lists end with one more element, where the next would begin.
#[derive(Debug, Default)]
pub struct CodeGraph {
    pub(super) functions: Vec<Function>,
    pub(super) blocks: Vec<Block>,
    pub(super) ways: Vec<Way>,
    pub(super) sites: Vec<Calls>,
    pub(super) callees: Vec<(Callee, u64)>,
}

impl CodeGraph {
    /// Adds a function that was entered so many times: counts of its blocks, the ways from each, and sites in any
    /// order. Ways and sites of blocks that do not exist are left out. Functions are numbered in the order in which
    /// they are added; blocks too, through all functions.
    pub fn push<'a>(
        &mut self,
        entries: u64,
        counts: &[u64],
        ways: impl Fn(u32) -> &'a [Way],
        sites: &[Site],
    ) {
        let function = self.functions.len() as u32;
        let first = self.blocks.len() as u32;
        self.functions.push(Function { first, entries });
        let mut by_block: Vec<&Site> = sites.iter().collect();
        by_block.sort_by_key(|site| (site.block, site.offset));
        let mut rest = by_block.into_iter().peekable();
        for (b, count) in (0u32..).zip(counts) {
            self.blocks.push(Block {
                function,
                count: *count,
                ways: self.ways.len() as u32,
                sites: self.sites.len() as u32,
            });
            let known = |way: &&Way| (way.to as usize) < counts.len() && way.count > 0;
            self.ways
                .extend(ways(b).iter().filter(known).map(|way| Way {
                    to: first + way.to,
                    count: way.count,
                }));
            while let Some(site) = rest.next_if(|site| site.block == b) {
                let called = site.callees.iter().filter(|(_, count)| *count > 0);
                let callees = self.callees.len() as u32;
                self.callees.extend(called);
                let counts = self.callees[callees as usize..].iter().map(|c| c.1);
                let total = counts.fold(0, u64::saturating_add);
                if total > 0 {
                    self.sites.push(Calls {
                        offset: site.offset,
                        tail: site.tail,
                        callees,
                        total,
                    });
                }
            }
        }
    }

    pub(super) fn ways_of(&self, block: u32) -> &[Way] {
        let next = self.blocks.get(block as usize + 1);
        let end = next.map_or(self.ways.len(), |next| next.ways as usize);
        &self.ways[self.blocks[block as usize].ways as usize..end]
    }

    /// Numbers of a block's sites.
    pub(super) fn sites_of(&self, block: u32) -> std::ops::Range<u32> {
        let next = self.blocks.get(block as usize + 1);
        let end = next.map_or(self.sites.len() as u32, |next| next.sites);
        self.blocks[block as usize].sites..end
    }

    pub(super) fn callees_of(&self, site: u32) -> &[(Callee, u64)] {
        let next = self.sites.get(site as usize + 1);
        let end = next.map_or(self.callees.len(), |next| next.callees as usize);
        &self.callees[self.sites[site as usize].callees as usize..end]
    }
}
