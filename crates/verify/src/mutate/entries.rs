//! Faults in stubs at entries, for files that count there and in which nothing moved.
//!
//! A counter at an entry may be in a stub that does what the function begins with. It has no language-specific
//! data, so an exception that one of these instructions raises is looked up where no landing pad is. Here such a
//! stub is made: after the end of a segment with code, where the file has space, with a jump at the entry, and with
//! rows in the unwind entry of stubs. The same can be made of a function of which no instruction in the stub has a
//! landing pad; that one is right if that entry has no exception table.
//!
//! Where a function begins by reading a flag, as hand-written code does, its counter saves the flags; here it does not.

use super::{Edit, Faults, Kind, Mutant};
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow};
use crate::files::elf::{PT_GNU_EH_FRAME, PT_LOAD, SHT_NOBITS, SHT_SYMTAB};
use crate::files::unwind::{Fde, Table};

/// Bytes of a jump, and of a store that sets a coverage byte.
const JUMP: usize = 5;
const STORE: u64 = 7;
/// Most bytes that a stub has: a counter, instructions of which the last may be long, a jump.
const STUB: u64 = 48;
/// Bytes of a program header.
const HEADER: u64 = 56;

/// Space for a stub after a segment with code.
#[derive(Clone, Copy)]
struct Room {
    /// Of the stub.
    addr: u64,
    /// Where it is in the file.
    at: usize,
    /// Where the segment's size in the file is in the program headers, and what it becomes.
    header: (usize, u64),
}

