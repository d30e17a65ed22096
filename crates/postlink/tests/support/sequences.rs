//! Programs for AArch64 with sequences that a Cortex-A53 may get wrong at the end of a page (erratum 843419).

use std::fs;

use postlink_elf::elf::Elf;

use super::folder::Folder;

/// Bytes from one sequence to the next.
const PERIOD: usize = 20;
/// `str xzr, [sp, #-16]!`
const STORE: u32 = 0xf81f_0fff;

/// A function that adds up `times` ones, each of which a sequence loads.
fn function((name, times): &(String, u32)) -> String {
    format!(
        ".p2align 4\n.globl {name}\n.type {name}, %function\n{name}:\n.cfi_startproc\n.rept {times}\n \
         adrp x1, place\n str xzr, [sp, #-16]!\n ldr x2, [x1, :lo12:place]\n add sp, sp, #16\n add x0, x0, x2\n.endr\n \
         ret\n.cfi_endproc\n.size {name}, .-{name}\n"
    )
}

/// Builds `app`, stripped, which calls each of some functions once and prints the sum. The linker sees to it that no
/// sequence is at the end of a page.
pub fn build(folder: &Folder, functions: &[(String, u32)]) {
    let mut code = String::from(".data\n.p2align 4\nplace: .quad 1, 0\n.text\n");
    let (mut source, mut calls) = (String::from("#include <stdio.h>\n"), String::new());
    for named in functions {
        code += &function(named);
        source += &format!("long {}(long);\n", named.0);
        calls += &format!(" n = {}(n);\n", named.0);
    }
    code += ".section .note.GNU-stack,\"\",%progbits\n";
    source +=
        &format!("int main(void) {{ long n = 0;\n{calls} printf(\"%ld\\n\", n); return 0; }}\n");
    fs::write(folder.path("code.S"), code).expect("the folder is ours");
    fs::write(folder.path("main.c"), source).expect("the folder is ours");
    // Else the linker makes an `adr` of an `adrp` that reaches.
    let fix = "-Wl,--fix-cortex-a53-843419=adrp";
    let flags = [
        "-O1", "-pie", "-fPIE", fix, "-s", "-o", "app", "main.c", "code.S",
    ];
    folder.run("aarch64-linux-gnu-gcc", &flags);
}

/// Where in a file such sequences are at the end of a page in code.
pub fn at_ends_of_pages(image: &[u8]) -> Vec<usize> {
    let elf = Elf::parse(image).expect("it is ELF");
    let mut found = Vec::new();
    for section in elf.sections.iter().filter(|s| s.is_code()) {
        let code = elf.section_data(section);
        let word = |at: usize| u32::from_le_bytes(code[at..at + 4].try_into().expect("four bytes"));
        for at in (0..code.len().saturating_sub(PERIOD)).step_by(4) {
            let place = section.addr + at as u64;
            if place & 0xff8 == 0xff8
                && word(at) & 0x9f00_001f == 0x9000_0001
                && word(at + 4) == STORE
                && word(at + 8) & 0xffc0_03ff == 0xf940_0022
            {
                found.push(section.offset as usize + at);
            }
        }
    }
    found
}
