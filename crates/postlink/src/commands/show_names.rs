//! What `postlink show` prints of profiles that are no counters: samples by address, fdata, BOLT YAML.

use anyhow::{Result, bail};
use postlink_profile::any::Any;
use postlink_profile::bolt_yaml::BoltYaml;
use postlink_profile::symbolic::{Location, NameId, SymbolicProfile};
use serde::Serialize;

use super::show::Show;
use crate::profiles;
use crate::ui::{BOLD, DIM, count, demangle, percent, shorten};

/// A function, as it is printed.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Entries at its start.
    entered: u64,
    /// Branches, calls and fall-throughs that leave a place in it.
    branches: u64,
    /// Samples in it.
    samples: u64,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Account {
    summary: String,
    how: String,
    functions: Vec<Row>,
}

/// Prints a profile.
pub fn show(command: &Show, profile: &Any) -> Result<()> {
    let (how, mut rows) = match profile {
        Any::Symbols(profile) => (how_taken(profile), of_symbols(profile)),
        Any::Blocks(profile) => (header(profile), of_blocks(profile)),
        Any::Addresses(profile) => {
            let rows = profile.modules().iter().map(|module| Row {
                name: if module.path.is_empty() {
                    "(the binary)".to_owned()
                } else {
                    String::from_utf8_lossy(&module.path).into_owned()
                },
                entered: 0,
                branches: 0,
                samples: 0,
            });
            let mut rows: Vec<Row> = rows.collect();
            for (trace, counts) in profile.traces() {
                if let Some(row) = rows.get_mut(trace.start.module.0 as usize) {
                    row.branches = row.branches.saturating_add(counts.count);
                }
            }
            for (place, samples) in profile.samples() {
                if let Some(row) = rows.get_mut(place.module.0 as usize) {
                    row.samples = row.samples.saturating_add(*samples);
                }
            }
            let seen = &profile.statistics;
            let how = format!(
                "{} samples, {} with branches; --binary FILE shows the functions",
                count(seen.samples),
                count(seen.with_branches)
            );
            (how, rows)
        }
        Any::Counters(_) => bail!("internal error: counters are shown elsewhere"),
    };
    if let Some(name) = &command.blocks {
        return match profile {
            Any::Symbols(profile) => print_records(profile, name),
            Any::Blocks(profile) => print_blocks(profile, name),
            _ => bail!("--binary shows the records of functions"),
        };
    }
    let weight = |row: &Row| row.branches.max(row.samples).max(row.entered);
    rows.sort_by(|a, b| weight(b).cmp(&weight(a)).then(a.name.cmp(&b.name)));
    let account = Account {
        summary: profiles::summary(profile),
        how,
        functions: rows,
    };
    if command.json {
        println!("{}", serde_json::to_string_pretty(&account)?);
        return Ok(());
    }
    anstream::println!(
        "{BOLD}{}{BOLD:#}: {}; {}",
        command.profiles.join(", "),
        account.summary,
        account.how
    );
    let sampled = account.functions.iter().any(|row| row.samples > 0);
    let of = |row: &Row| if sampled { row.samples } else { row.branches };
    let all = account
        .functions
        .iter()
        .fold(0u64, |sum, row| sum.saturating_add(of(row)));
    anstream::println!(
        "\n{BOLD}{:>8} {:>18} {:>15}  function{BOLD:#}",
        "share",
        if sampled { "samples" } else { "branches" },
        "entered"
    );
    for row in account.functions.iter().take(command.top) {
        let name = if command.no_demangle {
            row.name.clone()
        } else {
            demangle(&row.name)
        };
        anstream::println!(
            "{:>8} {:>18} {:>15}  {}",
            percent(of(row), all),
            count(of(row)),
            count(row.entered),
            shorten(&name, 100)
        );
    }
    if account.functions.len() > command.top {
        anstream::println!(
            "{DIM}… {} more{DIM:#}",
            count(account.functions.len() - command.top)
        );
    }
    Ok(())
}

fn how_taken(profile: &SymbolicProfile) -> String {
    let Some(collection) = profile.collection else {
        return "nothing recorded".to_owned();
    };
    let what = if collection.branches {
        "branches"
    } else {
        "samples without branches"
    };
    let of = if collection.bolted {
        " of an optimised binary"
    } else {
        ""
    };
    let events: Vec<String> = profile
        .events
        .iter()
        .map(|event| String::from_utf8_lossy(event).into_owned())
        .collect();
    let events = if events.is_empty() {
        String::new()
    } else {
        format!(" ({})", events.join(", "))
    };
    format!("{what}{of}{events}")
}

