//! Where the indirect jumps of one function go.
//!
//! A jump names its table ([`JumpShape`]), or the table is one of those whose address the function forms. A
//! table continues as long as its entries lead to instructions of the function, and ends where the next begins.
//! Where the linker kept relocations, a jump without a table may go to every place in the function that data
//! refers to.

use postlink_bolt_symbols::fragment_of;
use postlink_elf::raw;
use postlink_isa::{Flow, Insn, Isa, JumpShape};

use super::references::Found;
use super::{Code, Decoded, Kind, sorted};

/// No table is longer.
const MAX_TABLE: usize = 1 << 16;
/// Instructions before an indirect jump that are looked at.
const PATH: usize = 64;

/// An indirect jump and its possible targets, as offsets.
pub(super) type Targets = (u32, Vec<u32>);

/// The indirect jumps of one function.
pub(super) struct Jumps<'a, 'd> {
    code: Code<'a, 'd>,
    decoded: &'a Decoded,
    /// What relocations say; read only if there is an indirect jump.
    found: Option<&'a Found>,
}

impl<'a, 'd> Jumps<'a, 'd> {
    pub(super) fn new(code: Code<'a, 'd>, decoded: &'a Decoded) -> Jumps<'a, 'd> {
        let references = code.around.references;
        let found = decoded.indirect.then(|| references.found(code.around.elf));
        Jumps {
            code,
            decoded,
            found: found.flatten(),
        }
    }

    /// Targets of all indirect jumps, in the order of the code; each target becomes a label.
    pub(super) fn targets<I: Isa>(&self, labels: &mut Vec<u32>) -> Vec<Targets> {
        let mut all = vec![];
        for (index, item) in self.decoded.items.iter().enumerate() {
            if item.kind != Kind::Indirect {
                continue;
            }
            let mut list = self.of_table::<I>(index);
            if list.is_empty()
                && let Some(found) = self.found
                && self.may_stay(index, labels)
            {
                list = self.referred_to(found);
            }
            let list = sorted(list);
            if !list.is_empty() {
                labels.extend(&list);
                *labels = sorted(std::mem::take(labels));
            }
            all.push((item.at, list));
        }
        all
    }

    /// Every place in the function that data refers to.
    fn referred_to(&self, found: &Found) -> Vec<u32> {
        let all = &found.into_code;
        let from = all.partition_point(|&at| at < self.code.function.start);
        let rest = all.get(from..).unwrap_or_default().iter();
        rest.take_while(|&&at| self.code.contains(at))
            .map(|&at| self.code.offset(at))
            .collect()
    }

    /// Whether an indirect jump without a table may go to places in its function.
    fn may_stay(&self, index: usize, labels: &[u32]) -> bool {
        let Some(jump) = self.decoded.insns.get(index) else {
            return false;
        };
        // Through memory at a fixed place: a slot that is filled at run time.
        if jump.field.is_some() {
            return false;
        }
        let at = self.code.offset(jump.addr);
        let block = labels.partition_point(|&label| label <= at);
        let block = block.checked_sub(1).and_then(|before| labels.get(before));
        let block = block.copied().unwrap_or(0);
        let mut own = self
            .path(index)
            .iter()
            .filter(|insn| self.code.offset(insn.addr) >= block);
        !own.any(|insn| is_epilogue(self.bytes_of(insn)))
    }

    /// The straight-line code that ends with an indirect jump.
    fn path(&self, index: usize) -> &[Insn] {
        let insns = &self.decoded.insns;
        let first = index.saturating_sub(PATH);
        let from = (first..index)
            .rev()
            .find(|&at| {
                insns.get(at).is_some_and(|insn| {
                    matches!(
                        insn.flow,
                        Flow::Jump { .. } | Flow::IndirectJump | Flow::Return | Flow::Stop
                    )
                })
            })
            .map_or(first, |at| at + 1);
        insns.get(from..=index).unwrap_or_default()
    }

