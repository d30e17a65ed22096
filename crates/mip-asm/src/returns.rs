//! Which calls certainly come back.
//!
//! A callee may exit, throw or call `longjmp`; then what is after the call did not run, though the block
//! did. For block coverage to be exact, a call is therefore a way out of its block, and a block with such a
//! way needs more counters around it. Most calls come back, and of many that is certain:
//!
//! * Functions of the C library that cannot do otherwise, by name: no callbacks, nothing that checks and
//!   aborts. A thread that is cancelled in one of them, and a process that a signal ends there, count as
//!   killed in the middle of a function.
//! * Functions of the same file that cannot be preempted (local, hidden, or called without a linker's stub on
//!   x86-64, where compilers use one for what may be replaced), from each of whose blocks a return can be
//!   reached and which call only functions that come back. Recursion and loops are taken to end, as they are
//!   within a function: a program that is killed in one of them has no exact coverage anyway.
//!
//! The second is the greatest set that agrees with itself: all candidates, less those with a call to outside,
//! until nothing changes.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::blocks;
use crate::flow::{self, Flow};
use crate::lexer::{self, Kind};
use crate::reader::{self, Function, Unit};
use crate::target::{Arch, Format, Target};

/// Functions of the C library that always return, sorted.
const LIBRARY: &[&[u8]] = &[
    b"_IO_getc",
    b"_IO_putc",
    b"_ZdaPv",
    b"_ZdaPvm",
    b"_ZdlPv",
    b"_ZdlPvm",
    b"__ctype_b_loc",
    b"__ctype_tolower_loc",
    b"__ctype_toupper_loc",
    b"__cxa_allocate_exception",
    b"__cxa_begin_catch",
    b"__cxa_free_exception",
    b"__cxa_get_exception_ptr",
    b"__errno_location",
    b"__finite",
    b"__fpclassify",
    b"__fprintf_chk",
    b"__isinf",
    b"__isnan",
    b"__isoc23_fscanf",
    b"__isoc23_scanf",
    b"__isoc23_sscanf",
    b"__isoc23_strtol",
    b"__isoc23_strtoll",
    b"__isoc23_strtoul",
    b"__isoc23_strtoull",
    b"__isoc99_fscanf",
    b"__isoc99_scanf",
    b"__isoc99_sscanf",
    b"__overflow",
    b"__printf_chk",
    b"__signbit",
    b"__uflow",
    b"__vfprintf_chk",
    b"__vprintf_chk",
    b"abs",
    b"access",
    b"acos",
    b"acosf",
    b"acosh",
    b"asin",
    b"asinf",
    b"asinh",
    b"asprintf",
    b"atan",
    b"atan2",
    b"atan2f",
    b"atanf",
    b"atanh",
    b"atof",
    b"atoi",
    b"atol",
    b"atoll",
    b"bcmp",
    b"calloc",
    b"cbrt",
    b"cbrtf",
    b"ceil",
    b"ceilf",
    b"clearerr",
    b"clock",
    b"clock_gettime",
    b"close",
    b"copysign",
    b"cos",
    b"cosf",
    b"cosh",
    b"difftime",
    b"div",
    b"dprintf",
    b"drand48",
    b"erf",
    b"exp",
    b"exp2",
    b"exp2f",
    b"expf",
    b"expm1",
    b"fabs",
    b"fabsf",
    b"fclose",
    b"fdopen",
    b"feof",
    b"ferror",
    b"fflush",
    b"ffs",
    b"fgetc",
    b"fgets",
    b"fileno",
    b"floor",
    b"floorf",
    b"fma",
    b"fmax",
    b"fmin",
    b"fmod",
    b"fmodf",
    b"fopen",
    b"fopen64",
    b"fprintf",
    b"fputc",
    b"fputc_unlocked",
    b"fputs",
    b"fputs_unlocked",
    b"fread",
    b"fread_unlocked",
    b"free",
    b"freopen",
    b"freopen64",
    b"frexp",
    b"fscanf",
    b"fseek",
    b"fseeko",
    b"fseeko64",
    b"fstat",
    b"ftell",
    b"ftello",
    b"ftello64",
    b"fwrite",
    b"fwrite_unlocked",
    b"getc",
    b"getc_unlocked",
    b"getchar",
    b"getcwd",
    b"getdelim",
    b"getenv",
    b"geteuid",
    b"getline",
    b"getpid",
    b"getppid",
    b"getrusage",
    b"gettimeofday",
    b"getuid",
    b"gmtime",
    b"hypot",
    b"hypotf",
    b"ilogb",
    b"isalnum",
    b"isalpha",
    b"isatty",
    b"isdigit",
    b"isinf",
    b"islower",
    b"isnan",
    b"isprint",
    b"ispunct",
    b"isspace",
    b"isupper",
    b"isxdigit",
    b"labs",
    b"ldexp",
    b"ldexpf",
    b"ldiv",
    b"llabs",
    b"llround",
    b"localeconv",
    b"localtime",
    b"log",
    b"log10",
    b"log10f",
    b"log1p",
    b"log1pf",
    b"log2",
    b"log2f",
    b"logb",
    b"logf",
    b"lrand48",
    b"lrint",
    b"lround",
    b"lseek",
    b"lseek64",
    b"lstat",
    b"madvise",
    b"malloc",
    b"mblen",
    b"mbtowc",
    b"memccpy",
    b"memchr",
    b"memcmp",
    b"memcpy",
    b"memmove",
    b"mempcpy",
    b"memrchr",
    b"memset",
    b"mkdir",
    b"mktime",
    b"mmap",
    b"modf",
    b"munmap",
    b"nearbyint",
    b"nextafter",
    b"open",
    b"open64",
    b"perror",
    b"pow",
    b"powf",
    b"printf",
    b"putc",
    b"putc_unlocked",
    b"putchar",
    b"puts",
    b"rand",
    b"random",
    b"read",
    b"realloc",
    b"reallocarray",
    b"remove",
    b"rename",
    b"rewind",
    b"rint",
    b"rintf",
    b"rmdir",
    b"round",
    b"roundf",
    b"scalbn",
    b"scanf",
    b"setbuf",
    b"setenv",
    b"setlocale",
    b"setvbuf",
    b"sin",
    b"sincos",
    b"sincosf",
    b"sinf",
    b"sinh",
    b"snprintf",
    b"sprintf",
    b"sqrt",
    b"sqrtf",
    b"srand",
    b"srand48",
    b"srandom",
    b"sscanf",
    b"stat",
    b"stpcpy",
    b"stpncpy",
    b"strcasecmp",
    b"strcasestr",
    b"strcat",
    b"strchr",
    b"strchrnul",
    b"strcmp",
    b"strcoll",
    b"strcpy",
    b"strcspn",
    b"strdup",
    b"strerror",
    b"strerror_r",
    b"strftime",
    b"strlen",
    b"strncasecmp",
    b"strncat",
    b"strncmp",
    b"strncpy",
    b"strndup",
    b"strnlen",
    b"strpbrk",
    b"strrchr",
    b"strsep",
    b"strsignal",
    b"strspn",
    b"strstr",
    b"strtod",
    b"strtof",
    b"strtok",
    b"strtok_r",
    b"strtol",
    b"strtold",
    b"strtoll",
    b"strtoul",
    b"strtoull",
    b"strxfrm",
    b"sysconf",
    b"tan",
    b"tanf",
    b"tanh",
    b"tanhf",
    b"time",
    b"times",
    b"tmpfile",
    b"tolower",
    b"toupper",
    b"trunc",
    b"truncf",
    b"ungetc",
    b"unlink",
    b"vasprintf",
    b"vfprintf",
    b"vprintf",
    b"vsnprintf",
    b"vsprintf",
    b"wctomb",
    b"write",
];

