//! How arrays print: a line with dtype and shape, then the values, of large arrays both ends of every dim.

use planaria::array::{Array, DType, Error, Scalar};

use crate::object::scalars;

/// Arrays with more elements are shortened.
const SHOWN: usize = 1000;
/// How many at either end.
const EDGE: usize = 3;

/// `f32[3, 4]`.
pub(crate) fn header(dtype: impl std::fmt::Display, shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("{dtype}[{}]", sizes.join(", "))
}

/// The header and the values.
pub(crate) fn text(array: &Array) -> Result<String, Error> {
    let head = format!("Array {}", header(array.dtype(), array.shape()));
    if array.is_meta() {
        return Ok(format!("{head} on meta"));
    }
    let mut out = format!("{head}\n");
    let values = values(array)?;
    nested(&mut out, array.shape(), array.numel() > SHOWN, &mut values.into_iter(), 1);
    Ok(out)
}

fn values(array: &Array) -> Result<Vec<String>, Error> {
    Ok(scalars(&array.edges()?)?.into_iter().map(|value| one(value, array.dtype())).collect())
}

/// A number with the digits that tell it apart from its neighbours of the same dtype.
fn one(value: Scalar, dtype: DType) -> String {
    match value {
        Scalar::Bool(true) => "True".into(),
        Scalar::Bool(false) => "False".into(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Float(value) if value.is_nan() => "nan".into(),
        Scalar::Float(value) if dtype == DType::F64 => format!("{value:?}"),
        Scalar::Float(value) => format!("{:?}", value as f32),
    }
}

fn nested(
    out: &mut String,
    shape: &[usize],
    short: bool,
    values: &mut impl Iterator<Item = String>,
    depth: usize,
) {
    let [len, inner @ ..] = shape else {
        out.push_str(&values.next().unwrap_or_default());
        return;
    };
    let between = match inner.len() {
        0 => ", ".to_owned(),
        more => format!(",{}{}", "\n".repeat(more.min(2)), " ".repeat(depth)),
    };
    let gap = (short && *len > 2 * EDGE).then_some(EDGE);
    out.push('[');
    for at in 0..if gap.is_some() { 2 * EDGE } else { *len } {
        if at > 0 {
            out.push_str(&between);
        }
        if gap == Some(at) {
            out.push_str("...");
            out.push_str(&between);
        }
        nested(out, inner, short, values, depth + 1);
    }
    out.push(']');
}

/// The same as a table, rows for the last dim but one; of more dims the header alone says the shape.
pub(crate) fn html(array: &Array) -> Result<String, Error> {
    let head = header(array.dtype(), array.shape());
    let body = match array.is_meta() || array.ndim() > 2 {
        true => text(array)?.lines().skip(1).collect::<Vec<_>>().join("\n"),
        false => return table(array, &head),
    };
    Ok(format!("<div><b>Array</b> <code>{head}</code><pre>{}</pre></div>", escape(&body)))
}

fn table(array: &Array, head: &str) -> Result<String, Error> {
    let seen = array.edges()?;
    let texts = values(array)?;
    let columns = seen.shape().last().copied().unwrap_or(1);
    let (rows, gaps) = (seen.numel() / columns.max(1), array.numel() > SHOWN);
    let shortened = |dim: usize| gaps && array.shape().get(dim).is_some_and(|&n| n > 2 * EDGE);
    let (row_gap, column_gap) =
        (array.ndim() == 2 && shortened(0), shortened(array.ndim().saturating_sub(1)));
    let mut out = format!("<div><b>Array</b> <code>{head}</code><table>");
    for row in 0..rows {
        if row_gap && row == EDGE {
            out.push_str("<tr><td>...</td></tr>");
        }
        out.push_str("<tr>");
        for column in 0..columns {
            if column_gap && column == EDGE {
                out.push_str("<td>...</td>");
            }
            out.push_str(&format!("<td>{}</td>", escape(&texts[row * columns + column])));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
    Ok(out)
}

/// Text that HTML shows as it is.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
