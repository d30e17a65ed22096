//! Aggregation of a small program in assembly, whose every offset is known.

use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_aggregate::{Binary, Error, Options, aggregate, yaml};
use postlink_elf::elf::Elf;
use postlink_profile::{fdata, perf_script, preaggregated};

/// | offset in `f` | |
/// |---|---|
/// | 0 | `cmp` |
/// | 3 | `jne` to a |
/// | 5 | call of `g` |
/// | a | `ret` |
const SOURCE: &str = "
    .text
    .globl f, _start
    .type f, @function
f:  cmpl $1, %edi
    jne 1f
    call g
1:  ret
    .size f, .-f
    .p2align 4
    .type g, @function
g:  xorl %eax, %eax
    jmp 2f
2:  ret
    .size g, .-g
    .p2align 4
    .type _start, @function
_start: call f
    mov $60, %eax
    syscall
    .size _start, .-_start
";

struct Built {
    _dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

fn build() -> Built {
    build_of(SOURCE, &[])
}

fn build_of(text: &str, flags: &[&str]) -> Built {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, path) = (dir.path().join("a.s"), dir.path().join("app"));
    std::fs::write(&source, text).expect("the directory is ours");
    let status = Command::new("gcc")
        .args(["-nostdlib", "-static", "-Wl,--build-id=0x1234", "-o"])
        .args([&path, &source])
        .args(flags)
        .status();
    assert!(status.expect("gcc is needed for this test").success());
    let bytes = std::fs::read(&path).expect("gcc has just made it");
    Built {
        _dir: dir,
        path,
        bytes,
    }
}

/// Start of a function.
fn start(binary: &Binary<'_, '_>, name: &str) -> u64 {
    let functions = &binary.functions;
    let found = (0..functions.list().len()).find(|&f| functions.name(f, false) == name.as_bytes());
    functions.list()[found.expect("the function is there")].start
}

/// The fdata text of pre-aggregated samples with `f` and `g` for the functions' starts: `B f+5 g 4 1`.
fn aggregated(binary: &Binary<'_, '_>, samples: &str) -> String {
    aggregated_with(binary, samples, Options::default())
}

fn aggregated_with(binary: &Binary<'_, '_>, samples: &str, options: Options) -> String {
    let (f, g) = (start(binary, "f"), start(binary, "g/1"));
    let word = |word: &str| -> String {
        let (base, rest) = match word.split_once('+') {
            Some((base, rest)) => (base, u64::from_str_radix(rest, 16).expect("hexadecimal")),
            None => (word, 0),
        };
        match base {
            "@f" => format!("{:x}", f + rest),
            "@g" => format!("{:x}", g + rest),
            _ => word.to_owned(),
        }
    };
    let text: Vec<String> = samples
        .lines()
        .map(|line| line.split(' ').map(word).collect::<Vec<_>>().join(" "))
        .collect();
    let text = text.join("\n") + "\n";
    let samples =
        preaggregated::read_bytes(Path::new("samples"), text.as_bytes()).expect("well-formed");
    let done = aggregate(binary, &samples, options).expect("there are samples");
    let mut out = Vec::new();
    fdata::write_to(&mut out, &done.profile).expect("memory can be written to");
    String::from_utf8(out).expect("names are ASCII")
}

#[test]
fn branches_and_runs_become_edges_and_returns_do_not() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    assert_eq!(
        aggregated(
            &binary,
            "B @f+5 @g 4 1\nB @f+3 @f+a 6 2\nF @f @f+a 7\nB @g+4 @f+a 4 0\nB 0 @f 9 0"
        ),
        "1 f 3 1 f 5 0 7\n1 f 3 1 f a 2 6\n1 f 5 1 f a 0 7\n1 f 5 1 g/1 0 1 4\n0 [unknown] 0 1 f 0 0 9\n"
    );
}

#[test]
fn a_run_that_begins_behind_a_call_takes_the_call_along_if_it_comes_from_elsewhere() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    assert_eq!(
        aggregated(&binary, "f @f+a @f+a 3\nB 0 @g 1 0"),
        "1 f 5 1 f a 0 3\n0 [unknown] 0 1 g/1 0 0 1\n"
    );
    assert_eq!(
        aggregated(&binary, "F @f+a @f+a 3\nB 0 @g 1 0"),
        "0 [unknown] 0 1 g/1 0 0 1\n"
    );
}

