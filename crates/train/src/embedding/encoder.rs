//! Embeddings of texts by a folder of sentence-transformers, or by any folder of a model that we know.

use super::folder::{self, Folder, Layer};
use super::{Similarity, TextSpan, normalized, pool};
use crate::config::Precision;
use crate::data::Tokenizer;
use crate::data::texts::{self, Encoded};
use crate::error::{Error, Result};
use crate::opened::Opened;
use crate::pretrained::Pretrained;
use planaria_array::{Array, DType, Device};
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::models::{Models, Network, Run};
use planaria_tensor::ops::Documents;
use planaria_tensor::{Tensor, no_grad, ops};
use std::path::Path;

/// A model that texts can be embedded by.
#[derive(Debug)]
pub struct Encoder {
    opened: Opened,
    tokenizer: Tokenizer,
    /// Where it stands how states become vectors: an adapter has its own.
    home: Pretrained,
    folder: Folder,
    longest: usize,
    dtype: DType,
    device: Device,
}

/// What stands before texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TextPrompt {
    /// What the folder says stands there unless something else is asked for.
    #[default]
    Default,
    /// The one that the folder has under this name.
    Named(String),
    /// This.
    Literal(String),
}

/// How texts are embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Texts that are computed at a time.
    pub batch: usize,
    /// What stands before each.
    pub prompt: TextPrompt,
    /// Only the first elements of each vector, made to have length 1 again where the folder does that.
    pub dims: Option<usize>,
}

impl Default for EncodeOptions {
    fn default() -> EncodeOptions {
        EncodeOptions { batch: 32, prompt: TextPrompt::Default, dims: None }
    }
}

impl Encoder {
    /// Opens a folder, or the newest checkpoint of a run that learnt embeddings. What says nothing of pooling is pooled by the
    /// mean, as sentence-transformers does.
    pub fn open(path: &Path) -> Result<Encoder> {
        let opened = Opened::open_as(path, &[], &Models::default(), &folder::without_head)?;
        let tokenizer = opened.tokenizer()?;
        let mut home = opened.base();
        for folder in opened.folders() {
            if Folder::is_in(folder)? {
                home = folder;
                break;
            }
        }
        let (home, folder) = (home.clone(), Folder::read(home)?);
        let longest = folder.longest.unwrap_or(usize::MAX).min(opened.model().reach());
        Ok(Encoder { opened, tokenizer, home, folder, longest, dtype: DType::F32, device: Device::Cpu })
    }

    /// Computes on a device instead of the host.
    #[must_use]
    pub fn device(self, device: Device) -> Encoder {
        Encoder { device, ..self }
    }

    /// Computes in this precision.
    #[must_use]
    pub fn precision(self, precision: Precision) -> Encoder {
        Encoder { dtype: precision.dtype(), ..self }
    }

    /// Most tokens of a text; longer ones lose their end.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// How alike two vectors of this folder are.
    pub fn similarity(&self) -> Similarity {
        self.folder.similarity
    }

    /// The text that stands before others.
    pub fn prompt(&self, prompt: &TextPrompt) -> Result<String> {
        let named = |name: &String| {
            let known: Vec<&str> = self.folder.prompts.keys().map(String::as_str).collect();
            self.folder.prompts.get(name).cloned().ok_or_else(|| Error::Value {
                key: "the prompt".into(),
                found: format!("'{name}'"),
                expected: format!("one that the folder has: {}", known.join(", ")),
            })
        };
        match prompt {
            TextPrompt::Literal(text) => Ok(text.clone()),
            TextPrompt::Named(name) => named(name),
            TextPrompt::Default => self.folder.default_prompt.as_ref().map_or(Ok(String::new()), named),
        }
    }

    /// The tokens of a text behind a prompt.
    pub fn tokens(&self, prompt: &str, text: &str) -> Result<Encoded> {
        let lower = self.folder.lower_case.then(|| text.to_lowercase());
        Ok(texts::encode(&self.tokenizer, prompt, lower.as_deref().unwrap_or(text), self.longest)?)
    }

