//! Patterns of paths: `*` and `?` inside a name, `**` for any number of folders.

use super::error::{Error, Result};
use planaria_store::pattern::matches_path;
use std::fs;
use std::path::{Path, PathBuf};

/// The files a path names: itself, everything below a folder, or what a pattern matches. Sorted by path, so that the order
/// is the same everywhere. Hidden files and folders are left out.
pub fn list(path: &str) -> Result<Vec<PathBuf>> {
    let literal = Path::new(path);
    let mut out = Vec::new();
    if literal.is_dir() {
        walk(literal, &mut |_| true, &mut out)?;
    } else if literal.exists() {
        out.push(regular(literal)?);
    } else if path.contains(['*', '?']) {
        let parts: Vec<&str> = path.split('/').collect();
        let fixed = parts.iter().take_while(|part| !part.contains(['*', '?'])).count();
        let root = parts[..fixed].join("/");
        let root = match (fixed, root.is_empty()) {
            (0, _) => PathBuf::from("."),
            (_, true) => PathBuf::from("/"),
            (_, false) => PathBuf::from(root),
        };
        if root.is_dir() {
            let pattern = &parts[fixed..];
            let mut fits = |file: &Path| file.strip_prefix(&root).is_ok_and(|rest| fits_path(pattern, rest));
            walk(&root, &mut fits, &mut out)?;
        }
    }
    if out.is_empty() {
        return Err(Error::NoFiles { pattern: path.to_string() });
    }
    out.sort();
    Ok(out)
}

/// Adds the files below a folder. Links to folders are not followed: they may lead round in circles.
fn walk(folder: &Path, fits: &mut dyn FnMut(&Path) -> bool, out: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if entry.file_name().as_encoded_bytes().first() == Some(&b'.') {
            continue;
        }
        let (path, kind) = (entry.path(), entry.file_type().map_err(Error::io("list", folder))?);
        if kind.is_dir() {
            walk(&path, fits, out)?;
        } else if fits(&path) && !path.is_dir() {
            out.push(regular(&path)?);
        }
    }
    Ok(())
}

/// A path that is a file. A pipe, or a link to a file that is gone, is refused: left out, its text would be lost without a word.
fn regular(path: &Path) -> Result<PathBuf> {
    if !path.is_file() {
        planaria_store::open_file(path).map_err(Error::io("open", path))?;
    }
    Ok(path.to_path_buf())
}

fn fits_path(pattern: &[&str], path: &Path) -> bool {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    matches_path(pattern, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_list_sorted_files_without_hidden_ones() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a/z.txt", "a/.hidden", ".git/x", "a/b/c.md"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let root = folder.path().display().to_string();
        let names = |pattern: &str| -> Vec<String> {
            let files = list(&format!("{root}{pattern}")).unwrap();
            let short = |p: PathBuf| p.strip_prefix(folder.path()).unwrap().display().to_string();
            files.into_iter().map(short).collect()
        };
        assert_eq!(names(""), ["a/b/c.md", "a/z.txt", "b.txt"]);
        assert_eq!(names("/**/*.txt"), ["a/z.txt", "b.txt"]);
        assert_eq!(names("/a/*"), ["a/z.txt"]);
        let missing = list(&format!("{root}/*.json")).unwrap_err();
        assert!(missing.to_string().starts_with("no file matches"), "{missing}");
    }

    #[test]
    fn what_is_no_file_is_refused_and_neither_waited_for_nor_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.txt"), "x").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe.txt")).status().unwrap().success());
        std::os::unix::fs::symlink(at("gone"), at("link.md")).unwrap();
        let refused = |path: PathBuf| list(&path.display().to_string()).unwrap_err().to_string();
        for path in [at("pipe.txt"), at("*.txt"), at("")] {
            let error = refused(path);
            assert!(error.contains("pipe.txt") || error.contains("link.md"), "{error}");
        }
        assert!(refused(at("pipe.txt")).contains("a pipe, not a file"));
        assert!(refused(at("*.md")).contains("link.md"));
        let pipe = at("pipe.txt");
        let open = crate::TokenFile::open(&pipe).unwrap_err().to_string();
        assert!(open.contains("a pipe, not a file"), "{open}");
        let tokenizer = crate::Tokenizer::open(&pipe.display().to_string()).unwrap_err().to_string();
        assert!(tokenizer.contains("pipe.txt"), "{tokenizer}");
    }
}
