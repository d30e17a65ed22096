//! Kinds of numbers that say where something is.
//!
//! | kind | counts |
//! |---|---|
//! | [`InputAddr`] | bytes of memory of the input, as it was linked |
//! | [`OutputAddr`] | bytes of memory of the output |
//! | [`InputOffset`] | bytes of the input's file |
//! | [`OutputOffset`] | bytes of the output's file |
//!
//! None of them becomes another by itself. What stays where it was has one number on both sides:
//! [`InputAddr::kept`] says so where it is meant. Bytes that are copied have an offset in both files, which
//! differ by what was put in front: [`InputOffset::shifted`].

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// From its number.
            #[inline]
            pub const fn new(number: u64) -> Self {
                $name(number)
            }

            /// Its number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The next one, or this, that is a multiple.
            #[inline]
            pub const fn next_multiple_of(self, of: u64) -> Self {
                $name(self.0.next_multiple_of(of))
            }

            /// The same, or `None` where numbers end.
            #[inline]
            pub const fn checked_next_multiple_of(self, of: u64) -> Option<Self> {
                match self.0.checked_next_multiple_of(of) {
                    Some(number) => Some($name(number)),
                    None => None,
                }
            }

            /// The place so many bytes after it, or `None` where numbers end.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(number) => Some($name(number)),
                    None => None,
                }
            }

            /// Bytes from another to it, or `None` if that is after it.
            #[inline]
            pub const fn checked_sub(self, other: Self) -> Option<u64> {
                self.0.checked_sub(other.0)
            }

            /// How far two are apart.
            #[inline]
            pub const fn abs_diff(self, other: Self) -> u64 {
                self.0.abs_diff(other.0)
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

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x})", stringify!($name), self.0)
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

address! {
    /// An offset in the input's file.
    InputOffset
}
address! {
    /// An offset in the output's file.
    OutputOffset
}

impl InputOffset {
    /// Where a byte of the input is in an output that has so many bytes in front of all that it copies.
    #[inline]
    pub const fn shifted(self, by: u64) -> OutputOffset {
        OutputOffset(self.0 + by)
    }
}

impl OutputOffset {
    /// Where a copied byte is in the input: the opposite of [`InputOffset::shifted`]. `None` for what is in
    /// front.
    #[inline]
    pub const fn unshifted(self, by: u64) -> Option<InputOffset> {
        match self.0.checked_sub(by) {
            Some(number) => Some(InputOffset(number)),
            None => None,
        }
    }
}

impl InputAddr {
    /// The same place of the old image in the output: it keeps its addresses.
    #[inline]
    pub const fn kept(self) -> OutputAddr {
        OutputAddr(self.0)
    }
}

impl OutputAddr {
    /// The opposite of [`InputAddr::kept`], for a place in the old image: new code may be there.
    #[inline]
    pub const fn in_old_image(self) -> InputAddr {
        InputAddr(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_added_and_distances_are_bytes() {
        let at = OutputAddr::new(0x1003);
        assert_eq!(at + 5, OutputAddr::new(0x1008));
        assert_eq!(at + 5 - at, 5);
        assert_eq!(at - 3, OutputAddr::new(0x1000));
        assert_eq!(at.next_multiple_of(16).get(), 0x1010);
        assert_eq!((at + 16).abs_diff(at), at.abs_diff(at + 16));
        assert_eq!(format!("{at:#x} {at:?}"), "0x1003 OutputAddr(0x1003)");
    }

    #[test]
    fn what_is_copied_has_an_offset_in_both_files() {
        let at = InputOffset::new(0x40);
        assert_eq!(at.shifted(0x1000), OutputOffset::new(0x1040));
        assert_eq!(at.shifted(0x1000).unshifted(0x1000), Some(at));
        assert_eq!(OutputOffset::new(0xfff).unshifted(0x1000), None);
        assert_eq!(at.checked_sub(InputOffset::new(0x41)), None);
        assert_eq!(InputOffset::new(u64::MAX).checked_add(1), None);
        assert_eq!(InputOffset::new(u64::MAX).checked_next_multiple_of(2), None);
    }

    #[test]
    fn what_stays_has_one_number() {
        assert_eq!(InputAddr::new(7).kept(), OutputAddr::new(7));
        assert_eq!(OutputAddr::new(7).in_old_image(), InputAddr::new(7));
        assert_eq!(size_of::<InputAddr>(), size_of::<u64>());
    }
}
