//! Maps where they come from: in an object file, in a linked program, taken out of it; and lines of its source.

use std::path::Path;
use std::process::Command;

use postlink_mip::{SourceFrame, Symbolizer, create, report};

/// Two functions, instrumented by hand as the proposal's compiler would.
const SOURCE: &str = r#"
asm(".section __llvm_mipraw,\"aw\",@progbits\n"
    "raw:\n .byte 0xfb,0x4d,0x49,0x50\n .short 8,0x11\n .long 1,0xdeadbeef\n .quad 0\n .long 0,0x20\n"
    "square$RAW: .byte 0xff\n"
    "main$RAW: .byte 0xff\n"
    ".section __llvm_mipmap,\"w\",@progbits\n .balign 8\n"
    "map:\n .byte 0xfb,0x4d,0x49,0x50\n .short 8,0x14\n .long 1,0xdeadbeef\n .quad raw - map\n .long 0,0x20\n"
    ".quad square$RAW - .\n .quad square - . + 8\n .long 6,0,0,6\n .ascii \"square\"\n .balign 8\n"
    ".quad main$RAW - .\n .quad main - . + 8\n .long 9,0,0,4\n .ascii \"main\"\n .balign 8\n"
    ".text\n");
__attribute__((noinline)) int square(int x) { return x * x; }
int main(int argc, char **argv) { (void)argv; return square(argc) - 1; }
"#;

#[test]
fn a_map_is_the_same_in_an_object_a_program_and_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("square.c"), SOURCE).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(dir.path())
            .status()
            .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
        assert!(status.success(), "{program} {arguments:?}");
    };
    run("gcc", &["-g", "-O1", "-c", "square.c"]);
    run("gcc", &["-g", "-Wl,--build-id", "-o", "square", "square.o"]);
    run(
        "objcopy",
        &[
            "--dump-section=__llvm_mipmap=square.mipmap",
            "square",
            "/dev/null",
        ],
    );
    let object = create::open(&path("square.o")).unwrap();
    let program = create::open(&path("square")).unwrap();
    let map = create::open(&path("square.mipmap")).unwrap();
    assert_ne!(program.identity, 0);
    assert_eq!(program.functions, map.functions);
    let facts = |profile: &postlink_mip::Profile| -> Vec<(String, u64, u32)> {
        let functions = profile.functions.iter();
        functions
            .map(|f| (f.display_name().into_owned(), f.raw_offset, f.size))
            .collect()
    };
    assert_eq!(
        facts(&program),
        [("square".to_owned(), 0x20, 6), ("main".to_owned(), 0x21, 9)]
    );
    assert_eq!(facts(&object), facts(&program));

    let symbolizer = Symbolizer::open(&path("square"), None).unwrap();
    let frames = symbolizer.frames(&map.functions[0]);
    let [
        SourceFrame {
            function,
            file,
            line,
        },
    ] = &frames[..]
    else {
        panic!("{frames:?}");
    };
    assert_eq!((function.as_str(), *line), ("square", 11));
    assert!(file.ends_with("/square.c"), "{file}");
    let mut out = Vec::new();
    let options = report::Options {
        filter: &|name| name == b"square",
        symbolizer: Some(&symbolizer),
        color: false,
    };
    report::show(&mut out, &map, options).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        format!("square\n  Source Info: {file}:11\n  Call Count: 0\n\n")
    );
}

#[test]
fn a_program_without_a_map_is_refused() {
    let own = std::env::current_exe().unwrap();
    let error = create::open(&own).unwrap_err().to_string();
    assert!(
        error.contains("there is no section __llvm_mipmap"),
        "{error}"
    );
    let error = create::read(Path::new("x"), b"hello, world").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("x at offset 0x0: the magic number is")
    );
}
