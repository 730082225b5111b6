"""The attacks that every finished run is measured by; importing this module is quick."""

REPORTED = ("natural", "pgd20", "cw30")  # not AutoAttack, which takes hours without a GPU
