//! Machine profiles: maps, raw counters, profiles.

use std::path::Path;

use arbitrary::{Result, Unstructured};
use postlink_mip::merge::{Options, merge};
use postlink_mip::{
    Block, Edge, Function, InferredBlock, MovedCaller, Profile, Trace, Types, Width, create, map,
    mip, order, outline, raw, report, yaml,
};
use postlink_profile::Weighted;

use super::{damaged, number};

/// A profile as they are, with odd numbers where any will do.
fn sound(u: &mut Unstructured<'_>) -> Result<Profile> {
    let mut types = if u.arbitrary()? {
        Types::CALL_GRAPH
    } else {
        Types::FUNCTION_COVERAGE
    };
    for more in [
        Types::BLOCK_COVERAGE,
        Types::ZERO_FILLED,
        Types::INFERRED_BLOCKS,
        Types::MOVED_CALLERS,
    ] {
        if u.arbitrary()? {
            types = types.with(more);
        }
    }
    let mut profile = Profile {
        types,
        module_hash: u.arbitrary()?,
        identity: u.int_in_range(0..=1)?,
        ..Profile::default()
    };
    if types.has(Types::MOVED_CALLERS) {
        let mut ran = 0;
        for _ in 0..u.int_in_range(0..=4)? {
            ran += u.int_in_range(1..=1 << 20)?;
            let source = number(u)? as i64;
            profile.callers.push(MovedCaller { ran, source });
        }
    }
    let mut offset = 32u64;
    for n in 0..u.int_in_range(0..=12u32)? {
        let name = format!("f{}", n / u.int_in_range(1..=2)?);
        let mut function = Function {
            signature: postlink_mip::hash::md5_64(name.as_bytes()),
            name: name.into_bytes(),
            raw_offset: offset,
            address: i64::from(u.arbitrary::<i32>()?),
            size: number(u)? as u32,
            cfg_signature: u.arbitrary()?,
            ..Function::default()
        };
        for _ in 0..u.int_in_range(0..=4)? {
            function.blocks.push(Block {
                offset: number(u)? as u32,
                covered: false,
            });
        }
        if types.has(Types::INFERRED_BLOCKS) {
            for _ in 0..u.int_in_range(0..=2)? {
                function.inferred.push(InferredBlock {
                    offset: number(u)? as u32,
                    from: vec![u.int_in_range(0..=function.blocks.len() as u32)?],
                });
            }
        }
        offset = (offset + function.counter_bytes(types)).next_multiple_of(4);
        profile.functions.push(function);
    }
    Ok(profile)
}

fn perhaps_damaged(u: &mut Unstructured<'_>, file: Vec<u8>) -> Result<Vec<u8>> {
    if u.ratio(3, 4)? {
        damaged(u, &file)
    } else {
        Ok(file)
    }
}

/// A map.
pub fn map(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let profile = sound(u)?;
    let width = *u.choose(&[Width::Wide, Width::Narrow])?;
    let file = map::write(&profile, width, u.arbitrary()?);
    perhaps_damaged(u, file)
}

/// Whatever a map holds, it is read or refused; what was read can be written and read again.
pub fn check_map(bytes: &[u8]) {
    let path = Path::new("map");
    let Ok(profile) = create::read(path, bytes) else {
        return;
    };
    let again = map::write(&profile, Width::Wide, 0x1000);
    let again = map::read(path, &again).expect("our own map");
    assert_eq!(again.profile.functions, profile.functions);
    assert_eq!(again.profile.callers, profile.callers);
}

/// A profile with counts.
pub fn profile(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut profile = sound(u)?;
    let count = profile.functions.len() as u32;
    for function in &mut profile.functions {
        function.raw_count = number(u)? as u32;
        function.call_count = number(u)?;
        function.order_sum = number(u)?;
        for block in &mut function.blocks {
            block.covered = u.arbitrary()?;
        }
        if u.ratio(1, 3)? {
            function.edges.push(Edge {
                source: number(u)? as i64,
                weight: number(u)?,
            });
        }
    }
    if count > 0 && u.arbitrary()? {
        profile.traces.push(Trace {
            key: u.arbitrary()?,
            functions: vec![u.int_in_range(0..=count - 1)?],
            weight: number(u)?,
        });
    }
    perhaps_damaged(u, mip::to_bytes(&profile))
}

/// Whatever a profile holds, it is read or refused; what was read can be printed, ordered, written and read again.
pub fn check_profile(bytes: &[u8]) {
    let path = Path::new("profile");
    let Ok(profile) = mip::read(path, bytes) else {
        return;
    };
    let again = mip::read(path, &mip::to_bytes(&profile)).expect("our own profile");
    assert_eq!(again, profile);
    let text = yaml::write(&profile, None);
    if profile
        .functions
        .iter()
        .all(|f| std::str::from_utf8(&f.name).is_ok())
    {
        let again = yaml::read(path, text.as_bytes()).expect("our own text");
        assert_eq!(again, profile);
    }
    let options = report::Options {
        filter: &|_| true,
        symbolizer: None,
        color: false,
    };
    let mut out = Vec::new();
    report::show(&mut out, &profile, options).expect("memory takes everything");
    let info = report::Info::of(&profile);
    assert!(info.covered_blocks <= info.blocks);
    for layout in [
        Some(order::by_first_call(&profile)),
        order::by_start_up(&profile),
        order::by_call_graph(&profile),
    ]
    .into_iter()
    .flatten()
    {
        let mut sorted = layout.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), layout.len(), "a function comes twice");
        let _ = order::file(&profile, &layout, order::Format::Ld);
        let _ = order::pages_touched(&profile, &layout, 4096);
    }
    for candidate in outline::candidates(&profile, 1, 1) {
        let size = u64::from(profile.functions[candidate.function as usize].size);
        assert!(
            candidate.bytes <= size,
            "more cold bytes than the function has"
        );
    }
}

/// A map, and a raw file that mostly belongs to it.
pub fn raw(u: &mut Unstructured<'_>) -> Result<(Vec<u8>, Vec<u8>)> {
    let profile = sound(u)?;
    let mut file = raw::empty(&profile, Width::Wide, u.int_in_range(0..=3)?);
    for at in 32..file.len() {
        if u.ratio(1, 4)? {
            file[at] = u.arbitrary()?;
        }
    }
    Ok((
        map::write(&profile, Width::Wide, 0),
        perhaps_damaged(u, file)?,
    ))
}

/// Whatever a raw file holds, it is added or refused; refused, it leaves no trace. `scratch` is a directory.
pub fn check_raw(map: &[u8], raw: &[u8], scratch: &Path) {
    let Ok(empty) = create::read(Path::new("map"), map) else {
        return;
    };
    let path = scratch.join("raw");
    std::fs::write(&path, raw).expect("the scratch directory is writable");
    let file = Weighted { path, weight: 3 };
    let mut profile = empty.clone();
    let mut options = Options {
        strict: true,
        traces: true,
    };
    match merge(&mut profile, std::slice::from_ref(&file), options) {
        Ok(merged) => {
            assert_eq!(merged.files, 1);
            options.strict = false;
            let mut twice = empty.clone();
            merge(&mut twice, &[file.clone(), file.clone()], options).expect("it was good once");
            merge(&mut profile, &[file], options).expect("it was good once");
            assert_eq!(twice, profile, "two at once are not one after the other");
        }
        Err(_) => assert_eq!(profile, empty),
    }
}
