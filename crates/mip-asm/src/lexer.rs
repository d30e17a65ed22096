//! Cuts assembly into statements: labels, directives, instructions.
//!
//! One pass over the bytes, no copies: a statement is a span of the input without the comment after it.
//! Compilers write one statement a line; people who write inline assembly don't, so separators, several
//! labels in a row, block comments and strings are understood.
//!
//! Comments are dropped but for those by which compilers mark inline assembly (`#APP`, `#NO_APP`, …): what is
//! between them was written by people.

use crate::target::{Arch, Format, Target};

/// What a statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A label; the span is its name.
    Label,
    /// Begins with a dot.
    Directive,
    /// `name = value`
    Assignment,
    /// Everything else.
    Instruction,
    /// Inline assembly begins.
    AppStart,
    /// Inline assembly ends.
    AppEnd,
}

/// A statement: a span of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Where it begins.
    pub start: u32,
    /// Where it ends.
    pub end: u32,
    /// What it is.
    pub kind: Kind,
}

impl Statement {
    /// Its text.
    pub fn text<'a>(&self, source: &'a [u8]) -> &'a [u8] {
        // Spans are made by `statements` from positions in this text.
        &source[self.start as usize..self.end as usize]
    }
}

/// All statements of a text, which must be shorter than 4 GiB.
pub fn statements(source: &[u8], target: Target) -> Vec<Statement> {
    let mut lexer = Lexer {
        source,
        target,
        out: Vec::with_capacity(source.len() / 20),
    };
    let mut at = 0;
    while at < source.len() {
        at = lexer.line(at);
    }
    lexer.out
}

struct Lexer<'a> {
    source: &'a [u8],
    target: Target,
    out: Vec<Statement>,
}

impl Lexer<'_> {
    /// Reads the line at `at` and gives where the next one begins (later, if a block comment or a string goes
    /// over its end).
    fn line(&mut self, at: usize) -> usize {
        let source = self.source;
        let blank = |byte: u8| byte == b' ' || byte == b'\t' || byte == b'\r';
        let mut from = at;
        while from < source.len() && blank(source[from]) {
            from += 1;
        }
        let line_end = |from: usize| {
            source[from..]
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(source.len(), |length| from + length)
        };
        if source[from.min(source.len())..].starts_with(b"#")
            || self
                .target
                .comments()
                .iter()
                .any(|comment| source[from.min(source.len())..].starts_with(comment))
        {
            let end = line_end(from);
            self.marker(from, end);
            return end + 1;
        }
        // A statement begins at `start`; `position` runs ahead to its end.
        let mut start = from;
        let mut position = from;
        while position < source.len() {
            let rest = &source[position..];
            match rest[0] {
                b'\n' => {
                    self.statement(start, position);
                    return position + 1;
                }
                b'"' => position = self.string_end(position),
                b'/' if rest.starts_with(b"/*") => {
                    self.statement(start, position);
                    position = rest[2..]
                        .windows(2)
                        .position(|pair| pair == b"*/")
                        .map_or(source.len(), |length| position + length + 4);
                    start = position;
                }
                byte if byte == self.target.separator()[0]
                    && rest.starts_with(self.target.separator()) =>
                {
                    self.statement(start, position);
                    position += self.target.separator().len();
                    start = position;
                }
                _ if self
                    .target
                    .comments()
                    .iter()
                    .any(|comment| rest.starts_with(comment)) =>
                {
                    self.statement(start, position);
                    return line_end(position) + 1;
                }
                b':' if self.is_label(start, position) => {
                    let mut name = start;
                    while blank(source[name]) {
                        name += 1;
                    }
                    let mut end = position;
                    while end > name && blank(source[end - 1]) {
                        end -= 1;
                    }
                    self.push(name, end, Kind::Label);
                    position += 1;
                    start = position;
                }
                _ => position += 1,
            }
        }
        self.statement(start, source.len());
        source.len()
    }

    /// Where a string that begins at `at` is over: after its closing quote, or at the end of the text.
    fn string_end(&self, at: usize) -> usize {
        let mut position = at + 1;
        while position < self.source.len() {
            match self.source[position] {
                b'\\' => position += 2,
                b'"' => return position + 1,
                b'\n' => return position,
                _ => position += 1,
            }
        }
        self.source.len()
    }

    /// Whether what is before a colon is one name.
    fn is_label(&self, start: usize, colon: usize) -> bool {
        let name = self.source[start..colon].trim_ascii();
        match name {
            [] => false,
            [b'"', .., b'"'] if name.len() > 2 => !name[1..name.len() - 1].contains(&b'"'),
            _ => name.iter().all(|&byte| is_name(byte)),
        }
    }

    /// A statement that is not a label, if there is anything.
    fn statement(&mut self, start: usize, end: usize) {
        let text = &self.source[start.min(end)..end];
        let trimmed = text.trim_ascii_start();
        let start = end - trimmed.len();
        let trimmed = trimmed.trim_ascii_end();
        let end = start + trimmed.len();
        let Some(&first) = trimmed.first() else {
            return;
        };
        let word = trimmed.iter().take_while(|&&byte| is_name(byte)).count();
        let behind = trimmed[word..].trim_ascii_start();
        let kind = if behind.first() == Some(&b'=') && word > 0 {
            Kind::Assignment
        } else if first == b'.' {
            Kind::Directive
        } else {
            Kind::Instruction
        };
        if self.target.arch == Arch::Arm && kind == Kind::Directive {
            // How gcc marks inline assembly on Arm.
            if trimmed == b".syntax divided" {
                self.push(start, end, Kind::AppStart);
            } else if trimmed == b".syntax unified" {
                self.push(start, end, Kind::AppEnd);
            }
        }
        self.push(start, end, kind);
    }

    /// A line that is a comment.
    fn marker(&mut self, start: usize, end: usize) {
        let text = self.source[start..end].trim_ascii_end();
        let word = text
            .iter()
            .position(|byte| !b"#/@; ".contains(byte))
            .map_or(&[][..], |at| &text[at..]);
        let kind = match word {
            b"APP" => Kind::AppStart,
            b"NO_APP" => Kind::AppEnd,
            b"InlineAsm Start" if self.target.format == Format::MachO => Kind::AppStart,
            b"InlineAsm End" if self.target.format == Format::MachO => Kind::AppEnd,
            _ => return,
        };
        self.push(start, start + text.len(), kind);
    }

    fn push(&mut self, start: usize, end: usize, kind: Kind) {
        // The text is shorter than 4 GiB.
        self.out.push(Statement {
            start: start as u32,
            end: end as u32,
            kind,
        });
    }
}

