//! Adapters on weights of a few numbers, whose answers are known.

use super::*;
use crate::{AdapterLayout, CombineOptions, combine, convert_adapter, plan_adapted};
use planaria_nn::lora::LoraConfig;

/// Factors of a module of rank 1.
fn factors<'t>(names: &'t [String; 2], down: &'t [f32; 2], up: &'t [f32; 2]) -> [Tensor<'t>; 2] {
    [(&names[0], &[1, 2], down), (&names[1], &[2, 1], up)]
}

fn names(module: &str) -> [String; 2] {
    ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight"))
}

/// A llama whose head is `[[3, 0], [0, 1]]`, and an adapter on the head that adds `[[0, 2], [0, 0]]` to what it fits.
fn started(start: &str) -> Place {
    let place = Place::new();
    place.llama("model", &[1.0; 4], &[3.0, 0.0, 0.0, 1.0]);
    let config = format!(
        r#"{{"r": 1, "lora_alpha": 2, "target_modules": ["lm_head"], "init_lora_weights": {start}}}"#
    );
    place.adapter("adapter", &config, &factors(&names("lm_head"), &[0.0, 1.0], &[1.0, 0.0]));
    place
}

fn close(found: &[f64], expected: &[f64]) {
    let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near && found.len() == expected.len(), "{found:?} instead of {expected:?}");
}

#[test]
fn a_start_that_was_taken_out_of_the_weights_is_taken_out_before_the_adapter_is_added() {
    // The largest singular value is 3; the first column of Q is [1, 0] and the first row of R [3, 0], twice of which is 6.
    for (start, first) in [("true", 3.0), ("\"pissa\"", 0.0), ("\"pissa_niter_4\"", 0.0), ("\"olora\"", -3.0)]
    {
        let place = started(start);
        let merge = plan_adapted("model", "adapter", &place.options()).unwrap();
        close(&values(&merge, HEAD).unwrap(), &[first, 2.0, 0.0, 1.0]);
        assert_eq!(merge.warnings().len(), usize::from(start.contains("niter")), "{start}");
    }
    for start in ["corda", "lora_ga", "LoftQ", "magic"] {
        let place = started(&format!("\"{start}\""));
        let said = plan_adapted("model", "adapter", &place.options()).unwrap_err().to_string();
        assert!(said.contains("`init_lora_weights`") && said.contains(&start.to_lowercase()), "{said}");
    }
}

#[test]
fn an_adapter_of_such_a_start_becomes_one_of_twice_the_rank_that_fits_the_model() {
    for (start, first) in [("\"pissa\"", -3.0), ("\"olora\"", -6.0)] {
        let place = started(start);
        let convert =
            |model: Option<&str>| convert_adapter("adapter", AdapterLayout::Peft, model, &place.options());
        let said = convert(None).unwrap_err().to_string();
        assert!(said.contains("--model"), "{said}");
        let merge = convert(Some("model")).unwrap();
        let about = config(&merge, "adapter_config.json");
        assert_eq!(
            (&about["r"], &about["lora_alpha"], &about["init_lora_weights"]),
            (&json!(2), &json!(4), &json!(true))
        );
        let [down, up] = names("lm_head").map(|name| values(&merge, &name).unwrap());
        let entry = |row: usize, column: usize| {
            2.0 * (0..2).map(|k| up[row * 2 + k] * down[k * 2 + column]).sum::<f64>()
        };
        close(&[entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)], &[first, 2.0, 0.0, 0.0]);
    }
}

