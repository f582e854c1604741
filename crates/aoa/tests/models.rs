//! Mappings of real models, there and back, at several tensor-parallel degrees.

use crate::common;
use common::{catalog, numbered, run, whole};
use planaria_aoa::{Catalog, Mapping, Options, Program, Ties};
use std::num::NonZeroUsize;

const LAYERS: usize = 2;

/// A dense model with fused query-key-value and gate-up weights, as it is trained.
const DENSE: &str = "
model.embed_tokens.weight -> model.embed_tokens.weight
model.norm.weight -> model.norm.weight
model.layers.$LAYER_ID.input_layernorm.weight -> model.layers.$LAYER_ID.input_layernorm.weight
model.layers.$LAYER_ID.self_attn.q_proj.weight^T, model.layers.$LAYER_ID.self_attn.k_proj.weight^T, \
    model.layers.$LAYER_ID.self_attn.v_proj.weight^T -> model.layers.$LAYER_ID.self_attn.qkv_proj.weight, \
    fused_qkv, num_heads=16, num_key_value_groups=8
model.layers.$LAYER_ID.self_attn.q_proj.bias, model.layers.$LAYER_ID.self_attn.k_proj.bias, \
    model.layers.$LAYER_ID.self_attn.v_proj.bias -> model.layers.$LAYER_ID.self_attn.qkv_proj.bias, \
    fused_qkv, num_heads=16, num_key_value_groups=8, axis=0
model.layers.$LAYER_ID.self_attn.o_proj.weight^T -> model.layers.$LAYER_ID.self_attn.o_proj.weight
model.layers.$LAYER_ID.mlp.gate_proj.weight^T, model.layers.$LAYER_ID.mlp.up_proj.weight^T \
    -> model.layers.$LAYER_ID.mlp.up_gate_proj.weight, fused_ffn
model.layers.$LAYER_ID.mlp.down_proj.weight^T -> model.layers.$LAYER_ID.mlp.down_proj.weight
lm_head.weight^T -> lm_head.weight
";

fn files() -> Catalog {
    let mut tensors = vec![
        "model.embed_tokens.weight bf16[24,16]".to_string(),
        "model.norm.weight bf16[16]".to_string(),
        "lm_head.weight bf16[24,16]".to_string(),
    ];
    for layer in 0..LAYERS {
        let parts = [
            "input_layernorm.weight bf16[16]",
            "self_attn.q_proj.weight bf16[32,16]",
            "self_attn.k_proj.weight bf16[16,16]",
            "self_attn.v_proj.weight bf16[16,16]",
            "self_attn.q_proj.bias bf16[32]",
            "self_attn.k_proj.bias bf16[16]",
            "self_attn.v_proj.bias bf16[16]",
            "self_attn.o_proj.weight bf16[16,32]",
            "mlp.gate_proj.weight bf16[24,16]",
            "mlp.up_proj.weight bf16[24,16]",
            "mlp.down_proj.weight bf16[16,24]",
        ];
        tensors.extend(parts.iter().map(|part| format!("model.layers.{layer}.{part}")));
    }
    whole(&tensors.iter().map(String::as_str).collect::<Vec<_>>())
}

fn model(tp: usize) -> Catalog {
    let mut tensors = vec![
        "model.embed_tokens.weight bf16[24,16] @ tp:S0".to_string(),
        "model.norm.weight bf16[16]".to_string(),
        "lm_head.weight bf16[16,24] @ tp:S1".to_string(),
    ];
    for layer in 0..LAYERS {
        let parts = [
            "input_layernorm.weight bf16[16]",
            "self_attn.qkv_proj.weight bf16[16,64] @ tp:S1",
            "self_attn.qkv_proj.bias bf16[64] @ tp:S0",
            "self_attn.o_proj.weight bf16[32,16] @ tp:S0",
            "mlp.up_gate_proj.weight bf16[16,48] @ tp:S1",
            "mlp.down_proj.weight bf16[24,16] @ tp:S0",
        ];
        tensors.extend(parts.iter().map(|part| format!("model.layers.{layer}.{part}")));
    }
    catalog(&format!("tp={tp}"), &tensors.iter().map(String::as_str).collect::<Vec<_>>())
}

fn compile(tp: usize) -> Mapping {
    Program::parse(DENSE).unwrap().compile(&files(), Some(&model(tp)), &Options::default()).unwrap()
}

