//! Numbers that mean nothing are refused by name, ranks that no module can have are cut, and ranks that contradict each other
//! are told.

use super::*;
use crate::{CombineOptions, ExtractOptions, combine, extract, plan_adapted};
use planaria_layout::Shape;

/// Two llamas that differ, and a third.
fn models() -> Place {
    let place = Place::new();
    place.llama("base", &[1.0, 2.0, 3.0, 4.0], &[1.0; 4]);
    place.llama("a", &[2.0, 2.0, 1.0, 4.0], &[2.0; 4]);
    place.llama("b", &[1.0, 5.0, 3.0, 0.0], &[3.0; 4]);
    place
}

/// A recipe with parameters of `b`, which stand in line 5, and of all, in line 6.
fn recipe(method: &str, own: &str, all: &str) -> String {
    let base = if ["linear", "karcher", "nuslerp", "multislerp"].contains(&method) { "" } else { "base" };
    let base = if base.is_empty() { String::new() } else { format!("\nbase_model: {base}") };
    let first = if ["slerp", "nearswap"].contains(&method) { "base" } else { "a" };
    format!(
        "merge_method: {method}\nmodels:\n- {{model: {first}, parameters: {{weight: 1.0e+308}}}}\n- model: b\n  parameters: {{{own}}}\nparameters: {{{all}}}{base}\n"
    )
}

#[test]
fn numbers_that_mean_nothing_are_refused_where_they_stand() {
    let place = models();
    let cases: [(&str, &str, &str, usize, &str); 20] = [
        ("ties", "weight: 1, density: -3", "", 5, "density is '-3' for b ('model.embed_tokens.weight')"),
        ("ties", "weight: 1, density: .nan", "", 5, "density is 'NaN'"),
        ("ties", "weight: 1", "density: 7", 6, "density is '7' for a ('model.embed_tokens.weight')"),
        ("dare_ties", "weight: 1, density: 1.1", "", 5, "write a share from 0 to 1"),
        ("della", "weight: 1, density: 0.5, epsilon: -0.6", "", 2, "density 0.5 with epsilon -0.6"),
        ("breadcrumbs", "weight: 1, gamma: 2", "", 5, "gamma is '2'"),
        // Of a gradient every element counts, whatever the layers are.
        ("ties", "weight: 1, density: [0.5, 0.5, 7]", "", 5, "density is '7'"),
        ("ties", "weight: [1, .nan], density: 1", "", 5, "weight is 'NaN'"),
        ("ties", "weight: 1, density: {filter: norm, value: [-1, 1]}", "", 5, "density is '-1'"),
        ("sce", "", "select_topk: -1", 6, "select_topk is '-1'"),
        ("sce", "", "select_topk: 1.5", 6, "select_topk is '1.5'"),
        ("linear", "weight: .nan", "", 5, "weight is 'NaN' for b"),
        ("linear", "weight: -.inf", "", 5, "write a finite number"),
        ("slerp", "", "t: .inf", 6, "t is 'inf'"),
        ("karcher", "", "max_iter: 1000000000000, tol: 0", 6, "max_iter is '1000000000000'"),
        ("karcher", "", "max_iter: 10001", 6, "write a number of steps from 0 to 10000"),
        ("karcher", "", "tol: -1", 6, "tol is '-1'"),
        ("multislerp", "weight: 1", "eps: -1", 6, "eps is '-1'"),
        ("task_arithmetic", "weight: 1", "lambda: .nan", 6, "lambda is 'NaN'"),
        ("ramplus_tl", "", "alpha: .inf", 6, "alpha is 'inf'"),
    ];
    for (method, own, all, line, words) in cases {
        let recipe = recipe(method, own, all);
        let said = place.plan(&recipe).unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("line {line} of the recipe: ")) && said.contains(words),
            "{said}\n{recipe}"
        );
    }
}

#[test]
fn weights_whose_sum_is_not_finite_are_refused_where_something_divides_by_it() {
    let place = models();
    for (method, all) in [
        ("linear", ""),
        ("nuslerp", ""),
        ("multislerp", ""),
        ("ties", ""),
        ("task_arithmetic", "normalize: true"),
    ] {
        let recipe = recipe(method, "weight: 1.0e+308", all);
        let said = place.plan(&recipe).unwrap_err().to_string();
        assert!(said.contains("1e308] have a sum of inf") && said.contains("write smaller ones"), "{said}");
    }
    // The sum is small, but not what the weights become.
    let text = "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 1.0e+300}}\n\
                - {model: b, parameters: {weight: -1.0e+300}}\n- {model: base, parameters: {weight: 1.0e-10}}\n";
    let said = place.plan(text).unwrap_err().to_string();
    assert!(said.contains("inf") && said.contains("change a weight"), "{said}");
    let config = "{\"model_path_list\": [\"a\", \"b\"],\n\"weight_list\": [1e308, 1e308]}";
    let said = crate::plan_paddle(config, &place.options()).unwrap_err().to_string();
    assert!(said.starts_with("line 2 ") && said.contains("a sum of inf"), "{said}");
    for share in ["7", "-3"] {
        let config = format!(
            "{{\"model_path_list\": [\"a\", \"b\"], \"merge_method\": \"ties\",\n\"reserve_p\": {share}}}"
        );
        let said = crate::plan_paddle(&config, &place.options()).unwrap_err().to_string();
        assert!(said.starts_with("line 2 ") && said.contains(&format!("`reserve_p` is {share}")), "{said}");
    }
}

