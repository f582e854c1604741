//! What a self-test found.

use crate::device::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The outcome of one family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// Cases that agreed.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases whose operation the device does not have.
    pub missing: usize,
    /// Cases for which no time was left.
    pub skipped: usize,
    /// The largest error among those that passed, in the unit of their tolerance.
    pub worst: f64,
}

/// A case that did not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its family.
    pub family: &'static str,
    /// Its name.
    pub name: String,
    /// What differed.
    pub text: String,
}

/// What a self-test found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The device under test.
    pub device: Device,
    /// Outcomes by family.
    pub families: BTreeMap<&'static str, Family>,
    /// Cases that did not agree.
    pub failed: Vec<Failed>,
    /// Operations the device does not have, with the first case that asked.
    pub missing: BTreeMap<&'static str, String>,
    /// Seconds it took.
    pub seconds: f64,
    /// Figures of the stress, by name.
    pub figures: BTreeMap<String, f64>,
}

impl Report {
    /// Nothing found yet.
    pub fn new(device: Device) -> Report {
        let (families, failed, missing) = Default::default();
        Report { device, families, failed, missing, seconds: 0.0, figures: BTreeMap::new() }
    }

    /// A case agreed, with this error.
    pub fn pass(&mut self, family: &'static str, error: f64) {
        let family = self.families.entry(family).or_default();
        family.passed += 1;
        family.worst = family.worst.max(error);
    }

    /// A case did not agree.
    pub fn fail(&mut self, family: &'static str, name: &str, text: String) {
        self.families.entry(family).or_default().failed += 1;
        self.failed.push(Failed { family, name: name.to_string(), text });
    }

    /// A case whose operation the device does not have.
    pub fn missing(&mut self, family: &'static str, op: &'static str, name: &str) {
        self.families.entry(family).or_default().missing += 1;
        self.missing.entry(op).or_insert_with(|| name.to_string());
    }

    /// A case for which no time was left.
    pub fn skip(&mut self, family: &'static str) {
        self.families.entry(family).or_default().skipped += 1;
    }

    /// True when nothing failed.
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty()
    }

    /// The report as lines for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            let Family { passed, failed, missing, skipped, worst } = family;
            let _ = writeln!(
                text,
                "{name:<14} {passed:>6} passed {failed:>5} failed {missing:>5} missing {skipped:>5} skipped  worst {worst:.3e}"
            );
        }
        for Failed { family, name, text: why } in self.failed.iter().take(60) {
            let _ = writeln!(text, "failed: {family} {name}: {why}");
        }
        if self.failed.len() > 60 {
            let _ = writeln!(text, "and {} more", self.failed.len() - 60);
        }
        let ops: BTreeSet<&str> = self.missing.keys().copied().collect();
        if !ops.is_empty() {
            let _ = writeln!(
                text,
                "not on {} yet: {}",
                self.device,
                ops.into_iter().collect::<Vec<_>>().join(", ")
            );
        }
        for (name, figure) in &self.figures {
            let _ = writeln!(text, "{name}: {figure:.4}");
        }
        let _ = writeln!(text, "{:.1} s", self.seconds);
        text
    }

    /// The report as one JSON object, with `about` (name and value) before it.
    pub fn json(&self, about: &[(&str, String)]) -> String {
        let mut out = String::from("{\n");
        for (name, value) in about {
            let _ = writeln!(out, "  {}: {},", quoted(name), quoted(value));
        }
        let _ = writeln!(
            out,
            "  \"device\": {}, \"seconds\": {:.1},",
            quoted(&self.device.to_string()),
            self.seconds
        );
        let families = self.families.iter().map(|(name, f)| {
            format!(
                "    {}: {{\"passed\": {}, \"failed\": {}, \"missing\": {}, \"skipped\": {}, \"worst\": {:e}}}",
                quoted(name),
                f.passed,
                f.failed,
                f.missing,
                f.skipped,
                f.worst
            )
        });
        let _ = writeln!(out, "  \"families\": {{\n{}\n  }},", families.collect::<Vec<_>>().join(",\n"));
        let missing = self.missing.iter().map(|(op, case)| format!("    {}: {}", quoted(op), quoted(case)));
        let _ = writeln!(out, "  \"missing\": {{\n{}\n  }},", missing.collect::<Vec<_>>().join(",\n"));
        let figures = self.figures.iter().map(|(name, x)| format!("    {}: {x:e}", quoted(name)));
        let _ = writeln!(out, "  \"figures\": {{\n{}\n  }},", figures.collect::<Vec<_>>().join(",\n"));
        let failed = self
            .failed
            .iter()
            .map(|f| format!("    [{}, {}, {}]", quoted(f.family), quoted(&f.name), quoted(&f.text)));
        let _ = writeln!(out, "  \"failed\": [\n{}\n  ]\n}}", failed.collect::<Vec<_>>().join(",\n"));
        out
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
