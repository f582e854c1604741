//! Merges from a text to a plan: the stages of a recipe, their models, and what is written.

use crate::architecture::Architecture;
use crate::card::{card, comment};
use crate::error::{Error, Result};
use crate::how::{Group, How, TensorPlan, groups};
use crate::input::{Hashes, Input, InputSummary, distinct};
use crate::model::adapter::Adapter;
use crate::model::{Model, Root};
use crate::plan::{Liberties, Models, Planner};
use crate::recipe::{Recipe, Reference, parse_all};
use crate::result::{
    Outcome, assemble, bytes_of, companions, embedding_files, main_dtype, pretty, set_dtype,
};
use crate::tokens::{Merging, Relaying};
use crate::values::Values;
use planaria_ckpt::convert::{
    Computed, Conversion, ConvertOptions, Epilogue, Surroundings, To, plan_computed,
};
use planaria_ckpt::formats::Source;
use planaria_layout::{DType, Shape};
use planaria_store::{local_path, pattern};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What to change about a merge.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where relative paths begin.
    pub root: Root,
    /// Seed of the methods that draw.
    pub seed: u64,
    /// Merge models of different architectures by the names of the first.
    pub allow_crimes: bool,
    /// Of vocabularies of different sizes keep the rows that all have.
    pub truncate_embeddings: bool,
    /// Copy tensors of the base that its architecture does not name.
    pub keep_extra: bool,
    /// What is suspicious about a recipe is an error.
    pub strict: bool,
    /// Tensors that are not written: patterns with `*` and `?` over whole names.
    pub drop: Vec<String>,
    /// If not empty, only tensors with names that match are written.
    pub keep: Vec<String>,
}

/// A merge that can be carried out.
#[derive(Debug)]
pub struct Merge {
    outcome: Outcome,
    stem: &'static str,
    /// Stages that have names, in the order in which they are needed.
    stages: Vec<(String, Merge)>,
    title: String,
    /// Tensors that were asked not to be written.
    removed: Vec<(String, u64)>,
    /// What is read, without that of stages.
    inputs: Vec<Arc<Input>>,
    /// Files that name hashes of what is read.
    signed: Vec<String>,
    remarks: Vec<String>,
}

/// Plans the merge of a recipe: mergekit's YAML, one document or several stages. No tensor is read.
pub fn plan(text: &str, options: &Options) -> Result<Merge> {
    let recipes = parse_all(text)?;
    if recipes.is_empty() {
        return Err(Error::recipe(1, "there is no recipe here"));
    }
    let order = order(&recipes)?;
    let mut made: BTreeMap<String, Arc<Model>> = BTreeMap::new();
    let mut opened: Models = BTreeMap::new();
    let mut stages = Vec::new();
    for (turn, &number) in order.iter().enumerate() {
        let recipe = &recipes[number];
        let mut merge = stage(recipe, &mut opened, &made, None, options)?;
        if turn + 1 == order.len() {
            // Of several models, the first says what the result is for.
            let models = recipe.all_models();
            let first = models.first().filter(|first| models.len() == 1 || first.lora.is_none());
            if let Some(first) = first.filter(|first| !made.contains_key(&first.path)) {
                merge.embedding_like(first, &options.root)?;
            }
            let removed = recipe.removed.iter().map(|(line, pattern)| (Some(*line), pattern.clone()));
            let merge = Merge { stages, ..merge }.finished(removed.collect(), options)?;
            return Ok(merge.told("mergekit_config.yml", text));
        }
        let name = recipe.name.clone().unwrap_or_default();
        let tensors = merge.outcome.tensors.iter().cloned().collect();
        let (config, files) = (merge.outcome.config.clone(), merge.outcome.files.clone());
        let source = merge.outcome.donor.source.clone();
        made.insert(name.clone(), Arc::new(Model::made(name.clone(), config, tensors, files, source)));
        stages.push((name, merge));
    }
    Err(Error::recipe(1, "there is no recipe here"))
}

