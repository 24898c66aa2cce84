"""Tests that a teacher does not change when its model is trained afterwards."""

import dataclasses

import torch
from monai.transforms import Compose, Flipd

from medfl.contract import Site, State
from medfl.settings import Settings
from medfl.testing.cohort import make_data, make_task
from medfl.toolkit.teacher import Teacher
from medfl.training.augment import Augmentation
from medfl.training.loop import Batch


def test_changed_images_are_judged_in_evaluation_mode_by_the_model_as_it_was():
    task = dataclasses.replace(make_task(), augmentation=Augmentation(Compose([Flipd("image", 1)])))
    data = make_data(9, "teacher")
    site = Site("a", 1, State(), task, Settings(rounds=1), train=data)
    model = task.load(task.initial(7)).train()
    teacher = Teacher(model, site)
    images, targets = data.batch(torch.arange(4))
    batch = Batch(images.flip(3), targets, torch.arange(4))
    with torch.no_grad():
        expected = task.load(task.initial(7)).eval()(batch.images)
        for parameter in model.parameters():
            parameter.mul_(2.0)
    for _ in range(2):  # nothing moves by being asked
        torch.testing.assert_close(teacher(batch), expected)
