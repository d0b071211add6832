"""Where records lie, and how they are written and read without ever losing one. It knows no tables or figures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from speedlab.errors import BadInput
from speedlab.ladder import LADDERS, Ladder, ladder_with_rungs_of
from speedlab.profile import PROFILES
from speedlab.recipe import Recipe, changes
from speedlab.records.record import Record

PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY_ROOT = PACKAGE.parents[1]
# The change of such a rung was never applied, so the next rung is compared with the one below it.
NOT_APPLIED = ("unavailable", "not_applicable")
# What a batch run on a device did, beside the ladders of that device.
SUMMARIES = ("reproduction.json", "summary.json")
# A record is some tens of kilobytes; what is much larger is something else.
LARGEST_RECORD_BYTES = 4 * 2**20


def committed_root() -> Path:
    """Folder of the published records: `book/records` of the repository, or the copy inside an installed package."""
    in_repository = REPOSITORY_ROOT / "book" / "records"
    return in_repository if in_repository.is_dir() else PACKAGE / "_records"


def record_path(root: Path, device: str, ladder: str, rung: str) -> Path:
    """`root/<device>/<ladder>/<rung>.json`; a name with anything but a-z, 0-9, - and _ is refused."""
    for what, name in (("device", device), ("ladder", ladder), ("rung", rung)):
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name):
            raise BadInput(f"{what} {name!r} cannot name a record: use lower-case words and digits joined by - or _")
    return Path(root) / device / ladder / f"{rung}.json"


def write_text_atomic(path: Path, text: str) -> None:
    """Write `text` so that `path` holds either what it held before or all of the new text, whatever happens."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
        with open(name, "x", encoding="utf-8", newline="\n") as file:
            temporary = name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {_reason(error)}; choose another folder or make room") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def write_record(root: Path, record: Record) -> Path:
    """Write one record below `root` and return its path.

    Refused: a profile that may not be published in the folder of published records, and a folder that holds records
    of another session, machine or method.
    """
    _refuse_unpublishable(Path(root), record, where=f"{record.device}/{record.ladder}/{record.rung}")
    path = record_path(root, record.device, record.ladder, record.rung)
    check_session(root, record.device, record.ladder, record.session)
    write_text_atomic(path, record_text(record))
    return path


def check_writable(root: Path) -> None:
    """Raise `BadInput` unless a file can be made in this folder: worth asking before an hour of measuring."""
    probe = Path(root) / ".writable"
    try:
        write_text_atomic(probe, "")
    except BadInput as error:
        raise BadInput(f"cannot write into {root}: {_reason(error.__cause__)}; choose another folder") from error
    probe.unlink(missing_ok=True)


def check_session(root: Path, device: str, ladder: str, session: str) -> None:
    """Raise `BadInput` when the folder of this device and ladder holds a record of another session.

    Worth asking before an hour of measuring, not only when the first record is written.
    """
    folder = record_path(root, device, ladder, "any").parent
    for path in _record_files(folder):
        other = read_record(path).session
        if other != session:
            raise BadInput(
                f"{folder} holds records of session {other}, this is session {session}: "
                "one folder never mixes sessions; choose another folder or move the old one away"
            )


def record_text(record: Record) -> str:
    return json_text(record.to_dict())


def json_text(values: dict[str, Any]) -> str:
    """JSON with one line for each field, and one for each object of a list, so that a diff can be read."""
    lines = []
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_json(item) for item in value)
            lines.append(f" {_json(name)}: [\n  {items}\n ]")
        else:
            lines.append(f" {_json(name)}: {_json(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_record(path: Path) -> Record:
    """The record in this file; `BadInput` names the file and, where there is one, the field that is wrong."""
    return Record.from_dict(read_json(Path(path), "record"), source=str(path))


def read_json(path: Path, what: str) -> Any:
    """The JSON in this file, a "record" or whatever `what` calls it; `BadInput` says in one line what is wrong."""
    try:
        with open(path, "rb") as file:
            contents = file.read(LARGEST_RECORD_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or type(error).__name__}") from error
    if len(contents) > LARGEST_RECORD_BYTES:
        raise BadInput(f"{path}: larger than any {what} ({LARGEST_RECORD_BYTES} bytes)")
    try:
        return json.loads(contents.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not a text file; a {what} is JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path}: truncated or damaged JSON at line {error.lineno} column {error.colno} ({error.msg}): "
            "restore the file or measure it again"
        ) from None
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        raise BadInput(f"{path}: JSON, but not a {what}: restore the file or measure it again") from None


