//! Jumps through tables, as compilers write them.
//!
//! The code before the jump is read backwards: the jump's register is a sum of a base and an entry, the entry comes out of memory at
//! a table plus an index, and base and table are addresses formed in sight. In gcc's form and in two of clang's:
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
//! The number of entries comes from a comparison of the index with a constant whose branch leaves when the index is larger. Without
//! one in sight the caller must bound the table in another way.

use super::super::Dispatch;
use super::{registers, target};
use smallvec::SmallVec;

/// How far back is looked.
const REACH: u64 = 32;

/// Where a register got its value: the address of the instruction, and the instruction.
type Definition = (u64, u32);

struct Reader<'c> {
    code: &'c dyn Fn(u64) -> Option<u32>,
    jump: u64,
}

impl Reader<'_> {
    /// The instruction before `at` that last wrote `reg`, in straight code. Calls and jumps end the search.
    fn definition(&self, reg: u32, at: u64) -> Option<Definition> {
        let mut here = at;
        while self.jump - here < 4 * REACH {
            here = here.checked_sub(4)?;
            let w = (self.code)(here)?;
            let touched = registers::touched(w)?;
            if touched.kills >> reg & 1 != 0 {
                return Some((here, w));
            }
            // What changes the register in part, and what control does not come through.
            let leaves = w & 0x7c00_0000 == 0x1400_0000 || w & 0xfe00_0000 == 0xd600_0000 || w >> 24 == 0xd4;
            let touches = touched.writes >> reg & 1 != 0;
            if touches || leaves {
                return None;
            }
        }
        None
    }

    /// The address that a register holds before `at`, and the instructions that formed it.
    fn address(&self, reg: u32, at: u64, parts: &mut SmallVec<[u64; 8]>) -> Option<u64> {
        let (here, w) = self.definition(reg, at)?;
        parts.push(here);
        if w & 0x9f00_0000 == 0x1000_0000 {
            return Some(target(w, here));
        }
        if w & 0xff80_0000 == 0x9100_0000 {
            let (page_at, page) = self.definition(w >> 5 & 31, here)?;
            if page & 0x9f00_0000 != 0x9000_0000 {
                return None;
            }
            parts.push(page_at);
            let number = u64::from(w >> 10 & 0xfff) << if w >> 22 & 1 == 0 { 0 } else { 12 };
            return Some(target(page, page_at).wrapping_add(number));
        }
        None
    }

    /// Number of entries by `cmp index, #n` before the first part, with a branch that leaves for larger ones.
    fn count(&self, index: u32, load: u64) -> Option<u64> {
        let mut here = load;
        let mut over: Option<u32> = None;
        while self.jump - here < 4 * REACH {
            here = here.checked_sub(4)?;
            let w = (self.code)(here)?;
            if w >> 24 == 0x54 && over.is_none() {
                over = Some(w & 15);
            } else if w & 0x7f80_0000 == 0x7100_0000 && w & 31 == 31 && w >> 5 & 31 == index {
                let n = u64::from(w >> 10 & 0xfff) << if w >> 22 & 1 == 0 { 0 } else { 12 };
                return match over? {
                    // hi leaves above n; cs leaves at n; ls and cc jump here, from elsewhere.
                    8 => n.checked_add(1),
                    2 => Some(n),
                    _ => None,
                };
            }
            let touched = registers::touched(w)?;
            let leaves = w & 0x7c00_0000 == 0x1400_0000 || w & 0xfe00_0000 == 0xd600_0000;
            // Flags that were set since are those of another comparison.
            let flags = (w & 0x1f00_0000 == 0x1100_0000 || w & 0x1f00_0000 == 0x0b00_0000) && w >> 29 & 1 == 1
                || w & 0x7f80_0000 == 0x7200_0000
                || w & 0x7f20_0000 == 0x6a00_0000
                || w & 0x1fe0_0000 == 0x1a40_0000;
            if touched.kills >> index & 1 != 0 || leaves || flags && over.is_some() {
                return None;
            }
        }
        None
    }
}

/// Reads the dispatch that ends with the jump at `jump`.
pub(super) fn read(jump: u64, code: &dyn Fn(u64) -> Option<u32>) -> Option<Dispatch> {
    let r = Reader { code, jump };
    let w = code(jump)?;
    if w & 0xffff_fc1f != 0xd61f_0000 {
        return None;
    }
    let mut parts: SmallVec<[u64; 8]> = SmallVec::new();
    let mut scratch = 0u32;
    let (sum_at, sum) = r.definition(w >> 5 & 31, jump)?;
    parts.push(sum_at);
    scratch |= 1 << (sum & 31);
    // add x, base, entry {, extension #shift}
    let (extension, shift) = if sum & 0xffe0_0000 == 0x8b20_0000 {
        ((sum >> 13 & 7) as u8, (sum >> 10 & 7) as u8)
    } else if sum & 0xffe0_0000 == 0x8b00_0000 {
        (3, (sum >> 10 & 63) as u8)
    } else {
        return None;
    };
    let (base_reg, entry_reg) = (sum >> 5 & 31, sum >> 16 & 31);
    let find_load = |reg: u32| r.definition(reg, sum_at).filter(|(_, l)| l & 0x3b20_0c00 == 0x3820_0800 && l >> 26 & 1 == 0);
    // Without an extension the sum may be written either way round.
    let (base_reg, entry_reg) =
        if find_load(entry_reg).is_none() && extension == 3 && shift == 0 { (entry_reg, base_reg) } else { (base_reg, entry_reg) };
    let (load_at, load) = find_load(entry_reg)?;
    parts.push(load_at);
    scratch |= 1 << (load & 31) | 1 << base_reg;
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
    scratch |= 1 << table_reg;
    let scaled = load >> 12 & 1 == 1;
    if scaled != (width > 1) {
        return None;
    }
    let index = ((load >> 16 & 31) as u8, (load >> 13 & 7) as u8);
    let base = r.address(base_reg, sum_at, &mut parts)?;
    let table = r.address(table_reg, load_at, &mut parts)?;
    parts.push(jump);
    parts.sort_unstable();
    parts.dedup();
    let count = r.count(u32::from(index.0), load_at);
    Some(Dispatch { table, base, width, signed, shift, index, count, parts, scratch: scratch & 0x7fff_ffff })
}

impl Dispatch {
    /// Where an entry leads.
    pub(crate) fn target(&self, entry: u64) -> u64 {
        let unused = 64 - 8 * u32::from(self.width).min(8);
        let value = if self.signed { ((entry << unused) as i64 >> unused) as u64 } else { entry };
        self.base.wrapping_add(value << self.shift)
    }
}
