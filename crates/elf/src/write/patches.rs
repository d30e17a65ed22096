//! Patches of the old image: many, small, and in any order until the file is written.
//!
//! A patch is twelve bytes beside its contents, and those are together in one buffer: half a million entry jumps cost
//! what they weigh. They are sorted and merged once, when the file is written; that is also when overlapping patches
//! are found to agree or not.

use crate::addr::{InputAddr, InputOffset};
use crate::{ErrorKind, FormatError};

#[derive(Clone, Copy, Debug)]
struct Patch {
    offset: InputOffset,
    /// Where its bytes begin in the buffer.
    bytes: u32,
    len: u32,
}

/// Patches in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Patches {
    list: Vec<Patch>,
    bytes: Vec<u8>,
}

impl Patches {
    /// Adds one at an offset of the input file.
    pub fn add(&mut self, offset: InputOffset, bytes: &[u8]) -> Result<(), FormatError> {
        let (Ok(at), Ok(len)) = (u32::try_from(self.bytes.len()), u32::try_from(bytes.len()))
        else {
            return Err(FormatError::new(format!(
                "the patches of the file exceed 4 GiB at offset {offset:#x}"
            ))
            .of(ErrorKind::TooLarge)
            .at_offset(offset.get())
            .values(self.bytes.len(), u32::MAX));
        };
        if len > 0 {
            self.list.push(Patch {
                offset,
                bytes: at,
                len,
            });
            self.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Sorts and merges them. Two patches that give different bytes to one place are an error; `address` turns file
    /// offsets into link-time addresses for its sentence.
    pub fn merge(
        mut self,
        address: impl Fn(InputOffset) -> Option<InputAddr>,
    ) -> Result<Merged, FormatError> {
        self.list.sort_by_key(|p| p.offset); // stable: the output does not depend on it, but the error does
        let mut merged = Merged::default();
        for p in &self.list {
            let bytes = &self.bytes[p.bytes as usize..][..p.len as usize];
            let Some(run) = merged
                .runs
                .last_mut()
                .filter(|run| p.offset <= run.offset + run.len)
            else {
                merged.runs.push(Run {
                    offset: p.offset,
                    bytes: merged.bytes.len(),
                    len: bytes.len() as u64,
                });
                merged.bytes.extend_from_slice(bytes);
                continue;
            };
            let into = p.offset - run.offset;
            let before = &merged.bytes[run.bytes + into as usize..];
            let common = before.len().min(bytes.len());
            if let Some(i) = (0..common).find(|i| before[*i] != bytes[*i]) {
                let at = p.offset + i as u64;
                let place = match address(at) {
                    Some(a) => format!("address {a:#x}"),
                    None => format!("file offset {at:#x}"),
                };
                return Err(FormatError::new(format!(
                    "two patches disagree about the byte at {place}: {:#04x} and {:#04x}",
                    before[i], bytes[i]
                ))
                .of(ErrorKind::Mismatch)
                .at_offset(at.get())
                .values(bytes[i], before[i]));
            }
            run.len += (bytes.len() - common) as u64;
            merged.bytes.extend_from_slice(&bytes[common..]);
        }
        Ok(merged)
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    offset: InputOffset,
    bytes: usize,
    len: u64,
}

/// Patches in ascending order; none touches another.
#[derive(Debug, Default)]
pub(super) struct Merged {
    runs: Vec<Run>,
    bytes: Vec<u8>,
}

impl Merged {
    /// Whether some patch is in a range of the input.
    pub fn touch(&self, from: InputOffset, to: InputOffset) -> bool {
        self.first_after(from).is_some_and(|run| run.offset < to)
    }

    /// The offset of the first patched byte at or after `from`.
    pub fn next(&self, from: InputOffset) -> Option<InputOffset> {
        self.first_after(from).map(|run| run.offset.max(from))
    }

    fn first_after(&self, from: InputOffset) -> Option<&Run> {
        self.runs.get(
            self.runs
                .partition_point(|run| run.offset + run.len <= from),
        )
    }

    /// Applies what concerns it to a copy of the input's bytes from `from` on.
    pub fn apply(&self, from: InputOffset, copy: &mut [u8]) {
        let to = from + copy.len() as u64;
        let first = self
            .runs
            .partition_point(|run| run.offset + run.len <= from);
        for run in self.runs[first..].iter().take_while(|run| run.offset < to) {
            let (start, end) = (run.offset.max(from), (run.offset + run.len).min(to));
            let bytes =
                &self.bytes[run.bytes + (start - run.offset) as usize..][..(end - start) as usize];
            copy[(start - from) as usize..(end - from) as usize].copy_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_in_any_order_give_the_same_as_writing_them_one_by_one() {
        arbtest::arbtest(|u| {
            let mut plain = vec![0u8; 300];
            let mut patches = Patches::default();
            let mut taken = [false; 300];
            for i in 0..u.int_in_range(0..=40)? {
                let (at, len) = (u.int_in_range(0..=250usize)?, u.int_in_range(0..=50usize)?);
                let bytes: Vec<u8> = (at..at + len)
                    .map(|k| {
                        if taken[k] {
                            plain[k]
                        } else {
                            (k * 7 + i) as u8
                        }
                    })
                    .collect();
                taken[at..at + len].fill(true);
                plain[at..at + len].copy_from_slice(&bytes);
                patches.add(InputOffset::new(at as u64), &bytes).unwrap();
            }
            let merged = patches.merge(|_| None).unwrap();
            let mut whole = vec![0u8; 300];
            merged.apply(InputOffset::default(), &mut whole);
            assert_eq!(whole, plain);
            // and window by window, asking first
            let window = u.int_in_range(1..=64usize)?;
            let mut pieces = vec![0u8; 300];
            for (i, piece) in pieces.chunks_mut(window).enumerate() {
                let from = InputOffset::new((i * window) as u64);
                if merged.touch(from, from + piece.len() as u64) {
                    merged.apply(from, piece);
                }
            }
            assert_eq!(pieces, plain);
            assert_eq!(
                merged.next(InputOffset::default()).map(InputOffset::get),
                taken.iter().position(|t| *t).map(|at| at as u64)
            );
            Ok(())
        });
    }

    #[test]
    fn patches_that_disagree_are_refused_with_place_and_bytes() {
        let mut patches = Patches::default();
        patches.add(InputOffset::new(10), &[1, 2, 3, 4]).unwrap();
        patches.add(InputOffset::new(12), &[3, 9]).unwrap();
        let error = patches
            .merge(|at| Some(InputAddr::new(at.get() + 0x1000)))
            .unwrap_err();
        assert_eq!(
            error.what,
            "two patches disagree about the byte at address 0x100d: 0x04 and 0x09"
        );
    }
}
