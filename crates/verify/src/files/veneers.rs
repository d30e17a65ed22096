//! Code without the veneers for erratum 843419 of Cortex-A53, which linkers make for AArch64.
//!
//! In the place of a load or store is a branch to a veneer: the load or store, and a branch back behind the first one.
//! Control that takes the branch does what it would do with the load or store in its place, and comes to the same place
//! with the same state. So both files are read as if it were there. In the output only where branch and veneer are what
//! they are in the input; what is written elsewhere is compared with what the input was made of.
//!
//! Nothing is moved by this that is no load or store with an unsigned offset, whose base register an `adrp` in one of
//! the last two words of a page has formed 8 or 12 bytes in front: other pairs of branches are read as they are.

use crate::arch::Arch;
use crate::arch::aarch64::AArch64;
use crate::files::bytes::u32_in;
use crate::files::elf::Elf;

/// A load or store that was moved into a veneer.
#[derive(Debug)]
struct Moved {
    /// Where a branch to the veneer is.
    branch: u64,
    /// The veneer.
    veneer: u64,
}

/// Where a direct branch leads.
fn target(word: u32, at: u64) -> Option<u64> {
    let words = i64::from(word as i32) << 38 >> 38;
    (word & 0xfc00_0000 == 0x1400_0000).then(|| at.wrapping_add_signed(4 * words))
}

fn word(elf: &Elf<'_>, at: u64) -> Option<u32> {
    u32_in(elf.bytes(at, 4)?, 0)
}

/// The veneer for what was at `at`, if there is one.
fn moved(elf: &Elf<'_>, page: u64, at: u64) -> Option<Moved> {
    let veneer = target(word(elf, at)?, at)?;
    let back = veneer.checked_add(4)?;
    let returns = target(word(elf, back)?, back)? == at.checked_add(4)?;
    let (forms, uses) = (word(elf, page)?, word(elf, veneer)?);
    let is_page = forms & 0x9f00_0000 == 0x9000_0000;
    let is_use = uses & 0x3b00_0000 == 0x3900_0000 && uses >> 5 & 31 == forms & 31;
    (returns && is_page && is_use).then_some(Moved { branch: at, veneer })
}

fn all_moved(elf: &Elf<'_>) -> Vec<Moved> {
    let mut all = Vec::new();
    if elf.machine != AArch64::MACHINE {
        return all;
    }
    for section in elf.sections.iter().filter(|s| s.is_code()) {
        let first = section.addr >> 12;
        for page in first..=section.end() >> 12 {
            let last = [0xff8, 0xffc].map(|word| page << 12 | word);
            let places = last
                .iter()
                .flat_map(|adrp| [8, 12].map(|by| (*adrp, adrp + by)));
            all.extend(places.filter_map(|(adrp, at)| {
                let is_there = section.addr <= at && at < section.end();
                moved(elf, adrp, at).filter(|_| is_there)
            }));
        }
    }
    all
}

/// The file's bytes with the loads and stores in their places; `None` if it is read as it is.
fn restored<'m>(elf: &Elf<'_>, moved: impl Iterator<Item = &'m Moved>) -> Option<Vec<u8>> {
    let mut code: Option<Vec<u8>> = None;
    for m in moved {
        let (from, to) = (elf.offset_of(m.veneer)?, elf.offset_of(m.branch)?);
        let code = code.get_or_insert_with(|| elf.data.to_vec());
        code.copy_within(from..from.checked_add(4)?, to);
    }
    code
}

/// The input's veneers, and its code without them.
#[derive(Debug)]
pub(crate) struct Veneers {
    all: Vec<Moved>,
    code: Option<Vec<u8>>,
}

impl Veneers {
    pub(crate) fn of(old: &Elf<'_>) -> Veneers {
        let all = all_moved(old);
        let code = restored(old, all.iter());
        Veneers { all, code }
    }

    /// The input's code; `None` if it is read as it is.
    pub(crate) fn code(&self) -> Option<&[u8]> {
        self.code.as_deref()
    }

    /// The output's code, likewise. Both files are still read as they are.
    pub(crate) fn of_output(&self, old: &Elf<'_>, new: &Elf<'_>) -> Option<Vec<u8>> {
        let is_same = |at: u64, len: u64| {
            let bytes = old.bytes(at, len);
            bytes.is_some() && bytes == new.bytes(at, len)
        };
        let is_left = |m: &&Moved| is_same(m.branch, 4) && is_same(m.veneer, 8);
        restored(new, self.all.iter().filter(is_left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_branches_are_read() {
        assert_eq!(target(0x1400_0002, 0x1000), Some(0x1008));
        assert_eq!(target(0x17ff_ffff, 0x1000), Some(0xffc));
        assert_eq!(target(0x1600_0000, 1 << 40), Some((1 << 40) - (1 << 27)));
        assert_eq!(target(0x9400_0002, 0x1000), None);
    }
}
