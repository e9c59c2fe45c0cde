"""The Python text inside a wheel: its modules, the names that each binds, and where imported names come from.

Nothing is imported or run. What a name stands for is worked out in `static_value`.
"""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path
from typing import Any

from slipway.errors import IntegrityMismatch, MissingFile


class WheelSource:
    """The `.py` members of one wheel, parsed when asked for."""

    def __init__(self, wheel: Path) -> None:
        """Open `wheel`. Raises: MissingFile, IntegrityMismatch when it is no zip file."""
        try:
            self._zip = zipfile.ZipFile(wheel)
        except FileNotFoundError:
            raise MissingFile(
                wheel, "no such file", "a wheel is read here", "download it with `pip download --no-deps`"
            ) from None
        except zipfile.BadZipFile as error:
            why = "a wheel is a zip file"
            raise IntegrityMismatch(wheel, f"is not a wheel ({error})", why, "download it again") from None
        self.path = wheel
        self._names = set(self._zip.namelist())
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module called `name`, or None where the wheel has no such text."""
        if name not in self._modules:
            base = name.replace(".", "/")
            member = next((m for m in (f"{base}.py", f"{base}/__init__.py") if m in self._names), None)
            self._modules[name] = Module(self, name, member, self._zip.read(member)) if member else None
        return self._modules[name]

    def need(self, name: str) -> Module:
        """The module called `name`. Raises: MissingFile, because then the wheel is not the one that was meant."""
        found = self.module(name)
        if found is None:
            raise MissingFile(self.path, f"has no module {name}", "the extractor reads it", "check engine and version")
        return found


class Module:
    """One parsed module: its top-level names, each with the text that binds it last."""

    def __init__(self, source: WheelSource, name: str, member: str, text: bytes) -> None:
        self.source = source
        self.name = name
        self.member = member
        self.tree = ast.parse(text, member)
        self.imports: dict[str, tuple[str, str]] = {}
        self.nodes: dict[str, ast.AST] = {}
        self.additions: dict[str, list[ast.expr]] = {}
        """What later lines add to a collection, by the collection's name."""
        self.known: dict[str, Any] = {}
        """Names worked out already; kept by `static_value`."""
        self._package = name if member.endswith("/__init__.py") else name.rpartition(".")[0]
        for statement in self.tree.body:
            self._bind(statement)

    def bound_by(self, statement: ast.stmt) -> dict[str, tuple[str, str]]:
        """The names that an import statement binds: to (module, "") or to (module, attribute)."""
        if isinstance(statement, ast.Import):
            whole = {alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in statement.names}
            renamed = {alias.asname: alias.name for alias in statement.names if alias.asname}
            return {name: (module, "") for name, module in {**whole, **renamed}.items()}
        if isinstance(statement, ast.ImportFrom):
            home = statement.module or ""
            if statement.level:
                parts = self._package.split(".")
                home = ".".join([*parts[: len(parts) - statement.level + 1], *filter(None, [home])])
            return {alias.asname or alias.name: (home, alias.name) for alias in statement.names}
        return {}

    def alias(self, name: str) -> tuple[Module, ast.expr] | None:
        """The expression that `name` was assigned, with its module, imports followed; None for anything else."""
        node = self.nodes.get(name)
        if isinstance(node, ast.expr):
            return self, node
        home, attribute = self.imports.get(name, ("", "")) if node is None else ("", "")
        origin = self.source.module(home) if attribute else None
        return origin.alias(attribute) if origin else None

    def _bind(self, statement: ast.stmt) -> None:
        for name, origin in self.bound_by(statement).items():
            self.imports[name] = origin
            self.nodes.pop(name, None)  # the last line that binds a name counts
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            self.nodes[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            self.nodes.update({target.id: statement.value for target in targets if isinstance(target, ast.Name)})
        elif isinstance(statement, ast.If):
            # What stands under TYPE_CHECKING is never executed; the other branch is what the engine sees.
            checking = ast.unparse(statement.test).endswith("TYPE_CHECKING")
            for inner in [*([] if checking else statement.body), *statement.orelse]:
                self._bind(inner)
        elif isinstance(statement, ast.Try):
            for inner in [*statement.body, *statement.orelse]:
                self._bind(inner)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._extend(statement.value)

    def _extend(self, call: ast.Call) -> None:
        on = call.func
        adds = isinstance(on, ast.Attribute) and on.attr in {"add", "append", "extend", "update"}
        if adds and isinstance(on, ast.Attribute) and isinstance(on.value, ast.Name) and len(call.args) == 1:
            self.additions.setdefault(on.value.id, []).append(call.args[0])
