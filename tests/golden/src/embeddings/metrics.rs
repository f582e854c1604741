//! Mining of hard negatives, ranking and correlation.

use crate::values::{Case, elements, field, list, maybe, number, numbers, size, sizes};
use anyhow::{Context, Result, ensure};
use planaria_train::embedding::{Mining, Retrieval, mine, ranking, retrieval as figures, similarities};

/// One figure of many.
type Figure = fn(&Retrieval) -> f64;

/// Scores of every query with every document.
fn scores(case: &Case) -> Result<Vec<Vec<f64>>> {
    let kind = serde_json::from_value(field(&case.given, "similarity")?.clone())?;
    let (queries, documents) = (case.tensor("queries")?, case.tensor("documents")?);
    let found = similarities(&queries.plain()?, &documents.plain()?, kind)?;
    Ok(elements(found.local())?.chunks(documents.shape[0].max(1)).map(<[f64]>::to_vec).collect())
}

pub(super) fn mining(case: &Case) -> Result<()> {
    let config = field(&case.given, "config")?;
    let options = Mining {
        count: size(config, "num_negatives")?,
        ranks: size(config, "range_min")?..size(config, "range_max")?,
        absolute_margin: maybe(config, "absolute_margin")?,
        relative_margin: maybe(config, "relative_margin")?,
        max_score: maybe(config, "max_score")?,
        min_score: maybe(config, "min_score")?,
    };
    let (answers, want) = (list(&case.given, "positives")?, list(&case.out, "negatives")?);
    for (row, scores) in scores(case)?.iter().enumerate() {
        let (found, want) = (mine(scores, &sizes(&answers[row])?, &options), sizes(&want[row])?);
        ensure!(found == want, "query {row} has {found:?}, expected {want:?}");
    }
    Ok(())
}

pub(super) fn retrieval(case: &Case) -> Result<()> {
    let rankings: Vec<Vec<usize>> = scores(case)?.iter().map(|scores| ranking(scores)).collect();
    let answers = list(&case.given, "relevant")?.iter().map(sizes).collect::<Result<Vec<_>>>()?;
    for (found, want) in rankings.iter().zip(list(&case.out, "ranking")?) {
        let want = sizes(want)?;
        ensure!(found[..want.len()] == want[..], "ranked {found:?}, expected {want:?}");
    }
    let of: [(&str, Figure); 6] = [
        ("accuracy", |found| found.accuracy),
        ("precision", |found| found.precision),
        ("recall", |found| found.recall),
        ("ndcg", |found| found.ndcg),
        ("mrr", |found| found.mrr),
        ("map", |found| found.map),
    ];
    for k in sizes(field(&case.given, "k")?)? {
        let found = figures(&rankings, &answers, k);
        for (name, of) in of {
            let want =
                field(&case.out, name)?.get(k.to_string()).with_context(|| format!("{name} at {k}"))?;
            case.tol.same(&format!("{name}@{k}"), of(&found), number(want)?)?;
        }
    }
    Ok(())
}

pub(super) fn correlation(case: &Case) -> Result<()> {
    let (x, y) = (numbers(field(&case.given, "x")?)?.data, numbers(field(&case.given, "y")?)?.data);
    let (pearson, spearman) = planaria_train::embedding::correlation(&x, &y);
    case.is_number("pearson", pearson)?;
    case.is_number("spearman", spearman)
}
