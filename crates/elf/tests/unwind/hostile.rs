//! Arbitrary bytes, damaged real tables, and arbitrary rows. These are the entry points for a fuzzer too: a section's
//! bytes, an address, and the bases are all that the parsers need.

use arbitrary::{Arbitrary, Result, Unstructured};
use postlink_elf::elf::Elf;
use postlink_elf::unwind::eh_frame::{Cie, EhFrame, Fde, merged_sizes, write_merged};
use postlink_elf::unwind::lsda::Lsda;
use postlink_elf::unwind::pointer::Bases;
use postlink_elf::unwind::rows::{self, CfaRule, RegRule, Row};

use crate::common::{Gimli, encoded_again, read_elf};

/// Whatever they borrow from.
fn same(a: &[(u64, Row<'_>)], b: &[(u64, Row<'_>)]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && a.1 == b.1)
}

/// Everything that can be done with a section, whatever is in it.
fn exercise_eh_frame(data: &[u8], addr: u64, bases: Bases) -> usize {
    let Ok(table) = EhFrame::parse_section(data, addr, bases) else {
        return 0;
    };
    let mut good = 0;
    for fde in &table.fdes {
        let found = table.fde_at(fde.start);
        assert!(found.is_none_or(|f| f.start <= fde.start && fde.start < f.end()));
        let cie = &table.cies[fde.cie];
        let (Ok(initial), Ok(all)) = (rows::initial_row(cie), rows::rows(cie, fde)) else {
            continue;
        };
        assert!(all.first().is_some_and(|r| r.0 == 0));
        assert!(all.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 != w[1].1));
        let refs: Vec<_> = all.iter().map(|(o, r)| (*o, r)).collect();
        if let Ok(instructions) = rows::encode(cie, &initial, &refs) {
            let again = Fde {
                instructions: &instructions,
                bytes: &instructions,
                ..fde.clone()
            };
            assert!(
                same(&rows::rows(cie, &again).expect("our own encoding"), &all),
                "{instructions:02x?}"
            );
            good += 1;
        }
    }
    let (frame, header) = merged_sizes(&table, &[]);
    let (mut frame, mut header) = (vec![0; frame as usize], vec![0; header as usize]);
    for shift in [0x1000, 0x1_0000_0000] {
        let _ = write_merged(
            &table,
            &[],
            addr.wrapping_add(shift),
            &mut frame,
            addr.wrapping_add(2 * shift),
            &mut header,
        );
    }
    good
}

fn exercise_lsda(data: &[u8], addr: u64, function: u64, bases: Bases) -> bool {
    let Ok(lsda) = Lsda::parse_bytes(data, addr, function, &bases) else {
        return false;
    };
    assert!(lsda.call_sites.windows(2).all(|w| w[0].end() <= w[1].start));
    assert!(lsda.union(&lsda).is_none() || lsda.call_sites.is_empty());
    if let Ok(out) = lsda.encode(&lsda.call_sites, function, addr) {
        // A type that is relative to its field can be out of reach or null at the old place; then encoding says so.
        let again = Lsda::parse_bytes(&out, addr, function, &bases)
            .unwrap_or_else(|e| panic!("{}", e.what));
        assert_eq!(again.call_sites, lsda.call_sites);
        assert!(again.same_tables(&lsda));
    }
    true
}

#[test]
fn arbitrary_bytes_never_panic() {
    arbtest::arbtest(|u| {
        let addr = u.arbitrary()?;
        let bases = Bases {
            data: u.arbitrary()?,
            position_independent: u.arbitrary()?,
        };
        let function = u.arbitrary()?;
        let data = u.bytes(u.len())?;
        exercise_eh_frame(data, addr, bases);
        exercise_lsda(data, addr, function, bases);
        Ok(())
    })
    .budget_ms(1_000);
}

#[test]
fn entries_with_arbitrary_contents_never_panic() {
    // Whole entries around arbitrary bytes get further than arbitrary bytes.
    let mut good = 0;
    arbtest::arbtest(|u| {
        let mut data = Vec::new();
        let encoding = *u.choose(&[0x1b, 0x1b, 0x1b, 0x00, 0x03, 0x01, 0x09, 0x3b])?;
        let mut cie = vec![0, 0, 0, 0, 1, b'z', b'R', 0];
        cie.extend([
            *u.choose(&[1, 4, 0])?,
            *u.choose(&[0x78, 0x7c, 0, 8])?,
            16,
            1,
            encoding,
        ]);
        cie.extend([0x0c, 7, 8, 0x90, 1]);
        data.extend((cie.len() as u32).to_le_bytes());
        data.extend(cie);
        while !u.is_empty() {
            let len = u.int_in_range(1..=60)?;
            let body = u.bytes(len.min(u.len()))?;
            data.extend((body.len() as u32 + 12 + 1).to_le_bytes());
            data.extend((data.len() as u32).to_le_bytes());
            data.extend(0x1000u32.to_le_bytes());
            data.extend(0x10_0000u32.to_le_bytes());
            data.push(0);
            data.extend(body);
        }
        good += exercise_eh_frame(
            &data,
            0x10_0000,
            Bases {
                data: Some(0x100),
                position_independent: false,
            },
        );
        Ok(())
    })
    .budget_ms(1_000);
    eprintln!("{good} programs understood");
    assert!(good > 100);
}

