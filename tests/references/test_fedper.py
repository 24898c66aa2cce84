"""Reference implementation of FedPer.

A site trains the shared body and its own head together. Bodies are averaged, weighted by size; heads stay at the sites.

Conventions: as in the paper, with the last layer as the head. Batch-norm buffers belong to the body.

Source: Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818, 2019, Algorithm 1.
"""

from reference_training import ROUNDS, SIZES, assert_close, average_models, initial_model, plain_sgd, run_method


def test_method_equals_the_reference_implementation(tmp_path):
    common = {name: tensor for name, tensor in initial_model().items() if name.startswith("body.")}
    own = dict.fromkeys(SIZES, initial_model())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site] | common, site, round_, 0.9)
        average = average_models(list(own.values()), list(SIZES.values()))
        common = {name: average[name] for name in common}
    result = run_method(tmp_path, "fedper", momentum=0.9)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, own[site] | common)
