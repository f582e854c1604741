//! Where ranks compute, as configurations say it.

use planaria_array::Device;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// Where ranks compute: `cpu`, `cuda:1`, or `cuda`, which leaves the choice among the GPUs of a machine to where a rank stands on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compute {
    /// The host.
    #[default]
    Cpu,
    /// A GPU of the machine: that of a rank's place among those of the machine.
    Cuda,
    /// This GPU.
    CudaAt(u32),
}

impl Compute {
    /// The device of a rank that stands at this place among those of its machine, which shows so many GPUs. Where ranks
    /// outnumber GPUs, they share them in turn.
    pub fn dealt(self, place: usize, gpus: u32) -> Compute {
        match self {
            Compute::Cuda => Compute::CudaAt((place % gpus.max(1) as usize) as u32),
            other => other,
        }
    }

    /// The device; the first GPU where none was chosen.
    pub fn device(self) -> Device {
        match self {
            Compute::Cpu => Device::Cpu,
            Compute::Cuda => Device::Cuda(0),
            Compute::CudaAt(ordinal) => Device::Cuda(ordinal),
        }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compute::Cuda => f.write_str("cuda"),
            other => other.device().fmt(f),
        }
    }
}

impl FromStr for Compute {
    type Err = String;
    fn from_str(text: &str) -> Result<Compute, String> {
        match text.parse() {
            _ if text == "cuda" => Ok(Compute::Cuda),
            Ok(Device::Cpu) => Ok(Compute::Cpu),
            Ok(Device::Cuda(ordinal)) => Ok(Compute::CudaAt(ordinal)),
            Ok(_) => Err("nothing is computed on \"meta\"; use \"cpu\" or \"cuda:0\"".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Serialize for Compute {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Compute {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Compute, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_is_dealt_out_to_the_ranks_of_a_machine_and_a_named_gpu_is_not() {
        let any: Compute = "cuda".parse().unwrap();
        let dealt: Vec<String> = (0..6).map(|place| any.dealt(place, 4).to_string()).collect();
        assert_eq!(dealt, ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0", "cuda:1"]);
        assert_eq!(any.dealt(3, 0).device(), Device::Cuda(0));
        for text in ["cpu", "cuda:0", "cuda:2"] {
            let named: Compute = text.parse().unwrap();
            assert_eq!(named.dealt(3, 4).to_string(), text);
        }
        assert_eq!((any.device(), any.to_string()), (Device::Cuda(0), "cuda".into()));
        for wrong in ["meta", "gpu", "cuda:x"] {
            assert!(wrong.parse::<Compute>().is_err(), "{wrong}");
        }
    }
}
