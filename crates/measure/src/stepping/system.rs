//! Tracing by `ptrace`, on Linux for x86-64.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, pid_t};

use super::{At, Object, Plan};
use crate::{Random, interrupt};

/// Offset of the instruction pointer in the kernel's `struct user`.
const RIP: usize = std::mem::offset_of!(libc::user_regs_struct, rip);
/// How long is waited for news between looks at the clock.
const PATIENCE: Duration = Duration::from_micros(200);
/// How long a window of an attached process waits for the next step, until it is looked whether the thread runs.
const STEP_PATIENCE: Duration = Duration::from_millis(2);
/// What is followed of a traced process.
const FOLLOW: c_int = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC;
/// Ends of windows do not come at the same distance.
const SEED: u64 = 0x7374_6570;

/// A request to the kernel about a stopped thread.
fn ptrace(request: libc::c_uint, thread: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: these requests take numbers, or write to nowhere but the kernel's own tables.
    let done =
        unsafe { libc::ptrace(request, thread, address as *mut c_void, data as *mut c_void) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Where a stopped thread is.
fn program_counter(thread: pid_t) -> io::Result<u64> {
    peek(libc::PTRACE_PEEKUSER, thread, RIP)
}

/// A word of a stopped thread's memory, or of what the kernel has of it.
fn peek(request: libc::c_uint, thread: pid_t, address: usize) -> io::Result<u64> {
    // SAFETY: the request reads a word of the traced process or of the kernel's own table, which is the result; `errno`
    // tells an error from -1.
    let word = unsafe {
        *libc::__errno_location() = 0;
        libc::ptrace(
            request,
            thread,
            address as *mut c_void,
            ptr::null_mut::<c_void>(),
        )
    };
    match io::Error::last_os_error() {
        error if word == -1 && error.raw_os_error() != Some(0) => Err(error),
        _ => Ok(word as u64),
    }
}

/// What a single step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Instruction,
    SystemCall,
}

/// The step that a thread stopped for; `None` if it was a signal of the same number.
fn step_of(thread: pid_t) -> Option<Step> {
    // SAFETY: all-zero is a valid siginfo_t, which the kernel fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let to: *mut libc::siginfo_t = &mut info;
    // SAFETY: the pointer is valid for a siginfo_t.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGINFO,
            thread,
            ptr::null_mut::<c_void>(),
            to,
        )
    };
    // A breakpoint in the program is the kernel's (SI_KERNEL), a signal the sender's.
    match info.si_code {
        _ if done != 0 => None,
        libc::TRAP_TRACE => Some(Step::Instruction),
        libc::TRAP_BRKPT => Some(Step::SystemCall),
        _ => None,
    }
}

/// A traced thread.
#[derive(Default)]
struct Thread {
    /// It has not had the stop with which the kernel lets a new thread begin.
    begins: bool,
    /// Stop signals that were sent to it and have not arrived.
    asked: u32,
    /// It was let go on by one step, and the signal that ends the step has not been seen.
    steps: bool,
}

/// A window that is being recorded.
struct Open {
    thread: pid_t,
    bias: u64,
    /// Where the object is mapped.
    ranges: Vec<(u64, u64)>,
    /// `None` until the thread has stopped, and after a system call, which may have changed it.
    traps: Option<Traps>,
    /// Steps taken; 0 until the thread has stopped.
    taken: usize,
    steps: Vec<At>,
}

struct Tracer<'a, F> {
    object: &'a Object,
    plan: &'a Plan,
    window: F,
    /// The process that was started; attached to ones have none.
    root: Option<pid_t>,
    threads: HashMap<pid_t, Thread>,
    open: Option<Open>,
    done: usize,
    next: Instant,
    random: Random,
}

pub(super) fn record(
    command: &mut Command,
    object: &Object,
    plan: &Plan,
    window: impl FnMut(Vec<At>),
) -> io::Result<ExitStatus> {
    let trace_me = || ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
    // SAFETY: what is called between fork and exec is one system call.
    unsafe { command.pre_exec(trace_me) };
    // Not waited for by its handle: news of it come with those of all others.
    let root = command.spawn()?.id() as pid_t;
    let (_, status) = wait_for(root, libc::__WALL | libc::__WNOTHREAD)?.unwrap_or((root, 0));
    if !libc::WIFSTOPPED(status) {
        return Ok(ExitStatus::from_raw(status));
    }
    ptrace(libc::PTRACE_SETOPTIONS, root, 0, FOLLOW as usize)?;
    let mut tracer = Tracer::new(object, plan, window, Some(root));
    tracer.threads.insert(root, Thread::default());
    tracer.resume(root, 0);
    tracer.run()
}

