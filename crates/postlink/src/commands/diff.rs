//! `postlink diff`: how alike two profiles are.
//!
//! Two profiles are two distributions over edges. Their overlap is the sum over all edges of the smaller one
//! of the two shares: 100 % for profiles that differ by a factor only, 0 % for those that have no edge in
//! common. The overlap of a function is the same among its own edges.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use postlink_aggregate::{Binary, yaml};
use postlink_profile::any::{self, Any, Model};
use postlink_profile::bolt_yaml::BoltYaml;
use postlink_profile::symbolic::SymbolicProfile;
use serde::Serialize;

use super::convert::How;
use crate::input::Input;
use crate::profiles;
use crate::ui::{BOLD, DIM, Ui, count, demangle, shorten};

/// Say how alike two profiles are
///
/// The overlap of two profiles is the share of what ran in both on the same edges: 100 % if they differ by a
/// factor only, 0 % if they have no edge in common. Profiles of two kinds are compared by functions and
/// offsets, which takes the binary.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink diff monday.fdata tuesday.fdata
  postlink diff run.plraw perf.data --binary ./app
  postlink diff a.yaml b.yaml --json | jq .overlap")]
pub struct Diff {
    /// A profile
    #[arg(value_name = "A")]
    pub a: String,
    /// Another one
    #[arg(value_name = "B")]
    pub b: String,
    /// How many functions are listed at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub how: How,
}

/// Where an edge leads: function, place.
type Place = (u32, u64);

/// Edges of a function with their counts, sorted.
type Edges = BTreeMap<(u64, Place), u64>;

/// A profile as edges by function. Targets are told by numbers of names that both profiles share.
#[derive(Default)]
struct Flat {
    functions: BTreeMap<Vec<u8>, Edges>,
}

