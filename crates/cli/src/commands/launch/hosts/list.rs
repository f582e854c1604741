//! The machines of a job as a user writes them: `a:4,b:4`, or a file with one on each line.

use std::path::Path;

/// A machine and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) ranks: u32,
}

/// `NAME[:RANKS],..`; one rank where no number is given. An IPv6 address stands in brackets.
pub(crate) fn from_words(text: &str) -> Result<Vec<Host>, String> {
    checked(text.split(',').map(|word| one(word.trim())).collect::<Result<_, _>>()?)
}

/// A file with `NAME`, `NAME:RANKS` or, as Open MPI has it, `NAME slots=RANKS` on each line; `#` begins a comment.
pub(in super::super) fn from_file(path: &Path) -> Result<Vec<Host>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read '{shown}': {error}"))?;
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| format!("line {} of '{shown}': {what}", number + 1);
        hosts.push(of_line(line).map_err(wrong)?);
    }
    checked(hosts).map_err(|what| format!("'{shown}': {what}"))
}

fn of_line(line: &str) -> Result<Host, String> {
    let mut words = line.split_whitespace();
    let mut host = one(words.next().unwrap_or_default())?;
    for word in words {
        let slots = word.strip_prefix("slots=");
        host.ranks = number(slots.ok_or_else(|| format!("'{word}' is not `slots=NUMBER`"))?)?;
    }
    Ok(host)
}

fn one(word: &str) -> Result<Host, String> {
    let (name, ranks) = match word.rsplit_once(':') {
        Some((name, digits)) if !digits.contains(']') => (name, number(digits)?),
        _ => (word, 1),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    // The name becomes a word of a command.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:%@".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
        return Err(format!("'{word}' is not a host; expected NAME or NAME:RANKS"));
    }
    Ok(Host { name: name.into(), ranks })
}

fn number(digits: &str) -> Result<u32, String> {
    let number = digits.parse::<u32>().ok().filter(|number| (1..=65_536).contains(number));
    number.ok_or_else(|| format!("'{digits}' is not a number of ranks; expected 1 to 65536"))
}

fn checked(hosts: Vec<Host>) -> Result<Vec<Host>, String> {
    if hosts.is_empty() {
        return Err("there is no host in it".into());
    }
    let twice = |at: usize| hosts[..at].iter().any(|host| host.name == hosts[at].name);
    match (0..hosts.len()).find(|&at| twice(at)) {
        Some(at) => Err(format!("host '{}' is named twice; give all of its ranks at once", hosts[at].name)),
        None => Ok(hosts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, ranks: u32) -> Host {
        Host { name: name.into(), ranks }
    }

    #[test]
    fn hosts_are_read_from_words_and_files() {
        assert_eq!(
            from_words("a:4, b,[fe80::1%eth0]:2").unwrap(),
            [host("a", 4), host("b", 1), host("fe80::1%eth0", 2)]
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "# two machines\na slots=4\n\nuser@b:2 # old\nc\n").unwrap();
        assert_eq!(from_file(&file).unwrap(), [host("a", 4), host("user@b", 2), host("c", 1)]);
        for (text, told) in [
            ("a slots=x\n", "line 1"),
            ("\nb max-slots=2\n", "line 2"),
            ("a\na\n", "twice"),
            ("#\n", "no host"),
        ] {
            std::fs::write(&file, text).unwrap();
            assert!(from_file(&file).unwrap_err().contains(told), "{text}");
        }
        for wrong in ["", "a:0", "a:x", "-oProxyCommand=x", "a b:2", "a;b", "a,,b"] {
            assert!(from_words(wrong).is_err(), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_hosts_that_come_back_or_refused(
            text in r"([a-z:@%.\[\]#=,\- 0-9]|slots=|\n|\PC){0,60}"
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("hosts");
            std::fs::write(&file, &text).unwrap();
            for hosts in [from_file(&file), from_words(&text)].into_iter().flatten() {
                let told: Vec<String> = hosts.iter().map(|host| format!("[{}]:{}", host.name, host.ranks)).collect();
                proptest::prop_assert_eq!(from_words(&told.join(",")).unwrap(), hosts);
            }
        }
    }
}
