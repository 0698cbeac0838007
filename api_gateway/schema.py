"""The request bodies as OpenAI clients send them: which fields there are and of which type.

Bounds and meaning are validation's; fields that are known but not served are unserved.py's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]
Scalar = str | int | float | bool | None
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream carries beside text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: Literal[False] | None = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """What an assistant once called; templates show it.

    `parsed_arguments` is `arguments` once more, as OpenAI's clients have read it for their caller
    (`parse`, `stream`, `runTools`) and send it back; the template does not see it.
    """

    name: str
    arguments: str
    parsed_arguments: Any = msgspec.UNSET


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tool call of an earlier assistant message. Templates may write it in this order."""

    id: str | None | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None | msgspec.UnsetType = msgspec.UNSET


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a conversation; parts are looked at one by one in messages.py.

    A null content stays null for the template; one that is left out is another thing. The template
    does not see the last of the fields, those in `UNSEEN`: a `type` is what lm-evaluation-harness
    once sent; `parsed` is `content` once more, as OpenAI's clients have read it, and
    `provider_specific_fields` what litellm has set apart of our reply; Mistral's clients say in
    every answer that it is no `prefix` of another; `extra` is Qwen-Agent's own, which names the
    call in a result's `id`; the others mark a prefix for a cache, and here all are cached. VS
    Code's Copilot sends the last one to every server.
    """

    role: Role
    content: str | list[dict[str, Any]] | None | msgspec.UnsetType = msgspec.UNSET
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[None] | None = None
    type: Literal["text"] | None = None
    parsed: Any = None
    provider_specific_fields: dict[str, Any] | None = None
    prefix: Literal[False] | None = None
    id: str | None = None
    extra: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    copilot_cache_control: dict[str, Any] | None = None


UNSEEN = Message.__struct_fields__[Message.__struct_fields__.index("type") :]


class Function(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON Schema.

    What it gives back stands in `return`, as transformers' `get_json_schema` writes it, or in
    `response`, as the Berkeley leaderboard does. Templates show both to the model, but not the mark
    for a cache that litellm passes on.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    returns: dict[str, Any] | None = msgspec.field(default=None, name="return")
    response: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a model may use: functions only. Templates write it in this order, and models know no
    other."""

    type: Literal["function"] = "function"
    function: Function
    cache_control: dict[str, Any] | None | msgspec.UnsetType = msgspec.UNSET


class FunctionName(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """The tool that must be called."""

    function: FunctionName
    type: Literal["function"] = "function"


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of an answer. It is always kept to, `strict` or not."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's way to ask for JSON; `schema` is llama.cpp's, for the type json_object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's way to ask for a form: exactly one of the first five fields.

    `grammar` is llguidance's Lark, or EBNF. `disable_any_whitespace` and
    `disable_additional_properties` are for JSON.

    `structural_tag` and `whitespace_pattern` are not served; `disable_fallback` asks for nothing.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None
    structural_tag: None = None
    whitespace_pattern: None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None


class DynamicTemperature(msgspec.Struct, forbid_unknown_fields=True):
    """Temperature by entropy, within ± `range`."""

    range: float
    exponent: float | None = None


class Routing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every request to a model has in common.

    Left out, `model` is the one that is served. The last four are the client's notes to itself:
    they change nothing.
    """

    model: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout_ms: int | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class Fields(Routing, kw_only=True, forbid_unknown_fields=True):
    """What chat and plain completions have in common."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    dynamic_temperature: DynamicTemperature | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    samplers: list[str] | None = None
    return_sampler_trace: bool | None = None
    seed: int | None = None
    n: int | None = None
    n_keep: int | None = None
    rotate_kv: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class ThinkingSwitch(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to think, in the words of DeepSeek and Zhipu. Dify sends it to every server."""

    type: Literal["enabled", "disabled"]


class ChatRequest(Fields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedTool | None = None
    """`any` is Mistral's word for `required`."""
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    thinking: ThinkingSwitch | None = None
    thinking_token_budget: int | None = None


class CompletionRequest(Fields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/completions. Left out, max_tokens is 16, as OpenAI has it."""

    prompt: str | list[str | int | list[int]]
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    @property
    def draws_nothing(self) -> bool:
        """Whether the prompt and its logprobs are all that is asked for."""
        return self.max_tokens == 0 and bool(self.echo)


class EmbeddingRequest(Routing, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/embeddings; `pooling` and `normalize` are ours."""

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None


class ChatPrompt(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The part of a chat request that makes its prompt."""

    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: list[Tool] | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /tokenize: a `prompt`, or `messages` with what goes with them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: list[Tool] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None
