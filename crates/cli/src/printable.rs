//! Text from untrusted files made safe to show: no escape sequences but colours, no control characters, no reversal.

use std::borrow::Cow;

/// The text with everything escaped that a terminal would act on. Colours and the listed characters stay.
pub(crate) fn printable<'t>(text: &'t str, kept: &[char]) -> Cow<'t, str> {
    let acts = |c: char| {
        let reverses =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        reverses || (c.is_control() && !kept.contains(&c))
    };
    if !text.chars().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match colour(rest) {
            Some(len) => len,
            None if acts(first) => {
                shown.extend(first.escape_default());
                rest = &rest[first.len_utf8()..];
                continue;
            }
            None => first.len_utf8(),
        };
        shown.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    Cow::Owned(shown)
}

/// Length of the colour code that the text begins with.
fn colour(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("\x1b[")?;
    let end = inner.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    inner[end..].starts_with('m').then_some(end + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_reach_the_terminal() {
        assert!(matches!(printable("model.α.weight", &[]), Cow::Borrowed(_)));
        assert_eq!(printable("a\x1b[1;31mred\x1b[0m", &[]), "a\x1b[1;31mred\x1b[0m");
        assert_eq!(printable("a\x1b[2J\x1b]0;x\x07", &[]), "a\\u{1b}[2J\\u{1b}]0;x\\u{7}");
        assert_eq!(printable("a\nb\u{202e}c", &[]), "a\\nb\\u{202e}c");
        assert_eq!(printable("a\nb\r", &['\n']), "a\nb\\r");
        assert_eq!(printable("\x1b[", &[]), "\\u{1b}[");
    }
}
