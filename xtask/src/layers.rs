//! The order of layers: which modules of a crate may import which.
//!
//! `ARCHITECTURE.md` has a list of the layers of some crates, a line each, between two markers:
//!
//! ```text
//! <!-- layers -->
//! * `rewrite`: error, pin, phases < discover < cfg
//! <!-- end of layers -->
//! ```
//!
//! A layer is a top-level module of the crate, a file or a folder. A module imports only from layers in front
//! of its own; modules of one layer (with a comma between them) import nothing from each other. Every
//! top-level module of a listed crate has to be in its list. The root file (`lib.rs`, `main.rs`) may import
//! all; what it re-exports counts as an import of the module that it comes from.
//!
//! Sources are read as tokens, so paths inside macros count and those in comments do not. Imports through
//! `super::` cannot leave a top-level module but by way of the crate's root, and are resolved like those that
//! begin with `crate::`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};

const BEGIN: &str = "<!-- layers -->";
const END: &str = "<!-- end of layers -->";

/// The layers of a crate, the lowest first.
#[derive(Debug, PartialEq, Eq)]
struct Layers {
    name: String,
    modules: Vec<Vec<String>>,
}

impl Layers {
    fn of(&self, module: &str) -> Option<usize> {
        self.modules
            .iter()
            .position(|layer| layer.iter().any(|m| m == module))
    }
}

/// Checks all crates that `ARCHITECTURE.md` lists, and prints each import that is not allowed. `Ok(false)` if
/// there is one.
pub fn check(root: &Path) -> Result<bool> {
    let document = root.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&document).with_context(|| document.display().to_string())?;
    let mut wrong = vec![];
    for layers in parse(&text).with_context(|| document.display().to_string())? {
        let source = root.join("crates").join(&layers.name).join("src");
        wrong.extend(check_crate(&layers, &source)?);
    }
    for line in &wrong {
        println!("{line}");
    }
    Ok(wrong.is_empty())
}

/// Reads the list.
fn parse(text: &str) -> Result<Vec<Layers>> {
    let list = text
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    let Some((list, _)) = list else {
        bail!("no list of layers between '{BEGIN}' and '{END}'");
    };
    let mut crates = vec![];
    for line in list.lines().filter(|line| line.starts_with('*')) {
        let Some((name, modules)) = line.trim_start_matches(['*', ' ']).split_once(':') else {
            bail!("'{line}': a crate's name and a ':' are needed");
        };
        let split = |text: &str, at: char| -> Vec<String> {
            text.split(at).map(|part| part.trim().to_owned()).collect()
        };
        crates.push(Layers {
            name: name.trim().trim_matches('`').to_owned(),
            modules: split(modules, '<').iter().map(|l| split(l, ',')).collect(),
        });
    }
    if crates.is_empty() {
        bail!("the list of layers is empty");
    }
    Ok(crates)
}

/// What is wrong with one crate, a sentence each.
fn check_crate(layers: &Layers, source: &Path) -> Result<Vec<String>> {
    let files = sources(source)?;
    let modules: BTreeSet<String> = files
        .iter()
        .filter_map(|file| module_of(source, file))
        .collect();
    let mut wrong: Vec<String> = modules
        .iter()
        .filter(|module| layers.of(module).is_none())
        .map(|module| format!("{}: module {module} is in no layer", layers.name))
        .collect();
    for module in layers.modules.iter().flatten() {
        if !modules.contains(module) {
            wrong.push(format!("{}: there is no module {module}", layers.name));
        }
    }
    let roots = ["lib.rs", "main.rs"].map(|root| source.join(root));
    let mut exports = BTreeMap::new();
    for root in roots.iter().filter(|root| root.is_file()) {
        exports.extend(reexports(&tokens(root)?, &modules));
    }
    for file in &files {
        let Some(own) = module_of(source, file) else {
            continue;
        };
        let Some(layer) = layers.of(&own) else {
            continue;
        };
        for name in imports(&tokens(file)?, depth(source, file)) {
            let from = if modules.contains(&name) {
                &name
            } else if let Some(module) = exports.get(&name) {
                module
            } else {
                continue;
            };
            if *from != own && layers.of(from).is_none_or(|other| other >= layer) {
                wrong.push(format!(
                    "{}: {own} imports {from}, which is not in a layer below it",
                    file.display()
                ));
            }
        }
    }
    Ok(wrong)
}

