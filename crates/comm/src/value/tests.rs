//! Structures survive the journey; headers that lie do not get far.

use super::*;
use crate::threads;
use proptest::prelude::*;

fn sample(rank: usize) -> Value {
    let t = |n: usize| Value::Tensor(Array::full(&[n, 2], rank + n, DType::F32).unwrap());
    let narrow = Array::from_slice(&[1i64, 2, 3, 4, 5, 6], &[2, 3]).unwrap().transpose(0, 1).unwrap();
    Value::Map(vec![
        (Value::Text("x".into()), t(3)),
        (Value::Int(-4), Value::List(vec![t(0), Value::Tuple(vec![Value::Int(4), Value::Text("s".into())])])),
        (Value::Text("none".into()), Value::Tuple(vec![Value::None, Value::Bool(true), Value::Float(-0.0)])),
        (Value::Text("more".into()), Value::Tuple(vec![t(rank), Value::Tensor(narrow), Value::List(vec![])])),
        (Value::Text("raw".into()), Value::Bytes(vec![0, 255, rank as u8])),
    ])
}

#[test]
fn a_structure_reaches_every_rank_from_any_root() {
    for ranks in 1..=3 {
        for root in 0..ranks {
            let got = threads::run(ranks, |comm| {
                let mine = if comm.rank() == root { sample(root) } else { Value::None };
                broadcast(&*comm, &mine, root).unwrap()
            });
            assert!(got.iter().all(|value| *value == sample(root)));
        }
    }
}

#[test]
fn structures_of_different_shapes_are_gathered_in_rank_order() {
    let want: Vec<_> = (0..3).map(sample).collect();
    let got = threads::run(3, |comm| {
        let mine = sample(comm.rank());
        (all_gather(&*comm, &mine).unwrap(), gather(&*comm, &mine, 2).unwrap())
    });
    for (rank, (all, one)) in got.into_iter().enumerate() {
        assert_eq!(all, want);
        assert_eq!(one, (rank == 2).then(|| want.clone()));
    }
}

#[test]
fn one_rank_that_cannot_send_stops_all() {
    let got = threads::run(3, |comm| {
        let meta = Value::Tensor(Array::meta(&[2], DType::F32).unwrap());
        all_gather(&*comm, if comm.rank() == 1 { &meta } else { &Value::None }).unwrap_err()
    });
    assert!(got.iter().all(|e| matches!(e, Error::Remote { rank: 1, message } if message.contains("meta"))));
}

#[test]
fn headers_that_lie_are_refused_before_anything_is_allocated() {
    let refused = |bytes: &[u8]| decode_text(bytes).unwrap_err();
    let head = |tail: &[u8]| [b"PLNV\x01\x00", tail].concat();
    let many = [b"l".as_slice(), &u64::MAX.to_le_bytes()].concat();
    assert!(refused(&head(&many)).contains("announced"));
    let huge =
        [&[b't', DType::F64 as u8, 2], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0].repeat(2).as_slice()].concat();
    assert!(refused(&head(&huge)).len() > 10);
    let deep = [&[b'l', 1, 0, 0, 0, 0, 0, 0, 0].repeat(1000), b"n".as_slice()].concat();
    assert!(refused(&head(&deep)).contains("deep"));
    assert!(refused(b"PLNV\x02\x00n").contains("version 2"));
    assert!(refused(b"nothing").contains("not a structure"));
    assert!(refused(&head(b"nn")).contains("left over"));
    assert!(refused(&head(&[b't', 99, 0])).contains("dtype"));
    assert!(refused(&head(b"s\x02\0\0\0\0\0\0\0\xff\xff")).contains("UTF-8"));
}

fn decode_text(bytes: &[u8]) -> std::result::Result<(), String> {
    let decoded = header::decode(bytes, 0).map_err(|e| e.to_string())?;
    totals(&decoded.leaves, 0).map(drop).map_err(|e| e.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_the_reader_panic(start in 0usize..2, noise in proptest::collection::vec(any::<u8>(), 0..80)) {
        let bytes = if start == 0 { noise } else { [b"PLNV\x01\x00".to_vec(), noise].concat() };
        let _ = decode_text(&bytes);
    }

    #[test]
    fn damaged_headers_are_errors_or_other_structures(at in 0usize..200, bit in 0u8..8) {
        let mut bytes = header::encode(&sample(1)).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let _ = decode_text(&bytes);
    }
}
