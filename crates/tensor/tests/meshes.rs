//! Bad input on meshes: typed errors that name what is wrong, the same on all ranks.

use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Placement, Reduce};
use planaria_tensor::{Error, Keep, Result, Tensor, World, ops, trace};

const SUM: Placement = Placement::Partial(Reduce::Sum);

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

fn numbers(shape: &[usize]) -> Array {
    let count = shape.iter().product::<usize>() as i64;
    Array::arange(0i64, count, 1i64, DType::F64).unwrap().reshape(shape).unwrap()
}

/// Runs `work` on two ranks; all of them fail with the same text, which is returned.
#[track_caller]
fn same_error(work: impl Fn(&World) -> Result<Tensor> + Sync) -> (Error, String) {
    let errors = threads::run(2, |comm| work(&World::new(comm)).expect_err("this should be refused"));
    let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
    assert_eq!(texts[0], texts[1]);
    let first = errors.into_iter().next().unwrap();
    let text = first.to_string();
    (first, text)
}

#[test]
fn layouts_that_name_unknown_axes_or_dims_are_refused() {
    let unknown = "[4] @ tp:S0 on dp=2".parse::<Layout>().unwrap_err().to_string();
    assert!(unknown.contains("tp"), "{unknown}");
    let (error, text) = same_error(|world| Tensor::place(&numbers(&[4]), &mesh("x=2"), &[SUM, SUM], world));
    assert!(matches!(error, Error::Layout(_)), "{text}");
    let (error, text) =
        same_error(|world| Tensor::place(&numbers(&[4]), &mesh("x=2"), &[Placement::shard(1)], world));
    assert!(matches!(error, Error::Layout(_)), "{text}");
}

#[test]
fn inputs_on_two_meshes_are_refused_with_both_named() {
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4]), &mesh("dp=2"), &[Placement::shard(0)], world)?;
        let y = Tensor::place(&numbers(&[4]), &mesh("tp=2"), &[Placement::shard(0)], world)?;
        x.add(&y)
    });
    assert!(matches!(error, Error::Meshes { op: "add", .. }), "{text}");
    assert!(text.contains("dp=2") && text.contains("tp=2"), "{text}");
}

#[test]
fn a_pending_value_is_not_read() {
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[1]), &mesh("x=2"), &[SUM], world)?;
        x.item().map(|_| x.clone())
    });
    assert!(matches!(error, Error::Pending { what: "item", .. }), "{text}");
    assert!(text.contains("P(sum)"), "{text}");
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4]), &mesh("x=2"), &[SUM], world)?;
        x.to_vec::<f64>().map(|_| x.clone())
    });
    assert!(matches!(error, Error::Pending { what: "to_vec", .. }), "{text}");
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4]), &mesh("x=2"), &[Placement::shard(0)], world)?;
        x.to_vec::<f64>().map(|_| x.clone())
    });
    assert!(matches!(error, Error::Argument { op: "to_vec", .. }), "{text}");
}

#[test]
fn freed_history_is_refused_on_every_rank() {
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4]), &mesh("x=2"), &[Placement::shard(0)], world)?.requires_grad();
        let y = x.square()?.sum(&[], Keep::No)?;
        y.backward()?;
        y.backward().map(|()| y.clone())
    });
    assert!(matches!(error, Error::Freed { .. }), "{text}");
}

#[test]
fn global_shapes_that_disagree_are_refused_even_where_the_pieces_fit() {
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4]), &mesh("x=2"), &[Placement::shard(0)], world)?;
        x.add(&Tensor::new(numbers(&[2])))
    });
    assert!(matches!(error, Error::Array(_)), "{text}");
    assert!(text.contains('4') && text.contains('2'), "{text}");
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4, 2]), &mesh("x=2"), &[Placement::shard(0)], world)?;
        x.set(&[(0..2).into()], &Tensor::new(numbers(&[3, 2]))).map(|()| x.clone())
    });
    assert!(matches!(error, Error::Array(_)), "{text}");
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4, 2]), &mesh("x=2"), &[Placement::shard(0)], world)?;
        x.reshape(&[2, 2])
    });
    assert!(matches!(error, Error::Array(_)), "{text}");
}

