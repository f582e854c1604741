//! Prints a program. Common kinds have a short form; every other stands as its JSON behind `@`.

use crate::node::{Data, Node};
use crate::paddle::node_json;
use crate::program::{Attr, Block, Op, Parameter, Program, Region, Value, ValueId};
use crate::types::{is_absent, tensor_type, vector_types};
use std::fmt::{self, Display, Formatter, Write};

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Program { version, trainable, readable, body } = self;
        writeln!(f, "program version={version} trainable={trainable} readable={readable}")?;
        region(f, body, 0)
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        op(f, self, 0)
    }
}

fn indent(f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    write!(f, "{:1$}", "", 2 * depth)
}

fn quoted(text: &str) -> String {
    node_json(&Node::plain(text))[5..].trim_end_matches('}').to_string()
}

fn region(f: &mut Formatter<'_>, region: &Region, depth: usize) -> fmt::Result {
    indent(f, depth)?;
    writeln!(f, "region {} {{", quoted(&region.label))?;
    for each in &region.blocks {
        block(f, each, depth + 1)?;
    }
    indent(f, depth)?;
    writeln!(f, "}}")
}

fn block(f: &mut Formatter<'_>, block: &Block, depth: usize) -> fmt::Result {
    indent(f, depth)?;
    write!(f, "block {} (", quoted(&block.label))?;
    separated(f, &block.args, value)?;
    f.write_char(')')?;
    if let Some(kwargs) = &block.kwargs {
        f.write_str(" by name (")?;
        separated(f, kwargs, |f, (name, arg)| {
            write!(f, "{} = ", quoted(name))?;
            value(f, arg)
        })?;
        f.write_char(')')?;
    }
    writeln!(f, " {{")?;
    for each in &block.ops {
        indent(f, depth + 1)?;
        op(f, each, depth + 1)?;
        f.write_char('\n')?;
    }
    indent(f, depth)?;
    writeln!(f, "}}")
}

fn separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    mut each: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            f.write_str(", ")?;
        }
        each(f, item)?;
    }
    Ok(())
}

fn value(f: &mut Formatter<'_>, value: &Value) -> fmt::Result {
    write!(f, "{}: {}", value.id, type_text(&value.ty))
}

fn op(f: &mut Formatter<'_>, op: &Op, depth: usize) -> fmt::Result {
    separated(f, &op.results, |f, value| write!(f, "{}", value.id))?;
    if !op.results.is_empty() {
        f.write_str(" = ")?;
    }
    match &op.parameter {
        Some(held) => parameter(f, held)?,
        None => {
            f.write_str(&name_text(op))?;
            f.write_char('(')?;
            separated(f, &op.operands, |f, id| match *id {
                ValueId::ABSENT => f.write_char('_'),
                id => write!(f, "{id}"),
            })?;
            f.write_char(')')?;
            // Braces of attributes stand before those of regions, so that a reader can tell them apart.
            if !op.attrs.is_empty() || !op.regions.is_empty() {
                f.write_char(' ')?;
                attrs(f, &op.attrs)?;
            }
        }
    }
    if let Some(of_results) = &op.result_attrs {
        f.write_str(" | ")?;
        attrs(f, of_results)?;
    }
    if !op.results.is_empty() {
        f.write_str(" : ")?;
        separated(f, &op.results, |f, value| f.write_str(&type_text(&value.ty)))?;
    }
    if !op.regions.is_empty() {
        f.write_str(" {\n")?;
        for each in &op.regions {
            region(f, each, depth + 1)?;
        }
        indent(f, depth)?;
        f.write_char('}')?;
    }
    Ok(())
}

/// The name with its dialect spelled out, quoted where the file spells it another way.
fn name_text(op: &Op) -> String {
    let full = op.full_name();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if crate::node::spelled(&full) == *op.name && full.contains('.') && full.chars().all(plain) {
        full
    } else {
        quoted(&op.name)
    }
}

fn parameter(f: &mut Formatter<'_>, parameter: &Parameter) -> fmt::Result {
    let flags = |flags: [bool; 3]| flags.map(|flag| if flag { "1" } else { "0" }).join("");
    write!(f, "parameter {} {}", quoted(&parameter.name), flags(parameter.flags))?;
    if let Some(state) = parameter.state {
        write!(f, " state {}", flags(state))?;
    }
    for (word, list) in [("dist", &parameter.dist), ("origin", &parameter.origin)] {
        if let Some(list) = list {
            write!(f, " {word} ")?;
            attrs(f, list)?;
        }
    }
    Ok(())
}

fn attrs(f: &mut Formatter<'_>, list: &[Attr]) -> fmt::Result {
    f.write_char('{')?;
    separated(f, list, |f, attr| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match !attr.name.is_empty() && attr.name.chars().all(plain) {
            true => f.write_str(&attr.name)?,
            false => f.write_str(&quoted(&attr.name))?,
        }
        write!(f, " = {}", attribute_text(&attr.value))
    })?;
    f.write_char('}')
}

/// A type as text, as in `f32[?,16]`.
pub fn type_text(ty: &Node) -> String {
    if is_absent(ty) && *ty == Node::plain("NULL") {
        return "none".to_string();
    }
    if let Some(tensor) = tensor_type(ty)
        && tensor.node().as_ref() == Some(ty)
    {
        return tensor.to_string();
    }
    if let Some(types) = vector_types(ty)
        && &*ty.kind == "0.t_vec"
        && ty.special.is_none()
    {
        let types: Vec<String> = types.iter().map(|ty| type_text(ty)).collect();
        return format!("vec<{}>", types.join(", "));
    }
    format!("@{}", node_json(ty))
}

/// An attribute's value as text: `true`, `3`, `3:i32`, `0.5`, `0.5:f32`, `"text"`, `[...]`, `<1,8>`, `dtype "float32"`.
pub fn attribute_text(node: &Node) -> String {
    let other = || format!("@{}", node_json(node));
    if node.special.is_some() {
        return other();
    }
    match (&*node.kind, &node.data) {
        ("0.a_bool", Some(Data::Bool(value))) => value.to_string(),
        ("0.a_i64", Some(Data::Int(value))) => value.to_string(),
        ("0.a_i32", Some(Data::Int(value))) => format!("{value}:i32"),
        ("0.a_f64", Some(Data::Real(real))) => real.text(),
        ("0.a_f32", Some(Data::Real(real))) => format!("{}:f32", real.text()),
        ("0.a_str", Some(Data::Text(text))) => quoted(text),
        ("1.a_dtype", Some(Data::Text(text))) => format!("dtype {}", quoted(text)),
        ("1.a_intarray", Some(data)) => match data.ints() {
            Some(values) => format!("<{}>", values.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
            None => other(),
        },
        ("0.a_array", Some(Data::List(_))) => match node.items() {
            Some(items) => {
                let items: Vec<String> = items.iter().map(|item| attribute_text(item)).collect();
                format!("[{}]", items.join(", "))
            }
            None => other(),
        },
        _ => other(),
    }
}
