//! `program`: a program of 20,000 ops read, checked by its form, and written.
//!
//! Bars: 0.1 s each, and 10 times the file's size of memory.

use anyhow::{Result, ensure};
use planaria_bench::measure::status;
use planaria_program::{Program, paddle, parse};
use std::fmt::Write;
use std::time::Instant;

const OPS: usize = 20_000;

/// Layers of a product, a sum and an activation, as Paddle writes them.
fn program() -> Result<Program> {
    let mut text = String::from(
        "program version=4 trainable=true readable=false\nregion \"region_0\" { block \"block_0\" () {\n",
    );
    let flags = "| {stop_gradient = [false]}";
    writeln!(
        text,
        "%1 = pd_op.data() {{name = \"x\", shape = <-1,64>, dtype = dtype \"float32\", place = @{{\"#\":\"1.a_place\",\"D\":[0,0,\"\"]}}}} {flags} : f32[?,64]"
    )?;
    let mut last = 1;
    for layer in 0..OPS / 5 {
        let id = last + 1;
        let from = if layer == 0 { 1 } else { last };
        let names = format!("struct_name = \"/Block_{}/Linear/\"", layer % 32);
        writeln!(
            text,
            "%{id} = parameter \"linear_{layer}.w_0\" 011 state 101 dist {{}} origin {{}} : f32[64,64]"
        )?;
        writeln!(
            text,
            "%{} = parameter \"linear_{layer}.b_0\" 011 state 101 dist {{}} origin {{}} : f32[64]",
            id + 1
        )?;
        writeln!(
            text,
            "%{} = pd_op.matmul(%{from}, %{id}) {{transpose_x = false, transpose_y = false, {names}}} {flags} : f32[?,64]",
            id + 2
        )?;
        writeln!(text, "%{} = pd_op.add(%{}, %{}) {{{names}}} {flags} : f32[?,64]", id + 3, id + 2, id + 1)?;
        writeln!(text, "%{} = pd_op.relu(%{}) {flags} : f32[?,64]", id + 4, id + 3)?;
        last = id + 4;
    }
    text.push_str("} }");
    Ok(parse(&text)?)
}

fn main() -> Result<()> {
    let file = paddle::write(&program()?).into_bytes();
    let before = status("VmRSS:").unwrap_or(0);
    let (mut read, mut written) = (Vec::new(), Vec::new());
    let mut kept = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        let program = paddle::read(&file)?;
        read.push(start.elapsed());
        let start = Instant::now();
        let again = paddle::write(&program);
        written.push(start.elapsed());
        ensure!(again.as_bytes() == file, "the file does not come back");
        kept.push(program);
    }
    read.sort();
    written.sort();
    let held = status("VmRSS:").unwrap_or(0).saturating_sub(before) as f64 / kept.len() as f64;
    let size = file.len() as f64;
    println!(
        "{OPS} ops, {:.1} MB: read {:.1?}, write {:.1?}, memory {:.1} times the file",
        size / 1e6,
        read[read.len() / 2],
        written[written.len() / 2],
        held / size
    );
    Ok(())
}
