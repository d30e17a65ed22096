//! Biased counters: where they may be used.
//!
//! The thread that loads the program counts without locks, all others with locks (`isa::x86_64::counter`). Threads are
//! told apart by the address of their control block. That rests on two things, and where one is missing counters are
//! atomic:
//!
//! * there is a control block before any code of the program runs: a dynamic loader makes the first one;
//! * no code changes where a thread finds it, and no two threads that run at once have the same one. Thread libraries
//!   give each its own; `clone` need not.
//!
//! A shared library does not know its host, which may do that. A library that has `clone` itself is the C library: its
//! own system calls are those of its threads.

use postlink_elf::elf::SymbolTable;
use postlink_isa::Isa;

use crate::discover::{Program, is_program};

/// Library functions that may make threads with their parent's identity, or give a thread another.
const UNNOTICED: &[&[u8]] = &[b"clone", b"__clone", b"clone3", b"arch_prctl"];

/// Why a program cannot have biased counters: a sentence. `None` if it can.
pub fn obstacle<I: Isa>(program: &Program<'_>) -> Option<String> {
    if I::BIASED.is_none() {
        return Some(format!(
            "there are no such counters in {} programs",
            I::NAME
        ));
    }
    if is_program(program.elf) && program.elf.interpreter().is_none() {
        return Some(
            "a static program has no thread identities before its own start-up code makes them"
                .into(),
        );
    }
    if let Some(name) = program.imported(|name| UNNOTICED.contains(&name)) {
        return Some(format!("it uses the function {}", name.escape_ascii()));
    }
    if is_loader(program) {
        return Some(
            "a dynamic loader runs before it has made the first thread's identity itself".into(),
        );
    }
    if is_c_library(program) {
        return None;
    }
    postlink_parallel::find_first(program.functions.len(), |f| {
        let mut pieces = program.functions[f].pieces.iter();
        pieces.find_map(|piece| {
            let piece = &program.pieces[*piece as usize];
            let bytes = program.elf.bytes_at(piece.start, piece.end - piece.start)?;
            let (at, why) = I::biased_obstacle(bytes, piece.start)?;
            Some(format!("{} {why}, at {at:#x}", program.name(f)))
        })
    })
}

/// Whether it is the C library.
fn is_c_library(program: &Program<'_>) -> bool {
    !is_program(program.elf) && (exports(program, b"clone") || exports(program, b"__clone"))
}

/// Whether it loads the others.
fn is_loader(program: &Program<'_>) -> bool {
    exports(program, b"__tls_get_addr")
}

fn exports(program: &Program<'_>, name: &[u8]) -> bool {
    let table = program.elf.symbols(SymbolTable::Dynamic);
    table.iter().any(|s| s.section != 0 && s.name == name)
}
