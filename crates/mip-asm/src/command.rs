//! A compiler's command line, as gcc and clang have it: which files are sources, what is wanted, and which
//! flags are ours.
//!
//! Everything else is handed on as it is, in its order. What has to be known is which options take the next
//! argument as their value, so that it is not taken for an input.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::options::{Mode, Options};

/// A wrong value of one of our flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// As clang says it.
    #[error("invalid value '{value}' in '{flag}{value}'")]
    Invalid {
        /// The flag with its `=`.
        flag: &'static str,
        /// What was given.
        value: String,
    },
    /// Two flags that cannot be together.
    #[error("{0}")]
    Together(&'static str),
}

/// Our flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// `-fmachine-profile-generate`; on unless it is turned off.
    pub generate: bool,
    generate_asked: bool,
    /// `-fmachine-profile-use`: a profile that says where functions go. Then nothing is counted.
    pub profile: Option<PathBuf>,
    function_coverage: bool,
    call_graph: Option<bool>,
    blocks: bool,
    all_blocks: bool,
    buffer: u32,
    groups: u32,
    group: u32,
    min_instructions: u32,
    link_unit: Option<String>,
    /// Whether the profile is written by itself; `-fno-machine-profile-dump` leaves it to the program.
    pub dump: bool,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags {
            generate: true,
            generate_asked: false,
            profile: None,
            function_coverage: false,
            call_graph: None,
            blocks: false,
            all_blocks: false,
            buffer: 0,
            groups: 1,
            group: 0,
            min_instructions: 0,
            link_unit: None,
            dump: true,
        }
    }
}

