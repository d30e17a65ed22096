//! Which binary, and which counters of it, a profile belongs to.
//!
//! Counts mean something only together with the input binary (its [`Identity`]) and with the map from
//! counters to edges that the instrumenting run made (its [`Digest`]). Together with the two table sizes they
//! are the [`Subject`]; profiles merge exactly when their subjects are equal.

use std::fmt;

/// How a binary was identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdentityKind {
    /// The contents of its GNU build-id note.
    BuildId,
    /// A hash of the file; for binaries without the note.
    ContentHash,
}

/// A binary, by 1 to 32 bytes that are as good as unique.
///
/// Displayed in lower-case hexadecimal, a content hash with `content:` before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    kind: IdentityKind,
    len: u8,
    /// Zero from `len` on.
    bytes: [u8; Identity::MAX],
}

impl Identity {
    /// Longest identity in bytes.
    pub const MAX: usize = 32;

    /// From the bytes of one kind. `None` if there are none, or more than [`Identity::MAX`].
    pub fn new(kind: IdentityKind, bytes: &[u8]) -> Option<Identity> {
        if bytes.is_empty() || bytes.len() > Identity::MAX {
            return None;
        }
        let mut all = [0; Identity::MAX];
        all[..bytes.len()].copy_from_slice(bytes);
        Some(Identity {
            kind,
            len: bytes.len() as u8,
            bytes: all,
        })
    }

    /// From the descriptor of a build-id note. `None` if it is empty or longer than 32 bytes: then use
    /// [`Identity::of_contents`].
    pub fn from_build_id(id: &[u8]) -> Option<Identity> {
        Identity::new(IdentityKind::BuildId, id)
    }

    /// From the contents of a file without a build-id: its XXH3 hash of 128 bits, most significant byte first.
    pub fn of_contents(contents: &[u8]) -> Identity {
        let hash = xxhash_rust::xxh3::xxh3_128(contents).to_be_bytes();
        let mut bytes = [0; Identity::MAX];
        bytes[..hash.len()].copy_from_slice(&hash);
        Identity {
            kind: IdentityKind::ContentHash,
            len: hash.len() as u8,
            bytes,
        }
    }

    /// What the bytes are.
    pub fn kind(&self) -> IdentityKind {
        self.kind
    }

    /// The bytes, 1 to 32 of them.
    pub fn bytes(&self) -> &[u8] {
        // `len` is at most MAX by construction.
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes in hexadecimal, whatever the kind.
    pub fn hex(&self) -> String {
        postlink_bytes::hex(self.bytes())
    }

    /// Length of the fixed form in which files store an identity: see [`Identity::encode`].
    pub(crate) const ENCODED: usize = 40;

    /// The fixed form: the bytes, zero padded to 32; their number; 0 for a build-id, 1 for a content hash; six zeros.
    pub(crate) fn encode(&self) -> [u8; Identity::ENCODED] {
        let mut out = [0; Identity::ENCODED];
        out[..32].copy_from_slice(&self.bytes);
        out[32] = self.len;
        out[33] = match self.kind {
            IdentityKind::BuildId => 0,
            IdentityKind::ContentHash => 1,
        };
        out
    }

    /// Reads the fixed form. The error is the offset in it and a sentence.
    pub(crate) fn decode(bytes: &[u8; Identity::ENCODED]) -> Result<Identity, (u64, String)> {
        let len = usize::from(bytes[32]);
        let kind = match bytes[33] {
            0 => IdentityKind::BuildId,
            1 => IdentityKind::ContentHash,
            other => {
                return Err((
                    33,
                    format!(
                        "kind of identity is {other}, must be 0 (build-id) or 1 (content hash)"
                    ),
                ));
            }
        };
        let identity = (len <= Identity::MAX)
            .then(|| Identity::new(kind, &bytes[..len]))
            .flatten()
            .ok_or_else(|| {
                (
                    32,
                    format!(
                        "length of the identity is {len}, must be 1 to {}",
                        Identity::MAX
                    ),
                )
            })?;
        if let Some(at) = (len..32).chain(34..40).find(|&at| bytes[at] != 0) {
            return Err((
                at as u64,
                format!("padding byte is {:#04x}, must be 0", bytes[at]),
            ));
        }
        Ok(identity)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            IdentityKind::BuildId => f.pad(&self.hex()),
            IdentityKind::ContentHash => f.pad(&format!("content:{}", self.hex())),
        }
    }
}

/// Digest of the map from counters to edges: two instrumentations of one binary have the same counters
/// exactly if it is equal. What it covers (how many counters each function has, and the version of where they are) is
/// chosen by who makes the map: `postlink_rewrite::analyse::prepare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What the counts of a profile belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The binary before instrumentation.
    pub identity: Identity,
    /// The counter map.
    pub digest: Digest,
    /// Number of counters.
    pub counters: u64,
    /// Number of call-site tables.
    pub sites: u64,
}

