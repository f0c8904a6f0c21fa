"""What a program is, a typed tree that prints as runnable Python, and the strategies that draw programs.

Programs written by hand are in ``scenarios``.
"""
