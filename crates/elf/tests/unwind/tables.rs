//! Small tables made by hand: the forms that compilers of today do not write, and what must be refused.

use postlink_elf::unwind::eh_frame::{EhFrame, NewFde, merged_sizes, write_merged};
use postlink_elf::unwind::pointer::Bases;
use postlink_elf::unwind::rows;

const ADDR: u64 = 0x40_2000;
const FIXED: Bases = Bases {
    data: Some(0x40_8000),
    position_independent: false,
};

/// Builds a section.
#[derive(Default)]
struct Section(Vec<u8>);

impl Section {
    fn here(&self) -> u64 {
        ADDR + self.0.len() as u64
    }
    /// Adds an entry with its 32-bit length; gives its offset.
    fn entry(&mut self, body: &[u8]) -> u64 {
        let at = self.0.len();
        let len = body.len().next_multiple_of(4);
        self.0.extend((len as u32).to_le_bytes());
        self.0.extend(body);
        self.0.resize(at + 4 + len, 0);
        at as u64
    }
    /// A CIE: version, augmentation string and data.
    fn cie(&mut self, version: u8, augmentation: &str, data: &[u8]) -> u64 {
        let mut body = vec![0, 0, 0, 0, version];
        body.extend(augmentation.bytes());
        body.push(0);
        if version == 4 {
            body.extend([8, 0]);
        }
        body.extend([1, 0x78, 16]);
        if augmentation.starts_with('z') {
            body.push(data.len() as u8);
        }
        body.extend(data);
        body.extend([0x0c, 7, 8, 0x90, 1]);
        self.entry(&body)
    }
    /// An FDE, everything after the CIE distance given.
    fn fde(&mut self, cie: u64, body: &[u8]) -> u64 {
        let mut bytes = (self.0.len() as u32 + 4 - cie as u32)
            .to_le_bytes()
            .to_vec();
        bytes.extend(body);
        self.entry(&bytes)
    }
    /// pcrel sdata4 code of length `len`, and more bytes.
    fn pcrel_fde(&mut self, cie: u64, start: u64, len: u32, rest: &[u8]) -> u64 {
        let mut body = if start == 0 {
            0u32
        } else {
            start.wrapping_sub(self.here() + 8) as u32
        }
        .to_le_bytes()
        .to_vec();
        body.extend(len.to_le_bytes());
        body.extend(rest);
        self.fde(cie, &body)
    }
    fn parse(&self, bases: Bases) -> Result<EhFrame<'_>, String> {
        EhFrame::parse_section(&self.0, ADDR, bases).map_err(|e| e.what)
    }
}

/// Writes a merged table at an address 1 MiB further on, with its header before it.
fn merge(old: &EhFrame<'_>, new: &[NewFde]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (frame, header) = merged_sizes(old, new);
    let (mut frame, mut header) = (vec![0x55; frame as usize], vec![0x55; header as usize]);
    write_merged(
        old,
        new,
        ADDR + 0x10_0000,
        &mut frame,
        ADDR + 0xf_0000,
        &mut header,
    )
    .map_err(|e| e.what)?;
    Ok((frame, header))
}

/// (code, FDE) of a header that is at `ADDR + 0xf_0000`.
fn search_table(header: &[u8]) -> Vec<(u64, u64)> {
    let word = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let base = ADDR + 0xf_0000;
    (0..word(8) as usize)
        .map(|i| {
            (
                base.wrapping_add_signed(word(12 + 8 * i).into()),
                base.wrapping_add_signed(word(16 + 8 * i).into()),
            )
        })
        .collect()
}

