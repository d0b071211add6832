"""What is taken into the book and what is refused: made-up records in a real run folder, a real git history."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nbformat
import pytest
from records_helper import MACHINE_H200, make_record, skipped_record
from test_book_gate import executed
from toy_chapters import toy_source, write_toys

from speedlab import cli
from speedlab.errors import BadInput, NotAvailable
from speedlab.publishing import checkout, gate
from speedlab.publishing.executed import RESULT_MIME
from speedlab.publishing.gate import problems_of_book
from speedlab.publishing.history import commits_of_sources
from speedlab.publishing.publish import publish
from speedlab.publishing.run_folder import Chapter, Run
from speedlab.records.experiment import Experiment, write_experiment
from speedlab.records.record import METHOD
from speedlab.records.store import hash_sources, read_records, write_record

OLD_SOURCE, SOURCE = b"# the package as it was\n", b"# the package as it is\n"
HASH = hash_sources([("a.py", SOURCE), ("measuring/b.py", b"b\n")])
SESSION = "573ce5cd481d"
BOOK = Path(__file__).resolve().parents[1] / "book"


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def our_record(rung: str = "baseline", **changes):
    return make_record(rung, **({"session": SESSION, "source_hash": HASH} | changes))


def our_experiment(**changes) -> Experiment:
    values = {
        "name": "probe", "session": SESSION, "device": "nvidia-h200", "profile": "full",
        "rows": [{"status": "measured", "step_ms": [1.0]}], "machine": MACHINE_H200, "source_hash": HASH,
        "utc": "2026-11-29T12:00:00Z",
    }  # fmt: skip
    return Experiment(**(values | changes))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a history of two states of its package, one chapter, one lab and a book without records."""
    root = tmp_path / "checkout"
    package = root / "src" / "speedlab"
    (package / "measuring").mkdir(parents=True)
    (package / "measuring" / "b.py").write_bytes(b"b\n")
    (package / "notes.txt").write_text("no Python\n")
    git(tmp_path, "init", "-q", str(root))
    for source in (OLD_SOURCE, SOURCE, b"# later\n"):
        (package / "a.py").write_bytes(source)
        git(root, "add", "-A")
        git(root, "commit", "-qm", "x")
    write_toys(root / "notebooks", {"01_a": toy_source("01_a")})
    write_toys(root / "notebooks" / "labs", {"lab": toy_source("lab")})
    (root / "book").mkdir()
    (root / "book" / "_config.yml").write_text("title: Toy\n")
    monkeypatch.setattr(checkout, "REPOSITORY_ROOT", root)
    monkeypatch.setattr(gate, "EXPERIMENTS", {"probe": None})
    return root


@pytest.fixture
def run(root: Path) -> Run:
    """A sound run of the full profile: two records, one experiment, two pages."""
    records = [f"records/nvidia-h200/nine-steps/{rung}.json" for rung in ("baseline", "causal_mask")]
    experiments = ["experiments/nvidia-h200/probe.json"]
    chapters = [
        Chapter(chapter="01_a", status="completed", session=SESSION, records=records),
        Chapter(chapter="lab", lab=True, status="completed", session=SESSION, records=experiments),
    ]
    run = Run(
        folder=root / "runs" / "one", profile="full", steps=0, source="auto", kernel="python3", session=SESSION,
        source_hash=HASH, machine={"machine_id": MACHINE_H200["machine_id"]}, chapters=chapters,
    )  # fmt: skip
    run.write()
    for rung in ("baseline", "causal_mask"):
        write_record(run.folder / "records", our_record(rung))
    write_experiment(run.folder / "experiments", our_experiment())
    for chapter, source in (("01_a", root / "notebooks" / "01_a.py"), ("lab", root / "notebooks" / "labs" / "lab.py")):
        page = executed(source)
        data = page.cells[-1].outputs[0].data
        data[RESULT_MIME] |= {"chapter": chapter, "profile": "full", "session": SESSION, "source": "auto", "steps": 0}
        nbformat.write(page, run.page(chapter))
    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(root: Path, folder: Path, words: str) -> None:
    """Publishing is refused for a reason of one line that holds `words`, and the book is as it was."""
    before = contents(root / "book")
    with pytest.raises(BadInput, match=words) as caught:
        publish(folder, root=root)
    assert "\n" not in str(caught.value)
    assert contents(root / "book") == before


def test_a_sound_run_is_published_whole(root: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["publish", str(run.folder)]) == 0
    written = capsys.readouterr().out.split()
    book = root / "book"
    assert [record.rung for record in read_records(book / "records")] == ["baseline", "causal_mask"]
    assert (book / "records" / "nvidia-h200" / "reproduction.json").read_text() == (
        run.folder / "summary.json"
    ).read_text()
    assert (book / "chapters" / "01_a.ipynb").is_file() and (book / "labs" / "lab.ipynb").is_file()
    assert sorted(Path(path) for path in written) == sorted(
        path for path in [*(book / "records").rglob("*.json"), *(book / "experiments").rglob("*.json")]
    )
    assert problems_of_book(book, root) == []
    assert [path.name for path in (book / "records").iterdir() if path.name.startswith(".")] == []


