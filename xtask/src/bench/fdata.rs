//! A profile of postlink in llvm-bolt's format, so that both tools optimise from the same counts.
//!
//! A line is `1 FROM OFFSET 1 TO OFFSET MISPREDICTED COUNT`, offsets in hexadecimal from the start of the
//! named function: one for each edge, from the last instruction of the one block to the first of the other,
//! and one for each call. A block that ends only at a call is none for llvm-bolt: edges that join such blocks
//! are left out.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Names of functions by address, as llvm-bolt knows them: a local symbol gets `/` and its number among the
/// local ones of that name, in the order of addresses; a global name goes before a local one.
pub fn names(program: &Path) -> Result<BTreeMap<u64, String>> {
    let output = Command::new("readelf")
        .args(["-sW"])
        .arg(program)
        .output()
        .context("readelf")?;
    if !output.status.success() {
        bail!("readelf: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(names_from(&String::from_utf8_lossy(&output.stdout)))
}

fn names_from(symbols: &str) -> BTreeMap<u64, String> {
    let table = symbols
        .rsplit("Symbol table '.symtab'")
        .next()
        .unwrap_or(symbols);
    let mut functions: Vec<(u64, bool, &str)> = table
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, value, _, kind, binding, _, section, name, ..] = words[..] else {
                return None;
            };
            let is_function = matches!(kind, "FUNC" | "IFUNC") && section != "UND";
            Some((
                u64::from_str_radix(value, 16)
                    .ok()
                    .filter(|_| is_function)?,
                binding == "LOCAL",
                name,
            ))
        })
        .collect();
    functions.sort_by_key(|(address, _, _)| *address);
    let (mut seen, mut names) = (HashMap::<&str, u32>::new(), BTreeMap::<u64, String>::new());
    for (address, local, name) in functions {
        if local {
            let number = seen.entry(name).or_default();
            *number += 1;
            names.entry(address).or_insert(format!("{name}/{number}"));
        } else {
            names.insert(address, name.to_owned());
        }
    }
    names
}

/// From what `postlink show --json` prints.
pub fn from_counts(counts: &Value, names: &BTreeMap<u64, String>) -> Result<String> {
    let list = |name: &str| {
        counts[name]
            .as_array()
            .with_context(|| format!("no list '{name}' in the counts"))
    };
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |from: (&str, u64), to: (&str, u64), count: u64| {
        if count > 0 {
            let sum = lines
                .entry(format!("1 {} {:x} 1 {} {:x} 0", from.0, from.1, to.0, to.1))
                .or_default();
            *sum = sum.saturating_add(count);
        }
    };
    for f in list("functions")? {
        let address = number(&f["address"])?;
        let Some(name) = names.get(&address) else {
            continue;
        };
        for block in f["blocks"].as_array().context("a function's blocks")? {
            let last = number(&block["last"])?;
            for edge in block["edges"].as_array().context("a block's edges")? {
                if edge["joins"].as_bool().unwrap_or(false) {
                    continue;
                }
                // Parts of a function that are elsewhere have a name of their own in llvm-bolt.
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
        let (from, to) = (number(&call["from"])?, number(&call["to"])?);
        if let (Some(caller), Some(callee), Some(at)) = (
            names.get(&from),
            names.get(&to),
            number(&call["at"])?.checked_sub(from),
        ) {
            add((caller, at), (callee, 0), number(&call["count"])?);
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
                { "last": 0x1004, "edges": [{ "to": 0x1000, "count": 7 }, { "to": 0x1010, "count": 0 },
                    { "to": 0x1008, "count": 5, "joins": true }] },
            ]}],
            "calls": [{ "caller": "f", "from": 0x1000, "at": 0x1002, "callee": "g", "to": 0x2000, "count": 9 }],
        });
        let names = [(0x1000, "f".to_owned()), (0x2000, "g/1".to_owned())].into();
        assert_eq!(
            from_counts(&counts, &names).unwrap(),
            "1 f 2 1 g/1 0 0 9\n1 f 4 1 f 0 0 7\n"
        );
    }

    #[test]
    fn local_functions_are_numbered_and_global_names_go_first() {
        let symbols = "Symbol table '.dynsym' contains 1 entry:
     1: 0000000000009000     5 FUNC    GLOBAL DEFAULT   14 ignored
Symbol table '.symtab' contains 5 entries:
     1: 0000000000002000    10 FUNC    LOCAL  DEFAULT   14 init
     2: 0000000000001000    10 FUNC    LOCAL  DEFAULT   14 init
     3: 0000000000003000    10 FUNC    LOCAL  DEFAULT   14 alias
     4: 0000000000003000    10 FUNC    GLOBAL DEFAULT   14 name
     5: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND puts
     6: 0000000000004000     8 OBJECT  GLOBAL DEFAULT   14 data
";
        let names = names_from(symbols);
        let expected = [(0x1000, "init/1"), (0x2000, "init/2"), (0x3000, "name")];
        assert_eq!(names, expected.map(|(a, n)| (a, n.to_owned())).into());
    }
}