pub(super) fn attach(
    processes: &[u32],
    time: Duration,
    object: &Object,
    plan: &Plan,
    window: impl FnMut(Vec<At>),
) -> io::Result<()> {
    let until = Instant::now() + time;
    let mut has_object = false;
    for process in processes {
        let maps = PathBuf::from(format!("/proc/{process}/maps"));
        let maps = fs::read_to_string(maps).map_err(|error| of_process(*process, &error))?;
        has_object |= object
            .bias(&maps, is_object(*process as pid_t, object))
            .is_some();
    }
    if !has_object {
        let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
        let what = format!("not mapped by process {}", processes.join(", "));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut tracer = Tracer::new(object, plan, window, None);
    let seized = processes
        .iter()
        .try_for_each(|process| tracer.seize(*process));
    let done = seized.and_then(|()| tracer.watch(until));
    tracer.let_go();
    done
}

/// An error, with the process that it is about.
fn of_process(process: u32, error: &io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (it is of another user, traced already, or /proc/sys/kernel/yama/ptrace_scope forbids it)"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("process {process}: {error}{hint}"))
}

/// Whether a path of a process is the object, which may have another root than the tracer.
fn is_object(thread: pid_t, object: &Object) -> impl Fn(&Path) -> bool {
    let identity = object.identity;
    // A file is mapped by some lines that follow each other.
    let last = RefCell::new((PathBuf::new(), false));
    move |path: &Path| {
        let mut last = last.borrow_mut();
        if last.0 != path {
            let name = path.strip_prefix("/").unwrap_or(path);
            let full = PathBuf::from(format!("/proc/{thread}/root")).join(name);
            let same = fs::metadata(full).is_ok_and(|file| (file.dev(), file.ino()) == identity);
            *last = (path.to_owned(), same);
        }
        last.1
    }
}

/// News of a child; `None` if there are none now.
fn wait_for(child: pid_t, options: c_int) -> io::Result<Option<(pid_t, c_int)>> {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is valid.
        match unsafe { libc::waitpid(child, &mut status, options) } {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            0 => return Ok(None),
            thread => return Ok(Some((thread, status))),
        }
    }
}

impl<'a, F: FnMut(Vec<At>)> Tracer<'a, F> {
    fn new(object: &'a Object, plan: &'a Plan, window: F, root: Option<pid_t>) -> Self {
        let seed = SEED ^ u64::from(std::process::id()) ^ root.unwrap_or(0) as u64;
        let mut random = Random::new(seed);
        // The first window: anywhere in the time of one.
        let chance = random.below(plan.every.as_nanos() as usize + 1) as u64;
        Tracer {
            object,
            plan,
            window,
            root,
            threads: HashMap::new(),
            open: None,
            done: 0,
            next: Instant::now() + Duration::from_nanos(chance),
            random,
        }
    }

    /// Attaches to all threads of a process. None stops for that.
    fn seize(&mut self, process: u32) -> io::Result<()> {
        let folder = format!("/proc/{process}/task");
        // A thread that starts meanwhile is traced with the one that starts it, or is found by the next look.
        loop {
            let known = self.threads.len();
            let threads = fs::read_dir(&folder).map_err(|error| of_process(process, &error))?;
            for thread in threads {
                let name = thread
                    .map_err(|error| of_process(process, &error))?
                    .file_name();
                let Some(thread) = name.to_str().and_then(|name| name.parse::<pid_t>().ok()) else {
                    continue;
                };
                if self.threads.contains_key(&thread) || is_traced_by_this(thread) {
                    continue;
                }
                match ptrace(libc::PTRACE_SEIZE, thread, 0, FOLLOW as usize) {
                    Ok(()) => {
                        self.threads.insert(thread, Thread::default());
                    }
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(of_process(process, &error)),
                }
            }
            if self.threads.len() == known {
                return Ok(());
            }
        }
    }