/// Plans a model with an adapter merged into it. No tensor is read.
pub fn plan_adapted(model: &str, adapter: &str, options: &Options) -> Result<Merge> {
    let (model, adapter) = (serde_json::json!(model), serde_json::json!(adapter));
    let recipe = format!(
        "merge_method: passthrough\nmodels:\n- model: {{model: {{path: {model}}}, lora: {{path: {adapter}}}}}\n"
    );
    // Nobody wrote this recipe, so its lines tell nothing.
    plan(&recipe, options).map_err(|error| match error {
        Error::Recipe { what, .. } => Error::request(what),
        other => other,
    })
}

impl Merge {
    /// Takes along how a model of the recipe makes embeddings, if it does: pooling and prompts. An adapter on it was trained with
    /// its own, and with attention and ends of texts of its own.
    fn embedding_like(&mut self, model: &Reference, root: &Root) -> Result<()> {
        if let Some((path, _)) = &model.lora {
            let from = Adapter::open(path, root)?.into_folder();
            let files = embedding_files(&from)?;
            if !files.is_empty() {
                if let Some(causal) =
                    from.json("config.json")?.and_then(|about| about.get("is_causal").cloned())
                {
                    self.outcome.config["is_causal"] = causal;
                    self.outcome.files.insert("config.json".to_string(), pretty(&self.outcome.config));
                }
                self.outcome.files.extend(files);
                self.outcome.files.extend(companions(&from)?);
                return Ok(());
            }
        }
        self.outcome.files.extend(embedding_files(&Model::open_path(&model.path, root)?)?);
        Ok(())
    }
}

/// The stages so that each comes behind those it needs, the final one last.
fn order(recipes: &[Recipe]) -> Result<Vec<usize>> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut last = None;
    for (number, recipe) in recipes.iter().enumerate() {
        match &recipe.name {
            Some(name) => {
                if names.insert(name, number).is_some() {
                    return Err(Error::recipe(recipe.line, format!("a second stage is named '{name}'")));
                }
            }
            None if last.is_some() => {
                return Err(Error::recipe(
                    recipe.line,
                    "a second stage has no `name`; only the final one may have none",
                ));
            }
            None => last = Some(number),
        }
    }
    let needs = |number: usize| -> BTreeSet<usize> {
        recipes[number]
            .all_models()
            .iter()
            .filter_map(|model| names.get(model.path.as_str()).copied())
            .collect()
    };
    // Where all have names, the last one that nobody needs is the final one.
    let needed: BTreeSet<usize> = (0..recipes.len()).flat_map(needs).collect();
    let last = last.or_else(|| (0..recipes.len()).rev().find(|number| !needed.contains(number)));
    let mut done: Vec<usize> = Vec::new();
    while done.len() < recipes.len() {
        let open = (0..recipes.len()).filter(|number| !done.contains(number));
        let ready = open.clone().filter(|number| needs(*number).iter().all(|need| done.contains(need)));
        // The final stage waits for all others.
        let next = ready.clone().find(|number| Some(*number) != last).or_else(|| ready.clone().next());
        let Some(next) = next else {
            let stuck: Vec<&str> = open.filter_map(|number| recipes[number].name.as_deref()).collect();
            let line = recipes.iter().find(|recipe| recipe.name.as_deref() == stuck.first().copied());
            let line = line.map_or(1, |recipe| recipe.line);
            return Err(Error::recipe(
                line,
                format!("stages need each other in a circle: {}", stuck.join(", ")),
            ));
        };
        done.push(next);
    }
    Ok(done)
}

