//! `{% generation %}` blocks: Hugging Face's own tag, written anew with tags that the engine knows.
//!
//! The beginning and the end of a block print a character that no text has; it is taken out of what was rendered, and its
//! place is noted. White space around the tags is cut as the tag asked for it, and a block is a scope, as it is there.

use std::ops::Range;

/// Printed where a block begins and ends: noncharacters, which no text interchanges.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';

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

/// Whether a text has a character that blocks are marked with.
pub(super) fn is_marked(text: &str) -> bool {
    text.contains([BEGIN, END])
}

/// A rendered text without its marks, and the ranges in bytes that stood between them.
pub(super) fn take_out(marked: &str) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(marked.len());
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut open = Vec::new();
    for c in marked.chars() {
        match c {
            BEGIN => open.push(text.len()),
            END => ranges.extend(open.pop().map(|start| start..text.len())),
            _ => text.push(c),
        }
    }
    ranges.sort_by_key(|range| range.start);
    (text, ranges)
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
        let marked = format!("ä{BEGIN}bc{END}d{BEGIN}{END}");
        assert_eq!(take_out(&marked), ("äbcd".to_string(), vec![2..4, 5..5]));
    }
}
