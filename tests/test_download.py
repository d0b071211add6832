"""Downloads against a real server on this machine: what is accepted, what is refused, and what is left behind."""

import hashlib
import re
from dataclasses import replace

import pytest
from data_helper import one_line_error, send, web_server

from speedlab.data.download import Source, fetch, open_https
from speedlab.errors import BadInput, NotAvailable

CONTENT = b"To be, or not to be, that is the question.\n" * 5_000
PINNED = Source(
    name="play",
    url="https://text.example/play.txt",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    min_bytes=len(CONTENT),
    max_bytes=len(CONTENT),
)
UNPINNED = replace(PINNED, sha256=None, min_bytes=200_000, max_bytes=300_000, must_contain=("the question",))


@pytest.mark.parametrize("source", [PINNED, UNPINNED])
def test_a_text_is_downloaded_once_and_then_cached(tmp_path, source):
    with web_server(lambda handler: send(handler, CONTENT)) as (open_url, asked):
        first = fetch(source, cache_dir=tmp_path, open_url=open_url)
        second = fetch(source, cache_dir=tmp_path, open_url=open_url)
    assert asked == ["/play.txt"]
    assert first == second
    assert first.read_bytes() == CONTENT


@pytest.mark.parametrize("source", [PINNED, UNPINNED])
def test_a_damaged_cached_text_is_downloaded_again(tmp_path, source):
    with web_server(lambda handler: send(handler, CONTENT)) as (open_url, asked):
        path = fetch(source, cache_dir=tmp_path, open_url=open_url)
        path.write_bytes(CONTENT[:-1])
        assert fetch(source, cache_dir=tmp_path, open_url=open_url).read_bytes() == CONTENT
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("source", "content", "reason"),
    [
        (PINNED, CONTENT + b"!", "larger than"),
        (PINNED, CONTENT[:-1] + b"!", "sha256"),
        (PINNED, b"", "sha256"),
        (UNPINNED, CONTENT * 2, "larger than"),
        (UNPINNED, CONTENT[:1000], "fewer than"),
        (UNPINNED, CONTENT.replace(b"question", b"answer"), "does not contain 'the question'"),
    ],
)
def test_a_wrong_content_is_refused_and_not_kept(tmp_path, source, content, reason):
    with web_server(lambda handler: send(handler, content)) as (open_url, _):
        one_line_error(
            BadInput, lambda: fetch(source, cache_dir=tmp_path, open_url=open_url), "'play'", source.url, reason
        )
    assert list(tmp_path.iterdir()) == []


def test_no_more_than_the_cap_is_read(tmp_path):
    sent = []

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while len(sent) < 4_000:  # 250 MiB, should nobody hang up
                handler.wfile.write(b"x" * 65_536)
                sent.append(65_536)
        except OSError:
            handler.close_connection = True

    with web_server(endless) as (open_url, _):
        one_line_error(BadInput, lambda: fetch(PINNED, cache_dir=tmp_path, open_url=open_url), "larger than")
    assert sum(sent) < 100 << 20  # what the sockets took in, far less than what was on offer


def test_an_interrupted_download_is_one_line_and_leaves_nothing(tmp_path):
    def half(handler):
        send(handler, CONTENT[:1000], announced=len(CONTENT))
        handler.close_connection = True

    with web_server(half) as (open_url, _):
        one_line_error(
            NotAvailable,
            lambda: fetch(UNPINNED, cache_dir=tmp_path, open_url=open_url),
            "'play'", "1,000 of 215,000 bytes", "standard-library",
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_server_is_one_line(tmp_path):
    with web_server(lambda handler: handler.send_error(503, "Busy")) as (open_url, _):
        one_line_error(NotAvailable, lambda: fetch(PINNED, cache_dir=tmp_path, open_url=open_url), "answered 503 Busy")


def test_offline_is_one_line(tmp_path):
    with web_server(lambda handler: send(handler, CONTENT)) as (open_url, asked):
        pass  # the server is gone, its port is closed
    one_line_error(
        NotAvailable, lambda: fetch(PINNED, cache_dir=tmp_path, open_url=open_url), "'play'", PINNED.url, "refused"
    )
    assert asked == []


def test_a_redirect_away_from_https_is_not_followed(tmp_path):
    def elsewhere(handler):
        handler.send_response(302)
        handler.send_header("Location", f"http://{handler.headers['Host']}/elsewhere")
        handler.end_headers()

    with web_server(elsewhere) as (open_url, asked):
        one_line_error(NotAvailable, lambda: fetch(PINNED, cache_dir=tmp_path, open_url=open_url), "not https")
    assert asked == ["/play.txt"]


@pytest.mark.parametrize("url", ["http://text.example/a", "file:///etc/hostname", "ftp://text.example/a", "a.txt"])
def test_only_https_is_opened(url):
    one_line_error(BadInput, lambda: open_https(url), repr(url), "https")


def test_the_named_sources_are_https_and_bounded():
    from speedlab.data.corpus import SOURCES

    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert 1_000_000 < source.min_bytes <= source.max_bytes < 10_000_000
        assert source.must_contain if source.sha256 is None else re.fullmatch("[0-9a-f]{64}", source.sha256)
