//! Reports on a program and its profile.
//!
//! | file | subject |
//! |---|---|
//! | [`inspect`] | which functions can be moved, and why the others cannot |
//! | [`counts`] | exact counts by function and block |
//! | [`branches`] | what branches did, to learn static prediction from |
//! | [`facts`] | all functions and blocks, with the counts of a profile of any kind |
//! | [`export`] | counts as profiles of BOLT |
//! | [`stats`] | what the processor executes before and after |
//! | [`judge`] | layouts compared by one measure |

pub mod branches;
pub mod counts;
pub mod export;
pub mod facts;
pub mod inspect;
pub mod judge;
pub mod stats;
