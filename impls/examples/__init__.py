"""Programs that use what is in ``impls`` as its users do."""
