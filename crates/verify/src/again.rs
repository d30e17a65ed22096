//! Verdicts of one check that hold in the next, for another output of the same input.
//!
//! When a function is refused, the rewriter leaves it where it was and writes another output. In that nearly
//! everything is as it was, and most verdicts of the first check would be found again. They are taken over here,
//! under conditions that the checker itself establishes from the two outputs; nothing is believed of what the
//! rewriter changed.
//!
//! # Why this is sound
//!
//! Walking a function is a calculation: its result depends on the input, the options, on what the [`Context`] says,
//! and on the output's bytes that it reads. The result is taken over if all of these are equal, or equal as far
//! as they were looked at:
//!
//! | what | how it is known to be equal |
//! |---|---|
//! | input, options, and what the context says of the files as a whole | compared: [`Facts`] |
//! | moved functions | those of the second claim are some of the first claim's, each with the same record; jumps at old entries, new code in old bodies, ends and functions that calculate are the first's without those of functions that are gone. So an address is the same function's as before, or no function's where it was one's that is gone |
//! | functions that a walk asked for | noted at every look-up ([`crate::consulted`]): none of them is gone |
//! | bytes of the output | all loaded bytes of both outputs are compared by digests; what a walk read is noted, and has none of the differences |
//! | unwind rows | the unwind table is read before, not noted: digests of what the function's entries mean are compared |
//! | pairs that others demand | the function's roots are compared; and no function that is gone demanded a pair of it. Where others demand less than before, a pair too many was shown. What two functions whose walks are taken over demand of each other was granted in the first check, and is not looked at again |
//!
//! The same goes for parts of the old code that were swept ([`Swept`]); parts with a failure are swept
//! again. What was looked for in the whole input and leads into jumps at old entries ([`crate::proof::inside`])
//! was looked for with more jumps than there are now: what is found with fewer is what was found, without what
//! leads to those that are gone.
//!
//! Recorders of indirect calls are unwound from at each of their instructions, function by function. How many that
//! were is taken over if they are at the same addresses, what was read of them has no differences, the same
//! routines destroy the same registers, and the unwind entries that were consulted, which count as read from end to
//! end of their code, mean the same ([`Unwound`]).
//!
//! Bytes of the old image that were equal to the input's, and in which the second output does not differ from the
//! first, still are. What is known of the input alone ([`Visible`]) is the same for the same input.
//!
//! Of the first output only digests are kept (XXH3 of 128 bits, as in the certificate), so the second may be
//! written over it.
//!
//! Everything else is done again, from the files. If anything above does not hold for the outputs as wholes,
//! nothing is taken over.

use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::consulted::Consulted;
use crate::context::{Context, Counts, FuncId, Numbers, PairsByFunction, renumber};
use crate::files::claim::{Moved, Range};
use crate::files::elf::Elf;
use crate::files::personality::Asked;
use crate::files::unwind::Table;
use crate::proof::counting::{Recorders, Unwound};
use crate::proof::inside;
use crate::proof::text::Swept;
use crate::proof::visible::Visible;
use crate::report::{Digest, Options};
use crate::walk::Walked;
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Pairs of one function.
type Pairs = Vec<Pair>;

/// Roots of the lock step by function.
#[derive(Clone, Default)]
pub(crate) struct Roots {
    /// What differences between the files demand.
    pub first: PairsByFunction,
    /// What walks of other functions demand beside that.
    pub more: BTreeMap<FuncId, Pairs>,
}

impl Roots {
    /// All of a function's.
    pub(crate) fn of(&self, id: FuncId) -> Cow<'_, [Pair]> {
        let first = self.first.of(id);
        match self.more.get(&id) {
            None => Cow::Borrowed(first),
            Some(more) => Cow::Owned([first, more].concat()),
        }
    }

    pub(crate) fn holds(&self, id: FuncId, pair: Pair) -> bool {
        let more = self.more.get(&id);
        self.first.of(id).binary_search(&pair).is_ok() || more.is_some_and(|r| r.contains(&pair))
    }
}

/// How many loaded bytes have one digest.
const CHUNK: usize = 128;

/// What is kept of a check.
#[derive(Clone)]
pub(crate) struct Kept<'a> {
    input: &'a [u8],
    /// Digests of the output's loaded bytes.
    loaded: Vec<Vec<u128>>,
    /// Of the output's unwind entries, ascending: the code's start and end, and a digest of what they mean.
    unwind: Vec<(u64, u64, u128)>,
    input_digest: Digest,
    facts: Facts,
    of_functions: OfFunctions,
    /// Those of the claim: whoever has them gives them.
    pub functions: Vec<Moved>,
    /// Facts about the input alone.
    pub named: Named<'a>,
    pub found: Found,
    /// How many functions' walks were those of the check before.
    pub taken_over: usize,
}

