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
    let json = config.model.to_json(None, Some(256));
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

#[test]
fn unknown_keys_come_with_the_nearest_name_and_the_line() {
    assert_eq!(
        refused("[[data.source]]\npath = \"a\"\n[optim]\nwarm_up = 3\n"),
        "unknown key `optim.warm_up` (run.toml:4); did you mean `warmup`?"
    );
    assert_eq!(refused("[otpim]\nlr = 3\n"), "unknown key `otpim.lr` (run.toml:2); did you mean `optim`?");
    assert_eq!(refused("zebra = 1\n"), "unknown key `zebra` (run.toml:1)");
    assert_eq!(refused("[mesh]\ntq = 2\n"), "unknown key `mesh.tq` (run.toml:2); did you mean `tp`?");
    let set = Sources::text("run.toml", SMALL).set(["train.step=3".to_string()]).resolve().unwrap_err();
    assert_eq!(set.to_string(), "unknown key `train.step` (--set); did you mean `steps`?");
    assert!(set.is_usage());
    let variable =
        Sources::text("run.toml", SMALL).variables([("PLANARIA_OTPIM__LR".to_string(), "1".to_string())]);
    let message = variable.resolve().unwrap_err().to_string();
    assert_eq!(message, "unknown key `otpim.lr` (variable PLANARIA_OTPIM__LR); did you mean `optim`?");
    assert!(refused("mesh = \"dp=2 xp=2\"\n[[data.source]]\npath=\"a\"").contains("did you mean"));
}

#[test]
fn wrong_types_and_values_are_named_with_their_place() {
    for (text, words) in [
        ("[optim]\nlr = \"fast\"\n", ["run.toml:2", "`optim.lr`", "expected f64"]),
        ("[optim\n", ["run.toml:1", "", ""]),
        ("[train]\nsteps = -4\n", ["run.toml:2", "`train.steps`", "-4"]),
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
