//! The sections of counters and of the map, as text.
//!
//! For each function a piece of `__llvm_mipraw`, which is all that is loaded, and a record of `__llvm_mipmap`
//! ([layout](postlink_mip::map)). Both are in one group, the function's own if it has one, so that a linker
//! keeps or drops them together with the function that refers to its counters. Counters that begin as zero
//! are in a section without contents.
//!
//! The headers come first in each file, in a group of which one remains. Of it are
//!
//! | piece | |
//! |---|---|
//! | raw: space for a header | its label `__llvm_mip_start` is where offsets count from; aligned to a page, so that the counters can be mapped |
//! | map: the header | with the distance to `__llvm_mip_start` |
//! | `__llvm_mip_header` | the header of raw files; the run-time copies it there |
//!
//! The group's name has the profile's types in it, so that files with different ones cannot be linked
//! together: the linker then complains about two definitions of `__llvm_mip_header`.
//!
//! In Mach-O there are no groups. Counters and records are atoms, weak where the function is weak; records
//! have the attribute `live_support`, which makes them live if what they refer to is.

use std::fmt::Write;

use crate::options::Options;
use crate::probes::Plan;
use crate::reader::Function;
use crate::sequences;
use crate::target::{Arch, Format, Target};

/// Writes a directive for bytes.
fn bytes(out: &mut String, bytes: &[u8]) {
    let mut separator = "\t.byte\t";
    for byte in bytes {
        let _ = write!(out, "{separator}{byte:#04x}"); // cannot fail for a string
        separator = ", ";
    }
    out.push('\n');
}

/// A string as `.ascii` has it.
fn ascii(out: &mut String, text: &[u8]) {
    out.push_str("\t.ascii\t\"");
    for &byte in text {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push_str("\"\n");
}

/// A name with something after it, in quotes if it needs them. `None` if it is no text.
fn symbol(name: &[u8], suffix: &str) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let plain = !name.is_empty()
        && !name.as_bytes()[0].is_ascii_digit()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$'));
    Some(if plain {
        format!("{name}{suffix}")
    } else {
        format!("\"{name}{suffix}\"")
    })
}

/// The headers, for the start of a file.
pub fn headers(target: Target, options: &Options) -> String {
    let map = options.map_header(target);
    let raw = options.raw_header(target);
    let address = target.address_directive();
    let mut out = String::new();
    match target.format {
        Format::Elf => {
            let at = type_sign(target);
            let types = u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]);
            let group = format!("__llvm_mip_header_{types:02x},comdat");
            let _ = write!(
                out,
                "\t.section\t__llvm_mipraw,\"awG\",{at}nobits,{group}\n\t.balign\t{page}\n\t.globl\t__llvm_mip_start\n\t.hidden\t__llvm_mip_start\n\
                 __llvm_mip_start:\n\t.zero\t32\n\
                 \t.section\t.rodata.__llvm_mip_header,\"aG\",{at}progbits,{group}\n\t.balign\t4\n\t.globl\t__llvm_mip_header\n\t.hidden\t__llvm_mip_header\n\
                 __llvm_mip_header:\n",
                page = target.page(),
            );
            bytes(&mut out, &raw);
            let _ = write!(
                out,
                "\t.section\t__llvm_mipmap,\"wG\",{at}progbits,{group}\n\t.balign\t{word}\n.Lmip_map:\n",
                word = target.word(),
            );
            bytes(&mut out, &map[..16]);
            let _ = writeln!(out, "\t{address}\t__llvm_mip_start-.Lmip_map");
            bytes(&mut out, &map[16 + target.word() as usize..]);
            out.push_str("\t.text\n");
        }
        Format::MachO => {
            let _ = write!(
                out,
                "\t.section\t__DATA,__llvm_mipraw,regular,no_dead_strip\n\t.p2align\t3\n\
                 \t.globl\t___header$__llvm_mipraw\n\t.weak_definition\t___header$__llvm_mipraw\n\t.private_extern\t___header$__llvm_mipraw\n___header$__llvm_mipraw:\n",
            );
            bytes(&mut out, &raw);
            let _ = write!(
                out,
                "\t.section\t__DATA,__llvm_mipmap,regular,live_support\n\t.p2align\t3\n\
                 \t.globl\t___header$__llvm_mipmap\n\t.weak_definition\t___header$__llvm_mipmap\n\t.private_extern\t___header$__llvm_mipmap\n___header$__llvm_mipmap:\n",
            );
            bytes(&mut out, &map[..16]);
            let _ = writeln!(
                out,
                "\t{address}\t___header$__llvm_mipraw-___header$__llvm_mipmap"
            );
            bytes(&mut out, &map[16 + target.word() as usize..]);
            out.push_str("\t.section\t__TEXT,__text,regular,pure_instructions\n");
        }
    }
    out
}

