"""Jobs of many structures and replicas: rows, the gate, and devices that agree."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from benchmarks.bio import encoders
from benchmarks.jobs import embed, feeding, predict, replicas
from benchmarks.lab.schema import read_rows

TWO = ["--devices", "cpu", "cpu,cpu"]


@pytest.mark.parametrize(("kind", "count", "atoms"), [("molecules", 40, 360), ("boxes", 2, 768)])
def test_predictions_are_measured_on_devices(tmp_path, kind, count, atoms):
    options = ["--kind", kind, "--structures", str(count), "--out", str(tmp_path)]
    predict.main([*options, "--devices", "cpu"])
    (row,) = read_rows(tmp_path / "predict.csv")
    assert (row.case, row.impl) == (f"{count}-{kind}-xyz", "cpus-1")
    assert row.atoms == pytest.approx(atoms, rel=0.1)
    assert row.gate == "pass"


def test_blocks_repeat(tmp_path):
    structures = predict.distorted(predict.molecules())
    assert predict.write(tmp_path / "a.xyz", 7, structures, 3) > 0
    lines = (tmp_path / "a.xyz").read_text().splitlines()
    comments = [line for line in lines if line.startswith("Properties")]
    assert len(comments) == 7
    assert len(set(lines) - set(comments)) < len(lines) / 2


def test_replicas_have_the_same_logs_on_all_devices(tmp_path, capfd, monkeypatch):
    options = ["--replicas", "2", "--steps", "2", "--every", "1", "--out", str(tmp_path)]
    run = replicas.run

    def kept(given, devices, out):
        ms = run(given, devices, out)
        shutil.copytree(out, tmp_path / devices)
        return ms

    monkeypatch.setattr(replicas, "run", kept)
    replicas.main([*options, *TWO])
    rows = read_rows(tmp_path / "replicas.csv")
    assert [row.impl for row in rows] == ["cpus-1", "cpus-2"]
    assert all(row.gate == "pass" and row.atoms == 332 for row in rows)
    assert capfd.readouterr().out.count("the same logs") == 2

    def broken(_, devices, out):
        """Return the results of the first run, with another log on two devices."""
        shutil.copytree(tmp_path / devices, out)
        if devices == "cpu,cpu":
            (out / "log-001.csv").write_text("step\n")
        return 1.0

    monkeypatch.setattr(replicas, "run", broken)
    replicas.main([*options, *TWO])
    assert [np.isnan(row.ms_p50 or np.nan) for row in read_rows(tmp_path / "replicas.csv")] == [
        False,
        True,
    ]


def test_embeddings_are_measured_from_file_to_file(tmp_path, monkeypatch, capfd):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("h5py", reason="h5py is an optional extra")
    tiny = encoders.Architecture("Esm", 2, 32, 4)
    monkeypatch.setitem(encoders.ARCHITECTURES, "esm2-8m", tiny)
    options = ["--proteins", "20", "--devices", "cpu", "--out", str(tmp_path)]
    embed.main(options)
    (row,) = read_rows(tmp_path / "embed.csv")
    assert (row.case, row.impl, row.gate) == ("esm2-8m-20-h5", "cpus-1-fp16", "pass")
    assert row.atoms == sum(map(len, embed.draw(20)))
    assert capfd.readouterr().out.strip().endswith("proteins/s")
    expected = embed.embeddings
    monkeypatch.setattr(embed, "embeddings", lambda *given: 1 - expected(*given))
    embed.main(options)
    (row,) = read_rows(tmp_path / "embed.csv")
    assert (row.gate, row.ms_p50) == ("fail", None)


def test_reading_and_writing_are_measured_alone(capfd):
    feeding.main(["--structures", "20", "--repeats", "1"])
    assert capfd.readouterr().out.startswith("molecules, xyz: ")
