//! How the start-up routine comes to run before the program; and the one that asks for huge pages.

use postlink_elf::elf::Elf;
use postlink_elf::write::{NewKind, NewSection, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{HugePages, Isa, RuntimeEntry};

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
    use postlink_elf::raw::{DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ};
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
    new_init(elf)
}

/// The same, but the initialisers that there are stay what they are: functions that they lead to may have moved.
fn hook_beside(elf: &Elf<'_>) -> Result<Hook, Error> {
    let has_init = elf.dynamic_value(postlink_elf::raw::DT_INIT).is_some();
    if is_program(elf) || has_init {
        hook(elf)
    } else {
        new_init(elf)
    }
}

/// An initialiser where the library has none of the kind that comes first.
fn new_init(elf: &Elf<'_>) -> Result<Hook, Error> {
    use postlink_elf::raw::{DT_RELACOUNT, DT_SYMENT};
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

/// Appends the start-up routine that asks for huge pages for hot code (address and bytes). Gives its address, and
/// where it is to be hooked in once everything else that refers to code is in place.
///
/// # Errors
///
/// Hot code of 4 GiB, or a library in which a start-up routine cannot be hooked.
pub fn ask_for_huge_pages<I: Isa>(
    elf: &Elf<'_>,
    (start, len): (OutputAddr, u64),
    writer: &mut Writer<'_>,
) -> Result<(Hook, OutputAddr), Error> {
    let entry = hook_beside(elf)?;
    let Ok(len) = u32::try_from(len) else {
        return Err(Error::Unsupported(format!(
            "hot code of {len:#x} bytes is too much for one request for huge pages; leave out --hugify"
        )));
    };
    // It is as long wherever it is.
    let mut config = HugePages {
        at: start.get(),
        start: start.get(),
        len,
        entry: RuntimeEntry::Library { next: None },
    };
    let next = match entry.runtime() {
        RuntimeEntry::Program { .. } => RuntimeEntry::Program { next: start.get() },
        RuntimeEntry::Library { next } => RuntimeEntry::Library {
            next: next.map(|_| start.get()),
        },
    };
    config.entry = next;
    let placed = writer.append(NewSection {
        name: ".text.huge".to_owned(),
        kind: NewKind::Code,
        align: 16,
        size: I::huge_pages(&config)?.len() as u64,
    });
    (config.at, config.entry) = (placed.addr.get(), entry.runtime());
    writer
        .contents(placed.id)
        .copy_from_slice(&I::huge_pages(&config)?);
    Ok((entry, placed.addr))
}
