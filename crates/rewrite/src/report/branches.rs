//! What conditional branches of a program did, with what [`crate::analyse::predict`] sees of each: what its weights are
//! learnt from.

use postlink_elf::elf::Elf;
use postlink_isa::{Isa, with_isa};
use postlink_profile::Profile;

pub use crate::analyse::frequency::SHAPES;
use crate::analyse::frequency::Shape;
pub use crate::analyse::predict::FEATURES;
use crate::analyse::predict::Predictor;
use crate::attach::{self, Source};
use crate::cfg::BlockId;
use crate::discover::{NonlocalExits, Program, check_input};
use crate::error::Error;

/// A branch that was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Numbers of features, below [`FEATURES`], each with 1, or with -1 if it speaks against the branch being taken.
    pub holds: Vec<(usize, f64)>,
    /// How often it was taken.
    pub taken: u64,
    /// How often it was not.
    pub not_taken: u64,
    /// How likely it was thought to be taken.
    pub expected: f64,
    /// The same kind of list, numbers below [`SHAPES`], of what counters are placed by. Empty where that asks nothing
    /// else than whether anything good follows.
    pub shape: Vec<(usize, f64)>,
}

/// The conditional branches that were executed, of exact counts.
///
/// Errors: a file that cannot be read; a profile of another file, or one without counts.
pub fn branches(elf: &Elf<'_>, profile: &Profile) -> Result<Vec<Branch>, Error> {
    with_isa!(check_input(elf)?, I => branches_with::<I>(elf, profile))
}

fn branches_with<I: Isa>(elf: &Elf<'_>, profile: &Profile) -> Result<Vec<Branch>, Error> {
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    let (attached, _) = attach::attach_any::<I>(&program, &nonlocal_exits, Source::Exact(profile))?;
    let mut out = Vec::new();
    for c in &attached.counted {
        let cfg = &c.analysed.cfg;
        let predictor = Predictor::new::<I>(&program, cfg);
        let shape = Shape::of(cfg);
        for b in 0..cfg.blocks.len() as BlockId {
            let first = cfg.blocks[b as usize].succ as usize;
            let (Some(holds), Some(expected), Some([taken, not_taken])) = (
                predictor.holds::<I>(&program, b),
                predictor.taken::<I>(&program, b),
                c.counts.succs.get(first..first + 2),
            ) else {
                continue;
            };
            if taken.saturating_add(*not_taken) > 0 {
                out.push(Branch {
                    holds,
                    taken: *taken,
                    not_taken: *not_taken,
                    expected,
                    shape: shape.list(b),
                });
            }
        }
    }
    Ok(out)
}
