//! Configurations: what is read, which value wins, and what is refused with which words.

use super::*;
use std::path::Path;

const SMALL: &str = "[[data.source]]\npath = \"a.txt\"\n";

fn refused(text: &str) -> String {
    Sources::text("run.toml", text).resolve().unwrap_err().to_string()
}

#[test]
fn a_text_becomes_a_configuration_and_goes_round() {
    let text = r#"
        name = "char"
        mesh = "dp=2 tp=2"
        [model]
        kind = "llama"
        hidden_size = 64
        [data]
        sequence = 64
        [[data.source]]
        path = "docs"
        [optim]
        lr = 3e-4
        schedule = "wsd"
        [train]
        global_batch = 16
        schedule = "zb_h1"
    "#;
    let config = Config::parse(text).unwrap();
    assert_eq!((config.mesh.tp, config.mesh.dp, config.mesh.pp), (2, Some(2), 1));
    assert_eq!(config.optim.schedule, ScheduleKind::Wsd);
    assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
    let json = config.model.to_json(None, Some(256)).unwrap();
    assert_eq!(json["model_type"], "llama");
    assert_eq!((&json["hidden_size"], &json["vocab_size"]), (&64.into(), &256.into()));
    assert!(json.get("kind").is_none() && json.get("head_dim").is_none());
}

#[test]
fn later_layers_win_and_each_value_knows_its_origin() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "base.toml",
        "mesh = \"dp=2 tp=2\"\n[[data.source]]\npath = \"x\"\n[optim]\nlr = 0.5\nwarmup = 7\nclip = 2.0\n",
    );
    write("small.toml", "extends = \"base.toml\"\n[optim]\nlr = 0.25\nclip = 3.0\n");
    let variables = [
        ("PLANARIA_OPTIM__CLIP", "4"),
        ("PLANARIA_TRAIN__SEED", "9"),
        ("HOME", "x"),
        ("PLANARIA_LOG", "debug"),
        ("PLANARIA_ELSE", "1"),
    ];
    let variables = variables.map(|(k, v)| (k.to_string(), v.to_string()));
    let sources = Sources::file(folder.path().join("small.toml")).variables(variables).set([
        "train.seed=11".to_string(),
        "mesh.tp=4".into(),
        "name=7".into(),
    ]);
    let resolved = sources.resolve().unwrap();
    let config = &resolved.config;
    assert_eq!(
        (config.optim.warmup, config.optim.lr, config.optim.clip, config.train.seed),
        (7, 0.25, 4.0, 11)
    );
    assert_eq!(config.mesh.to_string(), "dp=2 tp=4");
    assert_eq!(config.name, "7");
    let origin = |key: &str| resolved.origin(key).to_string();
    assert!(origin("optim.warmup").ends_with("base.toml:6"), "{}", origin("optim.warmup"));
    assert!(origin("optim.lr").ends_with("small.toml:3"));
    assert_eq!(origin("optim.clip"), "variable PLANARIA_OPTIM__CLIP");
    assert_eq!((origin("train.seed").as_str(), origin("train.zero").as_str()), ("--set", "default"));
    assert!(
        resolved
            .list()
            .iter()
            .any(|(key, value, origin)| key == "train.zero" && *value == 1 && *origin == Origin::Default)
    );
    let whole = sources.clone().set(["mesh=tp=8".to_string()]).resolve().unwrap();
    assert_eq!(whole.config.mesh.to_string(), "tp=8");
    assert_eq!(whole.config.name, "small");
}

/// The paths of a configuration, one after the other.
fn paths_of(config: &Config) -> Vec<String> {
    let own = |path: &Option<std::path::PathBuf>| path.as_ref().map(|p| p.display().to_string());
    let data = &config.data;
    let lone = [own(&config.model.init), data.tokenizer.clone(), own(&data.cache), own(&data.chat.template)];
    let ends = [config.checkpoint.from.clone(), Some(config.log.dir.display().to_string())];
    let sources = data.source.iter().chain(&data.eval).map(|source| Some(source.path.clone()));
    lone.into_iter().chain(sources).chain(ends).flatten().collect()
}

