//! Jump tables of new code's own in AArch64 programs without kept relocations: the switches of gcc and clang have them,
//! what they do stays what it was in every preset and layout, and faults in them are found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use postlink_verify::mutate::Kind;

mod support;
use support::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");
const ROOT: &str = "/usr/aarch64-linux-gnu";
const GCC: &str = "aarch64-linux-gnu-gcc";
const CLANG: &str = "clang-19 --target=aarch64-linux-gnu -fuse-ld=/usr/bin/ld.lld-19";
const WORDS: &str = "-mllvm -aarch64-enable-compress-jump-tables=false";
/// Functions with a switch of which index and table are known.
const KNOWN: [&str; 4] = ["pick", "again", "masked", "large"];

/// More cases than compilers make branches of. `again` has its table's address formed in front of a loop with calls,
/// the index of `masked` is bounded by a mask, `large` has entries of half-words, and `unknown` reads what the jump
/// leaves.
fn source() -> String {
    const WORK: [&str; 20] = [
        "x * 3",
        "x + 7",
        "work(x - 1)",
        "x ^ 85",
        "x << 3",
        "-x",
        "x * x",
        "x / 7",
        "x & 31",
        "x | 12",
        "x % 11",
        "~x",
        "x * 9 - 4",
        "x >> 2",
        "x * 1001",
        "17 - x",
        "x * x * x",
        "work(x) * 3",
        "x + 1000",
        "x - 99",
    ];
    let cases = |n: usize, text: &dyn Fn(usize) -> String| {
        (0..n).fold(String::new(), |mut all, i| {
            let _ = writeln!(all, "  case {i}: {}", text(i));
            all
        })
    };
    let returned = |i: usize| format!("return {};", WORK[i]);
    let kept = |i: usize| format!("x = {}; break;", WORK[i]);
    let long = |i: usize| {
        let calls: String = (0..12)
            .map(|j| format!("x = x * {} + work(x ^ {});", i + 3, j * i))
            .collect();
        format!("{calls} break;")
    };
    format!(
        "#include <stdio.h>\n#define N __attribute__((noinline))\n\
         __attribute__((noinline, noipa)) int work(int x) {{ __asm__ volatile(\"\"); return x * 7 + 1; }}\n\
         N int pick(int k, int x) {{ switch (k) {{\n{}  default: return x; }} }}\n\
         N int again(const unsigned char *p, int n) {{ int x = 1; for (int i = 0; i < n; i++) switch (p[i]) {{\n{} }} return x; }}\n\
         N int masked(unsigned k, int x) {{ switch (k & 15) {{\n{} }} return 0; }}\n\
         N int large(long k, int x) {{ switch (k) {{\n{} }} return x; }}\n\
         N int unknown(unsigned k, int x) {{ switch (k) {{\n{}  default: return x; }} }}\n\
         int main(void) {{ unsigned s = 0; static unsigned char p[64]; for (int i = 0; i < 64; i++) p[i] = i % 23;\n\
         for (int i = 0; i < 700; i++) s = s * 3 + pick(i % 22, i) + masked(i, i) + again(p, i % 64) + large(i % 41, i) + unknown(i % 22, i);\n\
         printf(\"%u\\n\", s); return 0; }}\n",
        cases(20, &returned),
        cases(20, &kept),
        cases(16, &returned),
        cases(40, &long),
        cases(20, &|i| match i {
            4 => format!(
                "__asm__ volatile(\"cmp x0, x1\\n cmp x2, x9\\n cmp x10, x11\" ::: \"cc\"); {}",
                returned(i)
            ),
            i => returned(i),
        }),
    )
}

struct Folder(tempfile::TempDir);

impl Folder {
    /// Why jumps of a function are not understood.
    fn reasons(&self, name: &str) -> Vec<String> {
        let said = self.json("inspect app --relocations none --json");
        let jumps = said["indirect_jumps"].as_array().expect("a list").iter();
        let of_function = jumps.filter(|j| j["function"] == name);
        let text = |what: &serde_json::Value| what.as_str().expect("text").to_owned();
        of_function
            .map(|j| format!("{}: {}", text(&j["outcome"]), text(&j["reason"])))
            .collect()
    }

