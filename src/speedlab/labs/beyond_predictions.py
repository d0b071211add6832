"""The lab book of ladder "beyond": what each rung was predicted to save, before any was measured, and what it saved.

Predictions are for GPT-2 124M and 65,536 tokens in one step on an H200. They are not changed after the fact: a wrong
one stays, and a new one would get a date of its own. Outcomes are read from records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from speedlab.beyond import BEYOND
from speedlab.publishing.formatting import NOTHING
from speedlab.records.record import Record

DATE = "2026-11-29"
# What the arithmetic below starts from. A unit is one pass over N x C bfloat16 values, 65,536 x 768 x 2 bytes = 101 MB,
# at 3.8 TB/s: 26.5 microseconds. Rates and times of parts were measured apart on an H200 before this ladder existed.
BYTES_PER_S = 3.8e12
UNIT_MS = 65_536 * 768 * 2 / BYTES_PER_S * 1e3


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """saves_ms: milliseconds of one step against the rung that it stands on; below zero it costs. why: the sum."""

    saves_ms: float
    why: str


PREDICTIONS: dict[str, Prediction] = {
    "bfloat16_master": Prediction(
        saves_ms=4.6,
        why="pure bfloat16 ran 4.4 % faster than autocast; masters cost 14 bytes more for each of 124 M weights",
    ),
    "liger_loss": Prediction(
        saves_ms=2.6, why="measured before: 121.2 to 118.6 ms with Liger's kernel outside the graph",
    ),
    "in_place_loss": Prediction(
        saves_ms=3.2,
        why="generated kernels take 8.5 ms; 6.6 GB read once and written once are 3.5 ms at 3.8 TB/s, and half of the "
        "second reading misses the cache: 1.8 ms more",
    ),
    "sigmoid_gelu": Prediction(
        saves_ms=1.5, why="forward 4 ms for 8 units x 12 layers, which are 2.5 ms: the rest is arithmetic of tanh",
    ),
    "fused_gelu": Prediction(
        saves_ms=3.0,
        why="8 ms of GELU and 1.3 ms of bias sums (4 units x 12) become 8 + 12 units x 12 layers, 6.4 ms",
    ),
    "fused_residual": Prediction(
        saves_ms=1.9,
        why="8 units for each of 25 norms stay; away go passes for the norm's weight (2 units x 25) and for two biases "
        "(1 unit x 24)",
    ),
    "fused_qkv": Prediction(saves_ms=0.9, why="3 units x 12 layers for the bias gradient; the copy itself stays"),
    "one_pass_adamw": Prediction(
        saves_ms=0.6, why="12 of 40 bytes for each of 124 M weights are 0.4 ms; 149 casts are shorter than their gaps",
    ),
    "no_compiler": Prediction(
        saves_ms=-0.5, why="the sum of two embeddings, the first norm and the casts of small gradients run unfused",
    ),
    "flash_attention": Prediction(saves_ms=-9.9, why="25.5 ms alone, against 15.6 ms of cuDNN's kernel"),
    "coordinate_descent": Prediction(saves_ms=0.1, why="the generated kernels that are left take about 1 ms"),
    "no_mix_order_reduction": Prediction(saves_ms=0.0, why="no generated kernel with such a reduction is left"),
    "cuda_graphs": Prediction(saves_ms=0.4, why="about 430 kernels with gaps of about a microsecond"),
    "max_autotune": Prediction(saves_ms=0.0, why="the library's matmuls run at 635 to 777 TFLOP/s; others lose"),
    "double_batch": Prediction(saves_ms=0.5, why="half of AdamW's 0.9 ms, for 65,536 tokens"),
    "fp8_head": Prediction(
        saves_ms=3.2,
        why="5.1 TFLOP at 635 TFLOP/s are 8.0 ms; at 1,100 in 8 bits 4.6 ms, and 0.2 ms to scale and to round",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One line of the lab book. measured_ms: median saving for the tokens of the first rung; None: not measured."""

    rung: str
    title: str
    predicted_ms: float
    why: str
    measured_ms: float | None
    reason: str | None  # why it was not measured

    @property
    def verdict(self) -> str:
        """What the measurement says of the prediction: half a millisecond or a third of it is near enough."""
        if self.measured_ms is None:
            return self.reason or "not measured yet"
        off = self.measured_ms - self.predicted_ms
        if abs(off) <= max(0.5, abs(self.predicted_ms) / 3):
            return "as predicted"
        return "saves more" if off > 0 else "saves less"


def outcomes(records: Iterable[Record]) -> list[Outcome]:
    """The predictions in the order of the ladder beside what the records of one device and session say."""
    by_rung = {record.rung: record for record in records if record.ladder == BEYOND.name}
    lines = []
    for rung in BEYOND:
        prediction = PREDICTIONS.get(rung.key)
        if prediction is None:
            continue
        before, record = by_rung.get(BEYOND.before(rung.key) or ""), by_rung.get(rung.key)
        measured = None
        if before and record and before.step_ms and record.step_ms and record.status == "measured":
            tokens = BEYOND.start.tokens_per_step
            measured = _ms(before, tokens) - _ms(record, tokens)
        reason = record.reason if record and record.status != "measured" else None
        lines.append(
            Outcome(
                rung=rung.key,
                title=rung.title,
                predicted_ms=prediction.saves_ms,
                why=prediction.why,
                measured_ms=measured,
                reason=reason,
            )
        )
    return lines


def predicted_total_ms() -> float:
    """Milliseconds that the stacked rungs were predicted to save together."""
    return sum(PREDICTIONS[rung.key].saves_ms for rung in BEYOND if rung.stacked and rung.change)


def lab_book(records: Iterable[Record]) -> str:
    """The lab book as a Markdown table, one line for each prediction."""
    lines = [
        f"| rung | predicted on {DATE}, ms | measured, ms | outcome | the sum behind the prediction |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for line in outcomes(records):
        measured = NOTHING if line.measured_ms is None else f"{line.measured_ms:+.1f}"
        lines.append(f"| {line.title} | {line.predicted_ms:+.1f} | {measured} | {line.verdict} | {line.why} |")
    return "\n".join(lines) + "\n"


def _ms(record: Record, tokens: int) -> float:
    """The median step of a record, scaled to this number of tokens."""
    return median(record.step_ms) * tokens / record.tokens_per_step
