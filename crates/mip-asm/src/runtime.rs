//! The run-time: three C files that we carry, compiled by the compiler in use for what is being linked, and
//! kept in a cache.
//!
//! | file | linked | |
//! |---|---|---|
//! | `core.c` | always, as the last file | maps the counters onto the profile's file |
//! | `calls.c` | if counts are taken | first calls |
//! | the same, for sampling | if callers are sampled | callers and callees |
//! | `api.c` | if the program calls it | dump, reset |
//!
//! The last three are in an archive, so that only what is called gets linked. It is written here
//! ([`archive`]): one tool less to depend on.
//!
//! The cache's key is a hash of the sources, the options and the compiler (path, size and time). Files are
//! renamed into place when complete, so any number of compilations may run at once.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::options::{Mode, Options};
use crate::target::{Arch, Format, Target};

const CORE: &str = include_str!("../runtime/core.c");
const CALLS: &str = include_str!("../runtime/calls.c");
const API: &str = include_str!("../runtime/api.c");

/// Global symbols of the archive's members.
const FIRST_SYMBOLS: &[&str] = &["__llvm_mip_first", "__llvm_mip_order"];
const SAMPLE_SYMBOLS: &[&str] = &[
    "__llvm_mip_sample",
    "__llvm_mip_countdown",
    "__llvm_mip_note",
];
const API_SYMBOLS: &[&str] = &[
    "__llvm_mip_profile_begin",
    "__llvm_mip_profile_end",
    "__llvm_dump_mip_profile_with_filename",
    "__llvm_dump_mip_profile",
    "__llvm_mip_profile_reset",
];

/// The files to link, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// `core.c`.
    pub core: PathBuf,
    /// The rest.
    pub archive: PathBuf,
}

/// Where files are kept: `$POSTLINK_CACHE`, else `postlink` in `$XDG_CACHE_HOME` or `~/.cache`, else in the
/// temporary directory.
pub fn cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = variable("POSTLINK_CACHE") {
        return folder.into();
    }
    let base = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("postlink")
}