#[test]
fn a_path_begins_where_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (here, below) = (folder.path().display(), folder.path().join("stages"));
    std::fs::create_dir(&below).unwrap();
    let base = "model.init = \"w\"\ndata.tokenizer = \"t\"\ndata.cache = \"c\"\ndata.chat.template = \"j\"\n\
                checkpoint.from = \"old/ckpt/step-00000004\"\nlog.dir = \"runs\"\n\
                [[data.source]]\npath = \"*.txt\"\n[[data.source]]\npath = \"/abs/x\"\n[[data.eval]]\npath = \"e\"\n";
    std::fs::write(folder.path().join("base.toml"), base).unwrap();
    let next = "extends = \"../base.toml\"\ndata.cache = \"../c2\"\nlog.dir = \"s3://bucket/runs\"\n";
    std::fs::write(below.join("next.toml"), next).unwrap();
    let file = |path: &str| Sources::file(folder.path().join(path));
    let read = |sources: Sources| paths_of(&sources.resolve().unwrap().config);
    let expected = ["w", "t", "c", "j", "*.txt", "", "e", "old/ckpt/step-00000004", "runs"];
    let expected =
        expected.map(|path| if path.is_empty() { "/abs/x".into() } else { format!("{here}/{path}") });
    assert_eq!(read(file("base.toml")), expected);
    // Through another folder, and back.
    let mut later = expected.clone();
    (later[2], later[8]) = (format!("{here}/c2"), "s3://bucket/runs".into());
    assert_eq!(read(file("stages/next.toml")), later);
    // What is given beside the file is meant from here, and names are not paths.
    let given =
        ["data.tokenizer=bytes", "data.source.0.path=b.txt", "model.init=m", "checkpoint.from=step-00000004"];
    let shown = read(file("base.toml").set(given.map(String::from)));
    assert_eq!(
        (&shown[0][..], &shown[1][..], &shown[4][..], &shown[7][..]),
        ("m", "bytes", "b.txt", "step-00000004")
    );
    let variable = [("PLANARIA_MODEL__INIT".to_string(), "m".to_string())];
    assert_eq!(read(file("base.toml").variables(variable))[0], "m");
    let names =
        "data.tokenizer = \"bytes\"\ncheckpoint.from = \"step-00000004\"\n[[data.source]]\npath = \"a\"\n";
    std::fs::write(folder.path().join("names.toml"), names).unwrap();
    let named = read(file("names.toml"));
    assert_eq!(named, ["bytes", &format!("{here}/a"), "step-00000004", "runs"]);
}

#[test]
fn other_models_of_a_run_begin_where_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = "dpo.reference = \"a\"\nrl.reference = \"b\"\nppo.critic = \"c\"\nlora.adapter = \"d\"\n\
                [[data.source]]\npath = \"e\"\n[[rl.reward]]\nkind = \"model\"\npath = \"f\"\n";
    std::fs::write(folder.path().join("run.toml"), text).unwrap();
    let config = Sources::file(folder.path().join("run.toml")).resolve().unwrap().config;
    let found = [&config.dpo.reference, &config.rl.reference, &config.ppo.critic];
    for (path, name) in found.into_iter().zip(["a", "b", "c"]) {
        assert_eq!(path.as_deref(), Some(&*folder.path().join(name)), "{name}");
    }
    let adapter = config.lora.and_then(|lora| lora.adapter);
    assert_eq!(adapter.as_deref(), Some(&*folder.path().join("d")));
    assert_eq!(config.rl.reward[0].path, folder.path().join("f"));
}

#[test]
fn what_is_recorded_means_the_same_elsewhere() {
    let config = Config::parse("[[data.source]]\npath = \"a.txt\"\n").unwrap();
    let recorded = config.recorded().unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(Path::new(&recorded.data.source[0].path), here.join("a.txt"));
    assert_eq!(recorded.log.dir, here.join("runs"));
    assert_eq!(recorded.recorded().unwrap(), recorded);
}