fn type_sign(target: Target) -> char {
    if target.arch == Arch::Arm { '%' } else { '@' }
}

/// Counters and record of a function. `comdat` is the group of its section; `infers` whether blocks that
/// follow from others are listed.
pub fn function(
    target: Target,
    options: &Options,
    number: usize,
    function: &Function<'_>,
    comdat: Option<&[u8]>,
    plan: &Plan,
) -> String {
    let mut out = String::new();
    let size = options.entry_size() + plan.counters.len();
    let align = if options.entry_size() == 8 { 4 } else { 1 };
    let counter = sequences::counter(target, number);
    let address = target.address_directive();
    let word = target.word();
    let fill = if options.zero_filled(target) { 0 } else { 0xFF };
    let local = target.local_prefix();
    match target.format {
        Format::Elf => {
            let at = type_sign(target);
            let group = match comdat.and_then(|group| std::str::from_utf8(group).ok()) {
                Some(group) => format!("{group},comdat"),
                None => symbol(function.name, "$MIP").unwrap_or_else(|| format!("mip{number}$MIP")),
            };
            let _ = writeln!(out, "\t.section\t__llvm_mipraw,\"awG\",{at}nobits,{group}");
            if align > 1 {
                let _ = writeln!(out, "\t.balign\t{align}");
            }
            if let Some(symbol) = symbol(function.name, "$RAW") {
                let _ = writeln!(out, "{symbol}:");
            }
            let _ = write!(
                out,
                "{counter}:\n\t.zero\t{size}\n\t.section\t__llvm_mipmap,\"wG\",{at}progbits,{group}\n\t.balign\t{word}\n"
            );
            if let Some(symbol) = symbol(function.name, "$MAP") {
                let _ = writeln!(out, "{symbol}:");
            }
            let _ = write!(
                out,
                ".Lmip_m{number}:\n\t{address}\t{counter}-.Lmip_m{number}\n\t{address}\t.Lmip_f{number}-.Lmip_m{number}\n"
            );
        }
        Format::MachO => {
            let name = symbol(function.name, "").unwrap_or_default();
            let weak = |out: &mut String, label: &str| {
                if function.weak {
                    let _ = write!(
                        out,
                        "\t.globl\t{label}\n\t.weak_definition\t{label}\n\t.private_extern\t{label}\n"
                    );
                }
                let _ = writeln!(out, "{label}:");
            };
            out.push_str("\t.section\t__DATA,__llvm_mipraw,regular,no_dead_strip\n");
            if align > 1 {
                out.push_str("\t.p2align\t2\n");
            }
            let raw = symbol(function.name, "$RAW").unwrap_or_default();
            let map = symbol(function.name, "$MAP").unwrap_or_default();
            weak(&mut out, &raw);
            let _ = writeln!(out, "{counter}:\n\t.fill\t{size}, 1, {fill:#x}");
            out.push_str("\t.section\t__DATA,__llvm_mipmap,regular,live_support\n\t.p2align\t3\n");
            weak(&mut out, &map);
            let _ = write!(out, "\t{address}\t{raw}-{map}\n\t{address}\t{name}-{map}\n");
        }
    }
    let distance = |out: &mut String, index: usize, label: &str| match target.format {
        Format::Elf => {
            let _ = writeln!(out, "\t.long\t{label}-.Lmip_f{number}");
        }
        // An absolute symbol keeps the assembler from making relocations of it.
        Format::MachO => {
            let _ = write!(
                out,
                ".set Lmip_d{number}_{index}, {label}-Lmip_f{number}\n\t.long\tLmip_d{number}_{index}\n"
            );
        }
    };
    distance(&mut out, 0, &format!("{local}mip_e{number}"));
    let _ = write!(
        out,
        "\t.long\t{:#x}\n\t.long\t{}\n",
        plan.signature,
        plan.counters.len()
    );
    for &block in &plan.counters {
        distance(
            &mut out,
            block + 1,
            &format!("{local}mip_b{number}_{block}"),
        );
    }
    let _ = writeln!(out, "\t.long\t{}", function.name.len());
    ascii(&mut out, function.name);
    if options.infers() {
        let balign = match target.format {
            Format::Elf => "\t.balign\t4\n",
            Format::MachO => "\t.p2align\t2\n",
        };
        let _ = writeln!(out, "{balign}\t.long\t{}", plan.inferred.len());
        for (block, from) in &plan.inferred {
            match block {
                0 => out.push_str("\t.long\t0\n"),
                _ => distance(
                    &mut out,
                    block + 1,
                    &format!("{local}mip_b{number}_{block}"),
                ),
            }
            let _ = writeln!(out, "\t.long\t{}", from.len());
            for counter in from {
                let _ = writeln!(out, "\t.long\t{counter}");
            }
        }
    }
    out
}