    /// One vector for each text, in their order. Texts of like lengths are computed together; `each` hears how many are done.
    pub fn encode(
        &self,
        texts: &[impl AsRef<str>],
        options: &EncodeOptions,
        each: &dyn Fn(usize, usize),
    ) -> Result<Vec<Vec<f32>>> {
        let prompt = self.prompt(&options.prompt)?;
        let mut all = Vec::with_capacity(texts.len());
        for (number, text) in texts.iter().enumerate() {
            let encoded = self.tokens(&prompt, text.as_ref())?;
            let own = if self.folder.include_prompt { 0 } else { encoded.prompt };
            if encoded.tokens.len() <= own {
                let what = format!("text {number} has no token to make an embedding of");
                return Err(Error::Run { what });
            }
            all.push(encoded);
        }
        let init = Init { dtype: self.dtype, device: self.device, ..Init::default() };
        let model = self.opened.load(&alone(), &init)?;
        let layers = self
            .folder
            .layers
            .iter()
            .map(|layer| layer.load(&self.home, self.device))
            .collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(all[at].tokens.len()));
        let mut out = vec![Vec::new(); all.len()];
        let mut done = 0;
        for chunk in order.chunks(options.batch.max(1)) {
            let rows: Vec<&Encoded> = chunk.iter().map(|&at| &all[at]).collect();
            let vectors = no_grad(|| self.batch(&*model, &rows, &layers, options.dims))?;
            let width = vectors.shape()[1];
            let values = vectors.cast(DType::F32)?.contiguous()?.to_vec::<f32>()?;
            for (&at, vector) in chunk.iter().zip(values.chunks(width.max(1))) {
                out[at] = vector.to_vec();
            }
            done += chunk.len();
            each(done, all.len());
        }
        Ok(out)
    }

    /// The vectors of texts side by side, `[texts, width]`.
    fn batch(
        &self,
        model: &dyn Network,
        rows: &[&Encoded],
        layers: &[Layer],
        dims: Option<usize>,
    ) -> Result<Array> {
        let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        let mut tokens = vec![0i64; rows.len() * longest];
        for (to, row) in tokens.chunks_mut(longest.max(1)).zip(rows) {
            to.iter_mut().zip(&row.tokens).for_each(|(to, &id)| *to = i64::from(id));
        }
        // What fills rows up is a document of its own, which no text sees.
        let ends = |row: &&Encoded| Vec::from_iter(Some(row.tokens.len()).filter(|&end| end < longest));
        let starts: Vec<Vec<usize>> = rows.iter().map(ends).collect();
        let documents = Some(Documents::new(starts, longest)?)
            .filter(|_| rows.iter().any(|row| row.tokens.len() < longest));
        let tokens = Tensor::from_slice(&tokens, &[rows.len(), longest])?;
        let last = model.forward(tokens.into(), &Run { documents, ..Run::default() })?;
        let span = |row: &&Encoded| {
            let counted = if self.folder.include_prompt { 0 } else { row.prompt };
            vec![TextSpan { tokens: 0..row.tokens.len(), counted }]
        };
        let spans: Vec<Vec<TextSpan>> = rows.iter().map(span).collect();
        let mut vectors = pool(&model.states(&last.hidden)?, &spans, &self.folder.pooling)?.squeeze(&[1])?;
        for layer in layers {
            vectors = layer.forward(&vectors)?;
        }
        if let Some(dims) = dims {
            let width = vectors.shape()[1];
            if dims == 0 || dims > width {
                let expected = format!("from 1 to {width}, the width of an embedding");
                return Err(Error::Value { key: "the dims".into(), found: dims.to_string(), expected });
            }
            vectors = vectors.narrow(1, 0, dims)?;
            if self.folder.layers.iter().any(folder::LayerSpec::normalizes) {
                vectors = normalized(&vectors)?;
            }
        }
        Ok(vectors.local().clone())
    }
}

impl Layer {
    /// What a layer after pooling makes of vectors `[texts, width]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Layer::Normalize => normalized(x),
            Layer::Dense { weight, bias, activation } => {
                let bias = bias.as_ref().map(|bias| Tensor::new((**bias).clone()));
                let y = ops::linear(x, &Tensor::new((**weight).clone()), bias.as_ref())?;
                activation.apply(&y)
            }
        }
    }
}
