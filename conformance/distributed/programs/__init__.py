"""Programs of laws that take ranks, beside those in ``conformance/programs/scenarios/parallel``.

Meshes, units that fully_shard shards, experts, selective policies, orders of backward, one rank, and recovery.
"""