#[test]
fn numbers_at_the_ends_of_their_ranges_count() {
    let place = models();
    let made = |method: &str, own: &str, all: &str| {
        let text = recipe(method, own, all).replace("weight: 1.0e+308", "weight: 1");
        values(&place.plan(&text).unwrap(), EMBEDDING).unwrap()
    };
    let base = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(made("ties", "weight: 1", "density: 0"), base);
    assert_eq!(made("sce", "", "select_topk: 0"), base);
    assert_eq!(made("task_arithmetic", "weight: -1, density: 1", ""), [2.0, -1.0, 1.0, 8.0]);
    // Beyond the other end there is a line too.
    assert!(made("slerp", "", "t: 1.5")[1] > 5.0);
    let (few, many) = (made("karcher", "", "max_iter: 1000"), made("karcher", "", "max_iter: 10000, tol: 0"));
    assert!(few.iter().zip(&many).all(|(a, b)| (a - b).abs() < 1e-3), "{few:?} {many:?}");
    // A limit below 0 is what torch makes of it: no panic.
    assert_eq!(made("ramplus_tl", "", "alpha: -1, r: 0").len(), 4);
}

fn names(module: &str) -> [String; 2] {
    ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight"))
}

fn asked(method: &str, rank: Option<usize>) -> CombineOptions {
    let (combination, majority) = (method.parse().unwrap(), "total".parse().unwrap());
    CombineOptions { combination, density: 1.0, majority, rank, clamp: None, seed: 0 }
}

