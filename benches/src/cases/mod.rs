//! Our side of the cases: each is built once and then run again and again.

mod attention;
mod copies;
mod elementwise;
mod indexing;
mod loss;
mod matmul;
mod norms;
mod optim;
mod overhead;
mod reduce;
mod train;

use planaria_array::{Array, Error};

/// One timed run of a case; its results are dropped inside the timing, as the peers' are.
pub type Run = Box<dyn FnMut() -> Result<Vec<Array>, Error> + Send>;

/// Why a case cannot run.
#[derive(Debug)]
pub struct Unsupported(pub String);

impl From<Error> for Unsupported {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// What the builders of a family answer: nothing when the case is not theirs.
type Built = Result<Option<Run>, Error>;

const FAMILIES: [fn(&str) -> Built; 11] = [
    attention::build,
    copies::build,
    elementwise::build,
    indexing::build,
    loss::build,
    matmul::build,
    norms::build,
    optim::build,
    overhead::build,
    reduce::build,
    train::build,
];

/// Builds a case with its inputs.
pub fn build(case: &str) -> Result<Run, Unsupported> {
    for family in FAMILIES {
        if let Some(run) = family(case)? {
            return Ok(run);
        }
    }
    Err(Unsupported(format!("no case `{case}`")))
}

/// Boxes a case whose run gives one array.
fn one(mut run: impl FnMut() -> Result<Array, Error> + Send + 'static) -> Built {
    Ok(Some(Box::new(move || Ok(vec![run()?]))))
}
