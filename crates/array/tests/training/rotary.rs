//! Rotary position embedding.

use super::support::{Rng, check_grads, close, rounds_once, same_on_all_threads, values};
use planaria_array::ops::{self, RotaryLayout, RotaryOptions, RotaryPairing, RotaryPositions, RotaryTable};
use planaria_array::{Array, DType};

fn options(pairing: RotaryPairing, positions: RotaryPositions<'_>) -> RotaryOptions<'_> {
    RotaryOptions { pairing, layout: RotaryLayout::SeqHeads, positions }
}

/// The definition, pair by pair, for `[batch, sequence, heads, dim]`.
fn reference(
    x: &Array,
    rotated: usize,
    pairing: RotaryPairing,
    position: impl Fn(usize, usize) -> usize,
) -> Vec<f64> {
    let [_, sequence, heads, dim] = x.shape()[..] else { panic!("four dims") };
    let (v, half) = (values(x), rotated / 2);
    let mut out = v.clone();
    for (row, x) in v.chunks(dim).enumerate() {
        let p = position(row / heads / sequence, row / heads % sequence) as f64;
        for i in 0..half {
            let angle = p * 10_000f64.powf(-(2.0 * i as f64) / rotated as f64);
            let (a, b) = match pairing {
                RotaryPairing::Halves => (i, i + half),
                RotaryPairing::Interleaved => (2 * i, 2 * i + 1),
            };
            out[row * dim + a] = x[a] * angle.cos() - x[b] * angle.sin();
            out[row * dim + b] = x[b] * angle.cos() + x[a] * angle.sin();
        }
    }
    out
}

#[test]
fn both_pairings_layouts_and_ways_to_give_positions_agree_with_the_definition() {
    let mut rng = Rng::new(50);
    let x = rng.array(&[2, 5, 3, 12]);
    let ids = rng.ids(&[2, 5], 40);
    let given = ids.to_vec::<i64>().unwrap();
    for rotated in [12, 8, 0] {
        let table = RotaryTable::new(40, rotated, 10_000.0).unwrap();
        for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
            let from = options(pairing, RotaryPositions::From(7));
            let y = ops::rotary(&x, &table, &from).unwrap();
            close(&values(&y), &reference(&x, rotated, pairing, |_, s| s + 7), 1e-6);
            let by_id = ops::rotary(&x, &table, &options(pairing, RotaryPositions::Ids(&ids))).unwrap();
            close(&values(&by_id), &reference(&x, rotated, pairing, |b, s| given[b * 5 + s] as usize), 1e-6);
            let row = ids.select(0, 1).unwrap();
            let shared = ops::rotary(&x, &table, &options(pairing, RotaryPositions::Ids(&row))).unwrap();
            close(&values(&shared), &reference(&x, rotated, pairing, |_, s| given[5 + s] as usize), 1e-6);
            for (positions, want) in [(RotaryPositions::From(7), &y), (RotaryPositions::Ids(&ids), &by_id)] {
                let other = RotaryOptions { pairing, layout: RotaryLayout::HeadsSeq, positions };
                let turned = ops::rotary(&x.transpose(1, 2).unwrap(), &table, &other).unwrap();
                assert_eq!(values(&turned.transpose(1, 2).unwrap()), values(want));
            }
        }
    }
}

#[test]
fn gradient_is_the_inverse_rotation() {
    let mut rng = Rng::new(51);
    let table = RotaryTable::new(9, 4, 100.0).unwrap();
    for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
        let options = options(pairing, RotaryPositions::From(3));
        check_grads(
            &[rng.array(&[3, 2, 6])],
            |x| ops::rotary(&x[0], &table, &options).unwrap(),
            |_, dy| vec![ops::rotary_grad(dy, &table, &options).unwrap()],
        );
        let x = rng.array(&[3, 2, 6]);
        let back = ops::rotary_grad(&ops::rotary(&x, &table, &options).unwrap(), &table, &options).unwrap();
        close(&values(&back), &values(&x), 1e-6);
    }
}

#[test]
fn narrow_types_round_once_and_threads_change_nothing() {
    let mut rng = Rng::new(52);
    let x = [rng.array(&[4, 200, 4, 64])];
    let table = RotaryTable::new(200, 64, 500_000.0).unwrap();
    let all = |x: &[Array]| {
        [RotaryPairing::Halves, RotaryPairing::Interleaved]
            .map(|pairing| ops::rotary(&x[0], &table, &options(pairing, RotaryPositions::From(0))).unwrap())
            .to_vec()
    };
    rounds_once(&x, all);
    let wide = [x[0].cast(DType::F32).unwrap()];
    same_on_all_threads(|| all(&wide));
}
