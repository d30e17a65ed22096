//! What registers hold at places of a function, as far as it bounds the index of a jump table or is a table's address.
//!
//! Data flow forwards over the function's own code. Of each register is known what it is, if it is a constant or what
//! a table load or the addition after it left; the largest value of its low 8, 16, 32 and 64 bits; and of which other
//! register it is a copy, so that a comparison of one bounds the other. A comparison whose outcome is in the flags
//! bounds its register on the ways out of the branch that looks at them. Calls leave the registers alone that the
//! procedure call standard says (the checker counts that as assumption A5). Nothing is known of memory.
//!
//! At joins the less is kept. The numbers in it come from instructions, so there are few, but loops could make them
//! rise one by one: after some visits what still changes is given up.

use postlink_isa::{Compares, Sets, Values};

/// Registers.
const REGISTERS: usize = 32;
/// Widths by which largest values are known.
const WIDTHS: [u8; 4] = [8, 16, 32, 64];

/// What a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Anything.
    Any,
    /// An address of the file.
    Address(u64),
    /// In new code, where that is decided: a table of its own in the place of the one at this address.
    Base(u64),
    /// This number.
    Number(u64),
    /// What the load with this number loaded from a table.
    Entry(u32),
    /// What one of these two did, the smaller number first: a dispatch that is shared has one in front of the loop.
    Either(u32, u32),
    /// The same, added to this address.
    Target(u32, u64),
}

impl What {
    fn join(self, other: What) -> What {
        match (self, other) {
            (a, b) if a == b => a,
            (What::Entry(a), What::Entry(b)) => What::Either(a.min(b), a.max(b)),
            (What::Either(a, b), What::Entry(c)) | (What::Entry(c), What::Either(a, b))
                if c == a || c == b =>
            {
                What::Either(a, b)
            }
            _ => What::Any,
        }
    }
}

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub what: What,
    /// By width: the largest value of so many low bits.
    most: [u64; 4],
    /// It is the low bits, so many, of another register, and zeros.
    copy: Option<(u8, u8)>,
}

/// All ones in so many bits.
fn mask(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits))
}

/// The place of a width.
fn place(bits: u8) -> usize {
    WIDTHS.iter().position(|w| *w == bits).unwrap_or(3)
}

impl Value {
    const ANY: Value = Value {
        what: What::Any,
        most: [0xff, 0xffff, 0xffff_ffff, u64::MAX],
        copy: None,
    };

    /// A number that is not above `most`.
    fn below(most: u64) -> Value {
        Value {
            most: WIDTHS.map(|w| most.min(mask(w))),
            ..Value::ANY
        }
    }

    /// The largest value of so many low bits.
    pub fn most_of(&self, bits: u8) -> u64 {
        self.most[place(bits)]
    }

    /// Brings the largest values of several widths together.
    fn settle(&mut self) {
        for wide in 1..4 {
            for narrow in 0..wide {
                // The bits above are zeros.
                if self.most[wide] <= mask(WIDTHS[narrow]) {
                    let least = self.most[wide].min(self.most[narrow]);
                    self.most[wide] = least;
                    self.most[narrow] = least;
                }
            }
        }
    }

    fn join(&self, other: &Value) -> Value {
        let mut both = *self;
        both.what = self.what.join(other.what);
        for (a, b) in both.most.iter_mut().zip(other.most) {
            *a = (*a).max(b);
        }
        both.copy = self.copy.filter(|c| other.copy == Some(*c));
        both
    }
}

/// What is known of all registers at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    registers: [Value; REGISTERS],
    flags: Option<Compares>,
    /// Registers that may hold a [`What::Base`], one bit each.
    pub based: u32,
}

impl State {
    /// Where nothing is known.
    pub const ENTERED: State = State {
        registers: [Value::ANY; REGISTERS],
        flags: None,
        based: 0,
    };

    pub fn get(&self, register: u8) -> Value {
        let value = self.registers.get(usize::from(register));
        value.copied().unwrap_or(Value::ANY)
    }

    /// Gives a register a value that is known otherwise.
    pub fn put(&mut self, register: u8, what: What) {
        self.forget(1 << register);
        if let Some(value) = self.registers.get_mut(usize::from(register)) {
            value.what = what;
        }
        if matches!(what, What::Base(_)) {
            self.based |= 1 << register;
        }
    }

    /// Nothing is known any more of some registers.
    pub fn forget(&mut self, registers: u32) {
        self.based &= !registers;
        for (n, value) in (0u8..).zip(&mut self.registers) {
            if registers >> n & 1 != 0 {
                *value = Value::ANY;
            } else if value.copy.is_some_and(|c| registers >> c.0 & 1 != 0) {
                value.copy = None;
            }
        }
        if self.flags.is_some_and(|f| registers >> f.register & 1 != 0) {
            self.flags = None;
        }
    }

    /// Nothing is known any more of the flags.
    pub fn forget_flags(&mut self) {
        self.flags = None;
    }

