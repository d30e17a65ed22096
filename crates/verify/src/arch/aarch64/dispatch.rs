//! Jumps through tables, as compilers write them.
//!
//! The code before the jump is read backwards: the jump's register is a sum of a base and an entry, the entry
//! comes out of memory at a table plus an index, and base and table are addresses. In gcc's form and in two
//! of clang's:
//!
//! ```text
//! cmp  w0, #8               cmp  w8, #8                  cmp  w8, #8
//! b.hi default              b.hi default                 b.hi default
//! adrp x1, table            adrp x9, table               adrp x9, table
//! add  x1, x1, :lo12:table  add  x9, x9, :lo12:table     add  x9, x9, :lo12:table
//! ldrb w0, [x1, w0, uxtw]   adr  x10, base               ldrsw x10, [x9, x8, lsl #2]
//! adr  x1, base             ldrb w11, [x9, x8]           add  x9, x9, x10
//! add  x0, x1, w0, sxtb #2  add  x10, x10, x11, lsl #2   br   x9
//! br   x0                   br   x10
//! ```
//!
//! The sum, the load and often the addresses are in straight code before the jump. A table's address that is
//! wanted in a loop is formed before it: then everything that can reach the load is searched, and all that is
//! found must be the same address.
//!
//! The number of entries comes from a comparison of the index with a constant, on the only way to the load:
//! either the branch after it leaves when the index is too large, or it comes here when it is not.

use super::super::Dispatch;
use super::{registers, target};
use crate::arch::graph::Graph;
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

/// How far back is looked in straight code.
const REACH: u64 = 32;

/// How many instructions are looked at for an address formed far away.
const BUDGET: usize = 20_000;

/// Where a register got its value: the address of the instruction, and the instruction.
type Definition = (u64, u32);

fn is_conditional(w: u32) -> bool {
    w >> 24 == 0x54 || w & 0x7c00_0000 == 0x3400_0000
}

fn is_call(w: u32) -> bool {
    w & 0xfc00_0000 == 0x9400_0000 || w & 0xfe00_0000 == 0xd600_0000 && w >> 21 & 7 == 1
}

/// Whether control never continues after it.
fn ends(w: u32) -> bool {
    w & 0xfc00_0000 == 0x1400_0000
        || w & 0xfe00_0000 == 0xd600_0000 && w >> 21 & 7 != 1
        || w & 0xffe0_001f == 0xd420_0000
        || w >> 16 == 0
}

/// The number of `add x, x, #number`.
fn immediate(w: u32) -> Option<u64> {
    (w & 0xff80_0000 == 0x9100_0000)
        .then(|| u64::from(w >> 10 & 0xfff) << if w >> 22 & 1 == 0 { 0 } else { 12 })
}

struct Reader<'c, 'b> {
    graph: &'c Graph<'b>,
    jump: u64,
}

impl Reader<'_, '_> {
    /// The instruction before `at` that last wrote `reg`, in straight code. Calls and jumps end the search.
    fn definition(&self, reg: u32, at: u64) -> Option<Definition> {
        let mut here = at;
        while self.jump.wrapping_sub(here) < 4 * REACH {
            here = here.checked_sub(4)?;
            let w = self.graph.word(here)?;
            if ends(w) || is_call(w) {
                return None;
            }
            let touched = registers::touched(w)?;
            if touched.kills >> reg & 1 != 0 {
                return Some((here, w));
            }
            if touched.writes >> reg & 1 != 0 {
                return None;
            }
        }
        None
    }

