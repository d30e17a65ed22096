//! How far a command has come, on a terminal: what is done, what is left, and about how long that takes.
//!
//! Shown from the second second on, on standard error, if that is a terminal. What is counted is files where files are
//! opened or added one after another, and rows where a plan reads shards: a thread asks the plan's operators, which
//! count them. Grouping and sorting go on after the last row was read; then only the time is shown.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datafusion::physical_plan::ExecutionPlan;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::operator::Over;
use crate::scan::Scan;

/// Nothing is shown of what takes less.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a plan is asked.
const POLL: Duration = Duration::from_millis(200);

/// A line about a command.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Shown>>);

struct Shown {
    bar: ProgressBar,
    /// The plan at hand.
    plan: Arc<Mutex<Option<Arc<dyn ExecutionPlan>>>>,
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Progress {
    /// Of a command. Nothing is ever shown if `quiet`, or if standard error is no terminal.
    pub fn new(command: &str, quiet: bool) -> Progress {
        if quiet || !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_prefix(command.to_owned());
        let plan: Arc<Mutex<Option<Arc<dyn ExecutionPlan>>>> = Arc::default();
        let (stop, stopped) = channel();
        let (shown, asked) = (bar.clone(), plan.clone());
        let start = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut is_hidden = true;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(POLL) {
                if is_hidden && start.elapsed() >= PATIENCE {
                    is_hidden = false;
                    shown.set_draw_target(ProgressDrawTarget::stderr());
                    shown.enable_steady_tick(Duration::from_millis(250));
                }
                let plan = asked.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(plan) = &*plan {
                    set(&shown, rows_read(plan));
                }
            }
        });
        Progress(Some(Arc::new(Shown {
            bar,
            plan,
            thread: Mutex::new(Some((stop, thread))),
        })))
    }

    /// Begins a step of so many pieces, named in the plural.
    pub fn begin(&self, pieces: &str, count: u64) {
        let Some(shown) = &self.0 else { return };
        *shown.plan.lock().unwrap_or_else(PoisonError::into_inner) = None;
        shown.bar.reset_eta();
        shown.bar.set_position(0);
        shown.bar.set_length(count);
        let template = format!(
            "{{spinner}} {{prefix}}: {{human_pos}} of {{human_len}} {pieces}{{left}} ({{elapsed}})"
        );
        // It is well formed: names of pieces are ours.
        if let Ok(style) = ProgressStyle::with_template(&template) {
            shown.bar.set_style(style.with_key("left", left));
        }
    }

    /// One piece is done.
    pub fn did(&self) {
        self.did_some(1);
    }

    /// Several pieces are done.
    pub fn did_some(&self, pieces: u64) {
        if let Some(shown) = &self.0 {
            shown.bar.inc(pieces);
            when_done(&shown.bar);
        }
    }

    /// Begins the reading of so many rows by a plan, once for each of its scans.
    pub fn read(&self, plan: &Arc<dyn ExecutionPlan>, rows: u64) {
        let Some(shown) = &self.0 else { return };
        self.begin("rows read", rows.saturating_mul(scans(plan)));
        *shown.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
    }

    /// Prints a line to standard error, above the one that is shown.
    pub fn say(&self, line: &str) {
        match &self.0 {
            Some(shown) => shown.bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Nothing more is shown.
    pub fn end(&self) {
        let Some(shown) = &self.0 else { return };
        let thread = shown
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((stop, thread)) = thread {
            drop(stop);
            // It cannot panic; if it did, there is only less to see.
            let _ = thread.join();
        }
        shown.bar.finish_and_clear();
    }
}

/// About how much time is left, once there is a rate.
fn left(state: &ProgressState, to: &mut dyn Write) {
    if state.pos() > 0 {
        // Where it cannot be written it is not shown.
        let _ = write!(to, ", about {:#} left", HumanDuration(state.eta()));
    }
}

/// So many pieces are done.
fn set(bar: &ProgressBar, done: u64) {
    bar.set_position(done);
    when_done(bar);
}

/// What comes after the last piece, writing or merging, is not counted.
fn when_done(bar: &ProgressBar) {
    if bar.length().is_some_and(|all| bar.position() >= all)
        && let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} ({elapsed})")
    {
        bar.set_style(style);
    }
}

/// How many operators of a plan read the table.
fn scans(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    if plan.is::<Over<Scan>>() {
        return 1;
    }
    plan.children().into_iter().map(scans).sum()
}

/// Rows that a plan has read so far.
fn rows_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    if !plan.is::<Over<Scan>>() {
        return plan.children().into_iter().map(rows_read).sum();
    }
    let rows = plan.metrics().and_then(|metrics| metrics.output_rows());
    rows.unwrap_or(0) as u64
}
