"""A check of English in docstrings, comments, messages and Markdown.

Usage: ``python -m tools.check_prose [PATH ...]``, by default for the whole repository. It prints
one line per finding and exits with 1 if there are any. It knows a few habits that are easy to
recognize:

- a docstring, or the description of a parameter, that opens with a question word;
- "no" or "none" as a predicate, except after "there";
- British spelling;
- "a" or "an" for "per" after a unit or a plural;
- a few words that leave open what they refer to, such as ``by turns`` and ``room``, and "backend"
  in two words;
- pronouns far from their noun: a text that begins with "Those of", or a sentence that ends with
  ``of that``, and ``so many`` for a given number.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"site", "build", "dist", "runs"}
MESSAGES = ("mlff_triton", "benchmarks", "examples")  # folders whose strings users read

OPENER = re.compile(r"(What|Whether|How|Where|Which|Who)\b")
PARAMETER = re.compile(r"\s*[\w*.]+(, [\w*.]+)* : ")
PREDICATE = re.compile(
    r"(?<!there )(?<!There )\b(?:is|are|was|were) (?:no|none)\b"
    r"(?! (?:longer|more|fewer|less|later|earlier|larger|smaller|matter)\b)"
)
BRITISH = re.compile(
    r"\b(?:\w*(?:neighbour|colour|behaviour|favour|honour|labour|flavour)\w*"
    r"|(?:re)?(?:centre|metre|fibre|litre)[sd]?|\w+metres?|analys(?:e|ed|es|ing)|catalogues?|grey"
    r"|(?:un)?(?:label|model|travel|cancel|signal|channel)(?:led|ling)|programmes?|artefacts?)\b",
    re.IGNORECASE,
)
ISE = re.compile(r"\b(\w+?)(?:is(e|ed|es|er|ers|ing)|isations?)\b", re.IGNORECASE)
ISE_IS_RIGHT = re.compile(  # "wise" is right in any word, and "noise" at the end of names
    r"\w*w|\w+_no|advert|adv|ar|bru|ch|chast|compr|comprom|conc|cr|cru|dem|dev|disgu|enterpr|exc|exerc"
    r"|expert|franch|gu|improv|inc|merchand|no|parad|po|pra|prec|prem|prom|ra|rev|r|superv|surpr"
    r"|telev|tort|treat|turquo|v",
    re.IGNORECASE,
)
PER = re.compile(
    r"(?:\d|\b(?:ns|ms|µs|eV|GB|GiB|MiB|TB|bytes|floats|values|steps|cells|edges|atoms|launches|pairs"
    r"|numbers|rows|tokens|slots|lanes|times|once|twice)|Å|kcal/mol) "
    r"an? (?:step|atom|edge|second|day|channel|pair|call|launch|row|lane|program|knot|neighbor"
    r"|layer|token|molecule|system)\b"
)
VAGUE = re.compile(
    r"\b(?:likewise|the latter(?:'s)?|as (?:it|they) ha(?:s|ve) (?:it|them)|of now|by turns)\b"
    r"|\bonly itself\b|\b(?:on|to|are|through) one point\b|\brooms?\b|, but for\b"
    r"|\bback[- ]ends?\b",
    re.IGNORECASE,
)
PRONOUN = re.compile(  # that stands for a noun of another sentence, or ends one
    r"(?:^Those (?:of|that|in|with|from|on)\b"
    r"|\b(?:of that|(?:than|as|up to) (?:that|these|those))(?=[.;](?: |$)|$)"
    r"|, of which there\b"
    r"|\bso many\b(?! (?:\w+ ){0,6}that))"
)
FENCE = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
PATTERNS = {
    "predicate": PREDICATE,
    "spelling": BRITISH,
    "per": PER,
    "vague": VAGUE,
    "pronoun": PRONOUN,
}
WORD = re.compile(r"\S+")
CODE_SPAN = re.compile(r"(`+)[^`]+?\1|\]\([^)\s]*\)|https?://\S+")


class Finding(NamedTuple):
    """Words in a file that break a rule."""

    path: Path
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.words}"


class Text(NamedTuple):
    """A docstring, a comment, a message or a page, with the line that it begins on."""

    line: int
    text: str
    is_docstring: bool = False


def check_text(text: Text, path: Path = Path("text")) -> Iterator[Finding]:
    """Yield what is wrong in one text."""
    if text.is_docstring:
        yield from _openers(text, path)
    words = [(found[0], found.start()) for found in WORD.finditer(CODE_SPAN.sub(_blank, text.text))]
    prose = " ".join(word for word, _ in words)  # a phrase may go on in the next line
    starts = list(accumulate((len(word) + 1 for word, _ in words), initial=0))

    def finding(rule: str, found: re.Match[str]) -> Finding:
        start = words[bisect(starts, found.start()) - 1][1]
        return Finding(path, text.line + text.text.count("\n", 0, start), rule, found[0])

    for rule, pattern in PATTERNS.items():
        yield from (finding(rule, found) for found in pattern.finditer(prose))
    for found in ISE.finditer(prose):
        if not ISE_IS_RIGHT.fullmatch(found[1]):
            yield finding("spelling", found)


def _openers(text: Text, path: Path) -> Iterator[Finding]:
    """Yield question words that open a docstring or the description of a parameter."""
    lines = text.text.splitlines()
    for number, line in enumerate(lines):
        is_first = not any(before.strip() for before in lines[:number])
        if (is_first or PARAMETER.match(lines[number - 1])) and OPENER.match(line.strip()):
            yield Finding(path, text.line + number, "opener", line.strip())


def _blank(found: re.Match[str]) -> str:
    """Return a meaningless text of the same length and lines as a match."""
    return re.sub(r"[^\n]", "\0", found[0])


def texts_of_python(source: str, messages: bool = False) -> Iterator[Text]:
    """Yield docstrings, blocks of comments and, if asked for, all other strings."""
    docstrings: set[int] = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.add(id(node.value))
            yield Text(node.lineno, node.value.value, is_docstring=True)
    if messages:
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in docstrings:
                yield Text(node.lineno, node.value)
    yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    """Yield comments; lines that follow one another are one text."""
    first, last, lines = 0, 0, []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and token.start[0] != last + 1:
            yield Text(first, "\n".join(lines))
            lines = []
        first, last = first if lines else token.start[0], token.start[0]
        lines.append(token.string.lstrip("#! "))
    if lines:
        yield Text(first, "\n".join(lines))


def texts_of_markdown(source: str) -> Iterator[Text]:
    """Yield a page without its blocks of code."""
    yield Text(1, FENCE.sub(_blank, source))


def check_file(path: Path, root: Path = ROOT) -> list[Finding]:
    """Check one file; files of other kinds have no findings."""
    relative = path.relative_to(root) if path.is_relative_to(root) else path
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        texts = texts_of_markdown(source)
    elif path.suffix == ".py":
        texts = texts_of_python(source, messages=relative.parts[0] in MESSAGES)
    else:
        return []
    return sorted(found for text in texts for found in check_text(text, relative))


def files_of(root: Path = ROOT) -> list[Path]:
    """Return the Python and Markdown files of a checkout, without what tools leave there."""
    found: list[Path] = []
    for path in sorted(root.iterdir()):
        if path.is_symlink() or path.name in SKIPPED:
            continue
        if path.is_dir() and (path.name == ".github" or not path.name.startswith((".", "__"))):
            found += files_of(path)
        elif path.suffix in (".py", ".md"):
            found.append(path)
    return found


def main(arguments: Sequence[str]) -> int:
    """Print findings; return 1 if there are any."""
    paths: list[Path] = []
    for path in map(Path, arguments):
        paths += files_of(path.resolve()) if path.is_dir() else [path.resolve()]
    findings = [found for path in paths or files_of() for found in check_file(path)]
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