/// perf2bolt 22 counts no branches of records that say they are returns, whatever their source is, nor any other branch
/// from there. 19 knew no such records.
#[test]
fn branches_from_where_a_record_says_a_return_is_are_returns() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let after = "1 f 5 1 f a 0 ";
    assert_eq!(
        aggregated(&binary, "R @f+3 @f+a @f+a 3\nB @f+3 @f+a 2 0\nB 0 @g 1 0"),
        "0 [unknown] 0 1 g/1 0 0 1\n"
    );
    // Returns from outside go on from the call before. Another branch from address 0 is none of them.
    for text in ["R 0 @f+a @f+a 3", "R X:77 @f+a @f+a 3", "r @f+a @f+a 3"] {
        assert_eq!(
            aggregated(&binary, &format!("{text}\nB 0 @g 1 0\nB X:0 @f 2 0")),
            format!("{after}3\n0 [unknown] 0 1 f 0 0 2\n0 [unknown] 0 1 g/1 0 0 1\n"),
            "{text}"
        );
    }
}

/// Where a place is that is in no function is not told: perf2bolt 19 wrote its address, 22 adds all of them up.
#[test]
fn places_outside_of_all_functions_are_one_place() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    assert_eq!(
        aggregated(
            &binary,
            "B 12345678 @f 1 0\nB 12345688 @f 2 1\nB X:0 @f 4 0\nB @f+5 99999999 3 0"
        ),
        "1 f 5 0 [unknown] 0 0 3\n0 [unknown] 0 1 f 0 1 7\n"
    );
}

/// An optimiser moves functions and leaves code without a name, which perf2bolt 22 takes for nobody's.
#[test]
fn code_without_a_name_belongs_to_no_function() {
    let source = "
        .text
        .globl f, _start
        .type f, @function
    f:  cmpl $1, %edi
        jne 1f
        nop
    1:  ret
        .size f, .-f
        xorl %eax, %eax
        ret
        .p2align 4
        .type g, @function
    g:  ret
        .size g, .-g
        .p2align 4
        .type _start, @function
    _start: call f
        ret
        .size _start, .-_start
    ";
    // The first is behind `f`, the other in the padding behind `g`.
    let text = "B @f+8 @g 3 0\nB @g+2 @f 2 0\nF @f @f+6 7";
    let of = |flags: &[&str], options| {
        let built = build_of(source, flags);
        let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
        let binary = Binary::new(&built.path, &elf).expect("it has functions");
        aggregated_with(&binary, text, options)
    };
    let only_explained = Options {
        only_explained: true,
        ..Options::default()
    };
    let runs = "1 f 3 1 f 5 0 7\n1 f 5 1 f 6 0 7\n";
    let branches = "1 g/1 2 1 f 0 0 2\n0 [unknown] 0 1 g/1 0 0 3\n";
    assert_eq!(of(&[], Options::default()), format!("{runs}{branches}"));
    assert_eq!(of(&[], only_explained), format!("{runs}{branches}"));
    // With kept relocations perf2bolt leaves such a function alone, and knows no blocks of it.
    let kept = ["-Wl,--emit-relocs"];
    let branches = "1 f 8 1 g/1 0 0 3\n1 g/1 2 1 f 0 0 2\n";
    assert_eq!(of(&kept, Options::default()), format!("{runs}{branches}"));
    assert_eq!(of(&kept, only_explained), branches);
}

/// What is not in the file is mapped without it: perf tells of no file at such an address.
#[test]
fn loads_from_memory_without_contents_are_of_its_object_in_a_program_at_a_fixed_address() {
    let source = format!(
        "{SOURCE}
        .bss
        .skip 0x3000
        .globl counter
        .type counter, @object
        .size counter, 8
    counter: .skip 8
    "
    );
    let built = build_of(&source, &[]);
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let f = start(&binary, "f");
    let offset = elf.offset_of(f).expect("code is in the file");
    let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
    let counter = symbols.iter().find(|symbol| symbol.name == b"counter");
    let counter = counter.expect("it is there").value;
    let mut text = format!(
        "app 7/7 1.0: PERF_RECORD_MMAP2 7/7: [{:#x}(0x1000) @ {:#x} <1234>]: r-xp /elsewhere/app\n",
        f & !0xfff,
        offset & !0xfff
    );
    for event in ["mem-loads,ldlat=30", "mem-stores"] {
        text += &format!(" 7 cpu/{event}/P: {:>18x} {f:>18x}\n", counter + 4);
    }
    let samples = perf_script::read_bytes(Path::new("x"), text.as_bytes(), &Default::default());
    let samples = samples.expect("well-formed");
    let done = aggregate(&binary, &samples, Options::default()).expect("there are samples");
    let mut out = Vec::new();
    fdata::write_to(&mut out, &done.profile).expect("memory can be written to");
    let out = String::from_utf8(out).expect("names are ASCII");
    assert!(out.contains("4 f 0 4 counter 4 1\n"), "{out}");
}

