//! Rows in every form, refusals with their fields, templates as Jinja renders them, and samples that lose nothing silently.

use super::*;
use crate::{Config as Data, Error, Sample, Source, Tokenizer};

const CHATML: &str = "{% for m in messages %}<|bos|>{{ m.role }}\n{{ m.content }}<|eos|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|bos|>assistant\n{% endif %}";

fn chat(template: &str) -> Chat {
    Chat::new(&Tokenizer::bytes(), Some(template), Clock::Fixed(0)).unwrap()
}

fn rendered(template: &str, line: &str) -> Result<String, Refusal> {
    let conversation = match Row::parse(line)?.0 {
        Row::Conversation(conversation) | Row::Completion { conversation, .. } => conversation,
        other => panic!("{other:?}"),
    };
    Ok(chat(template).render(&conversation, Ending::Closed)?.text)
}

/// A template with `value` instead of a conversation.
fn printed(template: &str, value: &str) -> String {
    let line = format!(r#"{{"messages": [{{"role": "user", "content": ""}}], "value": {value}}}"#);
    rendered(template, &line).unwrap()
}

#[test]
fn every_form_becomes_the_same_conversation() {
    let rows = [
        r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}]}"#,
        r#"{"conversations": [{"from": "human", "value": "a\nb"}, {"from": "gpt", "value": "c"}], "system": "s"}"#,
        r#"{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a\nb"}, {"from": "gpt", "value": "c"}], "tools": "[]"}"#,
        r#"{"instruction": "a", "input": "b", "output": "c", "system": "s"}"#,
        r#"{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"}], "completion": "c"}"#,
    ];
    for row in rows {
        let text = rendered(CHATML, row).unwrap();
        let expected = "<|bos|>system\ns<|eos|>\n<|bos|>user\na\nb<|eos|>\n<|bos|>assistant\nc<|eos|>\n";
        assert_eq!(text, expected, "{row}");
    }
    let call = r#"{"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": \"{\\\"z\\\": 1, \\\"a\\\": 2}\"}"}]}"#;
    let text = rendered("{{ messages[0].tool_calls | tojson }}", call).unwrap();
    assert_eq!(text, r#"[{"type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]"#);
}

