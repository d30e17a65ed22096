//! The command line from outside: exit codes, errors that say what to do, and files that errors leave alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod support;
use support::folder::Folder;

impl Folder {
    /// A small program, linked with relocations kept.
    fn program(&self) -> PathBuf {
        self.compile("app", PROGRAM, &["-Wl,-q"])
    }

    /// Runs what must fail, and gives its message.
    fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.attempt(arguments);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.starts_with("error: "), "{message}");
        assert!(!message.contains("panicked"), "{message}");
        message
    }
}

const PROGRAM: &str = "
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline, noipa)) static int work(int x) { int n = 0; while (x > 1) { x = x & 1 ? 3 * x + 1 : x / 2; n++; } return n; }
int main(int argc, char **argv) {
  long sum = 0;
  for (int i = 1; i < 3000; i++) sum += work(i);
  printf(\"%ld\\n\", sum);
  return argc > 1 ? atoi(argv[1]) : 0;
}";

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).expect("the file is there")
}

/// Runs a program with its profile in a file.
fn count(program: &Path, profile: &Path) {
    let status = Command::new(program)
        .env("POSTLINK_PROFILE", profile)
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.expect("the program can be started").success());
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let folder = Folder::new();
    for arguments in [
        &["inspect"][..],
        &["no-such-command"],
        &["inspect", "a", "--no-such-option"],
        &["optimize", "a", "-o", "b"],
        &["instrument", "a", "-o", "b", "--profile", "%z"],
        &["instrument", "a", "-o", "b", "--functions", "("],
        &[
            "optimize",
            "a",
            "-p",
            "p",
            "-o",
            "b",
            "--align-functions",
            "3",
        ],
        &["watch", "p", "--snapshot-every", "0", "-o", "x"],
        &["--threads", "0", "inspect", "a"],
    ] {
        folder.fail(2, arguments);
    }
    let message = folder.fail(2, &["tune", "app", "-o", "out", "--", "./run.sh"]);
    assert!(
        message.contains("./run.sh") && message.contains("{}"),
        "{message}"
    );
    folder.fail(2, &["watch", "p", "--snapshot-every", "1", "-o", "x.%q"]);
}

#[test]
fn help_is_exit_code_0_and_explains_with_examples() {
    let folder = Folder::new();
    for command in [
        "tune",
        "inspect",
        "instrument",
        "show",
        "merge",
        "optimize",
        "verify",
        "bench",
        "demo",
        "watch",
    ] {
        let help = folder.postlink(&[command, "--help"]);
        assert!(
            help.contains("Example") && help.contains(&format!("postlink {command}")),
            "{help}"
        );
    }
}

#[test]
fn what_is_not_elf_is_named_in_the_error() {
    let folder = Folder::new();
    fs::write(folder.path("empty"), "").unwrap();
    fs::write(folder.path("text"), "#!/bin/sh\nexit 0\n".repeat(20)).unwrap();
    for (name, word) in [
        ("empty", "empty"),
        ("text", "ELF"),
        ("absent", "No such file"),
        (".", "regular"),
    ] {
        let message = folder.fail(1, &["inspect", name]);
        assert!(
            message.contains(name) && message.contains(word),
            "{message}"
        );
    }
}

#[test]
fn a_program_cut_short_anywhere_is_an_error_or_works_and_never_a_panic() {
    let folder = Folder::new();
    let whole = bytes(&folder.program());
    let mut length = 0;
    while length < whole.len() {
        fs::write(folder.path("cut"), &whole[..length]).unwrap();
        for arguments in [
            &["inspect", "cut"][..],
            &["instrument", "cut", "-o", "cut.inst"],
        ] {
            let output = folder.attempt(arguments);
            assert!(
                matches!(output.status.code(), Some(0 | 1)),
                "{length} bytes: {}",
                stderr(&output)
            );
        }
        length += if length < 1024 { 61 } else { 977 };
    }
}

/// The message was about a program header that reaches behind the end of the file.
#[test]
fn a_separate_debug_file_is_said_to_be_one() {
    let folder = Folder::new();
    folder.program();
    let split = Command::new("objcopy")
        .args(["--only-keep-debug", "app", "app.debug"])
        .current_dir(folder.path("."))
        .status();
    assert!(split.expect("objcopy can be started").success());
    fs::write(folder.path("app.fdata"), "0 main 0 0 main 0 0 1\n").unwrap();
    for command in [
        &["instrument", "app.debug", "-o", "out"][..],
        &["optimize", "app.debug", "-p", "app.fdata", "-o", "out"],
    ] {
        let message = folder.fail(1, command);
        assert!(
            message.contains("app.debug: a separate debug file"),
            "{message}"
        );
    }
    assert!(!folder.path("out").exists());
}

