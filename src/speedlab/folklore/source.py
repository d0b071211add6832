"""Counts in this package's own source text: lines of code, tensor operations. It imports and runs none of it."""

from __future__ import annotations

import ast
import io
import tokenize
from importlib import resources

_SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def package_source(name: str) -> str:
    """Text of a file of this package, "model/layers.py"."""
    return resources.files("speedlab").joinpath(name).read_text(encoding="utf-8")


def code_lines(source: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def tensor_operations(source: str, class_name: str) -> int:
    """Operations on tensors in `forward` of a class: torch functions, and arithmetic with a tensor on either side.

    Numbers among themselves are Python's business. The forward must be straight: no loops, no branches.
    """
    owner = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == class_name)
    forward = next(n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    tensors = {argument.arg for argument in forward.args.args}
    counted = 0
    for statement in forward.body:
        nodes = list(ast.walk(statement))
        counted += sum(_is_operation(node, tensors) for node in nodes)
        if isinstance(statement, ast.Assign) and _holds_tensor(statement.value, tensors):
            tensors |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return counted


def _is_operation(node: ast.AST, tensors: set[str]) -> bool:
    return isinstance(node, ast.BinOp | ast.Call) and _holds_tensor(node, tensors)


def _holds_tensor(node: ast.AST, tensors: set[str]) -> bool:
    return any(isinstance(child, ast.Name) and child.id in tensors for child in ast.walk(node))
