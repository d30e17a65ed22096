//! Talking to the person: progress, colours, numbers, the table of times.
//!
//! What a command is asked for goes to standard output; everything else (what was done, progress, times) to standard
//! error, so that output can be piped on.

use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use postlink_rewrite::Phases;

/// Bold.
pub const BOLD: Style = Style::new().bold();
/// For what is as it should be.
pub const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
/// For what is not.
pub const BAD: Style = Style::new()
    .fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)))
    .bold();
/// For what is executed most.
pub const HOT: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
/// For what is executed often.
pub const WARM: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
/// For what is executed now and then.
pub const COOL: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Blue)));
/// For what matters less.
pub const DIM: Style = Style::new().dimmed();

/// Shorter work shows no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// The phases of each piece of work, in order, so that progress says how many are left. Phases that a job does not
/// need are skipped, and those up to writing come again when the checker refuses a function.
const STEPS: &[(&str, &[&str])] = &[
    ("aggregate", &["binary", "samples", "aggregate", "write"]),
    ("bat dump", &["read", "print"]),
    ("convert", &["read", "write"]),
    ("debug", &["update", "write", "check"]),
    ("diff", &["read", "compare"]),
    ("disasm", &["probes", "lines", "print"]),
    (
        "export",
        &[
            "profile",
            "discover",
            "counters",
            "attach",
            "functions",
            "lines",
            "file",
        ],
    ),
    ("inspect", &["discover", "functions"]),
    (
        "instrument",
        &["discover", "functions", "link", "write", "verify"],
    ),
    ("merge", &["read", "write"]),
    (
        "mip merge",
        &["read the profile", "merge", "write the profile"],
    ),
    ("mip covered", &["read the profile", "lines", "print"]),
    ("mip order", &["read the profile", "order", "write"]),
    ("mip show", &["read the profile", "lines", "print"]),
    ("mip to-yaml", &["read the profile", "lines", "print"]),
    (
        "optimize",
        &[
            "profile",
            "discover",
            "attach",
            "passes",
            "layout",
            "walk",
            "emit",
            "functions",
            "link",
            "write",
            "verify",
        ],
    ),
    ("probes show", &["read", "print"]),
    ("profgen", &["lines", "samples", "write"]),
    (
        "report",
        &[
            "profile",
            "discover",
            "counters",
            "attach",
            "functions",
            "start-up",
            "verify",
            "page",
        ],
    ),
    (
        "show",
        &["profile", "discover", "counters", "attach", "functions"],
    ),
    ("verify", &["check"]),
];

/// Whether the list is complete. Work without a list has one step.
fn is_known(what: &str, phase: &str) -> bool {
    let mut lists = STEPS.iter().filter(|(name, _)| *name == what);
    lists.all(|(_, steps)| steps.contains(&phase))
}

/// A phase and its place among those of a piece of work: `link, step 8 of 10`.
fn step(what: &str, phase: &str) -> String {
    let steps = STEPS.iter().find(|(name, _)| *name == what);
    let steps = steps.map_or(&[][..], |(_, steps)| steps);
    match steps.iter().position(|step| *step == phase) {
        Some(at) if steps.len() > 1 => format!("{phase}, step {} of {}", at + 1, steps.len()),
        _ => phase.to_owned(),
    }
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On terminals, unless NO_COLOR is set
    Auto,
    /// Also into files and pipes
    Always,
    /// Never
    Never,
}

