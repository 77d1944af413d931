"""The check of English finds what it should, and the repository is free of it."""

from __future__ import annotations

import pytest

from tools.check_prose import (
    Text,
    check_file,
    check_text,
    files_of,
    main,
    texts_of_markdown,
    texts_of_python,
)


def rules(text, is_docstring=False):
    return [found.rule for found in check_text(Text(1, text, is_docstring))]


@pytest.mark.parametrize(
    "text",
    [
        "What a step costs.",
        "Whether to relax first.",
        "Add.\n\n    Parameters\n    ----------\n    x, y : bool\n        Whether to add.\n",
    ],
)
def test_docstrings_that_open_with_a_question_word(text):
    assert rules(text, is_docstring=True) == ["opener"]
    assert rules(text) == []  # elsewhere they are fine


@pytest.mark.parametrize(
    "text",
    [
        "Return the cutoff.",
        "Return atoms.\n\nWhere they lie is told by `positions`.",
        "Whatever fits.",
        "Show.\n\n    Parameters\n    ----------\n    x : int\n        Width.\n        How?\n",
    ],
)
def test_docstrings_that_are_right(text):
    assert rules(text, is_docstring=True) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is no tensor.", ["predicate"]),
        ("These are\n    no tensors.", ["predicate"]),
        ("If it is none of these", ["predicate"]),
        ("There is no tensor, and there are\nnone in there.", []),
        ("It is no longer there; the value is None.", []),
        ("Normalise neighbours, minimising colour.", ["spelling"] * 4),
        ("A labelled, optimised organisation", ["spelling"] * 3),
        ("Otherwise raise precise noise elementwise, as advertised: an exercise that promises", []),
        ("Revised, comprised and supervised; sized, normalized and labeled neighbors", []),
        ("Likewise of the back-end, and of the latter's slots", ["vague"] * 3),
        ("Atoms on one point, by turns, leave\nroom, but for a row", ["vague"] * 4),
        ("Return two halves, or only itself.", ["vague"]),
        ("At one point in time, the roommate took turns", []),
        ("Those of one name must be equal.", ["pronoun"]),
        ("Keys are maps of that. Sizes count up to that.", ["pronoun"] * 2),
        ("Wait for so many seconds; own atoms, of which there is one", ["pronoun"] * 2),
        ("There are so many pairs that a list cannot hold those of that box", []),
        ("Nine floats an edge, 3 ms a step", ["per", "per"]),
        ("Nine floats per edge; make a step of an atom.", []),
        ("`neighbours` and [link](https://example.org/colour), https://example.org/is_no", []),
    ],
)
def test_phrases(text, expected):
    assert sorted(rules(text)) == sorted(expected)


def test_texts_of_python_are_found_with_their_lines():
    source = (
        '"""Module."""\n\n# A comment,\n# in two lines.\nx = 1  # trailing\n\n\n'
        'def f():\n    """Do."""\n    raise ValueError(f"{x} is no x")\n'
    )
    found = {(text.line, text.text) for text in texts_of_python(source)}
    assert found == {(1, "Module."), (3, "A comment,\nin two lines.\ntrailing"), (9, "Do.")}
    messages = {(text.line, text.text) for text in texts_of_python(source, messages=True)}
    assert messages - found == {(10, " is no x")}


def test_code_in_markdown_is_left_alone():
    (text,) = texts_of_markdown("Text.\n\n```python\nneighbours = 1\n```\n\nThis is no text.\n")
    assert [(found.line, found.rule) for found in check_text(text)] == [(7, "predicate")]


def test_findings_are_printed_and_fail(tmp_path, capsys):
    (tmp_path / "page.md").write_text("Fine.\n\nThe colour is no colour.\n")
    (tmp_path / "module.py").write_text('"""Fine."""\n')
    assert [path.name for path in files_of(tmp_path)] == ["module.py", "page.md"]
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 3
    assert out[0].endswith("page.md:3: predicate: is no")
    assert main([str(tmp_path / "module.py")]) == 0


def test_the_repository_has_no_findings():
    findings = [str(found) for path in files_of() for found in check_file(path)]
    assert not findings, "\n".join(findings)
