//! A profile as text, in the layout of the original's `mip2yaml`, and back.
//!
//! Values begin 17 columns after their key's start, or one after a longer key. Numbers are decimal, or `0x`
//! and upper-case digits. The entry is the first of a function's blocks; its state follows from the counts
//! when the text is read.
//!
//! What only version 9 of the format has comes under keys of its own, which are left out where there is
//! nothing to say: `Identity` in the header, `Inferred Block Profiles` in a function, `Traces` and `Moved Callers` at
//! the end.
//! With source lines there is a `Source Info`, which is ignored on reading.

use std::fmt::Write;
use std::path::Path;

use postlink_profile::yaml::{Node, document};
use postlink_profile::{Error, Place};

use crate::hash::md5_64;
use crate::header::Types;
use crate::model::{
    Block, Edge, Function, InferredBlock, MAX_TRACE_LENGTH, MovedCaller, Profile, Trace,
};
use crate::symbolize::Symbolizer;

/// The text of a profile; with a symbolizer it has source lines.
pub fn write(profile: &Profile, symbolizer: Option<&Symbolizer>) -> String {
    let mut out = Text(String::with_capacity(256 + profile.functions.len() * 512));
    out.line("---");
    out.line("Header:");
    out.pair(2, "File Type", "[ .mip ]");
    let names: Vec<&str> = profile.types.names().collect();
    let types = if names.is_empty() {
        "[  ]".to_owned()
    } else {
        format!("[ {} ]", names.join(", "))
    };
    out.pair(2, "Profile Type", types);
    out.pair(2, "Module Hash", hex(profile.module_hash.into()));
    if profile.identity != 0 {
        out.pair(2, "Identity", hex(profile.identity));
    }
    if profile.functions.is_empty() {
        out.pair(0, "Profiles", "[]");
    } else {
        out.line("Profiles:");
    }
    for function in &profile.functions {
        out.function(function, symbolizer);
    }
    if !profile.traces.is_empty() {
        out.line("Traces:");
        for trace in &profile.traces {
            out.pair(2, "- Key", hex(trace.key));
            out.pair(4, "Weight", trace.weight);
            let list: Vec<String> = trace.functions.iter().map(u32::to_string).collect();
            out.pair(4, "Functions", format!("[ {} ]", list.join(", ")));
        }
    }
    if !profile.callers.is_empty() {
        out.line("Moved Callers:");
        for caller in &profile.callers {
            out.pair(2, "- Return Address", hex(caller.ran as u64));
            out.pair(4, "In The Input", hex(caller.source as u64));
        }
    }
    out.line("...");
    out.0
}

fn hex(number: u64) -> String {
    format!("{number:#X}").replacen("0X", "0x", 1)
}

struct Text(String);

impl Text {
    fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    /// A key, which may have the dash of a list in front, and its value.
    fn pair(&mut self, indent: usize, key: &str, value: impl std::fmt::Display) {
        // The dash does not count for the width.
        let width = if key.starts_with("- ") { 18 } else { 16 };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{:indent$}{:width$} ", "", format!("{key}:"));
        let _ = writeln!(self.0, "{value}");
    }

    fn function(&mut self, function: &Function, symbolizer: Option<&Symbolizer>) {
        self.pair(2, "- Function Name", scalar(&function.name));
        self.pair(4, "Function Signature", hex(function.signature));
        self.pair(4, "Raw Profile Data Address", hex(function.raw_offset));
        self.pair(4, "Encoded Function Address", hex(function.address as u64));
        self.pair(4, "Function Size", hex(function.size.into()));
        self.pair(
            4,
            "Control Flow Graph Signature",
            hex(function.cfg_signature.into()),
        );
        self.pair(4, "Raw Profile Count", function.raw_count);
        self.pair(4, "Function Call Count", function.call_count);
        self.pair(4, "Function Order Sum", function.order_sum);
        self.line("    Basic Block Profiles:");
        let entry = Block {
            offset: 0,
            covered: function.entry_covered(),
        };
        for block in std::iter::once(&entry).chain(&function.blocks) {
            self.pair(6, "- Offset", hex(block.offset.into()));
            self.pair(8, "Covered", block.covered);
        }
        if !function.inferred.is_empty() {
            self.line("    Inferred Block Profiles:");
            for block in &function.inferred {
                self.pair(6, "- Offset", hex(block.offset.into()));
                let list: Vec<String> = block.from.iter().map(u32::to_string).collect();
                self.pair(8, "Counters", format!("[ {} ]", list.join(", ")));
            }
        }
        if function.edges.is_empty() {
            self.pair(4, "Call Edges", "[]");
        } else {
            self.line("    Call Edges:");
            for edge in &function.edges {
                let source = hex(edge.source as u64);
                self.pair(6, "- Section Relative Source Address", source);
                self.pair(8, "Weight", edge.weight);
            }
        }
        let frames = symbolizer.map(|symbolizer| symbolizer.frames(function));
        if let Some(frame) = frames.as_ref().and_then(|frames| frames.first()) {
            self.line("    Source Info:");
            self.pair(6, "File Name", scalar(frame.file.as_bytes()));
            self.pair(6, "Function Name", scalar(frame.function.as_bytes()));
            self.pair(6, "Line", frame.line);
        }
    }
}

