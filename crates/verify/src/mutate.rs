//! Faults for the checker to find.
