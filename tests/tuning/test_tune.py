"""The ladder: what it tries, where it stops, what it leaves behind."""

import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.models.branches import branches, samples
from tests.models.digits import held_out, images, residual_network
from tests.surgery import nets

from foldmark.calibrate.observers import Method
from foldmark.cli.main import run
from foldmark.errors import NotSupported
from foldmark.proof.verify import verify
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Mode, Override, TensorCodes, TensorRange
from foldmark.recipes.recipe_file import BUILT_IN, parse_recipe, recipe_text
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.machine import machine
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.profile import NodeRun
from foldmark.runtimes.timing import Interval
from foldmark.surgery.activations import ActivationCodes
from foldmark.tuning.costs import Costs
from foldmark.tuning.kept import kept_repairs
from foldmark.tuning.reading import Reading
from foldmark.tuning.repairs import Repair, explained_samples, find_repairs, repaired
from foldmark.tuning.slow import Comparison, compared
from foldmark.tuning.trial import Bench, Trial
from foldmark.tuning.tune import Goal, tune


def hard_network():
    """Two classifiers in one: a product whose inputs hold one huge channel decides the class."""
    helper = nets.helper
    nodes = [
        helper.make_node("MatMul", ["x", "easy"], ["e"], "easy/product"),
        helper.make_node("Mul", ["x", "stretch"], ["s"], "stretch"),
        helper.make_node("MatMul", ["s", "hard"], ["h"], "hard/product"),
        helper.make_node("Add", ["e", "h"], ["y"], "sum"),
    ]
    stretch = np.ones(32, np.float32)
    stretch[7] = 3000
    hard = nets.random(32, 10, seed=2)
    hard[7] = 0
    stored = {"easy": nets.random(32, 10) * 0.1, "hard": hard, "stretch": stretch}
    return nets.net(nodes, stored, ("n", 32))


@pytest.fixture
def folder(tmp_path):
    model = hard_network()
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {"x": nets.random(200, 32, seed=4)}
    labels = Session(model).run(feeds)["y"].argmax(1)
    np.savez(tmp_path / "d.npz", **feeds, labels=labels)
    return tmp_path


class Even(Bench):
    """A bench on which everything is as fast as float: what is tried depends on no clock."""

    def run(self, step, recipe):
        return replace(super().run(step, recipe), speed=Interval(1.0, 1.0, 1.0))


@pytest.fixture(autouse=True)
def _even(monkeypatch):
    """No test here asks how fast a model is: its speed is measured in no time, and not used."""
    monkeypatch.setattr("foldmark.cli.tune.Bench", partial(Even, seconds=0.02))


def command(folder, *more, drop="0.02"):
    return run(
        [
            "tune", str(folder / "m.onnx"), "-o", str(folder / "q.onnx"),
            "--data", str(folder / "d.npz"), "--max-drop", drop, "--threads", "1", *more,
        ]
    )  # fmt: skip


def test_climbs_until_the_target_holds(folder, capsys):
    assert command(folder, "--json", str(folder / "t.json")) == 0
    out = capsys.readouterr().out
    assert out.startswith("The target holds")
    assert max(map(len, out.partition("Made again")[0].splitlines())) <= 80
    document = json.loads((folder / "t.json").read_text())
    assert document["reached"]
    drops = [trial["drop"] for trial in document["trials"]]
    assert [trial["step"] for trial in document["trials"]][:2] == ["dynamic", "static"]
    assert min(drops[:2]) > 0.02
    best = next(t for t in document["trials"] if t["step"] == document["best"])
    assert best["drop"] <= 0.02
    recipe = parse_recipe((folder / "q.toml").read_text(), "q.toml")
    assert parse_recipe(document["recipe"], "r") == recipe
    made = quantize_model(folder / "m.onnx", recipe, folder / "d.npz")
    proof = verify(folder / "q.onnx", folder / "m.onnx", folder / "d.npz", seconds=0.1)
    assert -proof.quality.score.change.value == pytest.approx(best["drop"])
    assert made.account.done


