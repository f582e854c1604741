//! Ops that choose elements by position.

use super::call::{Answer, Call, Found, dim, one, refuse};
use planaria_array::ops::{OwnValue, Put, ScatterReduce, embedding, where_};
use planaria_array::{Array, DType, Index};

pub(super) fn call(c: &Call<'_>) -> Found {
    match c.name() {
        "gather" => {
            let (x, index) = (c.array(0)?, c.array(1)?);
            let axis = dim(c.int(2)?, x.ndim())? as i64;
            let flat = index.reshape(&[index.numel()])?;
            let taken = x.index_select(axis, &flat)?;
            one(if index.ndim() == 0 { taken.squeeze(&[axis])? } else { taken })
        }
        "index_select" => one(c.array(0)?.index_select(c.int_attr("axis")?, c.array(1)?)?),
        "gather_nd" => gather_nd(c),
        "take_along_axis" => one(c.array(0)?.take_along_dim(c.array(1)?, c.int_attr("axis")?)?),
        "index_sample" => one(c.array(0)?.take_along_dim(c.array(1)?, 1)?),
        "put_along_axis" => put_along(c),
        "embedding" => {
            let (ids, table) = (c.array(0)?, c.array(1)?);
            let out = embedding(table, ids)?;
            let padding = c.int_attr("padding_idx")?;
            if padding < 0 || ids.is_meta() {
                return one(out);
            }
            let at = ids.eq(&Array::scalar(padding, ids.dtype())?)?.unsqueeze(-1)?;
            one(where_(&at, &out.zeros_like()?, &out)?)
        }
        "scatter_nd_add" => {
            let (x, updates) = (c.array(0)?, c.array(2)?);
            one(x.index_put(&columns(c.array(1)?)?, updates, Put::Accumulate)?)
        }
        "scatter" => {
            let (x, index, updates) = (c.array(0)?, c.array(1)?, c.array(2)?);
            let flat = index.reshape(&[index.numel()])?;
            if c.bool_attr("overwrite")? {
                return one(x.index_copy(0, &flat, updates)?);
            }
            // Rows that are named start from zero.
            one(x.index_fill(0, &flat, 0i64)?.index_add(0, &flat, updates)?)
        }
        "index_add" => one(c.array(0)?.index_add(c.int_attr("axis")?, c.array(1)?, c.array(2)?)?),
        "index_put" => {
            let indices: Vec<Option<Array>> =
                c.arrays(1)?.into_iter().map(|index| Some(index.clone())).collect();
            let put = if c.bool_attr("accumulate")? { Put::Accumulate } else { Put::Replace };
            one(c.array(0)?.index_put(&indices, c.array(2)?, put)?)
        }
        "nonzero" => one(c.array(0)?.nonzero()?),
        "masked_select" => {
            let (x, mask) = (c.array(0)?, c.array(1)?);
            one(x.masked_select(mask)?)
        }
        _ => Ok(None),
    }
}

/// The last dim of an index apart: one array per dim that it chooses.
fn columns(index: &Array) -> Answer<Vec<Option<Array>>> {
    let depth = index.shape().last().copied().unwrap_or(0);
    (0..depth).map(|at| Ok(Some(index.select(-1, at as i64)?))).collect()
}

fn gather_nd(c: &Call<'_>) -> Found {
    let (x, index) = (c.array(0)?, c.array(1)?);
    let columns = columns(index)?;
    if columns.is_empty() {
        let mut dims: Vec<usize> = index.shape()[..index.ndim().saturating_sub(1)].to_vec();
        dims.extend_from_slice(x.shape());
        return one(x.broadcast_to(&dims)?);
    }
    let index: Vec<Index> = columns.into_iter().flatten().map(Index::Take).collect();
    one(x.get(&index)?)
}

fn put_along(c: &Call<'_>) -> Found {
    let (x, index, values) = (c.array(0)?, c.array(1)?, c.array(2)?);
    let axis = dim(c.int_attr("axis")?, x.ndim())?;
    let mut dims: Vec<usize> = index.shape().to_vec();
    for (d, size) in dims.iter_mut().enumerate() {
        if d != axis && *size == 1 {
            *size = x.shape()[d];
        }
    }
    let (index, values) = (index.broadcast_to(&dims)?, values.broadcast_to(&dims)?);
    let (index, values) = (index.cast(DType::I64)?, values.cast(x.dtype())?);
    let how = match c.text_attr("reduce")? {
        "assign" => return one(x.scatter(axis as i64, &index, &values)?),
        "add" => ScatterReduce::Sum,
        "mul" | "multiply" => ScatterReduce::Prod,
        "mean" => ScatterReduce::Mean,
        "amax" => ScatterReduce::Max,
        "amin" => ScatterReduce::Min,
        other => return refuse(format!("reduce \"{other}\" is not known")),
    };
    let own = if c.bool_attr("include_self")? { OwnValue::Include } else { OwnValue::Exclude };
    one(x.scatter_reduce(axis as i64, &index, &values, how, own)?)
}