/// All Rust files of a folder, sorted.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The top-level module that a file belongs to; none for the root.
fn module_of(source: &Path, file: &Path) -> Option<String> {
    let first = file.strip_prefix(source).ok()?.components().next()?;
    let name = Path::new(first.as_os_str()).file_stem()?.to_str()?;
    let is_root = matches!(name, "lib" | "main" | "bin");
    (!is_root).then(|| name.to_owned())
}

/// How many modules a file's own module is below the root.
fn depth(source: &Path, file: &Path) -> usize {
    let parts = file
        .strip_prefix(source)
        .map_or(0, |p| p.components().count());
    let is_folder = file.file_name().is_some_and(|name| name == "mod.rs");
    parts - usize::from(is_folder)
}

fn tokens(file: &Path) -> Result<TokenStream> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    text.parse()
        .map_err(|e| anyhow::anyhow!("{}: {e}", file.display()))
}

/// A token as far as paths are concerned.
enum Part {
    Name(String),
    /// Two colons.
    Colons,
    /// `{…}`, `(…)`, `[…]`.
    Group(TokenStream),
    Sign(char),
    Literal,
}

fn parts(stream: &TokenStream) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    let mut colon = false;
    for token in stream.clone() {
        let is_colon = matches!(&token, TokenTree::Punct(p) if p.as_char() == ':');
        if is_colon && colon {
            parts.pop();
            parts.push(Part::Colons);
            colon = false;
            continue;
        }
        colon = is_colon;
        parts.push(match token {
            TokenTree::Ident(name) => Part::Name(name.to_string()),
            TokenTree::Group(group) => Part::Group(group.stream()),
            TokenTree::Punct(sign) => Part::Sign(sign.as_char()),
            TokenTree::Literal(_) => Part::Literal,
        });
    }
    parts
}

/// The first names of paths that begin at the crate's root, in a file whose module is `depth` below the root.
fn imports(stream: &TokenStream, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let parts = parts(stream);
    let mut at = 0;
    while at < parts.len() {
        let begins = at == 0 || !matches!(parts[at - 1], Part::Colons);
        match &parts[at] {
            Part::Name(name) if name == "crate" && begins => {
                first_names(&parts, at + 1, &mut found)
            }
            Part::Name(name) if name == "super" && begins => {
                let mut up = 1;
                while let (Some(Part::Colons), Some(Part::Name(next))) =
                    (parts.get(at + 1), parts.get(at + 2))
                    && next == "super"
                {
                    (up, at) = (up + 1, at + 2);
                }
                // More than there are in a module inside of the file (`mod tests`) lead no further than the root.
                if up == depth {
                    first_names(&parts, at + 1, &mut found);
                }
            }
            Part::Group(group) => found.extend(imports(group, depth)),
            _ => {}
        }
        at += 1;
    }
    found
}

/// What is after `crate`: `::name` or `::{name, …}`.
fn first_names(parts: &[Part], at: usize, found: &mut BTreeSet<String>) {
    match (parts.get(at), parts.get(at + 1)) {
        (Some(Part::Colons), Some(Part::Name(name))) => {
            found.insert(name.clone());
        }
        (Some(Part::Colons), Some(Part::Group(group))) => {
            found.extend(leading_names(group));
        }
        _ => {}
    }
}

/// The first name of each path in the braces of a `use`.
fn leading_names(group: &TokenStream) -> Vec<String> {
    let mut names = vec![];
    let mut fresh = true;
    for token in group.clone() {
        match token {
            TokenTree::Ident(name) if fresh => {
                names.push(name.to_string());
                fresh = false;
            }
            TokenTree::Punct(p) if p.as_char() == ',' => fresh = true,
            _ => fresh = false,
        }
    }
    names
}