def test_the_account_names_what_to_leave_in_float(folder):
    """Without methods that smooth, the operator at fault is found and left in float."""
    model = onnx.load(folder / "m.onnx")
    data = open_data(folder / "d.npz", model)
    trials = folder / "trials"
    trials.mkdir()
    bench = Even(folder / "m.onnx", data, data, trials, seconds=0.05)
    found = tune(bench, Goal(-1.0), folder / "q.onnx")  # a goal that nothing reaches
    assert not found.reached
    repairs = [step for step in found.steps if step.promise is not None]
    assert found.blame[0] == "hard/product"
    touched = repairs[-1].trial.recipe
    assert any(each.match == "^hard/product$" and each.keep_float for each in touched.overrides)
    for step in repairs:
        assert step.base is not None
        assert step.promise.saving > 0
        assert step.promise.milliseconds >= 0
    savings = [step.promise.saving for step in repairs]
    assert savings == sorted(savings)  # each takes the earlier ones and more


def test_what_is_free_comes_first():
    """Another range costs no time: it stands before an operator in float that saves more."""
    ranged = Repair("", "a", 0.2, 0.0, TensorRange("a", -1.0, 2.0))
    cheap = Repair("", "b", 0.2, 0.1, Override("^b$", keep_float=True))
    dear = Repair("", "c", 0.6, 1.0, Override("^c$", keep_float=True))
    order = sorted((dear, cheap, ranged), key=lambda repair: -repair.worth)
    assert order == [ranged, cheap, dear]
    recipe = repaired(BUILT_IN["static"], tuple(order))
    assert recipe.ranges == (TensorRange("a", -1.0, 2.0),)
    assert [each.match for each in recipe.overrides] == ["^b$", "^c$"]
    again = repaired(recipe, (Repair("", "a", 0.2, 0.0, TensorRange("a", 0.0, 1.0)),))
    assert again.ranges == (TensorRange("a", 0.0, 1.0),)
    assert parse_recipe(recipe_text(recipe), "r") == recipe


@pytest.fixture
def joined(tmp_path):
    """The folder of a network in which a joined tensor alone is at fault."""
    model = nets.joined()
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {"x": nets.random(200, 3, 8, 8, seed=9)}
    labels = Session(model).run(feeds)["y"].argmax(1)
    np.savez(tmp_path / "d.npz", **feeds, labels=labels)
    return tmp_path


WIDE = TensorCodes("t", ActivationCodes.UINT16)


def test_sixteen_bits_where_float_does_not_reach(joined, monkeypatch, capsys):
    """What a kernel joins is read from its codes, in float too: the tensor gets finer ones."""
    # Leaving any operator in float is cheaper: half a millisecond to nearly two.
    times = {f"{name}/conv": 1e-3 for name in (*nets.BRANCHES, "quiet", "loud")}
    conversions = dict.fromkeys((*"xabt", "first", "second", "third"), 1e-4)
    costs = Costs(times, 0.5, conversions, conversions)
    monkeypatch.setattr("foldmark.tuning.repairs.measure_costs", lambda *_: costs)
    # So small a network is slower on integers than in float: not what this is about.
    monkeypatch.setattr("foldmark.tuning.tune.compare_products", lambda *_: Comparison(0, {}))
    assert command(joined, "--json", str(joined / "t.json"), drop="0.06") == 0
    out = capsys.readouterr().out
    assert out.startswith("The target holds with '1 tensor in 16 bits'")
    row = next(line for line in out.splitlines() if line.startswith("t: uint16"))
    assert row.split()[-1] == "yes"
    # Three readers; the codes of t and the floats of what it is joined from, of itself and of
    # three weights.
    repairs = json.loads((joined / "t.json").read_text())["repairs"]
    told = {each["repair"]: each for each in repairs}
    assert told["t: uint16"]["milliseconds"] == pytest.approx(3 * 0.5 + 7 * 0.1)
    assert told["t: uint16"]["saving"] > 0.9
    assert all(each["saving"] < 0.1 for name, each in told.items() if name != "t: uint16")
    recipe = parse_recipe((joined / "q.toml").read_text(), "q.toml")
    assert recipe.codes == (WIDE,)
    assert (recipe.ranges, recipe.overrides) == ((), ())
    # The recipe makes the same bytes, and they run as well as the account expected.
    printed = shlex.split(out[out.index("foldmark quantize") :].replace("\\\n", ""))
    assert run([*printed[1:-1], str(joined / "again.onnx")]) == 0
    assert (joined / "again.onnx").read_bytes() == (joined / "q.onnx").read_bytes()
    arrays = dict(np.load(joined / "d.npz"))
    static = quantize_model(joined / "m.onnx", BUILT_IN["static"], joined / "d.npz").model
    before, after = (
        (Session(each).run({"x": arrays["x"]})["y"].argmax(1) == arrays["labels"]).mean()
        for each in (static, joined / "q.onnx")
    )
    assert after >= 0.94
    assert before < 0.5