    /// `app`, built by this command from this text.
    fn built(command: &str, source: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        fs::write(folder.path("app.c"), source).expect("written");
        let mut words = command.split(' ');
        let mut compile = Command::new(words.next().expect("a compiler"));
        compile.args(words).args(["-o", "app", "app.c"]);
        done(compile.current_dir(folder.0.path()));
        folder
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, name: &str) -> Vec<u8> {
        let mut command = Command::new("qemu-aarch64");
        command.args(["-L", ROOT]).arg(self.path(name));
        done(command.env("POSTLINK_PROFILE", self.path("run.plraw"))).stdout
    }

    fn postlink(&self, arguments: &str) -> Vec<u8> {
        let mut command = Command::new(POSTLINK);
        let arguments = arguments.split(' ');
        done(command.args(arguments).current_dir(self.0.path())).stdout
    }

    fn json(&self, arguments: &str) -> serde_json::Value {
        serde_json::from_slice(&self.postlink(arguments)).expect("JSON")
    }

    /// Instruments and runs the program, and optimises it by these options; all print the same.
    fn goes_through(&self, command: &str, presets: &[&str]) -> Vec<u8> {
        let expected = self.run("app");
        let said = self.json("instrument app -o counting --json");
        assert_eq!(said["refused"], serde_json::json!([]), "{command}");
        assert_eq!(self.run("counting"), expected, "{command}: counting");
        for preset in presets {
            let options = format!("optimize app -p run.plraw -o opt --move-all --json {preset}");
            let said = self.json(options.trim_end());
            assert_eq!(said["refused"], serde_json::json!([]), "{command} {preset}");
            assert_eq!(self.run("opt"), expected, "{command} {preset}");
        }
        expected
    }

    /// The tables of a function in the certificate of an output, as (entries, bound), and how many of its jumps may
    /// continue in old code.
    fn tables(&self, output: &str, name: &str) -> (Vec<(u64, String)>, usize) {
        let certificate = self.json(&format!("verify app {output} --json"));
        let mut functions = certificate["functions"].as_array().expect("a list").iter();
        let function = functions.find(|f| f["name"] == name);
        let function = function.unwrap_or_else(|| panic!("{name} has not moved"));
        let list = |what: &str| function[what].as_array().cloned().unwrap_or_default();
        let table = |t: &serde_json::Value| {
            let bound = t["bound"].as_str().expect("a bound").to_owned();
            (t["entries"].as_u64().expect("a number"), bound)
        };
        let tables = list("tables").iter().map(table).collect();
        (tables, list("falls_back").len())
    }
}

fn can_run(command: &str) -> bool {
    let compiler = command.split(' ').next().expect("a compiler");
    let linker = !command.contains("ld.lld-19") || is_installed("/usr/bin/ld.lld-19");
    linker && [compiler, "qemu-aarch64"].into_iter().all(is_installed)
}

#[test]
fn switches_have_tables_of_their_own_and_faults_in_them_are_found() {
    let mut applied: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut ran = false;
    for (command, spoilt) in [
        (format!("{GCC} -O2"), true),
        (format!("{GCC} -Os -no-pie"), false),
        (format!("{GCC} -O2 -static -g"), false),
        (format!("{GCC} -O0"), false),
        (format!("{GCC} -O2 -mbranch-protection=standard"), false),
        (format!("{CLANG} -O2"), false),
        (format!("{CLANG} {WORDS} -O2 -no-pie"), true),
    ] {
        if !can_run(&command) {
            continue;
        }
        ran = true;
        let folder = Folder::built(&command, &source());
        folder.goes_through(&command, &["--preset max", "--preset fast", ""]);
        for output in ["counting", "opt"] {
            for name in KNOWN {
                let (tables, old) = folder.tables(output, name);
                assert_eq!(old, 0, "{command} {output}: {name} continues in old code");
                assert_eq!(tables.len(), 1, "{command} {output}: {name}");
                assert_eq!(tables[0].1, "proved", "{command} {output}: {name}");
            }
            let (tables, old) = folder.tables(output, "unknown");
            assert_eq!((tables.len(), old), (0, 1), "{command} {output}");
        }
        let said = folder.json("inspect app --json");
        assert!(
            said["own_tables"][0].as_u64() >= Some(4),
            "{command}: {said}"
        );
        assert_eq!(said["own_tables"][1], 0, "{command}");
        let shown = folder.json("show run.plraw --binary app --json");
        let mut functions = shown["functions"].as_array().expect("a list").iter();
        let pick = functions.find(|f| f["name"] == "pick").expect("it ran");
        let counts = pick["blocks"].as_array().expect("blocks").iter();
        let counts: Vec<u64> = counts.filter_map(|b| b["count"].as_u64()).collect();
        // Each of 22 values 31 times, 18 of them once more.
        let of_cases = counts.iter().filter(|c| matches!(c, 31 | 32)).count();
        assert!(of_cases >= 19, "{command}: {counts:?}");
        if spoilt {
            let input = fs::read(folder.path("app")).expect("a file");
            for output in ["counting", "opt"] {
                let output = fs::read(folder.path(output)).expect("a file");
                let kinds = Kind::OWN_TABLES_AARCH64;
                for (kind, times) in support::faults::spoil(&input, &output, kinds) {
                    *applied.entry(kind).or_default() += times;
                }
            }
        }
    }
    let kinds = Kind::OWN_TABLES_AARCH64.iter();
    let never: Vec<_> = kinds.filter(|k| !applied.contains_key(k)).collect();
    assert!(!ran || never.is_empty(), "never applied: {never:?}");
}

