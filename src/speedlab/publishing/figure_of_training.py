"""The losses of one training as a drawing. It knows numbers, not checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from speedlab.publishing.plotting import LOST, MEASURED, RULE, legend_below, new_chart, styled


def training_figure(losses: Sequence[float], validation: Sequence[tuple[int, float]], *, title: str) -> Figure:
    """Loss of each step in nats, and that of the held-out text where it was computed.

    validation: (steps done, nats).
    """
    last = f"; validation {validation[-1][1]:.3f} at step {validation[-1][0]}" if validation else ""
    alt = f"Loss from {losses[0]:.3f} to {losses[-1]:.3f} nats over {len(losses)} steps{last}."
    with styled():
        figure, (axis,) = new_chart(8, title=title, alt=alt)
        axis.plot(range(1, len(losses) + 1), losses, color=MEASURED, linewidth=1.0, label="training, each step")
        if validation:
            steps, values = zip(*validation, strict=True)
            axis.plot(steps, values, color=LOST, marker="o", markersize=4, label="validation")
        axis.grid(color=RULE, linewidth=0.6)
        axis.set_xlabel("optimizer steps")
        axis.set_ylabel("loss in nats per token")
        legend_below(figure, axis, 2)
    return figure
