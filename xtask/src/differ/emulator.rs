//! Runs a program under the emulator with the plugin.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::machine::Machine;
use super::prepare::succeed;
use crate::packages;

const PLUGIN: &str = include_str!("plugin.c");

impl Machine {
    /// The emulator's name. It is Debian's package qemu-user.
    pub fn emulator(self) -> &'static str {
        match self {
            Machine::X86 => "qemu-x86_64",
            Machine::Aarch64 => "qemu-aarch64",
        }
    }

    /// Where its libraries are, if not where the host's are.
    fn root(self) -> Option<&'static str> {
        match self {
            Machine::X86 => None,
            Machine::Aarch64 => Some("/usr/aarch64-linux-gnu"),
        }
    }

    /// Its options.
    pub fn options(self) -> Vec<&'static str> {
        self.root().map_or(Vec::new(), |root| vec!["-L", root])
    }
}

/// Why programs of a machine cannot be run here; `None` if they can.
pub fn lack(machine: Machine) -> Option<String> {
    let there = |name| packages::find_program(name).is_some();
    [
        (machine.emulator(), "qemu-user"),
        ("cc", "gcc, for the emulator's plugin"),
    ]
    .into_iter()
    .find(|(name, _)| !there(name))
    .map(|(name, package)| format!("{name} is missing (Debian package {package})"))
}

/// Compiles the plugin.
pub fn plugin(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("plugin.c"), folder.join("plugin.so"));
    fs::write(&source, PLUGIN).with_context(|| source.display().to_string())?;
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    succeed(&mut command)?;
    Ok(library)
}

/// Makes a folder for the emulator's option -L: paths are looked up there first. It has the libraries, and
/// random numbers that are always the same.
pub fn root(machine: Machine, folder: &Path) -> Result<PathBuf> {
    let root = folder.join("root");
    if root.exists() {
        return Ok(root);
    }
    fs::create_dir_all(root.join("dev")).with_context(|| root.display().to_string())?;
    if let Some(libraries) = machine.root() {
        for entry in fs::read_dir(libraries).with_context(|| libraries.to_owned())? {
            let entry = entry?;
            std::os::unix::fs::symlink(entry.path(), root.join(entry.file_name()))?;
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(1 << 20)
    .collect();
    for name in ["dev/urandom", "dev/random"] {
        fs::write(root.join(name), &bytes)?;
    }
    Ok(root)
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// For which machine.
    pub machine: Machine,
    /// See [`root`].
    pub root: &'a Path,
    /// The plugin's library.
    pub plugin: &'a Path,
    /// A folder of this run alone.
    pub private: PathBuf,
    /// The folder with the program. Both runs know it by this name, one after the other.
    pub folder: PathBuf,
    /// The program, in the folder.
    pub program: PathBuf,
    /// The file that is compared, in the folder.
    pub module: PathBuf,
    /// Further options for the plugin, each with a comma before it.
    pub parts: String,
    /// Name and arguments, the same in both runs.
    pub arguments: Vec<String>,
    /// Standard input.
    pub stdin: Option<PathBuf>,
    /// Further variables.
    pub variables: Vec<(String, String)>,
}

/// A program that runs.
pub struct Running {
    child: Child,
    records: File,
    tail: PathBuf,
    stdout: PathBuf,
}

/// How a program ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
}

impl Job<'_> {
    /// Starts it.
    pub fn start(&self) -> Result<Running> {
        let (fifo, stdout) = (self.private.join("records"), self.private.join("stdout"));
        let name = CString::new(fifo.as_os_str().as_bytes())?;
        // SAFETY: the name is a string that ends with a zero byte.
        if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
            return Err(std::io::Error::last_os_error()).context(fifo.display().to_string());
        }
        let module =
            fs::metadata(&self.module).with_context(|| self.module.display().to_string())?;
        let ready = self.private.join("ready");
        let tail = self.private.join("tail");
        let mut command = Command::new(self.machine.emulator());
        command
            .arg("-L")
            .arg(self.root)
            .args(["-seed", "1", "-U", "LD_PRELOAD", "-plugin"])
            .arg(format!(
                "{},out={},tail={},ready={},own={},module={:x}:{:x}:{}{}",
                self.plugin.display(),
                fifo.display(),
                tail.display(),
                ready.display(),
                self.module.display(),
                libc::major(module.dev()),
                libc::minor(module.dev()),
                module.ino(),
                self.parts
            ))
            .args(["-0", &self.arguments[0]])
            .arg(&self.program)
            .args(&self.arguments[1..]);
        command
            .env_clear()
            .env("LD_PRELOAD", self.plugin)
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", "/")
            .env("LC_ALL", "C")
            .envs(self.variables.iter().map(|(a, b)| (a, b)));
        command.stdin(match &self.stdin {
            Some(path) => {
                Stdio::from(File::open(path).with_context(|| path.display().to_string())?)
            }
            None => Stdio::null(),
        });
        command
            .stdout(File::create(&stdout)?)
            .stderr(File::create(self.private.join("stderr"))?);
        // Opened for both directions: so it does not wait for the plugin, which may never come.
        let both = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&fifo)?;
        // SAFETY: an open pipe of this process. A larger buffer is less waiting for each other; refusal does no harm.
        unsafe { libc::fcntl(both.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
        // Children of the program, which may go on when it has ended, must not.
        command.process_group(0);
        let child = command
            .spawn()
            .with_context(|| self.machine.emulator().to_owned())?;
        let records = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&fifo)?;
        let mut running = Running {
            child,
            records,
            tail,
            stdout,
        };
        running.wait_for_plugin()?;
        // The plugin writes or has ended by now: with its end the stream ends.
        drop(both);
        // The module has to be found before its folder gets another name. If the pipe is full the module must
        // be there, or never be.
        while !ready.exists() && running.child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(running)
    }
}

