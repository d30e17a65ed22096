//! From the bytes of `.pseudo_probe` to [`Probes`]. The format is described at the top of [`super`].
//!
//! One walker reads a record ([`Walker::record`]); three visitors use it. *Measure* finds how far from its
//! start a record reaches, which is needed only where its symbol is ambiguous. *Count* finds how many bodies
//! and probes there are and where each record starts, which depends on everything before it: the address runs
//! on from record to record in old files. *Fill* writes the arrays, many records at once, and comes to the
//! same addresses because it starts with the state that *count* had there.

#![allow(
    clippy::indexing_slicing,
    reason = "the arrays are as long as a first pass over the same bytes has counted; numbers of nodes and probes are places in them"
)]

use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::anchor::Anchors;
use super::cursor::Cursor;
use super::{Node, Packed, Probes, Statistics};
use crate::guid::Guid;
use crate::{ErrorKind, FormatError};

/// Name of the section.
pub const SECTION: &str = ".pseudo_probe";

/// Tag bit: the entry sets the address (or, in old files, its code is gone) and is no probe.
pub const SENTINEL: u8 = 0x20;
/// Tag bit: a discriminator follows.
pub const HAS_DISCRIMINATOR: u8 = 0x40;
/// Tag bit: the address is a difference.
pub const DIFFERENCE: u8 = 0x80;

/// Fewest bytes of a probe: index, tag, difference.
const PROBE_SIZE: usize = 3;
/// Fewest bytes of an inlined body: site, GUID, two numbers.
const BODY_SIZE: usize = 11;
/// Indexes are kept in 24 bits.
const INDEX_LIMIT: u64 = 1 << 24;
/// Bodies in each other. Compilers write some dozens; a context is written out for every probe, so without a
/// limit a file of some megabytes would represent terabytes of text.
const DEPTH: usize = 4096;
/// Records of one task hold about this many probes.
const TASK: u32 = 1 << 16;

/// What becomes of a record's parts.
trait Visit {
    /// A body starts.
    fn enter(&mut self, guid: Guid, site: u32);
    /// A probe of the body that was entered last.
    fn probe(&mut self, address: u64, index: u32, tag: u8, discriminator: u32);
    /// The subtree of the body that was entered last and not left yet is complete.
    fn leave(&mut self);
    /// An entry that is no probe.
    fn other(&mut self, tag: u8);
}

/// The state between records.
#[derive(Clone, Debug)]
struct Walker<'a, 'd> {
    cursor: Cursor<'d>,
    /// Address of the entry before.
    last: u64,
    /// A full address has been seen: records no longer start at symbols.
    absolute: bool,
    anchors: &'a Anchors,
}

/// How a record finds its start.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    /// Where its first difference starts; `None`: where the record before ended.
    base: Option<u64>,
    /// The address of its first sentinel.
    sentinel: Option<u64>,
}

impl Walker<'_, '_> {
    /// Reads a record.
    fn record(&mut self, start: Start, visit: &mut impl Visit) -> Result<(), FormatError> {
        if let Some(base) = start.base {
            self.last = base;
        }
        let mut sentinel = start.sentinel;
        // Bodies that are still to come in each body around.
        let mut open: Vec<usize> = Vec::new();
        let mut site = 0;
        loop {
            if open.len() >= DEPTH {
                return Err(self
                    .cursor
                    .error(
                        self.cursor.offset(),
                        format_args!(
                            "an inlined body is nested in {} others; at most {} are read",
                            open.len(),
                            DEPTH - 1
                        ),
                    )
                    .of(ErrorKind::TooLarge)
                    .values(open.len(), DEPTH - 1));
            }
            let guid = Guid(self.cursor.u64("a body's GUID")?);
            let probes = self.cursor.count(PROBE_SIZE, "number of probes")?;
            let inlinees = self.cursor.count(BODY_SIZE, "number of inlined bodies")?;
            visit.enter(guid, site);
            for _ in 0..probes {
                self.entry(&mut sentinel, visit)?;
            }
            open.push(inlinees);
            while let Some(left) = open.last_mut() {
                if *left == 0 {
                    open.pop();
                    visit.leave();
                    continue;
                }
                *left -= 1;
                break;
            }
            if open.is_empty() {
                return Ok(());
            }
            let at = self.cursor.offset();
            let number = self.cursor.uleb("a call site")?;
            site = u32::try_from(number).map_err(|_| {
                self.cursor
                    .error(
                        at,
                        format_args!("call site {number} is more than {}", u32::MAX),
                    )
                    .of(ErrorKind::TooLarge)
                    .values(number, u32::MAX)
            })?;
        }
    }

