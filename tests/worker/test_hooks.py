"""Hooks: every intermediate by name and layer, nothing changed by looking, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.model_folders import write_folder
from tests.worker.forward import alone
from worker.build import LoadedModel, load_model

IDS = [5, 9, 2, 80]
IN_LAYER = [
    "attn_norm", "qkv", "rope_q", "rope_k", "attn_out", "o_proj", "mlp_norm", "gate_up",
    "mlp_act", "down",
]  # fmt: skip


class Seen:
    """A callback that keeps what it is shown."""

    def __init__(self) -> None:
        self.items: list[tuple[str, int]] = []
        self.tensors: dict[tuple[str, int], Any] = {}

    def __call__(self, name: str, tensor: Any, layer: int) -> None:
        self.items.append((name, layer))
        self.tensors[name, layer] = tensor


def test_all_names_in_the_order_of_the_pass(tiny: LoadedModel) -> None:
    seen = Seen()
    handle = tiny.register_hook("*", seen)
    alone(tiny, IDS)
    handle.remove()
    layers = [(name, layer) for layer in (0, 1) for name in IN_LAYER]
    assert seen.items[: len(layers) + 3] == [
        ("embedding", -1), *layers, ("final_norm", -1), ("logits", -1)
    ]  # fmt: skip


def test_what_is_shown_is_what_was_computed(tiny: LoadedModel) -> None:
    config, expected, seen = tiny.config, alone(tiny, IDS), Seen()
    handle = tiny.register_hook("*", seen)
    assert np.array_equal(alone(tiny, IDS), expected)
    handle.remove()
    assert np.array_equal(seen.tensors["logits", -1], expected)
    qkv = seen.tensors["qkv", 1]
    assert qkv.shape == (4, config.q_size + 2 * config.kv_size)
    keys = qkv[:, config.q_size : config.q_size + config.kv_size]
    assert np.array_equal(seen.tensors["rope_k", 1][0].ravel(), keys[0])  # position 0 is not turned
    assert not np.allclose(seen.tensors["rope_k", 1][1].ravel(), keys[1])
    gate, up = np.split(seen.tensors["gate_up", 0], 2, axis=1)
    np.testing.assert_allclose(
        seen.tensors["mlp_act", 0], gate / (1 + np.exp(-gate)) * up, rtol=1e-5
    )
    for tensor in seen.tensors.values():
        assert tensor.dtype == np.float32
        tensor.fill(np.nan)  # a copy: nobody else reads it
    assert np.array_equal(alone(tiny, IDS), expected)


@pytest.mark.parametrize(("pattern", "names"), [("rope_?", {"rope_q", "rope_k"}), ("qkv", {"qkv"})])
def test_patterns(tiny: LoadedModel, pattern: str, names: set[str]) -> None:
    seen = Seen()
    handle = tiny.register_hook(pattern, seen)
    alone(tiny, IDS)
    handle.remove()
    assert {name for name, _ in seen.items} == names


def test_nothing_stands_before_the_backend_without_a_hook(tiny: LoadedModel) -> None:
    first, second = (tiny.register_hook("qkv", Seen()) for _ in range(2))
    first.remove()
    assert tiny.model.ops is not tiny.backend
    second.remove()
    second.remove()
    assert tiny.model.ops is tiny.backend


def test_a_removed_hook_sees_nothing_more_and_the_others_go_on(tiny: LoadedModel) -> None:
    one, other = Seen(), Seen()
    handles = [tiny.register_hook("down", seen) for seen in (one, other)]
    alone(tiny, IDS)
    handles[0].remove()
    alone(tiny, IDS)
    handles[1].remove()
    assert (len(one.items), len(other.items)) == (2, 4)


def test_a_hook_that_fails_is_removed_and_logged(
    tiny: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    """The step goes on, and the others with it."""
    expected, seen = alone(tiny, IDS), Seen()
    tiny.register_hook("down", lambda name, tensor, layer: 1 / 0)
    other = tiny.register_hook("down", seen)
    assert np.array_equal(alone(tiny, IDS), expected)
    other.remove()
    assert len(seen.items) == 2 and tiny.model.ops is tiny.backend
    assert [record.message for record in caplog.records] == [
        "a hook failed and is removed: down of down"
    ]


def test_head_norms_have_a_name(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "m", architectures=["Qwen3ForCausalLM"]))
    seen = Seen()
    model.register_hook("head_norm", seen)
    alone(model, IDS)
    assert seen.items == [("head_norm", 0), ("head_norm", 1)]
