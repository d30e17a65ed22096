//! Profiles of an older build, by blocks: what of their counts arrives in the newer one.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_profile::bolt_yaml::{self, BoltYaml};
use postlink_profile::fdata;
use postlink_profile::symbolic::SymbolicProfile;
use postlink_rewrite::attach::Account;
use postlink_rewrite::{InstrumentOptions, OptimizeOptions, Phases, export, instrument, optimize};

/// A program, and the counts of a run of it.
struct Built {
    path: PathBuf,
    data: Vec<u8>,
    /// By blocks.
    blocks: BoltYaml,
    /// By names.
    names: SymbolicProfile,
}

/// Builds a program and counts a run; `None`, and says so, if the compiler is not there.
fn build(folder: &Path, name: &str, source: &str, compiler: &str, flags: &[&str]) -> Option<Built> {
    let path = folder.join(name);
    let file = folder.join(format!("{name}.c"));
    fs::write(&file, source).expect("the folder is ours");
    let status = Command::new(compiler)
        .args(["-O2", "-w", "-Wl,-q"])
        .args(flags)
        .arg("-o")
        .args([&path, &file])
        .status();
    if !cfg!(target_arch = "x86_64") || !status.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: {compiler} for x86-64 is missing");
        return None;
    }
    let data = fs::read(&path).expect("it was built");
    let elf = Elf::parse(&data).expect("a program");
    let counting = folder.join(format!("{name}.inst"));
    let options = InstrumentOptions::default();
    instrument(&elf, &options, &counting, 0o755, &mut Phases::default()).expect("it can be");
    let run = folder.join(format!("{name}.plraw"));
    let done = support::run(Command::new(counting).env("POSTLINK_PROFILE", &run));
    assert!(done.status.success());
    let counts = postlink_profile::open(&run).and_then(|profile| profile.read());
    let counts = counts.expect("it was counted");
    let blocks = export::yaml(&elf, &counts, name.as_bytes()).expect("its own profile");
    let names = export::symbolic(&elf, &counts).expect("its own profile");
    // As a file.
    let text = bolt_yaml::to_bytes(&blocks);
    let blocks = bolt_yaml::read_bytes(Path::new(name), &text).expect("ours");
    Some(Built {
        path,
        data,
        blocks,
        names,
    })
}

/// Counts by names and offsets of both ends.
fn edges(profile: &SymbolicProfile) -> BTreeMap<(Vec<u8>, u64, Vec<u8>, u64), f64> {
    let name = |at: postlink_profile::symbolic::Location| profile.names().get(at.name).to_vec();
    let mut all = BTreeMap::new();
    for b in profile.branches() {
        let key = (name(b.from), b.from.offset, name(b.to), b.to.offset);
        *all.entry(key).or_default() += b.count as f64;
    }
    all
}

/// What of a profile arrives in a program: how it was matched, and in percent how alike the counts are to those of a
/// run.
fn arrives(new: &Built, profile: &BoltYaml) -> (Account, f64) {
    let elf = Elf::parse(&new.data).expect("a program");
    let fitted = export::symbolic(&elf, profile).expect("it fits");
    let out = new.path.with_extension("out");
    let options = OptimizeOptions::default();
    let report = optimize(&elf, profile, &options, &out, 0o755, &mut Phases::default());
    let report = report.expect("it fits");
    let [plain, moved] = [&new.path, &out].map(|path| {
        let output = support::run(&mut Command::new(path));
        assert!(output.status.success());
        output.stdout
    });
    assert_eq!(plain, moved);
    let (a, b) = (edges(&fitted), edges(&new.names));
    let sum = |edges: &BTreeMap<_, f64>| edges.values().sum::<f64>();
    let (all_a, all_b) = (sum(&a), sum(&b));
    let both = a
        .iter()
        .filter_map(|(edge, count)| Some((count / all_a).min(b.get(edge)? / all_b)));
    (
        report.profile.expect("it is not exact"),
        100.0 * both.sum::<f64>(),
    )
}