    /// Reads a probe or a sentinel.
    #[inline]
    fn entry(
        &mut self,
        sentinel: &mut Option<u64>,
        visit: &mut impl Visit,
    ) -> Result<(), FormatError> {
        let at = self.cursor.offset();
        let index = self.cursor.uleb("a probe's index")?;
        if index >= INDEX_LIMIT {
            return Err(self
                .cursor
                .error(
                    at,
                    format_args!("probe index {index} is more than {}", INDEX_LIMIT - 1),
                )
                .of(ErrorKind::TooLarge)
                .values(index, INDEX_LIMIT - 1));
        }
        let tag = self.cursor.u8("a probe's tag")?;
        let address = if tag & DIFFERENCE != 0 {
            let difference = self.cursor.sleb("a probe's address")?;
            self.last.wrapping_add_signed(difference)
        } else {
            let value = self.cursor.u64("a probe's address")?;
            if tag & SENTINEL != 0 {
                let chosen = sentinel.take().or_else(|| self.anchors.last(Guid(value)));
                chosen.unwrap_or(value)
            } else {
                self.absolute = true;
                value
            }
        };
        let mut discriminator = 0;
        if tag & HAS_DISCRIMINATOR != 0 {
            let at = self.cursor.offset();
            let number = self.cursor.uleb("a probe's discriminator")?;
            discriminator = u32::try_from(number).map_err(|_| {
                self.cursor
                    .error(
                        at,
                        format_args!("discriminator {number} is more than {}", u32::MAX),
                    )
                    .of(ErrorKind::TooLarge)
                    .values(number, u32::MAX)
            })?;
        }
        self.last = address;
        match tag & SENTINEL {
            0 => visit.probe(address, index as u32, tag, discriminator),
            _ => visit.other(tag),
        }
        Ok(())
    }

    /// Looks ahead at how the next record finds its start.
    fn start(&self, scout: &mut Scout) -> Result<Start, FormatError> {
        let mut ahead = self.cursor.clone();
        let guid = Guid(ahead.u64("a body's GUID")?);
        let probes = ahead.count(PROBE_SIZE, "number of probes")?;
        ahead.count(BODY_SIZE, "number of inlined bodies")?;
        let mut start = Start::default();
        if !self.absolute {
            start.base = self.resolve(guid, scout)?;
        }
        if probes > 0 {
            ahead.uleb("a probe's index")?;
            let tag = ahead.u8("a probe's tag")?;
            if tag & (SENTINEL | DIFFERENCE) == SENTINEL {
                let key = Guid(ahead.u64("a probe's address")?);
                start.sentinel = self.resolve(key, scout)?;
                scout.unanchored += u64::from(start.sentinel.is_none());
                scout.near = start.sentinel.or(scout.near);
                return Ok(start);
            }
            scout.unanchored +=
                u64::from(!self.absolute && start.base.is_none() && tag & DIFFERENCE != 0);
        }
        scout.near = start.base.or(scout.near);
        Ok(start)
    }

    /// The place of a key, chosen if there are several.
    fn resolve(&self, key: Guid, scout: &mut Scout) -> Result<Option<u64>, FormatError> {
        match self.anchors.all(key) {
            [] => Ok(None),
            [one] => Ok(Some(one.address)),
            _ => {
                let mut measure = Measure {
                    low: i64::MAX,
                    high: i64::MIN,
                };
                // A middle value, so that distances in both directions can be told.
                let middle = 1 << 63;
                let start = Start {
                    base: Some(middle),
                    sentinel: Some(middle),
                };
                self.clone().record(start, &mut measure)?;
                scout.chosen += 1;
                let span = (measure.low, measure.high);
                Ok(self.anchors.choose(key, span, scout.near, &mut scout.taken))
            }
        }
    }
}

/// What choosing symbols needs to know of the records before.
#[derive(Default)]
struct Scout {
    near: Option<u64>,
    taken: FxHashSet<u64>,
    chosen: u64,
    unanchored: u64,
}

