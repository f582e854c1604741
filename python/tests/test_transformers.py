"""The callback for transformers' trainer."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import planaria  # noqa: E402
from planaria.transformers import CheckpointCallback  # noqa: E402


def test_the_callback_saves_what_the_trainer_has_and_keeps_the_newest(tmp_path):
    """Driven by the trainer's own list of callbacks, as a run drives it."""
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    callback = CheckpointCallback(tmp_path / "run", keep=2)
    handler = CallbackHandler([callback], model, None, optimizer, schedule)
    state, control = TrainerState(), TrainerControl()
    # The trainer itself needs another package; its callbacks are called with arguments that ours does not look at.
    arguments = None
    for step in (1, 2, 3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state.global_step = step
        handler.on_save(arguments, state, control)
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            # The state may change at once.
            model.weight += 1.0 * (step < 3)
    handler.on_train_end(arguments, state, control)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["step-00000002", "step-00000003"]
    with planaria.open(tmp_path / "run" / "step-00000003") as ckpt:
        assert ckpt.step == 3
    other = torch.nn.Linear(3, 2)
    planaria.load(tmp_path / "run" / "step-00000003", into={"model": other}, strict=False)
    assert torch.equal(other.weight, expected["weight"])
    # Of several processes that have all of it the first saves, and removes.
    state.global_step, state.is_world_process_zero = 4, False
    handler.on_save(arguments, state, control)
    handler.on_train_end(arguments, state, control)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["step-00000002", "step-00000003"]
    for keep in (0, -1, "3", True):
        with pytest.raises(ValueError):
            CheckpointCallback(tmp_path, keep=keep)


def test_what_is_older_is_removed_behind_urls_too(tmp_path):
    from types import SimpleNamespace

    callback = CheckpointCallback(f"file://{tmp_path}/run", keep=1)
    (tmp_path / "run" / "notes").mkdir(parents=True)
    for step in (1, 2):
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        callback.on_save(None, state, None, model=torch.nn.Linear(2, 2))
    callback.on_train_end(None, state, None)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["notes", "step-00000002"]