/// An interpreter whose operations end alike: each jumps to the next. In the second release one of the operations that
/// run most has a block more, and there is an operation more.
///
/// The first operation is computed without a branch; were that changed, the compiler would make a branch of it, and
/// which way it goes no profile of the first release can know. The block that is new is off the path, as compilers
/// place what they know to be rare: else how often it runs could not be known either.
fn interpreter(release: u32) -> String {
    const OPERATIONS: u32 = 40;
    let count = OPERATIONS + release - 1;
    let mut text = String::from(
        "#include <stdio.h>\ntypedef unsigned u;\nu seen;\n\
         __attribute__((noinline)) u run(const unsigned char *at, u a) {\n  \
         static const void *const table[] = { ",
    );
    for operation in 0..count {
        let _ = write!(text, "&&op{operation}, ");
    }
    text.push_str("&&end };\n  u b = 1;\n  goto *table[*at];\n");
    for operation in 0..count {
        let (k, s) = (operation * 7 % 31 + 3, operation % 5 + 1);
        let _ = writeln!(text, "op{operation}:");
        if operation == 1 && release > 1 {
            let _ = writeln!(text, "  if (__builtin_expect(a == 0x1234567, 0)) seen++;");
        }
        let _ = match operation % 3 {
            0 => writeln!(text, "  if (a & {k}) a += b; else a ^= b << {s};"),
            1 => writeln!(text, "  b += a >> {s}; if (b > 0xfffff000u) seen++;"),
            _ => writeln!(text, "  a -= {k}; if ((b & {s}) == 0) b ^= a;"),
        };
        text.push_str("  goto *table[*++at];\n");
    }
    let _ = writeln!(
        text,
        "end:\n  return a ^ b;\n}}\nint main(void) {{\n  unsigned char code[4001];\n  u x = 12345;\n  \
         for (int i = 0; i < 4000; i++) {{ \
         x = x * 1103515245 + 12345; u y = x >> 16 & 255; \
         code[i] = y * y / 1700 % {OPERATIONS}; }}\n  code[4000] = {count};\n  \
         u sum = 0;\n  for (int i = 0; i < 50; i++) sum += run(code, i);\n  \
         printf(\"%u %u\\n\", sum, seen);\n  return 0;\n}}"
    );
    text
}

#[test]
fn operations_of_an_interpreter_that_end_alike_keep_their_own_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    // Each operation keeps a jump of its own.
    let flags = ["-fno-crossjumping", "-fno-gcse"];
    let of = |name, release| build(folder.path(), name, &interpreter(release), "gcc", &flags);
    let (Some(old), Some(new)) = (of("old", 1), of("new", 2)) else {
        return;
    };
    let (found, overlap) = arrives(&new, &old.blocks);
    assert!(found.stale >= 1, "{found:?}");
    assert!(overlap > 95.0, "{overlap} %: {found:?}");
}

/// A loop over a list. In the second release it asks first whether the list goes on, which it nearly always does, and
/// the branch is taken then.
fn list(release: u32) -> String {
    let more = match release {
        1 => "",
        _ => "if (p->next == 0) { seen++; p->next = p; }",
    };
    format!(
        "#include <stdio.h>\ntypedef unsigned u;\nstruct s {{ struct s *next; u a; }};\nu seen;\n\
         __attribute__((noinline)) u f(struct s *p, u x) {{\n  u sum = 0;\n  for (u i = 0; i < x; i++) {{\n    {more}\n    \
         sum += p->a ^ i; p->a = p->a * 3 + 1;\n    if (sum & 8) printf(\"\"); else seen += 2;\n    \
         p = p->next;\n  }}\n  return sum;\n}}\n\
         int main(void) {{ static struct s a, b; a.next = &b; b.next = &a; u sum = 0; \
         for (u i = 0; i < 3000; i++) sum += f(&a, i % 40); \
         printf(\"%u\\n\", sum); return 0; }}\n"
    )
}

#[test]
fn a_new_branch_goes_the_way_that_static_prediction_expects() {
    let folder = tempfile::tempdir().expect("a folder");
    // Blocks are in the order of the source.
    let flags = ["-fno-reorder-blocks", "-fno-guess-branch-probability"];
    let of = |name, release| build(folder.path(), name, &list(release), "gcc", &flags);
    let (Some(old), Some(new)) = (of("old", 1), of("new", 2)) else {
        return;
    };
    let (found, overlap) = arrives(&new, &old.blocks);
    assert!(found.stale >= 1, "{found:?}");
    assert!(overlap > 95.0, "{overlap} %: {found:?}");
}

