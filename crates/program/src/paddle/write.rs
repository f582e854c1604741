//! A program as JSON, byte for byte as Paddle writes it.

use crate::json::Writer;
use crate::node::{Data, Node};
use crate::program::{Attr, Block, Op, Parameter, Program, Region, Value};

/// The bytes of a program's file.
pub fn write(program: &Program) -> String {
    let mut out = Writer::new(program.readable, 320 * program.op_count());
    out.open('{');
    out.key("base_code");
    out.open('{');
    out.key("magic");
    out.string("pir");
    out.key("trainable");
    out.raw(if program.trainable { "true" } else { "false" });
    out.key("version");
    out.integer(program.version as i64);
    out.close('}');
    out.key("program");
    out.open('{');
    out.key("regions");
    out.open('[');
    out.item();
    region(&mut out, &program.body);
    out.close(']');
    out.close('}');
    out.close('}');
    out.finish()
}

/// A node alone, on one line.
pub(crate) fn node_json(value: &Node) -> String {
    let mut out = Writer::new(false, 0);
    node(&mut out, value);
    out.finish()
}

fn list<T>(out: &mut Writer, items: &[T], mut each: impl FnMut(&mut Writer, &T)) {
    out.open('[');
    for item in items {
        out.item();
        each(out, item);
    }
    out.close(']');
}

fn region(out: &mut Writer, region: &Region) {
    out.open('{');
    out.key("#");
    out.string(&region.label);
    out.key("blocks");
    list(out, &region.blocks, block);
    out.close('}');
}

fn block(out: &mut Writer, block: &Block) {
    out.open('{');
    out.key("#");
    out.string(&block.label);
    out.key("args");
    list(out, &block.args, |out, arg| argument(out, arg, None));
    if let Some(kwargs) = &block.kwargs {
        out.key("kwargs");
        list(out, kwargs, |out, (key, arg)| argument(out, arg, Some(key)));
    }
    out.key("ops");
    list(out, &block.ops, op);
    out.close('}');
}

fn argument(out: &mut Writer, value: &Value, key: Option<&str>) {
    out.open('{');
    out.key("#");
    out.integer(value.id.0);
    out.key("TT");
    node(out, &value.ty);
    if let Some(key) = key {
        out.key("key");
        out.string(key);
    }
    out.close('}');
}

fn result(out: &mut Writer, value: &Value) {
    out.open('{');
    out.key("%");
    out.integer(value.id.0);
    out.key("TT");
    node(out, &value.ty);
    out.close('}');
}

fn attr(out: &mut Writer, attr: &Attr) {
    out.open('{');
    out.key("AT");
    node(out, &attr.value);
    out.key("N");
    out.string(&attr.name);
    out.close('}');
}

fn op(out: &mut Writer, op: &Op) {
    out.open('{');
    out.key("#");
    out.string(&op.name);
    if let Some(held) = &op.parameter {
        parameter(out, held, op);
        out.close('}');
        return;
    }
    out.key("A");
    list(out, &op.attrs, attr);
    out.key("I");
    list(out, &op.operands, |out, id| {
        out.open('{');
        out.key("%");
        out.integer(id.0);
        out.close('}');
    });
    out.key("O");
    list(out, &op.results, result);
    if let Some(attrs) = &op.result_attrs {
        out.key("OA");
        list(out, attrs, attr);
    }
    if !op.regions.is_empty() {
        out.key("regions");
        list(out, &op.regions, region);
    }
    out.close('}');
}

fn parameter(out: &mut Writer, parameter: &Parameter, op: &Op) {
    let flags = |out: &mut Writer, flags: &[bool; 3]| {
        for flag in flags {
            out.item();
            out.integer((*flag).into());
        }
    };
    out.key("A");
    out.open('[');
    flags(out, &parameter.flags);
    out.item();
    out.string(&parameter.name);
    out.close(']');
    if let Some(attrs) = &parameter.dist {
        out.key("DA");
        list(out, attrs, attr);
    }
    if let Some(value) = op.results.first() {
        out.key("O");
        result(out, value);
    }
    if let Some(state) = &parameter.state {
        out.key("OA");
        out.open('[');
        flags(out, state);
        out.close(']');
    }
    if let Some(attrs) = &parameter.origin {
        out.key("QA");
        list(out, attrs, attr);
    }
}

fn node(out: &mut Writer, node: &Node) {
    out.open('{');
    out.key("#");
    out.string(&node.kind);
    if let Some(value) = &node.data {
        out.key("D");
        data(out, value);
    }
    if let Some(special) = &node.special {
        out.key("VD");
        out.string(special);
    }
    out.close('}');
}

fn data(out: &mut Writer, value: &Data) {
    match value {
        Data::Null => out.raw("null"),
        Data::Bool(true) => out.raw("true"),
        Data::Bool(false) => out.raw("false"),
        Data::Int(value) => out.integer(*value),
        Data::Real(real) => out.raw(&real.text()),
        Data::Text(text) => out.string(text),
        Data::List(items) => list(out, items, data),
        Data::Map(fields) => {
            out.open('{');
            for (key, value) in fields {
                out.key(key);
                data(out, value);
            }
            out.close('}');
        }
        Data::Node(inner) => node(out, inner),
    }
}