#[test]
fn all_versions_and_encodings_are_read_and_moved() {
    for version in [1, 3, 4] {
        for encoding in [0x00u8, 0x01, 0x03, 0x04, 0x0c, 0x1b, 0x1c, 0x33, 0x3b] {
            let mut s = Section::default();
            let cie = s.cie(version, "zR", &[encoding]);
            let start = 0x40_9000u64;
            let field = s.here() + 8;
            let value = match encoding & 0x70 {
                0x10 => start.wrapping_sub(field),
                0x30 => start - 0x40_8000,
                _ => start,
            };
            let put = |v: u64, out: &mut Vec<u8>| match encoding & 0xf {
                1 => out.extend([
                    v as u8 | 0x80,
                    (v >> 7) as u8 | 0x80,
                    (v >> 14) as u8 | 0x80,
                    (v >> 21) as u8,
                ]),
                3 | 0xb => out.extend((v as u32).to_le_bytes()),
                _ => out.extend(v.to_le_bytes()),
            };
            let mut body = Vec::new();
            put(value, &mut body);
            put(0x123, &mut body);
            body.push(0);
            body.extend([0x41, 0x0e, 16]);
            s.fde(cie, &body);
            let table = s.parse(FIXED).unwrap();
            assert_eq!(
                (table.fdes[0].start, table.fdes[0].len),
                (start, 0x123),
                "version {version} encoding {encoding:#x}"
            );

            let more = NewFde {
                cie: 0,
                start: start + 0x1000,
                len: 9,
                lsda: None,
                instructions: vec![0x41, 0x0e, 24],
            };
            let (frame, _) = merge(&table, &[more]).unwrap();
            let moved = EhFrame::parse_section(&frame, ADDR + 0x10_0000, FIXED).unwrap();
            assert_eq!(
                moved
                    .fdes
                    .iter()
                    .map(|f| (f.start, f.len))
                    .collect::<Vec<_>>(),
                [(start, 0x123), (start + 0x1000, 9)]
            );
            for (fde, offset) in moved.fdes.iter().zip([16, 24]) {
                let rows = rows::rows(&moved.cies[0], fde).unwrap();
                assert_eq!(
                    rows[1].1.cfa,
                    rows::CfaRule::Offset {
                        register: 7,
                        offset
                    }
                );
            }
        }
    }
}

#[test]
fn the_64_bit_form_is_read_and_copied() {
    let mut s = Section::default();
    let cie = s.cie(1, "zR", &[0x1b]);
    let at = s.0.len();
    s.0.extend([0xff; 4]);
    s.0.extend(20u64.to_le_bytes());
    s.0.extend((s.0.len() as u32 - cie as u32).to_le_bytes());
    s.0.extend((0x40_1000u32).wrapping_sub(s.here() as u32).to_le_bytes());
    s.0.extend([0x20, 0, 0, 0, 0, 0x41, 0x0e, 16, 0, 0, 0, 0]);
    let table = s.parse(FIXED).unwrap();
    assert_eq!(
        (table.fdes[0].offset, table.fdes[0].start),
        (at as u64, 0x40_1000)
    );
    let (frame, _) = merge(&table, &[]).unwrap();
    let moved = EhFrame::parse_section(&frame, ADDR + 0x10_0000, FIXED).unwrap();
    assert_eq!(
        (moved.fdes[0].start, moved.fdes[0].bytes.len()),
        (0x40_1000, 32)
    );
}

#[test]
fn pointers_that_depend_on_their_place_follow_to_the_new_place() {
    let mut s = Section::default();
    // Personality in a slot, LSDA, code: all relative to their fields.
    let mut data = vec![0x9b];
    let personality_field = s.here() + 8 + 1 + 5 + 3 + 1 + 1;
    data.extend(
        (0x40_7000u32)
            .wrapping_sub(personality_field as u32)
            .to_le_bytes(),
    );
    data.extend([0x1b, 0x1b]);
    let cie = s.cie(1, "zPLR", &data);
    let lsda_field = s.here() + 8 + 8 + 1;
    let set_loc_field = lsda_field + 4 + 1;
    let mut rest = vec![4];
    rest.extend((0x40_6000u32).wrapping_sub(lsda_field as u32).to_le_bytes());
    rest.push(1);
    rest.extend(
        (0x40_1010u32)
            .wrapping_sub(set_loc_field as u32)
            .to_le_bytes(),
    );
    rest.extend([0x0e, 32]);
    s.pcrel_fde(cie, 0x40_1000, 0x40, &rest);
    s.pcrel_fde(cie, 0x40_1040, 0x40, &[4, 0, 0, 0, 0]);
    let table = s.parse(FIXED).unwrap();
    assert_eq!(table.cies[0].personality, Some((0x9b, 0x40_7000)));

    let new = |start, lsda| NewFde {
        cie: 0,
        start,
        len: 8,
        lsda,
        instructions: vec![],
    };
    let (frame, _) = merge(
        &table,
        &[new(0x41_0000, Some(0x41_6000)), new(0x41_0008, None)],
    )
    .unwrap();
    let moved = EhFrame::parse_section(&frame, ADDR + 0x10_0000, FIXED).unwrap();
    assert_eq!(moved.cies[0].personality, Some((0x9b, 0x40_7000)));
    let lsdas: Vec<_> = moved.fdes.iter().map(|f| (f.start, f.lsda)).collect();
    assert_eq!(
        lsdas,
        [
            (0x40_1000, Some(0x40_6000)),
            (0x40_1040, None),
            (0x41_0000, Some(0x41_6000)),
            (0x41_0008, None)
        ]
    );
    let rows = rows::rows(&moved.cies[0], &moved.fdes[0]).unwrap();
    assert_eq!(rows[1].0, 0x10);
}

