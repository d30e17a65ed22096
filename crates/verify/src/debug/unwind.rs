//! `.debug_frame`: how debuggers unwind where there is no `.eh_frame`.
//!
//! What an entry says of old bytes, the output must say of exactly the new bytes that stand for them, and it
//! goes on saying it of old bodies, up to where other code is in them. Rows of all entries are compared as sets.

use std::collections::BTreeMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, Vendor,
};

use super::Slice;
use super::map::{CodeMap, union};

/// Intervals by what holds there.
type Rows = BTreeMap<String, Vec<Range<u64>>>;

/// Reads the rows of all entries. Says as well whether there are augmentations, for which there is no update.
fn rows(data: &[u8], mut cut: impl FnMut(&Range<u64>) -> u64) -> gimli::Result<(Rows, bool)> {
    let mut section = DebugFrame::new(data, LittleEndian);
    section.set_address_size(8);
    // Its instructions have numbers that no other machine uses here.
    section.set_vendor(Vendor::AArch64);
    let bases = BaseAddresses::default();
    let (mut out, mut augmented) = (Rows::new(), false);
    let mut context = UnwindContext::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next()? {
        let fde = match entry {
            CieOrFde::Cie(cie) => {
                augmented |= cie.augmentation().is_some();
                continue;
            }
            CieOrFde::Fde(fde) => fde.parse(DebugFrame::cie_from_offset)?,
        };
        let whole = fde.initial_address()..fde.initial_address().wrapping_add(fde.len());
        let end = cut(&whole);
        let mut table = fde.rows(&section, &bases, &mut context)?;
        while let Some(row) = table.next_row()? {
            let range = row.start_address()..row.end_address().min(end);
            let expression = |e: &gimli::UnwindExpression<usize>| -> gimli::Result<Vec<u8>> {
                let bytes: gimli::Expression<Slice<'_>> = e.get(&section)?;
                Ok(bytes.0.slice().to_vec())
            };
            let mut text = match row.cfa() {
                CfaRule::Expression(e) => format!("{:x?}", expression(e)?),
                rule => format!("{rule:?}"),
            };
            let mut registers: Vec<_> = row.registers().collect();
            registers.sort_by_key(|r| r.0);
            for (register, rule) in registers {
                let rule = match rule {
                    RegisterRule::Expression(e) => format!("at {:x?}", expression(e)?),
                    RegisterRule::ValExpression(e) => format!("is {:x?}", expression(e)?),
                    // What a CIE does not speak of is as if it said so.
                    rule => format!("{rule:?}"),
                };
                text += &format!(" {}: {rule}", register.0);
            }
            text += &format!(
                " {} {}",
                row.saved_args_size(),
                fde.cie().return_address_register().0
            );
            out.entry(text).or_default().push(range);
        }
    }
    Ok((out, augmented))
}

/// Compares the section.
pub(super) fn compare(old: &[u8], new: &[u8], map: &CodeMap) -> Result<(), String> {
    let same = old == new;
    // Old entries end where other code is.
    let cut = |whole: &Range<u64>| {
        let reused = map.first_reused(whole).filter(|_| map.touches(whole));
        reused.unwrap_or(whole.end)
    };
    let (before, described) = match (rows(old, cut), rows(old, |whole| whole.end)) {
        (Ok((kept, false)), Ok((all, false))) => (kept, all),
        // There is no update for it.
        _ if same => return Ok(()),
        _ => return Err(".debug_frame changed, which cannot be read".to_owned()),
    };
    let (mut found, _) =
        rows(new, |whole| whole.end).map_err(|e| format!(".debug_frame cannot be read: {e}"))?;
    let mut expected = before;
    for (row, ranges) in described {
        let moved = ranges.iter().filter(|r| map.touches(r));
        let new: Vec<Range<u64>> = moved.flat_map(|r| map.image(r)).collect();
        expected.entry(row).or_default().extend(new);
    }
    for side in [&mut expected, &mut found] {
        side.values_mut()
            .for_each(|list| *list = union(std::mem::take(list)));
        side.retain(|_, list| !list.is_empty());
    }
    let differs = |row: &&String| expected.get(*row) != found.get(*row);
    match expected.keys().chain(found.keys()).find(differs) {
        None => Ok(()),
        Some(row) => Err(format!(
            ".debug_frame says {row} of {:x?}, where {:x?} is right",
            found.get(row),
            expected.get(row)
        )),
    }
}
