//! Generated C++: what csmith does not write.
//!
//! Classes with virtual functions, several bases and virtual bases; pointers to members, of which the lowest bit says
//! whether the function is virtual; exceptions through frames with destructors, thrown again, of classes with bases;
//! lambdas in `std::function`; coroutines; switches; variadic functions; tables of pointers to functions. A program
//! ends: functions call those with smaller numbers, and all calls together have a limit. It prints a checksum of every
//! value it saw, and after each round.
//!
//! There are two families of classes, so that every conversion is unambiguous: in one all bases are virtual and a class
//! overrides everything that it inherits, in the other bases have no ancestors in common.

use std::collections::BTreeSet;

use super::random::Random;

const HEAD: &str = "\
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#if COROUTINES
#include <coroutine>
#endif
typedef unsigned long u64;
static u64 sum = 14695981039346656037ul;
static long fuel = 60000;
static void mix(u64 v) { sum = (sum ^ v) * 0x100000001b3ul; sum ^= sum >> 29; }
struct Guard { u64 v; explicit Guard(u64 v) : v(v) {} ~Guard() { mix(v); } };
struct Error { u64 v; explicit Error(u64 v) : v(v) {} Error(const Error &e) : v(e.v) { mix(3); } virtual ~Error() { mix(v + 1); } virtual u64 get() const { return v; } };
struct Worse : virtual Error { explicit Worse(u64 v) : Error(v) {} u64 get() const override { return v * 5; } };
struct Other { int v; };
__attribute__((noinline)) static u64 variadic(int n, ...) {
  va_list list; va_start(list, n); u64 x = 0;
  for (int i = 0; i < n; i++) x = x * 31 + (i & 1 ? (u64)va_arg(list, double) : va_arg(list, u64));
  va_end(list); return x;
}
";

