//! `postlink links`: the program under the names of LLVM's tools.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::front_ends;
use crate::ui::{BOLD, Ui};

/// Make links under which the program behaves as LLVM's tools
///
/// Under the name of one of them it takes that tool's options and does its work. `postlink NAME …` does the
/// same without a link.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink links ~/bin
  ~/bin/perf2bolt -p perf.data ./app -o app.fdata
  postlink perf2bolt -p perf.data ./app -o app.fdata")]
pub struct Links {
    /// Where the links go
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Replace files of these names
    #[arg(long)]
    pub force: bool,
}

impl Links {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let program =
            std::env::current_exe().context("cannot find out where this program is installed")?;
        std::fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        for front_end in front_ends::ALL {
            let link = self.dir.join(front_end.name);
            let named = || link.display().to_string();
            match std::fs::symlink_metadata(&link) {
                Ok(_) if std::fs::read_link(&link).is_ok_and(|to| to == program) => {}
                Ok(_) if !self.force => anyhow::bail!(
                    "{}: is there already and is no link to this program (--force replaces it)",
                    link.display()
                ),
                Ok(_) => {
                    std::fs::remove_file(&link).with_context(named)?;
                    std::os::unix::fs::symlink(&program, &link).with_context(named)?;
                }
                Err(_) => std::os::unix::fs::symlink(&program, &link).with_context(named)?,
            }
            ui.say(format_args!(
                "{BOLD}{}{BOLD:#}: {}",
                link.display(),
                front_end.about
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
