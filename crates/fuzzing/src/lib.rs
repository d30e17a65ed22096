//! Hostile input: generators for it, and what must hold whatever it is.
//!
//! `cargo test` runs every pair for a short time with `arbtest`; the targets in `fuzz/` run the same pairs
//! for as long as one likes with `cargo fuzz`. Purely random bytes get no further than the first check of a
//! parser, so the generators begin with something plausible and damage it.
//!
//! | generator | check |
//! |---|---|
//! | [`damaged`] (from a real program) | [`check_elf`]: read, inspect, instrument, verify |
//! | [`frames`] | [`check_unwind`]: parse, compute rows |
//! | [`raw_profile`] | [`check_raw_profile`]: open, read, write again |
//! | [`bat_section`] | [`check_bat`]: parse, translate, write again |
//! | [`mip::map`] | [`mip::check_map`]: read, write again |
//! | [`mip::profile`] | [`mip::check_profile`]: read, print, order, write again, as YAML too |
//! | [`mip::raw`] | [`mip::check_raw`]: merged or refused, without a trace |
//! | [`assembly::text`] | [`assembly::check`]: instrumented, and what was there is still there |
//! | [`code`] | [`check_code`]: decode, effects, sweep |
//! | [`units::units`] | [`units::check`]: updated by a map, compared |
//! | [`probes::probes`], [`probes::descriptors`] | [`probes::check_probes`], [`probes::check_descriptors`]: decode, look up |
//! | [`probes::script`] | [`probes::check_script`]: read, make a profile |
//! | [`probes::sample_profile`] | [`probes::check_sample_profile`]: read, write, read again |
//! | [`attach::named`] | [`attach::check`]: attached to a program by names and, changed here and there, by blocks |
//! | [`profiles`]: fdata, pre-aggregated, YAML, perf script, perf.data | [`profiles::check_profile`]: read, write, read again, merge |

pub mod assembly;
pub mod attach;
pub mod mip;
pub mod probes;
pub mod profiles;
pub mod units;

use std::path::Path;

use arbitrary::{Result, Unstructured};
use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{Bat, Entry, EntryKind, Translator};
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_elf::unwind::pointer::Bases;
use postlink_elf::unwind::rows;
use postlink_isa::Decode;
use postlink_isa::x86_64::X86_64;
use postlink_profile::{Digest, Identity, Subject, raw};
use postlink_rewrite::{InstrumentOptions, Phases};

/// Numbers at which arithmetic goes wrong, and plain ones.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=7)? {
        0 => 0,
        1 => u64::MAX - u.int_in_range(0..=16)?,
        2 => 1 << u.int_in_range(0..=63)?,
        3 => i64::MAX as u64 - u.int_in_range(0..=1)?,
        4 => u64::from(u32::MAX) + u.int_in_range(0..=2)?,
        5 => u.int_in_range(0..=4096)?,
        _ => u.arbitrary()?,
    })
}

/// A file with a few places overwritten, cut short, or with some of it elsewhere. Headers and tables are hit most.
pub fn damaged(u: &mut Unstructured<'_>, whole: &[u8]) -> Result<Vec<u8>> {
    let mut data = whole.to_vec();
    for _ in 0..u.int_in_range(1..=6)? {
        if data.len() < 128 {
            break;
        }
        let end = data.len() - 8;
        let at = match u.int_in_range(0..=3)? {
            0 => u.int_in_range(0..=63usize)?,
            1 => u.int_in_range(64..=end.min(1024))?,
            2 => end - u.int_in_range(0..=end.min(4096))?,
            _ => u.int_in_range(0..=end)?,
        };
        match u.int_in_range(0..=5)? {
            0 => data[at] ^= 1 << u.int_in_range(0..=7)?,
            1 => data[at] = u.arbitrary()?,
            2 => data[at..at + 4].copy_from_slice(&(number(u)? as u32).to_le_bytes()),
            3 => data[at..at + 8].copy_from_slice(&number(u)?.to_le_bytes()),
            4 => {
                let from = u.int_in_range(0..=end)?;
                data.copy_within(from..from + 8, at);
            }
            _ if u.ratio(1, 4)? => data.truncate(at),
            _ => {}
        }
    }
    Ok(data)
}