def test_another_book_can_receive_it(root: Path, run: Run, tmp_path: Path) -> None:
    assert cli.run(["publish", str(run.folder), "--to", str(tmp_path / "other")]) == 0
    assert len(read_records(tmp_path / "other" / "records")) == 2
    assert not (root / "book" / "records").exists()


def test_a_new_session_takes_the_place_of_the_old_one_as_a_whole(root: Path, run: Run) -> None:
    for rung in ("baseline", "causal_mask"):
        write_record(root / "book" / "records", our_record(rung, session="aaaa1111bbbb"))
    publish(run.folder, root=root)
    assert {record.session for record in read_records(root / "book" / "records")} == {SESSION}


def test_what_was_published_stays_when_the_new_folder_cannot_take_its_place(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rung in ("baseline", "causal_mask"):
        write_record(root / "book" / "records", our_record(rung, session="aaaa1111bbbb"))
    before, rename = contents(root / "book"), Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "nine-steps" and Path(target).parent.parent == root / "book" / "records":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="No space left"):
        publish(run.folder, root=root)
    assert contents(root / "book") == before


def test_a_run_that_would_lose_a_published_rung_is_refused(root: Path, run: Run) -> None:
    write_record(root / "book" / "records", our_record("fused_adamw", session="aaaa1111bbbb"))
    refused(root, run.folder, "nvidia-h200/nine-steps would lose fused_adamw")


def test_a_folder_of_records_or_experiments_is_published_too(root: Path, tmp_path: Path) -> None:
    write_record(tmp_path / "ladder", our_record())
    (tmp_path / "ladder" / "nvidia-h200" / "reproduction.json").write_text("{}")  # as in the book's own records
    write_experiment(tmp_path / "lab", our_experiment())
    for folder in ("ladder", "lab"):
        publish(tmp_path / folder, root=root)
    assert len(read_records(root / "book" / "records")) == 1
    assert (root / "book" / "experiments" / "nvidia-h200" / "probe.json").is_file()
    (tmp_path / "empty").mkdir()
    refused(root, tmp_path / "empty", "empty holds nothing to publish")


def change_run(run: Run, **changes) -> None:
    for name, value in changes.items():
        setattr(run, name, value)
    run.write()


def test_a_smoke_run_is_refused(root: Path, run: Run) -> None:
    change_run(run, profile="smoke")
    refused(root, run.folder, "one is not published: it is a smoke run: its speeds mean nothing")


def test_smoke_records_are_refused_without_a_run_too(root: Path, tmp_path: Path) -> None:
    write_record(tmp_path / "ladder", our_record(device="cpu"))
    refused(root, tmp_path / "ladder", "cpu/nine-steps/baseline has profile smoke")


@pytest.mark.parametrize(
    ("chapter", "words"),
    [
        ({"status": "failed", "reason": "code cell 3: it broke"}, r"01_a is failed \(code cell 3: it broke\)"),
        ({"status": "out_of_memory", "reason": "killed"}, r"01_a is out of memory \(killed\)"),
        ({"status": "pending"}, r"01_a is pending \(it was not executed\)"),
        ({"session": "aaaa1111bbbb"}, "01_a comes from session aaaa1111bbbb, the run is 573ce5cd481d"),
    ],
)
def test_a_chapter_that_is_not_of_this_run_or_not_complete_is_refused(
    root: Path, run: Run, chapter: dict, words: str
) -> None:
    for name, value in chapter.items():
        setattr(run.chapters[0], name, value)
    run.write()
    refused(root, run.folder, words)


def test_a_notebook_that_was_changed_after_it_ran_is_refused(root: Path, run: Run) -> None:
    page = nbformat.read(run.page("01_a"), as_version=4)
    page.cells[1].source += "\nsteps = 3"
    nbformat.write(page, run.page("01_a"))
    refused(root, run.folder, "01_a: its code is not that of the source")


@pytest.mark.parametrize("status", ["error", "contract_failed"])
def test_a_failed_record_is_refused(root: Path, run: Run, status: str) -> None:
    changes = {"contract_verdict": "failed"} if status == "contract_failed" else {}
    record = skipped_record("causal_mask", status=status, reason="why", session=SESSION, source_hash=HASH, **changes)
    write_record(run.folder / "records", record)
    refused(root, run.folder, rf"causal_mask has status {status} \(why\)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": MACHINE_H200 | {"machine_id": "0" * 12}}, "its machine is 000000000000"),
        ({"source_hash": "b" * 64}, "its source is bbbbbbbbbbbb"),
        ({"session": "aaaa1111bbbb"}, "its session is aaaa1111bbbb"),
    ],
)
def test_a_foreign_record_is_refused(root: Path, run: Run, changes: dict, words: str) -> None:
    folder = run.folder / "records" / "nvidia-h200" / "nine-steps"
    for rung in ("baseline", "causal_mask"):
        (folder / f"{rung}.json").unlink()
    for rung in ("baseline", "causal_mask"):
        write_record(run.folder / "records", our_record(rung, **changes))
    refused(root, run.folder, f"baseline.json is foreign: {words}")