#[test]
fn damaged_real_tables_never_panic() {
    let path = [
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
    ];
    let Some(file) = path.iter().find_map(|p| read_elf(p.as_ref())) else {
        eprintln!("no library to damage");
        return;
    };
    let elf = Elf::parse(&file).expect("a system library");
    let (_, section) = elf.section(".eh_frame").expect("a system library has one");
    let data = elf.section_data(section);
    let areas = elf
        .section(".gcc_except_table")
        .map(|(_, s)| (s.addr, elf.section_data(s)));
    let bases = Bases {
        data: Some(0x1000),
        position_independent: true,
    };
    let mut good = 0;
    arbtest::arbtest(|u| {
        // The entries at the start are enough, and quick.
        let mut bytes = data[..data.len().min(4 << 10)].to_vec();
        let last = EhFrame::parse_section(data, section.addr, bases)
            .ok()
            .map(|t| {
                let ends = t.fdes.iter().map(|f| f.offset + f.bytes.len() as u64);
                ends.filter(|&e| e <= bytes.len() as u64).max().unwrap_or(0)
            });
        bytes.truncate(last.unwrap_or(0) as usize);
        for _ in 0..u.int_in_range(1..=4)? {
            let at = u.choose_index(bytes.len())?;
            bytes[at] = u.arbitrary()?;
        }
        good += exercise_eh_frame(&bytes, section.addr, bases);
        if let Some((addr, table)) = areas {
            let at = u.choose_index(table.len())?;
            let mut area = table[at..(at + 300).min(table.len())].to_vec();
            let damage = u.choose_index(area.len().min(40))?;
            area[damage] = u.arbitrary()?;
            exercise_lsda(&area, addr + at as u64, 0x1000, bases);
        }
        Ok(())
    })
    .budget_ms(1_000);
    eprintln!("{good} programs understood");
    assert!(good > 100);
}

