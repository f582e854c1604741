//! `planaria data`: what a run would read, before it runs.

use crate::exit::Exit;
use crate::quantity::count;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::train::Trainer;
use planaria::train::config::Sources;
use planaria::train::data::{IGNORED, Sample, Tokenizer};
use serde_json::json;
use std::path::PathBuf;

/// Look at the data of a run
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the first samples as the model is given them: text that is trained is green, or stands in [[ ]] without colours
    Show {
        /// The configuration
        #[arg(value_name = "CONFIG.toml")]
        config: PathBuf,
        /// How many samples
        #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 3)]
        samples: u64,
        /// Change a value, as in `data.sequence=512`; may be repeated
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let What::Show { config, samples, set } = &args.what;
    let sources = Sources::file(config).variables(std::env::vars()).set(set.iter().cloned());
    let (tokenizer, data, sampler) = Trainer::new(sources.resolve()?.config).open_data()?;
    let told = data.report.as_ref().map(|report| report.lines());
    told.iter().flatten().for_each(|line| terminal.note(line));
    let mut sample = Sample::default();
    for position in 0..(*samples).min(data.train.len()) {
        let place = sampler.place(position)?;
        let index = place.index;
        data.train.read_at(&place, &mut sample)?;
        if terminal.json {
            let inputs = &sample.tokens[..sample.labels.len()];
            let value = json!({
                "position": position, "sample": index, "tokens": inputs, "labels": sample.labels,
                "starts": sample.starts, "report": told,
            });
            terminal.object("planaria/data/1", &value)?;
        } else {
            show(terminal, &tokenizer, index, &sample)?;
        }
    }
    Ok(Exit::Success)
}

/// A sample in stretches of tokens that count and tokens that do not, one block for every document in it.
fn show(terminal: &mut Terminal, tokenizer: &Tokenizer, index: u64, sample: &Sample) -> Result<()> {
    let length = sample.labels.len();
    // What is predicted at a place is the token after it.
    let counts = |place: usize| place > 0 && sample.labels[place - 1] != IGNORED;
    let padding = padding(tokenizer, sample);
    let mut borders = vec![0];
    borders.extend(sample.starts.iter().copied().filter(|&start| start < padding));
    borders.push(padding);
    for (number, ends) in borders.windows(2).enumerate() {
        let trained = (ends[0]..ends[1]).filter(|&place| counts(place)).count();
        let of = if borders.len() > 2 { format!(", document {}", number + 1) } else { String::new() };
        let head = format!("sample {index}{of}: {}, {trained} trained", count(ends[1] - ends[0], "token"));
        terminal.line(terminal.paint(Style::Name, &head))?;
        let mut text = String::new();
        let mut start = ends[0];
        while start < ends[1] {
            let same = (start..ends[1]).take_while(|&place| counts(place) == counts(start)).count();
            let piece = tokenizer.decode_with_special(&sample.tokens[start..start + same])?;
            text.push_str(&match (counts(start), terminal.colours()) {
                (true, true) => terminal.paint(Style::Good, &piece),
                (true, false) => format!("[[{piece}]]"),
                (false, _) => piece,
            });
            start += same;
        }
        terminal.line(text)?;
    }
    if padding < length {
        terminal.line(format!("({} of padding)", count(length - padding, "token")))?;
    }
    Ok(())
}

/// Where the padding begins: after the last label, tokens that only fill.
fn padding(tokenizer: &Tokenizer, sample: &Sample) -> usize {
    let length = sample.labels.len();
    let frame = tokenizer.frame();
    let fills = |place: &usize| Some(sample.tokens[*place]) == frame.pad.or(frame.eos);
    let run = (0..length).rev().take_while(fills).count();
    // Where documents are kept apart, padding is the last of them.
    let last = sample.starts.last().copied();
    last.filter(|&start| start + run >= length).unwrap_or(length)
}
