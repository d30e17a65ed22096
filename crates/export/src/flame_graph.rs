//! A flame graph as one SVG file, with a search field and zoom, drawn by crate `inferno` from folded stacks.

use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use crate::folded::{lines, missing};
use crate::{Error, Export, Subject};

/// The file.
pub fn svg(subject: &Subject<'_, '_>) -> Result<Export, Error> {
    let failed = |why: String| Error::Writing { format: "svg", why };
    let lines = lines(subject);
    if lines.is_empty() {
        return Err(failed("nothing ran by this profile".to_owned()));
    }
    let mut options = Options::default();
    options.title = subject
        .path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    options.subtitle = Some(
        "executed instructions; chains of callers are estimated from counts of calls".to_owned(),
    );
    options.count_name = "instructions".to_owned();
    options.text_truncate_direction = TextTruncateDirection::Right;
    // Colours by name and not by chance: the same profile gives the same bytes.
    options.deterministic = true;
    let mut bytes = vec![];
    from_lines(
        &mut options,
        lines.iter().map(|line| line.trim_end()),
        &mut bytes,
    )
    .map_err(|error| failed(error.to_string()))?;
    Ok(Export {
        bytes,
        missing: missing(subject),
    })
}
