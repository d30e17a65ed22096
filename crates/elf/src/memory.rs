//! Memory that was freed.

/// Gives memory that was freed back to the system, where the allocator does not do so by itself: what a phase needed
/// would stay beside what the next one needs.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
