//! Unwind tables: `.eh_frame`, `.eh_frame_hdr` ([`eh_frame`]), the rows they describe ([`rows`]), and the
//! language-specific data of `.gcc_except_table` ([`lsda`]).

pub mod eh_frame;
pub mod lsda;
pub mod rows;
