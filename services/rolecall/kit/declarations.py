"""Declarations of metrics that the kit's loops and scores report, and of values of a worker. Torch-free."""

from rolecall.spec.metric import ENV_STEPS, EVALUATED, IN_FLIGHT, POLICY_LAG, Metric

__all__ = [
    "ACCURACY",
    "BUBBLE",
    "CLASSIFIER",
    "ENV_STEPS",
    "EVALUATED_LOSS",
    "IN_FLIGHT",
    "LOSS",
    "PERPLEXITY",
    "POLICY_LAG",
    "RESULT",
    "TRAINING",
]

LOSS = Metric("loss", "Mean loss of a step.", direction="lower")
RESULT = (
    Metric(
        "samples_per_s",
        "Samples per second in the last steps. In the result: over the last attempt, including evaluations and "
        "checkpoints.",
    ),
    Metric(
        "wall_s",
        "Duration of the last attempt's training, including evaluations and checkpoints. Earlier attempts, pauses and "
        "the export don't count.",
        "seconds",
        "lower",
    ),
)
TRAINING = (
    LOSS,
    Metric("epochs", "Epochs completed."),
    Metric("steps", "Optimizer steps completed."),
    *RESULT,
)
"""The metrics that a `TrainingLoop` reports."""
ACCURACY = Metric("accuracy", "Share of samples that are classified correctly.", "ratio", "higher", EVALUATED)
EVALUATED_LOSS = Metric("loss", "Mean loss of a split.", direction="lower", splits=EVALUATED)
CLASSIFIER = (EVALUATED_LOSS, ACCURACY)
BUBBLE = Metric("bubble", "Share of the stages' time without computation, in the steps of an epoch.", "ratio", "lower")
"""For pipelines."""
PERPLEXITY = Metric("perplexity", "The exponential of the mean loss per token.", direction="lower", splits=EVALUATED)
"""For language models, with `EVALUATED_LOSS`."""
