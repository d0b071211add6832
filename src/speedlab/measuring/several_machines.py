"""One recipe on several machines: what torchrun starts on each of them, `-m speedlab.measuring.several_machines`.

The processes find each other by torchrun's rendezvous; rank 0 alone writes the record. How torchrun is called on each
machine, by hand or by Slurm, is in chapter 10. For one machine there is `speedlab scaling`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from speedlab.cards import device_slug
from speedlab.device import capabilities
from speedlab.measuring.rank import Rank
from speedlab.measuring.variant import contract_recipe, measure_variant
from speedlab.measuring.workbench import Workbench
from speedlab.profile import get_profile
from speedlab.records.record import REMARK, Record
from speedlab.records.store import write_record
from speedlab.rung import Ladder, Rung
from speedlab.scaling_plan import base_recipe
from speedlab.training.distributed import Place, process_group

LADDER = "scaling-machines"


def measure(place: Place, *, recipe: str, profile: str, corpus: str, out: Path) -> Record | None:
    """Time one recipe on all processes of the group, called by each of them. The record on rank 0, None elsewhere.

    Every machine needs the same package and the same corpus; only rank 0's needs the folder `out`.
    """
    machine = capabilities()
    bench = Workbench(get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes), machine, corpus=corpus)
    scaled = bench.scaled(base_recipe(recipe)).but(data_parallel=place.world_size)
    rank = Rank(corpus, bench.profile.name, place)
    measured = measure_variant(scaled, rank.weights_for(scaled), rank.tokens, bench.plan, place, long_energy=True)
    if place.rank != 0:
        return None
    key = f"data_parallel_{place.world_size}"
    rung = Rung(key=key, title=f"{place.world_size} processes", contract="training")
    ladder = Ladder(name=LADDER, title="Several machines", start=scaled, rungs=(rung,))
    base = bench.base_record(ladder, rung, scaled, ())
    record = Record(
        **base | {"device": device_slug(machine.gpu_name, place.world_size if machine.gpu_name else 1)},
        status="measured",
        contract_recipe=contract_recipe(scaled).as_dict(),
        tokens_per_step=scaled.tokens_per_step,
        step_ms=measured.step_ms,
        losses=measured.losses,
        compile_s=measured.compile_s,
        compile_cache=measured.compile_cache,
        peak_allocated_bytes=measured.peak.allocated_bytes,
        peak_reserved_bytes=measured.peak.reserved_bytes,
        energy_j=measured.energy_j,
        energy_steps=measured.energy_steps,
        recompiles=measured.recompiles,
        kernels=measured.kernels,
        notes=[*measured.notes, f"{REMARK}{place.world_size // _local_processes()} machines"],
    )
    write_record(out, record)
    return record


def _local_processes() -> int:
    """Processes on each machine, as torchrun says."""
    return int(os.environ["LOCAL_WORLD_SIZE"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="published", help="published, plain, fastest, or LADDER/RUNG")
    parser.add_argument("--profile", default="auto")
    parser.add_argument("--corpus", default="standard-library")
    parser.add_argument("--out", type=Path, required=True, help="rank 0 writes the record below this folder")
    asked = vars(parser.parse_args(arguments))
    with process_group() as place:
        record = measure(place, **asked)
    if record is not None:
        print(f"{record.device}/{record.ladder}/{record.rung}", flush=True)


if __name__ == "__main__":
    main()
