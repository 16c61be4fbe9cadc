//! When each work item of a batch ran, and where: a line a processor, a bar a work item (PAT, figure 12).
//!
//! Thousands of items must stay small and readable: all bars of a phase are one path of short relative steps, items narrower than a few
//! pixels are drawn in the phase that takes most of their time, and of too many processors only some are drawn.

use crate::data::{BatchTimeline, TimelineBar};
use std::fmt::Write as _;

/// Pixels.
const WIDTH: u32 = 980;
const LEFT: u32 = 58;
const RIGHT: u32 = 14;
const TOP: u32 = 20;
const BOTTOM: u32 = 36;
/// What all lines together should not be higher than, and a single lane not either.
const LINES_HEIGHT: u32 = 640;
const HIGHEST_LANE: u32 = 14;
/// Units of a pixel along the time, and along the lines: paths have whole numbers only.
const FINE: u32 = 10;
const HALF: u32 = 2;
/// Units of the time.
const UNITS: u32 = (WIDTH - LEFT - RIGHT) * FINE;
/// Narrower items, in units, are drawn as one bar; wider ones end with a gap, so that each is told from the next.
const NARROW: u32 = 3 * FINE;
const GAP: u32 = FINE / 2;
/// Bars of a drawing; one takes about ten bytes.
const MOST_BARS: usize = 11_000;

/// What an item does, by the names of the page's styles.
pub(crate) const PHASES: [&str; 3] = ["waiting", "computing", "writing"];

/// A drawing.
pub(crate) struct TimelinePlot {
    pub(crate) svg: String,
    /// Every which processor is drawn: 1 if all are.
    pub(crate) every: usize,
}

/// One bar, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drawn {
    phase: usize,
    begin: u32,
    end: u32,
}

