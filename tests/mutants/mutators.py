"""Small faults that a program can have: one change of one place in a file's syntax tree.

Left alone: words (errors, logs, docstrings), annotations, asserts, what only a type checker reads,
and what stands outside functions: names, and numbers that somebody chose by measuring. The golden
numbers pin those.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""An order's border, and its contrary."""
CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMED = {
    "all": "any", "any": "all", "min": "max", "max": "min", "ceil": "floor", "floor": "ceil",
    "sum": "mean", "mean": "sum", "argmax": "argmin", "argmin": "argmax", "amax": "amin",
    "repeat": "repeat_interleave", "repeat_interleave": "repeat", "softmax": "log_softmax",
    "clamp_min": "clamp_max", "clamp_max": "clamp_min", "exp": "log", "sqrt": "square",
    "train": "eval", "eval": "train", "union": "intersection", "append": "extend",
}  # fmt: skip
"""Functions taken for one another."""
SAID = {"debug", "info", "warning", "exception", "say", "print", "one_line", "cast"}
"""Calls whose arguments are for people, or for a type checker."""
SAME = {
    "dict", "list", "tuple", "set", "frozenset", "int", "float", "str", "bool", "len", "range",
    "iter", "next", "super", "isinstance", "replace", "enumerate", "zip", "map", "filter",
    "MappingProxyType", "partial", "Path",
}  # fmt: skip
"""Functions without which nothing runs at all, or all runs the same."""
MODULES = {"torch", "F", "np", "math", "linalg", "special"}
SHAPED = {
    "abs", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "detach", "exp", "flip", "floor",
    "log", "log_softmax", "nan_to_num", "round", "sigmoid", "softmax", "sort", "sqrt", "square",
    "strip", "copy",
}  # fmt: skip
"""Methods whose result can take the place of what they are called on."""


@dataclass(frozen=True)
class Mutant:
    """A change. place: its number among those of the file. function: by its qualified name."""

    place: int
    line: int
    function: str
    change: str


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a file."""
    walk = _Walk(None)
    walk.visit(ast.parse(source))
    return walk.found


def changed(source: str, place: int) -> ast.Module:
    """Return the file's tree with one change."""
    tree = ast.parse(source)
    return ast.fix_missing_locations(_Walk(place).visit(tree))


class _Walk(ast.NodeTransformer):
    """Notes every change, and makes that of number `wanted`."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted, self.found = wanted, list[Mutant]()
        self._names: list[str] = []
        self._depth = 0

    def visit(self, node: ast.AST) -> Any:
        """Note the changes of a node and of what is in it; return what takes its place."""
        named = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if named:
            self._names.append(node.name)
        before, instead = copy.copy(node), []
        inside = isinstance(node, ast.stmt | ast.expr | ast.keyword) and self._depth
        for other, change in _changes(node) if inside else ():
            if len(self.found) == self.wanted:
                instead = [other]
            line = node.lineno
            self.found.append(Mutant(len(self.found), line, ".".join(self._names), change))
        self._depth += isinstance(node, ast.FunctionDef)
        if not _left_alone(before):
            self.generic_visit(node)
        self._depth -= isinstance(node, ast.FunctionDef)
        if named:
            self._names.pop()
        return instead[0] if instead else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Go into all of a node but annotations, decorators and bases."""
        kept = {
            name: getattr(node, name)
            for name in ("annotation", "returns", "decorator_list", "bases", "keywords")
            if hasattr(node, name) and not (name == "keywords" and isinstance(node, ast.Call))
        }
        for name, value in kept.items():
            setattr(node, name, [] if isinstance(value, list) else None)
        super().generic_visit(node)
        for name, value in kept.items():
            setattr(node, name, value)
        return node


def _left_alone(node: ast.AST) -> bool:
    """Whether nothing inside a node is changed."""
    if isinstance(node, ast.Call):
        return _name(node.func) in SAID
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom))


def _name(function: ast.AST) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST | None, str]]:
    """Yield what may take a node's place, None: nothing; and the change in words."""
    for other in _others(node):
        yield other, f"{_short(node)} -> {_short(other)}"
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        if not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
            opposite = _with(node, test=ast.UnaryOp(ast.Not(), node.test))
            yield opposite, f"if {_short(node.test)} -> if not {_short(node.test)}"
    elif isinstance(node, ast.keyword):
        if node.arg not in (None, "strict"):
            yield None, f"without {_short(node)}"
    elif isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        if not (isinstance(node, ast.Expr) and _left_alone(node.value)):
            yield ast.copy_location(ast.Pass(), node), f"without {_short(node)}"


def _others(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that may stand in an expression's place."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (_with(node, ops=[other()]) for other in COMPARED[type(op)])
        case ast.BinOp(op=op) if type(op) in CALCULATED:
            yield _with(node, op=CALCULATED[type(op)]())
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield _with(node, value=not value)
        case ast.Constant(value=int(value)):
            yield _with(node, value=value + 1)
        case ast.Constant(value=float(value)):
            yield _with(node, value=2 * value or 1.0)
        case ast.Call(func=function) if _name(function) in NAMED:
            where = "attr" if isinstance(function, ast.Attribute) else "id"
            yield _with(node, func=_with(function, **{where: NAMED[_name(function)]}))
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in SHAPED:
            yield node.args[0] if ast.unparse(of) in MODULES else of
        case ast.Call(func=function, args=[ast.Name() | ast.Attribute() | ast.Call() as first, *_]):
            of = ast.unparse(function).rpartition(".")[0].split(".")[-1]
            if of in {"", *MODULES} and _name(function) not in SAID | SAME:
                yield first


def _with(node: Any, **fields: object) -> Any:
    """Return a copy of a node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _short(node: ast.AST) -> str:
    """Return a node as code, on one line of at most 60 characters."""
    if isinstance(node, ast.keyword):
        return f"{node.arg}={_short(node.value)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
