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
//! | [`disasm`] | code as text, with its probes and source locations |
//! | [`discriminator`] | what compilers put into the discriminators of line tables |
//! | [`dwarf`] | addresses to source locations, through inlining |
//! | [`guid`] | functions by the hash of their name |
//! | [`names`] | the name of the source function behind a symbol |
//! | [`probe`] | pseudo probes: which block or call of which source function stands at an address |
//!
//! Nothing here panics, whatever the bytes: what a section says about its own size is believed only as far as the section has
//! bytes to back it.

pub mod disasm;
pub mod discriminator;
pub mod dwarf;
pub mod guid;
pub mod names;
pub mod probe;

pub use postlink_image::FormatError;
