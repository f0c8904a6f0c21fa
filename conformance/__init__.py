"""The conformance suite: laws of activation checkpointing, and the instrument that judges implementations by them."""