    /// Takes windows of attached processes.
    fn watch(&mut self, until: Instant) -> io::Result<()> {
        // Since when there is no news in an open window.
        let mut quiet = Instant::now();
        while !self.threads.is_empty() {
            let now = Instant::now();
            if now >= until || self.done >= self.plan.windows || interrupt::was_asked() {
                break;
            }
            match wait_for(-1, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) {
                Ok(Some((thread, status))) => {
                    self.news(thread, status);
                    quiet = Instant::now();
                }
                Ok(None) => match self.open.as_ref().map(|open| open.thread) {
                    // A step may be a system call that waits.
                    Some(thread) if now.duration_since(quiet) >= STEP_PATIENCE => {
                        if !is_running(thread) {
                            self.end_window_of(thread);
                        }
                        quiet = now;
                    }
                    Some(_) => std::thread::yield_now(),
                    None if now >= self.next && self.begin_window() => quiet = now,
                    None => std::thread::sleep(PATIENCE),
                },
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Leaves no attached thread that would stop after its next instruction. The others the kernel lets go, where this
    /// thread ends, and none of them notices.
    fn let_go(&mut self) {
        if let Some(thread) = self.open.as_ref().map(|open| open.thread) {
            self.end_window_of(thread);
        }
        let steps = |(thread, state): (&pid_t, &Thread)| state.steps.then_some(*thread);
        let mut stepping: Vec<pid_t> = self.threads.iter().filter_map(steps).collect();
        for &thread in &stepping {
            let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0); // It may have ended.
        }
        while !stepping.is_empty() {
            let Ok(Some((thread, status))) = wait_for(-1, libc::__WALL | libc::__WNOTHREAD) else {
                return;
            };
            if libc::WIFSTOPPED(status) {
                let signal = match (status >> 16, libc::WSTOPSIG(status)) {
                    (0, libc::SIGTRAP) if step_of(thread).is_some() => 0,
                    (0, signal) => signal,
                    _ => 0,
                };
                if has_pending_trap(thread) {
                    let _ = ptrace(libc::PTRACE_CONT, thread, 0, signal as usize);
                    continue;
                }
                let _ = ptrace(libc::PTRACE_DETACH, thread, 0, signal as usize);
            }
            stepping.retain(|other| *other != thread);
        }
    }

    /// When the next window begins: after half of the time between windows, and as much again by chance.
    fn schedule(&mut self) {
        let every = self.plan.every;
        let chance = self.random.below(every.as_nanos() as usize + 1) as u64;
        self.next = Instant::now() + every / 2 + Duration::from_nanos(chance);
    }

    fn run(&mut self) -> io::Result<ExitStatus> {
        loop {
            let more = self.open.is_none() && self.done < self.plan.windows;
            let options = libc::__WALL | libc::__WNOTHREAD | if more { libc::WNOHANG } else { 0 };
            match wait_for(-1, options)? {
                Some((thread, status)) => {
                    if let Some(ended) = self.news(thread, status) {
                        return Ok(ended);
                    }
                }
                None if Instant::now() >= self.next => {
                    if !self.begin_window() {
                        std::thread::sleep(PATIENCE);
                    }
                }
                None => std::thread::sleep(PATIENCE),
            }
        }
    }

    /// Lets a stopped thread go on, with a signal or 0. It may be gone: then there will be news of that.
    fn resume(&mut self, thread: pid_t, signal: c_int) {
        let steps = matches!(&self.open, Some(open) if open.thread == thread && open.taken > 0);
        if let Some(known) = self.threads.get_mut(&thread) {
            known.steps |= steps;
        }
        let how = if steps {
            libc::PTRACE_SINGLESTEP
        } else {
            libc::PTRACE_CONT
        };
        let _ = ptrace(how, thread, 0, signal as usize);
    }

    /// What a thread has stopped for, or that it has ended. The result is the command's status.
    fn news(&mut self, thread: pid_t, status: c_int) -> Option<ExitStatus> {
        if !libc::WIFSTOPPED(status) {
            self.threads.remove(&thread);
            self.end_window_of(thread);
            return (Some(thread) == self.root).then(|| ExitStatus::from_raw(status));
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if let Some(known) = self.threads.get_mut(&thread).filter(|known| known.steps) {
            // A thread that is asked to stop does that before it takes the signal of a step that has ended.
            let is_trap = event == 0 && signal == libc::SIGTRAP;
            let step = is_trap.then(|| step_of(thread)).flatten();
            known.steps = step.is_none() && has_pending_trap(thread);
            if let Some(step) = step {
                self.stepped(thread, step);
                return None;
            }
        }
        match event {
            0 => self.signalled(thread, signal),
            libc::PTRACE_EVENT_STOP => self.stopped(thread, signal),
            libc::PTRACE_EVENT_EXEC => {
                // All other threads are gone, and this one has the number of the first.
                if let Some(former) = event_message(thread) {
                    self.end_window_of(former as pid_t);
                }
                self.end_window_of(thread);
                self.threads.insert(thread, Thread::default());
                self.resume(thread, 0);
            }
            _ => self.resume(thread, 0),
        }
        None
    }

    /// A thread of an attached process that begins, was asked to stop, or stops with its process.
    fn stopped(&mut self, thread: pid_t, signal: c_int) {
        self.threads.entry(thread).or_default();
        if matches!(
            signal,
            libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
        ) {
            self.end_window_of(thread);
            // Its process stays stopped until it is told to continue.
            let _ = ptrace(libc::PTRACE_LISTEN, thread, 0, 0);
        } else {
            self.step(thread);
        }
    }

    /// A thread that has stopped for a signal.
    fn signalled(&mut self, thread: pid_t, signal: c_int) {
        let new = Thread {
            begins: true,
            ..Thread::default()
        };
        let known = self.threads.entry(thread).or_insert(new);
        if signal == libc::SIGSTOP && known.begins {
            known.begins = false;
            return self.resume(thread, 0);
        }
        if signal == libc::SIGSTOP && known.asked > 0 {
            known.asked -= 1;
            return self.step(thread);
        }
        // A handler blocks signals.
        if matches!(&self.open, Some(open) if open.traps == Some(Traps::Handled)) {
            self.end_window_of(thread);
        }
        self.resume(thread, signal);
    }

    /// A thread has taken a step.
    fn stepped(&mut self, thread: pid_t, step: Step) {
        if step == Step::SystemCall
            && let Some(open) = self.open.as_mut().filter(|open| open.thread == thread)
        {
            open.traps = None;
        }
        self.step(thread);
    }

    /// The thread of the window stands at an instruction: that is recorded, and executed.
    fn step(&mut self, thread: pid_t) {
        let Some(open) = self.open.as_mut().filter(|open| open.thread == thread) else {
            return self.resume(thread, 0);
        };
        let at = program_counter(thread);
        let may_step = match *open.traps.get_or_insert_with(|| Traps::of(thread)) {
            Traps::Default => true,
            Traps::Handled => at.as_ref().is_ok_and(|at| keeps_mask(thread, *at)),
            Traps::Lost => false,
        };
        if !may_step {
            self.end_window_of(thread);
            return self.resume(thread, 0);
        }
        if let Ok(at) = at {
            let inside = open.ranges.iter().any(|r| (r.0..r.1).contains(&at));
            open.steps.push(if inside {
                At::Object(at.wrapping_sub(open.bias))
            } else {
                At::Elsewhere(at)
            });
        }
        open.taken += 1;
        if open.taken > self.plan.steps {
            self.end_window_of(thread);
        }
        self.resume(thread, 0);
    }

    /// Chooses a running thread of a process that has the object, and asks it to stop.
    fn begin_window(&mut self) -> bool {
        let begun = |(thread, state): (&pid_t, &Thread)| (!state.begins).then_some(*thread);
        let mut running: Vec<pid_t> = self.threads.iter().filter_map(begun).collect();
        running.retain(|thread| is_running(*thread));
        running.sort_unstable();
        while !running.is_empty() {
            let thread = running.swap_remove(self.random.below(running.len()));
            let Ok(maps) = fs::read_to_string(format!("/proc/{thread}/maps")) else {
                continue;
            };
            let found = self.object.bias(&maps, is_object(thread, self.object));
            let Some((bias, ranges)) = found else {
                continue;
            };
            if Traps::of(thread) == Traps::Lost || !self.ask(thread) {
                continue;
            }
            self.open = Some(Open {
                thread,
                bias,
                ranges,
                traps: None,
                taken: 0,
                steps: Vec::with_capacity(self.plan.steps + 1),
            });
            return true;
        }
        false
    }

    /// Asks a thread to stop. Fails where it has ended.
    fn ask(&mut self, thread: pid_t) -> bool {
        if self.root.is_none() {
            return ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0).is_ok();
        }
        // SAFETY: a system call without pointers.
        let sent = unsafe { libc::syscall(libc::SYS_tkill, thread, libc::SIGSTOP) } == 0;
        if let Some(known) = self.threads.get_mut(&thread).filter(|_| sent) {
            known.asked += 1;
        }
        sent
    }

    /// If the window is of this thread, it is complete.
    fn end_window_of(&mut self, thread: pid_t) {
        if let Some(open) = self.open.take_if(|open| open.thread == thread) {
            if open.taken > 0 {
                self.done += 1;
                (self.window)(open.steps);
            }
            self.schedule();
        }
    }
}

/// What the kernel says with an event.
fn event_message(thread: pid_t) -> Option<libc::c_ulong> {
    let mut message: libc::c_ulong = 0;
    let to: *mut libc::c_ulong = &mut message;
    // SAFETY: the pointer is valid for an unsigned long.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            thread,
            ptr::null_mut::<c_void>(),
            to,
        )
    };
    (done == 0).then_some(message)
}

