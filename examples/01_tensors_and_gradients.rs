//! Tensors, operators and gradients: a line is fitted through points, first on one rank, then on four.
//!
//! `cargo run --example 01_tensors_and_gradients`

use planaria::array::ops::Distribution::Uniform;
use planaria::comm::alone;
use planaria::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    // Operators give a `Result`; one `?` at the end of an expression is enough.
    let x = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0], &[4])?;
    println!("x           {x}");
    println!("3x² - 1     {}", (3.0 * (&x * &x)? - &Tensor::from_slice(&[1.0f32], &[1])?)?);

    // Gradients arrive at the tensors that ask for them.
    let w = Tensor::from_slice(&[2.0f32], &[1])?.requires_grad();
    let y = (&x * &w)?.square()?.sum(&[], Keep::No)?;
    y.backward()?;
    println!("Σ(xw)²      {y}, its derivative by w: {}", w.grad().ok_or("no gradient")?);

    // The same function fits a line on one rank and on a mesh; only the order of the sums differs.
    let single = fit(&"x=1".parse()?, &World::new(alone()))?;
    let mesh: Mesh = "dp=4".parse()?;
    let together = threads::run(4, |comm| fit(&mesh, &World::new(comm)));
    println!("\nslope and offset, fitted on one rank: {single:?}");
    for (rank, result) in together.into_iter().enumerate() {
        let result = result?;
        println!("rank {rank} of {mesh} finds               {result:?}");
        if (result[0] - single[0]).abs() > 1e-4 || (result[1] - single[1]).abs() > 1e-4 {
            return Err("the ranks found another line".into());
        }
    }
    Ok(())
}

/// Fits `y = 2x - 1` by gradient descent; the points are cut over the first axis of the mesh.
fn fit(mesh: &Mesh, world: &World) -> Result<[f32; 2], Error> {
    let points = Layout::new(mesh, &Shape::new(&[64])?, &[Placement::shard(0)])?;
    // Random numbers follow from the key and the global index, so each rank makes its own points alone.
    let key = Key::new(7, 0);
    let x = Tensor::random_with(&points, Uniform { low: -1.0, high: 1.0 }, DType::F32, key, world)?;
    let y = (2.0 * &x - &Tensor::from_slice(&[1.0f32], &[1])?)?;

    let parameter = |value: f32| -> Result<Tensor, Error> {
        let whole = Array::full(&[1], value, DType::F32)?;
        Ok(Tensor::place(&whole, mesh, &[Placement::Replicate], world)?.requires_grad())
    };
    let (slope, offset) = (parameter(0.0)?, parameter(0.0)?);
    for _ in 0..200 {
        let error = (&x * &slope + &offset)? - &y;
        let loss = (error?.square()?.sum(&[], Keep::No)? / 64.0)?;
        loss.backward()?;
        for parameter in [&slope, &offset] {
            // Each rank has the gradient of its own points; `settled` sums them.
            let grad = parameter.take_grad().ok_or("no gradient")?.settled()?;
            let next = (parameter.detach() - 0.3 * &grad)?;
            no_grad(|| parameter.set(&[Index::Ellipsis], &next))?;
        }
    }
    Ok([slope.whole()?.to_vec::<f32>()?[0], offset.whole()?.to_vec::<f32>()?[0]])
}
