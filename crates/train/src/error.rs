//! What can go wrong in a run: a configuration that does not fit, and what lower floors report.

use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refused configuration or a run that cannot continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that its section does not have.
    #[error("unknown key `{key}` ({origin}){}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key with its sections.
        key: String,
        /// Where it stands.
        origin: String,
        /// The known key that looks most like it.
        nearest: Option<String>,
    },
    /// A value outside its range.
    #[error("`{key}` is {found}; expected {expected}")]
    Value {
        /// The key with its section.
        key: String,
        /// Its value.
        found: String,
        /// What is allowed.
        expected: String,
    },
    /// A text that is not TOML, or a value of the wrong type.
    #[error("{origin}: {what}")]
    Syntax {
        /// Where it stands.
        origin: String,
        /// What is wrong.
        what: String,
    },
    /// Files that extend each other in a circle.
    #[error("`{file}` extends itself through {through}")]
    Circle {
        /// The file.
        file: String,
        /// The files in between.
        through: String,
    },
    /// A number of ranks that does not make the mesh.
    #[error(
        "{} cannot make the mesh \"{mesh}\", which needs {needs} or, without `dp`, a multiple of its other axes", count(*ranks)
    )]
    Ranks {
        /// The ranks there are.
        ranks: usize,
        /// The mesh asked for.
        mesh: String,
        /// The ranks it needs.
        needs: usize,
    },
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A new run in the folder of another.
    #[error("'{dir}' has checkpoints up to step {step}, which conflict with {key}")]
    Occupied {
        /// The folder.
        dir: String,
        /// Step of the newest.
        step: u64,
        /// What was asked for.
        key: String,
    },
    /// A folder that another process trains in.
    #[error("'{dir}' is in use by {by}")]
    Locked {
        /// The folder.
        dir: String,
        /// By whom.
        by: String,
    },
    /// A checkpoint of another model or optimizer.
    #[error("cannot resume from '{folder}' with {what}")]
    Differs {
        /// The checkpoint.
        folder: String,
        /// The values then and now.
        what: String,
    },
    /// A checkpoint of an adapter that was trained on another model.
    #[error(
        "cannot resume from '{folder}': the weights of '{init}' are not those that the adapter was trained on (their hash \
         is {now}, and it was {then})"
    )]
    OtherBase {
        /// The checkpoint.
        folder: String,
        /// `model.init`.
        init: String,
        /// The hash in the checkpoint.
        then: String,
        /// The hash of now.
        now: String,
    },
    /// A damaged checkpoint.
    #[error("cannot resume from '{folder}': {source}")]
    Resume {
        /// The checkpoint.
        folder: String,
        /// What is wrong with it.
        source: Box<planaria_ckpt::Error>,
        /// The newest one before it.
        older: Option<String>,
    },
    /// A run whose last state is not on disk.
    #[error("the state of step {step} is not saved: {why}{}", kept(newest))]
    NotSaved {
        /// The step.
        step: u64,
        /// Why.
        why: String,
        /// The newest checkpoint.
        newest: Option<String>,
    },
    /// A run whose gradients are not numbers any more.
    #[error("the gradients {} up to step {step} are not finite{}", of_steps(*skipped), kept(newest))]
    Diverged {
        /// The step.
        step: u64,
        /// Skipped steps.
        skipped: u64,
        /// The newest checkpoint.
        newest: Option<String>,
    },
    /// A rank whose values cannot be trusted.
    #[error("after step {step} {what}{}", kept(newest))]
    Suspect {
        /// The step.
        step: u64,
        /// The ranks that differ from the others; all where nobody can say which are wrong.
        ranks: Vec<usize>,
        /// What is seen.
        what: String,
        /// The newest checkpoint.
        newest: Option<String>,
    },
    /// A run whose state does not fit what is there.
    #[error("{what}")]
    Run {
        /// What does not fit, with the values.
        what: String,
    },
    /// A rank failed; the others stopped because of it.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// Why.
        source: Box<Error>,
    },
    /// What every rank would have found, as another rank found it first.
    #[error("{what}")]
    Told {
        /// That rank, which reports it.
        rank: usize,
        /// What it says.
        what: String,
        /// True for what the user's configuration causes.
        usage: bool,
    },
    /// A folder whose weights cannot be taken.
    #[error("the weights of '{path}': {source}")]
    Weights {
        /// The folder, as it was given.
        path: String,
        /// Why.
        source: Box<Error>,
    },
    /// Weights without the tokenizer that they were trained with.
    #[error(
        "there is no tokenizer beside the weights of '{path}': no tokenizer.json, tokenizer.model, or vocab.json with merges.txt"
    )]
    NoTokenizer {
        /// The folder, as it was given.
        path: String,
    },
    /// A broken promise of our own.
    #[error("this is a bug: {what}")]
    Bug {
        /// The promise.
        what: String,
    },
    /// Sizes or placements that do not fit.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
    /// A kernel refused its input.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// Ranks could not work together.
    #[error(transparent)]
    Comm(#[from] planaria_comm::Error),
    /// An op refused its input.
    #[error(transparent)]
    Tensor(#[from] planaria_tensor::Error),
    /// A model refused its configuration or input.
    #[error(transparent)]
    Model(#[from] planaria_nn::Error),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] planaria_ckpt::Error),
    /// Storage failed.
    #[error(transparent)]
    Store(#[from] planaria_store::Error),
    /// Training data is missing or damaged.
    #[error(transparent)]
    Data(#[from] crate::data::Error),
    /// A schedule that does not fit, or a stage that failed.
    #[error(transparent)]
    Pipeline(#[from] crate::pipeline::Error),
    /// A model could not be captured as a program, or the program not be run.
    #[error(transparent)]
    Program(#[from] planaria_program::Error),
    /// Metrics or logs could not be written.
    #[error(transparent)]
    Telemetry(#[from] planaria_telemetry::Error),
    /// A batch that does not divide.
    #[error(transparent)]
    Batch(#[from] crate::geometry::Error),
}

impl Error {
    /// A key that is none of `known`.
    pub(crate) fn unknown_key(
        key: impl Into<String>,
        last: &str,
        known: &[&str],
        origin: impl Into<String>,
    ) -> Error {
        Error::UnknownKey { key: key.into(), origin: origin.into(), nearest: nearest(last, known) }
    }

    /// One next action, where there is an obvious one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownKey { nearest: None, .. } => Some("`planaria config schema` lists all keys".into()),
            Error::Ranks { needs, .. } => {
                Some(format!("start {} with `-n {needs}`, or change `mesh`", count(*needs)))
            }
            Error::Rank { source, .. } | Error::Weights { source, .. } => source.hint(),
            Error::Data(error) => error.hint(),
            Error::Occupied { dir, .. } => Some(format!(
                "choose another `name`, remove '{dir}', or leave the key out to resume from its newest checkpoint"
            )),
            Error::Locked { .. } => Some("wait for it to end, or give this run another `name`".into()),
            Error::Differs { folder, .. } => Some(format!(
                "set it back, or begin a run of another `name` with `model.init = \"{folder}\"`"
            )),
            Error::OtherBase { folder, .. } => Some(format!(
                "give `model.init` the model that it was trained on, or begin a run of another `name` with `lora.adapter = \"{folder}\"`"
            )),
            Error::Resume { older: Some(older), .. } => {
                Some(format!("go back to the one before it with `--set checkpoint.from={older}`"))
            }
            Error::Resume { older: None, .. } => {
                Some("there is no checkpoint before it; remove it to start over".into())
            }
            Error::NoTokenizer { .. } => Some(
                "put it there; a run can also name one in `data.tokenizer`, or `\"bytes\"` for models of bytes".into(),
            ),
            Error::NotSaved { .. } => {
                Some("free some space and start the run again; it resumes from its newest checkpoint".into())
            }
            Error::Suspect { .. } => {
                Some("take the machine of that rank out; `planaria launch --min-ranks` continues without it".into())
            }
            Error::Diverged { .. } => {
                Some("lower `optim.lr`, go back with `checkpoint.from`, or raise `train.max_skipped`".into())
            }
            _ => None,
        }
    }

    /// With the rank it happened on, unless every rank would have said the same.
    pub(crate) fn of_rank(self, rank: usize) -> Error {
        if self.is_of_all() { self } else { Error::Rank { rank, source: Box::new(self) } }
    }

    /// True for what every rank would find: what was asked for, and what was read.
    pub(crate) fn is_of_all(&self) -> bool {
        self.is_usage()
            || matches!(
                self,
                Error::Data(_)
                    | Error::Weights { .. }
                    | Error::Resume { .. }
                    | Error::Io { .. }
                    | Error::Suspect { .. }
            )
    }

    /// True for what only says that another rank failed.
    pub fn is_echo(&self) -> bool {
        use planaria_comm::Error as Comm;
        use planaria_tensor::Error as Tensor;
        let echo = |e: &Comm| matches!(e, Comm::Aborted { .. } | Comm::Left { .. } | Comm::Remote { .. });
        match self {
            Error::Comm(e) | Error::Tensor(Tensor::Comm(e)) => echo(e),
            Error::Model(planaria_nn::Error::Comm(e) | planaria_nn::Error::Tensor(Tensor::Comm(e))) => {
                echo(e)
            }
            Error::Checkpoint(planaria_ckpt::Error::Comm(e)) => echo(e),
            Error::Pipeline(crate::pipeline::Error::Comm(e)) => echo(e),
            Error::Weights { source, .. } => source.is_echo(),
            Error::Told { .. } => true,
            _ => false,
        }
    }

    /// True for a checkpoint that cannot be resumed from because its files are not what they were.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Error::Resume { .. })
    }

    /// True for what the user's configuration causes.
    pub fn is_usage(&self) -> bool {
        use crate::pipeline::Error as Pipeline;
        use planaria_nn::Error as Model;
        matches!(
            self,
            Error::UnknownKey { .. }
                | Error::Value { .. }
                | Error::Syntax { .. }
                | Error::Circle { .. }
                | Error::Ranks { .. }
                | Error::Occupied { .. }
                | Error::Locked { .. }
                | Error::Differs { .. }
                | Error::OtherBase { .. }
                | Error::NoTokenizer { .. }
                | Error::Batch(_)
                | Error::Layout(_)
                | Error::Pipeline(Pipeline::UnknownKind { .. } | Pipeline::Size { .. })
                | Error::Model(Model::Json { .. } | Model::Key { .. })
                | Error::Model(Model::Unsupported { .. } | Model::Sizes { .. })
        ) || matches!(self, Error::Rank { source, .. } if source.is_usage())
            || matches!(self, Error::Told { usage: true, .. })
            || matches!(self, Error::Data(error) if error.is_usage())
            || matches!(self, Error::Weights { source, .. } if source.is_usage() || matches!(**source, Error::Run { .. }))
    }

    /// About the weights of a folder. That a rank refused them is said as that rank says it: the reason is theirs.
    pub(crate) fn in_weights(self, path: &str) -> Error {
        use planaria_ckpt::Trouble;
        use planaria_comm::Error::Remote;
        let source = match self {
            Error::Weights { .. } | Error::Told { .. } => return self,
            Error::Checkpoint(
                planaria_ckpt::Error::Comm(Remote { message, .. })
                | planaria_ckpt::Error::Rank { kind: Trouble::Request, message, .. },
            ) => Error::Run { what: message },
            other => other,
        };
        Error::Weights { path: path.to_string(), source: Box::new(source) }
    }
}

/// `1 rank`, `2 ranks`.
fn count(ranks: usize) -> String {
    format!("{ranks} {}", if ranks == 1 { "rank" } else { "ranks" })
}

/// `of the last step`, `of the last 2 steps`.
fn of_steps(number: u64) -> String {
    if number == 1 { "of the last step".into() } else { format!("of the last {number} steps") }
}

/// What is left after a failure.
fn kept(newest: &Option<String>) -> String {
    match newest {
        Some(folder) => format!("; the newest checkpoint is '{folder}'"),
        None => "; there is no checkpoint".into(),
    }
}

/// The name that looks most like `name`, if one does: a few letters are other ones, or it is a beginning of it.
pub(crate) fn nearest(name: &str, known: &[&str]) -> Option<String> {
    let begins = |k: &&&str| k.len().min(name.len()) >= 3 && (name.starts_with(**k) || k.starts_with(name));
    let scored = known.iter().map(|k| (strsim::osa_distance(name, k), *k));
    let (edits, best) = scored.min()?;
    let longer = name.len().max(best.len());
    // One letter of two is half of the name.
    let alike = longer > 2 && edits <= (longer / 3).max(1);
    if alike { Some(best.to_string()) } else { known.iter().find(begins).map(ToString::to_string) }
}
