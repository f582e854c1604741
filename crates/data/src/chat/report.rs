//! The count of what became of every row of a source.

use super::row::Form;
use std::collections::BTreeMap;

/// What became of the rows of a source. Every row is in one of `kept`, `too_long` and `untrained`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows by the form they were written in.
    pub forms: BTreeMap<Form, u64>,
    /// Rows that are trained on: conversations, or answers where every answer is a row.
    pub kept: u64,
    /// Of these, rows that were cut to fit.
    pub cut: u64,
    /// Tokens that were cut off.
    pub cut_tokens: u64,
    /// Rows left out because they are too long.
    pub too_long: u64,
    /// Rows left out because no token of them is trained.
    pub untrained: u64,
    /// Samples left out because they are pieces of longer rows with nothing to learn.
    pub barren: u64,
    /// Tokens of these.
    pub barren_tokens: u64,
    /// Tokens of all samples, padding not counted.
    pub tokens: u64,
    /// Tokens that are trained.
    pub trained: u64,
    /// Samples.
    pub samples: u64,
    /// Tokens of all samples with padding.
    pub room: u64,
}

impl Report {
    /// Rows of two sources together.
    pub fn add(&mut self, other: &Report) {
        other.forms.iter().for_each(|(&form, count)| *self.forms.entry(form).or_default() += count);
        self.kept += other.kept;
        self.cut += other.cut;
        self.cut_tokens += other.cut_tokens;
        self.too_long += other.too_long;
        self.untrained += other.untrained;
        self.barren += other.barren;
        self.barren_tokens += other.barren_tokens;
        self.tokens += other.tokens;
        self.trained += other.trained;
        self.samples += other.samples;
        self.room += other.room;
    }

    /// What a person wants to know, one fact a line; what did not happen is not mentioned.
    pub fn lines(&self) -> Vec<String> {
        let forms: Vec<String> =
            self.forms.iter().map(|(form, count)| format!("{count} {}", form.name())).collect();
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let mut out = vec![
            format!("rows: {}", if forms.is_empty() { "none".into() } else { forms.join(", ") }),
            format!(
                "{} in {}, {:.1} % padding",
                counted(self.kept, "row"),
                counted(self.samples, "sample"),
                share(self.room - self.tokens, self.room)
            ),
            format!(
                "{} tokens, {} of them trained ({:.1} %)",
                self.tokens,
                self.trained,
                share(self.trained, self.tokens)
            ),
        ];
        if self.cut > 0 {
            out.push(format!("cut {}, {} lost", counted(self.cut, "row"), counted(self.cut_tokens, "token")));
        }
        if self.too_long > 0 {
            out.push(format!("left out {}: too long", counted(self.too_long, "row")));
        }
        if self.untrained > 0 {
            out.push(format!("left out {}: no trained token", counted(self.untrained, "row")));
        }
        if self.barren > 0 {
            out.push(format!(
                "left out {} of {}: pieces of longer rows without a trained token",
                counted(self.barren, "sample"),
                counted(self.barren_tokens, "token")
            ));
        }
        out
    }
}

/// `1 row`, `2 rows`.
fn counted(number: impl Into<u64>, noun: &str) -> String {
    let number = number.into();
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
