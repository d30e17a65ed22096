//! Reading both files: headers, sections and symbols, unwind tables, exception tables, and what the output
//! says of itself. Nothing here compares.
//!
//! | module | what it reads |
//! |---|---|
//! | [`bytes`] | numbers out of untrusted bytes; comparing instructions' bytes |
//! | [`elf`] | headers, sections, symbols, dynamic tags |
//! | [`pointer`] | encoded pointers of unwind tables |
//! | [`unwind`] | `.eh_frame` with its search table, and the rows of a function |
//! | [`frame_program`] | call frame instructions, run where they are common ones |
//! | [`lsda`] | exception tables: what the personality routine decides at a call |
//! | [`personality`] | which instructions a personality routine may be asked about |
//! | [`veneers`] | code without veneers for an erratum of a processor |
//! | [`claim`] | the note in which the output says what moved where |

pub(crate) mod bytes;
pub(crate) mod claim;
pub(crate) mod elf;
mod frame_program;
pub(crate) mod lsda;
pub(crate) mod personality;
pub(crate) mod pointer;
pub(crate) mod unwind;
pub(crate) mod veneers;