/// What the plugin had not written when the process ended: a number of words, and those.
struct Tail {
    path: PathBuf,
    left: Option<std::io::Cursor<Vec<u8>>>,
}

impl Read for Tail {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        if self.left.is_none() {
            let mut bytes = fs::read(&self.path)?;
            let mut count = [0; 8];
            if let Some(head) = bytes.get(..8) {
                count.copy_from_slice(head);
                bytes.drain(..8);
            }
            bytes.truncate((u64::from_le_bytes(count) as usize).saturating_mul(8));
            self.left = Some(std::io::Cursor::new(bytes));
        }
        match &mut self.left {
            Some(left) => left.read(to),
            None => Ok(0),
        }
    }
}

impl Running {
    /// What the plugin writes, to the end of the process.
    pub fn records(&self) -> Result<impl Read + use<>> {
        let tail = Tail {
            path: self.tail.clone(),
            left: None,
        };
        Ok(self.records.try_clone()?.chain(tail))
    }

    /// Waits until there is something to read, or the process has ended.
    fn wait_for_plugin(&mut self) -> Result<()> {
        let descriptor = self.records.as_raw_fd();
        loop {
            let mut poll = libc::pollfd {
                fd: descriptor,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid entry.
            let ready = unsafe { libc::poll(&mut poll, 1, 20) };
            if ready > 0 || self.child.try_wait()?.is_some() {
                break;
            }
        }
        // SAFETY: an open file of this process; from now on reading waits.
        unsafe { libc::fcntl(descriptor, libc::F_SETFL, 0) };
        Ok(())
    }

    /// The group of processes of the run; there is none for a child that has no such number.
    pub fn group(&self) -> Option<libc::pid_t> {
        libc::pid_t::try_from(self.child.id()).ok()
    }

    /// Waits for its end; `stop` if its output is not needed any more.
    pub fn end(mut self, stop: bool) -> Result<Ended> {
        let group = self.group();
        drop(self.records);
        if stop {
            self.child.kill()?;
        }
        let status = self.child.wait()?;
        if let Some(group) = group {
            // SAFETY: a signal to the group that the child was started in; nobody else gets its number while
            // a member is left.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        if let Some(97 | 98) = status.code() {
            bail!("the plugin does not understand this version of the emulator");
        }
        Ok(Ended {
            status,
            stdout: fs::read(&self.stdout)?,
        })
    }
}
