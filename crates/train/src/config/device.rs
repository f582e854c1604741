//! The text form of a device in configurations.

use planaria_array::Device;
use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(super) fn serialize<S: Serializer>(device: &Device, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(device)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Device, D::Error> {
    let text = String::deserialize(from)?;
    match text.parse() {
        Ok(Device::Meta) => {
            Err(D::Error::custom("nothing is computed on \"meta\"; use \"cpu\" or \"cuda:0\""))
        }
        Ok(device) => Ok(device),
        Err(error) => Err(D::Error::custom(error)),
    }
}