/// A string as YAML wants it: as it is if that can be nothing else, otherwise in quotes.
fn scalar(text: &[u8]) -> String {
    let plain = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'^' | b'.' | b',' | b' ')
    };
    let text = String::from_utf8_lossy(text);
    let numeric = text.parse::<f64>().is_ok() || text.starts_with("0x") || text.starts_with("0o");
    let word = matches!(
        text.to_ascii_lowercase().as_str(),
        "" | "~" | "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    let edge = text.starts_with([' ', '-', '.', ',']) || text.ends_with(' ');
    if text.bytes().all(|byte| plain(&byte)) && !numeric && !word && !edge {
        return text.into_owned();
    }
    if text.bytes().all(|byte| (b' '..0x7F).contains(&byte)) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut out = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            ' '.. => out.push(character),
            _ => {
                let _ = write!(out, "\\x{:02X}", u32::from(character));
            }
        }
    }
    out.push('"');
    out
}

/// Reads the text of a profile. `path` is for errors.
pub fn read(path: &Path, text: &[u8]) -> Result<Profile, Error> {
    let mut profile = Profile::default();
    let (mut header, mut functions) = (false, false);
    let bad = |what: String| Error::Format {
        path: path.to_owned(),
        place: Place::Whole,
        what: format!(": {what}").trim_start_matches(": ").to_owned(),
    };
    for (key, value) in document(path, text)? {
        match (key.as_slice(), value) {
            (b"Header", Node::Map(entries)) => {
                header = true;
                read_header(&mut profile, entries).map_err(bad)?;
            }
            (b"Profiles", Node::List(items)) => {
                functions = true;
                for (index, item) in items.into_iter().enumerate() {
                    let function = read_function(item)
                        .map_err(|what| bad(format!("profile {}: {what}", index + 1)))?;
                    profile.functions.push(function);
                }
            }
            (b"Traces", Node::List(items)) => {
                for item in items {
                    profile.traces.push(read_trace(item).map_err(bad)?);
                }
            }
            (b"Moved Callers", Node::List(items)) => {
                for item in items {
                    profile.callers.push(read_caller(item).map_err(bad)?);
                }
            }
            (key, _) => {
                return Err(bad(format!(
                    "unexpected \"{}\", or not with such a value",
                    key.escape_ascii()
                )));
            }
        }
    }
    for (name, seen) in [("Header", header), ("Profiles", functions)] {
        if !seen {
            return Err(bad(format!("there is no \"{name}\"")));
        }
    }
    let count = profile.functions.len();
    for trace in &profile.traces {
        if let Some(index) = trace.functions.iter().find(|i| **i as usize >= count) {
            return Err(bad(format!(
                "a trace names function {index}, and there are {count}"
            )));
        }
    }
    profile.add_traces(Vec::new());
    profile.callers.sort_unstable();
    let callers = &profile.callers;
    if !callers.is_empty() && !profile.types.has(Types::MOVED_CALLERS) {
        return Err(bad(format!(
            "{} calls are in another place, and the profile type does not have \"Moved Callers\"",
            callers.len()
        )));
    }
    if let Some(twice) = callers.windows(2).find(|two| two[0].ran == two[1].ran) {
        return Err(bad(format!(
            "two calls return to {:#x}: {:#x} and {:#x} in the input",
            twice[0].ran, twice[0].source, twice[1].source
        )));
    }
    if callers.first().is_some_and(|first| first.ran <= 0) {
        return Err(bad(format!(
            "a call returns to {:#x}, in front of the program",
            callers[0].ran
        )));
    }
    Ok(profile)
}

