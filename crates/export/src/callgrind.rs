//! Callgrind's format: callgrind_annotate and KCachegrind read it.
//!
//! Own instructions are as counted, by function, on the line of its entry. A call has its exact number; what it costs
//! with all that it calls is estimated from chains of callers ([`crate::stacks`]).
//!
//! Source: Valgrind's manual, *Callgrind Format Specification*, version 1.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::stacks::stacks;
use crate::{Export, Subject};

/// The file.
pub fn callgrind(subject: &Subject<'_, '_>) -> Export {
    let functions = &subject.facts.functions;
    let nodes = stacks(subject.facts);
    // Of each node with all below it; callees come after their callers.
    let mut below: Vec<u64> = nodes.iter().map(|node| node.own).collect();
    let mut inclusive: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for at in (0..nodes.len()).rev() {
        let Some(caller) = nodes[at].caller else {
            continue;
        };
        below[caller as usize] = below[caller as usize].saturating_add(below[at]);
        let pair = (nodes[caller as usize].function, nodes[at].function);
        let sum = inclusive.entry(pair).or_default();
        *sum = sum.saturating_add(below[at]);
    }
    let mut calls: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for call in subject.facts.calls.iter().filter(|call| call.count > 0) {
        let sum = calls.entry((call.caller, call.callee)).or_default();
        *sum = sum.saturating_add(call.count);
    }
    let place = |f: usize| {
        let lines = subject.lines.ok()?;
        let (file, line) = lines.at(f, functions[f].start())?;
        Some((lines.files.get(file as usize)?.as_str(), line))
    };
    let name = |f: usize| {
        let name = (subject.demangle)(&functions[f].name);
        format!("({}) {}", f + 1, name.replace(['\n', '\r'], "?"))
    };
    let file = |f: usize| {
        place(f)
            .map_or("???", |place| place.0)
            .replace(['\n', '\r'], "?")
    };
    let mut text = format!(
        "# callgrind format\nversion: 1\ncreator: postlink {}\ncmd: {}\npositions: line\nevents: Ir\n",
        env!("CARGO_PKG_VERSION"),
        subject.path.replace(['\n', '\r'], "?")
    );
    let mut all = 0u64;
    for (f, function) in functions.iter().enumerate() {
        let Some(ran) = &function.ran else { continue };
        all = all.saturating_add(ran.instructions);
        let line = place(f).map_or(0, |place| place.1);
        let _ = writeln!(
            text,
            "\nfl={}\nfn={}\n{line} {}",
            file(f),
            name(f),
            ran.instructions
        );
        for ((_, callee), count) in calls.range((f as u32, 0)..=(f as u32, u32::MAX)) {
            let to = *callee as usize;
            let cost = inclusive.get(&(f as u32, *callee)).copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "cfi={}\ncfn={}\ncalls={count} {}\n{line} {cost}",
                file(to),
                name(to),
                place(to).map_or(0, |place| place.1),
            );
        }
    }
    let _ = writeln!(text, "\ntotals: {all}");
    let mut missing = subject.missing();
    missing.push(
        "what calls cost with all that they call is estimated from counts of calls".to_owned(),
    );
    Export {
        bytes: text.into_bytes(),
        missing,
    }
}