/// Plans one stage; models that were opened before are used again. `architecture` says which tensors there are, where the
/// models do not.
pub(crate) fn stage(
    recipe: &Recipe,
    opened: &mut Models,
    made: &BTreeMap<String, Arc<Model>>,
    architecture: Option<&Architecture>,
    options: &Options,
) -> Result<Merge> {
    let mut models: Models = BTreeMap::new();
    for reference in recipe.all_models() {
        let model = match (made.get(&reference.path), opened.get(reference)) {
            (Some(stage), _) => {
                let adapted = Model::clone(stage).with_adapter(reference, &options.root);
                Arc::new(adapted.map_err(|error| error.at_line(recipe.line_of(reference)))?)
            }
            (_, Some(model)) => model.clone(),
            _ => {
                let model = Model::open(reference, &options.root);
                let model = Arc::new(model.map_err(|error| error.at_line(recipe.line_of(reference)))?);
                opened.insert(reference.clone(), model.clone());
                model
            }
        };
        models.insert(reference.clone(), model);
    }
    let merging = Merging::new(recipe, &models)?;
    let relaying = merging.as_ref().map(|merging| Relaying::new(recipe, merging));
    let liberties = Liberties {
        mixed: options.allow_crimes,
        truncate: options.truncate_embeddings,
        keep_extra: options.keep_extra,
    };
    let rows = relaying.as_ref().map(Relaying::total);
    let (relaying, seed) = (relaying.as_ref(), options.seed);
    let planner = Planner { recipe, models: &models, liberties: &liberties, relaying, architecture, seed };
    let planned = planner.plan()?;
    let mut outcome = assemble(recipe, &models, planned, merging.as_ref())?;
    let told = recipe.all_models().into_iter().filter_map(|reference| models.get(reference));
    outcome.warnings.extend(told.flat_map(|model| model.warnings.clone()));
    // In the order of the recipe, which is not that of the map.
    let opened = recipe.all_models().into_iter().filter_map(|reference| models.get(reference));
    let inputs = opened.flat_map(|model| model.inputs.clone()).collect();
    let remarks = rows.map(|rows| vanishing_rows(recipe, &models, rows)).unwrap_or_default();
    let merge = Merge { remarks, ..Merge::new(outcome, "model", inputs) };
    Ok(recipe.name.iter().fold(merge, |merge, name| merge.titled(name)))
}

/// Rows of embeddings that belong to no token are not in the result.
fn vanishing_rows(recipe: &Recipe, models: &Models, rows: usize) -> Vec<String> {
    let embedding =
        |reference: &Reference| models.get(reference)?.tensors.get("model.embed_tokens.weight").cloned();
    let inputs = recipe.models().into_iter().filter_map(|model| Some((model, embedding(model)?.shape()[0])));
    let fewer = inputs.filter(|(_, before)| *before > rows);
    let told = fewer.map(|(model, before)| {
        format!(
            "{model} has {before} rows for tokens and the result {rows}: those without tokens are left out; \
             `tokenizer: {{pad_to_multiple_of: 64}}` rounds up"
        )
    });
    told.collect()
}

impl Merge {
    /// The same under another title.
    pub(crate) fn titled(mut self, title: &str) -> Merge {
        self.title = title.to_string();
        self
    }

    /// The same with a card and the recipe, both of which name what is read; hashes come in when it has been.
    pub(crate) fn told(mut self, file: &str, recipe: &str) -> Merge {
        let inputs: Vec<String> = self.read().iter().map(|input| input.described()).collect();
        let card = card(&self.title, (file, recipe), &inputs, &self.outcome);
        self.outcome.files.insert("README.md".to_string(), card.into_bytes());
        // JSON has no place for more than the recipe.
        let text = match file.ends_with(".json") {
            true => recipe.to_string(),
            false => format!("{}\n{}", recipe.trim_end(), comment(&inputs)),
        };
        self.outcome.files.insert(file.to_string(), text.into_bytes());
        self.signed = vec!["README.md".to_string(), file.to_string()];
        self
    }

    /// Everything that is read, that of stages included, once.
    fn read(&self) -> Vec<Arc<Input>> {
        let stages = self.stages.iter().flat_map(|(_, stage)| stage.read());
        distinct(&stages.chain(self.inputs.iter().cloned()).collect::<Vec<_>>())
    }

    /// What is read, that of stages included. Looks at the sizes of files.
    pub fn inputs(&self) -> Result<Vec<InputSummary>> {
        self.read().iter().map(|input| input.summary()).collect()
    }

