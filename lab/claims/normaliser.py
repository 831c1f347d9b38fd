"""Render code as text without the parts that do not change its behaviour. `lab.claims.behaviour` lists these parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

ROOMS = ("lab", "loadtest", "shop", "inventory", "locking")
"""The top-level packages whose definitions are hashed. The package `servers` is left out: it only starts servers."""

PROSE = frozenset({"help_text", "verbose_name", "verbose_name_plural"})
"""Arguments of Django's fields that only people read."""

LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
"""Methods of a logger. Their calls do not belong to the behaviour of code, because only people read log messages."""

LUA_OR_SQL = re.compile(
    r"""(?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \[(?P<level>=*)\[.*?\](?P=level)\] )
    | -- (?: \[(?P<comment>=*)\[.*?\](?P=comment)\] | [^\n]* )""",
    re.DOTALL | re.VERBOSE,
)
"""Matches a string or a comment of Lua or SQL."""


def script_text(source: str) -> str:
    """Return a Lua or SQL script without comments, indentation and blank lines."""
    without = LUA_OR_SQL.sub(lambda found: found["string"] or "", source)
    return "\n".join(filter(None, (line.strip() for line in without.splitlines())))


class Normaliser:
    """Renders parsed code as text, without the parts that do not change its behaviour.

    Args:
        imports: the dotted path that each imported name of the module stands for.
    """

    def __init__(self, imports: Mapping[str, str]) -> None:
        self._imports = imports
        self._scopes: list[dict[str, str]] = []

    def text(self, node: Any) -> str:
        """Return the normalised text of a node, or of a list of nodes."""
        if isinstance(node, list):
            return "[" + ",".join(filter(None, map(self.text, node))) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return self._function(node)
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_prose(node):
            return ""
        if _writes_a_log(node):
            return "Log()"
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            node = ast.Assign([node.target], node.value)
        return self._fields(node)

    def _function(self, node: Any) -> str:
        arguments = node.args
        own = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        scope = {each.arg: each.arg for each in own if each is not None}
        # Keep the names of arguments, because callers may use them.
        for name in _local_names(node):
            scope.setdefault(name, f"%{len(self._scopes)}.{len(scope)}")
        outside = [self.text(each) for each in getattr(node, "decorator_list", ())]
        outside += [self.text(each) for each in (*arguments.defaults, *arguments.kw_defaults) if each is not None]
        name = self._name(node.name) if hasattr(node, "name") else ""
        self._scopes.append(scope)
        body = self.text(node.body)
        self._scopes.pop()
        kinds = [len(arguments.posonlyargs), len(arguments.args), len(arguments.kwonlyargs), len(arguments.kw_defaults)]
        return (
            f"{type(node).__name__}({name},{[each.arg for each in own if each is not None]},{kinds},{outside},{body})"
        )

    def _name(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        dotted = self._imports.get(name)
        if dotted is None:
            return name
        # A name of the project is hashed by its definition, a name from outside by its dotted path.
        return dotted.rpartition(".")[2] if dotted.partition(".")[0] in ROOMS else dotted

    def _fields(self, node: ast.AST) -> str:
        said = []
        for name in node._fields:
            value = getattr(node, name, None)
            if name in {"ctx", "kind", "type_comment", "annotation", "returns", "type_params"} or value in (None, []):
                continue
            if name in {"name", "asname"} and isinstance(value, str):  # except clauses and patterns bind names, too
                value = self._name(value)
            said.append(f"{name}={self.text(value)}")
        return f"{type(node).__name__}({','.join(said)})"


def _is_prose(node: ast.AST) -> bool:
    """Return whether a node is only for people: a docstring, an unused string, or one of the `PROSE` arguments."""
    if isinstance(node, ast.keyword):
        return node.arg in PROSE
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _writes_a_log(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level)):
            return level in LEVELS
    return False


def _local_names(function: Any) -> Iterator[str]:
    """Return the names that a function assigns, in order of appearance. Skip the bodies of nested functions."""
    foreign: set[str] = set()
    names: dict[str, None] = {}
    todo: list[ast.AST] = list(reversed(function.body if isinstance(function.body, list) else [function.body]))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Global | ast.Nonlocal):
            foreign.update(node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = None
            continue
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names[node.id] = None
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names[node.name] = None
        todo += reversed(list(ast.iter_child_nodes(node)))
    return (name for name in names if name not in foreign)
