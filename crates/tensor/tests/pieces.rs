//! Values taken apart into what each rank has and put together again, with gradients.

use planaria_array::{Array, DType, ops::Keep};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Placement, Reduce};
use planaria_tensor::{Error, Tensor, World};

/// Each rank of `tp` multiplies the rows of `ep` by its own factor; the results are added up over `tp`.
#[test]
fn ranks_that_go_on_differently_add_up_in_gradients() {
    let mesh: Mesh = "ep=2 tp=2".parse().unwrap();
    let values: Vec<f64> = (0..10).map(f64::from).collect();
    let whole = Array::from_slice(&values, &[5, 2]).unwrap();
    threads::run(4, |comm| {
        let world = World::new(comm);
        let (cut, same, sum) = (Placement::shard(0), Placement::Replicate, Placement::Partial(Reduce::Sum));
        let x = Tensor::place(&whole, &mesh, &[cut, same], &world).unwrap().requires_grad();
        let factor = 1.0 + (world.rank() % 2) as f64;
        let piece = x.to_piece(&[cut, sum]).unwrap();
        assert!(piece.layout().is_none());
        let y = piece.mul_scalar(factor).unwrap();
        let layout = Layout::new(&mesh, whole.shape(), &[cut, sum]).unwrap();
        let y = y.as_piece(&layout, &world).unwrap();
        let three = Array::scalar(3.0, DType::F64).unwrap();
        assert_eq!(
            y.whole().unwrap().to_vec::<f64>().unwrap(),
            whole.mul(&three).unwrap().to_vec::<f64>().unwrap()
        );
        // d(sum of y²)/dx = 2 * 3x * 3.
        y.square().unwrap().sum(&[], Keep::No).unwrap().backward().unwrap();
        let grad = x.grad().unwrap();
        assert_eq!(grad.layout().unwrap().placements(), [cut, sum]);
        let expected: Vec<f64> = values.iter().map(|v| 18.0 * v).collect();
        assert_eq!(grad.whole().unwrap().to_vec::<f64>().unwrap(), expected);
    });
}

#[test]
fn gradients_in_other_pieces_are_refused() {
    let mesh: Mesh = "tp=2".parse().unwrap();
    threads::run(2, |comm| {
        let world = World::new(comm);
        let x = Array::zeros(&[4, 6], DType::F32).unwrap();
        let x = Tensor::place(&x, &mesh, &[Placement::shard(0)], &world).unwrap();
        assert!(matches!(x.to_piece(&[Placement::shard(1)]), Err(Error::Argument { .. })));
        let layout = x.layout().unwrap().clone();
        assert!(matches!(x.as_piece(&layout, &world), Err(Error::Argument { .. })));
        let short = Tensor::zeros(&[1, 6], DType::F32).unwrap();
        assert!(matches!(short.as_piece(&layout, &world), Err(Error::Piece { .. })));
    });
}