def test_float_is_cheaper_where_it_does_the_same(folder):
    """A tensor that is read as it is: its readers in float take it all away, conversions apart."""
    model = onnx.load(folder / "m.onnx")
    reading = Reading(model, BUILT_IN["static"])
    costs = Costs({"hard/product": 1e-3}, 0.5, {"s": 1e-4}, {"s": 1e-4, "hard": 1e-4})
    assert costs.in_float("hard/product") == pytest.approx(0.5)
    assert costs.wide("s", reading) == pytest.approx(0.5 + 0.3)
    assert reading.readers()["s"] == {"hard/product"}
    assert not reading.readers(in_float="hard/product").get("s")


def test_one_reader_in_float_still_reads_joined_codes():
    reading = Reading(nets.joined(), BUILT_IN["static"])
    assert reading.readers(in_float="first/conv")["t"] == reading.readers()["t"]
    # Where one side of the join has no codes there are none to join: its other readers' are left.
    assert reading.readers(in_float="quiet/conv")["t"] == {f"{n}/conv" for n in nets.BRANCHES}
    assert [each.name for each in reading.around("a")] == ["quiet/conv"]
    assert reading.joined("t") == ["a", "b"]
    assert reading.joined("a") == []
    # A residual stream: the sum's codes come behind its activation function.
    residual = Reading(onnx.load(residual_network()), BUILT_IN["static"])
    (plan,) = residual.plans
    sums = [tensor for tensor in plan.pairs if len(residual.joined(tensor)) == 2]
    assert sums == ["/block1/Relu_1_output_0", "/block2/Relu_1_output_0"]


def test_sixteen_bits_take_the_place_of_another_range():
    ranged = Repair("", "t", 0.2, 0.0, TensorRange("t", -1.0, 2.0), frozenset({"b", "c"}))
    wide = replace(ranged, change=WIDE)
    made = repaired(BUILT_IN["static"], (ranged, wide))
    assert (made.ranges, made.codes) == ((), (WIDE,))
    floats = [replace(wide, change=Override(f"^{n}$", keep_float=True), products=frozenset(n))
              for n in "bc"]  # fmt: skip
    assert repaired(BUILT_IN["static"], (wide, *floats)).codes == ()
    assert repaired(BUILT_IN["static"], (wide, floats[0])).codes == (WIDE,)


def test_a_range_that_nothing_needs_any_more_is_left_out():
    """Where every operator that touches a tensor stays in float, the tensor has no codes."""
    ranged = Repair("", "t", 0.2, 0.0, TensorRange("t", -1.0, 2.0), frozenset({"b", "c"}))
    b, c = (
        Repair("", name, 0.2, 0.1, Override(f"^{name}$", keep_float=True), frozenset({name}))
        for name in "bc"
    )
    assert repaired(BUILT_IN["static"], (ranged, b)).ranges == (ranged.change,)
    assert repaired(BUILT_IN["static"], (ranged, b, c)).ranges == ()


def test_repairs_go_together(tmp_path, monkeypatch):
    """However many the account names, the recipe with all of them can be followed."""
    model = residual_network()
    data = open_data(held_out(32), onnx.load(model))
    bench = Bench(model, data, data, tmp_path, seconds=0.05)
    trial = bench.run("static", BUILT_IN["static"])
    repairs = find_repairs(bench, trial, onnx.load(model))
    assert any(isinstance(each.change, TensorRange) for each in repairs)
    assert any(isinstance(each.change, Override) for each in repairs)
    for count in range(1, len(repairs) + 1):
        made = bench.run("repaired", repaired(trial.recipe, repairs[:count]))
        assert "needs none" not in made.failure


