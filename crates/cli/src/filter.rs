//! Choosing tensors by name: a part of the name, or a pattern with `*` and `?` for the whole of it.

use std::convert::Infallible;
use std::str::FromStr;

/// What a name must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// It contains this.
    Part(String),
    /// It is this pattern from end to end.
    Glob(String),
}

impl FromStr for Filter {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Filter, Infallible> {
        let is_glob = text.contains(['*', '?']);
        Ok(if is_glob { Filter::Glob(text.to_string()) } else { Filter::Part(text.to_string()) })
    }
}

impl Filter {
    /// Whether the name is chosen.
    pub(crate) fn accepts(&self, name: &str) -> bool {
        match self {
            Filter::Part(part) => name.contains(part.as_str()),
            Filter::Glob(pattern) => glob(pattern, name),
        }
    }
}

/// Whether `name` is `pattern`, in which `*` stands for any text and `?` for any one character.
pub(crate) fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not fit: one character later.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            retry = Some((p, n));
            p += 1;
        } else if pattern.get(p).is_some_and(|c| *c == '?' || *c == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((star, at)) = retry {
            retry = Some((star, at + 1));
            (p, n) = (star + 1, at + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a.b"),
            ("a*c", "abbc"),
            ("*.weight", "x.y.weight"),
            ("l.?.w", "l.3.w"),
            ("*a*b*", "xxaxxbxx"),
        ] {
            assert!(glob(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a*c", "abcd"), ("l.?.w", "l.33.w"), ("*.weight", "x.weights")] {
            assert!(!glob(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn without_stars_a_part_is_enough() {
        assert!("proj".parse::<Filter>().unwrap().accepts("q_proj.weight"));
        assert!(!"proj?".parse::<Filter>().unwrap().accepts("q_proj.weight"));
    }
}
