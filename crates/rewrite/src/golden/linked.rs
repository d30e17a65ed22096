//! Linked files as text: which functions stay and why, where the others went, what their fixups became, and
//! what changed in the old image.

use std::collections::BTreeSet;
use std::fs;

use postlink_elf::OutputAddr;
use postlink_elf::elf::Elf;
use postlink_elf::note::NoteKind;
use postlink_elf::write::{WriteOptions, Writer};
use postlink_isa::{Code, Flow, Insn, Isa};

use super::show::{Names, kind_of, line, program_of, reason};
use crate::analyse::{EntryPatch, Scratch, Target, prepare};
use crate::discover::{NonlocalExits, Program};
use crate::emit::{Plan, Stack, carry, emit as emit_function};
use crate::link::{self, LinkOptions, ProbeAddresses, Ready, ReadyFunction};
use crate::pin::Pin;

/// Moves all functions that can be moved, in the opposite order.
pub(super) fn link<I: Isa>(elf: &Elf<'_>) -> String {
    match linked::<I>(elf) {
        Ok(shown) => shown,
        Err(what) => what,
    }
}

fn error(what: impl std::fmt::Display) -> String {
    format!("error: {what}\n")
}

fn linked<I: Isa>(elf: &Elf<'_>) -> Result<String, String> {
    let program = program_of::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    let mut scratch = Scratch::default();
    let (mut ready, mut patches, mut out) = (Vec::new(), Vec::new(), String::new());
    for f in 0..program.functions.len() {
        match make::<I>(&program, &nonlocal_exits, f, &mut scratch) {
            Ok((one, patch)) => {
                ready.push(one);
                patches.extend(patch);
            }
            Err(pin) => {
                let name = program.name(f);
                line(
                    &mut out,
                    format_args!("function {name} stays: {}", reason(pin)),
                );
            }
        }
    }
    let options = LinkOptions {
        move_pointers: true,
        kind: NoteKind::Optimised,
        ..LinkOptions::instrumented(elf)
    };
    let order: Vec<u32> = (0..ready.len() as u32).rev().collect();
    let mut writer = Writer::new(elf, WriteOptions::default()).map_err(error)?;
    let mut placed = link::place::<I>(&program, &ready, [&order, &order], &options, &mut writer);
    placed.plan_veneers::<I>(&program, &ready, &mut writer);
    let mut rest = || {
        placed.unwind::<I>(&program, &ready, &[], &mut writer)?;
        let none = ProbeAddresses::default();
        placed.fill::<I>(&program, &ready, [&order, &order], &none, &mut writer)?;
        placed.references::<I>(&program, &ready, &patches, true, &mut writer)?;
        placed.symbols(&program, &ready, &options, &mut writer);
        placed.note(&program, &ready, &[], &options, &mut writer)
    };
    rest().map_err(error)?;
    let folder = tempfile::tempdir().map_err(error)?;
    let path = folder.path().join("out");
    writer.write(&path, 0o755).map_err(error)?;
    let data = fs::read(&path).map_err(error)?;
    let output = Elf::parse(&data).map_err(error)?;

    let shown = Shown {
        program: &program,
        output: &output,
        names: Names::new(elf),
        ready: &ready,
        fragments: &placed.fragments,
    };
    for i in 0..ready.len() {
        shown.function::<I>(i, &mut out);
    }
    shown.old_image::<I>(&patches, &mut out);
    Ok(out)
}

