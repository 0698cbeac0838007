"""Text → token ids, and what each id reads as. Wraps the tokenizers library.

Never encodes on the event loop: `encode_batch` in a thread is the form that releases the GIL.
Knows no chat templates; knows which texts are special tokens.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.processors import TemplateProcessing

from common.errors import InvalidRequest
from common.model_folder import ModelFolderError
from protos.columns import pack
from tokenizer_service.detokenizer import Detokenizer, WindowDetokenizer, build_table
from tokenizer_service.formats import MISTRAL_TAG, TOOL_TAGS
from tokenizer_service.model_folder import ModelFolder
from tokenizer_service.reasoning import CLOSE, OPEN

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
log = logging.getLogger(__name__)
ADDED_TOKEN_FIELDS = ("single_word", "lstrip", "rstrip", "normalized", "special")
CONTROL = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
"""How control tokens are written. Folders do not flag all of theirs as special: DeepSeek's
`<｜User｜>` and Qwen's `<|fim_prefix|>` are shown in answers, and no text of users all the same."""

TAGS = {*TOOL_TAGS, MISTRAL_TAG, OPEN, CLOSE}
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How vocabularies with byte fallback write a token of one byte."""


class Tokenizer:
    """A loaded tokenizer. Thread-safe; encoding calls block and belong in a thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._plain: tuple[Library, Library] | None = None
        added = library.get_added_tokens_decoder()
        special = {i: token for i, token in added.items() if token.special}
        self.special_ids = frozenset(special)
        control = {i: t for i, t in added.items() if t.special or CONTROL.fullmatch(t.content)}
        self._control = control
        self._special_id = {token.content: i for i, token in control.items()}
        self.special_texts = tuple(sorted(self._special_id))
        self.matches_loosely = any(
            t.normalized or t.lstrip or t.rstrip or t.single_word for t in control.values()
        )
        vocabulary = library.get_vocab(with_added_tokens=True)
        self._known_ids = frozenset(vocabulary.values())
        self._unskipped_ids = self._known_ids - self.special_ids
        self.size = max(self._known_ids, default=-1) + 1
        self._table = build_table(library, vocabulary, self.special_ids)

    def id_of(self, text: str) -> int | None:
        """Return the id of the token written `text`."""
        return self._library.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool) -> bytes:
        """Return the column of `text`; special tokens in it are recognised."""
        with blaming_the_text():
            found = self._library.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return pack(found[0].ids)

    def encode_guarded(self, parts: list[str]) -> bytes:
        """Return the column of `parts`: even ones are text, odd ones are special tokens."""
        first, *others = self._stripped(parts)[::2]
        begin, rest = self._as_text()
        with blaming_the_text():
            ids = list(begin.encode(first, add_special_tokens=False).ids)
            texts = rest.encode_batch_fast(others, add_special_tokens=False)
        for special, text in zip(parts[1::2], texts, strict=True):
            ids.append(self._special_id[special])
            ids.extend(text.ids)
        return pack(ids)

    def _stripped(self, parts: list[str]) -> list[str]:
        """Return `parts` without the blanks that a special token takes from beside it."""
        shown = list(parts)
        for at in range(1, len(parts), 2):
            token = self._control[self._special_id[parts[at]]]
            if token.lstrip:
                shown[at - 1] = shown[at - 1].rstrip()
            if token.rstrip:
                shown[at + 1] = shown[at + 1].lstrip()
        return shown

    def _as_text(self) -> tuple[Library, Library]:
        """Return copies that read special tokens as text; made at first need.

        The first is for the begin of a prompt, the second for what comes later in it.
        """
        if self._plain is None:
            written = self._library.to_str()
            later = written.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
            self._plain = self._copy_for_text(written), self._copy_for_text(later)
        return self._plain

    def _copy_for_text(self, written: str) -> Library:
        if isinstance(self._library.model, Unigram):
            return Library.from_str(without_pieces(written, self.special_texts))
        copy = Library.from_str(written)
        copy.add_special_tokens(list(self._control.values()))  # some were not flagged
        copy.encode_special_tokens = True
        return copy

    def detokenizer(self, keep_special: bool, before: Sequence[int] = ()) -> Detokenizer:
        """Return a fresh incremental decoder of what follows the tokens `before`."""
        if self._table is not None:
            return self._table.detokenizer(keep_special)
        shown = self._known_ids if keep_special else self._unskipped_ids
        ends = [token_id for token_id in before if token_id in shown]
        whole = [token_id for token_id in ends if self._is_whole(token_id)]
        context = whole[-1:] or (self._some_whole if ends else [])
        return WindowDetokenizer(self._decoded, shown, context, self._some_whole)

    @cached_property
    def _some_whole(self) -> list[int]:
        """One token with a text of its own, to stand before others; none where there is none."""
        return list(islice(filter(self._is_whole, sorted(self._unskipped_ids)), 1))

    def _is_whole(self, token_id: int) -> bool:
        """Whether a token has a text of its own: any such makes the next one no first of a text."""
        text = self._decoded([token_id])
        return bool(text) and "\ufffd" not in text

    def _decoded(self, token_ids: list[int]) -> str:
        return self._library.decode(token_ids, skip_special_tokens=False)

    def pieces(self) -> Sequence[bytes]:
        """Return the bytes of every token, by id."""
        if self._table is not None:
            return self._table.pieces
        return [self.piece(token_id) for token_id in range(self.size)]

    def decode(self, token_ids: Iterable[int], keep_special: bool) -> str:
        """Return the text of all `token_ids` at once."""
        stream = self.detokenizer(keep_special)
        return "".join([stream.step(token_id) for token_id in token_ids]) + stream.flush()

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of one token, special tokens included; empty for an unknown id."""
        if token_id >= self.size:
            return b""
        if self._table is not None:
            return self._table.pieces[token_id]
        once, twice = self._decoded([token_id]), self._decoded([token_id, token_id])
        byte = BYTE.fullmatch(self._library.id_to_token(token_id) or "")
        if byte and once in ("\ufffd", chr(int(byte[1], 16))):
            return bytes([int(byte[1], 16)])
        return twice[len(once) :].encode()  # the first of a text may lose the blank before it


@contextmanager
def blaming_the_text() -> Iterator[None]:
    """Tell clients what is theirs: a vocabulary without an unknown token has none for some texts.

    The library raises bare Exception for that; every other kind is a fault of ours.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise InvalidRequest(f"the model's tokenizer cannot encode this text: {error}") from error


