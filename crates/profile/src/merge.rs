//! Merging any number of profile files in parallel with the memory of one profile.
//!
//! There is one sum for all threads, cut into stripes with a lock each. A thread reads its file in pieces and
//! holds the locks of the stripes that a piece touches, one after the other, only while it adds. Because
//! merging is commutative and associative the order in which threads get there does not show in the result.
//!
//! Memory: one profile, one buffer a thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::model::{self, same_subject};
use crate::raw::{Sink, out_of_memory};
use crate::{Error, Profile, Site, Subject, input, progress};

/// Counters under one lock.
const STRIPE: usize = 1 << 16;

/// A profile file and how many times it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighted {
    /// The file.
    pub path: PathBuf,
    /// At least 1.
    pub weight: u64,
}

impl Weighted {
    /// From the command-line spelling `file` or `file:weight`. A file that exists under the whole spelling is
    /// taken as it is, with weight 1.
    pub fn parse(text: &str) -> Result<Weighted, Error> {
        let plain = || Weighted {
            path: text.into(),
            weight: 1,
        };
        let Some((path, weight)) = text.rsplit_once(':') else {
            return Ok(plain());
        };
        let digits = !weight.is_empty() && weight.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || path.is_empty() || Path::new(text).exists() {
            return Ok(plain());
        }
        let wrong = |why: String| Error::Argument {
            text: text.into(),
            why,
        };
        match weight.parse() {
            Ok(0) => Err(wrong("the weight is 0: leave the file out instead".into())),
            Ok(weight) => Ok(Weighted {
                path: path.into(),
                weight,
            }),
            Err(_) => Err(wrong(format!(
                "the weight {weight} is larger than {}",
                u64::MAX
            ))),
        }
    }
}

/// The result of [`merge()`].
#[derive(Debug)]
pub struct Merged {
    /// The sum.
    pub profile: Profile,
    /// Raw profiles in which nothing was recorded yet, in the order given. They contribute nothing.
    pub skipped: Vec<PathBuf>,
}

/// Adds up profiles: raw and merged ones, in any mixture, in parallel.
///
/// Errors: a file that cannot be read; files of different binaries or counter maps; nothing recorded in any
/// of them. When several files are wrong, the error is about the first of them.
pub fn merge(inputs: &[Weighted]) -> Result<Merged, Error> {
    // The headers first: they are cheap, and a wrong file should not cost the time to read all others.
    let mut skipped = Vec::new();
    let mut used: Vec<&Weighted> = Vec::new();
    let mut first: Option<(Subject, &Path)> = None;
    for input in inputs {
        let subject = match input::open(&input.path) {
            Ok(file) => *file.subject(),
            Err(Error::NothingRecorded { path }) => {
                skipped.push(path);
                continue;
            }
            Err(e) => return Err(e),
        };
        let (expected, name) = first.get_or_insert((subject, &input.path));
        same_subject(expected, &subject, (name, &input.path))?;
        used.push(input);
    }
    let Some((subject, name)) = first else {
        return Err(Error::NoInputs {
            count: inputs.len(),
        });
    };

    let mut counters = model::zeroed(subject.counters).map_err(|e| out_of_memory(name, e))?;
    let sum = Sum {
        stripes: counters.chunks_mut(STRIPE).map(Mutex::new).collect(),
        sites: Mutex::new(BTreeMap::new()),
    };
    progress::files(used.len());
    let errors: Vec<(usize, Error)> = postlink_parallel::flat_map_range(used.len(), |i| {
        let input = &used[i];
        let mut adder = Adder {
            sum: &sum,
            weight: input.weight,
            batch: Vec::new(),
        };
        let added = input::open(&input.path).and_then(|file| {
            // Someone may have put another file there since.
            same_subject(&subject, file.subject(), (name, &input.path))?;
            file.stream(&mut adder)
        });
        adder.flush();
        progress::file_done();
        added.err().map(|e| (i, e))
    });
    progress::reset();
    if let Some((_, error)) = errors.into_iter().min_by_key(|(i, _)| *i) {
        return Err(error);
    }
    let sites = sum
        .sites
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let profile = Profile::from_parts(subject, counters, sites)
        .expect("the sum was made to the subject's sizes");
    Ok(Merged { profile, skipped })
}

/// The sum that all threads add to.
struct Sum<'a> {
    stripes: Vec<Mutex<&'a mut [u64]>>,
    sites: Mutex<BTreeMap<u64, Site>>,
}

/// One file being added.
struct Adder<'s, 'a> {
    sum: &'s Sum<'a>,
    weight: u64,
    /// Sites that wait for the lock.
    batch: Vec<(u64, Site)>,
}

impl Adder<'_, '_> {
    fn flush(&mut self) {
        // A panic while adding is impossible, and a sum would be thrown away with its thread's panic: poison
        // means nothing.
        let mut sites = self
            .sum
            .sites
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for (index, site) in self.batch.drain(..) {
            model::add_site(&mut sites, index, &site, self.weight);
        }
    }
}

impl Sink for Adder<'_, '_> {
    fn counters(&mut self, first: u64, mut counts: &[u64]) -> Result<(), Error> {
        let mut at = first as usize; // below the number of counters, which are all in memory
        while !counts.is_empty() {
            let within = at % STRIPE;
            let (now, later) = counts.split_at(counts.len().min(STRIPE - within));
            if now.iter().any(|&count| count != 0)
                && let Some(stripe) = self.sum.stripes.get(at / STRIPE)
            {
                let mut stripe = stripe
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
                if let Some(mine) = stripe.get_mut(within..) {
                    model::add_counters(mine, now, self.weight);
                }
            }
            at += now.len();
            counts = later;
        }
        Ok(())
    }