#[test]
fn end_markers_in_the_middle_do_not_hide_what_is_behind_them() {
    let mut s = Section::default();
    let cie = s.cie(1, "zR", &[0x1b]);
    s.pcrel_fde(cie, 0x40_1000, 8, &[0]);
    s.0.extend([0; 4]);
    let second = s.cie(1, "zR", &[0x1b]);
    s.pcrel_fde(second, 0x40_1100, 8, &[0]);
    s.0.extend([0; 7]);
    let table = s.parse(FIXED).unwrap();
    assert_eq!((table.cies.len(), table.fdes.len()), (2, 2));
    let (frame, header) = merge(&table, &[]).unwrap();
    // One marker, at the end.
    let end = frame.len() - 4;
    let mut at = 0;
    while at < end {
        let len = u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        assert_ne!(len, 0);
        at += 4 + len as usize;
    }
    assert_eq!(at, end);
    assert_eq!(search_table(&header).len(), 2);
}

#[test]
fn discarded_entries_are_kept_but_not_searched() {
    let mut s = Section::default();
    let cie = s.cie(1, "zR", &[0x1b]);
    s.pcrel_fde(cie, 0x40_1000, 8, &[0]);
    s.pcrel_fde(cie, 0, 0x20, &[0]);
    s.pcrel_fde(cie, 0x40_1000, 0, &[0]);
    s.pcrel_fde(cie, 0x40_1004, 0, &[0]);
    let table = s.parse(FIXED).unwrap();
    assert_eq!(table.fdes.iter().filter(|f| f.is_discarded()).count(), 3);
    for (addr, found) in [
        (0x40_0fff, false),
        (0x40_1000, true),
        (0x40_1007, true),
        (0x40_1008, false),
        (4, false),
    ] {
        assert_eq!(table.fde_at(addr).is_some(), found, "{addr:#x}");
    }
    let (frame, header) = merge(&table, &[]).unwrap();
    let moved = EhFrame::parse_section(&frame, ADDR + 0x10_0000, FIXED).unwrap();
    assert_eq!(moved.fdes.len(), 4);
    assert_eq!(moved.fdes[0].start, 0, "a null address stays null");
    assert_eq!(
        search_table(&header)
            .iter()
            .map(|e| e.0)
            .collect::<Vec<_>>(),
        [0x40_1000]
    );
}

#[test]
fn a_new_entry_for_the_same_code_wins_in_list_and_search_table() {
    let mut s = Section::default();
    let cie = s.cie(1, "zR", &[0x1b]);
    s.pcrel_fde(cie, 0x40_1000, 8, &[0]);
    s.pcrel_fde(cie, 0x40_1008, 8, &[0]);
    let table = s.parse(FIXED).unwrap();
    let new = NewFde {
        cie: 0,
        start: 0x40_1000,
        len: 8,
        lsda: None,
        instructions: vec![0x2e, 8],
    };
    let (frame, header) = merge(&table, &[new]).unwrap();
    let moved = EhFrame::parse_section(&frame, ADDR + 0x10_0000, FIXED).unwrap();
    let chosen = moved
        .fdes
        .iter()
        .find(|f| f.instructions.starts_with(&[0x2e]))
        .unwrap();
    assert_eq!(
        search_table(&header),
        [(0x40_1000, chosen.addr), (0x40_1008, moved.fdes[2].addr)]
    );
    assert_eq!(moved.fde_at(0x40_1003), Some(chosen));
    // There was space for three.
    assert_eq!(header[header.len() - 8..], [0; 8]);
}

