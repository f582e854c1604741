"""Where checkpoints are put and taken from: mapped reads, what is replaced, any format by any number of ranks, merges."""

import os
import pathlib

import pytest

np = pytest.importorskip("numpy")

import planaria  # noqa: E402


def state(value=1.0):
    return {"big": np.full((600, 1000), value, np.float32), "small": np.arange(5), "odd": np.arange(333_333, dtype=np.int16)}


def mapped_files():
    with open("/proc/self/maps") as file:
        return [line for line in file if ".safetensors" in line]


def test_whole_tensors_of_cached_files_are_mapped_verified_and_private(tmp_path):
    planaria.save(state(), tmp_path / "c")
    files = sorted((tmp_path / "c").glob("*.safetensors"))
    before = [file.read_bytes() for file in files]
    with planaria.open(tmp_path / "c") as ckpt:
        one, two = ckpt["big"].read(), ckpt["big"].numpy()
        if not mapped_files():
            pytest.skip("this kernel or file system cannot say what is cached")
        assert (one.numpy() == 1).all() and (ckpt["odd"].read().numpy() == np.arange(333_333, dtype=np.int16)).all()
        one[0, 0] = 7
        two[0, 1] = 8
        assert one[0, :2].tolist() == [7, 1] and two[0, :2].tolist() == [1, 8]
        assert not one.readonly and ckpt["big"][0, :2].tolist() == [1, 1]
    assert [file.read_bytes() for file in files] == before
    kept = one.snapshot()
    one[0, 0] = 9
    assert kept[0, 0].item() == 7
    # The files may go; what was read stays.
    planaria.save(state(5.0), tmp_path / "c", overwrite=True)
    assert two[599, 999] == 1 and planaria.load(tmp_path / "c")["big"][0, 0].item() == 5
    del one, two, kept
    assert not mapped_files()


def test_tensors_of_a_file_share_a_mapping_and_no_byte(tmp_path):
    planaria.save(state(), tmp_path / "c")
    # A save goes around the page cache; what is not there is not mapped.
    for file in (tmp_path / "c").iterdir():
        file.read_bytes()
    with planaria.open(tmp_path / "c") as ckpt:
        # Compares them, with the blocks around each.
        saved = {name: np.array(stored.numpy()) for name, stored in ckpt.items()}
    with planaria.open(tmp_path / "c") as ckpt:
        first = {name: stored.numpy() for name, stored in ckpt.items()}
        if not mapped_files():
            pytest.skip("this kernel or file system cannot say what is cached")
        assert len(mapped_files()) == 1
        for array in first.values():
            array += 1
        second = {name: stored.numpy() for name, stored in ckpt.items()}
        for name, value in saved.items():
            assert (first[name] == value + 1).all() and (second[name] == value).all()
            second[name][...] = 0
            assert (first[name] == value + 1).all() and (ckpt[name].numpy() == value).all()
    assert planaria.verify(tmp_path / "c").ok
    del first, second, array
    # The closed checkpoint keeps nothing.
    assert not mapped_files()


def test_torch_writes_to_mapped_memory_without_harm(tmp_path):
    pytest.importorskip("torch")
    planaria.save(state(), tmp_path / "c")
    file = next((tmp_path / "c").glob("*.safetensors"))
    before = file.read_bytes()
    with planaria.open(tmp_path / "c") as ckpt:
        tensor = ckpt["big"].torch()
    tensor += 1
    assert float(tensor[0, 0]) == 2 and file.read_bytes() == before
    assert planaria.verify(tmp_path / "c").ok


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_damage_is_found_before_a_mapped_byte_counts(tmp_path, at):
    planaria.save({"big": np.ones((1000, 1000), np.float32)}, tmp_path / "c")
    file = next((tmp_path / "c").glob("*.safetensors"))
    where = int(file.stat().st_size * at)
    with open(file, "r+b") as out:
        out.seek(where)
        byte = out.read(1)[0]
        out.seek(where)
        out.write(bytes([byte ^ 16]))
    with planaria.open(tmp_path / "c") as ckpt, pytest.raises(planaria.DamagedError) as error:
        ckpt["big"].read()
    assert error.value.tensor == "big" and error.value.start <= where < error.value.stop
    os.truncate(file, where)
    with pytest.raises(planaria.Error), planaria.open(tmp_path / "c") as ckpt:
        ckpt["big"].read()


