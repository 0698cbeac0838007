from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATE: _ClassVar[RequestKind]
    EMBED: _ClassVar[RequestKind]
    SCORE: _ClassVar[RequestKind]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAST: _ClassVar[Pooling]
    MEAN: _ClassVar[Pooling]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNFINISHED: _ClassVar[FinishReason]
    STOPPED: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]
    ABORTED: _ClassVar[FinishReason]
    DEADLINE: _ClassVar[FinishReason]
    IGNORED: _ClassVar[FinishReason]
    ERROR: _ClassVar[FinishReason]
GENERATE: RequestKind
EMBED: RequestKind
SCORE: RequestKind
LAST: Pooling
MEAN: Pooling
UNFINISHED: FinishReason
STOPPED: FinishReason
LENGTH: FinishReason
ABORTED: FinishReason
DEADLINE: FinishReason
IGNORED: FinishReason
ERROR: FinishReason

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias", "samplers", "typical_p", "top_n_sigma", "dynamic_temperature", "xtc", "dry", "bad_words", "allowed_token_ids", "return_sampler_trace", "grammar", "thinking")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    TOP_N_SIGMA_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    XTC_FIELD_NUMBER: _ClassVar[int]
    DRY_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RETURN_SAMPLER_TRACE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    samplers: _containers.RepeatedScalarFieldContainer[str]
    typical_p: float
    top_n_sigma: float
    dynamic_temperature: DynamicTemperature
    xtc: Xtc
    dry: Dry
    bad_words: _containers.RepeatedScalarFieldContainer[bytes]
    allowed_token_ids: bytes
    return_sampler_trace: bool
    grammar: Grammar
    thinking: ThinkingBudget
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., samplers: _Optional[_Iterable[str]] = ..., typical_p: _Optional[float] = ..., top_n_sigma: _Optional[float] = ..., dynamic_temperature: _Optional[_Union[DynamicTemperature, _Mapping]] = ..., xtc: _Optional[_Union[Xtc, _Mapping]] = ..., dry: _Optional[_Union[Dry, _Mapping]] = ..., bad_words: _Optional[_Iterable[bytes]] = ..., allowed_token_ids: _Optional[bytes] = ..., return_sampler_trace: bool = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingBudget, _Mapping]] = ...) -> None: ...

class DynamicTemperature(_message.Message):
    __slots__ = ("range", "exponent")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    range: float
    exponent: float
    def __init__(self, range: _Optional[float] = ..., exponent: _Optional[float] = ...) -> None: ...

class Xtc(_message.Message):
    __slots__ = ("probability", "threshold")
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    probability: float
    threshold: float
    def __init__(self, probability: _Optional[float] = ..., threshold: _Optional[float] = ...) -> None: ...

class Dry(_message.Message):
    __slots__ = ("multiplier", "base", "allowed_length", "last_n", "breakers")
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAST_N_FIELD_NUMBER: _ClassVar[int]
    BREAKERS_FIELD_NUMBER: _ClassVar[int]
    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    breakers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, multiplier: _Optional[float] = ..., base: _Optional[float] = ..., allowed_length: _Optional[int] = ..., last_n: _Optional[int] = ..., breakers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text", "start_after", "opener", "end_token_ids")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Grammar.Kind]
        JSON_SCHEMA: _ClassVar[Grammar.Kind]
        REGEX: _ClassVar[Grammar.Kind]
        LARK: _ClassVar[Grammar.Kind]
        CHOICE: _ClassVar[Grammar.Kind]
    NONE: Grammar.Kind
    JSON_SCHEMA: Grammar.Kind
    REGEX: Grammar.Kind
    LARK: Grammar.Kind
    CHOICE: Grammar.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    OPENER_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    kind: Grammar.Kind
    text: str
    start_after: bytes
    opener: int
    end_token_ids: bytes
    def __init__(self, kind: _Optional[_Union[Grammar.Kind, str]] = ..., text: _Optional[str] = ..., start_after: _Optional[bytes] = ..., opener: _Optional[int] = ..., end_token_ids: _Optional[bytes] = ...) -> None: ...

