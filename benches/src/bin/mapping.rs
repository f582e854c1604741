//! `mapping`: compiles the mapping of a model with 60 layers of 256 experts, asks for every tensor, and undoes it.
//!
//! Bar: compiled in under one second in a release build (the reference needs 36 s on such a model).

use anyhow::{Result, ensure};
use planaria_aoa::{Catalog, Options, Program, Tensor, Ties};
use planaria_layout::{DType, Mesh, Region, Shape, TensorSpec};
use std::time::Instant;

const LAYERS: usize = 60;
const EXPERTS: usize = 256;
const HIDDEN: usize = 7168;
const FFN: usize = 2048;

/// What a model of this kind needs: gate and up fused for each expert, down transposed.
const TEXT: &str = "
l.$LAYER_ID.mlp.experts.$EXPERT_ID.gate_proj.weight^T, l.$LAYER_ID.mlp.experts.$EXPERT_ID.up_proj.weight^T \
    -> l.$LAYER_ID.mlp.experts.$EXPERT_ID.up_gate_proj.weight, fused_ffn
l.$LAYER_ID.mlp.experts.$EXPERT_ID.down_proj.weight^T -> l.$LAYER_ID.mlp.experts.$EXPERT_ID.down_proj.weight
";

fn files() -> Result<Catalog> {
    let mut files = Catalog::new();
    let tensor = |dims: [usize; 2]| Ok::<_, anyhow::Error>(Tensor::new(Shape::new(&dims)?, DType::BF16));
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            let name = |part: &str| format!("l.{layer}.mlp.experts.{expert}.{part}.weight");
            files.insert(name("gate_proj"), tensor([FFN, HIDDEN])?);
            files.insert(name("up_proj"), tensor([FFN, HIDDEN])?);
            files.insert(name("down_proj"), tensor([HIDDEN, FFN])?);
        }
    }
    Ok(files)
}

fn model() -> Result<Catalog> {
    let mut model = Catalog::new();
    let mesh: Mesh = "tp=4".parse()?;
    let tensor = |text: String| {
        let spec: TensorSpec = text.parse()?;
        Ok::<_, anyhow::Error>(Tensor::of(&spec.on(&mesh)?, spec.dtype))
    };
    let up_gate = tensor(format!("bf16[{HIDDEN},{}] @ tp:S1", 2 * FFN))?;
    let down = tensor(format!("bf16[{FFN},{HIDDEN}] @ tp:S0"))?;
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            let name = |part: &str| format!("l.{layer}.mlp.experts.{expert}.{part}.weight");
            model.insert(name("up_gate_proj"), up_gate.clone());
            model.insert(name("down_proj"), down.clone());
        }
    }
    Ok(model)
}

fn main() -> Result<()> {
    let (files, model) = (files()?, model()?);
    println!("{} source tensors, {} target tensors", files.len(), model.len());
    let start = Instant::now();
    let program = Program::parse(TEXT)?;
    let mapping = program.compile(&files, Some(&model), &Options::default())?;
    let compiled = start.elapsed();
    println!("compiled in {:.0} ms (bar 1000)", compiled.as_secs_f64() * 1e3);

    let start = Instant::now();
    let mut pieces = 0;
    for target in mapping.targets() {
        pieces += mapping.pieces(target.name(), &Region::whole(target.tensor().shape()))?.len();
    }
    println!("{pieces} pieces of all targets in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);

    let start = Instant::now();
    let back = mapping.inverse(Ties::Refuse)?;
    println!("inverse to {} tensors in {:.0} ms", back.targets().len(), start.elapsed().as_secs_f64() * 1e3);
    ensure!(back.targets().len() == files.len(), "the inverse makes other tensors");
    ensure!(compiled.as_secs_f64() < 1.0, "the bar is missed");
    Ok(())
}