@pytest.mark.parametrize("form", ["planaria", "hf", "dcp"])
def test_ranks_write_every_format_and_replace_together(tmp_path, form):
    place = tmp_path / "c"

    def rank(comm, value, overwrite):
        layout = planaria.mesh(dp=3).layout((6, 4), "dp:S0")
        tensor = planaria.tensor(np.full((6, 4), value, np.float32), layout, comm=comm)
        return planaria.save({"w": tensor, "step": 3}, place, comm=comm, format=form, overwrite=overwrite).tensors

    assert planaria.threads(3, rank, 1.0, False) == [1, 1, 1]
    with pytest.raises(planaria.ExistsError if form != "planaria" else planaria.Error):
        planaria.threads(3, rank, 2.0, False)
    assert planaria.load(place)["w"].numpy().sum() == 24
    planaria.threads(3, rank, 2.0, True)
    assert planaria.load(place)["w"].numpy().sum() == 48 and os.listdir(tmp_path) == ["c"]

    def background(comm):
        layout = planaria.mesh(dp=3).layout((6, 4), "dp:S0")
        tensor = planaria.tensor(np.full((6, 4), 5.0, np.float32), layout, comm=comm)
        return planaria.async_save({"w": tensor}, place, comm=comm, format=form, overwrite=True).result().tensors

    assert planaria.threads(3, background) == [1, 1, 1]
    assert planaria.load(place)["w"].numpy().sum() == 120 and os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("form", ["planaria", "hf"])
def test_what_is_no_checkpoint_is_never_replaced(tmp_path, form):
    planaria.save(state(), tmp_path / "c", format=form)
    (tmp_path / "c" / "thesis.txt").write_text("x")
    for save in (planaria.save, planaria.async_save):
        with pytest.raises(planaria.ExistsError, match="thesis.txt"):
            save(state(2.0), tmp_path / "c", format=form, overwrite=True)
    with pytest.raises(planaria.ExistsError, match="thesis.txt"):
        planaria.save(state(2.0), tmp_path / "c", format="dcp", overwrite=True)
    assert (tmp_path / "c" / "thesis.txt").read_text() == "x" and planaria.load(tmp_path / "c")["small"].shape == (5,)
    for save in (planaria.save, planaria.async_save):
        with pytest.raises(planaria.ExistsError):
            save(state(2.0), tmp_path / "c", format=form)


def test_object_stores_are_a_feature_and_their_absence_says_so():
    for url in ("s3://bucket/x", "gs://bucket/x", "az://bucket/x"):
        try:
            planaria.open(url)
        except planaria.ArgumentError as error:
            assert "lacks the feature" not in str(error) or "maturin build --release --features" in str(error)
        except planaria.Error:
            # The wheel has it, and nobody answers.
            pass


def test_a_conversion_replaces_only_when_asked_and_never_what_it_reads(tmp_path):
    planaria.save(state(), tmp_path / "a")
    planaria.convert(tmp_path / "a", tmp_path / "b")
    with pytest.raises(planaria.ExistsError):
        planaria.convert(tmp_path / "a", tmp_path / "b")
    report = planaria.convert(tmp_path / "a", tmp_path / "b", dtype="bf16", overwrite=True, max_file_size="1MB")
    assert report.tensors == 3 and str(planaria.inspect(tmp_path / "b").dtypes["big"]) == "bf16"
    assert len(planaria.inspect(tmp_path / "b").files) > 1
    with pytest.raises(ValueError, match="share files"):
        planaria.convert(tmp_path / "a", tmp_path / "a", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_models_are_merged_by_a_recipe_in_any_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("a", 1.0), ("b", 3.0)):
        planaria.save({"w": np.full((4, 3), value, np.float32)}, name, format="hf")
    one = lambda name: {"model": f"{name}/model.safetensors", "parameters": {"weight": 0.5}}
    recipe = {"merge_method": "linear", "models": [one("a"), one("b")]}
    text = "merge_method: linear\nmodels:\n" + "".join(
        f"  - model: {name}/model.safetensors\n    parameters: {{weight: 0.5}}\n" for name in "ab"
    )
    pathlib.Path("recipe.yaml").write_text(text)
    told = []
    for number, form in enumerate([recipe, text, "recipe.yaml", pathlib.Path("recipe.yaml")]):
        report = planaria.merge(form, f"out-{number}", inputs="tensors", progress=lambda *said: told.append(said))
        assert report.tensors == 1 and planaria.load(f"out-{number}")["w"].tolist() == [[2.0] * 3] * 4
    assert told[-1][0] == told[-1][1] and told[-1][2] == "merge"
    with pytest.raises(planaria.ExistsError):
        planaria.merge(recipe, "out-0", inputs="tensors")
    planaria.merge(recipe, "out-0", inputs="tensors", to="planaria", overwrite=True)
    assert planaria.inspect("out-0").format == "planaria"
    for wrong, error in [
        (lambda: planaria.merge({**recipe, "merge_method": "magic"}, "x", inputs="tensors"), ValueError),
        (lambda: planaria.merge(recipe, "x", inputs="anything"), ValueError),
        (lambda: planaria.merge(recipe, "x", inputs="tensors", missing="whatever"), ValueError),
        (lambda: planaria.merge("nowhere.yaml", "x"), FileNotFoundError),
        (lambda: planaria.merge({**recipe, "models": [one("a"), one("nowhere")]}, "x", inputs="tensors"), planaria.Error),
        (lambda: planaria.merge(5, "x"), TypeError),
    ]:
        with pytest.raises(error):
            wrong()
    assert not os.path.exists("x")
