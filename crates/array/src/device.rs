//! Where bytes live.

use crate::error::Error;
use std::fmt;
use std::str::FromStr;

/// A memory that can hold arrays. Operations match on it where they choose a kernel; what has none for a device is refused
/// by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// No memory at all: shapes and dtypes only, for planning.
    Meta,
    /// The memory of an NVIDIA device, by its number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Meta => f.write_str("meta"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    /// `cpu`, `meta`, `cuda:1`, or `cuda` for `cuda:0`.
    fn from_str(text: &str) -> Result<Device, Error> {
        let unknown = || Error::argument("device", format!("{text:?} is not a device; use cpu or cuda:0"));
        match text {
            "cpu" => Ok(Device::Cpu),
            "meta" => Ok(Device::Meta),
            "cuda" => Ok(Device::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                ordinal.parse().map(Device::Cuda).map_err(|_| unknown())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_parsed() {
        for device in [Device::Cpu, Device::Meta, Device::Cuda(0), Device::Cuda(17)] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for wrong in ["gpu", "cuda:", "cuda:-1", "cuda:x", "", "CPU"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}