#[test]
fn unknown_keys_come_with_the_nearest_name_and_the_line() {
    assert_eq!(
        refused("[[data.source]]\npath = \"a\"\n[optim]\nwarm_up = 3\n"),
        "unknown key `optim.warm_up` (run.toml:4); did you mean `warmup`?"
    );
    assert_eq!(refused("[otpim]\nlr = 3\n"), "unknown key `otpim.lr` (run.toml:2); did you mean `optim`?");
    assert_eq!(refused("zebra = 1\n"), "unknown key `zebra` (run.toml:1)");
    assert_eq!(refused("[mesh]\ntq = 2\n"), "unknown key `mesh.tq` (run.toml:2)");
    let set = Sources::text("run.toml", SMALL).set(["train.step=3".to_string()]).resolve().unwrap_err();
    assert_eq!(set.to_string(), "unknown key `train.step` (--set); did you mean `steps`?");
    assert!(set.is_usage());
    let variable =
        Sources::text("run.toml", SMALL).variables([("PLANARIA_OTPIM__LR".to_string(), "1".to_string())]);
    let message = variable.resolve().unwrap_err().to_string();
    assert_eq!(message, "unknown key `otpim.lr` (variable PLANARIA_OTPIM__LR); did you mean `optim`?");
    assert!(refused("mesh = \"dp=2 xp=2\"\n[[data.source]]\npath=\"a\"").contains("there is no `xp`"));
}

