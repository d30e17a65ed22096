//! Pseudo probes, samples and sample profiles that are nearly right.

use std::io::Read;

use arbitrary::{Result, Unstructured};
use postlink_elf::elf::Elf;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::probe::anchor::{Anchor, Anchors};
use postlink_profgen::probe::{Descriptors, decode};
use postlink_profgen::sample::{binary, extbinary, gcov, text};
use postlink_profgen::testing::Walk;
use postlink_profgen::{Format, Guid, Input, Options, Program, generate, pe};

use crate::number;

fn uleb(u: &mut Unstructured<'_>, out: &mut Vec<u8>, plain: u64) -> Result<()> {
    let mut value = if u.ratio(1, 20)? { number(u)? } else { plain };
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    Ok(())
}

/// Records of probes: bodies in bodies, with counts that mostly hold.
pub fn probes(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    fn body(u: &mut Unstructured<'_>, out: &mut Vec<u8>, depth: usize) -> Result<()> {
        let guid = match u.int_in_range(0..=2)? {
            0 => Guid::of(b"main").0,
            1 => Guid::of(b"other").0,
            _ => number(u)?,
        };
        out.extend(guid.to_le_bytes());
        let probes = u.int_in_range(0..=5u64)?;
        let inlinees = if depth < 5 {
            u.int_in_range(0..=2u64)?
        } else {
            0
        };
        uleb(u, out, probes)?;
        uleb(u, out, inlinees)?;
        for index in 0..probes {
            uleb(u, out, index + 1)?;
            let tag: u8 = match u.int_in_range(0..=4)? {
                0 => 0x20,
                1 => 0x00,
                2 => u.arbitrary()?,
                _ => 0x80 | u.int_in_range(0..=2)?,
            };
            out.push(tag);
            match tag & 0x80 {
                0 => out.extend(number(u)?.to_le_bytes()),
                _ => out.push(u.int_in_range(0..=0x7f)?),
            }
            if tag & 0x40 != 0 {
                uleb(u, out, 3)?;
            }
        }
        for _ in 0..inlinees {
            let site = u.int_in_range(0..=9)?;
            uleb(u, out, site)?;
            body(u, out, depth + 1)?;
        }
        Ok(())
    }
    let mut out = Vec::new();
    for _ in 0..u.int_in_range(1..=6)? {
        body(u, &mut out, 0)?;
    }
    if u.ratio(1, 4)? {
        out.truncate(u.int_in_range(0..=out.len())?);
    }
    Ok(out)
}

/// Whatever the bytes of `.pseudo_probe` are, they give probes whose bodies are a forest, or an error.
pub fn check_probes(section: &[u8]) {
    let at = |address| Anchor { address, size: 64 };
    let symbols: [(&[u8], Anchor); 3] = [
        (b"main", at(0x1000)),
        (b"other", at(0x2000)),
        (b"other", at(0x3000)),
    ];
    let Ok(probes) = decode::decode(section, &Anchors::new(&symbols)) else {
        return;
    };
    let mut bodies = 0;
    for root in probes.roots() {
        bodies += probes.subtree(root).count();
    }
    assert_eq!(bodies, probes.node_count());
    let mut last = 0;
    for probe in probes.by_address() {
        assert!(probe.address >= last, "probes are not in order");
        last = probe.address;
        assert!(probes.at(probe.address).any(|other| other == probe));
    }
    for (id, _) in probes.nodes() {
        assert!(probes.context(id).len() < section.len());
        assert!(probes.of_node(id).all(|probe| probe.node == id));
        for inlinee in probes.inlinees(id) {
            assert_eq!(probes.parent(inlinee), Some(id));
        }
    }
}

/// Records of functions, whose lengths mostly hold.
pub fn descriptors(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for _ in 0..u.int_in_range(0..=6)? {
        out.extend(number(u)?.to_le_bytes());
        out.extend(number(u)?.to_le_bytes());
        let len = u.int_in_range(0..=200)?;
        uleb(u, &mut out, len)?;
        out.extend(u.bytes(len.min(u.len() as u64) as usize)?);
    }
    Ok(out)
}

/// Whatever the bytes of `.pseudo_probe_desc` are, they give functions that can be found by their key, or an error.
pub fn check_descriptors(section: &[u8]) {
    let Ok(descriptors) = Descriptors::parse(&[section]) else {
        return;
    };
    for descriptor in descriptors.iter() {
        assert!(descriptors.get(descriptor.guid).is_some());
    }
}

/// A perf script of a program, with lines left out, doubled, damaged and mixed.
pub fn script(u: &mut Unstructured<'_>, program: &[u8]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let chains = u.arbitrary()?;
    if let Ok(elf) = Elf::parse(program)
        && let Ok(lines) = Lines::load(&elf)
    {
        let code = Program::new(&elf, &lines);
        if let Some(mut walk) = Walk::new(&code, u.arbitrary()?) {
            let bias = if u.arbitrary()? {
                number(u)? & !0xfff
            } else {
                0
            };
            // Writing to a vector does not fail.
            let _ = walk.write_mapping("p", bias, &mut text);
            for _ in 0..u.int_in_range(0..=6)? {
                walk.advance(u.int_in_range(0..=100)?);
                let _ = walk.write(chains, bias, &mut text);
            }
        }
    }
    let mut out = Vec::new();
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let mut line = line.to_vec();
        match u.int_in_range(0..=12)? {
            0 => continue,
            1 => out.extend_from_slice(&line),
            2 => line.truncate(u.int_in_range(0..=line.len())?),
            3 => {
                let at = u.int_in_range(0..=line.len() - 1)?;
                line[at] = u.arbitrary()?;
            }
            4 => out.extend_from_slice(b"12\n"),
            5 => line.splice(0..0, *b" 77 ").for_each(drop),
            _ => {}
        }
        out.append(&mut line);
    }
    Ok(out)
}

