//! Which inputs a tensor is made of, and by which parameters.

use super::*;

const EXTRA: &str = "extra.weight";

#[test]
fn a_tensor_that_one_input_has_is_copied_by_the_methods_of_two() {
    let place = Place::new();
    let own = |value: f32| [value, 2.0 * value];
    let common: (&str, &[usize]) = ("common.weight", &[2]);
    place.model("a", "odd", &json!({}), &[(common.0, common.1, &own(1.0)), (EXTRA, &[2], &own(5.0))]);
    place.model("b", "odd", &json!({}), &[(common.0, common.1, &own(3.0))]);
    let made = |method: &str, base: &str| {
        let recipe = format!(
            "merge_method: {method}\n{base}models:\n- {{model: a, parameters: {{weight: 1}}}}\n- {{model: b, parameters: {{weight: 1}}}}\nparameters: {{t: 0.5}}\n"
        );
        values(&place.plan(&recipe).unwrap(), EXTRA)
    };
    for (method, base) in [
        ("nuslerp", ""),
        ("slerp", "base_model: a\n"),
        ("slerp", "base_model: b\n"),
        ("arcee_fusion", "base_model: b\n"),
        ("nearswap", "base_model: a\n"),
    ] {
        assert_eq!(made(method, base), Some(vec![5.0, 10.0]), "{method} {base}");
    }
    assert_eq!(made("nearswap", "base_model: b\n"), None);
}

