//! `cargo xtask dist`: the release artefacts, the same bytes from the same sources.
//!
//! | file | content |
//! |---|---|
//! | `postlink-VERSION-TARGET.tar.xz` | the program, manual pages, completions, licences, documents |
//! | `postlink_VERSION_ARCH.deb` | the same at Debian's places |
//! | `SHA256SUMS` | of both |
//!
//! **The program** is that of crate `cargo-postlink`, which is `postlink` as well, by the name that it is called by:
//! it goes along once, as `postlink`, with a link `cargo-postlink`. It is linked statically with glibc
//! (`+crt-static`), so that it runs on any Linux, and stripped. Kept relocations, which `.cargo/config.toml` asks for
//! in daily builds, are of no use in a stripped program; `postlink demo` does without them there.
//!
//! **Reproducible** means: the same commit, Rust and Debian release give the same bytes, in whatever folder,
//! by whatever user, at whatever time. So paths are cut off what the compiler writes into the program,
//! archives hold names in order and numeric owners, and every time in them is that of the commit (or
//! `SOURCE_DATE_EPOCH`). `--check` proves it: it builds again from a clone in another folder and compares.
//!
//! **Licences.** What is linked in must be named with its terms: `THIRD-PARTY.txt` lists every crate of the
//! program with the licence files that it came with, as `cargo metadata` knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::root;
use crate::packages;

/// The package whose program is released, and the name by which cargo finds it.
const PACKAGE: &str = "cargo-postlink";

/// Documents that go along.
const DOCUMENTS: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Program, shell, file in the archive, place in Debian.
const COMPLETIONS: [(&str, &str, &str, &str); 6] = [
    (
        "postlink",
        "bash",
        "postlink.bash",
        "usr/share/bash-completion/completions/postlink",
    ),
    (
        "postlink",
        "zsh",
        "_postlink",
        "usr/share/zsh/vendor-completions/_postlink",
    ),
    (
        "postlink",
        "fish",
        "postlink.fish",
        "usr/share/fish/vendor_completions.d/postlink.fish",
    ),
    (
        PACKAGE,
        "bash",
        "cargo-postlink.bash",
        "usr/share/bash-completion/completions/cargo-postlink",
    ),
    (
        PACKAGE,
        "zsh",
        "_cargo-postlink",
        "usr/share/zsh/vendor-completions/_cargo-postlink",
    ),
    (
        PACKAGE,
        "fish",
        "cargo-postlink.fish",
        "usr/share/fish/vendor_completions.d/cargo-postlink.fish",
    ),
];

/// What the names of files and the package's description need to know.
struct Release {
    version: String,
    /// Of the compiler: `x86_64-unknown-linux-gnu`.
    target: String,
    /// Of Debian: `amd64`.
    architecture: &'static str,
    /// Seconds since 1970, for everything that has a time.
    time: String,
}

/// The job. `Ok(false)` if the second build differs.
pub fn run(output: &Path, check: bool) -> Result<bool> {
    let missing = packages::install(packages::FOR_DIST, true);
    if let Some(need) = missing.first() {
        bail!("{} is needed (Debian package {})", need.probe, need.package);
    }
    // Modes of folders go into the packages.
    // SAFETY: umask has no preconditions and cannot fail.
    unsafe { libc::umask(0o022) };
    let root = root()?;
    fs::create_dir_all(output).with_context(|| output.display().to_string())?;
    let output = output.canonicalize()?;
    let release = Release::of(&root)?;
    let files = make(&root, &root.join("target"), &output, &release)?;
    for file in &files {
        let size = fs::metadata(output.join(file))?.len();
        println!(
            "{}: {:.2} MB",
            output.join(file).display(),
            size as f64 / 1e6
        );
    }
    if !check {
        return Ok(true);
    }
    let again = tempfile::tempdir().context("a folder for the second build")?;
    let clone = again.path().join("sources");
    done(
        Command::new("git")
            .args(["clone", "--quiet"])
            .arg(&root)
            .arg(&clone),
    )?;
    let second = again.path().join("output");
    fs::create_dir(&second)?;
    make(&clone, &again.path().join("target"), &second, &release)?;
    let mut same = true;
    for file in &files {
        let equal = fs::read(output.join(file))? == fs::read(second.join(file))?;
        println!(
            "{file}: {}",
            if equal {
                "the same bytes from a second build"
            } else {
                "DIFFERS in a second build"
            }
        );
        same &= equal;
    }
    Ok(same)
}

