//! Files that a compiler writes beside what it was asked for: notes of coverage, stack usage, split debug
//! information, dumps, dependencies.
//!
//! Their names follow from that of the output, and ours is a temporary one. Two of them are read again by
//! what runs much later: the path of `.gcda` files and that of the `.dwo` are in the program. So the compiler
//! is told the names that they would have without us.
//!
//! | | object or assembly, `-o DIR/SUB.EXT` | without `-o` | linked, `-o DIR/APP` |
//! |---|---|---|---|
//! | gcc | `DIR/SUB` | `SOURCE` | `DIR/APP-SOURCE`; `DIR/APP` if that is the only source's name |
//! | clang | `DIR/SUB` | `SOURCE` | `DIR/APP-SOURCE` |
//!
//! gcc takes this name as an option (`-dumpdir`, `-dumpbase`; gcc 11 or newer). clang takes it from its
//! output; where it is asked for such files, the assembly is therefore written under that name, with an
//! extension of its own that is replaced.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::command::{CommandLine, Source, Stage};

/// What names of files beside an output begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// A folder with its slash, or the program with a dash, or nothing.
    pub prefix: OsString,
    /// What is in front of the extension.
    pub stem: OsString,
}

impl Aside {
    /// Of one source of a command.
    pub fn of(line: &CommandLine, source: &Source, is_clang: bool) -> Aside {
        let of_source = || stem(&source.path);
        let output = line.output.as_deref().filter(|output| !is_sink(output));
        let (prefix, stem) = match (line.stage, output) {
            (Stage::Linked | Stage::Other, output) => {
                (program_prefix(line, source, output, is_clang), of_source())
            }
            (_, Some(output)) => (folder_of(Path::new(output)), stem(Path::new(output))),
            (_, None) => (OsString::new(), of_source()),
        };
        Aside { prefix, stem }
    }

    /// The path of such a file.
    pub fn path(&self, extension: &str) -> PathBuf {
        let mut path = self.prefix.clone();
        path.push(&self.stem);
        path.push(".");
        path.push(extension);
        path.into()
    }

    /// gcc's options for it. A name that was given stays.
    pub fn for_gcc(&self, line: &CommandLine, source: &Source) -> Vec<OsString> {
        let given = |option: &str| line.arguments.iter().any(|argument| argument == option);
        let mut arguments = vec![];
        if !given("-dumpdir") {
            arguments.extend(["-dumpdir".into(), self.prefix.clone()]);
        }
        if !given("-dumpbase") && !given("-dumpbase-ext") && source.path != Path::new("-") {
            let mut base = self.stem.clone();
            let mut extension = OsString::new();
            if let Some(own) = source.path.extension() {
                extension.push(".");
                extension.push(own);
                base.push(&extension);
            }
            arguments.extend(["-dumpbase".into(), base, "-dumpbase-ext".into(), extension]);
        }
        arguments
    }
}

fn stem(path: &Path) -> OsString {
    path.file_stem().unwrap_or(OsStr::new("-")).to_owned()
}

/// The folder with its slash, as it was written.
fn folder_of(path: &Path) -> OsString {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.join("").into_os_string(),
        _ => OsString::new(),
    }
}

/// Standard output, or what forgets: nothing belongs beside these.
fn is_sink(output: &OsStr) -> bool {
    output == "-" || output == "/dev/null"
}

fn program_prefix(
    line: &CommandLine,
    source: &Source,
    output: Option<&OsStr>,
    is_clang: bool,
) -> OsString {
    let mut program = match output {
        None if is_clang => "a".into(),
        None => "a.out".into(),
        Some(output) => PathBuf::from(output),
    };
    if !is_clang {
        if matches!(program.extension(), Some(end) if end == "exe" || end == "out") {
            program.set_extension("");
        }
        let same = program.file_name() == source.path.file_stem();
        if same && line.sources.len() == 1 {
            return folder_of(&program);
        }
    }
    let mut prefix = program.into_os_string();
    prefix.push("-");
    prefix
}

/// Whether clang is asked for files that it names after its output.
pub fn clang_writes_aside(line: &CommandLine) -> bool {
    const FLAGS: &[&str] = &[
        "--coverage",
        "-coverage",
        "-ftest-coverage",
        "-fprofile-arcs",
        "-fstack-usage",
        "-gsplit-dwarf",
        "-ftime-trace",
        "-fsave-optimization-record",
        "-save-temps=obj",
        "--save-temps=obj",
    ];
    line.arguments
        .iter()
        .filter_map(|argument| argument.to_str())
        .any(|argument| {
            FLAGS.iter().any(|flag| {
                argument
                    .strip_prefix(flag)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            })
        })
}

/// Whether debug information goes into a file of its own.
pub fn splits_debug_information(line: &CommandLine) -> bool {
    line.arguments
        .iter()
        .rev()
        .filter_map(|argument| argument.to_str())
        .find(|argument| argument.starts_with("-gsplit-dwarf") || *argument == "-gno-split-dwarf")
        .is_some_and(|argument| matches!(argument, "-gsplit-dwarf" | "-gsplit-dwarf=split"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Flags;

    fn aside(text: &str, is_clang: bool) -> String {
        let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        let line = CommandLine::parse(&arguments, Flags::default()).unwrap();
        Aside::of(&line, &line.sources[0], is_clang)
            .path("x")
            .display()
            .to_string()
    }

    #[test]
    fn files_aside_are_named_as_gcc_12_and_clang_19_name_them() {
        for (command, gcc, clang) in [
            ("-c a.c", "a.x", "a.x"),
            ("-c s/a.c", "a.x", "a.x"),
            ("-c a.c -o d/sub.o", "d/sub.x", "d/sub.x"),
            ("-c a.c -o d/sub.x.o", "d/sub.x.x", "d/sub.x.x"),
            ("-c a.c -o sub", "sub.x", "sub.x"),
            ("-c a.c -o /dev/null", "a.x", "a.x"),
            ("a.c", "a.x", "a-a.x"),
            ("a.c b.c", "a-a.x", "a-a.x"),
            ("a.c -o d/app", "d/app-a.x", "d/app-a.x"),
            ("a.c -o d/app.exe", "d/app-a.x", "d/app.exe-a.x"),
            ("a.c -o d/a", "d/a.x", "d/a-a.x"),
            ("a.c -o a.out", "a.x", "a.out-a.x"),
            ("a.c -o lib.so", "lib.so-a.x", "lib.so-a.x"),
        ] {
            assert_eq!(aside(command, false), gcc, "gcc {command}");
            assert_eq!(aside(command, true), clang, "clang {command}");
        }
    }
}
