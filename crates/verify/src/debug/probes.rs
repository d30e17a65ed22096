//! Static probes (`.note.stapsdt`, owner `stapsdt`, type 3): tracers put breakpoints where the notes say.
//!
//! | description | |
//! |---|---|
//! | u64 | address of an instruction that does nothing |
//! | u64 | address that the section `.stapsdt.base` had when the program was linked; others are off by the difference |
//! | u64, strings | semaphore, provider, name, arguments |
//!
//! A probe must be where its instruction is now; of a moved function whose copy has no such instruction, where it was.
//! Everything else of the section must not change.

use super::map::CodeMap;
use crate::addr::InputAddr;
use crate::context::{Context, Findings};
use crate::files::bytes::Reader;
use crate::files::elf::{Elf, SHT_NOTE, Section};
use crate::report::{Check, Failure};

const SECTION: &[u8] = b".note.stapsdt";

fn section<'d>(elf: &Elf<'d>) -> Option<Section<'d>> {
    let found = elf.section(SECTION).copied();
    found.filter(|s| s.kind == SHT_NOTE && s.size > 0)
}

/// Whether a file has probes.
pub(super) fn is_there(elf: &Elf<'_>) -> bool {
    section(elf).is_some()
}

/// A note's address: where in the section it is, its value, and the base.
fn addresses(bytes: &[u8]) -> Option<Vec<(usize, u64, u64)>> {
    let mut out = Vec::new();
    let mut r = Reader::new(bytes);
    let mut at = 0;
    while at < bytes.len() {
        let (name_len, desc_len, kind) = (r.u32()? as usize, r.u32()? as usize, r.u32()?);
        let name = r.take(name_len)?;
        r.take(name_len.wrapping_neg() & 3)?;
        let desc = r.take(desc_len)?;
        let place = at + 12 + name_len.next_multiple_of(4);
        if name == b"stapsdt\0" && kind == 3 {
            let mut fields = Reader::new(desc);
            out.push((place, fields.u64()?, fields.u64()?));
        }
        at = place + desc_len.next_multiple_of(4);
        // The last note's padding may be missing.
        if at < bytes.len() {
            r.take(desc_len.wrapping_neg() & 3)?;
        }
    }
    Some(out)
}

/// Charges probes in functions that were folded into others: control comes to the other's probe in their stead.
pub(crate) fn in_folded(cx: &Context<'_>, found: &mut Findings) {
    let Some(section) = section(cx.input) else {
        return;
    };
    let base = cx.input.section(b".stapsdt.base").map(|s| s.addr);
    for (_, value, linked) in addresses(cx.input.section_data(&section)).unwrap_or_default() {
        let at = InputAddr::new(value.wrapping_add(off(base, linked)));
        let whose = cx.old.owner(at);
        let folded = whose.filter(|id| cx.function(*id).is_some_and(|f| f.folded.is_some()));
        if let Some(id) = folded {
            let text =
                format!("a static probe is at {at:#x}, in a function that was folded into another");
            found
                .functions
                .push((id, Failure::new(Check::Visible, text).at(at, at.kept())));
        }
    }
}

/// What is to be added to the addresses of a note.
fn off(base: Option<u64>, linked: u64) -> u64 {
    match base {
        Some(base) if linked != 0 => base.wrapping_sub(linked),
        _ => 0,
    }
}

/// Compares the probes of two files. Without a map nothing may have changed.
pub(super) fn compare(old: &Elf<'_>, new: &Elf<'_>, map: Option<&CodeMap>) -> Result<(), String> {
    let Some(section_then) = section(old) else {
        return Ok(());
    };
    let name = String::from_utf8_lossy(SECTION);
    let Some(section_now) = section(new) else {
        return Err(format!("{name} is gone"));
    };
    let (before, after) = (
        old.section_data(&section_then),
        new.section_data(&section_now),
    );
    let (Some(map), Some(probes), false) = (map, addresses(before), section_then.is_alloc()) else {
        return if before == after {
            Ok(())
        } else {
            Err(format!("{name} changed, and nothing says why"))
        };
    };
    let base = old.section(b".stapsdt.base").map(|s| s.addr);
    let mut right = before.to_vec();
    for (place, value, linked) in &probes {
        let off = off(base, *linked);
        let was = value.wrapping_add(off);
        let is = map.instruction(was).unwrap_or(was).wrapping_sub(off);
        if let Some(field) = right.get_mut(*place..place + 8) {
            field.copy_from_slice(&is.to_le_bytes());
        }
    }
    if right == after {
        return Ok(());
    }
    let now = addresses(after).unwrap_or_default();
    let should = addresses(&right).unwrap_or_default();
    match should.iter().zip(&now).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!(
            "{name} at {:#x}: a probe is at {:#x}, where {:#x} is right",
            a.0, b.1, a.1
        )),
        None => Err(format!("{name} changed beside the addresses of its probes")),
    }
}