def load_tokenizer(folder: ModelFolder) -> Tokenizer | None:
    """Load tokenizer.json, else vocab.json with merges.txt; None when the folder has neither."""
    ready, vocabulary = folder.path / "tokenizer.json", folder.path / "vocab.json"
    try:
        if ready.exists():
            library = Library.from_file(str(ready))
            add_missing(library, folder)
            library = with_shown_tags(library)
            set_ends(library, folder)
            library.no_truncation()
            library.no_padding()
            return Tokenizer(library)
        if vocabulary.exists():
            built = byte_level_bpe(vocabulary, folder.path / "merges.txt", folder)
            return Tokenizer(with_shown_tags(built))
    except ModelFolderError:
        raise
    except Exception as error:  # the library raises bare Exception
        why = str(error) or repr(error)
        raise ModelFolderError(f"the tokenizer in {folder.path} does not load: {why}") from error
    if (folder.path / "tokenizer.model").exists():
        log.warning("tokenizer.model is not read: save the tokenizer as tokenizer.json")
    return None


def with_shown_tags(library: Library) -> Library:
    """Return a tokenizer whose tags of thoughts and calls are no special tokens.

    Most folders leave them plain. Where they are flagged they would be skipped before anybody reads
    by them what is a thought and what a call, and templates could not find them in old answers.
    """
    added = library.get_added_tokens_decoder().values()
    if not any(token.special and token.content in TAGS for token in added):
        return library
    told = json.loads(library.to_str())
    for token in told["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in TAGS
    return Library.from_str(json.dumps(told))


def set_ends(library: Library, folder: ModelFolder) -> None:
    """Let texts get the tokens at their ends that the folder says, if there are such tokens."""
    if folder.adds_ends is None:
        return
    texts = [folder.token_texts.get(name) for name in ("bos_token", "eos_token")]
    ids = [library.token_to_id(text or "") for text in texts]
    begin, end = (
        [f"{text}:0"] if is_added and token_id is not None else []
        for text, token_id, is_added in zip(texts, ids, folder.adds_ends, strict=True)
    )
    known = [(t, i) for t, i in zip(texts, ids, strict=True) if t is not None and i is not None]
    library.post_processor = TemplateProcessing(
        single=[*begin, "$A:0", *end], special_tokens=list(dict(known).items())
    )


def byte_level_bpe(vocabulary: Path, merges: Path, folder: ModelFolder) -> Library:
    """Build Qwen2's byte-level BPE; raise ModelFolderError for another class of tokenizer."""
    if folder.tokenizer_class not in ("", "Qwen2Tokenizer", "Qwen2TokenizerFast"):
        raise ModelFolderError(
            f"{folder.path} has no tokenizer.json, and {folder.tokenizer_class} cannot be built "
            "from vocab.json and merges.txt (only Qwen2Tokenizer can)"
        )
    library = Library(BPE.from_file(str(vocabulary), str(merges)))
    library.normalizer = NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = ByteLevelDecoder()
    for token_id, token in told_tokens(folder):
        add_token(library, token_id, token)
    return library


def without_pieces(tokenizer_json: str, texts: Collection[str]) -> str:
    """Return a tokenizer that spells `texts`: a Unigram model finds them by itself, as pieces.

    They keep their places, under names that nobody can write.
    """
    names = {text: secrets.token_hex(32) for text in texts}
    parts = json.loads(tokenizer_json)
    model = parts["model"]
    model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    for token in parts["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    return json.dumps(parts)


def told_tokens(folder: ModelFolder) -> Iterator[tuple[int, AddedToken]]:
    """Yield id and token of what the folder tells beside the vocabulary, in order of ids."""
    for token_id, token in sorted(folder.added_tokens.items()):
        options = {name: bool(token.get(name)) for name in ADDED_TOKEN_FIELDS}
        yield token_id, AddedToken(token["content"], **options)


def add_missing(library: Library, folder: ModelFolder) -> None:
    """Add what the folder tells of beside its tokenizer.json, as transformers does.

    A token that the file has keeps its id, and gets the flags that the folder tells. One whose
    place is taken, would leave a gap, or lies beyond the model's own vocabulary, is left out, with
    a warning.
    """
    has, end = library.get_added_tokens_decoder(), 1 + max(library.get_vocab().values(), default=-1)
    end = end if end == library.get_vocab_size() else -1  # the library would fill a hole first
    for token_id, token in told_tokens(folder):
        known = library.token_to_id(token.content)
        if known == token_id and token_id in has:
            token = as_told(has[token_id], folder.added_tokens[token_id])
            if flags(token) == flags(has[token_id]):
                continue
        is_beyond = 0 < folder.vocab_size <= token_id
        if known is None and token_id == end and not is_beyond:
            known, end = token_id, end + 1
        if known == token_id:
            add_token(library, token_id, token)
        else:
            told = {"token": token.content, "id": token_id, "of tokenizer.json": known}
            log.warning("an added token has no place and is left out", extra=told)
    add_named(library, folder, end)


def as_told(token: AddedToken, told: Mapping[str, Any]) -> AddedToken:
    """Return `token` with the flags that the folder tells; what is special stays so."""
    new = {name: had if told.get(name) is None else bool(told[name])
           for name, had in flags(token).items()}  # fmt: skip
    return AddedToken(token.content, **new | {"special": token.special or new["special"]})


def flags(token: AddedToken) -> dict[str, bool]:
    """Return how a token is matched, and whether it is special, by the names of the files."""
    return {name: getattr(token, name) for name in ADDED_TOKEN_FIELDS}


def add_named(library: Library, folder: ModelFolder, end: int) -> None:
    """Make special what the folder names so: what there is, and else what has room at the end.

    `end` is the id of the next new token, -1 where there is no room. A token that the folder tells
    with an id, and that has got none, stays out.
    """
    added = {token.content: token for token in library.get_added_tokens_decoder().values()}
    has_no_place = {token["content"] for token in folder.added_tokens.values()}
    for text in folder.special_texts:
        is_new = library.token_to_id(text) is None
        has_room = end >= 0 and not 0 < folder.vocab_size <= end
        if is_new and (text in has_no_place or not has_room):
            continue
        token = added.get(text) or AddedToken(text, normalized=False)
        if not token.special:
            token.special = True
            library.add_special_tokens([token])
            end += is_new


def add_token(library: Library, token_id: int, token: AddedToken) -> None:
    """Add one token; raise ModelFolderError when it does not get the id the folder says."""
    add = library.add_special_tokens if token.special else library.add_tokens
    add([token])
    given = library.token_to_id(token.content)
    if given != token_id:
        raise ModelFolderError(f"added token {token.content!r} got id {given}, not {token_id}")
