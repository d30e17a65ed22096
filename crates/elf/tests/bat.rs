//! Address translation tables: those that llvm-bolt writes, made-up ones, and damaged ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use arbitrary::{Result, Unstructured};
use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{self, Bat, Entry, EntryKind, Translator};
use postlink_elf::elf::{Elf, SymbolTable};

const BOLT_19: &str = "/usr/lib/llvm-19/bin/llvm-bolt";
const BOLTS: [&str; 2] = ["/usr/lib/llvm-22/bin/llvm-bolt", BOLT_19];

/// A program with hot loops, a switch, cold paths, an assembly function with two entries, and functions that
/// call each other.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) static int rare(int x) { fprintf(stderr, "%d\n", x); return x ^ 1; }
__attribute__((noinline)) int choose(int x) {
  switch (x % 7) { case 0: return x + 5; case 1: return x * 3; case 2: return x - 11; case 3: if (x == 123457) return rare(x); return ~x;
    case 4: return x << 1; case 5: return x >> 2; default: if (x < 0) abort(); return 9; } }
__attribute__((noinline)) int work(int n) { int s = 0; for (int i = 0; i < n; i++) { if (i == -1) s += rare(s); s += choose(i); if (s & 1) s ^= i; } return s; }
int second(int); int first(int);
__asm__(".text\n.globl first\n.type first,@function\nfirst: lea 1(%rdi),%edi\n cmp $7,%edi\n je 1f\n.globl second\n.type second,@function\nsecond: lea 2(%rdi),%eax\n ret\n1: xor %eax,%eax\n ret\n.size first,.-first\n.size second,.-second\n");
int main(int argc, char **argv) { int s = argc; for (int i = 0; i < 50; i++) s += work(200 + i) + first(i) + second(i); printf("%d\n", s); return 0; }
"#;

fn run(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What each llvm-bolt makes of the program with several options; says which is not there.
fn optimized(dir: &Path) -> Vec<PathBuf> {
    let outputs = BOLTS.iter().enumerate().map(|(number, bolt)| {
        let dir = dir.join(number.to_string());
        std::fs::create_dir(&dir).expect("the directory is ours");
        optimized_by(bolt, &dir)
    });
    outputs.flatten().collect()
}

fn optimized_by(bolt: &str, dir: &Path) -> Vec<PathBuf> {
    if !Path::new(bolt).exists() {
        eprintln!("SKIPPED: {bolt} is not there: its sections are not compared");
        return Vec::new();
    }
    let at = |name: &str| dir.join(name);
    std::fs::write(at("p.c"), SOURCE).expect("the directory is ours");
    run(Command::new("gcc")
        .args(["-O2", "-Wl,-q", "-o"])
        .args([at("p"), at("p.c")]));
    run(Command::new(bolt)
        .arg(at("p"))
        .args(["-instrument", "-o"])
        .arg(at("inst"))
        .arg(format!("--instrumentation-file={}", at("fdata").display())));
    run(&mut Command::new(at("inst")));
    let variants: [&[&str]; 4] = [
        &["-split-functions", "-split-all-cold"],
        &[
            "-split-functions",
            "-split-all-cold",
            "-hot-functions-at-end",
        ],
        &["-split-functions", "-split-strategy=all", "-lite=0"],
        &["-lite=0"],
    ];
    let mut outputs = Vec::new();
    for (i, options) in variants.iter().enumerate() {
        let output = at(&format!("out{i}"));
        run(Command::new(bolt)
            .arg(at("p"))
            .arg(format!("-data={}", at("fdata").display()))
            .args([
                "-reorder-blocks=ext-tsp",
                "-reorder-functions=cdsort",
                "-enable-bat",
                "-o",
            ])
            .arg(&output)
            .args(*options));
        outputs.push(output);
    }
    outputs
}

/// Programs to look at besides: paths in POSTLINK_BAT_FILES, separated by colons.
fn more_files() -> Vec<PathBuf> {
    let list = std::env::var_os("POSTLINK_BAT_FILES").unwrap_or_default();
    std::env::split_paths(&list)
        .filter(|p| !p.as_os_str().is_empty())
        .collect()
}

#[test]
fn sections_of_llvm_bolt_are_reproduced_byte_for_byte_and_translate_entries_to_themselves() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut files = optimized(dir.path());
    files.extend(more_files());
    for path in files {
        let data = std::fs::read(&path).expect("it has just been written");
        let elf = Elf::parse(&data).expect("llvm-bolt writes ELF");
        let (_, section) = elf.section(bat::SECTION).expect("-enable-bat");
        let bytes = elf.section_data(section);
        let bat = Bat::parse(bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(!bat.hot().is_empty());
        assert_eq!(bat.encode().unwrap(), bytes, "{}", path.display());
        let parents = Parents::with_symbols(&bat, &elf);
        assert_eq!(
            parents,
            Parents::new(&bat),
            "{}: symbols and tables disagree",
            path.display()
        );
        assert_eq!(parents.unknown, 0, "{}", path.display());
        let t = Translator::new(&bat, &parents);
        for hot in bat.hot() {
            let entries = bat.hot_entries(hot);
            assert_eq!(
                (entries[0].output, entries[0].input),
                (0, 0),
                "a function begins with its entry"
            );
            for (i, e) in entries.iter().enumerate() {
                // Of several at an offset the last counts.
                if entries.get(i + 1).is_none_or(|n| n.output != e.output) {
                    assert_eq!(
                        t.translate(hot.start, e.output.into(), true),
                        e.input.into()
                    );
                }
                if let EntryKind::Block { index, hash } = e.kind {
                    let block = t
                        .block(hot.start, e.input.into())
                        .expect("it is in the list");
                    assert_eq!(
                        (block.input, block.index, block.hash),
                        (e.input, index, hash)
                    );
                }
            }
            assert_eq!(
                t.blocks(hot.start).len() as u64,
                hot.blocks,
                "a block is missing"
            );
        }
    }
}

#[test]
fn parents_that_bolt_19_numbers_wrongly_are_found_by_symbols_and_by_blocks_alike() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(path) = optimized_by(BOLT_19, dir.path()).into_iter().nth(1) else {
        return;
    };
    let data = std::fs::read(path).expect("it has just been written");
    let elf = Elf::parse(&data).expect("llvm-bolt writes ELF");
    let bat = Bat::read(&elf).unwrap().expect("-enable-bat");
    let low = bat
        .cold()
        .iter()
        .any(|c| bat.hot().iter().any(|h| h.start > c.start));
    assert!(low, "the option puts cold parts below hot ones");
    let parents = Parents::new(&bat);
    assert_eq!(parents.corrected, bat.cold().len());
    for s in elf.symbols(SymbolTable::Static).iter() {
        if s.name == b"choose.cold.0" {
            let cold = bat.cold().iter().position(|c| c.start == s.value).unwrap();
            let parent = &bat.hot()[parents.of(cold).unwrap() as usize];
            let named = elf
                .symbols(SymbolTable::Static)
                .iter()
                .find(|s| s.name == b"choose");
            assert_eq!(Some(parent.start), named.map(|s| s.value));
        }
    }
}

