//! What templates expect of Python: `json.dumps`, values printed as Python prints them, and Jinja's own tests of kinds.

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use std::fmt::Write;

/// Depth of nested values that is printed; deeper ones are refused.
const DEEPEST: usize = 128;

/// Puts the filters and tests into an environment in which ours differ from Jinja's.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.set_formatter(print);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
}

/// Jinja's `sequence` has a length and items: texts and mappings too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&text(value)?),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the text could not be written"))
}

/// `str(value)`.
fn text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::Plain | ValueKind::Bytes | ValueKind::Invalid => out = value.to_string(),
        _ => repr(value, &mut out, 0)?,
    }
    Ok(out)
}

/// `repr(value)`.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    refuse_depth(depth)?;
    match value.kind() {
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out, depth + 1)?;
            }
            out.push_str(match (tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        // Numbers, truth values and none are printed as in Python.
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A text in the quotes that Python chooses.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32)) => {
                push(out, format_args!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// `repr` of a float: the shortest digits that give it back, with an exponent where Python has one.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// How JSON is written.
struct Style {
    ascii: bool,
    indent: Option<usize>,
    between: String,
    after_key: String,
    sorted: bool,
}

/// `tojson` of Hugging Face: `json.dumps` without its escapes for other alphabets, and none for HTML.
fn to_json(value: &Value, ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let named: Option<bool> = options.get("ensure_ascii")?;
    let indent: Option<usize> = options.get("indent")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let [between, after_key] = match separators {
        Some(two) => <[String; 2]>::try_from(two)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators are two texts"))?,
        None => [if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()],
    };
    let style = Style {
        ascii: named.or(ascii).unwrap_or(false),
        indent,
        between,
        after_key,
        sorted: sorted.unwrap_or(false),
    };
    let mut out = String::new();
    style.write(value, &mut out, 0)?;
    Ok(out)
}

impl Style {
    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        refuse_depth(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&match f64::try_from(value.clone())? {
                value if value.is_nan() => "NaN".to_string(),
                value if value.is_infinite() => float(value).replace("inf", "Infinity"),
                value => float(value),
            }),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], items.len(), out, depth, |i, out| {
                    self.write(&items[i], out, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.container(['{', '}'], keys.len(), out, depth, |i, out| {
                    self.key(&keys[i], out)?;
                    out.push_str(&self.after_key);
                    self.write(&value.get_item(&keys[i])?, out, depth + 1)
                })?;
            }
            kind => {
                let message = format!("tojson: a value of the kind {kind} has no JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    /// Keys are texts; others become the text that JSON has for them.
    fn key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        match key.as_str() {
            Some(text) => self.text(text, out),
            None => {
                let mut plain = String::new();
                self.write(key, &mut plain, 0)?;
                self.text(&plain, out);
            }
        }
        Ok(())
    }

    fn container(
        &self,
        [open, close]: [char; 2],
        len: usize,
        out: &mut String,
        depth: usize,
        mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for i in 0..len {
            out.push_str(if i > 0 { &self.between } else { "" });
            self.line(out, depth + 1);
            item(i, out)?;
        }
        if len > 0 {
            self.line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' => push(out, format_args!("\\u{:04x}", c as u32)),
                c if self.ascii && c > '~' => {
                    c.encode_utf16(&mut [0; 2])
                        .iter()
                        .for_each(|unit| push(out, format_args!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn push(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).unwrap_or_default(); // a String takes everything
}

fn refuse_depth(depth: usize) -> Result<(), Error> {
    if depth < DEEPEST {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("values are nested more than {DEEPEST} deep")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_python_prints_them() {
        let cases = [
            (2.5, "2.5"),
            (1.0, "1.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
    }
}
