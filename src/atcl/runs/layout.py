"""The names of the files in a run's folder; the ledger uses them too."""

RECIPE = "recipe.json"  # all settings, the seed, fingerprints of the data
JOURNAL = "journal.jsonl"  # one line an epoch
JOURNAL_TABLE = "journal.csv"  # the same for spreadsheets, with --log csv
ANALYSIS = "analysis.jsonl"  # what observers recorded, with --observe
CHECKPOINTS = "checkpoints"  # the last two epochs
MODEL = "model.safetensors"  # the chosen model
RESULT = "result.json"  # what the run ends with
EVALUATION = "evaluation"  # which images withstood each attack, batch by batch
TRANSITION = "transition.json"  # where a transition matrix was estimated
REPORT = "report.html"  # the page of the run
TENSORBOARD = "tensorboard"  # event files, with --log tensorboard
# files that nothing else may overwrite
FILES = (RECIPE, JOURNAL, ANALYSIS, MODEL, RESULT, TRANSITION, REPORT)
