//! Hosts in what ranks say of each other: who reads `rank 5 is gone` wants to know which machine to look at.

use super::Host;
use std::ops::Range;

/// What is said of ranks that are missing.
const WORDS: [&str; 3] = [" did not arrive", " is gone", " stopped"];

/// A text in which ranks that are missing are named with their hosts, as in `ranks 2, 3 on host 'b' did not arrive`.
pub(in super::super) fn with_hosts(text: &str, placed: &[(Host, Range<u32>)]) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("rank") {
        let (before, from) = rest.split_at(at);
        let (ranks, after) = list(from);
        let missing = WORDS.iter().any(|words| after.starts_with(words));
        told.push_str(before);
        told.push_str(&from[..from.len() - after.len()]);
        if missing {
            let holds = |(_, range): &&(Host, Range<u32>)| ranks.iter().any(|rank| range.contains(rank));
            let names = placed.iter().filter(holds).map(|(host, _)| format!("'{}'", host.name));
            let names: Vec<String> = names.collect();
            let noun = if names.len() == 1 { "host" } else { "hosts" };
            if !names.is_empty() {
                told.push_str(&format!(" on {noun} {}", names.join(", ")));
            }
        }
        rest = after;
    }
    told + rest
}

/// The ranks of `rank 1` or `ranks 1, 2` that a text begins with, and what comes behind.
fn list(text: &str) -> (Vec<u32>, &str) {
    let after = text.strip_prefix("rank").unwrap_or(text);
    let mut left = after.strip_prefix('s').unwrap_or(after).strip_prefix(' ').unwrap_or(after);
    let mut ranks = Vec::new();
    loop {
        let end = left.find(|c: char| !c.is_ascii_digit()).unwrap_or(left.len());
        let Ok(rank) = left[..end].parse() else { break };
        ranks.push(rank);
        left = &left[end..];
        match left.strip_prefix(", ").filter(|next| next.starts_with(|c: char| c.is_ascii_digit())) {
            Some(next) => left = next,
            None => return (ranks, left),
        }
    }
    (ranks, after)
}

#[cfg(test)]
mod tests {
    use super::super::{from_words, placed};
    use super::*;

    #[test]
    fn ranks_that_are_missing_are_named_with_their_hosts() {
        let placed = placed(&from_words("a:2,b:2").unwrap(), 4);
        for (said, told) in [
            ("all_reduce: ranks 2, 3 did not arrive", "all_reduce: ranks 2, 3 on host 'b' did not arrive"),
            ("rank 1 stopped: rank 2 is gone", "rank 1 on host 'a' stopped: rank 2 on host 'b' is gone"),
            ("ranks 1, 2 did not arrive", "ranks 1, 2 on hosts 'a', 'b' did not arrive"),
            (
                "rank 0 failed first: a crank, ranks and rank 7 is gone",
                "rank 0 failed first: a crank, ranks and rank 7 is gone",
            ),
            ("rank", "rank"),
        ] {
            assert_eq!(with_hosts(said, &placed), told);
        }
    }
}
