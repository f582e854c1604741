//! Checkpoints of others, read in place: PyTorch DCP, Paddle, `torch.save`, Hugging Face; and a mapping between names.
//!
//! `cargo run --example 06_checkpoints_of_others`

use planaria::aoa::Program;
use planaria::ckpt::formats::{OpenOptions, open};
use planaria::layout::Region;
use planaria::store::{Local, Store};
use std::sync::Arc;

type Error = Box<dyn std::error::Error>;

const CHECKPOINTS: &[&str] = &[
    "torch-dcp/nested2",
    "torch-dcp/hf_consolidated2",
    "paddle-checkpoints/tp2",
    "formats/nested.pt",
    "formats/p4.pdparams",
];

fn main() -> Result<(), Error> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata");
    let store: Arc<dyn Store> = Arc::new(Local::new(folder));
    for at in CHECKPOINTS {
        // Opening reads headers and metadata. A pickle is data: nothing in it is ever called.
        let source = open(&store, at, &OpenOptions::default())?;
        println!("{at} is {}", source.format);
        for (key, entry) in source.tensors.iter().take(3) {
            // Whatever the format cut a tensor into, it is one value here.
            let bytes = source.read(key)?;
            println!("  {key}: {}{}, {} bytes", entry.dtype, entry.shape, bytes.len());
        }
    }

    // A mapping says what becomes of which tensor: here two halves are joined, and the result is transposed.
    let program = Program::parse("x_0, x_1 -> x, axis=0\nx^T -> y")?;
    let halves = [("x_0", "f32[2,3]"), ("x_1", "f32[2,3]")];
    let catalog = halves.into_iter().map(|(name, text)| tensor(name, text)).collect::<Result<_, Error>>()?;
    let mapping = program.compile(&catalog, None, &planaria::aoa::Options::default())?;
    println!("\n{}", program.statements().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    for target in mapping.targets() {
        let whole = Region::whole(target.tensor().shape());
        for piece in mapping.pieces(target.name(), &whole)? {
            println!("  {}{} comes from {}{}", target.name(), piece.to, piece.source, piece.from);
        }
    }
    Ok(())
}

fn tensor(name: &str, text: &str) -> Result<(String, planaria::aoa::Tensor), Error> {
    let spec: planaria::layout::TensorSpec = text.parse()?;
    let dtype = spec.dtype;
    Ok((name.to_string(), planaria::aoa::Tensor::of(&spec.on(&"x=1".parse()?)?, dtype)))
}
