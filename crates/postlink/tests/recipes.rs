//! Command lines of llvm-bolt as projects use them, on a program that is built with their flags.

mod support;

use std::path::PathBuf;
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use support::folder::Folder;
use support::{done, is_installed};

/// An interpreter with threaded code, as CPython's loop, and the functions that it calls.
const PROGRAM: &str = r#"
#include <stdio.h>
__attribute__((noinline)) static long scale(long x) { return x > 1000003 ? x % 1000003 : x * 7; }
__attribute__((noinline)) static long never(long x) { return printf("never %ld\n", x); }
__attribute__((noinline)) long evaluate(const unsigned char *pc, long n) {
  static const void *const labels[] = {&&add, &&mul, &&dec, &&jnz, &&halt};
  const unsigned char *start = pc;
  long a = 1;
#define NEXT goto *labels[*pc++]
  NEXT;
add: a += n; NEXT;
mul: a = scale(a); NEXT;
dec: n--; NEXT;
jnz: if (n) pc = start; NEXT;
halt: return a < 0 ? never(a) : a;
}
int main(void) {
  static const unsigned char code[] = {0, 1, 0, 2, 3, 4};
  printf("%ld\n", evaluate(code, 20000));
  return 0;
}
"#;

/// A library as a compiler's driver might be: tables of functions, strings, panics that are caught.
const DRIVER: &str = r#"
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Token { Number(i64), Plus, Times, Open, Close }

struct Parser { tokens: Vec<Token>, at: usize, seen: HashMap<Token, usize> }

