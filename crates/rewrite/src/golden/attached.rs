//! Counts of golden programs, by analysing each function once and by analysing it twice.

use std::collections::BTreeMap;

use postlink_elf::elf::Elf;
use postlink_isa::Isa;
use postlink_profile::Profile;

use crate::analyse::CounterMap;
use crate::attach::{self, Counted};
use crate::discover::{NonlocalExits, Program};

/// What is compared of a function.
fn counts<'a>(counted: &'a [Counted<'_>]) -> Vec<(u32, u64, &'a [u64], &'a [u64])> {
    let of = |c: &'a Counted<'_>| {
        (
            c.function,
            c.entries,
            &c.counts.blocks[..],
            &c.counts.succs[..],
        )
    };
    counted.iter().map(of).collect()
}

/// In which ways they differ.
pub(super) fn differences<I: Isa>(elf: &Elf<'_>) -> String {
    let program = match Program::discover_for_counters::<I>(elf) {
        Ok(program) => program,
        Err(what) => return format!("error: {what}"),
    };
    let nonlocal_exits = NonlocalExits::new(&program);
    let map = CounterMap::build::<I>(&program, &nonlocal_exits);
    // Every third function did not run, and no two counters are alike.
    let mut counters = Vec::new();
    for (f, share) in (0u64..).zip(&map.shares) {
        let runs = u64::from(f % 3 != 1);
        counters.extend((0..u64::from(share.counters)).map(|c| runs * (1 + c * 37 + f * 1009)));
    }
    let Some(profile) = Profile::from_parts(map.subject, counters, BTreeMap::new()) else {
        return "the map has another number of counters".into();
    };
    let twice = attach::attach::<I>(&program, &nonlocal_exits, &map, &profile);
    let mut different = String::new();
    for by in [(1, 0), (1, 8), (2, 1), (256, 8)] {
        let (own, once) = attach::exact::attach_by::<I>(&program, &nonlocal_exits, &profile, by);
        if own.subject != map.subject || own.bases != map.bases {
            different += &format!("another map by {by:?}\n");
        }
        if counts(&once) != counts(&twice) {
            different += &format!("other counts by {by:?}\n");
        }
    }
    different
}
