//! Several adapters as one: factors added, put side by side, or taken again from the sum of their products.

use crate::error::{Error, Result};
use crate::merge::{Merge, Options};
use crate::method::Range;
use crate::method::sparsify::Stream;
use crate::model::adapter::{Adapter, Parts};
use crate::result::Outcome;
use crate::values::{Held, Values, whole};
use extents::{extents, ranks, useful, widest};
use planaria_array::promote;
use planaria_layout::{DType, Shape};
use planaria_nn::lora::{LoraConfig, Names, PREFIX};
use planaria_nn::svd::{Matrix, largest, rows_of};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

mod extents;

/// What is pruned before things are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prune {
    Nothing,
    Magnitude,
    Random,
}

/// How adapters are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// Factors side by side: exact, and as large as all together.
    cat: bool,
    /// What is combined are the products of the factors, and new factors are taken from the result. Together with `cat`: only
    /// where a rank is asked for.
    products: bool,
    prune: Prune,
    /// Only what agrees with the sign of most is added.
    elect: bool,
}

/// Every name of a way to combine.
const NAMES: [(&str, Combination); 12] = {
    const fn of(cat: bool, products: bool, prune: Prune, elect: bool) -> Combination {
        Combination { cat, products, prune, elect }
    }
    [
        ("exact", of(true, true, Prune::Nothing, false)),
        ("linear", of(false, false, Prune::Nothing, false)),
        ("cat", of(true, false, Prune::Nothing, false)),
        ("svd", of(false, true, Prune::Nothing, false)),
        ("ties", of(false, false, Prune::Magnitude, true)),
        ("ties_svd", of(false, true, Prune::Magnitude, true)),
        ("dare_linear", of(false, false, Prune::Random, false)),
        ("dare_ties", of(false, false, Prune::Random, true)),
        ("dare_linear_svd", of(false, true, Prune::Random, false)),
        ("dare_ties_svd", of(false, true, Prune::Random, true)),
        ("magnitude_prune", of(false, false, Prune::Magnitude, false)),
        ("magnitude_prune_svd", of(false, true, Prune::Magnitude, false)),
    ]
};

impl Combination {
    /// What is done: an exact combination is side by side, unless a rank is asked for.
    fn resolved(self, rank: Option<usize>) -> Combination {
        match (self.cat && self.products, rank) {
            (false, _) => self,
            (true, None) => Combination { products: false, ..self },
            (true, Some(_)) => Combination { cat: false, ..self },
        }
    }
}

impl FromStr for Combination {
    type Err = Error;

    fn from_str(text: &str) -> Result<Combination> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, combination)| *combination).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            Error::request(format!(
                "'{text}' is not a way to combine adapters; use one of {}",
                known.join(", ")
            ))
        })
    }
}

/// How the majority sign is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Majority {
    /// By the sum of the values.
    #[default]
    Total,
    /// By the sum of their signs.
    Frequency,
}

impl FromStr for Majority {
    type Err = Error;

    fn from_str(text: &str) -> Result<Majority> {
        match text {
            "total" => Ok(Majority::Total),
            "frequency" => Ok(Majority::Frequency),
            _ => Err(Error::request(format!(
                "'{text}' is not a way to find the majority sign; use total or frequency"
            ))),
        }
    }
}

/// What to combine.
#[derive(Clone, Debug)]
pub struct CombineOptions {
    /// How.
    pub combination: Combination,
    /// Share of the elements that pruning keeps.
    pub density: f64,
    /// How the majority sign is found.
    pub majority: Majority,
    /// Rank of factors that are taken from products; the largest of the sources when absent.
    pub rank: Option<usize>,
    /// Factors that are taken from products stay within this quantile of their values.
    pub clamp: Option<f64>,
    /// Seed of random pruning.
    pub seed: u64,
}

/// One adapter with its weight.
struct Input {
    adapter: Adapter,
    weight: f64,
}

/// The factors of one module in one adapter.
struct Source {
    number: usize,
    weight: f64,
    scale: f64,
    rank: usize,
    /// `[rank, in]`.
    down: Vec<f64>,
    /// `[out, rank]`.
    up: Vec<f64>,
}

