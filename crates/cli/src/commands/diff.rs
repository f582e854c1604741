//! `planaria diff`: two checkpoints tensor by tensor, in any two formats.

use crate::checkpoint;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::quantity::count;
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::ckpt::examine::{Bound, Difference, Verdict, compare};
use planaria::ckpt::formats::{Key, OpenOptions, Source};
use planaria::ckpt::stream::Feed;
use serde_json::{Value, json};

/// Compare two checkpoints tensor by tensor; exits 1 when they differ
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Formats and cuts may differ; optimizer state is compared whatever its names are in each. Without a tolerance values must agree bit for bit.\n\
    Element types that differ are a difference, unless `--any-dtype` is given."
)]
pub(crate) struct Args {
    /// One checkpoint, or a run, which stands for its newest one
    first: String,
    /// The other
    second: String,
    /// Accept |a - b| up to this
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = distance)]
    tolerance: f64,
    /// Accept |a - b| up to this times |b|, added to the tolerance
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, value_parser = distance)]
    relative: f64,
    /// Accept different element types where the values agree
    #[arg(long)]
    any_dtype: bool,
    /// Only tensors whose name contains this, or is this pattern of `*` and `?`
    #[arg(long, value_name = "NAME")]
    filter: Vec<Filter>,
}

fn distance(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number such as 1e-6".to_string())?;
    if value >= 0.0 { Ok(value) } else { Err("expected a number that is not negative".to_string()) }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let mut first = checkpoint::open(&args.first, &OpenOptions::default(), terminal)?;
    let mut second = checkpoint::open(&args.second, &OpenOptions::default(), terminal)?;
    // Formats have names of their own for optimizer state.
    let states = (first.as_state(), second.as_state());
    if in_common(&states.0, &states.1) > in_common(&first, &second) {
        (first, second) = states;
    }
    let accepts =
        |key: &Key| args.filter.is_empty() || args.filter.iter().any(|filter| filter.accepts(&key.name));
    let bound = Bound { absolute: args.tolerance, relative: args.relative };
    let progress = terminal.progress("comparing", first.total_bytes().saturating_add(second.total_bytes()));
    let (mut same, mut differ) = (0, Vec::new());
    compare(
        (&Feed::new(&first), &Feed::new(&second)),
        &bound,
        &accepts,
        &|bytes| progress.add(bytes),
        &mut |key, verdict| {
            match verdict {
                Verdict::Same => same += 1,
                Verdict::DType(..) if args.any_dtype => same += 1,
                other => differ.push((key.clone(), other)),
            }
            Ok(())
        },
    )?;
    progress.finish();
    if same == 0 && differ.is_empty() && !args.filter.is_empty() {
        return Err(Failure::usage("no tensor has such a name")
            .hint("`planaria inspect` lists the names")
            .into());
    }
    if terminal.json {
        terminal.object("planaria/diff/1", &to_json(args, (&first, &second), same, &differ))?;
    } else {
        print(terminal, same, &differ)?;
    }
    Ok(if differ.is_empty() { Exit::Success } else { Exit::Negative })
}

/// Number of names that both have.
fn in_common(first: &Source, second: &Source) -> usize {
    first.tensors.keys().filter(|key| second.tensors.contains_key(key)).count()
}

fn print(terminal: &mut Terminal, same: usize, differ: &[(Key, Verdict)]) -> Result<()> {
    let mut table = Table::new(&[]);
    for (key, verdict) in differ {
        table.row([key.to_string(), describe(verdict)]);
    }
    let lines: Vec<String> = table.lines().collect();
    lines.iter().try_for_each(|line| terminal.line(line))?;
    let text = match differ.len() {
        0 => terminal.paint(Style::Good, &format!("{} agree", count(same, "tensor"))),
        wrong => {
            let wrong = terminal.paint(Style::Bad, &format!("{} differ", count(wrong, "tensor")));
            format!("{wrong}, {same} agree")
        }
    };
    terminal.line(text)
}

fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Same => "same".to_string(),
        Verdict::OnlyFirst => "only in the first".to_string(),
        Verdict::OnlySecond => "only in the second".to_string(),
        Verdict::Spec(a, b) => format!("{a} against {b}"),
        Verdict::Shape(a, b) => format!("shape {a} against {b}"),
        Verdict::DType(a, b) => format!("dtype {a} against {b}, the values agree"),
        Verdict::Values(Difference { count: number, max_abs, max_rel, first, values: (a, b) }) => format!(
            "{} differ by up to {max_abs:.3e} ({max_rel:.1e} relative); first at {first:?}: {a} against {b}",
            count(usize::try_from(*number).unwrap_or(usize::MAX), "value")
        ),
    }
}

fn to_json(args: &Args, sources: (&Source, &Source), same: usize, differ: &[(Key, Verdict)]) -> Value {
    let tensors: Vec<Value> = differ
        .iter()
        .map(|(key, verdict)| {
            let mut entry = json!({ "part": key.part.name(), "name": key.name });
            let (what, details) = match verdict {
                Verdict::Same => ("same", Value::Null),
                Verdict::OnlyFirst => ("only-first", Value::Null),
                Verdict::OnlySecond => ("only-second", Value::Null),
                Verdict::Spec(a, b) => ("dtype", json!([a, b])),
                Verdict::Shape(a, b) => ("shape", json!([a.dims(), b.dims()])),
                Verdict::DType(a, b) => ("dtype", json!([a.name(), b.name()])),
                Verdict::Values(found) => ("values", values_json(found)),
            };
            entry["differs"] = what.into();
            if !details.is_null() {
                entry[what] = details;
            }
            entry
        })
        .collect();
    json!({
        "first": { "path": args.first, "format": sources.0.format.name() },
        "second": { "path": args.second, "format": sources.1.format.name() },
        "same": same,
        "different": differ.len(),
        "tensors": tensors,
    })
}

/// JSON has no NaN and no infinities; they are written as text.
fn values_json(found: &Difference) -> Value {
    let number = |value: f64| if value.is_finite() { json!(value) } else { json!(value.to_string()) };
    json!({
        "count": found.count,
        "max_abs": number(found.max_abs),
        "max_rel": number(found.max_rel),
        "first": found.first,
        "first_values": [number(found.values.0), number(found.values.1)],
    })
}