impl Flags {
    /// Takes a flag if it is one of ours.
    pub fn take(&mut self, argument: &OsStr) -> Result<bool, FlagError> {
        let Some(text) = argument.to_str() else {
            return Ok(false);
        };
        let (on, name) = if let Some(name) = text.strip_prefix("-fno-machine-profile-") {
            (false, name)
        } else if let Some(name) = text.strip_prefix("-fmachine-profile-") {
            (true, name)
        } else {
            return Ok(false);
        };
        match name {
            "generate" => (self.generate, self.generate_asked) = (on, on),
            "use" if !on => self.profile = None,
            "function-coverage" => self.function_coverage = on,
            "call-graph" => self.call_graph = Some(on),
            "block-coverage" => self.blocks = on,
            "all-blocks" => self.all_blocks = on,
            "dump" => self.dump = on,
            _ => {
                let Some((name, value)) = name.split_once('=').filter(|_| on) else {
                    return Ok(false);
                };
                let number = |flag: &'static str, least: u32| {
                    value
                        .parse::<u32>()
                        .ok()
                        .filter(|&number| number >= least)
                        .ok_or(FlagError::Invalid {
                            flag,
                            value: value.to_owned(),
                        })
                };
                match name {
                    "runtime-buffer" => {
                        self.buffer = number("-fmachine-profile-runtime-buffer=", 0)?;
                    }
                    "function-group-count" => {
                        self.groups = number("-fmachine-profile-function-group-count=", 1)?;
                    }
                    "selected-function-group" => {
                        self.group = number("-fmachine-profile-selected-function-group=", 0)?;
                    }
                    "min-instruction-count" => {
                        self.min_instructions =
                            number("-fmachine-profile-min-instruction-count=", 1)?;
                    }
                    "link-unit-name" => self.link_unit = Some(value.to_owned()),
                    "use" => self.profile = Some(value.into()),
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// What they come to. `output` is the name after `-o`.
    pub fn options(&self, output: Option<&OsStr>) -> Result<Options, FlagError> {
        if self.group >= self.groups {
            return Err(FlagError::Invalid {
                flag: "-fmachine-profile-selected-function-group=",
                value: self.group.to_string(),
            });
        }
        if self.profile.is_some() && self.generate_asked {
            return Err(FlagError::Together(
                "-fmachine-profile-use and -fmachine-profile-generate: a program that uses a profile makes none",
            ));
        }
        if self.function_coverage && self.call_graph == Some(true) {
            return Err(FlagError::Together(
                "-fmachine-profile-function-coverage and -fmachine-profile-call-graph: a function has either a coverage byte or a call count",
            ));
        }
        if !self.function_coverage && self.call_graph == Some(false) {
            return Err(FlagError::Together(
                "-fno-machine-profile-call-graph needs -fmachine-profile-function-coverage: one of both must be on",
            ));
        }
        if self.function_coverage && self.buffer > 0 {
            return Err(FlagError::Together(
                "-fmachine-profile-runtime-buffer needs call counts, and -fmachine-profile-function-coverage has none",
            ));
        }
        if self.buffer > 0 && self.buffer < 64 {
            return Err(FlagError::Invalid {
                flag: "-fmachine-profile-runtime-buffer=",
                value: self.buffer.to_string(),
            });
        }
        Ok(Options {
            mode: if self.function_coverage {
                Mode::FunctionCoverage
            } else {
                Mode::CallGraph
            },
            blocks: self.blocks,
            all_blocks: self.all_blocks,
            buffer: self.buffer,
            groups: self.groups,
            group: self.group,
            min_instructions: self.min_instructions,
            link_unit: self.link_unit.clone().unwrap_or_else(|| {
                output.map_or_else(
                    || "a.out".to_owned(),
                    |output| output.to_string_lossy().into_owned(),
                )
            }),
        })
    }
}

/// What the compiler shall make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `-S`
    Assembly,
    /// `-c`
    Object,
    /// A program or library.
    Linked,
    /// Nothing with code in it, or nothing that we understand: the compiler does it alone.
    Other,
}

/// A source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it is among the arguments.
    pub index: usize,
    /// Its path.
    pub path: PathBuf,
}

/// A command line that was understood.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// Our flags.
    pub flags: Flags,
    /// Everything else, response files written out.
    pub arguments: Vec<OsString>,
    /// Whether a response file was among them.
    pub had_response_file: bool,
    /// What is wanted.
    pub stage: Stage,
    /// What follows `-o`.
    pub output: Option<OsString>,
    /// Positions of `-o` and its value.
    pub output_at: Vec<usize>,
    /// Positions of `-c`, `-S`.
    pub stage_at: Vec<usize>,
    /// Sources to compile. Assembly is none: it is handed on.
    pub sources: Vec<Source>,
    /// Positions of all other inputs.
    pub other_inputs: Vec<usize>,
    /// Link-time optimisation is on.
    pub lto: bool,
    /// `-r`: the output is an object file again.
    pub relocatable: bool,
    /// `-MD` or `-MMD`.
    pub wants_dependencies: bool,
    /// `-MF`.
    pub names_dependency_file: bool,
    /// `-Wp,-MD,FILE` or `-Wp,-MMD,FILE`.
    pub wants_dependencies_of_preprocessor: bool,
    /// `-MT` or `-MQ` is given.
    pub names_dependency_target: bool,
    /// The language that `-x` has set at the end, if it has.
    pub language_at_end: bool,
    /// What the assembler and the run-time must know: `-m…`, `--target`, `-Wa,…`
    pub target_flags: Vec<OsString>,
}

/// Options whose value is the next argument.
const WITH_VALUE: &[&str] = &[
    "-o",
    "-x",
    "-I",
    "-D",
    "-U",
    "-L",
    "-l",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-iprefix",
    "-iwithprefix",
    "-iwithprefixbefore",
    "-isysroot",
    "-imultilib",
    "-include-pch",
    "-ivfsoverlay",
    "-MF",
    "-MT",
    "-MQ",
    "-Xlinker",
    "-Xassembler",
    "-Xpreprocessor",
    "-Xclang",
    "-mllvm",
    "-target",
    "-arch",
    "-A",
    "-T",
    "-u",
    "-z",
    "-e",
    "-aux-info",
    "-wrapper",
    "-B",
    "-framework",
    "-dumpbase",
    "-dumpbase-ext",
    "-dumpdir",
    "--param",
    "-install_name",
    "-current_version",
    "-compatibility_version",
    "-undefined",
    "-rpath",
    "--sysroot",
    "-Xopenmp-target",
    "-Xanalyzer",
    "-serialize-diagnostics",
    "-working-directory",
    "-resource-dir",
];