/// What is known of one module.
struct Combined<'a> {
    name: &'a str,
    out: usize,
    inner: usize,
    sources: Vec<Source>,
    asked: &'a CombineOptions,
    rank: usize,
}

/// Tensors by name.
type Tensors = Vec<(String, Arc<dyn Values>)>;

/// Combines adapters, each with a weight, into one whose factors count as they are. Factors are read here and kept.
pub fn combine(adapters: &[(String, f64)], asked: &CombineOptions, options: &Options) -> Result<Merge> {
    if adapters.is_empty() {
        return Err(Error::request("no adapter is given; name at least one"));
    }
    check(adapters, asked)?;
    let mut inputs = Vec::new();
    for (path, weight) in adapters {
        let adapter = Adapter::open(path, &options.root)?;
        adapter.check_plain()?;
        inputs.push(Input { adapter, weight: *weight });
    }
    let mut asked = asked.clone();
    let exact = asked.combination.cat && asked.combination.products;
    asked.combination = asked.combination.resolved(asked.rank);
    if inputs.len() == 1 && !exact {
        asked = CombineOptions { combination: "linear".parse()?, ..asked };
    }
    if asked.combination.prune != Prune::Nothing && asked.density == 0.0 {
        return Err(Error::request("a density of 0 leaves nothing; choose one above 0"));
    }
    let all: Vec<BTreeMap<String, Parts>> = inputs.iter().map(|input| input.adapter.modules()).collect();
    let ranks = ranks(&inputs, &all)?;
    let same = ranks.iter().all(|rank| *rank == ranks[0]);
    if !same && !asked.combination.cat && !asked.combination.products {
        let what = format!(
            "the ranks are {ranks:?}, and factors are added only where they are equal; use cat or svd"
        );
        return Err(Error::request(what));
    }
    let mut warnings = Vec::new();
    let rank = match asked.combination {
        Combination { cat: true, .. } if exact => widest(&all)?,
        Combination { cat: true, .. } => ranks.iter().sum(),
        Combination { products: true, .. } => {
            let rank = asked.rank.unwrap_or(ranks.iter().copied().max().unwrap_or(1));
            let most = useful(&all, asked.combination)?.unwrap_or(rank);
            let told = format!("a rank of {rank} is more than any module can have; it is {most}");
            warnings.extend((rank > most).then_some(told));
            rank.min(most)
        }
        _ => ranks[0],
    };
    if rank == 0 {
        return Err(Error::request("an adapter of rank 0 changes nothing; choose a larger rank"));
    }
    let mut tensors = Vec::new();
    let names: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    for module in names {
        let parts: Vec<Option<&Parts>> = all.iter().map(|modules| modules.get(module)).collect();
        tensors.extend(of_module(module, &parts, &inputs, &asked, rank)?);
    }
    let config = config(&inputs, rank)?;
    finish(inputs, (tensors, warnings), config, options)
}

/// Refuses numbers that say nothing.
fn check(adapters: &[(String, f64)], asked: &CombineOptions) -> Result<()> {
    if let Some((path, weight)) = adapters.iter().find(|(_, weight)| !weight.is_finite()) {
        return Err(Error::model(path, format!("its weight is {weight}; write {}", Range::Finite)));
    }
    if !Range::Share.has(asked.density) {
        let (density, share) = (asked.density, Range::Share);
        return Err(Error::request(format!(
            "{density} is not a density that pruning can keep; choose {share}"
        )));
    }
    match asked.clamp.filter(|clamp| !Range::Share.has(*clamp)) {
        None => Ok(()),
        Some(clamp) => Err(Error::request(format!(
            "{clamp} is not a quantile to clamp factors at (svd-clamp); choose {}",
            Range::Share
        ))),
    }
}

