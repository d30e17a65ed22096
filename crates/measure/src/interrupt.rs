//! Ctrl-C while runs are measured: the run that is going on is given up, what was measured is kept.
//!
//! The first SIGINT or SIGTERM only sets a flag, which [`crate::run`](mod@crate::run) and [`crate::series`] look at;
//! the
//! second ends the process, as without a handler.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn asked(_: libc::c_int) {
    ASKED.store(true, Ordering::SeqCst);
}

/// From now on the first signal does not end the process.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all-zero is a valid sigaction; the handler only stores to an atomic. Without SA_RESTART waiting for a
        // run ends, and SA_RESETHAND has the second signal end the process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = asked as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Whether a signal has come since [`catch`].
pub fn was_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
