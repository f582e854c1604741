//! A whole model: prompts, features, scores, greedy tokens, and the loss and gradients of fine-tuning.

use super::functions::rows;
use super::verdict;
use crate::cases::Outcome;
use crate::checkpoints::{Expected, read_expected};
use crate::values::{Tolerance, elements, field, list, number, numbers, text};
use anyhow::{Context, Result, ensure};
use planaria_array::Array;
use planaria_comm::alone;
use planaria_data::chat::Json;
use planaria_nn::Init;
use planaria_nn::layers::Positions;
use planaria_nn::models::{Models, Network, Run};
use planaria_tensor::{Tensor, no_grad};
use planaria_train::{Generator, Opened, Prepared, Sampling};
use serde_json::Value;
use std::path::Path;

/// What may be shown.
const KINDS: [&str; 2] = ["image", "video"];

struct Model {
    generator: Generator,
    network: Box<dyn Network>,
    expected: Expected,
    tolerance: Value,
}

pub(super) fn each(folder: &Path, outcome: &mut Outcome) -> Result<()> {
    let file: Value = serde_json::from_slice(&std::fs::read(folder.join("expected/expected.json"))?)?;
    let network = Opened::open(folder, &[], &Models::default())?.load(&alone(), &Init::default())?;
    let model = Model {
        generator: Generator::open(folder)?,
        network,
        expected: read_expected(&folder.join("expected/expected.safetensors"))?,
        tolerance: field(&file, "tol")?.clone(),
    };
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    for case in list(&file, "cases")? {
        let shown = format!("model/{name}/{}", text(case, "name")?);
        outcome.add(&shown, verdict(model.case(case, &folder.join("images"))));
    }
    if let Some(sft) = file.get("sft") {
        outcome.add(&format!("model/{name}/sft"), verdict(model.fine_tuned(sft, &folder.join("images"))));
    }
    Ok(())
}

fn messages(value: &Value) -> Result<Vec<Json>> {
    let all = value.as_array().context("no messages")?;
    all.iter().map(|message| Json::parse(&message.to_string()).map_err(anyhow::Error::msg)).collect()
}

/// The real tokens of a row.
fn real(row: &[i64], mask: &[i64]) -> Vec<i64> {
    row.iter().zip(mask).filter(|(_, counts)| **counts != 0).map(|(token, _)| *token).collect()
}

impl Model {
    fn tensor(&self, name: &str) -> Result<Option<(Vec<usize>, Vec<f64>)>> {
        let Some((_, shape, bytes)) = self.expected.get(name) else { return Ok(None) };
        let value = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(Some((shape.clone(), bytes.chunks_exact(4).map(value).collect())))
    }

    /// Every row of a batch by itself, which must be what it is in the batch.
    fn case(&self, case: &Value, images: &Path) -> Result<()> {
        let name = text(case, "name")?;
        let (tokens, mask) = (rows(case, "input_ids")?, rows(case, "attention_mask")?);
        let greedy = list(case, "greedy_tokens")?;
        let positions = numbers(field(case, "position_ids")?)?;
        let (batch, length) = (tokens.len(), tokens[0].len());
        let mut seen = [0, 0];
        for (row, conversation) in list(case, "messages")?.iter().enumerate() {
            let at = |what: &str| format!("{what} of row {row}");
            let prepared = self.generator.prepare(messages(conversation)?, images)?;
            let found: Vec<i64> = prepared.tokens.iter().map(|&t| i64::from(t)).collect();
            ensure!(found == real(&tokens[row], &mask[row]), "{}: {found:?}", at("tokens"));
            let axes = prepared.axes.as_ref().context("no positions")?;
            let own = axes.ids.to_vec::<i64>()?;
            let want: Vec<i64> = (0..3)
                .flat_map(|axis| {
                    let of: Vec<i64> = positions.data[(axis * batch + row) * length..][..length]
                        .iter()
                        .map(|&x| x as i64)
                        .collect();
                    real(&of, &mask[row])
                })
                .collect();
            ensure!(own == want, "{}: {own:?}", at("positions"));
            let next = number(&list(case, "next_position")?[row])? as i64;
            ensure!(axes.next == [next], "{} is {:?}", at("next position"), axes.next);
            self.features(name, &prepared, &mut seen).with_context(|| at("features"))?;
            self.scores(name, row, &prepared, &mask[row]).with_context(|| at("scores"))?;
            let want: Vec<u32> = numbers(&greedy[row])?.data.iter().map(|&token| token as u32).collect();
            self.greedy(&prepared, &want).with_context(|| at("greedy tokens"))?;
        }
        for (kind, seen) in KINDS.iter().zip(seen) {
            let all = self.tensor(&format!("{name}.{kind}_features"))?.map_or(0, |(shape, _)| shape[0]);
            ensure!(seen == all, "{seen} {kind} features, expected {all}");
        }
        Ok(())
    }