/// Whatever a file is, reading, inspecting, instrumenting and checking it ends with an answer or an error.
/// `scratch` is a directory for the output.
pub fn check_elf(data: &[u8], scratch: &Path) {
    let Ok(elf) = Elf::parse(data) else { return };
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        let symbols = elf.symbols(table);
        assert_eq!(symbols.iter().count(), symbols.len());
    }
    for section in &elf.sections {
        assert!(elf.section_data(section).len() as u64 <= section.size);
    }
    let (low, high) = elf.extent();
    assert!(low <= high);
    let _ = (elf.kept_relocs(), elf.dyn_relocs(), EhFrame::parse(&elf));
    let _ = postlink_rewrite::inspect(&elf, &mut Default::default());
    let out = scratch.join("out");
    if postlink_rewrite::instrument(
        &elf,
        &InstrumentOptions::default(),
        &out,
        0o755,
        &mut Phases::default(),
    )
    .is_ok()
    {
        let written = std::fs::read(&out).expect("it was just written");
        if let Err(error) = Elf::parse(&written) {
            panic!("our own output cannot be read: {error}");
        }
        let _ = postlink_verify::verify(data, &written, &postlink_verify::Options::default());
    }
    let _ = postlink_verify::verify(data, data, &postlink_verify::Options::default());
}

/// An `.eh_frame` section: entries whose structure mostly holds, with arbitrary contents.
pub fn frames(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut last_cie = 0;
    for _ in 0..u.int_in_range(1..=8)? {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        if out.len() == 4 || u.ratio(1, 3)? {
            last_cie = start;
            out.extend_from_slice(&0u32.to_le_bytes());
            out.push(if u.ratio(9, 10)? { 1 } else { u.arbitrary()? });
            let augmentations: [&[u8]; 6] =
                [b"zR\0", b"zPLR\0", b"\0", b"zRS\0", b"eh\0", b"zRB\0"];
            out.extend_from_slice(u.choose(&augmentations)?);
            out.extend_from_slice(&[1, 0x78, 16]);
            out.push(u.int_in_range(0..=12)?);
            out.push(*u.choose(&[0x1b, 0x00, 0x03, 0x9b, 0xff, 0x0b])?);
        } else {
            let back = (out.len() - last_cie) as u32;
            out.extend_from_slice(
                &(if u.ratio(9, 10)? {
                    back
                } else {
                    u.arbitrary()?
                })
                .to_le_bytes(),
            );
            out.extend_from_slice(&(number(u)? as u32).to_le_bytes());
            out.extend_from_slice(&u.int_in_range(0..=0x1000u32)?.to_le_bytes());
            out.push(u.int_in_range(0..=5)?);
        }
        for _ in 0..u.int_in_range(0..=24)? {
            // Frequent call frame instructions, their operands, anything.
            out.push(match u.int_in_range(0..=3)? {
                0 => *u.choose(&[
                    0x0e, 0x0a, 0x0b, 0x0c, 0x0f, 0x10, 0x16, 0x2e, 0x41, 0x86, 0xc6,
                ])?,
                1 => u.int_in_range(0..=0x20)?,
                _ => u.arbitrary()?,
            });
        }
        while out.len() % 8 != 4 {
            out.push(0);
        }
        let length = if u.ratio(19, 20)? {
            (out.len() - start - 4) as u32
        } else {
            number(u)? as u32
        };
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
    Ok(out)
}

/// Whatever a section holds, its entries are read or refused, and rows ascend.
pub fn check_unwind(section: &[u8], addr: u64) {
    let bases = Bases::default();
    let Ok(table) = EhFrame::parse_section(section, addr, bases) else {
        return;
    };
    for fde in &table.fdes {
        let Some(cie) = table.cies.get(fde.cie) else {
            panic!("an FDE without its CIE")
        };
        if let Ok(rows) = rows::rows(cie, fde) {
            assert!(
                rows.windows(2).all(|pair| pair[0].0 < pair[1].0),
                "rows do not ascend"
            );
        }
    }
}

/// A section with a compiler's map of basic blocks: numbers that mostly hold, and damage.
pub fn bb_addr_map(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        let version = u.int_in_range(2..=5u8)?;
        let features: u8 = u.arbitrary::<u8>()? & 0x7f;
        out.extend([version, features]);
        if version == 5 {
            out.push(0);
        }
        let ranges = match features & 8 {
            0 => 1,
            _ => u.int_in_range(0..=3u8)?,
        };
        if features & 8 != 0 {
            out.push(ranges);
        }
        for _ in 0..ranges {
            out.extend(number(u)?.to_le_bytes());
            let blocks = u.int_in_range(0..=4u8)?;
            out.push(blocks);
            for _ in 0..blocks {
                for _ in 0..u.int_in_range(4..=16)? {
                    out.push(u.int_in_range(0..=9)?);
                }
            }
        }
    }
    if u.ratio(1, 2)? && !out.is_empty() {
        let at = u.choose_index(out.len())?;
        out[at] = u.arbitrary()?;
    }
    Ok(out)
}