/// Hands out bytes in pieces of odd lengths.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.0.len().min(out.len()).min(977);
        let (now, later) = self.0.split_at(len);
        out[..len].copy_from_slice(now);
        self.0 = later;
        Ok(len)
    }
}

/// Whatever a script says, it gives a profile or an error; and a raw profile that can be read again.
pub fn check_script(script: &[u8], program: &[u8]) {
    let Ok(elf) = Elf::parse(program) else { return };
    let Ok(lines) = Lines::load(&elf) else { return };
    let mut options = Options {
        format: Format::Text,
        ..Options::default()
    };
    options.script.file = "p".to_owned();
    for raw in [false, true] {
        options.raw = raw;
        let mut out = Vec::new();
        let input = Input::Script(&mut Pieces(script));
        if generate(&elf, &lines, input, &options, &mut out).is_err() {
            continue;
        }
        if raw {
            assert!(
                postlink_profgen::read_raw_counters(&out, 0).is_ok(),
                "a raw profile is broken"
            )
        } else {
            assert!(text::read(&out).is_ok(), "a profile is broken")
        }
    }
}

/// A sample profile in one of its forms, mostly right.
pub fn sample_profile(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    const LINES: [&str; 14] = [
        "main:184019:7\n",
        "[main:2 @ foo:8.1 @ bar]:28:14\n",
        "f:18446744073709551615:1\n",
        " 2.1: 15\n",
        " 4: 534 _Z3fooi:500 bar:34\n",
        " 5: foo:424940\n",
        "  1: 15707\n",
        "  2: bar:7\n",
        "   1: 7\n",
        " 4: vtables _ZTV1A:6 _ZTVN1b1BE:4 \n",
        "  1: vtables _ZTV1A:2 \n",
        " !CFGChecksum: 3\n",
        " !Attributes: 2\n",
        "# a comment\n",
    ];
    let mut whole = String::new();
    for _ in 0..u.int_in_range(0..=12)? {
        whole.push_str(u.choose(&LINES)?);
    }
    let mut out = whole.into_bytes();
    if let Ok(profile) = text::read(&out) {
        // Writing to a vector does not fail.
        match u.int_in_range(0..=4)? {
            0 => {
                out.clear();
                let options = extbinary::Options {
                    vtables: u.arbitrary()?,
                    ..extbinary::Options::default()
                };
                let _ = extbinary::write(&profile, &options, &mut out);
            }
            1 if !profile.context_sensitive => {
                out.clear();
                let _ = binary::write(&profile, &mut out);
            }
            2 if !profile.context_sensitive => {
                out.clear();
                let versions = [
                    gcov::Version::Llvm,
                    gcov::Version::Gcc2,
                    gcov::Version::Gcc3,
                ];
                let _ = gcov::write(&profile, *u.choose(&versions)?, &mut out);
            }
            _ => {}
        }
    }
    for _ in 0..u.int_in_range(0..=4)? {
        if let Some(last) = out.len().checked_sub(1) {
            let at = u.int_in_range(0..=last)?;
            out[at] = u.arbitrary()?;
        }
    }
    if u.ratio(1, 5)? {
        out.truncate(u.int_in_range(0..=out.len())?);
    }
    Ok(out)
}

/// Whatever bytes are, every reader of profiles reads or refuses them; and what was read from a binary form
/// stays the same by writing and reading it again. (A name in a text may hold a zero byte, which no binary
/// form can.)
pub fn check_sample_profile(bytes: &[u8]) {
    let _ = postlink_profgen::read_raw_counters(bytes, 0x1000);
    let _ = pe::as_elf(bytes);
    for profile in [
        text::read(bytes),
        extbinary::read(bytes),
        binary::read(bytes),
        gcov::read(bytes),
    ]
    .into_iter()
    .flatten()
    {
        let mut once = Vec::new();
        let options = extbinary::Options {
            vtables: true,
            ..extbinary::Options::default()
        };
        if extbinary::write(&profile, &options, &mut once).is_err() {
            continue;
        }
        let Ok(again) = extbinary::read(&once) else {
            continue;
        };
        let (mut twice, mut thrice) = (Vec::new(), Vec::new());
        // Writing to a vector does not fail.
        let _ = extbinary::write(&again, &options, &mut twice);
        let again = extbinary::read(&twice).expect("what was written can be read");
        let _ = extbinary::write(&again, &options, &mut thrice);
        assert_eq!(twice, thrice, "a profile changes by writing and reading it");
    }
}
