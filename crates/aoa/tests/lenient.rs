//! What files written for the reference may leave unsaid: taken leniently, and refused by a strict reader where it hides a mistake.

use crate::common;
use common::{catalog, compile, faults, numbered, run, whole};
use planaria_aoa::{Catalog, Error, Fault, Mapping, Options, Program};

fn lenient(text: &str, sources: &Catalog, targets: Option<&Catalog>) -> Result<Mapping, Error> {
    Program::parse(text)?.compile(sources, targets, &Options::compatible())
}

#[test]
fn a_tensor_declared_as_not_loaded_need_not_be_kept() {
    let program = Program::parse("hf.a -> m.a\n_ -> m.inv_freq").unwrap();
    let model = whole(&["m.a f32[4]"]);
    let back = program.compile_reverse(&model, None, &Options::compatible()).unwrap();
    assert_eq!(back.targets().iter().map(|t| t.name()).collect::<Vec<_>>(), ["hf.a"]);
    assert!(matches!(back.warnings().problems()[0].fault, Fault::UnknownTensor { .. }));
    let strict = faults(program.compile_reverse(&model, None, &Options::default()));
    assert!(matches!(&strict[..], [Fault::UnknownTensor { name, .. }] if name == "m.inv_freq"), "{strict:?}");
    // A tensor that is read must exist all the same.
    let read = Program::parse("hf.a -> m.a\nhf.b -> m.b").unwrap();
    let found = faults(read.compile_reverse(&model, None, &Options::compatible()));
    assert!(matches!(&found[..], [Fault::UnknownTensor { name, .. }] if name == "m.b"), "{found:?}");
}

#[test]
fn a_pattern_that_names_one_tensor_is_a_rename() {
    let one = whole(&["e.3.w f32[4,6]"]);
    for (text, sources, target) in [
        ("e.*.w -> f", &one, "f f32[4,6]"),
        ("e.*.w -> f, permute=[1,0]", &one, "f f32[6,4]"),
        ("e.*.w -> f, axis=0", &one, "f f32[4,6]"),
        ("a[0:1] -> f", &whole(&["a_0 f32[4,6]"]), "f f32[4,6]"),
        ("a[0:1]^T -> f", &whole(&["a_0 f32[4,6]"]), "f f32[6,4]"),
        ("f -> a[0:1]", &whole(&["f f32[4,6]"]), "a_0 f32[4,6]"),
        ("f -> a.*", &whole(&["f f32[4,6]"]), "a.7 f32[4,6]"),
    ] {
        let targets = whole(&[target]);
        let mapping = compile(text, sources, &targets).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(mapping.targets().len(), 1, "{text}");
        let back = Program::parse(text).unwrap().compile_reverse(&targets, None, &Options::default());
        match back {
            Ok(back) => {
                let values = numbered(&mapping);
                assert_eq!(run(&back, &run(&mapping, &values)), values, "{text}");
            }
            // Nothing says which number the star stood for.
            Err(_) => assert!(text.starts_with("e.*"), "{text}"),
        }
    }
}

#[test]
fn a_pattern_that_names_several_tensors_needs_an_axis() {
    let several = whole(&["e.0.w f32[4,6]", "e.3.w f32[4,6]", "a_0 f32[4,6]", "a_1 f32[4,6]"]);
    let no_axis = |what: &'static str| Fault::MissingAttr { what, key: "axis" };
    for (text, fault) in [
        ("e.*.w -> f", no_axis("a concatenation")),
        ("a[0:2] -> f", no_axis("a concatenation")),
        ("a_0 -> b[0:2]", no_axis("a split")),
        ("e.*.w -> f, permute=[1,0]", no_axis("a concatenation")),
    ] {
        assert_eq!(faults(compile(text, &several, &Catalog::new())), [fault], "{text}");
    }
    let turned = faults(compile("e.*.w -> f, axis=0, permute=[1,0]", &several, &Catalog::new()));
    assert!(matches!(&turned[..], [Fault::BadAttr { key, .. }] if key == "permute"), "{turned:?}");
}

#[test]
fn a_mixed_concatenation_counts_only_where_a_target_needs_it() {
    let sources = whole(&["a f32[4,6]", "b bf16[4,6]"]);
    let text = "a -> t, dtype='bfloat16'\nt, a -> u, axis=0\nu -> v";
    let cast = whole(&["t bf16[4,6]"]);
    let mapping = lenient(text, &sources, Some(&cast)).unwrap();
    assert_eq!(mapping.sources_of("t").unwrap(), ["a"]);
    assert!(matches!(mapping.warnings().problems()[0].fault, Fault::DTypesDiffer { .. }));
    let needed = [Some(whole(&["u f32[8,6]"])), Some(whole(&["v bf16[8,6]"])), None];
    for targets in &needed {
        let found = faults(lenient(text, &sources, targets.as_ref()));
        assert!(matches!(found[..], [Fault::DTypesDiffer { .. }]), "{found:?}");
    }
    assert!(matches!(faults(compile(text, &sources, &cast))[..], [Fault::DTypesDiffer { .. }]));
    // Two element types without a cast are a mistake to every reader.
    let plain = faults(lenient("a -> t, dtype='bfloat16'\na, b -> u, axis=0", &sources, Some(&cast)));
    assert!(matches!(plain[..], [Fault::DTypesDiffer { .. }]), "{plain:?}");
}

#[test]
fn a_star_behind_a_placeholder_without_a_match_vanishes_like_a_plain_name() {
    let sources = whole(&["a f32[4]", "k.0.w f32[4]"]);
    let targets = whole(&["a f32[4]"]);
    let text = "l.$LAYER_ID.e.*.w -> m.$LAYER_ID.w, axis=0";
    let mapping = lenient(text, &sources, Some(&targets)).unwrap();
    let warnings = mapping.warnings().problems();
    assert!(matches!(warnings, [one] if matches!(one.fault, Fault::NoMatch { .. })), "{warnings:?}");
    assert!(matches!(faults(compile(text, &sources, &targets))[..], [Fault::NoMatch { .. }]));
    // A star alone, or beside a name that has instances, must stand for something.
    for text in ["l.*.w -> m, axis=0", "k.$LAYER_ID.w, l.$LAYER_ID.*.w -> m.$LAYER_ID, axis=0"] {
        let found = faults(lenient(text, &sources, Some(&targets)));
        assert!(matches!(found[..], [Fault::NoMatch { .. }]), "{text}: {found:?}");
    }
}

#[test]
fn shards_are_guessed_on_the_side_they_lie_on_backwards() {
    // The reference takes rows for ranks: gate and up of two ranks, taken apart.
    let model = catalog("tp=2", &["d f32[2,8] @ tp:S0"]);
    let program = Program::parse("s -> d, fused_ffn").unwrap();
    let back = program.compile_reverse(&model, None, &Options::compatible()).unwrap();
    let made = run(&back, &numbered(&back));
    assert_eq!(made["s"], [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
}
