//! The report without a mouse: every control is reached by Tab, in the order in which it is seen, and shows that it is
//! at hand; whatever a click does a key does.

use serde_json::Value;

use super::browser::Browser;
use super::support::folder::Folder;
use super::{VIEWS, number_of};

/// A page with everything on it.
fn opened() -> Option<(Browser, Folder)> {
    let mut browser = Browser::start()?;
    let folder = Folder::prepared(&["-g"]);
    browser.size(1280, 900);
    browser.open(&folder.page());
    Some((browser, folder))
}

/// Goes to a view, with nothing at hand.
fn go(browser: &mut Browser, view: &str) {
    browser.evaluate("location.hash = '#none'");
    browser.evaluate(&format!("location.hash = '#{view}'"));
    browser.until(&format!(
        "document.querySelector('main').dataset.view === '{view}'"
    ));
    browser.evaluate("new Promise((r) => setTimeout(r, 150))");
    browser.evaluate("document.activeElement.blur()");
}

/// What Tab should reach: numbers of elements in the order of the document, each with a mark on it.
const MARK: &str = r#"(() => {
  const all = [...document.querySelectorAll('a[href], button, input, select, [tabindex]')].filter((e) => e.tabIndex >= 0 && e.getClientRects().length && !e.closest('dialog:not([open])'));
  all.forEach((e, k) => { e.dataset.mark = k; });
  return all.length;
})()"#;

/// What is at hand: its mark, and whether that is to be seen.
const AT_HAND: &str = r#"(() => {
  const e = document.activeElement;
  if (!e || e === document.body || e.dataset.mark === undefined) return null;
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  return [Number(e.dataset.mark), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0, e.outerHTML.slice(0, 80)];
})()"#;

#[test]
fn tab_reaches_every_control_of_every_view_in_order_and_shows_where_it_is() {
    let Some((mut browser, folder)) = opened() else {
        return;
    };
    for view in VIEWS {
        // Anew, as Tab goes on from where it was.
        browser.open(&folder.path("report.html"));
        go(&mut browser, view);
        let all = browser.evaluate(MARK).as_u64().expect("a number");
        let mut reached = Vec::new();
        for _ in 0..all {
            browser.command_key("Tab");
            let at = browser.evaluate(AT_HAND);
            assert!(!at.is_null(), "{view}: Tab leads nowhere after {reached:?}");
            assert_eq!(
                at[1], true,
                "{view}: nothing shows that {} is at hand",
                at[2]
            );
            reached.push(at[0].as_u64().expect("a number"));
        }
        let wanted: Vec<u64> = (0..all).collect();
        assert_eq!(reached, wanted, "{view}");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The second change's event drew the view again, which lost the row that was chosen in it since.
#[test]
fn two_changes_of_the_address_draw_a_view_once() {
    let Some((mut browser, _folder)) = opened() else {
        return;
    };
    let same = browser.evaluate(
        r"new Promise((done) => {
          let first = null;
          addEventListener('hashchange', () => {
            const table = document.querySelector('main .vt');
            if (first) done(table === first); else first = table;
          });
          location.hash = '#layout';
          location.hash = '#functions';
        })",
    );
    assert_eq!(same, true);
}