fn read_caller(item: Node) -> Result<MovedCaller, String> {
    let Node::Map(entries) = item else {
        return Err("a call that is in another place must be a mapping".to_owned());
    };
    let mut fields = Fields::new(entries, "a call that is in another place");
    let caller = MovedCaller {
        ran: fields.number::<u64>("Return Address")? as i64,
        source: fields.number::<u64>("In The Input")? as i64,
    };
    fields.finish()?;
    Ok(caller)
}

type Entries = Vec<(Vec<u8>, Node)>;

fn read_header(profile: &mut Profile, entries: Entries) -> Result<(), String> {
    let mut fields = Fields::new(entries, "the header");
    // The older form is a scalar.
    let kinds = match fields.take("File Type")? {
        Node::List(items) => items,
        scalar => vec![scalar],
    };
    if !kinds.contains(&Node::Scalar(b".mip".to_vec())) {
        return Err("the file type is not .mip".to_owned());
    }
    let Node::List(types) = fields.take("Profile Type")? else {
        return Err("\"Profile Type\" must be a list".to_owned());
    };
    for name in types {
        let known = match &name {
            Node::Scalar(text) => std::str::from_utf8(text).ok().and_then(Types::named),
            _ => None,
        };
        let known = known.ok_or_else(|| format!("unknown profile type {}", found(&name)))?;
        profile.types = profile.types.with(known);
    }
    profile.module_hash = fields.number("Module Hash")?;
    profile.identity = fields.optional_number("Identity")?.unwrap_or(0);
    fields.finish()
}

fn read_function(item: Node) -> Result<Function, String> {
    let Node::Map(entries) = item else {
        return Err("expected a mapping".to_owned());
    };
    let mut fields = Fields::new(entries, "a profile");
    let Node::Scalar(name) = fields.take("Function Name")? else {
        return Err("\"Function Name\" must be a name".to_owned());
    };
    if name.contains(&0) {
        return Err("a zero byte in a function's name".to_owned());
    }
    let mut function = Function {
        signature: fields.number("Function Signature")?,
        raw_offset: fields.number("Raw Profile Data Address")?,
        address: fields.number::<u64>("Encoded Function Address")? as i64,
        size: fields.number("Function Size")?,
        cfg_signature: fields.number("Control Flow Graph Signature")?,
        raw_count: fields.number("Raw Profile Count")?,
        call_count: fields.number("Function Call Count")?,
        order_sum: fields.number("Function Order Sum")?,
        ..Function::default()
    };
    if !name.is_empty() && md5_64(&name) != function.signature {
        return Err(format!(
            "the signature of {} is {:#X}, not {:#X}",
            name.escape_ascii(),
            md5_64(&name),
            function.signature
        ));
    }
    function.name = name;
    let blocks = fields.list("Basic Block Profiles", |fields| {
        let offset = fields.number("Offset")?;
        let covered = match fields.take("Covered")? {
            Node::Scalar(text) if text == b"true" => true,
            Node::Scalar(text) if text == b"false" => false,
            other => {
                return Err(format!(
                    "\"Covered\" must be true or false, is {}",
                    found(&other)
                ));
            }
        };
        Ok(Block { offset, covered })
    })?;
    let Some((_entry, blocks)) = blocks.split_first() else {
        return Err("there is no entry among the blocks".to_owned());
    };
    function.blocks = blocks.to_vec();
    if fields.has("Inferred Block Profiles") {
        function.inferred = fields.list("Inferred Block Profiles", |fields| {
            let offset = fields.number("Offset")?;
            let from = numbers(&fields.take("Counters")?, "Counters")?;
            Ok(InferredBlock { offset, from })
        })?;
        let counters = function.blocks.len();
        let numbers = function.inferred.iter().flat_map(|block| &block.from);
        if let Some(number) = numbers.into_iter().find(|n| **n as usize > counters) {
            return Err(format!(
                "a block follows from counter {number}, and the last is {counters}"
            ));
        }
    }
    function.edges = fields.list("Call Edges", |fields| {
        Ok(Edge {
            source: fields.number::<u64>("Section Relative Source Address")? as i64,
            weight: fields.number("Weight")?,
        })
    })?;
    function.edges.sort_unstable_by_key(|edge| edge.source);
    if !function.edges.is_sorted_by(|a, b| a.source < b.source) {
        return Err("two call edges from the same address".to_owned());
    }
    fields.drop("Source Info");
    fields.finish()?;
    Ok(function)
}

