"""FedSDC says at the start what it can't do, and takes what it can."""

import dataclasses

import pytest
from fedsdc_toys import FEATURES, PLAIN, dealing_server, run
from torch import nn

from medfl.networks.heads import TwoLayerHead
from medfl.testing.cohort import CLASSES, SmallNet, make_task
from medfl_methods.fedsdc.method import FedSDC


class OddHead(SmallNet):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class Deep(SmallNet):
    def __init__(self):
        super().__init__()
        self.head = TwoLayerHead(FEATURES, 7, CLASSES, 0.1, "relu")


def odd_task(kind):
    task = make_task().with_network("odd", kind)
    return dataclasses.replace(task, network="odd")


def test_a_count_of_heads_that_fits_is_accepted():
    """With shuffling it is that of the participants, without it that of the sites."""
    for shuffle, count in ((True, 3), (False, 5)):
        server = dealing_server(5, fraction=0.6)
        FedSDC(heads=count, shuffle=shuffle).setup(server)
        assert len({name.split("/")[2] for name in server.state.tensors if "heads/" in name}) == count


@pytest.mark.parametrize(("args", "kind"), [({}, OddHead), (PLAIN, Deep)], ids=["replaced", "as it is"])
def test_heads_of_the_network_that_are_welcome(tmp_path, args, kind):
    """Any with a linear layer where it is replaced; one of two layers also where all are like it."""
    result = run(tmp_path, args, task=odd_task(kind))
    assert result.outcome.status == "finished"
    widths = result.outcome.findings.meta["heads"]["widths"]
    assert widths == [7, 7, 7] if kind is Deep else widths == sorted(set(widths))
