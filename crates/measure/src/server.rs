//! One run of a server: started, waited for, put under load, stopped.
//!
//! | taken | of what |
//! |---|---|
//! | wall time | the load command, from its start to its end |
//! | processor time, page faults | all processes of the server's process group, from the start of the load to its end |
//! | peak memory | the largest of these processes, from its start to the end of the load |
//! | hardware counters | the whole life of the server: the kernel adds them up when it ends |
//!
//! Each run has a server of its own, so what one run leaves behind does not help the next. A process that leaves the
//! group, as daemons do, is neither seen nor stopped: such servers have to be told to stay in the foreground.

use std::fs;
use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::counters::{Counters, Values};
use crate::interrupt;
use crate::run::{Run, ending, run_with};

/// How often it is looked whether a server is ready, or has ended.
const POLL: Duration = Duration::from_millis(10);
/// Time between the polite and the impolite request to end.
const GRACE: Duration = Duration::from_secs(10);
/// How long the end of a server's output is waited for when it has ended: a process that it left behind may hold the
/// pipe for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How much of what a server says is kept for messages.
const SAID: usize = 4096;

/// How a server is known to be ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// `tcp:PORT` or `tcp:HOST:PORT`: it accepts connections.
    Tcp(String),
    /// `text:WORDS`: it has written these.
    Text(String),
    /// Anything else: a shell command that succeeds.
    Command(String),
}

impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Ready, String> {
        if let Some(place) = text.strip_prefix("tcp:") {
            let (host, port) = place.rsplit_once(':').unwrap_or(("127.0.0.1", place));
            return match port.parse::<u16>() {
                Ok(1..) if !host.is_empty() => Ok(Ready::Tcp(format!("{host}:{port}"))),
                _ => Err(format!(
                    "'{place}' is no port: tcp:PORT or tcp:HOST:PORT is needed, with a port from 1 to 65535"
                )),
            };
        }
        match text.strip_prefix("text:") {
            Some("") => Err("text: needs the text that the server writes".to_owned()),
            Some(words) => Ok(Ready::Text(words.to_owned())),
            None if text.trim().is_empty() => Err("a command is needed".to_owned()),
            None => Ok(Ready::Command(text.to_owned())),
        }
    }
}

