//! What the user is told when the checker refuses something: what was refused, where it is, what became of
//! it, and how to report it.
//!
//! | what is refused | what becomes of it |
//! |---|---|
//! | a function | it stays where it is in the input; the rest is written |
//! | debug information | it is kept as it is, and describes old code |
//! | anything else | there is no output |
//!
//! None of these is an error of the user's, and mostly an option of a compiler that nobody tried: so the
//! sentence gives the checker's own words and the place in both files, which is what a report needs. Where what the
//! checker found is a property of the program ([`Check::Inside`]), nobody is asked to report it.

use postlink_elf::elf::{Elf, Symbol, SymbolTable};
use postlink_elf::raw::{STT_FUNC, STT_GNU_IFUNC};
use postlink_verify::{Check, Failure, FunctionReport, Report};
use serde::Serialize;

/// Where reports go.
const ISSUES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");

/// A function that the checker refused, and that stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its name, as the input has it.
    pub name: String,
    /// What the checker said, with the place and the value in both files.
    pub reason: String,
    /// That is a property of the program, and no error.
    #[serde(skip)]
    pub of_program: bool,
}

impl Refused {
    /// From the checker's verdict.
    pub fn new(function: &FunctionReport, failure: &Failure) -> Refused {
        Refused {
            name: function.shown_name(),
            reason: failure.to_string(),
            of_program: failure.check == Check::Inside,
        }
    }
}

/// What to do about it.
pub fn how_to_report() -> String {
    format!("please report this with the input and the command at {ISSUES}")
}

/// Debug information that is kept, since the checker refused what it had become.
pub fn debug_information(certificate: &Report, elf: &Elf<'_>) -> Option<String> {
    let first = certificate.file_failures.first()?;
    Some(format!(
        "the checker refused the updated one: {}; {}",
        differences(first, certificate.file_failure_count, elf),
        how_to_report()
    ))
}

/// A difference that belongs to no function: nothing can be put back, so there is no output.
pub fn whole_file(certificate: &Report, elf: &Elf<'_>) -> String {
    let of_function = || {
        let (function, failure) = certificate.failures().next()?;
        let name = function.shown_name();
        let text = differences(failure, certificate.failed, elf);
        Some(format!("{name}, which cannot be left in place: {text}"))
    };
    let what = match certificate.file_failures.first() {
        Some(first) => differences(first, certificate.file_failure_count, elf),
        None => of_function().unwrap_or_default(),
    };
    format!(
        "the checker refused the output, and there is no function whose place in the input would mend it, so nothing was written: {what}; {}",
        how_to_report()
    )
}

/// The checker is still not content when no further round is left.
pub fn after_rounds(rounds: usize, reverted: &[Refused], last: Option<&Report>) -> String {
    let of_last = last.and_then(|report| report.failures().next());
    let example = of_last.map_or_else(String::new, |(function, failure)| {
        format!(" (first {}: {failure})", function.shown_name())
    });
    format!(
        "the checker refused further functions after {rounds} rounds with {} left in place, so nothing was written{example}; {}",
        reverted.len(),
        how_to_report()
    )
}

/// A difference, in which function or section it is, and how many there are.
fn differences(first: &Failure, all: u64, elf: &Elf<'_>) -> String {
    let place = first.old.and_then(|address| place(elf, address));
    let place = place.map_or_else(String::new, |place| format!(", in {place}"));
    match all {
        0 | 1 => format!("{first}{place}"),
        _ => format!("{first}{place} (the first of {all} differences)"),
    }
}

