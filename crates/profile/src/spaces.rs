//! Which file was mapped where, in which process, and when.
//!
//! perf records a mapping when it is made, and processes when they fork, call exec and exit; samples carry a
//! time. From the events the pieces of address space are made that each mapping really covered, and for how
//! long: a later mapping cuts what it overlaps, exec ends all, a child begins with copies of its parent's.
//! The events are not sorted by time in the file (each CPU has its own buffer), so all of them are read
//! first, and samples are looked up afterwards, in any order and by any thread.
//!
//! Pieces are sorted by address. A lookup finds the last one that starts at or before the address and goes
//! back from there; the largest end so far, kept beside each, says when to stop. With few overlaps in time,
//! as in all real processes, that is one or two steps.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::address::{AddressKind, Module, ModuleId, Place};

/// A file mapped to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// Path of the file, or a name like `[vdso]` or `//anon`.
    pub path: Vec<u8>,
    /// Build-id of the file, if the event says; else empty.
    pub build_id: Vec<u8>,
}

/// Something that changes an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpaceEvent {
    /// A mapping was made.
    Map(Mapping),
    /// The process runs another program: all mappings are gone.
    Exec,
    /// The process was forked off another one (the parent's id).
    Fork(i32),
}

/// First address that belongs to the kernel, on every 64-bit machine Linux runs on.
pub const KERNEL: u64 = 0xffff_0000_0000_0000;

/// The address spaces of all processes of a recording.
#[derive(Debug, Default)]
pub struct Spaces {
    modules: Vec<Module>,
    processes: FxHashMap<i32, Process>,
    /// The one to take for samples without a process id, if there is only one.
    only: Option<i32>,
}

/// What a mapping covered at some time.
#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    /// Exclusive.
    end: u64,
    born: u64,
    /// Exclusive.
    died: u64,
    module: ModuleId,
    /// File offset of `start`.
    file_offset: u64,
}

#[derive(Debug, Default)]
struct Process {
    /// By start, then birth.
    pieces: Vec<Piece>,
    /// Largest end of the pieces up to and including each.
    reach: Vec<u64>,
}

/// The current map of a process while events are played.
type Current = BTreeMap<u64, Piece>;

impl Spaces {
    /// From events: time, process, what happened; in any order. Events of the same time keep their order.
    /// `build_ids` names files whose events do not say.
    pub fn new(
        mut events: Vec<(u64, i32, SpaceEvent)>,
        build_ids: &FxHashMap<Vec<u8>, Vec<u8>>,
    ) -> Spaces {
        events.sort_by_key(|event| event.0);
        let mut spaces = Spaces::default();
        let mut numbers: FxHashMap<Module, ModuleId> = FxHashMap::default();
        let mut current: FxHashMap<i32, Current> = FxHashMap::default();
        for (time, pid, event) in events {
            match event {
                SpaceEvent::Map(mapping) => {
                    let Some(end) = mapping
                        .start
                        .checked_add(mapping.len)
                        .filter(|_| mapping.len > 0)
                    else {
                        continue;
                    };
                    let mut build_id = mapping.build_id;
                    if build_id.is_empty()
                        && let Some(known) = build_ids.get(&mapping.path)
                    {
                        build_id.clone_from(known);
                    }
                    let module = Module {
                        path: mapping.path,
                        build_id,
                        kind: AddressKind::FileOffset,
                    };
                    let module = match numbers.get(&module) {
                        Some(&module) => module,
                        None => {
                            let number = ModuleId(spaces.modules.len() as u32);
                            spaces.modules.push(module.clone());
                            numbers.insert(module, number);
                            number
                        }
                    };
                    let map = current.entry(pid).or_default();
                    let done = spaces.processes.entry(pid).or_default();
                    cut(map, &mut done.pieces, mapping.start, end, time);
                    let piece = Piece {
                        start: mapping.start,
                        end,
                        born: time,
                        died: u64::MAX,
                        module,
                        file_offset: mapping.file_offset,
                    };
                    map.insert(piece.start, piece);
                }
                SpaceEvent::Exec => {
                    if let Some(map) = current.get_mut(&pid) {
                        let done = spaces.processes.entry(pid).or_default();
                        for mut piece in std::mem::take(map).into_values() {
                            piece.died = time;
                            done.retire(piece);
                        }
                    }
                }
                SpaceEvent::Fork(parent) => {
                    if parent == pid {
                        continue; // a thread
                    }
                    let mut copy = current.get(&parent).cloned().unwrap_or_default();
                    copy.values_mut().for_each(|piece| piece.born = time);
                    // The number may have been another process's before.
                    if let Some(old) = current.insert(pid, copy) {
                        let done = spaces.processes.entry(pid).or_default();
                        for mut piece in old.into_values() {
                            piece.died = time;
                            done.retire(piece);
                        }
                    }
                }
            }
        }
        for (pid, map) in current {
            spaces
                .processes
                .entry(pid)
                .or_default()
                .pieces
                .extend(map.into_values());
        }
        spaces
            .processes
            .retain(|_, process| !process.pieces.is_empty());
        for process in spaces.processes.values_mut() {
            process
                .pieces
                .sort_unstable_by_key(|piece| (piece.start, piece.born));
            process.reach = process
                .pieces
                .iter()
                .scan(0, |reach, piece| {
                    *reach = piece.end.max(*reach);
                    Some(*reach)
                })
                .collect();
        }
        let mut pids = spaces.processes.keys().filter(|&&pid| pid > 0);
        spaces.only = match (pids.next(), pids.next()) {
            (Some(&pid), None) => Some(pid),
            _ => None,
        };
        spaces
    }