fn entries(u: &mut Unstructured<'_>) -> Result<Vec<Entry>> {
    let (mut output, mut out) = (0u32, Vec::new());
    let same = u.arbitrary::<bool>()?;
    for i in 0..u.int_in_range(0..=20u32)? {
        output = output.saturating_add(u.int_in_range(0..=300)?);
        let input = if same && i < 9 {
            output & 0x7fff_ffff
        } else {
            u.arbitrary::<u32>()? >> 1
        };
        let kind = if u.arbitrary()? {
            EntryKind::Branch
        } else {
            EntryKind::Block {
                index: u.arbitrary()?,
                hash: u.arbitrary()?,
            }
        };
        out.push(Entry {
            output,
            input,
            kind,
        });
    }
    Ok(out)
}

fn made_up(u: &mut Unstructured<'_>) -> Result<Bat> {
    let mut bat = Bat::default();
    let mut start = u.arbitrary::<u64>()? >> 1;
    for _ in 0..u.int_in_range(0..=5)? {
        start += u.int_in_range(1..=5000u64)?;
        let mut secondary: Vec<u32> = u.arbitrary()?;
        secondary.sort_unstable();
        secondary.dedup();
        bat.push_hot(
            start,
            u.arbitrary()?,
            u.arbitrary()?,
            entries(u)?,
            &secondary,
        )
        .unwrap();
    }
    let mut start = u.arbitrary::<u64>()? >> 1;
    for _ in 0..u.int_in_range(0..=5)? {
        start += u.int_in_range(1..=5000u64)?;
        bat.push_cold(start, u.arbitrary()?, entries(u)?).unwrap();
    }
    Ok(bat)
}

#[test]
fn what_is_written_is_read_again() {
    arbtest::arbtest(|u| {
        let bat = made_up(u)?;
        let bytes = bat.encode().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let again = Bat::parse(&bytes).unwrap();
        assert_eq!(again, bat);
        Ok(())
    });
}