fn read_trace(item: Node) -> Result<Trace, String> {
    let Node::Map(entries) = item else {
        return Err("a trace must be a mapping".to_owned());
    };
    let mut fields = Fields::new(entries, "a trace");
    let trace = Trace {
        key: fields.number("Key")?,
        weight: fields.number("Weight")?,
        functions: numbers(&fields.take("Functions")?, "Functions")?,
    };
    if trace.functions.len() > MAX_TRACE_LENGTH {
        return Err(format!(
            "a trace of {} functions; they have at most {MAX_TRACE_LENGTH}",
            trace.functions.len()
        ));
    }
    fields.finish()?;
    Ok(trace)
}

fn numbers(node: &Node, key: &str) -> Result<Vec<u32>, String> {
    let Node::List(items) = node else {
        return Err(format!("\"{key}\" must be a list, is {}", found(node)));
    };
    items
        .iter()
        .map(|item| {
            number(item)
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| format!("\"{key}\" must be numbers, one is {}", found(item)))
        })
        .collect()
}

fn number(node: &Node) -> Option<u64> {
    let Node::Scalar(text) = node else {
        return None;
    };
    let text = std::str::from_utf8(text).ok()?;
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

fn found(node: &Node) -> String {
    match node {
        Node::Scalar(text) => format!("\"{}\"", text.escape_ascii()),
        Node::List(_) => "a list".to_owned(),
        Node::Map(_) => "a mapping".to_owned(),
    }
}

/// The entries of a mapping, each taken once.
struct Fields {
    entries: Entries,
    of: &'static str,
}

impl Fields {
    fn new(entries: Entries, of: &'static str) -> Fields {
        Fields { entries, of }
    }

    fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.0 == key.as_bytes())
    }

    fn take(&mut self, key: &str) -> Result<Node, String> {
        let place = self
            .entries
            .iter()
            .position(|entry| entry.0 == key.as_bytes())
            .ok_or_else(|| format!("{} has no \"{key}\"", self.of))?;
        Ok(self.entries.remove(place).1)
    }

    fn drop(&mut self, key: &str) {
        self.entries.retain(|entry| entry.0 != key.as_bytes());
    }

    fn number<N: TryFrom<u64>>(&mut self, key: &str) -> Result<N, String> {
        let node = self.take(key)?;
        number(&node)
            .and_then(|number| N::try_from(number).ok())
            .ok_or_else(|| {
                format!(
                    "\"{key}\" must be a number of {} bits, is {}",
                    size_of::<N>() * 8,
                    found(&node)
                )
            })
    }

    fn optional_number(&mut self, key: &str) -> Result<Option<u64>, String> {
        if self.has(key) {
            self.number(key).map(Some)
        } else {
            Ok(None)
        }
    }

    fn list<T>(
        &mut self,
        key: &'static str,
        mut each: impl FnMut(&mut Fields) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let items = match self.take(key)? {
            Node::List(items) => items,
            other => return Err(format!("\"{key}\" must be a list, is {}", found(&other))),
        };
        let mut list = Vec::with_capacity(items.len());
        for item in items {
            let Node::Map(entries) = item else {
                return Err(format!(
                    "\"{key}\" must hold mappings, has {}",
                    found(&item)
                ));
            };
            let mut fields = Fields::new(entries, key);
            list.push(each(&mut fields)?);
            fields.finish()?;
        }
        Ok(list)
    }

    fn finish(&self) -> Result<(), String> {
        match self.entries.first() {
            None => Ok(()),
            Some((key, _)) => Err(format!(
                "{} has an unknown \"{}\"",
                self.of,
                key.escape_ascii()
            )),
        }
    }
}