/// A function, its blocks after the entry's in the opposite order and every third of them in the cold fragment.
fn make<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
    scratch: &mut Scratch,
) -> Result<(Ready, Option<EntryPatch>), Pin> {
    let a = prepare::analyse::<I>(program, nonlocal_exits, function, scratch)?;
    let one = a.unwind.as_ref().is_some_and(|u| u.one_fragment());
    let mut plan = Plan {
        fragments: [vec![0], Vec::new()],
        move_addresses: true,
        drop_padding: true,
        ..Plan::default()
    };
    for b in (1..a.cfg.blocks.len() as u32).rev() {
        plan.fragments[usize::from(b % 3 == 0 && !one)].push(b);
    }
    let code = emit_function::<I>(program, &a.cfg, &plan)?;
    let unwind = carry(program, &a.cfg, a.unwind.as_ref(), &code, Stack::of::<I>())?;
    let ready = Box::new(ReadyFunction {
        function: function as u32,
        code,
        unwind,
        table_entries: a.cfg.table_entries.clone(),
        anchored_targets: link::places(&a.cfg.anchored_targets),
        secondary_entries: a.secondary_entries.clone(),
        own_tables: a.cfg.own_tables.clone(),
        own_bases: a.cfg.own_bases.clone(),
        falls_back: link::addresses(&a.cfg.falls_back),
        address_taken: link::places(&a.cfg.labels(program, function)),
        recorders: Code::default(),
        recorder_offsets: Vec::new(),
        splits: Vec::new(),
        counter_base: 0,
        site_base: 0,
        taken_back: false,
    });
    Ok((ready, a.entry_patch))
}

/// What is looked at.
struct Shown<'a, 'd> {
    program: &'a Program<'d>,
    output: &'a Elf<'a>,
    names: Names,
    ready: &'a [Ready],
    fragments: &'a [[OutputAddr; 2]],
}

const FRAGMENTS: [&str; 2] = ["hot", "cold"];

impl Shown<'_, '_> {
    /// An address of the output: in new code by fragment, else as in the input.
    fn name(&self, addr: u64) -> String {
        for (r, starts) in self.ready.iter().zip(self.fragments) {
            for (f, start) in starts.iter().map(|s| s.get()).enumerate() {
                let len = r.code.fragments[f].code.bytes.len() as u64;
                if addr >= start && addr < start + len {
                    let name = self.program.name(r.function as usize);
                    return match addr - start {
                        0 => format!("new {name} {}", FRAGMENTS[f]),
                        offset => format!("new {name} {}+{offset:#x}", FRAGMENTS[f]),
                    };
                }
            }
        }
        self.names.of(addr)
    }

    /// What an instruction refers to.
    fn target(&self, insn: &Insn) -> String {
        let target = match insn.flow {
            Flow::Jump { target }
            | Flow::CondJump { target, .. }
            | Flow::ShortCond { target }
            | Flow::Call { target } => Some(target),
            _ => insn.field.map(|f| f.target),
        };
        target.map_or_else(|| "?".to_owned(), |target| self.name(target))
    }

    /// A function's fixups as they were resolved.
    fn function<I: Isa>(&self, i: usize, out: &mut String) {
        let r = &self.ready[i];
        line(
            out,
            format_args!("function {}", self.program.name(r.function as usize)),
        );
        for (f, start) in self.fragments[i].iter().map(|s| s.get()).enumerate() {
            let code: &Code<Target> = &r.code.fragments[f].code;
            let len = code.bytes.len() as u64;
            let Some(bytes) = self.output.bytes_at(start, len).filter(|_| len > 0) else {
                continue;
            };
            line(out, format_args!("  {}, {len} bytes", FRAGMENTS[f]));
            let mut fixups: Vec<_> = code.fixups.iter().collect();
            fixups.sort_by_key(|fixup| fixup.at);
            for fixup in fixups {
                let (at, target) = (fixup.at as usize, self.expected(i, fixup.target));
                let mut written = bytes.to_vec();
                let place = start + u64::from(fixup.at);
                let fits = I::write_field(fixup.kind, &mut written[at..], place, target).is_ok();
                let (kind, name) = (kind_of(fixup.kind), self.name(target));
                let wrong = if fits && written == bytes {
                    ""
                } else {
                    "WRONG, not "
                };
                line(out, format_args!("    {at:#06x} {kind} {wrong}{name}"));
            }
        }
    }

