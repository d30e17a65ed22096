//! The last steps: thresholds, the pre-inliner, trimming and folding, nesting, leaving out what is ambiguous,
//! density; then writing.

use std::io::Write;

use rustc_hash::FxHashSet;

use super::{Binary, Format, Made, Options, Report};
use crate::FormatError;
use crate::context::size::Sizes;
use crate::context::trie::Trie;
use crate::context::{Cold, nest, preinline};
use crate::names;
use crate::sample::summary::{Summary, Thresholds};
use crate::sample::{Function, NameId, Profile, binary, extbinary, gcov, text};

/// Names of functions that compilers make for initialisers: several functions of a program have them, so they
/// say nothing.
const AMBIGUOUS: [&[u8]; 2] = [b"__cxx_global_var_init", b"__tls_init"];

/// Works over a profile, and writes it.
pub(super) fn finish(
    file: &Binary<'_, '_>,
    made: Made,
    options: &Options,
    mut report: Report,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    let Made {
        mut profile,
        functions,
    } = made;
    // Sums of chains have been set before their counts were worked over.
    if options.update_totals && !profile.context_sensitive {
        profile
            .functions
            .values_mut()
            .for_each(Function::recompute_totals);
    }
    if profile.context_sensitive {
        chains(file, &mut profile, &functions, options);
    } else if options.trim_cold {
        let thresholds = Summary::of(&profile).thresholds(&options.summary);
        profile
            .functions
            .retain(|_, function| function.total >= thresholds.cold);
    }
    drop_ambiguous(&mut profile);
    density(&profile, options, &mut report);
    report.functions = profile.functions.len();
    let mut symbols: Vec<&[u8]> = Vec::new();
    if options.symbol_list {
        symbols = file
            .program
            .ranges()
            .iter()
            .map(|range| names::canonical(range.name))
            .collect();
        symbols.sort_unstable();
        symbols.dedup();
    }
    if options.hashes && options.format != Format::ExtBinary {
        report
            .warnings
            .push("-use-md5 is ignored. Specify --format=extbinary to enable it".to_owned());
    }
    let written = match options.format {
        Format::Text => text::write(&profile, out),
        Format::ExtBinary => {
            let how = extbinary::Options {
                hashes: options.hashes,
                symbols: options.symbol_list.then_some(&symbols[..]),
                vtables: options.vtables_in_binary,
            };
            extbinary::write(&profile, &how, out)
        }
        Format::Binary | Format::Gcov(_) if profile.context_sensitive || profile.probe_based => {
            return Err(FormatError::new(
                "Profile encoding format unsupported for writing operations",
            ));
        }
        Format::Gcov(version) => gcov::write(&profile, version, out),
        Format::Binary => binary::write(&profile, out),
    };
    written.map_err(|error| FormatError::new(format!("cannot write the profile: {error}")))?;
    Ok(report)
}

/// What is done with chains of callers.
fn chains(
    file: &Binary<'_, '_>,
    profile: &mut Profile,
    functions: &FxHashSet<u32>,
    options: &Options,
) {
    let thresholds: Thresholds = Summary::of(profile).thresholds(&options.summary);
    if let Some(how) = options.preinliner {
        let mut sizes = options.cost_by_bytes.then(|| {
            Sizes::measure(
                file.program,
                file.lines,
                file.loaded,
                functions,
                &mut profile.names,
            )
        });
        let mut trie = Trie::new(&profile.names, std::mem::take(&mut profile.functions));
        preinline::run(&mut trie, &profile.names, sizes.as_mut(), &thresholds, how);
        profile.functions = trie.into_functions();
        profile.preinlined = true;
    }
    if thresholds.hot > 0 {
        Cold {
            threshold: thresholds.hot,
            merge: options.merge_cold.unwrap_or(options.preinliner.is_none()),
            trim: options.trim_cold,
            depth: options.cold_depth,
            keep_chains: options.preinliner.is_some(),
        }
        .apply(profile);
    }
    if options.nested {
        let trie = Trie::new(&profile.names, std::mem::take(&mut profile.functions));
        profile.functions = nest::nest(trie, options.duplicate);
        profile.context_sensitive = false;
    }
}

fn drop_ambiguous(profile: &mut Profile) {
    let ambiguous = |name: &[u8]| AMBIGUOUS.iter().any(|prefix| name.starts_with(prefix));
    let names = &profile.names;
    let dropped: FxHashSet<NameId> = names.ids().filter(|id| ambiguous(names.get(*id))).collect();
    if dropped.is_empty() {
        return;
    }
    profile.functions.retain(|context, _| {
        !context
            .last()
            .is_some_and(|leaf| dropped.contains(&leaf.name))
    });
    profile
        .functions
        .values_mut()
        .for_each(|function| drop_inlinees(function, &dropped));
}

fn drop_inlinees(function: &mut Function, dropped: &FxHashSet<NameId>) {
    for functions in function.inlinees.values_mut() {
        functions.retain(|name, _| !dropped.contains(name));
        functions
            .values_mut()
            .for_each(|inlinee| drop_inlinees(inlinee, dropped));
    }
    function
        .inlinees
        .retain(|_, functions| !functions.is_empty());
}

/// Sum and number of the counts of a function and what is inlined into it.
fn bodies(function: &Function) -> (u64, u64) {
    let mut sum = function
        .body
        .values()
        .fold(0u64, |sum, record| sum.saturating_add(record.count));
    let mut size = function.body.len() as u64;
    for inlinee in function
        .inlinees
        .values()
        .flat_map(|functions| functions.values())
    {
        let (more, places) = bodies(inlinee);
        sum = sum.saturating_add(more);
        size += places;
    }
    (sum, size)
}

/// Says how many samples there are for each location of the functions that matter, if that is few or was asked.
fn density(profile: &Profile, options: &Options, report: &mut Report) {
    let mut functions: Vec<(f64, u64)> = profile
        .functions
        .values()
        .map(bodies)
        .filter(|(_, size)| *size > 0)
        .map(|(sum, size)| (sum as f64 / size as f64, sum))
        .collect();
    functions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let total = functions
        .iter()
        .fold(0u64, |sum, function| sum.saturating_add(function.1));
    // In single precision, as LLVM's tool calculates it.
    let wanted = total as f32 * options.density_cutoff as f32 / 1_000_000.0;
    let (mut sum, mut density) = (0u64, 0.0);
    for (this, count) in functions {
        if sum as f32 >= wanted {
            break;
        }
        sum = sum.saturating_add(count);
        density = this;
    }
    if density == 0.0 {
        report.warnings.push(
            "The output profile is empty or the --profile-density-cutoff-hot option is set too low. Please check your command.".to_owned(),
        );
    } else if density < options.density_threshold {
        report.warnings.push(format!(
            "Sample PGO is estimated to optimize better with {:.1}x more samples. Please consider increasing sampling rate or profiling for longer duration to get more samples.",
            options.density_threshold / density
        ));
    }
    if options.show_density {
        report.notes.push(format!(
            "Functions with density >= {density:.1} account for {:.2}% total sample counts.",
            f64::from(options.density_cutoff) / 10_000.0
        ));
    }
}