impl Parser {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).copied();
        self.at += 1;
        if let Some(token) = token { *self.seen.entry(token).or_default() += 1; }
        token
    }
    fn sum(&mut self) -> i64 {
        let mut value = self.product();
        while self.tokens.get(self.at) == Some(&Token::Plus) { self.next(); value = value.wrapping_add(self.product()); }
        value
    }
    fn product(&mut self) -> i64 {
        let mut value = self.atom();
        while self.tokens.get(self.at) == Some(&Token::Times) { self.next(); value = value.wrapping_mul(self.atom()); }
        value
    }
    fn atom(&mut self) -> i64 {
        match self.next() {
            Some(Token::Number(n)) => n,
            Some(Token::Open) => { let value = self.sum(); assert_eq!(self.next(), Some(Token::Close)); value }
            other => panic!("a number was expected: {other:?}"),
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let one = |c: char| match c {
        '0'..='9' => Token::Number(c as i64 - 48),
        '+' => Token::Plus,
        '*' => Token::Times,
        '(' => Token::Open,
        _ => Token::Close,
    };
    text.chars().map(one).collect()
}

#[unsafe(no_mangle)]
pub extern "C" fn compile(round: i64) -> i64 {
    const TEXTS: [&str; 4] = ["1+2*3", "(1+2)*(3+4*5)", "2*(3+", "((7))*8+9"];
    let text = TEXTS[(round % 4) as usize];
    let mut parser = Parser { tokens: tokens(text), at: 0, seen: HashMap::new() };
    let done = catch_unwind(AssertUnwindSafe(|| parser.sum()));
    done.unwrap_or(-1) + parser.seen.len() as i64 + round % 7
}
"#;
const MAIN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
long compile(long round);
int main(void) {
  long sum = 0;
  freopen("/dev/null", "w", stderr);
  for (long i = 0; i < 4000; i++) sum = sum * 31 + compile(i);
  printf("%ld\n", sum);
  return 0;
}
"#;

/// What CPython's configure script passes when it instruments and when it optimises.
const CPYTHON: [&str; 2] = [
    "-update-debug-sections",
    "-skip-funcs=evaluate,_PyEval_EvalFrameDefault,sre_ucs1_match/1,sre_ucs2_match/1,sre_ucs1_match.lto_priv.0/1",
];
const CPYTHON_APPLY: [&str; 14] = [
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-icf=1",
    "-inline-all",
    "-split-eh",
    "-reorder-functions-use-hot-size",
    "-peepholes=none",
    "-jump-tables=aggressive",
    "-inline-ap",
    "-indirect-call-promotion=all",
    "-dyno-stats",
    "-use-gnu-stack",
    "-frame-opt=hot",
];

/// What python-build-standalone passes in their place (its releases of August 2026).
const STANDALONE: [&str; 2] = [
    "-update-debug-sections",
    "-skip-funcs=RC4_options/1,sha256_update/.*,sha512_update/.*,PyBlake2_blake2b_compress/.*,update_block.*",
];
const STANDALONE_APPLY: [&str; 14] = [
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-split-strategy=cdsplit",
    "-icf=safe",
    "-inline-all",
    "-split-eh",
    "-reorder-functions-use-hot-size",
    "-peepholes=none",
    "-jump-tables=aggressive",
    "-inline-ap",
    "-indirect-call-promotion=all",
    "-dyno-stats",
    "-frame-opt=hot",
];

/// What rustc's build passes for its driver and for libLLVM.
const RUSTC_APPLY: [&str; 8] = [
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-split-strategy=cdsplit",
    "-split-all-cold",
    "-jump-tables=move",
    "-icf=all",
    "-update-debug-sections",
];

/// Address of a function by its name.
fn address(file: &[u8], name: &str) -> u64 {
    let elf = Elf::parse(file).expect("a program");
    let symbols = elf.symbols(SymbolTable::Static);
    let found = symbols.iter().find(|s| s.name == name.as_bytes());
    found.expect("the symbol is there").value
}

/// A folder with the links of postlink by the names of LLVM's tools.
struct Recipe {
    folder: Folder,
}

impl Recipe {
    fn new() -> Recipe {
        let folder = Folder::new();
        folder.postlink(&["links", "bin"]);
        Recipe { folder }
    }

    /// Runs `llvm-bolt` in the folder: what it says.
    fn bolt(&self, arguments: &[&[&str]]) -> String {
        let mut command = Command::new(self.folder.path("bin/llvm-bolt"));
        command.args(arguments.concat());
        let output = done(command.current_dir(self.folder.dir()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Instruments as all three do; each process writes `PREFIX.PID.fdata`.
    fn instrument(&self, input: &str, output: &str, prefix: &str, common: &[&str]) -> String {
        let counters = format!(
            "-instrumentation-file={}",
            self.folder.path(prefix).display()
        );
        let append = "-instrumentation-file-append-pid";
        let own = [input, "-instrument", append, &counters, "-o", output];
        self.bolt(&[&own, common])
    }

    /// Merges what the processes have written, two of them: `merge-fdata PREFIX.*.fdata > PREFIX.fdata`.
    fn merge(&self, prefix: &str) {
        let entries = std::fs::read_dir(self.folder.dir()).expect("the folder is ours");
        let profiles = entries
            .map(|entry| entry.expect("it can be read").path())
            .filter(|path| {
                let name = path.file_name().expect("a file").to_string_lossy();
                name.starts_with(&format!("{prefix}.")) && name.ends_with(".fdata")
            });
        let profiles: Vec<PathBuf> = profiles.collect();
        assert_eq!(profiles.len(), 2, "one file of counters for each process");
        let mut merge = Command::new(self.folder.path("bin/merge-fdata"));
        let merged = done(merge.args(&profiles));
        let path = self.folder.path(&format!("{prefix}.fdata"));
        std::fs::write(path, merged.stdout).expect("the folder is ours");
    }

    fn compile(&self, compiler: &str, arguments: &[&[&str]]) {
        let mut command = Command::new(compiler);
        done(
            command
                .args(arguments.concat())
                .current_dir(self.folder.dir()),
        );
    }

    /// Runs a program with the libraries of the folder.
    fn run(&self, program: &str) -> String {
        let mut command = self.folder.command(self.folder.path(program), &[]);
        let output = done(command.env("LD_LIBRARY_PATH", self.folder.dir()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path(name)).expect("it was written")
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.folder.path(name), content).expect("the folder is ours");
    }
}

/// How many functions were instrumented, by `BOLT-INFO: N out of M functions instrumented`.
fn instrumented(said: &str) -> u64 {
    let line = said.lines().find(|l| l.contains("functions instrumented"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    let number = line.split_whitespace().nth(1).expect("a number");
    number.parse().expect("a number")
}

#[test]
fn the_recipe_of_cpython_gives_a_proved_program() {
    if !(cfg!(target_arch = "x86_64") && is_installed("gcc")) {
        return;
    }
    let recipe = Recipe::new();
    let flags = [
        "-g",
        "-O3",
        "-fPIC",
        "-flto",
        "-fno-semantic-interposition",
        "-fno-reorder-blocks-and-partition",
        "-Wl,--emit-relocs",
    ];
    recipe.folder.compile("app", PROGRAM, &flags);
    let plain = recipe.run("app");
    recipe.instrument("./app", "app.bolt_inst", "app.bolt", &CPYTHON);
    for _ in 0..2 {
        assert_eq!(recipe.run("app.bolt_inst"), plain);
    }
    recipe.merge("app.bolt");
    let own = ["./app", "-o", "app.out", "-data=app.bolt.fdata"];
    let said = recipe.bolt(&[&own, &CPYTHON, &CPYTHON_APPLY]);
    assert!(said.contains("BOLT-INFO: proved: "), "{said}");
    assert!(said.contains("executed forward branches"), "{said}");
    assert_eq!(recipe.run("app.out"), plain);
    let (input, output) = (recipe.read("app"), recipe.read("app.out"));
    assert_eq!(address(&input, "evaluate"), address(&output, "evaluate"));
    assert_ne!(address(&input, "main"), address(&output, "main"));
}

/// Its interpreter is a library and a small program, both optimised; the compressors of hashes are left out because
/// llvm-bolt breaks them, when instrumenting as well.
#[test]
fn the_recipe_of_python_build_standalone_gives_a_proved_library_and_program() {
    let needed = ["clang-19", "ld.lld-19"];
    if !(cfg!(target_arch = "x86_64") && needed.into_iter().all(is_installed)) {
        return;
    }
    let recipe = Recipe::new();
    let library = PROGRAM.replace("int main(void)", "int run(void)").replace(
        "scale(long x) { return",
        "sha256_update(long x) { return x * 31 % 65521; }\n\
         __attribute__((noinline)) static long scale(long x) { x = sha256_update(x); return",
    );
    recipe.write("lib.c", library);
    recipe.write(
        "main.c",
        "int run(void); int main(void) { return run(); }\n",
    );
    let flags = [
        "-g",
        "-O3",
        "-fstack-protector",
        "-fstack-clash-protection",
        "-D_FORTIFY_SOURCE=2",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
        "-fPIC",
        "-flto",
        "-fuse-ld=lld",
        "-Wl,-z,noexecstack,-z,relro,-z,now,--build-id=sha1,--exclude-libs,ALL,--emit-relocs",
    ];
    let build = |arguments: &[&str]| recipe.compile("clang-19", &[&flags, arguments]);
    build(&["-shared", "lib.c", "-o", "libpy.so"]);
    build(&["main.c", "-L.", "-lpy", "-o", "py"]);
    let plain = recipe.run("py");
    for name in ["libpy.so", "py"] {
        let before = format!("{name}.prebolt");
        std::fs::copy(recipe.folder.path(name), recipe.folder.path(&before)).expect("a copy");
        let all = instrumented(&recipe.instrument(&before, name, "unused", &[]));
        let without = instrumented(&recipe.instrument(&before, name, name, &STANDALONE));
        let skipped = u64::from(name == "libpy.so");
        assert_eq!(
            all - without,
            skipped,
            "{name}: sha256_update alone is left out"
        );
        for _ in 0..2 {
            assert_eq!(recipe.run("py"), plain, "{name} counts");
        }
        recipe.merge(name);
        let data = format!("-data={name}.fdata");
        let own = [&*before, "-o", name, &*data];
        let said = recipe.bolt(&[&own, &STANDALONE, &STANDALONE_APPLY]);
        assert!(said.contains("BOLT-INFO: proved: "), "{name}: {said}");
        assert!(said.contains("executed forward branches"), "{name}: {said}");
        assert_eq!(recipe.run("py"), plain, "{name} is optimised");
    }
    let (input, output) = (recipe.read("libpy.so.prebolt"), recipe.read("libpy.so"));
    let places = |name: &str| [&input, &output].map(|file| address(file, name));
    let [before, after] = places("sha256_update");
    assert_eq!(before, after, "it was to be skipped");
    let [before, after] = places("evaluate");
    assert_ne!(before, after, "it was not to be skipped");
}

/// Its driver, a library in Rust, is instrumented and optimised in place: a copy is the input.
#[test]
fn the_recipe_of_rustc_gives_a_proved_library_in_place() {
    if !(cfg!(target_arch = "x86_64") && is_installed("rustc") && is_installed("gcc")) {
        return;
    }
    let recipe = Recipe::new();
    recipe.write("driver.rs", DRIVER);
    recipe.write("main.c", MAIN);
    let rustc = ["-O", "-g", "--crate-type=cdylib", "-Clink-arg=-Wl,-q"];
    recipe.compile("rustc", &[&rustc, &["driver.rs", "-o", "libdriver.so"]]);
    recipe.compile("gcc", &[&["main.c", "-L.", "-ldriver", "-o", "rustc-main"]]);
    let plain = recipe.run("rustc-main");
    let original = recipe.read("libdriver.so");
    recipe.instrument("libdriver.so", "instrumented", "prof.fdata", &[]);
    recipe.write("libdriver.so", recipe.read("instrumented"));
    for _ in 0..2 {
        assert_eq!(recipe.run("rustc-main"), plain, "it counts");
    }
    recipe.write("libdriver.so", &original);
    recipe.merge("prof.fdata");
    recipe.write("copy", &original);
    let own = ["copy", "-data", "prof.fdata.fdata", "-o", "libdriver.so"];
    let said = recipe.bolt(&[&own, &RUSTC_APPLY, &["-dyno-stats"]]);
    assert!(said.contains("BOLT-INFO: proved: "), "{said}");
    assert!(said.contains("executed forward branches"), "{said}");
    assert_ne!(recipe.read("libdriver.so"), original);
    assert_eq!(recipe.run("rustc-main"), plain, "it is optimised");
    let place = |file: &[u8]| address(file, "compile");
    assert_ne!(place(&original), place(&recipe.read("libdriver.so")));
}
