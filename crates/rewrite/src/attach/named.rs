//! A profile by names (fdata, aggregated samples) attached to a program.
//!
//! Names are looked up among all that a symbol can be called by ([`postlink_bolt_symbols::names`]). What is
//! not found is tried again by what link-time optimisation leaves of a name, and by the name without its
//! number, if only one function answers to it. What records become is in [`super::records`].

use postlink_isa::Isa;
use postlink_profile::symbolic::{Location, NameId, SymbolicProfile};

use crate::attach::Attached;
use crate::attach::account::Account;
use crate::attach::lookup::Lookup;
use crate::attach::records::{CountWeight, Made, Record, attach_all, push_branch, push_sample};
use crate::discover::{NonlocalExits, Program};

/// Attaches a profile.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    profile: &SymbolicProfile,
) -> Attached<'d> {
    let lookup = Lookup::of_names(program, profile.names().iter());
    let mut account = Account {
        unknown_names: lookup.unknown.len() as u64,
        examples: lookup.examples(),
        renamed: lookup.similar,
        ..Account::default()
    };
    let place = |l: Location| -> Option<u64> {
        let base = l.in_symbol.then(|| lookup.address(l.name)).flatten()?;
        base.checked_add(l.offset)
    };
    let by_samples = profile.collection.is_some_and(|c| !c.branches);
    let mut records: Vec<Record> = Vec::new();
    let missing = |l: Location, count: u64, account: &mut Account| {
        if l.in_symbol && lookup.is_unknown(l.name) {
            account.lost_records += 1;
            account.lost_counts = account.lost_counts.saturating_add(count);
        }
    };
    for b in profile.branches() {
        missing(
            if b.from.in_symbol { b.from } else { b.to },
            b.count,
            &mut account,
        );
        push_branch(program, place(b.from), place(b.to), b.count, &mut records);
    }
    for s in profile.samples() {
        missing(s.at, s.count, &mut account);
        push_sample(program, place(s.at), s.count, &mut records);
    }
    let made = Made {
        weigh: by_samples.then(|| CountWeight::of(&profile.events)),
        same_code: false,
    };
    attach_all::<I>(program, nonlocal_exits, records, &[], made, account)
}

/// Numbers of names, for [`Lookup`].
impl super::lookup::Key for NameId {
    fn index(self) -> usize {
        self.0 as usize
    }
}
