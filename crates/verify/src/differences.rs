//! For tests that compare tables of instructions with another decoder's: the words that are compared, and the list of
//! what differs.

use std::collections::BTreeMap;

/// Calls for every operation of AArch64 (bits 31 to 10 in full, with registers that change from word to word), and for
/// as many random words: the same ones every time.
pub fn aarch64_words(mut visit: impl FnMut(u32)) {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as u32
    };
    for operation in 0..1u32 << 22 {
        // Zero and the stack pointer, too.
        let registers = match next() % 8 {
            0 => 0x3ff,
            1 => 31 << 5 | next() & 31,
            2 => next() & 31 << 5 | 31,
            _ => next() & 0x3ff,
        };
        visit(operation << 10 | registers);
    }
    for _ in 0..1 << 22 {
        visit(next());
    }
}

/// What two decoders differ in: by what it is and by instruction, how often, with the first example.
#[derive(Debug, Default)]
pub struct Differences(BTreeMap<String, (usize, String)>);

impl Differences {
    /// Adds one.
    pub fn note(&mut self, what: &str, instruction: &str, example: impl FnOnce() -> String) {
        let entry = self.0.entry(format!("{what}: {instruction}"));
        entry.or_insert_with(|| (0, example())).0 += 1;
    }

    /// Ends the test if there are any.
    pub fn assert_none(&self) {
        let lines: Vec<String> = self
            .0
            .iter()
            .map(|(key, (count, example))| format!("{key} ({count}): {example}"))
            .collect();
        assert!(
            lines.is_empty(),
            "{} differ:\n{}",
            lines.len(),
            lines.join("\n")
        );
    }
}