/// Why a run was not possible.
#[derive(Debug, Error)]
pub enum ServerError {
    /// It cannot be started.
    #[error("the server cannot be started: {0}")]
    Start(#[source] io::Error),
    /// It ended by itself.
    #[error("the server {what} before {before}{}", quote(.said))]
    Ended {
        /// How it ended.
        what: String,
        /// What should have happened first.
        before: &'static str,
        /// The end of what it wrote.
        said: String,
    },
    /// It never got ready.
    #[error("the server was not ready after {} s: {why}{}", .after.as_secs(), quote(.said))]
    NotReady {
        /// How long it was waited for.
        after: Duration,
        /// What was missing.
        why: String,
        /// The end of what it wrote.
        said: String,
    },
    /// The load command cannot be started.
    #[error("the load cannot be started: {0}")]
    StartLoad(#[source] io::Error),
    /// The load command failed.
    #[error("the load {what}{}", quote(.said))]
    Load {
        /// How it ended.
        what: String,
        /// The end of what the server wrote.
        said: String,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

fn quote(said: &str) -> String {
    let said = said.trim();
    match said.lines().last() {
        Some(line) => format!("; it said: {line}"),
        None => String::new(),
    }
}

/// What a run of a server is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How it is known to be ready.
    pub ready: Ready,
    /// How long it may take to be.
    pub patience: Duration,
    /// Loads in front of the one that counts.
    pub warm_up: u32,
}

/// Runs a server under load.
pub fn run(
    plan: &Plan,
    server: &mut Command,
    mut load: impl FnMut() -> Command,
    counters: Option<&Counters>,
) -> Result<Run, ServerError> {
    let counting = counters.map(Counters::start);
    let mut server = Server::start(server)?;
    server.wait_until_ready(plan)?;
    for _ in 0..plan.warm_up {
        server.load(&mut load())?;
    }
    let before = Usage::of_group(server.group());
    let loaded = server.load(&mut load())?;
    let after = Usage::of_group(server.group());
    if let Some(status) = server.ended() {
        return Err(ServerError::Ended {
            what: ending(status),
            before: "the load did",
            said: server.said(),
        });
    }
    server.stop();
    Ok(Run {
        wall: loaded.wall,
        cpu: after.cpu.saturating_sub(before.cpu),
        peak_memory: Some(after.peak).filter(|peak| *peak > 0),
        page_faults: after.faults.saturating_sub(before.faults),
        events: match (counters, &counting) {
            (Some(counters), Some(started)) => counters.since(started),
            _ => Values::default(),
        },
        status: ExitStatus::from_raw(0),
    })
}

/// A running server. It is stopped when this goes.
struct Server {
    child: Child,
    status: Option<ExitStatus>,
    output: Arc<Mutex<Vec<u8>>>,
    /// Text to look for, and whether it came.
    found: Arc<Mutex<bool>>,
    /// How many of its pipes are still read.
    open: Arc<AtomicUsize>,
}

impl Server {
    fn start(command: &mut Command) -> Result<Server, ServerError> {
        // A group of its own: it can be stopped with all of its processes, and Ctrl-C is not for it.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().map_err(ServerError::Start)?;
        Ok(Server {
            child,
            status: None,
            output: Arc::default(),
            found: Arc::default(),
            open: Arc::default(),
        })
    }

    fn group(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    /// Reads what it writes, so that it never waits for us.
    fn listen(&mut self, wanted: Option<&str>) {
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            self.child.stdout.take().map(|pipe| Box::new(pipe) as _),
            self.child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        for mut pipe in pipes.into_iter().flatten() {
            let (output, found) = (Arc::clone(&self.output), Arc::clone(&self.found));
            let wanted = wanted.map(str::to_owned);
            let open = Arc::clone(&self.open);
            open.fetch_add(1, Ordering::Relaxed);
            // Nothing waits for these threads: a process that left the group may hold the pipe for ever.
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                // Of each pipe by itself, or words of one would be broken by the other's.
                let mut recent = Vec::new();
                while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                    if let Some(wanted) = &wanted {
                        recent.extend_from_slice(&buffer[..n]);
                        let words = wanted.as_bytes();
                        if recent.windows(words.len()).any(|window| window == words) {
                            set(&found, |found| *found = true);
                        }
                        let keep = words.len().min(recent.len());
                        recent.drain(..recent.len() - keep);
                    }
                    set(&output, |output| {
                        output.extend_from_slice(&buffer[..n]);
                        let more = output.len().saturating_sub(SAID);
                        output.drain(..more);
                    });
                }
                open.fetch_sub(1, Ordering::Release);
            });
        }
    }

    fn said(&mut self) -> String {
        // What it wrote last may still be in a pipe.
        thread::sleep(POLL);
        let deadline = Instant::now() + LAST_WORDS;
        while self.ended().is_some()
            && self.open.load(Ordering::Acquire) > 0
            && Instant::now() < deadline
        {
            thread::sleep(POLL);
        }
        let mut said = String::new();
        set(&self.output, |output| {
            said = String::from_utf8_lossy(output).into_owned();
        });
        said
    }

    /// Whether it has ended by itself.
    fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    fn wait_until_ready(&mut self, plan: &Plan) -> Result<(), ServerError> {
        let wanted = match &plan.ready {
            Ready::Text(words) => Some(words.as_str()),
            _ => None,
        };
        self.listen(wanted);
        let deadline = Instant::now() + plan.patience;
        loop {
            let why = match self.missing(&plan.ready) {
                None => return Ok(()),
                Some(why) => why,
            };
            if let Some(status) = self.ended() {
                return Err(ServerError::Ended {
                    what: ending(status),
                    before: "it was ready",
                    said: self.said(),
                });
            }
            if interrupt::was_asked() {
                return Err(ServerError::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(ServerError::NotReady {
                    after: plan.patience,
                    why,
                    said: self.said(),
                });
            }
            thread::sleep(POLL);
        }
    }

    /// What is missing until it is ready.
    fn missing(&self, ready: &Ready) -> Option<String> {
        match ready {
            Ready::Tcp(place) => {
                let refused = |error: io::Error| Some(format!("{place}: {error}"));
                let mut addresses = match place.to_socket_addrs() {
                    Ok(addresses) => addresses,
                    Err(error) => return refused(error),
                };
                let Some(address) = addresses.next() else {
                    return Some(format!("{place}: no such host"));
                };
                let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1));
                stream.err().and_then(refused)
            }
            Ready::Text(words) => {
                let mut has_come = false;
                set(&self.found, |found| has_come = *found);
                (!has_come).then(|| format!("it has not written '{words}'"))
            }
            Ready::Command(command) => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", command])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                match shell.status() {
                    Ok(status) if status.success() => None,
                    Ok(status) => Some(format!("'{command}' {}", ending(status))),
                    Err(error) => Some(format!("sh: {error}")),
                }
            }
        }
    }

    fn load(&mut self, command: &mut Command) -> Result<Run, ServerError> {
        let run = run_with(command, None).map_err(ServerError::StartLoad)?;
        if run.status.success() {
            return Ok(run);
        }
        if interrupt::was_asked() {
            return Err(ServerError::Interrupted);
        }
        Err(ServerError::Load {
            what: ending(run.status),
            said: self.said(),
        })
    }

    fn stop(&mut self) {
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + GRACE;
        while self.ended().is_none() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        // What is left of the group, too.
        self.signal(libc::SIGKILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: it takes no pointers. The group's number is that of a child; it stays taken while a process of the
        // group is there, and the child has not been waited for before the first signal.
        unsafe { libc::kill(-self.group(), signal) };
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.stop();
        }
    }
}