/// Whatever a section holds, it is read or refused, and blocks end where or after they begin.
pub fn check_bb_addr_map(section: &[u8]) {
    let mut functions = Vec::new();
    let _ = postlink_elf::bb_addr_map::parse(section, &mut functions);
    let mut blocks = functions.iter().flat_map(|function| &function.blocks);
    assert!(
        blocks.all(|block| block.start <= block.end),
        "a block runs backwards"
    );
}

/// Address translation tables as an optimiser could have written them, maybe damaged.
pub fn bat_section(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let entries = |u: &mut Unstructured<'_>| -> Result<Vec<Entry>> {
        let (mut output, mut list) = (0u32, Vec::new());
        for _ in 0..u.int_in_range(0..=12)? {
            output = output.saturating_add(u.int_in_range(0..=100)?);
            let input = if u.ratio(1, 2)? {
                output & 0x7fff_ffff
            } else {
                number(u)? as u32 >> 1
            };
            let kind = if u.arbitrary()? {
                EntryKind::Branch
            } else {
                EntryKind::Block {
                    index: number(u)? as u32,
                    hash: u.arbitrary()?,
                }
            };
            list.push(Entry {
                output,
                input,
                kind,
            });
        }
        Ok(list)
    };
    let mut bat = Bat::default();
    let mut start = number(u)? >> 1;
    for _ in 0..u.int_in_range(0..=4)? {
        start += u.int_in_range(1..=0x2000u64)?;
        let mut secondary: Vec<u32> = u.arbitrary()?;
        secondary.sort_unstable();
        secondary.dedup();
        let pushed = bat.push_hot(start, u.arbitrary()?, number(u)?, entries(u)?, &secondary);
        pushed.map_err(|_| arbitrary::Error::IncorrectFormat)?;
    }
    // Below or above the hot ones, or between.
    start = start.saturating_sub(u.int_in_range(0..=0x8000)?);
    for _ in 0..u.int_in_range(0..=4)? {
        start += u.int_in_range(1..=0x2000u64)?;
        let pushed = bat.push_cold(start, u.int_in_range(0..=9)?, entries(u)?);
        pushed.map_err(|_| arbitrary::Error::IncorrectFormat)?;
    }
    let mut section = bat
        .encode()
        .map_err(|_| arbitrary::Error::IncorrectFormat)?;
    for _ in 0..u.int_in_range(0..=4)? {
        let at = u.choose_index(section.len())?;
        match u.int_in_range(0..=3)? {
            0 => section[at] ^= 1 << u.int_in_range(0..=7)?,
            1 => section[at] = u.arbitrary()?,
            2 => section.insert(at, u.arbitrary()?),
            _ => section.truncate(at.max(1)),
        }
    }
    Ok(section)
}

/// Whatever a section holds, its tables are read or refused; what was read answers every question and can be
/// written and read again.
pub fn check_bat(section: &[u8]) {
    let Ok(bat) = Bat::parse(section) else { return };
    let parents = Parents::new(&bat);
    let translator = Translator::new(&bat, &parents);
    let mut edges = Vec::new();
    let hot = bat.hot().iter().map(|h| (h.start, bat.hot_entries(h)));
    let cold = bat.cold().iter().map(|c| (c.start, bat.cold_entries(c)));
    for (start, entries) in hot.chain(cold) {
        let table = translator.fragment_at(start).expect("a table begins here");
        assert_eq!(translator.fragment_before(start), Some(table));
        let end = entries.last().map_or(0, |e| u64::from(e.output));
        for offset in [0, 1, end / 2, end, end + 1, u64::MAX] {
            for is_branch in [false, true] {
                let by_start = translator.translate(start, offset, is_branch);
                assert_eq!(by_start, translator.translate_in(table, offset, is_branch));
            }
            edges.clear();
            translator.fall_throughs(table, 0, offset, &mut edges);
            assert!(edges.len() <= entries.len(), "more edges than blocks");
            let _ = translator.block(start, offset);
            let _ = translator.entry_point(start, offset);
        }
        let _ = (translator.parent(start), translator.function(table));
    }
    let again = bat.encode().expect("it was no larger when it was read");
    assert_eq!(
        Bat::parse(&again).as_ref(),
        Ok(&bat),
        "tables changed by being written and read"
    );
}

