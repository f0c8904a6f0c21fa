"""Laws of checkpointing under parallelism, family ``distributed``: they are judged in a world of several processes, the ranks.

They have a registry of their own, because ``nox -s conformance`` judges only by laws that one process can judge.
"""
