//! Batch geometry: global batch = micro-batch x accumulation x data ranks, checked once, never rounded. Only where the loss does not
//! depend on micro-batches may the last one of a rank be smaller.

use std::fmt;
use thiserror::Error;

/// The four numbers of a batch, of which three are enough. With two, accumulation is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// Samples per optimizer step, over all ranks.
    pub global_batch: Option<u64>,
    /// Samples per forward pass of one data rank.
    pub micro_batch: Option<u64>,
    /// Micro-batches per step of one data rank.
    pub accumulation: Option<u64>,
    /// Ranks that read different samples.
    pub data_ranks: Option<u64>,
    /// Ranks among which one micro-batch is divided again (expert parallel); 1 if not given.
    pub micro_split: Option<u64>,
    /// Whether the last micro-batch of every rank may be smaller than the others.
    pub uneven: bool,
}

/// A batch that divides exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Geometry {
    /// Samples per optimizer step, over all ranks.
    pub global_batch: u64,
    /// Samples per forward pass of one data rank.
    pub micro_batch: u64,
    /// Micro-batches per step of one data rank.
    pub accumulation: u64,
    /// Ranks that read different samples.
    pub data_ranks: u64,
}

/// Values of one setting that would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The setting.
    pub name: &'static str,
    /// The nearest values, in order.
    pub values: Vec<u64>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.values.iter().map(u64::to_string).collect();
        write!(f, "{} {}", self.name, values.join(" or "))
    }
}

/// A batch that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A number that must be at least one.
    #[error("{name} is 0; at least 1 is needed")]
    Zero {
        /// The setting.
        name: &'static str,
    },
    /// Too few numbers to know the others.
    #[error("the batch is not determined by {given}; give global_batch or micro_batch, and dp")]
    Missing {
        /// What was given.
        given: String,
    },
    /// A division with a rest.
    #[error("{name} {value} is not a multiple of {of}{}", nearest(choices))]
    Indivisible {
        /// The setting that is divided.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The product it is divided by.
        of: String,
        /// What would fit.
        choices: Vec<Choice>,
    },
    /// Four numbers that contradict each other.
    #[error("{product}, but global_batch is {global_batch}{}", nearest(choices))]
    Contradiction {
        /// The product of the other three.
        product: String,
        /// The global batch as given.
        global_batch: u64,
        /// What would fit.
        choices: Vec<Choice>,
    },
    /// A product that no 64-bit number holds.
    #[error("{product} is too large")]
    Overflow {
        /// The product.
        product: String,
    },
}

fn nearest(choices: &[Choice]) -> String {
    if choices.is_empty() {
        return String::new();
    }
    let all: Vec<String> = choices.iter().map(Choice::to_string).collect();
    format!("; nearest that fit: {}", all.join(", "))
}

