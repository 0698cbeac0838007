"""Fields that clients of other servers may send and that we do not serve.

A field we accept, we obey: each is accepted at the values that ask for nothing, and refused at
every other. Serving one means taking it out of this table.
"""

from __future__ import annotations

from typing import Any

from common.errors import InvalidRequest

_NOTHING: tuple[Any, ...] = (None,)
_OFF: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {})
_RETENTION: tuple[Any, ...] = (None, "in_memory", "in-memory", "24h")  # at most so long
_IMPLICIT = {"mode": "implicit"}  # prefixes are cached unasked
_CACHING: tuple[Any, ...] = (*_EMPTY, _IMPLICIT, {"ttl": "30m"}, {**_IMPLICIT, "ttl": "30m"})

ROUTING: dict[str, tuple[Any, ...]] = {
    "service_tier": (None, "auto", "default"),
    "session_id": _NOTHING,
    "truncate_prompt_tokens": _NOTHING,
}
COMMON: dict[str, tuple[Any, ...]] = {
    **ROUTING,
    "backend_sampling": _OFF,
    "best_of": (None, 1),
    "cache_prompt": (None, True),
    "custom_params": _EMPTY,
    "decoder_input_details": _OFF,
    "do_sample": _NOTHING,  # a folder may say greedy
    "early_stopping": _OFF,
    "ebnf": _NOTHING,
    "grammar": (None, ""),
    "guided_choice": _NOTHING,
    "guided_decoding_backend": _NOTHING,
    "guided_grammar": _NOTHING,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "guided_whitespace_pattern": _NOTHING,
    "id_slot": (None, -1),
    "kv_transfer_params": _NOTHING,
    "length_penalty": (None, 1),
    "logits_processors": _EMPTY,
    "lora": _EMPTY,
    "lora_path": _NOTHING,
    "min_keep": (None, 0, 1),
    "mirostat": (None, 0),
    "n_probs": (None, 0),
    "no_stop_trim": _OFF,
    "num_beams": (None, 1),
    "regex": _NOTHING,
    "return_full_text": _OFF,
    "return_hidden_states": _OFF,
    "return_meta_info": _OFF,
    "return_tokens": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "spaces_between_special_tokens": (None, True, False),  # no tokenizer here puts any
    "store": _OFF,
    "t_max_predict_ms": (None, -1),
    "timings_per_token": _OFF,
    "use_beam_search": _OFF,
    "vllm_xargs": _EMPTY,
    "watermark": _OFF,
}
CHAT: dict[str, tuple[Any, ...]] = {
    **COMMON,
    "add_special_tokens": _OFF,
    "audio": _NOTHING,
    "chat_template": _NOTHING,
    "documents": _EMPTY,
    "echo": _OFF,
    "function_call": (None, "none"),
    "functions": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "modalities": (None, ["text"]),
    "moderation": _NOTHING,
    "prediction": _NOTHING,
    "prompt_cache_options": _CACHING,
    "prompt_cache_retention": _RETENTION,
    "reasoning_format": (None, "auto", "deepseek"),
    "safe_prompt": _OFF,
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
    "verbosity": (None, "medium"),
    "web_search_options": _NOTHING,
}
RESPONSE: dict[str, tuple[Any, ...]] = {
    "background": _OFF,
    "context_management": _EMPTY,
    "conversation": _NOTHING,
    "max_tool_calls": _NOTHING,
    "moderation": _NOTHING,
    "previous_response_id": _NOTHING,
    "prompt": _NOTHING,
    "prompt_cache_options": _CACHING,
    "prompt_cache_retention": _RETENTION,
    "service_tier": (None, "auto", "default"),
    "store": _OFF,
}
CLEAR_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
MESSAGES: dict[str, tuple[Any, ...]] = {
    "billing_policy": _NOTHING,
    "compaction": _NOTHING,
    "container": _NOTHING,
    "context_management": (*_EMPTY, {"edits": []}, {"edits": [CLEAR_THINKING]}),
    "diagnostics": _EMPTY,
    "fallbacks": _EMPTY,
    "inference_geo": _NOTHING,
    "mcp_servers": _EMPTY,
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
    "thread": _NOTHING,
    "user_profile_id": _NOTHING,
    "workspace_id": _NOTHING,
}
EMBEDDING: dict[str, tuple[Any, ...]] = {
    **ROUTING,
    "truncate_prompt_tokens": (None, -1),  # to the context: longer ones are refused
}
COMPLETION: dict[str, tuple[Any, ...]] = {
    **COMMON,
    "prompt_embeds": _NOTHING,
    "suffix": (None, ""),
}
FORMS = [name for name in COMMON if name in ("ebnf", "grammar", "regex") or "guided_" in name]
INSTEAD = {
    **dict.fromkeys(FORMS, "use structured_outputs"),
    "functions": "use tools",
    "function_call": "use tool_choice",
    "do_sample": "say so by temperature",
    "n_probs": "use logprobs",
    "no_stop_trim": "use include_stop_str_in_output",
    "return_tokens": "use return_token_ids",
    "store": "nothing is stored here, send false or leave it out",
    "t_max_predict_ms": "use timeout_ms",
}
"""What to send for a field that is not served."""


def take_out(body: dict[str, Any], table: dict[str, tuple[Any, ...]]) -> None:
    """Remove the table's fields from `body`; raise InvalidRequest for one that asks for a thing."""
    for name in table.keys() & body.keys():
        value = body.pop(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not any(type(value) is type(nothing) and value == nothing for nothing in table[name]):
            hint = f": {INSTEAD[name]}" if name in INSTEAD else ""
            message = f"{name} is not supported{hint}"
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
