//! Views alias, snapshots do not, and geometry that does not fit is refused.

use planaria_array::{Array, DType, Error};

fn iota(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    Array::from_slice(&(0..n as i64).collect::<Vec<_>>(), shape).unwrap()
}

fn values(a: &Array) -> Vec<i64> {
    a.to_vec::<i64>().unwrap()
}

#[test]
fn writes_through_a_view_are_seen_by_all_views() {
    let x = iota(&[3, 4]);
    let column = x.select(1, -1).unwrap();
    column.fill(9).unwrap();
    assert_eq!(values(&x), [0, 1, 2, 9, 4, 5, 6, 9, 8, 9, 10, 9]);
    assert_eq!(values(&column), [9, 9, 9]);
    assert!(x.shares_storage(&column));
    assert_eq!(x.version(), 1);
}

#[test]
fn a_snapshot_keeps_its_value() {
    let x = iota(&[4]);
    let before = x.snapshot().unwrap();
    assert!(x.is_snapshotted());
    x.fill(7).unwrap();
    assert_eq!(values(&before), [0, 1, 2, 3]);
    assert_eq!(values(&x), [7; 4]);
    assert!(!x.is_snapshotted() && !x.shares_storage(&before));
}

#[test]
fn overlapping_source_and_destination_act_as_if_copied_first() {
    let x = iota(&[6]);
    x.slice(0, Some(1), None, 1).unwrap().copy_from(&x.slice(0, None, Some(-1), 1).unwrap()).unwrap();
    assert_eq!(values(&x), [0, 0, 1, 2, 3, 4]);
}

#[test]
fn transposed_and_permuted_copies_match_coordinates() {
    for shape in [[2usize, 70, 33], [40, 9, 17], [1, 64, 64]] {
        let x = iota(&shape);
        for order in [[0i64, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1], [1, 0, 2]] {
            let y = x.permute(&order).unwrap();
            let got = values(&y);
            let mut want = Vec::new();
            let s = y.shape().dims().to_vec();
            for i in 0..s[0] {
                for j in 0..s[1] {
                    for k in 0..s[2] {
                        let mut at = [0; 3];
                        for (d, c) in order.iter().zip([i, j, k]) {
                            at[*d as usize] = c;
                        }
                        want.push(((at[0] * shape[1] + at[1]) * shape[2] + at[2]) as i64);
                    }
                }
            }
            assert_eq!(got, want, "{shape:?} {order:?}");
            let z = Array::zeros(&shape, DType::I64).unwrap();
            z.permute(&order).unwrap().copy_from(&y).unwrap();
            assert_eq!(values(&z), values(&x), "written back {shape:?} {order:?}");
        }
    }
}

#[test]
fn reshape_is_a_view_where_strides_allow() {
    let x = iota(&[4, 6]);
    assert!(x.reshape(&[2, 2, 3, 2]).unwrap().shares_storage(&x));
    let t = x.transpose(0, 1).unwrap();
    assert!(t.reshape(&[3, 2, 4]).unwrap().shares_storage(&x));
    assert!(t.reshape(&[6, 2, 1, 2]).unwrap().shares_storage(&x));
    let flat = t.reshape(&[24]).unwrap();
    assert!(!flat.shares_storage(&x));
    assert_eq!(values(&flat)[..5], [0, 6, 12, 18, 1]);
    let empty = Array::zeros(&[0, 3], DType::F32).unwrap();
    assert_eq!(empty.reshape(&[5, 0]).unwrap().shape().dims(), [5, 0]);
    assert_eq!(iota(&[1]).reshape(&[]).unwrap().ndim(), 0);
}

#[test]
fn geometry_that_does_not_fit_is_refused() {
    let x = iota(&[3, 4]);
    assert!(matches!(x.transpose(0, 2), Err(Error::DimOutOfRange { dim: 2, ndim: 2, .. })));
    assert!(matches!(x.reshape(&[5]), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(x.broadcast_to(&[4, 4]), Err(Error::Broadcast { .. })));
    assert!(matches!(x.as_strided(&[3, 4], &[4, 2], 0), Err(Error::OutOfStorage { .. })));
    assert!(matches!(x.as_strided(&[2, 2], &[-1, 1], 0), Err(Error::OutOfStorage { .. })));
    assert!(x.as_strided(&[usize::MAX, 2], &[1, 1], 0).is_err());
    assert!(matches!(Array::zeros(&[1 << 40, 1 << 40], DType::U8), Err(Error::Layout(_))));
    assert!(matches!(Array::zeros(&[1 << 58], DType::F64), Err(Error::OutOfMemory { .. })));
    let wide = iota(&[1]).broadcast_to(&[5]).unwrap();
    assert!(matches!(wide.fill(1), Err(Error::OverlappingWrite { .. })));
    assert!(matches!(x.slice(0, None, None, 0), Err(Error::Step { .. })));
}

#[test]
fn zero_size_and_zero_dims_work() {
    let s = Array::scalar(2.5, DType::BF16).unwrap();
    assert_eq!((s.ndim(), s.numel()), (0, 1));
    assert_eq!(s.to_string(), "bf16[] 2.5");
    assert_eq!(s.unsqueeze(0).unwrap().shape().dims(), [1]);
    let e = Array::zeros(&[2, 0, 3], DType::F32).unwrap();
    assert_eq!(e.transpose(0, 2).unwrap().contiguous().unwrap().shape().dims(), [3, 0, 2]);
    assert_eq!(e.to_string(), "f32[2,0,3] [[], []]");
    e.fill(1.0).unwrap();
    assert_eq!(e.cast(DType::I8).unwrap().dtype(), DType::I8);
}

#[test]
fn meta_arrays_have_shapes_and_no_bytes() {
    let m = Array::meta(&[1 << 20, 1 << 20], DType::F32).unwrap();
    assert_eq!(m.transpose(0, 1).unwrap().copy().unwrap().shape().dims(), [1 << 20, 1 << 20]);
    assert!(matches!(m.to_vec::<f32>(), Err(Error::Device { .. })));
    assert_eq!(m.cast(DType::BF16).unwrap().dtype(), DType::BF16);
}