/// New code is out of a branch's reach of the old: jumps from old targets cannot get there, tables can.
#[test]
fn tables_reach_code_that_branches_do_not() {
    let far = "__asm__(\".pushsection .text.sorted.1, \\\"ax\\\", %progbits\\n .zero 136314880\\n .popsection\");\n\
               #define N __attribute__((noinline, section(\".text.hot.near\")))\n";
    let source = source();
    let source = source.replace("#define N __attribute__((noinline))\n", far);
    let command = format!("{GCC} -O2");
    if !can_run(&command) {
        return;
    }
    let folder = Folder::built(&command, &source);
    folder.goes_through(&command, &[""]);
    for name in ["pick", "masked"] {
        let (tables, old) = folder.tables("opt", name);
        assert_eq!((tables.len(), old), (1, 0), "{name}");
    }
}

/// A function in assembly, and the number of tables of its own.
struct Twin {
    what: &'static str,
    code: &'static str,
    tables: usize,
    /// Why it has none.
    reason: &'static str,
}

/// What is in front of the table jump of each twin: `w0` is compared with 3.
const TWINS: [Twin; 7] = [
    Twin {
        what: "as compilers write it",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n cmp w0, #3\n b.hi 9f\n ldrb w3, [x2, w0, uxtw]\n adr x4, 8f\n add x3, x4, w3, sxtb #2\n br x3\n8:",
        tables: 1,
        reason: "",
    },
    Twin {
        what: "the comparison is of another register",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n cmp w1, #3\n b.hi 9f\n ldrb w3, [x2, w0, uxtw]\n adr x4, 8f\n add x3, x4, w3, sxtb #2\n br x3\n8:",
        tables: 0,
        reason: "index-unbounded",
    },
    Twin {
        what: "the branch looks at signs",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n cmp w0, #3\n b.gt 9f\n ldrb w3, [x2, w0, uxtw]\n adr x4, 8f\n add x3, x4, w3, sxtb #2\n br x3\n8:",
        tables: 0,
        reason: "index-unbounded",
    },
    Twin {
        what: "32 bits are compared and 64 taken",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n cmp w0, #3\n b.hi 9f\n ldrb w3, [x2, x0]\n adr x4, 8f\n add x3, x4, w3, sxtb #2\n br x3\n8:",
        tables: 0,
        reason: "index-unbounded",
    },
    Twin {
        what: "a case reads the base",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n cmp w0, #3\n b.hi 9f\n ldrb w3, [x2, w0, uxtw]\n adr x6, 8f\n add x3, x6, w3, sxtb #2\n br x3\n8:",
        tables: 0,
        reason: "entry-not-followed",
    },
    Twin {
        what: "control comes in between",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n cmp w0, #3\n b.hi 9f\n ldrb w3, [x2, w0, uxtw]\n cbz x2, 7f\n7: adr x4, 8f\n add x3, x4, w3, sxtb #2\n br x3\n8:",
        tables: 0,
        reason: "",
    },
    Twin {
        what: "the index is at most 7, and the table has four entries",
        code: "adrp x2, TABLE\n add x2, x2, :lo12:TABLE\n and w0, w0, #7\n ldrb w3, [x2, w0, uxtw]\n adr x4, 8f\n add x3, x4, w3, sxtb #2\n br x3\n8:",
        tables: 0,
        reason: "entry-not-followed",
    },
];