#[test]
fn parameters_of_a_tied_head_are_found_by_the_name_of_the_head() {
    let place = Place::new();
    place.llama("a", &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
    let tied = json!({ "num_hidden_layers": 0, "vocab_size": 2, "tie_word_embeddings": true });
    place.model("b", "llama", &tied, &[(EMBEDDING, &[2, 2], &[3.0, 4.0, 5.0, 6.0]), NORM]);
    let recipe = "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 1}}\n\
                  - model: b\n  parameters: {weight: [{filter: lm_head, value: 0}, {value: 1}]}\n";
    let merge = place.plan(recipe).unwrap();
    assert_eq!(values(&merge, EMBEDDING).unwrap(), [2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&merge, HEAD).unwrap(), [5.0, 6.0, 7.0, 8.0]);
    assert!(merge.warnings().is_empty(), "{:?}", merge.warnings());
}

#[test]
fn means_of_rows_are_taken_in_the_type_that_inputs_are_cast_to() {
    let place = Place::new();
    let eighth = 2f32.powi(-8);
    // In bf16 the one becomes 1 and the other 1 + 2^-7; their mean lies in the middle and becomes 1.
    let rows = [[1.0 + eighth; 2], [1.0 + eighth + 2f32.powi(-10); 2]];
    let tokenizer = |tokens: &[&str]| {
        let vocab: Value =
            tokens.iter().enumerate().map(|(id, token)| ((*token).to_string(), json!(id))).collect();
        json!({ "model": { "type": "WordLevel", "vocab": vocab }, "added_tokens": [] }).to_string()
    };
    for (name, tokens, row) in
        [("a", &["x", "new"][..], rows[0]), ("b", &["x", "new"], rows[1]), ("c", &["x", "y"], [7.0; 2])]
    {
        place.llama(name, &[1.0, 1.0, row[0], row[1]], &[0.0; 4]);
        place.write(&format!("{name}/tokenizer.json"), &tokenizer(tokens));
    }
    let inputs = [("a", 0), ("b", 0), ("c", 1)]
        .map(|(name, weight)| format!("- {{model: {name}, parameters: {{weight: {weight}}}}}\n"))
        .concat();
    let recipe = format!("merge_method: linear\ndtype: bfloat16\ntokenizer_source: union\nmodels:\n{inputs}");
    // Row 1 is that of `new`, which the third model lacks: the mean of the other two.
    assert_eq!(values(&place.plan(&recipe).unwrap(), EMBEDDING).unwrap()[2..4], [1.0, 1.0]);
}

#[test]
fn a_mixture_leaves_out_what_its_recipe_removes() {
    let place = Place::new();
    for name in ["a", "b"] {
        place.llama(name, &[1.0; 4], &[2.0; 4]);
    }
    let recipe = "base_model: a\ngate_mode: random\nexperts: [{source_model: a}, {source_model: b}]\n";
    let plan = |more: &str| crate::plan_moe(&format!("{recipe}{more}"), &place.options());
    assert_eq!(plan("").unwrap().tensors().count(), 3);
    let merge = plan("remove_keys: ['lm_*']\n").unwrap();
    assert_eq!(merge.removed(), [(HEAD.to_string(), 16)]);
    let refused = plan("remove_keys: [nothing]\n").unwrap_err().to_string();
    assert!(refused.starts_with("line 4 of the recipe: 'nothing' matches no tensor"), "{refused}");
}

/// A model that sees: two layers of text, three of the tower, and what stands between.
fn seeing(place: &Place, name: &str, value: f32) {
    let more = json!({ "num_hidden_layers": 2, "vocab_size": 2, "vision_config": { "depth": 3 } });
    let text: Vec<String> = (0..2).map(|layer| format!("model.layers.{layer}.mlp.up_proj.weight")).collect();
    let tower: Vec<String> = (0..3).map(|block| format!("visual.blocks.{block}.norm1.weight")).collect();
    let between = ["visual.merger.mlp.0.weight".to_string(), "visual.merger.mlp.2.weight".to_string()];
    let one = [value];
    let rows = [value; 2];
    let mut tensors: Vec<Tensor<'_>> = vec![(EMBEDDING, &[2, 1], &rows)];
    tensors.extend(text.iter().chain(&tower).chain(&between).map(|name| (name.as_str(), &[1][..], &one[..])));
    place.model(name, "qwen2_vl", &more, &tensors);
}

#[test]
fn every_module_has_layers_of_its_own() {
    let place = Place::new();
    seeing(&place, "a", 0.0);
    seeing(&place, "b", 8.0);
    let inputs = "{models: [{model: a}, {model: b}]}";
    // Whole models: a gradient runs over the depth of each module.
    let merge = place
        .plan("merge_method: nearswap\nbase_model: a\nmodels: [{model: a}, {model: b}]\nparameters: {t: [0, 8]}\n")
        .unwrap();
    let value = |name: &str| values(&merge, name).unwrap()[0];
    assert_eq!(value("model.layers.1.mlp.up_proj.weight"), 8.0);
    assert_eq!(value("visual.blocks.1.norm1.weight"), 4.0);
    assert_eq!(value("visual.blocks.2.norm1.weight"), 8.0);
    assert_eq!(value("visual.merger.mlp.2.weight"), 0.0);
    // Modules by name: what is not named is left out, and told.
    let slices = "{slices: [{sources: [{model: a, layer_range: [0, 2]}]}, {sources: [{model: b, layer_range: [1, 3]}]}]}";
    let merge =
        place.plan(&format!("merge_method: passthrough\nmodules: {{vision_tower: {slices}}}\n")).unwrap();
    assert_eq!(merge.tensors().count(), 4);
    assert_eq!(values(&merge, "visual.blocks.3.norm1.weight").unwrap(), [8.0]);
    assert!(merge.dropped().iter().any(|(_, name, _)| name == EMBEDDING), "{:?}", merge.dropped());
    let made = config(&merge, "config.json");
    assert_eq!((&made["vision_config"]["depth"], &made["num_hidden_layers"]), (&json!(4), &json!(2)));
    let refused = |recipe: &str| place.plan(recipe).unwrap_err().to_string();
    let said = refused(&format!("merge_method: linear\nmodules: {{vision_towr: {inputs}}}\n"));
    assert!(said.contains("no module 'vision_towr'") && said.contains("'text_decoder'"), "{said}");
    let said = refused("merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 1]}]}]\n");
    assert!(said.contains("modules: {text_decoder: {slices: ...}}"), "{said}");
}
