//! The stream of records that the plugin writes (`plugin.c` has the format), read.

use std::io::{ErrorKind, Read};

use anyhow::{Context, Result, bail};

/// How control reached an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// By a call.
    Call,
    /// By a return.
    Return,
    /// By an indirect jump.
    Jump,
    /// In another way: a signal, the start of the program, a direct jump out of the module.
    Other,
}

/// A call, a return, an indirect jump, or a step over the module's border. All addresses are run-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// How control came.
    pub kind: Kind,
    /// The last instruction before.
    pub last: u64,
    /// What follows that instruction: the return address, if it is a call.
    pub end: u64,
    /// Where control arrived.
    pub to: u64,
    /// Where control really went first, if an inserted routine led it on; 0 if none did. (Not told by the plugin.)
    pub via: u64,
    /// It enters what is not looked into. (Not told by the plugin either.)
    pub skipped: bool,
    /// It leaves that. (Not told by the plugin either.)
    pub unwound: bool,
    /// The word of the linkage table by which it calls, link-time address; 0 if it calls by none. (Nor is this told.)
    pub slot: u64,
    /// Program headers were read since the event before. (Nor is this.)
    pub headers: bool,
    /// The general registers there: `rax rcx rdx rbx rsp rbp rsi rdi r8…r15`, or `x0…x30 sp`.
    pub registers: [u64; 32],
}

/// A store or a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The instruction.
    pub pc: u64,
    /// The memory.
    pub address: u64,
    /// What is there now.
    pub value: u64,
    /// Bytes, 1 to 8; longer ones come in parts.
    pub size: u8,
    /// A load.
    pub load: bool,
    /// Of a vector register, if that is known.
    pub vector: bool,
    /// By an indirect call or jump, of its target.
    pub target: bool,
    /// By an instruction that reads and writes at once, for other threads.
    pub atomic: bool,
}

/// Which file a system call opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// None, or another.
    Other,
    /// The system's list of the process's mappings.
    Mappings,
    /// The file that is compared.
    Module,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Which one.
    pub number: u32,
    /// After its instruction.
    pub pc: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// What it opens, if that is of interest.
    pub opens: Opens,
}

/// What the plugin tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first instruction of the process.
    Start {
        /// AArch64, or else x86-64.
        aarch64: bool,
        /// The stack pointer.
        sp: u64,
        /// The bytes that `AT_RANDOM` leads to.
        random: [u64; 2],
        /// Words on the stack, to the end of the auxiliary vector.
        stack: Vec<u64>,
    },
    /// Where the module's first segment is.
    Module(u64),
    /// Control went on elsewhere.
    Event(Box<Event>),
    /// The module wrote to memory, or read it.
    Access(Access),
    /// A system call, of the module or not.
    System(System),
    /// A system call came back: number, result.
    Result(u32, u64),
    /// The stack pointer, where control came to an inserted part without an event. A signal that arrives within
    /// the module does, and its handler may have a stack of its own.
    Stack(u64),
    /// Parts that are not looked into used the stack from the first address to the second.
    Left(u64, u64),
    /// The highest stack pointer since the last event, if it is above that of this event and the one that follows.
    Highest(u64),
    /// A second thread began.
    Thread,
    /// The process ended in an orderly way.
    End,
}

/// Reads records one by one.
pub struct Records<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Records<R> {
    /// Reads from the plugin's file.
    pub fn new(from: R) -> Records<R> {
        Records {
            from,
            buffer: vec![0; 1 << 20],
            start: 0,
            end: 0,
        }
    }