/// Whether a byte can be in a name that needs no quotes.
pub fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$' | b'@') || byte >= 0x80
}

/// First word of a statement and what follows it.
pub fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| byte.is_ascii_whitespace())
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

/// Cuts a list at commas that are outside of strings and brackets.
pub fn operands(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = (!text.is_empty()).then_some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut depth, mut quoted, mut escaped) = (0i32, false, false);
        let comma = text.iter().position(|&byte| {
            if quoted {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => quoted = false,
                    _ => {}
                }
                return false;
            }
            match byte {
                b'"' => quoted = true,
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                b',' => return depth <= 0,
                _ => {}
            }
            false
        });
        let (operand, next) = match comma {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        rest = next;
        Some(operand.trim_ascii())
    })
}

/// Calls back with every name in an expression, quoted names with their quotes.
pub fn names<'a>(text: &'a [u8], mut each: impl FnMut(&'a [u8])) {
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        if byte == b'"' {
            let end = text[at + 1..]
                .iter()
                .position(|&byte| byte == b'"')
                .map_or(text.len(), |length| at + length + 2);
            each(&text[at..end]);
            at = end;
        } else if is_name(byte) && byte != b'@' && byte != b'$' {
            let end = text[at..]
                .iter()
                .position(|&byte| !is_name(byte) || byte == b'@')
                .map_or(text.len(), |length| at + length);
            if !byte.is_ascii_digit() {
                each(&text[at..end]);
            }
            at = end;
            // A specifier such as @PLT is no name.
            if text.get(at) == Some(&b'@') {
                at += 1;
                while text.get(at).is_some_and(|&byte| is_name(byte)) {
                    at += 1;
                }
            }
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(triple: &str) -> Target {
        Target::of_triple(triple).unwrap()
    }

    fn shown(source: &str, triple: &str) -> Vec<String> {
        statements(source.as_bytes(), target(triple))
            .iter()
            .map(|s| {
                let text = String::from_utf8_lossy(s.text(source.as_bytes())).into_owned();
                format!("{:?} {text}", s.kind)
            })
            .collect()
    }

    #[test]
    fn a_line_may_hold_labels_statements_and_a_comment() {
        assert_eq!(
            shown(
                "foo: 1: nop; ret # end\n .ascii \"a;#\\\"b:\"\nx = 3",
                "x86_64-linux-gnu"
            ),
            [
                "Label foo",
                "Label 1",
                "Instruction nop",
                "Instruction ret",
                "Directive .ascii \"a;#\\\"b:\"",
                "Assignment x = 3"
            ]
        );
    }

    #[test]
    fn comments_are_spelled_as_the_target_has_them() {
        assert_eq!(
            shown(" mov x0, #1 // one; two\n# foo\n", "aarch64-linux-gnu"),
            ["Instruction mov x0, #1"]
        );
        assert_eq!(
            shown(" mov r0, #1 @ one\n", "arm-linux-gnueabihf"),
            ["Instruction mov r0, #1"]
        );
        assert_eq!(
            shown(" mov x0, #1 ; one\n nop %% nop", "arm64-apple-macos"),
            [
                "Instruction mov x0, #1",
                "Instruction nop",
                "Instruction nop"
            ]
        );
        assert_eq!(
            shown("a: /* x\n y: */ nop", "x86_64-linux-gnu"),
            ["Label a", "Instruction nop"]
        );
    }

    #[test]
    fn marks_of_inline_assembly_are_seen() {
        assert_eq!(
            shown(
                "#APP\n# 3 \"a.c\" 1\n nop\n# 0 \"\" 2\n#NO_APP\n",
                "x86_64-linux-gnu"
            ),
            ["AppStart #APP", "Instruction nop", "AppEnd #NO_APP"]
        );
        assert_eq!(
            shown(" //APP\n nop\n //NO_APP\n", "aarch64-linux-gnu"),
            ["AppStart //APP", "Instruction nop", "AppEnd //NO_APP"]
        );
    }

    #[test]
    fn names_leave_out_registers_numbers_and_specifiers() {
        let mut found = vec![];
        names(b".L4-.L3+4, foo@PLT, \"a b\"(%rip), $bar", |name| {
            found.push(String::from_utf8_lossy(name).into_owned());
        });
        assert_eq!(found, [".L4", ".L3", "foo", "\"a b\"", "rip", "bar"]);
    }
}
