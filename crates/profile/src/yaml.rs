//! The part of YAML that profiles are written in: block mappings and sequences, flow mappings and sequences
//! (over several lines too), plain scalars of one line, quoted scalars, comments. No anchors, tags, block
//! scalars or multi-line plain scalars: they are errors.
//!
//! Every node knows where it starts, for errors.

use std::path::Path;

use crate::Error;
use crate::source::{self, Bad, quote};

/// Nesting that is too deep to be a profile.
const MAX_DEPTH: u32 = 24;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A scalar, without quotes.
    Scalar(Vec<u8>),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the text.
    Map(Vec<(Vec<u8>, Node)>),
}

/// A mapping as it is read: key, value, and the offset of the key.
pub(crate) type Entries = Vec<(Vec<u8>, Node, usize)>;

/// Reads any text in the part of YAML that [`Node`] represents: one document, a mapping, which begins with
/// `---` or at once and ends with `...` or the text.
pub fn document(path: &Path, text: &[u8]) -> Result<Vec<(Vec<u8>, Node)>, Error> {
    let line_at = |wanted: &[u8]| {
        source::lines(text)
            .find(|(_, line)| line.trim_ascii_end() == wanted)
            .map(|(at, _)| at)
    };
    let start = line_at(b"---").map_or(0, |at| at + 3);
    let end = line_at(b"...").filter(|end| *end >= start);
    let mut parser = Parser::new(text, start, end.unwrap_or(text.len()));
    let entries = parser.mapping(0).map_err(|bad| bad.locate(path, text))?;
    Ok(entries
        .into_iter()
        .map(|(key, value, _)| (key, value))
        .collect())
}

