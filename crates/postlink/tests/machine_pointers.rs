//! Counters at entries and pointers: a function has one address, wherever it is formed.

mod counted;
use counted::{Folder, compare};

/// No padding is in front of `check` and `both`, which are exported: a jump is put at their entries, over the
/// instruction that forms an address.
const FORMED: &str = r#"
#include <stdio.h>
#ifdef __PIE__
#define FORM "lea impl(%rip), %rax\n"
#define KEEP FORM "mov %rax, kept(%rip)\n"
#else
#define FORM "mov $impl, %eax\n"
#define KEEP "movq $impl, kept(%rip)\n"
#endif
#define BEGIN(f) ".globl " #f "\n.type " #f ",@function\n" #f ": .cfi_startproc\n"
#define END(f) ".cfi_endproc\n.size " #f ",.-" #f "\n"
__asm__(".text\n.p2align 4\n" BEGIN(before) "mov $5, %eax\nret\n" END(before)
        BEGIN(check) FORM "cmp %rax, %rdi\nsete %al\nmovzbl %al, %eax\nret\n" END(check)
        BEGIN(calling) "sub $8, %rsp\ncall impl\nadd $8, %rsp\nret\n" END(calling)
        BEGIN(both) KEEP "mov kept(%rip), %rax\nret\n" END(both) ".p2align 4\n");
__attribute__((noinline, visibility("hidden"))) int impl(int x) { return printf("") + x + 1; }
int check(int (*)(int)), calling(int);
int (*both(void))(int);
int (*kept)(int);
int (*volatile table[2])(int) = {impl, impl};
int main(void) {
  int n = 0;
  for (int i = 0; i < 5; i++) n += table[i & 1](i) + impl(i) + calling(i);
  printf("%d %d %d\n", check(table[0]), both() == table[1], n);
  return 0;
}
"#;

#[test]
fn pointers_formed_under_an_entry_jump_are_those_of_all_others() {
    for options in ["-fPIE -pie", "-fno-pie -no-pie"] {
        let command = format!("gcc -O1 {options} -rdynamic -Wl,-q -o p p.c");
        let folder = Folder::built(&[("p.c", FORMED)], &command);
        for names in compare(&folder, &[], &command) {
            assert!(
                names.contains("impl") && names.contains("both"),
                "{names:?}"
            );
        }
    }
}

#[test]
fn a_pointer_to_a_function_that_leads_elsewhere_than_all_others_is_found() {
    let folder = Folder::built(
        &[("p.c", FORMED)],
        "gcc -O1 -fPIE -pie -rdynamic -Wl,-q -o p p.c",
    );
    let input = std::fs::read(folder.path("p")).unwrap();
    folder.postlink(&[
        "instrument",
        "--mode",
        "function-coverage",
        "p",
        "-o",
        "p.inst",
    ]);
    let mut output = std::fs::read(folder.path("p.inst")).unwrap();
    let proved = |output: &[u8]| {
        let options = postlink_verify::Options::default();
        postlink_verify::verify(&input, output, &options)
            .unwrap()
            .is_proved()
    };
    assert!(proved(&output));
    // In stubs: lea rax,[rip+…]
    let elf = postlink_elf::elf::Elf::parse(&input).unwrap();
    let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
    let start = symbols.iter().find(|s| s.name == b"impl").unwrap().value;
    let new = output.clone();
    let new = postlink_elf::elf::Elf::parse(&new).unwrap();
    // In front of it, or in a stub.
    let leads = |to: u64| {
        let mut stubs = new
            .sections
            .iter()
            .filter(|s| s.name.starts_with(".text.entries"));
        (1..16).contains(&start.wrapping_sub(to))
            || stubs.any(|s| (s.addr..s.addr + s.size).contains(&to))
    };
    let mut changed = 0;
    for section in new
        .sections
        .iter()
        .filter(|s| s.name.starts_with(".text.entries"))
    {
        for at in 0..section.size.saturating_sub(7) {
            let place = (section.offset + at) as usize;
            let word = i32::from_le_bytes(output[place + 3..place + 7].try_into().unwrap());
            let next = section.addr + at + 7;
            let target = next.wrapping_add_signed(word.into());
            if output[place..place + 3] != [0x48, 0x8d, 0x05] || !leads(target) {
                continue;
            }
            let before = output[place + 3..place + 7].to_vec();
            let old = (start.wrapping_sub(next) as i32).to_le_bytes();
            assert_ne!(before, old, "it had been taken along");
            output[place + 3..place + 7].copy_from_slice(&old);
            assert!(!proved(&output), "{at:#x}");
            output[place + 3..place + 7].copy_from_slice(&before);
            changed += 1;
        }
    }
    assert_eq!(changed, 2);
}

