//! A reader of Rust text good enough to see what is code, and where functions begin and end.

/// Rust text with the insides of comments, strings and character literals replaced by spaces.
///
/// Line breaks stay, so line numbers and columns (in characters) are those of the original.
pub(super) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment, string or character literal that starts at `at` ends; `at` itself if none starts there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |c| c == '\n'),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if !follows_word(chars, at) => raw_string_end(chars, at + 1).unwrap_or(at),
        'b' | 'c' if next == Some('r') && !follows_word(chars, at) => {
            raw_string_end(chars, at + 2).unwrap_or(at)
        }
        '\'' => char_end(chars, at),
        _ => at,
    }
}

fn find(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|&c| stop(c)).map_or(chars.len(), |n| from + n)
}

fn follows_word(chars: &[char], at: usize) -> bool {
    // `br"` is handled at its `b`, so an `r` after a word character belongs to an identifier.
    at > 0 && is_word(chars[at - 1])
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0_usize, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    i
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// `from` points behind the `r`; answers nothing when no raw string starts there.
fn raw_string_end(chars: &[char], from: usize) -> Option<usize> {
    let quote = find(chars, from, |c| c != '#');
    let hashes = quote - from;
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let mut i = quote + 1;
    while i < chars.len() {
        let tail = &chars[i + 1..];
        if chars[i] == '"' && tail.len() >= hashes && tail[..hashes].iter().all(|&c| c == '#') {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(chars.len())
}

/// A quote starts either a character literal or a lifetime; lifetimes are code.
fn char_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => (find(chars, at + 3, |c| c == '\'') + 1).min(chars.len()),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// One function with a body: its name and the lines (counted from 1) of `fn` and of the closing brace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub name: String,
    pub first: usize,
    pub last: usize,
}

/// All functions with a body in `code`, which must come from [`code_only`].
pub(super) fn functions(code: &str) -> Vec<Function> {
    let chars: Vec<char> = code.chars().collect();
    words(code)
        .filter(|(_, word)| word == "fn")
        .filter_map(|(at, _)| {
            let name_at = find(&chars, at + 2, |c| !c.is_whitespace());
            let name: String = chars[name_at..].iter().take_while(|&&c| is_word(c)).collect();
            let open = body_start(&chars, name_at)?;
            let close = matching_brace(&chars, open);
            let first = line_of(&chars, at);
            (!name.is_empty()).then(|| Function { name, first, last: line_of(&chars, close) })
        })
        .collect()
}

/// Every word of `code` with the place of its first character.
pub(super) fn words(code: &str) -> impl Iterator<Item = (usize, String)> {
    let chars: Vec<char> = code.chars().collect();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = find(&chars, at, is_word);
        at = find(&chars, start, |c| !is_word(c));
        (start < chars.len()).then(|| (start, chars[start..at].iter().collect()))
    })
}

/// Line of a character, counted from 1.
pub(super) fn line_of(chars: &[char], at: usize) -> usize {
    1 + chars[..at.min(chars.len())].iter().filter(|&&c| c == '\n').count()
}

fn body_start(chars: &[char], from: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (i, c) in chars.iter().enumerate().skip(from) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(i),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn matching_brace(chars: &[char], open: usize) -> usize {
    let mut depth = 0_usize;
    for (i, c) in chars.iter().enumerate().skip(open) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return i,
            '}' => depth -= 1,
            _ => {}
        }
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_spaces() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("a\"b{")"#, "f(       )"),
            (r##"r#"a"{"# + x"##, "         + x"),
            ("br\"{\" b\"{\" x", "      b    x"),
            ("'{' '\\'' '\\u{1}' 'a x", "                 'a x"),
            ("for_r\"x\"", "for_r   "),
        ];
        for (text, code) in cases {
            assert_eq!(code_only(text), code, "{text}");
        }
    }

    #[test]
    fn line_breaks_inside_literals_stay() {
        assert_eq!(code_only("\"a\nb\" c").lines().count(), 2);
        assert_eq!(code_only("/* a\nb */\nc").lines().count(), 3);
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        let text = "trait T {\n fn a(&self);\n fn b(&self) -> [u8; 3] {\n  if x { \"}\" }\n }\n}\n\nfn c<'a>(f: fn(u8))\nwhere u8: Copy {}\n";
        let found = functions(&code_only(text));
        let want = [("b", 3, 5), ("c", 8, 9)];
        assert_eq!(found, want.map(|(name, first, last)| Function { name: name.into(), first, last }));
    }

    #[test]
    fn unfinished_text_does_not_run_past_the_end() {
        for text in ["\"", "'", "'\\", "r#\"", "/*", "fn", "fn a(", "fn a() {", "b", "/", "'\\x"] {
            let code = code_only(text);
            assert_eq!(code.chars().count(), text.chars().count());
            functions(&code);
        }
    }
}
