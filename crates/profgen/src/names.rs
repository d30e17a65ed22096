//! The name of the source function after a symbol.
//!
//! Optimisers append to the names of what they copy, split or export: `.llvm.` and a hash when a local
//! function becomes visible to other modules, `.part.` and a number when a part is outlined. A profile speaks
//! of the source function, so these come off. `.__uniq.` stays: it makes a local function's name unique and
//! is part of it.
//!
//! A suffix counts only when what follows it has no further dot: in `f.part.0.cold` nothing comes off.

/// Suffixes that come off, in the order in which they are tried.
const SUFFIXES: [&[u8]; 2] = [b".llvm.", b".part."];

/// The name without what an optimiser has appended.
pub fn canonical(mut name: &[u8]) -> &[u8] {
    for suffix in SUFFIXES {
        let found = name
            .windows(suffix.len())
            .rposition(|window| window == suffix);
        if let Some(at) = found
            && let (kept, Some(rest)) = (name.get(..at), name.get(at + suffix.len()..))
            && !rest.contains(&b'.')
        {
            name = kept.unwrap_or_default();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_suffix_at_the_end_comes_off() {
        assert_eq!(canonical(b"f.llvm.123"), b"f");
        assert_eq!(canonical(b"f.part.0"), b"f");
        assert_eq!(canonical(b"f.part.0.llvm.9"), b"f");
        assert_eq!(canonical(b"f.__uniq.77.llvm.9"), b"f.__uniq.77");
        assert_eq!(canonical(b"f.part.0.cold"), b"f.part.0.cold");
        assert_eq!(canonical(b"f"), b"f");
        assert_eq!(canonical(b""), b"");
    }
}