impl ColorChoice {
    /// Sets it for the process.
    pub fn apply(self) {
        match self {
            ColorChoice::Auto => anstream::ColorChoice::Auto,
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// How talkative a command is.
pub struct Ui {
    quiet: bool,
    time: bool,
}

impl Ui {
    /// As the general options say.
    pub fn new(quiet: bool, time: bool) -> Ui {
        Ui { quiet, time }
    }

    /// A line about what was done.
    pub fn say(&self, line: impl Display) {
        if !self.quiet {
            anstream::eprintln!("{line}");
        }
    }

    /// A line about something that the person should know.
    pub fn warn(&self, line: impl Display) {
        let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
        self.say(format_args!("{yellow}warning:{yellow:#} {line}"));
    }

    /// Shows how far something has come, if it takes long.
    pub fn progress(&self, what: &str) -> Progress {
        let is_shown = !self.quiet && std::io::stderr().is_terminal();
        Progress(is_shown.then(|| Spinner::start(what.to_owned())))
    }

    /// Starts watching phases, with a spinner for work that takes long.
    pub fn phases(&self, what: &str) -> Watched {
        let mut phases = Phases::default();
        let mut spinner = None;
        if !self.quiet && std::io::stderr().is_terminal() {
            let (started, begun) = Spinner::counting(what.to_owned());
            let bar = started.bar.clone();
            let name = what.to_owned();
            phases.observer = Some(Box::new(move |phase| {
                postlink_profile::progress::reset();
                *begun.lock().unwrap_or_else(PoisonError::into_inner) = (phase, Instant::now());
                bar.set_message(step(&name, phase));
            }));
            spinner = Some(started);
        }
        Watched {
            phases,
            spinner,
            since: Instant::now(),
            print: self.time,
            what: what.to_owned(),
        }
    }
}

/// Phases of one piece of work. Prints the table of times, if asked for, when it is finished.
pub struct Watched {
    /// For the library.
    pub phases: Phases,
    spinner: Option<Spinner>,
    since: Instant,
    print: bool,
    what: String,
}

impl Watched {
    /// What follows is written to standard output. Where that is the terminal it is its own progress, and what shows
    /// progress would stand in between.
    pub fn printing(&mut self) {
        self.phases.begin("print");
        if std::io::stdout().is_terminal() {
            self.spinner.take();
        }
    }

    /// Ends the progress display and prints the times.
    pub fn finish(mut self) {
        self.phases.end();
        debug_assert!(
            self.phases
                .times
                .iter()
                .all(|(phase, _)| is_known(&self.what, phase)),
            "STEPS lacks a phase of {}: {:?}",
            self.what,
            self.phases.times
        );
        self.spinner.take();
        if !self.print {
            return;
        }
        let total = self.since.elapsed();
        anstream::eprintln!("{BOLD}{:<24} {:>10}{BOLD:#}", self.what, "ms");
        let mut rest = total;
        for (name, time) in &self.phases.times {
            rest = rest.saturating_sub(*time);
            anstream::eprintln!("  {name:<22} {:>10.1}", time.as_secs_f64() * 1e3);
        }
        anstream::eprintln!("  {:<22} {:>10.1}", "other", rest.as_secs_f64() * 1e3);
        anstream::eprintln!("  {:<22} {:>10.1}", "all", total.as_secs_f64() * 1e3);
    }
}

/// A line about how far something has come; it goes away with this.
pub struct Progress(Option<Spinner>);

impl Progress {
    /// Changes the line.
    pub fn set(&self, message: impl FnOnce() -> String) {
        if let Some(spinner) = &self.0 {
            spinner.bar.set_message(message());
        }
    }
}

/// A spinner that shows itself only after a second.
struct Spinner {
    bar: ProgressBar,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The phase at hand, and since when.
type Begun = Arc<Mutex<(&'static str, Instant)>>;

/// How far a pass has come, and about how much time is left of it, from the rate so far. Nothing in its first second,
/// nor before a twentieth is done: an estimate that jumps is of no use. `from`: what was done when the time began.
fn left((done, all): (usize, usize), from: usize, since: Duration) -> String {
    let new = done.saturating_sub(from);
    if new == 0 || done >= all || done.saturating_mul(20) < all || since < PATIENCE {
        return String::new();
    }
    let rest = since.as_secs_f64() * (all - done) as f64 / new as f64;
    let rest = rough(Duration::try_from_secs_f64(rest).unwrap_or(Duration::MAX));
    format!(", {} %, about {rest} left", done * 100 / all)
}

/// A time that is estimated: whole seconds, from 100 on minutes.
pub fn rough(time: Duration) -> String {
    match time.as_secs_f64().ceil() as u64 {
        s @ ..100 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

/// A pass over something within a phase. The rate is that of the pass: passes over functions, units of debug
/// information and line programs take different times.
#[derive(Default)]
struct Pass {
    /// The phase's beginning.
    phase: Option<Instant>,
    /// What was counted last.
    counted: (usize, usize),
    /// What was done when the pass was first seen, and when that was.
    first: (usize, Option<Instant>),
}

impl Pass {
    /// What was done when the time of the pass at hand began, and that time. A new pass has another number of pieces,
    /// or fewer that are done.
    fn begun(&mut self, counted: (usize, usize), phase: Instant) -> (usize, Instant) {
        let (done, all) = std::mem::replace(&mut self.counted, counted);
        if self.phase != Some(phase) || counted.1 != all || counted.0 < done {
            self.phase = Some(phase);
            self.first = (counted.0, Some(Instant::now()));
        }
        (self.first.0, self.first.1.unwrap_or(phase))
    }
}

/// What is counted of a phase.
fn counted_of(phase: &str) -> (usize, usize) {
    match phase {
        "verify" | "check" => postlink_verify::walked(),
        _ => match postlink_profile::progress::worked() {
            (_, 0) => postlink_rewrite::worked(),
            reading => reading,
        },
    }
}

impl Spinner {
    /// With what is left of each phase, where that is counted.
    fn counting(what: String) -> (Spinner, Begun) {
        let begun: Begun = Arc::new(Mutex::new(("", Instant::now())));
        let of = begun.clone();
        let passes = Arc::new(Mutex::new(Pass::default()));
        let key = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
            let (phase, begun) = *of.lock().unwrap_or_else(PoisonError::into_inner);
            let counted = counted_of(phase);
            let mut pass = passes.lock().unwrap_or_else(PoisonError::into_inner);
            let (from, since) = pass.begun(counted, begun);
            // Where it cannot be written it is not shown.
            let _ = to.write_str(&left(counted, from, since.elapsed()));
        };
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg}{left} ({elapsed})");
        let spinner = Spinner::with(what, style.map(|style| style.with_key("left", key)).ok());
        (spinner, begun)
    }

    fn start(what: String) -> Spinner {
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg} ({elapsed})");
        Spinner::with(what, style.ok())
    }

    fn with(what: String, style: Option<ProgressStyle>) -> Spinner {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Some(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        let (stop, stopped) = mpsc::channel();
        let shown = bar.clone();
        let thread = std::thread::spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(PATIENCE) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(250));
            }
        });
        Spinner {
            bar,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic; if it did, there is only less to see.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// 1234567 as `1,234,567`.
pub fn count(n: impl TryInto<u128>) -> String {
    let digits = n
        .try_into()
        .map_or_else(|_| "?".to_owned(), |n| n.to_string());
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and what it counts: "1 function", "2,000 functions".
pub fn counted(n: impl TryInto<u128>, one: &str, many: &str) -> String {
    let n = count(n);
    let what = if n == "1" { one } else { many };
    format!("{n} {what}")
}

/// Bytes in units of a thousand.
pub fn bytes(n: u64) -> String {
    let units = [
        (1_000_000_000_000.0, "TB"),
        (1e9, "GB"),
        (1e6, "MB"),
        (1e3, "kB"),
    ];
    match units.iter().find(|(unit, _)| n as f64 >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", n as f64 / unit),
        None => format!("{n} B"),
    }
}

/// A part of a whole.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        "-".to_owned()
    } else {
        format!("{:.1} %", part as f64 * 100.0 / whole as f64)
    }
}

/// How far `after` is from `before`, with its sign.
pub fn change(before: f64, after: f64) -> String {
    if before == 0.0 {
        "-".to_owned()
    } else {
        format!("{:+.1} %", (after / before - 1.0) * 100.0)
    }
}

/// Seconds for people.
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s >= 1.0 {
        format!("{s:.2} s")
    } else {
        format!("{:.1} ms", s * 1e3)
    }
}

/// A symbol's name as its author wrote it.
pub fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && let Ok(text) = symbol.demangle()
    {
        return text;
    }
    name.to_owned()
}

/// A name cut to fit a column.
pub fn shorten(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    let mut text: String = name.chars().take(width.saturating_sub(1)).collect();
    text.push('…');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_many_steps_there_are() {
        assert_eq!(step("optimize", "link"), "link, step 9 of 11");
        assert_eq!(step("verify", "check"), "check");
        assert_eq!(step("optimize", "something else"), "something else");
        assert_eq!(step("something else", "link"), "link");
    }

    #[test]
    fn a_pass_within_a_phase_has_its_own_rate() {
        let phase = Instant::now();
        let mut pass = Pass::default();
        let (from, begun) = pass.begun((10, 100), phase);
        assert_eq!((from, pass.begun((60, 100), phase)), (10, (10, begun)));
        // Another number of pieces, the same number anew, another phase.
        let (from, second) = pass.begun((3, 40), phase);
        assert!(from == 3 && second >= begun);
        assert_eq!(pass.begun((1, 40), phase).0, 1);
        assert_eq!(pass.begun((5, 40), phase + PATIENCE).0, 5);
        let of = |from| left((50, 100), from, Duration::from_secs(10));
        assert_eq!(of(0), ", 50 %, about 10 s left");
        assert_eq!(of(40), ", 50 %, about 50 s left");
        assert_eq!(of(50), "");
    }

    #[test]
    fn the_time_left_is_what_the_rate_so_far_says() {
        let of = |done, all, seconds| left((done, all), 0, Duration::from_secs(seconds));
        assert_eq!(of(250, 1000, 5), ", 25 %, about 15 s left");
        assert_eq!(of(100, 1000, 30), ", 10 %, about 5 min left");
        assert_eq!(of(999, 1000, 1), ", 99 %, about 1 s left");
        for (done, all, seconds) in [
            (0, 0, 9),
            (0, 100, 9),
            (4, 100, 9),
            (50, 100, 0),
            (100, 100, 9),
            (120, 100, 9),
        ] {
            assert_eq!(
                of(done, all, seconds),
                "",
                "{done} of {all} after {seconds} s"
            );
        }
    }

    #[test]
    fn one_thing_is_not_named_as_many() {
        let said = [0, 1, 2, 1001].map(|n| counted(n, "function", "functions"));
        assert_eq!(
            said,
            [
                "0 functions",
                "1 function",
                "2 functions",
                "1,001 functions"
            ]
        );
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(
            ["0", "999", "1,000", "12,345", "1,234,567"],
            [0u64, 999, 1000, 12345, 1_234_567]
                .map(count)
                .map(|s| s)
                .each_ref()
                .map(String::as_str)
        );
    }

    #[test]
    fn sizes_take_the_unit_that_fits() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.0 kB");
        assert_eq!(bytes(259_749_912), "259.7 MB");
    }

    #[test]
    fn names_of_rust_and_cpp_are_demangled_and_others_kept() {
        assert_eq!(
            demangle("_ZN4core3fmt5write17h0123456789abcdefE"),
            "core::fmt::write"
        );
        assert_eq!(demangle("_Z4deepiP4Basei"), "deep(int, Base*, int)");
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_Z"), "_Z");
    }

    #[test]
    fn a_change_from_nothing_has_no_percentage() {
        assert_eq!(change(0.0, 5.0), "-");
        assert_eq!(change(200.0, 150.0), "-25.0 %");
    }
}
