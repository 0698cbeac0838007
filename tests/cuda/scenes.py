"""A few launches of every kernel: for sanitizers, fuzzed schedules and planted faults."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from tests.cuda import (
    test_attention,
    test_ceilings,
    test_linear,
    test_sampling,
    test_small_kernels,
)
from tests.cuda.case import Case
from worker.backends.gpu import Gpu
from worker.kernels.structs import DRAW

Scene = Callable[[Case], None]
FORM = test_attention.Form(64, 7, 1, 16, 0, ((250, 1), (0, 70), (270, 1)))


def attention(case: Case) -> None:
    test_attention.test_both_kernels_are_right_and_agree(case, FORM, "bf16")


def attention_f32(case: Case) -> None:
    test_attention.test_float32(case, test_attention.Form(16, 2, 1, 1, 9, ((0, 40),)))


def linear(case: Case) -> None:
    test_linear.test_every_form_is_right_and_all_agree(case, "bf16", (19, 48, 288), "stored")
    test_linear.test_gate_and_up(case, "bf16", "stored")


def linear_int8(case: Case) -> None:
    test_linear.test_every_form_is_right_and_all_agree(case, "bf16", (19, 48, 288), "int8")
    test_linear.test_gate_and_up(case, "bf16", "int8")
    test_linear.test_every_int8_is_itself(case, "bf16")


def linear_f32(case: Case) -> None:
    test_linear.test_float32(case, "stored")
    test_linear.test_float32(case, "int8")


def rms_norm(case: Case) -> None:
    test_small_kernels.test_add_and_norm(case, "bf16", 896)
    test_small_kernels.test_norm_of_some_rows_keeps_the_residual(case)


def rope(case: Case) -> None:
    test_small_kernels.test_rope(case, "bf16", 64, True)
    test_small_kernels.test_shifted_keys_are_those_of_the_new_positions(case)


def small(case: Case) -> None:
    test_small_kernels.test_embedding(case, "bf16")
    test_small_kernels.test_silu_mul(case, "bf16")
    test_small_kernels.test_page_copy(case)
    test_small_kernels.test_pages_are_gathered_and_scattered(case)


def ceilings(case: Case) -> None:
    test_ceilings.test_products_of_ones(case)
    test_ceilings.test_the_widest_instruction_or_nothing(case)


def sampling(case: Case) -> None:
    draws = np.array([(5, 0.8, -3, 0.7, 40, 0, 0), (6, 1, -np.inf, 1, 0, 1, 0)], DRAW)
    logits = case.normal(2, 1100)
    tokens = test_sampling.draw(case, logits, draws).tolist()
    key = test_sampling.expected(logits[0], 5, 1 / np.float32(0.8), np.exp(-3), 0.7, 40)
    assert tokens == [key, test_sampling.expected(logits[1], 6, 1, 0, 1, 0)]
    test_sampling.test_edits_and_back(case)
    test_sampling.test_logprobs(case)


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        attention,
        attention_f32,
        ceilings,
        linear,
        linear_int8,
        linear_f32,
        rms_norm,
        rope,
        small,
        sampling,
    )
}


def main() -> None:
    """Play all on this machine's GPU, for whoever watches the process."""
    from worker.backends.cuda_device import CupyGpu

    gpu = CupyGpu()
    for name in SCENES:
        play(name, gpu)
        sys.stdout.write(f"{name}\n")


def play(name: str, gpu: Gpu) -> None:
    """Run one scene; raise AssertionError when a result is wrong."""
    SCENES[name](Case(gpu, name))


if __name__ == "__main__":
    main()