/// A setting, by its name in configurations and meshes, and its value.
type Factor = (&'static str, u64);

fn product(factors: &[Factor]) -> Result<u64, Error> {
    let all = factors.iter().try_fold(1u64, |product, (_, value)| product.checked_mul(*value));
    all.ok_or_else(|| Error::Overflow { product: text(factors) })
}

fn text(factors: &[Factor]) -> String {
    let all: Vec<String> = factors.iter().map(|(name, value)| format!("{name} {value}")).collect();
    all.join(" x ")
}

/// `factors = product`, as messages write it.
fn equation(factors: &[Factor], product: u64) -> String {
    if factors.len() == 1 { text(factors) } else { format!("{} = {product}", text(factors)) }
}

/// `whole / factors`, or what would divide instead.
fn divide(whole: Factor, factors: &[Factor]) -> Result<u64, Error> {
    let by = product(factors)?;
    if whole.1.is_multiple_of(by) {
        return Ok(whole.1 / by);
    }
    let below = whole.1 / by * by;
    let values = [Some(below).filter(|&v| v > 0), below.checked_add(by)].into_iter().flatten().collect();
    let mut choices = vec![Choice { name: whole.0, values }];
    for &(name, value) in factors {
        let others = by / value;
        if whole.1.is_multiple_of(others) {
            let values = nearest_divisors(whole.1 / others, value);
            choices.extend((!values.is_empty()).then_some(Choice { name, values }));
        }
    }
    let of = equation(factors, by);
    Err(Error::Indivisible { name: whole.0, value: whole.1, of, choices })
}

/// The divisors of `n` next to `value` on both sides.
fn nearest_divisors(n: u64, value: u64) -> Vec<u64> {
    /// Larger batches than that are not worth searching.
    const LARGEST: u64 = 1 << 40;
    if n > LARGEST {
        return Vec::new();
    }
    let (mut below, mut above) = (None, None);
    for small in (1..=n.isqrt()).filter(|&d| n.is_multiple_of(d)) {
        for divisor in [small, n / small] {
            if divisor < value {
                below = below.max(Some(divisor));
            } else {
                above = Some(above.map_or(divisor, |a: u64| a.min(divisor)));
            }
        }
    }
    [below, above].into_iter().flatten().collect()
}

impl Geometry {
    /// Derives the number that is not given and checks the others.
    pub fn derive(batching: &Batching) -> Result<Geometry, Error> {
        let named = [
            ("global_batch", batching.global_batch),
            ("micro_batch", batching.micro_batch),
            ("accumulation", batching.accumulation),
            ("dp", batching.data_ranks),
            ("ep", batching.micro_split),
        ];
        if let Some((name, _)) = named.iter().find(|(_, value)| *value == Some(0)) {
            return Err(Error::Zero { name });
        }
        let given: Vec<Factor> = named[..4].iter().filter_map(|&(name, v)| Some((name, v?))).collect();
        let geometry = Geometry::solve(batching, &given)?;
        if let Some(split) = batching.micro_split {
            divide(("micro_batch", geometry.micro_batch), &[("ep", split)])?;
        }
        Ok(geometry)
    }

    fn solve(batching: &Batching, given: &[Factor]) -> Result<Geometry, Error> {
        let factors =
            || given.iter().copied().filter(|(name, _)| *name != "global_batch").collect::<Vec<_>>();
        let Batching { global_batch, micro_batch, accumulation, data_ranks, .. } = *batching;
        let done = |global_batch, micro_batch, accumulation, data_ranks| Geometry {
            global_batch,
            micro_batch,
            accumulation,
            data_ranks,
        };
        Ok(match (global_batch, micro_batch, accumulation, data_ranks) {
            (Some(g), Some(m), Some(a), Some(r)) => {
                agree(g, &factors())?;
                done(g, m, a, r)
            }
            (None, Some(m), Some(a), Some(r)) => done(product(&factors())?, m, a, r),
            (Some(g), None, Some(a), Some(r)) => done(g, divide(("global_batch", g), &factors())?, a, r),
            (Some(g), Some(m), None, Some(r)) if batching.uneven => {
                let own = divide(("global_batch", g), &[("dp", r)])?;
                let m = m.min(own);
                done(g, m, own.div_ceil(m), r)
            }
            (Some(g), Some(m), None, Some(r)) => done(g, m, divide(("global_batch", g), &factors())?, r),
            (Some(g), Some(m), Some(a), None) => done(g, m, a, divide(("global_batch", g), &factors())?),
            (Some(g), None, None, Some(r)) => done(g, divide(("global_batch", g), &factors())?, 1, r),
            (None, Some(m), None, Some(r)) => done(product(&factors())?, m, 1, r),
            _ => {
                let given =
                    if given.is_empty() { "nothing".into() } else { text(given).replace(" x ", ", ") };
                return Err(Error::Missing { given });
            }
        })
    }

    /// Samples of the last micro-batch of a step on one data rank: as many as of the others, unless they may be fewer.
    pub fn last_batch(&self) -> u64 {
        self.global_batch / self.data_ranks - (self.accumulation - 1) * self.micro_batch
    }

    /// Micro-batches of a step over all ranks.
    pub fn micro_batches(&self) -> u64 {
        self.accumulation * self.data_ranks
    }
}

/// Checks a global batch against all its factors.
fn agree(global_batch: u64, factors: &[Factor]) -> Result<(), Error> {
    let found = product(factors)?;
    if found == global_batch {
        return Ok(());
    }
    let mut choices = vec![Choice { name: "global_batch", values: vec![found] }];
    for &(name, value) in factors {
        let others = found / value;
        if global_batch.is_multiple_of(others) {
            choices.push(Choice { name, values: vec![global_batch / others] });
        }
    }
    Err(Error::Contradiction { product: equation(factors, found), global_batch, choices })
}

/// A batch of prompts from which several answers each are drawn, trained on in mini-batches (PPO, GRPO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollouts {
    /// Prompts for which answers are drawn between two rounds of training.
    pub batch_prompts: u64,
    /// Prompts per optimizer step.
    pub mini_prompts: u64,
    /// Answers per prompt.
    pub rollouts: u64,
    /// How often each answer is trained on.
    pub updates: u64,
    /// How a mini-batch is computed; its global batch is `mini_prompts x rollouts`.
    pub batching: Batching,
}

