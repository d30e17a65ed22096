//! Where names and lines of a stripped program are: options of every command that shows functions to people.

use std::path::PathBuf;

use clap::Args;

/// The options.
#[derive(Args, Clone, Debug)]
pub struct Naming {
    /// The file with the program's debug information, for names and lines [default: where debuggers look]
    #[arg(long, value_name = "FILE")]
    pub debug_file: Option<PathBuf>,
    /// Where files with debug information are, by build-id and by folder
    #[arg(long, value_name = "DIR", default_value = crate::debug_files::FOLDER)]
    pub debug_dir: PathBuf,
}