/// The tensors of one module.
fn of_module(
    module: &str,
    parts: &[Option<&Parts>],
    inputs: &[Input],
    asked: &CombineOptions,
    rank: usize,
) -> Result<Tensors> {
    let mut tensors = Tensors::new();
    let there = || parts.iter().flatten();
    let wholes: BTreeSet<&String> = there().flat_map(|parts| parts.whole.keys()).collect();
    for last in wholes {
        let mut values = there().filter_map(|parts| parts.whole.get(last));
        let first = values.next();
        if values.next().is_some() {
            let what =
                format!("'{module}.{last}' is saved whole by more than one adapter; leave all but one out");
            return Err(Error::request(what));
        }
        tensors.extend(first.map(|values| (format!("{PREFIX}{module}.{last}"), values.clone())));
    }
    if there().any(|parts| parts.rows.is_some()) {
        let what = format!(
            "'{module}' has vectors of tokens, which are not combined; merge that adapter into the model"
        );
        return Err(Error::request(what));
    }
    if let Some(base) = there().find_map(|parts| parts.base.clone()) {
        tensors.push((format!("{PREFIX}{module}.base_layer.weight"), base));
    }
    let Some(first) = there().find(|parts| parts.down.is_some()) else { return Ok(tensors) };
    let Some([_, inner, out]) = extents(module, first)? else { return Ok(tensors) };
    let mut combined = Combined { name: module, out, inner, sources: Vec::new(), asked, rank };
    let mut dtype = first.down.as_ref().map_or(DType::F32, |down| down.dtype());
    for (number, (parts, input)) in parts.iter().zip(inputs).enumerate() {
        let Some(parts) = parts else { continue };
        let (Some(down), Some(up)) = (&parts.down, &parts.up) else { continue };
        dtype = promote("combine", dtype, down.dtype())?;
        combined.add(number, input, (down, up))?;
    }
    let (down, up) = combined.factors()?;
    let table = first.embedding;
    let names =
        if table { ["lora_embedding_A", "lora_embedding_B"] } else { ["lora_A.weight", "lora_B.weight"] };
    for (name, values, shape) in [(names[0], down, [rank, inner]), (names[1], up, [out, rank])] {
        tensors.push((format!("{PREFIX}{module}.{name}"), held(values, &shape, dtype)?));
    }
    Ok(tensors)
}

fn held(values: Vec<f64>, shape: &[usize], dtype: DType) -> Result<Arc<dyn Values>> {
    Ok(Arc::new(Held { values, shape: Shape::new(shape)?, dtype }))
}

/// A tensor with its factor.
type Weighted = (f64, Vec<f64>);