#[test]
fn what_is_not_known_to_be_in_the_table_stays_as_it_was() {
    if !can_run(GCC) {
        return;
    }
    let functions: String = (0..).zip(&TWINS).fold(String::new(), |mut all, (i, twin)| {
        let code = twin.code.replace("TABLE", &format!("table{i}"));
        let code = code.replace('\n', "\\n");
        let _ = write!(
            all,
            "int twin{i}(unsigned, int);\n__asm__(\".text\\n.p2align 4\\n.globl twin{i}\\n.type twin{i}, %function\\n\
             twin{i}:\\n.cfi_startproc\\n {code}\\n 1: sub w6, w6, w6\\n add w0, w1, w6\\n ret\\n 2: add w0, w1, #5\\n ret\\n\
             3: lsl w0, w1, #2\\n ret\\n 4: mvn w0, w1\\n ret\\n 9: mov w0, #77\\n ret\\n.cfi_endproc\\n\
             .size twin{i}, .-twin{i}\\n.section .rodata\\n table{i}: .byte (1b-8b)/4, (2b-8b)/4, (3b-8b)/4, (4b-8b)/4\\n\
             .byte 100, 100, 100, 100\\n.text\\n\");\n"
        );
        all
    });
    let calls: String = (0..TWINS.len())
        .map(|i| format!("s = s * 3 + twin{i}(k % 4, k);"))
        .collect();
    let source = format!(
        "#include <stdio.h>\n{functions}int main(void) {{ unsigned s = 0; for (int k = 0; k < 99; k++) {{ {calls} }} printf(\"%u\\n\", s); return 0; }}\n"
    );
    let folder = Folder::built(&format!("{GCC} -O2"), &source);
    folder.goes_through("twins", &[""]);
    for (i, twin) in TWINS.iter().enumerate() {
        let (tables, _) = folder.tables("opt", &format!("twin{i}"));
        assert_eq!(tables.len(), twin.tables, "{}", twin.what);
        let reasons = folder.reasons(&format!("twin{i}"));
        // In the caller's frame, what is not seen to go through a table is a tail call.
        let expected: Vec<String> = (!twin.reason.is_empty())
            .then(|| format!("through-old-code: {}", twin.reason))
            .into_iter()
            .collect();
        assert_eq!(reasons, expected, "{}", twin.what);
        // The checker would not take it, whatever the rewriter does: see the faults above.
        assert!(tables.iter().all(|t| t.0 == 4), "{}: {tables:?}", twin.what);
    }
}

