//! A program drawn: ops from top to bottom in the order of what they need, lines along values.

use crate::node::Node;
use crate::program::{Op, Program, ValueId};
use crate::text::type_text;
use std::collections::HashMap;
use std::fmt::Write;

/// Ops that are drawn; more would be no picture.
const MOST: usize = 4000;

const WIDTH: usize = 190;
const HEIGHT: usize = 34;
const GAP: usize = 24;

struct Drawn {
    text: String,
    detail: String,
    color: &'static str,
    column: usize,
    row: usize,
}

/// The main block of a program as an SVG picture.
pub fn svg(program: &Program) -> String {
    let ops: Vec<&Op> =
        program.block().into_iter().flat_map(|block| &block.ops).filter(drawn).take(MOST).collect();
    let mut makers: HashMap<ValueId, usize> = HashMap::new();
    let (mut boxes, mut filled): (Vec<Drawn>, Vec<usize>) = (Vec::new(), Vec::new());
    for (at, op) in ops.iter().enumerate() {
        let above = op.operands.iter().filter_map(|id| makers.get(id)).map(|&maker| boxes[maker].row + 1);
        let row = above.max().unwrap_or(0);
        filled.resize(filled.len().max(row + 1), 0);
        let column = filled[row];
        filled[row] += 1;
        boxes.push(Drawn { text: title(op), detail: detail(op), color: color(op), column, row });
        makers.extend(op.results.iter().map(|value| (value.id, at)));
    }
    let columns = filled.iter().copied().max().unwrap_or(1).max(1);
    let (width, height) = (columns * (WIDTH + GAP) + GAP, filled.len() * (HEIGHT + GAP) + GAP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let place = |b: &Drawn| (GAP + b.column * (WIDTH + GAP), GAP + b.row * (HEIGHT + GAP));
    for (at, op) in ops.iter().enumerate() {
        for maker in op.operands.iter().filter_map(|id| makers.get(id)).filter(|&&maker| maker < at) {
            let ((x1, y1), (x2, y2)) = (place(&boxes[*maker]), place(&boxes[at]));
            let (x1, y1, x2) = (x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2);
            let middle = (y1 + y2) / 2;
            let _ = writeln!(
                out,
                "<path d=\"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}\" fill=\"none\" stroke=\"#8a8f98\"/>"
            );
        }
    }
    for b in &boxes {
        let (x, y) = place(b);
        let (text, detail) = (escaped(&b.text), escaped(&b.detail));
        let _ = writeln!(
            out,
            "<g><rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"5\" fill=\"{}\" stroke=\"#4a4f57\"/>\
             <text x=\"{}\" y=\"{}\">{text}</text><text x=\"{}\" y=\"{}\" fill=\"#4a4f57\" font-size=\"9\">{detail}</text></g>",
            b.color,
            x + 6,
            y + 14,
            x + 6,
            y + 27
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Numbers that other ops take as settings are not drawn.
fn drawn(op: &&Op) -> bool {
    !(op.is("pd_op", "full_int_array") || op.is("pd_op", "full") || op.is("builtin", "combine"))
}

fn title(op: &Op) -> String {
    let named = op.attr("name").and_then(Node::as_text).map(str::to_string);
    match op.held() {
        Some(held) => held.name.to_string(),
        None => named.unwrap_or_else(|| op.full_name()),
    }
}

fn detail(op: &Op) -> String {
    let Some(value) = op.results.first() else { return String::new() };
    format!("{} {}", value.id, type_text(&value.ty))
}

fn color(op: &Op) -> &'static str {
    match op.parts() {
        _ if op.held().is_some() => "#e8f0d8",
        ("pd_op", "data" | "fetch") => "#dbe8f7",
        _ if !op.regions.is_empty() => "#f7e3db",
        _ => "#f4f4f6",
    }
}

/// Text of a picture, cut to what fits.
fn escaped(text: &str) -> String {
    let short: String = if text.chars().count() > 34 {
        let end: Vec<char> = text.chars().rev().take(32).collect();
        format!("…{}", end.into_iter().rev().collect::<String>())
    } else {
        text.to_string()
    };
    short.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
