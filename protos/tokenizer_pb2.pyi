from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatewayMessage(_message.Message):
    __slots__ = ("session", "adds", "aborts", "pauses", "resumes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    session: int
    adds: _containers.RepeatedCompositeFieldContainer[TextRequest]
    aborts: _containers.RepeatedScalarFieldContainer[int]
    pauses: _containers.RepeatedScalarFieldContainer[int]
    resumes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., adds: _Optional[_Iterable[_Union[TextRequest, _Mapping]]] = ..., aborts: _Optional[_Iterable[int]] = ..., pauses: _Optional[_Iterable[int]] = ..., resumes: _Optional[_Iterable[int]] = ...) -> None: ...

class TextRequest(_message.Message):
    __slots__ = ("slot", "request_id", "model", "limits", "sampling", "text", "chat", "prompt", "prompt_token_ids", "attempt", "resumed", "model_hash")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    request_id: str
    model: str
    limits: _common_pb2.Limits
    sampling: _common_pb2.SamplingParams
    text: TextOptions
    chat: ChatInput
    prompt: str
    prompt_token_ids: bytes
    attempt: int
    resumed: _containers.RepeatedCompositeFieldContainer[Resumed]
    model_hash: str
    def __init__(self, slot: _Optional[int] = ..., request_id: _Optional[str] = ..., model: _Optional[str] = ..., limits: _Optional[_Union[_common_pb2.Limits, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., text: _Optional[_Union[TextOptions, _Mapping]] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., prompt: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., attempt: _Optional[int] = ..., resumed: _Optional[_Iterable[_Union[Resumed, _Mapping]]] = ..., model_hash: _Optional[str] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages_json", "tools_json", "template_kwargs_json", "no_generation_prompt", "continue_final_message")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    NO_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages_json: bytes
    tools_json: bytes
    template_kwargs_json: bytes
    no_generation_prompt: bool
    continue_final_message: bool
    def __init__(self, messages_json: _Optional[bytes] = ..., tools_json: _Optional[bytes] = ..., template_kwargs_json: _Optional[bytes] = ..., no_generation_prompt: bool = ..., continue_final_message: bool = ...) -> None: ...

class TextOptions(_message.Message):
    __slots__ = ("stop", "include_stop", "ignore_eos", "keep_special_tokens", "stop_token_ids", "bad_words", "dry_breakers", "split_reasoning", "grammar", "return_prompt_ids", "cut_max_tokens", "no_special_tokens", "thinking_token_budget")
    STOP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    KEEP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    DRY_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_REASONING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    RETURN_PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    CUT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    stop: _containers.RepeatedScalarFieldContainer[str]
    include_stop: bool
    ignore_eos: bool
    keep_special_tokens: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    dry_breakers: _containers.RepeatedScalarFieldContainer[str]
    split_reasoning: bool
    grammar: _common_pb2.Grammar
    return_prompt_ids: bool
    cut_max_tokens: bool
    no_special_tokens: bool
    thinking_token_budget: int
    def __init__(self, stop: _Optional[_Iterable[str]] = ..., include_stop: bool = ..., ignore_eos: bool = ..., keep_special_tokens: bool = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., dry_breakers: _Optional[_Iterable[str]] = ..., split_reasoning: bool = ..., grammar: _Optional[_Union[_common_pb2.Grammar, _Mapping]] = ..., return_prompt_ids: bool = ..., cut_max_tokens: bool = ..., no_special_tokens: bool = ..., thinking_token_budget: _Optional[int] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("token_ids", "text_bytes")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    text_bytes: int
    def __init__(self, token_ids: _Optional[bytes] = ..., text_bytes: _Optional[int] = ...) -> None: ...

class TextMessage(_message.Message):
    __slots__ = ("opened", "batch", "state", "bulk")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    opened: _common_pb2.SessionOpened
    batch: TextBatch
    state: _common_pb2.EngineState
    bulk: TextBulk
    def __init__(self, opened: _Optional[_Union[_common_pb2.SessionOpened, _Mapping]] = ..., batch: _Optional[_Union[TextBatch, _Mapping]] = ..., state: _Optional[_Union[_common_pb2.EngineState, _Mapping]] = ..., bulk: _Optional[_Union[TextBulk, _Mapping]] = ...) -> None: ...

class TextBulk(_message.Message):
    __slots__ = ("slot", "prompt_tokens", "embedding", "trace_json")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    TRACE_JSON_FIELD_NUMBER: _ClassVar[int]
    slot: int
    prompt_tokens: PromptTokens
    embedding: bytes
    trace_json: bytes
    def __init__(self, slot: _Optional[int] = ..., prompt_tokens: _Optional[_Union[PromptTokens, _Mapping]] = ..., embedding: _Optional[bytes] = ..., trace_json: _Optional[bytes] = ...) -> None: ...

class PromptTokens(_message.Message):
    __slots__ = ("logprobs",)
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TextLogprobs]
    def __init__(self, logprobs: _Optional[_Iterable[_Union[TextLogprobs, _Mapping]]] = ...) -> None: ...

class ConvertRequest(_message.Message):
    __slots__ = ("model", "no_special_tokens", "keep_special_tokens", "with_pieces", "tenant", "chat", "text", "token_ids", "about")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NO_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEEP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WITH_PIECES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    no_special_tokens: bool
    keep_special_tokens: bool
    with_pieces: bool
    tenant: str
    chat: ChatInput
    text: str
    token_ids: bytes
    about: bool
    def __init__(self, model: _Optional[str] = ..., no_special_tokens: bool = ..., keep_special_tokens: bool = ..., with_pieces: bool = ..., tenant: _Optional[str] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., text: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., about: bool = ...) -> None: ...

class ConvertReply(_message.Message):
    __slots__ = ("text", "token_ids", "pieces", "max_model_len", "error", "about_json")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ABOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: bytes
    pieces: _containers.RepeatedScalarFieldContainer[bytes]
    max_model_len: int
    error: _common_pb2.ErrorDetail
    about_json: bytes
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., pieces: _Optional[_Iterable[bytes]] = ..., max_model_len: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.ErrorDetail, _Mapping]] = ..., about_json: _Optional[bytes] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[EngineAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[EngineAnswer, _Mapping]]] = ...) -> None: ...