#[test]
fn keys_inside_given_values_are_checked_like_those_of_a_file() {
    let set = |text: &str| Sources::text("run.toml", SMALL).set([text.to_string()]).resolve();
    let message = |text: &str| set(text).unwrap_err().to_string();
    assert_eq!(
        message("data.source=[{pth=\"x\"}]"),
        "unknown key `data.source.pth` (--set); did you mean `path`?"
    );
    assert_eq!(message("mesh={dpp=2}"), "unknown key `mesh.dpp` (--set); did you mean `dp`?");
    assert_eq!(message("optim={lrr=1}"), "unknown key `optim.lrr` (--set); did you mean `lr`?");
    let variable = ("PLANARIA_DATA__SOURCE".to_string(), "[{path=\"t/*.md\",weigth=0.5}]".to_string());
    let variable = Sources::text("run.toml", SMALL).variables([variable]).resolve().unwrap_err();
    assert_eq!(
        variable.to_string(),
        "unknown key `data.source.weigth` (variable PLANARIA_DATA__SOURCE); did you mean `weight`?"
    );

    let config = set("data.source=[{path=\"b\", weight=2.0}, {path=\"c\", weight=1.0}]").unwrap().config;
    assert_eq!(config.data.source.iter().map(|s| s.path.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    let config = set("mesh={dp=2, tp=3}").unwrap().config;
    assert_eq!(config.mesh.to_string(), "dp=2 tp=3");
    let resolved = set("optim={lr=0.5, warmup=3}").unwrap();
    assert_eq!((resolved.config.optim.lr, resolved.config.optim.warmup), (0.5, 3));
    assert_eq!((resolved.origin("optim.lr"), resolved.origin("optim.eps")), (Origin::Set, Origin::Default));
}

/// The fields of the configuration classes of transformers 5.
#[test]
fn every_key_of_a_hugging_face_config_is_a_key_of_the_section() {
    let common = "hidden_size=8\nintermediate_size=8\nnum_hidden_layers=2\nnum_attention_heads=2\nvocab_size=300\n\
        num_key_value_heads=1\nhead_dim=4\nmax_position_embeddings=64\ninitializer_range=0.1\nrms_norm_eps=1e-5\n\
        use_cache=true\ntie_word_embeddings=true\nattention_dropout=0.0\npad_token_id=1\nbos_token_id=2\n\
        eos_token_id=[3, 4]\nhidden_act=\"gelu\"\nrope_theta=5e5\n";
    let rope = "rope_scaling={rope_type=\"yarn\", factor=4.0, original_max_position_embeddings=16}\n";
    let llama = "pretraining_tp=1\nattention_bias=true\nmlp_bias=true\n";
    let window = "use_sliding_window=true\nsliding_window=8\nmax_window_layers=1\n\
        layer_types=[\"full_attention\", \"sliding_attention\"]\n";
    let experts = "decoder_sparse_step=1\nmoe_intermediate_size=8\nshared_expert_intermediate_size=8\n\
        num_experts_per_tok=1\nnum_experts=2\nnorm_topk_prob=true\noutput_router_logits=true\n\
        router_aux_loss_coef=0.1\nmlp_only_layers=[0]\nqkv_bias=false\n";
    let parse = |kind: &str, own: &str| {
        Config::parse(&format!("{SMALL}[model]\nkind=\"{kind}\"\n{common}{rope}{own}"))
    };
    for (kind, own) in [
        ("llama", llama.to_string()),
        ("qwen2", window.to_string()),
        ("qwen2_moe", format!("{window}{experts}")),
    ] {
        let config = parse(kind, &own).unwrap();
        assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
        let json = config.model.to_json(None, None).unwrap();
        assert_eq!((&json["hidden_act"], &json["eos_token_id"][1]), (&"gelu".into(), &4.into()));
        let model = planaria_nn::models::DecoderConfig::from_value(json).unwrap();
        assert_eq!((model.rope_theta, model.tie_word_embeddings), (5e5, true));
        let yarn = planaria_nn::layers::RopeScaling::Default;
        assert_ne!(model.rope_scaling, yarn, "{kind}");
        assert_eq!(model.windows[1].is_some(), kind != "llama", "{:?}", model.windows);
        assert_eq!((model.mlp_bias, model.experts.is_some()), (kind == "llama", kind == "qwen2_moe"));
    }
    let error = parse("qwen2", llama).unwrap_err().to_string();
    assert!(error.contains("`model.attention_bias` is true") && error.contains("llama"), "{error}");
    let error = parse("llama", experts).unwrap_err().to_string();
    assert!(error.contains("qwen2_moe"), "{error}");
    let text = format!("{SMALL}[model]\nrope_scaling={{factr=2.0}}\n");
    assert_eq!(refused(&text), "unknown key `model.rope_scaling.factr` (run.toml:4); did you mean `factor`?");
}

#[test]
fn rotary_keys_change_a_file_in_either_form() {
    let base = |text: &str| serde_json::from_str::<serde_json::Map<_, _>>(text).unwrap();
    let model = |keys: &str, file: &str| {
        let config = Config::parse(&format!("{SMALL}[model]\nconfig=\"c\"\n{keys}\n")).unwrap();
        config.model.to_json(Some(base(file)), None).unwrap()
    };
    let new = r#"{"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}"#;
    assert_eq!(model("rope_theta=7.0", new)["rope_parameters"]["rope_theta"], 7.0);
    let scaled = model("rope_scaling={rope_type=\"linear\", factor=2.0}", new);
    assert_eq!((&scaled["rope_theta"], scaled.get("rope_parameters")), (&10000.0.into(), None));
    assert_eq!(scaled["rope_scaling"]["factor"], 2.0);
    let old = r#"{"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}"#;
    assert_eq!(model("rope_theta=7.0", old)["rope_theta"], 7.0);
    let whole = model("rope_parameters={rope_theta=3.0, rope_type=\"default\"}", old);
    assert_eq!((whole.get("rope_scaling"), &whole["rope_parameters"]["rope_theta"]), (None, &3.0.into()));
}

#[test]
fn wrong_types_and_values_are_named_with_their_place() {
    for (text, words) in [
        ("[optim]\nlr = \"fast\"\n", ["run.toml:2", "`optim.lr`", "expected a number"]),
        ("[optim\n", ["run.toml:1", "", ""]),
        ("[train]\nsteps = -4\n", ["run.toml:2", "`train.steps` is `-4`; expected a whole number", "0"]),
        ("[optim]\nlr = \"1e-3\"\n", ["run.toml:2", "`optim.lr` is \"1e-3\"; expected a number", ""]),
        (
            "[train]\nprecision = \"f8\"\n",
            ["run.toml:2", "`train.precision` is `f8`; expected one of", "bf16"],
        ),
        ("[train]\nsteps = 1.5\n", ["run.toml:2", "`train.steps`", "expected a whole number of at least 0"]),
        ("[data]\nsource = [1]\n", ["run.toml:2", "`data.source[0]`", "expected a table with its keys"]),
        ("[train]\nfreeze = \"all\"\n", ["run.toml:2", "`train.freeze`", "expected a list"]),
        ("[optimizer]\nlr = 1.0\n", ["run.toml:2", "`optimizer.lr`", "did you mean `optim`?"]),
        ("mesh = \"cp=2\"\n", ["mesh", "cp=2", "there is no `cp`"]),
        ("mesh = 7\n", ["mesh", "expected axes like", "dp=2"]),
        ("[train]\nthreads = 0\n[[data.source]]\npath=\"a\"", ["train.threads", "is 0", "from 1"]),
        ("[optim]\nkind = \"adam\"\n", ["run.toml:2", "`optim.kind`", "adamw"]),
        ("mesh = \"dp=\"\n[[data.source]]\npath=\"a\"", ["mesh", "dp=", "axes like"]),
        ("[[data.source]]\npath = \"a\"\n[optim]\nbeta2 = 1.0\n", ["optim.beta2", "is 1", "below 1"]),
        ("[[data.source]]\npath = \"a\"\n[optim]\nlr = nan\n", ["optim.lr", "NaN", "finite"]),
        ("[data]\nsource = []\n", ["data.source", "", "at least one"]),
        ("[[data.source]]\npaht = \"a\"\n", ["run.toml:2", "`data.source.paht`", "did you mean `path`"]),
        ("name = \"../x\"\n[[data.source]]\npath = \"a\"\n", ["name", "../x", "letters"]),
        ("mesh = \"dp=0\"\n[[data.source]]\npath = \"a\"\n", ["mesh", "dp=0", ""]),
        ("[[data.source]]\npath = \"a\"\n[train]\nzero = 4\n", ["train.zero", "is 4", "0, 1, 2 or 3"]),
    ] {
        let message = refused(text);
        assert!(words.iter().all(|w| message.contains(w)), "{text}: {message}");
        let code = ["invalid", "variant", "struct", "enum", "u64", "f64", "\nin `"];
        assert!(
            text.starts_with("[optim\n") || !code.iter().any(|w| message.contains(w)),
            "{text}: {message}"
        );
    }
}

#[test]
fn files_that_extend_each_other_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("a.toml", "extends = \"b.toml\"");
    write("b.toml", "extends = \"a.toml\"");
    let error = Sources::file(folder.path().join("a.toml")).resolve().unwrap_err();
    assert!(matches!(error, Error::Circle { .. }), "{error}");
    let absent = Sources::file(folder.path().join("none.toml")).resolve().unwrap_err();
    assert!(absent.to_string().contains("none.toml"), "{absent}");
}

#[test]
fn a_mesh_is_made_of_the_ranks_there_are() {
    let mesh = |text: &str| text.parse::<MeshSection>().unwrap();
    assert_eq!(mesh("tp=2").on(6).unwrap().to_string(), "pp=1 dp=3 ep=1 tp=2");
    assert_eq!(mesh("dp=2 pp=2").on(4).unwrap().to_string(), "pp=2 dp=2 ep=1 tp=1");
    assert_eq!(mesh("").on(3).unwrap().to_string(), "pp=1 dp=3 ep=1 tp=1");
    for (text, ranks) in [("tp=2", 3), ("dp=2", 3), ("tp=4", 2), ("dp=2 tp=2", 0)] {
        assert!(matches!(mesh(text).on(ranks), Err(Error::Ranks { .. })), "{text} on {ranks}");
    }
    assert!(mesh("tp=3").on(4).unwrap_err().hint().unwrap().contains("-n 3"));
}

/// The schema is a generated file that editors read; `PLANARIA_WRITE=1` writes it anew.
#[test]
fn the_schema_in_the_repository_is_the_one_of_the_code() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.schema.json");
    let text = serde_json::to_string_pretty(schema()).unwrap() + "\n";
    if std::env::var_os("PLANARIA_WRITE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(stored == text, "run the test with PLANARIA_WRITE=1 and commit {}", file.display());
}

#[test]
fn a_model_of_ones_own_is_named_and_has_keys_of_its_own() {
    use planaria_nn::models::Models;
    let text = format!("{SMALL}[model]\nkind = \"mine\"\n[model.own]\nwidth = 8\nsliding_window = 3\n");
    let error = Config::parse(&text).unwrap_err().to_string();
    assert!(error.contains("`model.kind` is \"mine\"; expected one of llama, qwen2, qwen2_moe"), "{error}");
    let near = Config::parse(&text.replace("mine", "qwen2_mo")).unwrap_err().to_string();
    assert!(near.contains("did you mean `qwen2_moe`?"), "{near}");
    let refuse = |_| Err(planaria_nn::Error::Sizes { what: "never opened".into() });
    let models = Models::default().with("mine", refuse);
    let config = Sources::text("mine", &text).models(models).resolve().unwrap().config;
    let json = config.model.to_json(None, Some(5)).unwrap();
    assert_eq!(
        (&json["model_type"], &json["width"], &json["sliding_window"]),
        (&"mine".into(), &8.into(), &3.into())
    );
    let again = toml::from_str::<Config>(&config.to_toml().unwrap()).unwrap();
    assert_eq!(again.model, config.model);
}

#[test]
fn one_source_is_set_by_its_key_and_several_by_their_numbers() {
    let set = |text: &str, set: &str| Sources::text("run.toml", text).set([set.to_string()]).resolve();
    let one = "[[data.source]]\npath = \"a\"\nfield = \"story\"\n";
    let config = set(one, "data.source.path=b").unwrap().config;
    assert_eq!((config.data.source[0].path.as_str(), config.data.source[0].field.as_str()), ("b", "story"));
    let two = format!("{one}[[data.source]]\npath = \"c\"\n");
    let config = set(&two, "data.source.1.path=d").unwrap().config;
    let paths: Vec<&str> = config.data.source.iter().map(|source| source.path.as_str()).collect();
    assert_eq!(paths, ["a", "d"]);
    for (key, word) in
        [("data.source.path=b", "`source.0.path`"), ("data.source.2.path=b", "none of the number 2")]
    {
        let error = set(&two, key).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("--set"), "{error}");
    }
    assert!(set(one, "data.source.paht=b").unwrap_err().to_string().contains("did you mean `path`"));
}

