//! What work costs: measured on a small job by [`super::measure`], or told in a file.

use crate::error::{Error, Result};
use crate::trainer::place::Place;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The link that stands for axes without one of their own.
pub const ANY: &str = "any";

/// The run's own folder among the places.
pub const FOLDER: &str = "folder";

/// What work costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Where the figures come from, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// FLOPs of the model that a rank does in a second while it computes.
    pub flops: f64,
    /// Bytes of the residual stream that a rank takes through a block, forward and backward, in a second; absent where it takes no time.
    /// This is what tensor ranks do not share out: norms, sums, and what products read and write beside their FLOPs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<f64>,
    /// Bytes of gradients, masters and moments that the update of a rank goes through in a second; absent where it takes no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<f64>,
    /// Bytes of gradients and weights between data ranks that a rank's processors take care of in a second, in which they compute nothing
    /// else; absent where that takes none of their time. What is on its way meanwhile is the link's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handling: Option<f64>,
    /// By axis of the mesh (`pp`, `dp`, `ep`, `tp`); `any` for those that are not listed.
    #[serde(default)]
    pub links: BTreeMap<String, LinkCost>,
    /// By place of checkpoints: `folder`, `memory`, `peer`, `local`, `remote`.
    #[serde(default)]
    pub places: BTreeMap<String, PlaceCost>,
    /// What a failure costs beside the steps that are lost.
    #[serde(default)]
    pub recovery: RecoveryCost,
}

/// What it costs a rank to send.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Bytes that a rank sends in a second.
    pub bandwidth: f64,
    /// Seconds before the first byte of a message; a collective of n ranks takes it log2(n) times.
    #[serde(default)]
    pub latency: f64,
}

impl LinkCost {
    /// Seconds of some calls among so many ranks, in which a rank sends so many bytes together.
    pub(super) fn seconds(&self, calls: u64, bytes: u64, ranks: usize) -> f64 {
        let hops = ranks.max(2).next_power_of_two().ilog2();
        calls as f64 * self.latency * f64::from(hops) + bytes as f64 / self.bandwidth
    }
}

/// What it costs to write checkpoints to a place and to read them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceCost {
    /// Bytes written in a second.
    pub save: f64,
    /// Bytes read in a second.
    pub load: f64,
    /// Whose rates these are.
    #[serde(default)]
    pub rates: Rates,
    /// Seconds of a save beside its bytes.
    #[serde(default)]
    pub commit: f64,
    /// Seconds that training loses in each second of a save.
    #[serde(default)]
    pub drag: f64,
}

/// Whose rates those of a place are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rates {
    /// Of all ranks together, as those of a file server.
    #[default]
    Together,
    /// Of each rank, as those of memory and of disks in every machine.
    Each,
}

/// What a failure costs beside the steps that are lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecoveryCost {
    /// Seconds until it is noticed.
    pub detect: f64,
    /// Seconds until all ranks are there again and ready to load.
    pub restart: f64,
    /// Part of the failures that takes a machine, and with it what its memory and its disks hold.
    pub machines: f64,
}

impl Default for RecoveryCost {
    fn default() -> RecoveryCost {
        RecoveryCost { detect: 1.0, restart: 60.0, machines: 0.5 }
    }
}

impl Costs {
    /// Costs of these FLOPs per second and rank, and nothing else known.
    pub fn new(flops: f64) -> Costs {
        let (links, places) = (BTreeMap::new(), BTreeMap::new());
        let recovery = RecoveryCost::default();
        Costs {
            about: String::new(),
            flops,
            stream: None,
            update: None,
            handling: None,
            links,
            places,
            recovery,
        }
    }

    /// Reads a file: JSON where its name ends so, else TOML.
    pub fn read(path: &Path) -> Result<Costs> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Io { path: name.clone(), source })?;
        let wrong = |what: String| Error::Syntax { origin: name.clone(), what };
        let costs: Costs = match path.extension().is_some_and(|ending| ending == "json") {
            true => serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?,
            false => toml::from_str(&text).map_err(|e| wrong(e.to_string().trim_end().to_string()))?,
        };
        costs.check()?;
        Ok(costs)
    }

    /// Refuses what is no rate and no time.
    pub fn check(&self) -> Result<()> {
        let value = |key: String, holds: bool, found: f64, expected: &str| match holds {
            true => Ok(()),
            false => Err(Error::Value { key, found: found.to_string(), expected: expected.to_string() }),
        };
        let rate = |key: String, found: f64| {
            value(key, found > 0.0 && found.is_finite(), found, "a finite number above 0")
        };
        let time = |key: String, found: f64| {
            value(key, found >= 0.0 && found.is_finite(), found, "a finite number, at least 0")
        };
        rate("flops".into(), self.flops)?;
        self.stream.map_or(Ok(()), |stream| rate("stream".into(), stream))?;
        self.update.map_or(Ok(()), |update| rate("update".into(), update))?;
        self.handling.map_or(Ok(()), |handling| rate("handling".into(), handling))?;
        for (axis, link) in &self.links {
            rate(format!("links.{axis}.bandwidth"), link.bandwidth)?;
            time(format!("links.{axis}.latency"), link.latency)?;
        }
        for (name, place) in &self.places {
            rate(format!("places.{name}.save"), place.save)?;
            rate(format!("places.{name}.load"), place.load)?;
            time(format!("places.{name}.commit"), place.commit)?;
            time(format!("places.{name}.drag"), place.drag)?;
        }
        time("recovery.detect".into(), self.recovery.detect)?;
        time("recovery.restart".into(), self.recovery.restart)?;
        let share = self.recovery.machines;
        value("recovery.machines".into(), (0.0..=1.0).contains(&share), share, "from 0 to 1")
    }

    /// The link of an axis.
    pub(super) fn link(&self, axis: &str) -> Result<LinkCost> {
        let found = self.links.get(axis).or_else(|| self.links.get(ANY)).copied();
        found.ok_or_else(|| {
            missing(&format!("links.{axis}"), "`bandwidth` and `latency` there, or for `links.any`")
        })
    }

    /// What a place costs: under its name, else under its kind.
    pub(super) fn place(&self, place: &Place) -> Result<PlaceCost> {
        let kind = place.kind.map_or(FOLDER.to_string(), |kind| kind.to_string());
        let named = place.name.as_ref().and_then(|name| self.places.get(name));
        let found = named.or_else(|| self.places.get(&kind)).copied();
        found
            .ok_or_else(|| missing(&format!("places.{kind}"), "`save` and `load` there, in bytes per second"))
    }
}

fn missing(key: &str, expected: &str) -> Error {
    Error::Value { key: key.to_string(), found: "missing".to_string(), expected: expected.to_string() }
}
