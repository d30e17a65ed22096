//! Where in a long ascending list of addresses an address is.
//!
//! Millions of branches and pointers are looked up among the starts of hundreds of thousands of pieces, each a search
//! in some eighteen steps that no processor predicts. A directory says for each range of 256 addresses where in the
//! list its addresses begin, so that few are left to look at: 16 bytes for each kilobyte of code.

/// Bytes that have one entry, as a power of two.
const SHIFT: u32 = 8;

/// The directory of an ascending list of addresses.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// The first address of the list.
    first: u64,
    /// By range from there: how many addresses are in front of it; and one more. Empty where the list is too sparse.
    ranges: Vec<u32>,
}

impl Directory {
    /// Of a list.
    pub fn new(list: &[u64]) -> Directory {
        /// More ranges than this for each address are not worth their space.
        const SPARSE: u64 = 64;
        let (Some(first), Some(last)) = (list.first().copied(), list.last()) else {
            return Directory::default();
        };
        let count = ((last - first) >> SHIFT) + 1;
        if count / SPARSE > list.len() as u64 || u32::try_from(list.len()).is_err() {
            return Directory::default();
        }
        let mut ranges = Vec::with_capacity(count as usize + 1);
        for (number, address) in (0u32..).zip(list) {
            let range = ((address - first) >> SHIFT) as usize;
            while ranges.len() <= range {
                ranges.push(number);
            }
        }
        ranges.push(list.len() as u32);
        Directory { first, ranges }
    }

    /// How many addresses of the list, which is the one that this is a directory of, are not above an address.
    pub fn up_to(&self, list: &[u64], address: u64) -> usize {
        let Some(distance) = address.checked_sub(self.first) else {
            return 0;
        };
        let range = (distance >> SHIFT) as usize;
        let Some(&[from, to]) = self.ranges.get(range..).and_then(|r| r.first_chunk()) else {
            return list.partition_point(|start| *start <= address);
        };
        let (from, to) = (from as usize, to as usize);
        from + list[from..to].partition_point(|start| *start <= address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &[u64]) {
        let directory = Directory::new(list);
        let near = list
            .iter()
            .flat_map(|a| (0..4).map(move |d| a.wrapping_add(d).wrapping_sub(2)));
        for address in near.chain([0, 1, 255, 256, 1 << 40, u64::MAX]) {
            let expected = list.partition_point(|start| *start <= address);
            assert_eq!(
                directory.up_to(list, address),
                expected,
                "{address:#x} in {list:x?}"
            );
        }
    }

    #[test]
    fn it_finds_what_a_search_finds() {
        check(&[]);
        check(&[0]);
        check(&[7, 7, 8]);
        check(&[0x1000, 0x10ff, 0x1100, 0x1101, 0x1300, 0x2000]);
        check(&[u64::MAX - 3, u64::MAX]);
        check(&[5, 1 << 50]);
        let many: Vec<u64> = (0..2000u64)
            .map(|i| 0x40_0000 + i * i % 977 + i * 31)
            .collect();
        let mut many = many;
        many.sort_unstable();
        check(&many);
    }
}