/// A function of branches, loops and calls that uses a number.
fn with_a_number(number: u32) -> String {
    format!(
        "#include <stdio.h>\ntypedef unsigned u;\nstruct s {{ u fill[{number}]; u a, b; }};\n\
         __attribute__((noinline)) u f(struct s *s, u x) {{\n  for (u i = 0; i < (x & 15); i++) {{\n    \
         if (s->a & 1) s->a = s->a * 3 + 1; else s->a >>= 1;\n    \
         if (s->b < x) s->b += s->a; else s->b ^= x;\n  }}\n  return s->a + s->b;\n}}\n\
         int main(void) {{ static struct s s; u sum = 0; s.a = 7; \
         for (u i = 0; i < 3000; i++) sum += f(&s, i * 2654435761u >> 9); \
         printf(\"%u\\n\", sum); return 0; }}\n"
    )
}

#[test]
fn a_function_whose_offsets_of_fields_have_changed_keeps_all_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name, number| build(folder.path(), name, &with_a_number(number), "gcc", &[]);
    let (Some(old), Some(new)) = (of("old", 10), of("new", 14)) else {
        return;
    };
    let (found, overlap) = arrives(&new, &old.blocks);
    assert!(found.stale >= 1, "{found:?}");
    assert_eq!(found.matched_blocks, found.stale_blocks, "{found:?}");
    assert!(overlap > 99.9, "{overlap} %: {found:?}");
}

/// Functions that call each other; `names` are what they are called, and one has code that is not in all releases.
fn callers(middle: &str, more: &str) -> String {
    format!(
        "#include <stdio.h>\ntypedef unsigned u;\nu seen;\n#define F __attribute__((noinline, noclone))\n\
         F u low(u x) {{ u a = x; while (x > 3) {{ a += x & 1 ? 3 : 5; x >>= 1; }} return a; }}\n\
         F u high(u x) {{ u a = 1; for (u i = 0; i < (x & 7); i++) if (x >> i & 1) a *= 3; return a; }}\n\
         F u {middle}(u x) {{ u a = 0; {more} \
         for (u i = 0; i < (x & 31); i++) {{ \
         if (i & 4) a += low(x + i); else if (x & 64) a ^= x; else a -= i; }} return a; }}\n\
         F u top(u x) {{ return x % 3 ? {middle}(x) : high(x); }}\n\
         int main(void) {{ u sum = 0; \
         for (u i = 0; i < 5000; i++) sum = sum * 31 + top(i * 2654435761u >> 7); \
         printf(\"%u %u\\n\", sum, seen); return 0; }}\n"
    )
}

#[test]
fn a_function_with_another_name_and_other_code_is_found_by_who_calls_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = "if (x == 0x1234567) { seen++; puts(\"seen\"); }";
    let of = |name, source: String| build(folder.path(), name, &source, "gcc", &[]);
    let old = of("old", callers("middle", ""));
    let new = of("new", callers("other", more));
    let (Some(old), Some(new)) = (old, new) else {
        return;
    };
    let (found, overlap) = arrives(&new, &old.blocks);
    assert_eq!((found.renamed, found.unknown_names), (1, 0), "{found:?}");
    assert!(overlap > 90.0, "{overlap} %: {found:?}");
}

/// A function of branches and loops that computes with floating point in all of its blocks.
#[cfg(target_arch = "x86_64")]
const FLOATING: &str = "#include <stdio.h>\ntypedef double d;\n\
    __attribute__((noinline)) d f(d x, d y) {\n  d a = x * 0.5;\n  while (a > 1.0) {\n    \
    if (a * y > x) { a = a * 0.25 - y; if (a < y * 0.125) y += a * 3.0; }\n    \
    else if (a + y < 40.0) { y = y * 0.75 + x; a -= 1.5; }\n    \
    else { a = a * 0.625 + 0.25; y -= a * 0.375; }\n    \
    if (y > 90.0) y = y * 0.0625 + a;\n  }\n  \
    return a * y + x;\n}\n\
    int main(void) { d sum = 0.0; \
    for (int i = 0; i < 4000; i++) sum += f(i * 0.75, i % 37); \
    printf(\"%g\\n\", sum); return 0; }\n";

