//! Writes the layout of LLVM's YAML printer, byte for byte: values start in column 17 after their key's
//! indentation (or after one space), flow sequences continue in the next line once they are beyond column 70,
//! scalars are quoted where LLVM does it.

use super::{Block, BoltYaml, Call, Function, HashFunction, Node, Successor};

/// Column after which a flow sequence or mapping continues in a new line.
const WRAP: usize = 70;

/// The whole text.
pub(super) fn document(profile: &BoltYaml) -> Vec<u8> {
    let mut out = Out {
        bytes: b"---\nheader:\n".to_vec(),
        line: 0,
    };
    let header = &profile.header;
    out.key(2, "profile-version");
    out.end(b"1");
    out.scalar(2, "binary-name", &header.binary_name);
    out.scalar(2, "binary-build-id", &header.build_id);
    out.key(2, "profile-flags");
    let flags = [
        (header.lbr, "lbr"),
        (header.sample, "sample"),
        (header.memevent, "memevent"),
    ];
    let flags: Vec<&str> = flags
        .iter()
        .filter(|flag| flag.0)
        .map(|flag| flag.1)
        .collect();
    out.end(format!("[ {} ]", flags.join(", ")).as_bytes());
    out.scalar(2, "profile-origin", &header.origin);
    out.scalar(2, "profile-events", &header.events);
    out.key(2, "dfs-order");
    out.end(if header.dfs_order { b"true" } else { b"false" });
    if header.hash_function == HashFunction::Xxh3 {
        out.key(2, "hash-func");
        out.end(b"xxh3");
    }
    if profile.functions.is_empty() {
        out.key(0, "functions");
        out.end(b"[]");
    } else {
        out.end(b"functions:");
    }
    for function in &profile.functions {
        out.function(function);
    }
    for (key, node) in &profile.extra {
        out.extra(0, key, node);
    }
    out.end(b"...");
    out.bytes
}

struct Out {
    bytes: Vec<u8>,
    /// Where the current line starts.
    line: usize,
}

impl Out {
    fn put(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
    }

    /// Text and the end of the line.
    fn end(&mut self, text: &[u8]) {
        self.put(text);
        self.bytes.push(b'\n');
        self.line = self.bytes.len();
    }

    fn column(&self) -> usize {
        self.bytes.len() - self.line
    }

    /// A key; its value goes to column 17 after the indentation.
    fn key(&mut self, indent: usize, key: &str) {
        self.dashed_key(indent, false, key.as_bytes());
    }

    /// The same with a dash before it.
    fn dashed_key(&mut self, indent: usize, dash: bool, key: &[u8]) {
        self.line = self.bytes.len();
        self.bytes.resize(self.bytes.len() + indent, b' ');
        if dash {
            let at = self.bytes.len() - 2;
            self.bytes[at] = b'-'; // `indent` is at least 4 wherever there is a dash
        }
        self.put(key);
        self.put(b":");
        self.bytes.resize(
            self.bytes.len() + 16usize.saturating_sub(key.len()).max(1),
            b' ',
        );
    }

    fn scalar(&mut self, indent: usize, key: &str, value: &[u8]) {
        self.key(indent, key);
        self.quoted(value);
        self.end(b"");
    }

    fn number(&mut self, indent: usize, key: &str, value: u64) {
        self.key(indent, key);
        self.end(value.to_string().as_bytes());
    }

    fn hash(&mut self, indent: usize, value: u64) {
        self.key(indent, "hash");
        self.end(format!("{value:#X}").replace("0X", "0x").as_bytes());
    }

    fn function(&mut self, function: &Function) {
        self.dashed_key(4, true, b"name");
        self.quoted(&function.name);
        self.end(b"");
        self.number(4, "fid", function.fid.into());
        self.hash(4, function.hash);
        self.number(4, "exec", function.exec);
        if function.external > 0 {
            self.number(4, "extern", function.external);
        }
        self.number(4, "nblocks", function.nblocks.into());
        if !function.blocks.is_empty() {
            self.end(b"    blocks:");
        }
        for block in &function.blocks {
            self.block(block);
        }
        for (key, node) in &function.extra {
            self.extra(4, key, node);
        }
    }

