//! What compilers put into the discriminators of line tables.
//!
//! A discriminator tells apart code of one source line. 32 bits carry one of three things:
//!
//! | low three bits | content |
//! |---|---|
//! | 111, the rest not 0 | a call probe: index in bits 3–18 (bits 3–15 when bit 28 is set; bits 16–18 are then the base discriminator), bits 19–25 distribution factor in percent |
//! | anything else | base, duplication factor and copy, each with a prefix code |
//! | anything, in a file with flow-sensitive discriminators | one number, to be used whole |
//!
//! A component with a prefix code is one set bit, which means 0; or a clear bit, five bits of value, and a
//! bit that says whether seven more bits of value follow.

/// A discriminator as the line table has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Discriminator(pub u32);

impl Discriminator {
    /// Whether it is a call probe.
    pub fn is_probe(self) -> bool {
        self.0 & 7 == 7 && self.0 & !7 != 0
    }

    /// Whether a call probe carries a base discriminator too.
    fn has_base(self) -> bool {
        self.0 >> 28 & 1 != 0
    }

    /// Index of the call probe; 0 if it is none.
    pub fn probe_index(self) -> u32 {
        match (self.is_probe(), self.has_base()) {
            (false, _) => 0,
            (true, false) => self.0 >> 3 & 0xffff,
            (true, true) => self.0 >> 3 & 0x1fff,
        }
    }

    /// What tells apart the source's parts of a line. `flow_sensitive`: the file has flow-sensitive discriminators.
    pub fn base(self, flow_sensitive: bool) -> u32 {
        if flow_sensitive {
            self.0
        } else if !self.is_probe() {
            self.component(0)
        } else if self.has_base() {
            self.0 >> 16 & 7
        } else {
            self.probe_index()
        }
    }

    /// How many copies the optimiser has made of the code: a count of one copy represents this many times itself.
    pub fn duplication(self, flow_sensitive: bool) -> u32 {
        if flow_sensitive || self.is_probe() {
            1
        } else {
            self.component(1).max(1)
        }
    }

    /// A component by number.
    fn component(self, number: u32) -> u32 {
        let mut rest = self.0;
        for _ in 0..number {
            rest = match rest & 1 {
                1 => rest >> 1,
                _ if rest >> 6 & 1 != 0 => rest >> 14,
                _ => rest >> 7,
            };
        }
        if rest & 1 == 1 {
            return 0;
        }
        let rest = rest >> 1;
        let low = rest & 0x1f;
        match rest & 0x20 {
            0 => low,
            _ => low | rest >> 1 & 0xfe0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(components: &[u32]) -> Discriminator {
        let (mut value, mut at) = (0, 0);
        for &component in components {
            let (bits, len) = match component {
                0 => (1, 1),
                1..32 => (component << 1, 7),
                _ => (
                    (component & 0x1f | 0x20 | (component & 0xfe0) << 1) << 1,
                    14,
                ),
            };
            value |= bits << at;
            at += len;
        }
        Discriminator(value)
    }

    #[test]
    fn components_come_out_as_they_went_in() {
        for base in [0, 1, 31, 32, 100, 0xfff] {
            for factor in [0, 2, 31, 77] {
                let discriminator = encoded(&[base, factor]);
                assert_eq!(discriminator.base(false), base);
                assert_eq!(discriminator.duplication(false), factor.max(1));
                assert_eq!(discriminator.base(true), discriminator.0);
                assert_eq!(discriminator.duplication(true), 1);
            }
        }
    }

    #[test]
    fn call_probes_are_told_from_other_discriminators() {
        let plain = Discriminator(9 << 3 | 7 | 100 << 19);
        assert_eq!((plain.probe_index(), plain.base(false)), (9, 9));
        let with_base = Discriminator(9 << 3 | 7 | 5 << 16 | 1 << 28);
        assert_eq!((with_base.probe_index(), with_base.base(false)), (9, 5));
        assert_eq!(Discriminator(7).probe_index(), 0);
        assert_eq!(Discriminator(8).probe_index(), 0);
    }
}