/// Calls that come back.
#[derive(Debug, Default)]
pub struct Returning<'a> {
    /// Functions of this file, with whether only calls without a stub are known to reach them.
    own: FxHashMap<&'a [u8], bool>,
    /// Names that this file gives a meaning of its own.
    defined: FxHashSet<&'a [u8]>,
    underscore: bool,
}

/// What a function does to leave.
struct Summary<'a> {
    /// Whom it calls, or jumps to, with whether that goes through a stub.
    calls: Vec<(&'a [u8], bool)>,
}

impl<'a> Returning<'a> {
    /// Of a file.
    pub fn of(unit: &Unit<'a>, target: Target) -> Returning<'a> {
        let mut global = FxHashSet::default();
        let mut weak = FxHashSet::default();
        let mut hidden = FxHashSet::default();
        for statement in &unit.statements {
            if statement.kind != Kind::Directive {
                continue;
            }
            let (directive, rest) = lexer::word(statement.text(unit.source));
            let set = match directive {
                b".globl" | b".global" => &mut global,
                b".weak" | b".weak_definition" | b".weak_def_can_be_hidden" => &mut weak,
                b".hidden" | b".protected" | b".internal" | b".private_extern" => &mut hidden,
                _ => continue,
            };
            set.extend(lexer::operands(rest).map(reader::unquoted));
        }
        let mut all = Returning {
            defined: unit.functions.iter().map(|f| f.name).collect(),
            underscore: target.format == Format::MachO,
            ..Returning::default()
        };
        let mut summaries: FxHashMap<&'a [u8], Summary<'a>> = FxHashMap::default();
        let mut twice = FxHashSet::default();
        for function in &unit.functions {
            let name = function.name;
            if weak.contains(name) {
                continue;
            }
            let only_direct = global.contains(name) && !hidden.contains(name);
            if only_direct && target.arch != Arch::X86_64 {
                continue;
            }
            if let Some(summary) = summary(unit, function, target) {
                all.own.insert(name, only_direct);
                if summaries.insert(name, summary).is_some() {
                    twice.insert(name);
                }
            }
        }
        all.own.retain(|name, _| !twice.contains(name));
        loop {
            let wrong: Vec<&[u8]> = all
                .own
                .keys()
                .copied()
                .filter(|name| {
                    summaries.get(name).is_none_or(|summary| {
                        summary
                            .calls
                            .iter()
                            .any(|&(callee, stub)| !all.comes_back(callee, stub))
                    })
                })
                .collect();
            if wrong.is_empty() {
                return all;
            }
            for name in wrong {
                all.own.remove(name);
            }
        }
    }

    /// Whether a call to a name comes back; `text` is the whole instruction.
    pub fn call(&self, callee: &[u8], text: &[u8]) -> bool {
        self.comes_back(callee, through_stub(text))
    }

    fn comes_back(&self, callee: &[u8], stub: bool) -> bool {
        let callee = reader::unquoted(callee);
        if let Some(&only_direct) = self.own.get(callee) {
            return !(only_direct && stub);
        }
        let plain = if self.underscore {
            callee.strip_prefix(b"_").unwrap_or(callee)
        } else {
            callee
        };
        !self.defined.contains(callee) && LIBRARY.binary_search(&plain).is_ok()
    }
}

fn through_stub(text: &[u8]) -> bool {
    text.windows(4)
        .any(|part| part.eq_ignore_ascii_case(b"@PLT"))
}

/// Whom a function calls, if it leaves by returning or jumping to a name only.
fn summary<'a>(unit: &Unit<'a>, function: &Function<'a>, target: Target) -> Option<Summary<'a>> {
    if function.opaque {
        return None;
    }
    let mut own: FxHashSet<&[u8]> = FxHashSet::default();
    for index in function.statements() {
        let statement = unit.statements[index];
        if statement.kind == Kind::Label {
            own.insert(statement.text(unit.source));
        }
    }
    let mut calls = vec![];
    let mut ended = false;
    for index in function.statements() {
        let statement = unit.statements[index];
        match statement.kind {
            Kind::Instruction => {}
            Kind::AppStart => return None,
            _ => continue,
        }
        let text = statement.text(unit.source);
        let flow = flow::flow(target.arch, text);
        ended = flow.ends();
        match flow {
            Flow::Next | Flow::Return | Flow::Perhaps => {}
            // Whether the jump stays within the function, the graph says below.
            Flow::Indirect => {}
            Flow::Call(Some(name)) => calls.push((name, through_stub(text))),
            Flow::Jump(name) | Flow::Branch(name) => {
                if own.contains(name) {
                    continue;
                }
                if target.is_local(name) {
                    return None; // into another part of the function
                }
                calls.push((name, through_stub(text)));
            }
            Flow::Call(None) | Flow::Stop | Flow::Into => return None,
        }
    }
    if !ended {
        return None;
    }
    let graph = blocks::graph(unit, function, target, None).ok()?;
    let returns = graph.iter().all(|block| !block.leaves_unseen) && blocks::all_end(&graph);
    calls.sort_unstable();
    calls.dedup();
    returns.then_some(Summary { calls })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    #[test]
    fn the_library_is_sorted() {
        assert!(LIBRARY.is_sorted());
    }

    #[test]
    fn what_calls_only_what_returns_returns() {
        let source = b"\
\t.text\n\
\t.globl\tleaf\n\t.type\tleaf, @function\nleaf:\n\tcall\tmemcpy@PLT\n\tret\n\t.size\tleaf, .-leaf\n\
\t.type\tself, @function\nself:\n\tjne\tself\n\tcall\tself\n\tcall\tleaf\n\tret\n\t.size\tself, .-self\n\
\t.type\tout, @function\nout:\n\tcall\texit@PLT\n\tret\n\t.size\tout, .-out\n\
\t.type\tover, @function\nover:\n\tcall\tout\n\tret\n\t.size\tover, .-over\n\
\t.type\tpointer, @function\npointer:\n\tcall\t*%rax\n\tret\n\t.size\tpointer, .-pointer\n\
\t.type\tendless, @function\nendless:\n\tje\t.L1\n.L0:\n\tjmp\t.L0\n.L1:\n\tret\n\t.size\tendless, .-endless\n\
\t.type\ttail, @function\ntail:\n\tjmp\t*%rax\n\t.size\ttail, .-tail\n\
\t.type\tjumps, @function\njumps:\n\tjmp\tleaf\n\t.size\tjumps, .-jumps\n\
\t.weak\tsoft\n\t.type\tsoft, @function\nsoft:\n\tret\n\t.size\tsoft, .-soft\n\
\t.type\tfree, @function\nfree:\n\tcall\texit\n\t.size\tfree, .-free\n";
        let target = Target::of_triple("x86_64-linux-gnu").unwrap();
        let unit = reader::read(source, target, &mut Report::default()).unwrap();
        let returning = Returning::of(&unit, target);
        let names =
            |list: &[&str]| -> Vec<String> { list.iter().map(|n| (*n).to_owned()).collect() };
        let mut found: Vec<String> = returning
            .own
            .keys()
            .map(|n| String::from_utf8_lossy(n).into_owned())
            .collect();
        found.sort();
        assert_eq!(found, names(&["jumps", "leaf", "self"]));
        assert!(returning.call(b"leaf", b"call leaf"));
        assert!(!returning.call(b"leaf", b"call leaf@PLT"));
        assert!(returning.call(b"strlen", b"call strlen@PLT"));
        assert!(returning.call(b"printf", b"call printf@PLT"));
        assert!(!returning.call(b"qsort", b"call qsort@PLT"));
        // A function of one's own with the name of one of the library's.
        assert!(!returning.call(b"free", b"call free"));
    }
}