#[test]
fn a_model_comes_back_exactly_at_every_degree() {
    for tp in [1, 2, 4, 8] {
        let mapping = compile(tp);
        let sources = numbered(&mapping);
        let loaded = run(&mapping, &sources);
        let inverse = mapping.inverse(Ties::Refuse).unwrap();
        assert_eq!(run(&inverse, &loaded), sources, "inverse at tp={tp}");
        // The text read backwards needs only the model, and says the same.
        let program = Program::parse(DENSE).unwrap();
        let reversed = program.compile_reverse(&model(tp), None, &Options::default()).unwrap();
        assert_eq!(run(&reversed, &loaded), sources, "backwards at tp={tp}");
    }
}

#[test]
fn each_rank_holds_its_own_gate_and_up() {
    // Rank r of 4 has columns 12r..12r+12: six of gate, then six of up.
    let mapping = compile(4);
    let name = "model.layers.1.mlp.up_gate_proj.weight";
    let pieces = mapping.pieces(name, &"[0..16, 12..24]".parse().unwrap()).unwrap();
    let shown: Vec<String> = pieces.iter().map(|p| format!("{}{}", p.source, p.from)).collect();
    assert_eq!(
        shown,
        [
            "model.layers.1.mlp.gate_proj.weight[6..12, 0..16]",
            "model.layers.1.mlp.up_proj.weight[6..12, 0..16]"
        ]
    );
}

#[test]
fn a_model_trained_at_one_degree_moves_to_another() {
    let text = "w -> w, fused_ffn, src_layout=file, dst_layout=model";
    let program = Program::parse(text).unwrap();
    let at = |tp: usize| catalog(&format!("tp={tp}"), &["w f32[4,24] @ tp:S1"]);
    for (from, to) in [(1, 2), (2, 4), (4, 3), (3, 1)] {
        let named =
            Options { layouts: [("file".into(), from), ("model".into(), to)].into(), ..Options::default() };
        let by_name =
            program.compile(&whole(&["w f32[4,24]"]), Some(&whole(&["w f32[4,24]"])), &named).unwrap();
        let plain = Program::parse("w -> w, fused_ffn").unwrap();
        let by_layout = plain.compile(&at(from), Some(&at(to)), &Options::default()).unwrap();
        let sources = numbered(&by_name);
        assert_eq!(run(&by_name, &sources), run(&by_layout, &sources), "{from} to {to}");
        let (left_parts, right_parts) = (NonZeroUsize::new(from), NonZeroUsize::new(to));
        let given = Options { left_parts, right_parts, ..Options::default() };
        let by_number = plain.compile(&whole(&["w f32[4,24]"]), None, &given).unwrap();
        assert_eq!(run(&by_number, &sources), run(&by_layout, &sources), "{from}:{to}");
        // A layout that a statement names comes before the number.
        let other = Options { left_parts: NonZeroUsize::new(6), right_parts: NonZeroUsize::new(6), ..named };
        let named = program.compile(&whole(&["w f32[4,24]"]), None, &other).unwrap();
        assert_eq!(run(&named, &sources), run(&by_layout, &sources), "{from} to {to} by name");
    }
}

#[test]
fn experts_stack_and_come_back() {
    let mut tensors = Vec::new();
    for layer in 0..2 {
        for expert in 0..4 {
            for part in ["gate", "up"] {
                tensors.push(format!("l.{layer}.e.{expert}.{part} bf16[3,4]"));
            }
        }
    }
    let files = whole(&tensors.iter().map(String::as_str).collect::<Vec<_>>());
    let model = catalog("ep=4", &["l.0.w1 f32[16,6] @ ep:S0", "l.1.w1 f32[16,6] @ ep:S0"]);
    let text = "
        l.$LAYER_ID.e.$EXPERT_ID.gate^T, l.$LAYER_ID.e.$EXPERT_ID.up^T -> l.$LAYER_ID.e.$EXPERT_ID.w, axis=1
        l.$LAYER_ID.e.*.w -> l.$LAYER_ID.w1, axis=0, dtype='float32'";
    let mapping = common::compile(text, &files, &model).unwrap();
    let sources = numbered(&mapping);
    let back = mapping.inverse(Ties::Refuse).unwrap();
    assert_eq!(run(&back, &run(&mapping, &sources)), sources);
    assert_eq!(back.pieces("l.1.e.2.up", &"[0..3, 0..4]".parse().unwrap()).unwrap().len(), 1);
}
