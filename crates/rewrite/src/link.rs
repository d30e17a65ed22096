//! From emitted functions to a file: addresses, fixups, unwind tables, pointers, symbols.
//!
//! New code lies behind the old image, which keeps its bytes but for what is listed here:
//!
//! * at the old entry of a moved function a jump to the new one, so that whatever still refers to it works; likewise at other
//!   entries of the same function, which hand-written assembly has and functions that share a part, where a jump fits ([`Second`]);
//! * entries of jump tables and label tables of moved functions;
//! * if asked for, pointers to moved functions in data, relocations and symbols.
//!
//! The old body behind its first instruction stays valid: a reference that nobody knew of goes on working there.

mod tables;

pub(crate) use tables::put_note;

use std::collections::BTreeSet;

use postlink_image::elf::Elf;
use postlink_image::note::NoteKind;
use postlink_image::write::{NewKind, NewSection, Placed, Writer};
use postlink_isa::{Code, FixupKind, Isa};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::cfg::{BlockId, Cfg, TableEntry, Term};
use crate::discover::Program;
use crate::emit::{Emitted, Target};
use crate::refs::{Pointer, Stored};
use crate::stress::Random;
use crate::unwind::FragmentUnwind;
use crate::veneers::{self, Veneers};
use crate::visible::Visible;

/// A function ready to be placed.
pub struct Ready {
    /// Index of the function.
    pub function: u32,
    /// Its code.
    pub code: Emitted,
    /// Unwind information by fragment, if it has any.
    pub unwind: Option<[FragmentUnwind; 2]>,
    /// Entries of its tables.
    pub table_entries: Vec<TableEntry>,
    /// Places in the old body that get a jump to a block, see [`Cfg::arrivals`].
    pub arrivals: Vec<(u64, BlockId)>,
    /// Entries beside the first whose old places get a jump.
    pub second: Vec<Second>,
    /// Its labels.
    pub marks: Vec<(u64, BlockId)>,
    /// Recorders of its sites, one behind the other, and the offset of each.
    pub recorders: Code<Target>,
    /// Offsets of recorders by site.
    pub recorder_offsets: Vec<u32>,
    /// Places in its fragments at which another unwind entry and another symbol begin, in order.
    pub splits: Vec<Split>,
    /// Number of its first counter in the program.
    pub counter_base: u64,
    /// Number of its first site.
    pub site_base: u64,
}

/// An entry beside the first. Functions have some where hand-written code says so, and where compilers let several share a part: they are one to us then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// Its address.
    pub entry: u64,
    /// Where in the old body the jump goes: behind a landing pad, if there is one.
    pub at: u64,
    /// The block that begins there.
    pub block: BlockId,
}

/// A place in a fragment from which on the code has an unwind entry and a symbol of its own ([`crate::bat`]).
pub struct Split {
    /// The fragment.
    pub fragment: usize,
    /// Offset in it.
    pub start: u32,
    /// Unwind information of what follows, if the function has any.
    pub unwind: Option<FragmentUnwind>,
}

/// How functions are placed and what follows them.
pub struct LinkOptions<'a> {
    /// Names of the hot and the cold section.
    pub sections: [&'a str; 2],
    /// Alignment of functions in each.
    pub align: [u64; 2],
    /// Whether pointers to moved functions follow them where they may, see [`crate::visible`].
    pub move_pointers: bool,
    /// A seed for random distances between functions, see [`crate::stress`].
    pub stress: Option<u64>,
    /// Room in old bodies that nothing comes to any more, for cold fragments: address and length each. May be empty.
    pub room: Vec<(u64, u64)>,
    /// Whether it is for other fragments as well.
    pub room_for_all: bool,
    /// The recorders' slow path, which they call directly: a copy for each district where there are more than one. Else the caller places it.
    pub slow: Vec<u8>,
    /// What the note says.
    pub kind: NoteKind,
    /// Identity of the input.
    pub input_id: Vec<u8>,
}

