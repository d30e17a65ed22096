//! Contributions of list sections of DWARF 5: headers that readers of single lists do not look at.
//!
//! Contributions follow each other without gaps, as before; each may have become longer, and new ones may
//! follow at the end. Offsets in their tables are in them.

/// A contribution's header.
struct Header {
    /// Everything between the length and the number of offsets.
    fixed: [u8; 4],
    /// Number of offsets.
    count: u64,
    wide: bool,
}

/// Compares the contributions of a section.
pub(super) fn compare(name: &str, old: &[u8], new: &[u8]) -> Result<(), String> {
    let Ok(old) = read(old) else {
        return Ok(()); // nothing is known of the input's
    };
    let new = read(new).map_err(|at| format!("{name}: what is at {at:#x} is no contribution"))?;
    if new.len() < old.len() {
        return Err(format!(
            "{name} has {} contributions and had {}",
            new.len(),
            old.len()
        ));
    }
    for (i, header) in new.iter().enumerate() {
        let before = old.get(i);
        let grown = before.is_none_or(|b| b.count <= header.count && b.wide == header.wide);
        let fixed = before.map_or([5, 0, 8, 0], |b| b.fixed);
        if !grown || header.fixed != fixed {
            return Err(format!("{name}: the header of contribution {i} changed"));
        }
    }
    Ok(())
}

/// All contributions, or the place that is none.
fn read(section: &[u8]) -> Result<Vec<Header>, usize> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < section.len() {
        let (header, end) = one(section, at).ok_or(at)?;
        out.push(header);
        at = end;
    }
    Ok(out)
}

fn one(section: &[u8], at: usize) -> Option<(Header, usize)> {
    let word = |at: usize| -> Option<u64> {
        let bytes: [u8; 4] = section.get(at..)?.get(..4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes).into())
    };
    let wide = word(at)? == 0xffff_ffff;
    let (len, start) = if wide {
        (word(at + 4)? | word(at + 8)? << 32, at + 12)
    } else {
        (word(at)?, at + 4)
    };
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    let fixed: [u8; 4] = section.get(start..)?.get(..4)?.try_into().ok()?;
    let count = word(start + 4)?;
    let base = start + 8;
    let size = if wide { 8 } else { 4 };
    let lists = count.checked_mul(size)?.checked_add(base as u64)?;
    if end > section.len() || lists > end as u64 {
        return None;
    }
    for slot in 0..count {
        let place = base + (slot * size) as usize;
        let offset = if wide {
            word(place)? | word(place + 4)? << 32
        } else {
            word(place)?
        };
        if offset < count * size || offset >= (end - base) as u64 {
            return None;
        }
    }
    Some((Header { fixed, count, wide }, end))
}
