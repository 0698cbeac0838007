"""The exceptions of the worker that an operator or a defect can cause."""

from __future__ import annotations


class KernelError(Exception):
    """An operator was given an array of the wrong dtype, shape or memory order."""


class WeightsWritten(Exception):
    """A file of weights was written to while steps read it: what they compute is of no model."""


class DeviceLost(Exception):
    """The device has failed; whatever this process asks of it fails from now on, too."""


class NotFinite(Exception):
    """A weight that is not a finite number was about to be quantised, which would hide it."""


class RowError(Exception):
    """One sequence cannot go on; the other rows of the step are not concerned."""

    code = ""
    """As in `SequenceFault`."""


class NothingLeft(RowError):
    """The request's own fields leave no token to draw."""

    code = "no_token_left"


class GrammarLimit(RowError):
    """The request's own grammar takes more of its parser than any may, which its output shows."""

    code = "grammar_limit"