#[test]
fn translation_finds_the_last_entry_at_or_before_an_offset() {
    arbtest::arbtest(|u| {
        let bat = made_up(u)?;
        let t = Translator::new(&bat, &Parents::new(&bat));
        for hot in bat.hot() {
            let entries = bat.hot_entries(hot);
            let offset = u64::from(u.int_in_range(0..=7000u32)?);
            let last = entries.iter().rfind(|e| u64::from(e.output) <= offset);
            let (exact, moved) = match last {
                Some(e) => (
                    e.input.into(),
                    offset - u64::from(e.output) + u64::from(e.input),
                ),
                None => (offset, offset),
            };
            assert_eq!(t.translate(hot.start, offset, true), exact);
            assert_eq!(t.translate(hot.start, offset, false), moved);
            let fragment = t.fragment_before(hot.start + 1);
            let nearest = bat
                .hot()
                .iter()
                .map(|h| h.start)
                .chain(bat.cold().iter().map(|c| c.start));
            let nearest = nearest.filter(|s| *s <= hot.start + 1).max();
            assert_eq!(fragment.map(|f| t.start(f)), nearest);
        }
        Ok(())
    });
}

#[test]
fn fall_throughs_join_the_blocks_of_a_run() {
    let block = |output, input, index| Entry {
        output,
        input,
        kind: EntryKind::Block { index, hash: 0 },
    };
    let branch = |output, input| Entry {
        output,
        input,
        kind: EntryKind::Branch,
    };
    let mut bat = Bat::default();
    // Blocks at 0, 8, an emptied one at 16 with its successor, 24; branches at 4 and 20.
    let list = [
        block(0, 0, 0),
        branch(4, 4),
        block(8, 0x20, 2),
        block(16, 0x30, 3),
        block(16, 0x40, 4),
        branch(20, 0x44),
        block(24, 0x10, 1),
    ];
    bat.push_hot(0x1000, 0, 5, list, &[0x20, 0x40]).unwrap();
    let t = Translator::new(&bat, &Parents::new(&bat));
    let f = t.fragment_at(0x1000).unwrap();
    let ran = |from, to| {
        let mut out = Vec::new();
        t.fall_throughs(f, from, to, &mut out);
        out
    };
    assert_eq!(ran(0, 6), [], "within a block");
    assert_eq!(
        ran(5, 9),
        [(0, 0x20)],
        "from the middle of one to the middle of the next"
    );
    assert_eq!(ran(9, 9), [], "no way");
    assert_eq!(
        ran(0, 20),
        [(0, 0x20), (0x20, 0x30), (0x30, 0x40)],
        "the emptied block is gone through"
    );
    assert_eq!(ran(17, 100), [(0x40, 0x10)]);
    assert_eq!(t.entry_point(0x1000, 0x40), 2);
    assert_eq!(t.entry_point(0x1000, 0x41), 0);
    assert_eq!(t.block(0x1000, 0x3f).unwrap().index, 3);
    assert_eq!(t.parent(0x1000), None);
}

#[test]
fn damaged_sections_are_answered_or_refused_and_never_panic() {
    arbtest::arbtest(|u| {
        let mut bytes = made_up(u)?.encode().unwrap();
        for _ in 0..u.int_in_range(1..=4)? {
            let at = u.choose_index(bytes.len())?;
            match u.int_in_range(0..=2)? {
                0 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
                1 => bytes[at] = u.arbitrary()?,
                _ => bytes.truncate(at.max(1)),
            }
        }
        match Bat::parse(&bytes) {
            Ok(bat) => {
                let t = Translator::new(&bat, &Parents::new(&bat));
                let (a, b) = (u.arbitrary()?, u.arbitrary()?);
                let _ = (
                    t.translate(a, b, true),
                    t.block(a, b),
                    t.parent(a),
                    t.entry_point(a, b),
                );
                let mut out = Vec::new();
                for hot in bat.hot() {
                    let f = t.fragment_at(hot.start).unwrap();
                    t.fall_throughs(f, a, b, &mut out);
                    t.fall_throughs(f, 0, 0x1000, &mut out);
                }
                assert_eq!(Bat::parse(&bat.encode().unwrap()).as_ref(), Ok(&bat));
            }
            Err(error) => assert!(error.what.contains(".note.bolt_bat"), "{error}"),
        }
        Ok(())
    })
    .budget_ms(2_400);
}
