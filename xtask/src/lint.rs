//! `cargo xtask lint`: formatting, clippy and documentation without warnings, the order of layers
//! ([`layers`]), unused dependencies ([`dependencies`]), widths of comments ([`widths`]), lengths of functions
//! ([`lengths`]), and what is no part of the workspace: the fuzz targets and the folder `fleet`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{dependencies, layers, lengths, widths};

/// One check.
struct Check {
    arguments: &'static [&'static str],
    /// Flags of rustdoc.
    rustdoc: &'static str,
    /// A part of the toolchain that may not be installed, and the command that shows it.
    component: Option<(&'static str, &'static [&'static str])>,
}

const CHECKS: [Check; 6] = [
    Check {
        arguments: &["fmt", "--all", "--check"],
        rustdoc: "",
        component: Some(("rustfmt", &["fmt", "--version"])),
    },
    Check {
        arguments: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        rustdoc: "",
        component: Some(("clippy", &["clippy", "--version"])),
    },
    Check {
        arguments: &["doc", "--workspace", "--no-deps"],
        rustdoc: "-D warnings",
        component: None,
    },
    // Linking them needs a nightly compiler's sanitizers, checking their types does not. In the workspace's
    // folder, where clippy has left the dependencies checked.
    Check {
        arguments: &[
            "check",
            "--locked",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--target-dir",
            "target",
        ],
        rustdoc: "",
        component: None,
    },
    // The other workspace, likewise.
    Check {
        arguments: &["fmt", "--manifest-path", "fleet/Cargo.toml", "--check"],
        rustdoc: "",
        component: Some(("rustfmt", &["fmt", "--version"])),
    },
    Check {
        arguments: &[
            "clippy",
            "--locked",
            "--manifest-path",
            "fleet/Cargo.toml",
            "--target-dir",
            "target",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        rustdoc: "",
        component: Some(("clippy", &["clippy", "--version"])),
    },
];

/// The job. `Ok(false)` when a check failed.
pub fn run() -> Result<bool> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        command.stdin(Stdio::null());
        command
    };
    let (mut good, mut summary) = (true, vec![]);
    for check in CHECKS {
        let shown = format!("cargo {}", check.arguments.join(" "));
        if let Some((component, version)) = check.component {
            let mut asked = cargo();
            asked
                .args(version)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if !asked.status().is_ok_and(|status| status.success()) {
                summary.push(format!("{shown}: SKIPPED, {component} is not installed (rustup component add {component})"));
                continue;
            }
        }
        let mut command = cargo();
        command.args(check.arguments);
        if !check.rustdoc.is_empty() {
            command.env("RUSTDOCFLAGS", check.rustdoc);
        }
        let passed = command.status().with_context(|| shown.clone())?.success();
        summary.push(format!(
            "{shown}: {}",
            if passed { "passed" } else { "FAILED" }
        ));
        good &= passed;
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    type Own = fn(&std::path::Path) -> Result<bool>;
    let own: [(&str, Own); 4] = [
        ("order of layers", layers::check),
        ("no unused dependencies", dependencies::check),
        ("widths of comments", widths::check),
        ("lengths of functions", lengths::check),
    ];
    for (name, check) in own {
        let passed = check(&root)?;
        summary.push(format!(
            "{name}: {}",
            if passed { "passed" } else { "FAILED" }
        ));
        good &= passed;
    }
    for line in summary {
        println!("{line}");
    }
    Ok(good)
}
