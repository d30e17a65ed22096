//! Which pages of code a program has needed by when.
//!
//! A profile says how often code ran, not when. Copies of a live profile (`postlink watch`) do: each has what ran up to
//! then. As a clock there are the instructions that were executed, which, unlike seconds, are the same for
//! a program with counters and one without. A page counts as needed from the first copy in which one of its
//! blocks has run; in the output the same blocks are at their new places.
//!
//! A copy is taken while functions are at work: of those the counters have seen the entry, and not the way out
//! yet. Counts that follow from both may be wrong by the number of calls at work, so that a block may be taken
//! for run a little early. It has run in the copies that follow, or it is left out: only blocks that ran by the last
//! copy count.

use postlink_rewrite::facts::{Facts, Function};
use rustc_hash::FxHashSet;

use crate::heat::PAGE;
use crate::model::Startup;
use crate::placed::Place;

/// What had run at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Instructions executed by then.
    pub instructions: u64,
    /// Blocks that had run: numbers of function and block.
    blocks: Vec<(u32, u32)>,
}

impl Moment {
    /// What the counts of a copy say.
    pub fn new(facts: &Facts) -> Moment {
        let mut moment = Moment {
            instructions: 0,
            blocks: Vec::new(),
        };
        for (f, function) in (0..).zip(&facts.functions) {
            let Some(ran) = &function.ran else { continue };
            moment.instructions = moment.instructions.saturating_add(ran.instructions);
            let blocks = (0..).zip(&ran.blocks).filter(|(_, b)| b.count > 0);
            moment.blocks.extend(blocks.map(|(b, _)| (f, b)));
        }
        moment
    }
}

/// Pages needed by each moment: in the layout of the input and, with `places`, in that of the output.
///
/// `functions` are those of any profile of the program that holds what ran in the moments.
pub(crate) fn startup(
    moments: &[Moment],
    functions: &[Function],
    places: Option<&[Option<Vec<Option<Place>>>]>,
) -> Option<Startup> {
    let mut moments: Vec<&Moment> = moments.iter().collect();
    // In the order in which they were taken, whatever their files are called.
    moments.sort_by_key(|m| (m.instructions, m.blocks.len()));
    let last: FxHashSet<(u32, u32)> = moments.last()?.blocks.iter().copied().collect();
    let mut seen: FxHashSet<(u32, u32)> = FxHashSet::default();
    let (mut before, mut after) = (FxHashSet::default(), FxHashSet::default());
    let mut out = Startup::default();
    for moment in moments {
        for id in moment.blocks.iter().filter(|id| last.contains(id)) {
            if !seen.insert(*id) {
                continue;
            }
            let (f, b) = (id.0 as usize, id.1 as usize);
            let ran = functions.get(f).and_then(|function| function.ran.as_ref());
            let Some(block) = ran.and_then(|ran| ran.blocks.get(b)) else {
                continue;
            };
            let stays = (block.start, block.end);
            add(&mut before, stays);
            match places.and_then(|places| places.get(f)?.as_ref()) {
                Some(moved) => {
                    if let Some(place) = moved.get(b).copied().flatten() {
                        add(&mut after, place);
                    }
                }
                None => add(&mut after, stays),
            }
        }
        out.instructions.push(moment.instructions);
        out.before.push(before.len() as u64);
        out.after.push(after.len() as u64);
    }
    if places.is_none() {
        out.after.clear();
    }
    Some(out)
}

fn add(pages: &mut FxHashSet<u64>, (start, end): Place) {
    pages.extend(start / PAGE..=end.max(start + 1).saturating_sub(1) / PAGE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_rewrite::facts::{Block, Ending, Ran};

    fn function(starts: &[u64]) -> Function {
        let block = |start: &u64| Block {
            start: *start,
            end: *start + 16,
            branch: *start + 16,
            count: 1,
            instructions: 4,
            entry: false,
            landing_pad: false,
            ending: Ending::Falls,
            out: 0,
            edges: Vec::new(),
        };
        let blocks: Vec<Block> = starts.iter().map(block).collect();
        Function {
            name: "f".into(),
            parts: vec![(starts[0], starts[0] + 16)],
            pin: None,
            blocks: blocks.len() as u32,
            branches: Vec::new(),
            ran: Some(Ran {
                entries: 1,
                instructions: 8,
                blocks,
                tables: Vec::new(),
                anchored_targets: Vec::new(),
            }),
        }
    }

    fn moment(instructions: u64, blocks: &[(u32, u32)]) -> Moment {
        Moment {
            instructions,
            blocks: blocks.to_vec(),
        }
    }

    #[test]
    fn pages_are_counted_from_the_first_moment_on_in_both_layouts() {
        // The second block of the first function lies on two pages.
        let functions = [function(&[0x1000, 0x1ff8]), function(&[0x9000])];
        let places = [
            Some(vec![Some((0x20000, 0x20010)), Some((0x20010, 0x20020))]),
            None,
        ];
        let moments = [
            moment(100, &[(0, 0), (0, 1)]),
            moment(10, &[(0, 0)]),
            moment(1000, &[(0, 0), (0, 1), (1, 0)]),
        ];
        let both = startup(&moments, &functions, Some(&places)).unwrap();
        assert_eq!(both.instructions, [10, 100, 1000]);
        assert_eq!(both.before, [1, 2, 3]);
        assert_eq!(both.after, [1, 1, 2]);
        let one = startup(&moments, &functions, None).unwrap();
        assert_eq!((one.before, one.after), (vec![1, 2, 3], vec![]));
        assert_eq!(startup(&[], &functions, None), None);
    }

    #[test]
    fn a_block_that_has_not_run_in_the_end_never_counts() {
        let functions = [function(&[0x1000, 0x5000])];
        let moments = [moment(10, &[(0, 0), (0, 1)]), moment(20, &[(0, 0)])];
        assert_eq!(startup(&moments, &functions, None).unwrap().before, [1, 1]);
    }
}
