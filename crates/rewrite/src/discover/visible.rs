//! Which pointers may follow a function that moves.
//!
//! A program can do more with the address of a function than call it: test and set its low bits (the C++
//! ABI's pointers to member functions, Ada's descriptors), read what is in front of it (type hashes of
//! sanitizers, info tables of Haskell), look it up in tables that a run-time keeps. So the rule is: *a value
//! that the program can see stays what it was*, and the jump at the old entry leads on. That costs a jump and
//! a cache line of the old code at each call through such a pointer; where it is shown that nothing can tell
//! the difference, pointers follow the function instead. It is shown if all of this holds:
//!
//! | condition | why |
//! |---|---|
//! | the new address has at least as many zero bits at its end as the old one, up to four | low bits are used as marks; see [`Visible::alignment`] |
//! | what is in front of the old entry is padding, or code that does not run into it | data there is read through the pointer |
//! | every compiler that `.comment` names is one whose rules are known | others may calculate with code addresses |
//! | the file holds no run-time that describes code by address ([`super::runtimes`]) | its tables know the old address alone |
//!
//! | the program knows no bounds of the section by symbols ([`super::bounds`]) | it looks pointers up in ranges |
//! | the function's symbol does not reach over another's, nor the other way round | clang's checks of indirect calls (`-fsanitize=cfi-icall`) have pointers lead to entries of a table of jumps, and calculate with the distance from its start |
//!
//! All pointers to a function follow, or none: they are compared. Pointers to further entries of a function
//! never follow. Pointers to labels (computed goto) are not pointers to functions; those of functions that
//! have an indirect jump follow their blocks, see [`crate::cfg`].

use postlink_elf::elf::{Elf, Symbol, SymbolTable};
use postlink_isa::Isa;
use rayon::prelude::*;

use super::bounds::Bounds;
use super::program::Program;
use super::runtimes::{self, Effect};
use crate::pin::Pin;

/// The most bytes to which the alignment of a function's old address is kept.
const MOST: u64 = 16;

/// Why pointers to all functions of a file keep their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays {
    /// On request.
    Asked,
    /// The linker kept no relocations: what else knows a function by its address is not known.
    NoRelocations,
    /// The file does not say who compiled it.
    NoCompiler,
    /// A part of it was compiled by an unknown compiler: the line in `.comment`.
    Compiler(String),
    /// It holds this run-time.
    Runtime(&'static str),
    /// The program forms the address of the end of all code.
    EndOfCode,
    /// Calls are checked by distances in a table of jumps.
    CheckedCalls,
}

impl std::fmt::Display for Stays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stays::Asked => write!(f, "it was asked for"),
            Stays::NoRelocations => write!(f, "the linker kept no relocations"),
            Stays::NoCompiler => write!(
                f,
                "the file does not say which compiler made it (no section .comment)"
            ),
            Stays::Compiler(line) => write!(f, "a part of it was made by '{line}'"),
            Stays::Runtime(name) => write!(f, "it holds the run-time of {name}"),
            Stays::EndOfCode => write!(
                f,
                "the program forms the address of the end of its code (etext), which it may compare pointers with"
            ),
            Stays::CheckedCalls => write!(
                f,
                "its indirect calls are checked by distances in a table of jumps (-fsanitize=cfi-icall)"
            ),
        }
    }
}

/// Which pointers may follow; see the module.
#[derive(Clone, Debug, Default)]
pub struct Visible {
    /// Why none may, if so.
    pub stays: Option<Stays>,
    /// A run-time looks code up by addresses inside of functions, as OCaml's does by return addresses: a pointer to an
    /// inside is no label then, whatever jumps the function has.
    pub describes_insides: bool,
    /// Starts of functions whose pointers may not, ascending.
    functions: Vec<u64>,
    /// Ranges of code that the program knows.
    bounds: Bounds,
}

/// Whether the rules of who wrote this line into `.comment` are known: C, C++, Objective-C, Fortran, Ada and
/// D by GCC, C and C++ by clang, Rust. Linkers say what they are, too.
fn is_known(line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    ["GCC: (", "rustc version ", "Linker: ", "LLD ", "mold "]
        .iter()
        .any(|start| text.starts_with(start))
        || text.contains("clang version ")
}

