"""Hashes of the behaviour of code. A stored result is out of date only if the behaviour of its code has changed.

`hash_of_behaviour` starts from some definitions, and follows every name in them to the project's own definitions. It
hashes all these definitions. `hash_of_files` hashes whole files. Both hash the parsed code, without these parts, which
do not change the behaviour:

- docstrings, comments, formatting and type annotations: they are not run;
- names of local variables: they are numbered in the order in which they appear;
- imports and file paths: a definition is hashed by its text and by the definitions that its names lead to;
- comments and blank lines of Lua and SQL;
- help texts and `verbose_name` of models and fields, and log messages: only people read them;
- migrations: the models describe the same tables, and a test compares the two.

A method is hashed if its class is reached and code uses an attribute with the name of the method. It is not hashed if
code uses the class only as a base class, all its reached subclasses override the method, and no code calls the name
through `super()`. A class from outside the project may call any method of its subclasses. So if a class of the project
has such a base class, all methods of the class and of its bases are hashed. If the keys of a table or set are slugs of
rungs, only the row of the rung in question is hashed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lab.claims.definitions import MODULE, Key, defines, load, origin_of
from lab.claims.normaliser import ROOMS, Normaliser, script_text


def hash_of_behaviour(roots: Iterable[Any], *, slug: str = "", slugs: Collection[str] = ()) -> str:
    """Hash the definitions that the roots lead to.

    Args:
        roots: functions and classes of the project or of other packages, or names as `module:name`.
        slug: the rung in question.
        slugs: the slugs of all rungs. Of a dict or set with slugs among its keys, only the entry of `slug` is hashed.
            Then a change of another entry does not change the hash.
    """
    digest = hashlib.sha256()
    for text in sorted(reach(roots, slug=slug, slugs=slugs).values()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def hash_of_files(*places: Path) -> str:
    """Hash the Python, Lua and SQL code in files and whole folders."""
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.suffix in {".lua", ".sql"}:
                digest.update(script_text(file.read_text(encoding="utf-8")).encode() + b"\0")
            elif file.suffix == ".py" and "migrations" not in file.parts:
                tree = ast.parse(file.read_text(encoding="utf-8"))
                digest.update(Normaliser({}).text(tree).encode() + b"\0")
    return digest.hexdigest()


def reach(roots: Iterable[Any], *, slug: str = "", slugs: Collection[str] = ()) -> Mapping[str, str]:
    """Return the normalised text of each definition and Lua script that the roots lead to, by name.

    See `hash_of_behaviour` for the arguments.
    """
    search = _Search(slug, frozenset(slugs))
    for root in roots:
        search.begin(root)
    return search.run()


class _Search:
    """Follows names from definition to definition until nothing new is found."""

    def __init__(self, slug: str, slugs: frozenset[str]) -> None:
        self._slug, self._slugs = slug, slugs
        self._found: dict[str, str] = {}
        self._todo: list[Key] = []
        self._seen: set[Key] = set()
        self._attributes: set[str] = set()
        self._supers: set[str] = set()
        self._members: list[tuple[str, Key, Key]] = []
        self._used: set[Key] = set()
        """Classes that code uses directly, not only as a base class."""
        self._extended_by: dict[Key, set[Key]] = {}

    def begin(self, root: Any) -> None:
        # If the import of a root would be circular, the caller passes the text `module:name` instead of the root.
        module, name = root.split(":") if isinstance(root, str) else (root.__module__, root.__qualname__)
        if module.partition(".")[0] in ROOMS:
            self._use((module, name))
        else:  # A root in another package is hashed by the source of its module.
            self._found[f"{module}.{name}"] = inspect.getsource(inspect.getmodule(root))  # type: ignore[arg-type]

    def run(self) -> Mapping[str, str]:
        while self._todo:
            while self._todo:
                self._visit(self._todo.pop())
            due = {key for name, key, owner in self._members if self._is_called(name, owner)}
            self._members = [member for member in self._members if member[1] not in due]
            self._todo += sorted(due)
        return self._found

    def _is_called(self, name: str, owner: Key) -> bool:
        if name in self._supers:
            return True
        heirs = self._extended_by.get(owner, ())
        overridden = owner not in self._used and all(defines(heir, name) for heir in heirs)
        return name in self._attributes and not overridden

    def _use(self, key: Key) -> None:
        self._used.add(origin_of(key))
        if key not in self._seen:
            self._todo.append(key)

    def _visit(self, key: Key) -> None:
        if key in self._seen or (module := load(key[0])) is None:
            return
        self._seen.add(key)
        if (target := module.imported(key[1])) is not None:
            self._todo.append(target)
            return
        for name, unit in module.units(key[1], self._slug, self._slugs):
            self._found[f"{key[0]}.{name}"] = unit.text
            self._attributes |= unit.attributes
            self._supers |= unit.supers
            for each in unit.names:
                self._use(each)
            for base in unit.bases:
                self._extended_by.setdefault(origin_of(base), set()).add(key)
                self._todo.append(base)
            for script in unit.scripts:
                self._found[script.name] = script_text(script.read_text(encoding="utf-8"))
        self._members += [(name, member, key) for name, member in module.members(key)]
        if key[1] != MODULE:
            self._todo.append((key[0], MODULE))
