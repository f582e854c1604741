//! One test for each listed defect of the reference that a mapping engine can have, named after it.

use crate::common;
use common::{catalog, compile, faults, numbered, run, whole};
use planaria_aoa::{Error, Fault, Obstacle, Options, Program, Ties};
use planaria_layout::DType;

#[test]
fn fan_out_collision_two_targets_read_one_source() {
    let sources = whole(&["a f32[2,3]"]);
    let targets = whole(&["b f32[2,3]", "c f32[3,2]", "d bf16[2,3]"]);
    let mapping = compile("a -> b\na^T -> c\na -> d, dtype='bfloat16'", &sources, &targets).unwrap();
    let made = run(&mapping, &numbered(&mapping));
    assert_eq!(made["b"], [0, 1, 2, 3, 4, 5]);
    assert_eq!(made["c"], [0, 3, 1, 4, 2, 5]);
    assert_eq!(made["d"], [0, 1, 2, 3, 4, 5]);
}

#[test]
fn no_shape_or_coverage_check() {
    let sources = whole(&["a f32[4,6]", "b f32[4]"]);
    for target in ["t f32[8,6]", "t f32[2,6]", "t f32[6,4]", "t f32[24]"] {
        let found = faults(compile("a -> t", &sources, &whole(&[target])));
        assert!(matches!(found[..], [Fault::TargetShape { .. }]), "{found:?}");
    }
    let found = faults(compile("a, b -> t, axis=0", &sources, &whole(&["t f32[8,6]"])));
    assert!(matches!(found[..], [Fault::ShapesDiffer { .. }]), "{found:?}");
    let mapping = compile("a -> t", &sources, &whole(&["t f32[4,6]"])).unwrap();
    assert!(matches!(
        mapping.pieces("t", &"[2..6, 0..6]".parse().unwrap()),
        Err(Error::RegionOutside { .. })
    ));
    assert!(matches!(mapping.pieces("t", &"[0..4]".parse().unwrap()), Err(Error::RegionOutside { .. })));
}

#[test]
fn dtype_substring_hole() {
    let sources = whole(&["a f32[4]"]);
    let wrong = compile("a -> t, dtype='bfloat16'", &sources, &whole(&["t f16[4]"]));
    let expected = Fault::TargetDType { name: "t".into(), expected: DType::F16, found: DType::BF16 };
    assert_eq!(faults(wrong), [expected]);
    // A cast that leads away from the right element type is found as well.
    let away = compile("a -> t, dtype='bfloat16'", &sources, &whole(&["t f32[4]"]));
    assert!(matches!(faults(away)[..], [Fault::TargetDType { .. }]));
    let mixed = compile("a -> b, dtype='bfloat16'\nb, a -> t, axis=0", &sources, &whole(&["t bf16[8]"]));
    assert!(matches!(faults(mixed)[..], [Fault::DTypesDiffer { .. }]));
    let declared =
        compile("a -> t, src_dtype='float16', dst_dtype='bfloat16'", &sources, &whole(&["t bf16[4]"]));
    assert!(matches!(faults(declared)[..], [Fault::SrcDType { .. }]));
}

#[test]
fn vanishing_placeholder_statements() {
    let sources = whole(&["a f32[2]", "l.0.w f32[2]"]);
    let targets = whole(&["a f32[2]"]);
    let found = faults(compile("k.$LAYER_ID.w -> m.$LAYER_ID.w", &sources, &targets));
    assert_eq!(found, [Fault::NoMatch { name: "k.$LAYER_ID.w".into() }]);
    assert!(compile("k.$LAYER_ID.w? -> m.$LAYER_ID.w", &sources, &targets).is_ok());
    assert!(compile("k? -> a", &sources, &targets).is_ok());
    let lenient = Options::compatible();
    let program = Program::parse("k.$LAYER_ID.w -> m.$LAYER_ID.w").unwrap();
    let mapping = program.compile(&sources, Some(&targets), &lenient).unwrap();
    assert_eq!(mapping.warnings().problems().len(), 1);
    // Tensors made by an earlier statement match.
    let text = "l.$LAYER_ID.w -> t.$LAYER_ID.w\nt.$LAYER_ID.w -> m.$LAYER_ID.w";
    assert!(compile(text, &sources, &whole(&["m.0.w f32[2]"])).is_ok());
}

