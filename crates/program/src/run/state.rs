//! What outlives a run: parameters and the state of optimizers, by name.

use super::Datum;
use crate::error::{Error, Result};
use crate::node::Name;
use crate::paddle::{Record, read_parameters, write_parameters};
use crate::program::{Held, Program};
use crate::types::Element;
use planaria_array::{Array, DType};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// Parameters and the state of optimizers, by name.
#[derive(Clone, Debug, Default)]
pub struct ProgramState {
    values: BTreeMap<Name, Datum>,
}

impl ProgramState {
    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<&Datum> {
        self.values.get(name)
    }

    /// Sets a value.
    pub fn insert(&mut self, name: Name, value: Datum) {
        self.values.insert(name, value);
    }

    /// Takes a value away.
    pub fn remove(&mut self, name: &str) -> Option<Datum> {
        self.values.remove(name)
    }

    /// Sets a tensor that the program holds, by name.
    ///
    /// # Errors
    /// A name that the program does not have, and a value of another type than it declares.
    pub fn set(&mut self, program: &Program, name: &str, value: Array) -> Result<()> {
        let all = program.held();
        let Some(held) = all.iter().find(|held| &*held.name == name) else {
            let near = |held: &&Held| (strsim::jaro_winkler(&held.name, name) * 1e6) as u64;
            let nearest = all.iter().max_by_key(near).filter(|held| near(held) > 800_000);
            let hint = nearest.map_or(String::new(), |held| format!("; did you mean {}?", held.name));
            return Err(Error::State { what: format!("the program has no parameter {name}{hint}") });
        };
        let datum = Datum::Array(value);
        if let Some(what) = super::mismatch(&held.value.ty, &datum) {
            return Err(Error::State { what: format!("parameter {name}: {what}") });
        }
        self.insert(held.name.clone(), datum);
        Ok(())
    }

    /// All values in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Datum)> {
        self.values.iter()
    }

    /// The parameters of a program from its combined file.
    ///
    /// # Errors
    /// A file that is damaged or belongs to another program.
    pub fn read<R: Read>(program: &Program, from: R, size: u64) -> Result<ProgramState> {
        let mut state = ProgramState::default();
        read_parameters(program, from, size, &mut |held, record| {
            state.insert(held.name.clone(), datum(&held.name, &record)?);
            Ok(())
        })?;
        Ok(state)
    }

    /// Writes the combined file of a program.
    ///
    /// # Errors
    /// Values that are missing, and what the writer says.
    pub fn write(&self, program: &Program, out: &mut dyn Write) -> Result<()> {
        write_parameters(program, out, &mut |held| self.record(held))
    }

    fn record(&self, held: &Held) -> Result<Record> {
        let missing = || Error::State { what: format!("parameter {} is not given", held.name) };
        let datum = self.get(&held.name).ok_or_else(missing)?;
        record(&held.name, datum)
    }
}

/// A record of a file as a value.
pub(crate) fn datum(name: &str, record: &Record) -> Result<Datum> {
    let failed = |source| Error::Array { place: format!("parameter {name}"), source };
    let mut dims: Vec<usize> = record.dims.iter().map(|dim| *dim as usize).collect();
    let pairs = |dims: &mut Vec<usize>, dtype| {
        dims.push(2);
        Array::from_bytes(&record.bytes, dims, dtype)
    };
    Ok(match record.element {
        Element::Plain(dtype) => {
            Datum::Array(Array::from_bytes(&record.bytes, &dims, dtype).map_err(failed)?)
        }
        Element::C64 => Datum::Complex(pairs(&mut dims, DType::F32).map_err(failed)?),
        Element::C128 => Datum::Complex(pairs(&mut dims, DType::F64).map_err(failed)?),
    })
}

/// A value as a record of a file.
pub(crate) fn record(name: &str, datum: &Datum) -> Result<Record> {
    let failed = |source| Error::Array { place: format!("parameter {name}"), source };
    let (array, complex) = match datum {
        Datum::Array(array) => (array, false),
        Datum::Complex(array) => (array, true),
        other => {
            let what = format!("parameter {name} is {}, no tensor", super::describe(other));
            return Err(Error::State { what });
        }
    };
    let element = match (complex, array.dtype()) {
        (false, dtype) => Element::Plain(dtype),
        (true, DType::F64) => Element::C128,
        (true, _) => Element::C64,
    };
    let mut dims: Vec<u64> = array.shape().iter().map(|dim| *dim as u64).collect();
    if complex {
        dims.pop();
    }
    let array = array.contiguous().map_err(failed)?;
    let bytes = array.bytes().map_err(failed)?.to_vec();
    Ok(Record { element, dims, lod: Vec::new(), bytes })
}
