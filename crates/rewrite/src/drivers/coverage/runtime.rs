//! What counters need beside them: their pages, the start-up routine that maps these, and the slow path of calls.

use postlink_elf::OutputAddr;
use postlink_elf::elf::Elf;
use postlink_elf::write::{NewId, NewKind, NewSection, Placed, Writer};
use postlink_isa::coverage::{self, Covers, MipRuntime, SlowConfig};
use postlink_isa::frames::{FrameEntry, Frames};
use postlink_isa::{Isa, RuntimeConfig};
use postlink_mip::{self as mip, Kind, Profile, Types, Width};

use super::{CoverageMode, CoverageOptions};
use crate::discover::identity;
use crate::error::Error;
use crate::link::{CALLED, Hook, ProbeAddresses, frames_of};

/// Bytes after the counters' pages, in which the load bias is.
pub(super) const BIAS: u64 = 4096;

/// Addresses are loaded as constants of eight bytes or fewer: space for the longest, and what is not needed is padding.
const SLACK: u64 = 64;

/// Counters' pages.
pub(super) struct Room {
    /// Entries of the table of edges.
    entries: u32,
    /// Where the table begins.
    table: u64,
    /// All of them, whole pages.
    pub bytes: u64,
}

impl Room {
    /// `next`: the bytes of the functions' counters and the clock.
    pub(super) fn of<I: Isa>(options: &CoverageOptions, next: u64) -> Room {
        let unit = I::COUNTER_UNIT;
        let entries = match options.mode {
            CoverageMode::CallEdges => options.edges.clamp(256, 1 << 24).next_power_of_two(),
            _ => 0,
        };
        let len = u64::from(entries) * coverage::EDGE;
        let bytes = (next.next_multiple_of(4096) + len)
            .next_multiple_of(unit)
            .max(unit);
        // The slots of a raw file are its end, so the table must end with the last page.
        Room {
            entries,
            table: bytes - len,
            bytes,
        }
    }
}

/// The header of raw profiles.
fn header(profile: &Profile, room: &Room) -> Vec<u8> {
    let mut header = mip::Header::new(
        Kind::Raw,
        Some(Width::Wide),
        profile
            .types
            .without(Types::INFERRED_BLOCKS)
            .without(Types::MOVED_CALLERS),
        profile.module_hash,
    );
    header.word = profile.identity;
    header.slots = room.entries;
    header.to_bytes().to_vec()
}

/// The slow paths of calls, first the one without edges and then the one with; and where that begins. Nothing
/// if calls are not counted.
fn slow_paths<I: Covers>(calls: bool, config: SlowConfig) -> Result<(Vec<u8>, u64), Error> {
    let one =
        |config| I::slow(config).map_err(|error| Error::internal(format!("slow path: {error}")));
    if !calls {
        return Ok((Vec::new(), 0));
    }
    let mut code = one(SlowConfig {
        entries: 0,
        ..config
    })?;
    code.resize(code.len().next_multiple_of(16), I::PADDING);
    let with_edges = code.len() as u64;
    if config.entries > 0 {
        let at = config.at + with_edges;
        code.extend(one(SlowConfig { at, ..config })?);
    }
    Ok((code, with_edges))
}

/// Bytes that a copy of the slow path takes, nothing if calls are not counted.
pub(super) fn slow_size<I: Covers>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
) -> Result<u64, Error> {
    let config = slow_config::<I>(elf, options, profile, next);
    let size = slow_paths::<I>(options.mode.calls(), config)?.0.len() as u64;
    Ok(if size == 0 { 0 } else { size + SLACK })
}

/// The rows of a copy of the slow path, which has the same instructions wherever it is.
pub(super) fn slow_frames<I: Covers>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
) -> Result<Frames, Error> {
    let config = slow_config::<I>(elf, options, profile, next);
    let (code, with_edges) = slow_paths::<I>(options.mode.calls(), config)?;
    if code.is_empty() {
        return Ok(Frames::default());
    }
    let with_edges = (config.entries > 0).then_some(FrameEntry {
        at: with_edges as u32,
        ..CALLED
    });
    let entries: Vec<FrameEntry> = [CALLED].into_iter().chain(with_edges).collect();
    frames_of::<I>(&code, &entries)
}

/// Space for a copy of the slow path, if there is one.
pub(super) fn append_slow<I: Covers>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
    writer: &mut Writer<'_>,
) -> Result<Option<Placed>, Error> {
    let bytes = slow_size::<I>(elf, options, profile, next)?;
    Ok((bytes > 0).then(|| append_code(".text.slow", bytes - SLACK, writer)))
}