class EngineAnswer(_message.Message):
    __slots__ = ("engine", "answer")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    engine: str
    answer: _common_pb2.QueryAnswer
    def __init__(self, engine: _Optional[str] = ..., answer: _Optional[_Union[_common_pb2.QueryAnswer, _Mapping]] = ...) -> None: ...

class TextBatch(_message.Message):
    __slots__ = ("slots", "text_offsets", "texts", "counts", "token_offsets", "token_ids", "started", "finishes", "logprobs", "channels", "progress")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    text_offsets: bytes
    texts: _containers.RepeatedScalarFieldContainer[str]
    counts: bytes
    token_offsets: bytes
    token_ids: bytes
    started: _containers.RepeatedCompositeFieldContainer[Started]
    finishes: _containers.RepeatedCompositeFieldContainer[_common_pb2.Finish]
    logprobs: _containers.RepeatedCompositeFieldContainer[TextLogprobs]
    channels: bytes
    progress: _containers.RepeatedCompositeFieldContainer[_common_pb2.PromptProgress]
    def __init__(self, slots: _Optional[bytes] = ..., text_offsets: _Optional[bytes] = ..., texts: _Optional[_Iterable[str]] = ..., counts: _Optional[bytes] = ..., token_offsets: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., started: _Optional[_Iterable[_Union[Started, _Mapping]]] = ..., finishes: _Optional[_Iterable[_Union[_common_pb2.Finish, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[TextLogprobs, _Mapping]]] = ..., channels: _Optional[bytes] = ..., progress: _Optional[_Iterable[_Union[_common_pb2.PromptProgress, _Mapping]]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("slot", "num_prompt_tokens", "prompt_token_ids", "model_hash")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    num_prompt_tokens: int
    prompt_token_ids: bytes
    model_hash: str
    def __init__(self, slot: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., model_hash: _Optional[str] = ...) -> None: ...

class TextLogprobs(_message.Message):
    __slots__ = ("slot", "index", "entries", "is_hidden")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    IS_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    slot: int
    index: int
    entries: _containers.RepeatedCompositeFieldContainer[TextLogprob]
    is_hidden: bool
    def __init__(self, slot: _Optional[int] = ..., index: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[TextLogprob, _Mapping]]] = ..., is_hidden: bool = ...) -> None: ...

class TextLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "token", "token_bytes")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    token: str
    token_bytes: bytes
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., token: _Optional[str] = ..., token_bytes: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("num_cancelled",)
    NUM_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    num_cancelled: int
    def __init__(self, num_cancelled: _Optional[int] = ...) -> None: ...
