"""Checkpoints whose linears somebody has quantised already: their weights, as floats again."""