impl Visible {
    /// Of a whole file; which functions' pointers stay is said by [`Visible::judge`].
    pub fn of_file(elf: &Elf<'_>, bounds: Bounds) -> Visible {
        let held = runtimes::found(elf);
        let runtime = held.iter().find(|r| r.effect == Effect::ValuesStay);
        let mut comments = runtimes::comments(elf).peekable();
        let stays = match runtime {
            Some(r) => Some(Stays::Runtime(r.name)),
            None if bounds.end_of_code => Some(Stays::EndOfCode),
            None if checks_calls(elf) => Some(Stays::CheckedCalls),
            None if comments.peek().is_none() => Some(Stays::NoCompiler),
            None => comments
                .find(|line| !is_known(line))
                .map(|line| Stays::Compiler(String::from_utf8_lossy(line).into_owned())),
        };
        Visible {
            stays,
            describes_insides: runtime.is_some(),
            functions: Vec::new(),
            bounds,
        }
    }

    /// Finds the functions whose pointers must stay because of what is in front of them.
    pub fn judge<I: Isa>(&mut self, program: &Program<'_>) {
        if self.stays.is_some() {
            return;
        }
        let mut pointed: Vec<u64> = program.refs.pointers.iter().map(|p| p.target).collect();
        pointed.par_sort_unstable();
        let mut functions: Vec<u64> = postlink_parallel::filter_map(&program.functions, |f| {
            let first = f.pieces[0] as usize;
            let is_seen = f.address_taken && !is_bare_in_front::<I>(program, first, &pointed);
            is_seen.then(|| program.pieces[first].start)
        });
        functions.extend(overlapping(program.elf));
        functions.par_sort_unstable();
        self.functions = functions;
    }

    /// Whether pointers to the function that begins at an address may follow it.
    pub fn may_follow(&self, start: u64) -> bool {
        self.stays.is_none()
            && self.functions.binary_search(&start).is_err()
            && !self.bounds.is_seen(start)
    }

    /// What the new address of a function must be a multiple of so that pointers to it may follow.
    pub fn alignment(start: u64) -> u64 {
        match start {
            0 => MOST,
            _ => (1 << start.trailing_zeros()).min(MOST),
        }
    }
}

/// Whether pointers to functions lead to a table of jumps, whose functions have the name of that which they jump
/// to, and that one has `.cfi` after its name.
fn checks_calls(elf: &Elf<'_>) -> bool {
    const SUFFIX: &[u8] = b".cfi";
    let symbols = elf.symbols(SymbolTable::Static);
    let mut functions = symbols.iter_where(Symbol::is_sized_function);
    symbols.may_end_with(SUFFIX) && functions.any(|(_, s)| s.name.ends_with(SUFFIX))
}

/// Starts of functions that overlap others by what their symbols say.
fn overlapping(elf: &Elf<'_>) -> Vec<u64> {
    let symbols = elf.symbols(SymbolTable::Static);
    let place = |s: &Symbol<'_>| s.is_sized_function().then_some((s.value, s.size));
    let mut all: Vec<(u64, u64)> = symbols.without_names(place).collect();
    all.par_sort_unstable();
    let (mut found, mut first, mut reach) = (Vec::new(), 0, 0);
    for (start, size) in all {
        if start >= reach {
            first = start;
        } else if start != first {
            found.extend([first, start]);
        }
        reach = start.saturating_add(size).max(reach);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether nothing is in front of a piece but padding, and before that code which does not run into it:
/// nothing reads there.
fn is_bare_in_front<I: Isa>(program: &Program<'_>, piece: usize, pointed: &[u64]) -> bool {
    let p = &program.pieces[piece];
    let before = piece
        .checked_sub(1)
        .map(|k| &program.pieces[k])
        .filter(|before| before.section == p.section);
    let from = match before {
        Some(before) => before.end,
        None => program.elf.sections[p.section as usize].addr,
    };
    if before.is_some_and(|before| runs_on(program, before.function as usize)) {
        return false;
    }
    // What is pointed to there is no padding.
    let next = pointed.partition_point(|t| *t < from);
    if pointed.get(next).is_some_and(|t| *t < p.start) {
        return false;
    }
    let Some(gap) = program.elf.bytes_at(from, p.start - from) else {
        return false;
    };
    is_padding::<I>(gap, from)
}

/// Whether the code of a function may run on into what follows it, or it is not known where it ends.
pub fn runs_on(program: &Program<'_>, function: usize) -> bool {
    matches!(
        program.functions[function].pin,
        Some(Pin::NoSize | Pin::NotInstructions | Pin::FallsOffItsEnd)
    )
}

/// Whether bytes between functions are padding: instructions that do nothing, breakpoints, zeros after all of those.
pub fn is_padding<I: Isa>(gap: &[u8], addr: u64) -> bool {
    let mut reach = addr;
    I::sweep(gap, addr, |i| {
        let padding = i.traits.nop || gap[(i.addr - addr) as usize] == 0xcc;
        if padding {
            reach = i.end();
        }
        padding
    });
    gap.iter().skip((reach - addr) as usize).all(|b| *b == 0)
}
