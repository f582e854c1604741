//! What responses are worth: functions by name, and programs or servers that others wrote.

use super::http;
use crate::error::{Error, Result};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `format` asks for when nothing else is said: reasons, then an answer.
const FORMAT: &str = r"(?s)<think>.*?</think>\s*<answer>.*?</answer>";

/// A source of rewards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reward {
    /// `exact`: 1 where the response, without space around it, is the row's field; with a `pattern`, where its first group is.
    /// `contains`: 1 where the field is in it. `regex`: 1 where the pattern fits somewhere in it. `format`: 1 where the pattern fits
    /// all of it, as a rule `<think>...</think><answer>...</answer>`. `length`: 1 less how far it is from `tokens`, as a share of that, at least 0.
    /// `arithmetic`: 1 where it begins with the value of the sum or difference that ends the prompt, as `12+7=`. `finished`: 1 where it
    /// ended by itself. `short`: 1 less its share of `rl.max_new_tokens`. `given`: the number that the row's field, a list, has for it.
    /// `model`: as a model with a head of one number says. `command` and `http`: as a program or a server says. `function`: as a
    /// function of the program that trains says, which it gives by `name`.
    pub kind: RewardKind,
    /// What it is called in figures (`reward_NAME`); of a `function`, the name that the program gives it by. The kind when empty.
    pub name: String,
    /// What its number counts.
    pub weight: f64,
    /// The field of the row that holds the answer.
    pub field: String,
    /// A regular expression.
    pub pattern: String,
    /// Tokens that a response should have.
    pub tokens: usize,
    /// The folder of a reward model, a `*ForSequenceClassification` of one label.
    pub path: PathBuf,
    /// The program and its arguments. It reads one JSON object a line, `prompt`, `response`, `row`, and writes as many, each with a
    /// number or null as `score`, in the same order.
    pub command: Vec<String>,
    /// The server, as in `http://judge:8000/score`: it is sent the same lines and answers with as many.
    pub url: String,
    /// Seconds that it has for the responses to the prompts of a micro-batch.
    pub timeout: f64,
    /// How often it is tried again after a failure.
    pub retries: usize,
}

impl Default for Reward {
    fn default() -> Reward {
        Reward {
            kind: RewardKind::Exact,
            name: String::new(),
            weight: 1.0,
            field: "answer".into(),
            pattern: String::new(),
            tokens: 0,
            path: PathBuf::new(),
            command: Vec::new(),
            url: String::new(),
            timeout: 60.0,
            retries: 2,
        }
    }
}

/// What a reward is made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardKind {
    /// The response is the answer.
    #[default]
    Exact,
    /// It has the answer in it.
    Contains,
    /// A pattern fits in it.
    Regex,
    /// A pattern fits all of it.
    Format,
    /// It has about as many tokens as it should.
    Length,
    /// It begins with the value of what the prompt ends with.
    Arithmetic,
    /// It ended by itself.
    Finished,
    /// It is short.
    Short,
    /// As the row says.
    Given,
    /// As a model says.
    Model,
    /// As a program says.
    Command,
    /// As a server says.
    Http,
    /// As a function of the program says.
    Function,
}