def ran(**microseconds):
    """What a profiler would say: nodes by name, slashes written as two underscores."""
    return tuple(
        NodeRun(name.replace("__", "/"), "", "", each * 1e-6, (), ())
        for name, each in microseconds.items()
    )


def test_conversions_count_with_the_products_that_they_serve():
    model = hard_network()
    made = quantize_model(model, BUILT_IN["static"], {"x": nets.random(8, 32)}).model
    real = ran(easy__product=10, hard__product=10, sum=5)
    other = ran(
        easy__product=4, x_QuantizeLinear=5, hard__product=4, s_QuantizeLinear=9, sum=50, stretch=50
    )
    found = compared(model, made, real, other)
    assert found.compared == 2
    assert found.lost == {"hard/product": pytest.approx(3e-6)}
    dynamic = ran(easy__product_quant=11, x_quantize=2, hard__product_quant=9, hard__product_cast=2)
    assert compared(model, made, real, dynamic).lost == {
        "easy/product": pytest.approx(3e-6),
        "hard/product": pytest.approx(1e-6),
    }


def test_what_was_not_quantized_or_not_run_is_not_compared():
    model = hard_network()
    recipe = replace(BUILT_IN["static"], overrides=(Override("^hard/product$", keep_float=True),))
    made = quantize_model(model, recipe, {"x": nets.random(8, 32)}).model
    real = ran(easy__product=10, hard__product=10)
    assert compared(model, made, real, ran(easy__product=4, hard__product=12)).lost == {}
    assert compared(model, made, ran(), ran(easy__product=4)).compared == 0


class Timed(Bench):
    """A bench whose trials are as fast as it is told, by what the recipe leaves in float."""

    speeds = (Interval(0.8, 0.78, 0.82), Interval(1.1, 1.05, 1.15))

    def run(self, step, recipe):
        return replace(super().run(step, recipe), speed=self.speeds[len(recipe.overrides)])


@pytest.mark.parametrize(
    ("lost", "sure", "taken"), [(["easy/product"], True, True), (["easy/product"], False, False),
                                (["easy/product", "hard/product"], True, False), ([], True, False)],
)  # fmt: skip
def test_what_integers_make_slower_stays_in_float(folder, monkeypatch, lost, sure, taken):
    """Where the measured speed gains; where all of it is slower, that is said."""
    data = open_data(folder / "d.npz", onnx.load(folder / "m.onnx"))
    bench = Timed(folder / "m.onnx", data, data, folder, seconds=0.01)
    if not sure:
        monkeypatch.setattr(Timed, "speeds", (Timed.speeds[0], Interval(1.1, 0.79, 1.4)))
    seen = Comparison(2, dict.fromkeys(lost, 1e-6))
    monkeypatch.setattr("foldmark.tuning.tune.compare_products", lambda *_: seen)
    found = tune(bench, Goal(1.0), folder / "q.onnx")
    kept = [each.match for each in found.best.recipe.overrides if each.keep_float]
    assert kept == (["^easy/product$"] if taken else [])
    assert found.reached
    assert len(found.trials) == 2 + (len(lost) == 1)
    told = ("each operator takes longer on integers than in float",)
    assert found.blame == (told if len(lost) == 2 else ())


@pytest.mark.parametrize("saturates", [True, False, None])
def test_weights_of_seven_bits_where_pairs_saturate(folder, monkeypatch, saturates):
    """Tried first, and nowhere else; the recipe says it by the rule's name."""
    here = replace(machine(), saturates=saturates)
    monkeypatch.setattr("foldmark.tuning.tune.machine", lambda: here)
    data = open_data(folder / "d.npz", onnx.load(folder / "m.onnx"))
    bench = Even(folder / "m.onnx", data, data, folder, seconds=0.01)
    found = tune(bench, Goal(0.02), folder / "q.onnx")
    names = [trial.step for trial in found.trials]
    assert names.index("7-bit weights" if saturates else "ranges by mse") == 2
    assert ("7-bit weights" in names) == bool(saturates)
    if saturates:
        assert found.trials[2].recipe.rule == "ONNXRUNTIME_WEIGHT_INT8_REDUCED"
        stored = onnx.load(found.trials[2].model).graph.initializer
        codes = [nets.numpy_helper.to_array(t) for t in stored if t.data_type == t.INT8]
        assert max(np.abs(each.astype(int)).max() for each in codes) == 64


