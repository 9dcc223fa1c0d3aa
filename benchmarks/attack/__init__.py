"""An attack on the command line as a tool: what bad input, kills, full disks and rivals do to stored results.

``python -m benchmarks.attack KIND`` runs one kind, ``all`` runs all of them, and :mod:`.__main__` says how to
read the table. Each kind is a module that yields cases, and :mod:`.common` has what they share.
"""
