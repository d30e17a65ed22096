//! Calls that may not come back in the ordinary way.
//!
//! Counting relies on conservation: what enters a block leaves it. A call breaks that when it does not return (`exit`), returns
//! elsewhere (`longjmp`, an exception) or returns more than once (`setjmp`, `vfork`). Such a call ends its block, and the
//! flow graph gets an edge that no counter watches. That costs about a counter each, so it is decided with care (system calls in the code
//! itself, which are few and slow, are taken for calls that may do all of that):
//!
//! * a program that neither has nor imports any means of leaving a frame other than by returning has no such calls, but for those
//!   known not to return;
//! * a function without a return and without a way out to other code does not come back;
//! * library functions known never to call back and never to unwind are safe, imported or linked in ([`crate::library`]);
//! * a function is safe if it calls nothing but safe functions (least fixed point over the call graph of the sweep).

use postlink_image::elf::{Elf, SymbolTable};
use postlink_isa::{Flow, Forks, Insn};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::discover::Program;

/// What is known of a called function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallFacts {
    /// It may leave by another way than returning to the next instruction.
    pub leaks: bool,
    /// It never returns.
    pub no_return: bool,
    /// It may return more than once.
    pub returns_twice: bool,
    /// It may return in a new process.
    pub forks: Forks,
}

/// Facts on every function that can be called.
#[derive(Debug, Default)]
pub struct Leaks {
    /// The program has some means of leaving frames other than returning.
    pub can_unwind: bool,
    /// By address of a function, stub or slot; functions that are not listed follow `default`.
    known: FxHashMap<u64, CallFacts>,
    default: CallFacts,
}

const NO_RETURN: &[&[u8]] = &[
    b"abort",
    b"exit",
    b"_exit",
    b"_Exit",
    b"quick_exit",
    b"pthread_exit",
    b"__assert_fail",
    b"__assert_perror_fail",
    b"__stack_chk_fail",
    b"__chk_fail",
    b"__fortify_fail",
    b"__cxa_throw",
    b"__cxa_rethrow",
    b"__cxa_bad_cast",
    b"__cxa_bad_typeid",
    b"__cxa_throw_bad_array_new_length",
    b"__cxa_call_unexpected",
    b"__cxa_pure_virtual",
    b"__cxa_call_terminate",
    b"__clang_call_terminate",
    b"_Unwind_Resume",
    b"longjmp",
    b"_longjmp",
    b"siglongjmp",
    b"__longjmp_chk",
    b"_ZSt9terminatev",
    b"rust_panic",
    b"rust_begin_unwind",
];

const UNWINDERS: &[&[u8]] = &[
    b"longjmp",
    b"_longjmp",
    b"siglongjmp",
    b"__longjmp_chk",
    b"_Unwind_RaiseException",
    b"_Unwind_Resume",
    b"_Unwind_ForcedUnwind",
    b"__cxa_throw",
    b"__cxa_rethrow",
    b"pthread_exit",
    b"swapcontext",
    b"setcontext",
];

const TWICE: &[&[u8]] = &[
    b"setjmp",
    b"_setjmp",
    b"sigsetjmp",
    b"__sigsetjmp",
    b"getcontext",
    b"fork",
    b"_Fork",
    b"vfork",
    b"__vfork",
    b"__fork",
    b"__libc_fork",
    b"forkpty",
];

/// What returns in a new process with memory of its own, or may. `vfork` does not count: its child shares the parent's memory.
const FORKS: &[&[u8]] = &[
    b"fork",
    b"_Fork",
    b"__fork",
    b"__libc_fork",
    b"forkpty",
    b"daemon",
];

/// Makes any system call.
const SYSCALL: &[u8] = b"syscall";

