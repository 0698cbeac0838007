"""Why a peer is not beaten, as far as it was looked into. Shown where that is so."""

REASONS: dict[tuple[str, str], str] = {
    ("OpenVINO", "16 bit"): (
        "where the processor has no bfloat16 instruction it multiplies in float32 (f32 in its"
        " execution graph), in whatever order is fastest; ours keeps the order of the tile"
        " instruction, two chains over 32 inputs, whose sums are added up apart."
    ),
    ("OpenVINO", "int8"): (
        "it quantises activations in groups of 32 as they come and multiplies with VNNI, as ours"
        " does in groups of 256; keys are uint8, and nothing but speed orders its sums."
    ),
    ("transformers", "float32"): (
        "torch multiplies weights that are float32 in memory, so nothing is widened on the way; it"
        " pays in decode, where it reads twice the bytes."
    ),
}