/// How far from its start a record reaches.
struct Measure {
    low: i64,
    high: i64,
}

impl Visit for Measure {
    fn enter(&mut self, _: Guid, _: u32) {}
    fn probe(&mut self, address: u64, _: u32, _: u8, _: u32) {
        let distance = address.wrapping_sub(1 << 63) as i64;
        self.low = self.low.min(distance);
        self.high = self.high.max(distance);
    }
    fn leave(&mut self) {}
    fn other(&mut self, _: u8) {}
}

/// How many there are.
#[derive(Default)]
struct Count {
    nodes: u64,
    probes: u64,
    statistics: Statistics,
}

impl Visit for Count {
    fn enter(&mut self, _: Guid, _: u32) {
        self.nodes += 1;
    }
    fn probe(&mut self, _: u64, _: u32, tag: u8, _: u32) {
        self.probes += 1;
        self.statistics.absolute += u64::from(tag & DIFFERENCE == 0);
    }
    fn leave(&mut self) {}
    fn other(&mut self, tag: u8) {
        match tag & DIFFERENCE {
            0 => self.statistics.sentinels += 1,
            _ => self.statistics.dangling += 1,
        }
    }
}

/// Writes the arrays.
struct Fill<'a> {
    nodes: &'a mut [Node],
    probes: &'a mut [Packed],
    discriminators: Vec<(u32, u32)>,
    first_node: u32,
    first_probe: u32,
    node_count: usize,
    probe_count: usize,
    /// Numbers of the bodies around, and of the one at hand.
    open: Vec<u32>,
}

impl Visit for Fill<'_> {
    fn enter(&mut self, guid: Guid, site: u32) {
        let number = self.first_node + self.node_count as u32;
        self.nodes[self.node_count] = Node {
            guid,
            parent: self.open.last().copied().unwrap_or(number),
            site,
            first: self.first_probe + self.probe_count as u32,
            end: number,
        };
        self.node_count += 1;
        self.open.push(number);
    }

    fn probe(&mut self, address: u64, index: u32, tag: u8, discriminator: u32) {
        if discriminator != 0 {
            self.discriminators
                .push((self.first_probe + self.probe_count as u32, discriminator));
        }
        // A probe comes after its body, and before the bodies inlined into it: the body at hand was entered last.
        self.probes[self.probe_count] = Packed {
            address,
            node: self.first_node + self.node_count as u32 - 1,
            word: index | u32::from(tag) << 24,
        };
        self.probe_count += 1;
    }

    fn leave(&mut self) {
        if let Some(number) = self.open.pop() {
            self.nodes[(number - self.first_node) as usize].end =
                self.first_node + self.node_count as u32;
        }
    }

    fn other(&mut self, _: u8) {}
}

/// Records that one task fills in.
struct Task<'a, 'd> {
    walker: Walker<'a, 'd>,
    starts: Vec<Start>,
    first_node: u32,
    first_probe: u32,
}

/// Reads a section.
///
/// # Errors
/// Anything that is cut off, numbers that do not fit, more than 4096 bodies in each other, a section with
/// more than 2³² bodies or probes.
pub fn decode(section: &[u8], anchors: &Anchors) -> Result<Probes, FormatError> {
    let mut walker = Walker {
        cursor: Cursor::new(SECTION, section, 0),
        last: 0,
        absolute: false,
        anchors,
    };
    let (mut count, mut scout) = (Count::default(), Scout::default());
    let mut tasks: Vec<Task> = Vec::new();
    while walker.cursor.left() > 0 {
        let start = walker.start(&mut scout)?;
        let (node, probe) = (count.nodes as u32, count.probes as u32);
        if tasks
            .last()
            .is_none_or(|task| probe - task.first_probe >= TASK || node - task.first_node >= TASK)
        {
            tasks.push(Task {
                walker: walker.clone(),
                starts: Vec::new(),
                first_node: node,
                first_probe: probe,
            });
        }
        if let Some(task) = tasks.last_mut() {
            task.starts.push(start);
        }
        let at = walker.cursor.offset();
        walker.record(start, &mut count)?;
        count.statistics.records += 1;
        if count.nodes > u64::from(u32::MAX) || count.probes > u64::from(u32::MAX) {
            return Err(walker
                .cursor
                .error(
                    at,
                    format_args!(
                        "{} bodies and {} probes are more than {}",
                        count.nodes,
                        count.probes,
                        u32::MAX
                    ),
                )
                .of(ErrorKind::TooLarge)
                .values(count.nodes.max(count.probes), u32::MAX));
        }
    }
    fill(tasks, &count, &scout)
}

