//! What a conditional branch mostly does, guessed from the code alone.
//!
//! # The problem
//!
//! Where a profile says little of a branch, something has to be expected of it. Compilers guess as well, and have laid
//! the code out by it; but they know less than the finished code shows, and four of ten executed branches of their
//! programs are taken.
//!
//! # The idea
//!
//! Heuristics that hold for most programs: comparisons with zero and of pointers (Ball, Larus: "Branch Prediction for
//! Free", PLDI 1993), ways that call, return or store, ways out of loops. Each is weak, and several apply to one
//! branch, so that they are put together by the weight of evidence (Wu, Larus: "Static Branch Frequency and Program
//! Profile Analysis", MICRO 1994, by Dempster and Shafer's rule). Here the weights are found by logistic
//! regression on exact counts, as Calder and others do it by other means of learning ("Evidence-Based Static Branch
//! Prediction Using Machine Learning", TOPLAS 1997): the sum of the weights of what holds is the logarithm of the odds.
//! `examples/branch_weights.rs` finds and prints them. The counts are those of the new releases of `bench/samples.md`,
//! gcc's code for x86-64; of a program that was left out of learning 26 to 46 % of the executed branches are
//! guessed wrong, where the code's own layout has 35 to 46 %.
//!
//! That alone orders blocks hardly better than they are. It is for what evidence is weighed against
//! ([`postlink_flow::likely`]).
//!
//! # Invariants
//!
//! * Same code, same guess, on every machine.
//! * Counters are not placed by it ([`super::frequency`] does that), so that learning anew changes no map of counters.

use postlink_flow::logarithm::exp;
use postlink_isa::{Compared, Isa, Question, Relation};

use super::loops::{Loops, NONE};
use crate::cfg::{BlockId, Cfg, Term, Use};
use crate::discover::Program;

/// Of each of the two ways: it is likelier by so much (a logarithm of odds) if
const WAY: [f64; 24] = [
    // unlikely, as the compiler's layout or a call that does not return says
    -3.054, // it is outside of the innermost loop
    -0.343, // it is the head of a loop around: the branch goes back
    -0.056, // it is the head of another loop
    0.371,  // it calls
    -0.195, // it returns
    -0.246, // it ends in a tail call
    -0.433, // it stores
    0.080,  // nothing else leads to it
    0.068,  // more than three branches lead to it
    -0.322, // it only leads on to the other way
    -0.187, // it is in front, and no loop's head
    0.045,  // it has at most 3 instructions
    -0.106, // it has at least 12
    0.161,  // what it calls may not come back
    -0.138, // it is far off, nothing else leads to it, and it jumps back
    -0.170, // it ends in a jump back
    0.027,  // only returns follow
    -0.266, // it loads
    0.084,  // it is deeper in loops
    0.161,  // it ends in another conditional branch
    0.139,  // it is in a part that the compiler split off
    -1.293, // nothing else leads to it, and it jumps forward
    0.165,  // it is outside of the loop, and calls
    -0.069,
];

/// Taken is likelier by so much if that holds: by what is compared with; by the relation, of which the opposite counts
/// negatively (equal, less, less or equal, below, below or equal); in 32 bits or fewer, and in 64.
const QUESTION: [[[f64; 2]; 5]; 7] = [
    // zero
    [
        [0.535, -0.345],
        [-0.855, -2.028],
        [-0.336, -0.198],
        [-1.009, -0.316],
        [0.0, 0.0],
    ],
    // minus one
    [
        [-0.337, 0.057],
        [-2.519, -1.183],
        [0.0, 0.0],
        [0.0, 0.0],
        [0.0, 0.0],
    ],
    // another number
    [
        [-0.854, -0.649],
        [-1.494, -1.111],
        [0.213, 0.571],
        [-0.017, -1.158],
        [0.279, 0.422],
    ],
    // a register or memory
    [
        [0.081, -0.261],
        [-0.069, -0.222],
        [0.241, 0.649],
        [-0.505, 0.196],
        [0.0, 0.0],
    ],
    // some bits with zero
    [
        [0.885, 0.096],
        [0.0, -1.144],
        [0.0, 0.0],
        [0.379, -0.166],
        [0.0, 0.0],
    ],
    // floating-point numbers
    [
        [0.0, 0.0],
        [0.0, 0.0],
        [0.0, 0.0],
        [0.722, 0.0],
        [-0.310, 0.0],
    ],
    // not known
    [
        [-0.444, 1.272],
        [-0.287, 0.0],
        [-0.369, 0.0],
        [0.324, 0.0],
        [0.051, 0.0],
    ],
];