/// Reads nodes from `text[at..end]`; offsets are those in `text`.
pub(crate) struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(text: &'a [u8], at: usize, end: usize) -> Parser<'a> {
        let end = end.min(text.len());
        Parser {
            text,
            at: at.min(end),
            end,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text[..self.end].get(self.at).copied()
    }

    fn peek_at(&self, more: usize) -> Option<u8> {
        self.text[..self.end]
            .get(self.at.checked_add(more)?)
            .copied()
    }

    fn bad(&self, what: impl Into<String>) -> Bad {
        let rest = &self.text[self.at..self.end];
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        Bad::new(self.at, format!("{}, found {}", what.into(), quote(line)))
    }

    /// Goes to the first character of the next line that has any; returns its column. Must be at the start of a line.
    fn next_line(&mut self) -> Option<usize> {
        loop {
            let start = self.at;
            while self.peek() == Some(b' ') {
                self.at += 1;
            }
            match self.peek()? {
                b'\n' => self.at += 1,
                b'\r' if self.peek_at(1) == Some(b'\n') => self.at += 2,
                b'#' => self.skip_line(),
                _ => return Some(self.at - start),
            }
        }
    }

    fn skip_line(&mut self) {
        while let Some(byte) = self.peek() {
            self.at += 1;
            if byte == b'\n' {
                break;
            }
        }
    }

    /// After a value: only spaces and a comment may follow.
    fn end_of_line(&mut self) -> Result<(), Bad> {
        while matches!(self.peek(), Some(b' ' | b'\r')) {
            self.at += 1;
        }
        match self.peek() {
            None => Ok(()),
            Some(b'\n' | b'#') => {
                self.skip_line();
                Ok(())
            }
            Some(_) => Err(self.bad("expected the end of the line")),
        }
    }

    /// A mapping of which the first line's key is at `indent`; all of the text.
    pub(crate) fn mapping(&mut self, indent: usize) -> Result<Entries, Bad> {
        let entries = match self.next_line() {
            None => return Ok(Entries::new()),
            Some(column) if column == indent => self.entries(indent, 0)?,
            Some(column) => {
                return Err(self.bad(format!(
                    "expected a key at column {}, not {}",
                    indent + 1,
                    column + 1
                )));
            }
        };
        self.finish(entries)
    }

    /// Sequence items at `indent` that are mappings; all of the text. Calls `each` with every one.
    pub(crate) fn items(
        &mut self,
        indent: usize,
        mut each: impl FnMut(Entries, usize) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        while let Some(column) = self.next_line() {
            if column != indent || !self.dash() {
                return Err(self.bad(format!("expected \"- \" at column {}", indent + 1)));
            }
            let start = self.at;
            let column = self.after_dash(column);
            let entries = self.entries(column, 0)?;
            each(entries, start)?;
        }
        Ok(())
    }

    fn finish<T>(&mut self, value: T) -> Result<T, Bad> {
        match self.next_line() {
            None => Ok(value),
            Some(_) => Err(self.bad("expected the end of the mapping (is the indentation right?)")),
        }
    }

    fn dash(&self) -> bool {
        self.peek() == Some(b'-') && matches!(self.peek_at(1), None | Some(b' ' | b'\n' | b'\r'))
    }

    /// Goes on from a dash to what follows; returns its column.
    fn after_dash(&mut self, column: usize) -> usize {
        let dash = self.at;
        self.at += 1;
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
        column + (self.at - dash)
    }

    /// The entries of a mapping whose keys are in column `indent`; the first is at hand.
    fn entries(&mut self, indent: usize, depth: u32) -> Result<Entries, Bad> {
        let mut entries = Entries::new();
        loop {
            let at = self.at;
            let key = self.key()?;
            let value = self.value(indent, depth)?;
            entries.push((key, value, at));
            let line = self.at;
            match self.next_line() {
                Some(column) if column == indent && !self.dash() => {}
                _ => {
                    self.at = line;
                    return Ok(entries);
                }
            }
        }
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<Vec<u8>, Bad> {
        if matches!(self.peek(), Some(b'\'' | b'"')) {
            let key = self.quoted()?;
            if self.peek() == Some(b':') {
                self.at += 1;
                return Ok(key);
            }
            return Err(self.bad("expected a colon after the key"));
        }
        let start = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b':' if matches!(self.peek_at(1), None | Some(b' ' | b'\n' | b'\r')) => {
                    let key = self.text[start..self.at].to_vec();
                    self.at += 1;
                    return Ok(key);
                }
                b'\n' | b'[' | b']' | b'{' | b'}' | b',' | b'#' | b'&' | b'*' | b'!' => break,
                _ => self.at += 1,
            }
        }
        self.at = start;
        Err(self.bad("expected a key with a colon after it"))
    }

    /// The value after the colon of a key in column `indent`, and the end of its line.
    fn value(&mut self, indent: usize, depth: u32) -> Result<Node, Bad> {
        if depth > MAX_DEPTH {
            return Err(self.bad(format!("nested more than {MAX_DEPTH} deep")));
        }
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
        if !matches!(self.peek(), None | Some(b'\n' | b'\r' | b'#')) {
            let node = self.flow(false, depth)?;
            self.end_of_line()?;
            return Ok(node);
        }
        self.end_of_line()?;
        let line = self.at;
        match self.next_line() {
            Some(column) if self.dash() && column >= indent => {
                let mut list = Vec::new();
                loop {
                    list.push(self.item(column, depth + 1)?);
                    let line = self.at;
                    match self.next_line() {
                        Some(next) if next == column && self.dash() => {}
                        _ => {
                            self.at = line;
                            return Ok(Node::List(list));
                        }
                    }
                }
            }
            Some(column) if column > indent => {
                let entries = self.entries(column, depth + 1)?;
                Ok(Node::Map(
                    entries
                        .into_iter()
                        .map(|(key, value, _)| (key, value))
                        .collect(),
                ))
            }
            _ => {
                self.at = line;
                Ok(Node::Scalar(Vec::new()))
            }
        }
    }

    /// A sequence item; the dash is at hand, in column `column`.
    fn item(&mut self, column: usize, depth: u32) -> Result<Node, Bad> {
        if depth > MAX_DEPTH {
            return Err(self.bad(format!("nested more than {MAX_DEPTH} deep")));
        }
        let column = self.after_dash(column);
        let start = self.at;
        if !matches!(self.peek(), Some(b'[' | b'{')) && self.key().is_ok() {
            self.at = start;
            let entries = self.entries(column, depth + 1)?;
            return Ok(Node::Map(
                entries
                    .into_iter()
                    .map(|(key, value, _)| (key, value))
                    .collect(),
            ));
        }
        self.at = start;
        let node = self.flow(false, depth + 1)?;
        self.end_of_line()?;
        Ok(node)
    }

    /// White space and line ends within brackets.
    fn space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                b'#' => self.skip_line(),
                _ => break,
            }
        }
    }

    /// A scalar, or something in brackets. `inside` brackets a comma or bracket ends a scalar.
    fn flow(&mut self, inside: bool, depth: u32) -> Result<Node, Bad> {
        if depth > MAX_DEPTH {
            return Err(self.bad(format!("nested more than {MAX_DEPTH} deep")));
        }
        match self.peek() {
            Some(b'[') => {
                self.at += 1;
                let mut list = Vec::new();
                loop {
                    self.space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        return Ok(Node::List(list));
                    }
                    list.push(self.flow(true, depth + 1)?);
                    self.space();
                    match self.peek() {
                        Some(b',') => self.at += 1,
                        Some(b']') => {}
                        _ => return Err(self.bad("expected , or ]")),
                    }
                }
            }
            Some(b'{') => {
                self.at += 1;
                let mut map = Vec::new();
                loop {
                    self.space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                        return Ok(Node::Map(map));
                    }
                    let key = self.key()?;
                    self.space();
                    map.push((key, self.flow(true, depth + 1)?));
                    self.space();
                    match self.peek() {
                        Some(b',') => self.at += 1,
                        Some(b'}') => {}
                        _ => return Err(self.bad("expected , or }")),
                    }
                }
            }
            Some(b'\'' | b'"') => self.quoted().map(Node::Scalar),
            Some(b'&' | b'*' | b'!' | b'|' | b'>' | b'%' | b'@' | b'`') => {
                Err(self.bad("expected a plain or quoted value"))
            }
            _ => {
                let start = self.at;
                while let Some(byte) = self.peek() {
                    match byte {
                        b'\n' | b'\r' => break,
                        b',' | b']' | b'}' if inside => break,
                        b'#' if self.at > start && self.text[self.at - 1] == b' ' => break,
                        _ => self.at += 1,
                    }
                }
                if self.at == start && inside {
                    return Err(self.bad("expected a value"));
                }
                Ok(Node::Scalar(
                    self.text[start..self.at].trim_ascii_end().to_vec(),
                ))
            }
        }
    }

    fn quoted(&mut self) -> Result<Vec<u8>, Bad> {
        let open = self.at;
        let mark = self.peek();
        self.at += 1;
        let mut out = Vec::new();
        while let Some(byte) = self.peek() {
            self.at += 1;
            match (byte, mark) {
                (b'\'', Some(b'\'')) if self.peek() == Some(b'\'') => {
                    out.push(b'\'');
                    self.at += 1;
                }
                (b'\'', Some(b'\'')) | (b'"', Some(b'"')) => return Ok(out),
                (b'\\', Some(b'"')) => {
                    let escape = self.peek();
                    self.at += 1;
                    let digits = match escape {
                        Some(b'n') => {
                            out.push(b'\n');
                            continue;
                        }
                        Some(b't') => {
                            out.push(b'\t');
                            continue;
                        }
                        Some(b'r') => {
                            out.push(b'\r');
                            continue;
                        }
                        Some(b'0') => {
                            out.push(0);
                            continue;
                        }
                        Some(byte @ (b'"' | b'\\' | b'/' | b' ')) => {
                            out.push(byte);
                            continue;
                        }
                        Some(b'x') => 2,
                        Some(b'u') => 4,
                        Some(b'U') => 8,
                        _ => {
                            self.at = open;
                            return Err(self.bad("unknown escape in a quoted value"));
                        }
                    };
                    let code = self.text[..self.end]
                        .get(self.at..self.at + digits)
                        .and_then(source::hex);
                    let Some(character) = code.and_then(|code| char::from_u32(code as u32)) else {
                        self.at = open;
                        return Err(
                            self.bad("escape without a valid character number in a quoted value")
                        );
                    };
                    self.at += digits;
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                (b'\n', _) => break,
                _ => out.push(byte),
            }
        }
        self.at = open;
        Err(self.bad("expected a closing quote on the same line"))
    }
}
