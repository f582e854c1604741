//! Scales, curves, and what both pictures must show.

use super::scale::labels;
use super::*;
use crate::history::MarkKind;
use crate::metrics::{MetricsWriter, Record, Session};

/// A run with one metric and a checkpoint and restart in the middle.
fn run(name: &str, values: impl IntoIterator<Item = f64>) -> History {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name).join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path, &Session::default()).unwrap();
    for (step, value) in values.into_iter().enumerate() {
        writer.write(&Record::new(step as u64).with("loss", value)).unwrap();
    }
    History::read(&path).unwrap()
}

fn chart(runs: &[History]) -> Chart {
    Chart::new(runs, "loss", &ChartOptions::default()).unwrap()
}

#[test]
fn the_average_starts_at_the_first_value_and_skips_what_is_not_finite() {
    let points: Vec<(u64, f64)> =
        [4.0, f64::NAN, 2.0].into_iter().enumerate().map(|(i, v)| (i as u64, v)).collect();
    let smooth = smoothed(&points, 0.5);
    assert_eq!(smooth, [(0, 4.0), (2, (4.0 * 0.5 + 2.0) / 1.5)]);
    assert_eq!(smoothed(&points, 0.0), [(0, 4.0), (2, 2.0)]);
    let odd = ChartOptions { smooth: Some(f64::NAN), ..ChartOptions::default() };
    assert_eq!(Chart::new(&[run("a", [1.0, 2.0])], "loss", &odd).unwrap().smooth, 0.9);
}

#[test]
fn a_range_of_more_than_a_hundred_is_logarithmic() {
    assert_eq!(chart(&[run("a", [1.0, 99.0])]).scale, Scale::Linear);
    assert_eq!(chart(&[run("a", [1.0, 101.0])]).scale, Scale::Log);
    assert_eq!(chart(&[run("a", [0.0, 1000.0])]).scale, Scale::Linear, "zero has no logarithm");
    let asked = ChartOptions { scale: Some(Scale::Log), ..ChartOptions::default() };
    assert_eq!(Chart::new(&[run("a", [-1.0, 5.0])], "loss", &asked).unwrap().scale, Scale::Linear);
}

#[test]
fn ticks_are_round_and_inside() {
    let cases = [(0.0, 10.0), (2.31, 4.87), (-3e-7, 8e-7), (1e9, 3e9), (0.5, 0.5000001)];
    for (low, high) in cases {
        let ticks = Scale::Linear.ticks((low, high), 6);
        assert!((2..=8).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
        let slack = (high - low) * 1e-6;
        assert!(ticks.iter().all(|t| (low - slack..=high + slack).contains(t)), "{ticks:?}");
        let texts = labels(&ticks);
        if high < 1e9 && high - low > 1e-6 {
            assert!(texts.windows(2).all(|w| w[0] != w[1]), "{texts:?}");
        }
    }
    assert_eq!(Scale::Log.ticks((0.004, 2000.0), 8), [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]);
    assert_eq!(labels(&[2.0, 2.5, 3.0]), ["2", "2.5", "3"]);
    assert_eq!(labels(&[1e-5, 2e-5]), ["1e-5", "2e-5"]);
    assert!(Scale::Linear.ticks((f64::MIN, f64::MAX), 5).len() < 40, "no overflow, no endless row");
}

#[test]
fn a_falling_line_goes_down_in_the_terminal() {
    let mut falling = run("down", (0..100).map(|i| 5.0 - 0.04 * f64::from(i)));
    falling.marks =
        vec![Mark { step: 50, kind: MarkKind::Checkpoint }, Mark { step: 75, kind: MarkKind::Restart }];
    let text =
        chart(&[falling, run("flat", [1.0; 100])]).to_text(&Canvas { width: 70, height: 16, colour: false });
    let lines: Vec<&str> = text.lines().collect();
    let braille = |line: &str| line.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
    let rows: Vec<usize> = lines[1..12].iter().filter_map(|l| braille(l)).collect();
    assert!(rows.windows(2).take(8).all(|w| w[0] < w[1]), "{text}");
    assert!(lines[0].contains("loss"));
    assert!(text.contains(" down\n") && text.contains(" flat\n"), "{text}");
    assert!(text.contains("▴ checkpoint  ↻ restart"), "{text}");
    assert!(lines.iter().all(|l| l.chars().count() <= 70), "{text}");
    assert!(!text.contains('\x1b'));
    let marks = lines[lines.len() - 2];
    assert!(marks.find('▴').unwrap() < marks.find('↻').unwrap());
}

#[test]
fn colours_are_the_same_in_both_pictures() {
    let both = chart(&[run("a", [1.0, 2.0]), run("b", [2.0, 1.0])]);
    let text = both.to_text(&Canvas { colour: true, ..Canvas::default() });
    let svg = both.to_svg((640, 360)).unwrap();
    assert!(text.contains("\x1b[38;2;213;94;0m") && text.contains("\x1b[38;2;0;114;178m"));
    assert!(svg.contains("#D55E00") && svg.contains("#0072B2"), "{svg}");
}

#[test]
fn the_picture_is_whole_and_names_are_escaped() {
    let mut odd = run("a", (0..10_000).map(|i| f64::from(i % 7) + if i == 5000 { 1000.0 } else { 1.0 }));
    odd.name = "<a & b>".into();
    odd.marks = vec![Mark { step: 3, kind: MarkKind::Restart }];
    let svg = chart(&[odd]).to_svg((640, 360)).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("&lt;a &amp; b&gt;"), "a name is not markup");
    assert!(svg.contains("loss (log)"));
    assert!(svg.len() < 150_000, "{} bytes", svg.len());
}

#[test]
fn hard_values_are_drawn_without_a_panic() {
    let extremes = [f64::MAX, f64::MIN, 0.0, f64::NAN, f64::MIN_POSITIVE, f64::INFINITY];
    for runs in [
        vec![run("one", [3.0])],
        vec![run("extreme", extremes)],
        vec![run("flat", [0.0; 5]), run("none", [f64::NAN, 1e300])],
        vec![run("tiny", [1e-320, 1e-300])],
    ] {
        let chart = chart(&runs);
        for canvas in [Canvas { width: 0, height: 0, colour: true }, Canvas::default()] {
            assert!(chart.to_text(&canvas).lines().count() > 4);
        }
        chart.to_svg((1, 1)).unwrap();
    }
    let empty = Chart::new(&[run("nan", [f64::NAN])], "loss", &ChartOptions::default()).unwrap_err();
    assert_eq!(empty.to_string(), "'loss' has no finite value to draw");
}

#[test]
fn evaluations_are_drawn_as_they_are_and_the_legend_says_what_is_what() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path, &Session::default()).unwrap();
    for (step, value) in [(10, 5.0), (20, 4.0), (30, 3.0)] {
        writer.write(&Record::new(step).with("eval_loss", value).with("loss", value)).unwrap();
        writer.checkpoint(step).unwrap();
    }
    let runs = [History::read(&path).unwrap()];
    let eval = Chart::new(&runs, "eval_loss", &ChartOptions::default()).unwrap();
    assert_eq!(eval.curves[0].smooth, eval.curves[0].points, "the last value is the last value");
    let svg = eval.to_svg((640, 360)).unwrap();
    assert!(svg.contains("checkpoint") && !svg.contains("restart") && !svg.contains("average"), "{svg}");
    let loss = chart(&runs);
    assert!(loss.curves[0].smooth[2].1 > 3.5);
    let svg = loss.to_svg((640, 360)).unwrap();
    assert!(svg.contains("as recorded") && svg.contains("average (0.9)"), "{svg}");
}
