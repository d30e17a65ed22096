//! The control-flow graph of one function for Graphviz, with counts.
//!
//! Source: the DOT language, graphviz.org/doc/info/lang.html.

use std::fmt::Write;

use crate::{Error, Export, Subject};

/// Text in double quotes.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace(['\n', '\r'], " ")
}

/// The graph of the function of a name, mangled or not.
pub fn dot(subject: &Subject<'_, '_>, name: Option<&str>) -> Result<Export, Error> {
    let name = name.ok_or(Error::NoFunction)?;
    let functions = &subject.facts.functions;
    let is_named =
        |f: &usize| functions[*f].name == name || (subject.demangle)(&functions[*f].name) == name;
    let mut named = (0..functions.len()).filter(is_named);
    let first = named.next();
    let unknown = || Error::UnknownFunction(name.to_owned());
    let number = named
        .chain(first)
        .find(|f| functions[*f].ran.is_some())
        .or(first)
        .ok_or_else(unknown)?;
    let function = &functions[number];
    let ran = function.ran.as_ref();
    let ran = ran.ok_or_else(|| Error::NeverRan(name.to_owned()))?;
    let title = quoted(&(subject.demangle)(&function.name));
    let mut text = format!(
        "digraph \"{title}\" {{\n  label=\"{title}\\l\";\n  node [shape=box, fontname=\"monospace\"];\n"
    );
    let most = ran.blocks.iter().map(|block| block.count).max();
    let most = most.unwrap_or(0).max(1) as f64;
    for (b, block) in ran.blocks.iter().enumerate() {
        let line = subject.lines.ok().and_then(|lines| {
            let (file, line) = lines.at(number, block.start)?;
            Some(format!(
                "\\l{}:{line}",
                quoted(lines.files.get(file as usize)?)
            ))
        });
        let style = match block.count {
            0 => "style=dashed".to_owned(),
            // Warm colours by the logarithm of the count.
            n => format!(
                "style=filled, fillcolor=\"0.08 {:.3} 1.0\"",
                0.1 + 0.6 * (n as f64).ln_1p() / most.ln_1p()
            ),
        };
        let _ = writeln!(
            text,
            "  b{b} [label=\"{:#x}: {} instructions\\l{} times{}\\l\", {style}];",
            block.start,
            block.instructions,
            block.count,
            line.unwrap_or_default()
        );
        let all = block
            .edges
            .iter()
            .fold(0u64, |sum, edge| sum.saturating_add(edge.count));
        for edge in &block.edges {
            let share = edge.count as f64 / all.max(1) as f64;
            let about = if edge.estimated { "~" } else { "" };
            let _ = writeln!(
                text,
                "  b{b} -> b{} [label=\"{about}{} ({:.0} %)\", penwidth={:.2}{}];",
                edge.to,
                edge.count,
                100.0 * share,
                1.0 + 3.0 * (edge.count as f64).ln_1p() / most.ln_1p(),
                if edge.count == 0 {
                    ", style=dashed"
                } else {
                    ""
                }
            );
        }
    }
    text += "}\n";
    Ok(Export {
        bytes: text.into_bytes(),
        missing: if subject.facts.exact {
            vec![]
        } else {
            subject.missing()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_a_string() {
        assert_eq!(quoted("a\"\\\n"), "a\\\"\\\\ ");
    }
}