#[test]
fn ragged_experts_by_cartesian_product() {
    let sources = whole(&["l.0.e.0.w f32[2]", "l.1.e.0.w f32[2]", "l.1.e.1.w f32[2]"]);
    let targets = whole(&["m.0.0 f32[2]", "m.1.0 f32[2]", "m.1.1 f32[2]"]);
    let text = "l.$LAYER_ID.e.$EXPERT_ID.w -> m.$LAYER_ID.$EXPERT_ID";
    assert_eq!(compile(text, &sources, &targets).unwrap().targets().len(), 3);
    // A partner that is missing for one of them is an error that names it.
    let text = "l.$LAYER_ID.e.$EXPERT_ID.w, l.$LAYER_ID.b.$EXPERT_ID -> m.$LAYER_ID.$EXPERT_ID, axis=0";
    let sources = whole(&["l.0.e.0.w f32[2]", "l.1.e.0.w f32[2]", "l.0.b.0 f32[2]"]);
    let found = faults(compile(text, &sources, &whole(&["m.0.0 f32[4]"])));
    assert!(matches!(&found[..], [Fault::UnknownTensor { name, .. }] if name == "l.1.b.0"), "{found:?}");
}

#[test]
fn shard_count_guessed_from_offsets_and_lost_through_transposes() {
    let heads = "fused_qkv_old, num_heads=4, num_key_value_groups=2";
    let order = |mesh: &str, source: &str, text: &str, target: &str| {
        let mapping = compile(text, &catalog(mesh, &[source]), &catalog(mesh, &[target])).unwrap();
        run(&mapping, &numbered(&mapping))["d"].clone()
    };
    let interleaved: Vec<i64> = vec![0, 1, 4, 5, 2, 6, 3, 7];
    // Two ranks cut the fused dim: Q0 Q1 K0 V0 | Q2 Q3 K1 V1 becomes Q K V.
    let plain = format!("s -> d, {heads}");
    assert_eq!(order("tp=2", "s f32[1,8] @ tp:S1", &plain, "d f32[1,8]"), interleaved);
    let turned = format!("s^T -> d, {heads}");
    assert_eq!(order("tp=2", "s f32[8,1] @ tp:S0", &turned, "d f32[1,8]"), interleaved);
    let renamed = format!("s -> x\nx^T -> y, {heads}\ny -> z, permute=[1,0]\nz^T -> d");
    assert_eq!(order("tp=2", "s f32[8,1] @ tp:S0", &renamed, "d f32[1,8]"), interleaved);
    // Cut along another dim, or in sections, it is not interleaved at all.
    let straight: Vec<i64> = (0..8).collect();
    assert_eq!(order("dp=1", "s f32[1,8] @ dp:S0", &plain, "d f32[1,8]"), straight);
    assert_eq!(order("tp=2", "s f32[1,8] @ tp:S1x2", &plain, "d f32[1,8]"), straight);
    // What heads cannot be divided by is refused.
    let six = compile(&plain, &whole(&["s f32[1,8]"]), &catalog("tp=3", &["d f32[1,8] @ tp:S1"]));
    assert!(matches!(faults(six)[..], [Fault::BadHeads { heads: 4, parts: 3, .. }]));
}

#[test]
fn auto_reverse_of_fused_ffn() {
    let program = Program::parse("g^T, u^T -> d, fused_ffn").unwrap();
    for tp in [1, 2, 3] {
        let files = whole(&["g f32[6,2]", "u f32[6,2]"]);
        let model = catalog(&format!("tp={tp}"), &["d f32[2,12] @ tp:S1"]);
        let there = program.compile(&files, Some(&model), &Options::default()).unwrap();
        let back = program.compile_reverse(&model, None, &Options::default()).unwrap();
        let values = numbered(&there);
        assert_eq!(run(&back, &run(&there, &values)), values, "tp={tp}");
    }
}

