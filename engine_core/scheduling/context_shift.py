"""Context shift: a sequence that has filled its context goes on with less of it.

The first `n_keep` tokens stay and the older half of the others goes, the rule of llama.cpp's server
(`n_discard = n_left / 2`). Everything ever put out still counts: offsets, usage, max_tokens, and
the index that the noise depends on. What the sampler's penalties see is what is left.
"""

from __future__ import annotations

from engine_core.scheduling.sequence import Sequence

_ROOM = 4
"""Of a context at least so many tokens are not kept, as in llama.cpp: else nothing could go."""


def middle(sequence: Sequence) -> range:
    """Return the positions of a full sequence that are to go.

    Before them stays what was asked, at most the prompt and what fits.
    """
    asked = sequence.request.limits.n_keep or 0
    keep = max(min(asked, sequence.num_prompt, sequence.max_context - _ROOM), 0)
    return range(keep, keep + max((len(sequence.tokens) - keep) // 2, 1))


def drop_middle(sequence: Sequence) -> None:
    """Shorten a full sequence. What is left is an ordinary list of tokens: computed anew, it is as
    exact as any."""
    gone = middle(sequence)
    del sequence.tokens[gone.start : gone.stop]
    sequence.block_keys.clear()
    sequence.set_dropped(sequence.num_dropped + len(gone), gone.start)


def replay(sequence: Sequence) -> None:
    """Shorten a sequence that begins with delivered output just as it was shortened before."""
    delivered = sequence.tokens[sequence.num_prompt :]
    del sequence.tokens[sequence.num_prompt :]
    while sequence.is_full or delivered:
        if sequence.is_full:
            drop_middle(sequence)
        room = sequence.max_total - len(sequence.tokens)
        sequence.tokens += delivered[:room]
        del delivered[:room]
    sequence.num_expected = len(sequence.tokens)
