"""The oldest Python that the package says it runs on. Type checkers do not look so far back any more."""

from __future__ import annotations

import ast
from pathlib import Path

OLDEST = (3, 9)
PACKAGE = Path(__file__).parents[2]


def sources() -> list[Path]:
    return [*(PACKAGE / "src").rglob("*.py"), *(PACKAGE / "examples").glob("*.py")]


def test_its_syntax_is_all_there_is() -> None:
    assert f'requires-python = ">={OLDEST[0]}.{OLDEST[1]}"' in (PACKAGE / "pyproject.toml").read_text()
    assert len(sources()) > 10
    for path in sources():
        ast.parse(path.read_text(), str(path), feature_version=OLDEST)


def test_types_of_later_ones_are_only_spoken_of() -> None:
    """`X | Y` is a type from 3.10 on; until then it may stand in an annotation that nobody evaluates."""
    for path in sources():
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) for node in ast.walk(tree)):
            assert "from __future__ import annotations" in path.read_text(), path
