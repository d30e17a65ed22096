//! How the start-up routine comes to run before the program.

use postlink_elf::elf::Elf;
use postlink_elf::write::Writer;
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::RuntimeEntry;

use crate::discover::is_program;
use crate::error::Error;

/// Where the start-up routine is hooked in.
pub enum Hook {
    /// The ELF entry point.
    Entry(u64),
    /// DT_INIT, with the old initialiser.
    Init(u64),
    /// The first slot of DT_INIT_ARRAY: (slot, old initialiser).
    InitArray(InputAddr, u64),
    /// A new DT_INIT in an unused entry of the dynamic section, at this address.
    NewInit(InputAddr),
}

pub fn hook(elf: &Elf<'_>) -> Result<Hook, Error> {
    use postlink_elf::raw::{DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ, DT_RELACOUNT, DT_SYMENT};
    if is_program(elf) {
        return Ok(Hook::Entry(elf.entry));
    }
    if let Some(init) = elf.dynamic_value(DT_INIT) {
        return Ok(Hook::Init(init));
    }
    if let (Some(array), Some(size)) = (
        elf.dynamic_value(DT_INIT_ARRAY),
        elf.dynamic_value(DT_INIT_ARRAYSZ),
    ) && size >= 8
        && let Some(d) = elf
            .dyn_relocs()?
            .iter()
            .find(|d| d.addr == array && d.symbol == 0)
    {
        return Ok(Hook::InitArray(
            InputAddr::new(d.addend_at.unwrap_or(array)),
            d.addend as u64,
        ));
    }
    // Linkers leave a few empty entries after the last; the loader stops at the first.
    let end = elf.section(".dynamic").map_or(0, |(_, s)| s.end());
    match elf.dynamic.last() {
        Some((_, _, value_at)) if value_at + 8 + 32 <= end => Ok(Hook::NewInit(InputAddr::new(value_at + 8))),
        // Loaders do without the number of RELATIVE relocations, a hint, and without the size of a symbol,
        // which is fixed.
        _ if elf.dynamic.iter().any(|d| matches!(d.0, DT_RELACOUNT | DT_SYMENT)) => {
            let spare = |tag: i64| elf.dynamic.iter().find(|d| d.0 == tag).map(|d| d.2 - 8);
            let at = spare(DT_RELACOUNT).or_else(|| spare(DT_SYMENT));
            Ok(Hook::NewInit(InputAddr::new(at.unwrap_or(0))))
        }
        _ => Err(Error::Unsupported(
            "the library has no initialiser (DT_INIT, DT_INIT_ARRAY) and no space in its dynamic section for one: link it with -Wl,-init=SYMBOL".into(),
        )),
    }
}

impl Hook {
    pub fn runtime(&self) -> RuntimeEntry {
        match self {
            Hook::Entry(next) => RuntimeEntry::Program { next: *next },
            Hook::Init(next) | Hook::InitArray(_, next) => {
                RuntimeEntry::Library { next: Some(*next) }
            }
            Hook::NewInit(_) => RuntimeEntry::Library { next: None },
        }
    }

    pub fn install(&self, runtime: OutputAddr, writer: &mut Writer<'_>) -> Result<(), Error> {
        match self {
            Hook::Entry(_) => writer.set_entry(runtime),
            Hook::Init(_) => writer.set_dynamic(12, runtime.get())?,
            Hook::InitArray(slot, _) => {
                writer.patch(*slot, &runtime.get().to_le_bytes())?;
            }
            Hook::NewInit(at) => {
                writer.patch(*at, &12u64.to_le_bytes())?;
                writer.patch(*at + 8, &runtime.get().to_le_bytes())?;
            }
        }
        Ok(())
    }
}