/// A program's own judge of responses.
pub trait RewardFunction: fmt::Debug + Send + Sync {
    /// A number for each response, in their order; none for one that cannot be judged. An error leaves all of them without a reward,
    /// and is told. Ranks that are threads call it side by side, each for its own responses.
    fn score(&self, all: &[Judged<'_>]) -> Result<Vec<Option<f64>>, String>;
}

/// A program's own judges by name.
pub type RewardFunctions = BTreeMap<String, Arc<dyn RewardFunction>>;

/// What a function has said, where it has said as much as it was asked and nothing but numbers.
pub(crate) fn ask_function(
    name: &str,
    function: &dyn RewardFunction,
    all: &[Judged<'_>],
) -> Result<Vec<Option<f64>>> {
    let failed = |why: String| Error::Run { what: format!("the reward function '{name}' failed: {why}") };
    let scores = function.score(all).map_err(failed)?;
    if scores.len() != all.len() {
        return Err(failed(format!("it gave {} scores for {} responses", scores.len(), all.len())));
    }
    match scores.iter().enumerate().find_map(|(at, x)| Some((at, x.filter(|x| !x.is_finite())?))) {
        Some((at, odd)) => Err(failed(format!("response {} got {odd}, which is no finite number", at + 1))),
        None => Ok(scores),
    }
}

/// A response to be judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged<'a> {
    /// The prompt.
    pub prompt: String,
    /// The response, without the token that ended it.
    pub response: String,
    /// The tokens of both, the response's with the one that ended it.
    pub ids: [&'a [i64]; 2],
    /// The row of the data.
    pub row: &'a Value,
    /// Its number among the responses to the prompt.
    pub number: usize,
    /// The most tokens it could have.
    pub most: usize,
    /// Whether it ended by itself.
    pub finished: bool,
}

impl Judged<'_> {
    /// Tokens of the response, with the one that ended it.
    pub fn tokens(&self) -> usize {
        self.ids[1].len()
    }
}

impl Reward {
    /// What it is called in figures.
    pub fn called(&self) -> String {
        match (self.name.as_str(), serde_json::to_value(self.kind)) {
            ("", Ok(Value::String(kind))) => kind,
            (name, _) => name.to_string(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |key: &str, found: String, expected: &str| {
            Err(Error::Value { key: format!("rl.reward.{key}"), found, expected: expected.into() })
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !self.name.chars().all(plain) {
            return wrong("name", format!("'{}'", self.name), "letters, digits and `_` only");
        }
        if self.kind == RewardKind::Function && self.name.is_empty() {
            return wrong("name", "''".into(), "the name that the program gives the function by");
        }
        if self.kind == RewardKind::Command && self.command.is_empty() {
            return wrong("command", "[]".into(), "a program and its arguments");
        }
        if self.kind == RewardKind::Http
            && let Err(problem) = http::check(&self.url)
        {
            return wrong(
                "url",
                format!("'{}'", self.url),
                &format!("as http://judge:8000/score; {problem}"),
            );
        }
        if self.kind == RewardKind::Regex && self.pattern.is_empty() {
            return wrong("pattern", "''".into(), "a regular expression");
        }
        if let Err(problem) = self.regex() {
            return wrong(
                "pattern",
                format!("'{}'", self.pattern),
                &format!("a regular expression; {problem}"),
            );
        }
        if self.kind == RewardKind::Length && self.tokens == 0 {
            return wrong("tokens", "0".into(), "the tokens that a response should have");
        }
        if self.kind == RewardKind::Model && self.path.as_os_str().is_empty() {
            return wrong("path", "''".into(), "the folder of a reward model");
        }
        if !self.weight.is_finite() {
            return wrong("weight", self.weight.to_string(), "a finite number");
        }
        // Clocks cannot tell times that are far beyond this.
        if !(self.timeout > 0.0 && self.timeout <= 1e9) {
            return wrong("timeout", self.timeout.to_string(), "a number of seconds above 0, at most 1e9");
        }
        Ok(())
    }

    /// The pattern, where it has one; that of `format` fits from the first to the last character.
    fn regex(&self) -> Result<Option<Regex>, regex::Error> {
        let text = match (self.kind, self.pattern.as_str()) {
            (RewardKind::Format, "") => FORMAT,
            (_, "") => return Ok(None),
            (_, text) => text,
        };
        let whole = self.kind == RewardKind::Format;
        Ok(Some(Regex::new(&if whole { format!(r"\A(?:{text})\z") } else { text.to_string() })?))
    }

    /// A number for each response; none where it cannot be judged. Reward models and functions are not asked here.
    pub fn score(&self, all: &[Judged<'_>]) -> Result<Vec<Option<f64>>> {
        let regex = self.regex().map_err(|e| Error::Run { what: e.to_string() })?;
        if matches!(self.kind, RewardKind::Command | RewardKind::Http) {
            return self.ask(all);
        }
        let found = all.iter().map(|one| {
            let answer = || match one.row.get(&self.field)? {
                Value::String(text) => Some(text.trim().to_string()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            };
            let flag = |holds: bool| f64::from(u8::from(holds));
            match self.kind {
                RewardKind::Exact => answer().map(|answer| {
                    let said = match &regex {
                        None => Some(one.response.as_str()),
                        Some(regex) => regex
                            .captures(&one.response)
                            .and_then(|found| Some(found.get(1).or_else(|| found.get(0))?.as_str())),
                    };
                    flag(said.is_some_and(|said| said.trim() == answer))
                }),
                RewardKind::Regex | RewardKind::Format => {
                    regex.as_ref().map(|regex| flag(regex.is_match(one.response.trim())))
                }
                RewardKind::Length => {
                    Some((1.0 - one.tokens().abs_diff(self.tokens) as f64 / self.tokens as f64).max(0.0))
                }
                RewardKind::Contains => answer().map(|answer| flag(one.response.contains(&answer))),
                RewardKind::Arithmetic => {
                    value_of(&one.prompt).map(|value| flag(leading(&one.response) == Some(value)))
                }
                RewardKind::Finished => Some(flag(one.finished)),
                RewardKind::Short => Some(1.0 - one.tokens() as f64 / one.most as f64),
                RewardKind::Given => {
                    one.row.get(&self.field)?.get(one.number)?.as_f64().filter(|score| score.is_finite())
                }
                RewardKind::Model | RewardKind::Function | RewardKind::Command | RewardKind::Http => None,
            }
        });
        Ok(found.collect())
    }

    /// Asks the program or the server, again where it fails.
    fn ask(&self, all: &[Judged<'_>]) -> Result<Vec<Option<f64>>> {
        let line = |one: &Judged<'_>| {
            format!("{}\n", json!({ "prompt": one.prompt, "response": one.response, "row": one.row }))
        };
        let given: String = all.iter().map(line).collect();
        let mut why = String::new();
        for _ in 0..=self.retries {
            let answer = match self.kind {
                RewardKind::Http => http::post(&self.url, &given, Duration::from_secs_f64(self.timeout)),
                _ => self.run(&given),
            };
            match answer.and_then(|text| scores_of(&text, all.len())) {
                Ok(scores) => return Ok(scores),
                Err(problem) => why = problem,
            }
        }
        let (tries, is_server) = (self.retries + 1, self.kind == RewardKind::Http);
        let who = if is_server {
            format!("server '{}'", self.url)
        } else {
            format!("command '{}'", self.command.join(" "))
        };
        Err(Error::Run { what: format!("the reward {who} failed {tries} times: {why}") })
    }

    /// What the program writes.
    fn run(&self, given: &str) -> Result<String, String> {
        let told = |e: std::io::Error| e.to_string();
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(told)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let given = given.to_string();
        // Both ends at once: a program may answer before it has read everything.
        let writer = std::thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(given.as_bytes())));
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.map(|mut pipe| pipe.read_to_string(&mut text).map(|_| text))
        });
        let status = wait(&mut child, Duration::from_secs_f64(self.timeout))?;
        let text = reader.join().map_err(|_| "its output was lost".to_string())?;
        // A program that knows enough may stop reading.
        let _ = writer.join();
        let text = text.ok_or("it has no output")?.map_err(told)?;
        if !status.success() {
            return Err(format!("it ended with {status}"));
        }
        Ok(text)
    }
}

/// The scores of so many responses.
fn scores_of(text: &str, count: usize) -> Result<Vec<Option<f64>>, String> {
    let scores: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if scores.len() != count {
        return Err(format!("it gave {} scores for {count} responses", scores.len()));
    }
    scores.iter().enumerate().map(|(number, line)| score_of(number + 1, line)).collect()
}

/// Waits for a program, and ends it when its time is over.
fn wait(child: &mut Child, most: Duration) -> Result<std::process::ExitStatus, String> {
    let end = Instant::now() + most;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it took longer than {} s", most.as_secs_f64()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn score_of(number: usize, line: &str) -> Result<Option<f64>, String> {
    let wrong = || format!("line {number}, '{line}', has no number or null as `score`");
    let value: Value = serde_json::from_str(line).map_err(|_| wrong())?;
    match value.get("score") {
        Some(Value::Null) => Ok(None),
        Some(Value::Number(score)) => score.as_f64().filter(|x| x.is_finite()).map(Some).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// The value of a sum or difference of whole numbers that ends a text, with or without `=` behind it.
fn value_of(text: &str) -> Option<i64> {
    let text = text.trim_end().trim_end_matches('=').trim_end();
    let digits = |text: &str| text.chars().rev().take_while(char::is_ascii_digit).count();
    let second = digits(text);
    let (rest, last) = text.split_at(text.len() - second);
    let rest = rest.trim_end();
    let sign = rest.chars().last().filter(|sign| ['+', '-'].contains(sign))?;
    let rest = rest[..rest.len() - 1].trim_end();
    let first = &rest[rest.len() - digits(rest)..];
    let (a, b): (i64, i64) = (first.parse().ok()?, last.parse().ok()?);
    if sign == '+' { a.checked_add(b) } else { a.checked_sub(b) }
}

/// The whole number that a text begins with.
fn leading(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let sign = usize::from(text.starts_with('-'));
    let digits = text[sign..].chars().take_while(char::is_ascii_digit).count();
    text[..sign + digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged<'a>(prompt: &str, response: &str, row: &'a Value) -> Judged<'a> {
        let (prompt, response) = (prompt.into(), response.into());
        Judged { prompt, response, ids: [&[1], &[2, 0]], row, number: 0, most: 8, finished: true }
    }

    #[test]
    fn named_rewards_judge_what_they_say() {
        let row = json!({ "answer": "42" });
        let score = |kind, prompt: &str, response: &str| {
            Reward { kind, ..Reward::default() }.score(&[judged(prompt, response, &row)]).unwrap()[0]
        };
        assert_eq!(score(RewardKind::Exact, "", " 42\n"), Some(1.0));
        assert_eq!(score(RewardKind::Exact, "", "42!"), Some(0.0));
        assert_eq!(score(RewardKind::Contains, "", "it is 42."), Some(1.0));
        assert_eq!(score(RewardKind::Arithmetic, "what is 12 + 7=", "19 of course"), Some(1.0));
        assert_eq!(score(RewardKind::Arithmetic, "3-8=", "-5"), Some(1.0));
        assert_eq!(score(RewardKind::Arithmetic, "3-8=", "5"), Some(0.0));
        assert_eq!(score(RewardKind::Arithmetic, "no sum", "5"), None);
        assert_eq!(score(RewardKind::Short, "", "x"), Some(0.75));
        let with = |kind, pattern: &str, tokens, response: &str| {
            let reward = Reward { kind, pattern: pattern.into(), tokens, ..Reward::default() };
            reward.check().unwrap();
            reward.score(&[judged("", response, &row)]).unwrap()[0]
        };
        assert_eq!(with(RewardKind::Exact, "#### (.*)", 0, "6 * 7\n#### 42"), Some(1.0));
        assert_eq!(with(RewardKind::Exact, "#### (.*)", 0, "42"), Some(0.0));
        assert_eq!(with(RewardKind::Regex, r"\d{2}", 0, "it is 42."), Some(1.0));
        assert_eq!(with(RewardKind::Regex, r"\d{3}", 0, "it is 42."), Some(0.0));
        let formed = "<think>6 * 7\n</think>\n<answer>42</answer>";
        assert_eq!(with(RewardKind::Format, "", 0, formed), Some(1.0));
        assert_eq!(with(RewardKind::Format, "", 0, &format!("well {formed}")), Some(0.0));
        assert_eq!(with(RewardKind::Format, "[0-9]+|no", 0, "42 or no"), Some(0.0));
        assert_eq!(with(RewardKind::Length, "", 8, "x"), Some(0.25));
        assert_eq!(with(RewardKind::Length, "", 1, "x"), Some(0.0));
        for (kind, pattern, told) in [
            (RewardKind::Regex, "", "rl.reward.pattern"),
            (RewardKind::Exact, "(", "a regular expression"),
            (RewardKind::Length, "", "rl.reward.tokens"),
            (RewardKind::Model, "", "rl.reward.path"),
        ] {
            let error = Reward { kind, pattern: pattern.into(), ..Reward::default() }.check().unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
        let none = Reward { field: "missing".into(), ..Reward::default() };
        assert_eq!(none.score(&[judged("", "42", &row)]).unwrap(), [None]);
    }

    #[test]
    fn a_command_is_asked_again_and_a_broken_one_is_told() {
        let row = json!({});
        let all = [judged("", "a", &row), judged("", "b", &row)];
        let shell = |script: &str| Reward {
            kind: RewardKind::Command,
            command: vec!["sh".into(), "-c".into(), script.into()],
            timeout: 5.0,
            retries: 1,
            ..Reward::default()
        };
        let fine = shell(
            r#"while read line; do case "$line" in *'"a"'*) echo '{"score": 1.5}';; *) echo '{"score": null}';; esac; done"#,
        );
        assert_eq!(fine.score(&all).unwrap(), [Some(1.5), None]);
        for (script, told) in [
            ("cat > /dev/null; echo '{\"score\": 1}'", "1 scores for 2"),
            ("cat > /dev/null; exit 3", "exit status: 3"),
            ("cat > /dev/null; echo x; echo y", "line 1, 'x'"),
        ] {
            let error = shell(script).score(&all).unwrap_err().to_string();
            assert!(error.contains("failed 2 times") && error.contains(told), "{error}");
        }
        let slow = Reward { timeout: 0.05, retries: 0, ..shell("sleep 5") };
        assert!(slow.score(&all).unwrap_err().to_string().contains("longer than 0.05 s"));
    }

    /// A server that gives these answers, one for each time it is asked, and then is gone; what it was asked.
    fn server(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/score", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let mut all = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut text = String::new();
                let mut piece = [0u8; 4096];
                while text.matches("\"response\"").count() < 2 || !text.ends_with('\n') {
                    let read = stream.read(&mut piece).unwrap();
                    text.push_str(&String::from_utf8_lossy(&piece[..read]));
                }
                stream.write_all(answer.as_bytes()).unwrap();
                all.push(text);
            }
            all
        });
        (url, asked)
    }

    #[test]
    fn a_server_is_asked_in_order_again_after_a_failure_and_not_longer_than_its_time() {
        let row = json!({ "answer": 1 });
        let all = [judged("p", "a", &row), judged("p", "b", &row)];
        let body = "{\"score\": 2}\n{\"score\": null}\n";
        let fine = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let (url, asked) = server(vec!["HTTP/1.1 500 Oh\r\n\r\n".into(), fine]);
        let reward = Reward { kind: RewardKind::Http, url, timeout: 5.0, retries: 1, ..Reward::default() };
        assert_eq!(reward.score(&all).unwrap(), [Some(2.0), None]);
        let asked = asked.join().unwrap();
        let place = |name: &str| asked[1].find(&format!("\"response\":\"{name}\"")).unwrap();
        assert!(asked[0].starts_with("POST /score HTTP/1.1\r\n") && place("a") < place("b"), "{asked:?}");
        // Nobody is there any more.
        let error = Reward { retries: 0, ..reward }.score(&all).unwrap_err().to_string();
        assert!(
            error.contains("reward server 'http://127.0.0.1:") && error.contains("failed 1 times"),
            "{error}"
        );
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let slow = Reward { kind: RewardKind::Http, url, timeout: 0.1, retries: 0, ..Reward::default() };
        let error = slow.score(&all).unwrap_err().to_string();
        assert!(error.contains("longer than 0.1 s"), "{error}");
    }

    #[test]
    fn given_scores_are_those_of_the_row_and_anything_else_is_none() {
        let row = json!({ "scores": [0.5, "x"] });
        let reward = Reward { kind: RewardKind::Given, field: "scores".into(), ..Reward::default() };
        let at = |number| Judged { number, ..judged("", "", &row) };
        assert_eq!(reward.score(&[at(0), at(1), at(2)]).unwrap(), [Some(0.5), None, None]);
    }
}
