//! Text from a checkpoint, and how likely it finds a text: the newest of a run, or any folder of weights, on one rank or on
//! tensor ranks.

mod batches;
mod dialogue;
mod measure;
mod pictures;
mod sampling;

use crate::config::Precision;
use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::opened::Opened;
use crate::pretrained::Which;
use planaria_array::ops::Keep;
use planaria_array::{Array, DType, Device};
use planaria_comm::{Comm, alone, threads};
use planaria_layout::Mesh;
use planaria_nn::models::{Architecture, Models, Network, Run};
use planaria_nn::{Init, Parallel};
use planaria_tensor::{Tensor, World, no_grad};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::pretrained::Which as Weights;
pub use batches::{BatchTime, Continued};
pub use dialogue::Dialogue;
pub use measure::{Measure, MeasureOptions};
pub use pictures::Prepared;
pub use sampling::Sampling;
pub(crate) use sampling::named_ends;

/// A checkpoint that text can be made from.
#[derive(Debug)]
pub struct Generator {
    from: Opened,
    which: Which,
    model: Arc<dyn Architecture>,
    tokenizer: Tokenizer,
    sampling: Sampling,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// How texts become questions, where they are.
    asked: Option<Arc<dialogue::Asked>>,
    /// What it computes with, and where.
    dtype: DType,
    device: Device,
    /// Texts that are continued side by side.
    batch: usize,
}

/// What came after a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The new text.
    pub text: String,
    /// The tokens of the text that was given.
    pub prompt_ids: Vec<u32>,
    /// The new tokens, without the one that ends a text.
    pub ids: Vec<u32>,
    /// Whether the model ended it; otherwise as many tokens as asked for, or as fit, were made.
    pub ended: bool,
}

impl Generator {
    /// Opens the newest checkpoint of a run's folder, or a folder of weights that anyone wrote.
    pub fn open(path: &Path) -> Result<Generator> {
        Generator::open_with(path, &Models::default())
    }

    /// The same with models of one's own.
    pub fn open_with(path: &Path, models: &Models) -> Result<Generator> {
        Generator::open_adapted(path, &[], models)
    }

    /// The same with adapters on top of the model, which add up.
    pub fn open_adapted(path: &Path, adapters: &[PathBuf], models: &Models) -> Result<Generator> {
        let from = Opened::open(path, adapters, models)?;
        let raw = from.base().model_config()?;
        let model = from.model().clone();
        let tokenizer = from.tokenizer()?;
        let generation = from.base().json("generation_config.json")?.unwrap_or_default();
        let mut ends = named_ends(&generation, &raw);
        if ends.is_empty() {
            ends.extend(tokenizer.frame().eos);
        }
        let sampling = Sampling::from_config(&generation);
        Ok(Generator {
            from,
            which: Which::Trained,
            model,
            tokenizer,
            sampling,
            ends,
            asked: None,
            dtype: DType::F32,
            device: Device::Cpu,
            batch: 1,
        })
    }

    /// Takes the running average of the weights, or the weights themselves.
    #[must_use]
    pub fn weights(self, which: Which) -> Generator {
        Generator { which, ..self }
    }

    /// Computes on a device instead of the host.
    #[must_use]
    pub fn device(self, device: Device) -> Generator {
        Generator { device, ..self }
    }

    /// Continues this many texts side by side.
    #[must_use]
    pub fn batch(self, batch: usize) -> Generator {
        Generator { batch: batch.max(1), ..self }
    }

    /// Computes in a precision other than f32.
    #[must_use]
    pub fn precision(self, precision: Precision) -> Generator {
        Generator { dtype: precision.dtype(), ..self }
    }

    /// The checkpoint's folder inside the path it was opened with.
    pub fn folder(&self) -> &str {
        self.from.base().folder()
    }

    /// How its `generation_config.json` would have tokens chosen.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Refuses what cannot be done before anything is loaded; how many of the tokens asked for fit behind the prompt.
    pub fn check(&self, prompt: &str, sampling: &Sampling, ranks: usize) -> Result<usize> {
        self.check_ranks(ranks)?;
        self.room(self.prompt(prompt)?.len(), sampling)
    }

    /// How many of the tokens asked for fit behind so many.
    fn room(&self, given: usize, sampling: &Sampling) -> Result<usize> {
        let most = self.model.reach();
        if given >= most {
            return Err(Error::Value {
                key: "the text".into(),
                found: format!("{given} tokens long"),
                expected: format!("fewer than the {most} positions of the model (max_position_embeddings)"),
            });
        }
        Ok(sampling.tokens.min(most - given))
    }

    /// Refuses a number of ranks that the model's matrices cannot be cut for.
    fn check_ranks(&self, ranks: usize) -> Result<()> {
        let mesh = Mesh::new(&[("ep", 1), ("tp", ranks.max(1))])?;
        Ok(self.model.check_parallel(&Parallel { world: World::supposed(0), mesh, sequence: false })?)
    }

