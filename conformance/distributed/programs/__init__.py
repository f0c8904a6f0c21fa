"""Programs of laws that take ranks, beside those in ``conformance/programs/scenarios/parallel``: meshes, one rank, recovery."""
