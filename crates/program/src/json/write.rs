//! Writes JSON on one line or indented by four, with numbers and escapes as Paddle's writer forms them.

/// JSON text being written; the caller gives the keys of an object in their order.
pub(crate) struct Writer {
    out: String,
    /// Lines and indentation, as `readable=True` of Paddle makes them.
    readable: bool,
    depth: usize,
    /// True right after an opening bracket.
    empty: bool,
}

impl Writer {
    pub(crate) fn new(readable: bool, capacity: usize) -> Writer {
        Writer { out: String::with_capacity(capacity), readable, depth: 0, empty: true }
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }

    /// Opens an object or a list.
    pub(crate) fn open(&mut self, bracket: char) {
        self.out.push(bracket);
        self.depth += 1;
        self.empty = true;
    }

    /// Closes what was opened last.
    pub(crate) fn close(&mut self, bracket: char) {
        self.depth -= 1;
        if !std::mem::take(&mut self.empty) {
            self.line();
        }
        self.out.push(bracket);
    }

    fn line(&mut self) {
        if self.readable {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', 4 * self.depth));
        }
    }

    /// Begins an item of a list.
    pub(crate) fn item(&mut self) {
        if !std::mem::take(&mut self.empty) {
            self.out.push(',');
        }
        self.line();
    }

    /// Begins a member of an object.
    pub(crate) fn key(&mut self, key: &str) {
        self.item();
        self.string(key);
        self.out.push_str(if self.readable { ": " } else { ":" });
    }

    pub(crate) fn integer(&mut self, value: i64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            self.out.push('-');
        }
        self.out.extend(digits[at..].iter().map(|digit| char::from(*digit)));
    }

    /// Text that is JSON already.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.out.push('"');
        let mut from = 0;
        for (at, byte) in text.bytes().enumerate() {
            let short = match byte {
                b'"' => "\\\"",
                b'\\' => "\\\\",
                0x8 => "\\b",
                0xc => "\\f",
                b'\n' => "\\n",
                b'\r' => "\\r",
                b'\t' => "\\t",
                0..0x20 => "",
                _ => continue,
            };
            self.out.push_str(&text[from..at]);
            self.out.push_str(short);
            if short.is_empty() {
                self.out.push_str(&format!("\\u{byte:04x}"));
            }
            from = at + 1;
        }
        self.out.push_str(&text[from..]);
        self.out.push('"');
    }
}

/// A finite number as Paddle's writer forms it: the shortest digits that read back, a point always, an exponent
/// outside 1e-4 to 1e15.
pub(crate) fn number_text(value: f64) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() { "-0.0" } else { "0.0" }.to_string();
    }
    let text = format!("{:e}", value.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Where the point stands, counted from the first digit.
    let point = exponent + 1;
    let count = digits.len() as i32;
    let sign = if value < 0.0 { "-" } else { "" };
    if count <= point && point <= 15 {
        let zeros = "0".repeat((point - count) as usize);
        return format!("{sign}{digits}{zeros}.0");
    }
    if 0 < point && point <= 15 {
        let (whole, rest) = digits.split_at(point as usize);
        return format!("{sign}{whole}.{rest}");
    }
    if -4 < point && point <= 0 {
        return format!("{sign}0.{}{digits}", "0".repeat(-point as usize));
    }
    let (first, rest) = digits.split_at(1);
    let dot = if rest.is_empty() { "" } else { "." };
    let way = if exponent < 0 { '-' } else { '+' };
    format!("{sign}{first}{dot}{rest}e{way}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::number_text;

    #[test]
    fn numbers_have_the_form_of_paddles_writer() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (f64::from(0.1f32), "0.10000000149011612"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-5, "1.5e-05"),
            (100000000000000.0, "100000000000000.0"),
            (1e15, "1e+15"),
            (9007199254740991.0, "9.007199254740991e+15"),
            (4.611686018427388e18, "4.611686018427388e+18"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(number_text(value), text);
        }
    }
}
