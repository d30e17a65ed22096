//! From emitted functions to a file: addresses, fixups, unwind tables, pointers, symbols.
//!
//! New code is after the old image, which keeps its bytes but for what is listed here:
//!
//! * at the old entry of a moved function a jump to the new one, so that whatever still refers to it works;
//!   likewise at other entries of the same function, which hand-written assembly has and functions that share
//!   a part, where a jump fits ([`SecondaryEntry`]);
//! * entries of jump tables and label tables of moved functions;
//! * if asked for, pointers to moved functions in data, relocations and symbols.
//!
//! The old body after its first instruction stays valid: an unknown reference continues working there.

use std::collections::BTreeSet;

use postlink_elf::elf::Elf;
use postlink_elf::note::NoteKind;
use postlink_elf::write::{NewKind, NewSection, Placed, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{Code, HUGE_PAGE, Isa};
use rustc_hash::FxHashMap;

use super::distances::{Distances, Gaps};
use super::own_tables::OwnTables;
use super::ready::{Ready, moving, moving_with};
use super::veneers::{self, Veneers};
use crate::analyse::{SecondaryEntry, Target};
use crate::cfg::BlockId;
use crate::discover::{Program, Visible};
use crate::error::Error;
use crate::passes::{Folded, Folds};

/// How functions are placed and what follows them.
pub struct LinkOptions<'a> {
    /// Names of the hot and the cold section.
    pub sections: [&'a str; 2],
    /// Alignment of functions in each.
    pub align: [u64; 2],
    /// By position: alignment of hot fragments; those that it does not have are aligned as the others.
    pub hot_alignment: Vec<u64>,
    /// Whether pointers to moved functions follow them where they may, see [`Visible`].
    pub move_pointers: bool,
    /// Distances between functions.
    pub distances: Distances,
    /// Space in old bodies that nothing comes to any more, for cold fragments: address and length each. May be empty.
    pub reusable: Vec<(InputAddr, u64)>,
    /// Whether it is for other fragments as well.
    pub room_for_all: bool,
    /// The recorders' slow path, which they call directly: a copy for each veneer group where there are more
    /// than one. Else the caller places it.
    pub slow: Vec<u8>,
    /// Bytes of the routine that counters of calls go to: space for one in each veneer group where there are more
    /// than one, which who counts fills ([`Placement::slow_copies`]).
    pub notes: u64,
    /// What the note says.
    pub kind: NoteKind,
    /// Identity of the input.
    pub input_id: Vec<u8>,
    /// Hot code has huge pages for itself.
    pub huge: bool,
}

impl LinkOptions<'_> {
    /// Alignment of a fragment of the i-th ready function.
    fn alignment(&self, i: u32, fragment: usize) -> u64 {
        let own = match fragment {
            0 => self.hot_alignment.get(i as usize),
            _ => None,
        };
        own.copied().unwrap_or(self.align[fragment])
    }

    /// What no fragment's alignment is more than.
    fn most_alignment(&self) -> [u64; 2] {
        let hot = self.hot_alignment.iter().copied();
        [hot.fold(self.align[0], u64::max), self.align[1]]
    }

    /// For an instrumented program: pointers stay the old entries, so what recorders see are addresses of the input.
    pub fn instrumented(elf: &Elf<'_>) -> Self {
        LinkOptions {
            sections: [".text.hot", ".text.cold"],
            align: [16, 16],
            hot_alignment: Vec::new(),
            move_pointers: false,
            distances: Distances::Least,
            reusable: Vec::new(),
            room_for_all: false,
            slow: Vec::new(),
            notes: 0,
            kind: NoteKind::Instrumented,
            input_id: elf.build_id.unwrap_or_default().to_vec(),
            huge: false,
        }
    }
}

