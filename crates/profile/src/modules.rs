//! Which modules of a recording are the binary at hand.
//!
//! A recording names the files that were mapped by path, and says their build-ids if it knows them. The path
//! is a weak sign: the program may have been recorded elsewhere, or built again since, and a recording may
//! hold two builds of one name. So, of the modules whose addresses are offsets in files:
//!
//! 1. Those with the binary's build-id are it, whatever they are called, and no others.
//! 2. If there are none: those of its file name, as far as their build-id or its own is not known.
//! 3. If there are none: those of its file name have another build-id. They are another build, and whether
//!    that is an error is for the caller to say: `perf2bolt` refuses them unless it is told to ignore
//!    build-ids; `llvm-profgen`, which goes by names alone, takes them with a warning.

use crate::address::{AddressKind, Module};

/// How modules were recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecognisedBy {
    /// RecognisedBy their build-id.
    BuildId,
    /// RecognisedBy their name: a build-id is not known.
    Name,
    /// RecognisedBy their name, and they have another build-id: this one.
    OtherBuild(Vec<u8>),
    /// None was.
    Nothing,
}

/// The modules that are the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryModules {
    /// How they were recognised.
    pub by: RecognisedBy,
    /// Of each module whether it is one of them.
    pub modules: Vec<bool>,
}

/// Whether the file of a module has this name, whatever folder it was in.
pub fn is_named(module: &Module, name: impl AsRef<[u8]>) -> bool {
    module.path.rsplit(|&byte| byte == b'/').next() == Some(name.as_ref())
}

/// Finds the modules that are a binary with this file name (without directories) and build-id.
pub fn modules_of_binary(
    modules: &[Module],
    name: &[u8],
    build_id: Option<&[u8]>,
) -> BinaryModules {
    let build_id = build_id.unwrap_or_default();
    let is_file = |module: &Module| module.kind == AddressKind::FileOffset;
    let is_named = |module: &Module| is_named(module, name);
    let pick = |by: RecognisedBy, wanted: &dyn Fn(&Module) -> bool| {
        let picked: Vec<bool> = modules.iter().map(|m| is_file(m) && wanted(m)).collect();
        picked.contains(&true).then_some(BinaryModules {
            by,
            modules: picked,
        })
    };
    let same = |module: &Module| !build_id.is_empty() && module.build_id == build_id;
    let unknown = |module: &Module| module.build_id.is_empty() || build_id.is_empty();
    let other = || {
        let found = modules.iter().find(|m| is_file(m) && is_named(m))?;
        pick(RecognisedBy::OtherBuild(found.build_id.clone()), &is_named)
    };
    pick(RecognisedBy::BuildId, &same)
        .or_else(|| {
            pick(RecognisedBy::Name, &|module| {
                is_named(module) && unknown(module)
            })
        })
        .or_else(other)
        .unwrap_or_else(|| BinaryModules {
            by: RecognisedBy::Nothing,
            modules: vec![false; modules.len()],
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, build_id: &[u8], kind: AddressKind) -> Module {
        Module {
            path: path.into(),
            build_id: build_id.to_vec(),
            kind,
        }
    }

    fn file(path: &str, build_id: &[u8]) -> Module {
        module(path, build_id, AddressKind::FileOffset)
    }

    #[test]
    fn another_build_of_the_same_name_does_not_count_if_ours_was_recorded() {
        let modules = [
            file("/old/app", b"1"),
            file("/new/other", b"2"),
            file("/x/app", b""),
        ];
        let found = modules_of_binary(&modules, b"app", Some(b"2"));
        assert_eq!(found.by, RecognisedBy::BuildId);
        assert_eq!(found.modules, [false, true, false]);
    }

    #[test]
    fn names_decide_where_a_build_id_is_not_known() {
        let modules = [
            file("/old/app", b"1"),
            file("/lib/app.so", b""),
            file("app", b""),
            module("/x/app", b"", AddressKind::LinkTime),
        ];
        let found = modules_of_binary(&modules, b"app", Some(b"2"));
        assert_eq!(
            (found.by, found.modules),
            (RecognisedBy::Name, vec![false, false, true, false])
        );
        let found = modules_of_binary(&modules, b"app", None);
        assert_eq!(
            (found.by, found.modules),
            (RecognisedBy::Name, vec![true, false, true, false])
        );
    }

    #[test]
    fn another_build_is_told_apart_from_another_program() {
        let modules = [file("/old/app", b"1"), file("/bin/sh", b"3")];
        let found = modules_of_binary(&modules, b"app", Some(b"2"));
        assert_eq!(found.by, RecognisedBy::OtherBuild(b"1".to_vec()));
        assert_eq!(found.modules, [true, false]);
        let found = modules_of_binary(&modules, b"ls", Some(b"2"));
        assert_eq!(
            (found.by, found.modules),
            (RecognisedBy::Nothing, vec![false, false])
        );
    }
}
