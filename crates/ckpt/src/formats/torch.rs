//! Tensors that torch pickled: `torch.save` archives and the items of DCP files.

use super::archives::check_member;
use super::numpy::Found;
use super::pickle::{self, Id, Node, Tree};
use super::source::{Builder, Format, Key, Source, Stored, byte_len};
use super::zip::{Archive, looks_like_zip};
use crate::error::{Error, Result};
use planaria_layout::{DType, Dims, Shape};
use planaria_store::container::Foreign;
use planaria_store::{Reader, Store, join};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// Nesting of containers that is followed when looking for tensors.
const DEPTH: usize = 64;

/// An element type, and the one that its bytes truly are.
pub(super) type Element = (DType, Option<&'static Foreign>);

/// The element type of `torch.bfloat16` and its like.
pub(super) fn element(tree: &Tree, id: Id) -> Option<Element> {
    match tree.global(id)? {
        ("torch", name) => element_named(name),
        _ => None,
    }
}

fn element_named(name: &str) -> Option<Element> {
    let foreign = || Foreign::of_torch(name).map(|foreign| (foreign.carrier, Some(foreign)));
    dtype_named(name).map(|dtype| (dtype, None)).or_else(foreign)
}

fn dtype_named(name: &str) -> Option<DType> {
    Some(match name {
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "int16" | "short" => DType::I16,
        "int32" | "int" => DType::I32,
        "int64" | "long" => DType::I64,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" | "float" => DType::F32,
        "float64" | "double" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        _ => return None,
    })
}

/// The element type of a storage class; `None` inside for untyped ones.
fn storage_element(class: (&str, &str)) -> Option<Option<Element>> {
    let ("torch" | "torch.cuda" | "torch.storage", name) = class else { return None };
    let name = match name.strip_suffix("Storage")? {
        "Untyped" | "_Untyped" => return Some(None),
        "Float" => "float32",
        "Double" => "float64",
        "Half" => "float16",
        "BFloat16" => "bfloat16",
        "Long" => "int64",
        "Int" => "int32",
        "Short" => "int16",
        "Char" => "int8",
        "Byte" => "uint8",
        "Bool" => "bool",
        "ComplexFloat" => "complex64",
        "ComplexDouble" => "complex128",
        _ => return None,
    };
    element_named(name).map(Some)
}

/// The pickle of an archive and where its storages lie.
pub(super) struct Pickled<'a> {
    archive: Archive<'a>,
    pub(super) tree: Tree,
}

impl<'a> Pickled<'a> {
    /// Reads the pickle of the archive in this range of the file.
    pub(super) fn open(file: &'a dyn Reader, range: Range<u64>) -> Result<Pickled<'a>> {
        let archive = Archive::open(file, range)?;
        let member = archive.member("data.pkl")?;
        check_member(file, &member)?;
        let Range { start, end } = member.range;
        let tree = pickle::read_at(file, start, end, &pickle::Limits::default())?;
        Ok(Pickled { archive, tree })
    }

    /// The tensor at a node: nothing of the kind, a tensor, or one that cannot be read.
    pub(super) fn tensor(&self, id: Id) -> Result<Option<Stored>> {
        match find(&self.tree, id, WRAPPERS) {
            None => Ok(None),
            Some(Err(what)) => Err(self.refuse(what)),
            Some(Ok(view)) => self.place(&view).map(Some),
        }
    }

    /// The file the archive lies in.
    fn file(&self) -> &'a dyn Reader {
        self.archive.file()
    }

    fn refuse(&self, what: impl Into<String>) -> Error {
        Error::Unsupported { file: self.archive.file().name().to_string(), what: what.into() }
    }

    /// From elements of a storage to bytes of the file.
    fn place(&self, view: &View) -> Result<Stored> {
        let storage = self.archive.require(&format!("data/{}", view.storage))?;
        let size = view.dtype.size();
        let strides = strides_if_odd(&view.shape, &view.strides);
        let span = match &strides {
            None => byte_len(&view.shape, view.dtype),
            Some(_) => {
                let last = view
                    .shape
                    .iter()
                    .zip(&view.strides)
                    .try_fold(0usize, |sum, (&d, &s)| sum.checked_add((d - 1).checked_mul(s)?));
                let span = last.and_then(|last| last.checked_add(1)?.checked_mul(size));
                span.ok_or_else(|| self.refuse("a view whose strides lead out of memory"))? as u64
            }
        };
        let start = (view.offset as u64).checked_mul(size as u64).and_then(|o| o.checked_add(storage.start));
        if byte_len(&view.shape, view.dtype) > span.saturating_add(REPEATED) {
            return Err(self.refuse(format!("a tensor of shape {} that repeats {span} bytes", view.shape)));
        }
        match start.and_then(|start| Some((start, start.checked_add(span)?))) {
            Some((offset, end)) if end <= storage.end => {
                let (dtype, shape, foreign) = (view.dtype, view.shape.clone(), view.foreign);
                Ok(Stored { dtype, shape, offset, len: span, strides, foreign })
            }
            // A tensor without elements may point anywhere.
            _ if span == 0 => Ok(Stored {
                dtype: view.dtype,
                shape: view.shape.clone(),
                offset: storage.start,
                len: 0,
                strides: None,
                foreign: view.foreign,
            }),
            _ => Err(Error::Malformed {
                file: self.archive.file().name().to_string(),
                what: format!("a tensor reaches past its storage '{}'", view.storage),
            }),
        }
    }
}