    /// The modules that places refer to.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Path and first address of every mapping, by process and address.
    pub fn mappings(&self) -> Vec<(&[u8], u64)> {
        let mut pids: Vec<_> = self.processes.keys().collect();
        pids.sort_unstable();
        pids.into_iter()
            .flat_map(|pid| &self.processes[pid].pieces)
            .filter_map(|piece| {
                let module = self.modules.get(piece.module.0 as usize)?;
                Some((&module.path[..], piece.start))
            })
            .collect()
    }

    /// The modules that a process (or the only one) had mapped at any time, each once.
    pub fn modules_of(&self, pid: Option<i32>) -> Vec<&Module> {
        let process = pid.or(self.only).and_then(|pid| self.processes.get(&pid));
        let pieces = process.map_or(&[][..], |process| &process.pieces);
        let mut ids: Vec<ModuleId> = pieces.iter().map(|piece| piece.module).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter()
            .filter_map(|id| self.modules.get(id.0 as usize))
            .collect()
    }

    /// The process that samples without a process id are taken for.
    pub(crate) fn only_process(&self) -> Option<i32> {
        self.only
    }

    /// Whether no mapping at all is known.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// What is to be known of one process, or of the only one.
    pub fn process(&self, pid: Option<i32>) -> Space<'_> {
        let process = pid.or(self.only).and_then(|pid| self.processes.get(&pid));
        Space {
            process,
            recent: None,
        }
    }
}

impl Process {
    /// Keeps a piece that has died, unless it never lived.
    fn retire(&mut self, piece: Piece) {
        if piece.born < piece.died {
            self.pieces.push(piece);
        }
    }
}

/// Ends what is in `start..end`; what sticks out lives on.
fn cut(map: &mut Current, done: &mut Vec<Piece>, start: u64, end: u64, time: u64) {
    let first = map
        .range(..start)
        .next_back()
        .filter(|(_, piece)| piece.end > start)
        .map(|(&at, _)| at);
    let hit: Vec<u64> = first
        .into_iter()
        .chain(map.range(start..end).map(|(&at, _)| at))
        .collect();
    for at in hit {
        let Some(piece) = map.remove(&at) else {
            continue;
        };
        if piece.start < start {
            let left = Piece {
                end: start,
                ..piece.clone()
            };
            map.insert(left.start, left);
        }
        if piece.end > end {
            let file_offset = piece.file_offset.wrapping_add(end - piece.start);
            let right = Piece {
                start: end,
                file_offset,
                ..piece.clone()
            };
            map.insert(right.start, right);
        }
        let (from, to) = (piece.start.max(start), piece.end.min(end));
        if piece.born < time {
            let file_offset = piece.file_offset.wrapping_add(from - piece.start);
            done.push(Piece {
                start: from,
                end: to,
                died: time,
                file_offset,
                ..piece
            });
        }
    }
}

/// One process's address space; remembers the last mapping that was found.
#[derive(Clone, Debug)]
pub struct Space<'a> {
    process: Option<&'a Process>,
    recent: Option<&'a Piece>,
}

