"""Start the Streamlit app on this machine, and stop it with us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from types import FrameType
from typing import NoReturn

PATHS_VARIABLE = "OVERFLIGHT_PATHS"
HOST = "127.0.0.1"
DEFAULT_PORT = 8501
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
"""For glibc, which else may keep freed arrays for each of Streamlit's many threads: 400 MB more, and growing."""

_APP = Path(__file__).with_name("app.py")


def serve(paths: list[Path], port: int, browser: bool) -> int:
    """Serve the app for these paths until it ends or we are interrupted; returns its exit code.

    The address is printed once the server answers. It listens on loopback only and reports to nobody.
    """
    port = _free_port(port)
    signal.signal(signal.SIGTERM, _leave)
    child = subprocess.Popen(_command(port), env=_environment(paths), stdout=subprocess.DEVNULL)
    try:
        if _answers(child, port):
            url = f"http://{HOST}:{port}"
            print(f"Overflight shows {', '.join(map(str, paths))} at {url} (Ctrl-C stops it)", flush=True)
            if browser:
                webbrowser.open(url)
        else:
            print(f"overflight: the viewer stopped before it answered on port {port}", file=sys.stderr)
        return child.wait()
    finally:
        _stop(child)


def _command(port: int) -> list[str]:
    options = {
        "server.port": str(port),
        "server.address": HOST,
        "server.headless": "true",  # we open the browser ourselves: Streamlit would first ask for an e-mail address
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "viewer.server", "run", str(_APP), *flags]


def _environment(paths: list[Path]) -> dict[str, str]:
    """Ours, with the paths, and with the directory of our packages where Python looks (Streamlit looks in viewer/)."""
    known = [str(_APP.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    joined = os.pathsep.join(str(path.absolute()) for path in paths)
    ours = {PATHS_VARIABLE: joined, "PYTHONPATH": os.pathsep.join(known)}
    return {**_MALLOC, **os.environ, **ours}


def _free_port(wanted: int) -> int:
    """The wanted port, or one that the system chooses when that is 0 or taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port on {HOST}")


def _answers(child: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server is healthy; False when it ended first."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while child.poll() is None:
        try:
            with opener.open(f"http://{HOST}:{port}/_stcore/health", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)
