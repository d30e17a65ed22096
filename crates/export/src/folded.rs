//! Folded stacks, a line for each chain of callers, and speedscope's JSON of the same.
//!
//! Weights are executed instructions. Chains are estimated: [`crate::stacks`].
//!
//! Sources: Brendan Gregg's `stackcollapse` scripts; speedscope's `file-format-spec.ts`.

use std::collections::BTreeMap;

use serde_json::json;

use crate::stacks::{chain, stacks};
use crate::{Export, Subject};

/// What has to be said of any file with chains.
pub(crate) fn missing(subject: &Subject<'_, '_>) -> Vec<String> {
    let mut missing = subject.missing();
    missing.push(
        "chains of callers are estimated from counts of calls; each function's own instructions are as counted"
            .to_owned(),
    );
    missing
}

/// `main;work;leaf 123`.
pub fn folded(subject: &Subject<'_, '_>) -> Export {
    Export {
        bytes: lines(subject).concat().into_bytes(),
        missing: missing(subject),
    }
}

/// The lines, sorted.
pub(crate) fn lines(subject: &Subject<'_, '_>) -> Vec<String> {
    let nodes = stacks(subject.facts);
    let functions = &subject.facts.functions;
    // Semicolons are between functions.
    let name = |f: &u32| {
        let name = (subject.demangle)(&functions[*f as usize].name);
        name.replace(';', ":").replace(['\n', '\r'], "?")
    };
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.own > 0) {
        let names: Vec<String> = chain(&nodes, at).iter().map(name).collect();
        let sum = lines.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(node.own);
    }
    let lines = lines.iter();
    lines
        .map(|(stack, own)| format!("{stack} {own}\n"))
        .collect()
}

/// speedscope's file: one profile of sampled stacks, the weights of which are instructions.
pub fn speedscope(subject: &Subject<'_, '_>) -> Export {
    let nodes = stacks(subject.facts);
    let functions = &subject.facts.functions;
    let frames = functions.iter().enumerate().map(|(f, function)| {
        let mut frame = json!({ "name": (subject.demangle)(&function.name) });
        if let Ok(lines) = subject.lines
            && let Some((file, line)) = lines.at(f, function.start())
        {
            frame["file"] = json!(lines.files.get(file as usize));
            frame["line"] = json!(line);
        }
        frame
    });
    let own = || nodes.iter().enumerate().filter(|(_, node)| node.own > 0);
    let samples: Vec<Vec<u32>> = own().map(|(at, _)| chain(&nodes, at)).collect();
    let weights: Vec<u64> = own().map(|(_, node)| node.own).collect();
    let all = weights
        .iter()
        .fold(0u64, |sum, own| sum.saturating_add(*own));
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("postlink ", env!("CARGO_PKG_VERSION")),
        "name": subject.path,
        "activeProfileIndex": 0,
        "shared": { "frames": frames.collect::<Vec<_>>() },
        "profiles": [{
            "type": "sampled",
            "name": format!("{}: instructions", subject.path),
            "unit": "none",
            "startValue": 0,
            "endValue": all,
            "samples": samples,
            "weights": weights,
        }],
    });
    Export {
        bytes: file.to_string().into_bytes(),
        missing: missing(subject),
    }
}
