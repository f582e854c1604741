"""Rewards from Python: what a function is asked, what it may answer, and what becomes of one that fails."""

import json
import threading

import pytest

import planaria


@pytest.fixture()
def config(tmp_path):
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "level": a} for a in range(3) for b in range(3)][:8]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model": {"kind": "qwen2", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "data": {"sequence": 12, "source": [{"path": str(tmp_path / "sums.jsonl")}]},
        "optim": {"lr": 1e-2},
        "rl": {"samples_per_prompt": 4, "max_new_tokens": 3},
        "train": {"objective": "grpo", "steps": 2, "global_batch": 4, "micro_batch": 2, "seed": 5},
    }


class Heard:
    """Keeps what a run tells beside its steps."""

    def __init__(self):
        self.figures, self.failed = [], []

    def on_figures(self, about):
        self.figures.append(about)

    def on_reward_failed(self, about):
        self.failed.append(about)


def short(prompts, responses, **_):
    return [1.0 / (1 + len(response)) for response in responses]


def test_a_function_is_given_texts_ids_and_fields_in_order(config, tmp_path):
    asked = []

    def right(prompts, responses, answer, level, *, prompt_ids, response_ids, finished):
        asked.append((prompts, responses, answer, level, prompt_ids, response_ids, finished))
        assert threading.current_thread() is not threading.main_thread()
        return [float(len(ids) % 2 == 0) for ids in response_ids]

    heard = Heard()
    outcome = planaria.Trainer(config, run=tmp_path / "a", rewards={"right": right}).run(callbacks=[heard])
    assert outcome.step == 2 and len(asked) == 4 and not heard.failed
    for prompts, responses, answer, level, prompt_ids, response_ids, finished in asked:
        lists = (prompts, responses, answer, level, prompt_ids, response_ids, finished)
        assert {len(one) for one in lists} == {8}
        assert prompts == [prompts[0]] * 4 + [prompts[4]] * 4
        for prompt, value, number in zip(prompts, answer, level):
            assert eval(prompt.rstrip("=")) == int(value) and prompt[0] == str(number)
        # Tokens are bytes here.
        assert [bytes(ids).decode() for ids in prompt_ids] == prompts
        for response, ids, ended in zip(responses, response_ids, finished):
            assert 1 <= len(ids) <= 3 and isinstance(ended, bool) and isinstance(response, str)
    means = [sum(len(ids) % 2 == 0 for call in asked[at : at + 2] for ids in call[5]) / 16 for at in (0, 2)]
    assert [about["reward"] for about in heard.figures] == pytest.approx(means)


def test_functions_count_by_their_weight_on_any_number_of_ranks(config, tmp_path):
    rl = config["rl"]
    plain = planaria.Trainer({**config, "rl": rl | {"reward": [{"kind": "short", "weight": 2.0}]}}, run=tmp_path / "plain").run()

    def mine(prompts, responses, response_ids):
        numpy = pytest.importorskip("numpy")
        return numpy.array([1.0 - len(ids) / 3 for ids in response_ids])

    named = {**config, "rl": rl | {"reward": [{"kind": "function", "name": "mine", "weight": 2.0}]}}
    assert planaria.Trainer(named, run=tmp_path / "one", rewards={"mine": mine}).run().losses == plain.losses
    divided = {**named, "mesh": "dp=2"}
    assert planaria.Trainer(divided, run=tmp_path / "two", rewards={"mine": mine}).run(ranks=2).losses == plain.losses
    # Beside a reward by name each has figures of its own.
    heard = Heard()
    both = {**config, "rl": rl | {"reward": [{"kind": "finished"}]}}
    planaria.Trainer(both, run=tmp_path / "both", rewards={"mine": mine}).run(callbacks=[heard])
    for about in heard.figures:
        assert about["reward"] == pytest.approx(about["reward_finished"] + about["reward_mine"])


@pytest.mark.parametrize(
    "wrong, told",
    [
        (lambda scores: scores[:-1], "7 scores for 8 responses"),
        (lambda scores: [float("nan")] + scores[1:], "response 1 got NaN"),
        (lambda scores: ["x"] + scores[1:], "could not convert string to float"),
        (lambda scores: 1.0, "not iterable"),
        (lambda scores: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_one_that_fails_is_told_and_its_groups_count_nothing(config, tmp_path, wrong, told):
    def flaky(prompts, responses):
        scores = short(prompts, responses)
        return wrong(scores) if prompts[0] == flaky.first else scores

    flaky.first = None

    def spy(prompts, responses):
        spy.prompts.append(prompts[0])
        return short(prompts, responses)

    spy.prompts = []
    planaria.Trainer(config, run=tmp_path / "spy", rewards={"spy": spy}).run(until=1)
    flaky.first = spy.prompts[0]
    heard = Heard()
    planaria.Trainer(config, run=tmp_path / "a", rewards={"flaky": flaky}).run(until=1, callbacks=[heard])
    [failed] = heard.failed
    assert (failed["unscored"], failed["responses"]) == (8, 16)
    assert "reward function 'flaky'" in failed["error"] and told in failed["error"]
    assert heard.figures[0]["unscored"] == 0.5


def test_without_any_reward_the_run_ends_with_what_was_raised(config, tmp_path):
    def broken(prompts, responses):
        raise ConnectionError("the judge is away")

    with pytest.raises(planaria.Error, match="none of the 16 responses of step 1 got a reward.*the judge is away") as caught:
        planaria.Trainer(config, run=tmp_path / "a", rewards={"broken": broken}).run()
    assert isinstance(caught.value.__cause__, ConnectionError)
    # None of them could be judged: nothing failed, and there is nothing to learn from.
    with pytest.raises(planaria.Error, match="no source of rewards had a number"):
        planaria.Trainer(config, run=tmp_path / "b", rewards={"none": lambda prompts, responses: [None] * len(prompts)}).run()


def test_what_cannot_be_asked_is_refused(config, tmp_path):
    with pytest.raises(TypeError, match="is a function of prompts and responses, not float"):
        planaria.Trainer(config, rewards={"right": 1.0})
    with pytest.raises(TypeError, match="functions by name"):
        planaria.Trainer(config, rewards=[short])
    named = {**config, "rl": config["rl"] | {"reward": [{"kind": "function", "name": "right"}]}}
    with pytest.raises(planaria.ConfigError, match="it gives 'short'") as caught:
        planaria.Trainer(named, run=tmp_path / "a", rewards={"short": short}).run()
    assert caught.value.key == "rl.reward.name"
    with pytest.raises(planaria.ConfigError, match="letters, digits and"):
        planaria.Trainer(config, run=tmp_path / "b", rewards={"a b": short}).run()
    plain = {**config, "train": config["train"] | {"objective": "next_token"}}
    with pytest.raises(planaria.ConfigError, match="grpo") as caught:
        planaria.Trainer(plain, run=tmp_path / "c", rewards={"short": short}).run()
    assert caught.value.key == "train.objective"
    with pytest.raises(planaria.ConfigError, match="own samples"):
        streamed = {**config, "data": {"sequence": 12}}
        planaria.Trainer(streamed, run=tmp_path / "d", data=[{"input_ids": [1, 2, 3]}], rewards={"short": short}).run()
