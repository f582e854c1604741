//! Text forms: what is printed is read back, and nothing that is read can cause a panic.

use crate::common;
use common::{any_layout, config, mesh, shape};
use planaria_layout::*;
use proptest::prelude::*;
use std::{fmt::Display, str::FromStr};

fn round_trip<T: FromStr<Err = Error> + Display + PartialEq + std::fmt::Debug>(value: &T) {
    let text = value.to_string();
    assert_eq!(text.parse::<T>().as_ref(), Ok(value), "{text}");
}

/// Reads a text as everything; whatever is accepted must round-trip and be usable.
fn read_as_everything(text: &str) {
    let _ = text.parse::<DType>().map(|v| round_trip(&v));
    let _ = text.parse::<Reduce>().map(|v| round_trip(&v));
    let _ = text.parse::<Placement>().map(|v| round_trip(&v));
    let _ = text.parse::<Shape>().map(|v| round_trip(&v));
    let _ = text.parse::<Region>().map(|v| round_trip(&v));
    let _ = text.parse::<TensorSpec>().map(|v| round_trip(&v));
    // A listed numbering of a huge mesh is refused by its length, a strided one never listed.
    if let Ok(mesh) = text.parse::<Mesh>() {
        round_trip(&mesh);
    }
    if let Ok(layout) = text.parse::<Layout>() {
        round_trip(&layout);
        let rank = layout.mesh().ranks().next().unwrap();
        assert!(layout.piece(rank).unwrap().numel() <= layout.shape().numel());
    }
}

const WORDS: [&str; 34] = [
    "f32",
    "bf16",
    "[",
    "]",
    "[4,6]",
    "[]",
    "0..4",
    "2..1",
    ",",
    ", ",
    " @ ",
    "dp",
    "tp",
    ":",
    "R",
    "S0",
    "S1.1",
    "S0x2",
    "S9",
    "P(sum)",
    "P(max)",
    "P(",
    " ",
    " on ",
    "dp=2",
    "tp=3",
    "=",
    "ranks=[0,1]",
    "ranks=4..6",
    "0",
    "18446744073709551615",
    "99999999999999999999",
    "x",
    "é",
];

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn everything_round_trips(
        (mesh, shape) in (mesh(3), shape()),
        dtype in 0usize..15,
        bounds in prop::collection::vec((0usize..99, 0usize..99), 0..4),
    ) {
        round_trip(&mesh);
        round_trip(&shape);
        let lo: Vec<usize> = bounds.iter().map(|(a, b)| *a.min(b)).collect();
        let hi: Vec<usize> = bounds.iter().map(|(a, b)| *a.max(b)).collect();
        round_trip(&Region::new(&lo, &hi).unwrap());
        let spec = Layout::replicated(&mesh, &shape).to_spec(DType::ALL[dtype]);
        round_trip(&spec);
    }

    #[test]
    fn layouts_round_trip(layout in (mesh(3), shape()).prop_flat_map(|(m, s)| any_layout(m, s))) {
        round_trip(&layout);
        layout.placements().iter().for_each(round_trip);
        let spec = layout.to_spec(DType::BF16);
        round_trip(&spec);
        prop_assert_eq!(spec.on(layout.mesh()), Ok(layout));
    }

    #[test]
    fn word_salad_is_refused_or_understood(words in prop::collection::vec(0..WORDS.len(), 0..12)) {
        read_as_everything(&words.iter().map(|&w| WORDS[w]).collect::<String>());
    }

    #[test]
    fn damaged_texts_are_refused_or_understood(
        layout in (mesh(2), shape()).prop_flat_map(|(m, s)| any_layout(m, s)),
        at in any::<prop::sample::Index>(),
        with in "[ -~é]{0,2}",
    ) {
        let text = layout.to_string();
        let (start, _) = *at.get(&text.char_indices().collect::<Vec<_>>());
        read_as_everything(&format!("{}{with}{}", &text[..start], &text[start + 1..]));
        read_as_everything(&layout.to_spec(DType::F32).to_string()[..text[..start].len().min(4)]);
    }
}

#[test]
fn the_documented_forms() {
    let mesh: Mesh = "dp=2 tp=4".parse().unwrap();
    let spec: TensorSpec = "f32[4096,1024] @ dp:R tp:S1".parse().unwrap();
    let layout = spec.on(&mesh).unwrap();
    assert_eq!(layout.to_string(), "[4096,1024] @ dp:R tp:S1 on dp=2 tp=4");
    assert_eq!(layout.piece(5).unwrap().boxes()[0].to_string(), "[0..4096, 256..512]");
    let swapped: Layout = "[8] @ dp:S0.1 tp:S0 on dp=2 tp=4".parse().unwrap();
    assert_eq!(swapped.piece(4).unwrap().boxes()[0].to_string(), "[1..2]", "tp is the major axis");
    assert_eq!("dp=2 tp=2 ranks=[4,5,6,7]".parse::<Mesh>().unwrap().to_string(), "dp=2 tp=2 ranks=4..8");
    assert_eq!(
        "dp=2 tp=2".parse::<Mesh>().unwrap().fix(&[("tp", 1)]).unwrap().to_string(),
        "dp=2 ranks=[1,3]"
    );
}

#[test]
fn what_is_wrong_is_said() {
    let mesh: Mesh = "dp=2 tp=4".parse().unwrap();
    let place = |text: &str| text.parse::<TensorSpec>().and_then(|spec| spec.on(&mesh)).unwrap_err();
    assert!(matches!(place("f32[4] @ pp:R"), Error::UnknownAxis { .. }));
    assert!(matches!(place("f32[4] @ dp:R dp:S0"), Error::DuplicateAxis { .. }));
    assert!(matches!(place("f32[4] @ dp:S1"), Error::DimOutOfRange { dim: 1, ndim: 1, .. }));
    assert!(matches!(place("f32[4] @ dp:P(sum) tp:P(max)"), Error::MixedPartial { .. }));
    assert!(matches!(place("f32[4] @ dp:S0x0"), Error::BadSections { .. }));
    assert!(matches!(place("f32[4] @ dp:S0x99999999"), Error::BadSections { .. }));
    assert!(matches!(place("f32[4] @ dp:Q"), Error::Parse { .. }));
    assert!(matches!(place("f31[4]"), Error::Parse { .. }));
    let mesh = |text: &str| text.parse::<Mesh>().unwrap_err();
    assert!(matches!(mesh("dp=0"), Error::BadAxisSize { .. }));
    assert!(matches!(mesh("dp=2 dp=2"), Error::DuplicateAxis { .. }));
    assert!(matches!(mesh("2p=2"), Error::BadAxisName { .. }));
    assert!(matches!(mesh("dp=2 ranks=[1,1]"), Error::DuplicateRank { rank: 1 }));
    assert!(matches!(mesh("dp=2 ranks=[1]"), Error::RankCount { ranks: 1, mesh: 2 }));
    assert!(matches!(mesh("dp=2 ranks=4..9"), Error::RankCount { ranks: 5, mesh: 2 }));
    assert!(matches!(mesh("dp=99999999 tp=99999999"), Error::MeshTooLarge { .. }));
    assert!(matches!(mesh(""), Error::Parse { .. }));
}