/// Options that make the compiler do something without code in it.
const OTHER: &[&str] = &[
    "-E",
    "-M",
    "-MM",
    "-fsyntax-only",
    "-###",
    "--version",
    "--help",
    "-emit-llvm",
    "-emit-ast",
    "--analyze",
    "--precompile",
    "-dumpmachine",
    "-dumpversion",
    "-dumpfullversion",
    "-dumpspecs",
    "-verify-pch",
    "-cc1",
    "-cc1as",
    "--target-help",
    "-rewrite-objc",
];

/// Extensions of sources.
const SOURCES: &[&str] = &[
    "c", "i", "ii", "cc", "cp", "cxx", "cpp", "CPP", "c++", "C", "m", "mi", "mm", "M", "mii", "ll",
    "bc", "f", "for", "ftn", "f77", "f90", "f95", "f03", "f08", "F", "FOR", "F77", "F90", "F95",
    "F03", "F08", "d", "go", "adb", "ads", "cppm",
];
const HEADERS: &[&str] = &["h", "hh", "hpp", "hxx", "H", "h++", "tcc"];

impl CommandLine {
    /// Reads the arguments after the compiler's name. `flags` are those that were given in another way.
    pub fn parse(arguments: &[OsString], flags: Flags) -> Result<CommandLine, FlagError> {
        let mut expanded = vec![];
        let mut had_response_file = false;
        expand(arguments, 0, &mut expanded, &mut had_response_file);
        let mut line = CommandLine {
            flags,
            arguments: vec![],
            had_response_file,
            stage: Stage::Linked,
            output: None,
            output_at: vec![],
            stage_at: vec![],
            sources: vec![],
            other_inputs: vec![],
            lto: false,
            relocatable: false,
            wants_dependencies: false,
            names_dependency_file: false,
            wants_dependencies_of_preprocessor: false,
            names_dependency_target: false,
            language_at_end: false,
            target_flags: vec![],
        };
        for argument in expanded {
            if !line.flags.take(&argument)? {
                line.arguments.push(argument);
            }
        }
        line.classify();
        Ok(line)
    }

