//! Writing a file so that no reader ever sees half of it: to a temporary in the target's directory, renamed when
//! complete.
//!
//! If anything fails the temporary is removed and a file that was there before stays as it was.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

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
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    let temporary = {
        use std::os::unix::fs::PermissionsExt;
        // 0666 less the umask, as any other output; the default of the temporary's maker is 0600.
        tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(dir)
            .map_err(|e| Error::io(path, "create a temporary beside it", e))?
    };
    write(temporary.as_file())?;
    temporary
        .persist(path)
        .map_err(|e| Error::io(path, "rename the finished temporary to it", e.error))?;
    Ok(())
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

    #[test]
    fn a_finished_write_replaces_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "old").unwrap();
        write_atomically(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }
}
