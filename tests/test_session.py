"""A whole session on a CPU: its rows, what they share, and how it takes failures of single rungs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data_helper import one_line_error
from model_helper import CPU, short_collections

from speedlab.device import Capabilities
from speedlab.errors import BadInput, NotAvailable
from speedlab.ladder import LADDERS, NINE_STEPS, SIX_STEPS
from speedlab.measuring import session as module
from speedlab.measuring import variant
from speedlab.measuring.memory import PeakMemory
from speedlab.measuring.session import Session, run_ladder
from speedlab.measuring.variant import Measured
from speedlab.profile import PROFILES, SMOKE
from speedlab.recipe import Recipe, changes
from speedlab.records.store import read_record, read_records

MACHINE = Capabilities(device_type="cpu", cores=2)
EAGER = ["baseline", "causal_mask", "tensor_cores", "fused_adamw", "pinned_memory"]


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory):
    """A cache and a corpus of this module's own, and no session of an outer run."""
    folder = tmp_path_factory.mktemp("session")
    with short_collections(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEEDLAB_CACHE", str(folder / "cache"))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.delenv("SPEEDLAB_SESSION", raising=False)
        yield folder


@pytest.fixture(scope="module")
def corpus(surroundings):
    path = surroundings / "verses.txt"
    path.write_text("".join(f"{n} green bottles, {n * 7} more behind the wall.\n" for n in range(3_000)))
    return str(path)


@pytest.fixture(scope="module")
def smoke(corpus, surroundings):
    """The eager rungs of the smoke profile, measured once: records, events, folder."""
    events, out = [], surroundings / "out"
    records = run_ladder("nine-steps", profile="smoke", corpus=corpus, rungs=EAGER, out=out, report=events.append)
    return records, events, out


def test_every_rung_is_a_row_in_order(smoke):
    records, _, _ = smoke
    assert [record.rung for record in records] == EAGER
    assert [record.status for record in records] == [
        "measured", "measured", "unavailable", "measured", "not_applicable",
    ]  # fmt: skip
    assert "TF32" in records[2].reason and "CPU" in records[2].reason
    assert "GPU" in records[4].reason and not records[2].step_ms and not records[4].step_ms


def test_before_and_after_share_machine_session_corpus_and_tokens(smoke):
    records, _, _ = smoke
    for name in ("session", "machine", "corpus", "ceilings", "source_hash", "profile", "device"):
        assert len({json.dumps(getattr(record, name)) for record in records}) == 1, name
    assert records[0].device == "cpu" and records[0].machine["gpu"] is None
    assert records[0].corpus["name"].endswith("verses.txt") and records[0].corpus["tokens"] > 10_000
    measured = [record for record in records if record.status == "measured"]
    assert {record.tokens_per_step for record in measured} == {4 * 64}
    # The first loss comes from the same weights and the same batch, before any update.
    assert len({record.losses[0] for record in measured}) == 1


def test_measured_rows_hold_raw_samples_of_the_plan_and_nothing_that_a_cpu_cannot_know(smoke):
    for record in smoke[0]:
        if record.status != "measured":
            continue
        assert len(record.step_ms) == SMOKE.steps and len(record.losses) == SMOKE.contract_steps
        assert record.losses[0] == pytest.approx(6.9, abs=0.1)  # ln 1,001
        assert record.peak_allocated_bytes is None and record.peak_reserved_bytes is None
        assert record.compile_s is None and record.recompiles == 0 and record.predicted is None
        assert "matmul, ordinary" in {kernel["kind"] for kernel in record.kernels}
        assert set(record.ceilings["matmul_flops_per_s"]) == {"float32"}
        assert changes(Recipe.from_dict(record.contract_recipe), Recipe.from_dict(record.recipe)) == {}


def test_contracts_are_judged_against_the_rung_below_that_this_machine_has(smoke):
    by_rung = {record.rung: record for record in smoke[0]}
    assert by_rung["baseline"].contract_verdict == "reference"
    mask = by_rung["causal_mask"]
    assert mask.contract_verdict == "passed" and mask.contract_detail["largest_difference"] == 0.0
    assert mask.contract_detail["losses_before"] == by_rung["baseline"].losses
    assert by_rung["fused_adamw"].contract_detail["before"] == "causal_mask"  # no TF32 on a CPU
    assert by_rung["tensor_cores"].contract_verdict is None


def test_substitutions_stay_on_the_rungs_above(smoke):
    by_rung = {record.rung: record for record in smoke[0]}
    assert by_rung["causal_mask"].substitutions == []
    [substitution] = by_rung["fused_adamw"].substitutions
    assert (substitution["field"], substitution["asked"], substitution["used"]) == (
        "matmul_precision", "high", "highest",
    )  # fmt: skip
    assert by_rung["fused_adamw"].recipe["matmul_precision"] == "highest"


def test_drift_is_stored_on_the_first_row_alone(smoke):
    first, *rest = smoke[0]
    assert len(first.drift_step_ms) == SMOKE.steps
    assert all(record.drift_step_ms is None for record in rest)


def test_what_is_on_disk_is_what_was_returned(smoke):
    records, _, out = smoke
    paths = [out / "cpu" / "nine-steps" / f"{key}.json" for key in EAGER]
    assert [read_record(path) for path in paths] == records
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(paths)


def test_progress_counts_every_rung_and_names_it(smoke):
    _, events, _ = smoke
    begun = [event for event in events if event.kind == "rung"]
    done = [event for event in events if event.kind == "row"]
    assert [event.rung for event in begun] == [event.rung for event in done] == EAGER
    assert [event.done for event in begun] == [0, 1, 2, 3, 4] and [event.done for event in done] == [1, 2, 3, 4, 5]
    assert {event.total for event in begun + done} == {5}
    [estimate] = [event for event in events if event.kind == "estimate"]
    assert "min" in estimate.text and events.index(estimate) < events.index(begun[0])


def test_a_second_session_never_mixes_with_the_records_of_the_first(smoke, corpus):
    _, _, out = smoke
    before = {path: path.read_bytes() for path in out.rglob("*.json")}
    call = lambda: run_ladder("nine-steps", profile="smoke", corpus=corpus, rungs=["baseline"], out=out)  # noqa: E731
    one_line_error(BadInput, call, "session")
    assert before == {path: path.read_bytes() for path in out.rglob("*.json")}


# From here on steps are made up, and what is tested is how a session takes them.


@pytest.fixture
def made_up(monkeypatch):
    """Measurements without steps. `faults` maps a test on the recipe to what happens instead: an error or losses."""
    faults = []

    def outcome(recipe, steps):
        for applies, fault in faults:
            if applies(recipe):
                if isinstance(fault, list):
                    return fault
                raise fault
        return [6.9, 6.5, 6.1][:steps]

    def measure_variant(recipe, weights, tokens, plan, place, *, kernels=True, long_energy=False):
        return Measured(
            step_ms=[10.0] * plan.steps,
            losses=outcome(recipe, plan.contract_steps),
            compile_s=1.0 if recipe.compile != "off" else None,
            compile_cache="cold" if recipe.compile != "off" else None,
            peak=PeakMemory(None, None),
            recompiles=0,
            kernels=[{"name": "aten::mm", "kind": "matmul, ordinary", "calls": 1.0, "time_us": 5.0}],
        )

    monkeypatch.setattr(variant, "measure_variant", measure_variant)
    monkeypatch.setattr(
        variant, "contract_losses", lambda recipe, weights, tokens, steps, place: outcome(recipe, steps)
    )
    return faults


def session(corpus, **options):
    made = Session(SMOKE, MACHINE, corpus=corpus, **options)
    made.ceilings = {"matmul_flops_per_s": {"float32": 1e11}, "copy_bytes_per_s": 1e10, "utc": "2026-11-29T12:00:00Z"}
    return made


def rows(made, keys, ladder=NINE_STEPS):
    return {record.rung: record for record in made.measure(ladder, [ladder.rung(key) for key in keys])}


def native(recipe):
    return recipe.layers == "native"


def only_native(recipe):
    return recipe.layers == "native" and recipe.attention == "plain"


BELOW_COMPILE = [key for key in NINE_STEPS.keys if key not in ("torch_compile", "padded_vocab", "batch_size")][:-1]


def test_a_rung_that_fails_is_an_error_row_and_the_ladder_goes_on(made_up, corpus, tmp_path):
    made_up.append((only_native, RuntimeError("the kernel broke\nwith a long tail\nof lines")))
    events = []
    found = rows(session(corpus, out=tmp_path, report=events.append), BELOW_COMPILE)
    failed = found["native_layers"]
    assert failed.status == "error" and failed.reason == "RuntimeError: the kernel broke"
    assert failed.step_ms == [] and failed.contract_verdict is None
    assert list(found) == BELOW_COMPILE
    assert found["bfloat16"].status == found["merged_qkv"].status == "measured"
    text = (tmp_path / "errors" / "nine-steps-native_layers.txt").read_text()
    assert "Traceback" in text and "of lines" in text
    assert read_record(tmp_path / "cpu" / "nine-steps" / "native_layers.json") == failed


def test_a_rung_without_memory_is_an_out_of_memory_row_with_a_hint(made_up, corpus):
    made_up.append((lambda recipe: recipe.micro_batch == 16, torch.OutOfMemoryError("CUDA out of memory. Tried 8 GiB")))
    found = rows(session(corpus), ["padded_vocab", "batch_size"])
    assert found["padded_vocab"].status == "measured"
    assert found["batch_size"].status == "out_of_memory"
    assert "memory" in found["batch_size"].reason and "t4" in found["batch_size"].reason


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("broke")])
def test_a_rung_that_fits_is_measured_although_the_one_below_it_does_not(made_up, corpus, error):
    made_up.append((lambda recipe: recipe.attention == "plain", error))
    found = rows(session(corpus), ["baseline", "native_layers", "flash_attention", "merged_qkv"])
    assert found["baseline"].status == found["native_layers"].status != "measured"
    flash = found["flash_attention"]
    assert flash.status == "measured" and len(flash.step_ms) == SMOKE.steps
    assert flash.contract_verdict == "reference" and "compared with nothing" in flash.contract_detail["note"]
    assert found["merged_qkv"].contract_verdict == "passed"
    assert found["merged_qkv"].contract_detail["before"] == "flash_attention"