/// Addresses that instrumentation adds.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeAddresses {
    /// First counter.
    pub counters: OutputAddr,
    /// Bytes of a counter.
    pub counter_size: u64,
    /// First site table.
    pub sites: OutputAddr,
    /// Load bias.
    pub bias: OutputAddr,
    /// Slow path of recorders, or the routine that notes first calls.
    pub slow: OutputAddr,
    /// The routine that notes where calls come from as well.
    pub slow_with_edges: OutputAddr,
    /// The byte that entry checks look at.
    pub ready: OutputAddr,
    /// The routine that gives a thread its counters.
    pub enter: OutputAddr,
    /// The word that says which thread is the owner of biased counters.
    pub owner: OutputAddr,
    /// How far behind the shared counters the owner's are.
    pub owners: u64,
}

/// Where everything went.
pub struct Placement {
    /// By [veneer_group](super::veneers): hot and cold section.
    pub(super) sections: Vec<[Option<Placed>; 2]>,
    /// By position: its veneer group.
    pub(super) veneer_groups: Vec<u16>,
    /// By position: bytes of its fragments and of its recorders.
    pub(super) sizes: Vec<[u32; 3]>,
    /// By position in the list of ready functions: address of each fragment.
    pub fragments: Vec<[OutputAddr; 2]>,
    /// By position: what the address of each fragment must be a multiple of for the sake of pointers.
    pub(super) alignment: Vec<[u64; 2]>,
    /// Offsets in the fragments of what may not be in the last words of a page
    /// ([`postlink_isa::Encode::not_near_end_of_page`]); empty if nothing is such.
    not_near_end_of_page: Vec<[Vec<u32>; 2]>,
    /// By position: whether a fragment is in the space of old bodies.
    pub in_old_body: Vec<[bool; 2]>,
    /// Old bodies in whose space something is, by their first address; ascending.
    pub(super) reused_bodies: Vec<InputAddr>,
    /// Where entries went.
    pub entries: FxHashMap<InputAddr, OutputAddr>,
    /// Functions for which the new code of others stands, and where that begins.
    pub(super) folded: Vec<(Folded, OutputAddr)>,
    /// By their old entries.
    pub(super) folded_entries: FxHashMap<InputAddr, OutputAddr>,
    /// Where control from outside goes, if elsewhere.
    pub external_entries: FxHashMap<InputAddr, OutputAddr>,
    /// By veneer group: recorders' section.
    pub(super) recorders: Vec<Option<Placed>>,
    pub(super) recorder_at: Vec<OutputAddr>,
    /// By veneer group: a copy of the recorders' slow path, if there is one.
    pub(super) slow: Vec<Option<OutputAddr>>,
    pub(super) slow_code: Vec<u8>,
    /// Space for the routine that counters of calls go to, by veneer group.
    pub slow_copies: Vec<Placed>,
    /// In each of these: the routine that notes where calls come from as well.
    pub slow_with_edges: Vec<OutputAddr>,
    /// Tables of new code's own.
    pub(super) own_tables: OwnTables,
    /// What direct jumps and calls of new code go by way of.
    pub(super) veneers: Veneers,
    /// Hot code that has huge pages for itself: address and bytes, both multiples of one.
    pub huge: Option<(OutputAddr, u64)>,
    /// An unwind table that start-up code registers, and where the new one is once it has a place.
    pub(super) frames: (
        Option<(InputAddr, InputAddr)>,
        std::sync::OnceLock<OutputAddr>,
    ),
}

/// Fills in the fields of code that is at `at`; if one is out of reach, the error names the function at `function`.
pub(super) fn fill<I: Isa>(
    program: &Program<'_>,
    code: &mut Code<OutputAddr>,
    at: OutputAddr,
    function: InputAddr,
) -> Result<(), Error> {
    for f in &code.fixups {
        I::write_field(
            f.kind,
            &mut code.bytes[f.at as usize..],
            (at + u64::from(f.at)).get(),
            f.target.get(),
        )
        .map_err(|source| Error::Reach {
            function: program.name_at(function.get()),
            source,
        })?;
    }
    Ok(())
}

