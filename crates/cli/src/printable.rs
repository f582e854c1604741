//! Text from untrusted files made safe to show: no escape sequences, no control characters, no reversal.

use std::borrow::Cow;

/// The text with everything escaped that a terminal would act on. The listed characters stay.
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
    for c in text.chars() {
        if acts(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_act_on() {
        assert!(matches!(printable("model.α.weight", &[]), Cow::Borrowed(_)));
        assert_eq!(printable("a\x1b[31mred", &[]), "a\\u{1b}[31mred");
        assert_eq!(printable("a\x1b[2J\x1b]0;x\x07", &[]), "a\\u{1b}[2J\\u{1b}]0;x\\u{7}");
        assert_eq!(printable("a\nb\u{202e}c", &[]), "a\\nb\\u{202e}c");
        assert_eq!(printable("a\nb\r", &['\n']), "a\nb\\r");
        assert_eq!(printable("\x1b[", &[]), "\\u{1b}[");
    }
}