#[test]
fn refusals_name_the_field() {
    let cases = [
        (r#"{"messages": []}"#, "`messages`: there is no message"),
        (r#"{"messages": [{"content": "x"}]}"#, "`messages[0].role`: a string is expected, found null"),
        (r#"{"messages": [{"role": "user", "content": 3}]}"#, "`messages[0].content`"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "sound"}]}]}"#,
            "`messages[0].content[0].type`: 'sound'",
        ),
        (r#"{"messages": [{"role": "a", "content": "", "tool_calls": {}}]}"#, "`messages[0].tool_calls`"),
        (r#"{"conversations": [{"from": "critic", "value": ""}]}"#, "`conversations[0].from`: 'critic'"),
        (r#"{"question": "x"}"#, "`question`"),
        (r#"{"messages": [{"role": "user", "content": "x"}], "tools": 3}"#, "`tools`"),
        (r#"["x"]"#, "not a JSON object"),
        ("{", "not valid JSON"),
    ];
    for (line, expected) in cases {
        let error = Row::parse(line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn values_are_printed_as_python_prints_them() {
    let value = r#"{"z": [1, 2.5, null, true, "it's"], "a": "<&>é\n", "e": 1e-7, "n": {}}"#;
    let json = r#"{"z": [1, 2.5, null, true, "it's"], "a": "<&>é\n", "e": 1e-07, "n": {}}"#;
    assert_eq!(printed("{{ value | tojson }}", value), json);
    let repr = r#"{'z': [1, 2.5, None, True, "it's"], 'a': '<&>é\n', 'e': 1e-07, 'n': {}}"#;
    assert_eq!(printed("{{ value }}", value), repr);
    assert_eq!(printed("{{ value | string }}", value), repr);
    let indented = "{\n  \"b\": [\n    1,\n    {}\n  ]\n}";
    assert_eq!(printed("{{ value | tojson(indent=2) }}", r#"{"b": [1, {}]}"#), indented);
    assert_eq!(printed("{{ value | tojson(ensure_ascii=True) }}", "\"é🙂\""), r#""\u00e9\ud83d\ude42""#);
    assert_eq!(printed("{{ value | tojson(separators=(',', ':')) }}", r#"{"b": [1, 2]}"#), r#"{"b":[1,2]}"#);
    assert_eq!(printed("{{ none }}{{ nothing }}{{ value is sequence }}", "\"x\""), "NoneTrue");
    assert_eq!(printed("{{ strftime_now('%d %b %Y') }}", "0"), "01 Jan 1970");
}

#[test]
fn a_template_that_fails_or_never_ends_is_an_error() {
    let row = r#"{"messages": [{"role": "user", "content": "x"}]}"#;
    let problem = |template: &str| rendered(template, row).unwrap_err();
    assert_eq!(
        problem("\n{{ raise_exception('no ' ~ messages[0].role) }}").to_string(),
        "chat template: no user (line 2 of the template)"
    );
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    assert!(matches!(problem(endless), Refusal::Template { .. }));
    let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(problem(deep), Refusal::Template { .. }));
    let broken = Chat::new(&Tokenizer::bytes(), Some("{% for %}"), Clock::Refused).unwrap_err();
    assert!(matches!(broken, Error::Chat { refusal: Refusal::Template { .. }, .. }), "{broken}");
    let dated = Chat::new(&Tokenizer::bytes(), Some("{{ strftime_now('%Y') }}"), Clock::Refused).unwrap();
    let Row::Conversation(conversation) = Row::parse(row).unwrap().0 else { panic!() };
    let asked = dated.render(&conversation, Ending::Closed).unwrap_err().to_string();
    assert!(asked.contains("data.chat.date"), "{asked}");
}

#[test]
fn a_template_without_blocks_trains_by_prefixes_or_is_refused() {
    let row = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "abc"}]}"#;
    let row = Row::parse(row).unwrap().0;
    assert_eq!(chat(CHATML).label(&row, Learn::AssistantMarks), Err(Refusal::NoMarks));
    let labelled = chat(CHATML).label(&row, Learn::Assistant).unwrap();
    assert_eq!(&labelled.text[labelled.spans[0].clone()], "abc<|eos|>");
    assert_eq!(labelled.predicted(), 4);
    let marked = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}\
                  {% else %}{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(chat(marked).label(&row, Learn::Assistant).unwrap().predicted(), 3);
    let forgets = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}";
    let two =
        r#"{"messages": [{"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]}"#;
    let two = Row::parse(two).unwrap().0;
    assert_eq!(chat(forgets).label(&two, Learn::AssistantPrefix), Err(Refusal::NotPrefix { message: 1 }));
}

/// Templates of models that reason drop earlier reasoning.
#[test]
fn a_template_that_rewrites_earlier_answers_is_trained_turn_by_turn() {
    let rewrites = "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}(short){% else %}{{ m.content }}\
                    {% endif %}{% endfor %}";
    let line = r#"{"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "one"},
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "three"}]}"#;
    let Row::Conversation(conversation) = Row::parse(line).unwrap().0 else { panic!() };
    let whole = chat(rewrites).label(&Row::Conversation(conversation.clone()), Learn::AssistantPrefix);
    assert_eq!(whole, Err(Refusal::NotPrefix { message: 2 }));
    let turns = chat(rewrites).label_turns(&conversation).unwrap();
    let said: Vec<(&str, &str)> =
        turns.iter().map(|t| (t.text.as_str(), &t.text[t.spans[0].clone()])).collect();
    assert_eq!(said, [("pone", "one"), ("p(short)qthree", "three")]);
}

#[test]
fn contents_do_not_end_their_own_turn_where_specials_are_escaped() {
    let row =
        r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a<|eos|>b"}]}"#;
    let row = Row::parse(row).unwrap().0;
    let ends = |chat: &Chat, row: &Row| {
        let labelled = chat.label(row, Learn::Assistant).unwrap();
        let all = labelled.tokens.iter().filter(|&&token| token == 257).count();
        (all, labelled.predicted())
    };
    let parsed = chat(CHATML);
    assert_eq!(ends(&parsed, &row), (3, "a_b_".len()));
    let escaped = chat(CHATML).escaping_specials(true);
    // The template's own tokens stay; the content is nine bytes, behind which the turn ends.
    assert_eq!(ends(&escaped, &row), (2, "a<|eos|>b".len() + 1));
    let text = Row::parse(r#"{"text": "a<|eos|>b"}"#).unwrap().0;
    assert_eq!((ends(&parsed, &text).0, ends(&escaped, &text).0), (2, 1));
    let Row::Conversation(conversation) = row else { panic!() };
    assert_eq!(
        escaped.render(&conversation, Ending::Closed).unwrap().text,
        parsed.render(&conversation, Ending::Closed).unwrap().text
    );
}

/// Samples of some lines, and their data.
fn opened(lines: &[&str], sequence: usize, settings: Config) -> crate::Result<crate::Data> {
    let folder = tempfile::tempdir().unwrap();
    let (rows, template) = (folder.path().join("rows.jsonl"), folder.path().join("t.jinja"));
    std::fs::write(&rows, lines.join("\n")).unwrap();
    std::fs::write(&template, CHATML).unwrap();
    let mut data = Data { sequence, ..Data::default() };
    data.source = vec![Source::new(rows.display().to_string())];
    data.chat = Config { template: Some(template), ..settings };
    data.open_conversations(&Tokenizer::bytes(), None)
}

#[test]
fn rows_share_samples_and_never_see_each_other() {
    let row = |answer: &str| {
        format!(
            r#"{{"messages": [{{"role": "a", "content": "q"}}, {{"role": "assistant", "content": "{answer}"}}]}}"#
        )
    };
    let rows = ["x", "yy", "zzz"].map(row);
    let lines: Vec<&str> = rows.iter().map(String::as_str).collect();
    let settings = Config { packing: PackRows::BestFit, ..Config::default() };
    let data = opened(&lines, 48, settings).unwrap();
    let report = data.report.clone().unwrap();
    assert_eq!((report.kept, report.samples, report.trained), (3, 2, 2 + 3 + 4));
    let mut sample = Sample::default();
    data.train.read(0, &mut sample).unwrap();
    // The longest row first: 6 + 11 + 5 tokens, then the next one from its own first token.
    let first = "_a\nq_\n_assistant\nzzz_\n".len();
    assert_eq!(sample.starts[0], first);
    assert_eq!(sample.labels[first - 1], crate::IGNORED);
    let learnt: Vec<i64> = sample.labels[..first].iter().copied().filter(|&label| label >= 0).collect();
    assert_eq!(learnt, [122, 122, 122, 257]);
    // A label stands one place before its token.
    let place = sample.labels.iter().position(|&label| label == 122).unwrap();
    assert_eq!(sample.tokens[place + 1], 122);
}

#[test]
fn what_is_cut_or_left_out_is_counted() {
    let long = format!(r#"{{"prompt": "{}", "completion": "{}"}}"#, "p".repeat(10), "c".repeat(20));
    let lines = [r#"{"prompt": "p", "completion": "cc"}"#, long.as_str(), r#"{"text": ""}"#];
    let refused = opened(&lines, 16, Config::default()).unwrap_err();
    assert!(refused.to_string().contains("rows.jsonl:3: no token of it is trained"), "{refused}");
    let told = |overlong| {
        let settings = Config { overlong, untrained: Untrained::Drop, ..Config::default() };
        let report = opened(&lines, 16, settings).unwrap().report.unwrap();
        [
            report.kept,
            report.cut,
            report.cut_tokens,
            report.too_long,
            report.untrained,
            report.trained,
            report.samples,
        ]
    };
    // The long row has 10 tokens of prompt, 20 of completion, and its end.
    assert_eq!(told(fit::Overlong::KeepStart), [2, 1, 15, 0, 1, 3 + 6, 2]);
    assert_eq!(told(fit::Overlong::KeepEnd), [2, 1, 15, 0, 1, 3 + 15, 2]);
    assert_eq!(told(fit::Overlong::Drop), [1, 0, 0, 1, 1, 3, 1]);
    assert_eq!(told(fit::Overlong::Split), [2, 0, 0, 0, 1, 3 + 6 + 14, 3]);
}

#[test]
fn samples_of_pieces_without_a_trained_token_are_counted() {
    // 40 tokens of prompt, 4 of completion and the end: two pieces of 16 have nothing to learn.
    let long = format!(r#"{{"prompt": "{}", "completion": "cccc"}}"#, "p".repeat(40));
    let short = r#"{"prompt": "p", "completion": "cc"}"#;
    let report = |settings: Config| opened(&[&long, short], 16, settings).unwrap().report.unwrap();
    let split = report(Config { overlong: fit::Overlong::Split, ..Config::default() });
    assert_eq!((split.kept, split.samples, split.barren, split.barren_tokens), (2, 2, 2, 32));
    let told = split.lines().join("\n");
    assert!(told.contains("left out 2 samples of 32 tokens: pieces of longer rows"), "{told}");
    let wrapped = report(Config { packing: PackRows::Wrapped, ..Config::default() });
    // The last sample is the end of the short row, which nothing predicts.
    assert_eq!((wrapped.kept, wrapped.barren, wrapped.barren_tokens), (2, 3, 33));
    // The only trained token begins a piece, so nothing predicts it: the row is left out, and told.
    let lost = format!(r#"{{"prompt": "{}", "completion": "c"}}"#, "p".repeat(16));
    let settings = Config { overlong: fit::Overlong::Split, append_eos: false, ..Config::default() };
    let report = opened(&[&lost, short], 16, settings).unwrap().report.unwrap();
    assert_eq!((report.kept, report.untrained, report.barren, report.barren_tokens), (1, 1, 2, 17));
}

#[test]
fn images_are_refused_by_name_where_text_is_trained_on() {
    let row = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "image"}]},
        {"role": "assistant", "content": "a cat"}]}"#
        .replace('\n', " ");
    let error = opened(&[&row], 64, Config::default()).unwrap_err().to_string();
    assert!(error.contains("rows.jsonl:1: `messages[0].content[1]`: it is of the type `image`"), "{error}");
}

#[test]
fn a_list_in_a_json_file_is_rows_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("alpaca.json");
    std::fs::write(&path, r#"[{"instruction": "a", "output": "b"}, {"instruction": 1, "output": "b"}]"#)
        .unwrap();
    let mut data = Data { sequence: 64, ..Data::default() };
    data.source = vec![Source::new(path.display().to_string())];
    let error = data.open_conversations(&Tokenizer::bytes(), None).unwrap_err();
    assert!(error.to_string().contains("alpaca.json:1: there is no chat template"), "{error}");
    assert!(error.hint().unwrap().contains("data.chat.template"));
}
