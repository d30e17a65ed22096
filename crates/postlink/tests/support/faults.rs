//! Faults in outputs whose instructions were changed, and what a certificate says of the changes.

use std::collections::BTreeMap;

use postlink_verify::mutate::{Faults, Kind};
use postlink_verify::{ChangeKind, Options, Report, verify};

/// Places tried for each kind of fault.
const TRIES: u64 = 12;

/// How many instructions of a kind a certificate says were changed.
pub fn changed(report: &Report, kind: ChangeKind) -> u64 {
    let of_kind = report.changes.iter().find(|c| c.kind == kind);
    of_kind.map_or(0, |c| c.sites)
}

/// Injects faults of some kinds, all of which must be found; how often which were applied.
pub fn spoil(input: &[u8], output: &[u8], kinds: &[Kind]) -> BTreeMap<Kind, u64> {
    let faults = Faults::new(input, output).expect("the pair is proved");
    let (mut applied, mut missed) = (BTreeMap::new(), vec![]);
    for &kind in kinds {
        for seed in 0..TRIES {
            let Some(mutant) = faults.inject(kind, seed) else {
                break;
            };
            *applied.entry(kind).or_default() += 1;
            let report = verify(input, &mutant.image, &Options::default());
            if report.is_ok_and(|r| r.is_proved()) {
                missed.push(mutant.what);
            }
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
    applied
}
