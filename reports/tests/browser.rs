//! The page in a real browser: no errors, no requests, sorting, both colour schemes, phone width.

mod common;

use headless_chrome::protocol::cdp::types::Event;
use headless_chrome::protocol::cdp::{Emulation, Log, Network, Runtime};
use headless_chrome::{Browser, LaunchOptions, Tab};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

fn chromium() -> PathBuf {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let candidates = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates.into_iter().find(|path| path.is_file()).expect(
        "the report is tested in a browser: install Debian's package `chromium`, or run `scripts/test`, which does",
    )
}

fn launch() -> Browser {
    let flags = [
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ];
    let options = LaunchOptions::default_builder()
        .path(Some(chromium()))
        .sandbox(false)
        .window_size(Some((1200, 900)))
        .args(flags.iter().map(OsStr::new).collect())
        .build()
        .expect("the options are complete");
    Browser::new(options).expect("chromium starts")
}

fn evaluate(tab: &Tab, script: &str) -> serde_json::Value {
    tab.evaluate(script, false).expect("the script runs").value.unwrap_or(serde_json::Value::Null)
}

fn scheme(tab: &Tab, scheme: &str) {
    let feature =
        Emulation::MediaFeature { name: "prefers-color-scheme".to_owned(), value: scheme.to_owned() };
    tab.call_method(Emulation::SetEmulatedMedia { media: None, features: Some(vec![feature]) })
        .expect("it is emulated");
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

#[test]
fn the_page_works_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    tilewright_reports::write(&common::sample(), &file).unwrap();
    let browser = launch();
    let tab = browser.new_tab().unwrap();
    let (complaints, requests) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    tab.call_method(Log::Enable(None)).unwrap();
    tab.call_method(Runtime::Enable(None)).unwrap();
    tab.call_method(Network::Enable {
        max_total_buffer_size: None,
        max_resource_buffer_size: None,
        max_post_data_size: None,
        report_direct_socket_traffic: None,
        enable_durable_messages: None,
    })
    .unwrap();
    let (heard, seen) = (Arc::clone(&complaints), Arc::clone(&requests));
    tab.add_event_listener(Arc::new(move |event: &Event| match event {
        Event::LogEntryAdded(entry) => heard.lock().unwrap().push(entry.params.entry.text.clone()),
        Event::RuntimeConsoleAPICalled(call) => heard.lock().unwrap().push(format!("{:?}", call.params)),
        Event::RuntimeExceptionThrown(thrown) => heard.lock().unwrap().push(format!("{:?}", thrown.params)),
        Event::NetworkRequestWillBeSent(request) => {
            seen.lock().unwrap().push(request.params.request.url.clone())
        }
        _ => {}
    }))
    .unwrap();
    tab.navigate_to(&format!("file://{}", file.display())).unwrap();
    tab.wait_until_navigated().unwrap();

    sorts(&tab);
    both_schemes(&tab);
    phone(&tab);

    let complaints = complaints.lock().unwrap();
    assert!(complaints.is_empty(), "{complaints:?}");
    let requests = requests.lock().unwrap();
    assert!(
        requests.iter().all(|url| url.starts_with("file://") || url.starts_with("data:")),
        "{requests:?}"
    );
    assert!(!requests.is_empty(), "the listener hears of requests");
}

fn sorts(tab: &Tab) {
    let column = r#"[...document.querySelector("details table.sortable").querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent).join()"#;
    let click = r#"document.querySelectorAll("details table.sortable th button")[1].click()"#;
    let numbers = |tab: &Tab| -> Vec<u64> {
        evaluate(tab, column).as_str().unwrap().split(',').map(|number| number.parse().unwrap()).collect()
    };
    assert_eq!(numbers(tab).len(), 30);
    evaluate(tab, click);
    // 99 before 100: numbers, not text.
    assert!(numbers(tab).is_sorted(), "{:?}", numbers(tab));
    evaluate(tab, click);
    assert!(numbers(tab).iter().rev().is_sorted());
    let state = evaluate(
        tab,
        r#"document.querySelectorAll("details table.sortable th")[1].getAttribute("aria-sort")"#,
    );
    assert_eq!(state, "descending");
}

fn both_schemes(tab: &Tab) {
    let mut backgrounds = Vec::new();
    for name in ["light", "dark"] {
        scheme(tab, name);
        backgrounds.push(evaluate(tab, "getComputedStyle(document.body).backgroundColor"));
        for (element, property) in [
            ("body", "color"),
            ("svg.tree text.strong", "fill"),
            ("svg.tree text.small", "fill"),
            (".legend", "color"),
            ("div.wide > svg:not(.tree) text", "fill"),
        ] {
            let contrast = evaluate(tab, &format!("{CONTRAST}({element:?}, {property:?})")).as_f64().unwrap();
            assert!(contrast >= 4.5, "{element} in the {name} scheme: {contrast}");
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    evaluate(tab, r#"document.getElementById("scheme").click()"#);
    assert_eq!(
        evaluate(tab, "getComputedStyle(document.body).backgroundColor"),
        backgrounds[0],
        "the button overrides"
    );
}

fn phone(tab: &Tab) {
    let width = r#"document.querySelectorAll("details").forEach((d) => d.open = true); document.scrollingElement.scrollWidth"#;
    tab.call_method(Emulation::SetDeviceMetricsOverride {
        width: 360,
        height: 740,
        device_scale_factor: 2.0,
        mobile: true,
        scale: None,
        screen_width: None,
        screen_height: None,
        position_x: None,
        position_y: None,
        dont_set_visible_size: None,
        screen_orientation: None,
        viewport: None,
        display_feature: None,
        device_posture: None,
    })
    .unwrap();
    let found = evaluate(tab, width).as_u64().unwrap();
    assert!(found <= 360, "the page is {found} px wide on a phone");
}