    fn block(&mut self, block: &Block) {
        self.dashed_key(8, true, b"bid");
        self.end(block.bid.to_string().as_bytes());
        self.number(8, "insns", block.insns.into());
        if block.hash > 0 {
            self.hash(8, block.hash);
        }
        if block.exec > 0 {
            self.number(8, "exec", block.exec);
        }
        if block.events > 0 {
            self.number(8, "events", block.events);
        }
        if !block.calls.is_empty() {
            self.key(8, "calls");
            self.flow_list(&block.calls, Out::call);
            self.end(b"");
        }
        if !block.successors.is_empty() {
            self.key(8, "succ");
            self.flow_list(&block.successors, Out::successor);
            self.end(b"");
        }
        for (key, node) in &block.extra {
            self.extra(8, key, node);
        }
    }

    fn call(&mut self, call: &Call) {
        let mut map = FlowMap::open(self);
        map.entry(
            b"off",
            format!("{:#X}", call.offset).replace("0X", "0x").as_bytes(),
        );
        map.entry(b"fid", call.fid.to_string().as_bytes());
        if call.discriminator > 0 {
            map.entry(b"disc", call.discriminator.to_string().as_bytes());
        }
        map.entry(b"cnt", call.count.to_string().as_bytes());
        if call.mispredictions > 0 {
            map.entry(b"mis", call.mispredictions.to_string().as_bytes());
        }
        for (key, node) in &call.extra {
            map.key(key);
            map.out.flow(node);
        }
        map.close();
    }

    fn successor(&mut self, successor: &Successor) {
        let mut map = FlowMap::open(self);
        map.entry(b"bid", successor.bid.to_string().as_bytes());
        map.entry(b"cnt", successor.count.to_string().as_bytes());
        if successor.mispredictions > 0 {
            map.entry(b"mis", successor.mispredictions.to_string().as_bytes());
        }
        map.close();
    }

    fn flow_list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Out, &T)) {
        let start = self.column();
        self.put(b"[ ");
        for (i, value) in items.iter().enumerate() {
            if i > 0 {
                self.put(b", ");
            }
            self.wrap(start);
            item(self, value);
        }
        self.put(b" ]");
    }

    /// Goes on in a new line under `start` if this one is full.
    fn wrap(&mut self, start: usize) {
        if self.column() > WRAP {
            self.end(b"");
            self.bytes.resize(self.bytes.len() + start + 2, b' ');
        }
    }

    /// A field that is not modelled, in flow form.
    fn extra(&mut self, indent: usize, key: &[u8], node: &Node) {
        self.dashed_key(indent, false, key);
        self.flow(node);
        self.end(b"");
    }

    fn flow(&mut self, node: &Node) {
        match node {
            // Of a field that is not modelled it is not known whether it is a number.
            Node::Scalar(text) if is_number(text) => self.put(text),
            Node::Scalar(text) => self.quoted(text),
            Node::List(items) => self.flow_list(items, Out::flow),
            Node::Map(entries) => {
                let mut map = FlowMap::open(self);
                for (key, node) in entries {
                    map.key(key);
                    map.out.flow(node);
                }
                map.close();
            }
        }
    }

    fn quoted(&mut self, text: &[u8]) {
        match quotes(text) {
            Quotes::None => self.put(text),
            Quotes::Single => {
                self.put(b"'");
                for &byte in text {
                    if byte == b'\'' {
                        self.put(b"'");
                    }
                    self.bytes.push(byte);
                }
                self.put(b"'");
            }
            Quotes::Double => {
                self.put(b"\"");
                for &byte in text {
                    match byte {
                        b'"' | b'\\' => self.put(&[b'\\', byte]),
                        b'\n' => self.put(b"\\n"),
                        b'\r' => self.put(b"\\r"),
                        b'\t' => self.put(b"\\t"),
                        0..=0x1f | 0x7f => self.put(format!("\\x{byte:02X}").as_bytes()),
                        _ => self.bytes.push(byte),
                    }
                }
                self.put(b"\"");
            }
        }
    }
}

