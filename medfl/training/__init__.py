"""The one loop, prediction, augmentation, class balance: a model and data in, a model out; knows no federation."""