impl LinkOptions<'_> {
    /// For a program that counts: pointers stay the old entries, so what recorders see are addresses of the input.
    pub fn instrumented(elf: &Elf<'_>) -> Self {
        LinkOptions {
            sections: [".text.hot", ".text.cold"],
            align: [16, 16],
            move_pointers: false,
            stress: None,
            room: Vec::new(),
            room_for_all: false,
            slow: Vec::new(),
            kind: NoteKind::Instrumented,
            input_id: elf.build_id.unwrap_or_default().to_vec(),
        }
    }
}

/// Addresses that instrumentation adds.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeAddresses {
    /// First counter.
    pub counters: u64,
    /// Bytes of a counter.
    pub counter_size: u64,
    /// First site table.
    pub sites: u64,
    /// Load bias.
    pub bias: u64,
    /// Slow path of recorders.
    pub slow: u64,
    /// The byte that entry checks look at.
    pub ready: u64,
    /// The routine that gives a thread its counters.
    pub enter: u64,
}

/// Where everything went.
pub struct Placement {
    /// By [district](crate::veneers): hot and cold section.
    sections: Vec<[Option<Placed>; 2]>,
    /// By position: its district.
    districts: Vec<u16>,
    /// By position in the list of ready functions: address of each fragment.
    pub fragments: Vec<[u64; 2]>,
    /// By position: what the address of each fragment must be a multiple of for the sake of pointers.
    alignment: Vec<[u64; 2]>,
    /// By position: whether a fragment lies in the room of old bodies.
    pub in_room: Vec<[bool; 2]>,
    /// Old bodies in whose room something lies, by their first address; ascending.
    buried: Vec<u64>,
    /// Addresses of entries: input to output.
    pub entries: FxHashMap<u64, u64>,
    /// Where those go who come from outside, if elsewhere: input to output.
    pub doors: FxHashMap<u64, u64>,
    /// By district: recorders' section.
    recorders: Vec<Option<Placed>>,
    recorder_at: Vec<u64>,
    /// By district: a copy of the recorders' slow path, if there is one.
    slow: Vec<Option<u64>>,
    slow_code: Vec<u8>,
    /// What direct jumps and calls of new code go by way of.
    veneers: Veneers,
    /// An unwind table that start-up code registers, and where the new one is once it has a place.
    frames: (Option<(u64, u64)>, std::sync::OnceLock<u64>),
}

/// Whether a jump to the new place fits at an entry: five bytes that nothing else jumps into, behind a landing pad if there is one.
/// Returns where it goes.
pub fn entry_patch<I: Isa>(program: &Program<'_>, cfg: &Cfg, entry: u64) -> Option<u64> {
    let piece = program.piece_at(entry)?;
    let first = I::decode(
        program.elf.bytes_at(entry, (piece.end - entry).min(16))?,
        entry,
    )?;
    let at = if first.traits.landing_pad {
        first.end()
    } else {
        entry
    };
    let mut jump: Code<()> = Code::default();
    put_entry::<I, ()>(
        program,
        &mut jump,
        entry,
        program.elf.bytes_at(at, (piece.end - at).min(16))?,
        (),
    );
    if program.is_far::<I>(entry) && veneers::is_guarded(program.elf) && !first.traits.landing_pad {
        return None;
    }
    let end = at + jump.bytes.len() as u64;
    // Whatever begins inside must be reached by running into it from the entry only.
    for (b, block) in cfg
        .blocks
        .iter()
        .enumerate()
        .filter(|(_, b)| b.start > entry && b.start < end)
    {
        let marked = block.landing_pad
            || block.returns_twice
            || cfg.marks.iter().any(|m| m.0 == block.start);
        let fallen_into = |p: usize| {
            let before = &cfg.blocks[p];
            let way = match before.term {
                Term::Fall => 0,
                Term::Cond { .. } | Term::ShortCond => 1,
                Term::CondOut { .. } | Term::ShortCondOut { .. } => 0,
                _ => return false,
            };
            let succs = cfg.succs(p as BlockId);
            before.end == block.start
                && before.start >= entry
                && succs
                    .iter()
                    .enumerate()
                    .all(|(k, s)| (*s as usize == b) == (k == way))
        };
        let reached = (0..cfg.blocks.len())
            .filter(|p| cfg.succs(*p as BlockId).contains(&(b as BlockId)))
            .all(fallen_into);
        if marked || !reached {
            return None;
        }
    }
    if end > piece.end {
        let i = program.pieces.partition_point(|p| p.start <= entry);
        let limit = program
            .pieces
            .get(i)
            .map_or(u64::MAX, |p| p.start)
            .min(program.elf.sections[piece.section as usize].end());
        if end > limit {
            return None;
        }
        let padding = program.elf.bytes_at(piece.end, end - piece.end)?;
        if !padding.iter().all(|b| matches!(b, 0 | 0x90 | 0xcc)) {
            let whole = program
                .elf
                .bytes_at(piece.end, limit.min(piece.end + 32) - piece.end)?;
            let mut reach = piece.end;
            I::sweep(whole, piece.end, |i| {
                if i.traits.nop {
                    reach = i.end();
                }
                i.traits.nop
            });
            if reach < end {
                return None;
            }
        }
    }
    Some(at)
}

