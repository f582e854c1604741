//! Additions and activations over large and small arrays.

use super::{Built, one};
use crate::inputs::normal;
use planaria_array::ops::{Activation, Binary, activation_grad, binary_into};

pub(super) fn build(case: &str) -> Built {
    let x = |len: usize| normal(1, &[len]);
    match case {
        "add16m" => add(1 << 24),
        "add16m_out" => {
            let (x, y, z) = (x(1 << 24)?, normal(2, &[1 << 24])?, normal(3, &[1 << 24])?);
            Ok(Some(Box::new(move || binary_into(Binary::Add, &x, &y, &z).map(|()| vec![z.clone()]))))
        }
        "add1m" => add(1 << 20),
        "add_bcast16m" => {
            let (x, y) = (x(1 << 24)?.reshape(&[4096, 4096])?, normal(2, &[4096])?);
            one(move || x.add(&y))
        }
        "gelu16m" => {
            let x = x(1 << 24)?;
            one(move || x.gelu())
        }
        "gelu_tanh16m" => {
            let x = x(1 << 24)?;
            one(move || x.gelu_tanh())
        }
        "gelu16m_bwd" => {
            let (x, dy) = (x(1 << 24)?, normal(90, &[1 << 24])?);
            one(move || {
                drop(x.gelu()?);
                activation_grad(Activation::Gelu, &x, &dy)
            })
        }
        _ => Ok(None),
    }
}

fn add(len: usize) -> Built {
    let (x, y) = (normal(1, &[len])?, normal(2, &[len])?);
    one(move || x.add(&y))
}
