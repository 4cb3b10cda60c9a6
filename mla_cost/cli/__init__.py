"""The command line: one command per file, imported only when it is called."""

from __future__ import annotations

import gc
import os
import sys
from io import TextIOWrapper

TYPE_CHECKING = False  # typing is slow to import, and until `main` runs Ctrl-C ends in Python's own traceback
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn, TextIO

# command: its line in the list of commands; its function has the same name in the file of that name
COMMANDS = {
    "plan": "Price the forms of a model on devices and say whether they fit.",
    "report": "Write a plan as one page of HTML.",
    "page": "Write a calculator of a model as one page of HTML.",
    "sweep": "Price every form at every setting of a grid.",
    "search": "Price every legal plan for a number of devices and rank those that fit.",
    "fit": "Find the longest sequence that fits, the least sp and the fewest devices.",
    "compare": "Compare forms and schemes at one setting: kept, sent, and who beats whom.",
    "crossover": "Find where one form or scheme stops beating another, and why.",
    "cache": "Tell how many bytes decoding keeps of a token, a sequence and a batch.",
    "documents": "Deal packed documents to ranks: balance, padding and what travels.",
    "decode": "Estimate what a decoding step reads and the least time it takes.",
    "export": "Print the flags of a framework for a plan.",
    "check": "Check plan, model and device files and launch scripts.",
    "init": "Write an annotated plan of a whole model to start from.",
    "completion": "Print a script that completes commands, flags and names in a shell.",
    "import": "Read a launch script or a framework's config into a plan file.",
    "oom": "Read an out-of-memory error of torch beside a plan.",
    "snapshot": "Set a memory snapshot of torch beside a plan.",
    "diff": "Set two plans, configs, scripts or results side by side.",
    "explain": "Show the symbolic formula of a form, term by term.",
    "evidence": "Replay published figures: what matches, what differs and why.",
    "models": "List the models of the catalogue.",
    "devices": "List the devices of the catalogue.",
    "plans": "List the ready plans, which `plan` takes by name.",
    "measure": "Time this machine in torch and write a device file of what it reaches.",
    "calibrate": "Fit a device's ceilings to step times of your own.",
    "validate": "Run the forms in torch and compare, byte by byte, what the model says of them.",
    "show": "Show everything known of a model or a device, with sources.",
}
# commands that end in an instant and leave nothing to collect
STOPPED = 130  # 128 and the number of SIGINT
_SHORT = (
    "plan",
    "check",
    "init",
    "import",
    "export",
    "cache",
    "decode",
    "explain",
    "models",
    "devices",
    "plans",
    "show",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Bad input ends with one message and exit code 2, never with a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        _quiet_from_here()
    short = arguments is None and (not given or given[0] in _SHORT)  # a process of our own, gone in an instant
    if short:
        gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # looking for plugins reads every installed distribution
    try:
        _run(given, at_once=short)
    except KeyboardInterrupt:
        _stop()


def _quiet_from_here() -> None:
    """Ctrl-C ends the process without a word, first of all while what follows is being imported."""
    # The part of signal that is there already (signal itself builds enums first). It has no type stubs.
    import _signal  # type: ignore[import-not-found]

    own = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if own and sys.modules.get("threading") is None:  # a program with threads may not be in its main one
        _signal.signal(_signal.SIGINT, _end)
    from mla_cost.cli import interrupt

    interrupt.install(instead_of=_end)


def _end(*_: Any) -> None:
    os._exit(STOPPED)


def _run(given: list[str], *, at_once: bool) -> None:
    from mla_cost.cli.program import ABORT, USAGE_ERROR, build
    from mla_cost.errors import InputError

    _prepare_streams()
    try:
        program = build(given)
        code = program(given, prog_name="mla-cost", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _refuse(error)
    except USAGE_ERROR as error:
        from mla_cost.cli.usage import as_input_error

        _refuse(as_input_error(error, given))
    except ABORT:
        _stop()
    except OSError as error:
        _give_up(error)
    else:
        _leave(code if isinstance(code, int) else 0, at_once=at_once)


def _stop() -> NoReturn:
    """End as a shell expects of what Ctrl-C has stopped."""
    sys.stderr.write("mla-cost: stopped\n")
    sys.exit(STOPPED)


def _leave(code: int, *, at_once: bool) -> NoReturn:
    """End the process; `at_once` spares the interpreter taking apart what the system takes back anyway."""
    if at_once:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _prepare_streams() -> None:
    sys.stdout = sys.stdout or _nowhere()  # None where the caller has closed it
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? and no traceback


def _nowhere() -> TextIO:
    return open(os.devnull, "w")  # noqa: PTH123  (open until the process ends)


def _give_up(error: OSError) -> NoReturn:
    """End where nothing more can be written: well if the reader of our pipe has gone, badly on a full disk."""
    gone = isinstance(error, BrokenPipeError)
    if not gone:
        sys.stderr.write(f"mla-cost: {error}\n")
    sys.stdout = sys.stderr = _nowhere()
    sys.exit(0 if gone else 1)


def _refuse(error: ValueError) -> NoReturn:
    every = getattr(error, "every", lambda: (error,))()
    sys.stderr.writelines(f"mla-cost: {each}\n" for each in every)
    sys.exit(2)