/// Bytes of a page of which some processors do not like certain code in the last words.
const PAGE: u64 = 4096;

/// See [`Placement::free_of_erratum`]: of code with such places.
fn free_of_erratum<I: Isa>(places: &[u32], at: u64, align: u64) -> u64 {
    if places.is_empty() {
        return at;
    }
    let is_free = |at: &u64| {
        let mut all = places.iter();
        !all.any(|place| I::is_near_end_of_page(at + u64::from(*place)))
    };
    let mut others = (0..=PAGE / align).map(|k| at + k * align);
    others.find(is_free).unwrap_or(at)
}

/// Gives every fragment its address, in the given orders (positions in `ready`).
pub fn place<I: Isa>(
    program: &Program<'_>,
    ready: &[Ready],
    orders: [&[u32]; 2],
    options: &LinkOptions<'_>,
    writer: &mut Writer<'_>,
) -> Placement {
    // Functions are all over memory: it is waited for by all threads.
    let sizes = postlink_parallel::map(ready, |r| {
        let [hot, cold] = r.code.fragments.each_ref().map(|f| f.code.bytes.len());
        [hot, cold, r.recorders.bytes.len()].map(|len| len as u32) // offsets have 32 bits
    });
    let not_near_end_of_page = match I::INSTRUCTION_ALIGNMENT {
        1 => Vec::new(),
        _ => postlink_parallel::map(ready, |r| {
            let fragments = r.code.fragments.each_ref();
            fragments.map(|f| I::not_near_end_of_page(&f.code.bytes))
        }),
    };
    let veneer_groups =
        veneers::veneer_groups::<I>((ready, &sizes), orders[0], options.most_alignment());
    let count = usize::from(veneer_groups.iter().copied().max().unwrap_or(0)) + 1;
    let mut p = Placement {
        sections: vec![[None, None]; count],
        veneer_groups,
        sizes,
        not_near_end_of_page,
        fragments: vec![[OutputAddr::default(); 2]; ready.len()],
        alignment: ready
            .iter()
            .map(|r| {
                if options.move_pointers {
                    alignment(program, r)
                } else {
                    [1; 2]
                }
            })
            .collect(),
        in_old_body: vec![[false; 2]; ready.len()],
        reused_bodies: Vec::new(),
        entries: FxHashMap::default(),
        folded: Vec::new(),
        folded_entries: FxHashMap::default(),
        external_entries: FxHashMap::default(),
        recorders: vec![None; count],
        recorder_at: vec![OutputAddr::default(); ready.len()],
        slow: vec![None; count],
        slow_code: options.slow.clone(),
        slow_copies: Vec::new(),
        slow_with_edges: Vec::new(),
        own_tables: OwnTables::default(),
        veneers: Veneers::default(),
        huge: None,
        frames: (
            program
                .refs
                .registered_frames
                .map(|(start, end)| (InputAddr::new(start), InputAddr::new(end))),
            std::sync::OnceLock::new(),
        ),
    };
    p.take_space::<I>(program, ready, orders, options);
    for veneer_group in 0..count {
        p.place_veneer_group::<I>(ready, veneer_group, orders, options, writer);
    }
    p.own_tables = OwnTables::place(ready, writer);
    let entries = postlink_parallel::map_range(ready.len(), |i| {
        let r = &ready[i];
        let start = InputAddr::new(program.start(r.function as usize));
        (!r.taken_back).then(|| (start, p.block(ready, i, 0), u64::from(r.code.entry_check)))
    });
    let checked = entries.iter().flatten().filter(|(_, _, check)| *check > 0);
    p.external_entries.reserve(checked.count());
    p.entries.reserve(ready.len());
    for (start, entry, check) in entries.into_iter().flatten() {
        p.entries.insert(start, entry);
        if check > 0 {
            p.external_entries.insert(start, entry - check);
        }
    }
    for i in moving_with(ready, |r| !r.secondary_entries.is_empty()) {
        let r = &ready[i];
        for s in &r.secondary_entries {
            let external_entry = p.block(ready, i, s.block);
            p.external_entries.insert(s.patch.entry, external_entry);
        }
        for (block, fragment, offset) in &r.code.external_entries {
            let of_block = |s: &&SecondaryEntry| s.block == *block;
            let external_entry = p.fragments[i][usize::from(*fragment)] + u64::from(*offset);
            if let Some(s) = r.secondary_entries.iter().find(of_block) {
                p.external_entries.insert(s.patch.entry, external_entry);
            }
        }
    }
    p
}