def test_a_rung_is_compared_with_the_nearest_one_below_that_runs(made_up, corpus):
    made_up.append((only_native, RuntimeError("broke")))
    found = rows(session(corpus), ["bfloat16", "native_layers", "flash_attention"])
    assert found["native_layers"].status == "error"
    assert found["flash_attention"].status == "measured" and found["flash_attention"].notes == []
    assert found["flash_attention"].contract_detail["before"] == "bfloat16"


def test_a_broken_contract_is_a_row_that_keeps_its_samples(made_up, corpus):
    made_up.append((lambda recipe: recipe.causal_mask == "on_the_fly", [6.9, 6.5, 6.1 + 1e-7]))
    found = rows(session(corpus), ["baseline", "causal_mask", "fused_adamw"])
    broken = found["causal_mask"]
    assert broken.status == "contract_failed" and broken.contract_verdict == "failed"
    assert broken.step_ms and "baseline" in broken.reason and broken.reason == broken.contract_detail["note"]
    assert found["fused_adamw"].status == "measured"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_losses_that_are_not_finite_fail_their_rung_and_do_not_end_the_ladder(made_up, corpus, bad):
    made_up.append(
        (lambda recipe: recipe.causal_mask == "on_the_fly" and recipe.optimizer == "default", [6.9, bad, 6.0])
    )
    found = rows(session(corpus), ["baseline", "causal_mask", "fused_adamw", "native_layers"])
    assert found["causal_mask"].status == "contract_failed" and "step 2" in found["causal_mask"].reason
    assert found["causal_mask"].losses == [6.9]
    assert found["fused_adamw"].status == "contract_failed"  # there is nothing to compare it with
    assert found["native_layers"].status == "measured"


