//! Building, running and inspecting small programs with the tools of the machine.

#![allow(dead_code)] // each test file uses what it needs of this

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postlink_elf::InputAddr;
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::write::{
    InSection, NewKind, NewSection, NewSymbol, SymbolEdit, WriteOptions, WriteSummary, Writer,
};

/// Whether tools are there. Where one is missing, the test that needs it says so and passes over it, but not in CI.
pub fn have(tools: &[&str]) -> bool {
    for tool in tools {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
        if !found {
            assert!(
                std::env::var_os("CI").is_none(),
                "{tool} is missing; CI has to install it"
            );
            eprintln!("passed over: {tool} is not installed");
            return false;
        }
    }
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// Path of a test program's source.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

/// Runs a command that must start; whatever it says is returned.
pub fn run(command: &mut Command) -> Output {
    loop {
        match command.output() {
            Ok(output) => return output,
            // A program that was just written: another test's child holds the file open until it has become
            // what it runs.
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Err(e) => panic!("{command:?}: {e}"),
        }
    }
}

/// Runs a command that must succeed; returns what it prints.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Compilers with the linkers that they are tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// gcc with GNU ld.
    Gnu,
    /// clang with lld.
    Llvm,
}

impl Toolchain {
    pub fn is_there(self) -> bool {
        match self {
            Toolchain::Gnu => have(&["gcc", "ld"]),
            Toolchain::Llvm => have(&["clang-19", "ld.lld-19"]),
        }
    }
    fn command(self) -> Command {
        match self {
            Toolchain::Gnu => Command::new("gcc"),
            Toolchain::Llvm => {
                let mut clang = Command::new("clang-19");
                clang.args(["-fuse-ld=lld", "-B/usr/lib/llvm-19/bin"]);
                clang
            }
        }
    }
    /// Compiles and links.
    pub fn build(self, sources: &[&str], flags: &[&str], to: &Path) {
        let mut command = self.command();
        command.args(["-O1", "-g", "-w", "-fcf-protection=none"]);
        command
            .args(sources.iter().map(|s| source(s)))
            .arg("-o")
            .arg(to)
            .args(flags);
        succeed(&mut command);
    }
}

/// What a tool complains about, without the numbers, so that an input's and an output's can be compared.
pub fn complaints(command: &mut Command, is_one: impl Fn(&str) -> bool) -> Vec<String> {
    let output = run(command);
    let text = [output.stdout, output.stderr].concat();
    let mut lines: Vec<String> = String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| is_one(line))
        .map(|line| line.chars().filter(|c| !c.is_ascii_hexdigit()).collect())
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// A directory for a test's files; kept for a look at them if the variable KEEP is set.
pub fn scratch() -> tempfile::TempDir {
    let mut dir = tempfile::tempdir().expect("a directory for temporary files can be made");
    if std::env::var_os("KEEP").is_some() {
        eprintln!("files are kept in {}", dir.path().display());
        dir.disable_cleanup(true);
    }
    dir
}

/// Index, address and size of the function `work`.
pub fn work(elf: &Elf<'_>, table: SymbolTable) -> Option<(u32, u64, u64)> {
    let symbols = elf.symbols(table);
    let (i, s) = symbols
        .iter()
        .enumerate()
        .find(|(_, s)| s.name == b"work" && s.kind == 2)?;
    Some((i as u32, s.value, s.size))
}

/// What a writer is asked for that may have a zero-filled section.
pub fn with_zeroes(zero_fill: bool) -> WriteOptions {
    WriteOptions {
        zero_fill,
        ..WriteOptions::default()
    }
}

/// Puts a copy of the function `work` into a new section, counts its calls in a zero-filled one if asked for,
/// and makes the old one a jump to it, followed by traps.
///
/// `at` is the function's place if the program has no symbols, `kernel` lets the kernel copy.
pub fn move_work(
    from: &Path,
    to: &Path,
    zero_fill: bool,
    at: Option<(u64, u64)>,
    kernel: bool,
) -> WriteSummary {
    move_work_by(from, to, with_zeroes(zero_fill), at, kernel)
}

