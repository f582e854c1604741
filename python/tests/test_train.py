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
    assert done.stopped and done.step in (3, 4) and done.losses[: len(seen)] == seen
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
    for change, key in [({"train": {"stepz": 3}}, "train.stepz"), ({"optim": {"lr": -1.0}}, "optim.lr")]:
        with pytest.raises(planaria.ConfigError) as error:
            planaria.Trainer({**config, **change}, run=tmp_path / "a")
        assert error.value.key == key and isinstance(error.value, ValueError)
    with pytest.raises(TypeError):
        planaria.Trainer(5)
    with pytest.raises(TypeError):
        planaria.Trainer({"train": {"steps": object()}})
    with pytest.raises(planaria.Error):
        planaria.Trainer(str(tmp_path / "nothing.toml"))


def test_plans_need_no_devices(config):
    config["mesh"] = "tp=2"
    config["train"]["global_batch"] = 64
    plan = planaria.plan_run(config, ranks=64)
    assert plan.ranks == 64 and plan.to_dict()["stages"] and "parameters" in repr(plan)