@pytest.mark.parametrize(("side", "count"), [(8, 32), (224, 6), (1024, 4)])
def test_large_samples_are_explained_by_fewer(side, count):
    node = nets.helper.make_node("Relu", ["x"], ["y"], "relu")
    model = nets.net([node], {}, ("n", 3, side, side), 4)
    data = open_data({"x": np.zeros((2, 3, side, side), np.float32)}, model)
    assert explained_samples(data) == count


def test_the_recipe_makes_the_same_bytes(folder, capsys):
    """The command that tune prints gives the file that tune wrote."""
    assert command(folder, "--calibration-samples", "24") == 0
    out = capsys.readouterr().out
    printed = shlex.split(out[out.index("foldmark quantize") :].replace("\\\n", ""))
    assert run([*printed[1:-1], str(folder / "again.onnx")]) == 0
    assert (folder / "again.onnx").read_bytes() == (folder / "q.onnx").read_bytes()
    assert "--samples 24" in out


def test_a_fault_of_the_data_is_no_trial(folder, capsys):
    """Labels that don't fit stop it at once; nothing is kept as if the recipe had failed."""
    np.save(folder / "labels.npy", np.zeros(3, np.int64))
    assert command(folder, "--labels", str(folder / "labels.npy")) == 2
    assert "fewer labels than samples" in capsys.readouterr().err
    assert not list((folder / "q.onnx.trials").glob("*.json"))


def test_other_data_are_other_trials(folder, monkeypatch, capsys):
    """The same path with other samples in it is measured anew."""
    assert command(folder) == 0
    first = len(list((folder / "q.onnx.trials").glob("*.json")))
    arrays = dict(np.load(folder / "d.npz"))
    np.savez(folder / "d.npz", x=arrays["x"][:100], labels=arrays["labels"][:100])
    assert command(folder, "--force") == 0
    second = len(list((folder / "q.onnx.trials").glob("*.json")))
    assert second > first
    # So is everything by another version of what made and measured it.
    monkeypatch.setattr("onnxruntime.__version__", "another")
    assert command(folder, "--force") == 0
    assert len(list((folder / "q.onnx.trials").glob("*.json"))) > second
    capsys.readouterr()


def test_a_change_of_weights_beside_the_model_is_seen(folder, capsys):
    model = folder / "m.onnx"
    onnx.save(
        onnx.load(model), model, save_as_external_data=True, location="m.bin", size_threshold=0
    )
    assert command(folder) == 0
    first = len(list((folder / "q.onnx.trials").glob("*.json")))
    weights = np.fromfile(folder / "m.bin", np.float32)
    (weights * np.float32(1.5)).tofile(folder / "m.bin")
    assert command(folder, "--force") == 0
    assert len(list((folder / "q.onnx.trials").glob("*.json"))) > first
    capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"low": 1.0, "high": 2.0}, "holds zero"),
        ({"low": 0.0, "high": 0.0}, "holds zero"),
        ({"low": "a", "high": 1.0}, "is a number"),
        ({"low": -1.0, "high": 1.0}, "needs none"),
    ],
)
def test_ranges_of_a_recipe(folder, capsys, change, words):
    low, high = (f'"{v}"' if isinstance(v, str) else v for v in change.values())
    (folder / "r.toml").write_text(
        f'mode = "static"\n[[ranges]]\ntensor = "nowhere"\nlow = {low}\nhigh = {high}\n'
    )
    assert run(
        [
            "quantize", str(folder / "m.onnx"), "-o", str(folder / "r.onnx"),
            "--recipe", str(folder / "r.toml"), "--data", str(folder / "d.npz"),
        ]
    ) == 2  # fmt: skip
    assert words in capsys.readouterr().err


