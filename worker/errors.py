"""The exceptions of the worker that an operator or a defect can cause."""

from __future__ import annotations


class ModelFolderError(Exception):
    """A model folder cannot be served; the message names the file and the field or tensor."""


class KernelError(Exception):
    """An operator was given an array of the wrong dtype, shape or memory order."""


class RowError(Exception):
    """One sequence cannot go on; the other rows of the step are not concerned."""
