"""Attacks on finished runs, and poisoning attacks for simulations.

An attack on a finished run measures how much the run reveals about its training images. It writes only to the folder
``attacks`` of the run folder.
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
            "Measure what an attacker learns from a finished run.",
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
            "labels of one class are changed to another class, or all classes are reversed (source, target, rate)",
        ),
        AdversaryRecord(
            "backdoor",
            "medfl_attacks.adversaries.backdoor:Backdoor",
            "Gu et al., 2017",
            "data",
            "a bright square in the corner of an image triggers a class (target, patch, rate)",
        ),
        AdversaryRecord(
            "sign_flip",
            "medfl_attacks.adversaries.sign_flip:SignFlip",
            "Li et al., AAAI 2019",
            "reply",
            "the attacker's update with the opposite sign (scale)",
        ),
        AdversaryRecord(
            "scaling",
            "medfl_attacks.adversaries.scaling:Scaling",
            "Bagdasaryan et al., AISTATS 2020",
            "reply",
            "a multiple of the attacker's update, by default large enough to replace the model (scale)",
        ),
        AdversaryRecord(
            "gaussian",
            "medfl_attacks.adversaries.gaussian:Gaussian",
            "Blanchard et al., NeurIPS 2017",
            "reply",
            "Gaussian noise with the norm of the attacker's update (scale)",
        ),
        AdversaryRecord(
            "alie",
            "medfl_attacks.adversaries.alie:Alie",
            "Baruch et al., NeurIPS 2019",
            "reply",
            "the mean of the honest updates minus z of their standard deviations, which is hard to detect (z)",
        ),
        AdversaryRecord(
            "ipm",
            "medfl_attacks.adversaries.ipm:InnerProduct",
            "Xie et al., UAI 2019",
            "reply",
            "the mean of the honest updates times -epsilon (epsilon)",
        ),
        AdversaryRecord(
            "free_rider",
            "medfl_attacks.adversaries.free_rider:FreeRider",
            "Fraboni et al., AISTATS 2021",
            "reply",
            "zeros or the last change of the global model, plus noise (disguise, noise)",
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
                "recall": "recall at the attack's threshold",
                "false_alarms": "false positive rate at the attack's threshold",
            },
            note="Membership inference: how well an attacker recognises the training images of a model. Guessing has "
            "an AUC of 0.5, a balanced recall of 0.5 and a true positive rate (TPR) of 0.01 at 1 % false positives "
            "(FPR). Larger values mean that the model reveals more. Read the recall at the attack's own threshold, "
            "which papers print, together with the false positive rate: an attack that guesses has the same value for "
            "both.",
        ),
        AttackRecord(
            "inversion",
            "medfl_attacks.inversion.attack:InversionOptions",
            "medfl_attacks.attack_files:InversionFile",
            measures={"mse": "MSE", "psnr": "PSNR (dB)", "ssim": "SSIM"},
            digits={"mse": 4, "psnr": 1},
            note="Inversion: how close an attacker's reconstructions are to the training images, with values in "
            "[0, 1]. A smaller MSE and a larger PSNR and SSIM mean that the run reveals more. The baseline is the mean "
            "of other patients' images, which needs no attack.",
        ),
        AttackRecord(
            "poisoning",
            "medfl_attacks.poisoning:PoisoningOptions",
            "medfl_attacks.attack_files:PoisoningFile",
            measures={"accuracy": "accuracy", "worst_accuracy": "worst honest site", "success": "attack success rate"},
            note="Poisoning: accuracy on all test images of the honest sites and the server, accuracy at the worst "
            "honest site, and attack success rate. The success rate is the share of images that the model assigns to "
            "the class the attackers want, among the images for which that class is wrong. Ordinary errors also count "
            "as successes, so compare with the rows without attackers. In brackets: 95 % confidence interval over the "
            "seeds (Student's t). The tables above show the cost of an aggregation rule without an attack and the cost "
            "of an attack.",
            has_intervals=True,
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the section of the report about attacks."""
    return [SectionRecord("attacks", "Attack results", "medfl_attacks.attacks_section:AttacksSection", 310)]