/// `{ key: value, … }`
struct FlowMap<'a> {
    out: &'a mut Out,
    start: usize,
    empty: bool,
}

impl<'a> FlowMap<'a> {
    fn open(out: &'a mut Out) -> FlowMap<'a> {
        let start = out.column();
        out.put(b"{ ");
        FlowMap {
            out,
            start,
            empty: true,
        }
    }

    fn key(&mut self, key: &[u8]) {
        if !self.empty {
            self.out.put(b", ");
        }
        self.empty = false;
        self.out.wrap(self.start);
        self.out.put(key);
        self.out.put(b": ");
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        self.key(key);
        self.out.put(value);
    }

    fn close(self) {
        self.out.put(b" }");
    }
}

#[derive(PartialEq)]
enum Quotes {
    None,
    Single,
    Double,
}

/// Which quotes a scalar needs.
fn quotes(text: &[u8]) -> Quotes {
    let (Some(&first), Some(&last)) = (text.first(), text.last()) else {
        return Quotes::Single;
    };
    if text
        .iter()
        .any(|&byte| (byte < 0x20 && byte != b'\t') || byte >= 0x7f)
    {
        return Quotes::Double;
    }
    let space = |byte: u8| matches!(byte, b' ' | b'\t');
    let words: [&[u8]; 10] = [
        b"null", b"Null", b"NULL", b"~", b"true", b"True", b"TRUE", b"false", b"False", b"FALSE",
    ];
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-^., \t".contains(&byte);
    let quoted = space(first)
        || space(last)
        || words.contains(&text)
        || is_number(text)
        || b"-?:\\,[]{}#&*!|>'\"%@`".contains(&first)
        || !text.iter().copied().all(plain);
    if quoted { Quotes::Single } else { Quotes::None }
}

/// Whether YAML would take a plain scalar for a number.
fn is_number(text: &[u8]) -> bool {
    let unsigned = match text {
        [b'+' | b'-', rest @ ..] => rest,
        _ => text,
    };
    if matches!(text, b".nan" | b".NaN" | b".NAN")
        || matches!(unsigned, b".inf" | b".Inf" | b".INF")
    {
        return true;
    }
    if let Some(digits) = text.strip_prefix(b"0o") {
        return !digits.is_empty() && digits.iter().all(|byte| (b'0'..=b'7').contains(byte));
    }
    if let Some(digits) = text.strip_prefix(b"0x") {
        return !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    }
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(unsigned);
    let mut rest = &unsigned[whole..];
    let mut fraction = 0;
    if let [b'.', after @ ..] = rest {
        fraction = digits(after);
        rest = &after[fraction..];
    }
    if whole + fraction == 0 {
        return false;
    }
    match rest {
        [] => true,
        [b'e' | b'E', exponent @ ..] => {
            let exponent = match exponent {
                [b'+' | b'-', rest @ ..] => rest,
                _ => exponent,
            };
            !exponent.is_empty() && exponent.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_quoted_where_llvm_does() {
        let shown = |text: &str| {
            let mut out = Out {
                bytes: Vec::new(),
                line: 0,
            };
            out.quoted(text.as_bytes());
            String::from_utf8(out.bytes).unwrap()
        };
        for plain in [
            "main",
            "_ZN3fooEv",
            "foo.cold.0",
            "perf data aggregator",
            "994ff20b",
            "a,b",
        ] {
            assert_eq!(shown(plain), plain);
        }
        for single in [
            "./t",
            "main/1",
            "qsort@PLT",
            "",
            "<unknown>",
            "12345",
            "12e4",
            "0x1f",
            "true",
            "-x",
            "a(*2)",
            " x",
        ] {
            assert_eq!(shown(single), format!("'{single}'"));
        }
        assert_eq!(shown("it's"), "'it''s'");
        assert_eq!(shown("a\nb"), "\"a\\nb\"");
    }
}
