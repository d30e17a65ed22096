//! What `postlink mip` says: each sentence must be true, and short where there is nothing to say.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::process::{Command, Output};

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");
const PROGRAM: &str = "#include <stdlib.h>
__attribute__((noipa)) int once(int x) { return x * 3; }
int main(int argc, char **argv) { int s = 0; for (int i = 0; i < argc * 100; i++) s += rand(); return (once(s) & 1) < 0; }
";

mod support;
use support::folder::Folder;

impl Folder {
    /// A program with these flags, and a profile of one run.
    fn of(flags: &str) -> Folder {
        let folder = Folder::new();
        std::fs::write(folder.path("a.c"), PROGRAM).unwrap();
        let build = format!("cc -- gcc -O1 {flags} a.c -o app");
        for arguments in [build.as_str(), "create -p app.mip app"] {
            folder.succeeds(arguments);
        }
        let run = Command::new(folder.path("app"))
            .current_dir(folder.dir())
            .env("LLVM_MIP_PROFILE_FILENAME", "x.mipraw")
            .status();
        assert!(run.unwrap().success());
        folder
    }

    fn mip(&self, arguments: &str) -> Output {
        Command::new(POSTLINK)
            .arg("mip")
            .args(arguments.split_whitespace())
            .current_dir(self.dir())
            .output()
            .expect("postlink runs")
    }

    fn succeeds(&self, arguments: &str) -> String {
        let out = self.mip(arguments);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{arguments}: {text}");
        text
    }
}

#[test]
fn one_file_is_one_file() {
    let folder = Folder::of("");
    let said = folder.succeeds("merge -p app.mip x.mipraw");
    assert!(said.contains(": 1 file added ("), "{said}");
    let said = folder.succeeds("merge -p app.mip x.mipraw x.mipraw");
    assert!(said.contains(": 2 files added ("), "{said}");
}

/// It was built with a buffer, so to build it with a buffer is no advice.
#[test]
fn a_short_run_with_a_buffer_is_told_apart_from_none() {
    let folder = Folder::of("-fmachine-profile-runtime-buffer=4096");
    folder.succeeds("merge -p app.mip x.mipraw");
    let out = folder.mip("order -p app.mip --by call-graph");
    assert!(!out.status.success());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("let the program run for longer"), "{said}");
}

#[test]
fn a_program_without_debug_information_is_one_warning() {
    let folder = Folder::of("");
    folder.succeeds("merge -p app.mip x.mipraw");
    let said = folder.succeeds("covered -p app.mip --debug app");
    assert_eq!(said.matches("warning").count(), 1, "{said}");
    assert!(
        said.contains("app: no debug information for any of 2 functions"),
        "{said}"
    );
}

/// `--help` of a link that is named after a compiler is that compiler's.
#[test]
fn a_wrong_flag_of_a_link_leads_to_our_help() {
    let folder = Folder::of("");
    let link = folder.path("mip-gcc");
    std::os::unix::fs::symlink(POSTLINK, &link).unwrap();
    let out = Command::new(&link)
        .args(["-fmachine-profile-runtime-buffer=x", "-c", "a.c"])
        .current_dir(folder.dir())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("'postlink mip cc --help'"), "{said}");
}

/// A function that is called once may be where all the time goes.
#[test]
fn what_is_seldom_called_is_not_called_cold() {
    let folder = Folder::of("");
    folder.succeeds("merge -p app.mip x.mipraw");
    let out = folder.mip("outline-report -p app.mip");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("unless a loop in it is hot"), "{text}");
}