impl Release {
    fn of(root: &Path) -> Result<Release> {
        let rustc = text(Command::new("rustc").arg("-vV"))?;
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
        let target = host.context("rustc -vV names no host")?.to_owned();
        let architecture = match target.split('-').next() {
            Some("x86_64") => "amd64",
            Some("aarch64") => "arm64",
            _ => bail!("{target}: no Debian architecture is known for it"),
        };
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => text(
                Command::new("git")
                    .args(["log", "-1", "--format=%ct"])
                    .current_dir(root),
            )?,
        };
        let manifest = metadata(root)?;
        let version = packages_of(&manifest)
            .find(|package| package["name"] == "postlink")
            .and_then(|package| package["version"].as_str())
            .context("cargo metadata names no package postlink")?;
        Ok(Release {
            version: version.to_owned(),
            target,
            architecture,
            time: time.trim().to_owned(),
        })
    }
}

/// Builds and packs; gives the names of the files.
fn make(root: &Path, target: &Path, output: &Path, release: &Release) -> Result<Vec<String>> {
    let program = build(root, target, release)?;
    let scratch = tempfile::tempdir().context("a folder for the packages")?;
    let contents = Contents::new(root, &program, scratch.path())?;
    let archive = contents.archive(scratch.path(), output, release)?;
    let package = contents.package(scratch.path(), output, release)?;
    let mut sums = String::new();
    for file in [&package, &archive] {
        sums += &text(Command::new("sha256sum").arg(file).current_dir(output))?;
    }
    fs::write(output.join("SHA256SUMS"), sums)?;
    Ok(vec![package, archive, "SHA256SUMS".into()])
}

/// The static program.
fn build(root: &Path, target: &Path, release: &Release) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    // The compiler writes the paths of sources into the program. Where crates are unpacked depends on the
    // registry's address, too; that folder is there once they are fetched. Of several prefixes that fit, the
    // last one counts.
    done(
        Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["fetch", "--locked"])
            .current_dir(root),
    )?;
    // Stripping is said here: cargo forgets what the profile says of it for a package with settings of its own.
    let flags = ["-Ctarget-feature=+crt-static", "-Cstrip=symbols"];
    let mut flags = flags.map(str::to_owned).to_vec();
    let mut cut = |folder: &Path, name: &str| {
        flags.push(format!("--remap-path-prefix={}={name}", folder.display()));
    };
    cut(&home, "cargo");
    for registry in fs::read_dir(home.join("registry/src"))
        .into_iter()
        .flatten()
    {
        cut(&registry?.path(), "registry");
    }
    cut(root, "postlink");
    // A separator that paths do not hold, as they may hold spaces. These flags replace those of .cargo/config.toml.
    let flags = flags.join("\x1f");
    // With a target named, the flags are for the program alone: procedural macros are shared libraries of the
    // compiler's and cannot be static.
    done(
        Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args([
                "build",
                "--locked",
                "--profile",
                "dist",
                "--package",
                PACKAGE,
                "--target",
                &release.target,
            ])
            .current_dir(root)
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_INCREMENTAL", "0"),
    )?;
    let folder = target.join(&release.target).join("dist");
    // What that folder has as `postlink` is what package `postlink` makes.
    let program = folder.join("postlink");
    fs::copy(folder.join(PACKAGE), &program).with_context(|| program.display().to_string())?;
    let dynamic = text(Command::new("readelf").arg("-dlW").arg(&program))?;
    if let Some(line) = dynamic
        .lines()
        .find(|line| line.contains("(NEEDED)") || line.contains("INTERP"))
    {
        bail!("{}: is not static: {}", program.display(), line.trim());
    }
    let sections = text(Command::new("readelf").arg("-SW").arg(&program))?;
    if let Some(line) = sections.lines().find(|line| line.contains(" .symtab ")) {
        bail!("{}: is not stripped: {}", program.display(), line.trim());
    }
    Ok(program)
}

