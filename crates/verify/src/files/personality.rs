//! Which instructions a personality routine may be asked about.
//!
//! C++, C, Objective-C and Rust throw from calls alone. Of an instruction between calls nothing is asked, unless the
//! program was compiled with `-fnon-call-exceptions` (`--non-call-exceptions`). Ada (`__gnat_personality_v0`) and
//! others turn signals into exceptions: there every instruction counts, and one that no call site covers must get none.
//! So that is assumed of every routine but those that are known by name.
//!
//! A routine is found as the run-time finds it: the CIE has its address, or that of a word which holds it. Its name is
//! that of a symbol there, of the word (`DW.ref.NAME`), of the relocation that fills the word, or of the one that fills
//! the slot through which a stub jumps.

use super::bytes::u64_in;
use super::elf::{Elf, SHT_DYNSYM, SHT_SYMTAB, SYM_SIZE};
use super::pointer::Pointer;
use crate::arch::{Arch, FieldKind, Flow};
use crate::files::claim::Range;

/// Part of the name in every mangling.
const RUST: &[u8] = b"rust_eh_personality";

/// Instructions of a stub that are looked at.
const STUB: usize = 4;

/// The routine's name in that of a symbol.
fn plain(name: &[u8]) -> &[u8] {
    let name = name.strip_prefix(b"DW.ref.").unwrap_or(name);
    // A dynamic symbol may have its version with it.
    name.split(|b| *b == b'@').next().unwrap_or(name)
}

fn throws_at_calls_alone(name: &[u8]) -> bool {
    let name = plain(name);
    let compiled: [&[u8]; 3] = [
        b"__gxx_personality_v0",
        b"__gcc_personality_v0",
        b"__gnu_objc_personality_v0",
    ];
    compiled.contains(&name) || name.windows(RUST.len()).any(|w| w == RUST)
}

/// The name of a dynamic symbol, found as the loader finds it.
fn dynamic_name<'d>(elf: &Elf<'d>, index: u64) -> Option<&'d [u8]> {
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    let entry = index.checked_mul(SYM_SIZE as u64)?;
    let symbol = elf.dynamic_value(DT_SYMTAB)?.checked_add(entry)?;
    let name = u64::from(elf.u32_at(symbol)?);
    let text = elf.bytes_from(elf.dynamic_value(DT_STRTAB)?.checked_add(name)?)?;
    text.get(..text.iter().position(|b| *b == 0)?)
}

/// What the name of a personality routine says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// It may be asked about any instruction.
    pub of_all: bool,
    /// It has no name that is known: that it reads the tables of C++ and Ada is assumed (A17).
    pub unnamed: bool,
}

impl Asked {
    /// Of a routine. `relocations`: the tables that the loader goes through.
    pub(crate) fn new<A: Arch>(elf: &Elf<'_>, relocations: &[Range], routine: Pointer) -> Asked {
        let is = |what: &dyn Fn(&[u8]) -> bool| is_called::<A>(elf, relocations, routine, what);
        let of_all = !is(&throws_at_calls_alone);
        let unnamed = of_all && !is(&|name| plain(name) == b"__gnat_personality_v0");
        Asked { of_all, unnamed }
    }
}

/// Whether the name of a routine is one of these.
fn is_called<A: Arch>(
    elf: &Elf<'_>,
    relocations: &[Range],
    routine: Pointer,
    is_one: &dyn Fn(&[u8]) -> bool,
) -> bool {
    let named = |addr: u64| {
        let mut symbols = [SHT_SYMTAB, SHT_DYNSYM]
            .into_iter()
            .flat_map(|kind| elf.symbols(kind));
        addr != 0 && symbols.any(|s| s.value == addr && is_one(s.name))
    };
    let filled = |place: u64| {
        relocations.iter().any(|table| {
            let bytes = elf.bytes(table.start, table.len()).unwrap_or(&[]);
            bytes.chunks_exact(24).any(|entry| {
                let symbol = u64_in(entry, 8).unwrap_or(0) >> 32;
                let by_name = || dynamic_name(elf, symbol).is_some_and(is_one);
                let found = u64_in(entry, 0) == Some(place);
                found
                    && match symbol {
                        0 => u64_in(entry, 16).is_some_and(named),
                        _ => by_name(),
                    }
            })
        })
    };
    if routine.addr == 0 {
        return true; // None.
    }
    if named(routine.addr) {
        return true;
    }
    if routine.indirect {
        return filled(routine.addr) || elf.u64_at(routine.addr).is_some_and(named);
    }
    // A stub that jumps through a slot.
    let mut at = routine.addr;
    for _ in 0..STUB {
        let insn = elf.bytes_from(at).and_then(|b| A::decode(b, at));
        let Some(insn) = insn else { return false };
        if let Some(field) = insn.field.filter(|f| f.kind == FieldKind::Accesses) {
            return filled(field.target);
        }
        if !matches!(insn.flow, Flow::Nothing | Flow::Next) {
            return false;
        }
        at += u64::from(insn.len);
    }
    false
}
