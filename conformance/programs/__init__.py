"""What a program is, a typed tree that prints as runnable Python, and the strategies that draw programs.

``generator`` draws what a program consists of, ``strategies`` and ``schedules`` put it together, and ``scenarios`` holds
programs written by hand. What the suite must know of a program, as its ``sums`` and ``notes``, its parts say.
"""