#[test]
fn profiles_go_to_blocks_and_back() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let text = "1 f 3 1 f 5 0 7\n1 f 3 1 f a 2 6\n1 f 5 1 f a 0 7\n1 f 5 1 g/1 0 1 4\n0 [unknown] 0 1 f 0 0 9\n";
    let profile = fdata::read_bytes(Path::new("x"), text.as_bytes()).expect("well-formed");
    let (blocks, left) = yaml::from_symbolic(&binary, &profile, "test", &|_| None);
    assert_eq!(left, yaml::Left::default());
    let f = blocks
        .functions
        .iter()
        .find(|f| f.name == b"f")
        .expect("f ran");
    assert_eq!((f.exec, f.nblocks, f.blocks.len()), (9, 3, 3));
    assert_eq!(f.blocks[0].successors.len(), 2);
    assert_eq!(
        (f.blocks[1].calls.len(), f.blocks[1].calls[0].count),
        (1, 4)
    );
    let (back, left) = yaml::to_symbolic(&binary, &blocks, &|_| None);
    assert_eq!(left, yaml::Left::default());
    assert_eq!(back.branches(), profile.branches());
    let strange = fdata::read_bytes(
        Path::new("x"),
        b"1 nobody 3 1 nobody 5 0 7\n1 f 3 1 f 4 0 2\n",
    )
    .expect("well-formed");
    let (_, left) = yaml::from_symbolic(&binary, &strange, "test", &|_| None);
    assert_eq!((left.unknown, left.counts), (1, 2));
}

#[test]
fn recordings_of_another_build_are_refused_unless_they_are_wanted() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let f = start(&binary, "f");
    let offset = elf.offset_of(f).expect("code is in the file");
    // Two processes, each with the file elsewhere.
    let text = |build_id: &str| {
        let mut text = String::new();
        for (pid, base) in [(7, 0x5555_0000_0000u64), (8, 0x7777_0000_0000)] {
            text += &format!(
                "app {pid}/{pid} 1.0: PERF_RECORD_MMAP2 {pid}/{pid}: [{base:#x}(0x1000) @ {:#x} {build_id}]: r-xp /elsewhere/app\n",
                offset & !0xfff
            );
            let at = base + (offset & 0xfff);
            text += &format!(
                " {pid}  {at:>16x}  {:#x}/{:#x}/M/-/-/0  0x1/{at:#x}/P/-/-/0\n",
                at + 3,
                at + 10
            );
        }
        text
    };
    let read = |text: &str| {
        perf_script::read_bytes(Path::new("x"), text.as_bytes(), &Default::default())
            .expect("well-formed")
    };
    let good =
        aggregate(&binary, &read(&text("<1234>")), Options::default()).expect("the same build");
    let mut out = Vec::new();
    fdata::write_to(&mut out, &good.profile).expect("memory can be written to");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "1 f 3 1 f a 2 2\n0 [unknown] 0 1 f 0 0 2\n"
    );
    let other = read(&text("<abcd>"));
    let error = aggregate(&binary, &other, Options::default()).expect_err("another build");
    assert!(matches!(error, Error::BuildId { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("1234 in the binary and abcd in the recording"),
        "{error}"
    );
    let forced = Options {
        ignore_build_id: true,
        ..Options::default()
    };
    assert!(aggregate(&binary, &other, forced).is_ok());
    let foreign = read(&text("<abcd>").replace("/elsewhere/app", "/elsewhere/other"));
    let error = aggregate(&binary, &foreign, forced).expect_err("another file");
    assert!(error.to_string().contains("/elsewhere/other"), "{error}");
}

#[test]
fn samples_of_nothing_are_an_error() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let samples = preaggregated::read_bytes(Path::new("x"), b"B 1 2 3 0\n").expect("well-formed");
    let error = aggregate(&binary, &samples, Options::default()).expect_err("nothing there");
    assert!(matches!(error, Error::Empty { .. }), "{error}");
}