/// Library functions that neither call back nor unwind.
const SAFE: &[&[u8]] = &[
    b"memcpy",
    b"memmove",
    b"mempcpy",
    b"memset",
    b"wmemset",
    b"memcmp",
    b"bcmp",
    b"memchr",
    b"memrchr",
    b"rawmemchr",
    b"strlen",
    b"strnlen",
    b"wcslen",
    b"strcmp",
    b"strncmp",
    b"strcasecmp",
    b"strncasecmp",
    b"strchr",
    b"strrchr",
    b"strchrnul",
    b"strstr",
    b"strcasestr",
    b"strcpy",
    b"strncpy",
    b"stpcpy",
    b"stpncpy",
    b"strcat",
    b"strncat",
    b"strspn",
    b"strcspn",
    b"strpbrk",
    b"strcoll",
    b"strdup",
    b"strtol",
    b"strtoul",
    b"strtoll",
    b"strtoull",
    b"strtod",
    b"strtof",
    b"strtold",
    b"strerror",
    b"strftime",
    b"__memcpy_chk",
    b"__memmove_chk",
    b"__memset_chk",
    b"__strcpy_chk",
    b"__strcat_chk",
    b"__strncpy_chk",
    b"malloc",
    b"calloc",
    b"realloc",
    b"free",
    b"posix_memalign",
    b"aligned_alloc",
    b"malloc_usable_size",
    b"memalign",
    b"_ZdlPv",
    b"_ZdlPvm",
    b"_ZdaPv",
    b"_ZdaPvm",
    b"__errno_location",
    b"__ctype_b_loc",
    b"__ctype_tolower_loc",
    b"__ctype_toupper_loc",
    b"__tls_get_addr",
    b"toupper",
    b"tolower",
    b"isalnum",
    b"isspace",
    b"snprintf",
    b"vsnprintf",
    b"sprintf",
    b"printf",
    b"fprintf",
    b"vfprintf",
    b"fputs",
    b"fputc",
    b"putc",
    b"puts",
    b"putchar",
    b"fwrite",
    b"fread",
    b"fgets",
    b"fgetc",
    b"getc",
    b"ungetc",
    b"fflush",
    b"fopen",
    b"fopen64",
    b"fclose",
    b"fseek",
    b"ftell",
    b"ferror",
    b"feof",
    b"__snprintf_chk",
    b"__sprintf_chk",
    b"__printf_chk",
    b"__fprintf_chk",
    b"__vsnprintf_chk",
    b"__vfprintf_chk",
    b"time",
    b"gettimeofday",
    b"clock_gettime",
    b"clock",
    b"localtime_r",
    b"gmtime_r",
    b"localtime",
    b"gmtime",
    b"mktime",
    b"getenv",
    b"getpid",
    b"gettid",
    b"pow",
    b"exp",
    b"log",
    b"log10",
    b"log2",
    b"sin",
    b"cos",
    b"tan",
    b"asin",
    b"acos",
    b"atan",
    b"atan2",
    b"sinh",
    b"cosh",
    b"tanh",
    b"floor",
    b"ceil",
    b"fmod",
    b"sqrt",
    b"trunc",
    b"round",
    b"ldexp",
    b"frexp",
    b"modf",
    b"fabs",
    b"cbrt",
    b"exp2",
    b"hypot",
    b"floorf",
    b"ceilf",
    b"fmodf",
    b"powf",
    b"__cxa_begin_catch",
    b"__cxa_allocate_exception",
    b"__cxa_free_exception",
    b"__cxa_guard_acquire",
    b"__cxa_guard_release",
    b"__cxa_get_globals",
    b"__dynamic_cast",
    b"__gxx_personality_v0",
    b"pthread_mutex_lock",
    b"pthread_mutex_unlock",
    b"pthread_mutex_trylock",
    b"pthread_self",
    b"pthread_getspecific",
    b"pthread_setspecific",
    b"pthread_rwlock_rdlock",
    b"pthread_rwlock_wrlock",
    b"pthread_rwlock_unlock",
    b"open",
    b"open64",
    b"close",
    b"fstat",
    b"fstat64",
    b"stat",
    b"stat64",
    b"lstat",
    b"lstat64",
    b"lseek",
    b"lseek64",
    b"mmap",
    b"mmap64",
    b"munmap",
    b"madvise",
    b"mprotect",
    b"ftruncate",
    b"access",
    b"unlink",
    b"fcntl",
    b"fcntl64",
    b"epoll_ctl",
    b"isatty",
    b"sysconf",
];

