"""Entry, a predictor without a model: `python -P -m recgraph_predictors.entry --http_port P --model_name NAME`."""

from __future__ import annotations

from collections.abc import Sequence

from recgraph.bundle import Bundle
from recgraph.contract import Envelope
from recgraph.edge import ProcessState
from recgraph.scenes import SceneFileWatch
from recgraph.settings import Settings
from recgraph.stages.entry import EntryStage
from recgraph_predictors import host


def build(settings: Settings) -> EntryStage:
    """The stage; raises BundleError and DataError for a bundle or a scene file that cannot be used."""
    return EntryStage(
        scenes=SceneFileWatch(settings.scenes),
        bundle_version=Bundle.open(settings.bundle).version,
        budgets=settings.budgets,
        record_sample=settings.record_sample,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM."""
    args = host.arguments("The entry stage.", argv)
    settings = Settings()  # type: ignore[call-arg]  # from the environment
    host.start_logging(settings, "entry")
    stage = build(settings)

    async def runner() -> host.Runner:
        async def run(envelope: Envelope) -> Envelope:
            return await stage.run(envelope)

        return run

    state = ProcessState(args.model_name)
    host.serve(host.EnvelopeModel(args.model_name, state, stage="entry", build=runner), args, settings, grpc=False)


if __name__ == "__main__":
    main()
