//! What registers hold at a place of new code: the lattice of the data flow that judges jump tables of new code's own
//! ([`super::own_tables`]).
//!
//! Of each register is known whether it is an address or a number, or what a claimed load has put there; an upper bound
//! of its low 8, 16, 32 and 64 bits; and whether it is a copy of another's low bits. The flags may hold a
//! comparison. A register that holds something else than in the old program is *foreign*, until it is overwritten; so
//! are flags. Where ways meet, what is known on all of them is known, and what is foreign on one is foreign.

use crate::arch::{Leaves, Left};

const REGISTERS: usize = 32;

/// Something definite in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Address(u64),
    Number(u64),
    /// What the load of this claimed table has loaded.
    Entry(usize),
    /// That and what the table's entries count from.
    Target(usize),
}

/// Upper bounds of the low 8, 16, 32, 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds([u64; 4]);

/// So many ones.
fn ones(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits.clamp(1, 64)))
}

impl Bounds {
    const NONE: Bounds = Bounds([0xff, 0xffff, 0xffff_ffff, u64::MAX]);

    fn slot(bits: u8) -> usize {
        match bits {
            0..=8 => 0,
            9..=16 => 1,
            17..=32 => 2,
            _ => 3,
        }
    }

    fn at_most(number: u64) -> Bounds {
        Bounds([8, 16, 32, 64].map(|bits| number.min(ones(bits))))
    }

    fn of(&self, bits: u8) -> u64 {
        self.0.get(Self::slot(bits)).copied().unwrap_or(u64::MAX)
    }

    /// Takes in that the low bits are at most so much.
    fn take(&mut self, bits: u8, number: u64) {
        if let Some(bound) = self.0.get_mut(Self::slot(bits)) {
            *bound = (*bound).min(number);
        }
        let [byte, half, word, all] = &mut self.0;
        // What fits into fewer bits is those bits.
        both(half, byte, 8);
        both(word, byte, 8);
        both(all, byte, 8);
        both(word, half, 16);
        both(all, half, 16);
        both(all, word, 32);
    }

    fn join(&mut self, other: &Bounds) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = (*a).max(b);
        }
    }
}

/// If bits above a width are zeros, the bound of all and that of the width are the same.
fn both(wide: &mut u64, narrow: &mut u64, bits: u8) {
    if *wide <= ones(bits) {
        let least = (*wide).min(*narrow);
        (*wide, *narrow) = (least, least);
    }
}

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    fact: Option<Fact>,
    bounds: Bounds,
    /// It is the low bits of another register, so many, and zeros.
    copy_of: Option<(u8, u8)>,
}

impl Known {
    const NOTHING: Known = Known {
        fact: None,
        bounds: Bounds::NONE,
        copy_of: None,
    };

    fn at_most(number: u64) -> Known {
        Known {
            bounds: Bounds::at_most(number),
            ..Known::NOTHING
        }
    }
}

/// What is known at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Values {
    registers: [Known; REGISTERS],
    compared: Option<(u8, u8, u64)>,
    /// Registers that hold something else than in the old program, one bit each.
    pub foreign: u32,
    /// Of those: they may hold the address of a table of new code's own in the place of the old one's.
    pub bases: u32,
    /// Of those that are foreign: their low 8 bits hold what they do there.
    pub low: u32,
    /// Flags that do.
    pub foreign_flags: u8,
}

impl Values {
    /// Where it is not known from where control comes.
    pub(super) const ENTERED: Values = Values {
        registers: [Known::NOTHING; REGISTERS],
        compared: None,
        foreign: 0,
        bases: 0,
        low: 0,
        foreign_flags: 0,
    };

    fn known(&self, register: u8) -> Known {
        let known = self.registers.get(usize::from(register));
        known.copied().unwrap_or(Known::NOTHING)
    }

    pub(super) fn fact(&self, register: u8) -> Option<Fact> {
        self.known(register).fact
    }

    /// What a register holds is not above this.
    pub(super) fn most(&self, register: u8) -> u64 {
        self.most_of(register, 64)
    }

    /// So many low bits of it are not.
    pub(super) fn most_of(&self, register: u8, bits: u8) -> u64 {
        self.known(register).bounds.of(bits)
    }

