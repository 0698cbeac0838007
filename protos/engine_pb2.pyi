from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineRequest(_message.Message):
    __slots__ = ("session", "adds", "aborts", "stops", "pauses", "resumes", "queries")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    session: int
    adds: _containers.RepeatedCompositeFieldContainer[GenerateRequest]
    aborts: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedCompositeFieldContainer[StopAt]
    pauses: _containers.RepeatedScalarFieldContainer[int]
    resumes: _containers.RepeatedScalarFieldContainer[int]
    queries: _containers.RepeatedCompositeFieldContainer[_common_pb2.Query]
    def __init__(self, session: _Optional[int] = ..., adds: _Optional[_Iterable[_Union[GenerateRequest, _Mapping]]] = ..., aborts: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[_Union[StopAt, _Mapping]]] = ..., pauses: _Optional[_Iterable[int]] = ..., resumes: _Optional[_Iterable[int]] = ..., queries: _Optional[_Iterable[_Union[_common_pb2.Query, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("slot", "request_id", "prompt_token_ids", "resumed_token_ids", "limits", "sampling", "attempt")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    slot: int
    request_id: str
    prompt_token_ids: bytes
    resumed_token_ids: _containers.RepeatedScalarFieldContainer[bytes]
    limits: _common_pb2.Limits
    sampling: bytes
    attempt: int
    def __init__(self, slot: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., resumed_token_ids: _Optional[_Iterable[bytes]] = ..., limits: _Optional[_Union[_common_pb2.Limits, _Mapping]] = ..., sampling: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class StopAt(_message.Message):
    __slots__ = ("slot", "num_output_tokens")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    num_output_tokens: int
    def __init__(self, slot: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class EngineReply(_message.Message):
    __slots__ = ("opened", "batch", "state", "bulk", "answer")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    opened: _common_pb2.SessionOpened
    batch: TokenBatch
    state: _common_pb2.EngineState
    bulk: Bulk
    answer: _common_pb2.QueryAnswer
    def __init__(self, opened: _Optional[_Union[_common_pb2.SessionOpened, _Mapping]] = ..., batch: _Optional[_Union[TokenBatch, _Mapping]] = ..., state: _Optional[_Union[_common_pb2.EngineState, _Mapping]] = ..., bulk: _Optional[_Union[Bulk, _Mapping]] = ..., answer: _Optional[_Union[_common_pb2.QueryAnswer, _Mapping]] = ...) -> None: ...

class Bulk(_message.Message):
    __slots__ = ("slot", "prompt_logprobs", "embedding", "trace_json")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    TRACE_JSON_FIELD_NUMBER: _ClassVar[int]
    slot: int
    prompt_logprobs: PromptLogprobs
    embedding: bytes
    trace_json: bytes
    def __init__(self, slot: _Optional[int] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., embedding: _Optional[bytes] = ..., trace_json: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenBatch(_message.Message):
    __slots__ = ("slots", "counts", "token_offsets", "token_ids", "finishes", "logprobs", "progress")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    counts: bytes
    token_offsets: bytes
    token_ids: bytes
    finishes: _containers.RepeatedCompositeFieldContainer[_common_pb2.Finish]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    progress: _containers.RepeatedCompositeFieldContainer[_common_pb2.PromptProgress]
    def __init__(self, slots: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., token_offsets: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., finishes: _Optional[_Iterable[_Union[_common_pb2.Finish, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[_common_pb2.PromptProgress, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("slot", "index", "token_ids", "logprobs")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, slot: _Optional[int] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...