/// Rows as a rewriter could put them together: changes of a few registers, and returns to earlier rows.
fn arbitrary_rows<'d>(
    u: &mut Unstructured<'_>,
    initial: &Row<'d>,
    expressions: [&'d [u8]; 3],
) -> Result<Vec<(u64, Row<'d>)>> {
    let mut rows: Vec<(u64, Row<'d>)> = vec![(0, initial.clone())];
    let mut row = initial.clone();
    for _ in 0..u.int_in_range(0..=40)? {
        let (offset, _) = rows[rows.len() - 1];
        for _ in 0..u.int_in_range(0..=5)? {
            match u.int_in_range(0..=11)? {
                0 | 1 => {
                    row.cfa = CfaRule::Offset {
                        register: *u.choose(&[6, 7, 300])?,
                        offset: i64::from(u16::arbitrary(u)?),
                    }
                }
                2 => {
                    row.cfa = CfaRule::Offset {
                        register: 7,
                        offset: 8 * i64::from(i16::arbitrary(u)?),
                    }
                }
                3 => row.cfa = CfaRule::Expression(u.choose(&expressions)?),
                4 => row.args_size = u.int_in_range(0..=3)? * 8,
                5 => row.ra_signed ^= true,
                6..=8 => row = rows[u.choose_index(rows.len())?].1.clone(),
                _ => {
                    let register = *u.choose(&[0, 3, 6, 12, 16, 63, 64, 200])?;
                    let offset = 8 * i64::from(i8::arbitrary(u)?);
                    let rule = match u.int_in_range(0..=7)? {
                        0 => RegRule::Undefined,
                        1 => RegRule::SameValue,
                        2 => RegRule::ValOffset(offset),
                        3 => RegRule::Register(u.arbitrary()?),
                        4 => RegRule::Expression(u.choose(&expressions)?),
                        5 => RegRule::ValExpression(u.choose(&expressions)?),
                        _ => RegRule::Offset(offset),
                    };
                    row.registers.retain(|r| r.0 != register);
                    // A register that the CIE has a rule for always has one.
                    if u.arbitrary()? || initial.rule(register).is_some() {
                        row.registers.push((register, rule));
                        row.registers.sort_by_key(|r| r.0);
                    }
                }
            }
        }
        let last = rows.len() - 1;
        if rows[last].1 != row {
            rows.push((
                offset + u.int_in_range(1..=0x100)? * *u.choose(&[1, 1, 1, 300])?,
                row.clone(),
            ));
        }
    }
    Ok(rows)
}

#[test]
fn arbitrary_rows_come_back_from_their_encoding_for_us_and_for_gimli() {
    let expressions: [&[u8]; 3] = [&[0x77, 8], &[0x9c, 0x23, 16], &[]];
    let mut section = vec![
        0x18, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x0c, 0x0c, 7, 8, 0x90, 1,
    ];
    section.resize(0x1c, 0);
    let (mut nested, mut shorter) = (0, 0);
    arbtest::arbtest(|u| {
        let table = EhFrame::parse_section(&section, 0, Bases::default()).expect("a good CIE");
        let cie: &Cie<'_> = &table.cies[0];
        let initial = rows::initial_row(cie).expect("a good CIE");
        let wanted = arbitrary_rows(u, &initial, expressions)?;
        let refs: Vec<_> = wanted.iter().map(|(o, r)| (*o, r)).collect();
        let instructions = rows::encode(cie, &initial, &refs).expect("rows of this CIE");
        let len = wanted[wanted.len() - 1].0 + 1;
        let plain = Fde {
            offset: 0,
            addr: 0,
            bytes: &instructions,
            cie: 0,
            start: 0x1000,
            len,
            lsda: None,
            instructions: &instructions,
        };
        let ours = rows::rows(cie, &plain).expect("our own encoding");
        assert!(
            same(&ours, &wanted),
            "{instructions:02x?}\n{ours:#?}\n{wanted:#?}"
        );

        // gimli has another idea of the argument size after a restore, and space for a few states only.
        let mut whole = section.clone();
        let body = [
            &0x1cu32.wrapping_add(4).to_le_bytes()[..],
            &0x1000u64.to_le_bytes(),
            &len.to_le_bytes(),
            &[0],
            &instructions,
        ]
        .concat();
        whole.extend((body.len() as u32).to_le_bytes());
        whole.extend(body);
        let mut gimli = Gimli::new(&whole, 0, &Bases::default(), 183);
        let fde = gimli.fde(0x1c);
        let theirs = gimli.rows(&fde).expect("gimli reads the rows");
        assert!(
            same(&theirs, &wanted),
            "{instructions:02x?}\n{theirs:#?}\n{wanted:#?}"
        );
        nested += usize::from(instructions.contains(&0x0b));
        shorter += 1;
        Ok(())
    })
    .budget_ms(1_000);
    eprintln!("{nested} of {shorter} remember a state");
    assert!(nested > 10);
}

#[test]
fn hostile_sizes_take_no_time_or_memory() {
    // A million end markers; one entry that claims everything; a table of a million empty programs.
    assert_eq!(
        EhFrame::parse_section(&vec![0; 4 << 20], 0, Bases::default())
            .expect("only markers")
            .fdes
            .len(),
        0
    );
    assert!(EhFrame::parse_section(&[0xff; 64], 0, Bases::default()).is_err());
    // Action records that chain through the whole table, from every call site.
    let mut data = vec![0xff, 0xff, 1];
    let sites = 20_000u32;
    let mut table = Vec::new();
    for i in 0..sites {
        table.extend([
            (i & 0x7f) as u8 | 0x80,
            (i >> 7 & 0x7f) as u8 | 0x80,
            (i >> 14) as u8,
            1,
            0,
        ]);
        let action = 1 + 2 * i;
        table.extend([
            (action & 0x7f) as u8 | 0x80,
            (action >> 7 & 0x7f) as u8 | 0x80,
            (action >> 14) as u8,
        ]);
    }
    let len = table.len() as u32;
    data.extend([
        (len & 0x7f) as u8 | 0x80,
        (len >> 7 & 0x7f) as u8 | 0x80,
        (len >> 14) as u8,
    ]);
    data.extend(table);
    for _ in 1..sites {
        data.extend([0, 1]);
    }
    data.extend([0, 0]);
    let lsda = Lsda::parse_bytes(&data, 0, 0, &Bases::default()).expect("long, but in order");
    assert_eq!(lsda.actions.len(), 2 * sites as usize);
}

#[test]
fn encoding_twice_changes_nothing() {
    let Some(file) = read_elf("/usr/lib/x86_64-linux-gnu/libstdc++.so.6".as_ref()) else {
        return;
    };
    let elf = Elf::parse(&file).expect("a system library");
    let table = EhFrame::parse(&elf).expect("a system library");
    let once = encoded_again(&table, 0);
    for (new, fde) in once
        .iter()
        .zip(table.fdes.iter().filter(|f| !f.is_discarded()))
    {
        let cie = &table.cies[fde.cie];
        let again = Fde {
            instructions: &new.instructions,
            bytes: &new.instructions,
            ..fde.clone()
        };
        let all = rows::rows(cie, &again).expect("our own encoding");
        let refs: Vec<_> = all.iter().map(|(o, r)| (*o, r)).collect();
        assert_eq!(
            rows::encode(cie, &rows::initial_row(cie).expect("read before"), &refs).as_ref(),
            Ok(&new.instructions)
        );
    }
}