/// Names and places of the input's functions.
#[derive(Clone, Default)]
pub(crate) struct Named<'a> {
    /// What [`crate::proof::visible::named`] gives.
    pub extents: Vec<(u64, u64, bool)>,
    /// By address of moved functions: of several names of a place the first that has a size, then a global one.
    pub names: FxHashMap<u64, ((bool, bool), &'a [u8])>,
    /// What [`crate::proof::text::symbols`] gives.
    pub starts: Vec<u64>,
}

/// The results that may be used again.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub swept: Option<Sweep>,
    pub inside: Option<inside::Found>,
    pub walked: Vec<Walked>,
    pub roots: Roots,
    /// Pieces of the old image that are equal to the input's, ascending.
    pub equal: Vec<Range>,
    pub visible: Option<Arc<Visible>>,
    pub unwound: Unwound,
}

/// A sweep of all old code.
#[derive(Clone, Default)]
pub(crate) struct Sweep {
    /// Where decoding starts.
    pub starts: Vec<u64>,
    /// Relocated places.
    pub relative: Vec<u64>,
    pub parts: Vec<Swept>,
}

/// Facts about the two files as wholes.
#[derive(Clone, PartialEq, Eq)]
struct Facts {
    options: Options,
    /// Loaded segments of the output: flags, address, size in the file and in memory.
    loads: Vec<(u32, u64, u64, u64)>,
    code: Vec<Range>,
    unwind: (u64, bool),
    asked: Vec<Asked>,
    abandoned: Vec<Range>,
    counts: Option<Counts>,
    slots: FxHashSet<u64>,
    loaded: Vec<u64>,
    relocated_constants: Vec<u64>,
    flags: [bool; 4],
}

impl Facts {
    fn of(cx: &Context<'_>) -> Self {
        // Whoever gives the context another field has to say here, or in `OfFunctions`, how it is known to be the same.
        let Context {
            input: _,
            output,
            functions: _,
            options,
            maps: _,
            old: _,
            new: _,
            patches: _,
            interiors: _,
            arrivals: _,
            reused: _,
            buried: _,
            code,
            old_unwind: _,
            new_unwind,
            asked,
            abandoned,
            guarded,
            counts,
            debug_files: _,
            split: _,
            has_debug_info,
            ends: _,
            // The input alone decides it.
            distances: _,
            calculating: _,
            described,
            bare,
            loaded,
            // The input alone decides it, once a function asks for it.
            words: _,
            slots,
            without_return: _,
            relocated_constants,
            startup: _,
        } = cx;
        let loads = output.loads().iter();
        Facts {
            options: **options,
            loads: loads
                .map(|s| (s.flags, s.addr, s.file_size, s.mem_size))
                .collect(),
            code: code.clone(),
            unwind: (new_unwind.addr, new_unwind.searchable),
            asked: asked.clone(),
            abandoned: abandoned.clone(),
            counts: counts.clone(),
            slots: slots.clone(),
            loaded: loaded.clone(),
            relocated_constants: relocated_constants.clone(),
            flags: [*guarded, *bare, *described, *has_debug_info],
        }
    }
}

/// Facts about single functions, without what is in the claim; ascending.
#[derive(Clone, PartialEq, Eq)]
struct OfFunctions {
    patches: Vec<(Range<InputAddr>, FuncId)>,
    interiors: Vec<(Range<InputAddr>, FuncId)>,
    arrivals: Vec<(Range<InputAddr>, FuncId)>,
    reused: Vec<(Range<OutputAddr>, FuncId)>,
    buried: Vec<FuncId>,
    ends: Vec<(InputAddr, FuncId)>,
    calculating: Vec<FuncId>,
}

impl OfFunctions {
    fn of(cx: &Context<'_>) -> Self {
        let all = 0..cx.functions.len() as FuncId;
        let mut ends: Vec<_> = cx.ends.iter().map(|(addr, id)| (*addr, *id)).collect();
        ends.sort_unstable();
        let mut calculating: Vec<_> = cx.calculating.iter().copied().collect();
        calculating.sort_unstable();
        OfFunctions {
            patches: cx.patches.ranges().collect(),
            interiors: cx.interiors.ranges().collect(),
            arrivals: cx.arrivals.ranges().collect(),
            reused: cx.reused.ranges().collect(),
            buried: all.filter(|id| cx.is_buried(*id)).collect(),
            ends,
            calculating,
        }
    }

