//! Patterns over names: `*` stands for any text, `?` for any one character; over paths, `**` for any number of folders.

/// Whether `name` is `pattern`, in which `*` stands for any text and `?` for any one character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    greedy(&pattern, &name, |p| *p == '*', |p, c| *p == '?' || p == c)
}

/// Whether the parts of a path fit those of a pattern: each by [`matches()`], and `**` any number of them.
pub fn matches_path(pattern: &[&str], path: &[&str]) -> bool {
    greedy(pattern, path, |p| *p == "**", |p, part| matches(p, part))
}

/// Matching with one kind of "any number of these" mark. It goes back to the last mark only, so the cost is at most
/// quadratic.
fn greedy<P, T>(pattern: &[P], text: &[T], any: impl Fn(&P) -> bool, one: impl Fn(&P, &T) -> bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(mark) if any(mark) => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(mark) if one(mark, &text[t]) => (p, t) = (p + 1, t + 1),
            _ => match retry {
                Some((after, from)) => {
                    retry = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "a.b", true),
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.b", "xa.b", false),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("a*c*e", "ace", true),
            ("a*c*e", "aec", false),
            ("*.weight", "x.y.weight", true),
            ("*.weight", "x.weights", false),
            ("l.?.w", "l.3.w", true),
            ("l.?.w", "l.33.w", false),
            ("*a*b*", "xxaxxbxx", true),
            ("ab*ba", "aba", false),
            ("*aa", "a", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn stars_stay_inside_a_name_and_double_stars_cross_folders() {
        for (pattern, path, expected) in [
            ("*.md", "a.md", true),
            ("*.md", "b/a.md", false),
            ("**/*.md", "a.md", true),
            ("**/*.md", "b/c/a.md", true),
            ("**/*.md", "b/c/a.rs", false),
            ("src/**/t?st.rs", "src/x/y/tast.rs", true),
            ("src/**/t?st.rs", "src/x/y/tst.rs", false),
            ("**", "a/b/c", true),
        ] {
            let parts = |text: &'static str| text.split('/').collect::<Vec<_>>();
            assert_eq!(matches_path(&parts(pattern), &parts(path)), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        assert!(!matches(&("a*".repeat(60) + "b"), &"a".repeat(4000)));
    }
}
