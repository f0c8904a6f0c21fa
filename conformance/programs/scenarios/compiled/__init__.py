"""Programs written by hand that compile what calls the checkpoint, or are called through it compiled.

Each computes what it expects eagerly, without the checkpoint, before anything is compiled. None names its leaves, whose
gradients it takes back between the two.
"""
