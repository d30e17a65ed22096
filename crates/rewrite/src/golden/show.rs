//! Programs, graphs and code as text.

use std::fmt::Write as _;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_isa::{FixupKind, Isa};

use crate::analyse::{Probes, Target};
use crate::cfg::{self, BlockId, Cfg, Term};
use crate::discover::{NonlocalExits, Program};
use crate::emit::{Fragment, Plan, emit as emit_function};
use crate::pin::Pin;

/// Names of addresses.
pub(super) struct Names(Vec<(u64, String)>);

impl Names {
    pub(super) fn new(elf: &Elf<'_>) -> Names {
        let symbols = elf.symbols(SymbolTable::Static);
        // Of several at one address the first by name: the table's order is the linker's affair.
        let mut names: Vec<(u64, String)> = symbols
            .iter()
            .filter(|s| s.section != 0 && (s.section as usize) < elf.sections.len())
            .filter(|s| !s.name.is_empty() && !s.name.starts_with(b"$"))
            // Those that linkers define.
            .filter(|s| !s.name.starts_with(b"_") || s.name.starts_with(b"_f"))
            .filter(|s| !matches!(s.name, b"end" | b"edata" | b"etext"))
            .map(|s| (s.value, String::from_utf8_lossy(s.name).into_owned()))
            .collect();
        names.sort();
        names.dedup_by_key(|n| n.0);
        Names(names)
    }

    pub(super) fn of(&self, addr: u64) -> String {
        let i = self.0.partition_point(|n| n.0 <= addr);
        match i.checked_sub(1).and_then(|i| self.0.get(i)) {
            Some((value, name)) if *value == addr => name.clone(),
            Some((value, name)) => format!("{name}+{:#x}", addr - value),
            None => format!("{addr:#x}"),
        }
    }

    fn list(&self, addrs: impl IntoIterator<Item = u64>) -> String {
        let names: Vec<String> = addrs.into_iter().map(|a| self.of(a)).collect();
        names.join(" ")
    }
}

/// A reason as `inspect` names it.
pub(super) fn reason(pin: Pin) -> String {
    serde_json::to_value(pin)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

pub(super) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{text}");
}

pub(super) fn program_of<'d, I: Isa>(elf: &'d Elf<'d>) -> Result<Program<'d>, String> {
    Program::discover::<I>(elf).map_err(|e| format!("error: {e}\n"))
}

/// Functions and references.
pub(super) fn discover<I: Isa>(elf: &Elf<'_>) -> String {
    let program = match program_of::<I>(elf) {
        Ok(program) => program,
        Err(what) => return what,
    };
    let names = Names::new(elf);
    let mut out = String::new();
    for (i, f) in program.functions.iter().enumerate() {
        line(&mut out, format_args!("function {}", program.name(i)));
        for p in &f.pieces {
            let p = &program.pieces[*p as usize];
            let unwinds = if p.fde.is_some() {
                ", unwind entry"
            } else {
                ""
            };
            let size = p.end - p.start;
            line(
                &mut out,
                format_args!("  piece {}, {size} bytes{unwinds}", names.of(p.start)),
            );
        }
        if !f.entries.is_empty() {
            let list = names.list(f.entries.iter().copied());
            line(&mut out, format_args!("  entries {list}"));
        }
        if !f.labels.is_empty() {
            let list = names.list(f.labels.iter().copied());
            line(&mut out, format_args!("  labels {list}"));
        }
        if f.address_taken {
            line(&mut out, format_args!("  address taken"));
        }
        if program.no_return.binary_search(&program.start(i)).is_ok() {
            line(&mut out, format_args!("  does not return"));
        }
        if let Some(pin) = f.pin {
            line(&mut out, format_args!("  stays: {}", reason(pin)));
        }
    }
    for base in &program.table_bases {
        line(&mut out, format_args!("table {}", names.of(*base)));
    }
    out
}

/// The graphs of all functions.
pub(super) fn cfg<I: Isa>(elf: &Elf<'_>) -> String {
    each_graph::<I>(elf, |out, names, _, cfg| show_cfg(out, names, cfg))
}

