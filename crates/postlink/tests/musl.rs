//! Programs of musl, another C library: the first segment of a static one ends with the program headers, and
//! what is after it in the file is not loaded. A longer table needs a longer segment, and the checker demands
//! just that.

use std::path::Path;
use std::process::Command;

use postlink_verify::{Options, verify};

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define N __attribute__((noinline, noipa))
struct op { const char *name; long (*f)(long, long); };
static __thread long calls = 3;
N static long add(long a, long b) { calls++; return a + b; }
N static long sub(long a, long b) { return a - b; }
static struct op ops[] = { {"add", add}, {"sub", sub}, {"none", 0} };
N long choose(unsigned k, long x) {
  switch (k) {
  case 0: return x + 1; case 1: return x * 3; case 2: return x ^ 0x55; case 3: return sub(x, 7);
  case 4: return add(x, 4); case 5: return -x; case 6: return x >> 2; default: return 0;
  }
}
static int cmp(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
N static int loaded(struct dl_phdr_info *info, size_t size, void *data) {
  for (int i = 0; i < info->dlpi_phnum; i++) *(int *)data += info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_memsz > 0;
  return 0;
}
int main(int argc, char **argv) {
  int numbers[100], segments = 0;
  long s = 0;
  for (int i = 0; i < 100; i++) numbers[i] = i * 7919 % 101;
  qsort(numbers, 100, sizeof *numbers, cmp);
  for (long i = 0; i < 5000; i++) {
    struct op *o = &ops[i % 3];
    s = (s + choose(i % 9, s + i) + numbers[i % 100]) & 0xffffff;
    if (o->f) s += o->f(s, i);
  }
  dl_iterate_phdr(loaded, &segments);
  printf("%ld %ld %d %d\n", s, calls, numbers[50], segments >= 4);
  return 0;
}
"#;

/// Two more than multiples of four: unwind entries begin at none of them.
const NUMBERS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
unsigned numbers(unsigned start);
__asm__(".pushsection .text\n.globl numbers\n.type numbers,@function\nnumbers:\n.cfi_startproc\nxor %eax,%eax\n"
  ".set number,0x400002\n.rept 1200\nmov $number,%ecx\nxor %edi,%ecx\nadd %ecx,%eax\n.set number,number+0x30\n.endr\n"
  "ret\n.cfi_endproc\n.size numbers,.-numbers\n.popsection\n");
__attribute__((noinline, noipa)) static unsigned choose(unsigned i) {
  if (__builtin_expect(i > 1000, 0)) {
    fprintf(stderr, "%u is too large\n", i);
    for (unsigned k = 0; k < i; k++) fprintf(stderr, "%u ", numbers(k) ^ (k << 3));
    abort();
  }
  return numbers(i) * 3 + i;
}
int main(int argc, char **argv) {
  unsigned long h = 0;
  for (unsigned i = 0; i < 60; i++) h = h * 31 + choose(i * (unsigned)argc);
  printf("%lx\n", h);
  return 0;
}
"#;

/// Runs a program, which must succeed, and gives what it printed.
fn output(program: &Path, dir: &Path) -> Vec<u8> {
    let mut command = Command::new(program);
    command
        .current_dir(dir)
        .env("POSTLINK_PROFILE", dir.join("profile"))
        .env("LLVM_MIP_PROFILE_FILENAME", dir.join("profile.%b.mipraw"));
    done(&mut command).stdout
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The segment that loads the table is no shorter and no longer than the table needs it.
fn wrong_sizes_are_found(input: &[u8], output: &[u8]) {
    const FILE_SIZE: usize = 32;
    let table = number(output, 32) as usize;
    let count = usize::from(u16::from_le_bytes([output[56], output[57]]));
    let old = number(input, table + FILE_SIZE);
    let new = number(output, table + FILE_SIZE);
    assert_eq!(
        old,
        64 + 56 * (old - 64) / 56,
        "the segment ends with the table"
    );
    assert_eq!(new, 64 + 56 * count as u64, "and so does the new one");
    let proved = |file: &[u8]| {
        verify(input, file, &Options::default()).is_ok_and(|report| report.is_proved())
    };
    assert!(proved(output));
    for size in [old, new - 1, new + 1, new + 8, 0x1000] {
        let mut spoilt = output.to_vec();
        for at in [FILE_SIZE, FILE_SIZE + 8] {
            spoilt[table + at..table + at + 8].copy_from_slice(&size.to_le_bytes());
        }
        assert!(!proved(&spoilt), "a segment of {size:#x} bytes");
    }
    // Nothing may be hidden after the old table.
    let mut spoilt = input.to_vec();
    spoilt[old as usize + 8] = 1;
    let report = verify(&spoilt, output, &Options::default());
    assert!(!report.is_ok_and(|report| report.is_proved()));
    // Nor may the program write to it.
    let mut spoilt = output.to_vec();
    spoilt[table + 4] |= 2;
    assert!(!proved(&spoilt), "a table that can be written to");
}

#[test]
fn programs_of_musl_are_instrumented_and_optimised() {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: musl-gcc is not installed (Debian package musl-tools)");
        return;
    }
    for flags in [
        &["-static"][..],
        &["-static", "-O0"],
        &["-static-pie", "-fPIE"],
        &["-static", "-Wl,-z,noseparate-code"],
        &[],
    ] {
        works(SOURCE, flags);
    }
}

/// Numbers in instructions that have the values of addresses in `.eh_frame`, where no entry begins: found in a program
/// of Zig, whose small code and constants are both near the beginning of the address space.
#[test]
fn numbers_like_unwind_addresses_are_not_taken_for_registered_tables() {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: musl-gcc is not installed (Debian package musl-tools)");
        return;
    }
    let flags = ["-static", "-no-pie", "-fno-pie", "-Wl,--eh-frame-hdr"];
    works(NUMBERS, &flags);
}

/// Builds a program, and compares what it prints with all that is made of it.
fn works(source: &str, flags: &[&str]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    let at = |name: &str| dir.join(name);
    std::fs::write(at("app.c"), source).expect("the directory is ours");
    let mut compile = Command::new("musl-gcc");
    compile.current_dir(dir).args(["-O2", "-w", "-Wl,-q"]);
    done(compile.args(flags).args(["-o", "app", "app.c"]));
    let plain = output(&at("app"), dir);
    let postlink = |args: &[&str]| {
        done(Command::new(POSTLINK).current_dir(dir).args(args));
    };
    for mode in [
        "edges",
        "function-coverage",
        "block-coverage",
        "call-graph",
        "call-edges",
    ] {
        postlink(&["instrument", "app", "-o", "counting", "--mode", mode]);
        assert_eq!(output(&at("counting"), dir), plain, "{flags:?} {mode}");
    }
    for preset in ["safe", "fast", "size", "max"] {
        postlink(&[
            "optimize", "app", "-p", "profile", "-o", "fast", "--preset", preset,
        ]);
        postlink(&["verify", "app", "fast"]);
        assert_eq!(output(&at("fast"), dir), plain, "{flags:?} {preset}");
    }
    if flags == ["-static"] {
        let read = |name: &str| std::fs::read(at(name)).expect("it was written");
        wrong_sizes_are_found(&read("app"), &read("fast"));
    }
}
