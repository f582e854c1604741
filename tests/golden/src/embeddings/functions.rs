//! Poolings and losses with their gradients.

use crate::values::{
    Case, Numbers, elements, field, gradient, list, maybe, number, numbers, size, sizes, text,
};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::ops::Keep;
use planaria_array::{Array, Bool};
use planaria_nn::models::States;
use planaria_tensor::Tensor;
use planaria_train::embedding::{
    Contrast, Distance, PairLoss, Pooling, Similarity, TextSpan, contrast, excluded, matryoshka, normalized,
    pair_loss, pool, similarities, triplet_loss,
};
use serde_json::Value;

pub(super) fn pooling(case: &Case) -> Result<()> {
    let ways: Vec<Pooling> = match field(&case.given, "mode")? {
        Value::Array(list) => {
            list.iter().map(|way| Ok(serde_json::from_value(way.clone())?)).collect::<Result<_>>()?
        }
        one => vec![serde_json::from_value(one.clone())?],
    };
    let states = case.tensor("token_embeddings")?.leaf()?;
    let skipped = case.maybe("exclude_prompt_tokens")?.unwrap_or(0.0) as usize;
    let row = |row: Vec<f64>| {
        let start = row.iter().position(|&seen| seen != 0.0).context("a row without a token")?;
        let end = row.iter().rposition(|&seen| seen != 0.0).unwrap_or(start) + 1;
        Ok(vec![TextSpan { tokens: start..end, counted: start + skipped }])
    };
    let texts = case.tensor("attention_mask")?.rows().into_iter().map(row).collect::<Result<Vec<_>>>()?;
    let last = States { states: states.clone(), lanes: planaria_nn::Lanes::default() };
    let found = pool(&last, &texts, &ways)?.squeeze(&[1])?;
    case.is("embedding", &elements(found.local())?)?;
    found.mul(&case.tensor("weights")?.plain()?)?.sum(&[], Keep::No)?.backward()?;
    case.is("grad", &gradient(&states)?)
}

pub(super) fn normalize(case: &Case) -> Result<()> {
    case.is("y", &elements(normalized(&case.tensor("x")?.plain()?)?.local())?)
}

pub(super) fn similarity(case: &Case) -> Result<()> {
    let (a, b) = (case.tensor("a")?.plain()?, case.tensor("b")?.plain()?);
    for (name, kind) in [
        ("cos", Similarity::Cos),
        ("dot", Similarity::Dot),
        ("euclidean", Similarity::Euclidean),
        ("manhattan", Similarity::Manhattan),
    ] {
        case.is(name, &elements(similarities(&a, &b, kind)?.local())?)?;
    }
    Ok(())
}

/// The loss that a configuration asks for.
pub(super) fn options(config: &Value) -> Result<Contrast> {
    let own = Contrast::default();
    let read = |name: &str| config.get(name).filter(|value| !value.is_null()).cloned();
    let found = Contrast {
        similarity: serde_json::from_value(field(config, "similarity")?.clone())?,
        scale: number(field(config, "scale")?)?,
        directions: read("directions").map(serde_json::from_value).transpose()?.unwrap_or(own.directions),
        partition: read("partition").map(serde_json::from_value).transpose()?.unwrap_or(own.partition),
        hardness: read("hardness_mode").map(serde_json::from_value).transpose()?.unwrap_or(own.hardness),
        hardness_strength: maybe(config, "hardness_strength")?.unwrap_or(0.0),
        false_negative_margin: maybe(config, "false_negative_margin")?,
    };
    found.check("")?;
    Ok(found)
}

fn columns(value: &Value) -> Result<Vec<Numbers>> {
    value.as_array().context("no list of columns")?.iter().map(numbers).collect()
}

fn mean(losses: &Array) -> Result<f64> {
    let losses = elements(losses)?;
    Ok(losses.iter().sum::<f64>() / losses.len() as f64)
}

/// Gradients of the sum of all losses, as those of their mean.
fn of_mean(grad: &Array, rows: usize) -> Result<Vec<f64>> {
    Ok(elements(grad)?.into_iter().map(|value| value / rows as f64).collect())
}

pub(super) fn info_nce(case: &Case) -> Result<()> {
    let ranks: Vec<Vec<Numbers>> = list(&case.given, "ranks")?.iter().map(columns).collect::<Result<_>>()?;
    let options = options(field(&case.given, "config")?)?;
    let joined = |column: usize| -> Result<Array> {
        let all = ranks.iter().map(|rank| rank[column].array()).collect::<Result<Vec<_>>>()?;
        Ok(planaria_array::ops::concat(&all.iter().collect::<Vec<_>>(), 0)?)
    };
    let all = (0..ranks[0].len()).map(joined).collect::<Result<Vec<_>>>()?;
    let found = contrast(&all, &options, None)?;
    case.is_number("loss", mean(&found.losses)?)?;
    let total = all[0].shape()[0];
    let mut first = 0;
    for (rank, grads) in ranks.iter().zip(list(&case.out, "grads")?) {
        let rows = rank[0].shape[0];
        let losses = mean(&found.losses.narrow(0, first, rows)?)?;
        let place = ranks.iter().position(|other| std::ptr::eq(other, rank)).unwrap_or(0);
        case.tol.same("rank_losses", losses, numbers(field(&case.out, "rank_losses")?)?.data[place])?;
        for (grad, want) in found.grads.iter().zip(columns(grads)?) {
            let own = of_mean(&grad.narrow(0, first, rows)?, total)?;
            case.tol.same_all("grads", &own, &want.data)?;
        }
        first += rows;
    }
    Ok(())
}

