"""Entry, a predictor without a model: `python -P -m recgraph_predictors.entry --http_port P --model_name NAME`."""

from __future__ import annotations

from collections.abc import Sequence

from recgraph import metrics
from recgraph.bundle import Bundle
from recgraph.contract import Envelope
from recgraph.edge import ProcessState
from recgraph.release.store import ArmsWatch, start_value
from recgraph.scenes import SceneFileWatch
from recgraph.settings import Settings
from recgraph.stages.entry import EntryStage
from recgraph_predictors import host


def follow_arms(settings: Settings) -> ArmsWatch:
    """The arms, with the start value that the settings name. Raises BundleError and DataError."""
    start = start_value(settings.arms, lambda: Bundle.open(settings.bundle).version)
    return ArmsWatch(settings.caches_redis, start)


def build(settings: Settings, arms: ArmsWatch) -> EntryStage:
    """The stage; raises DataError for a scene file that cannot be used."""
    return EntryStage(
        scenes=SceneFileWatch(settings.scenes),
        arms=arms,
        budgets=settings.budgets,
        record_sample=settings.record_sample,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM."""
    args = host.arguments("The entry stage.", argv)
    settings = Settings()  # type: ignore[call-arg]  # from the environment
    host.start_logging(settings, "entry")
    arms = follow_arms(settings)
    stage = build(settings, arms)
    metrics.watch_arms(arms)

    async def runner() -> host.Runner:
        await arms.start()

        async def run(envelope: Envelope) -> Envelope:
            return await stage.run(envelope)

        return run

    state = ProcessState(args.model_name)
    model = host.EnvelopeModel(args.model_name, state, stage="entry", build=runner, whole_ms=settings.budgets.whole)
    host.serve(model, args, settings, grpc=False)


if __name__ == "__main__":
    main()