/// Interpreters that jump through tables of labels. Of `exact` the mask is as long as the table, and of `longer` it is
/// longer: behind the table are a number, pointers to strings and functions. In `calls` the table's address is handed
/// to another function, in `exact` the label is loaded over its index, in `over` that and a table's address that is
/// handed on, in `kept` one that is in memory at one label, and `open` has an index that nothing bounds.
const LABELS: &str = "#include <stdio.h>
#define N __attribute__((noinline, noipa))
N int work(int x) { __asm__ volatile(\"\"); return x * 7 + 1; }
N int other(int x, const void *const *t) { __asm__ volatile(\"\" :: \"r\"(t)); return x * 5 + 2; }
#define BODY(go) \
  go; a0: x = x * 3 + op; go; a1: x = x + 7 * op; go; a2: x = work(x) + op; go; a3: x ^= 85 + op; go; \
  a4: x = x * x + op; go; a5: x = op - x; go; a6: x = other(x, 0) - op; go; a7: x = ~x + op; go;
#define FIRST { &&a0, &&a1, &&a2, &&a3, &&a4, &&a5, &&a6, &&a7 }
N int exact(const unsigned char *p, int n) { static const void *const t[8] = FIRST; int x = 1; const int op = 0;
  BODY(if (n-- == 0) return x; goto *t[*p++ & 7]) }
struct tail { const void *t[10]; long number; const char *text; int (*f)(int); long more[5]; };
N int longer(const unsigned char *p, int n) { int x = 1; long op;
  static const struct tail s = { { &&a0, &&a1, &&a2, &&a3, &&a4, &&a5, &&a6, &&a7, &&a8, &&a9 }, 17, \"text\", work, { 0, 1, 2, 3, 4 } };
#define GO if (n-- == 0) return x; op = *p++ & 15; goto *s.t[op]
  BODY(GO) a8: x = work(x) - op; GO; a9: x += 11 + op; GO; }
N int calls(const unsigned char *p, int n) { static const void *const t[8] = FIRST; int x = 1; long op;
  BODY(if (n-- == 0) return other(x, t); x = other(x, t); op = *p++ & 7; goto *t[op]) }
N int over(const unsigned char *p, int n) { static const void *const t[8] = FIRST; int x = 1; const int op = 3;
  BODY(if (n-- == 0) return other(x, t); x = other(x, t); goto *t[*p++ & 7]) }
N int kept(const unsigned char *p, int n) { static const void *const t[8] = FIRST; int x = 1; long op;
  const void *const *q = t; __asm__ volatile(\"\" : \"+m\"(q));
#define OF(t) if (n-- == 0) return x; op = *p++ & 7; goto *t[op];
  OF(t) a0: x = x * 3 + op; OF(t) a1: x = x + 7 * op; OF(t) a2: x = work(x) + op; OF(q) a3: x ^= 85 + op; OF(t)
  a4: x = x * x + op; OF(t) a5: x = op - x; OF(t) a6: x = work(x) - op; OF(t) a7: x = ~x + op; OF(t) }
N int open(const unsigned *p, int n) { static const void *const t[8] = FIRST; int x = 1; const int op = 0;
  BODY(if (n-- == 0) return x; goto *t[*p++]) }
int main(void) { unsigned s = 0; static unsigned char p[64], q[64]; static unsigned r[64];
  for (int i = 0; i < 64; i++) { p[i] = i * 37; q[i] = i % 10; r[i] = i % 8; }
  for (int i = 0; i < 700; i++) s = s * 3 + exact(p, i % 64) + longer(q, i % 60) + calls(p, i % 50) + over(p, i % 30) + kept(p, i % 55) + open(r, i % 40);
  printf(\"%u\\n\", s); return 0; }
";

#[test]
fn labels_have_tables_of_their_own_and_faults_in_them_are_found() {
    let mut applied: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut ran = false;
    for (command, spoilt) in [
        (format!("{GCC} -O2"), true),
        (format!("{GCC} -O2 -no-pie"), false),
        (format!("{GCC} -O2 -fno-crossjumping -fno-gcse"), true),
        (format!("{GCC} -O2 -static -g"), false),
        (format!("{GCC} -O2 -mbranch-protection=standard"), false),
        (format!("{GCC} -Os -static"), true),
        (format!("{CLANG} -O2"), true),
        (format!("{CLANG} -O1 -no-pie"), false),
    ] {
        if !can_run(&command) {
            continue;
        }
        ran = true;
        let folder = Folder::built(&command, LABELS);
        folder.goes_through(&command, &["--preset max", "--preset fast", ""]);
        for output in ["counting", "opt"] {
            for name in ["longer", "calls", "exact", "over", "kept"] {
                // One jump for all labels, which goes through what was in memory as well.
                if name == "kept" && command.contains("-Os") {
                    continue;
                }
                let (tables, old) = folder.tables(output, name);
                assert_eq!(old, 0, "{command} {output}: {name} continues in old code");
                assert!(!tables.is_empty(), "{command} {output}: {name}");
                let guarded = tables.iter().filter(|t| t.1 == "guarded").count();
                assert_eq!(guarded > 0, name == "kept", "{command} {output}: {name}");
            }
            let (tables, old) = folder.tables(output, "open");
            assert!(tables.is_empty() && old > 0, "{command} {output}");
            let reasons = folder.reasons("open");
            // What is behind the first is reached by it alone.
            let known = [": index-unbounded", ": not-reached"];
            let count = |text: &str| reasons.iter().filter(|r| r.ends_with(text)).count();
            assert!(count(known[0]) > 0, "{command}: {reasons:?}");
            assert_eq!(
                known.map(count).iter().sum::<usize>(),
                reasons.len(),
                "{command}: {reasons:?}"
            );
        }
        if spoilt {
            let input = fs::read(folder.path("app")).expect("a file");
            for output in ["counting", "opt"] {
                let output = fs::read(folder.path(output)).expect("a file");
                for (kind, times) in support::faults::spoil(&input, &output, Kind::LABEL_TABLES) {
                    *applied.entry(kind).or_default() += times;
                }
            }
        }
    }
    let kinds = Kind::LABEL_TABLES.iter();
    let never: Vec<_> = kinds.filter(|k| !applied.contains_key(k)).collect();
    assert!(!ran || never.is_empty(), "never applied: {never:?}");
}

/// An interpreter in assembly, in which one instruction can be another.
struct LabelTwin {
    what: &'static str,
    /// What is there in the place of an instruction that does nothing: at the entry, in front of the load, at a label.
    places: [&'static str; 3],
    /// The table is another as the checker is to believe: then an output of the plain interpreter with these
    /// instructions in both files is refused.
    refused: bool,
}

/// `x19` has the table's address, `w9` the index, `x10` the label, `x1` the number of rounds.
const LABEL_TWINS: [LabelTwin; 8] = [
    LabelTwin {
        what: "plain",
        places: ["", "", ""],
        refused: false,
    },
    LabelTwin {
        what: "a copy of the table's address",
        places: ["", "mov x12, x19", ""],
        refused: true,
    },
    LabelTwin {
        what: "it is compared",
        places: ["", "", "cmp x19, x12"],
        refused: true,
    },
    LabelTwin {
        what: "it is stored",
        places: ["", "", "str x19, [sp, #-64]"],
        refused: true,
    },
    LabelTwin {
        what: "it comes from elsewhere as well",
        places: ["", "", "mov x19, x12"],
        refused: true,
    },
    LabelTwin {
        what: "the index is another register's",
        places: ["", "mov w9, w1", ""],
        refused: true,
    },
    LabelTwin {
        what: "the label is read where it leads",
        places: ["", "", "mov x13, x10"],
        refused: true,
    },
    LabelTwin {
        what: "control may leave in between",
        places: ["", "br x12", ""],
        refused: true,
    },
];

/// Does nothing that matters, and is nowhere else in a program.
const MARKS: [u32; 3] = [0xca0c_118d, 0xca0c_158d, 0xca0c_198d];

fn label_twin(twin: &LabelTwin) -> String {
    let mark = |k: usize| match twin.places[k] {
        "" => format!(".inst {:#x}", MARKS[k]),
        text => text.to_owned(),
    };
    let code = format!(
        ".text\n.p2align 4\n.globl twin\n.type twin, %function\ntwin:\n.cfi_startproc\n\
         str x19, [sp, #-16]!\n.cfi_def_cfa_offset 16\n.cfi_offset 19, -16\n mov x12, #0\n adrp x19, labels\n add x19, x19, :lo12:labels\n\
         {}\n mov w11, #1\n\
         5: and w9, w0, #3\n {}\n ldr x10, [x19, w9, uxtw #3]\n lsr w0, w0, #2\n br x10\n\
         1: {}\n add w11, w11, #3\n subs x1, x1, #1\n b.ne 5b\n b 9f\n\
         2: add w11, w11, w11\n subs x1, x1, #1\n b.ne 5b\n b 9f\n\
         3: sub w11, w11, #9\n subs x1, x1, #1\n b.ne 5b\n b 9f\n\
         4: eor w11, w11, #255\n subs x1, x1, #1\n b.ne 5b\n\
         9: mov w0, w11\n ldr x19, [sp], #16\n.cfi_def_cfa_offset 0\n.cfi_restore 19\n ret\n.cfi_endproc\n\
         .size twin, .-twin\n.section .data.rel.ro,\"aw\"\n.p2align 3\nlabels: .quad 1b, 2b, 3b, 4b\n.text\n",
        mark(0),
        mark(1),
        mark(2)
    );
    let code = code.replace('"', "\\\"").replace('\n', "\\n");
    format!(
        "#include <stdio.h>\nint twin(unsigned, long);\n__asm__(\"{code}\");\n\
         int main(void) {{ unsigned s = 0; for (int k = 0; k < 99; k++) s = s * 3 + twin(k * 977, 1 + k % 9); printf(\"%u\\n\", s); return 0; }}\n"
    )
}

/// The word of an instruction.
fn assembled(text: &str) -> u32 {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, object) = (folder.path().join("a.s"), folder.path().join("a.o"));
    fs::write(&source, format!("{text}\n")).expect("written");
    let mut compile = Command::new(GCC);
    done(compile.arg("-c").arg("-o").arg(&object).arg(&source));
    let mut copy = Command::new("aarch64-linux-gnu-objcopy");
    copy.args(["-O", "binary", "-j", ".text"]);
    let binary = folder.path().join("a.bin");
    done(copy.arg(&object).arg(&binary));
    let bytes = fs::read(binary).expect("a file");
    u32::from_le_bytes(bytes[..4].try_into().expect("a word"))
}

/// What reads the address of a table of new code's own is seen by the rewriter, and by the checker where both files
/// have it and the rewriter saw none.
#[test]
fn the_address_of_a_table_of_labels_is_for_loads_alone() {
    if !can_run(GCC) {
        return;
    }
    let plain = Folder::built(&format!("{GCC} -O2"), &label_twin(&LABEL_TWINS[0]));
    plain.goes_through("plain", &[""]);
    let files = ["app", "opt"].map(|name| fs::read(plain.path(name)).expect("a file"));
    for twin in &LABEL_TWINS {
        let runs = !twin.places.contains(&"br x12");
        if runs && !twin.places.contains(&"mov w9, w1") && !twin.places.contains(&"mov x19, x12") {
            let folder = Folder::built(&format!("{GCC} -O2"), &label_twin(twin));
            folder.goes_through(twin.what, &[""]);
            let (tables, old) = folder.tables("opt", "twin");
            assert_eq!((tables.len(), old), (1, 0), "{}", twin.what);
        }
        let mut both = files.clone();
        for (text, mark) in twin.places.iter().zip(MARKS) {
            let word = if text.is_empty() {
                mark
            } else {
                assembled(text)
            };
            for file in &mut both {
                let found: Vec<usize> = (0..file.len() - 3)
                    .step_by(4)
                    .filter(|at| file[*at..at + 4] == mark.to_le_bytes())
                    .collect();
                assert!(!found.is_empty(), "{}", twin.what);
                for at in found {
                    file[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        let options = postlink_verify::Options::default();
        let report = postlink_verify::verify(&both[0], &both[1], &options);
        // The build-id is another's.
        let proved = report.as_ref().is_ok_and(|r| r.failed == 0);
        assert_eq!(proved, !twin.refused, "{}", twin.what);
    }
}

/// A program without libraries, in guarded pages: the mask lets three more through than there are labels, and the last
/// label reads the address that was jumped to, so that it leads to a fallback.
const GUARDED: &str = r#"
__asm__(".text\n.p2align 4\n.globl _start\n.type _start,%function\n_start:\n.cfi_startproc\n.cfi_undefined 30\n bti c\n"
    " mov x29, #0\n bl run\n mov x0, #0\n mov x8, #93\n svc #0\n.cfi_endproc\n.size _start,.-_start\n"
    ".p2align 4\n.globl interpret\n.type interpret,%function\ninterpret:\n.cfi_startproc\n bti c\n"
    " adrp x3, labels\n add x3, x3, :lo12:labels\n mov w11, #1\n"
    "5: cbz w1, 9f\n sub w1, w1, #1\n ldrb w9, [x0], #1\n and w9, w9, #7\n ldr x10, [x3, x9, lsl #3]\n br x10\n"
    "1: bti j\n add w11, w11, #3\n b 5b\n"
    "2: bti j\n add w11, w11, w11\n b 5b\n"
    "3: bti j\n sub w11, w11, #9\n b 5b\n"
    "4: bti j\n eor w11, w11, #255\n b 5b\n"
    "6: bti j\n sub x10, x10, x10\n add w11, w11, w10\n add w11, w11, #11\n b 5b\n"
    "9: mov w0, w11\n ret\n.cfi_endproc\n.size interpret,.-interpret\n"
    ".section .rodata\n.p2align 3\nlabels: .quad 1b, 2b, 3b, 4b, 6b, 17, 18, 19\n.text\n");
extern int interpret(const unsigned char *code, int n);
static void print(const char *text, long n) {
    register long x0 __asm__("x0") = 1, x2 __asm__("x2") = n, x8 __asm__("x8") = 64;
    register const char *x1 __asm__("x1") = text;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory");
}
__attribute__((used)) void run(void) {
    unsigned sum = 0;
    unsigned char code[16];
    for (int i = 0; i < 90; i++) {
        for (int k = 0; k < 16; k++) code[k] = i * k % 5;
        sum = sum * 3 + interpret(code, i % 16);
    }
    char text[9];
    for (int i = 0; i < 8; i++) text[i] = 'a' + (sum >> 4 * i & 15);
    text[8] = 10;
    print(text, 9);
}
"#;

/// Fallbacks began with the load, so where pages are guarded the jump that led there ended the program.
#[test]
fn a_fallback_begins_with_a_landing_pad() {
    if !can_run(GCC) {
        return;
    }
    let command =
        format!("{GCC} -O2 -no-pie -static -nostdlib -ffreestanding -mbranch-protection=standard");
    let folder = Folder::built(&command, GUARDED);
    folder.goes_through(&command, &["--preset max", "--preset fast", ""]);
    let (tables, old) = folder.tables("opt", "interpret");
    assert_eq!((tables.len(), old), (1, 0), "{tables:?}");
    assert_eq!(tables[0].0, 8, "{tables:?}");
    // bti j; adrp x10; ldr x10, [x10, #…]; br x10
    let mut file = fs::read(folder.path("opt")).expect("a file");
    let words: Vec<u32> = file
        .chunks_exact(4)
        .map(|w| u32::from_le_bytes(w.try_into().expect("a word")))
        .collect();
    let is_fallback = |w: &[u32]| {
        w[0] == 0xd503_249f
            && w[1] & 0x9f00_001f == 0x9000_000a
            && w[2] & 0xffc0_03ff == 0xf940_014a
            && w[3] == 0xd61f_0140
    };
    let pads: Vec<usize> = (0..words.len() - 3)
        .filter(|i| is_fallback(&words[*i..*i + 4]))
        .collect();
    assert_eq!(
        pads.len(),
        4,
        "the label that reads, and what is behind the labels"
    );
    for at in pads {
        file[4 * at..4 * at + 4].copy_from_slice(&0xd503_201fu32.to_le_bytes());
    }
    // With the permissions of the other.
    fs::copy(folder.path("opt"), folder.path("spoilt")).expect("copied");
    fs::write(folder.path("spoilt"), &file).expect("written");
    let mut without = Command::new("qemu-aarch64");
    let out = without
        .arg(folder.path("spoilt"))
        .output()
        .expect("it runs");
    assert!(!out.status.success(), "the emulator does not guard pages");
    let app = fs::read(folder.path("app")).expect("a file");
    let report = postlink_verify::verify(&app, &file, &postlink_verify::Options::default());
    assert!(
        report.is_ok_and(|r| r.failed == 1),
        "no landing pad, and proved"
    );
}

/// A label is loaded over its index, and the table's address is read: then a register of linkers' stubs is wanted.
fn twin_by_scratch(at_a_label: &str) -> String {
    let text = label_twin(&LABEL_TWINS[0]);
    let load = "ldr x10, [x19, w9, uxtw #3]\\n lsr w0, w0, #2\\n br x10";
    assert!(text.contains(load), "{text}");
    let text = text.replace(
        load,
        "mov x12, x19\\n ldr x9, [x19, w9, uxtw #3]\\n lsr w0, w0, #2\\n br x9",
    );
    let mark = format!(".inst {:#x}", MARKS[2]);
    let own = if at_a_label.is_empty() {
        mark.clone()
    } else {
        at_a_label.to_owned()
    };
    text.replace(&mark, &own)
}

/// The other register is dead behind the load, as the rewriter and the checker see.
#[test]
fn a_register_of_linkers_stubs_is_for_the_load_alone() {
    if !can_run(GCC) {
        return;
    }
    let command = format!("{GCC} -O2");
    let plain = Folder::built(&command, &twin_by_scratch(""));
    plain.goes_through("plain", &[""]);
    let files = ["app", "opt"].map(|name| fs::read(plain.path(name)).expect("a file"));
    // At a label; how many tables and how many jumps that go on in old code; whether the checker refuses the output of
    // the plain program with this in both files.
    for (text, expected, refused) in [
        ("", (1, 0), false),
        ("mov x13, x16", (1, 0), true),
        ("mov x16, #5", (1, 0), false),
        ("eor x13, x16, x17", (0, 1), true),
        ("stp x16, xzr, [sp, #-64]", (1, 0), true),
    ] {
        let folder = Folder::built(&command, &twin_by_scratch(text));
        if refused {
            // What is in those registers is another address in each of these programs, and nothing looks at it.
            let said = folder.json("instrument app -o counting --json");
            assert_eq!(said["refused"], serde_json::json!([]), "{text}");
            let (tables, old) = folder.tables("counting", "twin");
            assert_eq!((tables.len(), old), expected, "{text}");
        } else {
            folder.goes_through(text, &[""]);
            let (tables, old) = folder.tables("opt", "twin");
            assert_eq!((tables.len(), old), expected, "{text}");
        }
        let mut both = files.clone();
        let word = if text.is_empty() {
            MARKS[2]
        } else {
            assembled(text)
        };
        for file in &mut both {
            let places = (0..file.len() - 3).step_by(4);
            let found: Vec<usize> = places
                .filter(|at| file[*at..at + 4] == MARKS[2].to_le_bytes())
                .collect();
            assert!(!found.is_empty(), "{text}");
            for at in found {
                file[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        let options = postlink_verify::Options::default();
        let report = postlink_verify::verify(&both[0], &both[1], &options);
        // The build-id is another's.
        let proved = report.as_ref().is_ok_and(|r| r.failed == 0);
        assert_eq!(proved, !refused, "{text}");
    }
}