def test_goes_on_where_it_was_interrupted(folder, monkeypatch, capsys):
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return quantize_model(*arguments, **options)

    monkeypatch.setattr("foldmark.tuning.trial.quantize_model", counted)
    assert command(folder) == 130
    assert not (folder / "q.onnx").exists()
    assert list((folder / "q.onnx.trials").glob("*.json"))
    assert command(folder) == 0
    first = len(calls)
    assert command(folder, "--force") == 0
    assert len(calls) == first  # every trial was read
    kept = list((folder / "q.onnx.trials").glob("*.json"))
    assert kept
    kept[0].write_text("damaged")
    assert command(folder, "--force") == 0
    # It was made anew; measured anew, it may also lead to steps that were not taken before.
    assert len(calls) > first
    assert json.loads(kept[0].read_text())
    capsys.readouterr()


def test_an_account_is_taken_once(folder, monkeypatch, capsys):
    """Interrupted among its repairs, a run goes on with the same in the same order."""

    def interrupted(bench, step, recipe):
        if recipe.name == "2 repairs":
            raise KeyboardInterrupt
        return run_trial(bench, step, recipe)

    run_trial = Even.run
    with monkeypatch.context() as patched:
        patched.setattr(Even, "run", interrupted)
        assert command(folder, drop="-1") == 130
    (kept,) = (folder / "q.onnx.trials").glob("*.repairs")
    capsys.readouterr()
    assert command(folder, "--json", str(folder / "t.json"), drop="-1") == 1
    assert "the account of what moved" not in capsys.readouterr().err
    document = json.loads((folder / "t.json").read_text())
    steps = [trial["step"] for trial in document["trials"]]
    assert sum("in float" in step for step in steps) > 1
    # What was read is what was found; a damaged file is found again.
    kept.write_text("damaged")
    assert command(folder, "--json", str(folder / "u.json"), "--force", drop="-1") == 1
    assert "the account of what moved" in capsys.readouterr().err
    again = json.loads((folder / "u.json").read_text())
    assert [each["repair"] for each in again["repairs"]] == [
        each["repair"] for each in document["repairs"]
    ]
    assert again["blame"] == document["blame"]


@pytest.mark.parametrize(
    "change", [WIDE, TensorRange("t", -1.0, 2.5), Override("^a\\.b$", keep_float=True)]
)
def test_kept_repairs_are_read_as_they_were(tmp_path, change):
    trial = Trial("s", BUILT_IN["static"], 0, "", Interval(1, 1, 1), 1, str(tmp_path / "k.onnx"))
    repair = Repair("words", "blame", 0.25, 1.5, change, frozenset({"b", "a"}))
    assert kept_repairs(trial, lambda: (repair,)) == (repair,)
    assert kept_repairs(trial, tuple) == (repair,)


