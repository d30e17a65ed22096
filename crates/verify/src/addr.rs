//! Addresses of the two files, as types of their own.
//!
//! | type | counts |
//! |---|---|
//! | [`InputAddr`] | bytes of memory of the input, as it was linked |
//! | [`OutputAddr`] | bytes of memory of the output |
//!
//! The comparison is about pairs of one of each. Neither becomes the other by itself: the old image keeps its
//! addresses in the output, and where that is meant, [`InputAddr::kept`] or [`OutputAddr::of_old_image`] says so.
//! What an instruction or a word holds is a number until it is known on which side it was read.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(u64);

        impl $name {
            /// From its number.
            #[inline]
            pub(crate) const fn new(number: u64) -> Self {
                $name(number)
            }

            /// Its number.
            #[inline]
            pub(crate) const fn get(self) -> u64 {
                self.0
            }

            /// The place so many bytes after it, or the last of all.
            #[inline]
            pub(crate) const fn saturating_add(self, bytes: u64) -> Self {
                $name(self.0.saturating_add(bytes))
            }
        }

        impl Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, bytes: u64) -> Self {
                $name(self.0 + bytes)
            }
        }

        impl AddAssign<u64> for $name {
            #[inline]
            fn add_assign(&mut self, bytes: u64) {
                self.0 += bytes;
            }
        }

        impl Sub<u64> for $name {
            type Output = Self;

            #[inline]
            fn sub(self, bytes: u64) -> Self {
                $name(self.0 - bytes)
            }
        }

        /// Bytes from one to another.
        impl Sub for $name {
            type Output = u64;

            #[inline]
            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl Address for $name {
            #[inline]
            fn from_number(number: u64) -> Self {
                $name(number)
            }
            #[inline]
            fn number(self) -> u64 {
                self.0
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// An address of the input.
    InputAddr
}
address! {
    /// An address of the output.
    OutputAddr
}

/// An address of one of the files.
pub(crate) trait Address:
    Copy + Ord + Default + Add<u64, Output = Self> + Sub<Output = u64>
{
    /// From its number.
    fn from_number(number: u64) -> Self;
    /// Its number.
    fn number(self) -> u64;
}

/// An address of the input, and the one that corresponds to it in the output.
pub(crate) type Pair = (InputAddr, OutputAddr);

impl InputAddr {
    /// The same place in the output, whose old image keeps its addresses.
    #[inline]
    pub(crate) const fn kept(self) -> OutputAddr {
        OutputAddr(self.0)
    }
}

impl OutputAddr {
    /// The same place in the input, if it is one of the old image.
    #[inline]
    pub(crate) const fn of_old_image(self) -> InputAddr {
        InputAddr(self.0)
    }
}