    /// Nothing is known of these registers any more.
    pub(super) fn lose(&mut self, registers: u32) {
        let lost = |register: u8| registers >> register & 1 != 0;
        for (register, known) in (0u8..).zip(&mut self.registers) {
            if lost(register) {
                *known = Known::NOTHING;
            }
            known.copy_of = known.copy_of.filter(|of| !lost(of.0));
        }
        self.compared = self.compared.filter(|c| !lost(c.0));
    }

    pub(super) fn lose_flags(&mut self) {
        self.compared = None;
    }

    /// After an instruction that leaves this.
    pub(super) fn after(&mut self, leaves: &Leaves) {
        let left = leaves.left.map(|(to, left)| (to, self.left(to, left)));
        // Its own low bits stay what they were: so do comparisons and copies of those.
        self.compare_a_copy(leaves.writes);
        let own = match leaves.left {
            Some((to, Left::Low { from, bits })) if to == from => Some((to, bits)),
            _ => None,
        };
        if let Some((to, bits)) = own {
            for known in &mut self.registers {
                known.copy_of = known.copy_of.filter(|of| of.0 != to || of.1 <= bits);
            }
            self.compared = self.compared.filter(|c| c.0 != to || c.1 <= bits);
        } else {
            self.lose(leaves.writes);
        }
        if let Some((to, known)) = left
            && let Some(slot) = self.registers.get_mut(usize::from(to))
        {
            *slot = known;
        }
        if !leaves.keeps_flags {
            self.compared = None;
        }
        if leaves.compares.is_some() {
            self.compared = leaves.compares;
        }
    }

    /// What was compared may be overwritten: then the comparison holds for a copy of as many low bits, or for what it
    /// was a copy of.
    fn compare_a_copy(&mut self, writes: u32) {
        let Some((register, bits, number)) = self.compared else {
            return;
        };
        let stays = |register: u8| writes >> register & 1 == 0;
        if stays(register) {
            return;
        }
        let source = self.known(register).copy_of;
        let source = source
            .filter(|of| of.1 >= bits && stays(of.0))
            .map(|of| of.0);
        let is_copy = |(other, known): &(u8, &Known)| {
            stays(*other) && (known.copy_of).is_some_and(|of| of.0 == register && of.1 >= bits)
        };
        let copy = || (0u8..).zip(&self.registers).find(is_copy).map(|c| c.0);
        if let Some(other) = source.or_else(copy) {
            self.compared = Some((other, bits, number));
        }
    }

    fn left(&self, to: u8, left: Left) -> Known {
        let own = |bits| self.known(to).bounds.of(bits);
        match left {
            Left::Address(a) => Known {
                fact: Some(Fact::Address(a)),
                ..Known::NOTHING
            },
            Left::Number(n) => Known {
                fact: Some(Fact::Number(n)),
                ..Known::at_most(n)
            },
            Left::Low { from, bits } => {
                let mut known = self.known(from);
                if bits < 64 {
                    let bound = known.bounds.of(bits);
                    let narrower = known.bounds;
                    known = Known {
                        fact: match known.fact {
                            Some(Fact::Number(n)) => Some(Fact::Number(n & ones(bits))),
                            _ => None,
                        },
                        copy_of: known.copy_of,
                        ..Known::at_most(bound)
                    };
                    for fewer in [8, 16, 32] {
                        if fewer < bits {
                            known.bounds.take(fewer, narrower.of(fewer));
                        }
                    }
                }
                known.copy_of = if to == from {
                    known.copy_of.map(|(of, n)| (of, n.min(bits)))
                } else {
                    Some((from, bits))
                };
                known
            }
            Left::Signed { from, bits } => {
                let bound = self.known(from).bounds.of(bits);
                if bound <= ones(bits) >> 1 {
                    Known::at_most(bound)
                } else {
                    Known::NOTHING
                }
            }
            Left::And { bits, number } => Known::at_most(own(bits).min(number)),
            Left::Right { bits, by } => {
                Known::at_most(own(bits).checked_shr(by.into()).unwrap_or(0))
            }
            Left::Plus { from, number } => Known {
                fact: match self.fact(from) {
                    Some(Fact::Address(a)) => Some(Fact::Address(a.wrapping_add(number))),
                    Some(Fact::Number(n)) => Some(Fact::Number(n.wrapping_add(number))),
                    _ => None,
                },
                ..Known::NOTHING
            },
            Left::AtMost(n) => Known::at_most(n),
        }
    }

