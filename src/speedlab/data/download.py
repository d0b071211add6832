"""Fetches one public text over https, checks it and keeps it in the cache. It knows nothing of corpora or tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from speedlab.data.cache import cache_folder, find_verified, write_verified
from speedlab.errors import BadInput, NotAvailable

TIMEOUT_S = 30.0
USER_AGENT = "speedlab (a teaching project; fetches one text and caches it)"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text on the web and what is known about it beforehand.

    sha256 is None for a text that its publisher revises in place. Such a file is accepted if its size is in range
    and every phrase of `must_contain` is there; what was received is then shown by its hash in every record.
    """

    name: str
    url: str
    sha256: str | None
    min_bytes: int
    max_bytes: int
    must_contain: tuple[str, ...] = ()


class HttpsRedirects(HTTPRedirectHandler):
    """Follows a redirect only to another https address."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        if not newurl.lower().startswith("https://"):
            fp.close()
            raise URLError(f"redirected to {newurl!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_https(url: str) -> Any:
    """The open response for an https address; raises BadInput for any other kind of address."""
    if not url.startswith("https://"):
        raise BadInput(f"will not download {url!r}: only https addresses are allowed")
    return build_opener(HttpsRedirects).open(Request(url, headers={"User-Agent": USER_AGENT}), timeout=TIMEOUT_S)


def fetch(source: Source, *, cache_dir: Path | None = None, open_url: Callable[[str], Any] = open_https) -> Path:
    """Path of the cached text, downloaded first if it is not there or no longer whole.

    Raises NotAvailable if it cannot be received (offline, interrupted), BadInput if what came is not the text.
    """
    folder = cache_folder(cache_dir)
    # A pinned hash is part of the look-up, so a cached file of another revision is never taken for it.
    stem = source.name if source.sha256 is None else f"{source.name}-{source.sha256[:12]}"
    if (cached := find_verified(folder, stem, ".txt")) is not None and _fault(source, cached.read_bytes()) is None:
        return cached
    content = _receive(source, open_url)
    if (fault := _fault(source, content)) is not None:
        raise BadInput(
            f"the download of corpus {source.name!r} from {source.url} was refused: {fault}; "
            "nothing was kept: try again, or give a text file of your own"
        )
    return write_verified(folder, stem, ".txt", lambda file: file.write(content))


def _receive(source: Source, open_url: Callable[[str], Any]) -> bytes:
    """The bytes that the server sends, at most one more than the cap."""
    try:
        with open_url(source.url) as response:
            announced = response.headers.get("Content-Length", "")
            content = b""
            while chunk := response.read(min(1 << 16, source.max_bytes + 1 - len(content))):
                content += chunk
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        reason = " ".join(str(getattr(error, "reason", None) or error or type(error).__name__).split())
        if isinstance(error, HTTPError):
            reason = f"the server answered {error.code} {reason}"
        raise _not_received(source, reason) from error
    # A connection that ends early is no error to http.client when it is read in parts.
    if announced.isdecimal() and len(content) < min(int(announced), source.max_bytes + 1):
        raise _not_received(source, f"the connection ended after {len(content):,} of {int(announced):,} bytes")
    return content


def _not_received(source: Source, reason: str) -> NotAvailable:
    return NotAvailable(
        f"cannot download corpus {source.name!r} from {source.url} ({reason}): connect to the network and try again, "
        "or use the standard-library corpus or a text file of your own"
    )


def _fault(source: Source, content: bytes) -> str | None:
    """Why these bytes are not the text of the source, None if they are."""
    if len(content) > source.max_bytes:
        return f"it is larger than {source.max_bytes:,} bytes"
    if source.sha256 is not None and (digest := hashlib.sha256(content).hexdigest()) != source.sha256:
        return f"its sha256 is {digest}, not {source.sha256}"
    if len(content) < source.min_bytes:
        return f"it has {len(content):,} bytes, fewer than {source.min_bytes:,}"
    for phrase in source.must_contain:
        if phrase.encode() not in content:
            return f"it does not contain {phrase!r}"
    return None
