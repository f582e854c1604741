//! Every refusal names the line of the recipe that it comes from.

use super::*;

/// Two llamas, a third with other tokens, one without its norm, and one of another kind.
fn models() -> Place {
    let place = Place::new();
    for name in ["a", "b"] {
        place.llama(name, &[1.0; 4], &[2.0; 4]);
    }
    let more = json!({ "num_hidden_layers": 0, "vocab_size": 3 });
    place.model("longer", "llama", &more, &[(EMBEDDING, &[3, 2], &[1.0; 6]), NORM]);
    place.model("bare", "llama", &more, &[(EMBEDDING, &[2, 2], &[1.0; 4])]);
    place.model("other", "mistral", &more, &[(EMBEDDING, &[2, 2], &[1.0; 4]), NORM]);
    place
}

#[test]
fn refusals_of_recipes_name_their_lines() {
    let place = models();
    let linear = |second: &str, more: &str| {
        format!(
            "merge_method: linear\nmodels:\n- model: a\n  parameters: {{weight: 1}}\n- model: {second}\n{more}"
        )
    };
    let weight = "  parameters: {weight: 1}\n";
    let base = "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 1}}\nbase_model: b\n";
    let slerp = "merge_method: slerp\nbase_model: a\nmodels:\n- model: a\n- model: b\n";
    let cases: [(String, usize, &str); 10] = [
        (linear("b", ""), 5, "weight is required for b"),
        (base.into(), 4, "base_model joins the inputs of linear"),
        (slerp.into(), 3, "t is required"),
        (linear("other", weight), 5, "other of mistral"),
        (linear("bare", weight), 5, "'model.norm.weight' is missing"),
        (linear("longer", weight), 5, "tokenizer_source: union"),
        (linear("nowhere", weight), 5, "there is nothing at this path"),
        (linear("b", &format!("{weight}tokenizer_source: union\n")), 3, "there is no tokenizer.json"),
        (linear("b", "  parameters: {weight: much}\n"), 6, "weight is 'much'"),
        (linear("b", "  parameters: {weight: 1}\ndtype: int4\n"), 7, "'int4' is not an element type"),
    ];
    for (recipe, line, words) in cases {
        let said = place.plan(&recipe).unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("line {line} of the recipe: ")) && said.contains(words),
            "{said}\n{recipe}"
        );
    }
}

#[test]
fn refusals_of_mixtures_and_of_paddles_configurations_name_their_lines() {
    let place = models();
    let moe = "gate_mode: random\nbase_model: a\nexperts:\n- {source_model: a}\n- {source_model: other}\n";
    let said = crate::plan_moe(moe, &place.options()).unwrap_err().to_string();
    assert!(said.starts_with("line 5 of the recipe: a is of the architecture llama"), "{said}");
    let cases: [(&str, usize, &str); 7] = [
        (
            "{\n\"merge_method\": \"linaer\",\n\"model_path_list\": [\"a\", \"b\"]}",
            2,
            "did you mean 'linear'?",
        ),
        ("{\"model_path_list\": [\"a\", \"b\"],\n\"weight_list\": [1]}", 2, "1 numbers for 2 models"),
        ("{\"merge_method\": \"linear\",\n\"model_path_list\": [\"a\"]}", 2, "at least two models"),
        ("{\"model_path_list\": [\n\"a\",\n\"bare\"]}", 3, "'lm_head.weight' is missing"),
        ("{\"model_path_list\": [\n\"a\",\n\"nowhere\"]}", 3, "there is nothing at this path"),
        (
            "{\"model_path_list\": [\"a\", \"b\"],\n\n\"slerp_alpha\": \"x\",\n\"merge_method\": \"slerp\"}",
            3,
            "not a number",
        ),
        ("{\n\"lora_model_path\": \"x\"}", 2, "needs a `base_model_path`"),
    ];
    for (config, line, words) in cases {
        let said = crate::plan_paddle(config, &place.options()).unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("line {line} of the recipe: ")) && said.contains(words),
            "{said}\n{config}"
        );
    }
}
