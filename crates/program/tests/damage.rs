//! Damaged files: an error or a program, never a panic, and no more memory than the file is long.

use planaria_program::{Error, ProgramState, check, paddle};
use std::path::Path;

fn testdata(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/paddle-programs").join(name))
        .unwrap()
}

#[test]
fn a_program_cut_anywhere_is_refused() {
    let whole = testdata("mlp.json");
    for length in 0..whole.len() {
        assert!(paddle::read(&whole[..length]).is_err(), "{length} bytes are a program");
    }
}

#[test]
fn a_program_with_any_byte_changed_is_refused_or_read() {
    let whole = testdata("mlp.json");
    let mut refused = 0;
    for at in 0..whole.len() {
        for with in [b'0', b'"', b'}', 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = with;
            refused += usize::from(paddle::read(&damaged).is_err());
        }
    }
    assert!(refused > 2 * whole.len(), "only {refused} of {} are refused", 4 * whole.len());
}

#[test]
fn parameters_cut_anywhere_or_followed_by_more_are_refused_by_name() {
    let program = paddle::read(&testdata("mlp.json")).unwrap();
    let whole = testdata("mlp.pdiparams");
    for length in 0..whole.len() {
        let error = ProgramState::read(&program, &whole[..length], length as u64).unwrap_err();
        assert!(
            matches!(&error, Error::Parameter { name, .. } if name.starts_with("linear_")),
            "{length}: {error}"
        );
    }
    let mut padded = whole.clone();
    padded.push(0);
    let error = ProgramState::read(&program, padded.as_slice(), padded.len() as u64).unwrap_err();
    assert!(error.to_string().contains("follow"), "{error}");
    ProgramState::read(&program, whole.as_slice(), whole.len() as u64).unwrap();
}

#[test]
fn parameters_with_a_changed_header_ask_for_no_more_memory_than_the_file_has() {
    let program = paddle::read(&testdata("mlp.json")).unwrap();
    let whole = testdata("mlp.pdiparams");
    // The header of the first record: version, levels of offsets, tensor version, description.
    for at in 0..26 {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let result = ProgramState::read(&program, damaged.as_slice(), damaged.len() as u64);
            assert!(result.is_err() || at >= 24, "byte {at} bit {bit}");
        }
    }
}

#[test]
fn deep_nesting_is_refused_before_the_stack_is() {
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    for place in ["A", "I", "OA"] {
        let op = format!(r##"{{"#":"1.x","{place}":{deep}}}"##);
        let file = format!(
            r##"{{"base_code":{{"magic":"pir","trainable":true,"version":4}},"program":{{"regions":[{{"#":"r","blocks":[{{"#":"b","args":[],"ops":[{op}]}}]}}]}}}}"##
        );
        assert!(paddle::read(file.as_bytes()).is_err());
    }
}

#[test]
fn versions_that_are_not_known_are_named() {
    let text = String::from_utf8(testdata("mlp.json")).unwrap();
    for version in [0, 5, 99] {
        let other = text.replace("\"version\":4", &format!("\"version\":{version}"));
        let error = paddle::read(other.as_bytes()).unwrap_err();
        assert!(
            matches!(error, Error::Version { found, oldest: 1, newest: 4 } if found == version),
            "{error}"
        );
    }
}

#[test]
fn a_value_outside_its_region_is_not_seen() {
    let text = String::from_utf8(testdata("loop_while.json")).unwrap();
    check(&paddle::read(text.as_bytes()).unwrap()).unwrap();
    // The fetch of %8 reads %11 instead, which lives inside the loop.
    let other = text.replacen("\"I\":[{\"%\":8}]", "\"I\":[{\"%\":11}]", 1);
    let error = check(&paddle::read(other.as_bytes()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("cannot be seen"), "{error}");
}
