//! Programs compiled for a test, maps made up for them, and the comparison of what was described with what is.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use postlink_dwarf::{AddressMap, EntryBlock, MapParts, Run, Section, Sections, Update};
use postlink_verify::debug::{CodeMap, CodeMapParts, DebugReport, MovedRun};

/// A source of the tests.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/sources")
        .join(name)
}

/// Whether a tool is installed. Without it a test is skipped, and says so.
pub fn has(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

/// Compiles and links; `None` if the compiler is missing or refuses the options.
pub fn compile(compiler: &str, options: &[&str], sources: &[&str]) -> Option<Vec<u8>> {
    if !has(compiler) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("program");
    let mut command = Command::new(compiler);
    command
        .args(options)
        .args(sources.iter().map(|s| source(s)))
        .arg("-o")
        .arg(&out);
    let result = command.output().unwrap();
    let said = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{command:?}\n{said}");
    Some(std::fs::read(out).unwrap())
}

/// Numbers that look random, the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next(n) == 0
    }
}

/// Functions of `.text`: address and size, disjoint.
fn functions(file: &object::File<'_>) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = file
        .symbols()
        .filter(|s| s.kind() == SymbolKind::Text && s.size() > 0)
        .map(|s| s.address()..s.address() + s.size())
        .collect();
    out.sort_by_key(|r| (r.start, r.end));
    out.dedup_by(|b, a| b.start < a.end);
    out
}

/// A piece of a function on its way.
struct Piece {
    old: u64,
    old_len: u32,
    new_len: u32,
    tail: u32,
}

/// Moves most functions of a program: cut into pieces, some dropped or lengthened, in random order, in two
/// places far apart.
pub fn random_map(program: &[u8], seed: u64) -> MapParts {
    let file = object::File::parse(program).unwrap();
    let mut random = Random(seed);
    let mut parts = MapParts {
        executable: file
            .sections()
            .filter(|s| s.kind() == object::SectionKind::Text)
            .map(|s| s.address()..s.address() + s.size())
            .collect(),
        ..MapParts::default()
    };
    let mut places = [0x100_0000u64, 0x140_0000];
    for function in functions(&file) {
        if random.one_in(4) {
            continue;
        }
        let mut pieces = Vec::new();
        let mut at = function.start;
        while at < function.end {
            let len = match random.next(4) {
                0 => 1 + random.next(5),
                _ => 1 + random.next(60),
            };
            let len = len.min(function.end - at) as u32;
            let new_len = match random.next(3) {
                0 if len <= 6 => 1 + random.next(6) as u32,
                _ => len,
            };
            let dropped = len <= 5 && random.one_in(3) && at > function.start;
            if !dropped {
                pieces.push(Piece {
                    old: at,
                    old_len: len,
                    new_len,
                    tail: random.next(7).saturating_sub(3) as u32,
                });
            }
            at += u64::from(len);
        }
        let whole = random.one_in(4);
        while !pieces.is_empty() {
            let i = if whole {
                0
            } else {
                random.next(pieces.len() as u64) as usize
            };
            let cold = !whole && random.one_in(3);
            let piece = pieces.remove(i);
            let place = &mut places[usize::from(cold)];
            parts.runs.push(Run {
                old: piece.old,
                old_len: piece.old_len,
                new: *place,
                new_len: piece.new_len,
                tail: piece.tail,
            });
            *place += u64::from(piece.new_len + piece.tail);
        }
        let new_entry = parts.runs.iter().find(|r| r.old == function.start).copied();
        parts.entry_blocks.extend(new_entry.map(|run| {
            let sure = run.new + random.next(u64::from(run.new_len));
            let last = sure + random.next(run.new + u64::from(run.new_len) - sure);
            let start = run.new;
            EntryBlock { start, sure, last }
        }));
        let new_entry = new_entry.map(|run| run.new);
        parts
            .pointers
            .extend(new_entry.map(|new| (function.start, new)));
        parts
            .entry_jumps
            .push(function.start..function.end.min(function.start + 5));
        parts.bodies.push(function);
        places[0] += random.next(20);
    }
    parts
}