#[test]
fn the_model_knows_how_its_weights_lie() {
    let place = Place::new();
    let weight = "transformer.h.0.attn.c_attn";
    place.model("model", "gpt2", &json!({}), &[(&format!("{weight}.weight"), &[2, 2], &[0.0; 4])]);
    for said in [true, false] {
        let config =
            format!(r#"{{"r": 1, "lora_alpha": 1, "target_modules": ["c_attn"], "fan_in_fan_out": {said}}}"#);
        place.adapter("adapter", &config, &factors(&names(weight), &[1.0, 0.0], &[0.0, 1.0]));
        let merge = plan_adapted("model", "adapter", &place.options()).unwrap();
        assert_eq!(values(&merge, &format!("{weight}.weight")).unwrap(), [0.0, 1.0, 0.0, 0.0]);
        let told = merge.warnings().iter().filter(|told| told.contains("`fan_in_fan_out` is false")).count();
        assert_eq!(told, usize::from(!said), "{:?}", merge.warnings());
    }
}

#[test]
fn an_adapter_of_a_tied_embedding_leaves_the_head_as_it_was() {
    let place = Place::new();
    let about = json!({ "num_hidden_layers": 0, "vocab_size": 2, "tie_word_embeddings": true });
    place.model("model", "llama", &about, &[(EMBEDDING, &[2, 2], &[1.0, 2.0, 3.0, 4.0]), NORM]);
    let stored: [Tensor<'_>; 2] = [(EMBEDDING, &[2, 2], &[1.0, 2.0, 3.0, 4.0]), NORM];
    place.tensors("model/model.safetensors", Stored::Bf16, &stored);
    let module = "base_model.model.model.embed_tokens";
    let tensors: [Tensor<'_>; 3] = [
        (&format!("{module}.lora_embedding_A"), &[1, 2], &[1.0, 0.0]),
        (&format!("{module}.lora_embedding_B"), &[2, 1], &[8.0, 16.0]),
        (&format!("{module}.base_layer.weight"), &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
    ];
    place.adapter("adapter", r#"{"r": 1, "lora_alpha": 1, "target_modules": ["embed_tokens"]}"#, &tensors);
    let merge = plan_adapted("model", "adapter", &place.options()).unwrap();
    assert_eq!(values(&merge, EMBEDDING).unwrap(), [9.0, 18.0, 3.0, 4.0]);
    assert_eq!(values(&merge, HEAD).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert!(merge.tensors().all(|(_, dtype, _)| dtype == planaria_layout::DType::BF16));
    assert_eq!(config(&merge, "config.json")["tie_word_embeddings"], false);
}

#[test]
fn an_exact_combination_adds_what_the_adapters_do() {
    let place = Place::new();
    let module = names("m");
    place.adapter(
        "one",
        r#"{"r": 1, "lora_alpha": 2, "target_modules": ["m"]}"#,
        &factors(&module, &[1.0, 0.0], &[0.0, 1.0]),
    );
    // A pattern gives this module more than the adapter says.
    let wide: [Tensor<'_>; 2] =
        [(&module[0], &[2, 2], &[1.0, 1.0, 0.0, 1.0]), (&module[1], &[2, 2], &[1.0, 0.0, 0.0, 1.0])];
    place.adapter(
        "two",
        r#"{"r": 1, "lora_alpha": 2, "rank_pattern": {"m": 2}, "target_modules": ["m"]}"#,
        &wide,
    );
    let adapters = [("one".to_string(), 1.0), ("two".to_string(), -3.0)];
    for rank in [None, Some(2)] {
        let asked = CombineOptions {
            combination: "exact".parse().unwrap(),
            density: 1.0,
            majority: "total".parse().unwrap(),
            rank,
            clamp: None,
            seed: 0,
        };
        let merge = combine(&adapters, &asked, &place.options()).unwrap();
        let [down, up] = module.each_ref().map(|name| values(&merge, name).unwrap());
        let rank = down.len() / 2;
        let entry = |row: usize, column: usize| {
            (0..rank).map(|k| up[row * rank + k] * down[k * 2 + column]).sum::<f64>()
        };
        // 1 · 2 · [[0, 0], [1, 0]] − 3 · 1 · [[1, 1], [0, 1]].
        close(&[entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)], &[-3.0, -3.0, 2.0, -3.0]);
        assert_eq!(config(&merge, "adapter_config.json")["r"], json!(rank));
    }
    assert!("mode".parse::<crate::Majority>().unwrap_err().to_string().contains("total or frequency"));
}

/// A file as `paddle.save` writes it: a pickle of arrays of numpy by name.
fn pdparams(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let mut out = b"\x80\x03}(".to_vec();
    for (name, shape, values) in tensors {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        out.extend(text(name));
        out.extend(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01(");
        shape.iter().for_each(|extent| out.extend([b'K', *extent as u8]));
        out.extend(b"tcnumpy\ndtype\n");
        out.extend(text("f4"));
        out.extend(b"\x89\x88\x87R(K\x03");
        out.extend(text("<"));
        out.extend(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89B");
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
        out.extend(b"tb");
    }
    out.extend(b"u.");
    out
}

#[test]
fn pieces_of_ranks_are_put_together_as_the_modules_were_cut() {
    let place = Place::new();
    let zeros: [Tensor<'_>; 2] =
        [("a.q_proj.weight", &[2, 2], &[0.0; 4]), ("a.o_proj.weight", &[2, 2], &[0.0; 4])];
    place.model("model", "odd", &json!({}), &zeros);
    place.write("adapter/lora_config.json", r#"{"r": 1, "lora_alpha": 1, "tensor_model_parallel_size": 2}"#);
    // Of the one the outputs are cut, of the other the inputs.
    for (rank, up, down) in [(0, 3.0, 1.0), (1, 4.0, 2.0)] {
        let pieces: [Tensor<'_>; 4] = [
            ("a.q_proj.lora_A", &[2, 1], &[1.0, 2.0]),
            ("a.q_proj.lora_B", &[1, 1], &[up]),
            ("a.o_proj.lora_A", &[1, 1], &[down]),
            ("a.o_proj.lora_B", &[1, 2], &[5.0, 6.0]),
        ];
        let file = format!("adapter/lora_model_state_tp0{rank}.pdparams");
        fs::write(place.0.path().join(file), pdparams(&pieces)).unwrap();
    }
    let merge = plan_adapted("model", "adapter", &place.options()).unwrap();
    assert_eq!(values(&merge, "a.q_proj.weight").unwrap(), [3.0, 6.0, 4.0, 8.0]);
    assert_eq!(values(&merge, "a.o_proj.weight").unwrap(), [5.0, 10.0, 6.0, 12.0]);
    // The same by Paddle's own configuration.
    let config = r#"{"base_model_path": "model", "lora_model_path": "adapter", "remove_keys": ["*o_proj*"]}"#;
    let merge = crate::plan_paddle(config, &place.options()).unwrap();
    assert_eq!(values(&merge, "a.q_proj.weight").unwrap(), [3.0, 6.0, 4.0, 8.0]);
    assert_eq!(merge.removed(), [("a.o_proj.weight".to_string(), 16)]);
    fs::remove_file(place.0.path().join("adapter/lora_model_state_tp00.pdparams")).unwrap();
    let said = plan_adapted("model", "adapter", &place.options()).unwrap_err().to_string();
    assert!(said.contains("the file of rank 0 is missing"), "{said}");
}

#[test]
fn factors_of_an_embedding_are_found_without_turning_it() {
    let place = Place::new();
    place.llama("base", &[0.0; 4], &[0.0; 4]);
    place.llama("tuned", &[2.0, 4.0, 1.0, 3.0], &[0.0; 4]);
    let asked = crate::ExtractOptions { embed_lora: true, ..crate::ExtractOptions::default() };
    let merge = crate::extract("tuned", "base", &asked, &place.options()).unwrap();
    let factor =
        |side: &str| values(&merge, &format!("base_model.model.model.embed_tokens.lora_embedding_{side}"));
    let (down, up) = (factor("A").unwrap(), factor("B").unwrap());
    // Rows by token of the transposed product.
    let entry = |token: usize, dim: usize| (0..2).map(|k| down[k * 2 + token] * up[dim * 2 + k]).sum::<f64>();
    close(&[entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)], &[2.0, 4.0, 1.0, 3.0]);
    let little = crate::ExtractOptions { memory: 64, ..asked };
    let said = crate::extract("tuned", "base", &little, &place.options()).unwrap_err().to_string();
    assert!(said.contains("2 x 2 are found in 96 bytes") && said.contains("64 at most"), "{said}");
}

#[test]
fn what_patterns_say_of_a_fused_module_holds_for_its_parts() {
    let place = Place::new();
    let zeros: [Tensor<'_>; 3] = [
        ("a.q_proj.weight", &[2, 1], &[0.0; 2]),
        ("a.k_proj.weight", &[1, 1], &[0.0]),
        ("a.v_proj.weight", &[1, 1], &[0.0]),
    ];
    place.model("model", "odd", &json!({}), &zeros);
    let own = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj"],
        "rank_pattern": {"qkv_proj": 1}, "alpha_pattern": {"qkv_proj": 2, "k_proj": 8}}"#;
    let factors: [Tensor<'_>; 2] = [
        ("base_model.model.a.qkv_proj.lora_A.weight", &[1, 1], &[3.0]),
        ("base_model.model.a.qkv_proj.lora_B.weight", &[4, 1], &[1.0, 2.0, 3.0, 4.0]),
    ];
    place.adapter("own", own, &factors);
    let made = crate::convert_adapter("own", crate::AdapterLayout::Peft, Some("model"), &place.options());
    let written = LoraConfig::parse(&config(&made.unwrap(), "adapter_config.json").to_string()).unwrap();
    for part in ["a.q_proj", "a.k_proj", "a.v_proj"] {
        assert_eq!((written.rank(part).unwrap(), written.alpha(part).unwrap()), (1, 2.0), "{part}");
    }
}

#[test]
fn factors_of_a_fused_module_are_divided_where_the_model_has_parts() {
    let place = Place::new();
    let zeros: [Tensor<'_>; 5] = [
        ("a.q_proj.weight", &[2, 1], &[0.0; 2]),
        ("a.k_proj.weight", &[1, 1], &[0.0]),
        ("a.v_proj.weight", &[1, 1], &[0.0]),
        ("a.gate_proj.weight", &[1, 1], &[0.0]),
        ("a.up_proj.weight", &[1, 1], &[0.0]),
    ];
    place.model("model", "odd", &json!({}), &zeros);
    place.write("adapter/lora_config.json", r#"{"r": 1, "lora_alpha": 2, "tensor_model_parallel_size": 2}"#);
    let qkv: [Tensor<'_>; 2] =
        [("a.qkv_proj.lora_A", &[1, 1], &[3.0]), ("a.qkv_proj.lora_B", &[1, 4], &[1.0, 2.0, 3.0, 4.0])];
    place.write("whole/lora_config.json", r#"{"r": 1, "lora_alpha": 2}"#);
    fs::write(place.0.path().join("whole/lora_model_state.pdparams"), pdparams(&qkv)).unwrap();
    let merge = plan_adapted("model", "whole", &place.options()).unwrap();
    let value = |name: &str| values(&merge, &format!("a.{name}.weight")).unwrap();
    assert_eq!(
        (value("q_proj"), value("k_proj"), value("v_proj")),
        (vec![6.0, 12.0], vec![18.0], vec![24.0])
    );
    // As an adapter for such a model.
    let made = crate::convert_adapter("whole", crate::AdapterLayout::Peft, Some("model"), &place.options());
    let made = made.unwrap();
    assert_eq!(values(&made, "base_model.model.a.q_proj.lora_B.weight").unwrap(), [1.0, 2.0]);
    assert_eq!(
        config(&made, "adapter_config.json")["target_modules"],
        json!(["a.k_proj", "a.q_proj", "a.v_proj"])
    );
    // Gate comes first, whatever the name says, and on every rank.
    for rank in 0..2 {
        place.model(
            "wide",
            "odd",
            &json!({}),
            &[("a.gate_proj.weight", &[2, 1], &[0.0; 2]), ("a.up_proj.weight", &[2, 1], &[0.0; 2])],
        );
        let gate = 1.0 + rank as f32;
        let pieces: [Tensor<'_>; 2] = [
            ("a.up_gate_proj.lora_A", &[1, 1], &[1.0]),
            ("a.up_gate_proj.lora_B", &[1, 2], &[gate, 10.0 * gate]),
        ];
        let file = format!("adapter/lora_model_state_tp0{rank}.pdparams");
        fs::write(place.0.path().join(file), pdparams(&pieces)).unwrap();
    }
    let merge = plan_adapted("wide", "adapter", &place.options()).unwrap();
    assert_eq!(values(&merge, "a.gate_proj.weight").unwrap(), [2.0, 4.0]);
    assert_eq!(values(&merge, "a.up_proj.weight").unwrap(), [20.0, 40.0]);
    let said = plan_adapted("model", "adapter", &place.options()).unwrap_err().to_string();
    assert!(said.contains("it has 4 outputs") && said.contains("has 1 of 'a.gate_proj'"), "{said}");
}

#[test]
fn factors_of_a_tensor_of_all_experts_are_those_of_each() {
    let place = Place::new();
    let (gate_up, down) = ("a.mlp.experts.gate_up_proj", "a.mlp.experts.down_proj");
    place.model(
        "stacked",
        "odd",
        &json!({}),
        &[(gate_up, &[2, 2, 1], &[0.0; 4]), (down, &[2, 1, 1], &[0.0; 2])],
    );
    let weights: Vec<String> = (0..2)
        .flat_map(|e| {
            ["gate_proj", "up_proj", "down_proj"].map(|part| format!("a.mlp.experts.{e}.{part}.weight"))
        })
        .collect();
    let apart: Vec<Tensor<'_>> =
        weights.iter().map(|name| (name.as_str(), &[1, 1][..], &[0.0][..])).collect();
    place.model("apart", "odd", &json!({}), &apart);
    let config = r#"{"r": 1, "lora_alpha": 2, "target_modules": [],
        "target_parameters": ["gate_up_proj", "mlp.experts.down_proj"]}"#;
    // The last parameter is outside. A: one expert below the other; B: experts side by side.
    place.adapter(
        "adapter",
        config,
        &[
            ("base_model.model.a.mlp.experts.base_layer.lora_A.weight", &[2, 1], &[1.0, 10.0]),
            ("base_model.model.a.mlp.experts.base_layer.lora_B.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            ("base_model.model.a.mlp.experts.lora_A.weight", &[2, 1], &[1.0, 100.0]),
            ("base_model.model.a.mlp.experts.lora_B.weight", &[1, 2], &[5.0, 6.0]),
        ],
    );
    let merge = plan_adapted("stacked", "adapter", &place.options()).unwrap();
    assert_eq!(values(&merge, gate_up).unwrap(), [2.0, 6.0, 40.0, 80.0]);
    assert_eq!(values(&merge, down).unwrap(), [10.0, 1200.0]);
    let merge = plan_adapted("apart", "adapter", &place.options()).unwrap();
    let found: Vec<f64> = weights.iter().map(|name| values(&merge, name).unwrap()[0]).collect();
    assert_eq!(found, [2.0, 6.0, 10.0, 40.0, 80.0, 1200.0]);
    let made = crate::convert_adapter("adapter", crate::AdapterLayout::Peft, Some("apart"), &place.options());
    let written = config_of(&made.unwrap());
    assert!(written["target_parameters"].is_null(), "{written}");
    assert_eq!(written["target_modules"].as_array().unwrap().len(), 6);
    for (layout, model) in
        [(crate::AdapterLayout::Peft, Some("stacked")), (crate::AdapterLayout::Paddle, None)]
    {
        let said =
            crate::convert_adapter("adapter", layout, model, &place.options()).unwrap_err().to_string();
        assert!(said.contains("name a model that has"), "{said}");
    }
    place.model("other", "odd", &json!({}), &[("a.mlp.weight", &[1, 1], &[0.0])]);
    let said = plan_adapted("other", "adapter", &place.options()).unwrap_err().to_string();
    assert!(said.contains("neither this tensor nor the weights of its experts"), "{said}");
}

fn config_of(merge: &Merge) -> Value {
    config(merge, "adapter_config.json")
}