impl Combined<'_> {
    fn add(
        &mut self,
        number: usize,
        input: &Input,
        (down, up): (&Arc<dyn Values>, &Arc<dyn Values>),
    ) -> Result<()> {
        let rank = down.shape()[0];
        if down.shape()[1] != self.inner || up.shape()[..] != [self.out, rank] {
            let what = format!(
                "'{}' has factors of the shapes {} and {}, which do not fit those of another adapter",
                self.name,
                down.shape(),
                up.shape()
            );
            return Err(Error::request(what));
        }
        let most = self.rank;
        if !self.asked.combination.products && !self.asked.combination.cat && rank != most {
            let what = format!(
                "'{}' has the rank {rank}, and factors are added only of rank {most}; use cat or svd",
                self.name
            );
            return Err(Error::request(what));
        }
        let scale = input.adapter.scale(self.name, rank)?;
        let (down, up) = (whole(&**down)?, whole(&**up)?);
        self.sources.push(Source { number, weight: input.weight, scale, rank, down, up });
        Ok(())
    }

    fn factors(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let Combination { cat, products, .. } = self.asked.combination;
        if cat {
            return self.side_by_side();
        }
        if products {
            let product = |source: &Source| (source.weight, self.product(source));
            let sum = self.sum("product", self.sources.iter().map(product).collect())?;
            return self.taken_out(&sum);
        }
        // Each factor gets the root of what the product counts.
        let count = |source: &Source| source.weight * source.scale;
        let root = |source: &Source| count(source).abs().sqrt();
        let downs = self.sources.iter().map(|s| (count(s).signum() * root(s), s.down.clone())).collect();
        let ups = self.sources.iter().map(|s| (root(s), s.up.clone())).collect();
        Ok((self.sum("lora_A", downs)?, self.sum("lora_B", ups)?))
    }

    /// `scale · up · down` of a source.
    fn product(&self, source: &Source) -> Vec<f64> {
        let mut product = vec![0.0; self.out * self.inner];
        for row in 0..self.out {
            let line = &mut product[row * self.inner..(row + 1) * self.inner];
            for (k, low) in source.down.chunks(self.inner).enumerate() {
                let factor = source.scale * source.up[row * source.rank + k];
                line.iter_mut().zip(low).for_each(|(sum, low)| *sum += factor * low);
            }
        }
        product
    }

    fn side_by_side(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut down, mut up) = (vec![0.0; self.rank * self.inner], vec![0.0; self.out * self.rank]);
        let mut first = 0;
        for source in &self.sources {
            if first + source.rank > self.rank {
                let what = format!("the ranks of '{}' are more than those that the adapters name", self.name);
                return Err(Error::request(what));
            }
            let count = source.weight * source.scale;
            let rows = &mut down[first * self.inner..(first + source.rank) * self.inner];
            rows.iter_mut().zip(&source.down).for_each(|(to, from)| *to = count * from);
            for row in 0..self.out {
                let to = &mut up[row * self.rank + first..][..source.rank];
                to.copy_from_slice(&source.up[row * source.rank..(row + 1) * source.rank]);
            }
            first += source.rank;
        }
        Ok((down, up))
    }

    /// Tensors pruned, and added as far as they agree.
    fn sum(&self, what: &str, mut tensors: Vec<Weighted>) -> Result<Vec<f64>> {
        let CombineOptions { combination, density, majority, seed, .. } = *self.asked;
        for (source, (_, values)) in self.sources.iter().zip(&mut tensors) {
            let stream = Stream::new(seed, &source.number.to_string(), &format!("{}.{what}", self.name));
            prune(values, combination.prune, density, stream)?;
        }
        let len = tensors.first().map_or(0, |(_, values)| values.len());
        let mut sum = vec![0.0; len];
        for (place, sum) in sum.iter_mut().enumerate() {
            let each = || tensors.iter().map(|(weight, values)| (*weight, values[place]));
            if !combination.elect {
                *sum = each().map(|(weight, value)| weight * value).sum();
                continue;
            }
            let sign = |value: f64| if value == 0.0 { 0.0 } else { value.signum() };
            let most: f64 = match majority {
                Majority::Total => each().map(|(_, value)| value).sum(),
                Majority::Frequency => each().map(|(_, value)| sign(value)).sum(),
            };
            let most = if most >= 0.0 { 1.0 } else { -1.0 };
            let agree = || each().filter(|(_, value)| sign(*value) == most);
            let total: f64 = agree().map(|(weight, value)| weight * value).sum();
            *sum = total / (agree().count().max(1) as f64);
        }
        Ok(sum)
    }

    /// The best factors of a product.
    fn taken_out(&self, product: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        let read = |first: usize, rows: &mut [f64]| -> Result<()> {
            rows_of(product, self.inner, first, rows);
            Ok(())
        };
        let svd = largest(&Matrix { rows: self.out, columns: self.inner, read: &read }, self.rank)?;
        let found = svd.values.len();
        let (mut down, mut up) = (vec![0.0; self.rank * self.inner], vec![0.0; self.out * self.rank]);
        for (k, value) in svd.values.iter().enumerate() {
            down[k * self.inner..(k + 1) * self.inner]
                .copy_from_slice(&svd.right[k * self.inner..(k + 1) * self.inner]);
            (0..self.out).for_each(|row| up[row * self.rank + k] = value * svd.left[row * found + k]);
        }
        if let Some(quantile) = self.asked.clamp {
            let mut all: Vec<f64> = down.iter().chain(&up).copied().collect();
            all.sort_by(f64::total_cmp);
            let at = quantile.clamp(0.0, 1.0) * (all.len() - 1) as f64;
            let (low, high) = (all[at.floor() as usize], all[at.ceil() as usize]);
            let bound = (low + (high - low) * at.fract()).abs();
            down.iter_mut().chain(&mut up).for_each(|value| *value = value.clamp(-bound, bound));
        }
        Ok((down, up))
    }
}