class ThinkingBudget(_message.Message):
    __slots__ = ("max_tokens", "begin", "end", "end_heads")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    END_HEADS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    begin: bytes
    end: bytes
    end_heads: bytes
    def __init__(self, max_tokens: _Optional[int] = ..., begin: _Optional[bytes] = ..., end: _Optional[bytes] = ..., end_heads: _Optional[bytes] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("kind", "max_tokens", "min_tokens", "stop_token_ids", "n", "logprobs", "priority", "tenant", "cache_salt", "deadline_ms", "prompt_logprobs", "has_grammar", "n_keep", "rotate_kv", "pooling", "report_progress", "first_choice", "waited_ms", "max_is_ours")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    HAS_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    N_KEEP_FIELD_NUMBER: _ClassVar[int]
    ROTATE_KV_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    REPORT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHOICE_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_IS_OURS_FIELD_NUMBER: _ClassVar[int]
    kind: RequestKind
    max_tokens: int
    min_tokens: int
    stop_token_ids: bytes
    n: int
    logprobs: int
    priority: int
    tenant: str
    cache_salt: bytes
    deadline_ms: int
    prompt_logprobs: int
    has_grammar: bool
    n_keep: int
    rotate_kv: bool
    pooling: Pooling
    report_progress: bool
    first_choice: int
    waited_ms: int
    max_is_ours: bool
    def __init__(self, kind: _Optional[_Union[RequestKind, str]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[bytes] = ..., n: _Optional[int] = ..., logprobs: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., cache_salt: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., has_grammar: bool = ..., n_keep: _Optional[int] = ..., rotate_kv: bool = ..., pooling: _Optional[_Union[Pooling, str]] = ..., report_progress: bool = ..., first_choice: _Optional[int] = ..., waited_ms: _Optional[int] = ..., max_is_ours: bool = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("kind", "message", "param", "code", "retry_after_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    param: str
    code: str
    retry_after_ms: int
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., code: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_s", "prefill_s", "decode_s", "num_preemptions")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    prefill_s: float
    decode_s: float
    num_preemptions: int
    def __init__(self, queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., num_preemptions: _Optional[int] = ...) -> None: ...

class Query(_message.Message):
    __slots__ = ("query_id", "kind", "body_json")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_JSON_FIELD_NUMBER: _ClassVar[int]
    query_id: int
    kind: str
    body_json: bytes
    def __init__(self, query_id: _Optional[int] = ..., kind: _Optional[str] = ..., body_json: _Optional[bytes] = ...) -> None: ...

class QueryAnswer(_message.Message):
    __slots__ = ("query_id", "body_json", "error")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    query_id: int
    body_json: bytes
    error: ErrorDetail
    def __init__(self, query_id: _Optional[int] = ..., body_json: _Optional[bytes] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class PromptProgress(_message.Message):
    __slots__ = ("slot", "num_total", "num_cached", "num_computed", "timings")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    num_total: int
    num_cached: int
    num_computed: int
    timings: Timings
    def __init__(self, slot: _Optional[int] = ..., num_total: _Optional[int] = ..., num_cached: _Optional[int] = ..., num_computed: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("slot", "reason", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "stop_token_id", "stop_string", "error", "timings", "num_reasoning_tokens")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    stop_token_id: int
    stop_string: str
    error: ErrorDetail
    timings: Timings
    num_reasoning_tokens: int
    def __init__(self, slot: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., stop_token_id: _Optional[int] = ..., stop_string: _Optional[str] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., num_reasoning_tokens: _Optional[int] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session", "models")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    session: int
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, session: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("id", "created_s", "max_model_len", "aliases", "tool_format", "reasoning_format", "tag_tokens", "sampling")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    TOOL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TAG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    id: str
    created_s: int
    max_model_len: int
    aliases: _containers.RepeatedScalarFieldContainer[str]
    tool_format: str
    reasoning_format: str
    tag_tokens: _containers.RepeatedScalarFieldContainer[str]
    sampling: SamplingParams
    def __init__(self, id: _Optional[str] = ..., created_s: _Optional[int] = ..., max_model_len: _Optional[int] = ..., aliases: _Optional[_Iterable[str]] = ..., tool_format: _Optional[str] = ..., reasoning_format: _Optional[str] = ..., tag_tokens: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ...) -> None: ...

class EngineState(_message.Message):
    __slots__ = ("engine", "ready", "reasons", "num_waiting", "num_running", "kv_usage", "num_blocks", "block_size", "max_model_len", "vocab_size", "fingerprint", "num_replicas", "model_hash")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    engine: str
    ready: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    num_waiting: int
    num_running: int
    kv_usage: float
    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    fingerprint: str
    num_replicas: int
    model_hash: str
    def __init__(self, engine: _Optional[str] = ..., ready: bool = ..., reasons: _Optional[_Iterable[str]] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., kv_usage: _Optional[float] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., fingerprint: _Optional[str] = ..., num_replicas: _Optional[int] = ..., model_hash: _Optional[str] = ...) -> None: ...