    /// Without functions that are gone, by the others' new numbers.
    fn renumbered(&self, numbers: &Numbers) -> Self {
        fn of<K: Copy>(list: &[(K, FuncId)], numbers: &Numbers) -> Vec<(K, FuncId)> {
            let still = list.iter();
            still
                .filter_map(|(key, id)| Some((*key, numbers.of(*id)?)))
                .collect()
        }
        let ids = |list: &[FuncId]| list.iter().filter_map(|id| numbers.of(*id)).collect();
        OfFunctions {
            patches: of(&self.patches, numbers),
            interiors: of(&self.interiors, numbers),
            arrivals: of(&self.arrivals, numbers),
            reused: of(&self.reused, numbers),
            buried: ids(&self.buried),
            ends: of(&self.ends, numbers),
            calculating: ids(&self.calculating),
        }
    }
}

impl<'a> Kept<'a> {
    /// Whether these are the input's bytes, in the same place.
    pub(crate) fn is_of(&self, input: &[u8]) -> bool {
        std::ptr::eq(self.input, input)
    }

    /// `None`: the output cannot be compared with another.
    pub(crate) fn new(
        cx: &Context<'_>,
        input: &'a [u8],
        input_digest: Digest,
        found: Found,
        taken_over: usize,
    ) -> Option<Self> {
        Some(Kept {
            input,
            loaded: digests(cx.output)?,
            unwind: meanings(&cx.new_unwind)?,
            input_digest,
            facts: Facts::of(cx),
            of_functions: OfFunctions::of(cx),
            functions: Vec::new(),
            named: Named::default(),
            found,
            taken_over,
        })
    }
}

/// What of a check before may be used in this one.
pub(crate) struct Again<'a> {
    before: Kept<'a>,
    pub numbers: Numbers,
    /// Ranges of the output that differ from the output before, ascending.
    differences: Vec<Range>,
    /// Ranges of code whose unwind entries do not mean what they meant, ascending and disjoint.
    other_entries: Vec<Range>,
    pub taken_over: usize,
}

impl<'a> Again<'a> {
    /// `None`: the two checks have too little in common.
    pub(crate) fn new(cx: &Context<'_>, mut before: Kept<'a>) -> Option<Self> {
        let numbers = Numbers::new(&before.functions, cx.functions)?;
        let same_input = before.is_of(cx.input.data) || before.input == cx.input.data;
        let same = same_input
            && before.facts == Facts::of(cx)
            && before.of_functions.renumbered(&numbers) == OfFunctions::of(cx);
        if !same {
            return None;
        }
        let differences = differences(&before.loaded, cx.output)?;
        before.loaded = Vec::new();
        cx.maps.give_back();
        let other_entries = other_entries(&std::mem::take(&mut before.unwind), &cx.new_unwind)?;
        // Those that consulted a function that is gone are gone with it.
        before.found.unwound.of.retain_mut(|(id, recorders)| {
            let consulted = &mut recorders.consulted.functions;
            renumber(consulted.iter_mut().chain([id]), &numbers)
        });
        Some(Again {
            differences,
            other_entries,
            before,
            numbers,
            taken_over: 0,
        })
    }

    /// The input's, which is the same.
    pub(crate) fn input_digest(&self) -> &Digest {
        &self.before.input_digest
    }

    /// Whether everything that was consulted is what it was.
    fn holds(&self, consulted: &Consulted) -> bool {
        let there = |id: &FuncId| self.numbers.of(*id).is_some();
        let same = |read: &(u64, u64)| self.is_same(*read);
        consulted.functions.iter().all(there) && consulted.reads.iter().all(same)
    }

    /// Whether bytes of the output are what they were.
    fn is_same(&self, (start, end): (u64, u64)) -> bool {
        let next = self.differences.partition_point(|d| d.end <= start);
        self.differences.get(next).is_none_or(|d| d.start >= end)
    }

    /// Parts of the code swept before, if they are the same parts; `None` in the place of those that are to be
    /// swept again.
    pub(crate) fn swept(&mut self, starts: &[u64], relative: &[u64]) -> Option<Vec<Option<Swept>>> {
        let sweep = self.before.found.swept.take()?;
        if sweep.starts != starts || sweep.relative != relative {
            return None;
        }
        let again = |mut part: Swept| {
            let clean = part.found.functions.is_empty() && part.found.file.is_empty();
            let holds = clean && self.holds(&part.consulted);
            (holds && part.renumber(&self.numbers)).then_some(part)
        };
        Some(sweep.parts.into_iter().map(again).collect())
    }

