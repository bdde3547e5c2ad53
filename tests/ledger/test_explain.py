"""The main job end to end: accounts that close, on networks that were trained."""

import json

import numpy as np
import onnx
import pytest
from tests.models.copies import Copy, quantized
from tests.models.digits import held_out, images, residual_network
from tests.models.minilm import SENTENCES, minilm, tokens

import foldmark
from foldmark.cli.main import run
from foldmark.errors import DataMismatch, FormatNotRecognised, NothingQuantized

QDQ = [Copy.QDQ, Copy.QDQ_PER_CHANNEL]


def digits(copy):
    return quantized(residual_network(), copy, {"image": images()[0][:64]})


def sentence_encoder(copy):
    return quantized(minilm(), copy, tokens(SENTENCES[16:], 32), ("MatMul",))


@pytest.fixture(scope="module")
def encoder_report():
    return foldmark.explain(
        minilm(), sentence_encoder(Copy.QDQ), tokens(SENTENCES[:8], 16), batch_size=2
    )


def lines_add_up(report):
    closure = report.closure
    lines = closure.sites + closure.graph + closure.kernel + closure.quadrature
    assert lines == pytest.approx(closure.total, rel=1e-9, abs=1e-12)
    assert closure.total == pytest.approx(report.metric.change, rel=1e-12)
    assert sum(e.amount for e in report.entries) == pytest.approx(closure.sites, rel=1e-9)
    for entry in report.entries:
        assert sum(entry.causes.values()) == pytest.approx(entry.amount, rel=1e-4, abs=1e-9)


def test_minilm_closes(encoder_report):
    report = encoder_report
    lines_add_up(report)
    assert report.metric.name == "cosine"
    assert report.metric.change > 0.02
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.replay_error <= 1e-5
    assert report.cost.sites == 132
    assert abs(report.closure.graph) < 1e-6 * report.closure.total


def test_minilm_blames_the_feed_forward_outputs(encoder_report):
    first = encoder_report.entries[0]
    assert "output/dense" in first.site.layer
    assert first.facts.setter.scale > 10 * first.facts.setter.scale_without
    assert first.facts.setter.codes_of_rest < 10
    assert "carry" in encoder_report.verdict


def test_what_pieces_of_the_path_leave_is_told_without_signs(encoder_report):
    closure = encoder_report.closure
    assert closure.unsigned >= abs(closure.quadrature) - 1e-6 * closure.total
    share = closure.unsigned / abs(closure.total)
    assert f"piece by piece, signs left aside, the nodes leave {share:.1e} of" in str(
        encoder_report
    )
    assert encoder_report.to_json()["closure"]["unsigned"] == closure.unsigned


@pytest.mark.parametrize("copy", QDQ)
def test_digits_close(copy):
    report = foldmark.explain(
        residual_network(), digits(copy), held_out(64), metric="mse", cures=False
    )
    lines_add_up(report)
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.replay_error <= 1e-5


def test_the_text_fits_80_columns_and_names_the_sum(encoder_report):
    text = str(encoder_report)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("Account", "graph", "kernel", "quadrature", "measured change", "closes to"):
        assert word in text


def test_json_has_the_documented_fields(encoder_report):
    document = json.loads(json.dumps(encoder_report.to_json()))
    assert document["schema"] == "foldmark.explain/1"
    assert set(document["metric"]) >= {"name", "float", "quantized", "change"}
    assert set(document["closure"]) == {
        "sites",
        "graph",
        "kernel",
        "quadrature",
        "total",
        "unsigned",
        "relative_error",
    }
    assert set(document["cost"]) == {
        "seconds",
        "forward_seconds",
        "forward_equivalents",
        "nodes",
        "samples",
        "sites",
    }
    entry = document["entries"][0]
    assert set(entry) >= {
        "site",
        "kind",
        "amount",
        "share",
        "causes",
        "scheme",
        "rule",
        "scale_setter",
        "groups",
    }
    assert set(entry["scale_setter"]) >= {"index", "value", "others"}
    assert set(entry["groups"][0]) == {"axis", "index", "amount"}
    closure = document["closure"]
    lines = closure["sites"] + closure["graph"] + closure["kernel"]
    assert closure["relative_error"] == pytest.approx(lines / closure["total"] - 1)


