"""A second device without hardware: tensors, streams, memory and generators of a device type ``sim``."""