/// A function of one byte with another one after it, found by its name.
const NAMED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#define BEGIN(f) ".globl " #f "\n.type " #f ",@function\n" #f ": .cfi_startproc\n"
#define END(f) ".cfi_endproc\n.size " #f ",.-" #f "\n"
__asm__(".text\n.p2align 4\n" BEGIN(before) "mov $5, %eax\nret\n" END(before)
        BEGIN(tiny) "ret\n" END(tiny)
        BEGIN(behind) "mov $6, %eax\nret\n" END(behind) ".p2align 4\n");
void tiny(void);
int main(void) {
  void (*named)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "tiny");
  tiny(); named(); named();
  printf("%d\n", named == tiny);
  return 0;
}
"#;

#[test]
fn who_asks_for_a_function_by_its_name_gets_the_stub_that_all_others_go_to() {
    for options in ["-fPIE -pie", "-fno-pie -no-pie"] {
        let command = format!("gcc -O1 {options} -rdynamic -Wl,-q -o p p.c -ldl");
        let folder = Folder::built(&[("p.c", NAMED)], &command);
        for mode in ["function-coverage", "call-graph", "call-edges"] {
            let profile = folder.profile(mode, &[&[]]);
            let tiny = profile.functions.iter().find(|f| f.name == b"tiny");
            let tiny = tiny.unwrap_or_else(|| panic!("{mode} {options}: it does not count"));
            assert!(tiny.is_covered());
            if mode != "function-coverage" {
                assert_eq!(tiny.call_count, 3, "{mode} {options}");
            }
        }
    }
}

/// Functions that read flags which their callers have made, as hand-written code does.
const FLAGS: &str = r#"
#include <stdio.h>
#define BEGIN(f) ".globl " #f "\n.type " #f ",@function\n" #f ": .cfi_startproc\n"
#define END(f) ".cfi_endproc\n.size " #f ",.-" #f "\n"
__asm__(".text\n.p2align 4\n" BEGIN(before) "mov $5, %eax\nret\n" END(before)
        BEGIN(carry) "adc $0, %edi\nlea 1(%rdi), %eax\nret\n" END(carry)
        BEGIN(zero) "setz %al\nmovzbl %al, %eax\nret\n" END(zero) ".p2align 4\n");
int carry(int), zero(void);
__attribute__((noinline)) static int test(unsigned a, unsigned b) {
  int x = a, y;
  __asm__ volatile("sub $136, %%rsp\ncmp %2, %1\ncall carry\nmov %%eax, %0\ncmp %2, %1\ncall zero\nadd $136, %%rsp\n"
                   : "=&b"(x), "+r"(a), "+r"(b), "=a"(y) : : "edi", "cc", "memory");
  return x * 2 + y;
}
int main(void) {
  for (unsigned i = 0; i < 4; i++) printf("%d ", test(i, 2) - test(2, i) + test(i, i));
  puts("");
  return 0;
}
"#;

#[test]
fn a_counter_that_loses_flags_at_an_entry_is_found() {
    use postlink_verify::mutate::{Faults, Kind};
    let command = "gcc -O1 -fPIE -pie -Wl,-q -o p p.c";
    let folder = Folder::built(&[("p.c", FLAGS)], command);
    let input = std::fs::read(folder.path("p")).unwrap();
    for mode in ["call-graph", "call-edges"] {
        folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
        let output = std::fs::read(folder.path("p.inst")).unwrap();
        let options = postlink_verify::Options::default();
        let report = postlink_verify::verify(&input, &output, &options).unwrap();
        // What the others rest on is counted.
        let counted = report.assumptions.iter().find(|a| a.id == "A13");
        assert!(
            counted.is_some_and(|a| a.functions > 0),
            "{mode}: {:?}",
            report.assumptions
        );
        let faults = Faults::new(&input, &output).unwrap();
        let mutants: Vec<_> = (0..8)
            .filter_map(|seed| faults.inject(Kind::EntryFlagsLost, seed))
            .collect();
        assert!(!mutants.is_empty(), "{mode}: no counter saves flags");
        for mutant in mutants {
            let report = postlink_verify::verify(&input, &mutant.image, &options).unwrap();
            assert!(!report.is_proved(), "{mode}: {}", mutant.what);
        }
    }
    compare(&folder, &[], command);
}
