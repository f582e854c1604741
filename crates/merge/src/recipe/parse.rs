//! From the nodes of a document to a recipe; what is not known is told with the nearest name.

use super::yaml::{Node, Yaml, documents};
use super::{Form, Input, Module, Recipe, Reference, RowSource, Settings, Slice, Token, Tokens, Vocabulary};
use crate::error::{Error, Result, nearest};
use crate::method;
use planaria_layout::DType;

/// Keys of a recipe.
const KEYS: [&str; 13] = [
    "merge_method",
    "models",
    "slices",
    "modules",
    "base_model",
    "parameters",
    "dtype",
    "out_dtype",
    "tokenizer_source",
    "tokenizer",
    "chat_template",
    "name",
    "remove_keys",
];

/// A recipe of one document.
pub(crate) fn parse(text: &str) -> Result<Recipe> {
    let mut all = parse_all(text)?;
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Error::recipe(1, "there is no recipe here")),
        _ => Err(Error::recipe(
            all[1].line,
            "a second document begins here; several stages are a merge of their own",
        )),
    }
}

/// Every document of a text as a recipe.
pub(crate) fn parse_all(text: &str) -> Result<Vec<Recipe>> {
    documents(text)?.iter().map(recipe).collect()
}

fn recipe(node: &Node) -> Result<Recipe> {
    let mut warnings = Vec::new();
    let mut found = Found::default();
    for (name, line, value) in node.entries("a recipe")? {
        match KEYS.iter().position(|key| *key == name) {
            Some(_) if value.value == Yaml::Null => {}
            Some(at) => found.0[at] = Some((line, value)),
            None => warnings.push(format!("line {line}: '{name}' has no effect{}", nearest(&name, KEYS))),
        }
    }
    let (line, value) =
        found.get("merge_method").ok_or_else(|| Error::recipe(node.line, "`merge_method` is missing"))?;
    let name = value.text("the name of a method")?;
    let method = method::named(&name).ok_or_else(|| {
        let known = method::names().collect::<Vec<_>>();
        let near = nearest(&name, known.iter().copied());
        Error::recipe(line, format!("no such method: '{name}'{near} (known: {})", known.join(", ")))
    })?;
    let text = |key: &str, what: &str| found.get(key).map(|(_, value)| value.text(what)).transpose();
    let removed = match found.get("remove_keys") {
        Some((_, value)) => patterns(value)?,
        None => Vec::new(),
    };
    let recipe = Recipe {
        line: node.line,
        name: text("name", "a name")?,
        method,
        modules: modules(node, &found, &mut warnings)?,
        base: found.get("base_model").map(|(_, value)| Reference::parse(value)).transpose()?,
        base_line: found.get("base_model").map_or(node.line, |(line, _)| line),
        parameters: found
            .get("parameters")
            .map_or_else(|| Ok(Settings::default()), |(_, node)| Settings::parse(node))?,
        dtype: found.get("dtype").map(|(_, value)| dtype(value)).transpose()?,
        out_dtype: found.get("out_dtype").map(|(_, value)| dtype(value)).transpose()?,
        tokenizer: tokenizer(&found, &mut warnings)?,
        chat_template: text("chat_template", "a template, its name or `auto`")?,
        removed,
        warnings: Vec::new(),
    };
    Ok(with_warnings(recipe, warnings))
}

/// The values of the keys that were found, in the order of [`KEYS`].
#[derive(Default)]
struct Found<'n>([Option<(usize, &'n Node)>; 13]);

impl<'n> Found<'n> {
    fn get(&self, key: &str) -> Option<(usize, &'n Node)> {
        self.0[KEYS.iter().position(|other| *other == key)?]
    }
}

/// Unknown parameters anywhere, and revisions of folders, which have none.
fn with_warnings(mut recipe: Recipe, mut warnings: Vec<String>) -> Recipe {
    let known: Vec<&str> = recipe.method.parameters().map(|parameter| parameter.name).collect();
    let mut check = |settings: &Settings| {
        for (name, line, _) in &settings.0 {
            if !known.contains(&name.as_str()) {
                let near = nearest(name, known.iter().copied());
                let method = recipe.method.name;
                warnings
                    .push(format!("line {line}: {method} has no parameter '{name}', it has no effect{near}"));
            }
        }
    };
    for module in &recipe.modules {
        match &module.form {
            Form::Models(inputs) => inputs.iter().for_each(|input| check(&input.parameters)),
            Form::Slices(slices) => {
                for slice in slices {
                    check(&slice.parameters);
                    slice.sources.iter().for_each(|input| check(&input.parameters));
                }
            }
        }
        check(&module.parameters);
    }
    check(&recipe.parameters);
    for model in recipe.all_models() {
        if model.revision.is_some() || model.lora.as_ref().is_some_and(|(_, revision)| revision.is_some()) {
            warnings.push(format!("'{model}': folders have no revisions, it has no effect"));
        }
    }
    recipe.warnings = warnings;
    recipe
}

