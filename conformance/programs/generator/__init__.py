"""Draws programs: the features that they may have, leaves, operators, containers, the statements of bodies, and the driver.

``conformance.programs.strategies`` puts these together. ``rewrites`` changes programs that were drawn, by their tree.
"""
