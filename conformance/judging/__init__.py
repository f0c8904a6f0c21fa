"""From a program to a verdict: it runs under plain and under an implementation, the runs are compared, the worst case counts.

Code that is not built in runs in a sandbox process.
"""