def test_interrupted_while_measuring_it_leaves_no_model_without_a_trial(
    folder, monkeypatch, capsys
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    assert command(folder) == 0
    before = sorted((folder / "q.onnx.trials").iterdir())
    assert {each.suffix for each in before} == {".onnx", ".json", ".repairs"}
    kept = next(each for each in before if each.suffix == ".json")
    kept.unlink()
    monkeypatch.setattr("foldmark.tuning.trial.measure_quality", interrupted)
    assert command(folder, "--force") == 130
    gone = {kept, kept.with_suffix(".onnx")}
    assert sorted((folder / "q.onnx.trials").iterdir()) == sorted(set(before) - gone)
    capsys.readouterr()


def test_a_trial_that_failed_keeps_no_model(folder, monkeypatch):
    """Where the model was written before that showed."""

    def refused(*_, **__):
        raise NotSupported("no")

    monkeypatch.setattr("foldmark.tuning.trial.measure_quality", refused)
    data = open_data(folder / "d.npz", onnx.load(folder / "m.onnx"))
    trials = folder / "trials"
    trials.mkdir()
    trial = Bench(folder / "m.onnx", data, data, trials).run("static", BUILT_IN["static"])
    assert trial.failure == "no"
    assert [each.suffix for each in trials.iterdir()] == [".json"]


def test_says_how_much_may_come_and_what_it_does(folder, capsys):
    assert command(folder, drop="-1") == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("At most ")
    most = int(told[0].split()[2])
    assert told[1] == f"  {folder / 'q.onnx.trials'}"
    assert max(map(len, told[2:-1])) <= 80
    tried = [line for line in told if f" of at most {most}, " in line]
    assert tried[0] == f"1 of at most {most}, dynamic:"
    assert [int(line.split()[0]) for line in tried] == list(range(1, len(tried) + 1))
    assert len(tried) <= most
    quarters = [line for line in told if line.startswith("the account of")]
    shares = [int(line.split()[-2]) for line in quarters]
    assert (shares[0], shares[-1]) == (0, 100)
    assert len(shares) <= 5


def test_interrupted_before_the_first_trial_it_leaves_nothing(folder, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("foldmark.tuning.trial.quantize_model", interrupted)
    before = sorted(folder.iterdir())
    assert command(folder) == 130
    assert sorted(folder.iterdir()) == before
    capsys.readouterr()


def test_a_target_out_of_reach_says_how_near(folder, capsys):
    assert command(folder, "--min-speedup", "1000", drop="0.0") == 1
    captured = capsys.readouterr()
    assert "the target can't be met" in captured.err
    assert captured.out.startswith("The target does not hold")
    assert (folder / "q.onnx").exists()


@pytest.mark.parametrize(
    ("speedup", "found", "chosen"),
    [
        (1, [(0.5, 2.0), (0.0, 0.9)], 0.0),  # too slow but right before fast and wrong
        (10, [(0.005, 2.0), (0.0, 0.9)], 0.005),  # both keep the score: the faster
        (1, [(0.5, 0.9), (0.3, 0.5)], 0.3),  # neither keeps it: the one that falls least
    ],
)
def test_the_score_comes_before_the_speed(folder, monkeypatch, speedup, found, chosen):
    def measured(bench, step, recipe):
        drop, speed = found[step != "static"]
        model = folder / f"{step}.onnx"
        model.write_bytes((folder / "m.onnx").read_bytes())
        interval = Interval(speed, speed, speed)
        return Trial(step, recipe, drop, "the drop in accuracy", interval, 1, str(model))

    monkeypatch.setattr(Bench, "run", measured)
    monkeypatch.setattr("foldmark.tuning.tune.find_repairs", lambda *_: ())
    data = open_data(str(folder / "d.npz"), onnx.load(folder / "m.onnx"))
    bench = Bench(folder / "m.onnx", data, data, folder / "trials")
    tuning = tune(bench, Goal(max_drop=0.01, min_speedup=speedup), folder / "q.onnx")
    assert not tuning.reached
    assert tuning.best.drop == chosen
    if speedup == 10:  # the score holds: nothing that mends it is tried, the slowest are named
        assert [trial.step for trial in tuning.trials] == ["dynamic", "static"]
        assert any("% of the time" in each for each in tuning.blame)
    assert tuning.best.speed.value == max(
        trial.speed.value for trial in tuning.trials if trial.drop == chosen
    )


def test_what_gains_nothing_is_not_kept(folder, monkeypatch):
    """Steps that leave the score as it was are not built upon, however fast one happened to be."""
    speeds = iter(range(1, 100))
    seen = []

    def measured(bench, step, recipe):
        seen.append(recipe)
        speed = float(next(speeds))
        drop = 0.5 - 0.1 * (MethodName.SMOOTHQUANT in recipe.methods)
        model = str(folder / "m.onnx")
        return Trial(step, recipe, drop, "the drop", Interval(speed, speed, speed), 1, model)

    monkeypatch.setattr(Bench, "run", measured)
    monkeypatch.setattr("foldmark.tuning.tune.find_repairs", lambda *_: ())
    data = open_data(str(folder / "d.npz"), onnx.load(folder / "m.onnx"))
    tune(Bench(folder / "m.onnx", data, data, folder), Goal(0.01), folder / "q.onnx")
    assert seen[-1].methods == (MethodName.SMOOTHQUANT, MethodName.MSE_CLIPPING)
    assert seen[-1].observer.method is Method.MIN_MAX
    assert seen[-1].mode is Mode.STATIC  # of the first rungs, the faster


def trials_of(found, folder, monkeypatch):
    """Let trials measure what is given by recipe: (drop, speed), of static with 7 bits last."""

    def measured(bench, step, recipe):
        mended = recipe.rule != "onnxruntime"
        drop, speed = found["mended" if mended else recipe.mode.value]
        interval = Interval(speed, speed - 0.01, speed + 0.01)
        model = str(folder / "m.onnx")
        return Trial(step, recipe, drop, "the drop", interval, 1, model, known_to=0.004)

    here = replace(machine(), saturates=True)
    monkeypatch.setattr("foldmark.tuning.tune.machine", lambda: here)
    monkeypatch.setattr("foldmark.tuning.tune.find_repairs", lambda *_: ())
    monkeypatch.setattr(Bench, "run", measured)


@pytest.mark.parametrize(
    ("dynamic", "mended"),
    [(0.99, True), (1.19, True), (1.2, False)],  # half of what static surely gains is 0.195
)
def test_a_rung_that_gains_nothing_is_no_reason_to_stop(folder, monkeypatch, dynamic, mended):
    """Where static is surely faster, it is mended though dynamic keeps the score."""
    found = {"dynamic": (0.0, dynamic), "static": (0.02, 1.4), "mended": (0.001, 1.39)}
    trials_of(found, folder, monkeypatch)
    data = open_data(str(folder / "d.npz"), onnx.load(folder / "m.onnx"))
    tuning = tune(Bench(folder / "m.onnx", data, data, folder), Goal(0.005), folder / "q.onnx")
    assert tuning.reached
    assert tuning.best.speed.value == (1.39 if mended else dynamic)
    assert len(tuning.trials) == 2 + mended
    assert tuning.blame == ()


@pytest.mark.parametrize(("drop", "fine"), [("0.001", True), ("0.005", False)])
def test_a_target_finer_than_the_samples_tell(folder, monkeypatch, capsys, drop, fine):
    found = dict.fromkeys(("dynamic", "static", "mended"), (0.0, 1.5))
    trials_of(found, folder, monkeypatch)
    assert command(folder, drop=drop) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ("the drop is known to ±0.004: a target of 0.001 is met or missed by" in out) == fine


def test_what_holds_it_back_is_never_left_open(folder, monkeypatch, capsys):
    """Nor where the account finds nothing that harms."""
    trials_of(dict.fromkeys(("dynamic", "static", "mended"), (0.1, 1.5)), folder, monkeypatch)
    assert command(folder, drop="0.05") == 1
    assert "What holds it back: no error that the account could name" in capsys.readouterr().out


@pytest.mark.parametrize("drop", [0.01])
def test_a_residual_network_needs_one_rung(tmp_path, drop):
    model = residual_network()
    read = onnx.load(model)
    labelled = held_out(300)
    data = open_data({"image": labelled["image"]}, read, labelled["labels"])
    calibration = open_data({"image": images()[0][:64]}, read)
    bench = Even(model, data, calibration, tmp_path, seconds=0.05)
    found = tune(bench, Goal(drop), tmp_path / "q.onnx")
    assert found.reached
    assert found.best.drop <= drop
    holding = [trial for trial in found.trials if trial.drop <= drop]
    assert found.best.speed.value == max(trial.speed.value for trial in holding)
    assert "in float" not in found.best.step  # no repair was needed


def test_branches(tmp_path):
    model = onnx.load(branches())
    data = open_data(samples(16), model)
    found = tune(
        Even(branches(), data, data, tmp_path, seconds=0.05), Goal(0.5), tmp_path / "q.onnx"
    )
    assert [trial.step for trial in found.trials] == ["dynamic", "static"]
    assert found.reached
    assert Path(found.best.model).is_file()


def test_nothing_to_quantize(tmp_path, capsys):
    node = nets.helper.make_node("Relu", ["x"], ["y"], "relu")
    onnx.save(nets.net([node], {}, ("n", 4)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=nets.random(8, 4))
    assert command(tmp_path) == 2
    assert "no recipe could be followed" in capsys.readouterr().err


def test_what_was_executed_has_the_names_of_the_models_convolutions(tmp_path):
    path = Path(residual_network())
    model = onnx.load(path)
    data = open_data(held_out(16), model)
    bench = Bench(path, data, data, tmp_path)
    ran = {each.name for each in bench.executed(model, path.parent, runs=1)}
    assert {node.name for node in model.graph.node if node.op_type == "Conv"} <= ran