    /// Pieces of the old image that were equal to the input's and still are, ascending.
    pub(crate) fn equal(&self) -> Vec<Range> {
        let pieces = self.before.found.equal.iter().copied();
        pieces
            .filter(|piece| self.is_same((piece.start, piece.end)))
            .collect()
    }

    /// What is known of the input alone.
    pub(crate) fn visible(&self) -> Option<Arc<Visible>> {
        self.before.found.visible.clone()
    }

    /// What unwinding from these recorders of a function gave, if it would give the same.
    pub(crate) fn unwound(
        &self,
        id: FuncId,
        recorders: &[OutputAddr],
        routines: &[(u64, u32)],
    ) -> Option<&Recorders> {
        let unwound = &self.before.found.unwound;
        let at = unwound.of.binary_search_by_key(&id, |of| of.0).ok()?;
        let known = &unwound.of.get(at)?.1;
        let mut reads = known.consulted.reads.iter().copied();
        let is_same = *known.at == *recorders
            && unwound.routines == routines
            && reads.all(|range| self.is_same(range) && self.has_same_entries(range));
        is_same.then_some(known)
    }

    /// What was found to lead into jumps at old entries.
    pub(crate) fn inside(&mut self) -> Option<inside::Found> {
        let found = self.before.found.inside.take()?;
        Some(found.renumbered(&self.numbers))
    }

    /// Functions walked before, by their numbers now; empty results in the place of those that are to be walked
    /// again, with their numbers, ascending. Adds the roots that were demanded by walks.
    pub(crate) fn walked(
        &mut self,
        cx: &Context<'_>,
        roots: &mut Roots,
    ) -> (Vec<Walked>, Vec<FuncId>) {
        let mut walked = std::mem::take(&mut self.before.found.walked);
        let kept = std::mem::take(&mut self.before.found.roots);
        let gone = (0..)
            .zip(&walked)
            .filter(|(id, _)| self.numbers.of(*id).is_none());
        let demanded: FxHashSet<FuncId> = gone
            .flat_map(|(_, w)| &w.cross)
            .filter_map(|(_, new)| cx.new.owner(*new))
            .collect();
        let holds = |id: FuncId, w: &mut Walked| {
            self.numbers.of(id).is_some_and(|now| {
                w.failure.is_none()
                    && !demanded.contains(&now)
                    && kept.first.of(id) == roots.first.of(now)
                    && self.holds(&w.consulted)
                    && self.has_same_rows(cx, now)
                    && w.renumber(&self.numbers)
            })
        };
        // Results are many and large, so they stay in the list that they are in.
        let holds = postlink_parallel::map_mut(&mut walked, |id, w| holds(id as FuncId, w));
        let mut again = Vec::new();
        let mut id: FuncId = 0;
        walked.retain_mut(|w| {
            let (before, holds) = (id, holds.get(id as usize) == Some(&true));
            id += 1;
            let Some(now) = self.numbers.of(before) else {
                return false;
            };
            if !holds {
                *w = Walked::default();
                again.push(now);
            } else if let Some(more) = kept.more.get(&before) {
                roots.more.insert(now, more.clone());
            }
            true
        });
        self.taken_over = walked.len() - again.len();
        (walked, again)
    }

    /// Whether the unwind entries of a function's new code mean what they meant.
    fn has_same_rows(&self, cx: &Context<'_>, id: FuncId) -> bool {
        cx.function(id).is_some_and(|f| {
            let mut ranges = f.new.iter().map(Range::numbers);
            ranges.all(|r| self.has_same_entries((r.start, r.end)))
        })
    }

    /// Whether the unwind entries that share an address with a range mean what they meant.
    fn has_same_entries(&self, (start, end): (u64, u64)) -> bool {
        let next = self.other_entries.partition_point(|d| d.end <= start);
        let other = self.other_entries.get(next);
        other.is_none_or(|d| d.start >= end)
    }
}

/// Of unwind entries, ascending: the code's start and end, and a digest of what they mean; `None` if one has no common
/// entry.
fn meanings(table: &Table<'_>) -> Option<Vec<(u64, u64, u128)>> {
    let all = postlink_parallel::map(&table.fdes, |fde| {
        Some((fde.start, fde.end, table.meaning(fde)?))
    });
    all.into_iter().collect()
}

