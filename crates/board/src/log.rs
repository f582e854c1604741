//! The last lines that a rank wrote, perhaps only those that hold a text.

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes at the end of a log that are looked through: minutes of the chattiest run.
const WINDOW: u64 = 32 << 20;

/// Longest line that is shown.
const LINE: u64 = 64 << 10;

/// Numbers of the ranks that have a log.
pub(crate) fn ranks(run: &Path) -> Vec<usize> {
    let entries = std::fs::read_dir(run.join("log")).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok();
    let mut ranks: Vec<usize> = entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    ranks.sort_unstable();
    ranks
}

/// The last `most` lines of a rank that hold `wanted`, whatever the case of its letters; newest last.
pub(crate) fn lines(run: &Path, rank: usize, wanted: &str, most: usize) -> Vec<Value> {
    let path = run.join("log").join(format!("rank-{rank:05}.jsonl"));
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let length = file.metadata().map_or(0, |about| about.len());
    let begin = length.saturating_sub(WINDOW);
    if file.seek(SeekFrom::Start(begin)).is_err() {
        return Vec::new();
    }
    let wanted = wanted.to_lowercase();
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut found = std::collections::VecDeque::with_capacity(most.min(1024));
    let (mut line, mut whole) = (Vec::new(), begin == 0);
    loop {
        line.clear();
        match reader.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return found.into(),
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        // The first one may have begun before the window.
        if std::mem::replace(&mut whole, true) && text.to_lowercase().contains(&wanted) {
            let text = text.trim_end();
            found.push_back(serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_string())));
            if found.len() > most {
                found.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_that_match_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!((ranks(folder.path()), lines(folder.path(), 0, "", 9)), (vec![], vec![]));
        std::fs::create_dir(folder.path().join("log")).unwrap();
        let text = "{\"message\":\"Saved\",\"step\":1}\n{\"message\":\"other\"}\nno json, saved\n{\"message\":\"saved\",\"step\":2}\n";
        std::fs::write(folder.path().join("log/rank-00003.jsonl"), text).unwrap();
        std::fs::write(folder.path().join("log/notes.txt"), text).unwrap();
        assert_eq!(ranks(folder.path()), [3]);
        let found = lines(folder.path(), 3, "SAVED", 2);
        assert_eq!(found[0], "no json, saved");
        assert_eq!(found[1]["step"], 2);
        assert_eq!(lines(folder.path(), 3, "", 9).len(), 4);
    }
}
