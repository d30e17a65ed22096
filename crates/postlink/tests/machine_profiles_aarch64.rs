//! Machine profiles of AArch64 programs, instrumented after linking and run by an emulator.

mod counted;
use counted::{CPP_MAIN, CPP_OTHER, Folder, PROGRAM, compare, have};

fn can(compiler: &str) -> bool {
    have(compiler, "AArch64") && have("qemu-aarch64", "AArch64")
}

#[test]
fn programs_in_cpp_with_exceptions_are_counted_exactly() {
    let files = "-Wl,-q -o p main.cc other.cc";
    let clang = "clang++-19 --target=aarch64-linux-gnu";
    let lld = "-fuse-ld=/usr/bin/ld.lld-19";
    for (command, needs) in [
        (
            format!("aarch64-linux-gnu-g++ -O2 {files}"),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!(
                "aarch64-linux-gnu-g++ -O1 -mbranch-protection=standard -ffunction-sections -Wl,--gc-sections {files}"
            ),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!("aarch64-linux-gnu-g++ -O2 -static {files}"),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!("{clang} -O2 {lld} -ffunction-sections -Wl,--gc-sections {files}"),
            "clang++-19",
        ),
        (format!("{clang} -O2 {lld} -static {files}"), "clang++-19"),
    ] {
        if !can(needs) || command.contains("lld") && !have("/usr/bin/ld.lld-19", &command) {
            continue;
        }
        let folder = Folder::built(&[("main.cc", CPP_MAIN), ("other.cc", CPP_OTHER)], &command);
        for names in compare(&folder, &[], &command) {
            assert!(names.contains("main"), "{command}: {names:?}");
        }
    }
}

#[test]
fn coverage_and_calls_are_those_of_exact_counts() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    for options in [
        "",
        "-no-pie ",
        "-static ",
        "-static-pie ",
        "-mbranch-protection=standard ",
    ] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-Wl,-q -o p p.c");
        let folder = Folder::built(&[("p.c", PROGRAM)], &command);
        for arguments in [&[][..], &["x", "y"]] {
            let compared = compare(&folder, arguments, &command);
            assert!(compared.iter().all(|names| names.len() > 4));
        }
    }
}
