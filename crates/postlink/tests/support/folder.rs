//! A temporary folder in which programs are built and run, and postlink with them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    pub fn new() -> Folder {
        Folder {
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a program in the folder, to whatever end.
    pub fn start(&self, program: &Path, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .current_dir(self.dir.path())
            .env_remove("POSTLINK_PROFILE")
            .env("NO_COLOR", "1")
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}", program.display()))
    }

    /// Runs a program, which must succeed, and gives its output.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> String {
        let output = self.start(program, arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program:?} {arguments:?}: {message}"
        );
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    pub fn postlink(&self, arguments: &[&str]) -> String {
        self.run(Path::new(env!("CARGO_BIN_EXE_postlink")), arguments)
    }
}
