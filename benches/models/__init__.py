"""The models that are measured: layers of several kinds, and chains of them in several sizes."""