/// Taken is likelier by so much if it leads back; or forward by less than 16, 48, 128, 512, 2048 bytes, or further. The
/// last is of every branch.
const DISTANCE: [f64; 8] = [0.071, 0.170, 0.063, -0.123, -0.231, -0.250, -0.316, -0.105];

/// Numbers of the features: of ways, then questions, then distances.
const QUESTIONS_FROM: usize = WAY.len();
const DISTANCES_FROM: usize = QUESTIONS_FROM + 7 * 5 * 2;
/// How many there are.
pub const FEATURES: usize = DISTANCES_FROM + DISTANCE.len();

/// What holds of a branch: numbers of features, each with 1, or with -1 if it speaks against the branch being taken.
pub type Holds = Vec<(usize, f64)>;

/// The weight of a feature.
fn weight(feature: usize) -> f64 {
    if let Some(weight) = WAY.get(feature) {
        return *weight;
    }
    if feature >= DISTANCES_FROM {
        return DISTANCE
            .get(feature - DISTANCES_FROM)
            .copied()
            .unwrap_or(0.0);
    }
    let question = feature - QUESTIONS_FROM;
    QUESTION[question / 10][question / 2 % 5][question % 2]
}

/// What a block does, as far as that is a hint.
#[derive(Clone, Copy, Default)]
struct Facts {
    calls: bool,
    stores: bool,
    loads: bool,
    instructions: u32,
    ways_in: u32,
}

/// What is looked at in one function.
pub struct Predictor<'a> {
    cfg: &'a Cfg,
    facts: Vec<Facts>,
    loops: Loops,
}

