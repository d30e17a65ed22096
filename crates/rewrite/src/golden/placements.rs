//! Where the counters of golden programs are, as one number for each program: a change of it must come with a new
//! [`counters::VERSION`], or profiles made before would be read as if their counters were in the new places.

use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_isa::Isa;
use xxhash_rust::xxh3::Xxh3;

use super::show::program_of;
use crate::analyse::{Scratch, counters, prepare};
use crate::discover::NonlocalExits;

/// A digest of what each counter counts.
pub(super) fn digest<I: Isa>(elf: &Elf<'_>) -> String {
    let program = match program_of::<I>(elf) {
        Ok(program) => program,
        Err(what) => return what,
    };
    let nonlocal_exits = NonlocalExits::new(&program);
    let mut scratch = Scratch::default();
    let mut hash = Xxh3::new();
    for f in 0..program.functions.len() {
        let analysed = prepare::analyse_for_now::<I>(&program, &nonlocal_exits, f, &mut scratch);
        let places = analysed.iter().flat_map(|a| a.placement.places());
        for (block, way) in places {
            hash.update(&block.to_le_bytes());
            hash.update(&way.to_le_bytes());
        }
        hash.update(b"end");
    }
    format!("{:016x}", hash.digest())
}

/// Compares with the file, in which the version is beside the digests.
pub(super) fn check(shown: &[(String, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/placements.txt");
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let version = format!("version {}", counters::VERSION);
    let same_version = kept.lines().next() == Some(version.as_str());
    let line = |(name, digest): &(String, String)| format!("{name} {digest}");
    let changed: Vec<String> = shown
        .iter()
        .map(line)
        .filter(|line| !kept.lines().any(|known| known == line))
        .collect();
    let is_known = |line: &&String| {
        let name = line.split(' ').next();
        kept.lines().any(|known| known.split(' ').next() == name)
    };
    assert!(
        !same_version || !changed.iter().any(|line| is_known(&line)),
        "counters are in other places than {version} of them: counters::VERSION must rise, so that profiles made \
         before are refused\n{}",
        changed.join("\n")
    );
    if std::env::var_os("BLESS").is_some() {
        let lines: Vec<String> = shown.iter().map(line).collect();
        std::fs::write(&path, format!("{version}\n{}\n", lines.join("\n")))
            .expect("the expected text can be written");
    } else {
        assert!(
            same_version && changed.is_empty(),
            "{} is not of {version} (BLESS=1 writes it):\n{}",
            path.display(),
            changed.join("\n")
        );
    }
}