/// Fills in the fields of code that lies at `at`; if one is out of reach, the error names the function at `function`.
fn fill<I: Isa>(
    program: &Program<'_>,
    code: &mut Code<u64>,
    at: u64,
    function: u64,
) -> Result<(), Error> {
    for f in &code.fixups {
        I::write_field(
            f.kind,
            &mut code.bytes[f.at as usize..],
            at + u64::from(f.at),
            f.target,
        )
        .map_err(|source| Error::Reach {
            function: program.name_at(function),
            source,
        })?;
    }
    Ok(())
}

/// Appends what takes the place of an old entry.
fn put_entry<I: Isa, T: Copy>(
    program: &Program<'_>,
    out: &mut Code<T>,
    entry: u64,
    original: &[u8],
    target: T,
) {
    if program.is_far::<I>(entry) {
        I::put_far_entry(out, original, target);
    } else {
        I::put_entry(out, original, target);
    }
}

/// Where the jump at an arrival goes: behind a landing pad, if there is one (unless the next arrival is there).
fn arrival<I: Isa>(program: &Program<'_>, place: u64, next: Option<u64>) -> Option<u64> {
    let piece = program.piece_at(place)?;
    let first = I::decode(
        program.elf.bytes_at(place, (piece.end - place).min(16))?,
        place,
    )?;
    if !first.traits.landing_pad {
        return Some(place);
    }
    (next != Some(first.end()) && first.end() < piece.end).then(|| first.end())
}

/// Gives every fragment its address, in the given orders (positions in `ready`).
pub fn place<I: Isa>(
    program: &Program<'_>,
    ready: &[Ready],
    orders: [&[u32]; 2],
    options: &LinkOptions<'_>,
    writer: &mut Writer<'_>,
) -> Placement {
    let districts = veneers::districts::<I>(ready, orders[0], options.align);
    let count = usize::from(districts.iter().copied().max().unwrap_or(0)) + 1;
    let mut p = Placement {
        sections: vec![[None, None]; count],
        districts,
        fragments: vec![[0; 2]; ready.len()],
        alignment: ready
            .iter()
            .map(|r| match options.move_pointers {
                true => alignment(program, r),
                false => [1; 2],
            })
            .collect(),
        in_room: vec![[false; 2]; ready.len()],
        buried: Vec::new(),
        entries: FxHashMap::default(),
        doors: FxHashMap::default(),
        recorders: vec![None; count],
        recorder_at: vec![0; ready.len()],
        slow: vec![None; count],
        slow_code: options.slow.clone(),
        veneers: Veneers::default(),
        frames: (program.refs.registered_frames, std::sync::OnceLock::new()),
    };
    p.take_room(program, ready, orders, options);
    for district in 0..count {
        p.place_district::<I>(ready, district, orders, options, writer);
    }
    for (i, r) in ready.iter().enumerate() {
        let (start, entry) = (program.start(r.function as usize), p.block(ready, i, 0));
        p.entries.insert(start, entry);
        if r.code.entry_check > 0 {
            p.doors.insert(start, entry - u64::from(r.code.entry_check));
        }
        for s in &r.second {
            p.doors.insert(s.entry, p.block(ready, i, s.block));
        }
        for (block, fragment, offset) in &r.code.doors {
            let of_block = |s: &&Second| s.block == *block;
            let door = p.fragments[i][usize::from(*fragment)] + u64::from(*offset);
            if let Some(s) = r.second.iter().find(of_block) {
                p.doors.insert(s.entry, door);
            }
        }
    }
    p
}