/// Does something with what a lock guards. A thread that panicked has left it as good as it was.
fn set<T>(lock: &Mutex<T>, with: impl FnOnce(&mut T)) {
    let mut guard = match lock.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    };
    with(&mut guard);
}

/// What the processes of a group have used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    cpu: Duration,
    faults: u64,
    /// Largest resident set of one process, in bytes.
    peak: u64,
}

impl Usage {
    /// Reads /proc. What is not there counts nothing.
    fn of_group(group: libc::pid_t) -> Usage {
        let mut usage = Usage::default();
        let Ok(entries) = fs::read_dir("/proc") else {
            return usage;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let read = |file: &str| fs::read_to_string(entry.path().join(file));
            let Some(stat) = read("stat").ok().and_then(|stat| Stat::parse(&stat)) else {
                continue;
            };
            if stat.group != group {
                continue;
            }
            let status = read("status").unwrap_or_default();
            usage.cpu += processor_time(pid).unwrap_or(stat.own) + stat.of_children;
            usage.faults = usage.faults.saturating_add(stat.faults);
            usage.peak = usage.peak.max(peak(&status));
        }
        usage
    }
}

/// What /proc/PID/stat says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    group: libc::pid_t,
    /// Page faults, also of children that were waited for.
    faults: u64,
    own: Duration,
    /// Of children that were waited for.
    of_children: Duration,
}

impl Stat {
    /// Fields are counted from 1 in proc(5); the second one, a name in brackets, may hold anything.
    fn parse(stat: &str) -> Option<Stat> {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.trim().parse::<u64>().ok();
        let times = |user, system| Some(ticks(field(user)?.saturating_add(field(system)?)));
        let faults = [10, 11, 12, 13].map(field);
        Some(Stat {
            group: fields.get(2)?.parse().ok()?,
            faults: faults.into_iter().flatten().fold(0, u64::saturating_add),
            own: times(14, 15)?,
            of_children: times(16, 17)?,
        })
    }
}

/// Clock ticks as time.
fn ticks(n: u64) -> Duration {
    // SAFETY: it takes no pointers.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let hertz = u64::try_from(hertz).unwrap_or(100).max(1);
    Duration::from_secs(n / hertz) + Duration::from_nanos(n % hertz * 1_000_000_000 / hertz)
}

/// Processor time of a process by its own clock, which is finer than ticks.
fn processor_time(pid: libc::pid_t) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: all-zero is a valid timespec, which the second call fills in; both pointers are valid.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::clock_getcpuclockid(pid, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
        {
            return None;
        }
        Some(Duration::new(
            u64::try_from(time.tv_sec).ok()?,
            u32::try_from(time.tv_nsec).ok()?,
        ))
    }
}

