//! Every option that LLVM's tools list is known here: done, noted or refused with a reason.
//!
//! The list is what `--help-hidden` of the installed tools prints. Options of LLVM's libraries that happen to
//! be linked into a tool are in it as well; those are irrelevant here and left out by the heads under which they
//! stand.

use std::process::Command;

use super::options::{Kind, Known, Tool};
use super::{llvm_bolt, llvm_profgen, merge_fdata, perf2bolt};

/// An option as a tool lists it.
struct Listed {
    name: String,
    /// Whether it must have a value.
    takes_value: bool,
}

/// The options that a tool lists; none if it is not installed.
fn listed(tool: &str, release: u32) -> Option<Vec<Listed>> {
    let path = format!("/usr/lib/llvm-{release}/bin/{tool}");
    let Ok(help) = Command::new(&path).arg("--help-hidden").output() else {
        eprintln!("SKIPPED: {path} is not there (package bolt-{release} or llvm-{release})");
        return None;
    };
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let mut all = Vec::new();
    for line in help.lines() {
        // Values of an option stand deeper, and begin with `=`.
        let Some(rest) = line.strip_prefix("  -") else {
            continue;
        };
        let rest = rest.trim_start_matches('-');
        let word = rest.split_whitespace().next().unwrap_or_default();
        let name = word.split(['=', '[']).next().unwrap_or_default();
        let after = rest[word.len()..].trim_start();
        all.push(Listed {
            name: name.to_owned(),
            takes_value: (word.contains('=') && !word.contains('[')) || after.starts_with('<'),
        });
    }
    Some(all)
}

/// Whether all tools of LLVM read it in the same way.
fn is_generic(name: &str) -> bool {
    matches!(
        name,
        "h" | "help"
            | "help-hidden"
            | "help-list"
            | "help-list-hidden"
            | "version"
            | "print-options"
            | "print-all-options"
    )
}

fn find<'t>(tool: &'t Tool, name: &str) -> Option<&'t Known> {
    let alias = tool.aliases.iter().find(|alias| alias.0 == name);
    let name = alias.map_or(name, |alias| alias.1);
    tool.options.iter().find(|known| known.name == name)
}

/// Compares with one release; returns how many options were compared.
fn compare(tool: &Tool, release: u32, errors: &mut Vec<String>) -> Option<usize> {
    let mut compared = 0;
    for listed in listed(tool.name, release)? {
        if is_generic(&listed.name) {
            continue;
        }
        compared += 1;
        let name = format!("{} {release}: -{}", tool.name, listed.name);
        match find(tool, &listed.name) {
            None => errors.push(format!("{name} is not known")),
            Some(known) => {
                let takes = matches!(known.kind, Kind::Value | Kind::IgnoredValue);
                // The help does not tell whether a value may be left out.
                let may_take = listed.name == "icf";
                if takes != listed.takes_value && known.kind != Kind::Refused && !may_take {
                    // An alias says nothing of its value.
                    let is_alias = tool.aliases.iter().any(|alias| alias.0 == listed.name);
                    if listed.takes_value || !is_alias {
                        errors.push(format!(
                            "{name}: a value is wanted there {}, here {takes}",
                            listed.takes_value
                        ));
                    }
                }
            }
        }
    }
    Some(compared)
}

#[test]
fn every_option_of_llvms_tools_is_known() {
    let mut errors = Vec::new();
    for release in [19, 22] {
        for (tool, at_least) in [
            (&llvm_bolt::TOOL, 200),
            (&perf2bolt::TOOL, 10),
            (&merge_fdata::TOOL, 2),
            // Release 19 hides most of its own.
            (&llvm_profgen::TOOL, 3),
        ] {
            if let Some(compared) = compare(tool, release, &mut errors)
                && compared < at_least
            {
                errors.push(format!(
                    "{} {release} lists {compared} options, fewer than {at_least}",
                    tool.name
                ));
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn no_option_is_listed_twice() {
    for tool in [
        &llvm_bolt::TOOL,
        &perf2bolt::TOOL,
        &merge_fdata::TOOL,
        &llvm_profgen::TOOL,
    ] {
        let mut names: Vec<&str> = tool.options.iter().map(|o| o.name).collect();
        names.extend(tool.aliases.iter().map(|alias| alias.0));
        names.sort_unstable();
        for pair in names.windows(2) {
            assert_ne!(pair[0], pair[1], "of {}", tool.name);
        }
    }
}