def test_an_interrupt_loses_nothing_that_was_written(made_up, corpus, tmp_path):
    made_up.append((native, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        rows(session(corpus, out=tmp_path), ["baseline", "causal_mask", "native_layers"])
    assert [record.rung for record in read_records(tmp_path)] == ["baseline", "causal_mask"]


@pytest.mark.parametrize("error", [RuntimeError("late"), torch.OutOfMemoryError("late")])
def test_a_failure_after_all_rungs_are_measured_loses_no_row(made_up, corpus, monkeypatch, error):
    monkeypatch.setattr(variant, "profile_variant", lambda *args, **options: (_ for _ in ()).throw(error))
    measure = variant.measure_variant

    def without_kernels(recipe, weights, tokens, plan, place, *, kernels=True, long_energy=False):
        if plan.contract_steps == 0:
            raise error  # the first rung once more, for drift
        return replace(measure(recipe, weights, tokens, plan, place), kernels=[])

    monkeypatch.setattr(variant, "measure_variant", without_kernels)
    found = rows(session(corpus), ["baseline", "causal_mask"])
    assert [record.status for record in found.values()] == ["measured", "measured"]
    assert found["baseline"].drift_step_ms is None and found["baseline"].kernels == []
    assert [note.split(":")[0] for note in found["baseline"].notes] == [
        "timing again for drift failed", "looking at the kernels failed",
    ]  # fmt: skip


def test_recompilations_are_a_note_on_the_row(made_up, corpus, monkeypatch):
    measure = variant.measure_variant
    monkeypatch.setattr(variant, "measure_variant", lambda *a, **o: replace(measure(*a, **o), recompiles=3))
    found = rows(session(corpus), ["baseline"])
    assert found["baseline"].recompiles == 3 and "3 recompilations" in found["baseline"].notes[0]


def test_rungs_of_the_compiler_say_why_they_are_missing(made_up, corpus):
    machine = replace(MACHINE, compiler_problem="torch.compile needs a C++ compiler")
    made = Session(SMOKE, machine, corpus=corpus)
    made.ceilings = session(corpus).ceilings
    found = rows(made, SIX_STEPS.keys, SIX_STEPS)
    for key in ("torch_compile", "torch_compile_max_autotune"):
        assert found[key].status == "unavailable" and "C++ compiler" in found[key].reason
    assert found["flash_attention"].contract_detail["before"] == "bfloat16_autocast"
    with_compiler = rows(session(corpus), SIX_STEPS.keys, SIX_STEPS)
    assert with_compiler["torch_compile"].status == "measured"
    assert with_compiler["torch_compile_max_autotune"].status == "not_applicable"


def test_a_session_of_a_batch_run_is_shared_and_others_are_random(corpus, monkeypatch):
    assert session(corpus).id != session(corpus).id
    monkeypatch.setenv("SPEEDLAB_SESSION", "abcdef012345")
    assert session(corpus).id == "abcdef012345"


def test_steps_of_the_caller_replace_those_of_the_profile(made_up, corpus):
    assert len(rows(session(corpus, steps=4), ["baseline"])["baseline"].step_ms) == 4
    one_line_error(BadInput, lambda: session(corpus, steps=-1), "steps", "-1")


@pytest.mark.parametrize("profile", [name for name in PROFILES if PROFILES[name].publishable])
def test_profiles_of_real_size_need_a_gpu(profile, corpus):
    one_line_error(NotAvailable, lambda: Session(PROFILES[profile], MACHINE, corpus=corpus), profile, "GPU", "smoke")


def test_a_corpus_shorter_than_a_batch_ends_the_session_before_anything_is_written(surroundings, tmp_path):
    short = surroundings / "short.txt"
    short.write_text("One line.\n")
    call = lambda: run_ladder(  # noqa: E731
        "nine-steps", profile="smoke", corpus=str(short), rungs=["baseline"], out=tmp_path
    )
    one_line_error(BadInput, call, "tokens", "longer corpus")
    assert not list(tmp_path.rglob("*.json"))


def test_energy_and_flags_of_the_window_are_in_the_record(made_up, corpus, monkeypatch):
    measure, flag = variant.measure_variant, "clocks throttled in the timed window: power brake"
    told = {"energy_j": 12.5, "notes": [flag], "recompiles": 1}
    monkeypatch.setattr(variant, "measure_variant", lambda *a, **o: replace(measure(*a, **o), **told))
    record = rows(session(corpus), ["baseline"])["baseline"]
    assert record.energy_j == 12.5
    assert len(record.notes) == 2 and "1 recompilation" in record.notes[0] and record.notes[1] == flag


def test_unknown_names_are_refused_before_anything_is_measured(monkeypatch, corpus):
    monkeypatch.setattr(module, "capabilities", lambda: MACHINE)
    monkeypatch.setattr(module, "Session", lambda *args, **options: pytest.fail("a session was started"))
    one_line_error(BadInput, lambda: run_ladder("seven-steps", corpus=corpus), "'seven-steps'", *LADDERS)
    one_line_error(BadInput, lambda: run_ladder("nine-steps", rungs=["flash"]), "'flash'", *NINE_STEPS.keys)
    one_line_error(BadInput, lambda: run_ladder("nine-steps", profile="huge"), "'huge'", *PROFILES)


def test_rungs_are_measured_in_the_order_of_the_ladder(made_up, corpus):
    records = run_ladder("nine-steps", profile="smoke", corpus=corpus, rungs=["fused_adamw", "baseline"], steps=2)
    assert [record.rung for record in records] == ["baseline", "fused_adamw"]


def test_records_name_no_folder_user_or_host(smoke):
    text = json.dumps([record.to_dict() for record in smoke[0]])
    for private in (str(Path.home()), os.uname().nodename, str(smoke[2])):
        assert private not in text
    assert CPU.type in text
