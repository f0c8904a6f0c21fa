"""What a program is, a typed tree that prints as runnable Python, and the strategies that draw programs.

``generator`` draws the parts of a program, ``strategies`` and ``schedules`` put them together, and ``scenarios`` has programs
written by hand. What the suite must know about a program, such as its ``sums`` and ``notes``, are fields of its parts.
"""