impl Leaks {
    /// Whether any of the program's symbols is a means of leaving frames without returning.
    pub fn can_unwind(elf: &Elf<'_>) -> bool {
        let set: rustc_hash::FxHashSet<&[u8]> = UNWINDERS.iter().copied().collect();
        [SymbolTable::Dynamic, SymbolTable::Static].iter().any(|t| {
            let table = elf.symbols(*t);
            (0..table.len())
                .into_par_iter()
                .with_min_len(4096)
                .any(|i| {
                    table
                        .get(i)
                        .is_some_and(|s| set.contains(base_name(s.name)))
                })
        })
    }

    /// Whether calls to an imported function neither unwind nor call back.
    pub fn import_is_safe(name: &[u8]) -> bool {
        SAFE.contains(&base_name(name))
    }

    /// Whether an imported function returns in a new process.
    pub fn import_forks(name: &[u8]) -> bool {
        FORKS.contains(&base_name(name))
    }

    /// Gathers facts. `unsafe_pieces[i]` says whether piece i may, by itself or through others, reach something unsafe.
    pub fn new(program: &Program<'_>) -> Leaks {
        let can_unwind = program.can_unwind;
        let default = CallFacts {
            leaks: can_unwind,
            ..CallFacts::default()
        };
        let gone = CallFacts {
            leaks: true,
            no_return: true,
            ..CallFacts::default()
        };
        let mut known: FxHashMap<u64, CallFacts> = FxHashMap::default();
        let table: FxHashMap<&[u8], CallFacts> = {
            let mut t = FxHashMap::default();
            for n in SAFE {
                t.insert(*n, CallFacts::default());
            }
            for n in NO_RETURN {
                t.insert(*n, gone);
            }
            for n in TWICE {
                t.insert(
                    *n,
                    CallFacts {
                        leaks: can_unwind,
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
        if can_unwind {
            for (i, p) in program.pieces.iter().enumerate() {
                if !program.unsafe_pieces[i] {
                    known.insert(p.start, CallFacts::default());
                }
            }
        }
        let library = program.library.iter();
        known.extend(library.map(|at| (*at, CallFacts::default())));
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
        let named: Vec<(u64, CallFacts)> = program
            .symbols
            .par_iter()
            .with_min_len(4096)
            .filter_map(|(value, i)| {
                let s = symbols.get(*i as usize)?;
                let facts = table.get(base_name(s.name))?;
                // A program's own function may share a name with a library's safe one: there the call graph decides.
                (facts.no_return || facts.returns_twice).then_some((*value, *facts))
            })
            .collect();
        known.extend(named);
        Leaks {
            can_unwind,
            known,
            default,
        }
    }

    /// Facts on the callee of a call instruction, or on what a jump leads to.
    pub fn call(&self, program: &Program<'_>, insn: &Insn) -> CallFacts {
        let target = match insn.flow {
            Flow::Call { target } | Flow::Jump { target } => Some(target),
            // A call through an import slot or a pointer.
            _ => insn
                .slot()
                .map(|slot| program.refs.constant_slot(slot).unwrap_or(slot)),
        };
        target
            .and_then(|t| self.known.get(&t))
            .copied()
            .unwrap_or(self.default)
    }
}

/// Whether it is one of the C++ library's functions that do nothing but throw (`std::__throw_out_of_range`).
fn throws(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"_ZSt") else {
        return false;
    };
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    digits > 0 && rest[digits..].starts_with(b"__throw_")
}

/// A symbol's name without its version.
pub(crate) fn base_name(name: &[u8]) -> &[u8] {
    name.split(|c| *c == b'@').next().unwrap_or(name)
}