/// Bytes that a view may have beyond its storage, by repeating elements: a tiny file must not become terabytes.
const REPEATED: u64 = 4 << 30;

/// A tensor as a view of a storage.
struct View {
    storage: String,
    dtype: DType,
    foreign: Option<&'static Foreign>,
    offset: usize,
    shape: Shape,
    strides: Dims,
}

/// Wrappers around a tensor that are looked through, such as a parameter of a class of its own.
const WRAPPERS: usize = 8;

fn find(tree: &Tree, id: Id, depth: usize) -> Found<View> {
    let (object, global) = tree.object(id)?;
    call(tree, global, object.args, depth)
}

/// What a call of one of torch's rebuilding functions stands for.
fn call(tree: &Tree, global: (&str, &str), args: Id, depth: usize) -> Found<View> {
    let args = tree.items(args)?;
    let depth = depth.checked_sub(1)?;
    match global {
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => match args {
            [storage, offset, shape, strides, rest @ ..] => Some(
                unmarked(tree, rest.get(2))
                    .and_then(|()| view(tree, *storage, *offset, *shape, *strides, None)),
            ),
            _ => Some(Err("a tensor without its arguments".to_string())),
        },
        ("torch._utils", "_rebuild_tensor_v3") => match args {
            [storage, offset, shape, strides, _, _, element, rest @ ..] => Some(
                unmarked(tree, rest.first())
                    .and_then(|()| view(tree, *storage, *offset, *shape, *strides, Some(*element))),
            ),
            _ => Some(Err("a tensor without its arguments".to_string())),
        },
        // Its integers mean nothing without the quantizer, which no other format has a place for.
        ("torch._utils", "_rebuild_qtensor") => {
            Some(Err("a quantized tensor; save `tensor.dequantize()`, or \
             `tensor.int_repr()` beside its scale and zero point"
                .to_string()))
        }
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
            find(tree, *args.first()?, depth)
        }
        ("torch._tensor", "_rebuild_from_type_v2") => match args {
            [function, _class, inner, ..] => call(tree, tree.global(*function)?, *inner, depth),
            _ => None,
        },
        _ => None,
    }
}

/// Refuses tensors that are to be negated or conjugated when read: their bytes are not their values.
fn unmarked(tree: &Tree, marks: Option<&Id>) -> Result<(), String> {
    let marks = marks.and_then(|marks| tree.dict(*marks)).unwrap_or_default();
    match marks.iter().find(|(_, set)| tree.bool(**set) == Some(true)) {
        Some((mark, _)) => {
            Err(format!("a tensor stored with the mark '{mark}' (save `tensor.resolve_{mark}()`)"))
        }
        None => Ok(()),
    }
}

fn view(
    tree: &Tree,
    storage: Id,
    offset: Id,
    shape: Id,
    strides: Id,
    element: Option<Id>,
) -> Result<View, String> {
    let Node::Persistent(id) = tree.node(storage) else {
        return Err("a tensor whose storage is inside the pickle".to_string());
    };
    let parts = tree.items(*id).unwrap_or_default();
    let [_, class, name, ..] = parts else {
        return Err("a storage without class and name".to_string());
    };
    let class = tree.global(*class).ok_or("a storage whose class has no name")?;
    let untyped =
        storage_element(class).ok_or_else(|| format!("the storage class {}.{}", class.0, class.1))?;
    let named = element.and_then(|id| self::element(tree, id));
    let (dtype, foreign) = match (named, untyped) {
        (Some(element), _) | (None, Some(element)) => element,
        (None, None) => {
            let name = element.and_then(|id| tree.global(id)).map_or("without a name", |(_, name)| name);
            return Err(format!("elements of the unknown type {name}"));
        }
    };
    let storage = tree.text(*name).ok_or("a storage without a name")?.to_string();
    if storage.contains(['/', '\\']) {
        return Err(format!("the storage name '{storage}'"));
    }
    let shape = tree.sizes(shape).ok_or("a tensor whose shape is not a list of sizes")?;
    let strides = tree.sizes(strides).filter(|strides| strides.len() == shape.len());
    let (mut shape, mut strides) = (shape, strides.ok_or("a tensor whose strides do not fit its shape")?);
    let mut offset = tree.size(offset).ok_or("a tensor whose offset is not a size")?;
    let per = foreign.map_or(1, Foreign::per_element);
    if per > 1 {
        let wide = |count: usize| count.checked_mul(per).ok_or("a view that leads out of memory");
        offset = wide(offset)?;
        strides = strides.into_iter().map(wide).chain([Ok(1)]).collect::<Result<_, _>>()?;
        shape.push(per);
    }
    let shape = Shape::new(&shape).map_err(|error| error.to_string())?;
    Ok(View { storage, dtype, foreign, offset, shape, strides: strides.into() })
}