/// The same with any options. If a hole may be loaded, what is new may be anywhere.
pub fn move_work_by(
    from: &Path,
    to: &Path,
    options: WriteOptions,
    at: Option<(u64, u64)>,
    kernel: bool,
) -> WriteSummary {
    let zero_fill = options.zero_fill;
    let file = std::fs::File::open(from).unwrap();
    let data = std::fs::read(from).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (addr, size) = at.unwrap_or_else(|| {
        work(&elf, SymbolTable::Static)
            .map(|w| (w.1, w.2))
            .expect("the program has it")
    });
    let code = elf.bytes_at(addr, size).unwrap().to_vec();
    let mut writer = Writer::new(&elf, options).unwrap();
    if kernel {
        writer.copy_from(&file);
    }
    // Nothing else fits after the code then.
    let behind_code = writer.free_anywhere(1);
    if options.map_hole > 0 && behind_code > 0 {
        writer.append_anywhere(NewSection {
            name: ".filler.postlink".into(),
            kind: NewKind::ReadOnly,
            align: 1,
            size: behind_code,
        });
    }
    let mut new = |name: &str, kind, size| {
        let align = if kind == NewKind::Note { 4 } else { 16 };
        let name = name.into();
        let section = NewSection {
            name,
            kind,
            align,
            size,
        };
        match options.map_hole {
            0 => writer.append(section),
            _ => writer.append_anywhere(section),
        }
    };
    let text = new(".text.postlink", NewKind::Code, size + 7);
    let tables = new(".rodata.postlink", NewKind::ReadOnly, 40);
    let note = new(".note.postlink", NewKind::Note, 20);
    assert_eq!(
        (
            text.addr.get() % 16,
            tables.addr.get() % 16,
            note.addr.get()
        ),
        (0, 0, 0)
    );
    writer
        .contents(note.id)
        .copy_from_slice(b"\x04\0\0\0\x04\0\0\0\x01\0\0\0pst\0abcd");
    writer.contents(tables.id).fill(0x11);
    let mut stub = Vec::new();
    if zero_fill {
        let counters = writer.append_zero_fill(".counters.postlink", 100);
        assert_eq!(counters.addr.get() % 4096, 0);
        // inc qword ptr [rip + displacement]
        stub.extend([0x48, 0xff, 0x05]);
        stub.extend(
            ((counters.addr.get() as i64 - (text.addr.get() + 7) as i64) as i32).to_le_bytes(),
        );
    } else {
        stub.extend([0x0f, 0x1f, 0x80, 0, 0, 0, 0]); // nop
    }
    let contents = writer.contents(text.id);
    contents[..7].copy_from_slice(&stub);
    contents[7..].copy_from_slice(&code);

    let mut jump = vec![0xcc; size as usize];
    jump[0] = 0xe9;
    jump[1..5]
        .copy_from_slice(&((text.addr.get() as i64 - (addr + 5) as i64) as i32).to_le_bytes());
    writer.patch(InputAddr::new(addr), &jump).unwrap();

    let place = SymbolEdit {
        value: text.addr.get(),
        size: size + 7,
        section: InSection::New(text.id),
    };
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        if let Some((index, ..)) = work(&elf, table) {
            writer.edit_symbol(table, index, place);
        }
    }
    let old_section = elf.section_at(addr).map_or(0, |(i, _)| i as u32);
    let locals = elf
        .symbols(SymbolTable::Static)
        .iter()
        .enumerate()
        .find(|(_, s)| s.kind == 4)
        .map(|(i, _)| i as u32);
    for (name, value, after, section) in [
        ("work.old", addr, None, InSection::Old(old_section)),
        (
            "__postlink_table",
            tables.addr.get(),
            locals,
            InSection::New(tables.id),
        ),
    ] {
        let size = if after.is_some() { 40 } else { size };
        let kind = if after.is_some() { 1 } else { 2 };
        writer.add_symbol(NewSymbol {
            name: name.into(),
            value,
            size,
            kind,
            after,
            section,
        });
    }
    let mode = std::fs::metadata(from).unwrap().permissions().mode();
    let summary = writer.write(to, mode).unwrap();
    assert_eq!(std::fs::metadata(to).unwrap().permissions().mode(), mode);
    assert_eq!(std::fs::metadata(to).unwrap().len(), summary.size);
    summary
}

fn lint(file: &Path) -> Vec<String> {
    let excused = [
        // It knows the notes of a few owners and calls all others unknown.
        "'.note.postlink': unknown object file note",
        // It asks for a section with contents, which a segment of nothing but zeroes has not.
        "is writable but contains no writable sections",
    ];
    complaints(
        Command::new("eu-elflint").arg("--gnu-ld").arg(file),
        |line| {
            (line.contains("section") || line.contains("header"))
                && !excused.iter().any(|e| line.contains(e))
        },
    )
}

fn readelf(file: &Path) -> Vec<String> {
    complaints(
        Command::new("readelf").args(["-a", "-W"]).arg(file),
        |line| {
            [
                "warning",
                "error",
                "<corrupt",
                "<unknown",
                "invalid",
                "no .dynamic section",
                "<0x",
            ]
            .iter()
            .any(|w| line.to_lowercase().contains(w))
        },
    )
}

/// Asserts that readelf and eu-elflint say nothing of an output that they do not say of its input.
pub fn no_new_complaints(input: &Path, output: &Path) {
    for (tool, check) in [
        ("readelf", readelf as fn(&Path) -> Vec<String>),
        ("eu-elflint", lint),
    ] {
        if have(&[tool]) {
            let (before, after) = (check(input), check(output));
            let new: Vec<_> = after.iter().filter(|c| !before.contains(c)).collect();
            assert!(
                new.is_empty(),
                "{tool} about {}: {new:#?}",
                output.display()
            );
        }
    }
}
