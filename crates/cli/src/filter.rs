//! Choosing tensors by name: a part of the name, or a pattern with `*` and `?` for the whole of it.

use planaria::store::pattern;
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
            Filter::Glob(pattern) => pattern::matches(pattern, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_stars_a_part_is_enough() {
        assert!("proj".parse::<Filter>().unwrap().accepts("q_proj.weight"));
        assert!(!"proj?".parse::<Filter>().unwrap().accepts("q_proj.weight"));
    }
}