/// Rows and pictures waited for a timer, and a browser lets keys come before timers: the first row could not be chosen.
#[test]
fn a_view_is_complete_before_the_next_key() {
    let Some((mut browser, folder)) = opened() else {
        return;
    };
    let report = folder.json(&["app", "-p", "run.plraw"]);
    let hottest = number_of(&report, "work");
    let script = |view: &str, what: &str| {
        format!(
            "(() => {{ document.querySelector('.tabs [data-view={view}]').click(); return {what}; }})()"
        )
    };
    for (view, complete) in [
        (
            "functions",
            "document.querySelectorAll('main .vt-row').length === 6",
        ),
        (
            "coverage",
            "document.querySelectorAll('main .vt-row').length > 0",
        ),
        (
            "layout",
            "document.querySelector('canvas.map').parentElement.querySelector('.mono').textContent !== ''",
        ),
        (
            "flame",
            "document.querySelector('main canvas').style.height !== ''",
        ),
    ] {
        assert_eq!(browser.evaluate(&script(view, complete)), true, "{view}");
    }
    // A graph fits its box: it has a place at once.
    let row = format!("document.querySelector('main .vt-row[data-row=\"{hottest}\"]').click()");
    let placed = "document.querySelector('.graphbox svg > g').hasAttribute('transform')";
    let graph = browser.evaluate(&script("functions", &format!("({row}, {placed})")));
    assert_eq!(graph, true);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Tab, until what matches is at hand.
fn tab_to(browser: &mut Browser, selector: &str) {
    for _ in 0..200 {
        browser.command_key("Tab");
        let there = format!("document.activeElement.matches({selector:?})");
        if browser.evaluate(&there) == Value::Bool(true) {
            return;
        }
    }
    panic!("{selector} is not reached by Tab");
}

#[test]
fn functions_graphs_maps_and_flames_are_used_by_keys_alone() {
    let Some((mut browser, folder)) = opened() else {
        return;
    };
    let report = folder.json(&["app", "-p", "run.plraw"]);
    let hottest = number_of(&report, "work");
    // The views by their tabs.
    tab_to(&mut browser, ".tabs button");
    for _ in 0..2 {
        browser.press("ArrowRight");
    }
    browser.until("location.hash === '#functions' && document.activeElement.matches('.tabs button[aria-selected=true]')");
    // A column sorts by Enter; the first row is opened by arrow and Enter, and the keyboard goes on in the new view.
    tab_to(&mut browser, ".vt-head button[data-name=share]");
    for _ in 0..2 {
        browser.command_key("Enter");
    }
    browser.until(
        "document.querySelector('.vt-head [aria-sort]').getAttribute('aria-sort') === 'descending'",
    );
    browser.evaluate("document.querySelector('.vt').focus()");
    browser.press("ArrowDown");
    browser.command_key("Enter");
    browser.until(&format!("location.hash === '#function/{hottest}'"));
    assert_eq!(
        browser.evaluate("document.activeElement === document.querySelector('main')"),
        true
    );
    // Blocks of its graph, one after the other; the listing follows.
    tab_to(&mut browser, ".graphbox svg");
    browser.press("]");
    browser.until("document.querySelectorAll('.listing .blk.sel').length === 1");
    let first = browser.evaluate("document.querySelector('.listing .blk.sel').dataset.block");
    browser.press("]");
    browser.until(&format!("document.querySelectorAll('.listing .blk.sel').length === 1 && document.querySelector('.listing .blk.sel').dataset.block !== '{}'", first.as_str().expect("a number")));
    let scale = "document.querySelector('.graphbox svg > g').getAttribute('transform')";
    let before = browser.evaluate(scale);
    browser.press("+");
    assert_ne!(browser.evaluate(scale), before);
    // A function is found in the map, and the map moves.
    go(&mut browser, "layout");
    tab_to(&mut browser, "main input[type=search]");
    for letter in ["c", "l", "a", "s", "s"] {
        browser.press(letter);
    }
    browser.until("document.querySelectorAll('.suggest li').length >= 1");
    browser.command_key("Enter");
    browser.until("document.querySelector('main').textContent.includes('of all instructions')");
    tab_to(&mut browser, "canvas.map");
    browser.press("0");
    let label =
        "document.querySelector('canvas.map').parentElement.querySelector('.mono').textContent";
    browser.until(&format!("{label}.startsWith('all code')"));
    // Into the flame graph and out again.
    go(&mut browser, "flame");
    tab_to(&mut browser, "main canvas");
    for key in ["ArrowDown", "ArrowDown"] {
        browser.press(key);
    }
    browser.command_key("Enter");
    browser
        .until("document.querySelector('main').textContent.includes('of all instructions here')");
    browser.press("Backspace");
    browser.until("document.querySelector('main').textContent.includes('Click a box to zoom')");
    // The help opens, closes, and gives back what was at hand.
    tab_to(&mut browser, "main canvas");
    browser.press("?");
    browser.until("document.querySelector('dialog').open");
    browser.command_key("Escape");
    browser.until(
        "!document.querySelector('dialog').open && document.activeElement.matches('main canvas')",
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Black or white on each colour of heat, as the page chooses it: the least contrast, by WCAG's formula.
const ON_HEAT: &str = r#"
  const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  let least = 99;
  for (const colour of ramp()) {
    const [x, y] = [luminance(colour), luminance(rgb(ink(colour) + ''))].sort((a, b) => b - a);
    least = Math.min(least, (x + 0.05) / (y + 0.05));
  }
  return least;
"#;

#[test]
fn text_on_colours_of_heat_can_be_read() {
    let Some((mut browser, _folder)) = opened() else {
        return;
    };
    let helpers = include_str!("../../../report/src/page/dom.js");
    for theme in ["light", "dark"] {
        browser.evaluate(&format!(
            "document.documentElement.dataset.theme = '{theme}'"
        ));
        let least = browser.evaluate(&format!("(() => {{ {helpers} {ON_HEAT} }})()"));
        assert!(least.as_f64() >= Some(4.5), "{theme}: {least}");
    }
}
