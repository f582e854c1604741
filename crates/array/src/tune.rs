//! Timing the ways to compute the matrix products that this process has asked of a device.

use crate::device::Device;
use crate::error::{Error, Result};
pub use planaria_cuda::Tuned;

/// Times what a device's library offers for each product asked of it so far; `told` hears of each, the largest first.
pub fn tune(device: Device, told: &mut dyn FnMut(&Tuned)) -> Result<()> {
    match device {
        Device::Cuda(ordinal) => Ok(planaria_cuda::tune(ordinal, told)?),
        Device::Cpu | Device::Meta => Err(Error::NotOnDevice { op: "tune", device }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_nothing_to_choose_on_the_host() {
        let error = tune(Device::Cpu, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("tune") && error.contains("cpu"), "{error}");
    }
}
