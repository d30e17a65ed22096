//! A temporary folder in which programs are built and run, and postlink with them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Optimises `app` by `run.plraw` to `opt`, where every function moves that can.
pub const OPTIMIZE_ALL: [&str; 7] = [
    "optimize",
    "app",
    "-p",
    "run.plraw",
    "-o",
    "opt",
    "--move-all",
];

pub struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    pub fn new() -> Folder {
        Folder {
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles `NAME.c` with this text to a program, and gives its path.
    pub fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (file, program) = (self.path(&format!("{name}.c")), self.path(name));
        std::fs::write(&file, source).expect("the folder is ours");
        let status = Command::new("gcc")
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(&file)
            .args(flags)
            .status();
        assert!(status.expect("gcc is needed for this test").success());
        program
    }

    /// A program, to be run in the folder.
    pub fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env_remove("POSTLINK_PROFILE")
            .env("NO_COLOR", "1");
        command
    }

    /// Runs a program in the folder, whatever its exit code.
    pub fn start(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Output {
        let program = program.as_ref();
        self.command(program, arguments)
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}", program.display()))
    }

    /// Runs a program, which must succeed, and gives its output.
    pub fn run(&self, program: impl AsRef<Path>, arguments: &[&str]) -> String {
        let program = program.as_ref();
        let output = self.start(program, arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program:?} {arguments:?}: {message}"
        );
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    /// Runs a program of the folder for AArch64 by an emulator.
    pub fn emulate(&self, name: &str) -> String {
        let program = format!("./{name}");
        let root = "/usr/aarch64-linux-gnu";
        self.run("qemu-aarch64", &["-L", root, &program])
    }

    /// Runs postlink, whatever its exit code.
    pub fn attempt(&self, arguments: &[&str]) -> Output {
        self.start(env!("CARGO_BIN_EXE_postlink"), arguments)
    }

    /// Whether processes may be traced here, by a look at the program `app`. Some containers forbid it.
    pub fn may_trace(&self) -> bool {
        let short = ["--windows", "1", "--steps", "10", "--", "{}"];
        let done = self.attempt(&[&["trace", "app", "-o", "probe.pltrace"][..], &short].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let forbidden = said.contains("cannot be traced");
        if forbidden {
            eprintln!("SKIPPED: {said}");
        }
        !forbidden
    }

    /// What postlink says when it refuses.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.attempt(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The text of a file.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Instruments a program: `NAME.inst` writes this profile.
    pub fn instrument(&self, name: &str, profile: &str) {
        let counting = format!("{name}.inst");
        self.postlink(&["instrument", name, "-o", &counting, "--profile", profile]);
    }

    /// Counts a run of a program.
    pub fn count_run(&self, name: &str, profile: &str, arguments: &[&str]) {
        self.instrument(name, profile);
        self.run(self.path(&format!("{name}.inst")), arguments);
    }

    /// Runs `counting` with the profile `run.plraw`: it prints what the program does.
    pub fn counting_prints(&self, plain: &str) {
        let mut counting = self.command(self.path("counting"), &[]);
        let counted = counting.env("POSTLINK_PROFILE", self.path("run.plraw"));
        let output = counted.output().expect("it was made");
        assert_eq!(String::from_utf8_lossy(&output.stdout), plain);
    }

    /// Instruments `app`, optimises it in all presets, and verifies: it prints the same each time, and nothing was
    /// taken back. The last output is `opt`. `stays`: what the instrumenting run says of functions that stay.
    pub fn comes_out_right(&self, stays: Option<&str>) {
        let messages = |arguments: &[&str]| {
            let said = self.attempt(arguments);
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(!said.contains("could not be proved"), "{said}");
            said
        };
        let plain = self.run(self.path("app"), &[]);
        let said = messages(&["instrument", "app", "-o", "counting"]);
        assert!(stays.is_none_or(|stays| said.contains(stays)), "{said}");
        // Of an earlier build.
        let _ = std::fs::remove_file(self.path("run.plraw"));
        let mut counting = self.command(self.path("counting"), &[]);
        let counted = super::done(counting.env("POSTLINK_PROFILE", self.path("run.plraw")));
        assert_eq!(String::from_utf8_lossy(&counted.stdout), plain);
        for preset in ["max", "size", "fast", "safe"] {
            let profile = ["optimize", "app", "-p", "run.plraw", "-o", "opt"];
            let said = messages(&[&profile[..], &["--preset", preset]].concat());
            assert!(said.contains("proved: "), "{said}");
            assert_eq!(self.run(self.path("opt"), &[]), plain, "{preset}");
            self.postlink(&["verify", "app", "opt"]);
        }
    }

    /// Runs postlink, which must succeed, and gives its output.
    pub fn postlink(&self, arguments: &[&str]) -> String {
        self.run(env!("CARGO_BIN_EXE_postlink"), arguments)
    }
}
