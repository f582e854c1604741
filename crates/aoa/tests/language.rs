//! What the language can say beyond the reference, and the page that explains it.

use crate::common;
use common::{compile, faults, numbered, run, whole};
use planaria_aoa::{Catalog, Fault, Options, Program, Ties};

#[test]
fn the_overview_on_the_page_compiles_and_comes_back() {
    let page = include_str!("../../../docs/concepts/mapping.md");
    let overview = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let files = whole(&[
        "model.norm.weight f32[4]",
        "proj.weight f32[4,6]",
        "x f32[2,3,4]",
        "gate f32[6,4]",
        "up f32[6,4]",
        "qkv f32[4,48]",
        "w f32[512,64]",
        "gate.weight bf16[4]",
        "rotary.inv_freq f32[2]",
        "layers.0.mlp.experts.0.w f32[2]",
        "layers.0.mlp.experts.3.w f32[2]",
        "layers.1.mlp.experts.1.w f32[2]",
        "layers.0.experts.2.w f32[1,2]",
        "layers.0.experts.10.w f32[1,2]",
        "part_0 f32[1]",
        "part_1 f32[2]",
        "part_2 f32[3]",
        "part_3 f32[4]",
        "layers.1.bias f32[2]",
    ]);
    let program = Program::parse(overview).unwrap();
    assert_eq!(program.statements().len(), 13);
    let mapping = program.compile(&files, None, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let shape = |name: &str| mapping.target(name).unwrap().tensor().shape().to_string();
    assert_eq!(shape("proj"), "[6,4]");
    assert_eq!(shape("y"), "[2,4,3]");
    assert_eq!(shape("gate_up"), "[4,12]");
    assert_eq!(shape("k"), "[4,8]");
    assert_eq!(shape("w3"), "[8,64,64]");
    assert_eq!(shape("m.0.3"), "[2]");
    assert_eq!(mapping.sources_of("m.0.w").unwrap(), ["layers.0.experts.2.w", "layers.0.experts.10.w"]);
    assert_eq!(shape("whole"), "[10]");
    assert_eq!(mapping.unread(), [""; 0]);
    let values = numbered(&mapping);
    let back = mapping.inverse(Ties::Refuse).unwrap();
    for (name, data) in run(&back, &run(&mapping, &values)) {
        assert_eq!(data, values[&name], "{name}");
    }
    // Dropped tensors are not made again, everything else is.
    assert_eq!(back.targets().len(), files.len() - 1);
}

#[test]
fn placeholders_combine_with_stars_ranges_and_transposes() {
    let files = whole(&["l.1.e_0 f32[2,3]", "l.1.e_1 f32[2,3]", "l.2.e_0 f32[2,3]", "l.2.e_1 f32[2,3]"]);
    let model = whole(&["m.0 f32[6,2]", "m.1 f32[6,2]"]);
    let range = compile("l.$LAYER_ID_OFFSET.e[0:2]^T -> m.$LAYER_ID_OFFSET, axis=0", &files, &model).unwrap();
    let star = compile("l.$LAYER_ID_OFFSET.e_*^T -> m.$LAYER_ID_OFFSET, axis=0", &files, &model).unwrap();
    let values = numbered(&range);
    assert_eq!(run(&range, &values), run(&star, &values));
    assert_eq!(range.sources_of("m.0").unwrap(), ["l.1.e_0", "l.1.e_1"]);
    // Backwards the numbers go up again.
    let program = Program::parse("l.$LAYER_ID_OFFSET.e[0:2]^T -> m.$LAYER_ID_OFFSET, axis=0").unwrap();
    let back = program.compile_reverse(&model, None, &Options::default()).unwrap();
    assert_eq!(run(&back, &run(&range, &values)), values);
    let below = compile("l.$LAYER_ID_OFFSET -> m.$LAYER_ID_OFFSET", &whole(&["l.0 f32[1]"]), &Catalog::new());
    assert!(matches!(faults(below)[..], [Fault::BelowZero { .. }]));
}

#[test]
fn nothing_is_said_about_tensors_nobody_knows() {
    let program = Program::parse("hf.$LAYER_ID.inv_freq -> _\nhf.a -> m.a\n_ -> m.$LAYER_ID.fresh").unwrap();
    let model = whole(&["m.a f32[2]", "m.0.fresh f32[1]"]);
    let back = program.compile_reverse(&model, None, &Options::default()).unwrap();
    assert_eq!(back.targets().iter().map(|t| t.name()).collect::<Vec<_>>(), ["hf.a"]);
    let there =
        program.compile(&whole(&["hf.a f32[2]", "hf.3.inv_freq f32[9]"]), Some(&model), &Options::default());
    let there = there.unwrap();
    assert!(!there.target("m.0.fresh").unwrap().is_loaded());
    assert_eq!((there.unread(), there.dropped().collect::<Vec<_>>()), (vec![], vec!["hf.3.inv_freq"]));
}

#[test]
fn placeholders_must_be_bound_and_used() {
    let files = whole(&["l.0.w f32[2]", "a f32[2]"]);
    let found = |text: &str| faults(compile(text, &files, &Catalog::new()));
    assert!(matches!(found("l.$LAYER_ID.w -> m")[..], [Fault::LacksPlaceholder { .. }]));
    assert!(matches!(found("a -> m.$LAYER_ID")[..], [Fault::Unbound { .. }]));
    assert!(matches!(found("l.$A.w, l.$B.w -> m.$A.$B, axis=0")[..], [Fault::Unbound { .. }]));
    assert!(matches!(found("l.*.* -> m, axis=0")[..], [Fault::Syntax { .. }]));
    assert!(matches!(found("l.*.x -> m, axis=0")[..], [Fault::NoMatch { .. }]));
}

#[test]
fn attributes_are_checked_against_each_other() {
    let files = whole(&["a f32[4,6]", "b f32[4,6]"]);
    let refused = [
        "a, b -> c",
        "a -> c, d, axis=2",
        "a -> c, d, axis=0, sizes=[1, 2]",
        "a, b -> c, axis=0, sizes=[1, 7]",
        "a -> c, axis=0",
        "a, b -> c, axis=0, permute=[1,0]",
        "a -> c, permute=[1,0], permute=[1,0]",
        "a -> c, permute=10",
        "a -> c, dtype='float31'",
        "a -> c, dtype='f16', dst_dtype='f16'",
        "a -> c, src_dtype='f32'",
        "a -> c, reshape=[5, -1]",
        "a -> c, reshape=[24], src_shape=[6, 4]",
        "a -> c, num_heads=4",
        "layout tp = 2\na -> c, src_layout=tp",
        "a -> c, fused_ffn, dst_layout=tp",
        "a -> c, fused_ffn, fused_qkv",
        "a, b -> c, fused_qkv, num_heads=4, num_key_value_groups=2",
        "a -> c, d, e, fused_qkv, num_heads=4, num_key_value_groups=3",
        "a -> c, fused_qkv, num_heads=4, num_key_value_groups=2",
        "a, b -> c, d, axis=0",
        "_, a -> c, axis=0",
        "a -> c, c, axis=0",
    ];
    for text in refused {
        let found = faults(compile(text, &files, &Catalog::new()));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
    }
}

#[test]
fn casts_beside_other_work_and_in_any_order() {
    let files = whole(&["a f32[2]", "b f32[2]"]);
    let model = whole(&["c bf16[4]", "d f8e4m3[2]", "e i64[2]"]);
    let text = "a, b -> c, axis=0, dtype=bfloat16\na -> d, dst_dtype='float8_e4m3fn', src_dtype='float32'\nb -> e, dtype=int64";
    let mapping = compile(text, &files, &model).unwrap();
    let piece = &mapping.pieces("c", &"[2..4]".parse().unwrap()).unwrap()[0];
    assert_eq!((piece.source, piece.target_dtype().map(|d| d.name())), ("b", Some("bf16")));
}

#[test]
fn a_reshape_between_permutations_is_answered_in_blocks() {
    let files = whole(&["w f32[12,8]"]);
    let model = whole(&["t f32[4,8,3]"]);
    let text = "w -> a, reshape=[3, 4, 8]\na -> t, permute=[1, 2, 0]";
    let mapping = compile(text, &files, &model).unwrap();
    let pieces = mapping.pieces("t", &"[1..3, 0..8, 1..2]".parse().unwrap()).unwrap();
    assert_eq!(pieces.len(), 1);
    assert_eq!((pieces[0].from.to_string().as_str(), pieces[0].permutation()), ("[5..7, 0..8]", None));
}