def read_records(root: Path) -> list[Record]:
    """All records below `root`, by device, then ladders and rungs in their own order.

    `BadInput` for a file whose place does not fit its contents, and for a device and ladder with records of more
    than one session, machine or method: one table never mixes them.
    """
    root = Path(root)
    if not root.is_dir():
        raise BadInput(f"no folder of records at {root}: give the folder that holds <device>/<ladder>/<rung>.json")
    _refuse_misplaced(root)
    records: list[Record] = []
    for folder in (ladder for device in _subfolders(root) for ladder in _subfolders(device)):
        group = [(path, read_record(path)) for path in _record_files(folder)]
        for path, record in group:
            if path != record_path(root, record.device, record.ladder, record.rung):
                raise BadInput(
                    f"{path}: record fields device, ladder, rung are {record.device}, {record.ladder}, {record.rung}: "
                    "they must be the names of its folders and file"
                )
            _refuse_unpublishable(root, record, where=str(path))
            _refuse_mixture(group[0], (path, record))
        records.extend(record for _, record in group)
    return sorted(records, key=reading_order)


def _refuse_misplaced(root: Path) -> None:
    """A record at another depth would vanish from every table without a word; a batch run's summary may lie there."""
    for path in sorted(root.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if len(path.relative_to(root).parts) != 3 and path.name not in SUMMARIES and not hidden:
            raise BadInput(f"{path} does not lie at <device>/<ladder>/<rung>.json below {root}: move it there or away")


def reading_order(record: Record) -> tuple[Any, ...]:
    """Sort key: device, ladder as listed, rung as stacked; unknown ladders and rungs come last, by name."""
    ladders = list(LADDERS)
    known = ladder_with_rungs_of(record.ladder)
    rungs = list(known.keys) if known else []
    if known is not None and known.name != record.ladder and record.rung in rungs:
        place = _place_when_reordered(record, known)
    elif record.rung in rungs:
        place = float(rungs.index(record.rung))
    elif record.rung.startswith("data_parallel_") and "data_parallel" in rungs:
        # data_parallel_1, _2, _4: in order of ranks, beside the rung they belong to.
        place = rungs.index("data_parallel") + 0.5
    else:
        place = float(len(rungs))
    ladder_place = ladders.index(record.ladder) if record.ladder in ladders else len(ladders)
    return record.device, ladder_place, record.ladder, place, record.recipe.get("data_parallel", 1), record.rung


def _place_when_reordered(record: Record, known: Ladder) -> float:
    """The order is nowhere written down, but each rung keeps the changes below it: their number is its place.

    A rung whose change could not be made has as many as the one below it, and comes after it.
    """
    start = PROFILES[record.profile].recipe(known, known.reference.key)
    place = len(changes(start, Recipe.from_dict(record.recipe)))
    return place + (0.5 + 0.01 * known.keys.index(record.rung) if record.status in NOT_APPLIED else 0.0)


def source_hash() -> str:
    """sha256 over every Python file of this package, by name and contents; needs no git where it is asked."""
    return hash_sources((path.relative_to(PACKAGE).as_posix(), path.read_bytes()) for path in PACKAGE.rglob("*.py"))


def hash_sources(sources: Iterable[tuple[str, bytes]]) -> str:
    """sha256 over (name relative to the package, contents) pairs in the order of their names."""
    digest = hashlib.sha256()
    for name, contents in sorted(sources):
        digest.update(f"{name}\0{len(contents)}\0".encode())
        digest.update(contents)
    return digest.hexdigest()


def current_commit() -> str | None:
    """$SPEEDLAB_COMMIT, or git's HEAD when it holds exactly this source; None where neither can say."""
    given = os.environ.get("SPEEDLAB_COMMIT", "").strip()
    if given:
        if not re.fullmatch(r"[0-9a-f]{7,64}", given):
            raise BadInput(f"SPEEDLAB_COMMIT is {given!r}: it must be a commit hash of 7 to 64 hexadecimal digits")
        return given
    if not (REPOSITORY_ROOT / ".git").exists():
        return None
    # A commit that does not hold the source that ran would be a false trail; the source hash still finds it later.
    if _git("status", "--porcelain", "--untracked-files=all", "--", str(PACKAGE)) != "":
        return None
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY_ROOT), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _listing(folder) if path.is_dir()]


def _record_files(folder: Path) -> list[Path]:
    return [path for path in _listing(folder) if path.suffix == ".json"]


def _listing(folder: Path) -> list[Path]:
    """What lies in a folder, by name, without hidden files; nothing when there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BadInput(f"cannot read {folder}: {error.strerror or type(error).__name__}") from error


def _refuse_unpublishable(root: Path, record: Record, *, where: str) -> None:
    if not PROFILES[record.profile].publishable and root.resolve() == committed_root().resolve():
        raise BadInput(
            f"{where}: record field profile is {record.profile}: its speeds mean nothing and stay unpublished"
        )


def _refuse_mixture(first: tuple[Path, Record], other: tuple[Path, Record]) -> None:
    for name, get in (
        ("session", lambda record: record.session),
        ("machine.machine_id", lambda record: record.machine["machine_id"]),
        ("method", lambda record: record.method),
    ):
        one, two = get(first[1]), get(other[1])
        if one != two:
            raise BadInput(
                f"{other[0]}: record field {name} is {two}, but {first[0].name} beside it has {one}: "
                "all rows of one device and ladder come from one session; measure them together"
            )


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the file system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