/// What a root file re-exports from its modules: name and module.
fn reexports(stream: &TokenStream, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let parts = parts(stream);
    for at in 0..parts.len() {
        let (Some(Part::Name(word)), Some(Part::Name(module))) = (parts.get(at), parts.get(at + 1))
        else {
            continue;
        };
        if word == "use" && modules.contains(module) {
            let mut names = BTreeSet::new();
            last_names(&parts[at + 2..], &mut names);
            found.extend(names.into_iter().map(|name| (name, module.clone())));
        }
    }
    found
}

/// The names that a `use` brings, from after its first name to the semicolon.
fn last_names(parts: &[Part], found: &mut BTreeSet<String>) {
    let mut last = None;
    for part in parts {
        match part {
            Part::Name(name) => last = Some(name.clone()),
            Part::Group(group) => {
                last = None;
                last_names(&self::parts(group), found);
            }
            Part::Sign(',') => found.extend(last.take()),
            Part::Sign(';') => break,
            _ => {}
        }
    }
    found.extend(last);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str, depth: usize) -> Vec<String> {
        let stream: TokenStream = code.parse().expect("the test's code is tokens");
        imports(&stream, depth).into_iter().collect()
    }

    #[test]
    fn the_list_has_crates_layers_and_neighbours() {
        let text = "x\n<!-- layers -->\n\n* `a`: b, c < d\n<!-- end of layers -->\n* `e`: f";
        let layers = parse(text).expect("it is well formed");
        assert_eq!(layers.len(), 1);
        assert_eq!(layers[0].name, "a");
        assert_eq!(
            (layers[0].of("c"), layers[0].of("d"), layers[0].of("x")),
            (Some(0), Some(1), None)
        );
        assert!(parse("no list").is_err());
    }

    #[test]
    fn paths_are_found_in_uses_expressions_and_macros() {
        assert_eq!(
            names("use crate::a::B; fn f() { crate::c::g() }", 1),
            ["a", "c"]
        );
        assert_eq!(
            names("use crate::{a::{b, c}, d, e as f};", 1),
            ["a", "d", "e"]
        );
        assert_eq!(names("fn f() { vec![crate::a::B] }", 1), ["a"]);
        assert_eq!(
            names("//! [`crate::a`]\n/// crate::b::c\nfn f() {}", 1),
            [""; 0]
        );
    }

    #[test]
    fn super_counts_where_it_leads_to_the_root() {
        assert_eq!(names("use super::a;", 1), ["a"]);
        assert_eq!(names("use super::a;", 2), [""; 0]);
        assert_eq!(names("use super::super::a;", 2), ["a"]);
    }

    #[test]
    fn a_name_that_the_root_exports_belongs_to_its_module() {
        let modules: BTreeSet<String> = ["a".to_owned(), "b".to_owned()].into();
        let stream = "mod a; pub use a::{x::Y, Z as W}; pub use b::c; use other::D;";
        let found = reexports(&stream.parse().expect("tokens"), &modules);
        let shown: Vec<String> = found.iter().map(|(n, m)| format!("{n}:{m}")).collect();
        assert_eq!(shown, ["W:a", "Y:a", "c:b"]);
    }

    #[test]
    fn an_import_from_a_layer_above_is_told_with_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("lib.rs", "mod low; mod high; pub use high::Top;");
        write("low.rs", "fn f() -> crate::high::Top { crate::Top }");
        write("high/mod.rs", "mod part; pub struct Top;");
        write("high/part.rs", "use crate::low::f; use super::Top;");
        let layers = |text: &str| {
            parse(&format!("{BEGIN}\n* `x`: {text}\n{END}"))
                .expect("well formed")
                .remove(0)
        };
        let wrong = check_crate(&layers("low < high"), dir.path()).expect("readable");
        // By its own name, and by the one that the root exports.
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("low.rs: low imports high"), "{wrong:?}");
        let other = check_crate(&layers("high < low"), dir.path()).expect("readable");
        assert_eq!(other.len(), 1, "{other:?}");
        assert!(other[0].contains("part.rs: high imports low"), "{other:?}");
        let missing = check_crate(&layers("low"), dir.path()).expect("readable");
        assert!(
            missing
                .iter()
                .any(|line| line.contains("high is in no layer")),
            "{missing:?}"
        );
    }
}
