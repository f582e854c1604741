//! How good embeddings are: whether what answers a query comes first, and whether similarities follow scores that people gave.

use serde::Serialize;

/// Documents by their scores, the best first; of equals the one with the lower number.
pub fn ranking(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order
}

/// Figures at one cut-off, means over the queries that something answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Retrieval {
    /// The cut-off.
    pub k: usize,
    /// Share of queries with an answer among the first k.
    pub accuracy: f64,
    /// Answers among the first k, over k.
    pub precision: f64,
    /// Answers among the first k, over all answers.
    pub recall: f64,
    /// Discounted gain over the best there could be.
    pub ndcg: f64,
    /// One over the rank of the first answer.
    pub mrr: f64,
    /// Mean precision at the answers.
    pub map: f64,
}

/// The figures of some queries: the ranking of each, and what answers it.
pub fn retrieval(rankings: &[Vec<usize>], answers: &[Vec<usize>], k: usize) -> Retrieval {
    let mut sum = Retrieval { k, ..Retrieval::default() };
    let mut counted = 0;
    for (ranking, answers) in rankings.iter().zip(answers).filter(|(_, answers)| !answers.is_empty()) {
        counted += 1;
        let ideal = k.min(answers.len());
        let gain = |rank: usize| 1.0 / (rank as f64 + 2.0).log2();
        let (mut hits, mut dcg, mut precisions) = (0usize, 0.0, 0.0);
        for (rank, document) in ranking.iter().take(k).enumerate() {
            if !answers.contains(document) {
                continue;
            }
            if hits == 0 {
                sum.mrr += 1.0 / (rank + 1) as f64;
            }
            hits += 1;
            dcg += gain(rank);
            precisions += hits as f64 / (rank + 1) as f64;
        }
        sum.accuracy += f64::from(u8::from(hits > 0));
        sum.precision += hits as f64 / k.max(1) as f64;
        sum.recall += hits as f64 / answers.len() as f64;
        sum.ndcg += dcg / (0..ideal).map(gain).sum::<f64>();
        sum.map += precisions / ideal.max(1) as f64;
    }
    let over = f64::from(counted.max(1));
    Retrieval {
        k,
        accuracy: sum.accuracy / over,
        precision: sum.precision / over,
        recall: sum.recall / over,
        ndcg: sum.ndcg / over,
        mrr: sum.mrr / over,
        map: sum.map / over,
    }
}

/// Pearson's correlation of two rows of numbers, and Spearman's: that of their ranks, of which equals share the mean.
pub fn correlation(x: &[f64], y: &[f64]) -> (f64, f64) {
    (pearson(x, y), pearson(&ranks(x), &ranks(y)))
}

fn pearson(x: &[f64], y: &[f64]) -> f64 {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let (mx, my) = (mean(x), mean(y));
    let sum = |of: &dyn Fn(f64, f64) -> f64| x.iter().zip(y).map(|(a, b)| of(a - mx, b - my)).sum::<f64>();
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

fn ranks(of: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|&a, &b| of[a].total_cmp(&of[b]));
    let mut out = vec![0.0; of.len()];
    let mut first = 0;
    while first < order.len() {
        let same = order[first..].iter().take_while(|&&at| of[at] == of[order[first]]).count();
        let mean = first as f64 + (same as f64 + 1.0) / 2.0;
        order[first..first + same].iter().for_each(|&at| out[at] = mean);
        first += same;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_share_their_rank_and_queries_without_answers_do_not_count() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(ranking(&[1.0, 2.0, 2.0]), [1, 2, 0]);
        let found = retrieval(&[vec![2, 0, 1], vec![0, 1, 2]], &[vec![0], vec![]], 2);
        assert_eq!((found.accuracy, found.precision, found.recall, found.mrr), (1.0, 0.5, 1.0, 0.5));
    }
}
