//! Hard negatives: documents that are alike to a query and do not answer it.

/// Which documents are taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Mining {
    /// Most of a query.
    pub count: usize,
    /// Ranks to take them from, counted without what answers the query.
    pub ranks: std::ops::Range<usize>,
    /// None more alike than the best answer less this.
    pub absolute_margin: Option<f64>,
    /// None more alike than the best answer less this share of it.
    pub relative_margin: Option<f64>,
    /// None more alike than this.
    pub max_score: Option<f64>,
    /// None less alike than this.
    pub min_score: Option<f64>,
}

/// The documents of one query, best first; `scores` are those of all documents, `answers` the documents that answer it. There
/// may be fewer than asked for.
pub fn mine(scores: &[f64], answers: &[usize], options: &Mining) -> Vec<usize> {
    let best = answers.iter().filter_map(|&at| scores.get(at)).copied().fold(f64::NEG_INFINITY, f64::max);
    let fits = |&at: &usize| {
        let score = scores[at];
        let below = |most: Option<f64>| most.is_none_or(|most| score <= most);
        below(options.absolute_margin.map(|margin| best - margin))
            && below(options.relative_margin.map(|margin| best - best.abs() * margin))
            && below(options.max_score)
            && options.min_score.is_none_or(|least| score >= least)
    };
    let others = super::ranking(scores).into_iter().filter(|at| !answers.contains(at));
    let ranks = &options.ranks;
    others.skip(ranks.start).take(ranks.len()).filter(fits).take(options.count).collect()
}
