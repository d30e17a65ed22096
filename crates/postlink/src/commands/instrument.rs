//! `postlink instrument`: a copy that counts.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use postlink_rewrite::InstrumentReport;

use super::optimize::say_pinned;
use crate::input::Input;
use crate::options::Instrumenting;
use crate::rewriting;
use crate::ui::{BOLD, Ui, bytes, change, count};

/// Make a copy of a program that counts where it goes
///
/// The counters of the copy are the profile file itself, mapped into the running program: they are complete at any moment,
/// however the program ends, and can be read while it runs. The file is named by the environment variable
/// POSTLINK_PROFILE, or by --profile.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink instrument ./app -o ./app.inst
  POSTLINK_PROFILE=run.plraw ./app.inst
  postlink show run.plraw --binary ./app

  A server with many processes, one file for each:
    postlink instrument ./server -o ./server.inst --profile '/var/tmp/%b.%p.plraw'
    postlink merge /var/tmp/*.plraw -o all.plprof

A shared library is instrumented in the same way; every object has its own profile, so use %b in --profile
or POSTLINK_PROFILE when a program loads several.")]
pub struct Instrument {
    /// The program or shared library, linked with -Wl,-q
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// The copy to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Name of the profile where POSTLINK_PROFILE is not set: %p process, %b build-id, %h host, %m one file for all, %% a percent sign
    ///
    /// [default: postlink.%p.plraw]
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pub profile: Option<String>,
    #[command(flatten)]
    pub instrumenting: Instrumenting,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// Refuses a pattern that the program could not expand when it starts.
fn pattern(text: &str) -> Result<String, String> {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '%' {
            match letters.next() {
                Some('p' | 'b' | 'h' | 'm' | '%') => {}
                Some(other) => {
                    return Err(format!(
                        "'%{other}' is not known; there are %p, %b, %h, %m and %%"
                    ));
                }
                None => {
                    return Err(
                        "it ends with a single '%'; write '%%' for a percent sign".to_owned()
                    );
                }
            }
        }
    }
    match text.len() {
        0 => Err("it is empty".to_owned()),
        1..=1024 if !text.contains('\0') => Ok(text.to_owned()),
        length => Err(format!(
            "it has {length} bytes; at most 1024 are possible, and none may be zero"
        )),
    }
}

impl Instrument {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("instrument");
        let input = Input::open(&self.input)?;
        let options = self.instrumenting.options(self.profile.as_deref());
        let report = rewriting::instrument(&input, &options, &self.output, &mut watched.phases)?;
        watched.finish();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        }
        say(ui, &self.output.display().to_string(), &report);
        Ok(ExitCode::SUCCESS)
    }
}

/// The few lines at the end.
pub fn say(ui: &Ui, output: &str, report: &InstrumentReport) {
    ui.say(format_args!(
        "{BOLD}{output}{BOLD:#}: {} of {} functions count, with {} {} counters and {} recorders of indirect calls",
        count(report.instrumented),
        count(report.functions),
        count(report.counters),
        if report.atomic { "atomic" } else { "plain" },
        count(report.sites),
    ));
    say_pinned(ui, &report.pinned);
    ui.say(format_args!(
        "  size {} -> {} ({})",
        bytes(report.input_size),
        bytes(report.output_size),
        change(report.input_size as f64, report.output_size as f64)
    ));
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn patterns_that_no_start_up_routine_could_expand_are_refused() {
        for good in ["run.plraw", "%p", "/tmp/%b.%h.%p.%%.plraw"] {
            assert!(pattern(good).is_ok(), "{good}");
        }
        for bad in ["", "%", "x%", "%q", "a%%%"] {
            assert!(pattern(bad).is_err(), "{bad}");
        }
    }
}
