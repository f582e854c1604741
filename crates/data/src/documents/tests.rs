//! The same documents from every form, as other programs wrote them, and what is refused.

use super::*;
use std::path::PathBuf;

fn given(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/documents").join(name)
}

fn texts() -> Vec<String> {
    ["one", "two, \"quoted\"", "three\nlines", "été", &"five ".repeat(40)].map(str::to_string).to_vec()
}

/// The documents of a file of which the kind is told by its name.
fn read(path: &Path, field: &str) -> Result<Vec<String>> {
    let mut out = Vec::new();
    each(path, kind_by_name(path), field, &mut |text| {
        out.push(text);
        Ok(())
    })?;
    Ok(out)
}

fn refused(path: &Path, field: &str) -> String {
    read(path, field).unwrap_err().to_string()
}

fn write(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn every_form_gives_the_same_documents() {
    for name in ["lines.jsonl.gz", "lines.jsonl.zst", "table.csv", "table.tsv"] {
        assert_eq!(read(&given(name), "body").unwrap(), texts(), "{name}");
    }
    let kinds = ["a.JSONL.gz", "b.csv.zst", "c.parquet", "d.tokens", "e.txt.gz", "gz", "f.tsv"];
    use SourceKind::{Csv, Jsonl, Parquet, Text, Tokens};
    let expected = [Jsonl, Csv, Parquet, Tokens, Text, Text, Csv];
    assert_eq!(kinds.map(|name| kind_by_name(Path::new(name))), expected);
}

#[test]
fn a_compressed_file_that_was_cut_or_changed_is_refused() {
    for name in ["lines.jsonl.gz", "lines.jsonl.zst"] {
        let whole = std::fs::read(given(name)).unwrap();
        let (_folder, cut) = write(name, &whole[..whole.len() - 5]);
        assert!(matches!(read(&cut, "body"), Err(Error::Compressed { .. })), "{name}");
        let mut changed = whole.clone();
        // The checksum of the last member or frame.
        *changed.last_mut().unwrap() ^= 1;
        let (_folder, path) = write(name, &changed);
        let error = read(&path, "body").unwrap_err();
        assert!(matches!(error, Error::Compressed { .. }) && error.hint().is_some(), "{name}: {error}");
    }
}

#[test]
fn a_bad_row_is_named_by_its_line() {
    let (_folder, path) = write("t.csv", b"id,body\n1,\"a\nb\"\n2\n");
    assert!(refused(&path, "body").ends_with("t.csv:4: the row has 1 value, the first row has 2"));
    let missing = refused(&path, "text");
    assert!(
        missing.ends_with("t.csv:1: there is no column 'text'; the first row names 'body', 'id'"),
        "{missing}"
    );
    let (_folder, path) = write("t.csv", b"body\nok\n\xff\n");
    assert!(refused(&path, "body").ends_with("t.csv:3: the value of 'body' is not UTF-8 text"));
    let (_folder, path) = write("t.csv", b"");
    assert!(refused(&path, "body").ends_with("t.csv:1: the file is empty"));
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_parquet_file_is_refused_by_name_where_it_cannot_be_read() {
    let error = read(&given("snappy.parquet"), "body").unwrap_err();
    assert!(
        error.to_string().ends_with("is a Parquet file, which this program was built without"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("--features parquet"));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_columns_are_read_from_every_codec() {
    for name in ["snappy", "zstd", "gzip", "lz4", "none", "required"] {
        assert_eq!(read(&given(&format!("{name}.parquet")), "body").unwrap(), texts(), "{name}");
    }
    let path = given("snappy.parquet");
    assert!(refused(&path, "text").ends_with("there is no column 'text'; it has 'body', 'id'"));
    assert!(refused(&path, "id").ends_with("the column 'id' is not text"));
    assert!(refused(&given("null.parquet"), "body").ends_with("'body' of row 1 is null"));
}

#[cfg(feature = "parquet")]
#[test]
fn a_damaged_parquet_file_is_an_error_or_other_text_and_never_a_panic() {
    let whole = std::fs::read(given("snappy.parquet")).unwrap();
    let mut refused = 0;
    for (at, bits) in (0..whole.len()).flat_map(|at| [(at, 0xff), (at, 0x80)]) {
        let mut changed = whole.clone();
        changed[at] ^= bits;
        let (_folder, path) = write("t.parquet", &changed);
        refused += usize::from(read(&path, "body").is_err());
    }
    assert!(refused > 500, "{refused}");
}
