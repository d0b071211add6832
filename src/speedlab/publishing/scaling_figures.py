"""The model of many GPUs as a figure, marked as a model, with measured points where there are any. No records here."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from speedlab.publishing.plotting import LOST, MEASURED, RULE, SAVED, new_chart, styled
from speedlab.scaling_model import Link, Step, strong_efficiency, weak_efficiency

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHOWN = (1, 8, 64, 512)


def model_figure(
    weak: Step, strong: Step, links: dict[str, Link], measured: Sequence[tuple[int, float]] = ()
) -> Figure:
    """Share of one GPU's speed that each keeps, by number of GPUs: the batch growing with them, and divided.

    links: by name, the first drawn whole and the others dashed. measured: (GPUs, share), drawn as points on the left.
    """
    told = "; ".join(
        f"{name}: {100 * weak_efficiency(weak, 512, link):.0f} % growing, "
        f"{100 * strong_efficiency(strong, 512, link):.0f} % divided"
        for name, link in links.items()
    )
    alt = f"A model, not a measurement. Speed that each GPU keeps on 512 GPUs. {told}."
    with styled():
        figure, axes = new_chart(8, title="A model: what each GPU keeps of its speed", alt=alt, columns=2)
        for axis, efficiency, step, title in (
            (axes[0], weak_efficiency, weak, "each GPU brings its own batch"),
            (axes[1], strong_efficiency, strong, "one batch of 512 sequences, divided"),
        ):
            for (name, link), style, colour in zip(links.items(), ("-", "--", ":"), (SAVED, LOST, RULE), strict=False):
                shares = [100 * efficiency(step, gpus, link) for gpus in GPUS]
                axis.plot(GPUS, shares, linestyle=style, color=colour, linewidth=1.6, label=f"model, {name}")
            axis.set_xscale("log", base=2)
            axis.set_xticks(SHOWN, [str(gpus) for gpus in SHOWN])
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_ylim(0, 105)
            axis.set_xlabel("GPUs")
            axis.set_title(title, fontsize=9, loc="left")
            axis.grid(color=RULE, linewidth=0.6)
        axes[0].set_ylabel("% of one GPU's speed")
        if measured:
            counts, shares = zip(*measured, strict=True)
            percents = [100 * share for share in shares]
            axes[0].plot(counts, percents, "o", color=MEASURED, markersize=6, label="measured", zorder=3)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return figure
