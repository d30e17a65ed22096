//! Virtual tables in sample profiles, by `postlink profgen` and under LLVM's name.

mod support;

use std::fs;
use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use support::done;
use support::folder::Folder;
use support::is_installed;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#include <cstdio>
struct Shape { virtual ~Shape() {} virtual long area(long k) { return k; } };
struct Square : Shape { long area(long k) override { return k * k; } };
struct Circle : Shape { long area(long k) override { return 3 * k * k; } };
__attribute__((noinline)) long area(Shape *s, long k) { return s->area(k); }
int main(int argc, char **) {
  Square s; Circle c; long t = 0;
  for (long i = 0; i < 10 * argc; i++) t += area(i & 1 ? (Shape *)&s : &c, i);
  printf("%ld\n", t);
}
"#;

#[test]
fn virtual_tables_come_from_samples_of_reads() {
    if !is_installed("clang++-22") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("app.cc"), SOURCE).expect("the folder is ours");
    let mut compile = Command::new("clang++-22");
    compile.args(["-O2", "-g", "-no-pie", "-o", "app", "app.cc"]);
    done(compile.current_dir(folder.dir()));
    let data = fs::read(folder.path("app")).expect("it was built");
    let elf = Elf::parse(&data).expect("the compiler's file");
    let symbols = elf.symbols(SymbolTable::Static);
    let value = |name: &[u8]| {
        symbols
            .iter()
            .find(|s| s.name == name)
            .expect("a symbol")
            .value
    };
    let (code, square, circle) = (
        value(b"_Z4areaP5Shapel"),
        value(b"_ZTV6Square"),
        value(b"_ZTV6Circle"),
    );
    let script =
        format!(" {code:x}  {code:#x}/{code:#x}/P/-/-/0  {code:#x}/{code:#x}/P/-/-/0\n").repeat(9);
    fs::write(folder.path("script"), script).expect("the folder is ours");
    let read = |table: u64| {
        format!(
            "1 0x8 [0x60]: PERF_RECORD_SAMPLE(IP, 0x4002): 7/7: {code:#x} period: 9 addr: {:#x}\n",
            table + 16
        )
    };
    let trace = [square, circle, square, square, code].map(read).concat();
    fs::write(folder.path("trace"), trace).expect("the folder is ours");
    std::os::unix::fs::symlink(POSTLINK, folder.path("llvm-profgen")).expect("the folder is ours");
    let as_llvm = |program: &std::path::Path, output: &str| {
        let mut command = Command::new(program);
        command.args([
            "--binary=app",
            "--perfscript=script",
            "--data-access-perftrace=trace",
        ]);
        command.args(["--format=text", &format!("--output={output}")]);
        done(command.current_dir(folder.dir()));
        fs::read_to_string(folder.path(output)).expect("it was made")
    };
    let ours = as_llvm(&folder.path("llvm-profgen"), "ours");
    assert!(
        ours.contains(" vtables _ZTV6Circle:1 _ZTV6Square:3 \n"),
        "{ours}"
    );
    let mut native = Command::new(POSTLINK);
    native.args(["profgen", "app", "-o", "native", "--format", "text"]);
    native.args(["--perfscript", "script", "--data-accesses", "trace"]);
    done(native.current_dir(folder.dir()));
    let native = fs::read_to_string(folder.path("native")).expect("it was made");
    assert_eq!(native, ours);
    if is_installed("llvm-profgen-22") {
        assert_eq!(ours, as_llvm("llvm-profgen-22".as_ref(), "theirs"));
    }
}
