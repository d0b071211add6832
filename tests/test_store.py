"""Records are written whole or not at all, and read with the file and the field named when something is wrong."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
from records_helper import MACHINE_H200, make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.records import store


@pytest.fixture
def ladder_folder(tmp_path):
    """A root with three rungs of one session."""
    for rung, step_ms in (("bfloat16", 100.0), ("baseline", 250.0), ("tensor_cores", 140.0)):
        store.write_record(tmp_path, make_record(rung, step_ms=step_ms))
    return tmp_path


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_written_is_read_back_in_the_order_of_the_ladder(ladder_folder):
    records = store.read_records(ladder_folder)
    assert [record.rung for record in records] == ["baseline", "tensor_cores", "bfloat16"]
    assert records[2] == make_record("bfloat16", step_ms=100.0)
    assert (ladder_folder / "nvidia-h200" / "nine-steps" / "bfloat16.json").is_file()


def test_ranks_and_unknown_rungs_keep_a_sensible_order(tmp_path):
    for rung in ("data_parallel_4", "data_parallel_1", "padded_vocab"):
        store.write_record(tmp_path, make_record(rung, step_ms=200.0, device="nvidia-h200-x4"))
    assert [r.rung for r in store.read_records(tmp_path)] == ["padded_vocab", "data_parallel_1", "data_parallel_4"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "A", "a b", "a.json", ".hidden", "-x", None, 3, "a\n"])
def test_names_that_could_leave_the_folder_are_refused(tmp_path, name):
    for arguments in ((name, "l", "r"), ("d", name, "r"), ("d", "l", name)):
        with pytest.raises(BadInput, match="cannot name a record"):
            store.record_path(tmp_path, *arguments)


@pytest.mark.parametrize("cut", [0, 1, 100, -3])
def test_a_truncated_record_names_the_file(ladder_folder, cut):
    path = ladder_folder / "nvidia-h200" / "nine-steps" / "baseline.json"
    path.write_text(path.read_text()[:cut])
    with pytest.raises(BadInput, match=r"baseline\.json: truncated or damaged JSON at line \d+") as caught:
        store.read_records(ladder_folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"\x89PNG\x00\xff", "not a text file"),
        (b"[" * 100_000, "JSON, but not a record"),
        (b"1" * 5_000, "JSON, but not a record"),
        (b"[]", "a record is a JSON object"),
        (b" " * (store.LARGEST_RECORD_BYTES + 1), "larger than any record"),
    ],
)
def test_a_file_that_is_no_record_names_the_file(tmp_path, contents, message):
    path = tmp_path / "x.json"
    path.write_bytes(contents)
    with pytest.raises(BadInput, match=message) as caught:
        store.read_record(path)
    assert str(path) in str(caught.value)


def test_nan_in_a_file_names_the_file_and_the_field(ladder_folder):
    path = ladder_folder / "nvidia-h200" / "nine-steps" / "baseline.json"
    path.write_text(path.read_text().replace('"step_ms": [', '"step_ms": [NaN, '))
    with pytest.raises(BadInput, match=r"baseline\.json: record field step_ms\[0\] is nan"):
        store.read_records(ladder_folder)


def test_a_missing_file_or_folder_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"cannot read .*gone\.json: No such file"):
        store.read_record(tmp_path / "gone.json")
    with pytest.raises(BadInput, match="no folder of records at"):
        store.read_records(tmp_path / "gone")
    assert store.read_records(tmp_path) == []


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("session", {"session": "another-session"}),
        ("machine.machine_id", {"machine": MACHINE_H200 | {"machine_id": "f" * 12}}),
    ],
)
def test_one_folder_never_mixes_sessions_or_machines(ladder_folder, field, changes):
    folder = ladder_folder / "nvidia-h200" / "nine-steps"
    edit(folder / "tensor_cores.json", **changes)
    with pytest.raises(BadInput, match=f"tensor_cores.json: record field {field} is .*baseline.json"):
        store.read_records(ladder_folder)


def test_a_second_session_is_not_written_into_the_folder_of_the_first(ladder_folder):
    before = {path: path.read_bytes() for path in ladder_folder.rglob("*.json")}
    with pytest.raises(BadInput, match="holds records of session 0f1e2d3c4b5a, this is session other"):
        store.write_record(ladder_folder, make_record("causal_mask", session="other"))
    assert {path: path.read_bytes() for path in ladder_folder.rglob("*.json")} == before


def test_a_copied_record_is_noticed_by_its_place(ladder_folder):
    folder = ladder_folder / "nvidia-h200" / "nine-steps"
    shutil.copy(folder / "baseline.json", folder / "causal_mask.json")
    with pytest.raises(BadInput, match=r"causal_mask\.json: record fields device, ladder, rung"):
        store.read_records(ladder_folder)


def test_other_files_beside_the_records_are_left_alone(ladder_folder):
    (ladder_folder / "nvidia-h200" / "summary.json").write_text("{}")
    (ladder_folder / "nvidia-h200" / "nine-steps" / ".baseline.json.0a.tmp").write_text("{")
    (ladder_folder / ".ipynb_checkpoints" / "nine-steps").mkdir(parents=True)
    assert len(store.read_records(ladder_folder)) == 3


def test_the_smoke_profile_never_becomes_a_published_record(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "REPOSITORY_ROOT", tmp_path)
    root = tmp_path / "book" / "records"
    root.mkdir(parents=True)
    assert store.committed_root() == root
    smoke = make_record(device="cpu")
    with pytest.raises(BadInput, match="record field profile is smoke"):
        store.write_record(root, smoke)
    assert list(root.rglob("*.json")) == []
    run = store.write_record(tmp_path / "runs", smoke)
    placed = root / run.relative_to(tmp_path / "runs")
    placed.parent.mkdir(parents=True)
    shutil.copy(run, placed)
    with pytest.raises(BadInput, match=r"baseline\.json: record field profile is smoke"):
        store.read_records(root)


def test_without_the_repository_the_records_come_from_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "REPOSITORY_ROOT", tmp_path)
    assert store.committed_root() == store.PACKAGE / "_records"


def test_a_write_that_the_system_cuts_short_keeps_the_old_file(tmp_path):
    """The limit on the size of a file is a real fault: the write fails half way."""
    path = tmp_path / "kept.json"
    store.write_text_atomic(path, "old")
    program = (
        "import sys, pathlib; from speedlab.records.store import write_text_atomic\n"
        "from speedlab.errors import BadInput\n"
        "try: write_text_atomic(pathlib.Path(sys.argv[1]), 'x' * 100_000)\n"
        "except BadInput as error: print(error); sys.exit(2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, 8_192)),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(f"cannot write {path}: File too large") and done.stdout.count("\n") == 1
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.json"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=r"cannot write .*: (Not a directory|File exists)"):
        store.write_record(tmp_path / "file", make_record())
    assert (tmp_path / "file").read_text() == "in the way"


def test_no_write_permission_is_one_line(tmp_path):
    nobody = 65_534
    superuser = os.geteuid() == 0
    tmp_path.chmod(0o500)
    if superuser:  # whom permissions do not stop
        os.seteuid(nobody)
    try:
        with pytest.raises(BadInput, match=r"cannot (read|write) .*: Permission denied"):
            store.write_record(tmp_path, make_record())
        with pytest.raises(BadInput, match=r"cannot write .*: Permission denied"):
            store.write_text_atomic(tmp_path / "x.json", "{}")
    finally:
        if superuser:
            os.seteuid(0)
        tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


def test_a_written_file_obeys_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        path = store.write_record(tmp_path, make_record())
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_record_is_one_line_a_field_so_that_a_diff_can_be_read(tmp_path):
    text = store.write_record(tmp_path, skipped_record("bfloat16")).read_text()
    assert text.endswith("}\n")
    assert sum(line.startswith(' "') for line in text.splitlines()) == len(json.loads(text))


def test_source_hash_changes_with_contents_and_with_names():
    one = store.hash_sources([("b.py", b"2"), ("a.py", b"1")])
    assert one == store.hash_sources([("a.py", b"1"), ("b.py", b"2")])
    assert len({one, store.hash_sources([("a.py", b"12"), ("b.py", b"")]), store.hash_sources([("c.py", b"1")])}) == 3
    assert len(store.source_hash()) == 64 and store.source_hash() == store.source_hash()


def test_the_commit_is_said_only_when_it_holds_the_source_that_ran(tmp_path, monkeypatch):
    monkeypatch.delenv("SPEEDLAB_COMMIT", raising=False)
    package = tmp_path / "src" / "speedlab"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(store, "REPOSITORY_ROOT", tmp_path)
    monkeypatch.setattr(store, "PACKAGE", package)
    assert store.current_commit() is None  # no repository

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert store.current_commit() == git("rev-parse", "HEAD")
    (package / "b.py").write_text("b = 1\n")
    assert store.current_commit() is None  # HEAD lacks b.py
    monkeypatch.setenv("SPEEDLAB_COMMIT", "0123abc")
    assert store.current_commit() == "0123abc"
    monkeypatch.setenv("SPEEDLAB_COMMIT", "main")
    with pytest.raises(BadInput, match="SPEEDLAB_COMMIT is 'main'"):
        store.current_commit()


def test_a_record_at_another_depth_is_named_and_a_summary_is_not(tmp_path):
    path = store.write_record(tmp_path, make_record())
    (tmp_path / "nvidia-h200").mkdir(exist_ok=True)
    (tmp_path / "nvidia-h200" / store.SUMMARIES[0]).write_text("{}")
    assert len(store.read_records(tmp_path)) == 1
    deeper = path.parent / "sub" / path.name
    deeper.parent.mkdir()
    path.rename(deeper)
    with pytest.raises(BadInput, match=r"does not lie at <device>/<ladder>/<rung>\.json"):
        store.read_records(tmp_path)


def test_an_unwritable_folder_is_found_before_anything_is_measured(tmp_path):
    store.check_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        store.check_writable(tmp_path / "file")