    fn classify(&mut self) {
        let arguments = std::mem::take(&mut self.arguments);
        let mut language: Option<OsString> = None;
        let mut has_header = false;
        let mut index = 0;
        while let Some(argument) = arguments.get(index) {
            let at = index;
            index += 1;
            let bytes = argument.as_bytes();
            let text = argument.to_str().unwrap_or("\u{FFFD}");
            if bytes.first() != Some(&b'-') || bytes == b"-" {
                let path = PathBuf::from(argument);
                let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
                match language.as_ref().and_then(|language| language.to_str()) {
                    Some(language) if language.ends_with("-header") => has_header = true,
                    Some(language) if !language.starts_with("assembler") => {
                        self.sources.push(Source { index: at, path });
                    }
                    Some(_) => self.other_inputs.push(at),
                    None if SOURCES.contains(&extension) => {
                        self.sources.push(Source { index: at, path });
                    }
                    None if HEADERS.contains(&extension) => has_header = true,
                    None => self.other_inputs.push(at),
                }
                continue;
            }
            let value = if WITH_VALUE.contains(&text) {
                index += 1;
                arguments.get(at + 1)
            } else {
                None
            };
            match text {
                "-o" => {
                    self.output = value.cloned();
                    self.output_at.push(at);
                    self.output_at.push(at + 1);
                }
                "-c" => self.advance(Stage::Object, at),
                "-S" => self.advance(Stage::Assembly, at),
                "-x" => {
                    language = value.cloned().filter(|language| language != "none");
                }
                "-r" => self.relocatable = true,
                "-MD" | "-MMD" => self.wants_dependencies = true,
                "-MF" => self.names_dependency_file = true,
                "-MT" | "-MQ" => self.names_dependency_target = true,
                "-fno-lto" => self.lto = false,
                "-flto" => self.lto = true,
                _ if text.starts_with("-flto=") => self.lto = text != "-flto=none",
                _ if OTHER.contains(&text)
                    || text.starts_with("-print-")
                    || text.starts_with("--print-")
                    || text.starts_with("--help=") =>
                {
                    self.stage = Stage::Other;
                }
                _ if text.starts_with("-o") && value.is_none() => {
                    self.output = Some(OsString::from_vec(bytes[2..].to_vec()));
                    self.output_at.push(at);
                }
                _ if text.starts_with("-x") && value.is_none() => {
                    language = Some(OsString::from_vec(bytes[2..].to_vec()))
                        .filter(|language| language != "none");
                }
                _ if text.starts_with("-MF") => self.names_dependency_file = true,
                _ if text.starts_with("-Wp,-MD,") || text.starts_with("-Wp,-MMD,") => {
                    self.wants_dependencies_of_preprocessor = true;
                }
                _ if text.starts_with("-MT") || text.starts_with("-MQ") => {
                    self.names_dependency_target = true;
                }
                _ => {}
            }
            let for_target = match text {
                "-target" | "-arch" | "-B" | "--sysroot" | "-isysroot" | "-Xassembler" => true,
                "-mllvm" | "-MD" => false,
                _ => [
                    "-m",
                    "--target=",
                    "-B",
                    "--sysroot=",
                    "-Wa,",
                    "-fintegrated-as",
                    "-fno-integrated-as",
                    "-no-integrated-as",
                    "-integrated-as",
                    "-gz",
                    "--gcc-toolchain=",
                    "--gcc-install-dir=",
                    "--config",
                    "-no-canonical-prefixes",
                    "-specs=",
                    "--driver-mode=",
                ]
                .iter()
                .any(|prefix| text.starts_with(prefix)),
            };
            if for_target {
                self.target_flags.push(argument.clone());
                self.target_flags.extend(value.cloned());
            }
        }
        self.language_at_end = language.is_some();
        let nothing = self.sources.is_empty() && self.other_inputs.is_empty();
        let nothing_to_compile = self.sources.is_empty() && self.stage != Stage::Linked;
        let wrong = self.output.is_some() && self.stage != Stage::Linked && self.sources.len() > 1;
        if has_header || nothing || nothing_to_compile || wrong {
            self.stage = Stage::Other;
        }
        self.arguments = arguments;
    }

    /// Of several stages the earliest counts.
    fn advance(&mut self, stage: Stage, at: usize) {
        self.stage_at.push(at);
        match (self.stage, stage) {
            (Stage::Other, _) | (Stage::Assembly, _) => {}
            _ => self.stage = stage,
        }
    }

    /// The arguments without inputs, output and stage but for one input.
    pub fn for_source(&self, source: &Source) -> Vec<&OsStr> {
        self.arguments
            .iter()
            .enumerate()
            .filter(|(index, _)| {
                let other_source = self
                    .sources
                    .iter()
                    .any(|other| other.index == *index && other.index != source.index);
                !(other_source
                    || self.output_at.contains(index)
                    || self.stage_at.contains(index)
                    || self.other_inputs.contains(index))
            })
            .map(|(_, argument)| argument.as_os_str())
            .collect()
    }

    /// The name of a source's object where none is given.
    pub fn default_output(source: &Path, extension: &str) -> PathBuf {
        let stem = source.file_stem().unwrap_or(OsStr::new("-"));
        Path::new(stem).with_extension(extension)
    }
}

/// Writes response files out: `@FILE`, up to a depth that no sane command line has.
fn expand(arguments: &[OsString], depth: u32, out: &mut Vec<OsString>, had: &mut bool) {
    for argument in arguments {
        let contents = argument
            .as_bytes()
            .strip_prefix(b"@")
            .filter(|_| depth < 16)
            .and_then(|path| fs::read(Path::new(OsStr::from_bytes(path))).ok());
        match contents {
            Some(contents) => {
                *had = true;
                expand(&split(&contents), depth + 1, out, had);
            }
            None => out.push(argument.clone()),
        }
    }
}

