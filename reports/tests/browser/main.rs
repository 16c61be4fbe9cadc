//! The page in a real browser: no errors, no requests, sorting, both colour schemes, phone width.

mod chromium;
#[path = "../common/mod.rs"]
mod common;

use chromium::Chromium;
use serde_json::json;

fn scheme(tab: &mut Chromium, scheme: &str) {
    let feature = json!({"name": "prefers-color-scheme", "value": scheme});
    tab.command("Emulation.setEmulatedMedia", json!({"features": [feature]}));
}

/// Contrast (WCAG) of an element's text against the page.
const CONTRAST: &str = r#"((selector, property) => {
  const parts = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
  const luminance = (text) => {
    const [r, g, b] = parts(text).map((c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  const text = luminance(getComputedStyle(document.querySelector(selector))[property]);
  return (Math.max(page, text) + 0.05) / (Math.min(page, text) + 0.05);
})"#;

/// Events by which a page complains.
const COMPLAINTS: [&str; 3] = ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"];

#[test]
fn the_page_works_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    tilewright_reports::write(&common::sample(), &file).unwrap();
    let mut tab = Chromium::start(&folder.path().join("chromium"));
    for domain in ["Log", "Runtime", "Network", "Page"] {
        tab.command(&format!("{domain}.enable"), json!({}));
    }
    tab.command("Page.navigate", json!({"url": format!("file://{}", file.display())}));
    tab.wait_for("Page.loadEventFired");

    sorts(&mut tab);
    both_schemes(&mut tab);
    phone(&mut tab);

    let complaints: Vec<_> =
        tab.events().iter().filter(|event| COMPLAINTS.contains(&event.method.as_str())).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let requests = tab.events().iter().filter(|event| event.method == "Network.requestWillBeSent");
    let requests: Vec<&str> =
        requests.map(|event| event.params["request"]["url"].as_str().expect("a URL")).collect();
    assert!(
        requests.iter().all(|url| url.starts_with("file://") || url.starts_with("data:")),
        "{requests:?}"
    );
    assert!(!requests.is_empty(), "the browser tells of requests");
}

fn sorts(tab: &mut Chromium) {
    let column = r#"[...document.querySelector("details table.sortable").querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent).join()"#;
    let click = r#"document.querySelectorAll("details table.sortable th button")[1].click()"#;
    let numbers = |tab: &mut Chromium| -> Vec<u64> {
        tab.evaluate(column).as_str().unwrap().split(',').map(|number| number.parse().unwrap()).collect()
    };
    assert_eq!(numbers(tab).len(), 30);
    tab.evaluate(click);
    // 99 before 100: numbers, not text.
    assert!(numbers(tab).is_sorted(), "{:?}", numbers(tab));
    tab.evaluate(click);
    assert!(numbers(tab).iter().rev().is_sorted());
    let state = tab
        .evaluate(r#"document.querySelectorAll("details table.sortable th")[1].getAttribute("aria-sort")"#);
    assert_eq!(state, "descending");
}

fn both_schemes(tab: &mut Chromium) {
    let mut backgrounds = Vec::new();
    for name in ["light", "dark"] {
        scheme(tab, name);
        backgrounds.push(tab.evaluate("getComputedStyle(document.body).backgroundColor"));
        for (element, property) in [
            ("body", "color"),
            ("svg.tree text.strong", "fill"),
            ("svg.tree text.small", "fill"),
            (".legend", "color"),
            ("div.wide > svg:not(.tree) text", "fill"),
        ] {
            let contrast = tab.evaluate(&format!("{CONTRAST}({element:?}, {property:?})")).as_f64().unwrap();
            assert!(contrast >= 4.5, "{element} in the {name} scheme: {contrast}");
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    tab.evaluate(r#"document.getElementById("scheme").click()"#);
    assert_eq!(
        tab.evaluate("getComputedStyle(document.body).backgroundColor"),
        backgrounds[0],
        "the button overrides"
    );
}

fn phone(tab: &mut Chromium) {
    let width = r#"document.querySelectorAll("details").forEach((d) => d.open = true); document.scrollingElement.scrollWidth"#;
    let screen = json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    tab.command("Emulation.setDeviceMetricsOverride", screen);
    let found = tab.evaluate(width).as_u64().unwrap();
    assert!(found <= 360, "the page is {found} px wide on a phone");
}