/// The checker's form of an entry block.
fn entry_block(block: &EntryBlock) -> postlink_verify::debug::EntryBlock {
    postlink_verify::debug::EntryBlock {
        start: block.start,
        sure: block.sure,
        last: block.last,
    }
}

/// The checker's form of a map.
pub fn for_checker(parts: &MapParts) -> CodeMap {
    CodeMap::new(CodeMapParts {
        bodies: parts.bodies.clone(),
        runs: parts
            .runs
            .iter()
            .map(|r| MovedRun {
                old: (r.old, r.old_len.into()),
                new: (r.new, r.new_len.into()),
                tail: r.tail.into(),
            })
            .collect(),
        reused: parts.reused.clone(),
        entry_jumps: parts.entry_jumps.clone(),
        entry_blocks: parts.entry_blocks.iter().map(entry_block).collect(),
        pointers: parts.pointers.clone(),
        either: Vec::new(),
        executable: parts.executable.clone(),
    })
}

/// The contents of a section, unpacked.
pub fn section(program: &[u8], name: &str) -> Vec<u8> {
    let file = object::File::parse(program).unwrap();
    let section = file.section_by_name(name);
    section
        .map(|s| s.data().unwrap().to_vec())
        .unwrap_or_default()
}

/// All sections of a program by name.
pub struct Loaded(Vec<(String, Vec<u8>)>);

impl Loaded {
    pub fn new(program: &[u8]) -> Self {
        let file = object::File::parse(program).unwrap();
        let named =
            |s: object::Section<'_, '_>| Some((s.name().ok()?.to_owned(), s.data().ok()?.to_vec()));
        Loaded(file.sections().filter_map(named).collect())
    }
    pub fn get(&self, name: &str) -> &[u8] {
        self.0.iter().find(|s| s.0 == name).map_or(&[], |s| &s.1)
    }
    pub fn set(&mut self, name: &str, data: Vec<u8>) {
        self.0.retain(|s| s.0 != name);
        self.0.push((name.to_owned(), data));
    }
    pub fn sections(&self) -> Sections<'_> {
        Sections::load(|name| Some(self.get(name)))
    }
    pub fn updated(&self, update: &Update) -> Loaded {
        let mut new = Loaded(self.0.clone());
        for (section, splices) in update.changes.sections() {
            new.set(section.name(), splices.apply(self.get(section.name())));
        }
        new
    }
}

/// Updates and compares. Returns what the update and the comparison say.
pub fn update_and_check(old: &Loaded, parts: &MapParts) -> (Update, DebugReport) {
    let map = AddressMap::new(parts.clone()).unwrap();
    let update = postlink_dwarf::update(&old.sections(), &map).unwrap();
    // However entries are cut.
    for part in [1, 200] {
        let other = postlink_dwarf::update_in_parts(&old.sections(), &[], &map, Some(part));
        let other = other.unwrap();
        assert_eq!(other.report, update.report, "in parts of {part}");
        let same = other.changes == update.changes;
        assert!(same, "in parts of {part} other bytes");
    }
    let info = old.get(".debug_info").len() as u64;
    assert_eq!(update.changes.get(Section::Info).new_len(info), info);
    let new = old.updated(&update);
    let report = postlink_verify::debug::check(|n| old.get(n), |n| new.get(n), &for_checker(parts));
    (update, report)
}

