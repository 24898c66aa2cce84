"""Attacks that measure what a run gives away, and poisoning attacks in simulations.

The former read a run folder and write to its folder ``attacks`` only.
"""

from __future__ import annotations

from medfl.hooks import AdversaryRecord, AttackRecord, CommandRecord, SectionRecord, hookimpl


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


@hookimpl
def medfl_attacks() -> list[AttackRecord]:
    """Return the attacks on finished runs."""
    return [
        AttackRecord(
            "membership",
            "medfl_attacks.membership.attack:MembershipOptions",
            "medfl_attacks.attack_files:MembershipFile",
            measures={
                "auc": "AUC",
                "tpr_at_1_fpr": "TPR at 1 % FPR",
                "recall_balanced": "recall, balanced",
                "recall": "recall, own threshold",
                "false_alarms": "false alarms, own threshold",
            },
            note="Which images a model was trained on. Chance is 0.5 for the AUC and for the recall on as many "
            "members as others, 0.01 for the true positive rate at 1 % false positives. Larger: more leaks. The plain "
            "recall by an attack's own threshold, which papers print, says something only beside its false alarms: "
            "guessing has as many of these.",
        ),
        AttackRecord(
            "inversion",
            "medfl_attacks.inversion.attack:InversionOptions",
            "medfl_attacks.attack_files:InversionFile",
            measures={"mse": "MSE", "psnr": "PSNR (dB)", "ssim": "SSIM"},
            digits={"mse": 4, "psnr": 1},
            note="What an attacker reconstructs, against the images themselves, in [0, 1]. A smaller MSE, a larger "
            "PSNR and SSIM: more leaks. The mean image of other people, which takes no attack, is what to compare "
            "with.",
        ),
        AttackRecord(
            "poisoning",
            "medfl_attacks.poisoning:PoisoningOptions",
            "medfl_attacks.attack_files:PoisonFile",
            measures={"accuracy": "accuracy", "worst_accuracy": "worst honest site", "success": "attack success"},
            note="What attackers reached: accuracy on all test images of honest sites and of the server, at the worst "
            "honest site, and how often a model gives the answer that attackers want, of the images where that is a "
            "wrong one. Ordinary errors give it, too, as rows without attackers show. In brackets: 95 % interval over "
            "the seeds, by Student's t. What a rule costs without an attack, and what an attack costs, are the "
            "differences in the tables above.",
            has_intervals=True,
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the section of the report about attacks."""
    return [SectionRecord("attacks", "What attacks found", "medfl_attacks.attacks_section:AttacksSection", 310)]
