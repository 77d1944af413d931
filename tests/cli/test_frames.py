"""Files of several frames given to commands that take one: which one, and how to name another."""

from __future__ import annotations

from pathlib import Path

import ase.io
import pytest
from ase.build import molecule

from tests.support.molecule_files import v2000

OPTIONS = {
    "relax": ("--steps", "2", "--out", "r"),
    "md": ("--steps", "2", "--out", "m"),
    "vibrations": (),
}
NAMES = ("H2O", "CH4", "NH3")


@pytest.fixture
def command(run, model):
    images = [molecule(name) for name in NAMES]
    ase.io.write("a.xyz", images, format="extxyz")
    Path("a.sdf").write_text("".join(map(v2000, images)))

    def function(name, structure):
        return run(name, structure, *OPTIONS[name], "--model", model, "--device", "cpu")

    return function


@pytest.mark.parametrize("name", OPTIONS)
def test_the_frame_is_named(command, name):
    assert "takes frame 2 of a.xyz, which has 3 frames, from 0 to 2" in command(name, "a.xyz")[1]


@pytest.mark.parametrize("given", ["a.sdf@1", "a.xyz@-2"])
@pytest.mark.parametrize("name", OPTIONS)
def test_another_frame_can_be_named(command, name, given):
    out = command(name, given)[1]
    assert "takes frame" not in out
    if name == "vibrations":
        assert "│    8 │" in out  # the last of 3 x 5 - 6 modes
        assert "│    9 │" not in out
    else:
        assert "│ 5 " in out


@pytest.mark.parametrize("name", OPTIONS)
def test_a_missing_frame_is_one_line(command, name):
    code, _, err = command(name, "a.sdf@3")
    assert (code, err.count("\n")) == (2, 1)
    assert "a.sdf has no frame 3: its 3 frames are counted from 0" in err


def test_one_frame_needs_no_line(command):
    assert "takes frame" not in command("relax", "ethanol.xyz")[1]


def test_the_first_record_of_an_sdf_is_taken(command):
    assert "takes frame 0 of a.sdf" in command("relax", "a.sdf")[1]


def test_a_damaged_frame_that_is_not_taken_does_not_matter(command):
    Path("a.sdf").write_text(Path("a.sdf").read_text().replace(" N ", " Qq"))
    assert "takes frame 0" in command("relax", "a.sdf")[1]
    code, _, err = command("relax", "a.sdf@2")
    assert (code, err.count("\n")) == (2, 1)
    assert "frame 2: the frame cannot be read: there is no element 'Qq'" in err