    /// Makes at least so many bytes available; `false` if the stream ends before.
    fn fill(&mut self, bytes: usize) -> Result<bool> {
        if self.end - self.start >= bytes {
            return Ok(true);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < bytes {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(n) => self.end += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error).context("the plugin's records"),
            }
        }
        Ok(true)
    }

    /// The next one; `None` if the stream ends, which it does in mid-record if the process is killed.
    pub fn next(&mut self) -> Result<Option<Record>> {
        if !self.fill(8)? {
            return Ok(None);
        }
        let word = |buffer: &[u8], at: usize| -> u64 {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buffer[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let head = word(&self.buffer, self.start);
        let count = (head >> 8 & 0xffff) as usize;
        if !self.fill(8 + 8 * count)? {
            return Ok(None);
        }
        let at = self.start + 8;
        self.start += 8 + 8 * count;
        let buffer = &self.buffer;
        let words = |i: usize| word(buffer, at + 8 * i);
        let value = (head >> 32) as u32;
        Ok(Some(match (head & 0xff, count) {
            (1, 3..) => Record::Start {
                aarch64: value == 1,
                sp: words(0),
                random: [words(1), words(2)],
                stack: (3..count).map(words).collect(),
            },
            (2, 1) => Record::Module(words(0)),
            (3, 19 | 35) => {
                let mut registers = [0; 32];
                for (i, register) in registers[..count - 3].iter_mut().enumerate() {
                    *register = words(3 + i);
                }
                Record::Event(Box::new(Event {
                    kind: match value {
                        1 => Kind::Call,
                        2 => Kind::Return,
                        3 => Kind::Jump,
                        _ => Kind::Other,
                    },
                    last: words(0),
                    end: words(1),
                    to: words(2),
                    via: 0,
                    skipped: false,
                    unwound: false,
                    slot: 0,
                    headers: false,
                    registers,
                }))
            }
            (4 | 9, 3) => Record::Access(Access {
                pc: words(0),
                address: words(1),
                value: words(2),
                size: value as u8,
                load: head & 0xff == 9,
                vector: value & 256 != 0,
                target: value & 512 != 0,
                atomic: value & 1024 != 0,
            }),
            (5, 8) => Record::System(System {
                number: value,
                pc: words(0),
                arguments: std::array::from_fn(|i| words(1 + i)),
                opens: match words(7) {
                    1 => Opens::Mappings,
                    2 => Opens::Module,
                    _ => Opens::Other,
                },
            }),
            (6, 1) => Record::Result(value, words(0)),
            (7, 0) => Record::Thread,
            (8, 0) => Record::End,
            (10, 1) => Record::Stack(words(0)),
            (11, 2) => Record::Left(words(0), words(1)),
            (12, 1) => Record::Highest(words(0)),
            (kind, count) => bail!("the plugin wrote a record of kind {kind} with {count} words"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn records_are_read_as_the_plugin_writes_them() {
        let mut event = vec![3 | 19 << 8 | 2 << 32, 0x10, 0x12, 0x20];
        event.extend(100..116);
        let stream = [
            vec![1 | 5 << 8 | 1 << 32, 0x7000, 1, 2, 3, 4],
            event,
            vec![4 | 3 << 8 | 8 << 32, 0x10, 0x20, 0x30],
            vec![8],
            vec![4 | 3 << 8],
        ];
        let stream = bytes(&stream.concat());
        let mut records = Records::new(&stream[..]);
        assert_eq!(
            records.next().unwrap(),
            Some(Record::Start {
                aarch64: true,
                sp: 0x7000,
                random: [1, 2],
                stack: vec![3, 4]
            })
        );
        let Some(Record::Event(event)) = records.next().unwrap() else {
            panic!("an event")
        };
        assert_eq!(
            (event.kind, event.last, event.end, event.to),
            (Kind::Return, 0x10, 0x12, 0x20)
        );
        assert_eq!((event.registers[0], event.registers[15]), (100, 115));
        assert!(matches!(
            records.next().unwrap(),
            Some(Record::Access(Access {
                pc: 0x10,
                address: 0x20,
                value: 0x30,
                size: 8,
                load: false,
                vector: false,
                target: false,
                atomic: false,
            }))
        ));
        assert_eq!(records.next().unwrap(), Some(Record::End));
        // What is cut off was being written when the process was killed.
        assert_eq!(records.next().unwrap(), None);
    }

    #[test]
    fn an_unknown_record_is_an_error() {
        let stream = bytes(&[77 | 1 << 8, 0]);
        assert!(Records::new(&stream[..]).next().is_err());
    }
}