const COROUTINES: &str = "\
#if COROUTINES
struct Series {
  struct promise_type {
    u64 value = 0; std::exception_ptr error;
    Series get_return_object() { return Series{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(u64 v) { value = v; return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  std::coroutine_handle<promise_type> handle;
  explicit Series(std::coroutine_handle<promise_type> h) : handle(h) {}
  Series(const Series &) = delete;
  ~Series() { handle.destroy(); }
  bool next() { handle.resume(); if (handle.promise().error) std::rethrow_exception(handle.promise().error); return !handle.done(); }
};
#endif
";

/// A class.
struct Class {
    /// All bases are virtual.
    is_virtual: bool,
    bases: Vec<usize>,
    /// All classes that it inherits from.
    ancestors: BTreeSet<usize>,
    /// Whose virtual functions it has a definition of: its own, and others.
    defines: BTreeSet<usize>,
}

/// A program being written.
struct Writer {
    random: Random,
    text: String,
    classes: Vec<Class>,
}

/// The program of a seed.
pub fn program(seed: u64) -> String {
    let mut writer = Writer {
        random: Random::new(seed),
        text: [HEAD, COROUTINES].concat(),
        classes: vec![],
    };
    let (classes, functions) = (3 + writer.random.below(6), 4 + writer.random.below(8));
    for number in 0..classes {
        writer.class(number);
    }
    writer.objects();
    for number in 0..functions {
        writer.function(number);
    }
    writer.main(functions);
    writer.text
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn class(&mut self, number: usize) {
        let is_virtual = self.random.one_in(2);
        let (mut bases, mut ancestors) = (vec![], BTreeSet::new());
        for _ in 0..self.random.below(4) {
            let base = self.random.below(number);
            let Some(class) = self
                .classes
                .get(base)
                .filter(|c| c.is_virtual == is_virtual)
            else {
                continue;
            };
            let mut of_base = class.ancestors.clone();
            of_base.insert(base);
            // A direct base that another one inherits from is ambiguous unless both are virtual.
            if bases.contains(&base) || !is_virtual && !ancestors.is_disjoint(&of_base) {
                continue;
            }
            bases.push(base);
            ancestors.extend(of_base);
        }
        let mut defines: BTreeSet<usize> = [number].into();
        for ancestor in &ancestors {
            if is_virtual || self.random.one_in(2) {
                defines.insert(*ancestor);
            }
        }
        let how = if is_virtual { "virtual " } else { "" };
        let list: Vec<String> = bases.iter().map(|b| format!("{how}C{b}")).collect();
        let list = if list.is_empty() {
            String::new()
        } else {
            format!(" : {}", list.join(", "))
        };
        self.put(&format!("struct C{number}{list} {{"));
        let bytes = 1 + self.random.below(40);
        self.put(&format!(
            "  u64 d{number} = {}; char space{number}[{bytes}];",
            number * 77 + 5
        ));
        self.put(&format!("  virtual ~C{number}() {{ mix(d{number}); }}"));
        for of in &defines {
            let word = if *of == number {
                "virtual"
            } else {
                "__attribute__((noinline))"
            };
            let body = self.method_body(number);
            self.put(&format!("  {word} u64 w{of}(u64 x) {{ {body} }}"));
        }
        for plain in 0..1 + self.random.below(3) {
            let body = self.method_body(number);
            self.put(&format!(
                "  __attribute__((noinline)) u64 p{number}_{plain}(u64 x) {{ {body} }}"
            ));
        }
        self.put("};");
        let mut members: Vec<String> = defines
            .iter()
            .map(|of| format!("&C{number}::w{of}"))
            .collect();
        members.push(format!("&C{number}::p{number}_0"));
        self.put(&format!("typedef u64 (C{number}::*M{number})(u64);"));
        let all = members.join(", ");
        self.put(&format!("static M{number} volatile const *m{number}() {{ static M{number} const volatile t[] = {{{all}}}; return t; }}"));
        self.put(&format!(
            "static const unsigned n{number} = {};",
            members.len()
        ));
        self.classes.push(Class {
            is_virtual,
            bases,
            ancestors,
            defines,
        });
    }

    /// Of a member function: short, of any length, so that functions begin at odd addresses.
    fn method_body(&mut self, class: usize) -> String {
        let a = self.random.below(1000);
        match self.random.below(5) {
            0 => format!("return x + {a};"),
            1 => format!("d{class} += x; return d{class} ^ {a};"),
            2 => format!(
                "if (x % 7 == {}) throw Error(x); return x * {a} + d{class};",
                a % 7
            ),
            3 => {
                format!("Guard g(x); mix(d{class}); if (x & 1) return x / 2 + {a}; return x - {a};")
            }
            _ => format!(
                "for (u64 i = 0; i < x % 5; i++) d{class} = d{class} * 3 + i; return d{class} % 1009 + {a};"
            ),
        }
    }

    /// One object of each class, made at run time, so that no compiler knows what it is.
    fn objects(&mut self) {
        for number in 0..self.classes.len() {
            self.put(&format!("static C{number} *volatile o{number};"));
        }
        let classes = self.classes.len();
        self.put("static void create() {");
        for number in 0..classes {
            self.put(&format!("  o{number} = new C{number};"));
        }
        for number in 0..classes {
            // What is called is an object of a class that inherits.
            let heirs: Vec<usize> = (0..classes)
                .filter(|c| self.classes[*c].ancestors.contains(&number))
                .collect();
            if !heirs.is_empty() {
                let heir = heirs[self.random.below(heirs.len())];
                self.put(&format!("  delete o{number}; o{number} = new C{heir};"));
            }
        }
        self.put("}");
    }

    /// A call of something, with `x`.
    fn call(&mut self, below: usize) -> String {
        let class = self.random.below(self.classes.len());
        let defines: Vec<usize> = self.classes[class].defines.iter().copied().collect();
        let of = defines[self.random.below(defines.len())];
        match self.random.below(8) {
            0 => format!("o{class}->w{of}(x)"),
            1 | 2 => format!("(o{class}->*m{class}()[x % n{class}])(x)"),
            3 => format!("o{class}->p{class}_0(x)"),
            4 => {
                let bases = &self.classes[class].bases;
                match bases.first() {
                    // Down again, where it may be something else.
                    Some(base) => format!(
                        "(dynamic_cast<C{class} *>(static_cast<C{base} *>(o{base})) ? x + {of} : x * 3)"
                    ),
                    None => format!("variadic(3, x, (double)(x % 100), x ^ {of})"),
                }
            }
            5 if below > 0 => {
                let first = self.random.below(below);
                format!("table{below}[(x + {first}) % {below}](x % 4096)")
            }
            _ if below > 0 => format!("f{}(x % 10000)", self.random.below(below)),
            _ => format!("variadic(2, x + {of}, (double)(x % 50))"),
        }
    }

    fn statement(&mut self, number: usize, depth: usize) {
        let pad = "  ".repeat(depth + 1);
        let call = self.call(number);
        let a = 1 + self.random.below(97);
        match self.random.below(if depth > 3 { 3 } else { 10 }) {
            0 => self.put(&format!("{pad}x = x * {a} + {call};")),
            1 => self.put(&format!("{pad}x ^= {call} >> {};", a % 13)),
            2 => self.put(&format!("{pad}mix(x + {a});")),
            3 => {
                self.put(&format!("{pad}if (x % {} < {}) {{", a + 2, (a + 2) / 2));
                self.statement(number, depth + 1);
                self.put(&format!("{pad}}} else {{"));
                self.statement(number, depth + 1);
                self.put(&format!("{pad}}}"));
            }
            4 => {
                self.put(&format!("{pad}for (u64 i = 0; i < {}; i++) {{", 1 + a % 6));
                self.statement(number, depth + 1);
                self.put(&format!("{pad}  if ((x ^ i) % 11 == 3) continue;"));
                self.statement(number, depth + 1);
                self.put(&format!("{pad}}}"));
            }
            5 => {
                let cases = 4 + self.random.below(8);
                self.put(&format!("{pad}switch (x % {}) {{", cases + 2));
                for case in 0..cases {
                    self.put(&format!("{pad}case {case}:"));
                    self.statement(number, depth + 2);
                    if !self.random.one_in(4) {
                        self.put(&format!("{pad}  break;"));
                    }
                }
                self.put(&format!("{pad}default: x += {a}; }}"));
            }
            6 | 7 => self.try_block(number, depth, a),
            8 => {
                let kind = self.random.pick(&[
                    "Error(x)",
                    "Worse(x)",
                    "Other{(int)(x & 255)}",
                    "(int)(x & 63)",
                ]);
                self.put(&format!(
                    "{pad}{{ Guard g(x + {a}); if (x % {} == 1) throw {kind}; mix({a}); }}",
                    3 + a % 9
                ));
            }
            _ => {
                let by = if self.random.one_in(2) { "&" } else { "=" };
                self.put(&format!("{pad}{{ std::function<u64(u64)> g = [{by}](u64 y) {{ u64 z = x + {a}; if (y % 17 == 5) throw Error(z); return z * y; }}; x = g({call} % 1000); }}"));
            }
        }
    }

    fn try_block(&mut self, number: usize, depth: usize, a: usize) {
        let pad = "  ".repeat(depth + 1);
        self.put(&format!("{pad}try {{ Guard g(x ^ {a});"));
        self.statement(number, depth + 1);
        self.statement(number, depth + 1);
        let again = if self.random.one_in(3) {
            format!(" if (x % {} == 0) throw;", a + 1)
        } else {
            String::new()
        };
        match self.random.below(4) {
            0 => self.put(&format!("{pad}}} catch (const Error &e) {{ x = e.get() + {a};{again} }}")),
            1 => self.put(&format!("{pad}}} catch (const Worse &e) {{ x = e.get();{again} }} catch (int i) {{ x += i; }}")),
            2 => self.put(&format!("{pad}}} catch (Other o) {{ x ^= o.v; }} catch (...) {{ mix({a}); x++;{again} }}")),
            _ => self.put(&format!("{pad}}} catch (...) {{ x = x / 3 + {a};{again} }}")),
        }
    }

    fn function(&mut self, number: usize) {
        let coroutine = self.random.one_in(3);
        if coroutine {
            self.put("#if COROUTINES");
            self.put(&format!("static Series s{number}(u64 x) {{"));
            self.put("  if (fuel-- <= 0) co_return;");
            self.put("  Guard g(x);");
            self.put("  for (u64 k = 0; k < x % 5; k++) {");
            self.statement(number, 2);
            self.put("    co_yield x + k;");
            self.put("  }\n}\n#endif");
        }
        let attribute = self.random.pick(&[
            "__attribute__((noinline)) ",
            "",
            "__attribute__((noinline, cold)) ",
        ]);
        self.put(&format!("{attribute}u64 f{number}(u64 x) {{"));
        self.put("  if (fuel-- <= 0) return x;");
        for _ in 0..2 + self.random.below(4) {
            self.statement(number, 0);
        }
        if coroutine {
            self.put(&format!("#if COROUTINES\n  {{ Series s = s{number}(x); while (s.next()) mix(s.handle.promise().value); }}\n#endif"));
        }
        self.put("  return x;\n}");
        let names: Vec<String> = (0..=number).map(|n| format!("f{n}")).collect();
        self.put(&format!(
            "static u64 (*const volatile table{}[])(u64) = {{{}}};",
            number + 1,
            names.join(", ")
        ));
    }

    fn main(&mut self, functions: usize) {
        let last = functions - 1;
        self.put("int main() {\n  create();");
        self.put("  for (u64 round = 0; round < 40; round++) {");
        self.put(&format!("    try {{ fuel = 400; mix(f{last}(round * 7919)); mix(table{functions}[round % {functions}](round)); }}"));
        self.put("    catch (const Error &e) { mix(e.get()); } catch (const Other &o) { mix(o.v); } catch (int i) { mix(i); }");
        self.put("    std::printf(\"%lu %lx\\n\", round, sum);\n  }");
        for number in 0..self.classes.len() {
            self.put(&format!("  delete o{number};"));
        }
        self.put("  std::printf(\"%lx\\n\", sum);\n  return (int)(sum & 63);\n}");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn programs_are_accepted_by_the_compiler_end_and_differ() {
        if Command::new("g++").arg("--version").output().is_err() {
            eprintln!("SKIPPED: g++ is not installed");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut seen = BTreeSet::new();
        for seed in 0..6 {
            let (source, program) = (folder.path().join("p.cpp"), folder.path().join("p"));
            assert_eq!(super::program(seed), super::program(seed));
            std::fs::write(&source, super::program(seed)).expect("the folder is ours");
            let mut compiler = Command::new("g++");
            compiler.args(["-std=c++20", "-w", "-O1", "-DCOROUTINES=1", "-o"]);
            let built = compiler.arg(&program).arg(&source).output().expect("g++");
            assert!(
                built.status.success(),
                "{seed}: {}",
                String::from_utf8_lossy(&built.stderr)
            );
            let run = || Command::new(&program).output().expect("our program");
            let (first, second) = (run(), run());
            assert!(first.status.code().is_some(), "{seed}: {:?}", first.status);
            assert_eq!(first, second, "{seed}");
            assert!(first.stdout.len() > 200, "{seed}");
            seen.insert(first.stdout);
        }
        assert_eq!(seen.len(), 6);
    }
}