/// The message was about the size of the pages for counters.
#[test]
fn a_file_without_a_function_to_instrument_is_an_error_that_says_why() {
    let folder = Folder::new();
    folder.compile("data.so", "int number = 3;", &["-shared", "-fPIC"]);
    let message = folder.fail(1, &["instrument", "data.so", "-o", "out"]);
    assert!(
        message.contains("data.so: no function can be instrumented (4 × "),
        "{message}"
    );
    assert!(!folder.path("out").exists());
}

#[test]
fn what_needs_kept_relocations_says_how_to_link() {
    let folder = Folder::new();
    let program = folder.compile("plain", PROGRAM, &[]);
    let arguments = ["instrument", "plain", "-o", "out", "--relocations", "kept"];
    let message = folder.fail(1, &arguments);
    assert!(
        message.contains("plain") && message.contains("-Wl,-q"),
        "{message}"
    );
    assert!(!folder.path("out").exists());
    assert!(program.exists());
    let output = folder.attempt(&["instrument", "plain", "-o", "out"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// In a program at a fixed address a word may be a number that looks like an address. That is no error of anybody's, so
/// nobody is asked to report it.
#[test]
fn a_number_that_looks_like_an_address_is_not_to_be_reported() {
    let folder = Folder::new();
    let source = r#"
#include <stdio.h>
__asm__(".text\n.type counted,@function\ncounted:\n.cfi_startproc\nmov %edi,%eax\nadd $7,%eax\nadd $9,%eax\nret\n"
  ".cfi_endproc\n.size counted,.-counted\n.data\n.balign 8\n.globl number\nnumber: .quad counted+5\n.text\n");
int counted(int);
extern unsigned long number;
int main(void) { printf("%d\n", counted(1) + (number == 1)); return 0; }
"#;
    folder.compile("plain", source, &["-no-pie"]);
    let output = folder.attempt(&["instrument", "plain", "-o", "out"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let what = "1 a word or number of the program may be an address inside: a table may describe";
    assert!(said.contains(what), "{said}");
    // As it is known before anything is emitted, nothing is taken back.
    assert!(!said.contains("counted:"), "{said}");
    let pinned = folder.postlink(&["inspect", "plain", "--pinned"]);
    let line = pinned.lines().find(|line| line.contains("counted"));
    assert!(
        line.is_some_and(|l| l.contains("an address inside")),
        "{pinned}"
    );
    assert!(!said.contains("please report"), "{said}");
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn an_error_leaves_an_existing_output_and_the_input_as_they_were() {
    let folder = Folder::new();
    let program = folder.program();
    let before = bytes(&program);
    fs::write(folder.path("out"), "precious").unwrap();
    fs::write(folder.path("bad.plraw"), vec![7u8; 10000]).unwrap();
    let message = folder.fail(1, &["optimize", "app", "-p", "bad.plraw", "-o", "out"]);
    assert!(message.contains("bad.plraw"), "{message}");
    folder.fail(1, &["instrument", "app", "-o", "app"]);
    fs::hard_link(&program, folder.path("same")).unwrap();
    let message = folder.fail(1, &["instrument", "app", "-o", "same"]);
    assert!(message.contains("the input itself"), "{message}");
    assert_eq!(bytes(&folder.path("out")), b"precious");
    assert_eq!(bytes(&program), before);
    let left: Vec<_> = fs::read_dir(folder.dir())
        .unwrap()
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .collect();
    assert!(
        left.iter().all(|name| !name.starts_with('.')),
        "temporary files stay behind: {left:?}"
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    folder.program();
    let message = folder.fail(1, &["instrument", "app", "-o", "no/such/dir/out"]);
    assert!(message.contains("no/such/dir"), "{message}");
    let message = folder.fail(1, &["instrument", "app", "-o", "."]);
    assert!(message.contains("directory"), "{message}");
}

/// `-o /dev/null` as root made a file of the device.
#[test]
fn an_output_that_is_a_device_or_a_pipe_is_written_into() {
    use std::os::unix::fs::FileTypeExt;
    let folder = Folder::new();
    folder.program();
    let link = folder.path("link");
    std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
    let instrument = |to: &str| {
        folder.postlink(&["instrument", "app", "-o", to, "--profile", "p.plraw"]);
    };
    for to in ["link", "/dev/null"] {
        instrument(to);
        let device = fs::metadata("/dev/null").expect("it is there").file_type();
        assert!(device.is_char_device());
    }
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());

    instrument("copy");
    let pipe = folder.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let from = pipe.clone();
    let reader = std::thread::spawn(move || bytes(&from));
    instrument("pipe");
    assert!(reader.join().expect("it reads") == bytes(&folder.path("copy")));
}

#[test]
fn the_output_has_the_permissions_of_the_input() {
    let folder = Folder::new();
    let program = folder.program();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o751)).unwrap();
    folder.postlink(&["instrument", "app", "-o", "out"]);
    assert_eq!(
        fs::metadata(folder.path("out"))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777,
        0o751
    );
}

#[test]
fn the_profile_of_another_program_is_refused_with_both_identities() {
    let folder = Folder::new();
    folder.program();
    let other = PROGRAM.replace("n++", "n += 2");
    folder.compile("other", &other, &["-Wl,-q"]);
    folder.postlink(&["instrument", "other", "-o", "other.inst"]);
    count(&folder.path("other.inst"), &folder.path("other.plraw"));
    let message = folder.fail(1, &["optimize", "app", "-p", "other.plraw", "-o", "out"]);
    let id = |name: &str| {
        let json: serde_json::Value =
            serde_json::from_str(&folder.postlink(&["inspect", name, "--json"])).unwrap();
        json["build_id"].as_str().unwrap().to_owned()
    };
    assert!(
        message.contains(&id("app")) && message.contains(&id("other")),
        "{message}"
    );
}

#[test]
fn a_profile_cut_short_names_both_sizes() {
    let folder = Folder::new();
    folder.program();
    folder.postlink(&["instrument", "app", "-o", "app.inst"]);
    count(&folder.path("app.inst"), &folder.path("run.plraw"));
    let whole = bytes(&folder.path("run.plraw"));
    for length in [0, 1, 50, 4096, whole.len() - 1] {
        fs::write(folder.path("cut.plraw"), &whole[..length]).unwrap();
        let message = folder.fail(1, &["optimize", "app", "-p", "cut.plraw", "-o", "out"]);
        assert!(
            message.contains("cut.plraw") || message.contains("no profile with counts"),
            "{message}"
        );
        if length >= 4096 {
            assert!(message.contains(&length.to_string()), "{message}");
        }
        assert!(!folder.path("out").exists());
    }
}

#[test]
fn tune_does_the_whole_job_and_the_result_is_proved() {
    let folder = Folder::new();
    folder.program();
    let output = folder.attempt(&[
        "tune",
        "app",
        "-o",
        "app.opt",
        "--measure",
        "1",
        "--",
        "sh",
        "-c",
        "{} && {}",
    ]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("proved") && said.contains("measured"),
        "{said}"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
    folder.postlink(&["verify", "app", "app.opt"]);
    let run = |name: &str| Command::new(folder.path(name)).arg("7").output().unwrap();
    assert_eq!(run("app").stdout, run("app.opt").stdout);
    assert_eq!(run("app.opt").status.code(), Some(7));
}

#[test]
fn tune_gives_the_program_to_the_runner_wherever_the_workload_runs_it() {
    let folder = Folder::new();
    folder.program();
    fs::write(folder.path("run it"), "echo ran >> runs\nexec \"$@\"\n").unwrap();
    let runner = ["--runner", "sh 'run it'"];
    let workload = ["--", "sh", "-c", "{} && {}"];
    let arguments = [&["tune", "app", "-o", "app.opt"][..], &runner, &workload].concat();
    let output = folder.attempt(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let runs = fs::read_to_string(folder.path("runs")).unwrap();
    assert_eq!(runs, "ran\nran\n");
    folder.postlink(&["verify", "app", "app.opt"]);
}

#[test]
fn tune_fails_with_the_workload_and_goes_on_when_allowed() {
    let folder = Folder::new();
    folder.program();
    let message = folder.attempt(&["tune", "app", "-o", "app.opt", "--", "{}", "3"]);
    assert_eq!(message.status.code(), Some(1));
    assert!(
        stderr(&message).contains("exit code 3"),
        "{}",
        stderr(&message)
    );
    assert!(!folder.path("app.opt").exists());
    folder.postlink(&[
        "tune",
        "app",
        "-o",
        "app.opt",
        "--allow-failure",
        "--",
        "{}",
        "3",
    ]);
    assert!(folder.path("app.opt").exists());
}

#[test]
fn tune_says_so_when_the_workload_did_not_run_the_program() {
    let folder = Folder::new();
    folder.program();
    let output = folder.attempt(&["tune", "app", "-o", "app.opt", "--", "true", "{}"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("has not run the instrumented program"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn output_is_the_same_at_any_number_of_threads() {
    let folder = Folder::new();
    folder.program();
    folder.postlink(&["--threads", "1", "instrument", "app", "-o", "one.inst"]);
    folder.postlink(&["--threads", "4", "instrument", "app", "-o", "four.inst"]);
    assert_eq!(
        bytes(&folder.path("one.inst")),
        bytes(&folder.path("four.inst"))
    );
    count(&folder.path("one.inst"), &folder.path("run.plraw"));
    folder.postlink(&[
        "--threads",
        "1",
        "optimize",
        "app",
        "-p",
        "run.plraw",
        "-o",
        "one.opt",
    ]);
    folder.postlink(&[
        "--threads",
        "4",
        "optimize",
        "app",
        "-p",
        "run.plraw",
        "-o",
        "four.opt",
    ]);
    assert_eq!(
        bytes(&folder.path("one.opt")),
        bytes(&folder.path("four.opt"))
    );
}

#[test]
fn a_second_rewriting_is_refused_with_the_way_out() {
    let folder = Folder::new();
    folder.program();
    folder.postlink(&["instrument", "app", "-o", "app.inst"]);
    let message = folder.fail(1, &["instrument", "app.inst", "-o", "again"]);
    assert!(
        message.contains("app.inst") && message.contains("postlink already"),
        "{message}"
    );
}

#[test]
fn merged_profiles_hold_the_sum_in_any_order() {
    let folder = Folder::new();
    folder.program();
    folder.postlink(&["instrument", "app", "-o", "app.inst"]);
    for name in ["a.plraw", "b.plraw"] {
        count(&folder.path("app.inst"), &folder.path(name));
    }
    folder.postlink(&["merge", "a.plraw", "b.plraw", "-o", "ab.plprof"]);
    folder.postlink(&["merge", "b.plraw", "a.plraw", "-o", "ba.plprof"]);
    folder.postlink(&["merge", "a.plraw:2", "-o", "aa.plprof"]);
    assert_eq!(
        bytes(&folder.path("ab.plprof")),
        bytes(&folder.path("ba.plprof"))
    );
    assert_eq!(
        bytes(&folder.path("ab.plprof")),
        bytes(&folder.path("aa.plprof"))
    );
    let shown = folder.postlink(&["show", "ab.plprof", "--binary", "app", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let work = shown["functions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["name"] == "work")
        .unwrap();
    assert_eq!(work["entries"], 2 * 2999);
}

#[test]
fn verify_fails_on_a_changed_byte_and_names_the_function() {
    let folder = Folder::new();
    folder.program();
    folder.postlink(&["tune", "app", "-o", "app.opt", "--", "{}"]);
    let certificate: serde_json::Value =
        serde_json::from_str(&folder.postlink(&["verify", "app", "app.opt", "--json"])).unwrap();
    let work = certificate["functions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["name"] == "work")
        .unwrap();
    let address = work["new"].as_u64().unwrap();
    let mut damaged = bytes(&folder.path("app.opt"));
    let at = offset_of(&damaged, address);
    damaged[at] ^= 0x01;
    fs::write(folder.path("damaged"), &damaged).unwrap();
    let output = folder.attempt(&["verify", "app", "damaged"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("NOT PROVED") && said.contains("work"),
        "{said}"
    );
}

/// File offset of a link-time address, by the program headers.
fn offset_of(file: &[u8], address: u64) -> usize {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (table, count) = (
        word(32) as usize,
        u16::from_le_bytes([file[56], file[57]]) as usize,
    );
    (0..count)
        .map(|i| table + i * 56)
        .filter(|at| file[*at] == 1)
        .find(|at| (word(at + 16)..word(at + 16) + word(at + 32)).contains(&address))
        .map(|at| (address - word(at + 16) + word(at + 8)) as usize)
        .expect("the address is loaded")
}

#[test]
fn an_unwritable_profile_is_one_line_and_the_program_runs_on() {
    let folder = Folder::new();
    let program = folder.program();
    folder.postlink(&["instrument", "app", "-o", "app.inst"]);
    let plain = Command::new(&program).output().unwrap();
    for place in ["/no/such/directory/run.plraw", "/proc/version", "/"] {
        let run = Command::new(folder.path("app.inst"))
            .env("POSTLINK_PROFILE", place)
            .output()
            .unwrap();
        assert_eq!(
            (run.status.code(), &run.stdout),
            (Some(0), &plain.stdout),
            "{place}"
        );
        assert_eq!(stderr(&run).lines().count(), 1, "{place}: {}", stderr(&run));
    }
}

#[test]
fn a_profile_name_without_environment_follows_the_pattern() {
    let folder = Folder::new();
    folder.program();
    folder.postlink(&[
        "instrument",
        "app",
        "-o",
        "app.inst",
        "--profile",
        "p.%p.%b.%%.plraw",
    ]);
    let mut child = Command::new(folder.path("app.inst"))
        .current_dir(folder.dir())
        .env_remove("POSTLINK_PROFILE")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    let json: serde_json::Value =
        serde_json::from_str(&folder.postlink(&["inspect", "app", "--json"])).unwrap();
    let name = format!("p.{pid}.{}.%.plraw", json["build_id"].as_str().unwrap());
    assert!(folder.path(&name).exists(), "{name}");
}

#[test]
fn snapshots_of_a_running_program_are_readable_and_grow() {
    let folder = Folder::new();
    let source = PROGRAM.replace(
        "int i = 1; i < 3000; i++",
        "int i = 1; i < 1000000000; i = i % 3000 + 1",
    );
    folder.compile("app", &source, &["-Wl,-q"]);
    folder.postlink(&["instrument", "app", "-o", "app.inst"]);
    let mut child = Command::new(folder.path("app.inst"))
        .env("POSTLINK_PROFILE", folder.path("run.plraw"))
        .spawn()
        .unwrap();
    let watched = folder.attempt(&[
        "watch",
        "run.plraw",
        "--snapshot-every",
        "0.2",
        "--count",
        "2",
        "-o",
        "snap.%n.plraw",
    ]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(watched.status.code(), Some(0), "{}", stderr(&watched));
    let total = |name: &str| {
        let shown: serde_json::Value =
            serde_json::from_str(&folder.postlink(&["show", name, "--json"])).unwrap();
        shown["totals"]["total"].as_u64().unwrap()
    };
    let totals = [
        total("snap.1.plraw"),
        total("snap.2.plraw"),
        total("run.plraw"),
    ];
    assert!(
        0 < totals[0] && totals[0] < totals[1] && totals[1] <= totals[2],
        "{totals:?}"
    );
}

#[test]
fn manual_pages_and_completions_name_all_commands() {
    let folder = Folder::new();
    folder.postlink(&["man", "pages"]);
    for page in ["postlink.1", "postlink-tune.1", "postlink-verify.1"] {
        assert!(folder.path("pages").join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = folder.postlink(&["completions", shell]);
        assert!(
            script.contains("instrument") && script.contains("snapshot-every"),
            "{shell}"
        );
    }
}

/// A named pipe that nobody writes to yet makes a command take as long as a test likes.
#[test]
fn what_takes_long_shows_on_a_terminal_which_step_it_is_at_and_nothing_in_a_pipe() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: script is not installed");
        return;
    }
    let folder = Folder::new();
    let said = |on_terminal: bool| {
        let pipe = folder.path("pipe.plraw");
        let _ = fs::remove_file(&pipe);
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let words = format!(
            "{} merge pipe.plraw -o out.plprof",
            env!("CARGO_BIN_EXE_postlink")
        );
        let mut command = Command::new(if on_terminal { "script" } else { "sh" });
        if on_terminal {
            command.args(["-qec", &words, "/dev/null"])
        } else {
            command.args(["-c", &words])
        };
        let child = command
            .current_dir(folder.path(""))
            .env("TERM", "xterm")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1800));
        // It is opened, which is what was waited for; whether anything is read from it does not matter.
        let _ = fs::write(&pipe, b"no profile");
        let output = child.wait_with_output().unwrap();
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    };
    let shown = said(true);
    assert!(shown.contains("merge: read, step 1 of 2"), "{shown}");
    let piped = said(false);
    assert!(
        piped.starts_with("error:") && !piped.contains("step"),
        "{piped}"
    );
}
