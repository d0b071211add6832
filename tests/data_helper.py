"""Real faults for the tests of `speedlab.data`: a user without rights, and a web server that misbehaves."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from speedlab.data.download import HttpsRedirects
from speedlab.errors import SpeedLabError

NOBODY = 65_534


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """File permissions mean nothing to root, so step down for a moment if the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def one_line_error(kind: type[SpeedLabError], call: Callable[[], object], *parts: str) -> str:
    """The message of the error that `call` must raise, one line that names every one of `parts`."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert message and "\n" not in message
    for part in parts:
        assert part in message, message
    return message


@contextmanager
def web_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[Callable[[str], object], list[str]]]:
    """A server on 127.0.0.1 that answers each GET with `answer`.

    Gives the opener that sends any https address to it, and the list of the paths that were asked for.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer(self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    opener = build_opener(ProxyHandler({}), HttpsRedirects)

    def open_url(url: str) -> object:
        assert url.startswith("https://"), url
        path = url.removeprefix("https://").partition("/")[2]
        return opener.open(Request(f"http://127.0.0.1:{server.server_port}/{path}"), timeout=10)

    try:
        yield open_url, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, content: bytes, *, announced: int | None = None) -> None:
    """Answer 200 with this content; `announced` may promise another length than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content) if announced is None else announced))
    handler.end_headers()
    handler.wfile.write(content)
