//! Text from a checkpoint, and how likely it finds a text: the newest of a run, or any folder of weights, on one rank or on
//! tensor ranks.

mod measure;
mod sampling;

use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::pretrained::{Pretrained, Which};
use planaria_array::{Array, DType};
use planaria_ckpt::{Item, Kind, State};
use planaria_comm::{Comm, CommExt, alone, threads};
use planaria_layout::Mesh;
use planaria_nn::models::{Architecture, Cache, Models, Network, Run, Stage};
use planaria_nn::{Init, Parallel, Param};
use planaria_tensor::{Tensor, World, no_grad};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::pretrained::Which as Weights;
pub use measure::{Measure, MeasureOptions};
pub use sampling::Sampling;

/// A checkpoint that text can be made from.
#[derive(Debug)]
pub struct Generator {
    from: Pretrained,
    which: Which,
    model: Arc<dyn Architecture>,
    models: Models,
    tokenizer: Tokenizer,
    sampling: Sampling,
    /// Tokens that end a text.
    ends: Vec<u32>,
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
        let from = Pretrained::find(path)?;
        let raw = from.model_config()?;
        let model = models.open(raw.clone().into())?;
        let tokenizer = from.own_tokenizer()?;
        let generation = from.json("generation_config.json")?.unwrap_or_default();
        // As in transformers: the generation's own list, else that of the model.
        let lists = [sampling::ids(&generation, "eos_token_id"), sampling::ids(&raw, "eos_token_id")];
        let named = lists.into_iter().find(|list| !list.is_empty());
        let ends = named.unwrap_or_else(|| tokenizer.frame().eos.into_iter().collect());
        let sampling = Sampling::from_config(&generation);
        Ok(Generator {
            from,
            which: Which::Trained,
            model,
            models: models.clone(),
            tokenizer,
            sampling,
            ends,
        })
    }

    /// Takes the running average of the weights, or the weights themselves.
    #[must_use]
    pub fn weights(self, which: Which) -> Generator {
        Generator { which, ..self }
    }

    /// The checkpoint's folder inside the path it was opened with.
    pub fn folder(&self) -> &str {
        self.from.folder()
    }

    /// How its `generation_config.json` would have tokens chosen.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Refuses what cannot be done before anything is loaded; how many of the tokens asked for fit behind the prompt.
    pub fn check(&self, prompt: &str, sampling: &Sampling, ranks: usize) -> Result<usize> {
        self.check_ranks(ranks)?;
        let (given, most) = (self.prompt(prompt)?.len(), self.model.reach());
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
        let mut tokens = self.tokenizer.encode_prompt(prompt)?;
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
        Ok(made.swap_remove(0).text)
    }

    /// Continues several texts, one after the other; `each` is given the number of the text and every new token's text.
    /// The weights are loaded once.
    pub fn generate_all(
        &self,
        prompts: &[&str],
        sampling: &Sampling,
        ranks: usize,
        each: &(dyn Fn(usize, &str) + Sync),
    ) -> Result<Vec<Continuation>> {
        let mut fits = Vec::new();
        for prompt in prompts {
            let tokens = self.check(prompt, sampling, ranks.max(1))?;
            fits.push(Sampling { tokens, ..*sampling });
        }
        self.on_ranks(ranks, &|comm| {
            let model = self.network(comm)?;
            let all = prompts.iter().zip(&fits).enumerate();
            all.map(|(number, (prompt, sampling))| {
                let tell = |piece: &str| {
                    if comm.rank() == 0 {
                        each(number, piece);
                    }
                };
                self.continue_one(&*model, prompt, sampling, &tell)
            })
            .collect()
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

    fn continue_one(
        &self,
        model: &dyn Network,
        prompt: &str,
        sampling: &Sampling,
        each: &dyn Fn(&str),
    ) -> Result<Continuation> {
        let prompt_ids = self.prompt(prompt)?;
        let mut tokens = prompt_ids.clone();
        let (given, mut said, mut ended) = (tokens.len(), 0, false);
        let cache = model.cache(given + sampling.tokens);
        let mut fresh = tokens.clone();
        for number in 0..sampling.tokens {
            let scores = no_grad(|| next_scores(model, &fresh, &cache))?;
            let token = sampling.choose(&scores, &tokens, number)?;
            if self.ends.contains(&token) {
                ended = true;
                break;
            }
            tokens.push(token);
            fresh = vec![token];
            let text = self.tokenizer.decode(&tokens[given..])?;
            // A character may need several tokens; what is not complete yet waits.
            let ready = text.trim_end_matches('\u{fffd}').len();
            if ready > said && text.is_char_boundary(said) {
                each(&text[said..ready]);
                said = ready;
            }
        }
        let ids = tokens.split_off(given);
        Ok(Continuation { text: self.tokenizer.decode(&ids)?, prompt_ids, ids, ended })
    }

    /// The model with its weights, in this rank's pieces.
    fn network(&self, comm: &Arc<dyn Comm>) -> Result<Box<dyn Network>> {
        let mesh = Mesh::new(&[("ep", 1), ("tp", comm.size())])?;
        let parallel =
            (comm.size() > 1).then(|| Parallel { world: World::new(comm.clone()), mesh, sequence: false });
        let init = Init { seed: 0, dtype: DType::F32 };
        let model = self.model.build(&Stage::whole(&*self.model), parallel.as_ref(), &init)?;
        let mut items = Vec::new();
        for param in model.params().iter().filter(|p| p.tied().is_none()) {
            items.extend(pieces(param, comm.world_rank())?);
        }
        self.from.load(&**comm, &mut State::new(items), self.which, &self.models)?;
        Ok(model)
    }
}

/// What this rank has of a parameter, as a checkpoint names it.
fn pieces(param: &Param, rank: usize) -> Result<Vec<Item>> {
    let (leaf, spec) = (param.leaf(), param.spec());
    let local = leaf.local();
    let item = |name: &str, layout: Option<&planaria_layout::Layout>, array: &Array| match layout {
        Some(layout) => Ok(Item::placed(Kind::Parameter, name, layout, rank, array)?),
        None => Ok(Item::whole(Kind::Parameter, name, array)),
    };
    if !spec.is_stacked() {
        return Ok(vec![item(&spec.name, leaf.layout(), local)?]);
    }
    let files = spec.files();
    let first = match leaf.layout() {
        Some(layout) => layout.piece(rank)?.boxes().first().map_or(0, |b| b.lo()[0]),
        None => 0,
    };
    let inner = leaf.layout().map(without_first_dim).transpose()?;
    (0..local.shape()[0])
        .map(|i| item(&files[first + i], inner.as_ref(), &local.select(0, i as i64)?))
        .collect()
}

/// The layout of one expert: the dims after the first, on the same mesh.
fn without_first_dim(layout: &planaria_layout::Layout) -> Result<planaria_layout::Layout> {
    use planaria_layout::{Layout, Placement, Shape};
    let shape = Shape::new(&layout.shape()[1..])?;
    let dim = |p: &Placement| match p {
        Placement::Shard(shard) if shard.dim > 0 => Placement::shard(shard.dim - 1),
        _ => Placement::Replicate,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(dim).collect();
    Ok(Layout::new(layout.mesh(), &shape, &placements)?)
}

/// Scores of the token after `fresh`, the same on every rank.
fn next_scores(model: &dyn Network, fresh: &[u32], cache: &Cache) -> Result<Vec<f32>> {
    let ids: Vec<i64> = fresh.iter().map(|&t| i64::from(t)).collect();
    let input = Tensor::from_slice(&ids, &[1, ids.len()])?;
    let end = model.forward(input.into(), &Run { cache: Some(cache), ..Run::default() })?;
    let last = end.hidden.narrow(1, ids.len() - 1, 1)?;
    let scores = model.logits(&last)?.whole()?.cast(DType::F32)?;
    Ok(scores.to_vec()?)
}
