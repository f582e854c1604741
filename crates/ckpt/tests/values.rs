//! Python values beside the tensors: the same, and nested as they were, after any way from torch to torch.

use crate::common::{opened, stored};
use planaria_ckpt::convert::{ConvertOptions, To, plan};
use planaria_ckpt::formats::Source;
use planaria_ckpt::formats::pickle::{self, Limits};
use planaria_store::{Object, Store};
use serde_json::{Value, json};
use std::sync::Arc;

fn converted(source: &Source, store: &Arc<dyn Store>, to: To, at: &str) -> Source {
    plan(source, to, &ConvertOptions::default()).unwrap().run(&**store, at, &()).unwrap();
    opened(store, at).unwrap()
}

/// The `planner_data` of a folder: where every name stands.
fn paths(store: &Arc<dyn Store>, at: &str) -> Vec<(String, Value)> {
    let file = store.reader(&format!("{at}/.metadata")).unwrap();
    let tree = pickle::read(&*file, &Limits::default()).unwrap();
    let (metadata, _) = tree.object(tree.root()).unwrap();
    let planned = tree.attributes(metadata).unwrap()["planner_data"];
    let json = |id| tree.to_json(id, &*file).unwrap().unwrap();
    let pairs = tree.pairs(planned).unwrap().iter();
    let mut found: Vec<_> =
        pairs.map(|&(name, path)| (tree.text(name).unwrap().to_string(), json(path))).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn python_values_come_back_as_they_were_and_where_they_were() {
    let from = stored("torch-dcp");
    let source = opened(&from, "values").unwrap();
    assert_eq!(source.skipped, []);
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let straight = converted(&source, &store, To::TorchDcp, "straight");
    let ours = converted(&source, &store, To::Planaria, "ours");
    let through = converted(&ours, &store, To::TorchDcp, "through");
    for (again, at) in [(straight, "straight"), (through, "through")] {
        for (name, value) in &source.extra {
            assert_eq!(&again.extra[name], value, "{at}: {name}");
        }
        assert_eq!(again.extra.len(), source.extra.len(), "{at}");
        assert_eq!(paths(&store, at), paths(&from, "values"), "{at}");
    }
    let path = &paths(&from, "values").into_iter().find(|(name, _)| name == "list.1.inner").unwrap().1;
    assert_eq!(path, &json!({ "$tuple": ["list", 1, "inner"] }));
}

#[test]
fn values_have_a_form_of_their_own_where_json_has_none() {
    let source = opened(&stored("torch-dcp"), "values").unwrap();
    assert_eq!(source.extra["floats"][0], json!({ "$float": "inf" }));
    assert_eq!(source.extra["floats"][2], json!({ "$float": "nan" }));
    assert_eq!(source.extra["ints"][3], json!(i64::MIN));
    assert_eq!(source.extra["tuple"]["$tuple"][1], json!({ "$tuple": [2.0, { "$tuple": [] }] }));
    assert_eq!(source.extra["torch"][1], json!({ "$global": ["torch", "bfloat16"] }));
    let odd = json!([[1, "one"], [{ "$tuple": [2, 3] }, null], ["$tuple", [1]], [null, 0.5]]);
    assert_eq!(source.extra["odd_keys"], json!({ "$tuple": [{ "$dict": odd }] }));
    assert_eq!(source.extra["optim.param_groups.0.betas"], json!({ "$tuple": [0.9, 0.95] }));
}

#[test]
fn a_long_list_is_a_value_and_no_nest() {
    let items = 1_200_000;
    let pickle =
        [&[0x80, 2, b'}', b'X', 4, 0, 0, 0][..], b"list", b"](", &vec![b'N'; items], b"es."].concat();
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    crate::common::put(&store, "x.pt", &crate::common::archive(&pickle));
    let source = opened(&store, "x.pt").unwrap();
    assert_eq!(source.skipped, []);
    let (_, value) = source.extra.iter().next().unwrap();
    assert_eq!(value["list"].as_array().unwrap().len(), items);
}

#[test]
fn values_that_share_their_parts_are_left_out_by_name_and_take_no_time() {
    let store = stored("formats");
    let source = opened(&store, "shared.pt").unwrap();
    assert!(source.model("w").is_ok());
    let [left_out] = &source.skipped[..] else { panic!("{:?}", source.skipped) };
    assert!(left_out.what.contains("'shared'") && left_out.why.contains("values"), "{left_out:?}");
    let error = opened(&store, "shared_tensor.pt").unwrap_err();
    assert!(error.to_string().contains("share their parts too often"), "{error}");
}