/// Sets elements to 0: all but the largest, or each by chance.
fn prune(values: &mut [f64], prune: Prune, density: f64, stream: Stream) -> Result<()> {
    if density >= 1.0 {
        return Ok(());
    }
    match prune {
        Prune::Nothing => {}
        Prune::Magnitude => {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
            let kept = (density * values.len() as f64) as usize;
            order[kept.min(values.len())..].iter().for_each(|&at| values[at] = 0.0);
        }
        Prune::Random => {
            let words = stream.words(0, values.len())?;
            for (value, word) in values.iter_mut().zip(words) {
                let stays = f64::from(word) < density * 2f64.powi(32);
                *value = if stays { *value / density } else { 0.0 };
            }
        }
    }
    Ok(())
}

/// What is said of the result: rank and numerator are the same, so its factors count as they are.
fn config(inputs: &[Input], rank: usize) -> Result<LoraConfig> {
    let configs = || inputs.iter().map(|input| input.adapter.config());
    let lists: Vec<&Vec<String>> = configs()
        .filter_map(|c| if let Some(Names::List(list)) = &c.target_modules { Some(list) } else { None })
        .collect();
    let patterns: Vec<&String> = configs()
        .filter_map(|c| if let Some(Names::Pattern(text)) = &c.target_modules { Some(text) } else { None })
        .collect();
    let target_modules = match (lists.is_empty(), patterns.is_empty()) {
        (false, false) => {
            let what = "some adapters list their modules and others have a pattern of them; write both alike";
            return Err(Error::request(what));
        }
        (false, true) => {
            let all: BTreeSet<&String> = lists.into_iter().flatten().collect();
            Some(Names::List(all.into_iter().cloned().collect()))
        }
        (true, false) if patterns.iter().all(|text| *text == patterns[0]) => {
            Some(Names::Pattern(patterns[0].clone()))
        }
        (true, false) => {
            let each: Vec<String> = patterns.iter().map(|text| format!("({text})")).collect();
            Some(Names::Pattern(each.join("|")))
        }
        (true, true) => None,
    };
    let first = inputs[0].adapter.config();
    let saved: BTreeSet<String> =
        configs().flat_map(|config| config.modules_to_save.clone().unwrap_or_default()).collect();
    Ok(LoraConfig {
        r: rank as i64,
        lora_alpha: rank as f64,
        target_modules,
        modules_to_save: (!saved.is_empty()).then(|| saved.into_iter().collect()),
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        use_rslora: false,
        layers_to_transform: None,
        layers_pattern: None,
        init_lora_weights: Value::Bool(true),
        ..first.clone()
    })
}

fn finish(
    inputs: Vec<Input>,
    (tensors, warnings): (Tensors, Vec<String>),
    config: LoraConfig,
    options: &Options,
) -> Result<Merge> {
    let names: Vec<String> =
        inputs.iter().map(|input| format!("`{}` times {}", input.adapter.name(), input.weight)).collect();
    let what = format!("combined of {}", names.join(", "));
    let card = format!("# Adapter\n\nCombined by planaria of {}.\n", names.join(", "));
    let mut files = BTreeMap::from([("adapter_config.json".to_string(), config.to_text().into_bytes())]);
    files.insert("README.md".to_string(), card.into_bytes());
    let read = inputs.iter().flat_map(|input| input.adapter.inputs()).collect();
    let donor = inputs.into_iter().next().map(|input| Arc::new(input.adapter.into_folder()));
    let donor = donor.ok_or_else(|| Error::request("no adapter is given; name at least one"))?;
    let outcome = Outcome { files, warnings, ..Outcome::new(tensors, donor) }.all_by(&what);
    Merge::new(outcome, "adapter_model", read).finished(Vec::new(), options)
}