/// Whether a thread is traced by the thread that asks.
fn is_traced_by_this(thread: pid_t) -> bool {
    // SAFETY: a system call without pointers.
    let own = unsafe { libc::syscall(libc::SYS_gettid) };
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.and_then(|id| id.trim().parse().ok()) == Some(own)
}

/// What a step of a thread does to the disposition of SIGTRAP in its process. Where the signal of a step is blocked or
/// ignored when it comes, the kernel resets it to the default, whoever traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traps {
    /// It is the default anyway.
    Default,
    /// It is a handler, which stays as long as the thread does not block the signal.
    Handled,
    /// It would be lost: the signal is ignored, or has a handler and is blocked.
    Lost,
}

impl Traps {
    fn of(thread: pid_t) -> Traps {
        let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let [caught, ignored, blocked] =
            ["SigCgt:", "SigIgn:", "SigBlk:"].map(|set| has_trap_in(&status, set).unwrap_or(true));
        match (caught, ignored || blocked) {
            (false, _) if !ignored => Traps::Default,
            (true, false) => Traps::Handled,
            _ => Traps::Lost,
        }
    }
}

/// Whether SIGTRAP is in a set of signals that the kernel shows of a thread by this name; `None` if it does not.
fn has_trap_in(status: &str, set: &str) -> Option<bool> {
    let line = status.lines().find_map(|line| line.strip_prefix(set))?;
    let set = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(set >> (libc::SIGTRAP - 1) & 1 != 0)
}

