//! Profiles of a program, and what becomes of them with the program at hand.
//!
//! Names are those of its functions, offsets are mostly inside: what is tested is how counts are made to suit
//! the code, not the readers. Profiles by blocks are what the rewriter itself writes of such a profile, so
//! hashes and numbers of blocks are right until some of them are changed.

use std::fmt::Write;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use postlink_aggregate::Binary;
use postlink_elf::elf::Elf;
use postlink_isa::x86_64::X86_64;
use postlink_profile::bolt_yaml::BoltYaml;
use postlink_profile::fdata;
use postlink_profile::symbolic::SymbolicProfile;
use postlink_rewrite::attach::{self, Source};
use postlink_rewrite::{NonlocalExits, Program, export};

use crate::number;

/// The functions of a program: names, and how many bytes each has. Empty if it is none that samples can be of.
pub fn functions(program: &[u8]) -> Vec<(String, u64)> {
    let Ok(elf) = Elf::parse(program) else {
        return Vec::new();
    };
    let Ok(binary) = Binary::new(Path::new("program"), &elf) else {
        return Vec::new();
    };
    let list = binary.functions.list().iter().enumerate();
    list.map(|(at, function)| {
        let name = binary.functions.name(at, false);
        (String::from_utf8_lossy(&name).into_owned(), function.reach)
    })
    .filter(|(name, _)| !name.contains([' ', '\\']))
    .collect()
}

/// Branches within and between functions, as fdata.
pub fn named(u: &mut Unstructured<'_>, functions: &[(String, u64)]) -> Result<Vec<u8>> {
    let mut out = String::new();
    let samples = u.ratio(1, 8)?;
    if samples {
        out += "no_lbr cycles\n";
    }
    for _ in 0..u.int_in_range(0..=40)? {
        let mut location = || -> Result<String> {
            let strange = ("nobody".to_owned(), 64);
            let (name, size) = match functions {
                [] => &strange,
                _ if u.ratio(1, 20)? => &strange,
                some => u.choose(some)?,
            };
            let offset = match u.int_in_range(0..=11)? {
                0 => number(u)?,
                1..4 => 0,
                _ => u.int_in_range(0..=*size)?,
            };
            Ok(format!("1 {name} {offset:x}"))
        };
        let from = location()?;
        let to = location()?;
        let count = match u.int_in_range(0..=5)? {
            0 => number(u)? >> 1,
            _ => u.int_in_range(0..=1000)?,
        };
        let _ = if samples {
            writeln!(out, "{from} {count}")
        } else {
            writeln!(out, "{from} {to} {} {count}", count / 3)
        };
    }
    Ok(out.into_bytes())
}

/// Changes what a profile by blocks says here and there.
fn disturb(u: &mut Unstructured<'_>, yaml: &mut BoltYaml) -> Result<()> {
    yaml.header.dfs_order = u.ratio(1, 4)?;
    for function in &mut yaml.functions {
        match u.int_in_range(0..=9)? {
            0 => function.hash = number(u)?,
            1 => function.nblocks = u.arbitrary()?,
            2 => function.exec = number(u)?,
            3 => function.name = b"nobody".to_vec(),
            4 => drop(function.blocks.pop()),
            _ => {}
        }
        for block in &mut function.blocks {
            match u.int_in_range(0..=15)? {
                0 => block.bid = u.arbitrary()?,
                1 => block.hash = number(u)?,
                2 => block.exec = number(u)?,
                3 => block.successors.clear(),
                4 => {
                    for edge in &mut block.successors {
                        (edge.bid, edge.count) = (u.int_in_range(0..=40)?, number(u)?);
                    }
                }
                5 => {
                    for call in &mut block.calls {
                        (call.offset, call.fid) = (u.arbitrary()?, u.int_in_range(0..=40)?);
                        call.count = number(u)?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Attaches a profile, twice: the same comes out, with a count for every block and every edge, and it can be written.
fn attach<'p>(elf: &Elf<'_>, source: Source<'p>) {
    let Ok(program) = Program::discover::<X86_64>(elf) else {
        return;
    };
    let nonlocal_exits = NonlocalExits::new(&program);
    let once = attach::attach_any::<X86_64>(&program, &nonlocal_exits, source);
    let twice = attach::attach_any::<X86_64>(&program, &nonlocal_exits, source);
    let (Ok((once, _)), Ok((twice, _))) = (once, twice) else {
        return;
    };
    assert_eq!(once.counted.len(), twice.counted.len());
    for (a, b) in once.counted.iter().zip(&twice.counted) {
        assert_eq!(a.function, b.function);
        assert_eq!(a.counts.blocks, b.counts.blocks);
        assert_eq!(a.counts.succs, b.counts.succs);
        assert_eq!(a.counts.blocks.len(), a.analysed.cfg.blocks.len());
        assert_eq!(a.counts.succs.len(), a.analysed.cfg.succs.len());
    }
    assert_eq!(once.calls, twice.calls);
    export::symbolic_of::<X86_64>(&program, &once.counted, &once.calls);
}

/// Whatever a profile by names says, and whatever is changed in the profile by blocks that is made of it, a
/// program can be told it.
pub fn check(u: &mut Unstructured<'_>, program: &[u8], text: &[u8]) -> Result<()> {
    let (Ok(elf), Ok(profile)) = (
        Elf::parse(program),
        fdata::read_bytes(Path::new("profile"), text),
    ) else {
        return Ok(());
    };
    let profile: SymbolicProfile = profile;
    attach(&elf, Source::Named(&profile));
    if let Ok(mut yaml) = export::yaml(&elf, &profile, b"program") {
        disturb(u, &mut yaml)?;
        attach(&elf, Source::Blocks(&yaml));
    }
    Ok(())
}
