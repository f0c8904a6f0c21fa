"""A zoo of real models: architectures of transformers, timm, torchvision and diffusers, tiny and with random weights.

Each is checked with its package's own switch for checkpointing. Nothing is downloaded.
"""