/// Two adapters of rank 1 on a module of 3 by 4 and on one of 2 by 1.
fn pair() -> Place {
    let place = Place::new();
    let (wide, small) = (names("wide"), names("small"));
    for (name, first) in [("one", 1.0), ("two", 0.0)] {
        let tensors: [Tensor<'_>; 4] = [
            (&wide[0], &[1, 4], &[1.0, first, 2.0, 0.0]),
            (&wide[1], &[3, 1], &[first, 1.0, 0.0]),
            (&small[0], &[1, 1], &[3.0]),
            (&small[1], &[2, 1], &[first, 1.0]),
        ];
        place.adapter(name, r#"{"r": 1, "lora_alpha": 1, "target_modules": ["wide", "small"]}"#, &tensors);
    }
    place
}

#[test]
fn factors_of_a_sum_have_no_more_ranks_than_a_module_can() {
    let place = pair();
    let adapters = [("one".to_string(), 1.0), ("two".to_string(), 2.0)];
    // A sum has the ranks of its parts; what is pruned or elected may have those of the module.
    for (method, rank) in [("svd", 2), ("exact", 2), ("ties_svd", 3), ("magnitude_prune_svd", 3)] {
        for asked_rank in [1_000_000, 999_999_999_999, usize::MAX] {
            let merge = combine(&adapters, &asked(method, Some(asked_rank)), &place.options()).unwrap();
            let shape = |name: &String| merge.computed().find(|(n, _)| n == name).unwrap().1.shape().clone();
            assert_eq!(shape(&names("wide")[0]), Shape::new(&[rank, 4]).unwrap(), "{method}");
            assert_eq!(shape(&names("small")[1]), Shape::new(&[2, rank]).unwrap(), "{method}");
            let about = config(&merge, "adapter_config.json");
            assert_eq!((&about["r"], &about["lora_alpha"]), (&json!(rank), &json!(rank)), "{method}");
            let told = merge.warnings().join("");
            assert!(told.contains(&format!("a rank of {asked_rank} is more")), "{told}");
        }
    }
    let merge = combine(&adapters, &asked("svd", Some(usize::MAX)), &place.options()).unwrap();
    let [down, up] = names("small").map(|name| values(&merge, &name).unwrap());
    // 1 · [1, 1]ᵀ · 3 + 2 · [0, 1]ᵀ · 3.
    for (row, expected) in [3.0, 9.0].into_iter().enumerate() {
        let found: f64 = (0..2).map(|k| up[row * 2 + k] * down[k]).sum();
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    }
    let one = combine(&adapters, &asked("svd", Some(1)), &place.options()).unwrap();
    assert_eq!(config(&one, "adapter_config.json")["r"], 1);
    assert!(one.warnings().is_empty());
}

#[test]
fn options_of_combinations_and_extractions_are_numbers_that_mean_something() {
    let place = pair();
    let both = |weight: f64| [("one".to_string(), 1.0), ("two".to_string(), weight)];
    let ties = asked("ties", None);
    let cases = [
        (CombineOptions { density: 7.0, ..ties.clone() }, 1.0, "7 is not a density"),
        (CombineOptions { density: f64::NAN, ..asked("svd", None) }, 1.0, "NaN is not a density"),
        (CombineOptions { density: 0.0, ..ties.clone() }, 1.0, "leaves nothing"),
        (CombineOptions { clamp: Some(7.0), ..asked("svd", None) }, 1.0, "7 is not a quantile"),
        (ties, f64::INFINITY, "two: its weight is inf"),
    ];
    for (asked, weight, words) in cases {
        let said = combine(&both(weight), &asked, &place.options()).unwrap_err().to_string();
        assert!(said.contains(words) && said.contains(';'), "{said}");
    }
    let place = models();
    for sv_epsilon in [f64::NAN, f64::INFINITY] {
        let asked = ExtractOptions { sv_epsilon, ..ExtractOptions::default() };
        let said = extract("a", "base", &asked, &place.options()).unwrap_err().to_string();
        assert!(said.contains(&sv_epsilon.to_string()) && said.contains("sv-epsilon"), "{said}");
    }
    let asked = ExtractOptions {
        max_rank: usize::MAX,
        include: vec!["lm_head".into()],
        embed_lora: true,
        ..ExtractOptions::default()
    };
    let merge = extract("a", "base", &asked, &place.options()).unwrap();
    assert!(config(&merge, "adapter_config.json")["r"].as_u64().unwrap() <= 2);
}

#[test]
fn an_adapter_whose_configuration_says_another_rank_than_its_tensors_is_refused() {
    let place = Place::new();
    place.model("model", "odd", &json!({}), &[("a.q_proj.weight", &[2, 2], &[0.0; 4])]);
    let (module, up) = (names("a.q_proj"), [1.0, 0.0, 0.0, 1.0]);
    let tensors: [Tensor<'_>; 2] = [(&module[0], &[2, 2], &[1.0; 4]), (&module[1], &[2, 2], &up)];
    let merged = |config: &str| {
        place.adapter("adapter", config, &tensors);
        plan_adapted("model", "adapter", &place.options())
    };
    for (config, key, said_rank) in [
        (r#"{"r": 8, "lora_alpha": 2, "target_modules": ["q_proj"]}"#, "`r`", 8),
        (
            r#"{"r": 2, "lora_alpha": 2, "rank_pattern": {"q_proj": 3}, "target_modules": ["q_proj"]}"#,
            "`rank_pattern`",
            3,
        ),
    ] {
        let said = merged(config).unwrap_err().to_string();
        let words =
            format!("'a.q_proj' has factors of rank 2, and {key} of adapter_config.json says {said_rank}; ");
        assert!(said.contains(&words), "{said}");
        let adapters = [("adapter".to_string(), 1.0)];
        let said = combine(&adapters, &asked("exact", None), &place.options()).unwrap_err().to_string();
        assert!(said.contains(&words), "{said}");
    }
    for config in [
        r#"{"r": 8, "lora_alpha": 2, "rank_pattern": {"a.q_proj": 2}, "target_modules": ["q_proj"]}"#,
        r#"{"r": 2, "lora_alpha": 2, "rank_pattern": {"k_proj": 3, "^q_proj": 4}, "target_modules": ["q_proj"]}"#,
        r#"{"lora_alpha": 2, "target_modules": ["q_proj"]}"#,
    ] {
        let merge = merged(config).unwrap();
        assert_eq!(values(&merge, "a.q_proj.weight").unwrap(), [1.0; 4], "{config}");
    }
}

#[test]
fn an_extracted_adapter_says_the_rank_of_a_module_whose_name_ends_another() {
    let place = Place::new();
    let made = |name: &str, one: [f32; 4], two: [f32; 4]| {
        place.model(name, "odd", &json!({}), &[("q.weight", &[2, 2], &one), ("a.q.weight", &[2, 2], &two)]);
    };
    made("base", [0.0; 4], [0.0; 4]);
    made("tuned", [1.0; 4], [1.0, 0.0, 0.0, 2.0]);
    let asked = ExtractOptions { sv_epsilon: 1e-6, ..ExtractOptions::default() };
    let merge = extract("tuned", "base", &asked, &place.options()).unwrap();
    let conversion = merge.conversion(To::HuggingFace, &ConvertOptions::default()).unwrap();
    conversion.run(&Local::new(place.0.path()), "adapter", &()).unwrap();
    let about = read(&place.0.path().join("adapter/adapter_config.json"));
    assert_eq!((&about["r"], &about["rank_pattern"]), (&json!(2), &json!({ "^q": 1 })));
    let merge = plan_adapted("base", "adapter", &place.options()).unwrap();
    let found = values(&merge, "a.q.weight").unwrap();
    assert!(found.iter().zip([1.0, 0.0, 0.0, 2.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
}
