//! Jobs on several machines: which ones, how many ranks each has, and what the launcher and the agent it starts on each of them say.

pub(super) mod agent;
mod list;
pub(super) mod named;
pub(super) mod there;
mod wire;

pub(crate) use list::Host;
pub(super) use list::from_file;
pub(crate) use list::from_words;

use planaria::comm::sockets::SECRET;
use std::ops::Range;

/// Variable with the name or address that ranks of other machines know this one by.
pub(crate) const ADDRESS: &str = "PLANARIA_ADDRESS";

/// Variable with what only the ranks of one job know.
pub(crate) const SECRET_WORD: &str = "PLANARIA_SECRET";

/// Which ranks each machine has: they are filled in order, so that neighbouring ranks, and with them the innermost axes of a mesh, stay on one.
pub(crate) fn placed(hosts: &[Host], ranks: u32) -> Vec<(Host, Range<u32>)> {
    let mut next = 0;
    let place = |host: &Host| {
        let first = next;
        next = (next + host.ranks).min(ranks);
        (host.clone(), first..next)
    };
    hosts.iter().map(place).filter(|(_, range)| !range.is_empty()).collect()
}

/// The hosts with room for whole groups of so many ranks alone, if all ranks have room then: no group lies on two of them.
pub(crate) fn in_groups(hosts: &[Host], ranks: u32, group: u32) -> Option<Vec<Host>> {
    let whole = |host: &Host| Host { ranks: host.ranks - host.ranks % group.max(1), ..host.clone() };
    let hosts: Vec<Host> = hosts.iter().map(whole).filter(|host| host.ranks > 0).collect();
    (hosts.iter().map(|host| host.ranks).sum::<u32>() >= ranks).then_some(hosts)
}

/// A secret as text, and back.
pub(super) fn hex(bytes: &[u8; SECRET]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<[u8; SECRET]> {
    let mut bytes = [0; SECRET];
    let digits = text.as_bytes();
    if digits.len() != 2 * SECRET {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_filled_in_order_and_those_without_ranks_are_left_out() {
        let hosts = from_words("a:2,b:3,c").unwrap();
        let ranges = |ranks| -> Vec<(String, Range<u32>)> {
            placed(&hosts, ranks).into_iter().map(|(host, range)| (host.name, range)).collect()
        };
        assert_eq!(ranges(6), [("a".into(), 0..2), ("b".into(), 2..5), ("c".into(), 5..6)]);
        assert_eq!(ranges(3), [("a".into(), 0..2), ("b".into(), 2..3)]);
    }

    #[test]
    fn groups_of_ranks_stay_on_one_host_where_there_is_room() {
        let hosts = from_words("a:3,b:3,c:1").unwrap();
        let rooms = |ranks, group| -> Option<Vec<u32>> {
            Some(in_groups(&hosts, ranks, group)?.iter().map(|host| host.ranks).collect())
        };
        assert_eq!(rooms(4, 2), Some(vec![2, 2]));
        assert_eq!(rooms(7, 1), Some(vec![3, 3, 1]));
        assert_eq!((rooms(6, 2), rooms(4, 4), rooms(6, 3)), (None, None, Some(vec![3, 3])));
    }

    #[test]
    fn a_secret_comes_back_from_its_text() {
        let secret: [u8; SECRET] = std::array::from_fn(|i| (i * 7) as u8);
        assert_eq!(unhex(&hex(&secret)), Some(secret));
        assert_eq!((unhex("ab"), unhex(&"g".repeat(2 * SECRET))), (None, None));
    }
}