    fn site(&mut self, index: u64, site: Site) -> Result<(), Error> {
        self.batch.push((index, site));
        if self.batch.len() >= 1024 {
            self.flush();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::arbitrary_profile;
    use crate::plprof;
    use crate::raw::tests::{image, subject};
    use crate::{Digest, Identity};

    fn weighted(path: &Path, weight: u64) -> Weighted {
        Weighted {
            path: path.to_owned(),
            weight,
        }
    }

    #[test]
    fn the_merged_file_is_the_same_in_any_order_and_tree() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        arbtest::arbtest(|u| {
            let mut inputs = Vec::new();
            for i in 0..4 {
                let path = file(&format!("{i}.plprof"));
                plprof::write(&path, &arbitrary_profile(u)?).unwrap();
                inputs.push(weighted(&path, u.int_in_range(1..=3)?));
            }
            plprof::write(&file("flat"), &merge(&inputs).unwrap().profile).unwrap();
            plprof::write(
                &file("left"),
                &merge(&[inputs[3].clone(), inputs[1].clone()])
                    .unwrap()
                    .profile,
            )
            .unwrap();
            plprof::write(
                &file("right"),
                &merge(&[inputs[2].clone(), inputs[0].clone()])
                    .unwrap()
                    .profile,
            )
            .unwrap();
            let tree = merge(&[weighted(&file("right"), 1), weighted(&file("left"), 1)]).unwrap();
            plprof::write(&file("tree"), &tree.profile).unwrap();
            assert_eq!(
                std::fs::read(file("flat")).unwrap(),
                std::fs::read(file("tree")).unwrap()
            );
            Ok(())
        });
    }

    #[test]
    fn raw_files_merge_with_their_weights_and_empty_ones_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let subject = subject(200_000, 9);
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let a = write(
            "a",
            &image(
                &subject,
                &[(0, 1), (65_536, 10), (199_999, u64::MAX)],
                &[(8, [0x10, 1, 0, 0, 0, 0, 1, 0])],
            ),
        );
        let b = write(
            "b",
            &image(
                &subject,
                &[(65_536, 1), (70_000, 2), (199_999, 1)],
                &[(8, [0x20, 1, 0x10, 1, 0, 0, 0, 1])],
            ),
        );
        let empty = write("empty", &[0; 8192]);
        let merged = merge(&[weighted(&a, 3), weighted(&empty, 1), weighted(&b, 1)]).unwrap();
        assert_eq!(merged.skipped, [empty]);
        let counted: Vec<_> = merged
            .profile
            .counters()
            .iter()
            .copied()
            .enumerate()
            .filter(|c| c.1 != 0)
            .collect();
        assert_eq!(
            counted,
            [(0, 3), (65_536, 31), (70_000, 2), (199_999, u64::MAX)]
        );
        assert_eq!(
            merged.profile.sites().collect::<Vec<_>>(),
            [(8, &Site::new([(0x10, 4), (0x20, 1)], 3, 1))]
        );
        assert!(matches!(
            merge(&[weighted(&merged.skipped[0], 1)]),
            Err(Error::NoInputs { count: 1 })
        ));
    }

    #[test]
    fn files_of_different_binaries_or_maps_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, subject: &Subject| {
            let path = dir.path().join(name);
            std::fs::write(&path, image(subject, &[], &[])).unwrap();
            weighted(&path, 1)
        };
        let subject = subject(1, 0);
        let a = write("a", &subject);
        let b = write(
            "b",
            &Subject {
                identity: Identity::from_build_id(&[1, 2]).unwrap(),
                ..subject
            },
        );
        let c = write(
            "c",
            &Subject {
                digest: Digest(9),
                ..subject
            },
        );
        let text = merge(&[a.clone(), b]).unwrap_err().to_string();
        assert!(
            text.contains("/a and ")
                && text.contains("/b cannot be merged")
                && text.contains("0102 in the second"),
            "{text}"
        );
        let text = merge(&[a, c]).unwrap_err().to_string();
        assert!(
            text.contains("0000000000001234 in the first, 0000000000000009 in the second"),
            "{text}"
        );
    }

    #[test]
    fn weights_are_parsed_and_existing_names_win() {
        assert_eq!(
            Weighted::parse("a.plraw").unwrap(),
            weighted(Path::new("a.plraw"), 1)
        );
        assert_eq!(
            Weighted::parse("a.plraw:3").unwrap(),
            weighted(Path::new("a.plraw"), 3)
        );
        assert_eq!(
            Weighted::parse("c:/x").unwrap(),
            weighted(Path::new("c:/x"), 1)
        );
        assert_eq!(
            Weighted::parse("a:0").unwrap_err().to_string(),
            "\"a:0\": the weight is 0: leave the file out instead"
        );
        assert!(
            Weighted::parse("a:18446744073709551616")
                .unwrap_err()
                .to_string()
                .contains("larger than 18446744073709551615")
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x:7");
        std::fs::write(&path, "").unwrap();
        assert_eq!(
            Weighted::parse(path.to_str().unwrap()).unwrap(),
            weighted(&path, 1)
        );
    }
}
