"""The parsed definitions of the project: their texts, and the names that they use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lab.claims.normaliser import ROOMS, Normaliser

ROOT = Path(__file__).resolve().parent.parent.parent
INERT_BASES = frozenset({"ABC", "Generic", "Protocol", "NamedTuple", "Enum", "Exception", "RuntimeError", "TypedDict"})
"""Classes from other packages that never call the methods of a subclass themselves."""
LAZY = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)+):(\w+)")
"""Matches a definition that is imported on first use, written as `module:name`."""
SCRIPTS = {path.name: path for room in ROOMS for path in sorted((ROOT / room).rglob("*.lua"))}
"""The Lua scripts by file name. Code names a script by its file name. In a call of `script`, and for a script in the
folder `scripts` beside the code, it leaves out `.lua`."""

Key = tuple[str, str]
"""A module and the name of a definition in it. The name of a method is `Class.method`."""


@dataclass
class Unit:
    """A definition: its normalised text, and the definitions that it refers to."""

    text: str
    names: set[Key] = field(default_factory=set)
    bases: set[Key] = field(default_factory=set)
    supers: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    scripts: set[Path] = field(default_factory=set)


MODULE = "<module>"
"""Name under which a module's statements that are not definitions are hashed."""


class Module:
    """A parsed module of the project."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports: dict[str, str] = dict(self._imports())
        """The dotted path that each imported name stands for."""
        self._definitions: dict[str, list[ast.stmt]] = {}
        self._rest: list[ast.stmt] = []
        self._found: dict[str, Sequence[tuple[str, Unit]]] = {}
        self._members: dict[str, list[tuple[str, Key]]] = {}
        for statement in self._tree.body:
            self._place(statement)

    def _imports(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom):
                above = self._package.split(".")[: len(self._package.split(".")) - node.level + 1]
                base = ".".join(filter(None, [*(above if node.level else ()), node.module]))
                for alias in node.names:
                    yield alias.asname or alias.name, f"{base}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2

    def _place(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definitions.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name):
                        self._definitions.setdefault(node.id, []).append(statement)
        elif not isinstance(statement, ast.Import | ast.ImportFrom) and not _is_inert(statement):
            self._rest.append(statement)

    def imported(self, name: str) -> Key | None:
        """Return the definition of the project that an imported name refers to. None for other names."""
        if name in self._definitions or name not in self.imports:
            return None
        return _definition_at(self.imports[name])

    def units(self, name: str, slug: str, slugs: frozenset[str]) -> Sequence[tuple[str, Unit]]:
        """Return the parts of a definition that are always hashed. `members` returns the other parts of a class."""
        if name in self._found:
            return self._found[name]
        found = list(self._units_of(name, slug, slugs))
        if not any(_is_table(statement, slugs) for statement in self._definitions.get(name, ())):
            self._found[name] = found
        return found

    def _units_of(self, name: str, slug: str, slugs: frozenset[str]) -> Iterator[tuple[str, Unit]]:
        if name == MODULE:
            for at, statement in enumerate(self._rest):
                yield f"{MODULE}{at}", self._unit(statement)
        elif "." in name:
            owner, _, method = name.partition(".")
            for node in self._class(owner):
                for at, statement in enumerate(_parts(node).get(method, ())):
                    yield f"{name}{at or ''}", self._unit(statement)
        else:
            for at, statement in enumerate(self._definitions.get(name, ())):
                if isinstance(statement, ast.ClassDef):
                    yield name, self._unit(_head(statement))
                else:
                    yield f"{name}{at or ''}", self._unit(_one_row(statement, slug, slugs))

    def members(self, key: Key) -> Sequence[tuple[str, Key]]:
        """Return the methods of a class, and the attributes that its `__init__` sets.

        They are hashed only if code uses an attribute with their name.
        """
        if key[1] not in self._members:
            classes = self._class(key[1])
            self._members[key[1]] = [(name, (key[0], f"{key[1]}.{name}")) for each in classes for name in _parts(each)]
        return self._members[key[1]]

    def _class(self, name: str) -> list[ast.ClassDef]:
        return [node for node in self._definitions.get(name, ()) if isinstance(node, ast.ClassDef)]

    def outside(self, node: ast.ClassDef) -> bool:
        """Return whether a class has a base class from outside the project that may call any method of the class."""
        for base in node.bases:
            dotted = self.dotted(base.value if isinstance(base, ast.Subscript) else base)
            if dotted.rpartition(".")[2] in INERT_BASES:
                continue
            if _definition_at(dotted) is None and dotted not in self._definitions:
                return True
        return False

    def dotted(self, node: ast.expr) -> str:
        """Return the dotted path of a name or of an attribute of a module. Empty for any other expression."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    def _unit(self, statement: ast.stmt) -> Unit:
        unit = Unit(Normaliser(self.imports).text(statement))
        bases = statement.bases if isinstance(statement, ast.ClassDef) else []
        for base in bases:
            self._refer(base, unit.bases)
        for node in ast.walk(statement):
            if node in bases:
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._refer(node, unit.names)
            elif isinstance(node, ast.Attribute):
                if not self._refer(node, unit.names):
                    (unit.supers if _is_super(node.value) else unit.attributes).add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._literal(node.value, unit)
            elif isinstance(node, ast.Call) and self.dotted(node.func).rpartition(".")[2] == "script":
                unit.scripts |= {SCRIPTS[f"{_constant(each)}.lua"] for each in node.args if _constant(each)}
        if isinstance(statement, ast.ClassDef) and self.outside(statement):
            for owner in ((self.name, statement.name), *map(origin_of, unit.bases)):
                unit.names |= {key for _, key in _members_of(owner)}
        return unit

    def _refer(self, node: ast.expr, names: set[Key]) -> bool:
        """Add to `names` the definition to which a name or an attribute of a module leads.

        Return whether there is such a definition.
        """
        if isinstance(node, ast.Name) and node.id in self._definitions:
            names.add((self.name, node.id))
            return True
        if (target := _definition_at(self.dotted(node))) is not None:
            names.add(target)
        return target is not None

    def _literal(self, text: str, unit: Unit) -> None:
        if (lazy := LAZY.fullmatch(text)) and (target := _definition_at(f"{lazy[1]}.{lazy[2]}")) is not None:
            unit.names.add(target)
        for script in (
            SCRIPTS.get(text),
            self.path.parent / "scripts" / f"{text}.lua" if text.isidentifier() else None,
        ):
            if script is not None and script.is_file():
                unit.scripts.add(script)