#[test]
fn any_samples_and_profiles_are_attached_to_a_binary_or_refused() {
    use std::fmt::Write;
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let f = start(&binary, "f");
    arbtest::arbtest(|u| {
        let mut samples = String::new();
        for _ in 0..u.int_in_range(0..=20)? {
            let mut address = || -> arbitrary::Result<u64> {
                Ok(match u.int_in_range(0..=7)? {
                    0 => u.arbitrary()?,
                    1 => 0,
                    _ => f - 8 + u.int_in_range(0..=80u64)?,
                })
            };
            let (a, b, c) = (address()?, address()?, address()?);
            let count = u64::MAX >> u.int_in_range(0..=63)?;
            match u.int_in_range(0..=4)? {
                0 => writeln!(samples, "B {a:x} {b:x} {count} {count}"),
                1 => writeln!(samples, "F {a:x} {b:x} {count}"),
                2 => writeln!(samples, "f {a:x} {b:x} {count}"),
                3 => writeln!(samples, "S {a:x} {count}"),
                _ => writeln!(samples, "T {a:x} {b:x} {c:x} {count}"),
            }
            .expect("memory can be written to");
        }
        let samples = preaggregated::read_bytes(Path::new("x"), samples.as_bytes());
        let samples = samples.expect("well-formed");
        if let Ok(done) = aggregate(&binary, &samples, Options::default()) {
            let (blocks, _) = yaml::from_symbolic(&binary, &done.profile, "test", &|_| None);
            let _ = yaml::to_symbolic(&binary, &blocks, &|_| None);
        }
        let mut text = String::new();
        for _ in 0..u.int_in_range(0..=20)? {
            let mut location = || -> arbitrary::Result<String> {
                let name = u.choose(&["f", "g/1", "_start", "nobody", "f/x/1"])?;
                let offset: u64 = match u.int_in_range(0..=3)? {
                    0 => u.arbitrary()?,
                    _ => u.int_in_range(0..=20)?,
                };
                Ok(format!("1 {name} {offset:x}"))
            };
            let (a, b) = (location()?, location()?);
            let count: u64 = u.arbitrary()?;
            writeln!(text, "{a} {b} {count} {count}").expect("memory can be written to");
        }
        let profile = fdata::read_bytes(Path::new("x"), text.as_bytes()).expect("well-formed");
        let (blocks, _) = yaml::from_symbolic(&binary, &profile, "test", &|_| None);
        let _ = yaml::to_symbolic(&binary, &blocks, &|_| None);
        Ok(())
    });
}

/// Two builds with one build-id cannot be told apart by it: what is at an address where this build has no code is
/// counted and left out, and what fits is taken.
#[test]
fn samples_of_another_build_with_the_same_build_id_count_where_they_fit() {
    let built = build();
    let elf = Elf::parse(&built.bytes).expect("gcc makes good files");
    let binary = Binary::new(&built.path, &elf).expect("it has functions");
    let offset = elf
        .offset_of(start(&binary, "f"))
        .expect("code is in the file");
    let mut text = String::new();
    for (pid, file) in [(7, "/new/app"), (8, "/old/app")] {
        text += &format!(
            "app {pid}/{pid} 1.0: PERF_RECORD_MMAP2 {pid}/{pid}: [0x550000000000(0x100000) @ {:#x} <1234>]: r-xp {file}\n",
            offset & !0xfff
        );
        let at = 0x5500_0000_0000 + (offset & 0xfff);
        // The other build is larger: a loop where this one has nothing.
        let other = at + 0x8000;
        text += &match pid {
            7 => format!(" 7  {at:>16x}  {:#x}/{:#x}/M/-/-/0\n", at + 3, at + 10),
            _ => format!(
                " 8  {at:>16x}  {other:#x}/{:#x}/P/-/-/0  {:#x}/{:#x}/P/-/-/0\n",
                other - 0x10,
                at + 3,
                at + 10
            ),
        };
    }
    let samples = perf_script::read_bytes(Path::new("x"), text.as_bytes(), &Default::default());
    let samples = samples.expect("well-formed");
    let done = aggregate(&binary, &samples, Options::default()).expect("both have the build-id");
    let mut out = Vec::new();
    fdata::write_to(&mut out, &done.profile).expect("memory can be written to");
    let text = String::from_utf8_lossy(&out);
    assert!(text.contains("1 f 3 1 f a 1 2\n"), "{text}");
    assert_eq!(samples.statistics.samples, 2);
}
