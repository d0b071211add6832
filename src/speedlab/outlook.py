"""What each chapter will do on a machine, and how long it takes there, before anything is run. It measures nothing."""

from __future__ import annotations

import json
from typing import Any

from speedlab.cards import device_slug
from speedlab.device import Capabilities, adapt
from speedlab.ladder import NINE_STEPS, chapters
from speedlab.profile import Profile, get_profile
from speedlab.records.store import SUMMARIES, committed_root

# Seconds of a chapter where nobody has run one on such a device yet.
TYPICAL_CHAPTER_S = {"smoke": 45, "full": 120, "t4": 360}
UNKNOWN_CHAPTER_S = 120  # with a profile that is not in the table
FULL_SIZE_GIB = 30  # of GPU memory, which the chapters at full size need


def chapters_here(here: Capabilities, profile: Profile) -> list[dict[str, Any]]:
    """One row for each chapter: `chapter`, `rungs` (what becomes of each of its changes), `seconds` it should take.

    Each rung has `rung`, `runs` ("as asked", "with <value>" or "not available") and `reason`, None as asked.
    """
    known = _recorded_seconds(device_slug(here.gpu_name), profile.name)
    return [
        {
            "chapter": stem,
            "rungs": [rung_here(rung.key, here, profile) for rung in rungs],
            "seconds": known.get(stem, TYPICAL_CHAPTER_S.get(profile.name, UNKNOWN_CHAPTER_S)),
        }
        for stem, rungs in chapters().items()
    ]


def rung_here(key: str, here: Capabilities, profile: Profile) -> dict[str, Any]:
    """What becomes of the change of one rung of ladder nine-steps on this machine."""
    rung = NINE_STEPS.rung(key)
    recipe, substitutions = adapt(profile.recipe(NINE_STEPS, key), here)
    before = NINE_STEPS.before(key)
    below = adapt(profile.recipe(NINE_STEPS, before), here)[0] if before else None
    own = next((s for s in substitutions if s.field in rung.change), None)
    if own is None:
        return {"rung": key, "runs": "as asked", "reason": None}
    runs = "not available" if recipe == below else f"with {own.used}"
    return {"rung": key, "runs": runs, "reason": own.reason}


def outlook_lines(rows: list[dict[str, Any]]) -> list[str]:
    """One line for each chapter: its name, its minutes or seconds, and what does not run as asked."""
    width = max(len(row["chapter"]) for row in rows)
    lines = []
    for row in rows:
        others = [f"{rung['rung']} {rung['runs']}: {rung['reason']}" for rung in row["rungs"] if rung["reason"]]
        lines.append(f"{row['chapter']:<{width}}  {row['seconds']:>4.0f} s  {'; '.join(others) or 'as asked'}")
    return lines


def runtime_text(stem: str) -> str:
    """For the top of a chapter on Colab: the card, its formats and memory, and the minutes that it takes."""
    from speedlab.device import capabilities

    here = capabilities()
    profile = get_profile("auto", gpu_memory_bytes=here.gpu_memory_bytes)
    row = next((row for row in chapters_here(here, profile) if row["chapter"] == stem), None)
    seconds = row["seconds"] if row else TYPICAL_CHAPTER_S.get(profile.name, UNKNOWN_CHAPTER_S)
    lines = [_card(here), f"Profile {profile.name}: {profile.about}."]
    if here.device_type == "cpu":
        lines.append("Runtime > Change runtime type offers a GPU; without one a toy runs beside the records.")
    elif (here.gpu_memory_bytes or 0) < FULL_SIZE_GIB * 2**30:
        lines.append(f"Full size needs about {FULL_SIZE_GIB} GiB, so the batches are smaller here.")
    for rung in row["rungs"] if row else ():
        if rung["reason"]:
            lines.append(f"{rung['rung']}: {rung['runs']}, because {rung['reason']}.")
    minutes = max(1, round(seconds / 60))
    lines.append(f"This notebook takes about {'a minute' if minutes == 1 else f'{minutes} minutes'}.")
    return "\n".join(lines)


def _card(here: Capabilities) -> str:
    if here.capability is None:
        return f"No GPU here; {here.cores} CPU cores."
    formats = "bfloat16 and TF32 are native" if here.native_bfloat16 else "bfloat16 is only emulated, float16 is native"
    memory = (here.gpu_memory_bytes or 0) / 2**30
    return f"{here.gpu_name}, compute capability {'.'.join(map(str, here.capability))}, {memory:.1f} GiB; {formats}."


def _recorded_seconds(device: str, profile: str) -> dict[str, float]:
    """{chapter: seconds} of the committed batch run of this device, if it had this profile; empty where there is none.

    A file that cannot be read leaves only an estimate less exact, so it is passed over.
    """
    for name in SUMMARIES:
        try:
            run = json.loads((committed_root() / device / name).read_text(encoding="utf-8"))
            if run["profile"] == profile:
                return {chapter["chapter"]: chapter["seconds"] for chapter in run["chapters"] if chapter["seconds"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}