/// The second pass.
fn fill(tasks: Vec<Task>, count: &Count, scout: &Scout) -> Result<Probes, FormatError> {
    let node = Node {
        guid: Guid(0),
        parent: 0,
        site: 0,
        first: 0,
        end: 0,
    };
    let mut nodes = vec![node; count.nodes as usize];
    let mut probes = vec![
        Packed {
            address: 0,
            node: 0,
            word: 0
        };
        count.probes as usize
    ];
    let mut work = Vec::new();
    let (mut nodes_left, mut probes_left) = (&mut nodes[..], &mut probes[..]);
    let ends: Vec<(u64, u64)> = tasks
        .iter()
        .skip(1)
        .map(|task| (u64::from(task.first_node), u64::from(task.first_probe)))
        .chain([(count.nodes, count.probes)])
        .collect();
    for (task, (node_end, probe_end)) in tasks.into_iter().zip(ends) {
        let (mine, rest) =
            nodes_left.split_at_mut((node_end - u64::from(task.first_node)) as usize);
        nodes_left = rest;
        let (my_probes, rest) =
            probes_left.split_at_mut((probe_end - u64::from(task.first_probe)) as usize);
        probes_left = rest;
        work.push((task, mine, my_probes));
    }
    let discriminators = postlink_parallel::map_owned(work, |(mut task, nodes, probes)| {
        let mut fill = Fill {
            nodes,
            probes,
            discriminators: Vec::new(),
            first_node: task.first_node,
            first_probe: task.first_probe,
            node_count: 0,
            probe_count: 0,
            open: Vec::new(),
        };
        for start in task.starts {
            task.walker.record(start, &mut fill)?;
        }
        Ok(fill.discriminators)
    });
    let discriminators = discriminators
        .into_iter()
        .collect::<Result<Vec<_>, FormatError>>()?
        .concat();
    let mut decoded = Probes {
        nodes,
        probes,
        discriminators,
        by_address: Vec::new(),
        statistics: Statistics {
            unanchored: scout.unanchored,
            chosen: scout.chosen,
            ..count.statistics
        },
    };
    decoded.sort();
    Ok(decoded)
}

impl Probes {
    /// Orders the probes by address.
    fn sort(&mut self) {
        let mut order: Vec<u32> = (0..self.probes.len() as u32).collect();
        // Stable, and quick on runs that are in order already, as most records are.
        order.par_sort_by_key(|&number| self.probes[number as usize].address);
        self.by_address = order;
    }

    /// Adds the probes of another section after these.
    pub(super) fn append(&mut self, other: Probes) -> Result<(), FormatError> {
        let (nodes, probes) = (self.nodes.len(), self.probes.len());
        let fits = |a: usize, b: usize| u32::try_from(a as u64 + b as u64).is_ok();
        if !fits(nodes, other.nodes.len()) || !fits(probes, other.probes.len()) {
            return Err(FormatError::new(format!(
                "sections {SECTION}: more than {} bodies or probes",
                u32::MAX
            ))
            .of(ErrorKind::TooLarge));
        }
        let (nodes, probes) = (nodes as u32, probes as u32);
        self.nodes.extend(other.nodes.into_iter().map(|node| Node {
            parent: node.parent + nodes,
            first: node.first + probes,
            end: node.end + nodes,
            ..node
        }));
        self.probes
            .extend(other.probes.into_iter().map(|probe| Packed {
                node: probe.node + nodes,
                ..probe
            }));
        let moved = other.discriminators.into_iter();
        self.discriminators
            .extend(moved.map(|(at, value)| (at + probes, value)));
        let (mine, theirs) = (&mut self.statistics, other.statistics);
        mine.records += theirs.records;
        mine.sentinels += theirs.sentinels;
        mine.dangling += theirs.dangling;
        mine.absolute += theirs.absolute;
        mine.unanchored += theirs.unanchored;
        mine.chosen += theirs.chosen;
        self.sort();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
