//! `planaria plot`: curves of runs, in the terminal, as SVG, or as numbers.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::target::{self, Existing};
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::telemetry::{Canvas, Chart, ChartOptions, History, Scale};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Plot a metric of one or more runs
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Values as recorded are faint, their moving average is bold; evaluations are drawn as recorded. Steps that a resumed run repeated are \
    shown once,\nas the newest process recorded them. Values that span more than a factor of 100 are drawn on a log scale."
)]
pub(crate) struct Args {
    /// Folders of runs, or metrics files
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// What to show; a metric that does not exist lists those that do
    #[arg(short, long, value_name = "NAME", default_value = "loss")]
    metric: String,
    /// Write an SVG file instead
    #[arg(short, long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    yes: bool,
    /// Weight of the past in the moving average, from 0 for none up to 0.999 [default: 0.9, and 0 for evaluations]
    #[arg(long, value_name = "WEIGHT", value_parser = weight)]
    smooth: Option<f64>,
    /// How values are spread; chosen by their range if not given
    #[arg(long, value_enum, value_name = "SCALE")]
    scale: Option<ScaleName>,
    /// Columns, or pixels of an SVG
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(40..=10_000))]
    width: Option<u32>,
    /// Lines, or pixels of an SVG
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(8..=10_000))]
    height: Option<u32>,
}

/// How values are spread.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ScaleName {
    /// Equal differences take equal space
    Linear,
    /// Equal ratios take equal space
    Log,
}

fn weight(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number such as 0.9".to_string())?;
    if (0.0..=0.999).contains(&value) { Ok(value) } else { Err("expected 0 to 0.999".to_string()) }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let mut histories: Vec<History> =
        args.runs.iter().map(|path| History::read(path)).collect::<Result<_, _>>()?;
    tell_apart(&mut histories, &args.runs);
    for history in histories.iter().filter(|h| h.damaged > 0) {
        let lines = count(usize::try_from(history.damaged).unwrap_or(usize::MAX), "line");
        terminal.warn(format!("left out {lines} of run '{}' that could not be read", history.name));
    }
    let scale = args.scale.map(|scale| match scale {
        ScaleName::Linear => Scale::Linear,
        ScaleName::Log => Scale::Log,
    });
    let chart = Chart::new(&histories, &args.metric, &ChartOptions { smooth: args.smooth, scale })?;
    if let Some(path) = &args.output {
        write_svg(args, &chart, path)?;
    }
    if terminal.json {
        let runs = &chart.curves;
        terminal.object(
            "planaria/plot/1",
            &json!({ "metric": args.metric, "scale": chart.scale, "runs": runs }),
        )?;
    } else if let Some(path) = &args.output {
        terminal.line(path.display())?;
    } else {
        let width = args.width.or_else(columns).unwrap_or(80) as usize;
        let canvas = Canvas { width, height: args.height.unwrap_or(20) as usize, colour: terminal.colours() };
        terminal.drawing(chart.to_text(&canvas).trim_end_matches('\n'))?;
        for curve in &chart.curves {
            if let (Some(last), Some(smooth)) = (curve.points.last(), curve.smooth.last()) {
                let name = terminal.paint(Style::Name, &curve.name);
                let average =
                    if chart.smooth > 0.0 { format!(", average {:.6}", smooth.1) } else { String::new() };
                terminal.line(format!("{name}: step {}, {} {:.6}{average}", last.0, args.metric, last.1))?;
            }
        }
    }
    Ok(Exit::Success)
}

/// Two runs of the same name are told apart by their paths.
fn tell_apart(histories: &mut [History], paths: &[PathBuf]) {
    let names: Vec<String> = histories.iter().map(|h| h.name.clone()).collect();
    for (history, path) in histories.iter_mut().zip(paths) {
        if names.iter().filter(|name| **name == history.name).count() > 1 {
            history.name = path.display().to_string();
        }
    }
}

fn write_svg(args: &Args, chart: &Chart, path: &Path) -> Result<()> {
    if path.extension().and_then(|e| e.to_str()) != Some("svg") {
        let message = format!("'{}' does not end in .svg, the only picture format", path.display());
        return Err(Failure::usage(message).hint("give a name such as loss.svg").into());
    }
    let existing = Existing::from_yes(args.yes);
    target::check(path, existing)?;
    let svg = chart.to_svg((args.width.unwrap_or(900), args.height.unwrap_or(450)))?;
    target::write(path, existing, svg.as_bytes())
}

/// Columns of the terminal, where the shell says so.
fn columns() -> Option<u32> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| (40..=1000).contains(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_name_are_told_apart() {
        let named = |name: &str| {
            let mut history = History::default();
            history.name = name.into();
            history
        };
        let mut histories = [named("a"), named("b"), named("a")];
        tell_apart(&mut histories, &["x/a".into(), "x/b".into(), "y/a".into()]);
        assert_eq!(histories.map(|h| h.name), ["x/a", "b", "y/a"]);
    }

    #[test]
    fn weights_outside_their_range_are_refused() {
        assert_eq!(weight("0.5"), Ok(0.5));
        assert!(weight("1").is_err() && weight("-0.1").is_err() && weight("much").is_err());
    }
}
