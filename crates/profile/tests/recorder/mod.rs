//! Recordings written byte by byte, as the kernel's and perf's documents describe `perf.data`, and complete
//! enough that perf reads them as its own: for samples of processors that are not at hand.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

pub const IP: u64 = 1;
pub const TID: u64 = 1 << 1;
pub const TIME: u64 = 1 << 2;
pub const CPU: u64 = 1 << 7;
pub const BRANCH_STACK: u64 = 1 << 11;
pub const IDENTIFIER: u64 = 1 << 16;

/// Branch fields of an attribute.
pub const BRANCH_USER: u64 = 1;
pub const BRANCH_ANY: u64 = 1 << 3;
pub const BRANCH_TYPE_SAVE: u64 = 1 << 16;
pub const BRANCH_HW_INDEX: u64 = 1 << 17;
pub const BRANCH_PRIV_SAVE: u64 = 1 << 18;
pub const BRANCH_COUNTERS: u64 = 1 << 19;

/// The id of the only event.
const ID: u64 = 77;
/// The kind that the kernel gave the driver of Arm SPE.
const SPE_PMU: u32 = 9;
/// A timer of 25 MHz: 40 ns a tick.
const SHIFT: u64 = 24;
const FACTOR: u64 = 40 << SHIFT;

/// A branch of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    pub from: u64,
    pub to: u64,
    pub flags: u64,
}

/// What an event is.
pub struct Event {
    pub name: &'static str,
    pub pmu: u32,
    pub config: u64,
    pub sample_type: u64,
    pub branch_type: u64,
}

impl Event {
    /// User-space branch stacks with these extra branch fields.
    pub fn stacks(extra: u64) -> Event {
        Event {
            name: "cycles:u",
            pmu: 0,
            config: 0,
            sample_type: IP | TID | TIME | CPU | BRANCH_STACK | IDENTIFIER,
            branch_type: BRANCH_USER | BRANCH_ANY | extra,
        }
    }

    /// Arm SPE.
    pub fn spe() -> Event {
        Event {
            name: "arm_spe/branch_filter=1/u",
            pmu: SPE_PMU,
            config: 1,
            sample_type: IP | TID | TIME | CPU | IDENTIFIER,
            branch_type: 0,
        }
    }

    fn attribute(&self) -> Vec<u8> {
        let mut out = vec![0; 128];
        out[..4].copy_from_slice(&self.pmu.to_le_bytes());
        out[4] = 128;
        out[8..16].copy_from_slice(&self.config.to_le_bytes());
        out[16] = 1; // period
        out[24..32].copy_from_slice(&self.sample_type.to_le_bytes());
        out[32] = 4; // counters: id
        // Not in the kernel, mappings, names, tasks, mappings with build-ids or inodes, identification everywhere.
        let flags: u64 = 1 << 5 | 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23;
        out[40..48].copy_from_slice(&flags.to_le_bytes());
        out[72..80].copy_from_slice(&self.branch_type.to_le_bytes());
        out
    }
}

/// Builds a recording.
pub struct Recorder {
    event: Event,
    arch: &'static str,
    records: Vec<u8>,
}

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn padded(text: &str) -> Vec<u8> {
    let mut out = text.as_bytes().to_vec();
    out.push(0);
    out.resize(out.len().next_multiple_of(8), 0);
    out
}

impl Recorder {
    pub fn new(event: Event, arch: &'static str) -> Recorder {
        Recorder {
            event,
            arch,
            records: Vec::new(),
        }
    }

