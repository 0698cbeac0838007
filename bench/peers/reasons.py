"""Why a peer is not beaten, as far as it was looked into. Shown where that is so.

Processors differ, so what holds on some of them says on which; on tiles nothing was looked into.
"""

BF16 = (
    "where the processor has a bfloat16 instruction and no tiles it multiplies with that, two"
    " products at a time"
)
ONEDNN_BF16 = f"{BF16} (brg_matmul:avx512_core_bf16 in oneDNN's log)"

REASONS: dict[tuple[str, str], str] = {
    ("llama.cpp", "BF16"): (
        f"{BF16} (vdpbf16ps in its library). At batch 1 both wait for memory, whose rate may move"
        " between the two; it reads a row of weights in one stream, as we do."
    ),
    ("OpenVINO", "16 bit"): (
        f"{BF16} (bf16 in its execution graph), elsewhere in float32. Ours multiplies in linears at"
        " 0.79 to 0.90 of the rate of that instruction on a Zen 5 (0.82 to 0.92 on a Zen 4), what"
        " lies between linears takes 6 % more; a loop of the same sums reaches all of the rate."
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