    fn bytes_of(&self, insn: &Insn) -> &'d [u8] {
        let at = self.code.offset(insn.addr) as usize;
        let bytes = self.code.bytes.get(at..at + usize::from(insn.len));
        bytes.unwrap_or_default()
    }

    /// Targets of an indirect jump by its table; empty if that cannot be found.
    fn of_table<I: Isa>(&self, index: usize) -> Vec<u32> {
        let shape = I::jump_shape(self.path(index), |insn| self.bytes_of(insn));
        match shape {
            JumpShape::Relative {
                table: Some(table),
                width,
            } => self.relative(table, u64::from(width)),
            JumpShape::Absolute { table: Some(table) } => self.absolute(table),
            // The table's address was formed elsewhere: it is one of those that the function forms.
            JumpShape::Relative { table: None, .. } | JumpShape::Unknown
                if self
                    .decoded
                    .insns
                    .get(index)
                    .is_some_and(|jump| jump.field.is_none()) =>
            {
                let bases = self.decoded.bases.iter();
                bases.flat_map(|&base| self.relative(base, 4)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Where an entry of a table leads: an offset; `Some(None)` just after the function, which is never
    /// reached, and to a part of the function that was split off. `None` if it is no entry.
    fn target(&self, address: u64) -> Option<Option<u32>> {
        let function = &self.code.function;
        if address.checked_sub(function.start) == Some(function.size) {
            return Some(None);
        }
        if !self.code.contains(address) {
            return self.is_in_part(address).then_some(None);
        }
        let offset = self.code.offset(address);
        let items = &self.decoded.items;
        let is_insn = items.binary_search_by_key(&offset, |item| item.at).is_ok();
        is_insn.then_some(Some(offset))
    }

    /// Whether an address is in a part that was split off the function, or in the function that it was split off.
    fn is_in_part(&self, address: u64) -> bool {
        let functions = self.code.around.functions;
        let names = |index: Option<usize>| index.map_or(&[][..], |index| functions.names_of(index));
        let own = names(functions.at(self.code.function.start));
        let others = names(functions.at(address));
        own.iter().any(|own| {
            others.iter().any(|other| {
                fragment_of(other.base()) == Some(own.base())
                    || fragment_of(own.base()) == Some(other.base())
            })
        })
    }

    /// Where tables begin: no table continues there.
    fn begins_table(&self, address: u64) -> bool {
        let bases = self.found.map_or(&self.decoded.bases, |found| &found.bases);
        bases.binary_search(&address).is_ok()
    }

    /// The entries of a table; `read` gives the place of each by its number, and the address it holds.
    fn entries(&self, read: impl Fn(u64) -> Option<(u64, u64)>) -> Vec<u32> {
        let (mut list, mut special) = (Vec::new(), 0);
        let mut real = 0;
        for index in 0..MAX_TABLE as u64 {
            let Some((place, address)) = read(index) else {
                break;
            };
            // The next table begins.
            if index > 0 && self.begins_table(place) {
                break;
            }
            match self.target(address) {
                Some(Some(0)) => {
                    special = 1;
                    list.push(0);
                }
                Some(Some(offset)) => {
                    real += 1;
                    list.push(offset);
                }
                Some(None) => special = 1,
                None => break,
            }
        }
        if real + special < 2 {
            list.clear();
        }
        list
    }

    fn relative(&self, table: u64, width: u64) -> Vec<u32> {
        let elf = self.code.around.elf;
        let data = elf
            .section_at(table)
            .is_some_and(|(_, s)| s.flags & raw::SHF_WRITE == 0 && s.has_contents());
        if !data {
            return Vec::new();
        }
        self.entries(|index| {
            let place = table.checked_add(width * index)?;
            let value = match elf.bytes_at(place, width)? {
                bytes if width == 8 => u64::from_le_bytes(bytes.try_into().ok()?),
                bytes => i32::from_le_bytes(bytes.try_into().ok()?) as u64,
            };
            Some((place, table.wrapping_add(value)))
        })
    }

    fn absolute(&self, table: u64) -> Vec<u32> {
        self.entries(|index| {
            let place = table.checked_add(8 * index)?;
            Some((place, self.code.around.elf.u64_at(place)?))
        })
    }
}

/// `pop` or `leave`.
fn is_epilogue(insn: &[u8]) -> bool {
    matches!(
        insn,
        [0x58..=0x5f] | [0x40..=0x4f, 0x58..=0x5f] | [0xc9] | [0x8f, ..]
    )
}
