"""Finds the places where source code changes something that its whole process shares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

LOOKUPS = {"import_module", "__import__", "getLogger"}
"""Functions whose result belongs to the process."""
PARTS = {"vars", "getattr"}
"""Functions whose result belongs to their first argument."""
VIEWS = {"list", "tuple", "iter", "reversed", "values", "items", "copy"}
"""Functions and methods whose result has the same elements as their first argument."""
MODULES = re.compile(r"(types\.)?ModuleType|type(\[.*\])?|object")
"""Annotations of parameters that may be modules or classes."""
ASSIGNMENTS = {"setattr", "delattr", "__setattr__", "__delattr__"}
CONTAINER_METHODS = {
    *("append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault"),
    *("add", "discard", "reverse", "__setitem__", "__delitem__"),
    *("setLevel", "addHandler", "removeHandler", "addFilter", "removeFilter"),
}
PREFIXES = (
    *("set_", "enable_", "disable_", "use_", "register_", "unregister_", "init_", "redirect_"),
    "manual_seed",
)
"""Beginnings of names of functions that change a setting of the process."""
SETTERS = {
    *("enable", "disable", "use", "register", "unregister", "seed", "reload", "freeze", "nice"),
    *("setlocale", "setrlimit", "setitimer", "settrace", "setprofile", "setswitchinterval"),
    *("setrecursionlimit", "setdefaulttimeout", "setpgid", "setgid", "setuid", "setsid"),
    *("setpriority", "signal", "pthread_sigmask", "alarm", "chdir", "fchdir", "umask", "putenv"),
    *("unsetenv", "dup2", "filterwarnings", "simplefilter", "resetwarnings", "captureWarnings"),
    "basicConfig",
}
"""Other functions that do."""
OTHERS = {"enable_grad", "set_grad_enabled", "set_calc_and_arrays"}
"""Functions with such names that change only a thread or an argument."""
OWN = "mlff_triton"


class Patch(NamedTuple):
    """A change of something that the whole process shares.

    Attributes
    ----------
    place : str
        Outermost function or class, or an empty string.
    expression : str
        Source of what is assigned to or called.
    """

    place: str
    expression: str


def find_patches(source: str) -> list[Patch]:
    """Return the changes that a module makes to what it has not made itself.

    These are assignments to attributes and items of imported names, of results of `import_module`,
    of entries of ``sys.modules`` and of classes of instances; methods that change such containers;
    functions of other packages that change a setting of the process. Local names and parameters
    stand for what they are given in the same module. A block of ``warnings.catch_warnings`` undoes
    what it contains, so it is allowed.
    """
    tree = ast.parse(source)
    first = _Finder(set())
    first.visit(tree)
    second = _Finder(first.passed)
    second.visit(tree)
    return second.found


class _Finder(ast.NodeVisitor):
    """Follows the names of a module from its first line to its last.

    Parameters
    ----------
    given : set of tuple
        Name of a function and position or name of a parameter that gets something shared.

    Attributes
    ----------
    found : list of Patch
    passed : set of tuple
        Like ``given``, as found in this module.
    """

    def __init__(self, given: set[tuple[str, int | str]]) -> None:
        self.found: list[Patch] = []
        self.passed: set[tuple[str, int | str]] = set()
        self._given = given
        self._place: list[str] = []
        self._shared: set[str] = set()  # names of what the process shares
        self._holders: set[str] = set()  # names of new collections of it
        self._modules: set[str] = set()  # names of modules
        self._own: set[str] = set()  # names that come from this package

    def _is_shared(self, node: ast.AST) -> bool:
        """Return True for an expression whose value exists once per process."""
        match node:
            case ast.Name(id=name):
                return name in self._shared
            case ast.Attribute(attr="__class__"):
                return True
            case ast.Subscript(value=value):
                return self._is_shared(value) or self._holds_shared(value)
            case ast.Attribute(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
                return self._is_shared(value)
            case ast.IfExp(body=body, orelse=other):
                return self._is_shared(body) or self._is_shared(other)
            case ast.BoolOp(values=values):
                return any(map(self._is_shared, values))
            case ast.Call(func=function, args=arguments):
                name = _last_name(function)
                if name in LOOKUPS or (name == "type" and len(arguments) == 1):
                    return True
                if name in PARTS and arguments:
                    return self._is_shared(arguments[0])
                return name == "get" and self._is_shared(_owner(function))
        return False

    def _holds_shared(self, node: ast.AST) -> bool:
        """Return True for a collection with such values, which may be changed itself."""
        match node:
            case ast.Name(id=name):
                return name in self._holders
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return any(map(self._is_shared, elements))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._in_comprehension(node)
            case ast.Call(func=function, args=arguments) if _last_name(function) in VIEWS:
                inner = arguments[0] if arguments else _owner(function)
                return self._is_shared(inner) or self._holds_shared(inner)
        return False

    def _in_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> bool:
        before = set(self._shared)
        self._bind_generators(node)
        result = self._is_shared(node.elt)
        self._shared = before
        return result

    def _bind(self, target: ast.AST, *, shared: bool, holds: bool = False) -> None:
        """Give names a meaning; find assignments to parts of something shared."""
        match target:
            case ast.Name(id=name):
                (self._shared.add if shared else self._shared.discard)(name)
                (self._holders.add if holds else self._holders.discard)(name)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._bind(element, shared=shared or holds)
            case ast.Starred(value=value):
                self._bind(value, shared=False, holds=shared)
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                if self._is_shared(value):
                    self._find(target)

    def _bind_elements(self, target: ast.AST, container: ast.AST) -> None:
        self._bind(target, shared=self._is_shared(container) or self._holds_shared(container))

    def _bind_generators(self, node: ast.AST) -> None:
        for generator in getattr(node, "generators", ()):
            self._bind_elements(generator.target, generator.iter)

    def _find(self, node: ast.AST) -> None:
        self.found.append(Patch(self._place[0] if self._place else "", ast.unparse(node)))

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = (alias.asname or alias.name).partition(".")[0]
            self._shared.add(name)
            origin = alias.name
            if isinstance(node, ast.ImportFrom):
                origin = node.module or OWN
            else:
                self._modules.add(name)
            if origin.partition(".")[0] == OWN:
                self._own.add(name)

    visit_ImportFrom = visit_Import  # noqa: N815 - named by `ast`

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        with_names = self._shared, self._holders
        self._shared, self._holders = set(self._shared), set(self._holders)
        for position, parameter in enumerate(_parameters(node.args)):
            annotation = "" if parameter.annotation is None else ast.unparse(parameter.annotation)
            marks = {(node.name, position), (node.name, parameter.arg)}
            shared = bool(MODULES.fullmatch(annotation)) or bool(marks & self._given)
            self._bind(ast.Name(parameter.arg), shared=shared)
        self._visit_inside(node.name, node.body)
        self._shared, self._holders = with_names

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - named by `ast`

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_inside(node.name, [*node.decorator_list, *node.body])

    def _visit_inside(self, name: str, body: Iterable[ast.AST]) -> None:
        self._place.append(name)
        for statement in body:
            self.visit(statement)
        self._place.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._assign(node.target, node.value)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        self._bind(target, shared=self._is_shared(value), holds=self._holds_shared(value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if not isinstance(node.target, ast.Name):
            self._bind(node.target, shared=False)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._bind(target, shared=False)

    def visit_For(self, node: ast.For) -> None:
        self._bind_elements(node.target, node.iter)
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        before = len(self.found)
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, item.context_expr)
        for statement in node.body:
            self.visit(statement)
        if any("catch_warnings(" in ast.unparse(item.context_expr) for item in node.items):
            inside = self.found[before:]
            self.found[before:] = [each for each in inside if "warnings." not in each.expression]

    def _visit_comprehension(self, node: ast.AST) -> None:
        before = set(self._shared)
        self._bind_generators(node)
        self.generic_visit(node)
        self._shared = before

    visit_ListComp = _visit_comprehension  # noqa: N815
    visit_SetComp = _visit_comprehension  # noqa: N815
    visit_DictComp = _visit_comprehension  # noqa: N815
    visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if self._changes(node):
            self._find(node)
        if isinstance(node.func, ast.Name):
            passed = [*enumerate(node.args), *((each.arg, each.value) for each in node.keywords)]
            for parameter, value in passed:
                if parameter is not None and self._is_shared(value):
                    self.passed.add((node.func.id, parameter))

    def _changes(self, call: ast.Call) -> bool:
        """Return True if a call changes something shared."""
        name, owner = _last_name(call.func), _owner(call.func)
        text = ast.unparse(call.func)
        if name in ASSIGNMENTS and call.args:
            return self._is_shared(call.args[0])
        if re.search(r"\bpatch(\.(object|dict))?$", text):
            return True
        if not (self._is_shared(call.func) or self._is_shared(owner)):
            return False
        if isinstance(call.func, ast.Attribute) and name in CONTAINER_METHODS:
            return ast.unparse(owner) not in self._modules  # which have functions of these names
        is_setter = name in SETTERS or name.startswith(PREFIXES)
        return is_setter and name not in OTHERS and text.partition(".")[0] not in self._own


def _parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from filter(None, (arguments.vararg, arguments.kwarg))


def _last_name(function: ast.AST) -> str:
    """Return the name of a function without the module or object that has it."""
    return getattr(function, "attr", getattr(function, "id", ""))


def _owner(function: ast.AST) -> ast.AST:
    """Return the module or object that has a function; the function itself if it is a name."""
    return getattr(function, "value", function)