/// What the addresses of a function's fragments must be multiples of, so that pointers to the function keep the zero bits at their end.
fn alignment(program: &Program<'_>, r: &Ready) -> [u64; 2] {
    let mut of = [1; 2];
    let (function, start) = (r.function as usize, program.start(r.function as usize));
    if program.functions[function].address_taken
        && program.may_follow(start)
        && let Some((fragment, 0)) = r.code.blocks.first()
        && let Some(of) = of.get_mut(usize::from(*fragment))
    {
        *of = Visible::alignment(start);
    }
    of
}

/// The name of a section of a district: all but the first are numbered.
fn name_in(district: usize, name: &str) -> String {
    match district {
        0 => name.to_owned(),
        n => format!("{name}.{}", n + 1),
    }
}

impl Placement {
    /// Positions in `order` that lie in a district.
    fn of_district<'o>(
        &self,
        district: usize,
        order: &'o [u32],
    ) -> impl Iterator<Item = u32> + use<'o, '_> {
        let here = move |i: &u32| usize::from(self.districts[*i as usize]) == district;
        order.iter().copied().filter(here)
    }

    /// Appends the sections of a district.
    fn place_district<I: Isa>(
        &mut self,
        ready: &[Ready],
        district: usize,
        orders: [&[u32]; 2],
        options: &LinkOptions<'_>,
        writer: &mut Writer<'_>,
    ) {
        for (f, order) in orders.iter().enumerate() {
            // Where instructions have one length, code lies at multiples of it.
            let step = if I::PADDING == 0 { 4 } else { 1 };
            let own: Vec<u32> = self
                .of_district(district, order)
                .filter(|i| !self.in_room[*i as usize][f])
                .filter(|i| !ready[*i as usize].code.fragments[f].code.bytes.is_empty())
                .collect();
            let mut at = 0u64;
            let mut gaps = options.stress.map(|seed| Random::of(seed, f as u64 + 1));
            for i in &own {
                at += gaps.as_mut().map_or(0, |random| random.below(32) * step);
                at = at.next_multiple_of(options.align[f].max(self.alignment[*i as usize][f]));
                self.fragments[*i as usize][f] = at;
                at += ready[*i as usize].code.fragments[f].code.bytes.len() as u64;
            }
            if at == 0 {
                continue;
            }
            let placed = writer.append(NewSection {
                name: name_in(district, options.sections[f]),
                kind: NewKind::Code,
                align: options.align[f].max(16),
                size: at,
            });
            for i in &own {
                self.fragments[*i as usize][f] += placed.addr;
            }
            self.sections[district][f] = Some(placed);
        }
        let all: Vec<u32> = (0..ready.len() as u32).collect();
        let own: Vec<u32> = self.of_district(district, &all).collect();
        let mut at = 0u64;
        for i in &own {
            self.recorder_at[*i as usize] = at;
            at += ready[*i as usize].recorders.bytes.len() as u64;
        }
        if at > 0 {
            let slow = (self.sections.len() > 1 && !options.slow.is_empty())
                .then(|| at.next_multiple_of(16));
            let placed = writer.append(NewSection {
                name: name_in(district, ".text.record"),
                kind: NewKind::Code,
                align: 16,
                size: slow.map_or(at, |slow| slow + options.slow.len() as u64),
            });
            self.slow[district] = slow.map(|slow| placed.addr + slow);
            for i in &own {
                self.recorder_at[*i as usize] += placed.addr;
            }
            self.recorders[district] = Some(placed);
        }
        if self.sections.len() > 1 {
            let list = own.iter().map(|i| &ready[*i as usize]);
            self.veneers
                .reserve::<I>(name_in(district, veneers::SECTION), list, writer);
        }
    }

    /// Puts fragments into the room of old bodies: the largest first, each where it leaves the least.
    fn take_room(
        &mut self,
        program: &Program<'_>,
        ready: &[Ready],
        orders: [&[u32]; 2],
        options: &LinkOptions<'_>,
    ) {
        let mut free: BTreeSet<(u64, u64)> = options
            .room
            .iter()
            .map(|(start, len)| (*len, *start))
            .collect();
        let len = |i: u32, f: usize| ready[i as usize].code.fragments[f].code.bytes.len() as u64;
        let least = usize::from(!options.room_for_all);
        let mut list: Vec<(u32, usize)> = (least..2)
            .flat_map(|f| orders[f].iter().map(move |i| (*i, f)))
            .filter(|&(i, f)| len(i, f) > 0 && ready[i as usize].splits.is_empty())
            .collect();
        let function = |i: u32| ready[i as usize].function;
        list.sort_by_key(|&(i, f)| (std::cmp::Reverse(len(i, f)), function(i), f));
        for (i, f) in list {
            let align = options.align[f].max(self.alignment[i as usize][f]);
            let len = len(i, f);
            let gap = |start: u64| start.next_multiple_of(align) - start;
            // Those that are longer by a whole alignment all do.
            let fits = |&&(room, start): &&(u64, u64)| room >= len + gap(start);
            let Some(&(room, start)) = free.range((len, 0)..).find(fits) else {
                continue;
            };
            free.remove(&(room, start));
            let at = start + gap(start);
            let left = room - len - gap(start);
            if left > 0 {
                free.insert((left, at + len));
            }
            let start = at;
            self.fragments[i as usize][f] = start;
            self.in_room[i as usize][f] = true;
            self.buried
                .extend(program.piece_at(start).map(|piece| piece.start));
        }
        self.buried.sort_unstable();
        self.buried.dedup();
    }

    /// Puts veneers where direct jumps and calls of new code do not reach old code.
    pub fn bridge<I: Isa>(
        &mut self,
        program: &Program<'_>,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) {
        if program.new_end.saturating_sub(program.elf.extent().0) < I::BRANCH_REACH {
            return;
        }
        let none = ProbeAddresses::default();
        let mut list = Vec::new();
        for (i, r) in ready.iter().enumerate() {
            let fragments = r
                .code
                .fragments
                .iter()
                .map(|f| &f.code)
                .zip(self.fragments[i]);
            for (code, base) in fragments.chain([(&r.recorders, self.recorder_at[i])]) {
                for (f, input) in veneers::branches(code) {
                    list.push(veneers::Branch {
                        district: self.districts[i],
                        place: base + u64::from(f.at),
                        input,
                        target: self.resolve(ready, i, f.target, &none),
                    });
                }
            }
        }
        self.veneers
            .bridge::<I>(program, &self.entries, &list, writer);
    }

    /// Output address of a block of the i-th ready function.
    pub fn block(&self, ready: &[Ready], i: usize, b: BlockId) -> u64 {
        let (fragment, offset) = ready[i].code.blocks[b as usize];
        self.fragments[i]
            .get(usize::from(fragment))
            .map_or(0, |a| a + u64::from(offset))
    }

    /// The new unwind table, if an address lies in the old one and start-up code registers that.
    fn frame_at(&self, addr: u64) -> Option<u64> {
        let (start, end) = self.frames.0?;
        (addr >= start && addr < end).then(|| self.frames.1.get().copied())?
    }

    fn resolve(&self, ready: &[Ready], i: usize, target: Target, probes: &ProbeAddresses) -> u64 {
        let r = &ready[i];
        match target {
            Target::Block(b) => self.block(ready, i, b),
            Target::Code(a) => self
                .entries
                .get(&a)
                .copied()
                .or_else(|| self.frame_at(a))
                .unwrap_or(a),
            Target::Same(a) => a,
            Target::Counter(c) => {
                probes.counters + probes.counter_size * (r.counter_base + u64::from(c))
            }
            Target::SiteWord(w) => {
                probes.sites + 64 * (r.site_base + u64::from(w / 8)) + 8 * u64::from(w % 8)
            }
            Target::Recorder(s) => self.recorder_at[i] + u64::from(r.recorder_offsets[s as usize]),
            Target::Bias => probes.bias,
            Target::Slow => self.slow[usize::from(self.districts[i])].unwrap_or(probes.slow),
            Target::Ready => probes.ready,
            Target::Enter => probes.enter,
            Target::Unit(_) => 0,
        }
    }

    /// Fills the code sections.
    pub fn fill<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        orders: [&[u32]; 2],
        probes: &ProbeAddresses,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        self.veneers.fill::<I>(writer)?;
        let in_room = |i: usize| (0..2).filter(move |f| self.in_room[i][*f]);
        for (i, f) in (0..ready.len()).flat_map(|i| in_room(i).map(move |f| (i, f))) {
            let (code, at) = (&ready[i].code.fragments[f].code, self.fragments[i][f]);
            let mut bytes = code.bytes.clone();
            self.settle::<I>(program, ready, i, code, at, probes, &mut bytes)?;
            writer.patch(at, &bytes)?;
        }
        let all: Vec<u32> = (0..ready.len() as u32).collect();
        for district in 0..self.sections.len() {
            for (f, order) in orders.iter().enumerate() {
                let Some(placed) = self.sections[district][f] else {
                    continue;
                };
                let list: Vec<(u32, u64, &Code<Target>)> = self
                    .of_district(district, order)
                    .filter(|i| !self.in_room[*i as usize][f])
                    .map(|i| {
                        (
                            i,
                            self.fragments[i as usize][f],
                            &ready[i as usize].code.fragments[f].code,
                        )
                    })
                    .filter(|x| !x.2.bytes.is_empty())
                    .collect();
                self.fill_section::<I>(program, ready, &list, placed, probes, writer)?;
            }
            if let Some(placed) = self.recorders[district] {
                let list: Vec<(u32, u64, &Code<Target>)> = self
                    .of_district(district, &all)
                    .map(|i| {
                        (
                            i,
                            self.recorder_at[i as usize],
                            &ready[i as usize].recorders,
                        )
                    })
                    .filter(|x| !x.2.bytes.is_empty())
                    .collect();
                self.fill_section::<I>(program, ready, &list, placed, probes, writer)?;
                if let Some(slow) = self.slow[district] {
                    let at = (slow - placed.addr) as usize;
                    if let Some(end) = writer.contents(placed.id).get_mut(at..) {
                        end.copy_from_slice(&self.slow_code);
                    }
                }
            }
        }
        Ok(())
    }

    fn fill_section<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        list: &[(u32, u64, &Code<Target>)],
        placed: Placed,
        probes: &ProbeAddresses,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let mut rest = writer.contents(placed.id);
        let mut at = placed.addr;
        let mut parts = Vec::with_capacity(list.len());
        for x in list {
            let (gap, more) = rest.split_at_mut((x.1 - at) as usize);
            gap.fill(I::PADDING);
            let (own, more) = more.split_at_mut(x.2.bytes.len());
            parts.push((own, x));
            rest = more;
            at = x.1 + x.2.bytes.len() as u64;
        }
        rest.fill(I::PADDING);
        parts
            .into_par_iter()
            .try_for_each(|(out, (i, base, code))| {
                out.copy_from_slice(&code.bytes);
                self.settle::<I>(program, ready, *i as usize, code, *base, probes, out)
            })
    }

    /// Fills the fields of code that lies at `base`.
    #[allow(clippy::too_many_arguments)]
    fn settle<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        i: usize,
        code: &Code<Target>,
        base: u64,
        probes: &ProbeAddresses,
        out: &mut [u8],
    ) -> Result<(), Error> {
        for f in &code.fixups {
            let target = self.resolve(ready, i, f.target, probes);
            let target = self.veneers.instead::<I>(
                self.districts[i],
                f.kind,
                base + u64::from(f.at),
                target,
            );
            I::write_field(
                f.kind,
                &mut out[f.at as usize..],
                base + u64::from(f.at),
                target,
            )
            .map_err(|e| Error::Reach {
                function: program.name(ready[i].function as usize),
                source: e,
            })?;
        }
        Ok(())
    }

    /// The new entry of the function at `start`, if it moved and pointers to it may follow.
    fn followed(&self, program: &Program<'_>, start: u64) -> Option<u64> {
        let new = self.entries.get(&start).copied();
        new.filter(|_| program.may_follow(start))
    }

    /// Updates what refers to moved code from the old image.
    pub fn references<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        entry_patches: &[(u64, u64)],
        move_pointers: bool,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        // Jumps from old entries.
        let second = ready.iter().flat_map(|r| &r.second);
        let second = second.map(|s| (s.entry, s.at));
        for (entry, at) in entry_patches.iter().copied().chain(second) {
            let (entry, at) = (&entry, &at);
            let Some(new) = self.doors.get(entry).or(self.entries.get(entry)) else {
                continue;
            };
            let mut code: Code<u64> = Code::default();
            put_entry::<I, u64>(
                program,
                &mut code,
                *entry,
                program.elf.bytes_at(*at, 4).unwrap_or_default(),
                *new,
            );
            fill::<I>(program, &mut code, *at, *entry)?;
            writer.patch(*at, &code.bytes)?;
        }
        // Jumps from where tables that count from the old code lead.
        for (i, r) in ready.iter().enumerate() {
            for (k, (place, block)) in r.arrivals.iter().enumerate() {
                let Some(at) = arrival::<I>(program, *place, r.arrivals.get(k + 1).map(|a| a.0))
                else {
                    continue;
                };
                if *place == program.start(r.function as usize) {
                    continue; // The old entry has its jump.
                }
                let mut code: Code<u64> = Code::default();
                I::put_jump(
                    &mut code,
                    postlink_isa::Reach::Long,
                    self.block(ready, i, *block),
                );
                fill::<I>(program, &mut code, at, program.start(r.function as usize))?;
                writer.patch(at, &code.bytes)?;
            }
        }
        // A list of unwind entries that is registered beside the new table: it ends before it begins.
        if let (Some(list), Some(_)) = (program.refs.doubled_frames, self.frames.1.get()) {
            writer.patch(list, &[0; 4])?;
        }
        // Code that registers the unwind table and stays.
        let stays = |a: u64| {
            program
                .piece_at(a)
                .is_none_or(|p| !ready.iter().any(|r| r.function == p.function))
        };
        for &(at, target) in program
            .refs
            .formed
            .iter()
            .filter(|f| program.refs.is_registered_frame(f.1))
        {
            let (Some(new), Some(old), true) = (
                self.frame_at(target),
                program.elf.bytes_at(at, 4),
                stays(at),
            ) else {
                continue;
            };
            let field = I::decode(old, at).and_then(|i| i.field);
            let kind = field.map_or(FixupKind::Low12 { scale: 0 }, |f| f.kind);
            let mut bytes = old.to_vec();
            I::write_field(kind, &mut bytes, at, new).map_err(|e| Error::Reach {
                function: program.name_at(at),
                source: e,
            })?;
            writer.patch(at, &bytes)?;
        }
        // Entries of relative tables.
        for (i, r) in ready.iter().enumerate() {
            for t in &r.table_entries {
                let new = self.block(ready, i, t.block);
                if let Some(base) = t.base {
                    if t.width == 8 {
                        writer.patch(t.place, &new.wrapping_sub(base).to_le_bytes())?;
                        continue;
                    }
                    let value = i32::try_from(new.wrapping_sub(base) as i64)
                        .map_err(|_| Error::internal("jump table entry out of reach"))?;
                    writer.patch(t.place, &value.to_le_bytes())?;
                }
            }
        }
        // Pointers: labels always, functions if asked for and where they may.
        let by_function: FxHashMap<u32, usize> = ready
            .iter()
            .enumerate()
            .map(|(i, r)| (r.function, i))
            .collect();
        let moved = |p: &Pointer| -> Option<u64> {
            if self.entries.contains_key(&p.target) {
                return self.followed(program, p.target).filter(|_| move_pointers);
            }
            let piece = program.piece_at(p.target)?;
            let i = *by_function.get(&piece.function)?;
            // What begins there is a function to the program: its address is seen and compared.
            let entries = &program.functions[piece.function as usize].entries;
            if entries.binary_search(&p.target).is_ok() {
                return None;
            }
            let k = ready[i]
                .marks
                .binary_search_by_key(&p.target, |m| m.0)
                .ok()?;
            Some(self.block(ready, i, ready[i].marks[k].1))
        };
        let updates: Vec<(&Pointer, u64)> = program
            .refs
            .pointers
            .par_iter()
            .filter_map(|p| moved(p).map(|n| (p, n)))
            .collect();
        for (p, new) in updates {
            match p.stored {
                Stored::Word => writer.patch(p.place, &new.to_le_bytes())?,
                Stored::Word32 => {
                    let value = u32::try_from(new)
                        .map_err(|_| Error::internal("32-bit pointer out of reach"))?;
                    writer.patch(p.place, &value.to_le_bytes())?;
                }
                Stored::Addend(at) => {
                    writer.patch(at, &new.to_le_bytes())?;
                    if program.elf.u64_at(p.place) == Some(p.target) {
                        writer.patch(p.place, &new.to_le_bytes())?;
                    }
                }
            }
        }
        if move_pointers {
            self.absolute_fields::<I>(program, ready, writer)?;
            const DT_INIT: i64 = 12;
            const DT_FINI: i64 = 13;
            for tag in [DT_INIT, DT_FINI] {
                let old = program.elf.dynamic_value(tag);
                if let Some(new) = old.and_then(|v| self.followed(program, v)) {
                    writer.set_dynamic(tag, new)?;
                }
            }
            if let Some(new) = self.followed(program, program.elf.entry) {
                writer.set_entry(new);
            }
        }
        Ok(())
    }

    /// Addresses of moved functions that code which stays forms: pointers must be the same wherever they come from.
    fn absolute_fields<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let moved: rustc_hash::FxHashSet<u32> = ready.iter().map(|r| r.function).collect();
        let edits: Vec<(u64, FixupKind, u64)> = program
            .pieces
            .par_iter()
            .filter(|p| !moved.contains(&p.function))
            .flat_map_iter(|p| {
                let mut out = Vec::new();
                if let Some(bytes) = program.elf.bytes_at(p.start, p.end - p.start) {
                    I::sweep(bytes, p.start, |i| {
                        if let Some(f) = i.field
                            && i.traits.forms_address
                            && let Some(new) = self.followed(program, f.target)
                        {
                            out.push((i.addr + u64::from(f.at), f.kind, new));
                        }
                        true
                    });
                    for &(at, target) in program.refs.formed_in(p.start, p.end) {
                        let whole = program
                            .elf
                            .bytes_at(at, 4)
                            .and_then(|b| I::decode(b, at))
                            .and_then(|i| i.field);
                        let kind = whole.map_or(FixupKind::Low12 { scale: 0 }, |f| f.kind);
                        if let Some(new) = self.followed(program, target) {
                            out.push((at, kind, new));
                        }
                    }
                    for &(at, kind) in program.refs.absolute_fields_in(p.start, p.end) {
                        let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
                        let target = program
                            .elf
                            .bytes_at(at, width)
                            .and_then(|b| I::read_field(kind, b, at));
                        if let Some(new) = target.and_then(|t| self.followed(program, t)) {
                            out.push((at, kind, new));
                        }
                    }
                }
                out
            })
            .collect();
        for (at, kind, new) in edits {
            let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
            let Some(old) = program.elf.bytes_at(at, width) else {
                continue;
            };
            let mut bytes = old.to_vec();
            match I::write_field(kind, &mut bytes, at, new) {
                Ok(()) => writer.patch(at, &bytes)?,
                Err(_) => {
                    // Linkers turn a pair of instructions into a nop and one that reaches less: turn it back.
                    let before = at.wrapping_sub(width);
                    let nop = program
                        .elf
                        .bytes_at(before, width)
                        .and_then(|b| I::decode(b, before))
                        .is_some_and(|i| i.traits.nop);
                    let mut pair: Code<u64> = Code::default();
                    if !nop || !I::put_far(&mut pair, old, new) || pair.bytes.len() != 2 * old.len()
                    {
                        // The old address works as well, as an entry. Where others know the new one, the checker has the function put back.
                        continue;
                    }
                    fill::<I>(program, &mut pair, before, at)?;
                    writer.patch(before, &pair.bytes)?;
                }
            }
        }
        Ok(())
    }
}