/// Everything that both kinds of packages hold.
struct Contents {
    program: PathBuf,
    /// Manual pages.
    pages: Vec<PathBuf>,
    /// As in [`COMPLETIONS`].
    completions: Vec<(PathBuf, &'static str)>,
    documents: Vec<PathBuf>,
}

impl Contents {
    fn new(root: &Path, program: &Path, scratch: &Path) -> Result<Contents> {
        let manual = scratch.join("man");
        // One program, by two names.
        let called = |name: &str| Command::new(program.with_file_name(name));
        for name in ["postlink", PACKAGE] {
            done(called(name).arg("man").arg(&manual))?;
        }
        let mut pages = fs::read_dir(&manual)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        pages.sort();
        let mut completions = vec![];
        for (of, shell, name, place) in COMPLETIONS {
            let file = scratch.join(name);
            fs::write(&file, text(called(of).args(["completions", shell]))?)?;
            completions.push((file, place));
        }
        let mut documents: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root.join(name)).collect();
        let licences = scratch.join("THIRD-PARTY.txt");
        fs::write(&licences, third_party(root)?)?;
        documents.push(licences);
        Ok(Contents {
            program: program.to_owned(),
            pages,
            completions,
            documents,
        })
    }

    fn archive(&self, scratch: &Path, output: &Path, release: &Release) -> Result<String> {
        let name = format!("postlink-{}-{}", release.version, release.target);
        let folder = scratch.join(&name);
        put(&self.program, &folder.join("postlink"), 0o755)?;
        symlink("postlink", folder.join(PACKAGE))?;
        for page in &self.pages {
            put(page, &folder.join("man").join(file_name(page)), 0o644)?;
        }
        for (file, _) in &self.completions {
            put(
                file,
                &folder.join("completions").join(file_name(file)),
                0o644,
            )?;
        }
        for file in &self.documents {
            put(file, &folder.join(file_name(file)), 0o644)?;
        }
        let tar = scratch.join("archive.tar");
        done(
            Command::new("tar")
                .args([
                    "--format=ustar",
                    "--sort=name",
                    "--owner=0",
                    "--group=0",
                    "--numeric-owner",
                ])
                .arg(format!("--mtime=@{}", release.time))
                .arg("-cf")
                .args([&tar, Path::new("-C"), scratch, Path::new(&name)]),
        )?;
        // One thread: with more, the file is cut into blocks that depend on their number.
        done(
            Command::new("xz")
                .args(["-9", "--threads=1", "--force"])
                .arg(&tar),
        )?;
        let file = format!("{name}.tar.xz");
        fs::copy(tar.with_extension("tar.xz"), output.join(&file))?;
        Ok(file)
    }

    fn package(&self, scratch: &Path, output: &Path, release: &Release) -> Result<String> {
        let folder = scratch.join("deb");
        put(&self.program, &folder.join("usr/bin/postlink"), 0o755)?;
        symlink("postlink", folder.join("usr/bin").join(PACKAGE))?;
        for page in &self.pages {
            let place = folder.join("usr/share/man/man1").join(file_name(page));
            put(page, &place, 0o644)?;
            done(Command::new("gzip").args(["-9", "--no-name"]).arg(&place))?;
        }
        for (file, place) in &self.completions {
            put(file, &folder.join(place), 0o644)?;
        }
        let documents = folder.join("usr/share/doc/postlink");
        let mut copyright = String::from(
            "postlink is licensed under the MIT licence or the Apache License 2.0, at your option.\n",
        );
        for file in &self.documents {
            let name = file_name(file);
            if name.starts_with("LICENSE") {
                let _ = write!(
                    copyright,
                    "\n---- {name} ----\n\n{}",
                    fs::read_to_string(file)?
                );
            } else {
                put(file, &documents.join(name), 0o644)?;
            }
        }
        write_with_mode(&documents.join("copyright"), &copyright, 0o644)?;
        let mut size = 0;
        let mut count = |file: &Path| -> Result<()> {
            size += fs::symlink_metadata(file)?.len().div_ceil(1024);
            Ok(())
        };
        for_each_file(&folder, &mut count)?;
        let control = format!(
            "Package: postlink\nVersion: {}\nArchitecture: {}\nMaintainer: The postlink developers <postlink@users.noreply.github.com>\n\
             Installed-Size: {size}\nSection: devel\nPriority: optional\nHomepage: https://github.com/postlink/postlink\n\
             Description: post-link optimiser for ELF programs\n \
             Instruments a linked program, puts the code that ran together in the order in\n \
             which it ran, and proves that nothing but the placement of code has changed.\n",
            release.version, release.architecture
        );
        write_with_mode(&folder.join("DEBIAN/control"), &control, 0o644)?;
        let file = format!("postlink_{}_{}.deb", release.version, release.architecture);
        done(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"])
                .arg(&folder)
                .arg(output.join(&file))
                .env("SOURCE_DATE_EPOCH", &release.time)
                .stdout(Stdio::null()),
        )?;
        Ok(file)
    }
}

