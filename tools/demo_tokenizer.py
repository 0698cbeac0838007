"""The demo model's own byte-level BPE, and the ChatML form of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tools.demo_conversations import Message

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, IM_START, IM_END]
VOCAB_SIZE = 2048

# Unlike Qwen2, a space is a token of its own: a word is then the same tokens at the start of an
# answer as in the middle of a question, and copying it is easy. Digits and Chinese characters
# stand alone for the same reason.
SPLIT = r"\p{N}|\p{Han}|[\p{L}\p{M}&&[^\p{Han}]]+|\s|[^\s\p{L}\p{M}\p{N}]"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learns the merges from `texts`; special tokens come last, as in Qwen2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


@dataclass(frozen=True)
class Encoded:
    """A conversation as ids; `learn[i]` says whether token i is one the model must produce."""

    ids: list[int]
    learn: list[bool]


def encode_chats(tokenizer: Tokenizer, chats: list[list[Message]]) -> list[Encoded]:
    """Encodes whole conversations in ChatML."""
    contents = [message["content"] for chat in chats for message in chat]
    encoded = iter(tokenizer.encode_batch(contents, add_special_tokens=False))
    im_end = token_id(tokenizer, IM_END)
    newline = tokenizer.encode("\n", add_special_tokens=False).ids
    heads = {role: _head(tokenizer, role) for role in ("system", "user", "assistant")}
    result = []
    for chat in chats:
        ids: list[int] = []
        learn: list[bool] = []
        for message in chat:
            head, body = heads[message["role"]], [*next(encoded).ids, im_end]
            ids += head + body + newline
            learn += [False] * len(head)
            learn += [message["role"] == "assistant"] * len(body) + [False] * len(newline)
        result.append(Encoded(ids, learn))
    return result


def encode_prompt(tokenizer: Tokenizer, chat: list[Message]) -> list[int]:
    """Encodes a conversation that the assistant is to continue."""
    return encode_chats(tokenizer, [chat])[0].ids + _head(tokenizer, "assistant")


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Returns the id of a token that must exist."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise KeyError(token)
    return number


def _head(tokenizer: Tokenizer, role: str) -> list[int]:
    ids: list[int] = tokenizer.encode(f"{IM_START}{role}\n", add_special_tokens=False).ids
    return ids
