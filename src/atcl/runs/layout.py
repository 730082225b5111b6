"""The names of the files in a run's folder, and of what the ledger keeps of it."""

RECIPE = "recipe.json"  # all settings, the seed, fingerprints of the data
JOURNAL = "journal.jsonl"  # one line an epoch
ANALYSIS = "analysis.jsonl"  # what observers recorded, where any were asked for
CHECKPOINTS = "checkpoints"  # the last two epochs
MODEL = "model.safetensors"  # the chosen model
RESULT = "result.json"
EVALUATION = "evaluation"  # which images withstood each attack, batch by batch
TRANSITION = "transition.json"  # where a transition matrix was estimated
REPORT = "report.html"
TENSORBOARD = "tensorboard"
FILES = (
    RECIPE,
    JOURNAL,
    ANALYSIS,
    MODEL,
    RESULT,
    TRANSITION,
    REPORT,
)  # files that nothing else may overwrite
