//! Calls that may not come back in the ordinary way.
//!
//! Counting relies on conservation: what enters a block leaves it. A call breaks that when it does not return
//! (`exit`), returns elsewhere (`longjmp`, an exception) or returns more than once (`setjmp`, `vfork`). Such
//! a call ends its block, and the flow graph gets an edge that no counter watches. That costs about a counter
//! each, so it is decided with care (system calls in the code itself, which are few and slow, are taken for
//! calls that may do all of that):
//!
//! * a program that neither has nor imports any means of leaving a frame other than by returning has no such
//!   calls, but for those known not to return, or not always (`kill`, `execve`);
//! * a function without a return and without a way out to other code does not come back;
//! * library functions known never to call back and never to unwind are safe, imported or linked in
//!   ([`super::library`]);
//! * a function is safe if it calls nothing but safe functions (least fixed point over the call graph of the sweep).
//!
//! Where a language raises exceptions from instructions that fault ([`Program::faults`]), the last two do not hold: any
//! function may end in one, also a library's that is given a bad pointer.

use postlink_elf::elf::SymbolTable;
use postlink_isa::{Flow, Forks, Insn};
use rustc_hash::{FxHashMap, FxHashSet};

use super::libc::{FORKS, MAY_END, NO_RETURN, SAFE, SYSCALL, TWICE, base_name, is_static, throws};
use super::program::Program;

/// What is known of a called function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallFacts {
    /// It may leave by another way than returning to the next instruction.
    pub nonlocal_exits: bool,
    /// It never returns.
    pub no_return: bool,
    /// It may return more than once.
    pub returns_twice: bool,
    /// It may return in a new process.
    pub forks: Forks,
}

/// Facts on every function that can be called.
#[derive(Debug, Default)]
pub struct NonlocalExits {
    /// The program has some means of leaving frames other than returning.
    pub can_unwind: bool,
    /// By address of a function, stub or slot; functions that are not listed follow `default`.
    known: FxHashMap<u64, CallFacts>,
    default: CallFacts,
    /// Functions that leave by a jump to one that forks, and are called as if they forked themselves.
    forking: FxHashSet<u64>,
}

impl NonlocalExits {
    /// Gathers facts. `unsafe_pieces[i]` says whether piece i may, by itself or through others, reach something unsafe.
    pub fn new(program: &Program<'_>) -> NonlocalExits {
        let can_unwind = program.can_unwind;
        // Without any name every function may be `setjmp` or `fork`.
        let nameless =
            is_static(program.elf) && program.elf.symbols(SymbolTable::Static).is_empty();
        let default = CallFacts {
            nonlocal_exits: can_unwind,
            returns_twice: nameless,
            forks: if nameless { Forks::Maybe } else { Forks::Never },
            ..CallFacts::default()
        };
        let gone = CallFacts {
            nonlocal_exits: true,
            no_return: true,
            ..CallFacts::default()
        };
        let mut known: FxHashMap<u64, CallFacts> = FxHashMap::default();
        let table: FxHashMap<&[u8], CallFacts> = {
            let mut t = FxHashMap::default();
            if !program.faults() {
                t.extend(SAFE.iter().map(|n| (*n, CallFacts::default())));
            }
            let may_end = CallFacts {
                nonlocal_exits: true,
                ..CallFacts::default()
            };
            t.extend(MAY_END.iter().map(|n| (*n, may_end)));
            t.extend(NO_RETURN.iter().map(|n| (*n, gone)));
            for n in TWICE {
                t.insert(
                    *n,
                    CallFacts {
                        nonlocal_exits: can_unwind,
                        returns_twice: true,
                        ..CallFacts::default()
                    },
                );
            }
            for n in FORKS {
                t.entry(*n).or_insert(default).forks = Forks::Maybe;
            }
            t.entry(SYSCALL).or_insert(default).forks = Forks::ByNumber;
            t
        };
        if can_unwind && !nameless && !program.faults() {
            known.reserve(program.pieces.len());
            for (i, p) in program.pieces.iter().enumerate() {
                if !program.unsafe_pieces[i] {
                    known.insert(p.start, CallFacts::default());
                }
            }
        }
        if !program.faults() {
            let library = program.library.iter();
            known.extend(library.map(|at| (*at, CallFacts::default())));
        }
        known.extend(program.no_return.iter().map(|start| (*start, gone)));
        for addr in program.imports.keys() {
            let Some(name) = program.import_name(*addr).map(base_name) else {
                continue;
            };
            if let Some(facts) = table.get(name) {
                known.insert(*addr, *facts);
            } else if throws(name) {
                known.insert(*addr, gone);
            }
        }
        let symbols = program.elf.symbols(SymbolTable::Static);
        let named: Vec<(u64, CallFacts)> =
            postlink_parallel::filter_map(&program.symbols, |(value, i)| {
                let s = symbols.get(*i as usize)?;
                let name = base_name(s.name);
                let facts = table.get(name)?;
                // A program's own function may share a name with a library's safe one: there the call graph decides.
                let matters = facts.no_return || facts.returns_twice || MAY_END.contains(&name);
                matters.then_some((*value, *facts))
            });
        known.extend(named);
        NonlocalExits {
            can_unwind,
            known,
            default,
            forking: FxHashSet::default(),
        }
    }

    /// From now on a call of the function at `start` may return in a new process, by a jump at its end.
    pub fn forks_at_its_end(&mut self, start: u64) {
        let default = self.default;
        self.known.entry(start).or_insert(default).forks = Forks::Maybe;
        self.forking.insert(start);
    }

    /// Whether that was said of a function.
    pub fn is_forking(&self, start: u64) -> bool {
        self.forking.contains(&start)
    }

    /// Facts on the callee of a call instruction, or on what a jump leads to.
    pub fn call(&self, program: &Program<'_>, insn: &Insn) -> CallFacts {
        self.known(self.callee(program, insn))
    }

    /// What a call or jump leads to, if it says so: a function, a stub, or a slot that something else fills.
    pub fn callee(&self, program: &Program<'_>, insn: &Insn) -> Option<u64> {
        match insn.flow {
            Flow::Call { target } | Flow::Jump { target } => Some(target),
            // A call through an import slot or a pointer.
            _ => insn
                .slot()
                .map(|slot| program.refs.constant_slot(slot).unwrap_or(slot)),
        }
    }

    /// Whether a call of what is at an address may return in a new process.
    pub fn may_fork(&self, callee: u64) -> bool {
        self.of(callee).forks != Forks::Never
    }

    /// Addresses of what is known to return in a new process, maybe: all there are, but for what
    /// [is not known](Self::known).
    pub fn all_forking(&self) -> impl Iterator<Item = u64> + '_ {
        let known = self.known.iter();
        known
            .filter(|(_, facts)| facts.forks != Forks::Never)
            .map(|(at, _)| *at)
    }

    /// Facts on [what a call leads to](Self::callee).
    pub fn known(&self, callee: Option<u64>) -> CallFacts {
        callee.map_or(self.default, |callee| self.of(callee))
    }

    fn of(&self, callee: u64) -> CallFacts {
        self.known.get(&callee).copied().unwrap_or(self.default)
    }
}