    pub fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        let size = u16::try_from(8 + body.len()).expect("a record has less than 64 KiB");
        self.records.extend(kind.to_le_bytes());
        self.records.extend(misc.to_le_bytes());
        self.records.extend(size.to_le_bytes());
        self.records.extend(body);
    }

    /// Process, thread, time, processor, event at the end of records that are no samples.
    fn identification(&self, pid: u32, tid: u32, time: u64) -> Vec<u8> {
        let mut out = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        out.extend(words(&[time, 0, ID]));
        out
    }

    /// A process begins to run a program that is mapped from `offset` of the file on.
    pub fn runs(&mut self, pid: u32, path: &str, start: u64, len: u64, offset: u64, time: u64) {
        let ids = [pid.to_le_bytes(), pid.to_le_bytes()].concat();
        let mut name = ids.clone();
        name.extend(padded("program"));
        name.extend(self.identification(pid, pid, time));
        self.record(3, 1 << 13, &name);
        let mut map = ids;
        map.extend(words(&[start, len, offset]));
        map.extend([8, 0, 0, 0, 1, 0, 0, 0]); // device
        map.extend(words(&[1234, 0]));
        map.extend([5, 0, 0, 0, 2, 0, 0, 0]); // protection, flags
        map.extend(padded(path));
        map.extend(self.identification(pid, pid, time));
        self.record(10, 2, &map);
    }

    /// A sample with a branch stack, newest first; `counters` are those of [`BRANCH_COUNTERS`].
    pub fn stack(&mut self, pid: u32, time: u64, ip: u64, branches: &[Branch], counters: &[u64]) {
        let mut body = words(&[ID, ip]);
        body.extend([pid.to_le_bytes(), pid.to_le_bytes()].concat());
        body.extend(words(&[time, 0, branches.len() as u64]));
        if self.event.branch_type & BRANCH_HW_INDEX != 0 {
            body.extend(words(&[u64::MAX]));
        }
        for branch in branches {
            body.extend(words(&[branch.from, branch.to, branch.flags]));
        }
        body.extend(words(counters));
        self.record(9, 2, &body);
    }

    /// What Arm SPE puts at the start of a recording: what it is, and its clock.
    pub fn spe_header(&mut self) {
        let mut info = words(&[4]);
        info.extend(words(&[u64::from(SPE_PMU), 0]));
        self.record(70, 0, &info);
        self.record(79, 0, &words(&[SHIFT, FACTOR, 0, 0, 0, 1]));
    }

    /// A buffer of trace data of a thread, or of a processor.
    pub fn trace(&mut self, thread: Option<u32>, processor: u32, offset: u64, data: &[u8]) {
        let mut aux = words(&[offset, data.len() as u64, 0]);
        aux.extend(self.identification(thread.unwrap_or(0), thread.unwrap_or(0), 1));
        self.record(11, 0, &aux);
        let mut body = words(&[data.len() as u64, offset, 0]);
        let numbers = [
            0,
            thread.unwrap_or(u32::MAX),
            thread.map_or(processor, |_| u32::MAX),
            0,
        ];
        body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.record(71, 0, &body);
        self.records.extend(data);
    }

    /// The end of a process, so that perf goes through the trace up to here.
    pub fn exits(&mut self, pid: u32, time: u64) {
        let mut body: Vec<u8> = [pid, 1, pid, 1]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        body.extend(words(&[time]));
        body.extend(self.identification(pid, pid, time));
        self.record(4, 0, &body);
    }

    /// The file. With `pipe` as `perf record -o -` writes it.
    pub fn finish(&self, pipe: bool) -> Vec<u8> {
        if pipe {
            self.piped()
        } else {
            self.with_features(&[])
        }
    }

    /// The file with more features than perf knows, from number 128 on.
    pub fn with_features(&self, more: &[&[u8]]) -> Vec<u8> {
        const HEADER: u64 = 104;
        let mut out = b"PERFILE2".to_vec();
        let attributes = HEADER + 8;
        let data = attributes + 128 + 16;
        out.extend(words(&[
            HEADER,
            128 + 16,
            attributes,
            128 + 16,
            data,
            self.records.len() as u64,
            0,
            0,
        ]));
        // Which features: architecture (6), processor (8: count, 11: name), names of events (12).
        let features: u64 = 1 << 6 | 1 << 8 | 1 << 11 | 1 << 12;
        out.extend(words(&[features, 0, (1 << more.len()) - 1, 0]));
        out.extend(words(&[ID]));
        out.extend(self.event.attribute());
        out.extend(words(&[HEADER, 8]));
        out.extend(&self.records);
        let text = |text: &str| {
            let bytes = padded(text);
            [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
        };
        let mut names = [1u32.to_le_bytes(), 128u32.to_le_bytes()].concat();
        names.extend(self.event.attribute());
        names.extend(1u32.to_le_bytes());
        names.extend(text(self.event.name));
        names.extend(words(&[ID]));
        let processors = [4u32.to_le_bytes(), 4u32.to_le_bytes()].concat();
        let mut sections = vec![text(self.arch), processors, text("0x410fd0c0"), names];
        sections.extend(more.iter().map(|section| section.to_vec()));
        let mut at = out.len() as u64 + 16 * sections.len() as u64;
        for section in &sections {
            out.extend(words(&[at, section.len() as u64]));
            at += section.len() as u64;
        }
        out.extend(sections.concat());
        out
    }

    fn piped(&self) -> Vec<u8> {
        let mut other = Recorder::new(Event::stacks(0), self.arch);
        other.record(
            64,
            0,
            &[self.event.attribute(), ID.to_le_bytes().to_vec()].concat(),
        );
        let mut out = b"PERFILE2".to_vec();
        out.extend(words(&[16]));
        out.extend(&other.records);
        out.extend(&self.records);
        out
    }
}

