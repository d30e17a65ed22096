//! Counters at entries of functions that stay where they are: [`crate::entries`].

use postlink_elf::elf::SymbolTable;
use postlink_elf::note::{Note, NoteKind};
use postlink_elf::write::{InSection, NewKind, NewSection, Placed, SymbolEdit, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::coverage::{CallPlace, Covers};
use postlink_mip::Profile;
use rustc_hash::FxHashSet;

use super::runtime::{append_slow, put_runtime, slow_frames};
use super::{CoverageMode, CoverageOptions, call_counter};
use crate::analyse::Target;
use crate::discover::{NonlocalExits, Program};
use crate::entries::{self, Described, Entered, OwnTable, Places, Plan, Put, Stubs};
use crate::error::Error;
use crate::link::{self, ProbeAddresses, RoutineAt, hook};

/// Calls something with what puts a counter at an entry, and whether it may be in front of one. `None` where
/// more than entries count.
fn with_counter<I: Covers, R>(
    options: &CoverageOptions,
    near: bool,
    then: impl FnOnce(bool, Put<'_>) -> R,
) -> Option<R> {
    let edges = options.mode == CoverageMode::CallEdges;
    match options.mode {
        CoverageMode::BlockCoverage => None,
        CoverageMode::FunctionCoverage => Some(then(true, &|out, live, _| {
            I::put_covered(out, live, near, Target::Counter(0));
        })),
        CoverageMode::CallGraph | CoverageMode::CallEdges => {
            Some(then(false, &|out, live, alone| {
                let place = if alone {
                    CallPlace::Entry
                } else {
                    CallPlace::EntryAgain
                };
                I::put_called(out, live, call_counter(edges && alone, place));
            }))
        }
    }
}

/// How each function counts. `None` where more than entries count, or the unwind tables cannot be extended and calls
/// are not counted.
pub(super) fn plan<I: Covers>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    options: &CoverageOptions,
    near: bool,
) -> Option<Plan> {
    let functions = options.functions.as_ref();
    with_counter::<I, _>(options, near, |front, put| {
        entries::plan::<I>(
            program,
            nonlocal_exits,
            functions,
            &options.keep,
            front,
            // Re-emitted calls would name callers by addresses that the input has not.
            options.mode.calls(),
            put,
        )
    })?
}

/// Leaves functions as they were, by the addresses of their entries.
pub(super) fn take_back<I: Covers>(
    plan: &mut Plan,
    program: &Program<'_>,
    options: &CoverageOptions,
    near: bool,
    functions: &FxHashSet<u64>,
) {
    with_counter::<I, _>(options, near, |_, put| {
        plan.take_back::<I>(program, functions, put);
    });
}

/// Puts everything into the file.
pub(super) fn link<I: Covers>(
    program: &Program<'_>,
    plan: &Plan,
    options: &CoverageOptions,
    profile: &Profile,
    next: u64,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    let elf = program.elf;
    let sections = StubSections::append(plan, writer);
    let slow = append_slow::<I>(elf, options, profile, next, writer)?;
    let frames = slow_frames::<I>(elf, options, profile, next)?;
    let routines = slow.map(|slow| RoutineAt {
        start: slow.addr,
        frames,
    });
    put_frames::<I>(program, plan, sections.stubs, routines.as_ref(), writer)?;
    let entry = hook(elf)?;
    let copies = slow.as_slice();
    let (start, probes, _) = put_runtime::<I>(elf, options, profile, next, &entry, copies, writer)?;
    sections.fill::<I>(program, plan, profile, &probes, writer)?;
    entry.install(start, writer)?;
    sections.edit_symbols(program, plan, writer);
    // Nothing moved; what changed is proved from the bytes alone.
    let note = Note {
        basis: None,
        kind: NoteKind::Instrumented,
        input_id: elf.build_id.unwrap_or_default().to_vec(),
        functions: Vec::new(),
    };
    link::put_note(&note, writer)?;
    Ok(())
}

/// The sections that stubs are in: as many as fit in the first, and the rest.
struct StubSections {
    first: Option<Placed>,
    rest: Option<Placed>,
    stubs: Stubs,
}

impl StubSections {
    fn append(plan: &Plan, writer: &mut Writer<'_>) -> StubSections {
        let first_len = plan.fitting(writer.free_anywhere(entries::STUBS));
        let mut put = |name: &str, size: u64| {
            let section = NewSection {
                name: name.into(),
                kind: NewKind::Code,
                align: entries::STUBS,
                size,
            };
            (size > 0).then(|| writer.append_anywhere(section))
        };
        let first = put(".text.entries", first_len);
        let name = if first_len == 0 {
            ".text.entries"
        } else {
            ".text.entries.rest"
        };
        let rest = put(name, plan.size() - first_len);
        StubSections {
            first,
            rest,
            stubs: Stubs {
                first: first.map_or(OutputAddr::default(), |s| s.addr),
                first_len,
                rest: rest.map_or(OutputAddr::default(), |s| s.addr),
            },
        }
    }

    /// Fills the stubs, and leads what refers to functions to them.
    fn fill<I: Covers>(
        &self,
        program: &Program<'_>,
        plan: &Plan,
        profile: &Profile,
        probes: &ProbeAddresses,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let counter = |i: usize, n: u32| {
            let of_function = profile.functions[i].raw_offset - I::COUNTER_UNIT;
            probes.counters + of_function + probes.counter_size * u64::from(n)
        };
        let places = Places {
            stubs: self.stubs,
            counter: &counter,
            slow: probes.slow,
            slow_with_edges: probes.slow_with_edges,
        };
        let mut code = vec![0; plan.size() as usize];
        plan.fill::<I>(program, &places, &mut code, |at, bytes| {
            Ok(writer.patch(InputAddr::new(at), bytes)?)
        })?;
        let (in_first, in_rest) = code.split_at(self.stubs.first_len as usize);
        for (section, code) in [(self.first, in_first), (self.rest, in_rest)] {
            if let Some(section) = section {
                writer.contents(section.id).copy_from_slice(code);
            }
        }
        Ok(())
    }

    /// Dynamic symbols follow their functions to where these are entered.
    fn edit_symbols(&self, program: &Program<'_>, plan: &Plan, writer: &mut Writer<'_>) {
        let entered = plan.entered(program, &self.stubs);
        let symbols = program.elf.symbols(SymbolTable::Dynamic);
        for (index, s) in (0u32..).zip(symbols.iter()) {
            let Some(place) = entered
                .get(&InputAddr::new(s.value))
                .filter(|_| s.section != 0)
            else {
                continue;
            };
            let edit = match *place {
                Entered::Earlier(by) => SymbolEdit {
                    value: s.value - by,
                    size: if s.size == 0 { 0 } else { s.size + by },
                    section: InSection::Old(s.section),
                },
                Entered::Stub(at) => SymbolEdit {
                    value: at.get(),
                    size: s.size,
                    section: match (self.rest.filter(|r| at >= r.addr), self.first) {
                        (Some(section), _) | (None, Some(section)) => InSection::New(section.id),
                        (None, None) => InSection::Old(s.section),
                    },
                },
            };
            writer.edit_symbol(SymbolTable::Dynamic, index, edit);
        }
    }
}

/// Extends the unwind tables by an entry that describes the stubs, and the routines that they call.
fn put_frames<I: Covers>(
    program: &Program<'_>,
    plan: &Plan,
    stubs: Stubs,
    routines: Option<&RoutineAt>,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    if plan.size() == 0 {
        return Ok(());
    }
    let described = Described {
        places: stubs,
        len: plan.size(),
        routines,
    };
    let Some((search, of)) = plan.frames() else {
        if writer.has_search_table() {
            return put_own_table::<I>(program, plan, described, writer);
        }
        return Ok(());
    };
    let section = writer.append_anywhere(NewSection {
        name: ".eh_frame.entries".into(),
        kind: NewKind::ReadOnly,
        align: 8,
        size: search.size::<I>(program, described, of)?,
    });
    let (bytes, (at, word)) = search.extend::<I>(program, described, of, section.addr.get())?;
    let out = writer.contents(section.id);
    if out.len() != bytes.len() {
        return Err(Error::internal(format!(
            "the unwind entry of stubs has {} bytes, not {}",
            bytes.len(),
            out.len()
        )));
    }
    out.copy_from_slice(&bytes);
    writer.patch(InputAddr::new(at), &word)?;
    Ok(())
}

/// Adds a table for stubs, and routines if there are any, where there is none that could be extended.
fn put_own_table<I: Covers>(
    program: &Program<'_>,
    plan: &Plan,
    described: Described<'_>,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    let table = OwnTable::of::<I>(program, described, plan.stubs_of())?;
    let (size, searched) = table.sizes();
    let entries = link::read_only(writer, ".eh_frame.entries", size, 8);
    let search = link::read_only(writer, ".eh_frame_hdr.entries", searched, 4);
    let (entry_bytes, search_bytes) = table.write(entries.addr, search.addr)?;
    writer.contents(entries.id).copy_from_slice(&entry_bytes);
    writer.contents(search.id).copy_from_slice(&search_bytes);
    writer.add_search_table(search.id);
    Ok(())
}