/// The crates that the program is made of, with their licences.
fn third_party(root: &Path) -> Result<String> {
    let metadata = metadata(root)?;
    let linked = text(
        Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args([
                "tree",
                "--locked",
                "--package",
                PACKAGE,
                "--edges",
                "normal,no-proc-macro",
                "--prefix",
                "none",
                "--format",
                "{p}",
            ])
            .current_dir(root),
    )?;
    let linked: BTreeSet<(&str, &str)> = linked
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let mut out = String::from(
        "postlink is linked statically with the crates below, with Rust's standard library (MIT or Apache-2.0) and with\n\
         the GNU C library (LGPL-2.1-or-later), whose sources Debian has as package glibc.\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages_of(&metadata) {
        let word = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let (name, version) = (word("name"), word("version"));
        // Those without a source are ours.
        if package["source"].is_null() || !linked.contains(&(name.as_str(), version.as_str())) {
            continue;
        }
        let crate_name = format!("{name} {version}");
        let _ = writeln!(
            out,
            "\n{crate_name}: {}\n  {}",
            word("license"),
            word("repository")
        );
        let manifest = PathBuf::from(word("manifest_path"));
        let folder = manifest.parent().context("a manifest is in a folder")?;
        let mut files: Vec<PathBuf> = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.sort();
        for file in files {
            let upper = file_name(&file).to_uppercase();
            let is_licence = [
                "LICENSE",
                "LICENCE",
                "COPYING",
                "COPYRIGHT",
                "NOTICE",
                "UNLICENSE",
            ]
            .iter()
            .any(|word| upper.starts_with(word));
            if is_licence && file.is_file() {
                let said = String::from_utf8_lossy(&fs::read(&file)?).replace("\r\n", "\n");
                texts
                    .entry(said.trim_end().to_owned())
                    .or_default()
                    .push(crate_name.clone());
            }
        }
    }
    // Many crates carry the same text.
    for (said, mut crates) in texts {
        crates.dedup();
        let _ = write!(out, "\n---- {} ----\n\n{said}\n", crates.join(", "));
    }
    Ok(out)
}

fn metadata(root: &Path) -> Result<Value> {
    let said = text(
        Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["metadata", "--locked", "--format-version", "1"])
            .current_dir(root),
    )?;
    serde_json::from_str(&said).context("cargo metadata")
}

fn packages_of(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Copies a file to its place, whatever the mask of modes is.
fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| from.display().to_string())?;
    write_with_mode(to, &bytes, mode)
}

fn write_with_mode(to: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let named = || to.display().to_string();
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(named)?;
    }
    fs::write(to, bytes).with_context(named)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(named)
}

fn for_each_file(folder: &Path, visit: &mut impl FnMut(&Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            for_each_file(&path, visit)?;
        } else {
            visit(&path)?;
        }
    }
    Ok(())
}

/// Runs a command that must succeed.
fn done(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// What a command that must succeed prints.
fn text(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{command:?}"))
}