impl<'a> Predictor<'a> {
    /// Looks at a function.
    pub fn new<I: Isa>(program: &Program<'_>, cfg: &'a Cfg) -> Predictor<'a> {
        let mut facts = vec![Facts::default(); cfg.blocks.len()];
        for s in &cfg.succs {
            facts[*s as usize].ways_in += 1;
        }
        for s in &cfg.sites {
            facts[s.block as usize].calls |= !s.tail;
        }
        for (b, block) in cfg.blocks.iter().enumerate() {
            let fact = &mut facts[b];
            let fields = cfg.fields(b as BlockId);
            fact.calls |= fields.iter().any(|f| f.role == Use::Call);
            let Some(code) = program.elf.bytes_at(block.start, block.end - block.start) else {
                continue;
            };
            I::sweep(code, block.start, |insn| {
                let own = code.get((insn.addr - block.start) as usize..);
                let memory = I::memory(own.unwrap_or_default(), insn);
                fact.stores |= memory.stores;
                fact.loads |= memory.loads;
                fact.instructions += u32::from(!insn.traits.nop);
                true
            });
        }
        Predictor {
            cfg,
            facts,
            loops: Loops::of(cfg),
        }
    }

    /// How likely a conditional branch with two ways within the function is taken; `None` of other blocks.
    pub fn taken<I: Isa>(&self, program: &Program<'_>, b: BlockId) -> Option<f64> {
        let holds = self.holds::<I>(program, b)?;
        let odds: f64 = holds.iter().map(|(f, sign)| weight(*f) * sign).sum();
        Some(1.0 / (1.0 + exp(-odds)))
    }

    /// What holds of such a branch.
    pub fn holds<I: Isa>(&self, program: &Program<'_>, b: BlockId) -> Option<Holds> {
        let block = &self.cfg.blocks[b as usize];
        let [taken, next] = *self.cfg.succs(b) else {
            return None;
        };
        if !matches!(block.term, Term::Cond { .. } | Term::ShortCond) {
            return None;
        }
        let mut holds = Holds::new();
        self.way(b, taken, next, 1.0, &mut holds);
        self.way(b, next, taken, -1.0, &mut holds);
        if let Term::Cond { cond } = block.term {
            let code = program.elf.bytes_at(block.start, block.end - block.start);
            let question = code.map_or(Question::default(), |code| {
                I::question(code, block.start, cond)
            });
            holds.push(asked(question));
        }
        let distance = self.cfg.blocks[taken as usize]
            .start
            .saturating_sub(block.end);
        let class = match distance {
            _ if taken <= b => 0,
            0..16 => 1,
            16..48 => 2,
            48..128 => 3,
            128..512 => 4,
            512..2048 => 5,
            _ => 6,
        };
        holds.push((DISTANCES_FROM + class, 1.0));
        holds.push((DISTANCES_FROM + 7, 1.0));
        Some(holds)
    }

    /// What holds of one way of a branch.
    fn way(&self, b: BlockId, to: BlockId, other: BlockId, sign: f64, holds: &mut Holds) {
        let (cfg, loops) = (self.cfg, &self.loops);
        let (from, block) = (&cfg.blocks[b as usize], &cfg.blocks[to as usize]);
        let facts = self.facts[to as usize];
        let own = loops.of[b as usize];
        let leaves = own != NONE && !loops.contains(own, to);
        let theirs = loops.of[to as usize];
        let heads = theirs != NONE && loops.heads[theirs as usize] == to;
        let back = heads && to <= b && loops.contains(theirs, b);
        let succs = cfg.succs(to);
        let jumps = block.term == Term::Jump;
        let jumps_back = jumps && succs.first().is_some_and(|s| *s <= to);
        let alone = facts.ways_in == 1;
        let returns = |s: &BlockId| cfg.blocks[*s as usize].term == Term::Return;
        let list: [bool; WAY.len()] = [
            block.unlikely,
            leaves,
            back,
            heads && !loops.contains(theirs, b),
            facts.calls,
            block.term == Term::Return,
            matches!(block.term, Term::JumpOut { .. }),
            facts.stores,
            alone,
            facts.ways_in > 3,
            succs == [other],
            to <= b && !back,
            facts.instructions <= 3,
            facts.instructions >= 12,
            block.nonlocal_exits,
            alone && jumps_back && block.start.abs_diff(from.end) > 256,
            jumps_back && !back,
            !succs.is_empty() && succs.iter().all(returns),
            facts.loads,
            loops.depth(to) > loops.depth(b),
            matches!(block.term, Term::Cond { .. }),
            block.piece != from.piece,
            alone && jumps && !jumps_back,
            facts.calls && leaves,
        ];
        let held = list.into_iter().enumerate().filter(|(_, is)| *is);
        holds.extend(held.map(|(feature, _)| (feature, sign)));
    }
}

/// The feature of a question.
fn asked(question: Question) -> (usize, f64) {
    let (relation, sign) = match question.relation {
        Relation::Equal => (0, 1.0),
        Relation::NotEqual => (0, -1.0),
        Relation::Less => (1, 1.0),
        Relation::GreaterOrEqual => (1, -1.0),
        Relation::LessOrEqual => (2, 1.0),
        Relation::Greater => (2, -1.0),
        Relation::Below => (3, 1.0),
        Relation::AboveOrEqual => (3, -1.0),
        Relation::BelowOrEqual => (4, 1.0),
        Relation::Above => (4, -1.0),
        Relation::Other => (0, 0.0),
    };
    let with = match question.with {
        Compared::Zero => 0,
        Compared::MinusOne => 1,
        Compared::Number => 2,
        Compared::Variable => 3,
        Compared::Bits => 4,
        Compared::Float => 5,
        Compared::Unknown => 6,
    };
    let feature = QUESTIONS_FROM + (with * 5 + relation) * 2 + usize::from(question.wide);
    (feature, sign)
}
