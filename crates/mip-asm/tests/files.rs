//! Files of profiles where something is not as usual: devices, file systems that cannot share pages, maps
//! that were damaged.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Scratch, counts};

const BLOCKS: &str = "-fmachine-profile-block-coverage";

fn raws(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".mipraw"))
        .collect()
}

/// Reading from a pipe to know whose file it is would wait for ever.
#[test]
fn a_device_is_not_read_and_written_once_at_the_end() {
    let scratch = Scratch::new();
    scratch.build("gcc -O1 @uses-library.c @library.c -o %/app");
    for (device, also) in [("/dev/stdout", "370\n"), ("/dev/null", "370\n")] {
        let out = Command::new("timeout")
            .arg("20")
            .arg(scratch.path("app"))
            .current_dir(scratch.0.path())
            .env("LLVM_MIP_PROFILE_FILENAME", device)
            // A pipe that only the program itself writes to.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert!(out.status.success(), "{device}: {:?}", out.status);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains(also), "{device}");
        if device == "/dev/stdout" {
            let at = out.stdout.windows(4).position(|w| w == b"\xfbMIP").unwrap();
            let raw: Vec<u8> = out.stdout[at..]
                .iter()
                .copied()
                .take(out.stdout.len() - also.len())
                .collect();
            fs::write(scratch.path("x.mipraw"), raw).unwrap();
            let found = counts(&scratch.profile("app", "x.mipraw"));
            assert_eq!(found["from_library"], 10);
        }
    }
}

/// A file in /dev/shm that a process still counts in is left to it, as everywhere else.
#[test]
fn files_in_shared_memory_are_no_devices() {
    let scratch = Scratch::new();
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: no /dev/shm: profiles there are not tested");
        return;
    };
    scratch.build("gcc -O1 @uses-library.c @library.c -o %/app");
    let raw = folder.path().join("x.mipraw");
    fs::write(&raw, "of somebody else").unwrap();
    let kept = folder.path().join("kept");
    fs::hard_link(&raw, &kept).unwrap();
    scratch.run(&["app"], raw.to_str().unwrap());
    assert_eq!(fs::read(&kept).unwrap(), b"of somebody else");
    fs::copy(&raw, scratch.path("x.mipraw")).unwrap();
    let found = counts(&scratch.profile("app", "x.mipraw"));
    assert_eq!(found["from_library"], 10);
}

#[test]
fn where_pages_cannot_be_shared_the_profile_is_written_at_the_end_under_its_name() {
    let scratch = Scratch::new();
    scratch.build("gcc -fno-machine-profile-generate -w @no-shared-maps.c -o %/without");
    scratch.build("gcc -O1 @uses-library.c @library.c -o %/app");
    let out = scratch.run(&["without", "%/app"], "x.mipraw");
    assert_eq!(out.stdout, b"370\n", "{out:?}");
    assert_eq!(raws(scratch.0.path()), ["x.mipraw"]);
    let found = counts(&scratch.profile("app", "x.mipraw"));
    assert_eq!(found["from_library"], 10);
}

#[test]
fn a_map_that_was_cut_short_or_damaged_is_refused() {
    let scratch = Scratch::new();
    for compiler in ["gcc", "clang-19"] {
        if !common::have(compiler, "maps of this compiler") {
            continue;
        }
        scratch.build(&format!("{compiler} -O1 {BLOCKS} @control.c -o %/app"));
        let app = fs::read(scratch.path("app")).unwrap();
        let map = {
            use object::{Object, ObjectSection};
            let file = object::File::parse(&*app).unwrap();
            let section = file.section_by_name("__llvm_mipmap").unwrap();
            section.data().unwrap().to_vec()
        };
        let path = Path::new("app.mipmap");
        let read = |bytes: &[u8]| postlink_mip::create::read(path, bytes);
        assert!(read(&map).is_ok());
        // Also where a record ends, and where nothing but the header is left.
        for len in 0..map.len() {
            assert!(read(&map[..len]).is_err(), "{len} of {} bytes", map.len());
        }
        assert_eq!(
            read(&map[..32]).unwrap_err().to_string(),
            format!(
                "app.mipmap at offset 0x18: the map has {} bytes, the file has 32: cut short",
                map.len()
            )
        );
        let mut longer = map.clone();
        longer.extend([0; 8]);
        assert!(read(&longer).is_err());
        for at in 0..map.len() {
            // A length of zero is that of a map that was never sealed.
            let mut damaged = map.clone();
            damaged[at] ^= 0x10;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }
}
