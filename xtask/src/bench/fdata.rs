//! A profile of postlink in llvm-bolt's format, so that both tools optimise from the same counts.
//!
//! A line is `1 FROM OFFSET 1 TO OFFSET MISPREDICTED COUNT`, offsets in hexadecimal from the start of the named function:
//! one for each edge, from the last instruction of the one block to the first of the other, and one for each call.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::Value;

/// From what `postlink show --json` prints.
pub fn from_counts(counts: &Value) -> Result<String> {
    let list = |name: &str| {
        counts[name]
            .as_array()
            .with_context(|| format!("no list '{name}' in the counts"))
    };
    let mut starts = BTreeMap::new();
    for f in list("functions")? {
        let (name, address) = (
            f["name"].as_str().context("a function's name")?,
            number(&f["address"])?,
        );
        starts.insert(address, name);
    }
    let start_of: BTreeMap<&str, u64> = starts
        .iter()
        .map(|(address, name)| (*name, *address))
        .collect();
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |from: (&str, u64), to: (&str, u64), count: u64| {
        if count > 0 {
            let key = format!("1 {} {:x} 1 {} {:x} 0", from.0, from.1, to.0, to.1);
            let sum = lines.entry(key).or_default();
            *sum = sum.saturating_add(count);
        }
    };
    for f in list("functions")? {
        let (name, address) = (
            f["name"].as_str().context("a function's name")?,
            number(&f["address"])?,
        );
        for block in f["blocks"].as_array().context("a function's blocks")? {
            let last = number(&block["last"])?;
            for edge in block["edges"].as_array().context("a block's edges")? {
                // Parts of a function that lie elsewhere have a name of their own in llvm-bolt.
                if let (Some(from), Some(to)) = (
                    last.checked_sub(address),
                    number(&edge["to"])?.checked_sub(address),
                ) {
                    add((name, from), (name, to), number(&edge["count"])?);
                }
            }
        }
    }
    for call in list("calls")? {
        let (caller, callee) = (
            call["caller"].as_str().context("a caller")?,
            call["callee"].as_str().context("a callee")?,
        );
        if let Some(from) = start_of
            .get(caller)
            .and_then(|start| number(&call["at"]).ok()?.checked_sub(*start))
        {
            add((caller, from), (callee, 0), number(&call["count"])?);
        }
    }
    let mut text = String::new();
    for (line, count) in lines {
        writeln!(text, "{line} {count}").context("out of memory")?;
    }
    Ok(text)
}

fn number(value: &Value) -> Result<u64> {
    value
        .as_u64()
        .with_context(|| format!("a number is needed, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_and_calls_become_lines() {
        let counts = serde_json::json!({
            "functions": [{ "name": "f", "address": 0x1000, "blocks": [
                { "last": 0x1004, "edges": [{ "to": 0x1000, "count": 7 }, { "to": 0x1010, "count": 0 }] },
            ]}],
            "calls": [{ "caller": "f", "at": 0x1002, "callee": "g", "count": 9 }],
        });
        assert_eq!(
            from_counts(&counts).unwrap(),
            "1 f 2 1 g 0 0 9\n1 f 4 1 f 0 0 7\n"
        );
    }
}
