//! The binary that was sampled, and which of a recording's addresses are in it.
//!
//! perf knows a place as an offset in a file. Which of the files is ours is said by
//! [`postlink_profile::modules`]. Offsets become link-time addresses through the program headers, so every
//! process may have it loaded somewhere else.

use std::path::{Path, PathBuf};

use postlink_elf::elf::{Elf, Segment};
use postlink_elf::names::build_id_text;
use postlink_elf::raw;
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_isa::{Machine, with_isa};
use postlink_profile::RecognisedBy;
use postlink_profile::address::{AddressKind, AddressProfile, Module, Place};

use crate::Error;
use crate::translate::{self, Translate};
use postlink_bolt_symbols::Functions;

/// A binary, its functions found.
#[derive(Debug)]
pub struct Binary<'e, 'd> {
    /// The file.
    pub elf: &'e Elf<'d>,
    /// What it runs on.
    pub machine: Machine,
    /// Its path, for messages and for finding it in recordings.
    pub path: PathBuf,
    /// Its functions.
    pub functions: Functions<'d>,
    /// Its unwind entries.
    pub unwind: EhFrame<'d>,
    /// Its translation table.
    pub translate: Option<Box<dyn Translate + 'd>>,
}

impl<'e, 'd> Binary<'e, 'd> {
    /// Finds the functions of a file.
    pub fn new(path: &Path, elf: &'e Elf<'d>) -> Result<Binary<'e, 'd>, Error> {
        let unwind = EhFrame::parse(elf)?;
        let machine = Machine::of_elf(elf.machine).ok_or_else(|| Error::Machine {
            path: path.to_owned(),
            machine: elf.machine,
        })?;
        let functions = with_isa!(machine, I => Functions::find::<I>(elf, &unwind)?);
        if functions.list().is_empty() {
            return Err(Error::NoFunctions {
                path: path.to_owned(),
            });
        }
        Ok(Binary {
            elf,
            machine,
            path: path.to_owned(),
            functions,
            unwind,
            translate: translate::of(elf)?,
        })
    }

    /// Whether addresses are those of the file in every process.
    pub fn is_fixed(&self) -> bool {
        is_fixed(self.elf)
    }
}

/// Whether addresses are those of the file in every process.
fn is_fixed(elf: &Elf<'_>) -> bool {
    elf.etype == raw::ET_EXEC
}

/// No page is smaller.
const PAGE: u64 = 0x1000;

/// How addresses of one module become link-time addresses of the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is another file.
    Elsewhere,
    /// They are that.
    AsTheyAre,
    /// Through the program headers.
    ByOffset,
}

/// Which places of a profile are in the binary.
#[derive(Debug)]
pub struct Placer {
    ways: Vec<Way>,
    /// Offset in the file, its end, what to add: executable segments first. Last, of segments that are larger in
    /// memory, the rest of the page that their contents end in, which is mapped with these.
    segments: Vec<(u64, u64, u64)>,
    same_build: bool,
}

impl Placer {
    /// Finds the modules that are the binary.
    ///
    /// Errors: none is; or one has its name and another build-id.
    pub fn new(
        binary: &Binary<'_, '_>,
        profile: &AddressProfile,
        ignore_build_id: bool,
    ) -> Result<Placer, Error> {
        Placer::of_file(&binary.path, binary.elf, profile, ignore_build_id)
    }

    /// The same, of a file whose functions need not be known.
    pub fn of_file(
        path: &Path,
        elf: &Elf<'_>,
        profile: &AddressProfile,
        ignore_build_id: bool,
    ) -> Result<Placer, Error> {
        let modules = profile.modules();
        let file = path.file_name().unwrap_or_default();
        let build_id = elf.build_id;
        let found = postlink_profile::modules_of_binary(modules, file.as_encoded_bytes(), build_id);
        let is_run_time = |module: &Module| module.kind == AddressKind::RunTime;
        if modules.iter().any(is_run_time) && !is_fixed(elf) {
            return Err(Error::NoMappings {
                path: path.to_owned(),
            });
        }
        if let RecognisedBy::OtherBuild(theirs) = &found.by
            && !ignore_build_id
        {
            return Err(Error::BuildId {
                path: path.to_owned(),
                ours: build_id_text(build_id.unwrap_or_default()),
                theirs: build_id_text(theirs),
            });
        }
        let ways: Vec<Way> = modules
            .iter()
            .zip(&found.modules)
            .map(|(module, &is_ours)| match module.kind {
                // Of a file that is only known by its name, by that.
                AddressKind::LinkTime
                    if Some(&module.build_id[..]) == build_id
                        || module.build_id.is_empty()
                            && (module.path.is_empty()
                                || postlink_profile::is_named(module, file.as_encoded_bytes())) =>
                {
                    Way::AsTheyAre
                }
                AddressKind::RunTime => Way::AsTheyAre,
                AddressKind::FileOffset if is_ours => Way::ByOffset,
                _ => Way::Elsewhere,
            })
            .collect();
        if !modules.is_empty() && ways.iter().all(|way| *way == Way::Elsewhere) {
            let mut others: Vec<String> = modules
                .iter()
                .filter(|module| !module.path.is_empty())
                .map(|module| String::from_utf8_lossy(&module.path).into_owned())
                .collect();
            others.truncate(5);
            return Err(Error::NotSampled {
                path: path.to_owned(),
                others: others.join(", "),
            });
        }
        let mut segments: Vec<_> = elf.loads().filter(|load| load.file_size > 0).collect();
        segments.sort_by_key(|load| load.flags & raw::PF_X == 0);
        let bias = |load: &Segment| load.addr.wrapping_sub(load.offset);
        let end = |load: &Segment| load.offset.saturating_add(load.file_size);
        let contents = segments
            .iter()
            .map(|load| (load.offset, end(load), bias(load)));
        let rests = segments.iter().filter_map(|load| {
            let page = end(load).checked_next_multiple_of(PAGE)?;
            let rest = page.min(load.offset.saturating_add(load.mem_size));
            (rest > end(load)).then_some((end(load), rest, bias(load)))
        });
        let segments = contents.chain(rests).collect();
        let ours = |(way, _): &(&Way, &Module)| **way != Way::Elsewhere;
        let same = |m: &Module| build_id.is_some_and(|id| !id.is_empty() && m.build_id == id);
        let same_build = ways.iter().zip(modules).filter(ours).all(|(_, m)| same(m));
        Ok(Placer {
            ways,
            segments,
            same_build,
        })
    }

    /// Whether all that is in the binary was recorded with this very build of it, by the build-id.
    pub fn is_same_build(&self) -> bool {
        self.same_build
    }

    /// Whether a module is the binary; `module` is its number.
    pub fn is_binary(&self, module: usize) -> bool {
        !matches!(self.ways.get(module), None | Some(Way::Elsewhere))
    }

    /// The link-time address of a place, if it is in the binary.
    #[inline]
    pub fn address(&self, place: Place) -> Option<u64> {
        match self.ways.get(place.module.0 as usize)? {
            Way::Elsewhere => None,
            Way::AsTheyAre => Some(place.address),
            Way::ByOffset => {
                let offset = place.address;
                let holds = |s: &&(u64, u64, u64)| offset >= s.0 && offset < s.1;
                let segment = self.segments.iter().find(holds)?;
                Some(offset.wrapping_add(segment.2))
            }
        }
    }
}
