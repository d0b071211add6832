"""What folklore's verdicts count without records: data sheets, formulas, source text, against torch; and the page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from speedlab.cards import CARDS
from speedlab.folklore import attention, formulas, precision
from speedlab.folklore.claims import CLAIMS
from speedlab.folklore.source import code_lines, package_source, tensor_operations
from speedlab.model.gpt import GPT
from speedlab.model.layers import HandwrittenGELU, HandwrittenLayerNorm
from speedlab.publishing.folklore_page import WORDS, folklore_section
from speedlab.recipe import Recipe
from speedlab.records.store import committed_root, read_records

BY_KEY = {claim.key: claim for claim in CLAIMS}


def judge(key: str) -> str:
    return BY_KEY[key].judge([]).verdict


def test_data_sheets_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge("tf32_from_capability_7") == "refuted"
    assert judge("t4_no_tensor_cores") == "refuted"
    newer = tuple(card for card in CARDS if card.slug != "tesla-t4")
    slow = replace(next(card for card in CARDS if card.slug == "tesla-t4"), flops_per_s={"float32": 8e12})
    monkeypatch.setattr(precision, "CARDS", newer)
    assert judge("tf32_from_capability_7") == "confirmed"
    monkeypatch.setattr(precision, "CARDS", (*newer, slow))
    assert judge("t4_no_tensor_cores") == "confirmed"


def test_formulas_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge("attention_dominates_7b") == "refuted"
    monkeypatch.setattr(attention, "SEVEN_B", formulas.SEVEN_B.but(context_length=131_072))
    assert judge("attention_dominates_7b") == "confirmed"


@pytest.mark.parametrize(
    "changes", [{}, {"output_head": "tied", "qkv_bias": True, "qkv_projection": "merged"}, {"vocabulary": "padded"}]
)
def test_sizes_against_the_model(changes: dict[str, Any]) -> None:
    recipe = Recipe(**changes)
    with torch.device("meta"):
        model = GPT(recipe)
    assert formulas.total_parameters(recipe) == model.num_parameters()
    assert formulas.parameter_tensors(recipe) == len(list(model.parameters()))


def test_bfloat16_against_torch() -> None:
    values = [1.0, 1.0039062, 1.00390625, 1.01171875, -3.1415927, 5e-4, 65504.0, 0.2495]
    rounded = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).tolist()
    assert [formulas.to_bfloat16(value) for value in values] == rounded
    lost = formulas.lost_above(5e-4)
    for weight, moves in ((lost, False), (lost / 2, True)):
        before = torch.tensor(weight, dtype=torch.bfloat16)
        assert (before + 5e-4 != before).item() is moves


def test_known_sizes() -> None:
    assert formulas.matrix_bytes(131_072, "float32") == 64 * 2**30
    assert formulas.attention_share(formulas.SEVEN_B) == pytest.approx(1 / 7, abs=0.005)
    assert "28 GB, gradients 14 GB" in BY_KEY["seven_b_moments_14_gb"].judge([]).evidence
    assert "56 GB" in BY_KEY["seven_b_moments_14_gb"].judge([]).evidence
    assert "0.00093 nats" in BY_KEY["padding_leaves_loss"].judge([]).evidence


def test_operations_of_gelu_against_torch() -> None:
    class Counter(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Counter.calls += 1
            return function(*args, **(kwargs or {}))

    gelu, x = HandwrittenGELU(), torch.ones(3)
    with Counter():
        gelu(x)
    assert tensor_operations(package_source("model/layers.py"), "HandwrittenGELU") == Counter.calls == 8


def test_code_lines_leave_out_what_is_no_code() -> None:
    code = "x = (\n    1,\n)\n\ndef f():\n"
    source = '"""Module.\n\nTwo lines.\n"""\n\n# a comment\n' + code + '    """Doc."""\n    return x  # why\n'
    assert code_lines(source) == 5


def test_the_model_calls_layer_norm_and_gelu_as_often() -> None:
    """Independently of any record: hooks on the model itself, without memory for its weights."""
    called: Counter[type] = Counter()
    with torch.device("meta"):
        model = GPT(Recipe())
        for module in model.modules():
            if isinstance(module, HandwrittenLayerNorm | HandwrittenGELU):
                module.register_forward_hook(lambda module, *_: called.update([type(module)]))
        model(torch.zeros(1, 8, dtype=torch.long))
    assert called == {HandwrittenLayerNorm: 25, HandwrittenGELU: 12}


def test_the_page_shows_every_claim_and_the_count() -> None:
    records = read_records(committed_root())
    words = folklore_section(records)
    headings = re.findall(r"^### (\d+)\. (.+)$", words, re.MULTILINE)
    assert headings == [(str(claim.group), claim.claim) for claim in CLAIMS]
    verdicts = Counter(claim.judge(records).verdict for claim in CLAIMS)
    for verdict, name in WORDS.items():
        assert f"| {name} | {verdicts[verdict]} |" in words
    assert words.count("- *Verdict:* **") == words.count("- *Said by:* ") == len(CLAIMS)
    assert words.count("- *Would decide it:* ") == verdicts["not_decided"]


def test_the_page_without_records_measures_nothing() -> None:
    assert "Measured" not in folklore_section([])
    assert folklore_section([]) == folklore_section([])