/// A raw profile: a header that mostly holds, counters, and damage.
pub fn raw_profile(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let small = |u: &mut Unstructured<'_>| -> Result<u64> { u.int_in_range(0..=700) };
    let id: [u8; 20] = u.arbitrary()?;
    let Some(identity) = Identity::from_build_id(&id) else {
        return Err(arbitrary::Error::IncorrectFormat);
    };
    let subject = Subject {
        identity,
        digest: Digest(u.arbitrary()?),
        counters: small(u)?,
        sites: small(u)?,
    };
    let mut file = raw::header_bytes(&subject).to_vec();
    file.resize(raw::file_len(&subject) as usize, 0);
    let words = (file.len() - raw::PAGE as usize) / 8;
    for _ in 0..u.int_in_range(0..=40)? {
        if words > 0 {
            let at = raw::PAGE as usize + 8 * u.int_in_range(0..=words - 1)?;
            file[at..at + 8].copy_from_slice(&number(u)?.to_le_bytes());
        }
    }
    if u.ratio(1, 2)? {
        damaged(u, &file)
    } else {
        Ok(file)
    }
}

/// Whatever a profile file holds, it is read or refused; what was read can be written and read again.
pub fn check_raw_profile(file: &[u8], scratch: &Path) {
    let path = scratch.join("raw");
    std::fs::write(&path, file).expect("the scratch directory is writable");
    let Ok(profile) = postlink_profile::open(&path).and_then(postlink_profile::Input::read) else {
        return;
    };
    let merged = scratch.join("merged");
    postlink_profile::plprof::write(&merged, &profile).expect("the scratch directory is writable");
    let again = postlink_profile::open(&merged)
        .and_then(postlink_profile::Input::read)
        .expect("our own file");
    assert!(
        again == profile,
        "a profile changed by being written and read"
    );
}

/// Bytes with many prefixes, opcodes of branches and other things that decoders stumble over.
pub fn code(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let common = [
        0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x3e, 0x64, 0x48, 0x4c, 0x41, 0x0f, 0x38, 0x3a, 0xc4,
        0xc5, 0x62, 0xe8, 0xe9, 0xeb, 0x70, 0x74, 0xe2, 0xe3, 0xff, 0x25, 0x15, 0x05, 0xc3, 0xc2,
        0x8d, 0x8b, 0xd5, 0xcc, 0x90,
    ];
    for _ in 0..u.int_in_range(1..=64)? {
        out.push(if u.ratio(1, 2)? {
            *u.choose(&common)?
        } else {
            u.arbitrary()?
        });
    }
    Ok(out)
}

/// Whatever bytes are, decoding gives instructions that fit into them, one after the other.
pub fn check_code(bytes: &[u8], addr: u64) {
    let end = addr.saturating_add(bytes.len() as u64);
    let mut next = addr;
    let stopped = X86_64::sweep(bytes, addr, |insn| {
        assert_eq!(
            insn.addr, next,
            "an instruction does not follow the one before"
        );
        assert!(
            (1..=15).contains(&insn.len),
            "an instruction of {} bytes",
            insn.len
        );
        next = next.wrapping_add(u64::from(insn.len));
        assert!(next <= end, "an instruction runs past the end");
        if let Some(field) = insn.field {
            assert!(field.at < insn.len, "a field outside of its instruction");
        }
        let at = (insn.addr - addr) as usize;
        let alone = &bytes[at..at + usize::from(insn.len)];
        assert!(
            X86_64::decode(alone, insn.addr).is_some_and(|again| again.len == insn.len),
            "needs bytes after it"
        );
        let _ = X86_64::effects(alone, insn);
        true
    });
    assert_eq!(stopped.unwrap_or(end), next);
}