/// `VmHWM` of /proc/PID/status, in bytes.
fn peak(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let kilobytes: u64 = number.and_then(|n| n.parse().ok()).unwrap_or(0);
    kilobytes.saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn plan(ready: &str) -> Plan {
        Plan {
            ready: ready.parse().expect("a way to be ready"),
            patience: Duration::from_secs(20),
            warm_up: 1,
        }
    }

    #[test]
    fn ways_to_be_ready_are_told_apart() {
        let parse = |text: &str| text.parse::<Ready>();
        assert_eq!(parse("tcp:80"), Ok(Ready::Tcp("127.0.0.1:80".into())));
        assert_eq!(parse("tcp:host:80"), Ok(Ready::Tcp("host:80".into())));
        assert_eq!(parse("text:up"), Ok(Ready::Text("up".into())));
        assert_eq!(parse("curl x"), Ok(Ready::Command("curl x".into())));
        for wrong in [
            "tcp:",
            "tcp:x",
            "tcp:0",
            "tcp:70000",
            "tcp::80",
            "text:",
            " ",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_process_with_brackets_in_its_name_is_read() {
        let fields = "S 1 77 3 4 5 6 10 20 30 40 100 50 7 8 20 0";
        let stat = Stat::parse(&format!("9 (a) b ( ) {fields}")).expect("it is well formed");
        assert_eq!((stat.group, stat.faults), (77, 100));
        assert_eq!(stat.own, ticks(150));
        assert_eq!(stat.of_children, ticks(15));
        assert_eq!(Stat::parse("9 (x) S 1"), None);
        assert_eq!(Stat::parse(""), None);
        assert_eq!(peak("VmPeak: 9 kB\nVmHWM:\t     12 kB\n"), 12 << 10);
        assert_eq!(peak(""), 0);
    }

    #[test]
    fn a_server_is_loaded_and_stopped_with_all_of_its_processes() {
        let dir = std::env::temp_dir().join(format!("postlink-server-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a temporary directory");
        let [pipe, answers, pids] = ["pipe", "answers", "pids"].map(|name| dir.join(name));
        // Works for each line that it gets. A child of it sleeps. It holds both pipes open, so that neither a line nor
        // an answer is lost between two loads.
        let script = format!(
            "mkfifo {pipe} {answers}; sleep 1000 & echo $! > {pids}; exec 3<>{pipe} 4<>{answers}; echo it is up; \
             while read -r line <&3; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo did >&4; done",
            pipe = pipe.display(),
            answers = answers.display(),
            pids = pids.display(),
        );
        let load = format!(
            "echo work > {}; read -r answer < {}",
            pipe.display(),
            answers.display()
        );
        let run = run(
            &plan("text:is up"),
            &mut shell(&script),
            || shell(&load),
            None,
        )
        .expect("the server works");
        assert!(run.cpu > Duration::from_millis(2), "{:?}", run.cpu);
        assert!(run.wall >= run.cpu / 2, "{:?} {:?}", run.wall, run.cpu);
        assert!(run.peak_memory.is_some_and(|peak| peak > 100 << 10));
        let sleeper = fs::read_to_string(&pids).expect("it was written");
        thread::sleep(Duration::from_millis(50));
        let state = fs::read_to_string(format!("/proc/{}/stat", sleeper.trim()));
        let is_gone = state.map_or(true, |stat| stat.contains(") Z"));
        assert!(is_gone, "the child of the server still runs");
        fs::remove_dir_all(&dir).expect("the folder is ours");
    }

    #[test]
    fn a_server_that_fails_says_why() {
        let failed = |ready: &str, script: &str, load: &str| {
            let plan = Plan {
                patience: Duration::from_secs(1),
                ..plan(ready)
            };
            run(&plan, &mut shell(script), || shell(load), None)
                .expect_err("it fails")
                .to_string()
        };
        assert_eq!(
            failed("text:up", "echo no port >&2; exit 3", "true"),
            "the server ended with exit code 3 before it was ready; it said: no port"
        );
        let late = failed("text:up", "echo starting; sleep 5", "true");
        assert!(
            late.contains("it has not written 'up'; it said: starting"),
            "{late}"
        );
        let load = failed("true", "sleep 5", "exit 9");
        assert_eq!(load, "the load ended with exit code 9");
        let ended = failed("true", "sleep 0.3", "sleep 0.4");
        assert!(ended.contains("before the load did"), "{ended}");
        let missing = run(
            &plan("true"),
            &mut Command::new("/no/such/server"),
            || shell("true"),
            None,
        );
        assert!(matches!(missing, Err(ServerError::Start(_))));
    }

    #[test]
    fn a_port_that_accepts_is_ready() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let ready = format!("tcp:{port}");
        run(&plan(&ready), &mut shell("sleep 5"), || shell("true"), None).expect("it is ready");
        drop(listener);
        let closed = Plan {
            patience: Duration::from_millis(50),
            ..plan(&ready)
        };
        let result = run(&closed, &mut shell("sleep 5"), || shell("true"), None);
        assert!(matches!(result, Err(ServerError::NotReady { .. })));
    }
}