/// Code of entries that are in one of two tables alone, or do not mean the same in both; ascending and disjoint.
fn other_entries(before: &[(u64, u64, u128)], now: &Table<'_>) -> Option<Vec<Range>> {
    let now = meanings(now)?;
    let mut all = Vec::new();
    let (mut before, mut now) = (before.iter().peekable(), now.iter().peekable());
    let code = |entry: &(u64, u64, u128)| Range {
        start: entry.0,
        // One without code is where it begins.
        end: entry.1.max(entry.0.saturating_add(1)),
    };
    while let Some(first) = [before.peek(), now.peek()].into_iter().flatten().min() {
        let first = **first;
        let was = before.next_if(|entry| **entry == first);
        let is = now.next_if(|entry| **entry == first);
        if was.is_none() || is.is_none() {
            all.push(code(&first));
        }
    }
    all.sort_unstable();
    all.dedup_by(|next, range| {
        let joins = next.start <= range.end;
        if joins {
            range.end = range.end.max(next.end);
        }
        joins
    });
    Some(all)
}

/// Digests that are made at a time: of half a megabyte.
const AT_A_TIME: usize = 1 << 12;

/// Digests of the loaded bytes, by segment.
fn digests(elf: &Elf<'_>) -> Option<Vec<Vec<u128>>> {
    let of = |bytes: &[u8]| {
        let mut all = vec![0; bytes.len().div_ceil(CHUNK)];
        let parts = all.chunks_mut(AT_A_TIME);
        let mut parts: Vec<_> = parts.zip(bytes.chunks(AT_A_TIME * CHUNK)).collect();
        postlink_parallel::map_mut(&mut parts, |_, (digests, bytes)| {
            for (digest, chunk) in digests.iter_mut().zip(bytes.chunks(CHUNK)) {
                *digest = xxh3_128(chunk);
            }
        });
        all
    };
    let loads = elf.loads().iter();
    loads
        .map(|s| Some(of(elf.bytes(s.addr, s.file_size)?)))
        .collect()
}

/// Where the loaded bytes of a file differ from what had these digests; `None` if they are not loaded alike.
fn differences(before: &[Vec<u128>], now: &Elf<'_>) -> Option<Vec<Range>> {
    if now.loads().len() != before.len() {
        return None;
    }
    let mut all = Vec::new();
    for (s, before) in now.loads().iter().zip(before) {
        let bytes = now.bytes(s.addr, s.file_size)?;
        if bytes.len().div_ceil(CHUNK) != before.len() {
            return None;
        }
        let parts = before.chunks(AT_A_TIME);
        let parts: Vec<_> = parts.zip(bytes.chunks(AT_A_TIME * CHUNK)).collect();
        let differs = |(digests, bytes): &(&[u128], &[u8])| -> Vec<usize> {
            let chunks = digests.iter().zip(bytes.chunks(CHUNK)).enumerate();
            let others = chunks.filter(|(_, (digest, chunk))| **digest != xxh3_128(chunk));
            others.map(|(number, _)| number).collect()
        };
        let found = postlink_parallel::map(&parts, differs);
        for (first, numbers) in (0..).step_by(AT_A_TIME).zip(found) {
            all.extend(numbers.into_iter().map(|number: usize| {
                let start = s.addr + ((first + number) * CHUNK) as u64;
                Range {
                    start,
                    end: start + CHUNK as u64,
                }
            }));
        }
    }
    all.sort_unstable();
    Some(all)
}

impl Walked {
    /// With functions' new numbers; false: one of them is gone.
    fn renumber(&mut self, numbers: &Numbers) -> bool {
        let Walked {
            failure: _,
            pairs: _,
            cross: _,
            addresses,
            entrances,
            labels,
            inside,
            instructions: _,
            assumed_no_return: _,
            unreached: _,
            silent: _,
            free: _,
            footprint: _,
            touches_own: _,
            no_caller: _,
            by_convention: _,
            recorded: _,
            recorders: _,
            moved_stack_rows: _,
            falls_back: _,
            tables: _,
            kept_by_calls: _,
            behind_tables: _,
            without_return: _,
            unnamed_reader: _,
            changes: _,
            registers: _,
            consulted,
        } = self;
        let addresses = addresses.iter_mut().map(|a| &mut a.0);
        let inside = inside.iter_mut().chain(labels.iter_mut()).map(|i| &mut i.0);
        let others = entrances.iter_mut().chain(&mut consulted.functions);
        renumber(addresses.chain(inside).chain(others), numbers)
    }
}

impl Swept {
    /// With functions' new numbers; false: one of them is gone.
    fn renumber(&mut self, numbers: &Numbers) -> bool {
        self.found.renumber(numbers) && renumber(&mut self.consulted.functions, numbers)
    }
}
