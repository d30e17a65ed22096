//! The decoder on known bytes, on bytes that a model wrote, and on anything.

use arbitrary::Unstructured;

use super::*;
use crate::probe::anchor::Anchor;
use crate::probe::{Kind, NodeId};

fn anchors(symbols: &[(&str, u64)]) -> Anchors {
    let symbols: Vec<(&[u8], Anchor)> = symbols
        .iter()
        .map(|&(name, address)| (name.as_bytes(), Anchor { address, size: 0 }))
        .collect();
    Anchors::new(&symbols)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// (index, kind, address) of a body's probes.
fn listed(probes: &Probes, node: u32) -> Vec<(u32, Kind, u64)> {
    let of = probes.of_node(NodeId(node));
    of.map(|probe| (probe.index, probe.kind, probe.address))
        .collect()
}

#[test]
fn records_of_today_start_at_their_symbols() {
    use Kind::{Block, DirectCall, IndirectCall};
    let section = bytes(
        "b28354b543375bfa 06 01  01 80 01  02 80 05  04 80 12  05 81 00  06 80 04  06 80 0b
         03 22384709d743fe3c 01 01  01 80 5f
         02 a185f1a110a288b6 05 00  01 80 00  02 80 09  03 82 02  04 80 0d  05 80 03
         22384709d743fe3c 01 01  01 80 02
         02 a185f1a110a288b6 06 00  01 80 00  02 80 08  03 82 00  05 80 09  04 80 04  05 80 03",
    );
    let anchors = anchors(&[("mid", 0x201660), ("top", 0x201680)]);
    let probes = decode(&section, &anchors).unwrap();
    assert_eq!(
        listed(&probes, 0),
        [
            (1, Block, 0x201681),
            (2, Block, 0x201686),
            (4, Block, 0x201698),
            (5, IndirectCall, 0x201698),
            (6, Block, 0x20169c),
            (6, Block, 0x2016a7)
        ]
    );
    assert_eq!(listed(&probes, 1), [(1, Block, 0x201686)]);
    assert_eq!(
        listed(&probes, 2),
        [
            (1, Block, 0x201686),
            (2, Block, 0x20168f),
            (3, DirectCall, 0x201691),
            (4, Block, 0x20169e),
            (5, Block, 0x2016a1)
        ]
    );
    assert_eq!(listed(&probes, 3), [(1, Block, 0x201662)]);
    assert_eq!(
        probes.context(NodeId(2)),
        [(Guid::of(b"top"), 3), (Guid::of(b"mid"), 2)]
    );
    assert_eq!(probes.context(NodeId(4)), [(Guid::of(b"mid"), 2)]);
    assert_eq!(probes.roots().collect::<Vec<_>>(), [NodeId(0), NodeId(3)]);
    assert_eq!(probes.inlinees(NodeId(0)).collect::<Vec<_>>(), [NodeId(1)]);
    // Stream order at one address, and the call probe among them.
    let at: Vec<u32> = probes.at(0x201698).map(|probe| probe.index).collect();
    assert_eq!(at, [4, 5]);
    assert_eq!(probes.call_at(0x201698).unwrap().index, 5);
    assert_eq!(probes.call_at(0x201686), None);
    assert_eq!(
        probes.statistics,
        Statistics {
            records: 2,
            ..Statistics::default()
        }
    );
}

#[test]
fn a_sentinel_sets_the_address_and_is_no_probe() {
    let section = bytes(
        "2576fb78166beb82 05 00  00 20 ae8e9619e6e16900  29 80 00  2a 80 00  2e 80 00  2b 82 05",
    );
    let anchors = anchors(&[("_Z3geni", 0x1800), ("_Z3geni.destroy", 0x1970)]);
    let probes = decode(&section, &anchors).unwrap();
    assert_eq!(
        listed(&probes, 0),
        [
            (41, Kind::Block, 0x1970),
            (42, Kind::Block, 0x1970),
            (46, Kind::Block, 0x1970),
            (43, Kind::DirectCall, 0x1975)
        ]
    );
    assert_eq!(probes.statistics.sentinels, 1);
}

#[test]
fn in_old_files_addresses_run_on_across_records() {
    let section = bytes(
        "acbd18db4cc2f85c 02 00  01 00 8617200000000000  02 80 64
         fad58de7366495db 02 00  01 80 1c  02 a0 01
         37b51d194a7513e4 01 00  01 80 f07e",
    );
    // Symbols are of no account any more after the first full address.
    let anchors = anchors(&[("foo", 0x201780), ("main", 1), ("bar", 2)]);
    let probes = decode(&section, &anchors).unwrap();
    assert_eq!(listed(&probes, 0)[0].2, 0x201786);
    let foo_end = 0x201786 - 28;
    assert_eq!(listed(&probes, 0)[1].2, foo_end);
    assert_eq!(listed(&probes, 1), [(1, Kind::Block, foo_end + 28)]);
    assert_eq!(
        listed(&probes, 2),
        [(1, Kind::Block, foo_end + 28 + 1 - 144)]
    );
    assert_eq!(
        (probes.statistics.dangling, probes.statistics.absolute),
        (1, 1)
    );
}

#[test]
fn discriminators_and_unknown_kinds_are_kept() {
    let section = bytes("acbd18db4cc2f85c 03 00  01 c0 01 8101  02 8f 01  03 c2 00 07");
    let probes = decode(&section, &anchors(&[("foo", 0x100)])).unwrap();
    let of: Vec<_> = probes
        .of_node(NodeId(0))
        .map(|p| (p.discriminator, p.kind))
        .collect();
    assert_eq!(
        of,
        [
            (129, Kind::Block),
            (0, Kind::Unknown(15)),
            (7, Kind::DirectCall)
        ]
    );
}

#[test]
fn same_named_functions_keep_their_own_probes() {
    let record = |name: &[u8], end: u8| {
        let mut bytes = Guid::of(name).0.to_le_bytes().to_vec();
        bytes.extend([2, 0, 1, 0x80, 0, 2, 0x80, end]);
        bytes
    };
    let section = [
        record(b"a", 4),
        record(b"loc", 8),
        record(b"b", 4),
        record(b"loc", 8),
    ]
    .concat();
    let anchors = anchors(&[("loc", 0x180), ("loc", 0x280), ("a", 0x100), ("b", 0x200)]);
    let probes = decode(&section, &anchors).unwrap();
    assert_eq!(listed(&probes, 1)[0].2, 0x180);
    assert_eq!(listed(&probes, 3)[0].2, 0x280);
    assert_eq!(probes.statistics.chosen, 2);
}

#[test]
fn every_truncation_is_an_error_with_its_place() {
    let section = bytes(
        "b28354b543375bfa 02 01  01 80 01  00 20 b28354b543375bfa
         03 22384709d743fe3c 01 00  01 c0 5f 8001",
    );
    let anchors = anchors(&[("top", 0x1000)]);
    assert!(decode(&section, &anchors).is_ok());
    for len in 1..section.len() {
        let error = decode(&section[..len], &anchors).unwrap_err();
        assert!(
            error.what.starts_with("section .pseudo_probe, offset 0x"),
            "{error}"
        );
    }
}

#[test]
fn numbers_larger_than_the_section_reserve_nothing() {
    let section = bytes("acbd18db4cc2f85c ffffffffffffffff7f 00");
    let error = decode(&section, &Anchors::default()).unwrap_err();
    assert!(error.what.contains("number of probes is"), "{error}");
}

#[test]
fn bodies_lie_in_each_other_up_to_a_limit() {
    let nested = |inlined: usize| {
        let mut section = bytes("acbd18db4cc2f85c 00 01");
        for _ in 1..inlined {
            section.extend(bytes("01 acbd18db4cc2f85c 00 01"));
        }
        section.extend(bytes("01 acbd18db4cc2f85c 01 00 01 80 05"));
        decode(&section, &anchors(&[("foo", 0x10)]))
    };
    let probes = nested(4095).unwrap();
    assert_eq!(probes.node_count(), 4096);
    let probe = probes.by_address().next().unwrap();
    assert_eq!(
        (probe.address, probes.context(probe.node).len()),
        (0x15, 4095)
    );
    for more in [4096, 200_000] {
        let error = nested(more).unwrap_err();
        let expected = "an inlined body is nested in 4096 others; at most 4095 are read";
        assert!(error.what.contains(expected), "{error}");
        assert!(
            error.what.contains("section .pseudo_probe, offset 0x"),
            "{error}"
        );
    }
}

/// A body to be written and found again.
struct Body {
    guid: u64,
    probes: Vec<(u32, u8, u64, u32)>,
    inlinees: Vec<(u32, Body)>,
}

impl Body {
    fn new(u: &mut Unstructured<'_>, depth: u32) -> arbitrary::Result<Body> {
        let mut probes = Vec::new();
        for _ in 0..u.int_in_range(0..=4)? {
            let tag = DIFFERENCE
                | u.int_in_range(0..=4)?
                | if u.arbitrary()? { HAS_DISCRIMINATOR } else { 0 };
            let discriminator = if tag & HAS_DISCRIMINATOR != 0 {
                u.arbitrary()?
            } else {
                0
            };
            probes.push((
                u.int_in_range(0..=0xff_ffff)?,
                tag,
                u.arbitrary()?,
                discriminator,
            ));
        }
        let mut inlinees = Vec::new();
        if depth < 4 {
            for _ in 0..u.int_in_range(0..=2)? {
                inlinees.push((u.arbitrary()?, Body::new(u, depth + 1)?));
            }
        }
        Ok(Body {
            guid: u.arbitrary()?,
            probes,
            inlinees,
        })
    }

    fn write(&self, last: &mut u64, out: &mut Vec<u8>) {
        out.extend(self.guid.to_le_bytes());
        uleb(self.probes.len() as u64, out);
        uleb(self.inlinees.len() as u64, out);
        for &(index, tag, address, discriminator) in &self.probes {
            uleb(u64::from(index), out);
            out.push(tag);
            let mut difference = address.wrapping_sub(*last) as i64;
            *last = address;
            loop {
                let byte = difference as u8 & 0x7f;
                difference >>= 7;
                let done = difference == if byte & 0x40 != 0 { -1 } else { 0 };
                out.push(if done { byte } else { byte | 0x80 });
                if done {
                    break;
                }
            }
            if tag & HAS_DISCRIMINATOR != 0 {
                uleb(u64::from(discriminator), out);
            }
        }
        for (site, body) in &self.inlinees {
            uleb(u64::from(*site), out);
            body.write(last, out);
        }
    }

    fn compare(&self, probes: &Probes, id: NodeId) {
        assert_eq!(probes.node(id).guid.0, self.guid);
        let of = probes
            .of_node(id)
            .map(|p| (p.index, p.kind, p.address, p.discriminator));
        let wanted = self.probes.iter().map(|p| (p.0, Kind::new(p.1), p.2, p.3));
        assert!(of.eq(wanted));
        let inlinees: Vec<NodeId> = probes.inlinees(id).collect();
        assert_eq!(inlinees.len(), self.inlinees.len());
        for ((site, body), id) in self.inlinees.iter().zip(inlinees) {
            assert_eq!(probes.node(id).site, *site);
            body.compare(probes, id);
        }
    }
}

fn uleb(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[test]
fn what_a_model_writes_is_read_back() {
    arbtest::arbtest(|u| {
        let bodies: Vec<Body> = (0..u.int_in_range(1..=6)?)
            .map(|_| Body::new(u, 0))
            .collect::<Result<_, _>>()?;
        let (mut section, mut last) = (Vec::new(), 0);
        bodies
            .iter()
            .for_each(|body| body.write(&mut last, &mut section));
        let probes = decode(&section, &Anchors::default()).unwrap();
        let roots: Vec<NodeId> = probes.roots().collect();
        assert_eq!(roots.len(), bodies.len());
        for (body, id) in bodies.iter().zip(roots) {
            body.compare(&probes, id);
        }
        let addresses: Vec<u64> = probes.by_address().map(|probe| probe.address).collect();
        assert!(addresses.is_sorted() && addresses.len() == probes.len());
        Ok(())
    });
}

#[test]
fn tasks_join_to_what_one_task_gives() {
    // Far more probes than one task holds; addresses run on across records.
    let mut section = bytes("acbd18db4cc2f85c 01 00  01 00 0010000000000000");
    for record in 0..60_000u32 {
        section.extend(bytes("fad58de7366495db 02 01  01 80 01  02 c0 02"));
        section.push((record % 100) as u8);
        section.extend(bytes("03 37b51d194a7513e4 01 00  01 80 01"));
    }
    let probes = decode(&section, &Anchors::default()).unwrap();
    assert_eq!(probes.len(), 180_001);
    let mut address = 0x1000;
    for (number, root) in probes.roots().skip(1).enumerate() {
        let own: Vec<_> = probes
            .of_node(root)
            .map(|p| (p.address, p.discriminator))
            .collect();
        assert_eq!(own, [(address + 1, 0), (address + 3, number as u32 % 100)]);
        let inlined = probes.inlinees(root).next().unwrap();
        assert_eq!(probes.parent(inlined), Some(root));
        assert_eq!(listed(&probes, inlined.0)[0].2, address + 4);
        address += 4;
    }
}

#[test]
fn arbitrary_bytes_are_read_or_refused() {
    arbtest::arbtest(|u| {
        let mut symbols = Vec::new();
        for _ in 0..3 {
            symbols.push((["foo", "foo", "bar"][u.choose_index(3)?], u.arbitrary()?));
        }
        let anchors = anchors(&symbols);
        // Mostly small numbers, so that counts are often plausible.
        let mut section = Vec::new();
        while !u.is_empty() && section.len() < 400 {
            match u.int_in_range(0..=3)? {
                0 => section.extend(Guid::of(b"foo").0.to_le_bytes()),
                1 => section.push(u.int_in_range(0..=3)?),
                2 => section.push([0x20, 0x80, 0xa0, 0xc0, 0][u.choose_index(5)?]),
                _ => section.push(u.arbitrary()?),
            }
        }
        if let Ok(probes) = decode(&section, &anchors) {
            assert!(probes.len() * PROBE_SIZE <= section.len());
            for probe in probes.by_address() {
                assert!(probes.context(probe.node).len() <= probes.node_count());
            }
        }
        Ok(())
    });
}
