"""What people see: pictures, progress, log records, HTML."""

import logging
import threading
import xml.etree.ElementTree as tree

import pytest

import planaria


def texts(svg):
    root = tree.fromstring(svg)
    return [element.text for element in root.iter() if element.text]


def test_a_layout_is_drawn_as_who_holds_which_box():
    layout = planaria.mesh(dp=2, tp=4).layout((8, 16), "dp:R tp:S1")
    picture = planaria.plot(layout)
    told = [text for text in texts(picture.svg) if " on rank " in text]
    assert told == [f"[0..8, {4 * t}..{4 * t + 4}] on rank {t}, {t + 4}" for t in range(4)]
    assert picture._repr_html_() == picture.svg == picture._repr_svg_()
    for shape, placements in (((), "dp:R"), ((5,), "dp:S0"), ((0, 3), "dp:S0"), ((2, 3, 4), "dp:S0 tp:S2")):
        tree.fromstring(planaria.plot(planaria.mesh(dp=2, tp=4).layout(shape, placements)).svg)


def test_a_schedule_is_drawn_as_a_timeline():
    schedule = planaria.schedule("1f1b", ranks=4, micro_batches=8)
    told = [text for text in texts(planaria.plot(schedule).svg) if " of micro-batch " in text]
    assert len(told) == 2 * 4 * 8 and len(set(told)) == 2 * 4 * 8
    assert schedule.bubble[0] == pytest.approx(3 / 11) and schedule.ranks == 4
    for row in schedule.spans:
        assert all(a.end <= b.start + 1e-9 for a, b in zip(row, row[1:])), "a rank does one thing at a time"
    assert planaria.schedule("zb_h1", 4, 8).makespan < schedule.makespan
    for wrong in (("2f2b", 4, 8), ("1f1b", 0, 8)):
        with pytest.raises(planaria.Error):
            planaria.schedule(*wrong)


def test_html_is_plain_and_escaped():
    mesh = planaria.mesh(dp=2)
    array = planaria.array([[1.0, 2.0]])
    things = [array, planaria.tensor(array), mesh, mesh.layout((4,), "dp:S0"), planaria.schedule("1f1b", 2, 2)]
    for thing in things:
        shown = thing._repr_html_()
        assert "<script" not in shown and shown.startswith("<")
        tree.fromstring(shown)


def test_reports_are_tables(tmp_path):
    saved = planaria.save({"<w>": planaria.array([1.0]), "step": 7}, tmp_path / "a")
    loaded = planaria.load(tmp_path / "a", into={"<w>": planaria.array([0.0]), "step": 0})
    reports = [saved, loaded, planaria.inspect(tmp_path / "a"), planaria.verify(tmp_path / "a"), planaria.diff(tmp_path / "a", tmp_path / "a")]
    reports.append(planaria.convert(tmp_path / "a", tmp_path / "b"))
    for report in reports:
        shown = tree.fromstring(report._repr_html_())
        assert shown.find("b").text == type(report).__name__
        rows = [[cell.text for cell in row] for row in shown.iter("tr")]
        assert [name for name, _ in rows] == list(report.to_dict())
    assert "&lt;w&gt;" in reports[2]._repr_html_() and "<w>" in repr(reports[2])


def test_progress_is_told_while_a_save_goes_on_and_once_at_its_end(tmp_path):
    state = {"w": planaria.array(bytearray(192 << 20))}
    for verb, call in (
        ("save", lambda f: planaria.save(state, tmp_path / "a", progress=f)),
        ("load", lambda f: planaria.load(tmp_path / "a", into=state, progress=f)),
        ("convert", lambda f: planaria.convert(tmp_path / "a", tmp_path / "b", progress=f)),
    ):
        told = []
        call(lambda *said: told.append(said))
        assert told[-1][0] == told[-1][1] and told[-1][2] == verb
        assert [done for done, total, _ in told if done == total] == [told[-1][0]]
        assert all(a[0] <= b[0] for a, b in zip(told, told[1:])), told
    ended = []
    handle = planaria.async_save(state, tmp_path / "c", progress=lambda *said: ended.append(said))
    handle.result()
    for thread in threading.enumerate():
        if thread.name == "planaria-progress":
            thread.join(10)
    assert ended[-1][0] == ended[-1][1] == handle.result().bytes


def test_an_exception_in_progress_ends_the_call_and_leaves_nothing(tmp_path):
    class Enough(Exception):
        pass

    def tell(done, total, what):
        raise Enough

    with pytest.raises(Enough):
        planaria.save({"w": planaria.array(bytearray(64 << 20))}, tmp_path / "a", progress=tell)
    with pytest.raises(TypeError):
        planaria.save({"w": planaria.array([1.0])}, tmp_path / "b", progress=3)


def test_a_bar_is_shown_only_where_someone_looks(tmp_path, capsys):
    state = {"w": planaria.array([1.0])}
    planaria.save(state, tmp_path / "a")
    planaria.save(state, tmp_path / "b", progress=False)
    assert capsys.readouterr().err == ""
    planaria.save(state, tmp_path / "c", progress=True)
    assert "save [====" in capsys.readouterr().err


def test_records_go_to_the_logger(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="planaria"):
        planaria.save({"w": planaria.array([1.0])}, tmp_path / "a")
        planaria.load(tmp_path / "a")
        planaria.convert(tmp_path / "a", tmp_path / "b")
    said = [record.getMessage() for record in caplog.records if record.name == "planaria"]
    assert [text.split()[0] for text in said] == ["saved", "loaded", "converted"]
    with caplog.at_level(logging.ERROR, logger="planaria"):
        handle = planaria.async_save({"w": planaria.array([1.0])}, tmp_path / "x" / "y", format="hf")
        handle.result()
    assert logging.getLogger("planaria").handlers == []


def test_dtypes_that_arrays_lack_have_their_own_names(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"c": torch.zeros(2, 3, dtype=torch.complex64), "w": torch.ones(2)}, tmp_path / "m.safetensors")
    with planaria.open(tmp_path / "m.safetensors") as ckpt:
        assert (ckpt["c"].dtype, ckpt["c"].shape) == ("complex64", (2, 3))
        assert "complex64[2, 3]" in repr(ckpt["c"]) and "complex64" in repr(ckpt)
        for read in (lambda: ckpt["c"][0], lambda: ckpt["c"].numpy()):
            with pytest.raises(planaria.DTypeError, match="complex64"):
                read()
    assert planaria.inspect(tmp_path / "m.safetensors").dtypes == {"c": "complex64", "w": "f32"}
    with pytest.raises(planaria.DTypeError, match="'c'"):
        planaria.load(tmp_path / "m.safetensors")
    assert planaria.load(tmp_path / "m.safetensors", ignore="c")["w"].tolist() == [1.0, 1.0]