    /// Puts something into a register that is not in it in the old program.
    pub(super) fn put_foreign(&mut self, register: u8, fact: Fact) {
        self.lose(1 << register);
        if let Some(known) = self.registers.get_mut(usize::from(register)) {
            known.fact = Some(fact);
        }
        self.foreign |= 1 << register;
        self.low &= !(1 << register);
        self.bases &= !(1 << register);
    }

    /// A register is known to hold an address, as in the old program.
    pub(super) fn put_address(&mut self, register: u8, address: u64) {
        if let Some(known) = self.registers.get_mut(usize::from(register)) {
            known.fact = Some(Fact::Address(address));
        }
    }

    /// Puts the address of a table into a register that holds another one's in the old program.
    pub(super) fn put_base(&mut self, register: u8, table: u64) {
        self.put_foreign(register, Fact::Address(table));
        self.bases |= 1 << register;
    }

    /// Some registers may hold something else than in the old program, whatever it is.
    pub(super) fn lose_foreign(&mut self, registers: u32) {
        self.lose(registers);
        self.foreign |= registers;
        self.low &= !registers;
        self.bases &= !registers;
    }

    /// The same where a branch on the comparison in the flags has shown this bound of it.
    pub(super) fn branched(&self, most: impl Fn(u64) -> Option<u64>) -> Values {
        let mut values = self.clone();
        if let Some((register, bits, number)) = self.compared
            && let Some(most) = most(number)
        {
            values.bound(register, bits, most);
        }
        values
    }

    /// The low bits of a register are at most so much: so are those of what it is a copy of, and of its copies.
    pub(super) fn bound(&mut self, register: u8, bits: u8, most: u64) {
        self.take(register, bits, most);
        let Some((source, n)) = self.known(register).copy_of else {
            return self.tell_copies(register);
        };
        // Of a copy the low bits are the source's; what is above is not.
        let bits = bits.min(n);
        self.take(source, bits, self.known(register).bounds.of(bits));
        self.tell_copies(register);
        self.tell_copies(source);
    }

    fn take(&mut self, register: u8, bits: u8, most: u64) {
        if let Some(known) = self.registers.get_mut(usize::from(register)) {
            known.bounds.take(bits, most);
        }
    }

    fn tell_copies(&mut self, source: u8) {
        let bounds = self.known(source).bounds;
        for known in &mut self.registers {
            if let Some((_, bits)) = known.copy_of.filter(|of| of.0 == source) {
                known.bounds.take(64, bounds.of(bits));
            }
        }
    }