/// Cuts a response file into arguments: blanks separate, quotes of both kinds hold together, a backslash
/// takes the next byte as it is.
pub fn split(contents: &[u8]) -> Vec<OsString> {
    let mut out = vec![];
    let mut current: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = contents.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            (b'\\', quote) if quote != Some(b'\'') => {
                let word = current.get_or_insert_default();
                word.extend(bytes.next());
            }
            (byte, Some(open)) if byte == open => quote = None,
            (b'"' | b'\'', None) => {
                quote = Some(byte);
                current.get_or_insert_default();
            }
            (byte, None) if byte.is_ascii_whitespace() => {
                out.extend(current.take().map(OsString::from_vec));
            }
            (byte, _) => current.get_or_insert_default().push(byte),
        }
    }
    out.extend(current.map(OsString::from_vec));
    out
}

/// Writes arguments as a response file: the inverse of [`split`].
pub fn join(arguments: &[OsString]) -> Vec<u8> {
    let mut out = vec![];
    for argument in arguments {
        out.push(b'"');
        for &byte in argument.as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                out.push(b'\\');
            }
            out.push(byte);
        }
        out.extend_from_slice(b"\"\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> CommandLine {
        let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        CommandLine::parse(&arguments, Flags::default()).unwrap()
    }

    #[test]
    fn sources_outputs_and_stages_are_found() {
        let line = parse("-O2 -c -I inc -o out.o a.c");
        assert_eq!(line.stage, Stage::Object);
        assert_eq!(line.sources[0].path, Path::new("a.c"));
        assert_eq!(line.output.as_deref(), Some(OsStr::new("out.o")));
        let rest: Vec<&OsStr> = line.for_source(&line.sources[0]);
        assert_eq!(rest, ["-O2", "-I", "inc", "a.c"]);
        let line = parse("a.c b.o -x c++ c -x none d.S -lm -oapp");
        assert_eq!(line.stage, Stage::Linked);
        assert_eq!(line.sources.len(), 2);
        assert_eq!(line.other_inputs.len(), 2);
        assert_eq!(line.output.as_deref(), Some(OsStr::new("app")));
    }

    #[test]
    fn what_has_no_code_is_left_to_the_compiler() {
        for text in [
            "-E a.c",
            "--version",
            "-M a.c",
            "-c a.s",
            "a.h",
            "-c a.c b.c -o x",
            "-print-prog-name=ld",
        ] {
            assert_eq!(parse(text).stage, Stage::Other, "{text}");
        }
    }

    #[test]
    fn our_flags_are_taken_out_and_obeyed() {
        let line = parse(
            "-fmachine-profile-generate -fmachine-profile-function-coverage -fmachine-profile-min-instruction-count=7 -fmachine-profile-function-group-count=4 -fmachine-profile-selected-function-group=3 -c a.c",
        );
        assert_eq!(line.arguments, ["-c", "a.c"]);
        let options = line.flags.options(line.output.as_deref()).unwrap();
        assert_eq!(options.mode, Mode::FunctionCoverage);
        assert_eq!(
            (options.groups, options.group, options.min_instructions),
            (4, 3, 7)
        );
    }

    #[test]
    fn wrong_values_are_errors_as_clang_spells_them() {
        let arguments = ["-fmachine-profile-function-group-count=0".into()];
        let error = CommandLine::parse(&arguments, Flags::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid value '0' in '-fmachine-profile-function-group-count=0'"
        );
        let line = parse("-fmachine-profile-function-coverage -fmachine-profile-call-graph -c a.c");
        assert!(line.flags.options(None).is_err());
        let line = parse("-fmachine-profile-selected-function-group=1 -c a.c");
        assert!(line.flags.options(None).is_err());
    }

    #[test]
    fn response_files_are_cut_and_written_alike() {
        let arguments: Vec<OsString> = ["a b", "c\"d", "e\\f", "", "-I'x'"]
            .map(OsString::from)
            .to_vec();
        assert_eq!(split(&join(&arguments)), arguments);
        assert_eq!(split(b" -O2 'a b'\n\tc\\ d"), ["-O2", "a b", "c d"]);
    }
}