@cache
def load(name: str) -> Module | None:
    """Return a parsed module of the project. None for other modules."""
    if name.partition(".")[0] not in ROOMS:
        return None
    path = ROOT.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return Module(name, file)
    return None


@cache
def _definition_at(dotted: str) -> Key | None:
    """Split a dotted path into a module of the project and a name in it. Return None for any other path."""
    owner, _, name = dotted.rpartition(".")
    if not owner or load(dotted) is not None:
        return None
    return (owner, name) if load(owner) is not None else None


def origin_of(key: Key) -> Key:
    """Return the key of a definition in the module that defines it. `key` may name a module that only imports it."""
    module = load(key[0])
    target = None if module is None else module.imported(key[1])
    return key if target is None else origin_of(target)


def _members_of(owner: Key) -> Sequence[tuple[str, Key]]:
    module = load(owner[0])
    return () if module is None else module.members(owner)


def defines(owner: Key, method: str) -> bool:
    return any(name == method for name, _ in _members_of(owner))


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_inert(statement: ast.stmt) -> bool:
    """Return whether a module's statement does nothing: a docstring, or imports for the type checker."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)


@cache
def _parts(node: ast.ClassDef) -> dict[str, list[ast.stmt]]:
    """Return a class's methods except dunder methods, and the statements that set attributes in `__init__`, by name."""
    parts: dict[str, list[ast.stmt]] = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name == "__init__":
                for each in statement.body:
                    if (attribute := _own_attribute(each)) is not None:
                        parts.setdefault(attribute, []).append(each)
            elif not _is_dunder(statement.name):
                parts.setdefault(statement.name, []).append(statement)
    return parts


@cache
def _head(node: ast.ClassDef) -> ast.ClassDef:
    """Return a class without its `_parts`. The rest is its bases, decorators, attributes and dunder methods."""
    body: list[ast.stmt] = []
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name == "__init__":
                rest = [each for each in statement.body if _own_attribute(each) is None]
                body.append(_copy(statement, body=rest or [ast.Pass()]))
            elif _is_dunder(statement.name):
                body.append(statement)
        else:
            body.append(statement)
    return _copy(node, body=body or [ast.Pass()])


def _own_attribute(statement: ast.stmt) -> str | None:
    """Return the attribute that a statement `self.attribute = ...` sets. None for other statements."""
    target = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return None


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_table(statement: ast.stmt, slugs: frozenset[str]) -> bool:
    """Return whether a statement assigns a dictionary or a set with slugs of rungs among its keys."""
    value = _collection(statement)
    keys = value.keys if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.Set) else ()
    return any(_constant(key) in slugs for key in keys)


def _collection(statement: ast.stmt) -> ast.expr | None:
    """Return the value that a statement assigns, or None.

    If the value is a call with one argument, such as `frozenset({...})`, return the argument.
    """
    value: ast.expr | None = getattr(statement, "value", None)
    return value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value


def _one_row(statement: ast.stmt, slug: str, slugs: frozenset[str]) -> ast.stmt:
    """Reduce a table of rungs to the row of one rung. Return any other statement unchanged."""
    if not slug or not _is_table(statement, slugs):
        return statement
    if isinstance(table := _collection(statement), ast.Dict):
        rows = [(key, value) for key, value in zip(table.keys, table.values, strict=True) if _constant(key) == slug]
        return _copy(statement, value=ast.Dict([key for key, _ in rows], [value for _, value in rows]))
    return _copy(statement, value=ast.Set([key for key in table.elts if _constant(key) == slug]))  # type: ignore[union-attr]


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _copy(node: Any, **changes: Any) -> Any:
    fields = {name: getattr(node, name, None) for name in node._fields}
    return type(node)(**{**fields, **changes})
