//! Element types that nothing here computes with: carried bit for bit, refused only where something must be computed.

use crate::common::{opened, stored};
use planaria_aoa::Program;
use planaria_ckpt::convert::{ConvertOptions, To, plan};
use planaria_ckpt::examine::{Bound, Verdict, compare, stats};
use planaria_ckpt::formats::{Key, Source};
use planaria_ckpt::stream::Feed;
use planaria_ckpt::verify;
use planaria_layout::DType;
use planaria_store::{Object, Store};
use std::sync::Arc;

fn foreign() -> Source {
    opened(&stored("torch-dcp"), "foreign").unwrap()
}

#[test]
fn element_types_that_we_lack_are_carried_bit_for_bit() {
    let source = foreign();
    let specs: Vec<String> = source.tensors.keys().map(|key| format!("{key} {}", source.spec(key))).collect();
    let expected = [
        "c128 complex128[3,2]",
        "c64 complex64[3,4]",
        "e4m3fnuz f8e4m3fnuz[3,4]",
        "e5m2fnuz f8e5m2fnuz[3,4]",
        "e8m0 f8e8m0[3,4]",
        "f4 f4x2[3,4]",
        "w f32[6]",
    ];
    assert_eq!(specs, expected);
    assert!(verify(&stored("torch-dcp"), "foreign").unwrap().is_sound());
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let options = ConvertOptions { dtype: Some(DType::BF16), ..ConvertOptions::default() };
    for (to, at, lost) in [(To::TorchDcp, "dcp", 0), (To::HuggingFace, "hf", 1), (To::Planaria, "ours", 1)] {
        let conversion = plan(&source, to, &options).unwrap();
        let names: Vec<String> = conversion.left_out().iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(names, vec!["c128"; lost], "safetensors files have no complex128");
        conversion.run(&*store, at, &()).unwrap();
        let again = opened(&store, at).unwrap();
        assert_eq!(again.tensors.len(), source.tensors.len() - lost, "{at}");
        for key in again.tensors.keys().filter(|key| key.name != "w") {
            assert_eq!(again.spec(key), source.spec(key), "{at}");
            assert_eq!(again.read(key).unwrap(), source.read(key).unwrap(), "{at}: {key}");
        }
        assert_eq!(again.spec(&Key::model("w")), "bf16[6]", "{at}");
    }
}

#[test]
fn only_what_must_compute_with_them_is_refused() {
    let source = foreign();
    let mapped = |text: &str| {
        let mapping = Some(Program::parse(text).unwrap().into());
        let options = ConvertOptions { mapping, ..ConvertOptions::default() };
        plan(&source, To::TorchDcp, &options)
            .map(|plan| plan.tensors().map(|(key, ..)| key.to_string()).collect::<Vec<_>>())
    };
    let names = mapped("c64 -> turned\n").unwrap();
    assert!(names.iter().any(|name| name == "turned"), "{names:?}");
    let error = mapped("c64^T -> turned\n").unwrap_err().to_string();
    assert!(error.contains("'c64' has the element type complex64"), "{error}");
    let feed = Feed::new(&source);
    assert_eq!(stats(&feed, &Key::model("c64"), &|_| ()).unwrap().count, 0);
    let mut verdicts = Vec::new();
    let mut plain = source.clone();
    plain.foreign.remove(&Key::model("e8m0"));
    let found = &mut |key: &Key, verdict| {
        verdicts.extend((verdict != Verdict::Same).then(|| (key.to_string(), verdict)));
        Ok(())
    };
    compare((&feed, &Feed::new(&plain)), &Bound::default(), &|_| true, &|_| (), found).unwrap();
    let expected = Verdict::Spec("f8e8m0[3,4]".to_string(), "u8[3,4]".to_string());
    assert_eq!(verdicts, [("e8m0".to_string(), expected)]);
}