/// The three forms of inputs, of which there must be one.
fn modules(node: &Node, found: &Found<'_>, warnings: &mut Vec<String>) -> Result<Vec<Module>> {
    let forms = ["models", "slices", "modules"];
    let given: Vec<(&str, usize, &Node)> =
        forms.iter().filter_map(|form| found.get(form).map(|(line, value)| (*form, line, value))).collect();
    let (form, line, value) = match given[..] {
        [one] => one,
        [] => {
            let what = "there is none of `models`, `slices` and `modules`; one of them says what to merge";
            return Err(Error::recipe(node.line, what));
        }
        [first, second, ..] => {
            let what =
                format!("both `{}` and `{}` are given; say what to merge in one form", first.0, second.0);
            return Err(Error::recipe(second.1, what));
        }
    };
    if form != "modules" {
        let parameters = Settings::default();
        return Ok(vec![Module { name: None, line, form: inputs(form, value, warnings)?, parameters }]);
    }
    let mut modules = Vec::new();
    for (name, line, value) in value.entries("a map of modules")? {
        let mut parts: Vec<(String, &Node)> = Vec::new();
        let mut parameters = Settings::default();
        for (key, line, value) in value.entries("a module with `models` or `slices`")? {
            match key.as_str() {
                "models" | "slices" => parts.push((key, value)),
                "parameters" => parameters = Settings::parse(value)?,
                _ => warnings.push(format!(
                    "line {line}: '{key}' has no effect{}",
                    nearest(&key, ["models", "slices", "parameters"])
                )),
            }
        }
        let [(form, value)] = &parts[..] else {
            let what = format!("the module '{name}' needs one of `models` and `slices`");
            return Err(Error::recipe(line, what));
        };
        modules.push(Module { name: Some(name), line, form: inputs(form, value, warnings)?, parameters });
    }
    Ok(modules)
}

fn inputs(form: &str, value: &Node, warnings: &mut Vec<String>) -> Result<Form> {
    let items = value.items("a list")?;
    if items.is_empty() {
        return Err(Error::recipe(value.line, format!("`{form}` is empty; name what to merge")));
    }
    match form {
        "models" => Ok(Form::Models(items.iter().map(|item| input(item, warnings)).collect::<Result<_>>()?)),
        _ => Ok(Form::Slices(items.iter().map(|item| slice(item, warnings)).collect::<Result<_>>()?)),
    }
}

fn slice(node: &Node, warnings: &mut Vec<String>) -> Result<Slice> {
    let mut slice =
        Slice { line: node.line, sources: Vec::new(), base: None, parameters: Settings::default() };
    for (name, line, value) in node.entries("a slice with `sources`")? {
        match name.as_str() {
            "sources" => {
                let sources = value.items("a list of sources")?.iter().map(|item| input(item, warnings));
                slice.sources = sources.collect::<Result<_>>()?;
            }
            "base_model" if value.value != Yaml::Null => slice.base = Some(Reference::parse(value)?),
            "parameters" => slice.parameters = Settings::parse(value)?,
            "residual_weight" => {
                warnings.push(format!("line {line}: 'residual_weight' has no effect, here as in mergekit"));
            }
            "base_model" => {}
            other => {
                let near = nearest(other, ["sources", "base_model", "parameters"]);
                warnings.push(format!("line {line}: '{other}' has no effect{near}"));
            }
        }
    }
    if slice.sources.is_empty() {
        return Err(Error::recipe(node.line, "a slice needs `sources`"));
    }
    if let Some(bare) = slice.sources.iter().find(|input| input.layers.is_none()) {
        let what = format!("'{}' needs a layer_range, such as [0, 8], to be a source of a slice", bare.model);
        return Err(Error::recipe(bare.line, what));
    }
    Ok(slice)
}

fn input(node: &Node, warnings: &mut Vec<String>) -> Result<Input> {
    let (mut model, mut layers, mut parameters) = (None, None, Settings::default());
    for (name, line, value) in node.entries("an input with `model`")? {
        match name.as_str() {
            "model" => model = Some(Reference::parse(value)?),
            "layer_range" if value.value != Yaml::Null => layers = Some(layer_range(value)?),
            "parameters" => parameters = Settings::parse(value)?,
            "layer_range" => {}
            other => {
                let near = nearest(other, ["model", "layer_range", "parameters"]);
                warnings.push(format!("line {line}: '{other}' has no effect{near}"));
            }
        }
    }
    let model = model.ok_or_else(|| Error::recipe(node.line, "an input needs a `model`"))?;
    Ok(Input { line: node.line, model, layers, parameters })
}

fn layer_range(node: &Node) -> Result<(usize, usize)> {
    let items = node.items("a layer_range such as [0, 8]")?;
    let [from, to] = items else { return Err(node.wrong("a layer_range of two numbers")) };
    let what = "a layer_range of two numbers that are not negative";
    let (from, to) = (from.count(what)?, to.count(what)?);
    match from.cmp(&to) {
        std::cmp::Ordering::Less => Ok((from, to)),
        std::cmp::Ordering::Equal => Err(Error::recipe(
            node.line,
            format!("the layer_range [{from}, {to}] is empty; it ends before its second number"),
        )),
        std::cmp::Ordering::Greater => Err(Error::recipe(
            node.line,
            format!("the layer_range [{from}, {to}] is backwards; write [{to}, {from}]"),
        )),
    }
}

