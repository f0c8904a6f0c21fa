"""Scripts that show a fault by themselves.

``script`` renders one from a verdict: ``script_endings`` has what measures, one function for each thing that a verdict says
was measured, and ``embedding`` puts their source into the script. ``reduction`` makes it smaller by ``reduction_steps`` and
``stand_ins``. ``script_process`` runs a script, ``script_files`` stores scripts beside results, ``replay`` runs those again.
"""
