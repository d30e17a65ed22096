//! The instructions that are put in.
//!
//! # Entries
//!
//! At a function's entry no flag holds anything, and the registers that calls through linker stubs may change
//! are free: x16 and x17 on AArch64. On x86-64 coverage needs no register. What follows are sizes in bytes; a
//! counter is in memory that starts as zero (z), or as all ones (o).
//!
//! | | coverage | | call graph | |
//! |---|---|---|---|---|
//! | x86-64 | `movb $1, C(%rip)` (z) | 7 | `subl $1, C(%rip); jnc 1f; call first; 1:` (z) | 14 |
//! | AArch64 | `adrp x16; strb wzr` (o) | 8 | `adrp; ldr; subs; str; b.hs 1f; add; mov x17, x30; bl first; 1:` (z) | 32 |
//! | Arm, Thumb | `push; ldr; add; mov; strb; pop; b`, literal (o) | 20–32 | the same with `ldr; subs; str; bhs; push; bl first; pop` (z) | 34–60 |
//!
//! Call counts that begin as zero count *down*, since only then the flags tell the first call from all
//! others: it borrows. That leaves one instruction that writes memory, one branch and no register on the way
//! of each call. The first call goes to a helper in the run-time that gives the function its place in the
//! order. On x86-64 the helper finds the counter by reading the `subl` before its return address (and does
//! nothing if there is none), so nothing needs to be loaded for it.
//!
//! Where counters begin as all ones (Mach-O), they count up and the first call wraps to zero: `incl; jne`.
//!
//! # Sampled return addresses
//!
//! Another countdown, one for all functions; when it borrows, a helper notes callers and callees and draws the
//! next distance.
//!
//! # Blocks
//!
//! A store to a byte, which changes no flag. On AArch64 it needs a register for the address, and another for
//! the value if zero will not do. On Arm it is that of entries, 24 to 36 bytes; in Thumb code the value comes
//! from memory too, since the short `movs` changes flags.

use crate::options::{Mode, Options};
use crate::target::{Arch, Format, Target};

/// Registers that a block's store may change, on AArch64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scratch {
    /// These two are free.
    Free(u8, u8),
    /// None is known to be: save two on the stack.
    Save,
}

/// What goes to the entry of function number `number`.
pub fn entry(target: Target, options: &Options, number: usize, thumb: bool) -> String {
    let local = target.local_prefix();
    let counter = counter(target, number);
    let zero_filled = options.zero_filled(target);
    let samples = options.buffer > 0;
    match (target.arch, options.mode) {
        (Arch::X86_64, Mode::FunctionCoverage) => {
            format!("\tmovb\t${}, {counter}(%rip)\n", u8::from(zero_filled))
        }
        (Arch::X86_64, Mode::CallGraph) => {
            let global = global_prefix(target);
            let (count, taken) = if zero_filled {
                ("subl\t$1, ", "jnc")
            } else {
                ("incl\t", "jne")
            };
            let mut text = format!(
                "\t{count}{counter}(%rip)\n\t{taken}\t{local}mip_c{number}\n\tcall\t{global}__llvm_mip_first\n{local}mip_c{number}:\n"
            );
            if samples {
                text.push_str(&format!(
                    "\tsubl\t$1, {global}__llvm_mip_countdown(%rip)\n\tjnc\t{local}mip_s{number}\n\tcall\t{global}__llvm_mip_sample\n{local}mip_s{number}:\n"
                ));
            }
            text
        }
        (Arch::AArch64, Mode::FunctionCoverage) => {
            let (page, low) = aarch64_parts(target, &counter);
            format!("\tadrp\tx16, {page}\n\tstrb\twzr, [x16, {low}]\n")
        }
        (Arch::AArch64, Mode::CallGraph) => {
            let global = global_prefix(target);
            let (page, low) = aarch64_parts(target, &counter);
            let (count, taken) = if zero_filled {
                ("subs", "b.hs")
            } else {
                ("adds", "b.ne")
            };
            let mut text = format!(
                "\tadrp\tx16, {page}\n\tldr\tw17, [x16, {low}]\n\t{count}\tw17, w17, #1\n\tstr\tw17, [x16, {low}]\n\t{taken}\t{local}mip_c{number}\n\
                 \tadd\tx16, x16, {low}\n\tmov\tx17, x30\n\tbl\t{global}__llvm_mip_first\n{local}mip_c{number}:\n"
            );
            if samples {
                let (count_page, count_low) =
                    aarch64_parts(target, &format!("{global}__llvm_mip_countdown"));
                text.push_str(&format!(
                    "\tadrp\tx16, {count_page}\n\tldr\tw17, [x16, {count_low}]\n\tsubs\tw17, w17, #1\n\tstr\tw17, [x16, {count_low}]\n\tb.hs\t{local}mip_s{number}\n\
                     \tadrp\tx16, {page}\n\tadd\tx16, x16, {low}\n\tmov\tx17, x30\n\tbl\t{global}__llvm_mip_sample\n{local}mip_s{number}:\n"
                ));
            }
            text
        }
        (Arch::Arm, mode) => arm_entry(mode, number, &counter, thumb, samples),
    }
}