fn header(profile: &BoltYaml) -> String {
    let header = &profile.header;
    format!(
        "of {}, build-id {}, made by {}, blocks in {} order",
        String::from_utf8_lossy(&header.binary_name),
        String::from_utf8_lossy(&header.build_id),
        String::from_utf8_lossy(&header.origin),
        if header.dfs_order {
            "depth-first"
        } else {
            "code"
        }
    )
}

fn of_symbols(profile: &SymbolicProfile) -> Vec<Row> {
    let entered = profile.execution_counts();
    let names = profile.names();
    let mut rows: Vec<Row> = names
        .iter()
        .map(|(id, name)| Row {
            name: String::from_utf8_lossy(name).into_owned(),
            entered: entered.get(id.0 as usize).copied().unwrap_or(0),
            branches: 0,
            samples: 0,
        })
        .collect();
    for branch in profile
        .branches()
        .iter()
        .filter(|branch| branch.from.in_symbol)
    {
        let row = &mut rows[branch.from.name.0 as usize];
        row.branches = row.branches.saturating_add(branch.count);
    }
    for sample in profile
        .samples()
        .iter()
        .filter(|sample| sample.at.in_symbol)
    {
        let row = &mut rows[sample.at.name.0 as usize];
        row.samples = row.samples.saturating_add(sample.count);
    }
    rows.retain(|row| row.entered > 0 || row.branches > 0 || row.samples > 0);
    rows
}

fn of_blocks(profile: &BoltYaml) -> Vec<Row> {
    profile
        .functions
        .iter()
        .map(|function| {
            let (mut branches, mut samples) = (0u64, 0u64);
            for block in &function.blocks {
                samples = samples.saturating_add(block.events);
                for count in block
                    .successors
                    .iter()
                    .map(|edge| edge.count)
                    .chain(block.calls.iter().map(|call| call.count))
                {
                    branches = branches.saturating_add(count);
                }
            }
            Row {
                name: String::from_utf8_lossy(&function.name).into_owned(),
                entered: function.exec,
                branches,
                samples,
            }
        })
        .collect()
}

fn print_records(profile: &SymbolicProfile, name: &str) -> Result<()> {
    let names = profile.names();
    let Some(id) = names.find(name.as_bytes()) else {
        bail!(
            "the profile has no function {name}{}",
            like(names.iter().map(|n| n.1), name)
        );
    };
    let text = |location: Location| {
        let name = String::from_utf8_lossy(names.get(location.name)).into_owned();
        if location.in_symbol {
            format!("{name}+{:#x}", location.offset)
        } else {
            name
        }
    };
    let own = |location: Location| location.in_symbol && location.name == id;
    for branch in profile.branches_of(NameId(id.0)) {
        anstream::println!(
            "{:>18} {:>12} {DIM}mispredicted{DIM:#}  {} -> {}",
            count(branch.count),
            count(branch.mispredictions),
            if own(branch.from) {
                format!("+{:#x}", branch.from.offset)
            } else {
                text(branch.from)
            },
            if own(branch.to) {
                format!("+{:#x}", branch.to.offset)
            } else {
                text(branch.to)
            }
        );
    }
    for sample in profile.samples_of(id) {
        anstream::println!("{:>18}  +{:#x}", count(sample.count), sample.at.offset);
    }
    Ok(())
}

fn print_blocks(profile: &BoltYaml, name: &str) -> Result<()> {
    let Some(function) = profile.functions.iter().find(|f| f.name == name.as_bytes()) else {
        let names = profile.functions.iter().map(|f| &f.name[..]);
        bail!("the profile has no function {name}{}", like(names, name));
    };
    let callee = |fid: u32| {
        let found = profile.functions.iter().find(|f| f.fid == fid && fid != 0);
        found.map_or("[unknown]".to_owned(), |f| {
            String::from_utf8_lossy(&f.name).into_owned()
        })
    };
    for block in &function.blocks {
        anstream::println!(
            "{:>18}  {BOLD}block {}{BOLD:#}",
            count(block.exec.max(block.events)),
            block.bid
        );
        for edge in &block.successors {
            anstream::println!("{:>18}    -> block {}", count(edge.count), edge.bid);
        }
        for call in &block.calls {
            anstream::println!(
                "{:>18}    +{:#x} calls {}",
                count(call.count),
                call.offset,
                callee(call.fid)
            );
        }
    }
    Ok(())
}

/// Names that begin as the wanted one does: `name/1` and so on.
fn like<'a>(names: impl Iterator<Item = &'a [u8]>, wanted: &str) -> String {
    let found: Vec<String> = names
        .filter(|name| name.starts_with(wanted.as_bytes()))
        .take(3)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    if found.is_empty() {
        String::new()
    } else {
        format!("; there is {}", found.join(", "))
    }
}
