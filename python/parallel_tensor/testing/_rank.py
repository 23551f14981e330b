"""The program of one rank of `processes.rank_outcomes`: python _rank.py FOLDER RANK."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> int:
    folder, rank = sys.argv[1], int(sys.argv[2])
    # A job in the background of a script ignores Ctrl-C, and so does what it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    # Not dump_traceback_later: with its thread a forked child of the function cannot exit.
    faulthandler.register(signal.SIGRTMAX)
    answer: dict[str, Any] = {"returned": False, "traceback": "", "value": None, "error": None}
    code = 0
    try:
        with open(os.path.join(folder, "request"), "rb") as file:
            request = pickle.load(file)
            _die_with(request["parent"])
            sys.path[:] = request["path"]
            function = _function(request["module"], request["file"], request["function"])
            args = pickle.load(file)
        answer["value"] = function(rank, *args) if request["takes_rank"] else function(*args)
        del args
        answer["returned"] = True
    except SystemExit:
        answer["returned"] = True
        _write(folder, rank, answer)
        raise
    except BaseException as error:
        answer["error"], answer["traceback"] = error, traceback.format_exc()
        sys.stderr.write(answer["traceback"])
        # Its frames hold what the function held.
        traceback.clear_frames(error.__traceback__)
        code = 1
    _write(folder, rank, answer)
    return code


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def _function(module: str, file: str | None, name: str) -> Callable[..., Any]:
    return functools.reduce(getattr, name.split("."), _module(module, file))


def _module(name: str, file: str | None) -> Any:
    """The module; by its file where its name does not lead there, as for tests."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name) if name != "__main__" else None
        if file is None or (spec is not None and spec.origin == file):
            return importlib.import_module(name)
    # Not under the name __main__: that would run the script.
    spec = importlib.util.spec_from_file_location(name.replace("__main__", "__rank_main__"), file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _write(folder: str, rank: int, answer: dict[str, Any]) -> None:
    value, error = answer.pop("value"), answer.pop("error")
    try:
        answer["value"] = pickle.dumps(value)
    except Exception as problem:
        answer["value"], answer["returned"] = pickle.dumps(None), False
        error = TypeError(f"the rank's value cannot be pickled: {problem!r}")
    answer["error"] = _pickled_error(error)
    path = os.path.join(folder, f"result.{rank}")
    with open(path + ".part", "wb") as file:
        file.write(pickle.dumps(answer))
    os.replace(path + ".part", path)


def _pickled_error(error: BaseException | None) -> bytes:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # of any kind: it runs code of the exception's class
        return pickle.dumps(RuntimeError("".join(traceback.format_exception_only(error))))
    return pickled


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    sys.exit(main())
