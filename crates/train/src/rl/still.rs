//! A model that only judges: its weights never change.

use crate::config::Config;
use crate::error::Result;
use crate::opened::Opened;
use planaria_array::{DType, Device};
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::models::{Models, Network};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder of weights that never change, loaded whole when they are first asked; all thread ranks share them.
#[derive(Clone)]
pub(crate) struct Still {
    path: PathBuf,
    dtype: DType,
    device: Device,
    loaded: Arc<Mutex<Option<Arc<dyn Network>>>>,
}

impl fmt::Debug for Still {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Still({})", self.path.display())
    }
}

impl Still {
    /// In the precision and on the device of a run.
    pub(crate) fn new(path: &Path, config: &Config) -> Still {
        let (dtype, device) = (config.train.precision.dtype(), config.device.device());
        Still { path: path.to_path_buf(), dtype, device, loaded: Arc::default() }
    }

    pub(crate) fn network(&self) -> Result<Arc<dyn Network>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*loaded {
            return Ok(network.clone());
        }
        let init = Init { dtype: self.dtype, device: self.device, ..Init::default() };
        let network = Opened::open(&self.path, &[], &Models::default())?.load(&alone(), &init)?;
        Ok(loaded.insert(network.into()).clone())
    }
}
