//! No function of a product is longer than [`LONGEST`] lines: a longer one is a sequence of steps that lack
//! names.
//!
//! Excepted are the tables of decoders ([`TABLES`]): one `match` over opcodes, with a row for each, which
//! no one reads from start to end and which parts would only make harder to compare with the manual.
//!
//! Looked at is `src` of every crate. Sources are read as tokens, so a brace in a string does not count.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Lines from `fn` to the closing brace.
const LONGEST: usize = 150;

/// Tables of decoders: file and function.
const TABLES: [(&str, &str); 4] = [
    ("crates/verify/src/arch/aarch64/steps.rs", "step"),
    ("crates/verify/src/arch/x86_64/mod.rs", "decode_slowly"),
    ("crates/verify/src/arch/x86_64/quick.rs", "decode_in"),
    ("crates/verify/src/arch/x86_64/steps.rs", "step_slowly"),
];

/// A function: its name, the line it begins in, and how many it has.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// The job. `Ok(false)` when a function is too long, or an exception is not needed; each is printed.
pub fn check(root: &Path) -> Result<bool> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "crates/*/src/*.rs", "fleet/src/*.rs"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let mut wrong = vec![];
    let mut needed = vec![];
    for name in output.stdout.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let name = String::from_utf8_lossy(name);
        // A file that was deleted, and not yet in a commit.
        let Ok(text) = fs::read_to_string(root.join(&*name)) else {
            continue;
        };
        for function in too_long(&text).with_context(|| name.to_string())? {
            let key = (&*name, &*function.name);
            match TABLES.iter().find(|table| **table == key) {
                Some(table) => needed.push(*table),
                None => wrong.push(format!(
                    "{name}:{}: {} has {} lines; {LONGEST} are possible",
                    function.line, function.name, function.lines
                )),
            }
        }
    }
    let spare = TABLES.iter().filter(|table| !needed.contains(table));
    wrong.extend(spare.map(|(file, name)| {
        format!("{file}: {name} is excepted, and not longer than {LONGEST} lines")
    }));
    for line in &wrong {
        println!("{line}");
    }
    Ok(wrong.is_empty())
}

fn too_long(text: &str) -> Result<Vec<Function>> {
    let stream: TokenStream = text.parse().map_err(|e| anyhow!("{e}"))?;
    let mut found = vec![];
    functions(stream, &mut found);
    found.retain(|function| function.lines > LONGEST);
    Ok(found)
}

/// All functions, also those in other functions and in macros.
fn functions(stream: TokenStream, found: &mut Vec<Function>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            functions(group.stream(), found);
        }
        let (TokenTree::Ident(word), Some(TokenTree::Ident(name))) = (token, tokens.get(at + 1))
        else {
            continue;
        };
        if word != "fn" {
            continue;
        }
        // A function without a body ends with a semicolon.
        let body = tokens[at + 1..].iter().find_map(|token| match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Some(group)),
            TokenTree::Punct(sign) if sign.as_char() == ';' => Some(None),
            _ => None,
        });
        if let Some(Some(body)) = body {
            let (line, end) = (word.span().start().line, body.span_close().end().line);
            found.push(Function {
                name: name.to_string(),
                line,
                lines: end + 1 - line,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_are_too_long_are_found_with_name_and_place() {
        let body = "    let brace = \"}\";\n".repeat(LONGEST - 1);
        let text = format!(
            "// one\ntrait T {{ fn without(&self); }}\nimpl T {{\nfn just(&self) -> [u8; 2] {{\n{}}}\n}}\n\
             mod m {{ fn longer() {{\n{body}}} }}\n",
            body.replacen('\n', " ", 1)
        );
        let found = too_long(&text).expect("it is Rust");
        let expected = Function {
            name: "longer".to_owned(),
            line: LONGEST + 5,
            lines: LONGEST + 1,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn the_functions_of_this_workspace_are_short_enough() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert!(check(&root).expect("its files are Rust"));
    }
}
