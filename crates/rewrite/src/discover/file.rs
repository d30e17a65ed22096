//! What kind of file the input is.

use postlink_elf::elf::Elf;
pub use postlink_elf::raw::EM_AARCH64;
use postlink_elf::raw::PT_GNU_EH_FRAME;
use postlink_isa::Machine;
use postlink_profile::Identity;

use super::program::Program;
use super::runtimes;
use crate::error::Error;

/// Refuses files that postlink wrote, separate debug files, and machines that it does not know.
pub fn check_input(elf: &Elf<'_>) -> Result<Machine, Error> {
    let machine = Machine::of_elf(elf.machine).ok_or_else(|| {
        Error::Unsupported(format!(
            "machine {} (e_machine) is not supported; x86-64 is 62, AArch64 is 183",
            elf.machine
        ))
    })?;
    if elf.section(".note.postlink").is_some() {
        return Err(Error::Unsupported(
            "this file was written by postlink already: start from the binary that the linker made (it keeps its relocations)".into(),
        ));
    }
    if elf.sections.is_empty() {
        return Err(Error::Unsupported(
            "the file has no section headers: functions cannot be found without them".into(),
        ));
    }
    if let Some(section) = code_that_is_elsewhere(elf) {
        return Err(Error::Unsupported(format!(
            "a separate debug file: its section {section} has a size and an address, but no bytes; give the program or library that it was split from"
        )));
    }
    if let Some(why) = runtimes::refusal(elf) {
        return Err(Error::Unsupported(why));
    }
    Ok(machine)
}

/// Name of a section of code without bytes, if no section of code has any.
fn code_that_is_elsewhere<'d>(elf: &Elf<'d>) -> Option<&'d str> {
    let mut code = elf.sections.iter().filter(|s| s.is_code() && s.size > 0);
    let first = code.clone().next()?;
    code.all(|s| !s.has_contents()).then_some(first.name)
}

/// Refuses files that cannot be rewritten: those in whose unwind table, of which a new one is made, the dynamic
/// loader writes; and some of those for which the linker kept no relocations. Says what to do.
pub fn check_program(program: &Program<'_>) -> Result<(), Error> {
    use postlink_elf::raw::{DT_FLAGS, DT_TEXTREL, ET_EXEC};
    const DF_TEXTREL: u64 = 4;
    let elf = program.elf;
    if let Some((_, table)) = elf.section(".eh_frame")
        && let Some(place) = program.refs.loaded_in(table.addr, table.end())
    {
        return Err(Error::Unsupported(format!(
            "a dynamic relocation at {place:#x} changes the unwind table ({:#x}..{:#x}, .eh_frame) when the program is loaded, and a new table would not be changed: link without -z notext, or compile for position-independent code",
            table.addr,
            table.end()
        )));
    }
    if program.refs.kept {
        return Ok(());
    }
    let refuse = |why: &str| {
        Err(Error::Unsupported(format!(
            "the linker kept no relocations, and {why}"
        )))
    };
    for name in [".gnu.prelink_undo", ".gnu.liblist"] {
        if elf.section(name).is_some() {
            return refuse(&format!(
                "the file was prelinked (it has a section {name}): undo that with prelink -u"
            ));
        }
    }
    let is_loader = |name: &[u8]| name.starts_with(b"ld-linux") || name.starts_with(b"ld-musl");
    if elf.soname().is_some_and(is_loader) {
        return refuse("this is the dynamic loader, which runs before anything could be loaded");
    }
    if elf.dynamic_value(DT_TEXTREL).is_some()
        || elf
            .dynamic_value(DT_FLAGS)
            .is_some_and(|f| f & DF_TEXTREL != 0)
    {
        return refuse("the loader changes code (DT_TEXTREL): link position-independent code");
    }
    if program.eh.fdes.is_empty() {
        if program.pieces.is_empty() {
            return refuse(
                "the file has neither unwind entries nor symbols of functions, so functions cannot be found: compile with -fasynchronous-unwind-tables, or do not strip the file",
            );
        }
        return Ok(());
    }
    if elf.segments.iter().any(|s| s.kind == PT_GNU_EH_FRAME) {
        return Ok(());
    }
    // A new header makes known what is new, if there is somebody who looks for one.
    if elf.etype != ET_EXEC || elf.interpreter().is_some() {
        return refuse(
            "no program header (PT_GNU_EH_FRAME) locates its unwind table: link with -Wl,--eh-frame-hdr or -Wl,-q",
        );
    }
    if program.eh.cies.iter().any(|c| c.personality.is_some()) && !asks_for_headers(elf) {
        return refuse(
            "no program header (PT_GNU_EH_FRAME) locates its unwind table, nor is there code that looks for one, so exceptions would not find what moved: link with -Wl,--eh-frame-hdr or -Wl,-q",
        );
    }
    Ok(())
}