impl Subject {
    /// Most counters that a profile may have (8 GiB of them); more is taken for a damaged header.
    pub const MAX_COUNTERS: u64 = 1 << 30;
    /// Most call-site tables (4 GiB of them).
    pub const MAX_SITES: u64 = 1 << 26;

    /// Length of the fixed form in which both file formats store a subject: see [`Subject::encode`].
    pub const ENCODED: usize = 64;

    /// The fixed form, little-endian:
    ///
    /// | offset | size | |
    /// |---|---|---|
    /// | 0 | 32 | identity, zero padded |
    /// | 32 | 1 | length of the identity |
    /// | 33 | 1 | its kind: 0 build-id, 1 content hash |
    /// | 34 | 6 | zero |
    /// | 40 | 8 | digest of the counter map |
    /// | 48 | 8 | number of counters |
    /// | 56 | 8 | number of call-site tables |
    pub fn encode(&self) -> [u8; Subject::ENCODED] {
        let mut out = [0; Subject::ENCODED];
        out[..Identity::ENCODED].copy_from_slice(&self.identity.encode());
        out[40..48].copy_from_slice(&self.digest.0.to_le_bytes());
        out[48..56].copy_from_slice(&self.counters.to_le_bytes());
        out[56..].copy_from_slice(&self.sites.to_le_bytes());
        out
    }

    /// Reads the fixed form. The error is the offset in it and a sentence.
    pub fn decode(bytes: &[u8; Subject::ENCODED]) -> Result<Subject, (u64, String)> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]); // `at` is one of the constants below, at most 56
            u64::from_le_bytes(word)
        };
        let mut own = [0; Identity::ENCODED];
        own.copy_from_slice(&bytes[..Identity::ENCODED]);
        let identity = Identity::decode(&own)?;
        let subject = Subject {
            identity,
            digest: Digest(word(40)),
            counters: word(48),
            sites: word(56),
        };
        if subject.counters > Subject::MAX_COUNTERS {
            return Err((
                48,
                format!(
                    "{} counters, at most {} are possible",
                    subject.counters,
                    Subject::MAX_COUNTERS
                ),
            ));
        }
        if subject.sites > Subject::MAX_SITES {
            return Err((
                56,
                format!(
                    "{} call-site tables, at most {} are possible",
                    subject.sites,
                    Subject::MAX_SITES
                ),
            ));
        }
        Ok(subject)
    }

    /// What two subjects disagree about: its name and both values. `None` when they are equal.
    pub fn difference(&self, other: &Subject) -> Option<(&'static str, String, String)> {
        if self.identity != other.identity {
            Some((
                "the profiled binary is",
                self.identity.to_string(),
                other.identity.to_string(),
            ))
        } else if self.digest != other.digest {
            Some((
                "the digest of the counter map is",
                self.digest.to_string(),
                other.digest.to_string(),
            ))
        } else if self.counters != other.counters {
            Some((
                "the number of counters is",
                self.counters.to_string(),
                other.counters.to_string(),
            ))
        } else if self.sites != other.sites {
            Some((
                "the number of call-site tables is",
                self.sites.to_string(),
                other.sites.to_string(),
            ))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_display_as_hexadecimal() {
        let id = Identity::from_build_id(&[0xde, 0xad, 0x01]).unwrap();
        assert_eq!(id.to_string(), "dead01");
        assert!(
            Identity::of_contents(b"x")
                .to_string()
                .starts_with("content:")
        );
        assert_eq!(Identity::of_contents(b"x").hex().len(), 32);
    }

    #[test]
    fn identities_that_do_not_fit_are_refused() {
        assert!(Identity::from_build_id(&[]).is_none());
        assert!(Identity::from_build_id(&[1; 33]).is_none());
        assert!(Identity::from_build_id(&[1; 32]).is_some());
    }

    #[test]
    fn subjects_survive_their_fixed_form_and_any_other_bytes_are_no_panic() {
        arbtest::arbtest(|u| {
            let mut bytes: [u8; Subject::ENCODED] = u.arbitrary()?;
            if u.ratio(3, 4)? {
                bytes[32] %= 34;
                bytes[33] %= 3;
                bytes[34..40].fill(0);
                bytes[51..56].fill(0);
                bytes[58..64].fill(0);
                let len = usize::from(bytes[32]);
                if len < 32 {
                    bytes[len..32].fill(0);
                }
            }
            if let Ok(subject) = Subject::decode(&bytes) {
                assert_eq!(subject.encode(), bytes);
            }
            Ok(())
        });
    }
}