def test_groups_are_parts_of_their_entry(encoder_report):
    for entry in encoder_report.entries[:5]:
        axes = {group.axis for group in entry.groups}
        assert axes
        assert "sample" not in axes


def test_every_form_of_model_gives_the_same_account():
    exact, near = residual_network(), digits(Copy.QDQ)
    data = held_out(16)
    forms = [
        (str(exact), str(near)),
        (exact.read_bytes(), near.read_bytes()),
        (onnx.load(exact), onnx.load(near)),
    ]
    reports = [foldmark.explain(a, b, data, metric="mse", cures=False) for a, b in forms]
    amounts = [[e.amount for e in report.entries] for report in reports]
    np.testing.assert_allclose(amounts[1], amounts[0], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(amounts[2], amounts[0], rtol=1e-5, atol=1e-12)


def test_batches_add_up_to_the_whole():
    exact, near, data = residual_network(), digits(Copy.QDQ), held_out(24)
    whole = foldmark.explain(exact, near, data, metric="mse", batch_size=24, cures=False)
    parts = foldmark.explain(exact, near, data, metric="mse", batch_size=5, cures=False)
    assert parts.metric.change == pytest.approx(whole.metric.change, rel=1e-5)
    wanted = {entry.site.name: entry.amount for entry in whole.entries}
    scale = max(abs(amount) for amount in wanted.values())
    for entry in parts.entries:
        assert entry.amount == pytest.approx(wanted[entry.site.name], rel=1e-2, abs=1e-3 * scale)
    # Single samples are drawn, in whatever batches they run.
    assert whole.first_holds == pytest.approx(parts.first_holds, abs=0.02)


def test_the_command_prints_the_report_and_writes_json(tmp_path, capsys):
    data = tmp_path / "digits.npz"
    np.savez(data, **held_out(8))
    arguments = ["explain", str(residual_network()), str(digits(Copy.QDQ)), "--data", str(data)]
    target = tmp_path / "report.json"
    assert run([*arguments, "--metric", "mse", "--json", str(target)]) == 0
    assert "measured change" in capsys.readouterr().out
    assert json.loads(target.read_text())["schema"] == "foldmark.explain/1"
    assert run([*arguments, "--metric", "mse", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["random"] is False


def test_random_data_is_marked(capsys):
    arguments = ["explain", str(residual_network()), str(digits(Copy.QDQ))]
    assert run([*arguments, "--data", "random:8"]) == 0
    assert "RANDOM DATA" in capsys.readouterr().out
    assert run(arguments) == 2
    assert "image float32[batch, 1, 8, 8]" in capsys.readouterr().err


def test_a_report_without_a_folder_is_refused_before_the_work(tmp_path, capsys):
    pair = [str(residual_network()), str(digits(Copy.QDQ))]
    target = tmp_path / "gone" / "report.json"
    # No data is given: what is said first is that nothing could be written.
    assert run(["explain", *pair, "--json", str(target)]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_user_mistakes_are_one_line(tmp_path, capsys):
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"this is not a model at all")
    exact = str(residual_network())
    for arguments in (
        ["explain", exact],
        ["explain", exact, str(junk), "--data", "random:4"],
        ["explain", exact, exact, "--data", "random:4"],
        ["explain", exact, str(tmp_path / "absent.onnx"), "--data", "random:4"],
        ["explain", exact, str(digits(Copy.QDQ)), "--data", "random:4", "--output", "no"],
    ):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
    with pytest.raises(FormatNotRecognised):
        foldmark.explain(exact, b"this is not a model at all", held_out(4))
    with pytest.raises(NothingQuantized):
        foldmark.explain(exact, exact, held_out(4))
    with pytest.raises(DataMismatch, match="no array named 'image'"):
        foldmark.explain(exact, digits(Copy.QDQ), {"picture": held_out(4)["image"]})
