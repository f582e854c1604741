"""Runs from Python: steps, callbacks, requests from other threads, errors with their key."""

import threading

import pytest

import planaria


@pytest.fixture()
def config(tmp_path):
    (tmp_path / "text.txt").write_text("planaria grows back whole. " * 400)
    return {
        "mesh": "dp=1",
        "model": {"kind": "qwen2", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "data": {"sequence": 16, "source": [{"path": str(tmp_path / "text.txt")}]},
        "optim": {"lr": 1e-3},
        "train": {"steps": 8, "global_batch": 2, "micro_batch": 2, "seed": 5},
    }


def test_a_run_cut_and_gone_on_has_the_losses_of_one_that_was_not(config, tmp_path):
    whole = planaria.Trainer(config, run=tmp_path / "whole").run()
    assert whole.step == 8 and len(whole.losses) == 8 and not whole.stopped and whole.checkpoint
    trainer = planaria.Trainer(config, run=tmp_path / "cut")
    seen = []
    for m in trainer.steps():
        seen.append(m.loss)
        assert m.tokens_per_second > 0 and m.lr > 0 and m.grad_norm > 0
        if m.step == 3:
            break
    done = trainer.outcome
    # A step was under way, and perhaps the next one, before the request was seen.
    assert done.stopped and done.step in (3, 4, 5) and done.losses[: len(seen)] == seen
    rest = trainer.run(ranks=1)
    assert done.losses + rest.losses == whole.losses
    again = planaria.Trainer(config, run=tmp_path / "until").run(until=5)
    assert again.step == 5 and again.losses == whole.losses[:5]


def test_callbacks_are_called_on_the_calling_thread(config, tmp_path):
    class Heard:
        def __init__(self):
            self.events, self.threads = [], set()

        def on_start(self, about):
            self.events.append("start")

        def on_step(self, step):
            self.events.append(step.step)
            self.threads.add(threading.get_ident())
            if step.step == 4:
                trainer.save()

        def on_save(self, about):
            self.events.append("save")

        def on_end(self, outcome):
            self.events.append(("end", outcome.step))

    heard = Heard()
    trainer = planaria.Trainer({**config, "checkpoint": {"every": 100}}, run=tmp_path / "a")
    trainer.run(callbacks=[heard, object()])
    assert heard.events[0] == "start" and heard.events[-1] == ("end", 8) and heard.threads == {threading.get_ident()}
    assert heard.events.count("save") >= 2 and [e for e in heard.events if isinstance(e, int)] == list(range(1, 9))


def test_an_exception_in_a_callback_stops_the_run_saved(config, tmp_path):
    class Fails:
        def on_step(self, step):
            if step.step == 2:
                raise KeyError("mine")

    trainer = planaria.Trainer(config, run=tmp_path / "a")
    with pytest.raises(KeyError, match="mine"):
        trainer.run(callbacks=[Fails()])
    assert trainer.outcome.stopped and trainer.outcome.checkpoint
    assert planaria.verify(trainer.outcome.checkpoint if trainer.outcome.checkpoint.startswith("/") else tmp_path / "a" / trainer.outcome.checkpoint).ok
    assert trainer.run().step == 8


def test_stop_from_another_thread(config, tmp_path):
    config["train"]["steps"] = 100000
    trainer = planaria.Trainer(config, run=tmp_path / "a")
    threading.Timer(0.5, trainer.stop).start()
    outcome = trainer.run()
    assert outcome.stopped and outcome.step < 100000
    trainer.stop()
    trainer.save()


def test_wrong_configurations_name_their_key(config, tmp_path):
    for change, key in [
        ({"train": {"stepz": 3}}, "train.stepz"), ({"optim": {"lr": -1.0}}, "optim.lr"), ({"optim": {"lr": "fast"}}, "optim.lr"),
        ({"train": {"steps": -1}}, "train.steps"), ({"mesh": "qq=2"}, "mesh"), ({"mesh": 7}, "mesh"), ({"train": 5}, "train"),
    ]:
        with pytest.raises(planaria.ConfigError) as error:
            planaria.Trainer({**config, **change}, run=tmp_path / "a")
        assert error.value.key == key and isinstance(error.value, ValueError)
    with pytest.raises(TypeError):
        planaria.Trainer(5)
    with pytest.raises(TypeError):
        planaria.Trainer({"train": {"steps": object()}})
    with pytest.raises(planaria.Error):
        planaria.Trainer(str(tmp_path / "nothing.toml"))


def test_a_configuration_that_is_not_there_is_a_wrong_one(tmp_path):
    for make in (planaria.Trainer, planaria.plan_run):
        with pytest.raises(planaria.ConfigError, match="missing.toml") as refused:
            make(tmp_path / "missing.toml")
        assert refused.value.key == ""


def test_plans_need_no_devices(config):
    config["mesh"] = "tp=2"
    config["train"]["global_batch"] = 64
    plan = planaria.plan_run(config, ranks=64)
    assert plan.ranks == 64 and plan.to_dict()["stages"] and "parameters" in repr(plan)


class Counting:
    """Samples of a program's own, with a state."""

    def __init__(self, at=0):
        self.at, self.given = at, []

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        self.given.append(self.at)
        return {"input_ids": [(self.at * 7 + i) % 256 for i in range(17)]}

    def state_dict(self):
        return {"at": self.at, "kind": ("counting", 1.5)}

    def load_state_dict(self, state):
        assert state["kind"] == ("counting", 1.5)
        self.at = state["at"]


@pytest.fixture()
def own(config):
    config["data"] = {"sequence": 16}
    return config


@pytest.mark.parametrize("ranks", [1, 2])
def test_own_data_goes_on_from_its_state(own, tmp_path, ranks):
    own["mesh"] = f"dp={ranks}"
    own["train"] |= {"global_batch": 4}
    data = Counting()
    whole = planaria.Trainer(own, run=tmp_path / "whole", data=data).run(ranks=ranks)
    assert whole.step == 8 and data.given == list(range(1, data.at + 1)) and data.at >= 32
    cut = planaria.Trainer(own, run=tmp_path / "cut", data=Counting()).run(ranks=ranks, until=3)
    assert cut.losses == whole.losses[:3]
    again = Counting()
    rest = planaria.Trainer(own, run=tmp_path / "cut", data=again).run(ranks=ranks)
    assert again.given[0] == 13, "twelve samples were trained on, not those read ahead"
    assert cut.losses + rest.losses == whole.losses


def test_data_without_a_state_is_skipped_and_begins_again(own, tmp_path):
    import numpy as np

    rows = [{"input_ids": np.arange(n, n + 10, dtype=np.int32), "labels": [-100] * 5 + list(range(n, n + 5))} for n in range(5)]
    whole = planaria.Trainer(own, run=tmp_path / "whole", data=rows).run()
    cut = planaria.Trainer(own, run=tmp_path / "cut", data=rows).run(until=4)
    rest = planaria.Trainer(own, run=tmp_path / "cut", data=rows).run()
    assert cut.losses + rest.losses == whole.losses and whole.step == 8


def test_own_data_that_is_wrong_ends_the_run_with_its_error(own, config, tmp_path):
    class Failing(Counting):
        def __next__(self):
            if self.at == 5:
                raise LookupError("no fifth sample")
            return super().__next__()

    with pytest.raises(LookupError, match="no fifth sample"):
        planaria.Trainer(own, run=tmp_path / "a", data=Failing()).run()
    for at, (rows, told) in enumerate([([{"ids": [1]}], "input_ids"), ([{"input_ids": [0.5]}], "integers"), ([{"input_ids": [[1]]}], "one dim")]):
        with pytest.raises((TypeError, ValueError), match=told):
            planaria.Trainer(own, run=tmp_path / f"b{at}", data=rows).run()
    for at, (rows, told) in enumerate([([{"input_ids": [1] * 18}], "18 tokens"), ([{"input_ids": [999]}], "vocabulary"), (iter([{"input_ids": [1, 2]}]), "ended after")]):
        with pytest.raises(planaria.Error, match=told):
            planaria.Trainer(own, run=tmp_path / f"c{at}", data=rows).run()
    with pytest.raises(planaria.ConfigError) as refused:
        planaria.Trainer(own | {"data": {"sequence": 16, "source": [{"path": "x"}]}}, data=[])
    assert refused.value.key == "data.source"
    with pytest.raises(planaria.ConfigError):
        planaria.Trainer(own)
    with pytest.raises(TypeError):
        planaria.Trainer(own, data=3)


def test_a_run_is_a_figure_where_matplotlib_is(config, tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    outcome = planaria.Trainer(config, run=tmp_path / "drawn").run(until=4)
    figure = planaria.plot(outcome)
    assert isinstance(figure, figures.Figure)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    raw, smooth = axes.get_lines()
    assert list(raw.get_xdata()) == [1, 2, 3, 4] and list(raw.get_ydata()) == pytest.approx(outcome.losses, rel=1e-6)
    assert smooth.get_label() == "drawn" == axes.get_legend().get_texts()[0].get_text()


def test_a_run_is_drawn(config, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    trainer = planaria.Trainer(config, run=tmp_path / "drawn")
    outcome = trainer.run(until=4)
    for thing in (tmp_path / "drawn", trainer, outcome, [str(tmp_path / "drawn")]):
        picture = planaria.plot(thing)
        assert picture.svg.startswith("<svg") and "loss" in picture.svg
    planaria.plot(trainer, path=tmp_path / "loss.svg")
    assert (tmp_path / "loss.svg").read_text() == picture.svg
    with pytest.raises(planaria.Error, match="losss"):
        planaria.plot(trainer, metric="losss")
    with pytest.raises(TypeError):
        planaria.plot(3)
