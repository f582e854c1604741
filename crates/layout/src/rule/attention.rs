//! The rule of attention: batch and heads may be cut, and the queries; keys are whole.

use super::{Cuts, DimFactors, FactorId, Kind, Rows, Rule};
use crate::placement::Reduce;
use crate::shape::Shape;

/// The factors of attention over `[batch, heads, length, width]`.
///
/// Heads of queries share heads of keys and values in groups. The batch and the heads of keys may be cut, and the
/// heads within a group; the length of the queries when the kernel can work on a window of them.
#[derive(Clone, Debug)]
pub struct Attention {
    batch: FactorId,
    queries: Option<FactorId>,
    /// Heads of keys, then heads of queries for each of them.
    heads: DimFactors,
    keys: FactorId,
}

impl Attention {
    /// Adds the factors to a rule; nothing when the shapes are not those of an attention. In gradients, `k` and `v`
    /// get contributions from all queries.
    pub fn new(rule: &mut Rule, q: &Shape, k: &Shape, queries: Rows) -> Option<Attention> {
        let (&[b, heads, length, _], &[_, shared, _, _]) = (q.dims(), k.dims()) else { return None };
        if shared == 0 || !heads.is_multiple_of(shared) {
            return None;
        }
        let batch = rule.free(b);
        let window = |rule: &mut Rule| rule.factor(length, Kind::Reduce(Reduce::Sum), Cuts::Windows);
        let queries = (queries == Rows::Windows).then(|| window(rule));
        let keys = rule.free(shared);
        let mut all = DimFactors::from_slice(&[keys]);
        if heads > shared {
            all.push(rule.reduced(heads / shared, Reduce::Sum));
        }
        Some(Attention { batch, queries, heads: all, keys })
    }

    /// The dims of queries, and of the output.
    pub fn query(&self) -> Vec<DimFactors> {
        vec![one(Some(self.batch)), self.heads.clone(), one(self.queries), one(None)]
    }

    /// The dims of keys and values.
    pub fn key(&self) -> Vec<DimFactors> {
        vec![one(Some(self.batch)), one(Some(self.keys)), one(None), one(None)]
    }

    /// The dims of what there is once per head and query: `[batch, heads, length]`.
    pub fn row(&self) -> Vec<DimFactors> {
        vec![one(Some(self.batch)), self.heads.clone(), one(self.queries)]
    }
}

fn one(factor: Option<FactorId>) -> DimFactors {
    factor.into_iter().collect()
}
