"""Checkpointing on several ranks: what two and four of them measure, and a model that predicts it for many from shapes."""
