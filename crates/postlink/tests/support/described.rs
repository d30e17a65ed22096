//! A program with inlined functions, exceptions, a jump table and variables in registers, and what symbolisers and
//! debuggers say of it and of what is made of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use postlink_elf::elf::Elf;
use postlink_elf::moves::{self, Move};

use super::{done, is_installed};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// The program.
pub const SOURCE: &str = include_str!("../sources/described.cpp");

/// Presets of `optimize`.
pub const PRESETS: [&[&str]; 3] = [&["--preset=safe"], &["--preset=fast"], &["--preset=size"]];

/// What a tool printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program, its profile and a folder for outputs.
pub struct Built {
    pub dir: tempfile::TempDir,
    pub program: PathBuf,
    pub profile: PathBuf,
}

impl Built {
    /// Compiles, instruments and runs. `None` if the compiler is not there.
    pub fn new(compiler: &str, options: &[&str]) -> Option<Built> {
        if !is_installed(compiler) {
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("described.cpp"), SOURCE).expect("the folder is ours");
        let mut compile = Command::new(compiler);
        compile
            .current_dir(dir.path())
            .args(["-O2", "-Wl,-q", "-o", "app", "described.cpp"])
            .args(options);
        done(&mut compile);
        let (program, inst, profile) = (path("app"), path("app.inst"), path("app.plraw"));
        count(&program, &inst, &profile);
        Some(Built {
            dir,
            program,
            profile,
        })
    }

    /// Optimises, and gives the output and what was said as JSON.
    pub fn optimised(&self, options: &[&str]) -> (PathBuf, serde_json::Value) {
        let out = self.dir.path().join("opt");
        let said = done(
            Command::new(POSTLINK)
                .args(["optimize", "--json", "-p"])
                .arg(&self.profile)
                .args(options)
                .arg(&self.program)
                .arg("-o")
                .arg(&out),
        );
        let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("it prints JSON");
        (out, json["optimize"].clone())
    }
}

/// Instruments a program and runs that, which writes the profile.
pub fn count(program: &Path, instrumented: &Path, profile: &Path) {
    done(
        Command::new(POSTLINK)
            .args(["instrument", "-q"])
            .arg(program)
            .arg("-o")
            .arg(instrumented),
    );
    done(Command::new(instrumented).env("POSTLINK_PROFILE", profile));
}

/// Runs of an output.
pub fn moves_of(output: &Path) -> Vec<Move> {
    let data = std::fs::read(output).expect("it was just written");
    let elf = Elf::parse(&data).expect("it was just written");
    let (_, section) = elf.section(moves::SECTION).expect("it says what moved");
    moves::parse(elf.section_data(section))
        .expect("it was just written")
        .runs
}

/// Pairs of bytes: in the input, and in the output.
pub fn pairs(output: &Path) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    for m in moves_of(output) {
        if m.old_len == m.new_len {
            out.extend((0..m.old_len).map(|i| (m.old + i, m.new + i)));
        } else {
            out.push((m.old, m.new));
        }
    }
    assert!(
        out.len() > 500,
        "hardly anything moved: {} bytes",
        out.len()
    );
    out
}

/// What a symboliser says of each address.
pub fn symbolised(command: &mut Command, addresses: &[u64]) -> Vec<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut input = child.stdin.take().expect("it is a pipe");
    // A mark between the answers, which tools echo or answer with question marks.
    let lines: String = addresses.iter().map(|a| format!("{a:#x}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads");
    let text = text(&output.stdout);
    // Both begin each answer with the address.
    let mut answers: Vec<String> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("0x") {
            Some(_) => answers.push(String::new()),
            None => {
                let last = answers.last_mut().expect("an address comes first");
                // LLVM's tool takes the outermost name from the symbol table, where parts that were split off
                // have names of their own. binutils says that it knows no file in two ways.
                let name = match line.trim_end() {
                    ":?" => "??:?",
                    name => name,
                };
                let whole = match name.split_once(".cold") {
                    Some((whole, number)) if !number.contains('/') => whole,
                    _ => name,
                };
                last.push_str(whole);
                last.push('\n');
            }
        }
    }
    answers
}

/// Compares what a symboliser says of old and new code.
pub fn compare(tool: &str, arguments: &[&str], built: &Built, output: &Path, what: &str) {
    compare_files(tool, arguments, [&built.program, output], output, what);
}

/// The same, of the files with debug information of the input and the output.
pub fn compare_files(tool: &str, arguments: &[&str], files: [&Path; 2], output: &Path, what: &str) {
    let pairs = pairs(output);
    let ask = |program: &Path, addresses: Vec<u64>| {
        let mut command = Command::new(tool);
        command.args(arguments).arg("-e").arg(program);
        symbolised(&mut command, &addresses)
    };
    let mut old = ask(files[0], pairs.iter().map(|p| p.0).collect());
    let mut new = ask(files[1], pairs.iter().map(|p| p.1).collect());
    assert_eq!(old.len(), pairs.len(), "{tool} {what}");
    assert_eq!(new.len(), pairs.len(), "{tool} {what}");
    let known = old.iter().filter(|a| a.contains("described.cpp")).count();
    assert!(known > 300, "{tool} {what}: it knows {known} bytes alone");
    // binutils (2.40) begins a sequence of DWARF 5 with file 0, where compilers mean 1: of some code of the
    // input it names the wrong file.
    if tool == "addr2line" && what.contains("dwarf-5") {
        for answer in old.iter_mut().chain(&mut new) {
            let lines = answer
                .lines()
                .map(|line| line.rsplit_once(':').unwrap_or(("", line)).1);
            *answer = lines.map(|line| format!("{line}\n")).collect();
        }
    }
    let differs: Vec<_> = pairs
        .iter()
        .zip(old.iter().zip(&new))
        .filter(|(_, (a, b))| a != b)
        .map(|((old, new), (a, b))| format!("{old:#x} {new:#x}:\n{a}---\n{b}"))
        .collect();
    assert!(
        differs.is_empty(),
        "{tool} {what}: {} of {} bytes differ, the first:\n{}",
        differs.len(),
        pairs.len(),
        differs[0]
    );
}

