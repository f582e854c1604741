//! Arrays past 2^31 elements: positions, sums and copies do not wrap. Needs about 4.5 GiB and says so when it
//! has to skip.

use planaria_array::ops::{Keep, Order};
use planaria_array::{Array, DType, Index, release_cached};

const N: usize = (1 << 31) + 4099;

/// Free memory in bytes, where the system tells.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

fn int(a: Array) -> i128 {
    a.item().expect("one element").as_int()
}

#[test]
fn positions_past_two_to_the_31_do_not_wrap() {
    match available() {
        Some(bytes) if bytes >= 6 << 30 => {}
        free => return eprintln!("SKIPPED: this test needs 6 GiB of free memory, found {free:?} bytes"),
    }
    let x = Array::zeros(&[N], DType::U8).expect("2 GiB");
    writes_near_the_end(&x);
    reductions(&x);
    strided_copies(&x);
    drop(x);
    release_cached();
}

fn writes_near_the_end(x: &Array) {
    x.narrow(0, N - 3, 3).unwrap().fill(5).unwrap();
    x.select(0, 1 << 31).unwrap().fill(9).unwrap();
    x.select(0, 7).unwrap().fill(2).unwrap();
    assert_eq!(int(x.select(0, -1).unwrap()), 5);
    assert_eq!(int(x.select(0, (1 << 31) - 1).unwrap()), 0);
    assert_eq!(int(x.get(&[Index::Int(1 << 31)]).unwrap()), 9);
    let at = Array::from_slice(&[1i64 << 31, -1, 7, 0], &[4]).unwrap();
    assert_eq!(x.get(&[Index::Take(at.clone())]).unwrap().to_vec::<u8>().unwrap(), [9, 5, 2, 0]);
    assert_eq!(
        x.index_select(0, &at.slice(0, None, Some(1), 1).unwrap()).unwrap().to_vec::<u8>().unwrap(),
        [9]
    );
    let tail = x.slice(0, Some(1 << 31), None, 1).unwrap();
    assert_eq!(tail.shape()[..], [4099]);
    assert_eq!(int(tail.argsort(0, Order::Descending).unwrap().select(0, 0).unwrap()), 0);
}

fn reductions(x: &Array) {
    assert_eq!(int(x.sum(&[], Keep::No).unwrap()), 9 + 2 + 15);
    assert_eq!(int(x.count_nonzero(&[], Keep::No).unwrap()), 5);
    assert_eq!(int(x.argmax(None, Keep::No).unwrap()), 1 << 31);
    let (value, index) = x.max(0, Keep::No).unwrap();
    assert_eq!((int(value), int(index)), (9, 1 << 31));
    // A row of results for each of 2^31 / 64 rows, and one row from all of them.
    let rows = x.narrow(0, 0, 1 << 31).unwrap().reshape(&[1 << 25, 64]).unwrap();
    assert_eq!(rows.amax(&[0], Keep::No).unwrap().to_vec::<u8>().unwrap()[7], 2);
    let wide = x.narrow(0, N - (1 << 31), 1 << 31).unwrap().reshape(&[2, 1 << 30]).unwrap();
    assert_eq!(wide.sum(&[1], Keep::No).unwrap().to_vec::<i64>().unwrap(), [0, 24]);
}

fn strided_copies(x: &Array) {
    let copy = x.slice(0, Some(1), None, 2).unwrap().copy().unwrap();
    assert_eq!(copy.numel(), N / 2);
    assert_eq!(int(copy.select(0, 3).unwrap()), 2);
    assert_eq!(int(copy.sum(&[], Keep::No).unwrap()), 2 + 5);
    drop(copy);
    // Written through a view that begins past 2^31.
    x.slice(0, Some((1 << 31) + 1), None, 1024).unwrap().fill(1).unwrap();
    assert_eq!(int(x.narrow(0, 1 << 31, 2000).unwrap().sum(&[], Keep::No).unwrap()), 9 + 2);
}
