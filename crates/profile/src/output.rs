//! Writing a file so that no reader ever sees half of it: to a temporary in the target's directory, renamed when
//! complete.
//!
//! If anything fails the temporary is removed and a file that was there before stays as it was.
//!
//! A device or a pipe is not replaced: whoever names `/dev/null` as root wants it to stay one. What is complete is
//! written into it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use crate::Error;

/// Calls `write` with a buffered temporary beside `path`, then renames it to `path`.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>,
) -> Result<(), Error> {
    replacing(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 18, file);
        write(&mut out)
            .and_then(|()| out.flush())
            .map_err(|e| Error::io(path, "write", e))
    })
}

/// Calls `write` with an empty temporary file beside `path`, then renames it to `path`.
pub fn replacing(path: &Path, write: impl FnOnce(&File) -> Result<(), Error>) -> Result<(), Error> {
    // 0666 less the umask, as any other output; the default of the temporary's maker is 0600.
    let temporary = temporary_for(path, 0o666)
        .map_err(|e| Error::io(path, "create a temporary beside it", e))?;
    write(temporary.as_file())?;
    put_in_place(temporary.into_temp_path(), path)
        .map_err(|e| Error::io(path, "rename the finished temporary to it", e))
}

/// An empty file that can become the one at `path` ([`put_in_place`]), with these permissions less the umask. It is in
/// the same folder; where `path` is written into, among temporary files.
pub fn temporary_for(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        _ if is_written_into(path) => std::env::temp_dir(),
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(folder)
}

/// Renames a complete file to `path`, or writes what it holds into what is there.
pub fn put_in_place(file: TempPath, path: &Path) -> io::Result<()> {
    if !is_written_into(path) {
        return file.persist(path).map_err(|e| e.error);
    }
    let mut into = OpenOptions::new().write(true).truncate(true).open(path)?;
    io::copy(&mut File::open(&file)?, &mut into)?;
    Ok(())
}

/// Whether a path leads to what is no file that could be replaced: a device, a pipe, what a process has open
/// (`/dev/stdout`).
fn is_written_into(path: &Path) -> bool {
    let special = |of: fs::Metadata| !of.is_file() && !of.is_dir();
    match fs::symlink_metadata(path) {
        Ok(link) if link.is_symlink() => {
            let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
            let is_open =
                |folder: PathBuf| folder == Path::new("/dev") || folder.starts_with("/proc");
            folder.is_some_and(is_open) || fs::metadata(path).is_ok_and(special)
        }
        Ok(metadata) => special(metadata),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "old").unwrap();
        let result = write_atomically(&path, |out| {
            out.write_all(b"new")?;
            Err(std::io::Error::other("full"))
        });
        assert_eq!(
            result.unwrap_err().to_string(),
            format!("{}: cannot write: full", path.display())
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// `merge … -o /dev/null` as root made a file of the device.
    #[test]
    fn a_device_and_a_pipe_are_written_into() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        write_atomically(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"));
        let device = fs::metadata("/dev/null").unwrap().file_type();
        assert!(device.is_char_device());

        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let reader = pipe.clone();
        let read = std::thread::spawn(move || fs::read_to_string(reader).unwrap());
        write_atomically(&pipe, |out| out.write_all(b"new")).unwrap();
        assert_eq!(read.join().unwrap(), "new");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// A link to a file becomes a file, as with linkers.
    #[test]
    fn what_a_process_has_open_is_written_into_and_other_links_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (old, link) = (dir.path().join("old"), dir.path().join("link"));
        fs::write(&old, "old").unwrap();
        std::os::unix::fs::symlink(&old, &link).unwrap();
        write_atomically(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());

        use std::os::fd::AsRawFd;
        let open = File::create(&old).unwrap();
        let path = PathBuf::from(format!("/dev/fd/{}", open.as_raw_fd()));
        write_atomically(&path, |out| out.write_all(b"newer")).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "newer");
    }

    #[test]
    fn a_finished_write_replaces_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "old").unwrap();
        write_atomically(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }
}
