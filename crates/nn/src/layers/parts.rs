//! Parameters on their way into modules: made from a table, taken out by name.

use super::{Embedding, LayerNorm, Linear, RmsNorm};
use crate::error::{Error, Result};
use crate::parallel::Parallel;
use crate::param::{Init, Param, ParamSpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Parameters under one prefix. Modules take theirs, and say nothing about shapes, biases or layouts: that is the
/// table's business.
#[derive(Debug, Clone)]
pub struct Parts {
    prefix: String,
    made: Rc<RefCell<BTreeMap<String, Param>>>,
}

impl Parts {
    /// All parameters of a table, with their first values. A tied one shares the elements of its twin where both
    /// are in the table.
    pub fn new(table: Vec<ParamSpec>, init: &Init, parallel: Option<&Parallel>) -> Result<Parts> {
        let mut made: BTreeMap<String, Param> = BTreeMap::new();
        for spec in table {
            let twin = spec.tied.as_ref().and_then(|name| made.get(name));
            let param = match twin {
                Some(twin) => Param::tied_to(spec, twin),
                None => Param::new(spec, init, parallel)?,
            };
            made.insert(param.name().to_string(), param);
        }
        Ok(Parts { prefix: String::new(), made: Rc::new(RefCell::new(made)) })
    }

    /// Those under `name`.
    pub fn at(&self, name: &str) -> Parts {
        Parts { prefix: format!("{}{name}.", self.prefix), made: self.made.clone() }
    }

    /// Whether the table has a parameter of this name that nobody took yet.
    pub fn has(&self, name: &str) -> bool {
        self.made.borrow().contains_key(&format!("{}{name}", self.prefix))
    }

    /// The parameter of this name.
    pub fn take(&self, name: &str) -> Result<Param> {
        self.maybe(name).ok_or_else(|| {
            let made = self.made.borrow();
            let example = made.keys().next().map_or("none", String::as_str);
            let known = format!("{} others, such as `{example}`", made.len());
            Error::NoParameter { name: format!("{}{name}", self.prefix), known }
        })
    }

    /// The parameter of this name, if the table has it.
    pub fn maybe(&self, name: &str) -> Option<Param> {
        self.made.borrow_mut().remove(&format!("{}{name}", self.prefix))
    }

    /// `name.weight` and, where there is one, `name.bias`.
    pub fn linear(&self, name: &str) -> Result<Linear> {
        let at = self.at(name);
        Ok(Linear::of(at.take("weight")?, at.maybe("bias")))
    }

    /// `name.weight` as a table of rows.
    pub fn embedding(&self, name: &str) -> Result<Embedding> {
        Ok(Embedding::of(self.at(name).take("weight")?))
    }

    /// `name.weight` of a norm by the root of the mean square.
    pub fn rms_norm(&self, name: &str, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.at(name).take("weight")?, eps, from_one: false })
    }

    /// `name.weight` and, where there is one, `name.bias` of a layer norm.
    pub fn layer_norm(&self, name: &str, eps: f64) -> Result<LayerNorm> {
        let at = self.at(name);
        Ok(LayerNorm { weight: at.take("weight")?, bias: at.maybe("bias"), eps })
    }
}
