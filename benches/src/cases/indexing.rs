//! Masks, index arrays, gathers and scatters, with their gradients.

use super::{Built, Run, one};
use crate::inputs::{coin, constant, integers, normal};
use planaria_array::ops::{Put, get_grad, index_put_grad, index_put_value_grad, masked_fill_grad};
use planaria_array::{Array, Error, Index};

pub(super) fn build(case: &str) -> Built {
    match case {
        "mask_get_full" | "mask_set_scalar" | "mask_set_values" => full_mask(case),
        "mask_get_rows" => {
            let (x, m) = (normal(1, &[16384, 256])?, Index::Mask(coin(2, &[16384])?));
            one(move || x.get(std::slice::from_ref(&m)))
        }
        "idx_get_rows" => {
            let (x, i) = (normal(1, &[50257, 768])?, Index::Take(integers(2, 50257, &[4096])?));
            one(move || x.get(std::slice::from_ref(&i)))
        }
        "idx_get_rows_bwd" => {
            let (x, i) = (normal(1, &[50257, 256])?, [Index::Take(integers(2, 50257, &[4096])?)]);
            let dy = normal(90, &[4096, 256])?;
            one(move || {
                let y = x.get(&i)?;
                drop(y);
                get_grad(&dy, &i, x.shape())
            })
        }
        "idx_get_2" => {
            let x = normal(1, &[256, 128, 256])?;
            let (i, j) = (integers(2, 256, &[2048])?, integers(3, 256, &[2048])?);
            let index = [Index::Take(i), Index::all(), Index::Take(j)];
            one(move || x.get(&index))
        }
        "put_elem" | "put_elem_acc" | "put_rows_acc" | "put_bwd" => put(case),
        "masked_fill" | "masked_fill_bwd" => masked_fill(case),
        "gather" => {
            let (x, i) = (normal(1, &[4096, 4096])?, integers(2, 4096, &[4096, 1024])?);
            one(move || x.gather(1, &i))
        }
        "scatter_add" => {
            let (x, i, v) =
                (constant(0.0, &[4096, 4096])?, integers(2, 4096, &[4096, 1024])?, normal(3, &[4096, 1024])?);
            one(move || x.scatter_add(1, &i, &v))
        }
        _ => Ok(None),
    }
}

fn full_mask(case: &str) -> Built {
    let (x, mask) = (normal(1, &[4096, 1024])?, coin(2, &[4096, 1024])?);
    let count = x.masked_select(&mask)?.numel();
    let index = [Index::Mask(mask)];
    match case {
        "mask_get_full" => one(move || x.get(&index)),
        "mask_set_scalar" => one(move || {
            x.set_scalar(&index, 0.5)?;
            Ok(x.clone())
        }),
        _ => {
            let v = normal(3, &[count])?;
            one(move || {
                x.set(&index, &v)?;
                Ok(x.clone())
            })
        }
    }
}

fn put(case: &str) -> Built {
    if case == "put_rows_acc" {
        let (x, v) = (normal(1, &[50257, 256])?, normal(3, &[8192, 256])?);
        let rows = [Some(integers(2, 50257, &[8192])?)];
        return one(move || assign(&x, &rows, &v, Put::Accumulate));
    }
    let count = 1 << if case == "put_bwd" { 18 } else { 20 };
    let x = normal(1, &[4096, 1024])?;
    let places = [Some(integers(2, 4096, &[count])?), Some(integers(3, 1024, &[count])?)];
    match case {
        "put_elem" => {
            let v = constant(0.25, &[count])?;
            one(move || assign(&x, &places, &v, Put::Replace))
        }
        "put_elem_acc" => {
            let v = normal(4, &[count])?;
            one(move || assign(&x, &places, &v, Put::Accumulate))
        }
        _ => {
            let (v, dy) = (normal(4, &[count])?, normal(90, &[4096, 1024])?);
            let run: Run = Box::new(move || {
                drop(x.index_put(&places, &v, Put::Accumulate)?);
                let dx = index_put_grad(&dy, &places, Put::Accumulate)?;
                Ok(vec![dx, index_put_value_grad(&dy, &places, v.shape())?])
            });
            Ok(Some(run))
        }
    }
}

fn assign(x: &Array, places: &[Option<Array>], v: &Array, put: Put) -> Result<Array, Error> {
    x.index_put_assign(places, v, put)?;
    Ok(x.clone())
}

fn masked_fill(case: &str) -> Built {
    let above: Vec<_> = (0..512 * 512).map(|at| planaria_array::Bool::new(at % 512 > at / 512)).collect();
    let (mask, x) = (Array::from_slice(&above, &[512, 512])?, normal(1, &[8, 8, 512, 512])?);
    if case == "masked_fill" {
        return one(move || x.masked_fill(&mask, f64::NEG_INFINITY));
    }
    let dy = normal(90, &[8, 8, 512, 512])?;
    one(move || {
        drop(x.masked_fill(&mask, -1e9)?);
        masked_fill_grad(&dy, &mask, x.shape())
    })
}