    /// Takes in what is known on another way. Whether that was news; if it was `again` and again, all about a
    /// register that still changes is given up.
    pub(super) fn join(&mut self, other: &Values, again: bool) -> bool {
        let before = self.clone();
        for (known, other) in self.registers.iter_mut().zip(&other.registers) {
            let was = *known;
            known.fact = known.fact.filter(|f| other.fact == Some(*f));
            known.bounds.join(&other.bounds);
            known.copy_of = known.copy_of.filter(|of| other.copy_of == Some(*of));
            if again && *known != was {
                *known = Known::NOTHING;
            }
        }
        self.compared = self.compared.filter(|c| other.compared == Some(*c));
        // What is not foreign has its low bits as well.
        self.low = (self.low | !self.foreign) & (other.low | !other.foreign);
        self.foreign |= other.foreign;
        self.bases |= other.bases;
        self.low &= self.foreign;
        self.foreign_flags |= other.foreign_flags;
        *self != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(to: u8, left: Left) -> Leaves {
        Leaves {
            writes: 1 << to,
            left: Some((to, left)),
            compares: None,
            keeps_flags: true,
            low: 0,
            wide: 0,
        }
    }

    fn compares(register: u8, bits: u8, number: u64) -> Leaves {
        Leaves {
            writes: 0,
            left: None,
            compares: Some((register, bits, number)),
            keeps_flags: false,
            low: 0,
            wide: 0,
        }
    }

    #[test]
    fn a_comparison_bounds_what_is_copied_afterwards_and_before() {
        let mut v = Values::ENTERED;
        // mov eax,edi; cmp edi,9; (not above); mov edx,edi
        v.after(&leaves(0, Left::Low { from: 7, bits: 32 }));
        v.after(&compares(7, 32, 9));
        let mut v = v.branched(Some);
        assert_eq!(v.most(0), 9);
        assert_eq!(v.most(7), u64::MAX);
        v.after(&leaves(2, Left::Low { from: 7, bits: 32 }));
        assert_eq!(v.most(2), 9);
    }

    #[test]
    fn bits_that_are_not_compared_are_not_bounded() {
        // movzx eax,byte; cmp al,5 bounds all of eax; without the movzx it does not.
        let mut v = Values::ENTERED;
        v.after(&compares(0, 8, 5));
        assert_eq!(v.branched(Some).most(0), u64::MAX);
        v.after(&leaves(0, Left::AtMost(255)));
        v.after(&compares(0, 8, 5));
        assert_eq!(v.branched(Some).most(0), 5);
        // movzx eax,dl; cmp eax,5 bounds dl, not edx.
        let mut v = Values::ENTERED;
        v.after(&leaves(0, Left::Low { from: 2, bits: 8 }));
        v.after(&compares(0, 32, 5));
        let v = v.branched(Some);
        assert_eq!((v.most(0), v.most(2)), (5, u64::MAX));
    }

    #[test]
    fn what_is_written_in_between_is_not_bounded() {
        let mut v = Values::ENTERED;
        v.after(&compares(0, 64, 5));
        v.after(&leaves(0, Left::AtMost(u64::MAX)));
        assert_eq!(v.branched(Some).most(0), u64::MAX);
        // A negative number has ones above.
        let mut v = Values::ENTERED;
        v.after(&leaves(0, Left::AtMost(0xffff_ffff)));
        v.after(&leaves(0, Left::Signed { from: 0, bits: 32 }));
        assert_eq!(v.most(0), u64::MAX);
    }

    #[test]
    fn what_was_compared_may_be_overwritten_where_a_copy_is_left() {
        // mov w8, w0; cmp w0, 19; mov w0, w1; (not above)
        let mut v = Values::ENTERED;
        v.after(&leaves(8, Left::Low { from: 0, bits: 32 }));
        v.after(&compares(0, 32, 19));
        v.after(&leaves(0, Left::Low { from: 1, bits: 32 }));
        let w = v.branched(Some);
        assert_eq!((w.most(8), w.most(0)), (19, 0xffff_ffff));
        // The copy is of fewer bits than are compared, or overwritten as well.
        let mut v = Values::ENTERED;
        v.after(&leaves(8, Left::Low { from: 0, bits: 16 }));
        v.after(&compares(0, 32, 19));
        v.after(&leaves(0, Left::AtMost(u64::MAX)));
        assert_eq!(v.branched(Some).most(8), 0xffff);
        let mut v = Values::ENTERED;
        v.after(&leaves(8, Left::Low { from: 0, bits: 32 }));
        v.after(&compares(0, 32, 19));
        v.after(&leaves(8, Left::AtMost(u64::MAX)));
        v.after(&leaves(0, Left::AtMost(u64::MAX)));
        assert_eq!(v.branched(Some).most(8), u64::MAX);
    }

    #[test]
    fn where_ways_meet_the_least_is_known() {
        let mut a = Values::ENTERED;
        a.after(&leaves(3, Left::Address(0x10)));
        a.after(&leaves(0, Left::Number(4)));
        let mut b = a.clone();
        b.after(&leaves(0, Left::Number(7)));
        b.put_foreign(1, Fact::Entry(0));
        assert!(a.join(&b, false));
        assert!(!a.join(&b, false));
        assert_eq!(a.fact(3), Some(Fact::Address(0x10)));
        assert_eq!((a.fact(0), a.most(0)), (None, 7));
        assert_eq!((a.fact(1), a.foreign), (None, 2));
    }
}
