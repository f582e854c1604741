//! Ops that pick or write elements by index, and optimizers.

use super::call::{Call, wrap};
use super::program::{Outputs, one};
use anyhow::Result;
use planaria_tensor::ops::{self, Put};
use planaria_tensor::{Index, Tensor};

pub(super) fn run(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    let axis = || call.attrs["axis"].as_i64().unwrap_or(0);
    match call.name {
        "embedding" | "embedding_static" => one(ops::embedding(call.one(1)?, call.one(0)?, None)),
        "c_embedding" => one(ops::embedding(call.one(0)?, call.one(1)?, None)),
        "gather" | "index_select" if call.one(1)?.ndim() == 1 => {
            one(call.one(0)?.index_select(axis(), call.one(1)?))
        }
        "gather" => {
            let x = call.one(0)?;
            let dim = wrap(axis(), x.ndim())?;
            let before = (0..dim).map(|_| Index::from(..));
            one(x.get(&before.chain([call.one(1)?.clone().into()]).collect::<Vec<_>>()))
        }
        "gather_nd" => {
            let index: Vec<Index> = coordinates(call.one(1)?)?.into_iter().map(Index::from).collect();
            one(call.one(0)?.get(&index))
        }
        "scatter_nd_add" => {
            one(call.one(0)?.index_put(&some(coordinates(call.one(1)?)?), call.one(2)?, Put::Accumulate))
        }
        "scatter" if call.one(1)?.ndim() == 1 => {
            let (x, index, updates) = (call.one(0)?, call.one(1)?, call.one(2)?);
            one(match call.flag("overwrite") {
                true => x.index_copy(0, index, updates),
                false => x.index_add(0, index, updates),
            })
        }
        "index_put" => {
            let index: Vec<Tensor> = call.many(1).into_iter().cloned().collect();
            let put = if call.flag("accumulate") { Put::Accumulate } else { Put::Replace };
            one(call.one(0)?.index_put(&some(index), call.one(2)?, put))
        }
        "take_along_axis" => one(call.one(0)?.take_along_dim(call.one(1)?, axis())),
        "put_along_axis" if call.text("reduce") == "assign" => {
            let y = call.one(0)?.copy()?;
            y.put_along_dim(call.one(1)?, call.one(2)?, axis())?;
            Ok(Some(vec![Some(y)]))
        }
        _ => Ok(None),
    }
}

/// The last dim of an index as one index for each leading dim.
fn coordinates(index: &Tensor) -> Result<Vec<Tensor>> {
    Ok(index.unbind(-1)?)
}

fn some(list: Vec<Tensor>) -> Vec<Option<Tensor>> {
    list.into_iter().map(Some).collect()
}
