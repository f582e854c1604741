//! Lists of machines as Slurm writes them: `node[01-03,7],login`.

/// Most machines of a list.
const MOST: usize = 65_536;

/// Most digits of a number in a name.
const DIGITS: usize = 20;

/// All names of a list, in its order.
pub(super) fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for word in words(list)? {
        let before = names.len();
        spell(word, &mut names)?;
        if names.len() == before || names.len() > MOST {
            return Err(format!("'{word}' is not a list of machines"));
        }
    }
    Ok(names)
}

/// The parts between commas that are outside brackets.
fn words(list: &str) -> Result<Vec<&str>, String> {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '[' if depth == 0 => depth = 1,
            ']' if depth == 1 => depth = 0,
            '[' | ']' => return Err(format!("'{list}' has a bracket too many")),
            ',' if depth == 0 => {
                found.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(format!("'{list}' has a bracket that is not closed"));
    }
    found.push(&list[from..]);
    Ok(found)
}

/// The names of one part, of whose brackets the first runs slowest.
fn spell(word: &str, names: &mut Vec<String>) -> Result<(), String> {
    let Some((before, rest)) = word.split_once('[') else {
        if word.is_empty() || word.contains(char::is_whitespace) {
            return Err(format!("'{word}' is not the name of a machine"));
        }
        names.push(word.to_string());
        return Ok(());
    };
    let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = (first.parse::<u64>().ok()).zip(last.parse::<u64>().ok());
        let few = |(low, high): &(u64, u64)| low <= high && high - low < MOST as u64 && first.len() <= DIGITS;
        let bounds = bounds.filter(few);
        let (low, high) = bounds.ok_or_else(|| format!("'{range}' of '{word}' is not a range of numbers"))?;
        for number in low..=high {
            // Numbers have as many digits as the first one.
            spell(&format!("{before}{number:0width$}{after}", width = first.len()), names)?;
            // Ranges multiply: a short list may stand for more names than memory holds.
            if names.len() > MOST {
                return Err(format!("'{word}' stands for more than {MOST} machines"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_slurm_become_names_in_their_order() {
        for (list, names) in [
            ("node1", &["node1"][..]),
            ("a,b-2,c.d", &["a", "b-2", "c.d"]),
            ("n[1-3]", &["n1", "n2", "n3"]),
            ("n[08-10,7],login", &["n08", "n09", "n10", "n7", "login"]),
            ("r[1-2]n[1-2]-ib", &["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ] {
            assert_eq!(expand(list).unwrap(), names, "{list}");
        }
        for wrong in [
            "",
            "a,",
            "n[1",
            "n1]",
            "n[[1]]",
            "n[3-1]",
            "n[a]",
            "n[]",
            "n[1-99999999]",
            "n[1-60000][1-60000]",
            "a b",
        ] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_list_of_bounded_length_or_refused(list in r"[a-z\[\]0-9,\- ]{0,40}|(n\[0{0,30}[0-9]{1,6}-[0-9]{1,6}\]){1,5}") {
            if let Ok(names) = expand(&list) {
                proptest::prop_assert!(!names.is_empty() && names.len() <= MOST);
            }
        }
    }
}
