"""The base of methods that end with a step in which each site makes a model of its own of the common one."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.contract import Model, Order, Reply, Server, Site
from medfl.methods.averaging import Averaging
from medfl.methods.fit import FitResult
from medfl.methods.kept import keep, kept
from medfl.methods.rounds import Due, Step
from medfl.types import MODEL, Tensors
from medfl.utils.wire import select

ADAPT = "adapt"
"""Names the step, and where a site keeps what came out of it."""


class LastStep(Averaging):
    """In the last round there is a further step: all sites with training images adapt the common model and keep it.

    Nothing is sent. What comes out is the site's personal model; before, and where it was away, the common model stands
    in. A run that is continued with more rounds adapts anew in its last one, from the common model.
    """

    @property
    def adapts(self) -> bool:
        """Whether there is such a step."""
        return True

    def adapt(self, site: Site, start: Tensors, sent: Tensors) -> FitResult:
        """What a site makes of the common model.

        Args:
            site: With training images.
            start: All tensors of the common model, at this site.
            sent: The order's tensors.
        """
        raise NotImplementedError

    def round_steps(self) -> tuple[Step, ...]:
        """Those of the parent; in the end all sites adapt."""
        return *super().round_steps(), Step(ADAPT, self.adapt_orders, self.adapt_and_keep, quorum=0)

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """Those of the parent; the last step comes in the last round."""
        last = self.adapts and server.round >= server.settings.rounds
        steps = [step.name for step in self.round_steps() if step.name != ADAPT or last]
        return [Due(name) for name in steps][len(done) :]

    def adapt_orders(self, server: Server) -> list[Order]:
        """To all sites, with the common model."""
        return [Order(name, ADAPT, self.publish(server)) for name in server.trainable()]

    def adapt_and_keep(self, site: Site, order: Order) -> Reply:
        """Adapt the common model and keep what comes out."""
        done = self.adapt(site, self.full_state(site, select(order.tensors, MODEL)), order.tensors)
        keep(site, f"{ADAPT}/", done.after)
        return Reply(log=done.log, trained={"personal": Model(site.network, done.after)})

    def models(self, holder: Server | Site) -> dict[str, Model]:
        """Those of the parent, and at each site its own."""
        models = super().models(holder)
        if isinstance(holder, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(holder.network, kept(holder, f"{ADAPT}/") or common)
        return models
