//! Placements: what one mesh axis does to a tensor.

use crate::error::{Error, Result};
use crate::text::Scan;
use std::{fmt, str::FromStr};

/// How pending contributions become the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reduce {
    /// Sum of the contributions.
    Sum,
    /// Sum divided by their number.
    Avg,
    /// Largest contribution.
    Max,
    /// Smallest contribution.
    Min,
    /// Product of the contributions.
    Prod,
    /// 1 where any contribution is not 0.
    Any,
    /// 1 where no contribution is 0.
    All,
}

/// The value a rank holds when it adds nothing to a pending reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neutral {
    /// For sums.
    Zero,
    /// For products.
    One,
}

impl Reduce {
    /// Every reduction.
    pub const EVERY: [Reduce; 7] =
        [Reduce::Sum, Reduce::Avg, Reduce::Max, Reduce::Min, Reduce::Prod, Reduce::Any, Reduce::All];

    /// What ranks past coordinate 0 hold when a whole value becomes partial. `None` means that
    /// every rank keeps the value, because reducing equal contributions gives it back.
    pub const fn neutral(self) -> Option<Neutral> {
        match self {
            Reduce::Sum => Some(Neutral::Zero),
            Reduce::Prod => Some(Neutral::One),
            _ => None,
        }
    }

    /// True when reducing over one axis and then another gives the same in either order.
    pub const fn commutes_with(self, other: Reduce) -> bool {
        let linear = matches!(self, Reduce::Sum | Reduce::Avg) && matches!(other, Reduce::Sum | Reduce::Avg);
        linear || self as u8 == other as u8
    }

    /// The one text form, as in `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            Reduce::Sum => "sum",
            Reduce::Avg => "avg",
            Reduce::Max => "max",
            Reduce::Min => "min",
            Reduce::Prod => "prod",
            Reduce::Any => "any",
            Reduce::All => "all",
        }
    }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Reduce {
    type Err = Error;

    fn from_str(text: &str) -> Result<Reduce> {
        Reduce::EVERY.into_iter().find(|r| r.name() == text).ok_or_else(|| Error::Parse {
            what: "reduction",
            text: text.to_string(),
            reason: format!("expected one of {}", Reduce::EVERY.map(Reduce::name).join(", ")),
        })
    }
}

/// How one mesh axis cuts a tensor dim.
///
/// Axes on the same dim cut it one after the other: the first (lowest `order`, then mesh order)
/// cuts the whole dim, the next cuts the piece that is left. A cut into `k` gives every coordinate
/// `ceil(len / k)` indices, the last ones fewer or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    /// The tensor dim.
    pub dim: usize,
    /// The dim is first divided into this many equal sections (the last one may be short), and each
    /// section is cut over the axis. 1 is the ordinary shard; 3 suits a fused query-key-value weight.
    pub sections: usize,
    /// Place among the axes on the same dim, lowest first; equal places stand in mesh order.
    pub order: usize,
}

/// What one mesh axis does to a tensor.
///
/// Text forms: `R`, `S1` (dim 1), `S0.1` (dim 0, place 1 among the axes on that dim),
/// `S0x3` (dim 0 in 3 sections), `P(sum)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Every coordinate has the same.
    Replicate,
    /// Every coordinate has its cut of one dim.
    Shard(Shard),
    /// Every coordinate has a contribution; the value is their reduction.
    Partial(Reduce),
}

impl Placement {
    /// An ordinary shard of `dim`.
    pub const fn shard(dim: usize) -> Placement {
        Placement::Shard(Shard { dim, sections: 1, order: 0 })
    }

    pub(crate) fn scan(scan: &mut Scan<'_>) -> Result<Placement> {
        if scan.eat("R") {
            return Ok(Placement::Replicate);
        }
        if scan.eat("P(") {
            let reduce = scan.word().parse()?;
            scan.expect(")")?;
            return Ok(Placement::Partial(reduce));
        }
        if !scan.eat("S") {
            return Err(scan.error("expected a placement: R, S0, S0.1, S0x2 or P(sum)"));
        }
        let dim = scan.number()?;
        let sections = if scan.eat("x") { scan.number()? } else { 1 };
        let order = if scan.eat(".") { scan.number()? } else { 0 };
        Ok(Placement::Shard(Shard { dim, sections, order }))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Replicate => f.write_str("R"),
            Placement::Partial(reduce) => write!(f, "P({reduce})"),
            Placement::Shard(Shard { dim, sections, order }) => {
                write!(f, "S{dim}")?;
                if *sections != 1 {
                    write!(f, "x{sections}")?;
                }
                if *order != 0 {
                    write!(f, ".{order}")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Placement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Placement> {
        let mut scan = Scan::new("placement", text);
        let placement = Placement::scan(&mut scan)?;
        scan.end()?;
        Ok(placement)
    }
}
