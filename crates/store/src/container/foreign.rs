//! Element types that are carried from file to file as bytes: nothing here computes with them.

use planaria_layout::{DType, Dims, Shape};

/// How the elements of a carrier stand for those of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// One for one.
    Same,
    /// A last dim of two for every element.
    Pair,
    /// Two elements in every byte; torch counts the bytes, safetensors files the elements.
    Packed,
}

/// A type that files hold and no array has.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its name here.
    pub name: &'static str,
    /// Its name in torch.
    pub torch: &'static str,
    /// Its name in safetensors files, where they have it.
    pub safetensors: Option<&'static str>,
    /// The type whose bytes stand for its bytes.
    pub carrier: DType,
    fit: Fit,
}

/// All of them.
static TYPES: [Foreign; 7] = [
    Foreign::new("complex32", "complex32", None, DType::U32, Fit::Same),
    Foreign::new("complex64", "complex64", Some("C64"), DType::U64, Fit::Same),
    Foreign::new("complex128", "complex128", None, DType::U64, Fit::Pair),
    Foreign::new("f8e8m0", "float8_e8m0fnu", Some("F8_E8M0"), DType::U8, Fit::Same),
    Foreign::new("f8e4m3fnuz", "float8_e4m3fnuz", Some("F8_E4M3FNUZ"), DType::U8, Fit::Same),
    Foreign::new("f8e5m2fnuz", "float8_e5m2fnuz", Some("F8_E5M2FNUZ"), DType::U8, Fit::Same),
    Foreign::new("f4x2", "float4_e2m1fn_x2", Some("F4"), DType::U8, Fit::Packed),
];

impl Foreign {
    const fn new(
        name: &'static str,
        torch: &'static str,
        safetensors: Option<&'static str>,
        carrier: DType,
        fit: Fit,
    ) -> Foreign {
        Foreign { name, torch, safetensors, carrier, fit }
    }

    /// The type of this name here.
    pub fn named(name: &str) -> Option<&'static Foreign> {
        TYPES.iter().find(|foreign| foreign.name == name)
    }

    /// The type of this name in torch.
    pub fn of_torch(name: &str) -> Option<&'static Foreign> {
        TYPES.iter().find(|foreign| foreign.torch == name)
    }

    /// The type of this name in safetensors files.
    pub(super) fn of_safetensors(name: &str) -> Option<&'static Foreign> {
        TYPES.iter().find(|foreign| foreign.safetensors == Some(name))
    }

    /// Elements of the carrier that one element, of those that torch counts, stands for.
    pub fn per_element(&self) -> usize {
        if self.fit == Fit::Pair { 2 } else { 1 }
    }

    /// Extents that torch counts, from those of the carrier.
    pub fn extents<'e>(&self, carried: &'e [usize]) -> &'e [usize] {
        match (self.fit, carried) {
            (Fit::Pair, [extents @ .., _]) => extents,
            _ => carried,
        }
    }

    /// Extents of the carrier, from those in a safetensors file; none where no whole number of bytes holds a row.
    pub(super) fn carried_in_file(&self, shape: &Shape) -> Option<Shape> {
        let mut dims = Dims::from_slice(shape);
        match (self.fit, dims.last_mut()) {
            (Fit::Packed, Some(last)) if last.is_multiple_of(2) => *last /= 2,
            (Fit::Packed, _) => return None,
            _ => {}
        }
        Shape::from_dims(dims).ok()
    }

    /// The other way round.
    pub(super) fn in_file(&self, carried: &Shape) -> Dims {
        let mut dims = Dims::from_slice(carried);
        if let (Fit::Packed, Some(last)) = (self.fit, dims.last_mut()) {
            *last *= 2;
        }
        dims
    }
}