#[cfg(target_arch = "x86_64")]
#[test]
fn pseudo_probes_find_blocks_in_code_for_another_processor() {
    if !std::is_x86_feature_detected!("avx") {
        eprintln!("SKIPPED: the processor has no AVX");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // No block has instructions of the same names in both.
    let of = |name, processor| {
        let flags = [processor, "-fpseudo-probe-for-profiling"];
        build(folder.path(), name, FLOATING, "clang-22", &flags)
    };
    let (Some(old), Some(new)) = (of("old", "-mno-avx"), of("new", "-mavx")) else {
        return;
    };
    let mut bare = old.blocks.clone();
    bare.set_source_functions(&[]);
    let (found, with) = arrives(&new, &old.blocks);
    let (other, without) = arrives(&new, &bare);
    assert!(
        with > 95.0 && with > without + 20.0,
        "{with} % {found:?}, {without} % {other:?}"
    );
    assert!(
        found.matched_counts > 2 * other.matched_counts,
        "{found:?}, {other:?}"
    );
}

/// A place of an inline tree (GUIDs and hashes of source functions and their call probes, from there up), and the
/// number of a probe.
type Probe = (Vec<(u64, u64, u32)>, u32);

/// The probes of blocks, by functions' names and blocks' numbers.
fn probes(profile: &BoltYaml) -> BTreeMap<(Vec<u8>, u32), Vec<Probe>> {
    let functions = profile.source_functions();
    let mut all = BTreeMap::new();
    for function in &profile.functions {
        let tree = function.inline_tree();
        for block in &function.blocks {
            let path = |mut at: u32| {
                let mut path = Vec::new();
                loop {
                    let node = tree[at as usize];
                    let source = functions[node.function as usize];
                    path.push((source.guid, source.hash, node.site));
                    if at == 0 {
                        return path;
                    }
                    at = node.parent;
                }
            };
            let of_block = block.probes().into_iter();
            let mut probes: Vec<Probe> = of_block.map(|p| (path(p.node), p.number)).collect();
            probes.sort_unstable();
            if !probes.is_empty() {
                all.insert((function.name.clone(), block.bid), probes);
            }
        }
    }
    all
}

#[test]
fn pseudo_probes_in_profiles_are_those_that_llvm_bolt_22_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = callers("middle", "").replace("F u low", "static inline u low");
    // What was inlined where is known with debug info only.
    let flags = ["-g", "-fpseudo-probe-for-profiling"];
    let Some(built) = build(folder.path(), "app", &source, "clang-22", &flags) else {
        return;
    };
    let (names, theirs) = (
        folder.path().join("app.fdata"),
        folder.path().join("app.yaml"),
    );
    fdata::write(&names, &built.names).expect("the folder is ours");
    if !Path::new("/usr/bin/llvm-bolt-22").exists() {
        eprintln!("SKIPPED: llvm-bolt-22 is missing");
        return;
    }
    // This release writes the profile; of some programs with probes it writes no output then: it crashes, and may
    // wait for itself while it says so.
    let done = Command::new("timeout")
        .args(["20", "llvm-bolt-22", "--profile-write-pseudo-probes"])
        .args(["--thread-count=1", "-w"])
        .arg(&theirs)
        .arg("-data")
        .arg(&names)
        .arg("-o")
        .arg(folder.path().join("app.bolt"))
        .arg(&built.path)
        .output();
    assert!(theirs.exists(), "{done:?}");
    let text = fs::read(&theirs).expect("just written");
    let theirs = probes(&bolt_yaml::read_bytes(&theirs, &text).expect("LLVM's"));
    let ours = probes(&built.blocks);
    assert!(theirs.len() >= 10, "{theirs:?}");
    let inlined = |probe: &Probe| probe.0.len() > 1;
    assert!(theirs.values().flatten().any(inlined), "{theirs:?}");
    for (block, probes) in &theirs {
        assert_eq!(Some(probes), ours.get(block), "{block:?}");
    }
}

#[test]
fn a_program_that_is_open_for_writing_is_run_once_it_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("program");
    fs::copy("/bin/true", &path).expect("the folder is ours");
    let open = fs::OpenOptions::new().append(true).open(&path);
    let open = open.expect("it was copied");
    let busy = Command::new(&path).output().map_err(|error| error.kind());
    assert_eq!(busy.err(), Some(std::io::ErrorKind::ExecutableFileBusy));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(open);
        });
        assert!(support::run(&mut Command::new(&path)).status.success());
    });
}