/// Patterns with their lines.
pub(crate) fn patterns(node: &Node) -> Result<Vec<(usize, String)>> {
    let items = node.items("a list of patterns")?;
    items.iter().map(|item| Ok((item.line, item.text("a pattern")?))).collect()
}

fn dtype(node: &Node) -> Result<DType> {
    let name = node.text("an element type")?;
    dtype_of(&name).ok_or_else(|| {
        let known = ["float32", "float16", "bfloat16", "float64"];
        let near = nearest(&name, known);
        Error::recipe(
            node.line,
            format!("'{name}' is not an element type{near} (known: {})", known.join(", ")),
        )
    })
}

/// An element type by torch's name.
pub(crate) fn dtype_of(name: &str) -> Option<DType> {
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" | "float" => Some(DType::F32),
        "float16" | "half" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        "float64" | "double" => Some(DType::F64),
        _ => None,
    }
}

fn tokenizer(found: &Found<'_>, warnings: &mut Vec<String>) -> Result<Option<Tokens>> {
    match (found.get("tokenizer_source"), found.get("tokenizer")) {
        (None, None) => Ok(None),
        (Some(_), Some((line, _))) => {
            let what = "both `tokenizer_source` and `tokenizer` are given; the second says all";
            Err(Error::recipe(line, what))
        }
        (Some((line, value)), None) => {
            Ok(Some(Tokens { line, source: vocabulary(value)?, tokens: Vec::new(), multiple: None }))
        }
        (None, Some((line, value))) => {
            let mut section = Tokens { line, source: Vocabulary::Union, tokens: Vec::new(), multiple: None };
            for (name, line, value) in value.entries("a map with `source` and `tokens`")? {
                match name.as_str() {
                    _ if value.value == Yaml::Null => {}
                    "source" => section.source = vocabulary(value)?,
                    "pad_to_multiple_of" => match value.count("a number of rows")? {
                        0 => return Err(Error::recipe(line, "pad_to_multiple_of 0 fits nothing; choose 64")),
                        number => section.multiple = Some(number),
                    },
                    "tokens" => {
                        let entries = value.entries("a map of tokens")?;
                        let tokens = entries.into_iter().map(|(text, line, value)| token(text, line, value));
                        section.tokens = tokens.collect::<Result<_>>()?;
                    }
                    other => {
                        let near = nearest(other, ["source", "tokens", "pad_to_multiple_of"]);
                        warnings.push(format!("line {line}: '{other}' has no effect{near}"));
                    }
                }
            }
            Ok(Some(section))
        }
    }
}

fn vocabulary(node: &Node) -> Result<Vocabulary> {
    match &node.value {
        Yaml::Text(text) if text == "union" => Ok(Vocabulary::Union),
        Yaml::Text(text) if text == "base" => Ok(Vocabulary::Base),
        _ => Ok(Vocabulary::Model(Reference::parse(node)?)),
    }
}

fn token(text: String, line: usize, node: &Node) -> Result<Token> {
    let mut token = Token { line, text, source: None, force: false };
    for (name, line, value) in node.entries("a map with `source` and `force`")? {
        match name.as_str() {
            "source" if value.value != Yaml::Null => token.source = Some(row_source(value)?),
            "force" => match value.value {
                Yaml::Bool(force) => token.force = force,
                _ => return Err(value.wrong("true or false")),
            },
            "source" => {}
            other => {
                return Err(Error::recipe(
                    line,
                    format!("a token has no '{other}'; it has `source` and `force`"),
                ));
            }
        }
    }
    Ok(token)
}

fn row_source(node: &Node) -> Result<RowSource> {
    let Yaml::Map(_) = node.value else { return Ok(RowSource::Model(Reference::parse(node)?)) };
    let entries = node.entries("a source of a row")?;
    let get = |key: &str| entries.iter().find(|(name, ..)| name == key).map(|(.., value)| *value);
    let Some(kind) = get("kind") else { return Ok(RowSource::Model(Reference::parse(node)?)) };
    match kind.text("a kind of row")?.as_str() {
        "zero" => Ok(RowSource::Zero),
        "model_token" => {
            let model = Reference::parse(get("model").ok_or_else(|| node.wrong("`model` beside `kind`"))?)?;
            match (get("token"), get("token_id")) {
                (Some(token), None) => Ok(RowSource::Token(model, token.text("a token")?)),
                (None, Some(id)) => Ok(RowSource::Id(model, id.count("the number of a row")?)),
                _ => Err(Error::recipe(node.line, "give one of `token` and `token_id`")),
            }
        }
        other => {
            let near = nearest(other, ["zero", "model_token"]);
            Err(Error::recipe(kind.line, format!("'{other}' is not a kind of row{near}")))
        }
    }
}
