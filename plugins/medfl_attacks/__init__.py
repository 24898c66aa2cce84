"""Attacks that measure what a run gives away, and poisoning attacks in simulations.

The former read a run folder and write to its folder ``attacks`` only.
"""

from __future__ import annotations

from medfl.hooks import AdversaryRecord, CommandRecord, hookimpl


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package."""
    return [
        CommandRecord(
            "attack",
            "medfl_attacks.commands.attack:app",
            "Measure what a finished run gives away.",
            "Look at results",
        ),
    ]


@hookimpl
def medfl_adversaries() -> list[AdversaryRecord]:
    """Return the poisoning attacks of `medfl_attacks.adversaries`."""
    return [
        AdversaryRecord(
            "label_flip",
            "medfl_attacks.adversaries.label_flip:LabelFlip",
            "Tolpegin et al., ESORICS 2020",
            "data",
            "images of one class are called another, or all classes are turned round (source, target, rate)",
        ),
        AdversaryRecord(
            "backdoor",
            "medfl_attacks.adversaries.backdoor:Backdoor",
            "Gu et al., 2017",
            "data",
            "a bright square in a corner stands for a class (target, patch, rate)",
        ),
        AdversaryRecord(
            "sign_flip",
            "medfl_attacks.adversaries.sign_flip:SignFlip",
            "Li et al., AAAI 2019",
            "reply",
            "the opposite of the own update (scale)",
        ),
        AdversaryRecord(
            "scaling",
            "medfl_attacks.adversaries.scaling:Scaling",
            "Bagdasaryan et al., AISTATS 2020",
            "reply",
            "a multiple of the own update, by default long enough to replace the model (scale)",
        ),
        AdversaryRecord(
            "gaussian",
            "medfl_attacks.adversaries.gaussian:Gaussian",
            "Blanchard et al., NeurIPS 2017",
            "reply",
            "noise as long as the own update (scale)",
        ),
        AdversaryRecord(
            "alie",
            "medfl_attacks.adversaries.alie:Alie",
            "Baruch et al., NeurIPS 2019",
            "reply",
            "the honest mean less z honest standard deviations: hardly to be told from the honest (z)",
        ),
        AdversaryRecord(
            "ipm",
            "medfl_attacks.adversaries.ipm:InnerProduct",
            "Xie et al., UAI 2019",
            "reply",
            "the honest mean times -epsilon (epsilon)",
        ),
        AdversaryRecord(
            "free_rider",
            "medfl_attacks.adversaries.free_rider:FreeRider",
            "Fraboni et al., AISTATS 2021",
            "reply",
            "nothing, or how the common model changed last, and noise (disguise, noise)",
        ),
    ]
