//! What is made of each program.

/// What a command line makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// `postlink instrument`.
    Counting,
    /// `postlink optimize` with the profile of the state `edges`.
    Optimised,
}

/// A state of a program.
#[derive(Debug)]
pub struct State {
    pub name: &'static str,
    pub makes: Makes,
    /// `SEED` stands for the program's seed.
    pub options: &'static [&'static str],
    /// Postlink refuses it, rightly, if the linker kept no relocations.
    pub needs_relocations: bool,
}

impl State {
    /// Whether postlink makes this of a program whose relocations are kept or not. What it refuses, and says so in its
    /// documents, is not tried.
    pub fn is_possible(&self, kept: bool) -> bool {
        kept || !self.needs_relocations
    }
}

const fn counting(name: &'static str, options: &'static [&'static str]) -> State {
    State {
        name,
        makes: Makes::Counting,
        options,
        needs_relocations: false,
    }
}

const fn optimised(name: &'static str, options: &'static [&'static str]) -> State {
    State {
        makes: Makes::Optimised,
        ..counting(name, options)
    }
}

/// All of them; `edges` comes first, as the profile is made there.
pub const STATES: &[State] = &[
    counting("edges", &[]),
    counting("edges, atomic", &["--counters", "atomic"]),
    counting("edges, per thread", &["--counters", "per-thread"]),
    counting("edges, plain", &["--counters", "plain", "--no-calls"]),
    counting("function-coverage", &["--mode", "function-coverage"]),
    counting("block-coverage", &["--mode", "block-coverage"]),
    counting("call-graph", &["--mode", "call-graph"]),
    State {
        needs_relocations: true,
        ..counting("call-edges", &["--mode", "call-edges"])
    },
    optimised("safe", &["--preset", "safe"]),
    optimised("fast", &["--preset", "fast"]),
    State {
        needs_relocations: true,
        ..optimised("size", &["--preset", "size"])
    },
    optimised("stress", &["--stress", "SEED"]),
    State {
        needs_relocations: true,
        ..optimised("stress, size", &["--stress", "SEED", "--preset", "size"])
    },
    optimised(
        "stress, pointers stay",
        &["--stress", "SEED", "--pointers", "stay"],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_not_tried() {
        let count = |kept| STATES.iter().filter(|s| s.is_possible(kept)).count();
        assert_eq!(count(true), STATES.len());
        assert_eq!(count(false), STATES.len() - 3);
    }

    #[test]
    fn the_profile_is_made_first() {
        assert_eq!(
            (STATES[0].name, STATES[0].makes),
            ("edges", Makes::Counting)
        );
        let mut names: Vec<&str> = STATES.iter().map(|s| s.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STATES.len());
    }
}