#[test]
fn what_does_not_fit_is_an_error_with_both_values() {
    let mut s = Section::default();
    let cie = s.cie(1, "zR", &[0x1b]);
    s.pcrel_fde(cie, 0x40_1000, 8, &[0]);
    let table = s.parse(FIXED).unwrap();
    let new = |start, len, lsda| NewFde {
        cie: 0,
        start,
        len,
        lsda,
        instructions: vec![],
    };
    for (fde, parts) in [
        (new(0x2_0000_0000, 8, None), ["0x200000000", "does not fit"]),
        (
            new(0x40_5000, 0x1_0000_0000, None),
            ["0x100000000", "does not fit"],
        ),
        (new(0x40_5000, 8, Some(0x40_6000)), ["0x406000", "no place"]),
        (new(0x40_5000, 0, None), ["0x405000", "cannot be described"]),
        (
            NewFde {
                cie: 7,
                ..new(0x40_5000, 8, None)
            },
            ["CIE 7", "only 1"],
        ),
    ] {
        let e = merge(&table, &[fde]).unwrap_err();
        assert!(parts.iter().all(|p| e.contains(p)), "{e}");
    }
    let mut wrong = vec![0; 3];
    let e = write_merged(&table, &[], ADDR, &mut wrong, ADDR, &mut [])
        .unwrap_err()
        .what;
    assert!(e.contains("0x3") && e.contains("0x14"), "{e}");
    let (frame, header) = merged_sizes(&table, &[]);
    let (mut frame, mut header) = (vec![0; frame as usize], vec![0; header as usize]);
    let e = write_merged(
        &table,
        &[],
        0x3_0000_0000,
        &mut frame,
        0x3_1000_0000,
        &mut header,
    )
    .unwrap_err()
    .what;
    assert!(e.contains("0x401000") && e.contains("offset 0x18"), "{e}");
}

#[test]
fn what_is_not_understood_is_refused_with_its_offset() {
    let refused = |s: &Section, bases, parts: &[&str]| {
        let e = s.parse(bases).unwrap_err();
        assert!(parts.iter().all(|p| e.contains(p)), "{e}");
    };
    let with = |version, augmentation: &str, data: &[u8]| {
        let mut s = Section::default();
        s.cie(version, augmentation, data);
        s
    };
    refused(&with(1, "eh", &[]), FIXED, &["GCC 2", "offset 0x0"]);
    refused(&with(2, "zR", &[0x1b]), FIXED, &["version 2"]);
    refused(&with(1, "zRX", &[0x1b]), FIXED, &["'X'", "zRX"]);
    refused(&with(1, "R", &[]), FIXED, &["'R'"]);
    refused(&with(1, "zR", &[]), FIXED, &["encoding"]);
    refused(&with(1, "zR", &[0x9b]), FIXED, &["0x9b"]);
    refused(&with(1, "zL", &[0x9b]), FIXED, &["indirect"]);
    refused(&with(1, "zP", &[0x50]), FIXED, &["aligned"]);
    for letters in ["zRS", "zRB", "zRG", "zRSB", "S", ""] {
        assert!(
            with(1, letters, &[0x1b]).parse(FIXED).is_ok() || !letters.starts_with('z'),
            "{letters}"
        );
    }
    for (encoding, why) in [
        (0x2b, "text"),
        (0x4b, "function"),
        (0x50, "aligned"),
        (0x0f, "unknown"),
        (0xff, "0xff"),
    ] {
        let mut s = Section::default();
        let cie = s.cie(1, "zR", &[encoding]);
        s.pcrel_fde(cie, 0x40_1000, 8, &[0]);
        refused(&s, FIXED, &[why]);
    }
    let pie = Bases {
        data: None,
        position_independent: true,
    };
    for encoding in [0x00, 0x3b] {
        let mut s = Section::default();
        let cie = s.cie(1, "zR", &[encoding]);
        s.fde(cie, &[1; 24]);
        refused(&s, pie, &["offset 0x18"]);
    }
    let mut s = Section::default();
    s.cie(1, "zR", &[0x1b]);
    s.entry(&[0x10, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    refused(
        &s,
        FIXED,
        &[
            "offset 0x18",
            "0x10 bytes before offset 0x1c",
            "there is none",
        ],
    );
    let mut s = Section::default();
    s.0.extend([0xf4, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    refused(&s, FIXED, &["reserved"]);
    s.0[0] = 100;
    s.0[1..4].fill(0);
    refused(&s, FIXED, &["100 bytes", "only 4"]);
    let mut s = Section::default();
    let cie = s.cie(1, "zR", &[0x0c]);
    s.fde(cie, &[[0xff; 16].as_slice(), &[0]].concat());
    refused(&s, FIXED, &["beyond the address space"]);
}
