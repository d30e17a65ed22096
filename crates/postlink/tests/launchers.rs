//! `postlink mip cc` as a launcher for make, CMake and cargo: small projects of several files, built as their
//! users build them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use postlink_mip::mip;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// Calls `part` once, and `more` for each step from 27 down to 1.
const MAIN_C: &str = "#include <stdio.h>\nint part(int);\nint main(void) { printf(\"%d\\n\", part(27)); return 0; }\n";
const PART_C: &str = "int more(int);\nint part(int x) { int n = 0; while (x > 1) { x = x & 1 ? 3 * x + 1 : x / 2; n += more(x); } return n; }\nint nobody(int x) { return x * 5; }\n";
const MORE_CC: &str = "template<class T> T third(T x) { return x % 3 + 1; }\nextern \"C\" int more(int x) { return third(x); }\n";
const STEPS: u64 = 111;

struct Project(tempfile::TempDir);

impl Project {
    fn new(files: &[(&str, &str)]) -> Project {
        let project = Project(tempfile::tempdir().expect("a temporary directory"));
        for (name, text) in files {
            let path = project.path(name);
            std::fs::create_dir_all(path.parent().expect("in the project")).unwrap();
            std::fs::write(path, text).unwrap();
        }
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs something in the project's folder; it must succeed. Gives what it printed.
    fn run(&self, command: &mut Command) -> String {
        let out = command
            .current_dir(self.0.path())
            .env("LLVM_MIP_PROFILE_FILENAME", self.path("run.%h.mipraw"))
            .output()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(
            out.status.success(),
            "{command:?}: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs the program and gives how often each of its functions was called.
    fn counts(&self, program: &str) -> BTreeMap<String, u64> {
        assert_eq!(self.run(&mut Command::new(self.path(program))), "271\n");
        self.counts_of(program)
    }

    /// What the last run said of a program or library.
    fn counts_of(&self, file: &str) -> BTreeMap<String, u64> {
        let map = postlink_mip::create::open(&self.path(file)).expect("it has a map");
        let raw = format!("run.{:04x}.mipraw", map.module_hash as u16);
        let postlink = |arguments: &[&str]| {
            self.run(Command::new(POSTLINK).arg("mip").args(arguments));
        };
        postlink(&["create", "-p", "app.mip", file]);
        postlink(&["merge", "--strict", "-p", "app.mip", &raw]);
        mip::open(&self.path("app.mip"))
            .expect("it was just written")
            .functions
            .iter()
            .map(|f| (f.display_name().to_string(), f.call_count))
            .collect()
    }

    /// A link to postlink under a compiler's name.
    fn link(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::os::unix::fs::symlink(POSTLINK, &path).expect("the folder is ours");
        path
    }
}

fn have(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        eprintln!("SKIPPED: {tool} is not installed: postlink as its launcher is not tested");
    }
    there
}

#[test]
fn make_builds_with_its_built_in_rules_and_in_parallel() {
    if !have("make") {
        return;
    }
    let makefile = "app: main.o part.o libmore.a\n\t$(CXX) $(CFLAGS) $^ -o $@\nlibmore.a: more.o\n\t$(AR) rcs $@ $^\n%.o: %.c\n\t$(CC) $(CFLAGS) -MMD -c $< -o $@\n\
        %.o: %.cc\n\t$(CXX) $(CFLAGS) -MMD -c $< -o $@\n-include main.d part.d more.d\n";
    let files = [
        ("Makefile", makefile),
        ("main.c", MAIN_C),
        ("part.c", PART_C),
        ("more.cc", MORE_CC),
    ];
    for (c, cpp) in [("gcc", "g++"), ("clang-19", "clang++-19")] {
        if !have(c) {
            continue;
        }
        let project = Project::new(&files);
        let launched = |name: &str| format!("{POSTLINK} mip cc -- {name}");
        project.run(Command::new("make").args(["-j2", "CFLAGS=-O1 -g"]).args([
            format!("CC={}", launched(c)),
            format!("CXX={}", launched(cpp)),
        ]));
        let counts = project.counts("app");
        assert_eq!(
            (counts["main"], counts["part"], counts["nobody"]),
            (1, 1, 0)
        );
        assert_eq!(counts["more"], STEPS);
        // The dependency files are those of the real objects: nothing is to be done now.
        let again = project.run(Command::new("make").args(["CFLAGS=-O1 -g"]).args([
            format!("CC={}", launched(c)),
            format!("CXX={}", launched(cpp)),
        ]));
        assert!(again.contains("up to date"), "{again}");
    }
}

#[test]
fn cmake_builds_with_launchers_of_compilers_and_linker() {
    if !have("cmake") || !have("make") {
        return;
    }
    let project = Project::new(&[
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.16)\nproject(app C CXX)\nset(CMAKE_POSITION_INDEPENDENT_CODE ON)\nadd_library(more SHARED more.cc)\nadd_library(part STATIC part.c)\n\
             target_link_libraries(part more)\nadd_executable(app main.c)\ntarget_link_libraries(app part)\n",
        ),
        ("main.c", MAIN_C),
        ("part.c", PART_C),
        ("more.cc", MORE_CC),
    ]);
    let launcher = format!("{POSTLINK};mip;cc;--");
    let mut configure = Command::new("cmake");
    configure.args(["-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Release"]);
    for what in ["C_COMPILER", "CXX_COMPILER", "C_LINKER", "CXX_LINKER"] {
        configure.arg(format!("-DCMAKE_{what}_LAUNCHER={launcher}"));
    }
    project.run(&mut configure);
    project.run(Command::new("cmake").args(["--build", "build", "-j2"]));
    let counts = project.counts("build/app");
    assert_eq!(
        (counts["main"], counts["part"], counts["nobody"]),
        (1, 1, 0)
    );
    // The library has its own map and writes a file of its own.
    assert!(!counts.contains_key("more"));
    let library = project.counts_of("build/libmore.so");
    assert_eq!(library["more"], STEPS);
}

