//! Tests of the parser: forms it takes, forms it refuses, and that it continues after a mistake.

use super::*;

fn one(text: &str) -> Statement {
    let program = Program::parse(text).unwrap();
    assert_eq!(program.statements.len(), 1, "{text}");
    program.statements[0].clone()
}

fn problems(text: &str) -> Vec<Problem> {
    match Program::parse(text) {
        Err(Error::Refused(report)) => report.problems().to_vec(),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn names_may_hold_dashes_slashes_digits_and_keywords() {
    let statement = one("a-x/y.0->0.w, axis # a comment");
    assert_eq!(statement.left[0].base, "a-x/y.0");
    assert_eq!(statement.right.iter().map(|n| n.base.as_str()).collect::<Vec<_>>(), ["0.w", "axis"]);
    assert_eq!(one("axis -> dtype").right[0].base, "dtype");
    assert_eq!(one("'a b#c' -> d").left[0].base, "a b#c");
}

#[test]
fn marks_are_split_off_the_name() {
    let name = one("l.*.w^T^T^T? -> b, axis=0").left[0].clone();
    assert_eq!((name.base.as_str(), name.transposed, name.optional), ("l.*.w", true, true));
    for text in ["a^T[0:3] -> b, axis=0", "a[0:3]^T -> b, axis=0"] {
        let name = one(text).left[0].clone();
        assert_eq!((name.base.as_str(), name.transposed, name.array), ("a", true, Some(0..3)));
    }
}

#[test]
fn values_are_numbers_lists_texts_and_words() {
    let attrs = one("a -> b, axis=-1, permute=\"'[1,0]'\", sizes=[2, 3], dtype=f32, fused_ffn").attrs;
    let values: Vec<&Value> = attrs.iter().map(|a| &a.value).collect();
    assert_eq!(values[0], &Value::Int(-1));
    assert_eq!(values[1].as_list(), Some(vec![1, 0]));
    assert_eq!(values[2], &Value::List(vec![2, 3]));
    assert_eq!(values[3], &Value::Text("f32".into()));
    assert_eq!(values[4], &Value::Flag);
}

#[test]
fn statements_without_a_separator_are_read_with_a_warning() {
    let program = Program::parse("a,b -> x, axis=0c,d -> y, axis=0").unwrap();
    assert_eq!(program.statements.len(), 2);
    assert_eq!(program.statements[1].left[0].base, "c");
    assert_eq!(program.warnings.len(), 1);
}

#[test]
fn layouts_are_declared_and_a_tensor_may_be_called_layout() {
    let program = Program::parse("layout tp4 = 4\nlayout -> b\nlayout, x -> c, axis=0").unwrap();
    assert_eq!((program.layouts[0].name.as_str(), program.layouts[0].parts), ("tp4", 4));
    assert_eq!(program.statements.len(), 2);
    assert_eq!(problems("layout tp4 = 0").len(), 1);
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    let text = "a => b\nfine -> too\n-> b\na -> b^T\na[0: -> f\na -> b, dtype='x\na -> b -> c\né! -> b";
    let found: Vec<usize> = problems(text).iter().map(|p| p.span.unwrap().start).collect();
    assert_eq!(found, [2, 19, 29, 38, 57, 67, 74]);
}

#[test]
fn what_is_printed_is_read_back() {
    let text = "a^T, l.$LAYER_ID.*.w?, 'x y' -> b[0:2], axis=1, permute=\"[1,0]\", sizes=[2, 3], fused_qkv";
    let statement = one(text);
    let again = one(&statement.to_string());
    assert_eq!(statement.to_string(), again.to_string());
    assert_eq!(statement.attrs.len(), again.attrs.len());
}