fn arm_entry(mode: Mode, number: usize, counter: &str, thumb: bool, samples: bool) -> String {
    // Reading the program counter gives the instruction's address plus this.
    let ahead = if thumb { 4 } else { 8 };
    let add = if thumb { "r1, pc" } else { "r1, pc, r1" };
    let mut text =
        format!("\tpush\t{{r0, r1}}\n\tldr\tr1, .Lmip_l{number}\n.Lmip_p{number}:\n\tadd\t{add}\n");
    match mode {
        Mode::FunctionCoverage => {
            let mov = if thumb { "movs" } else { "mov" };
            text.push_str(&format!("\t{mov}\tr0, #0\n\tstrb\tr0, [r1]\n"));
        }
        Mode::CallGraph => {
            text.push_str(&format!(
                "\tldr\tr0, [r1]\n\tsubs\tr0, r0, #1\n\tstr\tr0, [r1]\n\tbcs\t.Lmip_c{number}\n\
                 \tpush\t{{r2, lr}}\n\tbl\t__llvm_mip_first\n\tpop\t{{r2, lr}}\n.Lmip_c{number}:\n"
            ));
            if samples {
                text.push_str("\tpush\t{r2, lr}\n\tbl\t__llvm_mip_sample\n\tpop\t{r2, lr}\n");
            }
        }
    }
    text.push_str(&format!(
        "\tpop\t{{r0, r1}}\n\tb\t.Lmip_o{number}\n\t.balign\t4\n.Lmip_l{number}:\n\t.long\t{counter}-(.Lmip_p{number}+{ahead})\n.Lmip_o{number}:\n"
    ));
    text
}

/// Most bytes of a block's store on Arm.
pub const ARM_BLOCK: usize = 36;

/// What goes to the start of a block whose byte is at `offset` after the function's counters.
pub fn block(
    target: Target,
    options: &Options,
    number: usize,
    offset: usize,
    scratch: Scratch,
    thumb: bool,
) -> String {
    let counter = format!("{}+{offset}", counter(target, number));
    let zero_filled = options.zero_filled(target);
    match target.arch {
        Arch::X86_64 => format!("\tmovb\t${}, {counter}(%rip)\n", u8::from(zero_filled)),
        Arch::AArch64 => {
            let (page, low) = aarch64_parts(target, &counter);
            let (address, value, save, restore) = match scratch {
                Scratch::Free(address, value) => (address, value, "", ""),
                Scratch::Save => (
                    16,
                    17,
                    "\tstp\tx16, x17, [sp, #-16]!\n",
                    "\tldp\tx16, x17, [sp], #16\n",
                ),
            };
            let (set, value) = if zero_filled {
                (format!("\tmov\tw{value}, #1\n"), format!("w{value}"))
            } else {
                (String::new(), "wzr".to_owned())
            };
            format!(
                "{save}\tadrp\tx{address}, {page}\n{set}\tstrb\t{value}, [x{address}, {low}]\n{restore}"
            )
        }
        Arch::Arm => {
            let this = format!("{number}_{offset}");
            let value = u8::from(zero_filled);
            let (ahead, add, load, constant) = if thumb {
                let constant = format!("\t.long\t{value}\n");
                (4, "r1, pc", format!("ldr\tr0, .Lmip_v{this}"), constant)
            } else {
                (8, "r1, pc, r1", format!("mov\tr0, #{value}"), String::new())
            };
            format!(
                "\tpush\t{{r0, r1}}\n\tldr\tr1, .Lmip_t{this}\n.Lmip_q{this}:\n\tadd\t{add}\n\t{load}\n\tstrb\tr0, [r1]\n\tpop\t{{r0, r1}}\n\
                 \tb\t.Lmip_z{this}\n\t.balign\t4\n.Lmip_t{this}:\n\t.long\t{counter}-(.Lmip_q{this}+{ahead})\n.Lmip_v{this}:\n{constant}.Lmip_z{this}:\n"
            )
        }
    }
}

/// The label of a function's counters.
pub fn counter(target: Target, number: usize) -> String {
    match target.format {
        Format::Elf => format!(".Lmip_r{number}"),
        // Relocations between sections go by symbols there.
        Format::MachO => format!("l_mip_r{number}"),
    }
}

fn global_prefix(target: Target) -> &'static str {
    match target.format {
        Format::Elf => "",
        Format::MachO => "_",
    }
}

/// The page and the rest of an address.
fn aarch64_parts(target: Target, symbol: &str) -> (String, String) {
    match target.format {
        Format::Elf => (symbol.to_owned(), format!(":lo12:{symbol}")),
        Format::MachO => (format!("{symbol}@PAGE"), format!("{symbol}@PAGEOFF")),
    }
}
