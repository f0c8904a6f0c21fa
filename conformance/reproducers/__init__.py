"""Scripts that show a fault by themselves.

``script`` renders one from a verdict: ``script_endings`` has one measuring function for each thing that can decide a verdict,
and ``embedding`` puts their source into the script. ``reduction`` makes it smaller by ``reduction_steps`` and
``stand_ins``. ``script_process`` runs a script, ``script_files`` stores scripts beside results, ``replay`` runs those again.
"""