/// The drawing of a batch; `number` tells it from others on the page.
pub(crate) fn timeline_plot(timeline: &BatchTimeline, processor: &str, number: usize) -> TimelinePlot {
    let span = timeline.bars.iter().map(|bar| bar.end_ns).max().unwrap_or(0).max(1);
    let all: Vec<Vec<Vec<Drawn>>> = by_processor(timeline).iter().map(|bars| lanes(bars, span)).collect();
    let bars = |lanes: &Vec<Vec<Drawn>>| lanes.iter().map(Vec::len).sum::<usize>();
    let every = all.iter().map(bars).sum::<usize>().div_ceil(MOST_BARS).max(1);
    let shown: Vec<(usize, &Vec<Vec<Drawn>>)> = all.iter().enumerate().step_by(every).collect();
    let lanes = shown.iter().map(|(_, lanes)| lanes.len()).max().unwrap_or(0).max(1) as u32;
    let lane = (LINES_HEIGHT / (shown.len() as u32 * lanes).max(1)).clamp(1, HIGHEST_LANE);
    let line = lanes * lane + 1;
    let lines = shown.len() as u32 * line;
    let height = TOP + lines + BOTTOM;
    let name = escaped(&timeline.name);
    let mut svg = format!(
        r#"<svg class="timeline" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="timeline-{number}-title timeline-{number}-desc"><title id="timeline-{number}-title">Timeline of {name}</title><desc id="timeline-{number}-desc">{} bars on {} {}s over {} µs: a work item each, from left to right, in the line of its {}.</desc>"#,
        timeline.bars.len(),
        timeline.processors,
        escaped(processor),
        micros(span),
        escaped(processor),
    );
    axis(&mut svg, span, lines);
    labels(&mut svg, &shown, processor, line);
    // Writing to a String cannot fail.
    let _ =
        write!(svg, r#"<g transform="translate({LEFT} {TOP}) scale(.1 .5)" stroke-width="{}">"#, HALF * lane);
    for (phase, class) in PHASES.iter().enumerate() {
        let mut path = String::new();
        let mut pen = (0, 0);
        for (row, (_, lanes)) in shown.iter().enumerate() {
            for (index, drawn) in lanes.iter().enumerate() {
                let middle = (row as u32 * line * HALF + (2 * index as u32 + 1) * lane) as i64;
                for bar in drawn.iter().filter(|bar| bar.phase == phase) {
                    let (begin, width) = (i64::from(bar.begin), i64::from(bar.end - bar.begin));
                    let _ = write!(path, "m{} {}h{width}", begin - pen.0, middle - pen.1);
                    pen = (begin + width, middle);
                }
            }
        }
        if !path.is_empty() {
            let _ = write!(svg, r#"<path class="{class}" d="{path}"/>"#);
        }
    }
    svg.push_str("</g></svg>");
    TimelinePlot { svg, every }
}

/// The bars of each processor, in the order in which they begin.
fn by_processor(timeline: &BatchTimeline) -> Vec<Vec<TimelineBar>> {
    let mut all = vec![Vec::new(); timeline.processors as usize];
    for bar in &timeline.bars {
        // One that the device is not said to have has no line.
        if let Some(bars) = all.get_mut(bar.processor as usize) {
            bars.push(*bar);
        }
    }
    for bars in &mut all {
        bars.sort_by_key(|bar| (bar.begin_ns, bar.end_ns));
    }
    all
}

/// What is drawn of a processor's items: each in the first lane that is free when it begins.
fn lanes(bars: &[TimelineBar], span: u64) -> Vec<Vec<Drawn>> {
    let mut lanes: Vec<(u64, Vec<Drawn>)> = Vec::new();
    for bar in bars {
        let free = lanes.iter().position(|(until, _)| *until <= bar.begin_ns);
        let lane = free.unwrap_or_else(|| {
            lanes.push((0, Vec::new()));
            lanes.len() - 1
        });
        lanes[lane].0 = bar.end_ns;
        for drawn in drawn(bar, span) {
            match lanes[lane].1.last_mut() {
                Some(last) if last.phase == drawn.phase && last.end >= drawn.begin => last.end = drawn.end,
                _ => lanes[lane].1.push(drawn),
            }
        }
    }
    lanes.into_iter().map(|(_, drawn)| drawn).collect()
}

/// The bars of an item: one for each of its phases, or only one if it is narrow.
fn drawn(bar: &TimelineBar, span: u64) -> Vec<Drawn> {
    let unit = |ns: u64| (ns.min(span) as f64 / span as f64 * f64::from(UNITS)).round() as u32;
    let ready = bar.ready_ns.unwrap_or(bar.begin_ns);
    let times = [bar.begin_ns, ready, bar.computed_ns, bar.end_ns];
    let [begin, .., end] = times.map(unit);
    if end.saturating_sub(begin) < NARROW {
        let longest = (0..PHASES.len()).max_by_key(|&phase| times[phase + 1].saturating_sub(times[phase]));
        let whole = Drawn { phase: longest.unwrap_or(1), begin, end };
        return if end > begin { vec![whole] } else { Vec::new() };
    }
    let phases = (0..PHASES.len()).map(|phase| {
        let until = |time: u64| unit(time).min(end - GAP);
        Drawn { phase, begin: until(times[phase]), end: until(times[phase + 1]) }
    });
    phases.filter(|drawn| drawn.end > drawn.begin).collect()
}

/// Lines and figures of the time.
fn axis(svg: &mut String, span: u64, lines: u32) {
    let step = step(span);
    let bottom = TOP + lines;
    let mut grid = String::new();
    let mut time = 0;
    while time <= span {
        let x = f64::from(LEFT) + time as f64 / span as f64 * f64::from(WIDTH - LEFT - RIGHT);
        let _ = write!(grid, "M{x:.1} {TOP}V{}", bottom + 4);
        let _ = write!(
            svg,
            r#"<text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
            bottom + 17,
            micros(time)
        );
        time += step;
    }
    let _ = write!(
        svg,
        r#"<path class="grid" d="{grid}"/><text x="{}" y="{}" text-anchor="middle">µs</text>"#,
        (LEFT + WIDTH - RIGHT) / 2,
        bottom + 31
    );
}

/// Numbers of some processors, where there is room for them.
fn labels(svg: &mut String, shown: &[(usize, &Vec<Vec<Drawn>>)], processor: &str, line: u32) {
    let _ = write!(svg, r#"<text x="4" y="12">{}</text>"#, escaped(processor));
    let apart = 14u32.div_ceil(line) as usize;
    for (row, (number, _)) in shown.iter().enumerate().step_by(apart) {
        let y = TOP + row as u32 * line + line.min(14) / 2 + 4;
        let _ = write!(svg, r#"<text x="{}" y="{y}" text-anchor="end">{number}</text>"#, LEFT - 8);
    }
}

/// A round step of time that gives a handful of figures.
fn step(span: u64) -> u64 {
    let mut step = 1;
    // 1, 2, 5, 10, 20, ...
    let mut next = [(2, 1), (5, 2), (2, 1)].into_iter().cycle();
    while span / step > 8 {
        let (times, over) = next.next().unwrap_or((2, 1));
        step = step / over * times;
    }
    step
}

/// Nanoseconds in µs, with no more digits than they have.
fn micros(ns: u64) -> String {
    format!("{}", ns as f64 / 1e3)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(processor: u32, times: [u64; 4]) -> TimelineBar {
        let [begin_ns, ready, computed_ns, end_ns] = times;
        TimelineBar { processor, begin_ns, ready_ns: Some(ready), computed_ns, end_ns }
    }

    fn timeline(processors: u32, bars: Vec<TimelineBar>) -> BatchTimeline {
        BatchTimeline {
            name: "batch <1> & more".to_owned(),
            tiles: vec![("m16n64w4s2".to_owned(), 4)],
            processors,
            predicted_idle: 0.1,
            measured_idle: 0.2,
            waiting: Some(0.1),
            computing: 0.6,
            writing: 0.1,
            bars,
        }
    }

    #[test]
    fn a_small_timeline_is_drawn_bar_by_bar() {
        // Two at once on the first processor, one behind the other on the second.
        let bars = vec![
            bar(0, [0, 1_000, 8_000, 9_000]),
            bar(0, [500, 1_500, 9_500, 10_000]),
            bar(1, [0, 500, 4_000, 5_000]),
            TimelineBar { ready_ns: None, ..bar(1, [5_000, 0, 9_000, 9_080]) },
        ];
        insta::assert_snapshot!(timeline_plot(&timeline(2, bars), "SM", 3).svg.replace("><", ">\n<"));
    }

    #[test]
    fn an_item_has_the_lane_that_is_free_when_it_begins() {
        let bars = [bar(0, [0, 0, 5, 5]), bar(0, [2, 2, 8, 8]), bar(0, [5, 5, 9, 9]), bar(0, [6, 6, 10, 10])];
        let widths: Vec<Vec<u32>> =
            lanes(&bars, 10).iter().map(|lane| lane.iter().map(|drawn| drawn.begin).collect()).collect();
        assert_eq!(widths, [vec![0, UNITS / 2], vec![UNITS / 5], vec![UNITS * 6 / 10]]);
    }

    #[test]
    fn a_narrow_item_is_its_longest_phase_and_joins_its_like() {
        let span = 1_000_000;
        let narrow = |begin| bar(0, [begin, begin + 100, begin + 900, begin + 1_000]);
        let [one] = drawn(&narrow(0), span)[..] else { panic!("one bar") };
        assert_eq!((one.phase, one.begin), (1, 0));
        let lanes = lanes(&[narrow(0), narrow(1_000), narrow(500_000)], span);
        assert_eq!(lanes.len(), 1);
        assert_eq!(lanes[0].len(), 2, "the first two touch: {lanes:?}");
        let wide = drawn(&bar(0, [0, 100_000, 800_000, 1_000_000]), span);
        assert_eq!(wide.iter().map(|drawn| drawn.phase).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(wide[2].end, UNITS - GAP, "a gap tells it from the next");
    }

    #[test]
    fn a_drawing_of_many_items_stays_small_and_says_so() {
        let many = |each: u64, processors: u32| {
            let of = |processor| {
                (0..each).map(move |i| {
                    let begin = i * 7_000 + u64::from(processor) * 13;
                    bar(processor, [begin, begin + 900, begin + 5_000, begin + 6_500])
                })
            };
            timeline_plot(&timeline(processors, (0..processors).flat_map(of).collect()), "SM", 0)
        };
        let TimelinePlot { svg, every } = many(15, 132);
        assert!(every == 1 && svg.len() < 100_000, "2000 items: {} bytes", svg.len());
        let TimelinePlot { svg, every } = many(120, 132);
        assert!(every > 1 && svg.len() < 150_000, "every {every}, {} bytes", svg.len());
        let TimelinePlot { svg, every } = many(100_000, 2);
        assert!(every == 1 && svg.len() < 150_000, "every {every}, {} bytes", svg.len());
    }

    #[test]
    fn steps_of_the_axis_are_round() {
        assert_eq!([5, 9, 81, 250, 1_000, 123_456].map(step), [1, 2, 10, 50, 200, 20_000]);
        assert_eq!([0, 1_500, 20_000].map(micros), ["0", "1.5", "20"]);
    }

    #[test]
    fn nothing_and_processors_that_there_are_not_are_no_trouble() {
        let empty = timeline_plot(&timeline(0, Vec::new()), "SM", 0).svg;
        assert!(empty.contains("0 bars") && empty.ends_with("</svg>"), "{empty}");
        let beyond = timeline_plot(&timeline(1, vec![bar(7, [0, 1, 2, 3])]), "SM", 0).svg;
        assert!(!beyond.contains("class=\"computing\""), "{beyond}");
    }
}