    /// The address that a fixup of the i-th ready function should lead to.
    fn expected(&self, i: usize, target: Target) -> u64 {
        let block = |i: usize, b: usize| {
            let (fragment, offset) = self.ready[i].code.blocks[b];
            let start = self.fragments[i].get(usize::from(fragment));
            start.map_or(0, |start| start.get() + u64::from(offset))
        };
        let start = |r: &Ready| self.program.start(r.function as usize);
        match target {
            Target::Block(b) => block(i, b as usize),
            Target::Code(a) => match self.ready.iter().position(|r| start(r) == a) {
                Some(moved) => block(moved, 0),
                None => a,
            },
            Target::Same(a) => a,
            _ => 0,
        }
    }

    /// What is different in the old image.
    fn old_image<I: Isa>(&self, patches: &[EntryPatch], out: &mut String) {
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        let elf = self.program.elf;
        let own = |name: &str| name.starts_with(".eh_frame") || name.starts_with(".note");
        for s in elf
            .sections
            .iter()
            .filter(|s| s.is_alloc() && s.has_contents())
        {
            if own(s.name) {
                continue;
            }
            let (old, new) = (
                elf.bytes_at(s.addr, s.size),
                self.output.bytes_at(s.addr, s.size),
            );
            if let (Some(old), Some(new)) = (old, new) {
                let different = (s.addr..)
                    .zip(old.iter().zip(new))
                    .filter(|(_, (a, b))| a != b);
                changed.extend(different.map(|(addr, _)| addr));
            }
        }
        let mut explain = |at: u64, len: u64| {
            let any = changed.range(at..at + len).next().is_some();
            changed.retain(|addr| *addr < at || *addr >= at + len);
            any
        };
        for at in patches.iter().map(|patch| &patch.at) {
            let at = &at.get();
            let bytes = self.output.bytes_at(*at, 4).unwrap_or_default();
            let room = elf.extent().1.saturating_sub(*at).min(16);
            let insn = I::decode(self.output.bytes_at(*at, room).unwrap_or(bytes), *at);
            if let Some(insn) = insn.filter(|insn| explain(*at, u64::from(insn.len))) {
                line(
                    out,
                    format_args!("jump {} -> {}", self.names.of(*at), self.target(&insn)),
                );
            }
        }
        for entry in self.ready.iter().flat_map(|r| &r.table_entries) {
            let value = match entry.width {
                8 => self.output.u64_at(entry.place),
                _ => self.output.bytes_at(entry.place, 4).map(|b| {
                    let value = i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                    entry.base.unwrap_or(0).wrapping_add_signed(value.into())
                }),
            };
            if explain(entry.place, entry.width) {
                let target = value.map_or_else(|| "?".to_owned(), |value| self.name(value));
                line(
                    out,
                    format_args!("table entry {} -> {target}", self.names.of(entry.place)),
                );
            }
        }
        for p in &self.program.refs.pointers {
            if explain(p.place, 8)
                && let Some(value) = self.output.u64_at(p.place)
            {
                let (place, target) = (self.names.of(p.place), self.name(value));
                line(out, format_args!("pointer {place} -> {target}"));
            }
        }
        for r in self.program.elf.sections.iter().filter(|s| s.is_code()) {
            let Some(bytes) = self.output.bytes_at(r.addr, r.size) else {
                continue;
            };
            // Whatever else changed in code that stays is a field of an instruction.
            for piece in self
                .program
                .pieces
                .iter()
                .filter(|p| r.addr <= p.start && p.end <= r.end())
            {
                let of_piece =
                    &bytes[(piece.start - r.addr) as usize..(piece.end - r.addr) as usize];
                let _ = I::sweep(of_piece, piece.start, |insn| {
                    if explain(insn.addr, u64::from(insn.len)) {
                        let (at, target) = (self.names.of(insn.addr), self.target(insn));
                        line(out, format_args!("field {at} -> {target}"));
                    }
                    true
                });
            }
        }
        for addr in changed {
            line(out, format_args!("byte {} changed", self.names.of(addr)));
        }
    }
}