/// The slow path's addresses, as far as they are known before anything has its place: near by, for code of the same
/// size.
fn slow_config<I: Isa>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
) -> SlowConfig {
    let (room, near) = (Room::of::<I>(options, next), elf.extent().1);
    let counters = near.next_multiple_of(I::COUNTER_UNIT) + I::COUNTER_UNIT;
    SlowConfig {
        at: near,
        clock: counters,
        counters,
        table: counters + room.table,
        entries: room.entries,
        zone: in_blocks(profile),
    }
}

/// Whether the counters that note callers are in blocks, as they are in functions that are re-emitted.
fn in_blocks(profile: &Profile) -> bool {
    profile.types.has(Types::MOVED_CALLERS)
}

/// Appends a section for so many bytes of code, and a few more.
fn append_code(name: &str, size: u64, writer: &mut Writer<'_>) -> Placed {
    writer.append_anywhere(NewSection {
        name: name.into(),
        kind: NewKind::Code,
        align: 16,
        size: size + SLACK,
    })
}

/// Fills such a section.
fn fill_code<I: Isa>(section: NewId, code: &[u8], writer: &mut Writer<'_>) -> Result<(), Error> {
    let room = writer.contents(section);
    let Some(place) = room.get_mut(..code.len()) else {
        return Err(Error::internal(format!(
            "{} bytes of start-up code, where {} were expected",
            code.len(),
            room.len()
        )));
    };
    place.copy_from_slice(code);
    room[code.len()..].fill(I::PADDING);
    Ok(())
}

/// Appends what counters need: the start-up routine, and last the counters' pages; and fills the places of the slow
/// path of calls. Gives the start-up routine's address, those that code refers to, and where each copy of the
/// slow path notes callers as well.
pub(super) fn put_runtime<I: Covers>(
    elf: &Elf<'_>,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
    entry: &Hook,
    copies: &[Placed],
    writer: &mut Writer<'_>,
) -> Result<(OutputAddr, ProbeAddresses, Vec<OutputAddr>), Error> {
    let calls = options.mode.calls();
    let room = Room::of::<I>(options, next);
    let unit = I::COUNTER_UNIT;
    let header = header(profile, &room);
    let module = format!("{:04x}", profile.module_hash as u16);
    let build_id = identity(elf).hex();
    // Addresses near by, for code of the same size.
    let near = elf.extent().1;
    let mut config = RuntimeConfig {
        at: near,
        counters: near.next_multiple_of(unit) + unit,
        counters_len: room.bytes,
        sites_offset: room.bytes,
        bias_slot: near,
        header: &header,
        header_check: header.len(),
        pattern: &options.pattern,
        build_id: &build_id,
        entry: entry.runtime(),
    };
    let mip_config = MipRuntime {
        module: &module,
        // Orders of first calls are those of one run.
        fresh: calls,
    };
    let size = I::mip_runtime(&config, mip_config)?.len() as u64;
    let runtime = append_code(".text.start", size, writer);
    let counters = writer.append_zero_fill_aligned(".postlink.counters", room.bytes + BIAS, unit);
    config.at = runtime.addr.get();
    config.counters = counters.addr.get();
    config.bias_slot = (counters.addr + room.bytes).get();
    fill_code::<I>(runtime.id, &I::mip_runtime(&config, mip_config)?, writer)?;
    let mut slow_at = [OutputAddr::default(); 2];
    let mut edges_at = Vec::with_capacity(copies.len());
    for copy in copies {
        let (code, with_edges) = slow_paths::<I>(
            calls,
            SlowConfig {
                at: copy.addr.get(),
                clock: counters.addr.get(),
                counters: counters.addr.get(),
                table: (counters.addr + room.table).get(),
                entries: room.entries,
                zone: in_blocks(profile),
            },
        )?;
        fill_code::<I>(copy.id, &code, writer)?;
        slow_at = [copy.addr, copy.addr + with_edges];
        edges_at.push(slow_at[1]);
    }
    let probes = ProbeAddresses {
        counters: counters.addr,
        counter_size: counter_size(options.mode),
        sites: counters.addr + room.bytes,
        slow: slow_at[0],
        slow_with_edges: slow_at[1],
        ..ProbeAddresses::default()
    };
    Ok((runtime.addr, probes, edges_at))
}

/// Bytes of what counters are numbered by.
pub(super) fn counter_size(mode: CoverageMode) -> u64 {
    if mode.calls() { 4 } else { 1 }
}