/// The strides, unless they are those of row-major order. Dims of one element may have any.
fn strides_if_odd(shape: &Shape, strides: &[usize]) -> Option<Dims> {
    if shape.numel() == 0 {
        return None;
    }
    let mut expected = 1;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent > 1 && stride != expected {
            return Some(Dims::from_slice(strides));
        }
        expected *= extent;
    }
    None
}

/// A `torch.save` file: every tensor in it, named by its path, and the rest as JSON.
pub(super) fn open_file(store: &Arc<dyn Store>, folder: &str, names: &[String]) -> Result<Source> {
    let mut builder = Builder::new(store, folder, Format::TorchSave);
    for name in names {
        let full = join(folder, name);
        let file = builder.open(name, name)?;
        if !looks_like_zip(&*file)? {
            let what = "it is not a zip archive; files of torch before 1.6 must be saved again".to_string();
            return Err(Error::Unsupported { file: full, what });
        }
        let pickled = Pickled::open(&*file, 0..file.size())?;
        builder.archives.insert((full.clone(), 0, file.size()));
        walk(&mut builder, &pickled, &full, ("", &[]))?;
    }
    builder.finish()
}

/// Most containers of tensors and values in them.
const PLACES: usize = 1 << 20;

/// Adds what the pickle holds: tensors under their path, other values as JSON. `path` is where the whole of it stands.
pub(super) fn walk(
    builder: &mut Builder,
    pickled: &Pickled<'_>,
    file: &str,
    (name, path): (&str, &[Value]),
) -> Result<()> {
    let mut walk = Walk { builder, pickled, file, budget: PLACES };
    let root = pickled.tree.root();
    if pickled.tree.holds_stored(root) && pickled.tree.values(root) == u64::MAX {
        return Err(walk.refuse("its values share their parts too often, or refer to themselves"));
    }
    walk.visit(root, name, path, DEPTH)
}

struct Walk<'w, 'a> {
    builder: &'w mut Builder,
    pickled: &'w Pickled<'a>,
    file: &'w str,
    budget: usize,
}

impl Walk<'_, '_> {
    fn refuse(&self, what: impl Into<String>) -> Error {
        Error::Unsupported { file: self.file.to_string(), what: what.into() }
    }

    /// A value under its name, which stands at `path` in what was saved.
    fn visit(&mut self, id: Id, name: &str, path: &[Value], depth: usize) -> Result<()> {
        let tree = &self.pickled.tree;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.refuse("its containers of tensors are nested too deeply"));
        };
        let Some(budget) = self.budget.checked_sub(1) else {
            let what = format!("it has more than {PLACES} values in containers of tensors");
            return Err(self.refuse(what));
        };
        self.budget = budget;
        let stored = self.pickled.tensor(id)?;
        if stored.is_some() || !tree.holds_stored(id) {
            if self.builder.paths.insert(name.to_string(), Value::Array(path.to_vec())).is_some() {
                let (first, second) = (self.file.to_string(), self.file.to_string());
                return Err(Error::Duplicate { tensor: name.to_string(), first, second });
            }
            let Some(stored) = stored else {
                let name = if name.is_empty() { self.file } else { name };
                return self.builder.keep(name.to_string(), tree, id, self.pickled.file());
            };
            let name = if name.is_empty() { "tensor" } else { name };
            return self.builder.whole(Key::model(name), self.file, &stored);
        }
        if let Some(pairs) = tree.pairs(id) {
            for &(key, value) in pairs {
                let key = match tree.node(key) {
                    Node::Text(text) => text.to_string(),
                    Node::Int(number) => number.to_string(),
                    _ => return Err(self.unknown(key, name)),
                };
                self.visit_below((name, path), &key.clone(), key.into(), value, depth)?;
            }
            return Ok(());
        }
        if let Some(items) = tree.items(id) {
            for (number, &item) in items.iter().enumerate() {
                self.visit_below((name, path), &number.to_string(), number.into(), item, depth)?;
            }
            return Ok(());
        }
        Err(self.unknown(id, name))
    }

    fn visit_below(
        &mut self,
        (name, path): (&str, &[Value]),
        key: &str,
        step: Value,
        id: Id,
        depth: usize,
    ) -> Result<()> {
        let name = if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        self.visit(id, &name, &[path, &[step]].concat(), depth)
    }

    /// Tensor data inside something we do not understand must not be dropped in silence.
    fn unknown(&self, id: Id, name: &str) -> Error {
        let class = self.pickled.tree.object(id).map_or_else(
            || "a value".to_string(),
            |(_, (module, name))| format!("an object of {module}.{name}"),
        );
        self.refuse(format!("{class} at '{name}' holds tensor data in a way that is not known"))
    }
}
