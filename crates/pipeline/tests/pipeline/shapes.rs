//! Shapes between stages: agreed on once, or described with every message; empty tensors; tensors on a mesh.

use crate::stack::{Layer, Plan, alone, piped, ranks, value};
use planaria_comm::CommExt;
use planaria_layout::Mesh;
use planaria_pipeline::engine::{At, Engine, Inner, Options, Shapes, StageWork};
use planaria_pipeline::{Error, Failure, ScheduleKind};
use planaria_tensor::{Keep, Tensor, World};
use std::sync::Arc;

#[test]
fn micro_batches_of_several_sizes_need_a_description_each() {
    let plan = Plan { rows: vec![3, 0, 5, 1], ..Plan::new(3, 4) };
    let schedule = ScheduleKind::OneForwardOneBackward.build(3, 4, 1).unwrap();
    let each = Options { shapes: Shapes::Each, ..Options::default() };
    assert_eq!(piped(&plan, &schedule, &each).unwrap(), alone(&plan));

    let errors = piped(&plan, &schedule, &Options::default()).unwrap_err();
    assert_eq!(errors.len(), 3, "every rank fails");
    let expected = "stage 0, micro-batch 1: output 0 is `grad f32[0,8]`, but `grad f32[3,8]` was agreed on";
    assert!(errors.iter().all(|e| e.to_string().contains(expected)), "{errors:?}");
    assert!(errors.iter().any(|e| matches!(e, Error::Shape { stage: 0, micro: 1, .. })));
}

#[test]
fn empty_micro_batches_flow_like_others() {
    for kind in ScheduleKind::ALL {
        let chunks = kind.chunks().0;
        let plan = Plan { rows: vec![0; 3], ..Plan::new(2 * chunks, 3) };
        let schedule = kind.build(2, 3, chunks).unwrap();
        assert_eq!(piped(&plan, &schedule, &Options::default()).unwrap(), alone(&plan), "{kind}");
    }
}

/// Counts messages by giving each stage a different number of outputs in its second step.
struct Growing {
    step: usize,
}

impl StageWork for Growing {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        if at.stage == 1 {
            return Ok(vec![
                inputs.iter().try_fold(value(1, &[1]), |sum, x| sum.add(&x.sum(&[0], Keep::No)?))?,
            ]);
        }
        Ok((0..=self.step).map(|i| value(i, &[2])).collect())
    }
}

#[test]
fn what_was_agreed_on_holds_for_later_steps() {
    let schedule = Arc::new(ScheduleKind::OneForwardOneBackward.build(2, 2, 1).unwrap());
    let ends = ranks(2, |comm| {
        let mut engine = Engine::new(schedule.clone(), comm.clone(), Options::default()).unwrap();
        engine.run(&mut Growing { step: 0 }).unwrap();
        engine.run(&mut Growing { step: 0 }).unwrap();
        // Nothing flows back here, so the first rank would be ahead with its failure.
        comm.barrier().unwrap();
        engine.run(&mut Growing { step: 1 }).map(drop).unwrap_err().to_string()
    });
    let expected = "stage 0, micro-batch 0: the number of its outputs is 2, but 1 was agreed on";
    assert!(ends.iter().all(|end| end.contains(expected)), "{ends:?}");
}

/// Two stages on two ranks each; the hidden state is cut over `tp`, and its sum is pending there.
struct Cut {
    inner: Inner,
    grads: Vec<Vec<f32>>,
}

impl Cut {
    fn cut(&self, seed: usize) -> Tensor {
        let Inner { mesh, world } = &self.inner;
        let layout = format!("[4,6] @ tp:S1 on {mesh}").parse().unwrap();
        let whole = planaria_layout::Layout::replicated(mesh, value(seed, &[4, 6]).shape());
        let whole = Tensor::from_piece(value(seed, &[4, 6]).local().clone(), &whole, world).unwrap();
        whole.reshard(&layout).unwrap()
    }
}

impl StageWork for Cut {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        if at.stage == 0 {
            let x = self.cut(at.micro).requires_grad();
            let pending = x.square()?.sum(&[1], Keep::No)?;
            assert!(!pending.layout().unwrap().partial_axes().is_empty());
            let name = x.history().unwrap();
            let out = vec![x.mul(&x)?, pending];
            x.on_grad(move |grad| {
                let whole = grad.whole()?;
                assert_eq!(whole.shape(), &name.spec().shape);
                Ok(None)
            })?;
            return Ok(out);
        }
        assert!(inputs[1].layout().unwrap().mesh().ranks().eq(2..4), "on this stage's ranks");
        let loss = inputs[0]
            .mul(&self.cut(50))?
            .sum(&[], Keep::No)?
            .add(&inputs[1].square()?.sum(&[], Keep::No)?)?;
        self.grads.push(loss.whole()?.to_vec::<f32>()?);
        Ok(vec![loss])
    }
}

#[test]
fn pieces_of_tensors_go_to_their_counterparts() {
    let schedule = Arc::new(ScheduleKind::ForwardThenBackward.build(2, 2, 1).unwrap());
    let ends = ranks(4, |comm| {
        let world = World::new(comm.clone());
        let mesh = Mesh::new(&[("pp", 2), ("tp", 2)]).unwrap();
        let rank = comm.rank();
        let inner = Inner { mesh: mesh.keep(&["tp"], rank).unwrap(), world };
        let pipe = comm.group(&[rank % 2, rank % 2 + 2]).unwrap();
        let options = Options { inner: Some(inner.clone()), ..Options::default() };
        let mut cut = Cut { inner, grads: Vec::new() };
        Engine::new(schedule.clone(), pipe, options).unwrap().run(&mut cut).unwrap();
        assert!(comm.size() == 4);
        cut.grads
    });
    for micro in 0..2 {
        let x = value(micro, &[4, 6]);
        let squares = x.square().unwrap();
        let rows = squares.sum(&[1], Keep::No).unwrap().square().unwrap().sum(&[], Keep::No).unwrap();
        let expected =
            squares.mul(&value(50, &[4, 6])).unwrap().sum(&[], Keep::No).unwrap().add(&rows).unwrap();
        let expected = expected.to_vec::<f32>().unwrap()[0];
        for end in &ends[2..] {
            assert!((end[micro][0] - expected).abs() < 1e-4, "{end:?} instead of {expected}");
        }
    }
}

#[test]
fn a_stage_without_a_mesh_refuses_pieces() {
    let schedule = Arc::new(ScheduleKind::ForwardThenBackward.build(2, 1, 1).unwrap());
    let ends = ranks(2, |comm| {
        let world = World::new(comm.clone());
        let mesh = Mesh::with_ranks(&[("tp", 1)], &[comm.rank()]).unwrap();
        let inner = Inner { mesh, world };
        let options = Options { inner: (comm.rank() == 0).then_some(inner.clone()), ..Options::default() };
        let mut engine = Engine::new(schedule.clone(), comm, options).unwrap();
        engine.run(&mut Cut { inner, grads: Vec::new() }).map(drop).unwrap_err().to_string()
    });
    assert!(ends[1].contains("lies on a mesh, and this stage was given none"), "{ends:?}");
}

#[test]
fn a_tensor_alone_and_a_tuple_give_the_same_gradients() {
    let layers = vec![Layer::Residual, Layer::View, Layer::Recomputed];
    let plan = Plan { layers, tuple: false, ..Plan::new(3, 4) };
    let schedule = ScheduleKind::ZeroBubble.build(3, 4, 1).unwrap();
    assert_eq!(piped(&plan, &schedule, &Options::default()).unwrap(), alone(&plan));
}
