//! Probes as text and as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::load::Loaded;
use super::{Descriptors, NodeId, Probe, Probes};
use crate::guid::Guid;

/// Where a body was inlined, as `outer:3 @ inner:2`; empty if it was not.
pub fn inline_text(probes: &Probes, descriptors: &Descriptors<'_>, node: NodeId) -> String {
    let mut text = String::new();
    for (guid, site) in probes.context(node) {
        if !text.is_empty() {
            text.push_str(" @ ");
        }
        // Writing to a string does not fail.
        let _ = write!(text, "{}:{site}", descriptors.name(guid));
    }
    text
}

/// Probes to be listed.
pub struct Listed<'a, 'd> {
    /// All of the file.
    pub loaded: &'a Loaded<'d>,
    /// Only functions and probes of this function, where it is alone and where it was inlined.
    pub only: Option<Guid>,
}

impl Listed<'_, '_> {
    fn wants(&self, guid: Guid) -> bool {
        self.only.is_none_or(|only| only == guid)
    }

    fn probes(&self) -> impl Iterator<Item = Probe> {
        let probes = &self.loaded.probes;
        probes
            .by_address()
            .filter(|probe| self.wants(probes.node(probe.node).guid))
    }

    /// Functions, then probes by address.
    pub fn text(&self, out: &mut impl Write) -> io::Result<()> {
        let Loaded {
            descriptors,
            probes,
            ..
        } = self.loaded;
        writeln!(out, "{:>20}  {:>20}  function", "GUID", "hash")?;
        for d in descriptors.iter().filter(|d| self.wants(d.guid)) {
            let name = String::from_utf8_lossy(d.name);
            writeln!(out, "{:>20}  {:>20}  {name}", d.guid.0, d.hash)?;
        }
        writeln!(
            out,
            "\n{:>16}  {:>6} kind          function",
            "address", "index"
        )?;
        for probe in self.probes() {
            let name = descriptors.name(probes.node(probe.node).guid);
            let context = inline_text(probes, descriptors, probe.node);
            let kind = probe.kind.to_string();
            write!(
                out,
                "{:>16x}  {:>6} {kind:<12}  {name}",
                probe.address, probe.index
            )?;
            if probe.discriminator != 0 {
                write!(out, " discriminator {}", probe.discriminator)?;
            }
            if context.is_empty() {
                writeln!(out)?
            } else {
                writeln!(out, "  inlined at {context}")?
            }
        }
        Ok(())
    }

    /// One JSON object: `functions` (guid, hash, name), `bodies` (guid, name, site, parent) and `probes`
    /// (address, function's body, index, kind, attributes, discriminator). GUIDs and hashes are strings: many
    /// readers keep only 53 bits of a number.
    pub fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let Loaded {
            descriptors,
            probes,
            ..
        } = self.loaded;
        let mut between = "";
        write!(out, "{{\"functions\":[")?;
        for d in descriptors.iter().filter(|d| self.wants(d.guid)) {
            let name = quoted(&String::from_utf8_lossy(d.name));
            let (guid, hash) = (d.guid, d.hash);
            write!(
                out,
                "{between}\n{{\"guid\":\"{guid}\",\"hash\":\"{hash}\",\"name\":{name}}}"
            )?;
            between = ",";
        }
        write!(out, "],\n\"bodies\":[")?;
        between = "";
        for (id, node) in probes.nodes() {
            let name = quoted(&descriptors.name(node.guid));
            write!(
                out,
                "{between}\n{{\"body\":{},\"guid\":\"{}\",\"name\":{name}",
                id.0, node.guid
            )?;
            match probes.parent(id) {
                Some(parent) => write!(out, ",\"parent\":{},\"site\":{}}}", parent.0, node.site)?,
                None => write!(out, "}}")?,
            }
            between = ",";
        }
        write!(out, "],\n\"probes\":[")?;
        between = "";
        for probe in self.probes() {
            write!(
                out,
                "{between}\n{{\"address\":{},\"body\":{},\"index\":{},\"kind\":\"{}\",\"attributes\":{}",
                probe.address, probe.node.0, probe.index, probe.kind, probe.attributes
            )?;
            match probe.discriminator {
                0 => write!(out, "}}")?,
                value => write!(out, ",\"discriminator\":{value}}}")?,
            }
            between = ",";
        }
        writeln!(out, "]}}")
    }
}

/// A string as JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
