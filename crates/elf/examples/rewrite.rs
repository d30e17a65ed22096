//! Writes a file anew with nothing but a section of zeroes more:
//! `cargo run --release --example rewrite -- INPUT OUTPUT [SIZE]`.
//!
//! Shows what the writer costs by itself, and gives other tools something to look at.

use std::fs::File;
use std::time::Instant;

use postlink_elf::elf::Elf;
use postlink_elf::write::{NewKind, NewSection, WriteOptions, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, rest @ ..] = &arguments[..] else {
        return Err("usage: rewrite INPUT OUTPUT [SIZE]".into());
    };
    let size = rest.first().map_or(Ok(4096), |size| size.parse())?;
    let file = File::open(input)?;
    // SAFETY: the file is only read, and whoever changes it while this runs gets what they ask for.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let start = Instant::now();
    let elf = Elf::parse(&map)?;
    let mut writer = Writer::new(
        &elf,
        WriteOptions {
            zero_fill: true,
            ..WriteOptions::default()
        },
    )?;
    writer.copy_from(&file);
    writer.append(NewSection {
        name: ".text.added".into(),
        kind: NewKind::Code,
        align: 64,
        size,
    });
    writer.append_zero_fill(".counters.added", size);
    let summary = writer.write(output.as_ref(), mode(&file)?)?;
    println!(
        "{} bytes became {} in {:.1?}: {:?}",
        map.len(),
        summary.size,
        start.elapsed(),
        summary.program_headers
    );
    Ok(())
}

#[cfg(unix)]
fn mode(file: &File) -> std::io::Result<u32> {
    Ok(std::os::unix::fs::PermissionsExt::mode(
        &file.metadata()?.permissions(),
    ))
}

#[cfg(not(unix))]
fn mode(_: &File) -> std::io::Result<u32> {
    Ok(0o755)
}