/// An operation that Arm SPE picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picked {
    pub pc: u64,
    pub branch: bool,
    pub target: Option<u64>,
    pub previous: Option<u64>,
    pub not_taken: bool,
    pub mispredicted: bool,
    pub thread: Option<u32>,
    /// Nanoseconds.
    pub time: Option<u64>,
}

impl Picked {
    /// Its packets, in the order in which processors write them, in 64 bytes.
    pub fn packets(&self) -> Vec<u8> {
        let address = |index: u8, value: u64| {
            let value = value & (u64::MAX >> 8) | 1 << 63;
            [&[0xb0 | index][..], &value.to_le_bytes()].concat()
        };
        let mut out = address(0, self.pc);
        if let Some(thread) = self.thread {
            out.push(0x64);
            out.extend(thread.to_le_bytes());
            out[9] = 0x64 | 0x01; // EL2
        }
        let class = if self.branch { 0x4a } else { 0x48 };
        out.extend([class, 0x01]);
        let events = 1 << 1 | u16::from(self.not_taken) << 6 | u16::from(self.mispredicted) << 7;
        out.push(0x52);
        out.extend(events.to_le_bytes());
        out.extend([0x99, 3, 0, 0x98, 20, 0]);
        if let Some(target) = self.target {
            out.extend(address(1, target));
        }
        if let Some(previous) = self.previous {
            out.extend(address(4, previous));
        }
        match self.time {
            Some(time) => {
                out.push(0x71);
                out.extend((time / 40).to_le_bytes());
            }
            None => out.push(1),
        }
        out.resize(out.len().next_multiple_of(64), 0);
        out
    }

    /// The line that `perf script -F pid,brstack --itrace=bl` prints for a branch.
    pub fn line(&self, pid: u32) -> String {
        let side = |flag: bool, yes: &'static str, no: &'static str| if flag { yes } else { no };
        let mut out = format!(
            " {pid} {:#x}/{:#x}/{}{}/-/-/20/COND/- ",
            self.pc,
            self.target.unwrap_or(0),
            side(self.mispredicted, "M", "P"),
            side(self.not_taken, "N", ""),
        );
        if let Some(previous) = self.previous {
            out += &format!(" 0x0/{previous:#x}/-/-/-/0/-/- ");
        }
        out
    }
}
