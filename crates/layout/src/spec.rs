//! Tensor descriptions by axis name, and the text forms of shapes and layouts.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::placement::Placement;
use crate::shape::{Dims, Shape};
use crate::text::Scan;
use std::{fmt, str::FromStr};

/// A tensor and how it is placed, by axis name: valid on any mesh that has these axes.
///
/// Text form: `f32[4096,1024] @ dp:R tp:S1`, or `f32[4096,1024]` when no axis is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Shape,
    /// Placements by axis name; axes not named hold copies.
    pub placements: Vec<(String, Placement)>,
}

impl TensorSpec {
    /// The layout on a mesh that has all named axes.
    pub fn on(&self, mesh: &Mesh) -> Result<Layout> {
        place(mesh, &self.shape, &self.placements)
    }
}

fn place(mesh: &Mesh, shape: &Shape, named: &[(String, Placement)]) -> Result<Layout> {
    let mut placements: Vec<Option<Placement>> = vec![None; mesh.naxes()];
    for (name, placement) in named {
        if placements[mesh.axis(name)?].replace(*placement).is_some() {
            return Err(Error::DuplicateAxis { axis: name.clone() });
        }
    }
    let placements: Vec<Placement> =
        placements.into_iter().map(|p| p.unwrap_or(Placement::Replicate)).collect();
    Layout::new(mesh, shape, &placements)
}

fn write_named<'a>(
    f: &mut fmt::Formatter<'_>,
    named: impl Iterator<Item = (&'a str, &'a Placement)>,
) -> fmt::Result {
    for (i, (name, placement)) in named.enumerate() {
        write!(f, "{}{name}:{placement}", if i == 0 { " @ " } else { " " })?;
    }
    Ok(())
}

/// `[4096,1024] @ dp:R tp:S1`, up to the end or the word `on`.
fn scan_placed(scan: &mut Scan<'_>) -> Result<(Shape, Vec<(String, Placement)>)> {
    let mut dims = Dims::new();
    scan.list(|scan| {
        dims.push(scan.number()?);
        Ok(())
    })?;
    let shape = Shape::from_dims(dims)?;
    let mut named: Vec<(String, Placement)> = Vec::new();
    scan.spaces();
    if scan.eat("@") {
        scan.spaces();
        while !scan.is_done() && !scan.looking_at("on ") {
            let name = scan.word().to_string();
            if name.is_empty() {
                return Err(scan.error("expected 'axis:placement'"));
            }
            scan.expect(":")?;
            let placement = Placement::scan(scan)?;
            if named.iter().any(|(other, _)| *other == name) {
                return Err(Error::DuplicateAxis { axis: name });
            }
            named.push((name, placement));
            scan.gap()?;
        }
        if named.is_empty() {
            return Err(scan.error("expected 'axis:placement'"));
        }
    }
    Ok((shape, named))
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)?;
        write_named(f, self.placements.iter().map(|(name, placement)| (name.as_str(), placement)))
    }
}

impl FromStr for TensorSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<TensorSpec> {
        let mut scan = Scan::new("tensor", text);
        let dtype = scan.word().parse()?;
        let (shape, placements) = scan_placed(&mut scan)?;
        scan.end()?;
        Ok(TensorSpec { dtype, shape, placements })
    }
}

impl Layout {
    /// This layout with an element type and without its mesh.
    pub fn to_spec(&self, dtype: DType) -> TensorSpec {
        let names = self.mesh().axes().iter().map(|axis| axis.name.clone());
        TensorSpec {
            dtype,
            shape: self.shape().clone(),
            placements: names.zip(self.placements().iter().copied()).collect(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shape())?;
        write_named(f, self.mesh().axes().iter().map(|a| a.name.as_str()).zip(self.placements()))?;
        write!(f, " on {}", self.mesh())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Layout> {
        let mut scan = Scan::new("layout", text);
        let (shape, named) = scan_placed(&mut scan)?;
        scan.spaces();
        scan.expect("on ")?;
        let mesh: Mesh = scan.rest().parse()?;
        place(&mesh, &shape, &named)
    }
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Shape> {
        let mut scan = Scan::new("shape", text);
        let mut dims = Dims::new();
        scan.list(|scan| {
            dims.push(scan.number()?);
            Ok(())
        })?;
        scan.end()?;
        Shape::from_dims(dims)
    }
}
