//! What the system around a file knows of it: checksums beside it, and rights.
//!
//! Some files are compared with a checksum before they are used, and a rewritten one is another file:
//!
//! | what | where the checksum is | what compares |
//! |---|---|---|
//! | modules validated by FIPS 140 (libcrypto, libgcrypt, sshd …) | `.NAME.hmac` beside the file, or in `/usr/lib*/fipscheck`, `/usr/lib*/hmaccalc` | the module itself, in FIPS mode |
//! | NSS (libsoftokn3, libfreeblpriv3) | `NAME.chk` for `NAME.so` | the module itself, in FIPS mode |
//! | OpenSSL's FIPS provider `fips.so` | `module-mac` in `fipsmodule.cnf` | libcrypto, whenever it is loaded |
//! | files under IMA or EVM | `security.ima`, `security.evm` of the file | the kernel, by its policy |
//!
//! Nothing of this can be told from the program's code, so there is a warning and the output is written: whoever puts
//! it in the original's place has to make the checksum anew.
//!
//! Rights that come with a file stay what they were or get less, never more. Set-user-ID is worth what the owner
//! is: the output gets the owner and the bit, or neither. Capabilities are copied where the system allows it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::input::Input;

/// Set-user-ID and set-group-ID.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

/// Folders with checksums of files in other folders.
const CHECKSUMS: [&str; 4] = [
    "/usr/lib64/fipscheck",
    "/usr/lib64/hmaccalc",
    "/usr/lib/fipscheck",
    "/usr/lib/hmaccalc",
];

/// The file that a checksum of this name is of, by the name's form.
fn checked_by(name: &str) -> Option<String> {
    let hidden = name.strip_prefix('.').unwrap_or(name);
    match (hidden.strip_suffix(".hmac"), name.strip_suffix(".chk")) {
        (Some(of), _) if !of.is_empty() => Some(of.to_owned()),
        (_, Some(of)) if !of.is_empty() => Some(format!("{of}.so")),
        _ => None,
    }
}

/// Files that hold a checksum of the file, whatever name of it they use. A checksum in a folder is of the file of
/// that name there, or in `names` of files elsewhere.
fn checksums_in(folder: &Path, input: &Input, elsewhere: &[&OsStr]) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new(); // It is not there, or not for us: then there is nothing to be said.
    };
    let is_of_input = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let Some(of) = name.to_str().and_then(checked_by) else {
            return false;
        };
        elsewhere.contains(&OsStr::new(&of)) || input.is(&folder.join(of))
    };
    let found = entries.flatten().filter(is_of_input);
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The folder that a path names a file in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What will be compared with the file, as sentences.
pub fn checks_of(input: &Input) -> Vec<String> {
    let real = fs::canonicalize(&input.path).unwrap_or_else(|_| input.path.clone());
    let names: Vec<&OsStr> = [&input.path, &real]
        .into_iter()
        .filter_map(|path| path.file_name())
        .collect();
    let mut found = checksums_in(folder_of(&real), input, &[]);
    if fs::canonicalize(folder_of(&input.path)).ok().as_deref() != Some(folder_of(&real)) {
        found.extend(checksums_in(folder_of(&input.path), input, &[]));
    }
    for folder in CHECKSUMS {
        found.extend(checksums_in(Path::new(folder), input, &names));
    }
    let mut said: Vec<String> = found.iter().map(|path| sentence(path)).collect();
    if names.contains(&OsStr::new("fips.so")) {
        said.push(
            "OpenSSL compares its FIPS provider with module-mac in fipsmodule.cnf and will not load a changed one: in place of the \
             original it needs `openssl fipsinstall`, and is no longer the module that was validated"
                .to_owned(),
        );
    }
    for attribute in ["security.ima", "security.evm"] {
        if matches!(xattr::get(&input.path, attribute), Ok(Some(_))) {
            said.push(format!(
                "the file has a checksum or signature in {attribute}, which the output does not get: where the kernel's policy asks for it \
                 the output does not run until it is signed (evmctl ima_sign)"
            ));
        }
    }
    said
}

fn sentence(path: &Path) -> String {
    let again = match path.extension().and_then(OsStr::to_str) {
        Some("chk") => "shlibsign -i FILE makes it anew",
        _ => "make it anew, with fipshmac or what the package used",
    };
    format!(
        "{} has a checksum of this file: in place of the original the output will fail the check that reads it (in FIPS mode it refuses to work); {again}",
        path.display()
    )
}