/// A file's sections: names and contents.
pub type File = Vec<(String, Cow<'static, [u8]>)>;

/// A program whose units are in files of their own, and these files.
pub struct Split {
    pub program: Vec<u8>,
    pub files: Vec<File>,
}

/// Compiles and links with split DWARF; `packed`: the files are made one package by a tool. `None` if a tool is
/// missing.
pub fn compile_split(
    compiler: &str,
    options: &[&str],
    sources: &[&str],
    packed: Option<&str>,
) -> Option<Split> {
    if !has(compiler) || packed.is_some_and(|tool| !has(tool)) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(compiler);
    command
        .current_dir(dir.path())
        .arg("-gsplit-dwarf")
        .args(options)
        .args(sources.iter().map(|s| source(s)))
        .args(["-o", "program"]);
    let run = |command: &mut Command| {
        let result = command.output().unwrap();
        let said = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "{command:?}\n{said}");
    };
    run(&mut command);
    if let Some(tool) = packed {
        // llvm-dwp 14 to 22 never end with location lists of GCC in DWARF 5.
        let mut pack = Command::new("timeout");
        run(pack
            .current_dir(dir.path())
            .args(["20", tool, "-e", "program", "-o", "program.dwp"]));
    }
    let wanted = if packed.is_some() { "dwp" } else { "dwo" };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == wanted))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{command:?} made no .{wanted}");
    let sections = |path: &PathBuf| -> File {
        let data = std::fs::read(path).unwrap();
        let file = object::File::parse(&data[..]).unwrap();
        let all = file.sections().filter_map(|s| {
            let data = s.uncompressed_data().unwrap().into_owned();
            Some((s.name().ok()?.to_owned(), Cow::Owned(data)))
        });
        all.collect()
    };
    Some(Split {
        program: std::fs::read(dir.path().join("program")).unwrap(),
        files: paths.iter().map(sections).collect(),
    })
}

/// The checker's form of files.
pub fn files_for_checker(files: &[File]) -> Vec<postlink_verify::debug::FileSections<'_>> {
    let all = files.iter().map(|file| {
        let sections = file
            .iter()
            .map(|(name, data)| (name.clone().into_bytes(), Cow::Borrowed(&data[..])));
        sections.collect()
    });
    let all: Vec<postlink_verify::debug::FileSections<'_>> = all.collect();
    all.iter()
        .map(|file| {
            let joined = postlink_verify::debug::joined(file);
            joined
                .into_iter()
                .map(|(name, data)| (name, Cow::Owned(data.into_owned())))
                .collect()
        })
        .collect()
}

/// A program with split units after an update.
pub struct SplitUpdate {
    pub update: Update,
    pub new: Loaded,
    pub package: File,
}

/// Updates a program and its files.
pub fn update_split(split: &Split, parts: &MapParts) -> SplitUpdate {
    let old = Loaded::new(&split.program);
    let map = AddressMap::new(parts.clone()).unwrap();
    let files: Vec<postlink_dwarf::SplitFile<'_>> = split
        .files
        .iter()
        .flat_map(|file| postlink_dwarf::split::read(file).unwrap())
        .collect();
    let update = postlink_dwarf::update_split(&old.sections(), &files, &map).unwrap();
    let package = postlink_dwarf::split::package(&old.sections(), &files, &update.files).unwrap();
    let package = written(&package);
    let new = old.updated(&update);
    SplitUpdate {
        update,
        new,
        package,
    }
}

/// The sections of a package, each of the length that was planned.
pub fn written(package: &postlink_dwarf::split::Package<'_>) -> File {
    let sections = package.sections().enumerate();
    let written = sections.map(|(number, (name, len))| {
        let mut data = Vec::new();
        package.write(number, &mut data).unwrap();
        assert_eq!(data.len() as u64, len, "{name}");
        (name.to_owned(), Cow::Owned(data))
    });
    written.collect()
}

/// Compares what an update made.
pub fn check_split(
    split: &Split,
    done: &SplitUpdate,
    package: &File,
    parts: &MapParts,
) -> DebugReport {
    let old = Loaded::new(&split.program);
    let files = [
        files_for_checker(&split.files),
        files_for_checker(std::slice::from_ref(package)),
    ];
    postlink_verify::debug::check_split(
        |n| old.get(n),
        |n| done.new.get(n),
        &for_checker(parts),
        [&files[0], &files[1]],
    )
}