/// Calls `show` with each function's graph, or says why there is none.
fn each_graph<I: Isa>(
    elf: &Elf<'_>,
    show: impl Fn(&mut String, &Names, &Program<'_>, &Cfg),
) -> String {
    let program = match program_of::<I>(elf) {
        Ok(program) => program,
        Err(what) => return what,
    };
    let names = Names::new(elf);
    let nonlocal_exits = NonlocalExits::new(&program);
    let mut scratch = cfg::Scratch::default();
    let mut out = String::new();
    for f in 0..program.functions.len() {
        line(&mut out, format_args!("function {}", program.name(f)));
        match cfg::build::<I>(&program, &nonlocal_exits, f, &mut scratch) {
            Ok(cfg) => show(&mut out, &names, &program, &cfg),
            Err(pin) => line(&mut out, format_args!("  stays: {}", reason(pin))),
        }
    }
    out
}

fn show_cfg(out: &mut String, names: &Names, cfg: &Cfg) {
    for (b, block) in cfg.blocks.iter().enumerate() {
        let flags = [
            (block.entry, "entry"),
            (block.landing_pad, "landing-pad"),
            (block.nonlocal_exits, "may-not-return-here"),
            (block.returns_twice, "behind-returns-twice"),
            (block.unlikely, "unlikely"),
            (block.watch.inside, "exclusive"),
        ];
        let flags: Vec<&str> = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
        let succs: Vec<String> = cfg.succs(b as BlockId).iter().map(u32::to_string).collect();
        let (start, size) = (names.of(block.start), block.end - block.start);
        let ends = ending(names, block.term);
        let mut text = format!("  block {b} {start}, {size} bytes, {ends}");
        if !succs.is_empty() {
            let _ = write!(text, " -> {}", succs.join(" "));
        }
        if !flags.is_empty() {
            let _ = write!(text, " ({})", flags.join(" "));
        }
        line(out, format_args!("{text}"));
    }
    for f in &cfg.fields {
        let (at, target) = (names.of(f.at), names.of(f.target));
        let (role, kind) = (f.role, f.kind);
        line(out, format_args!("  field {at} {kind:?} {role:?} {target}"));
    }
    for s in &cfg.sites {
        let tail = if s.tail { " tail" } else { "" };
        line(
            out,
            format_args!("  site {} in block {}{tail}", names.of(s.at), s.block),
        );
    }
    for t in &cfg.table_entries {
        let base = t.base.map(|base| names.of(base)).unwrap_or_default();
        line(
            out,
            format_args!(
                "  table entry {} of {base} -> {}",
                names.of(t.place),
                t.block
            ),
        );
    }
    for (addr, block) in &cfg.anchored_targets {
        line(
            out,
            format_args!("  arrival {} -> {block}", names.of(*addr)),
        );
    }
    for (addr, block) in &cfg.address_taken {
        line(out, format_args!("  mark {} -> {block}", names.of(*addr)));
    }
}

/// How a block ends.
fn ending(names: &Names, term: Term) -> String {
    match term {
        Term::Fall => "falls".into(),
        Term::Jump => "jumps".into(),
        Term::Cond { cond } => format!("if {:#x}", cond.0),
        Term::ShortCond => "if short".into(),
        Term::JumpOut { target } => format!("jumps to {}", names.of(target)),
        Term::CondOut { cond, target } => format!("if {:#x} to {}", cond.0, names.of(target)),
        Term::ShortCondOut { target } => format!("if short to {}", names.of(target)),
        Term::Dispatch { dispatch, leaves } => {
            let leaves = if leaves { " or elsewhere" } else { "" };
            format!("dispatch {dispatch}{leaves}")
        }
        Term::IndirectOut => "indirect".into(),
        Term::FallBack => "indirect, to old code".into(),
        Term::Return => "returns".into(),
        Term::Stop => "stops".into(),
    }
}

/// New code of all functions, the blocks after the entry's in the opposite order, and every third of them in
/// the cold fragment.
pub(super) fn emit<I: Isa>(elf: &Elf<'_>) -> String {
    each_graph::<I>(elf, |out, names, program, cfg| {
        let mut plan = Plan {
            fragments: [vec![0], Vec::new()],
            probes: Probes::default(),
            move_addresses: true,
            drop_padding: true,
            ..Plan::default()
        };
        for b in (1..cfg.blocks.len() as BlockId).rev() {
            plan.fragments[usize::from(b % 3 == 0)].push(b);
        }
        match emit_function::<I>(program, cfg, &plan) {
            Ok(emitted) => {
                for (fragment, name) in emitted.fragments.iter().zip(["hot", "cold"]) {
                    if !fragment.code.bytes.is_empty() {
                        line(out, format_args!("  {name}"));
                        show_fragment::<I>(out, names, fragment);
                    }
                }
                for (b, (fragment, offset)) in emitted.blocks.iter().enumerate() {
                    match fragment {
                        0 => line(out, format_args!("  block {b} at hot+{offset:#x}")),
                        1 => line(out, format_args!("  block {b} at cold+{offset:#x}")),
                        _ => line(out, format_args!("  block {b} dropped")),
                    }
                }
            }
            Err(pin) => line(out, format_args!("  stays: {}", reason(pin))),
        }
    })
}

/// Instructions as bytes, each with its fixups.
fn show_fragment<I: Isa>(out: &mut String, names: &Names, fragment: &Fragment) {
    let code = &fragment.code;
    let mut fixups: Vec<_> = code.fixups.iter().collect();
    fixups.sort_by_key(|f| f.at);
    let mut fixups = fixups.into_iter().peekable();
    let _ = I::sweep(&code.bytes, 0, |insn| {
        let (at, len) = (insn.addr as usize, usize::from(insn.len));
        let mut text = format!("    {at:#06x}");
        for byte in &code.bytes[at..at + len] {
            let _ = write!(text, " {byte:02x}");
        }
        while let Some(f) = fixups.next_if(|f| (f.at as usize) < at + len) {
            let target = match f.target {
                Target::Block(b) => format!("block {b}"),
                Target::Code(a) => format!("code {}", names.of(a)),
                Target::Same(a) => format!("old {}", names.of(a)),
                other => format!("{other:?}"),
            };
            let kind = kind_of(f.kind);
            let _ = write!(text, " | +{} {kind} {target}", f.at as usize - at);
        }
        line(out, format_args!("{text}"));
        true
    });
}

/// A kind of field.
pub(super) fn kind_of(kind: FixupKind) -> String {
    match kind {
        FixupKind::Rel8 { .. } => "Rel8".to_owned(),
        FixupKind::Rel32 { .. } => "Rel32".to_owned(),
        other => format!("{other:?}"),
    }
}