/// The mode of an output that has this owner, and the warning about it.
fn mode_for(mode: u32, wanted: (u32, u32), owner: (u32, u32)) -> (u32, Vec<String>) {
    let mut said = Vec::new();
    let mut kept = mode;
    for (bit, what, who, wanted, owner) in [
        (SET_USER, "set-user-ID", "user", wanted.0, owner.0),
        (SET_GROUP, "set-group-ID", "group", wanted.1, owner.1),
    ] {
        if mode & bit == 0 {
            continue;
        }
        if wanted == owner {
            said.push(format!(
                "{what} is kept: the output runs with the rights of {who} {owner}, as the input does; an instrumented program writes its \
                 profile with these rights and ignores POSTLINK_PROFILE, so give `instrument --profile` a file in a folder that no one else can write to"
            ));
        } else {
            kept &= !bit;
            said.push(format!(
                "{what} is dropped: the output belongs to {who} {owner}, the input to {who} {wanted} (as root: chown, then chmod)"
            ));
        }
    }
    (kept, said)
}

/// Gives a complete output what rights the input has. Returns the warning about it.
pub fn carry_rights(input: &Input, written: &Path) -> Result<Vec<String>> {
    let named = || written.display().to_string();
    let mut said = Vec::new();
    if input.mode & (SET_USER | SET_GROUP) != 0 {
        // Only root may; anyone else gets the file without the bits.
        let _ = chown(written, Some(input.owner.0), Some(input.owner.1));
        let metadata = fs::metadata(written).with_context(named)?;
        let (mode, sentences) = mode_for(input.mode, input.owner, (metadata.uid(), metadata.gid()));
        fs::set_permissions(written, fs::Permissions::from_mode(mode)).with_context(named)?;
        said.extend(sentences);
    }
    const CAPABILITIES: &str = "security.capability";
    if let Ok(Some(value)) = xattr::get(&input.path, CAPABILITIES) {
        said.push(match xattr::set(written, CAPABILITIES, &value) {
            Ok(()) => "the input's capabilities are kept: the output runs with them as well".into(),
            Err(error) => format!(
                "the output does not get the input's capabilities: {error} (as root: `getcap` of the input, `setcap` of the output)"
            ),
        });
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_of(folder: &Path, name: &str) -> Vec<String> {
        checks_of(&Input::open(&folder.join(name)).unwrap())
    }

    #[test]
    fn checksums_beside_a_file_are_found_by_any_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("libcrypto.so.3.0.8"), "x").unwrap();
        std::os::unix::fs::symlink("libcrypto.so.3.0.8", at("libcrypto.so.3")).unwrap();
        assert!(said_of(folder.path(), "libcrypto.so.3").is_empty());
        fs::write(at(".libother.so.hmac"), "x").unwrap();
        assert!(said_of(folder.path(), "libcrypto.so.3").is_empty());
        fs::write(at(".libcrypto.so.3.hmac"), "x").unwrap();
        for name in ["libcrypto.so.3", "libcrypto.so.3.0.8"] {
            let said = said_of(folder.path(), name);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains("/.libcrypto.so.3.hmac has a checksum of this file"));
            assert!(said[0].contains("fipshmac"), "{said:?}");
        }
    }

    #[test]
    fn signatures_of_nss_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "libsoftokn3.so",
            "libsoftokn3.chk",
            "libnss3.so",
            ".hmac",
            ".chk",
        ] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let said = said_of(folder.path(), "libsoftokn3.so");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("libsoftokn3.chk") && said[0].contains("shlibsign"));
        assert!(said_of(folder.path(), "libnss3.so").is_empty());
    }

    #[test]
    fn the_fips_provider_is_told_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("fips.so"), "x").unwrap();
        assert!(said_of(folder.path(), "fips.so")[0].contains("fipsmodule.cnf"));
    }

    #[test]
    fn set_user_id_goes_with_the_owner_alone() {
        let (mode, said) = mode_for(0o4755, (0, 0), (0, 0));
        assert_eq!((mode, said.len()), (0o4755, 1));
        assert!(said[0].starts_with("set-user-ID is kept"), "{said:?}");
        let (mode, said) = mode_for(0o6755, (0, 5), (1000, 5));
        assert_eq!((mode, said.len()), (0o2755, 2));
        assert!(said[0].starts_with(
            "set-user-ID is dropped: the output belongs to user 1000, the input to user 0"
        ));
        assert_eq!(mode_for(0o755, (0, 0), (7, 7)), (0o755, vec![]));
    }
}
