//! Which calls certainly come back.
//!
//! Whoever is called may exit, throw or jump far; then what stands behind the call did not run, though the block did. For block coverage to be
//! exact, a call is therefore a way out of its block, and a block with such a way needs more counters around it. Most calls come back,
//! and of many that is certain:
//!
//! * Functions of the C library that cannot do otherwise, by name: no callbacks, no cancellation points, nothing that checks and aborts.
//! * Functions of the same file that nobody can replace (local, hidden, or called without a linker's stub on x86-64, where compilers use one
//!   for what may be replaced), from each of whose blocks a return can be reached and which call only functions that come back. Recursion and
//!   loops are taken to end, as they are within a function: whoever is killed in one of them has no exact coverage anyway.
//!
//! The second is the greatest set that agrees with itself: all candidates, less those with a call to outside, until nothing changes.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::blocks;
use crate::flow::{self, Flow};
use crate::lexer::{self, Kind};
use crate::reader::{self, Function, Unit};
use crate::target::{Arch, Format, Target};

/// Functions of the C library that always return, sorted.
const LIBRARY: &[&[u8]] = &[
    b"__ctype_b_loc",
    b"__ctype_tolower_loc",
    b"__ctype_toupper_loc",
    b"__errno_location",
    b"abs",
    b"acos",
    b"asin",
    b"atan",
    b"atan2",
    b"atof",
    b"atoi",
    b"atol",
    b"atoll",
    b"bcmp",
    b"calloc",
    b"cbrt",
    b"ceil",
    b"ceilf",
    b"clock",
    b"cos",
    b"cosf",
    b"cosh",
    b"difftime",
    b"div",
    b"drand48",
    b"erf",
    b"exp",
    b"exp2",
    b"expf",
    b"expm1",
    b"fabs",
    b"ffs",
    b"floor",
    b"floorf",
    b"fma",
    b"fmax",
    b"fmin",
    b"fmod",
    b"fmodf",
    b"free",
    b"frexp",
    b"getenv",
    b"getpid",
    b"gettimeofday",
    b"hypot",
    b"isalnum",
    b"isalpha",
    b"isatty",
    b"isdigit",
    b"islower",
    b"isprint",
    b"ispunct",
    b"isspace",
    b"isupper",
    b"isxdigit",
    b"labs",
    b"ldexp",
    b"ldiv",
    b"llabs",
    b"localeconv",
    b"log",
    b"log10",
    b"log1p",
    b"log2",
    b"logf",
    b"lrand48",
    b"lround",
    b"malloc",
    b"memchr",
    b"memcmp",
    b"memcpy",
    b"memmove",
    b"mempcpy",
    b"memrchr",
    b"memset",
    b"modf",
    b"pow",
    b"powf",
    b"rand",
    b"random",
    b"realloc",
    b"reallocarray",
    b"rint",
    b"round",
    b"sin",
    b"sinf",
    b"sinh",
    b"sqrt",
    b"sqrtf",
    b"srand",
    b"srand48",
    b"srandom",
    b"stpcpy",
    b"strcasecmp",
    b"strcat",
    b"strchr",
    b"strcmp",
    b"strcoll",
    b"strcpy",
    b"strcspn",
    b"strdup",
    b"strerror",
    b"strlen",
    b"strncasecmp",
    b"strncat",
    b"strncmp",
    b"strncpy",
    b"strndup",
    b"strnlen",
    b"strpbrk",
    b"strrchr",
    b"strspn",
    b"strstr",
    b"strtod",
    b"strtok",
    b"strtol",
    b"strtoll",
    b"strtoul",
    b"strtoull",
    b"tan",
    b"tanf",
    b"tanh",
    b"time",
    b"times",
    b"tolower",
    b"toupper",
    b"trunc",
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
            Flow::Next | Flow::Return => {}
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
            Flow::Call(None) | Flow::Stop => return None,
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
        assert!(!returning.call(b"printf", b"call printf@PLT"));
        // A function of one's own with the name of one of the library's.
        assert!(!returning.call(b"free", b"call free"));
    }
}
