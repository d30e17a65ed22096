//! What a compiler writes besides its output must be there with us as it is without: same files, same names,
//! same contents where these matter.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::{Scratch, counts, have, tool};

fn compilers() -> impl Iterator<Item = &'static str> {
    ["gcc", "clang-19"]
        .into_iter()
        .filter(|compiler| have(compiler, "files besides outputs of this compiler"))
}

/// Names of files in a folder, and what is in those with dependencies, without the folder.
fn files(scratch: &Scratch, folder: &str) -> BTreeMap<String, String> {
    let here = scratch.path(folder);
    let text_of = |name: &str| {
        if name.ends_with(".d") {
            fs::read_to_string(here.join(name))
                .unwrap()
                .replace(here.to_str().unwrap(), "")
        } else {
            String::new()
        }
    };
    fs::read_dir(&here)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| (name.clone(), text_of(&name)))
        .collect()
}

/// What a command leaves in a folder of its own, without us and with us. `%%` represents the folder.
fn both(scratch: &Scratch, command: &str) -> [BTreeMap<String, String>; 2] {
    // Names of one length: compilers break the lines of dependencies by the lengths of paths.
    ["plain", "count"].map(|folder| {
        let _ = fs::remove_dir_all(scratch.path(folder));
        fs::create_dir(scratch.path(folder)).unwrap();
        let command = command.replace("%%", &format!("%/{folder}"));
        match folder {
            "plain" => scratch.build(&format!("{command} -fno-machine-profile-generate")),
            _ => scratch.build(&command),
        };
        files(scratch, folder)
    })
}

#[test]
fn files_beside_objects_and_programs_are_those_of_the_compiler_alone() {
    let scratch = Scratch::new();
    for compiler in compilers() {
        for flags in [
            "--coverage",
            "-fstack-usage",
            "-g -gsplit-dwarf",
            "-g -gsplit-dwarf -O2 -fstack-usage --coverage",
            "-fsave-optimization-record",
        ] {
            for what in ["-c @library.c -o %%/sub.o", "-c @library.c -o %%/sub.x.o"] {
                let [plain, ours] = both(&scratch, &format!("{compiler} {flags} {what}"));
                assert_eq!(plain, ours, "{compiler} {flags} {what}");
                assert!(plain.len() > 1, "{plain:?}");
            }
        }
        for flags in ["--coverage", "-g -gsplit-dwarf"] {
            let what = "@uses-library.c @library.c -o %%/app";
            let [plain, ours] = both(&scratch, &format!("{compiler} {flags} {what}"));
            assert_eq!(plain, ours, "{compiler} {flags} {what}");
            assert_eq!(plain.len(), 3, "{plain:?}");
        }
    }
}

#[test]
fn dumps_of_gcc_are_named_after_the_object() {
    let scratch = Scratch::new();
    for flags in ["-fdump-tree-optimized", "-fcallgraph-info"] {
        let [plain, ours] = both(&scratch, &format!("gcc {flags} -c @library.c -o %%/sub.o"));
        assert_eq!(plain, ours, "{flags}");
        assert_eq!(plain.len(), 2, "{plain:?}");
    }
}

#[test]
fn dependencies_name_the_output_that_was_asked_for() {
    let scratch = Scratch::new();
    for compiler in compilers() {
        for flags in [
            "-MD",
            "-MMD -MF %%/other.d",
            "-MD -MF%%/other.d",
            "-Wp,-MD,%%/other.d",
            "-MD -MT name",
            "-MMD -MF %%/other.d -MQ name",
        ] {
            for what in ["-c @library.c -o %%/sub.o", "-S @library.c -o %%/sub.s"] {
                let [plain, ours] = both(&scratch, &format!("{compiler} {flags} {what}"));
                assert_eq!(plain, ours, "{compiler} {flags} {what}");
                assert_eq!(plain.len(), 2, "{plain:?}");
            }
        }
        let what = "-MD @uses-library.c @library.c -o %%/app";
        let [plain, ours] = both(&scratch, &format!("{compiler} {what}"));
        assert_eq!(plain, ours, "{compiler} {what}");
    }
}

/// The counts of both kinds, of one run of one program.
#[test]
fn gcov_finds_its_files_and_counts_what_we_count() {
    let scratch = Scratch::new();
    scratch.build("gcc -O0 --coverage -c @control.c -o %/sub.o");
    scratch.build("gcc -O0 --coverage %/sub.o -o %/app");
    assert!(scratch.run(&["app"], "x.mipraw").status.success());
    let out = Command::new("gcov")
        .args(["--json-format", "--stdout"])
        .arg(scratch.path("sub.gcda"))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let ours = counts(&scratch.profile("app", "x.mipraw"));
    let mut compared = 0;
    for part in text.split("\"execution_count\": ").skip(1) {
        let (count, rest) = part.split_once([',', '}']).unwrap();
        let Some((_, rest)) = rest.split_once("\"demangled_name\": \"") else {
            continue;
        };
        let (name, _) = rest.split_once('"').unwrap();
        // gcov takes each round of an interpreter with computed goto for a call.
        if name == "computed" {
            continue;
        }
        if let Some(found) = ours.get(name) {
            assert_eq!(*found, count.trim().parse::<u64>().unwrap(), "{name}");
            compared += 1;
        }
    }
    assert!(compared > 8, "{compared}: {text}");
}

#[test]
fn split_debug_information_is_where_the_program_says() {
    let scratch = Scratch::new();
    if !have("readelf", "names of split debug information") {
        return;
    }
    for compiler in compilers() {
        scratch.build(&format!(
            "{compiler} -g -gsplit-dwarf -c @library.c -o %/sub.o"
        ));
        let object = scratch.path("sub.o");
        let text = tool("readelf", &["-p.debug_str".as_ref(), object.as_ref()])
            + &tool("readelf", &["-wi".as_ref(), object.as_ref()]);
        assert!(text.contains("sub.dwo"), "{compiler}: {text}");
        let inside = tool(
            "readelf",
            &["-SW".as_ref(), scratch.path("sub.dwo").as_ref()],
        );
        assert!(inside.contains(".debug_info.dwo"), "{compiler}: {inside}");
    }
}

#[test]
fn a_program_in_intel_syntax_is_linked_all_the_same() {
    let scratch = Scratch::new();
    for compiler in compilers() {
        for flags in ["-masm=intel", "-Xassembler --noexecstack -masm=intel"] {
            let done = scratch.build(&format!(
                "{compiler} {flags} @uses-library.c @library.c -o %/app"
            ));
            assert_eq!(done.report.functions, 0, "{:?}", done.notes);
            assert_eq!(scratch.run(&["app"], "x.mipraw").stdout, b"370\n");
        }
    }
}

#[test]
fn a_program_of_the_kernels_code_model_is_linked() {
    let scratch = Scratch::new();
    for compiler in compilers() {
        scratch.build(&format!(
            "{compiler} -O1 -mcmodel=kernel -mno-red-zone -fno-pie -no-pie @uses-library.c @library.c -o %/app"
        ));
        assert_eq!(scratch.run(&["app"], "x.mipraw").stdout, b"370\n");
        let found = counts(&scratch.profile("app", "x.mipraw"));
        assert_eq!(found["from_library"], 10);
    }
}