impl Space<'_> {
    /// The place of a run-time address at a time; [`Place::OUTSIDE`] if nothing is known to be there, or the kernel.
    #[inline]
    pub fn resolve(&mut self, address: u64, time: u64) -> Place {
        let holds = |piece: &Piece| {
            piece.start <= address && address < piece.end && piece.born <= time && time < piece.died
        };
        if let Some(piece) = self.recent
            && holds(piece)
        {
            return Place {
                module: piece.module,
                address: piece.file_offset.wrapping_add(address - piece.start),
            };
        }
        let Some(process) = self.process.filter(|_| address < KERNEL) else {
            return Place::OUTSIDE;
        };
        let end = process
            .pieces
            .partition_point(|piece| piece.start <= address);
        for index in (0..end).rev() {
            if process.reach[index] <= address {
                break;
            }
            let piece = &process.pieces[index];
            if holds(piece) {
                self.recent = Some(piece);
                return Place {
                    module: piece.module,
                    address: piece.file_offset.wrapping_add(address - piece.start),
                };
            }
        }
        Place::OUTSIDE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(start: u64, len: u64, file_offset: u64, path: &str) -> SpaceEvent {
        SpaceEvent::Map(Mapping {
            start,
            len,
            file_offset,
            path: path.into(),
            build_id: Vec::new(),
        })
    }

    fn at(spaces: &Spaces, pid: i32, address: u64, time: u64) -> Option<(String, u64)> {
        let place = spaces.process(Some(pid)).resolve(address, time);
        let module = spaces.modules().get(place.module.0 as usize)?;
        Some((
            String::from_utf8(module.path.clone()).unwrap(),
            place.address,
        ))
    }

    #[test]
    fn later_mappings_cut_earlier_ones_in_any_order_of_events() {
        let mut events = vec![
            (5, 1, map(0x1000, 0x3000, 0, "a")),
            (7, 1, map(0x2000, 0x1000, 0x100, "b")),
            (9, 1, SpaceEvent::Exec),
            (9, 1, map(0x1000, 0x1000, 0x50, "c")),
        ];
        events.reverse();
        // Events of one time keep their order.
        events.swap(0, 1);
        let spaces = Spaces::new(events, &FxHashMap::default());
        assert_eq!(at(&spaces, 1, 0x2010, 4), None);
        assert_eq!(at(&spaces, 1, 0x2010, 5), Some(("a".into(), 0x1010)));
        assert_eq!(at(&spaces, 1, 0x2010, 7), Some(("b".into(), 0x110)));
        assert_eq!(at(&spaces, 1, 0x1fff, 8), Some(("a".into(), 0xfff)));
        assert_eq!(at(&spaces, 1, 0x3000, 8), Some(("a".into(), 0x2000)));
        assert_eq!(at(&spaces, 1, 0x4000, 8), None);
        assert_eq!(at(&spaces, 1, 0x1fff, 9), Some(("c".into(), 0x104f)));
        assert_eq!(at(&spaces, 1, 0x3000, 9), None);
        assert_eq!(at(&spaces, 2, 0x3000, 8), None);
    }

    #[test]
    fn children_begin_with_their_parents_mappings() {
        let events = vec![
            (1, 1, map(0x1000, 0x1000, 0, "a")),
            (3, 2, SpaceEvent::Fork(1)),
            (4, 1, map(0x1000, 0x1000, 0, "b")),
            (5, 2, SpaceEvent::Exec),
        ];
        let spaces = Spaces::new(events, &FxHashMap::default());
        assert_eq!(at(&spaces, 2, 0x1000, 2), None);
        assert_eq!(at(&spaces, 2, 0x1000, 4), Some(("a".into(), 0)));
        assert_eq!(at(&spaces, 1, 0x1000, 4), Some(("b".into(), 0)));
        assert_eq!(at(&spaces, 2, 0x1000, 5), None);
    }

    #[test]
    fn lookups_agree_with_playing_the_events_up_to_the_time() {
        arbtest::arbtest(|u| {
            let mut events = Vec::new();
            for time in 0..u.int_in_range(0..=12u64)? {
                let pid = u.int_in_range(1..=2)?;
                events.push((
                    time,
                    pid,
                    match u.int_in_range(0..=7)? {
                        0 => SpaceEvent::Exec,
                        1 => SpaceEvent::Fork(3 - pid),
                        _ => map(
                            u.int_in_range(0..=9)?,
                            u.int_in_range(0..=6)?,
                            100 * time,
                            "f",
                        ),
                    },
                ));
            }
            let spaces = Spaces::new(events.clone(), &FxHashMap::default());
            for time in 0..12 {
                let mut memory: [FxHashMap<u64, u64>; 3] = Default::default();
                for (_, pid, event) in events.iter().filter(|event| event.0 <= time) {
                    match event {
                        SpaceEvent::Map(m) => (0..m.len).for_each(|i| {
                            memory[*pid as usize].insert(m.start + i, m.file_offset + i);
                        }),
                        SpaceEvent::Exec => memory[*pid as usize].clear(),
                        SpaceEvent::Fork(parent) => {
                            memory[*pid as usize] = memory[*parent as usize].clone()
                        }
                    }
                }
                for pid in 1..=2 {
                    for address in 0..17 {
                        let expected = memory[pid as usize].get(&address).copied();
                        assert_eq!(
                            at(&spaces, pid, address, time).map(|hit| hit.1),
                            expected,
                            "{events:?} {pid} {address} {time}"
                        );
                    }
                }
            }
            Ok(())
        });
    }
}
