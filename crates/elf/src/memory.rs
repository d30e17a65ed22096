//! Memory that is not needed any more.

use memmap2::{Mmap, UncheckedAdvice};

/// Gives memory that was freed back to the system, where the allocator does not do so by itself: what a phase needed
/// would stay beside what the next one needs.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back the memory of what was read so far of a file that is mapped; what is needed again is read again.
pub fn give_back_read(map: &Mmap) {
    // SAFETY: the map is read-only, so its pages hold nothing that the file does not. Failure costs memory and nothing
    // else.
    let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
}
