//! A mapping named on the command line: statements as they are, or the JSON in which AOA users keep them.

use crate::failure::Failure;
use anyhow::{Context, Error, Result};
use planaria::aoa::{Options, Program, Strictness};
use planaria::ckpt::convert::{Remap, Way};
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// Tensor-parallel parts of fused weights on both sides of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    left: NonZeroUsize,
    right: NonZeroUsize,
}

impl FromStr for Parts {
    type Err = String;

    fn from_str(text: &str) -> Result<Parts, String> {
        let (left, right) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| "expected a number as in 2, or two as in 2:4");
        Ok(Parts { left: number(left)?, right: number(right)? })
    }
}

/// An AOA configuration. What else stands in it says nothing about tensors.
#[derive(Debug, Deserialize)]
struct Config {
    aoa_statements: Vec<String>,
    #[serde(default)]
    aoa_config_reverse: bool,
}

/// Reads the mapping of a file.
pub(crate) fn read(path: &str, parts: Option<Parts>) -> Result<Remap> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("cannot read '{path}': {error}")).hint("`--mapping` takes a text file")
    })?;
    parse(&text, path, parts)
}

/// Reads a mapping. JSON was written for the reference, so what old files rely on is a warning there.
pub(crate) fn parse(text: &str, path: &str, parts: Option<Parts>) -> Result<Remap> {
    let (program, way, strictness) = match text.trim_start().chars().next() {
        Some(first @ ('{' | '[')) => {
            let config = config(text, first).map_err(|error| {
                let hint = "expected {\"aoa_statements\": [\"a -> b\", ...]}, or the list alone";
                Failure::usage(format!("the mapping '{path}' cannot be read: {error}")).hint(hint)
            })?;
            let way = if config.aoa_config_reverse { Way::Back } else { Way::Forward };
            (Program::from_statements(&config.aoa_statements), way, Strictness::Lenient)
        }
        _ => (Program::parse(text), Way::Forward, Strictness::Strict),
    };
    let program = program.with_context(|| refused(path))?;
    let (left_parts, right_parts) = (parts.map(|parts| parts.left), parts.map(|parts| parts.right));
    let options = Options { strictness, left_parts, right_parts, ..Options::default() };
    Ok(Remap { program, way, options })
}

fn config(text: &str, first: char) -> serde_json::Result<Config> {
    if first == '{' {
        return serde_json::from_str(text);
    }
    Ok(Config { aoa_statements: serde_json::from_str(text)?, aoa_config_reverse: false })
}

/// An error of a conversion, led by the file with the mapping where that is at fault.
pub(crate) fn blame(error: planaria::ckpt::Error, path: Option<&str>) -> Error {
    let mapping = path.filter(|_| matches!(error, planaria::ckpt::Error::Mapping(_)));
    let error = Error::from(error);
    match mapping {
        Some(path) => error.context(refused(path)),
        None => error,
    }
}

fn refused(path: &str) -> String {
    format!("the mapping '{path}' does not hold")
}
