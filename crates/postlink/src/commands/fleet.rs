//! `postlink fleet`: runs `postlink-fleet`, a program of its own. It holds a query engine, which would make this one
//! four times as large.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

/// The other program's name.
const PROGRAM: &str = "postlink-fleet";

/// Collect, merge and query the profiles of a fleet
///
/// Runs the program postlink-fleet, which is looked for beside postlink, then in PATH. Profiles of many hosts, builds
/// and programs become rows in Parquet files, are added up, and become profiles of one build again.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
#[command(after_long_help = "\
Examples:
  postlink fleet --help
  postlink fleet add host1.plraw host2.plraw --binary ./app -o shards
  postlink fleet profile shards --build-id 1f2e… -o app.plprof")]
pub struct Fleet {
    /// What postlink-fleet is given
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<OsString>,
}

impl Fleet {
    pub fn run(self) -> Result<ExitCode> {
        let own = std::env::current_exe().context("where is this program?")?;
        let search = std::env::var_os("PATH").unwrap_or_default();
        let Some(program) = find(&own, &search) else {
            bail!(
                "{PROGRAM} is neither beside {} nor in PATH: `cargo install --path fleet` in postlink's sources installs it",
                own.display()
            );
        };
        let error = std::process::Command::new(&program)
            .args(self.arguments)
            .exec();
        Err(error).with_context(|| format!("{}: cannot run", program.display()))
    }
}

/// The program beside `own`, else the first in the folders of a search path.
fn find(own: &Path, search: &std::ffi::OsStr) -> Option<PathBuf> {
    let beside = own.parent().map(Path::to_path_buf);
    let folders = beside.into_iter().chain(std::env::split_paths(search));
    folders
        .map(|folder| folder.join(PROGRAM))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_beside_this_one_comes_first_then_those_in_path() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            folder
        };
        let (own, a, b) = (folder("own"), folder("a"), folder("b"));
        let program = own.join("postlink");
        let search = std::env::join_paths([&a, &b]).unwrap();
        assert_eq!(find(&program, &search), None);
        // A folder of that name is no program.
        std::fs::create_dir(a.join(PROGRAM)).unwrap();
        std::fs::write(b.join(PROGRAM), "").unwrap();
        assert_eq!(find(&program, &search), Some(b.join(PROGRAM)));
        std::fs::write(own.join(PROGRAM), "").unwrap();
        assert_eq!(find(&program, &search), Some(own.join(PROGRAM)));
    }
}
