//! What is compared apart from moved functions, which the lock step ([`crate::walk`]) compares, and counters
//! at entries ([`crate::entries`]).
//!
//! | module | what it compares |
//! |---|---|
//! | [`image`] | headers, segments, dynamic tags, relocations, dynamic symbols |
//! | [`text`] | code outside of moved functions, entry jumps |
//! | [`erratum`] | that new code has no sequence that a processor may get wrong, if the input has none |
//! | [`gaps`] | which bytes between functions are code |
//! | [`staying`] | functions of which only branches were retargeted |
//! | [`data`] | loaded bytes outside of code: pointers that changed, and pointers that did not |
//! | [`data_in_code`] | which words between functions look like instructions and are data |
//! | [`tables`] | jump tables of relative entries |
//! | [`distances`] | functions that calculate with distances between addresses |
//! | [`described`] | functions that data describe by distances |
//! | [`bounds`] | ranges of code whose bounds the program knows by symbols |
//! | [`bare`] | what is demanded where no kept relocations were used |
//! | [`headers`] | that the run-time finds new unwind entries of programs without a header for them |
//! | [`inside`] | that nothing leads into what jumps at old entries overwrote, likewise |
//! | [`uncovered`] | whether code that nothing covers uses the segment of per-thread counters, likewise |
//! | [`visible`] | what the program may see of the address of a moved function |
//! | [`counting`] | areas of counters |
//! | [`no_return`] | which functions libraries declare not to return |
//! | [`writes`] | that nothing writes into what was copied |
//! | [`identity`] | the build-id |

pub(crate) mod bare;
pub(crate) mod bounds;
pub(crate) mod counting;
pub(crate) mod data;
pub(crate) mod data_in_code;
pub(crate) mod described;
pub(crate) mod distances;
pub(crate) mod erratum;
pub(crate) mod gaps;
pub(crate) mod headers;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod inside;
pub(crate) mod no_return;
pub(crate) mod staying;
pub(crate) mod tables;
pub(crate) mod text;
pub(crate) mod uncovered;
pub(crate) mod visible;
pub(crate) mod writes;