/// What the addresses of a function's fragments must be multiples of, so that pointers to the function keep
/// the zero bits at their end.
pub fn alignment(program: &Program<'_>, r: &Ready) -> [u64; 2] {
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

/// The name of a section of a veneer group: all but the first are numbered.
fn name_in(veneer_group: usize, name: &str) -> String {
    match veneer_group {
        0 => name.to_owned(),
        n => format!("{name}.{}", n + 1),
    }
}

impl Placement {
    /// Lets control that goes to folded functions go to what stands for them. Called once all code has its place.
    pub fn fold(&mut self, program: &Program<'_>, folds: &Folds) {
        for f in &folds.list {
            let start = |function: u32| InputAddr::new(program.start(function as usize));
            if let Some(new) = self.entries.get(&start(f.into)).copied() {
                self.folded.push((*f, new));
                self.folded_entries.insert(start(f.function), new);
            }
        }
    }

    /// Positions in `order` that are in a veneer group.
    fn of_veneer_group<'o>(
        &self,
        veneer_group: usize,
        order: &'o [u32],
    ) -> impl Iterator<Item = u32> + use<'o, '_> {
        let here = move |i: &u32| usize::from(self.veneer_groups[*i as usize]) == veneer_group;
        order.iter().copied().filter(here)
    }

    /// Appends the sections of a veneer group.
    fn place_veneer_group<I: Isa>(
        &mut self,
        ready: &[Ready],
        veneer_group: usize,
        orders: [&[u32]; 2],
        options: &LinkOptions<'_>,
        writer: &mut Writer<'_>,
    ) {
        let most_alignment = options.most_alignment();
        for (f, order) in orders.iter().enumerate() {
            // Where instructions have one length, code is at multiples of it.
            let step = if I::PADDING == 0 { 4 } else { 1 };
            let own: Vec<u32> = self
                .of_veneer_group(veneer_group, order)
                .filter(|i| !self.in_old_body[*i as usize][f])
                .filter(|i| self.sizes[*i as usize][f] > 0)
                .collect();
            let mut at = 0u64;
            let mut gaps = Gaps::new(options.distances, f, own.len());
            for i in &own {
                let align = options.alignment(*i, f).max(self.alignment[*i as usize][f]);
                at += gaps.next(step, align);
                at = self.free_of_erratum::<I>((*i, f), at.next_multiple_of(align), align);
                self.fragments[*i as usize][f] = OutputAddr::new(at);
                at += u64::from(self.sizes[*i as usize][f]);
            }
            if at == 0 {
                continue;
            }
            let has_erratum = own.iter().any(|i| !self.of_erratum(*i, f).is_empty());
            let page = if has_erratum { PAGE } else { 16 };
            let huge = options.huge && f == 0 && self.sections.len() == 1;
            let (align, size) = if huge {
                (HUGE_PAGE, at.next_multiple_of(HUGE_PAGE))
            } else {
                (most_alignment[f].max(page), at)
            };
            let placed = writer.append(NewSection {
                name: name_in(veneer_group, options.sections[f]),
                kind: NewKind::Code,
                align,
                size,
            });
            if huge {
                self.huge = Some((placed.addr, size));
            }
            for i in &own {
                let in_section = self.fragments[*i as usize][f].get();
                self.fragments[*i as usize][f] = placed.addr + in_section;
            }
            self.sections[veneer_group][f] = Some(placed);
        }
        let all: Vec<u32> = (0..ready.len() as u32).collect();
        let own: Vec<u32> = self.of_veneer_group(veneer_group, &all).collect();
        let (mut at, mut align) = (0u64, 16);
        for i in &own {
            let places = I::not_near_end_of_page(&ready[*i as usize].recorders.bytes);
            if !places.is_empty() {
                align = PAGE;
                at = free_of_erratum::<I>(&places, at, I::INSTRUCTION_ALIGNMENT);
            }
            self.recorder_at[*i as usize] = OutputAddr::new(at);
            at += u64::from(self.sizes[*i as usize][2]);
        }
        if at > 0 {
            let slow = (self.sections.len() > 1 && !options.slow.is_empty())
                .then(|| at.next_multiple_of(16));
            let placed = writer.append(NewSection {
                name: name_in(veneer_group, ".text.record"),
                kind: NewKind::Code,
                align,
                size: slow.map_or(at, |slow| slow + options.slow.len() as u64),
            });
            self.slow[veneer_group] = slow.map(|slow| placed.addr + slow);
            for i in &own {
                let in_section = self.recorder_at[*i as usize].get();
                self.recorder_at[*i as usize] = placed.addr + in_section;
            }
            self.recorders[veneer_group] = Some(placed);
        }
        if self.sections.len() > 1 && options.notes > 0 {
            let placed = writer.append(NewSection {
                name: name_in(veneer_group, ".text.slow"),
                kind: NewKind::Code,
                align: 16,
                size: options.notes,
            });
            self.slow[veneer_group] = Some(placed.addr);
            self.slow_copies.push(placed);
        }
        if self.sections.len() > 1 {
            let list = own.iter().map(|i| &ready[*i as usize]);
            self.veneers
                .reserve::<I>(name_in(veneer_group, veneers::SECTION), list, writer);
        }
    }

    /// Offsets in a fragment of what may not be in the last words of a page.
    fn of_erratum(&self, i: u32, f: usize) -> &[u32] {
        let of_function = self.not_near_end_of_page.get(i as usize);
        of_function.map_or(&[], |fragments| &fragments[f])
    }

    /// The first address from `at` on, at a multiple of `align` from there, at which a fragment has nothing in the last
    /// words of a page that may not be there; `at` itself, if none is such a one: then the checker counts it.
    fn free_of_erratum<I: Isa>(&self, (i, f): (u32, usize), at: u64, align: u64) -> u64 {
        free_of_erratum::<I>(self.of_erratum(i, f), at, align)
    }

    /// Puts fragments into the space of old bodies: the largest first, each where it leaves the least.
    fn take_space<I: Isa>(
        &mut self,
        program: &Program<'_>,
        ready: &[Ready],
        orders: [&[u32]; 2],
        options: &LinkOptions<'_>,
    ) {
        let mut free: BTreeSet<(u64, u64)> = options
            .reusable
            .iter()
            .map(|(start, len)| (*len, start.get()))
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
            let align = options.alignment(i, f).max(self.alignment[i as usize][f]);
            let len = len(i, f);
            let gap = |start: u64| {
                let at = start.next_multiple_of(align);
                self.free_of_erratum::<I>((i, f), at, align) - start
            };
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
            self.fragments[i as usize][f] = InputAddr::new(start).kept();
            self.in_old_body[i as usize][f] = true;
            self.reused_bodies.extend(
                program
                    .piece_at(start)
                    .map(|piece| InputAddr::new(piece.start)),
            );
        }
        self.reused_bodies.sort_unstable();
        self.reused_bodies.dedup();
    }

    /// Puts veneers where direct jumps and calls of new code do not reach old code.
    pub fn plan_veneers<I: Isa>(
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
        for (i, r) in moving(ready) {
            let fragments = r
                .code
                .fragments
                .iter()
                .map(|f| &f.code)
                .zip(self.fragments[i]);
            for (code, base) in fragments.chain([(&r.recorders, self.recorder_at[i])]) {
                for (f, input) in veneers::branches(code) {
                    list.push(veneers::Branch {
                        veneer_group: self.veneer_groups[i],
                        place: base + u64::from(f.at),
                        input: InputAddr::new(input),
                        target: self.resolve(ready, i, f.target, &none),
                    });
                }
            }
        }
        self.veneers
            .plan::<I>(program, &self.entries, &list, writer);
    }

    /// Where copies of the recorders' slow path are.
    pub fn copies_of_slow_path(&self) -> impl Iterator<Item = OutputAddr> + '_ {
        let copies = self.slow.iter().flatten().copied();
        copies.filter(|_| !self.slow_code.is_empty())
    }

    /// Output address of a block of the i-th ready function.
    pub fn block(&self, ready: &[Ready], i: usize, b: BlockId) -> OutputAddr {
        let (fragment, offset) = ready[i].code.blocks[b as usize];
        self.fragments[i]
            .get(usize::from(fragment))
            .map_or(OutputAddr::default(), |a| *a + u64::from(offset))
    }

    /// The new unwind table, if an address is in the old one and start-up code registers that.
    pub(super) fn frame_at(&self, addr: InputAddr) -> Option<OutputAddr> {
        let (start, end) = self.frames.0?;
        (addr >= start && addr < end).then(|| self.frames.1.get().copied())?
    }

    fn resolve(
        &self,
        ready: &[Ready],
        i: usize,
        target: Target,
        probes: &ProbeAddresses,
    ) -> OutputAddr {
        let r = &ready[i];
        match target {
            Target::Block(b) => self.block(ready, i, b),
            Target::Code(a) => {
                let a = InputAddr::new(a);
                let moved = self.entries.get(&a).or_else(|| self.folded_entries.get(&a));
                let moved = moved.copied().or_else(|| self.frame_at(a));
                moved.unwrap_or(a.kept())
            }
            Target::Same(a) => InputAddr::new(a).kept(),
            Target::OwnTable(n) => self.own_tables.displacement(r, i, n),
            Target::OwnBase(n) => self.own_tables.base(r, i, n),
            Target::Counter(c) => {
                probes.counters + probes.counter_size * (r.counter_base + u64::from(c))
            }
            Target::SiteWord(w) => {
                probes.sites + 64 * (r.site_base + u64::from(w / 8)) + 8 * u64::from(w % 8)
            }
            Target::OwnersCounter(c) => {
                self.resolve(ready, i, Target::Counter(c), probes) + probes.owners
            }
            Target::OwnersSiteWord(w) => {
                self.resolve(ready, i, Target::SiteWord(w), probes) + probes.owners
            }
            Target::Owner => probes.owner,
            Target::Recorder(s) => self.recorder_at[i] + u64::from(r.recorder_offsets[s as usize]),
            Target::Bias => probes.bias,
            Target::Slow => self.slow[usize::from(self.veneer_groups[i])].unwrap_or(probes.slow),
            Target::SlowWithEdges => {
                let copy = self.slow_with_edges.get(usize::from(self.veneer_groups[i]));
                copy.copied().unwrap_or(probes.slow_with_edges)
            }
            Target::Ready => probes.ready,
            Target::Enter => probes.enter,
            Target::Unit(_) => OutputAddr::default(),
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
        let in_old_body = |i: usize| (0..2).filter(move |f| self.in_old_body[i][*f]);
        let in_old_bodies = (0..ready.len()).flat_map(|i| in_old_body(i).map(move |f| (i, f)));
        for (i, f) in in_old_bodies.filter(|(i, _)| !ready[*i].taken_back) {
            let (code, at) = (&ready[i].code.fragments[f].code, self.fragments[i][f]);
            let mut bytes = code.bytes.clone();
            self.resolve_fixups::<I>(program, ready, i, code, at, probes, &mut bytes)?;
            writer.patch(at.in_old_image(), &bytes)?;
        }
        let all: Vec<u32> = (0..ready.len() as u32).collect();
        for veneer_group in 0..self.sections.len() {
            for (f, order) in orders.iter().enumerate() {
                let Some(placed) = self.sections[veneer_group][f] else {
                    continue;
                };
                let list: Vec<(u32, OutputAddr, &Code<Target>)> = self
                    .of_veneer_group(veneer_group, order)
                    .filter(|i| !self.in_old_body[*i as usize][f])
                    .filter(|i| self.sizes[*i as usize][f] > 0)
                    .map(|i| {
                        (
                            i,
                            self.fragments[i as usize][f],
                            &ready[i as usize].code.fragments[f].code,
                        )
                    })
                    .collect();
                let part = (placed, f);
                self.fill_section::<I>(program, ready, &list, part, probes, writer)?;
            }
            if let Some(placed) = self.recorders[veneer_group] {
                let list: Vec<(u32, OutputAddr, &Code<Target>)> = self
                    .of_veneer_group(veneer_group, &all)
                    .filter(|i| self.sizes[*i as usize][2] > 0)
                    .map(|i| {
                        (
                            i,
                            self.recorder_at[i as usize],
                            &ready[i as usize].recorders,
                        )
                    })
                    .collect();
                let part = (placed, 2);
                self.fill_section::<I>(program, ready, &list, part, probes, writer)?;
                if let Some(slow) = self.slow[veneer_group] {
                    let at = (slow - placed.addr) as usize;
                    if let Some(end) = writer.contents(placed.id).get_mut(at..) {
                        end.copy_from_slice(&self.slow_code);
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills a section with these parts of functions: their hot fragments (0), cold ones (1) or recorders (2).
    fn fill_section<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        list: &[(u32, OutputAddr, &Code<Target>)],
        (placed, part): (Placed, usize),
        probes: &ProbeAddresses,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let mut rest = writer.contents(placed.id);
        let mut at = placed.addr;
        let mut parts = Vec::with_capacity(list.len());
        for x in list {
            let gap = (x.1 - at) as usize;
            let len = self.sizes[x.0 as usize][part];
            let (own, more) = rest.split_at_mut(gap + len as usize);
            parts.push((own, gap, x));
            rest = more;
            at = x.1 + u64::from(len);
        }
        rest.fill(I::PADDING);
        let filled = postlink_parallel::map_owned(parts, |(out, gap, (i, base, code))| {
            let (gap, out) = out.split_at_mut(gap);
            gap.fill(I::PADDING);
            if ready[*i as usize].taken_back {
                out.fill(I::PADDING);
                return Ok(());
            }
            out.copy_from_slice(&code.bytes);
            self.resolve_fixups::<I>(program, ready, *i as usize, code, *base, probes, out)
        });
        filled.into_iter().collect()
    }

    /// Fills the fields of code that is at `base`.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call; a struct would only rename them"
    )]
    fn resolve_fixups<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        i: usize,
        code: &Code<Target>,
        base: OutputAddr,
        probes: &ProbeAddresses,
        out: &mut [u8],
    ) -> Result<(), Error> {
        for f in &code.fixups {
            let target = self.resolve(ready, i, f.target, probes);
            let target = self.veneers.instead::<I>(
                self.veneer_groups[i],
                f.kind,
                base + u64::from(f.at),
                target,
            );
            I::write_field(
                f.kind,
                &mut out[f.at as usize..],
                (base + u64::from(f.at)).get(),
                target.get(),
            )
            .map_err(|e| Error::Reach {
                function: program.name(ready[i].function as usize),
                source: e,
            })?;
        }
        Ok(())
    }

    /// The new entry of the function at `start`, if it moved and pointers to it may follow.
    pub(super) fn followed(&self, program: &Program<'_>, start: InputAddr) -> Option<OutputAddr> {
        let new = self.entries.get(&start).copied();
        new.filter(|_| program.may_follow(start.get()))
    }
}