/// How a round of training on answers divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RolloutGeometry {
    /// Mini-batches in one pass over the answers.
    pub mini_batches: u64,
    /// Optimizer steps per round: mini-batches times updates.
    pub steps: u64,
    /// The batch of one step, in answers.
    pub step: Geometry,
}

impl Rollouts {
    /// Divides a round, or says what would divide.
    pub fn derive(&self) -> Result<RolloutGeometry, Error> {
        let Rollouts { batch_prompts, mini_prompts, rollouts, updates, batching } = *self;
        let named = [
            ("batch_prompts", batch_prompts),
            ("mini_prompts", mini_prompts),
            ("rollouts", rollouts),
            ("updates", updates),
        ];
        if let Some((name, _)) = named.iter().find(|(_, value)| *value == 0) {
            return Err(Error::Zero { name });
        }
        let mini_batches = divide(named[0], &named[1..2])?;
        let answers = product(&named[1..3])?;
        if let Some(wanted) = batching.global_batch {
            agree(wanted, &named[1..3])?;
        }
        let step = Geometry::derive(&Batching { global_batch: Some(answers), ..batching })?;
        let steps = product(&[("mini-batches", mini_batches), ("updates", updates)])?;
        Ok(RolloutGeometry { mini_batches, steps, step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batching(g: u64, m: u64, a: u64, r: u64) -> Batching {
        let some = |v: u64| (v != u64::MAX).then_some(v);
        let [global_batch, micro_batch, accumulation, data_ranks] = [g, m, a, r].map(some);
        Batching { global_batch, micro_batch, accumulation, data_ranks, ..Batching::default() }
    }
    const NO: u64 = u64::MAX;

    #[test]
    fn the_missing_number_is_derived() {
        let whole = Geometry { global_batch: 96, micro_batch: 4, accumulation: 3, data_ranks: 8 };
        for given in [
            batching(96, 4, 3, 8),
            batching(NO, 4, 3, 8),
            batching(96, NO, 3, 8),
            batching(96, 4, NO, 8),
            batching(96, 4, 3, NO),
        ] {
            assert_eq!(Geometry::derive(&given), Ok(whole), "{given:?}");
        }
        let one = Geometry::derive(&batching(96, NO, NO, 8)).unwrap();
        assert_eq!((one.micro_batch, one.accumulation), (12, 1));
        let one = Geometry::derive(&batching(NO, 4, NO, 8)).unwrap();
        assert_eq!((one.global_batch, one.accumulation, one.micro_batches()), (32, 1, 8));
    }

    #[test]
    fn refusals_name_the_nearest_choices() {
        for (given, expected) in [
            (
                batching(100, 8, NO, 4),
                "global_batch 100 is not a multiple of micro_batch 8 x dp 4 = 32; nearest that fit: \
                 global_batch 96 or 128, micro_batch 5 or 25",
            ),
            (
                batching(30, NO, NO, 4),
                "global_batch 30 is not a multiple of dp 4; nearest that fit: global_batch 28 or 32, \
                 dp 3 or 5",
            ),
            (
                batching(4, 8, NO, 1),
                "global_batch 4 is not a multiple of micro_batch 8 x dp 1 = 8; nearest that fit: \
                 global_batch 8, micro_batch 4",
            ),
            (
                batching(64, 4, 4, 8),
                "micro_batch 4 x accumulation 4 x dp 8 = 128, but global_batch is 64; nearest that fit: \
                 global_batch 128, micro_batch 2, accumulation 2, dp 4",
            ),
            (batching(0, 8, NO, 4), "global_batch is 0; at least 1 is needed"),
            (
                batching(64, NO, 2, NO),
                "the batch is not determined by global_batch 64, accumulation 2; give global_batch or micro_batch, \
                 and dp",
            ),
            (
                batching(NO, 1 << 40, 1 << 20, 1 << 10),
                "micro_batch 1099511627776 x accumulation 1048576 x dp 1024 is too large",
            ),
        ] {
            assert_eq!(Geometry::derive(&given).unwrap_err().to_string(), expected);
        }
        let uneven = |g, m, r| Geometry::derive(&Batching { uneven: true, ..batching(g, m, NO, r) });
        let found = uneven(16, 3, 2).unwrap();
        assert_eq!((found.micro_batch, found.accumulation, found.last_batch()), (3, 3, 2));
        let found = uneven(16, 64, 2).unwrap();
        assert_eq!((found.micro_batch, found.accumulation, found.last_batch()), (8, 1, 8));
        assert!(uneven(15, 3, 2).unwrap_err().to_string().contains("not a multiple of dp 2"));
        let split = Batching { micro_split: Some(4), ..batching(NO, 6, NO, 2) };
        let refused = Geometry::derive(&split).unwrap_err().to_string();
        assert_eq!(
            refused,
            "micro_batch 6 is not a multiple of ep 4; nearest that fit: micro_batch 4 or 8, ep 3 or 6"
        );
    }

    #[test]
    fn rounds_of_answers_use_the_same_division() {
        let fits = Rollouts {
            batch_prompts: 64,
            mini_prompts: 16,
            rollouts: 8,
            updates: 2,
            batching: batching(NO, 4, NO, 8),
        };
        let round = fits.derive().unwrap();
        assert_eq!((round.mini_batches, round.steps), (4, 8));
        assert_eq!(
            round.step,
            Geometry { global_batch: 128, micro_batch: 4, accumulation: 4, data_ranks: 8 }
        );
        // Floor division would drop 16 of 64 prompts, and 4 of 12 answers.
        let refused = Rollouts { mini_prompts: 24, ..fits }.derive().unwrap_err().to_string();
        assert_eq!(
            refused,
            "batch_prompts 64 is not a multiple of mini_prompts 24; nearest that fit: batch_prompts 48 or 72, \
             mini_prompts 16 or 32"
        );
        let refused = Rollouts { mini_prompts: 4, rollouts: 3, ..fits }.derive().unwrap_err();
        assert!(refused.to_string().starts_with("global_batch 12 is not a multiple of micro_batch 4 x dp 8"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_choice_of_a_refusal_is_accepted(g in 1u64..500, m in 1u64..20, r in 1u64..20) {
            match Geometry::derive(&batching(g, m, NO, r)) {
                Ok(done) => prop_assert_eq!(done.micro_batch * done.accumulation * done.data_ranks, g),
                Err(Error::Indivisible { choices, .. }) => {
                    for choice in choices {
                        for value in choice.values {
                            let tried = match choice.name {
                                "global_batch" => batching(value, m, NO, r),
                                "micro_batch" => batching(g, value, NO, r),
                                _ => batching(g, m, NO, value),
                            };
                            prop_assert!(Geometry::derive(&tried).is_ok(), "{} {}", choice.name, value);
                        }
                    }
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
