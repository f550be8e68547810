"""Programs of ``script/`` as modules, for tests of their parts."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from tests.support.session import PROJECT


def load_script(name: str) -> ModuleType:
    """The program ``script/<name>.py``, imported and not run."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / "script" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
