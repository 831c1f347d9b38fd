"""Select the lines of a Python file that matter to a reader: code without imports, docstrings and a rung's claims."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

MOST_LINES = 80
"""If a rung's file has more lines, docstrings not counted, the pages show only its functions that ran a step."""
CLAIMS = frozenset(
    {
        "slug",
        "title",
        "flaw",
        "breaks",
        "breaks_under",
        "broken_by",
        "clients",
        "preemptions",
        "survives",
        "fixed_by",
        "source",
        "capabilities",
    }
)
"""Class attributes of a rung that the pages show as text, so they are not shown as code."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def lines_that_matter(path: Path, *, whole: bool, used: Collection[int] = ()) -> list[int | None]:
    """Return the numbers of the lines to show, from 1, in order. None stands for a gap.

    Args:
        whole: whether the file is only about the rung. If it is also short, all its code is shown.
        used: lines that ran a step. If not all code is shown, only the functions around these lines are.
    """
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    prose = _docstring_lines(tree)
    whole = whole and len(source.splitlines()) - len(prose) <= MOST_LINES
    shown: list[int | None] = []
    for first, last in sorted(_parts(tree, whole=whole, used=used)):
        lines = [line for line in range(first, last + 1) if line not in prose]
        if shown and lines and lines[0] != (shown[-1] or 0) + 1:
            shown.append(None)
        shown += lines
    return shown


def _parts(tree: ast.Module, *, whole: bool, used: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each definition and constant to show."""
    kept: list[ast.stmt] = []
    constants: list[ast.Assign | ast.AnnAssign] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = [member for member in node.body if _is_shown(member, whole=whole, used=used)]
            kept += members
            if members or whole:
                yield _first_line(node), _first_line(node.body[0]) - 1
        elif isinstance(node, Definition) and _is_shown(node, whole=whole, used=used):
            kept.append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _targets(node) != ["logger"]:
            constants.append(node)
    names = {name.id for node in kept for name in ast.walk(node) if isinstance(name, ast.Name)}
    for node in (*kept, *(constant for constant in constants if names & set(_targets(constant)))):
        yield _first_line(node), node.end_lineno or node.lineno


def _is_shown(node: ast.stmt, *, whole: bool, used: Collection[int]) -> bool:
    if isinstance(node, Definition):
        return whole or any(_first_line(node) <= line <= (node.end_lineno or 0) for line in used)
    return whole and isinstance(node, ast.Assign | ast.AnnAssign) and not CLAIMS & set(_targets(node))


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _first_line(node: ast.stmt) -> int:
    """Return the line of a node's first decorator, or of the node itself if it has none."""
    decorators = getattr(node, "decorator_list", [])
    return int(min([node.lineno, *(decorator.lineno for decorator in decorators)]))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of all docstrings, including those of attributes."""
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Definition):
            for statement in node.body:
                if _is_text(statement):
                    prose.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return prose


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