pub(super) fn grouped(case: &Case) -> Result<()> {
    let (queries, passages) = (case.tensor("queries")?, case.tensor("passages")?);
    let (group, width) = (size(&case.given, "group_size")?, passages.shape[1]);
    let rows = queries.shape[0];
    let by_group = passages.array()?.reshape(&[rows, group, width])?;
    let column = |at: usize| by_group.select(1, at as i64)?.contiguous();
    let mut all = vec![queries.array()?];
    all.extend((0..group).map(column).collect::<planaria_array::Result<Vec<_>>>()?);
    let options = Contrast { scale: 1.0 / case.number("temperature")?, ..Contrast::default() };
    let found = contrast(&all, &options, None)?;
    case.is_number("loss", mean(&found.losses)?)?;
    case.is("grad_queries", &of_mean(&found.grads[0], rows)?)?;
    let grads =
        found.grads[1..].iter().map(|grad| grad.unsqueeze(1)).collect::<planaria_array::Result<Vec<_>>>()?;
    let grads = planaria_array::ops::concat(&grads.iter().collect::<Vec<_>>(), 1)?;
    case.is("grad_passages", &of_mean(&grads, rows)?)
}

pub(super) fn masked(case: &Case) -> Result<()> {
    let config = field(&case.given, "config")?;
    let options = options(config)?;
    let ids = config.get("doc_ids").filter(|ids| !ids.is_null());
    let ids = ids.map(|ids| -> Result<Vec<Vec<u64>>> {
        let lists = ids.as_array().context("no lists of ids")?;
        lists.iter().map(|list| Ok(numbers(list)?.data.iter().map(|&id| id as u64).collect())).collect()
    });
    let ids = ids.transpose()?;
    let all: Vec<Array> =
        columns(field(&case.given, "columns")?)?.iter().map(Numbers::array).collect::<Result<_>>()?;
    let out = excluded(&all, &options, ids.as_deref())?.contiguous()?.to_vec::<Bool>()?;
    let out: Vec<f64> = out.iter().map(|flag| f64::from(u8::from(flag.get()))).collect();
    case.is("excluded", &out)?;
    let found = contrast(&all, &options, ids.as_deref())?;
    case.is_number("loss", mean(&found.losses)?)?;
    for (grad, want) in found.grads.iter().zip(columns(field(&case.out, "grads")?)?) {
        case.tol.same_all("grads", &of_mean(grad, all[0].shape()[0])?, &want.data)?;
    }
    Ok(())
}

pub(super) fn nested(case: &Case) -> Result<()> {
    let options = options(field(&case.given, "config")?)?;
    let dims = sizes(field(&case.given, "dims")?)?;
    let weights = match field(&case.given, "weights")? {
        Value::Null => Vec::new(),
        list => numbers(list)?.data,
    };
    let all: Vec<Array> =
        columns(field(&case.given, "columns")?)?.iter().map(Numbers::array).collect::<Result<_>>()?;
    let (found, means) = matryoshka(&all, &dims, &weights, &options, None)?;
    case.is_number("loss", mean(&found.losses)?)?;
    case.is("per_dim", &means)?;
    for (grad, want) in found.grads.iter().zip(columns(field(&case.out, "grads")?)?) {
        case.tol.same_all("grads", &of_mean(grad, all[0].shape()[0])?, &want.data)?;
    }
    Ok(())
}

pub(super) fn pairs(case: &Case) -> Result<()> {
    let kind = match case.text("kind")? {
        "cosent" => PairLoss::CoSent,
        "angle" => PairLoss::Angle,
        "cosine_mse" => PairLoss::CosineMse,
        other => bail!("unknown loss '{other}'"),
    };
    let (a, b) = (case.tensor("a")?.leaf()?, case.tensor("b")?.leaf()?);
    let loss = pair_loss(kind, [&a, &b], &case.tensor("labels")?.data, case.number("scale")?)?;
    case.is_number("loss", loss.item()?.as_f64())?;
    loss.backward()?;
    case.is("grad_a", &gradient(&a)?)?;
    case.is("grad_b", &gradient(&b)?)
}

pub(super) fn triplet(case: &Case) -> Result<()> {
    let distance = match text(&case.given, "distance")? {
        "cosine" => Distance::Cosine,
        "euclidean" => Distance::Euclidean,
        other => bail!("unknown distance '{other}'"),
    };
    let leaves: Vec<Tensor> =
        columns(field(&case.given, "columns")?)?.iter().map(Numbers::leaf).collect::<Result<_>>()?;
    let [anchor, near, far] = &leaves[..] else { bail!("a triplet has three columns") };
    let loss = triplet_loss(distance, case.number("margin")?, [anchor, near, far])?;
    case.is_number("loss", loss.item()?.as_f64())?;
    loss.backward()?;
    let grads = columns(field(&case.out, "grads")?)?;
    ensure!(grads.len() == leaves.len(), "{} gradients are expected", grads.len());
    for (leaf, want) in leaves.iter().zip(grads) {
        case.tol.same_all("grads", &gradient(leaf)?, &want.data)?;
    }
    Ok(())
}
