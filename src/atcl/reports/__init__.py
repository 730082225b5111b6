"""One HTML page that shows runs: numbers, curves, adversarial images; it needs no network and no other file.

`writing.report` makes it; `sections`, `curves` and `scenes` make its parts.
"""
