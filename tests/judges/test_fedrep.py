"""FedRep by Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, Algorithm 1: a site first takes steps on its own head
under the received body, then on the body under the new head; bodies are averaged, heads stay.

Convention: the authors' code, with fresh optimisers for the two phases and means weighted by size. Where ours differs
on purpose: a round's batches are shared out (`head_share`), and what is fixed is in evaluation mode, so that the
head's phase leaves the running statistics of the body alone.
"""

from judging import BATCH, EPOCHS, ROUNDS, SIZES, agree, batches, mean, plain_sgd, run, start

SHARE = 0.5


def test_it_is_the_loop_of_the_paper(tmp_path):
    common = start()
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
        average = mean(list(own.values()), list(SIZES.values()))
        common = {name: tensor for name, tensor in average.items() if name.startswith("body.")}
    result = run(tmp_path, "fedrep", {"head_share": SHARE}, momentum=0.9)
    for site in SIZES:
        head = {name: tensor for name, tensor in own[site].items() if name.startswith("head.")}
        agree(result.models[site]["personal"].tensors, common | head)