    /// All instructions that may have written `reg` before `at`, by every known way; `None` if one of them
    /// only changes it, or if a call may have.
    fn definitions(&self, reg: u32, at: u64) -> Option<SmallVec<[Definition; 4]>> {
        let kept_by_calls = (18..30).contains(&reg);
        let mut found: SmallVec<[Definition; 4]> = SmallVec::new();
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut work: Vec<u64> = vec![at];
        while let Some(at) = work.pop() {
            if seen.len() > BUDGET {
                return None;
            }
            if !seen.insert(at) {
                continue;
            }
            let before = at
                .checked_sub(4)
                .and_then(|b| Some((b, self.graph.word(b)?)))
                .filter(|(_, w)| !ends(*w));
            let jumps = self
                .graph
                .jumps_to(at)
                .iter()
                .filter_map(|&j| Some((j, self.graph.word(j)?)));
            for (here, w) in before.into_iter().chain(jumps) {
                if is_call(w) {
                    if !kept_by_calls {
                        return None;
                    }
                    work.push(here);
                    continue;
                }
                let touched = registers::touched(w);
                match touched {
                    Some(t) if t.kills >> reg & 1 != 0 => found.push((here, w)),
                    Some(t) if t.writes >> reg & 1 != 0 => return None,
                    // A system call changes x0 alone.
                    None if w >> 24 == 0xd4 && reg != 0 => work.push(here),
                    None => return None,
                    _ => work.push(here),
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        (!found.is_empty()).then_some(found)
    }

    /// The address that one instruction forms, alone or of a page; and the instructions that do.
    fn formed(
        &self,
        (here, w): Definition,
        near: bool,
        parts: &mut SmallVec<[u64; 8]>,
    ) -> Option<u64> {
        parts.push(here);
        if w & 0x9f00_0000 == 0x1000_0000 {
            return Some(target(w, here));
        }
        let number = immediate(w)?;
        let pages: SmallVec<[Definition; 4]> = match self.definition(w >> 5 & 31, here) {
            Some(page) => smallvec![page],
            None if near => return None,
            None => self.definitions(w >> 5 & 31, here)?,
        };
        let mut address = None;
        for (at, page) in pages {
            if page & 0x9f00_0000 != 0x9000_0000 {
                return None;
            }
            parts.push(at);
            let made = target(page, at).wrapping_add(number);
            if *address.get_or_insert(made) != made {
                return None;
            }
        }
        address
    }

    /// The address that a register holds before `at`, and the instructions that formed it, if they are in sight.
    fn address(&self, reg: u32, at: u64, parts: &mut SmallVec<[u64; 8]>) -> Option<u64> {
        self.formed(self.definition(reg, at)?, true, parts)
    }

    /// The same by every way.
    fn far_address(&self, reg: u32, at: u64, parts: &mut SmallVec<[u64; 8]>) -> Option<u64> {
        let mut address = None;
        for definition in self.definitions(reg, at)? {
            let made = self.formed(definition, false, parts)?;
            if *address.get_or_insert(made) != made {
                return None;
            }
        }
        address
    }

    /// Number of entries: `cmp index, #n` on the only way here, and a branch after it that leaves for larger
    /// ones or comes here for the others.
    fn count(&self, index: u32, load: u64) -> Option<u64> {
        let mut at = load;
        let mut bound: Option<(u32, bool)> = None;
        for _ in 0..4 * REACH {
            let before = at
                .checked_sub(4)
                .and_then(|b| Some((b, self.graph.word(b)?)))
                .filter(|(_, w)| !ends(*w));
            let (here, w, taken) = match (before, self.graph.jumps_to(at)) {
                (Some((here, w)), []) => (here, w, false),
                (None, [jump]) => (*jump, self.graph.word(*jump)?, true),
                _ => return None,
            };
            at = here;
            if w >> 24 == 0x54 && bound.is_none() {
                bound = Some((w & 15, taken));
                continue;
            }
            if w & 0x7f80_0000 == 0x7100_0000 && w & 31 == 31 && w >> 5 & 31 == index {
                let n = u64::from(w >> 10 & 0xfff) << if w >> 22 & 1 == 0 { 0 } else { 12 };
                // Unsigned: higher, higher or same, lower or same, lower.
                return match bound? {
                    (8, false) | (9, true) => n.checked_add(1),
                    (2, false) | (3, true) => Some(n),
                    _ => None,
                };
            }
            if is_conditional(w) || w & 0xfc00_0000 == 0x1400_0000 {
                continue;
            }
            let touched = registers::touched(w)?;
            // Flags that were set since are those of another comparison.
            let flags = (w & 0x1f00_0000 == 0x1100_0000 || w & 0x1f00_0000 == 0x0b00_0000)
                && w >> 29 & 1 == 1
                || w & 0x7f80_0000 == 0x7200_0000
                || w & 0x7f00_0000 == 0x6a00_0000
                || w & 0x7fe0_0000 == 0x7a40_0000
                || w & 0x5f20_0000 == 0x1e20_0000;
            if touched.writes >> index & 1 != 0 || flags && bound.is_some() {
                return None;
            }
        }
        None
    }
}

/// Reads the dispatch that ends with the jump at `jump`.
pub(super) fn read(jump: u64, graph: &Graph<'_>) -> Option<Dispatch> {
    let r = Reader { graph, jump };
    let w = graph.word(jump)?;
    if w & 0xffff_fc1f != 0xd61f_0000 {
        return None;
    }
    let mut parts: SmallVec<[u64; 8]> = SmallVec::new();
    let mut formed: SmallVec<[u64; 8]> = SmallVec::new();
    let (sum_at, sum) = r.definition(w >> 5 & 31, jump)?;
    parts.push(sum_at);
    let mut scratch = 1u32 << (sum & 31);
    // add x, base, entry {, extension #shift}
    let (extension, shift) = if sum & 0xffe0_0000 == 0x8b20_0000 {
        ((sum >> 13 & 7) as u8, (sum >> 10 & 7) as u8)
    } else if sum & 0xffe0_0000 == 0x8b00_0000 {
        (3, (sum >> 10 & 63) as u8)
    } else {
        return None;
    };
    let (base_reg, entry_reg) = (sum >> 5 & 31, sum >> 16 & 31);
    let find_load = |reg: u32| {
        r.definition(reg, sum_at)
            .filter(|(_, l)| l & 0x3b20_0c00 == 0x3820_0800 && l >> 26 & 1 == 0)
    };
    // Without an extension the sum may be written either way round.
    let swapped = extension == 3 && shift == 0 && find_load(entry_reg).is_none();
    let (base_reg, entry_reg) = if swapped {
        (entry_reg, base_reg)
    } else {
        (base_reg, entry_reg)
    };
    let (load_at, load) = find_load(entry_reg)?;
    parts.push(load_at);
    scratch |= 1 << (load & 31);
    let width = 1u8 << (load >> 30);
    // How the load extends what it reads: into 64 or 32 bits with sign, or with zeros.
    let load_signed = match load >> 22 & 3 {
        1 => false,
        2 | 3 => true,
        _ => return None,
    };
    // What the sum makes of it: bytes, half-words and words have their extension; x is taken whole.
    let signed = match (extension, width) {
        (0, 1) | (1, 2) | (2, 4) => false,
        (1, 1) | (2, 1 | 2) if !load_signed => false,
        (4, 1) | (5, 2) | (6, 4) => true,
        (3, _) | (5, 1) | (6, 1 | 2) => load_signed,
        _ => return None,
    };
    // A sign that reaches 32 bits only is cut off by an addition of 64.
    if load_signed && load >> 22 & 3 == 3 && !matches!(extension, 4..=6) && width < 8 {
        return None;
    }
    let table_reg = load >> 5 & 31;
    let scaled = load >> 12 & 1 == 1;
    if scaled != (width > 1) {
        return None;
    }
    let index = ((load >> 16 & 31) as u8, (load >> 13 & 7) as u8);
    let mut kept = 0u32;
    let mut address = |reg: u32, at: u64| {
        let mut here = parts.clone();
        match r.address(reg, at, &mut here) {
            Some(address) => {
                parts = here;
                scratch |= 1 << reg;
                Some(address)
            }
            None => {
                kept |= 1 << reg;
                r.far_address(reg, at, &mut formed)
            }
        }
    };
    let base = address(base_reg, sum_at)?;
    let table = address(table_reg, load_at)?;
    parts.push(jump);
    parts.sort_unstable();
    parts.dedup();
    formed.sort_unstable();
    formed.dedup();
    let count = r.count(u32::from(index.0), load_at);
    let scratch = scratch & !kept & 0x7fff_ffff;
    Some(Dispatch {
        table,
        base,
        width,
        signed,
        shift,
        index,
        count,
        parts,
        formed,
        scratch,
    })
}

impl Dispatch {
    /// Where an entry leads.
    pub(crate) fn target(&self, entry: u64) -> u64 {
        let unused = 64 - 8 * u32::from(self.width).min(8);
        let value = if self.signed {
            ((entry << unused) as i64 >> unused) as u64
        } else {
            entry
        };
        self.base.wrapping_add(value << self.shift)
    }

    /// The jump's address.
    pub(crate) fn jump(&self) -> u64 {
        self.parts.last().copied().unwrap_or(0)
    }
}
