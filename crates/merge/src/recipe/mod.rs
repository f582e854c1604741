//! Recipes: what to merge, how, and into what, as mergekit writes them.

mod parse;
mod reference;
mod setting;
pub(crate) mod yaml;

pub(crate) use parse::{dtype_of, parse, parse_all, patterns};
pub(crate) use reference::Reference;
pub(crate) use setting::{Scalar, Settings, Spot, Weak};

use crate::method::Method;
use planaria_layout::DType;

/// One merge.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) line: usize,
    /// Name of a stage of several.
    pub(crate) name: Option<String>,
    pub(crate) method: &'static Method,
    pub(crate) modules: Vec<Module>,
    pub(crate) base: Option<Reference>,
    base_line: usize,
    pub(crate) parameters: Settings,
    /// Inputs are cast to it.
    pub(crate) dtype: Option<DType>,
    /// Results are cast to it.
    pub(crate) out_dtype: Option<DType>,
    pub(crate) tokenizer: Option<Tokens>,
    pub(crate) chat_template: Option<String>,
    /// Patterns of names that are not written, with their lines.
    pub(crate) removed: Vec<(usize, String)>,
    /// What has no effect, or less than it seems.
    pub(crate) warnings: Vec<String>,
}

/// A part of an architecture and what it is made of.
#[derive(Debug)]
pub(crate) struct Module {
    /// None where a recipe speaks of whole models.
    pub(crate) name: Option<String>,
    pub(crate) line: usize,
    pub(crate) form: Form,
    pub(crate) parameters: Settings,
}

/// Whole models side by side, or ranges of layers one after the other.
#[derive(Debug)]
pub(crate) enum Form {
    Models(Vec<Input>),
    Slices(Vec<Slice>),
}

/// Layers of the result.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) line: usize,
    pub(crate) sources: Vec<Input>,
    pub(crate) base: Option<Reference>,
    pub(crate) parameters: Settings,
}

/// A model that goes in.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) line: usize,
    pub(crate) model: Reference,
    /// First layer and one past the last; none: all of them.
    pub(crate) layers: Option<(usize, usize)>,
    pub(crate) parameters: Settings,
}

/// How the vocabulary of the result is made.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    pub(crate) line: usize,
    pub(crate) source: Vocabulary,
    pub(crate) tokens: Vec<Token>,
    pub(crate) multiple: Option<usize>,
}

/// Where the vocabulary comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Vocabulary {
    Union,
    Base,
    Model(Reference),
}

/// The row of one token.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) source: Option<RowSource>,
    /// Whether it also replaces the rows of models that have the token.
    pub(crate) force: bool,
}

/// Where a row comes from.
#[derive(Clone, Debug)]
pub(crate) enum RowSource {
    Zero,
    /// The model's row of the same token.
    Model(Reference),
    /// The model's row of another token.
    Token(Reference, String),
    /// A row of the model by number.
    Id(Reference, usize),
}

impl Recipe {
    /// Every model that the recipe names as an input or base, first to last, each once.
    pub(crate) fn models(&self) -> Vec<&Reference> {
        let mut all: Vec<&Reference> = Vec::new();
        let mut add = |model| {
            if !all.contains(&model) {
                all.push(model);
            }
        };
        for module in &self.modules {
            match &module.form {
                Form::Models(inputs) => inputs.iter().for_each(|input| add(&input.model)),
                Form::Slices(slices) => {
                    for slice in slices {
                        slice.sources.iter().for_each(|input| add(&input.model));
                        slice.base.iter().for_each(&mut add);
                    }
                }
            }
        }
        self.base.iter().for_each(add);
        all
    }

    /// Every model that anything in the recipe names.
    pub(crate) fn all_models(&self) -> Vec<&Reference> {
        let mut all = self.models();
        let tokens = self.tokenizer.iter().flat_map(|section| {
            let rows = section.tokens.iter().filter_map(|token| match &token.source {
                Some(RowSource::Model(model) | RowSource::Token(model, _) | RowSource::Id(model, _)) => {
                    Some(model)
                }
                _ => None,
            });
            let source = if let Vocabulary::Model(model) = &section.source { Some(model) } else { None };
            source.into_iter().chain(rows)
        });
        for model in tokens {
            if !all.contains(&model) {
                all.push(model);
            }
        }
        all
    }

    /// Where a model is named first: as an input, as a base, or for its tokens.
    pub(crate) fn line_of(&self, model: &Reference) -> usize {
        let of = |inputs: &[Input]| inputs.iter().find(|input| input.model == *model).map(|input| input.line);
        let of_slice = |slice: &Slice| {
            let base = slice.base.as_ref().filter(|base| *base == model).map(|_| slice.line);
            of(&slice.sources).or(base)
        };
        let input = self.modules.iter().find_map(|module| match &module.form {
            Form::Models(inputs) => of(inputs),
            Form::Slices(slices) => slices.iter().find_map(of_slice),
        });
        let base = self.base.as_ref().filter(|base| *base == model).map(|_| self.base_line);
        let tokens = self.tokenizer.as_ref().map(|section| section.line);
        input.or(base).or(tokens).unwrap_or(self.line)
    }

    /// The model whose configuration and tokenizer the result begins with.
    pub(crate) fn donor(&self) -> Option<&Reference> {
        self.base.as_ref().or_else(|| self.models().first().copied())
    }

    /// Filters that do less than they seem to.
    pub(crate) fn weak_filters(&self) -> Vec<Weak> {
        let mut weak = self.parameters.weak_filters();
        for module in &self.modules {
            weak.extend(module.parameters.weak_filters());
            match &module.form {
                Form::Models(inputs) => inputs.iter().for_each(|i| weak.extend(i.parameters.weak_filters())),
                Form::Slices(slices) => {
                    for slice in slices {
                        weak.extend(slice.parameters.weak_filters());
                        slice.sources.iter().for_each(|i| weak.extend(i.parameters.weak_filters()));
                    }
                }
            }
        }
        weak
    }
}
