//! `{% generation %}` blocks: Hugging Face's own tag, written anew with tags that the engine knows.
//!
//! The beginning and the end of a block print a character that no text has; it is taken out of what was rendered, and its
//! place is noted. White space around the tags is cut as the tag asked for it, and a block is a scope, as it is there.

use std::ops::Range;

/// Printed where a block begins and ends: noncharacters, which no text interchanges.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';
/// Put around special tokens that a content spells out, and that are text like any other.
const PLAIN_BEGIN: char = '\u{fdd2}';
const PLAIN_END: char = '\u{fdd3}';

/// A template with its blocks written anew, and whether there were any.
pub(super) fn rewrite(template: &str) -> (String, bool) {
    let mut out = String::with_capacity(template.len());
    let (mut found, mut raw) = (false, false);
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let tag = tag_length(rest);
        let (tag, after) = rest.split_at(tag);
        rest = after;
        let Some((left, name, right)) = statement(tag) else {
            out.push_str(tag);
            continue;
        };
        match name {
            "raw" => raw = true,
            "endraw" => raw = false,
            "generation" if !raw => {
                found = true;
                out.push_str(&format!("{{%{left} if true %}}{BEGIN}{{% endif %}}{{% with {right}%}}"));
                continue;
            }
            "endgeneration" if !raw => {
                out.push_str(&format!("{{%{left} endwith %}}{{% if true %}}{END}{{% endif {right}%}}"));
                continue;
            }
            _ => {}
        }
        out.push_str(tag);
    }
    out.push_str(rest);
    (out, found)
}

/// Bytes of the tag that begins here; those of the brace where none does.
fn tag_length(text: &str) -> usize {
    let (end, quotes) = match text.as_bytes().get(1) {
        Some(b'%') => ("%}", true),
        Some(b'{') => ("}}", true),
        Some(b'#') => ("#}", false),
        _ => return 1,
    };
    let mut quote = None;
    let mut at = 2;
    while at < text.len() {
        let byte = text.as_bytes()[at];
        match quote {
            Some(_) if byte == b'\\' => at += 1,
            Some(mark) if byte == mark => quote = None,
            Some(_) => {}
            None if quotes && (byte == b'"' || byte == b'\'') => quote = Some(byte),
            None if text.as_bytes()[at..].starts_with(end.as_bytes()) => return at + 2,
            None => {}
        }
        at += 1;
    }
    text.len()
}

/// The name of a statement and the signs for white space on both of its sides.
fn statement(tag: &str) -> Option<(&str, &str, &str)> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let sign = |found: bool, at: Range<usize>| if found { &inner[at] } else { "" };
    let left = sign(inner.starts_with(['-', '+']), 0..1);
    let inner = &inner[left.len()..];
    let right = if inner.ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
    Some((left, inner[..inner.len() - right.len()].trim(), right))
}

/// Whether a text has a character that something is marked with.
pub(super) fn is_marked(text: &str) -> bool {
    text.contains([BEGIN, END, PLAIN_BEGIN, PLAIN_END])
}

/// A rendered text without its marks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TakenOut {
    pub(super) text: String,
    /// Bytes of generation blocks.
    pub(super) generated: Vec<Range<usize>>,
    /// Bytes of special tokens that contents spell out.
    pub(super) plain: Vec<Range<usize>>,
}

pub(super) fn take_out(marked: &str) -> TakenOut {
    let mut out = TakenOut { text: String::with_capacity(marked.len()), ..TakenOut::default() };
    let (mut open, mut open_plain) = (Vec::new(), Vec::new());
    for c in marked.chars() {
        let at = out.text.len();
        match c {
            BEGIN => open.push(at),
            END => out.generated.extend(open.pop().map(|start| start..at)),
            PLAIN_BEGIN => open_plain.push(at),
            PLAIN_END => out.plain.extend(open_plain.pop().map(|start| start..at)),
            _ => out.text.push(c),
        }
    }
    out.generated.sort_by_key(|range| range.start);
    out
}

/// A text with marks around every special token that it spells out.
pub(super) fn escape(text: &str, specials: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // The first that is found, and of those that begin together the longest.
    while let Some((at, token)) = specials
        .iter()
        .filter_map(|token| Some((rest.find(token.as_str())?, token)))
        .min_by_key(|(at, token)| (*at, std::cmp::Reverse(token.len())))
    {
        out.push_str(&format!("{}{PLAIN_BEGIN}{token}{PLAIN_END}", &rest[..at]));
        rest = &rest[at + token.len()..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tags_of_blocks_are_written_anew() {
        let kept = "{# {% generation %} #}{{ '{% generation %}' }}{% raw %}{% generation %}{% endraw %} { {% if a %}{";
        assert_eq!(rewrite(kept), (kept.to_string(), false));
        let (text, found) = rewrite("a {%- generation %}b{% endgeneration -%} c");
        assert!(found);
        assert!(text.starts_with("a {%- if true %}") && text.ends_with("{% endif -%} c"), "{text}");
    }

    #[test]
    fn marks_leave_their_places() {
        let marked = format!("ä{BEGIN}b{PLAIN_BEGIN}c{PLAIN_END}{END}{PLAIN_BEGIN}d{PLAIN_END}{BEGIN}{END}");
        let taken =
            TakenOut { text: "äbcd".to_string(), generated: vec![2..4, 5..5], plain: vec![3..4, 4..5] };
        assert_eq!(take_out(&marked), taken);
    }
}