/// What gdb does with a program, without addresses.
pub fn transcript(program: &Path) -> Vec<String> {
    gdb_says(
        program,
        &[
            "break leaf",
            "run",
            "bt",
            "info args",
            "finish",
            "delete",
            "break described.cpp:35",
            "continue",
            "bt",
            "info locals",
            "up",
            "info locals",
            "step",
            "step",
            "bt",
            "delete",
            "catch throw",
            "continue",
            "bt",
            "delete",
            "tbreak cold_path",
            "continue",
            "bt",
            "up",
            "info locals",
            "kill",
        ],
    )
}

/// What gdb says to commands, without addresses. The program's own output is left out: both write to one pipe, and gdb
/// reports ends of threads at any time.
///
/// An input is called `app` and its output `opt`: names of one length leave the stack where it is, and with that what
/// variables have that were never written.
pub fn gdb_says(program: &Path, script: &[&str]) -> Vec<String> {
    let settings = [
        "set pagination off",
        "set confirm off",
        "set width 0",
        "set debuginfod enabled off",
        "set print entry-values no",
    ];
    let mut command = Command::new("gdb");
    command.args(["-q", "-nx", "-batch"]);
    for &line in settings.iter().chain(script) {
        let line = if line == "run" {
            "run > /dev/null"
        } else {
            line
        };
        command.args(["-ex", line]);
    }
    let output = done(command.arg(program));
    // What was never written of the stack has addresses in decimal, and labels have places in their function.
    let hex = regex::Regex::new("0x[0-9a-f]+|[0-9]{12,}").expect("it is an expression");
    let label = regex::Regex::new(r"<(\w+)\+[0-9]+>").expect("it is an expression");
    // Or in halves, as numbers of 32 bits: of the program and its heap (0x5555…), and of libraries and the stack.
    let halves = regex::Regex::new("-?[0-9]+, (2184[5-9]|2185[0-9]|32767)\\b").expect("one");
    text(&output.stdout)
        .lines()
        .map(|line| label.replace_all(line, "<$1>").into_owned())
        .map(|line| halves.replace_all(&line, "0x").into_owned())
        .map(|line| as_input(&hex.replace_all(&line, "0x")))
        // How many processes gdb has started, and threads, which begin and end at any time. gdb reports the first
        // thread as new once more if it ends before others.
        .filter(|line| !line.contains("[Inferior") && !line.contains("libthread_db"))
        .filter(|line| !line.starts_with("[New ") && !line.starts_with("[Thread "))
        .collect()
}

/// What was said of an output, which is called as its input in it.
pub fn as_input(said: &str) -> String {
    static OUTPUT: LazyLock<regex::Regex> =
        LazyLock::new(|| regex::Regex::new(r"\bopt\b").expect("it is an expression"));
    OUTPUT.replace_all(said, "app").into_owned()
}

/// What LLDB does with a program, without addresses and numbers of breakpoints. Each script has a process of its own:
/// LLDB remembers how to unwind a function in two parts, and uses it for all that is between them.
pub fn lldb_transcript(program: &Path) -> Vec<String> {
    let scripts: [&[&str]; 2] = [
        &[
            "breakpoint set -n leaf",
            "run",
            "bt",
            "frame variable",
            "up",
            "frame variable",
            "kill",
        ],
        &["breakpoint set -n cold_path", "run", "bt", "kill"],
    ];
    lldb_says(program, &scripts)
}

/// The newest LLDB that is installed.
pub fn lldb() -> Option<&'static str> {
    ["lldb-22", "lldb-19"]
        .into_iter()
        .find(|lldb| is_installed(lldb))
}

/// What LLDB says to commands, each script in a process of its own. Outputs are called as their inputs.
pub fn lldb_says(program: &Path, scripts: &[&[&str]]) -> Vec<String> {
    let mut all = String::new();
    for script in scripts {
        let mut command = Command::new(lldb().expect("callers have asked"));
        command.args(["--no-lldbinit", "-b"]);
        command.args(["-o", "settings set symbols.enable-external-lookup false"]);
        for line in *script {
            command.args(["-o", line]);
        }
        let output = command.arg(program).output().expect("it runs");
        all += &(text(&output.stdout) + &text(&output.stderr));
    }
    let hex = regex::Regex::new("0x[0-9a-f]+|Process [0-9]+|breakpoint [0-9.]+").expect("one");
    all.lines()
        .map(|line| as_input(&hex.replace_all(line, "")))
        // It does not show the start-up code, which is not described, in every stack.
        .filter(|line| !line.contains("`_start") && !line.contains(" libc.so.6`"))
        .filter(|line| !line.starts_with("Breakpoint") && !line.contains("xecutable"))
        .collect()
}
