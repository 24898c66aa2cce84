"""FedPer by Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818, 2019, Algorithm 1: a site trains the common body
and its own head together; bodies are averaged, weighted by size, heads stay.

Convention: the paper's, with the last layer as the head. Buffers of batch norm go with the body.
"""

from judging import ROUNDS, SIZES, agree, mean, plain_sgd, run, start


def test_it_is_the_loop_of_the_paper(tmp_path):
    common = {name: tensor for name, tensor in start().items() if name.startswith("body.")}
    own = dict.fromkeys(SIZES, start())
    for round_ in range(1, ROUNDS + 1):
        for site in SIZES:
            own[site] = plain_sgd(own[site] | common, site, round_, 0.9)
        average = mean(list(own.values()), list(SIZES.values()))
        common = {name: average[name] for name in common}
    result = run(tmp_path, "fedper", momentum=0.9)
    for site in SIZES:
        agree(result.models[site]["personal"].tensors, own[site] | common)
