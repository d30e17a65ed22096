//! The binary that was sampled, and which of a recording's addresses are in it.
//!
//! perf knows a place as an offset in a file. Which of the files is ours is said by the build-id; where none is known, by the file's name. Offsets
//! become link-time addresses through the program headers, so every process may have it loaded somewhere else.

use std::path::{Path, PathBuf};

use postlink_image::elf::Elf;
use postlink_image::raw;
use postlink_image::unwind::eh_frame::EhFrame;
use postlink_isa::aarch64::AArch64;
use postlink_isa::x86_64::X86_64;
use postlink_profile::address::{AddressKind, AddressProfile, Module, Place};

use super::Error;
use super::symbols::Functions;
use super::translate::{self, Translate};

/// A binary, its functions found.
#[derive(Debug)]
pub struct Binary<'e, 'd> {
    /// The file.
    pub elf: &'e Elf<'d>,
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
        let functions = match elf.machine {
            raw::EM_X86_64 => Functions::find::<X86_64>(elf, &unwind)?,
            raw::EM_AARCH64 => Functions::find::<AArch64>(elf, &unwind)?,
            machine => {
                return Err(Error::Machine {
                    path: path.to_owned(),
                    machine,
                });
            }
        };
        if functions.list().is_empty() {
            return Err(Error::NoFunctions {
                path: path.to_owned(),
            });
        }
        Ok(Binary {
            elf,
            path: path.to_owned(),
            functions,
            unwind,
            translate: translate::of(elf)?,
        })
    }

    /// Whether addresses are those of the file in every process.
    pub fn is_fixed(&self) -> bool {
        self.elf.etype == 2
    }
}

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
    /// Offset in the file, its end, what to add: executable segments first.
    segments: Vec<(u64, u64, u64)>,
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
        let modules = profile.modules();
        let ours = binary.elf.build_id.unwrap_or_default();
        let file = binary
            .path
            .file_name()
            .unwrap_or_default()
            .as_encoded_bytes();
        let named = |module: &Module| module.path.rsplit(|&byte| byte == b'/').next() == Some(file);
        let same = |module: &Module| !ours.is_empty() && module.build_id == ours;
        let unknown = |module: &Module| module.build_id.is_empty() || ours.is_empty();
        let mut ways: Vec<Way> = modules
            .iter()
            .map(|module| match module.kind {
                AddressKind::LinkTime if module.build_id.is_empty() || same(module) => {
                    Way::AsTheyAre
                }
                AddressKind::RunTime => Way::AsTheyAre,
                AddressKind::FileOffset if same(module) => Way::ByOffset,
                _ => Way::Elsewhere,
            })
            .collect();
        if modules
            .iter()
            .any(|module| module.kind == AddressKind::RunTime)
            && !binary.is_fixed()
        {
            return Err(Error::NoMappings {
                path: binary.path.clone(),
            });
        }
        let files = |module: &&Module| module.kind == AddressKind::FileOffset;
        if !ways.contains(&Way::ByOffset) {
            for (way, module) in ways.iter_mut().zip(modules) {
                if files(&module) && named(module) && unknown(module) {
                    *way = Way::ByOffset;
                }
            }
        }
        if !ways.contains(&Way::ByOffset)
            && let Some(other) = modules.iter().filter(files).find(|module| named(module))
        {
            if !ignore_build_id {
                return Err(Error::BuildId {
                    path: binary.path.clone(),
                    ours: hex(ours),
                    theirs: hex(&other.build_id),
                });
            }
            for (way, module) in ways.iter_mut().zip(modules) {
                if files(&module) && named(module) {
                    *way = Way::ByOffset;
                }
            }
        }
        if !modules.is_empty() && ways.iter().all(|way| *way == Way::Elsewhere) {
            let mut others: Vec<String> = modules
                .iter()
                .filter(|module| !module.path.is_empty())
                .map(|module| String::from_utf8_lossy(&module.path).into_owned())
                .collect();
            others.truncate(5);
            return Err(Error::NotSampled {
                path: binary.path.clone(),
                others: others.join(", "),
            });
        }
        let mut segments: Vec<_> = binary
            .elf
            .loads()
            .filter(|load| load.file_size > 0)
            .collect();
        segments.sort_by_key(|load| load.flags & raw::PF_X == 0);
        let segments = segments
            .into_iter()
            .map(|load| {
                let bias = load.addr.wrapping_sub(load.offset);
                (
                    load.offset,
                    load.offset.saturating_add(load.file_size),
                    bias,
                )
            })
            .collect();
        Ok(Placer { ways, segments })
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

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "none".to_owned();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
