//! Using a profile at compile and link time: functions go to sections that say how warm they are.
//!
//! The compiler puts each function into a section of its own (`-ffunction-sections`); here the section gets
//! another name, in which linkers see where it belongs. The text of the functions stays as it is.
//!
//! | function | section | GNU ld | lld | gold |
//! |---|---|---|---|---|
//! | ran; n-th in the order of first calls | `.text.sorted.n` | sorts by n (2.36 or newer) | by the order file | by the order file |
//! | instrumented, and never ran | `.text.unlikely.NAME` | in front of all others | with `-z keep-text-section-prefix`; after what the order file names in any case | in front of all others |
//! | not in the profile | as it was | | | |
//!
//! lld and gold get an order file at link time, lld by symbols, gold by sections. Functions of one name
//! (local ones of several files) cannot be told apart: they are warm if one of them is, and go where the
//! first of them goes.
//!
//! What the compiler has placed itself (`.text.startup`, `.text.hot`, cold parts in `.text.unlikely`) stays
//! where it is.

use std::fmt::Write as _;

use postlink_mip::{Profile, order};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::lexer::{self, Kind};
use crate::reader;
use crate::target::{Format, Target};

/// Where functions go.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Place in the order, or none for those that never ran.
    places: FxHashMap<Vec<u8>, Option<u32>>,
    /// Functions that ran, in order.
    order: Vec<Vec<u8>>,
}

/// Assembly with other sections, and how many functions went where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The text.
    pub text: Vec<u8>,
    /// Functions that ran.
    pub warm: usize,
    /// Functions that never ran.
    pub cold: usize,
}

impl Placement {
    /// By a profile. With coverage only, the order is that of the program that was profiled.
    pub fn of(profile: &Profile) -> Placement {
        let mut placement = Placement::default();
        for function in &profile.functions {
            if !function.name.is_empty() {
                placement.places.insert(function.name.clone(), None);
            }
        }
        for index in order::by_first_call(profile) {
            let Some(function) = profile.functions.get(index as usize) else {
                continue;
            };
            if let Some(place @ None) = placement.places.get_mut(&function.name) {
                *place = u32::try_from(placement.order.len()).ok();
                placement.order.push(function.name.clone());
            }
        }
        placement
    }

    /// Whether any function ran.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn section(&self, name: &[u8]) -> Option<String> {
        match self.places.get(name)? {
            Some(place) => Some(format!(".text.sorted.{place:06}")),
            None => Some(format!(
                ".text.unlikely.{}",
                std::str::from_utf8(name).ok()?
            )),
        }
    }

    /// The order as lld wants it.
    pub fn symbols(&self) -> Vec<u8> {
        let mut out = self.order.join(&b'\n');
        out.push(b'\n');
        out
    }

    /// The order as gold wants it.
    pub fn sections(&self) -> Vec<u8> {
        let mut out = String::new();
        for place in 0..self.order.len() {
            let _ = writeln!(out, ".text.sorted.{place:06}"); // cannot fail for a string
        }
        out.into_bytes()
    }

    /// Renames the sections of functions. Only ELF has names that say something.
    pub fn place(&self, source: &[u8], target: Target) -> Placed {
        let mut placed = Placed {
            text: Vec::with_capacity(source.len() + source.len() / 64),
            warm: 0,
            cold: 0,
        };
        if target.format != Format::Elf || u32::try_from(source.len()).is_err() {
            placed.text = source.to_vec();
            return placed;
        }
        let statements = lexer::statements(source, target);
        let mut from = 0;
        let mut seen: FxHashSet<&[u8]> = FxHashSet::default();
        for statement in &statements {
            if statement.kind != Kind::Directive {
                continue;
            }
            let text = statement.text(source);
            let (directive, rest) = lexer::word(text);
            if !matches!(directive, b".section" | b".pushsection") {
                continue;
            }
            // The section itself, and others that are tied to it.
            for operand in lexer::operands(rest) {
                let plain = reader::unquoted(operand);
                let Some(name) = plain.strip_prefix(b".text.") else {
                    continue;
                };
                let Some(section) = self.section(name) else {
                    continue;
                };
                if seen.insert(name) {
                    match self.places.get(name) {
                        Some(Some(_)) => placed.warm += 1,
                        _ => placed.cold += 1,
                    }
                }
                // Operands are parts of the text.
                let start = operand.as_ptr() as usize - source.as_ptr() as usize;
                placed.text.extend_from_slice(&source[from..start]);
                let quote = if operand.len() == plain.len() {
                    ""
                } else {
                    "\""
                };
                placed.text.extend_from_slice(quote.as_bytes());
                placed.text.extend_from_slice(section.as_bytes());
                placed.text.extend_from_slice(quote.as_bytes());
                from = start + operand.len();
            }
        }
        placed.text.extend_from_slice(&source[from..]);
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_mip::Function;

    #[test]
    fn functions_go_to_sections_by_what_they_did() {
        let function = |name: &str, raw_count, order_sum| Function {
            name: name.into(),
            raw_count,
            call_count: u64::from(raw_count),
            order_sum,
            ..Function::default()
        };
        let profile = Profile {
            functions: vec![
                function("late", 1, 9),
                function("never", 0, 0),
                function("early", 1, 2),
            ],
            ..Profile::default()
        };
        let placement = Placement::of(&profile);
        assert_eq!(placement.symbols(), b"early\nlate\n");
        let source = b"\t.section\t.text.late,\"ax\",@progbits\nlate:\n\tret\n\t.section .text.never,\"axG\",@progbits,never,comdat\n\
            \t.section\t\".text.early\",\"ax\",@progbits # \".text.early\"\n\t.section .stack_sizes,\"o\",@progbits,.text.late\n\t.section .text.other,\"ax\"\n";
        let target = Target::of_triple("x86_64-linux-gnu").unwrap();
        let placed = placement.place(source, target);
        assert_eq!((placed.warm, placed.cold), (2, 1));
        let expected = "\t.section\t.text.sorted.000001,\"ax\",@progbits\nlate:\n\tret\n\t.section .text.unlikely.never,\"axG\",@progbits,never,comdat\n\
            \t.section\t\".text.sorted.000000\",\"ax\",@progbits # \".text.early\"\n\t.section .stack_sizes,\"o\",@progbits,.text.sorted.000001\n\t.section .text.other,\"ax\"\n";
        assert_eq!(String::from_utf8(placed.text).unwrap(), expected);
    }
}