    /// After an instruction.
    pub fn step(&mut self, values: &Values) {
        let set = values.sets.map(|sets| self.set(sets));
        // What has zeros above the bits that it keeps is as good a copy as before of those.
        let cut = match values.sets {
            Some(Sets::Copy { to, from, bits }) if to == from => Some((to, bits)),
            _ => None,
        };
        // Where what was compared is overwritten, a copy of it may be left.
        let flags = self.flags.map(|f| match cut {
            None if values.writes >> f.register & 1 != 0 => self.compared_copy(f, values.writes),
            _ => f,
        });
        let flags = flags.filter(|f| match cut {
            Some((register, bits)) if f.register == register => f.bits <= bits,
            _ => values.writes >> f.register & 1 == 0,
        });
        match cut {
            None => self.forget(values.writes),
            Some((register, bits)) => {
                for value in &mut self.registers {
                    if let Some(copy) = &mut value.copy
                        && copy.0 == register
                        && copy.1 > bits
                    {
                        value.copy = None;
                    }
                }
            }
        }
        self.flags = flags.filter(|_| values.keeps_flags);
        if let Some((to, value)) = set
            && let Some(slot) = self.registers.get_mut(usize::from(to))
        {
            *slot = value;
        }
        if values.compares.is_some() {
            self.flags = values.compares;
        }
    }

    /// A comparison as one of a copy that is not among some registers, of as many bits, or of what it is a copy of; the
    /// same if there is none.
    fn compared_copy(&self, f: Compares, but: u32) -> Compares {
        let stays = |register: u8| but >> register & 1 == 0;
        let of = |register: u8, value: &Value| {
            let (from, bits) = value.copy?;
            (from == f.register && bits >= f.bits && stays(register)).then_some(register)
        };
        let source = self.get(f.register).copy;
        let source = source.filter(|c| c.1 >= f.bits && stays(c.0)).map(|c| c.0);
        let mut copies = (0u8..).zip(&self.registers);
        let other = source.or_else(|| copies.find_map(|(register, value)| of(register, value)));
        Compares {
            register: other.unwrap_or(f.register),
            ..f
        }
    }

    /// What an instruction leaves in its register.
    fn set(&self, sets: Sets) -> (u8, Value) {
        let known = |value| match value {
            What::Number(n) => Value {
                what: value,
                ..Value::below(n)
            },
            _ => Value {
                what: value,
                ..Value::ANY
            },
        };
        let value = match sets {
            Sets::Address { value, .. } => known(What::Address(value)),
            Sets::Number { value, .. } => known(What::Number(value)),
            Sets::Copy { to, from, bits } => {
                let mut value = self.get(from);
                if bits < 64 {
                    value.what = match value.what {
                        What::Number(n) => What::Number(n & mask(bits)),
                        _ => What::Any,
                    };
                    let most = value.most[place(bits)];
                    for (known, width) in value.most.iter_mut().zip(WIDTHS) {
                        *known = (*known).min(most).min(mask(width));
                        if width > bits {
                            *known = most;
                        }
                    }
                }
                value.copy = if to == from {
                    value.copy.map(|(of, n)| (of, n.min(bits)))
                } else {
                    Some((from, bits))
                };
                value
            }
            Sets::Extend { from, bits, .. } => {
                let most = self.get(from).most[place(bits)];
                if most <= mask(bits) / 2 {
                    Value::below(most)
                } else {
                    Value::ANY
                }
            }
            Sets::And { to, bits, most } => Value::below(self.get(to).most[place(bits)].min(most)),
            Sets::Shift { to, bits, by } => Value::below(self.get(to).most[place(bits)] >> by),
            Sets::Sum { from, by, .. } => match self.get(from).what {
                What::Address(a) => known(What::Address(a.wrapping_add(by))),
                What::Number(n) => known(What::Number(n.wrapping_add(by))),
                _ => Value::ANY,
            },
            Sets::Below { most, .. } => Value::below(most),
        };
        (sets.to(), value)
    }

    /// On a way out of a branch: the flags' register is at most so much, if the branch says so.
    pub fn bounded(&self, most: impl Fn(&Compares) -> Option<u64>) -> State {
        let mut state = self.clone();
        if let Some(compares) = self.flags
            && let Some(most) = most(&compares)
        {
            state.bound(compares.register, compares.bits, most);
        }
        state
    }

    /// The low bits of this register alone are at most so much.
    fn narrow(&mut self, register: u8, bits: u8, most: u64) {
        if let Some(value) = self.registers.get_mut(usize::from(register)) {
            let known = &mut value.most[place(bits)];
            *known = (*known).min(most);
            value.settle();
        }
    }

    /// The low bits of a register are at most so much, and so are those of its copies.
    fn bound(&mut self, register: u8, bits: u8, most: u64) {
        self.narrow(register, bits, most);
        let of = self.get(register);
        // What it is a copy of, then copies of either.
        if let Some((from, n)) = of.copy {
            let bits = bits.min(n);
            self.narrow(from, bits, of.most[place(bits)]);
        }
        let sources = [Some(register), of.copy.map(|c| c.0)];
        for source in sources.into_iter().flatten() {
            let from = self.get(source);
            for value in &mut self.registers {
                if let Some((_, n)) = value.copy.filter(|c| c.0 == source) {
                    let most = from.most[place(n)];
                    value.most[place(n)] = value.most[place(n)].min(most);
                    // Above are zeros.
                    value.most[3] = value.most[3].min(most);
                    value.settle();
                }
            }
        }
    }

    /// Takes in what is known on another way to the same place. Says whether something changed; if it did `often`,
    /// that is given up.
    pub fn join(&mut self, other: &State, often: bool) -> bool {
        let mut changed = false;
        for (value, other) in self.registers.iter_mut().zip(&other.registers) {
            let both = value.join(other);
            if both != *value {
                changed = true;
                *value = if often { Value::ANY } else { both };
            }
        }
        if self.flags != other.flags && self.flags.is_some() {
            self.flags = None;
            changed = true;
        }
        changed |= other.based & !self.based != 0;
        self.based |= other.based;
        changed
    }
}
