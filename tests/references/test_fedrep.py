"""Reference implementation of FedRep.

A site first takes steps on its own head under the received body, then on the body under the new head. Bodies are
averaged; heads stay at the sites.

Conventions: as in the authors' code, with new optimisers for the two phases and means weighted by size.

Deliberate differences of medfl: The phases share the batches of a round (`head_share`). The fixed part is in evaluation
mode, so the phase of the head does not change the running statistics of the body.

Source: Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, Algorithm 1.
"""

from reference_training import (
    BATCH,
    EPOCHS,
    ROUNDS,
    SIZES,
    assert_close,
    average_models,
    batches,
    initial_model,
    plain_sgd,
    run_method,
)

SHARE = 0.5


def test_method_equals_the_reference_implementation(tmp_path):
    common = initial_model()
    own = dict.fromkeys(SIZES, common)
    for round_ in range(1, ROUNDS + 1):
        for site, size in SIZES.items():
            total = EPOCHS * -(-size // BATCH)
            first = round(SHARE * total)
            begun = own[site] | {name: tensor for name, tensor in common.items() if name.startswith("body.")}
            head = plain_sgd(
                begun, site, round_, 0.9, part="head", rows=batches(site, round_, steps=first, phase="head")
            )
            own[site] = plain_sgd(head, site, round_, 0.9, part="body", rows=batches(site, round_, steps=total - first))
        average = average_models(list(own.values()), list(SIZES.values()))
        common = {name: tensor for name, tensor in average.items() if name.startswith("body.")}
    result = run_method(tmp_path, "fedrep", {"head_share": SHARE}, momentum=0.9)
    for site in SIZES:
        head = {name: tensor for name, tensor in own[site].items() if name.startswith("head.")}
        assert_close(result.models[site]["personal"].tensors, common | head)