    /// The tokens to begin with.
    fn prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut tokens = match &self.asked {
            Some(asked) => asked.tokens(prompt)?,
            None => self.tokenizer.encode_prompt(prompt)?,
        };
        if tokens.is_empty() {
            tokens.extend(self.tokenizer.frame().bos.or(self.tokenizer.frame().eos));
        }
        if tokens.is_empty() {
            return Err(Error::Value {
                key: "the text".into(),
                found: "empty".into(),
                expected: "at least one token, as this tokenizer has none that begins a document".into(),
            });
        }
        Ok(tokens)
    }

    /// Continues a text; `each` is given every new token's text as it comes. Ranks are threads that share each matrix.
    pub fn generate(
        &self,
        prompt: &str,
        sampling: &Sampling,
        ranks: usize,
        each: &(dyn Fn(&str) + Sync),
    ) -> Result<String> {
        let mut made = self.generate_all(&[prompt], sampling, ranks, &|_, piece| each(piece))?;
        Ok(made.texts.swap_remove(0).text)
    }

    /// Continues several texts, as many side by side as a batch has rows; `each` is given the number of the text and what is new of
    /// it: token by token where a batch is one text, else all at once, in the order of the texts. Several ranks take one text after the other. The weights are loaded once.
    pub fn generate_all(
        &self,
        prompts: &[&str],
        sampling: &Sampling,
        ranks: usize,
        each: &(dyn Fn(usize, &str) + Sync),
    ) -> Result<Continued> {
        let mut fits = Vec::new();
        for prompt in prompts {
            let tokens = self.check(prompt, sampling, ranks.max(1))?;
            fits.push(Sampling { tokens, ..*sampling });
        }
        self.on_ranks(ranks, &|comm| {
            let model = self.network(comm)?;
            let tell = |number: usize, piece: &str| {
                if comm.rank() == 0 {
                    each(number, piece);
                }
            };
            if let Some(made) = self.in_batches(&*model, prompts, &fits, &tell)? {
                return Ok(made);
            }
            let all = prompts.iter().zip(&fits).enumerate();
            let texts = all.map(|(number, (prompt, sampling))| {
                self.continue_tokens(&*model, self.prompt(prompt)?, sampling, &|piece| tell(number, piece))
            });
            Ok(Continued { texts: texts.collect::<Result<_>>()?, time: None })
        })
    }

    /// Runs on thread ranks; what rank 0 has found.
    fn on_ranks<T: Send>(
        &self,
        ranks: usize,
        work: &(dyn Fn(&Arc<dyn Comm>) -> Result<T> + Sync),
    ) -> Result<T> {
        if ranks <= 1 {
            return work(&alone());
        }
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let work = |comm: Arc<dyn Comm>| {
            work(&comm).map_err(|error| {
                let text = error.to_string();
                // Ranks that only followed say that a rank stopped; the first one knows why.
                if !error.is_echo() {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
                text
            })
        };
        match threads::try_run(&threads::Options::new(ranks), work) {
            Ok(mut found) => Ok(found.swap_remove(0)),
            Err(error) => {
                let first = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(first.unwrap_or_else(|| error.into()))
            }
        }
    }

    fn continue_tokens(
        &self,
        model: &dyn Network,
        prompt_ids: Vec<u32>,
        sampling: &Sampling,
        each: &dyn Fn(&str),
    ) -> Result<Continuation> {
        self.continue_prepared(model, &Prepared::text(prompt_ids), sampling, each)
    }

    fn continue_prepared(
        &self,
        model: &dyn Network,
        given: &Prepared,
        sampling: &Sampling,
        each: &dyn Fn(&str),
    ) -> Result<Continuation> {
        let prompt_ids = given.tokens.clone();
        let mut tokens = prompt_ids.clone();
        let (begun, mut said, mut ended) = (tokens.len(), 0, false);
        let cache = model.cache(begun + sampling.tokens);
        let mut fresh = tokens.clone();
        for number in 0..sampling.tokens {
            let run = Run { cache: Some(&cache), ..given.run(number)? };
            let scores = no_grad(|| next_scores(model, &fresh, &run))?;
            let token = match sampling.takes_the_best() {
                true => scores.argmax(None, Keep::No)?.item()?.as_f64() as u32,
                false => sampling.choose(&scores.to_vec()?, &tokens, number)?,
            };
            if self.ends.contains(&token) {
                ended = true;
                break;
            }
            tokens.push(token);
            fresh = vec![token];
            self.tell(&tokens[begun..], &mut said, each)?;
        }
        let ids = tokens.split_off(begun);
        Ok(Continuation { text: self.tokenizer.decode(&ids)?, prompt_ids, ids, ended })
    }

    /// Tells what of a text was not said before.
    fn tell(&self, tokens: &[u32], said: &mut usize, each: &dyn Fn(&str)) -> Result<()> {
        let text = self.tokenizer.decode(tokens)?;
        // A character may need several tokens; what is not complete yet waits.
        let ready = text.trim_end_matches('\u{fffd}').len();
        if ready > *said && text.is_char_boundary(*said) {
            each(&text[*said..ready]);
            *said = ready;
        }
        Ok(())
    }

    /// The model with its weights, in this rank's pieces.
    fn network(&self, comm: &Arc<dyn Comm>) -> Result<Box<dyn Network>> {
        let init = Init { dtype: self.dtype, device: self.device, ..Init::default() };
        self.from.load_which(comm, &init, self.which)
    }
}

/// Scores of the token after `fresh`, the same on every rank.
pub(crate) fn next_scores(model: &dyn Network, fresh: &[u32], run: &Run<'_>) -> Result<Array> {
    let ids: Vec<i64> = fresh.iter().map(|&t| i64::from(t)).collect();
    let input = Tensor::from_slice(&ids, &[1, ids.len()])?;
    let end = model.forward(input.into(), run)?;
    let last = end.hidden.narrow(1, ids.len() - 1, 1)?;
    Ok(model.logits(&last)?.whole()?.cast(DType::F32)?)
}