/// Whether a stopped thread will have a SIGTRAP as soon as it goes on.
fn has_pending_trap(thread: pid_t) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| has_trap_in(&status, "SigPnd:") == Some(true))
}

/// Whether the instruction at which a thread stands leaves the set of blocked signals as it is: it is no system call.
/// What cannot be read may be one.
fn keeps_mask(thread: pid_t, at: u64) -> bool {
    let Ok(word) = peek(libc::PTRACE_PEEKTEXT, thread, at as usize) else {
        return false;
    };
    let word = word.to_le_bytes();
    let is_prefix = |byte: &u8| {
        let segments_and_sizes = [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67];
        matches!(byte, 0x40..=0x4f | 0xf0 | 0xf2 | 0xf3) || segments_and_sizes.contains(byte)
    };
    let prefixes = word.iter().take_while(|byte| is_prefix(byte)).count();
    // `syscall`, `sysenter` and `int 0x80`; or nothing but prefixes.
    !matches!(
        word[prefixes..],
        [0x0f, 0x05 | 0x34, ..] | [0xcd, 0x80, ..] | [0x0f | 0xcd] | []
    )
}

/// Whether a thread runs, or could.
fn is_running(thread: pid_t) -> bool {
    let state = fs::read_to_string(format!("/proc/{thread}/stat"));
    // The state is after the name, which is in brackets and may have any character in it.
    state.is_ok_and(|text| {
        text.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('R'))
    })
}
