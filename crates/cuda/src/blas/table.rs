//! Algorithms that were found faster than the library's first choice, with the same bits: a line each, by library version,
//! number of multiprocessors and product.

use super::{Algorithm, Machine, Matrix, Product, ProductType};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::str::{FromStr, SplitWhitespace};
use std::sync::OnceLock;

/// What `planaria tune` found on the machines we had.
const KNOWN: &str = include_str!("known.txt");

/// The algorithm for a product, where one is known.
pub(super) fn of(machine: Machine, product: &Product) -> Option<Algorithm> {
    static TABLE: OnceLock<HashMap<(Machine, Product), [u64; 8]>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let own = std::env::var_os("PLANARIA_CUDA_PRODUCTS").map(PathBuf::from);
        let own = own.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        // A table only makes products faster, so a line that cannot be read is as if it were not there.
        KNOWN.lines().chain(own.lines()).filter_map(|line| read(line).ok().flatten()).collect()
    });
    table.get(&(machine, *product)).map(|&data| Algorithm { data })
}

type Row = ((Machine, Product), [u64; 8]);

/// A line of a table; nothing where it is empty or a comment.
fn read(line: &str) -> Result<Option<Row>> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let machine = Machine { library: number(Some(first))?, multiprocessors: number(words.next())? };
    let product = Product::read(&mut words)?;
    let mut data = [0; 8];
    for word in &mut data {
        let text = words.next().ok_or_else(|| wrong("the words of an algorithm", "fewer than eight"))?;
        *word = u64::from_str_radix(text, 16).map_err(|_| wrong("a hexadecimal word", text))?;
    }
    match words.next() {
        None => Ok(Some(((machine, product), data))),
        Some(more) => Err(wrong("the end of the line", more)),
    }
}

/// Reads a line of a table, as `PLANARIA_CUDA_PRODUCTS` names one, and writes it as `tune` would; nothing where it is empty or a comment.
pub fn tuned_line(text: &str) -> Result<Option<String>> {
    let row = read(text)?;
    Ok(row.map(|((machine, product), data)| line(machine, &product, &Algorithm { data })))
}

/// A line of a table.
pub(super) fn line(machine: Machine, product: &Product, algorithm: &Algorithm) -> String {
    let words: Vec<String> = algorithm.data.iter().map(|word| format!("{word:x}")).collect();
    format!("{} {} {product} {}", machine.library, machine.multiprocessors, words.join(" "))
}

fn wrong(expected: &str, found: &str) -> Error {
    Error::Library {
        library: "cublasLt",
        reason: format!("expected {expected} in its table, found {found:?}"),
    }
}

fn number<T: FromStr>(word: Option<&str>) -> Result<T> {
    let word = word.unwrap_or_default();
    word.parse().map_err(|_| wrong("a number", word))
}

/// The types by name.
const TYPES: [(&str, ProductType); 4] = [
    ("f64", ProductType::F64),
    ("f32", ProductType::F32),
    ("bf16", ProductType::BF16),
    ("f16", ProductType::F16),
];

fn type_of(word: Option<&str>) -> Result<ProductType> {
    let word = word.unwrap_or_default();
    let found = TYPES.iter().find(|(name, _)| *name == word);
    found.map(|(_, kind)| *kind).ok_or_else(|| wrong("an element type", word))
}

impl fmt::Display for ProductType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TYPES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name))
    }
}

/// As in `r1536+0`: by rows, 1536 elements apart, 0 from one of a batch to the next.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}+{}", if self.by_rows { 'r' } else { 'c' }, self.step, self.batch_step)
    }
}

impl Matrix {
    fn read(word: Option<&str>) -> Result<Matrix> {
        let word = word.unwrap_or_default();
        let bad = || wrong("a matrix such as r1536+0", word);
        let by_rows = word.starts_with('r');
        let rest = word.strip_prefix(['r', 'c']).ok_or_else(bad)?;
        let (step, batch_step) = rest.split_once('+').ok_or_else(bad)?;
        Ok(Matrix { by_rows, step: number(Some(step))?, batch_step: number(Some(batch_step))? })
    }
}

/// As in `bf16 bf16 set 16384 17920 1536 1 r1536+0 c1536+0 plain 16`.
impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Product { kind, out, add, m, n, k, batch, a, b, bias, alignment } = self;
        let add = if *add { "add" } else { "set" };
        let bias = if *bias { "bias" } else { "plain" };
        write!(f, "{kind} {out} {add} {m} {n} {k} {batch} {a} {b} {bias} {alignment}")
    }
}

impl Product {
    fn read(words: &mut SplitWhitespace<'_>) -> Result<Product> {
        let (kind, out) = (type_of(words.next())?, type_of(words.next())?);
        let one_of = |word: Option<&str>, no: &str, yes: &str| match word.unwrap_or_default() {
            word if word == no => Ok(false),
            word if word == yes => Ok(true),
            word => Err(wrong(&format!("`{no}` or `{yes}`"), word)),
        };
        Ok(Product {
            kind,
            out,
            add: one_of(words.next(), "set", "add")?,
            m: number(words.next())?,
            n: number(words.next())?,
            k: number(words.next())?,
            batch: number(words.next())?,
            a: Matrix::read(words.next())?,
            b: Matrix::read(words.next())?,
            bias: one_of(words.next(), "plain", "bias")?,
            alignment: number(words.next())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_our_table_is_read_and_written_back() {
        for text in KNOWN.lines() {
            let bare = text.split('#').next().unwrap().trim_end();
            match read(text).unwrap() {
                None => assert_eq!(bare, ""),
                Some(((machine, product), data)) => {
                    assert_eq!(line(machine, &product, &Algorithm { data }), bare);
                }
            }
        }
    }

    #[test]
    fn a_product_is_what_its_line_says() {
        let a = Matrix { by_rows: true, step: 1536, batch_step: 7 };
        let b = Matrix { by_rows: false, step: 99, batch_step: 0 };
        for (kind, out, add, bias) in [
            (ProductType::BF16, ProductType::F32, true, false),
            (ProductType::F64, ProductType::F64, false, true),
            (ProductType::F16, ProductType::F16, false, false),
        ] {
            let product =
                Product { kind, out, add, m: 3, n: 5, k: 1 << 40, batch: 2, a, b, bias, alignment: 8 };
            let machine = Machine { library: 130_002, multiprocessors: 132 };
            let algorithm = Algorithm { data: [1, u64::MAX, 0, 4, 5, 6, 7, 8] };
            let text = line(machine, &product, &algorithm);
            assert_eq!(read(&text).unwrap(), Some(((machine, product), algorithm.data)), "{text}");
            assert_eq!(read(&format!("{text}  # a remark")).unwrap().unwrap().1, algorithm.data);
        }
        for bad in ["x", "1 2 bf16", "1 2 bf16 bf17 set 1 1 1 1 r1+0 r1+0 plain 16 0 0 0 0 0 0 0 0"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let good = "1 2 bf16 bf16 set 1 1 1 1 r1+0 r1+0 plain 16 0 0 0 0 0 0 0 0";
        assert!(read(good).unwrap().is_some() && read(&format!("{good} 9")).is_err());
        assert!(read("# only words").unwrap().is_none() && read("").unwrap().is_none());
    }
}