#[test]
fn reverse_of_an_unequal_concat_is_an_equal_split() {
    let model = whole(&["c f32[6,2]"]);
    let files = whole(&["a f32[2,2]", "b f32[4,2]"]);
    let parts = |text: &str, files: Option<&planaria_aoa::Catalog>| {
        let program = Program::parse(text).unwrap();
        let mapping = program.compile_reverse(&model, files, &Options::default()).unwrap();
        mapping.target("b").unwrap().tensor().shape().to_string()
    };
    assert_eq!(parts("a, b -> c, axis=0", Some(&files)), "[4,2]");
    assert_eq!(parts("a, b -> c, axis=0, sizes=[2, 4]", None), "[4,2]");
    assert_eq!(parts("a, b -> c, axis=0", None), "[3,2]");
    // Fused weights with heads of two widths come back as well.
    let program = Program::parse("q, k, v -> f, fused_qkv, num_heads=4, num_key_value_groups=2").unwrap();
    let files = whole(&["q f32[1,8]", "k f32[1,4]", "v f32[1,2]"]);
    let there = program.compile(&files, None, &Options::default()).unwrap();
    let back = program.compile_reverse(&whole(&["f f32[1,14]"]), Some(&files), &Options::default()).unwrap();
    assert_eq!(run(&back, &run(&there, &numbered(&there))), numbered(&there));
}

#[test]
fn temporary_names_collide_with_real_ones() {
    let sources = whole(&["q f32[1,4]", "k f32[1,4]", "v f32[1,4]", "q0 f32[1,2]"]);
    let targets = whole(&["f f32[1,12]", "z f32[1,2]", "q0 f32[1,2]"]);
    let text = "q, k, v -> f, fused_qkv, num_heads=2, num_key_value_groups=2\nq0 -> z";
    let mapping = compile(text, &sources, &targets).unwrap();
    assert_eq!(mapping.sources_of("z").unwrap(), ["q0"]);
    assert_eq!(mapping.sources_of("q0").unwrap(), ["q0"]);
    let leak = compile("q -> f, fused_ffn\nfused_ffn_tmp.GATE_0 -> z", &sources, &whole(&["z f32[1,2]"]));
    assert!(matches!(faults(leak)[..], [Fault::UnknownTensor { .. }]));
}

#[test]
fn the_engine_is_mutated_by_queries() {
    let mapping =
        compile("a -> x, y, axis=0", &whole(&["a bf16[4]"]), &whole(&["x bf16[2]", "y bf16[2]"])).unwrap();
    let ask = || mapping.pieces("y", &"[0..2]".parse().unwrap()).unwrap();
    let before = ask();
    mapping.pieces("x", &"[0..1]".parse().unwrap()).unwrap();
    assert_eq!(before, ask());
}

