//! `.note.postlink`: what postlink says of a file that it wrote. A claim for `verify` to check, and the mark by which a
//! second run knows its own output.
