"""Millrace: an LLM serving stack in four tiers."""
