"""Why a peer is not beaten, as far as it was looked into. Shown where that is so.

Processors differ, so what holds on some of them says on which.
"""

ONEDNN_BF16 = (
    "where the processor has a bfloat16 instruction oneDNN multiplies with it"
    " (brg_matmul:avx512_core_bf16 in its log), two products at a time"
)

REASONS: dict[tuple[str, str], str] = {
    ("llama.cpp", "BF16"): (
        "built with AVX512_BF16 it multiplies with that instruction, two products at a time;"
        " why it reads faster at batch 1 there is not known."
    ),
    ("OpenVINO", "16 bit"): (
        f"{ONEDNN_BF16}; elsewhere in float32 (f32 in its execution graph). It adds in whatever"
        " order is fastest; ours keeps the order of the tile instruction, two chains over 32"
        " inputs, whose sums are added up apart."
    ),
    ("OpenVINO", "int8"): (
        "it quantises activations in groups of 32 as they come and multiplies with VNNI, as ours"
        " does in groups of 256; keys are uint8, and nothing but speed orders its sums."
    ),
    ("transformers", "bf16"): f"{ONEDNN_BF16}.",
    ("transformers", "float32"): (
        "torch multiplies weights that are float32 in memory, so nothing is widened on the way; it"
        " pays in decode, where it reads twice the bytes."
    ),
    ("vLLM", "bf16"): f"{ONEDNN_BF16}, on weights that it packs for it once, at the start.",
}