#[test]
fn a_piece_of_another_shape_is_refused_with_the_layout() {
    let layout: Layout = "[4,2] @ x:S0 on x=2".parse().unwrap();
    let (error, text) = same_error(|world| {
        let piece = Array::zeros(&[2, 2 + world.rank() - world.rank() + 1], DType::F64)?;
        let refused = Tensor::from_piece(piece, &layout, world);
        refused.map_err(|e| match e {
            Error::Piece { found, expected, layout, .. } => Error::Piece { rank: 0, found, expected, layout },
            other => other,
        })
    });
    assert!(matches!(error, Error::Piece { .. }), "{text}");
    assert!(text.contains("[4,2] @ x:S0"), "{text}");
}

#[test]
fn strict_mode_refuses_what_would_be_sent_and_names_it() {
    let (error, text) = same_error(|world| {
        let x = Tensor::place(&numbers(&[4, 2]), &mesh("x=2"), &[Placement::shard(0)], world)?;
        trace::strict(|| x.narrow(0, 1, 2))
    });
    assert!(matches!(error, Error::Strict { op: "slice", input: 0, .. }), "{text}");
    assert!(text.contains("from `[4,2] @ x:S0"), "{text}");
}

#[test]
fn positions_out_of_range_are_the_same_error_on_all_ranks() {
    let far = || Tensor::from_slice(&[0i64, 7], &[2]);
    for placement in [Placement::Replicate, Placement::shard(0), Placement::shard(1)] {
        let (error, text) = same_error(|world| {
            let x = Tensor::place(&numbers(&[4, 2]), &mesh("x=2"), &[placement], world)?;
            x.get(&[far()?.into()])
        });
        assert!(
            matches!(error, Error::Array(planaria_array::Error::IndexOutOfRange { index: 7, size: 4, .. })),
            "{text}"
        );
    }
}

#[test]
fn values_made_on_a_layout_are_those_of_one_rank() {
    let whole = Array::arange(5i64, 26i64, 3i64, DType::I64).unwrap().to_vec::<i64>().unwrap();
    let unit = Array::eye(7, 5, DType::F64).unwrap().to_vec::<f64>().unwrap();
    threads::run(3, |comm| {
        let world = World::new(comm);
        let line: Layout = "[7] @ x:S0 on x=3".parse().unwrap();
        let counted = Tensor::arange_on(&line, 5, 3, DType::I64, &world).unwrap();
        assert_eq!(counted.whole().unwrap().to_vec::<i64>().unwrap(), whole);
        for placement in [Placement::shard(0), Placement::shard(1), Placement::Replicate] {
            let square =
                Layout::new(&mesh("x=3"), Array::eye(7, 5, DType::F64).unwrap().shape(), &[placement])
                    .unwrap();
            let found = Tensor::eye_on(&square, DType::F64, &world).unwrap();
            assert_eq!(found.whole().unwrap().to_vec::<f64>().unwrap(), unit);
        }
        assert!(matches!(
            Tensor::eye_on(&"[2,2] @ x:P(sum) on x=3".parse().unwrap(), DType::F64, &world),
            Err(Error::Pending { .. })
        ));
    });
}

#[test]
fn a_wrong_index_on_one_rank_is_named_on_all() {
    type Call = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let calls: [(&str, Call); 4] = [
        ("embedding", |table, ids| ops::embedding(table, ids, None)),
        ("index_select", |table, ids| table.index_select(0, ids)),
        ("gather", |table, ids| table.gather(0, &ids.unsqueeze(1)?.broadcast_to(&[6, 2])?)),
        ("one_hot", |_, ids| ids.one_hot(5, DType::F64)),
    ];
    let table = Array::full(&[5, 2], 1.0, DType::F64).unwrap();
    // The fourth of six: rank 1 of three has it.
    let ids = Array::from_slice(&[0i64, 1, 2, 9, 4, 0], &[6]).unwrap();
    for (name, call) in calls {
        let told = threads::run(3, |comm| {
            let (mesh, world) = (Mesh::new(&[("x", 3)]).unwrap(), World::new(comm));
            let ids = Tensor::place(&ids, &mesh, &[Placement::shard(0)], &world).unwrap();
            let table = Tensor::place(&table, &mesh, &[Placement::Replicate], &world).unwrap();
            call(&table, &ids).and_then(|found| found.whole()).unwrap_err().to_string()
        });
        for text in told {
            let parts = [name, "on rank 1", "x:S0", "9"];
            assert!(parts.iter().all(|part| text.contains(part)), "{name}: {text}");
        }
    }
}