def test_mixed_sessions_in_one_folder_are_refused(root: Path, run: Run) -> None:
    path = run.folder / "records" / "nvidia-h200" / "nine-steps" / "causal_mask.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"session": "aaaa1111bbbb"}))
    refused(root, run.folder, "record field session is aaaa1111bbbb, but baseline.json beside it has")


def test_a_file_that_no_chapter_wrote_is_refused(root: Path, run: Run) -> None:
    write_record(run.folder / "records", our_record("fused_adamw"))
    refused(root, run.folder, "fused_adamw.json is foreign: no chapter of the run says that it wrote it")


def test_a_foreign_experiment_is_refused(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(run.folder / "experiments", our_experiment(session="aaaa1111bbbb"))
    refused(root, run.folder, "probe.json is foreign: its session is aaaa1111bbbb")
    write_experiment(run.folder / "experiments", our_experiment(rows=[{"status": "error", "reason": "why"}]))
    refused(root, run.folder, "nvidia-h200/probe has no measured row")
    monkeypatch.setattr(gate, "EXPERIMENTS", {})
    refused(root, run.folder, "nvidia-h200/probe is no experiment of this package")


def test_a_package_that_no_commit_holds_is_refused(root: Path, tmp_path: Path) -> None:
    dirty = hash_sources([("a.py", b"# changed by hand\n"), ("measuring/b.py", b"b\n")])
    write_record(tmp_path / "ladder", our_record(source_hash=dirty))
    refused(root, tmp_path / "ladder", rf"a package that no commit holds \(source {dirty[:12]}\): commit first")


def test_an_older_method_is_not_published_anew(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(tmp_path / "ladder", our_record())
    monkeypatch.setattr("speedlab.publishing.publish.METHOD", METHOD + 1)
    refused(root, tmp_path / "ladder", f"was measured by method {METHOD}, this is {METHOD + 1}: measure again")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "nvidia-a100-40gb"}, "names device nvidia-a100-40gb, but its machine is nvidia-h200"),
        ({"machine": MACHINE_H200 | {"capability": [7, 5]}}, "on a H200 SXM that played a card of capability 7.5"),
        ({"notes": ["see /home/someone/x"]}, r"holds the path of somebody's home \(/home/someone\)"),
    ],
)
def test_a_record_that_contradicts_its_machine_or_names_somebody_is_refused(
    root: Path, tmp_path: Path, changes: dict, words: str
) -> None:
    write_record(tmp_path / "ladder", our_record(**changes))
    refused(root, tmp_path / "ladder", words)


def test_the_history_is_searched_by_contents_and_a_part_of_it_is_not_enough(root: Path, tmp_path: Path) -> None:
    old = hash_sources([("a.py", OLD_SOURCE), ("measuring/b.py", b"b\n")])
    commits = git(root, "log", "--format=%H").split()
    assert commits_of_sources([old, HASH, "0" * 64], root) == {old: commits[2], HASH: commits[1]}
    subprocess.run(
        ["git", "clone", "-q", "--depth=1", f"file://{root}", str(tmp_path / "shallow")],
        check=True,
        capture_output=True,
    )
    for place in (tmp_path / "shallow", tmp_path):
        with pytest.raises(NotAvailable, match="no git history"):
            commits_of_sources([HASH], place)


def test_everything_that_is_committed_passes_the_gate() -> None:
    """A reader's contributed records go through here. Their source is looked up where the whole history is there."""
    root = BOOK.parent
    records, experiments = read_records(BOOK / "records"), gate.read_experiments(BOOK / "experiments")
    assert [*gate.problems_of_records(records), *gate.problems_of_experiments(experiments)] == []
    try:
        problems = list(gate.problems_of_sources([*records, *experiments], root))
    except NotAvailable:
        pytest.skip("this copy of the project has no full git history")
    assert problems == []


def test_the_gate_sees_a_bad_file_among_the_committed_ones(root: Path) -> None:
    write_record(root / "book" / "records", our_record(source_hash="b" * 64))
    write_experiment(root / "book" / "experiments", our_experiment(rows=[]))
    assert [line.split(" ", 1)[1] for line in problems_of_book(root / "book", root)] == [
        "has no measured row",
        "was measured by a package that no commit holds (source bbbbbbbbbbbb): commit first, then measure",
    ]
