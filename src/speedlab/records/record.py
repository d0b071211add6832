"""What one measurement of one rung is, and which values it may hold. It knows nothing of files or of timing.

Raw samples only: medians, ratios and utilization are computed by whoever reads a record.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from speedlab.errors import BadInput
from speedlab.profile import PROFILES
from speedlab.recipe import Recipe
from speedlab.records import check, communication
from speedlab.records.check import Check, refuse
from speedlab.rung import CONTRACTS
from speedlab.work import model_flops_utilization

SCHEMA = 1  # raised when the fields change
# Raised when the measuring rule changes; everything is then measured again. What each version brought:
METHODS = {
    1: "the rules of this page, with the energy of the timed window, however short",
    2: "energy is counted over at least two seconds of steps, apart from the timed window where that one is shorter; "
    "steps that the gradient scaler of float16 skips are counted and flag the row",
}
METHOD = max(METHODS)

STATUSES = ("measured", "unavailable", "not_applicable", "out_of_memory", "contract_failed", "error")
VERDICTS = ("reference", "passed", "differs", "failed")
ATTENTION_KINDS = ("attention, flash", "attention, cudnn", "attention, efficient", "attention, math", "attention, cpu")
KERNEL_KINDS = (
    "matmul, Tensor Cores", "matmul, ordinary", *ATTENTION_KINDS, "fused", "normalization", "softmax and loss",
    "element-wise", "reduction", "copy", "optimizer", "communication", "embedding", "other",
)  # fmt: skip
# How a note opens that flags nothing: it tells more about the window and casts no doubt on it.
REMARK = "remark: "
# Tables of `ceilings` at the session's own shapes, which earlier records lack.
SHAPE_RATES = ("gemm_flops_per_s", "attention_flops_per_s", "pass_bytes_per_s")
# Fewer samples give quartiles that one slow step can move.
FEWEST_GPU_STEPS = 30

_name = check.matching(r"[a-z0-9]+([-_][a-z0-9]+)*", "lower-case words and digits joined by - or _")
_positive = check.number(above=True)
_optional_text = check.optional(check.text)

# One check for each field of a record.
CHECKS: dict[str, Check] = {
    "schema": check.whole(minimum=1),
    "method": check.whole(minimum=1),
    "session": check.matching(r"[A-Za-z0-9][A-Za-z0-9._-]{3,63}", "a random id of 4 to 64 letters and digits"),
    "device": _name,
    "ladder": _name,
    "rung": _name,
    "profile": check.one_of(PROFILES),
    "status": check.one_of(STATUSES),
    "reason": _optional_text,
    "recipe": check.json_object,
    "contract_recipe": check.optional(check.json_object),
    "substitutions": check.list_of(
        check.fields_of(
            {"field": check.text, "asked": check.any_json, "used": check.any_json, "reason": check.text},
        )
    ),
    "step_ms": check.list_of(_positive),
    "tokens_per_step": check.optional(check.whole(minimum=1)),
    "compile_s": check.optional(check.number()),
    "compile_cache": check.optional(check.one_of(("cold", "warm"))),
    "peak_allocated_bytes": check.optional(check.whole(minimum=1)),
    "peak_reserved_bytes": check.optional(check.whole(minimum=1)),
    "energy_j": check.optional(_positive),
    "energy_steps": check.optional(check.whole(minimum=1)),
    "skipped_steps": check.optional(check.table_of(check.whole())),
    "losses": check.list_of(check.number()),
    "contract": check.one_of(CONTRACTS),
    "contract_verdict": check.optional(check.one_of(VERDICTS)),
    "contract_detail": check.optional(check.json_object),
    "kernels": check.list_of(
        check.fields_of(
            {
                "name": check.text,
                "kind": check.one_of(KERNEL_KINDS),
                "calls": check.number(),
                "time_us": check.number(),
            },
        )
    ),
    "ceilings": check.optional(
        check.fields_of(
            {"matmul_flops_per_s": check.table_of(_positive), "copy_bytes_per_s": _positive, "utc": check.utc_time},
            dict.fromkeys(SHAPE_RATES, check.table_of(_positive)) | {"launch_s": _positive},
        )
    ),
    "predicted": check.optional(
        check.fields_of(
            {"step_ms": _positive, "bound_by": check.text, "parts_ms": check.table_of(check.number())},
            {"utc": check.utc_time},
        )
    ),
    "machine": check.fields_of(
        {
            "machine_id": check.matching(r"[0-9a-f]{12}", "12 hexadecimal digits"),
            "gpu": _optional_text,
            "gpus": check.whole(),
            "torch": _optional_text,
        },
        {
            "capability": check.optional(check.list_of(check.whole())),
            "gpu_memory_bytes": check.optional(check.whole(minimum=1)),
            "multiprocessors": check.optional(check.whole(minimum=1)),
            "driver": _optional_text,
            "cuda": _optional_text,
            "cudnn": _optional_text,
            "triton": _optional_text,
            "python": _optional_text,
            "cpu": _optional_text,
            "cores": check.optional(check.whole(minimum=1)),
            "os": _optional_text,
            "power_limit_w": check.optional(check.number()),
            "memory_limit_bytes": check.optional(check.whole(minimum=1)),
        },
    ),
    "corpus": check.optional(
        check.fields_of(
            {
                "name": check.text,
                "sha256": check.matching(r"[0-9a-f]{64}", "64 hexadecimal digits"),
                "tokens": check.whole(minimum=1),
            }
        )
    ),
    "communication": communication.CHECK,
    "recompiles": check.whole(),
    "drift_step_ms": check.optional(check.list_of(_positive)),
    "notes": check.list_of(check.text),
    "source_hash": check.matching(r"[0-9a-f]{64}", "64 hexadecimal digits"),
    "commit": check.optional(check.matching(r"[0-9a-f]{7,64}", "a commit hash")),
    "utc": check.utc_time,
}
# Fields that came later than schema 1: records without them are as good, and are written back without them.
LATER = ("energy_j", "energy_steps", "skipped_steps", "communication")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One rung measured once on one device. Making one checks every value; `BadInput` names the field that is wrong.

    recipe: what ran, or what would have run; contract_recipe: the same with dropout off, for the comparison.
    step_ms: time of each step in ms, at least 30 on a GPU. energy_j: joules that the GPUs of all processes took for
    `energy_steps` steps (None: for those of step_ms); None where no counter was read. skipped_steps: {"contract",
    "window", "curve": steps of that run without an update}, where float16 is scaled. losses: of the contract run, in
    nats, one a step. kernels: [{name, kind, calls, time_us}] of one step. communication: see that module. notes: flags,
    and remarks that open with `REMARK`. reason: why the status is not "measured".
    """

    session: str
    device: str
    ladder: str
    rung: str
    profile: str
    status: str
    reason: str | None = None
    recipe: dict[str, Any]
    contract_recipe: dict[str, Any] | None = None
    substitutions: list[dict[str, Any]] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    tokens_per_step: int | None = None
    compile_s: float | None = None
    compile_cache: str | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    energy_j: float | None = None
    energy_steps: int | None = None
    skipped_steps: dict[str, int] | None = None
    losses: list[float] = field(default_factory=list)
    contract: str
    contract_verdict: str | None = None
    contract_detail: dict[str, Any] | None = None
    kernels: list[dict[str, Any]] = field(default_factory=list)
    ceilings: dict[str, Any] | None = None
    predicted: dict[str, Any] | None = None
    communication: dict[str, Any] | None = None
    machine: dict[str, Any]
    corpus: dict[str, Any] | None = None
    recompiles: int = 0
    drift_step_ms: list[float] | None = None
    notes: list[str] = field(default_factory=list)
    source_hash: str
    commit: str | None = None
    utc: str
    schema: int = SCHEMA
    method: int = METHOD

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise refuse("schema", self.schema, f"{SCHEMA}, the only one that this version reads")
        for name, check_value in CHECKS.items():
            check_value(name, getattr(self, name))
        if self.method > METHOD:
            raise refuse("method", self.method, f"at most {METHOD}: a newer speedlab measured this")
        self._check_recipes()
        self._check_status()
        self._check_memory()
        self._check_speed()

    def _check_recipes(self) -> None:
        for name in ("recipe", "contract_recipe"):
            values = getattr(self, name)
            if values is not None:
                try:
                    Recipe.from_dict(values)
                except BadInput as error:
                    raise BadInput(f"record field {name}: {error}") from None

    def _check_status(self) -> None:
        if self.status == "measured":
            fewest = 1 if self.on_cpu else FEWEST_GPU_STEPS
            if len(self.step_ms) < fewest:
                raise BadInput(
                    f"record field step_ms holds {len(self.step_ms)} samples: a measured row on "
                    f"{self.device} needs at least {fewest}"
                )
            if self.tokens_per_step is None:
                raise refuse("tokens_per_step", None, "given when the status is measured")
        elif self.reason is None:
            raise refuse("reason", None, f"given when the status is {self.status}")
        detail = self.contract_detail or {}
        difference, tolerance = detail.get("largest_difference"), detail.get("tolerance")
        if self.contract_verdict == "passed" and None not in (difference, tolerance) and difference > tolerance:
            raise refuse(
                "contract_verdict", "passed", f"failed: the losses differ by {difference}, {tolerance} is allowed"
            )
        if (self.contract_verdict == "failed") != (self.status == "contract_failed"):
            raise refuse(
                "contract_verdict", self.contract_verdict,
                f"failed exactly when the status is contract_failed; the status is {self.status}",
            )  # fmt: skip

    def _check_memory(self) -> None:
        allocated, reserved = self.peak_allocated_bytes, self.peak_reserved_bytes
        if self.on_cpu != (self.machine["gpu"] is None):
            raise refuse("device", self.device, f"cpu exactly when machine.gpu is null; it is {self.machine['gpu']!r}")
        if self.on_cpu:
            for name, value in (("peak_allocated_bytes", allocated), ("peak_reserved_bytes", reserved)):
                if value is not None:
                    raise refuse(name, value, "null on a CPU, where the CUDA allocator counts nothing")
        if allocated is not None and reserved is not None and allocated > reserved:
            raise refuse("peak_allocated_bytes", allocated, f"at most peak_reserved_bytes, {reserved}")
        total = self.machine.get("gpu_memory_bytes")
        if reserved is not None and total is not None and reserved > total:
            raise refuse("peak_reserved_bytes", reserved, f"at most the memory of the card, {total}")

    def _check_speed(self) -> None:
        recipe = Recipe.from_dict(self.recipe)
        if self.tokens_per_step is not None and self.tokens_per_step != recipe.tokens_per_step:
            raise refuse("tokens_per_step", self.tokens_per_step, f"{recipe.tokens_per_step}, what the recipe makes")
        if self.step_ms and self.tokens_per_step is not None:
            tokens_per_s = self.tokens_per_step * 1e3 / statistics.median(self.step_ms)
            mfu = model_flops_utilization(recipe, tokens_per_s=tokens_per_s, gpu=self.machine["gpu"])
            if mfu is not None and mfu > 1:
                raise BadInput(
                    f"record field step_ms is impossible: its median gives an MFU of {mfu:.2f}, "
                    f"and {self.machine['gpu']} cannot exceed 1"
                )

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, schema and method first."""
        values = asdict(self)
        return {name: values[name] for name in CHECKS if values[name] is not None or name not in LATER}

    @classmethod
    def from_dict(cls, values: Any, *, source: str | None = None) -> Record:
        """The record with these values. `source`, a file name, opens the message of every error."""
        try:
            return cls(**_checked_names(values))
        except BadInput as error:
            if source is None:
                raise
            raise BadInput(f"{source}: {error}") from None


def _checked_names(values: Any) -> Mapping[str, Any]:
    """`values`, after making sure that it is an object of this schema with exactly the fields of a record."""
    if not isinstance(values, dict):
        raise BadInput(f"a record is a JSON object, not {type(values).__name__}")
    if values.get("schema") != SCHEMA:
        raise refuse("schema", values.get("schema"), f"{SCHEMA}, the only one that this version reads")
    known = [f.name for f in fields(Record)]
    for name in values:
        if name not in known:
            raise BadInput(f"record field {name} is unknown: a record of schema {SCHEMA} holds {', '.join(CHECKS)}")
    for name in CHECKS:
        if name not in values and name not in LATER:
            raise BadInput(f"record field {name} is missing")
    return values
