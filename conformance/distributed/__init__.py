"""Laws of checkpointing under parallelism, family ``distributed``: they are judged in a world of several processes, the ranks.

They have a registry of their own, so that a run of ``nox -s conformance`` judges by the laws that one process can judge.
"""
