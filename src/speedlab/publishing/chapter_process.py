"""One chapter in a process of its own: papermill, with an eye on how its kernel ended.

papermill says of every dead kernel the same, whether it was killed or left by `exit()`. Here the kernel's exit status
is written beside the output. Called by `execute` as `python -m speedlab.publishing.chapter_process REQUEST`; it knows
nothing of runs and judges no notebook.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

DEAD_KERNEL = 138  # exit status when the kernel is gone, as papermill's own command has it
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def kernel_status_path(output: Path) -> Path:
    """Where the exit status of a kernel that ended by itself is written: negative for a signal."""
    return output.with_suffix(".kernel")


def execute(request: dict[str, Any]) -> int:
    """Execute request["notebook"] into request["output"]; 0, 1 for a failing cell, 138 for a kernel that is gone."""
    import papermill
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    output = Path(request["output"])

    class WatchedKernel(AsyncKernelManager):
        async def _async_is_alive(self) -> bool:
            status = await self.provisioner.poll() if self.has_kernel else None
            if status is not None:
                kernel_status_path(output).write_text(str(status), encoding="utf-8")
            return await super()._async_is_alive()

        is_alive = _async_is_alive

    try:
        papermill.execute_notebook(
            request["notebook"],
            request["output"],
            parameters=request["parameters"],
            kernel_name=request["kernel"],
            cwd=request["folder"],
            progress_bar=False,
            execution_timeout=request["cell_s"],
            kernel_manager_class=WatchedKernel,
        )
    except DeadKernelError:
        return DEAD_KERNEL
    except PapermillExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _end_with(parent: int) -> None:
    """Ask Linux to end this process when the runner is killed; the kernel watches this process in turn."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != parent:  # it was killed before we could ask
        sys.exit(143)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    _end_with(asked["parent"])
    sys.exit(execute(asked))
