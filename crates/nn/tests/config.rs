//! `config.json`: what is read, what is written back, and what is refused.

use crate::common::{Golden, MODELS};
use planaria_nn::layers::RopeScaling;
use planaria_nn::models::{DecoderConfig, Stage};
use serde_json::{Value, json};

fn qwen2() -> Value {
    json!({
        "model_type": "qwen2", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16", "eos_token_id": [7, 8], "my_own": {"deep": [1, null]}
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut config = qwen2();
    config[key] = value;
    config
}

#[test]
fn what_was_read_is_written_back_with_unknown_keys() {
    let written = DecoderConfig::from_value(qwen2()).unwrap().to_value();
    for (key, value) in qwen2().as_object().unwrap() {
        assert_eq!(&written[key], value, "{key}");
    }
    assert_eq!(written["architectures"], json!(["Qwen2ForCausalLM"]));
    // The old form of rotary settings stays the old form.
    assert!(written.get("rope_parameters").is_none());
    assert_eq!(DecoderConfig::from_value(written.clone()).unwrap().to_value(), written);
}

#[test]
fn configurations_of_transformers_survive() {
    for name in MODELS {
        let config = Golden::read(name).config;
        let again = DecoderConfig::from_json(&config.to_json()).unwrap();
        assert_eq!(again.to_value(), config.to_value(), "{name}");
        assert_eq!(
            again.parameters(&Stage::whole(&again)).unwrap(),
            config.parameters(&Stage::whole(&config)).unwrap()
        );
        assert_eq!((&again.rope_scaling, &again.windows), (&config.rope_scaling, &config.windows));
    }
}

#[test]
fn defaults_are_those_of_the_family() {
    let config = DecoderConfig::from_value(qwen2()).unwrap();
    assert_eq!((config.family.model_type, config.head_dim, config.kv_heads), ("qwen2", 8, 2));
    assert!(config.qkv_bias && !config.output_bias && !config.tie_word_embeddings);
    assert_eq!((config.rope_theta, config.rope_scaling.clone()), (1e6, RopeScaling::Default));
    let llama = DecoderConfig::from_value(with("model_type", json!("llama"))).unwrap();
    assert!(!llama.qkv_bias && !llama.mlp_bias);
    let biased = DecoderConfig::from_value(json!({
        "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1,
        "num_attention_heads": 2, "attention_bias": true, "rope_scaling": {"type": "linear", "factor": 2.0}
    }));
    let biased = biased.unwrap();
    assert!(biased.qkv_bias && biased.output_bias);
    assert_eq!((biased.kv_heads, biased.rope_scaling.clone()), (2, RopeScaling::Linear { factor: 2.0 }));
}

#[test]
fn windows_follow_layer_types_or_the_familys_rule() {
    let mut config = with("use_sliding_window", json!(true));
    config["sliding_window"] = json!(5);
    config["max_window_layers"] = json!(2);
    assert_eq!(DecoderConfig::from_value(config.clone()).unwrap().windows, [None, None, Some(5)]);
    config["layer_types"] = json!(["sliding_attention", "full_attention", "full_attention"]);
    assert_eq!(DecoderConfig::from_value(config.clone()).unwrap().windows, [Some(5), None, None]);
    config["use_sliding_window"] = json!(false);
    assert_eq!(DecoderConfig::from_value(config).unwrap().windows, [None; 3]);
}

#[test]
fn dropout_is_read_and_written() {
    let config = DecoderConfig::from_value(with("attention_dropout", json!(0.1))).unwrap();
    assert_eq!((config.attention_dropout, config.hidden_dropout), (0.1, 0.0));
    let written = config.to_value();
    assert_eq!(written["attention_dropout"], json!(0.1));
    assert_eq!(written.get("hidden_dropout"), None);
}

#[test]
fn messages_name_the_key_and_the_value() {
    let cases = [
        (with("model_type", json!("mamba")), "`model_type` is \"mamba\""),
        (with("hidden_size", Value::Null), "`hidden_size` is null, expected a positive integer"),
        (with("hidden_size", json!(-4)), "`hidden_size` is -4"),
        (with("vocab_size", json!("many")), "`vocab_size` is \"many\""),
        (
            with("num_key_value_heads", json!(3)),
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        (with("num_key_value_heads", json!(0)), "num_key_value_heads 0"),
        (with("hidden_act", json!("relu2")), "`hidden_act` is \"relu2\""),
        (with("attention_dropout", json!(1.0)), "attention_dropout must be at least 0 and below 1, got 1"),
        (with("hidden_dropout", json!(-0.1)), "hidden_dropout must be at least 0 and below 1, got -0.1"),
        (
            with("rope_scaling", json!({"rope_type": "dynamic", "factor": 2})),
            "`rope_scaling.rope_type` is \"dynamic\"",
        ),
        (with("rope_scaling", json!({"rope_type": "linear"})), "`rope_scaling.factor` is missing"),
        (with("rms_norm_eps", json!(true)), "`rms_norm_eps` is true"),
        (with("num_hidden_layers", json!(10_000_000)), "num_hidden_layers is 10000000"),
        (with("hidden_size", json!(33)), "hidden_size 33 does not divide into 4 heads"),
    ];
    for (config, expected) in cases {
        let message = DecoderConfig::from_value(config).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert!(DecoderConfig::from_json("[1]").unwrap_err().to_string().contains("not a JSON object"));
    assert!(DecoderConfig::from_json("{").is_err());
}

#[test]
fn huge_sizes_are_refused_without_allocating() {
    let huge = with("vocab_size", json!(u64::MAX));
    let config = DecoderConfig::from_value(huge).unwrap();
    assert!(config.parameters(&Stage::whole(&config)).is_err());
    let heads = DecoderConfig::from_value(with("head_dim", json!(u64::MAX / 2)));
    assert!(heads.and_then(|config| config.parameters(&Stage::whole(&config))).is_err());
}

#[test]
fn stages_list_their_own_parameters() {
    let config = Golden::read("qwen2-tied").config;
    let whole = config.parameters(&Stage::whole(&config)).unwrap();
    let first = config.parameters(&Stage { layers: 0..1, embed: true, head: false }).unwrap();
    let last = config.parameters(&Stage { layers: 1..2, embed: false, head: true }).unwrap();
    assert_eq!([first, last].concat(), whole);
    let head = whole.last().unwrap();
    assert_eq!(
        (head.name.as_str(), head.tied.as_deref()),
        ("lm_head.weight", Some("model.embed_tokens.weight"))
    );
    assert!(config.parameters(&Stage { layers: 1..3, embed: false, head: true }).is_err());
}

#[test]
fn an_unknown_type_is_refused_with_the_list_and_the_nearest() {
    let refused = |name: &str| {
        let text = format!(r#"{{"model_type": "{name}"}}"#);
        planaria_nn::models::Models::default().open_json(&text).unwrap_err().to_string()
    };
    let near = refused("qwen3_next");
    assert!(near.contains("supported are llama, ") && near.contains("set it to `qwen3"), "{near}");
    let far = refused("bert");
    assert!(far.contains("gemma3_text") && !far.contains("set it to"), "{far}");
}
