//! Sizes and times with units, read and printed: `8GB`, `256 MiB`, `1.5 GB`, `4h`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Printed with decimal units and one digit after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

const UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let expected = "expected a size such as 8GB or 512MiB";
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim();
        let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, factor) = known.ok_or_else(|| format!("'{unit}' is not a unit; {expected}"))?;
        let value: f64 = number.parse().map_err(|_| expected.to_string())?;
        let bytes = value * *factor as f64;
        // 2^53: beyond it not every number of bytes can be written with a point.
        if bytes >= 9_007_199_254_740_992.0 {
            return Err("more bytes than any machine has".to_string());
        }
        Ok(Bytes(bytes.round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
        let bytes = self.0 as f64;
        // 999.95 would be printed as 1000.0: it belongs to the next unit.
        let text = match units.iter().find(|(_, size)| bytes >= size * 0.99995) {
            Some((unit, size)) => format!("{:.1} {unit}", bytes / size),
            None => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

/// A time, read as `4h`, `90m`, `30s` or `2d`; a bare number is of seconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Seconds(pub(crate) f64);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        let expected = "expected a time such as 4h, 90m, 30s or 2d";
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor = match unit.trim() {
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            unit => return Err(format!("'{unit}' is not a unit; {expected}")),
        };
        let value: f64 = number.parse().map_err(|_| expected.to_string())?;
        if value > 0.0 && (value * factor).is_finite() {
            Ok(Seconds(value * factor))
        } else {
            Err(format!("'{text}' is no time; {expected}"))
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0.0 => "0 s".to_string(),
            s if s < 0.9995e-3 => format!("{:.0} us", s * 1e6),
            s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
            s if s < 119.95 => format!("{s:.1} s"),
            s if s < 7200.0 => format!("{:.1} min", s / 60.0),
            s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
            s => format!("{:.1} d", s / 86400.0),
        };
        f.pad(&text)
    }
}

/// A number of parameters, with three digits that matter: `1.24B parameters`.
pub(crate) fn parameters(number: u64) -> String {
    let units = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)];
    let value = number as f64;
    let (unit, size) = units.into_iter().find(|(_, size)| value >= size * 0.9995).unwrap_or(("", 1.0));
    let scaled = value / size;
    let digits = if unit.is_empty() || scaled >= 99.95 {
        0
    } else if scaled >= 9.995 {
        1
    } else {
        2
    };
    let plural = if number == 1 { "" } else { "s" };
    format!("{scaled:.digits$}{unit} parameter{plural}")
}

/// A count with its noun: `1 tensor`, `3 tensors`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let cases = [
            ("0", 0),
            ("17", 17),
            ("8GB", 8_000_000_000),
            ("1.5 kb", 1_500),
            ("256 MiB", 256 << 20),
            ("2gib", 2 << 30),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "GB", "1..2", "-1", "5 parsecs", "99999999TB", "1e3"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read_and_printed() {
        let cases =
            [("4h", "4.0 h"), ("90m", "90.0 min"), ("0.5s", "500 ms"), ("30", "30.0 s"), ("2 d", "2.0 d")];
        for (text, shown) in cases {
            assert_eq!(text.parse::<Seconds>().unwrap().to_string(), shown);
        }
        assert!(
            ["", "h", "0h", "-1h", "3 fortnights", "1e3"].iter().all(|text| text.parse::<Seconds>().is_err())
        );
    }

    #[test]
    fn sizes_are_printed_with_the_unit_that_fits() {
        let shown = |bytes: u64| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(999), "999 B");
        assert_eq!(shown(1_000), "1.0 kB");
        assert_eq!(shown(999_960), "1.0 MB");
        assert_eq!(shown(12_345_678_901), "12.3 GB");
        let cases = [(0, "0"), (560, "560"), (1_234, "1.23K"), (999_600, "1.00M"), (99_960_000, "100M")];
        for (number, text) in cases.into_iter().chain([(494_032_768, "494M"), (1_235_814_400, "1.24B")]) {
            assert_eq!(parameters(number), format!("{text} parameters"));
        }
        assert_eq!(count(1, "tensor") + &count(0, "file"), "1 tensor0 files");
    }
}