    /// What the tower makes of the pictures and videos of a row; `seen` counts those of the rows before.
    fn features(&self, name: &str, prepared: &Prepared, seen: &mut [usize; 2]) -> Result<()> {
        let Some(shown) = &prepared.shown else { return Ok(()) };
        let network = self.network.seeing().context("the model does not see")?;
        let merged = network.marks().merge.pow(2);
        let found = no_grad(|| network.features(shown))?;
        let (width, found) = (found.shape()[1], elements(found.local())?);
        let count = |grids: &[[usize; 3]]| grids.iter().map(|g| g.iter().product::<usize>() / merged).sum();
        let counts: [usize; 2] = [count(&shown.scenes.images), count(&shown.scenes.videos)];
        let tolerance = Tolerance::of(&self.tolerance, "features")?;
        let mut first = 0;
        for (place, kind) in KINDS.iter().enumerate().filter(|(place, _)| counts[*place] > 0) {
            let what = format!("{name}.{kind}_features");
            let own = first * width;
            first += counts[place];
            // Not every case tells them.
            let Some((_, want)) = self.tensor(&what)? else { continue };
            let (theirs, size) = (seen[place] * width, counts[place] * width);
            let want = want.get(theirs..theirs + size).context("too few of them")?;
            tolerance.same_all(&what, &found[own..own + size], want)?;
            seen[place] += counts[place];
        }
        Ok(())
    }

    fn hidden(&self, prepared: &Prepared) -> Result<planaria_nn::models::Activations> {
        let ids: Vec<i64> = prepared.tokens.iter().map(|&t| i64::from(t)).collect();
        let axes = prepared.axes.as_ref().context("no positions")?;
        let run = Run {
            positions: Positions::Axes(axes.ids.clone()),
            shown: prepared.shown.clone(),
            ..Run::default()
        };
        Ok(self.network.forward(Tensor::from_slice(&ids, &[1, ids.len()])?.into(), &run)?)
    }

    fn scores(&self, name: &str, row: usize, prepared: &Prepared, mask: &[i64]) -> Result<()> {
        let (shape, want) = self.tensor(&format!("{name}.logits"))?.context("no logits")?;
        let [_, length, vocabulary] = shape[..] else { anyhow::bail!("logits of {shape:?}") };
        let got = no_grad(|| -> Result<Vec<f64>> {
            elements(&self.network.logits(&self.hidden(prepared)?.hidden)?.whole()?)
        })?;
        let tolerance = Tolerance::of(&self.tolerance, "logits")?;
        let want = &want[row * length * vocabulary..][..length * vocabulary];
        match length {
            1 => tolerance.same_all("logits", &got[got.len() - vocabulary..], want),
            _ => {
                let counts = want.chunks(vocabulary).zip(mask).filter(|(_, counts)| **counts != 0);
                let want: Vec<f64> = counts.flat_map(|(scores, _)| scores.to_vec()).collect();
                tolerance.same_all("logits", &got, &want)
            }
        }
    }

    /// End tokens are ignored, so token after token is compared.
    fn greedy(&self, prepared: &Prepared, want: &[u32]) -> Result<()> {
        let sampling = Sampling { tokens: want.len(), temperature: 0.0, ..Sampling::default() };
        let made = self.generator.answer(prepared, &sampling, 1, &|_| {})?;
        ensure!(made.ids[..] == want[..made.ids.len()], "{:?}, expected {want:?}", made.ids);
        let ended = made.ended && made.ids.len() < want.len();
        ensure!(made.ids.len() == want.len() || ended, "{} tokens", made.ids.len());
        let tensor_parallel = self.generator.answer(prepared, &sampling, 2, &|_| {})?;
        ensure!(tensor_parallel.ids == made.ids, "on two ranks {:?}", tensor_parallel.ids);
        Ok(())
    }

    fn fine_tuned(&self, case: &Value, images: &Path) -> Result<()> {
        let question: Vec<Value> = list(case, "messages")?
            .iter()
            .filter(|message| message["role"] != "assistant")
            .cloned()
            .collect();
        let prompt = self.generator.prepare(messages(&Value::Array(question))?, images)?;
        let tokens = rows(case, "input_ids")?.remove(0);
        let mut labels = rows(case, "labels")?.remove(0);
        labels.rotate_left(1);
        *labels.last_mut().context("no label")? = -100;
        let shown = prompt.shown.context("nothing is shown")?;
        let prepared = self.generator.place(tokens.iter().map(|&t| t as u32).collect(), shown)?;
        ensure!(prepared.tokens.starts_with(&prompt.tokens), "the prompt is another");
        let last = self.hidden(&prepared)?;
        let loss = self.network.loss(&last, &Tensor::new(Array::from_slice(&labels, &[1, labels.len()])?))?;
        let count = number(&case["tokens"])?;
        ensure!(loss.count as f64 == count, "{} tokens are trained", loss.count);
        let mean = loss.total()?.mul_scalar(1.0 / count)?;
        let found = mean.item()?.as_f64();
        Tolerance::of(&self.tolerance, "loss")?.same("the loss", found, number(&case["loss"])?)?;
        mean.backward()?;
        let tolerance = Tolerance::of(&self.tolerance, "grad_norm")?;
        let expected = case["grad_norms"].as_object().context("no norms")?;
        for (name, want) in expected {
            let mut sum: Option<Vec<f64>> = None;
            // A head that is tied has a gradient of its own; the values move by the sum.
            for param in self.network.params().iter().filter(|p| p.name() == name || p.tied() == Some(name)) {
                let grad = param.leaf().grad().with_context(|| format!("no gradient of {name}"))?;
                let values = elements(grad.local())?;
                sum = Some(match sum {
                    None => values,
                    Some(sum) => sum.iter().zip(values).map(|(a, b)| a + b).collect(),
                });
            }
            let square =
                sum.with_context(|| format!("no parameter {name}"))?.iter().map(|x| x * x).sum::<f64>();
            tolerance.same(name, square.sqrt(), number(want)?)?;
        }
        Ok(())
    }
}
