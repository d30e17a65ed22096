//! drcov, version 2: which basic blocks ran. Lighthouse and other disassemblers' plug-ins read it.
//!
//! Text up to the table of blocks, then 8 bytes for each block that ran:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | address of the block, less the base of its module |
//! | 4 | 2 | its length |
//! | 6 | 2 | number of the module: 0 |
//!
//! How often a block ran has no place in it. A block longer than 65,535 bytes is written as several.
//!
//! Source: DynamoRIO's `drcov` and `drcov2lcov`, module table version 2.

use std::fmt::Write;

use postlink_elf::raw::PT_LOAD;

use crate::{Export, Subject};

/// The file.
pub fn drcov(subject: &Subject<'_, '_>) -> Export {
    let segments = || subject.elf.segments.iter().filter(|s| s.kind == PT_LOAD);
    let base = segments().map(|s| s.addr).min().unwrap_or(0) & !0xfff;
    let end = segments().map(|s| s.addr.saturating_add(s.mem_size)).max();
    let mut table = Vec::new();
    let (mut blocks, mut too_far) = (0, 0);
    let functions = subject.facts.functions.iter();
    let ran = functions.filter_map(|function| function.ran.as_ref());
    for block in ran
        .flat_map(|ran| &ran.blocks)
        .filter(|block| block.count > 0)
    {
        let mut at = block.start;
        while at < block.end {
            let length = (block.end - at).min(u64::from(u16::MAX));
            match u32::try_from(at.wrapping_sub(base)) {
                Ok(offset) => {
                    table.extend(offset.to_le_bytes());
                    table.extend((length as u16).to_le_bytes());
                    table.extend(0u16.to_le_bytes());
                    blocks += 1;
                }
                Err(_) => too_far += 1,
            }
            at += length;
        }
    }
    let mut text = String::from(
        "DRCOV VERSION: 2\nDRCOV FLAVOR: postlink\nModule Table: version 2, count 1\n",
    );
    let path = subject.path.replace(['\n', '\r'], "?");
    let _ = writeln!(
        text,
        "Columns: id, base, end, entry, checksum, timestamp, path\n 0, {base:#018x}, {:#018x}, {:#018x}, 0x00000000, 0x00000000, {path}\nBB Table: {blocks} bbs",
        end.unwrap_or(0),
        subject.elf.entry
    );
    let mut missing = subject.missing();
    if too_far > 0 {
        missing.push(format!(
            "{too_far} blocks are more than 4 GiB from the start of the program, which drcov cannot say"
        ));
    }
    let mut bytes = text.into_bytes();
    bytes.extend(table);
    Export { bytes, missing }
}
