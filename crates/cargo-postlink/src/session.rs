//! What one command works on: the workspace, the target, the profile, and what the user has set for them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_config2::Config;
use cargo_metadata::MetadataCommand;

use crate::options::{Building, Relocations};
use crate::pgo::Compiler;
use crate::say;
use crate::store::Store;
use crate::strip::Settings;
use crate::tool;

/// What the linker is asked for. Without kept relocations programs can be optimised as well, but jumps through tables,
/// which every larger `match` becomes, then continue in the original code, so what is in front of it pays and what is
/// behind it gains nothing. Keeping them changes no byte of what is loaded.
const KEEP_RELOCATIONS: &str = "-Clink-arg=-Wl,--emit-relocs";

/// Settings of cargo's that would not reach us by `--config`, because what we set in the environment counts more.
const NOT_BY_CONFIG: [&str; 2] = ["rustflags", "runner"];

/// All of it.
pub struct Session {
    /// What the user said.
    pub building: Building,
    cargo: PathBuf,
    /// The compiler, its folder, and its version of LLVM.
    pub compiler: Compiler,
    /// As cargo takes it: a triple, or the path of a specification.
    pub target: String,
    /// The triple.
    pub triple: String,
    /// The cargo profile.
    pub profile: String,
    /// Of the user, in the order in which the compiler gets them.
    pub flags: Vec<String>,
    /// Of the user: what runs programs of this target.
    pub runner: Vec<String>,
    /// Whether the user's profile has symbols stripped.
    pub strips: bool,
    /// `target/postlink`
    pub root: PathBuf,
    /// The user has cargo keep what is between sources and programs in another folder (`build.build-dir`). Tests and
    /// benches are there.
    keeps_apart: bool,
}

/// Held while a command changes files in `target/postlink`.
pub struct Lock(#[allow(dead_code, reason = "the file holds the lock until it is closed")] File);

/// How the compiler is to treat a profile of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Not at all.
    Plain,
    /// The program writes one into this folder.
    Generate(PathBuf),
    /// It optimises by this file.
    Use(PathBuf),
}

impl Session {
    /// Asks cargo, the compiler and the user's settings.
    pub fn open(building: &Building, default_profile: &str) -> Result<Session> {
        if let Some(given) = building
            .config
            .iter()
            .find(|given| NOT_BY_CONFIG.iter().any(|word| given.contains(word)))
        {
            bail!(
                "--config {given}: flags and runners must be set in .cargo/config.toml or in the environment, where cargo postlink can add its own to them"
            );
        }
        let folder = std::env::current_dir().context("the current folder")?;
        let config = Config::load_with_cwd(&folder).context("cargo's configuration")?;
        let cargo = PathBuf::from(config.cargo());
        let rustc = std::env::var_os("RUSTC")
            .map(PathBuf::from)
            .or_else(|| config.build.rustc.clone())
            .unwrap_or_else(|| "rustc".into());
        let compiler = Compiler::ask(&rustc)?;
        let mut metadata = MetadataCommand::new();
        metadata.cargo_path(&cargo).no_deps();
        if let Some(manifest) = &building.manifest_path {
            metadata.manifest_path(manifest);
        }
        let network = building
            .network()
            .into_iter()
            .filter_map(|word| word.into_string().ok());
        metadata.other_options(network.collect::<Vec<_>>());
        let metadata = metadata.exec().context("cargo metadata")?;
        let mut targets = config.build_target_for_cli(building.target.as_slice())?;
        if targets.len() > 1 {
            bail!(
                "cargo is configured to build for {}: choose one with --target",
                targets.join(" and ")
            );
        }
        let target = targets.pop().unwrap_or_else(|| compiler.host.clone());
        let triple = Path::new(&target)
            .file_stem()
            .filter(|_| target.ends_with(".json"))
            .map_or(target.clone(), |stem| stem.to_string_lossy().into_owned());
        supported(&triple, building.relocations)?;
        let profile = match &building.profile {
            Some(given) => given.clone(),
            None => default_profile.to_owned(),
        };
        let settings = Settings::read(
            metadata.workspace_root.as_std_path(),
            &folder,
            &building.config,
        )?;
        let flags = config
            .rustflags(target.as_str())?
            .map_or(vec![], |flags| flags.flags);
        let runner = match config.runner(target.as_str())? {
            None => vec![],
            Some(runner) => std::iter::once(runner.path.into_os_string())
                .chain(runner.args)
                .map(|word| {
                    word.into_string()
                        .map_err(|word| anyhow::anyhow!("the runner {word:?} is not UTF-8"))
                })
                .collect::<Result<_>>()?,
        };
        Ok(Session {
            strips: settings.strips_symbols(&profile),
            building: building.clone(),
            cargo,
            compiler,
            triple,
            target,
            profile,
            flags,
            runner,
            keeps_apart: config.build.build_dir.is_some(),
            root: metadata
                .target_directory
                .into_std_path_buf()
                .join("postlink"),
        })
    }