    /// What is computed: tensors by the way they are made, those of stages first.
    pub fn groups(&self) -> Vec<Group> {
        let of = |merge: &Merge, stage: Option<&str>| {
            let copied = How::plain("copied");
            let tensors = merge.outcome.tensors.iter();
            let made = tensors
                .map(|(name, values)| (merge.outcome.hows.get(name).unwrap_or(&copied), bytes_of(values)));
            groups(stage, made)
        };
        let stages = self.stages.iter().flat_map(|(name, stage)| of(stage, Some(name)));
        stages.chain(of(self, None)).collect()
    }

    /// How every tensor is made, those of stages first.
    pub fn tensor_plans(&self) -> Vec<TensorPlan> {
        let of = |merge: &Merge, stage: Option<&str>| -> Vec<TensorPlan> {
            let plan = |(name, values): &(String, Arc<dyn Values>)| TensorPlan {
                stage: stage.map(str::to_string),
                name: name.clone(),
                dtype: values.dtype(),
                shape: values.shape().clone(),
                what: merge.outcome.hows.get(name).map_or_else(|| "copied".to_string(), How::told),
            };
            merge.outcome.tensors.iter().map(plan).collect()
        };
        let stages = self.stages.iter().flat_map(|(name, stage)| of(stage, Some(name)));
        stages.chain(of(self, None)).collect()
    }

    /// Paths and URLs that are read, those of stages included.
    pub fn places(&self) -> Vec<&str> {
        let stages = self.stages.iter().flat_map(|(_, stage)| stage.places());
        stages.chain(self.inputs.iter().map(|input| input.place.as_str())).collect()
    }

