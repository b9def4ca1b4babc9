"""forkd: fork warm microVMs, run code in them, branch them while they run.

:class:`Sandbox` is one VM as one works with it; :class:`Controller` is the daemon, verb by verb. Both have siblings for
programs that do not wait: :class:`AsyncSandbox` and :class:`AsyncController`.
"""

from .async_controller import AsyncController
from .async_sandbox import AsyncSandbox
from .commands import Process
from .controller import Controller
from .errors import CommandError, ControllerError, EvalError, ForkdError, NoAnswerError
from .models import (
    BranchMode,
    CommandResult,
    EvalOutput,
    EvalResult,
    Event,
    Exit,
    FileInfo,
    Output,
    Page,
    ProcessInfo,
    Skipped,
    Started,
)
from .sandbox import Sandbox

__version__ = "0.6.0"
__all__ = [
    "AsyncController",
    "AsyncSandbox",
    "BranchMode",
    "CommandError",
    "CommandResult",
    "Controller",
    "ControllerError",
    "EvalError",
    "EvalOutput",
    "EvalResult",
    "Event",
    "Exit",
    "FileInfo",
    "ForkdError",
    "NoAnswerError",
    "Output",
    "Page",
    "Process",
    "ProcessInfo",
    "Sandbox",
    "Skipped",
    "Started",
]
