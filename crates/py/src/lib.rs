//! The private module `_planaria`, over which the package `planaria` is written.

mod array;
mod buffer;
mod comm;
mod convert;
mod display;
mod dlpack;
mod dtype;
mod error;
mod examine;
mod failure;
mod file;
mod gil;
mod halting;
mod index;
mod judge;
mod layout;
mod letters;
mod load;
mod mapped;
mod merge;
mod number;
mod object;
mod open;
mod operators;
mod ops;
mod picks;
mod picture;
mod prune;
mod save;
mod shapes;
mod state;
mod stream;
mod tensor;
mod tensor_value;
mod train;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCFunction};

/// Adds functions, one after the other.
fn add(module: &Bound<'_, PyModule>, functions: &[Bound<'_, PyCFunction>]) -> PyResult<()> {
    functions.iter().try_for_each(|function| module.add_function(function.clone()))
}

#[pymodule(gil_used = false)]
fn _planaria(module: &Bound<'_, PyModule>) -> PyResult<()> {
    watch_forks(module.py())?;
    classes(module)?;
    verbs(module)?;
    array_api(module)
}

/// Has Python say when it forks.
fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let before = PyCFunction::new_closure(py, None, None, |args, _| gil::before_fork(args.py()))?;
    let child = PyCFunction::new_closure(py, None, None, |_, _| gil::enter_child())?;
    let hooks = [("before", before), ("after_in_child", child)].into_py_dict(py)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks)).map(drop)
}

fn classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<array::PyArray>()?;
    module.add_class::<dtype::PyDType>()?;
    module.add_class::<index::PyAt>()?;
    module.add_class::<index::PyPlace>()?;
    module.add_class::<comm::PyComm>()?;
    module.add_class::<layout::PyLayout>()?;
    module.add_class::<letters::PyDepot>()?;
    module.add_class::<layout::PyMesh>()?;
    module.add_class::<layout::PyPlan>()?;
    module.add_class::<open::PySource>()?;
    module.add_class::<open::PyStored>()?;
    module.add_class::<save::PySaveJob>()?;
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<tensor::PyNoGrad>()?;
    module.add_class::<train::PyRun>()
}

fn verbs(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let functions = [
        wrap_pyfunction!(array::address, module)?,
        wrap_pyfunction!(array::array, module)?,
        wrap_pyfunction!(array::empty, module)?,
        wrap_pyfunction!(array::from_dlpack, module)?,
        wrap_pyfunction!(array::rebuild, module)?,
        wrap_pyfunction!(array::shares, module)?,
        wrap_pyfunction!(comm::alone, module)?,
        wrap_pyfunction!(comm::mpi, module)?,
        wrap_pyfunction!(comm::end_mpi, module)?,
        wrap_pyfunction!(comm::end_ranks, module)?,
        wrap_pyfunction!(comm::run_threads, module)?,
        wrap_pyfunction!(convert::convert_checkpoint, module)?,
        wrap_pyfunction!(examine::diff_checkpoints, module)?,
        wrap_pyfunction!(examine::verify_checkpoint, module)?,
        wrap_pyfunction!(file::write_file, module)?,
        wrap_pyfunction!(layout::layout_of, module)?,
        wrap_pyfunction!(layout::mesh, module)?,
        wrap_pyfunction!(layout::placed, module)?,
        wrap_pyfunction!(layout::plan, module)?,
        wrap_pyfunction!(load::load_tensors, module)?,
        wrap_pyfunction!(load::mapped_tensors, module)?,
        wrap_pyfunction!(merge::merge_models, module)?,
        wrap_pyfunction!(open::open_source, module)?,
        wrap_pyfunction!(picture::chart, module)?,
        wrap_pyfunction!(picture::spans, module)?,
        wrap_pyfunction!(prune::prune_steps, module)?,
        wrap_pyfunction!(save::save_state, module)?,
        wrap_pyfunction!(save::start_save, module)?,
        wrap_pyfunction!(tensor::grad, module)?,
        wrap_pyfunction!(tensor::tensor, module)?,
        wrap_pyfunction!(train::check_config, module)?,
        wrap_pyfunction!(train::plan_config, module)?,
        wrap_pyfunction!(train::start_run, module)?,
    ];
    add(module, &functions)
}

/// What the namespace of the array API standard is written with.
fn array_api(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let functions = [
        wrap_pyfunction!(ops::arange, module)?,
        wrap_pyfunction!(ops::arg, module)?,
        wrap_pyfunction!(ops::binary, module)?,
        wrap_pyfunction!(ops::choose, module)?,
        wrap_pyfunction!(ops::eye, module)?,
        wrap_pyfunction!(ops::full, module)?,
        wrap_pyfunction!(ops::linspace, module)?,
        wrap_pyfunction!(ops::reduce, module)?,
        wrap_pyfunction!(ops::scan, module)?,
        wrap_pyfunction!(ops::searchsorted, module)?,
        wrap_pyfunction!(ops::sort, module)?,
        wrap_pyfunction!(ops::unary, module)?,
        wrap_pyfunction!(ops::unique, module)?,
        wrap_pyfunction!(shapes::broadcast_shapes, module)?,
        wrap_pyfunction!(shapes::broadcast_to, module)?,
        wrap_pyfunction!(shapes::flip, module)?,
        wrap_pyfunction!(shapes::join, module)?,
        wrap_pyfunction!(shapes::nonzero, module)?,
        wrap_pyfunction!(shapes::permute, module)?,
        wrap_pyfunction!(shapes::promoted, module)?,
        wrap_pyfunction!(shapes::repeat, module)?,
        wrap_pyfunction!(shapes::reshape, module)?,
        wrap_pyfunction!(shapes::roll, module)?,
        wrap_pyfunction!(shapes::squeeze, module)?,
        wrap_pyfunction!(shapes::take, module)?,
        wrap_pyfunction!(shapes::take_along, module)?,
        wrap_pyfunction!(shapes::tile, module)?,
        wrap_pyfunction!(shapes::triangle, module)?,
        wrap_pyfunction!(shapes::unsqueeze, module)?,
    ];
    add(module, &functions)
}