/// Whether unwind entries are found that a new program header (PT_GNU_EH_FRAME) alone tells of, in a program that has
/// none: there is no table that would be asked instead, or who asks that goes on to ask for headers.
pub fn finds_new_header(program: &Program<'_>) -> bool {
    let elf = program.elf;
    let known = elf.segments.iter().any(|s| s.kind == PT_GNU_EH_FRAME);
    !known && (program.eh.fdes.is_empty() || asks_for_headers(elf))
}

/// Whether code of a static program compares with the number of `PT_GNU_EH_FRAME`, as every unwinder does that looks
/// for unwind tables in program headers.
///
/// Start-up code of such a program registers its unwind entries, and they are searched first. They go on to describe
/// the old image, and say nothing of new code: for that program headers are asked.
fn asks_for_headers(elf: &Elf<'_>) -> bool {
    const NUMBER: [u8; 4] = PT_GNU_EH_FRAME.to_le_bytes();
    let mut code = elf.sections.iter().filter(|s| s.is_code());
    code.any(|s| {
        let code = elf.section_data(s);
        if elf.machine != EM_AARCH64 {
            return code.windows(NUMBER.len()).any(|w| w == NUMBER);
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let words: Vec<u32> = code.chunks_exact(4).map(word).collect();
        words.contains(&u32::from_le_bytes(NUMBER))
            || (0..words.len()).any(|i| forms_number(&words[i..words.len().min(i + 8)]))
    })
}

/// Whether the first of some instructions of AArch64 puts one half of the number into a register, and another one the
/// other half.
fn forms_number(insns: &[u32]) -> bool {
    /// `mov` and `movk` of a register of 32 bits, and where they have the half's number and its value.
    const PUT: u32 = 0x5280_0000;
    const KEEP: u32 = 0x7280_0000;
    const HALVES: [u32; 2] = [
        (PT_GNU_EH_FRAME & 0xffff) << 5,
        1 << 21 | (PT_GNU_EH_FRAME >> 16) << 5,
    ];
    let Some((first, rest)) = insns.split_first() else {
        return false;
    };
    let register = first & 31;
    let half = HALVES
        .iter()
        .position(|half| *first == PUT | half | register);
    half.is_some_and(|half| rest.contains(&(KEEP | HALVES[1 - half] | register)))
}

/// Identity of a file: its build-id, or a hash of its contents.
pub fn identity(elf: &Elf<'_>) -> Identity {
    elf.build_id
        .and_then(Identity::from_build_id)
        .unwrap_or_else(|| Identity::of_contents(elf.data))
}

/// Whether a file is started by the kernel (else it is loaded as a library).
pub fn is_program(elf: &Elf<'_>) -> bool {
    use postlink_elf::raw::DT_FLAGS_1;
    const DF_1_PIE: u64 = 0x0800_0000;
    use postlink_elf::raw::DT_SONAME;
    elf.etype == postlink_elf::raw::ET_EXEC
        || elf
            .dynamic_value(DT_FLAGS_1)
            .is_some_and(|f| f & DF_1_PIE != 0)
        || elf.interpreter().is_some() && elf.dynamic_value(DT_SONAME).is_none()
}

/// Whether the program asks for pages in which indirect branches must land at landing pads (the property
/// `BTI` of AArch64).
pub(super) fn is_guarded(elf: &Elf<'_>) -> bool {
    /// `GNU_PROPERTY_AARCH64_FEATURE_1_AND`, and its length.
    const FEATURES: [u8; 8] = [0, 0, 0, 0xc0, 4, 0, 0, 0];
    if elf.machine != EM_AARCH64 {
        return false;
    }
    let Some((_, section)) = elf.section(".note.gnu.property") else {
        return false;
    };
    let bytes = elf.bytes_at(section.addr, section.size).unwrap_or_default();
    let at = bytes.windows(8).position(|w| w == FEATURES);
    at.and_then(|at| bytes.get(at + 8))
        .is_some_and(|features| features & 1 != 0)
}