#[test]
fn a_kind_that_contradicts_the_file_is_refused_with_both() {
    let model = |text: &str| Config::parse(&format!("{SMALL}[model]\n{text}\n")).unwrap().model;
    let llama: serde_json::Map<_, _> = serde_json::from_str(r#"{"model_type": "llama"}"#).unwrap();
    let json = |text: &str| model(text).to_json(Some(llama.clone()), None);
    let error = json("init=\"weights\"\nkind=\"qwen2\"").unwrap_err().to_string();
    assert!(["\"qwen2\"", "\"llama\"", "'weights'"].iter().all(|word| error.contains(word)), "{error}");
    for text in ["init=\"weights\"", "init=\"weights\"\nkind=\"llama\""] {
        assert_eq!(json(text).unwrap()["model_type"], "llama", "{text}");
    }
    assert_eq!(model("").to_json(None, None).unwrap()["model_type"], "qwen2");
}

/// The first pattern that fits counts, so a table of them is no map.
#[test]
fn patterns_of_ranks_keep_the_order_of_their_file() {
    let text = format!(
        "{SMALL}[lora.rank_pattern]\nq_proj = 3\n\".*\" = 5\n[lora.alpha_pattern]\n\"z|v_proj\" = 2.0\nv_proj = 4.0\n"
    );
    let config = Config::parse(&text).unwrap();
    let again = Config::parse(&config.to_toml().unwrap()).unwrap();
    for config in [config, again] {
        let lora = config.lora.unwrap().config(None).unwrap();
        assert_eq!((lora.rank("a.q_proj").unwrap(), lora.rank("a.v_proj").unwrap()), (3, 5));
        assert_eq!(lora.alpha("a.v_proj").unwrap(), 2.0);
    }
    let set = ["lora.rank_pattern={ q_proj = 3, \".*\" = 5 }".to_string()];
    let config = Sources::text("run.toml", SMALL).set(set).resolve().unwrap().config;
    assert_eq!(config.lora.unwrap().rank_pattern, [("q_proj".to_string(), 3), (".*".to_string(), 5)]);
}