#[test]
fn removal_is_global_and_an_untouched_input_beats_an_assignment() {
    let sources = whole(&["a f32[4]", "b f32[4]"]);
    let mapping = compile("a -> t\na -> _", &sources, &whole(&["t f32[4]"])).unwrap();
    assert_eq!(mapping.sources_of("t").unwrap(), ["a"]);
    let found = faults(compile("a -> _", &sources, &whole(&["a f32[4]"])));
    assert_eq!(found, [Fault::Dropped { name: "a".into() }]);
    let unknown = faults(compile("zzz -> _", &sources, &whole(&["a f32[4]"])));
    assert!(matches!(unknown[..], [Fault::UnknownTensor { .. }]));
    let open = Program::parse("a -> b").unwrap().compile(&sources, None, &Options::default()).unwrap();
    assert_eq!(open.targets().iter().map(|t| t.name()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(open.sources_of("b").unwrap(), ["a"]);
}

#[test]
fn only_the_first_error_is_reported_without_its_statement() {
    let text = "a -> t\nb -> u, axis=7, foo=1\nc -> v, permute=[0,0]\nzz -> w";
    let sources = whole(&["a f32[4]", "b f32[4]", "c f32[2,2]"]);
    let targets = whole(&["t f32[5]", "u f32[4]", "v f32[2,2]", "w f32[1]", "missing f32[1]"]);
    let Err(Error::Refused(report)) = compile(text, &sources, &targets) else { panic!("accepted") };
    let shown = report.render();
    assert_eq!(report.problems().len(), 6, "{shown}");
    for part in [
        "1 | a -> t\n  |      ^\n",
        "2 | b -> u, axis=7, foo=1\n  |                 ^^^^^\n",
        "3 | c -> v, permute=[0,0]\n  |         ^^^^^^^^^^^^^\n",
        "4 | zz -> w\n  | ^^\n",
        "nothing is assigned to target 'missing'",
    ] {
        assert!(shown.contains(part), "{part}\n---\n{shown}");
    }
}

#[test]
fn one_mistake_in_many_instances_is_one_problem() {
    let names: Vec<String> = (0..100).map(|i| format!("l.{i}.w f32[3,2]")).collect();
    let sources = whole(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let program = Program::parse("l.$LAYER_ID.w -> a.$LAYER_ID, b.$LAYER_ID, axis=0").unwrap();
    let Err(Error::Refused(report)) = program.compile(&sources, None, &Options::default()) else {
        panic!("accepted")
    };
    assert_eq!((report.problems().len(), report.problems()[0].more), (1, 99));
}

#[test]
fn what_is_lost_or_doubled_has_no_inverse() {
    let sources = whole(&["a f32[4,2]", "b f32[2]"]);
    let obstacles = |text: &str, targets: &[&str]| {
        let mapping = compile(text, &sources, &whole(targets)).unwrap();
        match mapping.inverse(Ties::Refuse) {
            Err(Error::NotInvertible(obstacles)) => obstacles,
            other => panic!("{other:?}"),
        }
    };
    let cut = obstacles("a -> x, _, axis=0\nb -> y", &["x f32[2,2]", "y f32[2]"]);
    assert!(matches!(cut[..], [Obstacle::PartlyRead { covered: 4, total: 8, .. }]), "{cut:?}");
    let tied = obstacles("a -> x\na -> z\nb -> y", &["x f32[4,2]", "z f32[4,2]", "y f32[2]"]);
    assert!(matches!(tied[..], [Obstacle::Tied { .. }]), "{tied:?}");
    let lossy = obstacles("a -> x, dtype='bfloat16'\nb -> y", &["x bf16[4,2]", "y f32[2]"]);
    assert!(matches!(lossy[..], [Obstacle::Lossy { from: DType::F32, to: DType::BF16, .. }]), "{lossy:?}");
    let unread = obstacles("a -> x", &["x f32[4,2]"]);
    assert!(matches!(&unread[..], [Obstacle::Unread { source_name }] if source_name == "b"), "{unread:?}");
    let dropped = compile("a -> x\nb -> _", &sources, &whole(&["x f32[4,2]"])).unwrap();
    assert!(dropped.inverse(Ties::Refuse).is_ok());
}

#[test]
fn absurd_numbers_are_refused_before_anything_is_made() {
    let sources = whole(&["a f32[576460752303423488]", "b f32[2,2]"]);
    let bad = [
        "a, a, a -> t, axis=0",
        "b[0:99999999] -> t, axis=0",
        "b -> t, reshape=[4611686018427387904, 4611686018427387904, -1]",
        "b -> t, axis=-9223372036854775808, u",
        "b -> t, u, axis=-9223372036854775808",
        "b -> t, u, axis=0, sizes=[18446744073709551615, 1]",
        "b -> t, u, axis=0, sizes=[9223372036854775807, 9223372036854775807]",
    ];
    for text in bad {
        let result = Program::parse(text).and_then(|p| p.compile(&sources, None, &Options::default()));
        assert!(matches!(result, Err(Error::Refused(_))), "{text}");
    }
}
