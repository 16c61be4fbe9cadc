//! The page as text: figures, escaping, and data of all kinds.

mod common;

use tilewright_reports::policy_names::{BATCH_INVARIANT, PATS_PLANNER};
use tilewright_reports::{InvariantCost, PolicyTiming, ReportData, TreeNode, render, write};

#[test]
fn figures_are_exactly_those_of_the_data() {
    let data = common::sample();
    let html = render(&data).unwrap();
    for scenario in &data.scenarios {
        assert!(html.contains(&scenario.name));
        for timing in &scenario.timings {
            assert!(
                html.contains(&format!("data-key=\"{}\"", timing.median_us)),
                "{} {}",
                scenario.name,
                timing.policy
            );
        }
    }
    // A single sample has no spread.
    let single =
        data.scenarios.iter().flat_map(|scenario| &scenario.timings).filter(|timing| timing.count == 1);
    assert!(single.clone().count() > 0);
    assert_eq!(html.matches(" (n = 1)<").count(), single.count());
    assert!(html.contains(" ± 2.00<") && !html.contains("± 0.00"), "several samples have one");
    for policy in data.held_out.iter().chain(&data.batches) {
        assert!(html.contains(&format!("data-key=\"{}\">{:.1} %<", policy.mean, policy.mean * 100.0)));
    }
    for text in ["rows ≤ 8", "20 workloads, regret 1.2 %", "tilewright tune --budget 60", "2 × threads"] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn launch_modes_are_shown_where_they_were_measured() {
    let mut data = common::sample();
    let html = render(&data).unwrap();
    let launching = data.launching.take().unwrap();
    for text in [
        "<h2>Launch modes</h2>",
        "the best launch mode is single+last-cta: 0.81 of the time of the default, serial+launch",
        "single+last-cta failed on 1 batches; on one of them: the mix &#60;of tiles&#62; has no room",
        "data-key=\"0.828125\">0.83<",
    ] {
        assert!(html.contains(text), "{text}");
    }
    for batch in &launching.batches {
        let default =
            format!("<td>{}</td><td class=\"number\" data-key=\"{}\">", batch.name, batch.default_us);
        assert!(html.contains(&default), "{}", batch.name);
        for over in batch.over_default.iter().flatten() {
            assert!(html.contains(&format!("data-key=\"{over}\">{over:.2}<")), "{} {over}", batch.name);
        }
    }
    assert!(!render(&data).unwrap().contains("Launch modes"));
}

#[test]
fn timelines_are_drawn_with_their_idle_shares() {
    let mut data = common::sample();
    let html = render(&data).unwrap();
    for text in [
        "<h2>Timelines</h2>",
        "Of the places&#39; time 17.2 % was idle where 6.2 % was predicted (means over 2 batches).",
        "idle share predicted 6.2 % / measured 17.2 %; 7.8 % waiting for first tokens, 65.6 % computing, 9.4 % writing. Tiles: m16n64w4s2 (8 places).",
        "not drawn has no timeline: no room &#60;left&#62;",
        "<title id=\"timeline-0-title\">Timeline of drawn &lt;first&gt;</title>",
        "<title id=\"timeline-1-title\">Timeline of drawn second</title>",
        "data-key=\"0.171875\">17.2 %<",
    ] {
        assert!(html.contains(text), "{text}");
    }
    assert_eq!(html.matches("<path class=\"computing\"").count(), 2);
    data.timelines = None;
    let html = render(&data).unwrap();
    assert!(!html.contains("<h2>Timelines") && !html.contains("<svg class=\"timeline"));
}

#[test]
fn the_legend_names_what_is_drawn() {
    let mut data = common::sample();
    let html = render(&data).unwrap();
    assert!(html.contains("\"mark mark-4\"") && !html.contains("\"mark mark-5\""), "PAT was not measured");
    let timing = PolicyTiming { policy: PATS_PLANNER.to_owned(), ..data.scenarios[7].timings[0].clone() };
    data.scenarios[7].timings.push(timing);
    assert!(
        render(&data)
            .unwrap()
            .contains("<span class=\"mark mark-5\">△</span> PAT&#39;s planner on our kernels")
    );
}

#[test]
fn batch_invariant_plans_are_shown_where_they_were_executed() {
    let mut data = common::sample();
    assert!(!render(&data).unwrap().contains("batch-invariant"));
    let time = PolicyTiming { policy: BATCH_INVARIANT.to_owned(), ..data.scenarios[7].timings[0].clone() };
    data.scenarios[7].timings.push(time);
    let cost = InvariantCost {
        over_selector: Some(1.1875),
        p95: Some(1.5),
        worst: Some(1.75),
        worst_batch: "tenants/<t>".to_owned(),
        batches: 24,
        failed: 1,
        failure: "no <registers>".to_owned(),
    };
    data.invariant = Some(cost.clone());
    let html = render(&data).unwrap();
    for text in [
        "<span class=\"mark mark-6\">□</span> batch-invariant plans",
        "<td>batch-invariant, over the selector (geometric mean)</td>",
        "data-key=\"0.1875\">18.8 %<",
        "data-key=\"0.75\">75.0 %<",
        "data-key=\"24\">24<",
        "Batch-invariant plans take 1.188 of the selector&#39;s time on 24 batches",
        "1.750 at worst, tenants/&#60;t&#62;",
        "They failed on 1 batches; on one of them: no &#60;registers&#62;.",
    ] {
        assert!(html.contains(text), "{text}");
    }
    let untimed = InvariantCost { over_selector: None, p95: None, worst: None, batches: 0, ..cost };
    data.invariant = Some(untimed);
    let html = render(&data).unwrap();
    assert!(html.contains("No batch-invariant plan was timed. They failed on 1 batches"));
}

#[test]
fn nothing_is_requested_from_anywhere() {
    let html = render(&common::sample()).unwrap();
    for forbidden in ["http://", "https://", "@import", "url(", "<link rel=\"stylesheet\"", "src="] {
        let found = html
            .match_indices(forbidden)
            .filter(|(at, _)| !html[*at..].starts_with("http://www.w3.org/"))
            .count();
        assert_eq!(found, 0, "{forbidden}");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn text_stays_text() {
    let mut data = common::sample();
    let evil = "<script>alert(1)</script>".to_owned();
    data.device.clone_from(&evil);
    data.command.clone_from(&evil);
    data.warnings = vec![evil.clone()];
    data.scenarios[0].name.clone_from(&evil);
    data.workloads[0].name.clone_from(&evil);
    data.space[0].rule.clone_from(&evil);
    data.tree = TreeNode::Leaf { ranked: vec![evil.clone()], support: 1, regret: 0.0 };
    assert!(!render(&data).unwrap().contains("<script>alert"));
}

#[test]
fn missing_and_impossible_figures_are_shown_as_dashes() {
    let mut data = common::sample();
    data.scenarios[0].limit_us = f64::NAN;
    data.scenarios[1].limit_us = 0.0;
    data.scenarios[2].timings.clear();
    data.scenarios[3].timings[0].median_us = f64::INFINITY;
    data.workloads[0].tiles[0].median_us = Some(f64::NAN);
    data.workloads[1].tiles.clear();
    data.held_out[0].mean = f64::NAN;
    assert!(render(&data).unwrap().contains("–"));
    let empty = ReportData {
        scenarios: Vec::new(),
        workloads: Vec::new(),
        space: Vec::new(),
        held_out: Vec::new(),
        batches: Vec::new(),
        headline: None,
        parameters: Vec::new(),
        tree: TreeNode::Leaf { ranked: Vec::new(), support: 0, regret: f64::NAN },
        ..data
    };
    assert!(render(&empty).unwrap().contains("Nothing was judged yet"));
}

#[test]
fn the_file_appears_whole_and_errors_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/report.html");
    write(&common::sample(), &path).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().trim_end().ends_with("</html>"));
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    std::fs::create_dir(folder.path().join("taken.html")).unwrap();
    let error = write(&common::sample(), &folder.path().join("taken.html")).unwrap_err().to_string();
    assert!(error.contains("taken.html: cannot write"), "{error}");
}

#[test]
fn samples_that_span_no_finite_range_are_not_drawn() {
    for samples in [vec![f64::NAN; 5], vec![f64::MAX, -f64::MAX, 1.0]] {
        let mut data = common::sample();
        for tile in data.workloads.iter_mut().flat_map(|workload| &mut workload.tiles) {
            tile.samples_us.clone_from(&samples);
        }
        assert!(!render(&data).unwrap().contains("<figure class=\"race\">"));
    }
}

#[test]
fn a_missing_figure_stays_in_its_column_of_numbers() {
    let mut data = common::sample();
    for scenario in &mut data.scenarios[..2] {
        scenario.timings[0].median_us = f64::NAN;
    }
    let html = render(&data).unwrap();
    for cell in ["– (n = 1)", "– ± 2.00"] {
        assert!(html.contains(&format!("<td class=\"number\" data-key=\"\">{cell}</td>")), "{cell}");
    }
}

#[test]
fn a_batch_without_the_selector_has_no_selector_figure() {
    let mut data = common::sample();
    data.scenarios.truncate(1);
    data.scenarios[0].timings.remove(0);
    let html = render(&data).unwrap();
    assert!(html.contains("<td class=\"number\" data-key=\"\">–</td><td>heads / 8</td>"), "{html}");
}

#[test]
fn every_picture_has_a_name() {
    let html = render(&common::sample()).unwrap();
    assert!(html.matches("<svg").count() > 2);
    assert_eq!(html.matches("<svg").count(), html.matches("role=\"img\"").count());
}
