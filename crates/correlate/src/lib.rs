//! From samples to profiles that a compiler reads: what stands between addresses in a binary and names in a source program.
//!
//! ```text
//!  .pseudo_probe_desc, .pseudo_probe ──► probe::Probes ─┐
//!                                                       ├──► functions, contexts, counts
//!  branch stacks ──► ranges and branches of addresses ──┘
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`aggregate`] | from samples to profiles by names, as optimisers read them |
//! | [`context`] | from counters by chain of callers to context-sensitive profiles |
//! | [`counters`] | runs and branches, and raw profiles |
//! | [`disasm`] | code as text, with its probes and source locations |
//! | [`discriminator`] | what compilers put into the discriminators of line tables |
//! | [`dwarf`] | addresses to source locations, through inlining |
//! | [`flat`] | from counters to flat profiles |
//! | [`guid`] | functions by the hash of their name |
//! | [`in_order`] | text that is made by many threads and written in its order |
//! | [`machine`] | what an instruction does to control |
//! | [`names`] | the name of the source function behind a symbol |
//! | [`pe`] | Windows programs |
//! | [`probe`] | pseudo probes: which block or call of which source function stands at an address |
//! | [`profgen`] | the whole road from a binary and samples to a profile |
//! | [`program`] | where instructions and functions are |
//! | [`sample`] | sample profiles: model, text, binary form |
//! | [`script`] | samples as text |
//! | [`tally`] | samples added up: branch stacks and call chains to counters |
//! | [`unwind`] | chains of callers as keys |
//! | [`walk`] | made-up samples for tests and measurements |
//!
//! Nothing here panics, whatever the bytes: what a section says about its own size is believed only as far as the section has
//! bytes to back it.

pub mod aggregate;
pub mod context;
pub mod counters;
pub mod disasm;
pub mod discriminator;
pub mod dwarf;
pub mod flat;
pub mod guid;
pub mod in_order;
pub mod machine;
pub mod names;
pub mod pe;
pub mod probe;
pub mod profgen;
pub mod program;
pub mod sample;
pub mod script;
pub mod tally;
pub mod unwind;
pub mod walk;

pub use postlink_image::FormatError;