/// Compiles the run-time, or finds it in the cache. `target_flags` are those of the command line that say
/// what code is for (`-m…`, `--target`, `--sysroot`).
pub fn build(
    compiler: &OsStr,
    target_flags: &[OsString],
    target: Target,
    options: &Options,
    manual: bool,
    is_clang: bool,
) -> io::Result<Runtime> {
    let mut flags = flags_for_c(target_flags);
    flags.extend(
        [
            "-fPIC",
            "-fvisibility=hidden",
            "-fno-stack-protector",
            "-fno-asynchronous-unwind-tables",
            "-fno-unwind-tables",
            "-fno-exceptions",
            "-fomit-frame-pointer",
            "-ffreestanding",
            "-fno-builtin",
            "-fno-lto",
            "-w",
        ]
        .map(OsString::from),
    );
    // The smallest code: gcc calls it -Os, clang has another step.
    flags.push(if is_clang { "-Oz" } else { "-Os" }.into());
    flags.push(format!("-DMIP_PAGE={}", target.page()).into());
    flags.push(format!("-DMIP_SLOTS={}", slots(options)).into());
    if manual {
        flags.push("-DMIP_MANUAL".into());
    }
    let mut key = format!(
        "{}\0{compiler:?}\0{flags:?}\0{CORE}\0{CALLS}\0{API}",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(found) = find_program(compiler)
        && let Ok(data) = fs::metadata(&found)
    {
        key.push_str(&format!(
            "{found:?} {} {:?}",
            data.len(),
            data.modified().ok()
        ));
    }
    let hash = postlink_mip::hash::md5_64(key.as_bytes());
    let folder = cache().join(format!("mip-{hash:016x}"));
    let runtime = Runtime {
        core: folder.join("core.o"),
        archive: folder.join("libmip.a"),
    };
    if runtime.core.is_file() && runtime.archive.is_file() {
        return Ok(runtime);
    }
    fs::create_dir_all(&folder)?;
    let scratch = tempfile::tempdir_in(&folder)?;
    let compile = |name: &str, source: &str, more: &[&str]| -> io::Result<PathBuf> {
        let from = scratch.path().join(format!("{name}.c"));
        let to = scratch.path().join(format!("{name}.o"));
        fs::write(&from, source)?;
        let out = Command::new(compiler)
            .args(&flags)
            .args(more)
            .args(["-x", "c", "-std=gnu99", "-c"])
            .arg(&from)
            .arg("-o")
            .arg(&to)
            .stdin(Stdio::null())
            .output()?;
        if !out.status.success() {
            return Err(io::Error::other(format!(
                "the run-time does not compile: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            )));
        }
        Ok(to)
    };
    let no_vectors: &[&str] = match target.arch {
        Arch::Arm => &[],
        _ => &["-mgeneral-regs-only"],
    };
    let core = compile("core", CORE, &[])?;
    let first = fs::read(compile("first", CALLS, no_vectors)?)?;
    let sampling: Vec<&str> = no_vectors.iter().copied().chain(["-DMIP_SAMPLE"]).collect();
    let sample = fs::read(compile("sample", CALLS, &sampling)?)?;
    let api = fs::read(compile("api", API, &[])?)?;
    let prefix = match target.format {
        Format::Elf => "",
        Format::MachO => "_",
    };
    let bytes = archive(
        &[
            ("first.o", &first, FIRST_SYMBOLS),
            ("sample.o", &sample, SAMPLE_SYMBOLS),
            ("api.o", &api, API_SYMBOLS),
        ],
        prefix,
    );
    let written = scratch.path().join("libmip.a");
    fs::write(&written, bytes)?;
    fs::rename(&written, &runtime.archive)?;
    fs::rename(&core, &runtime.core)?;
    Ok(runtime)
}

/// The target's flags without those that are for the user's own assembly: the run-time has some in AT&T
/// syntax, and wants no listing. Code that runs anywhere runs in the kernel's code model, too, which gcc does
/// not make it for.
fn flags_for_c(target_flags: &[OsString]) -> Vec<OsString> {
    let mut flags = vec![];
    let mut given = target_flags.iter();
    while let Some(flag) = given.next() {
        if flag == "-Xassembler" {
            given.next();
            continue;
        }
        let text = flag.to_string_lossy();
        let is_left_out =
            text.starts_with("-Wa,") || text.starts_with("-masm=") || text == "-mcmodel=kernel";
        if !is_left_out {
            flags.push(flag.clone());
        }
    }
    flags
}

/// Number of slots that the buffer has: sets of four.
fn slots(options: &Options) -> u32 {
    match options.mode {
        Mode::CallGraph => options.buffer / 64 * 4,
        Mode::FunctionCoverage => 0,
    }
}

/// Where a compiler is, if it is on PATH or a path.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(path))
        .find(|path| path.is_file())
}

/// An archive with a symbol index, in the format that all Unix linkers read:
///
/// | what | size |
/// |---|---|
/// | `!<arch>\n` | 8 |
/// | for each member, at an even offset: name (16), time (12), owner (6), group (6), mode (8), size (10), all decimal text (the mode octal), `` `\n `` | 60 |
/// | its contents | |
///
/// The first member, named `/`, is the index: number of symbols, offset of the member that defines each (4
/// bytes each, big endian), names, each ended by a zero byte.
pub fn archive(members: &[(&str, &Vec<u8>, &[&str])], prefix: &str) -> Vec<u8> {
    let symbols: Vec<(usize, String)> = members
        .iter()
        .enumerate()
        .flat_map(|(index, (_, _, symbols))| {
            symbols
                .iter()
                .map(move |symbol| (index, format!("{prefix}{symbol}")))
        })
        .collect();
    let names: usize = symbols.iter().map(|(_, name)| name.len() + 1).sum();
    let index_size = 4 + 4 * symbols.len() + names;
    let mut offsets = vec![];
    let mut at = 8 + 60 + index_size.next_multiple_of(2);
    for (_, contents, _) in members {
        offsets.push(at as u32); // a few kilobytes
        at += 60 + contents.len().next_multiple_of(2);
    }
    let mut out = b"!<arch>\n".to_vec();
    let head = |out: &mut Vec<u8>, name: &str, size: usize| {
        out.extend_from_slice(
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 0, 644).as_bytes(),
        );
    };
    head(&mut out, "/", index_size);
    out.extend((symbols.len() as u32).to_be_bytes());
    for (member, _) in &symbols {
        out.extend(offsets[*member].to_be_bytes());
    }
    for (_, name) in &symbols {
        out.extend_from_slice(name.as_bytes());
        out.push(0);
    }
    if out.len() % 2 == 1 {
        out.push(b'\n');
    }
    for (name, contents, _) in members {
        head(&mut out, &format!("{name}/"), contents.len());
        out.extend_from_slice(contents);
        if out.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}