/// The function or section of the input that holds an address.
fn place(elf: &Elf<'_>, address: u64) -> Option<String> {
    let holds = |s: &Symbol<'_>| {
        let function = matches!(s.kind, STT_FUNC | STT_GNU_IFUNC) && s.section != 0;
        function && address.wrapping_sub(s.value) < s.size
    };
    let tables = [SymbolTable::Static, SymbolTable::Dynamic];
    let name = tables.iter().find_map(|table| {
        let symbol = elf.symbols(*table).iter().find(|s| holds(s))?;
        Some(String::from_utf8_lossy(symbol.name).into_owned())
    });
    name.or_else(|| {
        let holds = |s: &&postlink_elf::elf::Section<'_>| {
            s.is_alloc() && (s.addr..s.end()).contains(&address)
        };
        let section = elf.sections.iter().find(holds)?;
        Some(section.name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use postlink_verify::{Basis, Digest, Verdict};

    use super::*;

    fn failure(old: Option<u64>) -> Failure {
        Failure {
            check: Check::Headers,
            reason: "a program header changed".to_owned(),
            old,
            new: old,
            old_value: "0x7".to_owned(),
            new_value: "0x5".to_owned(),
        }
    }

    fn certificate(file_failures: Vec<Failure>) -> Report {
        let digest = || Digest {
            len: 0,
            xxh3: String::new(),
        };
        Report {
            checker: "",
            machine: "",
            basis: Basis::Kept,
            input: digest(),
            output: digest(),
            proved: 0,
            failed: 0,
            identical: 0,
            retargeted: 0,
            pointers: 0,
            assumptions: vec![],
            changes: vec![],
            moved_stack_rows: 0,
            routine_rows: 0,
            asks_for_huge_pages: false,
            file_failure_count: file_failures.len() as u64,
            file_failures,
            debug: None,
            functions: vec![],
        }
    }

    /// This test's own program, which has `main`.
    fn own_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().expect("a program")).expect("a file")
    }

    #[test]
    fn what_is_refused_has_a_place_both_values_what_becomes_of_it_and_where_to_report() {
        let file = own_program();
        let elf = Elf::parse(&file).expect("an ELF file");
        let mut symbols = elf.symbols(SymbolTable::Static).iter();
        let main = symbols.find(|s| s.name == b"main").expect("main");
        let section = elf.sections.iter().find(|s| s.name == ".rodata");
        let constants = section.expect("constants").addr;
        for (place, address) in [("main", main.value), (".rodata", constants)] {
            let both = vec![failure(Some(address)), failure(None)];
            let said = whole_file(&certificate(both.clone()), &elf);
            let of_debug_info = debug_information(&certificate(both), &elf).expect("a sentence");
            let what = format!(
                "a program header changed (old {address:#x}, new {address:#x}): 0x7 became 0x5, in {place} (the first of 2 differences)"
            );
            for said in [&said, &of_debug_info] {
                assert!(said.contains(&what), "{said}");
                assert!(said.contains("please report this"), "{said}");
                assert!(said.contains("/issues"), "{said}");
                assert!(!said.contains("fault of postlink"), "{said}");
            }
            assert!(said.contains("nothing was written"), "{said}");
        }
    }

    #[test]
    fn one_difference_without_a_place_is_not_counted() {
        let file = own_program();
        let elf = Elf::parse(&file).expect("an ELF file");
        let said = whole_file(&certificate(vec![failure(None)]), &elf);
        assert!(
            said.contains("a program header changed: 0x7 became 0x5; please"),
            "{said}"
        );
    }

    #[test]
    fn a_function_that_is_still_refused_after_all_rounds_is_named() {
        let mut certificate = certificate(vec![]);
        certificate.functions.push(FunctionReport {
            name: "f".to_owned(),
            old: 1,
            new: 2,
            verdict: Verdict::Failed(failure(Some(1))),
            instructions: 0,
            assumed_no_return: 0,
            unreached: vec![],
            entry: None,
            falls_back: vec![],
            tables: Vec::new(),
        });
        let (function, reason) = certificate.failures().next().expect("a failure");
        let reverted = [Refused::new(function, reason)];
        let said = after_rounds(4, &reverted, Some(&certificate));
        let what = "after 4 rounds with 1 left in place, so nothing was written (first f: a program header changed";
        assert!(said.contains(what), "{said}");
    }
}