impl Faults<'_> {
    pub(super) fn stub_edits(&self, kind: Kind) -> Vec<Edit> {
        match kind {
            Kind::StubWithoutLandingPad => self.stubs(true),
            _ => self.lost_flags(),
        }
    }

    /// Stubs of functions that read flags at their entries, in which the counter does not save them any more.
    fn lost_flags(&self) -> Vec<Edit> {
        if self.arm || !self.claim.functions.is_empty() {
            return Vec::new();
        }
        let end = self.input.extent().1;
        let loads = self.output.loads().iter();
        let code = loads.filter(|s| s.is_exec() && !s.is_writable());
        code.flat_map(|s| {
            let old = self.input.bytes_from(s.addr).map_or(0, <[u8]>::len) as u64;
            let from = if s.addr >= end { s.addr } else { s.addr + old };
            (from..s.file_end()).filter_map(|at| self.without_saving(at))
        })
        .collect()
    }

    /// The stub at an address without what saves the flags, if it does so and its function begins by reading some.
    fn without_saving(&self, at: u64) -> Option<Edit> {
        // lea rsp,[rsp-128]; pushfq … popfq; lea rsp,[rsp+128]
        const DOWN: [u8; 6] = [0x48, 0x8d, 0x64, 0x24, 0x80, 0x9c];
        const UP: [u8; 9] = [0x9d, 0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
        let bytes = self.output.bytes_from(at)?;
        let saved = if bytes.starts_with(&DOWN) {
            (DOWN.len(), UP.len())
        } else {
            // Where nothing is below the stack pointer.
            (usize::from(bytes.starts_with(&[0x9c])), 1)
        };
        let (mut pos, mut stub) = (saved.0, Vec::new());
        let mut restored = saved.0 == 0;
        loop {
            let rest = bytes.get(pos..)?;
            if !restored && rest.starts_with(UP.get(..saved.1)?) {
                (pos, restored) = (pos + saved.1, true);
                continue;
            }
            let insn = X86_64::decode(rest, at + pos as u64)?;
            let mut copy = rest.get(..usize::from(insn.len))?.to_vec();
            if let Some(field) = insn.field.filter(|f| f.len == 4) {
                let place = copy.get_mut(usize::from(field.at)..usize::from(field.at) + 4)?;
                let value = i32::from_le_bytes(place.try_into().ok()?);
                let by = i32::try_from(pos - stub.len()).ok()?;
                place.copy_from_slice(&value.checked_add(by)?.to_le_bytes());
            }
            stub.extend(copy);
            pos += usize::from(insn.len);
            if let Flow::Jump(to) = insn.flow {
                let reads = self
                    .input
                    .bytes_from(to.checked_sub(self.displaced_by(to)?)?)?;
                let relies = X86_64::effects(reads).flag_reads != 0;
                let first = X86_64::decode(reads, 0)?.flow == Flow::Next;
                let saves = saved.0 > 0 && restored && relies && first;
                stub.resize(pos, 0xcc);
                let what = format!(
                    "the flags that the function before {to:#x} reads, in the stub at {at:#x}"
                );
                return saves.then(|| Some(Edit::new(what, self.offset(at)?, &stub)))?;
            }
            if !matches!(
                insn.flow,
                Flow::Next | Flow::Nothing | Flow::Branch { .. } | Flow::Call(_)
            ) || stub.len() > 100
            {
                return None;
            }
        }
    }

    /// How far after its function's start an address is where a stub continues.
    fn displaced_by(&self, to: u64) -> Option<u64> {
        let mut symbols = self.input.symbols(SHT_SYMTAB).filter(|s| s.is_function());
        let of = symbols.find(|s| s.value <= to && to < s.value + s.size.max(1))?;
        Some(to - of.value).filter(|by| *by < 24)
    }

    /// The output with one more stub that is right: what a fault of [`Kind::StubWithoutLandingPad`] is but for the
    /// landing pad. Shows that such a fault is found for its landing pad's sake.
    pub fn harmless_stub(&self, seed: u64) -> Option<Mutant> {
        self.mutant("HarmlessStub", self.stubs(false), seed)
    }

    /// New stubs of functions that have exception tables: of those with an instruction in the stub that has a
    /// landing pad, or of those without.
    fn stubs(&self, with_pad: bool) -> Vec<Edit> {
        if self.arm || !self.claim.functions.is_empty() {
            return Vec::new();
        }
        let (Some(room), Some(counter)) = (self.room(), self.last_counter()) else {
            return Vec::new();
        };
        // What is described did not move; the output's search table leads to stubs as well, out of the section.
        let Ok(table) = Table::read(&self.input) else {
            return Vec::new();
        };
        let fdes = table.fdes.iter();
        let with_tables = fdes.filter(|f| f.lsda != 0 && self.faults_raise(&table, f));
        with_tables
            .filter_map(|fde| self.stub(fde, room, counter, with_pad))
            .collect()
    }

    /// The last byte that counts.
    fn last_counter(&self) -> Option<u64> {
        let end = self.input.extent().1;
        let mut loads = self.output.loads().iter();
        let counts = |s: &&crate::files::elf::Segment| {
            s.is_writable() && !s.is_exec() && s.end() > end.saturating_add(0x1000)
        };
        Some(loads.find(counts)?.end() - 1)
    }

    fn room(&self) -> Option<Room> {
        let (segments, page) = (&self.output.segments, 0x1000);
        segments.iter().enumerate().find_map(|(number, s)| {
            if s.kind != PT_LOAD || !s.is_exec() || s.is_writable() || s.file_size != s.mem_size {
                return None;
            }
            let (addr, at) = (s.end(), s.offset + s.file_size);
            let (end, file_end) = (addr + STUB, at + STUB);
            let free = segments.iter().filter(|l| l.kind == PT_LOAD).all(|l| {
                (l.addr < addr || l.addr - l.addr % page >= end)
                    && (l.offset < at || l.offset >= file_end)
            });
            let sections = self.output.sections.iter();
            let mut held = sections.filter(|s| s.kind != SHT_NOBITS && s.size > 0);
            let unused = !held.any(|s| s.offset < file_end && at < s.offset + s.size);
            let at = usize::try_from(at).ok()?;
            let zero = self.file(at, STUB as usize).iter().all(|b| *b == 0);
            (free && unused && zero).then_some(Room {
                addr,
                at,
                header: (
                    usize::try_from(self.output.phoff + HEADER * number as u64 + 32).ok()?,
                    s.file_size + STUB,
                ),
            })
        })
    }

    /// A jump at the entry of the function of an FDE, and the stub.
    fn stub(&self, fde: &Fde, room: Room, counter: u64, with_pad: bool) -> Option<Edit> {
        let (input, output) = (
            self.input.bytes(fde.start, fde.end - fde.start)?,
            self.output.bytes(fde.start, fde.end - fde.start)?,
        );
        let sites = self.area(fde)?.sites;
        let caught = |at: u64| {
            let mut holding = sites.iter().filter(|s| s.start <= at && at < s.end);
            holding.any(|s| s.pad_value != 0)
        };
        let first = X86_64::decode(input, fde.start)?;
        let jump = if first.landing_pad {
            usize::from(first.len)
        } else {
            0
        };
        let (mut end, mut pads) = (jump, false);
        while end < jump + JUMP {
            let addr = fde.start + end as u64;
            let insn = X86_64::decode(input.get(end..)?, addr)?;
            if insn.flow != Flow::Next || insn.field.is_some() {
                return None;
            }
            pads |= caught(addr);
            end += usize::from(insn.len);
        }
        if pads != with_pad || input.get(..end)? != output.get(..end)? {
            return None;
        }
        let distance = |from: u64, to: u64| {
            Some(
                i32::try_from(to.wrapping_sub(from) as i64)
                    .ok()?
                    .to_le_bytes(),
            )
        };
        let mut stub = vec![0xc6, 0x05];
        stub.extend(distance(room.addr + STORE, counter)?);
        stub.push(1);
        stub.extend(input.get(jump..end)?);
        stub.push(0xe9);
        let behind = room.addr + stub.len() as u64 + 4;
        stub.extend(distance(behind, fde.start + end as u64)?);
        let mut entry = vec![0xe9];
        let at = fde.start + jump as u64;
        entry.extend(distance(at + JUMP as u64, room.addr)?);
        let (header, size) = room.header;
        let mut changes = vec![
            (room.at, stub),
            (self.offset(at)?, entry),
            // Size in the file and in memory.
            (header, [size.to_le_bytes(), size.to_le_bytes()].concat()),
        ];
        changes.extend(self.described_to(room.addr + STUB));
        Some(Edit {
            what: format!(
                "a stub at {:#x} for the function at {:#x}",
                room.addr, fde.start
            ),
            changes,
        })
    }

    /// Lets the unwind entry of stubs describe what is up to here as it describes a function's entry.
    fn described_to(&self, end: u64) -> Option<(usize, Vec<u8>)> {
        let table = self.output.segment(PT_GNU_EH_FRAME)?;
        let count = u64::from(self.output.u32_at(table.addr + 8)?);
        let distance = self.output.u32_at(table.addr + 8 + 8 * count)? as i32;
        let addr = table.addr.wrapping_add_signed(distance.into());
        let (_, fde) = Table::read_entry(&self.output, addr)?;
        let len = u32::try_from(end.checked_sub(fde.start)?).ok()?;
        // After its length, what leads to the CIE, and the first address.
        Some((self.offset(addr)? + 12, len.to_le_bytes().to_vec()))
    }
}