    /// Makes the folder, and waits until no other command works in it.
    pub fn lock(&self) -> Result<Lock> {
        let path = self.root.join(".lock");
        let named = || path.display().to_string();
        fs::create_dir_all(&self.root).with_context(|| self.root.display().to_string())?;
        let file = File::create(&path).with_context(named)?;
        if file.try_lock().is_err() {
            say::step(
                "Blocking",
                format_args!(
                    "waiting for another cargo postlink in {}",
                    self.root.display()
                ),
            );
            file.lock().with_context(named)?;
        }
        Ok(Lock(file))
    }

    /// The folder that cargo names after the profile.
    fn folder_of_profile(&self) -> &str {
        match self.profile.as_str() {
            "dev" | "test" => "debug",
            "bench" => "release",
            other => other,
        }
    }

    /// Where cargo works: a folder of its own for each flavour, because the flags differ.
    fn cargo_folder(&self, flavour: &Flavour) -> PathBuf {
        self.root.join(match flavour {
            Flavour::Plain => "cargo",
            Flavour::Generate(_) => "cargo-pgo-generate",
            Flavour::Use(_) => "cargo-pgo",
        })
    }

    /// The folder of programs and profiles.
    pub fn store(&self, flavour: &Flavour) -> Store {
        let folder = self.folder_of_profile();
        let variant = match flavour {
            Flavour::Plain => "",
            Flavour::Generate(_) | Flavour::Use(_) => "-pgo",
        };
        Store {
            place: Path::new(&self.triple).join(format!("{folder}{variant}")),
            built: self.cargo_folder(flavour).join(&self.triple).join(folder),
            root: self.root.clone(),
            relocations: self.building.relocations,
        }
    }

    /// A cargo command that builds.
    pub fn cargo(&self, command: &str, flavour: &Flavour) -> Command {
        let mut cargo = Command::new(&self.cargo);
        cargo
            .arg(command)
            .args(["--target", &self.target, "--profile", &self.profile])
            .arg("--target-dir")
            .arg(self.cargo_folder(flavour))
            .args(self.building.arguments());
        if self.strips {
            let setting = format!("profile.{}.strip='debuginfo'", self.profile);
            cargo.args(["--config", &setting]);
        }
        let mut flags = self.flags.clone();
        if self.building.relocations == Relocations::Kept {
            flags.push(KEEP_RELOCATIONS.to_owned());
        }
        match flavour {
            Flavour::Plain => {}
            Flavour::Generate(folder) => {
                flags.push(format!("-Cprofile-generate={}", folder.display()))
            }
            Flavour::Use(file) => flags.push(format!("-Cprofile-use={}", file.display())),
        }
        if self.keeps_apart {
            cargo.env("CARGO_BUILD_BUILD_DIR", self.cargo_folder(flavour));
        }
        // A target is named, so these are for the program and not for build scripts and procedural macros.
        cargo
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env_remove("RUSTFLAGS");
        cargo
    }

    /// The environment variable that sets the runner of the target.
    pub fn runner_variable(&self) -> String {
        let triple = self.triple.to_uppercase().replace(['-', '.'], "_");
        format!("CARGO_TARGET_{triple}_RUNNER")
    }

    /// The environment variables that [`Session::cargo`] and the runner change, with the values that the user has given
    /// them. What cargo starts gets these back: tests start programs through the runner that they find there, and build
    /// with the flags that they find.
    pub fn environment_of_user(&self) -> Vec<(String, Option<String>)> {
        let mut names = vec![
            self.runner_variable(),
            "CARGO_ENCODED_RUSTFLAGS".to_owned(),
            "RUSTFLAGS".to_owned(),
        ];
        if self.keeps_apart {
            names.push("CARGO_BUILD_BUILD_DIR".to_owned());
        }
        names
            .into_iter()
            .map(|name| {
                let value = std::env::var(&name).ok();
                (name, value)
            })
            .collect()
    }

    /// What may be the matter when cargo cannot build for the target, in brackets.
    pub fn missing_target(&self) -> String {
        let folder = tool::output(Command::new(&self.compiler.rustc).args([
            "--print",
            "target-libdir",
            "--target",
            &self.target,
        ]));
        match folder {
            Ok(folder) if Path::new(folder.trim()).is_dir() => String::new(),
            Ok(folder) => format!(
                " (the standard library for {} is not installed: {} is not there; with rustup: `rustup target add {}`)",
                self.triple,
                folder.trim(),
                self.triple
            ),
            Err(error) => format!(" ({error})"),
        }
    }
}

fn supported(triple: &str, relocations: Relocations) -> Result<()> {
    let machine = triple.split('-').next().unwrap_or_default();
    if !["x86_64", "aarch64"].contains(&machine) || !triple.contains("-linux") {
        bail!("{triple}: postlink rewrites programs for Linux on x86_64 and aarch64");
    }
    if machine == "aarch64" && relocations == Relocations::None {
        bail!(
            "{triple}: on AArch64 postlink needs relocations that the linker kept (--relocations kept)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_postlink_cannot_rewrite_are_refused() {
        for good in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-musl"] {
            assert!(supported(good, Relocations::Kept).is_ok(), "{good}");
        }
        for bad in [
            "wasm32-unknown-unknown",
            "x86_64-pc-windows-msvc",
            "riscv64gc-unknown-linux-gnu",
        ] {
            assert!(supported(bad, Relocations::Kept).is_err(), "{bad}");
        }
        assert!(supported("aarch64-unknown-linux-gnu", Relocations::None).is_err());
    }
}
