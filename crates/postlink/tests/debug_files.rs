//! Names and lines of stripped programs, from files with debug information and from `.gnu_debugdata`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod support;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// The padding keeps the functions away from start-up code without unwind entries, each byte of which may be a branch.
const SOURCE: &str = "#include <stdio.h>\n\
    __asm__(\".text\\n.skip 1024, 0x90\\n\");\n\
    static __attribute__((noinline)) int hidden_one(int x) { return x * 3 + 1; }\n\
    static __attribute__((noinline)) int hidden_two(int x) { return hidden_one(x) ^ 5; }\n\
    int main(int argc, char **argv) { printf(\"%d\\n\", hidden_two(argc)); return 0; }\n";

fn done(command: &mut Command) -> Output {
    support::done(command)
}

/// A program that was stripped, what was stripped of it, and counts.
struct Stripped {
    folder: tempfile::TempDir,
    app: PathBuf,
    debug: PathBuf,
    profile: PathBuf,
}

impl Stripped {
    fn new(options: &[&str]) -> Stripped {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.c"), SOURCE).unwrap();
        let (whole, app, debug) = (at("whole"), at("app"), at("app.debug"));
        let mut gcc = Command::new("gcc");
        done(
            gcc.args(["-O1", "-g"])
                .args(options)
                .arg("-o")
                .args([&whole, &at("a.c")]),
        );
        done(
            Command::new("objcopy")
                .arg("--only-keep-debug")
                .args([&whole, &debug]),
        );
        done(Command::new("strip").arg("-o").args([&app, &whole]));
        let (counting, profile) = (at("counting"), at("profile"));
        let mut instrument = Command::new(POSTLINK);
        instrument.args([
            "instrument".as_ref(),
            app.as_path(),
            "-o".as_ref(),
            &counting,
        ]);
        done(instrument.arg("--profile").arg(&profile));
        done(&mut Command::new(&counting));
        Stripped {
            app,
            debug,
            profile,
            folder,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn show(&self, options: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
        let mut show = Command::new(POSTLINK);
        show.arg("show")
            .arg(&self.profile)
            .arg("--binary")
            .arg(&self.app)
            .arg("--json");
        // The folder where nothing is: what the machine has shall not count.
        show.env("DEBUGINFOD_CACHE_PATH", self.at("none"))
            .env("HOME", self.at("none"));
        for option in options {
            show.arg(option.as_ref());
        }
        show.output().unwrap()
    }

    /// Whether the function's name is told, and what is said besides.
    fn named(&self, options: &[&dyn AsRef<std::ffi::OsStr>]) -> (bool, String) {
        let output = self.show(options);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let json = String::from_utf8(output.stdout).unwrap();
        assert!(
            json.contains("\"fun_") || json.contains("\"hidden_one\""),
            "{json}"
        );
        (json.contains("\"hidden_one\""), said)
    }

    fn build_id(&self) -> String {
        let said = done(Command::new("readelf").arg("-n").arg(&self.app)).stdout;
        let said = String::from_utf8(said).unwrap();
        let id = said
            .split("Build ID: ")
            .nth(1)
            .expect("gcc gives a build-id");
        id.split_whitespace().next().unwrap().to_owned()
    }

    /// Puts a debug file where a debugger looks for it by build-id.
    fn by_build_id(&self, file: &Path) -> PathBuf {
        let id = self.build_id();
        let folder = self.at("debug").join(".build-id").join(&id[..2]);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(file, folder.join(format!("{}.debug", &id[2..]))).unwrap();
        self.at("debug")
    }
}

#[test]
fn names_and_lines_come_from_the_file_with_the_programs_build_id() {
    let it = Stripped::new(&[]);
    assert!(!it.named(&[&"--debug-dir", &it.at("debug")]).0);
    let folder = it.by_build_id(&it.debug);
    let (named, said) = it.named(&[&"--debug-dir", &folder]);
    assert!(named && said.contains("names of functions of"), "{said}");
    let mut export = Command::new(POSTLINK);
    export.arg("export").arg(&it.app).arg("-p").arg(&it.profile);
    export
        .args(["--to", "lcov", "--debug-dir"])
        .arg(&folder)
        .arg("-o")
        .arg(it.at("info"));
    done(&mut export);
    let lines = fs::read_to_string(it.at("info")).unwrap();
    assert!(lines.contains("a.c") && lines.contains("DA:3,1"), "{lines}");
}

#[test]
fn a_debug_file_of_another_program_is_refused_when_named_and_passed_over_when_found() {
    let (it, other) = (
        Stripped::new(&[]),
        Stripped::new(&["-O2", "-DOTHER", "-fno-inline"]),
    );
    let output = it.show(&[&"--debug-file", &other.debug]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("is of another file: its build-id is "),
        "{said}"
    );
    assert!(
        said.contains(&it.build_id()) && said.contains(&other.build_id()),
        "{said}"
    );
    let (named, said) = it.named(&[&"--debug-dir", &it.by_build_id(&other.debug)]);
    assert!(
        !named && said.contains("debug information is not used"),
        "{said}"
    );
}

#[test]
fn moved_sections_are_another_file_even_with_the_same_build_id() {
    let it = Stripped::new(&["-Wl,--build-id=0x1234567890abcdef1234567890abcdef12345678"]);
    let other = Stripped::new(&[
        "-O3",
        "-fno-inline",
        "-falign-functions=256",
        "-Wl,--build-id=0x1234567890abcdef1234567890abcdef12345678",
    ]);
    let (named, said) = it.named(&[&"--debug-dir", &it.by_build_id(&other.debug)]);
    assert!(!named && said.contains("its section .text has"), "{said}");
}

#[test]
fn without_build_id_the_links_checksum_decides() {
    let it = Stripped::new(&["-Wl,--build-id=none"]);
    let mut link = Command::new("objcopy");
    let mut option = std::ffi::OsString::from("--add-gnu-debuglink=");
    option.push(&it.debug);
    done(link.arg(option).arg(&it.app));
    let none = it.at("none");
    // The counts are of the file without the link; what is asked for is only the names.
    let inspect = || {
        let mut inspect = Command::new(POSTLINK);
        inspect
            .args(["inspect", "--pinned", "--debug-dir"])
            .arg(&none)
            .arg(&it.app);
        String::from_utf8(done(&mut inspect).stderr).unwrap()
    };
    assert!(inspect().contains("names of functions of"), "{}", inspect());
    let mut bytes = fs::read(&it.debug).unwrap();
    bytes.push(0);
    fs::write(&it.debug, bytes).unwrap();
    assert!(
        inspect().contains(".gnu_debuglink of the program wants 0x"),
        "{}",
        inspect()
    );
}

fn with_debugdata(it: &Stripped, contents: &Path) {
    done(
        Command::new("xz")
            .args(["-kf", "--check=crc32"])
            .arg(contents),
    );
    let mut packed = contents.as_os_str().to_owned();
    packed.push(".xz");
    let mut option = std::ffi::OsString::from(".gnu_debugdata=");
    option.push(packed);
    done(
        Command::new("objcopy")
            .arg("--add-section")
            .arg(option)
            .arg(&it.app),
    );
}

#[test]
fn names_come_from_gnu_debugdata() {
    if !support::is_installed("xz") {
        return;
    }
    let it = Stripped::new(&[]);
    let mini = it.at("mini");
    done(
        Command::new("objcopy")
            .arg("--strip-debug")
            .args([&it.debug, &mini]),
    );
    with_debugdata(&it, &mini);
    let (named, said) = it.named(&[&"--debug-dir", &it.at("none")]);
    assert!(
        named && said.contains("names of functions of .gnu_debugdata"),
        "{said}"
    );
}

#[test]
fn gnu_debugdata_that_grows_without_end_is_not_read() {
    if !support::is_installed("xz") {
        return;
    }
    let it = Stripped::new(&[]);
    let zeros = it.at("zeros");
    fs::File::create(&zeros).unwrap().set_len(65 << 20).unwrap();
    with_debugdata(&it, &zeros);
    let (named, said) = it.named(&[&"--debug-dir", &it.at("none")]);
    assert!(
        !named && said.contains("more than 67108864 when unpacked"),
        "{said}"
    );
}

#[test]
fn gnu_debugdata_that_is_not_xz_is_warned_of() {
    let it = Stripped::new(&[]);
    let mut option = std::ffi::OsString::from(".gnu_debugdata=");
    option.push(it.at("a.c"));
    done(
        Command::new("objcopy")
            .arg("--add-section")
            .arg(option)
            .arg(&it.app),
    );
    let (named, said) = it.named(&[&"--debug-dir", &it.at("none")]);
    assert!(
        !named && said.contains("cannot be unpacked as xz"),
        "{said}"
    );
}