/// What is printed of a function.
#[derive(Debug, Serialize)]
struct FunctionOverlap {
    name: String,
    /// Percent among its own edges.
    overlap: f64,
    /// Percent of all counts of the first profile.
    share_a: f64,
    /// Percent of all counts of the second one.
    share_b: f64,
    /// Counts in the first profile.
    count_a: u64,
    /// Counts in the second one.
    count_b: u64,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Account {
    /// Percent.
    overlap: f64,
    edges_a: usize,
    edges_b: usize,
    edges_in_both: usize,
    functions_a: usize,
    functions_b: usize,
    functions_in_both: usize,
    functions: Vec<FunctionOverlap>,
}

impl Diff {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("diff");
        watched.phases.begin("read");
        let reading = self.how.reading();
        let (a, b) = (
            profiles::weighted(std::slice::from_ref(&self.a))?,
            profiles::weighted(std::slice::from_ref(&self.b))?,
        );
        let models = [any::models(&a)?, any::models(&b)?].concat();
        let same = models.iter().all(|model| *model == models[0]);
        // What is by blocks already has lost what is between them.
        let by_blocks = !same && reading.binary.is_some() && models.contains(&Model::Blocks);
        let wanted = match models[0] {
            Model::Symbols | Model::Blocks | Model::Counters if same => None,
            _ if by_blocks => Some(Model::Blocks),
            _ => Some(Model::Symbols),
        };
        let read = |wanted| -> Result<(Any, Any)> {
            Ok((
                profiles::read(ui, &a, wanted, &reading)?,
                profiles::read(ui, &b, wanted, &reading)?,
            ))
        };
        let (mut a, mut b) = read(wanted)?;
        if let (true, Some(path)) = (by_blocks, &reading.binary) {
            use_first_names(path, [&mut a, &mut b])?;
        } else if is_translated(&a) != is_translated(&b) {
            // One names branches by their instruction, the other by the block they are in.
            match &reading.binary {
                Some(path) => {
                    (a, b) = read(Some(Model::Blocks))?;
                    use_first_names(path, [&mut a, &mut b])?;
                }
                None => ui.warn(
                    "one of the profiles was translated from an optimised program and names blocks where the other names branches: --binary compares them by blocks",
                ),
            }
        }
        watched.phases.begin("compare");
        let mut numbers = BTreeMap::new();
        let (a, b) = (flat(&a, &mut numbers)?, flat(&b, &mut numbers)?);
        let account = compare(&a, &b);
        watched.finish();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&account)?);
            return Ok(ExitCode::SUCCESS);
        }
        anstream::println!(
            "{BOLD}{:.2} %{BOLD:#} of what ran is the same: {} and {} edges, {} in both; {} and {} functions, {} in both",
            account.overlap,
            count(account.edges_a),
            count(account.edges_b),
            count(account.edges_in_both),
            count(account.functions_a),
            count(account.functions_b),
            count(account.functions_in_both),
        );
        anstream::println!(
            "\n{BOLD}{:>9} {:>9} {:>9}  function{BOLD:#}",
            "overlap",
            "share A",
            "share B"
        );
        for f in account.functions.iter().take(self.top) {
            anstream::println!(
                "{:>7.2} % {:>7.2} % {:>7.2} %  {}",
                f.overlap,
                f.share_a,
                f.share_b,
                shorten(&demangle(&f.name), 100)
            );
        }
        if account.functions.len() > self.top {
            anstream::println!(
                "{DIM}… {} more functions{DIM:#}",
                count(account.functions.len() - self.top)
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A local function has a name with its file in it, and one without; calls each by the first.
fn use_first_names(binary: &Path, profiles: [&mut Any; 2]) -> Result<()> {
    let input = Input::open(binary)?;
    let elf = input.elf()?;
    let binary = Binary::new(binary, &elf)?;
    let numbers = yaml::by_name(&binary);
    for profile in profiles {
        let Any::Blocks(profile) = profile else {
            continue;
        };
        for function in &mut profile.functions {
            if let Some(&index) = numbers.get(&function.name) {
                function.name = binary.functions.name(index, false).into_owned();
            }
        }
    }
    Ok(())
}

/// Whether a profile was taken of an optimised program.
fn is_translated(profile: &Any) -> bool {
    match profile {
        Any::Symbols(profile) => profile.collection.is_some_and(|c| c.bolted),
        Any::Blocks(_) | Any::Counters(_) | Any::Addresses(_) => false,
    }
}

fn flat(profile: &Any, numbers: &mut BTreeMap<Vec<u8>, u32>) -> Result<Flat> {
    Ok(match profile {
        Any::Symbols(profile) => of_symbols(profile, numbers),
        Any::Blocks(profile) => of_blocks(profile, numbers),
        Any::Counters(profile) => {
            // Counters represent edges; which function they are in only the binary knows.
            let used = profile.counters().iter().enumerate().filter(|c| *c.1 > 0);
            let edges = used.map(|(at, count)| ((at as u64, (0, 0)), *count));
            Flat {
                functions: [(b"(all counters)".to_vec(), edges.collect())].into(),
            }
        }
        Any::Addresses(_) => bail!("internal error: samples are compared by names"),
    })
}

fn number(numbers: &mut BTreeMap<Vec<u8>, u32>, name: &[u8]) -> u32 {
    if let Some(&number) = numbers.get(name) {
        return number;
    }
    let next = numbers.len() as u32;
    numbers.insert(name.to_vec(), next);
    next
}

fn add(edges: &mut Edges, key: (u64, Place), count: u64) {
    let sum = edges.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

fn of_symbols(profile: &SymbolicProfile, numbers: &mut BTreeMap<Vec<u8>, u32>) -> Flat {
    let mut out = Flat::default();
    let of: Vec<u32> = profile
        .names()
        .iter()
        .map(|(_, name)| number(numbers, name))
        .collect();
    let place = |location: postlink_profile::symbolic::Location| {
        (
            of.get(location.name.0 as usize).copied().unwrap_or(0),
            location.offset,
        )
    };
    for branch in profile.branches() {
        let Some(owner) = branch.owner() else {
            continue;
        };
        let edges = out
            .functions
            .entry(profile.names().get(owner).to_vec())
            .or_default();
        // Entries from elsewhere have no place that they leave.
        let from = if branch.from.in_symbol {
            branch.from.offset
        } else {
            u64::MAX
        };
        add(edges, (from, place(branch.to)), branch.count);
    }
    for sample in profile
        .samples()
        .iter()
        .filter(|sample| sample.at.in_symbol)
    {
        let edges = out
            .functions
            .entry(profile.names().get(sample.at.name).to_vec())
            .or_default();
        add(edges, (sample.at.offset, (u32::MAX, 0)), sample.count);
    }
    out
}

fn of_blocks(profile: &BoltYaml, numbers: &mut BTreeMap<Vec<u8>, u32>) -> Flat {
    let mut out = Flat::default();
    let callee: BTreeMap<u32, u32> = profile
        .functions
        .iter()
        .map(|f| (f.fid, number(numbers, &f.name)))
        .collect();
    for function in &profile.functions {
        let own = number(numbers, &function.name);
        let edges = out.functions.entry(function.name.clone()).or_default();
        for block in &function.blocks {
            let from = u64::from(block.bid);
            for edge in block.successors.iter().filter(|edge| edge.count > 0) {
                add(edges, (from << 32, (own, u64::from(edge.bid))), edge.count);
            }
            for call in &block.calls {
                let to = callee.get(&call.fid).copied().unwrap_or(u32::MAX);
                let at = from << 32 | u64::from(call.offset);
                add(
                    edges,
                    (at, (to, 1 << 32 | u64::from(call.discriminator))),
                    call.count,
                );
            }
            if block.events > 0 {
                add(edges, (from << 32, (u32::MAX, 0)), block.events);
            }
        }
    }
    out.functions.retain(|_, edges| !edges.is_empty());
    out
}

/// Sum of the smaller shares, and edges in both.
fn overlap(a: &Edges, b: &Edges, all_a: f64, all_b: f64) -> (f64, usize) {
    let (mut sum, mut both) = (0.0, 0);
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    while let (Some((x, n)), Some((y, m))) = (left.peek(), right.peek()) {
        match x.cmp(y) {
            Ordering::Less => {
                left.next();
            }
            Ordering::Greater => {
                right.next();
            }
            Ordering::Equal => {
                both += 1;
                sum += (**n as f64 / all_a).min(**m as f64 / all_b);
                left.next();
                right.next();
            }
        }
    }
    (sum, both)
}

fn total(edges: &Edges) -> u64 {
    edges
        .values()
        .fold(0, |sum, count| sum.saturating_add(*count))
}

fn compare(a: &Flat, b: &Flat) -> Account {
    let all = |flat: &Flat| {
        let sums = flat.functions.values().map(|edges| total(edges) as f64);
        sums.sum::<f64>().max(1.0)
    };
    let (all_a, all_b) = (all(a), all(b));
    let edges = |flat: &Flat| flat.functions.values().map(BTreeMap::len).sum();
    let mut account = Account {
        overlap: 0.0,
        edges_a: edges(a),
        edges_b: edges(b),
        edges_in_both: 0,
        functions_a: a.functions.len(),
        functions_b: b.functions.len(),
        functions_in_both: 0,
        functions: Vec::new(),
    };
    let none = Edges::new();
    let mut names: Vec<&Vec<u8>> = a.functions.keys().chain(b.functions.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (x, y) = (a.functions.get(name), b.functions.get(name));
        account.functions_in_both += usize::from(x.is_some() && y.is_some());
        let (x, y) = (x.unwrap_or(&none), y.unwrap_or(&none));
        let (whole, both) = overlap(x, y, all_a, all_b);
        let (count_a, count_b) = (total(x), total(y));
        let (own, _) = overlap(x, y, count_a.max(1) as f64, count_b.max(1) as f64);
        account.overlap += whole * 100.0;
        account.edges_in_both += both;
        account.functions.push(FunctionOverlap {
            name: String::from_utf8_lossy(name).into_owned(),
            overlap: own * 100.0,
            share_a: count_a as f64 * 100.0 / all_a,
            share_b: count_b as f64 * 100.0 / all_b,
            count_a,
            count_b,
        });
    }
    // The functions that matter most, in either profile.
    let weight = |f: &FunctionOverlap| f.share_a.max(f.share_b);
    account
        .functions
        .sort_by(|x, y| weight(y).total_cmp(&weight(x)).then(x.name.cmp(&y.name)));
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn of(text: &str) -> Any {
        Any::Symbols(postlink_profile::fdata::read_bytes(Path::new("x"), text.as_bytes()).unwrap())
    }

    fn diff(a: &str, b: &str) -> Account {
        let mut numbers = BTreeMap::new();
        let (a, b) = (
            flat(&of(a), &mut numbers).unwrap(),
            flat(&of(b), &mut numbers).unwrap(),
        );
        compare(&a, &b)
    }

    #[test]
    fn profiles_that_differ_by_a_factor_overlap_wholly() {
        let account = diff(
            "1 f 1 1 f 4 0 10\n1 f 4 1 g 0 0 30\n",
            "1 f 1 1 f 4 0 1\n1 f 4 1 g 0 0 3\n",
        );
        assert!(
            (account.overlap - 100.0).abs() < 1e-9,
            "{}",
            account.overlap
        );
        assert_eq!(account.edges_in_both, 2);
    }

    #[test]
    fn the_overlap_is_the_sum_of_the_smaller_shares() {
        let account = diff(
            "1 f 1 1 f 4 0 75\n1 g 4 1 g 8 0 25\n",
            "1 f 1 1 f 4 0 25\n1 g 4 1 g 9 0 75\n",
        );
        assert!((account.overlap - 25.0).abs() < 1e-9, "{}", account.overlap);
        let f = account.functions.iter().find(|f| f.name == "f").unwrap();
        assert!((f.overlap - 100.0).abs() < 1e-9);
        let g = account.functions.iter().find(|f| f.name == "g").unwrap();
        assert_eq!((g.overlap, g.share_a, g.share_b), (0.0, 25.0, 75.0));
    }
}
