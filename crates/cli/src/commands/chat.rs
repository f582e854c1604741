//! `planaria chat`: a conversation with a trained model on the terminal.

use super::generate::write;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::nn::models::Models;
use planaria::train::{Continuation, Dialogue, Generator, Sampling, Weights};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

const HELP: &str = "/system TEXT       system prompt of the conversation; without a text, none\n\
                    /image FILE        show a picture with the next question, to a model that sees\n\
                    /reset             forget the conversation\n\
                    /undo              take back the last question and its answer\n\
                    /retry             answer the last question again, with other choices\n\
                    /temperature N     0 takes the most likely token\n\
                    /tokens N          most tokens of an answer\n\
                    /save FILE         append the conversation to a JSONL file, in the form that training reads\n\
                    /help              these lines\n\
                    /quit              end; so does the end of the input";

/// Talk with a trained model, in the form of its chat template
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Every line is a question; a line that begins with `/` is a command, `/help` lists them. Without a temperature the\n\
    most likely token is taken, unless the checkpoint's generation_config.json says `do_sample`."
)]
pub(crate) struct Args {
    /// A run's folder, whose newest checkpoint is used, or any folder of weights
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Put this adapter on top of the model; may be given again, then they add up
    #[arg(long, value_name = "ADAPTER")]
    lora: Vec<PathBuf>,
    /// System prompt of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A picture to show with the first question, to a model that sees; may be given several times
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// At most this many tokens in an answer [default: as generation_config.json says, or 200]
    #[arg(long, value_name = "NUMBER")]
    tokens: Option<usize>,
    /// 0 takes the most likely token; higher is more random [default: as generation_config.json says, or 0]
    #[arg(long, value_name = "NUMBER", value_parser = super::generate::not_negative)]
    temperature: Option<f64>,
    /// Random seed for sampling
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Use the running average of the weights, which runs with `optim.ema` keep
    #[arg(long)]
    ema: bool,
}

/// A conversation and how its answers are chosen.
struct Talk<'a> {
    dialogue: Dialogue,
    sampling: Sampling,
    terminal: &'a mut Terminal,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let which = if args.ema { Weights::Averaged } else { Weights::Trained };
    let generator = Generator::open_adapted(&args.run, &args.lora, &Models::default())?.weights(which);
    let mut dialogue = Dialogue::open(generator, args.system.as_deref())?;
    args.image.iter().try_for_each(|file| dialogue.show(file))?;
    let own = dialogue.sampling();
    let sampling = Sampling {
        tokens: args.tokens.unwrap_or(own.tokens),
        temperature: args.temperature.unwrap_or(own.temperature),
        seed: args.seed,
        ..own
    };
    let asks = std::io::stdin().is_terminal();
    if asks {
        terminal.note("ask something; /help lists the commands");
    }
    let mut talk = Talk { dialogue, sampling, terminal };
    loop {
        if asks {
            let _ = write!(std::io::stderr(), "> ").and_then(|()| std::io::stderr().flush());
        }
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).context("cannot read standard input")? == 0 {
            return Ok(Exit::Success);
        }
        let line = line.trim_end_matches(['\n', '\r']);
        if line.trim().is_empty() {
            continue;
        }
        let goes_on = match line.strip_prefix('/') {
            Some(command) => talk.command(command)?,
            None => talk.answer(line).map(|()| true)?,
        };
        if !goes_on {
            return Ok(Exit::Success);
        }
    }
}

impl Talk<'_> {
    fn answer(&mut self, question: &str) -> Result<()> {
        let each = self.writer();
        let answer = self.dialogue.say(question, &self.sampling, &each);
        self.tell(answer.map(|answer| (question.to_string(), answer)))
    }

    fn retry(&mut self) -> Result<()> {
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        let each = self.writer();
        match self.dialogue.retry(&self.sampling, &each).transpose() {
            Some(answer) => self.tell(answer),
            None => {
                self.terminal.warn("nothing has been said yet");
                Ok(())
            }
        }
    }

    /// Writes an answer as it comes, unless it is told as JSON at its end.
    fn writer(&self) -> impl Fn(&str) + use<> {
        let json = self.terminal.json;
        move |piece: &str| {
            if !json {
                write(piece)
            }
        }
    }

    /// The end of an answer. A conversation that has become too long is told, and continues when something is forgotten.
    fn tell(&mut self, answer: planaria::train::Result<(String, Continuation)>) -> Result<()> {
        match answer {
            Ok((question, answer)) if self.terminal.json => {
                let finish = if answer.ended { "stop" } else { "length" };
                let value = json!({ "question": question, "answer": answer.text, "ids": answer.ids, "finish": finish });
                self.terminal.object("planaria/chat/1", &value)?;
                self.terminal.flush()?;
            }
            Ok(_) => write("\n"),
            Err(error) => {
                self.terminal.warn(format_args!("{error}"));
                self.terminal.note("/undo takes back the last question, /reset forgets the conversation");
            }
        }
        Ok(())
    }

    /// Does what a command says; false ends the conversation.
    fn command(&mut self, command: &str) -> Result<bool> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "quit" | "exit" => return Ok(false),
            "help" => self.terminal.note(HELP),
            "reset" => self.dialogue.reset(),
            "system" => self.dialogue.set_system(Some(rest).filter(|text| !text.is_empty())),
            "undo" => {
                if self.dialogue.undo().is_none() {
                    self.terminal.warn("nothing has been said yet");
                }
            }
            "retry" => self.retry()?,
            "image" if rest.is_empty() => self.terminal.warn("/image: expected the name of a file"),
            "image" => {
                if let Err(error) = self.dialogue.show(Path::new(rest)) {
                    self.terminal.warn(format_args!("{error}"));
                }
            }
            "temperature" => match super::generate::not_negative(rest) {
                Ok(value) => self.sampling.temperature = value,
                Err(expected) => self.terminal.warn(format_args!("/temperature: {expected}")),
            },
            "tokens" => match rest.parse() {
                Ok(value) => self.sampling.tokens = value,
                Err(_) => self.terminal.warn("/tokens: expected a number such as 200"),
            },
            "save" if rest.is_empty() => self.terminal.warn("/save: expected the name of a file"),
            "save" => self.save(rest)?,
            _ => self.terminal.warn(format_args!("there is no command /{name}; /help lists them")),
        }
        Ok(true)
    }

    fn save(&mut self, file: &str) -> Result<()> {
        let messages: Vec<String> = self.dialogue.messages().iter().map(ToString::to_string).collect();
        let line = format!("{{\"messages\":[{}]}}\n", messages.join(","));
        let opened = std::fs::File::options().create(true).append(true).open(file);
        let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|error| Failure::usage(format!("cannot write '{file}': {error}")))?;
        self.terminal.note(format_args!("saved to {file}"));
        Ok(())
    }
}
