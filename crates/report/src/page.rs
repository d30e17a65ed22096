//! One HTML file: style, script and data in it, nothing from elsewhere.
//!
//! The data is JSON, compressed (deflate) and in base64, since names and instructions repeat themselves and
//! the file is to be mailed and opened by a double click. The browser decompresses it by itself. Base64 has
//! no character that ends a script element, and the page puts texts only where they are text (`textContent`),
//! so names of functions and files cannot become part of the document. The title and the names in the head
//! are escaped here.
//!
//! A policy in the head forbids the page to load anything.

use crate::gather::{Room, Subjects, gather};
use crate::model::Model;

/// The largest page that is made.
pub const LIMIT: usize = 3_000_000;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// In the order in which they use each other.
const SCRIPT: [&str; 11] = [
    include_str!("page/data.js"),
    include_str!("page/dom.js"),
    include_str!("page/verdict.js"),
    include_str!("page/layout.js"),
    include_str!("page/functions.js"),
    include_str!("page/flame.js"),
    include_str!("page/graph.js"),
    include_str!("page/function.js"),
    include_str!("page/sizes.js"),
    include_str!("page/coverage.js"),
    include_str!("page/main.js"),
];

/// The data as JSON.
///
/// Errors: none that the model can cause; numbers and strings are always JSON.
pub fn json(model: &Model) -> Result<String, serde_json::Error> {
    serde_json::to_string(model)
}

/// A page that is no larger than [`LIMIT`], with as much on it as goes.
///
/// Errors: as [`json`].
pub fn fitting(
    subjects: &Subjects<'_, '_>,
    room: Room,
) -> Result<(Model, String), serde_json::Error> {
    let mut room = room;
    loop {
        let model = gather(subjects, room);
        let page = html(&model)?;
        // With nothing more to leave out, the page is what it is.
        if page.len() <= LIMIT || room.graph_bytes < 1000 {
            return Ok((model, page));
        }
        room = room.less();
    }
}

/// The page.
///
/// Errors: as [`json`].
pub fn html(model: &Model) -> Result<String, serde_json::Error> {
    let packed = miniz_oxide::deflate::compress_to_vec(json(model)?.as_bytes(), 9);
    let script = SCRIPT.concat();
    // Each placeholder is once, and what is put in is not looked through again.
    let values = [
        ("%TITLE%", escaped(&model.program.name)),
        ("%STYLE%", STYLE.to_owned()),
        ("%DATA%", base64(&packed)),
        ("%SCRIPT%", script),
    ];
    let mut out =
        String::with_capacity(HTML.len() + values.iter().map(|v| v.1.len()).sum::<usize>());
    let mut rest = HTML;
    for (place, value) in &values {
        if let Some((before, after)) = rest.split_once(place) {
            out.push_str(before);
            out.push_str(value);
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for k in 0..4 {
            out.push(if k <= three.len() {
                DIGITS[(word >> (18 - 6 * k) & 63) as usize].into()
            } else {
                '='
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let encoded =
            ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|s| base64(s.as_bytes()));
        assert_eq!(
            encoded,
            [
                "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"
            ]
        );
    }

    #[test]
    fn a_title_with_markup_is_text() {
        let mut model = Model::default();
        model.program.name = "</title><script>alert('x')</script>".into();
        let page = html(&model).unwrap();
        assert!(page.contains("&lt;/title&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"));
        assert_eq!(page.matches("</title>").count(), 1);
        assert_eq!(page.matches("</script>").count(), 2);
    }

    #[test]
    fn every_placeholder_is_filled() {
        let page = html(&Model::default()).unwrap();
        for place in ["%TITLE%", "%STYLE%", "%DATA%", "%SCRIPT%"] {
            assert!(!page.contains(place), "{place}");
        }
    }
}
