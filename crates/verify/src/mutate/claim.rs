//! Writing a claim: what [`Claim::parse`] reads, so that a fault can be put into it.

use crate::files::bytes::put_sleb;
use crate::files::claim::{Basis, Claim, Moved};

impl Claim<'_> {
    /// Writes a note's contents; the inverse of [`Claim::parse`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let version = 1 + u8::from(self.basis.is_some());
        let mut out = vec![version, 0, 0, 0, self.kind, self.build_id.len() as u8];
        out.extend(self.build_id);
        match self.basis {
            None => {}
            Some(Basis::Dynamic) => out.extend([1, 0]),
            Some(Basis::Nothing) => out.extend([2, 0]),
        }
        uleb(&mut out, self.functions.len() as u64);
        let (mut previous, mut previous_end) = (0u64, 0u64);
        for f in &self.functions {
            uleb(&mut out, f.old_entry.get().wrapping_sub(previous));
            previous = f.old_entry.get();
            uleb(&mut out, f.old.len() as u64);
            for r in &f.old {
                put_sleb(
                    &mut out,
                    r.start.get().wrapping_sub(f.old_entry.get()) as i64,
                );
                uleb(&mut out, r.len());
            }
            let own = if f.folded.is_some() { &[] } else { &f.new[..] };
            uleb(&mut out, own.len() as u64);
            for r in own {
                put_sleb(&mut out, r.start.get().wrapping_sub(previous_end) as i64);
                uleb(&mut out, r.len());
                previous_end = r.end.get();
            }
            if let Some(into) = f.folded {
                let distance = into.get().wrapping_sub(f.old_entry.get());
                put_sleb(&mut out, distance as i64);
            }
            uleb(&mut out, f.labels.len() as u64);
            for &(old, new) in &f.labels {
                put_sleb(&mut out, old.get().wrapping_sub(f.old_entry.get()) as i64);
                put_sleb(&mut out, new.get().wrapping_sub(f.new_entry().get()) as i64);
            }
            if self.basis.is_some() {
                out.push(2 * u8::from(f.jumps));
                tables(&mut out, f);
                uleb(&mut out, f.falls_back.len() as u64);
                let mut before = None;
                for &at in &f.falls_back {
                    match before {
                        None => put_sleb(&mut out, at.get().wrapping_sub(f.old_entry.get()) as i64),
                        Some(before) => uleb(&mut out, at - before),
                    }
                    before = Some(at);
                }
            }
        }
        out
    }
}

/// Appends what is claimed of a function's own jump tables.
fn tables(out: &mut Vec<u8>, f: &Moved) {
    let (entry, start) = (f.old_entry.get(), f.new_entry().get());
    let difference = |out: &mut Vec<u8>, a: u64, b: u64| put_sleb(out, a.wrapping_sub(b) as i64);
    uleb(out, f.tables.len() as u64);
    let mut before = f.new.first().map_or(0, |r| r.end.get());
    for t in &f.tables {
        difference(out, t.load.0.get(), entry);
        difference(out, t.load.1.get(), start);
        difference(out, t.old.get(), entry);
        if t.wide {
            out.push(0)
        } else {
            difference(out, t.base, t.old.get())
        }
        difference(out, t.new.get(), before);
        uleb(out, t.entries);
        out.push(u8::from(t.guarded) | u8::from(t.wide) << 1);
        before = t.range().end;
    }
}

/// Appends unsigned LEB128.
fn uleb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