#[test]
fn cargo_builds_c_in_build_scripts_and_links_with_it() {
    // What the cc crate does, without having to fetch it.
    let script = r#"
use std::{env, process::Command};
fn main() {
    let out = env::var("OUT_DIR").unwrap();
    for (compiler, file) in [("CC", "part.c"), ("CXX", "more.cc")] {
        let object = format!("{out}/{file}.o");
        let flags = ["-O1", "-ffunction-sections", "-fdata-sections", "-fPIC", "-g", "-m64", "-Wall", "-c"];
        let built = Command::new(env::var(compiler).unwrap()).args(flags).arg("-o").arg(&object).arg(format!("src/{file}")).status();
        assert!(built.unwrap().success());
        let archive = format!("{out}/lib{}.a", &file[..4]);
        assert!(Command::new("ar").args(["rcs", &archive, &object]).status().unwrap().success());
        println!("cargo:rustc-link-lib=static={}", &file[..4]);
    }
    println!("cargo:rustc-link-search=native={out}");
}
"#;
    let project = Project::new(&[
        (
            "Cargo.toml",
            "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n[workspace]\n",
        ),
        ("build.rs", script),
        (
            "src/main.rs",
            "extern \"C\" { fn part(x: i32) -> i32; }\nfn main() { println!(\"{}\", unsafe { part(27) }); }\n",
        ),
        ("src/part.c", PART_C),
        ("src/more.cc", MORE_CC),
    ]);
    let (c, cpp) = (project.link("mip-gcc"), project.link("mip-g++"));
    project.run(
        Command::new(env!("CARGO"))
            .args(["build", "--offline", "--quiet"])
            .env("CC", &c)
            .env("CXX", &cpp)
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", &c)
            .env("CARGO_TARGET_DIR", project.path("target"))
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    );
    let counts = project.counts("target/debug/app");
    assert_eq!(counts["part"], 1);
    assert_eq!(counts["more"], STEPS);
    // rustc has the linker drop what nobody refers to.
    assert!(!counts.contains_key("nobody"));
}