    /// Everything that the bytes of the result depend on, in few: what was asked, and name, size and time of every file that is
    /// read. None where something is read whose changes cannot be seen.
    pub fn identity(&self, asked: &str) -> Option<String> {
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), asked).hash(&mut hasher);
        for place in self.places() {
            let mut open = vec![local_path(place)?];
            while let Some(at) = open.pop() {
                let about = std::fs::metadata(&at).ok()?;
                if about.is_dir() {
                    let entries: Result<Vec<_>, std::io::Error> = std::fs::read_dir(&at).ok()?.collect();
                    open.extend(entries.ok()?.iter().map(std::fs::DirEntry::path));
                    open.sort();
                    continue;
                }
                (&at, about.len(), about.modified().ok()?).hash(&mut hasher);
            }
        }
        Some(format!("{:016x}", hasher.finish()))
    }

    /// A result that was put together elsewhere.
    pub(crate) fn new(outcome: Outcome, stem: &'static str, inputs: Vec<Arc<Input>>) -> Merge {
        Merge {
            outcome,
            stem,
            title: "Merged model".to_string(),
            stages: Vec::new(),
            removed: Vec::new(),
            inputs,
            signed: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Leaves out what is not wanted, and looks at the warnings.
    pub(crate) fn finished(
        mut self,
        mut removed: Vec<(Option<usize>, String)>,
        options: &Options,
    ) -> Result<Merge> {
        let before = self.stages.iter().flat_map(|(_, stage)| stage.outcome.warnings.clone());
        let mut said = BTreeSet::new();
        let all = before.chain(std::mem::take(&mut self.outcome.warnings));
        // Stages that read the same model find the same about it.
        self.outcome.warnings = all.filter(|warning| said.insert(warning.clone())).collect();
        if let (true, Some(first)) = (options.strict, self.outcome.warnings.first()) {
            return Err(Error::request(first.clone()));
        }
        removed.extend(options.drop.iter().map(|pattern| (None, pattern.clone())));
        self.remove(&removed, &options.keep)?;
        Ok(self)
    }

    /// Leaves tensors out; a pattern that matches nothing is an error.
    fn remove(&mut self, patterns: &[(Option<usize>, String)], keep: &[String]) -> Result<()> {
        let known: Vec<String> = self.outcome.tensors.iter().map(|(name, _)| name.clone()).collect();
        let wrong = |line: Option<usize>, pattern: &str| {
            let near = crate::error::nearest(pattern, known.iter().map(String::as_str));
            let what = format!("'{pattern}' matches no tensor of the result{near}");
            line.map_or_else(|| Error::request(what.clone()), |line| Error::recipe(line, what.clone()))
        };
        for (line, glob) in patterns {
            if !known.iter().any(|name| pattern::matches(glob, name)) {
                return Err(wrong(*line, glob));
            }
        }
        for glob in keep {
            if !known.iter().any(|name| pattern::matches(glob, name)) {
                return Err(wrong(None, glob));
            }
        }
        let stays = |name: &str| {
            let dropped = patterns.iter().any(|(_, glob)| pattern::matches(glob, name));
            !dropped && (keep.is_empty() || keep.iter().any(|glob| pattern::matches(glob, name)))
        };
        let (stay, go): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.outcome.tensors).into_iter().partition(|(name, _)| stays(name));
        self.outcome.tensors = stay;
        self.removed = go.iter().map(|(name, values)| (name.clone(), bytes_of(values))).collect();
        if !self.removed.is_empty() && self.outcome.config.is_object() {
            if let Some(dtype) = main_dtype(&self.outcome.tensors) {
                set_dtype(&mut self.outcome.config, dtype);
            }
            self.outcome.files.insert("config.json".to_string(), pretty(&self.outcome.config));
        }
        Ok(())
    }

    /// What has no effect, or less than it seems.
    pub fn warnings(&self) -> &[String] {
        &self.outcome.warnings
    }

    /// What is as it should be and may surprise.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Tensors of inputs that nothing is made of: model, name, bytes.
    pub fn dropped(&self) -> &[(String, String, u64)] {
        &self.outcome.dropped
    }

    /// Tensors that the model which gives the configuration does not have: name, bytes.
    pub fn added(&self) -> &[(String, u64)] {
        &self.outcome.added
    }

    /// Tensors that were asked not to be written: name, bytes.
    pub fn removed(&self) -> &[(String, u64)] {
        &self.removed
    }

    /// Bytes of all tensors of all checkpoints that are read.
    pub fn read_bytes(&self) -> u64 {
        self.read().iter().map(|input| input.bytes()).sum()
    }

    /// One line for every tensor: what it is made of.
    pub fn notes(&self) -> &[String] {
        &self.outcome.notes
    }

    /// Stages with names that come before, in the order in which they are needed.
    pub fn stages(&self) -> impl Iterator<Item = (&str, &Merge)> {
        self.stages.iter().map(|(name, merge)| (name.as_str(), merge))
    }

    /// Tensors of the result with their element types and shapes.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, DType, &Shape)> {
        self.outcome.tensors.iter().map(|(name, values)| (name.as_str(), values.dtype(), values.shape()))
    }

    /// The same with what makes their values.
    pub(crate) fn computed(&self) -> impl Iterator<Item = &(String, Arc<dyn Values>)> {
        self.outcome.tensors.iter()
    }

    /// How it is written. Nothing is computed yet.
    pub fn conversion(&self, to: To, options: &ConvertOptions) -> Result<Conversion<'_>> {
        let source: &Source = &self.outcome.donor.source;
        let tensors = self.outcome.tensors.iter().map(|(name, values)| Computed {
            name: name.clone(),
            dtype: values.dtype(),
            shape: values.shape().clone(),
            values: Arc::new(Written { name: name.clone(), values: values.clone() }),
        });
        let hashes = || Arc::new(Hashes::new(self.read(), self.signed.clone())) as Arc<dyn Epilogue>;
        let epilogue = (!self.signed.is_empty()).then(hashes);
        let surroundings = Surroundings { stem: self.stem, files: self.outcome.files.clone(), epilogue };
        Ok(plan_computed(source, to, tensors.collect(), surroundings, options)?)
    }
}

/// A tensor that is written.
#[derive(Debug)]
struct Written {
    name: String,
    values: Arc<dyn Values>,
}

impl planaria_ckpt::convert::Values for Written {
    fn fill(&self, first: usize, out: &mut [u8]) -> planaria_ckpt::Result<()> {
        self.values.copy(first, out).map_err(|error| error.while_writing(&self.name))
    }
}
