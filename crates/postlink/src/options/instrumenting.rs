//! How a program is instrumented: `postlink instrument` and `postlink tune`.

use clap::{Args, ValueEnum};
use postlink_rewrite::{Counters, InstrumentOptions};
use regex::bytes::Regex;

/// How counters are incremented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountersArg {
    /// Per thread where possible, else biased where possible; else atomic if the program can have threads or forks,
    /// else plain
    Auto,
    /// Each thread counts in an area of its own: exact and fast. Where that is not possible, biased or atomic,
    /// and the reason is printed
    PerThread,
    /// Exact; the thread that loads the program counts fast, all others as with atomic. Where that is not
    /// possible, atomic, and the reason is printed
    Biased,
    /// Exact with threads too, and several times slower
    #[value(alias = "lock")]
    Atomic,
    /// Fast; threads that count at the same place at once lose counts
    Plain,
}

/// What to count and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Instrumenting")]
pub struct Instrumenting {
    /// Count only in functions with a name that matches
    ///
    /// The regular expression is searched for in the mangled name; use ^ and $ for the whole name.
    #[arg(long, value_name = "REGEX")]
    pub functions: Option<Regex>,
    /// How counters are incremented
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub counters: CountersArg,
    /// Do not record which functions indirect calls go to
    #[arg(long)]
    pub no_calls: bool,
}

impl Instrumenting {
    /// For the library; `pattern` is the profile's name where the environment gives none.
    pub fn options(&self, pattern: Option<&str>) -> InstrumentOptions {
        let mut options = InstrumentOptions {
            functions: self.functions.clone(),
            counters: match self.counters {
                CountersArg::Auto => Counters::Auto,
                CountersArg::PerThread => Counters::PerThread,
                CountersArg::Biased => Counters::Biased,
                CountersArg::Atomic => Counters::Atomic,
                CountersArg::Plain => Counters::Plain,
            },
            calls: !self.no_calls,
            ..InstrumentOptions::default()
        };
        if let Some(pattern) = pattern {
            pattern.clone_into(&mut options.pattern);
        }
        options
    }
}
