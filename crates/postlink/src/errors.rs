//! Errors as people see them: one line, file first, every cause once.

use std::fmt;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

/// A wrong command line that clap cannot see: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Prints an error and gives the exit code that goes with it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    anstream::eprintln!("{red}error:{red:#} {}", line(error));
    if error.downcast_ref::<Usage>().is_some() {
        anstream::eprintln!("\nFor more information, try '--help'.");
        return ExitCode::from(2);
    }
    ExitCode::FAILURE
}

/// The chain of causes in one line. Many errors print their cause themselves: what has been said is not said again.
pub fn line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let said = cause.to_string();
        if text.is_empty() {
            text = said;
        } else if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn a_cause_that_the_error_names_itself_is_not_named_twice() {
        let io = std::io::Error::other("no space left");
        let error = anyhow::Error::from(io)
            .context("out.opt: cannot write: no space left")
            .context("out.opt");
        assert_eq!(
            line(&error),
            "out.opt: out.opt: cannot write: no space left"
        );
    }

    #[test]
    fn causes_are_chained_in_one_line() {
        let error = Err::<(), _>(anyhow!("at 0x40, 7 bytes where 8 are needed"))
            .context("a.out")
            .unwrap_err();
        assert_eq!(line(&error), "a.out: at 0x40, 7 bytes where 8 are needed");
    }
}
